/*
 * command_queue.h - what threads leave for whoever drives: a ck_stack, pushed by many, taken whole by the holder.
 *
 * Not a ck_ring: its multi-producer enqueue waits for the producers before it, so a producer that is descheduled (or
 * interrupted by a signal handler that enqueues too) would stop all others. A push to a stack is a compare-and-swap
 * that fails only when another push succeeded. Taking everything by one exchange has no ABA, and turning the list
 * around restores the order of the pushes. The bound comes from the entries: a ring has a fixed number (struct
 * tx_slot), or they are the caller's own (struct vma_ring_command).
 *
 * Nothing is left behind. A producer: pushes, sets pending (A), tries the flag (B). A holder: clears the flag (C),
 * looks at pending (D), and if it is set tries the flag again. A, B, C, D are sequentially consistent. If B fails it
 * saw a holder that has not done C yet: B before C in the one order of all four, hence A before D, and that holder (or
 * one that takes the flag in between, whose own C and D come later still) finds pending set. A taker clears pending
 * before it takes the list, with a full fence between: a push that it misses sets pending after the clearing.
 */
#ifndef VMA_RING_COMMAND_QUEUE_H
#define VMA_RING_COMMAND_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>

#if defined(__SANITIZE_THREAD__)
#define COMMAND_QUEUE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define COMMAND_QUEUE_TSAN 1
#endif
#endif
#ifdef COMMAND_QUEUE_TSAN
/*
 * ThreadSanitizer does not see ck's fences. ck's own accesses are hidden from it (an attribute of a function that calls
 * ck's would not do: it does not carry over to what is called), and each hand-off is named.
 */
#include <ck_cc.h>
#undef CK_CC_INLINE
#define CK_CC_INLINE __attribute__((no_sanitize_thread, unused)) inline
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
#else
#define __tsan_acquire(addr) ((void)(addr))
#define __tsan_release(addr) ((void)(addr))
#endif
#include <ck_stack.h>

struct command_queue {
	_Atomic bool pending;
	ck_stack_t stack;
} __attribute__((aligned(64)));

static inline void command_queue_init(struct command_queue *queue)
{
	atomic_init(&queue->pending, false);
	ck_stack_init(&queue->stack);
}

/* Makes the next release look, also when nothing was pushed. */
static inline void command_queue_mark(struct command_queue *queue)
{
	atomic_store(&queue->pending, true);
}

static inline bool command_queue_pending(struct command_queue *queue)
{
	return __builtin_expect(atomic_load(&queue->pending), 0);
}

static inline void command_queue_push_mpsc(struct command_queue *queue, ck_stack_entry_t *entry)
{
	__tsan_release(entry); /* by entry: of a push that is not taken yet, its taker learns nothing */
	ck_stack_push_upmc(&queue->stack, entry);
	command_queue_mark(queue);
}

/* Everything that was pushed, oldest first, NULL-terminated; flag held. Links are read and written by ck_pr only. */
static inline ck_stack_entry_t *command_queue_take_all(struct command_queue *queue)
{
	ck_stack_entry_t *newest, *oldest = NULL;

	atomic_store(&queue->pending, false);
	ck_pr_fence_memory(); /* not C11's: the race detector does not know that one */
	newest = ck_stack_batch_pop_upmc(&queue->stack);
	while (newest != NULL) {
		ck_stack_entry_t *older = ck_pr_load_ptr(&newest->next);

		__tsan_acquire(newest);
		ck_pr_store_ptr(&newest->next, oldest);
		oldest = newest;
		newest = older;
	}
	return oldest;
}

#endif
