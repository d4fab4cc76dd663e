/* bind, connect, getsockname, getpeername: which address a socket has, and what is refused. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parity.h"

static int bind_to_ip(int fd, const char *ip, int port)
{
	struct sockaddr_in address = address_of(ip, port);

	return bind(fd, (struct sockaddr *)&address, sizeof(address));
}

static int bind_connect_to(int fd, const char *ip, int port)
{
	struct sockaddr_in address = address_of(ip, port);

	return connect(fd, (struct sockaddr *)&address, sizeof(address));
}

static int bind_dissolve(int fd)
{
	struct sockaddr address = {.sa_family = AF_UNSPEC};

	return connect(fd, &address, sizeof(address));
}

CASE(bind_says_its_address, "a bound socket has its address, and no peer")
{
	int s = udp_socket();

	expect_os(s, VMA_SOCK_NEW);
	say_name("fresh", s);
	say_peer("fresh", s);
	RES(bind_to_ip(s, here, 0));
	say_name("bound", s);
	say_peer("bound", s);
	expect_offloaded(s);
	RES(bind_to_ip(s, here, 0));
	RES(close(s));
	s = udp_socket();
	RES(bind_to_ip(s, "0.0.0.0", 7001));
	say_name("to all", s);
	expect_offloaded(s);
	close(s);
}

CASE(bind_refuses, "bind: what is refused, and with what errno")
{
	int s = udp_socket(), other = udp_at(here, 7001);
	struct sockaddr_in address = address_of(here, 7002);

	RES(bind_to_ip(s, "10.99.0.1", 7002));
	RES(bind_to_ip(s, here, 7001));
	RES(bind_to_ip(s, "0.0.0.0", 7001));
	RES(bind(s, (struct sockaddr *)&address, sizeof(address) - 8));
	RES(bind(s, (struct sockaddr *)&address, 0));
	RES(bind(s, (struct sockaddr *)&address, 4096));
	RES(bind(s, bad_pointer(), sizeof(address)));
	address.sin_family = AF_INET6;
	RES(bind(s, (struct sockaddr *)&address, sizeof(address)));
	address.sin_family = AF_UNSPEC;
	RES(bind(s, (struct sockaddr *)&address, sizeof(address)));
	say_name("still unbound", s);
	RES(bind_to_ip(s, here_second, 7001));
	say_name("the same port on another address", s);
	expect_offloaded(s);
	expect_offloaded(other);
	RES(bind(-1, (struct sockaddr *)&address, sizeof(address)));
	RES(bind(STDOUT_FILENO, (struct sockaddr *)&address, sizeof(address)));
}

CASE(bind_unspecified_family, "bind with AF_UNSPEC works for 0.0.0.0 only")
{
	struct sockaddr_in address = address_of("0.0.0.0", 7003);
	int s = udp_socket();

	address.sin_family = AF_UNSPEC;
	RES(bind(s, (struct sockaddr *)&address, sizeof(address)));
	say_name("bound", s);
	expect_offloaded(s);
}

CASE(bind_again_after_close, "a port is free at once when its socket is closed; the next one gets its datagrams")
{
	peer_open(far(), 0, there, 7100);
	name_port(7100, "peer");
	for (int i = 0; i < 3; i++) {
		int s = udp_at(here, 7004);

		expect_offloaded(s);
		peer_send(far(), 0, here, 7004, 100, i);
		take(s, 2000, 0);
		RES(close(s));
	}
}

CASE(bind_before_data, "datagrams that come right after bind arrive, in order, whoever delivers them")
{
	int s;

	peer_open(far(), 0, there, 7100);
	name_port(7100, "peer");
	s = udp_at(here, 7005);
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

	peer_open(far(), 0, there, 7100);
	name_port(7100, "peer");
	RES(bind_connect_to(s, there, 7100));
	say_name("connected", s);
	say_peer("connected", s);
	expect_offloaded(s);
	RES(bind_dissolve(s));
	say_name("dissolved", s);
	say_peer("dissolved", s);
	RES(bind_connect_to(s, there_second, 7100));
	say_name("connected by the other interface", s);
	say_peer("connected by the other interface", s);
	expect_offloaded(s);
	RES(bind_connect_to(s, there, 7100));
	say_name("connected again without dissolving", s);
	say_peer("connected again without dissolving", s);
	RES(bind_connect_to(s, there, 0));
	say_peer("to port 0", s);
	close(s);
	s = udp_socket();
	RES(bind_connect_to(s, "127.0.0.1", 7100));
	say_name("to loopback", s);
	expect_os(s, VMA_SOCK_LOCAL);
}

CASE(connect_keeps_the_bound_port, "a bound socket that connects, dissolves and connects keeps port and address")
{
	int s = udp_at(here, 7006), port = peer_open(far(), 0, there, 0);

	name_port(port, "peer");
	RES(bind_connect_to(s, there, port));
	say_name("connected", s);
	expect_offloaded(s);
	peer_send(far(), 0, here, 7006, 10, 1);
	take(s, 2000, 0);
	RES(bind_dissolve(s));
	say_name("dissolved", s);
	expect_offloaded(s);
	peer_send(far(), 0, here, 7006, 10, 2);
	take(s, 2000, 0);
	RES(bind_connect_to(s, there_too, port));
	peer_send(far(), 0, here, 7006, 10, 3);
	let_arrive(30);
	take(s, 0, 0);
	RES(bind_connect_to(s, there, port));
	peer_send(far(), 0, here, 7006, 10, 4);
	take(s, 2000, 0);
}

CASE(connect_refuses, "connect: what is refused, and with what errno")
{
	struct sockaddr_in address = address_of(there, 7100);
	int s = udp_socket();

	RES(connect(s, (struct sockaddr *)&address, 8));
	RES(connect(s, (struct sockaddr *)&address, 1));
	RES(connect(s, (struct sockaddr *)&address, 4096));
	RES(connect(s, bad_pointer(), sizeof(address)));
	address.sin_family = AF_INET6;
	RES(connect(s, (struct sockaddr *)&address, sizeof(address)));
	RES(bind_connect_to(s, "10.9.0.255", 7100));
	RES(bind_connect_to(s, "192.0.2.1", 7100));
	say_peer("not connected", s);
	RES(set_int(s, SOL_SOCKET, SO_BROADCAST, 1));
	RES(bind_connect_to(s, "10.9.0.255", 7100));
	say_peer("to broadcast", s);
	RES(bind_connect_to(s, "0.0.0.0", 7100));
	say_peer("to 0.0.0.0", s);
	close(s);
	RES(connect(s, (struct sockaddr *)&address, sizeof(address)));
}

CASE(connect_filters, "a connected socket gets its peer's datagrams only, and keeps what came before")
{
	int s = udp_at(here, 7007), port = peer_open(far(), 0, there, 0);

	name_port(port, "peer");
	name_port(peer_open(far(), 1, there, 0), "other");
	name_port(peer_open(far(), 2, there_too, port), "peer");
	expect_offloaded(s);
	peer_send(far(), 1, here, 7007, 10, 1);
	is_readable(s, 2000);
	RES(bind_connect_to(s, there, port));
	peer_send(far(), 1, here, 7007, 10, 2);
	peer_send(far(), 2, here, 7007, 10, 3);
	peer_send(far(), 0, here, 7007, 10, 4);
	take(s, 2000, 0);
	take(s, 2000, 0);
	let_arrive(30);
	take_all(s);
}

CASE(names_with_bad_arguments, "getsockname and getpeername with short, negative and bad arguments")
{
	struct sockaddr_in address = address_of(there, 7100);
	int s = udp_to(there, 7100), half;
	char bytes[128];
	socklen_t len;

	expect_offloaded(s);
	for (half = 0; half <= 32; half += 4) {
		memset(bytes, 'x', sizeof(bytes));
		len = (socklen_t)half;
		RES(getpeername(s, (struct sockaddr *)bytes, &len));
		say("length %d became %u, family %s, next byte %s", half, (unsigned)len,
		    memcmp(bytes, &address.sin_family, 2) == 0 ? "there" : "not there",
		    bytes[half] == 'x' ? "untouched" : "changed");
	}
	len = (socklen_t)-1;
	RES(getsockname(s, (struct sockaddr *)bytes, &len));
	len = sizeof(bytes);
	RES(getsockname(s, bad_pointer(), &len));
	RES(getpeername(s, bad_pointer(), &len));
	/* A sanitizer's runtime reads the length itself. */
	if (getenv("PARITY_SLOW") == NULL)
		RES(getsockname(s, (struct sockaddr *)bytes, bad_pointer()));
	RES(getsockname(STDOUT_FILENO, (struct sockaddr *)bytes, &len));
}

CASE(calls_of_streams, "listen, accept and shutdown on UDP sockets")
{
	struct sockaddr_in address;
	socklen_t len = sizeof(address);
	int s = udp_at(here, 7008);

	RES(listen(s, 5));
	RES(accept(s, NULL, NULL));
	RES(accept4(s, (struct sockaddr *)&address, &len, SOCK_NONBLOCK));
	RES(shutdown(s, SHUT_WR));
	RES(shutdown(s, 17));
	expect_offloaded(s);
}

CASE(other_sockets, "sockets that are not UDP over IPv4 are the OS's")
{
	int pair[2], s;

	s = socket(AF_INET, SOCK_STREAM, 0);
	RES(bind_to_ip(s, here, 7009));
	RES(listen(s, 5));
	say_name("tcp", s);
	RES(close(s));
	RES(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
	RES(send(pair[0], "hello", 5, 0));
	take(pair[1], 0, 0);
	RES(socketpair(AF_INET, SOCK_DGRAM, 0, pair));
	RES(pipe(pair));
	RES(write(pair[1], "hello", 5));
	RES(pipe2(pair, 0x40000000));
	RES(socket(AF_INET, SOCK_DGRAM, IPPROTO_TCP));
	RES(socket(AF_INET, SOCK_DGRAM | 0x100000, 0));
	RES(socket(AF_INET, 99, 0));
	RES(socket(9999, SOCK_DGRAM, 0));
	OKAY(s = socket(AF_INET, SOCK_DGRAM, IPPROTO_UDP));
	RES(bind_to_ip(s, here, 7010));
	expect_offloaded(s);
	OKAY(s = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
	RES(bind_to_ip(s, here, 7011));
	take(s, 0, 0);
	expect_offloaded(s);
}

CASE(closed_socket, "every call on a closed socket is EBADF, on something else ENOTSOCK")
{
	int s = udp_at(here, 7012), none;
	char byte = 0;
	socklen_t len = sizeof(none);

	expect_offloaded(s);
	RES(close(s));
	RES(close(s));
	RES(send(s, &byte, 1, 0));
	RES(recv(s, &byte, 1, 0));
	RES(read(s, &byte, 1));
	RES(write(s, &byte, 1));
	RES(bind_connect_to(s, there, 7100));
	RES(shutdown(s, SHUT_RD));
	RES(getsockopt(s, SOL_SOCKET, SO_ERROR, &none, &len));
	RES(set_int(s, SOL_SOCKET, SO_BROADCAST, 1));
	RES(send(STDOUT_FILENO, &byte, 1, 0));
	RES(recv(STDOUT_FILENO, &byte, 1, 0));
	RES(getsockopt(STDOUT_FILENO, SOL_SOCKET, SO_ERROR, &none, &len));
	RES(shutdown(STDOUT_FILENO, SHUT_RD));
	RES(close(-1));
	RES(close(99999));
}

CASE(bind_address_outlives_the_port, "a port that connect(AF_UNSPEC) gives up is chosen anew, and the address stays")
{
	const struct sockaddr unspec = {.sa_family = AF_UNSPEC};
	int port = peer_open(far(), 0, there, 0), s = udp_at(here, 0);
	struct sockaddr_in to = address_of(there, port);

	RES(connect(s, (struct sockaddr *)&to, sizeof(to)));
	RES(connect(s, &unspec, sizeof(unspec)));
	say_name("without a port", s);
	RES(sendto(s, "x", 1, 0, (struct sockaddr *)&to, sizeof(to)));
	name_port_of(s, "anew");
	say_name("after a send", s);
	peer_take(far(), 0, 1000);
}
