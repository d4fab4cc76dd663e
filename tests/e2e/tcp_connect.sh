#!/usr/bin/env bash
# Connections that are made and closed one after the other, more of them than there are ports: whichever side closes
# first, and so has it in TIME_WAIT, the program sees no error, and the kernels of the offloaded sides no segment. The
# kernel's own client does that only with time stamps and tcp_tw_reuse. Two processes do so side by side. And a port that
# two processes use to the same peer: the connection is the first one's.
# seconds: 78
. "$(dirname "$0")/../lib_programs.sh"
PORT=7000 PORTS=2000 COUNT=4500

cat >"$WORK/connect.py" <<'END'
# connect.py serve ADDRESS PORT: closes a connection at once when the client asks for that, else after the client.
# connect.py ask ADDRESS PORT COUNT client|server [FILE]: who closes first. At most 2000 a second, also after a
# pause: a port rests for 250 ms before it is used again. And when FILE is there, 50 more.
# connect.py idle ADDRESS PORT FILE: one connection that the server closes, and then none until FILE is there.
# connect.py hold ADDRESS PORT FILE: a connection from port 40000, until FILE is there.
# connect.py rob ADDRESS PORT: from the same port while another process does.
import errno, os, socket, sys, time
role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
def wait_for(file):
    while not os.path.exists(file):
        time.sleep(0.01)
if role == "serve":
    listener = socket.create_server((address, port), backlog=1000)
    print("listening", flush=True)
    while True:
        conn, _ = listener.accept()
        if conn.recv(1) == b"k":
            assert conn.recv(1) == b""
        conn.close()
if role == "idle":
    conn = socket.create_connection((address, port))
    conn.sendall(b"c")
    assert conn.recv(1) == b""
    conn.close()
    print("idle", flush=True)
    wait_for(sys.argv[4])
    sys.exit(0)
if role != "ask":
    conn = socket.socket()
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    conn.settimeout(5)
    conn.bind(("0.0.0.0", 40000))
    rc = conn.connect_ex((address, port))
    if role == "rob":
        sys.exit(rc != errno.EADDRNOTAVAIL)
    conn.sendall(b"k")
    print("holds", flush=True)
    wait_for(sys.argv[4])
    conn.shutdown(socket.SHUT_WR)
    assert conn.recv(1) == b""
    print("whole", flush=True)
    sys.exit(0)
used = set()
count, more = int(sys.argv[4]), 50 if len(sys.argv) > 6 else 0
for i in range(count + more):
    if i == count:
        print("halfway", flush=True)
        wait_for(sys.argv[6])
    conn = socket.create_connection((address, port))
    used.add(conn.getsockname()[1])
    if sys.argv[5] == "server":
        conn.sendall(b"c")
        assert conn.recv(1) == b""
    else:
        conn.sendall(b"k")
    conn.close()
    time.sleep(0.0005)
print("ports", len(used), flush=True)
END

many() { # client|server: who closes first
	client /usr/bin/python3 "$WORK/connect.py" ask "$IP_B" $PORT $COUNT "$1" >"$WORK/client.log" 2>&1 ||
		{ tail -n 3 "$WORK/client.log"; return 1; }
}

ended() { # LABEL
	finish "$1" 60 || { tail -n 5 "$WORK/$1.log"; return 1; }
}

# All ports are in TIME_WAIT with one process when another begins and takes most of them: the first has its oldest no
# more, and finds a younger one.
overtaken() { # WHERE
	local one count
	for one in 1 2; do
		count=$((PORTS - (one - 1) * 100))
		start over$one a env "$client_with" /usr/bin/python3 "$WORK/connect.py" ask "$IP_B" $PORT $count client "$WORK/go$one"
		check "$1: process $one of two that have all ports between them" wait_for 30 log_has over$one halfway
	done
	touch "$WORK/go1"
	check "$1: who comes back to ports that are another's by now goes on" ended over1
	touch "$WORK/go2"
	check "$1: and so does the other" ended over2
	rm -f "$WORK/go1" "$WORK/go2"
}

for at in both server client; do
	combination $at || continue
	net_pair
	in_ns a sysctl -qw net.ipv4.ip_local_port_range="40000 $((40000 + PORTS - 1))" net.ipv4.tcp_tw_reuse=1
	serve far /usr/bin/python3 "$WORK/connect.py" serve "$IP_B" $PORT
	wait_for 10 log_has far listening
	count_from
	[ $at = server ] || overtaken $at
	# A kernel client has time stamps only with a peer that has them, too.
	[ $at = server ] || check "$at: $COUNT connections from $PORTS ports that the client closes first" many client
	[ $at = server ] || check "$at: it has used its ports again" grep -qE "^ports (2000|1?[0-9]?[0-9]?[0-9])$" "$WORK/client.log"
	check "$at: $COUNT connections from $PORTS ports that the server closes first" many server
	# Two who take their ports from the same ones: each rule, and each block of ports, is one process's.
	for one in 1 2; do
		[ $at = server ] || start together$one a env "$client_with" /usr/bin/python3 "$WORK/connect.py" ask "$IP_B" $PORT $((COUNT / 3)) client
	done
	[ $at = server ] || check "$at: two processes at the same time: the first" ended together1
	[ $at = server ] || check "$at: and the second" ended together2
	if [ $at != server ]; then
		start idle a env "$client_with" /usr/bin/python3 "$WORK/connect.py" idle "$IP_B" $PORT "$WORK/alone"
		wait_for 10 log_has idle idle
		check "$at: a process that has no connection any more leaves plain traffic alone" wait_for 6 no_xdp a "$IF_A"
		touch "$WORK/alone"
		check "$at: and lives" finish idle 20
	fi
	start hold a env ${client_with:+"$client_with"} /usr/bin/python3 "$WORK/connect.py" hold "$IP_B" $PORT "$WORK/robbed"
	wait_for 10 log_has hold holds
	# Over verbs nobody knows of another process's connection (docs/devices.md).
	[ "$NIC" = verbs ] || check "$at: a port that another process has to the same peer is not available" \
		client /usr/bin/python3 "$WORK/connect.py" rob "$IP_B" $PORT
	touch "$WORK/robbed"
	check "$at: whose connection is none the worse" wait_for 10 log_has hold whole
	still "$at"
	stop far
	rm -f "$WORK/alone" "$WORK/robbed"
	ns_del a
	ns_del b
	ran=
done
done_testing
