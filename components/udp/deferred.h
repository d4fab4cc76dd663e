/*
 * deferred.h - deferred sockets: the first few datagrams of a socket tell the likely life of the next one (deferred.c).
 *
 * Offloading a socket costs about as much as the kernel's whole socket. It pays from the second answer on, but a
 * resolver opens a socket for each question. So the process counts its sockets in a row that were closed after two
 * datagrams at most, on a port of the kernel's choice. After SHORT_LIVES of these, the next ones are *deferred*: they
 * begin as the kernel's. The third send or the fifth receive makes such a socket what any socket is otherwise, and
 * starts the count anew. The datagrams that have come by then are in the shadow, which is looked at first.
 *
 *            connect, or send without a port                   3rd send, 5th receive, bind
 *   new ────────────────────────────────────────> deferred ──────────────────────────────────> offloaded
 *                 after many short lives                  unless a thread is in the kernel's recv
 *
 * A thread that waits in the kernel's recv hears nothing of a ring, so the socket stays deferred meanwhile. The
 * receiver is counted (A), then looks whether the socket is deferred (B). The thread that ends it makes it not so (C),
 * then looks at the count (D). All are sequentially consistent. Either D sees the receiver, and the socket is deferred
 * again; or B sees C, and the receiver waits at the rings. If both are so, the receiver waits at the shadow, as at any
 * socket without flows, and is woken when there are some. A handler that jumps out of the kernel's recv leaves the
 * count behind: such a socket stays the kernel's.
 *
 * Under the latency profile, and with VMA_SOCKETXTREME, no socket is deferred.
 *
 * Threads: any; functions that say file.lock need it.
 */
#ifndef VMA_UDP_DEFERRED_H
#define VMA_UDP_DEFERRED_H

#include "udp_priv.h"

enum { UDP_FEW_SENDS = 3, UDP_FEW_RECEIVES = 4, UDP_SHORT_LIVED_SOCKETS_MIN = 16 };

static inline bool udp_offload_is_deferred(const struct udp_sock *sock)
{
	return atomic_load_explicit(&sock->deferred, memory_order_relaxed);
}

/* file.lock. The socket has no port yet: from now on it is deferred, or not. */
bool udp_deferred_begin_after_short_lived_socks(struct udp_sock *sock);
/* file.lock. It is not any more: names and flows are taken. False: somebody is in the kernel's recv. */
bool udp_deferred_end_unless_in_kernel_call(struct udp_sock *sock, int fd);

/* One of the first sends. True: it is the OS's. Takes file.lock. */
bool udp_deferred_count_send_and_may_offload(struct udp_sock *sock, int fd);
/* Before and after the kernel's recv. False: the socket is not deferred (any more), and nothing is counted. */
bool udp_deferred_begin_recv_or_offload(struct udp_sock *sock, int fd);
void udp_deferred_end_kernel_recv(struct udp_sock *sock);

/* Closed. */
void udp_deferred_count_socket_at_close(const struct udp_sock *sock);

#endif
