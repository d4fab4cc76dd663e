/*
 * extra.h - a socket's part of the Extra API (<mellanox/vma_extra.h>): packets that the application holds, and its
 * receive callback.
 *
 *   sink ──┬─ no callback was ever set ──> queue
 *          └─ else ──> undecided queue of the attachment ── callback.c, in a thread of the program:
 *                        DROP: put   RECV ──> queue   HOLD ──> the application
 *
 * The sink remains the one producer of the undecided queue. The queue itself then has one producer, too: the thread
 * that runs the source, one at a time. Between the two is set_callback. It first makes sinks see the callback
 * (rx_opts). Then it waits for each ring's receive flag once, so that no sink that has not seen it is still pushing.
 * This is for good: a socket that had a callback keeps the detour when it has none any more.
 *
 * Threads: any, inside, for the calls in `ops`; udp_set_recv_callback takes file.lock, then the lock of flows.c. The
 * functions for an attachment's undecided queue need the lock of flows.c. The sink calls
 * udp_queue_datagram_for_callback, with its ring's receive flag. A thread of the program calls udp_run_recv_callbacks,
 * outside, and only one at a time for each socket.
 * Memory: made when it is first needed, ends with the socket.
 */
#ifndef VMA_UDP_EXTRA_H
#define VMA_UDP_EXTRA_H

#include <vma/inet_held.h>
#include <vma/sock_callback.h>

#include "udp_priv.h"

/* Immutable, replaced under file.lock and retired. */
struct udp_callback {
	struct vma_retired retired;
	struct vma_recv_callback now;
};

struct udp_extra_api_state {
	struct udp_sock *sock;
	struct vma_held_packets_owner holder;
	struct vma_callback_source source;
	struct udp_callback *_Atomic callback; /* NULL: none */
	_Atomic bool detour;                   /* one was set */
};

/* A datagram of 64 KB has 119 where a fragment has 576 bytes. */
enum { UDP_FRAGMENTS_MAX = 128 };

/* NULL: no memory. Any thread. */
struct udp_extra_api_state *udp_extra_api_state_get_or_create(struct udp_sock *sock);
/* In the child; nobody sees the socket any more. */
void udp_extra_api_state_reset_in_child(struct udp_sock *sock);
void udp_extra_api_state_free(struct udp_sock *sock);

/* ops */
int udp_set_recv_callback(struct vma_file *file, const struct vma_recv_callback *callback);
ssize_t udp_recv_zero_copy(struct vma_file *file, int fd, struct vma_recv_zcopy_call *lend, int flags);
ssize_t udp_copy_tx_headers_to_peer(struct vma_file *file, void *to, size_t size);
int udp_ring_ctxs(struct vma_file *file, struct vma_ring_ctx **out, unsigned max);
int udp_tx_ring_ctx(struct vma_file *file, const struct sockaddr_in *to, struct vma_ring_ctx **out);
int udp_getsockname(struct vma_file *file, int fd, struct sockaddr *addr, socklen_t *len);

/* send.c: an empty dummy message to the peer that it is connected to. */
void udp_warm_up_send_path_if_connected(struct udp_sock *sock, int fd);

/* callback.c: makes the attachment's undecided queue; the second: if the socket needs it. 0, -ENOMEM. */
int udp_attachment_make_undecided_queue(struct udp_attachment *at);
int udp_redirect_new_attachment_to_callback(const struct udp_sock *sock, struct udp_attachment *at);
/* For the sink: the packet waits for its verdict. False: the queue is full. */
bool udp_queue_datagram_for_callback(struct udp_attachment *at, const struct udp_datagram *datagram);
bool udp_run_recv_callbacks(struct vma_callback_source *source);

/* The pieces of a datagram's payload: how many; 0: more than there is room for. */
unsigned udp_fragments_of(const struct udp_datagram *datagram, struct vma_fragment *fragments);
/* What a datagram counts for, queued or held. */
static inline uint32_t udp_datagram_rcvbuf_charge(const struct udp_datagram *datagram)
{
	return datagram->len > UDP_BYTES_AT_LEAST ? datagram->len : UDP_BYTES_AT_LEAST;
}

#endif
