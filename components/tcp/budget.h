/*
 * budget.h - the bound of all bytes in fifos (struct vma_tcp_memory), as a connection's two sides ask for it.
 *
 *   tight   buffers do not grow any more; if an application does not read, its peer is offered four segments at a time
 *   spent   if a connection has more than a little unread, its arriving data is not taken, and the peer sends it again;
 *           a writer waits until what was written before has left
 *
 * Each connection may always have a little, so none waits for another one for ever.
 *
 * Threads: any; `used` is an atomic of all stacks of the process. tcp_memory_refuses_rx: the driver.
 */
#ifndef VMA_TCP_BUDGET_H
#define VMA_TCP_BUDGET_H

#include "tcp_priv.h"

/* Of what has come out of order, all connections of a stack together, and what the memory of a piece costs besides. */
#define OOO_MAX (256ull << 20)
#define OOO_LITTLE 64 /* pieces */
#define OOO_OVERHEAD 256
#define OOO_STEPS 1024 /* pieces that are looked at, one after the other, for the place of another one */

#define BUDGET_RCV_LEAST 4096 /* the kernel's tcp_rmem[0], and its least send buffer */
#define BUDGET_SND_LEAST 4608

static inline bool tcp_memory_under_pressure(const struct vma_tcp *tcp)
{
	const struct vma_tcp_memory *memory = tcp->attr.memory;

	return atomic_load_explicit(&memory->used, memory_order_relaxed) >= memory->pressure;
}

static inline bool tcp_memory_is_exhausted(const struct vma_tcp *tcp)
{
	const struct vma_tcp_memory *memory = tcp->attr.memory;

	return __builtin_expect(atomic_load_explicit(&memory->used, memory_order_relaxed) >= memory->limit, 0);
}

/* A quarter of the bytes in fifos at most. */
static inline uint64_t ooo_max(const struct vma_tcp *tcp)
{
	const uint64_t quarter = (uint64_t)tcp->attr.memory->limit / 4;

	return quarter < OOO_MAX ? quarter : OOO_MAX;
}

/* Not now: what has come unread is enough. */
static inline bool tcp_memory_refuses_rx(const struct vma_tcp_conn *conn)
{
	return tcp_memory_is_exhausted(conn->tcp) && fifo_queued_bytes(&conn->rx) >= BUDGET_RCV_LEAST;
}

#endif
