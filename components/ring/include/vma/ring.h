/*
 * ring - a driven queue pair: its flows, its two drive flags, its command queue.
 *
 *   any thread ── send ──> own frame ──┬─ got the transmit flag: NIC, kick
 *                                      └─ else: command queue ──> whoever has the flag sends it
 *   any thread ── progress ──> got the receive flag: poll, check headers, dispatch to flows, drain commands
 *                              └─ else: somebody else is doing exactly this; look at your own queue
 *
 * Threads: any thread may call anything; at most one drives each direction (try-acquire). Sinks run in the thread that
 *          drives, with the receive flag held: they must not wait, and must not call progress of the same ring.
 * Progress: in the data path no call waits for another thread. attach and detach are control path: they wait for the
 *           receive flag as VMA_THREAD_MODE says (spin, futex, spin then yield).
 * Memory: create allocates; flows are the caller's memory and outlive their attachment.
 * Example: test/test_dispatch.c; examples/udp_echo.c.
 */
#ifndef VMA_RING_H
#define VMA_RING_H

#include <stdbool.h>
#include <stdint.h>

#include <vma/bufpool.h>
#include <vma/cq.h>
#include <vma/nic.h>
#include <vma/stats.h>

struct vma_ring;
struct vma_flow;

/* A received packet's addresses, valid during the sink's call. Network byte order. */
struct vma_rx_info {
	uint8_t family, proto;
	uint16_t vlan;
	uint8_t src[16], dst[16];
	uint16_t src_port_be, dst_port_be;
	uint8_t ttl, tos;
	uint8_t tcp_flags; /* TCP only */
};

/*
 * Takes one packet for one flow. buf's l3_off, l4_off, payload_off, payload_len are set. Returning true keeps the
 * reference (put the chain later); false gives it back, counted as rx_drop_sink.
 */
typedef bool (*vma_flow_sink)(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info);

struct vma_flow {
	struct vma_flow_key key;
	uint32_t flags; /* enum vma_flow_flags */
	uint64_t shadow_cookie;
	vma_flow_sink sink;
	void *owner;	       /* for the sink */
	struct vma_flow *next; /* ring's own: members of the same key */
	struct vma_ring *ring; /* ring's own: where it is attached, NULL: nowhere */
};

enum vma_thread_mode { VMA_THREAD_SINGLE = 0, VMA_THREAD_SPIN = 1, VMA_THREAD_MUTEX = 2, VMA_THREAD_YIELD = 3 };

struct vma_ring_attr {
	struct vma_nic *nic;
	struct vma_bufpool *spill_pool; /* for cq */
	struct vma_cq_attr cq;		/* qp, spill_pool, stats and name are filled in by create */
	uint32_t rx_wre, tx_wre;
	uint32_t tx_wre_batching; /* VMA_TX_WRE_BATCHING: completions collected before they are reaped */
	enum vma_thread_mode thread_mode;
	bool rx_sw_csum; /* VMA_RX_SW_CSUM: check what the NIC did not */
	struct vma_stats *stats;
	const char *name;
};

int vma_ring_create(const struct vma_ring_attr *attr, struct vma_ring **out);
void vma_ring_destroy(struct vma_ring *ring); /* every flow must be detached */

/*
 * attach: -EEXIST (this flow is attached), else as vma_nic_flow_add. Several flows of one ring may have the same key: a
 * multicast or broadcast packet goes to all of them, a unicast one to the first attached. detach returns when no sink
 * of this flow runs or will run.
 */
int vma_ring_attach(struct vma_ring *ring, struct vma_flow *flow);
void vma_ring_detach(struct vma_ring *ring, struct vma_flow *flow);

/*
 * Drives the receive side if nobody else does: returns the number of packets dispatched, 0 if there was none, or
 * -EBUSY if another thread drives at the moment. vma_ring_wait sleeps until something may have arrived: 1 look again,
 * 0 timeout, -EINTR.
 */
int vma_ring_progress(struct vma_ring *ring);
int vma_ring_wait(struct vma_ring *ring, uint64_t timeout_ns);
int vma_ring_fd(const struct vma_ring *ring);
/* Arms for vma_ring_fd: 0 sleep now, 1 look again first. */
int vma_ring_arm(struct vma_ring *ring);

/* A buffer of the ring's registered memory to build a frame in, data_off at the NIC's headroom; NULL: none now. */
struct vma_buf *vma_ring_tx_buf(struct vma_ring *ring);

enum vma_ring_send_flags {
	VMA_RING_SEND_LATER = 1 << 0, /* no kick now: at most 8 frames wait for the thread's next call or flush */
};
/*
 * Sends n packets, each one segment list as vma_nic_tx takes it; complete frames from the Ethernet header on. The
 * references pass to the ring in any case. Returns the number of segments accepted: sent, or queued behind the thread
 * that drives transmit; fewer than n when the NIC and the queue are full (the rest remains the caller's).
 */
unsigned vma_ring_send(struct vma_ring *ring, const struct vma_nic_seg *segs, unsigned n, unsigned flags);
/* Kicks what SEND_LATER left. */
void vma_ring_flush(struct vma_ring *ring);

struct vma_nic_qp *vma_ring_qp(struct vma_ring *ring);
struct vma_stats_ring *vma_ring_stats(struct vma_ring *ring);
struct vma_nic *vma_ring_nic(struct vma_ring *ring);

/*
 * Which ring a socket uses, and when it moves: pure functions over numbers, see ring_alloc.c.
 */
enum vma_ring_logic {
	VMA_RING_LOGIC_PER_INTERFACE = 0,
	VMA_RING_LOGIC_PER_IP = 1,
	VMA_RING_LOGIC_PER_SOCKET = 10,
	VMA_RING_LOGIC_PER_USER_ID = 11,
	VMA_RING_LOGIC_PER_THREAD = 20,
	VMA_RING_LOGIC_PER_CORE = 30,
	VMA_RING_LOGIC_PER_CORE_ATTACH_THREADS = 31,
};
struct vma_ring_where { /* who asks */
	uint64_t socket_id, user_id;
	uint8_t local[16];
	uint64_t thread_id;
	uint32_t core;
};
struct vma_ring_key { /* equal keys share a ring */
	enum vma_ring_logic logic;
	uint8_t id[16];
};
struct vma_ring_key vma_ring_key(enum vma_ring_logic logic, const struct vma_ring_where *where);
/* With `limit` rings per interface (0: none) and `existing` already there: a new one, or share number 0..existing-1? */
int vma_ring_choose(struct vma_ring_key key, uint32_t existing, uint32_t limit);
/*
 * Migration: `ratio` (VMA_RING_MIGRATION_RATIO_*, -1 off) accesses between looks; a socket moves when its wished key has
 * been the same, and other than its present one, for two looks in a row.
 */
struct vma_ring_migration {
	int32_t ratio;
	uint32_t countdown;
	struct vma_ring_key current, candidate;
};
void vma_ring_migration_init(struct vma_ring_migration *m, int32_t ratio, struct vma_ring_key current);
bool vma_ring_migration_step(struct vma_ring_migration *m, struct vma_ring_key wished);

#endif
