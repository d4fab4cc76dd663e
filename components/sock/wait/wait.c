/*
 * wait - one wait of one thread: look and drive for as long as that pays, then sleep.
 *
 *   look ──> spin: drive, look, ask the OS now and then ──> announce, arm, look ──> ppoll ──> look ...
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "spin.h"
#include "wait.h"

#define POLLS_INSIDE_MAX 8     /* then held signals get their chance */
#define POLLS_PER_CLOCK_READ 4 /* reading the clock takes as long as a look */

uint64_t vma_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- awake ---- */

struct polls {
	int64_t done;
	uint32_t os;
	struct vma_ring_backoff backoff;
};

/* All rings are driven by others: not for nothing, but one of them may be descheduled. */
static void wait_for_drivers(uint64_t rings, struct polls *polls)
{
	struct vma_ring_ctx *ring_ctx = first_ring_ctx((unsigned)__builtin_ctzll(rings));

	if (ring_ctx != NULL)
		vma_ring_wait_for_holder(ring_ctx->ring, VMA_RING_RX, &polls->backoff, BUSY_NSEC);
}

/* They may be others than at the last look, if a set has lost its last member there, say: a busy poller drives. */
static uint64_t wait_get_rings_end_left_busy_polls(struct vma_wait *wait)
{
	const uint64_t rings = wait->ops->rings(wait);

	if ((wait->self->busy_polls & ~rings) != 0)
		busy_poller_end(wait->self, ~rings, true);
	return rings;
}

/*
 * One look: 1, 0, -errno. An answer of `ready` other than 0 is never asked for again: what was told by it (an edge, a
 * one-shot event) is not told twice.
 */
static int wait_poll_once(struct vma_wait *wait, struct polls *polls)
{
	const uint64_t rings = wait_get_rings_end_left_busy_polls(wait);
	/* Timers are asked for as often as the clock is read here. */
	const bool timers = polls->done % POLLS_PER_CLOCK_READ == 0;
	const int driven = timers ? vma_ring_ctxs_progress(rings) : ring_ctxs_poll_without_timers(rings);
	const bool busy = driven == -EBUSY;
	int rc = wait->ops->ready(wait);

	if (timers)
		vma_ring_ctxs_count_accept(wait_accept_rings_of(wait));
	if (rc == 0 && driven > 0)
		busy_poller_disarm_rings_with_sleepers(wait->self, rings);

	if (!busy)
		polls->backoff = (struct vma_ring_backoff){0};
	if (busy && rc == 0) {
		wait_for_drivers(rings, polls);
		rc = wait->ops->ready(wait);
	}
	polls->done++;
	if (rc == 0 && wait->os_ratio != 0 && ++polls->os >= wait->os_ratio) {
		polls->os = 0;
		rc = wait_poll_os(wait);
	}
	return rc;
}

/*
 * Outside for a moment, in which handlers and callbacks run, cancellation acts, and others get the core if they should.
 * Also a callback may end the thread.
 */
static void wait_let_signals_run_and_yield(struct vma_wait *wait, bool yield)
{
	struct vma_thread *self = wait->self;

	pthread_cleanup_push(wait_clean_up_on_thread_cancel, wait);
	vma_leave(self);
	if (yield)
		sched_yield();
	pthread_testcancel();
	pthread_cleanup_pop(0);
	vma_enter();
	if (__builtin_expect(signals_are_not_intercepted, 0))
		signals_wrap_new_handlers_if_due();
}

static int wait_spin(struct vma_wait *wait, uint32_t signals)
{
	struct spin_state state;
	struct polls polls = {0};
	int rc = 0;

	if (wait->spin_loops == 0 || wait->spin_nsec == 0 || (wait->ops->rings(wait) == 0 && !wait->without_rings))
		return 0;
	if (!spin_begin(&state, wait))
		return 0;
	do {
		rc = wait_poll_once(wait, &polls);
		if (rc != 0 || (polls.done % POLLS_INSIDE_MAX != 0 && wait->self->woke == NULL &&
		                !vma_thread_has_deferred_work(wait->self, VMA_HELD_CALLBACKS)))
			continue;
		wait_let_signals_run_and_yield(wait,
		                               wait->yield || wait->self->woke != NULL || state.too_many_spinners);
		rc = wait_interrupted(wait, signals);
		if (rc == 0 && wait_deadline_has_passed(wait))
			break;
	} while (rc == 0 && (wait->spin_loops < 0 || polls.done < wait->spin_loops) &&
	         ((polls.done % POLLS_PER_CLOCK_READ != 0 && wait->self->woke == NULL) ||
	          spin_may_continue(&state, wait->self)));
	spin_leave(wait->self);
	return rc;
}

static int wait_spin_then_sleep(struct vma_wait *wait, uint32_t signals)
{
	const bool for_ever = wait->spin_loops < 0 && wait->spin_nsec < 0;
	uint64_t begun;
	int rc;

	wait->slept = wait->by_os = false;
	vma_wait_clean_up_abandoned(wait->self);
	rc = wait->ops->ready(wait);
	if (rc != 0)
		return rc;
	if (wait_deadline_has_passed(wait))
		return wait_poll_os(wait);
	begun = vma_tsc();
	rc = wait_spin(wait, signals);
	if (rc == 0)
		rc = wait_deadline_has_passed(wait) ? wait_poll_os(wait) : wait_sleep_until_woken(wait, signals);
	if (for_ever) /* such a wait asks nobody how long to spin, and what it was for waits for its end */
		return rc;
	if (wait->mixed && wait->by_os)
		spin_budget_reduce_after_os_wakeup(wait->spin);
	else
		spin_adapt(wait->spin, rc == 1, vma_tsc() - begun);
	return rc;
}

int vma_wait(struct vma_wait *wait)
{
	const uint32_t signals = wait->self->signals, interrupts = wait->self->interrupts;
	const int rc = wait_spin_then_sleep(wait, signals);

	wait->handled = wait->self->signals != signals;
	wait->restart = wait->handled && wait->self->interrupts == interrupts;
	return rc;
}
