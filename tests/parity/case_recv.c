/* recv: every way to receive a datagram, flags, shapes, bad pointers. */
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "parity.h"

static char bytes[70000];
static volatile int minus_one = -1; /* which the compiler would warn of */
static int port;                    /* of the socket that open_offloaded_udp_socket_and_peer made */

/* Bound and offloaded; the peer's socket 0 sends to it. */
static int open_offloaded_udp_socket_and_peer(void)
{
	int s = udp_socket_bound_to(here, 0);

	port = port_of(s);
	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	expect_offloaded(s);
	return s;
}

/* `count` datagrams of len bytes have arrived, seeds from `seed` on. */
static void peer_send_datagrams_and_wait_arrival(int s, int count, int len, int seed)
{
	peer(far(), "send 0 %s %d %d %d %d", here, port, len, seed, count);
	if (!wait_until_readable(s, 2000))
		say("nothing came");
	wait_until_sent_packets_arrived(20);
}

CASE(recv_every_way, "read, readv, recv, recvfrom, recvmsg and recvmmsg receive the same, around the kernel")
{
	int s = open_offloaded_udp_socket_and_peer();
	struct sockaddr_in from[3];
	socklen_t len = sizeof(from[0]);
	struct iovec iov = {.iov_base = bytes, .iov_len = sizeof(bytes)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_name = &from[0], .msg_namelen = sizeof(from[0])};
	struct mmsghdr many[3] = {{.msg_hdr = msg}, {.msg_hdr = msg}, {.msg_hdr = msg}};

	save_kernel_udp_counters();
	peer_send_datagrams_and_wait_arrival(s, 5, 100, 1);
	say("seed %d", (SAY_RESULT(read(s, bytes, sizeof(bytes))), seed_of_payload(bytes, 100)));
	say("seed %d", (SAY_RESULT(readv(s, &iov, 1)), seed_of_payload(bytes, 100)));
	say("seed %d", (SAY_RESULT(recv(s, bytes, sizeof(bytes), 0)), seed_of_payload(bytes, 100)));
	say("seed %d", (SAY_RESULT(recvfrom(s, bytes, sizeof(bytes), 0, (struct sockaddr *)from, &len)),
	                seed_of_payload(bytes, 100)));
	say("from %s", address_text(from, len));
	say("seed %d", (SAY_RESULT(recvmsg(s, &msg, 0)), seed_of_payload(bytes, 100)));
	say("from %s flags %d control %zu", address_text(from, msg.msg_namelen), msg.msg_flags, msg.msg_controllen);
	peer_send_datagrams_and_wait_arrival(s, 3, 50, 10);
	for (int i = 0; i < 3; i++)
		many[i].msg_hdr.msg_name = &from[i];
	SAY_RESULT(recvmmsg(s, many, 3, 0, NULL));
	for (int i = 0; i < 3; i++)
		say("%u bytes from %s flags %d", many[i].msg_len, address_text(&from[i], many[i].msg_hdr.msg_namelen),
		    many[i].msg_hdr.msg_flags);
	check_kernel_udp_was_bypassed(8, 0);
}

CASE(recv_peek, "MSG_PEEK leaves the datagram, with all of its data and its sender")
{
	int s = open_offloaded_udp_socket_and_peer();

	peer_send_datagrams_and_wait_arrival(s, 3, 1000, 1);
	for (int i = 0; i < 3; i++)
		take(s, 0, MSG_PEEK);
	receive_and_say_up_to(s, 0, MSG_PEEK, 10);
	receive_and_say_up_to(s, 0, MSG_PEEK | MSG_TRUNC, 10);
	take(s, 0, 0);
	take(s, 0, MSG_PEEK | MSG_WAITALL);
	receive_all_until_empty(s);
	take(s, 0, MSG_PEEK);
}

CASE(recv_truncated, "a short buffer takes the beginning; MSG_TRUNC tells the whole length")
{
	int s = open_offloaded_udp_socket_and_peer();

	peer_send_datagrams_and_wait_arrival(s, 6, 1000, 1);
	receive_and_say_up_to(s, 0, 0, 100);
	receive_and_say_up_to(s, 0, MSG_TRUNC, 100);
	receive_and_say_up_to(s, 0, MSG_TRUNC, 0);
	SAY_RESULT(recv(s, bytes, 10, 0));
	SAY_RESULT(recv(s, bytes, 10, MSG_TRUNC));
	SAY_RESULT(read(s, bytes, 10));
	take(s, 0, 0);
}

CASE(recv_empty, "an empty datagram is a datagram; reads of no bytes")
{
	int s = open_offloaded_udp_socket_and_peer(), waiting;

	peer_send_datagrams_and_wait_arrival(s, 1, 0, 1);
	SAY_RESULT(ioctl(s, FIONREAD, &waiting));
	say("FIONREAD %d, readable %d", waiting, wait_until_readable(s, 0));
	take(s, 0, MSG_PEEK);
	take(s, 0, 0);
	peer_send_datagrams_and_wait_arrival(s, 3, 70, 2);
	SAY_RESULT(ioctl(s, FIONREAD, &waiting));
	say("FIONREAD %d", waiting);
	SAY_RESULT(read(s, bytes, 0));
	SAY_RESULT(recv(s, bytes, 0, 0));
	receive_all_until_empty(s);
	SAY_RESULT(read(s, bytes, 0));
	SAY_RESULT(ioctl(s, FIONREAD, &waiting));
	say("FIONREAD %d", waiting);
	SAY_RESULT(ioctl(s, FIONREAD, bad_pointer()));
	SAY_RESULT(ioctl(s, TIOCOUTQ, &waiting));
	say("TIOCOUTQ %d", waiting);
	SAY_RESULT(ioctl(s, 0x1234, &waiting));
}

CASE(recv_flags, "flags of recv: those that UDP serves, ignores and refuses")
{
	int s = open_offloaded_udp_socket_and_peer();

	SAY_RESULT(recv(s, bytes, 10, MSG_DONTWAIT));
	SAY_RESULT(recv(s, bytes, 10, MSG_DONTWAIT | MSG_OOB));
	SAY_RESULT(recv(s, bytes, 10, MSG_ERRQUEUE));
	SAY_RESULT(recv(s, bytes, 10, MSG_DONTWAIT | MSG_WAITALL));
	peer_send_datagrams_and_wait_arrival(s, 4, 40, 1);
	SAY_RESULT(recv(s, bytes, 100, MSG_WAITALL));
	SAY_RESULT(recv(s, bytes, 100, MSG_OOB));
	SAY_RESULT(recv(s, bytes, 100, MSG_NOSIGNAL));
	SAY_RESULT(recv(s, bytes, 100, MSG_CMSG_CLOEXEC));
	receive_all_until_empty(s);
}

CASE(recv_names, "the sender's address with buffers of every length")
{
	int s = open_offloaded_udp_socket_and_peer();
	char name[64];
	socklen_t len;

	peer_send_datagrams_and_wait_arrival(s, 9, 10, 1);
	for (unsigned size = 0; size <= 32; size += 4) {
		memset(name, 'x', sizeof(name));
		len = size;
		SAY_RESULT(recvfrom(s, bytes, 100, 0, (struct sockaddr *)name, &len));
		say("%u became %u, next byte %s", size, (unsigned)len, name[size] == 'x' ? "untouched" : "changed");
	}
	peer_send_datagrams_and_wait_arrival(s, 3, 10, 1);
	SAY_RESULT(recvfrom(s, bytes, 100, 0, NULL, &len));
	SAY_RESULT(recvfrom(s, bytes, 100, 0, (struct sockaddr *)name, NULL));
	len = (socklen_t)-1;
	SAY_RESULT(recvfrom(s, bytes, 100, 0, (struct sockaddr *)name, &len));
	receive_all_until_empty(s);
}

CASE(recv_bad_pointers, "bad pointers are EFAULT, and what they cost is as with the kernel")
{
	int s = open_offloaded_udp_socket_and_peer();
	struct iovec iov = {.iov_base = bytes, .iov_len = 100};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	char name[64];
	socklen_t len = sizeof(name);

	SAY_RESULT(recv(s, bad_pointer(), 10, MSG_DONTWAIT));
	peer_send_datagrams_and_wait_arrival(s, 10, 50, 1);
	SAY_RESULT(recv(s, bad_pointer(), 100, 0));
	take(s, 0, MSG_PEEK);
	SAY_RESULT(recv(s, bad_pointer(), 100, MSG_PEEK));
	take(s, 0, MSG_PEEK);
	SAY_RESULT(recvfrom(s, bytes, 100, 0, bad_pointer(), &len));
	take(s, 0, MSG_PEEK);
	SAY_RESULT(recvfrom(s, bytes, 100, 0, (struct sockaddr *)name, bad_pointer()));
	take(s, 0, MSG_PEEK);
	SAY_RESULT(recvmsg(s, bad_pointer(), 0));
	take(s, 0, MSG_PEEK);
	msg.msg_iov = bad_pointer();
	SAY_RESULT(recvmsg(s, &msg, 0));
	take(s, 0, MSG_PEEK);
	msg.msg_iov = &iov;
	msg.msg_iovlen = 2000;
	SAY_RESULT(recvmsg(s, &msg, 0));
	receive_all_until_empty(s);
	expect_offloaded(s);
}

CASE(recv_iov_shapes, "a datagram over many buffers, null ones among them")
{
	int s = open_offloaded_udp_socket_and_peer();
	static struct iovec iov[1024];

	for (int i = 0; i < 1024; i++)
		iov[i] = (struct iovec){.iov_base = bytes + i, .iov_len = 1};
	peer_send_datagrams_and_wait_arrival(s, 4, 1200, 1);
	memset(bytes, 0, sizeof(bytes));
	say("seed %d", (SAY_RESULT(readv(s, iov, 1024)), seed_of_payload(bytes, 1024)));
	iov[0] = (struct iovec){.iov_base = NULL, .iov_len = 0};
	iov[1] = (struct iovec){.iov_base = bytes, .iov_len = 1000};
	iov[2] = (struct iovec){.iov_base = bad_pointer(), .iov_len = 0};
	iov[3] = (struct iovec){.iov_base = bytes + 1000, .iov_len = 10000};
	say("seed %d", (SAY_RESULT(readv(s, iov, 4)), seed_of_payload(bytes, 1200)));
	SAY_RESULT(readv(s, iov, 0));
	SAY_RESULT(readv(s, iov, minus_one));
	SAY_RESULT(preadv(s, iov, 4, 0));
	SAY_RESULT(readv(s, iov, 3));
	receive_all_until_empty(s);
}

CASE(recvmmsg_details, "recvmmsg: MSG_WAITFORONE, timeouts, errors in the middle, bad vectors")
{
	int s = open_offloaded_udp_socket_and_peer();
	struct iovec iov = {.iov_base = bytes, .iov_len = 100}, bad_iov = {.iov_base = bad_pointer(), .iov_len = 100};
	struct mmsghdr many[8];
	struct timespec timeout = {.tv_nsec = 50000000};
	uint64_t start;

	for (int i = 0; i < 8; i++)
		many[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &iov, .msg_iovlen = 1}};
	SAY_RESULT(recvmmsg(s, many, 8, MSG_DONTWAIT, NULL));
	peer_send_datagrams_and_wait_arrival(s, 3, 30, 1);
	SAY_RESULT(recvmmsg(s, many, 8, MSG_DONTWAIT, NULL));
	peer_send_datagrams_and_wait_arrival(s, 3, 30, 1);
	SAY_RESULT(recvmmsg(s, many, 8, MSG_WAITFORONE, NULL));
	peer_send_datagrams_and_wait_arrival(s, 3, 30, 1);
	SAY_RESULT(recvmmsg(s, many, 2, 0, &timeout));
	SAY_RESULT(recvmmsg(s, many, 0, 0, NULL));
	receive_all_until_empty(s);
	/* The kernel looks at the timeout after each datagram only: this one comes late. */
	peer_ask_to_send_after_ms(far(), 150, 0, here, port, 20, 5);
	start = now_ms();
	timeout = (struct timespec){.tv_nsec = 50000000};
	SAY_RESULT(recvmmsg(s, many, 8, 0, &timeout));
	say_took_about("it took", start, 150);
	say("%ld s %ld ns left", (long)timeout.tv_sec, timeout.tv_nsec);
	peer_send_datagrams_and_wait_arrival(s, 4, 30, 1);
	many[2].msg_hdr.msg_iov = &bad_iov;
	SAY_RESULT(recvmmsg(s, many, 4, 0, NULL));
	take(s, 0, 0);
	receive_all_until_empty(s);
	timeout.tv_nsec = -1;
	SAY_RESULT(recvmmsg(s, many, 4, 0, &timeout));
	SAY_RESULT(recvmmsg(s, bad_pointer(), 4, MSG_DONTWAIT, NULL));
	SAY_RESULT(recvmmsg(s, many, 4, MSG_DONTWAIT, bad_pointer()));
}

CASE(recv_blocks, "a blocking recv waits for its datagram, spinning or asleep")
{
	int s = open_offloaded_udp_socket_and_peer();
	static const int delays[] = {1, 20, 150};

	for (int i = 0; i < 3; i++) {
		uint64_t start = now_ms();

		peer_ask_to_send_after_ms(far(), delays[i], 0, here, port, 20, i);
		say("seed %d", (SAY_RESULT(recv(s, bytes, 100, 0)), seed_of_payload(bytes, 20)));
		say_took_about("waited", start, (unsigned)delays[i]);
	}
}

CASE(recv_order, "5,000 datagrams that wait in the socket are read in order")
{
	int s = open_offloaded_udp_socket_and_peer(), ordered = 0, got = 0;

	SAY_RESULT(set_int(s, SOL_SOCKET, SO_RCVBUFFORCE, 16000000));
	save_kernel_udp_counters();
	for (int round = 0; round < 10; round++) {
		peer(far(), "send 0 %s %d 64 %d 500", here, port, round * 500 % 64);
		for (int i = 0; i < 500 && wait_until_readable(s, 2000); i++, got++)
			ordered += recv(s, bytes, 100, 0) == 64 && seed_of_payload(bytes, 64) == (round * 500 + i) % 64;
	}
	say("%d came, %d of them in order", got, ordered);
	check_kernel_udp_was_bypassed(5000, 0);
}

CASE(recv_burst_of_the_default, "what the kernel's default buffer holds is not lost while nobody looks")
{
	int s = open_offloaded_udp_socket_and_peer(), got = 0;

	save_kernel_udp_counters();
	peer(far(), "send 0 %s %d 20 0 250", here, port);
	wait_until_sent_packets_arrived(20);
	while (wait_until_readable(s, 200) && recv(s, bytes, 100, MSG_DONTWAIT) == 20)
		got++;
	say("%d of 250", got);
	check_kernel_udp_was_bypassed(250, 0);
}

CASE(recv_behind_others, "what came last of much is there, whichever call is asked and whatever came for others before")
{
	int other = open_offloaded_udp_socket_and_peer(), other_port = port, s = open_offloaded_udp_socket_and_peer(),
	    set = epoll_create1(0);
	struct pollfd pfd = {.fd = s, .events = POLLIN};
	struct epoll_event event = {.events = EPOLLIN};
	fd_set readable;

	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
	for (int turn = 0; turn < 4; turn++) {
		peer(far(), "send 0 %s %d 20 0 60", here, other_port);
		peer(far(), "send 0 %s %d 20 7 1", here, port);
		wait_until_sent_packets_arrived(5);
		FD_ZERO(&readable);
		FD_SET(s, &readable);
		if (turn == 1)
			SAY_RESULT(poll(&pfd, 1, 0));
		if (turn == 2)
			SAY_RESULT(select(s + 1, &readable, NULL, NULL, &(struct timeval){0}));
		if (turn == 3)
			SAY_RESULT(epoll_wait(set, &event, 1, 0));
		SAY_RESULT(recv(s, bytes, 100, MSG_DONTWAIT));
		while (recv(other, bytes, 100, MSG_DONTWAIT) >= 0)
			;
	}
}

CASE(recv_fragments, "fragmented datagrams arrive once, whole, among small ones")
{
	int s = open_offloaded_udp_socket_and_peer(), fragmented = 0;

	for (int i = 0; i < 5; i++) {
		peer_send_datagrams_and_wait_arrival(s, 1, 1472, 1);
		take(s, 0, 0);
		peer_send_datagrams_and_wait_arrival(s, 1, 1473, 2);
		take(s, 0, 0);
		peer_send_datagrams_and_wait_arrival(s, 1, 9000, 3);
		take(s, 0, 0);
		peer_send_datagrams_and_wait_arrival(s, 1, 60000, 4);
		take(s, 0, 0);
	}
	/* Whole ones may overtake fragmented ones, but not each other. */
	peer_send_datagrams_and_wait_arrival(s, 2, 3000, 10);
	peer_send_datagrams_and_wait_arrival(s, 3, 50, 20);
	for (int i = 0; i < 5; i++) {
		ssize_t len = recv(s, bytes, sizeof(bytes), MSG_DONTWAIT);

		if (len == 3000)
			fragmented++;
		else
			say("%zd bytes, seed %d", len, len > 0 ? seed_of_payload(bytes, (size_t)len) : -1);
	}
	say("%d fragmented ones", fragmented);
	receive_all_until_empty(s);
}

CASE(recv_overflow, "a full socket drops datagrams, and works again when it has been read")
{
	int s = open_offloaded_udp_socket_and_peer(), got = 0;

	SAY_RESULT(set_int(s, SOL_SOCKET, SO_RCVBUF, 4000));
	peer(far(), "send 0 %s %d 1000 0 2000", here, port);
	wait_until_sent_packets_arrived(50);
	while (recv(s, bytes, sizeof(bytes), MSG_DONTWAIT) == 1000)
		got++;
	say("%s", got > 0 && got < 300 ? "some came" : "not some");
	peer_send_datagrams_and_wait_arrival(s, 1, 100, 9);
	receive_all_until_empty(s);
}
