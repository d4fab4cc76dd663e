#!/usr/bin/env bash
# Parameters that say which rules a card gets: each has its effect over verbs, or a line says that it has none.
#
#   a (10.9.0.1, kernel sockets) vs_a ---- card ---- wire ---- card ---- vs_b (10.9.0.2, preloaded) b
# seconds: 15
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
command -v python3 >/dev/null || cannot_run "no python3"
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-INFO} VMA_NIC=verbs
cards_pair
# shellcheck disable=SC2016
preloaded=("${with_cards[@]}" bash -c 'LD_PRELOAD="$LD_PRELOAD $0" exec "$@"' "$BUILD/libvma.so")
MANY=8

# holds.py connect|bound|no_port|accept|udp: so many connections, or one UDP socket that is connected to 10.9.0.1. "bound": from
# ports that bind has chosen; "no_port": from an address. "holds" after a while: a connection gets a rule of its own after 50 to 100 ms. Two signals
# have it end them all, and fork.
cat >"$WORK/holds.py" <<'PY'
import os, signal, socket, sys, time
def fork(*_):
    if os.fork() == 0:
        time.sleep(60)
def end(*_):
    for s in held:
        s.close()
    held.clear()
signal.signal(signal.SIGUSR1, fork)
signal.signal(signal.SIGUSR2, end)
what, many = sys.argv[1], int(sys.argv[2])
if what == "connect":
    held = [socket.create_connection(("10.9.0.1", 7000), 10) for _ in range(many)]
elif what == "bound":
    held = [socket.create_connection(("10.9.0.1", 7000), 10, ("10.9.0.2", 0)) for _ in range(many)]
elif what == "no_port":
    held = [socket.socket() for _ in range(many)]
    for s in held:
        s.setsockopt(socket.IPPROTO_IP, 24, 1) # IP_BIND_ADDRESS_NO_PORT
        s.bind(("10.9.0.2", 0))
        s.connect(("10.9.0.1", 7000))
elif what == "accept":
    listener = socket.create_server(("10.9.0.2", 7001), backlog=many)
    print("listens", flush=True)
    held = [listener.accept()[0] for _ in range(many)]
else:
    held = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM)]
    held[0].connect(("10.9.0.1", 7002))
    print("port", held[0].getsockname()[1], flush=True)
time.sleep(0.5)
print("holds", flush=True)
for s in held:
    s.sendall(b"word")
    s.settimeout(10)
    assert s.recv(4) == b"word"
print("answered", flush=True)
time.sleep(60)
PY
# echoes.py: on 7000 by TCP and on 7002 by UDP.  asks.py MANY: connections to b, of which each says a word.
cat >"$WORK/echoes.py" <<'PY'
import selectors, socket
poll = selectors.DefaultSelector()
listener = socket.create_server(("10.9.0.1", 7000), backlog=100)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("10.9.0.1", 7002))
for s in listener, datagrams:
    poll.register(s, selectors.EVENT_READ)
print("listens", flush=True)
while True:
    for key, _ in poll.select():
        s = key.fileobj
        if s is listener:
            poll.register(s.accept()[0], selectors.EVENT_READ)
        elif s is datagrams:
            s.sendto(*s.recvfrom(100))
        else:
            try:
                data = s.recv(100)
            except ConnectionError:
                data = b""
            s.sendall(data) if data else (poll.unregister(s), s.close())
PY
cat >"$WORK/asks.py" <<'PY'
import socket, sys
held = [socket.create_connection(("10.9.0.2", 7001), 10) for _ in range(int(sys.argv[1]))]
for s in held:
    s.sendall(s.recv(4, socket.MSG_WAITALL))
for s in held:
    s.recv(1)
PY

# Of b's card: rules with this address on one side, of one peer or of any.
rules() { # peer|any PORT
	card b rules | awk -v what="$1" -v port=":$2" '
		($9 ~ port "$" || $10 ~ port "$") && ($9 == "0.0.0.0:0" ? "any" : "peer") == what { n++ }
		END { print n + 0 }'
}
# All TCP of b's address.
address_rules() { card b rules | awk '$8 == 6 && $9 == "0.0.0.0:0" && $10 == "10.9.0.2:0" { n++ } END { print n + 0 }'; }
tcp_rules_are() { [ "$(rules peer 7000) $(address_rules)" = "$1" ]; }
rules_are() { [ "$(rules "$1" "$2")" -eq "$3" ]; }
holds() { # WHAT ENVIRONMENT...: until it does
	local what=$1
	shift
	start holds b env "$@" "${preloaded[@]}" python3 "$WORK/holds.py" "$what" $MANY
	[ "$what" != accept ] || {
		wait_for 20 log_has holds listens
		start asks a python3 "$WORK/asks.py" $MANY
	}
	wait_for 20 log_has holds '^answered'
}
ends() { # WHAT
	stop holds
	[ "$1" != accept ] || stop asks
	wait_for 10 rules_are peer 7000 0
}
no_effect='VMA_TCP_2T_RULES has no effect on a socket that is not bound'

start echoes a python3 "$WORK/echoes.py"
wait_for 10 log_has echoes listens

for value in 0 1; do
	check "VMA_TCP_2T_RULES=$value: connections are made" holds connect VMA_TCP_2T_RULES=$value
	check_eq "... each has a rule of its own" "$(rules peer 7000) $(address_rules)" "$MANY 0"
	check_eq "... and what has no effect has one line" "$(grep -c "$no_effect" "$WORK/holds.log")" $value
	ends connect
done

check "VMA_TCP_2T_RULES=0: sockets with an address connect" holds bound VMA_TCP_2T_RULES=0
check_eq "... each has a rule of its own" "$(rules peer 7000) $(address_rules)" "$MANY 0"
ends bound
check "VMA_TCP_2T_RULES=1: sockets with an address connect" holds bound VMA_TCP_2T_RULES=1
check_eq "... they have one rule, the address's" "$(rules peer 7000) $(address_rules)" "0 1"
check_eq "... and no line says that there is no effect" "$(grep -c "$no_effect" "$WORK/holds.log")" 0
start second b env VMA_TCP_2T_RULES=1 "${preloaded[@]}" python3 "$WORK/holds.py" bound $MANY
check "another process connects from the same address" wait_for 20 log_has second '^answered'
check_eq "... with rules of its own" "$(rules peer 7000) $(address_rules)" "$MANY 1"
stop second
check "... which end with it" wait_for 10 tcp_rules_are "0 1"
kill -USR2 "${PID[holds]}"
check "if the connections have ended, so has the rule" wait_for 20 tcp_rules_are "0 0"
ends bound
check "... and the address's rule covers others" holds bound VMA_TCP_2T_RULES=1
ends bound
check "... whose ports are chosen by connect, too" holds no_port VMA_TCP_2T_RULES=1
check_eq "... they have one rule" "$(rules peer 7000) $(address_rules)" "0 1"
kill -USR1 "${PID[holds]}"
check "a process that forks: each connection gets a rule of its own" wait_for 20 rules_are peer 7000 $MANY
ends bound

check "connections are accepted" holds accept VMA_TCP_3T_RULES=0
check "... each gets a rule of its own" wait_for 10 rules_are peer 7001 $MANY
ends accept
check "with VMA_TCP_3T_RULES they are served as well" holds accept VMA_TCP_3T_RULES=1
check_eq "... and their listener's rule is the only one" "$(rules peer 7001) $(rules any 7001)" "0 1"
ends accept

port() { sed -n 's/^port //p' "$WORK/holds.log"; }
for value in 0 1; do
	check "VMA_UDP_3T_RULES=$value: a socket is connected, and answered" holds udp VMA_UDP_3T_RULES=$value
	check_eq "... and its rule has $([ $value = 0 ] && echo "its" || echo "no") peer" \
		"$(rules peer "$(port)") $(rules any "$(port)")" "$((1 - value)) $value"
	ends udp
done

stop echoes
for name in a b; do check_eq "no rule of the verbs is broken ($name)" "$(card_count $name violations)" 0; done
cards_end
done_testing
