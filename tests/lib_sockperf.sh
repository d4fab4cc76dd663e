# shellcheck shell=bash
# Runs of sockperf, unmodified, for the scripts of tests/e2e: a server in b, a client in a, and what must hold.
#
#   a (client)  10.9.0.1 ---- veth ---- 10.9.0.2  (server) b
#
# MODES='*pattern*' picks sentences. SOCKPERF_KERNEL=1 runs all on kernel sockets, to see what the tests themselves need.
# shellcheck disable=SC2034 # for the scripts
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_xdp
if [ "$SAN" = thread ]; then
	skip "sockperf" "the race detector's runtime starts in instrumented programs only"
	done_testing
fi
command -v sockperf >/dev/null || cannot_run "no sockperf"
net_pair
for x in a b; do ip -n "$(ns $x)" route add 224.0.0.0/4 dev "veth_$x$([ $x = a ] && echo 1 || echo 2)"; done
LIBRARY=$BUILD/libvma.so PORT=11111 GROUP=239.7.7.9 FORK_SERVER=$BUILD/tests/parity/fork_server
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-WARNING}
# sockperf does not free everything, and a fault in it is its own.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:handle_segv=0:handle_sigbus=0:allow_user_segv_handler=1}
case $SAN in
address) runtime=$(gcc -print-file-name=libasan.so) ;;
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
moved() { # a|b|a-in|b-in...: what the kernels' UDP of the sides received and sent, or only received
	local b a sum=0 side
	read -ra b <<<"$before"
	read -ra a <<<"$after"
	for side in "$@"; do
		case $side in
		a) sum=$((sum + a[0] - b[0] + a[1] - b[1])) ;;
		b) sum=$((sum + a[2] - b[2] + a[3] - b[3])) ;;
		a-in) sum=$((sum + a[0] - b[0])) ;;
		b-in) sum=$((sum + a[2] - b[2])) ;;
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

# At least MESSAGES were answered. Where they were fewer, on a machine whose cores are away for much of the time, a run of
# five seconds, or a second one, has as many, and no fewer than a tenth of what kernel sockets have right after it.
enough() { # SENTENCE MESSAGES "SERVER ARGUMENTS" CLIENT ARGUMENTS...
	local sentence=$1 messages=$2 server=$3 got longer by_kernel
	shift 3
	got=$(received)
	if [ "${got:-0}" -ge "$messages" ]; then
		ok "$sentence: messages were answered"
		return
	fi
	longer=" $* "
	read -ra longer <<<"${longer/ -t 1 / -t 5 }"
	flaky "$sentence: ${got:-0} messages in a short run, wanted $messages"
	for _ in 1 2; do
		stop server
		# shellcheck disable=SC2086 # arguments of a server
		serve "${server_with-$with}" $server && ask "${client_with-$with}" "${longer[@]}" && no_loss >/dev/null || break
		got=$(received) by_kernel=0
		stop server
		# shellcheck disable=SC2086
		[ -n "$kernel" ] || { serve "" $server && ask "" "${longer[@]}" && by_kernel=$(received); } || break
		[ "${got:-0}" -lt "$messages" ] || [ $((got * 10)) -lt "$by_kernel" ] || break
		flaky "$sentence: ${got:-0} messages in a long run, wanted $messages; the kernel $by_kernel"
	done
	check_num "$sentence: messages were answered" "${got:-0}" -ge "$messages"
	check_num "$sentence: at least a tenth of the kernel's" $((${got:-0} * 10)) -ge "${by_kernel:-1}"
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
	# shellcheck disable=SC2086 # several sides
	[ -n "$kernel" ] || [ -z "$sides" ] || check_eq "$sentence: the kernels of $sides counted nothing" "$(moved $sides)" 0 ||
		note "in and out of a, of b: $before before, $after after" "$(grep vma "$WORK/client.log")" "$(cat "$WORK/server.log")"
	check "$sentence: the server still runs" alive server
	enough "$sentence" "$messages" "$server" "$@"
	stop server
}

feed() { # NUMBER IP: a file of so many sockets
	local i
	for ((i = 0; i < $1; i++)); do echo "U:$2:$((12000 + i))"; done >"$WORK/feed.$1"
	echo "$WORK/feed.$1"
}

at="-i $IP_B -p $PORT"
few=1000
[ -z "$SAN" ] || few=50
