#!/usr/bin/env bash
# The Extra API on UDP, between two namespaces: packets without a copy and callbacks bring every datagram whole, and the
# kernel none; who breaks the rules gets an error; frames that a process holds come back when it ends, however it ends;
# dummy messages reach nobody.
# seconds: 14
#
#   a: extra_udp send (the kernel's sockets) ---- veth ---- b: extra_udp, preloaded
EXTRA_PROGRAM=extra_udp
. "$(dirname "$0")/../lib_extra.sh"

receive() { # LABEL ROLE PORT COUNT
	start "$1" b env "$preload" "$program" "$2" "$IP_B" "$3" "$4"
	wait_for 30 log_has "$1" '^ready'
}

send() { # PORT COUNT
	in_ns a "$program" send "$IP_B" "$1" "$2"
}

check "without the library there is no API" eval "! in_ns b '$program' missing"
check "what the mask does not name fails with EOPNOTSUPP" \
	eval "in_ns b env '$preload' '$program' missing | grep -qx 'wrong 0 mask 113c3f'"

in_ns b env "$preload" "$program" state "$IP_B" 7011 >"$WORK/state.log" 2>&1
check_eq "the library's own table says whether a socket is offloaded, and why not" "$(said state)" "wrong 0"

before=$(snmp b Udp InDatagrams)
receive zcopy zcopy 7001 2000
send 7001 2000
finish zcopy 60
check_eq "every datagram is given without a copy, and is whole" "$(said zcopy)" "zcopy 2000 copied 0 wrong 0"

receive callback callback 7002 2000
send 7002 2000
finish callback 60
check_eq "a callback decides of each: dropped, received, held and freed by another thread" "$(said callback)" \
	"seen 2000 dropped 667 received 667 freed 666 wrong 0"

receive misuse misuse 7003 0
for _ in $(seq 100); do
	alive misuse || break
	send 7003 16
	sleep 0.1
done
finish misuse 60
check_eq "who breaks the rules gets an error" "$(said misuse)" "calls 1 wrong 0"

receive closed closed 7004 3000
send 7004 3000
finish closed 60
check_eq "packets are read and freed after the close" "$(said closed)" "freed 3000 wrong 0"
check_eq "the kernel of b saw no datagram" "$(snmp b Udp InDatagrams)" "$before"

# ---- multicast: the example ----

before=$(snmp b Udp InDatagrams)
start market b env "$preload" "$BUILD/examples/extra/udp_market_data" 239.1.2.3 7010 "$IP_B" VOD
wait_for 30 log_has market '^listening, by callback'
in_ns a python3 -c "
import socket, struct, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton('$IP_A'))
for i in range(300):
    s.sendto(struct.pack('!I8sQ', i, b'VOD     ' if i % 3 == 0 else b'BP      ', 712500 + i), ('239.1.2.3', 7010))
    if i % 16 == 15: time.sleep(0.001)
"
finish market 60
check_eq "a receiver of market data by callback gets every quote of its group" "$(said market)" \
	"seen 300 shown 100 lost 0"
check "and shows those of its symbol" grep -qx 'VOD  *71.2500' "$WORK/market.log"
check_eq "the kernel of b saw none of them" "$(snmp b Udp InDatagrams)" "$before"

start group b env "$preload" GROUP_AT="$IP_B" "$program" zcopy 239.1.2.4 7013 1000
wait_for 30 log_has group '^ready'
in_ns a env GROUP_AT="$IP_A" "$program" send 239.1.2.4 7013 1000
finish group 60
check_eq "a group's datagrams are given without a copy" "$(said group)" "zcopy 1000 copied 0 wrong 0"
check_eq "the kernel of b saw none of those" "$(snmp b Udp InDatagrams)" "$before"

# ---- frames come back ----

receive greedy hold 7005 6000
send 7005 6000
wait_for 60 log_has greedy '^held'
got=$(said greedy)
check_num "who never frees is bounded" "${got#held }" -lt 6000
receive neighbour zcopy 7006 1000
send 7006 1000
finish neighbour 60
check_eq "and no other socket starves" "$(said neighbour)" "zcopy 1000 copied 0 wrong 0"
stop greedy KILL
for i in 1 2 3 4 5 6; do
	receive "killed$i" hold 7005 3000
	send 7005 3000
	wait_for 60 log_has "killed$i" '^held 3000'
	if [ $((i % 2)) = 0 ]; then stop "killed$i" KILL; else stop "killed$i" TERM; fi
done
receive after zcopy 7007 2000
send 7007 2000
finish after 60
check_eq "after 18000 frames that were never freed, of six processes, there are as many as before" "$(said after)" \
	"zcopy 2000 copied 0 wrong 0"

# ---- dummies ----

start sink a env python3 -c "
import socket, sys
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('$IP_A', 7008))
t = socket.socket(); t.bind(('$IP_A', 7009)); t.listen()
print('listening', flush=True)
bytes, last = b'', b''
while not bytes.endswith(b'last'): bytes += u.recv(2000)
print('udp', len(bytes), flush=True)
c, _ = t.accept(); bytes = b''
while True:
    more = c.recv(2000)
    if not more: break
    bytes += more
print('tcp', len(bytes), bytes.count(b'real'), flush=True)
"
wait_for 10 log_has sink listening
in_ns b env "$preload" "$program" dummy "$IP_A" 7008 udp >"$WORK/dummy_udp.log" 2>&1
check_eq "dummy datagrams answer as datagrams do" "$(said dummy_udp)" "wrong 0"
check "and are counted" grep -q 'Tx Dummy messages : 500$' "$WORK/dummy_udp.log"
check "none of them has left" wait_for 10 log_has sink '^udp 36$'
in_ns b env "$preload" "$program" dummy "$IP_A" 7009 tcp >"$WORK/dummy_tcp.log" 2>&1
check_eq "dummy messages of TCP answer as messages do" "$(said dummy_tcp)" "wrong 0"
check "and are counted" grep -q 'Tx Dummy messages : 500$' "$WORK/dummy_tcp.log"
check "the stream has nothing of them" wait_for 10 log_has sink '^tcp 36 8$'
done_testing
