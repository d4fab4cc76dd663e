/*
 * scoreboard - marks on a connection's unacknowledged segments: SACKed, lost, sent again; and their sums.
 *
 * A segment is in one of these states; RETRANSMITTED never stands without LOST:
 *
 *   in flight ──found lost──> LOST ──sent again──> LOST RETRANSMITTED ──found lost again──> LOST
 *       └──────────────────────┴────────────────────────────┴── SACKed ──> SACKED      (acknowledged: gone)
 *
 * Two rules decide that a segment is lost:
 *   RFC 6675  dup_threshold segments above it have been SACKed. Counted in segments, not in bytes: each arrived by
 *             itself, and a conversation in small messages need not wait for three full ones. Not where segments
 *             have been seen to overtake each other: there only time tells.
 *   RFC 8985  one that was sent later has been delivered, and the time that reordering may take has passed. This finds
 *             losses at the end of what was sent, and retransmissions that are lost again. With SACK only.
 *
 * Segments that are lost are in one of two lists: those that wait to be sent again, and those that have been, the
 * oldest first. After a recount (a timeout, an undo, other sizes) both are in the order of sequence numbers. A
 * retransmission that is lost again may then be found a little later.
 *
 * Cost: an ACK without SACK blocks costs the segments that it acknowledges. An ACK with blocks also costs the segments
 * newly SACKed and those newly checked. For each block it costs a bisection, and a step for each sixteen segments in it
 * that the last ACK did not name (sack_index.h). The list is walked whole after a timeout and an undo.
 *
 * Threads: the driver. Example: test/test_recovery.c.
 */
#ifndef VMA_TCP_LOSS_SCOREBOARD_H
#define VMA_TCP_LOSS_SCOREBOARD_H

#include "../lwip/port.h"
#include "../tcp_priv.h"

#define DUP_THRESHOLD 3       /* RFC 5681 */
#define DUP_THRESHOLD_MAX 300 /* tcp_max_reordering */

static inline uint32_t seg_seq(const struct tcp_seg *seg)
{
	return lwip_ntohl(seg->tcphdr->seqno);
}
static inline uint32_t seg_len(const struct tcp_seg *seg)
{
	return TCP_TCPLEN(seg);
}
static inline uint32_t seg_end(const struct tcp_seg *seg)
{
	return seg_seq(seg) + seg_len(seg);
}
static inline bool scoreboard_conn_has_sack_enabled(const struct vma_tcp_conn *conn)
{
	return conn->pcb->flags & TF_SACK;
}
/* Bytes sent and not acknowledged. */
static inline uint32_t scoreboard_bytes_unacked(const struct vma_tcp_conn *conn)
{
	return conn->pcb->snd_nxt - conn->pcb->lastack;
}
/* Bytes that are lost and have not been sent again. */
static inline uint32_t scoreboard_bytes_to_resend(const struct vma_tcp_conn *conn)
{
	return conn->recovery.lost_bytes - conn->recovery.retransmitted_bytes;
}

/*
 * a was sent after b. RFC 8985 5.2 compares times, and numbers of bytes where these are equal. Here all that one run
 * sends has the same time, and what is sent again may leave behind what is new: it would be lost at once.
 */
static inline bool scoreboard_sent_after(uint32_t a_number, uint32_t b_number)
{
	return (int32_t)(a_number - b_number) > 0;
}
/* seg has been delivered, as it was sent last: RFC 8985 6.2, step 2. */
static inline void scoreboard_update_newest_delivered(struct tcp_recovery *r, const struct tcp_seg *seg,
                                                      uint64_t now_ns)
{
	if (r->rack_sent_ns && !scoreboard_sent_after(seg->send_number, r->rack_number))
		return;
	r->rack_sent_ns = seg->sent_ns;
	r->rack_number = seg->send_number;
	r->rack_rtt_ns = now_ns - seg->sent_ns;
}

/* What ack->ackno acknowledges leaves the sums; it is still in the list. Notes in recovery.delta. */
void scoreboard_drop_acked(struct vma_tcp_conn *conn, const struct tcp_ack *ack);
void scoreboard_apply_sack(struct vma_tcp_conn *conn, const struct tcp_ack *ack);
/* What begins at seq has arrived after others, up to high_sacked, that were sent later. The path does that, so it is to
 * be awaited. */
void scoreboard_on_reordering(struct vma_tcp_conn *conn, uint32_t seq, uint32_t high_sacked);
void scoreboard_detect_losses(struct vma_tcp_conn *conn); /* marks what is lost, sets recovery.reorder_due_ns */
void scoreboard_mark_lost(struct vma_tcp_conn *conn, struct tcp_seg *seg);
void scoreboard_mark_all_lost(struct vma_tcp_conn *conn); /* but what is SACKed */
void scoreboard_unmark_all_lost(struct vma_tcp_conn *conn);
struct tcp_seg *scoreboard_next_lost(struct vma_tcp_conn *conn); /* that waits; NULL */
void scoreboard_on_resent(struct vma_tcp_conn *conn, struct tcp_seg *seg);
/* seg has become two, which carry the same marks; the sums are what they were. */
void scoreboard_on_segment_split(struct vma_tcp_conn *conn, struct tcp_seg *seg, struct tcp_seg *half);
void scoreboard_recount_bytes(struct vma_tcp_conn *conn); /* all sums from the marks, all searches from the head */
void scoreboard_reset(struct vma_tcp_conn *conn);         /* no segment is there any more */

#endif
