#!/usr/bin/env bash
# SocketXtreme between two namespaces: echo servers that make no receive call answer whole, and the kernel sees nothing;
# who breaks the rules gets an error; what a process holds comes back when it ends; memory does not grow with packets.
# seconds: 20
#
#   a: extra_xtreme send (the kernel's sockets) ---- veth ---- b: extra_xtreme, preloaded, VMA_SOCKETXTREME=1
EXTRA_PROGRAM=extra_xtreme
. "$(dirname "$0")/../lib_extra.sh"

serve() { # LABEL ROLE PORT COUNT
	start "$1" b env "$preload" VMA_SOCKETXTREME=1 "$program" "$2" "$IP_B" "$3" "$4"
	wait_for 30 log_has "$1" '^ready'
}

ask() { # PORT COUNT
	in_ns a "$program" send "$IP_B" "$1" "$2" 2>&1 | tail -n 1
}

check_eq "without VMA_SOCKETXTREME the functions are missing, and say so" \
	"$(in_ns b env "$preload" "$program" off "$IP_B" 7100 0 2>&1 | tail -n 1)" "wrong 0 "

# ---- UDP ----

before=$(snmp b Udp InDatagrams)
serve echo udp 7101 4000
check_eq "an echo server by the descriptors of its ring, its socket and an epoll set answers every datagram whole" "$(ask 7101 4000)" \
	"answers 4000 wrong 0"
finish echo 60
check_eq "and has seen each as one completion" "$(said echo)" "echoed 4000 wrong 0"

serve misuse misuse 7102 0
for _ in $(seq 100); do
	alive misuse || break
	in_ns a python3 -c "
import socket, struct, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(4):
    s.sendto(struct.pack('=I', i) + bytes((i * 7 + k) % 256 for k in range(60)), ('$IP_B', 7102))
"
	sleep 0.1
done
finish misuse 60
check_eq "who breaks the rules gets an error, and nothing is lost" "$(said misuse)" "wrong 0 "

# Each is answered by nobody: the sender paces itself by time, and sends until all are seen.
pour() { # LABEL PORT
	in_ns a python3 -c "
import socket, struct, time, os
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(('$IP_B', $2))
packets = [struct.pack('=I', i) + bytes((i * 7 + k) % 256 for k in range(60)) for i in range(1000)]
while not os.path.exists('$WORK/$1.done'):
    try:
        for n, p in enumerate(packets):
            s.send(p)
    except OSError: pass
" &
	pours=$!
}

serve flood flood 7103 100000
pour flood 7103
finish flood 120
touch "$WORK/flood.done"
wait "$pours"
check "100000 packets are whole, and memory does not grow with them ($(said flood))" \
	eval "said flood | grep -qE '^seen 1000[0-9][0-9] wrong 0 grown no'"

serve greedy hold 7104 16000
pour greedy 7104
wait_for 60 log_has greedy '^held'
touch "$WORK/greedy.done"
wait "$pours"
got=$(said greedy)
check_num "who never frees is bounded" "${got#held }" -lt 16000
serve neighbour udp 7105 1000
check_eq "and no other socket starves" "$(ask 7105 1000)" "answers 1000 wrong 0"
finish neighbour 60
stop greedy KILL
for i in 1 2 3 4; do
	serve "killed$i" hold 7104 3000
	pour "killed$i" 7104
	wait_for 60 log_has "killed$i" '^held'
	touch "$WORK/killed$i.done"
	wait "$pours"
	if [ $((i % 2)) = 0 ]; then stop "killed$i" KILL; else stop "killed$i" TERM; fi
done
serve after udp 7106 1000
check_eq "what five processes held is back when they have ended" "$(ask 7106 1000)" "answers 1000 wrong 0"
finish after 60
check_eq "the kernel of b saw no datagram" "$(snmp b Udp InDatagrams)" "$before"

sent=$(snmp b Udp OutDatagrams)
serve shut shutdown 7107 500
check_eq "until SO_VMA_SHUTDOWN_RX datagrams come as completions" "$(ask 7107 500)" "answers 500 wrong 0"
wait_for 30 log_has shut '^shut'
check_eq "the kernel has had none of them" "$(snmp b Udp InDatagrams)" "$before"
check_eq "from then on by receive calls" "$(ask 7107 500)" "answers 500 wrong 0"
finish shut 60
check_eq "none of them as a completion" "$(said shut)" "polled 500 received 500 wrong 0 "
check_eq "those are the kernel's" "$(($(snmp b Udp InDatagrams) - before))" 500
check_eq "and what the socket sends is not" "$(snmp b Udp OutDatagrams)" "$sent"

before=$(snmp b Udp InDatagrams)
start group b env "$preload" VMA_SOCKETXTREME=1 GROUP_AT="$IP_B" "$program" group 239.1.2.4 7108 1000
wait_for 30 log_has group '^ready'
in_ns a env GROUP_AT="$IP_A" "$BUILD/tests/extra/extra_udp" send 239.1.2.4 7108 1000
finish group 60
check_eq "a group's datagrams come as completions" "$(said group)" "seen 1000 wrong 0 "
# ---- system calls ----

if [ -n "$SAN" ]; then
	skip "system calls of polls" "a sanitizer makes calls of its own"
elif ! command -v strace >/dev/null; then
	skip "system calls of polls" "there is no strace"
else
	start traced b strace -o "$WORK/calls" env "$preload" VMA_SOCKETXTREME=1 "$program" group "$IP_B" 7118 4000
	wait_for 60 log_has traced '^ready'
	in_ns a "$BUILD/tests/extra/extra_udp" send "$IP_B" 7118 4000
	finish traced 120
	check_eq "a thread that polls is traced" "$(said traced)" "seen 4000 wrong 0 "
	calls=$(sed -n '/"ready/,/"seen/p' "$WORK/calls" | wc -l)
	check_num "4000 datagrams cost it no system call each, only those of the ring's descriptor and its output" \
		"$calls" -le 40
	check_num "which were seen" "$calls" -ge 2
fi

serve mixed mixed 7109 2000
in_ns a "$BUILD/tests/extra/extra_udp" send "$IP_B" 7109 2000
finish mixed 60
check_eq "polls and receive calls in turn get each datagram once" "$(said mixed)" "all 1 poll some recv some wrong 0"
check_eq "the kernel of b saw none of those" "$(snmp b Udp InDatagrams)" "$before"

# ---- TCP ----

echo_client() { # PORT CONNECTIONS BYTES: at the same time
	in_ns a timeout 60 python3 -c "
import socket, threading
whole = 0
data = bytes((i * 7 + i // 251) % 256 for i in range($3))
def one():
    global whole
    s = socket.create_connection(('$IP_B', $1), 20)
    s.settimeout(30)
    got = b''
    def write():
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
    t = threading.Thread(target=write); t.start()
    while True:
        more = s.recv(65536)
        if not more: break
        got += more
    t.join()
    if got == data: whole += 1
threads = [threading.Thread(target=one) for _ in range($2)]
for t in threads: t.start()
for t in threads: t.join()
print('whole', whole)
"
}

before=$(snmp b Tcp InSegs)
serve tcp tcp 7110 20
check_eq "a server that never accepts and never receives echoes 20 connections whole" "$(echo_client 7110 20 100000)" \
	"whole 20"
finish tcp 60
check_eq "each was accepted by itself, and ended by a completion" "$(said tcp)" \
	"accepted 20 ended 20 pieces some wrong 0 "

serve greedy_tcp greedy 7111 0
in_ns a timeout 60 python3 -c "
import socket
s = socket.create_connection(('$IP_B', 7111), 20)
s.sendall(bytes((i * 7 + i // 251) % 256 for i in range(8000000)))
s.close()
"
finish greedy_tcp 60
check_eq "who frees nothing stops its peer; once it frees, every byte comes" "$(said greedy_tcp)" \
	"still 1 got 8000000 ended 1 wrong 0 "

serve reset reset 7112 0
in_ns a timeout 30 python3 -c "
import socket, struct, time
s = socket.create_connection(('$IP_B', 7112), 20)
s.send(b'x'); time.sleep(0.3)
s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
s.close()
"
finish reset 60
check_eq "a reset is an error and a hangup" "$(said reset)" "error 1 hangup 1 reason ECONNRESET"

start sink a env python3 -c "
import socket
l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
l.bind(('$IP_A', 7113)); l.listen(); print('listening', flush=True)
c, _ = l.accept()
while True:
    more = c.recv(65536)
    if not more: break
    c.sendall(more)
c.close()
"
wait_for 10 log_has sink listening
in_ns b env "$preload" VMA_SOCKETXTREME=1 "$program" client "$IP_A" 7113 200000 >"$WORK/client.log" 2>&1
check_eq "a client connects without blocking, and is told: connected, bytes, the end" "$(said client)" \
	"connected 1 got 200000 ended 1 wrong 0 "
in_ns b env "$preload" VMA_SOCKETXTREME=1 "$program" client "$IP_A" 7114 1000 >"$WORK/refused.log" 2>&1
check_eq "a connection that is refused is an end, too" "$(said refused)" "connected 0 got 0 ended 1 wrong 0 "
check_eq "the kernel of b saw no segment" "$(snmp b Tcp InSegs)" "$before"

# The kernel answers for whom is killed.
serve other tcp 7115 1 # a process on the same interface, from before the kills until after them
for i in 1 2 3 4; do
	serve "kept$i" keep_tcp 7116 0
	start "sender$i" a timeout 120 python3 -c "
import socket
s = socket.create_connection(('$IP_B', 7116), 20)
try: s.sendall(bytes(8000000))
except OSError: pass
"
	wait_for 60 log_has "kept$i" '^kept'
	got=$(said "kept$i")
	check_num "a process holds bytes of a stream ($i)" "${got#kept }" -ge 16000
	stop "kept$i" KILL
	check "its peer gets its end when it is killed ($i)" wait_for 60 gone "${PID[sender$i]}"
	stop "sender$i"
done
check_eq "another process goes on, and has frames enough" "$(echo_client 7115 1 3000000)" "whole 1"
finish other 60

# ---- fork ----

before=$(snmp b Udp InDatagrams)
serve child_udp fork_udp 7130 300
in_ns a "$BUILD/tests/extra/extra_udp" send "$IP_B" 7130 300
finish child_udp 120
check_eq "a child that only polls gets the datagrams of its parent's socket" "$(said child_udp)" \
	"packets 300 accepted 0 ended 0 wrong 0 "
check_eq "the kernel of b none" "$(snmp b Udp InDatagrams)" "$before"
before=$(snmp b Tcp InSegs)
serve child_tcp fork_tcp 7131 1
in_ns a timeout 60 python3 -c "
import socket, struct
for i in range(20):
    s = socket.create_connection(('$IP_B', 7131), 20)
    s.sendall(struct.pack('=I', 0) + bytes(k % 256 for k in range(60))) if i == 19 else None
    s.shutdown(socket.SHUT_WR)
    s.settimeout(20)
    while s.recv(100): pass
"
finish child_tcp 120
check_eq "and the connections of its parent's listener" "$(said child_tcp)" "packets 1 accepted 20 ended 20 wrong 0 "
check_eq "the kernel of b no segment" "$(snmp b Tcp InSegs)" "$before"

# ---- the example ----

start server b env "$preload" VMA_SOCKETXTREME=1 "$BUILD/examples/extra/socketxtreme_server" "$IP_B" 7120 1010
wait_for 30 log_has server '^serving'
check_eq "the example answers connections" "$(echo_client 7120 1 3000)" "whole 1"
in_ns a timeout 60 python3 -c "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1); s.connect(('$IP_B', 7120))
answers = 0
for i in range(1200):
    try:
        s.send(b'%d' % i)
        answers += s.recv(100) == b'%d' % i
    except OSError: break
print('answers', answers)
" >"$WORK/asked.log"
finish server 60
check "and datagrams" grep -qE '^answers 10[01][0-9]$|^answers 100[0-9]$' "$WORK/asked.log"

done_testing
