#!/usr/bin/env bash
# A listener under a flood of forged connection requests: it survives, what it remembers of them is bounded, and real
# clients get in during and after, as with kernel sockets.
#
#   a: the flood by a packet socket, and clients on kernel sockets      veth      b: an echo server, preloaded
# seconds: 6
. "$(dirname "$0")/../lib_programs.sh"
net_pair
PORT=7000 RATE=50000 SECONDS_OF_FLOOD=2
[ -z "$SAN" ] || RATE=5000

cat >"$WORK/server.py" <<'END'
# server.py IP PORT: one client after the other says a word, and gets it back.
import socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((sys.argv[1], int(sys.argv[2])))
listener.listen(128)
print("listening", flush=True)
while True:
    c, _ = listener.accept()
    with c:
        while data := c.recv(4096):
            c.sendall(data)
END

cat >"$WORK/flood.py" <<'END'
# flood.py INTERFACE MAC_FROM MAC_TO IP_TO PORT RATE SECONDS: SYNs from 198.18.0.0/15, each from another address.
import random, socket, struct, sys, time
interface, mac_from, mac_to, ip_to, port, rate, seconds = sys.argv[1:]
rate, seconds = int(rate), float(seconds)
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind((interface, 0))
ethernet = bytes.fromhex((mac_to + mac_from).replace(":", "")) + b"\x08\x00"
to = socket.inet_aton(ip_to)

def folded(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    total = (total & 0xffff) + (total >> 16)
    return ~((total & 0xffff) + (total >> 16)) & 0xffff

def frame(chance):
    source = struct.pack("!I", 0xc6120000 | chance.getrandbits(17))
    tcp = struct.pack("!HHIIBBHHHBBH", 1024 + chance.getrandbits(15), int(port), chance.getrandbits(32), 0, 0x60, 2,
                      64240, 0, 0, 2, 4, 1460)
    tcp = tcp[:16] + struct.pack("!H", folded(source + to + struct.pack("!HH", 6, len(tcp)) + tcp)) + tcp[18:]
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), chance.getrandbits(16), 0, 64, 6, 0, source, to)
    return ethernet + ip[:10] + struct.pack("!H", folded(ip)) + ip[12:] + tcp

chance = random.Random(1)
frames = [frame(chance) for _ in range(20000)]
print("flooding", flush=True)
begin, sent = time.monotonic(), 0
while (passed := time.monotonic() - begin) < seconds:
    for _ in range(min(int(passed * rate) - sent, 500)):
        try:
            raw.send(frames[sent % len(frames)])
        except BlockingIOError:
            pass
        except OSError:
            time.sleep(0.0001) # the link's queue is full
        sent += 1
    time.sleep(0.0005)
print("sent", sent, flush=True)
END

cat >"$WORK/clients.py" <<'END'
# clients.py IP PORT COUNT: one after the other connects, says a word and gets it back. How long the slowest took, in ms.
import socket, sys, time
slowest = 0
for i in range(int(sys.argv[3])):
    begin = time.monotonic()
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as c:
        c.sendall(b"word %d" % i)
        assert c.recv(100) == b"word %d" % i
    slowest = max(slowest, time.monotonic() - begin)
    time.sleep(0.05)
print("slowest", int(1000 * slowest))
END

rss_kb() {
	sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\).*/\1/p' "/proc/${PID[server]}/status"
}

clients() { # COUNT
	in_ns a python3 "$WORK/clients.py" "$IP_B" $PORT "$1"
}

clients_are_quick() { # COUNT: all get in, none waits for a SYN to be said again twice
	local out
	out=$(clients "$1") || return
	echo "$out"
	[ "${out##* }" -lt 2500 ]
}

in_ns b sh -c 'echo 1 >/proc/sys/net/ipv4/tcp_syncookies'
# Answers to forged addresses go somewhere.
ip -n "$(ns a)" route add blackhole 198.18.0.0/15
ip -n "$(ns b)" route add 198.18.0.0/15 via "$IP_A"
start server b env "$preload" python3 "$WORK/server.py" "$IP_B" $PORT
check "the server listens" wait_for 20 log_has server listening
check "clients get in before the flood" clients_are_quick 3
before=$(rss_kb)
passive=$(snmp b Tcp PassiveOpens)
flooded_clients() { # how long the slowest of them takes
	local rc
	start flood a python3 "$WORK/flood.py" "$IF_A" "$MAC_A" "$MAC_B" "$IP_B" $PORT $RATE $SECONDS_OF_FLOOD
	check "the flood begins" wait_for 20 log_has flood flooding
	clients 20 >"$WORK/flooded" 2>&1
	rc=$?
	slowest=$(awk '$1 == "slowest" { print $2 }' "$WORK/flooded")
	note "$(tail -n 1 "$WORK/flooded")"
	check "the flood has ended" wait_for 20 log_has flood '^sent'
	note "$(tail -n 1 "$WORK/flood.log")"
	check "the flooder ends well" finish flood 5
	return $rc
}
# The server may have no core while it is flooded, and a client's SYN is lost as one of many: not each time.
remeasure 3 "milliseconds of the slowest client during the flood" slowest -lt 2500 flooded_clients
check_num "clients get in during the flood" "$slowest" -lt 2500
check "clients get in after the flood" clients_are_quick 5
check "the server lives" alive server
after=$(rss_kb)
note "memory: $before kB before, $after kB after"
[ -n "$SAN" ] || check_num "its memory has grown by less than 8 MB" $((after - before)) -lt 8192
check_eq "the kernel of b accepted none of them" "$(snmp b Tcp PassiveOpens)" "$passive"
done_testing
