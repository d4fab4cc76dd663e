/* bind, connect, getsockname, getpeername: which address a socket has, and what is refused. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parity.h"

static int bind_to_ip(int fd, const char *ip, int port)
{
	struct sockaddr_in address = ipv4_sockaddr_of(ip, port);

	return bind(fd, (struct sockaddr *)&address, sizeof(address));
}

static int connect_to_ipv4_address(int fd, const char *ip, int port)
{
	struct sockaddr_in address = ipv4_sockaddr_of(ip, port);

	return connect(fd, (struct sockaddr *)&address, sizeof(address));
}

static int disconnect_udp_socket(int fd)
{
	struct sockaddr address = {.sa_family = AF_UNSPEC};

	return connect(fd, &address, sizeof(address));
}

CASE(bind_says_its_address, "a bound socket has its address, and no peer")
{
	int s = udp_socket();

	expect_kernel_socket_for_reason(s, VMA_SOCK_NEW);
	say_local_address("fresh", s);
	say_peer_address("fresh", s);
	SAY_RESULT(bind_to_ip(s, here, 0));
	say_local_address("bound", s);
	say_peer_address("bound", s);
	expect_offloaded(s);
	SAY_RESULT(bind_to_ip(s, here, 0));
	SAY_RESULT(close(s));
	s = udp_socket();
	SAY_RESULT(bind_to_ip(s, "0.0.0.0", 7001));
	say_local_address("to all", s);
	expect_offloaded(s);
	close(s);
}

CASE(bind_refuses, "bind: what is refused, and with what errno")
{
	int s = udp_socket(), other = udp_socket_bound_to(here, 7001);
	struct sockaddr_in address = ipv4_sockaddr_of(here, 7002);

	SAY_RESULT(bind_to_ip(s, "10.99.0.1", 7002));
	SAY_RESULT(bind_to_ip(s, here, 7001));
	SAY_RESULT(bind_to_ip(s, "0.0.0.0", 7001));
	SAY_RESULT(bind(s, (struct sockaddr *)&address, sizeof(address) - 8));
	SAY_RESULT(bind(s, (struct sockaddr *)&address, 0));
	SAY_RESULT(bind(s, (struct sockaddr *)&address, 4096));
	SAY_RESULT(bind(s, bad_pointer(), sizeof(address)));
	address.sin_family = AF_INET6;
	SAY_RESULT(bind(s, (struct sockaddr *)&address, sizeof(address)));
	address.sin_family = AF_UNSPEC;
	SAY_RESULT(bind(s, (struct sockaddr *)&address, sizeof(address)));
	say_local_address("still unbound", s);
	SAY_RESULT(bind_to_ip(s, here_second, 7001));
	say_local_address("the same port on another address", s);
	expect_offloaded(s);
	expect_offloaded(other);
	SAY_RESULT(bind(-1, (struct sockaddr *)&address, sizeof(address)));
	SAY_RESULT(bind(STDOUT_FILENO, (struct sockaddr *)&address, sizeof(address)));
}

CASE(bind_unspecified_family, "bind with AF_UNSPEC works for 0.0.0.0 only")
{
	struct sockaddr_in address = ipv4_sockaddr_of("0.0.0.0", 7003);
	int s = udp_socket();

	address.sin_family = AF_UNSPEC;
	SAY_RESULT(bind(s, (struct sockaddr *)&address, sizeof(address)));
	say_local_address("bound", s);
	expect_offloaded(s);
}

CASE(bind_again_after_close, "a port is free at once when its socket is closed; the next one gets its datagrams")
{
	peer_ask_to_open_socket(far(), 0, there, 7100);
	register_port_name(7100, "peer");
	for (int i = 0; i < 3; i++) {
		int s = udp_socket_bound_to(here, 7004);

		expect_offloaded(s);
		peer_send(far(), 0, here, 7004, 100, i);
		take(s, 2000, 0);
		SAY_RESULT(close(s));
	}
}

CASE(bind_before_data, "datagrams that come right after bind arrive, in order, whoever delivers them")
{
	int s;

	peer_ask_to_open_socket(far(), 0, there, 7100);
	register_port_name(7100, "peer");
	s = udp_socket_bound_to(here, 7005);
	peer(far(), "send 0 %s 7005 100 0 20 500", here);
	for (int i = 0; i < 20; i++)
		take(s, 2000, 0);
	expect_offloaded(s);
	peer(far(), "send 0 %s 7005 100 20 20", here);
	for (int i = 0; i < 20; i++)
		take(s, 2000, 0);
	take(s, 0, 0);
}

CASE(connect_chooses_source, "connect binds to the address and a port, until it is dissolved")
{
	int s = udp_socket();

	peer_ask_to_open_socket(far(), 0, there, 7100);
	register_port_name(7100, "peer");
	SAY_RESULT(connect_to_ipv4_address(s, there, 7100));
	say_local_address("connected", s);
	say_peer_address("connected", s);
	expect_offloaded(s);
	SAY_RESULT(disconnect_udp_socket(s));
	say_local_address("dissolved", s);
	say_peer_address("dissolved", s);
	SAY_RESULT(connect_to_ipv4_address(s, there_second, 7100));
	say_local_address("connected by the other interface", s);
	say_peer_address("connected by the other interface", s);
	expect_offloaded(s);
	SAY_RESULT(connect_to_ipv4_address(s, there, 7100));
	say_local_address("connected again without dissolving", s);
	say_peer_address("connected again without dissolving", s);
	SAY_RESULT(connect_to_ipv4_address(s, there, 0));
	say_peer_address("to port 0", s);
	close(s);
	s = udp_socket();
	SAY_RESULT(connect_to_ipv4_address(s, "127.0.0.1", 7100));
	say_local_address("to loopback", s);
	expect_kernel_socket_for_reason(s, VMA_SOCK_LOCAL);
}

CASE(connect_keeps_the_bound_port, "a bound socket that connects, dissolves and connects keeps port and address")
{
	int s = udp_socket_bound_to(here, 7006), port = peer_ask_to_open_socket(far(), 0, there, 0);

	register_port_name(port, "peer");
	SAY_RESULT(connect_to_ipv4_address(s, there, port));
	say_local_address("connected", s);
	expect_offloaded(s);
	peer_send(far(), 0, here, 7006, 10, 1);
	take(s, 2000, 0);
	SAY_RESULT(disconnect_udp_socket(s));
	say_local_address("dissolved", s);
	expect_offloaded(s);
	peer_send(far(), 0, here, 7006, 10, 2);
	take(s, 2000, 0);
	SAY_RESULT(connect_to_ipv4_address(s, there_too, port));
	peer_send(far(), 0, here, 7006, 10, 3);
	wait_until_sent_packets_arrived(30);
	take(s, 0, 0);
	SAY_RESULT(connect_to_ipv4_address(s, there, port));
	peer_send(far(), 0, here, 7006, 10, 4);
	take(s, 2000, 0);
}

CASE(connect_refuses, "connect: what is refused, and with what errno")
{
	struct sockaddr_in address = ipv4_sockaddr_of(there, 7100);
	int s = udp_socket();

	SAY_RESULT(connect(s, (struct sockaddr *)&address, 8));
	SAY_RESULT(connect(s, (struct sockaddr *)&address, 1));
	SAY_RESULT(connect(s, (struct sockaddr *)&address, 4096));
	SAY_RESULT(connect(s, bad_pointer(), sizeof(address)));
	address.sin_family = AF_INET6;
	SAY_RESULT(connect(s, (struct sockaddr *)&address, sizeof(address)));
	SAY_RESULT(connect_to_ipv4_address(s, "10.9.0.255", 7100));
	SAY_RESULT(connect_to_ipv4_address(s, "192.0.2.1", 7100));
	say_peer_address("not connected", s);
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_BROADCAST, 1));
	SAY_RESULT(connect_to_ipv4_address(s, "10.9.0.255", 7100));
	say_peer_address("to broadcast", s);
	SAY_RESULT(connect_to_ipv4_address(s, "0.0.0.0", 7100));
	say_peer_address("to 0.0.0.0", s);
	close(s);
	SAY_RESULT(connect(s, (struct sockaddr *)&address, sizeof(address)));
}

CASE(connect_filters, "a connected socket gets its peer's datagrams only, and keeps what came before")
{
	int s = udp_socket_bound_to(here, 7007), port = peer_ask_to_open_socket(far(), 0, there, 0);

	register_port_name(port, "peer");
	register_port_name(peer_ask_to_open_socket(far(), 1, there, 0), "other");
	register_port_name(peer_ask_to_open_socket(far(), 2, there_too, port), "peer");
	expect_offloaded(s);
	peer_send(far(), 1, here, 7007, 10, 1);
	wait_until_readable(s, 2000);
	SAY_RESULT(connect_to_ipv4_address(s, there, port));
	peer_send(far(), 1, here, 7007, 10, 2);
	peer_send(far(), 2, here, 7007, 10, 3);
	peer_send(far(), 0, here, 7007, 10, 4);
	take(s, 2000, 0);
	take(s, 2000, 0);
	wait_until_sent_packets_arrived(30);
	receive_all_until_empty(s);
}

CASE(names_with_bad_arguments, "getsockname and getpeername with short, negative and bad arguments")
{
	struct sockaddr_in address = ipv4_sockaddr_of(there, 7100);
	int s = udp_socket_connected_to(there, 7100), half;
	char bytes[128];
	socklen_t len;

	expect_offloaded(s);
	for (half = 0; half <= 32; half += 4) {
		memset(bytes, 'x', sizeof(bytes));
		len = (socklen_t)half;
		SAY_RESULT(getpeername(s, (struct sockaddr *)bytes, &len));
		say("length %d became %u, family %s, next byte %s", half, (unsigned)len,
		    memcmp(bytes, &address.sin_family, 2) == 0 ? "there" : "not there",
		    bytes[half] == 'x' ? "untouched" : "changed");
	}
	len = (socklen_t)-1;
	SAY_RESULT(getsockname(s, (struct sockaddr *)bytes, &len));
	len = sizeof(bytes);
	SAY_RESULT(getsockname(s, bad_pointer(), &len));
	SAY_RESULT(getpeername(s, bad_pointer(), &len));
	/* A sanitizer's runtime reads the length itself. */
	if (getenv("PARITY_SLOW") == NULL)
		SAY_RESULT(getsockname(s, (struct sockaddr *)bytes, bad_pointer()));
	SAY_RESULT(getsockname(STDOUT_FILENO, (struct sockaddr *)bytes, &len));
}

CASE(calls_of_streams, "listen, accept and shutdown on UDP sockets")
{
	struct sockaddr_in address;
	socklen_t len = sizeof(address);
	int s = udp_socket_bound_to(here, 7008);

	SAY_RESULT(listen(s, 5));
	SAY_RESULT(accept(s, NULL, NULL));
	SAY_RESULT(accept4(s, (struct sockaddr *)&address, &len, SOCK_NONBLOCK));
	SAY_RESULT(shutdown(s, SHUT_WR));
	SAY_RESULT(shutdown(s, 17));
	expect_offloaded(s);
}

CASE(other_sockets, "sockets that are not UDP over IPv4 are the OS's")
{
	int pair[2], s;

	s = socket(AF_INET, SOCK_STREAM, 0);
	SAY_RESULT(bind_to_ip(s, here, 7009));
	SAY_RESULT(listen(s, 5));
	say_local_address("tcp", s);
	SAY_RESULT(close(s));
	SAY_RESULT(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
	SAY_RESULT(send(pair[0], "hello", 5, 0));
	take(pair[1], 0, 0);
	SAY_RESULT(socketpair(AF_INET, SOCK_DGRAM, 0, pair));
	SAY_RESULT(pipe(pair));
	SAY_RESULT(write(pair[1], "hello", 5));
	SAY_RESULT(pipe2(pair, 0x40000000));
	SAY_RESULT(socket(AF_INET, SOCK_DGRAM, IPPROTO_TCP));
	SAY_RESULT(socket(AF_INET, SOCK_DGRAM | 0x100000, 0));
	SAY_RESULT(socket(AF_INET, 99, 0));
	SAY_RESULT(socket(9999, SOCK_DGRAM, 0));
	SAY_OK_OR_ERROR(s = socket(AF_INET, SOCK_DGRAM, IPPROTO_UDP));
	SAY_RESULT(bind_to_ip(s, here, 7010));
	expect_offloaded(s);
	SAY_OK_OR_ERROR(s = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
	SAY_RESULT(bind_to_ip(s, here, 7011));
	take(s, 0, 0);
	expect_offloaded(s);
}

CASE(closed_socket, "every call on a closed socket is EBADF, on something else ENOTSOCK")
{
	int s = udp_socket_bound_to(here, 7012), none;
	char byte = 0;
	socklen_t len = sizeof(none);

	expect_offloaded(s);
	SAY_RESULT(close(s));
	SAY_RESULT(close(s));
	SAY_RESULT(send(s, &byte, 1, 0));
	SAY_RESULT(recv(s, &byte, 1, 0));
	SAY_RESULT(read(s, &byte, 1));
	SAY_RESULT(write(s, &byte, 1));
	SAY_RESULT(connect_to_ipv4_address(s, there, 7100));
	SAY_RESULT(shutdown(s, SHUT_RD));
	SAY_RESULT(getsockopt(s, SOL_SOCKET, SO_ERROR, &none, &len));
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_BROADCAST, 1));
	SAY_RESULT(send(STDOUT_FILENO, &byte, 1, 0));
	SAY_RESULT(recv(STDOUT_FILENO, &byte, 1, 0));
	SAY_RESULT(getsockopt(STDOUT_FILENO, SOL_SOCKET, SO_ERROR, &none, &len));
	SAY_RESULT(shutdown(STDOUT_FILENO, SHUT_RD));
	SAY_RESULT(close(-1));
	SAY_RESULT(close(99999));
}

CASE(bind_address_outlives_the_port, "a port that connect(AF_UNSPEC) gives up is chosen anew, and the address stays")
{
	const struct sockaddr unspec = {.sa_family = AF_UNSPEC};
	int port = peer_ask_to_open_socket(far(), 0, there, 0), s = udp_socket_bound_to(here, 0);
	struct sockaddr_in to = ipv4_sockaddr_of(there, port);

	SAY_RESULT(connect(s, (struct sockaddr *)&to, sizeof(to)));
	SAY_RESULT(connect(s, &unspec, sizeof(unspec)));
	say_local_address("without a port", s);
	SAY_RESULT(sendto(s, "x", 1, 0, (struct sockaddr *)&to, sizeof(to)));
	register_port_name_of_fd(s, "anew");
	say_local_address("after a send", s);
	say_peer_received(far(), 0, 1000);
}
