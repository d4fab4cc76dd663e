#!/usr/bin/env bash
# The Extra API's rings, between two namespaces: their descriptors wake who polls them, spinning and asleep, end with
# the ring, and are refused where they are no use.
# seconds: 30
#
#   a: extra_rings send, talk (the kernel's sockets) ---- veth ---- b: extra_rings, preloaded
EXTRA_PROGRAM=extra_rings
. "$(dirname "$0")/../lib_extra.sh"
port=7200
receive() { # LABEL ROLE [ARGUMENT [NAME=VALUE...]]
	local label=$1 role=$2 argument=${3:-}
	shift 2
	[ $# = 0 ] || shift
	port=$((port + 10))
	start "$label" b env "$preload" PEER="$IP_A" "$@" "$program" "$role" "$IP_B" $port "$argument"
	wait_for 30 log_has "$label" '^ready'
}

before=$(snmp b Udp InDatagrams)
for call in poll select epoll edge; do
	for spin in 100000 0; do
		receive "$call$spin" wait $call VMA_SELECT_POLL=$spin
		in_ns a "$program" send "$IP_B" $port 20
		finish "$call$spin" 60
		check_eq "who waits for a ring by $call, VMA_SELECT_POLL=$spin, hears of each datagram" "$(said "$call$spin")" \
			"got 20 wrong 0"
	done
done
check_eq "the kernel of b saw no datagram" "$(snmp b Udp InDatagrams)" "$before"

receive moderate moderate '' VMA_SELECT_POLL=0
check "its datagrams are sent, the last ones to no socket" in_ns a "$program" send "$IP_B" $port 400
finish moderate 60
check_eq "count and period of a ring hold its sleeper back" "$(said moderate)" "wrong 0"

before=$(snmp b Tcp InSegs)
receive tcp tcp
in_ns a timeout 60 "$program" talk "$IP_B" $port 20
finish tcp 60
check_eq "a socket that is bound has the ring on which it listens, and its connections are" "$(said tcp)" \
	"accepted 20 wrong 0"
check_num "few segments were the kernel's" $(($(snmp b Tcp InSegs) - before)) -le 20

before=$(snmp b Udp InDatagrams)
receive logic logic
for offset in 0 1 2 3 4 5; do in_ns a "$program" send "$IP_B" $((port + offset)) 1; done
finish logic 60
check_eq "sockets get the rings that they ask for, and receive by them" "$(said logic)" "wrong 0"
check_eq "the kernel of b saw no datagram of theirs" "$(snmp b Udp InDatagrams)" "$before"

in_ns b env "$preload" PEER="$IP_A" "$program" misuse "$IP_B" 7190 >"$WORK/misuse.log" 2>&1
check_eq "what is no use is refused; a ring's descriptor may be copied, closed, and forked away from" \
	"$(said misuse)" "wrong 0"
in_ns b env "$preload" VMA_RING_ALLOCATION_LOGIC_RX=10 "$program" ends "$IP_B" 7180 >"$WORK/ends.log" 2>&1
check_eq "descriptors end with their rings" "$(said ends)" "wrong 0"
done_testing
