#!/usr/bin/env bash
# redis through BGSAVE (a forked child that closes what it inherited) and with a replica; iperf3 with its defaults, which
# listens on "::". The kernel's TCP carries none of what comes over the wire.
#
# seconds: 20
. "$(dirname "$0")/../lib_programs.sh"
. "$(dirname "$0")/../lib_servers.sh"
net_pair
with_ipv6
combination server

serve_redis() { # LABEL NAMESPACE PORT OPTION...
	local label=$1 ns=$2 port=$3
	mkdir -p "$WORK/$label"
	start "$label" "$ns" env ${server_with:+"$server_with"} redis-server --port "$port" --protected-mode no --dir "$WORK/$label" \
		--save '' --appendonly no "${@:4}"
}
redis() { # NAMESPACE ADDRESS PORT WORD...
	in_ns "$1" timeout 20 redis-cli -h "$2" -p "$3" "${@:4}"
}
filled() { # fifty clients, 30,000 values
	client redis-benchmark -h "$IP_B" -p 6380 -c 50 -n 30000 -r 100000 -t set -d 200 -q
}
saved() {
	[ "$(redis b "$IP_B" 6380 lastsave)" != "$1" ]
}
save_and_ask() {
	local before
	before=$(redis b "$IP_B" 6380 lastsave)
	sleep 1.1 # lastsave counts seconds
	[ "$(redis a "$IP_B" 6380 bgsave)" = "Background saving started" ] && wait_for 20 saved "$before"
}
same_digest() {
	local one two
	one=$(redis a "$IP_B" 6380 debug digest) && two=$(redis a "$IP_A" 6381 debug digest) && [ -n "$one" ] && [ "$one" = "$two" ]
}

links() { # of redis that the kernels have
	{
		in_ns a ss -Htn state established 'dport = :6380'
		in_ns b ss -Htn state established 'sport = :6380'
	} | wc -l
}

serve_redis redis b 6380 --enable-debug-command yes --repl-diskless-sync-delay 0
check "redis: it listens" wait_for 20 log_has redis "Ready to accept connections"
count_from
check "redis: values are set" filled
still "redis"
for i in 1 2 3; do
	check "redis: BGSAVE $i ends" save_and_ask
	check_eq "redis: after it a client on loopback is answered" "$(redis b 127.0.0.1 6380 ping)" PONG
	count_from
	check_eq "redis: and a client on the other host" "$(redis a "$IP_B" 6380 ping)" PONG
	still "redis: after BGSAVE $i"
done
count_from
check "redis: values are set after BGSAVE" filled
still "redis: after BGSAVE"
count_from
serve_redis replica a 6381 --enable-debug-command yes --replicaof "$IP_B" 6380
check "redis: a replica, offloaded too, takes a copy" wait_for 30 same_digest
check "redis: values are set while a replica follows" filled
check "redis: the replica has the same" wait_for 30 same_digest
# A client of `same_digest` that was there when redis forked for the copy is handed over when it is closed.
still "redis: with a replica" 4
[ -n "$kernel" ] || check_eq "redis: its connection is neither kernel's" "$(links)" 0
stop replica
check "redis: the server still runs" alive redis
stop redis
settle

for how in "" "-R" "-P 4"; do
	serve iperf iperf3 -s -1 --forceflush
	check "iperf3 ${how:-one stream}: it listens" wait_for 20 listens 5201
	count_from
	# shellcheck disable=SC2086 # options
	check "iperf3 ${how:-one stream}: the client ends well" client iperf3 -c "$IP_B" -t 1 $how
	check "iperf3 ${how:-one stream}: so does the server" finish iperf 20
	# The server has ended, and has had the kernel make a TIME_WAIT for its port.
	still "iperf3 ${how:-one stream}" 3
done
done_testing
