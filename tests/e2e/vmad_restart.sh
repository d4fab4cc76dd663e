#!/usr/bin/env bash
# vmad ends and another one goes on: connections, queue pairs and frames are the clients' all the time. So is what vmad
# keeps for others: connections that wait for a process, peers that are to be told, hand-overs to the kernel.
#
#   a (10.9.0.1): clients of the kernel's, which ask and ask  ---- veth ----  b (10.9.0.2): an offloaded server
#                                                                ---- veth ----  c (10.9.1.3): one of the kernel's, which
#                                                                                shows what the machine does
# test-all: vmad is started, killed and waited for many times
# seconds: 115
. "$(dirname "$0")/../lib_programs.sh"
net_pair
ns_add c && ns_join a 10.9.1.4 c 10.9.1.3
vmad=$BUILD/bin/vmad
GAP_MS=200
# Beside this one lies no vmad, so a client starts none.
cp "$LIBRARY" "$WORK/libvma.so"
alone=${preload//"$LIBRARY"/"$WORK/libvma.so"}
[ -z "$SAN" ] || GAP_MS=2000

echo=$ROOT/tests/e2e/restart_echo.py ask=$ROOT/tests/e2e/restart_ask.py

number() { # LABEL WORD: what its last line says after that word
	sed -n "s/^asked.*\\b$2 \\([0-9]*\\).*/\\1/p;s/^$2 \\([0-9]*\\).*/\\1/p" "$WORK/$1.log" | tail -n 1
}
begin_asking() { # LABEL CONNECTIONS [new]
	rm -f "$WORK/$1.end"
	start "$1" a python3 "$ask" "$IP_B" 7000 "$2" "$WORK/$1.end" "${@:3}"
	start "$1-kernel" a python3 "$ask" 10.9.1.3 7009 "$2" "$WORK/$1.end" "${@:3}"
	wait_for 20 log_has "$1" connected && wait_for 20 log_has "$1-kernel" connected
}
end_asking() { # LABEL WHAT
	: >"$WORK/$1.end"
	finish "$1" 35
	finish "$1-kernel" 35
	check_eq "$2: no connection has ended" "$(number "$1" ended)" 0
	# Cores go away from these processes as from those of the kernel's, but not at the same time.
	check_num "$2: answers came all the time" "$(number "$1" longest)" -le $((GAP_MS + 2 * $(number "$1-kernel" longest)))
	note "$1: $(tail -n 1 "$WORK/$1.log"); of the kernel: $(tail -n 1 "$WORK/$1-kernel.log")"
}
owner_up() { # LABEL [OPTION...]
	start "$1" b "$vmad" --foreground "${@:2}" "$IF_B"
	wait_for 15 log_has "$1" "owns $IF_B"
}
lost_nothing() { # LABEL: its last line
	grep "queue pairs:" "$WORK/$1.log" | tail -n 1 | grep -q "queue pairs: 0; flows: 0;.*receive frames missing: 0 of"
}
named() { # COMM: the processes of that name in b
	local pid
	for pid in $(ip netns pids "$(ns b)"); do
		[ "$(cat "/proc/$pid/comm" 2>/dev/null)" != "$1" ] || echo "$pid"
	done
}
fdstores() {
	named vmad-fdstore
}

# ---- kill -9 ----

check "the first vmad owns the interface" owner_up first
check_eq "one process keeps what it has" "$(fdstores | wc -l)" 1
check_eq "which has no capabilities" "$(sed -n 's/^CapPrm:\t*//p' "/proc/$(fdstores)/status")" 0000000000000000
start server b env "$alone" python3 "$echo" "$IP_B" 7000
check "a server listens" wait_for 10 log_has server listening
start kernel c python3 "$echo" 10.9.1.3 7009
wait_for 10 log_has kernel listening
begin_asking one 8
program=$(ip -n "$(ns b)" -d link show "$IF_B" | sed -n 's/.*prog\/xdp id \([0-9]*\).*/\1/p')
segments=$(snmp b Tcp InSegs)
sleep 0.5
stop first KILL
sleep 1
check "a second vmad goes on" owner_up second
check "with the queue pair of the first" log_has second "goes on where another vmad has ended, with 1 queue pairs"
sleep 0.5
end_asking one "kill -9 of vmad, and another one a second later"
check_eq "the program is the same" "$(ip -n "$(ns b)" -d link show "$IF_B" |
	sed -n 's/.*prog\/xdp id \([0-9]*\).*/\1/p')" "$program"
check_eq "the kernel saw none of it" $(($(snmp b Tcp InSegs) - segments)) 0
begin_asking two 4 new
for label in 1 2 3 4 5; do
	stop second KILL
	owner_up second
	sleep 0.2
done
end_asking two "kill -9 five times, and new connections all the time"

# ---- SIGTERM, --replace ----

begin_asking three 4 new
stop second
check "a vmad that is told to end leaves the interface to the next" log_has second "leaves it to the next vmad"
owner_up third
for label in fourth fifth; do
	start $label b "$vmad" --foreground --replace "$IF_B"
	check "--replace hands over ($label)" wait_for 15 log_has $label "owns $IF_B"
done
end_asking three "SIGTERM and a new vmad, and --replace twice"
finish third 5
finish fourth 5
check_eq "still one process keeps it" "$(fdstores | wc -l)" 1

# ---- a client dies while there is no vmad ----

start other b env "$alone" python3 "$echo" "$IP_B" 7001
wait_for 10 log_has other listening
begin_asking four 4
stop fifth KILL
stop other KILL
sleep 0.3
check "a vmad that comes after a client's death" owner_up sixth
end_asking four "another client's death without a vmad"
start other b env "$alone" python3 "$echo" "$IP_B" 7001
check "finds its flow free for the next" wait_for 10 log_has other listening
begin_asking again 2
end_asking again "a server that was there all the time"

# ---- vmad stands still for longer than a client waits ----

begin_asking five 4
kill -STOP "${PID[sixth]}"
in_ns a timeout 8 python3 -c '
import socket, sys
s = socket.create_connection((sys.argv[1], 7000), 8)
s.sendall(b"word")
assert s.recv(4) == b"word"' "$IP_B" >/dev/null 2>&1
sleep 4
kill -CONT "${PID[sixth]}"
sleep 1
end_asking five "a vmad that stands still for longer than a client waits"
check "its clients come back to it" sh -c "! grep -q 'traffic is the kernel' '$WORK/server.log'"

# ---- the fdstore dies ----

kill -KILL "$(fdstores)"
check "an fdstore that was killed has a successor" wait_for 5 eval '[ -n "$(fdstores)" ]'
begin_asking six 4
stop sixth KILL
check "which knows everything" owner_up seventh
end_asking six "another fdstore, and kill -9 of vmad"

# ---- workers: one listener, several clients ----

start workers b env "$alone" python3 "$ROOT/tests/e2e/workers.py" serve "$IP_B" 7100 3 fork
check "three workers listen" wait_for 20 eval '[ $(grep -c "^worker" "$WORK/workers.log") -eq 3 ]'
ask_workers() {
	in_ns a timeout 30 python3 "$ROOT/tests/e2e/workers.py" ask "$IP_B" 7100 24 10 echo
}
check "and serve" ask_workers
segments=$(snmp b Tcp InSegs)
stop seventh KILL
owner_up ninth
check "they are one group under the next vmad" ask_workers
mapfile -t worker < <(sed -n 's/^worker \([0-9]*\)$/\1/p' "$WORK/workers.log")
stop ninth KILL
kill -KILL "${worker[0]}"
owner_up tenth
check "also if one of them dies while there is none" ask_workers
check_eq "the kernel saw none of it" $(($(snmp b Tcp InSegs) - segments)) 0
stop workers

# ---- who may have what is kept ----

ifindex=$(in_ns b cat "/sys/class/net/$IF_B/ifindex")
stop tenth KILL
in_ns b setpriv --reuid 65534 --clear-groups /usr/bin/python3 -c '
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.settimeout(5)
s.connect("\0vma/fdstore/" + sys.argv[1])
data, fds, _, _ = socket.recv_fds(s, 4096, 8)
print("given", len(data), len(fds))' "$ifindex" >"$WORK/given.log" 2>&1
check_eq "a user who is not root is given nothing" "$(cat "$WORK/given.log")" "given 0 0"
check "root's vmad goes on" owner_up eleventh
check "with all of it" log_has eleventh "goes on where"
begin_asking seven 2
end_asking seven "after that"

# ---- nothing taken over ----

stop eleventh KILL
check "a vmad that is to begin anew" owner_up twelfth --anew
check "says that it takes nothing over" log_has twelfth "is not taken over"
begin_asking eight 2
end_asking eight "the server is a client of that one"
stop twelfth KILL
owner_up seventh

# ---- the end ----

stop other; stop server
sleep 1.5
stop seventh INT
check "at the end no queue pair, flow or frame is lost" lost_nothing seventh
check "nothing is kept" wait_for 5 eval '[ -z "$(fdstores)" ]'
check "no program is left" wait_for 5 no_xdp b "$IF_B"
owner_up eighth
start server b env "$alone" python3 "$echo" "$IP_B" 7000
wait_for 10 log_has server listening
check "a server's flow is before the program" wait_for 5 has_xdp b "$IF_B"
stop eighth INT
check "SIGINT ends it for good: traffic is the kernel's at once" wait_for 3 no_xdp b "$IF_B"
stop server

# ---- peers of a dead process that are still to be told ----

told_up() { # LABEL CONNECTIONS SECONDS: an offloaded server, and peers that will say nothing
	start telling b env "$alone" python3 "$echo" "$IP_B" 7300
	wait_for 10 log_has telling listening
	start "$1" a python3 "$ROOT/tests/e2e/restart_told.py" "$IP_B" 7300 "$2" "$3"
	wait_for 20 log_has "$1" connected
	sleep 0.5 # each connection has a flow of its own
}
owner_up mourning
told_up told 64 10
in_ns b tc qdisc add dev "$IF_B" root blackhole # which takes what vmad says to them
stop telling KILL
sleep 0.3
stop mourning KILL
in_ns b tc qdisc del dev "$IF_B" root
owner_up mourning
finish told 20
check_eq "peers that the first probe did not reach are told by the next vmad" "$(number told reset)" 64
for round in 1 2 3 4 5 6; do
	told_up told$round 200 10
	stop telling KILL
	sleep "0.00$((RANDOM % 10))"
	stop mourning KILL
	owner_up mourning
	finish told$round 20
	check_eq "vmad is killed just after a process, $round: all its peers are told" "$(number told$round reset)" 200
done
stop mourning INT

# ---- connections that wait for accept in no process ----

established() { # COUNT: of the clients' connections
	in_ns a sh -c "ss -Htn state established dport = :7400" | awk -v n="$1" 'END { exit NR < n }'
}
last_worker() {
	sed -n 's/^worker \([0-9]*\)$/\1/p' "$WORK/keeping.log" | tail -n 1
}
parked() { # LABEL: 8 clients wait for accept in the only worker
	in_ns a timeout 20 python3 "$ROOT/tests/e2e/workers.py" tell "$IP_B" 7400 "$(last_worker)" "hold 20" >/dev/null
	start "$1" a python3 "$ROOT/tests/e2e/workers.py" ask "$IP_B" 7400 8 15 "${2:-echo}"
	wait_for 10 established 8
	sleep 0.3
	was=$(last_worker)
}
served() { # LABEL WHAT
	check "$2: what waited is served by the next worker" finish "$1" 20 || note "$(cat "$WORK/$1.log")"
	check_num "$2: all of it" "$(awk -v pid="$(last_worker)" '$1 == "served" && $2 == pid { print $3 }' "$WORK/$1.log")" -eq 8
}
# One second after a worker has died its parent forks another.
owner_up keeping-vmad
start keeping b env "$alone" python3 "$ROOT/tests/e2e/workers.py" serve "$IP_B" 7400 1 fork 2
check "a worker listens" wait_for 20 eval '[ -n "$(last_worker)" ]'
sleep 2
passive=$(snmp b Tcp PassiveOpens)

parked kept0
kill -KILL "$was"
sleep 0.3
stop keeping-vmad KILL
owner_up keeping-vmad
sleep 0.2
stop keeping-vmad
owner_up keeping-vmad
start replacing b "$vmad" --foreground --replace "$IF_B"
wait_for 15 log_has replacing "owns $IF_B"
finish keeping-vmad 5
served kept0 "kill -9, SIGTERM and --replace after a worker's death"
stop replacing KILL
owner_up keeping-vmad
sleep 0.5

parked kept1 greeting
stop keeping-vmad KILL
kill -KILL "$was"
sleep 0.3
owner_up keeping-vmad
served kept1 "a worker's death without a vmad"
sleep 0.5

for round in 1 2 3 4; do
	parked around$round
	kill -KILL "$was"
	sleep "0.00$((RANDOM % 10))"
	stop keeping-vmad KILL
	owner_up keeping-vmad
	served around$round "kill -9 just after a worker's death, $round"
	sleep 0.5
done
for round in 1 2 3 4; do
	parked given$round
	kill -KILL "$was"
	wait_for 10 eval '[ "$(last_worker)" != "$was" ]'
	sleep "0.0$((RANDOM % 90 + 10))"
	stop keeping-vmad KILL
	owner_up keeping-vmad
	served given$round "kill -9 while the next worker gets what waited, $round"
	sleep 0.5
done
check_eq "the kernel has accepted none itself" $(($(snmp b Tcp PassiveOpens) - passive)) 0

parked closed
kill -KILL "$was"
sleep 0.3
stop keeping-vmad KILL
stop keeping KILL # nobody has the listener any more
owner_up keeping-vmad
finish closed 20
check_eq "the last listener is closed without a vmad: all that waited is reset" \
	"$(grep -c ConnectionReset "$WORK/closed.log")" 8
stop keeping-vmad INT

# ---- connections that are just being handed over to the kernel ----

HANDOVER_SECONDS=${HANDOVER_SECONDS:-10}
if [ -z "$SAN" ]; then # whose runtimes need files that such a user cannot read
	chmod a+rx "$WORK"
	cp "$BUILD/libvma.so" "$WORK/open.so" && chmod 755 "$WORK/open.so"
	owner_up giving --allow-user nobody
	start giver b setpriv --reuid nobody --clear-groups env "LD_PRELOAD=$WORK/open.so" VMA_TRACELEVEL=WARNING \
		/usr/bin/python3 "$ROOT/tests/e2e/restart_give.py" serve "$IP_B" 7200
	check "a server without capabilities gives its connections to children" wait_for 10 log_has giver listening
	passive=$(snmp b Tcp PassiveOpens)
	start taker a python3 "$ROOT/tests/e2e/restart_give.py" ask "$IP_B" 7200 4 "$WORK/taker.end"
	until=$((SECONDS + HANDOVER_SECONDS)) killed=0
	while [ $SECONDS -lt $until ]; do
		sleep "0.$((RANDOM % 300 + 100))"
		stop giving KILL
		owner_up giving --allow-user nobody || break
		killed=$((killed + 1))
	done
	sleep 0.5
	: >"$WORK/taker.end"
	finish taker 40
	note "kill -9 $killed times: $(tail -n 1 "$WORK/taker.log")"
	check_num "vmad was killed in the middle of hand-overs" "$killed" -ge 5
	check_num "while there were many" "$(number taker asked)" -ge 100
	check_eq "no connection that was being handed over is lost" "$(number taker failed)" 0
	check_eq "the kernel has accepted none itself" $(($(snmp b Tcp PassiveOpens) - passive)) 0
	stop giver
	sleep 1.5
	stop giving INT
	check "and none of vmad's processes is left" wait_for 5 eval '[ -z "$(named vmad-repair)$(fdstores)" ]'
fi
done_testing
