# shellcheck shell=bash
# Measurements of unmodified programs over TCP; after sockets.sh, whose words it uses. HOW may also be
#
#   twin      kernel sockets under spin.so: waits that loop instead of sleeping
TCP_LOAD=$BUILD/bench/tcp_load
MIDDLEBOX=$BUILD/tests/middlebox/middlebox

# "K I": segments that both kernels' TCP have received and sent, but over loopback (only the far one, if near_how is
# kernel); packets that came in at both interfaces.
tcp_counters() {
	local side interface
	for side in a b; do
		if [ $side = a ]; then interface=$IF_A; else interface=$IF_B; fi
		ip netns exec "$(ns $side)" sh -c "
			cd /sys/class/net
			echo interface \$(cat $interface/statistics/rx_packets)
			[ $side${near_how:-} != akernel ] || exit 0
			cat /proc/net/snmp
			echo loopback \$(cat lo/statistics/rx_packets)"
	done | awk '$1 == "Tcp:" && $2 == "RtoAlgorithm" { for (i = 2; i <= NF; i++) column[$i] = i; next }
		$1 == "Tcp:" { kernel += $column["InSegs"] }
		$1 == "loopback" { kernel -= $2 }
		$1 == "interface" { interface += $2 }
		END { print kernel + 0, interface + 0 }'
}

set_kernel() { # as kernel_setting says, at the near end
	[ -z "${kernel_setting:-}" ] || in_ns a sysctl -qw "$kernel_setting"
}

# One case: the far end is running, the near one runs to its end; what it printed goes through FILTER to the facts.
tcp_case() { # RUN CASE HOW READY FILTER NEAR...; the far end's command in far_command
	local run=$1 name=$2 how=$3 ready=$4 filter=$5 before after rc cpu
	shift 5
	open_case "$how" "${far_command[@]}" && wait_for 10 far_listens "$ready" && set_kernel && before=$(tcp_counters) &&
		cpu=$(cpu_of "${PID[far]}") && near "${near_how:-$how}" "$@"
	rc=$?
	after=$(tcp_counters)
	cpu="${cpu:-0} $(cpu_of "${PID[far]}")"
	sed -n 's/^VmHWM:/far_peak_kb/p' "/proc/${PID[far]}/status" | awk '{ print $1, $2 }' >"$WORK/far.kb"
	close_case "${far_signal:-TERM}"
	[ $rc -eq 0 ] || { failed_case "$run" "$name"; return 1; }
	{
		proof "$before" "$after"
		"$filter" <"$WORK/near.log"
		cat "$WORK/far.kb"
		awk -v c="$cpu" 'BEGIN { split(c, x, " "); print "far_cpu_sec", x[2] - x[1] }'
		awk 'NF == 2 { print "near_cpu_sec", $1 + $2 }' "$WORK/near.cpu"
	} | facts "$run" "$name"
}

far_listens() { # PORT
	in_ns b ss -Hltn "sport = :$1" | grep -q .
}

of_sockperf() {
	sed 's/\x1b\[[0-9;]*m//g' | awk '
		/percentile 50.000/ { p50 = $NF } /percentile 99.000/ { p99 = $NF } /percentile 99.900/ { p999 = $NF }
		/<MAX> observation/ { max = $NF }
		/Valid Duration/ { split($0, part, /[=; ]+/); for (i in part) {
			if (part[i] == "RunTime") sec = part[i + 1]; if (part[i] == "ReceivedMessages") n = part[i + 1] } }
		END { printf "messages_per_sec %.0f\n", (sec > 0 ? n / sec : 0)
			printf "near_p50_ns %.0f\nnear_p99_ns %.0f\nnear_p99.9_ns %.0f\nnear_max_ns %.0f\n",
			p50 * 1000, p99 * 1000, p999 * 1000, max * 1000 }'
}
of_redis() { # the last "... requests per second" of each test
	tr '\r' '\n' | awk -F'[: ,]+' '/requests per second/ { for (i = 2; i <= NF; i++) if ($(i + 1) == "requests") rate[$1] = $i }
		END { for (test in rate) print tolower(test) "_per_sec", rate[test] }'
}
of_wrk() {
	awk '/^Requests\/sec:/ { print "per_sec", $2 } /Socket errors|Non-2xx/ { print "errors 1" }'
}
of_iperf() {
	awk '/receiver/ { for (i = 1; i <= NF; i++) if ($i ~ /Kbits\/sec/) { print "bits_per_sec", $(i - 1) * 1000; exit } }'
}
of_load() {
	grep -v VMA | sed -E 's/^hist.*//; /^$/d; s/^(p[0-9.]+|max)_ns/near_&/'
}

tcp_ping() { # RUN HOW
	far_command=(sockperf sr --tcp -i "$IP_B" -p "$PORT")
	[ "$2" != spin ] || far_command+=(--nonblocked)
	# shellcheck disable=SC2046
	far_signal=INT steady tcp_case "$1" "tcp-pp/$2" "$2" $PORT of_sockperf sockperf pp --tcp -i "$IP_B" -p $PORT -m 64 -t 1 $(how_polls "$2")
}

redis_case() { # RUN HOW
	far_command=(redis-server --port 6379 --bind "$IP_B" --save '' --appendonly no --protected-mode no --dir "$WORK")
	local of="redis-benchmark -h $IP_B -t set,get -d 64 -q"
	# shellcheck disable=SC2086
	{
		steady tcp_case "$1" "redis-c1/$2" "$2" 6379 of_redis $of -c 1 -n "$([ "$2" = kernel ] && echo 10000 || echo 30000)"
		steady tcp_case "$1" "redis-c50/$2" "$2" 6379 of_redis $of -c 50 -n 60000
		steady tcp_case "$1" "redis-p16/$2" "$2" 6379 of_redis $of -c 50 -P 16 -n 300000
	}
}

www() { # what nginx serves
	mkdir -p "$WORK/www"
	chmod 755 "$WORK" "$WORK/www"
	head -c 600 /dev/zero >"$WORK/www/small"
}

nginx_conf() { # NAME LISTEN LOCATION
	mkdir -p "$WORK/$1"
	cat >"$WORK/$1.conf" <<-CONF
		daemon off; master_process off; error_log stderr crit; pid $WORK/$1/pid;
		events { worker_connections 2000; }
		http {
			access_log off; keepalive_requests 100000000; sendfile on; open_file_cache max=10;
			client_body_temp_path $WORK/$1; proxy_temp_path $WORK/$1; fastcgi_temp_path $WORK/$1;
			uwsgi_temp_path $WORK/$1; scgi_temp_path $WORK/$1;
			server { listen $2; location / { $3 } }
		}
	CONF
}

nginx_case() { # RUN HOW
	www
	nginx_conf nginx "$IP_B:8080" "root $WORK/www;"
	far_command=(/usr/sbin/nginx -c "$WORK/nginx.conf" -e stderr)
	steady tcp_case "$1" "nginx/$2" "$2" 8080 of_wrk wrk -t 1 -c 50 -d 1 "http://$IP_B:8080/small"
}

# A proxy, which has clients that are offloaded and for each request a connection to a backend on its own host that is
# not. All three may have both cores: whoever spins takes somebody's. The client's sockets are the kernel's.
proxy_case() { # RUN HOW
	www
	nginx_conf backend 127.0.0.1:9000 "root $WORK/www;"
	nginx_conf proxy "$IP_B:8080" "proxy_pass http://127.0.0.1:9000;"
	start backend b /usr/sbin/nginx -c "$WORK/backend.conf" -e stderr
	wait_for 10 far_listens 9000 || say "the backend does not start"
	far_command=(/usr/sbin/nginx -c "$WORK/proxy.conf" -e stderr)
	near_how=kernel CORES=0,1 steady tcp_case "$1" "proxy-c1/$2" "$2" 8080 of_wrk wrk -t 1 -c 1 -d 1 "http://$IP_B:8080/small"
	near_how=kernel CORES=0,1 steady tcp_case "$1" "proxy-c50/$2" "$2" 8080 of_wrk wrk -t 1 -c 50 -d 1 "http://$IP_B:8080/small"
	stop backend
}

segmentation() { # on|off: of both ends
	in_ns a ethtool -K "$IF_A" tso "$1" gso "$1" gro "$1" >/dev/null
	in_ns b ethtool -K "$IF_B" tso "$1" gso "$1" gro "$1" >/dev/null
}

iperf_case() { # RUN HOW
	local offload
	far_command=(iperf3 -s -B "$IP_B" --forceflush)
	for offload in off on; do
		segmentation $offload
		steady tcp_case "$1" "iperf-$offload/$2" "$2" 5201 of_iperf iperf3 -c "$IP_B" -t 2 -O 0.3 -f k
	done
}

load_case() { # RUN NAME HOW ROLE OPTIONS...
	local run=$1 name=$2 how=$3
	shift 3
	far_command=("$TCP_LOAD" serve --local "$IP_B")
	tcp_case "$run" "$name/$how" "$how" 7400 of_load "$TCP_LOAD" "$@" --peer "$IP_B"
}

# Each in namespaces of its own: a connection that the kernel keeps in TIME_WAIT keeps its port from everybody.
connection_cases() { # RUN
	local how
	for how in kernel lib; do
		steady load_case "$1" connect $how connect --msec 1000
		steady load_case "$1" closed $how closed --msec 1000
		steady load_case "$1" idle-10000 $how idle --count 10000 --msec 1000
		# More than there are ports: kernel sockets may use them again as tcp_tw_reuse says, which is off by default.
		kernel_setting=net.ipv4.tcp_tw_reuse=1 steady load_case "$1" connect-5s $how connect --msec 5000
	done
}

lossy_cases() { # RUN: through a middlebox, 0.2 ms; goodput, and 64 KB at a time
	local loss how
	NET_SHARED=yes
	network_with_middlebox || return
	for loss in 0 1000 10000 50000; do
		for how in kernel lib; do
			start middlebox m "$MIDDLEBOX" veth_m21 veth_m22 --loss $loss --delay-us 100 --seed "$1"
			wait_for 5 log_has middlebox forwarding
			steady load_case "$1" "lossy-$loss" $how bulk --msec 1500
			steady load_case "$1" "lossy64k-$loss" $how transfers --msec 1500
			stop middlebox
		done
	done
	ns_del a; ns_del b; ns_del m
	# shellcheck disable=SC2034 # read in sockets.sh
	NET_SHARED=
}

tcp_run() { # RUN
	local run=$1 how
	share_net || return
	for how in ${TCP_HOWS:-kernel spin lib latency}; do tcp_ping "$run" $how; done
	for how in kernel twin lib; do
		redis_case "$run" $how
		nginx_case "$run" $how
	done
	for how in kernel lib; do
		proxy_case "$run" $how
		iperf_case "$run" $how
		segmentation on
		steady load_case "$run" bursts $how bursts --msec 1000
		steady load_case "$run" pauses $how pauses --msec 1000
	done
	drop_shared_net
	connection_cases "$run"
	lossy_cases "$run"
}
