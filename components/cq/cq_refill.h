/* cq_refill - the debt to the receive queue, and the copies of arrivals if the user holds too many of its frames. */
#ifndef VMA_CQ_REFILL_H
#define VMA_CQ_REFILL_H

#include "cq_priv.h"

void cq_refill_init(struct vma_cq *cq);
void cq_refill_fini(struct vma_cq *cq);

/*
 * Frames that were polled and are neither posted again nor at hand. That includes those that lie free in the pool, so
 * it is an upper bound, and what came back is posted before anything is spilled.
 */
static inline bool cq_over_quota(const struct vma_cq *cq)
{
	return (int64_t)cq->owed - cq->spare_count > cq->quota; /* spares may run ahead of the debt */
}

/*
 * A debt below idle_at is paid with the next ones, or when the queue is armed: a thread that spins on single packets
 * would otherwise write to the fill side, whose cache lines the sender's core reads, at each of them. What a queue pair
 * may owe so is at most an eighth of its queue and of its quota, so neither it nor its neighbours run short by it.
 */
static inline void cq_update_needs_refill(struct vma_cq *cq)
{
	bool needs_refill = cq->owed >= cq->idle_at;

	if (atomic_load_explicit(&cq->needs_refill, memory_order_relaxed) != needs_refill)
		atomic_store_explicit(&cq->needs_refill, needs_refill, memory_order_relaxed);
}

/*
 * Over quota: copies `packet` into ordinary memory and keeps its frames for the queue. Returns what to deliver, or NULL
 * if the packet had to be dropped.
 */
struct vma_buf *cq_copy_packet_to_spill_pool(struct vma_cq *cq, struct vma_buf *packet);

#endif
