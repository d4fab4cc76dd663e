/*
 * packet_check.h - the header checks between the NIC and the flow table.
 *
 * A packet passes, is dropped under exactly one reason of stats.h, or is the kernel's. Nothing is read beyond the first
 * buffer's len before it is known to be there; all headers must lie in the first buffer.
 *
 * Threads: any; the functions write nothing but the caller's packet and info. The ring calls them with its receive
 * flag.
 */
#ifndef VMA_RING_PACKET_CHECK_H
#define VMA_RING_PACKET_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <vma/ring.h>

/* A verdict is the place of the counter to bump; 0 passes (rx_packets lies there, which no drop can mean). */
#define PACKET_DROP(reason) ((unsigned)offsetof(struct vma_stats_ring_rx, rx_drop_##reason))
enum { PACKET_PASS = 0, PACKET_TO_KERNEL = UINT16_MAX /* the NIC should not have taken it */ };

struct packet_rules {
	struct vma_bufarena *arena;
	bool sw_csum;     /* check what the NIC did not */
	bool memory_link; /* the pseudo-header sum alone is a valid checksum: the kernel sends so over veth */
	bool to_kernel;   /* the NIC takes what the kernel is to judge: VMA_NIC_CAP_TO_KERNEL */
};

/*
 * `frame` is where the packet's bytes start. Fills info and packet's l3_off, l4_off, payload_off, payload_len.
 * info->src and dst must be zeroed beyond the first four bytes.
 */
unsigned packet_validate_and_parse_headers(const struct packet_rules *rules, struct vma_buf *packet,
                                           const uint8_t *frame, struct vma_rx_info *info);

/* A packet that passed is for all members of its key: 224/4, 255.255.255.255, or a subnet's broadcast address, which
 * shows in the Ethernet destination only. */
static inline bool packet_is_multicast_or_broadcast(const uint8_t *frame, const struct vma_rx_info *info)
{
	static const uint8_t ones[6] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

	if (__builtin_expect(info->dst[0] < 224 && !(frame[0] & 1), 1))
		return false;
	return info->dst[0] >> 4 == 14 || memcmp(info->dst, ones, 4) == 0 || memcmp(frame, ones, 6) == 0;
}

#endif
