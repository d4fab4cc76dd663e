#!/usr/bin/env bash
# net follows the kernel: routes, rules, addresses, links and neighbours change while paths are held, and each lookup
# gives what a kernel socket gives. The program prints a path's new state after each change.
# seconds: 20
. "$(dirname "$0")/../lib.sh"
need_net
PRIV=$BUILD/components/net/test/priv_net

#   a  veth_a1 10.9.0.1 ---- 10.9.0.2 veth_b2  b  veth_b6 10.9.2.6 ---- 10.9.2.7 veth_c7  c   (mtu 1200)
#      veth_a3 10.9.1.3 ---- 10.9.1.4 veth_b4
ns_add a && ns_add b && ns_add c && ns_join b 10.9.2.6 c 10.9.2.7 1 1200 &&
	ns_join a 10.9.1.3 b 10.9.1.4 1 1400 && ns_join a 10.9.0.1 b 10.9.0.2 || cannot_run "the namespaces cannot be joined"
ip_a() { ip -n "$(ns a)" "$@"; }
ip_b() { ip -n "$(ns b)" "$@"; }
index() { in_ns a cat "/sys/class/net/$1/ifindex"; }
state() { ip_a neigh show "$1" dev "$2" | awk '{ print $NF }'; }
one=$(index veth_a1) three=$(index veth_a3)

# Neighbours are found by ARP here, quickly.
for i in veth_a1 veth_a3; do
	in_ns a sh -c "cd /proc/sys/net/ipv4/neigh/$i && echo 200 >retrans_time_ms && echo 1 >delay_first_probe_time"
done
ip_a neigh flush nud permanent
ip_b route add 10.50.0.0/16 dev lo # what is routed through b ends there
in_ns b sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'

last() { # PROCESS DST: its newest line
	grep "^$2: " "$WORK/$1.log" | tail -n 1
}
says() { # PROCESS DST REGEX
	last "$1" "$2" | grep -qE -- "$3"
}
becomes() { # SENTENCE PROCESS DST REGEX
	if wait_for 5 says "$2" "$3" "$4"; then ok "$1"; else not_ok "$1" "last: $(last "$2" "$3"), wanted $4"; fi
}

# ---- interfaces ----

in_ns a "$PRIV" links >"$WORK/links"
check "an interface is told with index, MTU, MAC, state, kind and address" \
	grep -q "^veth_a3 $three 1400 $(in_ns a cat /sys/class/net/veth_a3/address) running kind=veth master=0 lower=0 10.9.1.3/24" "$WORK/links"

# ---- resolution ----

start receiver b python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 7000))
print("bound", flush=True)
print(s.recv(100).decode(), flush=True)
'
wait_for 10 log_has receiver bound
check "a path becomes ready after the first datagram through the kernel" in_ns a "$PRIV" first 10.9.0.2 7000
check "that datagram is not lost" wait_for 5 log_has receiver first
stop receiver

ip_a neigh flush all
start root a "$PRIV" watch resolve probe 10.9.0.2
becomes "with privileges the kernel resolves without a packet of ours" root 10.9.0.2 "unicast via 10.9.0.2 dev $one nic $one vlan 0 src 10.9.0.1 mtu 1500 from $(in_ns a cat /sys/class/net/veth_a1/address) to $MAC_B: ready"
stop root
ip_a neigh flush all
before=$(snmp b Udp NoPorts)
start nobody a setpriv --reuid=65534 --regid=65534 --clear-groups "$PRIV" watch resolve 10.9.0.2
becomes "an ordinary user resolves too" nobody 10.9.0.2 "to $MAC_B: ready"
check_num "by one empty datagram" $(($(snmp b Udp NoPorts) - before)) -eq 1
stop nobody

start missing a "$PRIV" watch resolve 10.9.0.99
becomes "a neighbour that does not answer fails" missing 10.9.0.99 "failed"
ip_b addr add 10.9.0.99/32 dev veth_b2
ip_a neigh del 10.9.0.99 dev veth_a1
in_ns a bash -c 'echo x >/dev/udp/10.9.0.99/9'
becomes "and is ready as soon as it does" missing 10.9.0.99 "to $MAC_B: ready"
stop missing

# ---- neighbours, as VMA_NEIGH_* say ----

cat >"$WORK/arps.py" <<-'end'
	import socket, sys
	s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0806))
	print("hears", flush=True)
	while True:
	    data, name = s.recvfrom(100)
	    if data[6:8] == b"\0\1":
	        print("all" if name[2] == socket.PACKET_BROADCAST else "one", socket.inet_ntoa(data[24:28]), flush=True)
end
start arps b python3 "$WORK/arps.py"
wait_for 10 log_has arps hears
asked() { # ADDRESS: "one one all"
	grep " $1$" "$WORK/arps.log" | cut -d' ' -f1 | tr '\n' ' '
}
asked_like() { asked "$1" | grep -qE -- "^$2"; }

ip_a neigh replace 10.9.0.98 lladdr "$MAC_B" dev veth_a1 nud stale
start arping a "$PRIV" watch probe arps=2 delay=100 10.9.0.98
check "a stale neighbour is asked itself, so often, then all are, then the kernel asks" wait_for 10 asked_like 10.9.0.98 "one one all .*one"
stop arping
ip_a neigh replace 10.9.0.2 lladdr "$MAC_B" dev veth_a1 nud stale
start arping a "$PRIV" watch probe arps=2 delay=3000 10.9.0.2
check "one that answers is confirmed" wait_for 2.5 eval '[ "$(state 10.9.0.2 veth_a1)" = REACHABLE ]'
check "after one request" wait_for 5 eval '[ "$(asked 10.9.0.2)" = "one " ]'
stop arping
start retrying a "$PRIV" watch resolve retries=2 10.9.0.97
becomes "a resolution that fails is begun again, and fails at last" retrying 10.9.0.97 "failed"
check "after so many more requests" wait_for 5 eval '[ "$(asked 10.9.0.97)" = "all all all all all all all all all " ]'
stop retrying
stop arps

# ---- a neighbour that goes stale while it is in use ----

for user in 0 65534; do
	in_ns a sh -c 'echo 2400 >/proc/sys/net/ipv4/neigh/veth_a1/base_reachable_time_ms'
	ip_a neigh flush all
	start holder a setpriv --reuid=$user --regid=$user --clear-groups "$PRIV" watch resolve probe 10.9.0.2
	wait_for 20 eval '[ "$(grep -c "to be confirmed" "$WORK/holder.log")" -ge 2 ]'
	check_num "user $user has a stale neighbour confirmed, again and again" "$(grep -c 'to be confirmed' "$WORK/holder.log")" -ge 2
	check "without being in doubt in between (user $user)" eval '! sed 1,/watching/d "$WORK/holder.log" | sed "/ready/,\$!d" | grep -v ready'
	stop holder
done
in_ns a sh -c 'echo 30000 >/proc/sys/net/ipv4/neigh/veth_a1/base_reachable_time_ms'

# ---- changes while paths are held ----

start w a "$PRIV" watch probe resolve 10.9.0.2 10.50.0.1 10.9.1.4
wait_for 5 log_has w watching
becomes "without a route the kernel's errno" w 10.50.0.1 "error: Network is unreachable"
ip_a route add 10.50.0.0/16 via 10.9.0.2
becomes "a new route is taken" w 10.50.0.1 "via 10.9.0.2 dev $one .* to $MAC_B: ready"
ip_a route replace 10.50.0.0/16 via 10.9.1.4
becomes "a replaced route is followed to the other interface" w 10.50.0.1 "via 10.9.1.4 dev $three nic $three vlan 0 src 10.9.1.3 mtu 1400 .*: ready"
ip_a route add 10.50.0.0/24 via 10.9.0.2 mtu 1300
becomes "a longer prefix wins, with its MTU" w 10.50.0.1 "via 10.9.0.2 .* mtu 1300 .*: ready"
ip_a route del 10.50.0.0/24
becomes "and is left again" w 10.50.0.1 "via 10.9.1.4"
ip_a route add 10.50.0.0/16 via 10.9.0.2 table 100
ip_a rule add to 10.50.0.1 lookup 100
becomes "a policy rule is followed" w 10.50.0.1 "via 10.9.0.2"
ip_a rule del to 10.50.0.1 lookup 100
becomes "and its removal" w 10.50.0.1 "via 10.9.1.4"
ip_a nexthop add id 5 via 10.9.0.2 dev veth_a1
ip_a route replace 10.50.0.0/16 nhid 5
becomes "a route through a next hop object" w 10.50.0.1 "via 10.9.0.2"
ip_a nexthop replace id 5 via 10.9.1.4 dev veth_a3
becomes "whose replacement is followed" w 10.50.0.1 "via 10.9.1.4"
for kind in unreachable:No.route.to.host prohibit:Permission.denied blackhole:Invalid.argument; do
	ip_a route replace "${kind%%:*}" 10.50.0.0/16
	becomes "a route that is ${kind%%:*}" w 10.50.0.1 "error: ${kind##*:}"
done
ip_a route del 10.50.0.0/16
becomes "no route again" w 10.50.0.1 "error: Network is unreachable"

ip_a link set veth_a1 mtu 1450
becomes "the interface's MTU" w 10.9.0.2 "mtu 1450 .*: ready"
ip_a link set veth_a1 mtu 1500
becomes "and back" w 10.9.0.2 "mtu 1500 .*: ready"
ip_a neigh replace 10.9.0.2 lladdr 02:00:00:00:09:09 dev veth_a1 nud permanent
becomes "the neighbour's MAC" w 10.9.0.2 "to 02:00:00:00:09:09: ready"
ip_a neigh replace 10.9.0.2 lladdr "$MAC_B" dev veth_a1 nud reachable
becomes "and back" w 10.9.0.2 "to $MAC_B: ready"
ip_a link set veth_a1 address 02:00:00:00:0a:0a
becomes "our own MAC" w 10.9.0.2 "from 02:00:00:00:0a:0a to $MAC_B: ready"
ip_a addr add 10.9.0.7/24 dev veth_a1
ip_a addr del 10.9.0.1/24 dev veth_a1
ip_a addr show dev veth_a1 | grep -q 10.9.0.7 || ip_a addr add 10.9.0.7/24 dev veth_a1
becomes "our own address" w 10.9.0.2 "src 10.9.0.7 .*: ready"
ip_a addr add 10.9.0.1/24 dev veth_a1
ip_a addr del 10.9.0.7/24 dev veth_a1
ip_a addr show dev veth_a1 | grep -q 10.9.0.1/ || ip_a addr add 10.9.0.1/24 dev veth_a1
becomes "and back" w 10.9.0.2 "src 10.9.0.1 .*: ready"

ip_a link set veth_a1 down
becomes "an interface that is down has no route" w 10.9.0.2 "error: Network is unreachable"
ip_a link set veth_a1 up
becomes "and has when it is up" w 10.9.0.2 "dev $one .*: ready"
ip_b link set veth_b2 down
becomes "without carrier the OS is in charge" w 10.9.0.2 "os, the interface is down or has no carrier"
ip_b link set veth_b2 up
becomes "until it is back" w 10.9.0.2 "to $MAC_B: ready"
ip_a link set veth_a3 down
ip_a link set veth_a3 name other
ip_a link set other up
becomes "a renamed interface works on" w 10.9.1.4 "dev $three .*: ready"
in_ns a "$PRIV" links >"$WORK/links"
check "under its new name" grep -q "^other $three " "$WORK/links"
ip_a link del other
becomes "a removed one does not" w 10.9.1.4 "error: Network is unreachable"
check "the program lives" alive w
stop w

# ---- the same answers as the kernel's sockets ----

ns_join a 10.9.1.3 b 10.9.1.4 1 1400
same() { # SENTENCE ARGUMENT...: 'net' and 'kernel' agree in every line
	local sentence=$1
	shift
	check "$sentence" in_ns a "$PRIV" parity "$@"
}
ip_a route add unreachable 10.51.0.1
ip_a route add prohibit 10.51.0.2
ip_a route add blackhole 10.51.0.3
ip_a route add throw 10.51.0.4
same "unreachable, prohibit, blackhole, throw, no route" 10.51.0.1 10.51.0.2 10.51.0.3 10.51.0.4 10.99.0.1
same "neighbour, own address, loopback, zero, broadcasts" 10.9.0.2 10.9.0.1 127.0.0.1 0.0.0.0 10.9.0.255 255.255.255.255
ip_a route add 10.50.0.0/16 via 10.9.0.2
ip_a route add 10.50.0.0/16 via 10.9.1.4 table 100
ip_a addr add 10.9.0.8/24 dev veth_a1
ip_a rule add fwmark 7 lookup 100
ip_a rule add tos 0x10 lookup 100 2>/dev/null
ip_a rule add from 10.9.0.8 lookup 100
ip_a rule add ipproto udp dport 9001 lookup 100
ip_a rule add uidrange 65534-65534 lookup 100
same "through the main table" 10.50.0.1
same "a rule by mark" mark=7 10.50.0.1
same "a rule by type of service" tos=16 10.50.0.1
same "a rule by source" src=10.9.0.8 10.50.0.1
same "a rule by port" port=9001 10.50.0.1
check "a rule by user" in_ns a setpriv --reuid=65534 --regid=65534 --clear-groups "$PRIV" parity 10.50.0.1
check_eq "these rules were followed" "$(in_ns a "$PRIV" parity mark=7 10.50.0.1 | grep -c 'net: src 10.9.1.3 mtu 1400')" 1
same "bound to an interface with a route" oif=veth_a1 10.50.0.1
same "bound to an interface without one" oif=veth_a3 10.52.0.1
same "a multicast group, by default and by interface" 239.1.2.3 oif=veth_a3 239.1.2.3
ip_a route add 10.53.0.0/16 nexthop via 10.9.0.2 nexthop via 10.9.1.4
mapfile -t many < <(seq -f '10.53.0.%g' 1 20)
same "multipath: 20 destinations" "${many[@]}"
check_num "which use both ways" "$(in_ns a "$PRIV" parity "${many[@]}" | grep -oE 'net: src [0-9.]+' | sort -u | wc -l)" -eq 2
in_ns a sh -c 'echo 1 >/proc/sys/net/ipv4/fib_multipath_hash_policy'
same "multipath by ports: 20 destinations" "${many[@]}"
ip_a route add 10.9.2.0/24 via 10.9.0.2
ip -n "$(ns c)" route add 10.9.0.0/24 via 10.9.2.6
in_ns a python3 -c '
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, 10, 2) # IP_MTU_DISCOVER: always
s.connect(("10.9.2.7", 9000))
for _ in range(50):
	try:
		s.send(bytes(1400))
	except OSError:
		pass
	if s.getsockopt(socket.IPPROTO_IP, 14) == 1200:
		break
	time.sleep(0.05)
'
same "what path MTU discovery has found" 10.9.2.7
check_eq "is found" "$(in_ns a "$PRIV" parity 10.9.2.7 | grep -c 'net: src 10.9.0.1 mtu 1200')" 1

# ---- many events at once, and lost ones ----

start storm a "$PRIV" watch resolve 10.60.200.5
wait_for 5 log_has storm watching
kill -STOP "${PID[storm]}"
for i in $(seq 1 250); do echo "route add 10.60.$i.0/24 via 10.9.0.2"; done >"$WORK/batch"
ip_a -batch "$WORK/batch"
kill -CONT "${PID[storm]}"
becomes "one route of hundreds that came at once" storm 10.60.200.5 "via 10.9.0.2 .*: ready"
stop storm
sed -i 's/add/del/' "$WORK/batch"

start deaf a "$PRIV" watch sleep resolve 10.9.0.2
wait_for 5 log_has deaf watching
ip_a -batch "$WORK/batch"
ip_a link set veth_a1 mtu 1444
kill -USR1 "${PID[deaf]}"
becomes "after lost events everything is read anew" deaf 10.9.0.2 "mtu 1444"
check "and it was because of that" wait_for 5 log_has deaf 'awake after [1-9]'
stop deaf
done_testing
