/*
 * inet_ring_option - the ring options of a socket: SO_VMA_RING_ALLOC_LOGIC and SO_VMA_RING_USER_MEMORY of
 * <mellanox/vma_extra.h>, which has the contract. 0 or -errno.
 *
 * Threads: any, inside (the application's pointers may be bad). set needs the file's lock.
 * Progress: no call waits.
 * Memory: the file's; a number for all profiles of the process.
 * Example: test/test_ring_option.c.
 */
#ifndef VMA_INET_RING_OPTION_H
#define VMA_INET_RING_OPTION_H

#include <stdbool.h>
#include <sys/socket.h>

struct vma_file;

bool vma_inet_is_ring_option(int level, int name);
/* has_rings: it receives or sends by a ring already. */
int vma_inet_set_ring_option(struct vma_file *file, int name, const void *value, socklen_t len, bool has_rings);
int vma_inet_get_ring_option(const struct vma_file *file, int name, void *value, socklen_t *len);
/* The key of a new profile, above 0; -ENOSPC: there are 65536. */
int vma_inet_ring_profile_add(void);

#endif
