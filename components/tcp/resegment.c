/* resegment.c - segments that are longer than a new, smaller MSS are cut: their bytes are still in the send fifo. */
#include "tcp_priv.h"
#include "lwip_port.h"

static struct pbuf *header_pbuf(const struct tcp_seg *seg)
{
	struct pbuf *p = pbuf_alloc(PBUF_TRANSPORT, LWIP_TCP_OPT_LENGTH(seg->flags), PBUF_RAM);

	if (p != NULL)
		pbuf_add_header(p, TCP_HLEN); /* PBUF_TRANSPORT leaves room */
	return p;
}

/* References to `len` bytes of the fifo behind p. */
static bool append_bytes(struct vma_tcp_conn *conn, struct pbuf *p, uint64_t offset, uint32_t len)
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
static struct tcp_seg *second_half(struct vma_tcp_conn *conn, const struct tcp_seg *seg, u16_t at)
{
	uint32_t seq = lwip_ntohl(seg->tcphdr->seqno) + at;
	struct tcp_seg *half = memp_malloc(MEMP_TCP_SEG);
	struct pbuf *p = half != NULL ? header_pbuf(seg) : NULL;

	if (p == NULL || !append_bytes(conn, p, tcp_tx_offset(conn, seq), seg->len - at)) {
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
static bool cut(struct vma_tcp_conn *conn, struct tcp_seg *seg, u16_t at, struct tcp_seg **last)
{
	struct tcp_pcb *pcb = conn->pcb;
	struct tcp_seg *half = second_half(conn, seg, at);

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

static void cut_list(struct vma_tcp_conn *conn, struct tcp_seg *seg, struct tcp_seg **last, bool sent)
{
	for (; seg != NULL; seg = seg->next) {
		bool long_one = seg->len > conn->mss;

		if (long_one && !cut(conn, seg, (u16_t)conn->mss, last)) {
			TCP_COUNT(conn->tcp, no_memory, 1);
			continue; /* as long as it is: the next one to be too long tries again */
		}
		if (long_one && sent && !(seg->marks & SEG_SACKED)) {
			seg->marks |= SEG_LOST;
			seg->next->marks |= SEG_LOST;
		}
	}
}

/*
 * What was sent in segments that were too long is lost (RFC 1191 6.5): it is sent again in shorter ones, which recovery
 * looks at anew.
 */
void tcp_output_resegment(struct vma_tcp_conn *conn)
{
	struct tcp_pcb *pcb = conn->pcb;
	struct tcp_seg *none = NULL;
	bool inside = lwip_at.conn == conn;

	if (pcb == NULL || !conn->connected)
		return;
	if (!inside)
		lwip_enter(conn->tcp, conn);
	cut_list(conn, pcb->unacked, &pcb->unacked_last, true);
	cut_list(conn, pcb->unsent, &none, false);
	recovery_rescan(conn);
	if (!inside)
		lwip_leave();
	tcp_ready(conn);
}
