#!/usr/bin/env bash
# One connection of TCP and two processes, over cards: a child that inherits it, a process that gets it in a message, and
# two that ask for the same addresses and ports. A card would give its packets to both. Whichever has it, bytes go both
# ways, and nobody sends RST. With a vmad on the interface, and without.
#
#   a (10.9.0.1, kernel sockets) vs_a ---- card ---- wire ---- card ---- vs_b (10.9.0.2, preloaded) b
# seconds: 20
# test-all: each of its ways starts processes of its own
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
command -v python3 >/dev/null || cannot_run "no python3"
PORT=7000 BYTES=1000000
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-INFO} VMA_NIC=verbs
cards_pair
# shellcheck disable=SC2016
preloaded=("${with_cards[@]}" bash -c 'LD_PRELOAD="$LD_PRELOAD $0" exec "$@"' "$BUILD/libvma.so")

# peer.py ADDRESS PORT [TO]: sends back what comes on each connection; with TO, on one that it makes itself.
cat >"$WORK/peer.py" <<'PY'
import socket, sys, threading
def echo(connection):
    try:
        while data := connection.recv(65536):
            connection.sendall(data)
    except OSError as error:
        print("failed", error, flush=True)
    connection.close()
    print("over", flush=True)
if len(sys.argv) > 3:
    echo(socket.create_connection((sys.argv[3], int(sys.argv[2])), 10))
    sys.exit()
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=64)
print("listening", flush=True)
while True:
    threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
PY

# two.py connects|accepts ADDRESS PEER PORT BYTES fork|passes: one process and then the other move bytes both ways.
cat >"$WORK/two.py" <<'PY'
import hashlib, os, socket, subprocess, sys, threading
def talk(connection, size):
    sent, got, left = hashlib.sha256(), hashlib.sha256(), size
    def send():
        for _ in range(size // 50000):
            data = os.urandom(50000)
            sent.update(data)
            connection.sendall(data)
    thread = threading.Thread(target=send)
    thread.start()
    while left:
        data = connection.recv(min(65536, left))
        assert data, "an end of stream"
        got.update(data)
        left -= len(data)
    thread.join()
    assert sent.digest() == got.digest(), "other bytes"
if sys.argv[1] == "gets":
    mailbox = socket.socket(fileno=0)
    _, fds, _, _ = socket.recv_fds(mailbox, 100, 1)
    connection = socket.socket(fileno=fds[0])
    connection.settimeout(30) # its descriptor does not block
    talk(connection, int(sys.argv[2]))
    sys.exit(0)
how, address, peer, port, size, then = sys.argv[1:]
port, size = int(port), int(size)
if how == "connects":
    connection = socket.create_connection((peer, port), 10)
else:
    listener = socket.create_server((address, port))
    print("listening", flush=True)
    connection, _ = listener.accept()
connection.settimeout(30)
talk(connection, size)
print("has it", flush=True)
sys.stdin.readline()
if then == "fork":
    pid = os.fork()
    if pid == 0:
        try:
            talk(connection, size)
        except BaseException as error:
            print("child:", repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
else:
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other = subprocess.Popen([sys.executable, sys.argv[0], "gets", str(size)], stdin=its)
    its.close()
    socket.send_fds(mine, [b"."], [connection.fileno()])
    assert other.wait(60) == 0
talk(connection, size)
connection.shutdown(socket.SHUT_WR)
assert connection.recv(1) == b"", "more bytes"
print("done", flush=True)
PY

# asks.py ADDRESS PEER PORT OWN SO_REUSEADDR|SO_REUSEPORT|none: a connection from the port OWN speaks until its input ends.
cat >"$WORK/asks.py" <<'PY'
import errno, select, socket, sys
address, peer, port, own, option = sys.argv[1:]
s = socket.socket()
if option != "none":
    s.setsockopt(socket.SOL_SOCKET, getattr(socket, option), 1)
s.bind((address, int(own)))
s.settimeout(10)
try:
    s.connect((peer, int(port)))
except OSError as error:
    print("refused", errno.errorcode[error.errno], flush=True)
    sys.exit(0)
n = 0
while not select.select([sys.stdin], [], [], 0.01)[0]:
    n += 1
    s.sendall(b"%09d" % n)
    data = b""
    while len(data) < 9 and (piece := s.recv(9 - len(data))):
        data += piece
    assert data == b"%09d" % n, data
    if n == 10:
        print("speaks", flush=True)
print("well", flush=True)
PY

resets() { # both kernels' RST, and what either had to end
	echo "$(snmp a Tcp OutRsts) $(snmp b Tcp OutRsts) $(snmp a Tcp EstabResets) $(snmp b Tcp EstabResets)"
}
start_with_lines() { # LABEL COMMAND...: in b, preloaded; its input is descriptor 8 or 9, which follows
	local label=$1 fd=$2
	shift 2
	rm -f "$WORK/$label.in"
	mkfifo "$WORK/$label.in"
	# shellcheck disable=SC2016
	start "$label" b "${preloaded[@]}" bash -c 'exec "${@:2}" <"$1" 8>&- 9>&-' - "$WORK/$label.in" "$@"
	eval "exec $fd>\"\$WORK/$label.in\""
}
own_rule() { # so many connections have rules of their own
	[ "$(card b rules | awk '$9 != "0.0.0.0:0" { n++ } END { print n + 0 }')" -ge 1 ]
}
two() { # connects|accepts fork|passes
	start_with_lines two 8 python3 "$WORK/two.py" "$1" "$IP_B" "$IP_A" $PORT $BYTES "$2"
	if [ "$1" = accepts ]; then
		wait_for 20 log_has two listening && start comes a python3 "$WORK/peer.py" "$IP_A" $PORT "$IP_B" || return
	fi
	wait_for 30 log_has two 'has it' && wait_for 10 own_rule || return
	echo >&8
	exec 8>&-
	finish two 60 && log_has two '^done' && { [ "$1" = connects ] || finish comes 10; }
}

start peer a python3 "$WORK/peer.py" "$IP_A" $PORT
wait_for 10 log_has peer listening || cannot_run "the peer does not start"
for vmad in no a; do
	if [ $vmad = a ]; then
		start vmad b "${with_cards[@]}" "$BUILD/bin/vmad" --foreground "$IF_B"
		wait_for 10 log_has vmad owns || cannot_run "vmad does not start"
	fi
	for how in connects accepts; do
		for then in fork passes; do
			s="$how, $then, $vmad vmad"
			before=$(resets) opened=$(snmp b Tcp PassiveOpens)
			check "$s: bytes go both ways in both processes" two $how $then
			check_eq "$s: it was not the kernel's at first" "$(snmp b Tcp PassiveOpens)" "$opened"
			check_eq "$s: and no RST is sent" "$(resets)" "$before"
			stop two
			stop comes
			exec 8>&-
		done
	done
	for option in SO_REUSEADDR SO_REUSEPORT; do
		s="two processes ask for one connection ($option), $vmad vmad"
		[ $option = SO_REUSEADDR ] && own=$((PORT + 10)) || own=$((PORT + 11))
		[ $vmad = no ] || own=$((own + 2))
		before=$(resets)
		start_with_lines first 8 python3 "$WORK/asks.py" "$IP_B" "$IP_A" $PORT $own $option
		check "$s: the first has it" wait_for 20 log_has first speaks
		start_with_lines second 9 python3 "$WORK/asks.py" "$IP_B" "$IP_A" $PORT $own $option
		check "$s: the second is refused, as by the kernel" eval "wait_for 20 log_has second . && finish second 20 && log_has second 'refused EADDRNOTAVAIL'"
		exec 9>&-
		echo >&8
		exec 8>&-
		check "$s: the first goes on" eval "finish first 20 && log_has first well"
		check_eq "$s: and no RST is sent" "$(resets)" "$before"
		stop second
	done
done
s="the kernel has a connection"
# shellcheck disable=SC2016
mkfifo "$WORK/kernel.in"
start kernel b bash -c "exec python3 '$WORK/asks.py' '$IP_B' '$IP_A' $PORT $((PORT + 20)) SO_REUSEADDR <'$WORK/kernel.in'"
exec 8>"$WORK/kernel.in"
check "$s: from a port of its own choice" wait_for 20 log_has kernel speaks
before=$(resets)
start_with_lines second 9 python3 "$WORK/asks.py" "$IP_B" "$IP_A" $PORT $((PORT + 20)) SO_REUSEADDR
check "$s: a process that asks for the same one is refused" eval "finish second 20 && log_has second 'refused EADDRNOTAVAIL'"
exec 9>&-
echo >&8
exec 8>&-
check "$s: it goes on" eval "finish kernel 20 && log_has kernel well"
check_eq "$s: and no RST is sent" "$(resets)" "$before"
check_eq "no rule of the verbs is broken" "$(card_count b violations)" 0
done_testing
