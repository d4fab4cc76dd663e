#!/usr/bin/env bash
# tcp_ports: a client that uses up its ports goes on making connections as fast as before; and a port that has become free
# is found at once, though a moment ago there was none.
#
#   a (client, offloaded)  10.9.0.1 ---- veth ---- 10.9.0.2  (server, offloaded) b
#
# Ports of connections that have ended rest in TIME_WAIT. A client that is too slow to use up half of all ports in a
# second passes, too.
# alone: the client is to be quick
# seconds: 12
. "$(dirname "$0")/../lib.sh"
LOAD=$BUILD/bench/tcp_load with=LD_PRELOAD=$BUILD/libvma.so
export VMA_TRACELEVEL=WARNING
need_xdp
if [ -n "$SAN" ]; then
	skip "connections in four seconds are more than twice as many as in one" "a sanitizer's build is too slow"
	done_testing
fi

made_in() { # MSEC: how many connections
	in_ns a env "$with" "$LOAD" connect --local "$IP_A" --peer "$IP_B" --msec "$1" 2>"$WORK/load.log" |
		awk -v msec="$1" '$1 == "per_sec" { print int($2 * msec / 1000) }'
}

net_pair
start far b env "$with" "$LOAD" serve --local "$IP_B"
check "the server listens" wait_for 10 in_ns b sh -c "ss -Hltn 'sport = :7400' | grep -q ."
one=$(made_in 1000)
four=$(made_in 4000)
note "connections in 1 s: $one, in 4 s: $four"
check_num "a client makes connections" "${one:-0}" -gt 100
check_num "in four seconds more than twice as many as in one" "${four:-0}" -gt $((${one:-0} * 2))
stop far

# ---- all ports in use, then one free ----

cat >"$WORK/fill.py" <<'END'
# fill.py ADDRESS PORT: as many connections as there are ports, then one less, again and again: its server is in a.
import errno, socket, sys, time
peer = (sys.argv[1], int(sys.argv[2]))
held = []
def attempt():
    s = socket.socket()
    rc = s.connect_ex(peer)
    if rc == 0:
        held.append(s)
    return errno.errorcode.get(rc, "connected")
while (rc := attempt()) == "connected":
    pass
print("ports", len(held), rc)
for n in range(20):
    s = held.pop(n * 13 % len(held))
    s.send(b"e")           # the server closes first, so this side has no TIME_WAIT
    assert s.recv(1) == b""
    s.close()
    time.sleep(0.02)       # the server acknowledges this end
    print(attempt(), attempt())
END
cat >"$WORK/hold.py" <<'END'
# hold.py ADDRESS PORT: closes a connection that says something.
import selectors, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=1000)
ready = selectors.DefaultSelector()
ready.register(listener, selectors.EVENT_READ)
print("ready", flush=True)
while True:
    for key, _ in ready.select():
        s = key.fileobj
        if s is listener:
            ready.register(s.accept()[0], selectors.EVENT_READ)
        else:
            s.recv(1)
            ready.unregister(s)
            s.close()
END
in_ns a sysctl -qw net.ipv4.ip_local_port_range="40000 40499"
start hold b python3 "$WORK/hold.py" "$IP_B" 7500
wait_for 10 log_has hold "^ready"
in_ns a python3 "$WORK/fill.py" "$IP_B" 7500 >"$WORK/fill.kernel" 2>&1
check_eq "kernel sockets have each port that is free, and no other" "$(sort "$WORK/fill.kernel" | uniq -c | awk '{ $1 = $1 } 1')" \
	"20 connected EADDRNOTAVAIL
1 ports 500 EADDRNOTAVAIL"
stop hold
in_ns a sysctl -qw net.ipv4.ip_local_port_range="41000 41499" # the others rest in the kernel's TIME_WAIT
start held b python3 "$WORK/hold.py" "$IP_B" 7501
wait_for 10 log_has held "^ready"
in_ns a env "$with" python3 "$WORK/fill.py" "$IP_B" 7501 >"$WORK/fill.ours" 2>&1
check_eq "so have ours" "$(cat "$WORK/fill.ours")" "$(cat "$WORK/fill.kernel")"
stop held
done_testing
