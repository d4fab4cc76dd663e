/*
 * cq - the completion side of a queue pair: poll in batches, keep the receive queue filled, arm and wait, moderate.
 *
 * Frames of a registered window are few. If the user holds more of them than the queue pair's quota, poll copies
 * arrivals into ordinary memory (spill_pool). It gives their frames back at once. The counter copied_out says how
 * often.
 *
 * Moderation. If the device does not moderate, a sleeper may hold back by itself, as vma_cq_get_sleeper_hold_times
 * says. Then it sleeps on a timer and not on the queue's fd. `rest` is for that sleep what `arm` is for the other.
 *
 * Threads: the thread that holds the ring's receive drive flag calls poll, refill, arm, rest, modify. The thread that
 *          holds the transmit flag calls reap. Any number of threads that hold nothing may call wait, hold,
 *          count_wakeup. `aim` is a pure function.
 * Progress: only wait ever waits.
 * Memory: the caller's struct; packets leave as chains of vma_buf, one reference each.
 * Example: test/test_poll.c, test/test_aim.c.
 */
#ifndef VMA_CQ_H
#define VMA_CQ_H

#include <stdbool.h>
#include <stdint.h>

#include <vma/bufpool.h>
#include <vma/nic.h>
#include <vma/stats.h>

struct vma_cq_moderation {
	uint32_t count;
	uint32_t period_usec;
};

/* VMA_CQ_MODERATION_*, VMA_CQ_AIM_*. interval_msec 0: fixed moderation. */
struct vma_cq_aim_params {
	struct vma_cq_moderation base;
	uint32_t max_count, max_period_usec;
	uint32_t interval_msec;
	uint32_t interrupts_per_sec; /* target */
};

/*
 * One adaptation step: `packets` and `wakeups` were counted over `elapsed_ns` under `now`; returns what to use next.
 * Converges within ten steps of constant traffic to a rate at or below the target; light traffic goes back to base.
 */
struct vma_cq_moderation vma_cq_next_adaptive_moderation(const struct vma_cq_aim_params *params,
                                                         struct vma_cq_moderation now, uint64_t packets,
                                                         uint64_t wakeups, uint64_t elapsed_ns);

struct vma_cq_attr {
	struct vma_nic_qp *qp;
	struct vma_bufpool *spill_pool; /* ordinary memory; NULL: never copy out */
	uint32_t poll_batch_max;        /* VMA_CQ_POLL_BATCH_MAX; 0: 16 */
	bool keep_qp_full;           /* VMA_CQ_KEEP_QP_FULL: refill on every poll, not only when idle or at the level */
	uint32_t compensation_level; /* VMA_QP_COMPENSATION_LEVEL: spare buffers kept ready; 0: 256 */
	uint32_t rx_wre_batching;    /* VMA_RX_WRE_BATCHING: buffers owed before they are posted; 0: 64 */
	uint32_t prefetch_bytes;     /* VMA_RX_PREFETCH_BYTES */
	bool moderation_enable;
	struct vma_cq_aim_params aim;
	struct vma_stats *stats;
	const char *name;
};

struct vma_cq; /* body in cq.c: cq_create allocates it */

int vma_cq_create(const struct vma_cq_attr *attr, struct vma_cq **out); /* posts the first receive buffers */
void vma_cq_destroy(struct vma_cq *cq);
/*
 * Around vma_nic_qp_rebind, which ends the queue pair's pools: vma_cq_drop_pending_and_refill_bufs gives back what poll and refill keep of them, and
 * rebind takes up the new ones. A rebind that fails needs nothing in between: the queue goes on.
 */
void vma_cq_drop_pending_and_refill_bufs(struct vma_cq *cq);
void vma_cq_take_up_rebound_qp(struct vma_cq *cq);

/*
 * Up to max packets (max <= poll_batch_max is useful), each a chain with packet_len set; refills as configured, and
 * when it finds nothing and more than a few buffers are owed.
 */
unsigned vma_cq_poll(struct vma_cq *cq, struct vma_buf **packets, unsigned max);
/* For anybody, without a flag: a poll is due to give back what is owed, also if the NIC has nothing to take. */
bool vma_cq_needs_refill(const struct vma_cq *cq);
/* Gives back to the NIC what is owed, whatever the batching; returns how many were posted. */
unsigned vma_cq_refill(struct vma_cq *cq);
/* Puts the buffers whose sending is complete; returns how many. */
unsigned vma_cq_reap_sent_bufs(struct vma_cq *cq);

/* 0 armed, 1 packets are already there. Adapts moderation when its interval is over. */
int vma_cq_arm(struct vma_cq *cq);
/* Sleeps on the queue's fd: 1 something arrived, 0 timeout, -EINTR. Units: ns; UINT64_MAX: no end. */
int vma_cq_wait(struct vma_cq *cq, uint64_t timeout_ns);

/*
 * How a sleeper holds back by itself. All 0: it does not, the device moderates, or nobody asks for it.
 *   period_ns, count  after the first packet: until so much time has passed, or so many packets have come
 *   spacing_ns        between two wake-ups, while more packets come than the target of adaptive moderation
 * Relaxed loads: a sleeper may go by what held a moment ago.
 */
struct vma_cq_hold_back {
	uint64_t period_ns, spacing_ns;
	uint32_t count;
};
struct vma_cq_hold_back vma_cq_get_sleeper_hold_times(const struct vma_cq *cq);
bool vma_cq_moderation_is_on(const struct vma_cq *cq); /* false: nobody asks for it, until modify */
/*
 * From now on this is the moderation, for an adaptive one its base; a period of 0 or a count below 2 is none. Where the
 * device does not moderate, sleepers hold back from their next sleep on.
 */
void vma_cq_set_moderation(struct vma_cq *cq, struct vma_cq_moderation want);
/* Before such a sleep: gives back to the NIC what is owed, and adapts moderation when its interval is over. */
void vma_cq_prepare_sleep(struct vma_cq *cq);
/* A thread that slept on the queue, be it on its fd or on a timer, was woken. vma_cq_wait counts by itself. */
void vma_cq_count_wakeup(struct vma_cq *cq);
int vma_cq_fd(const struct vma_cq *cq);

#endif
