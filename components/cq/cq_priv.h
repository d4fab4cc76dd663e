/*
 * cq_priv - the body of struct vma_cq.
 *
 * Threads: the holder of the receive drive flag reads and writes the receive fields. The holder of the transmit flag
 * only reaps, which uses constant fields. Threads that sleep on the queue hold no flag; only `wakeups` is theirs. Any
 * thread may read `needs_refill` and `hold`.
 */
#ifndef VMA_CQ_PRIV_H
#define VMA_CQ_PRIV_H

#include <stdatomic.h>

#include <vma/conf.h>
#include <vma/cq.h>

#define BATCH_MAX VMA_CONF_CQ_POLL_BATCH_MOST /* buffers of one poll; a poll's arrays live on the stack */
#define CHAIN_MAX 64                          /* a packet of 64 KB in frames of 1 KB and more */
#define SPARE_MAX 1024
#define IDLE_DEBT 64
#define RETRY_POLLS 64 /* asking a dry pool at every empty poll would cost more than the poll */

struct vma_cq {
	/* receive: read and written at every poll */
	struct vma_nic_qp *qp;
	uint32_t owed;        /* buffers taken from the NIC's receive queue and not yet replaced */
	uint32_t spare_count; /* of those, how many are ready in spare[] */
	uint32_t batch_max;
	uint32_t refill_at;  /* a poll refills when this many are owed */
	uint32_t idle_at;    /* an idle poll does when this many are: see cq_update_needs_refill */
	uint32_t idle_polls; /* empty polls to let pass before a refill that fell short is tried again */
	uint32_t quota;      /* received frames that may be away before arrivals are copied out */
	uint32_t prefetch_bytes;
	struct vma_buf *chain; /* packet whose last buffers have not come yet */
	struct vma_buf *chain_tail;
	uint32_t chain_len, chain_bufs;
	bool chain_broken;   /* drop up to the packet's end */
	bool must_keep_full; /* short of memory: drop the packet rather than lend the queue's frame */
	bool moderates;
	_Atomic bool needs_refill; /* owed >= idle_at, for those who hold no flag */
	struct vma_bufarena *arena;
	struct vma_bufpool *spill_pool;
	struct vma_stats_cq *count;
	uint32_t spare_want;

	/* adaptive moderation: looked at before a sleep */
	struct vma_cq_aim_params aim;
	struct vma_cq_moderation moderation;
	uint64_t aim_since_ns, aim_packets, aim_wakeups;
	uint64_t aim_per_sec; /* packets, over the last interval */
	bool sleepers_hold;   /* the device does not moderate */
	struct {
		_Atomic uint64_t period_ns, spacing_ns;
		_Atomic uint32_t count;
	} hold; /* struct vma_cq_hold_back */

	/* threads that sleep on the queue hold no flag; everything above is not theirs */
	_Atomic uint64_t wakeups __attribute__((aligned(64)));

	struct vma_stats *stats;
	struct vma_buf *spare[SPARE_MAX];
};

/* cq_aim.c: chooses and sets the next moderation if the interval is over. */
void cq_adapt_moderation(struct vma_cq *cq);
void cq_adapt_moderation_init(struct vma_cq *cq, bool enable);
void cq_reapply_moderation_after_rebind(struct vma_cq *cq);

#endif
