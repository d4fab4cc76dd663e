#!/usr/bin/env bash
# bench/dummy.sh [RUNS]: what dummy messages are worth. A program sends one message in 10 ms to an echo server (64 bytes,
# VMA_SPEC=latency on both ends), and works on memory of its own meanwhile; it does so plainly, and with a dummy message
# every 50 us, in turn, RUNS times each (5). Prints medians of the send call and of the round trip, and their ratio in
# the same run. The client runs on core 0, the server on core 1.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sockets.sh"
RUNS=${1:-5}
COUNT=${COUNT:-200}
RESULTS=$BUILD/bench/dummy.tsv
need_machine
have_library || { say "$LIBRARY is not built"; exit 1; }

rare_sends() { # RUN WAY
	local rc=1
	if open_case latency "$BUILD/bench/rare_sends" "$IP_B" $PORT serve && wait_for 10 log_has far ready; then
		near latency "$BUILD/bench/rare_sends" "$IP_B" $PORT "$COUNT" "$2"
		rc=$?
	fi
	close_case
	[ $rc -eq 0 ] || { failed_case "$1" "$2"; return 1; }
	facts "$1" "$2" <"$WORK/near.log"
}

busy=$(warn_if_busy)
mkdir -p "$(dirname "$RESULTS")"
: >"$RESULTS"
for ((run = 1; run <= RUNS; run++)); do
	say "run $run of $RUNS"
	for way in plain dummy; do steady rare_sends "$run" "$way"; done
done
awk '
	function median(list,   part, n, i, j, t) {
		n = split(list, part, " ")
		for (i = 2; i <= n; i++)
			for (j = i; j > 1 && part[j] + 0 < part[j - 1] + 0; j--) { t = part[j]; part[j] = part[j - 1]; part[j - 1] = t }
		return n == 0 ? "-" : part[int((n + 1) / 2)]
	}
	{ value[$1, $2, $3] = $4; list[$2, $3] = list[$2, $3] " " $4; if ($1 > runs) runs = $1 }
	END {
		for (i = split("p50_send_ns p50_trip_ns", key, " "); i >= 1; i--) {
			ratios = ""
			for (run = 1; run <= runs; run++)
				if ((run, "plain", key[i]) in value && (run, "dummy", key[i]) in value)
					ratios = ratios " " value[run, "dummy", key[i]] / value[run, "plain", key[i]]
			printf "%-12s plain %s, with dummies %s ns: ratio %.2f\n", key[i], median(list["plain", key[i]]),
				median(list["dummy", key[i]]), median(ratios)
		}
	}' "$RESULTS" | tee "$BUILD/bench/dummy.txt"
[ -z "$busy" ] || echo "$busy" | tee -a "$BUILD/bench/dummy.txt"
