/*
 * count - what readers of the statistics see of select, poll and epoll_wait.
 *
 * Counts are plain: two threads in the same call may lose one. The time spent looking (VMA_CPU_USAGE_STATS) is that of
 * calls that did not sleep, as a part of a second of the calling thread.
 */
#include "iomux_priv.h"

#define SECOND_NSEC 1000000000ULL

static __thread struct {
	uint64_t since_tsc, looking_ticks;
} thread_cpu_usage __attribute__((tls_model("initial-exec")));

static void __attribute__((cold, noinline))
stats_count_cpu_usage(const struct iomux_call *call, struct vma_stats_iomux *stats)
{
	const uint64_t now = vma_tsc();
	uint64_t elapsed;

	if (thread_cpu_usage.since_tsc == 0)
		thread_cpu_usage.since_tsc = call->begun_tsc;
	if (!call->slept)
		thread_cpu_usage.looking_ticks += now - call->begun_tsc;
	elapsed = now - thread_cpu_usage.since_tsc;
	if (elapsed < vma_tsc_of_nsec(SECOND_NSEC))
		return;
	vma_stats_set(&stats->polling_cpu, thread_cpu_usage.looking_ticks * 100 / elapsed);
	thread_cpu_usage.since_tsc = now;
	thread_cpu_usage.looking_ticks = 0;
}

void iomux_count_call_result(const struct iomux_call *call, struct vma_stats_iomux *stats, int rc)
{
	if (stats == NULL)
		return;
	if (rc == 0)
		vma_stats_add(&stats->timeouts, 1);
	else if (rc < 0)
		vma_stats_add(&stats->errors, 1);
	if (call->slept)
		vma_stats_add(&stats->poll_misses, 1);
	else if (rc > 0)
		vma_stats_add(&stats->poll_hits, 1);
	if (__builtin_expect(call->begun_tsc != 0, 0))
		stats_count_cpu_usage(call, stats);
}
