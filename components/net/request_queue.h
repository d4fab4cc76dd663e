/*
 * request_queue.h - what the data path wants done for a path: a ck_stack that many threads push and one takes.
 *
 * `requested` of a path says what is wanted. A path is in the stack while its `requested` is not zero. The thread that
 * turns `requested` from zero pushes the path; other threads only add their bits. The taker unlinks a path first and
 * clears `requested` then, so the next push finds the entry free. The taker takes everything by one exchange, so there
 * is no ABA. Order does not matter.
 *
 * Threads: any thread pushes, also in a signal handler. One thread at a time takes, with net's lock.
 */
#ifndef VMA_NET_ASK_QUEUE_H
#define VMA_NET_ASK_QUEUE_H

#include <vma/ck_tsan.h>
#include <ck_stack.h>

#include <vma/net.h>

struct request_queue {
	ck_stack_t stack;
} __attribute__((aligned(64)));

/* True: pushed, so somebody is to be woken. */
static inline bool request_queue_push_mpsc(struct request_queue *queue, struct vma_net_path *path,
                                           ck_stack_entry_t *entry, uint32_t what)
{
	if ((atomic_load_explicit(&path->requested, memory_order_relaxed) & what) == what ||
	    atomic_fetch_or(&path->requested, what) != 0)
		return false;
	__tsan_release(queue);
	ck_stack_push_upmc(&queue->stack, entry);
	return true;
}

static inline ck_stack_entry_t *request_queue_take_all(struct request_queue *queue)
{
	ck_stack_entry_t *first = ck_stack_batch_pop_upmc(&queue->stack);

	__tsan_acquire(queue);
	return first;
}

/* The entry after this one; to be called before the path's `requested` is cleared. */
static inline ck_stack_entry_t *request_queue_next(const ck_stack_entry_t *entry)
{
	return ck_pr_load_ptr(&entry->next);
}

#endif
