/* tcp_listen: listeners and what they accept. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "parity.h"

static void tcp_listen_far_dials(int slot, int listener)
{
	name_port(atoi(peer(far(), "dial %d %s %d", slot, here, port_of(listener))), "its");
}

CASE(tcp_accept_names, "accept: names, flags, bytes both ways around the kernel")
{
	int l = tcp_listener(here, 0, 16), s;
	struct sockaddr_in from;
	socklen_t len = sizeof(from);

	expect_offloaded(l);
	segments_begin();
	say_state("nobody yet", l, POLLIN, 0);
	tcp_listen_far_dials(1, l);
	say_state("somebody", l, POLLIN, 1000);
	s = OKAY(accept(l, (struct sockaddr *)&from, &len));
	expect_offloaded(s);
	say("from %s (%u)", address_text(&from, len), len);
	say_name("name", s);
	say_peer("peer", s);
	say_state("nobody any more", l, POLLIN, 0);
	far_writes(1, 1000, 1, 1);
	say_read(s, 1000, MSG_WAITALL);
	say_write(s, 2000, 2, 0);
	far_reads(1, 2000, 2, 1);
	segments_end();
	close(s);
	close(l);
}

CASE(tcp_accept4_flags, "accept4: O_NONBLOCK and FD_CLOEXEC, and what it refuses")
{
	int l = tcp_listener(here, 0, 16), s;
	struct sockaddr_in from;
	socklen_t len = 3;

	RES(fcntl(l, F_SETFL, O_NONBLOCK));
	RES(accept(l, NULL, NULL));
	RES(accept4(l, NULL, NULL, 0x1234));
	tcp_listen_far_dials(1, l);
	say_state("somebody", l, POLLIN, 1000);
	s = OKAY(accept4(l, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC));
	say("length %u", len);
	say("flags %s%s", fcntl(s, F_GETFL) & O_NONBLOCK ? "nonblocking " : "",
	    fcntl(s, F_GETFD) & FD_CLOEXEC ? "cloexec" : "");
	say_read(s, 10, 0);
	close(s);
	tcp_listen_far_dials(2, l);
	say_state("somebody", l, POLLIN, 1000);
	s = OKAY(accept(l, NULL, NULL));
	say("flags %s%s", fcntl(s, F_GETFL) & O_NONBLOCK ? "nonblocking " : "",
	    fcntl(s, F_GETFD) & FD_CLOEXEC ? "cloexec" : "");
	tcp_listen_far_dials(3, l);
	say_state("somebody", l, POLLIN, 1000);
	RES(accept(l, bad_pointer(), &len));
	len = sizeof(from);
	close(s);
	close(l);
}

CASE(tcp_accept_any_address, "a listener on 0.0.0.0 accepts on every link and from this host")
{
	int l = tcp_listener("0.0.0.0", 0, 16), s, local;
	struct sockaddr_in address = address_of("127.0.0.1", port_of(l));

	expect_offloaded(l);
	tcp_listen_far_dials(1, l);
	s = OKAY(accept(l, NULL, NULL));
	expect_offloaded(s);
	say_name("name", s);
	close(s);
	peer(far(), "dial 2 %s %d", here_second, port_of(l));
	s = OKAY(accept(l, NULL, NULL));
	expect_offloaded(s);
	say_name("name", s);
	close(s);
	local = tcp_socket();
	RES(connect(local, (struct sockaddr *)&address, sizeof(address)));
	s = OKAY(accept(l, NULL, NULL));
	expect_os_any(s);
	say_name("name", s);
	say_write(local, 10, 5, 0);
	say_read(s, 10, MSG_WAITALL);
	close(s);
	close(local);
	close(l);
}

CASE(tcp_accept_many, "connections are accepted in the order in which they came; closed ones as well")
{
	int l = tcp_listener(here, 0, 16), s;
	char what[16];

	for (int i = 0; i < 5; i++) {
		peer(far(), "dial %d %s %d", 10 + i, here, port_of(l));
		far_writes(10 + i, 10, i, 1);
	}
	peer(far(), "close 12");
	let_arrive(50);
	for (int i = 0; i < 5; i++) {
		s = OKAY(accept(l, NULL, NULL));
		snprintf(what, sizeof(what), "number %d", i);
		say_state(what, s, POLLIN, 1000);
		say_read(s, 10, MSG_WAITALL);
		if (i == 2)
			say_read(s, 10, 0);
		close(s);
	}
	close(l);
}

CASE(tcp_accept_reset_before, "a connection that was reset before it is accepted")
{
	int l = tcp_listener(here, 0, 16), s;

	tcp_listen_far_dials(1, l);
	far_writes(1, 10, 1, 1);
	let_arrive(30);
	peer(far(), "reset 1");
	let_arrive(50);
	say_state("listener", l, POLLIN, 100);
	s = OKAY(accept(l, NULL, NULL));
	say_read(s, 10, 0);
	say_read(s, 10, 0);
	say_write(s, 10, 1, MSG_NOSIGNAL);
	close(s);
	close(l);
}

static void *accept_one(void *arg)
{
	int s = accept(*(int *)arg, NULL, NULL);

	if (s < 0)
		say("accept: %s", error_name(errno));
	else
		say("accept: ok");
	return NULL;
}

CASE(tcp_accept_ends_with_shutdown, "accept in another thread returns when its listener is shut down")
{
	int l = tcp_listener(here, 0, 16), rc;
	pthread_t thread;

	expect_offloaded(l);
	pthread_create(&thread, NULL, accept_one, &l);
	pause_ms(100);
	rc = shutdown(l, SHUT_RDWR);
	pthread_join(thread, NULL);
	say("shutdown: %d", rc);
	say_state("listener", l, POLLHUP, 100);
	RES(accept(l, NULL, NULL));
	RES(listen(l, 5));
	tcp_listen_far_dials(1, l);
	OKAY(accept(l, NULL, NULL));
	close(l);
}

CASE(tcp_accept_waits, "accept waits for a connection; SO_RCVTIMEO bounds it")
{
	int l = tcp_listener(here, 0, 16);
	struct timeval limit = {.tv_usec = 200000};
	uint64_t since = now_ms();

	expect_offloaded(l);
	peer(far(), "later 200 dial 1 %s %d", here, port_of(l));
	OKAY(accept(l, NULL, NULL));
	say_took_about("accepted", since, 200);
	setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	since = now_ms();
	RES(accept(l, NULL, NULL));
	say_took_about("gave up", since, 200);
	close(l);
}

static void tcp_listen_on_alarm(int sig)
{
	(void)sig;
}

CASE(tcp_accept_interrupted, "a signal interrupts accept, with SA_RESTART it goes on")
{
	int l = tcp_listener(here, 0, 16);
	struct sigaction action = {.sa_handler = tcp_listen_on_alarm};

	expect_offloaded(l);
	sigaction(SIGALRM, &action, NULL);
	ualarm(100000, 0);
	RES(accept(l, NULL, NULL));
	action.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &action, NULL);
	ualarm(100000, 0);
	peer(far(), "later 250 dial 1 %s %d", here, port_of(l));
	OKAY(accept(l, NULL, NULL));
	close(l);
}

CASE(tcp_listen_twice, "listen again changes the backlog; bind and connect of a listener")
{
	int l = tcp_listener(here, 0, 1), other = tcp_socket(), s;
	struct sockaddr_in address = address_of(here, port_of(l)), peer_at = address_of(there, 9);

	RES(listen(l, 10));
	RES(bind(other, (struct sockaddr *)&address, sizeof(address)));
	RES(bind(l, (struct sockaddr *)&address, sizeof(address)));
	RES(connect(l, (struct sockaddr *)&peer_at, sizeof(peer_at)));
	say_read(l, 10, 0);
	say_write(l, 10, 1, MSG_NOSIGNAL);
	tcp_listen_far_dials(1, l);
	s = OKAY(accept(l, NULL, NULL));
	RES(listen(s, 5));
	RES(listen(other, 5));
	close(s);
	close(other);
	close(l);
}

CASE(tcp_listen_closed, "a closed listener refuses; what it accepted before goes on; the port can be bound again")
{
	int l, s = tcp_in(&l), port = port_of(l);

	close(l);
	pause_ms(50);
	far_writes(1, 5000, 1, 1);
	say_read(s, 5000, MSG_WAITALL);
	say_write(s, 5000, 2, 0);
	far_reads(1, 5000, 2, 1);
	peer_run(far(), "! python3 -c 'import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), "
	                "2)' 10.9.0.1 1 2>/dev/null");
	l = tcp_at(here, port);
	RES(listen(l, 5));
	expect_offloaded(l);
	name_port(port, "listener");
	tcp_listen_far_dials(2, l);
	OKAY(accept(l, NULL, NULL));
	far_writes(1, 5000, 3, 1);
	say_read(s, 5000, MSG_WAITALL);
	close(s);
	close(l);
}

CASE(tcp_accept_unaccepted_closed, "connections that nobody accepted end with a reset when the listener is closed")
{
	int l = tcp_listener(here, 0, 16);

	tcp_listen_far_dials(1, l);
	let_arrive(30);
	close(l);
	far_reads(1, 1, 0, 1);
}

CASE(tcp_accept_inherits, "options of the listener are those of the connection")
{
	int l = tcp_listener(here, 0, 16), s, value = 0;
	socklen_t len = sizeof(value);

	RES(set_int(l, SOL_SOCKET, SO_KEEPALIVE, 1));
	RES(set_int(l, IPPROTO_TCP, 1 /* TCP_NODELAY */, 1));
	RES(set_int(l, IPPROTO_TCP, 4 /* TCP_KEEPIDLE */, 123));
	RES(set_int(l, SOL_SOCKET, SO_RCVBUF, 50000));
	tcp_listen_far_dials(1, l);
	s = OKAY(accept(l, NULL, NULL));
	RES(getsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &value, &len));
	say("keepalive %d", value);
	RES(getsockopt(s, IPPROTO_TCP, 1, &value, &len));
	say("nodelay %d", value);
	RES(getsockopt(s, IPPROTO_TCP, 4, &value, &len));
	say("keepidle %d", value);
	RES(getsockopt(s, SOL_SOCKET, SO_RCVBUF, &value, &len));
	say("rcvbuf %d", value);
	RES(getsockopt(l, SOL_SOCKET, SO_ACCEPTCONN, &value, &len));
	say("acceptconn %d", value);
	RES(getsockopt(s, SOL_SOCKET, SO_ACCEPTCONN, &value, &len));
	say("acceptconn %d", value);
	close(s);
	close(l);
}

CASE(tcp_accept_epoll, "a listener in an epoll set: level and edge")
{
	int l = tcp_listener(here, 0, 16), set = epoll_create1(0), n;
	struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = 42};

	expect_offloaded(l);
	RES(epoll_ctl(set, EPOLL_CTL_ADD, l, &event));
	RES(epoll_wait(set, &event, 1, 50));
	tcp_listen_far_dials(1, l);
	n = RES(epoll_wait(set, &event, 1, 1000));
	say("events %x data %lu", n > 0 ? event.events : 0, (unsigned long)event.data.u64);
	RES(epoll_wait(set, &event, 1, 50));
	tcp_listen_far_dials(2, l);
	RES(epoll_wait(set, &event, 1, 1000));
	OKAY(accept(l, NULL, NULL));
	RES(epoll_wait(set, &event, 1, 50));
	event.events = EPOLLIN;
	RES(epoll_ctl(set, EPOLL_CTL_MOD, l, &event));
	RES(epoll_wait(set, &event, 1, 50));
	OKAY(accept(l, NULL, NULL));
	RES(epoll_wait(set, &event, 1, 50));
	close(l);
	close(set);
}

static int accept_badly(int listener, int kind)
{
	struct sockaddr_in address;
	socklen_t len = kind == 0 ? (socklen_t)-1 : sizeof(address);

	switch (kind) {
	case 1:
		return accept(listener, bad_pointer(), &len);
	case 2:
		return accept(listener, (struct sockaddr *)&address, NULL);
	case 3:
		return accept(listener, (struct sockaddr *)&address, bad_pointer());
	default:
		return accept(listener, (struct sockaddr *)&address, &len);
	}
}

CASE(tcp_accept_untold, "accept that cannot say whom it has accepted: the peer sees an end, and its data is lost to it")
{
	int listener = tcp_listener(here, 0, 5);

	for (int kind = 0; kind < 5; kind++) {
		/* A sanitizer's runtime reads the length itself. */
		if (kind == 3 && getenv("PARITY_SLOW") != NULL)
			continue;
		tcp_listen_far_dials(1, listener);
		if (kind == 4)
			far_writes(1, 10, 1, 1);
		is_readable(listener, 1000);
		let_arrive(30);
		if (kind == 4)
			RES(accept(listener, bad_pointer(), NULL));
		else
			RES(accept_badly(listener, kind));
		let_arrive(50);
		far_state(1);
		say_state("after", listener, POLLIN, 50);
	}
	tcp_listen_far_dials(2, listener);
	OKAY(accept(listener, NULL, NULL));
	close(listener);
}

/* Which of the two gets a connection is a matter of its port. */
static void serve_both(int a, int b)
{
	enum { EACH = 8 };
	int got = 0;

	for (int i = 0; i < EACH; i++)
		peer(far(), "dial %d %s %d", 1 + i, here, port_of(a));
	for (int i = 0; i < EACH; i++) {
		struct pollfd fds[2] = {{.fd = a, .events = POLLIN}, {.fd = b, .events = POLLIN}};
		int s = -1;

		if (poll(fds, 2, 2000) > 0)
			s = accept(fds[0].revents != 0 ? a : b, NULL, NULL);
		if (s < 0)
			break;
		expect_offloaded(s);
		got++;
		close(s);
	}
	say("%d of %d connections have come", got, EACH);
}

static int reuseport_listener(int family, int port)
{
	const struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
	const struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	const int s = socket(family, SOCK_STREAM, 0);

	set_int(s, SOL_SOCKET, SO_REUSEPORT, 1);
	RES(family == AF_INET6 ? bind(s, (const struct sockaddr *)&any, sizeof(any))
	                       : bind(s, (const struct sockaddr *)&any4, sizeof(any4)));
	RES(listen(s, 16));
	if (port == 0)
		name_port_of(s, "listener");
	return s;
}

/* Nobody takes one of the two for a stranger's: a look at all sockets is made within this time. */
static void two_of_one_process(int family)
{
	int a = reuseport_listener(family, 0), b = reuseport_listener(AF_INET, port_of(a));

	expect_offloaded(a);
	expect_offloaded(b);
	serve_both(a, b);
	for (int i = 0; i < 30; i++) {
		pause_ms(100);
		expect_offloaded(a);
		expect_offloaded(b);
	}
	serve_both(a, b);
	close(a);
	serve_both(b, b);
	close(b);
}

CASE(tcp_accept_reuseport, "two listeners of one process with SO_REUSEPORT, and one that is left")
{
	two_of_one_process(AF_INET);
}

CASE(tcp_accept_reuseport_dual, "the same of one on :: and one on 0.0.0.0")
{
	if (is_mapped())
		say("they are AF_INET6 sockets");
	else
		two_of_one_process(AF_INET6);
}
