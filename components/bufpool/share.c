/* share - the batches that no thread holds: a ck_ring, and a ck_stack behind it that is never full. */
#include "bufpool_priv.h"

/*
 * To ThreadSanitizer each hand-off is named by the first buffer of the batch, and inside ck it does not look at plain
 * accesses (a ring slot is copied before it is claimed).
 */
#ifdef VMA_TSAN
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
#define ck_begin() (AnnotateIgnoreReadsBegin(__FILE__, __LINE__), AnnotateIgnoreWritesBegin(__FILE__, __LINE__))
#define ck_end() (AnnotateIgnoreWritesEnd(__FILE__, __LINE__), AnnotateIgnoreReadsEnd(__FILE__, __LINE__))
#else
#define ck_begin() ((void)0)
#define ck_end() ((void)0)
#endif

static bool bufpool_share_ring_push(struct vma_bufpool *pool, struct vma_buf *first)
{
	bool pushed;

	ck_begin();
	pushed = ck_ring_enqueue_spmc(&pool->ring, pool->ring_slots, first);
	ck_end();
	return pushed;
}

/*
 * A consumer copies the slot and then claims it by compare-and-swap on the consumer index; a copy that was overwritten
 * meanwhile is discarded, because the index has moved then. (ck 0.7.1 uses a weaker barrier here than arm64 needs.)
 */
static bool bufpool_share_ring_pop(struct vma_bufpool *pool, struct vma_buf **first)
{
	bool popped;

	ck_begin();
	popped = ck_ring_dequeue_spmc(&pool->ring, pool->ring_slots, first);
	ck_end();
	return popped;
}

static void bufpool_stack_push_batch(struct vma_bufpool *pool, struct vma_buf *first)
{
	ck_begin();
	ck_stack_push_upmc(&pool->spill, (ck_stack_entry_t *)&first->next);
	ck_end();
}

/* All at once, by one exchange: no pointer of the stack is read that another may pop, hence no ABA. */
static struct vma_buf *bufpool_stack_take_all(struct vma_bufpool *pool)
{
	return (struct vma_buf *)ck_stack_batch_pop_upmc(&pool->spill);
}
_Static_assert(offsetof(struct vma_buf, next) == 0, "a stack entry is a buffer");

/*
 * The ring's producer side is taken by try-flag: ck's own multi-producer enqueue makes a producer wait for those that
 * reserved a slot before it, and one of them may be descheduled. Who does not get the flag, or finds the ring full,
 * pushes on the stack, which is a compare-and-swap and always succeeds. The flag's acquire/release orders the
 * producers' plain accesses to the ring.
 */
void bufpool_share_push_batch(struct vma_bufpool *pool, struct vma_buf *first, uint32_t count)
{
	bool pushed = false;

	first->packet_len = count;
	__tsan_release(first);
	if (atomic_exchange_explicit(&pool->producing, 1, memory_order_acquire) == 0) {
		pushed = bufpool_share_ring_push(pool, first);
		atomic_store_explicit(&pool->producing, 0, memory_order_release);
	}
	if (!pushed)
		bufpool_stack_push_batch(pool, first);
	bufpool_counter_add(&pool->stats->batches_in, 1);
}

void bufpool_share_push_in_batches(struct vma_bufpool *pool, struct vma_buf *first, uint32_t count)
{
	uint32_t most = atomic_load_explicit(&pool->batch_now, memory_order_relaxed);

	while (count > most) {
		struct vma_buf *last = first, *rest;

		for (uint32_t i = 1; i < most; i++)
			last = last->user;
		rest = last->user;
		last->user = NULL;
		bufpool_share_push_batch(pool, first, most);
		first = rest;
		count -= most;
	}
	if (count > 0)
		bufpool_share_push_batch(pool, first, count);
}

/* After enough batches without shortage, batches grow back to their configured size. */
static void pool_grow_batch_size(struct vma_bufpool *pool)
{
	uint32_t now = atomic_load_explicit(&pool->batch_now, memory_order_relaxed);
	uint32_t batches_without_shortage;

	if (likely(now >= pool->batch))
		return;
	batches_without_shortage = atomic_load_explicit(&pool->batches_without_shortage, memory_order_relaxed) + 1;
	if (batches_without_shortage >= 1024) {
		batches_without_shortage = 0;
		atomic_store_explicit(&pool->batch_now, now * 2 < pool->batch ? now * 2 : pool->batch,
		                      memory_order_relaxed);
	}
	atomic_store_explicit(&pool->batches_without_shortage, batches_without_shortage, memory_order_relaxed);
}

struct vma_buf *bufpool_share_pop_batch(struct vma_bufpool *pool, uint32_t *count)
{
	struct vma_buf *first, *rest;

	if (!bufpool_share_ring_pop(pool, &first)) {
		first = bufpool_stack_take_all(pool);
		if (first == NULL)
			return NULL;
		__tsan_acquire(first);
		for (struct vma_buf *batch = first->next; batch != NULL; batch = rest) {
			__tsan_acquire(batch);
			rest = batch->next;
			bufpool_share_push_batch(pool, batch, batch->packet_len);
		}
	} else {
		__tsan_acquire(first);
	}
	*count = first->packet_len;
	bufpool_counter_add(&pool->stats->batches_out, 1);
	pool_grow_batch_size(pool);
	return first;
}
