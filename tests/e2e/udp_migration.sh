#!/usr/bin/env bash
# VMA_RING_MIGRATION_RATIO_RX and _TX: two threads use one socket in turns, and at each turn the socket moves to the ring
# of the one that has it. 100 moves under traffic: every datagram comes, whole, and in order.
#
#   a  10.9.0.1 ---- veth ---- 10.9.0.2  b
# seconds: 15
# test-all: sockets move after seconds of being watched
. "$(dirname "$0")/../lib.sh"
need_xdp
if [ "$SAN" = thread ]; then
	skip "migration" "the race detector's runtime starts in instrumented programs only"
	done_testing
fi
LIBRARY=$BUILD/libvma.so
case $SAN in
address) preload="LD_PRELOAD=$(gcc -print-file-name=libasan.so) $LIBRARY" ;;
*) preload="LD_PRELOAD=$LIBRARY" ;;
esac
PROGRAM=$ROOT/tests/e2e/udp_migration.py
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-WARNING} ASAN_OPTIONS=detect_leaks=0 VMA_STATS_SHMEM_DIR=$WORK/stats
mkdir "$WORK/stats"
RATIO=10 TURN=40 MOVES=100
COUNT=$((TURN * (MOVES + 2)))
net_pair

migrations() { # LABEL rx|tx: of the socket of that process
	"$BUILD/tests/measure/print_stats" "$WORK/stats/vmastat.${PID[$1]}" |
		awk -v name="socket.$2_migrations" '$1 == name { n += $2 } END { print n + 0 }'
}

# Each turn is longer than three ratios: a turn without a move would be one too late.
receive_in_turns() { # SENTENCE LOGIC [RATIO]
	local s=$1 in_kernel
	in_kernel=$(snmp b Udp InDatagrams)
	start receiver b env "$preload" VMA_RING_ALLOCATION_LOGIC_RX="$2" ${3:+VMA_RING_MIGRATION_RATIO_RX="$3"} \
		python3 "$PROGRAM" recv "$IP_B" 7000 $COUNT $TURN
	wait_for 20 log_has receiver bound
	check "$s: all is sent" in_ns a timeout -k 1 60 python3 "$PROGRAM" send "$IP_B" 7000 $COUNT 2000
	wait_for 20 log_has receiver "of $COUNT"
	check_eq "$s: what has come" "$(tail -n 1 "$WORK/receiver.log")" "$COUNT of $COUNT, 0 out of order, 0 wrong"
	check_eq "$s: the kernel has seen no datagram" $(($(snmp b Udp InDatagrams) - in_kernel)) 0
	moved=$(migrations receiver rx)
	stop receiver
}

send_in_turns() { # SENTENCE LOGIC [RATIO]
	local s=$1
	start collector b python3 "$PROGRAM" collect "$IP_B" 7000 $COUNT
	wait_for 20 log_has collector bound
	start sender a env "$preload" VMA_RING_ALLOCATION_LOGIC_TX="$2" ${3:+VMA_RING_MIGRATION_RATIO_TX="$3"} \
		python3 "$PROGRAM" turns "$IP_A" "$IP_B" 7000 $COUNT $TURN
	wait_for 60 log_has sender sent
	finish collector 30
	check_eq "$s: what has come" "$(tail -n 1 "$WORK/collector.log")" "$COUNT of $COUNT, 0 out of order, 0 wrong"
	moved=$(migrations sender tx)
	stop sender
}

receive_in_turns "receiving, rings per thread" 20 $RATIO
check_num "its receiving has moved at each turn" "$moved" -ge $MOVES
receive_in_turns "receiving, one ring" 0 $RATIO
check_eq "with one ring there is nowhere to move to" "$moved" 0
receive_in_turns "receiving, not asked for" 20
check_eq "unset, nothing moves" "$moved" 0
send_in_turns "sending, rings per thread" 20 $RATIO
check_num "its sending has moved at each turn" "$moved" -ge $MOVES
send_in_turns "sending, switched off" 20 -1
check_eq "at -1 nothing moves" "$moved" 0
done_testing
