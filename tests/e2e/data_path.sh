#!/usr/bin/env bash
# The data path allocates nothing and enters the kernel only to kick the NIC and, with --wait, to sleep: counted while
# udp_ping and udp_echo run, as the difference between a short and a long run, so that start and end do not count.
# seconds: 45
. "$(dirname "$0")/../lib.sh"
need_xdp
net_pair
SHORT=1000 LONG=5000
# A sanitizer's runtime has an allocator and system calls of its own; LeakSanitizer cannot run under ptrace.
export ASAN_OPTIONS=detect_leaks=0
case $BUILD in *address* | *thread*) runtime=1 ;; *) runtime=0 ;; esac

echo_on_b() { # OPTIONS... COMMAND PREFIX in $prefix
	# shellcheck disable=SC2086 # a prefix of several words
	start echo b ${prefix:-} "$BUILD/examples/udp_echo" --local "$IP_B" "$@" "xdp:$IF_B"
	wait_for 20 log_has echo listening
}

ping_from_a() { # COUNT OPTIONS... COMMAND PREFIX in $prefix
	local count=$1
	shift
	# shellcheck disable=SC2086
	in_ns a ${prefix:-} "$BUILD/examples/udp_ping" --local "$IP_A" --peer "$IP_B" --peer-mac "$MAC_B" --count "$count" "$@" \
		"xdp:$IF_A" >"$WORK/ping.log" 2>&1
}

# ---- system calls ----

# strace -c of both sides, COUNT packets: $WORK/ping.COUNT and $WORK/echo.COUNT
traced() { # COUNT OPTIONS...
	local count=$1 begun=${EPOCHREALTIME/./}
	shift
	prefix="strace -f -c -o $WORK/echo.$count" echo_on_b "$@" || return
	prefix="strace -f -c -o $WORK/ping.$count" ping_from_a "$count" "$@" || return
	# strace ignores SIGTERM while it follows: the program itself is its only child.
	kill "$(cat "/proc/${PID[echo]}/task/${PID[echo]}/children")"
	finish echo 10
	usec[count]=$((${EPOCHREALTIME/./} - begun))
}
usec=() # by COUNT: how long the run took

# "CALL MORE" for each system call: how many more of them the long run made.
more_calls() { # ping|echo
	awk 'FNR > 2 && $NF != "total" && NF > 3 { n[$NF] += (FILENAME ~ /\.'$LONG'$/ ? $4 : -$4) }
		END { for (call in n) print call, n[call] }' "$WORK/$1.$SHORT" "$WORK/$1.$LONG"
}

# Kicks grow with the packets. Everything else together may grow with time only: threads that look every 100 ms, with a
# dozen calls each time. A loaded machine needs several seconds for the long run.
only_these_grow() { # ping|echo CALL...
	more_calls "$1" >"$WORK/more"
	shift
	awk -v wanted=" $* " -v packets=$((LONG - SHORT)) -v sec=$(((usec[LONG] - usec[SHORT]) / 1000000)) '
		index(wanted, " " $1 " ") { seen += $2; next }
		$2 > 0 { others += $2; list = list " " $1 "=" $2 }
		END {
			sec = sec > 0 ? sec : 0 # the short run may have been the slow one
			print "per packet:", seen / packets, "others:" list
			exit !(seen >= packets * 0.9 && others < packets * 0.05 + 120 * sec)
		}' "$WORK/more"
}

if [ $runtime = 1 ]; then
	skip "system calls of the data path" "a sanitizer's runtime makes its own"
elif ! command -v strace >/dev/null; then
	skip "system calls of the data path" "no strace"
else
	check "a short run under strace" traced $SHORT
	check "a long run under strace" traced $LONG
	check "polling, udp_ping makes no call but the kick" only_these_grow ping sendto
	check "polling, udp_echo makes no call but the kick" only_these_grow echo sendto
	check "a short run that sleeps, under strace" traced $SHORT --wait
	check "a long run that sleeps, under strace" traced $LONG --wait
	check "with --wait, udp_ping makes no call but the kick and the wait" only_these_grow ping sendto ppoll
	check "with --wait, udp_echo makes no call but the kick and the wait" only_these_grow echo sendto ppoll
fi

# ---- allocations ----

allocations() { # NAME: calls of its main thread, which is the one that drives
	od -An -tu8 -N8 "$WORK/$1.allocations" | tr -d ' '
}

if [ $runtime = 1 ]; then
	skip "allocations of the data path" "a sanitizer's runtime replaces malloc"
else
	check "the counter builds" "${CC:-gcc}" -O2 -fPIC -shared -Wall -Wextra -Werror -D_GNU_SOURCE -o "$WORK/count.so" \
		"$ROOT/tests/alloc_count.c"
	prefix="env LD_PRELOAD=$WORK/count.so ALLOC_COUNT_FILE=$WORK/echo.allocations" echo_on_b
	check "the first $SHORT packets" ping_from_a $SHORT
	first=$(allocations echo)
	check_num "the counter counts" "${first:-0}" -gt 0
	check "20,000 packets more" ping_from_a 20000
	check_eq "udp_echo allocated nothing for them" "$(allocations echo)" "$first"
	prefix="env LD_PRELOAD=$WORK/count.so ALLOC_COUNT_FILE=$WORK/short.allocations" \
		check "a short ping, counted" ping_from_a $SHORT
	prefix="env LD_PRELOAD=$WORK/count.so ALLOC_COUNT_FILE=$WORK/long.allocations" \
		check "a long ping, counted" ping_from_a 20000
	check_eq "udp_ping allocates as often for 20,000 packets as for $SHORT" "$(allocations long)" "$(allocations short)"
	stop echo
fi
done_testing
