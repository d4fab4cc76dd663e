/*
 * hold - a watcher that holds back (VMA_CQ_MODERATION_*, VMA_CQ_AIM_*). An interrupt is a wake-up of a thread that
 * sleeps on a ring; a card that moderates gathers packets before it sends one. If the device cannot, the thread does
 * it. It sleeps on a timer, and the ring is unarmed, so that packets cost no wake-up.
 *
 *   fixed      asleep, armed ── first packet ──> unarmed, on a timer: the period ──────────────> drive, look
 *                                                └── armed for the next packet: the count ─────┘
 *   adaptive   awake ──> unarmed, on a timer: until the next wake-up is due ──> drive, look
 *                                             └── nothing has come ──> asleep, armed
 *
 * Adaptive moderation keeps wake-ups apart while more packets come than its target. So a packet after silence wakes at
 * once, unless count or period is set. Wake-ups are due at equal distances: if a timer comes late, which the kernel
 * allows itself, the next one is not later for that.
 *
 * To count, the sleeper has to get up: it is armed for the next packet, and looks how many there are. It does so every
 * LOOK_NSEC at most, and not at all in a hold that is shorter. If it cannot be armed so, it looks every LOOK_NSEC.
 *
 * Only packets are held back, and only from this thread. Deadlines, signals, descriptors of the OS and threads that
 * deliver end the sleep as ever. If another thread drives meanwhile, for a call that does not wait or for a timer of
 * TCP, it delivers what has come. The internal thread does not drive for the only reason that no other thread does
 * (ring_ctx_has_timed_sleeper).
 *
 * The ring of which the internal thread believes that it is armed (ring_ctx->armed) is not unarmed; the receive flag
 * orders that as for ring_disarm.c.
 */
#include <errno.h>

#include <vma/cq.h>

#include "../engine/internal.h"
#include "hold.h"

#define LOOK_NSEC 100000

static bool ring_is_armed_by_internal_thread(const struct vma_ring_ctx *ring_ctx)
{
	return atomic_load_explicit(&ring_ctx->armed, memory_order_relaxed);
}

/* The ring says nothing from now on. Returns how many packets wait there; -EBUSY: another thread drives. */
static int ring_unarm_and_count(struct vma_ring_ctx *ring_ctx)
{
	struct vma_ring *ring = ring_ctx->ring;
	int waiting;

	if (!vma_ring_try_acquire(ring))
		return -EBUSY;
	vma_cq_prepare_sleep(vma_ring_cq(ring));
	if (!ring_is_armed_by_internal_thread(ring_ctx))
		vma_nic_unarm(vma_ring_qp(ring));
	waiting = vma_nic_rx_waiting_count(vma_ring_qp(ring));
	vma_ring_release(ring);
	return waiting;
}

/* The ring tells of the next packet. Returns how many wait there; -EBUSY: now it is another thread's. */
static int ring_arm_for_next_packet(struct vma_ring_ctx *ring_ctx)
{
	struct vma_ring *ring = ring_ctx->ring;
	int waiting = -EBUSY;

	if (!vma_ring_try_acquire(ring))
		return -EBUSY;
	vma_cq_prepare_sleep(vma_ring_cq(ring));
	if (!ring_is_armed_by_internal_thread(ring_ctx)) {
		ring_ctx_count_arm(ring_ctx);
		waiting = vma_nic_arm_for_next_packet(vma_ring_qp(ring));
	}
	vma_ring_release(ring);
	return waiting;
}

static void moderation_hold_set(struct vma_ring_hold *hold, uint64_t until_ns, uint32_t count)
{
	hold->count = count;
	atomic_store_explicit(&hold->until_ns, until_ns, memory_order_relaxed);
}

static uint64_t moderation_hold_until_ns(const struct vma_ring_hold *hold)
{
	return atomic_load_explicit(&hold->until_ns, memory_order_relaxed);
}

/* Of a hold that ends with its count, too, and goes on for longer than it takes to look. */
static enum moderation_sleep moderation_choose_sleep_by_packet_count(struct vma_ring_ctx *ring_ctx, uint64_t now,
                                                                     uint64_t *until_ns)
{
	struct vma_ring_hold *hold = &ring_ctx->hold;
	bool looks = now >= hold->look_ns;
	int waiting = -EBUSY;

	if (looks) {
		hold->look_ns = now + LOOK_NSEC;
		waiting = ring_arm_for_next_packet(ring_ctx);
		looks = waiting > 0;
	}
	if (!looks)
		waiting = ring_unarm_and_count(ring_ctx);
	if (waiting >= (int)hold->count || waiting == 0) { /* 0: another thread has taken them */
		moderation_hold_set(hold, 0, 0);
		return MODERATION_SLEEP_NOT_AT_ALL;
	}
	*until_ns = moderation_hold_until_ns(hold);
	if (!looks && hold->look_ns < *until_ns)
		*until_ns = hold->look_ns;
	return looks ? MODERATION_SLEEP_BY_COUNT : MODERATION_SLEEP_BY_TIMER;
}

enum moderation_sleep moderation_choose_how_to_sleep(struct vma_ring_ctx *ring_ctx, uint64_t *until_ns)
{
	const struct vma_cq_hold_back how = vma_cq_get_sleeper_hold_times(vma_ring_cq(ring_ctx->ring));
	struct vma_ring_hold *hold = &ring_ctx->hold;
	uint64_t now;

	if (how.period_ns == 0 && how.spacing_ns == 0)
		return MODERATION_SLEEP_ARMED;
	now = vma_now_ns();
	if (moderation_hold_until_ns(hold) <= now)
		moderation_hold_set(
		        hold,
		        how.spacing_ns != 0 && hold->due_ns + how.spacing_ns > now ? hold->due_ns + how.spacing_ns : 0,
		        0);
	*until_ns = moderation_hold_until_ns(hold);
	if (*until_ns == 0)
		return MODERATION_SLEEP_ARMED;
	if (hold->count != 0 && *until_ns - now > LOOK_NSEC)
		return moderation_choose_sleep_by_packet_count(ring_ctx, now, until_ns);
	ring_unarm_and_count(ring_ctx);
	return MODERATION_SLEEP_BY_TIMER;
}

/* A wake-up that was late by less than the distance counts as one that was not. */
static void moderation_note_due_wakeup(struct vma_ring_hold *hold, uint64_t now, uint64_t spacing_ns)
{
	const uint64_t due = hold->due_ns + spacing_ns;

	hold->due_ns = now >= due && now - due < spacing_ns ? due : now;
}

static bool moderation_hold_at_first_packet(struct vma_ring_ctx *ring_ctx, const struct vma_cq_hold_back *how,
                                            uint64_t now)
{
	const int waiting = ring_unarm_and_count(ring_ctx);

	if (waiting <= 0 || (uint32_t)waiting >= how->count)
		return false;
	moderation_hold_set(&ring_ctx->hold, now + how->period_ns, how->count);
	ring_ctx->hold.look_ns = now;
	return true;
}

bool moderation_update_hold_after_wakeup(struct vma_ring_ctx *ring_ctx, bool rung)
{
	struct vma_ring_hold *hold = &ring_ctx->hold;
	const uint64_t until = moderation_hold_until_ns(hold);
	struct vma_cq_hold_back how;
	uint64_t now;
	bool over;

	if (!rung && until == 0)
		return false;
	how = vma_cq_get_sleeper_hold_times(vma_ring_cq(ring_ctx->ring));
	now = how.period_ns != 0 || how.spacing_ns != 0 ? vma_now_ns() : UINT64_MAX;
	over = until != 0 && until <= now;
	if (rung || over) {
		vma_cq_count_wakeup(vma_ring_cq(ring_ctx->ring));
		if (how.spacing_ns != 0)
			moderation_note_due_wakeup(hold, now, how.spacing_ns);
	}
	if (over)
		moderation_hold_set(hold, 0, 0);
	else if (until == 0 && how.period_ns != 0)
		return moderation_hold_at_first_packet(ring_ctx, &how, now);
	return until != 0 && !over;
}
