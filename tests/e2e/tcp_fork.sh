#!/usr/bin/env bash
# Servers that fork run unmodified, byte-exact: socat and python's ForkingTCPServer, a process for each connection, one
# client after the other and many at a time; nginx and python with workers that have a listener in common. redis, whose
# child saves while its parent serves, keeps its offload.
# test-all: servers of many children, one after the other
# seconds: 45
. "$(dirname "$0")/../lib_programs.sh"
net_pair
# shellcheck disable=SC2154 # where: lib_programs.sh
size=$((4 << 20)) clients=8
[ -z "$SAN" ] || size=$((1 << 20))

echoed() { # PORT FILE N: what comes back is the same
	local status
	client /usr/bin/socat -t 20 - "TCP:$IP_B:$1" <"$2" >"$WORK/echo.$3"
	status=$?
	[ $status -ne 0 ] || ! cmp "$WORK/echo.$3" "$2" || return 0
	echo "client $3 ended with $status and has got $(stat -c %s "$WORK/echo.$3") bytes of $(stat -c %s "$2")"
	return 1
}
all_at_once() { # PORT FILE
	local i pids=() rc=0
	for ((i = 0; i < clients; i++)); do
		echoed "$1" "$2" "$i" &
		pids+=($!)
	done
	for i in "${pids[@]}"; do wait "$i" || rc=1; done
	rm -f "$WORK"/echo.*
	return $rc
}

# A child of a forking server hangs now and then in AddressSanitizer's allocator, of whose lock nobody told it that its
# holder stayed behind: in that build, and only there, all clients come once more.
many() { # PORT FILE: at the same time
	all_at_once "$@" && return
	[ "$SAN" = address ] || return
	flaky "not all clients were served under AddressSanitizer: once more"
	all_at_once "$@"
}

# A server and its children: those of a server that was ended would wait for their clients for ever.
stop_all() { # LABEL
	local pid children
	children=$(pgrep -P "${PID[$1]}")
	stop "$1"
	for pid in $children; do kill "$pid" 2>/dev/null; done
}

# These servers end with the end of what comes, not half a second after it.
socat_forks() {
	local s="socat fork, $where offloaded" file
	file=$(payload $size)
	serve socat /usr/bin/socat -t 20 "TCP-LISTEN:7101,bind=$IP_B,fork,reuseaddr,backlog=64" PIPE
	check "$s: the server starts" wait_for 20 listens 7101
	# No more than socket buffers take: this socat waits for room in a pipe that only itself empties, with kernel
	# sockets as well, when its client is slow and the pieces are of odd sizes.
	check "$s: 64 KB come back" echoed 7101 "$(payload 65536)" 0
	check "$s: the server still runs" alive socat
	stop_all socat
	serve socat /usr/bin/socat -t 20 "TCP-LISTEN:7102,bind=$IP_B,fork,reuseaddr,backlog=64" EXEC:cat
	check "$s: with a program behind it, it starts" wait_for 20 listens 7102
	check "$s: $((size >> 20)) MB come back through the program" echoed 7102 "$file" 0
	check "$s: and through $clients programs at a time" many 7102 "$file"
	check "$s: and it still runs" alive socat
	stop_all socat
	serve socat /usr/bin/socat "TCP-LISTEN:7103,bind=$IP_B,fork,reuseaddr,backlog=64" EXEC:cat,nofork
	check "$s: with a program instead of it, it starts" wait_for 20 listens 7103
	check "$s: $((size >> 20)) MB come back from the program" echoed 7103 "$file" 0
	check "$s: and from $clients at a time" many 7103 "$file"
	stop_all socat
}

python_forks() {
	local s="python ForkingTCPServer, $where offloaded" file
	file=$(payload $size)
	cat >"$WORK/forking.py" <<-'PY'
		import socketserver, sys
		class Echo(socketserver.BaseRequestHandler):
		    def handle(self):
		        while data := self.request.recv(65536):
		            self.request.sendall(data)
		class Lines(socketserver.StreamRequestHandler):
		    def handle(self):
		        for line in self.rfile:
		            self.wfile.write(line.upper())
		socketserver.ForkingTCPServer.allow_reuse_address = True
		socketserver.ForkingTCPServer.request_queue_size = 64
		handler = Lines if sys.argv[3] == "lines" else Echo
		with socketserver.ForkingTCPServer((sys.argv[1], int(sys.argv[2])), handler) as server:
		    server.serve_forever()
	PY
	serve forking python3 "$WORK/forking.py" "$IP_B" 7111 bytes
	check "$s: the server starts" wait_for 20 listens 7111
	check "$s: $((size >> 20)) MB come back" echoed 7111 "$file" 0
	check "$s: and to $clients clients at a time" many 7111 "$file"
	check "$s: the server still runs" alive forking
	stop_all forking
	serve forking python3 "$WORK/forking.py" "$IP_B" 7112 lines
	check "$s: a server of lines starts" wait_for 20 listens 7112
	check_eq "$s: lines come back" "$(seq -f 'line %g' 1 1000 | client /usr/bin/socat -t 20 - "TCP:$IP_B:7112" | sum_of /dev/stdin)" \
		"$(seq -f 'LINE %g' 1 1000 | sum_of /dev/stdin)"
	stop_all forking
}

# The parent closes each connection while the child asks for it, a thousand times.
python_forks_often() {
	local s="python with a child per request, $where offloaded" n=1000
	[ -z "$SAN" ] || n=200
	cat >"$WORK/often.py" <<-'PY'
		import os, signal, socket, sys
		signal.signal(signal.SIGCHLD, signal.SIG_IGN)
		listener = socket.create_server((sys.argv[1], 7113), backlog=64)
		while True:
		    connection, _ = listener.accept()
		    if os.fork() == 0:
		        connection.sendall(connection.recv(100).upper())
		        connection.close()
		        os._exit(0)
		    connection.close()
	PY
	cat >"$WORK/ask.py" <<-'PY'
		import socket, sys
		for i in range(int(sys.argv[2])):
		    with socket.create_connection((sys.argv[1], 7113), 20) as connection:
		        connection.sendall(b"abc%d" % i)
		        assert connection.recv(100) == b"ABC%d" % i
		        assert connection.recv(100) == b""
	PY
	serve often python3 "$WORK/often.py" "$IP_B"
	check "$s: it starts" wait_for 20 listens 7113
	check "$s: $n requests are answered" client python3 "$WORK/ask.py" "$IP_B" $n
	check "$s: it still runs" alive often
	stop_all often
}

# A master that only listens, and workers that accept from the same listener.
nginx_works() {
	local s="nginx with workers, $where offloaded" root=$WORK/www
	if [ "$SAN" = address ] && [ -n "$client_with" ]; then
		skip "$s" "curl hangs in setlocale with AddressSanitizer's runtime alone"
		return
	fi
	mkdir -p "$root" "$WORK/nginx"
	cp "$(payload $size)" "$root/large"
	chmod -R a+rX "$WORK"
	chmod 777 "$WORK/nginx"
	cat >"$WORK/nginx.conf" <<-CONF
		daemon off; master_process on; worker_processes 2; error_log stderr warn; pid $WORK/nginx/pid;
		events { worker_connections 2000; }
		http {
			access_log off; default_type application/octet-stream; sendfile on;
			client_body_temp_path $WORK/nginx; proxy_temp_path $WORK/nginx; fastcgi_temp_path $WORK/nginx;
			uwsgi_temp_path $WORK/nginx; scgi_temp_path $WORK/nginx;
			server { listen $IP_B:8081; root $root; }
		}
	CONF
	serve nginx /usr/sbin/nginx -c "$WORK/nginx.conf" -e stderr
	check "$s: the server starts" wait_for 20 listens 8081
	check "$s: $clients clients at a time fetch $((size >> 20)) MB each" fetched "$root/large"
	check "$s: the server still runs" alive nginx
	stop_all nginx
}
fetched() { # FILE
	local i pids=() rc=0
	for ((i = 0; i < clients; i++)); do
		client curl -sS -o "$WORK/got.$i" "http://$IP_B:8081/large" &
		pids+=($!)
	done
	for i in "${pids[@]}"; do wait "$i" || rc=1; done
	for ((i = 0; i < clients; i++)); do [ "$(sum_of "$WORK/got.$i")" = "$(sum_of "$1")" ] || rc=1; done
	rm -f "$WORK"/got.*
	return $rc
}

# Clients that have connected before there is any worker get one as well.
python_preforks() {
	local s="python with workers, $where offloaded" file
	file=$(payload $((size / 4)))
	cat >"$WORK/prefork.py" <<-'PY'
		import os, signal, socket, sys, time
		signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
		listener = socket.create_server((sys.argv[1], 7121), backlog=64)
		print("listening", flush=True)
		time.sleep(float(sys.argv[2]))
		for worker in range(2):
		    if os.fork() == 0:
		        while True:
		            connection, _ = listener.accept()
		            while data := connection.recv(65536):
		                connection.sendall(data)
		            connection.close()
		print("workers", flush=True)
		while True:
		    signal.pause()
	PY
	serve prefork python3 "$WORK/prefork.py" "$IP_B" 1
	check "$s: the server listens" wait_for 20 log_has prefork listening
	check "$s: clients of before there are workers are served" many 7121 "$file"
	check "$s: the workers run" log_has prefork workers
	check "$s: and clients of then" many 7121 "$file"
	stop_all prefork
}

# A vmad of ours, once the one that the programs before have started is gone: it ends by itself, a moment after them.
vmad_owns() {
	if [ -z "${PID[vmad]:-}" ] || ! alive vmad; then start vmad b "$BUILD/bin/vmad" --foreground "$IF_B"; fi
	log_has vmad "owns $IF_B"
}

# Without the right to hand a connection over vmad does it.
python_may_not() {
	local s="python without CAP_NET_ADMIN, $where offloaded"
	if [ $where != server ] || [ -n "$kernel" ]; then return; fi
	cat >"$WORK/may_not.py" <<-'PY'
		import errno, os, socket, sys
		listener = socket.create_server((sys.argv[1], 7131))
		connection, _ = listener.accept()
		if os.fork() == 0:
		    try:
		        connection.recv(1)
		    except OSError as error:
		        os._exit(error.errno)
		    os._exit(0)
		status = os.waitstatus_to_exitcode(os.wait()[1])
		connection.sendall(errno.errorcode.get(status, "served").encode() + b"\n")
		connection.sendall(connection.recv(100))
	PY
	wait_for 20 vmad_owns # the server may not start one
	serve may_not setpriv --bounding-set -net_admin python3 "$WORK/may_not.py" "$IP_B"
	check "$s: the server listens" wait_for 20 listens 7131
	check_eq "$s: the child has the connection, and its parent" \
		"$(printf hello | client /usr/bin/socat -t 20 - "TCP:$IP_B:7131" | tr '\n' ' ')" "served ello"
	check "$s: it has ended" finish may_not 10
	check_eq "$s: nothing was to be said" "$(cat "$WORK/may_not.log")" ""
	stop vmad
}

# After its hand-over a connection has the segments that it had before: what its peer takes, not the 536 bytes of a
# connection whose peer has said nothing. The client sees them: before the hand-over comes one byte only.
python_keeps_segments() {
	local s clamp before after came
	if [ $where != server ] || [ -n "$kernel" ]; then return; fi
	cat >"$WORK/segments.py" <<-'PY'
		import os, socket, struct, sys
		def mss(connection, offset=16):  # tcpi_snd_mss; tcpi_rcv_mss is at 20
		    return struct.unpack_from("=I", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), offset)[0]
		def serve(listener):
		    connection, _ = listener.accept()
		    connection.sendall(connection.recv(1))
		    before = mss(connection)
		    if os.fork() == 0:
		        connection.recv(1)
		        print(before, mss(connection), flush=True)
		        connection.sendall(bytes(300000))
		        os._exit(0)
		    os.wait()
		def ask(connection, clamp, *address):
		    if clamp:
		        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, clamp)
		    connection.connect(address)
		    connection.sendall(b"x")
		    connection.recv(1)
		    connection.sendall(b"x")
		    n = sum(iter(lambda: len(connection.recv(1 << 20)), 0))
		    print(n, mss(connection, 20))
		if len(sys.argv) > 2:
		    ask(socket.socket(), int(sys.argv[2]), sys.argv[1], 7141)
		else:
		    serve(socket.create_server((sys.argv[1], 7141)))
	PY
	for clamp in 0 1000; do
		s="python that hands over, segments of ${clamp/#0/up to 1460} bytes, $where offloaded"
		serve segments python3 "$WORK/segments.py" "$IP_B"
		check "$s: the server listens" wait_for 20 listens 7141
		came=$(client python3 "$WORK/segments.py" "$IP_B" $clamp)
		check "$s: it has ended" finish segments 10
		read -r before after <"$WORK/segments.log"
		check_num "$s: they are not the smallest" "$before" -gt 900
		check_eq "$s: all bytes come, and in such segments" "$came" "300000 $before"
		# Where the host has time stamps the kernel leaves room for them, and uses it if the connection has none.
		check_num "$s: the kernel says the same" "$after" -ge $((before - 12))
	done
}

# The child has all connections, and touches none.
redis_saves() {
	local s="redis, $where offloaded"
	serve redis redis-server --port 6380 --bind "$IP_B" 127.0.0.1 --save '' --appendonly no --protected-mode no --dir "$WORK"
	check "$s: the server starts" wait_for 20 log_has redis "Ready to accept connections"
	count_from
	check "$s: it saves in a child between the questions of one connection" saved_between
	still "$s" 4
	# The child has closed its parent's listeners.
	check_eq "$s: then it answers by loopback" "$(in_ns b timeout 10 redis-cli -h 127.0.0.1 -p 6380 ping)" PONG
	stop redis
}
saved_between() {
	# One connection for all of it.
	{
		echo "set a 1"
		echo "bgsave"
		wait_for 10 log_has redis "terminated with success"
		echo "get a"
		echo "lastsave"
		echo "get a"
	} | client redis-cli -h "$IP_B" -p 6380 >"$WORK/saved"
	cat "$WORK/saved"
	grep -q "Background saving started" "$WORK/saved" && [ "$(grep -cx 1 "$WORK/saved")" = 2 ] && log_has redis "terminated with success"
}

# As Debian ships it: the process that listens forks, and its child changes root and user and may start no thread.
haproxy_works() {
	local s mode
	if [ -n "$SAN" ]; then
		skip "haproxy, $where offloaded" "its new root lacks what a sanitizer's runtime reads"
		return
	fi
	mkdir -p "$WORK/root" && chmod 755 "$WORK" "$WORK/root"
	cat >"$WORK/haproxy.cfg" <<-CONF
		global
			chroot $WORK/root
			user haproxy
			group haproxy
			pidfile $WORK/haproxy.pid
		defaults
			mode http
			timeout connect 5s
			timeout client 50s
			timeout server 50s
		frontend front
			bind $IP_B:8090
			http-request return status 200 content-type text/plain string hello
	CONF
	for mode in -D -W; do
		s="haproxy $mode, $where offloaded"
		rm -f "$WORK/haproxy.pid"
		: >"$WORK/haproxy.lines"
		chmod 666 "$WORK/haproxy.lines"
		serve haproxy env "VMA_LOG_FILE=$WORK/haproxy.lines" /usr/sbin/haproxy $mode -f "$WORK/haproxy.cfg"
		check "$s: it listens" wait_for 20 listens 8090
		[ $mode = -W ] || { wait_for 5 test -s "$WORK/haproxy.pid" && PID["haproxy"]=$(cat "$WORK/haproxy.pid"); }
		sleep 1.5 # the child has changed its user; if it asked for the listener too early, it does again after a second
		count_from
		check_eq "$s: five connections are answered" "$(client curl -sS "http://$IP_B:8090/[1-5]")" hellohellohellohellohello
		check "$s: so are 8 clients for a second" client wrk -t 1 -c 8 -d 1 "http://$IP_B:8090/"
		still "$s" 4
		check_eq "$s: no line says that it cannot" "$(grep -c 'cannot' "$WORK/haproxy.lines")" 0
		reap haproxy # a daemon is no child of this shell, which is not told how it ends
		wait_for 5 no_listener 8090
	done
}
no_listener() { ! listens "$1"; }

for combination in both server client; do
	combination $combination || continue
	for program in socat_forks python_forks python_forks_often nginx_works python_preforks python_may_not python_keeps_segments redis_saves haproxy_works; do
		# shellcheck disable=SC2053 # PROGRAMS is a pattern
		[[ $program == ${PROGRAMS:-*} ]] && $program
	done
done
done_testing
