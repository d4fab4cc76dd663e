/*
 * resegment.c - segments that have been made already get another size, since their bytes are still in the send fifo. If
 * they are longer than a new, smaller MSS, they are cut. If a timeout sends short ones again, they become long ones.
 */
#include "../tcp_priv.h"
#include "../lwip/port.h"
#include "../loss/scoreboard.h"

static struct pbuf *alloc_header_pbuf(const struct tcp_seg *seg)
{
	struct pbuf *p = pbuf_alloc(PBUF_TRANSPORT, LWIP_TCP_OPT_LENGTH(seg->flags), PBUF_RAM);

	if (p != NULL)
		pbuf_add_header(p, TCP_HLEN); /* PBUF_TRANSPORT leaves room */
	return p;
}

/* References to `len` bytes of the fifo behind p. */
static bool pbuf_append_fifo_refs(struct vma_tcp_conn *conn, struct pbuf *p, uint64_t offset, uint32_t len)
{
	while (len > 0) {
		struct iovec span = fifo_span(&conn->tx, offset);
		uint32_t take = span.iov_len < len ? (uint32_t)span.iov_len : len;
		struct pbuf *bytes = take != 0 ? pbuf_alloc(PBUF_RAW, (u16_t)take, PBUF_ROM) : NULL;

		if (bytes == NULL)
			return false;
		((struct pbuf_rom *)bytes)->payload = span.iov_base;
		pbuf_cat(p, bytes);
		offset += take;
		len -= take;
	}
	return true;
}

/* A segment of what lies behind the first `at` bytes of seg. */
static struct tcp_seg *alloc_second_half_segment(struct vma_tcp_conn *conn, const struct tcp_seg *seg, u16_t at)
{
	uint32_t seq = lwip_ntohl(seg->tcphdr->seqno) + at;
	struct tcp_seg *half = memp_malloc(MEMP_TCP_SEG);
	struct pbuf *p = half != NULL ? alloc_header_pbuf(seg) : NULL;

	if (p == NULL || !pbuf_append_fifo_refs(conn, p, tcp_tx_offset(conn, seq), seg->len - at)) {
		if (p != NULL)
			pbuf_free(p);
		if (half != NULL)
			memp_free(MEMP_TCP_SEG, half);
		return NULL;
	}
	*half = *seg;
	half->p = p;
	half->len = (u16_t)(seg->len - at);
	half->tcphdr = p->payload;
	*half->tcphdr = *seg->tcphdr;
	half->tcphdr->seqno = lwip_htonl(seq);
	return half;
}

/* False: no memory, and seg is as it was. */
static bool split_segment_at(struct vma_tcp_conn *conn, struct tcp_seg *seg, u16_t at, struct tcp_seg **last)
{
	struct tcp_pcb *pcb = conn->pcb;
	struct tcp_seg *half = alloc_second_half_segment(conn, seg, at);

	if (half == NULL)
		return false;
	pcb->snd_queuelen = (u16_t)(pcb->snd_queuelen - pbuf_clen(seg->p));
	pbuf_realloc(seg->p, (u16_t)(seg->p->tot_len - half->len));
	seg->len = at;
	TCPH_UNSET_FLAG(seg->tcphdr, TCP_PSH | TCP_FIN);
	half->next = seg->next;
	seg->next = half;
	pcb->snd_queuelen = (u16_t)(pcb->snd_queuelen + pbuf_clen(seg->p) + pbuf_clen(half->p));
	if (*last == seg)
		*last = half;
	return true;
}

static void resegment_segment_list(struct vma_tcp_conn *conn, struct tcp_seg *seg, struct tcp_seg **last, bool sent)
{
	for (; seg != NULL; seg = seg->next) {
		bool long_one = seg->len > conn->mss;

		if (long_one && !split_segment_at(conn, seg, (u16_t)conn->mss, last)) {
			TCP_COUNT(conn->tcp, no_memory, 1);
			continue; /* tcp_output_split_to_mss tries again before it is sent */
		}
		if (long_one && sent && !(seg->marks & SEG_SACKED)) {
			seg->marks |= SEG_LOST;
			seg->next->marks |= SEG_LOST;
		}
	}
}

/* False: no memory. The other half, which has seg's marks, follows it. */
bool tcp_output_split_to_mss(struct vma_tcp_conn *conn, struct tcp_seg *seg)
{
	if (!conn->connected || seg->len <= conn->mss)
		return true;
	if (!split_segment_at(conn, seg, (u16_t)conn->mss, &conn->pcb->unacked_last))
		return false;
	scoreboard_on_segment_split(conn, seg, seg->next);
	return true;
}

/*
 * What was sent in segments that were too long is lost (RFC 1191 6.5): it is sent again in shorter ones, which recovery
 * looks at anew.
 */
void tcp_split_queued_segments_to_mss(struct vma_tcp_conn *conn)
{
	struct tcp_pcb *pcb = conn->pcb;
	struct tcp_seg *none = NULL;
	bool inside = lwip_at.conn == conn;

	if (pcb == NULL || !conn->connected)
		return;
	if (!inside)
		lwip_enter(conn->tcp, conn);
	resegment_segment_list(conn, pcb->unacked, &pcb->unacked_last, true);
	resegment_segment_list(conn, pcb->unsent, &none, false);
	recovery_begin_resend_of_oversized(conn);
	if (!inside)
		lwip_leave();
	conn_enqueue_ready(conn);
}

/* ---- joined ---- */

static bool segments_may_join(const struct vma_tcp_conn *conn, const struct tcp_seg *seg, const struct tcp_seg *next)
{
	uint32_t seq = lwip_ntohl(seg->tcphdr->seqno);

	return !((seg->marks | next->marks) & SEG_SACKED) && seg->len != 0 && seg->len + next->len <= conn->mss &&
	       !(TCPH_FLAGS(seg->tcphdr) & (TCP_SYN | TCP_FIN)) && seq + seg->len == lwip_ntohl(next->tcphdr->seqno);
}

/* The bytes of next, which are references to the fifo behind its header, go to the end of seg. */
static void segment_append_bytes_of_next(struct tcp_seg *seg, struct tcp_seg *next)
{
	struct pbuf *last = seg->p, *bytes = next->p->next;

	next->p->next = NULL;
	next->p->tot_len = next->p->len;
	if (bytes == NULL)
		return;
	while (last->next != NULL)
		last = last->next;
	if (last != seg->p && bytes->next == NULL && (char *)last->payload + last->len == (char *)bytes->payload) {
		for (struct pbuf *p = seg->p; p != NULL; p = p->next)
			p->tot_len = (u16_t)(p->tot_len + bytes->len);
		last->len = (u16_t)(last->len + bytes->len);
		pbuf_free(bytes);
	} else {
		pbuf_cat(seg->p, bytes);
	}
}

static void segment_absorb_next(struct vma_tcp_conn *conn, struct tcp_seg *seg)
{
	struct tcp_pcb *pcb = conn->pcb;
	struct tcp_seg *next = seg->next;

	pcb->snd_queuelen = (u16_t)(pcb->snd_queuelen - pbuf_clen(seg->p) - pbuf_clen(next->p));
	segment_append_bytes_of_next(seg, next);
	pcb->snd_queuelen = (u16_t)(pcb->snd_queuelen + pbuf_clen(seg->p));
	seg->len = (u16_t)(seg->len + next->len);
	seg->flags |= next->flags;
	TCPH_SET_FLAG(seg->tcphdr, TCPH_FLAGS(next->tcphdr) & (TCP_PSH | TCP_FIN));
	seg->next = next->next;
	if (pcb->unacked_last == next)
		pcb->unacked_last = seg;
	tcp_seg_free(next);
}

/*
 * Before a timeout has them sent again, as the kernel: a window of one segment would else be a hundred of them, if they
 * are short, and a queue on the way that was too small for them would be so again. Recovery's notes of single segments
 * are void after it.
 */
void tcp_output_join_short_segments(struct vma_tcp_conn *conn)
{
	bool inside = lwip_at.conn == conn;

	if (!conn->connected)
		return;
	if (!inside)
		lwip_enter(conn->tcp, conn);
	for (struct tcp_seg *seg = conn->pcb->unacked; seg != NULL; seg = seg->next)
		while (seg->next != NULL && segments_may_join(conn, seg, seg->next))
			segment_absorb_next(conn, seg);
	if (!inside)
		lwip_leave();
}
