/* send: every way to send a datagram, every shape of it, and what is refused. */
#include <fcntl.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "parity.h"

static char bytes[70000];
static volatile int minus_one = -1; /* which the compiler would warn of */

/* A connected, offloaded socket and the peer's socket 0, which it is connected to. */
static int offloaded_udp_socket_connected_to_peer(void)
{
	int port = peer_ask_to_open_socket(far(), 0, there, 0), s;

	register_port_name(port, "peer");
	s = udp_socket_connected_to(there, port);
	register_port_name_of_fd(s, "us");
	expect_offloaded(s);
	return s;
}

static const char *bytes_filled_from_seed(int len, int seed)
{
	fill(bytes, (size_t)len, seed);
	return bytes;
}

CASE(send_every_way, "write, writev, send, sendto, sendmsg and sendmmsg send the same, around the kernel")
{
	int s = offloaded_udp_socket_connected_to_peer(), port = atoi(peer(far(), "port 0"));
	struct sockaddr_in to = ipv4_sockaddr_of(there, port);
	struct iovec iov = {.iov_base = bytes, .iov_len = 64};
	struct mmsghdr many[3] = {0};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	for (int i = 0; i < 3; i++)
		many[i].msg_hdr = msg;
	warm_up_until_offloaded_send(s, NULL, 0);
	warm_up_until_offloaded_send(s, there, port);
	save_kernel_udp_counters();
	SAY_RESULT(write(s, bytes_filled_from_seed(64, 1), 64));
	say_peer_received(far(), 0, 2000);
	bytes_filled_from_seed(64, 2);
	SAY_RESULT(writev(s, &iov, 1));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(send(s, bytes_filled_from_seed(64, 3), 64, 0));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(sendto(s, bytes_filled_from_seed(64, 4), 64, 0, NULL, 0));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(sendto(s, bytes_filled_from_seed(64, 5), 64, 0, (struct sockaddr *)&to, sizeof(to)));
	say_peer_received(far(), 0, 2000);
	bytes_filled_from_seed(64, 6);
	SAY_RESULT(sendmsg(s, &msg, 0));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(sendmmsg(s, many, 3, 0));
	say("lengths %u %u %u", many[0].msg_len, many[1].msg_len, many[2].msg_len);
	for (int i = 0; i < 3; i++)
		say_peer_received(far(), 0, 2000);
	check_kernel_udp_was_bypassed(0, 9);
}

CASE(send_unconnected, "an unconnected socket sends to many, and is bound by its first send")
{
	int s = udp_socket();
	struct sockaddr_in to;

	say_local_address("before", s);
	SAY_RESULT(send(s, bytes_filled_from_seed(10, 1), 10, 0));
	SAY_RESULT(write(s, bytes, 10));
	say_local_address("refused", s);
	for (int i = 0; i < 6; i++) {
		static const char *const ips[] = {"10.9.0.2", "10.9.0.3", "10.9.1.12"};

		to = ipv4_sockaddr_of(ips[i % 3], peer_ask_to_open_socket(far(), i, ips[i % 3], 0));
		SAY_RESULT(sendto(s, bytes_filled_from_seed(100 + i, i), (size_t)(100 + i), 0, (struct sockaddr *)&to,
		                  sizeof(to)));
		if (i == 0)
			register_port_name_of_fd(s, "us");
		say_peer_received(far(), i, 2000);
	}
	say_local_address("after", s);
	expect_offloaded(s);
	warm_up_until_offloaded_send(s, there, atoi(peer(far(), "port 0")));
	pause_ms(30);
	save_kernel_udp_counters();
	for (int i = 0; i < 60; i++)
		sendto(s, bytes_filled_from_seed(20, i), 20, 0, (struct sockaddr *)&to, sizeof(to));
	say("the peer counted %s", peer(far(), "count 5 60 0 2000"));
	check_kernel_udp_was_bypassed(0, 60);
}

CASE(send_every_length, "datagrams of 0 to 65507 bytes arrive whole; longer ones are EMSGSIZE")
{
	static const int len[] = {0,    1,    2,    17,   18,   19,    63,    1471, 1472,
	                          1473, 2000, 2952, 2953, 9000, 65507, 65508, 66000};
	int s = offloaded_udp_socket_connected_to_peer();

	for (size_t i = 0; i < sizeof(len) / sizeof(len[0]); i++) {
		SAY_RESULT(send(s, bytes_filled_from_seed(len[i], (int)i), (size_t)len[i], 0));
		if (len[i] <= 65507)
			say_peer_received(far(), 0, 2000);
	}
}

CASE(send_iov_shapes, "iov arrays: null elements, none, many, too many, bad pointers")
{
	static struct iovec iov[1025];
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 5};
	int s = offloaded_udp_socket_connected_to_peer();

	bytes_filled_from_seed(1024, 7);
	iov[0] = (struct iovec){.iov_base = NULL, .iov_len = 0};
	iov[1] = (struct iovec){.iov_base = bytes, .iov_len = 10};
	iov[2] = (struct iovec){.iov_base = bad_pointer(), .iov_len = 0};
	iov[3] = (struct iovec){.iov_base = bytes + 10, .iov_len = 1};
	iov[4] = (struct iovec){.iov_base = bytes + 11, .iov_len = 100};
	SAY_RESULT(writev(s, iov, 5));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(sendmsg(s, &msg, 0));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(writev(s, iov, 0));
	SAY_RESULT(writev(s, iov, minus_one));
	msg.msg_iovlen = 0;
	SAY_RESULT(sendmsg(s, &msg, 0));
	say_peer_received(far(), 0, 300);
	for (int i = 0; i < 1025; i++)
		iov[i] = (struct iovec){.iov_base = bytes + i % 1024, .iov_len = 1};
	SAY_RESULT(writev(s, iov, 1024));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(writev(s, iov, 1025));
	msg.msg_iovlen = 1025;
	SAY_RESULT(sendmsg(s, &msg, 0));
	iov[3].iov_base = bad_pointer();
	SAY_RESULT(writev(s, iov, 5));
	iov[3].iov_len = (size_t)-1;
	SAY_RESULT(writev(s, iov, 5));
	say_peer_received(far(), 0, 100);
}

CASE(send_bad_pointers, "bad pointers are EFAULT wherever they are, and the socket lives")
{
	struct sockaddr_in to = ipv4_sockaddr_of(there, 7100);
	struct iovec iov = {.iov_base = bytes, .iov_len = 8}, bad_iov = {.iov_base = bad_pointer(), .iov_len = 8};
	struct msghdr msg = {.msg_iov = bad_pointer(), .msg_iovlen = 1};
	struct mmsghdr many[3] = {0};
	int s = offloaded_udp_socket_connected_to_peer();

	SAY_RESULT(send(s, bad_pointer(), 8, 0));
	SAY_RESULT(write(s, bad_pointer(), 8));
	SAY_RESULT(send(s, bad_pointer(), 0, 0));
	SAY_RESULT(send(s, NULL, 8, 0));
	SAY_RESULT(send(s, (char *)bad_pointer() - 4, 8, 0));
	SAY_RESULT(sendto(s, bytes, 8, 0, bad_pointer(), sizeof(to)));
	SAY_RESULT(sendmsg(s, bad_pointer(), 0));
	SAY_RESULT(sendmsg(s, &msg, 0));
	msg.msg_iov = &bad_iov;
	SAY_RESULT(sendmsg(s, &msg, 0));
	msg.msg_iov = &iov;
	msg.msg_name = bad_pointer();
	msg.msg_namelen = sizeof(to);
	SAY_RESULT(sendmsg(s, &msg, 0));
	msg.msg_name = NULL;
	msg.msg_namelen = 0;
	msg.msg_control = bad_pointer();
	msg.msg_controllen = 64;
	SAY_RESULT(sendmsg(s, &msg, 0));
	SAY_RESULT(sendmmsg(s, bad_pointer(), 2, 0));
	many[0].msg_hdr = (struct msghdr){.msg_iov = &iov, .msg_iovlen = 1};
	many[1].msg_hdr = (struct msghdr){.msg_iov = &bad_iov, .msg_iovlen = 1};
	SAY_RESULT(sendmmsg(s, many, 2, 0));
	say("lengths %u %u", many[0].msg_len, many[1].msg_len);
	SAY_RESULT(sendmmsg(s, many + 1, 1, 0));
	SAY_RESULT(sendmmsg(s, many, 0, 0));
	take(s, 0, 0);
	say_peer_received(far(), 0, 2000); /* the empty one */
	say_peer_received(far(), 0, 2000);
	to = ipv4_sockaddr_of(there, atoi(peer(far(), "port 0")));
	SAY_RESULT(sendto(s, bytes_filled_from_seed(9, 9), 9, 0, (struct sockaddr *)&to, sizeof(to)));
	say_peer_received(far(), 0, 2000);
	expect_offloaded(s);
}

CASE(send_bad_destinations, "destinations: short, long, of other families, port 0, none, unreachable")
{
	struct sockaddr_in to = ipv4_sockaddr_of(there, 7100);
	int s = udp_socket_bound_to(here, 7020);

	expect_offloaded(s);
	SAY_RESULT(send(s, bytes, 8, 0));
	SAY_RESULT(sendto(s, bytes, 8, 0, (struct sockaddr *)&to, 8));
	SAY_RESULT(sendto(s, bytes, 8, 0, (struct sockaddr *)&to, 4096));
	SAY_RESULT(sendto(s, bytes, 8, 0, (struct sockaddr *)&to, (socklen_t)-1));
	SAY_RESULT(sendto(s, bytes, 8, 0, (struct sockaddr *)&to, 0));
	to.sin_family = AF_INET6;
	SAY_RESULT(sendto(s, bytes, 8, 0, (struct sockaddr *)&to, sizeof(to)));
	to.sin_family = AF_UNSPEC;
	SAY_RESULT(sendto(s, bytes, 8, 0, (struct sockaddr *)&to, sizeof(to)));
	to = ipv4_sockaddr_of(there, 0);
	SAY_RESULT(sendto(s, bytes, 8, 0, (struct sockaddr *)&to, sizeof(to)));
	to = ipv4_sockaddr_of("192.0.2.1", 7100);
	SAY_RESULT(sendto(s, bytes, 8, 0, (struct sockaddr *)&to, sizeof(to)));
	to = ipv4_sockaddr_of("10.9.0.255", 7100);
	SAY_RESULT(sendto(s, bytes, 8, 0, (struct sockaddr *)&to, sizeof(to)));
	to = ipv4_sockaddr_of("255.255.255.255", 7100);
	SAY_RESULT(sendto(s, bytes, 8, 0, (struct sockaddr *)&to, sizeof(to)));
	to = ipv4_sockaddr_of("240.0.0.1", 7100);
	SAY_RESULT(sendto(s, bytes, 8, 0, (struct sockaddr *)&to, sizeof(to)));
	to = ipv4_sockaddr_of("0.0.0.0", 7020);
	SAY_RESULT(sendto(s, bytes_filled_from_seed(8, 5), 8, 0, (struct sockaddr *)&to, sizeof(to)));
	take(s, 1000, 0);
}

CASE(send_flags, "flags of send: those that UDP serves, ignores and refuses")
{
	int s = offloaded_udp_socket_connected_to_peer();

	SAY_RESULT(send(s, bytes_filled_from_seed(30, 1), 30, MSG_DONTWAIT));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(send(s, bytes_filled_from_seed(30, 2), 30, MSG_NOSIGNAL));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(send(s, bytes_filled_from_seed(30, 3), 30, MSG_CONFIRM));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(send(s, bytes_filled_from_seed(30, 4), 30, MSG_DONTROUTE));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(send(s, bytes_filled_from_seed(30, 5), 30, MSG_EOR));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(send(s, bytes_filled_from_seed(30, 6), 30, MSG_OOB));
	SAY_RESULT(send(s, bytes_filled_from_seed(30, 7), 30, 0x800000));
	say_peer_received(far(), 0, 2000);
}

CASE(send_more, "MSG_MORE and UDP_CORK make one datagram of several calls")
{
	int s = offloaded_udp_socket_connected_to_peer();

	bytes_filled_from_seed(90, 8);
	SAY_RESULT(send(s, bytes, 30, MSG_MORE));
	say_peer_received(far(), 0, 50);
	SAY_RESULT(send(s, bytes + 30, 30, MSG_MORE));
	SAY_RESULT(send(s, bytes + 60, 30, 0));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(set_int(s, IPPROTO_UDP, UDP_CORK, 1));
	SAY_RESULT(send(s, bytes, 40, 0));
	SAY_RESULT(write(s, bytes + 40, 40));
	say_peer_received(far(), 0, 50);
	SAY_RESULT(set_int(s, IPPROTO_UDP, UDP_CORK, 0));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(send(s, bytes_filled_from_seed(20, 9), 20, 0));
	say_peer_received(far(), 0, 2000);
}

CASE(send_segments, "UDP_SEGMENT sends several datagrams in one call")
{
	int s = offloaded_udp_socket_connected_to_peer();

	SAY_RESULT(set_int(s, IPPROTO_UDP, UDP_SEGMENT, 500));
	SAY_RESULT(send(s, bytes_filled_from_seed(1200, 1), 1200, 0));
	for (int i = 0; i < 3; i++)
		say_peer_received(far(), 0, 2000);
	SAY_RESULT(set_int(s, IPPROTO_UDP, UDP_SEGMENT, 0));
	SAY_RESULT(send(s, bytes_filled_from_seed(600, 2), 600, 0));
	say_peer_received(far(), 0, 2000);
}

CASE(send_from_files, "sendfile and splice into a socket, pread and pwrite on it, lseek")
{
	int s = offloaded_udp_socket_connected_to_peer(), file = memfd_create("parity", 0), ends[2];
	off_t at = 0;

	bytes_filled_from_seed(500, 3);
	SAY_RESULT(write(file, bytes, 500));
	SAY_RESULT(sendfile(s, file, &at, 500));
	say("offset %ld", (long)at);
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(pipe(ends));
	SAY_RESULT(write(ends[1], bytes, 100));
	SAY_RESULT(splice(ends[0], NULL, s, NULL, 100, 0));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(pwrite(s, bytes, 10, 0));
	SAY_RESULT(pread(s, bytes, 10, 0));
	SAY_RESULT(lseek(s, 0, SEEK_SET));
	peer_send(far(), 0, here, port_of(s), 44, 4);
	wait_until_readable(s, 2000);
	SAY_RESULT(splice(s, NULL, ends[1], NULL, 100, 0));
	take(s, 0, 0);
	SAY_RESULT(sendfile(file, s, NULL, 10));
}

CASE(send_mtu_discover, "IP_MTU_DISCOVER: what may be fragmented, and IP_MTU")
{
	static const int modes[] = {IP_PMTUDISC_DONT,  IP_PMTUDISC_WANT,      IP_PMTUDISC_DO,
	                            IP_PMTUDISC_PROBE, IP_PMTUDISC_INTERFACE, IP_PMTUDISC_OMIT};
	int s = offloaded_udp_socket_connected_to_peer(), mtu;
	socklen_t len = sizeof(mtu);

	SAY_RESULT(getsockopt(s, IPPROTO_IP, IP_MTU, &mtu, &len));
	say("mtu %d", mtu);
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		SAY_RESULT(set_int(s, IPPROTO_IP, IP_MTU_DISCOVER, modes[i]));
		SAY_RESULT(send(s, bytes_filled_from_seed(1472, 1), 1472, 0));
		say_peer_received(far(), 0, 2000);
		if (send(s, bytes_filled_from_seed(1473, 2), 1473, 0) < 0)
			say("mode %d: %s", modes[i], error_name(errno));
		else
			say_peer_received(far(), 0, 2000);
		if (send(s, bytes_filled_from_seed(5000, 3), 5000, 0) < 0)
			say("mode %d: %s", modes[i], error_name(errno));
		else
			say_peer_received(far(), 0, 2000);
	}
	SAY_RESULT(set_int(s, IPPROTO_IP, IP_MTU_DISCOVER, 17));
	close(s);
	s = udp_socket_bound_to(here, 0);
	SAY_RESULT(getsockopt(s, IPPROTO_IP, IP_MTU, &mtu, &len));
}

CASE(send_order, "10,000 datagrams sent in a row arrive, all and in order; nothing is lost unsaid")
{
	int s = offloaded_udp_socket_connected_to_peer(), lost = 0;

	peer(far(), "opt 0 1 33 8000000"); /* SO_RCVBUFFORCE */
	warm_up_until_offloaded_send(s, NULL, 0);
	save_kernel_udp_counters();
	for (int i = 0; i < 10000; i++)
		lost += send(s, bytes_filled_from_seed(64, i % 64), 64, 0) != 64;
	say("%d sends failed", lost);
	say("the peer counted %s", peer(far(), "count 0 10000 0 3000"));
	check_kernel_udp_was_bypassed(0, 10000);
}
