#!/usr/bin/env bash
# The Extra API's calls that decide of sockets (thread_offload, add_conf_rule), and the headers of a socket's next
# message, beside those that leave.
# seconds: 6
#
#   a: a packet socket, and sinks (the kernel's) ---- veth ---- b: extra_control, preloaded
EXTRA_PROGRAM=extra_control
. "$(dirname "$0")/../lib_extra.sh"

for role in threads rules; do
	in_ns b env "$preload" "$program" $role "$IP_B" 7500 >"$WORK/$role.log" 2>&1
	note "$(grep '^not so' "$WORK/$role.log")"
done
check_eq "thread_offload decides of the sockets that a thread makes from then on" "$(said threads)" "wrong 0"
check_eq "a rule that is added decides of later sockets, and is told as what it is" "$(said rules)" "wrong 0"

# Of the frame with "marker": the headers in hex.
start wire a python3 -uc "
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(('$IF_A', 0))
print('watching')
while True:
    frame = s.recv(4000)
    at = frame.find(b'marker')
    if at >= 0: print('udp' if frame[23] == 17 else 'tcp', frame[:at].hex())
"
start sinks a python3 -uc "
import socket
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('$IP_A', 7510))
t = socket.socket(); t.bind(('$IP_A', 7510)); t.listen()
print('listening')
c, _ = t.accept()
while c.recv(1000): pass
"
wait_for 30 log_has wire watching
wait_for 30 log_has sinks listening
# Ethernet; IP but for lengths, number and checksum; ports and what of TCP is the same whatever follows.
same() { # PROTOCOL
	python3 - "$1" "$(sed -n 's/^headers //p' "$WORK/headers_$1.log")" "$(sed -n "s/^$1 //p" "$WORK/wire.log")" <<'END'
import sys
protocol, told, sent = sys.argv[1], bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3])
parts = [(0, 16), (20, 24), (26, 38)] + ([(38, 50), (52, 58)] if protocol == 'tcp' else [])
def sum16(data):
    total = sum(int.from_bytes(data[i:i + 2], 'big') for i in range(0, len(data), 2))
    while total >> 16: total = (total & 0xffff) + (total >> 16)
    return total
assert len(told) == len(sent) == (42 if protocol == 'udp' else 34 + (sent[46] >> 4) * 4), (len(told), len(sent))
for begin, end in parts: assert told[begin:end] == sent[begin:end], (begin, told[begin:end], sent[begin:end])
assert int.from_bytes(told[16:18], 'big') == len(told) - 14, 'length'
assert sum16(told[14:34]) == 0xffff, 'checksum of IP'
if protocol == 'tcp':
    assert sum16(told[26:34] + bytes([0, 6, 0, len(told) - 34]) + told[34:]) == 0xffff, 'checksum of TCP'
print('same')
END
}
for protocol in udp tcp; do
	in_ns b env "$preload" "$program" headers "$IP_A" 7510 $protocol >"$WORK/headers_$protocol.log" 2>&1
	check_eq "the headers of a socket's next message are there ($protocol)" "$(said headers_$protocol)" "wrong 0"
	wait_for 10 log_has wire "^$protocol "
	check_eq "and are those of the message that leaves ($protocol)" "$(same $protocol 2>&1 | tail -n 1)" same
done
done_testing
