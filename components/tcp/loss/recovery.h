/*
 * recovery - what recovery.c, its neighbours undo.c and retransmit.c, and rx/pingpong.c need of each other. loss.h has
 * what the rest of tcp calls.
 *
 * Threads: the driver.
 */
#ifndef VMA_TCP_LOSS_RECOVERY_H
#define VMA_TCP_LOSS_RECOVERY_H

#include "scoreboard.h"

/* undo.c: true if this ACK has shown that the recovery was spurious, and it has been taken back. */
bool recovery_undo_if_spurious(struct vma_tcp_conn *conn, const struct tcp_ack *ack);
/* undo.c: after a timeout, RFC 5682: new data instead of what is thought lost, to see whether that is needed. */
void recovery_frto_on_ack(struct vma_tcp_conn *conn);
/*
 * recovery.c, for rx/pingpong.c: both halves of what an ACK means where it is one for all that is out, recovery is OPEN
 * with nothing left to decide, and the connection has SACK. Any such ACK:
 */
static inline void recovery_all_acked_outside_recovery(struct vma_tcp_conn *conn)
{
	conn->recovery.probes = 0;
	conn->recovery.blocks = 0;
	conn->recovery.pipe_bytes = 0;
}
/* And if something was out, namely seg, unmarked, sent once; `acked` bytes of it are new. It is still there. */
void recovery_sole_segment_acked(struct vma_tcp_conn *conn, struct tcp_seg *seg, uint32_t acked);
/* retransmit.c: RFC 8985 7.4. */
void recovery_tail_probe_acked(struct vma_tcp_conn *conn, const struct tcp_ack *ack);
/* retransmit.c: a full segment waits, and the receiver's window has room for it. */
bool recovery_has_unsent_data(const struct vma_tcp_conn *conn);
/* retransmit.c: what a congestion control with a model wants to know of each segment that leaves. */
void recovery_record_rate(struct vma_tcp_conn *conn, struct tcp_seg *seg, bool nothing_out);

/* recovery_on_segment_sent of a segment whose place is known: len numbers from seq on. */
static inline void recovery_on_segment_sent_at(struct vma_tcp_conn *conn, struct tcp_seg *seg, uint32_t seq,
                                               uint32_t len)
{
	struct tcp_recovery *r = &conn->recovery;
	const uint64_t now_ns = conn->tcp->now_ns;
	const uint32_t lastack = conn->pcb->lastack, end = seq + len, out = end - lastack;

	seg->sent_ns = seg->first_sent_ns = now_ns;
	seg->send_number = ++r->sends;
	seg->sends = 1;
	seg->marks = 0;
	if (seq == lastack)
		r->rto_from_ns = now_ns; /* nothing else was on its way: RFC 6298 5.1 */
	if (__builtin_expect(cc_is_model_based(&conn->cc), 0))
		recovery_record_rate(conn, seg, seq == lastack);
	r->probe_from_ns = r->last_sent_ns = now_ns;
	if (__builtin_expect(r->state == TCP_RECOVERY_FAST, 0))
		r->prr_out += len;
	if (r->flight_max == 0 || TCP_SEQ_GEQ(lastack, r->flight_max_end)) {
		r->flight_max = 0;
		r->flight_max_end = end;
		r->window_limited = false;
	}
	if (out > r->flight_max)
		r->flight_max = out;
	if (out + conn->cc.mss > conn->cc.cwnd)
		r->window_limited = true;
	if (__builtin_expect(r->probe_new, 0)) {
		r->probe_new = false;
		r->tail_probe_out = true;
		r->tail_probe_again = false;
		r->tail_probe_end = end;
	}
}

#endif
