#!/usr/bin/env bash
# A sender that mixes datagrams below and above the MTU: all arrive, whole and in order, whichever side is offloaded.
#
#   a (sends)  10.9.0.1 ---- veth ---- 10.9.0.2  (receives) b
# seconds: 9
. "$(dirname "$0")/../lib.sh"
need_xdp
if [ "$SAN" = thread ]; then
	skip "mixed sizes" "the race detector's runtime starts in instrumented programs only"
	done_testing
fi
LIBRARY=$BUILD/libvma.so
case $SAN in
address) preload="LD_PRELOAD=$(gcc -print-file-name=libasan.so) $LIBRARY" ;;
*) preload="LD_PRELOAD=$LIBRARY" ;;
esac
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-WARNING} ASAN_OPTIONS=detect_leaks=0
COUNT=1000
net_pair

mixed() { # SENTENCE SENDER RECEIVER [connected]: environments
	local s=$1 with_send=$2 with_recv=$3 received reassembled
	received=$(snmp b Udp InDatagrams) reassembled=$(snmp b Ip ReasmReqds)
	start receiver b env ${with_recv:+"$with_recv"} python3 "$ROOT/tests/e2e/udp_mixed.py" recv "$IP_B" 7000 $COUNT
	wait_for 20 log_has receiver bound
	check "$s: all is sent" in_ns a timeout -k 1 60 env ${with_send:+"$with_send"} \
		python3 "$ROOT/tests/e2e/udp_mixed.py" send "$IP_A" "$IP_B" 7000 $COUNT ${4:-}
	finish receiver 30
	check_eq "$s: what has come" "$(tail -n 1 "$WORK/receiver.log")" "$COUNT of $COUNT, 0 out of order, 0 wrong, 0 twice"
	[ -n "$with_recv" ] || return 0
	check_eq "$s: the receiver's kernel has seen no datagram" $(($(snmp b Udp InDatagrams) - received)) 0
	check_eq "$s: and no fragment" $(($(snmp b Ip ReasmReqds) - reassembled)) 0
}

mixed "kernel to kernel" "" ""
mixed "ours to the kernel" "$preload" ""
mixed "ours to the kernel, connected" "$preload" "" connected
mixed "the kernel to ours" "" "$preload"
mixed "ours to ours" "$preload" "$preload"
mixed "ours to ours, connected" "$preload" "$preload" connected
done_testing
