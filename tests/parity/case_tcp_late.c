/*
 * tcp_late: options that are set when there is a connection. What only the kernel serves makes the connection the
 *           kernel's, in the middle of the conversation; what merely tunes does not.
 */
#include <linux/filter.h>
#include <linux/net_tstamp.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "parity.h"

#ifndef SCM_TIMESTAMPNS
#define SCM_TIMESTAMPNS SO_TIMESTAMPNS
#endif
#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif

static char bytes[200000];

static const char *timestamp_age_text(const struct timespec *stamp)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (stamp->tv_sec == 0 && stamp->tv_nsec == 0)
		return "none";
	return stamp->tv_sec <= now.tv_sec && stamp->tv_sec + 10 > now.tv_sec ? "a moment ago" : "odd";
}

static void print_cmsg(const struct cmsghdr *head)
{
	const void *data = CMSG_DATA(head);
	struct timespec stamp = {0};
	int number = 0;

	if (head->cmsg_level == IPPROTO_TCP && head->cmsg_type == TCP_CM_INQ) {
		memcpy(&number, data, head->cmsg_len < CMSG_LEN(4) ? head->cmsg_len - CMSG_LEN(0) : 4);
		say("  %zu: %d left", head->cmsg_len, number);
		return;
	}
	if (head->cmsg_level == SOL_SOCKET && head->cmsg_type != SO_TIMESTAMP) {
		memcpy(&stamp, data, sizeof(stamp));
	} else if (head->cmsg_level == SOL_SOCKET) {
		memcpy(&stamp, data, sizeof(stamp));
		stamp.tv_nsec *= 1000;
	}
	if (head->cmsg_level == SOL_SOCKET)
		say("  %zu: type %d, %s", head->cmsg_len, head->cmsg_type, timestamp_age_text(&stamp));
	else
		say("  %zu: level %d type %d", head->cmsg_len, head->cmsg_level, head->cmsg_type);
}

/* One message, and what comes with it, as far as there is room for it. */
static void recvmsg_and_print_cmsgs(int fd, size_t len, int flags, size_t room)
{
	_Alignas(8) char control[512];
	struct iovec iov = {.iov_base = bytes, .iov_len = len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
	ssize_t got;

	memset(control, 0, sizeof(control));
	wait_until_readable(fd, 2000);
	got = recvmsg(fd, &msg, flags);
	if (got < 0) {
		say("read: %s", error_name(errno));
		return;
	}
	say("read: %zd bytes, flags %x, control %zu", got, msg.msg_flags, msg.msg_controllen);
	for (struct cmsghdr *head = CMSG_FIRSTHDR(&msg); head != NULL; head = CMSG_NXTHDR(&msg, head))
		print_cmsg(head);
}

/* Both ways still, and the kernel's now. */
static void check_connection_works_on_kernel(int s)
{
	expect_kernel_socket_for_reason(s, VMA_SOCK_OPTION);
	far_peer_writes(1, 3000, 7, 1);
	recv_and_print_result(s, 3000, MSG_WAITALL);
	send_pattern_and_print_result(s, 2000, 8, 0);
	say_far_peer_reads(1, 2000, 8, 1);
}

static void peer_shuts_down_then_close(int s)
{
	far_peer_shuts_down(1, SHUT_WR);
	recv_and_print_result(s, 10, 0);
	SAY_RESULT(close(s));
	say_far_peer_reads(1, 1, 0, 1);
}

/* ---- served by the library ---- */

CASE(tcp_late_inq, "TCP_INQ on a connection: each message says how much is left, and the end counts")
{
	int s = tcp_connected_to_far_peer(), on = 77;
	socklen_t len = sizeof(on);

	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_INQ, 2));
	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_INQ, -1));
	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_INQ, 1));
	SAY_RESULT(getsockopt(s, IPPROTO_TCP, TCP_INQ, &on, &len));
	say("%d (%u)", on, len);
	far_peer_writes(1, 1000, 1, 1);
	wait_until_sent_packets_arrived(50);
	recvmsg_and_print_cmsgs(s, 300, 0, 512);
	recvmsg_and_print_cmsgs(s, 100, MSG_PEEK, 512);
	recvmsg_and_print_cmsgs(s, 100, 0, 24);
	recvmsg_and_print_cmsgs(s, 100, 0, 20);
	recvmsg_and_print_cmsgs(s, 100, 0, 18);
	recvmsg_and_print_cmsgs(s, 100, 0, 16);
	recvmsg_and_print_cmsgs(s, 100, 0, 15);
	recvmsg_and_print_cmsgs(s, 50, MSG_TRUNC, 512);
	recvmsg_and_print_cmsgs(s, 0, 0, 512);
	recvmsg_and_print_cmsgs(s, 10, 0, 0);
	recv_and_print_result(s, 10, 0);
	recvmsg_and_print_cmsgs(s, 1000, 0, 512);
	recvmsg_and_print_cmsgs(s, 10, MSG_DONTWAIT, 512);
	far_peer_writes(1, 10, 1, 1);
	far_peer_shuts_down(1, SHUT_WR);
	wait_until_sent_packets_arrived(50);
	recvmsg_and_print_cmsgs(s, 4, 0, 512);
	recvmsg_and_print_cmsgs(s, 10, 0, 512);
	recvmsg_and_print_cmsgs(s, 10, 0, 512);
	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_INQ, 0));
	recvmsg_and_print_cmsgs(s, 10, 0, 512);
	expect_offloaded(s);
	close(s);
}

CASE(tcp_late_inq_before, "TCP_INQ set before connect, and on a listener: its connections have it")
{
	int port = atoi(peer(far(), "listen 0 %s 0", there)), s = tcp_socket(), l;
	struct sockaddr_in address = ipv4_sockaddr_of(there, port);

	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_INQ, 1));
	recvmsg_and_print_cmsgs(s, 10, MSG_DONTWAIT, 512);
	SAY_RESULT(connect(s, (struct sockaddr *)&address, sizeof(address)));
	peer(far(), "accept 0 1 2000");
	expect_offloaded(s);
	far_peer_writes(1, 100, 1, 1);
	wait_until_sent_packets_arrived(50);
	recvmsg_and_print_cmsgs(s, 30, 0, 512);
	close(s);
	l = tcp_socket_bound_to(here, 0);
	SAY_RESULT(set_int(l, IPPROTO_TCP, TCP_INQ, 1));
	SAY_RESULT(listen(l, 5));
	expect_offloaded(l);
	peer(far(), "dial 2 %s %d", here, port_of(l));
	s = SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	far_peer_writes(2, 100, 1, 1);
	wait_until_sent_packets_arrived(50);
	recvmsg_and_print_cmsgs(s, 30, 0, 512);
	expect_offloaded(s);
	close(s);
	close(l);
}

CASE(tcp_late_tuning, "options that merely tune, or are taken away, leave a connection where it is")
{
	int s = tcp_connected_to_far_peer();
	uint64_t unlimited = ~0ULL;
	uint32_t unlimited_deferred = ~0U;

	SAY_RESULT(set_int(s, SOL_SOCKET, SO_PRIORITY, 3));
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_BUSY_POLL, 50));
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_PEEK_OFF, -1));
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_TIMESTAMP, 0));
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_TIMESTAMPING, 0));
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_MAX_PACING_RATE, &unlimited, sizeof(unlimited)));
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_MAX_PACING_RATE, &unlimited_deferred, sizeof(unlimited_deferred)));
	SAY_RESULT(set_int(s, IPPROTO_IP, IP_TOS, 0x10));
	SAY_RESULT(set_int(s, IPPROTO_IP, IP_MINTTL, 0));
	SAY_RESULT(set_int(s, IPPROTO_IP, IP_RECVERR, 0));
	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_SAVE_SYN, 1));
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_TIMESTAMP, bad_pointer(), 4));
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_TIMESTAMP, bytes, 2));
	far_peer_writes(1, 3000, 7, 1);
	recv_and_print_result(s, 3000, MSG_WAITALL);
	expect_offloaded(s);
	peer_shuts_down_then_close(s);
}

/* ---- the kernel's from then on ---- */

static void check_receive_timestamp_option(int s, int option)
{
	SAY_RESULT(set_int(s, SOL_SOCKET, option, 1));
	pause_ms(100); /* the kernel begins to stamp a moment later */
	far_peer_writes(1, 30, 1, 1);
	wait_until_sent_packets_arrived(50);
	recvmsg_and_print_cmsgs(s, 100, 0, 512);
	SAY_RESULT(set_int(s, SOL_SOCKET, option, 0));
}

CASE(tcp_late_timestamp, "SO_TIMESTAMP and SO_TIMESTAMPNS on a connection: what comes then has stamps")
{
	int s = tcp_connected_to_far_peer();

	send_pattern_and_print_result(s, 500, 1, 0);
	say_far_peer_reads(1, 500, 1, 1);
	expect_offloaded(s);
	check_receive_timestamp_option(s, SO_TIMESTAMP);
	check_receive_timestamp_option(s, SO_TIMESTAMPNS);
	check_connection_works_on_kernel(s);
	peer_shuts_down_then_close(s);
}

CASE(tcp_late_timestamp_queued, "SO_TIMESTAMP while bytes wait to be read, and others to be taken by the peer")
{
	static char sent[40000];
	int s = tcp_accepted_from_far_peer(NULL);

	SAY_RESULT(set_int(s, SOL_SOCKET, SO_SNDBUF, 300000));
	far_peer_writes(1, 40000, 1, 1);
	send_pattern_and_print_result(s, 60000, 2, 0);
	wait_until_sent_packets_arrived(50);
	recv_and_print_result(s, 1000, 0);
	expect_offloaded(s);
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_TIMESTAMP, 1));
	expect_kernel_socket_for_reason(s, VMA_SOCK_OPTION);
	SAY_RESULT(recv(s, bytes, 39000, MSG_WAITALL));
	fill(sent, sizeof(sent), 1);
	say("%s", memcmp(bytes, sent + 1000, 39000) == 0 ? "in order" : "others");
	say_far_peer_reads(1, 60000, 2, 1);
	peer_shuts_down_then_close(s);
}

CASE(tcp_late_timestamping,
     "SO_TIMESTAMPING on an accepted connection: stamps of what comes, and of what has been sent")
{
	int s = tcp_accepted_from_far_peer(NULL);

	send_pattern_and_print_result(s, 500, 1, 0);
	say_far_peer_reads(1, 500, 1, 1);
	expect_offloaded(s);
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_TIMESTAMPING, 1 << 30));
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_TIMESTAMPING,
	                   SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE |
	                           SOF_TIMESTAMPING_OPT_ID));
	expect_kernel_socket_for_reason(s, VMA_SOCK_OPTION);
	pause_ms(100);
	far_peer_writes(1, 30, 1, 1);
	wait_until_sent_packets_arrived(50);
	recvmsg_and_print_cmsgs(s, 100, 0, 512);
	send_pattern_and_print_result(s, 10, 2, 0);
	say_far_peer_reads(1, 10, 2, 1);
	wait_and_print_poll_events("sent", s, POLLIN, 500);
	recvmsg_and_print_cmsgs(s, 100, MSG_ERRQUEUE, 512);
	recvmsg_and_print_cmsgs(s, 100, MSG_ERRQUEUE, 512);
	check_connection_works_on_kernel(s);
	peer_shuts_down_then_close(s);
}

CASE(tcp_late_peek_off, "SO_PEEK_OFF on a connection: each peek goes on behind the last one")
{
	int s = tcp_connected_to_far_peer();

	far_peer_writes(1, 30, 1, 1);
	wait_until_sent_packets_arrived(50);
	expect_offloaded(s);
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_PEEK_OFF, 10));
	recv_and_print_result(s, 5, MSG_PEEK);
	recv_and_print_result(s, 100, MSG_PEEK);
	recv_and_print_result(s, 100, MSG_PEEK | MSG_DONTWAIT);
	recv_and_print_result(s, 100, 0);
	check_connection_works_on_kernel(s);
	peer_shuts_down_then_close(s);
}

CASE(tcp_late_filter, "SO_ATTACH_FILTER on a connection: what it drops comes again when it has gone")
{
	struct sock_filter none[] = {{.code = BPF_RET | BPF_K, .k = 0}};
	struct sock_fprog program = {.len = 1, .filter = none};
	int s = tcp_connected_to_far_peer();

	far_peer_writes(1, 30, 1, 1);
	recv_and_print_result(s, 30, MSG_WAITALL);
	expect_offloaded(s);
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)));
	far_peer_writes(1, 30, 2, 1);
	wait_until_sent_packets_arrived(100);
	recv_and_print_result(s, 30, MSG_DONTWAIT);
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_DETACH_FILTER, 0));
	recv_and_print_result(s, 30, MSG_WAITALL);
	check_connection_works_on_kernel(s);
	peer_shuts_down_then_close(s);
}

CASE(tcp_late_minttl, "IP_MINTTL on a connection: what comes from farther is not heard")
{
	int s = tcp_connected_to_far_peer();

	far_peer_writes(1, 30, 1, 1);
	recv_and_print_result(s, 30, MSG_WAITALL);
	expect_offloaded(s);
	SAY_RESULT(set_int(s, IPPROTO_IP, IP_MINTTL, 255));
	far_peer_writes(1, 30, 2, 1);
	wait_until_sent_packets_arrived(100);
	recv_and_print_result(s, 30, MSG_DONTWAIT);
	SAY_RESULT(set_int(s, IPPROTO_IP, IP_MINTTL, 64));
	recv_and_print_result(s, 30, MSG_WAITALL);
	check_connection_works_on_kernel(s);
	peer_shuts_down_then_close(s);
}

CASE(tcp_late_recverr, "IP_RECVERR on a connection")
{
	int s = tcp_connected_to_far_peer(), on = 0;
	socklen_t len = sizeof(on);

	expect_offloaded(s);
	SAY_RESULT(set_int(s, IPPROTO_IP, IP_RECVERR, 1));
	SAY_RESULT(getsockopt(s, IPPROTO_IP, IP_RECVERR, &on, &len));
	say("%d", on);
	check_connection_works_on_kernel(s);
	peer_shuts_down_then_close(s);
}

/* What is sent in 100 KB, at 200 KB a second. */
static void say_paced_send(int s)
{
	uint64_t since = now_ms();
	int queued = 1;

	SAY_RESULT(send(s, bytes, 100000, 0));
	while (queued > 0 && now_ms() - since < 5000 && ioctl(s, SIOCOUTQ, &queued) == 0)
		pause_ms(5);
	say("sent %s", now_ms() - since > 250 ? "slowly" : "at once");
}

CASE(tcp_late_pacing, "SO_MAX_PACING_RATE on a connection, and before: what is sent leaves no faster")
{
	const unsigned rate = 200000;
	int port, s = tcp_connected_to_far_peer();
	struct sockaddr_in address;

	SAY_RESULT(set_int(s, SOL_SOCKET, SO_SNDBUF, 200000));
	peer(far(), "later 0 read 1 50000 0 2 8000");
	expect_offloaded(s);
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate)));
	expect_kernel_socket_for_reason(s, VMA_SOCK_OPTION);
	say_paced_send(s);
	close(s);
	port = atoi(peer(far(), "listen 2 %s 0", there));
	address = ipv4_sockaddr_of(there, port);
	s = tcp_socket();
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate)));
	SAY_RESULT(connect(s, (struct sockaddr *)&address, sizeof(address)));
	expect_kernel_socket_for_reason(s, VMA_SOCK_OPTION);
	close(s);
}

CASE(tcp_late_port_range, "IP_LOCAL_PORT_RANGE: connect chooses a port within it")
{
	int port = atoi(peer(far(), "listen 0 %s 0", there)), s = tcp_socket();
	struct sockaddr_in address = ipv4_sockaddr_of(there, port);

	SAY_RESULT(set_int(s, IPPROTO_IP, IP_LOCAL_PORT_RANGE, (int)(40010U << 16 | 40000)));
	SAY_RESULT(connect(s, (struct sockaddr *)&address, sizeof(address)));
	say("%s", port_of(s) >= 40000 && port_of(s) <= 40010 ? "within" : "outside");
	expect_kernel_socket_for_reason(s, VMA_SOCK_OPTION);
	close(s);
}

/* ---- while others use it ---- */

static void *thread_read_1000_bytes(void *arg)
{
	int s = *(int *)arg;

	recv_and_print_result(s, 1000, MSG_WAITALL);
	return NULL;
}

CASE(tcp_late_while_read, "SO_TIMESTAMP set by one thread while another waits in recv")
{
	int s = tcp_connected_to_far_peer();
	pthread_t thread;

	expect_offloaded(s);
	pthread_create(&thread, NULL, thread_read_1000_bytes, &s);
	pause_ms(100);
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_TIMESTAMP, 1));
	far_peer_writes(1, 1000, 1, 1);
	pthread_join(thread, NULL);
	check_connection_works_on_kernel(s);
	peer_shuts_down_then_close(s);
}

CASE(tcp_late_in_epoll, "SO_TIMESTAMP of a connection that an epoll set watches: it goes on watching")
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = 5};
	int s = tcp_connected_to_far_peer(), ep = epoll_create1(0);

	SAY_RESULT(epoll_ctl(ep, EPOLL_CTL_ADD, s, &event));
	SAY_RESULT(epoll_wait(ep, &event, 1, 0));
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_TIMESTAMP, 1));
	SAY_RESULT(epoll_wait(ep, &event, 1, 0));
	far_peer_writes(1, 1000, 1, 1);
	SAY_RESULT(epoll_wait(ep, &event, 1, 2000));
	say("%x %llu", event.events, (unsigned long long)event.data.u64);
	recv_and_print_result(s, 1000, MSG_WAITALL);
	SAY_RESULT(epoll_wait(ep, &event, 1, 0));
	far_peer_shuts_down(1, SHUT_WR);
	SAY_RESULT(epoll_wait(ep, &event, 1, 2000));
	say("%x", event.events);
	close(ep);
	close(s);
}

CASE(tcp_late_unprivileged, "SO_PEEK_OFF of a connection of nobody's: it is handed over by vmad, and goes on")
{
	int s = tcp_connected_to_far_peer();

	expect_offloaded(s);
	SAY_RESULT(setuid(65534));
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_PEEK_OFF, 0));
	expect_kernel_socket_for_reason(s, VMA_SOCK_OPTION);
	far_peer_writes(1, 3000, 7, 1);
	recv_and_print_result(s, 3000, MSG_WAITALL);
	send_pattern_and_print_result(s, 2000, 8, 0);
	say_far_peer_reads(1, 2000, 8, 1);
	peer_shuts_down_then_close(s);
}

CASE(tcp_late_connecting, "SO_TIMESTAMP while a connection is being made: it is made all the same")
{
	int port = atoi(peer(far(), "listen 0 %s 0", there)), s = tcp_socket();
	struct sockaddr_in address = ipv4_sockaddr_of(there, port);

	peer_run_shell_command(far(), "ip route add blackhole 10.9.0.1/32");
	SAY_RESULT(ioctl(s, FIONBIO, &(int){1}));
	SAY_RESULT(connect(s, (struct sockaddr *)&address, sizeof(address)));
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_TIMESTAMP, 1));
	peer_run_shell_command(far(), "ip route del blackhole 10.9.0.1/32");
	wait_and_print_poll_events("connected", s, POLLOUT, 5000);
	say_so_error(s);
	peer(far(), "accept 0 1 2000");
	SAY_RESULT(ioctl(s, FIONBIO, &(int){0}));
	far_peer_writes(1, 30, 1, 1);
	recv_and_print_result(s, 30, MSG_WAITALL);
	close(s);
}
