#!/usr/bin/env bash
# What peers see when a process whose connections are offloaded ends: killed, its connections are reset by vmad and the
# kernel within a second; and of one that has closed them before, nobody hears a word. And what a process hears when
# vmad was killed, and its fdstore, and the kernel has reset a peer meanwhile.
#
#   a: kernel sockets (or a stack of its own)  veth  b: tcp_echo, a client of vmad
# seconds: 11
. "$(dirname "$0")/../lib.sh"
need_xdp
net_pair
PORT=7000
case $BUILD in *address* | *thread*) SLOWER=3 ;; *) SLOWER=1 ;; esac

cat >"$WORK/peer.py" <<'END'
# peer.py ADDRESS PORT COUNT: that many connections, each with a word there and back; then all wait to hear of the end.
import select, socket, sys, time
conns = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(int(sys.argv[3]))]
for c in conns:
    c.sendall(b"word")
for c in conns:
    assert c.recv(4, socket.MSG_WAITALL) == b"word"
print("connected", flush=True)
if sys.argv[4:] == ["close"]:
    for c in conns:
        c.shutdown(socket.SHUT_WR)
        assert c.recv(1) == b""
        c.close()
    print("closed", flush=True)
    sys.exit()
poll = select.poll()
for c in conns:
    poll.register(c, select.POLLIN)
left = {c.fileno(): c for c in conns}
while left:
    for fd, _ in poll.poll():
        try:
            print("end of stream" if left[fd].recv(1) == b"" else "bytes", flush=True)
        except OSError as e:
            print(e.strerror, flush=True)
        poll.unregister(fd)
        del left[fd]
print("all over", flush=True)
END

cat >"$WORK/server.py" <<'END'
# server.py ADDRESS PORT: accepts one connection and waits to hear of its end.
import socket, sys
s = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
c, _ = s.accept()
c.sendall(b"word")
assert c.recv(4, socket.MSG_WAITALL) == b"word"
print("connected", flush=True)
try:
    print("end of stream" if c.recv(1) == b"" else "bytes", flush=True)
except OSError as e:
    print(e.strerror, flush=True)
END

echo_on_b() { # OPTIONS...
	start echo b "$BUILD/examples/tcp_echo" --local "$IP_B" --wait --owner vmad "$@" "xdp:$IF_B"
}

listen_on_b() { # OPTIONS...
	echo_on_b --port $PORT "$@"
	wait_for 20 log_has echo listening
}

steered() { # COUNT
	[ "$(grep -c '^steered' "$WORK/echo.log")" -ge "$1" ]
}

kill_echo() {
	stop echo KILL
	return 0
}

within() { # SECONDS LABEL REGEX
	wait_for $(($1 * SLOWER)) log_has "$2" "$3"
}

start vmad b "$BUILD/bin/vmad" --foreground "$IF_B"
wait_for 10 log_has vmad "owns" || cannot_run "vmad does not start"

# ---- killed ----

listen_on_b
start peer a python3 "$WORK/peer.py" "$IP_B" $PORT 1
check "a connection is made and lives for a while" wait_for 10 steered 1
check "the peer waits" wait_for 5 log_has peer connected
kill_echo
check "its process is killed: the peer's recv fails within a second" within 1 peer "Connection reset by peer"
finish peer 5

listen_on_b
start peer a python3 "$WORK/peer.py" "$IP_B" $PORT 300
check "three hundred connections are made and live for a while" wait_for $((20 * SLOWER)) steered 300
check "their peer waits" wait_for 5 log_has peer connected
kill_echo
check "their process is killed: all end within a second" within 1 peer "all over"
check_eq "each by a reset" "$(grep -c 'Connection reset by peer' "$WORK/peer.log")" 300
finish peer 5

start server a python3 "$WORK/server.py" "$IP_A" 7001
wait_for 5 log_has server listening
echo_on_b --port 40001 --connect "$IP_A" --peer-mac "$MAC_A" --peer-port 7001
check "a connection is made to a server" wait_for 10 log_has server connected
kill_echo
check "the client is killed: the server's recv fails within a second" within 1 server "Connection reset by peer"
finish server 5

listen_on_b
start own a "$BUILD/examples/tcp_echo" --local "$IP_A" --port 40002 --wait --connect "$IP_B" --peer-mac "$MAC_B" \
	--peer-port $PORT "xdp:$IF_A"
check "a connection is made by another stack of this kind" wait_for 10 steered 1
kill_echo
check "its server is killed: that stack hears of it within a second, too" within 1 own "failed: Connection reset by peer"
stop own

# ---- what has no rule of its own yet ----

listen_on_b --steer-after 60000
start peer a python3 "$WORK/peer.py" "$IP_B" $PORT 1
check "a new connection is made" wait_for 10 log_has peer connected
kill_echo
sleep 2
check_eq "its process is killed: a peer that only waits is not told" "$(grep -c reset "$WORK/peer.log")" 0
stop peer

# ---- closed before ----

listen_on_b
start peer a python3 "$WORK/peer.py" "$IP_B" $PORT 20 close
check "twenty connections are made and closed" wait_for 10 log_has peer closed
finish peer 5
sleep 0.5
segments=$(snmp a Tcp InSegs)
kill_echo
sleep 2
check_eq "their process is killed: nobody hears of it" "$(($(snmp a Tcp InSegs) - segments))" 0

# ---- vmad is killed ----

cat >"$WORK/speak.py" <<'END'
# speak.py ADDRESS PORT FILE: one connection, with a word there and back, and another word when there is FILE.
import os, socket, sys, time
c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
c.sendall(b"word")
assert c.recv(4, socket.MSG_WAITALL) == b"word"
print("connected", flush=True)
while not os.path.exists(sys.argv[3]):
    time.sleep(0.02)
c.sendall(b"word")
try:
    print(c.recv(4), flush=True)
except OSError as e:
    print(e.strerror, flush=True)
END

# A client that stands still lets go of nothing, so nobody owns the interface until it goes on.
listen_on_b
start quiet a python3 "$WORK/peer.py" "$IP_B" $PORT 1
start peer a python3 "$WORK/speak.py" "$IP_B" $PORT "$WORK/speak"
check "two connections are made and live for a while" wait_for 10 steered 2
kill -STOP "${PID[echo]}"
kill -STOP "${PID[vmad]}" # it would see to another fdstore
for pid in $(ip netns pids "$(ns b)"); do
	[ "$(cat "/proc/$pid/comm" 2>/dev/null)" != vmad-fdstore ] || kill -KILL "$pid"
done
stop vmad KILL
wait_for 5 no_xdp b "$IF_B"
touch "$WORK/speak"
check "vmad is killed with its fdstore, and who speaks then is reset by the kernel" within 2 peer "Connection reset by peer"
kill -CONT "${PID[echo]}"
start vmad b "$BUILD/bin/vmad" --foreground "$IF_B"
check "with a new one the other side of that connection hears of it at once" within 3 echo "failed: Connection reset by peer"
check_eq "and the connection beside it lives" "$(log_has quiet . && grep -c -v connected "$WORK/quiet.log")" 0
kill_echo
finish quiet 5

check "SIGTERM ends vmad cleanly" stop vmad
done_testing
