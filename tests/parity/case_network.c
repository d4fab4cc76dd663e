/* The network changes while sockets are in use: addresses, routes, neighbours, links, MTU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parity.h"

static void run_ip_command_here(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void run_ip_command_here(const char *format, ...)
{
	char command[300], args[256];
	va_list list;

	va_start(list, format);
	vsnprintf(args, sizeof(args), format, list);
	va_end(list);
	snprintf(command, sizeof(command), "ip %s", args);
	run_shell_command_here(command);
	pause_ms(30);
}

static int network_send_to(int s, const char *ip, int port, int seed)
{
	struct sockaddr_in to = ipv4_sockaddr_of(ip, port);
	char bytes[40];

	fill(bytes, sizeof(bytes), seed);
	return (int)sendto(s, bytes, sizeof(bytes), 0, (struct sockaddr *)&to, sizeof(to));
}

CASE(network_new_address, "an address that comes while a socket is bound to 0.0.0.0 is heard, and one that goes is not")
{
	int s = udp_socket_bound_to("0.0.0.0", 7700);

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	expect_offloaded(s);
	run_ip_command_here("addr add 10.9.0.50/24 dev %s", if_first);
	pause_ms(100);
	save_kernel_udp_counters();
	peer_send(far(), 0, "10.9.0.50", 7700, 40, 1);
	take(s, 2000, 0);
	check_kernel_udp_was_bypassed(1, 0);
	run_ip_command_here("addr del 10.9.0.50/24 dev %s", if_first);
	peer_send(far(), 0, here, 7700, 40, 2);
	take(s, 2000, 0);
	peer(far(), "run ip neigh flush to 10.9.0.50");
}

CASE(network_bound_address_goes, "a socket whose address goes and comes back works again")
{
	int s, port = peer_ask_to_open_socket(far(), 0, there, 0);

	register_port_name(port, "peer");
	run_ip_command_here("addr add 10.9.0.51/24 dev %s", if_first);
	s = udp_socket_bound_to("10.9.0.51", 7701);
	expect_offloaded(s);
	peer_send(far(), 0, "10.9.0.51", 7701, 40, 1);
	take(s, 2000, 0);
	run_ip_command_here("addr del 10.9.0.51/24 dev %s", if_first);
	pause_ms(500);
	peer_send(far(), 0, "10.9.0.51", 7701, 40, 2);
	take(s, 50, 0);
	run_ip_command_here("addr add 10.9.0.51/24 dev %s", if_first);
	peer(far(), "run ip neigh flush to 10.9.0.51");
	pause_ms(500);
	peer_send(far(), 0, "10.9.0.51", 7701, 40, 3);
	take(s, 2000, 0);
	SAY_RESULT(network_send_to(s, there, port, 4));
	say_peer_received(far(), 0, 2000);
	expect_offloaded(s);
	run_ip_command_here("addr del 10.9.0.51/24 dev %s", if_first);
	peer(far(), "run ip neigh flush to 10.9.0.51");
}

CASE(network_route_moves, "a route that moves to the other interface moves the traffic of a socket in use")
{
	int s = udp_socket_bound_to("0.0.0.0", 7702), port;

	peer(far(), "run ip addr add 10.77.0.1/32 dev lo");
	port = peer_ask_to_open_socket(far(), 0, "10.77.0.1", 0);
	register_port_name(port, "peer");
	run_ip_command_here("route add 10.77.0.1 via %s", there);
	SAY_RESULT(network_send_to(s, "10.77.0.1", port, 1));
	say_peer_received(far(), 0, 2000);
	run_ip_command_here("route replace 10.77.0.1 via %s", there_second);
	SAY_RESULT(network_send_to(s, "10.77.0.1", port, 2));
	say_peer_received(far(), 0, 2000);
	run_ip_command_here("route replace unreachable 10.77.0.1");
	SAY_RESULT(network_send_to(s, "10.77.0.1", port, 3));
	run_ip_command_here("route replace prohibit 10.77.0.1");
	SAY_RESULT(network_send_to(s, "10.77.0.1", port, 3));
	run_ip_command_here("route del 10.77.0.1");
	SAY_RESULT(network_send_to(s, "10.77.0.1", port, 4));
	run_ip_command_here("route add 10.77.0.1 via %s src %s", there, here_second);
	SAY_RESULT(network_send_to(s, "10.77.0.1", port, 5));
	say_peer_received(far(), 0, 2000);
	expect_offloaded(s);
	run_ip_command_here("route del 10.77.0.1");
}

CASE(network_route_in_mid_stream,
     "a connected socket that sends all the time follows its route; nothing is lost unsaid")
{
	int s, port, failed = 0;
	char bytes[40];

	peer(far(), "run ip addr add 10.77.0.2/32 dev lo");
	port = peer_ask_to_open_socket(far(), 0, "10.77.0.2", 0);
	peer(far(), "opt 0 1 33 8000000");
	run_ip_command_here("route add 10.77.0.2 via %s src %s", there, here);
	s = udp_socket_connected_to("10.77.0.2", port);
	expect_offloaded(s);
	for (int i = 0; i < 4000; i++) {
		if (i == 2000)
			run_ip_command_here("route replace 10.77.0.2 via %s src %s", there_second, here);
		fill(bytes, sizeof(bytes), i % 64);
		failed += send(s, bytes, sizeof(bytes), 0) != sizeof(bytes);
	}
	say("%d failed, the peer counted %s", failed, peer(far(), "count 0 4000 0 500"));
	run_ip_command_here("route del 10.77.0.2");
}

CASE(network_rule, "a policy rule decides the way")
{
	int s, port;

	peer(far(), "run ip addr add 10.77.0.3/32 dev lo");
	port = peer_ask_to_open_socket(far(), 0, "10.77.0.3", 0);
	register_port_name(port, "peer");
	run_ip_command_here("route add 10.77.0.3 via %s", there);
	run_ip_command_here("route add 10.77.0.3 via %s table 77", there_second);
	run_ip_command_here("rule add to 10.77.0.3 lookup 77");
	s = udp_socket_connected_to("10.77.0.3", port);
	register_port_name_of_fd(s, "us");
	say_local_address("by the rule", s);
	expect_offloaded(s);
	SAY_RESULT(send(s, "x", 1, 0));
	say_peer_received(far(), 0, 2000);
	run_ip_command_here("rule del to 10.77.0.3 lookup 77");
	SAY_RESULT(send(s, "x", 1, 0));
	say_peer_received(far(), 0, 2000);
	close(s);
	s = udp_socket_connected_to("10.77.0.3", port);
	say_local_address("without it", s);
	run_ip_command_here("route flush table 77");
	run_ip_command_here("route del 10.77.0.3");
}

CASE(network_neighbour_unknown, "the first datagrams to a neighbour that must be asked for arrive, all of them")
{
	int s = udp_socket_bound_to(here, 0), port = peer_ask_to_open_socket(far(), 0, there, 0);

	register_port_name_of_fd(s, "us");
	expect_offloaded(s);
	run_ip_command_here("neigh del %s dev %s", there, if_first);
	for (int i = 0; i < 3; i++)
		SAY_RESULT(network_send_to(s, there, port, i));
	for (int i = 0; i < 3; i++)
		say_peer_received(far(), 0, 2000);
	warm_up_until_offloaded_send(s, there, port);
	save_kernel_udp_counters();
	SAY_RESULT(network_send_to(s, there, port, 9));
	say_peer_received(far(), 0, 2000);
	check_kernel_udp_was_bypassed(0, 1);
}

CASE(network_mtu, "a smaller MTU fragments, or refuses, what fitted before")
{
	int port = peer_ask_to_open_socket(far(), 0, there, 0), s = udp_socket_connected_to(there, port), mtu = 0;
	socklen_t len = sizeof(mtu);
	static char bytes[1400];

	register_port_name_of_fd(s, "us");
	fill(bytes, sizeof(bytes), 1);
	expect_offloaded(s);
	SAY_RESULT(send(s, bytes, sizeof(bytes), 0));
	say_peer_received(far(), 0, 2000);
	run_ip_command_here("link set %s mtu 1000", if_first);
	pause_ms(50);
	SAY_RESULT(send(s, bytes, sizeof(bytes), 0));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(set_int(s, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO));
	SAY_RESULT(send(s, bytes, sizeof(bytes), 0));
	SAY_RESULT(getsockopt(s, IPPROTO_IP, IP_MTU, &mtu, &len));
	say("mtu %d", mtu);
	run_ip_command_here("link set %s mtu 1500", if_first);
	pause_ms(50);
	SAY_RESULT(send(s, bytes, sizeof(bytes), 0));
	say_peer_received(far(), 0, 2000);
}

CASE(network_link_down, "a link that goes down and comes up: sends fail as the kernel's, then all works again")
{
	int s = udp_socket_bound_to("0.0.0.0", 7703), port = peer_ask_to_open_socket(far(), 0, there_second, 0);

	register_port_name(port, "peer");
	expect_offloaded(s);
	SAY_RESULT(network_send_to(s, there_second, port, 1));
	say_peer_received(far(), 0, 2000);
	run_ip_command_here("link set %s down", if_second);
	SAY_RESULT(network_send_to(s, there_second, port, 2));
	run_ip_command_here("link set %s up", if_second);
	pause_ms(300);
	SAY_RESULT(network_send_to(s, there_second, port, 3));
	say_peer_received(far(), 0, 2000);
	peer_send(far(), 0, here_second, 7703, 40, 4);
	take(s, 2000, 0);
	expect_offloaded(s);
}
