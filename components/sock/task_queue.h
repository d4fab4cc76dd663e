/*
 * task_queue - what others have left for the internal thread: a ck_stack, pushed by many, taken whole by one.
 *
 * A push is a compare-and-swap that fails only when another push succeeded, so a producer that is descheduled, or
 * interrupted by one that pushes too, stops nobody. Taking everything by one exchange has no ABA; turning the list
 * around restores the order. ThreadSanitizer does not see ck's fences: ck's accesses are hidden from it, and each
 * hand-off is named, by entry.
 */
#ifndef VMA_SOCK_TASK_QUEUE_H
#define VMA_SOCK_TASK_QUEUE_H

#if defined(__SANITIZE_THREAD__)
#define TASK_QUEUE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TASK_QUEUE_TSAN 1
#endif
#endif
#ifdef TASK_QUEUE_TSAN
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

#include <vma/sock_engine.h>

_Static_assert(offsetof(struct vma_task, next) == offsetof(ck_stack_entry_t, next), "a task starts with its link");

static inline void task_queue_push_mpsc(ck_stack_t *stack, struct vma_task *task)
{
	__tsan_release(task);
	ck_stack_push_upmc(stack, (ck_stack_entry_t *)task);
}

/* Everything that was pushed, oldest first. */
static inline ck_stack_entry_t *task_queue_take_all(ck_stack_t *stack)
{
	ck_stack_entry_t *newest = ck_stack_batch_pop_upmc(stack), *oldest = NULL;

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
