/*
 * lane - the link's memory: one lane of frame slots per sending queue pair, and one page per end.
 *
 *   | page of end 0 | page of end 1 | lanes of end 0: 0 .. 15 | lanes of end 1: 0 .. 15 |
 *
 *   page of end e   written by e only: consumer indices of the lanes that flow to e, its arm_seq, its lanes in use
 *   lane of end e   written by e only: slots { seq, len, bytes }
 *
 * A lane is a single-producer single-consumer queue. ck_ring cannot do this job: it keeps its size and both indices
 * where the peer could write them, and believes them. Here nothing that decides where this side reads or writes is in
 * shared memory. Each side keeps its own index, and the peer's words only say "more" or "less far".
 *
 * Publication. Slot i of the lap is readable when its seq word equals (nonce << 32 | i + 1). The producer writes a
 * burst from the second slot on with its seq words. It writes the seq of the burst's first slot last, at kick. The
 * consumer takes slots in order, so nothing is visible before kick. The seq store (seq_cst, hence release) of the first
 * slot orders everything before it; later slots carry a release store of their own. The consumer's acquire load of seq
 * pairs with both. So one cache line less travels than with a producer index: seq, length and the first 48 bytes share
 * a line.
 *
 * Reuse. The consumer stores (nonce << 32 | index) with release after it has copied the frames. The producer's acquire
 * load pairs with it, so the producer never writes into a slot that a well-behaved peer still reads. An index that is
 * not between the last known one and the producer's own is not believed (bad_peer).
 *
 * Nonce. Each establishment of the link has a random nonce. So old bytes never look like a frame or an index of the
 * present link. They may be a former peer's, or this side's before it noticed the change.
 *
 * Indices have 32 bits, wrap, and are only subtracted. slots is a power of two, so index & mask survives the wrap.
 *
 * Threads: the producer functions by the transmit half of the queue pair, the consumer functions by the holder of the
 * receiving end's engine.
 */
#ifndef VMA_NIC_WIRE_LANE_H
#define VMA_NIC_WIRE_LANE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_LANES 16     /* queue pairs per end */
#define WIRE_PAGE 4096    /* each end's own page */
#define WIRE_L2_BYTES 18  /* Ethernet header with one VLAN tag */
#define WIRE_FRAME_MIN 14 /* an Ethernet header */
#define WIRE_LINE 64

struct wire_slot {
	_Atomic uint64_t seq;
	_Atomic uint32_t len; /* read once, checked against the slot's room */
	uint32_t reserved;
	char bytes[];
};
_Static_assert(sizeof(struct wire_slot) == 16, "48 bytes of the frame in the first line");

struct wire_consumed_index {
	_Atomic uint64_t value; /* nonce << 32 | consumer index */
} __attribute__((aligned(WIRE_LINE)));

struct wire_side_page {
	struct wire_consumed_index consumed[WIRE_LANES];
	_Atomic uint64_t arm_seq __attribute__((aligned(WIRE_LINE)));      /* moves when a queue pair goes to sleep */
	_Atomic uint32_t lanes_in_use __attribute__((aligned(WIRE_LINE))); /* bit per sending queue pair */
};
_Static_assert(sizeof(struct wire_side_page) <= WIRE_PAGE, "one page per end");

/* Where things are: computed by each side for itself, never read from shared memory. */
struct wire_layout {
	uint32_t slots;      /* per lane, power of two */
	uint32_t frame_max;  /* bytes of the longest frame */
	uint32_t slot_bytes; /* distance of slots: an odd number of lines, so that slots spread over all cache sets */
	size_t lane_bytes, bytes;
};

static inline void wire_layout_init(struct wire_layout *layout, uint32_t slots, uint32_t mtu)
{
	uint32_t lines = (uint32_t)((sizeof(struct wire_slot) + mtu + WIRE_L2_BYTES + WIRE_LINE - 1) / WIRE_LINE);

	layout->slots = slots;
	layout->frame_max = mtu + WIRE_L2_BYTES;
	layout->slot_bytes = (lines | 1) * WIRE_LINE;
	layout->lane_bytes = ((size_t)slots * layout->slot_bytes + WIRE_PAGE - 1) / WIRE_PAGE * WIRE_PAGE;
	layout->bytes = 2 * WIRE_PAGE + 2 * WIRE_LANES * layout->lane_bytes;
}
static inline struct wire_side_page *wire_side_page(char *memory, int side)
{
	return (struct wire_side_page *)(void *)(memory + (size_t)side * WIRE_PAGE);
}
static inline char *wire_lane(char *memory, const struct wire_layout *layout, int side, uint32_t lane)
{
	return memory + 2 * WIRE_PAGE + ((size_t)side * WIRE_LANES + lane) * layout->lane_bytes;
}
static inline uint64_t wire_index_with_nonce(uint32_t nonce, uint32_t index)
{
	return (uint64_t)nonce << 32 | index;
}

/* ---- producer: the transmit half of one queue pair ---- */

struct wire_producer {
	char *slots;
	_Atomic uint64_t *consumed; /* the peer's word */
	uint32_t mask, slot_bytes, bound;
	uint32_t nonce;    /* of the link that the indices belong to */
	uint32_t produced; /* next slot to write */
	uint32_t kicked;   /* next slot to show */
	uint32_t consumed_cached;
};

static inline struct wire_slot *wire_slot_at(char *slots, uint32_t index, uint32_t mask, uint32_t slot_bytes)
{
	return (struct wire_slot *)(void *)(slots + (size_t)(index & mask) * slot_bytes);
}

/* Looks where the consumer is. False: what it wrote makes no sense. */
static inline bool wire_producer_read_consumed(struct wire_producer *p)
{
	uint64_t word = atomic_load_explicit(p->consumed, memory_order_acquire);

	if ((uint32_t)(word >> 32) != p->nonce)
		return true; /* nothing written yet over this link */
	if (p->kicked - (uint32_t)word > p->kicked - p->consumed_cached)
		return false;
	p->consumed_cached = (uint32_t)word;
	return true;
}
/* For so many frames, at least one. */
static inline bool wire_producer_has_room(const struct wire_producer *p, uint32_t frames)
{
	return p->produced - p->consumed_cached + frames <= p->bound;
}
/* The slot to fill next; call only when there is room. */
static inline struct wire_slot *wire_producer_next_slot(struct wire_producer *p)
{
	return wire_slot_at(p->slots, p->produced, p->mask, p->slot_bytes);
}
/* The slot is filled: visible at once behind a hidden first one, or hidden as the first of its burst. */
static inline void wire_producer_push(struct wire_producer *p, struct wire_slot *slot, uint32_t len)
{
	atomic_store_explicit(&slot->len, len, memory_order_relaxed);
	if (p->produced != p->kicked)
		atomic_store_explicit(&slot->seq, wire_index_with_nonce(p->nonce, p->produced + 1),
		                      memory_order_release);
	p->produced++;
}
/* Shows the burst. seq_cst: the caller next loads the peer's arm_seq, see engine.c. */
static inline void wire_producer_publish(struct wire_producer *p)
{
	struct wire_slot *first = wire_slot_at(p->slots, p->kicked, p->mask, p->slot_bytes);

	atomic_store_explicit(&first->seq, wire_index_with_nonce(p->nonce, p->kicked + 1), memory_order_seq_cst);
	p->kicked = p->produced;
}

/* ---- consumer: whoever holds the receiving end's engine ---- */

struct wire_consumer {
	char *slots;
	_Atomic uint64_t *consumed_at; /* this side's own */
	uint32_t mask, slot_bytes;
	_Atomic uint32_t nonce;    /* the two are written by the engine's holder; others peek */
	_Atomic uint32_t consumed; /* next slot to read */
	uint32_t published;
	uint32_t frame_number; /* of this lane, for the fault plan */
};

/* The next readable slot, or NULL. */
static inline struct wire_slot *wire_consumer_next_readable_slot(const struct wire_consumer *c)
{
	uint32_t index = atomic_load_explicit(&c->consumed, memory_order_relaxed);
	uint32_t nonce = atomic_load_explicit(&c->nonce, memory_order_relaxed);
	struct wire_slot *slot = wire_slot_at(c->slots, index, c->mask, c->slot_bytes);

	return atomic_load_explicit(&slot->seq, memory_order_acquire) == wire_index_with_nonce(nonce, index + 1) ? slot
	                                                                                                         : NULL;
}
static inline void wire_consumer_pop(struct wire_consumer *c)
{
	uint32_t index = atomic_load_explicit(&c->consumed, memory_order_relaxed);

	atomic_store_explicit(&c->consumed, index + 1, memory_order_relaxed);
}
/* Gives the slots read so far back to the producer: once per burst. */
static inline void wire_consumer_release_slots(struct wire_consumer *c)
{
	uint32_t index = atomic_load_explicit(&c->consumed, memory_order_relaxed);

	if (index == c->published)
		return;
	c->published = index;
	atomic_store_explicit(c->consumed_at,
	                      wire_index_with_nonce(atomic_load_explicit(&c->nonce, memory_order_relaxed), index),
	                      memory_order_release);
}

#endif
