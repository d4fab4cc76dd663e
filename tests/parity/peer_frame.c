/*
 * peer_frame - one frame with headers of the sender's choice, out of the interface that has a given address: a datagram
 * of 20 bytes, or a segment and what is answered to its port.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "payload.h"
#include "peer_frame.h"

#define PAYLOAD 20
#define ANSWER_MS 300
#define RST 0x04
#define SYN 0x02
#define ACK 0x10

struct frame {
	uint8_t mac[6], options[40];
	uint32_t source, dest;
	int is_tcp, source_port, dest_port;
	unsigned flags, option_bytes;
};

static void peer_frame_put_be16(uint8_t *at, unsigned value)
{
	at[0] = (uint8_t)(value >> 8);
	at[1] = (uint8_t)value;
}

static uint32_t checksum_add_bytes_of_frame(uint32_t sum, const uint8_t *bytes, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		sum += i % 2 == 0 ? (uint32_t)bytes[i] << 8 : bytes[i];
	return sum;
}

static unsigned checksum_fold(uint32_t sum)
{
	while (sum >> 16 != 0)
		sum = (sum >> 16) + (sum & 0xffff);
	return ~sum & 0xffff;
}

/* Into 64 bytes at most of `at`; how many. */
static unsigned write_transport_header(uint8_t *at, const struct frame *f)
{
	const unsigned bytes = f->is_tcp ? 20 : 8 + PAYLOAD;
	uint32_t sum = bytes + (f->is_tcp ? IPPROTO_TCP : IPPROTO_UDP);

	peer_frame_put_be16(at, (unsigned)f->source_port);
	peer_frame_put_be16(at + 2, (unsigned)f->dest_port);
	if (f->is_tcp) {
		peer_frame_put_be16(at + 6, 1000); /* sequence number */
		at[12] = 5 << 4;
		at[13] = (uint8_t)f->flags;
		peer_frame_put_be16(at + 14, 65535);
	} else {
		peer_frame_put_be16(at + 4, bytes);
		fill(at + 8, PAYLOAD, 1);
	}
	sum = checksum_add_bytes_of_frame(sum, (const uint8_t *)&f->source, 4);
	sum = checksum_add_bytes_of_frame(sum, (const uint8_t *)&f->dest, 4);
	peer_frame_put_be16(at + (f->is_tcp ? 16 : 6), checksum_fold(checksum_add_bytes_of_frame(sum, at, bytes)));
	return bytes;
}

static unsigned peer_frame_build(uint8_t *out, const uint8_t *own_mac, const struct frame *f)
{
	const unsigned head = 20 + f->option_bytes;
	uint8_t *ip = out + ETH_HLEN;
	unsigned l4;

	memcpy(out, f->mac, 6);
	memcpy(out + 6, own_mac, 6);
	peer_frame_put_be16(out + 12, ETHERTYPE_IP);
	l4 = write_transport_header(ip + head, f);
	ip[0] = (uint8_t)(0x40 | head / 4);
	peer_frame_put_be16(ip + 2, head + l4);
	ip[8] = 64;
	ip[9] = f->is_tcp ? IPPROTO_TCP : IPPROTO_UDP;
	memcpy(ip + 12, &f->source, 4);
	memcpy(ip + 16, &f->dest, 4);
	memcpy(ip + 20, f->options, f->option_bytes);
	peer_frame_put_be16(ip + 10, checksum_fold(checksum_add_bytes_of_frame(0, ip, head)));
	return ETH_HLEN + head + l4;
}

/* A packet socket there, and the interface's MAC. -1: no such address. */
static int peer_frame_open_packet_socket_at(const char *address, uint8_t mac[6])
{
	struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP)};
	struct ifaddrs *all = NULL, *i;
	struct ifreq req = {0};
	struct in_addr wanted;
	int fd = -1;

	if (inet_pton(AF_INET, address, &wanted) != 1 || getifaddrs(&all) != 0)
		return -1;
	for (i = all; i != NULL; i = i->ifa_next) {
		if (i->ifa_addr != NULL && i->ifa_addr->sa_family == AF_INET &&
		    ((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr.s_addr == wanted.s_addr)
			break;
	}
	if (i != NULL) {
		snprintf(req.ifr_name, sizeof(req.ifr_name), "%s", i->ifa_name);
		to.sll_ifindex = (int)if_nametoindex(i->ifa_name);
		fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_IP));
	}
	freeifaddrs(all);
	if (fd >= 0 && (bind(fd, (struct sockaddr *)&to, sizeof(to)) != 0 || ioctl(fd, SIOCGIFHWADDR, &req) != 0)) {
		close(fd);
		return -1;
	}
	memcpy(mac, req.ifr_hwaddr.sa_data, 6);
	return fd;
}

/* What comes for the segment's port, wherever it is sent. */
static const char *await_answer_to_frame(int fd, const struct frame *f)
{
	struct pollfd ready = {.fd = fd, .events = POLLIN};
	uint8_t in[2048];

	while (poll(&ready, 1, ANSWER_MS) > 0) {
		const ssize_t n = recv(fd, in, sizeof(in), 0);
		const uint8_t *ip = in + ETH_HLEN, *tcp = ip + 20;

		if (n < ETH_HLEN + 40 || ip[0] != 0x45 || ip[9] != IPPROTO_TCP ||
		    (tcp[0] << 8 | tcp[1]) != f->dest_port || (tcp[2] << 8 | tcp[3]) != f->source_port)
			continue;
		if (tcp[13] & RST)
			return "RST";
		return tcp[13] & SYN ? "SYN-ACK" : "ACK";
	}
	return "nothing";
}

static int parse_frame_command_args(const char *args, char *at, struct frame *f)
{
	char mac[18], source[16], dest[16], proto[8], options[81] = "";
	unsigned byte[6];

	if (sscanf(args, "%15s %17s %15s %15s %7s %d %d %80s", at, mac, source, dest, proto, &f->source_port,
	           &f->dest_port, options) < 7 ||
	    sscanf(mac, "%x:%x:%x:%x:%x:%x", &byte[0], &byte[1], &byte[2], &byte[3], &byte[4], &byte[5]) != 6 ||
	    inet_pton(AF_INET, source, &f->source) != 1 || inet_pton(AF_INET, dest, &f->dest) != 1)
		return -1;
	for (int i = 0; i < 6; i++)
		f->mac[i] = (uint8_t)byte[i];
	f->is_tcp = strcmp(proto, "udp") != 0;
	f->flags = strcmp(proto, "syn") == 0 ? SYN : ACK;
	for (; sscanf(options + 2 * f->option_bytes, "%2x", byte) == 1; f->option_bytes++)
		f->options[f->option_bytes] = (uint8_t)byte[0];
	return f->option_bytes % 4 == 0 ? 0 : -1;
}

void peer_frame_send_by_command(const char *args, char *answer, size_t size)
{
	struct frame f = {0};
	uint8_t bytes[256] = {0}, mac[6];
	char at[16];
	int fd = parse_frame_command_args(args, at, &f) == 0 ? peer_frame_open_packet_socket_at(at, mac) : -1;
	unsigned n;

	if (fd < 0) {
		snprintf(answer, size, "failed: which frame, and where?");
		return;
	}
	n = peer_frame_build(bytes, mac, &f);
	if (send(fd, bytes, n, 0) != (ssize_t)n)
		snprintf(answer, size, "failed: %s", strerror(errno));
	else
		snprintf(answer, size, "%s", f.is_tcp ? await_answer_to_frame(fd, &f) : "ok");
	close(fd);
}
