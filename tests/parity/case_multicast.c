/* Multicast and broadcast: membership, sources, interfaces, and who gets a copy of what is sent from this host. */
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parity.h"

#define GROUP "239.7.7.7"
#define OTHER_GROUP "239.7.7.8"

static int setsockopt_mcast_membership(int s, int name, const char *group, const char *ip)
{
	struct ip_mreq mreq = {.imr_multiaddr = ipv4_sockaddr_of(group, 0).sin_addr,
	                       .imr_interface = ipv4_sockaddr_of(ip, 0).sin_addr};

	return setsockopt(s, IPPROTO_IP, name, &mreq, sizeof(mreq));
}

static int setsockopt_mcast_source(int s, int name, const char *group, const char *ip, const char *source)
{
	struct ip_mreq_source mreq = {.imr_multiaddr = ipv4_sockaddr_of(group, 0).sin_addr,
	                              .imr_interface = ipv4_sockaddr_of(ip, 0).sin_addr,
	                              .imr_sourceaddr = ipv4_sockaddr_of(source, 0).sin_addr};

	return setsockopt(s, IPPROTO_IP, name, &mreq, sizeof(mreq));
}

static int multicast_join(int s, const char *group, const char *ip)
{
	return setsockopt_mcast_membership(s, IP_ADD_MEMBERSHIP, group, ip);
}

static int multicast_leave(int s, const char *group, const char *ip)
{
	return setsockopt_mcast_membership(s, IP_DROP_MEMBERSHIP, group, ip);
}

/* One that shares its port with others. */
static int open_reuseaddr_udp_socket_bound_to(const char *ip, int port)
{
	struct sockaddr_in address = ipv4_sockaddr_of(ip, port);
	int s = udp_socket();

	set_int(s, SOL_SOCKET, SO_REUSEADDR, 1);
	if (bind(s, (struct sockaddr *)&address, sizeof(address)) != 0)
		die_with_message("bind to %s:%d", ip, port);
	return s;
}

static void far_peer_open_mcast_sender(int slot, const char *ip, const char *name)
{
	register_port_name(peer_ask_to_open_socket(far(), slot, ip, 0), name);
	peer(far(), "mcif %d %s", slot, strcmp(ip, there_second) == 0 ? there_second : there);
}

static void multicast_say_all_received(const char *what, int s)
{
	say("%s:", what);
	receive_all_until_empty(s);
}

static void wait_30ms_for_multicast_delivery(void)
{
	wait_until_sent_packets_arrived(30);
}

static int send_to_group(int s, const char *group, int port, int seed)
{
	struct sockaddr_in to = ipv4_sockaddr_of(group, port);
	char bytes[40];

	fill(bytes, sizeof(bytes), seed);
	return (int)sendto(s, bytes, sizeof(bytes), 0, (struct sockaddr *)&to, sizeof(to));
}

CASE(multicast_join_leave, "a group's datagrams come while the socket is a member, around the kernel")
{
	int s = udp_socket_bound_to("0.0.0.0", 7200);

	far_peer_open_mcast_sender(0, there, "peer");
	peer_send(far(), 0, GROUP, 7200, 40, 1);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("not joined yet", s);
	SAY_RESULT(multicast_join(s, GROUP, here));
	expect_offloaded(s);
	wait_30ms_for_multicast_delivery();
	save_kernel_udp_counters();
	peer_send(far(), 0, GROUP, 7200, 40, 2);
	take(s, 2000, 0);
	peer_send(far(), 0, OTHER_GROUP, 7200, 40, 3);
	peer_send(far(), 0, here, 7200, 40, 4);
	take(s, 2000, 0);
	check_kernel_udp_was_bypassed(2, 0);
	SAY_RESULT(multicast_leave(s, GROUP, here));
	wait_30ms_for_multicast_delivery();
	peer_send(far(), 0, GROUP, 7200, 40, 5);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("left", s);
	SAY_RESULT(multicast_join(s, GROUP, here));
	peer_send(far(), 0, GROUP, 7200, 40, 6);
	take(s, 2000, 0);
	close(s);
}

CASE(multicast_bound_to_group, "a socket bound to the group gets the group's datagrams and no unicast")
{
	int s = udp_socket_bound_to(GROUP, 7201);

	far_peer_open_mcast_sender(0, there, "peer");
	SAY_RESULT(multicast_join(s, GROUP, here));
	say_local_address("bound", s);
	expect_offloaded(s);
	wait_30ms_for_multicast_delivery();
	save_kernel_udp_counters();
	peer_send(far(), 0, GROUP, 7201, 40, 1);
	take(s, 2000, 0);
	check_kernel_udp_was_bypassed(1, 0);
	peer_send(far(), 0, here, 7201, 40, 2);
	peer_send(far(), 0, OTHER_GROUP, 7201, 40, 3);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("others", s);
}

CASE(multicast_not_joined, "bound to a group without membership: only what other memberships let in")
{
	int s = udp_socket_bound_to(GROUP, 7202);

	expect_kernel_socket_for_reason(s, VMA_SOCK_NO_MEMBERSHIP);
	far_peer_open_mcast_sender(0, there, "peer");
	peer_send(far(), 0, GROUP, 7202, 40, 1);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("not joined", s);
}

CASE(multicast_errors, "membership calls: what is refused, and with what errno")
{
	int s = udp_socket_bound_to("0.0.0.0", 7203);
	struct ip_mreqn by_index = {.imr_multiaddr = ipv4_sockaddr_of(GROUP, 0).sin_addr, .imr_ifindex = 9999};

	SAY_RESULT(multicast_join(s, here, here));
	SAY_RESULT(multicast_join(s, GROUP, "192.0.2.1"));
	SAY_RESULT(multicast_leave(s, GROUP, here));
	SAY_RESULT(multicast_join(s, GROUP, here));
	SAY_RESULT(multicast_join(s, GROUP, here));
	SAY_RESULT(multicast_leave(s, GROUP, here_second));
	SAY_RESULT(multicast_leave(s, GROUP, here));
	SAY_RESULT(multicast_leave(s, GROUP, here));
	SAY_RESULT(setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &by_index, sizeof(by_index)));
	by_index.imr_ifindex = (int)if_nametoindex(if_first);
	SAY_RESULT(setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &by_index, sizeof(by_index)));
	SAY_RESULT(setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &by_index, 4));
	SAY_RESULT(setsockopt(s, IPPROTO_IP, IP_DROP_MEMBERSHIP, &by_index, sizeof(by_index)));
	SAY_RESULT(setsockopt_mcast_source(s, IP_ADD_SOURCE_MEMBERSHIP, here, here, there));
	SAY_RESULT(setsockopt_mcast_source(s, IP_DROP_SOURCE_MEMBERSHIP, GROUP, here, there));
	SAY_RESULT(setsockopt_mcast_source(s, IP_BLOCK_SOURCE, GROUP, here, there));
	SAY_RESULT(setsockopt_mcast_source(s, IP_ADD_SOURCE_MEMBERSHIP, GROUP, here, there));
	SAY_RESULT(setsockopt_mcast_source(s, IP_ADD_SOURCE_MEMBERSHIP, GROUP, here, there));
	SAY_RESULT(setsockopt_mcast_source(s, IP_BLOCK_SOURCE, GROUP, here, there));
	SAY_RESULT(multicast_join(s, GROUP, here));
	SAY_RESULT(multicast_leave(s, GROUP, here));
	for (int i = 0; i < 22; i++) {
		char group[32];

		snprintf(group, sizeof(group), "239.7.8.%d", i);
		if (multicast_join(s, group, here) != 0)
			say("group %d: %s", i, error_name(errno));
	}
	expect_offloaded(s);
}

CASE(multicast_sources, "source-specific groups: only the sources that were named, several of them")
{
	int s = udp_socket_bound_to("0.0.0.0", 7204);

	far_peer_open_mcast_sender(0, there, "first");
	far_peer_open_mcast_sender(1, there_too, "third");
	SAY_RESULT(setsockopt_mcast_source(s, IP_ADD_SOURCE_MEMBERSHIP, GROUP, here, there));
	expect_offloaded(s);
	wait_30ms_for_multicast_delivery();
	peer_send(far(), 0, GROUP, 7204, 40, 1);
	peer_send(far(), 1, GROUP, 7204, 40, 2);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("of the first", s);
	SAY_RESULT(setsockopt_mcast_source(s, IP_ADD_SOURCE_MEMBERSHIP, GROUP, here, there_too));
	wait_30ms_for_multicast_delivery();
	peer_send(far(), 0, GROUP, 7204, 40, 3);
	peer_send(far(), 1, GROUP, 7204, 40, 4);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("of both", s);
	SAY_RESULT(setsockopt_mcast_source(s, IP_DROP_SOURCE_MEMBERSHIP, GROUP, here, there));
	wait_30ms_for_multicast_delivery();
	peer_send(far(), 0, GROUP, 7204, 40, 5);
	peer_send(far(), 1, GROUP, 7204, 40, 6);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("of the other", s);
	SAY_RESULT(setsockopt_mcast_source(s, IP_DROP_SOURCE_MEMBERSHIP, GROUP, here, there_too));
	wait_30ms_for_multicast_delivery();
	peer_send(far(), 1, GROUP, 7204, 40, 7);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("of none", s);
}

CASE(multicast_blocked_sources, "IP_BLOCK_SOURCE and IP_UNBLOCK_SOURCE of a group of any sources")
{
	int s = udp_socket_bound_to("0.0.0.0", 7205);

	far_peer_open_mcast_sender(0, there, "first");
	far_peer_open_mcast_sender(1, there_too, "third");
	SAY_RESULT(multicast_join(s, GROUP, here));
	SAY_RESULT(setsockopt_mcast_source(s, IP_BLOCK_SOURCE, GROUP, here, there));
	expect_offloaded(s);
	wait_30ms_for_multicast_delivery();
	peer_send(far(), 0, GROUP, 7205, 40, 1);
	peer_send(far(), 1, GROUP, 7205, 40, 2);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("blocked", s);
	SAY_RESULT(setsockopt_mcast_source(s, IP_UNBLOCK_SOURCE, GROUP, here, there));
	wait_30ms_for_multicast_delivery();
	peer_send(far(), 0, GROUP, 7205, 40, 3);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("unblocked", s);
}

CASE(multicast_group_req, "the MCAST_ options: join, leave, sources, a whole filter")
{
	int s = udp_socket_bound_to("0.0.0.0", 7206);
	struct group_req group = {.gr_interface = if_nametoindex(if_first)};
	struct group_source_req source = {.gsr_interface = if_nametoindex(if_first)};
	struct sockaddr_in address = ipv4_sockaddr_of(GROUP, 0);

	memcpy(&group.gr_group, &address, sizeof(address));
	memcpy(&source.gsr_group, &address, sizeof(address));
	address = ipv4_sockaddr_of(there_too, 0);
	memcpy(&source.gsr_source, &address, sizeof(address));
	far_peer_open_mcast_sender(0, there, "first");
	far_peer_open_mcast_sender(1, there_too, "third");
	SAY_RESULT(setsockopt(s, IPPROTO_IP, MCAST_JOIN_GROUP, &group, sizeof(group)));
	expect_offloaded(s);
	wait_30ms_for_multicast_delivery();
	peer_send(far(), 0, GROUP, 7206, 40, 1);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("joined", s);
	SAY_RESULT(setsockopt(s, IPPROTO_IP, MCAST_LEAVE_GROUP, &group, sizeof(group)));
	SAY_RESULT(setsockopt(s, IPPROTO_IP, MCAST_JOIN_SOURCE_GROUP, &source, sizeof(source)));
	wait_30ms_for_multicast_delivery();
	peer_send(far(), 0, GROUP, 7206, 40, 2);
	peer_send(far(), 1, GROUP, 7206, 40, 3);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("source", s);
	address = ipv4_sockaddr_of(there, 0);
	SAY_RESULT(setsourcefilter(s, if_nametoindex(if_first), (struct sockaddr *)&group.gr_group, sizeof(address),
	                           MCAST_INCLUDE, 1, (struct sockaddr_storage *)&source.gsr_source));
	wait_30ms_for_multicast_delivery();
	peer_send(far(), 1, GROUP, 7206, 40, 4);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("filter", s);
}

CASE(multicast_two_members, "two sockets of one process in one group both get every datagram")
{
	int one = open_reuseaddr_udp_socket_bound_to("0.0.0.0", 7207),
	    two = open_reuseaddr_udp_socket_bound_to("0.0.0.0", 7207),
	    other = open_reuseaddr_udp_socket_bound_to("0.0.0.0", 7207);

	far_peer_open_mcast_sender(0, there, "peer");
	SAY_RESULT(multicast_join(one, GROUP, here));
	SAY_RESULT(multicast_join(two, GROUP, here));
	SAY_RESULT(set_int(other, IPPROTO_IP, IP_MULTICAST_ALL, 0));
	expect_offloaded(one);
	expect_offloaded(two);
	wait_30ms_for_multicast_delivery();
	save_kernel_udp_counters();
	peer_send(far(), 0, GROUP, 7207, 40, 1);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("one", one);
	multicast_say_all_received("two", two);
	check_kernel_udp_was_bypassed(2, 0);
	multicast_say_all_received("no member", other);
	SAY_RESULT(multicast_leave(two, GROUP, here));
	wait_30ms_for_multicast_delivery();
	peer_send(far(), 0, GROUP, 7207, 40, 2);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("one", one);
	multicast_say_all_received("two has left", two);
	SAY_RESULT(close(one));
	SAY_RESULT(multicast_join(two, GROUP, here));
	wait_30ms_for_multicast_delivery();
	peer_send(far(), 0, GROUP, 7207, 40, 3);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("two alone", two);
}

CASE(multicast_all, "IP_MULTICAST_ALL: what others have joined comes too, or does not")
{
	int member = open_reuseaddr_udp_socket_bound_to("0.0.0.0", 7208),
	    all = open_reuseaddr_udp_socket_bound_to("0.0.0.0", 7209),
	    own = open_reuseaddr_udp_socket_bound_to("0.0.0.0", 7209);

	far_peer_open_mcast_sender(0, there, "peer");
	SAY_RESULT(multicast_join(member, GROUP, here));
	SAY_RESULT(set_int(own, IPPROTO_IP, IP_MULTICAST_ALL, 0));
	wait_30ms_for_multicast_delivery();
	peer_send(far(), 0, GROUP, 7209, 40, 1);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("all", all);
	multicast_say_all_received("its own only", own);
	multicast_say_all_received("other port", member);
}

CASE(multicast_interfaces, "membership is of an interface; IP_MULTICAST_IF chooses where to send")
{
	int s = udp_socket_bound_to("0.0.0.0", 7210), sender = udp_socket();
	struct in_addr second = ipv4_sockaddr_of(here_second, 0).sin_addr, got = {0};
	struct ip_mreqn by_index = {.imr_ifindex = (int)if_nametoindex(if_first)};
	socklen_t len = sizeof(got);

	far_peer_open_mcast_sender(0, there, "first");
	far_peer_open_mcast_sender(1, there_second, "second");
	SAY_RESULT(multicast_join(s, GROUP, here_second));
	expect_offloaded(s);
	wait_30ms_for_multicast_delivery();
	peer_send(far(), 0, GROUP, 7210, 40, 1);
	peer_send(far(), 1, GROUP, 7210, 40, 2);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("on the second only", s);
	peer_ask_to_open_socket(far(), 2, GROUP, 7211);
	peer(far(), "join 2 %s %s", GROUP, there);
	peer(far(), "join 2 %s %s", GROUP, there_second);
	SAY_RESULT(send_to_group(sender, GROUP, 7211, 3));
	register_port_name_of_fd(sender, "us");
	say_peer_received(far(), 2, 2000);
	SAY_RESULT(setsockopt(sender, IPPROTO_IP, IP_MULTICAST_IF, &second, sizeof(second)));
	SAY_RESULT(getsockopt(sender, IPPROTO_IP, IP_MULTICAST_IF, &got, &len));
	say("%s", got.s_addr == second.s_addr ? "the second" : "another");
	SAY_RESULT(set_int(sender, IPPROTO_IP, IP_MULTICAST_TTL, 7));
	SAY_RESULT(send_to_group(sender, GROUP, 7211, 4));
	say_peer_received(far(), 2, 2000);
	SAY_RESULT(setsockopt(sender, IPPROTO_IP, IP_MULTICAST_IF, &by_index, sizeof(by_index)));
	SAY_RESULT(send_to_group(sender, GROUP, 7211, 5));
	say_peer_received(far(), 2, 2000);
	second = ipv4_sockaddr_of("192.0.2.1", 0).sin_addr;
	SAY_RESULT(setsockopt(sender, IPPROTO_IP, IP_MULTICAST_IF, &second, sizeof(second)));
	expect_offloaded(sender);
}

CASE(multicast_sent_around_the_kernel, "without members here, what is sent to a group bypasses the kernel")
{
	int s = udp_socket_bound_to(here, 0);

	register_port_name_of_fd(s, "us");
	peer_ask_to_open_socket(far(), 0, "0.0.0.0", 7212);
	peer(far(), "join 0 %s %s", GROUP, there);
	expect_offloaded(s);
	SAY_RESULT(send_to_group(s, GROUP, 7212, 1));
	say_peer_received(far(), 0, 2000);
	save_kernel_udp_counters();
	for (int i = 0; i < 5; i++) {
		SAY_RESULT(send_to_group(s, GROUP, 7212, i));
		say_peer_received(far(), 0, 2000);
	}
	check_kernel_udp_was_bypassed(0, 5);
}

CASE(multicast_loop_in_process, "IP_MULTICAST_LOOP: a process hears itself, once, or not; and the network hears it")
{
	int s = udp_socket_bound_to("0.0.0.0", 7213), sender = udp_socket_bound_to(here, 0);

	register_port_name_of_fd(sender, "us");
	peer_ask_to_open_socket(far(), 0, "0.0.0.0", 7213);
	peer(far(), "join 0 %s %s", GROUP, there);
	SAY_RESULT(multicast_join(s, GROUP, here));
	expect_offloaded(s);
	expect_offloaded(sender);
	wait_30ms_for_multicast_delivery();
	SAY_RESULT(send_to_group(sender, GROUP, 7213, 1));
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("looped", s);
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(set_int(sender, IPPROTO_IP, IP_MULTICAST_LOOP, 0));
	SAY_RESULT(send_to_group(sender, GROUP, 7213, 2));
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("not looped", s);
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(set_int(sender, IPPROTO_IP, IP_MULTICAST_LOOP, 1));
	register_port_name_of_fd(s, "both");
	SAY_RESULT(send_to_group(s, GROUP, 7213, 3));
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("to oneself", s);
	say_peer_received(far(), 0, 2000);
}

static void say_multicast_loop_with_process(struct peer *other, int port)
{
	int s = udp_socket_bound_to("0.0.0.0", port + 1), sender = udp_socket_bound_to(here, 0);

	register_port_name_of_fd(sender, "us");
	peer_ask_to_open_socket(other, 0, "0.0.0.0", port);
	peer(other, "join 0 %s %s", GROUP, here);
	wait_30ms_for_multicast_delivery();
	SAY_RESULT(send_to_group(sender, GROUP, port, 1));
	say_peer_received(other, 0, 2000);
	say_peer_received(other, 0, 50);
	SAY_RESULT(multicast_join(s, GROUP, here));
	register_port_name(peer_ask_to_open_socket(other, 1, here, 0), "other");
	peer(other, "mcif 1 %s", here);
	wait_30ms_for_multicast_delivery();
	peer_send(other, 1, GROUP, port + 1, 40, 2);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("from the other", s);
	peer(other, "opt 1 0 %d 0", IP_MULTICAST_LOOP);
	peer_send(other, 1, GROUP, port + 1, 40, 3);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("from the other, not looped", s);
	SAY_RESULT(set_int(sender, IPPROTO_IP, IP_MULTICAST_LOOP, 0));
	SAY_RESULT(send_to_group(sender, GROUP, port, 4));
	say_peer_received(other, 0, 50);
}

CASE(multicast_loop_to_plain, "multicast between this process and a plain one on the same host")
{
	say_multicast_loop_with_process(near(), 7214);
}

CASE(multicast_loop_to_twin, "multicast between two preloaded processes on the same host")
{
	say_multicast_loop_with_process(twin(), 7216);
}

CASE(multicast_members_in_two_processes, "members of a group on one port in several processes all get a copy")
{
	int s = open_reuseaddr_udp_socket_bound_to("0.0.0.0", 7218);

	far_peer_open_mcast_sender(0, there, "peer");
	peer(near(), "share 0 0.0.0.0 7218 %d", SO_REUSEADDR);
	peer(near(), "join 0 %s %s", GROUP, here);
	peer(twin(), "share 0 0.0.0.0 7218 %d", SO_REUSEADDR);
	peer(twin(), "join 0 %s %s", GROUP, here);
	SAY_RESULT(multicast_join(s, GROUP, here));
	pause_ms(1200);
	peer_send(far(), 0, GROUP, 7218, 40, 1);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("here", s);
	say_peer_received(near(), 0, 500);
	say_peer_received(twin(), 0, 500);
}

CASE(broadcast_received, "broadcasts come to sockets bound to 0.0.0.0 or to the broadcast address")
{
	int any = udp_socket_bound_to("0.0.0.0", 7220), bound = udp_socket_bound_to("10.9.0.255", 7221),
	    unicast = udp_socket_bound_to(here, 7222);

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	peer(far(), "opt 0 %d %d 1", SOL_SOCKET, SO_BROADCAST);
	expect_offloaded(any);
	expect_offloaded(unicast);
	for (int port = 7220; port <= 7222; port++)
		peer_send(far(), 0, "10.9.0.255", port, 40, port - 7220);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("any", any);
	multicast_say_all_received("bound to it", bound);
	multicast_say_all_received("unicast", unicast);
	peer(far(), "run ip route add 255.255.255.255/32 dev $(ip -o -4 addr show to 10.9.0.2 | awk '{print $2}')");
	for (int port = 7220; port <= 7222; port++)
		peer_send(far(), 0, "255.255.255.255", port, 40, port - 7220);
	wait_30ms_for_multicast_delivery();
	peer(far(), "run ip route del 255.255.255.255/32");
	multicast_say_all_received("any", any);
	multicast_say_all_received("bound to it", bound);
	multicast_say_all_received("unicast", unicast);
}

CASE(broadcast_sent, "broadcasts leave, with SO_BROADCAST only, and come back to this host")
{
	int s = open_reuseaddr_udp_socket_bound_to("0.0.0.0", 7223);
	struct sockaddr_in to = ipv4_sockaddr_of("10.9.0.255", 7223);

	register_port_name(7223, "us");
	peer_ask_to_open_socket(far(), 0, "0.0.0.0", 7223);
	peer(near(), "share 0 10.9.0.255 7223 %d", SO_REUSEADDR);
	expect_offloaded(s);
	SAY_RESULT(sendto(s, "hello", 5, 0, (struct sockaddr *)&to, sizeof(to)));
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_BROADCAST, 1));
	SAY_RESULT(sendto(s, "hello", 5, 0, (struct sockaddr *)&to, sizeof(to)));
	say_peer_received(far(), 0, 2000);
	say_peer_received(near(), 0, 500);
	wait_30ms_for_multicast_delivery();
	multicast_say_all_received("back", s);
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_BROADCAST, 0));
	SAY_RESULT(sendto(s, "hello", 5, 0, (struct sockaddr *)&to, sizeof(to)));
}
