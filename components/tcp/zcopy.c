/*
 * zcopy.c - payload that stays in its frames, pieces of it that are given out, and an owner that inspects what comes.
 *
 * The window counts what is queued, what waits for an inspector, and what is held: a byte that was given out fills the
 * buffer until it is freed. So a peer sends at most a buffer's worth to an owner that frees nothing.
 *
 * Frames have bounds besides: ZCOPY_FRAMES_MAX of a connection, and vma_tcp_memory.frames_max of the process. Beyond
 * them, and for data that came out of order, payload is copied. A run of segments that are small on the average is
 * copied as soon as the connection has ZCOPY_SMALL_FRAMES_MAX frames.
 *
 * **One inspector, and no piece forgotten.** The driver pushes a piece on `arrived` (A); then some thread calls
 * vma_tcp_inspect_received, which exchanges `inspecting` for true (B). If B finds it true, another thread is the
 * inspector. That one stores false when it is done (C), and looks at `arrived` again (D). All four are sequentially
 * consistent. B found true, so it precedes C in their order. A precedes B, since the push happens before the call. So A
 * precedes D, and D sees the piece, or an inspector after it has it already. What an inspector has taken and leaves to
 * the next one, it says in `more`.
 *
 * **A close while the owner looks at a piece** waits for the verdict, for it decides between FIN and RST. The driver
 * stores close_waits (E), then loads `deciding` (F). The inspector stores deciding = false after the verdict is carried
 * out (G), then exchanges close_waits (H). If F sees true, then E precedes G and so H, which finds it and posts the
 * close. If F sees false, the driver takes close_waits back by an exchange. Either exchange finds true once, so the
 * close is made once. end_waits and `waiting` do the same for a FIN, and for the end of the inspection.
 */
#include "zcopy.h"

#include <errno.h>
#include <string.h>

#include "lwip/port.h"

#define SLAB_CHUNKS 32

/* Chunks of frames: as many as a connection has frames. */
struct zcopy_slab {
	struct zcopy_slab *next;
	struct fifo_chunk chunks[SLAB_CHUNKS];
};

static _Atomic uint64_t zcopy_last_conn_number;

/* ---- chunks ---- */

static void chunk_return(struct tcp_zcopy *z, struct fifo_chunk *chunk)
{
	struct fifo_chunk *head = atomic_load_explicit(&z->returned, memory_order_relaxed);

	do
		chunk->next = head;
	while (!atomic_compare_exchange_weak_explicit(&z->returned, &head, chunk, memory_order_release,
	                                              memory_order_relaxed));
}

static bool zcopy_slab_alloc(struct vma_tcp_conn *conn, struct tcp_zcopy *z)
{
	struct zcopy_slab *slab = conn->memory.alloc(sizeof(*slab));

	if (slab == NULL)
		return false;
	slab->next = z->slabs;
	z->slabs = slab;
	for (unsigned i = 0; i < SLAB_CHUNKS; i++) {
		slab->chunks[i].next = z->spare;
		z->spare = &slab->chunks[i];
	}
	return true;
}

static struct fifo_chunk *zcopy_chunk_alloc_from_spare(struct vma_tcp_conn *conn, struct tcp_zcopy *z)
{
	struct fifo_chunk *chunk;

	if (z->spare == NULL)
		z->spare = atomic_exchange_explicit(&z->returned, NULL, memory_order_acquire);
	if (z->spare == NULL && !zcopy_slab_alloc(conn, z))
		return NULL;
	chunk = z->spare;
	z->spare = chunk->next;
	return chunk;
}

/* So many, linked; NULL: there is no memory. */
static struct fifo_chunk *zcopy_chunks_alloc_linked(struct vma_tcp_conn *conn, struct tcp_zcopy *z, unsigned n)
{
	struct fifo_chunk *first = NULL, *chunk;

	for (; n > 0; n--) {
		chunk = zcopy_chunk_alloc_from_spare(conn, z);
		if (chunk == NULL)
			break;
		chunk->next = first;
		first = chunk;
	}
	if (n == 0)
		return first;
	while ((chunk = first) != NULL) {
		first = chunk->next;
		chunk->next = z->spare;
		z->spare = chunk;
	}
	return NULL;
}

static void fifo_chunk_set_zcopy_frame(struct fifo_chunk *chunk, struct vma_buf *frame, void *data, uint32_t len)
{
	struct fifo_chunk *next = chunk->next;

	*chunk = (struct fifo_chunk){.next = next,
	                             .size = len,
	                             .bytes = data,
	                             .frame = frame,
	                             .counted = len + (uint32_t)sizeof(*chunk),
	                             .is_large = true};
}

/* ---- frames ---- */

static void zcopy_frames_held_add(struct tcp_zcopy *z, unsigned n)
{
	atomic_fetch_add_explicit(&z->frames, (int32_t)n, memory_order_relaxed);
	atomic_fetch_add_explicit(&z->books->frames, n, memory_order_relaxed);
}

static void zcopy_frames_held_sub(struct tcp_zcopy *z, unsigned n)
{
	atomic_fetch_sub_explicit(&z->frames, (int32_t)n, memory_order_relaxed);
	atomic_fetch_sub_explicit(&z->books->frames, n, memory_order_relaxed);
}

void zcopy_release_frame_and_chunk(const struct fifo_memory *memory, struct fifo_chunk *chunk)
{
	const struct vma_tcp_conn *conn =
	        (const struct vma_tcp_conn *)((const char *)memory - offsetof(struct vma_tcp_conn, memory));
	struct tcp_zcopy *z = zcopy_of(conn);

	vma_buf_put(z->arena, chunk->frame);
	zcopy_frames_held_sub(z, 1);
	chunk_return(z, chunk);
}

/* `len` bytes in n frames, of what comes next. */
static bool zcopy_may_hold_frames(const struct tcp_zcopy *z, unsigned n, uint32_t len)
{
	const int64_t frames = (int64_t)atomic_load_explicit(&z->frames, memory_order_relaxed) + n;
	const int64_t max = z->books->frames_max != 0 ? z->books->frames_max : ZCOPY_PROCESS_FRAMES;

	if (frames > ZCOPY_FRAMES_MAX || (frames > ZCOPY_SMALL_FRAMES_MAX && len / n < ZCOPY_SMALL))
		return false;
	return atomic_load_explicit(&z->books->frames, memory_order_relaxed) + n <= max;
}

/* ---- in order ---- */

static void zcopy_count_bytes(struct vma_tcp_conn *conn, struct tcp_zcopy *z, uint32_t len, bool copied)
{
	if (copied) {
		conn->counts.zcopy_copied += len;
		TCP_COUNT(conn->tcp, zcopy_copied, len);
	} else {
		conn->counts.zcopy_bytes += len;
		TCP_COUNT(conn->tcp, zcopy_bytes, len);
	}
	atomic_store_explicit(&z->received, atomic_load_explicit(&z->received, memory_order_relaxed) + len,
	                      memory_order_release);
	conn->counts.bytes_in += len;
	TCP_COUNT(conn->tcp, bytes_in, len);
}

static void zcopy_count_and_report_received(struct vma_tcp_conn *conn, struct tcp_zcopy *z, uint32_t len, bool copied)
{
	zcopy_count_bytes(conn, z, len, copied);
	if (z->inspects)
		conn->events |= VMA_TCP_ARRIVED;
	else
		conn->data_received = true;
}

/* (A) */
static void zcopy_arrived_push(struct tcp_zcopy *z, struct fifo_chunk *chunk)
{
	struct fifo_chunk *head = atomic_load_explicit(&z->arrived, memory_order_relaxed);

	atomic_fetch_add(&z->waiting, chunk->size);
	atomic_fetch_add_explicit(&z->waiting_pieces, 1, memory_order_relaxed);
	do
		chunk->next = head;
	while (!atomic_compare_exchange_weak(&z->arrived, &head, chunk));
}

static void zcopy_append_to_fifo(struct vma_tcp_conn *conn, struct tcp_zcopy *z, struct fifo_chunk *first,
                                 struct fifo_chunk *last, uint32_t len)
{
	struct fifo_chunk *next;

	if (!z->inspects) {
		fifo_append_chunks(&conn->rx, first, last, len);
		return;
	}
	for (; first != NULL; first = next) {
		next = first->next;
		zcopy_arrived_push(z, first);
	}
}

/* A piece that lies in memory of its own, with room for `len` bytes. */
static struct fifo_chunk *zcopy_chunk_with_own_memory(const struct vma_tcp_conn *conn, uint32_t len)
{
	struct fifo_chunk *chunk = conn->memory.alloc(sizeof(*chunk) + len);

	if (chunk == NULL)
		return NULL;
	chunk->next = NULL;
	fifo_chunk_set_zcopy_frame(chunk, NULL, chunk + 1, len);
	return chunk;
}

static bool zcopy_has_room_for_arrivals(const struct tcp_zcopy *z)
{
	return !z->inspects || atomic_load_explicit(&z->waiting_pieces, memory_order_relaxed) < ZCOPY_ARRIVED_MAX;
}

static unsigned count_frames_of_packets(struct vma_buf *const *packets, unsigned n)
{
	unsigned frames = 0;

	for (unsigned i = 0; i < n; i++) {
		uint32_t skip = packets[i]->payload_off, left = packets[i]->payload_len;

		for (const struct vma_buf *buf = packets[i]; left != 0; buf = buf->next) {
			uint32_t here = buf->len - skip < left ? buf->len - skip : left;

			frames += here != 0;
			left -= here;
			skip = 0;
		}
	}
	return frames;
}

/* The chunks get the references of the packet's buffers; those without payload end. Returns the next free chunk. */
static struct fifo_chunk *zcopy_chunks_take_packet(struct tcp_zcopy *z, struct vma_buf *packet,
                                                   struct fifo_chunk *chunk, struct fifo_chunk **last)
{
	uint32_t skip = packet->payload_off, left = packet->payload_len;
	struct vma_buf *next;

	for (struct vma_buf *buf = packet; buf != NULL; buf = next) {
		uint32_t room = buf->len - skip, here = room < left ? room : left;

		next = buf->next;
		buf->next = NULL;
		if (here == 0) {
			vma_buf_put(z->arena, buf);
		} else {
			fifo_chunk_set_zcopy_frame(chunk, buf, vma_buf_data(z->arena, buf) + skip, here);
			*last = chunk;
			chunk = chunk->next;
		}
		left -= here;
		skip = 0;
	}
	return chunk;
}

static bool zcopy_copy_packets(struct vma_tcp_conn *conn, struct tcp_zcopy *z, struct vma_buf *const *packets,
                               unsigned n, uint32_t len)
{
	struct fifo_chunk *chunk;
	struct iovec spans[8];
	size_t room = 0;
	unsigned count;

	if (z->inspects) {
		chunk = zcopy_chunk_with_own_memory(conn, len);
		if (chunk == NULL)
			return false;
		port_copy_payload(z->arena, packets, n, &(const struct iovec){chunk->bytes, len});
		zcopy_arrived_push(z, chunk);
		return true;
	}
	count = fifo_reserve(&conn->rx, len, spans, 8);
	for (unsigned i = 0; i < count; i++)
		room += spans[i].iov_len;
	if (room < len)
		return false;
	port_copy_payload(z->arena, packets, n, spans);
	fifo_commit(&conn->rx, len);
	return true;
}

static bool rx_has_urgent_mark(const struct vma_tcp_conn *conn)
{
	return atomic_load_explicit(&conn->urgent_at, memory_order_relaxed) >= 0 ||
	       atomic_load_explicit(&conn->urgent_passed, memory_order_relaxed) >= 0;
}

/* True: the packet is the owner's. The driver alone sets marks and queues bytes: what is not there does not come. */
static bool zcopy_offer_to_owner(struct vma_tcp_conn *conn, struct tcp_zcopy *z, struct vma_buf *packet, uint32_t len)
{
	const struct vma_tcp_conn_ops *owner = atomic_load_explicit(&conn->owner, memory_order_acquire);
	const struct vma_tcp_rx_stream_piece piece = {
	        .data = vma_buf_data(z->arena, packet) + packet->payload_off, .len = len, .buf = packet};

	if (owner == NULL || owner->take == NULL || z->inspects || packet->next != NULL ||
	    fifo_queued_bytes(&conn->rx) != 0 || rx_has_urgent_mark(conn) || !zcopy_may_hold_frames(z, 1, len))
		return false;
	if (!owner->take(conn, atomic_load_explicit(&conn->owner_arg, memory_order_relaxed), &piece))
		return false;
	zcopy_count_bytes(conn, z, len, false);
	return true;
}

bool zcopy_queue_received_packets(struct vma_tcp_conn *conn, struct vma_buf *const *packets, unsigned n, uint32_t len)
{
	struct tcp_zcopy *z = zcopy_of(conn);
	struct fifo_chunk *first = NULL, *last = NULL, *chunk;
	unsigned frames;

	if (n == 1 && atomic_load_explicit(&z->offers, memory_order_relaxed) &&
	    zcopy_offer_to_owner(conn, z, packets[0], len))
		return true;
	frames = count_frames_of_packets(packets, n);
	if (!zcopy_has_room_for_arrivals(z))
		return false;
	if (zcopy_may_hold_frames(z, frames, len))
		first = zcopy_chunks_alloc_linked(conn, z, frames);
	if (first == NULL) {
		if (!zcopy_copy_packets(conn, z, packets, n, len))
			return false;
		for (unsigned i = 0; i < n; i++)
			vma_buf_put_chain(z->arena, packets[i]);
	} else {
		chunk = first;
		for (unsigned i = 0; i < n; i++)
			chunk = zcopy_chunks_take_packet(z, packets[i], chunk, &last);
		zcopy_frames_held_add(z, frames);
		zcopy_append_to_fifo(conn, z, first, last, len);
	}
	zcopy_count_and_report_received(conn, z, len, first == NULL);
	return true;
}

/* ---- in order, through lwIP ---- */

/* How many, if all of the chain lies in frames; 0: not all does. */
static unsigned count_frames_of_pbufs(const struct pbuf *p)
{
	unsigned frames = 0;

	for (; p != NULL; p = p->next) {
		if (p->len != 0 && port_buf_of_pbuf(p) == NULL)
			return 0;
		frames += p->len != 0;
	}
	return frames;
}

static bool copy_pbufs_to_rx_fifo(struct vma_tcp_conn *conn, struct tcp_zcopy *z, const struct pbuf *p)
{
	struct fifo_chunk *chunk;
	struct iovec spans[8];
	size_t room = 0;
	unsigned count;
	u16_t off = 0;

	if (z->inspects) {
		chunk = zcopy_chunk_with_own_memory(conn, p->tot_len);
		if (chunk == NULL)
			return false;
		pbuf_copy_partial(p, chunk->bytes, p->tot_len, 0);
		zcopy_arrived_push(z, chunk);
		return true;
	}
	count = fifo_reserve(&conn->rx, p->tot_len, spans, 8);
	for (unsigned i = 0; i < count; i++)
		room += spans[i].iov_len;
	if (room < p->tot_len)
		return false;
	for (unsigned i = 0; i < count; off = (u16_t)(off + spans[i++].iov_len))
		pbuf_copy_partial(p, spans[i].iov_base, (u16_t)spans[i].iov_len, off);
	fifo_commit(&conn->rx, p->tot_len);
	return true;
}

bool zcopy_queue_received_pbufs(struct vma_tcp_conn *conn, struct pbuf *p)
{
	struct tcp_zcopy *z = zcopy_of(conn);
	const unsigned frames = count_frames_of_pbufs(p);
	struct fifo_chunk *first = NULL, *last = NULL, *chunk;

	if (!zcopy_has_room_for_arrivals(z))
		return false;
	if (frames != 0 && zcopy_may_hold_frames(z, frames, p->tot_len))
		first = zcopy_chunks_alloc_linked(conn, z, frames);
	if (first == NULL) {
		if (!copy_pbufs_to_rx_fifo(conn, z, p))
			return false;
	} else {
		chunk = first;
		for (const struct pbuf *q = p; q != NULL; q = q->next) {
			struct vma_buf *frame = q->len != 0 ? port_buf_of_pbuf(q) : NULL;

			if (frame == NULL)
				continue;
			vma_buf_ref(frame);
			fifo_chunk_set_zcopy_frame(chunk, frame, q->payload, q->len);
			last = chunk;
			chunk = chunk->next;
		}
		zcopy_frames_held_add(z, frames);
		zcopy_append_to_fifo(conn, z, first, last, p->tot_len);
	}
	zcopy_count_and_report_received(conn, z, p->tot_len, first == NULL);
	return true;
}

/* ---- begun, and inspected or not ---- */

static struct tcp_zcopy *zcopy_new(struct vma_tcp *tcp)
{
	struct tcp_zcopy *z = tcp_alloc_zeroed(tcp, sizeof(*z));

	if (z == NULL)
		return NULL;
	z->number = atomic_fetch_add_explicit(&zcopy_last_conn_number, 1, memory_order_relaxed) + 1;
	z->arena = tcp->arena;
	z->books = tcp->attr.memory;
	return z;
}

/* The connection's, made if there is none; NULL: no memory. */
static struct tcp_zcopy *zcopy_get_or_create(struct vma_tcp_conn *conn)
{
	struct tcp_zcopy *z = zcopy_of(conn), *present = NULL;
	struct vma_tcp *tcp = tcp_stack_now(conn);

	if (z != NULL)
		return z;
	z = zcopy_new(tcp);
	if (z == NULL || atomic_compare_exchange_strong(&conn->zcopy, &present, z))
		return z;
	tcp_free_memory(tcp, z); /* another thread was first */
	return present;
}

int vma_tcp_enable_rx_zcopy(struct vma_tcp_conn *conn)
{
	if (zcopy_of(conn) != NULL)
		return 0;
	if (zcopy_get_or_create(conn) == NULL)
		return -ENOMEM;
	tcp_run_conn_work_now_or_queue(conn, TCP_WORK_ZCOPY);
	return 0;
}

int vma_tcp_offer_arriving_pieces(struct vma_tcp_conn *conn)
{
	const int rc = vma_tcp_enable_rx_zcopy(conn);
	struct tcp_zcopy *z = zcopy_of(conn);

	if (rc == 0 && !atomic_load_explicit(&z->offers, memory_order_relaxed))
		atomic_store_explicit(&z->offers, true, memory_order_relaxed);
	return rc;
}

uint64_t vma_tcp_zcopy_conn_id(const struct vma_tcp_conn *conn)
{
	const struct tcp_zcopy *z = zcopy_of(conn);

	return z != NULL ? z->number : 0;
}

int vma_tcp_enable_rx_inspection(struct vma_tcp_conn *conn, bool on)
{
	struct tcp_zcopy *z = zcopy_get_or_create(conn);

	if (z == NULL)
		return -ENOMEM;
	atomic_store(&z->wants_inspection, on);
	tcp_run_conn_work_now_or_queue(conn, TCP_WORK_ZCOPY);
	return 0;
}

/* The urgent byte has no place among pieces: a mark that is still to come to is forgotten, and what it made pass. */
static void inspection_begin(struct vma_tcp_conn *conn, struct tcp_zcopy *z)
{
	z->inspects = true;
	if (atomic_load(&conn->urgent_byte) == URGENT_EXPECTED) {
		atomic_store(&conn->urgent_at, -1);
		atomic_store(&conn->urgent_passed, -1);
		atomic_store(&conn->urgent_byte, URGENT_NONE);
	}
}

/* Nothing waits, so no inspector produces the fifo any more. What went past it is no part of its positions. */
static void inspection_end(struct vma_tcp_conn *conn, struct tcp_zcopy *z)
{
	const uint64_t produced = fifo_produced(&conn->rx), past = atomic_load(&z->received) - produced;

	z->inspects = false;
	conn->rx_seq += (uint32_t)past;
	conn->window.rcv_space_copied_seen -= (uint32_t)past;
	atomic_store(&z->received, produced);
}

static void zcopy_report_deferred_fin(struct vma_tcp_conn *conn, struct tcp_zcopy *z)
{
	z->fin_waits = false;
	tcp_conn_fin_received(conn);
}

void zcopy_apply_mode_and_inspection_changes(struct vma_tcp_conn *conn)
{
	struct tcp_zcopy *z = zcopy_of(conn);
	bool wants;

	if (z == NULL)
		return;
	if ((atomic_load(&conn->rx_mode) & RX_ZCOPY) == 0) {
		atomic_store(&z->received, fifo_produced(&conn->rx));
		atomic_fetch_or(&conn->rx_mode, RX_ZCOPY);
		conn->window.chooses = true;
	}
	wants = atomic_load(&z->wants_inspection);
	if (wants && !z->inspects)
		inspection_begin(conn, z);
	if (!z->fin_waits && (wants || !z->inspects))
		return;
	atomic_store(&z->end_waits, true);
	if (atomic_load(&z->waiting) != 0)
		return; /* the inspector posts this work again */
	atomic_store(&z->end_waits, false);
	if (!wants && z->inspects)
		inspection_end(conn, z);
	if (z->fin_waits)
		zcopy_report_deferred_fin(conn, z);
}

bool zcopy_inspect_from_start(struct vma_tcp_conn *conn)
{
	struct tcp_zcopy *z = zcopy_new(conn->tcp);

	if (z == NULL)
		return false;
	atomic_init(&z->wants_inspection, true);
	atomic_store(&conn->zcopy, z);
	zcopy_apply_mode_and_inspection_changes(conn);
	return true;
}

bool zcopy_defer_fin_while_data_waits(struct vma_tcp_conn *conn)
{
	struct tcp_zcopy *z = zcopy_of(conn);

	if (z == NULL || !z->inspects)
		return false;
	atomic_store(&z->end_waits, true);
	z->fin_waits = atomic_load(&z->waiting) != 0;
	return z->fin_waits;
}

bool zcopy_defer_close_while_inspecting(struct vma_tcp_conn *conn)
{
	struct tcp_zcopy *z = zcopy_of(conn);

	if (z == NULL)
		return false;
	z->close_asked = true;
	atomic_store(&z->close_waits, true);                                          /* (E) */
	return atomic_load(&z->deciding) || !atomic_exchange(&z->close_waits, false); /* (F) */
}

bool zcopy_close_is_deferred(const struct vma_tcp_conn *conn)
{
	const struct tcp_zcopy *z = zcopy_of(conn);

	return z != NULL && z->close_asked;
}

/* ---- pieces ---- */

/* Before the bytes leave where they counted until now: their room is not to be offered in between. */
static void zcopy_count_held_bytes(struct tcp_zcopy *z, uint32_t len)
{
	atomic_fetch_add(&z->held, len);
	zcopy_frames_held_add(z, 1);
}

bool vma_tcp_peek_first_rx_piece(struct vma_tcp_conn *conn, struct vma_tcp_rx_stream_piece *piece)
{
	struct iovec span;

	if (vma_tcp_peek_rx_spans(conn, 0, &span, 1) == 0)
		return false;
	*piece = (struct vma_tcp_rx_stream_piece){.data = span.iov_base, .len = (uint32_t)span.iov_len};
	if (zcopy_of(conn) != NULL)
		piece->buf = fifo_peek_frame(&conn->rx, conn->rx_step);
	return true;
}

void vma_tcp_rx_hold_piece(struct vma_tcp_conn *conn, const struct vma_tcp_rx_stream_piece *piece)
{
	zcopy_count_held_bytes(zcopy_of(conn), piece->len);
	rx_consume_bytes(conn, piece->len); /* the buffer is as full as before: there is no window to open */
}

void vma_tcp_rx_hold_arriving_piece(struct vma_tcp_conn *conn, const struct vma_tcp_rx_stream_piece *piece)
{
	zcopy_count_held_bytes(zcopy_of(conn), piece->len);
	fifo_skip(&conn->rx, piece->len);
}

struct vma_tcp_memory *vma_tcp_memory_limits_of(const struct vma_tcp_conn *conn)
{
	return tcp_stack_now(conn)->attr.memory;
}

void vma_tcp_held_bytes_returned(struct vma_tcp_conn *conn, struct vma_tcp_memory *memory, uint64_t number,
                                 uint64_t bytes, unsigned pieces)
{
	struct tcp_zcopy *z = conn != NULL ? zcopy_of(conn) : NULL;

	atomic_fetch_sub_explicit(&memory->frames, pieces, memory_order_relaxed);
	if (z == NULL || z->number != number)
		return;
	atomic_fetch_sub_explicit(&z->frames, (int32_t)pieces, memory_order_relaxed);
	atomic_fetch_sub(&z->held, (int64_t)bytes);
	if (window_wants_update(conn))
		tcp_run_conn_work_now_or_queue(conn, TCP_WORK_WINDOW);
}

/* ---- the inspector ---- */

static struct fifo_chunk *zcopy_arrived_pop_next(struct tcp_zcopy *z)
{
	struct fifo_chunk *chunk, *next;

	if (z->first == NULL) {
		for (chunk = atomic_exchange(&z->arrived, NULL); chunk != NULL; chunk = next) {
			next = chunk->next;
			chunk->next = z->first;
			z->first = chunk;
		}
	}
	chunk = z->first;
	if (chunk != NULL)
		z->first = chunk->next;
	return chunk;
}

static void fifo_chunk_free_with_frame(const struct vma_tcp_conn *conn, struct fifo_chunk *chunk)
{
	if (chunk->frame != NULL)
		zcopy_release_frame_and_chunk(&conn->memory, chunk);
	else
		conn->memory.free(chunk);
}

/* A piece in memory of its own joins others, if there is room: many small ones would take several times as much. */
static void zcopy_receive_inspected_chunk(struct vma_tcp_conn *conn, struct fifo_chunk *chunk)
{
	struct iovec span;

	if (chunk->frame != NULL || fifo_reserve(&conn->rx, chunk->size, &span, 1) != 1 || span.iov_len < chunk->size) {
		fifo_append_chunks(&conn->rx, chunk, chunk, chunk->size);
		return;
	}
	memcpy(span.iov_base, chunk->bytes, chunk->size);
	fifo_commit(&conn->rx, chunk->size);
	fifo_chunk_free_with_frame(conn, chunk);
}

static void zcopy_carry_out_verdict(struct vma_tcp_conn *conn, struct tcp_zcopy *z, struct fifo_chunk *chunk,
                                    enum vma_tcp_inspect_verdict verdict)
{
	if (verdict == VMA_TCP_RECV) {
		zcopy_receive_inspected_chunk(conn, chunk);
		return;
	}
	if (verdict == VMA_TCP_HOLD)
		zcopy_count_held_bytes(z, (uint32_t)chunk->size);
	fifo_chunk_free_with_frame(conn, chunk);
}

/* What waits counts until it counts elsewhere. */
static enum vma_tcp_inspect_verdict inspect_piece_end(struct vma_tcp_conn *conn, struct tcp_zcopy *z,
                                                      struct fifo_chunk *chunk, enum vma_tcp_inspect_verdict verdict)
{
	const uint32_t len = (uint32_t)chunk->size;

	if (verdict == VMA_TCP_HOLD && chunk->frame == NULL)
		verdict = VMA_TCP_RECV;
	zcopy_carry_out_verdict(conn, z, chunk, verdict);
	atomic_fetch_sub_explicit(&z->waiting_pieces, 1, memory_order_relaxed);
	if (atomic_fetch_sub(&z->waiting, len) == len && atomic_exchange(&z->end_waits, false))
		tcp_run_conn_work_now_or_queue(conn, TCP_WORK_ZCOPY);
	atomic_store(&z->deciding, false);           /* (G) */
	if (atomic_exchange(&z->close_waits, false)) /* (H) */
		tcp_run_conn_work_now_or_queue(conn, TCP_WORK_CLOSE);
	if (verdict != VMA_TCP_RECV && window_wants_update(conn))
		tcp_run_conn_work_now_or_queue(conn, TCP_WORK_WINDOW);
	return verdict;
}

static enum vma_tcp_inspect_verdict inspect_piece(struct vma_tcp_conn *conn, struct tcp_zcopy *z,
                                                  struct fifo_chunk *chunk, const struct vma_tcp_inspector *inspector)
{
	const struct vma_tcp_rx_stream_piece piece = {
	        .data = chunk->bytes, .len = (uint32_t)chunk->size, .buf = chunk->frame};
	enum vma_tcp_inspect_verdict verdict;

	z->at_hand = chunk;
	atomic_store(&z->deciding, true);
	verdict = inspector->decide(conn, &piece, inspector->arg);
	return verdict == VMA_TCP_GONE ? verdict : inspect_piece_end(conn, z, chunk, verdict);
}

/* What this thread would have inspected next waits for another one: (C), and the caller has somebody look, as (D). */
void vma_tcp_inspector_has_ended(struct vma_tcp_conn *conn, enum vma_tcp_inspect_verdict verdict)
{
	struct tcp_zcopy *z = zcopy_of(conn);

	inspect_piece_end(conn, z, z->at_hand, verdict);
	atomic_store(&z->inspecting, false);
}

struct vma_tcp_inspected vma_tcp_inspect_received(struct vma_tcp_conn *conn, const struct vma_tcp_inspector *inspector,
                                                  unsigned most)
{
	struct tcp_zcopy *z = zcopy_of(conn);
	struct vma_tcp_inspected result = {0};
	struct fifo_chunk *chunk;

	do {
		if (z == NULL || atomic_exchange(&z->inspecting, true)) /* (B) */
			return result;
		while (result.pieces < most && (chunk = zcopy_arrived_pop_next(z)) != NULL) {
			const uint64_t len = chunk->size;
			const enum vma_tcp_inspect_verdict verdict = inspect_piece(conn, z, chunk, inspector);

			result.gone = verdict == VMA_TCP_GONE;
			if (result.gone)
				return result;
			result.received += verdict == VMA_TCP_RECV ? len : 0;
			result.pieces++;
		}
		result.more = z->first != NULL;
		atomic_store(&z->inspecting, false);             /* (C) */
		result.more |= atomic_load(&z->arrived) != NULL; /* (D) */
	} while (result.more && result.pieces < most);
	return result;
}

/* ---- freed ---- */

void zcopy_fini(struct vma_tcp_conn *conn)
{
	struct tcp_zcopy *z = zcopy_of(conn);
	void (*release)(void *memory) = conn->memory.free;
	struct fifo_chunk *chunk;
	struct zcopy_slab *slab;

	if (z == NULL)
		return;
	while ((chunk = zcopy_arrived_pop_next(z)) != NULL)
		fifo_chunk_free_with_frame(conn, chunk);
	while ((slab = z->slabs) != NULL) {
		z->slabs = slab->next;
		release(slab);
	}
	release(tcp_allocated_base(z));
}
