/* Headers and sums of a frame. */
#include "frame.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

enum {
	ETHERTYPE_V4 = 0x0800,
	ETHERTYPE_V6 = 0x86dd,
	ETHERTYPE_TAG = 0x8100,
};

static uint16_t read_u16(const uint8_t *at)
{
	return (uint16_t)(at[0] << 8 | at[1]);
}

/* Where the network header begins, and its type. */
static size_t frame_find_network_header(const uint8_t *frame, size_t len, uint16_t *type)
{
	size_t at = FRAME_ETH;

	*type = 0;
	if (len < at)
		return 0;
	*type = read_u16(frame + 12);
	if (*type != ETHERTYPE_TAG)
		return at;
	at += 4;
	if (len < at)
		return 0;
	*type = read_u16(frame + 16);
	return at;
}

static void frame_read_ports(const uint8_t *at, size_t left, struct card_match *fields)
{
	if (left < 4 || (fields->proto != IPPROTO_TCP && fields->proto != IPPROTO_UDP))
		return;
	memcpy(&fields->src_port, at, 2);
	memcpy(&fields->dst_port, at + 2, 2);
	fields->has_ports = 1;
}

void frame_read_match_fields(const uint8_t *frame, size_t len, struct card_match *fields)
{
	uint16_t type;
	size_t at = frame_find_network_header(frame, len, &type);

	memset(fields, 0, sizeof(*fields));
	if (at == 0)
		return;
	memcpy(fields->dst_mac, frame, 6);
	memcpy(fields->src_mac, frame + 6, 6);
	fields->ether_type = htons(type);
	if (at > FRAME_ETH) {
		fields->has_tag = 1;
		memcpy(&fields->vlan_tag, frame + FRAME_ETH, 2);
	}
	frame += at;
	len -= at;
	if (type == ETHERTYPE_V4 && len >= 20 && frame[0] >> 4 == 4) {
		size_t header = (frame[0] & 15) * 4u;

		fields->ip_version = 4;
		fields->tos = frame[1];
		fields->ttl = frame[8];
		fields->proto = frame[9];
		memcpy(&fields->src_ip4, frame + 12, 4);
		memcpy(&fields->dst_ip4, frame + 16, 4);
		/* More fragments, or not the first. */
		if ((read_u16(frame + 6) & 0x3fff) == 0 && header >= 20 && len >= header)
			frame_read_ports(frame + header, len - header, fields);
	} else if (type == ETHERTYPE_V6 && len >= 40 && frame[0] >> 4 == 6) {
		fields->ip_version = 6;
		fields->tos = (uint8_t)(read_u16(frame) >> 4);
		fields->proto = frame[6];
		fields->ttl = frame[7];
		memcpy(fields->src_ip6, frame + 8, 16);
		memcpy(fields->dst_ip6, frame + 24, 16);
		frame_read_ports(frame + 40, len - 40, fields);
	}
}

/* RFC 1071: the sum of 16-bit words, an odd last byte is the high half of a word. */
static uint32_t sum_words(const uint8_t *at, size_t len, uint32_t sum)
{
	for (; len > 1; at += 2, len -= 2)
		sum += read_u16(at);
	if (len > 0)
		sum += (uint32_t)(at[0] << 8);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* An IPv4 packet in a frame, as far as the sums need it. */
struct packet {
	uint8_t *ip, *l4;
	size_t header_bytes, l4_bytes;
	uint8_t proto;
	bool is_fragment;
};

static bool frame_find_packet(const uint8_t *frame, size_t len, struct packet *packet)
{
	uint16_t type;
	size_t at = frame_find_network_header(frame, len, &type);
	const uint8_t *ip = frame + at;
	size_t total;

	if (at == 0 || type != ETHERTYPE_V4 || len - at < 20 || ip[0] >> 4 != 4)
		return false;
	packet->header_bytes = (ip[0] & 15) * 4u;
	total = read_u16(ip + 2);
	if (packet->header_bytes < 20 || total < packet->header_bytes || total > len - at)
		return false;
	packet->ip = (uint8_t *)ip;
	packet->l4 = (uint8_t *)ip + packet->header_bytes;
	packet->l4_bytes = total - packet->header_bytes;
	packet->proto = ip[9];
	packet->is_fragment = (read_u16(ip + 6) & 0x3fff) != 0;
	return true;
}

static uint16_t packet_l4_sum(const struct packet *packet)
{
	uint32_t sum = sum_words(packet->ip + 12, 8, packet->proto + (uint32_t)packet->l4_bytes);

	return (uint16_t)~sum_words(packet->l4, packet->l4_bytes, sum);
}

/* Where the sum lies in the transport header, 0: none that a card knows. */
static size_t checksum_offset_in_l4_header(const struct packet *packet)
{
	if (packet->is_fragment)
		return 0;
	if (packet->proto == IPPROTO_UDP && packet->l4_bytes >= 8)
		return 6;
	return packet->proto == IPPROTO_TCP && packet->l4_bytes >= 20 ? 16 : 0;
}

bool frame_checksums_are_right(const uint8_t *frame, size_t len)
{
	struct packet packet;
	size_t sum_at;

	if (!frame_find_packet(frame, len, &packet))
		return false;
	sum_at = checksum_offset_in_l4_header(&packet);
	if (sum_at == 0 || sum_words(packet.ip, packet.header_bytes, 0) != 0xffff)
		return false;
	if (packet.proto == IPPROTO_UDP && read_u16(packet.l4 + sum_at) == 0)
		return true;
	return packet_l4_sum(&packet) == 0;
}

static void store_u16_be(uint8_t *at, uint16_t sum)
{
	at[0] = (uint8_t)(sum >> 8);
	at[1] = (uint8_t)sum;
}

void frame_write_checksums(uint8_t *frame, size_t len)
{
	struct packet packet;
	size_t sum_at;
	uint16_t sum;

	if (!frame_find_packet(frame, len, &packet))
		return;
	store_u16_be(packet.ip + 10, 0);
	store_u16_be(packet.ip + 10, (uint16_t)~sum_words(packet.ip, packet.header_bytes, 0));
	sum_at = checksum_offset_in_l4_header(&packet);
	if (sum_at == 0)
		return;
	store_u16_be(packet.l4 + sum_at, 0);
	sum = packet_l4_sum(&packet);
	/* RFC 768: a computed 0 is sent as all ones. */
	store_u16_be(packet.l4 + sum_at, sum == 0 && packet.proto == IPPROTO_UDP ? 0xffff : sum);
}

/* ---- segmentation offload ---- */

enum {
	FLAG_FIN = 0x01,
	FLAG_SYN = 0x02,
	FLAG_RST = 0x04,
	FLAG_PSH = 0x08,
	FLAG_URG = 0x20,
	FLAG_CWR = 0x80,
};

static void write_u16(uint8_t *at, size_t value)
{
	store_u16_be(at, (uint16_t)value);
}

static uint32_t read_u32(const uint8_t *at)
{
	return (uint32_t)read_u16(at) << 16 | read_u16(at + 2);
}

const char *tso_header_fault(const uint8_t *header, size_t header_bytes, size_t bytes, size_t mss, size_t mtu)
{
	uint16_t type;
	size_t at = frame_find_network_header(header, header_bytes, &type), ip_bytes;
	const uint8_t *ip = header + at;

	if (at == 0 || type != ETHERTYPE_V4 || header_bytes < at + 20 || ip[0] >> 4 != 4)
		return "the header is not IPv4";
	ip_bytes = (ip[0] & 15) * 4u;
	if (ip_bytes < 20 || header_bytes < at + ip_bytes + 20 || ip[9] != IPPROTO_TCP)
		return "the header is not TCP";
	if (read_u16(ip + 6) & 0x3fff)
		return "it is a fragment";
	if (header_bytes != at + ip_bytes + (ip[ip_bytes + 12] >> 4) * 4u)
		return "the header does not end where TCP's does";
	if (bytes == 0)
		return "there is nothing to cut";
	if (read_u16(ip + 2) != header_bytes - at + bytes)
		return "the length in the header is not that of the packet";
	if (header_bytes - at + mss > mtu)
		return "its segments are longer than the interface's MTU";
	return ip[ip_bytes + 13] & (FLAG_SYN | FLAG_RST | FLAG_URG) ? "SYN, RST or URG cannot be repeated" : NULL;
}

size_t tso_write_segment(const uint8_t *header, size_t header_bytes, const uint8_t *payload, size_t bytes, size_t mss,
                         size_t at, uint8_t frame[FRAME_MAX])
{
	size_t n = bytes - at < mss ? bytes - at : mss;
	uint16_t type;
	uint8_t *ip = frame + frame_find_network_header(header, header_bytes, &type), *tcp;
	uint32_t seq;

	memcpy(frame, header, header_bytes);
	memcpy(frame + header_bytes, payload + at, n);
	tcp = ip + (ip[0] & 15) * 4;
	write_u16(ip + 2, (size_t)(frame + header_bytes - ip) + n);
	write_u16(ip + 4, read_u16(ip + 4) + at / mss);
	seq = read_u32(tcp + 4) + (uint32_t)at;
	write_u16(tcp + 4, seq >> 16);
	write_u16(tcp + 6, seq);
	if (at + n < bytes)
		tcp[13] &= (uint8_t) ~(FLAG_FIN | FLAG_PSH);
	if (at > 0)
		tcp[13] &= (uint8_t)~FLAG_CWR;
	frame_write_checksums(frame, header_bytes + n);
	return header_bytes + n;
}
