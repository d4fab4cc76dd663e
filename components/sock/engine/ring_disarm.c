/*
 * ring_disarm - unarms a ring that was armed once, and on which no thread sleeps any more.
 *
 * An armed XDP socket costs the kernel a wake-up for each packet that comes and each that has been sent, even without a
 * sleeping thread. That is some 6 % of the rate of 64-byte datagrams on either side. There are three cases:
 *   receivers spin    after RING_CTX_BUSY_DRIVES drives that found something, without an arm between
 *   only senders      no thread drives, so the internal thread has armed the ring; after DISARM_SENDS_MAX frames it
 *                     takes that back, and looks at the ring at each interval while SENDS_BUSY frames leave in one
 *   a busy poller     a watcher sleeps, but a spinner takes the packets, and arms again when it leaves
 *                     (wait/busy_poller.c)
 *
 * No other thread sleeps unarmed. A sleeper makes itself known (ring_ctx->watcher, or `armed` of the internal
 * thread), then arms, with the ring's receive flag held. The unarming looks for both in a posted command, with that
 * flag held. If the arm came before, the flag has carried the mark along: it is seen, and nothing is done. If the arm
 * comes later, it arms anew. Marks are taken back when the sleep is over.
 */
#include "internal.h"
#include "../wait/wait.h"

#define DISARM_SENDS_MAX 1024

static struct vma_ring_ctx *ring_ctx_of_disarm_command(struct vma_ring_command *command)
{
	return (struct vma_ring_ctx *)((char *)command - offsetof(struct vma_ring_ctx, disarm));
}

/* With the receive flag. */
static void ring_disarm_run(struct vma_ring_command *command)
{
	struct vma_ring_ctx *ring_ctx = ring_ctx_of_disarm_command(command);

	atomic_store_explicit(&ring_ctx->disarm_scheduled, false, memory_order_release);
	if (atomic_load_explicit(&ring_ctx->armed, memory_order_relaxed))
		return;
	if (atomic_load_explicit(&ring_ctx->watcher, memory_order_relaxed) == NULL ||
	    busy_poller_exists_mark_ring_unarmed(ring_ctx->id % 64))
		vma_nic_unarm(vma_ring_qp(ring_ctx->ring));
}

/* The flag says that the command is in the queue. Taken down there (release), it gives the command to who asks next. */
void ring_disarm_schedule(struct vma_ring_ctx *ring_ctx)
{
	if (atomic_exchange_explicit(&ring_ctx->disarm_scheduled, true, memory_order_acquire))
		return;
	ring_ctx->disarm.run = ring_disarm_run;
	vma_ring_queue_command_and_try_run(ring_ctx->ring, &ring_ctx->disarm);
}

/* By two drivers at once, at worst a look comes early or late. */
void ring_ctx_schedule_disarm_if_busy(struct vma_ring_ctx *ring_ctx, uint32_t busy)
{
	const uint32_t arms = atomic_load_explicit(&ring_ctx->arms, memory_order_relaxed);

	vma_ring_notify_listener(ring_ctx->ring);
	if (busy % RING_CTX_BUSY_DRIVES != 0)
		return;
	if (arms != atomic_exchange_explicit(&ring_ctx->arms_seen, arms, memory_order_relaxed) ||
	    arms == atomic_load_explicit(&ring_ctx->arms_taken_down, memory_order_relaxed))
		return;
	atomic_store_explicit(&ring_ctx->arms_taken_down, arms, memory_order_relaxed);
	ring_disarm_schedule(ring_ctx);
}

void ring_disarm_busy_polled(struct vma_ring_ctx *ring_ctx)
{
	const uint32_t arms = atomic_load_explicit(&ring_ctx->arms, memory_order_relaxed);

	if (arms == atomic_load_explicit(&ring_ctx->arms_taken_down, memory_order_relaxed) ||
	    atomic_load_explicit(&ring_ctx->watcher, memory_order_relaxed) == NULL)
		return;
	atomic_store_explicit(&ring_ctx->arms_taken_down, arms, memory_order_relaxed);
	ring_disarm_schedule(ring_ctx);
}

void vma_ring_ctx_count_send_armed(struct vma_ring_ctx *ring_ctx)
{
	if (atomic_fetch_add_explicit(&ring_ctx->sends, 1, memory_order_relaxed) % DISARM_SENDS_MAX ==
	    DISARM_SENDS_MAX - 1)
		ring_housekeeping_wake_for_sending_ring(ring_ctx);
}
