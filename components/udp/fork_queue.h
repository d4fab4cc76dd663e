/* fork_queue.h - datagrams that were queued here when the process forked (fork_queue.c). */
#ifndef VMA_UDP_FORK_QUEUE_H
#define VMA_UDP_FORK_QUEUE_H

#include "udp_priv.h"

struct udp_fork_queue;

/*
 * file.lock, before a fork, with no flow attached: what is queued is laid where parent and child both find it, but for
 * what `gone` says has gone elsewhere (NULL: nothing).
 */
void udp_fork_queue_create_from_received(struct udp_sock *sock,
                                         bool (*gone)(void *arg, const struct udp_datagram *datagram), void *arg);
/* file.lock. What has been read to its end is given back. */
void udp_fork_queue_free_emptied(struct udp_sock *sock);
/* Nobody sees the socket any more. */
void udp_fork_queue_destroy(struct udp_sock *sock);

bool udp_fork_queue_has_items(struct udp_fork_queue *fork_queue);
/*
 * The next one, which is nobody else's from now on; peek: it stays the next one. Its bytes, which the caller may read
 * as long as it is inside, or NULL: there is none. `out` has no packet.
 */
const uint8_t *udp_fork_queue_take(struct udp_sock *sock, bool peek, struct udp_datagram *out);

/* Inside; any thread. */
static inline bool udp_has_nonempty_fork_queue(const struct udp_sock *sock)
{
	struct udp_fork_queue *fork_queue = atomic_load_explicit(&sock->fork_queue, memory_order_acquire);

	return __builtin_expect(fork_queue != NULL, 0) && udp_fork_queue_has_items(fork_queue);
}

#endif
