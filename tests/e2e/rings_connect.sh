#!/usr/bin/env bash
# Two threads that connect have a ring each, or one together: two rings make as many connections a second, since blocks of
# local ports are had by each ring of the process.
# alone: it measures time
# test-all: it measures the same rate many times
# seconds: 40
. "$(dirname "$0")/../lib_programs.sh"
net_pair
combination server
rounds=5

start listening a "$BUILD/bench/tcp_load" serve --peer "$IP_B" --local "$IP_A" --port 7400
check "a server listens" wait_for 5 in_ns a sh -c "ss -Hltn 'sport = :7400' | grep -q ."

rate() { # LOGIC: connections per second
	in_ns b timeout 30 env "$server_with" VMA_RING_ALLOCATION_LOGIC_RX="$1" VMA_RING_ALLOCATION_LOGIC_TX="$1" \
		"$BUILD/bench/tcp_load" connect --peer "$IP_A" --local "$IP_B" --port 7400 --msec 1000 --threads 2 |
		awk '$1 == "per_sec" { printf "%d\n", $2 }'
}

# In turns, since a rate depends on what else the machine does.
one=() two=()
for ((round = 0; round < rounds; round++)); do
	one+=("$(rate 0)") && sleep 2
	two+=("$(rate 20)") && sleep 2
done
median() { printf '%s\n' "$@" | sort -n | sed -n $((rounds / 2 + 1))p; }
one_median=$(median "${one[@]}") two_median=$(median "${two[@]}")
note "one ring: ${one[*]}; two rings: ${two[*]}"
tell "connections per second: $one_median with one ring, $two_median with two"
check_num "with one ring connections are made" "${one_median:-0}" -gt 0
check_num "with two rings at least 0.9 times as many" "${two_median:-0}" -ge $((${one_median:-0} * 9 / 10))
done_testing
