/*
 * wake_latency - how long a sleeper takes to get up, from the call that wakes it, by powers of two: for vma_stats.
 *
 * It is known of sleepers that another thread wakes. If the kernel ends the sleep, as at a ring's descriptor, no thread
 * has noted when the packet came.
 */
#include <vma/stats.h>

#include "wait.h"

/* In units of 1024 ns. */
static uint64_t wake_latency_units_of(uint64_t ticks)
{
	const uint64_t rate = vma_tsc_of_nsec(1024000); /* ticks in 1000 of them */

	return rate != 0 ? ticks * 1000 / rate : 0;
}

static unsigned place_of(uint64_t units)
{
	const unsigned place = units == 0 ? 0 : 64 - (unsigned)__builtin_clzll(units);

	return place < VMA_STATS_WAKES ? place : VMA_STATS_WAKES - 1;
}

void wake_latency_count(struct vma_thread *self)
{
	const uint64_t woken = atomic_exchange_explicit(&self->woken_tsc, 0, memory_order_relaxed);
	const struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);

	if (woken == 0 || engine == NULL)
		return;
	atomic_fetch_add_explicit(&(&engine->process_stats->wake_0)[place_of(wake_latency_units_of(vma_tsc() - woken))],
	                          1, memory_order_relaxed);
}
