#!/usr/bin/env bash
# xdp where things run short, change or end at the wrong moment: a sleeper must wake, a neighbour must not suffer.
#
#   a (kernel socket: exchange) ---- veth, one queue ---- b: vmad, and a client whose only thread sleeps for ever
# seconds: 25
. "$(dirname "$0")/../lib.sh"
need_xdp
net_pair
sleeper=$BUILD/components/nic/test/priv_xdp_sleep
client=$BUILD/components/nic/test/priv_xdp_client
vmad=$BUILD/bin/vmad

serve() { # LABEL PORT [FRESH]: a sleeping client, ready
	start "$1" b "$sleeper" serve "$IF_B" "$IP_B" "$2" "$vmad" ${3:+"$3"}
	wait_for 10 log_has "$1" '^ready'
}

exchange() { # PORT COUNT [TIMEOUT_MS]: what is not answered within that (100) is sent again
	in_ns a "$sleeper" exchange "$IP_B" "$@" | tee "$WORK/exchange.out"
	return "${PIPESTATUS[0]}"
}

signal() { # SIGNAL NAME: to the process of b
	local pid
	for pid in $(ip netns pids "$(ns b)"); do
		[ "$(cat "/proc/$pid/comm" 2>/dev/null)" != "$2" ] || kill "-$1" "$pid"
	done
}
# And what it would leave: clients are to lose everything.
kill_vmad() {
	signal STOP vmad # it would see to another fdstore
	signal KILL vmad-fdstore
	signal KILL vmad
}

rebounds() { # LABEL COUNT
	[ "$(grep -c '^rebound' "$WORK/$1.log")" -ge "$2" ]
}

# ---- arm, sleep, wake ----

serve one 7001
check "five thousand datagrams, each at a random moment of arming, wake their sleeper" exchange 7001 5000 2000
check "and none of them only by the next one" grep -q 'resent 0$' "$WORK/exchange.out"
serve fresh 7002 20
check "so they do where the first arm is often a new one" exchange 7002 1000
stop fresh
for i in 1 2 3 4 5; do
	kill_vmad
	check "a sleeper is bound again after the end of vmad number $i" wait_for 10 rebounds one $i || break
	check "a sleeper of before the end of vmad number $i wakes for what comes after" exchange 7001 50
done
(for i in 1 2 3; do sleep 0.4; kill_vmad; done) &
killer=$!
check "vmad ends three times in the middle of arming, and no sleeper is forgotten" exchange 7001 15000
wait $killer
stop one
serve late 7004 late
kill_vmad
check "who has armed is bound again" wait_for 10 rebounds late 1
check "who has armed, and gets to its sleep only after a rebind, wakes too" exchange 7004 50
stop late
no_vmad() { ! in_ns b grep -q "@vma/vmad/" /proc/net/unix; }
check "without clients vmad ends" wait_for 4 no_vmad

# ---- what runs short ----

start vmad b "$vmad" --foreground "$IF_B"
wait_for 5 log_has vmad "owns $IF_B"
check "a queue pair that fails for want of an fd says so" in_ns b "$sleeper" crowded "$IF_B" "$IP_B" 7003
cp "$WORK/check.out" "$WORK/crowded.out"
check "... by its name" grep -q 'crowded: Too many open files' "$WORK/crowded.out"
check "and the one before it is kept" grep -q 'first: kept' "$WORK/crowded.out"

# ---- what changes ----

ip -n "$(ns a)" link set "$IF_A" mtu 1400
ip -n "$(ns b)" link set "$IF_B" mtu 1400
start narrow b "$client" serve "$IF_B" "$IP_B" 7005 vmad
check "a queue pair knows the MTU of its day, not that of vmad's start" wait_for 5 log_has narrow 'mtu 1400'
stop vmad INT
ip -n "$(ns a)" link set "$IF_A" mtu 1300
ip -n "$(ns b)" link set "$IF_B" mtu 1300
start vmad b "$vmad" --foreground "$IF_B"
check "and after a rebind that of then" wait_for 5 log_has narrow '^rebound 7005.*mtu 1300'
stop narrow

stop vmad
start vmad b prlimit --nofile=24:1024 "$vmad" --foreground "$IF_B"
wait_for 5 log_has vmad "owns $IF_B"
for i in 1 2 3 4 5 6 7 8; do
	start "many$i" b "$client" serve "$IF_B" "$IP_B" $((7100 + i)) vmad
	wait_for 5 log_has "many$i" '^ready' || break
done
check "vmad serves more clients than the soft limit of files that it was started with allows" log_has many8 '^ready'
for i in 1 2 3 4 5 6 7 8; do stop "many$i"; done

stop vmad

ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; } # of 10 ms; times of the program and of the kernel for it

# Connections that say nothing; vmad forgets them after five seconds.
start vmad b prlimit --nofile=33:33 "$vmad" --foreground "$IF_B"
wait_for 5 log_has vmad "owns $IF_B"
start strangers b python3 -c "
import socket, time
strangers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for i in range(8)]
for one in strangers:
    one.connect(b'\\0vma/vmad/%d' % socket.if_nametoindex('$IF_B'))
time.sleep(60)"
check "a vmad without a descriptor for another client says so" wait_for 5 log_has vmad 'new clients have to wait'
before=$(ticks "${PID[vmad]}")
sleep 2
check_num "and sleeps" $(($(ticks "${PID[vmad]}") - before)) -lt 40
check "and does not take its interface for gone" alive vmad
stop strangers
start patient b "$client" serve "$IF_B" "$IP_B" 7006 vmad
check "and takes clients when others have left" wait_for 5 log_has patient '^ready'
stop patient
stop vmad

# ---- what is not to be had again ----

start vmad b "$vmad" --foreground "$IF_B"
wait_for 5 log_has vmad "owns $IF_B"
start hopeful b "$sleeper" serve "$IF_B" "$IP_B" 7006 /nonexistent
wait_for 10 log_has hopeful '^ready'
stop vmad INT
start miser b "$sleeper" refuse "$IF_B" 3
check "who has lost its queue pair asks a new vmad again and again" wait_for 5 log_has miser '^refused'
refusals() { grep -c '^refused' "$WORK/miser.log"; }
before=$(ticks "${PID[hopeful]}") asked=$(refusals) begun=${EPOCHREALTIME/./}
sleep 1
check_num "and sleeps in between" $(($(ticks "${PID[hopeful]}") - before)) -lt 20
more=$(($(refusals) - asked))
check_num "a tenth of a second each time" $more -le $(((${EPOCHREALTIME/./} - begun) / 100000 + 3))
stop miser
stop hopeful

# ---- what is gone ----

ns_add e && ns_add f && ns_join e 10.9.2.1 f 10.9.2.2
start orphan f "$sleeper" serve "$IF_F" "$IP_F" 7006 "$vmad"
wait_for 10 log_has orphan '^ready'
ip -n "$(ns f)" link del "$IF_F"
ip -n "$(ns f)" link add "$IF_F" type veth peer name other0
ip -n "$(ns f)" link set "$IF_F" up
sleep 2.5
vmads() { ip netns pids "$(ns f)" | while read -r pid; do cat "/proc/$pid/comm"; done | grep -c vmad; }
check_eq "no vmad is started on another interface of the same name" "$(vmads)" 0
stop orphan

# ---- what cannot be had ----

ns_add c && ns_add d && ns_join c 10.9.1.1 d 10.9.1.2 100
check "an interface with too many queues is refused" in_ns d "$sleeper" refused "$IF_D"
cp "$WORK/check.out" "$WORK/refused.out"
check "and nobody's fd is closed for that" grep -q 'not supported, input open' "$WORK/refused.out"
done_testing
