/*
 * validate.c - the checks of RFC 9293 3.10.7 with RFC 5961 and 7323, in the kernel's order: age, window, RST, SYN, ACK.
 *
 * They come before lwIP's own, which are fewer; lwIP sees only what passes.
 */
#include <errno.h>

#include "validate.h"

#define INVALID_RATELIMIT_NS (500 * TCP_NS_PER_MS) /* the kernel's tcp_invalid_ratelimit */
#define PAWS_IDLE_NS (24 * 86400 * TCP_NS_PER_S)   /* RFC 7323 5.5 */

/* ---- answers ---- */

static bool take_challenge_token(struct vma_tcp_conn *conn)
{
	uint64_t now = conn->tcp->now_ns;

	if (conn->challenge_window_ns != 0 && now - conn->challenge_window_ns < INVALID_RATELIMIT_NS)
		return false;
	conn->challenge_window_ns = now;
	return true;
}

/* RFC 5961: the peer, if it is the peer, says it again with the right numbers. */
static void send_challenge_ack(struct vma_tcp_conn *conn)
{
	if (!take_challenge_token(conn))
		return;
	TCP_COUNT(conn->tcp, challenge_acks, 1);
	conn->counts.challenge_acks++;
	tcp_output_ack(conn);
}

/* An ACK for what is out of the window; two ends that disagree do not answer each other's ACKs for ever. */
static void answer_unacceptable_with_ack(struct vma_tcp_conn *conn, const struct segment *s)
{
	uint32_t rcv_nxt = conn->pcb->rcv_nxt;

	if (s->len == 0 && !take_challenge_token(conn))
		return;
	if (s->len != 0 && TCP_SEQ_LT(s->seq, rcv_nxt))
		window_on_duplicate_data(conn, s->seq, TCP_SEQ_LT(s->end, rcv_nxt) ? s->end : rcv_nxt);
	tcp_output_ack(conn);
}

/*
 * RFC 9293 3.10.7: the number is the one that the segment acknowledges, which is the one that its sender awaits; behind
 * a FIN of ours that has not arrived, any other would be out of place (RFC 5961 3.2).
 */
static void send_rst_in_reply_to_segment(struct vma_tcp_conn *conn, const struct segment *s)
{
	const struct tcp_pcb *pcb = conn->pcb;

	if (s->flags & TCP_RST || !tcp_take_reply_token(conn->tcp))
		return;
	tcp_rst(pcb, s->ack, s->end, &pcb->local_ip, &pcb->remote_ip, pcb->local_port, pcb->remote_port);
}

/* ---- SYN_SENT ---- */

/* A peer that remembers a connection of before (one in TIME_WAIT that takes our number for an old one) forgets it when
 * it is reset, and is then asked again. */
static bool validate_syn_sent(struct vma_tcp_conn *conn, const struct segment *s)
{
	const struct tcp_pcb *pcb = conn->pcb;

	if (!(s->flags & TCP_ACK))
		return (s->flags & (TCP_RST | TCP_SYN)) == TCP_SYN;
	if (TCP_SEQ_LEQ(s->ack, pcb->lastack) || TCP_SEQ_GT(s->ack, pcb->snd_nxt)) {
		send_rst_in_reply_to_segment(conn, s);
		timers_expedite_syn(conn);
		return false;
	}
	return (s->flags & (TCP_RST | TCP_SYN)) != 0;
}

/* ---- the other states ---- */

/* RFC 7323 5.3, with the kernel's exception: a pure ACK may be overtaken. */
static bool segment_fails_paws(const struct vma_tcp_conn *conn, const struct segment *s)
{
	const struct tcp_pcb *pcb = conn->pcb;

	if (!(pcb->flags & TF_TIMESTAMP) || !s->has_ts || (int32_t)(pcb->ts_recent - s->ts_val) <= 0)
		return false;
	if (conn->tcp->now_ns - conn->last_in_ns > PAWS_IDLE_NS)
		return false;
	return !(s->seq == s->end && s->seq == pcb->rcv_nxt && s->ack == pcb->lastack);
}

static bool is_in_window(const struct vma_tcp_conn *conn, const struct segment *s)
{
	const struct tcp_pcb *pcb = conn->pcb;
	uint32_t edge = conn->connected ? conn->window.rcv_edge : pcb->rcv_nxt + pcb->rcv_wnd;
	uint32_t from = conn->connected ? conn->window.rcv_wup : pcb->rcv_nxt;

	if (TCP_SEQ_LT(edge, pcb->rcv_nxt))
		edge = pcb->rcv_nxt;
	/* Behind a hole lwIP takes a segment as a whole. */
	if (TCP_SEQ_GT(s->seq, pcb->rcv_nxt) && s->seq != s->end && TCP_SEQ_GT(s->end, edge))
		return false;
	return TCP_SEQ_GEQ(s->end, from) && TCP_SEQ_LEQ(s->seq, edge);
}

/* A SYN where none belongs, RFC 5961 4; in SYN_RCVD it is the first one again. */
static bool answer_unexpected_syn(struct vma_tcp_conn *conn, const struct segment *s)
{
	struct tcp_pcb *pcb = conn->pcb;

	if (pcb->state != SYN_RCVD || s->seq + 1 != pcb->rcv_nxt || s->flags & TCP_ACK)
		send_challenge_ack(conn);
	else if (pcb->unacked != NULL && take_challenge_token(conn))
		tcp_output_retransmit(conn, pcb->unacked);
	return false;
}

/* RFC 5961 5.2: what was never sent is not acknowledged, and nothing of long ago is. */
static bool validate_ack(struct vma_tcp_conn *conn, const struct segment *s)
{
	const struct tcp_pcb *pcb = conn->pcb;

	if (!(s->flags & TCP_ACK))
		return false;
	if (pcb->state == SYN_RCVD) {
		if (TCP_SEQ_GT(s->ack, pcb->lastack) && TCP_SEQ_LEQ(s->ack, pcb->snd_nxt))
			return true;
		send_rst_in_reply_to_segment(conn, s);
		return false;
	}
	if (TCP_SEQ_GT(s->ack, pcb->snd_nxt) || TCP_SEQ_LT(s->ack, pcb->lastack - conn->snd_wnd_max)) {
		send_challenge_ack(conn);
		return false;
	}
	return true;
}

/* RFC 1122 4.2.2.13: nobody will read it, and the peer is to know; so is who has shut the socket, but still has it. */
static bool segment_data_arrives_after_shutdown(const struct vma_tcp_conn *conn, const struct segment *s)
{
	int state = conn->pcb->state;
	bool reads_ended = (atomic_load_explicit(&conn->rx_mode, memory_order_acquire) & RX_SHUT) != 0;
	bool sends_ended = atomic_load_explicit(&conn->shut_wr, memory_order_acquire);

	if (!reads_ended || s->len == 0 || TCP_SEQ_LEQ(s->seq + s->len, conn->pcb->rcv_nxt))
		return false;
	return state == FIN_WAIT_1 || state == FIN_WAIT_2 || (state == ESTABLISHED && sends_ended);
}

/* While the application wants data with a connection (TCP_DEFER_ACCEPT), an ACK without is not the end of a handshake.
 */
static bool ack_is_deferred_by_option(const struct vma_tcp_conn *conn, const struct segment *s)
{
	uint64_t defer_ns = (uint64_t)tcp_option(conn, VMA_TCP_OPT_DEFER_ACCEPT) * TCP_NS_PER_S;

	return conn->pcb->state == SYN_RCVD && conn->passive && s->seq == s->end &&
	       conn->tcp->now_ns - conn->created_ns < defer_ns;
}

/* In the window, and no SYN or RST. */
static bool validate_in_window_segment(struct vma_tcp_conn *conn, const struct segment *s)
{
	if (!validate_ack(conn, s))
		return false;
	if (ack_is_deferred_by_option(conn, s)) {
		conn->defer_data = true;
		return false;
	}
	if (segment_data_arrives_after_shutdown(conn, s)) {
		send_rst_in_reply_to_segment(conn, s);
		conn_fail_with_error(conn, conn->closing ? 0 : ECONNRESET, false);
		return false;
	}
	return true;
}

static bool validate_synchronized(struct vma_tcp_conn *conn, struct segment *s)
{
	const struct tcp_pcb *pcb = conn->pcb;

	if (segment_fails_paws(conn, s) && !(s->flags & TCP_RST)) {
		TCP_COUNT(conn->tcp, paws_drops, 1);
		conn->counts.paws_drops++;
		answer_unacceptable_with_ack(conn, s);
		return false;
	}
	/* The SYN-ACK of a simultaneous open: its SYN is known, its ACK is what matters. */
	if (pcb->state == SYN_RCVD && !conn->passive && (s->flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK) &&
	    s->seq + 1 == pcb->rcv_nxt)
		segment_clear_syn(s, conn->pcb->snd_scale);
	if (!is_in_window(conn, s) && !(s->flags & (TCP_RST | TCP_SYN))) {
		answer_unacceptable_with_ack(conn, s);
		return false;
	}
	if (s->flags & TCP_RST) {
		if (s->seq == pcb->rcv_nxt)
			return true;
		if (is_in_window(conn, s))
			send_challenge_ack(conn);
		return false;
	}
	if (s->flags & TCP_SYN)
		return answer_unexpected_syn(conn, s);
	return validate_in_window_segment(conn, s);
}

bool tcp_validate(struct vma_tcp_conn *conn, struct segment *s)
{
	return conn->pcb->state == SYN_SENT ? validate_syn_sent(conn, s) : validate_synchronized(conn, s);
}
