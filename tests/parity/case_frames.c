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
		give_up("%s has no MAC", if_first);
	close(fd);
	memcpy(mac, req.ifr_hwaddr.sa_data, 6);
	snprintf(text, sizeof(text), "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
	return text;
}

/* ---- datagrams ---- */

struct odd {
	const char *what, *mac, *source, *dest, *options; /* NULL: as it should be */
};

/* One behind the other: that the next good one comes first says that this one is lost. */
static void hear_each(int s, int port, const struct odd *odd, int n)
{
	for (int i = 0; i < n; i++) {
		peer(far(), "frame %s %s %s %s udp 5000 %d %s", there, odd[i].mac ? odd[i].mac : own_mac(),
		     odd[i].source ? odd[i].source : there, odd[i].dest ? odd[i].dest : here, port,
		     odd[i].options ? odd[i].options : "");
		say("%s:", odd[i].what);
		take(s, 100, 0);
	}
}

static const struct odd datagrams[] = {
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
	int s = udp_at(here, 7811);

	expect_offloaded(s);
	name_port(5000, "raw");
	hear_each(s, 7811, datagrams, sizeof(datagrams) / sizeof(datagrams[0]));
}

CASE(frames_odd_datagrams_to_any, "so it is where a socket is bound to 0.0.0.0, connected, or has joined a group")
{
	static const struct odd to_group[] = {
	        {.what = "a group's", .dest = GROUP, .mac = "01:00:5e:05:05:05"},
	        {.what = "in a frame to one", .dest = GROUP},
	        {.what = "in one to a stranger", .dest = GROUP, .mac = STRANGER},
	        {.what = "of nobody", .dest = GROUP, .mac = "01:00:5e:05:05:05", .source = "0.0.0.0"},
	        {.what = "of the loopback network", .dest = GROUP, .mac = "01:00:5e:05:05:05", .source = "127.0.0.1"},
	        {.what = "of a group", .dest = GROUP, .mac = "01:00:5e:05:05:05", .source = GROUP},
	};
	struct ip_mreqn joined = {.imr_multiaddr = address_of(GROUP, 0).sin_addr,
	                          .imr_address = address_of(here, 0).sin_addr};
	struct sockaddr_in peer_address = address_of(there, 5000);
	int s = udp_at("0.0.0.0", 7812);

	name_port(5000, "raw");
	RES(setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &joined, sizeof(joined)));
	expect_offloaded(s);
	pause_ms(50);
	hear_each(s, 7812, datagrams, sizeof(datagrams) / sizeof(datagrams[0]));
	hear_each(s, 7812, to_group, sizeof(to_group) / sizeof(to_group[0]));
	RES(close(s));
	s = udp_at(here, 7813);
	RES(connect(s, (struct sockaddr *)&peer_address, sizeof(peer_address)));
	expect_offloaded(s);
	hear_each(s, 7813, datagrams, 4);
}

/* ---- segments ---- */

static void answer_to(const char *what, const char *mac, const char *source, const char *kind, int from, int to,
                      const char *options)
{
	say("%s: %s", what,
	    peer(far(), "frame %s %s %s %s %s %d %d %s", there, mac, source, here, kind, from, to, options));
}

CASE(frames_odd_segments, "a SYN is answered if the kernel would take its frame")
{
	const char *own = own_mac();
	int l = tcp_listener(here, 7814, 50);

	expect_offloaded(l);
	answer_to("a good one", own, there, "syn", 5101, 7814, "");
	answer_to("to a stranger's MAC", STRANGER, there, "syn", 5102, 7814, "");
	answer_to("to everybody's", "ff:ff:ff:ff:ff:ff", there, "syn", 5103, 7814, "");
	answer_to("to a group's", "01:00:5e:05:05:05", there, "syn", 5104, 7814, "");
	answer_to("of the loopback network", own, "127.0.0.1", "syn", 5105, 7814, "");
	answer_to("of the one it is sent to", own, here, "syn", 5106, 7814, "");
	answer_to("of a group", own, "224.1.1.1", "syn", 5107, 7814, "");
	answer_to("of nobody", own, "0.0.0.0", "syn", 5108, 7814, "");
	answer_to("of everybody", own, "255.255.255.255", "syn", 5109, 7814, "");
	answer_to("with a source route", own, there, "syn", 5110, 7814, "8307040000000000");
	answer_to("with a broken option", own, there, "syn", 5111, 7814, "94010000");
	answer_to("with no-operations", own, there, "syn", 5112, 7814, "01010101");
	answer_to("a good one", own, there, "syn", 5113, 7814, "");
	close(l);
}

CASE(frames_odd_segments_to_a_connection,
     "a connection goes on: with IP options, and whatever strange frames come for it")
{
	const char *own = own_mac();
	int s = tcp_out(), from, to = port_of(s);
	struct sockaddr_in its;
	socklen_t len = sizeof(its);

	getpeername(s, (struct sockaddr *)&its, &len);
	from = ntohs(its.sin_port);
	answer_to("to a stranger's MAC", STRANGER, there, "ack", from, to, "");
	answer_to("to everybody's", "ff:ff:ff:ff:ff:ff", there, "ack", from, to, "");
	answer_to("of another", own, "127.0.0.1", "ack", from, to, "");
	answer_to("with a source route", own, there, "ack", from, to, "8307040000000000");
	segments_begin();
	far_writes(1, 1000, 1, 1);
	say_read(s, 4000, 0);
	peer(far(), "opt 1 0 4 %d", 0x01010101);
	far_writes(1, 1000, 2, 1);
	say_read(s, 4000, 0);
	peer(far(), "opt 1 0 4 %d", 0x0494);
	far_writes(1, 1000, 3, 1);
	say_read(s, 4000, 0);
	segments_end();
	say_write(s, 1000, 4, 0);
	far_reads(1, 1000, 4, 1);
}

/* ---- a MAC that changes ---- */

/* The peer is told, as by an announcement. */
static void change_mac(const char *mac)
{
	char command[300];

	snprintf(command, sizeof(command), "ip link set %s address %s", if_first, mac);
	run_here(command);
	snprintf(command, sizeof(command),
	         "ip neigh replace %s lladdr %s nud reachable dev $(ip -o route get %s | grep -o 'dev [^ ]*' | cut "
	         "-c5-)",
	         here, mac, here);
	peer_run(far(), command);
	pause_ms(100);
}

CASE(frames_mac_changes, "a MAC that changes is followed: what goes to it is heard, and nothing else")
{
	char before[18];
	int s = udp_at(here, 7815), conn = tcp_out();

	expect_offloaded(s);
	name_port(5000, "raw");
	name_port(peer_open(far(), 2, there, 0), "peer");
	snprintf(before, sizeof(before), "%s", own_mac());
	change_mac("02:00:00:00:00:88");
	bypass_begin();
	peer_send(far(), 2, here, 7815, 40, 1);
	take(s, 2000, 0);
	bypass_end(1, 0);
	peer(far(), "frame %s %s %s %s udp 5000 7815", there, before, there, here);
	take(s, 100, 0);
	segments_begin();
	far_writes(1, 1000, 1, 1);
	say_read(conn, 4000, 0);
	segments_end();
	say_write(conn, 1000, 2, 0);
	far_reads(1, 1000, 2, 1);
	change_mac(before);
}
