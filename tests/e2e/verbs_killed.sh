#!/usr/bin/env bash
# A process with connections by an RDMA card is killed: if a vmad runs, all peers hear of it within a second, also those
# that only wait. Without one a peer hears of it when it sends. Nobody hears of what had ended before, nor of what the
# kernel has.
#
#   a (10.9.0.1, kernel sockets) vs_a ---- card ---- wire ---- card ---- vs_b (10.9.0.2, preloaded, and a vmad) b
# alone: a peer's reset has a bound of time
# seconds: 25
# test-all: processes are killed, and their peers waited for
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
command -v python3 >/dev/null || cannot_run "no python3"
PORT=7000 BACK=7100 IDLE=20 WITHIN_MS=1000
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-INFO} VMA_NIC=verbs
cards_pair

# shellcheck disable=SC2016
preloaded=("${with_cards[@]}" bash -c 'LD_PRELOAD="$LD_PRELOAD $0" exec "$@"' "$BUILD/libvma.so")

# server.py ADDRESS PORT [fork | PEER BACK]: echoes, and closes at an end of stream; with fork, in a child for each. It
# makes a connection of its own to the peer, on which it only waits.
cat >"$WORK/server.py" <<'PY'
import os, selectors, signal, socket, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=128)
poll = selectors.DefaultSelector()
poll.register(listener, selectors.EVENT_READ)
if len(sys.argv) > 4:
    own = socket.create_connection((sys.argv[3], int(sys.argv[4])), 10)
print("pid", os.getpid(), flush=True)
while True:
    for key, _ in poll.select():
        if key.fileobj is listener and sys.argv[3:] == ["fork"]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                while data := connection.recv(100):
                    connection.sendall(data)
                os._exit(0)
            connection.close()
        elif key.fileobj is listener:
            poll.register(listener.accept()[0], selectors.EVENT_READ)
        elif data := key.fileobj.recv(100):
            key.fileobj.sendall(data)
        else:
            poll.unregister(key.fileobj)
            key.fileobj.close()
PY

# peer.py ADDRESS PORT IDLE BACK GO: connections that only wait, and one that speaks, and one that has come. When the file
# GO is there, it kills the process that GO names, and waits for each connection's reset. The one that speaks goes on.
cat >"$WORK/peer.py" <<'PY'
import os, selectors, signal, socket, sys, threading, time
address, port, idle, back, go = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
conns = []
if back != "0":
    listener = socket.create_server(("10.9.0.1", int(back)))
    print("listening", flush=True)
    conns.append(listener.accept()[0])
for _ in range(idle):
    conns.append(socket.create_connection((address, port), 10))
for s in conns[-idle:]:
    s.sendall(b"x")
    assert s.recv(1) == b"x"
busy = socket.create_connection((address, port), 10)
print("connected", flush=True)
while not os.path.exists(go):
    busy.sendall(b"y")
    assert busy.recv(1) == b"y"
    time.sleep(0.02)
poll = selectors.DefaultSelector()
for s in conns:
    poll.register(s, selectors.EVENT_READ)
os.kill(int(open(go).read()), signal.SIGKILL)
begun = time.monotonic()
spoke = []
def speak():
    busy.settimeout(20)
    try:
        while busy.send(b"z") and busy.recv(1):
            time.sleep(0.02)
    except (ConnectionResetError, BrokenPipeError):
        spoke.append((time.monotonic() - begun) * 1000)
speaker = threading.Thread(target=speak)
speaker.start()
n = 0
while n < len(conns):
    ready = poll.select(8)
    if not ready:
        break
    for key, _ in ready:
        try:
            sys.exit("no reset: %r" % key.fileobj.recv(10))
        except ConnectionResetError:
            n += 1
        poll.unregister(key.fileobj)
took = (time.monotonic() - begun) * 1000
speaker.join()
if not spoke:
    sys.exit("who spoke had no reset")
print("%d of %d reset in %d ms, and who spoke was in %d ms" % (n, len(conns), took, spoke[0]), flush=True)
PY

own_rules() { # PORT COUNT: so many connections have rules of their own
	[ "$(card b rules | awk -v port=":$1" '$9 != "0.0.0.0:0" && ($10 ~ port "$" || $9 ~ port "$") { n++ } END { print n + 0 }')" -ge "$2" ]
}
serve() { # LABEL ARGUMENT...
	local label=$1
	shift
	start "$label" b "${preloaded[@]}" python3 "$WORK/server.py" "$IP_B" "$@"
	wait_for 20 log_has "$label" '^pid '
}
pid_of() { # LABEL
	sed -n 's/^pid //p' "$WORK/$1.log"
}
kill_by_peer() { # LABEL FILE
	pid_of "$1" >"$2.new" && mv "$2.new" "$2"
}
killed() { # LABEL: is over
	stop "$1" KILL
	return 0
}
vmad_start() {
	start vmad b "$BUILD/bin/vmad" --foreground "$IF_B"
	wait_for 10 log_has vmad "owns" || cannot_run "vmad does not start"
}
watched() { # the server's process has a connection to vmad, and has told what it has
	sleep 1.5
}
learnt() { # LABEL FIELD: 1 how many that wait, 6 in how many ms, 13 in how many who spoke
	awk -v n="$2" '/ reset in / { print $n }' "$WORK/$1.log"
}
spoke_in_time() {
	check_num "... who spoke within a second ($(learnt peer 13) ms)" "$(learnt peer 13)" -le $WITHIN_MS
}

# ---- with a vmad ----

vmad_start
kernel=$(snmp b Tcp PassiveOpens)
start peer a python3 "$WORK/peer.py" "$IP_B" $PORT $IDLE $BACK "$WORK/go1"
wait_for 10 log_has peer listening
check "a server on the card makes a connection" serve server $PORT "$IP_A" $BACK
check "... and has others" wait_for 20 log_has peer connected
check "... each by a rule of its own" wait_for 20 own_rules $PORT $((IDLE + 1))
check_eq "... and none is the kernel's" "$(snmp b Tcp PassiveOpens)" "$kernel"
watched
kill_by_peer server "$WORK/go1"
check "it is killed: its peers are done" finish peer 20
killed server
check_eq "... each has got a reset, also the server that it was a client of" "$(learnt peer 1)" $((IDLE + 1))
check_num "... within a second ($(learnt peer 6) ms)" "$(learnt peer 6)" -le $WITHIN_MS
spoke_in_time

# ---- what has ended before ----

cat >"$WORK/closes.py" <<'PY'
import socket, sys
conns = [socket.create_connection((sys.argv[1], int(sys.argv[2])), 10) for _ in range(10)]
for s in conns:
    s.sendall(b"x")
    assert s.recv(1) == b"x"
for s in conns:
    s.shutdown(socket.SHUT_WR)
    assert s.recv(1) == b""
    s.close()
PY
check "a server starts again" serve orderly $PORT
check "its connections end in order" in_ns a python3 "$WORK/closes.py" "$IP_B" $PORT
no_rules() { ! own_rules $PORT 1; }
check "... and their rules" wait_for 10 no_rules
watched
segments=$(snmp a Tcp InSegs)
kill -KILL "$(pid_of orderly)"
killed orderly
sleep 2
check_eq "it is killed: nobody hears of that" "$(snmp a Tcp InSegs)" "$segments"

# ---- what the kernel has ----

cat >"$WORK/given.py" <<'PY'
import os, socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
s.settimeout(10)
s.sendall(b"given")
assert s.recv(5, socket.MSG_WAITALL) == b"given"
print("connected", flush=True)
while not os.path.exists(sys.argv[3]):
    time.sleep(0.02)
s.sendall(b"still")
assert s.recv(5, socket.MSG_WAITALL) == b"still"
PY
check "a server starts again, for a connection that a child gets" serve parent $PORT fork
start given a python3 "$WORK/given.py" "$IP_B" $PORT "$WORK/go2"
check "... and hands it over" wait_for 20 log_has given connected
watched
resets=$(snmp b Tcp OutRsts)
kill -KILL "$(pid_of parent)"
sleep 2
touch "$WORK/go2"
check "it is killed: the child's connection goes on" finish given 20
check_eq "... and no RST was sent" "$(snmp b Tcp OutRsts)" "$resets"
killed parent

# ---- a vmad that comes later, and one that is killed ----

stop vmad
check "a server starts without a vmad" serve early $PORT
start peer a python3 "$WORK/peer.py" "$IP_B" $PORT $IDLE 0 "$WORK/go3"
check "... and has connections" wait_for 20 log_has peer connected
check "... by rules of their own" wait_for 20 own_rules $PORT $((IDLE + 1))
vmad_start
watched
stop vmad KILL
vmad_start
watched
kill_by_peer early "$WORK/go3"
check "a second vmad has come, and it is killed: its peers are done" finish peer 20
killed early
check_eq "... each has got a reset" "$(learnt peer 1)" "$IDLE"
check_num "... within a second ($(learnt peer 6) ms)" "$(learnt peer 6)" -le $WITHIN_MS
spoke_in_time

# ---- none ----

stop vmad
check "a server starts, and no vmad runs" serve alone $PORT
start peer a python3 "$WORK/peer.py" "$IP_B" $PORT 3 0 "$WORK/go4"
wait_for 20 log_has peer connected
check "... by rules of their own" wait_for 20 own_rules $PORT 4
kill_by_peer alone "$WORK/go4"
check "it is killed: who spoke hears of it" finish peer 20
killed alone
spoke_in_time
check_eq "... and who only waits does not" "$(learnt peer 1)" 0

for name in a b; do check_eq "no rule of the verbs is broken ($name)" "$(card_count $name violations)" 0; done
cards_end
done_testing
