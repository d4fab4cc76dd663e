/*
 * sock_cookies - the shadows of one flow: SO_COOKIEs of the kernel sockets that belong to its members.
 *
 * Over a long life a flow sees many members come and go, and no event tells that a shadow was closed. The number is
 * never given out again, so one too many does no harm, but they add up. So a set that has grown is pruned first.
 *
 * Threads: one at a time, the holder of the set.
 * Progress: add may list the kernel's sockets, if the set has grown.
 * Memory: the set's own; {0} is an empty one.
 * Example: test/test_cookies.c.
 */
#ifndef VMA_NIC_SOCK_COOKIES_H
#define VMA_NIC_SOCK_COOKIES_H

#include <stdbool.h>
#include <stdint.h>

#include <vma/nic.h>

#define NIC_COOKIES_MAX 4096 /* members of one flow */

struct nic_cookies {
	uint32_t n, capacity;
	uint64_t *list;
};

bool nic_cookies_has(const struct nic_cookies *set, uint64_t cookie);
/* 0 (also if it is there already, or is 0: no shadow), -ENOSPC, -ENOMEM. `key`: where the members receive. */
int nic_cookies_add(struct nic_cookies *set, const struct vma_flow_key *key, uint64_t cookie);
/* Drops those whose socket is closed; none if the kernel does not say. It is asked by *kept_fd, as in kernel_sock.h. */
void nic_cookies_prune(struct nic_cookies *set, const struct vma_flow_key *key, int *kept_fd);
void nic_cookies_fini(struct nic_cookies *set);

#endif
