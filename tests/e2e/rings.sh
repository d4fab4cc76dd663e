#!/usr/bin/env bash
# Which sockets share a ring (VMA_RING_ALLOCATION_LOGIC_*): four sockets of two threads on two local addresses, for UDP
# receivers, listeners, accepted and connecting sockets. All of them stay offloaded.
# test-all: each combination starts programs anew, and waits for their last connections
# seconds: 40
#
#   a (peer)  10.9.0.1 ---- veth ---- 10.9.0.2, 10.9.0.3  (the four sockets) b
. "$(dirname "$0")/../lib_programs.sh"
net_pair
combination server
ip -n "$(ns b)" addr add 10.9.0.3/24 dev "$IF_B"
ip -n "$(ns a)" neigh replace 10.9.0.3 lladdr "$MAC_B" dev "$IF_A" nud permanent
OTHER_B=10.9.0.3
program=$ROOT/tests/e2e/rings.py
mkdir -p "$WORK/stats"
cores=$(nproc)

rings() { # that the server has: blocks of the statistics
	"$BUILD/tests/measure/print_stats" "$WORK/stats/vmastat.${PID[server]}" |
		awk '/^ring\./ { seen[$3] } END { n = 0; for (name in seen) n++; print n }'
}
flows_of_server() { # that it has installed
	"$BUILD/tests/measure/print_stats" "$WORK/stats/vmastat.${PID[server]}" | awk '$1 == "nic.flows" { n += $2 } END { print n + 0 }'
}
kernel_sockets() { # udp|listen|accept|connect: shadows of what serves, and no connection
	case $1 in
	udp) in_ns b ss -Hlun '( sport = :7300 or sport = :7301 )' ;;
	*) in_ns b ss -Htan '( sport = :7300 or sport = :7301 or dport = :7300 )' ;;
	esac | awk '$1 == "UNCONN" || $1 == "LISTEN" { n++ } $2 + $3 != 0 && $1 != "LISTEN" || $1 ~ /^(ESTAB|SYN|CLOSE-W|FIN|LAST)/ { n += 100 } END { print n + 0 }'
}
shadows() { # udp|listen|accept|connect: those that are expected
	case $1 in
	udp | listen) echo 4 ;;
	accept) echo 2 ;;
	connect) echo 0 ;;
	esac
}
affinity() { # TID: the cores that it may run on
	awk '/^Cpus_allowed_list:/ { print $2 }' "/proc/$1/status"
}
internal_thread() { # its id
	grep -lx vma-internal /proc/"${PID[server]}"/task/*/comm | cut -d/ -f5
}

serve_with() { # udp|listen|accept|connect LOGIC [NAME=VALUE...]
	local how=$1 logic=$2
	shift 2
	[ "$how" != connect ] || { start answers a python3 "$program" answer 7300 "$IP_A" && wait_for 10 log_has answers ready; }
	count_from
	datagrams=$(snmp b Udp InDatagrams)
	serve server VMA_STATS_SHMEM_DIR="$WORK/stats" VMA_RING_ALLOCATION_LOGIC_RX="$logic" \
		VMA_RING_ALLOCATION_LOGIC_TX="$logic" "$@" python3 "$program" "$how" 7300 "$IP_B" "$OTHER_B" "$IP_A"
	case $how in
	udp | accept)
		wait_for 20 log_has server ready &&
			in_ns a python3 "$program" ask "$([ "$how" = udp ] && echo udp || echo tcp)" 7300 "$IP_B" "$OTHER_B"
		;;
	esac && wait_for 20 log_has server served
}
end_server() {
	stop server
	stop answers
}

wanted() { # udp|listen|accept|connect LOGIC: rings. The main thread's listeners are there besides what is accepted.
	case $1.$2 in
	accept.10) echo 6 ;;
	accept.20) echo 3 ;;
	*.0) echo 1 ;;
	*.1 | *.20) echo 2 ;;
	*.10) echo 4 ;;
	esac
}

for how in ${HOW:-udp listen accept connect}; do
	for logic in 0 1 10 20 30 31; do
		s="$how, logic $logic"
		check "$s: all four are served" serve_with $how $logic
		case $logic in
		30 | 31) check_num "$s: no more rings than cores" "$(rings)" -le "$cores" ;;
		*) check_eq "$s: rings" "$(rings)" "$(wanted $how $logic)" ;;
		esac
		check_eq "$s: the kernel has shadows that received nothing, and no connection" "$(kernel_sockets $how)" "$(shadows $how)"
		mapfile -t tids < <(sed -n 's/^thread //p' "$WORK/server.log")
		if [ $logic = 31 ] && [ "$cores" -ge 2 ]; then
			check_num "$s: the first thread stays on one core" "$(affinity "${tids[0]}")" -ge 0
			check_num "$s: so does the second" "$(affinity "${tids[1]}")" -ge 0
			[ $how = accept ] || check "$s: on another one" \
				test "$(affinity "${tids[0]}")" != "$(affinity "${tids[1]}")"
			check_eq "$s: the library's own thread does not" "$(affinity "$(internal_thread)")" "$(affinity $$)"
		else
			check_eq "$s: no thread is bound to a core" "$(affinity "${tids[0]}")" "$(affinity $$)"
		fi
		still "$s"
		check_eq "$s: the kernel has seen no datagram" "$(snmp b Udp InDatagrams)" "$datagrams"
		end_server
	done
	s="$how, logic 10, three rings at most"
	check "$s: all four are served" serve_with $how 10 VMA_RING_LIMIT_PER_INTERFACE=3
	check_eq "$s: rings" "$(rings)" 3
	still "$s"
	check_eq "$s: the kernel has seen no datagram" "$(snmp b Udp InDatagrams)" "$datagrams"
	end_server
done

# The logic for sending alone: what is sent by UDP has rings besides those that receive; a TCP connection has one.
for how in udp connect; do
	s="$how, logic 10 for sending alone"
	check "$s: all four are served" serve_with $how 0 VMA_RING_ALLOCATION_LOGIC_TX=10
	check_eq "$s: rings" "$(rings)" "$([ $how = udp ] && echo 5 || echo 4)"
	still "$s"
	check_eq "$s: the kernel has seen no datagram" "$(snmp b Udp InDatagrams)" "$datagrams"
	end_server
done

# Two sockets with SO_REUSEPORT on a ring each: both get their share, around the kernel.
for kind in udp tcp; do
	s="two $kind sockets of SO_REUSEPORT on two rings"
	datagrams=$(snmp b Udp InDatagrams)
	count_from
	serve server VMA_STATS_SHMEM_DIR="$WORK/stats" VMA_RING_ALLOCATION_LOGIC_RX=20 VMA_RING_ALLOCATION_LOGIC_TX=20 \
		python3 "$program" share $kind 7310 "$IP_B"
	check "$s: they are there" wait_for 20 log_has server ready
	check_eq "$s: rings" "$(rings)" 2
	sleep 0.2
	for round in 1 2 3; do
		in_ns a python3 "$program" peers $kind 7310 "$IP_B" 64 $((20000 + 100 * round)) >"$WORK/peers"
		check_eq "$s, $round: all 64 peers are answered" "$(awk '{ sum += $3 } END { print sum + 0 }' "$WORK/peers")" 64
		for number in 0 1; do
			share=$(awk -v n=$number '$2 == n { print $3 }' "$WORK/peers")
			check "$s, $round: the socket $number answers 30 to 70 %: ${share:-0} of 64" \
				test "${share:-0}" -ge 20 -a "${share:-0}" -le 44
		done
	done
	still "$s"
	check_eq "$s: the kernel has seen no datagram" "$(snmp b Udp InDatagrams)" "$datagrams"
	stop server
done

# As in the kernel, a socket that is bound to the address gets all that two on 0.0.0.0 would have shared.
s="two udp sockets on 0.0.0.0 and two rings, and one on the address"
datagrams=$(snmp b Udp InDatagrams)
serve server VMA_STATS_SHMEM_DIR="$WORK/stats" VMA_RING_ALLOCATION_LOGIC_RX=20 VMA_RING_ALLOCATION_LOGIC_TX=20 \
	python3 "$program" share udp 7310 "" "$IP_B"
check "$s: they are there" wait_for 20 log_has server ready
sleep 0.2
in_ns a python3 "$program" peers udp 7310 "$IP_B" 64 20500 >"$WORK/peers"
check_eq "$s: it answers all" "$(cat "$WORK/peers")" "thread 2 64"
kill -USR1 "${PID[server]}"
check "$s: it is closed" wait_for 5 log_has server closed
in_ns a python3 "$program" peers udp 7310 "$IP_B" 64 20600 >"$WORK/peers"
check_eq "$s: the others answer all then" "$(awk '$2 != 2 { sum += $3 } END { print sum + 0 }' "$WORK/peers")" 64
check_eq "$s: the kernel has seen no datagram" "$(snmp b Udp InDatagrams)" "$datagrams"
stop server

# The internal thread attaches the flow of an address that comes later: it is the sockets', and so are their rings.
s="an address that comes later"
datagrams=$(snmp b Udp InDatagrams)
serve server VMA_STATS_SHMEM_DIR="$WORK/stats" VMA_RING_ALLOCATION_LOGIC_RX=20 VMA_RING_ALLOCATION_LOGIC_TX=20 \
	python3 "$program" any 7300
check "$s: two sockets on all addresses" wait_for 20 log_has server ready
check_eq "$s: rings" "$(rings)" 2
flows=$(flows_of_server)
ip -n "$(ns b)" addr add 10.9.0.4/24 dev "$IF_B"
ip -n "$(ns a)" neigh replace 10.9.0.4 lladdr "$MAC_B" dev "$IF_A" nud permanent
has_more_flows() { [ "$(flows_of_server)" -ge $((flows + 2)) ]; }
check "$s: it is attached" wait_for 10 has_more_flows
check "$s: it is served" in_ns a python3 "$program" ask udp 7300 10.9.0.4 "$IP_B"
check "$s: by both" wait_for 5 log_has server served
check_eq "$s: on the same rings" "$(rings)" 2
check_eq "$s: the kernel has seen no datagram" "$(snmp b Udp InDatagrams)" "$datagrams"
stop server
done_testing
