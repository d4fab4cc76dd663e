/*
 * tcp_priv - the stack and a connection, shared by the files of tcp.
 *
 *   file                   noun                                               calls
 *   stack.c                struct vma_tcp: runs, due, ready list, frames out  everything below
 *   conn.c                 a connection's life: made, owned, stepped, freed
 *   connect.c              the active open; initial sequence numbers
 *   close.c                how connections end: FIN, RST, orphans
 *   state.c                what is published: state, readiness, events
 *   rx/read.c, tx/write.c  the application's side of the two fifos
 *   rx/input.c             a burst's segments of one connection into lwIP     recovery_ack_*, rx/window.c
 *   rx/pingpong.c          the fastest path of a burst that is one message    recovery_sole_segment_acked, rx/window.c
 *   tx/output.c            from the send fifo into segments and frames        recovery_*
 *   rx/predict.c           the fast path of the usual segment that comes,
 *   tx/compose.c           and of the usual one that leaves
 *   loss/recovery.c        recovery begins and ends, retransmission, undo     loss/scoreboard.c, timer/rtt.c, cc/cc.c
 *   loss/scoreboard.c      marks on segments: SACKed, lost, sent again
 *   cc/rate.c              how fast what is sent is delivered, and leaves
 *   timer/timers.c         what each timer of a connection does               timer/persist.c, keepalive.c, wheel.c
 *   rx/window.c            receive window and buffer sizes, delayed ACKs
 *   listener.c             half-open connections, accept
 *   control.c              the same, left to a thread of the host's choice
 *   syncookie.c            a request that the peer keeps in our place
 *   pending.c              connections that wait for accept, and that another process may take
 *   timewait.c             what is left of a connection in TIME_WAIT
 *   export.c               a connection leaves for another stack
 *   move.c                 a connection changes to another stack of this process
 *   minisocks.c            what connections leave to the device's owner when their process ends
 *   fifo.c                 bytes from one thread to another
 *   zcopy.c                payload that stays in its frames, and an owner that inspects it
 *   lwip/port.c            what lwIP asks of its surroundings, and calls back
 *
 * Threads: the *driver* is the thread that holds the receive flag of the ring. Functions run in the driver, unless they
 * say "any thread". The sections of struct vma_tcp_conn and struct vma_tcp say which fields other threads read and
 * write. These are the shared section, by atomics, and one side of each fifo, by its reader or writer.
 */
#ifndef VMA_TCP_PRIV_H
#define VMA_TCP_PRIV_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <vma/tcp.h>

#include "cc/cc.h"
#include "fifo.h"
#include "loss/loss.h"
#include "rx/input.h"
#include "rx/window.h"
#include "timer/timer.h"
#include "tx/output.h"
#include "cc/rate.h"
#include "timer/rtt.h"
#include "timer/wheel.h"

struct tcp_pcb;
struct tcp_seg;
struct pbuf;
struct tcp_wait_slot;
struct tcp_control_queue;
struct tcp_zcopy;

#define TCP_NS_PER_MS 1000000ULL
#define TCP_NS_PER_S 1000000000ULL

/* What is left to do for a connection: bits of conn->work, posted by any thread, done by the driver. */
enum tcp_work_bits {
	TCP_WORK_SEND = 1 << 0,
	TCP_WORK_WINDOW = 1 << 1, /* the reader has made room */
	TCP_WORK_SHUT_WR = 1 << 2,
	TCP_WORK_CLOSE = 1 << 3,
	TCP_WORK_ABORT = 1 << 4,
	TCP_WORK_OPTIONS = 1 << 5,
	TCP_WORK_PATH = 1 << 6,
	TCP_WORK_ICMP = 1 << 7,
	TCP_WORK_CONNECT = 1 << 8,
	TCP_WORK_UNUSED = 1 << 9,     /* the last reference but the stack's own has gone */
	TCP_WORK_FREED = 1 << 10,     /* it is the host's to free: no command is queued any more */
	TCP_WORK_KEEPALIVE = 1 << 11, /* whether the peer still has the connection */
	TCP_WORK_ZCOPY = 1 << 12,     /* zcopy.c: it begins; what waited for an inspector is done with */
};
/* Bits of conn->rx_mode. Without any the next segment in order is copied into the receive fifo. */
enum tcp_rx_mode {
	RX_SHUT = 1 << 0,  /* by this side; any thread */
	RX_FIN = 1 << 1,   /* end of stream after the last byte of rx; driver */
	RX_ZCOPY = 1 << 2, /* zcopy.c takes it; driver */
};

struct vma_tcp_conn {
	/* ---- constant after it was made ---- */
	struct vma_tcp *tcp;     /* until it moves, with both receive flags held: move.c. Others: tcp_stack_now */
	struct vma_flow_key key; /* local is this side */

	/* ---- shared ---- */
	_Alignas(64) _Atomic uint32_t work; /* enum tcp_work_bits; 0 -> anything: whoever did it posts `command` */
	_Atomic uint32_t refs;
	_Atomic uint32_t pending; /* its place among what waits for accept, and 1; 0: none. pending.c */
	_Atomic int state;        /* TCP_* as applications see it; pcb's, published after each step */
	_Atomic int error;
	_Atomic uint32_t
	        readiness; /* EPOLL*: what is not computed from the fifos (HUP, RDHUP, ERR, PRI, CONNECTED as OUT) */
	_Atomic uint8_t rx_mode;         /* enum tcp_rx_mode */
	_Atomic bool shut_wr;            /* by this side */
	_Atomic bool wants_tx_space;     /* a writer found none: tell it */
	_Atomic uint64_t sndbuf, rcvbuf; /* limits of now, bytes */
	_Atomic uint64_t acked;          /* bytes of tx released */
	_Atomic uint64_t snd_max;        /* bytes of tx that have been sent at least once */
	_Atomic int32_t option[VMA_TCP_OPT_COUNT];
	_Atomic(const struct vma_tcp_conn_ops *) owner;
	void *_Atomic owner_arg;
	struct vma_ring_command command;
	struct vma_tcp *posted_to;     /* with the command: the stack whose driver has it */
	struct tcp_fifo tx;            /* produced by the writer, consumed (released when acknowledged) by the driver */
	struct tcp_fifo rx;            /* produced by the driver, consumed by the reader */
	_Atomic int64_t urgent_at;     /* stream offset of the urgent byte in rx; -1: none */
	_Atomic int64_t urgent_passed; /* stream offset behind those before it that the reader steps over; -1: none */
	_Atomic int urgent_byte;       /* -1: not there (any more) */
	size_t rx_step;                /* reader's: bytes that its last look at the front has stepped over */
	struct tcp_zcopy *_Atomic zcopy; /* zcopy.c; NULL: all that comes is copied */

	/* posted values: each is exchanged for NULL or 0 by the driver */
	struct vma_tcp_path *_Atomic path_request; /* exchanged; the driver frees it after copying */
	_Atomic uint64_t icmp_request;             /* type << 56 | code << 48 | mtu << 32 | seq; the last one counts */

	/* ---- driver's ---- */
	_Alignas(64) struct tcp_pcb *pcb; /* NULL: not yet, or no longer */
	struct vma_flow flow;
	bool attached, steered, closing, aborting, fin_queued, in_ready, connected, passive;
	bool exported;   /* its end is not the connection's */
	bool rule_asked; /* a listener that covered it has asked for a rule, and has ended */
	bool moving;     /* its rule is on the way to another queue pair: its flow does not end before that is over */
	struct vma_tcp_conn *next_ready;    /* has packets of this burst, or output to do */
	struct vma_buf *burst, *burst_last; /* packets of this burst, linked by vma_buf.user */
	struct vma_tcp_listener *listener;  /* half-open: whose */
	struct vma_tcp_conn *next_half_open, **prev_half_open;
	struct vma_tcp_conn *next_all, **prev_all;
	struct vma_tcp_path path;
	uint32_t mss;               /* bytes of data per segment now, options deducted */
	uint16_t ip_id;             /* of the next segment: its own, or peers would see how much others are sent */
	uint32_t clock_shift_ms;    /* of its time stamps from the stack's: it came from another stack (move.c) */
	uint64_t lwip_end;          /* bytes of tx that lwIP has in segments (stream offset) */
	_Atomic uint64_t more_from; /* writer's: bytes from here on may wait for more; UINT64_MAX: none */
	_Atomic uint64_t urgent_tx; /* writer's: stream offset behind the urgent byte to send; 0: none */
	struct tcp_rtt rtt;
	struct tcp_cc cc;
	struct tcp_rate rate; /* with a model, as pace */
	struct tcp_pacing pace;
	struct tcp_recovery recovery;
	struct tcp_timer_node timer[TCP_TIMERS];
	struct tcp_window window; /* rx/window.h */
	uint64_t last_in_ns;      /* keepalive */
	uint64_t challenge_window_ns;
	uint32_t soft_error;
	uint64_t orphan_since_ns;
	uint64_t fin_wait_ns; /* in FIN_WAIT_2 without owner since; 0: is not */
	struct vma_tcp_counts counts;
	/* those with data, also what comes or leaves again */
	uint32_t data_segments_in, data_segments_out;
	uint32_t tx_seq, rx_seq;      /* sequence numbers of the streams' first bytes */
	uint32_t snd_sml;             /* end of the last short segment that was sent (Nagle as Minshall has it) */
	uint32_t snd_up;              /* behind the urgent byte; valid with urgent_mode */
	uint32_t peer_mss;            /* from its SYN */
	uint32_t isn_above;           /* the initial sequence number has to be that, for a 4-tuple used again; 0: any */
	uint32_t events, past_events; /* enum vma_tcp_event: to be told; told or not, for who adopts it later */
	uint32_t out_segments;        /* frames with an ACK since the connection began: did this step send one? */
	struct vma_tcp_conn *next_retry;
	struct vma_tcp_conn *next_dead;
	uint32_t todo;                    /* enum tcp_work_bits, taken from `work` */
	int fatal_error;                  /* why lwIP has freed the pcb */
	bool pushed;                      /* the last data carried PSH */
	bool data_received;               /* in this step */
	bool ack_received;                /* in this step */
	bool tx_space_freed;              /* in this step: perhaps a writer waits for it */
	uint32_t dsack_left, dsack_right; /* what came twice, for the next ACK; equal: nothing */
	uint32_t snd_wnd_max;             /* the largest window that the peer has announced */
	uint64_t created_ns;
	uint32_t held; /* not to be freed yet, although nobody has a reference */
	struct fifo_memory memory;
	struct vma_tcp_conn *next_small_mss;
	uint32_t small_mss_granted; /* frames: small_mss_quota.h */
	bool in_small_mss_queue;
	bool urgent_mode, in_retry, is_over, is_unused, is_orphan, is_busy, push_once, defer_data;
	/* published, see rx/window.c */
	_Alignas(64) _Atomic uint64_t rx_edge; /* stream offset up to which the peer may send */
	_Atomic uint32_t window_max;           /* the largest window: of the header's field, and of the ring */
	_Atomic bool ack_waits;                /* a delayed ACK, and reading everything is a reason to send it */
	_Atomic bool sends_ended;              /* writing is EPIPE: shut down, or over */
	_Atomic int error_pending;             /* error, until somebody has been told */
	_Atomic uint32_t options_changed;      /* bits 1 << enum vma_tcp_option, since TCP_WORK_OPTIONS was last done */
	_Atomic uint32_t mss_now;              /* mss */
	struct vma_stats_socket *_Atomic stats; /* of the owner's socket; NULL: none. info.c */
};

/* ---- the stack ---- */

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

/* state.c: the handshake is over, and TIME_WAIT has not begun (RFC 9293 3.3.2): another stack can go on with it. */
bool tcp_is_synchronized(const struct tcp_pcb *pcb);

/* Any other thread than the driver: the stack that the connection is on, or was until a moment ago (move.c). */
static inline struct vma_tcp *tcp_stack_now(const struct vma_tcp_conn *conn)
{
	return __atomic_load_n(&conn->tcp, __ATOMIC_ACQUIRE);
}

/* Where a sequence number not far from what was fed last lies in the stream; the SYN and the FIN count as bytes. */
static inline uint64_t tcp_tx_offset(const struct vma_tcp_conn *conn, uint32_t seq)
{
	int32_t back = (int32_t)(conn->tx_seq + (uint32_t)conn->lwip_end - seq);

	return conn->lwip_end - (uint64_t)(int64_t)back;
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

/* ---- pending.c: driver, but for the end, which is any thread's ---- */

void tcp_pending_init(struct vma_tcp *tcp);
bool tcp_pending_is_shared(const struct vma_tcp *tcp); /* other processes serve a listener of this stack's, too */
/* What a SYN-ACK begins with, the same in each process of a group, whenever it finds the SYN; 0: anything. */
uint32_t tcp_isn_same_in_all_processes(const struct vma_tcp *tcp, const struct vma_flow_key *key, uint32_t irs);
void tcp_pending_publish_half_open(struct vma_tcp_conn *conn); /* its SYN has come, and the SYN-ACK has not left */
bool tcp_pending_mark_queued(struct vma_tcp_conn *conn); /* the handshake is done; false: another process has it */
bool tcp_pending_withdraw(struct vma_tcp_conn *conn);    /* it is accepted, or over; false: as before */
bool tcp_pending_was_adopted(const struct vma_tcp_conn *conn);
bool tcp_has_pending_conns(const struct vma_tcp *tcp); /* there are some, of any listener */
bool tcp_pending_delay_ack(struct vma_tcp_conn *conn);
struct vma_buf *tcp_pending_make_peer_segment(struct vma_tcp *tcp, const struct vma_pending *pending, bool syn);
void tcp_pending_to_rx_info(const struct vma_pending *pending, struct vma_rx_info *info);
void tcp_listener_adopt_pending_conn(struct vma_flow *flow, const struct vma_pending *pending); /* listener.c */

/* ---- conn.c: driver ---- */

struct vma_tcp_conn *tcp_conn_new(struct vma_tcp *tcp, const struct vma_flow_key *key,
                                  const struct vma_tcp_options *options);
void conn_clean_up_after_pcb_freed(struct vma_tcp_conn *conn,
                                   int error); /* the pcb has gone: publish, tell, detach, put the stack's reference */
/* Ends it: the pcb is given up, with or without RST to the peer, then conn_clean_up_after_pcb_freed(conn, error).
 * Within lwip_enter or not. Nothing of the pcb may be used afterwards. */
void conn_fail_with_error(struct vma_tcp_conn *conn, int error, bool reset);
void tcp_conn_publish_state_and_events(struct vma_tcp_conn *conn); /* state and readiness from the pcb */
void tcp_pingpong_publish(
        struct vma_tcp_conn *conn); /* the same after tcp_pingpong_finish_if_nothing_to_send, and what is new is told */
static inline bool tcp_conn_is_orphan(const struct vma_tcp_conn *conn) /* closed by its application */
{
	return conn->is_orphan;
}
void tcp_conn_schedule_work(struct vma_tcp_conn *conn, uint32_t work);
/* info.c: what readers of the statistics see of a connection. */
void tcp_conn_fill_stats(struct vma_tcp_conn *conn, struct vma_stats_socket *stats) __attribute__((noinline));
static inline void tcp_conn_fill_stats_if_attached(struct vma_tcp_conn *conn)
{
	struct vma_stats_socket *stats = atomic_load_explicit(&conn->stats, memory_order_acquire);

	if (stats != NULL)
		tcp_conn_fill_stats(conn, stats);
}
void tcp_conn_run_step(struct vma_tcp_conn *conn);      /* what is posted, input, output, publication, events */
void tcp_conn_receive_burst(struct vma_tcp_conn *conn); /* what has come; its step is still to follow */
void tcp_conns_abandon_at_destroy(struct vma_tcp *tcp); /* the stack ends: all are over, */
void tcp_conns_free(struct vma_tcp *tcp);               /* and freed */
static inline int32_t tcp_option(const struct vma_tcp_conn *conn, enum vma_tcp_option option)
{
	return atomic_load_explicit(&conn->option[option], memory_order_relaxed);
}

/* ---- connect.c, close.c: driver ---- */

uint32_t tcp_isn(struct vma_tcp *tcp, const struct vma_flow_key *key);
void tcp_conn_move_to_stack(struct vma_tcp_conn *conn,
                            struct vma_tcp *to); /* from the list of its stack into another's */
/* A new pcb is the connection's: its callbacks, its windows for the SYN. Within lwip_enter. */
void tcp_pcb_attach(struct vma_tcp_conn *conn, struct tcp_pcb *pcb);
uint32_t tcp_mss_advertised(const struct vma_tcp_conn *conn);
void tcp_drop_unagreed_options(
        struct vma_tcp_conn *conn); /* the peer's SYN has been read: those that this side does not offer */
void tcp_conn_established(struct vma_tcp_conn *conn); /* the handshake is complete: sizes, windows, first samples */
void tcp_conn_apply_path(struct vma_tcp_conn *conn);  /* what was told, if anything; flag held */
void tcp_conn_mss_update(struct vma_tcp_conn *conn);  /* from path, options, the peer's SYN */
void conn_do_close_work(struct vma_tcp_conn *conn, uint32_t todo);
void tcp_close_fin(struct vma_tcp_conn *conn); /* everything is in segments: the FIN behind it */

/* ---- options.c, icmp.c: driver ---- */

void tcp_apply_changed_options(struct vma_tcp_conn *conn);
void tcp_handle_posted_icmp_error(struct vma_tcp_conn *conn);

/* ---- state.c, rx/read.c ---- */

void conn_set_ended(struct vma_tcp_conn *conn, int error);
uint64_t tcp_sndbuf_now(const struct vma_tcp_conn *conn); /* any thread: as far as there is memory */
bool tcp_request_writable_event_if_full(
        const struct vma_tcp_conn *conn);                       /* any thread: no room, and WRITABLE will be told */
bool conn_has_rx_bytes(const struct vma_tcp_conn *conn);        /* any thread */
void rx_consume_bytes(struct vma_tcp_conn *conn, size_t bytes); /* reader; whether the window opens is not asked */
/* Driver, before it makes room: whether a writer can be waiting for some. */
static inline bool tcp_may_have_waiting_writer(const struct vma_tcp_conn *conn)
{
	uint64_t sndbuf = atomic_load_explicit(&conn->sndbuf, memory_order_relaxed);

	return 3 * fifo_queued_bytes(&conn->tx) > sndbuf || tcp_option(conn, VMA_TCP_OPT_NOTSENT_LOWAT) != -1;
}
void tcp_conn_fin_received(struct vma_tcp_conn *conn); /* and all that came before it has been told */
/* conn->urgent_byte, but for the byte itself. */
enum { URGENT_NONE = -1, URGENT_EXPECTED = -2 };

/* Old urgent bytes from this stream offset on, which a reader there steps over. */
static inline size_t urgent_passed_from(const struct vma_tcp_conn *conn, uint64_t offset)
{
	int64_t passed = atomic_load_explicit(&conn->urgent_passed, memory_order_relaxed);

	return passed > (int64_t)offset ? (size_t)((uint64_t)passed - offset) : 0;
}

/* ---- listener.c: driver ---- */

void tcp_listeners_free(struct vma_tcp *tcp);
/* A half-open connection is no longer that; whether it was accepted. */
void tcp_half_open_end(struct vma_tcp_conn *conn);
/* Its handshake is complete: the owner of the listener gets it, or refuses it. */
void tcp_half_open_established(struct vma_tcp_conn *conn);
bool tcp_listener_sink(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info);
/*
 * control.c: driver, if host.control is there. hold: the segment is left for later; false: it is to be handled now.
 * takes: so is the step of this connection. end_run: at the end of each run. flush handles what is held; forget drops
 * what is held for a listener. fini, flush and forget do nothing if host.control is not there.
 */
int tcp_control_queue_init(struct vma_tcp *tcp);
void tcp_control_fini(struct vma_tcp *tcp);
bool tcp_control_queue_syn(struct vma_tcp *tcp, struct vma_flow *listener, struct vma_buf *packet,
                           const struct vma_rx_info *info);
bool tcp_control_queue_conn(struct vma_tcp_conn *conn);
void tcp_control_request_run_if_queued(struct vma_tcp *tcp);
void tcp_control_deliver_queued_syns(struct vma_tcp *tcp);
void tcp_control_drop_syns_of_listener(struct vma_tcp *tcp, const struct vma_flow *listener);
/* Of a listener's flow: a SYN would be answered by a cookie, or not at all; an ACK brings a cookie back. */
bool tcp_listener_sends_cookies(const struct vma_flow *flow);
bool tcp_listener_packet_has_valid_syn_cookie(const struct vma_flow *flow, struct vma_buf *packet);

/* ---- reply.c: driver ---- */

/* Answers to a packet that belongs to no connection, addresses exchanged. */
void tcp_reply_rst(struct vma_tcp *tcp, struct vma_buf *packet);
struct tcp_reply {
	uint32_t seq, ack;
	uint16_t window;
	uint8_t flags;
	bool has_ts;
	bool is_always; /* however many answers there have been */
	uint32_t ts_val, ts_ecr;
	uint8_t options[20], options_len; /* in place of time stamps */
};
void tcp_reply(struct vma_tcp *tcp, struct vma_buf *packet, const struct tcp_reply *reply);
/* To a packet that has gone: the frame of which `lower` was the start, as far as the IPv4 header (without options) at
 * l3_off, and the two ports of its TCP header. */
void tcp_reply_to_headers(struct vma_tcp *tcp, const uint8_t *lower, uint32_t l3_off, const uint8_t *ports,
                          const struct tcp_reply *reply);
bool tcp_take_reply_token(struct vma_tcp *tcp); /* one more now; counts it */

/* ---- export.c: driver ---- */

struct vma_flow_key
tcp_flow_key_of_packet(const struct vma_rx_info *info); /* listener.c: of the connection that it is about */

void tcp_remember_exported_conn(struct vma_tcp *tcp, const struct vma_flow_key *key, enum tcp_left_to left);
/* A NIC that gives the kernel what is not known here: for a second it is known that the connection ended here. */
void tcp_note_ended_conn(struct vma_tcp *tcp, const struct vma_flow_key *key);
/* Where the connection of a segment that no flow takes was last. */
enum tcp_left_to tcp_find_who_took_conn(const struct vma_tcp *tcp, const struct vma_rx_info *info);
/* Until when a packet may still be on its way here to a connection that has left for another stack; 0: it is to none.
 */
uint64_t tcp_exported_conn_remembered_until_ns(const struct vma_tcp *tcp, const struct vma_rx_info *info);

/* ---- stranger.c: driver ---- */

/*
 * No connection here takes the segment, which has ACK. It is not to be answered now, because the connection may be
 * elsewhere: it has just left for another stack; or the listener has a group, and another process has it; or SYN
 * cookies are out, and one that was lost would make it. A peer that may not send again is asked later.
 */
bool tcp_stranger_gets_no_reset(struct vma_tcp *tcp, struct vma_buf *packet, const struct vma_rx_info *info,
                                bool cookies);
void tcp_strangers_probe(struct vma_tcp *tcp); /* those that it is time for */

/* ---- timewait.c: driver ---- */

int timewait_init(struct vma_tcp *tcp);
void timewait_fini(struct vma_tcp *tcp);
void timewait_end_some(struct vma_tcp *tcp, uint32_t most); /* so many of them, if there are, now */
/* Takes over from a connection whose pcb is in TIME_WAIT: its flow goes on, the connection is over. */
void timewait_begin(struct vma_tcp_conn *conn);
/* For a record; also if there may be no more of them. False: later, or the peer's FIN, sent again, finds nobody. */
bool timewait_ensure_memory(struct vma_tcp *tcp);
/* Whether a new connection may use the 4-tuple now (RFC 6191; as the kernel, at once if the application asks for that
 * port, else after tcp_tw_reuse_delay): true ends the old one. LAST: see time_wait_ends in struct vma_tcp_conn_attr. */
enum timewait_reuse_rule { TIMEWAIT_USE_CHOSEN, TIMEWAIT_USE_BOUND, TIMEWAIT_USE_LAST };
bool timewait_end_if_reusable(struct vma_tcp *tcp, const struct vma_flow_key *key, enum timewait_reuse_rule use,
                              uint32_t *isn_above);
/* The local port, network order, of an old one with these addresses and this peer's port; 0: none is old enough, or
 * there are too many of others before it: who asks again looks further. */
uint16_t timewait_oldest_port(struct vma_tcp *tcp, const struct vma_flow_key *key);
/* The same for a connection that is there: one that was closed, and waits for the peer's end only. */
/* The peer has begun another connection, elsewhere. False: the flow is none of these. */
bool timewait_evict(struct vma_tcp *tcp, struct vma_flow *flow);
bool conn_end_for_tuple_reuse(struct vma_tcp_conn *conn, uint32_t *isn_above);
/* Whether one is there with this local port and address (NULL: any). As long as there are records. */
bool timewait_has_port(const struct vma_tcp *tcp, const uint8_t *local, uint16_t port_be);
void timewait_expire(struct vma_tcp *tcp); /* its timer has come */
uint32_t timewait_count(const struct vma_tcp *tcp);
/* The latest first, at most `most`, until `see` says true, which is the answer. */
bool timewait_for_each_latest(const struct vma_tcp *tcp, uint32_t most,
                              bool (*see)(const struct vma_flow_key *key, uint32_t snd_nxt, uint32_t rcv_nxt,
                                          void *arg),
                              void *arg);
void timewait_for_each(const struct vma_tcp *tcp,
                       void (*see)(const struct vma_flow_key *key, uint32_t snd_nxt, uint32_t rcv_nxt, void *arg),
                       void *arg);

/* minisocks.c: the owner of the device goes on for all, or `most`, of them. Control path; nothing ends here. */
/* False: nobody answers for them: the device has no owner that does, or could not be told. */
bool tcp_export_minisocks_to_nic_owner(struct vma_tcp *tcp, uint32_t most);

/* Of the way back to a peer that asks: its path is not known yet. */
static inline uint32_t tcp_mtu_for_syn_reply(const struct vma_tcp *tcp)
{
	return tcp->attr.mtu_max != 0 && tcp->attr.mtu_max < tcp->nic->mtu ? tcp->attr.mtu_max : tcp->nic->mtu;
}

#endif
