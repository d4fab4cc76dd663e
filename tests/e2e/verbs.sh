#!/usr/bin/env bash
# The verbs backend over two cards made of software: the conformance suite, what only a card can show, and programs that
# are preloaded, whose packets the kernel does not see.
#
#   a (10.9.0.1, 10.77.0.1) vs_a ---- card ---- wire ---- card ---- vs_b (10.9.0.2, 10.77.0.2) b
# seconds: 60
. "$(dirname "$0")/../lib_verbs.sh"
need_cards
command -v sockperf >/dev/null || cannot_run "no sockperf"
conformance=$BUILD/test/nic/test/test_conformance
priv=$BUILD/components/nic/test/priv_verbs
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-INFO}

cards_up() {
	cards_pair
	ip -n "$(ns a)" addr add 10.77.0.1/24 dev "$IF_A" # the addresses of the unit tests' frames
	ip -n "$(ns b)" addr add 10.77.0.2/24 dev "$IF_B"
}

both_ends() { # PROGRAM: its cases of cmocka
	env -u VMA_TRACELEVEL VMA_CONFORMANCE="verbs:$IF_A verbs:$IF_B" CMOCKA_MESSAGE_OUTPUT=TAP \
		VMA_CONFORMANCE_NETNS="/run/netns/$(ns a) /run/netns/$(ns b)" \
		CARD="$CARD" CARD_A="$WORK/card_a" CARD_B="$WORK/card_b" "${with_cards[@]}" "$1"
}

# A program sees the cards and has the library. The shell puts the library behind what the cards preload.
# shellcheck disable=SC2016
preloaded=("${with_cards[@]}" bash -c 'LD_PRELOAD="$LD_PRELOAD $0" exec "$@"' "$BUILD/libvma.so")

cards_up

# ---- the backend ----

check "the conformance suite holds" both_ends "$conformance"
ip -n "$(ns a)" link set "$IF_A" mtu 9000
ip -n "$(ns b)" link set "$IF_B" mtu 9000
check "... and with packets of several buffers" both_ends "$conformance"
ip -n "$(ns a)" link set "$IF_A" mtu 1500
ip -n "$(ns b)" link set "$IF_B" mtu 1500
for name in a b; do check_eq "... and broke no rule of the verbs ($name)" "$(card_count $name violations)" 0; done

# ---- one capability ----

echo_and_ping() { # SERVER'S COMMAND...: datagrams that come back
	start echo b "${with_cards[@]}" "$@" "$BUILD/examples/udp_echo" --local "$IP_B" "verbs:$IF_B"
	sleep 1
	in_ns a "${with_cards[@]}" "$BUILD/examples/udp_ping" --local "$IP_A" --peer "$IP_B" --peer-mac "$MAC_B" \
		--count 1000 --bytes 1400 "verbs:$IF_A"
	local rc=$?
	stop echo
	return $rc
}
check "a custom stack gets its datagrams" echo_and_ping env
check "... with CAP_NET_RAW alone" echo_and_ping setpriv --bounding-set=-all,+net_raw
check "... and 4 MB of memory to lock" echo_and_ping prlimit --memlock=4194304:4194304 setpriv --bounding-set=-all,+net_raw
start echo b "${with_cards[@]}" setpriv --bounding-set=-net_raw "$BUILD/examples/udp_echo" --local "$IP_B" "verbs:$IF_B"
finish echo 10
check "without it one line says so" log_has echo "RDMA device vmasoft1 is not used: without CAP_NET_RAW"
check "an interface without RDMA device is told" bash -c "! '$BUILD/examples/udp_echo' --local 127.0.0.1 verbs:lo 2>&1 |
	grep -v 'lo: no RDMA device has this interface' | grep VMA"

# ---- preloaded programs ----

received() { # what the kernel of b counted of UDP and TCP
	echo "$(snmp b Udp InDatagrams) $(snmp b Tcp InSegs)"
}

sockperf_runs() { # ARGUMENTS...: both sides preloaded
	local rc
	start server b "${preloaded[@]}" sockperf server -i "$IP_B" "$@"
	wait_for 20 log_has server "to block on socket"
	before=$(received)
	in_ns a "${preloaded[@]}" sockperf ping-pong -i "$IP_B" "$@" -t 1 --msg-size 200 >"$WORK/client.log" 2>&1
	rc=$?
	after=$(received)
	stop server
	[ $rc -eq 0 ] && grep -q "# dropped messages = 0; # duplicated messages = 0" "$WORK/client.log"
}
check "unmodified programs exchange datagrams" sockperf_runs
check_eq "... and the kernel saw none of them" "$after" "$before"
check "the log says which device has the interface" log_has server "$IF_B: by RDMA device vmasoft1"
check "unmodified programs have a connection" sockperf_runs --tcp
check_eq "... and the kernel saw none of its segments" "$after" "$before"

# Two workers accept from one listener: the card cannot share it, so it is the kernel's.
cat >"$WORK/workers.py" <<'PY'
import os, socket, sys
listener = socket.create_server((sys.argv[1], 7100))
for _ in range(2):
    if os.fork() == 0:
        while True:
            s, _ = listener.accept()
            s.sendall(s.recv(100))
            s.close()
print("ready", flush=True)
os.wait()
PY
cat >"$WORK/asks.py" <<'PY'
import socket, sys
for i in range(20):
    s = socket.create_connection((sys.argv[1], 7100), 5)
    s.sendall(b"%d" % i)
    assert s.recv(100) == b"%d" % i
    s.close()
PY
start workers b "${preloaded[@]}" python3 "$WORK/workers.py" "$IP_B"
wait_for 20 log_has workers ready
sleep 1
check "a listener that two workers share answers each connection once" in_ns a python3 "$WORK/asks.py" "$IP_B"
for pid in $(ip netns pids "$(ns b)"); do
	[ "$(cat "/proc/$pid/comm" 2>/dev/null)" != python3 ] || kill "$pid"
done
stop workers

# Two processes with UDP sockets of the same addresses, the peer's too: the kernel has them, and each datagram comes once.
cat >"$WORK/twin.py" <<'PY'
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((sys.argv[1], int(sys.argv[3])))
s.connect((sys.argv[2], 7201))
print("ready", flush=True)
n = 0
while s.recv(100):
    n += 1
    print("got", n, flush=True)
PY
twin() { # LABEL PORT RUNNER...
	start "$1" b "${@:3}" python3 "$WORK/twin.py" "$IP_B" "$IP_A" "$2"
	wait_for 20 log_has "$1" ready
}
say() { # PORT NUMBER
	in_ns a python3 -c '
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 7201))
s.connect((sys.argv[2], int(sys.argv[3])))
for i in range(int(sys.argv[4])):
    s.send(b"%d" % i)
    time.sleep(0.001)' "$IP_A" "$IP_B" "$@"
}
got() { # LABEL
	awk '/^got/ { n = $2 } END { print n + 0 }' "$WORK/$1.log"
}
have() { # LABEL LABEL NUMBER
	[ $(($(got "$1") + $(got "$2"))) -ge "$3" ]
}
twin plain_one 7202 env && twin plain_two 7202 env && say 7202 30
check "two kernel sockets of the same addresses have their datagrams" wait_for 10 have plain_one plain_two 30
stop plain_one
stop plain_two
check "a UDP socket with one peer is the card's" twin one 7200 "${preloaded[@]}"
before=$(received)
say 7200 20
check "... which brings its datagrams" wait_for 10 log_has one 'got 20$'
check_eq "... and the kernel saw none of them" "$(received)" "$before"
check "another process has the same addresses" twin two 7200 "${preloaded[@]}"
check "... so both sockets are the kernel's" wait_for 10 log_has one 'the kernel has UDP port 7200'
say 7200 30
check "... which brings their datagrams" wait_for 10 have one two 50
check_eq "... once, to whom kernel sockets have them" "$(($(got one) - 20)) $(got two)" "$(got plain_one) $(got plain_two)"
stop one
stop two

for name in a b; do check_eq "programs broke no rule of the verbs ($name)" "$(card_count $name violations)" 0; done

# ---- the card's faults; the last case takes a card away ----

check "errors, rebinds, full tables, the ways of old providers, forks" both_ends "$priv"
done_testing
