/* setsockopt and getsockopt: every option of UDP sockets, set to every kind of value, read back in every length. */
#include <fcntl.h>
#include <linux/net_tstamp.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <unistd.h>

#include "parity.h"

struct option {
	const char *text;
	int level, name;
};
#define OPTION(level, name)                                                                                            \
	{                                                                                                              \
#name, level, name                                                                                     \
	}

static void say_results_of_setting_socket_options(const struct option *options, size_t n)
{
	static const int values[] = {1, 0, 2, -1, 255, 256, 70000};

	for (size_t i = 0; i < n; i++) {
		int s = udp_socket(), now = -7;
		socklen_t len = sizeof(now);
		int rc = getsockopt(s, options[i].level, options[i].name, &now, &len);

		say("%s: %s, %d in %u bytes", options[i].text, rc == 0 ? "at first" : error_name(errno), now,
		    (unsigned)len);
		for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
			int set = set_int(s, options[i].level, options[i].name, values[v]), set_errno = errno;

			now = -7;
			len = sizeof(now);
			rc = getsockopt(s, options[i].level, options[i].name, &now, &len);
			say("  %d: %s, then %s, %d", values[v], set == 0 ? "ok" : error_name(set_errno),
			    rc == 0 ? "ok" : error_name(errno), now);
		}
		close(s);
	}
}

CASE(options_of_sockets, "SOL_SOCKET options: values, defaults, errors")
{
	static const struct option options[] = {OPTION(SOL_SOCKET, SO_REUSEADDR),
	                                        OPTION(SOL_SOCKET, SO_REUSEPORT),
	                                        OPTION(SOL_SOCKET, SO_BROADCAST),
	                                        OPTION(SOL_SOCKET, SO_SNDBUF),
	                                        OPTION(SOL_SOCKET, SO_RCVBUF),
	                                        OPTION(SOL_SOCKET, SO_RCVBUFFORCE),
	                                        OPTION(SOL_SOCKET, SO_KEEPALIVE),
	                                        OPTION(SOL_SOCKET, SO_DONTROUTE),
	                                        OPTION(SOL_SOCKET, SO_PRIORITY),
	                                        OPTION(SOL_SOCKET, SO_MARK),
	                                        OPTION(SOL_SOCKET, SO_TIMESTAMP),
	                                        OPTION(SOL_SOCKET, SO_TIMESTAMPNS),
	                                        OPTION(SOL_SOCKET, SO_TIMESTAMPING),
	                                        OPTION(SOL_SOCKET, SO_RXQ_OVFL),
	                                        OPTION(SOL_SOCKET, SO_RCVLOWAT),
	                                        OPTION(SOL_SOCKET, SO_SNDLOWAT),
	                                        OPTION(SOL_SOCKET, SO_PASSCRED),
	                                        OPTION(SOL_SOCKET, SO_BUSY_POLL),
	                                        OPTION(SOL_SOCKET, SO_NO_CHECK),
	                                        OPTION(SOL_SOCKET, SO_OOBINLINE),
	                                        OPTION(SOL_SOCKET, SO_TYPE),
	                                        OPTION(SOL_SOCKET, SO_PROTOCOL),
	                                        OPTION(SOL_SOCKET, SO_DOMAIN),
	                                        OPTION(SOL_SOCKET, SO_ERROR),
	                                        OPTION(SOL_SOCKET, SO_ACCEPTCONN),
	                                        OPTION(SOL_SOCKET, SO_MAX_PACING_RATE),
	                                        OPTION(SOL_SOCKET, SO_PEEK_OFF),
	                                        OPTION(SOL_SOCKET, SO_SELECT_ERR_QUEUE),
	                                        OPTION(SOL_SOCKET, SO_ZEROCOPY),
	                                        OPTION(SOL_SOCKET, SO_PEERCRED),
	                                        OPTION(SOL_SOCKET, SO_LOCK_FILTER),
	                                        {"unknown", SOL_SOCKET, 999},
	                                        {"of no level", 999, 1}};

	say_results_of_setting_socket_options(options, sizeof(options) / sizeof(options[0]));
}

CASE(options_of_ip, "IPPROTO_IP and IPPROTO_UDP options: values, defaults, errors")
{
	static const struct option options[] = {
	        OPTION(IPPROTO_IP, IP_TTL),           OPTION(IPPROTO_IP, IP_TOS),
	        OPTION(IPPROTO_IP, IP_MULTICAST_TTL), OPTION(IPPROTO_IP, IP_MULTICAST_LOOP),
	        OPTION(IPPROTO_IP, IP_MULTICAST_ALL), OPTION(IPPROTO_IP, IP_MULTICAST_IF),
	        OPTION(IPPROTO_IP, IP_PKTINFO),       OPTION(IPPROTO_IP, IP_RECVTTL),
	        OPTION(IPPROTO_IP, IP_RECVTOS),       OPTION(IPPROTO_IP, IP_RECVERR),
	        OPTION(IPPROTO_IP, IP_MTU_DISCOVER),  OPTION(IPPROTO_IP, IP_FREEBIND),
	        OPTION(IPPROTO_IP, IP_TRANSPARENT),   OPTION(IPPROTO_IP, IP_MINTTL),
	        OPTION(IPPROTO_IP, IP_ORIGDSTADDR),   OPTION(IPPROTO_IP, IP_RECVOPTS),
	        OPTION(IPPROTO_IP, IP_RETOPTS),       OPTION(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT),
	        OPTION(IPPROTO_IP, IP_CHECKSUM),      OPTION(IPPROTO_IP, IP_UNICAST_IF),
	        OPTION(IPPROTO_IP, IP_NODEFRAG),      OPTION(IPPROTO_IP, IP_HDRINCL),
	        OPTION(IPPROTO_IP, IP_RECVFRAGSIZE),  {"unknown", IPPROTO_IP, 250},
	        OPTION(IPPROTO_UDP, UDP_CORK),        OPTION(IPPROTO_UDP, UDP_SEGMENT),
	        OPTION(IPPROTO_UDP, UDP_GRO),         OPTION(IPPROTO_UDP, UDP_NO_CHECK6_TX),
	        {"unknown", IPPROTO_UDP, 250}};

	say_results_of_setting_socket_options(options, sizeof(options) / sizeof(options[0]));
}

CASE(options_of_every_length, "options in buffers that are too short, too long, bad, or of no length")
{
	static const struct option options[] = {
	        OPTION(SOL_SOCKET, SO_REUSEADDR),     OPTION(SOL_SOCKET, SO_RCVBUF),
	        OPTION(SOL_SOCKET, SO_RCVTIMEO),      OPTION(SOL_SOCKET, SO_LINGER),
	        OPTION(IPPROTO_IP, IP_TTL),           OPTION(IPPROTO_IP, IP_TOS),
	        OPTION(IPPROTO_IP, IP_MULTICAST_TTL), OPTION(IPPROTO_IP, IP_MULTICAST_LOOP),
	        OPTION(IPPROTO_IP, IP_ADD_MEMBERSHIP)};
	int s = udp_socket_bound_to(here, 0), one = 1;
	char bytes[64];
	socklen_t len;

	expect_offloaded(s);
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		for (unsigned size = 0; size <= 20; size = size < 2 ? size + 1 : size * 2) {
			int set, set_errno, rc;

			memset(bytes, 0, sizeof(bytes));
			bytes[0] = 1;
			set = setsockopt(s, options[i].level, options[i].name, bytes, size);
			set_errno = errno;
			len = size;
			memset(bytes, 'x', sizeof(bytes));
			rc = getsockopt(s, options[i].level, options[i].name, bytes, &len);
			say("%s in %u: %s, then %s with %u, next byte %s", options[i].text, size,
			    set == 0 ? "ok" : error_name(set_errno), rc == 0 ? "ok" : error_name(errno), (unsigned)len,
			    bytes[size] == 'x' ? "untouched" : "changed");
		}
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_REUSEADDR, bad_pointer(), sizeof(one)));
	SAY_RESULT(setsockopt(s, IPPROTO_IP, IP_TTL, bad_pointer(), sizeof(one)));
	SAY_RESULT(setsockopt(s, IPPROTO_IP, IP_MULTICAST_TTL, bad_pointer(), 1));
	SAY_RESULT(setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, bad_pointer(), sizeof(struct ip_mreqn)));
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, bad_pointer(), sizeof(struct timeval)));
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, (socklen_t)-1));
	len = sizeof(one);
	SAY_RESULT(getsockopt(s, SOL_SOCKET, SO_REUSEADDR, bad_pointer(), &len));
	SAY_RESULT(getsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, bad_pointer()));
	len = (socklen_t)-1;
	SAY_RESULT(getsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, &len));
	SAY_RESULT(getsockopt(s, IPPROTO_IP, IP_TTL, &one, &len));
	expect_offloaded(s);
}

CASE(options_keep_working, "a socket with many options set is still offloaded, and receives and sends")
{
	static const struct option options[] = {
	        OPTION(SOL_SOCKET, SO_REUSEADDR), OPTION(SOL_SOCKET, SO_BROADCAST),    OPTION(SOL_SOCKET, SO_TIMESTAMP),
	        OPTION(SOL_SOCKET, SO_PRIORITY),  OPTION(SOL_SOCKET, SO_KEEPALIVE),    OPTION(SOL_SOCKET, SO_RCVLOWAT),
	        OPTION(IPPROTO_IP, IP_PKTINFO),   OPTION(IPPROTO_IP, IP_RECVTTL),      OPTION(IPPROTO_IP, IP_RECVTOS),
	        OPTION(IPPROTO_IP, IP_RECVERR),   OPTION(IPPROTO_IP, IP_MULTICAST_TTL)};
	int s = udp_socket_bound_to(here, 0), port = peer_ask_to_open_socket(far(), 0, there, 0), buffer = 100000;
	struct sockaddr_in to = ipv4_sockaddr_of(there, port);

	register_port_name(port, "peer");
	register_port_name_of_fd(s, "us");
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		say("%s: %d", options[i].text, set_int(s, options[i].level, options[i].name, 1));
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_RCVBUF, buffer));
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_SNDBUF, buffer));
	expect_offloaded(s);
	warm_up_until_offloaded_send(s, there, port);
	save_kernel_udp_counters();
	peer_send(far(), 0, here, port_of(s), 100, 1);
	take(s, 2000, 0);
	SAY_RESULT(sendto(s, "x", 1, 0, (struct sockaddr *)&to, sizeof(to)));
	say_peer_received(far(), 0, 2000);
	check_kernel_udp_was_bypassed(1, 1);
}

CASE(options_ttl_tos, "IP_TTL, IP_TOS and IP_MULTICAST_TTL are on what is sent")
{
	static const int ttls[] = {1, 17, 255, -1}, toses[] = {0x10, 0xb8, 0xff, 0};
	int port = peer_ask_to_open_socket(far(), 0, there, 0), s = udp_socket_connected_to(there, port);

	register_port_name_of_fd(s, "us");
	expect_offloaded(s);
	warm_up_until_offloaded_send(s, NULL, 0);
	for (int i = 0; i < 4; i++) {
		SAY_RESULT(set_int(s, IPPROTO_IP, IP_TTL, ttls[i]));
		SAY_RESULT(set_int(s, IPPROTO_IP, IP_TOS, toses[i]));
		pause_ms(20);
		save_kernel_udp_counters();
		SAY_RESULT(send(s, "x", 1, 0));
		say_peer_received(far(), 0, 2000);
		check_kernel_udp_was_bypassed(0, 1);
	}
}

CASE(options_priority_mark, "SO_PRIORITY, SO_MARK, SO_DONTROUTE, SO_NO_CHECK: datagrams still leave")
{
	int port = peer_ask_to_open_socket(far(), 0, there, 0), s = udp_socket_connected_to(there, port);

	register_port_name_of_fd(s, "us");
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_PRIORITY, 5));
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_MARK, 77));
	SAY_RESULT(send(s, "x", 1, 0));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_DONTROUTE, 1));
	SAY_RESULT(send(s, "x", 1, 0));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_NO_CHECK, 1));
	SAY_RESULT(send(s, "x", 1, 0));
	say_peer_received(far(), 0, 2000);
}

CASE(options_bindtodevice, "SO_BINDTODEVICE: which device, and what then comes and goes")
{
	int s = udp_socket(), port;
	struct sockaddr_in to;
	char name[64] = "";
	socklen_t len = sizeof(name);

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	register_port_name(peer_ask_to_open_socket(far(), 1, there_second, 0), "second");
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_BINDTODEVICE, "nonesuch", 9));
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_BINDTODEVICE, bad_pointer(), 9));
	say("%d", setsockopt(s, SOL_SOCKET, SO_BINDTODEVICE, if_first, (socklen_t)strlen(if_first) + 1));
	SAY_RESULT(getsockopt(s, SOL_SOCKET, SO_BINDTODEVICE, name, &len));
	say("%s", strcmp(name, if_first) == 0 ? "the first" : "another");
	to = ipv4_sockaddr_of("0.0.0.0", 7030);
	SAY_RESULT(bind(s, (struct sockaddr *)&to, sizeof(to)));
	expect_offloaded(s);
	peer_send(far(), 1, here_second, 7030, 10, 1);
	peer_send(far(), 0, here, 7030, 10, 2);
	wait_until_readable(s, 2000);
	wait_until_sent_packets_arrived(20);
	receive_all_until_empty(s);
	port = atoi(peer(far(), "port 0"));
	to = ipv4_sockaddr_of(there, port);
	SAY_RESULT(sendto(s, "x", 1, 0, (struct sockaddr *)&to, sizeof(to)));
	say_peer_received(far(), 0, 2000);
	to = ipv4_sockaddr_of(there_second, 7100);
	SAY_RESULT(sendto(s, "x", 1, 0, (struct sockaddr *)&to, sizeof(to)));
	SAY_RESULT(setsockopt(s, SOL_SOCKET, SO_BINDTODEVICE, "", 0));
	len = sizeof(name);
	SAY_RESULT(getsockopt(s, SOL_SOCKET, SO_BINDTODEVICE, name, &len));
	say("%u bytes", (unsigned)len);
	peer_send(far(), 1, here_second, 7030, 10, 3);
	take(s, 2000, 0);
}

CASE(options_nonblocking, "FIONBIO, O_NONBLOCK and SOCK_NONBLOCK are one flag")
{
	int s = udp_socket_bound_to(here, 0), on = 1, off = 0;
	char byte;

	expect_offloaded(s);
	say("flags %x", fcntl(s, F_GETFL));
	SAY_RESULT(ioctl(s, FIONBIO, &on));
	say("flags %x", fcntl(s, F_GETFL));
	SAY_RESULT(recv(s, &byte, 1, 0));
	SAY_RESULT(ioctl(s, FIONBIO, &off));
	say("flags %x", fcntl(s, F_GETFL));
	SAY_RESULT(ioctl(s, FIONBIO, bad_pointer()));
	SAY_RESULT(fcntl(s, F_SETFL, O_NONBLOCK));
	SAY_RESULT(read(s, &byte, 1));
	SAY_RESULT(fcntl(s, F_SETFL, O_NONBLOCK | O_ASYNC));
	say("flags %x", fcntl(s, F_GETFL));
	SAY_RESULT(fcntl(s, F_SETFL, 0));
	say("descriptor flags %d", fcntl(s, F_GETFD));
	SAY_RESULT(fcntl(s, F_SETFD, FD_CLOEXEC));
	say("descriptor flags %d", fcntl(s, F_GETFD));
	SAY_RESULT(fcntl(s, F_GETOWN));
	SAY_RESULT(fcntl(s, 9999));
	s = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	SAY_RESULT(recv(s, &byte, 1, 0));
	say("flags %x", fcntl(s, F_GETFL));
}
