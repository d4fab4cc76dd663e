/* Errors that come from outside: refused ports, unreachable hosts, the error queue; and shutdown. */
#include <time.h>

#include <linux/errqueue.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

#include "parity.h"

static void print_poll_events_of_fd(const char *what, int s, int wait_ms)
{
	struct pollfd p = {.fd = s, .events = POLLIN | POLLOUT | POLLPRI};
	int n = poll(&p, 1, wait_ms);

	say("%s: poll %d events %x", what, n, (unsigned)p.revents);
}

static void print_so_error(int s)
{
	int error = -1;
	socklen_t len = sizeof(error);

	if (getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
		say("SO_ERROR: %s", error_name(errno));
	else
		say("SO_ERROR: %s", error_name(error));
}

static void wait_for_error(int s)
{
	struct pollfd p = {.fd = s, .events = 0};

	poll(&p, 1, 2000);
}

static void say_message_of_error_queue(int s)
{
	char buf[256], control[512];
	struct sockaddr_in to;
	struct iovec iov = {.iov_base = buf, .iov_len = sizeof(buf)};
	struct msghdr msg = {.msg_name = &to,
	                     .msg_namelen = sizeof(to),
	                     .msg_iov = &iov,
	                     .msg_iovlen = 1,
	                     .msg_control = control,
	                     .msg_controllen = sizeof(control)};
	ssize_t len = recvmsg(s, &msg, MSG_ERRQUEUE);
	struct sock_extended_err *err;
	struct cmsghdr *c;

	if (len < 0) {
		say("error queue: %s", error_name(errno));
		return;
	}
	say("error queue: %zd bytes, seed %d, to %s, flags %x", len, seed_of_payload(buf, (size_t)len),
	    address_text(&to, msg.msg_namelen), (unsigned)msg.msg_flags);
	c = CMSG_FIRSTHDR(&msg);
	if (c == NULL || c->cmsg_type != IP_RECVERR) {
		say("  without IP_RECVERR");
		return;
	}
	err = (struct sock_extended_err *)CMSG_DATA(c);
	say("  %s origin %u type %u code %u info %u, from %s", error_name((int)err->ee_errno), err->ee_origin,
	    err->ee_type, err->ee_code, err->ee_info, address_text(SO_EE_OFFENDER(err), sizeof(to)));
}

CASE(refused_recv, "a connected socket learns from recv that its peer's port is closed, once for each")
{
	int s = udp_socket_connected_to(there, 7099);
	char byte;

	expect_offloaded(s);
	SAY_RESULT(send(s, "x", 1, 0));
	SAY_RESULT(recv(s, &byte, 1, 0));
	SAY_RESULT(recv(s, &byte, 1, MSG_DONTWAIT));
	SAY_RESULT(send(s, "x", 1, 0));
	wait_for_error(s);
	SAY_RESULT(recv(s, &byte, 1, MSG_DONTWAIT));
	print_poll_events_of_fd("afterwards", s, 0);
	expect_offloaded(s);
}

CASE(refused_send, "a connected socket learns from its next send that the port is closed")
{
	int s = udp_socket_connected_to(there, 7099);

	expect_offloaded(s);
	for (int i = 0; i < 3; i++) {
		SAY_RESULT(send(s, "x", 1, 0));
		wait_for_error(s);
		SAY_RESULT(send(s, "x", 1, 0));
	}
	register_port_name(peer_ask_to_open_socket(far(), 0, there, 7099), "peer");
	register_port_name_of_fd(s, "us");
	wait_until_sent_packets_arrived(20);
	print_so_error(s);
	SAY_RESULT(send(s, "y", 1, 0));
	say_peer_received(far(), 0, 2000);
	peer_send(far(), 0, here, port_of(s), 10, 3);
	take(s, 2000, 0);
}

CASE(refused_without_send, "a refusal is told although nothing but a short pause lies between the calls")
{
	int s = udp_socket_connected_to(there, 7099);
	char byte;

	expect_offloaded(s);
	SAY_RESULT(send(s, "x", 1, 0));
	pause_ms(100);
	SAY_RESULT(recv(s, &byte, 1, MSG_DONTWAIT));
	SAY_RESULT(send(s, "x", 1, 0));
	pause_ms(100);
	SAY_RESULT(send(s, "x", 1, 0));
}

CASE(refused_so_error, "SO_ERROR tells a refusal and forgets it")
{
	int s = udp_socket_connected_to(there, 7099);
	char byte;

	expect_offloaded(s);
	SAY_RESULT(send(s, "x", 1, 0));
	wait_for_error(s);
	print_poll_events_of_fd("refused", s, 0);
	print_so_error(s);
	print_so_error(s);
	print_poll_events_of_fd("told", s, 0);
	SAY_RESULT(recv(s, &byte, 1, MSG_DONTWAIT));
}

CASE(refused_wakes_waiters, "poll, select and epoll wake up when a port refuses")
{
	int s = udp_socket_connected_to(there, 7099), set = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN}, got = {0};
	struct timeval timeout = {.tv_sec = 2};
	fd_set readable;
	char byte;

	expect_offloaded(s);
	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
	SAY_RESULT(send(s, "x", 1, 0));
	SAY_RESULT(epoll_wait(set, &got, 1, 2000));
	say("events %x", got.events);
	SAY_RESULT(recv(s, &byte, 1, MSG_DONTWAIT));
	SAY_RESULT(epoll_wait(set, &got, 1, 0));
	SAY_RESULT(send(s, "x", 1, 0));
	FD_ZERO(&readable);
	FD_SET(s, &readable);
	SAY_RESULT(select(s + 1, &readable, NULL, NULL, &timeout));
	SAY_RESULT(recv(s, &byte, 1, MSG_DONTWAIT));
	SAY_RESULT(send(s, "x", 1, 0));
	print_poll_events_of_fd("refused", s, 2000);
}

CASE(refused_unconnected, "an unconnected socket does not hear of refusals, unless it asks by IP_RECVERR")
{
	int s = udp_socket_bound_to(here, 0);
	struct sockaddr_in to = ipv4_sockaddr_of(there, 7099);
	char bytes[32];

	fill(bytes, sizeof(bytes), 5);
	expect_offloaded(s);
	SAY_RESULT(sendto(s, bytes, 32, 0, (struct sockaddr *)&to, sizeof(to)));
	wait_until_sent_packets_arrived(50);
	take(s, 0, 0);
	SAY_RESULT(set_int(s, IPPROTO_IP, IP_RECVERR, 1));
	SAY_RESULT(sendto(s, bytes, 32, 0, (struct sockaddr *)&to, sizeof(to)));
	wait_for_error(s);
	print_poll_events_of_fd("refused", s, 0);
	take(s, 0, 0);
	say_message_of_error_queue(s);
	say_message_of_error_queue(s);
	print_poll_events_of_fd("read", s, 0);
}

CASE(refused_error_queue, "IP_RECVERR: refusals with their datagrams, in order; recv and MSG_ERRQUEUE")
{
	int s = udp_socket_connected_to(there, 7099);
	char bytes[100];

	SAY_RESULT(set_int(s, IPPROTO_IP, IP_RECVERR, 1));
	expect_offloaded(s);
	for (int i = 0; i < 2; i++) {
		fill(bytes, sizeof(bytes), i);
		SAY_RESULT(send(s, bytes, (size_t)(50 + i), 0));
		wait_until_sent_packets_arrived(50);
	}
	print_poll_events_of_fd("refused", s, 2000);
	say_message_of_error_queue(s);
	print_poll_events_of_fd("one read", s, 0);
	say_message_of_error_queue(s);
	say_message_of_error_queue(s);
	print_so_error(s);
	SAY_RESULT(send(s, bytes, 50, 0));
}

/* A send that is wrong in itself, while an error may wait: what the kernel says of it. */
static void say_wrong_sends(int s)
{
	static char many[70000];
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = {0};
	struct sockaddr_in to = ipv4_sockaddr_of(there, 7099), nowhere = ipv4_sockaddr_of("192.0.2.1", 7099);
	struct iovec iov = {.iov_base = many, .iov_len = 1};
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct mmsghdr row[2] = {{.msg_hdr = {.msg_iov = &iov, .msg_iovlen = 1}}, {.msg_hdr = msg}};

	SAY_RESULT(send(s, many, sizeof(many), 0));
	SAY_RESULT(send(s, many, 65508, 0));
	SAY_RESULT(send(s, many, 1, MSG_OOB));
	SAY_RESULT(send(s, many, sizeof(many), MSG_OOB));
	SAY_RESULT(send(s, many, sizeof(many), MSG_DONTWAIT | MSG_CONFIRM));
	SAY_RESULT(sendto(s, many, 1, 0, (struct sockaddr *)&to, 8));
	to.sin_port = 0;
	SAY_RESULT(sendto(s, many, 1, 0, (struct sockaddr *)&to, sizeof(to)));
	SAY_RESULT(sendto(s, many, 1, MSG_MORE, (struct sockaddr *)&to, sizeof(to)));
	to.sin_family = AF_INET6;
	SAY_RESULT(sendto(s, many, 1, 0, (struct sockaddr *)&to, sizeof(to)));
	to = ipv4_sockaddr_of("10.9.0.255", 7099);
	SAY_RESULT(sendto(s, many, 1, 0, (struct sockaddr *)&to, sizeof(to)));
	SAY_RESULT(sendto(s, many, 1, 0, (struct sockaddr *)&nowhere, sizeof(nowhere)));
	control.align = (struct cmsghdr){.cmsg_len = CMSG_LEN(1), .cmsg_level = IPPROTO_IP, .cmsg_type = IP_PKTINFO};
	SAY_RESULT(sendmsg(s, &msg, 0));
	control.align = (struct cmsghdr){.cmsg_len = 3, .cmsg_level = IPPROTO_IP, .cmsg_type = IP_TTL};
	SAY_RESULT(sendmsg(s, &msg, 0));
	SAY_RESULT(sendmmsg(s, row + 1, 1, 0));
	iov.iov_len = sizeof(many);
	SAY_RESULT(sendmmsg(s, row, 2, 0));
}

/* Sends to a closed port, and waits until the refusal is there. */
static void send_and_wait_for_connection_refused(int s)
{
	struct sockaddr_in to = ipv4_sockaddr_of(there, 7099);

	SAY_RESULT(sendto(s, "x", 1, 0, (struct sockaddr *)&to, sizeof(to)));
	wait_for_error(s);
}

CASE(refused_wrong_second_send, "the second send is wrong in itself: it says so, and the refusal of the first waits on")
{
	int s = udp_socket_connected_to(there, 7099);

	expect_offloaded(s);
	send_and_wait_for_connection_refused(s);
	say_wrong_sends(s);
	print_poll_events_of_fd("still there", s, 0);
	SAY_RESULT(send(s, "x", 1, 0));
	wait_for_error(s);
	SAY_RESULT(send(s, bad_pointer(), 1, 0));
	print_so_error(s);
}

CASE(refused_wrong_send, "a send that is wrong in itself leaves the refusal that waits, and says what is wrong")
{
	char byte;
	int s = udp_socket_connected_to(there, 7099);

	expect_offloaded(s);
	for (int i = 0; i < 4; i++) {
		send_and_wait_for_connection_refused(s);
		print_so_error(s);
	}
	send_and_wait_for_connection_refused(s);
	say_wrong_sends(s);
	SAY_RESULT(send(s, "x", 1, 0));
	send_and_wait_for_connection_refused(s);
	say_wrong_sends(s);
	SAY_RESULT(recv(s, &byte, 1, MSG_DONTWAIT));
	send_and_wait_for_connection_refused(s);
	SAY_RESULT(send(s, "x", 1, MSG_MORE));
	SAY_RESULT(send(s, "x", 1, MSG_MORE));
	SAY_RESULT(send(s, "x", 1, 0));
	wait_for_error(s);
	SAY_RESULT(send(s, "x", 1, MSG_CONFIRM));
	send_and_wait_for_connection_refused(s);
	SAY_RESULT(shutdown(s, SHUT_WR));
	SAY_RESULT(send(s, "x", 1, MSG_NOSIGNAL));
	SAY_RESULT(send(s, "x", 1, MSG_NOSIGNAL));
}

CASE(refused_wrong_unconnected, "the same of a socket that is not connected, and has IP_RECVERR")
{
	int s = udp_socket_bound_to(here, 0);

	SAY_RESULT(set_int(s, IPPROTO_IP, IP_RECVERR, 1));
	expect_offloaded(s);
	send_and_wait_for_connection_refused(s);
	say_wrong_sends(s);
	SAY_RESULT(send(s, "x", 1, 0));
	send_and_wait_for_connection_refused(s);
	send_and_wait_for_connection_refused(s);
	say_message_of_error_queue(s);
	say_message_of_error_queue(s);
	print_so_error(s);
}

CASE(unreachable_host, "a neighbour that does not answer: the datagrams go, and EHOSTUNREACH comes with IP_RECVERR")
{
	int s = udp_socket_connected_to("10.9.0.77", 7100);

	expect_offloaded(s);
	SAY_RESULT(set_int(s, IPPROTO_IP, IP_RECVERR, 1));
	SAY_RESULT(send(s, "x", 1, 0));
	wait_for_error(s);
	print_poll_events_of_fd("unreachable", s, 1000);
	take(s, 0, 0);
	say_message_of_error_queue(s);
}

CASE(shutdown_read, "shutdown(SHUT_RD): recv gives 0, poll says readable, datagrams still come")
{
	int s = udp_socket_connected_to(there, peer_ask_to_open_socket(far(), 0, there, 7098));
	char byte;

	register_port_name(7098, "peer");
	expect_offloaded(s);
	SAY_RESULT(shutdown(s, SHUT_RD));
	print_poll_events_of_fd("shut", s, 0);
	SAY_RESULT(recv(s, &byte, 1, 0));
	SAY_RESULT(recv(s, &byte, 1, MSG_DONTWAIT));
	peer_send(far(), 0, here, port_of(s), 10, 1);
	wait_until_sent_packets_arrived(50);
	take(s, 0, 0);
	SAY_RESULT(recv(s, &byte, 1, MSG_DONTWAIT));
	SAY_RESULT(send(s, "x", 1, 0));
	SAY_RESULT(shutdown(s, SHUT_WR));
	print_poll_events_of_fd("both shut", s, 0);
}

CASE(shutdown_write, "shutdown(SHUT_WR): send is EPIPE without SIGPIPE, poll and select as the kernel's")
{
	int s = udp_socket_connected_to(there, peer_ask_to_open_socket(far(), 0, there, 7098));
	struct timeval timeout = {.tv_usec = 50000};
	struct sockaddr_in to = ipv4_sockaddr_of(there, 7098);
	fd_set writable;

	register_port_name(7098, "peer");
	expect_offloaded(s);
	SAY_RESULT(shutdown(s, SHUT_WR));
	print_poll_events_of_fd("shut", s, 0);
	FD_ZERO(&writable);
	FD_SET(s, &writable);
	SAY_RESULT(select(s + 1, NULL, &writable, NULL, &timeout));
	SAY_RESULT(send(s, "x", 1, MSG_NOSIGNAL));
	SAY_RESULT(sendto(s, "x", 1, MSG_NOSIGNAL, (struct sockaddr *)&to, sizeof(to)));
	SAY_RESULT(send(s, "x", 1, 0));
	peer_send(far(), 0, here, port_of(s), 10, 1);
	take(s, 2000, 0);
	SAY_RESULT(shutdown(s, SHUT_RDWR));
	print_poll_events_of_fd("both shut", s, 0);
}
