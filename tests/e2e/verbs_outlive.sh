#!/usr/bin/env bash
# Connections over an RDMA card outlive their process, if a vmad runs: by a queue pair of its own it acknowledges late
# ends and resets what nobody will read. The kernel, which would reset all of it, sees nothing. That no reset came to a peer
# is seen on its interface: the kernel counts those of open connections only (EstabResets). When nothing more is to be
# expected vmad lets go of the card. A vmad that is killed leaves its connections to the kernel.
#
#   a (10.9.0.1, kernel sockets) vs_a ---- card ---- wire ---- card ---- vs_b (10.9.0.2, preloaded, and a vmad) b
# seconds: 40
# test-all: connections are waited for that outlive their processes
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
command -v python3 >/dev/null || cannot_run "no python3"
BYTES=1000000 MANY=50 talk=$ROOT/tests/e2e/talk.py
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-INFO} VMA_NIC=verbs
cards_pair

# shellcheck disable=SC2016
preloaded=("${with_cards[@]}" bash -c 'LD_PRELOAD="$LD_PRELOAD $0" exec "$@"' "$BUILD/libvma.so")

# gives.py ADDRESS PORT BYTES [SNDBUF]: sends them to whoever comes first, and ends at once.
cat >"$WORK/gives.py" <<'PY'
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
s, _ = listener.accept()
if len(sys.argv) > 4:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, int(sys.argv[4]))
s.sendall(b"".join(b"%07d\n" % i for i in range(int(sys.argv[3]) // 8)))
PY

# takes.py ADDRESS PORT BYTES FILE: takes them slowly, has its end wait for the file, and ends. Without bytes: waits for the
# file, and is reset sooner or later.
cat >"$WORK/takes.py" <<'PY'
import os, socket, sys, time
address, port, size, go = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
def wait():
    while not os.path.exists(go):
        time.sleep(0.01)
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
s.settimeout(20)
s.connect((address, port))
if size == 0:
    wait()
    try:
        while s.recv(65536):
            pass
        sys.exit("an end of stream")
    except ConnectionResetError:
        sys.exit(0)
data = b""
while piece := s.recv(40000):
    data += piece
    time.sleep(0.02)
assert data == b"".join(b"%07d\n" % i for i in range(size // 8)), "%d bytes, or others" % len(data)
print("whole", flush=True)
wait()
PY

# has_many.py PORT COUNT FILE: a server that hears and says a word on each connection, waits for the ends of all, and for
# the file, and ends them.
cat >"$WORK/has_many.py" <<'PY'
import os, socket, sys, time
listener = socket.create_server(("10.9.0.1", int(sys.argv[1])), backlog=128)
print("listening", flush=True)
conns = [listener.accept()[0] for _ in range(int(sys.argv[2]))]
for s in conns:
    assert s.recv(4, socket.MSG_WAITALL) == b"word"
    s.sendall(b"word")
for s in conns:
    assert s.recv(1) == b""
print("ended", flush=True)
while not os.path.exists(sys.argv[3]):
    time.sleep(0.01)
for s in conns:
    s.close()
PY
cat >"$WORK/leaves_many.py" <<'PY'
import socket, sys
conns = [socket.create_connection(("10.9.0.1", int(sys.argv[1])), 10) for _ in range(int(sys.argv[2]))]
for s in conns:
    s.sendall(b"word")
for s in conns:
    assert s.recv(4, socket.MSG_WAITALL) == b"word"
    s.close()
PY

# resets.py INTERFACE: a line "RST FROM TO" of the ports of each segment with RST that comes in; "mark TO" of each datagram.
# The filter (classic BPF) lets only these through, so that none is lost among the others.
cat >"$WORK/resets.py" <<'PY'
import ctypes, socket, struct, sys
code = [
    (0x28, 0, 0, 12), (0x15, 0, 8, 0x0800),  # IPv4
    (0x30, 0, 0, 23), (0x15, 5, 0, 17),  # UDP
    (0x15, 0, 5, 6), (0xb1, 0, 0, 14), (0x50, 0, 0, 27), (0x45, 1, 0, 4),  # TCP, and RST
    (0x06, 0, 0, 0), (0x06, 0, 0, 128), (0x06, 0, 0, 0),
]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
s.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", len(code), ctypes.addressof(program)))  # SO_ATTACH_FILTER
s.bind((sys.argv[1], 0x0800))
print("looking", flush=True)
while True:
    frame, where = s.recvfrom(200)
    if where[2] == socket.PACKET_OUTGOING:
        continue
    at = 14 + (frame[14] & 15) * 4
    source, target = struct.unpack_from("!HH", frame, at)
    print("RST %d %d" % (source, target) if frame[23] == 6 else "mark %d" % target, flush=True)
PY

vmad_start() {
	start vmad b "${with_cards[@]}" "$BUILD/bin/vmad" --foreground "$IF_B"
	wait_for 10 log_has vmad "owns" || cannot_run "vmad does not start"
}
rules() { # PORT: connections that have rules of their own at b's card
	card b rules | awk -v port=":$1" '$9 != "0.0.0.0:0" && ($10 ~ port "$" || $9 ~ port "$") { n++ } END { print n + 0 }'
}
rules_are() { [ "$(rules "$1")" -eq "$2" ]; } # PORT COUNT
minisocks() { # STATE: how many vmad has
	in_ns b "$BUILD/bin/vma_stats" --vmad "$IF_B" 2>/dev/null | sed -n "s/.*minisocks:.*$1 \([0-9]*\).*/\1/p"
}
minisocks_are() { [ "$(minisocks "$1")" = "$2" ]; } # STATE COUNT
has_card() { grep -q vma-verbs "/proc/${PID[vmad]}/maps"; } # registered memory
has_no_card() { ! has_card; }
acknowledged() { # of a's connections nothing waits for an acknowledgement
	! in_ns a ss -Htn state last-ack state closing state fin-wait-1 | grep -q .
}
count() { segments=$(snmp b Tcp InSegs) resets=$(snmp a Tcp EstabResets) sent=$(snmp b Tcp OutRsts); }
still() { # SENTENCE [MOST]: so many segments of the kernel's own, by which it keeps a listener's port (TIME_WAIT)
	check_num "$1: b's kernel saw no segment" "$(($(snmp b Tcp InSegs) - segments))" -le "${2:-0}"
	check_eq "$1: and sent no RST" "$(snmp b Tcp OutRsts)" "$sent"
}
# All that b sent until now has come: a datagram of b's kernel that was sent behind it has.
marks=0
all_came() {
	marks=$((marks + 1))
	in_ns b python3 -c 'import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", ("10.9.0.1", int(sys.argv[1])))' $((9000 + marks))
	wait_for 10 log_has resets "^mark $((9000 + marks))\$"
}
resets_of() { # PORT: of connections that have it on either side
	all_came || echo "the mark did not come"
	grep -cE "^RST ($1 [0-9]+|[0-9]+ $1)\$" "$WORK/resets.log"
}
not_reset() { # SENTENCE PORT: none came to a of these connections; nor did a's kernel count one since `count`
	check_eq "$1" "$(resets_of "$2")" 0
	check_eq "... by a's count either" "$(snmp a Tcp EstabResets)" "$resets"
}
was_reset() { # SENTENCE PORT
	check_num "$1" "$(resets_of "$2")" -gt 0
}
now() { touch "$WORK/$1"; }
talk_b() { # LABEL ARGUMENT...
	local label=$1
	shift
	start "$label" b "${preloaded[@]}" python3 "$talk" "$@"
}
talk_a() { # LABEL ARGUMENT...
	local label=$1
	shift
	start "$label" a python3 "$talk" "$@"
}
serve_a() { # PORT ACTION...
	local port=$1
	shift
	talk_a server listen "$IP_A" "$port" 0 "$@"
	wait_for 20 log_has server listening
}

start resets a python3 "$WORK/resets.py" "$IF_A"
wait_for 10 log_has resets looking || cannot_run "no packet sockets"
vmad_start
check "a vmad that nobody needs has no card" has_no_card

# ---- a server sends a lot, and ends at once ----

count
start gives b "${preloaded[@]}" python3 "$WORK/gives.py" "$IP_B" 7000 $BYTES
wait_for 20 log_has gives listening
start takes a python3 "$WORK/takes.py" "$IP_B" 7000 $BYTES "$WORK/go0"
check "a server sends $BYTES bytes, and ends at once" finish gives 20
check "its peer, which reads slowly, has all of them, and the end" wait_for 20 log_has takes whole
check "vmad has the connection" wait_for 5 minisocks_are fin-wait 1
check "... by a rule of its own" rules_are 7000 1
check "... and a queue pair" has_card
now go0
check "the peer ends later" finish takes 20
check "... and is acknowledged" wait_for 5 acknowledged
not_reset "... not reset" 7000
still "a server's end" 3

# ---- a client closes, and ends ----

count
serve_a 7001 hear say end "wait=$WORK/go1" close
talk_b client connect "$IP_A" 7001 0 say hear close
check "a client closes first, and ends" finish client 10
wait_for 5 minisocks_are fin-wait 1
now go1
check "its server closes later" finish server 5
check "... and is acknowledged" wait_for 5 acknowledged
not_reset "... not reset" 7001
still "a client's end"

serve_a 7002 hear say end "wait=$WORK/go2" broken
talk_b client connect "$IP_A" 7002 0 say hear close
check "another client closes first, and ends" finish client 10
now go2
check "data that nobody will read is reset" finish server 5
was_reset "... which came to the server" 7002
still "late data"

# ---- what is cut ----

count
talk_b unread listen "$IP_B" 7003 0 hear "wait=$WORK/go3"
wait_for 20 log_has unread listening
talk_a client connect "$IP_B" 7003 0 say say reset
wait_for 20 log_has client "done say"
sleep 0.3
now go3
check "a server ends that has not read everything" finish unread 10
check "... and its peer is reset" finish client 5
was_reset "... which came to the peer" 7003
still "unread data" 3

count
start gives b "${preloaded[@]}" python3 "$WORK/gives.py" "$IP_B" 7004 $((BYTES / 2)) $BYTES
wait_for 20 log_has gives listening
start takes a python3 "$WORK/takes.py" "$IP_B" 7004 0 "$WORK/go4"
check "a server has sent what its peer does not read, and ends" finish gives 20
check "... vmad has the connection" rules_are 7004 1
sleep 1
now go4
check "... and resets it" finish takes 10
was_reset "... which came to the peer" 7004
still "a connection that was cut" 3

# ---- who comes next ----

serve_a 7005 hear say end close
talk_b client connect "$IP_A" 7005 40005 say hear close
check "a client has a port" finish client 10
finish server 5
count
serve_a 7005 hear say end close
talk_b client connect "$IP_A" 7005 40005 say hear close
check "the next one has the same port at once, to the same server" finish client 10
check "... and it is whole" finish server 5
not_reset "... and neither of the two was reset" 7005
still "the second connection"

serve_a 7006 hear say end "wait=$WORK/never"
talk_b client connect "$IP_A" 7006 40006 say hear close
check "another client closes first, and ends" finish client 10
wait_for 5 minisocks_are fin-wait 1
talk_a late "$WORK/go6" "$IP_B" 40006 7006 say hear
start listens b python3 "$talk" listen "$IP_B" 40006 0 hear say
wait_for 20 log_has listens listening && wait_for 20 log_has late ready
stop server KILL # its kernel ends the connection
wait_for 5 acknowledged
now go6
check "its server connects back by the same ports, to a socket of b's kernel" finish late 10
check "... which has the connection" finish listens 10
check "... and vmad has not" rules_are 40006 0

# ---- many at once ----

count
start server a python3 "$WORK/has_many.py" 7008 $MANY "$WORK/go8"
wait_for 20 log_has server listening
check "a client leaves $MANY connections at once" in_ns b "${preloaded[@]}" python3 "$WORK/leaves_many.py" 7008 $MANY
check "vmad has all of them" wait_for 5 minisocks_are fin-wait $MANY
check_num "... by rules (the card shows some of them)" "$(rules 7008)" -gt 10
now go8
check "their server ends them" finish server 10
check "... and each end is acknowledged" wait_for 5 acknowledged
not_reset "... none is reset" 7008
still "many ends"

# ---- when nothing more is to be expected ----

check "the rules end" wait_for 20 rules_are 7008 0
check "no connection is left but in TIME_WAIT" wait_for 10 minisocks_are fin-wait 0
check "... and vmad lets go of the card" wait_for 15 has_no_card

# ---- a vmad that is killed ----

serve_a 7009 hear say end "wait=$WORK/go9" close
talk_b client connect "$IP_A" 7009 0 say hear close
check "a client closes first once more, and ends" finish client 10
check "... vmad has the connection" wait_for 5 rules_are 7009 1
stop vmad KILL
check "vmad is killed: its rule has gone" wait_for 5 rules_are 7009 0
sent=$(snmp b Tcp OutRsts)
now go9
check "the server closes" finish server 5
refused() { [ "$(snmp b Tcp OutRsts)" -gt "$sent" ]; }
check "... and is reset by b's kernel" wait_for 5 refused
was_reset "... which came to the server" 7009
serve_a 7010 hear say end "wait=$WORK/go10" close
talk_b client connect "$IP_A" 7010 0 say hear close
check "without a vmad a client ends as well" finish client 10
check "... and leaves no rule" rules_are 7010 0
now go10
finish server 5
vmad_start
count
serve_a 7011 hear say end "wait=$WORK/go11" close
talk_b client connect "$IP_A" 7011 0 say hear close
check "another vmad has come: a client closes first, and ends" finish client 10
check "... and vmad has the connection" wait_for 5 minisocks_are fin-wait 1

# ---- a card that goes ----

card b remove
check "the card is taken away: vmad gives the connection up" wait_for 5 log_has vmad "its card is lost"
check "... and holds nothing of it" wait_for 5 has_no_card
check "... and lives" alive vmad
now go11
finish server 5
stop vmad
stop resets

for name in a b; do check_eq "no rule of the verbs is broken ($name)" "$(card_count $name violations)" 0; done
cards_end
done_testing
