/*
 * loss - a connection's view of the bytes that it has sent: which are acknowledged, SACKed, lost or sent again.
 *
 * The header recovery.h has the functions that only the files of this folder call.
 *
 * Threads: the driver. info.c reads struct tcp_recovery with the receive flag, as the driver does.
 */
#ifndef VMA_TCP_LOSS_LOSS_H
#define VMA_TCP_LOSS_LOSS_H

#include <stdbool.h>
#include <stdint.h>

struct tcp_seg;
struct vma_tcp_conn;

/* Acknowledged data as the input side saw it, for recovery. */
struct tcp_ack {
	uint32_t ackno;
	uint32_t window;  /* scaled */
	uint32_t payload; /* bytes of data in the segment */
	bool has_ts;
	uint32_t ts_val, ts_ecr;
	unsigned blocks; /* SACK */
	struct {
		uint32_t left, right;
	} block[4];
};

/* What one segment's acknowledgement has brought: noted by recovery_ack_before_lwip, used by recovery_ack_after_lwip.
 * */
struct tcp_ack_delta {
	uint32_t una;       /* before it */
	uint32_t acked;     /* bytes that una moves on */
	uint32_t delivered; /* bytes that have left the network, by acknowledgement or SACK */
	uint32_t lost;      /* bytes that have been found lost */
	uint32_t in_flight; /* before it; for a congestion control with a model */
	uint64_t rtt_ns;    /* of the newest segment that was sent once; 0: none */
	bool dup;           /* RFC 5681 2: a duplicate acknowledgement */
	bool sacked;        /* new SACK information */
	bool dsack;         /* RFC 2883: something came twice */
	bool lost_new;      /* a segment has been found lost */
	bool original;      /* what has been delivered was sent once, before a recovery that is going on */
	bool resent;        /* something acknowledged had been sent more than once */
	bool handshake;     /* una was a SYN's */
};

/*
 * Loss detection and retransmission; recovery.c's own, but for what is read by info. Where a search goes on is kept as
 * the last segment that it has passed (NULL: none, it begins at the head of pcb->unacked), so that segments added at
 * the end need no care, and one that is freed takes all before it along.
 */
struct tcp_seg_list {
	struct tcp_seg *first, *last;
};
/* Where a SACK block's segments are: sack_index.h. */
struct tcp_sack_run {
	uint32_t seq, unsacked;
	struct tcp_seg *first;
};
struct tcp_sack_index {
	struct tcp_sack_run *at;
	uint32_t begin, end, capacity; /* those from begin to before end are in use; begin == end: there is no index */
	uint32_t last_length;          /* segments in the last one */
	struct tcp_seg *last;          /* as far as the index reaches */
};
struct tcp_recovery {
	enum { TCP_RECOVERY_OPEN, TCP_RECOVERY_DISORDER, TCP_RECOVERY_FAST, TCP_RECOVERY_LOSS } state;
	bool recover_valid;
	uint32_t recover;    /* RFC 6582/6675: snd_nxt when recovery began */
	uint32_t pipe_bytes; /* RFC 6675: in flight, by the scoreboard; as of the last ACK or retransmission */
	uint32_t sacked_bytes, lost_bytes, retransmitted_bytes; /* of segments that carry the mark */
	uint32_t sacked_segments;
	uint32_t high_sacked; /* end of the highest SACKed segment; valid with sacked_segments */
	uint32_t dup_acks, dup_threshold;
	uint32_t dup_bytes; /* without SACK: what duplicate ACKs say has been delivered out of order */
	uint32_t backoff;   /* doublings of the timeout, until there is a new sample of the round-trip time (Karn) */

	/* where searches go on: see above */
	struct tcp_seg *checked; /* up to here it is decided what is lost */
	uint32_t sacked_checked; /* SACKed segments up to there */
	struct tcp_sack_index sack_index;
	uint32_t sack_steps; /* segments and runs that have been looked at for SACK blocks, ever */
	unsigned blocks;     /* SACK blocks of the last ACK: what they cover needs no search */
	struct {
		uint32_t left, right;
	} block[4];

	/* scoreboard.h: what is lost, in the order in which it is to leave; and has left again, the oldest first */
	struct tcp_seg_list waiting, resent;
	struct tcp_seg *lost_last; /* the one that came to `waiting` last; NULL: it is not there any more */

	/* RFC 6937 */
	uint32_t prr_delivered, prr_out, prr_flight;
	/* RFC 8985: of the segments delivered, the one that was sent last */
	uint64_t rack_sent_ns, rack_rtt_ns;
	uint32_t rack_number;    /* its */
	uint32_t sends;          /* segments, all that were sent: the last one's number */
	uint64_t reorder_due_ns; /* when time decides about the next segment; UINT64_MAX: none waits for that */
	uint32_t reorder_steps;  /* quarters of the lowest round-trip time */
	uint32_t reorder_round;  /* seq: no further step before it is acknowledged */
	bool reordering_seen;
	bool rescued; /* RFC 6675 NextSeg (4): once per recovery */

	/* tail-loss probe, RFC 8985 7 */
	bool probe_wanted;   /* to be sent by recovery_retransmit, or as new data */
	bool probe_new;      /* one segment of new data may leave above cwnd */
	bool tail_probe_out; /* not answered yet */
	bool tail_probe_again;
	uint32_t tail_probe_end;

	/* Eifel (RFC 3522, 4015), F-RTO (RFC 5682) and DSACK (RFC 3708): to undo what a spurious retransmission did */
	bool undo_possible;  /* between the first retransmission of a recovery and its end */
	bool undo_first_ack; /* no ACK has advanced since */
	uint32_t undo_una, undo_cwnd, undo_ssthresh, undo_ts, undo_resends;
	uint32_t frto; /* 0: not running; 1: waits for an ACK; 2: new data is to leave; 3: waits for its ACK */

	/* how long without progress: timer/timers.c */
	uint32_t timeouts;                         /* in a row, without an acknowledgement of something new */
	uint64_t stuck_since_ns;                   /* of the first of them: RETRIES2, USER_TIMEOUT */
	uint32_t probes;                           /* zero-window or keepalive probes in a row without any answer */
	uint32_t persist_backoff;                  /* zero-window probes in a row, answered or not */
	uint64_t persist_since_ns, persist_due_ns; /* 0: it does not run */
	uint64_t rto_from_ns;                      /* the timeout counts from here */
	uint64_t probe_from_ns; /* the tail-loss probe's: the last new data, or acknowledgement of some */

	/* RFC 7661: was the window used? */
	uint32_t flight_max, flight_max_end;
	bool window_limited;
	uint64_t last_sent_ns; /* new data */

	uint64_t total_retransmits;
	uint64_t dsacks; /* of them, found to have been for nothing */
	struct tcp_ack_delta delta;
};

/*
 * rx/input.c:   hook_inpacket, when the segment has been found acceptable:  recovery_ack_before_lwip
 *               after lwIP has processed it, if the pcb is still there:     recovery_ack_after_lwip
 * tx/output.c:  tcp_output_conn_data begins with                            recovery_retransmit
 *               then new data, as far as                                    recovery_new_bytes_allowed
 *               each segment of it that has left (SYN and FIN, too):        recovery_on_segment_sent
 *               at its end                                                  timers_retransmit_update
 * Nothing here sends but recovery_retransmit; timeouts leave marks and call conn_enqueue_ready.
 *
 * Where a look at a few fields tells that nothing of this would find anything to do, it is not asked:
 * tx/output.c:  new data, if it is one message and has room
 *               (conn_single_message_bytes_to_send):                        recovery_on_segment_sent_at only
 *               nothing is out and nothing waits (is_quiet):                no retransmission, no new data
 * rx/pingpong.c: a message that acknowledges the one segment that is out,
 *               or nothing, while nothing is to be decided, for both
 *               halves of an ACK:                                           recovery_all_acked_outside_recovery,
 *                                                                           recovery_sole_segment_acked
 *               and if nothing is to be sent then (tcp_pingpong_finish_if_nothing_to_send),
 *               no output and no timers_retransmit_update follow:           persist_end only
 */

void recovery_init(struct vma_tcp_conn *conn);
/* Before lwIP sees the segment: looks at what will be acknowledged and freed, and marks what is SACKed. */
void recovery_ack_before_lwip(struct vma_tcp_conn *conn, const struct tcp_ack *ack);
/* After it: samples the round-trip time, finds losses, moves cwnd; recovery begins or ends. */
void recovery_ack_after_lwip(struct vma_tcp_conn *conn, const struct tcp_ack *ack);
void recovery_on_segment_sent(struct vma_tcp_conn *conn, struct tcp_seg *seg); /* for the first time */
uint32_t recovery_new_bytes_allowed(const struct vma_tcp_conn *conn); /* bytes of new data that cwnd allows now */
uint32_t recovery_bytes_in_flight(const struct vma_tcp_conn *conn);   /* RFC 6675: bytes in flight */
/* What is lost (or probed for), as far as cwnd allows. -ENOBUFS: no frame (conn_enqueue_retry is the caller's). */
int recovery_retransmit(struct vma_tcp_conn *conn);
void recovery_on_rto(struct vma_tcp_conn *conn);                  /* RTO: all is lost */
void recovery_request_tail_probe(struct vma_tcp_conn *conn);      /* TLP */
void recovery_on_reorder_timeout(struct vma_tcp_conn *conn);      /* the time to wait for reordered segments is over */
uint64_t recovery_rescue_due_ns(const struct vma_tcp_conn *conn); /* when recovery_retransmit has to be called again */
/* At the end of an output: whether the application, or the pace, is what holds back; until when. */
void recovery_note_app_limited_or_set_pacing(struct vma_tcp_conn *conn);
bool recovery_waits_for_send_time(const struct vma_tcp_conn *conn); /* something waits for nothing but its time */
/* tx/output.c has rebuilt pcb->unacked (a smaller MSS); new pieces of what was sent carry SEG_LOST. Sends nothing. */
void recovery_begin_resend_of_oversized(struct vma_tcp_conn *conn);
void recovery_reset_segment_state(struct vma_tcp_conn *conn); /* the pcb's segments are being freed */

#endif
