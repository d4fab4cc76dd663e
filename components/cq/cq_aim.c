/*
 * cq_aim.c - moderation: fixed, or adapted to the traffic so that armed queues wake their sleepers at most at a target
 * rate.
 */
#include <vma/log.h>

#include "cq_priv.h"

#define NS_PER_SEC 1000000000ull
#define NS_PER_MSEC 1000000ull
#define NS_PER_USEC 1000ull

/* Half of the way, and at least one unit: any distance within the maxima is walked in about log2(distance) steps. */
static uint32_t halfway_to_target(uint32_t now, uint32_t target)
{
	if (now < target)
		return now + (target - now + 1) / 2;
	return now - (now - target + 1) / 2;
}

static uint32_t clamp_u32(uint64_t value, uint32_t low, uint32_t high)
{
	if (high < low)
		high = low;
	if (value < low)
		return low;
	return value > high ? high : (uint32_t)value;
}

static uint64_t rate_per_sec(uint64_t packets, uint64_t elapsed_ns)
{
	return (uint64_t)((__uint128_t)packets * NS_PER_SEC / elapsed_ns);
}

/*
 * A report comes after `count` packets or `period` from the first, whichever is sooner; so both must stretch to
 * packets-per-report and time-per-report at the target rate. Traffic at or below the target rate cannot exceed it, and
 * a queue that nobody sleeps on has no reports to save: both get the base settings, which are the quicker ones.
 */
struct vma_cq_moderation vma_cq_next_adaptive_moderation(const struct vma_cq_aim_params *params,
                                                         struct vma_cq_moderation now, uint64_t packets,
                                                         uint64_t wakeups, uint64_t elapsed_ns)
{
	struct vma_cq_moderation target = params->base;
	uint64_t per_sec;

	if (elapsed_ns == 0 || params->interrupts_per_sec == 0)
		return now;
	per_sec = rate_per_sec(packets, elapsed_ns);
	if (wakeups > 0 && per_sec > params->interrupts_per_sec) {
		uint64_t count = (per_sec + params->interrupts_per_sec - 1) / params->interrupts_per_sec;
		uint64_t period = (1000000 + params->interrupts_per_sec - 1) / params->interrupts_per_sec;

		target.count = clamp_u32(count, params->base.count, params->max_count);
		target.period_usec = clamp_u32(period, params->base.period_usec, params->max_period_usec);
	}
	now.count = halfway_to_target(now.count, target.count);
	now.period_usec = halfway_to_target(now.period_usec, target.period_usec);
	return now;
}

/*
 * A sleeper that holds back does not see packets come, so of an adapted count it sleeps for the time that so many took
 * in the last interval. The base holds back what comes after silence; what goes beyond it keeps wake-ups apart.
 */
static uint64_t wakeup_spacing_usec(const struct vma_cq *cq, struct vma_cq_moderation now)
{
	const uint64_t count_usec = cq->aim_per_sec != 0 ? now.count * 1000000ull / cq->aim_per_sec : 0;

	if (now.period_usec <= cq->aim.base.period_usec)
		return 0;
	return count_usec < now.period_usec ? count_usec : now.period_usec;
}

static void cq_publish_sleeper_hold_times(struct vma_cq *cq, struct vma_cq_moderation now)
{
	const struct vma_cq_moderation base = cq->aim.base;
	const bool is_fixed = cq->sleepers_hold && base.count > 1 && base.period_usec != 0;
	const uint64_t spacing = cq->sleepers_hold ? wakeup_spacing_usec(cq, now) * NS_PER_USEC : 0;

	atomic_store_explicit(&cq->hold.count, is_fixed ? base.count : 0, memory_order_relaxed);
	atomic_store_explicit(&cq->hold.period_ns, is_fixed ? base.period_usec * NS_PER_USEC : 0, memory_order_relaxed);
	atomic_store_explicit(&cq->hold.spacing_ns, spacing, memory_order_relaxed);
}

bool vma_cq_moderation_is_on(const struct vma_cq *cq)
{
	return cq->moderates;
}

struct vma_cq_hold_back vma_cq_get_sleeper_hold_times(const struct vma_cq *cq)
{
	return (struct vma_cq_hold_back){
	        .period_ns = atomic_load_explicit(&cq->hold.period_ns, memory_order_relaxed),
	        .spacing_ns = atomic_load_explicit(&cq->hold.spacing_ns, memory_order_relaxed),
	        .count = atomic_load_explicit(&cq->hold.count, memory_order_relaxed),
	};
}

static void set_moderation(struct vma_cq *cq, struct vma_cq_moderation want)
{
	const int err = cq->sleepers_hold ? 0 : vma_nic_set_interrupt_moderation(cq->qp, want.count, want.period_usec);

	if (err != 0) {
		cq->sleepers_hold = true;
		vma_log_once(VMA_LOG_DEBUG, "%s: no interrupt moderation (error %d): sleepers hold back themselves",
		             cq->qp->nic->info.name, -err);
	}
	cq->moderation = want;
	cq_publish_sleeper_hold_times(cq, want);
	vma_stats_set(&cq->count->moderation_count, want.count);
	vma_stats_set(&cq->count->moderation_period_usec, want.period_usec);
}

void cq_adapt_moderation_init(struct vma_cq *cq, bool enable)
{
	cq->moderates = enable;
	cq->aim_since_ns = vma_nic_now_ns(cq->qp->nic);
	if (enable)
		set_moderation(cq, cq->aim.base);
}

void vma_cq_set_moderation(struct vma_cq *cq, struct vma_cq_moderation want)
{
	if (!cq->moderates)
		cq->aim.interval_msec = 0; /* adaptive moderation is switched off, and stays so */
	cq->moderates = true;
	cq->aim.base = want;
	if (cq->aim.max_count < want.count)
		cq->aim.max_count = want.count;
	if (cq->aim.max_period_usec < want.period_usec)
		cq->aim.max_period_usec = want.period_usec;
	set_moderation(cq, want);
}

/* A new binding of the queue pair knows nothing of what was set before. */
void cq_reapply_moderation_after_rebind(struct vma_cq *cq)
{
	cq->sleepers_hold = false;
	if (cq->moderates)
		set_moderation(cq, cq->moderation);
}

void cq_adapt_moderation(struct vma_cq *cq)
{
	uint64_t now_ns, elapsed_ns, packets, wakeups;
	struct vma_cq_moderation want;

	if (!cq->moderates || cq->aim.interval_msec == 0)
		return;
	now_ns = vma_nic_now_ns(cq->qp->nic);
	elapsed_ns = now_ns - cq->aim_since_ns;
	if (elapsed_ns < cq->aim.interval_msec * NS_PER_MSEC)
		return;
	packets = vma_stats_read_counter(&cq->count->packets);
	wakeups = atomic_load_explicit(&cq->wakeups, memory_order_relaxed);
	want = vma_cq_next_adaptive_moderation(&cq->aim, cq->moderation, packets - cq->aim_packets,
	                                       wakeups - cq->aim_wakeups, elapsed_ns);
	cq->aim_per_sec = rate_per_sec(packets - cq->aim_packets, elapsed_ns);
	cq->aim_since_ns = now_ns;
	cq->aim_packets = packets;
	cq->aim_wakeups = wakeups;
	if (want.count != cq->moderation.count || want.period_usec != cq->moderation.period_usec)
		set_moderation(cq, want);
	else
		cq_publish_sleeper_hold_times(cq, want); /* the rate may be another one */
}
