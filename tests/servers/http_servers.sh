#!/usr/bin/env bash
# HTTP servers as they are shipped, with worker processes, users of their own and listeners on "::", behind the library:
# every byte is right, and the kernel's TCP carries none of it. The clients use kernel sockets.
# SERVERS_ONLY='nginx*' picks by name; PROGRAMS_KERNEL=1 runs all on kernel sockets.
#
# seconds: 80
. "$(dirname "$0")/../lib_programs.sh"
. "$(dirname "$0")/../lib_servers.sh"
net_pair
with_ipv6
combination server
head -c 600 "$(payload 100000)" >"$WWW/small"
cp "$(payload 100000)" "$WWW/middle"
cp "$(payload 300000)" "$WWW/large"
mkdir -p "$WORK/www_small"
cp "$WWW/small" "$WORK/www_small"

# NAME PORT: starts a server by the command that follows, asks it in several ways, and ends it. Sets the answers' file.
http_server() { # NAME PORT COMMAND...
	local name=$1 port=$2 s="$1" label
	# shellcheck disable=SC2053 # a pattern
	[[ $name == ${SERVERS_ONLY:-*} ]] || return 0
	shift 2
	label=${1#serve_}
	check "$s: the configuration is made and the server started" "$@"
	check "$s: it listens" wait_for 30 listens "$port"
	sleep 2.5 # a worker that asks for the listener before all who have it are known asks again a second later
	[ -n "${expect:-}" ] || wait_for 20 answers_past_the_kernel "$port" # a busy machine takes longer
	count_from
	[ -n "$once" ] || check "$s: 8 clients, a connection each" ask "$port" 8 60
	check "$s: 8 clients, a connection for each request" ask "$port" 8 40 close
	[ -z "$several" ] || check_num "$s: answered by at least two processes" "$(processes)" -ge 2
	check "$s: 32 connections at a time" load "$port"
	"${expect:-still}" "$s"
	check "$s: the server still runs" alive "$label"
	stop "$label"
	settle
}
answers_past_the_kernel() { # PORT
	count_from
	ask "$1" 1 1 close && is_still
}
ask() { # PORT CLIENTS REQUESTS [close]
	client python3 "$SERVERS/http_check.py" "$IP_B" "$1" "$WWW" "${@:2}" >"$WORK/asked"
	local rc=$?
	cat "$WORK/asked"
	return $rc
}
# That have answered: to what was asked last, or of apache, which tells in a file, since it runs.
processes() {
	if [ "$label" = apache ]; then
		sort -u "$WORK/apache/processes" | wc -l
	else
		sed -n 's/.* wrong, \([0-9]*\) processes$/\1/p' "$WORK/asked"
	fi
}
load() { # PORT: no answer but 200, no error
	if [ -n "$once" ]; then
		client ab -q -r -c 32 -n 5000 "http://$IP_B:$1/small" >"$WORK/ab"
		cat "$WORK/ab"
		grep -qE '^Complete requests: +5000$' "$WORK/ab" && grep -qE '^Failed requests: +0$' "$WORK/ab" &&
			! grep -q '^Non-2xx' "$WORK/ab"
		return
	fi
	client wrk -t 1 -c 32 -d 2 "http://$IP_B:$1/small" >"$WORK/wrk"
	cat "$WORK/wrk"
	grep -qE '^ +[1-9][0-9]* requests in' "$WORK/wrk" && ! grep -qE 'Non-2xx|Socket errors' "$WORK/wrk"
}

# shellcheck disable=SC2034 # lib_servers.sh
says_process=1
once='' several=1
http_server "nginx, 2 workers" 8080 serve_nginx 2
http_server "nginx, 2 workers, reuseport" 8080 serve_nginx 2 reuseport
http_server "apache, event" 8081 serve_apache event
http_server "apache, prefork" 8081 serve_apache prefork
http_server "gunicorn, 2 workers" 8083 serve_gunicorn 2
# uwsgi closes after each answer without saying so before.
# It becomes its user before it listens, and is a client by permission.
# The vmad of the servers before may still answer for their connections.
start vmad b "$BUILD/bin/vmad" --replace --foreground "$IF_B" --allow-user nobody
wait_for 15 log_has vmad owns
once=1 http_server "uwsgi, 2 workers" 8084 serve_uwsgi 2
stop vmad
several=''
http_server "java HttpServer" 8086 serve_java HttpServer
http_server "java NIO" 8086 serve_java NioServer
serve_backend
check "the backend listens" wait_for 20 in_ns b sh -c "ss -Hltn 'sport = :8090' | grep -q ."
accepted_before=$(passive_alone)
expect=still_but_backend http_server "haproxy -W" 8082 serve_haproxy
stop backend
done_testing
