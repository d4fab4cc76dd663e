/*
 * read.c - the reader's side of a connection: bytes, the urgent byte among them, and when reading opens the window.
 *
 * The urgent byte (RFC 9293 3.8.5, as the kernel: the byte before where the pointer points to) lies in the stream at
 * urgent_at. Reading stops before it; the next read steps over it, unless it is to be read inline. It can be read by
 * itself from urgent_byte, which is the byte, or URGENT_EXPECTED, URGENT_NONE. The driver sets both, the reader clears
 * them by exchange, so a new one is not lost.
 *
 * If a new urgent byte comes before the reader has passed the old one, the old one becomes part of the stream. But if
 * the reader stands right before the old one, that is stepped over as if it had read on: urgent_passed, until it has.
 * So it then stands behind that one, which may be right before the next. A read that finds nothing but urgent bytes
 * passes them.
 */
#include <errno.h>

#include "../tcp_priv.h"
#include "../zcopy.h"

static bool urgent_is_inline(const struct vma_tcp_conn *conn)
{
	return tcp_option(conn, VMA_TCP_OPT_OOBINLINE) != 0;
}

/* Bytes before the urgent one; -1: there is none ahead. *passed: old urgent ones before them. */
static int64_t bytes_before_urgent_mark(const struct vma_tcp_conn *conn, size_t *passed)
{
	uint64_t begin = fifo_consumed(&conn->rx);
	int64_t at = atomic_load_explicit(&conn->urgent_at, memory_order_acquire); /* and what was passed for it */

	*passed = urgent_passed_from(conn, begin);
	begin += *passed;
	return at >= 0 && (uint64_t)at >= begin ? (int64_t)((uint64_t)at - begin) : -1;
}

/* How the first bytes may be read: *skip is stepped over, at most *limit come in one piece. */
static void rx_urgent_read_limits(const struct vma_tcp_conn *conn, size_t *skip, uint64_t *limit)
{
	int64_t mark = bytes_before_urgent_mark(conn, skip);

	*skip += mark == 0 && !urgent_is_inline(conn) ? 1 : 0;
	*limit = mark > 0 ? (uint64_t)mark : UINT64_MAX;
}

/* FIONREAD, as the kernel's tcp_inq: up to the mark. */
uint64_t vma_tcp_readable_bytes(const struct vma_tcp_conn *conn)
{
	uint64_t bytes = fifo_queued_bytes(&conn->rx), limit;
	size_t skip;

	if (__builtin_expect(atomic_load_explicit(&conn->urgent_at, memory_order_acquire) < 0, 1))
		return bytes;
	rx_urgent_read_limits(conn, &skip, &limit);
	bytes -= bytes < skip ? bytes : skip;
	return !urgent_is_inline(conn) && bytes > limit ? limit : bytes;
}

bool conn_has_rx_bytes(const struct vma_tcp_conn *conn)
{
	return vma_tcp_readable_bytes(conn) != 0;
}

bool vma_tcp_rx_awaits_inspection(const struct vma_tcp_conn *conn)
{
	return zcopy_waiting_bytes(conn) != 0;
}

bool vma_tcp_rx_eof(const struct vma_tcp_conn *conn)
{
	/* In this order: the FIN was noted after the last byte. */
	bool ended = (atomic_load_explicit(&conn->rx_mode, memory_order_acquire) & (RX_FIN | RX_SHUT)) != 0;

	/* What an inspector receives is queued before it waits no longer: so the bytes are looked at last. */
	return ended && !vma_tcp_rx_awaits_inspection(conn) && vma_tcp_readable_bytes(conn) == 0;
}

static void conn_set_rx_urgent_skip(struct vma_tcp_conn *conn, size_t step)
{
	if (__builtin_expect(conn->rx_step != step, 0))
		conn->rx_step = step;
}

static __attribute__((noinline)) unsigned rx_peek_spans_up_to_urgent_mark(struct vma_tcp_conn *conn, size_t skip,
                                                                          struct iovec *spans, unsigned n)
{
	uint64_t limit, left;
	size_t step;
	unsigned used;

	rx_urgent_read_limits(conn, &step, &limit);
	conn_set_rx_urgent_skip(conn, step);
	if (skip >= limit)
		return 0;
	used = fifo_peek_spans(&conn->rx, skip + step, spans, n);
	left = limit - skip;
	for (unsigned i = 0; i < used; i++) {
		if (spans[i].iov_len >= left) {
			spans[i].iov_len = (size_t)left;
			return i + 1;
		}
		left -= spans[i].iov_len;
	}
	return used;
}

/*
 * What is stepped over is kept until it is consumed: a mark that comes in between takes the place of the one that was
 * stepped over, and would have it read after all, or in fact the byte that then is the last of those given.
 *
 * Nearly always there is no mark, nor one that was passed: nothing is stepped over, and nothing limits what is given.
 */
unsigned vma_tcp_peek_rx_spans(struct vma_tcp_conn *conn, size_t skip, struct iovec *spans, unsigned n)
{
	/* In this order, as in bytes_before_urgent_mark: what was passed for a new mark is there when the mark is. */
	if (__builtin_expect(atomic_load_explicit(&conn->urgent_at, memory_order_acquire) >= 0, 0) ||
	    __builtin_expect(atomic_load_explicit(&conn->urgent_passed, memory_order_relaxed) >= 0, 0))
		return rx_peek_spans_up_to_urgent_mark(conn, skip, spans, n);
	conn_set_rx_urgent_skip(conn, 0);
	return fifo_peek_spans(&conn->rx, skip, spans, n);
}

/* The reader is beyond the urgent byte: it is as if there had been none. */
static void rx_clear_passed_urgent_mark(struct vma_tcp_conn *conn, uint64_t consumed)
{
	int64_t at = atomic_load_explicit(&conn->urgent_at, memory_order_acquire);
	int byte = atomic_load_explicit(&conn->urgent_byte, memory_order_relaxed);

	if (at < 0 || (uint64_t)at >= consumed)
		return;
	if (atomic_compare_exchange_strong(&conn->urgent_at, &at, -1))
		atomic_compare_exchange_strong(&conn->urgent_byte, &byte, URGENT_NONE);
}

void rx_consume_bytes(struct vma_tcp_conn *conn, size_t bytes)
{
	fifo_consume(&conn->rx, bytes + conn->rx_step);
	conn->rx_step = 0;
	if (atomic_load_explicit(&conn->urgent_at, memory_order_relaxed) >= 0)
		rx_clear_passed_urgent_mark(conn, fifo_consumed(&conn->rx));
}

void vma_tcp_rx_consume(struct vma_tcp_conn *conn, size_t bytes)
{
	if (bytes == 0 && (conn->rx_step == 0 || fifo_queued_bytes(&conn->rx) != conn->rx_step))
		return;
	rx_consume_bytes(conn, bytes);
	if (window_wants_update(conn))
		tcp_run_conn_work_now_or_queue(conn, TCP_WORK_WINDOW);
}

int vma_tcp_read_urgent_byte(struct vma_tcp_conn *conn, uint8_t *byte, bool peek)
{
	int value = atomic_load_explicit(&conn->urgent_byte, memory_order_acquire);

	if (urgent_is_inline(conn) || value == URGENT_NONE)
		return -EINVAL;
	if (value == URGENT_EXPECTED)
		return 0;
	if (!peek && !atomic_compare_exchange_strong(&conn->urgent_byte, &value, URGENT_NONE))
		return 0; /* a newer one has been announced */
	*byte = (uint8_t)value;
	return 1;
}

int64_t vma_tcp_bytes_before_urgent_mark(const struct vma_tcp_conn *conn)
{
	size_t passed;

	return bytes_before_urgent_mark(conn, &passed);
}
