/*
 * xtreme - the table of buffers that SocketXtreme gives out, and the accounts of sockets.
 *
 * A place's `word` is a count of uses and, in the lower half, the references that the application has; 0: the place is
 * free. A place is filled while its word says free, by the one thread that polls its ring bit. Each change of the word
 * is a compare-and-swap from the very word that was seen. So of two threads that free the last reference one succeeds,
 * and what was read of a place between the look and the swap is of this use.
 *
 * A free place returns to the ring bit that made it, on a stack that any thread pushes to. The poller takes the whole
 * stack, so no place is popped from under it. It comes to places that were just freed last.
 *
 * An account's `bytes` has OPEN in it while its socket may give something out, and what is out besides. Who takes the
 * last of both away ends it; after that nobody adds to it, since adding is a compare-and-swap that sees OPEN.
 */
#include <errno.h>
#include <sys/mman.h>

#include <vma/sock_engine.h>

#include "xtreme_ring.h"

#define PLACES_MAX (1U << 20)
#define RUN 64U /* places that a ring bit gets at a time */
#define OPEN (1ULL << 62)
#define NSEC 1000000000
enum { PACKET_COST_MIN = 64 };

struct place {
	struct vma_buff_t buff; /* the application's to read, and not read here */
	_Atomic uint64_t word;
	struct vma_buf *buf;
	struct vma_xtreme_account *account;
	uint64_t connection;
	_Atomic uint32_t next; /* of the packet, or of the stack: its index and 1 */
	uint32_t bytes;
};
_Static_assert(sizeof(struct place) == 64, "a cache line; the alignment that pointers are checked for");

struct vma_xtreme_account {
	struct vma_retired retired;
	_Atomic uint64_t bytes;
	struct vma_file *file; /* held; NULL: nobody wants to know */
	vma_xtreme_bytes_returned_fn returned;
};

static struct place *_Atomic table;
static _Atomic uint32_t places;                         /* of runs that were given to ring bits */
static uint8_t ring_bit_of_place_run[PLACES_MAX / RUN]; /* the ring bit of each run */
static struct vma_bufarena *_Atomic xtreme_table_arena; /* whose frames they are */

/* ---- accounts ---- */

static void xtreme_account_free(struct vma_retired *retired)
{
	vma_free(retired);
}
_Static_assert(offsetof(struct vma_xtreme_account, retired) == 0, "account_free");

/* A poller may have found it just now. */
static void __attribute__((cold, noinline)) xtreme_account_retire(struct vma_xtreme_account *account)
{
	if (account->file != NULL)
		vma_file_put(account->file);
	vma_defer_free_until_no_readers(&account->retired, xtreme_account_free);
}

static inline void xtreme_account_uncharge(struct vma_xtreme_account *account, uint64_t bytes)
{
	if (__builtin_expect(atomic_fetch_sub_explicit(&account->bytes, bytes, memory_order_acq_rel) == bytes, 0))
		xtreme_account_retire(account);
}

static inline bool xtreme_account_charge(struct vma_xtreme_account *account, uint64_t bytes, uint64_t limit)
{
	uint64_t before = atomic_load_explicit(&account->bytes, memory_order_relaxed), held;

	do {
		held = before & ~OPEN;
		if (__builtin_expect(held == before || (held != 0 && held + bytes > limit), 0))
			return false;
	} while (!atomic_compare_exchange_weak_explicit(&account->bytes, &before, before + bytes, memory_order_relaxed,
	                                                memory_order_relaxed));
	return true;
}

static struct vma_xtreme_account *xtreme_account_create(struct vma_file *file, vma_xtreme_bytes_returned_fn returned)
{
	struct vma_xtreme_account *account = vma_alloc(sizeof(*account));

	if (account == NULL)
		return NULL;
	atomic_store_explicit(&account->bytes, OPEN, memory_order_relaxed);
	if (returned == NULL)
		return account;
	account->returned = returned;
	account->file = file;
	vma_file_get(file);
	return account;
}

struct vma_xtreme *vma_xtreme_create(struct vma_file *file, vma_xtreme_bytes_returned_fn returned)
{
	struct vma_xtreme *xtreme = vma_alloc(sizeof(*xtreme));

	if (xtreme == NULL)
		return NULL;
	xtreme->file = file;
	atomic_store(&xtreme->account, xtreme_account_create(file, returned));
	if (atomic_load(&xtreme->account) != NULL)
		return xtreme;
	vma_free(xtreme);
	return NULL;
}

void vma_xtreme_close(struct vma_xtreme *xtreme)
{
	struct vma_xtreme_account *account = atomic_exchange(&xtreme->account, NULL);

	if (account != NULL)
		xtreme_account_uncharge(account, OPEN);
}

void vma_xtreme_destroy(struct vma_xtreme *xtreme)
{
	if (xtreme == NULL)
		return;
	vma_xtreme_close(xtreme);
	vma_free(xtreme);
}

/* The parent's places, which lead to the account, are not reached here. */
void vma_xtreme_reset_account_in_fork_child(struct vma_xtreme *xtreme)
{
	struct vma_xtreme_account *account = xtreme != NULL ? atomic_load(&xtreme->account) : NULL;

	if (account != NULL)
		atomic_store(&account->bytes, OPEN);
}

uint64_t vma_xtreme_held_bytes(const struct vma_xtreme *xtreme)
{
	const struct vma_xtreme_account *account = atomic_load_explicit(&xtreme->account, memory_order_acquire);

	return account != NULL ? atomic_load_explicit(&account->bytes, memory_order_relaxed) & ~OPEN : 0;
}

/* ---- places ---- */

static struct place *xtreme_place_table_find_or_map(void)
{
	struct place *map = atomic_load_explicit(&table, memory_order_acquire), *none = NULL;

	if (map != NULL)
		return map;
	map = mmap(NULL, PLACES_MAX * sizeof(*map), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
	           -1, 0);
	if (map == MAP_FAILED)
		return NULL;
	atomic_store_explicit(&xtreme_table_arena, vma_engine_get_or_start()->arena, memory_order_relaxed);
	if (atomic_compare_exchange_strong(&table, &none, map))
		return map;
	munmap(map, PLACES_MAX * sizeof(*map));
	return none;
}

/* The poller of the ring bit. What has come back, or a run that is new; 0: there is none. */
static uint32_t __attribute__((noinline)) xtreme_spare_places_refill(struct vma_xtreme_ring *ring)
{
	uint32_t first = atomic_exchange_explicit(&ring->returned, 0, memory_order_acquire);
	struct place *map;

	if (first != 0)
		return first;
	map = xtreme_place_table_find_or_map();
	first = atomic_load(&places);
	do {
		if (map == NULL || first == PLACES_MAX)
			return 0;
	} while (!atomic_compare_exchange_weak(&places, &first, first + RUN));
	ring_bit_of_place_run[first / RUN] = (uint8_t)ring->bit;
	for (uint32_t i = 0; i < RUN; i++)
		atomic_store_explicit(&map[first + i].next, i + 1 < RUN ? first + i + 2 : 0, memory_order_relaxed);
	return first + 1;
}

/* The poller of the ring bit, which has a spare one. */
static inline struct place *xtreme_place_take_spare(struct vma_xtreme_ring *ring)
{
	struct place *place = atomic_load_explicit(&table, memory_order_relaxed) + ring->spare - 1;

	ring->spare = atomic_load_explicit(&place->next, memory_order_relaxed);
	return place;
}

/* The poller of the ring bit. NULL: there is none. */
static inline struct place *xtreme_place_take(struct vma_xtreme_ring *ring)
{
	if (__builtin_expect(ring->spare == 0, 0)) {
		ring->spare = xtreme_spare_places_refill(ring);
		if (ring->spare == 0)
			return NULL;
	}
	return xtreme_place_take_spare(ring);
}

static inline void xtreme_place_give_back(struct place *place)
{
	const uint32_t index = (uint32_t)(place - atomic_load_explicit(&table, memory_order_relaxed));
	struct vma_xtreme_ring *ring = xtreme_ring_get_by_bit(ring_bit_of_place_run[index / RUN]);
	uint32_t head = atomic_load_explicit(&ring->returned, memory_order_relaxed);

	do
		atomic_store_explicit(&place->next, head, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(&ring->returned, &head, index + 1, memory_order_release,
	                                              memory_order_relaxed));
}

/* Filled, and the application's with one reference; so far it has had none. */
static inline void xtreme_place_hand_to_app_with_one_ref(struct place *place)
{
	const uint64_t word = atomic_load_explicit(&place->word, memory_order_relaxed);

	atomic_store_explicit(&place->word, word + (1ULL << 32) + 1, memory_order_release);
}

/* ---- giving ---- */

static inline void xtreme_place_fill(struct place *place, const struct vma_bufarena *arena,
                                     struct vma_xtreme_account *account, const struct vma_fragment *fragment,
                                     uint32_t bytes, uint64_t connection)
{
	place->buff.next = NULL;
	place->buff.payload = vma_buf_data(arena, fragment->buf) + fragment->off;
	place->buff.len = (uint16_t)fragment->len;
	place->buf = fragment->buf;
	place->account = account;
	place->connection = connection;
	place->bytes = bytes;
}

/* All but the first of a packet, which costs the bytes that they have. NULL: no memory. */
static struct place *__attribute__((noinline))
xtreme_fill_further_places(struct vma_xtreme_ring *ring, struct vma_xtreme_account *account,
                           const struct vma_xtreme_packet *packet)
{
	const struct vma_bufarena *arena = vma_engine_get_or_start()->arena;
	struct place *map = xtreme_place_table_find_or_map(), *first = NULL, *place;

	for (unsigned i = packet->n; i-- > 1;) {
		place = xtreme_place_take(ring);
		if (place == NULL)
			break;
		xtreme_place_fill(place, arena, account, &packet->fragments[i], packet->fragments[i].len + 1,
		                  packet->connection);
		place->buff.next = first != NULL ? &first->buff : NULL;
		atomic_store_explicit(&place->next, first != NULL ? (uint32_t)(first - map) + 1 : 0,
		                      memory_order_relaxed);
		first = place;
		if (i == 1)
			return first;
	}
	while (first != NULL) {
		const uint32_t next = atomic_load_explicit(&first->next, memory_order_relaxed);

		xtreme_place_give_back(first);
		first = next != 0 ? &map[next - 1] : NULL;
	}
	return NULL;
}

static void xtreme_places_hand_chain_to_app(struct place *place)
{
	struct place *map = atomic_load_explicit(&table, memory_order_relaxed);

	for (;;) {
		const uint32_t next = atomic_load_explicit(&place->next, memory_order_relaxed);

		xtreme_place_hand_to_app_with_one_ref(place);
		if (next == 0)
			return;
		place = &map[next - 1];
	}
}

static inline void xtreme_set_hw_timestamp(struct vma_packet_desc_t *packet, uint64_t ns)
{
	packet->hw_timestamp.tv_sec = 0;
	packet->hw_timestamp.tv_nsec = 0;
	if (__builtin_expect(ns != 0, 0)) {
		packet->hw_timestamp.tv_sec = (time_t)(ns / NSEC);
		packet->hw_timestamp.tv_nsec = (long)(ns % NSEC);
	}
}

/*
 * The first one, and the chain behind it; NULL: the account is full, or no memory. Each buffer of a chain costs a byte
 * more than it has: an account lives as long as something is charged to it, and a buffer may be empty.
 */
static inline struct place *xtreme_charge_and_fill_packet_places(struct vma_xtreme_ring *ring,
                                                                 struct vma_xtreme_account *account,
                                                                 const struct vma_xtreme_packet *packet)
{
	const struct vma_bufarena *arena = vma_engine_get_or_start()->arena;
	const uint32_t cost = packet->cost + (packet->n > 1 ? packet->n : 0);
	struct place *place, *more = NULL;

	if (!xtreme_account_charge(account, cost, packet->limit))
		return NULL;
	place = xtreme_place_take(ring);
	if (__builtin_expect(packet->n > 1, 0) && place != NULL) {
		more = xtreme_fill_further_places(ring, account, packet);
		if (more == NULL) {
			xtreme_place_give_back(place);
			place = NULL;
		}
	}
	if (__builtin_expect(place == NULL, 0)) {
		xtreme_account_uncharge(account, cost);
		return NULL;
	}
	xtreme_place_fill(place, arena, account, &packet->fragments[0],
	                  packet->n == 1 ? cost : packet->cost - (packet->len - packet->fragments[0].len) + 1,
	                  packet->connection);
	if (__builtin_expect(more == NULL, 1)) {
		atomic_store_explicit(&place->next, 0, memory_order_relaxed);
		xtreme_place_hand_to_app_with_one_ref(place);
		return place;
	}
	place->buff.next = &more->buff;
	atomic_store_explicit(&place->next, (uint32_t)(more - atomic_load_explicit(&table, memory_order_relaxed)) + 1,
	                      memory_order_relaxed);
	xtreme_places_hand_chain_to_app(place);
	return place;
}

enum vma_xtreme_given vma_xtreme_poll_add_packet_completion(struct vma_xtreme_poll *poll, struct vma_xtreme *xtreme,
                                                            const struct vma_xtreme_packet *packet)
{
	struct vma_completion_t *to = vma_xtreme_next_completion(poll);
	struct vma_xtreme_account *account;
	struct place *place;

	if (to == NULL)
		return VMA_XTREME_NO_ROOM;
	account = atomic_load_explicit(&xtreme->account, memory_order_acquire);
	place = account != NULL ? xtreme_charge_and_fill_packet_places(poll->ring, account, packet) : NULL;
	if (__builtin_expect(place == NULL, 0))
		return VMA_XTREME_REFUSED;
	to->packet.num_bufs = packet->n;
	to->packet.total_len = (uint16_t)packet->len;
	to->packet.buff_lst = &place->buff;
	xtreme_set_hw_timestamp(&to->packet, packet->stamp_ns);
	to->events = VMA_SOCKETXTREME_PACKET | packet->events;
	to->user_data = vma_xtreme_user_data(xtreme);
	to->src = (struct sockaddr_in){
	        .sin_family = AF_INET, .sin_port = packet->src_port_be, .sin_addr.s_addr = packet->src};
	to->listen_fd = 0;
	poll->at = to + 1;
	return VMA_XTREME_GIVEN;
}

static inline uint32_t xtreme_datagram_cost(uint32_t len)
{
	return len > PACKET_COST_MIN ? len : PACKET_COST_MIN;
}

static inline uint64_t xtreme_train_cost(struct vma_buf *const *bufs, unsigned n)
{
	uint64_t cost = 0;

	for (unsigned i = 0; i < n; i++)
		cost += xtreme_datagram_cost(bufs[i]->payload_len);
	return cost;
}

static enum vma_xtreme_given __attribute__((cold, noinline))
xtreme_poll_add_datagram_as_packet(struct vma_xtreme_poll *poll, struct vma_xtreme *xtreme, struct vma_buf *buf,
                                   uint64_t limit, uint32_t src, uint16_t src_port_be)
{
	const struct vma_fragment fragment = {.buf = buf, .off = buf->payload_off, .len = buf->payload_len};
	const struct vma_xtreme_packet packet = {
	        .fragments = &fragment,
	        .n = 1,
	        .len = fragment.len,
	        .cost = xtreme_datagram_cost(buf->payload_len),
	        .limit = limit,
	        .stamp_ns = buf->flags & VMA_BUF_RX_HW_TIMESTAMP ? buf->timestamp_ns : 0,
	        .src = src,
	        .src_port_be = src_port_be,
	};

	return vma_xtreme_poll_add_packet_completion(poll, xtreme, &packet);
}

/* The usual case again, if all that it lacked was a look at the application's array, or places. */
static enum vma_xtreme_given __attribute__((noinline))
xtreme_poll_add_datagram_slow(struct vma_xtreme_poll *poll, struct vma_xtreme *xtreme, struct vma_buf *buf,
                              uint64_t limit, uint32_t src, uint16_t src_port_be)
{
	const bool lacked = poll->at == poll->end || poll->ring->spare == 0;

	if (vma_xtreme_next_completion(poll) == NULL)
		return VMA_XTREME_NO_ROOM;
	if (poll->ring->spare == 0)
		poll->ring->spare = xtreme_spare_places_refill(poll->ring);
	return lacked && poll->ring->spare != 0
	               ? vma_xtreme_poll_add_datagram(poll, xtreme, buf, limit, src, src_port_be)
	               : xtreme_poll_add_datagram_as_packet(poll, xtreme, buf, limit, src, src_port_be);
}

/* A datagram of one buffer, which the account has been charged for. */
static inline void xtreme_complete_datagram(struct vma_completion_t *to, struct place *place,
                                            const struct vma_bufarena *arena, struct vma_xtreme_account *account,
                                            struct vma_buf *buf, uint64_t user_data, const struct sockaddr_in *src)
{
	const uint16_t len = buf->payload_len, flags = buf->flags;

	place->buff.next = NULL;
	place->buff.payload = vma_buf_data(arena, buf) + buf->payload_off;
	place->buff.len = len;
	place->buf = buf;
	place->account = account;
	place->bytes = xtreme_datagram_cost(len);
	atomic_store_explicit(&place->next, 0, memory_order_relaxed);
	xtreme_place_hand_to_app_with_one_ref(place);
	to->packet.num_bufs = 1;
	to->packet.total_len = len;
	to->packet.buff_lst = &place->buff;
	xtreme_set_hw_timestamp(&to->packet,
	                        __builtin_expect(flags & VMA_BUF_RX_HW_TIMESTAMP, 0) ? buf->timestamp_ns : 0);
	to->events = VMA_SOCKETXTREME_PACKET;
	to->user_data = user_data;
	to->src = *src;
	to->listen_fd = 0;
}

/* The usual case is a leaf: all else goes the slow way before anything has changed. */
enum vma_xtreme_given vma_xtreme_poll_add_datagram(struct vma_xtreme_poll *poll, struct vma_xtreme *xtreme,
                                                   struct vma_buf *buf, uint64_t limit, uint32_t src,
                                                   uint16_t src_port_be)
{
	struct vma_completion_t *to = poll->at;
	struct vma_xtreme_ring *ring = poll->ring;
	struct vma_xtreme_account *account = atomic_load_explicit(&xtreme->account, memory_order_acquire);
	const struct sockaddr_in from = {.sin_family = AF_INET, .sin_port = src_port_be, .sin_addr.s_addr = src};
	const uint32_t cost = xtreme_datagram_cost(buf->payload_len);
	uint64_t before;

	if (__builtin_expect(to == poll->end || ring->spare == 0 || account == NULL, 0))
		return xtreme_poll_add_datagram_slow(poll, xtreme, buf, limit, src, src_port_be);
	before = atomic_load_explicit(&account->bytes, memory_order_relaxed);
	if (__builtin_expect(before - OPEN + cost > limit || !atomic_compare_exchange_strong_explicit(
	                                                             &account->bytes, &before, before + cost,
	                                                             memory_order_relaxed, memory_order_relaxed),
	                     0))
		return xtreme_poll_add_datagram_slow(poll, xtreme, buf, limit, src, src_port_be);
	xtreme_complete_datagram(to, xtreme_place_take_spare(ring), poll->arena, account, buf,
	                         vma_xtreme_user_data(xtreme), &from);
	poll->at = to + 1;
	return VMA_XTREME_GIVEN;
}

/* All of them, or nothing: who may have a part of them is given one after the other. */
static bool xtreme_account_charge_train(struct vma_xtreme_account *account, uint64_t cost, uint64_t limit)
{
	uint64_t before = atomic_load_explicit(&account->bytes, memory_order_relaxed);

	do {
		if (before - OPEN + cost > limit)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(&account->bytes, &before, before + cost, memory_order_relaxed,
	                                                memory_order_relaxed));
	return true;
}

unsigned vma_xtreme_poll_add_datagram_train(struct vma_xtreme_poll *poll, struct vma_xtreme *xtreme,
                                            struct vma_buf *const *bufs, unsigned n, uint64_t limit,
                                            const struct sockaddr_in *src)
{
	struct vma_completion_t *to = vma_xtreme_next_completion(poll);
	struct vma_xtreme_account *account = atomic_load_explicit(&xtreme->account, memory_order_acquire);
	const uint64_t user_data = vma_xtreme_user_data(xtreme);
	const struct vma_bufarena *arena = poll->arena;
	struct vma_xtreme_ring *ring = poll->ring;
	struct place *map = xtreme_place_table_find_or_map();
	uint32_t spare = ring->spare;
	unsigned given;

	if (to == NULL || account == NULL || map == NULL)
		return 0;
	if (n > (size_t)(poll->end - to))
		n = (unsigned)(poll->end - to);
	if (!xtreme_account_charge_train(account, xtreme_train_cost(bufs, n), limit))
		return 0;
	for (given = 0; given < n; given++, to++) {
		struct place *place;

		if (__builtin_expect(spare == 0, 0)) {
			spare = xtreme_spare_places_refill(ring);
			if (spare == 0)
				break;
		}
		place = &map[spare - 1];
		spare = atomic_load_explicit(&place->next, memory_order_relaxed);
		xtreme_complete_datagram(to, place, arena, account, bufs[given], user_data, src);
	}
	ring->spare = spare;
	if (__builtin_expect(given < n, 0))
		xtreme_account_uncharge(account, xtreme_train_cost(bufs + given, n - given));
	poll->at = to;
	return given;
}

bool vma_xtreme_poll_add_event_completion(struct vma_xtreme_poll *poll, const struct vma_xtreme *xtreme,
                                          uint64_t events, const struct sockaddr_in *src, int listen_fd)
{
	struct vma_completion_t *to = vma_xtreme_next_completion(poll);

	if (to == NULL)
		return false;
	*to = (struct vma_completion_t){
	        .events = events, .user_data = vma_xtreme_user_data(xtreme), .listen_fd = listen_fd};
	if (src != NULL)
		to->src = *src;
	poll->at = to + 1;
	return true;
}

/* ---- giving back ---- */

/* NULL: the pointer is none of the table's. Nothing is read at it before that is known. */
static inline struct place *xtreme_place_of_buff(struct place *map, uint32_t n, const struct vma_buff_t *buff)
{
	const uintptr_t off = (uintptr_t)buff - (uintptr_t)map;

	/* What is not aligned comes out as beyond all places: the low bits go to the top. */
	if (__builtin_expect((off >> 6 | off << 58) >= n, 0))
		return NULL;
	return (struct place *)((char *)map + off);
}
_Static_assert(sizeof(struct place) == 1 << 6, "place_in");

/* The number first: where there are places, their table is seen. */
static struct place *xtreme_live_place_of_buff(const struct vma_buff_t *buff)
{
	const uint32_t n = atomic_load_explicit(&places, memory_order_acquire);

	return xtreme_place_of_buff(atomic_load_explicit(&table, memory_order_acquire), n, buff);
}

/*
 * What is freed in a row: buffers are put together, places of one home go back with one push, and bytes of one account
 * are subtracted once.
 */
enum { NO_RING_BIT = 64, FREEING_BUFS = 32, FREE_BATCH = 16 };
struct freeing {
	struct place *map;
	uint32_t n_places;
	struct vma_xtreme_account *account;
	bool tells; /* its `returned` */
	uint64_t bytes;
	uint32_t first; /* of the places, all of one home: index and 1; 0: none */
	struct place *last;
	unsigned home; /* ring bit; NO_RING_BIT: none so far */
	unsigned n;
	struct vma_buf *bufs[FREEING_BUFS];
};

static void freeing_flush_places(struct freeing *freeing)
{
	struct vma_xtreme_ring *home;
	uint32_t head;

	if (freeing->first == 0)
		return;
	home = xtreme_ring_get_by_bit(freeing->home);
	head = atomic_load_explicit(&home->returned, memory_order_relaxed);
	do
		atomic_store_explicit(&freeing->last->next, head, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(&home->returned, &head, freeing->first, memory_order_release,
	                                              memory_order_relaxed));
	freeing->first = 0;
}

static void freeing_flush_account(struct freeing *freeing)
{
	if (freeing->account != NULL)
		xtreme_account_uncharge(freeing->account, freeing->bytes);
	freeing->account = NULL;
	freeing->bytes = 0;
}

static void freeing_flush_bufs(struct freeing *freeing)
{
	if (freeing->n != 0)
		vma_buf_put_burst(atomic_load_explicit(&xtreme_table_arena, memory_order_relaxed), freeing->bufs,
		                  freeing->n);
	freeing->n = 0;
}

static void xtreme_free_batch_flush(struct freeing *freeing)
{
	freeing_flush_bufs(freeing);
	freeing_flush_places(freeing);
	freeing_flush_account(freeing);
}

static inline void xtreme_free_batch_begin(struct freeing *freeing)
{
	freeing->n_places =
	        atomic_load_explicit(&places, memory_order_acquire); /* first: see xtreme_live_place_of_buff */
	freeing->map = atomic_load_explicit(&table, memory_order_acquire);
	freeing->account = NULL;
	freeing->tells = false;
	freeing->bytes = 0;
	freeing->first = 0;
	freeing->home = NO_RING_BIT;
	freeing->n = 0;
}

static void __attribute__((noinline)) xtreme_notify_bytes_returned(const struct place *place)
{
	place->account->returned(place->account->file, place->connection, place->bytes);
}

/* The last reference has gone: nobody else looks at the place. */
static inline void xtreme_place_free(struct freeing *freeing, struct place *place)
{
	const uint32_t index = (uint32_t)(((uintptr_t)place - (uintptr_t)freeing->map) / sizeof(*place));
	const unsigned home = ring_bit_of_place_run[index / RUN];
	struct vma_xtreme_account *account = place->account;

	if (__builtin_expect(account != freeing->account, 0)) {
		freeing_flush_account(freeing);
		freeing->account = account;
		freeing->tells = account->returned != NULL;
	}
	freeing->bytes += place->bytes;
	if (__builtin_expect(freeing->tells, 0))
		xtreme_notify_bytes_returned(place);
	if (__builtin_expect(home != freeing->home, 0)) {
		freeing_flush_places(freeing);
		freeing->home = home;
		freeing->last = place;
	}
	freeing->bufs[freeing->n++] = place->buf;
	atomic_store_explicit(&place->next, freeing->first, memory_order_relaxed);
	freeing->first = index + 1;
	if (__builtin_expect(freeing->n == FREEING_BUFS, 0))
		freeing_flush_bufs(freeing);
}

/* The count after it. *next: of the packet, or 0. */
static inline int xtreme_place_put(struct freeing *freeing, struct place *place, uint32_t *next)
{
	uint64_t word = atomic_load_explicit(&place->word, memory_order_acquire);

	do {
		if (__builtin_expect((uint32_t)word == 0, 0))
			return -ENOENT;
		*next = atomic_load_explicit(&place->next, memory_order_relaxed);
	} while (!atomic_compare_exchange_weak_explicit(&place->word, &word, word - 1, memory_order_acq_rel,
	                                                memory_order_acquire));
	if (__builtin_expect((uint32_t)word == 1, 1))
		xtreme_place_free(freeing, place);
	return (int)((uint32_t)word - 1);
}

static inline int xtreme_free_packet(struct freeing *freeing, const struct vma_buff_t *buff)
{
	struct place *place = xtreme_place_of_buff(freeing->map, freeing->n_places, buff);
	uint32_t next;
	int rc;

	if (__builtin_expect(place == NULL, 0))
		return -EINVAL;
	while ((rc = xtreme_place_put(freeing, place, &next)) >= 0 && next != 0)
		place = freeing->map + next - 1;
	return rc < 0 ? rc : 0;
}

/* Afterwards there is room for a batch, which xtreme_free_single_buf_packets does not look for. */
static int __attribute__((noinline)) xtreme_free_packet_slow(struct freeing *freeing, const struct vma_buff_t *buff)
{
	const int rc = xtreme_free_packet(freeing, buff);

	if (freeing->n > FREEING_BUFS - FREE_BATCH)
		freeing_flush_bufs(freeing);
	return rc;
}

/*
 * The usual packets, from the first on: of one buffer each, its last reference, of the account and home of the one
 * before. Returns how many; of the next nothing has been done. As in xtreme_place_put, what is read before the word
 * changes is of this use. At most FREE_BATCH.
 */
static inline int xtreme_free_single_buf_packets(struct freeing *freeing, const struct vma_packet_desc_t *packets,
                                                 int n)
{
	struct place *const map = freeing->map;
	const uintptr_t n_places = freeing->n_places;
	const struct vma_xtreme_account *account = freeing->account;
	const unsigned home = freeing->home;
	struct vma_buf **bufs = &freeing->bufs[freeing->n];
	uint32_t first = freeing->first;
	uint64_t bytes = 0;
	int i;

	for (i = 0; i < n; i++) {
		const uintptr_t off = (uintptr_t)packets[i].buff_lst - (uintptr_t)map, index = off >> 6 | off << 58;
		struct place *place = (struct place *)((uintptr_t)map + off);
		uint64_t word;

		if (__builtin_expect(index >= n_places, 0)) /* see xtreme_place_of_buff */
			break;
		word = atomic_load_explicit(&place->word, memory_order_acquire);
		if (__builtin_expect((uint32_t)word != 1, 0) ||
		    __builtin_expect(atomic_load_explicit(&place->next, memory_order_relaxed) != 0, 0) ||
		    __builtin_expect(place->account != account, 0) ||
		    __builtin_expect(ring_bit_of_place_run[index / RUN] != home, 0) ||
		    __builtin_expect(!atomic_compare_exchange_strong_explicit(
		                             &place->word, &word, word - 1, memory_order_acq_rel, memory_order_relaxed),
		                     0))
			break;
		bytes += place->bytes;
		bufs[i] = place->buf;
		atomic_store_explicit(&place->next, first, memory_order_relaxed);
		first = (uint32_t)index + 1;
	}
	freeing->bytes += bytes;
	freeing->first = first;
	freeing->n += (unsigned)i;
	return i;
}

/* At most FREE_BATCH. */
static int xtreme_free_batch(struct freeing *freeing, const struct vma_packet_desc_t *packets, int n)
{
	int rc = 0, i = 0;

	if (freeing->n > FREEING_BUFS - FREE_BATCH)
		freeing_flush_bufs(freeing);
	while (i < n && rc == 0) {
		if (!freeing->tells)
			i += xtreme_free_single_buf_packets(freeing, packets + i, n - i);
		if (i < n)
			rc = xtreme_free_packet_slow(freeing, packets[i++].buff_lst);
	}
	return rc;
}

/* The last reference has gone, and the packet has no other buffer. */
static inline void xtreme_place_free_alone(struct place *place)
{
	struct vma_xtreme_account *account = place->account;
	const uint32_t bytes = place->bytes;

	if (account->returned != NULL)
		xtreme_notify_bytes_returned(place);
	vma_buf_put(atomic_load_explicit(&xtreme_table_arena, memory_order_relaxed), place->buf);
	xtreme_place_give_back(place);
	xtreme_account_uncharge(account, bytes);
}

/* The usual one: of one buffer, its last reference. False: it is another, and nothing was done. */
static inline bool xtreme_free_usual_packet(const struct vma_buff_t *buff)
{
	struct place *place = xtreme_live_place_of_buff(buff);
	uint64_t word;

	if (__builtin_expect(place == NULL, 0))
		return false;
	word = atomic_load_explicit(&place->word, memory_order_acquire);
	/* What is read before the word changes is of this use, as in xtreme_place_put. */
	if (__builtin_expect((uint32_t)word != 1, 0) ||
	    __builtin_expect(atomic_load_explicit(&place->next, memory_order_relaxed) != 0, 0) ||
	    __builtin_expect(!atomic_compare_exchange_strong_explicit(&place->word, &word, word - 1,
	                                                              memory_order_acq_rel, memory_order_relaxed),
	                     0))
		return false;
	xtreme_place_free_alone(place);
	return true;
}

static int __attribute__((noinline)) xtreme_free_packets_in_batches(const struct vma_packet_desc_t *packets, int n)
{
	struct vma_packet_desc_t own[FREE_BATCH];
	struct freeing freeing;
	int rc = n < 0 ? -EINVAL : 0;

	xtreme_free_batch_begin(&freeing);
	while (n > 0 && rc == 0) {
		const int here = n < FREE_BATCH ? n : FREE_BATCH;

		rc = vma_memcpy_or_efault(own, packets, (size_t)here * sizeof(own[0]));
		if (rc == 0)
			rc = xtreme_free_batch(&freeing, own, here);
		packets += here;
		n -= here;
	}
	xtreme_free_batch_flush(&freeing);
	return rc;
}

int vma_xtreme_free_packets(const struct vma_packet_desc_t *packets, int n)
{
	const struct vma_buff_t *buff;

	if (n != 1)
		return xtreme_free_packets_in_batches(packets, n);
	if (__builtin_expect(vma_memcpy_or_efault(&buff, &packets->buff_lst, sizeof(buff)) != 0, 0))
		return -EFAULT;
	return __builtin_expect(xtreme_free_usual_packet(buff), 1) ? 0 : xtreme_free_packets_in_batches(packets, 1);
}

int vma_xtreme_ref(const struct vma_buff_t *buff)
{
	struct place *place = xtreme_live_place_of_buff(buff);
	uint64_t word;

	if (place == NULL)
		return -EINVAL;
	word = atomic_load_explicit(&place->word, memory_order_relaxed);
	do {
		if ((uint32_t)word == 0)
			return -ENOENT;
		if ((uint32_t)word == INT32_MAX)
			return -EOVERFLOW;
	} while (!atomic_compare_exchange_weak_explicit(&place->word, &word, word + 1, memory_order_relaxed,
	                                                memory_order_relaxed));
	return (int)((uint32_t)word + 1);
}

int vma_xtreme_free_buff(const struct vma_buff_t *buff)
{
	struct place *place = xtreme_live_place_of_buff(buff);
	struct freeing freeing;
	uint32_t next;
	int rc;

	if (place == NULL)
		return -EINVAL;
	xtreme_free_batch_begin(&freeing);
	rc = xtreme_place_put(&freeing, place, &next);
	xtreme_free_batch_flush(&freeing);
	return rc;
}

/* The parent's table stays mapped: the program may still read what it was given. */
__attribute__((cold)) void vma_xtreme_drop_tables_in_fork_child(void)
{
	atomic_store(&table, NULL);
	atomic_store(&places, 0);
	xtreme_rings_clear_in_forked_child();
}
