#!/usr/bin/env bash
# sockperf, unmodified: throughput, one side offloaded, multicast, loaded by sockperf itself, several servers, forking ones.
# alone: it counts what a busy machine loses
# test-all: each mode of sockperf takes a second or more, and the machine
# seconds: 55
. "$(dirname "$0")/../lib_sockperf.sh"

# Throughput is counted at the receiver. At this rate its receive queue lasts for 100 ms in which it does not run, so
# nothing may be lost unless a core was away for about as long, and no more than was sent in such gaps. Then it is tried
# again, and once all must arrive; what is lost on the way there must be counted.
long_gap=40 # ms
tries=6

start_throughput() { # a server, and what watches the cores
	mkdir -p "$WORK/stats"
	# shellcheck disable=SC2086
	VMA_STATS_SHMEM_DIR=$WORK/stats serve "$with" $at --buffer-size 4000000 &&
		start gaps b "$BUILD/tests/measure/core_gaps" && wait_for 5 log_has gaps watching
}

# What the server's library has counted as lost, wherever.
counted_lost() {
	"$BUILD/tests/measure/print_stats" "$WORK/stats/vmastat.${PID[server]}" |
		awk '/^(nic|socket)\.rx_dropped |^(cq|ring)\.drop_/ { sum += $2 } END { print sum + 0 }'
}

# Sets sent, got, lost (by what both programs say), counted (by the library), gap, gaps.
end_throughput() {
	sleep 0.3
	[ -n "$kernel" ] || counted=$(counted_lost)
	stop gaps
	gap=$(sed -nE 's/^longest ([0-9]+) ms.*/\1/p' "$WORK/gaps.log")
	gaps=$(sed -nE 's/.*, all ([0-9]+) ms$/\1/p' "$WORK/gaps.log")
	stop server INT
	sent=$(sed -nE 's/.*Total of ([0-9]+) messages sent.*/\1/p' "$WORK/client.log")
	got=$(sed -nE 's/.*Total ([0-9]+) messages received.*/\1/p' "$WORK/server.log")
	sent=${sent:-0} got=${got:-0} gap=${gap:-0} gaps=${gaps:-0}
	lost=$((sent > got ? sent - got : 0)) # the server counts warm-up messages, too
}

throughput() { # SENTENCE CLIENT ARGUMENTS...
	local sentence=$1 sent got lost counted=0 gap gaps try rc
	shift
	wanted "$sentence" || return 0
	for ((try = 1; try <= tries; try++)); do
		check "$sentence: the server starts" start_throughput || return 0
		# shellcheck disable=SC2086
		check "$sentence: the client ends well" ask "$with" throughput $at -t 1 "$@"
		rc=$?
		end_throughput
		[ -n "$kernel" ] || check_eq "$sentence: the kernels of a b counted nothing" "$(moved a b)" 0
		check_num "$sentence: messages were sent" "$sent" -ge $few
		[ -n "$kernel" ] || check_num "$sentence: what was lost is counted" "$counted" -ge "$lost"
		[ $rc -eq 0 ] && [ "$lost" -gt 0 ] && [ "$gap" -ge $long_gap ] &&
			[ "$lost" -le $((sent * gaps / 1000)) ] || break
		flaky "$sentence: $lost of $sent lost; a core was away for $gap ms, all cores for $gaps ms"
	done
	check_eq "$sentence: all of them arrived" "$lost" 0 || note "of $sent; a core was away for $gap ms, all cores for $gaps ms"
}
# A sanitizer's receiver that does not run for a moment misses less at a lower one.
rate=20000
[ -z "$SAN" ] || rate=2000
throughput "throughput" --mps $rate -m 64
throughput "throughput of 1472 bytes" --mps $((rate / 2)) -m 1472

# A server that stands still does not take what comes, and can say later how much that was.
stopped() {
	local counted=0 sent got lost gap gaps before_stop
	check "$sentence: the server starts" start_throughput || return 0
	before_stop=$(if_counter b "$IF_B" rx_packets)
	# shellcheck disable=SC2086
	in_ns a timeout -k 1 60 env ${with:+"$with"} sockperf throughput $at -t 1 --mps $rate -m 64 >"$WORK/client.log" 2>&1 &
	check "$sentence: messages come" wait_for 20 more_than $((before_stop + 100))
	kill -STOP "${PID[server]}"
	check "$sentence: more come than its queue can hold" wait_for 20 more_than $(($(if_counter b "$IF_B" rx_packets) + 8000))
	kill -CONT "${PID[server]}"
	check "$sentence: the client ends well" wait $!
	end_throughput
	check_num "$sentence: messages are lost" "$lost" -gt 0
	check_eq "$sentence: all that are lost are counted" "$counted" "$lost"
}

more_than() { # PACKETS
	[ "$(if_counter b "$IF_B" rx_packets)" -gt "$1" ]
}
sentence="a server that is stopped for a while"
if [ -z "$kernel$SAN" ] && wanted "$sentence"; then stopped; fi

client_with="" mode "only the server offloaded" $few "b" "-i $IP_B -p $PORT" ping-pong -i "$IP_B" -p $PORT -t 1
server_with="" mode "only the client offloaded" $few "a" "-i $IP_B -p $PORT" ping-pong -i "$IP_B" -p $PORT -t 1

# ---- multicast ----

mc="-i $GROUP -p $PORT"
# shellcheck disable=SC2086
mode "multicast" $few "a b" "$mc --mc-rx-if $IP_B --mc-tx-if $IP_B" \
	ping-pong $mc -t 1 --mc-rx-if "$IP_A" --mc-tx-if "$IP_A"
# Both ends are members of the group that they send to, so the kernel sends, and hands out the copies.
# shellcheck disable=SC2086
mode "multicast with loopback" $few "a-in b-in" "$mc --mc-rx-if $IP_B --mc-tx-if $IP_B --mc-loopback-enable" \
	ping-pong $mc -t 1 --mc-rx-if "$IP_A" --mc-tx-if "$IP_A" --mc-loopback-enable

multicast_on_one_host() {
	# shellcheck disable=SC2086
	start server a env ${with:+"$with"} sockperf server $mc --mc-rx-if "$IP_A" --mc-tx-if "$IP_A" --mc-loopback-enable
	wait_for 20 log_has server "to block on socket"
	# shellcheck disable=SC2086
	ask "$with" ping-pong $mc -t 1 --mc-rx-if "$IP_A" --mc-tx-if "$IP_A" --mc-loopback-enable && no_loss
	local rc=$?
	stop server
	return $rc
}
sentence="multicast with loopback between two processes on one host"
if wanted "$sentence"; then check "$sentence" multicast_on_one_host; fi

# ---- loaded by sockperf itself ----

if [ -z "$kernel" ]; then
	loaded="LD_LIBRARY_PATH=$(realpath "$BUILD")"
	[ -z "$runtime" ] || loaded="LD_PRELOAD=$runtime"
	# shellcheck disable=SC2086
	server_with=$loaded client_with=$loaded mode "--load-vma" $few "a b" "$at --load-vma=$(realpath "$LIBRARY")" \
		ping-pong $at -t 1 "--load-vma=$(realpath "$LIBRARY")"
fi

# ---- several servers on one interface ----

two_servers() {
	start second b env ${with:+"$with"} sockperf server -i "$IP_B" -p 11112
	wait_for 20 log_has second "to block on socket"
	in_ns a env ${with:+"$with"} sockperf ping-pong -i "$IP_B" -p 11112 -t 1 >"$WORK/second-client.log" 2>&1 &
	# shellcheck disable=SC2086
	ask "$with" ping-pong $at -t 1
	local rc=$?
	wait $! && [ $rc -eq 0 ] && no_loss && cp "$WORK/second-client.log" "$WORK/client.log" && no_loss
}
sentence="two servers, each with its client"
if wanted "$sentence"; then
	# shellcheck disable=SC2086
	check "$sentence: the first starts" serve "$with" $at
	check "$sentence: both clients lose nothing" two_servers
	[ -n "$kernel" ] || check_eq "$sentence: the kernels counted nothing" "$(moved a b)" 0
	stop server
	stop second
fi

forking() { # own|inherited
	: >"$WORK/all.log"
	start server b env ${with:+"$with"} "$FORK_SERVER" "$1" "$IP_B" 13000 4
	wait_for 20 log_has server listening
	sleep 0.5
	local i rc=0 first
	for i in 0 1 2 3; do
		ask "$with" ping-pong -i "$IP_B" -p $((13000 + i)) -t 1 && no_loss || rc=1
		first=${first:-$before}
		[ $rc -eq 0 ] || break
	done
	before=$first
	stop server
	return $rc
}
for how in own inherited; do
	sentence="a forking server, sockets $how"
	wanted "$sentence" || continue
	check "$sentence: nothing is lost" forking $how
	[ -n "$kernel" ] || [ $how != own ] || check_eq "$sentence: the kernels counted nothing" "$(moved a b)" 0
done
done_testing
