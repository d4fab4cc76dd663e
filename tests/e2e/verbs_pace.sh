#!/usr/bin/env bash
# SO_MAX_PACING_RATE of a UDP socket: a card that paces queue pairs paces the socket that has a ring of its own
# (VMA_RING_ALLOCATION_LOGIC_TX=10). A socket that shares its ring is told that it is not paced, and sends.
#
#   a (10.9.0.1): preloaded ---- card ---- wire ---- card ---- (10.9.0.2) b: kernel sockets
# seconds: 15
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
command -v python3 >/dev/null || cannot_run "no python3"
# The shell puts the library behind what the cards preload.
# shellcheck disable=SC2016
preloaded=("${with_cards[@]}" bash -c 'LD_PRELOAD="$LD_PRELOAD $0" exec "$@"' "$BUILD/libvma.so")
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-INFO}
cards_pair

cat >"$WORK/send.py" <<'PY'
# send.py ADDRESS: COUNT datagrams each on a socket of 1 MB/s (port 7000) and on one without a pace (7001)
import socket, struct, sys, time
COUNT = 300
SO_MAX_PACING_RATE = 47
paced, free = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
for s, port in (paced, 7000), (free, 7001):
    s.connect((sys.argv[1], port))
    s.send(bytes(1000)) # its ring is there when the pace is set
paced.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=I", 1000000))
for i in range(COUNT):
    paced.send(bytes(1000))
for i in range(COUNT):
    free.send(bytes(1000))
print("sent", flush=True)
time.sleep(60) # what still waits in the card ends with its queue pair
PY
cat >"$WORK/receive.py" <<'PY'
# receive.py ADDRESS paced|free: what is expected of both
import select, socket, sys, time
COUNT = 301
ports = {}
for port in 7000, 7001:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    s.bind((sys.argv[1], port))
    ports[s] = [port, 0, 0]
print("ready", flush=True)
left, start, order = 2 * COUNT, None, []
while left:
    ready, _, _ = select.select(list(ports), [], [], 20)
    assert ready, {p[0]: p[1] for p in ports.values()}
    for s in ready:
        s.recv(2000)
        about = ports[s]
        about[1] += 1
        if about[1] == 2:
            about[2] = time.monotonic()
        if about[1] == COUNT:
            order.append(about[0])
            print(about[0], "took", time.monotonic() - about[2], flush=True)
            about[2] = time.monotonic() - about[2]
        left -= 1
took = {about[0]: about[2] for about in ports.values()}
if sys.argv[2] == "paced":
    # 300 of 1042 bytes with a burst of some milliseconds: 0.31 s at least. The other one overtakes it.
    assert took[7000] > 0.25 and order == [7001, 7000], (took, order)
else:
    assert order == [7000, 7001], (took, order)
print("right", flush=True)
PY

is() { # paced|free ASSIGNMENTS...
	start receiver b python3 "$WORK/receive.py" "$IP_B" "$1"
	wait_for 10 log_has receiver ready || return
	before=$(snmp a Udp OutDatagrams)
	shift
	start sender a env "$@" "${preloaded[@]}" python3 "$WORK/send.py" "$IP_B"
	finish receiver 30
	local rc=$?
	after=$(snmp a Udp OutDatagrams)
	stop sender
	[ $rc -eq 0 ] && log_has receiver right
}

check "a socket with a ring of its own is paced, and holds up no other" is paced VMA_RING_ALLOCATION_LOGIC_TX=10
check_num "... and the kernel sent none of it" "$((after - before))" -le 10
check "... without a word" bash -c "! grep -q 'not paced' '$WORK/sender.log'"
check "a socket that shares its ring sends without a pace" is free VMA_RING_ALLOCATION_LOGIC_TX=0
check_num "... and the kernel sent none of it" "$((after - before))" -le 10
check "... and the log says so" log_has sender "SO_MAX_PACING_RATE: not paced: the socket shares its ring"
for name in a b; do check_eq "the pace broke no rule of the verbs ($name)" "$(card_count $name violations)" 0; done
done_testing
