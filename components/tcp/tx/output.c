/*
 * output.c - from the send fifo into segments, as far as windows, Nagle, cork and segment size permit; and ACKs.
 *
 * lwIP gets a segment only when it may leave now, and by reference: its bytes stay in the fifo until they are
 * acknowledged. So pcb->unsent is empty, but for segments that found no frame.
 */
#include <errno.h>
#include <string.h>

#include "../budget.h"
#include "compose.h"
#include "../loss/recovery.h"
#include "../lwip/objects.h"
#include "../small_mss_quota.h"
#include "tso.h"

#define FULL_BURST_MSS 512
#define BURST_SEGMENTS_MIN 4

#define QUEUE_MARGIN 16 /* pbufs that a segment may need, below lwIP's limit of them */

/* ---- what is in lwIP's hands ---- */

uint64_t tcp_tx_first_unacked_offset(const struct vma_tcp_conn *conn)
{
	const struct tcp_pcb *pcb = conn->pcb;
	const struct tcp_seg *first = pcb->unacked != NULL ? pcb->unacked : pcb->unsent;

	return first != NULL ? tcp_tx_offset(conn, lwip_ntohl(first->tcphdr->seqno)) : conn->lwip_end;
}

/* ---- having lwIP send ---- */

/*
 * Whether what is in pcb->unsent waits for a frame only. Else the peer has taken its window back (or has closed it, and
 * the FIN waits behind data): then its next ACK is waited for, and what sees to that one are the timeout or persist.
 */
static bool unsent_fits_peer_window(const struct tcp_pcb *pcb)
{
	const struct tcp_seg *seg = pcb->unsent;

	return lwip_ntohl(seg->tcphdr->seqno) - pcb->lastack + seg->len <= pcb->snd_wnd;
}

/* What has been sent once: up to here. */
static inline void conn_publish_snd_max(struct vma_tcp_conn *conn, uint64_t snd_max)
{
	conn->tx_space_freed |= snd_max != atomic_load_explicit(&conn->snd_max, memory_order_relaxed) &&
	                        tcp_option(conn, VMA_TCP_OPT_NOTSENT_LOWAT) != -1;
	atomic_store_explicit(&conn->snd_max, snd_max, memory_order_release);
}

static void update_snd_max(struct vma_tcp_conn *conn)
{
	uint64_t snd_max = tcp_tx_offset(conn, conn->pcb->snd_nxt);

	conn_publish_snd_max(conn, snd_max < conn->lwip_end ? snd_max : conn->lwip_end);
}

/* What is in pcb->unsent leaves; with fin, the last of it with FIN. False: not all of it could. */
static bool output_transmit_unsent_segments(struct vma_tcp_conn *conn, bool fin)
{
	struct tcp_pcb *pcb = conn->pcb;
	struct tcp_seg *last = pcb->unacked != NULL ? pcb->unacked_last : NULL, *seg;

	pcb->cwnd = UINT32_C(1) << 30; /* what recovery lets go has been asked */
	if (fin)
		tcp_close_fin(conn);
	else
		tcp_output(pcb);
	for (seg = last != NULL ? last->next : pcb->unacked; seg != NULL; seg = seg->next)
		recovery_on_segment_sent(conn, seg);
	if (conn->connected)
		update_snd_max(conn);
	if (pcb->unsent != NULL && unsent_fits_peer_window(pcb))
		conn_enqueue_retry(conn);
	return pcb->unsent == NULL;
}

int tcp_output_retransmit(struct vma_tcp_conn *conn, struct tcp_seg *seg)
{
	bool inside = lwip_at.conn == conn;
	err_t err = ERR_MEM;

	if (!inside)
		lwip_enter(conn->tcp, conn);
	if (tcp_output_split_to_mss(conn, seg))
		err = tcp_output_segment(seg, conn->pcb, &port_netif);
	if (!inside)
		lwip_leave();
	return err == ERR_OK ? 0 : -ENOBUFS;
}

/* ---- how much may go ---- */

static bool seq_is_after(uint32_t a, uint32_t b)
{
	return TCP_SEQ_GT(a, b);
}

/*
 * Whether a short segment waits for more data: cork and MSG_MORE; Nagle's rule as Minshall has it, which the kernel
 * follows: only another short segment in flight is a reason. MSG_MORE does not outlast the next acknowledgement.
 */
static inline bool segment_waits_for_more(const struct vma_tcp_conn *conn, uint64_t produced)
{
	const struct tcp_pcb *pcb = conn->pcb;

	if (conn->push_once || conn->urgent_mode || atomic_load_explicit(&conn->shut_wr, memory_order_acquire))
		return false;
	if (tcp_option(conn, VMA_TCP_OPT_CORK))
		return true;
	if (atomic_load_explicit(&conn->more_from, memory_order_relaxed) == produced && !conn->ack_received)
		return true;
	if (tcp_option(conn, VMA_TCP_OPT_NODELAY))
		return false;
	return pcb->unacked != NULL && seq_is_after(conn->snd_sml, pcb->lastack) &&
	       !seq_is_after(conn->snd_sml, pcb->snd_nxt);
}

/* A peer with a small buffer gets segments of half of it, so that it can acknowledge one while the next comes. */
static uint32_t segment_len_max(const struct vma_tcp_conn *conn)
{
	uint32_t window = conn->snd_wnd_max, most = window > 536 ? window / 2 : window;

	return most != 0 && most < conn->mss ? most : conn->mss;
}

static uint32_t usable_window(const struct tcp_pcb *pcb)
{
	int32_t left = (int32_t)(pcb->lastack + pcb->snd_wnd - pcb->snd_nxt);

	return left > 0 ? (uint32_t)left : 0;
}

/* ---- feeding lwIP ---- */

/* n bytes from the fifo into a segment. Fewer: no memory. */
static uint32_t feed_fifo_bytes_to_segment(struct vma_tcp_conn *conn, uint32_t n, uint64_t produced)
{
	struct tcp_pcb *pcb = conn->pcb;
	uint32_t done = 0;

	pcb->snd_wnd_max = 2 * 65535; /* segment_len_max has seen to it */
	while (done < n) {
		struct iovec span = fifo_span(&conn->tx, conn->lwip_end);
		uint32_t take = span.iov_len < n - done ? (uint32_t)span.iov_len : n - done;
		u8_t more = conn->lwip_end + take < produced ? TCP_WRITE_FLAG_MORE : 0;

		if (tcp_write(pcb, span.iov_base, (u16_t)take, more) != ERR_OK)
			break;
		conn->lwip_end += take;
		done += take;
	}
	return done;
}

static inline bool conn_may_queue_fin_now(const struct vma_tcp_conn *conn)
{
	/* In this order: nothing is produced after it. */
	bool shut = atomic_load_explicit(&conn->shut_wr, memory_order_acquire);

	return shut && !conn->fin_queued && !conn->aborting && fifo_produced(&conn->tx) == conn->lwip_end &&
	       (conn->pcb->state == ESTABLISHED || conn->pcb->state == CLOSE_WAIT);
}

/* One segment of n bytes, through lwIP. False: stop. */
static bool __attribute__((noinline))
output_one_segment_through_lwip(struct vma_tcp_conn *conn, uint32_t n, uint64_t produced)
{
	uint32_t written = feed_fifo_bytes_to_segment(conn, n, produced);

	if (written < n) {
		TCP_COUNT(conn->tcp, no_memory, 1);
		conn_enqueue_retry(conn);
	}
	if (written == 0)
		return false;
	if (written < conn->mss)
		conn->snd_sml = conn->pcb->snd_lbb;
	window_note_data_sent(&conn->window, conn->tcp->now_ns);
	return output_transmit_unsent_segments(conn, conn_may_queue_fin_now(conn)) && written == n;
}

/* A segment of n bytes that has been composed. */
static inline __attribute__((always_inline)) void account_composed_segment(struct vma_tcp_conn *conn,
                                                                           struct tcp_seg *seg, uint32_t n)
{
	const uint32_t end = conn->pcb->snd_lbb;

	if (n < conn->mss)
		conn->snd_sml = end;
	window_note_data_sent(&conn->window, conn->tcp->now_ns);
	recovery_on_segment_sent_at(conn, seg, end - n, n);
	conn_publish_snd_max(
	        conn, conn->lwip_end); /* all that lwIP has: tcp_compose_segment_on_fast_path leaves nothing behind */
}

/* The same by the fast path, if it can. */
static inline __attribute__((always_inline)) bool output_segment_by_fast_path_or_lwip(struct vma_tcp_conn *conn,
                                                                                      uint32_t n, uint64_t produced)
{
	struct tcp_seg *seg = tcp_compose_segment_on_fast_path(conn, n, conn->lwip_end + n == produced);

	if (__builtin_expect(seg == NULL, 0))
		return output_one_segment_through_lwip(conn, n, produced);
	account_composed_segment(conn, seg, n);
	return true;
}

/* The same in a packet with what has left before it, if it can. A segment of lwIP's has a frame of its own. */
static bool output_segment_in_tso_packet_or_lwip(struct vma_tcp_conn *conn, struct tso_packet *packet, uint32_t n,
                                                 uint64_t produced)
{
	struct tcp_seg *seg = tcp_compose_or_append_to_tso_packet(conn, packet, n, conn->lwip_end + n == produced);

	if (seg == NULL)
		return output_one_segment_through_lwip(conn, n, produced);
	account_composed_segment(conn, seg, n);
	return true;
}

static inline __attribute__((always_inline)) bool segment_may_be_sent_now(const struct vma_tcp_conn *conn, uint32_t n)
{
	const struct tcp_pcb *pcb = conn->pcb;
	uint32_t allowed = recovery_new_bytes_allowed(conn);

	if (usable_window(pcb) < n || pcb->snd_queuelen > TCP_SND_QUEUELEN - QUEUE_MARGIN)
		return false;
	/* Segments take memory, too. What is out comes back by acknowledgements, which let more go. */
	if (tcp_memory_is_exhausted(conn->tcp) && scoreboard_bytes_unacked(conn) >= BUDGET_SND_LEAST)
		return false;
	if (__builtin_expect(conn->tcp->attr.memory->segments_max != 0, 0) && scoreboard_bytes_unacked(conn) != 0 &&
	    memory_lacks_segments(conn->tcp))
		return false;
	return allowed >= n || (allowed != 0 && pcb->unacked == NULL);
}

static inline __attribute__((always_inline)) void conn_enter_urgent_mode_if_requested(struct vma_tcp_conn *conn)
{
	uint64_t behind = atomic_load_explicit(&conn->urgent_tx, memory_order_relaxed);

	if (behind == 0)
		return;
	atomic_compare_exchange_strong(&conn->urgent_tx, &behind, 0);
	conn->snd_up = conn->tx_seq + (uint32_t)behind;
	conn->urgent_mode = true;
}

/*
 * What a message of a conversation finds: it is alone in the fifo and fits into a segment, nothing else waits or is to
 * be repaired, and everything lets it go. Bytes of it; 0: it is another case, or there is nothing to send.
 *
 * Then recovery_retransmit would have nothing to do: no probe is wanted, nothing has marks (so what is in flight is all
 * that is out), F-RTO does not run, a rescue is for recoveries only, and the silence before it was not long enough for
 * a restart (the timeout is not below RTT_RTO_MIN_NS). What has to wait for its time, and urgent data, are left to the
 * slow path.
 */
static inline uint32_t conn_single_message_bytes_to_send(struct vma_tcp_conn *conn)
{
	const struct tcp_pcb *pcb = conn->pcb;
	struct tcp_recovery *r = &conn->recovery;
	const uint64_t produced = fifo_produced(&conn->tx), waits = produced - conn->lwip_end;
	uint32_t most, out;

	if (waits == 0 || conn->tcp->predicts_nothing)
		return 0;
	most = segment_len_max(conn);
	out = scoreboard_bytes_unacked(conn);
	if (waits > most || !conn->connected || pcb->unsent != NULL || r->state != TCP_RECOVERY_OPEN ||
	    (r->sacked_bytes | r->dup_bytes | r->lost_bytes | r->frto) != 0 || r->probe_wanted || r->probe_new ||
	    !pacing_allows_send(&conn->pace, &conn->cc, conn->tcp->now_ns))
		return 0;
	if (conn->urgent_mode || atomic_load_explicit(&conn->urgent_tx, memory_order_relaxed) != 0)
		return 0;
	if ((waits < most && segment_waits_for_more(conn, produced)) || usable_window(pcb) < waits ||
	    pcb->snd_queuelen > TCP_SND_QUEUELEN - QUEUE_MARGIN || conn->cc.cwnd < out + waits)
		return 0;
	if (pcb->unacked != NULL)
		r->pipe_bytes = out;
	else if (conn->tcp->now_ns - r->last_sent_ns >= RTT_RTO_MIN_NS)
		return 0;
	return (uint32_t)waits;
}

/*
 * Segments that may leave in a row while other connections wait. A frame costs the same whatever is in it: a peer with
 * a small MSS would have its share of the frames, and the others next to none of the bytes.
 */
static inline uint32_t burst_segments_max(const struct vma_tcp_conn *conn)
{
	uint32_t row = TCP_FRAMES * conn->mss / FULL_BURST_MSS;

	return row < BURST_SEGMENTS_MIN ? BURST_SEGMENTS_MIN : row;
}

/* How a connection's segments leave: as they are; by the quota of those with a small MSS; several in a packet that the
 * NIC cuts. */
enum feed { FEED_PLAIN, FEED_SMALL, FEED_TSO };

/* feed: a constant of each caller. */
static inline __attribute__((always_inline)) void output_fifo_as_segments(struct vma_tcp_conn *conn, enum feed feed)
{
	uint32_t most = segment_len_max(conn), row = burst_segments_max(conn);
	struct tso_packet packet = {.segments = 0};
	uint64_t produced;

	while ((produced = fifo_produced(&conn->tx)) != conn->lwip_end) {
		uint32_t n = produced - conn->lwip_end < most ? (uint32_t)(produced - conn->lwip_end) : most;

		conn_enter_urgent_mode_if_requested(conn);
		if (n < most && segment_waits_for_more(conn, produced))
			break;
		if (!segment_may_be_sent_now(conn, n) || (feed == FEED_SMALL && !small_mss_quota_take(conn)))
			break;
		if (feed == FEED_TSO ? !output_segment_in_tso_packet_or_lwip(conn, &packet, n, produced)
		                     : !output_segment_by_fast_path_or_lwip(conn, n, produced))
			break;
		if (__builtin_expect(conn->tcp->output_deferred || (--row == 0 && conn->tcp->ready != NULL), 0)) {
			conn_enqueue_ready(conn);
			break;
		}
	}
	if (feed == FEED_TSO)
		tso_finish_packet_headers(conn, &packet);
}

static void __attribute__((noinline)) output_fifo_small_mss_or_tso(struct vma_tcp_conn *conn)
{
	if (conn_has_small_mss(conn))
		output_fifo_as_segments(conn, FEED_SMALL);
	else
		output_fifo_as_segments(conn, FEED_TSO);
}

static void __attribute__((noinline)) output_fifo_segments_in_burst(struct vma_tcp_conn *conn)
{
	if (__builtin_expect(conn->mss < conn->tcp->plain_mss_min, 0))
		output_fifo_small_mss_or_tso(conn);
	else
		output_fifo_as_segments(conn, FEED_PLAIN);
}

static inline void output_fin_when_fifo_is_sent(struct vma_tcp_conn *conn)
{
	if (fifo_produced(&conn->tx) == conn->lwip_end)
		conn->push_once = false;
	if (conn_may_queue_fin_now(conn) && conn->pcb->unsent == NULL)
		output_transmit_unsent_segments(conn, true);
}

static void output_feed_fifo_to_segments(struct vma_tcp_conn *conn)
{
	output_fifo_segments_in_burst(conn);
	output_fin_when_fifo_is_sent(conn);
}

/* What conn_single_message_bytes_to_send has let go. More may have come meanwhile. */
static inline void send_single_message_on_fast_path(struct vma_tcp_conn *conn, uint32_t n)
{
	conn->tcp->alone++;
	if (output_segment_by_fast_path_or_lwip(conn, n, conn->lwip_end + n)) {
		if (__builtin_expect(conn->tcp->output_deferred, 0))
			conn_enqueue_ready(conn);
		else if (__builtin_expect(fifo_produced(&conn->tx) != conn->lwip_end, 0))
			output_fifo_segments_in_burst(conn);
	}
	output_fin_when_fifo_is_sent(conn);
}

/* ---- ACKs ---- */

/* A duplicate is reported as the first SACK block, for this one ACK (RFC 2883). lwIP keeps the others. */
static void output_send_ack(struct vma_tcp_conn *conn)
{
	struct tcp_pcb *pcb = conn->pcb;
	struct tcp_sack_range kept[LWIP_TCP_MAX_SACK_NUM];
	bool dsack = conn->dsack_left != conn->dsack_right && pcb->flags & TF_SACK;

	if (tcp_pending_delay_ack(conn))
		return;
	window_on_ack_sent(conn);
	if (dsack) {
		memcpy(kept, pcb->rcv_sacks, sizeof(kept));
		memmove(pcb->rcv_sacks + 1, pcb->rcv_sacks, sizeof(kept) - sizeof(kept[0]));
		pcb->rcv_sacks[0] = (struct tcp_sack_range){conn->dsack_left, conn->dsack_right};
	}
	if (tcp_send_empty_ack(pcb) != ERR_OK)
		conn_enqueue_retry(conn);
	if (dsack)
		memcpy(pcb->rcv_sacks, kept, sizeof(kept));
	conn->dsack_left = conn->dsack_right = 0;
}

void tcp_output_ack(struct vma_tcp_conn *conn)
{
	bool inside = lwip_at.conn == conn;

	if (!inside)
		lwip_enter(conn->tcp, conn);
	output_send_ack(conn);
	if (!inside)
		lwip_leave();
}

/* ---- a step's output ---- */

/* Data of ours would take the acknowledgement along, but not what is to be said beside it. */
static bool ack_has_sack_to_report(const struct vma_tcp_conn *conn)
{
	return conn->pcb->flags & TF_ACK_NOW && conn->connected &&
	       ((conn->window.sacks_waiting != 0 && conn->pcb->ooseq != NULL) || conn->dsack_left != conn->dsack_right);
}

/* Nothing is to be sent, or sent again, and no FIN: all that follows would find that out for itself. */
static bool has_nothing_to_send(const struct vma_tcp_conn *conn)
{
	const struct tcp_pcb *pcb = conn->pcb;

	return pcb->unacked == NULL && pcb->unsent == NULL && fifo_produced(&conn->tx) == conn->lwip_end &&
	       conn->connected && !conn->tcp->predicts_nothing &&
	       !atomic_load_explicit(&conn->shut_wr, memory_order_acquire);
}

static void output_conn_data_and_ack(struct vma_tcp_conn *conn)
{
	struct tcp_pcb *pcb = conn->pcb;
	const bool report = ack_has_sack_to_report(conn);
	const uint32_t asked = conn_single_message_bytes_to_send(conn);

	if (asked != 0)
		send_single_message_on_fast_path(conn, asked);
	else if (has_nothing_to_send(conn))
		conn->recovery.probe_wanted = conn->push_once = false;
	else if (recovery_retransmit(conn) != 0)
		conn_enqueue_retry(conn);
	else if ((pcb->unsent == NULL || output_transmit_unsent_segments(conn, false)) && conn->connected)
		output_feed_fifo_to_segments(conn);
	if ((report || (pcb->flags & TF_ACK_NOW && conn->connected)))
		output_send_ack(conn);
}

void tcp_output_conn_data(struct vma_tcp_conn *conn)
{
	if (conn->pcb->refused_data != NULL)
		tcp_process_refused_data(conn->pcb);
	output_conn_data_and_ack(conn);
	tcp_send_frames_if_no_ready_conn(conn->tcp);
	conn->ack_received = false;
	if (cc_is_model_based(&conn->cc)) /* it is for nobody else */
		recovery_note_app_limited_or_set_pacing(conn);
	timers_retransmit_update(conn);
}

/*
 * The frame leaves first, and what output_conn_data_and_ack and send_single_message_on_fast_path would do about it
 * follows while it is on its way: the peer's answer is not waited for meanwhile. Bytes that come behind it, and a FIN,
 * are posted by who writes or shuts, after this or in another step; the first of these, which output_conn_data_and_ack
 * would take along, are looked for nevertheless.
 */
bool tcp_output_sole_message(struct vma_tcp_conn *conn)
{
	struct vma_tcp *tcp = conn->tcp;
	struct composed composed;
	uint32_t n;

	if (conn->pcb->refused_data != NULL || ack_has_sack_to_report(conn))
		return false;
	n = conn_single_message_bytes_to_send(conn);
	if (n == 0 || !tcp_compose_frame(conn, n, &composed))
		return false;
	tcp_send_frames_if_no_ready_conn(tcp);
	tcp->alone++;
	account_composed_segment(conn, tcp_compose_segment(conn, n, &composed), n);
	conn->ack_received = false;
	if (__builtin_expect(fifo_produced(&conn->tx) != conn->lwip_end || tcp->output_deferred, 0))
		conn_enqueue_ready(conn);
	if (fifo_produced(&conn->tx) == conn->lwip_end)
		conn->push_once = false;
	if (cc_is_model_based(&conn->cc))
		recovery_note_app_limited_or_set_pacing(conn);
	timers_retransmit_update(conn);
	return true;
}

/* ---- for timers ---- */

static int output_one_segment_despite_limits(struct vma_tcp_conn *conn)
{
	uint64_t produced = fifo_produced(&conn->tx);
	uint32_t n = segment_len_max(conn), left = usable_window(conn->pcb);

	if (conn->pcb->unsent != NULL && !unsent_fits_peer_window(conn->pcb))
		return 0;
	if (conn->pcb->unsent != NULL)
		return output_transmit_unsent_segments(conn, false) ? 1 : -ENOBUFS;
	n = n < left ? n : left;
	n = produced - conn->lwip_end < n ? (uint32_t)(produced - conn->lwip_end) : n;
	if (n == 0)
		return 0;
	output_segment_by_fast_path_or_lwip(conn, n, produced);
	return conn->pcb->unsent == NULL ? 1 : -ENOBUFS;
}

void tcp_output_fifo_data_if_none_unsent(struct vma_tcp_conn *conn)
{
	bool inside = lwip_at.conn == conn;

	if (!conn->connected || conn->pcb->unsent != NULL)
		return;
	if (!inside)
		lwip_enter(conn->tcp, conn);
	output_fifo_segments_in_burst(conn);
	if (!inside)
		lwip_leave();
}

int tcp_output_one_segment_despite_limits(struct vma_tcp_conn *conn)
{
	bool inside = lwip_at.conn == conn;
	int rc;

	if (!conn->connected)
		return 0;
	if (!inside)
		lwip_enter(conn->tcp, conn);
	rc = output_one_segment_despite_limits(conn);
	if (!inside)
		lwip_leave();
	return rc;
}

int tcp_output_probe(struct vma_tcp_conn *conn)
{
	struct tcp_pcb *pcb = conn->pcb;
	bool inside = lwip_at.conn == conn;
	uint32_t snd_nxt = pcb->snd_nxt;
	err_t err;

	if (!inside)
		lwip_enter(conn->tcp, conn);
	pcb->snd_nxt = pcb->lastack - 1;
	err = tcp_send_empty_ack(pcb);
	pcb->snd_nxt = snd_nxt;
	if (!inside)
		lwip_leave();
	return err == ERR_OK ? 0 : -ENOBUFS;
}
