/*
 * urgent.c - the urgent pointer, as it comes.
 *
 * It points to the byte behind the urgent one, as the kernel takes it, and not as RFC 9293 3.8.5 has it. A pointer to
 * bytes that have come already says nothing new, nor does a repeated one. tx/output.c and tx/frame.c send it. read.c
 * says what becomes of an old one.
 */
#include "validate.h"
#include "../zcopy.h"

static void urgent_set_mark_and_notify(struct vma_tcp_conn *conn, const struct segment *s)
{
	uint32_t at = s->seq + s->urgent - 1;
	uint64_t produced = fifo_produced(&conn->rx); /* less than rcv_nxt when there was no memory for what came */
	uint64_t offset = produced + (at - (conn->rx_seq + (uint32_t)produced));
	int64_t known = atomic_load_explicit(&conn->urgent_at, memory_order_relaxed);
	uint64_t stands; /* where the reader goes on */

	if (TCP_SEQ_LT(at, conn->pcb->rcv_nxt) || (known >= 0 && (uint64_t)known >= offset))
		return;
	/* Who reads right now has begun before this came, and takes the old one as what it was. */
	stands = fifo_consumed(&conn->rx);
	stands += urgent_passed_from(conn, stands);
	if (known >= 0 && (uint64_t)known == stands && produced > stands &&
	    tcp_option(conn, VMA_TCP_OPT_OOBINLINE) == 0)
		atomic_store_explicit(&conn->urgent_passed, known + 1, memory_order_relaxed);
	atomic_store_explicit(&conn->urgent_byte, URGENT_EXPECTED, memory_order_relaxed);
	atomic_store_explicit(&conn->urgent_at, (int64_t)offset, memory_order_release);
	conn->events |= VMA_TCP_URGENT;
}

/* When the byte is in this segment. */
static void urgent_extract(struct vma_tcp_conn *conn, const struct segment *s)
{
	int64_t offset = atomic_load_explicit(&conn->urgent_at, memory_order_relaxed);
	uint32_t at = conn->rx_seq + (uint32_t)offset - s->seq;

	if (offset < 0 || atomic_load_explicit(&conn->urgent_byte, memory_order_relaxed) != URGENT_EXPECTED)
		return;
	if (at >= s->len)
		return;
	atomic_store_explicit(&conn->urgent_byte, segment_byte(s, at), memory_order_release);
	conn->events |= VMA_TCP_URGENT;
}

void urgent_update(struct vma_tcp_conn *conn, const struct segment *s)
{
	if (!conn->connected || zcopy_is_inspected(conn))
		return;
	if (s->urgent != 0)
		urgent_set_mark_and_notify(conn, s);
	if (s->len != 0)
		urgent_extract(conn, s);
}
