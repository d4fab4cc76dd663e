#!/usr/bin/env bash
# bench/observe.sh [RUNS]: what it costs a program to be observed. sockperf's ping-pong with the library on both ends (64
# bytes, VMA_SPEC=latency), and its server observed in each of these ways, in turn, RUNS times each (5):
#
#   nobody         by none
#   after          it has been captured, and the capture has ended
#   captured       by vma_dump, whole packets, to a file in memory; and how many records were lost
#   captured -s 64 the same, the first 64 bytes of each packet
#   read           all of its counters, 1000 times a second
#   base           by none, with the library that BASE names; one without the capture's hooks, for example
#
# Prints medians of the runs, with the lowest and highest, and the difference to "nobody" in the same run: a table for each
# distance of the two cores (distances.awk). The client runs on core 0 and the server on core 1; observers on the last
# core, where the machine has more than two.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sockets.sh"
RUNS=${1:-5}
SECONDS_EACH=${SECONDS_EACH:-2}
RESULTS=$BUILD/bench/observe.tsv
OBSERVER="taskset -c $(($(nproc) - 1))"
READS=1000
need_machine
have_library || { say "$LIBRARY is not built"; exit 1; }
command -v sockperf >/dev/null || { say "sockperf is not installed"; exit 1; }
export VMA_STATS_SHMEM_DIR=$WORK/stats
mkdir -p "$VMA_STATS_SHMEM_DIR"
CAPTURE=/dev/shm/vma-observe-$RUN_ID.pcapng
trap 'rm -f "$CAPTURE" "$WIRE"*; _cleanup' EXIT
WAYS="nobody after captured captured-s-64 read"
[ -z "${BASE:-}" ] || WAYS="$WAYS base"

start_capture() { # OPTIONS...: of vma_dump
	# shellcheck disable=SC2086 # words
	start dump b $OBSERVER "$BUILD/bin/vma_dump" -p "${PID[far]}" -w "$CAPTURE" "$@"
	wait_for 10 log_has dump capturing
}

begin_observer() { # WAY
	case $1 in
	nobody | base) ;;
	after) start_capture && sleep 0.2 && stop dump INT && sleep 2.5 ;;
	captured) start_capture ;;
	captured-s-64) start_capture -s 64 ;;
	read) # shellcheck disable=SC2086
		start reader b $OBSERVER "$BUILD/bench/stats_reader" "$VMA_STATS_SHMEM_DIR/vmastat.${PID[far]}" $READS
		wait_for 10 log_has reader ready ;;
	esac
}

end_observer() { # WAY: what it has seen
	case $1 in
	captured*) stop dump INT
		sed -n 's/^\([0-9]*\) packets written, \([0-9]*\) seen, \([0-9]*\) lost$/seen \2\nlost \3/p' "$WORK/dump.log"
		grep -o 'interrupted [0-9]* times' "$WORK/dump.log" ;;
	read) stop reader INT
		sed -n '/^reads\|^nsec_each/p' "$WORK/reader.log" ;;
	esac
}

observed_pp() { # RUN WAY
	local run=$1 way=$2 rc=1 LIBRARY=$LIBRARY
	[ "$way" != base ] || LIBRARY=$(realpath "$BASE")
	if start_server latency; then
		if begin_observer "$way"; then
			near latency sockperf pp -i "$IP_B" -p $PORT -m 64 -t "$SECONDS_EACH"
			rc=$?
		else
			cat "$WORK/dump.log" "$WORK/reader.log" >&2 2>/dev/null
		fi
		end_observer "$way" >"$WORK/observer"
	fi
	close_case INT
	[ $rc -eq 0 ] && grep -q 'percentile 50.000' "$WORK/near.log" || { failed_case "$run" "$way"; return 1; }
	{
		cat "$WORK/cores" "$WORK/observer"
		sed 's/\x1b\[[0-9;]*m//g' "$WORK/near.log" | awk '
			/percentile 50.000/ { print "p50_ns " $NF * 1000 } /percentile 99.000/ { print "p99_ns " $NF * 1000 }'
	} | facts "$run" "$way"
}

busy=$(warn_if_busy)
mkdir -p "$(dirname "$RESULTS")"
: >"$RESULTS"
for ((run = 1; run <= RUNS; run++)); do
	say "run $run of $RUNS"
	for way in $WAYS; do steady observed_pp "$run" "$way"; done
done

table() { # FILE
	awk -v ways="$WAYS" '
	function sorted(list, part,   n, i, j, t) {
		n = split(list, part, " ")
		for (i = 2; i <= n; i++)
			for (j = i; j > 1 && part[j] + 0 < part[j - 1] + 0; j--) { t = part[j]; part[j] = part[j - 1]; part[j - 1] = t }
		return n
	}
	function median(list,   part, n) {
		n = sorted(list, part)
		return n == 0 ? "-" : sprintf("%.0f", n % 2 ? part[(n + 1) / 2] : (part[n / 2] + part[n / 2 + 1]) / 2)
	}
	function range(list,   part, n) {
		n = sorted(list, part)
		return n == 0 ? "-" : sprintf("%.0f to %.0f", part[1], part[n])
	}
	function sum(list,   part, n, i, total) {
		n = split(list, part, " ")
		for (i = 1; i <= n; i++) total += part[i]
		return n == 0 ? "-" : total
	}
	{ list[$2, $3] = list[$2, $3] " " $4; value[$1, $2, $3] = $4; if ($1 > runs) runs = $1 }
	END {
		n = split(ways, way, " ")
		for (i = 1; i <= n; i++)
			for (run = 1; run <= runs; run++)
				if ((run, way[i], "p50_ns") in value && (run, "nobody", "p50_ns") in value)
					more[way[i]] = more[way[i]] " " value[run, way[i], "p50_ns"] - value[run, "nobody", "p50_ns"]
		printf "%-16s %8s %-18s %10s %8s %10s %10s %8s\n", "half round trip", "p50 ns", "  in the runs", "beside", "p99 ns", "seen", "lost", "reads"
		for (i = 1; i <= n; i++)
			printf "%-16s %8s %-18s %10s %8s %10s %10s %8s\n", way[i], median(list[way[i], "p50_ns"]), "  " range(list[way[i], "p50_ns"]),
				median(more[way[i]]), median(list[way[i], "p99_ns"]), sum(list[way[i], "seen"]), sum(list[way[i], "lost"]), sum(list[way[i], "reads"])
		if ((at = median(list["read", "nsec_each"])) != "-") print "one reading of all counters takes its reader " at " ns"
	}' "$1"
}

# One table for each distance of the cores, as in bench/run.sh.
while read -r distance nsec measured all; do
	echo "The cores hand a cache line over in $nsec ns ($measured of $all measurements):"
	table "$WORK/$distance"
done < <(awk -v out="$WORK" -f "$(dirname "$0")/distances.awk" "$RESULTS") | tee "$BUILD/bench/observe.txt"
[ "$(nproc)" -gt 2 ] || echo "Two cores: observers share core 1 with the server, which spins." | tee -a "$BUILD/bench/observe.txt"
[ -z "$busy" ] || echo "$busy" | tee -a "$BUILD/bench/observe.txt"
