/*
 * reinject - reinjection of datagrams that were queued when a socket became the kernel's, or when another process began
 * to receive from it, too.
 */
#ifndef VMA_UDP_REINJECT_H
#define VMA_UDP_REINJECT_H

#include "udp_priv.h"

/* file.lock, inside, with no flow attached: the kernel gets what is queued. */
void udp_reinject_queued_datagrams_to_kernel(struct udp_sock *sock);
/*
 * The same: another process that has the socket by fork receives, too, and is to have its share of what is queued. What
 * the kernel is not given stays here.
 */
void udp_move_queued_datagrams_to_fork_queue(struct udp_sock *sock);

#endif
