/*
 * ring_move.c - a flow and its rule move from one ring to another. The sends of before leave first.
 *
 *   ring ── flow     rule ──┐ 1. `moved` is attached, without a rule
 *   to ──── moved           │ 2. the rule goes to `to` in one step; what was steered to `ring` is in its queue
 *                    <──────┘ 3. the queue of `ring` is emptied into `flow`; `flow` is detached
 *
 * No step holds both receive flags, and the NIC is asked with neither: both rings go on. Between the steps each packet
 * has a sink. Before 2 the NIC knows `ring` only, and after it `ring` gets no more; 3 delivers what is there by then.
 * Between 2 and 3 the two sinks may run at the same time, and the one of `moved` gets the later packets.
 *
 * A rule that is revoked meanwhile is found revoked. Before 2 this happens at `ring` (the NIC refuses). After 2 it
 * happens at `to`, as an entry that is marked before it becomes `steered`.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "ring_priv.h"

/* ---- receiving ---- */

static bool flow_is_sole_user_of_rule(struct vma_ring *ring, const struct vma_flow *flow)
{
	const bool acquired = drive_flag_acquire(&ring->rx),
	           is = acquired && vma_ring_flow_is_alone_with_nic_rule(ring, flow);

	if (acquired)
		ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
	return is;
}

/* With a stale rule for its end, as vma_ring_request_nic_rule_of_flow makes one. */
static void ring_flow_mark_has_device_rule(struct vma_ring *ring, struct vma_flow *flow)
{
	struct ring_stale_rule *stale = malloc(sizeof(*stale));
	struct flow_entry *entry;

	drive_flag_acquire(&ring->rx);
	flow->flags &= ~(uint32_t)VMA_FLOW_RING_ONLY;
	entry = ring_flow_entry_of_key(ring, &flow->key);
	entry->steered = true;
	ring_keep_spare_stale_rule_for_entry(ring, entry, &stale);
	ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
	free(stale);
}

/* What is left is a flow that the NIC does not know. */
static void ring_flow_mark_lost_device_rule(struct vma_ring *ring, struct vma_flow *flow)
{
	struct flow_entry *entry;

	drive_flag_acquire(&ring->rx);
	entry = flow->ring == ring ? ring_flow_entry_of_key(ring, &flow->key) : NULL;
	if (entry != NULL) {
		flow->flags |= VMA_FLOW_RING_ONLY;
		entry->steered = false;
		ring_free_reserved_stale_rule(ring, entry);
		entry->reserved = false;
	}
	ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
}

int vma_ring_move_rule(struct vma_ring *ring, struct vma_flow *flow, struct vma_ring *to, struct vma_flow *moved)
{
	int rc;

	if (!flow_is_sole_user_of_rule(ring, flow))
		return -EBUSY;
	moved->flags |= VMA_FLOW_RING_ONLY;
	rc = vma_ring_attach_flow(to, moved);
	if (rc != 0)
		return rc;
	rc = vma_nic_flow_move(ring->qp, to->qp, &flow->key);
	if (rc != 0) {
		vma_ring_detach_flow(to, moved);
		return rc;
	}
	ring_flow_mark_has_device_rule(to, moved);
	ring_flow_mark_lost_device_rule(ring, flow);
	return 0;
}

int vma_ring_move_flow(struct vma_ring *ring, struct vma_flow *flow, struct vma_ring *to, struct vma_flow *moved)
{
	const int rc = vma_ring_move_rule(ring, flow, to, moved);

	if (rc != 0)
		return rc;
	drive_flag_acquire(&ring->rx);
	ring_rx_drain(ring);
	ring_detach_flow_holding_rx_flag(ring, flow, true);
	ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
	return 0;
}

/* ---- sending ---- */

static uint64_t move_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static bool ring_tx_is_drained(struct vma_ring *ring)
{
	bool over;

	if (!drive_flag_acquire(&ring->tx))
		return false;
	ring_tx_drain_and_reap(ring);
	over = ring->backlog == NULL && ring->unkicked == 0 && vma_nic_tx_is_idle(ring->qp);
	ring_tx_release_drive_flag(ring, drive_get_own_thread_id());
	return over;
}

bool vma_ring_drain_sends(struct vma_ring *ring, uint64_t timeout_ns)
{
	const uint64_t until_ns = move_now_ns() + timeout_ns;

	while (!ring_tx_is_drained(ring)) {
		if (move_now_ns() >= until_ns)
			return false;
		sched_yield();
	}
	return true;
}
