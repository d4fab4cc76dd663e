/* tcp_connect: making connections: blocking or not, refused, unreachable, again, bound before, names. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "parity.h"

static int far_peer_listens(void)
{
	int port = atoi(peer(far(), "listen 0 %s 0", there));

	register_port_name(port, "its");
	return port;
}

static int tcp_connect_try_connect(int fd, const char *ip, int port)
{
	struct sockaddr_in address = ipv4_sockaddr_of(ip, port);

	return connect(fd, (struct sockaddr *)&address, sizeof(address));
}

CASE(tcp_connect_says_its_names,
     "connect: bytes go both ways around the kernel, names are right, a second connect is refused")
{
	int port = far_peer_listens(), s;

	kernel_segments_wait_idle_and_start_count();
	s = tcp_socket_connected_to(there, port);
	register_port_name_of_fd(s, "mine");
	say("accepted: %s", *peer(far(), "accept 0 1 2000") != 'n' ? "yes" : "nobody");
	say_local_address("name", s);
	say_peer_address("peer", s);
	wait_and_print_poll_events("fresh", s, POLLOUT, 1000);
	send_pattern_and_print_result(s, 100, 1, 0);
	say_far_peer_reads(1, 100, 1, 1);
	far_peer_writes(1, 200, 2, 1);
	recv_and_print_result(s, 200, MSG_WAITALL);
	SAY_RESULT(tcp_connect_try_connect(s, there, port));
	say_so_error(s);
	check_kernel_segments_were_bypassed();
	SAY_OK_OR_ERROR(close(s));
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(tcp_connect_refused, "a port that nobody listens on: ECONNREFUSED, and the socket can be used again")
{
	int port = far_peer_listens(), s = tcp_socket();

	SAY_RESULT(tcp_connect_try_connect(s, there, 9));
	say_so_error(s);
	wait_and_print_poll_events("refused", s, POLLHUP, 100);
	SAY_RESULT(tcp_connect_try_connect(s, there, 9));
	SAY_RESULT(tcp_connect_try_connect(s, there, port));
	expect_offloaded(s);
	peer(far(), "accept 0 1 2000");
	send_pattern_and_print_result(s, 10, 3, 0);
	say_far_peer_reads(1, 10, 3, 1);
	close(s);
}

CASE(tcp_connect_nonblocking, "connect without waiting: EINPROGRESS, writable when it is there, EISCONN then")
{
	int port = far_peer_listens(), s = tcp_socket();

	SAY_RESULT(fcntl(s, F_SETFL, O_NONBLOCK));
	SAY_RESULT(tcp_connect_try_connect(s, there, port));
	wait_and_print_poll_events("connected", s, POLLOUT, 1000);
	say_so_error(s);
	expect_offloaded(s);
	SAY_RESULT(tcp_connect_try_connect(s, there, port));
	SAY_RESULT(tcp_connect_try_connect(s, there, port));
	peer(far(), "accept 0 1 2000");
	send_pattern_and_print_result(s, 10, 3, 0);
	say_far_peer_reads(1, 10, 3, 1);
	recv_and_print_result(s, 10, 0);
	close(s);
}

CASE(tcp_connect_nonblocking_refused, "refused without waiting: told by poll and SO_ERROR, once")
{
	int s = tcp_socket();

	SAY_RESULT(fcntl(s, F_SETFL, O_NONBLOCK));
	SAY_RESULT(tcp_connect_try_connect(s, there, 9));
	wait_and_print_poll_events("refused", s, POLLERR | POLLHUP, 1000);
	say_so_error(s);
	say_so_error(s);
	SAY_RESULT(tcp_connect_try_connect(s, there, 9));
	wait_and_print_poll_events("refused", s, POLLERR | POLLHUP, 1000);
	SAY_RESULT(tcp_connect_try_connect(s, there, 9));
	/* By now. A call right after connect may come before the answer. */
	wait_and_print_poll_events("refused", s, POLLERR | POLLHUP, 1000);
	send_pattern_and_print_result(s, 1, 1, MSG_NOSIGNAL);
	recv_and_print_result(s, 1, 0);
	close(s);
}

CASE(tcp_connect_before_reading, "calls on a socket that is not connected")
{
	int s = tcp_socket();

	wait_and_print_poll_events("new", s, POLLHUP, 100);
	recv_and_print_result(s, 10, 0);
	send_pattern_and_print_result(s, 10, 1, MSG_NOSIGNAL);
	SAY_RESULT(shutdown(s, SHUT_WR));
	SAY_RESULT(shutdown(s, 7));
	say_peer_address("peer", s);
	say_local_address("name", s);
	SAY_RESULT(accept(s, NULL, NULL));
	close(s);
}

CASE(tcp_connect_bad, "addresses that connect refuses")
{
	int s = tcp_socket();
	struct sockaddr_in address = ipv4_sockaddr_of(there, 80);

	SAY_RESULT(connect(s, bad_pointer(), sizeof(address)));
	SAY_RESULT(connect(s, (struct sockaddr *)&address, 4));
	address.sin_family = AF_INET6;
	SAY_RESULT(connect(s, (struct sockaddr *)&address, sizeof(address)));
	SAY_RESULT(tcp_connect_try_connect(s, "224.0.0.5", 80));
	SAY_RESULT(tcp_connect_try_connect(s, "10.9.0.255", 80));
	SAY_RESULT(tcp_connect_try_connect(s, "203.0.113.5", 80));
	close(s);
}

CASE(tcp_connect_from_bound, "a socket that was bound first connects from there; its port serves other peers as well")
{
	int port = far_peer_listens(), s = tcp_socket_bound_to(here, 0), again;

	register_port_name_of_fd(s, "mine");
	SAY_RESULT(tcp_connect_try_connect(s, there, port));
	expect_offloaded(s);
	say("the peer saw %s",
	    atoi(strchr(peer(far(), "accept 0 1 2000"), ' ') + 1) == port_of(s) ? "my port" : "another");
	say_local_address("name", s);
	again = tcp_socket();
	set_int(again, SOL_SOCKET, SO_REUSEADDR, 1);
	{
		struct sockaddr_in address = ipv4_sockaddr_of(here, port_of(s));

		SAY_RESULT(bind(again, (struct sockaddr *)&address, sizeof(address)));
		SAY_RESULT(tcp_connect_try_connect(again, there, port));
	}
	close(again);
	close(s);
}

CASE(tcp_connect_unreachable, "a neighbour that does not answer: EHOSTUNREACH")
{
	int s = tcp_socket();

	SAY_RESULT(tcp_connect_try_connect(s, "10.9.0.77", 80));
	say_so_error(s);
	close(s);
}

CASE(tcp_connect_timeout, "SO_SNDTIMEO bounds connect; afterwards it goes on by itself")
{
	int s = tcp_socket();
	struct timeval limit = {.tv_usec = 300000};
	uint64_t since;

	peer_run_shell_command(far(), "ip addr add 10.9.0.44/32 dev lo && ip route add blackhole 10.9.0.45/32; true");
	run_shell_command_here(
	        "ip neigh replace 10.9.0.99 lladdr 02:00:00:00:00:99 dev $PARITY_IF_FIRST nud permanent");
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)));
	since = now_ms();
	SAY_RESULT(tcp_connect_try_connect(s, "10.9.0.99", 80));
	say_took_about("gave up", since, 300);
	SAY_RESULT(tcp_connect_try_connect(s, "10.9.0.99", 80));
	wait_and_print_poll_events("on its way", s, POLLHUP, 50);
	close(s);
}

CASE(tcp_connect_again_after_unspec, "AF_UNSPEC ends a connection; the socket connects anew")
{
	int port = far_peer_listens(), s = tcp_socket_connected_to(there, port);
	struct sockaddr unspec = {.sa_family = AF_UNSPEC};

	peer(far(), "accept 0 1 2000");
	SAY_RESULT(connect(s, &unspec, sizeof(unspec)));
	say_peer_address("peer", s);
	say("the peer: %s", peer(far(), "read 1 1 0 1"));
	SAY_RESULT(tcp_connect_try_connect(s, there, port));
	expect_offloaded(s);
	peer(far(), "accept 0 1 2000");
	send_pattern_and_print_result(s, 10, 3, 0);
	say_far_peer_reads(1, 10, 3, 1);
	close(s);
}

CASE(tcp_connect_local, "an address of this host is the kernel's: it connects, and bytes arrive")
{
	int listener = tcp_listener("127.0.0.1", 0, 5), s = tcp_socket(), other;

	SAY_RESULT(tcp_connect_try_connect(s, "127.0.0.1", port_of(listener)));
	expect_os_any(s);
	other = accept(listener, NULL, NULL);
	SAY_OK_OR_ERROR(other);
	send_pattern_and_print_result(s, 10, 3, 0);
	recv_and_print_result(other, 10, MSG_WAITALL);
	close(s);
	close(other);
	close(listener);
	s = tcp_socket();
	SAY_RESULT(tcp_connect_try_connect(s, "127.0.0.1", 9));
	SAY_RESULT(tcp_connect_try_connect(s, here, 9));
	close(s);
}

CASE(tcp_connect_own_address, "from this host to its own address, where an offloaded listener is")
{
	int listener = tcp_listener(here, 0, 5), s = tcp_socket(), other;

	SAY_RESULT(tcp_connect_try_connect(s, here, port_of(listener)));
	other = accept(listener, NULL, NULL);
	SAY_OK_OR_ERROR(other);
	send_pattern_and_print_result(s, 1000, 3, 0);
	recv_and_print_result(other, 1000, MSG_WAITALL);
	send_pattern_and_print_result(other, 10, 4, 0);
	recv_and_print_result(s, 10, MSG_WAITALL);
	close(s);
	recv_and_print_result(other, 10, 0);
	close(other);
	close(listener);
}

static void *thread_connect_to_absent_host(void *arg)
{
	int s = *(int *)arg;

	SAY_RESULT(tcp_connect_try_connect(s, "10.9.0.99", 80));
	return NULL;
}

CASE(tcp_connect_closed_meanwhile, "shutdown in another thread ends a connect that waits")
{
	int s = tcp_socket(), rc;
	pthread_t thread;

	run_shell_command_here(
	        "ip neigh replace 10.9.0.99 lladdr 02:00:00:00:00:99 dev $PARITY_IF_FIRST nud permanent");
	pthread_create(&thread, NULL, thread_connect_to_absent_host, &s);
	pause_ms(200);
	rc = shutdown(s, SHUT_RDWR);
	pthread_join(thread, NULL);
	say("shutdown: %d", rc);
	close(s);
}

/* What the first call after the shutdown is told, and what the next ones are. */
static void shut_while_connecting(int how, int first)
{
	int s = tcp_socket(), set = epoll_create1(0), port, queued;
	struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};

	say("shutdown %d", how);
	fcntl(s, F_SETFL, O_NONBLOCK);
	SAY_RESULT(tcp_connect_try_connect(s, "10.9.0.99", 80));
	epoll_ctl(set, EPOLL_CTL_ADD, s, &event);
	SAY_RESULT(epoll_wait(set, &event, 1, 0));
	SAY_RESULT(shutdown(s, how));
	SAY_RESULT(epoll_wait(set, &event, 1, 100));
	say("events %#x", event.events);
	wait_and_print_poll_events("shut", s, POLLHUP, 10);
	say_peer_address("peer", s);
	if (first == 0)
		say_so_error(s);
	else if (first == 1)
		recv_and_print_result(s, 10, 0);
	else
		send_pattern_and_print_result(s, 10, 1, MSG_NOSIGNAL);
	wait_and_print_poll_events("told", s, POLLHUP, 10);
	say_so_error(s);
	recv_and_print_result(s, 10, 0);
	send_pattern_and_print_result(s, 10, 1, MSG_NOSIGNAL);
	SAY_RESULT(ioctl(s, FIONREAD, &queued));
	fcntl(s, F_SETFL, 0);
	port = atoi(peer(far(), "listen 0 %s 0", there));
	register_port_name(port, "listener");
	SAY_RESULT(tcp_connect_try_connect(s, there, port));
	peer(far(), "accept 0 1 1000");
	send_pattern_and_print_result(s, 10, 1, 0);
	say_far_peer_reads(1, 10, 1, 1);
	far_peer_writes(1, 10, 1, 1);
	recv_and_print_result(s, 10, 0);
	close(set);
	close(s);
}

CASE(tcp_connect_shut, "shutdown while a connect is on its way: given up, told once, and the socket connects anew")
{
	run_shell_command_here(
	        "ip neigh replace 10.9.0.99 lladdr 02:00:00:00:00:99 dev $PARITY_IF_FIRST nud permanent");
	for (int how = SHUT_RD; how <= SHUT_RDWR; how++)
		shut_while_connecting(how, how);
}
