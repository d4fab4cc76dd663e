/* unread - what was queued when a socket became the kernel's. */
#ifndef VMA_UDP_UNREAD_H
#define VMA_UDP_UNREAD_H

#include "udp_priv.h"

/* file.lock, inside, with no flow attached: the kernel gets what is queued. */
void udp_unread_give(struct udp_sock *sock);

#endif
