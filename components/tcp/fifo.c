/*
 * fifo - chunks in a row: the consumer's head, ..., the producer's tail; and which side may touch what when.
 *
 *      head                             tail
 *   [ ..xxxx ]->[ xxxxxx ]->[ xxxxxx ]->[ xx.... ]        x: bytes in the fifo
 *        ^ consumed                       ^ produced
 *
 * A chunk holds the positions [base, base + size). Only the producer writes next, base and size.
 *
 * (1) The consumer looks at chunks only after it has loaded produced (acquire) and found it beyond consumed. So it sees
 * all that the producer did to them before the commit that it saw, and head is set.
 *
 * (2) Bytes are read before consumed is stored (release). The producer writes over them only after it has loaded
 * consumed (acquire) and found it equal to produced. Then the fifo is empty, the consumer looks at no chunk until the
 * next commit by (1), and the producer may let the tail begin anew: base = produced.
 *
 * (3) The producer leaves a chunk for good when it commits beyond its end. The consumer frees a chunk when it has
 * consumed to its end and seen produced beyond its end. A chunk that ends exactly at produced is still the tail.
 *
 * (4) A small tail is freed only by fini. The consumer gives a large one back when the fifo has run empty, although the
 * producer may be about to write into it. One word decides between the two. The producer takes it (produced -> produced
 * | HELD) before it touches the tail, until its commit stores a new position. The consumer takes it (consumed ->
 * consumed | GONE). The consumer's exchange succeeds only if what is produced is what it has consumed and the producer
 * does not hold the tail; positions only grow, so an old value never comes back. The consumer has cleared head before,
 * and touches nothing of the fifo's chunks after it. A producer that finds GONE has no chunk, as in the beginning, and
 * sets head anew.
 *
 * (5) A chunk with a frame is full when it is appended. It counts as large, whatever its size, so it is given back when
 * it has been read, and is never begun anew. A tail with room left is shortened to end at produced before such a chunk
 * comes behind it. The consumer may look at that tail meanwhile, with the old produced or an older one, and find either
 * end: no position that it looks for lies beyond the new end, and it leaves the chunk only if produced is beyond the
 * end that it finds. A produced that is beyond has been stored after the new end, and next, were.
 *
 * (6) fifo_skip is both sides at once, of a fifo that is empty: by (3) and (4) the tail, if the consumer has not given
 * it back, is the only chunk. It is made to lie at the new position: a frame, which is full, ends there; any other
 * begins there, as by (2). Another thread that asks how much is queued sees produced move first, and never a consumed
 * beyond it.
 */
#include "fifo.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

/* Allocated at a time, header included. */
#define FIFO_SMALL 512
#define FIFO_LARGE 65536

static void fifo_charge_memory(const struct tcp_fifo *fifo, int64_t bytes)
{
	if (fifo->memory->used != NULL)
		atomic_fetch_add_explicit(fifo->memory->used, bytes, memory_order_relaxed);
}

static void chunk_free(const struct tcp_fifo *fifo, struct fifo_chunk *chunk)
{
	fifo_charge_memory(fifo, -(int64_t)chunk->counted);
	if (chunk->frame != NULL)
		fifo->memory->put_frame(fifo->memory, chunk);
	else
		fifo->memory->free(chunk);
}

void fifo_init(struct tcp_fifo *fifo, const struct fifo_memory *memory)
{
	*fifo = (struct tcp_fifo){.memory = memory};
}

void fifo_fini(struct tcp_fifo *fifo)
{
	struct fifo_chunk *chunk, *next;

	for (chunk = fifo->head; chunk != NULL; chunk = next) {
		next = chunk->next;
		chunk_free(fifo, chunk);
	}
	fifo->head = fifo->tail = fifo->cursor = NULL;
}

/* ---- producer ---- */

/*
 * As large as what is wanted, or as what the fifo holds already, whichever is more: one that fills by small steps
 * doubles. Behind a frame, where the next bytes may well lie in a frame again, as large as what is wanted.
 */
static struct fifo_chunk *chunk_new(const struct tcp_fifo *fifo, uint64_t base, uint64_t fill, size_t wanted)
{
	const bool follows_frame = fifo->tail != NULL && fifo->tail->frame != NULL;
	uint64_t payload = wanted > fill || follows_frame ? wanted : fill;
	size_t size = FIFO_SMALL;
	struct fifo_chunk *chunk;

	if (fifo->chunk_bytes != 0)
		size = fifo->chunk_bytes + sizeof(*chunk);
	else
		while (size < FIFO_LARGE && size - sizeof(*chunk) < payload)
			size *= 2;
	chunk = fifo->memory->alloc(size);
	if (chunk == NULL)
		return NULL;
	*chunk = (struct fifo_chunk){.base = base,
	                             .size = size - sizeof(*chunk),
	                             .bytes = (uint8_t *)(chunk + 1),
	                             .counted = (uint32_t)size,
	                             .is_large = size > FIFO_SMALL};
	fifo_charge_memory(fifo, (int64_t)size);
	return chunk;
}

/* Makes a large tail the producer's until commit, or forgets it if the consumer has it, see (4). The position. */
static uint64_t fifo_hold_or_forget_large_tail(struct tcp_fifo *fifo)
{
	/* acquire: with GONE, the consumer's clearing of head */
	uint64_t word = atomic_load_explicit(&fifo->produced, memory_order_acquire);

	if (fifo->tail_is_large && (word & (FIFO_HELD | FIFO_CLOSED)) == 0)
		atomic_compare_exchange_strong_explicit(&fifo->produced, &word, word | FIFO_HELD, memory_order_acq_rel,
		                                        memory_order_acquire);
	if ((word & FIFO_CLOSED) != 0) {
		fifo->tail = NULL;
		fifo->tail_is_large = false;
		atomic_store_explicit(&fifo->produced, word & FIFO_POSITION, memory_order_release);
	}
	return word & FIFO_POSITION;
}

static void fifo_make_first_chunk(struct tcp_fifo *fifo, uint64_t produced, size_t bytes)
{
	fifo->tail = fifo->head = chunk_new(fifo, produced, 0, bytes);
	fifo->tail_is_large = fifo->tail != NULL && fifo->tail->is_large;
	if (fifo->tail_is_large)
		atomic_store_explicit(&fifo->produced, produced | FIFO_HELD, memory_order_release);
}

/* The chunk behind this one, made if there is none. */
static struct fifo_chunk *chunk_next_or_new(const struct tcp_fifo *fifo, struct fifo_chunk *chunk, uint64_t fill,
                                            size_t bytes)
{
	if (chunk->next == NULL)
		chunk->next = chunk_new(fifo, fifo_chunk_end(chunk), fill, bytes);
	return chunk->next;
}

unsigned fifo_reserve_slow_path(struct tcp_fifo *fifo, size_t bytes, struct iovec *spans, unsigned n)
{
	uint64_t produced, consumed, at;
	struct fifo_chunk *chunk;
	unsigned used = 0;

	at = produced = fifo_hold_or_forget_large_tail(fifo);
	consumed = atomic_load_explicit(&fifo->consumed, memory_order_acquire);
	if (fifo->tail == NULL)
		fifo_make_first_chunk(fifo, produced, bytes);
	else if (consumed == produced && fifo->tail->frame == NULL)
		fifo->tail->base = produced; /* (2) */
	chunk = fifo->tail;
	if (chunk != NULL && at == fifo_chunk_end(chunk))
		chunk = chunk_next_or_new(fifo, chunk, at - consumed, bytes);
	while (chunk != NULL) {
		size_t room = (size_t)(fifo_chunk_end(chunk) - at);

		if (room > bytes)
			room = bytes;
		spans[used++] = (struct iovec){chunk->bytes + (at - chunk->base), room};
		at += room;
		bytes -= room;
		if (bytes == 0 || used == n)
			break;
		chunk = chunk_next_or_new(fifo, chunk, at - consumed, bytes);
	}
	if (used == 0) /* no commit follows: let go */
		atomic_store_explicit(&fifo->produced, produced, memory_order_release);
	return used;
}

/* What was made behind a chunk, and has got no bytes. */
static void fifo_free_unused(const struct tcp_fifo *fifo, struct fifo_chunk *chunk)
{
	struct fifo_chunk *unused;

	while ((unused = chunk->next) != NULL) {
		chunk->next = unused->next;
		chunk_free(fifo, unused);
	}
}

void fifo_commit_slow_path(struct tcp_fifo *fifo, size_t bytes)
{
	uint64_t word = atomic_load_explicit(&fifo->produced, memory_order_relaxed);
	uint64_t produced = (word & FIFO_POSITION) + bytes;
	struct fifo_chunk *chunk = fifo->tail;

	if (chunk == NULL || (fifo->tail_is_large && (word & FIFO_HELD) == 0)) {
		assert(bytes == 0); /* nothing was reserved */
		return;
	}
	while (produced > fifo_chunk_end(chunk))
		chunk = chunk->next;
	fifo_free_unused(fifo, chunk);
	fifo->tail = chunk;
	fifo->tail_is_large = chunk->is_large;
	atomic_store_explicit(&fifo->produced, produced, memory_order_release); /* (1), and without HELD */
}

void fifo_append_chunks(struct tcp_fifo *fifo, struct fifo_chunk *first, struct fifo_chunk *last, size_t bytes)
{
	const uint64_t produced = fifo_hold_or_forget_large_tail(fifo);
	struct fifo_chunk *tail = fifo->tail;
	uint64_t base = produced;

	last->next = NULL;
	for (struct fifo_chunk *chunk = first; chunk != NULL; chunk = chunk->next) {
		chunk->base = base;
		base += chunk->size;
		fifo_charge_memory(fifo, chunk->counted);
	}
	assert(base == produced + bytes);
	if (tail == NULL) {
		fifo->head = first;
	} else {
		fifo_free_unused(fifo, tail);
		__atomic_store_n(&tail->size, produced - tail->base, __ATOMIC_RELAXED); /* (5) */
		tail->next = first;
	}
	fifo->tail = last;
	fifo->tail_is_large = true;
	atomic_store_explicit(&fifo->produced, produced + bytes, memory_order_release); /* (1), and without HELD */
}

/* ---- both ---- */

void fifo_skip(struct tcp_fifo *fifo, size_t bytes)
{
	const uint64_t word = atomic_load_explicit(&fifo->produced, memory_order_relaxed);
	const uint64_t position = (word & FIFO_POSITION) + bytes;
	struct fifo_chunk *tail = (word & FIFO_CLOSED) == 0 ? fifo->tail : NULL;

	assert(atomic_load_explicit(&fifo->consumed, memory_order_relaxed) == (word & FIFO_POSITION));
	if (tail != NULL)
		tail->base = tail->frame != NULL ? position - tail->size : position;
	atomic_store_explicit(&fifo->produced, position | (word & FIFO_CLOSED), memory_order_release);
	atomic_store_explicit(&fifo->consumed, position, memory_order_release);
}

/* ---- consumer ---- */

/* The first chunk that has bytes at consumed or later, of those that head still has; frees what lies before it. */
static inline __attribute__((always_inline)) struct fifo_chunk *
fifo_free_consumed_chunks_get_head(struct tcp_fifo *fifo, uint64_t consumed, uint64_t produced)
{
	struct fifo_chunk *head = fifo->head;
	uint64_t end;

	while (consumed >= (end = fifo_chunk_end(head)) && produced > end) { /* (3) */
		fifo->head = head->next;
		if (fifo->cursor == head)
			fifo->cursor = NULL;
		chunk_free(fifo, head);
		head = fifo->head;
	}
	return head;
}

/* The fifo was empty, and its only chunk is large. */
static void fifo_free_large_empty_chunk(struct tcp_fifo *fifo, uint64_t consumed)
{
	struct fifo_chunk *head = fifo->head;
	uint64_t expected = consumed;

	fifo->head = fifo->cursor = NULL;
	/* release: head, for the producer; acquire: its last look at the chunk */
	if (atomic_compare_exchange_strong_explicit(&fifo->produced, &expected, consumed | FIFO_CLOSED,
	                                            memory_order_acq_rel, memory_order_relaxed))
		chunk_free(fifo, head);
	else
		fifo->head = head;
}

unsigned fifo_peek_spans(struct tcp_fifo *fifo, size_t skip, struct iovec *spans, unsigned n)
{
	uint64_t consumed = atomic_load_explicit(&fifo->consumed, memory_order_relaxed), at = consumed + skip;
	uint64_t produced = fifo_produced(fifo);
	struct fifo_chunk *chunk;
	unsigned used = 0;

	if (at >= produced)
		return 0;
	/* All of it in the first chunk, which is not left behind then, see (3). */
	chunk = fifo->head;
	if (__builtin_expect(produced <= fifo_chunk_end(chunk) && n != 0, 1)) {
		*spans = (struct iovec){chunk->bytes + (at - chunk->base), (size_t)(produced - at)};
		return 1;
	}
	chunk = fifo_free_consumed_chunks_get_head(fifo, consumed, produced);
	while (at >= fifo_chunk_end(chunk))
		chunk = chunk->next;
	while (used < n && at < produced) {
		uint64_t end = fifo_chunk_end(chunk) < produced ? fifo_chunk_end(chunk) : produced;

		spans[used++] = (struct iovec){chunk->bytes + (at - chunk->base), (size_t)(end - at)};
		at = end;
		if (at < produced) /* else it is the tail, and next is the producer's */
			chunk = chunk->next;
	}
	return used;
}

struct vma_buf *fifo_peek_frame(const struct tcp_fifo *fifo, size_t skip)
{
	uint64_t at = atomic_load_explicit(&fifo->consumed, memory_order_relaxed) + skip;
	const struct fifo_chunk *chunk;

	if (at >= fifo_produced(fifo))
		return NULL;
	chunk = fifo->head;
	while (at >= fifo_chunk_end(chunk))
		chunk = chunk->next;
	return chunk->frame;
}

struct iovec fifo_span_slow_path(struct tcp_fifo *fifo, uint64_t position)
{
	uint64_t produced = fifo_produced(fifo), end;
	struct fifo_chunk *chunk = fifo->cursor;

	if (position >= produced)
		return (struct iovec){NULL, 0};
	if (chunk == NULL || position < chunk->base)
		chunk = fifo->head;
	while (position >= fifo_chunk_end(chunk))
		chunk = chunk->next;
	fifo->cursor = chunk;
	end = fifo_chunk_end(chunk) < produced ? fifo_chunk_end(chunk) : produced;
	return (struct iovec){chunk->bytes + (position - chunk->base), (size_t)(end - position)};
}

void fifo_consume(struct tcp_fifo *fifo, size_t bytes)
{
	uint64_t consumed = atomic_load_explicit(&fifo->consumed, memory_order_relaxed) + bytes;
	uint64_t produced = fifo_produced(fifo);
	bool large;

	if (bytes == 0)
		return;
	assert(consumed <= produced);
	large = fifo_free_consumed_chunks_get_head(fifo, consumed, produced)->is_large;
	atomic_store_explicit(&fifo->consumed, consumed, memory_order_release); /* (2): no look at a chunk after it */
	if (large && consumed == produced)
		fifo_free_large_empty_chunk(fifo, consumed);
}
