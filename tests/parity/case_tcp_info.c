/* tcp_info: what TCP_INFO says of a conversation, to the end of the kernel's structure. */
#include <linux/inet_diag.h>
#include <linux/tcp.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "parity.h"

/* Behind what the installed headers know. */
struct newest_info {
	struct tcp_info known;
	__u32 rcv_wnd, rehash;
	__u16 total_rto, total_rto_recoveries;
	__u32 total_rto_time;
	__u32 ecn[7];
	__u16 accecn_fail_mode, accecn_opt_seen;
};

static struct newest_info tcp_info_info_of(int fd)
{
	struct newest_info info;
	socklen_t len = sizeof(info);

	memset(&info, 0, sizeof(info));
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
		die_with_message("TCP_INFO: %s", error_name(errno));
	return info;
}

/* What is the same in each run. How acknowledgements are delayed is not: segments without data are not counted. */
static void say_stable_tcp_info(const char *when, int fd)
{
	const struct newest_info info = tcp_info_info_of(fd);
	const struct tcp_info *known = &info.known;

	say("%s: state %u, options %x, scale %u of the peer's, mss %u and %u", when, known->tcpi_state,
	    known->tcpi_options & 7, known->tcpi_snd_wscale, known->tcpi_snd_mss, known->tcpi_advmss);
	say("  acked %llu received %llu sent %llu again %llu not sent %u", (unsigned long long)known->tcpi_bytes_acked,
	    (unsigned long long)known->tcpi_bytes_received, (unsigned long long)known->tcpi_bytes_sent,
	    (unsigned long long)known->tcpi_bytes_retrans, known->tcpi_notsent_bytes);
	say("  with data: in %u out %u; delivered %u, marked %u", known->tcpi_data_segs_in, known->tcpi_data_segs_out,
	    known->tcpi_delivered, known->tcpi_delivered_ce);
	say("  duplicates %u reordered %u out of order %u", known->tcpi_dsack_dups, known->tcpi_reord_seen,
	    known->tcpi_rcv_ooopack);
	say("  rehash %u, timeouts %u, recoveries %u, in %u ms", info.rehash, info.total_rto, info.total_rto_recoveries,
	    info.total_rto_time);
	say("  max pacing rate %s", known->tcpi_max_pacing_rate == ~0ULL ? "none" : "some");
	say("  time limited by the peer's window %s, by the send buffer %s",
	    known->tcpi_rwnd_limited == 0 ? "none" : "some", known->tcpi_sndbuf_limited == 0 ? "none" : "some");
}

/* Within bounds that hold for every host. */
static void say_tcp_info_is_in_bounds(int fd)
{
	const struct newest_info info = tcp_info_info_of(fd);
	const struct tcp_info *known = &info.known;

	say("min rtt %s", known->tcpi_min_rtt > 0 && known->tcpi_min_rtt < 200000 ? "sane" : "odd");
	say("windows: the peer's %s, ours %s", known->tcpi_snd_wnd > 1000 ? "sane" : "odd",
	    info.rcv_wnd > 1000 ? "sane" : "odd");
	say("pacing rate %s", known->tcpi_pacing_rate > 10000 ? "sane" : "odd");
}

/* In a ping-pong, in which each acknowledgement goes along with data, all segments are known. */
static void tcp_info_ping_pong(int fd, int slot, int times)
{
	for (int i = 0; i < times; i++) {
		send_pattern_and_print_result(fd, 1000, 1 + i, 0);
		say_far_peer_reads(slot, 1000, 1 + i, 1);
		far_peer_writes(slot, 500, 100 + i, 1);
		recv_and_print_result(fd, 500, MSG_WAITALL);
	}
	wait_until_sent_packets_arrived(100);
}

CASE(tcp_info_conversation, "TCP_INFO: bytes and segments of a short conversation, from its SYN to its end")
{
	int s = tcp_connected_to_far_peer();

	wait_until_sent_packets_arrived(20);
	say_stable_tcp_info("connected", s);
	tcp_info_ping_pong(s, 1, 3);
	say_stable_tcp_info("talked", s);
	say_tcp_info_is_in_bounds(s);
	far_peer_shuts_down(1, SHUT_WR);
	wait_until_sent_packets_arrived(100);
	say_stable_tcp_info("the peer has ended", s);
	send_pattern_and_print_result(s, 10, 1, 0);
	SAY_RESULT(shutdown(s, SHUT_WR));
	say_far_peer_reads(1, 10, 1, 1);
	say_far_peer_reads(1, 1, 0, 1);
	wait_until_sent_packets_arrived(100);
	close(s);
}

CASE(tcp_info_accepted, "TCP_INFO of the side that was asked; it ends first")
{
	int s = tcp_accepted_from_far_peer(NULL);

	wait_until_sent_packets_arrived(20);
	say_stable_tcp_info("connected", s);
	tcp_info_ping_pong(s, 1, 2);
	say_stable_tcp_info("talked", s);
	say_tcp_info_is_in_bounds(s);
	SAY_RESULT(shutdown(s, SHUT_WR));
	wait_until_sent_packets_arrived(100);
	say_stable_tcp_info("ended", s);
	say_far_peer_reads(1, 1, 0, 1);
	close(s);
}

CASE(tcp_info_segments, "TCP_INFO: the segments of a handshake, and of the first bytes")
{
	int s = tcp_connected_to_far_peer();
	struct newest_info info;

	wait_until_sent_packets_arrived(20);
	info = tcp_info_info_of(s);
	say("connected: in %u out %u", info.known.tcpi_segs_in, info.known.tcpi_segs_out);
	send_pattern_and_print_result(s, 1000, 1, 0);
	say_far_peer_reads(1, 1000, 1, 1);
	wait_until_sent_packets_arrived(20);
	info = tcp_info_info_of(s);
	say("sent: in %u out %u", info.known.tcpi_segs_in, info.known.tcpi_segs_out);
	close(s);
	s = tcp_accepted_from_far_peer(NULL);
	wait_until_sent_packets_arrived(20);
	info = tcp_info_info_of(s);
	say("accepted: in %u out %u", info.known.tcpi_segs_in, info.known.tcpi_segs_out);
	send_pattern_and_print_result(s, 1000, 1, 0);
	say_far_peer_reads(1, 1000, 1, 1);
	wait_until_sent_packets_arrived(20);
	info = tcp_info_info_of(s);
	say("sent: in %u out %u", info.known.tcpi_segs_in, info.known.tcpi_segs_out);
	close(s);
}

CASE(tcp_info_many_bytes, "TCP_INFO: bytes of larger transfers, each way, and what a reader has not read")
{
	int s = tcp_connected_to_far_peer();

	for (int i = 0; i < 5; i++) {
		send_pattern_and_print_result(s, 60000, i, 0);
		say_far_peer_reads(1, 60000, i, 1);
		far_peer_writes(1, 50000, i, 1);
		if (i < 4)
			recv_and_print_result(s, 50000, MSG_WAITALL);
	}
	wait_until_sent_packets_arrived(100);
	for (int i = 0; i < 1; i++) {
		const struct newest_info info = tcp_info_info_of(s);

		say("acked %llu received %llu not sent %u", (unsigned long long)info.known.tcpi_bytes_acked,
		    (unsigned long long)info.known.tcpi_bytes_received, info.known.tcpi_notsent_bytes);
		say("sent, but for what was sent again: %llu",
		    (unsigned long long)(info.known.tcpi_bytes_sent - info.known.tcpi_bytes_retrans));
		say("segments with data: out %s in %s",
		    info.known.tcpi_data_segs_out >= 60000 * 5 / 1460 ? "sane" : "odd",
		    info.known.tcpi_data_segs_in > 0 ? "sane" : "odd");
	}
	close(s);
}

/* The library hears of a new route a moment later than the kernel: the first connection that has its window, or one
 * that has not after three seconds. */
static int tcp_connect_until_route_cwnd_applies(unsigned window)
{
	const uint64_t end = now_ms() + 3000;

	for (;;) {
		const int s = tcp_connected_to_far_peer();

		if (tcp_info_info_of(s).known.tcpi_snd_cwnd == window || now_ms() > end)
			return s;
		close(s);
		pause_ms(10);
	}
}

CASE(tcp_info_metrics, "TCP_INFO: advmss and initcwnd of the route, of both kinds of connections")
{
	int s, listener;
	char command[200];
	struct newest_info info;

	snprintf(command, sizeof(command), "ip route replace %s/32 dev %s src %s advmss 900 initcwnd 33", there,
	         if_first, here);
	run_shell_command_here(command);
	s = tcp_connect_until_route_cwnd_applies(33);
	info = tcp_info_info_of(s);
	say("out: window %u, announced %u", info.known.tcpi_snd_cwnd, info.known.tcpi_advmss);
	close(s);
	s = tcp_accepted_from_far_peer(&listener);
	info = tcp_info_info_of(s);
	say("in: window %u", info.known.tcpi_snd_cwnd);
	close(s);
	close(listener);
	snprintf(command, sizeof(command), "ip route del %s/32 dev %s", there, if_first);
	run_shell_command_here(command);
}

CASE(tcp_info_not_sent, "TCP_INFO: what waits behind a cork")
{
	int s = tcp_connected_to_far_peer();
	struct newest_info info;

	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_CORK, 1));
	send_pattern_and_print_result(s, 700, 1, 0);
	info = tcp_info_info_of(s);
	say("not sent %u, sent %llu", info.known.tcpi_notsent_bytes, (unsigned long long)info.known.tcpi_bytes_sent);
	SAY_RESULT(set_int(s, IPPROTO_TCP, TCP_CORK, 0));
	say_far_peer_reads(1, 700, 1, 1);
	wait_until_sent_packets_arrived(20);
	info = tcp_info_info_of(s);
	say("not sent %u, sent %llu", info.known.tcpi_notsent_bytes, (unsigned long long)info.known.tcpi_bytes_sent);
	close(s);
}

CASE(tcp_info_sent_again, "TCP_INFO: what had to be sent again is counted, and apart")
{
	int s = tcp_connected_to_far_peer();
	struct newest_info info;

	send_pattern_and_print_result(s, 1000, 1, 0);
	say_far_peer_reads(1, 1000, 1, 1);
	peer_run_shell_command(far(), "ip route add blackhole 10.9.0.1/32");
	send_pattern_and_print_result(s, 1000, 2, 0);
	pause_ms(900);
	info = tcp_info_info_of(s);
	say("not acknowledged %u, acked %llu, delivered %u", info.known.tcpi_unacked,
	    (unsigned long long)info.known.tcpi_bytes_acked, info.known.tcpi_delivered);
	say("again %s, timeouts %s", info.known.tcpi_bytes_retrans > 0 ? "some" : "none",
	    info.total_rto > 0 ? "some" : "none");
	say("once %llu", (unsigned long long)(info.known.tcpi_bytes_sent - info.known.tcpi_bytes_retrans));
	say("segments of 1000 bytes: %s",
	    info.known.tcpi_data_segs_out * 1000ULL == info.known.tcpi_bytes_sent &&
	                    info.known.tcpi_total_retrans * 1000ULL == info.known.tcpi_bytes_retrans
	            ? "all"
	            : "not all");
	peer_run_shell_command(far(), "ip route del blackhole 10.9.0.1/32");
	say_far_peer_reads(1, 1000, 2, 1);
	pause_ms(1500);
	info = tcp_info_info_of(s);
	say("not acknowledged %u, acked %llu, delivered %u", info.known.tcpi_unacked,
	    (unsigned long long)info.known.tcpi_bytes_acked, info.known.tcpi_delivered);
	say("came twice %u", info.known.tcpi_dsack_dups);
	close(s);
}

static void say_tcp_info_of_each_length(const char *what, int fd)
{
	static const socklen_t rooms[] = {0, 1, 7, 8, 103, 104, 105, 192, 232, 247, 280, 300, 512, 1000, (socklen_t)-1};

	for (size_t i = 0; i < sizeof(rooms) / sizeof(rooms[0]); i++) {
		unsigned char info[1000];
		socklen_t len = rooms[i];
		size_t end = sizeof(info);

		memset(info, 0xee, sizeof(info));
		if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len) != 0) {
			say("%s, room for %d: %s", what, (int)rooms[i], error_name(errno));
			continue;
		}
		while (end > 0 && info[end - 1] == 0xee)
			end--;
		say("%s, room for %d: %u, %s", what, (int)rooms[i], len, end <= len ? "no more" : "more than that");
	}
	errno = 0;
	SAY_RESULT(getsockopt(fd, IPPROTO_TCP, TCP_INFO, bad_pointer(), &(socklen_t){100}));
}

CASE(tcp_info_lengths, "TCP_INFO: as long as the kernel's, cut to what is asked for; of each kind of socket")
{
	int l = tcp_listener(here, 0, 5), s = tcp_socket();

	say_tcp_info_of_each_length("listener", l);
	close(l);
	say_tcp_info_of_each_length("new", s);
	close(s);
	s = tcp_connected_to_far_peer();
	say_tcp_info_of_each_length("connected", s);
	close(s);
}

/* Its gains are those of STARTUP: a conversation never fills a path. */
static void say_cc_info(int fd, const char *name, socklen_t room)
{
	union tcp_cc_info info;
	socklen_t len = room;

	memset(&info, 0, sizeof(info));
	errno = 0;
	SAY_RESULT(getsockopt(fd, IPPROTO_TCP, TCP_CC_INFO, &info, &len));
	say("%s, room for %d: %u; rate %s, round trip %s, gains %u and %u", name, (int)room, len,
	    info.bbr.bbr_bw_lo != 0 ? "known" : "none",
	    info.bbr.bbr_min_rtt > 0 && info.bbr.bbr_min_rtt < 200000 ? "sane" : "odd", info.bbr.bbr_pacing_gain,
	    info.bbr.bbr_cwnd_gain);
}

CASE(tcp_info_congestion,
     "TCP_CC_INFO: what the congestion control says of itself, by those that have something to say")
{
	static const char *const names[] = {"cubic", "reno", "bbr"};
	int s = tcp_socket();

	SAY_RESULT(setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
	say_cc_info(s, "new", sizeof(union tcp_cc_info));
	close(s);
	s = tcp_connected_to_far_peer();
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, names[i], (socklen_t)strlen(names[i])) != 0)
			continue; /* this kernel does not know it */
		tcp_info_ping_pong(s, 1, 3);
		say_cc_info(s, names[i], sizeof(union tcp_cc_info));
		say_cc_info(s, names[i], 8);
		say_cc_info(s, names[i], 0);
		say_cc_info(s, names[i], (socklen_t)-1);
	}
	SAY_RESULT(getsockopt(s, IPPROTO_TCP, TCP_CC_INFO, bad_pointer(), &(socklen_t){20}));
	close(s);
}
