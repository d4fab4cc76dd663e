#!/usr/bin/env bash
# bench/demo_stack.sh: `make demo-stack`. The two examples, a custom stack each, in two network namespaces joined by a veth; beside
# them the kernel's UDP sockets on the same veth, spinning and blocking. Who carried the packets is read off the
# kernel's own counters. Needs root; takes about fifteen seconds; leaves nothing behind.
. "$(dirname "$0")/lib.sh"
ROUNDS=100000
RESULTS=$WORK/results.tsv
need_machine

# udp_ping and udp_echo: verifies every byte of every answer while it measures.
measure_examples() {
	local before after
	fresh_net || return
	start far b taskset -c 1 "$BUILD/examples/udp_echo" --local "$IP_B" "xdp:$IF_B"
	wait_for 10 log_has far listening
	before=$(counters)
	in_ns a taskset -c 0 "$BUILD/examples/udp_ping" --local "$IP_A" --peer "$IP_B" --peer-mac "$MAC_B" \
		--count $ROUNDS --dump "$WORK/rtt" "xdp:$IF_A" >"$WORK/near.log" 2>&1 || {
		cat "$WORK/near.log" "$WORK/far.log"
		return 1
	}
	after=$(counters)
	stop far
	drop_net
	{
		proof "$before" "$after"
		# The file is sorted: quantiles by line number, of half a round trip. Steps of 2 % for the picture.
		awk '{ t[NR] = $1 / 2; if (t[NR] > 0) buckets[int(log(t[NR]) / log(1.02))]++ }
			END {
				printf "near_p50_ns %.0f\nnear_p99_ns %.0f\nnear_p99.9_ns %.0f\n", t[int(NR * .5) + 1],
					t[int(NR * .99) + 1], t[int(NR * .999) + 1]
				for (b in buckets) printf "hist %.1f %.1f %d\n", exp(b * log(1.02)), exp((b + 1) * log(1.02)), buckets[b]
			}' "$WORK/rtt"
	} | sed 's|^|1 ping/ring |' >>"$RESULTS"
}

table() {
	awk '{ value[$2, $3] = $4 }
		function usec(name, key) {
			return ("ping/" name, key) in value ? sprintf("%8.2f", value["ping/" name, key] / 1000) : sprintf("%8s", "")
		}
		function times(name, base, key) { # a ratio to the base, whichever way is more than 1
			if (!(value[name, key] > 0) || !(value[base, key] > 0)) return ""
			return sprintf("%.1f x", key == "far_pps" ? value[name, key] / value[base, key] : value[base, key] / value[name, key])
		}
		function line(text, ping, send) {
			printf "  %-32s %s %s %s %9s %11s %9s\n", text, usec(ping, "near_p50_ns"), usec(ping, "near_p99_ns"),
				usec(ping, "near_p99.9_ns"), times("ping/" ping, "ping/kernel-block", "near_p50_ns"),
				send == "" ? "" : sprintf("%.0f", value["send/" send, "far_pps"]), times("send/" send, "send/kernel", "far_pps")
		}
		END {
			printf "\n  %-32s %-26s %9s %11s %9s\n", "64-byte packets, two processes", "   one way, microseconds", "times",
				"packets", "times"
			printf "  %-32s %8s %8s %8s %9s %11s %9s\n", "on two cores", "p50", "p99", "p99.9", "as fast", "per second", "as many"
			line("custom stack, xdp", "ring", "ring")
			line("  the same, 64 packets per kick", "none", "ring-64")
			line("kernel sockets, spinning", "kernel-spin", "kernel")
			line("kernel sockets, blocking", "kernel-block", "")
		}' "$RESULTS"
}

bypass() {
	awk '$3 == "kernel_packets" { kernel[$2] = $4 } $3 == "interface_packets" { all[$2] = $4 }
		END {
			printf "\nWho carried them, by the kernel'"'"'s own counters (Udp InDatagrams + OutDatagrams + NoPorts, both sides):\n"
			for (i = split("ping/ring send/ring send/ring-64 ping/kernel-spin", name, " "); i > 0; i--) order[i] = name[i]
			for (i = 1; i <= 4; i++) {
				c = order[i]
				printf "  %-18s %8d packets through the interfaces, %8d seen by the kernel'"'"'s UDP%s\n", c, all[c],
					kernel[c], (kernel[c] == 0 && all[c] > 0 ? ": all bypassed it" : "")
			}
		}' "$RESULTS"
}

busy=$(warn_if_busy)
echo "Two namespaces, one veth. The examples verify every byte that comes back:"
measure_examples || exit 1
sed '/^$/d; s/^/  /' "$WORK/near.log"
measure 1 ping/kernel-spin ping kernel_udp veth --spin || exit 1
ROUNDS=20000 measure 1 ping/kernel-block ping kernel_udp veth || exit 1
measure 1 send/ring send ring_udp xdp --burst 1 || exit 1
measure 1 send/ring-64 send ring_udp xdp --burst 64 || exit 1
measure 1 send/kernel send kernel_udp veth --spin || exit 1
table
bypass
awk -f "$(dirname "$0")/histogram.awk" "$RESULTS"
[ -z "$busy" ] || echo "$busy"
