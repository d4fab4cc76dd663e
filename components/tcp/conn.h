/*
 * conn - a connection: its structure.
 *
 * Threads: the driver is the thread that holds the receive flag of the ring. The sections of the structure say which
 * fields other threads read and write. These are the shared section, by atomics, and one side of each fifo, by its
 * reader or writer.
 */
#ifndef VMA_TCP_CONN_H
#define VMA_TCP_CONN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <vma/tcp.h>

#include "cc/cc.h"
#include "cc/rate.h"
#include "fifo.h"
#include "loss/loss.h"
#include "rx/window.h"
#include "timer/rtt.h"
#include "timer/timer.h"
#include "timer/wheel.h"
#include "tx/output.h"

struct pbuf;
struct tcp_pcb;
struct tcp_zcopy;

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

#endif
