#!/usr/bin/env bash
# A peer whose connection has vanished, and that says so only once, hears that nobody has it: a RST with a number that is
# not exact is answered by one ACK (RFC 5961 3.2), and the kernel answers that by RST. Behind the library such an ACK
# comes to the listener that the connection was of: just after the connection was handed over to a child, or while
# other processes serve the listener, too.
# seconds: 20
# test-all: peers vanish, and timers of many seconds run out
. "$(dirname "$0")/../lib_programs.sh"
net_pair
combination server

cat >"$WORK/server.py" <<'END'
# server.py ADDRESS PORT WORKERS: a child for each connection greets, and makes the connection vanish (TCP_REPAIR).
import os, signal, socket, sys
TCP_REPAIR = 19
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=16)
workers = int(sys.argv[3])
for i in range(workers):
    if os.fork() == 0:
        workers = 0
        break
print("listening", flush=True)
while workers > 0:
    signal.pause()
while True:
    c, _ = listener.accept()
    if os.fork() == 0:
        c.sendall(b"hello")
        c.recv(1)
        c.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        c.close()
        os._exit(0)
    c.close()
END

cat >"$WORK/forge.py" <<'END'
# forge.py ADDRESS PEER: for each line "LOCAL_PORT PEER_PORT SEQUENCE" a RST from there.
import socket, struct, sys
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
raw.bind((sys.argv[1], 0))
def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff
print("ready", flush=True)
for line in sys.stdin:
    local, peer, seq = map(int, line.split())
    tcp = struct.pack("!HHIIBBHHH", local, peer, seq, 0, 5 << 4, 4, 0, 0, 0)
    pseudo = socket.inet_aton(sys.argv[1]) + socket.inet_aton(sys.argv[2]) + struct.pack("!HH", 6, len(tcp))
    tcp = tcp[:16] + struct.pack("!H", checksum(pseudo + tcp)) + tcp[18:]
    raw.sendto(tcp, (sys.argv[2], 0))
    print("sent", flush=True)
END

cat >"$WORK/client.py" <<'END'
# client.py ADDRESS PORT PAUSE COUNT PIPE: connections that vanish; PAUSE seconds later each has a RST from the pipe's
# other end, in its window and not exact.
import socket, sys, time
TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ, RECV_QUEUE, OFF_NO_WINDOW_PROBE = 19, 20, 21, 1, -1
address, port, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
worst, told = 0, 0
with open(sys.argv[5], "w", buffering=1) as forge:
    for _ in range(int(sys.argv[4])):
        c = socket.create_connection((address, port))
        assert c.recv(5, socket.MSG_WAITALL) == b"hello"
        c.send(b"x")
        time.sleep(0.02 + pause)
        c.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        c.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_QUEUE, RECV_QUEUE)
        seq = c.getsockopt(socket.IPPROTO_TCP, TCP_QUEUE_SEQ) & 0xffffffff
        c.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, OFF_NO_WINDOW_PROBE)
        begun = time.monotonic()
        forge.write("%d %d %d\n" % (port, c.getsockname()[1], (seq + 100) & 0xffffffff))
        c.settimeout(8)
        try:
            print("bytes" if c.recv(1) else "end of stream")
        except ConnectionResetError:
            told += 1
        except TimeoutError:
            print("nothing in 8 s")
        worst = max(worst, time.monotonic() - begun)
        c.close()
print("%d told, the slowest after %.2f s" % (told, worst))
sys.exit(told != int(sys.argv[4]))
END

mkfifo "$WORK/pipe"
start forge b sh -c "exec python3 '$WORK/forge.py' '$IP_B' '$IP_A' <'$WORK/pipe'"
exec {pipe}>"$WORK/pipe" # open from here on, whoever writes

vanish() { # SENTENCE PORT WORKERS PAUSE
	serve server python3 "$WORK/server.py" "$IP_B" "$2" "$3"
	check "$1: the server starts" wait_for 20 log_has server listening
	sleep 1.2 # processes that have a listener by fork ask for it a second later
	count_from
	check "$1: each peer is told" client python3 "$WORK/client.py" "$IP_B" "$2" "$4" 4 "$WORK/pipe"
	note "$(tail -n 1 "$WORK/check.out")"
	stop server
}
check "the forger is ready" wait_for 10 log_has forge ready
vanish "handed over a moment ago" 7301 0 0
vanish "with workers" 7302 2 1.5
exec {pipe}>&-
finish forge 5
done_testing
