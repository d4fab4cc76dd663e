/*
 * groups.h - the groups that a socket has joined (multicast.c), and those of all sockets on this host (members.c).
 *
 * A socket's memberships are one immutable object, replaced under file.lock and retired; sinks read it without a lock.
 */
#ifndef VMA_UDP_GROUPS_H
#define VMA_UDP_GROUPS_H

#include "udp_priv.h"

struct udp_membership {
	uint32_t group; /* network order */
	uint32_t ifindex;
	bool exclude; /* all sources but those listed; else those only */
	uint32_t n;
	const uint32_t *source; /* network order; in the same memory */
};
struct udp_groups {
	struct vma_retired retired;
	bool all; /* IP_MULTICAST_ALL: also what is sent to groups that others on this host have joined */
	uint32_t n;
	struct udp_membership at[];
};

/*
 * file.lock. After a call that may have changed the membership in `group`: asks the kernel, on every interface, what it
 * is now. -ENOMEM: the mirror stays as it was.
 */
int udp_reload_multicast_group_from_kernel(struct udp_sock *sock, int fd, uint32_t group);
/* file.lock. IP_MULTICAST_ALL. */
int udp_set_ip_multicast_all(struct udp_sock *sock, bool all);
/* The socket ends. */
void udp_drop_all_multicast_groups(struct udp_sock *sock);

/* members.c: a socket of this process has joined the group on the interface. Known at once; leaving shows within a
 * tenth of a second. */
void udp_mcast_members_add_own_join(uint32_t group, uint32_t ifindex);

#endif
