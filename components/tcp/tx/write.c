/* write.c - the writer's side of a connection: room, bytes, and marks on them. */
#include <errno.h>

#include "../budget.h"

#define LOWAT_STEP UINT64_C(65536)

static inline bool conn_tx_is_shut_down(const struct vma_tcp_conn *conn)
{
	return atomic_load_explicit(&conn->sends_ended, memory_order_acquire);
}

/* tcp_sndbuf_now, where memory for all is not short. */
static inline uint64_t conn_sndbuf_limit(const struct vma_tcp_conn *conn)
{
	return __builtin_expect(tcp_memory_is_exhausted(tcp_stack_now(conn)), 0)
	               ? tcp_sndbuf_now(conn)
	               : atomic_load_explicit(&conn->sndbuf, memory_order_relaxed);
}

/*
 * As the kernel's sk_stream_memory_free: one byte is enough to write. 0: there is none, or TCP_NOTSENT_LOWAT has a word
 * in it.
 */
static inline uint64_t conn_sndbuf_space(const struct vma_tcp_conn *conn)
{
	uint64_t used = fifo_queued_bytes(&conn->tx), sndbuf = conn_sndbuf_limit(conn);

	return used >= sndbuf || tcp_option(conn, VMA_TCP_OPT_NOTSENT_LOWAT) != -1 ? 0 : sndbuf - used;
}

/*
 * TCP_NOTSENT_LOWAT bounds one call, too. The kernel looks at it before each buffer that it fills, and one holds 64 KB
 * where the interface cuts segments: what is written may go that far beyond it.
 */
uint64_t vma_tcp_tx_space(const struct vma_tcp_conn *conn)
{
	uint64_t used = fifo_queued_bytes(&conn->tx), sndbuf = conn_sndbuf_limit(conn), unsent, most;
	uint32_t lowat = (uint32_t)tcp_option(conn, VMA_TCP_OPT_NOTSENT_LOWAT);

	if (used >= sndbuf)
		return 0;
	if (lowat == UINT32_MAX)
		return sndbuf - used;
	unsent = vma_tcp_tx_unsent(conn);
	if (unsent >= lowat)
		return 0;
	most = (lowat - unsent + LOWAT_STEP - 1) / LOWAT_STEP * LOWAT_STEP;
	return sndbuf - used < most ? sndbuf - used : most;
}

uint64_t vma_tcp_tx_unacked_bytes(const struct vma_tcp_conn *conn)
{
	uint64_t acked = atomic_load_explicit(&conn->acked, memory_order_acquire);

	return fifo_produced(&conn->tx) - acked;
}

uint64_t vma_tcp_tx_unsent(const struct vma_tcp_conn *conn)
{
	uint64_t snd_max = atomic_load_explicit(&conn->snd_max, memory_order_acquire);

	return fifo_produced(&conn->tx) - snd_max;
}

/* There is perhaps no room. */
static int __attribute__((noinline))
tx_reserve_when_space_is_short(struct vma_tcp_conn *conn, size_t bytes, struct iovec *spans, unsigned n)
{
	uint64_t room = vma_tcp_tx_space(conn);
	unsigned used;

	if (room == 0) {
		if (tcp_request_writable_event_if_full(conn))
			return conn_tx_is_shut_down(conn) ? -EPIPE : 0;
		room = vma_tcp_tx_space(conn);
	}
	if (bytes == 0 || room == 0)
		return 0;
	used = fifo_reserve(&conn->tx, bytes < room ? bytes : (size_t)room, spans, n);
	return used != 0 ? (int)used : -ENOMEM;
}

int vma_tcp_tx_reserve(struct vma_tcp_conn *conn, size_t bytes, struct iovec *spans, unsigned n)
{
	uint64_t room;
	unsigned used;

	if (__builtin_expect(conn_tx_is_shut_down(conn), 0))
		return -EPIPE;
	room = conn_sndbuf_space(conn);
	if (__builtin_expect(room == 0, 0))
		return tx_reserve_when_space_is_short(conn, bytes, spans, n);
	if (bytes == 0)
		return 0;
	used = fifo_reserve(&conn->tx, bytes < room ? bytes : (size_t)room, spans, n);
	return used != 0 ? (int)used : -ENOMEM;
}

/* With something to be said about the bytes, or about when they leave. */
static void __attribute__((noinline)) tx_commit_with_flags(struct vma_tcp_conn *conn, size_t bytes, unsigned flags)
{
	uint64_t end = fifo_produced(&conn->tx) + bytes;

	/* Before the bytes: the driver that sees them knows what was said about them. */
	if (flags & VMA_TCP_TX_URGENT && bytes != 0)
		atomic_store_explicit(&conn->urgent_tx, end, memory_order_relaxed);
	atomic_store_explicit(&conn->more_from, flags & VMA_TCP_TX_MORE ? end : UINT64_MAX, memory_order_relaxed);
	fifo_commit(&conn->tx, bytes);
	if (flags & VMA_TCP_TX_QUEUE)
		tcp_queue_conn_work_for_next_driver(conn, TCP_WORK_SEND);
	else if (!(flags & VMA_TCP_TX_LATER))
		tcp_run_conn_work_now_or_queue(conn, TCP_WORK_SEND);
}

void vma_tcp_tx_commit(struct vma_tcp_conn *conn, size_t bytes, unsigned flags)
{
	if (__builtin_expect(flags != 0, 0)) {
		tx_commit_with_flags(conn, bytes, flags);
		return;
	}
	atomic_store_explicit(&conn->more_from, UINT64_MAX, memory_order_relaxed);
	fifo_commit(&conn->tx, bytes);
	tcp_run_conn_work_now_or_queue(conn, TCP_WORK_SEND);
}

void vma_tcp_send_committed(struct vma_tcp_conn *conn)
{
	tcp_run_conn_work_now_or_queue(conn, TCP_WORK_SEND);
}
