#!/usr/bin/env bash
# Why is this port not offloaded? The log says it once for each port that is served, without being asked, and
# vma_get_socket_state says the same.
# seconds: 6
. "$(dirname "$0")/../lib.sh"
need_xdp
if [ -n "$SAN" ]; then
	skip "it says why" "the plain library is enough"
	done_testing
fi
net_pair
in_ns b sh -c "echo 0 >/proc/sys/net/ipv6/conf/lo/disable_ipv6; ip addr add ::1/128 dev lo 2>/dev/null"
cat >"$WORK/sockets.py" <<-'PY'
	import ctypes, socket, sys
	library = ctypes.CDLL(None)
	def state(s):
	    text = ctypes.c_char_p()
	    print("state", library.vma_get_socket_state(s.fileno(), ctypes.byref(text)), text.value.decode(), flush=True)
	def tcp(family, address, port):
	    s = socket.socket(family)
	    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
	    if family == socket.AF_INET6:
	        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
	    s.bind((address, port))
	    s.listen()
	    state(s)
	    return s
	def udp(family, address, port):
	    s = socket.socket(family, socket.SOCK_DGRAM)
	    s.bind((address, port))
	    return s
	for _ in range(3):
	    tcp(socket.AF_INET6, "::", 5201).close()
	tcp(socket.AF_INET, "0.0.0.0", 5202).close()
	tcp(socket.AF_INET, "127.0.0.1", 5203).close()
	tcp(socket.AF_INET6, "::1", 5204).close()
	gro = udp(socket.AF_INET, "0.0.0.0", 5205)
	gro.setsockopt(socket.IPPROTO_UDP, 104, 1)  # UDP_GRO
	state(gro)
	for _ in range(20):
	    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
	    s.connect(("127.0.0.1", 5206))
	    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
	    s.connect(("::1", 5206))
PY
says() { # LABEL ENVIRONMENT...
	local label=$1
	shift
	in_ns b env LD_PRELOAD="$BUILD/libvma.so" "$@" python3 "$WORK/sockets.py" >"$WORK/$label.out" 2>"$WORK/$label.err"
}
count() { grep -c -- "$2" "$WORK/$1"; }

says info VMA_TRACELEVEL=INFO
check_eq "an IPv6 port is said once, with program and remedy" \
	"$(count info.err "python.*: TCP port 5201, bound to ::, is the kernel's: .*0\.0\.0\.0")" 1
check_eq "and each time that somebody asks" "$(count info.out "state 0 python.*: TCP port 5201, bound to ::, is the kernel's")" 3
check_eq "the same sentence" "$(sed -n 's/^VMA INFO: \(.*port 5201.*\)/\1/p' "$WORK/info.err")" \
	"$(sed -n 's/^state 0 \(.*port 5201.*\)/\1/p' "$WORK/info.out" | head -n 1)"
check_eq "an option is named" "$(count info.err 'UDP port 5205, bound to 0.0.0.0, .*(UDP_GRO)')" 1
check_eq "what is offloaded is nothing to say" "$(count info.err 'port 5202')" 0
check_eq "nor is what only talks to this host" "$(count info.err 'port 520[346]')" 0
says quiet VMA_TRACELEVEL=WARNING
check_eq "at WARNING nothing is said" "$(wc -l <"$WORK/quiet.err")" 0
says details VMA_TRACELEVEL=DETAILS
check_eq "at DETAILS loopback, too" "$(count details.err 'TCP port 5203, bound to 127.0.0.1, .*only reachable on this host')" 1
says none VMA_NIC=none
check_eq "VMA_NIC=none says so" "$(count none.err 'no interface is offloaded: VMA_NIC is none')" 1
cat >"$WORK/tree.py" <<-'PY'
	import os, socket, subprocess, sys
	def use():
	    s = socket.socket()
	    s.bind(("0.0.0.0", 0))
	    s.listen()
	    return s
	kept = use()
	for _ in range(2):
	    child = os.fork()
	    if child == 0:
	        use()
	        os._exit(0)
	    os.waitpid(child, 0)
	if len(sys.argv) == 1:
	    subprocess.run([sys.executable, sys.argv[0], "child"], check=True)
PY
in_ns b env LD_PRELOAD="$BUILD/libvma.so" VMA_TRACELEVEL=INFO python3 "$WORK/tree.py" 2>"$WORK/tree.err"
check_eq "of a tree of processes (fork, exec) one says the banner" "$(count tree.err 'VMA_VERSION')" 1
check_eq "and the port" "$(count none.err 'TCP port 5202, bound to 0.0.0.0, is the kernel.s: the interface cannot be')" 1

# What another process takes of an offloaded connection (pidfd_getfd) is handed over to it. In another network namespace
# the taker does not find the owner: the connection is unconnected there, and goes on in its owner.
cat >"$WORK/takes.py" <<-'PY'
	import ctypes, os, socket, subprocess, sys
	def take(pid, fd):
	    return ctypes.CDLL(None).syscall(438, os.pidfd_open(pid), fd, 0)  # pidfd_getfd
	if len(sys.argv) > 3:
	    for _ in range(2):
	        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=take(int(sys.argv[3]), int(sys.argv[4])))
	        try:
	            s.getpeername()
	            print("connected")
	        except OSError as error:
	            print(error.strerror)
	    sys.exit()
	s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
	print(ctypes.CDLL(None).vma_get_socket_state(s.fileno(), None) if "vma" in os.environ.get("LD_PRELOAD", "") else 1)
	sys.stdout.flush()
	taker = [sys.executable, *sys.argv, str(os.getpid()), str(s.fileno())]
	subprocess.run([*os.environ.get("TAKER_IN", "").split(), *taker], check=True)
	s.sendall(b"hello")
	print(s.recv(100).decode())
PY
start echo a /usr/bin/socat "TCP-LISTEN:5210,bind=$IP_A,fork,reuseaddr" PIPE
wait_for 5 in_ns a sh -c "ss -Hltn 'sport = :5210' | grep -q ."
takes() { # LABEL ENVIRONMENT...
	local label=$1
	shift
	in_ns b timeout 20 env "$@" python3 "$WORK/takes.py" "$IP_A" 5210 >"$WORK/$label.out" 2>"$WORK/$label.err"
	tr '\n' ' ' <"$WORK/$label.out"
}
taken='pidfd_getfd has taken an unconnected TCP socket'
check_eq "a connection of the kernel's that another process takes is connected there" "$(takes plain VMA_TRACELEVEL=WARNING)" \
	"1 connected connected hello "
check_eq "an offloaded one is, too" "$(takes taken LD_PRELOAD="$BUILD/libvma.so" VMA_TRACELEVEL=WARNING)" \
	"1 connected connected hello "
check_eq "and there is nothing to say" "$(count taken.err "$taken")" 0
check_eq "to a taker in another network namespace it is not, and goes on in its owner" \
	"$(takes away LD_PRELOAD="$BUILD/libvma.so" VMA_TRACELEVEL=WARNING TAKER_IN="ip netns exec $(ns a)")" \
	"1 Transport endpoint is not connected Transport endpoint is not connected hello "
check_eq "the taker is told so once" "$(count away.err "$taken")" 1
check_eq "of the kernel's there is nothing to say" \
	"$(takes none LD_PRELOAD="$BUILD/libvma.so" VMA_TRACELEVEL=WARNING VMA_OFFLOADED_SOCKETS=0) $(count none.err "$taken")" \
	"0 connected connected hello  0"
done_testing
