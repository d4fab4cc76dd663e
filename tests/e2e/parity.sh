#!/usr/bin/env bash
# The same answers as the kernel: every case of tests/parity runs on kernel sockets and under the preload, and prints
# the same; sockets that a case declares offloaded are, and the kernel's counters say so, too.
#
#   k (kernel sockets)  veth  its peer kb          a (preloaded)  veth  its peer b
#                       veth                                      veth
#
# CASES='*pattern*' picks cases. PARITY_MAPPED=1 runs them on AF_INET6 sockets with mapped addresses (parity_mapped.sh).
# PARITY_KERNEL_TWICE=1 runs both on kernel sockets: what differs then is the case's
# own fault. PARITY_SHOW=1 prints what the cases print.
# parts: 4
# seconds: 65
. "$(dirname "$0")/../lib.sh"
need_xdp
PARITY=$BUILD/tests/parity/parity PEER=$BUILD/tests/parity/parity_peer
# The race detector sleeps for a second at each exit, for races with other threads that exit does not wait for: there are
# 300 cases, and a tenth of it is long enough for what those threads do then.
# It also reports that a handler that sends has the library allocate memory: builds for sanitizers have the C library's
# allocator in place of the library's own, which no handler interrupts.
TSAN_OPTIONS=${TSAN_OPTIONS:-exitcode=66:handle_segv=0:handle_sigbus=0:die_after_fork=0:atexit_sleep_ms=100:report_signal_unsafe=0}
export TSAN_OPTIONS
# Without time stamps, which is the default, a segment of TCP takes twelve bytes more than the kernel's.
export VMA_TCP_TIMESTAMP_OPTION=2
CASE_SECONDS=${SAN:+60}
CASE_SECONDS=${CASE_SECONDS:-15}
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-WARNING}
[ -z "$SAN" ] || export PARITY_SLOW=1
# Cases end their processes in the middle of things, with sockets open.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:handle_segv=0:handle_sigbus=0:allow_user_segv_handler=1}

case $SAN in
address) preload="$(gcc -print-file-name=libasan.so) $LIBRARY" ;;
# The race detector comes after: in its own epoll_wait, poll or recv it takes no note of what synchronises, only of what
# is touched. Its programs have it linked in.
*) preload=$LIBRARY ;;
esac
[ "${PARITY_KERNEL_TWICE:-0}" = 0 ] || preload=

# Two namespaces with two links, and processes that the cases can tell what to do.
field() { # TEST PEER [PRELOAD]
	local x=$1 y=$2 who name preloaded
	ns_add "$x" && ns_add "$y" && ns_join "$x" 10.9.0.1 "$y" 10.9.0.2 && ns_join "$x" 10.9.1.11 "$y" 10.9.1.12 ||
		cannot_run "the namespaces cannot be joined"
	ip -n "$(ns "$y")" addr add 10.9.0.3/24 dev "veth_${y}2"
	ip -n "$(ns "$x")" neigh replace 10.9.0.3 lladdr "$(in_ns "$y" cat "/sys/class/net/veth_${y}2/address")" \
		dev "veth_${x}1" nud permanent
	ip -n "$(ns "$x")" route add 224.0.0.0/4 dev "veth_${x}1"
	ip -n "$(ns "$y")" route add 224.0.0.0/4 dev "veth_${y}2"
	# A neighbour that does not answer is given up soon.
	in_ns "$x" sh -c "echo 50 >/proc/sys/net/ipv4/neigh/veth_${x}1/retrans_time_ms"
	# Cases look at each refusal, so none may be left out for coming too soon after others.
	for name in "$x" "$y"; do
		in_ns "$name" sh -c 'cd /proc/sys/net/ipv4; echo 0 >icmp_ratelimit; echo 100000 >icmp_msgs_per_sec' 2>/dev/null
	done
	for who in "far $y" "near $x" "twin $x"; do
		name=${who% *}-$x
		preloaded=
		[ "${who% *}" != twin ] || preloaded=${3:-}
		start "$name" "${who#* }" env ${preloaded:+"LD_PRELOAD=$preloaded"} "$PEER" "$WORK/$name"
		check "peer $name is there" wait_for 20 log_has "$name" listening || done_testing
	done
}

as_user= # of the preloaded run: a command
# One case in namespace x; output and messages in $WORK/x.out and $WORK/x.err.
run_case() { # NAMESPACE CASE PRELOAD [ENVIRONMENT...]
	local x=$1 name=$2 with=$3
	shift 3
	# shellcheck disable=SC2086 # words
	in_ns "$x" timeout -k 1 "$CASE_SECONDS" ${with:+$as_user} env ${with:+"LD_PRELOAD=$with"} ${with:+PARITY_PRELOAD=1} \
		PARITY_HERE=10.9.0.1 PARITY_THERE=10.9.0.2 PARITY_THERE_TOO=10.9.0.3 \
		PARITY_HERE_SECOND=10.9.1.11 PARITY_THERE_SECOND=10.9.1.12 "PARITY_IF_FIRST=veth_${x}1" \
		"PARITY_IF_SECOND=veth_${x}11" "PARITY_FAR=$WORK/far-$x" "PARITY_NEAR=$WORK/near-$x" \
		"PARITY_TWIN=$WORK/twin-$x" "$@" "$PARITY" "$name" >"$WORK/$x.out" 2>"$WORK/$x.err" </dev/null
}

# AddressSanitizer's allocator knows nothing of fork: a lock that another thread of ours holds at that moment stays taken
# in the child, which then hangs in its first malloc (one run in some fifteen). Only for that a case is run once more;
# the other builds show a child that hangs for another reason.
hung_in_the_sanitizer() { # CASE STATUS
	[ "$SAN" = address ] && [ "$2" -eq 124 ] && [[ $1 == fork_* || $1 == inherited_* ]] && ! sanitizer_reported
}
sanitizer_reported() { # in one of the case's processes, perhaps not in the one whose exit status is looked at
	grep -qE 'Sanitizer|runtime error' "$WORK/k.err" "$WORK/a.err"
}

# A handler that interrupts ThreadSanitizer's runtime while that holds a lock of its own, and then calls it again or never
# returns to it, stands still (handlers that wait their turn are what it has for this; ours, as the kernel's, do not).
# The other builds run these cases.
stops_the_sanitizer() { # CASE
	[ "$SAN" = thread ] && [[ $1 == signal_handler_sends || $1 == signal_handler_jumps_out_of_send ]]
}

# Cases that make no sense with AF_INET6 sockets, and why.
no_sense_when_mapped() { # CASE: prints the reason
	[ -n "${PARITY_MAPPED:-}" ] || return
	case $1 in
	dual_*) echo "it makes AF_INET6 sockets itself" ;;
	bind_unspecified_family) echo "only bind of AF_INET takes AF_UNSPEC for 0.0.0.0" ;;
	*) return 1 ;;
	esac
}

profile=() # environment of the preloaded run
run_both() { # CASE: sets rc_kernel, rc
	run_case k "$1" "" &
	run_case a "$1" "$preload" "${profile[@]}"
	rc=$?
	wait $!
	rc_kernel=$?
}

# Both runs ended normally, and what they printed differs in nothing but times.
only_late() {
	[ $rc_kernel -eq 0 ] && [ $rc -eq 0 ] && ! sanitizer_reported && has_late_times &&
		cmp -s <(without_times k) <(without_times a)
}
has_late_times() {
	grep -q 'which is not about' "$WORK/k.out" "$WORK/a.out" || ! cmp -s "$WORK/k.out" "$WORK/a.out"
}
without_times() { # NAMESPACE
	sed -E 's/: (after about [0-9]+ ms|after [0-9]+ ms, which is not about [0-9]+)$/: after a while/
		s/: about [0-9]+ ms left$/: a while left/' "$WORK/$1.out"
}

late=0 late_names=() # how often a case was run again, and which
compare() { # CASE SENTENCE
	local name=$1 sentence=$2 rc_kernel rc why=
	run_both "$name"
	# A processor that was taken away for a while is late with either; what is always late is a difference.
	for _ in 1 2 3 4; do
		only_late || break
		late=$((late + 1)) late_names+=("$name")
		note "$name: the machine was too busy for times: run again"
		run_both "$name"
	done
	if hung_in_the_sanitizer "$name" $rc; then
		flaky "$name: hung under AddressSanitizer, run again"
		run_case a "$name" "$preload" "${profile[@]}"
		rc=$?
	fi
	[ $rc_kernel -eq 0 ] || why+="on kernel sockets: exit $rc_kernel"$'\n'"$(head -n 30 "$WORK/k.err")"$'\n'
	[ $rc -eq 0 ] || why+="preloaded: exit $rc"$'\n'"$(head -n 30 "$WORK/a.err")"$'\n'
	[ -s "$WORK/k.out" ] || why+="it printed nothing"$'\n'
	cmp -s "$WORK/k.out" "$WORK/a.out" ||
		why+="they differ (- kernel, + preloaded):"$'\n'"$(diff -U 1 "$WORK/k.out" "$WORK/a.out" | tail -n +3 | head -n 60)"
	[ -z "${PARITY_SHOW:-}" ] || note "$(cat "$WORK/k.out" "$WORK/a.err")"
	if [ -z "$why" ]; then
		ok "$name: $sentence"
	else
		not_ok "$name: $sentence" "$why"$'\n'"alone: CASES=$name BUILD=${BUILD#"$ROOT/"} tests/run tests/e2e/$(basename "$0")"
	fi
}

# What the latency profile does otherwise: it spins for ever, asks the OS at each look, its queues are short, nobody else
# drives a ring for 100 ms, and one thread at a time uses a socket. With VMA_SPEC=latency in its environment this script
# runs all cases so: then recv_order loses what its queue of 256 cannot hold, and idle_cpu is not idle, as they must.
LATENCY_CASES='@(recv_blocks|recv_b*_of_the_default|recv_behind_others|poll_m*|poll_timeouts|select_sets)'
LATENCY_CASES+='|@(epoll_level|epoll_edge*|epoll_mixed|send_order|signal_eintr|signal_masks)'
LATENCY_CASES+='|@(tcp_read_every_way|tcp_write_every_way|tcp_bulk|tcp_epoll_*|tcp_connect_nonblocking*|tcp_accept_names)'

# With nothing offloaded the suite fails.
offload_nothing() { # ENVIRONMENT
	! run_case a bind_says_its_address "$preload" "$1" PARITY_TIMEOUT_MS=200
}

# Of all that is compared, each part of a run in PARTS takes its share; what is about the suite itself is in the first.
turn=-1
in_this_part() {
	turn=$(((turn + 1) % ${PARTS:-1}))
	[ $turn -eq "${PART:-0}" ]
}

no_library() {
	! run_case a bind_says_its_address "" PARITY_PRELOAD=1
}

[ -z "$preload" ] || check "the library is there" test -e "$BUILD/libvma.so"
NIC=xdp field k kb
field a b "$preload"
while read -r name sentence; do
	# shellcheck disable=SC2053 # CASES is a pattern
	[[ $name == ${CASES:-*} ]] && in_this_part || continue
	if stops_the_sanitizer "$name"; then
		skip "$name: $sentence" "the sanitizer's runtime cannot be interrupted in its own calls"
	elif reason=$(no_sense_when_mapped "$name"); then
		note "$name: left out, $reason"
	else
		compare "$name" "$sentence" </dev/null
	fi
done < <("$PARITY" --list)
# A sanitizer's runtime is slow enough without waits that spin for ever.
if [ -n "$preload" ] && [ -z "$SAN${VMA_SPEC:-}" ]; then
	profile=(VMA_SPEC=latency)
	while read -r name sentence; do
		# shellcheck disable=SC2053 # patterns
		[[ $name == @($LATENCY_CASES) && $name == ${CASES:-*} ]] && in_this_part || continue
		compare "$name" "latency profile: $sentence" </dev/null
	done < <("$PARITY" --list)
	profile=()
fi
# A user whom vmad serves, who may hand nothing over himself.
serve_nobody() { # INTERFACE
	if [ -z "${PID[vmad_$1]:-}" ] || ! alive "vmad_$1"; then
		start "vmad_$1" a "$BUILD/bin/vmad" --foreground --allow-user nobody "$1"
	fi
	log_has "vmad_$1" "owns $1"
}
if [ -n "$preload" ] && [ -z "$SAN${VMA_SPEC:-}" ] && [ "$NIC" != verbs ]; then
	as_user="setpriv --reuid nobody --clear-groups"
	chmod -R a+rwX "$WORK"
	# As soon as those have gone that the cases before have started.
	check "vmad for nobody is there" wait_for 20 serve_nobody veth_a1 && wait_for 20 serve_nobody veth_a11
	while read -r name sentence; do
		# shellcheck disable=SC2053 # patterns
		[[ $name == @(tcp_fork*|tcp_time_wait_bind|tcp_time_wait_of_the_dead) && $name == ${CASES:-*} ]] && in_this_part || continue
		compare "$name" "as nobody: $sentence" </dev/null
	done < <("$PARITY" --list)
	as_user=
	stop vmad_veth_a1
	stop vmad_veth_a11
fi
if [ -n "$preload" ] && [ "${PART:-0}" -eq 0 ]; then
	check "the suite fails when the library offloads nothing" offload_nothing VMA_OFFLOADED_SOCKETS=0
	check "the suite fails when there is no device" offload_nothing VMA_NIC=none
	check "the suite fails without the library" no_library
fi
# One that was killed fails the case that asks it next, if there is one.
for name in {far,near,twin}-{k,a}; do check "peer $name still runs" alive "$name"; done
[ $late -eq 0 ] || flaky "$late times a case was run again, as only times differed: ${late_names[*]}"
done_testing
