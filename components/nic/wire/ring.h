/*
 * ring - buffers between a queue pair's receive half and its end's engine: ck_ring, one producer, one consumer.
 *
 * `posted` runs from the receive half to the holder of the engine, `done` back. ThreadSanitizer does not see ck's
 * fences: ck's own accesses are hidden from it, and each buffer's hand-off is named.
 *
 * Threads: one producer and one consumer at a time. The engine's holder changes, but one holder's writes happen before
 * the next one's, through the engine's flag.
 */
#ifndef VMA_NIC_WIRE_RING_H
#define VMA_NIC_WIRE_RING_H

#include <vma/ck_tsan.h> /* before ck's */

#include <ck_ring.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include <vma/bufpool.h>

#ifdef VMA_TSAN
/* What ck_ring_*_spsc call, because compilers inline it into an unchecked function; the outer ones they do not. */
#define WIRE_ENQUEUE(r, entry) _ck_ring_enqueue_sp(&(r)->ring, (r)->entries, (entry), sizeof(void *), NULL)
#define WIRE_DEQUEUE(r, entry) _ck_ring_dequeue_sc(&(r)->ring, (r)->entries, (entry), sizeof(void *))
#define WIRE_UNCHECKED __attribute__((no_sanitize_thread, noinline, unused)) static
#else
#define WIRE_ENQUEUE(r, entry) ck_ring_enqueue_spsc(&(r)->ring, (r)->entries, *(entry))
#define WIRE_DEQUEUE(r, entry) ck_ring_dequeue_spsc(&(r)->ring, (r)->entries, (entry))
#define WIRE_UNCHECKED static inline
#endif

struct wire_ring {
	ck_ring_t ring;
	ck_ring_buffer_t *entries;
};

/* For `capacity` buffers at least; `start` is the first index (tests start below the wrap). 0 or -ENOMEM. */
static inline int wire_ring_init(struct wire_ring *r, uint32_t capacity, uint32_t start)
{
	uint32_t size = 4;

	while (size <= capacity) /* ck_ring keeps one entry free */
		size *= 2;
	r->entries = calloc(size, sizeof(*r->entries));
	ck_ring_init(&r->ring, size);
	r->ring.c_head = r->ring.p_tail = r->ring.p_head = start;
	return r->entries != NULL ? 0 : -ENOMEM;
}
static inline void wire_ring_fini(struct wire_ring *r)
{
	free(r->entries);
	r->entries = NULL;
}
WIRE_UNCHECKED bool wire_ring_enqueue(struct wire_ring *r, struct vma_buf *buf)
{
	return WIRE_ENQUEUE(r, &buf);
}
WIRE_UNCHECKED void *wire_ring_dequeue(struct wire_ring *r)
{
	void *buf = NULL;

	return WIRE_DEQUEUE(r, &buf) ? buf : NULL;
}
static inline bool wire_ring_push(struct wire_ring *r, struct vma_buf *buf)
{
	__tsan_release(buf);
	return wire_ring_enqueue(r, buf);
}
static inline struct vma_buf *wire_ring_pop(struct wire_ring *r)
{
	struct vma_buf *buf = wire_ring_dequeue(r);

	if (buf != NULL)
		__tsan_acquire(buf);
	return buf;
}
WIRE_UNCHECKED uint32_t wire_ring_count(const struct wire_ring *r)
{
	return ck_ring_size(&r->ring);
}

#endif
