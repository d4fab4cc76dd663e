#!/usr/bin/env bash
# VMA_RING_MIGRATION_RATIO_RX and _TX of TCP: two threads use one connection in turns, and at each turn it moves to the
# ring of the one that has it. 100 moves each way while a gigabyte flows, half of it in each direction: every byte comes.
#
#   a  10.9.0.1 (the kernel's) ---- veth ---- 10.9.0.2  b (preloaded)
# seconds: 40
# test-all: a gigabyte, and 200 moves of 20 ms
. "$(dirname "$0")/../lib.sh"
need_xdp
if [ "$SAN" = thread ]; then
	skip "migration" "the race detector's runtime starts in instrumented programs only"
	done_testing
fi
case $SAN in
address) preload="LD_PRELOAD=$(gcc -print-file-name=libasan.so) $LIBRARY" ;;
*) preload="LD_PRELOAD=$LIBRARY" ;;
esac
PROGRAM=$ROOT/tests/e2e/tcp_migration.py
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-WARNING} ASAN_OPTIONS=detect_leaks=0 VMA_STATS_SHMEM_DIR=$WORK/stats
mkdir "$WORK/stats"
RATIO=10 TURN=30
net_pair

stat_of() { # COUNTER: the sum of the sockets of the program that takes turns
	"$BUILD/tests/measure/print_stats" "$WORK/stats/vmastat.${PID[turns]}" |
		awk -v name="socket.$1" '$1 == name { n += $2 } END { print n + 0 }'
}

# Over cards a move may repeat a window each way: no completion tells that the old queue pair has sent its last packets,
# and the new one may overtake it.
sent_again_by_moves() { # MOVES
	echo $(($([ "$NIC" = verbs ] && echo 100 || echo 0) * $1))
}

# Each turn is three ratios long: a turn without a move would be one too late. Sets moved, by receives and by sends.
in_turns() { # SENTENCE connect|listen BYTES TURNS VARIABLE=VALUE...
	local s=$1 how=$2 bytes=$3 turns=$4 in_kernel resets resent seconds resent_there
	shift 4
	in_kernel=$(snmp b Tcp InSegs) resets=$(snmp a Tcp EstabResets) resent=$(snmp a Tcp RetransSegs)
	if [ "$how" = connect ]; then
		start peer a python3 "$PROGRAM" peer listen "$IP_A" 7000 "$bytes"
		wait_for 20 log_has peer listens
	fi
	start turns b env "$preload" "$@" python3 "$PROGRAM" turns "$how" \
		"$([ "$how" = connect ] && echo "$IP_A" || echo "$IP_B")" 7000 "$bytes" "$turns" $TURN
	if [ "$how" = listen ]; then
		wait_for 20 log_has turns listens
		start peer a python3 "$PROGRAM" peer connect "$IP_B" 7000 "$bytes"
	fi
	seconds=$SECONDS
	wait_for 150 log_has turns "of $bytes"
	wait_for 20 log_has peer "of $bytes"
	check_eq "$s: what has come here" "$(tail -n 1 "$WORK/turns.log")" "$bytes of $bytes bytes, as sent"
	check_eq "$s: what has come there" "$(tail -n 1 "$WORK/peer.log")" "$bytes of $bytes bytes, as sent"
	taken=$(awk '/ turns$/ { print $1 }' "$WORK/turns.log")
	rx_moved=$(stat_of rx_migrations) tx_moved=$(stat_of tx_migrations)
	check_eq "$s: the kernel has seen no segment" $(($(snmp b Tcp InSegs) - in_kernel)) 0
	check_eq "$s: nothing is reset" $(($(snmp a Tcp EstabResets) - resets)) 0
	resent_there=$(($(snmp a Tcp RetransSegs) - resent))
	check_num "$s: less than 1 % is sent again to it" $resent_there \
		-le $((bytes / 1448 / 100 + $(sent_again_by_moves $((rx_moved + tx_moved)))))
	note "$s: $((SECONDS - seconds)) s, $taken turns, $rx_moved and $tx_moved moves, refused $(stat_of migrations_refused)," \
		"sent again here $(stat_of tcp_retransmits), there $resent_there"
	resent_here=$(stat_of tcp_retransmits)
	stop turns
	reap peer # by a reset
}

in_turns "receives are counted" connect 500000000 202 VMA_RING_ALLOCATION_LOGIC_RX=20 VMA_RING_MIGRATION_RATIO_RX=$RATIO
check_num "it has moved at each turn, 100 times each way" "$rx_moved" -ge 200
check_num "hardly anything is sent again for it" "$resent_here" -le $((1000 + $(sent_again_by_moves "$rx_moved")))
in_turns "sends are counted, of what was accepted" listen 20000000 42 VMA_RING_ALLOCATION_LOGIC_TX=20 \
	VMA_RING_MIGRATION_RATIO_TX=$RATIO
check_num "it has moved at each turn" "$tx_moved" -ge 40
in_turns "both are counted" connect 20000000 22 VMA_RING_ALLOCATION_LOGIC_RX=20 VMA_RING_ALLOCATION_LOGIC_TX=20 \
	VMA_RING_MIGRATION_RATIO_RX=$RATIO VMA_RING_MIGRATION_RATIO_TX=$RATIO VMA_TCP_TIMESTAMP_OPTION=1
check_num "it has moved at each turn, with time stamps" $((rx_moved + tx_moved)) -ge 20
in_turns "not asked for" connect 20000000 12 VMA_RING_ALLOCATION_LOGIC_RX=20
check_eq "unset, nothing moves" $((rx_moved + tx_moved)) 0
in_turns "one ring" connect 20000000 12 VMA_RING_MIGRATION_RATIO_RX=$RATIO VMA_RING_MIGRATION_RATIO_TX=$RATIO
check_eq "with one ring there is nowhere to move to" $((rx_moved + tx_moved)) 0
in_turns "no rule of its own" connect 20000000 12 VMA_RING_ALLOCATION_LOGIC_RX=20 VMA_RING_MIGRATION_RATIO_RX=$RATIO \
	VMA_TCP_2T_RULES=1
# A card has no blocks of ports: there a connection that begins here has a rule of its own all the same.
[ "$NIC" = verbs ] || check_eq "what is to have no rule of its own stays" $((rx_moved + tx_moved)) 0
done_testing
