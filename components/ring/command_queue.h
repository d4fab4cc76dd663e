/*
 * command_queue.h - what threads leave for the thread that drives: <vma/mpsc.h>, and a word that says "look once more".
 *
 * The number of entries is bounded: a ring has a fixed number (struct tx_slot), or they are the caller's own (struct
 * vma_ring_command).
 *
 * No command is left behind. A producer pushes, sets `pending` (A), and tries the flag (B). A holder clears the flag
 * (C) and looks at `pending` (D); if it is set, the holder tries the flag again. A, B, C and D are sequentially
 * consistent. If B fails, it saw a holder that has not done C yet. So B comes before C in the one order of all four,
 * and A before D. That holder finds `pending` set; so does one that takes the flag in between, because its C and D come
 * later still. A taker clears `pending` before it takes the list, with a full fence between. So a push that it misses
 * sets `pending` after the clearing.
 *
 * Threads: any thread pushes, also in a signal handler. The holder of the flag takes.
 */
#ifndef VMA_RING_COMMAND_QUEUE_H
#define VMA_RING_COMMAND_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>

#include <vma/mpsc.h>

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
static inline void command_queue_set_pending(struct command_queue *queue)
{
	atomic_store(&queue->pending, true);
}

static inline bool command_queue_pending(struct command_queue *queue)
{
	return __builtin_expect(atomic_load(&queue->pending), 0);
}

static inline void command_queue_push_mpsc(struct command_queue *queue, ck_stack_entry_t *entry)
{
	vma_mpsc_push(&queue->stack, entry);
	command_queue_set_pending(queue);
}

/* Everything that was pushed, oldest first, NULL-terminated; flag held. */
static inline ck_stack_entry_t *command_queue_take_all(struct command_queue *queue)
{
	atomic_store(&queue->pending, false);
	ck_pr_fence_memory(); /* not C11's: the race detector does not know that one */
	return vma_mpsc_take_all(&queue->stack);
}

#endif
