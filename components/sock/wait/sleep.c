/*
 * sleep - the second half of a wait: asleep, and how a wake-up, a ring, a handler or cancellation ends that.
 *
 *   settle: GOING, counted, in queues ──> claim watches, arm ──> look ──> ASLEEP: ppoll ──> drive, look ──┐
 *      ^                                                                                                 │
 *      └──────────────────────────────────────── nothing ────────────────────────────────────────────────┘
 *
 * Interrupt moderation may have the thread sleep on a timer in place of a ring's descriptor (hold.c). A sleep that ends
 * before that timer, and for no other reason, drives nothing.
 *
 * The watch. One thread of those that sleep for a ring, its *watcher*, also sleeps on the ring's descriptor. All others
 * are woken by the thread that delivers. Watch and queues are kept over needless wake-ups and given up at the end of
 * the wait. A ring with sleepers is not left without a watcher:
 *   - A sleeper sets its state to GOING and counts itself (A), then claims ring_ctx->watcher unless it is taken (B).
 *   - A thread that leaves, watcher or not, sets its state to AWAKE (C) and gives the watch up if it has it (D). Then,
 *     if there is no watcher but a thread is counted (E), it wakes one that is not awake, which claims in its turn.
 * All are sequentially consistent. If B finds the watch taken, B comes before the watcher's D, so A comes before its E,
 * which finds the sleeper. A thread that E wakes may leave, too, for a reason of its own. If its C comes after the
 * wake-up's exchange of its state, it comes after D, and its own E finds no watcher. If its C came before, E took
 * another. A handler of the application may jump out of the sleep, so the thread gives everything up before one runs
 * (vma_wait_suspend_for_signal_handler). A cancelled thread does so in its clean-up.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/sock.h>
#include <vma/sock_os.h>

#include "../engine/internal.h"
#include "hold.h"
#include "spin.h"
#include "wait.h"

#define LOST_NSEC 1000000 /* a sleep of a thread that has no descriptor to be woken by */
#define FDS_ON_STACK 64

/*
 * How many sleep for the rings of each bit. Not in the ring context, which may end, and its bit be another's,
 * meanwhile.
 */
static _Atomic uint32_t sleepers[64];
/* And how many of them for a listener there. */
static _Atomic uint32_t accept_sleepers_n[64];

bool ring_bit_has_sleepers(unsigned bit)
{
	return atomic_load(&sleepers[bit]) != 0;
}

/* ---- the watch ---- */

void wake_next_sleeper_to_watch_ring(unsigned bit, const struct vma_thread *self)
{
	unsigned count = vma_thread_table_size();

	if (!ring_bit_has_sleepers(bit))
		return;
	for (unsigned i = 0; i < count; i++) {
		struct vma_thread *thread = vma_thread_at(i);

		if (thread == NULL || thread == self || (atomic_load(&thread->rings) >> bit & 1) == 0)
			continue;
		if (vma_thread_wake_once(thread))
			return;
	}
}

/*
 * Who gives connections to processes is to know that one sleeps until a listener of this bit's rings has some. Two
 * threads may come and go at the same time and leave the older number: until the next sleep the process counts as one
 * that works, or as one that sleeps, which what it does not accept will show.
 */
static void publish_accept_sleepers(unsigned bit)
{
	const uint32_t sleeps = atomic_load(&accept_sleepers_n[bit]) != 0;

	for (struct vma_ring_ctx *ring_ctx = first_ring_ctx(bit); ring_ctx != NULL; ring_ctx = next_ring_ctx(ring_ctx))
		if (ring_ctx->member != NULL)
			atomic_store_explicit(&ring_ctx->member->sleeps, sleeps, memory_order_relaxed);
}

static void accept_sleeper_register_on_rings(struct vma_thread *self, uint64_t rings)
{
	self->accept_rings = rings;
	for (; rings != 0; rings &= rings - 1) {
		const unsigned bit = (unsigned)__builtin_ctzll(rings);

		atomic_fetch_add(&accept_sleepers_n[bit], 1);
		publish_accept_sleepers(bit);
	}
}

/* Until now it has asked. */
static void accept_sleeper_unregister_from_rings(struct vma_thread *self)
{
	uint64_t rings = self->accept_rings;

	self->accept_rings = 0;
	vma_ring_ctxs_count_accept(rings);
	for (; rings != 0; rings &= rings - 1) {
		const unsigned bit = (unsigned)__builtin_ctzll(rings);

		atomic_fetch_sub(&accept_sleepers_n[bit], 1);
		publish_accept_sleepers(bit);
	}
}

static void sleeper_register_on_rings(struct vma_thread *self, uint64_t rings)
{
	atomic_store(&self->rings, rings);
	atomic_store(&self->state, VMA_THREAD_GOING);
	for (; rings != 0; rings &= rings - 1)
		atomic_fetch_add(&sleepers[__builtin_ctzll(rings)], 1);
}

static void sleeper_unregister_from_rings(struct vma_thread *self)
{
	uint64_t rings = atomic_exchange(&self->rings, 0);

	accept_sleeper_unregister_from_rings(self);
	atomic_exchange(&self->state, VMA_THREAD_AWAKE);
	for (; rings != 0; rings &= rings - 1) {
		unsigned bit = (unsigned)__builtin_ctzll(rings);
		bool unwatched = false;

		atomic_fetch_sub(&sleepers[bit], 1);
		for (struct vma_ring_ctx *ring_ctx = first_ring_ctx(bit); ring_ctx != NULL;
		     ring_ctx = next_ring_ctx(ring_ctx)) {
			struct vma_thread *watcher = self;

			unwatched |=
			        atomic_compare_exchange_strong(&ring_ctx->watcher, &watcher, NULL) || watcher == NULL;
		}
		if (unwatched && !busy_poller_exists_mark_ring_unarmed(bit))
			wake_next_sleeper_to_watch_ring(bit, self);
	}
}

/* In a handler's wrapper, outside: the handler may not come back, so nothing may depend on this thread meanwhile. */
void vma_wait_suspend_for_signal_handler(struct vma_thread *self)
{
	struct vma_wait *wait = self->waiting;

	if (wait == NULL && !self->spinning)
		return;
	vma_enter();
	busy_poller_end(self, UINT64_MAX,
	                false); /* on a stack of unknown size, and whatever the handler has interrupted */
	spin_leave(self);
	if (wait == NULL) {
		vma_leave(self);
		return;
	}
	self->waiting = NULL;
	self->wakeup_unused = true;
	sleeper_unregister_from_rings(self);
	wait->ops->set_queued(wait, false);
	vma_leave(self);
}

/*
 * It has come back, perhaps before the thread was asleep, too early to end the sleep; and a wait of the handler's own
 * may have taken what was written before. (A sleep that was left by a jump counts for ever, which costs one write for
 * each handler.)
 */
void vma_wait_wake_after_signal_handler(struct vma_thread *self)
{
	const uint64_t one = 1;
	const int fd = atomic_load(&self->wake_fd), saved = errno;

	if (self->sleeps != 0 && fd >= 0)
		syscall(SYS_write, fd, &one, sizeof(one));
	errno = saved;
}

/* What a wait that was left by a jump or with its thread has left behind. */
void vma_wait_clean_up_abandoned(struct vma_thread *self)
{
	self->waiting = NULL;
	if (atomic_load_explicit(&self->rings, memory_order_relaxed) != 0)
		sleeper_unregister_from_rings(self);
	spin_leave(self);
}

void vma_wait_reset_in_fork_child(void)
{
	for (unsigned bit = 0; bit < 64; bit++) {
		atomic_store(&sleepers[bit], 0);
		atomic_store(&accept_sleepers_n[bit], 0);
	}
	busy_poller_reset_in_fork_child();
	spin_reset_in_fork_child();
}

/* ---- asleep ---- */

static void thread_ensure_wake_fd(struct vma_thread *self)
{
	int fd, guarded;

	if (atomic_load_explicit(&self->wake_fd, memory_order_relaxed) >= 0)
		return;
	fd = (int)syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (fd < 0)
		return; /* see sleep_in_poll */
	guarded = vma_fd_move_high_and_guard(fd);
	atomic_store(&self->wake_fd, guarded >= 0 ? guarded : fd);
}

/*
 * What one ppoll sleeps on: the caller's descriptors, the thread's own (-1: there is none), those of watched rings.
 * More than the stack has room for lie in memory, which a handler that jumps out of the sleep leaves behind: nobody can
 * tell it from one that waits by itself and comes back.
 */
struct pollset {
	struct vma_wait *wait;
	struct pollfd *fds, stack[FDS_ON_STACK];
	unsigned n;
	bool poll_again;                      /* something may have come while arming */
	bool crowded;                         /* the last sleep was on our own descriptors alone */
	bool interrupted;                     /* a handler has ended it */
	uint8_t bit_of[VMA_THREAD_RING_CTXS]; /* rings, of the descriptors behind the thread's own */
	uint64_t rung, rung_twice;            /* by bit: have ended the last sleep, the last two */
	uint64_t held_until_ns;               /* when the first ring is to be looked at that is held back, see hold.c */
	bool held; /* the last sleep has ended, but what has come to the rings is still to wait */
	struct vma_ring_backoff backoff;
	struct timespec timeout; /* of the sleep that goes on */
};

/*
 * A ring that wakes twice in a row has not been unarmed by its busy poller: armed anew, it takes back what it has told.
 */
static int sleep_arm_ring(const struct pollset *pollset, struct vma_ring_ctx *ring_ctx)
{
	if ((pollset->rung_twice & vma_ring_ctx_bit(ring_ctx)) == 0 &&
	    busy_poller_exists_mark_ring_unarmed(ring_ctx->id % 64))
		return 0;
	ring_ctx_count_arm(ring_ctx);
	return vma_ring_arm(ring_ctx->ring);
}

/* Whether packets may wake this thread. False: look again, or this is a device that has gone, and nothing comes. */
static inline bool sleep_arm_ring_or_look_again(struct pollset *pollset, struct vma_ring_ctx *ring_ctx)
{
	const int rc = sleep_arm_ring(pollset, ring_ctx);

	pollset->poll_again |= rc == 1 || rc == -EBUSY;
	if (rc == -EBUSY)
		vma_ring_wait_for_holder(ring_ctx->ring, VMA_RING_RX, &pollset->backoff, BUSY_NSEC);
	else
		pollset->backoff = (struct vma_ring_backoff){0};
	return rc == 0;
}

/* The same of a ring whose packets may have to wait. */
static bool sleep_arm_or_hold(struct pollset *pollset, struct vma_ring_ctx *ring_ctx)
{
	uint64_t until_ns = UINT64_MAX;
	const enum moderation_sleep how = moderation_choose_how_to_sleep(ring_ctx, &until_ns);

	if (how == MODERATION_SLEEP_ARMED)
		return sleep_arm_ring_or_look_again(pollset, ring_ctx);
	pollset->poll_again |= how == MODERATION_SLEEP_NOT_AT_ALL;
	if (until_ns < pollset->held_until_ns)
		pollset->held_until_ns = until_ns;
	return how == MODERATION_SLEEP_BY_COUNT;
}

/* Claims the watch of a ring context, if it is to be had, and arms it. */
static void sleep_watch_ring(struct pollset *pollset, struct vma_ring_ctx *ring_ctx)
{
	struct vma_thread *self = pollset->wait->self, *watcher = NULL;

	if (!atomic_compare_exchange_strong(&ring_ctx->watcher, &watcher, self) && watcher != self)
		return;
	tcp_housekeeping_wake_for_earlier_timer(ring_ctx);
	if (!(atomic_load_explicit(&ring_ctx->hold.is_asked_for, memory_order_relaxed)
	              ? sleep_arm_or_hold(pollset, ring_ctx)
	              : sleep_arm_ring_or_look_again(pollset, ring_ctx)))
		return;
	pollset->bit_of[pollset->n - pollset->wait->nfds - 1] = ring_ctx->id % 64;
	pollset->fds[pollset->n++] = (struct pollfd){.fd = vma_ring_fd(ring_ctx->ring), .events = POLLIN};
}

static void fill_pollset_and_arm_rings(struct pollset *pollset)
{
	struct vma_wait *wait = pollset->wait;

	pollset->n = wait->nfds;
	pollset->poll_again = pollset->held = false;
	pollset->held_until_ns = UINT64_MAX;
	if (wait->nfds != 0)
		memcpy(pollset->fds, wait->fds, wait->nfds * sizeof(*wait->fds));
	pollset->fds[pollset->n++] = (struct pollfd){.fd = atomic_load(&wait->self->wake_fd), .events = POLLIN};
	for (uint64_t left = atomic_load(&wait->self->rings); left != 0; left &= left - 1) {
		struct vma_ring_ctx *ring_ctx = first_ring_ctx((unsigned)__builtin_ctzll(left));

		for (; ring_ctx != NULL && pollset->n < wait->nfds + 1 + VMA_THREAD_RING_CTXS;
		     ring_ctx = next_ring_ctx(ring_ctx))
			sleep_watch_ring(pollset, ring_ctx);
	}
	for (unsigned i = 0; i < pollset->n; i++)
		pollset->fds[i].revents = 0;
}

static void free_pollset(struct pollset *pollset)
{
	if (pollset->fds != pollset->stack)
		vma_free(pollset->fds);
}

void wait_clean_up_on_thread_cancel(void *arg)
{
	struct vma_wait *wait = arg;
	struct vma_thread *self = vma_enter();

	self->wakeup_unused = true;
	vma_wait_clean_up_abandoned(self);
	wait->ops->set_queued(wait, false);
	if (wait->ops->abandon != NULL)
		wait->ops->abandon(wait);
	vma_leave(self);
}

static void sleep_on_thread_cancel(void *arg)
{
	struct pollset *pollset = arg;
	struct vma_thread *self = vma_enter();

	self->sleeps--;
	wait_clean_up_on_thread_cancel(pollset->wait);
	free_pollset(pollset);
	vma_leave(self);
}

/*
 * The time is in the pollset: a cancelled thread leaves this function from within, and AddressSanitizer would believe
 * for ever that what the function has on the stack is in use.
 */
static int sleep_in_ppoll(struct pollset *pollset, struct pollfd *fds, unsigned n, uint64_t left)
{
	int rc;

	pollset->timeout =
	        (struct timespec){.tv_sec = (time_t)(left / 1000000000), .tv_nsec = (long)(left % 1000000000)};
	rc = vma_os.ppoll(fds, n, left == UINT64_MAX ? NULL : &pollset->timeout, NULL);
	pollset->interrupted = rc < 0 && errno == EINTR;
	return rc;
}

/*
 * The kernel refuses more than the process may have descriptors, and the caller's may be as many already. Asleep on
 * ours, and even without them, but not for long: the caller's are asked afterwards.
 */
static void sleep_on_own_fds_at_fd_limit(struct pollset *pollset, uint64_t left)
{
	const unsigned own = pollset->wait->nfds;

	pollset->crowded = true;
	if (left > LOST_NSEC)
		left = LOST_NSEC;
	if (sleep_in_ppoll(pollset, pollset->fds + own, pollset->n - own, left) < 0 && errno == EINVAL)
		sleep_in_ppoll(pollset, NULL, 0, left);
}

/* How long it may sleep. */
static uint64_t sleep_time_left(const struct pollset *pollset)
{
	const struct vma_wait *wait = pollset->wait;
	const uint64_t until = wait->deadline_ns < pollset->held_until_ns ? wait->deadline_ns : pollset->held_until_ns;
	uint64_t left = UINT64_MAX, now;

	if (until != UINT64_MAX) {
		now = vma_now_ns();
		left = until > now ? until - now : 0;
	}
	/* The process is out of descriptors: nobody can wake this thread, so it looks by itself. */
	return pollset->fds[wait->nfds].fd < 0 && left > LOST_NSEC ? LOST_NSEC : left;
}

/* Outside; a cancellation point. */
static void sleep_in_poll(struct pollset *pollset)
{
	const uint64_t left = sleep_time_left(pollset);

	pollset->crowded = false;
	if (sleep_in_ppoll(pollset, pollset->fds, pollset->n, left) < 0 && errno == EINVAL)
		sleep_on_own_fds_at_fd_limit(pollset, left);
	pollset->wait->slept = true;
}

/* A callback that runs on the way out may end the thread, as cancellation does in the sleep. */
static void leave_and_sleep(struct pollset *pollset)
{
	pthread_cleanup_push(sleep_on_thread_cancel, pollset);
	vma_leave(pollset->wait->self);
	sleep_in_poll(pollset);
	pthread_cleanup_pop(0);
	vma_enter();
}

/* Whether an OS descriptor of the caller's has ended the sleep. */
static bool sleep_collect_poll_results(struct pollset *pollset)
{
	struct vma_wait *wait = pollset->wait;
	uint64_t count;
	uint64_t rung = 0;
	bool os = pollset->crowded && wait->nfds != 0;

	for (unsigned i = 0; i < wait->nfds; i++) {
		wait->fds[i].revents = pollset->fds[i].revents;
		os |= pollset->fds[i].revents != 0;
	}
	for (unsigned i = wait->nfds + 1; i < pollset->n; i++)
		if (pollset->fds[i].revents != 0)
			rung |= 1ULL << pollset->bit_of[i - wait->nfds - 1];
	pollset->rung_twice = pollset->rung & rung;
	pollset->rung = rung;
	/* Without a report, too, if a handler has run: see vma_wait_wake_after_signal_handler. */
	if (pollset->fds[wait->nfds].revents != 0 || (wait->self->waiting == NULL && pollset->fds[wait->nfds].fd >= 0))
		syscall(SYS_read, pollset->fds[wait->nfds].fd, &count, sizeof(count));
	return os;
}

/* Counts the wake-up at the rings that this thread watches. Whether what has come to all of them is still to wait. */
static bool moderation_all_watched_rings_still_hold(const struct pollset *pollset)
{
	struct vma_thread *self = pollset->wait->self;
	bool watches = false, held = true;

	for (uint64_t left = atomic_load(&self->rings); left != 0; left &= left - 1) {
		struct vma_ring_ctx *ring_ctx = first_ring_ctx((unsigned)__builtin_ctzll(left));

		for (; ring_ctx != NULL; ring_ctx = next_ring_ctx(ring_ctx)) {
			if (atomic_load_explicit(&ring_ctx->watcher, memory_order_relaxed) != self)
				continue;
			watches = true;
			held &= moderation_update_hold_after_wakeup(ring_ctx,
			                                            (pollset->rung & vma_ring_ctx_bit(ring_ctx)) != 0);
		}
	}
	return watches && held;
}

/* One sleep, announced: 1, 0 look again, -errno. */
static int sleep_once(struct pollset *pollset)
{
	struct vma_wait *wait = pollset->wait;
	struct vma_thread *self = wait->self;
	uint32_t going = VMA_THREAD_GOING, signals;
	bool os;
	int rc;

	fill_pollset_and_arm_rings(pollset);
	if (pollset->poll_again)
		return 0;
	rc = wait->ops->ready(wait); /* what came before the announcement */
	if (rc != 0 || !atomic_compare_exchange_strong(&self->state, &going, VMA_THREAD_ASLEEP))
		return rc;
	self->sleeps++;
	signals = self->signals;
	leave_and_sleep(pollset);
	self->sleeps--;
	wake_latency_count(self);
	if (pollset->interrupted && self->signals == signals)
		signals_wrap_new_and_count_interrupt(self);
	/* It looks before it sleeps again: what it now delivers to itself, say, costs no system call. */
	atomic_exchange(&self->state, VMA_THREAD_GOING);
	os = sleep_collect_poll_results(pollset);
	pollset->held = moderation_all_watched_rings_still_hold(pollset) && !os && !pollset->interrupted;
	return os ? wait_poll_os(wait) : 0;
}

/*
 * In queues and counted, anew if a wake-up or a handler has ended that, or the rings are others.
 *
 * Argument (nobody sleeps for a ring that its socket has left): who moves a socket stores its new ring (A), then wakes
 * all that stand in its queue (B). This thread stands in the queue (C), then reads the rings (D). Sequentially
 * consistent steps separate A from B and C from D (waitq.c). So if D misses A, B finds the thread in the queue, takes
 * it out and wakes it. Its state was GOING before C, so the last step to sleep fails, or the sleep ends, and the rings
 * are read here again. If D finds others than those that the thread is counted for, it counts itself anew. Its state is
 * AWAKE for a moment then, in which a wake-up leaves no trace but the empty place in the queue. So it stands there once
 * more, and reads once more.
 */
static uint64_t wait_enter_queues_and_register_on_rings(struct vma_wait *wait)
{
	struct vma_thread *self = wait->self;
	uint64_t rings = wait->ops->rings(wait), counted, accept_rings;

	do {
		counted = rings;
		if (rings != atomic_load_explicit(&self->rings, memory_order_relaxed)) {
			sleeper_unregister_from_rings(self);
			sleeper_register_on_rings(self, rings);
		}
		/* GOING first: who takes this thread out of a queue from now on also ends its sleep. An exchange: what
		 * whoever did so before has changed is seen by the look to come. */
		atomic_exchange(&self->state, VMA_THREAD_GOING);
		self->waiting = wait;
		wait->ops->set_queued(wait, true);
		rings = wait->ops->rings(wait);
	} while (rings != counted);
	accept_rings = wait_accept_rings_of(wait) & rings;
	if (accept_rings != self->accept_rings) {
		accept_sleeper_unregister_from_rings(self);
		accept_sleeper_register_on_rings(self, accept_rings);
	}
	return rings;
}

int wait_sleep_until_woken(struct vma_wait *wait, uint32_t signals)
{
	struct vma_thread *self = wait->self;
	unsigned room = wait->nfds + 1 + VMA_THREAD_RING_CTXS;
	struct pollset pollset = {.wait = wait};
	uint64_t rings;
	int rc = 0;

	pollset.fds = pollset.stack;
	if (room > FDS_ON_STACK) {
		pollset.fds = vma_alloc(room * sizeof(*pollset.fds));
		if (pollset.fds == NULL)
			return -ENOMEM;
	}
	while (rc == 0) {
		thread_ensure_wake_fd(
		        self); /* each time: what could not be had for the last sleep may be there for this one */
		rings = wait_enter_queues_and_register_on_rings(wait);
		rc = sleep_once(&pollset);
		if (rc == 0 && rings != 0 && (!pollset.held || wait_deadline_has_passed(wait)))
			vma_ring_ctxs_progress(rings);
		if (rc == 0)
			rc = wait->ops->ready(wait);
		if (rc == 0)
			rc = wait_interrupted(wait, signals);
		if (rc == 0 && wait_deadline_has_passed(wait)) {
			rc = wait_poll_os(wait);
			break;
		}
	}
	free_pollset(&pollset);
	self->wakeup_unused = rc <= 0;
	vma_wait_clean_up_abandoned(self);
	atomic_exchange(&self->state, VMA_THREAD_AWAKE);
	wait->ops->set_queued(wait, false);
	return rc;
}
