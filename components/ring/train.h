/*
 * train.h - a train: datagrams in a row of one burst, to one flow, whose headers differ in lengths, ids and checksums
 * only.
 *
 * The first one has gone through packet_validate_and_parse_headers and the flow tables. Each header byte of the others
 * is compared with the first one's, and lengths and checksums are checked. So the fields of `info`, made from the first
 * one, hold for them.
 *
 * Threads: the thread that drives the receive side. Memory: the driver's stack.
 */
#ifndef VMA_RING_TRAIN_H
#define VMA_RING_TRAIN_H

#include <netinet/in.h>
#include <stddef.h>
#include <string.h>

#include "checksum.h"
#include "packet_bytes.h"
#include "packet_check.h"

struct train {
	/* of the packet before; numbers are as they lie in memory */
	uint32_t ip_head; /* version, header length, TOS, total length */
	uint16_t ttl_proto;
	uint64_t addresses;
	uint64_t udp_head;        /* ports and length, in the upper 48 bits */
	uint32_t end;             /* in the frame, of the IPv4 packet */
	uint64_t offsets;         /* l3_off, l4_off, payload_off, payload_len */
	uint64_t ip_sum, udp_sum; /* of what does not change; of the pseudo header */
	/* constant */
	uint64_t addresses_sum; /* as two numbers of 32 bits */
	const struct packet_rules *rules;
};
_Static_assert(offsetof(struct vma_buf, l4_off) == offsetof(struct vma_buf, l3_off) + 2 &&
                       offsetof(struct vma_buf, payload_off) == offsetof(struct vma_buf, l3_off) + 4 &&
                       offsetof(struct vma_buf, payload_len) == offsetof(struct vma_buf, l3_off) + 6,
               "written by one store");
#define TRAIN_CSUM_FLAGS (VMA_BUF_RX_L3_CSUM_OK | VMA_BUF_RX_L4_CSUM_OK | VMA_BUF_RX_L4_CSUM_BAD)

/* Whether a packet that has passed can be followed: a plain datagram in one buffer. */
static inline bool train_may_begin(const struct vma_buf *packet, const struct vma_rx_info *info)
{
	return info->proto == IPPROTO_UDP && packet->l4_off == PLAIN_L4 && packet->next == NULL;
}

/* False: lengths that are not right. Host order. */
static inline bool train_set_lengths(struct train *train, uint32_t total_len, uint32_t udp_len)
{
	if (udp_len < VMA_PKT_UDP_HLEN || VMA_PKT_IP4_HLEN + udp_len > total_len)
		return false;
	train->ip_head = (train->ip_head & 0xffff) | (uint32_t)__builtin_bswap16((uint16_t)total_len) << 16;
	train->udp_head = (train->udp_head & 0xffffffff0000) | (uint64_t)__builtin_bswap16((uint16_t)udp_len) << 48;
	train->end = PLAIN_IP + total_len;
	train->offsets = PLAIN_IP | PLAIN_L4 << 16 | (uint64_t)(PLAIN_L4 + VMA_PKT_UDP_HLEN) << 32 |
	                 (uint64_t)(udp_len - VMA_PKT_UDP_HLEN) << 48;
	train->ip_sum = train->ip_head + train->addresses_sum;
	train->udp_sum = train->addresses_sum + (train->udp_head >> 48) + (IPPROTO_UDP << 8);
	return true;
}

/* By what packet_validate_and_parse_headers has said of the first one. */
static inline void train_begin(struct train *train, const struct packet_rules *rules, const struct vma_buf *packet,
                               const struct vma_rx_info *info)
{
	const uint32_t udp_len = packet->payload_len + VMA_PKT_UDP_HLEN;
	uint32_t src, dst;

	memcpy(&src, info->src, 4);
	memcpy(&dst, info->dst, 4);
	train->rules = rules;
	train->ip_head = 0x45 | (uint32_t)info->tos << 8;
	train->ttl_proto = (uint16_t)(info->ttl | IPPROTO_UDP << 8);
	train->udp_head = (uint64_t)info->src_port_be << 16 | (uint64_t)info->dst_port_be << 32;
	train->addresses = src | (uint64_t)dst << 32;
	train->addresses_sum = (uint64_t)src + dst;
	train_set_lengths(train, VMA_PKT_IP4_HLEN + udp_len, udp_len);
}

static inline bool train_ip_checksum_is_valid(const struct train *train, uint32_t ip_rest, uint32_t ttl)
{
	return checksum_is_valid(train->ip_sum + ip_rest + ttl);
}

/* udp: the header. */
static inline __attribute__((always_inline)) bool train_udp_checksum_is_valid(const struct train *train,
                                                                              const uint8_t *frame, uint64_t udp)
{
	if (train->rules->memory_link && field_is_pseudo_header_checksum((uint16_t)(udp >> 48), train->udp_sum))
		return true;
	return __builtin_expect(
	        checksum_is_valid(checksum_add_after_8_readable_bytes(
	                add_carry(train->udp_sum, udp), frame + PLAIN_L4 + VMA_PKT_UDP_HLEN, train->offsets >> 48)),
	        1);
}

static inline void train_set_offsets(const struct train *train, struct vma_buf *packet)
{
	*(unaligned64 *)((char *)packet + offsetof(struct vma_buf, l3_off)) = train->offsets;
}

/* All packets: of other lengths, too; that the NIC has looked at, or nobody; of which the sender has computed no sum.
 * */
static bool __attribute__((noinline))
train_accepts_packet_slow_path(struct train *train, struct vma_buf *packet, const uint8_t *frame)
{
	uint64_t ip, udp;
	uint32_t ttl;

	if (packet->next != NULL || packet->len < PLAIN_L4 + VMA_PKT_UDP_HLEN ||
	    packet->flags & VMA_BUF_RX_L4_CSUM_BAD || packet_load8(frame) & 1 ||
	    packet_load16(frame + 12) != ETHERTYPE_IP4_BE)
		return false;
	ip = packet_load64(frame + PLAIN_IP);
	ttl = packet_load32(frame + PLAIN_IP + 8);
	udp = packet_load64(frame + PLAIN_L4);
	if ((uint16_t)ip != (uint16_t)train->ip_head || ip >> 48 & FRAGMENT_BE || (uint16_t)ttl != train->ttl_proto ||
	    packet_load64(frame + PLAIN_IP + 12) != train->addresses ||
	    (uint32_t)udp != (uint32_t)(train->udp_head >> 16))
		return false;
	if (!train_set_lengths(train, __builtin_bswap16((uint16_t)(ip >> 16)),
	                       __builtin_bswap16((uint16_t)(udp >> 32))) ||
	    packet->len < train->end)
		return false;
	if (train->rules->sw_csum) {
		if (!(packet->flags & VMA_BUF_RX_L3_CSUM_OK) &&
		    !train_ip_checksum_is_valid(train, (uint32_t)(ip >> 32), ttl))
			return false;
		if (udp >> 48 != 0 && !(packet->flags & VMA_BUF_RX_L4_CSUM_OK) &&
		    !train_udp_checksum_is_valid(train, frame, udp))
			return false;
	}
	train_set_offsets(train, packet);
	return true;
}

/*
 * Whether the packet goes on with the train; then its offsets and payload_len are set. False is no verdict:
 * packet_validate_and_parse_headers has it, and the train is over. The usual packet has the lengths of the one before,
 * and sums to be checked here. For all others the slow way begins anew, so that the usual one keeps nothing for it.
 */
static inline __attribute__((always_inline)) bool train_accepts_packet(struct train *train, struct vma_buf *packet,
                                                                       const uint8_t *frame)
{
	const uint32_t len = packet->len;
	uint64_t ip, udp;
	uint32_t ttl;

	if (__builtin_expect(packet->next != NULL || len < train->end || packet->flags & TRAIN_CSUM_FLAGS ||
	                             packet_load8(frame) & 1 || packet_load16(frame + 12) != ETHERTYPE_IP4_BE,
	                     0))
		return train_accepts_packet_slow_path(train, packet, frame);
	ip = packet_load64(frame + PLAIN_IP);
	ttl = packet_load32(frame + PLAIN_IP + 8);
	if (__builtin_expect((uint32_t)ip != train->ip_head || ip >> 32 & (uint32_t)FRAGMENT_BE << 16 ||
	                             (uint16_t)ttl != train->ttl_proto ||
	                             packet_load64(frame + PLAIN_IP + 12) != train->addresses ||
	                             !train_ip_checksum_is_valid(train, (uint32_t)(ip >> 32), ttl),
	                     0))
		return train_accepts_packet_slow_path(train, packet, frame);
	udp = packet_load64(frame + PLAIN_L4);
	if (__builtin_expect(udp << 16 != train->udp_head || udp >> 48 == 0 || !train->rules->sw_csum ||
	                             !train_udp_checksum_is_valid(train, frame, udp),
	                     0))
		return train_accepts_packet_slow_path(train, packet, frame);
	train_set_offsets(train, packet);
	return true;
}

#endif
