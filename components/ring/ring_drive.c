/* ring_drive.c - the slow half of the drive flags: waiting, and waking the waiters. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>

#include "ring_priv.h"

enum {
	PAUSES_PER_TRY = 4, /* about 150 ns where pause is slow, 20 ns where it is fast */
	PAUSE_TRIES = 32,
	SPIN_TRIES = 256,
	YIELD_TRIES = 8,
	YIELD_BUDGET_TRIES = 256,
	STRANGER_YIELD_EVERY = 64,
	UNBIAS_AFTER = 8,
};

__thread uint32_t drive_tid_cache __attribute__((tls_model("initial-exec")));
static __thread bool thread_is_internal_driver __attribute__((tls_model("initial-exec")));
static _Atomic bool any_drive_flag_is_biased; /* any flag has been */
static pthread_once_t drive_atfork_once = PTHREAD_ONCE_INIT;

static __attribute__((cold)) void reset_tid_cache(void)
{
	drive_tid_cache = 0; /* the child's thread has another one */
}

static void drive_register_atfork(void)
{
	pthread_atfork(NULL, NULL, reset_tid_cache);
}

uint32_t drive_tid_slow(void)
{
	drive_tid_cache = (uint32_t)syscall(SYS_gettid);
	return drive_tid_cache;
}

/* ---- the biased flag: see drive.h ---- */

void vma_ring_mark_thread_as_internal_driver(void)
{
	thread_is_internal_driver = true;
}

/* False: the kernel has none, or is not to be asked; ThreadSanitizer does not know it. */
static bool register_for_membarrier(void)
{
#ifdef VMA_TSAN
	return false;
#else
	return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
#endif
}

/*
 * Accepted: if a filter of the program forbids the call after it was registered, the thread cannot know whether the
 * owner drives, and leaves the flag to the owner.
 */
static bool membarrier_in_all_threads_of_process(void)
{
	const int saved_errno = errno;
	const bool made = syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;

	errno = saved_errno;
	if (!made)
		vma_log_once(VMA_LOG_ERROR, "membarrier fails after it was registered: with VMA_THREAD_MODE=0 only one "
		                            "thread drives from now on");
	return made;
}

void vma_ring_membarrier_if_any_biased(void)
{
	if (atomic_load_explicit(&any_drive_flag_is_biased, memory_order_acquire))
		membarrier_in_all_threads_of_process();
}

static bool drive_flag_is_biased_to_thread(const struct drive *drive, uint32_t tid)
{
	return atomic_load_explicit(&drive->owner, memory_order_relaxed) == tid;
}

static bool drive_flag_is_held_by_thread(const struct drive *drive, uint32_t tid)
{
	if (drive_flag_is_biased_to_thread(drive, tid))
		return atomic_load_explicit(&drive->owner_in, memory_order_relaxed) != 0;
	return (atomic_load_explicit(&drive->holder, memory_order_relaxed) & ~DRIVE_BIASED) == tid;
}

bool drive_try_biased_lock_when_contended(struct drive *drive, uint32_t tid)
{
	for (;;) {
		uint32_t holder;

		atomic_store(&drive->owner_in, 0);
		if (atomic_load(&drive->sleepers) != 0)
			drive_flag_wake_all_waiters(drive); /* some may have taken this for a hold */
		atomic_thread_fence(memory_order_seq_cst);
		holder = atomic_load(&drive->holder);
		if ((holder & DRIVE_BIASED) == 0) {
			atomic_store_explicit(&drive->owner, 0, memory_order_relaxed);
			return drive_flag_try_acquire_unbiased(drive, tid);
		}
		if (holder != DRIVE_BIASED)
			return false;
		atomic_store_explicit(&drive->owner_in, 1, memory_order_relaxed);
		atomic_signal_fence(memory_order_seq_cst);
		if (atomic_load_explicit(&drive->holder, memory_order_acquire) == DRIVE_BIASED)
			return true;
	}
}

/* With the flag, which this thread has just taken from its owner. */
static void drive_flag_unbias_after_many_strangers(struct drive *drive, uint32_t tid)
{
	const uint32_t strangers = atomic_load_explicit(&drive->strangers, memory_order_relaxed) + 1;

	if (thread_is_internal_driver)
		return;
	atomic_store_explicit(&drive->strangers, strangers, memory_order_relaxed);
	if (strangers >= UNBIAS_AFTER)
		atomic_store(&drive->holder, tid);
}

/* 7. */
static void drive_flag_release_to_biased_owner(struct drive *drive)
{
	atomic_store(&drive->holder, DRIVE_BIASED);
	if (atomic_load(&drive->sleepers) != 0)
		drive_flag_wake_all_waiters(drive);
}

bool drive_flag_try_take_from_biased_owner(struct drive *drive, uint32_t tid)
{
	for (;;) {
		uint32_t free = DRIVE_BIASED;

		if (!atomic_compare_exchange_strong(&drive->holder, &free, DRIVE_BIASED | tid))
			return free == 0 &&
			       drive_flag_try_acquire_unbiased(drive, tid); /* the bias has ended meanwhile */
		if (!membarrier_in_all_threads_of_process()) {
			drive_flag_release_to_biased_owner(drive);
			return false;
		}
		if (atomic_load_explicit(&drive->owner_in, memory_order_acquire) == 0) {
			drive_flag_count_acquisition(drive);
			drive_flag_unbias_after_many_strangers(drive, tid);
			return true;
		}
		drive_flag_release_to_biased_owner(drive);
		if (!membarrier_in_all_threads_of_process() || atomic_load(&drive->owner_in) != 0)
			return false;
	}
}

void drive_flag_init(struct drive *drive, enum vma_thread_mode mode)
{
	const bool biased = mode == VMA_THREAD_SINGLE && !thread_is_internal_driver && register_for_membarrier();

	pthread_once(&drive_atfork_once, drive_register_atfork);
	if (biased)
		atomic_store_explicit(&any_drive_flag_is_biased, true, memory_order_release);
	atomic_init(&drive->both, biased ? DRIVE_BIASED : 0);
	atomic_init(&drive->owner, biased ? drive_get_own_thread_id() : 0);
	atomic_init(&drive->strangers, 0);
	atomic_init(&drive->hold, 0);
	atomic_init(&drive->sleepers, 0);
	atomic_init(&drive->yield_budget, 0);
	drive->mode = mode;
}

static void cpu_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#else
	__asm__ __volatile__("yield" ::: "memory");
#endif
}

static void spin_few_cpu_pauses(void)
{
	for (int i = 0; i < PAUSES_PER_TRY; i++)
		cpu_pause();
}

/* Every sleeper wakes: some wait to drive, others only for the flag to change hands, and the word cannot tell. */
void drive_flag_wake_all_waiters(struct drive *drive)
{
	syscall(SYS_futex, &drive->holder, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	if (drive->mode == VMA_THREAD_SINGLE)
		syscall(SYS_futex, &drive->owner_in, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Until the flag changes or the time is over; the argument is in drive.h. errno is the application's: keep it. */
static void sleep_until_drive_flag_released(struct drive *drive, uint64_t timeout_ns)
{
	struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000),
	                           .tv_nsec = (long)(timeout_ns % 1000000000)};
	const struct timespec *until = timeout_ns == UINT64_MAX ? NULL : &timeout;
	int saved_errno = errno;
	uint32_t holder;

	atomic_fetch_add(&drive->sleepers, 1);
	if (drive->mode == VMA_THREAD_SINGLE)
		vma_ring_membarrier_if_any_biased();
	holder = atomic_load(&drive->holder);
	if ((holder & ~DRIVE_BIASED) != 0)
		syscall(SYS_futex, &drive->holder, FUTEX_WAIT_PRIVATE, holder, until, NULL, 0);
	else if (atomic_load(&drive->owner_in) != 0)
		syscall(SYS_futex, &drive->owner_in, FUTEX_WAIT_PRIVATE, 1, until, NULL, 0);
	atomic_fetch_sub(&drive->sleepers, 1);
	errno = saved_errno;
}

/*
 * Who spins gives up after more than any hold takes that runs: a holder that was descheduled may be waiting for this
 * very core, and got it back only when the scheduler took it from the spinner (4 ms per connect, with one core).
 */
static void drive_flag_wait_by_spin_or_sleep(struct drive *drive, unsigned *tries)
{
	const unsigned pauses = drive->mode == VMA_THREAD_SPIN ? SPIN_TRIES : PAUSE_TRIES;

	if (drive->mode != VMA_THREAD_MUTEX && ++*tries < pauses)
		spin_few_cpu_pauses();
	else if (drive->mode != VMA_THREAD_YIELD)
		sleep_until_drive_flag_released(drive, UINT64_MAX);
	else
		sched_yield();
}

bool drive_flag_acquire(struct drive *drive)
{
	uint32_t tid = drive_get_own_thread_id();
	unsigned tries = 0;

	if (drive_flag_is_held_by_thread(drive, tid))
		return false; /* only this thread can have stored its own id: no race */
	while (!drive_flag_try_acquire(drive, tid)) {
		atomic_store_explicit(&drive->yield_budget, YIELD_BUDGET_TRIES, memory_order_relaxed);
		drive_flag_wait_by_spin_or_sleep(drive, &tries);
	}
	atomic_store_explicit(&drive->yield_budget, 0, memory_order_relaxed);
	return true;
}

/*
 * A thread that polls without a break would win the flag against one that has to wake up first, for ever. So a waiter
 * asks for a number of tries, and progress leaves those to it. A number, not a reservation: if the waiter itself is
 * descheduled, the data path goes on after that many calls. Lost updates of the number only make it less exact.
 */
bool drive_flag_yield_to_waiters(struct drive *drive)
{
	uint32_t left = atomic_load_explicit(&drive->yield_budget, memory_order_relaxed);

	if (left == 0)
		return false;
	atomic_store_explicit(&drive->yield_budget, left - 1, memory_order_relaxed);
	sched_yield();
	return true;
}

/*
 * The backoff is per hold: if the flag has changed hands since the last look, things move, and a pause (now and then a
 * yield) is all it takes. One long hold means a holder that does not run: that costs those who wait a few microseconds
 * of pauses, then yields, then sleep, and the holder's release one wake.
 */
bool drive_flag_back_off_once(struct drive *drive, struct vma_ring_backoff *backoff, uint64_t timeout_ns)
{
	uint32_t hold = atomic_load_explicit(&drive->hold, memory_order_relaxed);
	bool held = drive_flag_is_held(drive);

	if (!held || hold != backoff->hold) {
		backoff->tries = hold != backoff->hold && held ? 1 : 0;
		backoff->hold = hold;
		if (hold % STRANGER_YIELD_EVERY == 0)
			sched_yield();
		else
			spin_few_cpu_pauses();
		return true;
	}
	backoff->tries++;
	if (backoff->tries <= PAUSE_TRIES) {
		spin_few_cpu_pauses();
	} else if (backoff->tries <= PAUSE_TRIES + YIELD_TRIES) {
		sched_yield();
	} else {
		sleep_until_drive_flag_released(drive, timeout_ns);
		return !drive_flag_is_held(drive) || atomic_load_explicit(&drive->hold, memory_order_relaxed) != hold;
	}
	return true;
}

static struct drive *drive_flag_of_side(struct vma_ring *ring, enum vma_ring_side side)
{
	return side == VMA_RING_RX ? &ring->rx : &ring->tx;
}

bool vma_ring_wait_for_holder(struct vma_ring *ring, enum vma_ring_side side, struct vma_ring_backoff *backoff,
                              uint64_t timeout_ns)
{
	return drive_flag_back_off_once(drive_flag_of_side(ring, side), backoff, timeout_ns);
}

/* The first step of `hold` may be that of the hold under way; so at the third a whole hold is over since the call. */
bool vma_ring_wait_for_rx_driver(struct vma_ring *ring, uint64_t timeout_ns)
{
	const uint32_t first = atomic_load_explicit(&ring->rx.hold, memory_order_acquire);
	struct vma_ring_backoff backoff = {0};

	while ((atomic_load_explicit(&ring->rx.both, memory_order_acquire) & ~(uint64_t)DRIVE_BIASED) != 0 &&
	       atomic_load_explicit(&ring->rx.hold, memory_order_acquire) - first < 3) {
		if (drive_flag_is_held_by_thread(&ring->rx, drive_get_own_thread_id()) ||
		    !drive_flag_back_off_once(&ring->rx, &backoff, timeout_ns))
			return false;
	}
	return true;
}

uint32_t vma_ring_drive_holder_tid(const struct vma_ring *ring, enum vma_ring_side side)
{
	const struct drive *drive = side == VMA_RING_RX ? &ring->rx : &ring->tx;
	const uint32_t holder = atomic_load_explicit(&drive->holder, memory_order_relaxed) & ~DRIVE_BIASED;

	if (holder != 0 || atomic_load_explicit(&drive->owner_in, memory_order_relaxed) == 0)
		return holder;
	return atomic_load_explicit(&drive->owner, memory_order_relaxed);
}

int vma_ring_arm(struct vma_ring *ring)
{
	uint32_t tid = drive_get_own_thread_id();
	int rc;

	if (!drive_flag_try_acquire(&ring->rx, tid))
		return -EBUSY;
	rc = vma_cq_arm(ring->cq);
	ring_rx_run_queued_work_and_unlock(ring, tid);
	return rc;
}

static uint64_t drive_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t ns_until(uint64_t deadline_ns)
{
	uint64_t now = deadline_ns == UINT64_MAX ? 0 : drive_clock_ns();

	return deadline_ns == UINT64_MAX ? UINT64_MAX : now < deadline_ns ? deadline_ns - now : 0;
}

/*
 * Arming needs the flag. While somebody else has it, whatever arrives is being looked at; it is when that hold ends, or
 * does not end, that a sleeper matters.
 */
int vma_ring_wait(struct vma_ring *ring, uint64_t timeout_ns)
{
	uint64_t start = timeout_ns == 0 || timeout_ns == UINT64_MAX ? 0 : drive_clock_ns();
	uint64_t deadline = timeout_ns >= UINT64_MAX - start ? UINT64_MAX : start + timeout_ns;
	struct vma_ring_backoff backoff = {0};
	int rc;

	if (timeout_ns == 0)
		deadline = 0;
	while ((rc = vma_ring_arm(ring)) == -EBUSY) {
		uint64_t left = ns_until(deadline);

		if (drive_flag_is_held_by_thread(&ring->rx, drive_get_own_thread_id()))
			return -EDEADLK; /* in a sink: this thread is the one to wait for */
		if (left == 0)
			return 0;
		drive_flag_back_off_once(&ring->rx, &backoff, left);
	}
	return rc != 0 ? rc : vma_cq_wait(ring->cq, ns_until(deadline));
}
