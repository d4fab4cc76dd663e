/*
 * shared - filling and completing the device queues that several processes share, any of which may be killed between
 * two instructions.
 *
 * The form of the argument, everywhere below: a step is one store, and all stores are release stores. So neither the
 * compiler nor the processor moves a store before those that precede it in the program. A process that is killed has
 * done exactly a prefix of its stores. The owner acts after the kernel has told it of the death, so it sees all of
 * them. So it is enough to look at each prefix. recover.c says how the owner treats it. XDP_SHARED_STEP() marks the
 * places between stores where a prefix can end; the test kills at every one of them.
 */
#include <errno.h>

#include "shared.h"

size_t xdp_shared_bytes(uint32_t nframes)
{
	return nframes <= XDP_FRAMES_MAX ? sizeof(struct xdp_shared) : 0;
}

void xdp_shared_init(struct xdp_shared *shared, uint32_t nframes, uint32_t queues)
{
	shared->nframes = nframes <= XDP_FRAMES_MAX ? nframes : XDP_FRAMES_MAX;
	shared->queues = queues;
	for (uint32_t f = 0; f < shared->nframes; f++)
		xdp_store(&shared->holder[f], XDP_HOLDER_OWNER);
	shared->version = XDP_SHARED_VERSION;
	shared->magic = XDP_SHARED_MAGIC;
}

int xdp_shared_check(const struct xdp_shared *shared, size_t bytes)
{
	if (bytes < sizeof(*shared) || shared->magic != XDP_SHARED_MAGIC || shared->version != XDP_SHARED_VERSION)
		return -EPROTO;
	if (shared->nframes > XDP_FRAMES_MAX || shared->queues == 0 || shared->queues > XDP_QUEUES_MAX)
		return -EPROTO;
	return 0;
}

static inline bool try_lock(_Atomic uint32_t *lock, uint32_t self)
{
	uint32_t nobody = 0;

	/* Look first: a failing compare-and-swap would take the cache line from the holder. */
	return atomic_load_explicit(lock, memory_order_relaxed) == 0 &&
	       atomic_compare_exchange_strong_explicit(lock, &nobody, self, memory_order_acquire, memory_order_relaxed);
}

/* ---- filling ---- */

/*
 * Prefixes of a fill under the lock, `old` being the ring's producer index:
 *   (a) nothing but ring entries beyond `old`     nobody reads them; the frames are still held by the caller
 *   (b) ... redo = (old, count)                   same, and the entries are complete
 *   (c) ... some holder[] = FILL                  neither held nor visible to the kernel: recovery goes on from (b)
 *   (d) ... producer = old + count                done: the kernel, and whoever polls next, may have the frames already
 *   (e) ... redo = 0                              done; so that no record is believed 2^32 entries later
 * Only the lock's holder moves the producer, so recovery tells (b), (c) from (d) by the producer index, and finds the
 * frames of (b), (c) in the ring. holder[] is FILL before the kernel can see the frame: a later hold by whoever
 * receives it is never overwritten by us.
 */
void xdp_shared_publish_fill_producer(struct xdp_shared_rings_user *driver, uint32_t producer, uint32_t count)
{
	struct xdp_shared *shared = driver->shared;
	struct xdp_shared_fill_side *side = &shared->queue[driver->queue].fill;
	struct xdp_ring *ring = driver->fill;

	XDP_SHARED_STEP();
	xdp_store(&side->redo, XDP_REDO(producer, count));
	for (uint32_t i = 0; i < count; i++) {
		const uint64_t f = xdp_frame_index_of_addr(xdp_addr_at(ring, producer + i));

		XDP_SHARED_STEP();
		if (f < XDP_FRAMES_MAX)
			xdp_store(&shared->holder[f], XDP_HOLDER_FILL);
	}
	XDP_SHARED_STEP();
	xdp_store(ring->producer, producer + count);
	XDP_SHARED_STEP();
	xdp_store(&side->redo, 0);
}

unsigned xdp_shared_put_in_fill_ring(struct xdp_shared_rings_user *driver, const uint32_t *frames, unsigned n)
{
	struct xdp_shared *shared = driver->shared;
	struct xdp_shared_fill_side *side = &shared->queue[driver->queue].fill;
	struct xdp_ring *ring = driver->fill;
	uint32_t producer, used, count = 0;

	if (n == 0 || !try_lock(&side->lock, driver->self))
		return 0;
	producer = atomic_load_explicit(ring->producer, memory_order_relaxed);
	used = producer - xdp_load(ring->consumer);
	if (used > ring->size) /* not the kernel's doing */
		used = ring->size;
	if (n > ring->size - used)
		n = ring->size - used;
	for (unsigned i = 0; i < n; i++) {
		const uint32_t f = frames[i];

		XDP_SHARED_STEP();
		/* A frame that is not the caller's would be in two places. */
		if (f < XDP_FRAMES_MAX &&
		    atomic_load_explicit(&shared->holder[f], memory_order_relaxed) == driver->self)
			ring->addrs[(producer + count++) & ring->mask] = (uint64_t)f << XDP_FRAME_SHIFT;
	}
	if (count > 0)
		xdp_shared_publish_fill_producer(driver, producer, count);
	XDP_SHARED_STEP();
	xdp_store(&side->lock, 0);
	return n;
}

void xdp_shared_set_frame_holder(struct xdp_shared_rings_user *driver, uint32_t frame)
{
	if (frame < XDP_FRAMES_MAX)
		xdp_set_frame_holder(driver->shared, frame, driver->self);
}

/* ---- completing ---- */

/*
 * The truth about a TX frame is state[frame]; a hint only says where to look. A hint too many is harmless, because
 * xdp_shared_take_completed_tx takes COMPLETED frames only. A missing one would lose the frame: so it is given after
 * the state, and where the ring is full, or a dead drainer may not have given it, the slot is told to look everywhere.
 */
static inline void push_completed_frame_hint(struct xdp_shared *shared, uint32_t queue, uint64_t f)
{
	const uint32_t slot = atomic_load_explicit(&shared->route[f], memory_order_relaxed) - 1u;
	struct xdp_completed_frame_hints *hints;
	uint32_t producer;

	if (slot >= XDP_SLOTS_MAX)
		return;
	hints = &shared->hints[slot][queue];
	producer = atomic_load_explicit(&hints->producer, memory_order_relaxed);
	if (producer - xdp_load(&hints->consumer) >= XDP_HINTS) {
		xdp_store(&shared->slot[slot].rescan, 1);
		return;
	}
	xdp_store(&hints->frame[producer % XDP_HINTS], (uint32_t)f);
	XDP_SHARED_STEP();
	xdp_store(&hints->producer, producer + 1);
}

/*
 * Prefixes of a drain under the lock; `c` is the ring's consumer index, which is published once, at the end, so the
 * kernel leaves entries [c, position] alone until then. For each entry i in turn:
 *   (a) tag[t] = state of its frame       t alternates, so the tag of the recorded entry stays valid
 *   (b) position = (i, t)                 entries before i are routed
 *   (c) state = COMPLETED                 from here the frame's slot may take it, and even send it again
 *   (d) the hint: entry, then producer
 * and then
 *   (e) consumer = end of the batch
 *   (f) position = 0
 * Recovery at position (i, t) with i not yet consumed: the frame's state still equals tag[t] exactly in (b), because a
 * frame that was taken and sent again has another (epoch, queue, index); then, and only then, (c) is done now. Hints of
 * [c, i] are set once more, and i + 1 is published as consumer: routed exactly once. With i already consumed it was
 * (e), and nothing is left.
 *
 * An entry that names no frame of ours in flight on this queue is skipped: nobody waits for it.
 */
static unsigned drain_completions(struct xdp_shared_rings_user *driver, struct xdp_shared_comp_side *side)
{
	struct xdp_shared *shared = driver->shared;
	struct xdp_ring *ring = driver->comp;
	const uint32_t consumer = atomic_load_explicit(ring->consumer, memory_order_relaxed);
	const uint32_t n = xdp_load(ring->producer) - consumer;
	uint64_t which = 0;

	if (n == 0 || n > ring->size)
		return 0;
	for (uint32_t i = 0; i < n; i++) {
		const uint64_t f = xdp_frame_index_of_addr(xdp_addr_at(ring, consumer + i));
		uint64_t state;

		if (f >= XDP_FRAMES_MAX)
			continue;
		state = xdp_load(&shared->state[f]);
		if (!xdp_tx_frame_is_in_flight(state, driver->queue))
			continue;
		which ^= XDP_POSITION_TAG;
		XDP_SHARED_STEP();
		xdp_store(&side->tag[which != 0], state);
		XDP_SHARED_STEP();
		xdp_store(&side->position, XDP_POSITION_VALID | which | (uint32_t)(consumer + i));
		XDP_SHARED_STEP();
		xdp_store(&shared->state[f], state ^ XDP_TX_IN_FLIGHT ^ XDP_TX_COMPLETED);
		XDP_SHARED_STEP();
		push_completed_frame_hint(shared, driver->queue, f);
	}
	XDP_SHARED_STEP();
	xdp_store(ring->consumer, consumer + n);
	XDP_SHARED_STEP();
	xdp_store(&side->position, 0);
	return n;
}

unsigned xdp_shared_drain_completion_ring(struct xdp_shared_rings_user *driver)
{
	struct xdp_shared_comp_side *side = &driver->shared->queue[driver->queue].comp;
	unsigned n;

	/* Mostly there is nothing: then the lock is left alone. */
	if (xdp_load(driver->comp->producer) == xdp_load(driver->comp->consumer) ||
	    !try_lock(&side->lock, driver->self))
		return 0;
	n = drain_completions(driver, side);
	XDP_SHARED_STEP();
	xdp_store(&side->lock, 0);
	return n;
}

/* ---- a slot's TX frames ---- */

void xdp_shared_set_tx_range_of_slot(struct xdp_shared *shared, uint32_t slot, uint32_t tx_first, uint32_t tx_count)
{
	struct xdp_tx_range range;

	xdp_store(&shared->slot[slot].tx_first, tx_first);
	xdp_store(&shared->slot[slot].tx_count, tx_count);
	range = xdp_tx_range_of(shared, slot);
	for (uint32_t f = range.first; f < range.end; f++) {
		const uint64_t epoch = (xdp_load(&shared->state[f]) & XDP_TX_EPOCH_MASK) + XDP_TX_EPOCH_ONE;

		xdp_store(&shared->state[f], epoch | XDP_TX_IDLE);
		xdp_store(&shared->route[f], (uint8_t)(slot + 1));
	}
}

void xdp_shared_set_tx_frame_in_flight(struct xdp_shared *shared, uint32_t frame, uint32_t queue, uint32_t tx_index)
{
	if (frame < XDP_FRAMES_MAX)
		xdp_tx_frame_set_in_flight(shared, frame, queue, tx_index);
}

static inline bool take_completed_tx_frame(struct xdp_shared *shared, struct xdp_tx_range range, uint32_t f)
{
	uint64_t state;

	if (f < range.first || f >= range.end)
		return false;
	state = xdp_load(&shared->state[f]);
	if ((state & XDP_TX_STATE_MASK) != XDP_TX_COMPLETED)
		return false;
	xdp_store(&shared->state[f], state ^ XDP_TX_COMPLETED ^ XDP_TX_IDLE);
	return true;
}

static unsigned pop_completed_frame_hints(struct xdp_shared *shared, struct xdp_tx_range range, uint32_t slot,
                                          uint32_t queue, uint32_t *frames, unsigned n)
{
	struct xdp_completed_frame_hints *hints = &shared->hints[slot][queue];
	uint32_t producer = xdp_load(&hints->producer);
	uint32_t consumer = atomic_load_explicit(&hints->consumer, memory_order_relaxed);
	unsigned got = 0;

	if (producer == consumer)
		return 0;
	if (producer - consumer > XDP_HINTS) { /* a tenant before us has written nonsense */
		consumer = producer;
		xdp_store(&shared->slot[slot].rescan, 1);
	}
	while (consumer != producer && got < n) {
		const uint32_t f = atomic_load_explicit(&hints->frame[consumer++ % XDP_HINTS], memory_order_relaxed);

		if (take_completed_tx_frame(shared, range, f))
			frames[got++] = f;
	}
	xdp_store(&hints->consumer, consumer);
	return got;
}

/* The flag is taken by an exchange: it reads the last of those who set it, so the states they wrote before are seen. */
static __attribute__((cold, noinline)) unsigned take_all_completed_tx_frames(struct xdp_shared *shared,
                                                                             struct xdp_tx_range range, uint32_t slot,
                                                                             uint32_t *frames, unsigned n)
{
	unsigned got = 0;

	atomic_exchange_explicit(&shared->slot[slot].rescan, 0, memory_order_acq_rel);
	for (uint32_t f = range.first; f < range.end; f++) {
		if (got == n) {
			xdp_store(&shared->slot[slot].rescan, 1);
			break;
		}
		if (take_completed_tx_frame(shared, range, f))
			frames[got++] = f;
	}
	return got;
}

unsigned xdp_shared_take_completed_tx(struct xdp_shared *shared, uint32_t slot, uint32_t *frames, unsigned n)
{
	const struct xdp_tx_range range = xdp_tx_range_of(shared, slot);
	const uint32_t queues = __atomic_load_n(&shared->queues, __ATOMIC_RELAXED);
	unsigned got = 0;

	if (__builtin_expect(atomic_load_explicit(&shared->slot[slot].rescan, memory_order_relaxed) != 0, 0))
		got = take_all_completed_tx_frames(shared, range, slot, frames, n);
	for (uint32_t q = 0; q < queues && q < XDP_QUEUES_MAX && got < n; q++)
		got += pop_completed_frame_hints(shared, range, slot, q, frames + got, n - got);
	return got;
}

uint32_t xdp_shared_count_in_flight(const struct xdp_shared *shared, uint32_t first, uint32_t count)
{
	uint32_t n = 0;

	for (uint32_t f = first; f < first + count && f < XDP_FRAMES_MAX; f++)
		n += (xdp_load(&shared->state[f]) & XDP_TX_STATE_MASK) == XDP_TX_IN_FLIGHT;
	return n;
}
