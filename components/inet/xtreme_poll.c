/*
 * xtreme_poll - socketxtreme_poll: the sources of a ring bit, and the drive of its rings.
 *
 * **No source is forgotten.** The producer queues what there is to tell (A), then exchanges the source's `queued` for
 * true (B), and puts it on the list if it was false. The poller takes the source from the list, exchanges `queued` for
 * false (C), then looks at what is queued (D). B and C change one word, so one comes first. If B does, C reads what B
 * wrote, or what came after it, so A happens before D, which sees it. If C does, B finds false, and the source is on
 * the list again.
 *
 * **A source whose socket has gone** stays on its list until the next poll, and its `file` is NULL by then. Where
 * nobody polls, the list would grow with each socket that is closed: so closing counts, and now and then takes out what
 * is dead.
 */
#include <errno.h>

#include <vma/sock_engine.h>

#include "xtreme_ring.h"

enum { DEAD_XTREME_SOURCES_MAX = 64 };
#define PAGE 4096

struct vma_xtreme_ring *_Atomic xtreme_rings[64];

static struct vma_xtreme_ring *xtreme_ring_get_or_create(unsigned bit)
{
	struct vma_xtreme_ring *ring = xtreme_ring_get_by_bit(bit), *none = NULL;

	if (ring != NULL)
		return ring;
	ring = vma_alloc(sizeof(*ring));
	if (ring == NULL)
		return NULL;
	ring->bit = bit;
	if (atomic_compare_exchange_strong(&xtreme_rings[bit], &none, ring))
		return ring;
	vma_free(ring);
	return none;
}

__attribute__((cold)) void xtreme_rings_clear_in_forked_child(void)
{
	for (unsigned bit = 0; bit < 64; bit++)
		atomic_store(&xtreme_rings[bit], NULL);
}

/* ---- sources ---- */

struct vma_xtreme_source *vma_xtreme_source_create(struct vma_file *file, unsigned bit)
{
	struct vma_xtreme_ring *ring = xtreme_ring_get_or_create(bit);
	struct vma_xtreme_source *source = ring != NULL ? vma_alloc(sizeof(*source)) : NULL;

	if (source == NULL)
		return NULL;
	source->ring = ring;
	atomic_store_explicit(&source->refs, 1, memory_order_relaxed);
	atomic_store_explicit(&source->file, file, memory_order_release);
	return source;
}

void vma_xtreme_source_put(struct vma_xtreme_source *source)
{
	if (source != NULL && atomic_fetch_sub_explicit(&source->refs, 1, memory_order_acq_rel) == 1)
		vma_free(source);
}

void vma_xtreme_queue_source_events(struct vma_xtreme_source *source, uint32_t events)
{
	struct vma_xtreme_ring *ring = source->ring;
	struct vma_xtreme_source *head;

	if (events != 0)
		atomic_fetch_or_explicit(&source->events, events, memory_order_relaxed);
	if (atomic_exchange(&source->queued, true))
		return;
	atomic_fetch_add_explicit(&source->refs, 1, memory_order_relaxed);
	head = atomic_load_explicit(&ring->arrived, memory_order_relaxed);
	do
		source->next = head;
	while (!atomic_compare_exchange_weak_explicit(&ring->arrived, &head, source, memory_order_release,
	                                              memory_order_relaxed));
}

uint32_t vma_xtreme_source_queued_events(const struct vma_xtreme_source *source)
{
	return atomic_load_explicit(&source->events, memory_order_relaxed);
}

/* ---- the list: the poller's ---- */

static bool xtreme_ring_try_claim(struct vma_xtreme_ring *ring)
{
	return !atomic_exchange_explicit(&ring->taking, true, memory_order_acquire);
}

static void xtreme_ring_unclaim(struct vma_xtreme_ring *ring)
{
	atomic_store_explicit(&ring->taking, false, memory_order_release);
}

static void xtreme_source_append(struct vma_xtreme_ring *ring, struct vma_xtreme_source *source)
{
	source->next = NULL;
	if (ring->first == NULL)
		ring->first = source;
	else
		ring->last->next = source;
	ring->last = source;
	ring->n++;
}

/* The stack gives the latest first: turned around, the list goes on in the order of the posts. */
static void __attribute__((noinline)) xtreme_take_posted_sources(struct vma_xtreme_ring *ring)
{
	struct vma_xtreme_source *source = atomic_exchange_explicit(&ring->arrived, NULL, memory_order_acquire);
	struct vma_xtreme_source *turned = NULL, *next;

	for (; source != NULL; source = next) {
		next = source->next;
		source->next = turned;
		turned = source;
	}
	for (; turned != NULL; turned = next) {
		next = turned->next;
		xtreme_source_append(ring, turned);
	}
}

static struct vma_xtreme_source *xtreme_source_pop(struct vma_xtreme_ring *ring)
{
	struct vma_xtreme_source *source = ring->first;

	ring->first = source->next;
	ring->n--;
	return source;
}

static void xtreme_remove_ended_sources(struct vma_xtreme_ring *ring)
{
	atomic_store_explicit(&ring->dead, 0, memory_order_relaxed);
	xtreme_take_posted_sources(ring);
	for (uint32_t n = ring->n; n > 0; n--) {
		struct vma_xtreme_source *source = xtreme_source_pop(ring);

		if (atomic_load_explicit(&source->file, memory_order_relaxed) == NULL)
			vma_xtreme_source_put(source);
		else
			xtreme_source_append(ring, source);
	}
}

void vma_xtreme_source_end(struct vma_xtreme_source *source)
{
	struct vma_xtreme_ring *ring = source->ring;

	atomic_store(&source->file, NULL);
	if (!atomic_exchange(&source->queued, true))
		return; /* it is on no list, and nobody posts it any more */
	if (atomic_fetch_add_explicit(&ring->dead, 1, memory_order_relaxed) < DEAD_XTREME_SOURCES_MAX ||
	    !xtreme_ring_try_claim(ring))
		return;
	xtreme_remove_ended_sources(ring);
	xtreme_ring_unclaim(ring);
}

/* ---- the poll ---- */

/* The application's array, which may be anywhere: at NULL, too. */
static inline uintptr_t xtreme_array_end(const struct vma_xtreme_poll *poll)
{
	return (uintptr_t)poll->first + poll->n * sizeof(*poll->first);
}

static bool xtreme_poll_has_room(const struct vma_xtreme_poll *poll)
{
	return (uintptr_t)poll->at != xtreme_array_end(poll) && !poll->bad;
}

/*
 * A byte of each page is written: what is a completion's later is nobody's now. A thread that polls again with the same
 * array, or less of it, writes into it without a look, as anybody would.
 */
struct vma_completion_t *vma_xtreme_check_array_is_writable(struct vma_xtreme_poll *poll)
{
	struct vma_thread *self = vma_thread_cache;
	const uintptr_t end = xtreme_array_end(poll);
	const char zero = 0;

	if (!xtreme_poll_has_room(poll))
		return NULL;
	poll->bad = end < (uintptr_t)poll->first; /* no array goes around the end of the addresses */
	for (uintptr_t at = (uintptr_t)poll->first; at < end && !poll->bad; at = (at | (PAGE - 1)) + 1)
		poll->bad = vma_memcpy_or_efault((void *)at, &zero, 1) != 0;
	if (poll->bad)
		return NULL;
	poll->end = poll->first + poll->n;
	self->xtreme_array = (uintptr_t)poll->first;
	self->xtreme_array_end = end;
	return poll->at;
}

static inline bool xtreme_array_was_looked_at(const struct vma_thread *self, const struct vma_xtreme_poll *poll)
{
	const uintptr_t end = xtreme_array_end(poll);

	return (uintptr_t)poll->first == self->xtreme_array && end > self->xtreme_array &&
	       end <= self->xtreme_array_end;
}

/* Each source that is on the list now, once. */
static void __attribute__((noinline))
xtreme_poll_collect_events_of_sockets(struct vma_xtreme_poll *poll, struct vma_xtreme_ring *ring)
{
	xtreme_take_posted_sources(ring);
	for (uint32_t n = ring->n; n > 0 && xtreme_poll_has_room(poll); n--) {
		struct vma_xtreme_source *source = xtreme_source_pop(ring);
		struct vma_file *file;
		uint32_t events;
		bool more;

		if (atomic_load(&source->file) == NULL) {
			vma_xtreme_source_put(source);
			continue;
		}
		atomic_exchange(&source->queued, false);
		file = atomic_load(&source->file);
		events = atomic_exchange_explicit(&source->events, 0, memory_order_relaxed);
		more = file != NULL && file->ops->complete(file, poll, &events);
		if (events != 0)
			atomic_fetch_or_explicit(&source->events, events, memory_order_relaxed);
		if (more && !atomic_exchange(&source->queued, true))
			xtreme_source_append(ring, source);
		else
			vma_xtreme_source_put(source);
	}
}

static inline void xtreme_poll_collect_events_if_any(struct vma_xtreme_poll *poll, struct vma_xtreme_ring *ring)
{
	if (ring->first != NULL || atomic_load_explicit(&ring->arrived, memory_order_relaxed) != NULL)
		xtreme_poll_collect_events_of_sockets(poll, ring);
}

static inline void xtreme_poll_ring(struct vma_thread *self, struct vma_xtreme_poll *poll, unsigned bit)
{
	struct vma_xtreme_ring *ring = xtreme_ring_get_by_bit(bit);

	if (__builtin_expect(ring == NULL || !xtreme_ring_try_claim(ring), 0)) {
		poll->has_skipped |= ring != NULL;
		vma_ring_ctxs_progress(1ULL << bit);
		return;
	}
	poll->ring = ring;
	xtreme_poll_collect_events_if_any(poll, ring);
	if (xtreme_poll_has_room(poll)) {
		self->xtreme = poll;
		vma_ring_ctxs_progress(1ULL << bit);
		self->xtreme = NULL;
		xtreme_poll_collect_events_if_any(poll, ring);
	}
	xtreme_ring_unclaim(ring);
}

struct vma_xtreme_poll *vma_xtreme_poll_that_may_take(const struct vma_xtreme_source *source)
{
	struct vma_xtreme_poll *poll = vma_xtreme_poll_of_this_thread();

	if (poll == NULL || poll->ring != source->ring ||
	    atomic_load_explicit(&source->file, memory_order_relaxed) == NULL || atomic_load(&source->queued))
		return NULL;
	return poll;
}

/* `complete` drives no ring for this poll: so it is with sources of the list. */
static bool xtreme_poll_collect_events_of_file(struct vma_thread *self, struct vma_file *file, uint32_t *events)
{
	struct vma_xtreme_poll *poll = self->xtreme;
	bool more;

	self->xtreme = NULL;
	more = file->ops->complete(file, poll, events);
	self->xtreme = poll;
	return more;
}

void vma_xtreme_complete_or_post(struct vma_xtreme_source *source, uint32_t events)
{
	struct vma_thread *self = vma_thread_cache;
	const struct vma_xtreme_poll *poll = self != NULL && !self->gathers ? self->xtreme : NULL;
	struct vma_file *file = atomic_load(&source->file);

	if (poll == NULL || poll->ring != source->ring || file == NULL || !xtreme_poll_has_room(poll) ||
	    atomic_load(&source->queued)) {
		vma_xtreme_queue_source_events(source, events);
		return;
	}
	if (xtreme_poll_collect_events_of_file(self, file, &events) || events != 0)
		vma_xtreme_queue_source_events(source, events);
}

int vma_xtreme_poll_and_note_skips(uint64_t rings, struct vma_completion_t *completions, unsigned n, bool *has_skipped)
{
	struct vma_thread *self = vma_thread_self();
	struct vma_xtreme_poll poll = {.at = completions, .end = completions, .first = completions, .n = n};
	const struct vma_engine *engine = vma_engine_get_or_start();
	static _Atomic unsigned turn; /* of several rings: which is first */
	unsigned from = 0;

	if (engine == NULL)
		return 0;
	poll.arena = engine->arena;
	if (xtreme_array_was_looked_at(self, &poll))
		poll.end = completions + n;
	if (__builtin_expect((rings & (rings - 1)) != 0, 0))
		from = atomic_fetch_add_explicit(&turn, 1, memory_order_relaxed) % 64;
	if (from != 0)
		rings = rings >> from | rings << (64 - from);
	for (; rings != 0 && xtreme_poll_has_room(&poll); rings &= rings - 1)
		xtreme_poll_ring(self, &poll, ((unsigned)__builtin_ctzll(rings) + from) % 64);
	*has_skipped = poll.has_skipped;
	if (poll.at == completions && poll.bad)
		return -EFAULT;
	return (int)(poll.at - completions);
}

int vma_xtreme_poll(uint64_t rings, struct vma_completion_t *completions, unsigned n)
{
	bool has_skipped = false;

	return vma_xtreme_poll_and_note_skips(rings, completions, n, &has_skipped);
}
