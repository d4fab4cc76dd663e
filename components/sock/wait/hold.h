/*
 * hold - moderation by the sleeper: for how long packets do not wake a ring's watcher, where the device does not
 * moderate (vma_cq_hold_back).
 *
 * Threads: the ring's watcher, inside, before and after each of its sleeps. Any thread may ask is_held (engine.h).
 * Progress: never waits. Memory: struct vma_ring_hold of the ring context.
 * Example: test/test_hold.c.
 */
#ifndef VMA_SOCK_WAIT_HOLD_H
#define VMA_SOCK_WAIT_HOLD_H

#include <vma/sock_engine.h>

/* How the watcher is to sleep on its ring. */
enum hold_sleep {
	HOLD_NOT,   /* armed, on its descriptor: the next packet wakes it */
	HOLD_TIMER, /* not on the descriptor; no longer than until *until_ns */
	HOLD_COUNT, /* on the descriptor, which the next packet makes readable; no longer than until *until_ns */
	HOLD_OVER,  /* not at all: enough packets are there */
};
enum hold_sleep hold_before_sleep(struct vma_ring_ctx *ring_ctx, uint64_t *until_ns);
/* The watcher has slept; rung: the ring's descriptor was readable. True: its packets still are to wait. */
bool hold_after_sleep(struct vma_ring_ctx *ring_ctx, bool rung);

#endif
