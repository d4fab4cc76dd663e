#!/usr/bin/env bash
# The examples, custom stacks from single archives: every byte arrives, the kernel's UDP sees nothing of it, the kernel's
# own sockets understand them, and the memory they take is what is promised.
#
#   a: udp_ping ---- veth ---- b: udp_echo          10.9.0.1 ---- 10.9.0.2
# seconds: 45
# test-all: each example moves much; data_path.sh has the packet path
. "$(dirname "$0")/../lib.sh"
need_xdp
net_pair
COUNT=2000

echo_on_b() { # OPTIONS... (device last); COMMAND PREFIX in $prefix
	# shellcheck disable=SC2086 # a prefix of several words
	start echo b ${prefix:-} "$BUILD/examples/udp_echo" --local "$IP_B" "$@"
	wait_for 20 log_has echo listening
}

ping_from_a() { # OPTIONS... (device last)
	in_ns a timeout 60 "$BUILD/examples/udp_ping" --local "$IP_A" --peer "$IP_B" --peer-mac "$MAC_B" --count $COUNT "$@"
}

udp_counters() { # what the kernel's UDP received, sent and refused, in both
	echo "$(snmp a Udp InDatagrams) $(snmp a Udp OutDatagrams) $(snmp a Udp NoPorts)" \
		"$(snmp b Udp InDatagrams) $(snmp b Udp OutDatagrams) $(snmp b Udp NoPorts)"
}

# ---- every byte, past the kernel ----

both_ways() { # NAME OPTIONS... for both sides
	local name=$1 bytes before packets sent=0
	shift
	check "$name: udp_echo starts" echo_on_b "$@" "xdp:$IF_B"
	before=$(udp_counters) packets=$(if_counter b "$IF_B" rx_packets)
	for bytes in 8 22 64 333 1001 1472; do
		check "$name: $COUNT datagrams of $bytes bytes come back as they were" ping_from_a --bytes $bytes "$@" "xdp:$IF_A"
		sent=$((sent + COUNT))
	done
	check_eq "$name: the kernel's UDP saw none of them" "$(udp_counters)" "$before"
	check_num "$name: the interface saw all of them" $(($(if_counter b "$IF_B" rx_packets) - packets)) -ge $sent
	check "$name: SIGTERM ends udp_echo cleanly" stop echo
	check "$name: and it says what it echoed" log_has echo "^echoed $sent, refused 0"
}

both_ways polling
both_ways sleeping --wait
check "no program is left on b" no_xdp b "$IF_B"
check "no program is left on a" no_xdp a "$IF_A"

# On a machine with other work either side may be away for a tenth of a second: what then comes at once must fit.
echo_on_b --wait "xdp:$IF_B"
check "6,000 datagrams at 3,000 per second" ping_from_a --count 6000 --rate 3000 --bytes 200 --wait "xdp:$IF_A"
check "SIGINT ends udp_echo cleanly, too" stop echo INT

start lonely a "$BUILD/examples/udp_ping" --local "$IP_A" --peer "$IP_B" --peer-mac "$MAC_B" --count 3 "xdp:$IF_A"
finish lonely 10
check_eq "without an echo udp_ping fails" $? 1
check "and tells what is lost" log_has lonely "3 lost"

# ---- the same through vmad ----

start vmad_a a "$BUILD/bin/vmad" --foreground "$IF_A"
start vmad_b b "$BUILD/bin/vmad" --foreground "$IF_B"
check "a vmad owns each interface" wait_for 10 log_has vmad_a owns
check "on both sides" wait_for 10 log_has vmad_b owns
both_ways "as clients of vmad" --owner vmad
check "no program is left on b while vmad has no clients" wait_for 2 no_xdp b "$IF_B"
check "vmad ends when it is told to" stop vmad_a
stop vmad_b

vmads_left() { # NAMESPACE: a vmad still runs there
	local pid
	for pid in $(ip netns pids "$(ns "$1")"); do
		[ "$(cat "/proc/$pid/comm" 2>/dev/null)" != vmad ] || return 0
	done
	return 1
}
no_vmad_left() { ! vmads_left b; }

check "udp_echo starts a vmad where there is none" echo_on_b --owner vmad --vmad "$BUILD/bin/vmad" "xdp:$IF_B"
check "which runs" vmads_left b
check "and carries $COUNT datagrams" ping_from_a "xdp:$IF_A"
stop echo
check "and ends when its last client has gone" wait_for 5 no_vmad_left

# ---- the wire: no privileges, no interface ----

check "wire: udp_echo starts" echo_on_b "wire:$WORK/wire"
for bytes in 8 64 1001 1472; do
	check "wire: $COUNT datagrams of $bytes bytes come back as they were" ping_from_a --bytes $bytes "wire:$WORK/wire"
done
check "wire: SIGTERM ends udp_echo cleanly" stop echo

# ---- the kernel as the other side ----

cat >"$WORK/client.py" <<'PY'
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(5)
s.connect((sys.argv[1], 7000))
for size in (0, 1, 2, 63, 64, 999, 1472):
    for number in range(50):
        data = bytes((number + i * 7) % 251 for i in range(size))
        s.send(data)
        assert s.recv(2000) == data, (size, number)
PY
echo_on_b "xdp:$IF_B"
errors=$(snmp a Udp InCsumErrors) received=$(snmp a Udp InDatagrams)
check "a kernel socket gets back what it sends, byte by byte" in_ns a python3 "$WORK/client.py" "$IP_B"
check_eq "the kernel found no wrong checksum" "$(snmp a Udp InCsumErrors)" "$errors"
check_eq "the kernel counted every answer" $(($(snmp a Udp InDatagrams) - received)) 350
stop echo

# ---- memory ----

# Kilobytes of a process: resident, pinned, huge pages; and what its memory files hold beyond what it has mapped.
memory_kb() { # PID
	local fd files=0
	for fd in /proc/"$1"/fd/*; do
		case $(readlink "$fd") in /memfd:*) files=$((files + $(stat -L -c %b "$fd") / 2)) ;; esac
	done
	awk -v files=$files '
		{ v[$1] = $2 }
		END {
			shared = v["RssShmem:"] > files ? v["RssShmem:"] : files
			print v["RssAnon:"] + v["RssFile:"] + shared + v["VmPin:"] + v["HugetlbPages:"]
		}' "/proc/$1/status"
}

limit=$((64 * 1024))
case $BUILD in *address* | *thread*) limit=0 ;; esac
echo_on_b "xdp:$IF_B"
ping_from_a --bytes 1472 "xdp:$IF_A" >/dev/null
full=$(memory_kb "${PID[echo]}")
if [ $limit -gt 0 ]; then
	check_num "with defaults a process takes less than 64 MB" "$full" -lt $limit
else
	skip "with defaults a process takes less than 64 MB" "a sanitizer's shadow counts as well"
fi
stop echo

prefix="prlimit --memlock=8388608:8388608 setpriv --bounding-set=-ipc_lock" echo_on_b "xdp:$IF_B"
small=$(memory_kb "${PID[echo]}")
check "with 8 MB of RLIMIT_MEMLOCK and no CAP_IPC_LOCK it works" ping_from_a --bytes 1472 "xdp:$IF_A"
check "and says that it is smaller, and why" log_has echo RLIMIT_MEMLOCK
check_num "and it is smaller" "$small" -lt "$full"
stop echo
note "memory: $full kB with defaults, $small kB with 8 MB of RLIMIT_MEMLOCK"

# ---- the documentation is true ----

link_line() { # the command of docs/custom-stack.md that links udp_echo
	sed -n '/^cc .*udp_echo/,/[^\\]$/p' "$ROOT/docs/custom-stack.md"
}

check "docs/custom-stack.md has a link line" test -n "$(link_line)"
case $BUILD in
"$ROOT/build")
	(cd "$ROOT" && sed "s|-o udp_echo|-o $WORK/udp_echo|" <(link_line) | bash) >"$WORK/link.log" 2>&1
	check "and it links a udp_echo" test -x "$WORK/udp_echo"
	start documented b "$WORK/udp_echo" --local "$IP_B" "xdp:$IF_B"
	check "which starts" wait_for 10 log_has documented listening
	check "and echoes" ping_from_a "xdp:$IF_A"
	stop documented
	;;
*) skip "and it links a udp_echo" "the line names the archives of the plain build" ;;
esac
done_testing
