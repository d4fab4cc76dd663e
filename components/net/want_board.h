/*
 * want_board.h - keys that senders want paths for: a few places, each with a state of its own.
 *
 *   FREE ── sender claims (cas) ──> FILLING ── key is written ──> READY ── taken under net's lock ──> FREE
 *
 * The key is plain memory: only the thread that has claimed a place writes it. READY (release, acquire) hands the key
 * over, and FREE hands the place back in the same way. If a sender is descheduled while it fills, it keeps one place,
 * and no thread waits for it. There is no order and no allocation, and a signal handler may interrupt another sender.
 * If the board is full, the post fails, and the sender's next packet tries again. It is not a ck_ring: the producers of
 * one wait for those before them.
 *
 * Threads: any thread posts, also in a signal handler. One thread at a time takes, with net's lock.
 */
#ifndef VMA_NET_WANT_BOARD_H
#define VMA_NET_WANT_BOARD_H

#include <string.h>

#include <vma/net.h>

#define WANT_PLACES 64
#define WANT_PLACES_EACH 4 /* that one key may take: a busy sender posts it again and again until it is made */

enum path_request_place_state { WANT_FREE, WANT_FILLING, WANT_READY };

struct want_board {
	struct path_request_place {
		_Alignas(64) _Atomic uint32_t state;
		struct vma_net_key key;
	} places[WANT_PLACES];
};

static inline unsigned path_request_board_hash_slot(const struct vma_net_key *key)
{
	uint32_t words[sizeof(*key) / 4], hash = 0;

	memcpy(words, key, sizeof(words));
	for (size_t i = 0; i < sizeof(words) / 4; i++)
		hash = (hash ^ words[i]) * 0x9e3779b1u;
	return hash >> 16;
}

static inline bool path_request_board_post(struct want_board *board, const struct vma_net_key *key)
{
	const unsigned home = path_request_board_hash_slot(key);

	for (unsigned i = 0; i < WANT_PLACES_EACH; i++) {
		struct path_request_place *place = &board->places[(home + i) % WANT_PLACES];
		uint32_t state = WANT_FREE;

		if (atomic_load_explicit(&place->state, memory_order_relaxed) != WANT_FREE ||
		    !atomic_compare_exchange_strong_explicit(&place->state, &state, WANT_FILLING, memory_order_acquire,
		                                             memory_order_relaxed))
			continue;
		place->key = *key;
		atomic_store_explicit(&place->state, WANT_READY, memory_order_release);
		return true;
	}
	return false;
}

/* The next key from place *at on; false: no more. One taker at a time. */
static inline bool path_request_board_take(struct want_board *board, unsigned *at, struct vma_net_key *key)
{
	for (; *at < WANT_PLACES; (*at)++) {
		struct path_request_place *place = &board->places[*at];

		if (atomic_load_explicit(&place->state, memory_order_acquire) != WANT_READY)
			continue;
		*key = place->key;
		atomic_store_explicit(&place->state, WANT_FREE, memory_order_release);
		return true;
	}
	return false;
}

#endif
