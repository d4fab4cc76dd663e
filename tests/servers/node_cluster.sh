#!/usr/bin/env bash
# node with its defaults (it listens on "::"): alone, and as a cluster of 2 and of 4 processes, whose primary passes each
# connection on to a worker over a unix socket, or passes the listener itself (SCHED_NONE). Every byte is right, every
# worker answers, nobody hangs. A server that is alone is offloaded, and so are workers that have the listener; a
# connection that is passed on is the kernel's.
#
# seconds: 20
. "$(dirname "$0")/../lib_programs.sh"
. "$(dirname "$0")/../lib_servers.sh"
net_pair
with_ipv6
combination server
head -c 600 "$(payload 100000)" >"$WWW/small"
cp "$(payload 100000)" "$WWW/middle"
cp "$(payload 300000)" "$WWW/large"

cluster() { # WORKERS POLICY
	local s="node, ${1/#0/no} workers${2:+, $2}" asked
	serve_node "$1" "$2"
	check "$s: it listens" wait_for 30 log_has node listening
	[ "$2" != none ] || sleep 2.5 # the first worker looks once a second whether all who have the listener are known
	count_from
	check "$s: 8 clients, a connection each" ask 8 60
	asked=$(tail -n 1 "$WORK/check.out")
	check "$s: 8 clients, a connection for each request" ask 8 40 close
	check "$s: 64 clients at the same time" ask 64 10
	if [ "$1" = 0 ] || [ "$2" = none ]; then
		still "$s"
	fi
	if [ "$2" = none ]; then
		check_eq "$s: both workers have answered" "${asked##*, }" "$1 processes"
	elif [ "$1" != 0 ]; then
		check_eq "$s: all workers have answered" "${asked##*, }" "$1 processes"
	fi
	check "$s: the server still runs" alive node
	stop node
	settle
}
ask() { # CLIENTS REQUESTS [close]
	client python3 "$SERVERS/http_check.py" "$IP_B" 8085 "$WWW" "$@"
}

cluster 0 ''
cluster 2 none # first: what those of below leave in the kernel's TIME_WAIT would be met again
cluster 2 rr
cluster 4 rr
done_testing
