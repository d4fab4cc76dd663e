#!/usr/bin/env bash
# tcp_ports: a client that uses up its ports goes on making connections as fast as before.
#
#   a (client, offloaded)  10.9.0.1 ---- veth ---- 10.9.0.2  (server, offloaded) b
#
# Ports of connections that have ended rest in TIME_WAIT. A client that is too slow to use up half of all ports in a
# second passes, too.
# alone: the client is to be quick
# seconds: 8
. "$(dirname "$0")/../lib.sh"
LOAD=$BUILD/bench/tcp_load with=LD_PRELOAD=$BUILD/libvma.so
export VMA_TRACELEVEL=WARNING
need_xdp
if [ -n "$SAN" ]; then
	skip "connections in four seconds are more than twice as many as in one" "a sanitizer's build is too slow"
	done_testing
fi

made_in() { # MSEC: how many connections
	in_ns a env "$with" "$LOAD" connect --local "$IP_A" --peer "$IP_B" --msec "$1" 2>"$WORK/load.log" |
		awk -v msec="$1" '$1 == "per_sec" { print int($2 * msec / 1000) }'
}

net_pair
start far b env "$with" "$LOAD" serve --local "$IP_B"
check "the server listens" wait_for 10 in_ns b sh -c "ss -Hltn 'sport = :7400' | grep -q ."
one=$(made_in 1000)
four=$(made_in 4000)
note "connections in 1 s: $one, in 4 s: $four"
check_num "a client makes connections" "${one:-0}" -gt 100
check_num "in four seconds more than twice as many as in one" "${four:-0}" -gt $((${one:-0} * 2))
stop far
done_testing
