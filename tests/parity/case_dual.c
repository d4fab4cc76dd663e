/* dual: AF_INET6 sockets that serve IPv4 and IPv6: both at once, names, errors, options, control messages, V6ONLY. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "parity.h"

#ifndef IPV6_MULTICAST_ALL
#define IPV6_MULTICAST_ALL 29
#endif

#define GROUP "239.9.0.61"

/* ---- sockets ---- */

static int open_ipv6_socket(int type)
{
	int fd = socket(AF_INET6, type, 0);

	if (fd < 0)
		die_with_message("socket");
	return fd;
}

static struct sockaddr_in6 mapped_sockaddr_in6(const char *ip, int port)
{
	struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
	char mapped[INET6_ADDRSTRLEN];

	snprintf(mapped, sizeof(mapped), "%s%s", strchr(ip, ':') != NULL ? "" : "::ffff:", ip);
	if (inet_pton(AF_INET6, mapped, &address.sin6_addr) != 1)
		die_with_message("%s is no address", mapped);
	return address;
}

static int bind_to_mapped(int fd, const char *ip, int port)
{
	struct sockaddr_in6 address = mapped_sockaddr_in6(ip, port);

	return bind(fd, (struct sockaddr *)&address, sizeof(address));
}

static int connect_to_mapped(int fd, const char *ip, int port)
{
	struct sockaddr_in6 address = mapped_sockaddr_in6(ip, port);

	return connect(fd, (struct sockaddr *)&address, sizeof(address));
}

static int disconnect(int fd)
{
	struct sockaddr none = {.sa_family = AF_UNSPEC};

	return connect(fd, &none, sizeof(none));
}

static long send_to_mapped(int fd, const char *ip, int port, size_t len)
{
	struct sockaddr_in6 to = mapped_sockaddr_in6(ip, port);
	char bytes[2000];

	fill(bytes, len, 7);
	return sendto(fd, bytes, len, 0, (struct sockaddr *)&to, sizeof(to));
}

static int dual_getsockopt_int_or_minus_1(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);

	return getsockopt(fd, level, name, &value, &len) == 0 ? value : -1;
}

static int ipv6_socket_bound_to(int type, const char *ip, int port)
{
	int fd = open_ipv6_socket(type);

	set_int(fd, SOL_SOCKET, SO_REUSEADDR, type == SOCK_STREAM);
	if (bind_to_mapped(fd, ip, port) != 0)
		die_with_message("bind to [%s]:%d", ip, port);
	register_port_name_of_fd(fd, "us");
	return fd;
}

static int dual_open_ipv6_listener(const char *ip, int port)
{
	int fd = ipv6_socket_bound_to(SOCK_STREAM, ip, port);

	if (listen(fd, 16) != 0)
		die_with_message("listen");
	return fd;
}

/* IPv6 is off, so that nothing of it moves the counters; here ::1 is to be had. */
static void set_ipv6_on_loopback(bool on)
{
	run_shell_command_here(on ? "echo 0 >/proc/sys/net/ipv6/conf/lo/disable_ipv6"
	                          : "echo 1 >/proc/sys/net/ipv6/conf/lo/disable_ipv6");
	for (int i = 0; on && i < 100; i++) {
		int fd = open_ipv6_socket(SOCK_DGRAM), there_is = bind_to_mapped(fd, "::1", 0);

		close(fd);
		if (there_is == 0)
			return;
		pause_ms(10);
	}
}

static int dual_far_peer_dials(int slot, const char *ip, int port)
{
	int its = atoi(peer(far(), "dial %d %s %d", slot, ip, port));

	register_port_name(its, slot == 1 ? "its" : "its second");
	return its;
}

static int accept_and_say_peer(int listener, int flags)
{
	struct sockaddr_storage from;
	socklen_t len = sizeof(from);
	int fd;

	memset(&from, 0xee, sizeof(from));
	fd = accept4(listener, (struct sockaddr *)&from, &len, flags);
	if (fd < 0)
		say("accepted nothing: %s", error_name(errno));
	else
		say("accepted from %s", address_text(&from, len));
	return fd;
}

/* ---- TCP ---- */

CASE(dual_tcp_listener,
     "a listener on :: accepts IPv4 around the kernel and IPv6 by it, in one accept and one epoll set")
{
	int l = dual_open_ipv6_listener("::", 7101), set = epoll_create1(0), client, fd;
	struct epoll_event event = {.events = EPOLLIN, .data.fd = l};

	set_ipv6_on_loopback(true);
	expect_offloaded(l);
	say_local_address("listener", l);
	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_ADD, l, &event));
	SAY_RESULT(epoll_wait(set, &event, 1, 0));
	kernel_segments_wait_idle_and_start_count();
	dual_far_peer_dials(1, here, 7101);
	SAY_RESULT(epoll_wait(set, &event, 1, 2000));
	fd = accept_and_say_peer(l, 0);
	expect_offloaded(fd);
	say_local_address("name", fd);
	say_peer_address("peer", fd);
	far_peer_writes(1, 1000, 1, 1);
	recv_and_print_result(fd, 1000, MSG_WAITALL);
	send_pattern_and_print_result(fd, 2000, 2, 0);
	say_far_peer_reads(1, 2000, 2, 1);
	check_kernel_segments_were_bypassed();
	close(fd);
	client = open_ipv6_socket(SOCK_STREAM);
	SAY_RESULT(connect_to_mapped(client, "::1", 7101));
	expect_kernel_socket_for_reason(client, VMA_SOCK_IPV6);
	register_port_name_of_fd(client, "six");
	SAY_RESULT(epoll_wait(set, &event, 1, 2000));
	fd = accept_and_say_peer(l, SOCK_CLOEXEC | SOCK_NONBLOCK);
	say("close-on-exec %d, non-blocking %d", fcntl(fd, F_GETFD), (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
	say_local_address("name", fd);
	say_peer_address("peer", fd);
	send_pattern_and_print_result(client, 300, 3, 0);
	wait_until_readable(fd, 2000);
	recv_and_print_result(fd, 300, 0);
	close(fd);
	close(client);
	/* Both wait, and none is forgotten. */
	client = open_ipv6_socket(SOCK_STREAM);
	SAY_RESULT(connect_to_mapped(client, "::1", 7101));
	dual_far_peer_dials(2, here, 7101);
	for (int i = 0; i < 2; i++) {
		SAY_RESULT(epoll_wait(set, &event, 1, 2000));
		close(accept(l, NULL, NULL));
	}
	SAY_RESULT(epoll_wait(set, &event, 1, 50));
	client = open_ipv6_socket(SOCK_STREAM);
	SAY_RESULT(connect_to_mapped(client, "127.0.0.1", 7101));
	register_port_name_of_fd(client, "local");
	fd = accept_and_say_peer(l, 0);
	say_peer_address("of this host", fd);
	set_ipv6_on_loopback(false);
}

CASE(dual_tcp_mapped_listener, "a listener on a mapped address is one of IPv4 alone")
{
	int l = dual_open_ipv6_listener(here, 7102), client = open_ipv6_socket(SOCK_STREAM), fd;

	set_ipv6_on_loopback(true);
	expect_offloaded(l);
	say_local_address("listener", l);
	SAY_RESULT(connect_to_mapped(client, "::1", 7102));
	kernel_segments_wait_idle_and_start_count();
	dual_far_peer_dials(1, here, 7102);
	fd = accept_and_say_peer(l, 0);
	expect_offloaded(fd);
	say_local_address("name", fd);
	check_kernel_segments_were_bypassed();
	set_ipv6_on_loopback(false);
}

CASE(dual_tcp_v6only, "IPV6_V6ONLY: no IPv4, and only before bind")
{
	int l = open_ipv6_socket(SOCK_STREAM), other, client;

	set_ipv6_on_loopback(true);
	say("default %d", dual_getsockopt_int_or_minus_1(l, IPPROTO_IPV6, IPV6_V6ONLY));
	SAY_RESULT(set_int(l, IPPROTO_IPV6, IPV6_V6ONLY, 1));
	SAY_RESULT(bind_to_mapped(l, "::", 7103));
	SAY_RESULT(set_int(l, IPPROTO_IPV6, IPV6_V6ONLY, 0));
	SAY_RESULT(listen(l, 5));
	expect_kernel_socket_for_reason(l, VMA_SOCK_IPV6);
	say("V6ONLY %d", dual_getsockopt_int_or_minus_1(l, IPPROTO_IPV6, IPV6_V6ONLY));
	client = open_ipv6_socket(SOCK_STREAM);
	SAY_RESULT(connect_to_mapped(client, "127.0.0.1", 7103));
	client = open_ipv6_socket(SOCK_STREAM); /* the other one is the kernel's IPv4 from now on */
	SAY_RESULT(connect_to_mapped(client, "::1", 7103));
	/* The port is free for IPv4. */
	other = tcp_socket();
	client = open_ipv6_socket(SOCK_STREAM);
	SAY_RESULT(set_int(client, IPPROTO_IPV6, IPV6_V6ONLY, 1));
	SAY_RESULT(connect_to_mapped(client, there, 9));
	SAY_RESULT(connect_to_mapped(client, here, 9));
	say_local_address("nothing has begun", client);
	SAY_RESULT(set_int(client, IPPROTO_IPV6, IPV6_V6ONLY, 0));
	SAY_RESULT(connect_to_mapped(client, there, 9));
	close(other);
	/* Off again before bind: as if it had never been on. */
	other = open_ipv6_socket(SOCK_STREAM);
	SAY_RESULT(set_int(other, IPPROTO_IPV6, IPV6_V6ONLY, 1));
	SAY_RESULT(set_int(other, IPPROTO_IPV6, IPV6_V6ONLY, 0));
	SAY_RESULT(bind_to_mapped(other, "::", 7104));
	SAY_RESULT(listen(other, 5));
	expect_offloaded(other);
	dual_far_peer_dials(1, here, 7104);
	expect_offloaded(accept_and_say_peer(other, 0));
	set_ipv6_on_loopback(false);
}

CASE(dual_tcp_connect, "connect to a mapped address: around the kernel, with names of AF_INET6")
{
	int port = atoi(peer(far(), "listen 0 %s 0", there)), fd = open_ipv6_socket(SOCK_STREAM);
	struct sockaddr_storage name = {0};
	socklen_t len = sizeof(name);

	register_port_name(port, "its");
	say_local_address("new", fd);
	kernel_segments_wait_idle_and_start_count();
	SAY_RESULT(connect_to_mapped(fd, there, port));
	expect_offloaded(fd);
	peer(far(), "accept 0 1 2000");
	register_port_name_of_fd(fd, "mine");
	say_local_address("name", fd);
	say_peer_address("peer", fd);
	say("SO_DOMAIN %d, SO_PROTOCOL %d, V6ONLY %d", dual_getsockopt_int_or_minus_1(fd, SOL_SOCKET, SO_DOMAIN),
	    dual_getsockopt_int_or_minus_1(fd, SOL_SOCKET, SO_PROTOCOL),
	    dual_getsockopt_int_or_minus_1(fd, IPPROTO_IPV6, IPV6_V6ONLY));
	SAY_RESULT(getsockopt(fd, SOL_SOCKET, SO_PEERNAME, &name, &len));
	len = sizeof(struct sockaddr_in6);
	SAY_RESULT(getsockopt(fd, SOL_SOCKET, SO_PEERNAME, &name, &len));
	say("SO_PEERNAME %s (%u)", address_text(&name, len), (unsigned)len);
	for (socklen_t room = 0; room <= 40; room += 8) {
		memset(&name, 0xee, sizeof(name));
		len = room;
		SAY_RESULT(getpeername(fd, (struct sockaddr *)&name, &len));
		say("room %u: %u, the byte behind %s", (unsigned)room, (unsigned)len,
		    ((uint8_t *)&name)[room < 28 ? room : 28] == 0xee ? "untouched" : "written");
	}
	send_pattern_and_print_result(fd, 5000, 1, 0);
	say_far_peer_reads(1, 5000, 1, 1);
	far_peer_writes(1, 700, 2, 1);
	recv_and_print_result(fd, 700, MSG_WAITALL);
	check_kernel_segments_were_bypassed();
	SAY_RESULT(bind_to_mapped(fd, "::", 0));
	SAY_RESULT(connect_to_mapped(fd, there, port));
	SAY_RESULT(disconnect(fd));
	say_local_address("dissolved", fd);
	say_peer_address("dissolved", fd);
}

CASE(dual_tcp_connect_bound, "connect after bind: to ::, to a mapped address, to one of IPv6")
{
	int port = atoi(peer(far(), "listen 0 %s 0", there));
	static const char *const at[] = {"::", "10.9.0.1", "0.0.0.0", "::1"};

	set_ipv6_on_loopback(true);
	register_port_name(port, "its");
	for (unsigned i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		int fd = open_ipv6_socket(SOCK_STREAM);

		say("bound to %s", at[i]);
		SAY_RESULT(bind_to_mapped(fd, at[i], 0));
		register_port_name_of_fd(fd, "mine");
		say_local_address("name", fd);
		SAY_RESULT(connect_to_mapped(fd, there, port));
		say_local_address("name", fd);
		say_peer_address("peer", fd);
		if (i < 3)
			expect_offloaded(fd);
		close(fd);
		fd = open_ipv6_socket(SOCK_STREAM);
		SAY_RESULT(bind_to_mapped(fd, at[i], 0));
		SAY_RESULT(connect_to_mapped(fd, "::1", 9));
		say_so_error(fd);
		say("V6ONLY %d", dual_getsockopt_int_or_minus_1(fd, IPPROTO_IPV6, IPV6_V6ONLY));
		close(fd);
	}
	set_ipv6_on_loopback(false);
}

CASE(dual_tcp_wrong_names, "bind and connect: what is refused, and with what errno")
{
	struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(9)};
	struct sockaddr_in6 mapped = mapped_sockaddr_in6(there, 9);
	static const socklen_t lengths[] = {0, 1, 2, 16, 23, 24, 27, 28, 100};
	int fd;

	inet_pton(AF_INET, there, &four.sin_addr);
	for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		struct sockaddr_storage room = {0};

		fd = open_ipv6_socket(SOCK_STREAM);

		memcpy(&room, &mapped, sizeof(mapped));
		say("%u bytes", (unsigned)lengths[i]);
		SAY_RESULT(connect(fd, (struct sockaddr *)&room, lengths[i]));
		close(fd);
		fd = open_ipv6_socket(SOCK_STREAM);
		((struct sockaddr_in6 *)&room)->sin6_addr = mapped_sockaddr_in6(here, 0).sin6_addr;
		SAY_RESULT(bind(fd, (struct sockaddr *)&room, lengths[i]));
		close(fd);
	}
	fd = open_ipv6_socket(SOCK_STREAM);
	SAY_RESULT(connect(fd, (struct sockaddr *)&four, sizeof(four)));
	SAY_RESULT(connect(fd, (struct sockaddr *)&four, 28));
	SAY_RESULT(bind(fd, (struct sockaddr *)&four, sizeof(four)));
	SAY_RESULT(bind(fd, (struct sockaddr *)&four, 28));
	fd = socket(AF_INET, SOCK_STREAM, 0);
	SAY_RESULT(connect(fd, (struct sockaddr *)&mapped, sizeof(mapped)));
	SAY_RESULT(bind(fd, (struct sockaddr *)&mapped, sizeof(mapped)));
	mapped = mapped_sockaddr_in6("0.0.0.0", 9);
	SAY_RESULT(connect(open_ipv6_socket(SOCK_STREAM), (struct sockaddr *)&mapped, sizeof(mapped)));
	SAY_RESULT(connect_to_mapped(open_ipv6_socket(SOCK_STREAM), "::", 9));
	SAY_RESULT(connect_to_mapped(open_ipv6_socket(SOCK_STREAM), "255.255.255.255", 9));
	SAY_RESULT(connect_to_mapped(open_ipv6_socket(SOCK_STREAM), GROUP, 9));
	SAY_RESULT(connect_to_mapped(open_ipv6_socket(SOCK_STREAM), "10.77.0.1", 9));
	SAY_RESULT(connect_to_mapped(open_ipv6_socket(SOCK_STREAM), "2001:db8::1", 9));
	SAY_RESULT(connect_to_mapped(open_ipv6_socket(SOCK_STREAM), there, 9));
	SAY_RESULT(bind_to_mapped(open_ipv6_socket(SOCK_STREAM), "10.77.0.1", 0));
	SAY_RESULT(bind_to_mapped(open_ipv6_socket(SOCK_STREAM), "2001:db8::1", 0));
	SAY_RESULT(bind_to_mapped(open_ipv6_socket(SOCK_STREAM), GROUP, 0));
}

CASE(dual_ports, "whose port it is: ::, 0.0.0.0, mapped addresses and V6ONLY, of UDP and TCP")
{
	static const int types[] = {SOCK_DGRAM, SOCK_STREAM};
	static const char *const first[] = {"::", "10.9.0.1", "::"}, *const second[] = {"::", "0.0.0.0", "10.9.0.1"};

	for (unsigned t = 0; t < 2; t++) {
		for (unsigned i = 0; i < 3; i++) {
			for (unsigned k = 0; k < 3; k++) {
				int a = open_ipv6_socket(types[t]), b = open_ipv6_socket(types[t]);

				set_int(a, IPPROTO_IPV6, IPV6_V6ONLY, i == 2);
				SAY_OK_OR_ERROR(bind_to_mapped(a, first[i], 7105));
				if (types[t] == SOCK_STREAM)
					SAY_OK_OR_ERROR(listen(a, 1));
				say("%s%s, then %s", first[i], i == 2 ? " V6ONLY" : "", second[k]);
				SAY_RESULT(bind_to_mapped(b, second[k], 7105));
				close(a);
				close(b);
			}
		}
	}
}

/* Each by its number: names differ between headers. */
static void dual_say_ipv6_option_values(int fd, bool of_udp)
{
	static const int names[] = {
	        IPV6_UNICAST_HOPS, IPV6_TCLASS,       IPV6_V6ONLY,          IPV6_RECVPKTINFO,    IPV6_RECVHOPLIMIT,
	        IPV6_RECVTCLASS,   IPV6_MTU_DISCOVER, IPV6_RECVERR,         IPV6_DONTFRAG,       IPV6_AUTOFLOWLABEL,
	        IPV6_MTU,          IPV6_FREEBIND,     IPV6_RECVORIGDSTADDR, IPV6_MULTICAST_HOPS, IPV6_MULTICAST_LOOP,
	        IPV6_MULTICAST_IF, IPV6_MULTICAST_ALL};
	static const int ip_names[] = {IP_TTL, IP_TOS, IP_MTU_DISCOVER, IP_PKTINFO, IP_MULTICAST_TTL, IP_MULTICAST_ALL};
	const unsigned of_groups = of_udp ? 0 : 4, of_ip_groups = of_udp ? 0 : 2;

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]) - of_groups; i++)
		say("  IPV6 %d: %d", names[i], dual_getsockopt_int_or_minus_1(fd, IPPROTO_IPV6, names[i]));
	for (unsigned i = 0; i < sizeof(ip_names) / sizeof(ip_names[0]) - of_ip_groups; i++)
		say("  IP %d: %d", ip_names[i], dual_getsockopt_int_or_minus_1(fd, IPPROTO_IP, ip_names[i]));
	say("  SO_DOMAIN %d, IP_MTU %d, %s", dual_getsockopt_int_or_minus_1(fd, SOL_SOCKET, SO_DOMAIN),
	    dual_getsockopt_int_or_minus_1(fd, IPPROTO_IP, IP_MTU), of_udp ? "UDP" : "TCP");
}

static void say_path_mtu(int fd)
{
	struct ip6_mtuinfo info = {.ip6m_mtu = 77};
	socklen_t len = sizeof(info) - 1;

	SAY_RESULT(getsockopt(fd, IPPROTO_IPV6, IPV6_PATHMTU, &info, &len));
	len = sizeof(info) + 1;
	SAY_RESULT(getsockopt(fd, IPPROTO_IPV6, IPV6_PATHMTU, &info, &len));
	say("  IPV6_PATHMTU %u, family %d, %u bytes", info.ip6m_mtu, info.ip6m_addr.sin6_family, (unsigned)len);
}

static void set_ipv6_options_and_say_results(int fd)
{
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 33));
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 256));
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, IPV6_TCLASS, 0x20));
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, IPV6_TCLASS, 300));
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1));
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1));
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO));
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, IPV6_MTU, 1280));
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, IPV6_MTU, 1));
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1));
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET6));
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, 9999, 1));
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IP, IP_TTL, 44));
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IP, IP_TOS, 0x10));
}

CASE(dual_tcp_options, "options of IPv6 and IPv4 on a connection to a mapped address")
{
	int port = atoi(peer(far(), "listen 0 %s 0", there)), fd = open_ipv6_socket(SOCK_STREAM);

	say("new");
	dual_say_ipv6_option_values(fd, false);
	say_path_mtu(fd);
	SAY_RESULT(connect_to_mapped(fd, there, port));
	expect_offloaded(fd);
	say("connected");
	dual_say_ipv6_option_values(fd, false);
	say_path_mtu(fd);
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, IPV6_TCLASS, 0x20));
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 33));
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IP, IP_TTL, 44));
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1));
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, 9999, 1));
	/* IPV6_TCLASS makes the kernel forget its route, and with it the MTU, until something is sent. */
	peer(far(), "accept 0 1 2000");
	send_pattern_and_print_result(fd, 100, 1, 0);
	say_far_peer_reads(1, 100, 1, 1);
	say("set");
	dual_say_ipv6_option_values(fd, false);
	expect_offloaded(fd);
}

CASE(dual_tcp_inherits, "what a listener on :: has set is its connections'")
{
	int l = dual_open_ipv6_listener("::", 7106), fd;

	set_ipv6_options_and_say_results(l);
	SAY_RESULT(set_int(l, IPPROTO_TCP, TCP_NODELAY, 1));
	expect_offloaded(l);
	dual_far_peer_dials(1, here, 7106);
	fd = accept_and_say_peer(l, 0);
	expect_offloaded(fd);
	dual_say_ipv6_option_values(fd, false);
	say("TCP_NODELAY %d", dual_getsockopt_int_or_minus_1(fd, IPPROTO_TCP, TCP_NODELAY));
}

CASE(dual_tcp_addrform, "IPV6_ADDRFORM makes an AF_INET socket of a connection")
{
	int port = atoi(peer(far(), "listen 0 %s 0", there)), fd = open_ipv6_socket(SOCK_STREAM);

	register_port_name(port, "its");
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET));
	SAY_RESULT(connect_to_mapped(fd, there, port));
	peer(far(), "accept 0 1 2000");
	expect_offloaded(fd);
	register_port_name_of_fd(fd, "mine");
	send_pattern_and_print_result(fd, 500, 1, 0);
	SAY_OK_OR_ERROR(set_int(fd, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET));
	say("SO_DOMAIN %d", dual_getsockopt_int_or_minus_1(fd, SOL_SOCKET, SO_DOMAIN));
	say_local_address("name", fd);
	say_peer_address("peer", fd);
	say_far_peer_reads(1, 500, 1, 1);
	far_peer_writes(1, 600, 2, 1);
	recv_and_print_result(fd, 600, MSG_WAITALL);
}

/* ---- UDP ---- */

static void dual_say_cmsgs(struct msghdr *msg)
{
	char text[200];

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
		size_t len = c->cmsg_len - CMSG_LEN(0), used = 0;

		for (size_t i = 0; i < len && used + 4 < sizeof(text); i++)
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%02x", CMSG_DATA(c)[i]);
		say("  level %d type %d, %zu bytes: %s", c->cmsg_level, c->cmsg_type, len, len != 0 ? text : "");
	}
}

static void say_received_with_control6(int fd, int flags)
{
	char bytes[2000], control[512];
	struct sockaddr_storage from = {0};
	struct iovec iov = {.iov_base = bytes, .iov_len = sizeof(bytes)};
	struct msghdr msg = {.msg_name = &from,
	                     .msg_namelen = sizeof(from),
	                     .msg_iov = &iov,
	                     .msg_iovlen = 1,
	                     .msg_control = control,
	                     .msg_controllen = sizeof(control)};
	ssize_t len;

	if (!(flags & MSG_ERRQUEUE))
		wait_until_readable(fd, 2000);
	len = recvmsg(fd, &msg, flags | MSG_DONTWAIT);
	if (len < 0) {
		say("took nothing: %s", error_name(errno));
		return;
	}
	say("took %zd bytes from %s, flags %x", len, address_text(&from, msg.msg_namelen), msg.msg_flags);
	dual_say_cmsgs(&msg);
}

CASE(dual_udp_both, "a socket on :: receives IPv4 around the kernel and IPv6 by it, in one recvfrom and one poll")
{
	int s = ipv6_socket_bound_to(SOCK_DGRAM, "::", 7111), client = open_ipv6_socket(SOCK_DGRAM),
	    set = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN, .data.fd = s};

	set_ipv6_on_loopback(true);
	expect_offloaded(s);
	say_local_address("name", s);
	register_port_name(peer_ask_to_open_socket(far(), 0, there, 7112), "peer");
	SAY_RESULT(bind_to_mapped(client, "::1", 7113));
	expect_kernel_socket_for_reason(client, VMA_SOCK_IPV6);
	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
	SAY_RESULT(epoll_wait(set, &event, 1, 0));
	warm_up_until_offloaded_send(s, there, 7112);
	save_kernel_udp_counters();
	peer_send(far(), 0, here, 7111, 100, 1);
	SAY_RESULT(epoll_wait(set, &event, 1, 2000));
	take(s, 0, 0);
	SAY_RESULT(send_to_mapped(s, there, 7112, 50));
	say_peer_received(far(), 0, 2000);
	check_kernel_udp_was_bypassed(1, 1);
	SAY_RESULT(send_to_mapped(client, "::1", 7111, 60));
	SAY_RESULT(epoll_wait(set, &event, 1, 2000));
	take(s, 2000, 0);
	SAY_RESULT(send_to_mapped(s, "::1", 7113, 70));
	take(client, 2000, 0);
	peer_send(far(), 0, here, 7111, 100, 2);
	SAY_RESULT(send_to_mapped(client, "::1", 7111, 61));
	wait_until_sent_packets_arrived(20);
	for (int i = 0; i < 2; i++)
		SAY_RESULT(recv(s, (char[200]){0}, 200, MSG_DONTWAIT) > 0);
	take(s, 0, 0);
	SAY_RESULT(send_to_mapped(client, "127.0.0.1", 7111, 62));
	SAY_RESULT(send_to_mapped(s, "::", 7111, 63));
	take(s, 2000, 0);
	set_ipv6_on_loopback(false);
}

CASE(dual_udp_names, "sendto: AF_INET and mapped names, short ones, those of nobody; from a fresh socket")
{
	struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(7114)};
	struct sockaddr_in6 mapped = mapped_sockaddr_in6(there, 7114);
	static const socklen_t lengths[] = {0, 1, 2, 8, 16, 23, 24, 28};
	int s = open_ipv6_socket(SOCK_DGRAM), plain = socket(AF_INET, SOCK_DGRAM, 0);

	inet_pton(AF_INET, there, &four.sin_addr);
	peer_ask_to_open_socket(far(), 0, there, 7114);
	say_local_address("new", s);
	SAY_RESULT(sendto(s, "x", 1, 0, (struct sockaddr *)&mapped, sizeof(mapped)));
	register_port_name_of_fd(s, "us");
	say_local_address("sent", s);
	expect_offloaded(s);
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(sendto(s, "xy", 2, 0, (struct sockaddr *)&four, sizeof(four)));
	say_peer_received(far(), 0, 2000);
	for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		say("%u bytes", (unsigned)lengths[i]);
		SAY_RESULT(sendto(s, "x", 1, 0, (struct sockaddr *)&mapped, lengths[i]));
	}
	mapped.sin6_scope_id = 77;
	SAY_RESULT(sendto(s, "x", 1, 0, (struct sockaddr *)&mapped, sizeof(mapped)));
	mapped.sin6_flowinfo = htonl(5);
	SAY_RESULT(sendto(s, "x", 1, 0, (struct sockaddr *)&mapped, sizeof(mapped)));
	SAY_RESULT(send_to_mapped(s, there, 0, 1));
	SAY_RESULT(send_to_mapped(s, "0.0.0.0", 9, 1));
	SAY_RESULT(send_to_mapped(s, "10.77.0.1", 9, 1));
	SAY_RESULT(send_to_mapped(s, "10.9.0.255", 9, 1));
	SAY_RESULT(send_to_mapped(s, "2001:db8::1", 9, 1));
	SAY_RESULT(send(s, "x", 1, 0));
	mapped = mapped_sockaddr_in6(there, 7114);
	SAY_RESULT(sendto(plain, "x", 1, 0, (struct sockaddr *)&mapped, sizeof(mapped)));
}

CASE(dual_udp_connect, "connect to mapped addresses and to IPv6, dissolve, and again")
{
	struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(7115)};
	int s = open_ipv6_socket(SOCK_DGRAM), client;

	set_ipv6_on_loopback(true);
	register_port_name(peer_ask_to_open_socket(far(), 0, there, 7115), "peer");
	SAY_RESULT(connect_to_mapped(s, there, 7115));
	expect_offloaded(s);
	register_port_name_of_fd(s, "us");
	say_local_address("name", s);
	say_peer_address("peer", s);
	SAY_RESULT(send(s, "abc", 3, 0));
	say_peer_received(far(), 0, 2000);
	peer_send(far(), 0, here, port_of(s), 20, 1);
	take(s, 2000, 0);
	SAY_RESULT(send_to_mapped(s, "::1", 9, 5));
	SAY_RESULT(connect_to_mapped(s, "::1", 9));
	say_local_address("to IPv6", s);
	say_peer_address("to IPv6", s);
	SAY_RESULT(disconnect(s));
	say_local_address("dissolved", s);
	SAY_RESULT(connect_to_mapped(s, "::1", 7116));
	expect_kernel_socket_for_reason(s, VMA_SOCK_IPV6);
	register_port_name_of_fd(s, "again");
	say_local_address("IPv6", s);
	say_peer_address("IPv6", s);
	client = ipv6_socket_bound_to(SOCK_DGRAM, "::1", 7116);
	SAY_RESULT(send(s, "abcd", 4, 0));
	take(client, 2000, 0);
	SAY_RESULT(send_to_mapped(s, there, 7115, 5));
	SAY_RESULT(connect_to_mapped(s, there, 7115));
	SAY_RESULT(disconnect(s));
	SAY_RESULT(connect_to_mapped(s, there, 7115));
	expect_offloaded(s);
	register_port_name_of_fd(s, "third");
	say_local_address("mapped again", s);
	SAY_RESULT(send(s, "abcde", 5, 0));
	say_peer_received(far(), 0, 2000);
	inet_pton(AF_INET, there, &four.sin_addr);
	s = open_ipv6_socket(SOCK_DGRAM);
	SAY_RESULT(connect(s, (struct sockaddr *)&four, sizeof(four)));
	expect_offloaded(s);
	register_port_name_of_fd(s, "four");
	say_local_address("by AF_INET", s);
	say_peer_address("by AF_INET", s);
	set_ipv6_on_loopback(false);
}

CASE(dual_udp_bound, "bound to an address of one kind, sending to the other; V6ONLY")
{
	int s = open_ipv6_socket(SOCK_DGRAM);

	set_ipv6_on_loopback(true);
	peer_ask_to_open_socket(far(), 0, there, 7117);
	SAY_RESULT(bind_to_mapped(s, "::1", 7118));
	expect_kernel_socket_for_reason(s, VMA_SOCK_IPV6);
	SAY_RESULT(send_to_mapped(s, there, 7117, 5));
	SAY_RESULT(connect_to_mapped(s, there, 7117));
	close(s);
	s = open_ipv6_socket(SOCK_DGRAM);
	SAY_RESULT(bind_to_mapped(s, here, 7118));
	expect_offloaded(s);
	SAY_RESULT(send_to_mapped(s, "::1", 7117, 5));
	SAY_RESULT(connect_to_mapped(s, "::1", 7117));
	SAY_RESULT(send_to_mapped(s, there, 7117, 6));
	say_peer_received(far(), 0, 2000);
	close(s);
	s = open_ipv6_socket(SOCK_DGRAM);
	SAY_RESULT(set_int(s, IPPROTO_IPV6, IPV6_V6ONLY, 1));
	SAY_RESULT(send_to_mapped(s, there, 7117, 5));
	SAY_RESULT(connect_to_mapped(s, there, 7117));
	SAY_RESULT(bind_to_mapped(s, here, 7118));
	say_local_address("after all", s);
	close(s);
	s = open_ipv6_socket(SOCK_DGRAM);
	SAY_RESULT(set_int(s, IPPROTO_IPV6, IPV6_V6ONLY, 1));
	SAY_RESULT(bind_to_mapped(s, "::", 7119));
	expect_kernel_socket_for_reason(s, VMA_SOCK_IPV6);
	peer_send(far(), 0, here, 7119, 20, 1);
	wait_until_sent_packets_arrived(20);
	take(s, 0, 0);
	set_ipv6_on_loopback(false);
}

CASE(dual_udp_messages, "control messages of what comes by IPv4 to an AF_INET6 socket")
{
	int s = ipv6_socket_bound_to(SOCK_DGRAM, "::", 7121);
	static const struct {
		int level, name;
	} options[] = {{IPPROTO_IPV6, IPV6_RECVPKTINFO}, {IPPROTO_IPV6, IPV6_RECVHOPLIMIT},
	               {IPPROTO_IPV6, IPV6_RECVTCLASS},  {IPPROTO_IPV6, IPV6_RECVORIGDSTADDR},
	               {IPPROTO_IPV6, IPV6_2292PKTINFO}, {IPPROTO_IP, IP_PKTINFO},
	               {IPPROTO_IP, IP_RECVTTL},         {IPPROTO_IP, IP_RECVTOS},
	               {IPPROTO_IP, IP_RECVORIGDSTADDR}};

	peer_ask_to_open_socket(far(), 0, there, 7122);
	expect_offloaded(s);
	for (unsigned i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		say("level %d name %d", options[i].level, options[i].name);
		SAY_OK_OR_ERROR(set_int(s, options[i].level, options[i].name, 1));
		save_kernel_udp_counters();
		peer_send(far(), 0, here, 7121, 20, 1);
		say_received_with_control6(s, 0);
		check_kernel_udp_was_bypassed(1, 0);
	}
	for (unsigned i = 1; i < sizeof(options) / sizeof(options[0]); i++)
		SAY_OK_OR_ERROR(set_int(s, options[i].level, options[i].name, 0));
	expect_offloaded(s);
	peer_send(far(), 0, here_second, 7121, 20, 2);
	say_received_with_control6(s, 0);
}

static void dual_sendmsg_with_cmsg(int s, int level, int type, const void *data, size_t len)
{
	struct sockaddr_in6 to = mapped_sockaddr_in6(there, 7124);
	struct iovec iov = {.iov_base = (char[]){"with"}, .iov_len = 4};
	_Alignas(struct cmsghdr) char control[64] = {0};
	struct msghdr msg = {.msg_name = &to,
	                     .msg_namelen = sizeof(to),
	                     .msg_iov = &iov,
	                     .msg_iovlen = 1,
	                     .msg_control = control,
	                     .msg_controllen = CMSG_SPACE(len)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = level;
	c->cmsg_type = type;
	c->cmsg_len = CMSG_LEN(len);
	memcpy(CMSG_DATA(c), data, len);
	say("level %d type %d", level, type);
	if (SAY_RESULT(sendmsg(s, &msg, 0)) >= 0)
		say_peer_received(far(), 0, 2000);
}

CASE(dual_udp_sends_with, "control messages of what an AF_INET6 socket sends by IPv4")
{
	int s = ipv6_socket_bound_to(SOCK_DGRAM, "::", 7123), number = 9;
	struct in6_pktinfo info6 = {.ipi6_addr = mapped_sockaddr_in6(here, 0).sin6_addr};
	struct in_pktinfo info = {.ipi_ifindex = (int)if_nametoindex(if_first)};

	peer_ask_to_open_socket(far(), 0, there, 7124);
	expect_offloaded(s);
	warm_up_until_offloaded_send(s, there, 7124);
	for (int i = 0; i < 2; i++) {
		info6.ipi6_ifindex = i == 0 ? 0 : if_nametoindex(if_first);
		dual_sendmsg_with_cmsg(s, IPPROTO_IPV6, IPV6_PKTINFO, &info6, sizeof(info6));
		pause_ms(30); /* the way is looked up */
		save_kernel_udp_counters();
		dual_sendmsg_with_cmsg(s, IPPROTO_IPV6, IPV6_PKTINFO, &info6, sizeof(info6));
		check_kernel_udp_was_bypassed(0, 1);
	}
	info6.ipi6_ifindex = 9999;
	dual_sendmsg_with_cmsg(s, IPPROTO_IPV6, IPV6_PKTINFO, &info6, sizeof(info6));
	info6 = (struct in6_pktinfo){.ipi6_addr = mapped_sockaddr_in6(here_second, 0).sin6_addr};
	dual_sendmsg_with_cmsg(s, IPPROTO_IPV6, IPV6_PKTINFO, &info6, sizeof(info6));
	info6.ipi6_addr = mapped_sockaddr_in6("10.77.0.1", 0).sin6_addr;
	dual_sendmsg_with_cmsg(s, IPPROTO_IPV6, IPV6_PKTINFO, &info6, sizeof(info6));
	info6.ipi6_addr = mapped_sockaddr_in6("2001:db8::1", 0).sin6_addr;
	dual_sendmsg_with_cmsg(s, IPPROTO_IPV6, IPV6_PKTINFO, &info6, sizeof(info6));
	info6.ipi6_addr = mapped_sockaddr_in6("::", 0).sin6_addr;
	dual_sendmsg_with_cmsg(s, IPPROTO_IPV6, IPV6_PKTINFO, &info6, sizeof(info6));
	dual_sendmsg_with_cmsg(s, IPPROTO_IPV6, IPV6_PKTINFO, &info6, 8);
	dual_sendmsg_with_cmsg(s, IPPROTO_IP, IP_PKTINFO, &info, sizeof(info));
	dual_sendmsg_with_cmsg(s, IPPROTO_IPV6, IPV6_HOPLIMIT, &number, sizeof(number));
	dual_sendmsg_with_cmsg(s, IPPROTO_IPV6, IPV6_TCLASS, &number, sizeof(number));
	dual_sendmsg_with_cmsg(s, IPPROTO_IP, IP_TTL, &number, sizeof(number));
	dual_sendmsg_with_cmsg(s, IPPROTO_IP, IP_TOS, &number, sizeof(number));
	dual_sendmsg_with_cmsg(s, IPPROTO_IPV6, 9999, &number, sizeof(number));
	dual_sendmsg_with_cmsg(s, IPPROTO_IP, 9999, &number, sizeof(number));
}

CASE(dual_udp_options, "options of IPv6 and IPv4 on UDP sockets, and what leaves")
{
	int s = ipv6_socket_bound_to(SOCK_DGRAM, "::", 7125);

	peer_ask_to_open_socket(far(), 0, there, 7126);
	say("new");
	dual_say_ipv6_option_values(s, true);
	set_ipv6_options_and_say_results(s);
	say("set");
	dual_say_ipv6_option_values(s, true);
	SAY_RESULT(send_to_mapped(s, there, 7126, 10));
	say_peer_received(far(), 0, 2000);
	expect_offloaded(s);
	SAY_RESULT(connect_to_mapped(s, there, 7126));
	say("connected");
	dual_say_ipv6_option_values(s, true);
	SAY_RESULT(send(s, "abc", 3, 0));
	say_peer_received(far(), 0, 2000);
}

CASE(dual_udp_addrform, "IPV6_ADDRFORM makes an AF_INET socket of a connected one")
{
	int s = open_ipv6_socket(SOCK_DGRAM);

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 7127), "peer");
	SAY_OK_OR_ERROR(set_int(s, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET));
	SAY_RESULT(connect_to_mapped(s, there, 7127));
	expect_offloaded(s);
	register_port_name_of_fd(s, "us");
	peer_send(far(), 0, here, port_of(s), 20, 1);
	wait_until_readable(s, 2000);
	SAY_OK_OR_ERROR(set_int(s, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET));
	say("SO_DOMAIN %d", dual_getsockopt_int_or_minus_1(s, SOL_SOCKET, SO_DOMAIN));
	say_local_address("name", s);
	say_peer_address("peer", s);
	take(s, 2000, 0);
	peer_send(far(), 0, here, port_of(s), 20, 2);
	take(s, 2000, 0);
	SAY_RESULT(send(s, "abc", 3, 0));
	say_peer_received(far(), 0, 2000);
	expect_offloaded(s);
	SAY_OK_OR_ERROR(set_int(s, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET));
	SAY_OK_OR_ERROR(set_int(s, IPPROTO_IPV6, IPV6_TCLASS, 0));
}

CASE(dual_udp_refused, "a refusal: the error, and the error queue by IP_RECVERR and IPV6_RECVERR")
{
	static const int levels[] = {0, IPPROTO_IP, IPPROTO_IPV6};

	for (unsigned i = 0; i < 3; i++) {
		int s = open_ipv6_socket(SOCK_DGRAM);

		say("level %d", levels[i]);
		if (levels[i] != 0)
			SAY_RESULT(set_int(s, levels[i], levels[i] == IPPROTO_IP ? IP_RECVERR : IPV6_RECVERR, 1));
		SAY_RESULT(connect_to_mapped(s, there, 7128));
		SAY_RESULT(send(s, "abc", 3, 0));
		wait_and_print_poll_events("refused", s, POLLIN, 2000);
		say_received_with_control6(s, MSG_ERRQUEUE);
		say_received_with_control6(s, 0);
		say_so_error(s);
		close(s);
	}
}

/* 64 datagrams, each from a port of its own, so that the kernel's choice falls on several. */
static void send_from_64_ports(int port)
{
	for (int i = 0; i < 64; i++) {
		peer_ask_to_open_socket(far(), i, there, 0);
		peer_send(far(), i, here, port, 40, i);
	}
	wait_until_sent_packets_arrived(50);
}

static int dual_receive_and_count_datagrams(int s)
{
	char bytes[64];
	int n = 0;

	while (recv(s, bytes, sizeof(bytes), MSG_DONTWAIT) == 40)
		n++;
	return n;
}

static const char *none_some_or_all_of_64(int n)
{
	return n == 0 ? "none" : n == 64 ? "all" : "some";
}

static void say_shares_of_both_processes(int s, struct peer *other, int port)
{
	int mine, others = 0;

	send_from_64_ports(port);
	mine = dual_receive_and_count_datagrams(s);
	while (strncmp(peer(other, "recv 0 20"), "got", 3) == 0)
		others++;
	say("here %s, there %s, %d lost", none_some_or_all_of_64(mine), none_some_or_all_of_64(others),
	    64 - mine - others);
}

CASE(dual_shared_in_process, "of two sockets on one port that are equal otherwise, the one of AF_INET has IPv4")
{
	static const int options[] = {SO_REUSEPORT, SO_REUSEADDR};
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(7143)};

	for (int i = 0; i < 4; i++) {
		int s6 = open_ipv6_socket(SOCK_DGRAM), s4 = socket(AF_INET, SOCK_DGRAM, 0),
		    second = open_ipv6_socket(SOCK_DGRAM);

		set_int(s6, SOL_SOCKET, options[i % 2], 1);
		set_int(s4, SOL_SOCKET, options[i % 2], 1);
		set_int(second, SOL_SOCKET, options[i % 2], 1);
		if (i < 2)
			SAY_RESULT(bind_to_mapped(s6, "::", 7143));
		SAY_RESULT(bind(s4, (struct sockaddr *)&any, sizeof(any)));
		if (i >= 2)
			SAY_RESULT(bind_to_mapped(s6, "::", 7143));
		SAY_RESULT(bind_to_mapped(second, "::", 7143));
		expect_offloaded(s6);
		send_from_64_ports(7143);
		say("AF_INET %s, AF_INET6 %s", none_some_or_all_of_64(dual_receive_and_count_datagrams(s4)),
		    none_some_or_all_of_64(dual_receive_and_count_datagrams(s6) +
		                           dual_receive_and_count_datagrams(second)));
		close(s4);
		send_from_64_ports(7143);
		say("the first %s, the second %s", none_some_or_all_of_64(dual_receive_and_count_datagrams(s6)),
		    none_some_or_all_of_64(dual_receive_and_count_datagrams(second)));
		close(s6);
		close(second);
	}
}

static int dual_accept_all(int listener)
{
	int n = 0, fd;

	while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
		close(fd);
		n++;
	}
	return n;
}

CASE(dual_tcp_shared_in_process,
     "SO_REUSEPORT: a listener of AF_INET has IPv4 before those of AF_INET6, and one with the address before all")
{
	static const char *const sixes[] = {"::", "::", "10.9.0.1"};
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(7144)};
	int fd[4];

	for (int i = 0; i < 4; i++) {
		fd[i] = i < 3 ? open_ipv6_socket(SOCK_STREAM) : socket(AF_INET, SOCK_STREAM, 0);
		set_int(fd[i], SOL_SOCKET, SO_REUSEPORT, 1);
		SAY_RESULT(i < 3 ? bind_to_mapped(fd[i], sixes[i], 7144)
		                 : bind(fd[i], (struct sockaddr *)&any, sizeof(any)));
		SAY_RESULT(listen(fd[i], 64));
		expect_offloaded(fd[i]);
		SAY_RESULT(fcntl(fd[i], F_SETFL, O_NONBLOCK));
	}
	for (int left = 4; left > 1; left--) {
		int n[4] = {0};

		for (int i = 0; i < 32; i++)
			peer(far(), "dial %d %s 7144", i, here);
		wait_until_sent_packets_arrived(20);
		for (int i = 0; i < 4; i++)
			n[i] = fd[i] >= 0 ? dual_accept_all(fd[i]) : 0;
		say("the two on :: %s, with the address %s, AF_INET %s",
		    n[0] + n[1] == 32 ? "all"
		    : n[0] + n[1] > 0 ? "some"
		                      : "none",
		    n[2] == 32 ? "all"
		    : n[2] > 0 ? "some"
		               : "none",
		    n[3] == 32 ? "all"
		    : n[3] > 0 ? "some"
		               : "none");
		close(fd[left == 4 ? 2 : 3]);
		fd[left == 4 ? 2 : 3] = -1;
	}
}

CASE(dual_shared_with_plain,
     "SO_REUSEPORT on :: with a plain process that is on :: too: it gets its share, unless V6ONLY")
{
	static const int families[] = {AF_INET6, AF_INET};

	for (int i = 0; i < 2; i++) {
		int s = socket(families[i], SOCK_DGRAM, 0), port = 7141 + i;
		struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

		SAY_RESULT(set_int(s, SOL_SOCKET, SO_REUSEPORT, 1));
		SAY_RESULT(families[i] == AF_INET6 ? bind_to_mapped(s, "::", port)
		                                   : bind(s, (struct sockaddr *)&any, sizeof(any)));
		expect_offloaded(s);
		peer(near(), "both 0 %d %d 1", port, SO_REUSEPORT);
		pause_ms(1200);
		say_shares_of_both_processes(s, near(), port);
		expect_offloaded(s);
		peer(near(), "close 0");
		peer(near(), "both 0 %d %d 0", port, SO_REUSEPORT);
		expect_kernel_socket_for_reason(
		        s, VMA_SOCK_PORT_SHARED); /* vmad sees the other socket within some looks */
		say_shares_of_both_processes(s, near(), port);
		peer(near(), "close 0");
		expect_offloaded(s);
		send_from_64_ports(port);
		say("alone again %s", none_some_or_all_of_64(dual_receive_and_count_datagrams(s)));
		close(s);
	}
}

/* ---- groups ---- */

static int join_mcast_group_on_first_interface(int fd, int level, const char *group, int family)
{
	struct group_req request = {.gr_interface = if_nametoindex(if_first)};
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&request.gr_group;
	struct sockaddr_in *in = (struct sockaddr_in *)&request.gr_group;

	if (family == AF_INET6) {
		*in6 = mapped_sockaddr_in6(group, 0);
	} else {
		in->sin_family = AF_INET;
		inet_pton(AF_INET, group, &in->sin_addr);
	}
	return setsockopt(fd, level, MCAST_JOIN_GROUP, &request, sizeof(request));
}

CASE(dual_groups, "IPv4 groups of an AF_INET6 socket: how they are joined, what comes, what is looped")
{
	int s = ipv6_socket_bound_to(SOCK_DGRAM, "::", 7131), all = ipv6_socket_bound_to(SOCK_DGRAM, "::", 7132), plain;
	struct ip_mreqn request = {.imr_ifindex = (int)if_nametoindex(if_first)};
	struct ipv6_mreq request6 = {.ipv6mr_multiaddr = mapped_sockaddr_in6(GROUP, 0).sin6_addr,
	                             .ipv6mr_interface = if_nametoindex(if_first)};

	peer_ask_to_open_socket(far(), 0, there, 7133);
	peer(far(), "mcif 0 %s", there);
	SAY_RESULT(setsockopt(s, IPPROTO_IPV6, IPV6_JOIN_GROUP, &request6, sizeof(request6)));
	SAY_RESULT(join_mcast_group_on_first_interface(s, IPPROTO_IPV6, GROUP, AF_INET6));
	SAY_RESULT(join_mcast_group_on_first_interface(s, IPPROTO_IPV6, GROUP, AF_INET));
	SAY_RESULT(join_mcast_group_on_first_interface(s, IPPROTO_IP, GROUP, AF_INET6));
	SAY_RESULT(join_mcast_group_on_first_interface(s, IPPROTO_IP, GROUP, AF_INET));
	expect_offloaded(s);
	wait_until_sent_packets_arrived(60);
	save_kernel_udp_counters();
	peer_send(far(), 0, GROUP, 7131, 30, 1);
	take(s, 2000, 0);
	check_kernel_udp_was_bypassed(1, 0);
	peer_send(far(), 0, GROUP, 7132, 30, 2);
	wait_until_sent_packets_arrived(20);
	say("what others have joined: IP_MULTICAST_ALL is %d",
	    dual_getsockopt_int_or_minus_1(all, IPPROTO_IP, IP_MULTICAST_ALL));
	take(all, 0, 0);
	SAY_RESULT(set_int(all, IPPROTO_IP, IP_MULTICAST_ALL, 1));
	peer_send(far(), 0, GROUP, 7132, 30, 3);
	wait_until_sent_packets_arrived(20);
	take(all, 0, 0);
	inet_pton(AF_INET, GROUP, &request.imr_multiaddr);
	SAY_RESULT(setsockopt(all, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof(request)));
	SAY_RESULT(setsockopt(s, IPPROTO_IP, IP_DROP_MEMBERSHIP, &request, sizeof(request)));
	wait_until_sent_packets_arrived(60);
	peer_send(far(), 0, GROUP, 7131, 30, 4);
	wait_until_sent_packets_arrived(20);
	take(s, 0, 0);
	SAY_RESULT(set_int(s, IPPROTO_IP, IP_MULTICAST_LOOP, 0));
	say("loop: IP %d, IPV6 %d", dual_getsockopt_int_or_minus_1(s, IPPROTO_IP, IP_MULTICAST_LOOP),
	    dual_getsockopt_int_or_minus_1(s, IPPROTO_IPV6, IPV6_MULTICAST_LOOP));
	SAY_RESULT(setsockopt(s, IPPROTO_IP, IP_MULTICAST_IF, &request, sizeof(request)));
	SAY_RESULT(send_to_mapped(s, GROUP, 7132, 11));
	wait_until_sent_packets_arrived(20);
	take(all, 0, 0);
	SAY_RESULT(set_int(s, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 0));
	SAY_RESULT(send_to_mapped(s, GROUP, 7132, 12));
	wait_until_sent_packets_arrived(20);
	take(all, 0, 0);
	plain = open_ipv6_socket(SOCK_DGRAM);
	SAY_RESULT(connect_to_mapped(plain, GROUP, 7132));
	say_peer_address("to a group", plain);
	SAY_RESULT(bind_to_mapped(open_ipv6_socket(SOCK_DGRAM), GROUP, 7134));
}
