#!/usr/bin/env bash
# Servers that accept in one process and serve in another, to which connections go in messages (SCM_RIGHTS): python
# programs that pass on each connection before or after they have read from it, and node's cluster, which passes on
# connections or the listener. Many clients at a time, byte-exact. A listener that is passed on is served by all who have
# it, around the kernel, if all have the library.
# seconds: 18
# test-all: servers of many processes, one after the other
. "$(dirname "$0")/../lib_programs.sh"
. "$(dirname "$0")/../lib_servers.sh"
net_pair
# shellcheck disable=SC2154 # where: lib_programs.sh
clients=24 rounds=8
[ -z "$SAN" ] || rounds=2

# passing.py ADDRESS PORT WORKERS first|after: the workers are other processes, started by exec. Each request is a line
# with a number of bytes, and each answer as many bytes of a pattern. With `after` this process answers the first
# request itself, reads half of the second one, and passes the connection on while more may come.
make_passing() {
	cat >"$WORK/passing.py" <<-'PY'
		import os, select, socket, subprocess, sys
		def pattern(n):
		    return (bytes(range(251)) * (n // 251 + 1))[:n]
		def serve(connection, begun):
		    with connection, connection.makefile("rb") as lines:
		        rest = begun + lines.readline()
		        while rest:
		            connection.sendall(pattern(int(rest)))
		            rest = lines.readline()
		if sys.argv[1] == "worker":
		    import threading
		    mailbox = socket.socket(fileno=0)
		    while True:
		        begun, fds, _, _ = socket.recv_fds(mailbox, 100, 1)
		        if not begun:
		            break
		        threading.Thread(target=serve, args=(socket.socket(fileno=fds[0]), begun[1:]), daemon=True).start()
		    sys.exit(0)
		mailboxes = []
		for i in range(int(sys.argv[3])):
		    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
		    subprocess.Popen([sys.executable, sys.argv[0], "worker"], stdin=its)
		    its.close()
		    mailboxes.append(mine)
		def read_line(connection):
		    line = b""
		    while not line.endswith(b"\n"):
		        got = connection.recv(1)
		        if not got:
		            return None
		        line += got
		    return line
		def send_connection(connection, begun, to):
		    socket.send_fds(to, [b"." + begun], [connection.fileno()])
		    connection.close()
		listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=256)
		poll = select.epoll()
		poll.register(listener, select.EPOLLIN)
		waiting, turn = {}, 0
		while True:
		    for fd, _ in poll.poll():
		        turn += 1
		        to = mailboxes[turn % len(mailboxes)]
		        if fd == listener.fileno():
		            connection, _ = listener.accept()
		            if sys.argv[4] == "first":
		                send_connection(connection, b"", to)
		                continue
		            waiting[connection.fileno()] = connection
		            poll.register(connection, select.EPOLLIN)
		            continue
		        connection = waiting.pop(fd)
		        poll.unregister(fd)
		        line = read_line(connection)
		        if line is None:
		            connection.close()
		            continue
		        connection.sendall(pattern(int(line)))
		        send_connection(connection, connection.recv(2), to)
	PY
	cat >"$WORK/asking.py" <<-'PY'
		import random, socket, sys, threading
		address, port, clients, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
		pattern = bytes(range(251)) * 2000
		wrong, right = [], []
		def ask(seed):
		    sizes = random.Random(seed)
		    for _ in range(rounds):
		        try:
		            with socket.create_connection((address, port), 20) as connection:
		                for many in (1, 3, 2):
		                    wanted = [sizes.randint(100, 150000) for _ in range(many)]
		                    connection.sendall(b"".join(b"%d\n" % n for n in wanted))
		                    for n in wanted:
		                        got = bytearray()
		                        while len(got) < n:
		                            piece = connection.recv(n - len(got))
		                            if not piece:
		                                raise OSError(f"the end after {len(got)} of {n} bytes")
		                            got += piece
		                        if got != pattern[:n]:
		                            raise OSError("other bytes")
		                connection.shutdown(socket.SHUT_WR)
		                if connection.recv(1):
		                    raise OSError("more bytes")
		            right.append(1)
		        except OSError as error:
		            wrong.append(str(error))
		threads = [threading.Thread(target=ask, args=(i,)) for i in range(clients)]
		for thread in threads: thread.start()
		for thread in threads: thread.join()
		for line in wrong[:10]: print(line)
		print(f"{len(right)} connections right, {len(wrong)} wrong")
		sys.exit(1 if wrong or len(right) != clients * rounds else 0)
	PY
}

python_passes() { # PORT first|after
	local s="python passes connections on, $2 it has read, $where offloaded" accepted_before
	[ "$2" = after ] || s="python passes connections on before it has read, $where offloaded"
	serve "passing_$2" python3 "$WORK/passing.py" "$IP_B" "$1" 2 "$2"
	check "$s: the server starts" wait_for 20 listens "$1"
	accepted_before=$(snmp b Tcp PassiveOpens)
	check "$s: $clients clients at a time, $rounds times" \
		client python3 "$WORK/asking.py" "$IP_B" "$1" "$clients" "$rounds"
	check "$s: the server still runs" alive "passing_$2"
	[ -n "$kernel" ] || [ "$2" = first ] ||
		check_eq "$s: the kernel has accepted none of them" "$(snmp b Tcp PassiveOpens)" "$accepted_before"
	# A listener whose connections all are other processes' is the kernel's after a while, and a line says so.
	[ -n "$kernel" ] || [ "$2" = after ] || check "$s: the listener has become the kernel's" \
		log_has "passing_$2" "listener on $IP_B:$1 is the kernel's from now on"
	stop "passing_$2"
}

# No accept follows the passing, which would see that the connections were all for others.
accepts_all_first() {
	local s="all connections are accepted before the first one is passed on"
	cat >"$WORK/hoarder.py" <<-PY
		import socket, time
		mine, its = socket.socketpair()
		listener = socket.create_server(("$IP_B", 7124), backlog=64)
		connections = [listener.accept()[0] for _ in range(20)]
		for connection in connections:
		    socket.send_fds(mine, [b"."], [connection.fileno()])
		    connection.close()
		print("passed", flush=True)
		time.sleep(60)
	PY
	cat >"$WORK/connected.py" <<-PY
		import socket, time
		connections = [socket.create_connection(("$IP_B", 7124)) for _ in range(20)]
		time.sleep(60)
	PY
	serve hoarder python3 "$WORK/hoarder.py"
	check "$s: the server starts" wait_for 20 listens 7124
	start connected a python3 "$WORK/connected.py"
	check "$s: it has them" wait_for 20 log_has hoarder passed
	check "$s: the listener has become the kernel's" wait_for 5 log_has hoarder "listener on $IP_B:7124 is the kernel's from now on"
	check "$s: its interface has no XDP program any more" wait_for 15 no_xdp b "$IF_B"
	stop connected
	stop hoarder
}

# workers.py passes its listener on to two more processes while it serves, and closes it then. Over cards a listener that
# several processes have is the kernel's.
listener_passes() { # rights|plain
	local s="a listener is passed on, $where offloaded" worker
	[ "$1" = rights ] || s="a listener is passed on to processes without the library, $where offloaded"
	serve listener python3 "$ROOT/tests/e2e/workers.py" serve "$IP_B" 7123 3 "$1"
	check "$s: the server starts" wait_for 20 listens 7123
	count_from
	check "$s: connections are served before" ask_workers 32 10
	[ -n "$kernel" ] || still "$s: before"
	kill -USR2 "${PID[listener]}"
	check "$s: they are served meanwhile" ask_workers 64 10
	check "$s: the others have it" wait_for 20 eval '[ "$(grep -c "^worker" "$WORK/listener.log")" = 3 ]'
	sleep 3 # receivers look once a second
	mapfile -t worker < <(sed -n 's/^worker \([0-9]*\)$/\1/p' "$WORK/listener.log")
	count_from
	check "$s: they are served after it" ask_workers 96 10
	if [ "$1" = rights ]; then
		check_num "$s: by all" "$(grep -c '^served' "$WORK/ask")" -eq 3
		[ -n "$kernel" ] || [ "$NIC" = verbs ] || still "$s: after it"
	else
		check_num "$s: by others, too" "$(grep -c '^served' "$WORK/ask")" -ge 2
	fi
	kill -USR1 "${worker[0]}"
	check "$s: they are served while the first one closes it" ask_workers 64 10
	check_eq "$s: nobody is asked who has not got it" "$(ask_workers 32 10 >/dev/null; grep -c "^served ${worker[0]} " "$WORK/ask")" 0
	# The kernel's TIME_WAIT that stands for those of a closed listener is made by three segments on lo.
	[ -n "$kernel" ] || [ "$1" = plain ] || [ "$NIC" = verbs ] || still "$s: after the first one has closed it" 3
	check "$s: the server still runs" alive listener
	stop listener
	settle
}
ask_workers() { # N SECONDS
	client python3 "$ROOT/tests/e2e/workers.py" ask "$IP_B" 7123 "$@" echo | tee "$WORK/ask"
	return "${PIPESTATUS[0]}"
}

node_passes() { # WORKERS rr|none
	local s="node's cluster of $1, $2, $where offloaded" answer
	serve_node "$1" "$2" 0.0.0.0
	check "$s: it listens" wait_for 30 log_has node listening
	check "$s: a connection for each of 8 clients" ask 8 20
	check "$s: a connection for each request of 8 clients" ask 8 20 close
	answer=$(tail -n 1 "$WORK/check.out")
	# A worker that waits takes what it likes of a listener that all have; the round robin leaves nobody out.
	[ "$2" = none ] || check_eq "$s: all workers have answered" "${answer##*, }" "$1 processes"
	check "$s: 64 clients at the same time" ask 64 4
	check "$s: it still runs" alive node
	stop node
}
ask() { # CLIENTS REQUESTS [close]
	client python3 "$SERVERS/http_check.py" "$IP_B" 8085 "$WWW" "$@"
}

export VMA_TRACELEVEL=INFO
make_passing
head -c 600 "$(payload 100000)" >"$WWW/small"
cp "$(payload 100000)" "$WWW/middle"
cp "$(payload 300000)" "$WWW/large"
for who in server both; do
	combination $who || continue
	[ $who = both ] || listener_passes rights
	[ $who = both ] || listener_passes plain
	python_passes 7121 first
	python_passes 7122 after
	[ $who = both ] && continue
	accepts_all_first
	node_passes 2 rr
	node_passes 2 none
done
done_testing
