#!/usr/bin/env bash
# sockperf, unmodified: every mode of it, offloaded on both sides and on one, loses nothing and bypasses the kernel.
#
#   a (client)  10.9.0.1 ---- veth ---- 10.9.0.2  (server) b
#
# MODES='*pattern*' picks sentences. SOCKPERF_KERNEL=1 runs all on kernel sockets, to see what the tests themselves need.
. "$(dirname "$0")/../lib.sh"
need_xdp
command -v sockperf >/dev/null || cannot_run "no sockperf"
net_pair
for x in a b; do ip -n "$(ns $x)" route add 224.0.0.0/4 dev "veth_$x$([ $x = a ] && echo 1 || echo 2)"; done
LIBRARY=$BUILD/libvma.so PORT=11111 GROUP=239.7.7.9 FORK_SERVER=$BUILD/tests/parity/fork_server
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-WARNING}
# sockperf does not free everything, and a fault in it is its own.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:handle_segv=0:handle_sigbus=0:allow_user_segv_handler=1}
case $SAN in
address) runtime=$(gcc -print-file-name=libasan.so) ;;
thread) runtime=$(gcc -print-file-name=libtsan.so) ;;
*) runtime= ;;
esac
with="LD_PRELOAD=$runtime${runtime:+ }$LIBRARY" kernel=
[ "${SOCKPERF_KERNEL:-0}" = 0 ] || { with="" && kernel=1; }

# ---- one run ----

serve() { # PRELOAD ARGUMENTS OF sockperf server...
	local preload=$1
	shift
	start server b env ${preload:+"$preload"} sockperf server "$@"
	wait_for 20 log_has server "to block on socket|using .* to block"
}

# Counters of both kernels: "in out" of a and b.
counted() {
	echo "$(snmp a Udp InDatagrams) $(snmp a Udp OutDatagrams) $(snmp b Udp InDatagrams) $(snmp b Udp OutDatagrams)"
}

ask() { # PRELOAD ARGUMENTS OF sockperf...: output in $WORK/client.log
	local preload=$1
	shift
	before=$(counted)
	in_ns a timeout -k 1 60 env ${preload:+"$preload"} sockperf "$@" >"$WORK/client.log" 2>&1
	local rc=$?
	after=$(counted)
	return $rc
}

# How much the counters of these sides moved.
moved() { # a|b...
	local b a sum=0 side
	read -ra b <<<"$before"
	read -ra a <<<"$after"
	for side in "$@"; do
		case $side in
		a) sum=$((sum + a[0] - b[0] + a[1] - b[1])) ;;
		b) sum=$((sum + a[2] - b[2] + a[3] - b[3])) ;;
		esac
	done
	echo $sum
}

received() {
	sed -nE 's/.*\[Total Run\].*ReceivedMessages=([0-9]+).*/\1/p' "$WORK/client.log"
}

no_loss() {
	tail -n 30 "$WORK/client.log"
	grep -q '# dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0' "$WORK/client.log" &&
		! grep -qE '# (dropped|duplicated|out-of-order) messages = [1-9]' "$WORK/client.log" &&
		! grep -qiE 'error|integrity.*fail' "$WORK/client.log"
}

wanted() { # SENTENCE
	# shellcheck disable=SC2053 # MODES is a pattern
	[[ $1 == ${MODES:-*} ]]
}

# A server, a client, and what must hold: exit status, no loss, at least MESSAGES answers, and counters of the sides that
# stand still.
mode() { # SENTENCE MESSAGES "SIDES" "SERVER ARGUMENTS" CLIENT ARGUMENTS...; preloads in $server_with, $client_with
	local sentence=$1 messages=$2 sides=$3 server=$4
	shift 4
	wanted "$sentence" || return 0
	# shellcheck disable=SC2086 # arguments of a server
	check "$sentence: the server starts" serve "${server_with-$with}" $server || return 0
	check "$sentence: the client ends well" ask "${client_with-$with}" "$@"
	check "$sentence: nothing is lost, doubled or out of order" no_loss
	check_num "$sentence: messages were answered" "$(received || echo 0)" -ge "$messages"
	# shellcheck disable=SC2086 # several sides
	[ -n "$kernel" ] || [ -z "$sides" ] || check_eq "$sentence: the kernels of $sides counted nothing" "$(moved $sides)" 0
	check "$sentence: the server still runs" alive server
	stop server
}

feed() { # NUMBER IP: a file of so many sockets
	local i
	for ((i = 0; i < $1; i++)); do echo "U:$2:$((12000 + i))"; done >"$WORK/feed.$1"
	echo "$WORK/feed.$1"
}

# ---- the modes ----

at="-i $IP_B -p $PORT"
few=1000
[ -z "$SAN" ] || few=50

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

# Throughput is counted at the receiver: at this rate nothing may be lost.
throughput() { # SENTENCE CLIENT ARGUMENTS...
	local sentence=$1 sent got
	shift
	wanted "$sentence" || return 0
	# shellcheck disable=SC2086
	check "$sentence: the server starts" serve "$with" $at || return 0
	# shellcheck disable=SC2086
	check "$sentence: the client ends well" ask "$with" throughput $at -t 1 "$@"
	[ -n "$kernel" ] || check_eq "$sentence: the kernels of a b counted nothing" "$(moved a b)" 0
	sleep 0.3
	stop server INT
	sent=$(sed -nE 's/.*Total of ([0-9]+) messages sent.*/\1/p' "$WORK/client.log")
	got=$(sed -nE 's/.*Total ([0-9]+) messages received.*/\1/p' "$WORK/server.log")
	check_num "$sentence: messages were sent" "${sent:-0}" -ge $few
	# The server counts warm-up messages, too.
	check_num "$sentence: all of them arrived" "${got:-0}" -ge "${sent:-1}"
}
throughput "throughput" --mps 20000 -m 64
throughput "throughput of 1472 bytes" --mps 10000 -m 1472

client_with="" mode "only the server offloaded" $few "b" "-i $IP_B -p $PORT" ping-pong -i "$IP_B" -p $PORT -t 1
server_with="" mode "only the client offloaded" $few "a" "-i $IP_B -p $PORT" ping-pong -i "$IP_B" -p $PORT -t 1

# ---- multicast ----

mc="-i $GROUP -p $PORT"
# shellcheck disable=SC2086
mode "multicast" $few "a b" "$mc --mc-rx-if $IP_B --mc-tx-if $IP_B" \
	ping-pong $mc -t 1 --mc-rx-if "$IP_A" --mc-tx-if "$IP_A"
# shellcheck disable=SC2086
mode "multicast with loopback" $few "" "$mc --mc-rx-if $IP_B --mc-tx-if $IP_B --mc-loopback-enable" \
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
