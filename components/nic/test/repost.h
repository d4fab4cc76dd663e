/*
 * repost - gives polled buffers back to the receive queue, all of them, however long it takes.
 *
 * post_rx takes nothing while another queue pair's thread or process is in the middle of filling the device queue that
 * they share, and that one may be off the processor. What is not posted then and forgotten is owed for ever: after a
 * hundred or two of such frames the queue pair receives nothing any more (vma_nic_qp.rx_quota).
 */
#ifndef VMA_NIC_TEST_REPOST_H
#define VMA_NIC_TEST_REPOST_H

#include <sched.h>
#include <stdbool.h>
#include <time.h>

#include <vma/nic.h>

#define REPOST_TIMEOUT_S 3

/* False: in vain. Of a queue pair that is lost the buffers go home, which is as good. */
static inline bool repost_rx_bufs_until_taken(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n)
{
	unsigned posted = vma_nic_post_rx(qp, bufs, n);
	struct timespec began, now;

	if (posted == n)
		return true;
	clock_gettime(CLOCK_MONOTONIC, &began);
	do {
		sched_yield();
		posted += vma_nic_post_rx(qp, bufs + posted, n - posted);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (posted < n && !vma_nic_qp_lost(qp) && now.tv_sec - began.tv_sec <= REPOST_TIMEOUT_S);
	vma_buf_put_burst(qp->arena, bufs + posted, n - posted);
	return posted == n || vma_nic_qp_lost(qp);
}

#endif
