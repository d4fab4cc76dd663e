/*
 * route_type - what the kernel's routes say of an address: this host's, a broadcast address, another host's.
 *
 * Threads: one at a time for each descriptor. Progress: the kernel answers within the call; as the descriptor waits.
 * Memory: none.
 * Example: owner/entitled.c, reinject.c.
 */
#ifndef VMA_NIC_ROUTE_TYPE_H
#define VMA_NIC_ROUTE_TYPE_H

#include <stdint.h>

/* fd: a socket of NETLINK_ROUTE. RTN_LOCAL and the like; -ENETUNREACH: there is no route; -errno. */
int nic_route_type(int fd, const uint8_t address[4]);

#endif
