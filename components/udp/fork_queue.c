/*
 * fork_queue.c - the fork queue: datagrams that were queued when the process forked. In the kernel the first reader
 * gets them, parent or child, and so it is here.
 *
 *   fork ── flows given back, queues emptied ──> memory that parent and child share ──> recv, here or there
 *
 * An example is a server of one process per client (socat's UDP-LISTEN with fork). It peeks at the first datagram,
 * forks, and leaves it to the child to read.
 *
 * The shared memory is written before the fork, in order, and only then counted (n, release). A thread that has seen n
 * (acquire) finds what lies below it. After that only `taken` changes: a compare-and-swap decides which thread, of any
 * of the processes, has the next one. So nothing is taken twice, and nothing is lost unless its taker dies. Several
 * queues of this kind are a list, the oldest first, since forks may follow each other faster than datagrams are read.
 * The list is changed with file.lock held, and read by any thread that is inside.
 */
#include <string.h>
#include <sys/mman.h>

#include "fork_queue.h"
#include "recv.h"

struct shared {
	_Atomic uint32_t n, taken;
	struct {
		struct udp_datagram about;
		size_t off; /* of its bytes, from the beginning of all */
	} at[];
};

struct udp_fork_queue {
	struct vma_retired retired;
	struct udp_fork_queue *_Atomic next;
	struct shared *shared;
	size_t size, used;
	uint32_t capacity;
};

/* ---- made ---- */

/* What is queued now, and nothing more comes: how many, and their bytes at most. */
static size_t count_queued_datagrams_of_attachments(const struct udp_attachments *all, size_t *bytes)
{
	size_t n = 0;

	*bytes = 0;
	for (uint32_t i = 0; i < all->n; i++) {
		const struct udp_queue *queue = &all->at[i]->queue;

		n += atomic_load_explicit(&queue->pushed, memory_order_acquire) -
		     atomic_load_explicit(&queue->popped, memory_order_relaxed);
		*bytes += atomic_load_explicit(&queue->pushed_bytes, memory_order_relaxed) -
		          atomic_load_explicit(&queue->popped_bytes, memory_order_relaxed);
	}
	return n;
}

static struct udp_fork_queue *fork_queue_create(size_t n, size_t bytes)
{
	struct udp_fork_queue *fork_queue = vma_alloc(sizeof(*fork_queue));

	if (fork_queue == NULL)
		return NULL;
	fork_queue->used = sizeof(struct shared) + n * sizeof(fork_queue->shared->at[0]);
	fork_queue->size = fork_queue->used + bytes;
	fork_queue->capacity = (uint32_t)n;
	fork_queue->shared = mmap(NULL, fork_queue->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (fork_queue->shared == MAP_FAILED) {
		vma_free(fork_queue);
		return NULL;
	}
	return fork_queue;
}

struct fork_queue_fill_state {
	struct udp_fork_queue *fork_queue;
	bool (*on_taken)(void *arg, const struct udp_datagram *datagram);
	void *arg;
};

static void fork_queue_append(void *arg, const struct udp_datagram *datagram)
{
	const struct fork_queue_fill_state *fork_queue_fill_state = arg;
	struct udp_fork_queue *fork_queue = fork_queue_fill_state->fork_queue;
	struct shared *shared = fork_queue->shared;
	const struct vma_bufarena *arena = vma_engine_get_or_start()->arena;
	uint32_t n = atomic_load_explicit(&shared->n, memory_order_relaxed), off = datagram->packet->payload_off;
	size_t left = datagram->len;

	if (fork_queue_fill_state->on_taken != NULL &&
	    fork_queue_fill_state->on_taken(fork_queue_fill_state->arg, datagram))
		return;
	/* A group that another socket joins just now may bring this one more than was counted: that is lost. */
	if (n == fork_queue->capacity || left > fork_queue->size - fork_queue->used)
		return;
	shared->at[n].about = *datagram;
	shared->at[n].about.packet = NULL;
	shared->at[n].off = fork_queue->used;
	for (const struct vma_buf *buf = datagram->packet; buf != NULL && left > 0; buf = buf->next, off = 0) {
		size_t here = buf->len - off < left ? buf->len - off : left;

		memcpy((uint8_t *)shared + fork_queue->used, vma_buf_data(arena, buf) + off, here);
		fork_queue->used += here;
		left -= here;
	}
	atomic_store_explicit(&shared->n, n + 1, memory_order_release);
}

/*
 * In the list before anything is in it: who finds the queues empty looks there once more. Without memory the parent
 * keeps what is queued for itself.
 */
void udp_fork_queue_create_from_received(struct udp_sock *sock,
                                         bool (*on_taken)(void *arg, const struct udp_datagram *datagram), void *arg)
{
	struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_relaxed);
	struct fork_queue_fill_state fork_queue_fill_state = {.on_taken = on_taken, .arg = arg};
	struct udp_fork_queue *fork_queue, *_Atomic *place = &sock->fork_queue;
	size_t n, bytes;

	udp_fork_queue_free_emptied(sock);
	n = all != NULL ? count_queued_datagrams_of_attachments(all, &bytes) : 0;
	fork_queue = n != 0 ? fork_queue_create(n, bytes) : NULL;
	if (fork_queue == NULL)
		return;
	while (atomic_load_explicit(place, memory_order_relaxed) != NULL)
		place = &atomic_load_explicit(place, memory_order_relaxed)->next;
	atomic_store_explicit(place, fork_queue, memory_order_release);
	fork_queue_fill_state.fork_queue = fork_queue;
	udp_drain_queues_calling_each(sock, all, fork_queue_append, &fork_queue_fill_state);
	/* The plain way of recv asks here only when there is something to be looked at first. */
	atomic_store_explicit(&sock->os_attention, true, memory_order_release);
	/*
	 * A look at the socket's readiness in between, that found no flow any more and no fork queue yet, has said that
	 * nothing is there; nothing would make an epoll set look again. A set that did see it is told twice at most.
	 */
	vma_file_wake_sleepers_and_watchers(&sock->file, VMA_FILE_READABLE);
}

/* ---- given back ---- */

static void fork_queue_free_retired(struct vma_retired *retired)
{
	struct udp_fork_queue *fork_queue = (struct udp_fork_queue *)retired;

	munmap(fork_queue->shared, fork_queue->size);
	vma_free(fork_queue);
}
_Static_assert(offsetof(struct udp_fork_queue, retired) == 0, "fork_queue_end");

static bool fork_queue_has_items(const struct udp_fork_queue *fork_queue)
{
	return atomic_load_explicit(&fork_queue->shared->taken, memory_order_relaxed) <
	       atomic_load_explicit(&fork_queue->shared->n, memory_order_acquire);
}

void udp_fork_queue_free_emptied(struct udp_sock *sock)
{
	struct udp_fork_queue *first;

	for (;;) {
		first = atomic_load_explicit(&sock->fork_queue, memory_order_relaxed);
		if (first == NULL || fork_queue_has_items(first))
			return;
		atomic_store_explicit(&sock->fork_queue, atomic_load_explicit(&first->next, memory_order_relaxed),
		                      memory_order_release);
		vma_defer_free_until_no_readers(&first->retired, fork_queue_free_retired);
	}
}

void udp_fork_queue_destroy(struct udp_sock *sock)
{
	struct udp_fork_queue *fork_queue = atomic_load(&sock->fork_queue), *next;

	for (; fork_queue != NULL; fork_queue = next) {
		next = atomic_load(&fork_queue->next);
		fork_queue_free_retired(&fork_queue->retired);
	}
}

/* ---- read ---- */

bool udp_fork_queue_has_items(struct udp_fork_queue *fork_queue)
{
	for (; fork_queue != NULL; fork_queue = atomic_load_explicit(&fork_queue->next, memory_order_acquire)) {
		if (fork_queue_has_items(fork_queue))
			return true;
	}
	return false;
}

static const uint8_t *fork_queue_take_from(struct udp_fork_queue *fork_queue, bool peek, struct udp_datagram *out)
{
	struct shared *shared = fork_queue->shared;
	uint32_t n = atomic_load_explicit(&shared->n, memory_order_acquire);
	uint32_t i = atomic_load_explicit(&shared->taken, memory_order_relaxed);

	/* A failed exchange has read who is the next one now. */
	while (i < n) {
		if (peek || atomic_compare_exchange_weak_explicit(&shared->taken, &i, i + 1, memory_order_relaxed,
		                                                  memory_order_relaxed)) {
			*out = shared->at[i].about;
			return (const uint8_t *)shared + shared->at[i].off;
		}
	}
	return NULL;
}

const uint8_t *udp_fork_queue_take(struct udp_sock *sock, bool peek, struct udp_datagram *out)
{
	struct udp_fork_queue *fork_queue = atomic_load_explicit(&sock->fork_queue, memory_order_acquire);
	const uint8_t *bytes = NULL;

	for (; bytes == NULL && fork_queue != NULL;
	     fork_queue = atomic_load_explicit(&fork_queue->next, memory_order_acquire))
		bytes = fork_queue_take_from(fork_queue, peek, out);
	return bytes;
}
