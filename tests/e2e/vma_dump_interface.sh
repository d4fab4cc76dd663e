#!/usr/bin/env bash
# vma_dump -i: the packets of all processes on an interface in one file, those that start later included; jumbo frames.
#
#   a (clients)  10.9.0.1 ---- veth, MTU 9000 ---- 10.9.0.2  (servers, captured) b
# seconds: 40
# test-all: captures last for seconds
. "$(dirname "$0")/../lib.sh"
need_xdp
net_pair 1 9000
DIR=$WORK/stats
mkdir "$DIR"
export VMA_STATS_SHMEM_DIR=$DIR
with=LD_PRELOAD=$BUILD/libvma.so
TRAFFIC="python3 $ROOT/tests/e2e/stats_traffic.py"
ROUNDS=500

serve() { # LABEL PORT: preloaded
	# shellcheck disable=SC2086 # two words
	start "$1" b env "$with" $TRAFFIC udp "$IP_B" "$2" 1000000000
	check "$1 starts" wait_for 20 log_has "$1" "^ready"
}

frames() { # LABEL FILTER: how many there are
	tshark -r "$WORK/$1.pcapng" -o udp.check_checksum:TRUE -o ip.check_checksum:TRUE -Y "$2" 2>/dev/null | wc -l
}

# ---- several processes ----

serve first 7001
start all b "$BUILD/bin/vma_dump" -i "$IF_B" -w "$WORK/all.pcapng"
check "the process that runs is captured" wait_for 20 log_has all "capturing, process ${PID[first]}: python3"
serve second 7002
check "so is one that starts later" wait_for 20 log_has all "capturing, process ${PID[second]}: python3"
first=${PID[first]} second=${PID[second]}
# shellcheck disable=SC2086
start asker1 a $TRAFFIC ask "$IP_B" 7001 $ROUNDS
# shellcheck disable=SC2086
start asker2 a $TRAFFIC ask "$IP_B" 7002 $ROUNDS
check "both are asked" finish asker1 60
check "at the same time" finish asker2 60
stop second KILL
sleep 0.5
# shellcheck disable=SC2086
start asker1 a $TRAFFIC ask "$IP_B" 7001 100
check "one is killed, and the other asked again" finish asker1 60
serve third 7003
check "a third one comes" wait_for 20 log_has all "capturing, process ${PID[third]}: python3"
third=${PID[third]}
# shellcheck disable=SC2086
start asker3 a $TRAFFIC ask "$IP_B" 7003 $ROUNDS
check "and is asked" finish asker3 60
stop all INT
check_eq "the capture ends well" $? 0
check "with all packets" log_has all "^$((2 * (3 * ROUNDS + 100))) packets written, $((2 * (3 * ROUNDS + 100))) seen, 0 lost"
if command -v tshark >/dev/null; then
	for of in "$first 7001 $((ROUNDS + 100))" "$second 7002 $ROUNDS" "$third 7003 $ROUNDS"; do
		read -r pid port rounds <<<"$of"
		for direction in 1 2; do
			check_eq "port $port, direction $direction: each packet once, under its process" \
				"$(frames all "udp.port == $port and frame.packet_flags_direction == $direction and frame.comment == \"process $pid: python3\" and frame.interface_name == \"$IF_B\"")" "$rounds"
		done
	done
	check_eq "no packet has another process" "$(frames all 'frame.comment')" $((2 * (3 * ROUNDS + 100)))
	tshark -r "$WORK/all.pcapng" -T fields -e frame.time_epoch 2>/dev/null >"$WORK/times"
	check "they are in the order of their times" sort -c -n "$WORK/times"
	check_eq "no checksum is wrong" "$(frames all 'udp.checksum.bad or ip.checksum.bad or _ws.malformed')" 0
else
	skip "each packet once, under its process" "no tshark"
fi

# ---- to a pipe, with a filter and a count ----

piped() {
	in_ns b timeout 30 "$BUILD/bin/vma_dump" -i "$IF_B" -c 20 -w - udp port 7003 2>"$WORK/piped.err" >"$WORK/piped.pcapng"
}
piped &
waiter=$!
check "both are captured" wait_for 20 grep -q "process $third" "$WORK/piped.err"
# shellcheck disable=SC2086
start asker1 a $TRAFFIC ask "$IP_B" 7001 50
# shellcheck disable=SC2086
start asker3 a $TRAFFIC ask "$IP_B" 7003 50
finish asker1 20
finish asker3 20
check "a count ends it" wait "$waiter"
command -v tshark >/dev/null && check_eq "with so many packets of the filter" "$(frames piped 'udp.port == 7003') $(frames piped frame)" "20 20"

# ---- whose packets they are not to see ----

start stranger b setpriv --reuid 65534 --regid 65534 --clear-groups "$BUILD/bin/vma_dump" -i "$IF_B" -w /dev/null
check "another user's vma_dump runs" wait_for 20 log_has stranger "capturing, interface"
# shellcheck disable=SC2086
start asker1 a $TRAFFIC ask "$IP_B" 7001 50
finish asker1 20
sleep 0.5
stop stranger INT
check "and sees nothing" log_has stranger "^0 packets written, 0 seen, 0 lost"
in_ns a "$BUILD/bin/vma_dump" -i "$IF_B" -w "$WORK/none" 2>"$WORK/err"
check_eq "an interface of another namespace is none" "$? $(cat "$WORK/err")" "1 vma_dump: there is no interface $IF_B here"
ip -n "$(ns a)" link add "$IF_B" type veth peer name other
start elsewhere a "$BUILD/bin/vma_dump" -i "$IF_B" -w /dev/null
check "there may be one of the same name" wait_for 20 log_has elsewhere "capturing, interface"
# shellcheck disable=SC2086
start asker1 a $TRAFFIC ask "$IP_B" 7001 50
finish asker1 20
sleep 0.5
stop elsewhere INT
check "whose processes are others" log_has elsewhere "^0 packets written, 0 seen, 0 lost"

# ---- jumbo frames ----

ask_long() { # BYTES...
	in_ns a python3 - "$IP_B" "$@" <<'END'
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(10)
s.connect((sys.argv[1], 7008))
for n in map(int, sys.argv[2:]):
    s.send(bytes([n % 256]) * n)
    assert s.recv(10000) == bytes([n % 256]) * n
END
}
start long b env "$with" python3 -c "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('$IP_B', 7008))
print('ready', flush=True)
while True:
    data, peer = s.recvfrom(10000)
    s.sendto(data, peer)"
check "a server of long datagrams starts" wait_for 20 log_has long "^ready"
start whole b "$BUILD/bin/vma_dump" -p "${PID[long]}" -w "$WORK/whole.pcapng"
start cut b "$BUILD/bin/vma_dump" -p "${PID[long]}" -s 3000 -w "$WORK/cut.pcapng"
check "it is captured twice" wait_for 20 log_has whole "capturing"
check "with two lengths" wait_for 20 log_has cut "capturing"
check "it answers" ask_long 100 1942 1943 1944 2000 4000 8900 8972
stop whole INT
stop cut INT
if command -v tshark >/dev/null; then
	# The library sends what does not fit one of its frames by the kernel.
	check_eq "frames above a record are whole" "$(frames whole 'frame.len == 9014 and frame.cap_len == 9014')" 1
	check_eq "so is all that came in" \
		"$(tshark -r "$WORK/whole.pcapng" -Y "frame.packet_flags_direction == 1" -T fields -e frame.len -e frame.cap_len 2>/dev/null |
			awk '$1 == $2 { printf "%s ", $1 }')" "142 1984 1985 1986 2042 4042 8942 9014 "
	check_eq "and nothing is cut" "$(frames whole 'frame.len != frame.cap_len')" 0
	check_num "with their checksums" "$(frames whole 'udp.checksum.status == 1')" -ge 8
	check_eq "those that are cut have their length" "$(frames cut 'frame.len > 3000 and frame.cap_len == 3000')" 3
	check_eq "those below are whole" "$(frames cut 'frame.len <= 3000 and frame.cap_len != frame.len')" 0
	start cut b "$BUILD/bin/vma_dump" -p "${PID[long]}" -s 60 -w "$WORK/cut.pcapng" udp dst port 7008
	check "captured with a short length" wait_for 20 log_has cut "capturing"
	check "it answers again" ask_long 100 8972
	stop cut INT
	check_eq "a filter sees what it needs" "$(frames cut 'frame.cap_len == 60') $(frames cut 'frame.len == 9014')" "2 1"
fi
stop long
stop first
stop third
done_testing
