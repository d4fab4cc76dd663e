/*
 * core_gaps: for how long a core ran nothing of ours at a time, be it that other programs had it, or that the machine
 * below gave it to others. A thread on each core gets up every millisecond and notes the longest gap; at SIGTERM the
 * longest of all is printed, and what those of more than 5 ms come to on all cores together, in milliseconds.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#define PERIOD_NS 1000000
#define GAP_NS 5000000

static _Atomic uint64_t longest_core_gap_ns, core_gaps_sum_ns;

static uint64_t core_gaps_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void note_gap(uint64_t gap)
{
	uint64_t longest = atomic_load(&longest_core_gap_ns);

	if (gap > GAP_NS)
		atomic_fetch_add(&core_gaps_sum_ns, gap);
	while (gap > longest && !atomic_compare_exchange_weak(&longest_core_gap_ns, &longest, gap))
		;
}

static void *thread_measure_gaps_on_core(void *arg)
{
	const int core = (int)(intptr_t)arg;
	const struct timespec period = {.tv_nsec = PERIOD_NS};
	cpu_set_t only;
	uint64_t before, now;

	CPU_ZERO(&only);
	CPU_SET(core, &only);
	if (pthread_setaffinity_np(pthread_self(), sizeof(only), &only) != 0)
		return NULL;
	for (before = core_gaps_now_ns();; before = now) {
		nanosleep(&period, NULL);
		now = core_gaps_now_ns();
		note_gap(now - before);
	}
}

int main(void)
{
	cpu_set_t allowed;
	pthread_t thread;
	sigset_t end;
	int got;

	sigemptyset(&end);
	sigaddset(&end, SIGTERM);
	sigaddset(&end, SIGINT);
	pthread_sigmask(SIG_BLOCK, &end, NULL);
	if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
		return 1;
	for (int core = 0; core < CPU_SETSIZE; core++)
		if (CPU_ISSET(core, &allowed) &&
		    pthread_create(&thread, NULL, thread_measure_gaps_on_core, (void *)(intptr_t)core) != 0)
			return 1;
	puts("watching");
	fflush(stdout);
	sigwait(&end, &got);
	printf("longest %llu ms, all %llu ms\n", (unsigned long long)(atomic_load(&longest_core_gap_ns) / 1000000),
	       (unsigned long long)(atomic_load(&core_gaps_sum_ns) / 1000000));
	return 0;
}
