/*
 * window - how much the peer may send, and when it is told so: receive window, buffer growth, delayed ACKs.
 *
 * Threads: the driver. window_wants_update: any thread, as a rule the reader; it reads published values only.
 */
#ifndef VMA_TCP_RX_WINDOW_H
#define VMA_TCP_RX_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

struct vma_tcp_conn;

/* What window.c notes of a connection. */
struct tcp_window {
	uint64_t delack_due_ns;         /* UINT64_MAX: no ACK waits; the timer may be set for earlier */
	uint32_t rcv_space_copied_seen; /* receive buffer growth as the kernel's: bytes read per round trip */
	uint64_t rcv_space_ns;
	uint64_t rcv_rtt_ns;
	uint32_t rcv_rtt_ecr, rcv_space;
	uint32_t quick_acks;       /* left to send at once */
	bool pingpong;             /* interactive: ACKs may be delayed */
	bool chooses;              /* the window is computed anew each time: zero-copy receive, or a test */
	bool ack_held;             /* in a fast stream, for a few microseconds */
	uint32_t acks_before_hold; /* ACKs to send before one is held again */
	uint32_t hold_failed;
	bool sacks_held;          /* behind a hole, for a twentieth of the round trip */
	uint32_t hole, hole_acks; /* rcv_nxt, and the ACKs that have said it while something behind it was there */
	uint32_t sacks_waiting;   /* bytes behind the hole that no ACK has reported */
	uint32_t sack_left, sack_right;             /* the block in which data has come last */
	uint32_t sack_places;                       /* from one block to another since the last ACK */
	uint64_t ack_ns;                            /* of the last one */
	uint64_t last_data_in_ns, last_data_out_ns; /* keepalive, info, idle restart (RFC 2861 as the kernel) */
	uint32_t rcv_wup;  /* rcv_nxt in the last ACK sent: what came since is not acknowledged */
	uint32_t rcv_mss;  /* estimate of the peer's segments */
	uint32_t rcv_edge; /* up to which sequence number the peer has been told that it may send */
	uint64_t ato_ns;   /* how long an ACK may wait for data that takes it along */
};

void window_init(struct vma_tcp_conn *conn);
void window_init_on_established(struct vma_tcp_conn *conn);
void tcp_apply_sndbuf_rcvbuf_options(struct vma_tcp_conn *conn); /* an option has changed */
void window_max_update(struct vma_tcp_conn *conn);               /* the ring has, or the round trip is known better */
/* `bytes` have come in order, in segments of `segment` bytes: an ACK now, or later. */
void window_on_data_received(struct vma_tcp_conn *conn, uint32_t bytes, uint32_t segment, bool push);
void window_on_fin(
        struct vma_tcp_conn *conn); /* the peer's, in order; before window_on_data_received of what came with it */
void window_after_read(struct vma_tcp_conn *conn); /* the reader has taken bytes */
/* What came had come before: the peer has to hear soon what has. */
void window_on_duplicate_data(struct vma_tcp_conn *conn, uint32_t left, uint32_t right);
/* `bytes` have been queued behind a hole, which flagged an ACK: may take the flag back for a while, unless it was
 * flagged before. */
void window_on_out_of_order_data(struct vma_tcp_conn *conn, uint32_t bytes, bool flagged);
/* What has come behind holes since the last ACK is in two blocks: the next one is to leave before more comes. */
bool window_new_sack_block_needs_ack(const struct vma_tcp_conn *conn);
void window_on_ack_sent(struct vma_tcp_conn *conn); /* an ACK is about to leave that reports what is behind holes */
/* The window field of a segment that leaves now, and that it acknowledges all that has come. */
uint16_t window_advertise(struct vma_tcp_conn *conn);
/* New data has left. An answer that comes soon after a question: a conversation. */
static inline void window_note_data_sent(struct tcp_window *window, uint64_t now_ns)
{
	if (window->last_data_in_ns != 0 && now_ns - window->last_data_in_ns < window->ato_ns)
		window->pingpong = true;
	window->last_data_out_ns = now_ns;
}
void window_delack_fired(struct vma_tcp_conn *conn); /* the ACK is due; the kernel's lesson from that */
void window_set_quickack(struct vma_tcp_conn *conn, bool on);
void window_publish_for_reader(struct vma_tcp_conn *conn);
void window_sndbuf_grow(struct vma_tcp_conn *conn);        /* as the kernel's tcp_sndbuf_expand, after an ACK */
bool window_wants_update(const struct vma_tcp_conn *conn); /* the reader's question; no lock */

#endif
