/*
 * fifo - bytes from one thread to another, in chunks: one producer and one consumer at a time, no lock.
 *
 *   position: bytes since the beginning, 64 bits.   consumed <= position of what can be read < produced
 *
 * Threads: one producer (reserve, commit), one consumer (front, span, consume). Another thread may take such a part
 *          over if both synchronise by themselves. Any thread reads produced and consumed.
 * Progress: no call waits. reserve allocates chunks: small first, larger as the fifo holds more.
 * Memory: bytes stay where they are until they are consumed. A fifo that runs empty goes on in the same memory, so a
 *         conversation in small messages always touches the same lines. A fifo that was large gives its chunks back:
 *         when it is empty it holds one small chunk at most. alloc need not clear what it gives.
 * Example: test/test_fifo.c. fifo.c argues why no side looks at what the other changes.
 */
#ifndef VMA_TCP_FIFO_H
#define VMA_TCP_FIFO_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct vma_buf;

struct fifo_chunk {
	struct fifo_chunk *next;
	uint64_t base;         /* position of bytes[0] */
	size_t size;           /* only fifo_append_chunks changes it: (5) of fifo.c */
	uint8_t *bytes;        /* behind this structure, or in the frame */
	struct vma_buf *frame; /* whose reference the chunk has; NULL: memory of its own */
	uint32_t counted;      /* in memory->used */
	bool is_large;         /* given back when the fifo runs empty: (4) of fifo.c */
};
struct fifo_memory {
	void *(*alloc)(size_t size);
	void (*free)(void *memory);
	_Atomic int64_t *used; /* bytes of all chunks are counted here; NULL: nowhere */
	/* Any side: a chunk with a frame has been read, or is dropped. NULL if the fifo gets none. */
	void (*put_frame)(const struct fifo_memory *memory, struct fifo_chunk *chunk);
};
struct tcp_fifo {
	const struct fifo_memory *memory;
	uint32_t chunk_bytes; /* of each chunk, without its header; 0: as much as is wanted */
	/* producer's line */
	_Alignas(64) struct fifo_chunk *tail; /* holds the position produced, or ends there */
	bool tail_is_large;                   /* then the consumer may have freed it: do not look */
	_Atomic uint64_t produced;            /* with FIFO_HELD, FIFO_CLOSED */
	/* consumer's line */
	_Alignas(64) struct fifo_chunk *head; /* NULL: no chunk; then the producer sets it */
	_Atomic uint64_t consumed;
	struct fifo_chunk *cursor; /* span's: the chunk looked at last; NULL: begin at head */
};
/* Whose the tail is when it is large and the fifo is empty: see fifo.c. Positions stay below. */
#define FIFO_HELD (1ULL << 63)
#define FIFO_CLOSED (1ULL << 62)
#define FIFO_POSITION (FIFO_CLOSED - 1)

void fifo_init(struct tcp_fifo *fifo, const struct fifo_memory *memory); /* allocates nothing */
void fifo_fini(struct tcp_fifo *fifo);                                   /* nobody uses it any more */
/* What the functions below leave, which know the chunk at hand only. bytes and n of reserve are not 0. */
unsigned fifo_reserve_slow_path(struct tcp_fifo *fifo, size_t bytes, struct iovec *spans, unsigned n);
void fifo_commit_slow_path(struct tcp_fifo *fifo, size_t bytes);
/* Producer: chunks in a row, from first to last, each full, with `bytes` in all (> 0), are the fifo's. Their is_large
 * is true. Nothing is reserved, or what is reserved is given up. */
void fifo_append_chunks(struct tcp_fifo *fifo, struct fifo_chunk *first, struct fifo_chunk *last, size_t bytes);
/* Consumer: the frame in which the byte lies that fifo_peek_spans gives first; NULL: in none, or there is no byte. */
struct vma_buf *fifo_peek_frame(const struct tcp_fifo *fifo, size_t skip);
struct iovec fifo_span_slow_path(struct tcp_fifo *fifo, uint64_t position);
/* Consumer: readable spans from consumed + skip on, at most n. */
unsigned fifo_peek_spans(struct tcp_fifo *fifo, size_t skip, struct iovec *spans, unsigned n);
void fifo_consume(struct tcp_fifo *fifo, size_t bytes);
/* The caller is the producer and the consumer, nothing is reserved, and the fifo is empty: so many bytes have gone past
 * it. */
void fifo_skip(struct tcp_fifo *fifo, size_t bytes);

static inline uint64_t fifo_produced(const struct tcp_fifo *fifo)
{
	return atomic_load_explicit(&fifo->produced, memory_order_acquire) & FIFO_POSITION;
}
static inline uint64_t fifo_consumed(const struct tcp_fifo *fifo)
{
	return atomic_load_explicit(&fifo->consumed, memory_order_acquire);
}
static inline uint64_t fifo_queued_bytes(const struct tcp_fifo *fifo)
{
	uint64_t consumed = fifo_consumed(fifo); /* first: it only grows, and never beyond produced */

	return fifo_produced(fifo) - consumed;
}

/* relaxed: the producer may shorten the tail that the consumer looks at, see (5) of fifo.c. */
static inline uint64_t fifo_chunk_end(const struct fifo_chunk *chunk)
{
	return chunk->base + __atomic_load_n(&chunk->size, __ATOMIC_RELAXED);
}

/* Producer: writable spans for up to `bytes` after what is produced, at most n; 0: out of memory (or bytes is 0). They
 * are good until the next call of reserve or commit. */
static inline unsigned fifo_reserve(struct tcp_fifo *fifo, size_t bytes, struct iovec *spans, unsigned n)
{
	struct fifo_chunk *chunk = fifo->tail;
	uint64_t produced;

	if (bytes == 0 || n == 0)
		return 0;
	/* In a small tail with room for all of it; GONE and HELD are of a large one. */
	if (__builtin_expect(chunk != NULL && !fifo->tail_is_large, 1)) {
		produced = atomic_load_explicit(&fifo->produced, memory_order_relaxed);
		if (atomic_load_explicit(&fifo->consumed, memory_order_acquire) == produced)
			chunk->base = produced; /* (2) of fifo.c */
		if (__builtin_expect(fifo_chunk_end(chunk) - produced >= bytes, 1)) {
			*spans = (struct iovec){chunk->bytes + (produced - chunk->base), bytes};
			return 1;
		}
	}
	return fifo_reserve_slow_path(fifo, bytes, spans, n);
}

/* No more than was reserved. Who commits nothing after a reserve, or does not commit, may leave a large chunk in an
 * empty fifo, until the next message has gone through. */
static inline void fifo_commit(struct tcp_fifo *fifo, size_t bytes)
{
	const struct fifo_chunk *chunk = fifo->tail;
	uint64_t produced;

	/* A small tail, in which the bytes are, and behind which nothing has been made: it stays what it is, and what
	 * is produced has neither HELD nor GONE. */
	if (__builtin_expect(chunk != NULL && !fifo->tail_is_large && chunk->next == NULL, 1)) {
		produced = atomic_load_explicit(&fifo->produced, memory_order_relaxed) + bytes;
		assert(produced <= fifo_chunk_end(chunk));
		atomic_store_explicit(&fifo->produced, produced, memory_order_release); /* (1) of fifo.c */
		return;
	}
	fifo_commit_slow_path(fifo, bytes);
}

/* Consumer: one span at a position not below consumed, fast when positions grow from call to call. iov_len 0: none. Of
 * a fifo to which no frame is appended. */
static inline struct iovec fifo_span(struct tcp_fifo *fifo, uint64_t position)
{
	const struct fifo_chunk *chunk = fifo->cursor;
	uint64_t produced = fifo_produced(fifo), end;

	if (__builtin_expect(chunk == NULL || position >= produced || position - chunk->base >= chunk->size, 0))
		return fifo_span_slow_path(fifo, position);
	end = fifo_chunk_end(chunk) < produced ? fifo_chunk_end(chunk) : produced;
	return (struct iovec){(void *)(uintptr_t)(chunk->bytes + (position - chunk->base)), (size_t)(end - position)};
}

#endif
