#!/usr/bin/env bash
# Parameters of which a program, its peer or the machine sees the effect: each is tried with a value and without.
#
#   a: a program, preloaded      veth      b: kernel sockets
# seconds: 120
# test-all: each parameter has programs of its own, which are started twice
. "$(dirname "$0")/../lib_programs.sh"
net_pair
PORT=7000

cat >"$WORK/peer.py" <<'END'
# peer.py IP PORT: takes connections and datagrams, and reads what comes.
import selectors, socket, sys
chosen = selectors.DefaultSelector()
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind((sys.argv[1], int(sys.argv[2])))
for s in listener, datagrams:
    chosen.register(s, selectors.EVENT_READ)
print("listening", flush=True)
while True:
    for key, _ in chosen.select():
        if key.fileobj is listener:
            chosen.register(listener.accept()[0], selectors.EVENT_READ)
            continue
        try:
            if key.fileobj.recv(65536) or key.fileobj is datagrams:
                continue
        except ConnectionResetError: # its program was killed
            pass
        chosen.unregister(key.fileobj)
        key.fileobj.close()
END

cat >"$WORK/tries.py" <<'END'
# tries.py mss|nodelay|datagram|datagrams|thread|cores|fault|interrupt IP PORT
import ctypes, os, signal, socket, sys, time
what, to = sys.argv[1], (sys.argv[2], int(sys.argv[3]))
if what == "datagram":
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(to)
    for _ in range(10):
        s.send(bytes(1000))
    sys.exit()
if what == "datagrams": # for a second, a hundred
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(to)
    for _ in range(100):
        s.send(b"x")
        time.sleep(0.01)
    sys.exit()
try:
    s = socket.create_connection(to)
except OSError as refused:
    sys.exit(str(refused))
if what == "mss":
    print(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG))
elif what == "thread":
    time.sleep(0.1)
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as name:
            if name.read() == "vma-internal\n":
                print(task)
elif what == "nodelay":
    print(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
elif what == "cores":
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status") as status:
            lines = status.read().splitlines()
        if lines[0].split()[1] == "vma-internal":
            print(next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list")))
elif what == "fault":
    ctypes.string_at(0)
elif what == "interrupt":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
END

tries() { # WHAT ENVIRONMENT...
	local what=$1
	shift
	in_ns a timeout -k 1 30 env "$preload" "$@" python3 "$WORK/tries.py" "$what" "$IP_B" $PORT 2>"$WORK/tries.err"
}

start peer b python3 "$WORK/peer.py" "$IP_B" $PORT
wait_for 5 log_has peer listening

# Warnings: each once, if its condition holds. No vmad runs yet.
in_ns a setpriv --bounding-set=-net_raw env "$preload" python3 "$WORK/tries.py" mss "$IP_B" $PORT >/dev/null 2>"$WORK/tries.err"
check_eq "without CAP_NET_RAW the log says so once" \
	"$(grep -c 'VMA WARNING: \* Offloaded resources are restricted to root or user with CAP_NET_RAW' "$WORK/tries.err")" 1
in_ns b prlimit --memlock=4194304:4194304 setpriv --bounding-set=-sys_admin,-ipc_lock,-sys_resource \
	env "$preload" python3 "$WORK/tries.py" mss "$IP_A" $PORT >/dev/null 2>"$WORK/tries.err"
check_eq "with little memory that may be locked the log says so once" \
	"$(grep -c 'VMA WARNING: Your current max locked memory is: 4194304\. Please change it to unlimited' "$WORK/tries.err")" 1

check_eq "segments follow the interface" "$(tries mss)" 1460
check_eq "or VMA_MTU" "$(tries mss VMA_MTU=600)" 560
before=$(snmp a Udp OutDatagrams)
tries datagram
check_eq "a datagram that fits is offloaded" "$(snmp a Udp OutDatagrams)" "$before"
tries datagram VMA_MTU=600
check_num "what is larger than VMA_MTU is the kernel's" "$(snmp a Udp OutDatagrams)" -ge $((before + 9))

mkdir "$WORK/group"
: >"$WORK/group/tasks"
thread=$(tries thread VMA_INTERNAL_THREAD_CPUSET="$WORK/group")
check_eq "the internal thread moves to VMA_INTERNAL_THREAD_CPUSET" "$(cat "$WORK/group/tasks")" "$thread"
tries thread VMA_INTERNAL_THREAD_CPUSET="$WORK/none" >/dev/null
check "if it cannot, the log says so" grep -q "VMA_INTERNAL_THREAD_CPUSET='$WORK/none': .* cannot move" "$WORK/tries.err"

core=$(in_ns a python3 -c 'import os; print(max(os.sched_getaffinity(0)))')
check_eq "the internal thread runs on VMA_INTERNAL_THREAD_AFFINITY" "$(tries cores VMA_INTERNAL_THREAD_AFFINITY="$core")" "$core"
all_cores=$(in_ns a sed -n 's/^Cpus_allowed_list:\s*//p' /proc/self/status)
check_eq "or on all cores that the program has" "$(tries cores)" "$all_cores"

check_eq "TCP_NODELAY is off" "$(tries nodelay)" 0
check_eq "or on, by VMA_TCP_NODELAY" "$(tries nodelay VMA_TCP_NODELAY=1)" 1

# A log that goes to a terminal: its warnings are coloured.
on_terminal() { # ENVIRONMENT...
	in_ns a timeout -k 1 30 python3 -c 'import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))' \
		env "$preload" VMA_TRACELEVEL=WARN VMA_RX_POLL=many "$@" python3 "$WORK/tries.py" mss "$IP_B" $PORT
}
colors() { # of the first warning
	grep -a -m 1 'VMA WARNING' | grep -a -c $'\e\['
}
check_eq "the log has colours" "$(on_terminal | colors)" 1
check_eq "without VMA_LOG_COLORS it has none" "$(on_terminal VMA_LOG_COLORS=0 | colors)" 0

if [ "$SAN" = address ]; then
	skip "a fault" "the sanitizer has a handler of its own"
else
	tries fault VMA_HANDLE_SIGSEGV=1
	check_eq "a fault kills as before" $? 139
	check "the log has the calls" grep -q 'ctypes' "$WORK/tries.err"
	tries fault
	check_eq "without VMA_HANDLE_SIGSEGV nothing is said" "$(grep -c 'after these calls' "$WORK/tries.err")" 0
fi
tries interrupt VMA_HANDLE_SIGINTR=1 VMA_TRACELEVEL=INFO
check_eq "SIGINT kills as before" $? 130
check "the log has it" grep -q 'VMA INFO: interrupted by SIGINT' "$WORK/tries.err"
tries interrupt VMA_TRACELEVEL=INFO
check_eq "without VMA_HANDLE_SIGINTR nothing is said" "$(grep -c 'interrupted by' "$WORK/tries.err")" 0

# ---- what the counters of a running program show ----

cat >"$WORK/holds.py" <<'END'
# holds.py connect|accept|send IP PORT: makes twenty connections, takes twenty, or sends 2000 datagrams; then it waits.
import socket, sys, time
what, name = sys.argv[1], (sys.argv[2], int(sys.argv[3]))
if what == "send":
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(name)
    for n in range(2000):
        s.send(b"x")
        if n % 50 == 0:
            time.sleep(0.001)
elif what == "connect":
    held = [socket.create_connection(name) for _ in range(20)]
else:
    listener = socket.create_server(name, backlog=20)
    print("listens", flush=True)
    held = [listener.accept() for _ in range(20)]
time.sleep(0.4) # a connection gets a flow of its own after 50 to 100 ms
print("holds", flush=True)
if what == "accept":
    for s, _ in held:
        s.sendall(s.recv(10))
time.sleep(60)
END
cat >"$WORK/asks.py" <<'END'
# asks.py IP PORT: twenty connections, each asked once when a line has come.
import socket, sys
held = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(20)]
print("connected", flush=True)
for s in held:
    s.sendall(b"hello")
print("answered", sum(s.recv(10) == b"hello" for s in held), flush=True)
END
mkdir "$WORK/counters"

holds() { # WHAT IP PORT ENVIRONMENT...: until it holds what it is to hold
	local what=$1 ip=$2 port=$3
	shift 3
	rm -f "$WORK/counters/"*
	start holds a env "$preload" VMA_STATS_SHMEM_DIR="$WORK/counters" "$@" python3 "$WORK/holds.py" "$what" "$ip" "$port"
}
counter() { # NAME: of all blocks together
	"$BUILD/tests/measure/print_stats" "$WORK/counters/vmastat.${PID[holds]}" |
		awk -v "name=$1" '$1 == name { sum += $2 } END { print sum + 0 }'
}

holds connect "$IP_B" $PORT
wait_for 20 log_has holds "^holds"
check_num "connections that live have flows of their own" "$(counter nic.flows)" -ge 20
stop holds
holds connect "$IP_B" $PORT VMA_TCP_2T_RULES=1
wait_for 20 log_has holds "^holds"
check_num "with VMA_TCP_2T_RULES they stay with the one of their block of ports" "$(counter nic.flows)" -lt 20
stop holds

accepts() { # ENVIRONMENT...
	holds accept "$IP_A" 7010 "$@"
	wait_for 20 log_has holds listens
	start asks b python3 "$WORK/asks.py" "$IP_A" 7010
	wait_for 20 log_has holds "^holds"
}
accepts
check_num "connections that were accepted have flows of their own" "$(counter nic.flows)" -gt 20
stop holds
stop asks
accepts VMA_TCP_3T_RULES=1
check_eq "with VMA_TCP_3T_RULES they stay with their listener's" "$(counter nic.flows)" 1
wait_for 10 log_has asks answered
check "and are served" log_has asks 'answered 20$'
stop holds
stop asks

# Of sixty connections that are asked for at once, those that are there when the others have been looked at: as many as
# the rate allows in that time, and the second that may be used in advance.
cat >"$WORK/rate.py" <<'END'
# rate.py IP PORT RATE: "within" or how many there were in how many seconds
import select, socket, sys, time
name, rate = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3])
begun = time.monotonic()
made = 0
held = []
for _ in range(60):
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex(name)
    held.append(s)
time.sleep(0.3)
for s in held:
    made += s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0 and bool(select.select([], [s], [], 0)[1])
took = time.monotonic() - begun
print("within" if made <= rate * (took + 1) + 1 else f"{made} in {took:.1f} s")
END
cat >"$WORK/listens.py" <<'END'
import socket, sys, time
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=100)
listener.settimeout(0.01)
print("listens", flush=True)
held = []
while True:
    try:
        held.append(listener.accept())
    except TimeoutError:
        pass
END
rate() { # ENVIRONMENT...
	start listens a env "$preload" "$@" python3 "$WORK/listens.py" "$IP_A" 7020
	wait_for 20 log_has listens listens
	in_ns b python3 "$WORK/rate.py" "$IP_A" 7020 5
	stop listens
}
check_eq "VMA_TCP_MAX_SYN_RATE bounds what a listener takes in a second" "$(rate VMA_TCP_MAX_SYN_RATE=5)" within
check "without it there is no such bound" test "$(rate)" != within

# ---- what a connection has out that is not acknowledged ----

cat >"$WORK/unheard.py" <<'END'
# unheard.py IP PORT FILE: a connection that queues 100000 bytes as soon as there is the file.
import os, socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print("connected", flush=True)
while not os.path.exists(sys.argv[3]):
    time.sleep(0.01)
s.setblocking(False)
s.send(bytes(100000))
print("sent", flush=True)
time.sleep(60)
END
out() { # ENVIRONMENT...: bytes that are out when the peer's answers no longer come
	rm -f "$WORK/counters/"* "$WORK/go"
	start holds a env "$preload" VMA_STATS_SHMEM_DIR="$WORK/counters" "$@" python3 "$WORK/unheard.py" "$IP_B" $PORT "$WORK/go"
	wait_for 20 log_has holds connected
	ip -n "$(ns b)" route add blackhole "$IP_A/32"
	touch "$WORK/go"
	wait_for 20 log_has holds sent
	wait_for 5 is_out
	counter socket.tcp_unacked_bytes
	stop holds
	ip -n "$(ns b)" route del blackhole "$IP_A/32"
}
is_out() { [ "$(counter socket.tcp_unacked_bytes)" -ne 0 ]; }
check_num "a connection begins with ten segments" "$(out)" -ge 14600
check_num "VMA_TX_SEGS_TCP=4: of the process four are out, and perhaps a probe" "$(out VMA_TX_SEGS_TCP=4)" -le $((5 * 1460))

# ---- the memory that what a connection has out lies in ----

cat >"$WORK/many.py" <<'END'
# many.py IP PORT FILE: 400 connections, each of which sends a byte as soon as there is the file. Prints how many MB of
# memory the process has mapped for these bytes.
import os, socket, sys, time
def mapped():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmData"))
connections = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(400)]
print("connected", flush=True)
while not os.path.exists(sys.argv[3]):
    time.sleep(0.01)
before = mapped()
for s in connections:
    s.send(b"x")
print((mapped() - before) // 1024, "MB", flush=True)
time.sleep(60)
END
tx_memory() { # ENVIRONMENT...: MB
	rm -f "$WORK/go"
	start many a env "$preload" "$@" python3 "$WORK/many.py" "$IP_B" $PORT "$WORK/go"
	wait_for 30 log_has many connected
	ip -n "$(ns b)" route add blackhole "$IP_A/32"
	touch "$WORK/go"
	wait_for 20 log_has many MB
	awk '/MB$/ { print $1 }' "$WORK/many.log"
	ip -n "$(ns b)" route del blackhole "$IP_A/32"
	stop many
}
check_num "400 bytes that are out need little memory" "$(tx_memory)" -le 8
check_num "VMA_TX_BUF_SIZE=65280: each lies in a buffer of 64 KB" "$(tx_memory VMA_TX_BUF_SIZE=65280)" -ge 24

# ---- neighbours, as the peer's interface sees what asks for them ----

cat >"$WORK/arps.py" <<'END'
# arps.py: prints each ARP request that comes, "to one" or "to all", and the address asked for.
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
print("looks", flush=True)
while True:
    frame = s.recv(2048)
    if frame[20:22] == b"\0\1":
        print("to all" if frame[:6] == b"\xff" * 6 else "to one", socket.inet_ntoa(frame[38:42]), flush=True)
END
# How many requests of that kind for the address come while the program runs; to one: until the first to all, as what
# comes then is the kernel's.
asked_for() { # HOW IP PROGRAM...
	local how=$1 ip=$2
	shift 2
	start arps b python3 "$WORK/arps.py"
	wait_for 20 log_has arps looks
	"$@"
	sleep 0.2
	stop arps
	awk -v how="$how" -v ip="$ip" '$3 == ip { if ($2 == how) n++; else if (how == "one") exit } END { print n + 0 }' \
		"$WORK/arps.log"
}
stale() { # ENVIRONMENT...: datagrams to a neighbour that is not confirmed, and does not answer
	in_ns b sh -c 'echo 8 >/proc/sys/net/ipv4/conf/all/arp_ignore'
	ip -n "$(ns a)" neigh replace "$IP_B" lladdr "$(in_ns b cat "/sys/class/net/$IF_B/address")" dev "$IF_A" nud stale
	tries datagrams "$@"
	in_ns b sh -c 'echo 0 >/proc/sys/net/ipv4/conf/all/arp_ignore'
}
check_num "the kernel confirms a neighbour in its way" "$(asked_for one "$IP_B" stale)" -le 3
asked=$(asked_for one "$IP_B" stale VMA_NEIGH_UC_ARP_QUATA=8 VMA_NEIGH_UC_ARP_DELAY_MSEC=20)
check_num "with VMA_NEIGH_UC_ARP_QUATA=8, VMA_NEIGH_UC_ARP_DELAY_MSEC apart, more go to the neighbour itself" "$asked" -gt 3
check_num "and no more than eight" "$asked" -le 8
nobody=${IP_B%.*}.77
in_ns a sh -c "echo 50 >/proc/sys/net/ipv4/neigh/$IF_A/retrans_time_ms"
resolves() { # ENVIRONMENT...
	ip -n "$(ns a)" neigh flush to "$nobody"
	IP_B=$nobody tries mss "$@"
}
once=$(asked_for all "$nobody" resolves)
check_num "a neighbour that nobody is, is asked for" "$once" -ge 1
check_num "VMA_NEIGH_NUM_ERR_RETRIES=2: three times as often" "$(asked_for all "$nobody" resolves VMA_NEIGH_NUM_ERR_RETRIES=2)" -ge $((2 * once + 1))

holds send "$IP_B" $PORT
wait_for 20 log_has holds "^holds"
batches=$(counter bufpool.batches_out)
stop holds
check_num "a thread keeps buffers for sending" "$batches" -lt 1000
holds send "$IP_B" $PORT VMA_BUFFER_BATCHING_MODE=0
wait_for 20 log_has holds "^holds"
check_num "with VMA_BUFFER_BATCHING_MODE=0 it fetches nearly each by itself" "$(counter bufpool.batches_out)" -ge 1900
stop holds
stop peer
done_testing
