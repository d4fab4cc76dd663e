/*
 * client - a client of an owner. These share it: client.c (nic and queue pairs), flows.c, shadow.c, data.c (hot path),
 * thread.c (the nic's thread), repair.c, fork.c. So does lease.c (mappings that outlive a queue pair).
 *
 *   struct nic_xdp        one vma_nic_open: owner in this process, or a connection to vmad; a thread of its own
 *     xdp_window          packet memory and shared object of one owner; a new owner means a new window
 *     xdp_qp              one queue pair: a slot of the owner, its rings, its flows
 *       xdp_lease         what ends later than the queue pair: its pools, until the user has put every buffer
 *
 * If the owner is gone, the nic's thread lets go of its sockets at once, without waiting for the threads that drive. It
 * puts a dead socket in place of each fd and zero pages in place of each ring. The hot path may be anywhere at that
 * moment. It treats every index that it reads as untrusted, so it sees an empty queue. The new owner can bind as soon
 * as the last client has done this. Then rebind exchanges everything under both halves.
 *
 * Threads: the receive half and the transmit half of a queue pair belong to one thread each, as nic.h says. The control
 * path has two locks: `events` (held while a callback runs, and to add or remove queue pairs) before `lock` (everything
 * else). A callback may call anything but vma_nic_qp_destroy and vma_nic_close.
 */
#ifndef VMA_NIC_CLIENT_CLIENT_H
#define VMA_NIC_CLIENT_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <vma/nic.h>

#include "vmad.h"
#include "../fork.h"
#include "../sock_cookies.h"
#include "../xdp/owner.h"
#include "../xdp/xdp.h"

struct nic_xdp;

struct xdp_window {
	uint32_t refs; /* under the nic's lock */
	struct vma_bufarena *arena;
	uint32_t first, nframes; /* in the arena */
	uint32_t queue_shift;    /* frame >> queue_shift: its device queue */
	struct xdp_shared *shared;
	size_t shared_bytes;
	struct xdp_claim_bucket *claims; /* NULL: every flow is asked for */
	int alive_fd;                    /* hung up when its owner has gone for good (owner/fdstore.h); -1: with vmad */
};

/* Ends when both pools have drained; then the owner gets the slot's frames back. */
struct xdp_lease {
	struct xdp_lease *next;
	struct nic_xdp *nic;
	struct xdp_window *window;
	uint32_t slot;
	uint64_t ticket;          /* for another vmad that goes on where this one ends */
	bool orphan;              /* its owner has gone: nobody to give frames back to */
	_Atomic uint32_t pending; /* pools that have not drained, and 1 for the queue pair itself */
	_Atomic bool done;        /* the last drained() has finished with the nic */
};

/* One device queue of a queue pair. */
struct xdp_qp_queue {
	struct xdp_ring rx, tx, fill, comp;
	struct xdp_shared_rings_user driver;
	int fd;
	uint32_t rx_much; /* with so many in the RX ring the kernel is asked what it has lost */
	uint64_t lost;    /* packets, when it was asked last */
	bool watched;     /* in the queue pair's epoll fd: from an arm to the next unarm, see nic_xdp_arm */
	bool by_edges;    /* and told of the next arrival only: see nic_xdp_arm_edge_triggered */
} __attribute__((aligned(64)));

struct xdp_flow {
	struct xdp_flow *next;
	struct vma_flow_rule rule;
	struct nic_cookies shadows; /* of all members, for the next owner */
	struct xdp_claim *claim;    /* made without asking; nobody's once the queue pair is lost */
	struct xdp_qp *moves_to;    /* vmad has been asked to move it there, and has not answered; NULL */
};

/* The flows of one queue pair; the nic's lock. {0} is an empty table. */
struct xdp_flows {
	struct xdp_flow **bucket;
	uint32_t buckets, used;   /* buckets: 0, or a power of two */
	struct xdp_flow *revoked; /* out of the table, to be reported by the nic's thread */
};

/* An RX ring of before a rebind: address space, and pages of nothing (nic_xdp_detach_lost_qp). */
struct xdp_replaced_rx_ring {
	struct xdp_replaced_rx_ring *next;
	struct xdp_ring ring;
};

struct xdp_qp {
	struct vma_nic_qp base;
	const _Atomic uint32_t *fork_guard; /* 0 in a forked child */
	struct xdp_qp_queue *port;
	struct xdp_shared *shared;
	uint32_t slot, queues, tx_queue;
	uint32_t first, nframes, queue_shift;
	uint32_t tx_first, tx_count;
	uint32_t segs_max;
	uint32_t longest, longest_ever; /* bytes of an untagged frame, without FCS; the most of all rentals */
	/* receive half */
	uint32_t rx_at __attribute__((aligned(64))); /* device queue polled next */
	uint32_t rx_in_chain;                        /* the last buffer polled promised more, on rx_at */
	uint32_t rx_held, rx_held_max;               /* polled and not posted again; no more than this */
	bool armed;                                  /* and not unarmed since: somebody may sleep on epoll_fd */
	/*
	 * With one device queue: its RX ring is empty while the word at rx_arrivals (its producer index) equals
	 * rx_seen. Any thread may look while another one rebinds: the ring's mapping is kept until the end then.
	 */
	const _Atomic uint32_t *_Atomic rx_arrivals;
	_Atomic uint32_t rx_seen;
	/* transmit half */
	uint8_t *in_flight __attribute__((aligned(64))); /* by frame of the TX range */
	/* control */
	struct nic_xdp *nic __attribute__((aligned(64)));
	struct xdp_qp *next;
	struct xdp_lease *lease;
	struct xdp_flows flows;
	struct xdp_replaced_rx_ring *old_rings;
	struct vma_stats_nic *stats; /* what was lost; ring and cq count the rest */
	struct vma_nic_qp_attr attr;
	char name[64];
	int epoll_fd, wake_fd; /* wake_fd: readable when a rebind is due */
	uint32_t adopt_seen;   /* the number of the last connection that it was to make */
};

struct nic_xdp {
	struct vma_nic base;
	struct nic_fork_entry forked;
	pthread_mutex_t events, lock;
	enum vma_nic_owner kind;
	struct xdp_owner *owner;  /* SELF */
	struct vmad_client *vmad; /* VMAD; NULL while there is none */
	/*
	 * vmad may be away: no connection, and the queue pairs work on. old_vmad: the last one, open until another
	 * vmad, or the same, knows that this client is there. vmad_found_cond: vmad is there again, or gone for good.
	 */
	struct vmad_client *old_vmad;
	struct vmad_connecting connecting; /* the next one */
	uint64_t vmad_lost_ms;             /* since then */
	pthread_cond_t vmad_found_cond;
	char *vmad_path;
	uint32_t window_bytes; /* for a vmad that is started */
	bool huge_pages;
	enum vma_nic_thread_caches caches;
	char *stats_dir;      /* NULL: vmad's default */
	int right_fd;         /* proof that this process may rent, see xdp/right.c; -1: none */
	bool inherited_right; /* forked children keep it: it is one that they may have */
	const _Atomic uint32_t *fork_guard;
	struct vma_stats *stats;
	uint32_t tx_queues;
	struct xdp_window *window;
	struct xdp_qp *qps;
	struct xdp_lease *leases;
	uint32_t requests_seen;      /* the thread's: made to vmad before its last sleep */
	pthread_mutex_t repair_lock; /* repair.c; before `lock` */
	_Atomic int repair_fd;       /* the channel to vmad's process that repairs sockets for this one; -1: none */
	int wake_fd, dead_fd;        /* the thread's wake-up; what replaces the fd of a socket given up */
	_Atomic bool closing;        /* vma_nic_close was called */
	bool joined;                 /* and waits for the thread; else the thread frees the nic */
	pthread_t thread;
};

/* ---- client.c ---- */
void nic_xdp_free(struct nic_xdp *nic); /* after its last lease */

/* ---- flows.c ---- */
int nic_xdp_flow_add(struct vma_nic_qp *qp, const struct vma_flow_rule *rule);
int nic_xdp_flow_del(struct vma_nic_qp *qp, const struct vma_flow_key *key);
int nic_xdp_flow_move(struct vma_nic_qp *from, struct vma_nic_qp *to, const struct vma_flow_key *key);
int nic_xdp_flow_stop_new_connections(struct vma_nic_qp *qp, const struct vma_flow_key *key);
bool nic_xdp_port_has_rule(const struct vma_nic_qp *qp, uint16_t local_port_be);
bool nic_xdp_qp_is_only_tenant(const struct vma_nic_qp *qp);
int nic_xdp_minisock_export(struct vma_nic_qp *qp, const struct vma_flow_minisock *minisocks, unsigned n);
/* Lock held: all flows again at a new owner; one that the owner has taken back; the next of those, to be reported. */
void nic_xdp_flows_restore(struct xdp_qp *qp);
void nic_xdp_flows_reannounce(struct xdp_qp *qp); /* all flows once more, at an owner that has them */
void nic_xdp_flow_revoke(struct xdp_qp *qp, const struct vma_flow_key *key);
bool nic_xdp_flow_pop_revoked(struct xdp_qp *qp, struct vma_flow_key *key);
void nic_xdp_flows_fini(struct xdp_flows *flows);

/* ---- shadow.c ---- */

struct xdp_shadow {
	uint64_t cookie;
	int fd;
};
/* The sockets of this process, by cookie, once they were looked for. {0} to begin with. */
struct xdp_shadows {
	bool listed;
	uint32_t n, capacity;
	struct xdp_shadow *list;
};
void nic_xdp_shadows_fini(struct xdp_shadows *shadows);
/* The descriptor by which vmad is shown the right to this flow; -1: there is none, or none is needed. is_covered: of a
 * connection that needs none. */
struct xdp_proof_fd {
	int fd;
	bool is_made;
};
struct xdp_proof_fd nic_xdp_get_proof_socket(struct xdp_shadows *shadows, const struct vma_flow_rule *rule,
                                             bool is_covered);
void nic_xdp_put_proof_socket(const struct xdp_proof_fd *proof);
/* Of these shadows those that are open, and their descriptors: how many. There is room for all of them. */
unsigned nic_xdp_find_shadow_fds_still_open(struct xdp_shadows *shadows, const struct nic_cookies *cookies, int guess,
                                            uint64_t *open, int *fds);

/* ---- lease.c; lock held ---- */
int nic_xdp_rent(struct xdp_qp *qp);            /* slot, mappings, pools; on failure the queue pair is as before */
void nic_xdp_unrent(struct xdp_qp *qp);         /* the queue pair lets go; the lease ends when its buffers are put */
void nic_xdp_detach_lost_qp(struct xdp_qp *qp); /* lets go of the sockets while the hot path may run */
void nic_xdp_return_slots_of_done_leases(struct nic_xdp *nic); /* those that are done */
bool nic_xdp_has_lease_to_finish(const struct nic_xdp *nic);
void nic_xdp_window_put(struct xdp_window *window);

/* ---- data.c ---- */
unsigned nic_xdp_post_rx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n);
unsigned nic_xdp_poll_rx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n);
bool nic_xdp_rx_is_empty(const struct vma_nic_qp *qp);
unsigned nic_xdp_tx(struct vma_nic_qp *qp, const struct vma_nic_seg *segs, unsigned n);
int nic_xdp_kick(struct vma_nic_qp *qp);
unsigned nic_xdp_reap_tx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n);
bool nic_xdp_tx_is_idle(struct vma_nic_qp *qp);
int nic_xdp_arm(struct vma_nic_qp *qp);
void nic_xdp_unarm(struct vma_nic_qp *qp);
int nic_xdp_arm_edge_triggered(struct vma_nic_qp *qp);
unsigned nic_xdp_rx_waiting(struct vma_nic_qp *qp);
/* Its socket joins the epoll set, which tells of the next arrival only (by_edges), or as long as packets are there;
 * receive half held. */
int nic_xdp_add_to_epoll(struct xdp_qp *qp, struct xdp_qp_queue *port, bool by_edges);
int nic_xdp_fd(const struct vma_nic_qp *qp);
void nic_xdp_add_kernel_rx_drops_to_stats(struct xdp_qp *qp, struct xdp_qp_queue *port); /* receive half held */

/* ---- thread.c ---- */
int nic_xdp_thread_start(struct nic_xdp *nic);
void nic_xdp_thread_wake(struct nic_xdp *nic);
/* Lock held, and let go meanwhile. A request was not answered, or vmad is away: true, it is there again; false, it is
 * not within its time, or this is the nic's thread, or a queue pair is to be lost. */
bool nic_xdp_await_vmad(struct nic_xdp *nic);

/* ---- fork.c ---- */
void nic_xdp_close_in_child(struct nic_fork_entry *forked);
int nic_xdp_find_inherited_right(unsigned ifindex); /* a copy of what a parent passed on, or -1 */

static inline bool nic_xdp_opened_by_this_process(const struct nic_xdp *nic)
{
	return atomic_load_explicit(nic->fork_guard, memory_order_relaxed) != 0;
}

#endif
