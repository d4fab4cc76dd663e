/* cq_refill - what the receive queue is owed, and what happens to arrivals when the user holds too much of it. */
#ifndef VMA_CQ_REFILL_H
#define VMA_CQ_REFILL_H

#include "cq_priv.h"

void cq_refill_init(struct vma_cq *cq);
void cq_refill_fini(struct vma_cq *cq);

/*
 * Frames that were polled and are neither posted again nor at hand. That includes those that lie free in the pool, so
 * it is an upper bound; cq_spill looks closer.
 */
static inline bool cq_over_quota(const struct vma_cq *cq)
{
	return (int64_t)cq->owed - cq->spare_count > cq->quota; /* spares may run ahead of the debt */
}

/*
 * Over quota: posts what came back meanwhile; if that does not help, copies `packet` into ordinary memory and keeps
 * its frames for the queue. Returns what to deliver, or NULL if the packet had to be dropped.
 */
struct vma_buf *cq_spill(struct vma_cq *cq, struct vma_buf *packet);

#endif
