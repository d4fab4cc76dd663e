#!/usr/bin/env bash
# SO_MAX_PACING_RATE of UDP sockets over xdp: no card paces, so software does. The sender waits, or is told EAGAIN and
# then that there is room (poll, select, epoll level and edge). Nothing is lost, and a socket without a pace is not held up.
#
#   a (preloaded)  10.9.0.1 ---- veth ---- 10.9.0.2  (kernel sockets) b
# seconds: 7
. "$(dirname "$0")/../lib_programs.sh"
net_pair
combination client

cat >"$WORK/receive.py" <<'PY'
# receive.py ADDRESS N: N datagrams on port 7000; their order, and the time from the first to the last
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 21)  # SO_RCVBUFFORCE
s.bind((sys.argv[1], 7000))
s.settimeout(20)
other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
other.bind((sys.argv[1], 7001))
print("ready", flush=True)
n = int(sys.argv[2])
for i in range(n):
    data = s.recv(2000)
    assert int.from_bytes(data[:4], "big") == i, (i, data[:4])
    if i == 0:
        begun = time.monotonic()
print("took", int((time.monotonic() - begun) * 1000), flush=True)
PY
cat >"$WORK/send.py" <<'PY'
# send.py ADDRESS N HOW: N datagrams of 1000 bytes at 1 MB/s (1042 bytes each in a frame)
import select, socket, struct, sys
SO_MAX_PACING_RATE = 47
n, how = int(sys.argv[2]), sys.argv[3]
s, free = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
s.connect((sys.argv[1], 7000))
s.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=I", 1000000))
free.connect((sys.argv[1], 7001))
waits = 0
if how != "blocking":
    s.setblocking(False)
ep = select.epoll()
if how in ("level", "edge"):
    ep.register(s, select.EPOLLOUT | (select.EPOLLET if how == "edge" else 0))
def wait():
    if how in ("level", "edge"):
        assert ep.poll(10), "no room within ten seconds"
    elif how == "select":
        assert select.select([], [s], [], 10)[1]
    else:
        p = select.poll()
        p.register(s, select.POLLOUT)
        assert p.poll(10000)
i = 0
while i < n:
    try:
        s.send(i.to_bytes(4, "big") + bytes(996))
        i += 1
    except BlockingIOError:
        waits += 1
        wait()
    free.send(b"free")
print("waits", waits, flush=True)
PY

paced() { # HOW
	local rc
	start receiver b python3 "$WORK/receive.py" "$IP_B" 300
	wait_for 10 log_has receiver ready || return
	before=$(snmp a Udp OutDatagrams)
	start sender a env "$client_with" python3 "$WORK/send.py" "$IP_B" 300 "$1"
	finish sender 60
	rc=$?
	finish receiver 30 || rc=$?
	took=$(awk '$1 == "took" { print $2 }' "$WORK/receiver.log")
	waits=$(awk '$1 == "waits" { print $2 }' "$WORK/sender.log")
	by_kernel=$(($(snmp a Udp OutDatagrams) - before))
	return $rc
}

for how in blocking poll select level edge; do
	check "300 datagrams at a pace arrive in order ($how)" paced "$how"
	# 299 frames of 1042 bytes at 1 MB/s, but for what the kernel sent at first, and a burst of a millisecond.
	check_num "... no faster than that ($how)" "${took:-0}" -ge $((295 - by_kernel))
	check_num "... the kernel sent hardly any of them ($how)" "$by_kernel" -le 50
	[ "$how" = blocking ] || {
		check_num "... they were told that there is no room ($how)" "${waits:-0}" -ge 20
		check_num "... and asked again only when there was some ($how)" "${waits:-0}" -le 700
	}
done
done_testing
