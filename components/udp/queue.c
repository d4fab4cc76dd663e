/*
 * queue.c - datagrams of one socket from one ring: a chain of rings of growing size, one producer, one consumer.
 *
 *   producer ──> tail: ring of 2n ──next──> NULL
 *                  ^
 *   consumer <── head: ring of n, full when the producer left it
 *
 * Nothing is lost or read too early at the hand-over. A producer that finds its ring full makes a new one, puts the
 * datagram into it, and makes it its tail. Then it sets `next` of the old one (release), then moves `pushed` (release),
 * and never touches the old one again. The consumer looks into a ring only after it has seen (acquire) a `pushed`
 * beyond its own `popped`. So the next datagram of the one order is enqueued, and visible. If it is in head, the
 * dequeue finds it. If the dequeue finds nothing, it is in a later ring. So the producer has left head for good and
 * `next` is visible, and head is empty for good: it may be freed.
 *
 * The counters are 64 bits and do not wrap; ck_ring's are 32 bits and may.
 */
#include <errno.h>

#include "datagram_ring.h"

enum { FIRST_SIZE = 16, LARGEST_SIZE = 1 << 20 };

static struct udp_queue_chunk *udp_queue_chunk_create(unsigned size)
{
	struct udp_queue_chunk *chunk = vma_alloc(sizeof(*chunk) + size * sizeof(chunk->datagrams[0]));

	if (chunk != NULL)
		ck_ring_init(&chunk->ring, size);
	return chunk;
}

int udp_queue_init(struct udp_queue *queue)
{
	*queue = (struct udp_queue){0};
	queue->head = queue->tail = udp_queue_chunk_create(FIRST_SIZE);
	return queue->head != NULL ? 0 : -ENOMEM;
}

void udp_queue_fini(struct udp_queue *queue, struct vma_bufarena *arena)
{
	const struct udp_datagram *datagram;

	if (queue->head == NULL)
		return;
	while ((datagram = udp_queue_front(queue)) != NULL) {
		vma_buf_put_chain(arena, datagram->packet);
		udp_queue_pop(queue);
	}
	vma_free(queue->head);
	queue->head = queue->tail = NULL;
}

static inline uint64_t udp_queue_datagram_cost(const struct udp_datagram *datagram)
{
	return datagram->len > UDP_BYTES_AT_LEAST ? datagram->len : UDP_BYTES_AT_LEAST;
}

/* ---- producer ---- */

static bool __attribute__((cold, noinline)) queue_count_dropped(struct udp_queue *queue)
{
	atomic_store_explicit(&queue->dropped, atomic_load_explicit(&queue->dropped, memory_order_relaxed) + 1,
	                      memory_order_relaxed);
	return false;
}

/* Whether `bytes` more are too many, by a newer look at what the consumer has taken. */
static bool __attribute__((noinline)) udp_queue_is_full(struct udp_queue *queue, uint64_t bytes, uint64_t limit_bytes)
{
	uint64_t queued;

	queue->cached_popped_bytes = atomic_load_explicit(&queue->popped_bytes, memory_order_relaxed);
	queued = atomic_load_explicit(&queue->pushed_bytes, memory_order_relaxed) - queue->cached_popped_bytes;
	return queued != 0 && queued + bytes > limit_bytes;
}

static bool __attribute__((cold, noinline))
udp_queue_push_new_chunk(struct udp_queue *queue, const struct udp_datagram *datagram)
{
	struct udp_queue_chunk *old = queue->tail, *chunk;
	unsigned size = ck_ring_capacity(&old->ring);

	chunk = udp_queue_chunk_create(size < LARGEST_SIZE ? 2 * size : size);
	if (chunk == NULL)
		return false;
	datagram_ring_push_spsc(chunk, datagram);
	queue->tail = chunk;
	/* Release: the consumer, who gets there by this, finds the datagram. The last touch of old. */
	atomic_store_explicit(&old->next, chunk, memory_order_release);
	return true;
}

bool udp_queue_push(struct udp_queue *queue, const struct udp_datagram *datagram, uint64_t limit_bytes)
{
	uint64_t pushed_bytes = atomic_load_explicit(&queue->pushed_bytes, memory_order_relaxed);
	uint64_t bytes = udp_queue_datagram_cost(datagram);

	if (__builtin_expect(pushed_bytes - queue->cached_popped_bytes + bytes > limit_bytes, 0) &&
	    udp_queue_is_full(queue, bytes, limit_bytes))
		return queue_count_dropped(queue);
	if (__builtin_expect(!datagram_ring_push_spsc(queue->tail, datagram), 0) &&
	    !udp_queue_push_new_chunk(queue, datagram))
		return queue_count_dropped(queue);
	atomic_store_explicit(&queue->pushed_bytes, pushed_bytes + bytes, memory_order_relaxed);
	/* Release: pairs with the acquire of udp_queue_is_empty; see the head of this file. */
	atomic_store_explicit(&queue->pushed, atomic_load_explicit(&queue->pushed, memory_order_relaxed) + 1,
	                      memory_order_release);
	return true;
}

/* ---- consumer ---- */

const struct udp_datagram *udp_queue_front(struct udp_queue *queue)
{
	if (queue->has_front)
		return &queue->front;
	if (udp_queue_is_empty(queue))
		return NULL;
	while (__builtin_expect(!datagram_ring_pop_spsc(queue->head, &queue->front), 0)) {
		struct udp_queue_chunk *old = queue->head;

		queue->head = atomic_load_explicit(&old->next, memory_order_acquire);
		vma_free(old);
	}
	queue->has_front = true;
	return &queue->front;
}

void udp_queue_pop(struct udp_queue *queue)
{
	uint64_t popped_bytes = atomic_load_explicit(&queue->popped_bytes, memory_order_relaxed) +
	                        udp_queue_datagram_cost(&queue->front);

	queue->has_front = false;
	atomic_store_explicit(&queue->popped_bytes, popped_bytes, memory_order_relaxed);
	atomic_store_explicit(&queue->popped, atomic_load_explicit(&queue->popped, memory_order_relaxed) + 1,
	                      memory_order_relaxed);
}
