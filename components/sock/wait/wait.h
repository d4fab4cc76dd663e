/*
 * wait - what the two halves of a wait share: wait.c looks and spins, sleep.c sleeps.
 *
 * Threads: a struct vma_wait belongs to the thread that waits. Functions that take a ring's bit may be called by any
 * thread, inside. busy_poller_disarm_rings_with_sleepers and busy_poller_end work for the calling thread.
 */
#ifndef VMA_SOCK_WAIT_WAIT_H
#define VMA_SOCK_WAIT_WAIT_H

#include <errno.h>

#include <vma/sock_engine.h>

#include "../thread/thread.h"

#define BUSY_NSEC 50000 /* how long to wait for one who drives before looking again */

static inline bool wait_deadline_has_passed(const struct vma_wait *wait)
{
	return wait->deadline_ns != UINT64_MAX && (wait->deadline_ns == 0 || vma_now_ns() >= wait->deadline_ns);
}

static inline int wait_poll_os(struct vma_wait *wait)
{
	int rc = wait->ops->poll_os == NULL ? 0 : wait->ops->poll_os(wait);

	wait->by_os |= rc > 0;
	return rc;
}

/* The rings whose listeners it waits for. */
static inline uint64_t wait_accept_rings_of(struct vma_wait *wait)
{
	return wait->ops->accept_rings != NULL ? wait->ops->accept_rings(wait) : 0;
}

/* -EINTR once a handler has run since the wait began. */
static inline int wait_interrupted(const struct vma_wait *wait, uint32_t signals)
{
	return wait->self->signals == signals ? 0 : -EINTR;
}

static inline struct vma_ring_ctx *first_ring_ctx(unsigned bit)
{
	return atomic_load_explicit(&vma_ring_ctxs[bit], memory_order_acquire);
}

static inline struct vma_ring_ctx *next_ring_ctx(const struct vma_ring_ctx *ring_ctx)
{
	return atomic_load_explicit(&ring_ctx->next, memory_order_acquire);
}

/* engine/ring_ctx.c: vma_ring_ctxs_progress, but for timers of stacks: see vma_ring_poll.
 * */
int ring_ctxs_poll_without_timers(uint64_t rings);
/* 1, 0 (the deadline), -errno; signals as they were when the wait began. */
int wait_sleep_until_woken(struct vma_wait *wait, uint32_t signals);
/* sleep.c: somebody else who sleeps for these rings, if there is one, gets up and claims the watch. */
void wake_next_sleeper_to_watch_ring(unsigned bit, const struct vma_thread *self);

bool ring_bit_has_sleepers(unsigned bit);

/*
 * busy_poller.c: whether the rings of this bit have a busy poller, which will look for a
 * watcher, and arm for it, when it leaves.
 */
bool busy_poller_exists_mark_ring_unarmed(unsigned bit);
bool busy_poller_exists(unsigned bit);
/* This thread, which spins, has driven these and got nothing for itself. */
void busy_poller_disarm_rings_with_sleepers(struct vma_thread *self, uint64_t rings);
/* It busy-polls these no more. may_drive: arming may run what others have left for the holder of the receive flag. */
void busy_poller_end(struct vma_thread *self, uint64_t rings, bool may_drive);
void busy_poller_reset_in_fork_child(void);

/* wake_latency.c: this thread is up again. Inside. */
void wake_latency_count(struct vma_thread *self);

/* A clean-up handler: the thread is cancelled, outside. */
void wait_clean_up_on_thread_cancel(void *wait);

#endif
