/*
 * pool_hot - taking buffers and giving them back.
 *
 * Rare cases (no cache, a shut gate, an empty or full cache) are calls at the end of their function. They never come
 * back into the fast path, which therefore needs no saved registers.
 */
#include <vma/log.h>

#include "bufpool_priv.h"
#include "debug.h"

/* All of a buffer that a new holder may rely on; one cache line, which the list walk has just touched. */
static inline void init_taken_buf(struct vma_bufpool *pool, struct vma_buf *buf)
{
	bufpool_debug_mark_held_and_check_fill(pool, buf);
	buf->next = NULL;
	atomic_store_explicit(&buf->refs, 1, memory_order_relaxed);
	buf->flags = 0;
	buf->data_off = 0;
	buf->len = 0;
	buf->packet_len = 0;
	buf->user = NULL;
}

/* Hands out up to n buffers of a chain; *first becomes what is left of it. */
static inline unsigned init_taken_bufs_of_chain(struct vma_bufpool *pool, struct vma_buf **first, uint32_t count,
                                                struct vma_buf **bufs, unsigned n)
{
	struct vma_buf *buf = *first;
	unsigned i, most = n < count ? n : count;

	for (i = 0; i < most; i++) {
		struct vma_buf *next = buf->user;

		__builtin_prefetch(next);
		init_taken_buf(pool, buf);
		bufs[i] = buf;
		buf = next;
	}
	*first = buf;
	return most;
}

/* A batch from the share, or, if `make`, one made by growth or reclaim; NULL: the pool is empty. */
static struct vma_buf *share_take_or_grow_pool(struct vma_bufpool *pool, const struct cache *own, uint32_t *count,
                                               bool make)
{
	struct vma_buf *first;

	if (!make)
		return bufpool_share_pop_batch(pool, count);

	for (int tries = 0; tries < 3; tries++) { /* what one thread makes, others may take */
		first = bufpool_share_pop_batch(pool, count);
		if (first != NULL)
			return first;
		if (!bufpool_grow(pool) && !bufpool_reclaim_from_thread_caches(pool, own))
			break;
	}
	return bufpool_share_pop_batch(pool, count);
}

/*
 * The counters have many writers; they are therefore atomic adds, done where batches are exchanged and nowhere else.
 * So is the population, which to_nic and from_nic change in the thread's own cache.
 */
static void cache_publish_counters(struct vma_bufpool *pool, struct cache *cache)
{
	cache->limit = atomic_load_explicit(&pool->batch_now, memory_order_relaxed);
	if (cache->population != cache->published) {
		bufpool_counter_add(&pool->stats->buffers, (uint64_t)(cache->population - cache->published));
		cache->published = cache->population;
	}
}

static __attribute__((noinline)) bool cache_refill(struct vma_bufpool *pool, struct cache *cache, bool make)
{
	uint32_t count = atomic_load_explicit(&cache->full_count, memory_order_relaxed);

	if (count > 0) {
		cache->current = cache->full;
		atomic_store_explicit(&cache->full_count, 0, memory_order_relaxed);
	} else {
		cache->current = share_take_or_grow_pool(pool, cache, &count, make);
		cache_publish_counters(pool, cache);
		if (cache->current == NULL)
			return false;
	}
	atomic_store_explicit(&cache->current_count, count, memory_order_relaxed);
	return true;
}

static __attribute__((noinline)) void cache_give_full_batch_to_pool(struct vma_bufpool *pool, struct cache *cache)
{
	uint32_t full = atomic_load_explicit(&cache->full_count, memory_order_relaxed);

	if (full > 0) {
		bufpool_share_push_batch(pool, cache->full, full);
		cache_publish_counters(pool, cache);
	}
	cache->full = cache->current;
	atomic_store_explicit(&cache->full_count, atomic_load_explicit(&cache->current_count, memory_order_relaxed),
	                      memory_order_relaxed);
	cache->current = NULL;
	atomic_store_explicit(&cache->current_count, 0, memory_order_relaxed);
}

/* True: the cache is full and wants to be rotated. */
static inline bool cache_push(struct cache *cache, struct vma_buf *buf)
{
	uint32_t count = atomic_load_explicit(&cache->current_count, memory_order_relaxed) + 1;

	buf->user = cache->current;
	cache->current = buf;
	atomic_store_explicit(&cache->current_count, count, memory_order_relaxed);
	return unlikely(count >= cache->limit);
}

/*
 * Without a cache: mode 0, more threads than caches, a gate that is shut for the moment, a signal handler inside its
 * own thread's get. Only a live pool may be entered, and the visit itself counts as outstanding.
 */
static __attribute__((noinline)) unsigned get_bufs_without_cache(struct vma_bufpool *pool, struct vma_buf **bufs,
                                                                 unsigned n, bool make)
{
	struct vma_buf *first;
	unsigned got = 0;
	uint32_t count;

	if (atomic_load_explicit(&pool->state, memory_order_seq_cst) != POOL_LIVE ||
	    !bufpool_outstanding_add_if_live(pool, 1, POOL_OUTSTANDING_LIVE / 2))
		return 0;
	while (got < n && (first = share_take_or_grow_pool(pool, NULL, &count, make)) != NULL) {
		unsigned taken = init_taken_bufs_of_chain(pool, &first, count, bufs + got, n - got);

		if (taken < count)
			bufpool_share_push_batch(pool, first, count - taken);
		got += taken;
	}
	if (got < n && make)
		bufpool_counter_add(&pool->stats->exhausted, 1);
	bufpool_share_drain_if_retired(pool);
	bufpool_add_outstanding_refs(pool, -1);
	return got;
}

/* The chain's buffers are the caller's part of what is outstanding until they are counted. */
static __attribute__((noinline)) void put_chain_without_cache(struct vma_bufpool *pool, struct vma_buf *first,
                                                              uint32_t count)
{
	bufpool_add_outstanding_refs(pool, 1);
	bufpool_share_push_batch(pool, first, count);
	bufpool_share_drain_if_retired(pool);
	bufpool_add_outstanding_refs(pool, -1);
}

/* The cache does not hold all that is wanted. Inside `cache`, and leaves it. */
static __attribute__((noinline)) unsigned get_bufs_refilling_cache(struct vma_bufpool *pool, struct cache *cache,
                                                                   struct vma_buf **bufs, unsigned n, bool make)
{
	unsigned got = 0;

	for (;;) {
		uint32_t count = atomic_load_explicit(&cache->current_count, memory_order_relaxed);
		unsigned taken = init_taken_bufs_of_chain(pool, &cache->current, count, bufs + got, n - got);

		atomic_store_explicit(&cache->current_count, count - taken, memory_order_relaxed);
		got += taken;
		if (got == n)
			break;
		if (!cache_refill(pool, cache, make)) {
			if (make)
				bufpool_counter_add(&pool->stats->exhausted, 1);
			break;
		}
	}
	bufpool_cache_release(pool, cache);
	return got;
}

/* `cache` as for bufpool_cache_acquire_slow. */
static __attribute__((noinline)) unsigned get_bufs_slow_path(struct vma_bufpool *pool, struct cache *cache,
                                                             struct vma_buf **bufs, unsigned n, bool make)
{
	cache = pool->mode != 0 ? bufpool_cache_acquire_slow(pool, cache) : NULL;
	return cache != NULL ? get_bufs_refilling_cache(pool, cache, bufs, n, make)
	                     : get_bufs_without_cache(pool, bufs, n, make);
}

/* The thread's cache, unless the pool has none. */
static inline struct cache *bufpool_cache_of_this_thread(struct vma_bufpool *pool)
{
	return likely(pool->mode != 0) ? bufpool_this_threads_cache(pool) : NULL;
}

static inline __attribute__((always_inline)) unsigned pool_get_bufs(struct vma_bufpool *pool, struct vma_buf **bufs,
                                                                    unsigned n, bool make)
{
	struct cache *cache = bufpool_cache_of_this_thread(pool);
	uint32_t count;

	if (unlikely(cache == NULL) || !bufpool_cache_try_acquire(cache))
		return get_bufs_slow_path(pool, cache, bufs, n, make);
	count = atomic_load_explicit(&cache->current_count, memory_order_relaxed);
	if (unlikely(n > count))
		return get_bufs_refilling_cache(pool, cache, bufs, n, make);
	init_taken_bufs_of_chain(pool, &cache->current, n, bufs, n);
	atomic_store_explicit(&cache->current_count, count - n, memory_order_relaxed);
	bufpool_cache_release(pool, cache);
	return n;
}

unsigned vma_bufpool_get(struct vma_bufpool *pool, struct vma_buf **bufs, unsigned n)
{
	return pool_get_bufs(pool, bufs, n, true);
}

unsigned vma_bufpool_get_without_growth(struct vma_bufpool *pool, struct vma_buf **bufs, unsigned n)
{
	return pool_get_bufs(pool, bufs, n, false);
}

/*
 * True for the last holder, who alone has the buffer then. A sole holder need not count down with a locked operation:
 * only a holder may add a reference (vma_buf_ref), and the acquire pairs with the releases of those who put theirs
 * before. Retirement never reads refs, it counts buffers that arrive, so it does not care how they became free.
 */
static inline bool drop_reference(struct vma_buf *buf)
{
	if (likely(atomic_load_explicit(&buf->refs, memory_order_acquire) == 1)) {
		atomic_store_explicit(&buf->refs, 0, memory_order_relaxed);
		return true;
	}
	return atomic_fetch_sub_explicit(&buf->refs, 1, memory_order_acq_rel) == 1;
}

static COLD void log_buf_of_no_pool(const struct vma_bufarena *arena, const struct vma_buf *buf)
{
	vma_log_once(VMA_LOG_ERROR, "bufpool: buffer %u put to pool %u, which does not exist",
	             vma_buf_index(arena, buf), buf->pool);
}

static inline struct vma_bufpool *buf_home_pool(struct vma_bufarena *arena, const struct vma_buf *buf)
{
	struct vma_bufpool *pool;

	pool = buf->pool < VMA_BUFPOOL_MAX ? atomic_load_explicit(&arena->pools[buf->pool], memory_order_acquire)
	                                   : NULL;
	if (unlikely(pool == NULL))
		log_buf_of_no_pool(arena, buf);
	return pool;
}

static __attribute__((noinline)) void cache_give_full_batch_and_leave(struct vma_bufpool *pool, struct cache *cache)
{
	cache_give_full_batch_to_pool(pool, cache);
	bufpool_cache_release(pool, cache);
}

static inline void cache_push_and_leave(struct vma_bufpool *pool, struct cache *cache, struct vma_buf *buf)
{
	if (cache_push(cache, buf))
		cache_give_full_batch_and_leave(pool, cache);
	else
		bufpool_cache_release(pool, cache);
}

/* `cache` as for bufpool_cache_acquire_slow. */
static __attribute__((noinline)) void buf_put_when_cache_is_unavailable(struct vma_bufpool *pool, struct cache *cache,
                                                                        struct vma_buf *buf)
{
	cache = pool->mode != 0 ? bufpool_cache_acquire_slow(pool, cache) : NULL;
	if (cache != NULL) {
		cache_push_and_leave(pool, cache, buf);
		return;
	}
	buf->user = NULL;
	put_chain_without_cache(pool, buf, 1);
}

void vma_buf_put(struct vma_bufarena *arena, struct vma_buf *buf)
{
	struct vma_bufpool *pool;
	struct cache *cache;

	bufpool_debug_check_before_put(arena, buf);
	if (!drop_reference(buf))
		return;
	pool = buf_home_pool(arena, buf);
	if (unlikely(pool == NULL))
		return;
	bufpool_debug_mark_free_and_poison(pool, buf);
	cache = bufpool_cache_of_this_thread(pool);
	if (unlikely(cache == NULL) || !bufpool_cache_try_acquire(cache))
		buf_put_when_cache_is_unavailable(pool, cache, buf);
	else
		cache_push_and_leave(pool, cache, buf);
}

/* Puts the buffers from the start of bufs that share a home; returns how many those are. */
static unsigned put_bufs_of_one_pool(struct vma_bufarena *arena, struct vma_buf **bufs, unsigned n)
{
	uint16_t id = bufs[0]->pool;
	struct vma_buf *chain = NULL;
	struct vma_bufpool *pool;
	struct cache *cache;
	uint32_t chained = 0;
	unsigned i;

	bufpool_debug_check_before_put(arena, bufs[0]);
	pool = buf_home_pool(arena, bufs[0]);
	if (unlikely(pool == NULL))
		return 1;
	cache = likely(pool->mode != 0) ? bufpool_cache_acquire(pool) : NULL;
	for (i = 0; i < n && bufs[i]->pool == id; i++) {
		bufpool_debug_check_before_put(arena, bufs[i]);
		if (!drop_reference(bufs[i]))
			continue;
		bufpool_debug_mark_free_and_poison(pool, bufs[i]);
		if (likely(cache != NULL)) {
			if (cache_push(cache, bufs[i]))
				cache_give_full_batch_to_pool(pool, cache);
		} else {
			bufs[i]->user = chain;
			chain = bufs[i];
			chained++;
		}
	}
	if (cache != NULL)
		bufpool_cache_release(pool, cache);
	else if (chained > 0)
		put_chain_without_cache(pool, chain, chained);
	return i;
}

void vma_buf_put_burst(struct vma_bufarena *arena, struct vma_buf **bufs, unsigned n)
{
	unsigned done = 0;

	while (done < n)
		done += put_bufs_of_one_pool(arena, bufs + done, n - done);
}

void vma_buf_put_chain(struct vma_bufarena *arena, struct vma_buf *first)
{
	while (first != NULL) {
		struct vma_buf *next = first->next; /* the buffer may be another's right after the put */

		vma_buf_put(arena, first);
		first = next;
	}
}

/* Population changes by n: in the thread's own cache, where it costs an addition, or at once in `outstanding`. */
static inline bool pool_change_buf_count(struct vma_bufpool *pool, int64_t n)
{
	struct cache *cache = bufpool_cache_acquire(pool);

	if (likely(cache != NULL)) {
		cache->population += n;
		bufpool_cache_release(pool, cache);
		return true;
	}
	if (n > 0 && !bufpool_outstanding_add_if_live(pool, n, 1))
		return false;
	bufpool_counter_add(&pool->stats->buffers, (uint64_t)n);
	if (n < 0)
		bufpool_add_outstanding_refs(pool, n);
	return true;
}

/* The buffers are held by the caller, so they are outstanding until the last line. */
void vma_bufpool_uncount_bufs_given_to_nic(struct vma_bufpool *pool, struct vma_buf **bufs, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		bufpool_debug_mark_given_to_nic(pool, bufs[i]);
		atomic_store_explicit(&bufs[i]->refs, 0, memory_order_relaxed);
	}
	pool_change_buf_count(pool, -(int64_t)n);
}

void vma_bufpool_init_bufs_taken_from_nic(struct vma_bufpool *pool, struct vma_buf **bufs, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct vma_buf *buf = bufs[i];

		bufpool_debug_mark_taken_from_nic(pool, buf);
		buf->next = NULL;
		atomic_store_explicit(&buf->refs, 1, memory_order_relaxed);
		buf->pool = pool->id;
		buf->flags = 0;
		buf->flow_tag = 0;
		buf->timestamp_ns = 0;
	}
	if (!pool_change_buf_count(pool, n))
		vma_log_once(VMA_LOG_ERROR, "bufpool %s: %u buffers adopted after its end", pool->name, n);
}
