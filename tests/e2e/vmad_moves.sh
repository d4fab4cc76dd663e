#!/usr/bin/env bash
# vmad is killed in the middle of a TCP connection's move between rings, before it has moved the rule or after it, and
# another one goes on: the connection goes on as well, on one ring or the other, and no byte is lost.
#
#   a  10.9.0.1 (the kernel's) ---- veth ---- 10.9.0.2  b (preloaded; vmad)
# seconds: 10
. "$(dirname "$0")/../lib_programs.sh"
net_pair
PROGRAM=$ROOT/tests/e2e/tcp_migration.py
vmad=$BUILD/bin/vmad
BYTES=20000000 TURNS=42 TURN=30 AT=7

# Beside this one lies no vmad, so a client starts none.
cp "$LIBRARY" "$WORK/libvma.so"
alone=${preload//"$LIBRARY"/"$WORK/libvma.so"}
export VMA_STATS_SHMEM_DIR=$WORK/stats
mkdir "$WORK/stats"

cat >"$WORK/die.c" <<'END'
/* vmad ends with the AT-th request to move a rule: before it looks at it, or when it is about to answer (DIE=after). */
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "components/nic/xdp/proto.h"

static int moves, is_last;

static void look_at(const struct msghdr *msg)
{
	const struct vmad_msg *request = msg->msg_iov[0].iov_base;

	if (request->type != VMAD_FLOW_MOVE || ++moves != atoi(getenv("AT")))
		return;
	is_last = 1;
	if (strcmp(getenv("DIE"), "before") == 0)
		kill(getpid(), SIGKILL);
}

long syscall(long number, ...)
{
	static long (*next)(long number, ...);
	long args[6], rc;
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		args[i] = va_arg(list, long);
	va_end(list);
	if (next == NULL)
		next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	if (number == SYS_sendmsg && is_last)
		kill(getpid(), SIGKILL);
	rc = next(number, args[0], args[1], args[2], args[3], args[4], args[5]);
	if (number == SYS_recvmsg && rc > 0)
		look_at((const struct msghdr *)args[1]);
	return rc;
}
END
headers=("$ROOT"/components/*/include)
check "what ends vmad builds" "${CC:-gcc}" -O2 -fPIC -shared -Wall -Wextra -Werror -D_GNU_SOURCE -I"$ROOT" \
	"${headers[@]/#/-I}" -o "$WORK/die.so" "$WORK/die.c"

owner_up() { # LABEL [VARIABLE=VALUE...]
	start "$1" b env "${@:2}" "$vmad" --foreground "$IF_B"
	wait_for 15 log_has "$1" "owns $IF_B"
}
stat_of() { # COUNTER: the sum of the sockets of the program that takes turns
	"$BUILD/tests/measure/print_stats" "$WORK/stats/vmastat.${PID[turns]}" |
		awk -v name="socket.$1" '$1 == name { n += $2 } END { print n + 0 }'
}

dies() { # before|after
	local s="vmad ends $1 the rule has moved" in_kernel resets
	check "$s: a vmad owns the interface" owner_up first LD_PRELOAD="${runtime:+$runtime }$WORK/die.so" DIE="$1" AT=$AT
	in_kernel=$(snmp b Tcp InSegs) resets=$(snmp a Tcp EstabResets)
	start peer a python3 "$PROGRAM" peer listen "$IP_A" 7000 $BYTES
	wait_for 20 log_has peer listens
	start turns b env "$alone" VMA_RING_ALLOCATION_LOGIC_RX=20 VMA_RING_MIGRATION_RATIO_RX=10 \
		python3 "$PROGRAM" turns connect "$IP_A" 7000 $BYTES $TURNS $TURN
	check "$s: it has ended" wait_for 60 gone "${PID[first]}"
	check "$s: another one goes on" owner_up second
	wait_for 60 log_has turns "of $BYTES"
	wait_for 20 log_has peer "of $BYTES"
	check_eq "$s: what has come here" "$(tail -n 1 "$WORK/turns.log")" "$BYTES of $BYTES bytes, as sent"
	check_eq "$s: what has come there" "$(tail -n 1 "$WORK/peer.log")" "$BYTES of $BYTES bytes, as sent"
	check_eq "$s: the kernel has seen no segment" $(($(snmp b Tcp InSegs) - in_kernel)) 0
	check_eq "$s: nothing is reset" $(($(snmp a Tcp EstabResets) - resets)) 0
	check_num "$s: it has moved before and after" "$(stat_of rx_migrations)" -gt $((AT + 5))
	note "$s: $(stat_of rx_migrations) moves, refused $(stat_of migrations_refused)"
	stop turns
	reap peer # by a reset
	stop second
	unset "PID[first]"
}
dies before
dies after
done_testing
