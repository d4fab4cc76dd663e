/* targets.h - the flows that a socket should have, as a list (targets.c), and the state of each (flows.c). */
#ifndef VMA_UDP_TARGETS_H
#define VMA_UDP_TARGETS_H

#include "udp_priv.h"

struct udp_target {
	struct vma_flow_key key;
	uint32_t device;  /* the interface that has the NIC */
	uint32_t ifindex; /* the one that packets come in by: device, or a VLAN on it */
	bool shared;      /* a group or a broadcast address: every member gets every packet */
	bool extra;       /* the socket counts as offloaded without it */
	bool alone;       /* VMA_FLOW_PORT_EXCLUSIVE */
	int error;        /* flows.c: 0 attached, else why not */
};

struct udp_targets {
	struct udp_target *at;
	uint32_t n, capacity;
	uint32_t send_device;        /* nothing can be received offloaded, but sending goes through this one; 0 */
	enum vma_sock_reason reason; /* when there is none */
};

/*
 * file.lock. Zeroes *out first; 0, or -ENOMEM. Asks net only: no device is opened.
 *
 *   bound to        unconnected                                   connected
 *   0.0.0.0         every local unicast address, groups joined,   (the kernel has chosen an address)
 *                   broadcast addresses
 *   an address      that address, where its interface is          (address, peer) on the route's interface
 *   a group         that group, where it is joined                (group, peer) where it is joined
 */
int udp_targets_compute_for_sock(const struct udp_sock *sock, struct vma_net *net, struct udp_targets *out);
void udp_targets_free(struct udp_targets *targets);

#endif
