#!/usr/bin/env bash
# instr.sh: instructions per packet through ring, and through UDP sockets and TCP connections on top of it, over a wire,
# counted by callgrind, beside bench/instructions.txt.
#
#   make bench-instr            fails when a phase costs over 2 % (and over one instruction) more than the file says
#   make bench-instr UPDATE=1   writes the file anew: a change that raises a figure says why in its commit
#
# Two figures per phase: all instructions, and those outside the wire itself, which stands for a device; for the verbs
# backend (the phases verbs_*), those outside a provider that does nothing; of the phases mlx5_* all count. Phases that end
# in "single" are with VMA_THREAD_MODE=0: they must cost less than without; those of a burst, whose packets share the
# flags, no more. What a message or segment costs in TCP must not grow with the number of connections (the last number
# of a phase's name; "bbr" is one without time stamps, with BBR; "sums" and "tso" have a NIC that finishes checksums, and one
# that also cuts large packets). Sending a packet by verbs costs 120 at most, and receiving one 100, with the posting of
# its buffer in a list.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build}
known=bench/instructions.txt
packets=4096
ring=$build/bench/instr_ring udp=$build/components/udp/test/instr_udp tcp=$build/components/tcp/test/instr_tcp
verbs=$build/components/nic/test/instr_verbs
phases="$ring:send_one $ring:send_burst $ring:receive_one $ring:receive_burst $ring:poll_empty $udp:send $udp:sendto
	$udp:send_later $udp:deliver $udp:receive $udp:receive_driven $udp:receive_waited $udp:receive_empty
	$udp:recv_burst $udp:udp_socketxtreme $udp:udp_socketxtreme_one"
for phase in send send_inline receive post post_list empty; do phases="$phases $verbs:verbs_$phase $verbs:mlx5_$phase"; done
phases="$phases $verbs:mlx5_is_empty"
for phase in tcp_send tcp_receive tcp_bulk_out tcp_bulk_in; do
	for group in 1 100 10000 bbr; do phases="$phases $tcp:${phase}_$group"; done
done
phases="$phases $tcp:tcp_receive_zcopy $tcp:tcp_bulk_in_zcopy $tcp:tcp_bulk_out_sums $tcp:tcp_bulk_out_tso"
for phase in "$ring:send_one" "$ring:send_burst" "$ring:receive_one" "$ring:receive_burst" "$udp:send" "$udp:receive_driven" \
	"$tcp:tcp_send_1" "$tcp:tcp_receive_1"; do
	phases="$phases $phase:single"
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

command -v valgrind >/dev/null || {
	echo "bench-instr: valgrind is needed"
	exit 1
}

# All instructions of one phase, and those but for what the wire's entry points cost with everything below them.
count() { # PROGRAM PHASE ["single"]
	local program=$1
	shift
	valgrind --tool=callgrind --callgrind-out-file="$scratch/$1" --toggle-collect="phase_$1" \
		"$program" $packets "$@" >"$scratch/$1.log" 2>&1 || {
		cat "$scratch/$1.log" >&2
		return 1
	}
	callgrind_annotate --threshold=100 --auto=no --inclusive=yes --show=Ir "$scratch/$1" | awk -v packets=$packets '
		{ gsub(",", "", $1) }
		/PROGRAM TOTALS/ { all = $1 }
		# A function has a line for the file that it stands in and one for calls to it: the larger is the whole.
		match($0, /:(wire_(poll_rx|post_rx|tx|kick|reap_tx)|fake_[a-z_]+)( |$)/) {
			name = substr($0, RSTART, RLENGTH)
			sub(/ $/, "", name)
			if ($1 + 0 > cost[name]) cost[name] = $1 + 0
		}
		END { for (name in cost) nic += cost[name]
			if (all == 0) exit 1; printf "%.1f %.1f\n", all / packets, (all - nic) / packets }'
}

{
	echo "# Instructions per packet (callgrind, 64-byte UDP, TCP messages of 64 bytes and bulk, over the wire): all of them, and without the wire's own."
	echo "# $(${CC:-gcc} -dumpfullversion -dumpversion 2>/dev/null | sed 's/^/compiler /'), $(uname -m); make bench-instr UPDATE=1"
	for phase in $phases; do
		IFS=: read -r program name single <<<"$phase"
		figures=$(count "$program" "$name" ${single:+single}) || {
			echo "bench-instr: phase $name could not be counted" >&2
			exit 1
		}
		echo "$name${single:+_single} $figures"
	done
} >"$scratch/now" || exit 1

awk '/^tcp_.*_[0-9]+ / {
		name = $1
		sub(/_[0-9]+$/, "", name)
		if (!(name in few)) few[name] = $3
		else if ($3 > few[name] * 1.05) { print "bench-instr: " $1 ": " $3 " instructions, " few[name] " with one"; grows = 1 }
	}
	END { exit grows }' "$scratch/now" || exit 1

awk '/_single / {
		name = $1
		sub(/_single$/, "", name)
		if ($3 > own[name] || ($3 == own[name] && name !~ /burst/)) { print "bench-instr: " $1 ": " $3 " instructions, " own[name] " without"; more = 1 }
	}
	{ own[$1] = $3 }
	END { exit more }' "$scratch/now" || exit 1

awk '$1 == "tcp_bulk_in_1" { copied = $3 } $1 == "tcp_bulk_in_zcopy" { left = $3 }
	END { if (left > copied * 0.7) { print "bench-instr: zero-copy receive: " left " instructions, " copied " with a copy"; exit 1 } }' \
	"$scratch/now" || exit 1

awk '$1 == "tcp_bulk_out_sums" { single = $3 } $1 == "tcp_bulk_out_tso" { cut = $3 }
	END { if (cut > single) { print "bench-instr: packets that are cut: " cut " instructions a segment, " single " for single ones"; exit 1 } }' \
	"$scratch/now" || exit 1

# A poll of SocketXtreme and what gives back its packets, with all that is below, beside recv of as many datagrams.
awk '$1 == "recv_burst" { recv = $3 } $1 == "udp_socketxtreme" { polled = $3 }
	END { if (polled > recv * 0.6) { print "bench-instr: SocketXtreme: " polled " instructions, " recv " by recv"; exit 1 } }' \
	"$scratch/now" || exit 1

# The bars of the verbs backend: a packet in a burst of one, without what the provider costs. A received one with the
# posting of its buffer, in a list as cq does it.
awk 'BEGIN { bar["send"] = 120; bar["receive"] = 100; phase["verbs_send"] = "send"; phase["verbs_receive"] = phase["verbs_post_list"] = "receive" }
	$1 in phase { seen++; cost[phase[$1]] += $3 }
	END {
		if (seen != 3) { print "bench-instr: a phase with a bar is missing"; over = 1 }
		for (what in bar) if (cost[what] > bar[what]) { print "bench-instr: verbs, to " what ": " cost[what] " instructions, the bar is " bar[what]; over = 1 }
		exit over }' "$scratch/now" || exit 1

if [ "${UPDATE:-0}" = 1 ]; then
	cp "$scratch/now" "$known"
	cat "$known"
	exit 0
fi
[ -f "$known" ] || {
	cat "$scratch/now"
	echo "bench-instr: $known does not exist; UPDATE=1 writes it"
	exit 1
}
awk 'BEGIN { printf "%-14s %12s %12s %12s %12s\n", "phase", "all: known", "now", "ring: known", "now" }
	/^#/ { next }
	NR == FNR { all[$1] = $2; own[$1] = $3; next }
	{
		worse = !($1 in all) || $2 > all[$1] * 1.02 && $2 > all[$1] + 1 || $3 > own[$1] * 1.02 && $3 > own[$1] + 1
		printf "%-14s %12s %12s %12s %12s%s\n", $1, all[$1], $2, own[$1], $3, worse ? "  WORSE" : ""
		failed += worse
	}
	END { exit failed > 0 }' "$known" "$scratch/now" || {
	echo "bench-instr: more instructions than $known says"
	exit 1
}
