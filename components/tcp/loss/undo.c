/*
 * undo.c - takes a recovery back that was not needed: segments that were taken for lost had only been late. It is known
 * by
 *
 *   Eifel   RFC 3522, 4015   the first ACK that advances answers a time stamp from before the first retransmission
 *   DSACK   RFC 2883, 3708   each retransmission has been reported as come twice
 *   F-RTO   RFC 5682         after a timeout, something sent once is delivered while what was sent again is not needed
 */
#include "recovery.h"

static void recovery_undo_cwnd_reduction(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;
	bool was_reordered = r->state == TCP_RECOVERY_FAST && TCP_SEQ_GT(r->high_sacked, r->delta.una);

	if (was_reordered && scoreboard_conn_has_sack_enabled(conn))
		scoreboard_on_reordering(conn, r->delta.una, r->high_sacked);
	scoreboard_unmark_all_lost(conn);
	cc_undo_reduction(&conn->cc, r->undo_cwnd, r->undo_ssthresh);
	r->undo_possible = r->undo_first_ack = false;
	r->state = r->sacked_segments ? TCP_RECOVERY_DISORDER : TCP_RECOVERY_OPEN;
	r->frto = 0;
	r->backoff = 0;
	r->rack_sent_ns = 0; /* what was taken for the answer to a retransmission was none */
	r->dup_acks = r->dup_bytes = 0;
	conn->counts.spurious++;
	TCP_COUNT(conn->tcp, spurious, 1);
}

static bool undo_by_eifel(struct tcp_recovery *r, const struct tcp_ack *ack)
{
	if (!r->undo_first_ack || !r->delta.acked)
		return false;
	r->undo_first_ack = false;
	return r->state >= TCP_RECOVERY_FAST && ack->has_ts && ack->ts_ecr && TCP_SEQ_LT(ack->ts_ecr, r->undo_ts);
}

/*
 * With SACK, the delivery of something sent once is enough: had it been there before the timeout, a SACK would have
 * said so. Without, the ACK must not cover anything sent again, or it may have waited at the receiver.
 */
static bool frto_says_timeout_was_spurious(const struct vma_tcp_conn *conn)
{
	const struct tcp_recovery *r = &conn->recovery;

	return r->state == TCP_RECOVERY_LOSS && r->frto && r->delta.original &&
	       (scoreboard_conn_has_sack_enabled(conn) || (r->delta.acked && !r->delta.resent));
}

bool recovery_undo_if_spurious(struct vma_tcp_conn *conn, const struct tcp_ack *ack)
{
	struct tcp_recovery *r = &conn->recovery;
	bool by_dsack = r->undo_possible && r->delta.dsack && r->undo_resends == 0;
	bool by_time_stamp = undo_by_eifel(r, ack);

	if (!by_dsack && !by_time_stamp && !frto_says_timeout_was_spurious(conn))
		return false;
	if (r->state == TCP_RECOVERY_FAST || r->state == TCP_RECOVERY_LOSS) {
		recovery_undo_cwnd_reduction(conn);
		return true;
	}
	/* The recovery is over already: only the window is to be given back. */
	cc_undo_reduction(&conn->cc, r->undo_cwnd, r->undo_ssthresh);
	r->undo_possible = false;
	conn->counts.spurious++;
	TCP_COUNT(conn->tcp, spurious, 1);
	return false;
}

void recovery_frto_on_ack(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;

	/* 2.1, step 2: an ACK that advances lets two new segments leave; without any, as always. */
	if (r->frto == 1 && r->delta.acked && recovery_has_unsent_data(conn))
		r->frto = 2;
	else if (r->delta.acked || r->delta.dup || r->delta.sacked)
		r->frto = 0;
}
