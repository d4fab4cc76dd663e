/* pool - creation of pools, and the frames that they are given. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bufpool_priv.h"
#include "debug.h"

#define BATCH_DEFAULT 32
#define BATCH_MAX 64
#define CHUNK_BYTES ((size_t)1 << 20)
#define RING_MIN 256
#define RING_MAX (1u << 16)
#define CREATING -1 /* pool_state of a slot that is being prepared */

static uint32_t round_up_power_of_two(uint32_t n)
{
	return n <= 1 ? 1 : 1u << (32 - __builtin_clz(n - 1));
}

/*
 * A ring that is too small costs nothing but speed, since the stack takes what it cannot. Twice the number of whole
 * batches leaves room for partial ones; a fixed pool's population is not known beforehand: room for 32 K buffers.
 */
static uint32_t ring_size_of(const struct vma_bufpool *pool)
{
	uint32_t bufs = pool->max_bufs == 0 ? 32768 : pool->max_bufs;
	uint32_t batches = pool->mode == 0 ? bufs : bufs / pool->batch * 2;

	if (batches < RING_MIN)
		return RING_MIN;
	return batches >= RING_MAX ? RING_MAX : round_up_power_of_two(batches);
}

/*
 * Growth steps: 1 MB of frames, or one huge page where those are wanted and the pool may become that large; whole
 * units, so that no part of a claimed range lies idle.
 */
static uint32_t pool_chunk_frames(const struct vma_bufarena *arena, uint32_t max_bufs)
{
	uint32_t huge = (uint32_t)(HUGE_PAGE >> arena->frame_shift);
	uint32_t chunk = (uint32_t)(CHUNK_BYTES >> arena->frame_shift);

	if (arena->priv->alloc_type != VMA_MEM_ANON && max_bufs >= huge)
		chunk = huge;
	return chunk < UNIT_FRAMES ? UNIT_FRAMES : chunk;
}

void bufpool_free_pool_slot(struct vma_bufpool *slot)
{
	if (slot->caches != NULL && slot->caches != MAP_FAILED)
		munmap(slot->caches, THREADS_MAX * sizeof(struct cache));
	free(slot->ring_slots);
	free(slot->chunks);
	if (atomic_load_explicit(&slot->state, memory_order_acquire) > POOL_UNUSED)
		vma_stats_block_free(slot->segment, slot->stats);
	free(slot);
}

static struct vma_bufpool *pool_slot_alloc(struct vma_bufarena *arena, uint16_t id)
{
	struct vma_bufpool *slot = aligned_alloc(CACHE_LINE, sizeof(*slot));

	if (slot == NULL)
		return NULL;
	memset(slot, 0, sizeof(*slot));
	slot->arena = arena;
	slot->id = id;
	atomic_init(&slot->state, CREATING);
	slot->caches = mmap(NULL, THREADS_MAX * sizeof(struct cache), PROT_READ | PROT_WRITE,
	                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (slot->caches == MAP_FAILED) {
		bufpool_free_pool_slot(slot);
		return NULL;
	}
	return slot;
}

/* Of a slot that no pool has. The name of a kept one may go meanwhile (vma_bufpool_release_places): then it is free. */
static bool pool_slot_try_claim(struct vma_bufpool *slot, const void *named_by)
{
	const void *kept_for;
	int unused = POOL_UNUSED;

	if (!atomic_compare_exchange_strong(&slot->state, &unused, CREATING))
		return false;
	kept_for = atomic_load_explicit(&slot->named_by, memory_order_relaxed);
	if (kept_for == NULL || kept_for == named_by)
		return true;
	atomic_store_explicit(&slot->state, POOL_UNUSED, memory_order_release);
	return false;
}

/* One that is kept for `named_by`. First of all, so that no more are kept than have had pools at the same time. */
static bool arena_claim_kept_pool_slot(struct vma_bufarena *arena, const void *named_by, struct vma_bufpool **out)
{
	for (unsigned id = 0; named_by != NULL && id < VMA_BUFPOOL_MAX; id++) {
		struct vma_bufpool *slot = atomic_load_explicit(&arena->priv->slots[id], memory_order_acquire);

		if (slot == NULL || atomic_load_explicit(&slot->named_by, memory_order_relaxed) != named_by ||
		    !pool_slot_try_claim(slot, named_by))
			continue;
		*out = slot;
		return true;
	}
	return false;
}

/*
 * A pool's memory belongs to its id, is kept until the arena ends, and serves the next pool of that id: a thread that
 * has just brought a pool to its end, or one that still leaves its cache of it, looks at memory that is a pool's.
 */
static int arena_claim_pool_slot(struct vma_bufarena *arena, const void *named_by, struct vma_bufpool **out)
{
	if (arena_claim_kept_pool_slot(arena, named_by, out))
		return 0;
	for (unsigned id = 0; id < VMA_BUFPOOL_MAX; id++) {
		struct vma_bufpool *slot = atomic_load_explicit(&arena->priv->slots[id], memory_order_acquire);
		struct vma_bufpool *none = NULL;

		if (slot == NULL) {
			slot = pool_slot_alloc(arena, (uint16_t)id);
			if (slot == NULL)
				return -ENOMEM;
			if (atomic_compare_exchange_strong(&arena->priv->slots[id], &none, slot)) {
				*out = slot;
				return 0;
			}
			bufpool_free_pool_slot(slot); /* another creator was faster */
		} else if (pool_slot_try_claim(slot, named_by)) {
			*out = slot;
			return 0;
		}
	}
	return -ENOSPC;
}

static int pool_prepare(struct vma_bufpool *pool, const struct vma_bufpool_attr *attr)
{
	uint32_t ring_size;

	pool->max_bufs = attr->max_bufs;
	pool->batch = attr->batch == 0 ? BATCH_DEFAULT : attr->batch;
	pool->mode = (uint8_t)attr->batching_mode;
	pool->chunk = pool_chunk_frames(pool->arena, attr->max_bufs);
	pool->chunks_max = (attr->max_bufs + pool->chunk - 1) / pool->chunk;
	snprintf(pool->name, sizeof(pool->name), "%s", attr->name == NULL ? "unnamed" : attr->name);
	ring_size = ring_size_of(pool);
	if (ring_size != pool->ring_size) {
		free(pool->ring_slots);
		pool->ring_size = 0;
		pool->ring_slots = calloc(ring_size, sizeof(*pool->ring_slots));
		if (pool->ring_slots == NULL)
			return -ENOMEM;
		pool->ring_size = ring_size;
	}
	free(pool->chunks);
	pool->chunks = NULL;
	if (pool->chunks_max > 0) {
		pool->chunks = calloc(pool->chunks_max, sizeof(*pool->chunks));
		if (pool->chunks == NULL)
			return -ENOMEM;
	}
	pool->segment = attr->stats != NULL ? attr->stats : pool->arena->priv->stats;
	pool->stats = vma_stats_block_alloc(pool->segment, VMA_STATS_TYPE_BUFPOOL, pool->name);
	return pool->stats == NULL ? -ENOMEM : 0;
}

int vma_bufpool_create(const struct vma_bufpool_attr *attr, struct vma_bufpool **out)
{
	struct vma_bufpool *pool;
	int rc;

	if (attr->arena == NULL || attr->batch > BATCH_MAX || attr->batching_mode < 0 || attr->batching_mode > 2)
		return -EINVAL;
	rc = arena_claim_pool_slot(attr->arena, attr->named_by, &pool);
	if (rc != 0)
		return rc;
	rc = pool_prepare(pool, attr);
	if (rc != 0) {
		atomic_store_explicit(&pool->state, POOL_UNUSED, memory_order_release);
		return rc;
	}
	ck_ring_init(&pool->ring, pool->ring_size);
	ck_stack_init(&pool->spill);
	pool->drained = NULL;
	atomic_store_explicit(&pool->named_by, attr->named_by, memory_order_relaxed);
	atomic_store_explicit(&pool->batch_now, pool->batch, memory_order_relaxed);
	atomic_store_explicit(&pool->batches_without_shortage, 0, memory_order_relaxed);
	atomic_store_explicit(&pool->grown, 0, memory_order_relaxed);
	atomic_store_explicit(&pool->grow_pause, 0, memory_order_relaxed);
	atomic_store_explicit(&pool->chunk_count, 0, memory_order_relaxed);
	atomic_store_explicit(&pool->outstanding, POOL_OUTSTANDING_LIVE, memory_order_relaxed);
	atomic_store_explicit(&pool->state, POOL_LIVE, memory_order_seq_cst);
	atomic_store_explicit(&attr->arena->pools[pool->id], pool, memory_order_release);
	*out = pool;
	return 0;
}

/* A pool that lives, or has not drained yet, is a pool as before: its place is anybody's afterwards. */
void vma_bufpool_release_places(struct vma_bufarena *arena, const void *named_by)
{
	for (unsigned id = 0; id < VMA_BUFPOOL_MAX; id++) {
		struct vma_bufpool *slot = atomic_load_explicit(&arena->priv->slots[id], memory_order_acquire);
		const void *name = named_by;

		if (slot != NULL)
			atomic_compare_exchange_strong(&slot->named_by, &name, NULL);
	}
}

/* Descriptors of frames that nobody holds, made into batches; the caller has counted them as outstanding. */
void bufpool_share_push_new_range(struct vma_bufpool *pool, uint32_t first, uint32_t count)
{
	uint32_t most = atomic_load_explicit(&pool->batch_now, memory_order_relaxed);

	bufpool_counter_add(&pool->stats->buffers, count);
	bufpool_debug_mark_range_free(pool, first, count);
	while (count > 0) {
		uint32_t n = count < most ? count : most;

		for (uint32_t i = 0; i < n; i++) {
			struct vma_buf *buf = vma_buf_at(pool->arena, first + i);

			atomic_store_explicit(&buf->refs, 0, memory_order_relaxed);
			buf->pool = pool->id;
			buf->user = i + 1 < n ? buf + 1 : NULL;
		}
		bufpool_share_push_batch(pool, vma_buf_at(pool->arena, first), n);
		first += n;
		count -= n;
	}
}

int vma_bufpool_add_frames(struct vma_bufpool *pool, uint32_t first, uint32_t count)
{
	if (pool->max_bufs != 0 || first > pool->arena->capacity || count > pool->arena->capacity - first)
		return -EINVAL;
	if (!bufpool_outstanding_add_if_live(pool, (int64_t)count + 1, POOL_OUTSTANDING_LIVE / 2))
		return -EINVAL; /* retired */
	bufpool_share_push_new_range(pool, first, count);
	bufpool_share_drain_if_retired(pool);
	bufpool_add_outstanding_refs(pool, -1);
	return 0;
}

uint16_t vma_bufpool_id(const struct vma_bufpool *pool)
{
	return pool->id;
}

uint32_t vma_bufpool_frame_size(const struct vma_bufpool *pool)
{
	return 1u << pool->arena->frame_shift;
}

struct vma_bufarena *vma_bufpool_arena(const struct vma_bufpool *pool)
{
	return pool->arena;
}

void vma_bufpool_flush_thread(struct vma_bufarena *arena)
{
	uint32_t thread = bufpool_thread_index;

	for (unsigned id = 0; id < VMA_BUFPOOL_MAX; id++) {
		struct vma_bufpool *pool = atomic_load_explicit(&arena->pools[id], memory_order_acquire);
		if (pool != NULL)
			bufpool_cache_flush(pool, thread);
	}
}
