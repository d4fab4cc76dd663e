/*
 * extra.h - what the Extra API adds to a socket (<mellanox/vma_extra.h>): pieces of the stream that the application
 * holds, and its receive callback.
 *
 *   tcp ── pieces (zcopy.c) ──┬─ recvfrom_zcopy ──────────────────────────────> held table ──> application
 *                             └─ inspector ── a thread of the program asks the callback:
 *                                  DROP: read   RECV: queued   HOLD ──> held table
 *
 * Threads: any, inside. stream_set_recv_callback takes stream_extra_api.lock. A thread of the program calls the
 * callback, outside, and only one at a time for each socket. stream_extra_destroy is called when no other thread can
 * see the socket.
 * Memory: made when it is first needed, ends with the socket.
 */
#ifndef VMA_STREAM_EXTRA_H
#define VMA_STREAM_EXTRA_H

#include <vma/inet_held.h>
#include <vma/sock_callback.h>

#include "stream_priv.h"

/* Immutable, replaced under stream_extra_api.lock and retired. */
struct stream_callback {
	struct vma_retired retired;
	struct vma_recv_callback now;
};

struct stream_extra_api {
	struct stream_sock *sock;
	struct vma_held_packets_owner
	        holder; /* what is held counts in the window of its connection, too, by that one's number */
	struct vma_callback_source source;
	struct stream_callback *_Atomic callback; /* NULL: none */
	pthread_mutex_t lock;                     /* who sets the callback, and with it the inspector */
};

/* In the child; nobody sees the socket any more. */
void stream_extra_reset_in_fork_child(struct stream_sock *sock);
void stream_extra_destroy(struct stream_sock *sock);
/* What a call of this thread waits for could only come when the callback that it is in has returned. */
bool stream_is_in_own_callback(const struct stream_sock *sock);

/* ops */
int stream_set_recv_callback(struct vma_file *file, const struct vma_recv_callback *callback);
ssize_t stream_recv_lent(struct vma_file *file, int fd, struct vma_recv_zcopy_call *lend, int flags);

#endif
