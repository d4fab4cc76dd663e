/*
 * legacy.c - fork_queue: datagrams that were queued when the process forked. In the kernel the first reader gets them,
 * parent or child, and so it is here.
 *
 *   fork ── flows given back, queues emptied ──> memory that parent and child share ──> recv, here or there
 *
 * An example is a server of one process per client (socat's UDP-LISTEN with fork). It peeks at the first datagram,
 * forks, and leaves it to the child to read.
 *
 * The shared memory is written before the fork, in order, and only then counted (n, release). A thread that has seen n
 * (acquire) finds what lies below it. After that only `taken` changes: a compare-and-swap decides which thread, of
 * whatever process, has the next one. So nothing is taken twice, and nothing is lost unless its taker dies. Several
 * queues of this kind are a list, the oldest first, since forks may follow each other faster than datagrams are read.
 * The list is changed with file.lock held, and read by any thread that is inside.
 */
#include <string.h>
#include <sys/mman.h>

#include "legacy.h"
#include "recv.h"

struct shared {
	_Atomic uint32_t n, taken;
	struct {
		struct udp_datagram about;
		size_t off; /* of its bytes, from the beginning of all */
	} at[];
};

struct udp_legacy {
	struct vma_retired retired;
	struct udp_legacy *_Atomic next;
	struct shared *shared;
	size_t size, used;
	uint32_t room;
};

/* ---- made ---- */

/* What is queued now, and nothing more comes: how many, and their bytes at most. */
static size_t legacy_queued(const struct udp_attachments *all, size_t *bytes)
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

static struct udp_legacy *legacy_create(size_t n, size_t bytes)
{
	struct udp_legacy *legacy = vma_alloc(sizeof(*legacy));

	if (legacy == NULL)
		return NULL;
	legacy->used = sizeof(struct shared) + n * sizeof(legacy->shared->at[0]);
	legacy->size = legacy->used + bytes;
	legacy->room = (uint32_t)n;
	legacy->shared = mmap(NULL, legacy->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (legacy->shared == MAP_FAILED) {
		vma_free(legacy);
		return NULL;
	}
	return legacy;
}

struct filling {
	struct udp_legacy *legacy;
	bool (*gone)(void *arg, const struct udp_datagram *datagram);
	void *arg;
};

static void legacy_append(void *arg, const struct udp_datagram *datagram)
{
	const struct filling *filling = arg;
	struct udp_legacy *legacy = filling->legacy;
	struct shared *shared = legacy->shared;
	const struct vma_bufarena *arena = vma_engine()->arena;
	uint32_t n = atomic_load_explicit(&shared->n, memory_order_relaxed), off = datagram->packet->payload_off;
	size_t left = datagram->len;

	if (filling->gone != NULL && filling->gone(filling->arg, datagram))
		return;
	/* A group that another socket joins just now may bring this one more than was counted: that is lost. */
	if (n == legacy->room || left > legacy->size - legacy->used)
		return;
	shared->at[n].about = *datagram;
	shared->at[n].about.packet = NULL;
	shared->at[n].off = legacy->used;
	for (const struct vma_buf *buf = datagram->packet; buf != NULL && left > 0; buf = buf->next, off = 0) {
		size_t here = buf->len - off < left ? buf->len - off : left;

		memcpy((uint8_t *)shared + legacy->used, vma_buf_data(arena, buf) + off, here);
		legacy->used += here;
		left -= here;
	}
	atomic_store_explicit(&shared->n, n + 1, memory_order_release);
}

/*
 * In the list before anything is in it: who finds the queues empty looks there once more. Without memory the parent
 * keeps what is queued for itself.
 */
void udp_legacy_make(struct udp_sock *sock, bool (*gone)(void *arg, const struct udp_datagram *datagram), void *arg)
{
	struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_relaxed);
	struct filling filling = {.gone = gone, .arg = arg};
	struct udp_legacy *legacy, *_Atomic *place = &sock->legacy;
	size_t n, bytes;

	udp_legacy_sweep(sock);
	n = all != NULL ? legacy_queued(all, &bytes) : 0;
	legacy = n != 0 ? legacy_create(n, bytes) : NULL;
	if (legacy == NULL)
		return;
	while (atomic_load_explicit(place, memory_order_relaxed) != NULL)
		place = &atomic_load_explicit(place, memory_order_relaxed)->next;
	atomic_store_explicit(place, legacy, memory_order_release);
	filling.legacy = legacy;
	udp_take_all(sock, all, legacy_append, &filling);
	/* The plain way of recv asks here only when there is something to be looked at first. */
	atomic_store_explicit(&sock->os_attention, true, memory_order_release);
	/*
	 * A look at the socket's readiness in between, that found no flow any more and no legacy yet, has said that
	 * nothing is there; nothing would make an epoll set look again. A set that did see it is told twice at most.
	 */
	vma_file_ready(&sock->file, VMA_FILE_READABLE);
}

/* ---- given back ---- */

static void legacy_end(struct vma_retired *retired)
{
	struct udp_legacy *legacy = (struct udp_legacy *)retired;

	munmap(legacy->shared, legacy->size);
	vma_free(legacy);
}
_Static_assert(offsetof(struct udp_legacy, retired) == 0, "legacy_end");

static bool is_left_in(const struct udp_legacy *legacy)
{
	return atomic_load_explicit(&legacy->shared->taken, memory_order_relaxed) <
	       atomic_load_explicit(&legacy->shared->n, memory_order_acquire);
}

void udp_legacy_sweep(struct udp_sock *sock)
{
	struct udp_legacy *first;

	for (;;) {
		first = atomic_load_explicit(&sock->legacy, memory_order_relaxed);
		if (first == NULL || is_left_in(first))
			return;
		atomic_store_explicit(&sock->legacy, atomic_load_explicit(&first->next, memory_order_relaxed),
		                      memory_order_release);
		vma_retire(&first->retired, legacy_end);
	}
}

void udp_legacy_destroy(struct udp_sock *sock)
{
	struct udp_legacy *legacy = atomic_load(&sock->legacy), *next;

	for (; legacy != NULL; legacy = next) {
		next = atomic_load(&legacy->next);
		legacy_end(&legacy->retired);
	}
}

/* ---- read ---- */

bool udp_legacy_is_left(struct udp_legacy *legacy)
{
	for (; legacy != NULL; legacy = atomic_load_explicit(&legacy->next, memory_order_acquire)) {
		if (is_left_in(legacy))
			return true;
	}
	return false;
}

static const uint8_t *legacy_take_from(struct udp_legacy *legacy, bool peek, struct udp_datagram *out)
{
	struct shared *shared = legacy->shared;
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

const uint8_t *udp_legacy_take(struct udp_sock *sock, bool peek, struct udp_datagram *out)
{
	struct udp_legacy *legacy = atomic_load_explicit(&sock->legacy, memory_order_acquire);
	const uint8_t *bytes = NULL;

	for (; bytes == NULL && legacy != NULL; legacy = atomic_load_explicit(&legacy->next, memory_order_acquire))
		bytes = legacy_take_from(legacy, peek, out);
	return bytes;
}
