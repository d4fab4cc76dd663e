#!/usr/bin/env bash
# nginx and haproxy are told to reload each second for twenty seconds, while clients make a connection for each request: no
# request fails. Old workers finish what they have, new ones take over.
#
# seconds: 60
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
	sleep 2.5 # a worker that asks for the listener before all who have it are known asks again a second later
	[ -z "$still" ] || stays_offloaded "$name, before a reload" "$port" "$still"
	start load a python3 "$SERVERS/http_load.py" "$IP_B" "$port" /small "$WWW/small" 8 "$SECONDS_OF_LOAD"
	for i in $(seq $((SECONDS_OF_LOAD - 1))); do
		sleep 1
		"$@" >>"$WORK/reload.log" 2>&1 || not_ok "$name: reload $i" "$(tail -n 5 "$WORK/reload.log")"
	done
	check "$name: no request fails in $SECONDS_OF_LOAD s with a reload each second" finish load $((SECONDS_OF_LOAD + 30))
	note "$name: $(tail -n 1 "$WORK/load.log")"
	sleep 4 # who is left looks once a second whether all who have the listener are known
	[ -z "$still" ] || stays_offloaded "$name, after the last reload" "$port" "$still"
	check "$name: the server still runs" alive "$label"
	stop "$label"
	settle
}

# A new process has its listeners from the one before, by fork or in a message: it serves them as that one did.
# NAME PORT STILL: a connection for each request; what the kernel counts stands still. From ports of their own: what was
# the kernel's while a listener changed hands is in TIME_WAIT there, and a SYN from the same port is for the kernel.
stays_offloaded() {
	local s="$1" accepted_before ports
	ports=$(in_ns a sysctl -n net.ipv4.ip_local_port_range)
	in_ns a sysctl -qw net.ipv4.ip_local_port_range="10000 29999"
	count_from
	accepted_before=$(passive_alone)
	check "$s: requests are answered" client python3 "$SERVERS/http_load.py" "$IP_B" "$2" /small "$WWW/small" 8 2
	"$3" "$s"
	in_ns a sysctl -qw net.ipv4.ip_local_port_range="$ports"
}

serve_nginx 2
still=''
reloads "nginx" 8080 nginx sh -c "kill -HUP \$(cat $WORK/nginx/pid)"
serve_backend
serve_haproxy
still=still_but_backend
reloads "haproxy -W (SIGUSR2: -sf)" 8082 haproxy sh -c "kill -USR2 ${PID[haproxy]}"
stop backend
done_testing
