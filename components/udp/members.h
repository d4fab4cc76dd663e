/* members.h - the host's memberships, taken apart for tests (members.c). */
#ifndef VMA_UDP_MEMBERS_H
#define VMA_UDP_MEMBERS_H

#include <stdbool.h>
#include <stdint.h>

/* What a file like /proc/net/igmp says, read to its end; NULL: no memory, or it cannot be read. Free with vma_free. */
struct members;
struct members *udp_mcast_members_read_proc_igmp(int fd);
bool udp_mcast_members_set_has(const struct members *set, uint32_t group, uint32_t ifindex);
/* In a forked child, its only thread. */
void udp_mcast_members_reset_in_child(void);

#endif
