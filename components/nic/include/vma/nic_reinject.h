/*
 * nic_reinject - the raw socket by which packets that have come here are given to the kernel.
 *
 *   IPv4 packet ── raw socket ──> route to an address of this host ── as if it came by the loopback interface ──> socket
 *
 * The kernel finds the route, and fills in length and checksum of the IP header, and an identification that is 0. All
 * else stays as it is: also a packet that was cut, or whose checksum is wrong, is the kernel's to judge. It does not
 * leave this host. A socket that is bound to an interface gets the packet if that interface has the address.
 *
 * The kernel does not look at the source of such a packet as it does at that of one from outside. So packets whose
 * source no other host can have are refused: 0.0.0.0, 127/8, from 224.0.0.0 on, and the destination itself. So are those
 * to groups and broadcast addresses, which would leave this host.
 *
 * Threads: any; several may use one socket. Packets that one thread sends come in its order.
 * Progress: no call waits. Memory: the caller's; nothing is copied here.
 * Example: test/test_reinject.c; stream/reinject.c.
 */
#ifndef VMA_NIC_REINJECT_H
#define VMA_NIC_REINJECT_H

#include <stdbool.h>
#include <stddef.h>

#include <vma/bufpool.h>

/* A descriptor, or -errno (-EPERM without CAP_NET_RAW); nobody is told of it, and the caller closes it. by_loopback: the
 * packets come by the loopback interface whatever interface has their destination. */
int vma_reinject_open(bool by_loopback);
/* An IPv4 packet from its header on. 0; -EINVAL it is none, or an address is refused; -errno of the call. */
int vma_reinject(int fd, const void *packet, size_t len);
/* A received frame, from its Ethernet header on, with one tag at most; also a fragment. Errors as above. */
int vma_reinject_frame(int fd, const struct vma_bufarena *arena, const struct vma_buf *frame);

#endif
