/*
 * held - the table of packets that the application holds.
 *
 * A place's `word` is the number of times that it was taken or given back: odd, it is taken. The identifier of a packet
 * is the word that its place has meanwhile, and the place's index. The thread that frees a packet turns that very word
 * into the next one by a compare-and-swap. So of two threads only one succeeds, and an old identifier finds another
 * word. A place's fields about its packet are written while the word is even, and read before the swap. If the swap
 * succeeds, the word was the same all the time, and so were the fields.
 *
 * A place's holder is read before the swap. It may belong to a packet, the last of a closed socket, that another thread
 * frees at this moment. The file was alive when the word was read, since the packet held it; the reader is inside, so
 * its memory lives on.
 */
#include <errno.h>
#include <string.h>

#include <vma/inet_held.h>
#include <vma/sock_engine.h>

enum {
	FIRST = 64, /* places of the first chunk; each next one has twice as many */
	CHUNKS = 16,
	INDEX_BITS = 24,
	FRAGMENTS_IN_PLACE = 3,
};
#define PLACES_MAX (FIRST * ((1U << CHUNKS) - 1))
_Static_assert(PLACES_MAX < 1U << INDEX_BITS, "an index and 1 fit");
#define WORD_MASK ((1ULL << (64 - INDEX_BITS)) - 1)

struct place {
	_Atomic uint64_t word;
	struct vma_held_packets_owner *_Atomic holder;
	struct vma_engine *engine;
	_Atomic int fd;
	_Atomic uint32_t next; /* free places: the next one's index and 1 */
	uint32_t bytes, n;
	uint64_t connection;
	struct vma_buf *bufs[FRAGMENTS_IN_PLACE];
	struct vma_buf **more; /* more fragments than fit: all of them */
};

static struct place *_Atomic chunks[CHUNKS];
static _Atomic uint32_t places;              /* that exist */
static _Atomic uint64_t held_free_list_head; /* a count of changes, and the first one's index and 1 */

/* ---- places ---- */

static unsigned held_chunk_of_index(uint32_t index, uint32_t *within)
{
	const uint32_t n = index / FIRST + 1;
	const unsigned chunk = 31U - (unsigned)__builtin_clz(n);

	*within = index - FIRST * ((1U << chunk) - 1);
	return chunk;
}

static struct place *held_place_at(uint32_t index)
{
	uint32_t within;
	const unsigned chunk = held_chunk_of_index(index, &within);

	return &atomic_load_explicit(&chunks[chunk], memory_order_acquire)[within];
}

/* NULL: there is no such place. */
static struct place *held_place_of_id(uint64_t id)
{
	const uint32_t index = (uint32_t)(id & ((1U << INDEX_BITS) - 1));

	return index == 0 || index > atomic_load_explicit(&places, memory_order_acquire) ? NULL
	                                                                                 : held_place_at(index - 1);
}

/* The count makes a place that was taken and is back another head than it was. */
static bool held_place_pop_free(uint32_t *index)
{
	uint64_t head = atomic_load_explicit(&held_free_list_head, memory_order_acquire), next;

	do {
		if ((uint32_t)head == 0)
			return false;
		*index = (uint32_t)head - 1;
		next = atomic_load_explicit(&held_place_at(*index)->next, memory_order_relaxed);
	} while (!atomic_compare_exchange_weak_explicit(&held_free_list_head, &head, ((head >> 32) + 1) << 32 | next,
	                                                memory_order_acq_rel, memory_order_acquire));
	return true;
}

static void held_place_push_free(uint32_t index)
{
	uint64_t head = atomic_load_explicit(&held_free_list_head, memory_order_relaxed);

	do
		atomic_store_explicit(&held_place_at(index)->next, (uint32_t)head, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(&held_free_list_head, &head,
	                                              ((head >> 32) + 1) << 32 | (index + 1), memory_order_acq_rel,
	                                              memory_order_relaxed));
}

static bool held_chunk_ensure(unsigned chunk)
{
	struct place *fresh, *none = NULL;

	if (atomic_load_explicit(&chunks[chunk], memory_order_acquire) != NULL)
		return true;
	fresh = vma_alloc(((size_t)FIRST << chunk) * sizeof(*fresh));
	if (fresh == NULL)
		return false;
	if (!atomic_compare_exchange_strong(&chunks[chunk], &none, fresh))
		vma_free(fresh);
	return true;
}

static bool held_place_create(uint32_t *index)
{
	uint32_t n = atomic_load_explicit(&places, memory_order_acquire), within;

	do {
		if (n == PLACES_MAX || !held_chunk_ensure(held_chunk_of_index(n, &within)))
			return false;
	} while (!atomic_compare_exchange_weak(&places, &n, n + 1));
	*index = n;
	return true;
}

/* ---- accounts ---- */

static bool held_account_try_charge(struct vma_held_packets_owner *holder, uint32_t bytes, uint64_t limit)
{
	const uint64_t before = atomic_fetch_add_explicit(&holder->bytes, bytes, memory_order_relaxed);

	if (before == 0 || before + bytes <= limit)
		return true;
	atomic_fetch_sub_explicit(&holder->bytes, bytes, memory_order_relaxed);
	return false;
}

static void held_account_uncharge(struct vma_held_packets_owner *holder, uint32_t bytes)
{
	atomic_fetch_sub_explicit(&holder->bytes, bytes, memory_order_relaxed);
	atomic_fetch_sub_explicit(&holder->packets, 1, memory_order_relaxed);
}

/* ---- packets ---- */

static bool held_place_fill(struct place *place, const struct vma_fragment *fragments, unsigned n)
{
	struct vma_buf **bufs = place->bufs;

	if (n > FRAGMENTS_IN_PLACE) {
		bufs = place->more = vma_alloc(n * sizeof(*bufs));
		if (bufs == NULL)
			return false;
	}
	for (unsigned i = 0; i < n; i++)
		bufs[i] = fragments[i].buf;
	place->n = n;
	return true;
}

static void held_place_release(struct place *place, uint32_t index)
{
	vma_free(place->more);
	place->more = NULL;
	held_place_push_free(index);
}

int vma_held_packet_add(struct vma_held_packets_owner *holder, int fd, const struct vma_fragment *fragments, unsigned n,
                        uint32_t bytes, uint64_t limit, uint64_t connection, uint64_t *id)
{
	struct place *place;
	uint32_t index;
	uint64_t word;

	if (!held_account_try_charge(holder, bytes, limit))
		return -ENOBUFS;
	if (!held_place_pop_free(&index) && !held_place_create(&index)) {
		atomic_fetch_sub_explicit(&holder->bytes, bytes, memory_order_relaxed);
		return -ENOMEM;
	}
	place = held_place_at(index);
	if (!held_place_fill(place, fragments, n)) {
		held_place_release(place, index);
		atomic_fetch_sub_explicit(&holder->bytes, bytes, memory_order_relaxed);
		return -ENOMEM;
	}
	atomic_fetch_add_explicit(&holder->packets, 1, memory_order_relaxed);
	vma_file_get(holder->file);
	place->bytes = bytes;
	place->connection = connection;
	place->engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);
	atomic_store_explicit(&place->holder, holder, memory_order_relaxed);
	atomic_store_explicit(&place->fd, fd, memory_order_relaxed);
	word = atomic_load_explicit(&place->word, memory_order_relaxed) + 1;
	atomic_store_explicit(&place->word, word, memory_order_release);
	*id = (word & WORD_MASK) << INDEX_BITS | (index + 1);
	return 0;
}

/* The word that the place has while this packet is held; false: it is not held. */
static bool held_place_get_word_if_id_is_held(const struct place *place, uint64_t id, uint64_t *word)
{
	*word = atomic_load_explicit(&place->word, memory_order_acquire);
	return (*word & 1) != 0 && (*word & WORD_MASK) == id >> INDEX_BITS;
}

static bool held_place_claim(struct place *place, uint64_t word)
{
	return atomic_compare_exchange_strong_explicit(&place->word, &word, word + 1, memory_order_acq_rel,
	                                               memory_order_relaxed);
}

static uint32_t held_index_of_id(uint64_t id)
{
	return (uint32_t)(id & ((1U << INDEX_BITS) - 1)) - 1;
}

/* False: a parent's. */
static bool held_place_is_of_this_process(const struct place *place)
{
	return place->engine == atomic_load_explicit(&vma_engine_now, memory_order_acquire);
}

bool vma_held_packet_undo_add(struct vma_held_packets_owner *holder, uint64_t id)
{
	struct place *place = held_place_of_id(id);
	uint64_t word;
	bool mine;

	if (place == NULL || !held_place_get_word_if_id_is_held(place, id, &word) || !held_place_claim(place, word))
		return false;
	mine = held_place_is_of_this_process(place);
	if (mine)
		held_account_uncharge(holder, place->bytes);
	held_place_release(place, held_index_of_id(id));
	vma_file_put(holder->file);
	return mine;
}

/* The file that number fd has now, or a closed one that had it. */
static bool holder_may_free_held_packet(const struct vma_file *file, int fd,
                                        const struct vma_held_packets_owner *holder, int held_fd)
{
	return holder->file == file || (held_fd == fd && vma_file_is_closed(holder->file));
}

int vma_held_packet_free(const struct vma_file *file, int fd, uint64_t id)
{
	struct place *place = held_place_of_id(id);
	struct vma_held_packets_owner *holder;
	uint64_t word, connection;
	uint32_t bytes;
	bool mine;

	if (place == NULL || !held_place_get_word_if_id_is_held(place, id, &word))
		return -ENOENT;
	holder = atomic_load_explicit(&place->holder, memory_order_relaxed);
	if (!holder_may_free_held_packet(file, fd, holder, atomic_load_explicit(&place->fd, memory_order_relaxed)) ||
	    !held_place_claim(place, word))
		return -ENOENT;
	mine = held_place_is_of_this_process(place);
	bytes = place->bytes;
	connection = place->connection;
	if (mine) {
		vma_buf_put_burst(place->engine->arena, place->n > FRAGMENTS_IN_PLACE ? place->more : place->bufs,
		                  place->n);
		held_account_uncharge(holder, bytes);
	}
	held_place_release(place, held_index_of_id(id));
	if (mine && holder->returned != NULL)
		holder->returned(holder, connection, bytes);
	vma_file_put(holder->file);
	return mine ? 0 : -ENOENT;
}
