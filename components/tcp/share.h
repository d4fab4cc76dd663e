/*
 * share - what connections with a small MSS may send together: SHARE_PER_MS frames in a millisecond.
 *
 * A frame costs the same whatever is in it, here and in the peer's receive path if the way is short. A peer with a
 * small MSS that takes all it can get would keep a core with frames of a few bytes, and the others of the ring would
 * have what is left of it. So all such connections of a stack have one allowance of frames.
 *
 *   allowance   grows by SHARE_PER_MS in each millisecond, to SHARE_AT_ONCE at most
 *   queue       connections that found nothing left, the longest wait first; while it is not empty, no other passes it
 *   grant       SHARE_GRANT frames of the allowance, which the first of the queue gets: it is ready then
 *
 * The head of what is unacknowledged is sent again without asking: one frame for an acknowledgement, or a timeout. So
 * is a message that is alone: its size is the application's.
 *
 * Threads: the driver.
 * Progress: a connection that waits is looked at by the stack's timer, whatever else happens.
 * Cost: nothing for an MSS of SHARE_MSS or more.
 * Example: test/test_share.c.
 */
#ifndef VMA_TCP_SHARE_H
#define VMA_TCP_SHARE_H

#include "tcp_priv.h"

#define SHARE_MSS 500 /* what the kernel's smallest path leaves, 552 bytes with time stamps, is not small */
#define SHARE_PER_MS 32
#define SHARE_AT_ONCE 64
#define SHARE_GRANT 8

static inline bool share_has_small_mss(const struct vma_tcp_conn *conn)
{
	return conn->mss < SHARE_MSS;
}

/* Of a connection with a small MSS: one more frame may leave now. False: it waits in the queue. */
bool share_take(struct vma_tcp_conn *conn);

#endif
