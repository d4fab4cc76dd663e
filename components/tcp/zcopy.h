/*
 * zcopy - payload that stays in its frames: for zero-copy receive, and for an owner that inspects what comes.
 *
 *   in order ──┬─ keeps frames ───────────────────────────> chunks of the receive fifo, each a frame ── reader
 *              └─ is inspected ── arrived ── inspector ──┬─ RECV ──────┘          takes pieces: rx_hold
 *                                                        ├─ DROP   read, and gone
 *                                                        └─ HOLD   read, and its owner keeps it
 *
 * A connection begins by a call of its reader's; the driver sees that by TCP_WORK_ZCOPY, and sets RX_ZCOPY in rx_mode.
 * What lies in frames is bounded: per connection, per process, and per frame, so small segments do not pin the pool.
 * What has no place is copied, as without this.
 *
 * Threads: see each function. The *inspector* is the thread that has `inspecting`: at most one at a time. While a
 *          connection is inspected, the inspector produces the receive fifo, and the driver does not.
 */
#ifndef VMA_TCP_ZCOPY_H
#define VMA_TCP_ZCOPY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tcp_priv.h"

#define ZCOPY_FRAMES_MAX 512 /* of a connection: unread, and held */
#define ZCOPY_SMALL 256      /* bytes: segments below have a frame each only while there are few: */
#define ZCOPY_SMALL_FRAMES_MAX 64
#define ZCOPY_PROCESS_FRAMES 4096 /* unless vma_tcp_memory says otherwise */
#define ZCOPY_ARRIVED_MAX 1024    /* pieces that no inspector has seen */

struct zcopy_slab;

struct tcp_zcopy {
	/* constant */
	uint64_t number; /* of the connection, never used twice in a process */
	struct vma_bufarena *arena;
	struct vma_tcp_memory *books;

	/* shared */
	_Atomic int32_t frames;   /* in the fifo, waiting, and held */
	_Atomic int64_t held;     /* bytes; for a moment below 0, if a holder gives back what is just being counted */
	_Atomic uint64_t waiting; /* bytes that no inspector is done with */
	_Atomic uint32_t waiting_pieces;
	_Atomic uint64_t received;           /* stream offset behind what has come in order */
	struct fifo_chunk *_Atomic returned; /* chunks without a frame, for the driver */
	struct fifo_chunk *_Atomic arrived;  /* pushed by the driver, newest first */
	_Atomic bool wants_inspection;       /* the owner's request */
	_Atomic bool offers;                 /* pieces are offered to the owner's `take` */
	_Atomic bool inspecting;             /* a thread is the inspector */
	_Atomic bool deciding;               /* and the owner looks at a piece */
	_Atomic bool end_waits;              /* the driver wants to know when nothing waits */
	_Atomic bool close_waits;            /* and when no piece is looked at */

	/* inspector's */
	struct fifo_chunk *first;   /* taken from `arrived`, oldest first */
	struct fifo_chunk *at_hand; /* the owner looks at it */

	/* driver's */
	struct fifo_chunk *spare;
	struct zcopy_slab *slabs;
	bool inspects; /* what comes goes to `arrived` */
	bool close_asked;
	bool fin_waits; /* the peer's, behind what no inspector is done with */
};

static inline struct tcp_zcopy *zcopy_of(const struct vma_tcp_conn *conn)
{
	return atomic_load_explicit(&conn->zcopy, memory_order_acquire);
}

/* Any thread: bytes that fill the receive buffer, and are not in the receive fifo. */
static inline uint64_t zcopy_held_and_waiting_bytes(const struct vma_tcp_conn *conn)
{
	const struct tcp_zcopy *z = zcopy_of(conn);

	int64_t held;

	if (z == NULL)
		return 0;
	held = atomic_load(&z->held);
	return (held > 0 ? (uint64_t)held : 0) + atomic_load(&z->waiting);
}

/* Any thread: bytes that have come in order, and that no reader or inspector is done with, besides the fifo's. */
static inline uint64_t zcopy_waiting_bytes(const struct vma_tcp_conn *conn)
{
	const struct tcp_zcopy *z = zcopy_of(conn);

	return z == NULL ? 0 : atomic_load(&z->waiting);
}

/* Any thread: where in the stream the next byte in order belongs. */
static inline uint64_t zcopy_received_offset(const struct vma_tcp_conn *conn)
{
	if ((atomic_load_explicit(&conn->rx_mode, memory_order_acquire) & RX_ZCOPY) == 0)
		return fifo_produced(&conn->rx);
	return atomic_load_explicit(&zcopy_of(conn)->received, memory_order_acquire);
}

/* Driver: the owner sees the stream by pieces, so it has no place for a mark of urgent data. */
static inline bool zcopy_is_inspected(const struct vma_tcp_conn *conn)
{
	const struct tcp_zcopy *z = zcopy_of(conn);

	return z != NULL && z->inspects;
}

/* Driver: TCP_WORK_ZCOPY. */
void zcopy_apply_mode_and_inspection_changes(struct vma_tcp_conn *conn);
/* Driver, of a connection that nobody else knows: vma_tcp_enable_rx_inspection. False: no memory. */
bool zcopy_inspect_from_start(struct vma_tcp_conn *conn);
/* Driver, RX_ZCOPY is set: payload of n packets in a row, `len` bytes in all, which come next in order. True: the
 * packets are gone. False: no memory; nothing has happened. */
bool zcopy_queue_received_packets(struct vma_tcp_conn *conn, struct vma_buf *const *packets, unsigned n, uint32_t len);
/* Driver, RX_ZCOPY is set, within lwip_enter: the same of a chain of lwIP's, which stays the caller's. */
bool zcopy_queue_received_pbufs(struct vma_tcp_conn *conn, struct pbuf *p);
/* Driver: the peer's FIN has come. True: it is kept until nothing waits. */
bool zcopy_defer_fin_while_data_waits(struct vma_tcp_conn *conn);
/* Driver: the application has closed. True: the owner looks at a piece, and the close is posted anew after that. */
bool zcopy_defer_close_while_inspecting(struct vma_tcp_conn *conn);
/* Driver: the application has closed, whether that has been carried out, or is still to be posted anew. */
bool zcopy_close_is_deferred(const struct vma_tcp_conn *conn);
/* The connection is being freed. */
void zcopy_fini(struct vma_tcp_conn *conn);
void zcopy_release_frame_and_chunk(const struct fifo_memory *memory,
                                   struct fifo_chunk *chunk); /* of the receive fifo */

#endif
