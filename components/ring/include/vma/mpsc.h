/*
 * mpsc - what many leave for one: a ck_stack, pushed by any thread, taken whole by one at a time.
 *
 * A push is a compare-and-swap that fails only when another push succeeded, so a producer that is descheduled, or
 * interrupted by a signal handler that pushes too, stops nobody (ck_ring's multi-producer enqueue waits for the
 * producers before it). Taking everything by one exchange has no ABA, and turning the list around restores the order of
 * the pushes. Whether an empty list is looked at again in time is the business of who uses it.
 *
 * Threads: push any; takers one after the other, by a flag or lock of the user's.
 * Progress: push is lock-free, take wait-free but for the length of what it takes.
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
