#!/usr/bin/env bash
# nginx and haproxy are told to reload each second for twenty seconds, while clients make a connection for each request: no
# request fails. Old workers finish what they have, new ones take over.
. "$(dirname "$0")/../lib_programs.sh"
. "$(dirname "$0")/../lib_servers.sh"
net_pair
with_ipv6
combination server
head -c 600 "$(payload 100000)" >"$WWW/small"
SECONDS_OF_LOAD=${SECONDS_OF_LOAD:-20}

# The load tells of each failed request; wrk's own count of errors leaves out what it silently does again.
reloads() { # NAME PORT LABEL COMMAND-TO-RELOAD...
	local name=$1 port=$2 label=$3 i
	shift 3
	check "$name: it listens" wait_for 20 listens "$port"
	sleep 0.5
	start load a python3 "$SERVERS/http_load.py" "$IP_B" "$port" /small "$WWW/small" 8 "$SECONDS_OF_LOAD"
	for i in $(seq $((SECONDS_OF_LOAD - 1))); do
		sleep 1
		"$@" >>"$WORK/reload.log" 2>&1 || not_ok "$name: reload $i" "$(tail -n 5 "$WORK/reload.log")"
	done
	check "$name: no request fails in $SECONDS_OF_LOAD s with a reload each second" finish load $((SECONDS_OF_LOAD + 30))
	note "$name: $(tail -n 1 "$WORK/load.log")"
	check "$name: the server still runs" alive "$label"
	stop "$label"
	settle
}

serve_nginx 2
reloads "nginx" 8080 nginx sh -c "kill -HUP \$(cat $WORK/nginx/pid)"
serve_backend
serve_haproxy
reloads "haproxy -W (SIGUSR2: -sf)" 8082 haproxy sh -c "kill -USR2 ${PID[haproxy]}"
stop backend
done_testing
