/* stream - short forms of everyday TCP calls for cases. */
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parity.h"

int tcp_socket(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0)
		die_with_message("socket");
	return fd;
}

int tcp_socket_bound_to(const char *ip, int port)
{
	struct sockaddr_in address = ipv4_sockaddr_of(ip, port);
	int fd = tcp_socket();

	set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		die_with_message("bind to %s:%d", ip, port);
	return fd;
}

int tcp_listener(const char *ip, int port, int backlog)
{
	int fd = tcp_socket_bound_to(ip, port);

	if (listen(fd, backlog) != 0)
		die_with_message("listen");
	if (port == 0)
		register_port_name_of_fd(fd, "listener");
	return fd;
}

int tcp_socket_connected_to(const char *ip, int port)
{
	struct sockaddr_in address = ipv4_sockaddr_of(ip, port);
	int fd = tcp_socket();

	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		die_with_message("connect to %s:%d", ip, port);
	expect_offloaded(fd);
	return fd;
}

int tcp_connected_to_far_peer(void)
{
	int port = atoi(peer(far(), "listen 0 %s 0", there)), fd;

	register_port_name(port, "its");
	fd = tcp_socket_connected_to(there, port);
	register_port_name_of_fd(fd, "mine");
	peer(far(), "accept 0 1 2000");
	return fd;
}

int tcp_accepted_from_far_peer(int *listener)
{
	int at = tcp_listener(here, 0, 16), fd;

	expect_offloaded(at);
	register_port_name(atoi(peer(far(), "dial 1 %s %d", here, port_of(at))), "its");
	fd = accept(at, NULL, NULL);
	if (fd < 0)
		die_with_message("accept");
	expect_offloaded(fd);
	if (listener != NULL)
		*listener = at;
	else
		close(at);
	return fd;
}

void far_peer_writes(int slot, int len, int seed, int count)
{
	peer(far(), "write %d %d %d %d", slot, len, seed, count);
}

void say_far_peer_reads(int slot, int len, int seed, int count)
{
	say("the peer: %s", peer(far(), "read %d %d %d %d", slot, len, seed, count));
}

void far_peer_shuts_down(int slot, int how)
{
	peer(far(), "shut %d %d", slot, how);
}

void say_far_peer_state(int slot)
{
	say("the peer: %s", peer(far(), "state %d", slot));
}

ssize_t recv_and_print_result(int fd, size_t len, int flags)
{
	static char bytes[1 << 20];
	ssize_t got = recv(fd, bytes, len < sizeof(bytes) ? len : sizeof(bytes), flags);

	if (got < 0)
		say("read: %s", error_name(errno));
	else if (got == 0)
		say("read: the end");
	else
		say("read: %zd bytes, seed %d", got, seed_of_payload(bytes, (size_t)got));
	return got;
}

ssize_t send_pattern_and_print_result(int fd, size_t len, int seed, int flags)
{
	static char bytes[1 << 20];
	ssize_t sent;

	if (len > sizeof(bytes))
		die_with_message("too much to write");
	fill(bytes, len, seed);
	sent = send(fd, bytes, len, flags);
	if (sent < 0)
		say("write: %s", error_name(errno));
	else
		say("write: %zd bytes", sent);
	return sent;
}

void wait_and_print_poll_events(const char *what, int fd, short wanted, int wait_ms)
{
	static const struct {
		short bit;
		const char *name;
	} names[] = {{POLLIN, " IN"},         {POLLPRI, " PRI"},  {POLLOUT, " OUT"},       {POLLRDHUP, " RDHUP"},
	             {POLLHUP, " HUP"},       {POLLERR, " ERR"},  {POLLRDNORM, " RDNORM"}, {POLLWRNORM, " WRNORM"},
	             {POLLRDBAND, " RDBAND"}, {POLLNVAL, " NVAL"}};
	struct pollfd p = {.fd = fd, .events = wanted};
	char text[128] = "";
	uint64_t end = now_ms() + (uint64_t)wait_ms;

	do {
		poll(&p, 1, 10);
	} while (!(p.revents & wanted) && now_ms() < end);
	p.events = POLLIN | POLLPRI | POLLOUT | POLLRDHUP | POLLRDNORM | POLLWRNORM | POLLRDBAND;
	poll(&p, 1, 0);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (p.revents & names[i].bit)
			strcat(text, names[i].name);
	say("%s:%s", what, text);
}

void say_so_error(int fd)
{
	int error = -1;
	socklen_t len = sizeof(error);

	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
		say("SO_ERROR: %s", error_name(errno));
	else
		say("SO_ERROR = %s", error_name(error));
}
