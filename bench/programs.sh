#!/usr/bin/env bash
# bench/programs.sh [RUNS]: servers as shipped, each RUNS times (5) on kernel sockets and with the library, in turn, in
# fresh namespaces each time; the load comes from kernel sockets on the other side of a veth. Prints medians, their ratio,
# and how much of what the library's runs received went through the kernel's TCP. ONLY='nginx*' picks rows; SEC is the length of one load.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/../tests/lib_servers.sh"
LIBRARY=$BUILD/libvma.so
RUNS=${1:-5}
SEC=${SEC:-3}
RESULTS=$BUILD/bench/programs.tsv
need_machine
export VMA_TRACELEVEL=WARNING
head -c 600 /dev/urandom >"$WWW/small"
[ -e "$LIBRARY" ] || { say "$LIBRARY is not built"; exit 1; }

listening() { # PORT
	in_ns b sh -c "ss -Hltn 'sport = :$1' | grep -q ."
}
in_segments() { # without those of loopback, to a packet or two
	local segments
	segments=$(snmp b Tcp InSegs)
	echo $((segments - $(if_counter b lo rx_packets)))
}

# Loads: each prints one number, the more the better.
load_wrk() { # PORT
	in_ns a wrk -t 1 -c 32 -d "$SEC" "http://$IP_B:$1/small" | awk '/^Requests\/sec/ { print $2 }'
}
load_close() { # PORT: a connection for each request
	in_ns a timeout 60 ab -q -r -c 32 -t "$SEC" -n 1000000 "http://$IP_B:$1/small" | awk '/^Requests per second/ { print $4 }'
}
load_pgbench() {
	in_ns a "$(postgres_bin)/pgbench" -n -C -S -c 8 -j 2 -T "$SEC" -h "$IP_B" -U postgres postgres 2>&1 | awk '/^tps/ { print $3 }'
}
load_pgbench_stay() {
	in_ns a "$(postgres_bin)/pgbench" -n -S -c 8 -j 2 -T "$SEC" -h "$IP_B" -U postgres postgres 2>&1 | awk '/^tps/ { print $3 }'
}
load_scp() { # 128 MB, four at a time
	local i pids=() begun=${EPOCHREALTIME/./}
	[ -e "$WORK/bulk" ] || head -c $((128 << 20)) /dev/zero >"$WORK/bulk"
	for i in 1 2 3 4; do
		in_ns a scp -q -P 2222 -i "$WORK/ssh/user" -o BatchMode=yes -o StrictHostKeyChecking=no \
			-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "root@$IP_B:$WORK/bulk" "$WORK/bulk.$i" &
		pids+=($!)
	done
	for i in "${pids[@]}"; do wait "$i" || return; done
	awk -v us=$((${EPOCHREALTIME/./} - begun)) 'BEGIN { print 4 * 128 / us * 1e6 }'
}
load_redis() {
	in_ns a redis-benchmark -h "$IP_B" -p 6380 -c 50 -n 200000 -t get -q --csv 2>/dev/null | awk -F'"' '/GET/ { print $4 }'
}
load_iperf() {
	in_ns a iperf3 -c "$IP_B" -t "$SEC" -J | python3 -c 'import json, sys; print(json.load(sys.stdin)["end"]["sum_received"]["bits_per_second"] / 1e6)'
}

serve_redis_alone() {
	serve_in_b redis redis-server --port 6380 --protected-mode no --save '' --appendonly no --dir "$WORK"
}
serve_iperf() {
	serve_in_b iperf iperf3 -s
}
serve_haproxy_and_backend() {
	serve_backend
	wait_for 10 listening 8090 && serve_haproxy
}

# Its user may offload nothing by itself.
serve_postgres_admitted() {
	[ -z "$server_with" ] || { start vmad b "$BUILD/bin/vmad" --foreground --allow-user postgres "$IF_B" &&
		wait_for 5 log_has vmad owns || return; }
	serve_postgres
}

row() { # HOW RUN NAME UNIT PORT LOAD COMMAND...
	local how=$1 run=$2 name=$3 unit=$4 port=$5 load=$6 figure before through packets label
	# shellcheck disable=SC2053 # a pattern
	[[ $name == ${ONLY:-*} ]] || return 0
	shift 6
	server_with=
	[ "$how" = kernel ] || server_with="LD_PRELOAD=$LIBRARY"
	fresh_net && with_ipv6
	"$@" && wait_for 30 listening "$port" || { say "$name does not start"; drop_net; return 1; }
	[ "$port" != 5432 ] || { wait_for 30 in_ns a "$(postgres_bin)/pg_isready" -q -h "$IP_B" &&
		in_ns a "$(postgres_bin)/pgbench" -i -q -h "$IP_B" -U postgres postgres >"$WORK/init.log" 2>&1; }
	sleep 0.5
	before=$(in_segments) packets=$(if_counter b "$IF_B" rx_packets)
	figure=$(case $load in load_wrk | load_close) "$load" "$port" ;; *) "$load" ;; esac)
	through=$(($(in_segments) - before)) packets=$(($(if_counter b "$IF_B" rx_packets) - packets))
	[ -n "$figure" ] || say "$name, $how: no figure"
	printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$name" "$how" "${figure:-0}" "$unit" \
		"$(awk -v t=$through -v p=$packets 'BEGIN { print (p > 0 ? 100 * t / p : 0) }')" "$run" >>"$RESULTS"
	for label in "${!PID[@]}"; do stop "$label"; done
	drop_net
}

busy=$(warn_if_busy)
mkdir -p "$(dirname "$RESULTS")"
: >"$RESULTS"
for ((run = 1; run <= RUNS; run++)); do
	say "run $run of $RUNS"
	for how in kernel lib; do
		row $how $run "nginx, 1 worker" req/s 8080 load_wrk serve_nginx 1
		row $how $run "nginx, 2 workers" req/s 8080 load_wrk serve_nginx 2
		row $how $run "nginx, 2 workers, connections" req/s 8080 load_close serve_nginx 2
		row $how $run "apache event" req/s 8081 load_wrk serve_apache event
		row $how $run "apache prefork" req/s 8081 load_wrk serve_apache prefork
		row $how $run "haproxy -W" req/s 8082 load_wrk serve_haproxy_and_backend
		row $how $run "gunicorn, 2 workers" req/s 8083 load_close serve_gunicorn 2
		row $how $run "uwsgi, 2 workers" req/s 8084 load_close serve_uwsgi 2
		row $how $run "node" req/s 8085 load_wrk serve_node 0
		row $how $run "node cluster of 2" req/s 8085 load_wrk serve_node 2
		row $how $run "node cluster of 2, connections" req/s 8085 load_close serve_node 2
		row $how $run "java HttpServer" req/s 8086 load_wrk serve_java HttpServer
		row $how $run "java NIO" req/s 8086 load_wrk serve_java NioServer
		row $how $run "postgres, pgbench -C" tps 5432 load_pgbench serve_postgres_admitted
		row $how $run "postgres, 8 connections" tps 5432 load_pgbench_stay serve_postgres_admitted
		row $how $run "sshd, 4 scp" MB/s 2222 load_scp serve_sshd
		row $how $run "redis -c 50" req/s 6380 load_redis serve_redis_alone
		row $how $run "iperf3" Mb/s 5201 load_iperf serve_iperf
	done
done
awk -F'\t' '
	function median(list,   part, n, i, j, t) {
		n = split(list, part, " ")
		for (i = 2; i <= n; i++) for (j = i; j > 1 && part[j] + 0 < part[j - 1] + 0; j--) { t = part[j]; part[j] = part[j - 1]; part[j - 1] = t }
		return n % 2 ? part[(n + 1) / 2] : (part[n / 2] + part[n / 2 + 1]) / 2
	}
	!($1 in unit) { order[++rows] = $1; unit[$1] = $4 }
	{ list[$1, $2] = list[$1, $2] " " $3; through[$1, $2] = through[$1, $2] " " $5 }
	END {
		printf "%-32s %10s %10s %7s  %s\n", "", "kernel", "libvma.so", "ratio", "by the kernel"
		for (i = 1; i <= rows; i++) {
			k = median(list[order[i], "kernel"]); l = median(list[order[i], "lib"])
			printf "%-32s %10.0f %10.0f %7.2f  %.0f %%  (%s)\n", order[i], k, l, (k > 0 ? l / k : 0), median(through[order[i], "lib"]), unit[order[i]]
		}
	}' "$RESULTS" | tee "$BUILD/bench/programs.txt"
[ -z "$busy" ] || echo "$busy" | tee -a "$BUILD/bench/programs.txt"
