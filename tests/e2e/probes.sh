#!/usr/bin/env bash
# probes: libvma.so has the probes of <vma/probe.h>; a tracer that attaches sees each packet, once, with its arguments.
#
#   a (client)  10.9.0.1 ---- veth ---- 10.9.0.2  (server, traced) b
# seconds: 20
. "$(dirname "$0")/../lib.sh"
ROUNDS=1000

# A tracer sees every process that has mapped the file: this test has a library of its own, with its vmad beside it.
LIB=$WORK/traced/libvma.so
mkdir -p "$WORK/traced/bin"
cp "$BUILD/libvma.so" "$WORK/traced/"
cp "$BUILD/bin/vmad" "$WORK/traced/bin/"

# NAME ARGUMENTS, a line each: what the header says, and what the library has.
listed() {
	sed -n 's/^[[:space:]]*X(\([a-z_]*\), \([0-9]\), ".*/\1 \2/p' "$ROOT/components/stats/include/vma/probe.h" | sort
}
noted() {
	readelf -n "$LIB" 2>/dev/null | awk '$1 == "Provider:" { ours = $2 == "vma" }
		$1 == "Name:" { name = $2 }
		$1 == "Arguments:" && ours { print name, NF - 1 }' | sort -u
}

check_num "eight probes are listed" "$(listed | wc -l)" -eq 8
check_eq "the library has these, with as many arguments" "$(noted)" "$(listed)"
check_eq "and no probe waits for a semaphore, which would cost more than a nop" \
	"$(readelf -n "$LIB" 2>/dev/null | awk '/Semaphore:/ { sub(/.*Semaphore: /, ""); print }' | sort -u)" 0x0000000000000000

need_xdp
net_pair
TRAFFIC="python3 $ROOT/tests/e2e/stats_traffic.py"
with=LD_PRELOAD=$LIB

tracer_works() {
	command -v bpftrace >/dev/null && timeout 20 bpftrace -e "usdt:$LIB:vma:wakeup { } BEGIN { exit() }" >"$WORK/try" 2>&1
}
if [ -n "$SAN" ]; then
	skip "a tracer counts packets" "a sanitizer's build is traced no differently"
	done_testing
fi
if ! tracer_works; then
	skip "a tracer counts packets" "bpftrace does not work here: $(tail -n 1 "$WORK/try" 2>/dev/null)"
	done_testing
fi

trace() { # LABEL PROGRAM...: bpftrace, until it is stopped by INT; its maps are in the log then
	start "$1" b bpftrace -e "$2 BEGIN { printf(\"tracing\\n\"); }"
	wait_for 30 log_has "$1" "^tracing"
}
# Ends it. On a busy machine it takes long to let go of its probes, and prints its maps after that.
told() { # LABEL
	kill -INT "${PID[$1]}" && finish "$1" 60
}

# A server that runs already is traced, as a user would.
start server b env "$with" $TRAFFIC udp "$IP_B" 7001 1000000000
check "the server starts" wait_for 20 log_has server "^ready"
fd=$(sed -n 's/^ready //p' "$WORK/server.log")
start warm a $TRAFFIC ask "$IP_B" 7001 2
check "the path is warm" finish warm 20
check "bpftrace attaches" trace packets "
usdt:$LIB:vma:packet_in /pid == ${PID[server]}/ { @in = count(); @in_bytes = sum(arg1); }
usdt:$LIB:vma:delivered /pid == ${PID[server]}/ { @to[(int32)arg0, (arg2 >> 8) | ((arg2 & 255) << 8)] = count(); @len = max(arg1); }
usdt:$LIB:vma:sent /pid == ${PID[server]} && (int32)arg1 == 0/ { @out = sum(arg0); }"
start asker a $TRAFFIC ask "$IP_B" 7001 $ROUNDS
check "$ROUNDS round trips" finish asker 60
check "bpftrace tells what it has seen" told packets
maps=$(grep '^@' "$WORK/packets.log" | sort)
check_eq "each packet is seen once, with length, descriptor and port" "$maps" "$(sort <<END
@in: $ROUNDS
@in_bytes: $((ROUNDS * 242))
@len: 200
@out: $ROUNDS
@to[$fd, 7001]: $ROUNDS
END
)"
check "the server goes on, untraced" alive server
stop server

# ---- the others: states of a TCP connection, and a socket that the kernel has ----

check "bpftrace attaches before the program runs" trace others "
usdt:$LIB:vma:tcp_state { @state[(int32)arg0, (int32)arg1] = count(); }
usdt:$LIB:vma:delivered { @delivered[(int32)arg0] = count(); }
usdt:$LIB:vma:fallback { @fallback[str(arg1), str(arg2)] = count(); }"
start listener b env "$with" $TRAFFIC listen "$IP_B" 7002
check "a TCP server starts" wait_for 20 log_has listener "^ready"
start client a $TRAFFIC tcp "$IP_B" 7002 10
check "a client talks to it" wait_for 20 log_has client "^info"
stop client
check "the server has seen its end" wait_for 20 log_has listener "^ended"
start local b env "$with" $TRAFFIC udp 127.0.0.1 7003 1
check "a server on loopback starts" wait_for 20 log_has local "^ready"
check "bpftrace tells what it has seen" told others
note "$(cat "$WORK/others.log")"
check "a connection became established (1)" grep -qE '^@state\[[0-9]+, 1\]: 1$' "$WORK/others.log"
check "and its peer closed it: CLOSE_WAIT (8)" grep -qE '^@state\[1, 8\]: 1$' "$WORK/others.log"
check "its segments are delivered" grep -qE '^@delivered\[-1\]: [1-9][0-9]+$' "$WORK/others.log"
check "the socket on loopback is the kernel's, and why" grep -q '^@fallback\[.*, a bound UDP socket\]: 1$' "$WORK/others.log"
stop local
stop listener

# ---- drops: a socket that nobody reads, and whose receive buffer is full ----

start deaf b env "$with" $TRAFFIC group "$IP_B" 7004 224.4.1.
check "a program that does not read starts" wait_for 20 log_has deaf "^ready"
check "bpftrace attaches" trace drops "
usdt:$LIB:vma:packet_in /pid == ${PID[deaf]}/ { @in = count(); }
usdt:$LIB:vma:delivered /pid == ${PID[deaf]}/ { @delivered = count(); }
usdt:$LIB:vma:dropped /pid == ${PID[deaf]}/ { @dropped[str(arg0)] = sum(arg1); }"
in_ns a python3 -c "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(500): s.sendto(bytes(1000), ('$IP_B', 7004))"
sleep 0.5
check "bpftrace tells what it has seen" told drops
value() { sed -n "s/^@$1: //p" "$WORK/drops.log"; }
note "$(cat "$WORK/drops.log")"
check_eq "only the socket drops" "$(grep -o '^@dropped.*\]' "$WORK/drops.log")" "@dropped[rx_drop_sink]"
check_num "each packet is delivered or dropped" "$(value in)" -eq \
	$(($(value delivered) + $(value 'dropped\[rx_drop_sink\]')))
check_num "all are seen, but for one that the kernel may have before" "$(value in)" -ge 499
check_num "and many are dropped" "$(value 'dropped\[rx_drop_sink\]')" -gt 200
stop deaf
done_testing
