/*
 * stack - the stack of a ring: its structure, its clock, its queues of frames and of connections.
 *
 * Threads: the driver, unless a function says "any thread".
 */
#ifndef VMA_TCP_STACK_H
#define VMA_TCP_STACK_H

#include "conn.h"
#include "rx/input.h"

struct tcp_wait_slot;
struct tcp_control_queue;

#define TCP_NS_PER_MS 1000000ULL
#define TCP_NS_PER_S 1000000000ULL

/* An unmatched segment that was answered with RST: reply.c. */
struct tcp_rst_cache {
	uint64_t until_ns;
	uint8_t addresses[8];
	uint32_t ports, ack;
};
#define TCP_RST_CACHE 16
/* A connection that has left: to another stack, which goes on with it, or for ever. export.c. */
enum tcp_left_to { TCP_LEFT_FOR_NONE, TCP_LEFT_FOR_KERNEL, TCP_LEFT_FOR_STACK, TCP_ENDED };
struct tcp_left_conn {
	uint64_t until_ns;
	struct vma_flow_key key;
	enum tcp_left_to left;
};
#define TCP_EXPORTED 1024
/* Who has sent a segment that no connection takes, while the connection may be elsewhere. stranger.c. */
struct tcp_stranger;
#define TCP_STRANGERS 256
/* What connections with a small MSS may send together. small_mss_quota.h. */
struct tcp_small_mss_quota {
	struct vma_tcp_conn *first, *last; /* that wait; last is valid unless first is NULL */
	struct tcp_timer_node timer;
	uint64_t filled_ms;
	uint32_t left; /* frames */
};
#define TCP_FRAMES 64 /* gathered in a run before they are sent with one kick */
#define ACKED_KICK_MAX (TCP_FRAMES * 1460)
struct vma_tcp {
	struct vma_ring_proto_ops proto_ops; /* first */
	struct vma_ring *ring;
	struct vma_bufarena *arena;
	struct vma_tcp_host_ops host;
	struct vma_tcp_attr attr;
	const struct vma_nic_info *nic;

	/* driver's */
	_Alignas(64) uint64_t now_ns; /* of this run */
	struct tcp_wheel wheel;
	uint64_t wheel_due_ns; /* nothing of it is due before; as of the last run's end */
	struct vma_tcp_conn *ready, **ready_tail;
	struct vma_tcp_conn *all;
	struct vma_tcp_listener *listeners;
	struct vma_nic_seg frames[TCP_FRAMES];
	unsigned frames_count;
	uint32_t acked_since_kick; /* bytes that have been acknowledged since the last kick: peers send as many */
	bool output_deferred;      /* there was a kick in this run, and what has come since should be read first */
	uint32_t plain_mss_min;    /* connections with a smaller MSS are not fed by the plain loop: tx/output.c */
	uint32_t tso_bytes,
	        tso_segs; /* of a packet that the NIC cuts: payload, pieces; tx/tso.h. 0 bytes: it does not */
	struct tcp_timewait_table *timewait; /* timewait.c */
	struct vma_tcp_conn *retry;          /* conn_enqueue_retry */
	struct tcp_timer_node retry_timer;
	struct tcp_small_mss_quota small_mss_quota;
	struct vma_tcp_conn *dead;      /* freed at the end of the run */
	struct tcp_ack ack;             /* of the segment that is being processed */
	struct tcp_lwip_memory *memory; /* lwip/port.c: freelists of lwIP's objects */
	uint64_t ooo_bytes;             /* held of data that is not in order, of all connections; budget.h bounds it */
	uint32_t busy_count;            /* connections with something queued or unacknowledged */
	uint32_t orphans;
	uint32_t reply_tokens; /* answers for nobody, see reply.c */
	uint64_t reply_tokens_ms;
	struct tcp_rst_cache rst_cache[TCP_RST_CACHE];
	uint32_t isn_above;                 /* for the connection that a SYN is making */
	struct vma_tcp_conn *opening;       /* that connection */
	struct tcp_left_conn *exported;     /* TCP_EXPORTED of them; NULL: there was none yet */
	struct tcp_left_conn *ended;        /* the same, of connections that ended here */
	uint32_t gro_conns_left;            /* connections whose segments may be merged in this run */
	bool predicts_nothing;              /* for tests: every segment goes through lwIP, the fast path is not taken */
	uint32_t alone;                     /* for tests: messages that tx/output.c has found alone */
	struct vma_nic_accept_page *member; /* of the ring's queue pair; NULL: none. pending.c */
	uint32_t pending_at;                /* where a free place is looked for next */
	uint8_t isn_key[16];                /* its, as it was at first; zeros: none */
	struct tcp_stranger *strangers;     /* TCP_STRANGERS of them; NULL: there was none yet */
	struct tcp_timer_node stranger_timer;
	uint32_t clock_offset_ms;          /* lwip/port.c: of time stamps */
	struct tcp_control_queue *control; /* control.c; NULL: the host has no control */
	bool defers_control;               /* it has, and this is not the run that does its work */

	/* read by anybody */
	_Alignas(64) _Atomic uint64_t due_ns;
	_Atomic bool busy;
	_Atomic bool control_waits;
	_Atomic uint64_t count[sizeof(struct vma_tcp_counts) / sizeof(uint64_t)]; /* one writer */
};
#define TCP_COUNT(tcp, name, n)                                                                                        \
	vma_stats_add(&(tcp)->count[offsetof(struct vma_tcp_counts, name) / sizeof(uint64_t)], (n))

/* The time of what is done now. With the flag; what one driver has said is not undone by the next one's clock. */
static inline void tcp_update_now(struct vma_tcp *tcp)
{
	const uint64_t now_ns = tcp->host.now_ns(tcp->host.arg);

	if (__builtin_expect(now_ns > tcp->now_ns, 1))
		tcp->now_ns = now_ns;
}

/* port_clock_ms, see lwip/port.h */
static inline uint32_t tcp_clock_ms(const struct vma_tcp *tcp)
{
	return (uint32_t)(tcp->now_ns / TCP_NS_PER_MS) + tcp->clock_offset_ms;
}

/* The same for one connection: its time stamps go on as they began. */
static inline uint32_t tcp_conn_clock_ms(const struct vma_tcp_conn *conn)
{
	return tcp_clock_ms(conn->tcp) + conn->clock_shift_ms;
}

/* Any other thread than the driver: the stack that the connection is on, or was until a moment ago (move.c). */
static inline struct vma_tcp *tcp_stack_now(const struct vma_tcp_conn *conn)
{
	return __atomic_load_n(&conn->tcp, __ATOMIC_ACQUIRE);
}

/* ---- stack.c: driver ---- */

/* The connection's packets or output are dealt with at the end of this run. */
void conn_enqueue_ready(struct vma_tcp_conn *conn);
/* A complete frame with its reference passes to the stack; sent at the end of the run, or when TCP_FRAMES wait. */
static inline void tcp_frame_queue_for_send(struct vma_tcp *tcp, struct vma_buf *buf, uint32_t off, uint32_t len,
                                            uint16_t flags)
{
	tcp->frames[tcp->frames_count++] = (struct vma_nic_seg){.buf = buf, .off = off, .len = len, .flags = flags};
}
/* What is gathered leaves now, if no other connection waits in this run: its books are kept while it is on its way. */
void tcp_send_frames_if_no_ready_conn(struct vma_tcp *tcp);
void conn_tell_owner_events(struct vma_tcp_conn *conn, uint32_t events); /* tells the owner, if any */
static inline void conn_set_busy_and_count(struct vma_tcp_conn *conn, bool busy)
{
	if (conn->is_busy == busy)
		return;
	conn->is_busy = busy;
	conn->tcp->busy_count += busy ? 1 : UINT32_MAX;
}
void stack_tell_host_if_idle(struct vma_tcp *tcp); /* host.c; a connection, or what was left of one, has gone */
/* The connection's flow, and what it has brought for a connection that is over. */
void tcp_conn_remove_flow_and_drop_burst(struct vma_tcp_conn *conn);
void tcp_conn_drop_received_packets(struct vma_tcp_conn *conn);
/* From whatever list of the stack it waits in: retry, small MSS, ready. */
void tcp_conn_remove_from_all_queues(struct vma_tcp_conn *conn);
/* Detaches the flow and deletes its rule in the NIC, now or, if the host prunes, later. */
void tcp_detach_flow_now_or_later(struct vma_tcp *tcp, struct vma_flow *flow);
/* Any thread. Work of the connection: tcp_run_conn_work_now_or_queue does it now if nobody drives; _deferred leaves it
 * to the next driver. */
void tcp_run_conn_work_now_or_queue(struct vma_tcp_conn *conn, uint32_t work);
void tcp_queue_conn_work_for_next_driver(struct vma_tcp_conn *conn, uint32_t work);
void tcp_queue_conn_command_for_ring_driver(struct vma_tcp_conn *conn,
                                            bool deferred); /* by the thread whose bits were the first */
/*
 * Any thread, control path: the receive flag of the ring that the connection is on. The stack, with the flag; *acquired
 * false: this thread has it already.
 */
struct vma_tcp *tcp_conn_acquire_ring_of_stack(const struct vma_tcp_conn *conn, bool *acquired);
/* When what found no frame is tried again: in a millisecond, or later while the queue pair is lost. */
uint64_t stack_retry_time_ns(const struct vma_tcp *tcp);
/* Looked at again then: there was no frame, or no memory. */
void conn_enqueue_retry(struct vma_tcp_conn *conn);
/* Room for one more frame in this run (sends what is gathered if need be). */
bool tcp_frames_send_all(struct vma_tcp *tcp) __attribute__((cold));
static inline bool tcp_frame_queue_make_space(struct vma_tcp *tcp)
{
	if (__builtin_expect(tcp->frames_count == TCP_FRAMES || tcp->acked_since_kick >= ACKED_KICK_MAX, 0))
		return tcp_frames_send_all(tcp);
	return true;
}
void tcp_small_mss_quota_grant(struct vma_tcp *tcp);      /* small_mss_quota.c: its timer has come */
void *tcp_alloc_zeroed(struct vma_tcp *tcp, size_t size); /* aligned to 64 bytes */
void tcp_free_memory(struct vma_tcp *tcp, void *memory);
void *tcp_allocated_base(void *memory); /* what host.free has to be given for it */

/* Of the way back to a peer that asks: its path is not known yet. */
static inline uint32_t tcp_mtu_for_syn_reply(const struct vma_tcp *tcp)
{
	return tcp->attr.mtu_max != 0 && tcp->attr.mtu_max < tcp->nic->mtu ? tcp->attr.mtu_max : tcp->nic->mtu;
}

#endif
