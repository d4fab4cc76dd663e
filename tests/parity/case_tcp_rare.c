/* tcp_rare: answers in states that few programs come to: cut off, shut on both sides, with nothing to send. */
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include "parity.h"

CASE(tcp_rare_disconnect, "connect(AF_UNSPEC) cuts a connection off: the socket tells of it once, and connects again")
{
	const struct sockaddr unspec = {.sa_family = AF_UNSPEC};

	for (int kind = 0; kind < 5; kind++) {
		int s = tcp_connected_to_far_peer();

		if (kind >= 3) {
			far_peer_shuts_down(1, SHUT_WR);
			wait_until_readable(s, 2000); /* and acknowledged */
		}
		if (kind == 4)
			SAY_OK_OR_ERROR(shutdown(s, SHUT_WR));
		wait_until_sent_packets_arrived(30);
		SAY_RESULT(connect(s, &unspec, sizeof(unspec)));
		wait_and_print_poll_events("cut off", s, POLLERR, 50);
		if (kind == 0)
			say_so_error(s);
		else if (kind == 1)
			send_pattern_and_print_result(s, 10, 1, MSG_NOSIGNAL);
		else
			recv_and_print_result(s, 10, 0);
		say_so_error(s);
		recv_and_print_result(s, 10, 0);
		wait_until_sent_packets_arrived(10);
		say_far_peer_state(1);
		close(s);
	}
}

CASE(tcp_rare_data_for_nobody, "data for who has shut both sides resets the connection, and he is told")
{
	for (int kind = 0; kind < 3; kind++) {
		int s = tcp_connected_to_far_peer();

		if (kind == 0)
			SAY_OK_OR_ERROR(shutdown(s, SHUT_RDWR));
		else
			SAY_OK_OR_ERROR(shutdown(s, SHUT_WR));
		wait_until_sent_packets_arrived(30);
		if (kind == 2)
			SAY_OK_OR_ERROR(shutdown(s, SHUT_RD));
		far_peer_writes(1, 100, 1, 1);
		wait_until_sent_packets_arrived(50);
		wait_and_print_poll_events("after", s, POLLERR, 30);
		send_pattern_and_print_result(s, 0, 1, MSG_NOSIGNAL);
		recv_and_print_result(s, 100, MSG_DONTWAIT);
		say_so_error(s);
		say_far_peer_state(1);
		close(s);
	}
}

CASE(tcp_rare_urgent_unread, "an urgent byte that reading has not passed is unread data to close")
{
	for (int kind = 0; kind < 5; kind++) {
		int s = tcp_connected_to_far_peer();

		if (kind == 3)
			far_peer_writes(1, 10, 1, 1);
		peer(far(), "urgent 1 U");
		wait_until_sent_packets_arrived(50);
		if (kind == 1)
			recv_and_print_result(s, 10, MSG_OOB);
		else if (kind == 2)
			SAY_OK_OR_ERROR(shutdown(s, SHUT_RD));
		else if (kind == 3)
			recv_and_print_result(s, 100, 0);
		else if (kind == 4)
			recv_and_print_result(s, 100, MSG_DONTWAIT);
		close(s);
		wait_until_sent_packets_arrived(50);
		say_far_peer_state(1);
	}
}

CASE(tcp_rare_nothing_to_send, "a send of nothing fails where any other would")
{
	struct iovec none = {0};
	struct msghdr msg = {.msg_iov = &none, .msg_iovlen = 1};
	int s = tcp_connected_to_far_peer();

	send_pattern_and_print_result(s, 0, 1, 0);
	peer(far(), "reset 1");
	wait_until_sent_packets_arrived(50);
	send_pattern_and_print_result(s, 10, 1, MSG_NOSIGNAL);
	send_pattern_and_print_result(s, 0, 1, MSG_NOSIGNAL);
	SAY_RESULT(sendmsg(s, &msg, MSG_NOSIGNAL));
	msg.msg_iovlen = 0;
	SAY_RESULT(sendmsg(s, &msg, MSG_NOSIGNAL));
	close(s);
}

static void sendmsg_with_cmsg_and_print_result(int s, int level, int type, size_t len, uint32_t value)
{
	union {
		struct cmsghdr head;
		char bytes[64];
	} control = {.head = {.cmsg_level = level, .cmsg_type = type, .cmsg_len = len}};
	struct iovec piece = {"0123456789", 10};
	struct msghdr msg = {
	        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(4)};

	memcpy(CMSG_DATA(&control.head), &value, sizeof(value));
	say("level %d type %d length %zu value %u:", level, type, len, value);
	SAY_RESULT(sendmsg(s, &msg, MSG_NOSIGNAL));
}

CASE(tcp_rare_control, "control messages of a send: which are refused; none is sent")
{
	int s = tcp_connected_to_far_peer();

	sendmsg_with_cmsg_and_print_result(s, SOL_SOCKET, SO_TIMESTAMPING, CMSG_LEN(4), 0);
	sendmsg_with_cmsg_and_print_result(s, SOL_SOCKET, SO_TIMESTAMPING, CMSG_LEN(4), 1 << 20);
	sendmsg_with_cmsg_and_print_result(s, SOL_SOCKET, SO_TIMESTAMPING, CMSG_LEN(2), 0);
	sendmsg_with_cmsg_and_print_result(s, SOL_SOCKET, SO_MARK, CMSG_LEN(4), 7);
	sendmsg_with_cmsg_and_print_result(s, SOL_SOCKET, SO_MARK, CMSG_LEN(8), 7);
	sendmsg_with_cmsg_and_print_result(s, SOL_SOCKET, 50, CMSG_LEN(4), 7);
	sendmsg_with_cmsg_and_print_result(s, SOL_SOCKET, SO_TXTIME, CMSG_LEN(8), 7);
	sendmsg_with_cmsg_and_print_result(s, IPPROTO_IP, 8, CMSG_LEN(4), 7);
	sendmsg_with_cmsg_and_print_result(s, IPPROTO_IP, 8, 3, 7);
	sendmsg_with_cmsg_and_print_result(s, IPPROTO_IP, 8, 100, 7);
	say_far_peer_reads(1, 10, 1, 20);
	SAY_OK_OR_ERROR(shutdown(s, SHUT_WR));
	sendmsg_with_cmsg_and_print_result(s, SOL_SOCKET, 50, CMSG_LEN(4), 7);
	close(s);
}

CASE(tcp_rare_row, "recvmmsg tells an error before anything that has come")
{
	char bytes[3][10] = {{0}};
	struct iovec piece[3];
	struct mmsghdr row[3];
	int s = tcp_connected_to_far_peer();

	memset(row, 0, sizeof(row));
	for (int i = 0; i < 3; i++) {
		piece[i] = (struct iovec){bytes[i], sizeof(bytes[i])};
		row[i].msg_hdr = (struct msghdr){.msg_iov = &piece[i], .msg_iovlen = 1};
	}
	far_peer_writes(1, 30, 1, 1);
	wait_until_sent_packets_arrived(30);
	SAY_RESULT(recvmmsg(s, row, 3, MSG_DONTWAIT, NULL));
	SAY_RESULT(recvmmsg(s, row, 3, MSG_DONTWAIT, NULL));
	far_peer_writes(1, 15, 2, 1);
	peer(far(), "reset 1");
	wait_until_sent_packets_arrived(50);
	SAY_RESULT(recvmmsg(s, row, 3, MSG_DONTWAIT, NULL));
	SAY_RESULT(recvmmsg(s, row, 3, MSG_DONTWAIT, NULL));
	SAY_RESULT(recvmmsg(s, row, 3, MSG_DONTWAIT, NULL));
	say_so_error(s);
	close(s);
}

CASE(tcp_rare_row_fault, "recvmmsg: an error after the first is left to the next call")
{
	char bytes[10] = {0};
	struct iovec piece[2] = {{bytes, sizeof(bytes)}, {bad_pointer(), 10}};
	struct mmsghdr row[2];
	int s = tcp_connected_to_far_peer();

	memset(row, 0, sizeof(row));
	for (int i = 0; i < 2; i++)
		row[i].msg_hdr = (struct msghdr){.msg_iov = &piece[i], .msg_iovlen = 1};
	far_peer_writes(1, 30, 1, 1);
	wait_until_sent_packets_arrived(30);
	SAY_RESULT(recvmmsg(s, row, 2, MSG_DONTWAIT, NULL));
	wait_and_print_poll_events("left", s, POLLERR, 20);
	recv_and_print_result(s, 10, MSG_DONTWAIT);
	say_so_error(s);
	far_peer_writes(1, 30, 1, 1);
	wait_until_sent_packets_arrived(30);
	SAY_RESULT(recvmmsg(s, row, 2, MSG_DONTWAIT, NULL));
	SAY_RESULT(recvmmsg(s, row, 2, MSG_DONTWAIT, NULL));
	recv_and_print_result(s, 10, MSG_DONTWAIT);
	close(s);
}

CASE(tcp_rare_address, "connect: an address that is too long is refused before anything else")
{
	struct sockaddr_storage address[2] = {0};
	struct sockaddr_in to = ipv4_sockaddr_of(there, 9);
	int s = tcp_socket();

	memcpy(address, &to, sizeof(to));
	SAY_RESULT(connect(s, (struct sockaddr *)address, sizeof(address[0]) + 1));
	SAY_RESULT(connect(s, (struct sockaddr *)address, (socklen_t)-1));
	SAY_RESULT(connect(s, (struct sockaddr *)address, sizeof(address[0])));
	close(s);
	s = tcp_connected_to_far_peer();
	SAY_RESULT(connect(s, (struct sockaddr *)address, sizeof(address[0]) + 1));
	SAY_RESULT(connect(s, (struct sockaddr *)address, 1));
	close(s);
}

static void print_sockopt_address_family(int s, const char *what, int name, socklen_t len)
{
	struct sockaddr_storage value = {0};
	int rc = getsockopt(s, SOL_SOCKET, name, &value, &len);

	if (rc != 0)
		say("%s: %s", what, error_name(errno));
	else
		say("%s: %u bytes of family %d", what, (unsigned)len, value.ss_family);
}

CASE(tcp_rare_options, "SO_PEERNAME, and options that are taken before a connection only")
{
	int s = tcp_socket();

	print_sockopt_address_family(s, "of nobody", SO_PEERNAME, 16);
	close(s);
	s = tcp_connected_to_far_peer();
	print_sockopt_address_family(s, "the peer's name", SO_PEERNAME, 16);
	print_sockopt_address_family(s, "part of it", SO_PEERNAME, 2);
	print_sockopt_address_family(s, "more than it", SO_PEERNAME, 17);
	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_FASTOPEN, 5));
	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1));
	far_peer_writes(1, 10, 2, 1);
	recv_and_print_result(s, 10, MSG_WAITALL);
	peer(far(), "reset 1");
	wait_until_sent_packets_arrived(50);
	print_sockopt_address_family(s, "of one that has gone", SO_PEERNAME, 16);
	close(s);
}

CASE(tcp_rare_no_time, "a negative SO_RCVTIMEO or SO_SNDTIMEO: a call does not wait")
{
	const struct timeval before = {.tv_sec = -1}, unset = {0};
	struct timeval now = {.tv_sec = 5};
	socklen_t len = sizeof(now);
	int s = tcp_connected_to_far_peer(), udp = udp_socket_connected_to(there, 9);

	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &before, sizeof(before)));
	SAY_RESULT(getsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &now, &len));
	say("%ld.%06ld", (long)now.tv_sec, (long)now.tv_usec);
	recv_and_print_result(s, 10, 0);
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &unset, sizeof(unset)));
	peer(far(), "later 100 write 1 10 3 1");
	recv_and_print_result(s, 10, MSG_WAITALL);
	SAY_RESULT(setsockopt(udp, SOL_SOCKET, SO_RCVTIMEO, &before, sizeof(before)));
	recv_and_print_result(udp, 10, 0);
	close(udp);
	close(s);
}

CASE(tcp_rare_inq_at_mark, "FIONREAD right before an urgent byte is 0, whatever follows")
{
	int s = tcp_connected_to_far_peer(), waiting = -1;

	far_peer_writes(1, 10, 1, 1);
	peer(far(), "urgent 1 U");
	far_peer_writes(1, 20, 2, 1);
	wait_until_sent_packets_arrived(50);
	ioctl(s, FIONREAD, &waiting);
	say("before: %d", waiting);
	recv_and_print_result(s, 10, 0);
	ioctl(s, FIONREAD, &waiting);
	say("at the mark: %d", waiting);
	recv_and_print_result(s, 5, 0);
	ioctl(s, FIONREAD, &waiting);
	say("behind it: %d", waiting);
	close(s);
}

/* A thread that waits, and an option that is changed meanwhile. */
struct waiter {
	int fd;
	short events;
	uint64_t took_ms;
	bool by_epoll;
};

static void *thread_wait_for_event_and_time_it(void *arg)
{
	struct waiter *waiter = arg;
	struct pollfd p = {.fd = waiter->fd, .events = waiter->events};
	struct epoll_event event = {.events = (uint16_t)waiter->events | EPOLLET};
	int set = epoll_create1(0);
	uint64_t since = now_ms();

	if (waiter->by_epoll) {
		epoll_ctl(set, EPOLL_CTL_ADD, waiter->fd, &event);
		epoll_wait(set, &event, 1, 2000);
	} else {
		poll(&p, 1, 2000);
	}
	waiter->took_ms = now_ms() - since;
	close(set);
	return NULL;
}

static void say_wait_with_option_changed(const char *what, struct waiter waiter, int level, int name, int value)
{
	pthread_t thread;

	pthread_create(&thread, NULL, thread_wait_for_event_and_time_it, &waiter);
	pause_ms(200);
	SAY_RESULT(set_int(waiter.fd, level, name, value));
	pthread_join(thread, NULL);
	say("%s: %s", what, waiter.took_ms < 150 ? "did not wait" : waiter.took_ms < 1500 ? "woken" : "not woken");
}

CASE(tcp_rare_marks_moved, "who waits is woken when a low-water mark or a buffer is changed to what is enough")
{
	static char bytes[1 << 16];

	for (int by_epoll = 0; by_epoll < 2; by_epoll++) {
		int s = tcp_connected_to_far_peer();

		SAY_RESULT(set_int(s, SOL_SOCKET, SO_RCVLOWAT, 100));
		far_peer_writes(1, 50, 1, 1);
		wait_until_sent_packets_arrived(50);
		say_wait_with_option_changed("bytes", (struct waiter){.fd = s, .events = POLLIN, .by_epoll = by_epoll},
		                             SOL_SOCKET, SO_RCVLOWAT, 20);
		SAY_RESULT(fcntl(s, F_SETFL, O_NONBLOCK));
		for (int full = 0; full < 4; full++, pause_ms(100)) /* until what is under way has arrived as well */
			while (write(s, bytes, sizeof(bytes)) > 0)
				full = 0;
		say_wait_with_option_changed("room", (struct waiter){.fd = s, .events = POLLOUT, .by_epoll = by_epoll},
		                             SOL_SOCKET, SO_SNDBUFFORCE, 64 << 20);
		close(s);
	}
}
