/*
 * compose.c - new data of an established connection becomes a segment, and the segment a frame, by the fast path: the
 * counterpart of rx/predict.c.
 *
 * The segment is made of the same objects as lwIP's, so it is sent again, cut, joined and freed like any other. lwIP's
 * numbers are changed as lwIP would change them. test_predict.c compares both paths.
 */
#include <string.h>

#include "compose.h"
#include "copy_sum.h"
#include "frame.h"
#include "tso.h"
#include "../lwip/objects.h"

/* Nothing waits before it, and there is a path to the peer. */
static inline __attribute__((always_inline)) bool conn_can_send_new_data_directly(const struct vma_tcp_conn *conn)
{
	const struct tcp_pcb *pcb = conn->pcb;

	return !conn->tcp->predicts_nothing && pcb->unsent == NULL &&
	       (pcb->state == ESTABLISHED || pcb->state == CLOSE_WAIT) && pcb->snd_nxt == pcb->snd_lbb &&
	       conn->path.len != 0;
}

/* And no FIN is to go along. */
static bool compose_fast_path_applies(const struct vma_tcp_conn *conn)
{
	return conn_can_send_new_data_directly(conn) && !atomic_load_explicit(&conn->shut_wr, memory_order_relaxed);
}

/* The words of the header that are a segment's own, as they lie in memory; `flags` also has the length of it. */
static inline __attribute__((always_inline)) struct compose_fields
compose_tcp_header_fields_of_conn(const struct vma_tcp_conn *conn, bool stamped, bool push)
{
	const uint32_t hdr_len = stamped ? TCP_HLEN + LWIP_TCP_OPT_LEN_TS_OUT : TCP_HLEN;
	const struct tcp_pcb *pcb = conn->pcb;
	struct compose_fields w = {.ports = frame_ports_as_in_header(&conn->key),
	                           .seq = lwip_htonl(pcb->snd_lbb),
	                           .ack = lwip_htonl(pcb->rcv_nxt),
	                           .flags = lwip_htons((uint16_t)(hdr_len / 4 << 12 | TCP_ACK)) |
	                                    (push ? TCP_PSH << 8 : 0)};

	if (stamped) {
		w.now = lwip_htonl(tcp_conn_clock_ms(conn));
		w.echo = lwip_htonl(pcb->ts_recent);
	}
	return w;
}

/* All of it but window, urgent pointer and checksum. */
static inline __attribute__((always_inline)) uint64_t
compose_write_header_words(uint8_t *to, const struct compose_fields *w, bool stamped)
{
	const uint32_t kind = lwip_htonl(0x0101080a);

	frame_store32(to, w->ports);
	frame_store32(to + 4, w->seq);
	frame_store32(to + 8, w->ack);
	if (!stamped)
		return (uint64_t)w->ports + w->seq + w->ack;
	frame_store32(to + 20, kind);
	frame_store32(to + 24, w->now);
	frame_store32(to + 28, w->echo);
	return (uint64_t)w->ports + w->seq + w->ack + kind + w->now + w->echo;
}

/*
 * The header in the segment, where lwIP looks for it: what is there is what frame.c would read to send it again, so the
 * window, which is chosen when a frame leaves, and the checksum are not.
 */
static inline __attribute__((always_inline)) void
compose_write_tcp_header_without_window(uint8_t *to, const struct compose_fields *w, bool stamped)
{
	compose_write_header_words(to, w, stamped);
	frame_store32(to + 12, w->flags);
	frame_store32(to + 16, 0);
}

/*
 * The segment in a frame. What calls others comes first: the words of the headers stay in registers then.
 */
static inline __attribute__((always_inline)) err_t compose_and_queue_tcp_frame(struct vma_tcp_conn *conn,
                                                                               const void *bytes, uint32_t n,
                                                                               bool stamped, bool push,
                                                                               struct compose_fields *out)
{
	const uint32_t hdr_len = stamped ? TCP_HLEN + LWIP_TCP_OPT_LEN_TS_OUT : TCP_HLEN, l4_len = hdr_len + n;
	struct vma_tcp *tcp = conn->tcp;
	uint32_t off, len = conn->path.len + l4_len, window, flags, urgent;
	struct compose_fields w;
	uint64_t addresses, sum;
	struct vma_buf *buf;
	uint8_t *frame, *to;
	uint16_t flag;
	err_t err;

	err = frame_try_alloc_buf(tcp, len, &buf, &off);
	if (__builtin_expect(err != ERR_OK, 0))
		return err;
	frame = (uint8_t *)vma_buf_frame(tcp->arena, buf) + off;
	flag = frame_checksum_flag(tcp->nic, l4_len);
	tcp_frame_queue_for_send(tcp, buf, off, len, flag); /* leaves when it is complete: at the end of the output */
	frame_count_sent_segment(conn, n);
	window = window_advertise(conn);
	to = frame + conn->path.ip_off + VMA_PKT_IP4_HLEN;
	addresses = frame_address_sum(&conn->key);
	frame_write_lower_headers(conn, frame, addresses, l4_len);
	*out = w = compose_tcp_header_fields_of_conn(conn, stamped, push);
	urgent = lwip_htons(frame_urgent_pointer(conn, conn->pcb->snd_lbb));
	flags = w.flags | (urgent != 0 ? TCP_URG << 8 : 0) | (uint32_t)lwip_htons((uint16_t)window) << 16;
	sum = frame_tcp_pseudo_header_sum(addresses, l4_len) + compose_write_header_words(to, &w, stamped) + flags +
	      urgent;
	frame_store32(to + 12, flags);
	frame_store32(to + 16, urgent << 16);
	if (frame_needs_software_checksum(tcp->nic, flag)) {
		sum += copy_and_checksum_even_offset(to + hdr_len, bytes, n);
		vma_pkt_store16(to + 16, (uint16_t)~vma_csum_fold(sum));
	} else {
		memcpy(to + hdr_len, bytes, n);
		vma_pkt_store16(to + 16, vma_csum_fold(frame_tcp_pseudo_header_sum(addresses, l4_len)));
	}
	return ERR_OK;
}

/* What lwIP would have changed by now. */
static void pcb_append_sent_segment(struct tcp_pcb *pcb, struct tcp_seg *seg, uint32_t n)
{
	if (pcb->unacked == NULL)
		pcb->unacked = seg;
	else
		pcb->unacked_last->next = seg;
	pcb->unacked_last = seg;
	pcb->snd_lbb += n;
	pcb->snd_nxt = pcb->snd_lbb;
	pcb->snd_buf -= n;
	pcb->snd_queuelen = (u16_t)(pcb->snd_queuelen + MEMORY_SEGMENT_PBUFS);
	pcb->persist_backoff = 0;
	pcb->ts_lastacksent = pcb->rcv_nxt;
	tcp_clear_flags(pcb, TF_ACK_DELAY | TF_ACK_NOW | TF_NAGLEMEMERR);
}

static inline __attribute__((always_inline)) struct tcp_seg *
compose_segment_and_queue_frame(struct vma_tcp_conn *conn, uint32_t n, bool stamped, bool push)
{
	struct iovec span = fifo_span(&conn->tx, conn->lwip_end);
	struct vma_tcp *tcp = conn->tcp;
	struct compose_fields words;
	struct tcp_seg *seg;
	err_t err;

	if (span.iov_len < n)
		return NULL; /* of two pieces */
	seg = memory_get_segment_of_bytes(tcp, span.iov_base, (uint16_t)n, stamped ? LWIP_TCP_OPT_LEN_TS_OUT : 0);
	if (seg == NULL)
		return NULL;
	seg->flags = stamped ? TF_SEG_OPTS_TS : 0;
	err = compose_and_queue_tcp_frame(conn, span.iov_base, n, stamped, push, &words);
	if (__builtin_expect(err != ERR_OK, 0)) {
		TCP_COUNT(tcp, no_memory, err == ERR_MEM);
		memory_segment_free(tcp, seg);
		return NULL;
	}
	compose_write_tcp_header_without_window((uint8_t *)seg->tcphdr, &words, stamped);
	conn->lwip_end += n;
	pcb_append_sent_segment(conn->pcb, seg, n);
	return seg;
}

struct tcp_seg *tcp_compose_segment_on_fast_path(struct vma_tcp_conn *conn, uint32_t n, bool push)
{
	if (!compose_fast_path_applies(conn))
		return NULL;
	return conn->pcb->flags & TF_TIMESTAMP ? compose_segment_and_queue_frame(conn, n, true, push)
	                                       : compose_segment_and_queue_frame(conn, n, false, push);
}

/* ---- several in a packet ---- */

/* One more of a packet: the NIC makes its header of the first one's. What sends it again reads that of the segment. */
static struct tcp_seg *compose_segment_into_tso_packet(struct vma_tcp_conn *conn, struct tso_packet *packet, uint32_t n,
                                                       bool push)
{
	const bool stamped = conn->pcb->flags & TF_TIMESTAMP;
	struct iovec span = fifo_span(&conn->tx, conn->lwip_end);
	struct compose_fields words;
	struct tcp_seg *seg;

	if (span.iov_len < n || !tso_has_room(conn->tcp, packet, n))
		return NULL;
	seg = memory_get_segment_of_bytes(conn->tcp, span.iov_base, (uint16_t)n, stamped ? LWIP_TCP_OPT_LEN_TS_OUT : 0);
	if (seg == NULL)
		return NULL;
	if (!tso_append(conn, packet, span.iov_base, n, push)) {
		memory_segment_free(conn->tcp, seg);
		return NULL;
	}
	seg->flags = stamped ? TF_SEG_OPTS_TS : 0;
	words = compose_tcp_header_fields_of_conn(conn, stamped, push);
	compose_write_tcp_header_without_window((uint8_t *)seg->tcphdr, &words, stamped);
	conn->lwip_end += n;
	pcb_append_sent_segment(conn->pcb, seg, n);
	return seg;
}

/* A FIN goes with the last bytes only: if there are more behind these, it does not matter that the application has shut
 * the connection. */
struct tcp_seg *tcp_compose_or_append_to_tso_packet(struct vma_tcp_conn *conn, struct tso_packet *packet, uint32_t n,
                                                    bool push)
{
	struct tcp_seg *seg = NULL;

	if (!conn_can_send_new_data_directly(conn) ||
	    (push && atomic_load_explicit(&conn->shut_wr, memory_order_relaxed))) {
		tso_finish_packet_headers(conn, packet);
		return NULL;
	}
	if (packet->segments != 0)
		seg = compose_segment_into_tso_packet(conn, packet, n, push);
	if (seg != NULL)
		return seg;
	tso_finish_packet_headers(conn, packet);
	seg = conn->pcb->flags & TF_TIMESTAMP ? compose_segment_and_queue_frame(conn, n, true, push)
	                                      : compose_segment_and_queue_frame(conn, n, false, push);
	if (seg != NULL && !push)
		tso_begin_packet_with_last_frame(conn, packet, n);
	return seg;
}

/* ---- in two steps ---- */

bool tcp_compose_frame(struct vma_tcp_conn *conn, uint32_t n, struct composed *c)
{
	struct iovec span;
	err_t err;

	if (!compose_fast_path_applies(conn))
		return false;
	span = fifo_span(&conn->tx, conn->lwip_end);
	if (span.iov_len < n)
		return false;
	c->bytes = span.iov_base;
	c->seg = memory_get_whole_segment(conn->tcp);
	if (c->seg == NULL)
		return false;
	if (conn->pcb->flags & TF_TIMESTAMP)
		err = compose_and_queue_tcp_frame(conn, c->bytes, n, true, true, &c->words);
	else
		err = compose_and_queue_tcp_frame(conn, c->bytes, n, false, true, &c->words);
	if (__builtin_expect(err == ERR_OK, 1))
		return true;
	memory_segment_free(conn->tcp, c->seg);
	return false;
}

struct tcp_seg *tcp_compose_segment(struct vma_tcp_conn *conn, uint32_t n, const struct composed *c)
{
	const bool stamped = conn->pcb->flags & TF_TIMESTAMP;
	struct tcp_seg *seg = c->seg;

	memory_segment_fill(seg, c->bytes, (uint16_t)n, stamped ? LWIP_TCP_OPT_LEN_TS_OUT : 0);
	seg->flags = stamped ? TF_SEG_OPTS_TS : 0;
	compose_write_tcp_header_without_window((uint8_t *)seg->tcphdr, &c->words, stamped);
	conn->lwip_end += n;
	pcb_append_sent_segment(conn->pcb, seg, n);
	return seg;
}

/* ---- dummies ---- */

/* As compose_and_queue_tcp_frame, but for what it changes: numbers, windows, counters, and what is on its way out. */
static void compose_frame_without_sending(struct vma_tcp_conn *conn, const void *bytes, uint32_t n)
{
	const uint32_t hdr_len = TCP_HLEN + LWIP_TCP_OPT_LEN_TS_OUT, l4_len = hdr_len + n;
	const uint64_t addresses = frame_address_sum(&conn->key);
	struct vma_tcp *tcp = conn->tcp;
	struct vma_nic_seg seg = {.len = conn->path.len + l4_len};
	struct compose_fields w;
	uint64_t sum;
	uint32_t off;
	uint8_t *to;

	if (frame_try_alloc_buf(tcp, seg.len, &seg.buf, &off) != ERR_OK)
		return;
	seg.off = off;
	frame_write_lower_headers(conn, (uint8_t *)vma_buf_frame(tcp->arena, seg.buf) + off, addresses, l4_len);
	to = (uint8_t *)vma_buf_frame(tcp->arena, seg.buf) + off + conn->path.ip_off + VMA_PKT_IP4_HLEN;
	w = compose_tcp_header_fields_of_conn(conn, true, true);
	sum = frame_tcp_pseudo_header_sum(addresses, l4_len) + compose_write_header_words(to, &w, true) + w.flags;
	sum += copy_and_checksum_even_offset(to + hdr_len, bytes, n);
	vma_pkt_store16(to + 16, (uint16_t)~vma_csum_fold(sum));
	vma_ring_send_dummy(tcp->ring, &seg);
	vma_buf_put(tcp->arena, seg.buf);
}

void vma_tcp_tx_dummy(struct vma_tcp_conn *conn, const void *bytes, size_t n)
{
	struct vma_ring *ring = vma_tcp_ring(vma_tcp_conn_current_stack(conn));
	size_t room;

	if (!vma_ring_try_acquire(ring))
		return;
	/* It may have moved to another ring meanwhile, or have ended. */
	if (vma_tcp_ring(vma_tcp_conn_current_stack(conn)) == ring && conn->pcb != NULL &&
	    compose_fast_path_applies(conn)) {
		room = (size_t)conn->pcb->mss - LWIP_TCP_OPT_LEN_TS_OUT;
		compose_frame_without_sending(conn, bytes, (uint32_t)(n < room ? n : room));
	}
	vma_ring_release(ring);
}

/* ---- headers ---- */

/* The window is the one that was told last: to choose one is to promise it. Returns the length. */
static size_t compose_headers_without_sending(struct vma_tcp_conn *conn, uint8_t *frame)
{
	const bool stamped = conn->pcb->flags & TF_TIMESTAMP;
	const uint32_t hdr_len = stamped ? TCP_HLEN + LWIP_TCP_OPT_LEN_TS_OUT : TCP_HLEN;
	const uint64_t addresses = frame_address_sum(&conn->key);
	const struct compose_fields w = compose_tcp_header_fields_of_conn(conn, stamped, true);
	const uint32_t left = (conn->window.rcv_edge - conn->pcb->rcv_nxt) >> conn->pcb->rcv_scale;
	const uint32_t flags = w.flags | (uint32_t)lwip_htons((uint16_t)(left < 65535 ? left : 65535)) << 16;
	uint8_t *to = frame + conn->path.ip_off + VMA_PKT_IP4_HLEN;
	uint64_t sum;

	frame_write_lower_headers(conn, frame, addresses, hdr_len);
	conn->ip_id--; /* the next segment's */
	sum = frame_tcp_pseudo_header_sum(addresses, hdr_len) + compose_write_header_words(to, &w, stamped) + flags;
	frame_store32(to + 12, flags);
	frame_store32(to + 16, 0);
	vma_pkt_store16(to + 16, (uint16_t)~vma_csum_fold(sum));
	return conn->path.len + hdr_len;
}

ssize_t vma_tcp_copy_next_headers(struct vma_tcp_conn *conn, void *to, size_t size)
{
	uint8_t frame[sizeof(conn->path.bytes) + TCP_HLEN + LWIP_TCP_OPT_LEN_TS_OUT] = {0};
	struct vma_ring *ring = vma_tcp_ring(vma_tcp_conn_current_stack(conn));
	const bool acquired = vma_ring_acquire(ring);
	ssize_t rc = -ENOTCONN;

	/* It may have moved to another ring meanwhile, or have ended. */
	if (vma_tcp_ring(vma_tcp_conn_current_stack(conn)) == ring && conn->pcb != NULL &&
	    (conn->pcb->state == ESTABLISHED || conn->pcb->state == CLOSE_WAIT) && conn->path.len != 0) {
		rc = (ssize_t)compose_headers_without_sending(conn, frame);
		memcpy(to, frame, size < (size_t)rc ? size : (size_t)rc);
	}
	if (acquired)
		vma_ring_release(ring);
	return rc;
}
