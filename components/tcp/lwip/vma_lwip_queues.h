/*
 * vma_lwip_queues - segments that arrive out of order, at constant cost for each, and no more of them than the window
 * is worth. By itself lwIP walks the whole queue for each segment that it adds. It walks the whole chain for each that
 * it takes out when the hole is filled. With a window of megabytes these are thousands of cache misses per packet. lwIP
 * lets a peer that sends single bytes have a frame for each byte of the window. And it cuts a queued segment off at the
 * beginning of a later one, although a segment that was merged of several may reach further. The end that is cut off
 * would be gone although a SACK has told the peer that it is there. The peer would not send it again before a timeout
 * (RFC 2018 8).
 *
 * The queue pcb->ooseq is sorted, and most segments belong at its end. pcb->ooseq_last is its last segment, or NULL: it
 * is set when a segment is put at the end, and cleared when that segment is freed. A queued segment knows its pcb, and
 * how many pieces, pbufs with data, it came with (SEG_QUEUED); pcb->ooseq_pbufs is the sum. Used by the adapted
 * tcp_in.c and tcp.c, in the component and under lwIP's own unit tests; included behind lwIP's headers.
 *
 * Threads, progress, memory: as lwIP. Example: test/test_lwip_queues.c.
 */
#ifndef VMA_LWIP_QUEUES_H
#define VMA_LWIP_QUEUES_H

#include <stdbool.h>

#include <lwip/pbuf.h>
#include <lwip/priv/tcp_priv.h>

/* Cuts off what of an out of order segment, which begins within the window, lies beyond it: bytes, and the FIN. */
static inline void ooo_segment_trim_to_window(const struct tcp_pcb *pcb, struct tcp_seg *seg, u32_t seqno,
                                              u16_t *tcplen)
{
	u32_t room = pcb->rcv_nxt + pcb->rcv_wnd - seqno;

	if (TCP_TCPLEN(seg) <= room)
		return;
	TCPH_UNSET_FLAG(seg->tcphdr, TCP_FIN);
	if (seg->len > room) {
		seg->len = (u16_t)room;
		pbuf_realloc(seg->p, seg->len);
	}
	*tcplen = seg->len;
}

/*
 * Where the search for the place of a segment begins: before it lies nothing that the search needs to know. *sackbeg is
 * the left edge of the data without a hole that this segment begins or goes on.
 */
static inline struct tcp_seg *ooo_queue_search_start(struct tcp_pcb *pcb, u32_t seqno, u32_t *sackbeg)
{
	struct tcp_seg *last = pcb->ooseq_last;

	if (last == NULL || !TCP_SEQ_GT(seqno, last->tcphdr->seqno))
		return pcb->ooseq;
	if (!(pcb->flags & TF_SACK))
		return last;
	for (int i = 0; i < LWIP_TCP_MAX_SACK_NUM && LWIP_TCP_SACK_VALID(pcb, i); i++) {
		const struct tcp_sack_range *range = &pcb->rcv_sacks[i];

		if (TCP_SEQ_LEQ(range->left, last->tcphdr->seqno) && TCP_SEQ_LT(last->tcphdr->seqno, range->right)) {
			*sackbeg = range->left;
			return last;
		}
	}
	return pcb->ooseq; /* that range is not among those remembered */
}

/* Whether all of a segment that begins behind the beginning of a queued one is in that one. */
static inline bool ooo_queue_covers_segment(const struct tcp_seg *queued, u32_t seqno, u32_t tcplen)
{
	return TCP_SEQ_LEQ(seqno + tcplen, queued->tcphdr->seqno + TCP_TCPLEN(queued));
}

/* A piece per 256 bytes of the window is more than segments of any usual size need. */
static inline bool ooo_queue_is_full(const struct tcp_pcb *pcb)
{
	return pcb->ooseq_pbufs > 64 + pcb->rcv_wnd / 256;
}

/* A segment of the pcb at work has been copied, to be queued. */
static inline void ooo_queue_count_queued_segment(struct tcp_seg *seg)
{
	seg->marks = SEG_QUEUED;
	seg->queue_pcb = tcp_input_pcb;
	seg->queue_pbufs = pbuf_clen(seg->p);
	if (seg->p->len == 0 && seg->queue_pbufs > 1)
		seg->queue_pbufs--; /* that of the header */
	seg->queue_pcb->ooseq_pbufs += seg->queue_pbufs;
}

/* A segment is about to be freed; its pcb is still there. */
static inline void ooo_queue_uncount_freed_segment(const struct tcp_seg *seg)
{
	if (!(seg->marks & SEG_QUEUED))
		return;
	seg->queue_pcb->ooseq_pbufs -= seg->queue_pbufs;
	if (seg->queue_pcb->ooseq_last == seg)
		seg->queue_pcb->ooseq_last = NULL;
}

/*
 * Chains `more` behind `head`, whose last pbuf is `*tail` (NULL: not known), without the sums of lengths; they are
 * made, once for the whole chain, by ooo_queue_finish_chain. Modulo 2^16, as pbuf_split_64k wants them.
 */
static inline void ooo_queue_chain_pbufs(struct pbuf *head, struct pbuf **tail, struct pbuf *more)
{
	struct pbuf *last = *tail != NULL ? *tail : head;

	while (last->next != NULL)
		last = last->next;
	last->next = more;
	*tail = more;
}

static inline void ooo_queue_finish_chain(struct pbuf *head, const struct pbuf *tail)
{
	u16_t total = 0;

	if (tail == NULL)
		return;
	for (const struct pbuf *p = head; p != NULL; p = p->next)
		total = (u16_t)(total + p->len);
	for (struct pbuf *p = head; p != NULL; p = p->next) {
		p->tot_len = total;
		total = (u16_t)(total - p->len);
	}
}

#endif
