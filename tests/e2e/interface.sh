#!/usr/bin/env bash
# An interface that is deleted and made anew, with another index and the same addresses, as when a container starts
# again; and one that is down for a while. Connections go on, as soon as the kernel's beside them; sockets that listen
# or receive hear again.
#
#   a (each program twice: on kernel sockets, and preloaded)  veth  (the same) b
# seconds: 75
# test-all: interfaces are made anew many times, and what programs do then is waited for
. "$(dirname "$0")/../lib.sh"
need_xdp
if [ "$SAN" = thread ]; then
	skip "interfaces that come and go" "the race detector's runtime starts in instrumented programs only"
	done_testing
fi
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:handle_segv=0:handle_sigbus=0:allow_user_segv_handler=1}
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-WARNING}
LIBRARY=$BUILD/libvma.so
case $SAN in
address) PRELOAD="$(gcc -print-file-name=libasan.so) $LIBRARY" ;;
*) PRELOAD=$LIBRARY ;;
esac
SLACK_MS=1500

# Not with ns_join: the interfaces are to get new indexes each time, and neighbours that have to be found.
join() {
	ip link add "$IF_A" netns "$(ns a)" type veth peer name "$IF_B" netns "$(ns b)"
	ip -n "$(ns a)" addr add "$IP_A/24" dev "$IF_A"
	ip -n "$(ns b)" addr add "$IP_B/24" dev "$IF_B"
	ip -n "$(ns a)" link set "$IF_A" up
	ip -n "$(ns b)" link set "$IF_B" up
}
net_pair
ip -n "$(ns a)" link del "$IF_A" && join && wait_for 5 link_up a "$IF_A" || cannot_run "the interface cannot be made anew"

cat >"$WORK/talk.py" <<'PY'
# talk.py serve|ask|udp_serve|udp_ask PORT ADDRESS SECONDS: who asks waits for each answer, and says at its end how long
# it waited at most, and how many questions were answered.
import ctypes, select, socket, sys, threading, time
role, port, address, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])

def state(s):
    try:
        f = ctypes.CDLL(None).vma_get_socket_state
    except AttributeError:
        return 'none'
    text = ctypes.c_char_p()
    return 'offloaded' if f(s.fileno(), ctypes.byref(text)) == 1 else 'kernel: ' + text.value.decode()

def answer(c):
    while True:
        data = c.recv(1000)
        if not data:
            return
        c.sendall(data)

if role == 'serve':
    listener = socket.create_server((address, port))
    print('ready', state(listener), flush=True)
    while True:
        c, _ = listener.accept()
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=answer, args=(c,), daemon=True).start()
if role == 'udp_serve':
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((address, port))
    print('ready', state(s), flush=True)
    while True:
        data, peer = s.recvfrom(1000)
        try:
            s.sendto(data, peer)
        except OSError:
            pass

udp = role == 'udp_ask'
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM)
s.settimeout(10)
s.connect((address, port))
if not udp:
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
worst = answered = 0
end = time.monotonic() + seconds
asked = time.monotonic()
while time.monotonic() < end:
    question = b'%08d' % answered
    try:
        s.sendall(question)
    except OSError:
        time.sleep(0.02)
        if udp:
            continue
        raise
    got = b''
    if udp:
        if select.select([s], [], [], 0.1)[0]:
            try:
                got = s.recv(1000)
            except OSError:
                pass
    else:
        while len(got) < len(question):
            data = s.recv(1000)
            if not data:
                sys.exit('the end, after %d answers' % answered)
            got += data
        assert got == question, (got, question)
    if got:
        now = time.monotonic()
        worst = max(worst, now - asked)
        answered += 1
        if answered == 10:
            print('ready', state(s), flush=True)
        time.sleep(0.01)
        asked = time.monotonic()
print('worst', int(worst * 1000), 'answered', answered, state(s), flush=True)
PY

talk() { # LABEL NAMESPACE kernel|ours ARGUMENTS...
	local with=()
	[ "$3" = kernel ] || with=("LD_PRELOAD=$PRELOAD")
	start "$1" "$2" env "${with[@]}" python3 "$WORK/talk.py" "${@:4}"
}
ready() { # LABEL...
	local label
	for label in "$@"; do wait_for 30 log_has "$label" '^ready' || return; done
}
worst() { # LABEL
	sed -n 's/^worst \([0-9]*\) .*/\1/p' "$WORK/$1.log"
}

remake() { # SECONDS
	ip -n "$(ns a)" link del "$IF_A"
	sleep "$1"
	join
}
# Whoever might tell the peer of the connection does not run at the moment when the peer speaks again.
remake_behind_their_backs() {
	local label
	ip -n "$(ns a)" link del "$IF_A"
	sleep 0.5
	for label in served client; do kill -STOP "${PID[$label]}"; done
	join
	sleep 1.5
	for label in served client; do kill -CONT "${PID[$label]}"; done
}
off_and_on() { # SECONDS
	ip -n "$(ns a)" link set "$IF_A" down
	sleep "$1"
	ip -n "$(ns a)" link set "$IF_A" up
}
peer_off_and_on() { # SECONDS
	ip -n "$(ns b)" link set "$IF_B" down
	sleep "$1"
	ip -n "$(ns b)" link set "$IF_B" up
}

# Of the same outage: conversations of kernel sockets, of an offloaded client, and of an offloaded server.
outage() { # SENTENCE COMMAND...
	local s=$1 of
	shift
	talk plain b kernel serve 7300 "$IP_B" 0
	talk served a ours serve 7301 "$IP_A" 0
	ready plain served
	talk kernel a kernel ask 7300 "$IP_B" 12
	talk client a ours ask 7300 "$IP_B" 12
	talk server b kernel ask 7301 "$IP_A" 12
	check "$s: conversations begin" ready kernel client server
	check "$s: the client and the listener are offloaded" log_has client '^ready offloaded'
	"$@"
	for of in kernel client server; do
		check "$s: the conversation ends well ($of)" finish $of 40
	done
	note "$s: silence of $(worst kernel) ms with kernel sockets, $(worst client) offloaded client, $(worst server) offloaded server"
	check_num "$s: an offloaded client goes on as soon as the kernel's" "$(worst client)" -le $(($(worst kernel) + SLACK_MS))
	check_num "$s: so does an offloaded server" "$(worst server)" -le $(($(worst kernel) + SLACK_MS))
	# The sockets that were there before serve what comes now.
	talk again b kernel ask 7301 "$IP_A" 1
	check "$s: its listener accepts afterwards" finish again 20
	stop plain
	stop served
}

cat >"$WORK/half.py" <<'PY'
# half.py serve|ask PORT ADDRESS: the question's end comes before the interface goes, the answer after it is back.
import socket, sys, time
role, port, address = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def state(s):
    import ctypes
    try:
        f = ctypes.CDLL(None).vma_get_socket_state
    except AttributeError:
        return 'none'
    text = ctypes.c_char_p()
    return 'offloaded' if f(s.fileno(), ctypes.byref(text)) == 1 else 'kernel: ' + text.value.decode()

def until_end(s):
    data = b''
    while True:
        more = s.recv(1000)
        if not more:
            return data
        data += more

if role == 'serve':
    listener = socket.create_server((address, port))
    print('listens', flush=True)
    c, _ = listener.accept()
    c.settimeout(30)
    assert c.recv(8, socket.MSG_WAITALL) == b'question'
    time.sleep(0.5) # the FIN has come, and has not been read
    print('ready', state(c), flush=True)
    time.sleep(6)
    assert until_end(c) == b'', 'more than the question'
    c.sendall(b'answer')
    c.close()
else:
    s = socket.create_connection((address, port))
    s.settimeout(40)
    s.sendall(b'question')
    s.shutdown(socket.SHUT_WR)
    assert until_end(s) == b'answer', 'another answer'
print('done', flush=True)
PY
half_closed() { # SENTENCE COMMAND...
	local s=$1
	shift
	start served a env "LD_PRELOAD=$PRELOAD" python3 "$WORK/half.py" serve 7500 "$IP_A"
	wait_for 30 log_has served '^listens'
	start asked b python3 "$WORK/half.py" ask 7500 "$IP_A"
	check "$s: its question and its end arrive" ready served
	check "$s: the connection is offloaded" log_has served '^ready offloaded'
	"$@"
	check "$s: the server reads the end, and answers" finish served 60
	check "$s: the client gets the answer" finish asked 60
}

datagrams() { # SENTENCE COMMAND...
	local s=$1
	shift
	talk served a ours udp_serve 7400 "$IP_A" 0
	talk plain b kernel udp_serve 7401 "$IP_B" 0
	ready served plain
	talk asked b kernel udp_ask 7400 "$IP_A" 9
	talk asking a ours udp_ask 7401 "$IP_B" 9
	check "$s: datagrams come and go" ready asked asking
	check "$s: the socket is offloaded" log_has served '^ready offloaded'
	"$@"
	check "$s: whoever asks an offloaded socket gets answers until the end" finish asked 30
	check "$s: so does an offloaded socket that asks" finish asking 30
	check_num "$s: they come again soon" "$(worst asked)" -lt 4000
	check_num "$s: both ways" "$(worst asking)" -lt 4000
	note "$s: silence of $(worst asked) and $(worst asking) ms; $(tail -n 1 "$WORK/asking.log")"
	stop plain
	stop served
}

outage "an interface that is made anew" remake 1
SLACK_MS=$((SLACK_MS + 1500)) outage "an interface that is made anew while its users stand still" remake_behind_their_backs
outage "an interface that is down for 2 s" off_and_on 2
outage "a carrier that is away for 2 s" peer_off_and_on 2
half_closed "half closed while an interface is made anew" remake 2
datagrams "an interface that is made anew" remake 1
done_testing
