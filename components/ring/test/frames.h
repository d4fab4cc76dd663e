/* frames - bytes to throw at a ring: UDP by the header template, TCP by hand, and a reference checksum. */
#ifndef FRAMES_H
#define FRAMES_H

#include <arpa/inet.h>
#include <string.h>

#include <vma/packet.h>
#include <vma/ring.h>

static const uint8_t frame_src_ip[4] = {10, 0, 0, 1}, frame_dst_ip[4] = {10, 0, 0, 2};

/* The checksum as RFC 1071 describes it, byte pair by byte pair; complemented, host order. */
static inline uint16_t naive_checksum(const uint8_t *p, size_t len)
{
	uint32_t sum = 0;

	for (size_t i = 0; i < len; i++)
		sum += i % 2 == 0 ? (uint32_t)p[i] << 8 : p[i];
	while (sum >> 16 != 0)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

static inline uint32_t udp_frame_to(uint8_t *out, const uint8_t dst_ip[4], uint16_t vlan, uint16_t src_port,
                                    uint16_t dst_port, const void *payload, uint32_t payload_len)
{
	struct vma_pkt_udp_attr attr = {.src_mac = {2, 0, 0, 0, 0, 1},
	                                .dst_mac = {2, 0, 0, 0, 0, 2},
	                                .vlan = vlan,
	                                .src_port_be = htons(src_port),
	                                .dst_port_be = htons(dst_port)};
	struct vma_pkt_udp headers;

	memcpy(attr.src_ip, frame_src_ip, 4);
	memcpy(attr.dst_ip, dst_ip, 4);
	vma_pkt_udp_init(&headers, &attr);
	memcpy(out + headers.len, payload, payload_len);
	return vma_pkt_udp_write(&headers, out, payload_len, VMA_PKT_CSUM_FULL);
}

static inline uint32_t udp_frame(uint8_t *out, uint16_t src_port, uint16_t dst_port, const void *payload, uint32_t len)
{
	return udp_frame_to(out, frame_dst_ip, 0, src_port, dst_port, payload, len);
}

static inline void store_be16(uint8_t *p, uint16_t host)
{
	p[0] = (uint8_t)(host >> 8);
	p[1] = (uint8_t)host;
}

static inline void fix_ip_checksum(uint8_t *ip)
{
	store_be16(ip + 10, 0);
	store_be16(ip + 10, naive_checksum(ip, (ip[0] & 15) * 4u));
}

/* Over an untagged frame without IP options; the field lies at `field` in the L4 header. */
static inline void fix_l4_checksum(uint8_t *frame, uint32_t l4_len, uint32_t field)
{
	uint8_t scratch[2048] = {0};

	memcpy(scratch, frame + 14 + 12, 8);
	scratch[9] = frame[14 + 9];
	store_be16(scratch + 10, (uint16_t)l4_len);
	store_be16(frame + 34 + field, 0);
	memcpy(scratch + 12, frame + 34, l4_len);
	store_be16(frame + 34 + field, naive_checksum(scratch, 12 + l4_len));
}

static inline uint32_t tcp_frame(uint8_t *out, uint16_t src_port, uint16_t dst_port, uint8_t flags, const void *payload,
                                 uint32_t payload_len)
{
	uint32_t l4_len = VMA_PKT_TCP_HLEN + payload_len;

	udp_frame(out, src_port, dst_port, "", 0);
	store_be16(out + 14 + 2, (uint16_t)(20 + l4_len));
	out[14 + 9] = IPPROTO_TCP;
	fix_ip_checksum(out + 14);
	memset(out + 34 + 4, 0, 16);
	out[34 + 12] = 5 << 4;
	out[34 + 13] = flags;
	memcpy(out + 54, payload, payload_len);
	fix_l4_checksum(out, l4_len, 16);
	return 34 + l4_len;
}

/* peer_port 0: 3-tuple. */
static inline struct vma_flow_key flow_key(uint8_t proto, const uint8_t local[4], uint16_t local_port,
                                           uint16_t peer_port)
{
	struct vma_flow_key key = {.family = AF_INET,
	                           .proto = proto,
	                           .local_port_be = htons(local_port),
	                           .peer_port_be = htons(peer_port)};

	memcpy(key.local, local, 4);
	if (peer_port != 0)
		memcpy(key.peer, frame_src_ip, 4);
	return key;
}

#endif
