/*
 * predict.c - header prediction (Jacobson, RFC 1185 appendix; the kernel's fast path). It takes an established
 * connection's next segment in order, or an acknowledgement of bytes in flight, if the segment says nothing else.
 *
 * lwIP would change few numbers for such a segment, and wrap its bytes in pbufs only to have them copied out of there.
 * Here the same numbers are changed, and the bytes copied at once. test_predict.c has both paths do the same things and
 * compares everything that lwIP knows afterwards.
 */
#include <string.h>

#include "../lwip/objects.h"
#include "../lwip/port.h"
#include "predict.h"
#include "../zcopy.h"

/* lwIP's own parser would find nothing else in it. */
static bool has_expected_options(const struct tcp_pcb *pcb, const struct segment *s)
{
	bool stamped = pcb->flags & TF_TIMESTAMP;

	return s->is_plain && s->has_ts == stamped && (!stamped || (int32_t)(s->ts_val - pcb->ts_recent) >= 0);
}

static bool segment_is_expected(const struct vma_tcp_conn *conn, const struct segment *s)
{
	const struct tcp_pcb *pcb = conn->pcb;

	if (pcb->state != ESTABLISHED || (s->flags & ~TCP_PSH) != TCP_ACK || s->seq != pcb->rcv_nxt)
		return false;
	if (pcb->ooseq != NULL || pcb->refused_data != NULL || !has_expected_options(pcb, s))
		return false;
	if (TCP_SEQ_LT(s->ack, pcb->lastack) || TCP_SEQ_GT(s->ack, pcb->snd_nxt) || s->len > pcb->rcv_wnd)
		return false;
	return s->len != 0 || s->ack != pcb->lastack; /* else perhaps a duplicate, or an answer to something */
}

/* False: no memory; nothing has happened. */
static bool fast_path_take_copied_data(struct vma_tcp_conn *conn, uint32_t len, struct vma_buf *const *packets,
                                       unsigned n)
{
	struct iovec spans[8];
	unsigned count = fifo_reserve(&conn->rx, len, spans, 8);
	size_t room = 0;

	for (unsigned i = 0; i < count; i++)
		room += spans[i].iov_len;
	if (room < len)
		return false;
	port_copy_payload(conn->tcp->arena, packets, n, spans);
	fifo_commit(&conn->rx, len);
	conn->counts.bytes_in += len;
	TCP_COUNT(conn->tcp, bytes_in, len);
	conn->data_received = true;
	for (unsigned i = 0; i < n; i++)
		vma_buf_put_chain(conn->tcp->arena, packets[i]);
	return true;
}

static inline bool fast_path_take_data(struct vma_tcp_conn *conn, uint32_t len, struct vma_buf *const *packets,
                                       unsigned n)
{
	const uint8_t mode = atomic_load_explicit(&conn->rx_mode, memory_order_relaxed);

	if (__builtin_expect(mode == 0, 1))
		return fast_path_take_copied_data(conn, len, packets, n);
	return mode == RX_ZCOPY && zcopy_queue_received_packets(conn, packets, n, len);
}

static void predict_free_acked_segments(struct vma_tcp *tcp, struct tcp_pcb *pcb)
{
	struct tcp_seg *seg;

	while ((seg = pcb->unacked) != NULL &&
	       TCP_SEQ_LEQ(lwip_ntohl(seg->tcphdr->seqno) + TCP_TCPLEN(seg), pcb->lastack)) {
		pcb->unacked = seg->next;
		pcb->snd_buf += seg->len;
		pcb->snd_queuelen = (u16_t)(pcb->snd_queuelen - memory_segment_free(tcp, seg));
	}
}

static void fast_path_take_ack(struct vma_tcp *tcp, struct tcp_pcb *pcb, const struct segment *s)
{
	fast_path_update_snd_wnd(pcb, s->seq, s->ack, (uint32_t)s->window << pcb->snd_scale);
	if (s->ack != pcb->lastack) {
		pcb->lastack = s->ack;
		predict_free_acked_segments(tcp, pcb);
	}
}

bool tcp_rx_fast_path(struct vma_tcp_conn *conn, const struct segment *s, struct vma_buf *const *packets, unsigned n)
{
	struct tcp_pcb *pcb = conn->pcb;

	if (!segment_is_expected(conn, s))
		return false;
	if (s->len == 0)
		vma_buf_put_chain(conn->tcp->arena, packets[0]); /* only data is merged */
	else if (!fast_path_take_data(conn, s->len, packets, n))
		return false;
	recovery_ack_before_lwip(conn, &conn->tcp->ack);
	fast_path_take_ack(conn->tcp, pcb, s);
	if (s->has_ts)
		fast_path_update_ts_recent(pcb, s->seq, s->len, s->ts_val);
	pcb->rcv_nxt += s->len;
	pcb->rcv_wnd -= s->len;
	return true;
}
