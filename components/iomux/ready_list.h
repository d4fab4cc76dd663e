/*
 * ready_list.h - items of a set that have events: a ck_stack that many threads push and the collector takes.
 *
 * It is not a ck_ring, because a push must neither wait nor fail with any number of members. The collector takes
 * everything by one exchange, so there is no ABA. Turning the list around restores the order of the pushes.
 *
 * An item is in the list (or in the set's queue of taken items) exactly while its `queued` is true. The thread that
 * turns `queued` from false to true pushes. A producer makes the events visible (A), reads `queued` (B), and pushes if
 * it was false. The collector turns `queued` to false (C), then looks at the file (D). Between A and B there is a full
 * fence (vma_waitq_wake in vma_file_wake_sleepers_and_watchers), and C is an exchange. So one of two holds. Either B
 * sees the false of C or comes after it, and the item is pushed anew. Or B saw true from before C; then A comes before
 * D, and the collector sees the events.
 *
 * Threads: any thread that delivers pushes; the holder of the set's lock takes.
 */
#ifndef VMA_IOMUX_READY_LIST_H
#define VMA_IOMUX_READY_LIST_H

#include <stdatomic.h>
#include <stdbool.h>

#include <vma/ck_tsan.h> /* before ck's */

#include <ck_stack.h>

struct ready_list {
	ck_stack_t stack;
} __attribute__((aligned(64)));

static inline void ready_list_init(struct ready_list *list)
{
	ck_stack_init(&list->stack);
}

/* queued: of the item that the entry is in. Does nothing if it is in the list already. */
static inline void ready_list_push_mpsc(struct ready_list *list, ck_stack_entry_t *entry, _Atomic bool *queued)
{
	if (atomic_load_explicit(queued, memory_order_relaxed) || atomic_exchange(queued, true))
		return;
	__tsan_release(entry);
	ck_stack_push_upmc(&list->stack, entry);
}

static inline bool ready_list_is_empty(struct ready_list *list)
{
	return CK_STACK_ISEMPTY(&list->stack);
}

/* The latest push first; NULL: none. */
static inline ck_stack_entry_t *ready_list_take_all(struct ready_list *list)
{
	return ready_list_is_empty(list) ? NULL : ck_stack_batch_pop_upmc(&list->stack);
}

/* The entry that was pushed before this one. After it, this entry may be pushed again. */
static inline ck_stack_entry_t *ready_list_previously_pushed_entry(ck_stack_entry_t *entry)
{
	__tsan_acquire(entry);
	return ck_pr_load_ptr(&entry->next);
}

#endif
