/*
 * xtreme.h - SocketXtreme on a socket: datagrams as completions of a poll (<vma/inet_xtreme.h>).
 *
 *   sink, train ──┬─ its thread polls, nothing is queued ──> completion
 *                 └─ else ──> queue, and the attachment's source on the list of its ring ── complete ──> completion
 *
 * The queue stays what it is: receive calls take from it as well.
 *
 * Threads: the sink's functions run in the thread that drives the ring, with its receive flag.
 * udp_xtreme_enable_on_sock is called before any other thread knows the socket, udp_xtreme_create_event_source with the
 * lock of flows.c. Any thread calls udp_xtreme_post_event, inside. udp_xtreme_complete_queued_datagrams and
 * udp_dequeue_next_datagram run in any thread, inside; the latter takes the lock of the socket's readers.
 */
#ifndef VMA_UDP_XTREME_H
#define VMA_UDP_XTREME_H

#include <vma/inet_xtreme.h>

#include "udp_priv.h"

/* A new socket, where the mode is on. 0, -ENOMEM. */
int udp_xtreme_enable_on_sock(struct udp_sock *sock);
/* A new attachment. 0, -ENOMEM. */
int udp_xtreme_create_event_source(const struct udp_sock *sock, struct udp_attachment *at);
/* The sink of a socket of which nothing else is asked: UDP_RX_OPT_XTREME is its only option. */
bool udp_xtreme_sink(struct udp_attachment *at, struct vma_buf *packet, const struct vma_rx_info *info);
/*
 * Datagrams in a row for the socket, whatever its options, by the sender that info has: how many were given, the first
 * ones; the others are the sink's.
 */
unsigned udp_xtreme_take_train(struct udp_attachment *at, struct vma_buf *const *packets, unsigned n,
                               const struct vma_rx_info *info);
/* For the sink, of a socket with UDP_RX_OPT_XTREME: given, queued, or (false) dropped and counted. */
bool udp_xtreme_deliver(struct udp_attachment *at, const struct udp_datagram *datagram);
/* ops */
bool udp_xtreme_complete_queued_datagrams(struct vma_file *file, struct vma_xtreme_poll *poll, uint32_t *events);

/* A datagram of the queue is there that no sink of this mode has told of: one that a callback has received. */
void udp_xtreme_post_event(const struct udp_attachment *at);

/* recv.c: the socket has lost it. */
void udp_count_dropped(const struct udp_sock *sock, uint64_t bytes) __attribute__((cold));
/* recv.c: the sink, of a socket that has options. */
bool udp_deliver_with_opts(struct udp_attachment *at, struct vma_buf *packet, const struct vma_rx_info *info,
                           uint32_t rx_opts) __attribute__((noinline));
/* recv.c: the sink, without a look at options. */
bool udp_queue_datagram_and_notify(struct udp_attachment *at, const struct udp_datagram *datagram);
/* recv.c: a datagram of the queues, for who does not receive it by recv. */
bool udp_dequeue_next_datagram(struct udp_sock *sock, const struct udp_attachments *all, struct udp_datagram *out);

#endif
