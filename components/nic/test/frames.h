/* frames - UDP and TCP packets as bytes, for the nic's tests. */
#ifndef VMA_NIC_TEST_FRAMES_H
#define VMA_NIC_TEST_FRAMES_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include <vma/nic.h>

#define FRAME_UDP_HEADERS 42
#define FRAME_TCP_HEADERS 54
#define FRAME_MAX (14 + 65535)

/* An address of the test network: end 0 or 1. */
static inline uint32_t test_ip(int end)
{
	return htonl(0x0a4d0001U + (uint32_t)end);
}

static inline uint16_t frame_internet_checksum(const void *bytes, size_t len, uint32_t sum)
{
	const uint8_t *p = bytes;

	for (size_t i = 0; i + 1 < len; i += 2)
		sum += (uint32_t)(p[i] << 8 | p[i + 1]);
	if (len % 2 != 0)
		sum += (uint32_t)p[len - 1] << 8;
	while (sum > 0xffff)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

static inline void frame_put_be16(uint8_t *p, uint32_t value)
{
	p[0] = (uint8_t)(value >> 8);
	p[1] = (uint8_t)value;
}

/* What a byte of the payload of packet `number` is. */
static inline uint8_t frame_payload_byte_of_packet(uint32_t number, uint32_t i)
{
	return (uint8_t)(number * 131 + i * 7 + (i >> 8));
}

struct frame_spec {
	int from; /* end that sends */
	uint8_t proto;
	uint8_t tcp_flags;
	uint16_t src_port, dst_port;
	uint32_t len;    /* of the whole frame */
	uint32_t number; /* in the first four bytes of the payload, and the seed of the rest */
	const uint8_t *src_mac, *dst_mac;
	bool no_checksum; /* leave both to the NIC */
};

static inline uint32_t frame_headers_len(uint8_t proto)
{
	return proto == IPPROTO_UDP ? FRAME_UDP_HEADERS : FRAME_TCP_HEADERS;
}

/* Writes the frame; len is at least the headers and four bytes. */
static inline void frame_build(uint8_t *out, const struct frame_spec *spec)
{
	uint32_t headers = frame_headers_len(spec->proto), l4 = spec->len - 34, src = test_ip(spec->from);
	uint32_t dst = test_ip(1 - spec->from);
	uint8_t *ip = out + 14, *t = out + 34, pseudo[12];

	memset(out, 0, headers);
	memcpy(out, spec->dst_mac, 6);
	memcpy(out + 6, spec->src_mac, 6);
	frame_put_be16(out + 12, 0x0800);
	ip[0] = 0x45;
	frame_put_be16(ip + 2, spec->len - 14);
	ip[8] = 64;
	ip[9] = spec->proto;
	memcpy(ip + 12, &src, 4);
	memcpy(ip + 16, &dst, 4);
	frame_put_be16(t, spec->src_port);
	frame_put_be16(t + 2, spec->dst_port);
	if (spec->proto == IPPROTO_UDP) {
		frame_put_be16(t + 4, l4);
	} else {
		t[12] = 5 << 4;
		t[13] = spec->tcp_flags;
		frame_put_be16(t + 14, 1000);
	}
	uint32_t number_be = htonl(spec->number);
	memcpy(out + headers, &number_be, 4);
	for (uint32_t i = headers + 4; i < spec->len; i++)
		out[i] = frame_payload_byte_of_packet(spec->number, i - headers);
	if (spec->no_checksum)
		return;
	frame_put_be16(ip + 10, frame_internet_checksum(ip, 20, 0));
	memcpy(pseudo, ip + 12, 8);
	pseudo[8] = 0;
	pseudo[9] = spec->proto;
	frame_put_be16(pseudo + 10, l4);
	uint16_t sum = frame_internet_checksum(t, l4, (uint16_t)~frame_internet_checksum(pseudo, 12, 0));
	frame_put_be16(t + (spec->proto == IPPROTO_UDP ? 6 : 16), sum == 0 ? 0xffff : sum);
}

static inline uint32_t frame_number(const uint8_t *frame, uint8_t proto)
{
	uint32_t number_be;

	memcpy(&number_be, frame + frame_headers_len(proto), 4);
	return ntohl(number_be);
}

static inline struct vma_flow_rule make_flow_rule(int at, uint8_t proto, uint16_t port, uint16_t peer_port,
                                                  uint32_t flags)
{
	struct vma_flow_rule rule = {.flags = flags};
	uint32_t local = test_ip(at), peer = test_ip(1 - at);

	rule.key.family = AF_INET;
	rule.key.proto = proto;
	rule.key.local_port_be = htons(port);
	memcpy(rule.key.local, &local, 4);
	if (peer_port != 0) {
		rule.key.peer_port_be = htons(peer_port);
		memcpy(rule.key.peer, &peer, 4);
	}
	return rule;
}

#endif
