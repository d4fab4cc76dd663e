#!/usr/bin/env bash
# A card matches headers, so a listener's rule takes what is the kernel's: a kernel connection that was open at listen(),
# one that a forked child was handed, a neighbour's on an ephemeral port. Each moves 10 MB each way, and nobody sends RST.
#
#   a (10.9.0.1, kernel sockets) vs_a ---- card ---- wire ---- card ---- vs_b (10.9.0.2, servers) b
#
# The second part has a card that can leave single connections to the kernel, as mlx5 can (EXEMPTS=1).
# seconds: 15
# test-all: each of its ways moves ten megabytes; verbs.sh has the backend
# parts: 2
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
BYTES=10000000 PORT=7000
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-INFO} VMA_NIC=verbs
cards_pair

EXEMPTS=${EXEMPTS:-${PART:-0}}
mlx5=
[ "$EXEMPTS" != 1 ] || mlx5="$BUILD/tests/verbs/libvmasoft-rdmav34.so "
# shellcheck disable=SC2016
preloaded=("${with_cards[@]}" env VMASOFT_MLX5="$EXEMPTS" bash -c 'LD_PRELOAD="$LD_PRELOAD $0" exec "$@"' "$mlx5$BUILD/libvma.so")

# ---- programs ----

# Sends back what comes. MODE: alone (one connection, and the listener is closed), fork (a child for each), plain.
cat >"$WORK/echo.py" <<'PY'
import os, signal, socket, sys, threading
address, port, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listener = socket.create_server((address, port))
print("listening", flush=True)
def echo(connection):
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()
while True:
    connection, _ = listener.accept()
    if mode == "alone":
        listener.close()
        print("accepted", flush=True)
        echo(connection)
        break
    if mode == "fork":
        if os.fork() == 0:
            listener.close()
            print("accepted", flush=True)
            echo(connection)
            os._exit(0)
        connection.close()
        continue
    threading.Thread(target=echo, args=(connection,), daemon=True).start()
PY

# Connects (from an address, if one is given), says a byte and hears it; then, when the file GO is there, BYTES each way at the same time.
cat >"$WORK/talk.py" <<'PY'
import hashlib, os, socket, sys, threading, time
address, port, size, go = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
s = socket.create_connection((address, port), 10, (sys.argv[5], 0) if len(sys.argv) > 5 else None)
s.settimeout(60)
s.sendall(b"x")
assert s.recv(1) == b"x"
print("connected", flush=True)
while not os.path.exists(go):
    time.sleep(0.02)
sent, got, left = hashlib.sha256(), hashlib.sha256(), size
def send():
    for _ in range(size // 50000):
        data = os.urandom(50000)
        sent.update(data)
        s.sendall(data)
thread = threading.Thread(target=send)
thread.start()
while left and (data := s.recv(65536)):
    got.update(data)
    left -= len(data)
thread.join()
s.shutdown(socket.SHUT_WR)
assert s.recv(1) == b""
assert left == 0 and sent.digest() == got.digest()
print("done", flush=True)
PY

# ---- what was sent and seen ----

resets() { # both kernels' RST, and what either had to end
	echo "$(snmp a Tcp OutRsts) $(snmp b Tcp OutRsts) $(snmp a Tcp EstabResets) $(snmp b Tcp EstabResets)"
}
rule_hits() { # PORT: of the rules for what comes to it from anybody
	card b rules | awk -v to=":$1" '$9 == "0.0.0.0:0" && $10 ~ to "$" { n += $12 } END { print n + 0 }'
}
exempt() { # PORT: how many connections to it the card leaves to the kernel
	card b rules | awk -v to=":$1" '$3 == "kernel" && $10 ~ to "$" { n++ } END { print n + 0 }'
}
has_exempt() { # PORT COUNT
	[ "$(exempt "$1")" -eq "$2" ]
}
has_rule() { # PORT
	card b rules | awk -v to=":$1" '$9 == "0.0.0.0:0" && $10 ~ to "$" { found = 1 } END { exit !found }'
}
serve() { # LABEL PORT MODE: preloaded
	start "$1" b "${preloaded[@]}" python3 "$WORK/echo.py" "$IP_B" "$2" "$3"
	wait_for 20 log_has "$1" listening && wait_for 10 has_rule "$2"
}
talk() { # LABEL PORT: connected, and waits for $WORK/go.LABEL
	start "$1" a python3 "$WORK/talk.py" "$IP_B" "$2" $BYTES "$WORK/go.$1"
	wait_for 10 log_has "$1" connected
}
go() { # LABEL
	touch "$WORK/go.$1"
	finish "$1" 60
}

# ---- a kernel connection that was open at listen() ----

start old b python3 "$WORK/echo.py" "$IP_B" $PORT alone
wait_for 10 log_has old listening
talk held $PORT
wait_for 10 log_has old accepted
check "a server listens where the kernel has a connection" serve server $PORT plain
before=$(resets) hits=$(rule_hits $PORT)
check "a kernel connection that was open at listen() moves its bytes" go held
check_eq "... and no RST is sent" "$(resets)" "$before"
if [ "$EXEMPTS" = 1 ]; then
	check_num "... past the listener's rule" $(($(rule_hits $PORT) - hits)) -lt 100
	check_num "... by a rule of its own" "$(card_count b rx_missed_by_rule)" -gt 1000
else
	check_num "... although the listener's rule takes its segments" $(($(rule_hits $PORT) - hits)) -gt 1000
fi
check "... and it has ended well" finish old 10

# ---- new ones are the server's ----

segments=$(snmp b Tcp InSegs)
talk fresh $PORT
check "a new connection to the same port moves its bytes" go fresh
check_eq "... and the kernel of the server sees none of its segments" "$(snmp b Tcp InSegs)" "$segments"
check_eq "... and no RST is sent" "$(resets)" "$before"

# ---- one that a forked child was handed ----

check "a server forks for its connections" serve forking $((PORT + 1)) fork
talk given $((PORT + 1))
check "... and hands them to its children" wait_for 10 log_has forking accepted
before=$(resets) segments=$(snmp b Tcp InSegs)
check "a connection that a child was handed moves its bytes" go given
check_eq "... and no RST is sent" "$(resets)" "$before"
check_num "... by the kernel" $(($(snmp b Tcp InSegs) - segments)) -gt 1000
if [ "$EXEMPTS" = 1 ]; then
	check "the card forgets connections that have ended" eval "wait_for 20 has_exempt $PORT 0 && wait_for 20 has_exempt $((PORT + 1)) 0"
	check_num "... of which there was one of a child's" "$(card_count b rx_missed_by_rule)" -gt 2000
fi

# ---- a neighbour's ----

# In b, plain, while preloaded programs there make and end connections from ephemeral ports.
start far a python3 "$WORK/echo.py" "$IP_A" $((PORT + 2)) plain
wait_for 10 log_has far listening
start neighbour b python3 "$WORK/talk.py" "$IP_A" $((PORT + 2)) $BYTES "$WORK/go.neighbour"
wait_for 10 log_has neighbour connected
cat >"$WORK/short.py" <<'PY'
import os, socket, sys, time
n, end = 0, time.monotonic() + 60
while not os.path.exists(sys.argv[3]) and time.monotonic() < end:
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
    s.sendall(b"y")
    assert s.recv(1) == b"y"
    s.close()
    n += 1
    if n % 20 == 0:
        print("made", n, flush=True)
PY
start short b "${preloaded[@]}" python3 "$WORK/short.py" "$IP_A" $((PORT + 2)) "$WORK/enough"
wait_for 20 log_has short 'made 20'
opens=$(snmp b Tcp ActiveOpens)
before=$(resets)
check "a neighbour's connection from an ephemeral port moves its bytes" go neighbour
touch "$WORK/enough"
check "... while others are made and ended" finish short 20
check "... of which there were some" log_has short 'made 20'
check_eq "... and none was the kernel's" "$(snmp b Tcp ActiveOpens)" "$opens"
check_eq "... and no RST is sent" "$(resets)" "$before"

# ---- all TCP of an address, by VMA_TCP_2T_RULES ----

address_rules() { card b rules | awk -v to="$IP_B:0" '$8 == 6 && $9 == "0.0.0.0:0" && $10 == to { n += 1 } END { print n + 0 }'; }
address_rules_are() { [ "$(address_rules)" -eq "$1" ]; }
own_rules() { # PORT: of connections to it
	card b rules | awk -v from=":$1" '$9 ~ from "$" { n++ } END { print n + 0 }'
}
start kernels b python3 "$WORK/echo.py" "$IP_B" $((PORT + 4)) plain
wait_for 10 log_has kernels listening
talk early $((PORT + 4))
wait_for 10 eval "[ \"\$(own_rules $((PORT + 2)))\" -eq 0 ]"
before=$(resets) missed=$(card_count b rx_missed_by_rule)
start covered b env VMA_TCP_2T_RULES=1 "${preloaded[@]}" python3 "$WORK/talk.py" "$IP_A" $((PORT + 2)) $BYTES "$WORK/go.covered" "$IP_B"
check "with VMA_TCP_2T_RULES a socket that is bound to an address connects" wait_for 20 log_has covered connected
check_eq "... by the address's rule" "$(address_rules) $(own_rules $((PORT + 2)))" "1 0"
check "a kernel connection of the address that was open before moves its bytes" go early
if [ "$EXEMPTS" = 1 ]; then
	check_num "... past the address's rule" $(($(card_count b rx_missed_by_rule) - missed)) -gt 1000
fi
talk late $((PORT + 4))
check "... and so does a new one" go late
start out b python3 "$WORK/talk.py" "$IP_A" $((PORT + 2)) $BYTES "$WORK/go.out"
wait_for 10 log_has out connected
check "... and one that begins there" go out
segments=$(snmp b Tcp InSegs)
card b "receives fail 1" >/dev/null
check "the socket's own moves its bytes, although its queue fails" go covered
check "... which is made anew" log_has covered 'offloaded again'
check_eq "... of which the kernel sees no segment" "$(snmp b Tcp InSegs)" "$segments"
check_eq "... and no RST is sent" "$(resets)" "$before"
check "... and the address's rule ends with its process" wait_for 10 address_rules_are 0
stop kernels

# ---- connections without rules of their own, of a listener that another socket takes over ----

# In b: echoes, of SO_REUSEPORT. The second one is the kernel's.
cat >"$WORK/shared.py" <<'PY'
import selectors, socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind((sys.argv[1], int(sys.argv[2])))
listener.listen(512)
listener.setblocking(False)
print("listening", flush=True)
poll = selectors.DefaultSelector()
poll.register(listener, selectors.EVENT_READ)
n = 0
while True:
    for key, _ in poll.select():
        if key.fileobj is listener:
            poll.register(listener.accept()[0], selectors.EVENT_READ)
            n += 1
            print("accepted", n, flush=True)
        elif data := key.fileobj.recv(100):
            key.fileobj.sendall(data)
        else:
            poll.unregister(key.fileobj)
            key.fileobj.close()
PY
# In a: a new connection every 5 ms, until the file GO is there; all speak all the time, and half a second longer.
cat >"$WORK/crowd.py" <<'PY'
import os, socket, sys, time
address, port, go = sys.argv[1], int(sys.argv[2]), sys.argv[3]
all, end, limit = [], None, time.monotonic() + 40
while end is None or time.monotonic() < end:
    if end is None and (os.path.exists(go) or time.monotonic() > limit):
        end = time.monotonic() + 0.5
    if end is None and len(all) < 1000:
        all.append(socket.create_connection((address, port), 20))
        all[-1].settimeout(20)
    for s in all[-20:]:
        s.sendall(b"x")
        assert s.recv(1) == b"x"
    time.sleep(0.005)
for s in all:
    s.sendall(b"y")
    assert s.recv(1) == b"y"
print("spoke", len(all), flush=True)
PY
gives_back() { log_has shared 'goes back to the kernel'; }
start shared b "${preloaded[@]}" python3 "$WORK/shared.py" "$IP_B" $((PORT + 3))
wait_for 20 log_has shared listening && wait_for 10 has_rule $((PORT + 3))
card b "rules slow 2" >/dev/null
before=$(resets)
start crowd a python3 "$WORK/crowd.py" "$IP_B" $((PORT + 3)) "$WORK/go.crowd"
wait_for 20 log_has shared 'accepted 20$'
start other b python3 "$WORK/shared.py" "$IP_B" $((PORT + 3))
check "another socket comes: the listener is the kernel's" wait_for 20 gives_back
check "... which gives the other some of what comes from then on" wait_for 20 log_has other accepted
check "connections of the listener without rules of their own, and later ones, go on" go crowd
check_eq "... and no RST is sent" "$(resets)" "$before"
card b "rules slow 0" >/dev/null
stop other
stop shared

for name in a b; do check_eq "no rule of the verbs is broken ($name)" "$(card_count $name violations)" 0; done
done_testing
