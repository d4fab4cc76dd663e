/*
 * small_mss_quota - the joint limit of connections with a small MSS: SMALL_MSS_PER_MS frames in a millisecond.
 *
 * A small frame costs as much as a large one, here and in the peer's receive path if the way is short. A peer with a
 * small MSS that takes all it can get would keep a core busy with frames of a few bytes. The other connections of the
 * ring would get the rest of it. So all such connections of a stack have one quota of frames.
 *
 *   quota       grows by SMALL_MSS_PER_MS in each millisecond, to SMALL_MSS_BURST at most
 *   queue       connections that found nothing left, the longest wait first; while it is not empty, no other passes it
 *   grant       SMALL_MSS_GRANT frames of the quota, which the first of the queue gets: it is ready then
 *
 * The first unacknowledged segment is sent again without asking: one frame for an acknowledgement, or a timeout. So is
 * a message that is alone: its size is the application's.
 *
 * Threads: the driver.
 * Progress: a connection that waits is looked at by the stack's timer in any case.
 * Cost: nothing for an MSS of SMALL_MSS_LIMIT or more.
 * Example: test/test_small_mss_quota.c.
 */
#ifndef VMA_TCP_SMALL_MSS_QUOTA_H
#define VMA_TCP_SMALL_MSS_QUOTA_H

#include "tcp_priv.h"

#define SMALL_MSS_LIMIT 500 /* what the kernel's smallest path leaves, 552 bytes with time stamps, is not small */
#define SMALL_MSS_PER_MS 32
#define SMALL_MSS_BURST 64
#define SMALL_MSS_GRANT 8

static inline bool conn_has_small_mss(const struct vma_tcp_conn *conn)
{
	return conn->mss < SMALL_MSS_LIMIT;
}

/* Of a connection with a small MSS: one more frame may leave now. False: it waits in the queue. */
bool small_mss_quota_take(struct vma_tcp_conn *conn);
void small_mss_quota_dequeue_conn(struct vma_tcp_conn *conn); /* of one that waits in the queue */

#endif
