#!/usr/bin/env bash
# sockperf, unmodified, in every mode and by every way of waiting, offloaded on both sides: nothing is lost, and the
# kernel counts nothing.
# alone: it counts what a busy machine loses
# test-all: every mode and way takes a second or two, with nothing beside it; vma_stats.sh and preload.sh have the usual ones
# seconds: 45
. "$(dirname "$0")/../lib_sockperf.sh"

# shellcheck disable=SC2086 # $at is several words, here and below
mode "ping-pong" $few "a b" "$at" ping-pong $at -t 1
# shellcheck disable=SC2086
mode "ping-pong with data integrity" $few "a b" "$at" ping-pong $at -t 1 --data-integrity
# shellcheck disable=SC2086
mode "ping-pong of 1400 bytes, varied" $few "a b" "$at" ping-pong $at -t 1 -m 1000 -r 400
# shellcheck disable=SC2086
mode "non-blocking ping-pong" $few "a b" "$at --nonblocked" ping-pong $at -t 1 --nonblocked
# shellcheck disable=SC2086
mode "under load" 500 "a b" "$at" under-load $at -t 1 --mps 2000 --reply-every 1
few_sockets=$(feed 3 "$IP_B")
for how in select poll epoll; do
	mode "ping-pong by $how" $few "a b" "-f $few_sockets -F $how" ping-pong -f "$few_sockets" -t 1 -F $how
done
one_socket=$(feed 1 "$IP_B")
mode "ping-pong by recvfrom" $few "a b" "-f $one_socket -F recvfrom" ping-pong -f "$one_socket" -t 1 -F recvfrom
many=$(feed 200 "$IP_B")
for how in select poll epoll; do
	mode "200 sockets by $how" $few "a b" "-f $many -F $how" ping-pong -f "$many" -t 1 -F $how
done
mode "200 sockets, four server threads" $few "a b" "-f $many -F epoll --threads-num 4" ping-pong -f "$many" -t 1 -F epoll

awk 'BEGIN { for (i = 1; i <= 400; i++) printf "%.6f, %d\n", 0.001 * i + 0.0001 * (i % 7), 64 + i * 3 }' >"$WORK/play.csv"
# shellcheck disable=SC2086
mode "playback" 300 "a b" "$at" playback $at --data-file "$WORK/play.csv" --reply-every 1
done_testing
