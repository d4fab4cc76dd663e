#!/usr/bin/env bash
# The XDP program of an interface: what it redirects to our sockets, what it leaves to the kernel, and its end.
#
#   a (raw frames) ---- veth ---- b: XDP program, three AF_XDP sockets, a packet socket that sees what the kernel gets
# seconds: 28
. "$(dirname "$0")/../lib.sh"
need_xdp
net_pair
program=$BUILD/components/nic/test/priv_xdp_prog

one() { # CASE
	in_ns b "$program" "$1" "$IF_B" "$(ns a)" "$IF_A"
}

check "the program attaches in native mode" one native
check "what matches no flow passes" one unmatched
check "a 5-tuple wins over a 3-tuple" one exact_flow_wins_over_wildcard
check "a flow is set once and deleted once" one flow_set_and_del
check "the flow that is compared first comes and goes" one front_flow_comes_and_goes
check "what clients claim by themselves is theirs" one claims_are_followed
check "a flow that moves between slots misses no packet" one moved_flow_misses_nothing
check "a full table says so and works on" one full_flow_map_case
check "a multicast group is a flow of its address" one multicast
check "a listener's flow takes every segment that no connection's takes" one listener_takes_what_is_left
check "a group's members share it, and each keeps what it has got" one group_shares_and_remembers
check "one in grace only what has begun" one listener_in_grace
check "one that is granted again meanwhile misses no segment" one listener_granted_again_misses_nothing
check "a connection of the kernel is not robbed" one kernel_connection_survives
check "nor one that a SYN cookie brings back" one a_syn_cookie_ack_is_given_back_to_the_kernel
check "a block of ports takes what the kernel has no socket for" one block_takes_what_the_kernel_does_not
check "fragments of a datagram follow its first" one fragments
check "IP options are skipped" one ip_options_case
check "frames to other MACs are not ours" one frames_of_others
check "a new MAC is followed" one a_new_mac_is_followed
check "packets of martian sources are not ours" one martian_sources
check "packets with a source route, or options that are none, are not ours" one source_routes
check "cut headers pass" one truncated
check "a VLAN's flow takes that VLAN only" one vlan_tags
check "what is not IPv4 with UDP or TCP passes" one non_ipv4_frames_case
check "packets of a slot without socket pass" one dead_socket_passes
check "attaching is idempotent, a second program is busy" one second_attach_is_refused_case
check "memory beyond RLIMIT_MEMLOCK is ENOBUFS" one memlock_limit
check "a queue is bound again right after its last user's exit" one rebind_at_once
check "a queue in use is busy after two seconds of trying" one overloaded_queue_case
check "a sent frame completes in the common ring" one send_and_complete

one killed_owner >"$WORK/killed.out" 2>&1
check_eq "the owner was killed with the program attached" $? 137
check "a killed owner leaves no program behind" wait_for 2 no_xdp b "$IF_B"
before=$(snmp b Udp NoPorts)
in_ns a bash -c "echo x >/dev/udp/$IP_B/9"
no_ports() { [ "$(snmp b Udp NoPorts)" -gt "$before" ]; }
check "plain traffic flows again" wait_for 2 no_ports

ip -n "$(ns b)" link add macvlan0 link "$IF_B" type macvlan mode bridge
ip -n "$(ns b)" link set macvlan0 up
IF_B=macvlan0 check "an interface without native XDP is used in generic mode" one generic_xdp_mode_case
check_eq "... which is said once" "$(grep -c 'generic mode' "$WORK/check.out")" 1
ip -n "$(ns b)" link del macvlan0

for mtu in 3000 9000; do
	ip -n "$(ns a)" link set "$IF_A" mtu $mtu
	ip -n "$(ns b)" link set "$IF_B" mtu $mtu
	export FIXTURE_MTU=$mtu
	check "packets of several buffers arrive whole at MTU $mtu" one large_packets
done

if [ "$(nproc)" -ge 2 ]; then
	ns_add c && ns_add d && ns_join c 10.9.1.1 d 10.9.1.2 2
	two() { # CASE
		in_ns d "$program" "$1" "$IF_D" "$(ns c)" "$IF_C"
	}
	check "each device queue has a socket of the slot" two two_device_queues_case
	check "a device queue that is not covered passes" two unknown_queue_passes
else
	skip "each device queue has a socket of the slot" "needs two CPUs"
fi
done_testing
