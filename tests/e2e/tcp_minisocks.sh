#!/usr/bin/env bash
# vmad answers for connections whose process has gone, so that the kernel, which knows nothing of them, need not: what
# is late is acknowledged or reset, and whoever comes next with the same addresses and ports is served at once.
#
#   a (10.9.0.1): a client, offloaded at first  ---- veth ----  b (10.9.0.2): a server of the kernel's, or offloaded
# seconds: 22
. "$(dirname "$0")/../lib_programs.sh"
net_pair
before=0
[ -z "$SAN" ] || export CLIENT_SECONDS=120

talk() { # LABEL NAMESPACE offloaded|kernel ARGUMENTS...
	local label=$1 name=$2 how=$3
	shift 3
	if [ "$how" = offloaded ]; then
		start "$label" "$name" env "$preload" python3 "$ROOT/tests/e2e/talk.py" "$@"
	else
		start "$label" "$name" python3 "$ROOT/tests/e2e/talk.py" "$@"
	fi
}
listens_on_b() { # PORT offloaded|kernel ACTION...: as `server`
	local port=$1 how=$2
	shift 2
	talk server b "$how" listen "$IP_B" "$port" 0 "$@"
	wait_for 20 log_has server listening
}
count_a() { before=$(snmp a Tcp InSegs); }
still_a() { check_eq "$1: the kernel saw nothing of it" "$(($(snmp a Tcp InSegs) - before))" 0; }
no_last_ack() { # on b: everything that was said there is acknowledged
	! in_ns b ss -Htn state last-ack state closing state fin-wait-1 | grep -q .
}
now() { touch "$WORK/$1"; }

# ---- after a process has ended ----

listens_on_b 7000 kernel hear say end "wait=$WORK/go1" close
count_a
talk client a offloaded connect "$IP_B" 7000 0 say hear close
check "a client closes first, and ends" finish client 10
sleep 0.5
resets=$(snmp b Tcp EstabResets)
now go1
check "its server closes later" finish server 5
check "and is acknowledged" wait_for 3 no_last_ack
check_eq "not reset" "$(snmp b Tcp EstabResets)" "$resets"
still_a "a late end"

listens_on_b 7001 kernel hear say end "wait=$WORK/go2" broken
talk client a offloaded connect "$IP_B" 7001 0 say hear close
check "another client closes first, and ends" finish client 10
now go2
check "data that nobody will read is reset" finish server 5
still_a "late data"

# ---- after one was killed ----

listens_on_b 7002 kernel hear reset
talk client a offloaded connect "$IP_B" 7002 40002 say hold
check "a connection is made" wait_for 20 log_has server "done hear"
stop client KILL
check "its client is killed: the server's is reset" finish server 3
still_a "the peer's answers"

listens_on_b 7002 kernel hear say
talk client a kernel connect "$IP_B" 7002 40002 say hear
check "a socket of the kernel's has the same port at once, to the same server" finish client 5
finish server 5

listens_on_b 7003 kernel hear reset
talk client a offloaded connect "$IP_B" 7003 40003 say hold
check "another connection is made" wait_for 20 log_has server "done hear"
stop client KILL
check "killed as well" finish server 3
count_a
listens_on_b 7003 kernel hear say end
talk client a offloaded connect "$IP_B" 7003 40003 say hear close
check "an offloaded one has the same port at once" finish client 5
check "and ends well" finish server 5
still_a "the second connection"

# Its own peer's owner may be who sends that: see owner/resets.c. That minisock lives for 1.5 seconds.
talk late b kernel "$WORK/go_late" "$IP_A" 40006 7006
wait_for 20 log_has late ready
listens_on_b 7006 kernel hear reset
talk client a offloaded connect "$IP_B" 7006 40006 say hold
check "one more is made" wait_for 20 log_has server "done hear"
stop client KILL
check "and killed" finish server 3
count_a
now go_late
finish late 5
check "a SYN that nobody listens for is refused" log_has late ConnectionRefusedError
still_a "such a SYN"
# The peers of who was killed are told a second time, 0.6 s later, by segments that b's kernel counts.
segments=$(snmp b Tcp InSegs)
told_again() { [ "$(snmp b Tcp InSegs)" -ge $((segments + 2)) ]; }
wait_for 2 told_again

# ---- the same of a server ----

for next in kernel offloaded; do
	port=$([ $next = kernel ] && echo 7004 || echo 7005)
	listens_on_b "$port" offloaded hear say hold
	talk client a kernel connect "$IP_B" "$port" "4$port" say hear reset
	check "a client of an offloaded server waits" wait_for 20 log_has client "done hear"
	sleep 1 # it has a rule of its own now: after 50 to 100 ms with a core
	segments=$(snmp b Tcp InSegs)
	stop server KILL
	check "the server is killed: the client's connection is reset" finish client 3
	check_eq "and the kernel saw nothing of it" "$(snmp b Tcp InSegs)" "$segments"
	listens_on_b "$port" $next hear say end
	segments=$(snmp b Tcp InSegs)
	talk client a kernel connect "$IP_B" "$port" "4$port" say hear close
	check "a new server, $next, has the same client's next connection" finish client 5
	check "and it is whole" finish server 5
	[ $next = kernel ] || check_eq "past the kernel" "$(snmp b Tcp InSegs)" "$segments"
done

listens_on_b 7006 offloaded hear hold
talk client a kernel connect "$IP_B" 7006 0 say "wait=$WORK/go3" broken
check "a connection is new" wait_for 20 log_has client "done say"
segments=$(snmp b Tcp InSegs)
stop server KILL
now go3
check "its server is killed, perhaps before it has a rule: what comes is reset" finish client 3
check_eq "past the kernel" "$(snmp b Tcp InSegs)" "$segments"

# ---- the end ----

alone() { no_xdp a "$IF_A" && no_xdp b "$IF_B" && ! in_ns a ss -Hxl | grep -q vma/vmad; }
check "when nothing more is to be expected, vmad ends" wait_for 8 alone
done_testing
