/*
 * wait - one wait of one thread: look and drive for as long as that pays, then sleep.
 *
 *   look ──> spin: drive, look, ask the OS now and then ──> announce, arm, look ──> ppoll ──> look ...
 *
 * The watch. Of those who sleep for a ring one, its watcher, also sleeps on the ring's descriptor; all others are woken
 * by whoever delivers. A ring with sleepers is never left without a watcher:
 *   - a sleeper counts itself in rail->sleepers (A), then claims rail->watcher unless it is taken (B);
 *   - a watcher that leaves clears rail->watcher (C), then looks at rail->sleepers (D) and wakes one of them, who
 *     claims in its turn.
 * All four are sequentially consistent. If B finds it taken, B comes before C, so A comes before D, and D finds the
 * sleeper. Who is found has its state GOING or ASLEEP (set before A), and waking either makes it look once more.
 * A handler of the application may jump out of the sleep, so the thread gives everything up before one runs
 * (vma_wait_interrupted); a cancelled thread does so in its clean-up.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/sock.h>
#include <vma/sock_engine.h>
#include <vma/sock_os.h>

#include "spin.h"
#include "thread_priv.h"

#define BUSY_NSEC 50000 /* how long to wait for one who drives before looking again */
#define FDS_ON_STACK 16
#define LOOKS_INSIDE 8 /* then held signals get their chance */

uint64_t vma_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static bool is_over(const struct vma_wait *wait)
{
	return wait->deadline_ns != UINT64_MAX && (wait->deadline_ns == 0 || vma_now_ns() >= wait->deadline_ns);
}

static int ask(struct vma_wait *wait)
{
	return wait->ops->ask_os == NULL ? 0 : wait->ops->ask_os(wait);
}

/* -EINTR once a handler has run since the wait began. */
static int interrupted(struct vma_wait *wait, uint32_t signals, uint32_t interrupts)
{
	if (wait->self->signals == signals)
		return 0;
	wait->restart = wait->self->interrupts == interrupts;
	return -EINTR;
}

/* ---- the watch ---- */

/* Somebody else who sleeps for this ring, if there is one, gets up and claims the watch. */
static void hand_over(struct vma_rail *rail, const struct vma_thread *self)
{
	uint64_t bit = vma_rail_bit(rail);
	unsigned count = vma_thread_count();

	if (atomic_load(&rail->sleepers) == 0)
		return;
	for (unsigned i = 0; i < count; i++) {
		struct vma_thread *thread = vma_thread_at(i);

		if (thread == NULL || thread == self || (atomic_load(&thread->rings) & bit) == 0)
			continue;
		if (vma_thread_wake_told(thread))
			return;
	}
}

/* Rails that this sleep has counted itself in are known by number: one may end, and another take its bit, meanwhile. */
static bool is_counted(const struct vma_thread *self, const struct vma_rail *rail)
{
	for (unsigned i = 0; i < self->nslept; i++)
		if (self->slept[i] == rail->id)
			return true;
	return false;
}

static void lie_down(struct vma_thread *self, uint64_t rings)
{
	atomic_store(&self->rings, rings);
	atomic_store(&self->state, VMA_THREAD_GOING);
	self->nslept = 0;
	for (uint64_t left = rings; left != 0; left &= left - 1) {
		struct vma_rail *rail = atomic_load_explicit(&vma_rails[__builtin_ctzll(left)], memory_order_acquire);

		for (; rail != NULL; rail = atomic_load_explicit(&rail->next, memory_order_acquire)) {
			if (self->nslept == VMA_THREAD_RAILS)
				return;
			self->slept[self->nslept++] = rail->id;
			atomic_fetch_add(&rail->sleepers, 1);
		}
	}
}

static void get_up(struct vma_thread *self)
{
	uint64_t rings = atomic_exchange(&self->rings, 0);

	atomic_store(&self->state, VMA_THREAD_AWAKE);
	for (; rings != 0; rings &= rings - 1) {
		struct vma_rail *rail = atomic_load_explicit(&vma_rails[__builtin_ctzll(rings)], memory_order_acquire);

		for (; rail != NULL; rail = atomic_load_explicit(&rail->next, memory_order_acquire)) {
			struct vma_thread *expected = self;

			if (!is_counted(self, rail))
				continue;
			atomic_fetch_sub(&rail->sleepers, 1);
			if (atomic_compare_exchange_strong(&rail->watcher, &expected, NULL))
				hand_over(rail, self);
		}
	}
	self->nslept = 0;
}

/* In a handler's wrapper: the handler may not come back, so nothing may depend on this thread meanwhile. */
void vma_wait_interrupted(struct vma_thread *self)
{
	uint64_t one = 1;
	int fd = atomic_load(&self->wake_fd);

	if (atomic_load(&self->rings) == 0 && self->waiting == NULL)
		return;
	self->inside++; /* the section only: no handler is held back twice */
	ck_epoch_begin(&self->epoch, NULL);
	get_up(self);
	if (self->waiting != NULL)
		self->waiting->ops->announce(self->waiting, false);
	ck_epoch_end(&self->epoch, NULL);
	self->inside--;
	/* It may not sleep yet, and the handler would have come too early to end the sleep. */
	if (fd >= 0)
		syscall(SYS_write, fd, &one, sizeof(one));
}

void vma_wait_tidy(struct vma_thread *self)
{
	if (atomic_load(&self->rings) != 0)
		get_up(self);
	self->waiting = NULL;
}

/* ---- asleep ---- */

static bool have_wake_fd(struct vma_thread *self)
{
	int fd, guarded;

	if (atomic_load_explicit(&self->wake_fd, memory_order_relaxed) >= 0)
		return true;
	fd = (int)syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (fd < 0)
		return false;
	guarded = vma_fd_guard(fd);
	atomic_store(&self->wake_fd, guarded >= 0 ? guarded : fd);
	return true;
}

/* What one ppoll sleeps on: the caller's descriptors, the thread's own, and those of the watched rings. */
struct bed {
	struct vma_wait *wait;
	struct pollfd *fds, stack[FDS_ON_STACK];
	unsigned n;
	bool look_again; /* something may have come while arming */
};

/* Claims the watch of a rail, if it is to be had, and arms it. */
static void watch(struct bed *bed, struct vma_rail *rail, struct vma_thread *self)
{
	struct vma_ring_patience patience = {0};
	struct vma_thread *watcher = NULL;
	int rc;

	if (!atomic_compare_exchange_strong(&rail->watcher, &watcher, self) && watcher != self)
		return;
	rc = vma_ring_arm(rail->ring);
	if (rc == -EBUSY)
		vma_ring_idle(rail->ring, VMA_RING_RX, &patience, BUSY_NSEC);
	if (rc != 0) {
		bed->look_again = true;
		return;
	}
	bed->fds[bed->n++] = (struct pollfd){.fd = vma_ring_fd(rail->ring), .events = POLLIN};
}

static void make_bed(struct bed *bed)
{
	struct vma_wait *wait = bed->wait;
	struct vma_thread *self = wait->self;

	bed->n = wait->nfds;
	bed->look_again = false;
	memcpy(bed->fds, wait->fds, wait->nfds * sizeof(*wait->fds));
	bed->fds[bed->n++] = (struct pollfd){.fd = atomic_load(&self->wake_fd), .events = POLLIN};
	for (uint64_t left = atomic_load(&self->rings); left != 0; left &= left - 1) {
		struct vma_rail *rail = atomic_load_explicit(&vma_rails[__builtin_ctzll(left)], memory_order_acquire);

		for (; rail != NULL; rail = atomic_load_explicit(&rail->next, memory_order_acquire))
			if (is_counted(self, rail))
				watch(bed, rail, self);
	}
}

static void cancelled(void *arg)
{
	struct vma_wait *wait = arg;
	struct vma_thread *self = vma_enter();

	get_up(self);
	wait->ops->announce(wait, false);
	self->waiting = NULL;
	if (wait->ops->abandon != NULL)
		wait->ops->abandon(wait);
	vma_leave(self);
}

/* Outside; a cancellation point. The caller's revents are copied back. */
static void sleep_in(struct bed *bed)
{
	struct vma_wait *wait = bed->wait;
	struct timespec left = {0};
	uint64_t now = wait->deadline_ns == UINT64_MAX ? 0 : vma_now_ns();

	if (wait->deadline_ns > now) {
		left.tv_sec = (time_t)((wait->deadline_ns - now) / 1000000000);
		left.tv_nsec = (long)((wait->deadline_ns - now) % 1000000000);
	}
	pthread_cleanup_push(cancelled, wait);
	vma_os.ppoll(bed->fds, bed->n, wait->deadline_ns == UINT64_MAX ? NULL : &left, NULL);
	pthread_cleanup_pop(0);
	wait->slept = true;
}

/* What ended the sleep: 1 an OS descriptor of the caller's is ready, else 0. */
static bool wake_up(struct bed *bed)
{
	struct vma_wait *wait = bed->wait;
	uint64_t count;
	bool os = false;

	for (unsigned i = 0; i < wait->nfds; i++) {
		wait->fds[i].revents = bed->fds[i].revents;
		os |= bed->fds[i].revents != 0;
	}
	if (bed->fds[wait->nfds].revents != 0)
		syscall(SYS_read, bed->fds[wait->nfds].fd, &count, sizeof(count));
	return os;
}

/* One sleep, announced: 1, 0 look again, -errno. */
static int sleep_once(struct bed *bed)
{
	struct vma_wait *wait = bed->wait;
	struct vma_thread *self = wait->self;
	uint32_t going = VMA_THREAD_GOING;
	bool os;
	int rc;

	make_bed(bed);
	if (bed->look_again)
		return 0;
	rc = wait->ops->ready(wait); /* what came before the announcement */
	if (rc != 0 || !atomic_compare_exchange_strong(&self->state, &going, VMA_THREAD_ASLEEP))
		return rc;
	for (unsigned i = 0; i < bed->n; i++)
		bed->fds[i].revents = 0;
	vma_leave(self);
	sleep_in(bed);
	vma_enter();
	os = wake_up(bed);
	return os ? ask(wait) : 0;
}

static int sleep_until_ready(struct vma_wait *wait, uint32_t signals, uint32_t interrupts)
{
	struct vma_thread *self = wait->self;
	struct bed bed = {.wait = wait};
	unsigned room = wait->nfds + 1 + VMA_THREAD_RAILS;
	uint64_t rings;
	int rc = 0;

	bed.fds = room <= FDS_ON_STACK ? bed.stack : vma_alloc(room * sizeof(*bed.fds));
	if (bed.fds == NULL || !have_wake_fd(self)) {
		if (bed.fds != bed.stack)
			vma_free(bed.fds);
		return -ENOMEM;
	}
	self->waiting = wait;
	while (rc == 0) {
		/* GOING first: who takes this thread out of a queue from now on also ends its sleep. */
		rings = wait->ops->rings(wait);
		lie_down(self, rings);
		wait->ops->announce(wait, true);
		rc = sleep_once(&bed);
		get_up(self);
		wait->ops->announce(wait, false);
		if (rc == 0 && rings != 0)
			vma_rails_progress(rings);
		if (rc == 0)
			rc = wait->ops->ready(wait);
		if (rc == 0)
			rc = interrupted(wait, signals, interrupts);
		if (rc == 0 && is_over(wait)) {
			rc = ask(wait);
			break;
		}
	}
	self->waiting = NULL;
	if (bed.fds != bed.stack)
		vma_free(bed.fds);
	return rc;
}

/* ---- awake ---- */

struct looks {
	int64_t done;
	uint32_t os;
};

/* One look: 1, 0, -errno. */
static int look(struct vma_wait *wait, struct looks *looks)
{
	uint64_t rings = wait->ops->rings(wait);
	int rc;

	if (rings != 0 && vma_rails_progress(rings) < 0)
		spin_pause();
	rc = wait->ops->ready(wait);
	looks->done++;
	if (rc == 0 && wait->os_ratio != 0 && ++looks->os >= wait->os_ratio) {
		looks->os = 0;
		rc = ask(wait);
	}
	return rc;
}

static int spin(struct vma_wait *wait, uint32_t signals, uint32_t interrupts)
{
	struct spin_state state;
	struct looks looks = {0};
	int rc = 0;

	if (wait->spin_loops == 0 || wait->spin_nsec == 0 || wait->ops->rings(wait) == 0)
		return 0;
	spin_begin(&state, wait);
	do {
		rc = look(wait, &looks);
		if (rc != 0 || looks.done % LOOKS_INSIDE != 0)
			continue;
		vma_leave(wait->self);
		if (wait->yield || state.crowded)
			sched_yield();
		vma_enter();
		rc = interrupted(wait, signals, interrupts);
		if (rc == 0 && is_over(wait))
			break;
	} while (rc == 0 && (wait->spin_loops < 0 || looks.done < wait->spin_loops) && !spin_is_over(&state));
	spin_end(&state);
	return rc;
}

int vma_wait(struct vma_wait *wait)
{
	uint32_t signals = wait->self->signals, interrupts = wait->self->interrupts;
	uint64_t begun;
	int rc;

	wait->restart = wait->slept = false;
	vma_wait_tidy(wait->self);
	rc = wait->ops->ready(wait);
	if (rc != 0)
		return rc;
	if (is_over(wait))
		return ask(wait);
	begun = vma_tsc();
	rc = spin(wait, signals, interrupts);
	if (rc == 0)
		rc = is_over(wait) ? ask(wait) : sleep_until_ready(wait, signals, interrupts);
	spin_learn(wait, vma_tsc() - begun);
	return rc;
}
