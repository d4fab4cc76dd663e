#!/usr/bin/env bash
# What vmad does for a client that has its connections handed over to the kernel, and what it refuses: connections that
# are not the client's, sockets and bytes that are not such. The client is nobody, and speaks the protocol itself.
# seconds: 4
. "$(dirname "$0")/../lib.sh"
need_xdp
net_pair
chmod a+rx "$WORK"

cat >"$WORK/client.py" <<'PY'
import array, errno, fcntl, os, socket, struct, sys
index, local, peer = int(sys.argv[1]), socket.inet_aton(sys.argv[2]), socket.inet_aton(sys.argv[3])
HELLO, RENT, FLOW_ADD, REPAIR = 1, 2, 4, 32
vmad = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
vmad.connect("\0vma/vmad/%d" % index)
vmad.settimeout(5)

def fds_of(control):
    fds = array.array("i")
    for level, kind, data in control:
        fds.frombytes(data)
    return list(fds)

def ask(kind, body=b"", shown=()):
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", shown))] if shown else []
    vmad.sendmsg([struct.pack("=IHHIi", 0x64616d76, int(sys.argv[4]), kind, 1, 0) + body.ljust(112, b"\0")], control)
    answer, control, _, _ = vmad.recvmsg(128, socket.CMSG_SPACE(400))
    return struct.unpack_from("=i", answer, 12)[0], answer[16:], fds_of(control)

def key(local_port, peer_port=0, peer_ip=bytes(4)):
    return struct.pack(KEY, socket.AF_INET, 6, 0, socket.htons(local_port), socket.htons(peer_port),
                       local.ljust(16, b"\0"), peer_ip.ljust(16, b"\0"))
KEY = "=BBHHH16s16s"

def name(result):
    return "done" if result == 0 else errno.errorcode[-result]

def state(local_port, peer_port, unread=0, unacked=0, mss=1460):
    return struct.pack("=4s4sHHHHIIIIIIIIIII", local, peer, socket.htons(local_port),
                       socket.htons(peer_port), 0, mss, 1000, 2000 + unread, unread, 0, unacked, 2000, 65535, 65535,
                       2000 + unread, 60000, 1) + bytes(8)

def repair(sock, what, memory=None):
    fds = [sock.fileno()] + ([memory] if memory is not None else [])
    channel.sendmsg([struct.pack("=II", 0x72706572, 1) + what],
                    [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
    answer = channel.recv(100)
    return struct.unpack("=IIii", answer)[2]

def tcp():
    return socket.socket()

def sealed(data, seals=0xf):
    fd = os.memfd_create("bytes", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, 1033, seals)
    return fd

def say(what, result):
    print(what + ":", result, flush=True)

say("hello", name(ask(HELLO)[0]))
say("a channel before anything is rented", name(ask(REPAIR)[0]))
result, body, rented = ask(RENT, struct.pack("=II", 64, 64))
slot = struct.unpack_from("=I", body)[0]
say("rent", name(result))
result, _, fds = ask(REPAIR)
say("a channel", name(result))
channel = socket.socket(fileno=fds[0])
channel.settimeout(5)
say("a connection without a flow", name(repair(tcp(), state(7301, 9001))))
with tcp() as bound:
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((socket.inet_ntoa(local), 7301))
    say("a flow", name(ask(FLOW_ADD, struct.pack("=IIQ", slot, 0, 0) + key(7301, 9001, peer), [bound.fileno()])[0]))
good = tcp()
say("a connection with one", name(repair(good, state(7301, 9001, unread=5), sealed(b"hello"))))
say("it is connected to", "%s:%d" % good.getpeername())
say("and can read", good.recv(10).decode())
# The second is shorter than the header that it says; behind it lies what the first one left.
channel.send(struct.pack("=II", 0x72706572, 2) + bytes(72) + b"\x50" + bytes(27))
channel.send(struct.pack("=II", 0x72706572, 2) + b"\x4f" + bytes(39))
say("that of another port", name(repair(tcp(), state(7302, 9001))))
say("that of another peer", name(repair(tcp(), state(7301, 9002))))
say("a socket of UDP", name(repair(socket.socket(type=socket.SOCK_DGRAM), state(7301, 9001))))
bound = tcp()
bound.bind((sys.argv[2], 0))
say("a socket that is bound elsewhere", name(repair(bound, state(7301, 9001))))
say("one that is connected", name(repair(good, state(7301, 9001))))
say("and still is", "%s:%d" % good.getpeername())
say("bytes that can change", name(repair(tcp(), state(7301, 9001, unread=5), sealed(b"hello", 0))))
say("fewer bytes than said", name(repair(tcp(), state(7301, 9001, unread=6), sealed(b"hello"))))
say("bytes that are not there", name(repair(tcp(), state(7301, 9001, unread=6))))
say("too many bytes", name(repair(tcp(), state(7301, 9001, unread=1 << 30), sealed(b"hello"))))
say("no such segments", name(repair(tcp(), state(7301, 9001, mss=1))))
channel.send(b"nonsense")
say("after nonsense", "the end" if channel.recv(10) == b"" else "goes on")
result, _, fds = ask(REPAIR)
say("another channel", name(result))
channel = socket.socket(fileno=fds[0])
good.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))  # else it waits for its end
good.close()
say("which serves", name(repair(tcp(), state(7301, 9001))))
PY

cat >"$WORK/wanted" <<EOT
hello: done
a channel before anything is rented: EPERM
rent: done
a channel: done
a connection without a flow: EPERM
a flow: done
a connection with one: done
it is connected to: $IP_A:9001
and can read: hello
that of another port: EPERM
that of another peer: EPERM
a socket of UDP: EINVAL
a socket that is bound elsewhere: EADDRINUSE
one that is connected: EISCONN
and still is: $IP_A:9001
bytes that can change: EINVAL
fewer bytes than said: EINVAL
bytes that are not there: EINVAL
too many bytes: EINVAL
no such segments: EINVAL
after nonsense: the end
another channel: done
which serves: done
EOT

start vmad b "$BUILD/bin/vmad" --foreground --allow-user nobody "$IF_B"
check "vmad is there" wait_for 20 log_has vmad "owns $IF_B"
index=$(in_ns b cat "/sys/class/net/$IF_B/ifindex")
version=$(sed -n 's/^#define VMAD_VERSION //p' components/nic/xdp/proto.h)
in_ns b setpriv --reuid nobody --clear-groups timeout 30 python3 "$WORK/client.py" "$index" "$IP_B" "$IP_A" "$version" \
	>"$WORK/got" 2>&1
while IFS= read -r line; do
	check "${line%%: *}: ${line#*: }" grep -qxF "$line" "$WORK/got"
done <"$WORK/wanted"
cmp -s "$WORK/wanted" "$WORK/got" || note "$(cat "$WORK/got")"
check "vmad still runs" alive vmad

# A signal in each millisecond of the server's, which gives each connection to a child: none is lost for that.
cat >"$WORK/signals.py" <<'PY'
import os, signal, socket, sys

if sys.argv[1] == "serve":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    listener = socket.create_server((sys.argv[2], 7310))
    print("listening", flush=True)
    while True:
        connection, _ = listener.accept()
        first = connection.recv(1)  # so that the listener is not left to the kernel after eight of them
        if os.fork() == 0:
            connection.sendall(first + connection.recv(100))
            os._exit(0)
        connection.close()
for i in range(100):
    with socket.create_connection((sys.argv[2], 7310), timeout=10) as connection:
        line = b"line %d" % i
        connection.sendall(line)
        got = b""
        while piece := connection.recv(100):
            got += piece
        assert got == line, (i, got)
PY
if [ -z "$SAN" ]; then # whose runtimes need files that such a user cannot read
	cp "$BUILD/libvma.so" "$WORK/" && chmod 755 "$WORK" "$WORK/libvma.so"
	start server b setpriv --reuid nobody --clear-groups env "LD_PRELOAD=$WORK/libvma.so" VMA_TRACELEVEL=WARNING \
		/usr/bin/python3 "$WORK/signals.py" serve "$IP_B"
	check "a server of nobody with a signal in each millisecond" wait_for 20 log_has server listening
	segments=$(snmp b Tcp PassiveOpens)
	check "each of 100 connections is served by a child" in_ns a timeout 60 /usr/bin/python3 "$WORK/signals.py" ask "$IP_B"
	check_eq "which the server's process has accepted" "$(($(snmp b Tcp PassiveOpens) - segments))" 0
	check_eq "nothing was to be complained of" "$(grep -c VMA "$WORK/server.log")" 0
	stop server

	# A connection from a block of ports gives way to the kernel's: from the moment when the kernel has it, in the middle
	# of the hand-over, what the peer sends goes there. Nothing is lost for that.
	cat >"$WORK/block.py" <<'PY'
import os, socket, sys, time

SENT = bytes(range(256)) * 1600
if sys.argv[1] == "serve":
    listener = socket.create_server((sys.argv[2], 7320))
    print("listening", flush=True)
    while True:
        connection, _ = listener.accept()
        connection.recv(2)
        for at in range(0, len(SENT), 4096):
            connection.sendall(SENT[at : at + 4096])
            time.sleep(0.0002)
        connection.close()
for i in range(25):
    with socket.create_connection((sys.argv[2], 7320), timeout=10) as connection:
        connection.sendall(b"go")
        got = connection.recv(1000)
        child = os.fork()
        if child == 0:
            while piece := connection.recv(65536):
                got += piece
            os._exit(got != SENT)
    assert os.waitpid(child, 0)[1] == 0, i
PY
	start peer a python3 "$WORK/block.py" serve "$IP_A"
	check "a peer listens" wait_for 10 log_has peer listening
	opens=$(snmp b Tcp ActiveOpens)
	check "each of 25 connections is given to a child while its peer sends" in_ns b timeout 60 setpriv --reuid nobody \
		--clear-groups env "LD_PRELOAD=$WORK/libvma.so" VMA_TRACELEVEL=WARNING /usr/bin/python3 "$WORK/block.py" ask "$IP_A"
	check_eq "which the program has made past the kernel" "$(($(snmp b Tcp ActiveOpens) - opens))" 0
	stop peer
fi
stop vmad
done_testing
