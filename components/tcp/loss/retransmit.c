/* retransmit.c - the segments that leave, and how many: lost segments first, then new ones; and tail-loss probes. */
#include <vma/probe.h>

#include "recovery.h"
#include "../small_mss_quota.h"

/* ---- new data ---- */

void recovery_record_rate(struct vma_tcp_conn *conn, struct tcp_seg *seg, bool nothing_out)
{
	uint64_t now_ns = conn->tcp->now_ns;

	if (nothing_out)
		cc_on_restart_from_idle(&conn->cc, conn->rate.app_limited != 0, now_ns);
	rate_stamp_segment_on_send(&conn->rate, seg, nothing_out, now_ns);
	pacing_account_sent(&conn->pace, &conn->cc, seg->len, now_ns);
}

void recovery_on_segment_sent(struct vma_tcp_conn *conn, struct tcp_seg *seg)
{
	recovery_on_segment_sent_at(conn, seg, seg_seq(seg), seg_len(seg));
}

/* Lost segments go first. While F-RTO waits for its answer they do not, and two new ones may (RFC 5682 2.1). */
uint32_t recovery_new_bytes_allowed(const struct vma_tcp_conn *conn)
{
	const struct tcp_recovery *r = &conn->recovery;
	uint32_t pipe, cwnd = conn->cc.cwnd;

	if (!conn->pcb || (scoreboard_bytes_to_resend(conn) && r->frto < 2) ||
	    (!pacing_allows_send(&conn->pace, &conn->cc, conn->tcp->now_ns) && !r->probe_new))
		return 0;
	pipe = recovery_bytes_in_flight(conn);
	if (r->probe_new && cwnd < pipe + conn->cc.mss)
		cwnd = pipe + conn->cc.mss;
	return cwnd > pipe ? cwnd - pipe : 0;
}

bool recovery_has_unsent_data(const struct vma_tcp_conn *conn)
{
	const struct tcp_pcb *pcb = conn->pcb;
	uint32_t out = scoreboard_bytes_unacked(conn);

	if (pcb->snd_wnd < out + conn->cc.mss)
		return false;
	return pcb->unsent || fifo_produced(&conn->tx) - conn->lwip_end >= conn->cc.mss;
}

static bool nothing_waits_to_be_sent(const struct vma_tcp_conn *conn)
{
	return !conn->pcb->unsent && fifo_produced(&conn->tx) == conn->lwip_end && !scoreboard_bytes_to_resend(conn);
}

static bool send_waits_for_pacing(const struct vma_tcp_conn *conn)
{
	return !pacing_allows_send(&conn->pace, &conn->cc, conn->tcp->now_ns) && !nothing_waits_to_be_sent(conn) &&
	       recovery_bytes_in_flight(conn) < conn->cc.cwnd;
}

bool recovery_waits_for_send_time(const struct vma_tcp_conn *conn)
{
	return conn->in_small_mss_queue || send_waits_for_pacing(conn);
}

void recovery_note_app_limited_or_set_pacing(struct vma_tcp_conn *conn)
{
	if (!cc_is_model_based(&conn->cc) || !conn->connected)
		return;
	if (nothing_waits_to_be_sent(conn) && recovery_bytes_in_flight(conn) < conn->cc.cwnd)
		rate_mark_app_limited(&conn->rate, recovery_bytes_in_flight(conn));
	else if (send_waits_for_pacing(conn))
		timers_set_pacing(conn, conn->pace.next_ns);
}

/* RFC 2861, before the first segment after a silence. */
static void decay_cwnd_after_idle(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;
	uint64_t silent_ns = conn->tcp->now_ns - r->last_sent_ns, rto_ns;

	if (conn->tcp->attr.no_idle_restart || conn->pcb->unacked || silent_ns < RTT_RTO_MIN_NS ||
	    r->last_sent_ns == 0 || (!conn->pcb->unsent && fifo_produced(&conn->tx) == conn->lwip_end))
		return;
	rto_ns = rtt_rto_ns(&conn->rtt, 0);
	if (silent_ns <= rto_ns)
		return;
	cc_decay_after_idle(&conn->cc, silent_ns, rto_ns);
	r->last_sent_ns = conn->tcp->now_ns;
}

/* ---- again ---- */

static int seg_retransmit_and_count(struct vma_tcp_conn *conn, struct tcp_seg *seg)
{
	struct tcp_recovery *r = &conn->recovery;
	int rc = tcp_output_retransmit(conn, seg);

	if (rc < 0)
		return rc;
	seg->sent_ns = conn->tcp->now_ns;
	seg->send_number = ++r->sends;
	if (cc_is_model_based(&conn->cc))
		recovery_record_rate(conn, seg, false);
	if (seg->sends < UINT8_MAX)
		seg->sends++;
	VMA_PROBE4(retransmitted, seg_seq(seg), seg_len(seg), conn->key.local_port_be, conn->key.peer_port_be);
	r->total_retransmits++;
	conn->counts.retransmits++;
	TCP_COUNT(conn->tcp, retransmits, 1);
	scoreboard_on_resent(conn, seg);
	if (r->state == TCP_RECOVERY_FAST)
		r->prr_out += seg_len(seg);
	if (seg == conn->pcb->unacked)
		r->rto_from_ns = conn->tcp->now_ns;
	return 0;
}

static int seg_resend_lost(struct vma_tcp_conn *conn, struct tcp_seg *seg)
{
	struct tcp_recovery *r = &conn->recovery;
	int rc = seg_retransmit_and_count(conn, seg);

	if (rc < 0)
		return rc;
	if (!r->undo_possible) {
		r->undo_possible = r->undo_first_ack = true;
		r->undo_ts = tcp_conn_clock_ms(conn);
	}
	r->undo_resends++;
	return 0;
}

/* Whether cwnd and the receiver's window, which may have shrunk, let it leave; the head is its own probe. */
static bool segment_may_be_resent(const struct vma_tcp_conn *conn, const struct tcp_seg *seg)
{
	uint32_t pipe = recovery_bytes_in_flight(conn);

	if (seg != conn->pcb->unacked && TCP_SEQ_GEQ(seg_seq(seg), conn->pcb->lastack + conn->pcb->snd_wnd))
		return false;
	return pipe == 0 || pipe + seg_len(seg) <= conn->cc.cwnd;
}

static bool retransmit_try_take_small_mss_quota(struct vma_tcp_conn *conn, const struct tcp_seg *seg)
{
	return seg == conn->pcb->unacked || !conn_has_small_mss(conn) || small_mss_quota_take(conn);
}

static int resend_lost(struct vma_tcp_conn *conn)
{
	struct tcp_seg *seg;
	int rc = 0;

	while (rc == 0 && pacing_allows_send(&conn->pace, &conn->cc, conn->tcp->now_ns) &&
	       (seg = scoreboard_next_lost(conn)) && segment_may_be_resent(conn, seg) &&
	       retransmit_try_take_small_mss_quota(conn, seg))
		rc = seg_resend_lost(conn, seg);
	return rc;
}

/*
 * RFC 6675 NextSeg (4): nothing is left to send, but what was sent last has not been SACKed. Once per recovery it goes
 * again, so that something comes back by which losses can be seen; not before its SACK could have come, though.
 * UINT64_MAX: it is not to be. (Rule (3), of segments that are not known to be lost, has no place here: time decides
 * about them, RFC 8985.)
 */
uint64_t recovery_rescue_due_ns(const struct vma_tcp_conn *conn)
{
	const struct tcp_recovery *r = &conn->recovery;
	const struct tcp_seg *last = conn->pcb->unacked_last;
	uint64_t srtt_ns = conn->rtt.srtt_ns;

	if (r->state != TCP_RECOVERY_FAST || r->rescued || !scoreboard_conn_has_sack_enabled(conn) ||
	    scoreboard_bytes_to_resend(conn) || recovery_has_unsent_data(conn) || last->marks ||
	    last == conn->pcb->unacked || recovery_bytes_in_flight(conn) + seg_len(last) > conn->cc.cwnd)
		return UINT64_MAX;
	return last->sent_ns + srtt_ns + srtt_ns / 4;
}

static int rescue_retransmit(struct vma_tcp_conn *conn)
{
	if (recovery_rescue_due_ns(conn) > conn->tcp->now_ns)
		return 0;
	conn->recovery.rescued = true; /* without a frame, too: there is another way, it only takes longer */
	return seg_retransmit_and_count(conn, conn->pcb->unacked_last);
}

/* ---- tail-loss probe, RFC 8985 7 ---- */

void recovery_request_tail_probe(struct vma_tcp_conn *conn)
{
	conn->recovery.probe_wanted = true;
	conn_enqueue_ready(conn);
}

static int send_tail_probe(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;
	int rc;

	if (r->state != TCP_RECOVERY_OPEN || r->tail_probe_out) {
		r->probe_wanted = false;
		return 0;
	}
	if (recovery_has_unsent_data(conn)) {
		r->probe_new = true; /* the output that follows sends it */
	} else {
		rc = seg_retransmit_and_count(conn, conn->pcb->unacked_last);
		if (rc < 0)
			return rc;
		r->tail_probe_out = r->tail_probe_again = true;
		r->tail_probe_end = conn->pcb->snd_nxt;
	}
	r->probe_wanted = false;
	r->rto_from_ns = conn->tcp->now_ns;
	conn->counts.tail_probes++;
	TCP_COUNT(conn->tcp, tail_probes, 1);
	return 0;
}

/*
 * 7.4.2. If what the probe repeated had been lost, the probe has repaired it without any sign: that must count as the
 * loss it was. If it had arrived, there is a DSACK, or an ACK twice.
 */
void recovery_tail_probe_acked(struct vma_tcp_conn *conn, const struct tcp_ack *ack)
{
	struct tcp_recovery *r = &conn->recovery;

	if (!r->tail_probe_out || TCP_SEQ_LT(ack->ackno, r->tail_probe_end))
		return;
	if (!r->tail_probe_again || r->delta.dsack) {
		r->tail_probe_out = false;
	} else if (TCP_SEQ_GT(ack->ackno, r->tail_probe_end)) {
		r->tail_probe_out = false;
		cc_on_loss(&conn->cc, scoreboard_bytes_unacked(conn) + r->delta.acked, conn->tcp->now_ns);
		cc_on_recovery_end(&conn->cc, conn->tcp->now_ns);
	} else if (!r->delta.acked && !r->delta.sacked && ack->payload == 0) {
		r->tail_probe_out = false;
	}
}

/* F-RTO's new segments get this output to leave in; if none did, all is as always. */
static bool frto_step(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;

	if (r->frto == 2)
		r->frto = 3;
	else if (r->frto == 3 && conn->pcb->snd_nxt == r->recover)
		r->frto = 0;
	return r->frto == 3;
}

int recovery_retransmit(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;
	int rc = 0;

	if (!conn->pcb)
		return 0;
	decay_cwnd_after_idle(conn);
	if (!conn->pcb->unacked) {
		r->probe_wanted = false;
		return 0;
	}
	if (r->probe_wanted)
		rc = send_tail_probe(conn);
	if (rc == 0 && !frto_step(conn))
		rc = resend_lost(conn);
	if (rc == 0)
		rc = rescue_retransmit(conn);
	r->pipe_bytes = recovery_bytes_in_flight(conn);
	return rc;
}
