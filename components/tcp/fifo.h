/*
 * fifo - bytes from one thread to another, in chunks: one producer and one consumer at a time, no lock.
 *
 *   position: bytes since the beginning, 64 bits.   consumed <= position of what can be read < produced
 *
 * Threads: one producer (reserve, commit), one consumer (front, span, consume); who that is may change when the two
 *          synchronise by themselves. Anybody reads produced and consumed.
 * Progress: no call waits. reserve allocates chunks: small first, larger as the fifo holds more.
 * Memory: bytes stay where they are until they are consumed. A fifo that runs empty goes on in the same memory, so a
 *         conversation in small messages always touches the same lines; one that was large gives its chunks back.
 */
#ifndef VMA_TCP_FIFO_H
#define VMA_TCP_FIFO_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct fifo_chunk;
struct fifo_memory {
	void *(*alloc)(size_t size);
	void (*free)(void *memory);
};
struct tcp_fifo {
	const struct fifo_memory *memory;
	/* producer's line */
	_Alignas(64) struct fifo_chunk *tail;
	_Atomic uint64_t produced;
	/* consumer's line */
	_Alignas(64) struct fifo_chunk *_Atomic head;
	_Atomic uint64_t consumed;
	struct fifo_chunk *cursor; /* span's: the chunk looked at last, and the position where it begins */
	uint64_t cursor_at;
};

void fifo_init(struct tcp_fifo *fifo, const struct fifo_memory *memory); /* allocates nothing */
void fifo_fini(struct tcp_fifo *fifo);                                   /* nobody uses it any more */
/* Producer: writable spans for up to `bytes` after what is produced, at most n; 0: out of memory (or bytes is 0). */
unsigned fifo_reserve(struct tcp_fifo *fifo, size_t bytes, struct iovec *spans, unsigned n);
void fifo_commit(struct tcp_fifo *fifo, size_t bytes); /* no more than was reserved */
/* Consumer: readable spans from consumed + skip on, at most n. */
unsigned fifo_front(struct tcp_fifo *fifo, size_t skip, struct iovec *spans, unsigned n);
/* Consumer: one span at a position not below consumed, fast when positions grow from call to call. iov_len 0: none. */
struct iovec fifo_span(struct tcp_fifo *fifo, uint64_t position);
void fifo_consume(struct tcp_fifo *fifo, size_t bytes);
static inline uint64_t fifo_produced(const struct tcp_fifo *fifo)
{
	return atomic_load_explicit(&fifo->produced, memory_order_acquire);
}
static inline uint64_t fifo_consumed(const struct tcp_fifo *fifo)
{
	return atomic_load_explicit(&fifo->consumed, memory_order_acquire);
}
static inline uint64_t fifo_bytes(const struct tcp_fifo *fifo)
{
	uint64_t consumed = fifo_consumed(fifo); /* first: it only grows, and never beyond produced */

	return fifo_produced(fifo) - consumed;
}

#endif
