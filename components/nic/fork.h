/*
 * fork - a child after fork has nothing of its parent's nics. Every backend with descriptors or a device of its own
 * registers its cleanup here.
 *
 * A nic is registered before it has a descriptor. It opens and closes its descriptors with its lock held, and notes each
 * before it lets go. A fork takes the lock first, so its child closes all of them, or has none.
 *
 * Threads: any. Progress: registering waits for another registration, and for a fork. A fork waits for locks, but not
 * for ever: fork.c.
 * Memory: an entry is part of its nic, registered until the nic is freed.
 * Example: client/client.c.
 */
#ifndef VMA_NIC_FORK_H
#define VMA_NIC_FORK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct nic_fork_entry {
	struct nic_fork_entry *next;
	pthread_mutex_t *lock; /* held over a fork, so that the child finds whole lists */
	bool is_locked;        /* by a fork, as the next under the registry's lock */
	bool is_stuck;         /* a fork has waited for it in vain, and none has had it since */
	/* In the child: closes what it has inherited. Only calls that are safe there: no malloc, no log. */
	void (*give_up)(struct nic_fork_entry *forked);
};

const _Atomic uint32_t *
nic_get_fork_detection_page(void); /* a word that is 1 here and 0 in every child; NULL: no memory */
/* A lock of which its own thread learns that it has it: a signal handler may fork in the middle of a call. */
void nic_fork_lock_init(pthread_mutex_t *lock);
/* Without the entry's lock: a fork takes the registry's first. */
void nic_fork_register(struct nic_fork_entry *forked);
void nic_fork_unregister(struct nic_fork_entry *forked);

#endif
