/*
 * tx_slots.h - a ring's fixed number of slots, in which packets wait for the holder of the transmit flag.
 *
 * One bit for each slot says whether it is free. Claiming and freeing are single atomic operations, so a signal handler
 * may do both. A packet of more than TX_SLOT_SEGS segments has several slots, linked by `more`.
 *
 * Threads: any thread claims and fills. The thread that sends, or that gives a claim up, frees.
 */
#ifndef VMA_RING_TX_SLOTS_H
#define VMA_RING_TX_SLOTS_H

#include <string.h>

#include "ring_priv.h"

static void tx_slots_init(struct vma_ring *ring)
{
	for (uint32_t i = 0; i < TX_SLOTS; i++)
		ring->slots[i].number = (uint16_t)i;
	for (uint32_t i = 0; i < TX_SLOTS / 64; i++)
		atomic_init(&ring->slots_free[i], UINT64_MAX);
}

static struct tx_slot *tx_slot_claim(struct vma_ring *ring, uint32_t tid)
{
	for (uint32_t i = 0; i < TX_SLOTS / 64; i++) {
		_Atomic uint64_t *word = &ring->slots_free[(tid + i) % (TX_SLOTS / 64)];
		uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);

		while (seen != 0) {
			uint64_t bit = seen & -seen;

			/* Acquire: the one who freed it has read the slot before. */
			seen = atomic_fetch_and_explicit(word, ~bit, memory_order_acquire);
			if (seen & bit)
				return &ring->slots[(tid + i) % (TX_SLOTS / 64) * 64 + (uint32_t)__builtin_ctzll(bit)];
		}
	}
	return NULL;
}

static void slots_free(struct vma_ring *ring, struct tx_slot *slot)
{
	while (slot != NULL) {
		struct tx_slot *more = slot->more;

		atomic_fetch_or_explicit(&ring->slots_free[slot->number / 64], UINT64_C(1) << slot->number % 64,
		                         memory_order_release);
		slot = more;
	}
}

/* Slots for one packet of n segments, filled; NULL: not enough are free. */
static struct tx_slot *tx_slots_claim_and_fill_for_packet(struct vma_ring *ring, const struct vma_nic_seg *segs,
                                                          unsigned n, uint32_t tid)
{
	struct tx_slot *first = NULL, **link = &first;

	while (n > 0) {
		unsigned here = n < TX_SLOT_SEGS ? n : TX_SLOT_SEGS;
		struct tx_slot *slot = tx_slot_claim(ring, tid);

		if (slot == NULL) {
			slots_free(ring, first);
			return NULL;
		}
		slot->more = NULL;
		slot->segs_count = here;
		slot->frames_sent = 0;
		memcpy(slot->segs, segs, here * sizeof(*segs));
		*link = slot;
		link = &slot->more;
		segs += here;
		n -= here;
	}
	return first;
}

/* Of the whole packet. */
static unsigned tx_slot_count_segs(const struct tx_slot *slot)
{
	unsigned n = 0;

	for (; slot != NULL; slot = slot->more)
		n += slot->segs_count;
	return n;
}

/* The segments of the whole packet, in one array; how many there are. */
static unsigned tx_slots_copy_segs_to_array(const struct tx_slot *slot, struct vma_nic_seg *segs)
{
	unsigned n = 0;

	for (; slot != NULL; n += slot->segs_count, slot = slot->more)
		memcpy(segs + n, slot->segs, slot->segs_count * sizeof(*segs));
	return n;
}

#endif
