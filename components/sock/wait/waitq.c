/*
 * waitq - threads that sleep for something, and how they are woken.
 *
 * Argument (no wake-up is lost): the sleeper writes its slot and `used` (A), then looks at what it waits for (B). The
 * waker changes that (C), then reads `used` (D). Sequentially consistent steps separate A and D from B and C (the
 * exchange and the fence in add, the fence in wake). So it cannot be that B misses C and D misses A. The waker empties
 * the slot by compare-and-swap, so one wake-up is spent on one sleeper. A slot may hold a thread that has long gone on
 * (cancelled, jumped out of). Structures of threads are never freed, so that costs only a needless wake-up.
 */
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/probe.h>

#include "../thread/thread.h"

bool vma_thread_wake_once(struct vma_thread *thread)
{
	/* Only the first to find it asleep pays; it looks at everything when it gets up. */
	uint32_t before = atomic_exchange(&thread->state, VMA_THREAD_WOKEN);
	uint64_t one = 1;
	int fd;

	if (before == VMA_THREAD_AWAKE || before == VMA_THREAD_WOKEN)
		return false;
	if (before == VMA_THREAD_GOING) /* the last step to sleep is from this very state, and fails now */
		return true;
	if (vma_thread_cache != NULL)
		vma_thread_cache->woke = thread;
	VMA_PROBE1(wakeup, atomic_load_explicit(&thread->tid, memory_order_relaxed));
	fd = atomic_load(&thread->wake_fd);
	atomic_store_explicit(&thread->woken_tsc, vma_tsc(), memory_order_relaxed);
	if (fd >= 0)
		syscall(SYS_write, fd, &one, sizeof(one));
	return true;
}

void vma_thread_wake(struct vma_thread *thread)
{
	vma_thread_wake_once(thread);
}

static bool waitq_claim_slot(struct vma_waitq *q, struct vma_thread *self)
{
	for (unsigned i = 0; i < VMA_WAITQ_SLOTS; i++) {
		struct vma_thread *expected = NULL;

		if (atomic_load_explicit(&q->slot[i], memory_order_relaxed) == NULL &&
		    atomic_compare_exchange_strong(&q->slot[i], &expected, self))
			return true;
	}
	return false;
}

/* Twice is as good as once: a sleeper stays in the queue over needless wake-ups. */
void vma_waitq_add(struct vma_waitq *q, struct vma_thread *self)
{
	for (unsigned i = 0; i < VMA_WAITQ_SLOTS; i++)
		if (atomic_load(&q->slot[i]) == self)
			return;
	/* No place: a mark, not a count. Whoever takes it back wakes everybody who sleeps, for whatever, and those add
	 * themselves anew. */
	if (waitq_claim_slot(q, self) || atomic_exchange(&q->overflow, 1) == 0)
		atomic_fetch_add(&q->used, 1);
#ifndef VMA_TSAN /* which knows no fences; x86 needs none after what was exchanged */
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

static bool waitq_remove_thread_from_slot(struct vma_waitq *q, unsigned i, struct vma_thread *thread)
{
	if (thread == NULL || !atomic_compare_exchange_strong(&q->slot[i], &thread, NULL))
		return false;
	atomic_fetch_sub(&q->used, 1);
	return true;
}

/*
 * Not in its slot: somebody has spent a wake-up on this thread. If it leaves with nothing (a deadline, a signal,
 * cancellation), another may have use for it, and it is passed on; who is woken in vain sleeps on.
 */
bool vma_waitq_remove(struct vma_waitq *q, struct vma_thread *self)
{
	for (unsigned i = 0; i < VMA_WAITQ_SLOTS; i++)
		if (atomic_load_explicit(&q->slot[i], memory_order_relaxed) == self &&
		    waitq_remove_thread_from_slot(q, i, self))
			return true;
	if (self->wakeup_unused)
		vma_waitq_wake(q, false);
	return false;
}

static void waitq_wake_every_thread(void)
{
	unsigned count = vma_thread_table_size();

	for (unsigned i = 0; i < count; i++) {
		struct vma_thread *thread = vma_thread_at(i);

		if (thread != NULL)
			vma_thread_wake(thread);
	}
}

void vma_waitq_wake_slow(struct vma_waitq *q, bool all)
{
	for (unsigned i = 0; i < VMA_WAITQ_SLOTS; i++) {
		struct vma_thread *thread = atomic_load(&q->slot[i]);

		/* One that is awake already has been told of something else, and may not come by here. */
		if (waitq_remove_thread_from_slot(q, i, thread) && vma_thread_wake_once(thread) && !all)
			return;
	}
	if (atomic_exchange(&q->overflow, 0) != 0) {
		atomic_fetch_sub(&q->used, 1);
		waitq_wake_every_thread();
	}
}
