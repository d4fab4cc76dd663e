/*
 * drive.h - one drive flag: which thread drives this side of a ring, and which threads sleep until it is released.
 *
 * `holder` is the holder's thread id, 0 if no thread drives. The data path only ever tries. The control path (attach,
 * detach, rebind) acquires, and waits as VMA_THREAD_MODE says.
 *
 * No sleeper is forgotten. A sleeper counts itself (A), then futex-waits on the word while it still holds what was seen
 * (B). A releaser clears the word (C), then looks at the count (D). All four are sequentially consistent, FUTEX_WAIT's
 * own comparison included (the kernel makes it under the lock that FUTEX_WAKE takes). If D misses A, then C precedes A,
 * and B finds the word changed and does not sleep. If D sees A, the wake comes after C, and it wakes every thread that
 * slept before. (The same thread may hold again when B compares: then its next release wakes.)
 *
 * The biased flag
 *
 * A flag of VMA_THREAD_SINGLE is *biased* to its *owner*, the thread that made the ring: the owner takes and releases
 * it without a locked instruction. Any other thread pays for both: it has the kernel make a barrier in all threads of
 * the process (membarrier, the *heavy barrier*). After a heavy barrier there is a point in the owner's program that
 * divides it. All that the owner did before the point is visible here. All that it does after the point sees the writes
 * made here before the barrier.
 *
 *   owner    owner_in = 1 (1); holder is BIASED? (2)    it is: the flag is its own
 *            release: owner_in = 0 (3)                  it is not: owner_in = 0, full barrier, look once more
 *   others   holder BIASED -> BIASED | id (4); heavy barrier; owner_in is 0? (5)
 *            release: holder = BIASED (6)               it is 1: holder = BIASED (7), heavy barrier, look once more (8)
 *
 * Never both. Two others exclude each other by the exchange (4). For the owner and another thread, look at the point of
 * the heavy barrier after 4. If 1 comes after it, 2 sees what 4 wrote. If 1 comes before it, 5 sees it, unless 3 has
 * followed before the point, or the owner has given up. The owner's writes before 3 are visible to the other thread
 * then. The other thread's writes before 6 are visible to the owner when 2 finds BIASED again: 6 releases and 2
 * acquires.
 *
 * No try fails for nothing, and command_queue.h and the sleepers rely on that. A comes before the failed try, and the
 * thread that made it fail comes to a D that sees A.
 *   - Another thread's try fails at 8, with the owner in. The owner's 3 comes after the point of the last heavy
 *     barrier, and so does its D. There is no barrier between its C (that is 3) and its D. A came before that barrier.
 *   - Another thread's try fails at 4, because a third thread has the word. If the third holds, its release is the old
 *     argument. Or it gives up at 7, and goes on to a heavy barrier and to 8 after it. Then it takes the flag, or the
 *     owner's D comes after that barrier.
 *   - The owner's try fails, after its full barrier, because another thread has the word. This is as before, since that
 *     thread's release, or its 7 and 8, come later. At 8 it does not find the owner in by the try that has failed. That
 *     owner_in was 0 again before the owner read the word that 7 has changed. It may find the owner in by a later try
 *     that fails, too. Then the owner has met a thread that came after 7, to which the same applies.
 *   - The owner finds itself in: it is a handler, or a sink. The interrupted drive goes on to its own D, in this
 *     thread.
 * A sleeper makes a heavy barrier between A and B, so the owner's D sees A, or B sees the owner's C.
 *
 * The owner's release in the drive that delivers (drive_flag_release_with_full_barrier) is a full barrier all the same.
 * The thread goes on to look for sleepers of sockets, whose side has none (engine/ring_ctx.c).
 *
 * The bias ends when threads of the program other than the owner have taken the flag UNBIAS_AFTER times. The last of
 * them takes BIASED out of the word while it holds the flag, and releases to 0. The owner finds at 2 that BIASED has
 * gone, gives up, and forgets that it is the owner. From then on the flag is an ordinary one. The library's own threads
 * do not count (vma_ring_mark_thread_as_internal_driver). If the kernel has no such barrier, and under ThreadSanitizer,
 * no flag is biased.
 *
 * The owner does not count its holds: a thread that idles beside it sleeps a little sooner.
 *
 * Threads: any. Only the holder releases, and writes `hold`. Only the owner writes `owner_in` and `owner`.
 */
#ifndef VMA_RING_DRIVE_H
#define VMA_RING_DRIVE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <vma/ring.h>

#define DRIVE_BIASED (UINT32_C(1) << 30) /* thread ids are below 2^22 */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "holder is the lower half of both");

struct drive {
	union {
		struct {
			_Atomic uint32_t holder;
			_Atomic uint32_t owner_in;
		};
		_Atomic uint64_t both; /* to look whether any thread holds */
	};
	_Atomic uint32_t owner; /* 0: the flag is not biased */
	_Atomic uint32_t hold;  /* number of this hold: tells a long one from many; written by the holder */
	_Atomic uint32_t sleepers;
	_Atomic uint32_t
	        yield_budget; /* tries that progress leaves to a control-path waiter, see drive_flag_yield_to_waiters */
	_Atomic uint32_t strangers; /* takes of a biased flag that count against the bias; written by the holder */
	enum vma_thread_mode mode;  /* constant */
} __attribute__((aligned(64)));

extern __thread uint32_t drive_tid_cache __attribute__((tls_model("initial-exec"), visibility("hidden")));
uint32_t drive_tid_slow(void) __attribute__((cold));

static inline uint32_t drive_get_own_thread_id(void)
{
	uint32_t tid = drive_tid_cache;

	return __builtin_expect(tid != 0, 1) ? tid : drive_tid_slow();
}

void drive_flag_init(struct drive *drive, enum vma_thread_mode mode);
/* Control path. False: this thread holds the flag already (a sink), and must not release it. */
bool drive_flag_acquire(struct drive *drive);
void drive_flag_wake_all_waiters(struct drive *drive) __attribute__((cold));
/* Steps aside for a control-path waiter; true: do not try now. */
bool drive_flag_yield_to_waiters(struct drive *drive) __attribute__((cold));
/* See vma_ring_wait_for_holder. */
bool drive_flag_back_off_once(struct drive *drive, struct vma_ring_backoff *backoff, uint64_t timeout_ns);
/* The rest of drive_flag_try_acquire: the owner has met another thread; another thread comes to a biased flag. */
bool drive_try_biased_lock_when_contended(struct drive *drive, uint32_t tid) __attribute__((cold));
bool drive_flag_try_take_from_biased_owner(struct drive *drive, uint32_t tid) __attribute__((cold));

static inline void drive_flag_count_acquisition(struct drive *drive)
{
	uint32_t hold = atomic_load_explicit(&drive->hold, memory_order_relaxed);

	atomic_store_explicit(&drive->hold, hold + 1, memory_order_relaxed);
}

/* Whether any thread holds, as seen without the flag. */
static inline bool drive_flag_is_held(const struct drive *drive)
{
	return (atomic_load_explicit(&drive->both, memory_order_relaxed) & ~(uint64_t)DRIVE_BIASED) != 0;
}

/*
 * A failed try is a sequentially consistent load: with a push to the command queue before it, and the release's store
 * and the look at the queue on the other side, it makes the store-load pair that command_queue.h argues with.
 */
static inline bool drive_flag_try_acquire_unbiased(struct drive *drive, uint32_t tid)
{
	uint32_t nobody = 0;

	if (atomic_load(&drive->holder) != 0 || !atomic_compare_exchange_strong(&drive->holder, &nobody, tid))
		return false;
	drive_flag_count_acquisition(drive);
	return true;
}

/* signal_fence: between 1 and 2 the processor may take the load first, which the heavy barrier reckons with. */
static inline bool drive_flag_try_acquire(struct drive *drive, uint32_t tid)
{
	if (atomic_load_explicit(&drive->owner, memory_order_relaxed) == tid) {
		if (atomic_load_explicit(&drive->owner_in, memory_order_relaxed) != 0)
			return false;
		atomic_store_explicit(&drive->owner_in, 1, memory_order_relaxed);
		atomic_signal_fence(memory_order_seq_cst);
		if (__builtin_expect(atomic_load_explicit(&drive->holder, memory_order_acquire) == DRIVE_BIASED, 1))
			return true;
		return drive_try_biased_lock_when_contended(drive, tid);
	}
	if (drive_flag_try_acquire_unbiased(drive, tid))
		return true;
	return __builtin_expect(drive->mode == VMA_THREAD_SINGLE, 0) &&
	       drive_flag_try_take_from_biased_owner(drive, tid);
}

static inline __attribute__((always_inline)) void drive_flag_release_with_optional_barrier(struct drive *drive,
                                                                                           uint32_t tid, bool fully)
{
	if (atomic_load_explicit(&drive->owner, memory_order_relaxed) == tid) {
		if (fully)
			atomic_store(&drive->owner_in, 0);
		else
			atomic_store_explicit(&drive->owner_in, 0, memory_order_release);
		atomic_signal_fence(memory_order_seq_cst);
	} else {
		atomic_fetch_and(&drive->holder, DRIVE_BIASED);
	}
	if (__builtin_expect(atomic_load(&drive->sleepers) != 0, 0))
		drive_flag_wake_all_waiters(drive);
}

static inline void drive_flag_release(struct drive *drive, uint32_t tid)
{
	drive_flag_release_with_optional_barrier(drive, tid, false);
}

/* Between what was done with the flag and what the caller does next stands a full barrier. */
static inline void drive_flag_release_with_full_barrier(struct drive *drive, uint32_t tid)
{
	drive_flag_release_with_optional_barrier(drive, tid, true);
}

#endif
