/*
 * vfork_handoff - the vfork hand-off: files that a child which borrows this process's memory (vfork) passes on to its
 * next program.
 *
 * The child shares the memory, but its descriptors are its own, and only one thread of its parent stands still. Giving
 * a socket to the kernel opens and closes descriptors, changes epoll sets and asks vmad: all that belongs to the
 * parent's numbers. It also takes locks, which a child that is killed would keep. So the child only says what it wants,
 * and the parent's internal thread, which runs meanwhile, does it:
 *
 *   child             file->handoff (A) ── asked (B) ── the eventfd (C) ── naps until that is cleared
 *   internal thread                                      wakes ── takes B ── each file with A: ops->hand_over, clears A
 *
 * A, B and C come in this order, all sequentially consistent. The thread looks at B after it has read what C wrote, or
 * later for another reason. So if it takes B it sees A, and a child that comes to the naps is answered. A child that is
 * killed before leaves at most a flag, which the next hand-off answers, if there is one. A child that is killed later
 * leaves a reference.
 */
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#define TIMEOUT_NS 5000000000ULL
#define SLEEP_NS 50000

static _Atomic bool asked;

static void vfork_hand_over_file_if_asked(struct vma_file *file, void *arg)
{
	(void)arg;
	if (!atomic_load(&file->handoff))
		return;
	if (file->ops->hand_over != NULL)
		file->ops->hand_over(file);
	atomic_store(&file->handoff, false);
}

void vfork_handoffs_run(void)
{
	if (__builtin_expect(atomic_load(&asked), 0) && atomic_exchange(&asked, false))
		vma_file_each(vfork_hand_over_file_if_asked, NULL);
}

/* A file that has ended meanwhile, by another thread's close, is not among all any more. */
static bool vfork_handoff_is_pending(struct vma_file *file)
{
	return atomic_load(&file->handoff) && (atomic_load(&file->slots) & VMA_FILE_ENDED) == 0;
}

void vma_engine_hand_over_from_vfork_child(struct vma_file *file)
{
	const struct timespec nap = {.tv_nsec = SLEEP_NS};
	const int saved = errno;
	const uint64_t deadline_ns = vma_now_ns() + TIMEOUT_NS;

	atomic_store(&file->handoff, true);
	atomic_store(&asked, true);
	if (!internal_thread_wake_from_vfork_child())
		atomic_store(&file->handoff, false); /* a thread that starts later is not to do it */
	while (vfork_handoff_is_pending(file) && vma_now_ns() < deadline_ns)
		syscall(SYS_nanosleep, &nap, NULL);
	errno = saved;
}
