/*
 * retire - the end of a pool: every buffer is waited for by counting, and exactly one thread ends the pool.
 *
 * `outstanding` is the sum of four things that keep the pool. The first is its population: buffers that exist and are
 * not yet known to be back. The others are every thread that works on the share without a cache, every cache that is
 * not closed, and LIVE until retirement is through. A thread that adds to it holds another part of it at that moment (a
 * buffer, LIVE, or a cache that is open). So it never rises from zero, and the one thread that brings it to zero ends
 * the pool.
 *
 * While the pool lives, a put changes no counter: population is only known as a sum, and free buffers are not counted
 * at all. Retirement turns that around. It shuts the gates of all caches, so from then on every put goes to the share
 * and looks at `state` after its push. The thread that takes a buffer out of a cache or the share counts it:
 *   - A cache with no thread inside is closed by the retirer. Else its owner closes it on leaving, because it finds the
 *     gate shut. must_close goes to zero once, so it is one of the two. (Both sides store their word, `inside` or
 *     `gate`, pass a barrier and load the other one. So if the retirer saw `inside`, the owner sees the gate; cache.c,
 *     thread.c.)
 *   - A batch in the share is taken out once, by the ring or the stack. The retirer looks there after it has set
 *     `state`; a pusher looks at `state` after the push (full barriers on both sides). At least one of the two sees the
 *     other, so no batch stays behind.
 * A buffer is therefore subtracted exactly once, and no cache or share of a retired pool gives anything out again.
 */
#include <ck_pr.h>

#include <vma/log.h>

#include "bufpool_priv.h"
#include "debug.h"

static COLD void pool_free_slot_and_notify(struct vma_bufpool *pool)
{
	struct vma_bufarena *arena = pool->arena;
	void (*drained)(void *arg) = pool->drained;
	void *arg = pool->drained_arg;

	vma_log_debug("bufpool %s: drained", pool->name);
	bufpool_debug_unmark_free_bufs_of_pool(pool);
	bufpool_release_grown_memory(pool);
	vma_stats_block_free(pool->segment, pool->stats);
	atomic_store_explicit(&arena->pools[pool->id], NULL, memory_order_release);
	atomic_store_explicit(&pool->state, POOL_UNUSED, memory_order_release);
	if (drained != NULL)
		drained(arg); /* may destroy the arena: nothing is touched after it */
}

void bufpool_add_outstanding_refs(struct vma_bufpool *pool, int64_t n)
{
	if (atomic_fetch_add_explicit(&pool->outstanding, n, memory_order_acq_rel) + n == 0)
		pool_free_slot_and_notify(pool);
}

bool bufpool_outstanding_add_if_live(struct vma_bufpool *pool, int64_t n, int64_t least)
{
	int64_t outstanding = atomic_load_explicit(&pool->outstanding, memory_order_relaxed);

	do {
		if (outstanding < least)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(&pool->outstanding, &outstanding, outstanding + n,
	                                                memory_order_acquire, memory_order_relaxed));
	return true;
}

/* Takes everything out of the share; the caller holds a part of what is outstanding. How many buffers are back. */
static int64_t bufpool_share_pop_all(struct vma_bufpool *pool)
{
	int64_t back = 0;
	uint32_t count;

	while (bufpool_share_pop_batch(pool, &count) != NULL)
		back += count;
	return back;
}

void bufpool_share_drain_if_retired(struct vma_bufpool *pool)
{
	ck_pr_fence_memory(); /* push, then state; pairs with the one in pool_retire_caches */
	if (unlikely(atomic_load_explicit(&pool->state, memory_order_seq_cst) == POOL_RETIRED))
		bufpool_add_outstanding_refs(pool, -bufpool_share_pop_all(pool));
}

/* By the retirer or the owner, with nobody inside; the owner may have pushed batches since the share was drained. */
void bufpool_cache_close_retired(struct vma_bufpool *pool, struct cache *cache)
{
	int64_t change;

	if (atomic_exchange_explicit(&cache->must_close, 0, memory_order_acq_rel) == 0)
		return;
	change = cache->population - (int64_t)bufpool_cache_discard(cache);
	cache->population = cache->published = 0;
	bufpool_add_outstanding_refs(pool, change - bufpool_share_pop_all(pool) - POOL_OUTSTANDING_CACHE);
}

static void pool_retire_caches(struct vma_bufpool *pool)
{
	uint32_t high = atomic_load_explicit(&pool->cache_high, memory_order_relaxed);

	for (uint32_t i = 0; i < high; i++) {
		struct cache *cache = &pool->caches[i];

		if ((atomic_load_explicit(&cache->gate, memory_order_relaxed) & GATE_OPEN) == 0)
			continue;
		bufpool_add_outstanding_refs(pool, POOL_OUTSTANDING_CACHE);
		atomic_store_explicit(&cache->must_close, 1, memory_order_relaxed);
		atomic_fetch_and_explicit(&cache->gate, ~(uint32_t)GATE_OPEN, memory_order_seq_cst);
	}
	bufpool_heavy_barrier();
	for (uint32_t i = 0; i < high; i++) {
		struct cache *cache = &pool->caches[i];

		if (atomic_load_explicit(&cache->must_close, memory_order_relaxed) != 0 &&
		    atomic_load_explicit(&cache->inside, memory_order_seq_cst) == 0)
			bufpool_cache_close_retired(pool, cache);
	}
	ck_pr_fence_memory(); /* state, then share; pairs with the one in bufpool_share_drain_if_retired */
	bufpool_add_outstanding_refs(pool, -bufpool_share_pop_all(pool));
	bufpool_debug_log_pool_leaks(pool);
}

/*
 * Who finds `visiting` taken leaves the work to its holder: the holder looks at `state` after it has let go, and the
 * state was set before the attempt (all seq_cst), so one of the two carries it out.
 */
static void pool_try_retire(struct vma_bufpool *pool)
{
	int expected = POOL_RETIRING;

	if (atomic_exchange_explicit(&pool->visiting, 1, memory_order_seq_cst) != 0)
		return;
	if (!atomic_compare_exchange_strong_explicit(&pool->state, &expected, POOL_RETIRED, memory_order_seq_cst,
	                                             memory_order_relaxed)) {
		pool_end_visit_and_retire_if_due(pool);
		return;
	}
	pool_retire_caches(pool);
	atomic_store_explicit(&pool->visiting, 0, memory_order_seq_cst);
	bufpool_add_outstanding_refs(pool, -POOL_OUTSTANDING_LIVE);
}

bool pool_try_become_visitor(struct vma_bufpool *pool)
{
	return atomic_exchange_explicit(&pool->visiting, 1, memory_order_seq_cst) == 0;
}

void pool_end_visit_and_retire_if_due(struct vma_bufpool *pool)
{
	atomic_store_explicit(&pool->visiting, 0, memory_order_seq_cst);
	if (unlikely(atomic_load_explicit(&pool->state, memory_order_seq_cst) == POOL_RETIRING))
		pool_try_retire(pool);
}

void vma_bufpool_retire(struct vma_bufpool *pool, void (*drained)(void *arg), void *arg)
{
	int expected = POOL_LIVE;

	if (pool == NULL)
		return;
	if (atomic_load_explicit(&pool->state, memory_order_relaxed) == POOL_LIVE) {
		pool->drained = drained;
		pool->drained_arg = arg;
	}
	if (!atomic_compare_exchange_strong_explicit(&pool->state, &expected, POOL_RETIRING, memory_order_seq_cst,
	                                             memory_order_relaxed)) {
		vma_log_error("bufpool %s: retired twice", pool->name);
		return;
	}
	pool_try_retire(pool);
}
