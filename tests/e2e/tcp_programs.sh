#!/usr/bin/env bash
# redis, memcached, nginx, socat and python run unmodified over offloaded TCP, byte-exact, around the kernel: both sides
# offloaded, the server alone, the client alone.
# seconds: 70
. "$(dirname "$0")/../lib_programs.sh"
net_pair
# shellcheck disable=SC2154 # where: lib_programs.sh
large=$((64 << 20)) huge=${HUGE:-0} requests=20000 # HUGE: bytes of one more file, see tcp_huge.sh
[ -z "$SAN" ] || { large=$((8 << 20)) && huge=0 && requests=1000; }

redis() {
	local s="redis, $where offloaded" file
	file=$(payload $((8 << 20)))
	serve redis redis-server --port 6379 --bind "$IP_B" --save '' --appendonly no --protected-mode no --dir "$WORK"
	check "$s: the server starts" wait_for 20 log_has redis "Ready to accept connections"
	count_from
	check "$s: PING" ping_redis
	check "$s: a value of 8 MB goes there" set_large "$file"
	check "$s: and comes back" get_large "$file"
	check "$s: 50 clients" client redis-benchmark -h "$IP_B" -c 50 -n $requests -t set,get -d 100 -q
	check "$s: 50 clients, 16 requests at a time" client redis-benchmark -h "$IP_B" -c 50 -P 16 -n $requests -t set,get -d 1000 -q
	check "$s: a connection for each request" client redis-benchmark -h "$IP_B" -c 10 -k 0 -n $((requests / 10)) -t ping_inline -q
	still "$s"
	check "$s: the server still runs" alive redis
	stop redis
}
ping_redis() { [ "$(client redis-cli -h "$IP_B" ping)" = PONG ]; }
set_large() { [ "$(client redis-cli -h "$IP_B" -x set large <"$1")" = OK ]; }
get_large() { # what redis-cli adds is the newline at the end
	client redis-cli -h "$IP_B" get large | head -c "$(stat -c %s "$1")" >"$WORK/got"
	[ "$(sum_of "$WORK/got")" = "$(sum_of "$1")" ]
}

memcached() {
	local s="memcached, $where offloaded"
	serve memcached /usr/bin/memcached -u root -l "$IP_B" -p 11311 -t 2 -U 0 -I 2m -m 128
	check "$s: the server starts" wait_for 20 listens 11311
	count_from
	check "$s: values of every size come back" client python3 "$ROOT/tests/e2e/memcached_values.py" "$IP_B" 11311
	check "$s: load of 16 clients" client memcslap --servers="$IP_B:11311" --concurrency=16 --execute-number=$((requests / 20)) --test=get
	still "$s"
	check "$s: the server still runs" alive memcached
	stop memcached
}

nginx() {
	local s="nginx, $where offloaded" root=$WORK/www
	if [ "$SAN" = address ] && [ -n "$client_with" ]; then
		skip "$s" "curl hangs in setlocale with AddressSanitizer's runtime alone"
		return
	fi
	mkdir -p "$root" "$WORK/nginx"
	[ -e "$root/large" ] || mv "$(payload $large)" "$root/large"
	[ -e "$root/small" ] || head -c 600 "$root/large" >"$root/small"
	chmod 755 "$WORK" "$root"
	cat >"$WORK/nginx.conf" <<-CONF
		daemon off; master_process off; error_log stderr warn; pid $WORK/nginx/pid;
		events { worker_connections 2000; }
		http {
			access_log off; keepalive_requests 1000000; default_type application/octet-stream; sendfile on;
			client_body_temp_path $WORK/nginx; proxy_temp_path $WORK/nginx; fastcgi_temp_path $WORK/nginx;
			uwsgi_temp_path $WORK/nginx; scgi_temp_path $WORK/nginx;
			server { listen $IP_B:8080; root $root; }
		}
	CONF
	serve nginx /usr/sbin/nginx -c "$WORK/nginx.conf" -e stderr
	check "$s: the server starts" wait_for 20 listens 8080
	count_from
	check "$s: a file of $((large >> 20)) MB is fetched" client curl -sS -o "$WORK/got" "http://$IP_B:8080/large"
	check_eq "$s: and is the same" "$(sum_of "$WORK/got")" "$(sum_of "$root/large")"
	fetch_huge "$s" "$root/huge"
	check "$s: four parts at the same time" fetch_parts
	check_eq "$s: are the same in a row" "$(cat "$WORK/got".[0-3] | sum)" "$(sum_of "$root/large")"
	check "$s: a part of it" client curl -sS -r 1000000-1999999 -o "$WORK/got" "http://$IP_B:8080/large"
	check_eq "$s: is the same part" "$(sum_of "$WORK/got")" "$(tail -c +1000001 "$root/large" | head -c 1000000 | sum)"
	check "$s: 50 connections for a second" fetch_many
	check "$s: a connection for each request" fetch_apart
	still "$s"
	check "$s: the server still runs" alive nginx
	stop nginx
	rm -f "$WORK/got" "$WORK/got".[0-3]
}
fetch_huge() { # SENTENCE FILE: what comes goes nowhere but through the checksum
	local got
	[ $huge -gt 0 ] || return 0
	if [ ! -e "$2" ] && [ "$(df --output=avail -B1 "$(dirname "$2")" | tail -n 1)" -lt $((2 * huge)) ]; then
		skip "$1: a file of 1 GB" "there is no room for it"
		return
	fi
	[ -e "$2" ] || mv "$(payload $huge)" "$2"
	got=$(set -o pipefail && client curl -sS "http://$IP_B:8080/huge" | sum) || got="curl has failed, and $got"
	check_eq "$1: a file of 1 GB is fetched, and is the same" "$got" "${huge_sum:=$(sum_of "$2")}"
}
fetch_parts() {
	local quarter=$((large / 4)) i of=()
	for i in 0 1 2 3; do
		of+=(-r "$((i * quarter))-$(((i + 1) * quarter - 1))" -o "$WORK/got.$i" "http://$IP_B:8080/large")
		[ $i = 3 ] || of+=(--next)
	done
	client curl -sS -Z "${of[@]}"
}
fetch_many() { # no answer other than 200, no error
	client wrk -t 1 -c 50 -d 1 "http://$IP_B:8080/small" >"$WORK/wrk"
	cat "$WORK/wrk"
	grep -qE '^ +[0-9]+ requests in' "$WORK/wrk" && ! grep -qE 'Non-2xx|Socket errors' "$WORK/wrk" &&
		! grep -qE '^ +0 requests' "$WORK/wrk"
}
fetch_apart() {
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		[ "$(client curl -sS "http://$IP_B:8080/small" | sha256sum)" = "$(sha256sum <"$WORK/www/small")" ] || return 1
	done
}

socat() {
	local s="socat, $where offloaded" file
	file=$(payload $((4 << 20)))
	serve socat /usr/bin/socat -u "TCP-LISTEN:7001,bind=$IP_B" "CREATE:$WORK/there"
	check "$s: the server starts" wait_for 20 listens 7001
	count_from
	check "$s: a file goes there" client socat -u "OPEN:$file" "TCP:$IP_B:7001"
	check "$s: the receiver ends at the end of the stream" finish socat 20
	check_eq "$s: and has the same file" "$(sum_of "$WORK/there")" "$(sum_of "$file")"
	still "$s"
	serve socat /usr/bin/socat -t 10 "TCP-LISTEN:7002,bind=$IP_B" EXEC:"sha256sum"
	check "$s: a server with a program behind it starts" wait_for 20 listens 7002
	count_from
	check "$s: half-close: the answer comes after the end of the question" asked_in_halves "$file"
	# Its server forks; what it closes before both sides have ended it hands over: that end is the kernel's to see.
	still "$s: with a program behind it" 4
	stop socat
}
asked_in_halves() {
	client socat -t 10 - "TCP:$IP_B:7002" <"$1" >"$WORK/answer"
	[ "$(cut -d' ' -f1 "$WORK/answer")" = "$(sum_of "$1")" ]
}

echoes() {
	local s="asyncio echo, $where offloaded" connections=1000
	[ -z "$SAN" ] || connections=100
	serve echo python3 "$ROOT/tests/e2e/asyncio_echo.py" serve "$IP_B" 7003
	check "$s: the server starts" wait_for 20 log_has echo listening
	count_from
	check "$s: $connections connections, each with its own bytes" client python3 "$ROOT/tests/e2e/asyncio_echo.py" ask "$IP_B" 7003 $connections
	still "$s"
	check "$s: the server still runs" alive echo
	stop echo
}

iperf() {
	local s="iperf3, $where offloaded" what
	for what in "" "-R" "--bidir" "-P 8"; do
		serve iperf /usr/bin/iperf3 -s -1 -B "$IP_B" --forceflush
		check "$s ${what:-one stream}: the server starts" wait_for 20 listens 5201
		count_from
		# shellcheck disable=SC2086 # options
		check "$s ${what:-one stream}: the client ends well" client iperf3 -c "$IP_B" -t 1 $what
		check "$s ${what:-one stream}: so does the server" finish iperf 20
		still "$s ${what:-one stream}" 3 # of the server's end
	done
}

huge_sum=''
for combination in both server client; do
	combination $combination || continue
	for program in redis memcached nginx socat echoes iperf; do
		# shellcheck disable=SC2053 # PROGRAMS is a pattern
		[[ $program == ${PROGRAMS:-*} ]] && $program
	done
done
done_testing
