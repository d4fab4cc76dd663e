/*
 * pingpong.c - a conversation's message (Linux calls the mode of a connection "pingpong"), which is one segment in
 * order with data. It acknowledges all that there is to acknowledge, one segment that was sent once or nothing, on a
 * connection where nothing else is going on.
 *
 * The next message of a request and its answer always looks like this. input.c, predict.c, loss/recovery.c and
 * loss/scoreboard.c would ask many questions about it and about the connection; the gate below leaves one answer to
 * each. So what they would do is done here in a row; nothing more, nothing else. test_pingpong.c and test_paths.c
 * compare.
 */
#include "pingpong.h"

#include "../budget.h"
#include "../lwip/objects.h"
#include "predict.h"
#include "../loss/recovery.h"
#include "../zcopy.h"

enum { STAMPED_LEN = TCP_HLEN + LWIP_TCP_OPT_LEN_TS_OUT };

struct pingpong_segment {
	const uint8_t *data; /* in the packet */
	uint32_t seq, ack, len;
	uint32_t ts_val, ts_ecr;
	uint16_t window; /* as it is in the header */
	bool push, stamped;
};

/* Others can write to the frame: each field is read once, and what the compiler keeps of it is in private memory. */
typedef uint16_t __attribute__((aligned(1), may_alias)) unaligned16;
typedef uint32_t __attribute__((aligned(1), may_alias)) unaligned32;

static inline uint16_t load_be16_volatile(const uint8_t *p)
{
	return lwip_ntohs(*(const volatile unaligned16 *)p);
}

static inline uint32_t load_be32_volatile(const uint8_t *p)
{
	return lwip_ntohl(*(const volatile unaligned32 *)p);
}

/*
 * Data, ACK, perhaps PSH, time stamps where everybody puts them or, if there are to be none, no options; nothing has
 * come behind it that is to be merged.
 */
static inline bool pingpong_parse_simple_data_segment(const struct vma_tcp_conn *conn, struct pingpong_segment *m)
{
	const struct vma_buf *packet = conn->burst;
	const uint8_t *hdr = (const uint8_t *)vma_buf_data(conn->tcp->arena, packet) + packet->l4_off;
	const bool stamped = conn->pcb->flags & TF_TIMESTAMP;
	const uint32_t len = stamped ? STAMPED_LEN : TCP_HLEN;

	uint32_t flags;

	if (packet->user != NULL || packet->payload_len == 0 || packet->next != NULL)
		return false;
	flags = load_be16_volatile(hdr + 12);
	if ((uint32_t)(packet->payload_off - packet->l4_off) != len ||
	    (flags & 0xfff & ~(uint32_t)TCP_PSH) != TCP_ACK ||
	    (stamped && load_be32_volatile(hdr + TCP_HLEN) != SEGMENT_TS_WORD))
		return false;
	*m = (struct pingpong_segment){.data = hdr + len,
	                               .seq = load_be32_volatile(hdr + 4),
	                               .ack = load_be32_volatile(hdr + 8),
	                               .len = packet->payload_len,
	                               .window = load_be16_volatile(hdr + 14),
	                               .push = flags & TCP_PSH,
	                               .stamped = stamped};
	if (stamped) {
		m->ts_val = load_be32_volatile(hdr + TCP_HLEN + 4);
		m->ts_ecr = load_be32_volatile(hdr + TCP_HLEN + 8);
	}
	return true;
}

/* What segment_is_expected of predict.c asks of a segment with data. */
static inline bool pingpong_segment_is_expected(const struct vma_tcp_conn *conn, const struct pingpong_segment *m)
{
	const struct tcp_pcb *pcb = conn->pcb;

	return m->seq == pcb->rcv_nxt && m->len <= pcb->rcv_wnd &&
	       (!m->stamped || (int32_t)(m->ts_val - pcb->ts_recent) >= 0) && pcb->ooseq == NULL &&
	       pcb->refused_data == NULL;
}

/* Nothing is out and waits for more after it. With no segment out, or the one, unmarked, there is no mark at all. */
static inline bool ack_covers_all_sent(const struct tcp_pcb *pcb, const struct pingpong_segment *m)
{
	const struct tcp_seg *seg = pcb->unacked;

	return m->ack == pcb->snd_nxt && pcb->unsent == NULL &&
	       (seg == NULL || (seg->next == NULL && seg->sends == 1 && seg->marks == 0));
}

/*
 * Established, with SACK, which nearly all have: duplicate ACKs stand for no bytes then (dup_bytes) and are not counted
 * (dup_acks), so there is nothing to be set back (loss/recovery.c). What a recovery before has left to be decided is
 * decided there.
 */
static inline bool conn_is_established_no_recovery(const struct vma_tcp_conn *conn)
{
	const struct tcp_recovery *r = &conn->recovery;
	const struct tcp_pcb *pcb = conn->pcb;

	return pcb->state == ESTABLISHED && pcb->flags & TF_SACK && conn->connected && r->state == TCP_RECOVERY_OPEN &&
	       !r->tail_probe_out && !r->undo_first_ack;
}

/* As rx_run_input_fast_path_or_lwip of input.c, before it asks tcp_rx_fast_path. */
static inline bool conn_may_use_fast_path(const struct vma_tcp_conn *conn)
{
	return !conn->tcp->predicts_nothing && !tcp_memory_refuses_rx(conn) &&
	       atomic_load_explicit(&conn->urgent_byte, memory_order_relaxed) != URGENT_EXPECTED;
}

static __attribute__((noinline)) bool fifo_put_across_spans(struct tcp_fifo *fifo, const struct iovec *spans,
                                                            unsigned n, const uint8_t *data, uint32_t len)
{
	size_t room = 0;

	for (unsigned i = 0; i < n; i++)
		room += spans[i].iov_len;
	if (room < len)
		return false;
	for (unsigned i = 0; i < n; data += spans[i++].iov_len)
		memcpy(spans[i].iov_base, data, spans[i].iov_len);
	fifo_commit(fifo, len);
	return true;
}

static inline bool pingpong_copy_data_to_rx_fifo(struct tcp_fifo *fifo, const uint8_t *data, uint32_t len)
{
	struct iovec spans[8];
	unsigned n = fifo_reserve(fifo, len, spans, 8);

	if (__builtin_expect(n != 1 || spans[0].iov_len < len, 0))
		return fifo_put_across_spans(fifo, spans, n, data, len);
	memcpy(spans[0].iov_base, data, len);
	fifo_commit(fifo, len);
	return true;
}

static inline bool pingpong_take_copied_data(struct vma_tcp_conn *conn, const struct pingpong_segment *m)
{
	if (!pingpong_copy_data_to_rx_fifo(&conn->rx, m->data, m->len))
		return false;
	vma_buf_put(conn->tcp->arena, conn->burst);
	TCP_COUNT(conn->tcp, bytes_in, m->len);
	conn->counts.bytes_in += m->len;
	conn->data_received = true;
	return true;
}

/* As fast_path_take_data of predict.c. False: the packet stays, and nothing has happened. */
static inline bool pingpong_take_data(struct vma_tcp_conn *conn, const struct pingpong_segment *m)
{
	const uint8_t mode = atomic_load_explicit(&conn->rx_mode, memory_order_relaxed);

	if (__builtin_expect(mode == 0, 1))
		return pingpong_take_copied_data(conn, m);
	return mode == RX_ZCOPY && zcopy_queue_received_packets(conn, &conn->burst, 1, m->len);
}

static inline void pingpong_advance_rcv_nxt_and_count(struct vma_tcp_conn *conn, const struct pingpong_segment *m)
{
	struct vma_tcp *tcp = conn->tcp;
	struct tcp_pcb *pcb = conn->pcb;

	conn->burst = conn->burst_last = NULL;
	tcp->gro_conns_left -= tcp->gro_conns_left > 0;
	TCP_COUNT(tcp, segments_in, 1);
	conn->counts.segments_in++;
	conn->data_segments_in++;
	conn->last_in_ns = tcp->now_ns;
	if (m->stamped)
		fast_path_update_ts_recent(pcb, m->seq, m->len, m->ts_val);
	pcb->rcv_nxt += m->len;
	pcb->rcv_wnd -= m->len;
}

static inline void pingpong_take_ack(struct vma_tcp_conn *conn, const struct pingpong_segment *m)
{
	struct tcp_pcb *pcb = conn->pcb;
	struct tcp_seg *seg = pcb->unacked;
	uint32_t acked = m->ack - pcb->lastack;

	fast_path_update_snd_wnd(pcb, m->seq, m->ack, (uint32_t)m->window << pcb->snd_scale);
	pcb->lastack = m->ack;
	recovery_all_acked_outside_recovery(conn);
	if (seg == NULL)
		return;
	recovery_sole_segment_acked(conn, seg, acked);
	pcb->unacked = NULL;
	pcb->snd_buf += seg->len;
	lwip_set_cursor_for_free(conn->tcp, conn);
	pcb->snd_queuelen = (u16_t)(pcb->snd_queuelen - memory_segment_free(conn->tcp, seg));
	lwip_cursor_reset();
}

/* As rx_segment_after_lwip of input.c: what was fed has been sent and acknowledged, all of it. */
static inline void pingpong_finish_segment_bookkeeping(struct vma_tcp_conn *conn, const struct pingpong_segment *m)
{
	struct tcp_pcb *pcb = conn->pcb;
	struct tcp_ack *ack = &conn->tcp->ack;

	ack->has_ts = m->stamped; /* what window_on_data_received looks at */
	ack->ts_ecr = m->ts_ecr;
	tcp_clear_flags(pcb, TF_ACK_DELAY);
	if (pcb->snd_wnd > conn->snd_wnd_max)
		conn->snd_wnd_max = pcb->snd_wnd;
	window_on_data_received(conn, m->len, m->len, m->push);
	fast_path_release_acked_bytes(conn, conn->lwip_end, conn->lwip_end);
	conn->ack_received = true;
}

bool tcp_pingpong_input(struct vma_tcp_conn *conn)
{
	struct pingpong_segment m;

	if (!pingpong_parse_simple_data_segment(conn, &m) || !pingpong_segment_is_expected(conn, &m) ||
	    !ack_covers_all_sent(conn->pcb, &m) || !conn_is_established_no_recovery(conn) ||
	    !conn_may_use_fast_path(conn))
		return false;
	if (!pingpong_take_data(conn, &m))
		return false;
	pingpong_advance_rcv_nxt_and_count(conn, &m);
	pingpong_take_ack(conn, &m);
	pingpong_finish_segment_bookkeeping(conn, &m);
	return true;
}
