/*
 * mpsc - a ck_stack that many threads push and one takes as a whole.
 *
 * A push is a compare-and-swap that fails only if another push succeeded. So a producer that is descheduled, or
 * interrupted by a signal handler that pushes too, stops no other. (ck_ring's multi-producer enqueue waits for the
 * producers before it.) The taker takes everything by one exchange, so there is no ABA. Turning the list around
 * restores the order of the pushes. The user sees to it that an empty list is looked at again in time.
 *
 * Threads: any thread pushes. Takers take one after the other, by a flag or lock of the user's.
 * Progress: push is lock-free; take is wait-free but for the length of what it takes.
 * Memory: entries are the user's; one is in at most one list, from its push until it is taken.
 * Example: components/ring/command_queue.h.
 */
#ifndef VMA_MPSC_H
#define VMA_MPSC_H

#include <vma/ck_tsan.h> /* before ck's */

#include <ck_stack.h>
#include <stddef.h>

static inline void vma_mpsc_push(ck_stack_t *list, ck_stack_entry_t *entry)
{
	__tsan_release(entry); /* by entry: of a push that is not taken yet, its taker learns nothing */
	ck_stack_push_upmc(list, entry);
}

/* Oldest first, NULL-terminated; NULL: nothing. Links are read and written by ck_pr only. */
static inline ck_stack_entry_t *vma_mpsc_take_all(ck_stack_t *list)
{
	ck_stack_entry_t *newest = ck_stack_batch_pop_upmc(list), *oldest = NULL;

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
