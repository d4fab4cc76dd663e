/*
 * fdstore - vmad's descriptor store: a process that holds what keeps packets going while no vmad lives, which is vmad's
 * descriptors and nothing else.
 *
 *   vmad --PUT place + descriptor, DROP place--> store             in order, without answers
 *   vmad --END--> store                                            it closes everything and ends
 *   vmad dies                                                      the store waits for another one, `seconds` at most
 *   new vmad --connects--> store --PUT ... , LIST--> new vmad      every descriptor that it has, and which they were
 *
 * The store looks at nothing that it holds. The first vmad of an interface forks it. It has no capabilities and a
 * session of its own. It gives its descriptors only to processes of root's, one at a time. Before a vmad asks, it has
 * bound the interface's name (vmad_listen); so of several that start, one asks. Only a vmad that runs as root has a
 * store, because no capability tells a vmad from another process of its user.
 *
 * A pipe tells clients whether anything is left: vmad and the store have its writing end, the clients the reading one.
 * It is hung up when the last of both has gone.
 *
 * Threads: vmad's one.
 * Progress: no call waits for the store longer than FDSTORE_MS.
 * Memory: struct fdstore is the caller's.
 * Example: tests/e2e/vmad_restart.sh.
 */
#ifndef VMA_NIC_OWNER_FDSTORE_H
#define VMA_NIC_OWNER_FDSTORE_H

#include <stdbool.h>
#include <stdint.h>

#include "../xdp/xdp.h"

#define FDSTORE_MS 2000

/* Places of descriptors. */
#define KEEP_RECORD 0     /* record.h */
#define KEEP_ALIVE 1      /* the pipe's writing end */
#define KEEP_ALIVE_READ 2 /* and its reading one */
#define KEEP_UMEM 3
#define KEEP_SHARED 4
#define KEEP_LINK 5
#define KEEP_PROG 6 /* XDP_PROG_FDS of them */
#define KEEP_BASE 16
#define KEEP_PROCESS (KEEP_BASE + XDP_QUEUES_MAX) /* a slot's client: its pidfd */
#define KEEP_SOCKET (KEEP_PROCESS + XDP_SLOTS_MAX)
#define KEEP_PLACES (KEEP_SOCKET + XDP_SLOTS_MAX * XDP_QUEUES_MAX)
_Static_assert(KEEP_PROG + XDP_PROG_FDS <= KEEP_BASE, "places of their own");

static inline uint32_t fdstore_index_of_queue_socket(uint32_t slot, uint32_t queue)
{
	return KEEP_SOCKET + slot * XDP_QUEUES_MAX + queue;
}

struct fdstore {
	int fd; /* -1: there is none */
	unsigned ifindex;
};

/* What an fdstore has handed over; -1 where there is none. */
struct fdstore_fds {
	int fd[KEEP_PLACES];
};

/* A new one, which holds nothing yet. -EADDRINUSE: the addresses of the interface's fdstore are taken. */
int fdstore_start(struct fdstore *fdstore, unsigned ifindex, uint32_t seconds);
/* The one that an earlier vmad has left, and what it holds; the descriptors become the caller's. -ENOENT: none. */
int fdstore_connect_and_take_fds(struct fdstore *fdstore, unsigned ifindex, struct fdstore_fds *hand);
void fdstore_fds_close(struct fdstore_fds *hand); /* those that are left */
/* The fdstore closes everything and ends: waits for that. */
void fdstore_ask_to_exit(struct fdstore *fdstore);
/* What cannot be said ends the connection: fdstore_close_if_connection_lost then says so. */
void fdstore_keep_fd(struct fdstore *fdstore, uint32_t place, int fd);
void fdstore_forget_fd(struct fdstore *fdstore, uint32_t place);
bool fdstore_close_if_connection_lost(
        struct fdstore *fdstore); /* there was one, and it has ended; from now on there is none */

#endif
