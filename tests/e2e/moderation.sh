#!/usr/bin/env bash
# Interrupt moderation: how often a thread that sleeps is woken (its voluntary context switches), and how late it gets
# what has come.
#
#   a: paced datagrams and segments, kernel sockets      veth      b: a receiver that never spins, preloaded
# alone: it counts wake-ups and compares delays
# test-all: each of its cases lasts for seconds, with nothing beside them
# seconds: 50
. "$(dirname "$0")/../lib_programs.sh"
net_pair
PORT=7000
WAKEUPS=$BUILD/tests/measure/wakeups

receive() { # ENVIRONMENT... -- ARGUMENTS: a receiver that is ready
	local environment=()
	while [ "$1" != -- ]; do environment+=("$1") && shift; done
	shift
	PORT=$((PORT + 1))
	start receiver b env "$preload" VMA_RX_POLL=0 VMA_SELECT_POLL=0 "${environment[@]}" "$WAKEUPS" "$@"
	wait_for 10 log_has receiver listening
}

# Sets `packets` and `wakeups` per second, of two seconds, from three seconds after the first packet on.
rates() { # recv|poll|select|epoll RATE ENVIRONMENT...
	local how=$1 rate=$2
	shift 2
	receive "$@" -- "$how" "$IP_B" $((PORT + 1)) 3 2
	start sender a "$WAKEUPS" send "$IP_B" $PORT "$rate" 7
	finish receiver 20 || return
	stop sender
	read -r packets wakeups < <(tail -n 1 "$WORK/receiver.log")
	note "$how, $rate packets per second: $packets, and $wakeups wake-ups"
}

# ---- adaptive: at most the target, and not fewer where there are packets for it ----

# A machine whose cores are wanted elsewhere does not wake a receiver so often: at least six tenths of what it does for one
# on kernel sockets, then.
at_least() { # WAKE-UPS HOW RATE: sets `least`
	least=$1
	[ "$wakeups" -lt "$least" ] || return
	local found=$wakeups
	rates "$2" "$3" LD_PRELOAD=
	[ $((wakeups * 6 / 10)) -ge "$least" ] || least=$((wakeups * 6 / 10))
	wakeups=$found
}

AIM=VMA_CQ_AIM_INTERRUPTS_RATE_PER_SEC=5000
for case in recv:10000 select:10000 epoll:100000 poll:100000 recv:400000; do
	s="${case%:*} at ${case#*:} packets per second"
	# A machine that has no core for the receiver wakes it less often.
	remeasure 3 "$s: wake-ups" wakeups -ge 4000 rates "${case%:*}" "${case#*:}" $AIM
	check_num "$s: some 5000 wake-ups" "$wakeups" -le 6000
	at_least 4000 "${case%:*}" "${case#*:}"
	check_num "and no fewer" "$wakeups" -ge "$least"
done
rates recv 10000 VMA_CQ_AIM_INTERRUPTS_RATE_PER_SEC=1000 VMA_CQ_AIM_MAX_PERIOD_USEC=1000
check_num "the rate is the one that is set" "$wakeups" -le 1200
remeasure 3 "without moderation: wake-ups" wakeups -gt 6000 rates recv 10000 VMA_CQ_MODERATION_ENABLE=0 $AIM # as above
at_least 6001 recv 10000
check_num "without moderation packets wake as they come" "$wakeups" -ge "$least"

# ---- by period and count ----

# Sorted delays in microseconds, of N packets that are sent GAP microseconds apart; `in_order`: as they came.
delays() { # HOW SENDER N GAP ENVIRONMENT...
	local how=$1 sender=$2 n=$3 gap=$4
	shift 4
	receive "$@" -- delays "$how" "$IP_B" $((PORT + 1)) "$n"
	in_ns a "$WAKEUPS" "$sender" "$IP_B" $PORT "$n" "$gap" || return
	finish receiver 20 || return
	mapfile -t in_order < <(grep -E '^[0-9]+$' "$WORK/receiver.log")
	mapfile -t sorted < <(printf '%s\n' "${in_order[@]}" | sort -n)
	median=${sorted[n / 2]}
	note "$how $*: ${sorted[*]:0:20}"
}

FIXED=(VMA_CQ_AIM_INTERVAL_MSEC=0 VMA_CQ_MODERATION_COUNT=10 VMA_CQ_MODERATION_PERIOD_USEC=5000)
# The first packet is left out: it may come before the receiver sleeps for the first time, and then it waits for nothing.
for how in recv poll select epoll; do
	# A receiver that waits for a core gets more of them later.
	remeasure 5 "$how: microseconds until a lone packet comes" median -le 6000 delays $how burst 16 30000 "${FIXED[@]}"
	check_num "$how: a lone packet waits for the period" "$(printf '%s\n' "${in_order[@]:1}" | sort -n | head -n 1)" -ge 5000
	check_num "and not for much longer" "$median" -le 6000
done
remeasure 5 "microseconds until a lone segment comes" median -le 6000 delays tcp stream 15 30000 "${FIXED[@]}"
check_num "a lone segment waits for the period" "$median" -ge 5000
check_num "and not for much longer" "$median" -le 6000
tenth() {
	delays recv burst 10 300 "${FIXED[@]}" && last=${in_order[9]}
}
# A sender that has no core for a while may be too slow for the period.
remeasure 3 "microseconds until the tenth comes" last -le 1000 tenth
check_num "the tenth is there at once" "$last" -le 1000
check_num "and the first with it" "${in_order[0]}" -ge 2700
remeasure 5 "microseconds with VMA_CQ_MODERATION_ENABLE=0" median -lt 2000 \
	delays recv burst 15 30000 VMA_CQ_AIM_INTERVAL_MSEC=0 VMA_CQ_MODERATION_PERIOD_USEC=5000 VMA_CQ_MODERATION_ENABLE=0
check_num "VMA_CQ_MODERATION_ENABLE=0 holds nothing back" "$median" -lt 2000
remeasure 5 "microseconds with adaptive moderation" median -lt 2000 delays recv burst 15 30000 $AIM
check_num "nor does adaptive moderation after silence" "$median" -lt 2000

# ---- nothing set: as without moderation ----

# The least median of three each, in turn.
later_if_unset() {
	local unset=1000000 off=1000000
	for _ in 1 2 3; do
		delays recv burst 1000 500 || return
		[ "$median" -ge $unset ] || unset=$median
		delays recv burst 1000 500 VMA_CQ_MODERATION_ENABLE=0 || return
		[ "$median" -ge $off ] || off=$median
	done
	later=$((unset - off))
}
remeasure 3 "all unset: microseconds later than without moderation" later -le 2 later_if_unset
check_num "all unset, a packet comes as soon as without moderation" "$later" -le 2
done_testing
