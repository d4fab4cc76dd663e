/*
 * accept_queue.h - connections that wait to be accepted: a ck_stack, pushed by whoever drives a ring of the listener's,
 *                  taken whole by one of those who accept.
 *
 * A push is a compare-and-swap that fails only when another push succeeded. Taking everything by one exchange has no
 * ABA; turned around, the list has the order of the pushes. ThreadSanitizer does not see ck's fences: ck's accesses are
 * hidden from it, and each hand-off is named, by entry.
 */
#ifndef VMA_STREAM_ACCEPT_QUEUE_H
#define VMA_STREAM_ACCEPT_QUEUE_H

#if defined(__SANITIZE_THREAD__)
#define ACCEPT_QUEUE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ACCEPT_QUEUE_TSAN 1
#endif
#endif
#ifdef ACCEPT_QUEUE_TSAN
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
#include <stddef.h>

static inline void accept_queue_push_mpsc(ck_stack_t *stack, ck_stack_entry_t *entry)
{
	__tsan_release(entry);
	ck_stack_push_upmc(stack, entry);
}

/* Everything that was pushed, oldest first, linked by `next`; NULL: nothing. */
static inline ck_stack_entry_t *accept_queue_take_all(ck_stack_t *stack)
{
	ck_stack_entry_t *newest, *oldest = NULL;

	if (CK_STACK_ISEMPTY(stack))
		return NULL;
	newest = ck_stack_batch_pop_upmc(stack);
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
