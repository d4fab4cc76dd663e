/*
 * core.c - threads that stay on a core each (VMA_RING_ALLOCATION_LOGIC 31): the core that the fewest of them have.
 *
 * A new thread begins with the affinity of the thread that made it. If that is the one core of a thread bound here, the
 * program has not chosen it. Then the new thread may have any core that the process had before.
 */
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "thread.h"

static pthread_mutex_t cores_lock = PTHREAD_MUTEX_INITIALIZER;
static cpu_set_t affinity_before_binding;              /* what the first thread was allowed before it was bound */
static uint16_t core_bound_thread_counts[CPU_SETSIZE]; /* threads that are bound to it */
static unsigned n_core_bound_threads;                  /* together */

/* The core, if it is the only one. */
static int cpu_set_single_core(const cpu_set_t *set)
{
	if (CPU_COUNT(set) != 1)
		return -1;
	for (int core = 0; core < CPU_SETSIZE; core++)
		if (CPU_ISSET(core, set))
			return core;
	return -1;
}

/* With the lock. */
static void read_allowed_cores(cpu_set_t *allowed)
{
	int core;

	if (sched_getaffinity(0, sizeof(*allowed), allowed) < 0)
		CPU_ZERO(allowed);
	core = cpu_set_single_core(allowed);
	if (n_core_bound_threads == 0)
		affinity_before_binding = *allowed;
	else if (core >= 0 && core_bound_thread_counts[core] != 0)
		*allowed = affinity_before_binding;
}

/* Of those with the fewest threads the one on which this thread runs, or else the first; -1: there is none. */
static int choose_core(const cpu_set_t *allowed)
{
	const int here = sched_getcpu();
	int best = here >= 0 && here < CPU_SETSIZE && CPU_ISSET(here, allowed) ? here : -1;

	for (int core = 0; core < CPU_SETSIZE; core++)
		if (CPU_ISSET(core, allowed) &&
		    (best < 0 || core_bound_thread_counts[core] < core_bound_thread_counts[best]))
			best = core;
	return best;
}

uint32_t vma_thread_current_core(void)
{
	const int core = sched_getcpu();

	return core > 0 ? (uint32_t)core : 0;
}

uint32_t vma_thread_bind_core(struct vma_thread *self)
{
	cpu_set_t allowed, one;
	int core;

	if (self->bound_core != 0)
		return self->bound_core - 1;
	pthread_mutex_lock(&cores_lock);
	read_allowed_cores(&allowed);
	core = choose_core(&allowed);
	CPU_ZERO(&one);
	if (core >= 0)
		CPU_SET(core, &one);
	if (core >= 0 && sched_setaffinity(0, sizeof(one), &one) == 0) {
		core_bound_thread_counts[core]++;
		n_core_bound_threads++;
		self->bound_core = (uint32_t)core + 1;
	}
	pthread_mutex_unlock(&cores_lock);
	return self->bound_core != 0 ? self->bound_core - 1 : vma_thread_current_core();
}

void thread_core_release(struct vma_thread *self)
{
	if (self->bound_core == 0)
		return;
	pthread_mutex_lock(&cores_lock);
	core_bound_thread_counts[self->bound_core - 1]--;
	n_core_bound_threads--;
	pthread_mutex_unlock(&cores_lock);
	self->bound_core = 0;
}

/* The child's thread may run where its parent's might: it is bound anew when it makes a socket. */
__attribute__((cold)) void thread_cores_unbind_in_forked_child(struct vma_thread *self)
{
	pthread_mutex_init(&cores_lock, NULL);
	if (self != NULL && self->bound_core != 0) {
		sched_setaffinity(0, sizeof(affinity_before_binding), &affinity_before_binding);
		self->bound_core = 0;
	}
	if (n_core_bound_threads != 0)
		memset(core_bound_thread_counts, 0, sizeof(core_bound_thread_counts));
	n_core_bound_threads = 0;
}
