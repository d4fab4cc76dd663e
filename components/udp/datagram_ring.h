/*
 * datagram_ring.h - a ck_ring of datagrams for one producer and one consumer: a piece of a queue (queue.c).
 *
 * ThreadSanitizer does not see ck's fences, so ck's own accesses are hidden from it. The hand-off itself is that of
 * udp_queue.pushed, which is C11's and which it understands. An entry that is used again was read before its place was
 * given back (c_head), inside ck. The weaker barrier of this ck's dequeue (arm64) does not matter here. The entries
 * that are read were published by `pushed`. A producer finds the entries that it overwrites free by a load that its
 * stores depend on.
 */
#ifndef VMA_UDP_DATAGRAM_RING_H
#define VMA_UDP_DATAGRAM_RING_H

#include <vma/ck_tsan.h> /* before ck's */

#include <ck_ring.h>

#include "udp_priv.h"

CK_RING_PROTOTYPE(datagram, udp_datagram)

struct udp_queue_chunk {
	ck_ring_t ring;                       /* holds one less than its size */
	struct udp_queue_chunk *_Atomic next; /* set once, when this one was full and is used no more by the producer */
	struct udp_datagram datagrams[];
};

static inline bool datagram_ring_push_spsc(struct udp_queue_chunk *chunk, const struct udp_datagram *datagram)
{
	return ck_ring_enqueue_spsc_datagram(&chunk->ring, chunk->datagrams, (struct udp_datagram *)datagram);
}

static inline bool datagram_ring_pop_spsc(struct udp_queue_chunk *chunk, struct udp_datagram *datagram)
{
	return ck_ring_dequeue_spsc_datagram(&chunk->ring, chunk->datagrams, datagram);
}

#endif
