#!/usr/bin/env bash
# An admitted client without capabilities (nobody) asks vmad for the flows of ports that others have: sockets of root's
# in the kernel, and a listener of another client. It is given what it shows a socket for, and nothing else.
#
# seconds: 8
. "$(dirname "$0")/../lib_programs.sh"
net_pair
combination server
chmod 755 "$WORK"
cp "$BUILD/tests/servers/process_mix" "$BUILD/components/nic/test/priv_claimer" "$WORK/"
start vmad b "$BUILD/bin/vmad" --foreground --allow-user nobody "$IF_B"
check "vmad owns the interface" wait_for 5 log_has vmad owns
serve mix "$WORK/process_mix" serve "$IP_B" 7900 0
check "a server of root's is a client" wait_for 20 log_has mix listening
check "and is spoken to past the kernel" in_ns a timeout -k 1 60 "$WORK/process_mix" ask "$IP_B" 7900 1 2 1 s
start sockets b /usr/bin/python3 -u -c '
import socket, time
SO_COOKIE = 57
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("0.0.0.0", 5300))
tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM); tcp.bind(("0.0.0.0", 5301)); tcp.listen()
cookie = lambda s: int.from_bytes(s.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), "little")
print("cookies", cookie(udp), cookie(tcp))
time.sleep(60)'
check "root has sockets in the kernel" wait_for 5 log_has sockets cookies
read -r _ udp tcp <"$WORK/sockets.log"
in_ns b timeout -k 1 30 setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all \
	"$WORK/priv_claimer" "$IF_B" "$IP_B" 5300 "$udp" 5301 "$tcp" 7900 >"$WORK/claimer.log" 2>&1
check_eq "vmad's answers to nobody" "$(cat "$WORK/claimer.log")" \
	"is a client: ok
has the table of ports that clients take by themselves: Operation not permitted
UDP, by its cookie: Operation not permitted
UDP, by its cookie, with a socket of another port: Operation not permitted
UDP, with a socket of another port: Operation not permitted
UDP, with a socket of another network namespace: Operation not permitted
UDP, with a file: Operation not permitted
UDP, without a socket: Operation not permitted
UDP from one peer, without a socket: Operation not permitted
UDP, as one of its shadows: Operation not permitted
UDP, as a waiter without a shadow: Operation not permitted
a listener, by its cookie: Operation not permitted
a connection to it: Operation not permitted
a listener of another client: Operation not permitted
a connection to it: Address already in use
a block of ports for servers: Operation not permitted
all of an address: Invalid argument
its own UDP socket at an address of another host: Cannot assign requested address
its own UDP socket, unshown: Operation not permitted
its own UDP socket: ok
its own shadow: ok
its own listener: ok
a connection to it: ok
a connection from a port of its own, unshown: Operation not permitted
a connection from a port of its own: ok
a block of ports: ok
a connection in it: ok"

# It guesses a connection of the kernel's from a port of its own block, before another process makes it, and gets nothing.
cat >"$WORK/kernels.py" <<-'PY'
	import socket, sys
	s = socket.socket()
	s.bind((sys.argv[1], int(sys.argv[3])))
	s.settimeout(8)
	s.connect((sys.argv[2], 7963))
	for i in range(100):
	    s.sendall(b"%d" % i)
	    assert s.recv(100) == b"%d" % i
	s.close()
PY
chmod 644 "$WORK/kernels.py"
start peer a /usr/bin/python3 -u -c '
import socket, sys
listener = socket.create_server((sys.argv[1], 7963))
print("listening")
while True:
    s = listener.accept()[0]
    while data := s.recv(100): s.sendall(data)' "$IP_A"
check "a peer listens" wait_for 10 log_has peer listening
start guesser b setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all \
	"$WORK/priv_claimer" "$IF_B" "$IP_B" 61700 "$IP_A" 7963
check "nobody has the flow of a connection from its block" wait_for 10 log_has guesser "connection in it: ok"
check "the kernel's connection from there works" in_ns b python3 "$WORK/kernels.py" "$IP_B" "$IP_A" 61700
check "and one from another port of the block" in_ns b python3 "$WORK/kernels.py" "$IP_B" "$IP_A" 61701
stop guesser
stop peer

check "vmad says whom it has refused" log_has vmad 'user 65534 has no right to a flow of port'
segments=$(snmp b Tcp InSegs)
check "each byte of the server's is right" in_ns a timeout -k 1 60 "$WORK/process_mix" ask "$IP_B" 7900 1 2 2 s
check_num "and all is offloaded still" $(($(snmp b Tcp InSegs) - segments)) -le 20
check "the server lives" alive mix
stop mix

# Programs of nobody's that ask for nothing but their own are past the kernel, with a new vmad, too: a UDP socket, a
# connection that was accepted and whose listener is closed by now, and one that it has made itself.
cp "$BUILD/libvma.so" "$WORK/"
cat >"$WORK/own.py" <<-'PY'
	import select, socket, sys
	udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
	udp.bind((sys.argv[1], 7961))
	listener = socket.create_server((sys.argv[1], 7960))
	print("listening", flush=True)
	accepted = listener.accept()[0]
	listener.close()
	made = socket.create_connection((sys.argv[2], 7962))
	print("ready", flush=True)
	while True:
	    for s in select.select([udp, accepted, made], [], [])[0]:
	        if s is udp:
	            data, peer = udp.recvfrom(100)
	            udp.sendto(data, peer)
	        else:
	            data = s.recv(100)
	            if not data:
	                sys.exit(0)
	            s.sendall(data)
PY
cat >"$WORK/peer.py" <<-'PY'
	import os, socket, sys, time
	listener = socket.create_server((sys.argv[2], 7962))
	there = socket.create_connection((sys.argv[1], 7960), 10)
	here = listener.accept()[0]
	udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
	udp.connect((sys.argv[1], 7961))
	for s in (there, here, udp):
	    s.settimeout(5)
	print("connected", flush=True)
	def exchange(n):
	    for i in range(n):
	        for s in (there, here, udp):
	            s.send(b"%d" % i)
	            assert s.recv(100) == b"%d" % i
	for turn in range(2):
	    while not os.path.exists(sys.argv[3] + "/turn%d" % turn):
	        time.sleep(0.05)
	    exchange(200)
	    print("exchanged", turn, flush=True)
	os._exit(0)
PY
chmod 644 "$WORK/own.py" "$WORK/peer.py"
start own b setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all \
	env "LD_PRELOAD=$WORK/libvma.so" /usr/bin/python3 "$WORK/own.py" "$IP_B" "$IP_A"
check "a program of nobody's starts" wait_for 20 log_has own listening
start peer a /usr/bin/python3 "$WORK/peer.py" "$IP_B" "$IP_A" "$WORK"
check "it is connected" wait_for 10 log_has own ready
sleep 0.3 # its connections get flows of their own
for turn in 0 1; do
	case $turn in
	0) t="with the first vmad" ;;
	1) t="with a new vmad" ;;
	esac
	packets=$(($(snmp b Tcp InSegs) + $(snmp b Udp InDatagrams)))
	touch "$WORK/turn$turn"
	check "$t: each answer is right" wait_for 20 log_has peer "exchanged $turn"
	check_num "$t: past the kernel" $(($(snmp b Tcp InSegs) + $(snmp b Udp InDatagrams) - packets)) -le 5
	[ $turn = 0 ] || break
	sleep 0.5 # what comes for a connection while there is no vmad, a late ACK too, resets it
	start second b "$BUILD/bin/vmad" --replace --foreground --allow-user nobody "$IF_B"
	check "a new vmad owns the interface" wait_for 10 log_has second owns
	sleep 2
done
check "that vmad lives" alive second
done_testing
