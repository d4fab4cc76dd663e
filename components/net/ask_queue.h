/*
 * ask_queue.h - what the data path wants done for a path: a ck_stack that many threads push and one takes.
 *
 * `asked` of a path says what is wanted. A path is in the stack while its `asked` is not zero. The thread that turns
 * `asked` from zero pushes the path; other threads only add their bits. The taker unlinks a path first and clears
 * `asked` then, so the next push finds the entry free. The taker takes everything by one exchange, so there is no ABA.
 * Order does not matter.
 *
 * Threads: any thread pushes, also in a signal handler. One thread at a time takes, with net's lock.
 */
#ifndef VMA_NET_ASK_QUEUE_H
#define VMA_NET_ASK_QUEUE_H

#include <vma/ck_tsan.h>
#include <ck_stack.h>

#include <vma/net.h>

struct ask_queue {
	ck_stack_t stack;
} __attribute__((aligned(64)));

/* True: pushed, so somebody is to be woken. */
static inline bool ask_queue_push_mpsc(struct ask_queue *queue, struct vma_net_path *path, ck_stack_entry_t *entry,
                                       uint32_t what)
{
	if ((atomic_load_explicit(&path->asked, memory_order_relaxed) & what) == what ||
	    atomic_fetch_or(&path->asked, what) != 0)
		return false;
	__tsan_release(queue);
	ck_stack_push_upmc(&queue->stack, entry);
	return true;
}

static inline ck_stack_entry_t *ask_queue_take_all(struct ask_queue *queue)
{
	ck_stack_entry_t *first = ck_stack_batch_pop_upmc(&queue->stack);

	__tsan_acquire(queue);
	return first;
}

/* The entry after this one; to be called before the path's `asked` is cleared. */
static inline ck_stack_entry_t *ask_queue_next(const ck_stack_entry_t *entry)
{
	return ck_pr_load_ptr(&entry->next);
}

#endif
