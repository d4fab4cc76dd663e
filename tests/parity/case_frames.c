/* Frames that the kernel does not take for its own, or only with care: what MAC, source and IP options they have. */
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "parity.h"

#define STRANGER "02:00:00:00:00:77"
#define GROUP "239.5.5.5"

static const char *own_mac(void)
{
	static char text[18];
	struct ifreq req = {0};
	unsigned char mac[6];
	int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

	snprintf(req.ifr_name, sizeof(req.ifr_name), "%s", if_first);
	if (ioctl(fd, SIOCGIFHWADDR, &req) != 0)
		die_with_message("%s has no MAC", if_first);
	close(fd);
	memcpy(mac, req.ifr_hwaddr.sa_data, 6);
	snprintf(text, sizeof(text), "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
	return text;
}

/* ---- datagrams ---- */

struct odd_frame {
	const char *what, *mac, *source, *dest, *options; /* NULL: as it should be */
};

/* One behind the other: that the next good one comes first says that this one is lost. */
static void say_received_of_each_odd_frame(int s, int port, const struct odd_frame *odd_frame, int n)
{
	for (int i = 0; i < n; i++) {
		peer(far(), "frame %s %s %s %s udp 5000 %d %s", there, odd_frame[i].mac ? odd_frame[i].mac : own_mac(),
		     odd_frame[i].source ? odd_frame[i].source : there, odd_frame[i].dest ? odd_frame[i].dest : here,
		     port, odd_frame[i].options ? odd_frame[i].options : "");
		say("%s:", odd_frame[i].what);
		take(s, 100, 0);
	}
}

static const struct odd_frame datagrams[] = {
        {.what = "a good one"},
        {.what = "to a stranger's MAC", .mac = STRANGER},
        {.what = "to everybody's", .mac = "ff:ff:ff:ff:ff:ff"},
        {.what = "to a group's", .mac = "01:00:5e:05:05:05"},
        {.what = "of the loopback network", .source = "127.0.0.1"},
        {.what = "of the one it is sent to", .source = "10.9.0.1"},
        {.what = "of a group", .source = "224.1.1.1"},
        {.what = "of nobody", .source = "0.0.0.0"},
        {.what = "of the first network", .source = "0.0.0.1"},
        {.what = "of everybody", .source = "255.255.255.255"},
        {.what = "of the last network", .source = "240.0.0.1"},
        {.what = "of the subnet's broadcast", .source = "10.9.0.255"},
        {.what = "of a network far away", .source = "8.8.8.8"},
        {.what = "with a source route", .options = "8307040000000000"},
        {.what = "with a strict one", .options = "8907040000000000"},
        {.what = "with one behind others", .options = "019404000083070400000000"},
        {.what = "with a router alert", .options = "94040000"},
        {.what = "with no-operations", .options = "01010101"},
        {.what = "with an option that is too long", .options = "9409000001010101"},
        {.what = "with one that is too short", .options = "94010000"},
        {.what = "a good one"},
};

CASE(frames_odd_datagrams, "a datagram is heard if the kernel would take its frame")
{
	int s = udp_socket_bound_to(here, 7811);

	expect_offloaded(s);
	register_port_name(5000, "raw");
	say_received_of_each_odd_frame(s, 7811, datagrams, sizeof(datagrams) / sizeof(datagrams[0]));
}

CASE(frames_odd_datagrams_to_any, "so it is where a socket is bound to 0.0.0.0, connected, or has joined a group")
{
	static const struct odd_frame to_group[] = {
	        {.what = "a group's", .dest = GROUP, .mac = "01:00:5e:05:05:05"},
	        {.what = "in a frame to one", .dest = GROUP},
	        {.what = "in one to a stranger", .dest = GROUP, .mac = STRANGER},
	        {.what = "of nobody", .dest = GROUP, .mac = "01:00:5e:05:05:05", .source = "0.0.0.0"},
	        {.what = "of the loopback network", .dest = GROUP, .mac = "01:00:5e:05:05:05", .source = "127.0.0.1"},
	        {.what = "of a group", .dest = GROUP, .mac = "01:00:5e:05:05:05", .source = GROUP},
	};
	struct ip_mreqn joined = {.imr_multiaddr = ipv4_sockaddr_of(GROUP, 0).sin_addr,
	                          .imr_address = ipv4_sockaddr_of(here, 0).sin_addr};
	struct sockaddr_in peer_address = ipv4_sockaddr_of(there, 5000);
	int s = udp_socket_bound_to("0.0.0.0", 7812);

	register_port_name(5000, "raw");
	SAY_RESULT(setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &joined, sizeof(joined)));
	expect_offloaded(s);
	pause_ms(50);
	say_received_of_each_odd_frame(s, 7812, datagrams, sizeof(datagrams) / sizeof(datagrams[0]));
	say_received_of_each_odd_frame(s, 7812, to_group, sizeof(to_group) / sizeof(to_group[0]));
	SAY_RESULT(close(s));
	s = udp_socket_bound_to(here, 7813);
	SAY_RESULT(connect(s, (struct sockaddr *)&peer_address, sizeof(peer_address)));
	expect_offloaded(s);
	say_received_of_each_odd_frame(s, 7813, datagrams, 4);
}

/* ---- segments ---- */

static void say_answer_to_frame(const char *what, const char *mac, const char *source, const char *kind, int from,
                                int to, const char *options)
{
	say("%s: %s", what,
	    peer(far(), "frame %s %s %s %s %s %d %d %s", there, mac, source, here, kind, from, to, options));
}

CASE(frames_odd_segments, "a SYN is answered if the kernel would take its frame")
{
	const char *own = own_mac();
	int l = tcp_listener(here, 7814, 50);

	expect_offloaded(l);
	say_answer_to_frame("a good one", own, there, "syn", 5101, 7814, "");
	say_answer_to_frame("to a stranger's MAC", STRANGER, there, "syn", 5102, 7814, "");
	say_answer_to_frame("to everybody's", "ff:ff:ff:ff:ff:ff", there, "syn", 5103, 7814, "");
	say_answer_to_frame("to a group's", "01:00:5e:05:05:05", there, "syn", 5104, 7814, "");
	say_answer_to_frame("of the loopback network", own, "127.0.0.1", "syn", 5105, 7814, "");
	say_answer_to_frame("of the one it is sent to", own, here, "syn", 5106, 7814, "");
	say_answer_to_frame("of a group", own, "224.1.1.1", "syn", 5107, 7814, "");
	say_answer_to_frame("of nobody", own, "0.0.0.0", "syn", 5108, 7814, "");
	say_answer_to_frame("of everybody", own, "255.255.255.255", "syn", 5109, 7814, "");
	say_answer_to_frame("with a source route", own, there, "syn", 5110, 7814, "8307040000000000");
	say_answer_to_frame("with a broken option", own, there, "syn", 5111, 7814, "94010000");
	say_answer_to_frame("with no-operations", own, there, "syn", 5112, 7814, "01010101");
	say_answer_to_frame("a good one", own, there, "syn", 5113, 7814, "");
	close(l);
}

CASE(frames_odd_segments_to_a_connection,
     "a connection goes on: with IP options, and whatever strange frames come for it")
{
	const char *own = own_mac();
	int s = tcp_connected_to_far_peer(), from, to = port_of(s);
	struct sockaddr_in its;
	socklen_t len = sizeof(its);

	getpeername(s, (struct sockaddr *)&its, &len);
	from = ntohs(its.sin_port);
	say_answer_to_frame("to a stranger's MAC", STRANGER, there, "ack", from, to, "");
	say_answer_to_frame("to everybody's", "ff:ff:ff:ff:ff:ff", there, "ack", from, to, "");
	say_answer_to_frame("of another", own, "127.0.0.1", "ack", from, to, "");
	say_answer_to_frame("with a source route", own, there, "ack", from, to, "8307040000000000");
	kernel_segments_wait_idle_and_start_count();
	far_peer_writes(1, 1000, 1, 1);
	recv_and_print_result(s, 4000, 0);
	peer(far(), "opt 1 0 4 %d", 0x01010101);
	far_peer_writes(1, 1000, 2, 1);
	recv_and_print_result(s, 4000, 0);
	peer(far(), "opt 1 0 4 %d", 0x0494);
	far_peer_writes(1, 1000, 3, 1);
	recv_and_print_result(s, 4000, 0);
	check_kernel_segments_were_bypassed();
	send_pattern_and_print_result(s, 1000, 4, 0);
	say_far_peer_reads(1, 1000, 4, 1);
}

/* ---- a MAC that changes ---- */

/* The peer is told, as by an announcement. */
static void change_own_mac(const char *mac)
{
	char command[300];

	snprintf(command, sizeof(command), "ip link set %s address %s", if_first, mac);
	run_shell_command_here(command);
	snprintf(command, sizeof(command),
	         "ip neigh replace %s lladdr %s nud reachable dev $(ip -o route get %s | grep -o 'dev [^ ]*' | cut "
	         "-c5-)",
	         here, mac, here);
	peer_run_shell_command(far(), command);
	pause_ms(100);
}

CASE(frames_mac_changes, "a MAC that changes is followed: what goes to it is heard, and nothing else")
{
	char before[18];
	int s = udp_socket_bound_to(here, 7815), conn = tcp_connected_to_far_peer();

	expect_offloaded(s);
	register_port_name(5000, "raw");
	register_port_name(peer_ask_to_open_socket(far(), 2, there, 0), "peer");
	snprintf(before, sizeof(before), "%s", own_mac());
	change_own_mac("02:00:00:00:00:88");
	save_kernel_udp_counters();
	peer_send(far(), 2, here, 7815, 40, 1);
	take(s, 2000, 0);
	check_kernel_udp_was_bypassed(1, 0);
	peer(far(), "frame %s %s %s %s udp 5000 7815", there, before, there, here);
	take(s, 100, 0);
	kernel_segments_wait_idle_and_start_count();
	far_peer_writes(1, 1000, 1, 1);
	recv_and_print_result(conn, 4000, 0);
	check_kernel_segments_were_bypassed();
	send_pattern_and_print_result(conn, 1000, 2, 0);
	say_far_peer_reads(1, 1000, 2, 1);
	change_own_mac(before);
}
