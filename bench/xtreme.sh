#!/usr/bin/env bash
# bench/xtreme.sh [RUNS]: the ping-pong of 64-byte frames by SocketXtreme, RUNS times (5), in turn with the same by ring
# alone and by recv on the library's sockets (VMA_SPEC=latency); of TCP by SocketXtreme and by recv. Both ends spin, the
# near one on core 0, the far one on core 1, over veth by AF_XDP, each interface owned by a vmad. Prints medians of the
# half round trip's p50, and medians of the ratios within each run.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sockets.sh"
RUNS=${1:-5}
ROUNDS=${ROUNDS:-20000}
RESULTS=$BUILD/bench/xtreme.tsv
need_machine
have_library || { say "$LIBRARY is not built"; exit 1; }

trips() { # RUN CASE PROTOCOL WAY
	local rc=1 program=$BUILD/bench/xtreme_trips before after
	export VMA_SOCKETXTREME=0
	[ "$4" != xtreme ] || VMA_SOCKETXTREME=1
	if open_case latency "$program" pong "$3" "$4" "$IP_B" "$IP_A" $PORT && wait_for 10 log_has far ready; then
		before=$(counters)
		near latency "$program" ping "$3" "$4" "$IP_A" "$IP_B" $PORT "$ROUNDS"
		rc=$?
		after=$(counters)
	fi
	close_case
	unset VMA_SOCKETXTREME
	[ $rc -eq 0 ] || { failed_case "$1" "$2"; return 1; }
	{
		proof "$before" "$after"
		grep p50_ns "$WORK/near.log"
	} | facts "$1" "$2"
}

by_ring() { # RUN
	measure "$1" udp/ring ping ring_udp xdp --owner vmad
}

busy=$(warn_if_busy)
mkdir -p "$(dirname "$RESULTS")"
: >"$RESULTS"
for ((run = 1; run <= RUNS; run++)); do
	say "run $run of $RUNS"
	steady by_ring "$run"
	for protocol in udp tcp; do
		for way in xtreme recv; do steady trips "$run" $protocol/$way $protocol $way; done
	done
done
awk '
	function median(list,   part, n, i, j, t) {
		n = split(list, part, " ")
		for (i = 2; i <= n; i++)
			for (j = i; j > 1 && part[j] + 0 < part[j - 1] + 0; j--) { t = part[j]; part[j] = part[j - 1]; part[j - 1] = t }
		return n == 0 ? "-" : part[int((n + 1) / 2)]
	}
	function compare(name, base,   run, ratios) {
		for (run = 1; run <= runs; run++)
			if ((run, name) in value && (run, base) in value) ratios = ratios " " value[run, name] / value[run, base]
		printf "%-10s %6.0f ns, %s %6.0f ns: ratio %.2f\n", name, median(list[name]), base, median(list[base]), median(ratios)
	}
	$3 == "near_p50_ns" || $3 == "p50_ns" { value[$1, $2] = $4; list[$2] = list[$2] " " $4; if ($1 > runs) runs = $1 }
	$3 == "kernel_packets" { kernel[$2] += $4 }
	END {
		compare("udp/xtreme", "udp/ring")
		compare("udp/xtreme", "udp/recv")
		compare("tcp/xtreme", "tcp/recv")
		for (name in kernel) if (kernel[name] > 100) print name ": the kernel has seen " kernel[name] " datagrams"
	}' "$RESULTS" | tee "$BUILD/bench/xtreme.txt"
[ -z "$busy" ] || echo "$busy" | tee -a "$BUILD/bench/xtreme.txt"
