/*
 * wire - what the parts of the wire backend share.
 *
 *   lane.h   the link's memory, lanes, their correctness    ring.h    posted and done buffers (ck_ring)
 *   qp.c     transmit and receive half of a queue pair      engine.c  the receiving end, arming
 *   steer.c  header parse, flow table, checksums            faults.c  fault plan and delay line
 *   wire.c   ends: open, close, the pair                    file.c    the two-process form
 *   cut.c    packets that are cut into several frames
 *
 * The engine of an end is everything that its receiving device would do: the lanes' consumer side, flow table, delay
 * line, table of queue pairs.
 *
 * Threads: the engine belongs to the holder of its `busy` flag. Data calls only try the flag; control calls wait for
 * it. A queue pair's receive half and transmit half belong to one thread each, as nic.h says.
 */
#ifndef VMA_NIC_WIRE_WIRE_H
#define VMA_NIC_WIRE_WIRE_H

#include <pthread.h>

#include <vma/nic.h>
#include <vma/nic_wire.h>

#include "lane.h"
#include "ring.h"

#define WIRE_SNAP 128    /* bytes of headers that are parsed, from a private copy */
#define WIRE_FLOWS 65536 /* per end */
#define WIRE_MTU_MIN 68  /* RFC 791 */
#define WIRE_MTU_MAX 65535
#define WIRE_STUCK_NS 10000000 /* a peer process that takes nothing from a full lane for so long counts as gone */

struct wire_end;
struct range;

struct wire_qp {
	struct vma_nic_qp qp;
	struct wire_end *end;
	uint32_t lane;
	struct range *rx_range, *tx_range; /* the arena ranges of the two pools */
	int event_fd, timer_fd, epoll_fd;

	/* receive half */
	uint32_t rx_outstanding __attribute__((aligned(WIRE_LINE))); /* posted and not polled yet, at most rx_depth */
	struct vma_stats_nic *stats;
	/* receive half and engine */
	struct wire_ring posted, done;
	_Atomic uint32_t armed;
	_Atomic bool starved; /* a frame waits in its lane for a buffer of this queue pair */
	/* engine */
	uint32_t moderation_count;             /* 0 or 1: report at once */
	uint64_t moderation_ns, first_done_ns; /* UINT64_MAX: nothing waits for its moderation */

	/* transmit half */
	struct wire_producer tx __attribute__((aligned(WIRE_LINE)));
	struct vma_buf **sent; /* completions: [reaped, kicked) may be reaped, [kicked, queued) wait for the kick */
	uint32_t sent_mask, sent_reaped, sent_kicked, sent_queued;
	uint64_t answered_arm_seq; /* the peer's arm_seq that was answered last */
	uint64_t full_since_ns;    /* two-process form: first refusal without progress, 0: none */
	_Atomic uint64_t count_sent, count_lost, count_full, count_bad;
};

/* steer.c */
struct wire_flow {
	struct vma_flow_key key;
	struct wire_qp *qp; /* NULL: free */
	uint32_t tag;
};
struct wire_flows {
	struct wire_flow *slots; /* open addressing, linear probing */
	uint32_t mask, used;
};
struct wire_headers {            /* what the parse found */
	struct vma_flow_key key; /* 5-tuple as the receiver sees it */
	uint32_t l3_off, l4_off, l4_len;
};
int wire_flows_init(struct wire_flows *flows);
void wire_flows_fini(struct wire_flows *flows);
int wire_flows_add(struct wire_flows *flows, struct wire_qp *qp, const struct vma_flow_rule *rule);
int wire_flows_del(struct wire_flows *flows, struct wire_qp *qp, const struct vma_flow_key *key);
int wire_flows_move(struct wire_flows *flows, const struct wire_qp *from, struct wire_qp *to,
                    const struct vma_flow_key *key);
void wire_flows_del_qp(struct wire_flows *flows, const struct wire_qp *qp);
/* The first `snap_len` of a frame of `len` bytes; false: not an unfragmented UDP or TCP packet over IPv4. */
bool wire_parse_packet_headers(const char *snap, uint32_t snap_len, uint32_t len, struct wire_headers *out);
/* 5-tuple, then 3-tuple; NULL: nobody wants it. */
const struct wire_flow *wire_flows_find(const struct wire_flows *flows, const struct wire_headers *headers);
/* Checksum offload, of a whole frame in one piece: fills both in; which of VMA_BUF_RX_*_CSUM_* hold. */
void wire_checksum_fill(char *frame, uint32_t len);
/* cut.c: segmentation offload. */
struct wire_cut {
	uint32_t frames, hdr_len, mss, bytes; /* bytes: of payload */
};
/* How a packet of n segments, checked as any other, is cut; false: it cannot be. */
bool wire_plan_tso_split(struct vma_bufarena *arena, const struct vma_nic_seg *segs, unsigned n, uint32_t frame_max,
                         struct wire_cut *out);
/* The i-th frame of it, without checksums, in `to`; returns its length. */
uint32_t wire_build_tso_segment_frame(struct vma_bufarena *arena, const struct vma_nic_seg *segs,
                                      const struct wire_cut *cut, uint32_t i, char *to);
uint16_t wire_rx_checksum_flags_of_frame(const char *frame, uint32_t len, bool memory_link);

/* faults.c */
struct wire_held_frame {
	uint64_t due_ns, serial;
	uint32_t len, lane;
	uint32_t overtake; /* later frames of its lane that go first; 0: none (left) */
	char *bytes;
};
struct wire_fault_delay {
	struct vma_wire_faults plan;
	bool active;                     /* the plan does something */
	uint32_t bound;                  /* of the heap */
	struct wire_held_frame *heap;    /* by (due, serial) */
	struct wire_held_frame *waiting; /* were due, wait to be overtaken; now due at the latest */
	uint32_t heap_count, waiting_count;
	uint64_t serial;
	char *memory;
	uint32_t frame_bytes;
	uint32_t spares;
	char **spare; /* frame memory not in use */
};
/* Memory for `bound` frames; a second call does nothing. fini accepts zeros. */
int wire_fault_delay_init(struct wire_fault_delay *delay, uint32_t bound, uint32_t frame_bytes);
void wire_fault_delay_fini(struct wire_fault_delay *delay);
static inline bool wire_faults_are_set(const struct vma_wire_faults *plan)
{
	return (plan->loss_ppm | plan->duplicate_ppm | plan->reorder_ppm | plan->corrupt_ppm) != 0 ||
	       (plan->delay_ns | plan->jitter_ns) != 0;
}
void wire_fault_delay_set_plan(struct wire_fault_delay *delay, const struct vma_wire_faults *plan);
static inline bool wire_fault_delay_is_empty(const struct wire_fault_delay *delay)
{
	return delay->heap_count + delay->waiting_count == 0;
}

enum wire_count {
#define X(name, text) WIRE_COUNT_##name,
	VMA_WIRE_COUNTS(X)
#undef X
	        WIRE_COUNTS
};

struct wire_engine {
	_Atomic uint32_t busy __attribute__((aligned(WIRE_LINE))); /* held by who drives */
	_Atomic uint32_t again;    /* somebody failed to get it and wants one more run */
	_Atomic uint32_t sleepers; /* armed queue pairs */
	_Atomic bool has_delayed_frames
	        __attribute__((aligned(WIRE_LINE))); /* frames are in the delay line, for peeking */
	uint32_t first_lane;                         /* served first in the next run */
	struct wire_consumer lanes[WIRE_LANES];
	struct wire_qp *qps[WIRE_LANES];
	uint32_t nqps;
	struct wire_flows flows;
	struct wire_fault_delay delay; /* of the frames that arrive here */
	_Atomic uint64_t counts[WIRE_COUNTS];
};

struct wire_pair;
struct wire_file;

struct wire_end {
	struct vma_nic nic;
	int side;
	struct wire_layout layout;
	char *memory;
	uint32_t queue_frames;
	_Atomic uint32_t nonce; /* of the link at present, 0: no other end */
	uint32_t index_start;   /* first index of every link */
	uint32_t lanes_in_use;  /* own ones, ever; what own page says */
	bool memory_link, checksum_offload, segmentation_offload;
	struct vma_stats *stats;
	const uint64_t *virtual_now_ns;
	struct wire_producer idle_lanes[WIRE_LANES]; /* where the lane of a destroyed queue pair stopped */
	struct wire_pair *pair;                      /* NULL: two-process form */
	struct wire_file *file;                      /* NULL: pair, or a test's bare memory */
	_Atomic int doorbell_fd; /* two-process form: socket to the other end's sleepers; readable when it rings; -1 */
	_Atomic uint64_t total_sent, total_lost, total_full; /* counts of destroyed queue pairs */
	pthread_mutex_t control;       /* queue pairs and flows are changed by one thread at a time */
	uint64_t *sent_ns[WIRE_LANES]; /* the pair only, per slot of own lanes: when the frame left, while a plan is
	                                  active */
	struct wire_engine engine;
};

struct wire_pair {
	struct wire_end end[2];
	pthread_mutex_t lock;
	unsigned open; /* ends */
};

static inline struct wire_end *wire_end_of_nic(const struct vma_nic *nic)
{
	return (struct wire_end *)(uintptr_t)nic; /* the nic is its first member */
}
static inline struct wire_qp *wire_qp_of_nic_qp(const struct vma_nic_qp *qp)
{
	return (struct wire_qp *)(uintptr_t)qp;
}
/* The other end of a pair, or NULL. */
static inline struct wire_end *wire_other_end(struct wire_end *end)
{
	return end->pair != NULL ? &end->pair->end[1 - end->side] : NULL;
}
static inline void wire_count_add(struct wire_end *end, enum wire_count which, uint64_t n)
{
	vma_stats_add(&end->engine.counts[which], n);
}

/* wire.c */
uint64_t wire_now_ns(const struct wire_end *end);
/* An end over memory of layout.bytes that is already in place; caller frees what failed half-way through end_fini. */
int wire_end_init(struct wire_end *end, int side, char *memory, const struct wire_layout *layout, uint32_t bound,
                  uint32_t index_start, struct vma_bufarena *arena);
void wire_end_fini(struct wire_end *end);
/* The link in end->memory is up under this nonce, or, with 0, down. Control lock held or not yet shared. */
void wire_end_set_link(struct wire_end *end, uint32_t nonce);
int wire_pair_create(const struct vma_wire_pair_attr *attr, uint32_t index_start, struct vma_nic *out[2]);
/* Reserves the memory of a link, all zero, nothing resident. */
char *wire_memory_map(size_t bytes);

/* engine.c */
/* Runs `end`'s receive engine: frames for `self` go to bufs until n are there, others to their queue pairs. Returns
 * how many went to bufs; 0 when another thread drives. */
unsigned wire_engine_poll(struct wire_end *end, struct wire_qp *self, struct vma_buf **bufs, unsigned n);
/* A run that begins after this call will see everything that is visible now: by this thread, or by the one that holds
 * the engine. */
void wire_engine_process_frames_or_request(struct wire_end *end);
void wire_engine_lock(struct wire_end *end); /* control path: waits */
void wire_engine_unlock(struct wire_end *end);
/* Tells queue pair `qp`'s sleeper. */
void wire_qp_wake(struct wire_qp *qp);

/* faults.c, engine held: a frame from a lane enters the plan; the next frame that is due, NULL: none. */
void wire_fault_delay_add_frame(struct wire_end *end, uint32_t lane, uint32_t number, const char *bytes, uint32_t len,
                                uint64_t sent_ns);
struct wire_held_frame *wire_fault_delay_next_due_frame(struct wire_fault_delay *delay, uint64_t now_ns);
void wire_fault_delay_remove(struct wire_fault_delay *delay,
                             struct wire_held_frame *held);                  /* it was delivered or dropped */
uint64_t wire_fault_delay_next_due_ns(const struct wire_fault_delay *delay); /* UINT64_MAX: nothing waits */

/* qp.c */
int wire_qp_create(struct vma_nic *nic, const struct vma_nic_qp_attr *attr, struct vma_nic_qp **out);
void wire_qp_destroy(struct vma_nic_qp *qp);
unsigned wire_post_rx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n);
unsigned wire_poll_rx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n);
unsigned wire_tx(struct vma_nic_qp *qp, const struct vma_nic_seg *segs, unsigned n);
int wire_kick(struct vma_nic_qp *qp);
unsigned wire_reap_tx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n);
bool wire_tx_is_idle(struct vma_nic_qp *qp);
int wire_arm(struct vma_nic_qp *qp);
void wire_unarm(struct vma_nic_qp *qp);

/* file.c */
int wire_file_open_nic(const char *arg, const struct vma_nic_attr *attr, struct vma_nic **out);
void wire_file_close(struct wire_end *end);

#endif
