/*
 * ring_priv.h - the body of a ring, for this folder only.
 *
 *   flag   guards                                                       written by others at any time
 *   rx     poll, refill, arm; flow tables; cursor; receive counters     rx_queue (posted commands)
 *   tx     NIC transmit, reap; backlog, unkicked; transmit counters     tx_queue, slots_free, refused, too_long, bad
 *
 * Threads: a thread that needs both flags (rebind, destroy) takes rx first. The data path holds rx while it *tries* tx,
 * and never the other way round, so it cannot turn the order into a deadlock. The comments in struct vma_ring say which
 * flag each field needs. Functions below need the receive flag, unless they say something else.
 */
#ifndef VMA_RING_PRIV_H
#define VMA_RING_PRIV_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include <vma/ring.h>

#include "command_queue.h"
#include "drive.h"
#include "flow_table.h"
#include "packet_check.h"
#include "ring_fragments.h"

enum {
	RX_BURST = 32,
	RX_BEFORE_RUN = 256, /* packets, and a burst: a quarter of what waits at most, half of what may be held */
	RUNS_MAX = 16,  /* of a protocol that wants to have more read in between: at 64 frames, a millisecond or two */
	LATER_MAX = 8,  /* frames that may wait for a kick */
	TX_SLOTS = 256, /* of the command queue; a multiple of 64 */
	TX_SLOT_SEGS = 7, /* a longer packet takes several slots */
	TX_BURST = 32,    /* segments handed from the command queue to the NIC at a time; a packet has no more */
};

/* One packet, or a part of one, on its way through the command queue. */
struct tx_slot {
	ck_stack_entry_t entry; /* first: a slot's queue link */
	struct tx_slot *more;   /* the same packet goes on there */
	uint32_t segs_count;
	uint16_t number;      /* its bit in slots_free */
	uint16_t frames_sent; /* of a packet that is cut here: tx_cut.h */
	struct vma_nic_seg segs[TX_SLOT_SEGS];
};

/* Rules of the NIC that nobody needs any more, see ring_leave.c. */
struct ring_stale_rule {
	struct vma_flow flow; /* first */
	TAILQ_ENTRY(ring_stale_rule) link;
	uint64_t left_ns; /* when its flow left; 0: this NIC's rules need not stay */
};
#define LEAVE_BURST 16
struct ring_stale_rules {
	/* In the order in which they left; one for each entry `reserved`. */
	TAILQ_HEAD(, ring_stale_rule) waiting, spare;
	struct vma_flow_key deleting[LEAVE_BURST]; /* the NIC is being asked to delete these */
	unsigned deleting_count;
	pthread_mutex_t nic_lock; /* taken without the receive flag, or only tried; held while the NIC is asked */
};

/* Blocks of local ports, see ring_ports.c: a bit for each of the 256 of an address. */
#define RING_PORT_ADDRESSES 8
struct ring_port_blocks {
	uint8_t local[4];
	uint16_t vlan;
	_Atomic uint64_t mine[4]; /* set with the mutex, cleared by anybody, read by who drives */
	uint64_t refused[4];      /* not asked for again before the next second */
	uint64_t refused_sec;
};
struct ring_ports {
	pthread_mutex_t nic_lock; /* without the receive flag */
	_Atomic uint32_t addresses;
	_Atomic uint32_t blocks;
	_Atomic bool
	        address_is_new; /* of a NIC that brings in what is the kernel's: its connections are not exempt yet */
	struct ring_port_blocks of[RING_PORT_ADDRESSES]; /* constant names, once counted */
};

struct vma_ring {
	/* Constant after create, but for the two atomic ones: those change with a rebind. */
	struct vma_nic_qp *qp;
	struct vma_cq *cq;
	struct vma_nic *nic;
	struct vma_stats_ring *stats;
	struct packet_rules rules;
	_Atomic uint32_t frame_max; /* an untagged frame at the MTU; a VLAN tag may come on top */
	uint32_t buf_size;
	_Atomic uint32_t plain_span;    /* a frame of one segment is no longer than 14 bytes and these */
	_Atomic uint16_t flags_unable;  /* of segments: refused, as no binding could so far */
	_Atomic uint16_t flags_special; /* of segments: it needs a look at the whole packet */
	_Atomic uint32_t tso_bytes_max; /* of a packet that is cut: the most of any binding */
	uint32_t segs_max; /* of a packet as the first binding took it; one with more is gathered into a buffer */
	uint32_t reap_at;  /* segments sent between looks at the completions */
	struct tx_slot *slots;
	struct vma_stats *stats_home;
	char name[64]; /* as long as a NIC's */

	struct drive rx, tx;

	/* With the receive flag. */
	struct {
		uint64_t word0, addresses; /* word0 0: nothing is remembered; no packet's first word is */
		struct vma_flow *flow;
	} last; /* who got the packet before, by its 5-tuple; NULL: nobody */
	struct flow_table five_tuples, three_tuples;
	struct ring_steering *steerings; /* calls of steer that are asking the NIC */
	struct ring_stale_rules stale_rules;
	struct ring_fragments fragments;
	TAILQ_HEAD(, ring_exempt) exempts; /* ring_exempt.c */
	unsigned exempts_count;
	const struct vma_buf *martian; /* whose addresses the kernel has refused, last; compared only */
	struct vma_flow *cursor;       /* next member to serve while a group's sinks run: detach moves it on */

	/* With the transmit flag. */
	ck_stack_entry_t *backlog, *backlog_tail __attribute__((aligned(64))); /* taken from tx_queue, not yet sent */
	uint32_t unkicked;    /* packets since the last kick that went through */
	uint32_t unreaped;    /* segments since the last reap */
	bool kick_failed;     /* said once */
	_Atomic bool tx_work; /* backlog or unkicked: progress looks at it without the flag */

	/* Read by anybody, changed with the receive flag. */
	struct vma_ring_proto_ops *_Atomic proto_ops;
	struct vma_ring_listener *_Atomic listener;

	/* Anybody. */
	struct ring_ports ports;
	struct command_queue rx_queue;
	struct command_queue tx_queue;
	_Atomic uint64_t slots_free[TX_SLOTS / 64] __attribute__((aligned(64)));
	_Atomic uint64_t refused, too_long, bad; /* carried to the counters by the next driver: those have one writer */
	_Atomic bool closing;
};

static inline struct flow_table *ring_flow_table_for_key(struct vma_ring *ring, const struct vma_flow_key *key)
{
	return key->peer_port_be != 0 ? &ring->five_tuples : &ring->three_tuples;
}

/* Of segments: what the NIC of now cannot. */
static inline uint16_t ring_seg_flags_nic_lacks(const struct vma_ring *ring)
{
	const uint32_t caps = vma_nic_info(ring->nic)->caps;

	return (uint16_t)((caps & VMA_NIC_CAP_TX_CSUM ? 0 : VMA_NIC_SEG_CSUM) |
	                  (caps & VMA_NIC_CAP_TSO ? 0 : VMA_NIC_SEG_TSO) |
	                  (caps & VMA_NIC_CAP_DUMMY_SEND ? 0 : VMA_NIC_SEG_DUMMY));
}

/* A packet must fit into an empty queue as a whole, or it would wait there for ever. Of the binding of now. */
static inline uint32_t ring_segs_max_now(const struct vma_ring *ring)
{
	const struct vma_nic_info *info = vma_nic_info(ring->nic);
	const uint32_t most = ring->qp->tx_depth < TX_BURST ? ring->qp->tx_depth : TX_BURST;

	if (!(info->caps & VMA_NIC_CAP_SG) || info->tx_segs_max == 0)
		return 1;
	return info->tx_segs_max < most ? info->tx_segs_max : most;
}

/* ring_flows.c; with the receive flag. */
struct flow_entry *ring_flow_entry_of_key(struct vma_ring *ring, const struct vma_flow_key *key);
void ring_detach_flow_holding_rx_flag(struct vma_ring *ring, struct vma_flow *flow, bool given_back);

/* ring_exempt.c. */
void ring_exempts_init(struct vma_ring *ring);
void ring_exempts_fini(struct vma_ring *ring);

/* ring_leave.c; with the receive flag, where nothing else is said. */
void ring_stale_rules_init(struct vma_ring *ring); /* before others know the ring */
void ring_stale_rules_fini(struct vma_ring *ring);
struct ring_stale_rule *ring_stale_rule_of(const struct flow_entry *entry); /* NULL: it has flows of its own, or none */
/* `flow` has joined the stale rule's key: the rule is its, and the stale rule a spare one again. */
void ring_stale_rule_unlink_and_keep_spare(struct vma_ring *ring, struct ring_stale_rule *stale);
void ring_stale_rule_free(struct vma_ring *ring, struct ring_stale_rule *stale); /* its rule has gone */
void ring_keep_spare_stale_rule_for_entry(struct vma_ring *ring, struct flow_entry *entry,
                                          struct ring_stale_rule **memory);
void ring_free_reserved_stale_rule(struct vma_ring *ring, const struct flow_entry *entry);
bool ring_rule_is_leaving(const struct vma_ring *ring, const struct vma_flow_key *key);
/* With the flag: the NIC is about to be asked to delete it, without the flag. False: others are being deleted; again
 * after ring_wait_for_nic_rule_requests. `left`, with the flag, which it releases: the NIC has answered. */
bool ring_rule_try_begin_nic_delete(struct vma_ring *ring, const struct vma_flow_key *key);
void ring_rule_finish_nic_delete_and_unlock(struct vma_ring *ring);
void ring_wait_for_nic_rule_requests(
        struct vma_ring *ring); /* without the flag: that those which are leaving now have left */

/* ring_ports.c */
void ring_ports_init(struct vma_ring *ring);
void ring_ports_fini(struct vma_ring *ring);
/* Data path. local: IPv4. */
bool ring_has_port_block(const struct vma_ring *ring, const void *local, uint16_t vlan, uint16_t port_be);
void ring_forget_revoked_port_block(struct vma_ring *ring, const struct vma_flow_key *key); /* anybody */

/* ring_rx.c: releases the receive flag, and drives the command queue again if something came in between. */
void ring_rx_run_queued_work_and_unlock(struct vma_ring *ring, uint32_t tid);
/* With the flag, not from a sink: polls until nothing comes, for a whole queue's worth at most. */
void ring_rx_drain(struct vma_ring *ring) __attribute__((cold));

/* ring_tx.c */
void ring_tx_init(struct vma_ring *ring);
void ring_tx_fini(struct vma_ring *ring); /* gives back what was queued and not sent */
void ring_tx_release_drive_flag(struct vma_ring *ring, uint32_t tid);
/* With the transmit flag: what others left is sent and kicked, and what has been sent is reaped. */
void ring_tx_drain_and_reap(struct vma_ring *ring) __attribute__((cold));
/* What others left, and what was not kicked, if nobody drives transmit. */
void ring_tx_try_drain_and_kick(struct vma_ring *ring) __attribute__((cold));

#endif
