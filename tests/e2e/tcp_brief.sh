#!/usr/bin/env bash
# Servers that close each connection once they have answered: answer and FIN leave together, so a connection takes four
# frames of the server's, and few system calls. What is answered without reading all that came is still delivered before
# the reset.
# seconds: 10
. "$(dirname "$0")/../lib_programs.sh"
net_pair
combination server
brief=$ROOT/tests/e2e/brief.py
N=200

frames() { if_counter b "$IF_B" tx_packets; }
per_connection() { echo $((100 * ($2 - $1) / N)); }                       # BEFORE AFTER: in hundredths
frames_per_connection() {
	local before
	before=$(frames)
	check "$how: so are those after them" client python3 "$brief" ask "$IP_B" $port $N &&
		sent=$(per_connection "$before" "$(frames)")
}
calls() { awk -v name="$1" '$NF == name { n += $4 } END { print n + 0 }' "$WORK/calls"; } # NAME

port=7100
for how in loop epoll; do
	serve server python3 "$brief" serve "$IP_B" $port $how
	wait_for 10 listens $port
	check "$how: connections are answered and closed" client python3 "$brief" ask "$IP_B" $port 40
	count_from
	# A side that has no core for 200 ms is sent something again.
	remeasure 3 "$how: hundredths of frames" sent -le 450 frames_per_connection
	check_num "$how: hundredths of frames for each: SYN-ACK, ACK, answer with FIN, ACK" "$sent" -le 450
	check "$how: what is answered without being read is told before the reset" client python3 "$brief" long "$IP_B" $port $N
	still "$how"
	start trace b strace -qq -c -o "$WORK/calls" -p "${PID[server]}"
	sleep 1
	check "$how: connections are answered under strace" client python3 "$brief" ask "$IP_B" $port $N
	stop trace INT
	check_num "$how: its thread pays a barrier for less than one connection in four" "$(calls membarrier)" -lt $((N / 4))
	note "$(cat "$WORK/calls")"
	stop server
	port=$((port + 1))
done
done_testing
