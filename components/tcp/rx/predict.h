/*
 * predict.h - the fast path of a received segment: the usual one of an undisturbed connection, without lwIP.
 *
 * Threads: the driver.
 */
#ifndef VMA_TCP_RX_PREDICT_H
#define VMA_TCP_RX_PREDICT_H

#include "segment.h"

/*
 * Whether the segment (n packets in a row, *s as one) is one that an undisturbed, established connection expects, which
 * tcp_validate would not object to: then it is done with but for what recovery_ack_after_lwip and rx_segment_after_lwip
 * do, and the packets are gone. False: nothing has been done. Within lwip_enter; conn->tcp->ack is filled in.
 */
bool tcp_rx_fast_path(struct vma_tcp_conn *conn, const struct segment *s, struct vma_buf *const *packets, unsigned n);

/* ---- what pingpong.c does, too ---- */

/* RFC 7323 4.3 */
static inline void fast_path_update_ts_recent(struct tcp_pcb *pcb, uint32_t seq, uint32_t len, uint32_t ts_val)
{
	if (TCP_SEQ_LEQ(seq, pcb->ts_lastacksent) && TCP_SEQ_LEQ(pcb->ts_lastacksent, seq + len))
		pcb->ts_recent = ts_val;
}

/* The kernel's rule for the window, see update_send_window_after_ack in input.c. */
static inline void fast_path_update_snd_wnd(struct tcp_pcb *pcb, uint32_t seq, uint32_t ack, uint32_t window)
{
	if (TCP_SEQ_GT(ack, pcb->lastack) || TCP_SEQ_GT(seq, pcb->snd_wl1) ||
	    (seq == pcb->snd_wl1 && window > pcb->snd_wnd)) {
		pcb->snd_wnd = window;
		pcb->snd_wl1 = seq;
		pcb->snd_wl2 = ack;
	}
}

/* What the peer has, up to `acked`, goes out of the send fifo as far as no segment holds it: up to `released`. */
static inline void fast_path_release_acked_bytes(struct vma_tcp_conn *conn, uint64_t released, uint64_t acked)
{
	uint64_t consumed = fifo_consumed(&conn->tx);

	atomic_store_explicit(&conn->acked, acked, memory_order_release);
	if (conn->urgent_mode && TCP_SEQ_GEQ(conn->pcb->lastack, conn->snd_up))
		conn->urgent_mode = false;
	if (released == consumed)
		return;
	conn->tx_space_freed |= tcp_may_have_waiting_writer(conn);
	fifo_consume(&conn->tx, (size_t)(released - consumed));
	if (atomic_load_explicit(&conn->wants_tx_space, memory_order_relaxed))
		window_sndbuf_grow(conn);
}

#endif
