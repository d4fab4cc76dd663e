#!/usr/bin/env bash
# Many processes on one interface: vmad, its clients, and what is left when any of them is killed.
#
#   a (kernel sockets: ping) ---- veth, one queue ---- b: vmad, clients that echo through queue pairs of their own
# test-all: many processes start, end and are waited for
# seconds: 80
. "$(dirname "$0")/../lib.sh"
need_xdp
net_pair
client=$BUILD/components/nic/test/priv_xdp_client
vmad=$BUILD/bin/vmad
conformance=$BUILD/test/nic/test/test_conformance
nobody=65534
# Under ThreadSanitizer: a forked child of a program with threads starts threads of its own here.
export TSAN_OPTIONS=die_after_fork=0${TSAN_OPTIONS:+:$TSAN_OPTIONS}

serve() { # LABEL PORT OPTION...: a client in b, ready
	local label=$1 port=$2
	shift 2
	start "$label" b "$client" serve "$IF_B" "$IP_B" "$port" "$@"
	wait_for 10 log_has "$label" "^ready $port "
}

owner_up() { # OPTION...
	start vmad b "$vmad" --foreground "$@" "$IF_B"
	wait_for 5 log_has vmad "owns $IF_B"
}

# Pings every PORT at once; $WORK/ping.log has a line each.
ping() { # SECONDS PORT...
	in_ns a "$client" ping "$IP_B" "$@" >"$WORK/ping.log"
}

all_back() { # PORT...: every datagram of the last ping came back
	local port
	for port in "$@"; do
		awk -v p="$port" '$1 == p && $3 > 0 && $3 == $5 { ok = 1 } END { exit !ok }' "$WORK/ping.log" ||
			{ cat "$WORK/ping.log"; return 1; }
	done
}

gap() { # PORT: ms without an echo; a port that never answered was away for ever
	awk -v p="$1" '$1 == p { print ($5 > 0 ? $7 : 999999) }' "$WORK/ping.log"
}

udp_seen() { # what the kernel of b counted of UDP
	echo "$(snmp b Udp InDatagrams) $(snmp b Udp NoPorts)"
}

pid_of_ready() { # LABEL PORT
	awk -v p="$2" '$1 == "ready" && $2 == p { print $4 }' "$WORK/$1.log"
}

no_vmad() {
	! in_ns b sh -c 'grep -q "@vma/vmad/" /proc/net/unix'
}

vmad_pid() { # of the one that was started on demand
	local pid
	for pid in $(ip netns pids "$(ns b)"); do
		[ "$(cat "/proc/$pid/comm" 2>/dev/null)" != vmad ] || echo "$pid"
	done
}

conforms() { # [OWNER]; with as many descriptors as most systems give
	VMA_CONFORMANCE="xdp:$IF_A xdp:$IF_B" VMA_CONFORMANCE_OWNER=${1:-} \
		VMA_CONFORMANCE_NETNS="/run/netns/$(ns a) /run/netns/$(ns b)" CMOCKA_MESSAGE_OUTPUT=TAP \
		prlimit --nofile=1024 "$conformance"
}

# ---- one process ----

check "the conformance suite holds with the owner in the process" conforms
serve self 7001
check "without vmad, one process has the interface" ping 0.3 7001
start second b "$client" serve "$IF_B" "$IP_B" 7002
finish second 5
check "a second process is refused" log_has second 'open 7002: Device or resource busy'
check "and is told that vmad is the way to share" log_has second 'let vmad own it'
stop self KILL
check "no program is left after kill -9 of an owner in the process" wait_for 2 no_xdp b "$IF_B"

# ---- sharing ----

owner_up
status_of_vmad() { sed -n "s/^$1:\t*//p" "/proc/${PID[vmad]}/status"; }
# CAP_DAC_READ_SEARCH, FOWNER, NET_BIND_SERVICE, NET_ADMIN, NET_RAW, IPC_LOCK, PERFMON, BPF
check_eq "vmad has given up the capabilities that it does not need" \
	"$((0x$(status_of_vmad CapPrm) & ~(1 << 2 | 1 << 3 | 1 << 10 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 38 | 1 << 39)))" 0
check_eq "for good" "$(status_of_vmad NoNewPrivs)" 1
check "vmad alone attaches no program" no_xdp b "$IF_B"
serve one 7001 vmad
check "the first flow attaches it" has_xdp b "$IF_B"
serve two 7002 vmad child=7003,$nobody
check "a forked child that became nobody is a client of its own" wait_for 5 log_has two '^ready 7003 '
check "its parent's queue pair is of no use to it" log_has two '^inherited 7003: ok'
before=$(udp_seen)
ping 1.5 7001 7002 7003
check "two processes and the child exchange packets at the same time" all_back 7001 7002 7003
check_eq "the kernel of b saw none of them" "$(udp_seen)" "$before"

# ---- who may be a client ----

start stranger b "$client" serve "$IF_B" "$IP_B" 7004 vmad user=$nobody
finish stranger 5
check "a user without the right is refused" log_has stranger 'open 7004: Operation not permitted'
check "and is told what is missing" log_has stranger 'CAP_NET_RAW.*--allow-user'
check "vmad says so, too" log_has vmad "user $nobody refused"
start nopass b "$client" serve "$IF_B" "$IP_B" 7005 vmad nopass child=7006,$nobody
check "so is a child whose parent does not pass its right on" wait_for 5 log_has nopass 'open 7006: Operation not permitted'
stop nopass
start own b "$client" serve "$IF_B" "$IP_B" 7005 vmad sameuser child=7006,$nobody
check "so is one that has changed its user, if its parent passes it on to its own only" wait_for 5 log_has own \
	'open 7006: Operation not permitted'
stop own

# ---- clients die ----

in_ns a "$client" ping "$IP_B" 2 7001 7002 7003 >"$WORK/ping.log" &
pinging=$!
sleep 0.7
stop one KILL
wait $pinging
check "kill -9 of a client disturbs no other" all_back 7002 7003
serve again 7001 vmad
check "its flow is free at once" log_has again '^flow 7001: ok'

in_ns a "$client" ping "$IP_B" 2 7001 7003 >"$WORK/ping.log" &
pinging=$!
sleep 0.7
child=$(pid_of_ready two 7003)
stop two KILL
wait $pinging
check "kill -9 of a parent leaves its forked child at work" all_back 7001 7003
serve forked 7002 vmad
check "and frees the parent's flow" log_has forked '^flow 7002: ok'
kill -KILL "$child"

serve leaky 7008 vmad leak
leaked=$(cat "/proc/${PID[leaky]}/task/${PID[leaky]}/children")
stop leaky KILL
check "a clone behind libc's back that keeps every fd does not keep the flow of its dead parent" serve leaky2 7008 vmad
kill -KILL $leaked 2>/dev/null
stop leaky2

for i in $(seq 12); do
	serve "mayfly" 7009 vmad hoard || break
	ping 0.15 7009
	stop mayfly KILL
done
check_eq "clients that hoard and are killed, twelve in a row, are all served" "$i" 12
serve after 7009 vmad
ping 1 7001 7002 7009
check "and leave no frame missing to the others" all_back 7001 7002 7009

start hoarder b "$client" serve "$IF_B" "$IP_B" 7010 vmad hoard
wait_for 5 log_has hoarder '^ready 7010'
ping 1.5 7010 7010 7010 7010 7010 7010 7010 7001
check "one that hoards what it receives does not starve the others" all_back 7001
stop hoarder

stop again; stop forked; stop after
check "the last flow's end detaches the program" wait_for 2 no_xdp b "$IF_B"
check "vmad stays, and ends cleanly on SIGTERM" stop vmad

# ---- named users ----

owner_up --allow-user nobody
check "a user named by --allow-user is a client" serve named 7011 vmad user=$nobody
stop named; stop vmad
owner_up --allow-group nogroup
check "so is a group's" serve grouped 7011 vmad user=$nobody
stop grouped; stop vmad

# ---- the owner dies; started on demand ----

check "a client starts vmad on demand" serve first 7021 vmad start="$vmad"
serve third 7023 vmad start="$vmad" child=7024,$nobody
wait_for 5 log_has third '^ready 7024 '
check_eq "the program that started it has no child" "$(cat "/proc/${PID[first]}/task/${PID[first]}/children")" ""
start plain b "$client" kernel "$IP_B" 7030
wait_for 2 log_has plain ready
in_ns a "$client" ping "$IP_B" 3 7021 7023 7024 7030 >"$WORK/ping.log" &
pinging=$!
sleep 0.8
program() { ip -n "$(ns b)" -d link show "$IF_B" | sed -n 's/.*prog\/xdp id \([0-9]*\).*/\1/p'; }
before=$(program)
killed=$(vmad_pid)
kill -KILL "$killed"
another_vmad() { [ -n "$(vmad_pid)" ] && [ "$(vmad_pid)" != "$killed" ]; }
check "after kill -9 of vmad a client starts another one" wait_for 5 another_vmad
wait $pinging
check_eq "its program has stayed" "$(program)" "$before"
check "plain traffic flows through it all" all_back 7030
for port in 7021 7023 7024; do
	label=first
	[ $port = 7021 ] || label=third
	check "client $port keeps its queue pair" sh -c "! grep -q '^rebound $port' '$WORK/$label.log'"
	check_num "and $port was never away for 500 ms longer than the kernel's" "$(gap $port)" -lt $((500 + $(gap 7030)))
done

# With nothing left: a vmad without its fdstore is the end of all that they had.
in_ns a "$client" ping "$IP_B" 3 7021 7023 7024 7030 >"$WORK/ping.log" &
pinging=$!
sleep 0.8
fdstore_pid() {
	local pid
	for pid in $(ip netns pids "$(ns b)"); do
		[ "$(cat "/proc/$pid/comm" 2>/dev/null)" != vmad-fdstore ] || echo "$pid"
	done
}
before=$(program)
no_program() { [ -n "$before" ] && ! "$(command -v bpftool || echo /usr/sbin/bpftool)" prog show id "$before"; }
kill -STOP "$(vmad_pid)" # it would see to another one
kill -KILL "$(fdstore_pid)"
kill -KILL "$(vmad_pid)"
# On the interface there is another one soon: the next vmad's.
check "after kill -9 of vmad and its fdstore the program is gone" wait_for 5 no_program
wait $pinging
check "plain traffic flows through it all" all_back 7030
for port in 7021 7023 7024; do
	label=first
	[ $port = 7021 ] || label=third
	check "client $port is offloaded again" log_has $label "^rebound $port: after"
	# About 0.5 s on a machine that has nothing else to do; the next vmad is asked for at growing intervals, up to 250 ms.
	check_num "and $port was away for less than four seconds more than the kernel's" "$(gap $port)" -lt $((4000 + $(gap 7030)))
done
before=$(udp_seen)
ping 0.5 7021 7023 7024
check "all of them exchange packets under the new vmad" all_back 7021 7023 7024
check_eq "past the kernel" "$(udp_seen)" "$before"
kill -STOP "$(vmad_pid)"
ping 0.3 7021 7024
check "a vmad that stands still holds nobody up" all_back 7021 7024
kill -CONT "$(vmad_pid)"
child=$(pid_of_ready third 7024)
stop first; stop third
kill -KILL "$child"
check "a vmad started on demand ends when its last client is gone" wait_for 4 no_vmad
stop plain

# ---- several shadows of one flow ----

serve members 7025 vmad start="$vmad" shadow members=10
ping 1.3 7025
check "none of a flow's eleven shadows is a conflict" all_back 7025
kill -STOP "$(vmad_pid)"
kill -KILL "$(fdstore_pid)"
kill -KILL "$(vmad_pid)"
check "after kill -9 of vmad and its fdstore their flow is offloaded again" wait_for 5 log_has members '^rebound 7025'
ping 1.3 7025
check "with all of them known to the new vmad" all_back 7025
check "and not taken back" sh -c "! grep -q '^revoked' '$WORK/members.log'"
stop members
check "that vmad ends, too" wait_for 4 no_vmad

# ---- two that want the same ----

times() { # LABEL REGEX
	grep -cE "$2" "$WORK/$1.log"
}

owner_up
serve red 7026 vmad shadow again
check "the first one gets the flow" log_has red '^flow 7026: ok'
serve blue 7026 vmad shadow again
check "a second one is refused" log_has blue '^refused 7026'
check "and the first one gives it up, at once" wait_for 0.3 log_has red '^revoked 7026'
check "vmad says so" log_has vmad '7026 goes back to the kernel: two'
sleep 4
check_eq "while both go on asking neither gets it" "$(times red '^flow') $(times blue '^flow')" "1 0"
check "although they ask" wait_for 10 eval '[ $(times red "^refused") -ge 4 ]'
check_eq "and did not meanwhile" "$(times red '^flow') $(times blue '^flow')" "1 0"
stop blue KILL
check "when one of them is killed the other gets it back" wait_for 1.5 eval '[ $(times red "^flow 7026: ok") -eq 2 ]'
ping 0.3 7026
check "and packets" all_back 7026
serve blue 7026 vmad shadow again
check "when the first one stops asking" wait_for 1 log_has red '^revoked 7026'
kill -STOP "${PID[red]}"
sleep 2
check_eq "the other does not get it for three seconds" "$(times blue '^flow')" 0
check "and then not either, while the first one's socket is there" sh -c "sleep 2; ! grep -q '^flow' '$WORK/blue.log'"
kill -CONT "${PID[red]}"
stop red
check "only when that is closed" wait_for 1.5 log_has blue '^flow 7026: ok'
stop blue; stop vmad

# ---- kernel sockets of no client ----

start kernel_sock b "$client" kernel "$IP_B" 7040
wait_for 2 log_has kernel_sock ready
start robber b "$client" serve "$IF_B" "$IP_B" 7040
finish robber 5
check "a port that a kernel socket has is not offloaded" log_has robber 'flow 7040: Address already in use'
check "and the line names it" log_has robber '7040 stays with the kernel: another socket \(inode [0-9]+'
stop kernel_sock
serve shadowed 7041 shadow
sleep 1.2
ping 0.3 7041
check "a flow's own shadow is no conflict" all_back 7041
stop shadowed
serve late 7042
ping 0.3 7042
check "a free port is offloaded" all_back 7042
start kernel_sock b "$client" kernel "$IP_B" 7042
check "until a kernel socket wants it" wait_for 3 log_has late '^revoked 7042'
ping 0.3 7042
check "which then gets the packets" all_back 7042
stop kernel_sock; stop late

# ---- little memory ----

start small b prlimit --memlock=8388608 capsh --drop=cap_ipc_lock -- -c "exec $client serve $IF_B $IP_B 7050"
check "RLIMIT_MEMLOCK of 8 MB without CAP_IPC_LOCK suffices" wait_for 5 log_has small '^ready 7050 '
check "with one line that names it" log_has small 'because of RLIMIT_MEMLOCK'
ping 0.3 7050
check "and packets flow" all_back 7050
stop small

# ---- the suite over vmad; then two device queues ----

owner_up
start vmad_a a "$vmad" --foreground "$IF_A"
wait_for 5 log_has vmad_a "owns $IF_A"
check "the conformance suite holds over vmad" conforms vmad
stop vmad; stop vmad_a
ns_add c && ns_add d && ns_join c 10.9.1.1 d 10.9.1.2 2
check "it holds on two device queues" env VMA_CONFORMANCE="xdp:$IF_C xdp:$IF_D" CMOCKA_MESSAGE_OUTPUT=TAP \
	VMA_CONFORMANCE_NETNS="/run/netns/$(ns c) /run/netns/$(ns d)" "$conformance"
done_testing
