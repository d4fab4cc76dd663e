/*
 * input.c - one connection's segments of a burst: merged, validated, given to lwIP, and acted upon.
 *
 * Segments that follow each other are merged before, as a NIC or the kernel would do it. So they are one segment for
 * lwIP, and are answered by one ACK. Their first header stands for all, with the newest acknowledgement and window in
 * it.
 */
#include <errno.h>
#include <string.h>

#include <vma/probe.h>

#include "../budget.h"
#include "ooo.h"
#include "validate.h"
#include "predict.h"

#define MERGE_MAX 64          /* segments that lwIP sees as one */
#define MERGE_BYTES_MAX 64000 /* lwIP counts in 16 bits, headers and FIN included */

bool tcp_conn_flow_sink(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct vma_tcp_conn *conn = flow->owner;

	(void)info;
	VMA_PROBE4(delivered, -1, packet->payload_len, flow->key.local_port_be, flow->key.peer_port_be);
	packet->user = NULL;
	if (conn->burst == NULL)
		conn->burst = packet;
	else
		conn->burst_last->user = packet;
	conn->burst_last = packet;
	conn_enqueue_ready(conn);
	return true;
}

static struct vma_buf *rx_burst_pop_packet(struct vma_tcp_conn *conn)
{
	struct vma_buf *packet = conn->burst;

	conn->burst = packet->user;
	if (conn->burst == NULL)
		conn->burst_last = NULL;
	return packet;
}

/* ---- segments in a row ---- */

struct run {
	struct segment s;
	struct vma_buf *packets[MERGE_MAX];
	unsigned n;
};

static bool segment_may_begin_merge(const struct segment *s)
{
	return s->len != 0 && s->is_plain && (s->flags & ~TCP_PSH) == TCP_ACK;
}

static bool rx_run_continues(const struct run *run, const struct segment *next)
{
	const struct segment *s = &run->s;

	return next->seq == s->end && next->len != 0 && next->is_plain && next->has_ts == s->has_ts &&
	       (next->flags & ~(TCP_PSH | TCP_FIN)) == TCP_ACK && next->hdr_len == s->hdr_len &&
	       s->len + next->len <= MERGE_BYTES_MAX && run->n < MERGE_MAX && !(s->flags & TCP_FIN) &&
	       (!s->has_ts || (int32_t)(next->ts_val - s->ts_val) >= 0);
}

/* The urgent byte is looked for in the packet of each segment. */
static bool rx_is_expecting_urgent_byte(const struct vma_tcp_conn *conn)
{
	return atomic_load_explicit(&conn->urgent_byte, memory_order_relaxed) == URGENT_EXPECTED;
}

/* Takes what can be taken as one from the head of the burst. */
static void rx_merge_burst_to_run(struct vma_tcp_conn *conn, struct run *run, bool merge)
{
	struct vma_bufarena *arena = conn->tcp->arena;
	struct segment next;

	run->packets[0] = rx_burst_pop_packet(conn);
	run->n = 1;
	segment_parse(&run->s, arena, run->packets[0]);
	if (!merge || !segment_may_begin_merge(&run->s) || rx_is_expecting_urgent_byte(conn))
		return;
	while (conn->burst != NULL) {
		segment_parse(&next, arena, conn->burst);
		if (!rx_run_continues(run, &next))
			return;
		run->packets[run->n++] = rx_burst_pop_packet(conn);
		segment_merge_next(&run->s, &next);
	}
}

static void rx_run_drop_packets(struct vma_tcp_conn *conn, struct run *run, unsigned from)
{
	for (unsigned i = from; i < run->n; i++)
		vma_buf_put_chain(conn->tcp->arena, run->packets[i]);
}

/* The same where the data is not in order: nobody knows for how long it is kept. */
static struct pbuf *rx_run_copy_to_pbuf(struct vma_tcp_conn *conn, struct run *run)
{
	const struct segment *s = &run->s;
	struct pbuf *p =
	        port_pbuf_chain_with_copied_payload(conn->tcp, run->packets, run->n, s->len, s->header, s->hdr_len);

	if (p == NULL) {
		TCP_COUNT(conn->tcp, no_memory, 1);
		rx_run_drop_packets(conn, run, 0);
	}
	return p;
}

/* One chain of all the data, behind one header. NULL: no memory, and the packets are gone. */
static struct pbuf *rx_run_to_pbuf_chain(struct vma_tcp_conn *conn, struct run *run)
{
	struct pbuf *pieces[MERGE_MAX], *last;

	for (unsigned i = 0; i < run->n; i++) {
		pieces[i] = port_pbuf_chain_from_packet(conn->tcp, run->packets[i], run->s.header,
		                                        i == 0 ? run->s.hdr_len : 0);
		if (pieces[i] == NULL) {
			TCP_COUNT(conn->tcp, no_memory, 1);
			rx_run_drop_packets(conn, run, i);
			while (i > 0)
				pbuf_free(pieces[--i]);
			return NULL;
		}
	}
	for (unsigned i = run->n - 1; i-- > 0;) {
		for (last = pieces[i]; last->next != NULL; last = last->next)
			last->tot_len = (u16_t)(last->tot_len + pieces[i + 1]->tot_len);
		last->tot_len = (u16_t)(last->tot_len + pieces[i + 1]->tot_len);
		last->next = pieces[i + 1];
	}
	return pieces[0];
}

/* ---- after lwIP ---- */

static uint64_t acked_offset(const struct vma_tcp_conn *conn)
{
	uint64_t offset = tcp_tx_offset(conn, conn->pcb->lastack);

	return offset < conn->lwip_end ? offset : conn->lwip_end; /* the FIN is no byte */
}

static void release_acked_tx_fifo_bytes(struct vma_tcp_conn *conn)
{
	fast_path_release_acked_bytes(conn, tcp_tx_first_unacked_offset(conn), acked_offset(conn));
}

/*
 * Both sides have sent a SYN (RFC 9293 3.5, figure 7), which lwIP does not know: it has read the options, and goes on
 * as if this side had been asked. The SYN that waits to be acknowledged becomes a SYN-ACK, which takes no memory.
 */
static void handle_simultaneous_open(struct vma_tcp_conn *conn, const struct segment *s)
{
	struct tcp_pcb *pcb = conn->pcb;
	struct tcp_seg *syn = pcb->unacked != NULL ? pcb->unacked : pcb->unsent;

	conn->peer_mss = pcb->mss; /* before anything of this side changes it */
	recovery_reset_segment_state(conn);
	TCPH_SET_FLAG(syn->tcphdr, TCP_ACK);
	syn->marks = 0;
	pcb->unsent = syn;
	pcb->unacked = NULL;
	pcb->rcv_nxt = pcb->rcv_ann_right_edge = s->seq + 1;
	pcb->snd_wnd = pcb->snd_wnd_max = s->window;
	pcb->snd_wl1 = s->seq - 1;
	pcb->snd_wl2 = pcb->lastack;
	pcb->state = SYN_RCVD;
	tcp_drop_unagreed_options(conn);
}

struct before {
	uint32_t rcv_nxt, lastack, window, wl1;
	uint32_t seq; /* of the segment that is looked at */
	enum tcp_state state;
	bool ack_now;
};

/*
 * lwIP would answer an ACK with an ACK for nothing, and every second segment at once: when data is acknowledged is
 * window.c's decision. What it wants to be answered for other reasons is.
 */
/* In order, and the end of what has come. */
static bool segment_fin_was_taken(const struct vma_tcp_conn *conn, const struct segment *s, const struct before *before)
{
	return s->flags & TCP_FIN && before->state == ESTABLISHED && conn->pcb->state == CLOSE_WAIT &&
	       before->rcv_nxt == s->seq && conn->pcb->rcv_nxt == s->end;
}

static void rx_segment_after_lwip(struct vma_tcp_conn *conn, const struct segment *s, const struct before *before)
{
	struct tcp_pcb *pcb = conn->pcb;
	uint32_t came = pcb->rcv_nxt - before->rcv_nxt;

	tcp_clear_flags(pcb, TF_ACK_DELAY);
	if (s->seq == s->end && !before->ack_now && before->state != SYN_SENT)
		tcp_clear_flags(pcb, TF_ACK_NOW);
	if (segment_fin_was_taken(conn, s, before) && !before->ack_now)
		window_on_fin(conn);
	if (pcb->snd_wnd > conn->snd_wnd_max)
		conn->snd_wnd_max = pcb->snd_wnd;
	if (!conn->connected)
		return;
	if (s->len != 0 && came != 0)
		window_on_data_received(conn, came, s->size, s->flags & TCP_PSH);
	else if (s->len != 0) {
		TCP_COUNT(conn->tcp, out_of_order_in, 1);
		conn->counts.out_of_order_in++;
	}
	if (s->len != 0 && came == 0 && pcb->flags & TF_ACK_NOW)
		window_on_out_of_order_data(conn, s->len, before->ack_now);
	release_acked_tx_fifo_bytes(conn);
	conn->ack_received = true;
}

/* ---- one segment, or several as one, through lwIP ---- */

/* A time stamp says something where it was agreed upon; or is about to be, by the answer to a SYN. */
static void parse_ack(struct vma_tcp_conn *conn, const struct segment *s, struct tcp_ack *ack)
{
	const struct tcp_pcb *pcb = conn->pcb;
	bool stamped = pcb->flags & TF_TIMESTAMP || (pcb->state == SYN_SENT && !conn->tcp->attr.no_timestamps);

	*ack = (struct tcp_ack){.ackno = s->ack,
	                        .window = s->flags & TCP_SYN ? s->window : (uint32_t)s->window << pcb->snd_scale,
	                        .payload = s->len,
	                        .has_ts = s->has_ts && stamped,
	                        .ts_val = s->ts_val,
	                        .ts_ecr = s->ts_ecr};
	ack->blocks = s->has_sack ? segment_parse_sack_blocks(s, ack) : 0;
}

/*
 * The kernel's rule, in place of lwIP's and RFC 9293's: what acknowledges something new says the window of now, also if
 * it is a segment sent again, whose number is an old one; the size of before would move the edge to where the peer
 * never told it. What acknowledges less than is known says nothing, whatever its number (rx_run_handle_duplicate gives
 * it a new one).
 */
static void update_send_window_after_ack(struct tcp_pcb *pcb, const struct segment *s, const struct before *before)
{
	uint32_t window = (uint32_t)s->window << pcb->snd_scale;

	if (before->state < ESTABLISHED || s->flags & TCP_SYN || !(s->flags & TCP_ACK))
		return;
	if (TCP_SEQ_GT(s->ack, before->lastack) ||
	    (s->ack == before->lastack &&
	     (TCP_SEQ_GT(before->seq, before->wl1) || (before->seq == before->wl1 && window > before->window)))) {
		pcb->snd_wnd = window;
		pcb->snd_wl1 = before->seq;
	} else {
		pcb->snd_wnd = before->window;
		pcb->snd_wl1 = before->wl1;
	}
	pcb->snd_wl2 = pcb->lastack;
}

/* What lwIP has ended, or made of it. */
static void conn_update_after_lwip_input(struct vma_tcp_conn *conn, const struct segment *s,
                                         const struct before *before)
{
	if (conn->pcb == NULL) {
		TCP_COUNT(conn->tcp, resets_in, (s->flags & TCP_RST) != 0);
		conn_clean_up_after_pcb_freed(conn, conn->fatal_error);
		return;
	}
	if (before->state == SYN_SENT && conn->pcb->state == SYN_SENT && s->flags & TCP_SYN)
		handle_simultaneous_open(conn, s);
	if (conn->pcb == NULL)
		return;
	if (conn->pcb->state == TIME_WAIT) {
		release_acked_tx_fifo_bytes(conn);
		return; /* input's end sees to it */
	}
	update_send_window_after_ack(conn->pcb, s, before);
	if (s->flags & TCP_ACK)
		recovery_ack_after_lwip(conn, &conn->tcp->ack);
	rx_segment_after_lwip(conn, s, before);
	if (before->state == SYN_RCVD && conn->connected && conn->listener != NULL)
		tcp_half_open_established(conn);
}

/* The peer is told at once that this has come twice (RFC 2883). */
static void ack_duplicate_with_dsack(struct vma_tcp_conn *conn, const struct segment *s)
{
	window_on_duplicate_data(conn, s->seq, s->seq + s->len);
	tcp_ack_now(conn->pcb);
}

/* All of it has been taken before; the rest is an ACK. */
static void rx_run_handle_duplicate(struct vma_tcp_conn *conn, struct run *run)
{
	struct segment *s = &run->s;

	ack_duplicate_with_dsack(conn, s);
	segment_strip_payload(s, conn->pcb->rcv_nxt);
	rx_run_drop_packets(conn, run, 1);
	run->n = 1;
}

/* There is no memory for more than is held already: only its acknowledgement is taken. Its data is said again. */
static void rx_run_refuse_data(struct vma_tcp_conn *conn, struct run *run)
{
	TCP_COUNT(conn->tcp, no_memory, 1);
	tcp_ack_now(conn->pcb);
	segment_strip_payload(&run->s, conn->pcb->rcv_nxt);
	rx_run_drop_packets(conn, run, 1);
	run->n = 1;
}

/* Bytes that the receive fifo had no memory for would be lost with the pcb, which the last ACK ends. */
static bool fin_waits_for_rx_memory(const struct vma_tcp_conn *conn)
{
	const struct tcp_pcb *pcb = conn->pcb;

	return __builtin_expect(pcb->refused_data != NULL, 0) && (pcb->state == LAST_ACK || pcb->state == CLOSING);
}

static void rx_run_through_lwip(struct vma_tcp_conn *conn, struct run *run, struct before *before)
{
	struct segment *s = &run->s;
	bool has_data = s->len != 0 && conn->pcb->state != SYN_SENT; /* with a SYN it is not taken, nor by the kernel */
	bool is_ooo = has_data && TCP_SEQ_GT(s->seq, conn->pcb->rcv_nxt), is_queued_already = false;
	unsigned steps = 0;
	struct pbuf *p;

	if (has_data && TCP_SEQ_LEQ(s->end, conn->pcb->rcv_nxt)) {
		rx_run_handle_duplicate(conn, run);
		before->ack_now = true;
	} else if (has_data && tcp_memory_refuses_rx(conn)) {
		rx_run_refuse_data(conn, run);
		before->ack_now = true;
	} else if (has_data && ooo_already_holds_segment(conn, s, &steps)) {
		is_queued_already = true;
		ack_duplicate_with_dsack(conn, s);
		before->ack_now = true;
	} else if (is_ooo && !ooo_make_room_for_segment(conn, s, steps)) {
		rx_run_refuse_data(conn, run);
		before->ack_now = true;
	}
	/* A bare FIN is taken even if the window is closed, as the kernel does. */
	if (s->len == 0 && s->flags & TCP_FIN && s->seq == conn->pcb->rcv_nxt && conn->pcb->rcv_wnd == 0)
		conn->pcb->rcv_wnd = 1;
	p = is_ooo && s->len != 0 && !is_queued_already ? rx_run_copy_to_pbuf(conn, run)
	                                                : rx_run_to_pbuf_chain(conn, run);
	if (p == NULL)
		return;
	if (s->flags & TCP_ACK)
		recovery_ack_before_lwip(conn, &conn->tcp->ack);
	lwip_tcp_input_segment(conn->key.peer, conn->key.local, p);
	conn_update_after_lwip_input(conn, s, before);
}

static void rx_run_input_fast_path_or_lwip(struct vma_tcp_conn *conn, struct run *run)
{
	struct segment *s = &run->s;
	struct before before = {.rcv_nxt = conn->pcb->rcv_nxt,
	                        .lastack = conn->pcb->lastack,
	                        .window = conn->pcb->snd_wnd,
	                        .wl1 = conn->pcb->snd_wl1,
	                        .seq = s->seq,
	                        .state = conn->pcb->state,
	                        .ack_now = conn->pcb->flags & TF_ACK_NOW};

	parse_ack(conn, s, &conn->tcp->ack);
	if (!conn->tcp->predicts_nothing && !rx_is_expecting_urgent_byte(conn) && !tcp_memory_refuses_rx(conn) &&
	    tcp_rx_fast_path(conn, s, run->packets, run->n)) {
		conn->last_in_ns = conn->tcp->now_ns;
		recovery_ack_after_lwip(conn, &conn->tcp->ack);
		rx_segment_after_lwip(conn, s, &before);
		return;
	}
	conn->window.chooses |= conn->tcp->predicts_nothing;
	if (fin_waits_for_rx_memory(conn) || !tcp_validate(conn, s)) {
		rx_run_drop_packets(conn, run, 0);
		return;
	}
	conn->last_in_ns = conn->tcp->now_ns;
	parse_ack(conn, s, &conn->tcp->ack); /* once more: tcp_validate may have changed it */
	urgent_update(conn, s);
	rx_run_through_lwip(conn, run, &before);
}

void tcp_input_burst(struct vma_tcp_conn *conn)
{
	struct vma_tcp *tcp = conn->tcp;
	bool merge = tcp->gro_conns_left > 0;
	struct run run;

	if (merge)
		tcp->gro_conns_left--;
	while (conn->burst != NULL && conn->pcb != NULL && conn->pcb->state != TIME_WAIT) {
		rx_merge_burst_to_run(conn, &run, merge);
		TCP_COUNT(tcp, segments_in, run.n);
		conn->counts.segments_in += run.n;
		conn->data_segments_in += run.s.len != 0 ? run.n : 0;
		rx_run_input_fast_path_or_lwip(conn, &run);
		if (conn->pcb != NULL && window_new_sack_block_needs_ack(conn))
			tcp_output_ack(conn);
	}
	if (conn->pcb != NULL && conn->pcb->state == TIME_WAIT)
		tcp_output_ack(conn); /* of the FIN */
}
