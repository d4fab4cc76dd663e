/*
 * endpoint.h - flow keys of an interface and their members, the sockets of this process (endpoint.c).
 *
 *   ring ── key ──> members' flows ──┬─ unicast: the first one's sink asks the endpoint, which has chosen ─> one socket
 *                                    └─ group, broadcast: each member's own sink ──> every socket
 *
 * Members of a key are on one ring: two queue pairs that want the same key would have it taken from both. Equals with
 * SO_REUSEPORT are the exception: their rings may differ, and each has an endpoint of the key.
 *
 * Threads: all but the sinks hold the lock of flows.c (flows_lock), which is taken after a file's lock and before
 *          all locks of the engine. Sinks run inside, in the thread that drives the ring, and take no lock.
 */
#ifndef VMA_UDP_ENDPOINT_H
#define VMA_UDP_ENDPOINT_H

#include "targets.h"

struct udp_endpoint;
struct udp_flows;

/* A socket on a key. */
struct udp_member {
	struct vma_flow flow;
	struct udp_endpoint *endpoint;
	struct udp_attachment *at;
	struct udp_flows *flows;
	struct udp_member *next;             /* of the socket */
	struct udp_member *next_of_endpoint; /* in the order of their joining */
	uint32_t ifindex;
	bool guest;           /* has not joined this group itself: IP_MULTICAST_ALL */
	bool is_wanted;       /* for udp_flows_update */
	_Atomic bool revoked; /* the kernel has the key again */
	struct vma_retired retired;
};

/* Who gets what comes to a unicast key: one socket, or one of several by a hash of the addresses. Immutable. */
struct udp_choice {
	struct vma_retired retired;
	uint32_t n;
	struct udp_attachment *at[];
};

struct udp_endpoint {
	struct udp_endpoint *next; /* of the port's bucket */
	struct vma_flow_key key;
	uint32_t device;  /* ifindex */
	uint32_t ifindex; /* that packets come in by */
	bool shared;      /* a group or a broadcast address */
	uint32_t hosts;   /* members that are no guests */
	struct udp_member *members;
	struct vma_ring_ctx *ring_ctx; /* held */
	struct udp_choice *_Atomic choice;
	struct vma_retired retired;
};

/* What a socket has attached, and what others must know of it. Under the lock of flows.c. */
struct udp_flows {
	struct udp_sock *sock;
	struct udp_flows *next; /* of the port's bucket */
	uint16_t port_be;       /* that it is listed under; 0: not listed */
	uint32_t local;         /* bound to */
	uint32_t bound_ifindex;
	uint64_t order; /* of binding: the later wins */
	uint64_t cookie;
	bool reuse_port, is_ipv6;
	bool takes_all; /* may be the guest of groups that others have joined */
	struct udp_member *members;
	struct udp_attachment *attachments;
	bool moved; /* attachments are to be published */
	uint64_t
	        paused_ns; /* until then nothing is attached: udp_flows_leave_to_kernel_for_a_while; 0: it is not paused */
	struct vma_internal_task task; /* a flow was revoked */
	_Atomic bool task_scheduled;   /* and holds a reference */
};

/* Buckets by port. */
#define UDP_PORTS 1024
struct udp_port {
	struct udp_endpoint *endpoints;
	struct udp_flows *flows;
};
extern struct udp_port udp_ports[UDP_PORTS] __attribute__((visibility("hidden")));
#define UDP_PORTS_GROUP (UDP_PORTS / 64)
/* Groups of buckets that have been used since this process began, a bit each: the others are empty. */
extern uint64_t udp_ports_used __attribute__((visibility("hidden")));
static inline struct udp_port *udp_port(uint16_t port_be)
{
	return &udp_ports[(uint16_t)(port_be >> 8 | port_be << 8) % UDP_PORTS];
}
/* Before anything is put into it. */
static inline void udp_mark_port_group_used(const struct udp_port *port)
{
	udp_ports_used |= 1ULL << ((size_t)(port - udp_ports) / UDP_PORTS_GROUP);
}

/* The socket's member of this key; NULL: none. */
struct udp_member *udp_member_find(const struct udp_flows *flows, const struct udp_target *target);
/*
 * Attaches the socket: -ENOMEM, or why the ring refuses. A guest whose socket is known to the NIC's owner by another
 * flow need not be named there again.
 */
int udp_member_attach(struct udp_flows *flows, struct vma_device *device, const struct udp_target *target, bool guest);
void udp_member_detach(struct udp_member *member);
/*
 * Its key's only one, which is not revoked, goes on with this ring context (held by the caller) of the same device, and
 * with the queue `at`. What has come before is in the queue that it had. Errors of vma_ring_move_flow, and -ENOMEM: it
 * is as it was.
 */
int udp_member_move_flow_to_other_ring(struct udp_member *member, struct vma_ring_ctx *ring_ctx,
                                       struct udp_attachment *at);
/* Who gets a unicast key may have changed. False: no memory, so it is as it was. */
bool udp_endpoint_choose_receiving_sockets(struct udp_endpoint *endpoint);

/*
 * attachment.c: the socket's queue for what comes by this interface and ring context, made if need be; NULL: no memory.
 */
struct udp_attachment *udp_attachment_find_or_create(struct udp_flows *flows, struct vma_ring_ctx *ring_ctx,
                                                     uint32_t ifindex);
/* attachment.c: its last flow has moved to another ring. */
void udp_attachment_mark_left(struct udp_flows *flows, struct udp_attachment *at);
/* attachment.c: receivers and sleepers get to know what has changed; what is empty and has no flow ends, or, when the
 * socket has ended, whatever there is. */
void udp_attachments_publish(struct udp_flows *flows, bool ended);
/* flows.c: the lock of all sockets' flows. */
void udp_flows_lock(void);
void udp_flows_unlock(void);
/* flows.c: a flow has been taken away. Any thread; never waits. */
void udp_flows_schedule_update_task(struct udp_flows *flows);

#endif
