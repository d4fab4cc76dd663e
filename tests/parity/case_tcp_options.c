/* tcp_options: setsockopt and getsockopt of TCP sockets: values, ranges, errors. */
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parity.h"

static void tcp_options_say_option(int fd, const char *name, int level, int option)
{
	int value = -77;
	socklen_t len = sizeof(value);

	if (getsockopt(fd, level, option, &value, &len) != 0)
		say("%s: %s", name, error_name(errno));
	else
		say("%s = %d (%u)", name, value, len);
}
#define OPTION(level, option) tcp_options_say_option(s, #option, level, option)
#define SET(level, option, value)                                                                                      \
	do {                                                                                                           \
		int rc_ = set_int(s, level, option, value);                                                            \
		say("set " #option " %d: %s", value, rc_ == 0 ? "ok" : error_name(errno));                             \
		tcp_options_say_option(s, #option, level, option);                                                     \
	} while (0)

static void tcp_options_say_all(int s)
{
	OPTION(IPPROTO_TCP, TCP_NODELAY);
	OPTION(IPPROTO_TCP, TCP_CORK);
	OPTION(IPPROTO_TCP, TCP_KEEPIDLE);
	OPTION(IPPROTO_TCP, TCP_KEEPINTVL);
	OPTION(IPPROTO_TCP, TCP_KEEPCNT);
	OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT);
	OPTION(IPPROTO_TCP, TCP_SYNCNT);
	OPTION(IPPROTO_TCP, TCP_LINGER2);
	OPTION(IPPROTO_TCP, TCP_DEFER_ACCEPT);
	OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT);
	OPTION(SOL_SOCKET, SO_KEEPALIVE);
	OPTION(SOL_SOCKET, SO_OOBINLINE);
	OPTION(SOL_SOCKET, SO_REUSEADDR);
	OPTION(SOL_SOCKET, SO_REUSEPORT);
	OPTION(SOL_SOCKET, SO_TYPE);
	OPTION(SOL_SOCKET, SO_PROTOCOL);
	OPTION(SOL_SOCKET, SO_DOMAIN);
	OPTION(SOL_SOCKET, SO_RCVLOWAT);
	OPTION(IPPROTO_IP, IP_TOS);
	OPTION(IPPROTO_IP, IP_TTL);
}

CASE(tcp_options_defaults, "options as they are at first, on a new and on a connected socket")
{
	int s = tcp_socket();

	tcp_options_say_all(s);
	OPTION(SOL_SOCKET, SO_SNDBUF);
	OPTION(SOL_SOCKET, SO_RCVBUF);
	OPTION(IPPROTO_TCP, TCP_MAXSEG);
	close(s);
	s = tcp_connected_to_far_peer();
	tcp_options_say_all(s);
	OPTION(IPPROTO_TCP, TCP_MAXSEG);
	close(s);
}

CASE(tcp_options_set, "options that are set, within and outside of their ranges, while connected")
{
	int s = tcp_connected_to_far_peer();

	SET(IPPROTO_TCP, TCP_NODELAY, 1);
	SET(IPPROTO_TCP, TCP_NODELAY, 5);
	SET(IPPROTO_TCP, TCP_NODELAY, 0);
	SET(IPPROTO_TCP, TCP_CORK, 1);
	SET(IPPROTO_TCP, TCP_CORK, 0);
	SET(IPPROTO_TCP, TCP_KEEPIDLE, 10);
	SET(IPPROTO_TCP, TCP_KEEPIDLE, 0);
	SET(IPPROTO_TCP, TCP_KEEPIDLE, 40000);
	SET(IPPROTO_TCP, TCP_KEEPINTVL, 3);
	SET(IPPROTO_TCP, TCP_KEEPINTVL, -1);
	SET(IPPROTO_TCP, TCP_KEEPCNT, 4);
	SET(IPPROTO_TCP, TCP_KEEPCNT, 128);
	SET(IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
	SET(IPPROTO_TCP, TCP_USER_TIMEOUT, -5);
	SET(IPPROTO_TCP, TCP_SYNCNT, 3);
	SET(IPPROTO_TCP, TCP_SYNCNT, 300);
	SET(IPPROTO_TCP, TCP_LINGER2, 30);
	SET(IPPROTO_TCP, TCP_LINGER2, -1);
	SET(IPPROTO_TCP, TCP_DEFER_ACCEPT, 5);
	SET(IPPROTO_TCP, TCP_QUICKACK, 1);
	SET(IPPROTO_TCP, TCP_NOTSENT_LOWAT, 10000);
	SET(IPPROTO_TCP, TCP_MAXSEG, 50);
	SET(SOL_SOCKET, SO_KEEPALIVE, 1);
	SET(SOL_SOCKET, SO_OOBINLINE, 1);
	SET(SOL_SOCKET, SO_RCVBUF, 100000);
	SET(SOL_SOCKET, SO_SNDBUF, 100000);
	SET(SOL_SOCKET, SO_RCVBUF, 1);
	SET(SOL_SOCKET, SO_SNDBUF, 1);
	SET(SOL_SOCKET, SO_RCVLOWAT, 100);
	SET(IPPROTO_IP, IP_TOS, 0x10);
	SET(IPPROTO_IP, IP_TTL, 5);
	SET(IPPROTO_IP, IP_TTL, 300);
	SAY_RESULT(setsockopt(s, IPPROTO_TCP, TCP_NODELAY, bad_pointer(), 4));
	SAY_RESULT(setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &s, 1));
	SAY_RESULT(setsockopt(s, IPPROTO_TCP, 12345, &s, 4));
	SAY_RESULT(getsockopt(s, IPPROTO_TCP, TCP_NODELAY, bad_pointer(), bad_pointer()));
	send_pattern_and_print_result(s, 10, 1, 0);
	say_far_peer_reads(1, 10, 1, 1);
	close(s);
}

CASE(tcp_options_short, "getsockopt into less room than the value has")
{
	int s = tcp_connected_to_far_peer();
	unsigned char value[8] = {9, 9, 9, 9, 9, 9, 9, 9};
	socklen_t len = 1;

	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_NODELAY, 1));
	SAY_RESULT(getsockopt(s, IPPROTO_TCP, TCP_NODELAY, value, &len));
	say("%d %d (%u)", value[0], value[1], len);
	len = 0;
	SAY_RESULT(getsockopt(s, IPPROTO_TCP, TCP_NODELAY, value, &len));
	len = (socklen_t)-1;
	SAY_RESULT(getsockopt(s, IPPROTO_TCP, TCP_NODELAY, value, &len));
	close(s);
}

static void say_congestion(int s, socklen_t room)
{
	char name[20] = "";
	socklen_t len = room;

	SAY_RESULT(getsockopt(s, IPPROTO_TCP, TCP_CONGESTION, name, &len));
	say("%s (%u)", name, len);
}

static void set_congestion(int s, const char *name, socklen_t len)
{
	long rc = setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, name, len);

	say("set %s (%u): %s", name, len, rc == 0 ? "ok" : error_name(errno));
	say_congestion(s, 20);
}

static void say_congestion_options(int s)
{
	say_congestion(s, 20);
	say_congestion(s, 16);
	say_congestion(s, 3);
	set_congestion(s, "reno", 4);
	set_congestion(s, "cubic", 6);
	set_congestion(s, "nosuch", 6);
	set_congestion(s, "newreno", 7);
	set_congestion(s, "none", 4);
	set_congestion(s, "reno, and more than any name has", 32);
	set_congestion(s, "reno", 0);
	SAY_RESULT(setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, bad_pointer(), 4));
	set_congestion(s, "reno", 5);
}

CASE(tcp_options_congestion, "TCP_CONGESTION: the name, known ones, unknown ones; before and while it is connected")
{
	int s = tcp_socket();

	say_congestion_options(s);
	close(s);
	s = tcp_connected_to_far_peer();
	say_congestion_options(s);
	send_pattern_and_print_result(s, 10, 1, 0);
	say_far_peer_reads(1, 10, 1, 1);
	close(s);
}

CASE(tcp_options_info, "TCP_INFO: state and what does not differ from run to run")
{
	int s = tcp_connected_to_far_peer();
	struct tcp_info info;
	socklen_t len = sizeof(info);

	send_pattern_and_print_result(s, 1000, 1, 0);
	say_far_peer_reads(1, 1000, 1, 1);
	far_peer_writes(1, 500, 2, 1);
	recv_and_print_result(s, 500, MSG_WAITALL);
	wait_until_sent_packets_arrived(60);
	memset(&info, 0, sizeof(info));
	SAY_RESULT(getsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &len));
	say("state %d ca %d retransmits %d probes %d backoff %d", info.tcpi_state, info.tcpi_ca_state,
	    info.tcpi_retransmits, info.tcpi_probes, info.tcpi_backoff);
	say("options %x", info.tcpi_options & 7);
	say("mss %u %s, unacked %u lost %u retrans %u", info.tcpi_snd_mss, info.tcpi_rcv_mss > 100 ? "sane" : "odd",
	    info.tcpi_unacked, info.tcpi_lost, info.tcpi_retrans);
	say("cwnd %s", info.tcpi_snd_cwnd >= 10 && info.tcpi_snd_cwnd < 100 ? "sane" : "odd");
	say("rtt %s", info.tcpi_rtt > 0 && info.tcpi_rtt < 200000 ? "sane" : "odd");
	say("rto %s", info.tcpi_rto >= 200000 && info.tcpi_rto < 500000 ? "sane" : "odd");
	close(s);
	s = tcp_socket();
	len = sizeof(info);
	SAY_RESULT(getsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &len));
	say("state %d", info.tcpi_state);
	close(s);
}

CASE(tcp_options_maxseg, "TCP_MAXSEG before connect bounds segments, and the peer is told")
{
	int port = atoi(peer(far(), "listen 0 %s 0", there)), s = tcp_socket();
	struct sockaddr_in address = ipv4_sockaddr_of(there, port);

	SET(IPPROTO_TCP, TCP_MAXSEG, 600);
	SAY_RESULT(connect(s, (struct sockaddr *)&address, sizeof(address)));
	expect_offloaded(s);
	peer(far(), "accept 0 1 2000");
	OPTION(IPPROTO_TCP, TCP_MAXSEG);
	send_pattern_and_print_result(s, 5000, 1, 0);
	say_far_peer_reads(1, 5000, 1, 1);
	far_peer_writes(1, 5000, 2, 1);
	recv_and_print_result(s, 5000, MSG_WAITALL);
	close(s);
}

CASE(tcp_options_while_connecting,
     "TCP_MAXSEG, IP_MTU and TCP_WINDOW_CLAMP while a connection is being made, and after")
{
	int port = atoi(peer(far(), "listen 0 %s 0", there)), s = tcp_socket();
	struct sockaddr_in address = ipv4_sockaddr_of(there, port);

	OPTION(IPPROTO_TCP, TCP_WINDOW_CLAMP);
	peer_run_shell_command(far(), "ip route add blackhole 10.9.0.1/32");
	SAY_RESULT(fcntl(s, F_SETFL, O_NONBLOCK));
	SAY_RESULT(connect(s, (struct sockaddr *)&address, sizeof(address)));
	OPTION(IPPROTO_TCP, TCP_MAXSEG);
	OPTION(IPPROTO_IP, IP_MTU);
	peer_run_shell_command(far(), "ip route del blackhole 10.9.0.1/32");
	wait_and_print_poll_events("connected", s, POLLOUT, 5000);
	OPTION(IPPROTO_TCP, TCP_MAXSEG);
	OPTION(IPPROTO_IP, IP_MTU);
	OPTION(IPPROTO_TCP, TCP_WINDOW_CLAMP);
	SET(IPPROTO_TCP, TCP_WINDOW_CLAMP, 0);
	SET(IPPROTO_TCP, TCP_WINDOW_CLAMP, 30000);
	expect_offloaded(s);
	close(s);
	s = tcp_socket();
	SET(SOL_SOCKET, SO_RCVBUF, 20000);
	SAY_RESULT(connect(s, (struct sockaddr *)&address, sizeof(address)));
	OPTION(IPPROTO_TCP, TCP_WINDOW_CLAMP);
	close(s);
}

CASE(tcp_options_meminfo, "SO_MEMINFO: the limits, and whether something is queued")
{
	int s = tcp_connected_to_far_peer(), buffer = 0;
	uint32_t words[9] = {0};
	socklen_t len = 7;

	SAY_RESULT(set_int(s, SOL_SOCKET, SO_RCVBUF, 50000));
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_SNDBUF, 60000));
	SAY_RESULT(getsockopt(s, SOL_SOCKET, SO_MEMINFO, words, &len));
	say("%u", len);
	len = sizeof(words);
	SAY_RESULT(getsockopt(s, SOL_SOCKET, SO_MEMINFO, words, &len));
	say("%u: read %u of %u, written %u of %u", len, words[0], words[1], words[5], words[3]);
	far_peer_writes(1, 1000, 1, 1);
	wait_until_readable(s, 2000);
	len = 400;
	SAY_RESULT(getsockopt(s, SOL_SOCKET, SO_MEMINFO, words, &len));
	say("%u: read %s of %u, written %u of %u", len, words[0] > 0 ? "some" : "none", words[1], words[5], words[3]);
	len = sizeof(buffer);
	SAY_RESULT(getsockopt(s, SOL_SOCKET, SO_RCVBUF, &buffer, &len));
	say("%d", buffer);
	recv_and_print_result(s, 1000, MSG_WAITALL);
	close(s);
}

CASE(tcp_options_defer_accept, "TCP_DEFER_ACCEPT: a connection is there when its first bytes are")
{
	int l = tcp_socket_bound_to(here, 0), s;

	s = l;
	SET(IPPROTO_TCP, TCP_DEFER_ACCEPT, 5);
	SAY_RESULT(listen(l, 5));
	expect_offloaded(l);
	register_port_name(atoi(peer(far(), "dial 1 %s %d", here, port_of(l))), "its");
	wait_and_print_poll_events("connected", l, POLLIN, 100);
	far_peer_writes(1, 10, 1, 1);
	wait_and_print_poll_events("bytes", l, POLLIN, 1000);
	s = SAY_OK_OR_ERROR(accept(l, NULL, NULL));
	recv_and_print_result(s, 10, MSG_WAITALL);
	close(s);
	close(l);
}

CASE(tcp_options_user_timeout, "TCP_USER_TIMEOUT: a peer that has gone is noticed")
{
	int s = tcp_connected_to_far_peer();
	uint64_t since;
	char c;

	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_USER_TIMEOUT, 600));
	peer_run_shell_command(far(), "ip route add blackhole 10.9.0.1/32");
	send_pattern_and_print_result(s, 10, 1, 0);
	since = now_ms();
	SAY_RESULT(recv(s, &c, 1, 0));
	say("it took %s", now_ms() - since >= 500 && now_ms() - since < 2500 ? "about as long" : "another time");
	send_pattern_and_print_result(s, 10, 1, MSG_NOSIGNAL);
	peer_run_shell_command(far(), "ip route del blackhole 10.9.0.1/32");
	close(s);
}

CASE(tcp_options_keepalive, "keepalive: a peer that has gone is noticed by an idle connection")
{
	int s = tcp_connected_to_far_peer();
	uint64_t since;
	char c;

	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_KEEPIDLE, 1));
	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_KEEPINTVL, 1));
	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_KEEPCNT, 2));
	SAY_RESULT(set_int(s, SOL_SOCKET, SO_KEEPALIVE, 1));
	peer_run_shell_command(far(), "ip route add blackhole 10.9.0.1/32");
	since = now_ms();
	SAY_RESULT(recv(s, &c, 1, 0));
	say("it took %s", now_ms() - since >= 2500 && now_ms() - since < 4500 ? "about as long" : "another time");
	peer_run_shell_command(far(), "ip route del blackhole 10.9.0.1/32");
	close(s);
}
