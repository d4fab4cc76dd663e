# shellcheck shell=bash
# What the measurements share: one of them at a time, in two namespaces of its own, with the proof of who carried the
# packets. Facts go to $RESULTS, one per line: RUN CASE KEY VALUE...
#
#     a: near (ping, send), core 0 ---- veth_a1 == veth_b2 ---- b: far (pong, sink), core 1
. "$(dirname "$0")/../tests/lib.sh"
WIRE=/dev/shm/vma-bench-$RUN_ID
ROUNDS=${ROUNDS:-100000}
MSEC=${MSEC:-400}
trap 'rm -f "$WIRE"*; _cleanup' EXIT

need_machine() {
	(need_xdp) | sed -n 's/^1\.\.0 # SKIP //p' | grep . && exit 1
	[ "$(nproc)" -ge 2 ] && return
	echo "two cores are needed"
	exit 1
}

# The figures of a machine that does something else at the same time say little, and should say so.
warn_if_busy() {
	awk -v cores="$(nproc)" '$1 > cores / 2 { print "This machine is busy (load " $1 "): take the figures as such." }' /proc/loadavg
}

say() { echo "bench: $*" >&2; }

# Two sums over both namespaces: "K I", what the kernel's UDP has received, sent, refused or dropped, and what came in
# at the interfaces.
counters() {
	{
		ip netns exec "$(ns a)" cat /proc/net/snmp "/sys/class/net/$IF_A/statistics/rx_packets"
		ip netns exec "$(ns b)" cat /proc/net/snmp "/sys/class/net/$IF_B/statistics/rx_packets"
	} | awk '$1 == "Udp:" && $2 == "InDatagrams" { for (i = 2; i <= NF; i++) column[$i] = i; next }
		$1 == "Udp:" { kernel += $column["InDatagrams"] + $column["OutDatagrams"] + $column["NoPorts"] + $column["InErrors"] }
		NF == 1 { interface += $1 }
		END { print kernel + 0, interface + 0 }'
}

# How far the cores are from each other, which changes under a virtual machine: distances.awk.
watch_cores() {
	"$BUILD/bench/cacheline" watch >"$WORK/cores" &
	PID[cores]=$!
}

unwatch_cores() {
	stop cores
}

# A measurement; again, up to twice, when the cores' distance changed under it.
steady() { # COMMAND...: appends to $RESULTS
	local before attempt
	before=$(stat -c %s "$RESULTS")
	for attempt in 1 2 3; do
		"$@" || return
		awk '{ nsec[$1] = $2 } END { exit nsec["line_high_ns"] >= 2 * nsec["line_low_ns"] }' "$WORK/cores" && return
		[ "$attempt" -lt 3 ] || return 0
		say "the cores' distance changed during $*: it is measured again"
		truncate -s "$before" "$RESULTS"
	done
}

proof() { # BEFORE AFTER; and at which distance
	cat "$WORK/cores"
	echo "kernel_packets $((${2% *} - ${1% *}))"
	echo "interface_packets $((${2#* } - ${1#* }))"
}

start_vmads() { # one for each namespace's interface
	start vmad_a a "$BUILD/bin/vmad" --foreground "$IF_A"
	start vmad_b b "$BUILD/bin/vmad" --foreground "$IF_B"
	wait_for 5 log_has vmad_a owns && wait_for 5 log_has vmad_b owns
}

# Fresh namespaces for each: a program that libxdp attached stays behind and would change what comes after.
fresh_net() {
	ns_add a && ns_add b && ns_join a 10.9.0.1 b 10.9.0.2
}

drop_net() {
	ns_del a
	ns_del b
}

# One measurement. DEVICE is veth, xdp (veth as a nic's spec) or wire; OPTIONS go to both sides.
measure() { # RUN CASE ping|send PROGRAM DEVICE OPTIONS...
	local run=$1 name=$2 near=$3 program=$BUILD/bench/$4 device=$5 far dev_a dev_b before after rc
	shift 5
	fresh_net || return
	case $device in
	veth) dev_a=$IF_A dev_b=$IF_B ;;
	xdp) dev_a=xdp:$IF_A dev_b=xdp:$IF_B ;;
	wire) rm -f "$WIRE"*; dev_a=wire:$WIRE dev_b=$dev_a ;;
	esac
	case " $* " in *" vmad "*) start_vmads || say "vmad does not start" ;; esac
	far=pong
	[ "$near" = ping ] || far=sink
	start far b "$program" $far --cpu 1 --device "$dev_b" --local "$IP_B" --peer "$IP_A" --local-mac "$MAC_B" \
		--peer-mac "$MAC_A" --msec "$MSEC" "$@"
	wait_for 10 log_has far ready
	before=$(counters)
	watch_cores
	in_ns a "$program" "$near" --cpu 0 --device "$dev_a" --local "$IP_A" --peer "$IP_B" --local-mac "$MAC_A" \
		--peer-mac "$MAC_B" --msec $((MSEC * 2)) --rounds "$ROUNDS" "$@" >"$WORK/near.log" 2>&1
	rc=$?
	unwatch_cores
	after=$(counters)
	stop far || rc=1
	stop vmad_a
	stop vmad_b
	drop_net
	if [ $rc -ne 0 ]; then
		say "$name failed in run $run:"
		cat "$WORK/near.log" "$WORK/far.log" >&2
		return 1
	fi
	{
		proof "$before" "$after"
		sed 's/^/near_/; s/^near_hist/hist/; /ready/d' "$WORK/near.log"
		sed 's/^/far_/; /ready/d' "$WORK/far.log"
	} | sed "s|^|$run $name |" >>"$RESULTS"
}
