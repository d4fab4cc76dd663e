/*
 * connecting - connections to vmad that are being made, or not yet where the nic's list of descriptors has them. A child
 * that is forked meanwhile closes them. Otherwise vmad would not learn of the parent's end before the child's.
 *
 * Threads: any, with `lock` held, which a fork takes (../fork.h); close_in_child in the child.
 * Progress: no call waits.
 * Memory: a list through the clients, which stay their maker's.
 * Example: client.c.
 */
#ifndef VMA_NIC_CLIENT_CONNECTING_H
#define VMA_NIC_CLIENT_CONNECTING_H

#include <pthread.h>

struct vmad_client;

struct vmad_connecting {
	pthread_mutex_t *lock;
	struct vmad_client *first;
};

/* The client has its place, or is closed before the lock is let go. */
void vmad_connecting_remove(struct vmad_connecting *connecting, struct vmad_client *client);
void vmad_connecting_close_in_child(const struct vmad_connecting *connecting);

#endif
