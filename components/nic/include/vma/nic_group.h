/*
 * nic_group - what a queue pair tells the owner of the device while it serves listeners that other processes serve too.
 *
 * A TCP listener that several processes have (by fork, or by SO_REUSEPORT) is a *group* of queue pairs at the device.
 * New connections go by a hash to the members whose processes ask for them. Each queue pair has one struct
 * vma_nic_accept_page, in memory that its owner has mapped. There the owner reads whether the process asks, and which
 * connections wait for its accept. A connection that has waited for 100 ms is given to another member in which none has
 * waited so long (adopt of struct vma_nic_qp_attr). If the process does not ask, or dies, it is given to any other
 * member that asks.
 *
 *   FREE ──client──> HALF_OPEN ──client: handshake done──> QUEUED ──client: accepted, ended──> FREE
 *                        └──────────────owner───────────────┴──> MOVED ──client: it has seen that──> FREE
 *
 * Each change is one compare-and-swap of `state`, so a connection is either accepted here or moved, never both. The
 * description of a connection is written before HALF_OPEN and does not change until FREE.
 *
 * If a client writes here what is not true, connections of its own service are moved or kept. The owner checks every
 * index and reads each field once.
 *
 * Threads: any thread of the client writes `accept_calls`, `sleeps`, `accepted`. Pending entries are made with the
 * receive flag
 *          of the ring.
 * Progress: no call waits.
 * Memory: vma_nic_qp.member, mapped until the queue pair is destroyed; NULL if a backend has no groups.
 * Example: nic/test/test_groups.c.
 */
#ifndef VMA_NIC_GROUP_H
#define VMA_NIC_GROUP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum vma_pending_state { VMA_PENDING_FREE, VMA_PENDING_HALF_OPEN, VMA_PENDING_QUEUED, VMA_PENDING_MOVED };

enum vma_pending_flags { VMA_PENDING_SACK = 1 << 0, VMA_PENDING_TIMESTAMPS = 1 << 1, VMA_PENDING_SCALE = 1 << 2 };

/* A connection that nobody has accepted: all that another process needs to make it. Numbers in host order. */
struct vma_pending {
	_Atomic uint32_t state;
	uint32_t irs, iss;    /* the SYN's sequence number, and that of the SYN-ACK */
	uint16_t mss, window; /* the peer's, as its SYN said them */
	uint64_t since_ns;    /* CLOCK_MONOTONIC, of the state */
	uint8_t local[4], peer[4];
	uint16_t local_port_be, peer_port_be, vlan;
	uint8_t scale, flags;
	uint32_t ts_val;     /* the peer's time stamp */
	uint32_t handshaken; /* of a connection to make: the handshake is complete */
	uint8_t mac[12];     /* as in the SYN-ACK: the peer's first */
	uint32_t number;     /* of a connection to make: of all that this queue pair was to make */
};
_Static_assert(sizeof(struct vma_pending) == 64, "a cache line, no padding");

#define VMA_PENDING_MAX 1023
struct vma_nic_accept_page {
	_Atomic uint32_t groups;       /* the owner's: listeners of this queue pair that others serve, too */
	uint32_t clock_ms;             /* the owner's: what its clients' clocks of TCP time stamps begin with */
	_Atomic uint64_t changed_ns;   /* the owner's: when a group of this queue pair gained or lost a member */
	_Atomic uint32_t accept_calls; /* counts: accept of a listener, and waits for one of them */
	_Atomic uint32_t sleeps;       /* a thread sleeps until a listener has something */
	_Atomic uint32_t accepted;     /* counts pending entries that were accepted */
	_Atomic uint32_t waiting;      /* pending entries: 0 says that there is nothing to look at */
	_Atomic uint32_t adopted;      /* `number` of the last connection that was made, or could not be */
	uint32_t isn_key[4]; /* the owner's, the same for all: of what shared listeners' SYN-ACKs begin with */
	uint8_t rest[12];
	struct vma_pending pending[VMA_PENDING_MAX];
};
_Static_assert(sizeof(struct vma_nic_accept_page) == 65536, "whole pages");

#endif
