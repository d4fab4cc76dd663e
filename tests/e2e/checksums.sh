#!/usr/bin/env bash
# Datagrams and segments whose checksum the kernel is asked to finish arrive whole at a peer on kernel sockets, be the
# device's checksum offload on, so that the peer gets them unfinished, or off.
#
#   a (preloaded)  10.9.0.1 ---- veth ---- 10.9.0.2  (kernel sockets) b
# seconds: 4
. "$(dirname "$0")/../lib_programs.sh"
net_pair
combination client
DATAGRAMS=300 STREAM=$((8 << 20))

cat >"$WORK/server.py" <<'END'
# server.py IP PORT DATAGRAMS: what came by TCP until its end as length and checksum, then how many datagrams were right.
import hashlib, socket, sys
ip, port, wanted = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.setsockopt(socket.SOL_SOCKET, 33, 1 << 21)  # SO_RCVBUFFORCE: room for all, should they come while this one has no core
u.bind((ip, port))
u.settimeout(5)
listener = socket.create_server((ip, port))
print("listening", flush=True)
c, _ = listener.accept()
sum, n = hashlib.md5(), 0
while data := c.recv(65536):
    sum.update(data)
    n += len(data)
print("stream", n, sum.hexdigest(), flush=True)
right = 0
try:
    for _ in range(wanted):
        data = u.recv(3000)
        right += data == bytes([len(data) % 251]) * len(data)
except TimeoutError:
    pass
print("right", right, flush=True)
END

cat >"$WORK/client.py" <<'END'
# client.py IP PORT DATAGRAMS STREAM: STREAM bytes from stdin by TCP, then datagrams of 1, 6, 11, ... bytes.
import socket, sys, time
ip, port, datagrams, stream = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
with socket.create_connection((ip, port)) as c:
    c.sendall(sys.stdin.buffer.read(stream))
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.connect((ip, port))
time.sleep(0.3)
for i in range(datagrams):
    n = 1 + 5 * i % 1472
    u.send(bytes([n % 251]) * n)
    time.sleep(0.001)
END

head -c "$STREAM" /dev/urandom >"$WORK/stream"
sum=$(md5sum <"$WORK/stream")
port=7000
for offload in on off; do
	in_ns a ethtool -K "$IF_A" tx $offload >/dev/null
	port=$((port + 1))
	start server b python3 "$WORK/server.py" "$IP_B" $port $DATAGRAMS
	wait_for 5 log_has server listening
	before=$(snmp a Udp OutDatagrams) segments=$(snmp a Tcp OutSegs)
	check "offload $offload: the client ends well" client python3 "$WORK/client.py" "$IP_B" $port $DATAGRAMS $STREAM <"$WORK/stream"
	check "offload $offload: so does the server" finish server 10
	check "offload $offload: the stream is whole" log_has server "^stream $STREAM ${sum%% *}$"
	check "offload $offload: every datagram is right" log_has server "^right $DATAGRAMS$"
	check_num "offload $offload: the datagrams bypassed the kernel of a" $(($(snmp a Udp OutDatagrams) - before)) -lt 50
	check_num "offload $offload: so did the stream" $(($(snmp a Tcp OutSegs) - segments)) -lt 50
done
check_eq "no checksum was found wrong" "$(snmp b Udp InCsumErrors) $(snmp b Tcp InCsumErrors)" "0 0"
done_testing
