#!/usr/bin/env bash
# Unmodified servers that answer from the address that they were asked at (IP_PKTINFO, both ways): dnsmasq, chronyd,
# snmpd and nginx's proxy of datagrams. What they send leaves around the kernel.
#
#   a (client, kernel sockets)  10.9.0.1 ---- veth ---- 10.9.0.2, 10.9.0.7  (server) b
# seconds: 45
. "$(dirname "$0")/../lib.sh"
need_xdp
if [ "$SAN" = address ] || [ "$SAN" = thread ]; then
	skip "UDP programs" "a sanitizer's runtime starts in few programs"
	done_testing
fi
export VMA_TRACELEVEL=${VMA_TRACELEVEL:-WARNING}
net_pair
ip -n "$(ns b)" addr add 10.9.0.7/24 dev "$IF_B"
ip -n "$(ns a)" neigh replace 10.9.0.7 lladdr "$MAC_B" dev "$IF_A" nud permanent

has() { # PROGRAM...
	local program
	for program in "$@"; do
		command -v "$program" >/dev/null || PATH=$PATH:/usr/sbin command -v "$program" >/dev/null ||
			{ skip "$1" "no $program here" && return 1; }
	done
}

serve() { # LABEL COMMAND...
	local label=$1
	shift
	start "$label" b env LD_PRELOAD="$LIBRARY" "$@"
}

bound() { # PORT
	in_ns b sh -c "ss -Hlun 'sport = :$1' | grep -q ."
}

# The first answers may go by the kernel, while flows and routes are being looked up.
around() { # SENTENCE COMMAND...: a question, asked twenty times from each address
	local sentence=$1 i sent received
	shift
	check "$sentence: the server answers" wait_for 20 "$@" 10.9.0.2
	check "$sentence: at its second address, too" wait_for 20 "$@" 10.9.0.7
	sleep 0.2
	sent=$(snmp b Udp OutDatagrams) received=$(snmp b Udp InDatagrams)
	for i in $(seq 20); do
		"$@" 10.9.0.2 && "$@" 10.9.0.7 || break
	done >"$WORK/answers" 2>&1
	check_eq "$sentence: forty questions are answered" "$i" 20
	check_eq "$sentence: the kernel has received none of them" "$(snmp b Udp InDatagrams)" "$received"
	check_eq "$sentence: and has sent none of the answers" "$(snmp b Udp OutDatagrams)" "$sent"
}

# A source that is not the address that was asked is no answer for any of these.
ask_name() { in_ns a dig "@$1" -p 5353 h.test +short +tries=1 +time=2 | grep -qx 10.1.2.3; }
names() {
	has dnsmasq dig || return 0
	serve names dnsmasq -k -p 5353 --no-resolv --no-hosts --address=/h.test/10.1.2.3 --user=root \
		--pid-file="$WORK/names.pid" --conf-file=/dev/null
	check "dnsmasq: it starts" wait_for 20 bound 5353
	around "dnsmasq" ask_name
	stop names
}

ask_time() {
	in_ns a python3 - "$1" <<-'PY'
		import socket, sys
		s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
		s.settimeout(2)
		s.connect((sys.argv[1], 123))
		s.send(b"\x23" + bytes(39) + b"\x01\x02\x03\x04\x05\x06\x07\x08")
		answer = s.recv(100)
		assert len(answer) == 48 and answer[0] & 7 == 4 and answer[24:32] == b"\x01\x02\x03\x04\x05\x06\x07\x08", answer
	PY
}
time_of_day() {
	has chronyd || return 0
	serve time chronyd -d -x -u root -4 "local stratum 5" "allow all" "cmdport 0" "bindcmdaddress /" \
		"pidfile $WORK/chronyd.pid" "driftfile $WORK/drift"
	check "chronyd: it starts" wait_for 20 bound 123
	around "chronyd" ask_time
	stop time
}

ask_agent() { in_ns a snmpget -v2c -c public -t 2 -r 0 -Oqv "$1" .1.3.6.1.2.1.1.6.0 | grep -qx '"nowhere"'; }
agent() {
	has snmpd snmpget || return 0
	printf 'agentAddress udp:161\nrocommunity public\nsysLocation nowhere\n' >"$WORK/snmpd.conf"
	serve agent snmpd -f -Le -C -c "$WORK/snmpd.conf" -p "$WORK/snmpd.pid" -I -smux
	check "snmpd: it starts" wait_for 20 bound 161
	around "snmpd" ask_agent
	stop agent
}

# The backend is on loopback, which is the kernel's: b's kernel sends each question to it and each of its answers, and
# nothing else.
ask_proxy() { [ "$(ask_echo "$1" 5300)" = hello ]; }
ask_echo() { # ADDRESS PORT
	in_ns a python3 - "$1" "$2" <<-'PY'
		import socket, sys
		s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
		s.settimeout(2)
		s.connect((sys.argv[1], int(sys.argv[2])))
		s.send(b"hello")
		print(s.recv(100).decode())
	PY
}
proxy() {
	local modules=/usr/lib/nginx/modules/ngx_stream_module.so s="nginx's proxy" i sent
	has nginx || return 0
	[ -e $modules ] || { skip "$s" "no stream module here" && return 0; }
	start backend b python3 -c 'if True:
		import socket
		s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
		s.bind(("127.0.0.1", 5301))
		while True:
		    data, peer = s.recvfrom(2000)
		    s.sendto(data, peer)'
	# Workers get no environment but what is named here; cards made of software are found by it.
	cat >"$WORK/nginx.conf" <<-CONF
		load_module $modules;
		env SYSFS_PATH;
		env IBV_DRIVERS;
		daemon off;
		user root;
		worker_processes 1;
		pid $WORK/nginx.pid;
		error_log stderr;
		events { worker_connections 512; }
		stream { server { listen 5300 udp; proxy_responses 1; proxy_pass 127.0.0.1:5301; } }
	CONF
	serve proxy nginx -c "$WORK/nginx.conf" -p "$WORK"
	check "$s: it starts" wait_for 20 bound 5300
	check "$s: it answers" wait_for 20 ask_proxy 10.9.0.2
	check "$s: at its second address, too" wait_for 20 ask_proxy 10.9.0.7
	sleep 1.5 # the master has the socket for a second more
	wait_for 20 ask_proxy 10.9.0.2 && wait_for 20 ask_proxy 10.9.0.7
	sent=$(snmp b Udp OutDatagrams)
	for i in $(seq 20); do
		ask_proxy 10.9.0.2 && ask_proxy 10.9.0.7 || break
	done
	check_eq "$s: forty questions are answered" "$i" 20
	check_eq "$s: the kernel has sent what went to the backend and came back from it" \
		"$(($(snmp b Udp OutDatagrams) - sent))" 80
	stop proxy
	stop backend
}

for program in names time_of_day agent proxy; do
	# shellcheck disable=SC2053 # PROGRAMS is a pattern
	[[ $program == ${PROGRAMS:-*} ]] && $program
done
done_testing
