/*
 * nic_reinject - the raw socket by which packets that have come here are given to the kernel.
 *
 *   IPv4 packet ── raw socket ──> route to an address of this host ── as if it came by the loopback interface ──> socket
 *
 * The kernel finds the route, and fills in length and checksum of the IP header, and an identification that is 0. All
 * else stays as it is: also a packet that was cut, or whose checksum is wrong, is the kernel's to judge. It does not
 * leave this host. A socket that is bound to an interface gets the packet if that interface has the address.
 *
 * The kernel does not look at the addresses of such a packet as it does at those of one from outside (martians). So
 * packets whose source no other host can have are refused: 0.0.0.0, 127/8, from 224.0.0.0 on, and the destination
 * itself. So are those to groups. If the packet is a received frame, whose addresses the kernel has not checked, the
 * routes are asked as well. Its source may be no address and no broadcast address of this host. Its destination must be
 * an address of this host, or else the packet would leave it.
 *
 * Threads: any; several may use one socket, but each needs addrs of its own. Packets that one thread sends come in its
 * order.
 * Progress: no call waits. Memory: the caller's; nothing is copied here.
 * Example: test/test_reinject.c; stream/reinject.c.
 */
#ifndef VMA_NIC_REINJECT_H
#define VMA_NIC_REINJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <vma/bufpool.h>

/* A descriptor, or -errno (-EPERM without CAP_NET_RAW); nobody is told of it, and the caller closes it. by_loopback:
 * the packets come by the loopback interface whatever interface has their destination. */
int vma_reinject_open_raw_socket(bool by_loopback);
/* What the routes have said of addresses, at most a second ago. */
#define VMA_REINJECT_ADDRS 64
struct vma_reinject_addr {
	uint32_t address; /* in network order */
	int type;         /* RTN_...; -errno */
	uint64_t until_ns;
};
struct vma_reinject_addrs {
	int fd; /* a socket of NETLINK_ROUTE, of the network namespace at hand in init; the caller closes it */
	struct vma_reinject_addr at[VMA_REINJECT_ADDRS];
};
int vma_reinject_open_netlink_socket(struct vma_reinject_addrs *addrs); /* 0; -errno, and fd is -1 */
/* An IPv4 packet from its header on. 0; -EINVAL it is none; -EADDRNOTAVAIL an address is refused; -errno of the call.
 * */
int vma_reinject_ip_packet_to_kernel(int fd, const void *packet, size_t len);
/* A received frame, from its Ethernet header on, with one tag at most; also a fragment. Errors as above. */
int vma_reinject_frame_to_kernel(int fd, struct vma_reinject_addrs *addrs, const struct vma_bufarena *arena,
                                 const struct vma_buf *frame);

#endif
