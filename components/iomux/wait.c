/*
 * wait - epoll_wait and its relatives on a set that is ours.
 *
 * The set is held while a thread waits: as in the kernel, closing its descriptor does not end a wait. A handler that
 * jumps out of a wait leaves that reference behind, and with it the set's memory and inner descriptor.
 */
#include <errno.h>
#include <limits.h>
#include <sched.h>

#include "iomux_priv.h"

#include <vma/sock_engine.h>

#define TRIES 16
#define EVENTS_MAX ((int)(INT_MAX / sizeof(struct epoll_event)))

struct call {
	struct epoll_set *set;
	int epfd;
	struct epoll_event *events;
	int max;
	struct iomux_policy policy;
	struct vma_thread *self;
	uint32_t signals;
	struct iomux_call count;
	bool queued;         /* stands in the set's queue, or was taken out of it */
	bool wakeup_unspent; /* stood there when it collected something: nobody had spent a wake-up on it yet */
	int n;
};

static bool epoll_set_has_ready(struct epoll_set *set)
{
	return epoll_set_has_pending_events(set) || atomic_load_explicit(&set->stale, memory_order_relaxed);
}

/* Somebody else collects: nothing for us now, and he wakes us if he leaves something. */
static int epoll_call_collect(struct call *call, enum epoll_os_poll ask)
{
	struct epoll_set *set = call->set;

	if ((ask == EPOLL_OS_POLL_IF_READY && !epoll_set_has_ready(set)) || pthread_mutex_trylock(&set->lock) != 0)
		return 0;
	call->n = epoll_collect(set, call->epfd, call->events, call->max, ask, &call->policy);
	call->wakeup_unspent = call->n > 0 && call->queued && iomux_is_in_wait_queue(&set->file.waitq, call->self);
	epoll_set_unlock_and_wake_waiter(set);
	return call->n;
}

static int int_sign_or_errno(int n)
{
	return n < 0 ? n : n > 0;
}

static int epoll_wait_collect_if_ready(struct vma_wait *wait)
{
	return int_sign_or_errno(epoll_call_collect(wait->arg, EPOLL_OS_POLL_IF_READY));
}

static int epoll_wait_poll_os(struct vma_wait *wait)
{
	/* After a sleep that S has ended it is asked; of shadows alone there is nothing new every few looks. */
	return int_sign_or_errno(
	        epoll_call_collect(wait->arg, wait->fds[0].revents != 0 ? EPOLL_OS_POLL_ALWAYS : EPOLL_OS_POLL_IF_DUE));
}

static uint64_t epoll_set_rings_of_wait(struct vma_wait *wait)
{
	struct call *call = wait->arg;

	return atomic_load_explicit(&call->set->rings, memory_order_relaxed);
}

static uint64_t epoll_set_accept_rings_of_wait(struct vma_wait *wait)
{
	struct call *call = wait->arg;

	return atomic_load_explicit(&call->set->accept_rings, memory_order_relaxed);
}

/* Who was woken and leaves with nothing, or with something else. */
static void epoll_pass_wakeup_on(struct epoll_set *set)
{
	if (epoll_set_has_pending_events(set))
		vma_waitq_wake(&set->file.waitq, false);
}

/*
 * Who leaves with events may have had another wake-up spent on it since, be it by its own
 * epoll_set_unlock_and_wake_waiter: that is passed on. It stood in the queue or not when it had collected (A), gave the
 * set back, looked for what is left and woke one for it (B), and goes now (C). Was it out of the queue at A, nobody can
 * spend a wake-up on it any more: what was there by B, B has told another of, and who adds to it later finds another.
 * Was it there at A and is at C, no wake-up was spent on it. Was it there at A and is not at C, one was, and what it
 * was for is there (or somebody has taken it, which is as good): who took it out of its place had put that there
 * before.
 */
static void epoll_wait_enter_or_leave_wait_queue(struct vma_wait *wait, bool on)
{
	struct call *call = wait->arg;
	struct vma_waitq *q = &call->set->file.waitq;

	call->queued = on;
	if (on) {
		vma_waitq_add(q, wait->self);
		atomic_thread_fence(memory_order_seq_cst); /* see epoll_set_unlock_and_wake_waiter */
	} else if (!iomux_remove_from_wait_queue_unless_woken(q, wait->self, call->signals) && call->wakeup_unspent) {
		epoll_pass_wakeup_on(call->set);
	}
}

static void epoll_wait_abandon(struct vma_wait *wait)
{
	struct call *call = wait->arg;

	epoll_pass_wakeup_on(call->set);
	vma_file_put(&call->set->file);
}

static const struct vma_wait_ops epoll_wait_ops = {.ready = epoll_wait_collect_if_ready,
                                                   .poll_os = epoll_wait_poll_os,
                                                   .rings = epoll_set_rings_of_wait,
                                                   .accept_rings = epoll_set_accept_rings_of_wait,
                                                   .set_queued = epoll_wait_enter_or_leave_wait_queue,
                                                   .abandon = epoll_wait_abandon};

static int epoll_sleep_or_spin(struct call *call, struct iomux_timeout *timeout, struct vma_thread *self)
{
	struct epoll_set *set = call->set;
	struct pollfd inner = {.fd = set->members_epfd, .events = POLLIN};
	struct vma_wait wait = {.ops = &epoll_wait_ops,
	                        .arg = call,
	                        .self = self,
	                        .spin = &set->spin,
	                        .spin_loops = -1,
	                        .spin_nsec = call->policy.spin_nsec,
	                        .os_ratio = call->policy.os_ratio,
	                        .yield = call->policy.yield,
	                        .without_rings = call->policy.os_force,
	                        .fds = &inner,
	                        .nfds = 1,
	                        .mixed = true};
	int rc;

	iomux_timeout_start(timeout);
	wait.deadline_ns = timeout->deadline;
	call->signals = self->signals;
	vma_file_get(&set->file);
	rc = vma_wait(&wait);
	call->count.slept = wait.slept;
	if (rc <= 0)
		epoll_pass_wakeup_on(set);
	vma_file_put(&set->file);
	return rc > 0 ? call->n : rc;
}

/* Who does not wait is not told "nothing" because another thread collects at this moment. */
static int epoll_collect_before_return(struct call *call)
{
	int n = epoll_call_collect(call, EPOLL_OS_POLL_IF_DUE);

	for (int tries = 0; n == 0 && tries < TRIES && epoll_set_has_ready(call->set); tries++) {
		sched_yield();
		n = epoll_call_collect(call, EPOLL_OS_POLL_IF_DUE);
	}
	return n;
}

static int epoll_call_wait_for_events(struct call *call, struct iomux_timeout *timeout, struct vma_thread *self)
{
	struct epoll_set *set = call->set;
	uint64_t rings = atomic_load_explicit(&set->rings, memory_order_relaxed);
	int n, driven = VMA_RING_CTXS_FULL;

	vma_ring_ctxs_count_accept(atomic_load_explicit(&set->accept_rings, memory_order_relaxed));
	if (atomic_load_explicit(&set->drive_first, memory_order_relaxed)) {
		atomic_store_explicit(&set->drive_first, false, memory_order_relaxed);
		vma_ring_ctxs_progress(rings);
	}
	n = epoll_call_collect(call, EPOLL_OS_POLL_IF_READY);
	if (n == 0 && rings != 0) {
		for (unsigned steps = 0; iomux_may_poll_rings_again(steps, driven, epoll_set_has_ready(set)); steps++)
			driven = timeout->nsec != 0 ? vma_ring_ctxs_progress(rings) : vma_ring_ctxs_catch_up(rings);
		n = epoll_call_collect(call, EPOLL_OS_POLL_IF_READY);
	}
	/* A handler that waits to run comes second to what is ready. */
	if (n == 0 && vma_thread_has_deferred_work(self, VMA_HELD_SIGNALS))
		n = epoll_call_collect(call, EPOLL_OS_POLL_ALWAYS);
	if (n == 0)
		n = timeout->nsec != 0 ? epoll_sleep_or_spin(call, timeout, self) : epoll_collect_before_return(call);
	/* The kernel's epoll_wait that does not wait is not interrupted, unlike its poll. */
	return n == 0 && timeout->nsec != 0 ? iomux_run_held_signals_return_eintr(self) : n;
}

int vma_iomux_epoll_wait(struct vma_file *set, int epfd, struct epoll_event *events, int max,
                         const struct timespec *timeout, const sigset_t *mask)
{
	struct vma_thread *self = vma_thread_self();
	struct call call = {.set = epoll_set_of_file(set), .epfd = epfd, .events = events, .max = max, .self = self};
	struct iomux_timeout time;
	struct iomux_sigmask before;
	int rc = iomux_timeout_from_timespec(&time, timeout);

	if (rc < 0)
		return rc;
	rc = iomux_sigmask_set(&before, mask, self);
	if (rc < 0)
		return rc;
	iomux_policy_get(&call.policy);
	iomux_call_begin_timing(&call.count);
	rc = max > 0 && max <= EVENTS_MAX ? epoll_call_wait_for_events(&call, &time, self) : -EINVAL;
	iomux_count_call_result(&call.count, atomic_load_explicit(&call.set->stats, memory_order_acquire), rc);
	vma_thread_set_tx_batch(self, rc);
	self->overdue_rings = atomic_load_explicit(&epoll_set_of_file(set)->rings, memory_order_relaxed);
	iomux_sigmask_restore(&before, self);
	return rc;
}
