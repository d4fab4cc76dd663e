/*
 * nic_state - what the vmad of an interface has at this moment: clients, queue pairs, flows, frames.
 *
 *   ask ── HELLO, as each client ──> vmad: may this process be a client?
 *       ── STATE place ───────────>  one answer for the interface, each client, each queue pair
 *
 * Each answer is true when it is given. Others may come and go between two answers.
 *
 * Threads: any.
 * Progress: waits for each answer three seconds at most. vmad waits for nothing.
 * Memory: the caller's.
 * Example: tools/vma_stats/vmad_state.c; test/test_vmad_proto.c.
 */
#ifndef VMA_NIC_STATE_H
#define VMA_NIC_STATE_H

#include <stdint.h>

#define VMA_VMAD_CLIENTS_MAX 128
#define VMA_VMAD_QUEUE_PAIRS_MAX 64

/* X(name, "text"): why vmad answers in the place of a process (owner/minisocks.c) */
#define VMA_VMAD_MINISOCKS(X)                                                                                          \
	X(deleted, "deleted")                                                                                          \
	X(waits, "waits")                                                                                              \
	X(parked, "parked")                                                                                            \
	X(reset, "reset")                                                                                              \
	X(fin_wait, "fin-wait")                                                                                        \
	X(time_wait, "time-wait")

struct vma_vmad_interface {
	uint32_t queues, mtu;
	uint32_t generic; /* 1: the kernel copies for a driver without XDP; known once flows were added */
	uint32_t queue_pairs, flows, claims; /* rented; flows of the program's map; ports that clients have claimed */
	uint32_t waiters, resets, parked;    /* flows that another client has; peers to reset; not accepted yet */
	uint32_t rx_frames, rx_ready, rx_spare; /* of all device queues; in the fill rings; vmad's own */
	uint32_t rx_missing;                    /* in none of these, and no client's */
	uint32_t tx_frames;
#define X(name, text) uint32_t minisocks_##name;
	VMA_VMAD_MINISOCKS(X)
#undef X
};

/* X(NAME, "text"): the states of a connection to vmad, in vmad's order */
#define VMA_VMAD_CLIENT_STATES(X)                                                                                      \
	X(NONE, "none")                                                                                                \
	X(NEW, "new")                                                                                                  \
	X(WAITING, "waiting")                                                                                          \
	X(READY, "ready")                                                                                              \
	X(ABSENT, "absent")                                                                                            \
	X(GHOST, "ghost")                                                                                              \
	X(CLOSING, "closing")

struct vma_vmad_client {
	int32_t pid;
	uint32_t uid, state;
	uint32_t raw;         /* 1: it has CAP_NET_RAW */
	uint64_t queue_pairs; /* a bit for each */
};

/* X(NAME, "text") */
#define VMA_VMAD_QUEUE_PAIR_STATES(X)                                                                                  \
	X(FREE, "free")                                                                                                \
	X(RENTED, "rented")                                                                                            \
	X(LEAVING, "leaving")                                                                                          \
	X(DRAINING, "draining")

struct vma_vmad_queue_pair {
	uint32_t number, state;
	uint32_t flows, claims, waiters;
	uint32_t rx_entries, rx_held, rx_quota; /* of its receive rings; frames that it has; that it may have */
	uint32_t tx_entries, tx_frames, tx_in_flight;
	uint32_t reserved;
};

struct vma_vmad_state {
	struct vma_vmad_interface interface;
	unsigned clients, queue_pairs;
	struct vma_vmad_client client[VMA_VMAD_CLIENTS_MAX];
	struct vma_vmad_queue_pair queue_pair[VMA_VMAD_QUEUE_PAIRS_MAX];
};

/*
 * 0. -ENODEV: no such interface; -ECONNREFUSED: no vmad runs for it; -EPERM: it does not take this user; -EOPNOTSUPP:
 * it is of an older version; -EPIPE: it has gone, or does not answer. The log has more of it.
 */
int vma_vmad_query_state(const char *interface, struct vma_vmad_state *out);

#endif
