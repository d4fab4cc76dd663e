/*
 * ring_fragments.h - IPv4 fragments of datagrams, put together again (RFC 791).
 *
 * A fragment is held as the frame that it came in. When the last missing one has come, the frames become one packet of
 * several buffers, with the header of the first fragment. That packet goes through the header checks and to its flow as
 * any other. A fragmented datagram holds up nothing that comes after it.
 *
 * Bounds: at most RING_DATAGRAMS datagrams are under way, with bufs_max buffers in all of them together. If there is no
 * room, the oldest datagram is given up. The bound bufs_max is half of the buffers that may be away from the receive
 * queue. If the rest of a datagram never comes, its fragments are held until another fragment comes. They must not use
 * up the memory that everything else is received into. A datagram is given up a second after its first fragment came;
 * this is checked when the next one begins. Overlapping fragments end their datagram (RFC 5722). A fragment that brings
 * nothing new is dropped alone.
 *
 * Threads: the thread that drives the receive side, with its flag.
 */
#ifndef VMA_RING_FRAGMENTS_H
#define VMA_RING_FRAGMENTS_H

#include <vma/ring.h>

enum { RING_DATAGRAMS = 64, RING_FRAGMENT_BUFS_MIN = 48, RING_FRAGMENT_BUFS_MAX = 1024 };

struct ring_datagram {
	struct vma_buf *first, *last; /* in the order of their offsets; linked by `user`. first NULL: unused */
	uint32_t src, dst;
	uint16_t id, vlan;
	uint8_t proto;
	uint32_t have, total; /* bytes behind the IP header; total 0: the last fragment has not come */
	uint32_t bufs;
	uint32_t fragments;
	uint64_t begun_ms;
};

struct ring_fragments {
	struct ring_datagram at[RING_DATAGRAMS];
	uint32_t recent; /* whose fragment came last */
	uint32_t bufs, bufs_max;
	uint64_t dropped;            /* since the caller last set it to 0 */
	const struct vma_nic_qp *qp; /* whose packets they are */
};

/* All zero before. `quota`: buffers that may be away from the receive queue. A datagram of 64 KB always fits. */
void ring_fragments_init(struct ring_fragments *fragments, const struct vma_nic_qp *qp, uint32_t quota);

/*
 * A frame that packet_validate_and_parse_headers has found to be a fragment, owned by the caller until now. The whole
 * packet if it was the last one missing, with headers to be checked like a new one's; NULL: it is held, or dropped.
 */
struct vma_buf *ring_fragments_add(struct ring_fragments *fragments, struct vma_bufarena *arena, struct vma_buf *packet,
                                   uint16_t vlan, uint64_t now_ms);
void ring_fragments_end(struct ring_fragments *fragments, struct vma_bufarena *arena);

#endif
