/* grow - ordinary memory for a pool, in chunks, when it has run dry. Any thread, several at a time, no lock. */
#include "bufpool_priv.h"
#include "debug.h"

#include <vma/log.h>

#define PAUSE 256 /* dry requests that pass before memory is asked for again after a refusal */

/* Counts the frames before they exist, so that pools growing in many threads at once keep to max_bufs. */
static uint32_t pool_reserve_growth_frames(struct vma_bufpool *pool)
{
	uint32_t grown = atomic_load_explicit(&pool->grown, memory_order_relaxed);
	uint32_t count;

	do {
		if (grown >= pool->max_bufs)
			return 0;
		count = pool->max_bufs - grown < pool->chunk ? pool->max_bufs - grown : pool->chunk;
	} while (!atomic_compare_exchange_weak_explicit(&pool->grown, &grown, grown + count, memory_order_relaxed,
	                                                memory_order_relaxed));
	return count;
}

/* A refusal costs system calls; a pool that stays dry asks again only now and then. */
static bool pool_growth_is_paused(struct vma_bufpool *pool)
{
	uint32_t left = atomic_load_explicit(&pool->grow_pause, memory_order_relaxed);

	if (likely(left == 0))
		return false;
	atomic_store_explicit(&pool->grow_pause, left - 1, memory_order_relaxed);
	return true;
}

/* The caller holds a part of what is outstanding. Chunks never outnumber chunks_max: all but one are whole. */
COLD bool bufpool_grow(struct vma_bufpool *pool)
{
	uint32_t count, first, chunk;

	if (atomic_load_explicit(&pool->grown, memory_order_relaxed) >= pool->max_bufs || pool_growth_is_paused(pool))
		return false;
	count = pool_reserve_growth_frames(pool);
	if (count == 0)
		return false;
	if (vma_bufarena_map_memory(pool->arena, count, &first) != 0) {
		atomic_fetch_sub_explicit(&pool->grown, count, memory_order_relaxed);
		atomic_store_explicit(&pool->grow_pause, PAUSE, memory_order_relaxed);
		vma_log_once(VMA_LOG_WARN, "bufpool %s: no memory for %u more buffers", pool->name, count);
		return false;
	}
	chunk = atomic_fetch_add_explicit(&pool->chunk_count, 1, memory_order_relaxed);
	pool->chunks[chunk] = (struct chunk){first, count};
	bufpool_add_outstanding_refs(pool, count);
	bufpool_counter_add(&pool->stats->grown, 1);
	bufpool_share_push_new_range(pool, first, count);
	return true;
}

/* The pool has ended: outstanding's acquire and release make every chunk visible here. */
void bufpool_release_grown_memory(struct vma_bufpool *pool)
{
	uint32_t chunks = atomic_load_explicit(&pool->chunk_count, memory_order_relaxed);

	for (uint32_t i = 0; i < chunks; i++)
		vma_bufarena_unmap(pool->arena, pool->chunks[i].first, pool->chunks[i].count);
}
