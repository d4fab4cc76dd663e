/*
 * drain.c - VMA_RX_CQ_DRAIN_RATE_NSEC: how often a receive looks for packets although data is queued already. So a
 * program that is slower than its peer still has its queue filled, and its drops counted, in time.
 */
#include <vma/inet.h>

void vma_inet_drain_init(struct vma_inet_drain *drain, const struct vma_conf *conf)
{
	drain->every_tsc =
	        conf->rx_cq_drain_rate_nsec != 0 ? vma_tsc_of_nsec((uint64_t)conf->rx_cq_drain_rate_nsec) : UINT64_MAX;
	atomic_init(&drain->looked_tsc, 0);
}

bool vma_inet_drain_is_due(struct vma_inet_drain *drain, bool has_data)
{
	const uint64_t now = vma_tsc();
	const bool due =
	        has_data && now - atomic_load_explicit(&drain->looked_tsc, memory_order_relaxed) >= drain->every_tsc;

	if (due || !has_data)
		atomic_store_explicit(&drain->looked_tsc, now, memory_order_relaxed);
	return due;
}
