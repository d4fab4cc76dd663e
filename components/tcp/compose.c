/*
 * compose.c - new data of an established connection becomes a segment, and the segment a frame, by the short way: the
 * counterpart of predict.c.
 *
 * The segment is made of the same objects as lwIP's, so that it is sent again, cut, joined and freed like any other;
 * and lwIP's numbers are changed as lwIP would. test_predict.c compares both ways.
 */
#include <string.h>

#include "compose.h"
#include "lwip_memory.h"

/* No FIN is to go along, nothing waits before it, and there is a way. */
static bool is_simple(const struct vma_tcp_conn *conn)
{
	const struct tcp_pcb *pcb = conn->pcb;

	return !conn->tcp->predicts_nothing && pcb->unsent == NULL &&
	       (pcb->state == ESTABLISHED || pcb->state == CLOSE_WAIT) && pcb->snd_nxt == pcb->snd_lbb &&
	       conn->path.len != 0 && !atomic_load_explicit(&conn->shut_wr, memory_order_relaxed);
}

/* In whole words, as they are read again (see frame.c). The window is frame.c's, too. */
static void write_header(const struct vma_tcp_conn *conn, void *header, bool stamped, bool push)
{
	const struct tcp_pcb *pcb = conn->pcb;
	uint8_t hdr_len = stamped ? TCP_HLEN + LWIP_TCP_OPT_LEN_TS_OUT : TCP_HLEN;
	uint16_t flags = (uint16_t)(hdr_len / 4 << 12 | TCP_ACK | (push ? TCP_PSH : 0));
	uint32_t words[8] = {conn->key.local_port_be | (uint32_t)conn->key.peer_port_be << 16,
	                     lwip_htonl(pcb->snd_lbb),
	                     lwip_htonl(pcb->rcv_nxt),
	                     lwip_htons(flags),
	                     0,
	                     lwip_htonl(0x0101080a),
	                     lwip_htonl(port_clock_ms(conn->tcp)),
	                     lwip_htonl(pcb->ts_recent)};

	memcpy(header, words, stamped ? 32 : TCP_HLEN);
}

/* What lwIP would have changed by now. */
static void append(struct tcp_pcb *pcb, struct tcp_seg *seg)
{
	if (pcb->unacked == NULL)
		pcb->unacked = seg;
	else
		pcb->unacked_last->next = seg;
	pcb->unacked_last = seg;
	pcb->snd_lbb += seg->len;
	pcb->snd_nxt = pcb->snd_lbb;
	pcb->snd_buf -= seg->len;
	pcb->snd_queuelen = (u16_t)(pcb->snd_queuelen + MEMORY_SEGMENT_PBUFS);
	pcb->persist_backoff = 0;
	pcb->ts_lastacksent = pcb->rcv_nxt;
	tcp_clear_flags(pcb, TF_ACK_DELAY | TF_ACK_NOW | TF_NAGLEMEMERR);
}

struct tcp_seg *tcp_compose(struct vma_tcp_conn *conn, uint32_t n, bool push)
{
	struct tcp_pcb *pcb = conn->pcb;
	bool stamped = pcb->flags & TF_TIMESTAMP;
	struct tcp_seg *seg;
	struct iovec span;

	if (!is_simple(conn))
		return NULL;
	span = fifo_span(&conn->tx, conn->fed);
	if (span.iov_len < n)
		return NULL; /* of two pieces */
	seg = memory_segment(conn->tcp, span.iov_base, (uint16_t)n, stamped ? LWIP_TCP_OPT_LEN_TS_OUT : 0);
	if (seg == NULL)
		return NULL;
	seg->flags = stamped ? TF_SEG_OPTS_TS : 0;
	write_header(conn, seg->tcphdr, stamped, push);
	if (tcp_frame_send(conn, seg->p) != ERR_OK) {
		memory_segment_free(conn->tcp, seg);
		return NULL;
	}
	conn->fed += n;
	append(pcb, seg);
	return seg;
}
