/*
 * packet - the bytes of Ethernet, VLAN, IPv4, UDP and TCP: internet checksums, and header templates for custom stacks.
 *
 *   struct vma_pkt_udp headers;                       one per thread and destination
 *   vma_pkt_udp_init(&headers, &attr);                 or vma_pkt_udp_init_reply_headers(&headers, frame, info)
 *   payload at frame + headers.len
 *   frame_len = vma_pkt_udp_write(&headers, frame, payload_len, VMA_PKT_CSUM_FULL);
 *
 * Threads: pure functions of their arguments; a template counts its IP ids and so belongs to one thread at a time.
 * Progress: no call waits, allocates or enters the kernel.
 * Memory: the caller's. Frames may be unaligned.
 * Example: test/test_packet_build.c; examples/udp_ping.c.
 *
 * Checksums are sums of 16-bit words as they lie in memory (RFC 1071): the result is stored as it is, without a swap.
 */
#ifndef VMA_PACKET_H
#define VMA_PACKET_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct vma_rx_info;

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "network order is the swapped one here");

enum {
	VMA_PKT_ETH_HLEN = 14,
	VMA_PKT_VLAN_HLEN = 4,
	VMA_PKT_IP4_HLEN = 20,
	VMA_PKT_UDP_HLEN = 8,
	VMA_PKT_TCP_HLEN = 20,
	VMA_PKT_UDP_HEADERS_MAX = VMA_PKT_ETH_HLEN + VMA_PKT_VLAN_HLEN + VMA_PKT_IP4_HLEN + VMA_PKT_UDP_HLEN,
};

/* ---- numbers ---- */

/* In network order, at any address; returns what lies behind. */
static inline uint8_t *vma_pkt_put16(uint8_t *p, uint32_t value)
{
	p[0] = (uint8_t)(value >> 8);
	p[1] = (uint8_t)value;
	return p + 2;
}
static inline uint8_t *vma_pkt_put32(uint8_t *p, uint32_t value)
{
	return vma_pkt_put16(vma_pkt_put16(p, value >> 16), value);
}
/* As it is. */
static inline void vma_pkt_store16(uint8_t *p, uint16_t as_in_memory)
{
	memcpy(p, &as_in_memory, 2);
}

/* ---- checksums ---- */

/* Adds len bytes to a running sum. A piece of odd length may only be the last one of what is summed. */
uint64_t vma_csum_add(uint64_t sum, const void *data, size_t len);

/* A number's halves added with end-around carry, in the upper half of (itself plus itself turned round). */
static inline uint16_t vma_csum_fold32(uint32_t sum)
{
	return (uint16_t)((sum + (sum >> 16 | sum << 16)) >> 16);
}

/* The running sum in 16 bits, not complemented: 0xffff for correct data that holds its own checksum. */
static inline uint16_t vma_csum_fold(uint64_t sum)
{
	return vma_csum_fold32((uint32_t)((sum + (sum >> 32 | sum << 32)) >> 32));
}

/* The sum of the IPv4 pseudo header: addresses in network order as in memory, l4_len in bytes, host order. */
static inline uint64_t vma_csum_pseudo4(const void *src, const void *dst, uint8_t proto, uint32_t l4_len)
{
	uint32_t s, d;

	memcpy(&s, src, 4);
	memcpy(&d, dst, 4);
	return (uint64_t)s + d + __builtin_bswap16((uint16_t)l4_len) + ((uint32_t)proto << 8);
}

/* ---- a UDP datagram over IPv4 ---- */

struct vma_pkt_udp_attr {
	uint8_t src_mac[6], dst_mac[6];
	uint16_t vlan;                /* id in host order, 0: untagged */
	uint8_t src_ip[4], dst_ip[4]; /* network order */
	uint16_t src_port_be, dst_port_be;
	uint8_t ttl; /* 0: 64 */
	uint8_t tos;
};

struct vma_pkt_udp {
	uint8_t bytes[VMA_PKT_UDP_HEADERS_MAX + 2]; /* complete but for lengths, id and checksums */
	uint16_t len;                               /* bytes of all headers: the payload starts here */
	uint16_t ip_off;                            /* where the IPv4 header starts */
	uint16_t ip_id;                             /* of the next datagram */
	uint32_t ip_sum, udp_sum;                   /* of what does not change */
};

enum vma_pkt_csum {
	VMA_PKT_CSUM_FULL,   /* computed here: right on every link */
	VMA_PKT_CSUM_NONE,   /* 0, "not computed": allowed for UDP over IPv4 only */
	VMA_PKT_CSUM_PSEUDO, /* the pseudo header's sum: the NIC finishes it (VMA_NIC_SEG_CSUM), or the link is memory
	                      */
};

/* From so many bytes on, headers of UDP or TCP included, a NIC that can (VMA_NIC_CAP_TX_CSUM) is asked for the
 * checksum: of fewer it is made sooner than asked for. */
#define VMA_PKT_CSUM_BY_NIC_FROM 256

void vma_pkt_udp_init(struct vma_pkt_udp *pkt, const struct vma_pkt_udp_attr *attr);

/* The template of answers to a received frame: addresses, ports and MACs exchanged, same VLAN. */
void vma_pkt_udp_init_reply_headers(struct vma_pkt_udp *pkt, const void *frame, const struct vma_rx_info *info);

/*
 * Writes the headers of a datagram whose payload (at most 65507 bytes) is already at frame + pkt->len, and returns the
 * frame's length. The IPv4 header checksum is always complete.
 */
uint32_t vma_pkt_udp_write(struct vma_pkt_udp *pkt, void *frame, uint32_t payload_len, enum vma_pkt_csum csum);

#endif
