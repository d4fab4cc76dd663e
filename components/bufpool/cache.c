/*
 * cache - the slow side of the per-thread caches: registration, flushing, and reclaim by others.
 *
 * The *owner* of a cache is its thread; a *visitor* is any other. The owner sets `inside`, passes a light barrier, and
 * goes on only if `gate` is OPEN. A visitor shuts the gate, passes the heavy barrier, and touches the cache only if
 * `inside` is 0. Of any two such attempts at least one sees the other (Dekker; thread.c explains the barrier). If the
 * visitor reads inside == 0, the owner's next entry finds the gate shut, until the visitor opens it again. The owner's
 * writes are visible to the visitor through `inside` (release, acquire), the visitor's to the owner through `gate`.
 * Neither waits: an owner at a shut gate works on the share, and a visitor passes by a cache in use.
 *
 * A signal handler that interrupts its own thread between enter and leave finds `inside` set and works on the share.
 */
#include "bufpool_priv.h"

/* First use of a pool by this thread index: the gate opens, unless the pool is ending. */
static bool cache_try_init_and_open_gate(struct vma_bufpool *pool, struct cache *cache)
{
	uint32_t index = (uint32_t)(cache - pool->caches);
	bool opened = false;

	if (!pool_try_become_visitor(pool))
		return false;
	if (atomic_load_explicit(&pool->state, memory_order_seq_cst) == POOL_LIVE) {
		if (atomic_load_explicit(&pool->cache_high, memory_order_relaxed) <= index)
			atomic_store_explicit(&pool->cache_high, index + 1, memory_order_relaxed);
		cache->limit = atomic_load_explicit(&pool->batch_now, memory_order_relaxed);
		atomic_store_explicit(&cache->gate, GATE_OPEN, memory_order_release);
		opened = true;
	}
	pool_end_visit_and_retire_if_due(pool);
	return opened;
}

static struct cache *pool_register_thread_and_enter_cache(struct vma_bufpool *pool)
{
	if (bufpool_thread_index == THREAD_NONE && bufpool_thread_register() - 1 < THREADS_MAX)
		return bufpool_cache_acquire(pool);
	return NULL; /* more threads than caches, this one is ending, or is inside already */
}

/* The owner came in and finds the gate not open: never opened for this thread yet, or a visitor is at work. */
static struct cache *cache_enter_opening_gate(struct vma_bufpool *pool, struct cache *cache)
{
	bufpool_cache_release(pool, cache);
	if (atomic_load_explicit(&cache->gate, memory_order_acquire) == 0 &&
	    cache_try_init_and_open_gate(pool, cache) && cache_set_inside_read_gate(cache, 1) == GATE_OPEN)
		return cache;
	if (atomic_load_explicit(&cache->inside, memory_order_relaxed) != 0)
		bufpool_cache_release(pool, cache); /* a visitor came between */
	return NULL;
}

COLD struct cache *bufpool_cache_acquire_slow(struct vma_bufpool *pool, struct cache *cache)
{
	return cache == NULL ? pool_register_thread_and_enter_cache(pool) : cache_enter_opening_gate(pool, cache);
}

/* The owner has left and finds the gate not open. If the pool was retired meanwhile, closing was left to the owner. */
COLD void bufpool_cache_close_if_pool_retired(struct vma_bufpool *pool, struct cache *cache)
{
	if (atomic_load_explicit(&cache->must_close, memory_order_seq_cst) != 0)
		bufpool_cache_close_retired(pool, cache);
}

/* Empties the lists without giving the buffers anywhere; the caller is inside, or visits. Returns how many. */
uint32_t bufpool_cache_discard(struct cache *cache)
{
	uint32_t count = atomic_load_explicit(&cache->current_count, memory_order_relaxed) +
	                 atomic_load_explicit(&cache->full_count, memory_order_relaxed);

	cache->current = cache->full = NULL;
	atomic_store_explicit(&cache->current_count, 0, memory_order_relaxed);
	atomic_store_explicit(&cache->full_count, 0, memory_order_relaxed);
	return count;
}

/* Everything that is in the cache goes to the share; the caller is inside, or visits. */
static uint32_t cache_flush_to_share(struct vma_bufpool *pool, struct cache *cache)
{
	uint32_t current = atomic_load_explicit(&cache->current_count, memory_order_relaxed);
	uint32_t full = atomic_load_explicit(&cache->full_count, memory_order_relaxed);

	if (current > 0)
		bufpool_share_push_in_batches(pool, cache->current, current);
	if (full > 0)
		bufpool_share_push_in_batches(pool, cache->full, full);
	return bufpool_cache_discard(cache);
}

void bufpool_cache_flush(struct vma_bufpool *pool, uint32_t thread)
{
	struct cache *cache;

	if (thread - 1 >= THREADS_MAX || thread > atomic_load_explicit(&pool->cache_high, memory_order_relaxed))
		return;
	cache = bufpool_cache_acquire(pool);
	if (cache == NULL)
		return;
	cache_flush_to_share(pool, cache);
	bufpool_cache_release(pool, cache);
}

static uint32_t cache_count_unlocked(struct cache *cache)
{
	return atomic_load_explicit(&cache->current_count, memory_order_relaxed) +
	       atomic_load_explicit(&cache->full_count, memory_order_relaxed);
}

/* Caches of other threads that hold something, up to `high`; shuts their gates if asked to. */
static uint32_t count_other_nonempty_caches(struct vma_bufpool *pool, const struct cache *own, uint32_t high, bool shut)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < high; i++) {
		struct cache *cache = &pool->caches[i];

		if (cache == own || cache_count_unlocked(cache) == 0)
			continue;
		if (shut)
			atomic_fetch_or_explicit(&cache->gate, GATE_VISITED, memory_order_seq_cst);
		found++;
	}
	return found;
}

/*
 * VMA_BUFFER_BATCHING_MODE 1: a pool that has run dry takes back what other threads keep in their caches, idle or not;
 * one heavy barrier serves for all of them. Batches become smaller with each such shortage, so that a window of a few
 * hundred buffers goes round among many threads instead of being hoarded in batches by some; see pool_grow_batch_size.
 * True if something was taken back (it is in the share then).
 */
COLD bool bufpool_reclaim_from_thread_caches(struct vma_bufpool *pool, const struct cache *own)
{
	uint32_t high = atomic_load_explicit(&pool->cache_high, memory_order_relaxed);
	uint32_t taken = 0, now;

	if (pool->mode != 1 || count_other_nonempty_caches(pool, own, high, false) == 0)
		return false;
	if (!pool_try_become_visitor(pool))
		return false; /* somebody else is doing this, or ends the pool */
	if (atomic_load_explicit(&pool->state, memory_order_seq_cst) == POOL_LIVE) {
		now = atomic_load_explicit(&pool->batch_now, memory_order_relaxed);
		atomic_store_explicit(&pool->batch_now, now > 1 ? now / 2 : 1, memory_order_relaxed);
		atomic_store_explicit(&pool->batches_without_shortage, 0, memory_order_relaxed);
		if (count_other_nonempty_caches(pool, own, high, true) > 0)
			bufpool_heavy_barrier();
		for (uint32_t i = 0; i < high; i++) {
			struct cache *cache = &pool->caches[i];

			/* only this function sets VISITED, and `visiting` is ours */
			if ((atomic_load_explicit(&cache->gate, memory_order_relaxed) & GATE_VISITED) == 0)
				continue;
			if (atomic_load_explicit(&cache->inside, memory_order_seq_cst) == 0)
				taken += cache_flush_to_share(pool, cache);
			atomic_fetch_and_explicit(&cache->gate, ~(uint32_t)GATE_VISITED, memory_order_release);
		}
	}
	pool_end_visit_and_retire_if_due(pool);
	return taken > 0;
}
