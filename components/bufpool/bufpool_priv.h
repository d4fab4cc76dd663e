/*
 * bufpool_priv - what the parts of bufpool share.
 *
 *    thread's cache  <- batch ->  share: ck_ring of batches, ck_stack behind it  <- growth, add, reclaim
 *    (cache.c, pool_hot.c)        (share.c)                                         (grow.c, retire.c, pool.c)
 *
 * A batch is a chain of free buffers, linked by `user`; its length is in `packet_len` of the first. `next` is left for
 * ck_stack, so a batch of any length is pushed at once.
 *
 * Nothing here waits. Five rules make that possible; each is argued where it is carried out:
 *   1. A cache is used by its thread only while `inside` is set, and by a visitor only while its gate is shut
 *      (cache.c).
 *   2. Visitors of a pool (reclaim, registration, retirement) exclude each other by one try-flag, `visiting`. A thread
 *      that finds it taken goes on without; the holder then carries out a retirement (retire.c).
 *   3. The ring has one producer at a time, by try-flag. A thread that finds it taken uses the stack, which takes all
 *      (share.c).
 *   4. `outstanding` counts what keeps a retired pool alive. The thread that brings it to zero ends the pool
 *      (retire.c).
 *   5. The memory of a pool outlives the pool: it belongs to its id and is used again (pool.c).
 *
 * Threads: any, and signal handlers; the rules above say which thread touches what.
 */
#ifndef VMA_BUFPOOL_PRIV_H
#define VMA_BUFPOOL_PRIV_H

#include <vma/ck_tsan.h> /* before ck's */

#include <ck_ring.h>
#include <ck_stack.h>

#include <vma/bufpool.h>

#define CACHE_LINE 64
#define THREADS_MAX 1024 /* threads with caches at a time; the others work on the share directly */
#define ARENAS_MAX 256
#define UNIT_SHIFT 6 /* ranges are counted in units of 64 frames: one page of descriptors */
#define UNIT_FRAMES (1u << UNIT_SHIFT)
#define HUGE_PAGE ((size_t)2 << 20)
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define COLD __attribute__((cold, noinline))

/* ---- thread.c: which thread is this, and the two halves of an asymmetric barrier ---- */

#define THREAD_NONE 0
/* cache index + 1; both are hidden, or each access would go by way of the global offset table */
extern __thread uint32_t bufpool_thread_index __attribute__((tls_model("initial-exec"), visibility("hidden")));
/* no membarrier: the light half must be a full barrier too */
extern bool bufpool_without_membarrier __attribute__((visibility("hidden")));

int bufpool_thread_caches_init_once(void); /* once per process */
uint32_t bufpool_thread_register(void);
void bufpool_heavy_barrier(void);
int bufpool_register_arena(struct vma_bufarena *arena);
void bufpool_unregister_arena(struct vma_bufarena *arena);

/* ---- range.c: a bitmap of units, claimed without a lock ---- */

struct range_map {
	uint32_t units;
	_Atomic uint64_t *words;
	_Atomic uint32_t *lengths; /* of the range that starts at this unit; 0: none does */
};
int bufpool_range_init(struct range_map *map, uint32_t units);
void bufpool_range_fini(struct range_map *map);
/* First unit of a free run of `count` that starts at a multiple of `align`; -ENOMEM. */
int bufpool_range_claim(struct range_map *map, uint32_t count, uint32_t align, uint32_t *first);
void bufpool_range_release(struct range_map *map, uint32_t first);
uint32_t bufpool_range_length(const struct range_map *map, uint32_t first); /* 0: no range starts there */

/* ---- arena.c, memory.c ---- */

struct vma_bufarena_priv {
	struct range_map ranges;
	enum vma_mem_alloc_type alloc_type;
	struct vma_stats *stats; /* for pools that are given none of their own */
	void *frames_map;        /* as mmap gave it: `frames` is its first huge-page boundary */
	size_t frames_map_bytes;
	size_t bufs_bytes;
	struct vma_bufpool *_Atomic slots[VMA_BUFPOOL_MAX]; /* pool memory by id, kept for reuse */
#ifdef VMA_DEBUG
	_Atomic uint32_t *states; /* debug.c: one word per frame */
#endif
};

/* Ordinary memory at addr, which lies in the reservation; 0 or -ENOMEM (the reservation is then as before). */
int bufpool_memory_map(void *addr, size_t bytes, enum vma_mem_alloc_type type);
void bufpool_memory_reserve(void *addr, size_t bytes); /* back to PROT_NONE */

/* ---- cache.c ---- */

enum { GATE_OPEN = 1, GATE_VISITED = 2 }; /* the owner may enter when the gate is exactly OPEN */

/*
 * One thread's cache of one pool. `current` serves get and put; `full` is a whole batch in reserve, so that a thread
 * that alternates around a batch boundary does not exchange each time. The memory is zero from mmap: gate shut.
 */
struct cache {
	_Atomic uint32_t inside;                    /* owner: works on the fields below */
	_Atomic uint32_t gate;                      /* visitors; GATE_* */
	_Atomic uint32_t must_close;                /* retirement: whoever takes this to 0 closes the cache */
	_Atomic uint32_t current_count, full_count; /* read by others as a hint */
	uint32_t limit;                             /* batch_now as of the last exchange */
	struct vma_buf *current, *full;
	int64_t population; /* from the NIC minus to the NIC through this cache */
	int64_t published;  /* part of population that the counters know */
} __attribute__((aligned(CACHE_LINE)));
_Static_assert(sizeof(struct cache) == CACHE_LINE, "one cache, one line: two threads never share");

enum pool_state { POOL_UNUSED, POOL_LIVE, POOL_RETIRING, POOL_RETIRED };

/*
 * outstanding: buffers that exist and are not known to be back, plus 1 for each thread at work on the share without a
 * cache, plus one POOL_OUTSTANDING_CACHE for each cache not yet closed, plus POOL_OUTSTANDING_LIVE until retirement.
 * The steps are so far apart that no sum of buffers reaches the next.
 */
#define POOL_OUTSTANDING_CACHE ((int64_t)1 << 40)
#define POOL_OUTSTANDING_LIVE ((int64_t)1 << 56)

/* One step of growth; written once by who made it, read when the pool has ended. */
struct chunk {
	uint32_t first, count;
};

struct vma_bufpool {
	/* constant while the pool lives */
	struct vma_bufarena *arena;
	struct cache *caches; /* THREADS_MAX, touched from the low end */
	struct vma_stats_bufpool *stats;
	struct vma_stats *segment; /* where stats is from; NULL: private */
	ck_ring_buffer_t *ring_slots;
	uint32_t batch;
	uint32_t max_bufs;
	uint32_t chunk; /* frames per growth step */
	uint32_t chunks_max;
	uint32_t ring_size;
	uint16_t id;
	uint8_t mode;
	char name[32];
	void (*drained)(void *arg);
	void *drained_arg;
	const void *_Atomic named_by; /* outlives the pool: its place is kept for that */

	/* written at batch exchanges */
	ck_ring_t ring __attribute__((aligned(CACHE_LINE)));
	ck_stack_t spill __attribute__((aligned(CACHE_LINE)));
	_Atomic uint32_t producing;
	_Atomic uint32_t batch_now;                /* shrinks when reclaim was needed, grows back with calm */
	_Atomic uint32_t batches_without_shortage; /* batches taken since the last reclaim */

	/* rare */
	_Atomic int64_t outstanding __attribute__((aligned(CACHE_LINE)));
	_Atomic int state;
	_Atomic uint32_t visiting;
	_Atomic uint32_t cache_high; /* caches below this index may have been used */
	_Atomic uint32_t grown;      /* frames claimed for growth, mapped or about to be */
	_Atomic uint32_t grow_pause; /* dry requests to let pass before growth is tried again */
	_Atomic uint32_t chunk_count;
	struct chunk *chunks;
};

void bufpool_cache_close_if_pool_retired(struct vma_bufpool *pool, struct cache *cache);
void bufpool_cache_flush(struct vma_bufpool *pool, uint32_t thread);
uint32_t bufpool_cache_discard(struct cache *cache);
bool bufpool_reclaim_from_thread_caches(struct vma_bufpool *pool, const struct cache *own);

/* `inside` changes, then the gate is read: the light half of the barrier stands between, see cache.c. */
static inline uint32_t cache_set_inside_read_gate(struct cache *cache, uint32_t inside)
{
	if (unlikely(bufpool_without_membarrier)) {
		atomic_store_explicit(&cache->inside, inside, memory_order_seq_cst);
	} else {
		atomic_store_explicit(&cache->inside, inside, memory_order_release);
		atomic_signal_fence(memory_order_seq_cst);
	}
	return atomic_load_explicit(&cache->gate, memory_order_seq_cst);
}

/* The calling thread's cache, not entered yet; NULL: no use of this pool so far, or no cache for this thread at all, or
 * a signal handler has interrupted this thread's own get or put. */
static inline struct cache *bufpool_this_threads_cache(struct vma_bufpool *pool)
{
	uint32_t thread = bufpool_thread_index;
	struct cache *cache;

	if (unlikely(thread - 1 >= THREADS_MAX))
		return NULL;
	cache = &pool->caches[thread - 1];
	return unlikely(atomic_load_explicit(&cache->inside, memory_order_relaxed)) ? NULL : cache;
}

static inline bool bufpool_cache_try_acquire(struct cache *cache)
{
	return likely(cache_set_inside_read_gate(cache, 1) == GATE_OPEN);
}

/*
 * The long way round, after bufpool_this_threads_cache gave NULL (`cache` is that) or bufpool_cache_try_acquire failed
 * on `cache`: the cache after all, now inside, or NULL: work on the share directly.
 */
struct cache *bufpool_cache_acquire_slow(struct vma_bufpool *pool, struct cache *cache);

/* All three in one, for where the way is not hot. */
static inline struct cache *bufpool_cache_acquire(struct vma_bufpool *pool)
{
	struct cache *cache = bufpool_this_threads_cache(pool);

	return likely(cache != NULL && bufpool_cache_try_acquire(cache)) ? cache
	                                                                 : bufpool_cache_acquire_slow(pool, cache);
}

static inline void bufpool_cache_release(struct vma_bufpool *pool, struct cache *cache)
{
	if (unlikely(cache_set_inside_read_gate(cache, 0) != GATE_OPEN))
		bufpool_cache_close_if_pool_retired(pool, cache);
}

/* ---- share.c ---- */

void bufpool_share_push_batch(struct vma_bufpool *pool, struct vma_buf *first, uint32_t count);
/* Splits a chain into batches of at most batch_now. */
void bufpool_share_push_in_batches(struct vma_bufpool *pool, struct vma_buf *first, uint32_t count);
struct vma_buf *bufpool_share_pop_batch(struct vma_bufpool *pool, uint32_t *count);
static inline void bufpool_counter_add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* ---- pool.c, grow.c, retire.c ---- */

void bufpool_free_pool_slot(struct vma_bufpool *slot);
void bufpool_share_push_new_range(struct vma_bufpool *pool, uint32_t first, uint32_t count);
bool bufpool_grow(struct vma_bufpool *pool);
void bufpool_release_grown_memory(struct vma_bufpool *pool);

bool pool_try_become_visitor(struct vma_bufpool *pool);
void pool_end_visit_and_retire_if_due(struct vma_bufpool *pool);
void bufpool_cache_close_retired(struct vma_bufpool *pool, struct cache *cache);
/* Adds n if outstanding is at least `least`, that is, if the pool cannot be at its end. */
bool bufpool_outstanding_add_if_live(struct vma_bufpool *pool, int64_t n, int64_t least);
void bufpool_add_outstanding_refs(struct vma_bufpool *pool, int64_t n); /* after this, the pool may be at its end */
/* A visitor without a cache has pushed something: if the pool was retired meanwhile, it counts what it finds. */
void bufpool_share_drain_if_retired(struct vma_bufpool *pool);

#endif
