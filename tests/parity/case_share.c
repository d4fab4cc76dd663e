/* One port, several sockets: SO_REUSEADDR, SO_REUSEPORT, connected beside unconnected, addresses, devices, processes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parity.h"

static int udp_socket_bound_with_option(const char *ip, int port, int option)
{
	struct sockaddr_in address = ipv4_sockaddr_of(ip, port);
	int s = udp_socket();

	set_int(s, SOL_SOCKET, option, 1);
	if (bind(s, (struct sockaddr *)&address, sizeof(address)) != 0)
		die_with_message("bind to %s:%d", ip, port);
	return s;
}

static int share_connect_to(int s, const char *ip, int port)
{
	struct sockaddr_in address = ipv4_sockaddr_of(ip, port);

	return connect(s, (struct sockaddr *)&address, sizeof(address));
}

static void share_say_all_received(const char *what, int s)
{
	say("%s:", what);
	receive_all_until_empty(s);
}

CASE(share_connected_first, "on one port, a connected socket gets its peer's, the other the rest")
{
	int wide = udp_socket_bound_with_option(here, 7300, SO_REUSEADDR),
	    narrow = udp_socket_bound_with_option(here, 7300, SO_REUSEADDR), port;

	port = peer_ask_to_open_socket(far(), 0, there, 0);
	register_port_name(port, "first");
	register_port_name(peer_ask_to_open_socket(far(), 1, there, 0), "second");
	SAY_RESULT(share_connect_to(narrow, there, port));
	expect_offloaded(wide);
	expect_offloaded(narrow);
	save_kernel_udp_counters();
	peer_send(far(), 0, here, 7300, 40, 1);
	peer_send(far(), 1, here, 7300, 40, 2);
	peer_send(far(), 0, here, 7300, 40, 3);
	wait_until_sent_packets_arrived(30);
	share_say_all_received("wide", wide);
	share_say_all_received("narrow", narrow);
	check_kernel_udp_was_bypassed(3, 0);
	SAY_RESULT(close(narrow));
	pause_ms(30);
	peer_send(far(), 0, here, 7300, 40, 4);
	take(wide, 2000, 0);
}

CASE(share_reuseaddr, "of several sockets with SO_REUSEADDR on one port, the newest gets all, until it closes")
{
	int one = udp_socket_bound_with_option(here, 7301, SO_REUSEADDR),
	    two = udp_socket_bound_with_option(here, 7301, SO_REUSEADDR);

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	expect_offloaded(one);
	expect_offloaded(two);
	for (int i = 0; i < 3; i++)
		peer_send(far(), 0, here, 7301, 40, i);
	wait_until_sent_packets_arrived(30);
	share_say_all_received("one", one);
	share_say_all_received("two", two);
	SAY_RESULT(close(two));
	pause_ms(30);
	peer_send(far(), 0, here, 7301, 40, 4);
	take(one, 2000, 0);
}

CASE(share_refused, "sharing a port takes the same option on both sockets")
{
	struct sockaddr_in address = ipv4_sockaddr_of(here, 7302);
	int one = udp_socket_bound_with_option(here, 7302, SO_REUSEADDR), two = udp_socket();

	SAY_RESULT(bind(two, (struct sockaddr *)&address, sizeof(address)));
	SAY_RESULT(set_int(two, SOL_SOCKET, SO_REUSEPORT, 1));
	SAY_RESULT(bind(two, (struct sockaddr *)&address, sizeof(address)));
	SAY_RESULT(set_int(two, SOL_SOCKET, SO_REUSEADDR, 1));
	SAY_RESULT(bind(two, (struct sockaddr *)&address, sizeof(address)));
	expect_offloaded(one);
	expect_offloaded(two);
}

CASE(share_reuseport, "SO_REUSEPORT spreads senders: each keeps its socket, nothing is lost or doubled")
{
	int sockets[4], got[4] = {0}, total = 0, moved = 0, owner[64];
	char bytes[64];

	for (int i = 0; i < 4; i++)
		sockets[i] = udp_socket_bound_with_option(here, 7303, SO_REUSEPORT);
	for (int i = 0; i < 4; i++)
		expect_offloaded(sockets[i]);
	memset(owner, -1, sizeof(owner));
	save_kernel_udp_counters();
	for (int i = 0; i < 64; i++) {
		peer_ask_to_open_socket(far(), i, there, 0);
		for (int n = 0; n < 3; n++)
			peer_send(far(), i, here, 7303, 40, i);
	}
	wait_until_sent_packets_arrived(30);
	for (int i = 0; i < 4; i++)
		while (recv(sockets[i], bytes, sizeof(bytes), MSG_DONTWAIT) == 40) {
			int seed = seed_of_payload(bytes, 40);

			got[i]++;
			total++;
			moved += seed < 0 || (owner[seed] != -1 && owner[seed] != i);
			owner[seed < 0 ? 0 : seed] = i;
		}
	check_kernel_udp_was_bypassed(192, 0);
	say("%d in all, %d moved, %s", total, moved,
	    got[0] > 0 && got[1] > 0 && got[2] > 0 && got[3] > 0 ? "every socket got some" : "a socket got none");
}

CASE(share_addresses, "0.0.0.0 and a single address on one port: the more exact one wins")
{
	int any = udp_socket_bound_with_option("0.0.0.0", 7304, SO_REUSEADDR),
	    exact = udp_socket_bound_with_option(here, 7304, SO_REUSEADDR);

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "first");
	register_port_name(peer_ask_to_open_socket(far(), 1, there_second, 0), "second");
	expect_offloaded(any);
	expect_offloaded(exact);
	peer_send(far(), 0, here, 7304, 40, 1);
	peer_send(far(), 1, here_second, 7304, 40, 2);
	wait_until_sent_packets_arrived(30);
	share_say_all_received("any", any);
	share_say_all_received("exact", exact);
	SAY_RESULT(close(exact));
	pause_ms(30);
	peer_send(far(), 0, here, 7304, 40, 3);
	take(any, 2000, 0);
}

CASE(share_devices, "two sockets of one port, each bound to a device")
{
	struct sockaddr_in address = ipv4_sockaddr_of("0.0.0.0", 7305);
	int one = udp_socket(), two = udp_socket();

	setsockopt(one, SOL_SOCKET, SO_BINDTODEVICE, if_first, (socklen_t)strlen(if_first));
	setsockopt(two, SOL_SOCKET, SO_BINDTODEVICE, if_second, (socklen_t)strlen(if_second));
	SAY_RESULT(bind(one, (struct sockaddr *)&address, sizeof(address)));
	SAY_RESULT(bind(two, (struct sockaddr *)&address, sizeof(address)));
	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "first");
	register_port_name(peer_ask_to_open_socket(far(), 1, there_second, 0), "second");
	expect_offloaded(one);
	expect_offloaded(two);
	peer_send(far(), 0, here, 7305, 40, 1);
	peer_send(far(), 1, here_second, 7305, 40, 2);
	wait_until_sent_packets_arrived(30);
	share_say_all_received("first", one);
	share_say_all_received("second", two);
}

/*
 * Nothing is lost between processes that share a port, and the kernel's choice among them holds, from when vmad has
 * seen the other one twice, half a second apart.
 */
static void say_port_share_with_process(struct peer *other, int port)
{
	int s = udp_socket_bound_with_option(here, port, SO_REUSEPORT), mine = 0, others = 0, lost = 0;
	char bytes[64], answer[16];

	snprintf(answer, sizeof(answer), "%s", peer(other, "share 0 %s %d %d", here, port, SO_REUSEPORT));
	expect_kernel_socket_for_reason(s, VMA_SOCK_PORT_SHARED);
	for (int i = 0; i < 64; i++) {
		peer_ask_to_open_socket(far(), i, there, 0);
		peer_send(far(), i, here, port, 40, i);
	}
	wait_until_sent_packets_arrived(50);
	while (recv(s, bytes, sizeof(bytes), MSG_DONTWAIT) == 40)
		mine++;
	while (strncmp(peer(other, "recv 0 20"), "got", 3) == 0)
		others++;
	lost = 64 - mine - others;
	say("%s, %s, %d lost", mine > 0 ? "some here" : "none here", others > 0 ? "some there" : "none there", lost);
	expect_kernel_socket_for_reason(s, VMA_SOCK_PORT_SHARED);
	peer(other, "close 0");
	for (int i = 0; i < 64; i++)
		peer_send(far(), i, here, port, 40, i);
	wait_until_sent_packets_arrived(50);
	mine = 0;
	while (recv(s, bytes, sizeof(bytes), MSG_DONTWAIT) == 40)
		mine++;
	say("%d of 64 when alone again", mine);
	expect_offloaded(s);
}

CASE(share_with_plain_process, "SO_REUSEPORT with a plain process: the kernel spreads")
{
	say_port_share_with_process(near(), 7306);
}

CASE(share_with_twin, "SO_REUSEPORT with another preloaded process: the kernel spreads")
{
	say_port_share_with_process(twin(), 7307);
}

CASE(share_by_address_with_process, "two processes, one port on different addresses: each gets its own")
{
	int s = udp_socket_bound_to(here, 7308);

	peer_ask_to_open_socket(twin(), 0, here_second, 7308);
	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "first");
	register_port_name(peer_ask_to_open_socket(far(), 1, there_second, 0), "second");
	expect_offloaded(s);
	peer_send(far(), 0, here, 7308, 40, 1);
	peer_send(far(), 1, here_second, 7308, 40, 2);
	take(s, 2000, 0);
	receive_all_until_empty(s);
	say_peer_received(twin(), 0, 2000);
}
