#!/usr/bin/env bash
# Threads that end in a receive callback, by pthread_exit and cancelled: the packet at hand is dropped, other threads are
# told of all others, and the socket closes as any.
# seconds: 6
#
#   a: extra_udp, extra_tcp send (the kernel's sockets) ---- veth ---- b: extra_exit, preloaded
EXTRA_PROGRAM=extra_exit
. "$(dirname "$0")/../lib_extra.sh"

port=7400
for spin in 100000 0; do # the thread that ends is polling, or asleep
	port=$((port + 1))
	start "udp$spin" b env "$preload" VMA_RX_POLL=$spin "$program" udp "$IP_B" $port 10 "$WORK/sent$spin"
	wait_for 30 log_has "udp$spin" '^ready'
	in_ns a "$BUILD/tests/extra/extra_udp" send "$IP_B" $port 10
	touch "$WORK/sent$spin"
	finish "udp$spin" 60
	check_eq "datagrams that have come, VMA_RX_POLL=$spin: the next thread is told of the others" "$(said "udp$spin")" \
		"seen 10 of 1 threads"

	port=$((port + 1))
	start "tcp$spin" b env "$preload" VMA_RX_POLL=$spin VMA_SELECT_POLL=$spin "$program" tcp "$IP_B" $port 3000000
	wait_for 30 log_has "tcp$spin" '^ready'
	check "the peer of a connection, VMA_RX_POLL=$spin, gets its end" \
		in_ns a timeout 60 "$BUILD/tests/extra/extra_tcp" send "$IP_B" $port 3000000
	check_eq "and six threads that ended, and the next, were told of every byte" "$(said "tcp$spin")" \
		"bytes 3000000 end 1 threads 6"
	stop "tcp$spin"
done
done_testing
