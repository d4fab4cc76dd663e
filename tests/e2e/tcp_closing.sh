#!/usr/bin/env bash
# A listener that is closed while clients come: each hears at once that it was refused or reset, as from the kernel, and
# not when it asks again, a second later. And what a server leaves behind in TIME_WAIT keeps its port, in the kernel,
# without a packet on the wire.
#
#   a: a client on kernel sockets      veth      b: a server, preloaded
# seconds: 7
. "$(dirname "$0")/../lib_programs.sh"
net_pair
PORT=7000 ROUNDS=20

cat >"$WORK/server.py" <<'EOF'
# server.py IP PORT ROUNDS: listens, accepts some, closes with others in its queue; again and again.
import socket, sys, time
for i in range(int(sys.argv[3])):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((sys.argv[1], int(sys.argv[2])))
    s.listen(100)
    print("listening", flush=True)
    c, _ = s.accept()
    c.close()
    time.sleep(0.02 + 0.001 * (i % 5))
    s.close()
    time.sleep(0.1)
print("over", flush=True)
EOF

cat >"$WORK/client.py" <<'EOF'
# client.py IP PORT FILE: connects all the time, from several threads, until FILE is there. What became of it, and which
# took long.
import os, socket, sys, threading, time
end = time.monotonic() + 60
slow, counts = [], {}
lock = threading.Lock()

def connect():
    while time.monotonic() < end and not os.path.exists(sys.argv[3]):
        begun = time.monotonic()
        what = "connected"
        s = socket.socket()
        try:
            s.connect((sys.argv[1], int(sys.argv[2])))
        except OSError as error:
            what = error.strerror
        took = time.monotonic() - begun
        if what == "connected":
            s.settimeout(5)
            try:
                s.recv(1)
            except OSError as error:
                what = "connected, " + str(error)
        s.close()
        with lock:
            counts[what] = counts.get(what, 0) + 1
            if took > 0.5:
                slow.append("%s after %.3f s" % (what, took))
        time.sleep(0.0005)

threads = [threading.Thread(target=connect) for _ in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(counts, flush=True)
print("slow %d" % len(slow), *slow, sep="\n", flush=True)
EOF

asked_twice() { # how often a client of a's kernel has sent its SYN again
	in_ns a awk '$1 == "TcpExt:" && !column { for (i = 2; i <= NF; i++) if ($i == "TCPSynRetrans") column = i; next }
		$1 == "TcpExt:" { print $column; exit }' /proc/net/netstat
}

combination server
serve server python3 "$WORK/server.py" "$IP_B" $PORT $ROUNDS
check "the server listens" wait_for 20 log_has server listening
before=$(asked_twice)
start clients a python3 "$WORK/client.py" "$IP_B" $PORT "$WORK/over"
check "clients come, and the server is done" finish server 60
touch "$WORK/over"
check "clients end" finish clients 20
note "$(cat "$WORK/clients.log")"
check "some were served, and some refused" sh -c "grep -q \"'connected': [1-9]\" $WORK/clients.log && grep -q refused $WORK/clients.log"
check_eq "none has had to ask twice" $(($(asked_twice) - before)) 0

cat >"$WORK/one.py" <<'EOF'
# one.py IP PORT FILE: serves one client, closes first, and ends when FILE is there.
import os, socket, sys, time
s = socket.socket()
s.bind((sys.argv[1], int(sys.argv[2])))
s.listen(4)
print("listening", flush=True)
c, _ = s.accept()
c.close()
print("closed", flush=True)
while not os.path.exists(sys.argv[3]):
    time.sleep(0.05)
EOF
can_bind() { # PORT
	in_ns b python3 -c 'import socket, sys; socket.socket().bind((sys.argv[1], int(sys.argv[2])))' "$IP_B" "$1"
}
is_refused() { # PORT
	can_bind "$1" 2>&1 | grep -q 'Address already in use'
}
left_behind() { # PORT
	in_ns b ss -Htan state time-wait "sport = :$1" | grep -q "$IP_B%lo:$1"
}
PORT=7001
check "the port is free" can_bind $PORT
serve one python3 "$WORK/one.py" "$IP_B" $PORT "$WORK/end"
check "a server of one client listens" wait_for 20 log_has one listening
check "its client hears the end" client python3 -c \
	'import socket, sys; assert socket.create_connection((sys.argv[1], int(sys.argv[2]))).recv(1) == b""' "$IP_B" $PORT
check "which the server closed first" wait_for 5 log_has one closed
settle
count_from
at_client=$(snmp a Tcp InSegs)
touch "$WORK/end"
check "the server ends" finish one 20
check "its connection is in TIME_WAIT, in the kernel" left_behind $PORT
check "so its port cannot be bound" is_refused $PORT
still "the server's end" 3
check_eq "and nothing of it came to the client" "$(snmp a Tcp InSegs)" "$at_client"
done_testing
