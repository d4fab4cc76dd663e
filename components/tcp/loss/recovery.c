/*
 * recovery.c - when recovery begins, how much may leave meanwhile, when it ends.
 *
 *            first SACK, duplicate ACK        something is lost
 *   OPEN ───────────────────────> DISORDER ──────────────────> FAST    cwnd by proportional rate reduction, RFC 6937
 *    ^ ^                             │                           │
 *    │ └─────────────────────────────┘                           │ timeout (from any state)
 *    │        `recover` is acknowledged, or it was spurious      v
 *    └───────────────────────────────────────────────────────── LOSS    slow start from one segment, RFC 5681 3.1
 *
 * recovery_retransmit alone, at the beginning of an output, decides what is sent again; everything else leaves marks.
 * Without SACK a duplicate ACK stands for a segment delivered out of order (dup_bytes), and three for the loss of the
 * head. An ACK that does not reach `recover` stands for the loss of the new head (NewReno, RFC 6582).
 */
#include "recovery.h"
#include "sack_index.h"

#define TS_RTT_MAX_MS 120000

void recovery_init(struct vma_tcp_conn *conn)
{
	conn->recovery = (struct tcp_recovery){.dup_threshold = DUP_THRESHOLD};
	scoreboard_reset(conn);
}

void recovery_reset_segment_state(struct vma_tcp_conn *conn)
{
	scoreboard_reset(conn);
	conn->recovery.dup_bytes = 0;
	conn->recovery.probe_wanted = conn->recovery.probe_new = conn->recovery.tail_probe_out = false;
}

uint32_t recovery_bytes_in_flight(const struct vma_tcp_conn *conn)
{
	const struct tcp_recovery *r = &conn->recovery;
	uint64_t gone = (uint64_t)r->sacked_bytes + r->dup_bytes + r->lost_bytes;
	uint64_t out;

	if (!conn->pcb)
		return 0;
	out = (uint64_t)scoreboard_bytes_unacked(conn) + r->retransmitted_bytes;
	return out > gone ? (uint32_t)(out - gone) : 0;
}

static bool recovery_in_handshake(const struct vma_tcp_conn *conn)
{
	return conn->pcb->state == SYN_SENT || conn->pcb->state == SYN_RCVD;
}

/* ---- the beginning of a recovery ---- */

static void save_undo_state(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;

	r->undo_possible = r->undo_first_ack = false;
	r->undo_resends = 0;
	r->undo_una = conn->pcb->lastack;
	r->undo_cwnd = conn->cc.cwnd;
	r->undo_ssthresh = conn->cc.ssthresh;
}

static void recovery_begin(struct vma_tcp_conn *conn, int state)
{
	struct tcp_recovery *r = &conn->recovery;

	r->state = state;
	r->recover = conn->pcb->snd_nxt;
	r->recover_valid = true;
	r->rescued = false;
	r->tail_probe_out = r->probe_wanted = r->probe_new = false;
}

static void recovery_enter_fast(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;
	uint32_t flight = scoreboard_bytes_unacked(conn);

	save_undo_state(conn);
	recovery_begin(conn, TCP_RECOVERY_FAST);
	r->prr_delivered = r->prr_out = 0;
	r->prr_flight = flight ? flight : 1;
	cc_on_loss(&conn->cc, flight, conn->tcp->now_ns);
	conn->counts.fast_recoveries++;
	TCP_COUNT(conn->tcp, fast_recoveries, 1);
}

/*
 * RFC 6937: of what is delivered, ssthresh / flight may be sent again while more than ssthresh is in flight; when less
 * is, it grows back to ssthresh, by one segment more than is delivered for each ACK that tells of no loss.
 */
static void prr_update(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;
	uint32_t pipe = recovery_bytes_in_flight(conn), ssthresh = conn->cc.ssthresh;
	uint64_t allowed;

	if (cc_is_model_based(&conn->cc))
		return; /* it has a way of its own */
	r->prr_delivered += r->delta.delivered;
	if (pipe > ssthresh) {
		allowed = ((uint64_t)r->prr_delivered * ssthresh + r->prr_flight - 1) / r->prr_flight;
		allowed = allowed > r->prr_out ? allowed - r->prr_out : 0;
	} else {
		allowed = r->prr_delivered > r->prr_out ? r->prr_delivered - r->prr_out : 0;
		if (allowed < r->delta.delivered)
			allowed = r->delta.delivered;
		if (r->delta.acked && !r->delta.lost_new)
			allowed += conn->cc.mss;
		if (allowed > ssthresh - pipe)
			allowed = ssthresh - pipe;
	}
	if (r->prr_out == 0 && allowed < conn->cc.mss)
		allowed = conn->cc.mss; /* fast retransmit */
	allowed += pipe;
	conn->cc.cwnd = allowed < CC_CWND_MAX ? (uint32_t)allowed : CC_CWND_MAX;
}

static void recovery_exit(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;

	if (r->state == TCP_RECOVERY_FAST)
		cc_on_recovery_end(&conn->cc, conn->tcp->now_ns);
	r->state = r->sacked_segments ? TCP_RECOVERY_DISORDER : TCP_RECOVERY_OPEN;
	r->frto = 0;
	r->dup_acks = r->dup_bytes = 0;
}

/* ---- an acknowledgement, before lwIP ---- */

/* RFC 5681, section 2 */
static bool is_duplicate_ack(const struct vma_tcp_conn *conn, const struct tcp_ack *ack)
{
	const struct tcp_pcb *pcb = conn->pcb;

	return pcb->unacked && ack->payload == 0 && ack->ackno == pcb->lastack && ack->window == pcb->snd_wnd;
}

void recovery_ack_before_lwip(struct vma_tcp_conn *conn, const struct tcp_ack *ack)
{
	struct tcp_recovery *r = &conn->recovery;
	struct tcp_pcb *pcb = conn->pcb;

	r->delta = (struct tcp_ack_delta){.una = pcb->lastack, .handshake = recovery_in_handshake(conn)};
	if (cc_is_model_based(&conn->cc)) {
		rate_reset_sample_at_ack_begin(&conn->rate);
		r->delta.in_flight = recovery_bytes_in_flight(conn);
	}
	if (TCP_SEQ_GT(ack->ackno, pcb->snd_nxt))
		return;
	r->probes = 0;
	if (TCP_SEQ_GT(ack->ackno, pcb->lastack))
		scoreboard_drop_acked(conn, ack);
	else
		r->delta.dup = is_duplicate_ack(conn, ack);
	if (scoreboard_conn_has_sack_enabled(conn))
		scoreboard_apply_sack(conn, ack);
}

/* ---- an acknowledgement, after lwIP ---- */

/* RFC 6298 4, 7323 4: by a segment that was sent once, else by the time stamp, if the ACK is for something new. */
static void recovery_rtt_sample(struct vma_tcp_conn *conn, const struct tcp_ack *ack)
{
	struct tcp_recovery *r = &conn->recovery;
	uint64_t rtt_ns = r->delta.rtt_ns;

	if (rtt_ns == 0 && r->delta.acked && ack->has_ts && ack->ts_ecr) {
		uint32_t ms = tcp_conn_clock_ms(conn) - ack->ts_ecr;

		if (ms < TS_RTT_MAX_MS)
			rtt_ns = (ms ? ms : 1) * TCP_NS_PER_MS;
	}
	if (rtt_ns == 0)
		return;
	rtt_sample(&conn->rtt, rtt_ns, conn->tcp->now_ns);
	r->backoff = 0;
}

/*
 * Without SACK: what duplicate ACKs stand for. An ACK for more eats up those of the segments it covers. With SACK a
 * duplicate ACK says nothing by itself: the answer to a tail-loss probe, or a window probe's, must not end the state in
 * which the next tail-loss probe is sent.
 */
static void count_duplicate_acks(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;
	uint32_t mss = conn->cc.mss, out = scoreboard_bytes_unacked(conn);

	if (r->delta.dup) {
		conn->counts.dup_acks_in++;
		TCP_COUNT(conn->tcp, dup_acks_in, 1);
	}
	if (scoreboard_conn_has_sack_enabled(conn))
		return;
	r->dup_acks += r->delta.dup;
	if (r->delta.dup && r->dup_bytes + mss < out) {
		r->dup_bytes += mss;
		r->delta.delivered = mss;
	} else if (r->delta.acked) {
		uint32_t beyond_head = r->delta.acked > mss ? r->delta.acked - mss : 0;
		uint32_t eaten = beyond_head < r->dup_bytes ? beyond_head : r->dup_bytes;

		r->dup_bytes -= eaten;
		r->delta.delivered = r->delta.acked - eaten;
		if (out <= mss)
			r->dup_bytes = 0;
	}
}

/* RFC 7661, as the kernel: the window counts as used when it was full, or in slow start half full, in this round. */
static bool cwnd_was_used(const struct vma_tcp_conn *conn)
{
	const struct tcp_recovery *r = &conn->recovery;

	return r->window_limited || (conn->cc.cwnd < conn->cc.ssthresh && conn->cc.cwnd / 2 < r->flight_max) ||
	       r->state == TCP_RECOVERY_LOSS;
}

static void recovery_grow_cwnd(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;

	if (r->delta.acked && !r->delta.handshake && !cc_is_model_based(&conn->cc))
		cc_on_ack(&conn->cc, r->delta.acked, cwnd_was_used(conn), r->delta.rtt_ns, conn->tcp->now_ns);
}

/* RFC 6582 3.2, step 1: duplicate ACKs that the last recovery's own retransmissions have caused begin no new one. */
static bool newreno_detects_loss(const struct vma_tcp_conn *conn)
{
	const struct tcp_recovery *r = &conn->recovery;

	return !scoreboard_conn_has_sack_enabled(conn) && r->delta.dup && r->dup_acks >= DUP_THRESHOLD &&
	       (!r->recover_valid || TCP_SEQ_GT(conn->pcb->lastack, r->recover));
}

static void recovery_ack_without_loss(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;

	if (newreno_detects_loss(conn))
		scoreboard_mark_lost(conn, conn->pcb->unacked);
	if (scoreboard_bytes_to_resend(conn)) {
		recovery_enter_fast(conn);
		prr_update(conn);
		return;
	}
	if (r->delta.acked)
		r->dup_acks = 0;
	r->state = r->sacked_segments || r->dup_acks ? TCP_RECOVERY_DISORDER : TCP_RECOVERY_OPEN;
	recovery_grow_cwnd(conn);
}

static void recovery_ack_in_fast_recovery(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;

	if (TCP_SEQ_GEQ(conn->pcb->lastack, r->recover)) {
		recovery_exit(conn);
		return;
	}
	if (!scoreboard_conn_has_sack_enabled(conn) && r->delta.acked && conn->pcb->unacked &&
	    !conn->pcb->unacked->marks)
		scoreboard_mark_lost(conn, conn->pcb->unacked);
	prr_update(conn);
}

static void recovery_ack_in_rto_recovery(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;

	recovery_grow_cwnd(conn);
	if (TCP_SEQ_GEQ(conn->pcb->lastack, r->recover))
		recovery_exit(conn);
	else if (r->frto)
		recovery_frto_on_ack(conn);
}

static void recovery_restart_timeouts(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;

	r->timeouts = 0;
	r->stuck_since_ns = 0;
	r->rto_from_ns = r->probe_from_ns = conn->tcp->now_ns;
}

/* As long as something is lost a recovery is going on: one that ends only for the next to begin has not ended. */
static int phase_of(const struct tcp_recovery *r)
{
	if (r->state == TCP_RECOVERY_LOSS)
		return CC_LOSS;
	return r->state == TCP_RECOVERY_FAST || r->lost_bytes ? CC_RECOVERY : CC_OPEN;
}

static void feed_cc_sample(struct vma_tcp_conn *conn)
{
	const struct tcp_recovery *r = &conn->recovery;
	struct tcp_cc_sample s = {.rtt_ns = r->delta.rtt_ns,
	                          .newly = r->delta.handshake ? 0 : r->delta.delivered,
	                          .lost = r->delta.lost,
	                          .in_flight = r->pipe_bytes,
	                          .prior_in_flight = r->delta.in_flight,
	                          .phase = phase_of(r)};

	rate_generate_sample_of_ack(&conn->rate, conn->rtt.min_ns, conn->tcp->now_ns, &s);
	if (cc_on_rate_sample(&conn->cc, &s, conn->tcp->now_ns))
		rate_mark_app_limited(&conn->rate, r->pipe_bytes);
}

/* Else the peer has said something, and it is no acknowledgement: the kernel's tcp_ack does not ask the model, either.
 */
static bool had_unacked_before_ack(const struct vma_tcp_conn *conn)
{
	return conn->pcb->snd_nxt != conn->recovery.delta.una;
}

void recovery_ack_after_lwip(struct vma_tcp_conn *conn, const struct tcp_ack *ack)
{
	struct tcp_recovery *r = &conn->recovery;

	if (conn->pcb->lastack != r->delta.una + r->delta.acked) { /* lwIP has seen it otherwise: what it did counts */
		scoreboard_recount_bytes(conn);
		r->delta.acked = conn->pcb->lastack - r->delta.una;
	}
	recovery_rtt_sample(conn, ack);
	count_duplicate_acks(conn);
	if (r->delta.acked)
		recovery_restart_timeouts(conn);
	recovery_tail_probe_acked(conn, ack);
	if (!recovery_undo_if_spurious(conn, ack)) {
		if (r->delta.acked || r->delta.sacked)
			scoreboard_detect_losses(conn);
		if (r->state == TCP_RECOVERY_FAST)
			recovery_ack_in_fast_recovery(conn);
		else if (r->state == TCP_RECOVERY_LOSS)
			recovery_ack_in_rto_recovery(conn);
		else
			recovery_ack_without_loss(conn);
	}
	r->pipe_bytes = recovery_bytes_in_flight(conn);
	if (cc_is_model_based(&conn->cc) && had_unacked_before_ack(conn))
		feed_cc_sample(conn);
	r->delta.acked = r->delta.delivered = 0;
}

/* All that was in flight, in one segment. */
static void recovery_rate_sample_sole(struct vma_tcp_conn *conn, struct tcp_seg *seg, uint32_t acked, uint64_t rtt_ns)
{
	struct tcp_recovery *r = &conn->recovery;

	rate_reset_sample_at_ack_begin(&conn->rate);
	rate_delivered(&conn->rate, seg, conn->tcp->now_ns);
	r->delta = (struct tcp_ack_delta){.delivered = acked, .in_flight = acked, .rtt_ns = rtt_ns};
	feed_cc_sample(conn);
	r->delta.delivered = 0;
}

/*
 * Of what a longer list would need there is left: the newest segment delivered, a sample, the window's growth. No
 * segment carries a mark, so all sums are 0 as they were; no search can be further than this segment; what it says of a
 * recovery before it is of interest only while that lasts.
 */
void recovery_sole_segment_acked(struct vma_tcp_conn *conn, struct tcp_seg *seg, uint32_t acked)
{
	struct tcp_recovery *r = &conn->recovery;
	uint64_t now_ns = conn->tcp->now_ns, rtt_ns = now_ns - seg->sent_ns;

	rtt_ns = rtt_ns ? rtt_ns : 1;
	scoreboard_update_newest_delivered(r, seg, now_ns);
	r->checked = NULL;
	sack_index_reset(&r->sack_index);
	r->sacked_checked = 0;
	r->reorder_due_ns = UINT64_MAX;
	rtt_sample(&conn->rtt, rtt_ns, now_ns);
	r->backoff = 0;
	recovery_restart_timeouts(conn);
	if (cc_is_model_based(&conn->cc))
		recovery_rate_sample_sole(conn, seg, acked, rtt_ns);
	else
		cc_on_ack(&conn->cc, acked, cwnd_was_used(conn), rtt_ns, now_ns);
}

/* ---- timeouts ---- */

void recovery_on_reorder_timeout(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;

	if (!conn->pcb)
		return;
	r->delta = (struct tcp_ack_delta){.una = conn->pcb->lastack};
	scoreboard_detect_losses(conn);
	if (scoreboard_bytes_to_resend(conn) && r->state < TCP_RECOVERY_FAST)
		recovery_enter_fast(conn);
	if (r->state == TCP_RECOVERY_FAST)
		prr_update(conn);
	conn_enqueue_ready(conn);
}

/*
 * RFC 6298 5.4 to 5.6, RFC 5681 3.1. ssthresh is reduced once for one loss: not if this was a recovery, nor if nothing
 * was acknowledged since the last timeout. A handshake's segment says nothing about the window (RFC 5681 3.1 speaks of
 * an initial window of one segment: the kernel keeps ten unless the handshake was lost twice; as here).
 */
void recovery_on_rto(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;
	bool old = r->state >= TCP_RECOVERY_FAST && TCP_SEQ_LT(conn->pcb->lastack, r->recover);
	bool first = !old || (r->state == TCP_RECOVERY_LOSS && r->timeouts == 0);

	if (!conn->pcb->unacked)
		return;
	if (r->timeouts++ == 0)
		r->stuck_since_ns = conn->tcp->now_ns;
	r->backoff++;
	r->rto_from_ns = conn->tcp->now_ns;
	conn->counts.timeouts++;
	TCP_COUNT(conn->tcp, timeouts, 1);
	if (first)
		save_undo_state(conn);
	if (!recovery_in_handshake(conn)) {
		if (first)
			cc_on_rto(&conn->cc, scoreboard_bytes_unacked(conn), conn->tcp->now_ns);
		conn->cc.cwnd = conn->cc.mss;
	} else if (r->timeouts > 1) {
		conn->cc.cwnd = conn->cc.mss;
	}
	tcp_output_join_short_segments(conn);
	scoreboard_mark_all_lost(conn);
	r->dup_acks = r->dup_bytes = 0;
	recovery_begin(conn, TCP_RECOVERY_LOSS);
	r->frto = (!old || r->timeouts > 1) && !recovery_in_handshake(conn) ? 1 : 0;
	conn_enqueue_ready(conn);
}

void recovery_begin_resend_of_oversized(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;

	scoreboard_recount_bytes(conn);
	r->dup_bytes = 0;
	/* Lost for their size, not by congestion (RFC 1191 6.4): sent again at once, and the window stays. */
	if (scoreboard_bytes_to_resend(conn) && r->state < TCP_RECOVERY_FAST) {
		save_undo_state(conn);
		recovery_begin(conn, TCP_RECOVERY_LOSS);
	}
}
