/*
 * drive.h - one drive flag: which thread drives this side of a ring, and which threads sleep until it is released.
 *
 * The word is the holder's thread id, 0 if no thread drives. The data path only ever tries. The control path (attach,
 * detach, rebind) acquires, and waits as VMA_THREAD_MODE says.
 *
 * No sleeper is forgotten. A sleeper counts itself (A), then futex-waits on the word while it still holds what was seen
 * (B). A releaser clears the word (C), then looks at the count (D). All four are sequentially consistent, FUTEX_WAIT's
 * own comparison included (the kernel makes it under the lock that FUTEX_WAKE takes). If D misses A, then C precedes A,
 * and B finds the word changed and does not sleep. If D sees A, the wake comes after C, and it wakes every thread that
 * slept before. (The same thread may hold again when B compares: then its next release wakes.)
 *
 * VMA_THREAD_SINGLE: the only concurrency is a signal handler on top of the one thread. The handler runs to its end
 * between two instructions, and releases what it takes. So a plain test and a plain store are enough.
 *
 * Threads: any. Only the holder releases, and writes `hold`.
 */
#ifndef VMA_RING_DRIVE_H
#define VMA_RING_DRIVE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <vma/ring.h>

struct drive {
	_Atomic uint32_t holder;
	_Atomic uint32_t hold; /* number of this hold: tells a long one from many; written by the holder */
	_Atomic uint32_t sleepers;
	_Atomic uint32_t yield_budget; /* tries that progress leaves to a control-path waiter, see drive_yields */
	enum vma_thread_mode mode;     /* constant */
} __attribute__((aligned(64)));

extern __thread uint32_t drive_tid_cache __attribute__((tls_model("initial-exec"), visibility("hidden")));
uint32_t drive_tid_slow(void) __attribute__((cold));

static inline uint32_t drive_tid(void)
{
	uint32_t tid = drive_tid_cache;

	return __builtin_expect(tid != 0, 1) ? tid : drive_tid_slow();
}

void drive_init(struct drive *drive, enum vma_thread_mode mode);
/* Control path. False: this thread holds the flag already (a sink), and must not release it. */
bool drive_acquire(struct drive *drive);
void drive_wake(struct drive *drive) __attribute__((cold));
/* Steps aside for a control-path waiter; true: do not try now. */
bool drive_yields(struct drive *drive) __attribute__((cold));
/* See vma_ring_idle. */
bool drive_idle(struct drive *drive, struct vma_ring_backoff *backoff, uint64_t timeout_ns);

static inline void drive_count_hold(struct drive *drive)
{
	uint32_t hold = atomic_load_explicit(&drive->hold, memory_order_relaxed);

	atomic_store_explicit(&drive->hold, hold + 1, memory_order_relaxed);
}

/*
 * A failed try is a sequentially consistent load: with a push to the command queue before it, and the release's store
 * and the look at the queue on the other side, it makes the store-load pair that command_queue.h argues with.
 */
static inline bool drive_try(struct drive *drive, uint32_t tid)
{
	uint32_t nobody = 0;

	if (drive->mode == VMA_THREAD_SINGLE) {
		if (atomic_load_explicit(&drive->holder, memory_order_relaxed) != 0)
			return false;
		atomic_store_explicit(&drive->holder, tid, memory_order_relaxed);
		atomic_signal_fence(memory_order_seq_cst);
		return true;
	}
	if (atomic_load(&drive->holder) != 0 || !atomic_compare_exchange_strong(&drive->holder, &nobody, tid))
		return false;
	drive_count_hold(drive);
	return true;
}

static inline void drive_release(struct drive *drive)
{
	if (drive->mode == VMA_THREAD_SINGLE) {
		atomic_signal_fence(memory_order_seq_cst);
		atomic_store_explicit(&drive->holder, 0, memory_order_relaxed);
		atomic_signal_fence(memory_order_seq_cst);
		return;
	}
	atomic_store(&drive->holder, 0);
	if (__builtin_expect(atomic_load(&drive->sleepers) != 0, 0))
		drive_wake(drive);
}

#endif
