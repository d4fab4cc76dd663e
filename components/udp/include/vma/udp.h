/*
 * udp - UDP behind a descriptor: flows for its address, its peer and its groups, queues, datagrams out.
 *
 *   ring's sink ──> queue of (socket, ring) ──> recv            shadow ──> recv, when the queues are empty
 *   send ──┬─ path ready, fits the MTU, no socket here wants a copy: own frame ──> ring
 *          └─ else: the shadow
 *
 * Threads: any. Readers of one socket take turns for the moment of taking a datagram. Senders share only the cached
 *          destination, which is immutable.
 * Progress: send and recv wait only as a blocking socket must. bind, connect and setsockopt ask the kernel and the
 * device.
 * Memory: from vma_alloc; datagrams lie in the rings' buffers until they are read, bounded by SO_RCVBUF.
 * Example: test/test_queue.c; tests/parity/.
 */
#ifndef VMA_UDP_H
#define VMA_UDP_H

#include <vma/sock.h>

/*
 * Puts a UDP object behind fd, which the kernel has just made with socket(domain, type, protocol). 0 also when that
 * socket is the OS's for good (the reason can be asked for); -ENOMEM.
 */
int vma_udp_socket(int fd, int domain, int type, int protocol);
/* Whether it is one for udp: AF_INET or AF_INET6, SOCK_DGRAM, UDP. */
bool vma_udp_takes_socket(int domain, int type, int protocol);

/*
 * The process ends: flows of sockets that a parent or a child may hold as well are given back before anybody can see
 * that it has ended, so that what comes after that is theirs. What is queued here goes with the process.
 */
void vma_udp_leave_forked_sockets_flows_at_exit(void);

/*
 * fork: a socket is parent's and child's, whoever receives first gets what has come. Its flows are the kernel's for a
 * second, and then of the one that uses it; what one of the two changes of it the other one follows.
 */
void vma_udp_fork_prepare(void); /* outside; before the engine's */
void vma_udp_fork_child(void);   /* after the engine's */

#endif
