/* Control messages, both ways: packet information, TTL, TOS, timestamps, the error queue's stamps. */
#include <time.h>

#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <unistd.h>

#include "parity.h"

static int cmsg_open_offloaded_udp_socket_and_peer(const char *ip)
{
	int s = udp_socket_bound_to(ip, 0);

	register_port_name_of_fd(s, "us");
	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	expect_offloaded(s);
	return s;
}

static const char *interface_label_of_ifindex(unsigned ifindex)
{
	return ifindex == if_nametoindex(if_first)    ? "first"
	       : ifindex == if_nametoindex(if_second) ? "second"
	       : ifindex == 1                         ? "loopback"
	       : ifindex == 0                         ? "none"
	                                              : "unknown";
}

/* A stamp of the last seconds; the kernel's and ours differ in the digits only. */
static const char *timestamp_age_label(time_t sec, long nsec, long limit)
{
	time_t age = time(NULL) - sec;

	if (sec == 0 && nsec == 0)
		return "none";
	return age >= -1 && age <= 5 && nsec >= 0 && nsec < limit ? "recent" : "wrong";
}

static void say_cmsg(struct cmsghdr *c)
{
	void *data = CMSG_DATA(c);
	struct in_pktinfo *info = data;
	struct timespec *ts = data;
	struct timeval *tv = data;
	size_t len = c->cmsg_len - CMSG_LEN(0);

	if (len < (c->cmsg_type == IP_TOS ? 1 : 4)) {
		say("  level %d type %d, cut to %zu bytes", c->cmsg_level, c->cmsg_type, len);
	} else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO && len == sizeof(*info)) {
		struct sockaddr_in local = {.sin_family = AF_INET, .sin_addr = info->ipi_spec_dst}, dst = local;

		dst.sin_addr = info->ipi_addr;
		say("  PKTINFO device %s, local %s, to %s", interface_label_of_ifindex((unsigned)info->ipi_ifindex),
		    address_text(&local, sizeof(local)), address_text(&dst, sizeof(dst)));
	} else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TTL) {
		say("  TTL %d in %zu bytes", *(int *)data, len);
	} else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
		say("  TOS %d in %zu bytes", *(unsigned char *)data, len);
	} else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_ORIGDSTADDR) {
		say("  ORIGDSTADDR %s", address_text(data, (socklen_t)len));
	} else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_TIMESTAMP) {
		say("  TIMESTAMP %s in %zu bytes", timestamp_age_label(tv->tv_sec, tv->tv_usec, 1000000), len);
	} else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_TIMESTAMPNS) {
		say("  TIMESTAMPNS %s in %zu bytes", timestamp_age_label(ts->tv_sec, ts->tv_nsec, 1000000000), len);
	} else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_TIMESTAMPING) {
		say("  TIMESTAMPING software %s, %s, hardware %s in %zu bytes",
		    timestamp_age_label(ts[0].tv_sec, ts[0].tv_nsec, 1000000000),
		    timestamp_age_label(ts[1].tv_sec, ts[1].tv_nsec, 1000000000),
		    timestamp_age_label(ts[2].tv_sec, ts[2].tv_nsec, 1000000000), len);
	} else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) {
		struct sock_extended_err *err = data;

		say("  RECVERR %s origin %u type %u code %u info %u data %u", error_name((int)err->ee_errno),
		    err->ee_origin, err->ee_type, err->ee_code, err->ee_info, err->ee_data);
	} else {
		say("  level %d type %d, %zu bytes", c->cmsg_level, c->cmsg_type, len);
	}
}

/* One message with its control messages. */
static void say_received_with_control(int s, int flags, size_t room)
{
	char buf[2048], control[512];
	struct sockaddr_in from;
	struct iovec iov = {.iov_base = buf, .iov_len = sizeof(buf)};
	struct msghdr msg = {.msg_name = &from,
	                     .msg_namelen = sizeof(from),
	                     .msg_iov = &iov,
	                     .msg_iovlen = 1,
	                     .msg_control = control,
	                     .msg_controllen = room};
	ssize_t len;

	if (!wait_until_readable(s, 2000))
		say("nothing came");
	len = recvmsg(s, &msg, flags | MSG_DONTWAIT);
	if (len < 0) {
		say("took nothing: %s", error_name(errno));
		return;
	}
	say("took %zd bytes from %s, flags %x, control %zu", len, address_text(&from, msg.msg_namelen),
	    (unsigned)msg.msg_flags, msg.msg_controllen);
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c != NULL; c = CMSG_NXTHDR(&msg, c))
		say_cmsg(c);
}

CASE(cmsg_of_received, "IP_PKTINFO, IP_RECVTTL, IP_RECVTOS, IP_ORIGDSTADDR: one by one and together")
{
	static const int names[] = {IP_PKTINFO, IP_RECVTTL, IP_RECVTOS, IP_ORIGDSTADDR};
	int s = cmsg_open_offloaded_udp_socket_and_peer("0.0.0.0"), port = port_of(s);

	peer(far(), "opt 0 0 %d 99", IP_TTL);
	peer(far(), "opt 0 0 %d 40", IP_TOS);
	save_kernel_udp_counters();
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < 4; i++) {
			set_int(s, IPPROTO_IP, names[i], 1);
			peer_send(far(), 0, here, port, 50, i);
			say_received_with_control(s, 0, 512);
			if (round == 0)
				set_int(s, IPPROTO_IP, names[i], 0);
		}
	peer_send(far(), 0, here, port, 50, 9);
	say_received_with_control(s, MSG_PEEK, 512);
	say_received_with_control(s, 0, 512);
	check_kernel_udp_was_bypassed(9, 0);
	register_port_name(peer_ask_to_open_socket(far(), 1, there_second, 0), "second");
	peer_send(far(), 1, here_second, port, 50, 10);
	say_received_with_control(s, 0, 512);
	peer_send(far(), 0, here, port, 5000, 11);
	say_received_with_control(s, 0, 512);
}

CASE(cmsg_truncated, "control messages that do not fit: MSG_CTRUNC, and what is left of them")
{
	int s = cmsg_open_offloaded_udp_socket_and_peer(here), port = port_of(s);

	set_int(s, IPPROTO_IP, IP_PKTINFO, 1);
	set_int(s, IPPROTO_IP, IP_RECVTTL, 1);
	set_int(s, IPPROTO_IP, IP_RECVTOS, 1);
	for (size_t room = 0; room <= 80; room += 4) {
		peer_send(far(), 0, here, port, 50, 1);
		say_received_with_control(s, 0, room);
	}
}

CASE(cmsg_timestamps, "SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING: alone, together, and off again")
{
	int s = cmsg_open_offloaded_udp_socket_and_peer(here), port = port_of(s),
	    software = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE,
	    hardware = SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE;

	save_kernel_udp_counters();
	set_int(s, SOL_SOCKET, SO_TIMESTAMP, 1);
	peer_send(far(), 0, here, port, 50, 1);
	say_received_with_control(s, 0, 512);
	set_int(s, SOL_SOCKET, SO_TIMESTAMPNS, 1);
	peer_send(far(), 0, here, port, 50, 2);
	say_received_with_control(s, 0, 512);
	set_int(s, SOL_SOCKET, SO_TIMESTAMP, 0);
	set_int(s, SOL_SOCKET, SO_TIMESTAMPNS, 0);
	peer_send(far(), 0, here, port, 50, 3);
	say_received_with_control(s, 0, 512);
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_TIMESTAMPING, software));
	pause_ms(50); /* the kernel switches stamps on when it has time for it */
	peer_send(far(), 0, here, port, 50, 4);
	say_received_with_control(s, 0, 512);
	set_int(s, SOL_SOCKET, SO_TIMESTAMP, 1);
	peer_send(far(), 0, here, port, 50, 5);
	say_received_with_control(s, 0, 512);
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_TIMESTAMPING, 0));
	set_int(s, SOL_SOCKET, SO_TIMESTAMP, 0);
	peer_send(far(), 0, here, port, 50, 6);
	say_received_with_control(s, 0, 512);
	/* The interface has no hardware that stamps. */
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_TIMESTAMPING, hardware));
	peer_send(far(), 0, here, port, 50, 7);
	say_received_with_control(s, 0, 512);
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_TIMESTAMPING, hardware | software | SOF_TIMESTAMPING_OPT_PKTINFO));
	pause_ms(50);
	peer_send(far(), 0, here, port, 50, 8);
	say_received_with_control(s, 0, 512);
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_TIMESTAMPING, 0x7fffffff));
	check_kernel_udp_was_bypassed(8, 0);
}

CASE(cmsg_stamps_are_ordered, "timestamps do not run backwards, and lie between sending and reading")
{
	int s = cmsg_open_offloaded_udp_socket_and_peer(here), port = port_of(s), backwards = 0, outside = 0;
	char buf[64], control[128];
	struct iovec iov = {.iov_base = buf, .iov_len = sizeof(buf)};
	struct timespec begin, now, last = {0}, *stamp;

	set_int(s, SOL_SOCKET, SO_TIMESTAMPNS, 1);
	clock_gettime(CLOCK_REALTIME, &begin);
	peer(far(), "send 0 %s %d 10 0 200 100", here, port);
	for (int i = 0; i < 200 && wait_until_readable(s, 2000); i++) {
		struct msghdr msg = {
		        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};

		if (recvmsg(s, &msg, 0) != 10 || CMSG_FIRSTHDR(&msg) == NULL) {
			say("no stamp");
			return;
		}
		clock_gettime(CLOCK_REALTIME, &now);
		stamp = (struct timespec *)CMSG_DATA(CMSG_FIRSTHDR(&msg));
#define TIME_IS_BEFORE(a, b) ((a).tv_sec < (b).tv_sec || ((a).tv_sec == (b).tv_sec && (a).tv_nsec < (b).tv_nsec))
		backwards += TIME_IS_BEFORE(*stamp, last);
		outside += TIME_IS_BEFORE(*stamp, begin) || TIME_IS_BEFORE(now, *stamp);
		last = *stamp;
	}
	/* Somebody may set the clock. */
	say("%s, %s", backwards <= 2 ? "in order" : "backwards", outside <= 2 ? "of now" : "of other times");
}

CASE(cmsg_last_stamp, "SIOCGSTAMP and SIOCGSTAMPNS tell when the last datagram came")
{
	int s = cmsg_open_offloaded_udp_socket_and_peer(here), port = port_of(s);
	struct timeval tv = {0};
	struct timespec ts = {0};

	SAY_RESULT(ioctl(s, SIOCGSTAMP, &tv));
	peer_send(far(), 0, here, port, 50, 1);
	take(s, 2000, 0);
	SAY_RESULT(ioctl(s, SIOCGSTAMP, &tv));
	peer_send(far(), 0, here, port, 50, 1);
	take(s, 2000, 0);
	SAY_RESULT(ioctl(s, SIOCGSTAMP, &tv));
	say("%s", timestamp_age_label(tv.tv_sec, tv.tv_usec, 1000000));
	SAY_RESULT(ioctl(s, SIOCGSTAMPNS, &ts));
	say("%s", timestamp_age_label(ts.tv_sec, ts.tv_nsec, 1000000000));
	SAY_RESULT(ioctl(s, SIOCGSTAMP, bad_pointer()));
}

/* Sends one byte with one control message. */
static void send_byte_with_cmsg(int s, int level, int type, const void *data, size_t len)
{
	char control[128] = {0};
	struct iovec iov = {.iov_base = "x", .iov_len = 1};
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(len)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	long rc;

	c->cmsg_level = level;
	c->cmsg_type = type;
	c->cmsg_len = CMSG_LEN(len);
	memcpy(CMSG_DATA(c), data, len);
	rc = result("sendmsg", sendmsg(s, &msg, 0));
	if (rc > 0)
		say_peer_received(far(), 0, 2000);
}

CASE(cmsg_of_sent, "control messages of send: TTL, TOS, source, device, unknown and broken ones")
{
	int port = peer_ask_to_open_socket(far(), 0, there, 0), s = udp_socket_connected_to(there, port), value = 33;
	struct in_pktinfo info = {.ipi_ifindex = 0};
	struct cmsghdr broken = {.cmsg_len = 4};
	struct iovec iov = {.iov_base = "x", .iov_len = 1};
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &broken, .msg_controllen = sizeof(broken)};
	unsigned char small = 12;

	register_port_name_of_fd(s, "us");
	expect_offloaded(s);
	send_byte_with_cmsg(s, IPPROTO_IP, IP_TTL, &value, sizeof(value));
	send_byte_with_cmsg(s, IPPROTO_IP, IP_TOS, &value, sizeof(value));
	send_byte_with_cmsg(s, IPPROTO_IP, IP_TOS, &small, sizeof(small));
	value = 300;
	send_byte_with_cmsg(s, IPPROTO_IP, IP_TTL, &value, sizeof(value));
	send_byte_with_cmsg(s, IPPROTO_IP, IP_PKTINFO, &info, sizeof(info));
	info.ipi_spec_dst = ipv4_sockaddr_of(here_second, 0).sin_addr;
	send_byte_with_cmsg(s, IPPROTO_IP, IP_PKTINFO, &info, sizeof(info));
	info.ipi_spec_dst = ipv4_sockaddr_of("10.99.0.1", 0).sin_addr;
	send_byte_with_cmsg(s, IPPROTO_IP, IP_PKTINFO, &info, sizeof(info));
	info = (struct in_pktinfo){.ipi_ifindex = (int)if_nametoindex(if_first)};
	send_byte_with_cmsg(s, IPPROTO_IP, IP_PKTINFO, &info, sizeof(info));
	send_byte_with_cmsg(s, IPPROTO_IP, 250, &value, sizeof(value));
	send_byte_with_cmsg(s, 999, 1, &value, sizeof(value));
	SAY_RESULT(sendmsg(s, &msg, 0));
	SAY_RESULT(send(s, "y", 1, 0));
	say_peer_received(far(), 0, 2000);
}

/* Where it sends to, and the control messages of what it sends, one behind the other. */
struct control_send {
	struct sockaddr_in to;
	_Alignas(struct cmsghdr) char bytes[256];
	size_t used;
};

static void control_send_put_cmsg(struct control_send *send, int type, const void *data, size_t len)
{
	struct cmsghdr *c = (struct cmsghdr *)(send->bytes + send->used);

	*c = (struct cmsghdr){.cmsg_len = CMSG_LEN(len), .cmsg_level = IPPROTO_IP, .cmsg_type = type};
	memcpy(CMSG_DATA(c), data, len);
	send->used += CMSG_SPACE(len);
}

static void control_send_put_int(struct control_send *send, int type, int value)
{
	control_send_put_cmsg(send, type, &value, sizeof(value));
}

static void control_send_put_pktinfo(struct control_send *send, const char *source, const char *device)
{
	struct in_pktinfo info = {.ipi_spec_dst = ipv4_sockaddr_of(source, 0).sin_addr,
	                          .ipi_ifindex = device != NULL ? (int)if_nametoindex(device) : 0};

	control_send_put_cmsg(send, IP_PKTINFO, &info, sizeof(info));
}

static ssize_t send_with_cmsgs(int s, struct control_send *send, int flags)
{
	struct iovec iov = {.iov_base = "xyz", .iov_len = 3};
	struct msghdr msg = {.msg_name = send->to.sin_port != 0 ? &send->to : NULL,
	                     .msg_namelen = send->to.sin_port != 0 ? sizeof(send->to) : 0,
	                     .msg_iov = &iov,
	                     .msg_iovlen = 1,
	                     .msg_control = send->bytes,
	                     .msg_controllen = send->used};

	return sendmsg(s, &msg, flags);
}

/* The first one asks for the route; more than one would make in the same millisecond go by the kernel. */
static void send_with_cmsgs_to_learn_route(int s, struct control_send *send, int slot)
{
	pause_ms(5);
	SAY_RESULT(send_with_cmsgs(s, send, 0));
	say_peer_received(far(), slot, 2000);
	pause_ms(5);
}

CASE(cmsg_of_sent_bypass, "IP_PKTINFO, IP_TTL and IP_TOS of single datagrams, around the kernel")
{
	struct control_send plain = {.to = ipv4_sockaddr_of(there, peer_ask_to_open_socket(far(), 0, there, 0))},
	                    source = plain, other = plain, all = plain, device = plain, second = {0};
	int s = udp_socket_bound_to("0.0.0.0", 0);

	second.to = ipv4_sockaddr_of(there_second, peer_ask_to_open_socket(far(), 1, there_second, 0));
	register_port_name_of_fd(s, "us");
	expect_offloaded(s);
	control_send_put_int(&plain, IP_TTL, 9);
	control_send_put_pktinfo(&source, here, NULL);
	control_send_put_pktinfo(&other, here_second, NULL);
	control_send_put_pktinfo(&all, here_second, if_first);
	control_send_put_int(&all, IP_TTL, 7);
	control_send_put_cmsg(&all, IP_TOS, "\x28", 1);
	control_send_put_pktinfo(&device, "0.0.0.0", if_first);
	control_send_put_int(&device, IP_TOS, 72);
	control_send_put_pktinfo(&second, here_second, if_second);
	for (struct control_send **one = (struct control_send *[]){&plain, &source, &other, &all, &device, NULL};
	     *one != NULL; one++)
		send_with_cmsgs_to_learn_route(s, *one, 0);
	send_with_cmsgs_to_learn_route(s, &second, 1);
	save_kernel_udp_counters();
	for (int i = 0; i < 3; i++) {
		for (struct control_send **one =
		             (struct control_send *[]){&plain, &source, &other, &all, &device, NULL};
		     *one != NULL; one++) {
			SAY_RESULT(send_with_cmsgs(s, *one, MSG_DONTWAIT));
			say_peer_received(far(), 0, 2000);
		}
		SAY_RESULT(send_with_cmsgs(s, &second, 0));
		say_peer_received(far(), 1, 2000);
	}
	check_kernel_udp_was_bypassed(0, 18);
}

CASE(cmsg_of_sent_connected, "a connected socket's control messages: the route is looked up anew, with what they say")
{
	int port = peer_ask_to_open_socket(far(), 0, there, 0), s = udp_socket_connected_to(there, port);
	struct control_send none = {.used = 8}, nowhere = {0}, elsewhere = {0}, away = {0}, loopback = {0}, group = {0};

	register_port_name_of_fd(s, "us");
	expect_offloaded(s);
	send_with_cmsgs_to_learn_route(s, &none, 0);
	control_send_put_pktinfo(&elsewhere, here_second, NULL);
	send_with_cmsgs_to_learn_route(s, &elsewhere, 0);
	elsewhere.to = ipv4_sockaddr_of(there_too, peer_ask_to_open_socket(far(), 2, there_too, 0));
	send_with_cmsgs_to_learn_route(s, &elsewhere, 2);
	control_send_put_pktinfo(&nowhere, "10.99.0.1", NULL);
	SAY_RESULT(send_with_cmsgs(s, &nowhere, 0));
	control_send_put_pktinfo(&away, "0.0.0.0", if_second);
	away.to = ipv4_sockaddr_of("192.0.2.9", 7100);
	SAY_RESULT(send_with_cmsgs(s, &away, 0));
	control_send_put_pktinfo(&loopback, "127.0.0.1", NULL);
	SAY_RESULT(send_with_cmsgs(s, &loopback, 0));
	control_send_put_pktinfo(&group, "224.9.9.9", NULL);
	SAY_RESULT(send_with_cmsgs(s, &group, 0));
	group.used = 0;
	control_send_put_pktinfo(&group, "255.255.255.255", NULL);
	SAY_RESULT(send_with_cmsgs(s, &group, 0));
	SAY_RESULT(send(s, "y", 1, 0));
	say_peer_received(far(), 0, 2000);
}

CASE(cmsg_of_sent_group, "a group is sent to with the TTL, TOS, source and interface of control messages")
{
	int s = udp_socket_bound_to("0.0.0.0", 0);
	struct control_send first = {.to = ipv4_sockaddr_of("224.9.9.9", 7031)}, second = first;

	register_port_name_of_fd(s, "us");
	peer_ask_to_open_socket(far(), 0, "0.0.0.0", 7031);
	peer(far(), "join 0 224.9.9.9 %s", there);
	peer(far(), "join 0 224.9.9.9 %s", there_second);
	control_send_put_int(&first, IP_TTL, 4);
	control_send_put_pktinfo(&second, "0.0.0.0", if_second);
	control_send_put_int(&second, IP_TOS, 8);
	set_int(s, IPPROTO_IP, IP_MULTICAST_TTL, 0);
	expect_offloaded(s);
	send_with_cmsgs_to_learn_route(s, &first, 0);
	set_int(s, IPPROTO_IP, IP_MULTICAST_TTL, 2);
	send_with_cmsgs_to_learn_route(s, &second, 0);
	save_kernel_udp_counters();
	for (int i = 0; i < 3; i++) {
		SAY_RESULT(send_with_cmsgs(s, &first, 0));
		say_peer_received(far(), 0, 2000);
		SAY_RESULT(send_with_cmsgs(s, &second, 0));
		say_peer_received(far(), 0, 2000);
	}
	check_kernel_udp_was_bypassed(0, 6);
}

CASE(cmsg_of_sent_stamps, "SOF_TIMESTAMPING_TX_SOFTWARE: the stamp of what was sent, on the error queue")
{
	int port = peer_ask_to_open_socket(far(), 0, there, 0), s = udp_socket_connected_to(there, port);

	register_port_name_of_fd(s, "us");
	register_port_name(port, "peer");
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_TIMESTAMPING,
	                   SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_OPT_TSONLY |
	                           SOF_TIMESTAMPING_OPT_ID));
	for (int i = 0; i < 3; i++) {
		SAY_RESULT(send(s, "hello", 5, 0));
		say_peer_received(far(), 0, 2000);
		pause_ms(10);
		say_received_with_control(s, MSG_ERRQUEUE, 512);
	}
	say_received_with_control(s, MSG_ERRQUEUE, 512);
}
