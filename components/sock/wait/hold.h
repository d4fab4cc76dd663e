/*
 * hold - moderation by the sleeper: for how long packets do not wake a ring's watcher, where the device does not
 * moderate (vma_cq_get_sleeper_hold_times).
 *
 * Threads: the ring's watcher, inside, before and after each of its sleeps. Any thread may ask is_held (engine.h).
 * Progress: never waits. Memory: struct vma_ring_hold of the ring context.
 * Example: test/test_hold.c.
 */
#ifndef VMA_SOCK_WAIT_HOLD_H
#define VMA_SOCK_WAIT_HOLD_H

#include <vma/sock_engine.h>

/* How the watcher is to sleep on its ring. */
enum moderation_sleep {
	MODERATION_SLEEP_ARMED,    /* armed, on its descriptor: the next packet wakes it */
	MODERATION_SLEEP_BY_TIMER, /* not on the descriptor; no longer than until *until_ns */
	MODERATION_SLEEP_BY_COUNT, /* on the descriptor, which the next packet makes readable; no longer than until *until_ns */
	MODERATION_SLEEP_NOT_AT_ALL, /* not at all: enough packets are there */
};
enum moderation_sleep moderation_choose_how_to_sleep(struct vma_ring_ctx *ring_ctx, uint64_t *until_ns);
/* The watcher has slept; rung: the ring's descriptor was readable. True: its packets still are to wait. */
bool moderation_update_hold_after_wakeup(struct vma_ring_ctx *ring_ctx, bool rung);

#endif
