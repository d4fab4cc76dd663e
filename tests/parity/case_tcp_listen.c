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
	register_port_name(atoi(peer(far(), "dial %d %s %d", slot, here, port_of(listener))), "its");
}

CASE(tcp_accept_names, "accept: names, flags, bytes both ways around the kernel")
{
	int l = tcp_listener(here, 0, 16), s;
	struct sockaddr_in from;
	socklen_t len = sizeof(from);

	expect_offloaded(l);
	kernel_segments_wait_idle_and_start_count();
	wait_and_print_poll_events("nobody yet", l, POLLIN, 0);
	tcp_listen_far_dials(1, l);
	wait_and_print_poll_events("somebody", l, POLLIN, 1000);
	s = SAY_OK_OR_ERROR(accept(l, (struct sockaddr *)&from, &len));
	expect_offloaded(s);
	say("from %s (%u)", address_text(&from, len), len);
	say_local_address("name", s);
	say_peer_address("peer", s);
	wait_and_print_poll_events("nobody any more", l, POLLIN, 0);
	far_peer_writes(1, 1000, 1, 1);
	recv_and_print_result(s, 1000, MSG_WAITALL);
	send_pattern_and_print_result(s, 2000, 2, 0);
	say_far_peer_reads(1, 2000, 2, 1);
	check_kernel_segments_were_bypassed();
	close(s);
	close(l);
}

CASE(tcp_accept4_flags, "accept4: O_NONBLOCK and FD_CLOEXEC, and what it refuses")
{
	int l = tcp_listener(here, 0, 16), s;
	struct sockaddr_in from;
	socklen_t len = 3;

	SAY_RESULT(fcntl(l, F_SETFL, O_NONBLOCK));
	SAY_RESULT(accept(l, NULL, NULL));
	SAY_RESULT(accept4(l, NULL, NULL, 0x1234));
	tcp_listen_far_dials(1, l);
	wait_and_print_poll_events("somebody", l, POLLIN, 1000);
	s = SAY_OK_OR_ERROR(accept4(l, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC));
	say("length %u", len);
	say("flags %s%s", fcntl(s, F_GETFL) & O_NONBLOCK ? "nonblocking " : "",
	    fcntl(s, F_GETFD) & FD_CLOEXEC ? "cloexec" : "");
	recv_and_print_result(s, 10, 0);
	close(s);
	tcp_listen_far_dials(2, l);
	wait_and_print_poll_events("somebody", l, POLLIN, 1000);
	s = SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	say("flags %s%s", fcntl(s, F_GETFL) & O_NONBLOCK ? "nonblocking " : "",
	    fcntl(s, F_GETFD) & FD_CLOEXEC ? "cloexec" : "");
	tcp_listen_far_dials(3, l);
	wait_and_print_poll_events("somebody", l, POLLIN, 1000);
	SAY_RESULT(accept(l, bad_pointer(), &len));
	len = sizeof(from);
	close(s);
	close(l);
}

CASE(tcp_accept_any_address, "a listener on 0.0.0.0 accepts on every link and from this host")
{
	int l = tcp_listener("0.0.0.0", 0, 16), s, local;
	struct sockaddr_in address = ipv4_sockaddr_of("127.0.0.1", port_of(l));

	expect_offloaded(l);
	tcp_listen_far_dials(1, l);
	s = SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	expect_offloaded(s);
	say_local_address("name", s);
	close(s);
	peer(far(), "dial 2 %s %d", here_second, port_of(l));
	s = SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	expect_offloaded(s);
	say_local_address("name", s);
	close(s);
	local = tcp_socket();
	SAY_RESULT(connect(local, (struct sockaddr *)&address, sizeof(address)));
	s = SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	expect_os_any(s);
	say_local_address("name", s);
	send_pattern_and_print_result(local, 10, 5, 0);
	recv_and_print_result(s, 10, MSG_WAITALL);
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
		far_peer_writes(10 + i, 10, i, 1);
	}
	peer(far(), "close 12");
	wait_until_sent_packets_arrived(50);
	for (int i = 0; i < 5; i++) {
		s = SAY_OK_OR_ERROR(accept(l, NULL, NULL));
		snprintf(what, sizeof(what), "number %d", i);
		wait_and_print_poll_events(what, s, POLLIN, 1000);
		recv_and_print_result(s, 10, MSG_WAITALL);
		if (i == 2)
			recv_and_print_result(s, 10, 0);
		close(s);
	}
	close(l);
}

CASE(tcp_accept_reset_before, "a connection that was reset before it is accepted")
{
	int l = tcp_listener(here, 0, 16), s;

	tcp_listen_far_dials(1, l);
	far_peer_writes(1, 10, 1, 1);
	wait_until_sent_packets_arrived(30);
	peer(far(), "reset 1");
	wait_until_sent_packets_arrived(50);
	wait_and_print_poll_events("listener", l, POLLIN, 100);
	s = SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	recv_and_print_result(s, 10, 0);
	recv_and_print_result(s, 10, 0);
	send_pattern_and_print_result(s, 10, 1, MSG_NOSIGNAL);
	close(s);
	close(l);
}

static void *accept_connection_in_thread(void *arg)
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
	pthread_create(&thread, NULL, accept_connection_in_thread, &l);
	pause_ms(100);
	rc = shutdown(l, SHUT_RDWR);
	pthread_join(thread, NULL);
	say("shutdown: %d", rc);
	wait_and_print_poll_events("listener", l, POLLHUP, 100);
	SAY_RESULT(accept(l, NULL, NULL));
	SAY_RESULT(listen(l, 5));
	tcp_listen_far_dials(1, l);
	SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	close(l);
}

CASE(tcp_accept_waits, "accept waits for a connection; SO_RCVTIMEO bounds it")
{
	int l = tcp_listener(here, 0, 16);
	struct timeval limit = {.tv_usec = 200000};
	uint64_t since = now_ms();

	expect_offloaded(l);
	peer(far(), "later 200 dial 1 %s %d", here, port_of(l));
	SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	say_took_about("accepted", since, 200);
	setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	since = now_ms();
	SAY_RESULT(accept(l, NULL, NULL));
	say_took_about("gave up", since, 200);
	close(l);
}

static void on_alarm_do_nothing(int sig)
{
	(void)sig;
}

CASE(tcp_accept_interrupted, "a signal interrupts accept, with SA_RESTART it goes on")
{
	int l = tcp_listener(here, 0, 16);
	struct sigaction action = {.sa_handler = on_alarm_do_nothing};

	expect_offloaded(l);
	sigaction(SIGALRM, &action, NULL);
	ualarm(100000, 0);
	SAY_RESULT(accept(l, NULL, NULL));
	action.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &action, NULL);
	ualarm(100000, 0);
	peer(far(), "later 250 dial 1 %s %d", here, port_of(l));
	SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	close(l);
}

CASE(tcp_listen_twice, "listen again changes the backlog; bind and connect of a listener")
{
	int l = tcp_listener(here, 0, 1), other = tcp_socket(), s;
	struct sockaddr_in address = ipv4_sockaddr_of(here, port_of(l)), peer_at = ipv4_sockaddr_of(there, 9);

	SAY_RESULT(listen(l, 10));
	SAY_RESULT(bind(other, (struct sockaddr *)&address, sizeof(address)));
	SAY_RESULT(bind(l, (struct sockaddr *)&address, sizeof(address)));
	SAY_RESULT(connect(l, (struct sockaddr *)&peer_at, sizeof(peer_at)));
	recv_and_print_result(l, 10, 0);
	send_pattern_and_print_result(l, 10, 1, MSG_NOSIGNAL);
	tcp_listen_far_dials(1, l);
	s = SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	SAY_RESULT(listen(s, 5));
	SAY_RESULT(listen(other, 5));
	close(s);
	close(other);
	close(l);
}

CASE(tcp_listen_closed, "a closed listener refuses; what it accepted before goes on; the port can be bound again")
{
	int l, s = tcp_accepted_from_far_peer(&l), port = port_of(l);

	close(l);
	pause_ms(50);
	far_peer_writes(1, 5000, 1, 1);
	recv_and_print_result(s, 5000, MSG_WAITALL);
	send_pattern_and_print_result(s, 5000, 2, 0);
	say_far_peer_reads(1, 5000, 2, 1);
	peer_run_shell_command(
	        far(), "! python3 -c 'import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), "
	               "2)' 10.9.0.1 1 2>/dev/null");
	l = tcp_socket_bound_to(here, port);
	SAY_RESULT(listen(l, 5));
	expect_offloaded(l);
	register_port_name(port, "listener");
	tcp_listen_far_dials(2, l);
	SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	far_peer_writes(1, 5000, 3, 1);
	recv_and_print_result(s, 5000, MSG_WAITALL);
	close(s);
	close(l);
}

CASE(tcp_accept_unaccepted_closed, "connections that nobody accepted end with a reset when the listener is closed")
{
	int l = tcp_listener(here, 0, 16);

	tcp_listen_far_dials(1, l);
	wait_until_sent_packets_arrived(30);
	close(l);
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(tcp_accept_inherits, "options of the listener are those of the connection")
{
	int l = tcp_listener(here, 0, 16), s, value = 0;
	socklen_t len = sizeof(value);

	SAY_RESULT(set_int(l, SOL_SOCKET, SO_KEEPALIVE, 1));
	SAY_RESULT(set_int(l, IPPROTO_TCP, 1 /* TCP_NODELAY */, 1));
	SAY_RESULT(set_int(l, IPPROTO_TCP, 4 /* TCP_KEEPIDLE */, 123));
	SAY_RESULT(set_int(l, SOL_SOCKET, SO_RCVBUF, 50000));
	tcp_listen_far_dials(1, l);
	s = SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	SAY_RESULT(getsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &value, &len));
	say("keepalive %d", value);
	SAY_RESULT(getsockopt(s, IPPROTO_TCP, 1, &value, &len));
	say("nodelay %d", value);
	SAY_RESULT(getsockopt(s, IPPROTO_TCP, 4, &value, &len));
	say("keepidle %d", value);
	SAY_RESULT(getsockopt(s, SOL_SOCKET, SO_RCVBUF, &value, &len));
	say("rcvbuf %d", value);
	SAY_RESULT(getsockopt(l, SOL_SOCKET, SO_ACCEPTCONN, &value, &len));
	say("acceptconn %d", value);
	SAY_RESULT(getsockopt(s, SOL_SOCKET, SO_ACCEPTCONN, &value, &len));
	say("acceptconn %d", value);
	close(s);
	close(l);
}

CASE(tcp_accept_epoll, "a listener in an epoll set: level and edge")
{
	int l = tcp_listener(here, 0, 16), set = epoll_create1(0), n;
	struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = 42};

	expect_offloaded(l);
	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_ADD, l, &event));
	SAY_RESULT(epoll_wait(set, &event, 1, 50));
	tcp_listen_far_dials(1, l);
	n = SAY_RESULT(epoll_wait(set, &event, 1, 1000));
	say("events %x data %lu", n > 0 ? event.events : 0, (unsigned long)event.data.u64);
	SAY_RESULT(epoll_wait(set, &event, 1, 50));
	tcp_listen_far_dials(2, l);
	SAY_RESULT(epoll_wait(set, &event, 1, 1000));
	SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	SAY_RESULT(epoll_wait(set, &event, 1, 50));
	event.events = EPOLLIN;
	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_MOD, l, &event));
	SAY_RESULT(epoll_wait(set, &event, 1, 50));
	SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	SAY_RESULT(epoll_wait(set, &event, 1, 50));
	close(l);
	close(set);
}

static int accept_with_bad_arguments(int listener, int kind)
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
			far_peer_writes(1, 10, 1, 1);
		wait_until_readable(listener, 1000);
		wait_until_sent_packets_arrived(30);
		if (kind == 4)
			SAY_RESULT(accept(listener, bad_pointer(), NULL));
		else
			SAY_RESULT(accept_with_bad_arguments(listener, kind));
		wait_until_sent_packets_arrived(50);
		say_far_peer_state(1);
		wait_and_print_poll_events("after", listener, POLLIN, 50);
	}
	tcp_listen_far_dials(2, listener);
	SAY_OK_OR_ERROR(accept(listener, NULL, NULL));
	close(listener);
}

/* Which of the two gets a connection is a matter of its port. */
static void accept_far_conns_on_two_listeners(int a, int b)
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
	SAY_RESULT(family == AF_INET6 ? bind(s, (const struct sockaddr *)&any, sizeof(any))
	                              : bind(s, (const struct sockaddr *)&any4, sizeof(any4)));
	SAY_RESULT(listen(s, 16));
	if (port == 0)
		register_port_name_of_fd(s, "listener");
	return s;
}

/* Nobody takes one of the two for a stranger's: a look at all sockets is made within this time. */
static void say_two_reuseport_listeners_here(int family)
{
	int a = reuseport_listener(family, 0), b = reuseport_listener(AF_INET, port_of(a));

	expect_offloaded(a);
	expect_offloaded(b);
	accept_far_conns_on_two_listeners(a, b);
	for (int i = 0; i < 30; i++) {
		pause_ms(100);
		expect_offloaded(a);
		expect_offloaded(b);
	}
	accept_far_conns_on_two_listeners(a, b);
	close(a);
	accept_far_conns_on_two_listeners(b, b);
	close(b);
}

CASE(tcp_accept_reuseport, "two listeners of one process with SO_REUSEPORT, and one that is left")
{
	say_two_reuseport_listeners_here(AF_INET);
}

CASE(tcp_accept_reuseport_dual, "the same of one on :: and one on 0.0.0.0")
{
	if (ipv4_mapped_mode_is_on())
		say("they are AF_INET6 sockets");
	else
		say_two_reuseport_listeners_here(AF_INET6);
}
