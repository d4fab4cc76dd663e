/* Peers on the same host: this process, plain processes, preloaded ones; by its own addresses and by loopback. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parity.h"

static int local_sendto_40_bytes(int s, const char *ip, int port, int seed)
{
	struct sockaddr_in to = ipv4_sockaddr_of(ip, port);
	char bytes[40];

	fill(bytes, sizeof(bytes), seed);
	return (int)sendto(s, bytes, sizeof(bytes), 0, (struct sockaddr *)&to, sizeof(to));
}

CASE(local_in_process, "two sockets of one process reach each other by every address of the host")
{
	int any = udp_socket_bound_to("0.0.0.0", 7600), one = udp_socket_bound_to(here, 7601),
	    loop = udp_socket_bound_to("127.0.0.1", 7602);

	expect_offloaded(any);
	expect_offloaded(one);
	expect_kernel_socket_for_reason(loop, VMA_SOCK_LOCAL);
	for (int round = 0; round < 3; round++) {
		SAY_RESULT(local_sendto_40_bytes(one, here, 7600, 1));
		take(any, 2000, 0);
		SAY_RESULT(local_sendto_40_bytes(any, here, 7601, 2));
		take(one, 2000, 0);
		SAY_RESULT(local_sendto_40_bytes(loop, "127.0.0.1", 7600, 3));
		take(any, 2000, 0);
		SAY_RESULT(local_sendto_40_bytes(any, "127.0.0.1", 7602, 4));
		take(loop, 2000, 0);
		SAY_RESULT(local_sendto_40_bytes(one, here_second, 7600, 5));
		take(any, 2000, 0);
		SAY_RESULT(local_sendto_40_bytes(one, here, 7601, 6));
		take(one, 2000, 0);
	}
	SAY_RESULT(local_sendto_40_bytes(one, "127.0.0.1", 7601, 7));
	take(one, 50, 0);
}

static void say_traffic_with_process(struct peer *other)
{
	int s = udp_socket_bound_to(here, 7603), loop = udp_socket_bound_to("127.0.0.1", 7604), port;

	expect_offloaded(s);
	port = peer_ask_to_open_socket(other, 0, here, 0);
	register_port_name(port, "other");
	register_port_name(peer_ask_to_open_socket(other, 1, "127.0.0.1", 0), "loop");
	for (int i = 0; i < 3; i++) {
		SAY_RESULT(local_sendto_40_bytes(s, here, port, i));
		say_peer_received(other, 0, 2000);
		peer_send(other, 0, here, 7603, 40, i);
		take(s, 2000, 0);
		peer_send(other, 1, "127.0.0.1", 7604, 40, i);
		take(loop, 2000, 0);
	}
	close(s);
	s = udp_socket_connected_to(here, port);
	register_port_name_of_fd(s, "connected");
	SAY_RESULT(send(s, "x", 1, 0));
	say_peer_received(other, 0, 2000);
	peer_send(other, 0, here, port_of(s), 40, 9);
	take(s, 2000, 0);
	peer(other, "close 0");
	SAY_RESULT(send(s, "x", 1, 0));
	pause_ms(20);
	take(s, 0, 0);
}

CASE(local_plain_process, "a plain process on the same host")
{
	say_traffic_with_process(near());
}

CASE(local_twin, "another preloaded process on the same host")
{
	say_traffic_with_process(twin());
}

CASE(local_refused, "a closed port of this host refuses at once")
{
	static const char *ips[] = {"127.0.0.1", NULL};
	char byte;

	ips[1] = here;
	for (int i = 0; i < 2; i++) {
		int s = udp_socket_connected_to(ips[i], 7699);

		SAY_RESULT(send(s, "x", 1, 0));
		SAY_RESULT(recv(s, &byte, 1, 0));
		SAY_RESULT(send(s, "x", 1, 0));
		SAY_RESULT(send(s, "x", 1, 0));
	}
}

CASE(local_and_remote, "a socket bound to 0.0.0.0 hears the network, both interfaces, and this host")
{
	int s = udp_socket_bound_to("0.0.0.0", 7605), sender = udp_socket_bound_to("127.0.0.1", 0);

	register_port_name_of_fd(sender, "sender");
	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "first");
	register_port_name(peer_ask_to_open_socket(far(), 1, there_second, 0), "second");
	register_port_name(peer_ask_to_open_socket(twin(), 0, here, 0), "twin");
	expect_offloaded(s);
	for (int i = 0; i < 4; i++) {
		peer_send(far(), 0, here, 7605, 40, 1);
		take(s, 2000, 0);
		SAY_RESULT(local_sendto_40_bytes(sender, "127.0.0.1", 7605, 2));
		take(s, 2000, 0);
		peer_send(far(), 1, here_second, 7605, 40, 3);
		take(s, 2000, 0);
		peer_send(twin(), 0, here, 7605, 40, 4);
		take(s, 2000, 0);
	}
	save_kernel_udp_counters();
	peer_send(far(), 0, here, 7605, 40, 5);
	take(s, 2000, 0);
	peer_send(far(), 1, here_second, 7605, 40, 6);
	take(s, 2000, 0);
	check_kernel_udp_was_bypassed(2, 0);
}

CASE(local_nonblocking_loop, "what was sent to a socket on this host is there at the next non-blocking recv")
{
	int s = udp_socket_bound_to(here, 7606), sender = udp_socket_bound_to(here, 7607), got = 0;
	char bytes[64];

	expect_offloaded(s);
	for (int i = 0; i < 200; i++) {
		local_sendto_40_bytes(sender, here, 7606, i % 64);
		got += recv(s, bytes, sizeof(bytes), MSG_DONTWAIT) == 40;
	}
	say("%d of 200 at once", got);
}
