#!/usr/bin/env bash
# vma_dump: a capture has exactly the packets that a program moved, right to the last bit; a reader that is slow, hostile
# or killed does nothing to the program.
#
#   a (client)  10.9.0.1 ---- veth ---- 10.9.0.2  (server, captured) b
# test-all: captures last for seconds, and readers are slow on purpose
# seconds: 90
. "$(dirname "$0")/../lib.sh"
need_xdp
net_pair
DIR=$WORK/stats
mkdir "$DIR"
export VMA_STATS_SHMEM_DIR=$DIR
with=LD_PRELOAD=$BUILD/libvma.so
TRAFFIC="python3 $ROOT/tests/e2e/stats_traffic.py"
ROUNDS=10000

begin() { # LABEL NAMESPACE ROLE...: preloaded; $fd is its socket
	local label=$1 name=$2
	shift 2
	# shellcheck disable=SC2086 # two words
	start "$label" "$name" env "$with" $TRAFFIC "$@"
	check "$label starts" wait_for 20 log_has "$label" "^ready"
	fd=$(sed -n 's/^ready //p' "$WORK/$label.log")
}

capture() { # LABEL ARGUMENTS...: of vma_dump, in the background, to $WORK/LABEL.pcapng
	local label=$1
	shift
	start "$label" b "$BUILD/bin/vma_dump" -w "$WORK/$label.pcapng" "$@"
	check "$label: it captures" wait_for 20 log_has "$label" "capturing"
}

frames() { # LABEL FILTER: how many there are
	tshark -r "$WORK/$1.pcapng" -o udp.check_checksum:TRUE -o tcp.check_checksum:TRUE -o ip.check_checksum:TRUE \
		-Y "$2" 2>/dev/null | wc -l
}
BAD='udp.checksum.bad or tcp.checksum.bad or ip.checksum.bad or _ws.malformed or udp.length.bad'

# ---- who is there ----

begin server b udp "$IP_B" 7001 1000000000
server_fd=$fd
check_eq "the program is listed" "$("$BUILD/bin/vma_dump" -D)" "${PID[server]} python3"
check_eq "another user sees none" "$(setpriv --reuid 65534 --regid 65534 --clear-groups "$BUILD/bin/vma_dump" -D)" ""
check_eq "and gets nothing" "$(setpriv --reuid 65534 --regid 65534 --clear-groups "$BUILD/bin/vma_dump" \
	-p "${PID[server]}" -w - 2>/dev/null | wc -c)" 0

# ---- exactly what was moved ----

start warm a $TRAFFIC ask "$IP_B" 7001 2
check "the path is warm" finish warm 20
capture udp -p "${PID[server]}"
start asker a $TRAFFIC ask "$IP_B" 7001 $ROUNDS
check "$ROUNDS round trips" finish asker 100
stop udp INT
if command -v tshark >/dev/null; then
	check_eq "each datagram once, in" "$(frames udp "frame.packet_flags_direction == 1")" $ROUNDS
	check_eq "and out" "$(frames udp "frame.packet_flags_direction == 2")" $ROUNDS
	check_eq "all are of these ports and this length" \
		"$(frames udp "udp.port == 7001 and udp.length == 208")" $((2 * ROUNDS))
	check_eq "no checksum and no length is wrong" "$(frames udp "$BAD")" 0
	check_eq "the interface has its name" "$(frames udp "frame.interface_name == \"$IF_B\"")" $((2 * ROUNDS))
else
	skip "each datagram once, in and out" "no tshark"
fi
check "nothing was lost" log_has udp "^$((2 * ROUNDS)) packets written, $((2 * ROUNDS)) seen, 0 lost"

# ---- long datagrams, whose checksum the device finishes ----

capture long -p "${PID[server]}"
in_ns a python3 -c "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(('$IP_B', 7001))
for n in range(1000, 1401, 4):
    s.send(bytes([n % 256]) * n)
    s.recv(2000)"
stop long INT
if command -v tshark >/dev/null; then
	check_eq "long ones, too, and their checksums are whole" "$(frames long "udp.checksum.status == 1")" 202
	check_eq "none is wrong" "$(frames long "$BAD")" 0
fi

# ---- filter, descriptor, length, count ----

begin other b udp "$IP_B" 7002 1000000000
capture filtered -p "${PID[server]}" udp src port 7001
capture of_fd -p "${PID[server]}" -d "$server_fd" -s 60 -c 10
start asker a $TRAFFIC ask "$IP_B" 7001 50
check "two readers at a time" finish asker 20
stop filtered INT
check "a filter takes what goes out only" log_has filtered "^50 packets written, 100 seen, 0 lost"
check "a count ends a capture" finish of_fd 10
check "after so many" log_has of_fd "^10 packets written"
if command -v tshark >/dev/null; then
	check_eq "cut to a length" "$(frames of_fd "frame.cap_len == 60 and frame.len == 242")" 10
fi
! "$BUILD/bin/vma_dump" -p "${PID[server]}" -w - nonsense >/dev/null 2>&1
check "a filter that is none is refused" test $? -eq 0
! "$BUILD/bin/vma_dump" -p "${PID[server]}" -d 999 -w - >/dev/null 2>&1
check "so is a descriptor that is no socket" test $? -eq 0
stop other

# ---- TCP ----

begin listener b listen "$IP_B" 7003
capture tcp -p "${PID[listener]}"
start client a $TRAFFIC tcp "$IP_B" 7003 500
check "a client of TCP" wait_for 30 log_has client "^info"
stop client
wait_for 10 log_has listener "^ended"
sleep 0.2
stop tcp INT
if command -v tshark >/dev/null; then
	check_num "segments in and out" "$(frames tcp "tcp.len == 100")" -ge 1000
	check_eq "no checksum and no length is wrong" "$(frames tcp "$BAD")" 0
	check_eq "and no segment is missing" "$(frames tcp "tcp.analysis.lost_segment or tcp.analysis.ack_lost_segment")" 0
fi
stop listener

# ---- drops ----

begin deaf b group "$IP_B" 7004 224.4.1.
capture drops -p "${PID[deaf]}"
in_ns a python3 -c "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(500): s.sendto(bytes(1000), ('$IP_B', 7004))"
sleep 0.5
stop drops INT
dropped=$("$BUILD/tests/measure/print_stats" "$DIR/vmastat.${PID[deaf]}" | awk '$1 == "ring.rx_drop_sink" { n += $2 } END { print n }')
if command -v tshark >/dev/null; then
	check_eq "a dropped packet says why, as often as it was counted" \
		"$(frames drops 'frame.comment == "dropped: rx_drop_sink"')" "$dropped"
	check_num "and many were dropped" "$dropped" -gt 200
fi
stop deaf

# ---- drops of packets that were copied meanwhile, and of datagrams in fragments ----

send_to() { # PORT COUNT BYTES: no faster than the ring is emptied
	in_ns a python3 -c "import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range($2):
    s.sendto(bytes($3), ('$IP_B', $1))
    time.sleep(0.0005)"
}
counted() { # PROCESS COUNTER: of all its blocks
	"$BUILD/tests/measure/print_stats" "$DIR/vmastat.${PID[$1]}" | awk -v name="$2" '$1 == name { n += $2 } END { print n + 0 }'
}
# With a long receive queue the frames of the window are used up before it is full: what comes then is copied out.
start hoarder b env "$with" VMA_RX_WRE=64 python3 -c "import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 400000) # SO_RCVBUFFORCE
s.bind(('$IP_B', 7005))
print('ready', flush=True)
time.sleep(1000)"
check "hoarder starts" wait_for 20 log_has hoarder "^ready"
capture copies -p "${PID[hoarder]}"
send_to 7005 1500 1000
sleep 0.5
stop copies INT
dropped=$(counted hoarder ring.rx_drop_sink) copied=$(counted hoarder cq.copied_out)
if command -v tshark >/dev/null; then
	check_num "frames were copied out" "$copied" -gt 100
	check_num "and packets dropped" "$dropped" -gt 100
	check_eq "a copy that is dropped says why" "$(frames copies 'frame.comment == "dropped: rx_drop_sink"')" "$dropped"
fi
stop hoarder

begin deaf b udp "$IP_B" 7006 0
capture fragments -p "${PID[deaf]}"
send_to 7006 300 4000
in_ns a python3 - "$IP_B" <<'END'
# A fragment that comes twice, and one whose datagram never becomes whole.
import socket, struct, sys, time
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
def fragment(number, offset, more, data):
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(data), number, offset // 8 | (0x2000 if more else 0), 64, 17, 0,
                       socket.inet_aton("10.9.0.1"), socket.inet_aton(sys.argv[1]))
    raw.sendto(head + data, (sys.argv[1], 0))
first = struct.pack(">HHHH", 9000, 7006, 2008, 0) + bytes(1000)
fragment(4242, 0, True, first)
fragment(4242, 0, True, first)
time.sleep(1.1)
fragment(4243, 0, True, first)
END
sleep 0.5
dropped=$(counted deaf ring.rx_drop_sink) pieces=$(counted deaf ring.rx_drop_ip_fragment)
stop fragments INT
if command -v tshark >/dev/null; then
	check_num "datagrams in fragments are dropped" "$dropped" -gt 100
	check_eq "each of the three fragments says why" \
		"$(frames fragments 'frame.comment == "dropped: rx_drop_sink"')" $((3 * dropped))
	check_eq "so does one that comes twice, and one that waits in vain" \
		"$pieces $(frames fragments 'frame.comment == "dropped: rx_drop_ip_fragment"')" "2 2"
fi
stop deaf

# ---- the program closes what it does not know ----

start closer b env "$with" python3 -c "import os, socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('$IP_B', 7007))
print('ready', flush=True)
while True:
    data, peer = s.recvfrom(2000)
    if data == b'close':
        for fd in range(3, 4096):
            if fd != s.fileno():
                try: os.close(fd)
                except OSError: pass
    s.sendto(data, peer)"
check "closer starts" wait_for 20 log_has closer "^ready"
ask_closer() { # WORD
	in_ns a python3 -c "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(10)
s.sendto(b'$1', ('$IP_B', 7007))
s.recv(2000)"
}
capture before -p "${PID[closer]}"
check "a program that is captured answers" ask_closer hello
stop before INT
check "it closes all that it does not know" ask_closer close
capture after -p "${PID[closer]}"
check "and answers" ask_closer hello
stop after INT
check "the memory of the capture was left to it" log_has after "^2 packets written, 2 seen, 0 lost"
stop closer

# ---- readers that are slow, hostile, or die ----

# A pipe that nobody empties stops vma_dump after 64 KB.
mkfifo "$WORK/pipe"
sleep 1000 3<>"$WORK/pipe" &
holder=$!
start slow b "$BUILD/bin/vma_dump" -p "${PID[server]}" -w "$WORK/pipe"
check "a reader whose output is stuck" wait_for 20 log_has slow "capturing"
# All of them within the two seconds for which the process captures unasked.
start asker a $TRAFFIC ask "$IP_B" 7001 $ROUNDS 50
check "the program goes on" finish asker 100
sleep 3 # the process has not been asked for so long that it has ended the capture
(timeout 60 cat "$WORK/pipe" >"$WORK/slow.pcapng" &)
# What was kept is written; then it asks again, and the process begins a new capture.
written() { # its size does not grow
	local before
	before=$(stat -c %s "$WORK/slow.pcapng")
	sleep 1
	[ "$before" -gt 0 ] && [ "$(stat -c %s "$WORK/slow.pcapng")" = "$before" ]
}
check "a reader that comes late gets what was kept" wait_for 20 written
start asker a $TRAFFIC ask "$IP_B" 7001 10
check "and on" finish asker 20
check "and what moved since" wait_for 20 written
stop slow INT
lost=$(sed -n 's/.* seen, \([0-9]*\) lost$/\1/p' "$WORK/slow.log")
seen=$(sed -n 's/.* written, \([0-9]*\) seen.*/\1/p' "$WORK/slow.log")
check_num "what it lost is counted" "${lost:-0}" -gt 1000
check_eq "lost and seen are all that were moved" $((${lost:-0} + ${seen:-0})) $((2 * (ROUNDS + 10)))
check "that the capture was interrupted is told" log_has slow "was interrupted 1 times"
kill "$holder"
if command -v tshark >/dev/null; then
	check_eq "by the first packet behind the gap, too" \
		"$(frames slow 'frame.comment == "gap before: the capture was interrupted"')" 1
	gaps=$(tshark -r "$WORK/slow.pcapng" -Y frame.comment -T fields -e frame.comment 2>/dev/null |
		sed -n 's/.*gap before: \([0-9]*\) lost.*/\1/p' | awk '{ n += $1 } END { print n }')
	check_eq "and what was lost, where it is missing" "$gaps" "${lost:-0}"
fi

# An output that is stuck for good does not keep it from ending.
mkfifo "$WORK/stuck"
sleep 1000 3<>"$WORK/stuck" &
holder=$!
start stuck b "$BUILD/bin/vma_dump" -p "${PID[server]}" -w "$WORK/stuck"
check "a reader whose output is stuck for good" wait_for 20 log_has stuck "capturing"
start asker a $TRAFFIC ask "$IP_B" 7001 1000
check "the program goes on" finish asker 100
kill -TERM "${PID[stuck]}"
check "ends by a signal" wait_for 20 gone "${PID[stuck]}"
reap stuck
check_eq "and says that it has failed" $? 1
kill "$holder"

capture killed -p "${PID[server]}"
stop killed KILL
python3 - "$DIR/vmastat.${PID[server]}" "${PID[server]}" <<'END'
# Requests that are garbage: types, values and descriptors of all kinds, and messages that are none.
import os, struct, sys
data = open(sys.argv[1], "rb").read()
number = struct.unpack_from("<QIiii", data)[4]
fd = os.open("/proc/%s/fd/%d" % (sys.argv[2], number), os.O_WRONLY)
for kind in (4, 5, 99, 0xffffffff):
    for value in (-2**31, -1, 0, 11, 2**31 - 1):
        os.write(fd, struct.pack("<IIii", 0x51545356, kind, -1, value))
os.write(fd, os.urandom(64))
END
sleep 3
start asker a $TRAFFIC ask "$IP_B" 7001 1000
check "after a reader that was killed, and garbage, the program goes on" finish asker 20
capture again -p "${PID[server]}"
start asker a $TRAFFIC ask "$IP_B" 7001 100
finish asker 20
stop again INT
check "and can be captured again: what came meanwhile was not copied" log_has again "^200 packets written, 200 seen, 0 lost"

capture end -p "${PID[server]}"
start asker a $TRAFFIC ask "$IP_B" 7001 100
finish asker 20
stop server KILL
check "the program is killed: the capture ends by itself" finish end 10
check "with all that had come" log_has end "^200 packets written, 200 seen, 0 lost"
done_testing
