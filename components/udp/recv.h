/* recv.h - taking a datagram from a socket's queues (recv.c), for the call that must wait (recv_wait.c). */
#ifndef VMA_UDP_RECV_H
#define VMA_UDP_RECV_H

#include "udp_priv.h"

static inline bool udp_has_datagram(const struct udp_attachments *all)
{
	for (uint32_t i = 0; all != NULL && i < all->n; i++) {
		if (!udp_queue_is_empty(&all->at[i]->queue))
			return true;
	}
	return false;
}

/* Takes a datagram, and gives it to the application; -ENODATA: there is none. What a fork has left comes first. */
ssize_t udp_receive_queued(struct udp_sock *sock, struct msghdr *msg, int flags);
/* Nothing is queued, as a look after driving the rings has shown: the shadow, and waiting. */
ssize_t udp_recv_when_queue_is_empty(struct udp_sock *sock, int fd, struct msghdr *msg, int flags);
/* A call that is not plain, or something is to be looked at first. */
ssize_t udp_recv_slow_path(struct udp_sock *sock, int fd, struct msghdr *msg, int flags);

/* Takes all that is queued; `each` sees it before its buffers are put back. Other readers wait meanwhile. */
void udp_drain_queues_calling_each(struct udp_sock *sock, const struct udp_attachments *all,
                                   void (*each)(void *arg, const struct udp_datagram *datagram), void *arg)
        __attribute__((cold));

#endif
