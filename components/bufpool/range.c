/* range - which parts of an arena's reservation are in use: a bitmap of units, claimed without a lock. */
#include <errno.h>
#include <stdlib.h>

#include "bufpool_priv.h"

int bufpool_range_init(struct range_map *map, uint32_t units)
{
	map->units = units;
	map->words = calloc((units + 63) / 64, sizeof(*map->words));
	map->lengths = calloc(units, sizeof(*map->lengths));
	if (map->words != NULL && map->lengths != NULL)
		return 0;
	bufpool_range_fini(map);
	return -ENOMEM;
}

void bufpool_range_fini(struct range_map *map)
{
	free(map->words);
	free(map->lengths);
	map->words = NULL;
	map->lengths = NULL;
}

/* Bits [first, first + count) that lie in `word`. */
static uint64_t bitmap_word_mask_of_range(uint32_t word, uint32_t first, uint32_t count)
{
	uint32_t from = first > word * 64 ? first - word * 64 : 0;
	uint32_t to = first + count < word * 64 + 64 ? first + count - word * 64 : 64;
	uint64_t upto = to == 64 ? UINT64_MAX : ((uint64_t)1 << to) - 1;

	return upto & ~(((uint64_t)1 << from) - 1);
}

uint32_t bufpool_range_length(const struct range_map *map, uint32_t first)
{
	return first < map->units ? atomic_load_explicit(&map->lengths[first], memory_order_relaxed) : 0;
}

/* Release: what was done to the memory is done before others claim it. */
void bufpool_range_release(struct range_map *map, uint32_t first)
{
	uint32_t count = atomic_exchange_explicit(&map->lengths[first], 0, memory_order_relaxed);

	for (uint32_t w = first / 64; count > 0 && w <= (first + count - 1) / 64; w++)
		atomic_fetch_and_explicit(&map->words[w], ~bitmap_word_mask_of_range(w, first, count),
		                          memory_order_release);
}

/*
 * A run belongs to whoever set all of its bits from 0 to 1. Each word is claimed by one fetch_or; finding a bit of
 * ours already set means that somebody else was faster: everything we did set is cleared again, and only that. Two
 * such claims may make each other give up, so the caller searches again; it never takes what another has.
 */
static bool range_try_claim_at(struct range_map *map, uint32_t first, uint32_t count)
{
	uint32_t last = (first + count - 1) / 64;

	for (uint32_t w = first / 64; w <= last; w++) {
		uint64_t mask = bitmap_word_mask_of_range(w, first, count);
		uint64_t old = atomic_fetch_or_explicit(&map->words[w], mask, memory_order_acquire);

		if ((old & mask) == 0)
			continue;
		atomic_fetch_and_explicit(&map->words[w], ~(mask & ~old), memory_order_release);
		for (uint32_t u = first / 64; u < w; u++)
			atomic_fetch_and_explicit(&map->words[u], ~bitmap_word_mask_of_range(u, first, count),
			                          memory_order_release);
		return false;
	}
	return true;
}

/* The last unit of [first, first + count) that is in use, or first - 1. */
static int64_t range_last_used_unit(const struct range_map *map, uint32_t first, uint32_t count)
{
	for (int64_t w = (first + count - 1) / 64; w >= first / 64; w--) {
		uint64_t used = atomic_load_explicit(&map->words[w], memory_order_relaxed) &
		                bitmap_word_mask_of_range((uint32_t)w, first, count);
		if (used != 0)
			return w * 64 + 63 - __builtin_clzll(used);
	}
	return (int64_t)first - 1;
}

int bufpool_range_claim(struct range_map *map, uint32_t count, uint32_t align, uint32_t *first)
{
	if (count == 0 || count > map->units)
		return -ENOMEM;
	for (int tries = 0; tries < 16; tries++) {
		bool collided = false;
		uint32_t at = 0;

		while ((uint64_t)at + count <= map->units) {
			int64_t used = range_last_used_unit(map, at, count);
			if (used < at) {
				if (range_try_claim_at(map, at, count)) {
					atomic_store_explicit(&map->lengths[at], count, memory_order_relaxed);
					*first = at;
					return 0;
				}
				collided = true;
				used = at;
			}
			at = (uint32_t)((used + align) / align * align);
		}
		if (!collided)
			break;
	}
	return -ENOMEM;
}
