/*
 * scoreboard.c - marks on unacknowledged segments, and the two rules by which a segment is lost: RFC 6675 and RFC 8985.
 */
#include "sack_index.h"
#include "scoreboard.h"

#define REORDER_STEPS_MAX 64

/* ---- what is lost: two lists ---- */

/* after is in the list; NULL: before all that is there. */
static void lost_list_insert(struct tcp_seg_list *list, struct tcp_seg *after, struct tcp_seg *seg)
{
	struct tcp_seg *before = after != NULL ? after->lost_next : list->first;

	seg->lost_prev = after;
	seg->lost_next = before;
	*(after != NULL ? &after->lost_next : &list->first) = seg;
	*(before != NULL ? &before->lost_prev : &list->last) = seg;
}

static void lost_list_remove(struct tcp_seg_list *list, struct tcp_seg *seg)
{
	*(seg->lost_prev != NULL ? &seg->lost_prev->lost_next : &list->first) = seg->lost_next;
	*(seg->lost_next != NULL ? &seg->lost_next->lost_prev : &list->last) = seg->lost_prev;
}

/* Of a segment that is lost. */
static struct tcp_seg_list *lost_list_of(struct tcp_recovery *r, const struct tcp_seg *seg)
{
	return seg->marks & SEG_RETRANSMITTED ? &r->resent : &r->waiting;
}

/*
 * Behind all others, if it is; behind the one that came before it, if that is its place: what one check finds comes in
 * a row. Else, being lost once more, before all others. So no walk is needed, and the order is that of sequence
 * numbers but for what a peer makes of it.
 */
static void lost_list_add_waiting(struct tcp_recovery *r, struct tcp_seg *seg)
{
	struct tcp_seg *after = r->waiting.last, *recent = r->lost_last;

	if (after != NULL && TCP_SEQ_LT(seg_seq(seg), seg_seq(after)))
		after = recent != NULL && TCP_SEQ_GT(seg_seq(seg), seg_seq(recent)) ? recent : NULL;
	lost_list_insert(&r->waiting, after, seg);
	r->lost_last = seg;
}

/* ---- what has been delivered ---- */

/*
 * The original's, not the repetition's (RFC 8985 6.2, step 2): too quick; or by a time stamp from before it, which an
 * ACK for something out of order always bears, so that it must be one that advances.
 */
static bool ack_is_for_original_send(const struct vma_tcp_conn *conn, const struct tcp_seg *seg,
                                     const struct tcp_ack *ack)
{
	uint64_t now_ns = conn->tcp->now_ns;
	uint32_t ms_ago = (uint32_t)(now_ns / TCP_NS_PER_MS - seg->sent_ns / TCP_NS_PER_MS);

	if (now_ns - seg->sent_ns < conn->rtt.min_ns)
		return true;
	return TCP_SEQ_LEQ(seg_end(seg), ack->ackno) && ack->has_ts && ack->ts_ecr &&
	       TCP_SEQ_LT(ack->ts_ecr, tcp_conn_clock_ms(conn) - ms_ago);
}

/* RFC 8985 6.2, step 2, and the rest of it. */
static void rack_update_newest_delivered(struct vma_tcp_conn *conn, const struct tcp_seg *seg,
                                         const struct tcp_ack *ack)
{
	if (seg->sends > 1 && ack_is_for_original_send(conn, seg, ack))
		return;
	scoreboard_update_newest_delivered(&conn->recovery, seg, conn->tcp->now_ns);
}

void scoreboard_on_reordering(struct vma_tcp_conn *conn, uint32_t seq, uint32_t high_sacked)
{
	struct tcp_recovery *r = &conn->recovery;
	uint32_t distance = (high_sacked - seq + conn->cc.mss - 1) / conn->cc.mss;

	r->reordering_seen = true;
	if (distance > r->dup_threshold)
		r->dup_threshold = distance < DUP_THRESHOLD_MAX ? distance : DUP_THRESHOLD_MAX;
}

/* One acknowledgement, and the scoreboard as it was before. */
struct ack_context {
	const struct tcp_ack *ack;
	bool had_sacked;
	uint32_t high_sacked;
};

/* seg has arrived, as seen for the first time. */
static void seg_delivered(struct vma_tcp_conn *conn, struct tcp_seg *seg, const struct ack_context *of)
{
	struct tcp_recovery *r = &conn->recovery;

	if (cc_is_model_based(&conn->cc))
		rate_delivered(&conn->rate, seg, conn->tcp->now_ns);
	rack_update_newest_delivered(conn, seg, of->ack);
	if (seg->sends != 1) {
		r->delta.resent = true;
		return;
	}
	r->delta.rtt_ns = conn->tcp->now_ns - seg->sent_ns;
	if (r->delta.rtt_ns == 0)
		r->delta.rtt_ns = 1;
	if (r->recover_valid && TCP_SEQ_LEQ(seg_end(seg), r->recover))
		r->delta.original = true;
	if (of->had_sacked && TCP_SEQ_LT(seg_end(seg), of->high_sacked))
		scoreboard_on_reordering(conn, seg_seq(seg), of->high_sacked);
}

static void unmark_lost(struct tcp_recovery *r, struct tcp_seg *seg)
{
	if (!(seg->marks & SEG_LOST))
		return;
	lost_list_remove(lost_list_of(r, seg), seg);
	if (r->lost_last == seg)
		r->lost_last = NULL;
	r->lost_bytes -= seg_len(seg);
	if (seg->marks & SEG_RETRANSMITTED)
		r->retransmitted_bytes -= seg_len(seg);
	seg->marks &= (u8_t) ~(SEG_LOST | SEG_RETRANSMITTED);
}

/* seg leaves the list, and with it all before it: a search that has passed it begins at the head again. */
static void scoreboard_forget_cached_segment(struct tcp_recovery *r, const struct tcp_seg *seg)
{
	if (seg == r->checked) {
		r->checked = NULL;
		r->sacked_checked = 0;
	}
	if (seg == r->sack_index.last)
		sack_index_reset(&r->sack_index);
}

void scoreboard_drop_acked(struct vma_tcp_conn *conn, const struct tcp_ack *ack)
{
	struct tcp_recovery *r = &conn->recovery;
	struct ack_context of = {.ack = ack, .had_sacked = r->sacked_segments > 0, .high_sacked = r->high_sacked};
	uint32_t sacked = 0;

	for (struct tcp_seg *seg = conn->pcb->unacked; seg && TCP_SEQ_LEQ(seg_end(seg), ack->ackno); seg = seg->next) {
		if (seg->marks & SEG_SACKED) {
			sacked += seg_len(seg);
			r->sacked_bytes -= seg_len(seg);
			r->sacked_segments--;
			if (r->checked)
				r->sacked_checked--;
		} else {
			seg_delivered(conn, seg, &of);
		}
		unmark_lost(r, seg);
		seg->marks = 0;
		scoreboard_forget_cached_segment(r, seg);
	}
	r->delta.acked = ack->ackno - r->delta.una;
	r->delta.delivered = r->delta.acked > sacked ? r->delta.acked - sacked : 0;
	/* Karn: what arrived with a retransmission may have waited for it. */
	if (r->delta.resent)
		r->delta.rtt_ns = 0;
}

/* ---- SACK ---- */

struct sack_range {
	uint32_t left, right;
};

static void mark_sacked(struct vma_tcp_conn *conn, struct tcp_seg *seg, const struct ack_context *of)
{
	struct tcp_recovery *r = &conn->recovery;

	seg_delivered(conn, seg, of);
	unmark_lost(r, seg);
	seg->marks |= SEG_SACKED;
	r->sacked_bytes += seg_len(seg);
	if (r->sacked_segments++ == 0 || TCP_SEQ_GT(seg_end(seg), r->high_sacked))
		r->high_sacked = seg_end(seg);
	if (r->checked && TCP_SEQ_LEQ(seg_seq(seg), seg_seq(r->checked)))
		r->sacked_checked++;
	r->delta.sacked = true;
	r->delta.delivered += seg_len(seg);
}

/* The segments of which a part lies from `from` on and before `to`, of a block from left to right. */
static void sack_mark_block_part(struct vma_tcp_conn *conn, uint32_t from, uint32_t to, const struct sack_range *whole,
                                 const struct ack_context *of)
{
	struct sack_walk walk = sack_walk_from(conn, from);

	for (; walk.seg && TCP_SEQ_LT(seg_seq(walk.seg), to); sack_walk_next(conn, &walk)) {
		struct tcp_seg *seg = walk.seg;

		/* Whole segments only: a receiver that keeps a part of one gets it again. */
		if (seg->marks & SEG_SACKED || TCP_SEQ_LT(seg_seq(seg), whole->left) ||
		    TCP_SEQ_GT(seg_end(seg), whole->right))
			continue;
		mark_sacked(conn, seg, of);
		sack_walk_note_sacked(conn, &walk);
	}
}

/*
 * What the blocks of the last ACK cover is marked already: only the parts between them are searched. `to`: the end of
 * the part that begins at `at`. Returns whether that part is one of those blocks.
 */
static bool sack_range_was_in_last_ack(const struct tcp_recovery *r, uint32_t at, uint32_t *to)
{
	for (unsigned i = 0; i < r->blocks; i++) {
		uint32_t left = r->block[i].left, right = r->block[i].right;

		if (TCP_SEQ_LEQ(left, at) && TCP_SEQ_GT(right, at)) {
			*to = TCP_SEQ_LT(right, *to) ? right : *to;
			return true;
		}
		if (TCP_SEQ_GT(left, at) && TCP_SEQ_LT(left, *to))
			*to = left;
	}
	return false;
}

static void sack_mark_block(struct vma_tcp_conn *conn, uint32_t left, uint32_t right, const struct ack_context *of)
{
	const struct sack_range whole = {left, right};
	uint32_t at = left, to;

	for (; at != right; at = to) {
		to = right;
		if (!sack_range_was_in_last_ack(&conn->recovery, at, &to))
			sack_mark_block_part(conn, at, to, &whole, of);
	}
}

/* The first block may report something that came twice, RFC 2883 4: below ackno, or inside the second block. */
static bool is_dsack(const struct tcp_ack *ack)
{
	uint32_t left = ack->block[0].left, right = ack->block[0].right;

	if (!TCP_SEQ_LT(left, right))
		return false;
	if (TCP_SEQ_LEQ(right, ack->ackno))
		return true;
	return ack->blocks > 1 && TCP_SEQ_GEQ(left, ack->block[1].left) && TCP_SEQ_LEQ(right, ack->block[1].right);
}

static void count_dsack(struct vma_tcp_conn *conn, const struct tcp_ack *ack)
{
	struct tcp_recovery *r = &conn->recovery;
	uint32_t right = ack->block[0].right;

	if (TCP_SEQ_GT(right, conn->pcb->snd_nxt))
		return;
	if (r->dsacks >= r->total_retransmits)
		return; /* nothing of ours: the network has doubled it */
	r->dsacks++;
	r->delta.dsack = true;
	if (r->tail_probe_out && r->tail_probe_again && right == r->tail_probe_end)
		return; /* a probe was sent to find out, not because something was thought lost */
	/* RFC 8985 6.2, step 4: a quarter of the round-trip time more, once per round trip. */
	if ((r->reorder_steps == 0 || TCP_SEQ_GEQ(ack->ackno, r->reorder_round)) &&
	    r->reorder_steps < REORDER_STEPS_MAX) {
		r->reorder_steps++;
		r->reorder_round = conn->pcb->snd_nxt;
	}
	if (r->undo_possible && r->undo_resends > 0 && TCP_SEQ_GT(right, r->undo_una))
		r->undo_resends--;
}

static bool sack_block_is_plausible(const struct vma_tcp_conn *conn, const struct tcp_ack *ack, uint32_t left,
                                    uint32_t right)
{
	return TCP_SEQ_LT(left, right) && TCP_SEQ_GT(left, ack->ackno) && TCP_SEQ_GT(left, conn->pcb->lastack) &&
	       TCP_SEQ_LEQ(right, conn->pcb->snd_nxt);
}

void scoreboard_apply_sack(struct vma_tcp_conn *conn, const struct tcp_ack *ack)
{
	struct tcp_recovery *r = &conn->recovery;
	struct ack_context of = {.ack = ack, .had_sacked = r->sacked_segments > 0, .high_sacked = r->high_sacked};
	unsigned known = 0;

	if (ack->blocks > 0 && is_dsack(ack))
		count_dsack(conn, ack);
	if (ack->blocks > 0)
		sack_index_cover_unacked(conn,
		                         TCP_SEQ_GT(ack->ackno, conn->pcb->lastack) ? ack->ackno : conn->pcb->lastack);
	for (unsigned i = 0; i < ack->blocks; i++) {
		if (sack_block_is_plausible(conn, ack, ack->block[i].left, ack->block[i].right))
			sack_mark_block(conn, ack->block[i].left, ack->block[i].right, &of);
	}
	for (unsigned i = 0; i < ack->blocks; i++) {
		if (!sack_block_is_plausible(conn, ack, ack->block[i].left, ack->block[i].right))
			continue;
		r->block[known].left = ack->block[i].left;
		r->block[known++].right = ack->block[i].right;
	}
	r->blocks = known;
}

/* ---- what is lost ---- */

void scoreboard_mark_lost(struct vma_tcp_conn *conn, struct tcp_seg *seg)
{
	struct tcp_recovery *r = &conn->recovery;

	if (seg->marks & SEG_SACKED)
		return;
	unmark_lost(r, seg);
	seg->marks |= SEG_LOST;
	r->lost_bytes += seg_len(seg);
	r->delta.lost_new = true;
	r->delta.lost += seg_len(seg);
	lost_list_add_waiting(r, seg);
}

/* RFC 8985 6.2, step 4: how much later than others something may come. */
static uint64_t reorder_window_ns(const struct vma_tcp_conn *conn)
{
	const struct tcp_recovery *r = &conn->recovery;
	uint64_t window_ns = conn->rtt.min_ns / 4 * (r->reorder_steps + 1);

	if (!r->reordering_seen && (r->state >= TCP_RECOVERY_FAST || r->sacked_segments >= DUP_THRESHOLD))
		return 0;
	return window_ns < conn->rtt.srtt_ns ? window_ns : conn->rtt.srtt_ns;
}

/* RFC 8985 6.2, step 5. Not yet, but later: notes when. */
static bool check_lost_by_reo_window(struct vma_tcp_conn *conn, const struct tcp_seg *seg, uint64_t window_ns)
{
	struct tcp_recovery *r = &conn->recovery;
	uint64_t due_ns = seg->sent_ns + r->rack_rtt_ns + window_ns;

	if (r->rack_sent_ns == 0 || !scoreboard_sent_after(r->rack_number, seg->send_number))
		return false;
	if (due_ns <= conn->tcp->now_ns)
		return true;
	if (due_ns < r->reorder_due_ns)
		r->reorder_due_ns = due_ns;
	return false;
}

/* Segments are checked in order; the first that is not lost (yet) ends it, since what follows was sent later. */
static void detect_lost_originals(struct vma_tcp_conn *conn, uint64_t window_ns)
{
	struct tcp_recovery *r = &conn->recovery;

	for (struct tcp_seg *seg = r->checked ? r->checked->next : conn->pcb->unacked; seg; seg = seg->next) {
		if (seg->marks & SEG_SACKED) {
			r->sacked_checked++;
		} else if (!(seg->marks & SEG_LOST)) {
			bool by_count =
			        !r->reordering_seen && r->sacked_segments - r->sacked_checked >= r->dup_threshold;

			if (!by_count && !check_lost_by_reo_window(conn, seg, window_ns))
				return;
			scoreboard_mark_lost(conn, seg);
		}
		r->checked = seg;
	}
}

/* Retransmissions are lost by time only: the first that is not ends it, since all others were sent later. */
static void detect_lost_retransmissions(struct vma_tcp_conn *conn, uint64_t window_ns)
{
	struct tcp_seg *seg;

	while ((seg = conn->recovery.resent.first) != NULL && check_lost_by_reo_window(conn, seg, window_ns))
		scoreboard_mark_lost(conn, seg);
}

void scoreboard_detect_losses(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;
	uint64_t window_ns;

	r->reorder_due_ns = UINT64_MAX;
	if (!conn->pcb->unacked || !scoreboard_conn_has_sack_enabled(conn))
		return;
	window_ns = reorder_window_ns(conn);
	detect_lost_originals(conn, window_ns);
	detect_lost_retransmissions(conn, window_ns);
}

struct tcp_seg *scoreboard_next_lost(struct vma_tcp_conn *conn)
{
	return conn->recovery.waiting.first;
}

void scoreboard_on_resent(struct vma_tcp_conn *conn, struct tcp_seg *seg)
{
	struct tcp_recovery *r = &conn->recovery;

	if (!(seg->marks & SEG_LOST))
		return;
	lost_list_remove(lost_list_of(r, seg), seg);
	if (r->lost_last == seg)
		r->lost_last = NULL;
	if (!(seg->marks & SEG_RETRANSMITTED))
		r->retransmitted_bytes += seg_len(seg);
	seg->marks |= SEG_RETRANSMITTED;
	lost_list_insert(&r->resent, r->resent.last, seg);
}

void scoreboard_on_segment_split(struct vma_tcp_conn *conn, struct tcp_seg *seg, struct tcp_seg *half)
{
	struct tcp_recovery *r = &conn->recovery;

	if (half->marks & SEG_LOST)
		lost_list_insert(lost_list_of(r, seg), seg, half);
	sack_index_reset(&r->sack_index);
}

/* ---- all of them ---- */

void scoreboard_recount_bytes(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;

	scoreboard_reset(conn);
	for (struct tcp_seg *seg = conn->pcb ? conn->pcb->unacked : NULL; seg; seg = seg->next) {
		if (seg->marks & SEG_SACKED) {
			seg->marks = SEG_SACKED;
			r->sacked_bytes += seg_len(seg);
			r->sacked_segments++;
			r->high_sacked = seg_end(seg);
		}
		if (!(seg->marks & SEG_LOST)) {
			seg->marks &= (u8_t)~SEG_RETRANSMITTED;
			continue;
		}
		r->lost_bytes += seg_len(seg);
		if (seg->marks & SEG_RETRANSMITTED)
			r->retransmitted_bytes += seg_len(seg);
		lost_list_insert(lost_list_of(r, seg), lost_list_of(r, seg)->last, seg);
	}
}

/*
 * What was SACKed stays so, unless the head is: a receiver that acknowledges no further than that has thrown away what
 * it had SACKed (RFC 2018 8), and gets everything again.
 */
void scoreboard_mark_all_lost(struct vma_tcp_conn *conn)
{
	bool reneged = conn->pcb->unacked && conn->pcb->unacked->marks & SEG_SACKED;

	for (struct tcp_seg *seg = conn->pcb->unacked; seg; seg = seg->next)
		seg->marks = seg->marks & SEG_SACKED && !reneged ? SEG_SACKED : SEG_LOST;
	scoreboard_recount_bytes(conn);
}

void scoreboard_unmark_all_lost(struct vma_tcp_conn *conn)
{
	for (struct tcp_seg *seg = conn->pcb->unacked; seg; seg = seg->next)
		seg->marks &= SEG_SACKED;
	scoreboard_recount_bytes(conn);
}

void scoreboard_reset(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;

	r->sacked_bytes = r->lost_bytes = r->retransmitted_bytes = 0;
	r->sacked_segments = r->sacked_checked = 0;
	r->checked = r->lost_last = NULL;
	r->waiting = r->resent = (struct tcp_seg_list){NULL, NULL};
	sack_index_reset(&r->sack_index);
	r->blocks = 0;
	r->reorder_due_ns = UINT64_MAX;
}
