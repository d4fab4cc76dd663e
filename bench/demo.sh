#!/usr/bin/env bash
# bench/demo.sh: `make demo`. sockperf, unmodified, in two network namespaces joined by a veth: on kernel sockets,
# blocking and spinning, and with build/libvma.so preloaded, over UDP and TCP. Who carried the packets is read off the
# kernel's own counters. All of it RUNS times (3), in turn, since the speed of a virtual machine changes from one second
# to the next; the figures are medians. Needs root and sockperf; takes two minutes; leaves nothing behind, also on
# Ctrl-C.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sockets.sh"
. "$(dirname "$0")/tcp.sh"
RESULTS=$WORK/results.tsv
SECONDS_EACH=${SECONDS_EACH:-1}
RUNS=${RUNS:-3}
HOWS=${HOWS:-kernel spin lib latency}
need_machine
command -v sockperf >/dev/null || { echo "demo: sockperf is not installed"; exit 1; }
have_library || { echo "demo: $LIBRARY is not built"; exit 1; }

table() {
	awk '{ seen[$2] = 1; sample[$2, $3, ++samples[$2, $3]] = $4; keys[$2, $3] }
		function median(key,   n, i, j, v, sorted) {
			n = samples[key]
			for (i = 1; i <= n; i++) {
				v = sample[key, i]
				for (j = i; j > 1 && sorted[j - 1] > v + 0; j--) sorted[j] = sorted[j - 1]
				sorted[j] = v + 0
			}
			return n % 2 ? sorted[(n + 1) / 2] : (sorted[n / 2] + sorted[n / 2 + 1]) / 2
		}
		function usec(name, key) { return sprintf("%8.2f", value[name, key] / 1000) }
		function times(a, b) { return a > 0 && b > 0 ? sprintf("%.1f x", a / b) : "" }
		function pp(text, of, how,   c) {
			c = of "/" how
			if (!(c in seen)) { printf "  %-36s did not run\n", text; return }
			printf "  %-36s %s %s %s %9.0f %9s %9s\n", text, usec(c, "near_p50_ns"), usec(c, "near_p99_ns"),
				usec(c, "near_p99.9_ns"), value[c, "messages_per_sec"],
				times(value[of "/kernel", "near_p50_ns"], value[c, "near_p50_ns"]),
				times(value[of "/spin", "near_p50_ns"], value[c, "near_p50_ns"])
		}
		function each(of) {
			pp("kernel sockets, blocking", of, "kernel")
			pp("kernel sockets, spinning", of, "spin")
			pp("libvma.so", of, "lib")
			pp("libvma.so, VMA_SPEC=latency", of, "latency")
		}
		function tp(text, how,   i, c) {
			printf "  %-36s", text
			for (i = 1; i <= 2; i++) {
				c = "tp-" (i == 1 ? 64 : 1472) "/"
				if (!((c how) in seen)) { printf " %20s", "did not run"; continue }
				printf " %10.0f %9s", value[c how, "far_pps"], times(value[c how, "far_pps"], value[c "kernel", "far_pps"])
			}
			printf "\n"
		}
		END {
			for (key in keys) value[key] = median(key)
			printf "\n  %-36s %-26s %9s %9s %9s\n", "sockperf ping-pong, 64 bytes,", "    one way, microseconds", "round",
				"x as fast", "x as fast"
			printf "  %-36s %8s %8s %8s %9s %9s %9s\n", "two processes on two cores", "p50", "p99", "p99.9", "trips/s",
				"as block.", "as spin."
			each("pp")
			printf "\n  the same over TCP\n"
			each("tcp-pp")
			printf "\n  %-36s %20s %20s\n", "sockperf throughput,", "64 bytes", "1472 bytes"
			printf "  %-36s %20s %20s\n", "messages/s that the server counts", "times", "times"
			tp("kernel sockets, blocking", "kernel")
			tp("libvma.so", "lib")
			tp("libvma.so, VMA_SPEC=latency", "latency")
		}' "$RESULTS"
}

bypass() { # fails if the kernel carried more than one packet in a hundred for the library
	awk '$3 == "kernel_packets" { kernel[$2] += $4 }
		$3 == "interface_packets" { if (!($2 in all)) order[++n] = $2; all[$2] += $4 }
		END {
			printf "\nWho carried them, by the kernel'"'"'s own counters, of both sides: of UDP InDatagrams, OutDatagrams, NoPorts and\n"
			printf "InErrors, so that a packet through the kernel counts twice; of TCP InSegs:\n"
			for (i = 1; i <= n; i++) {
				c = order[i]
				past = all[c] ? 100 * (1 - kernel[c] / (c ~ /^tcp/ ? 1 : 2) / all[c]) : 0
				if (c ~ /(lib|latency)$/ && past < 99) bad = 1
				printf "  %-16s %9d packets through the interfaces, %9d counted by the kernel: %7.3f %% bypassed it\n", c, all[c],
					kernel[c], past
			}
			if (bad) print "THE LIBRARY DID NOT OFFLOAD."
			exit bad
		}' "$RESULTS"
}

distances() { # a note, when the machine changed under the figures
	awk -v out="$WORK" -f "$(dirname "$0")/distances.awk" "$RESULTS" | awk '{ nsec[++n] = $2 }
		END { if (n > 1) printf "\nThe two cores were at times close to each other (%.0f ns for a cache line), at times apart (%.0f ns), as the\nhost of a virtual machine moves them. That alone makes a factor of two or more, and the medians mix both: `make\nbench` keeps them apart.\n", nsec[1], nsec[2] }'
}

busy=$(warn_if_busy)
: >"$RESULTS"
failed=0
echo "Two namespaces, one veth; medians of $RUNS runs in turn:"
share_net || exit 1
for how in $HOWS; do
	echo "  $(how_runs $how | sed "s|^env$||; s|^env \(.*\)|\1 |; s|$LIBRARY|build/libvma.so|")sockperf $(how_polls $how)"
done
for ((run = 1; run <= RUNS; run++)); do
	for how in $HOWS; do
		sockperf_pp $run pp/$how $how "$SECONDS_EACH" || failed=1
		tcp_ping $run $how || failed=1
		[ $how != spin ] || continue # it is the sender that counts, and that does not wait anyway
		for bytes in 64 1472; do
			sockperf_tp $run tp-$bytes/$how $how "$SECONDS_EACH" $bytes || failed=1
		done
	done
done
table
distances
bypass || failed=1
awk -v cases="pp/latency pp/lib pp/spin pp/kernel" -v texts="latency|library|kernel, spinning|kernel, blocking" \
	-f "$(dirname "$0")/histogram.awk" "$RESULTS"
[ -z "$busy" ] || echo "$busy"
exit $failed
