/*
 * xdp_shared - filling and completing the device queues that several processes share, any of which may be killed
 * between two instructions.
 *
 * The form of the argument, everywhere below: a step is one store, and all stores are release stores, so neither the
 * compiler nor the processor moves one before those that precede it in the program. A process that is killed has done
 * exactly a prefix of its stores, and the owner, which acts after the kernel has told it of the death, sees all of
 * them. So it is enough to look at each prefix. XDP_SHARED_STEP() marks the places between stores where a prefix can
 * end; the test kills at every one of them.
 */
#include <errno.h>

#include "xdp_shared.h"

#ifndef XDP_SHARED_STEP
#define XDP_SHARED_STEP() ((void)0)
#endif

#define load(at) atomic_load_explicit(at, memory_order_acquire)
#define store(at, value) atomic_store_explicit(at, value, memory_order_release)

size_t xdp_shared_bytes(uint32_t nframes)
{
	return nframes <= XDP_FRAMES_MAX ? sizeof(struct xdp_shared) : 0;
}

void xdp_shared_init(struct xdp_shared *shared, uint32_t nframes, uint32_t queues)
{
	shared->nframes = nframes <= XDP_FRAMES_MAX ? nframes : XDP_FRAMES_MAX;
	shared->queues = queues;
	for (uint32_t f = 0; f < shared->nframes; f++)
		store(&shared->holder[f], XDP_HOLDER_OWNER);
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

/* Read once: others may write there, and what was checked must be what is used. */
static inline uint64_t addr_at(const struct xdp_ring *ring, uint32_t index)
{
	return __atomic_load_n(&ring->addrs[index & ring->mask], __ATOMIC_RELAXED);
}

static inline uint64_t frame_of(uint64_t addr)
{
	return addr >> XDP_FRAME_SHIFT; /* RX and completion addresses may point into the frame */
}

/* ---- filling ---- */

/*
 * Prefixes of a fill under the lock, `old` being the ring's producer index:
 *   (a) nothing but ring entries beyond `old`     nobody reads them; the frames are still held by the caller
 *   (b) ... redo = (old, count)                   same, and the entries are complete
 *   (c) ... some holder[] = FILL                  neither held nor visible to the kernel: recovery goes on from (b)
 *   (d) ... producer = old + count                done: the kernel, and whoever polls next, may have the frames already
 *   (e) ... redo = 0                              done
 * Only the lock's holder moves the producer, so recovery tells (b), (c) from (d) by the producer index, and finds the
 * frames of (b), (c) in the ring. holder[] is FILL before the kernel can see the frame: a later hold by whoever
 * receives it is never overwritten by us.
 */
static void publish_fill(struct xdp_driver *driver, uint32_t producer, uint32_t count)
{
	struct xdp_shared *shared = driver->shared;
	struct xdp_shared_fill_side *side = &shared->queue[driver->queue].fill;
	struct xdp_ring *ring = driver->fill;

	XDP_SHARED_STEP();
	store(&side->redo, XDP_REDO(producer, count));
	for (uint32_t i = 0; i < count; i++) {
		const uint64_t f = frame_of(addr_at(ring, producer + i));

		XDP_SHARED_STEP();
		if (f < XDP_FRAMES_MAX)
			store(&shared->holder[f], XDP_HOLDER_FILL);
	}
	XDP_SHARED_STEP();
	store(ring->producer, producer + count);
	XDP_SHARED_STEP();
	store(&side->redo, 0);
}

unsigned xdp_shared_fill(struct xdp_driver *driver, const uint32_t *frames, unsigned n)
{
	struct xdp_shared *shared = driver->shared;
	struct xdp_shared_fill_side *side = &shared->queue[driver->queue].fill;
	struct xdp_ring *ring = driver->fill;
	uint32_t producer, used, count = 0;

	if (n == 0 || !try_lock(&side->lock, driver->self))
		return 0;
	producer = atomic_load_explicit(ring->producer, memory_order_relaxed);
	used = producer - load(ring->consumer);
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
		publish_fill(driver, producer, count);
	XDP_SHARED_STEP();
	store(&side->lock, 0);
	return n;
}

void xdp_shared_hold(struct xdp_driver *driver, uint32_t frame)
{
	if (frame < XDP_FRAMES_MAX)
		store(&driver->shared->holder[frame], driver->self);
}

/* ---- completing ---- */

/*
 * The truth about a TX frame is state[frame]; a hint only says where to look. A hint too many is harmless, because
 * xdp_shared_returned takes COMPLETED frames only. A missing one would lose the frame: so it is given after the state,
 * and where the ring is full, or a dead drainer may not have given it, the slot is told to look everywhere.
 */
static inline void give_hint(struct xdp_shared *shared, uint32_t queue, uint64_t f)
{
	const uint32_t slot = atomic_load_explicit(&shared->route[f], memory_order_relaxed) - 1u;
	struct xdp_shared_hints *hints;
	uint32_t producer;

	if (slot >= XDP_SLOTS_MAX)
		return;
	hints = &shared->hints[slot][queue];
	producer = atomic_load_explicit(&hints->producer, memory_order_relaxed);
	if (producer - load(&hints->consumer) >= XDP_HINTS) {
		store(&shared->slot[slot].rescan, 1);
		return;
	}
	store(&hints->frame[producer % XDP_HINTS], (uint32_t)f);
	XDP_SHARED_STEP();
	store(&hints->producer, producer + 1);
}

static inline bool is_in_flight(uint64_t state, uint32_t queue)
{
	return (state & (XDP_TX_STATE_MASK | XDP_TX_QUEUE_MASK)) ==
	       (XDP_TX_IN_FLIGHT | (uint64_t)queue << XDP_TX_QUEUE_SHIFT);
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
static unsigned drain(struct xdp_driver *driver, struct xdp_shared_comp_side *side)
{
	struct xdp_shared *shared = driver->shared;
	struct xdp_ring *ring = driver->comp;
	const uint32_t consumer = atomic_load_explicit(ring->consumer, memory_order_relaxed);
	const uint32_t n = load(ring->producer) - consumer;
	uint64_t which = 0;

	if (n == 0 || n > ring->size)
		return 0;
	for (uint32_t i = 0; i < n; i++) {
		const uint64_t f = frame_of(addr_at(ring, consumer + i));
		uint64_t state;

		if (f >= XDP_FRAMES_MAX)
			continue;
		state = load(&shared->state[f]);
		if (!is_in_flight(state, driver->queue))
			continue;
		which ^= XDP_POSITION_TAG;
		XDP_SHARED_STEP();
		store(&side->tag[which != 0], state);
		XDP_SHARED_STEP();
		store(&side->position, XDP_POSITION_VALID | which | (uint32_t)(consumer + i));
		XDP_SHARED_STEP();
		store(&shared->state[f], state ^ XDP_TX_IN_FLIGHT ^ XDP_TX_COMPLETED);
		XDP_SHARED_STEP();
		give_hint(shared, driver->queue, f);
	}
	XDP_SHARED_STEP();
	store(ring->consumer, consumer + n);
	XDP_SHARED_STEP();
	store(&side->position, 0);
	return n;
}

unsigned xdp_shared_complete(struct xdp_driver *driver)
{
	struct xdp_shared_comp_side *side = &driver->shared->queue[driver->queue].comp;
	unsigned n;

	/* Mostly there is nothing: then the lock is left alone. */
	if (load(driver->comp->producer) == load(driver->comp->consumer) || !try_lock(&side->lock, driver->self))
		return 0;
	n = drain(driver, side);
	XDP_SHARED_STEP();
	store(&side->lock, 0);
	return n;
}

/* ---- a slot's TX frames ---- */

struct tx_range {
	uint32_t first, end; /* bounded by XDP_FRAMES_MAX whatever the shared memory says */
};

static struct tx_range range_of(const struct xdp_shared *shared, uint32_t slot)
{
	const uint32_t first = atomic_load_explicit(&shared->slot[slot].tx_first, memory_order_relaxed);
	const uint32_t count = atomic_load_explicit(&shared->slot[slot].tx_count, memory_order_relaxed);

	if (first >= XDP_FRAMES_MAX)
		return (struct tx_range){0, 0};
	return (struct tx_range){first, count < XDP_FRAMES_MAX - first ? first + count : XDP_FRAMES_MAX};
}

void xdp_shared_rent(struct xdp_shared *shared, uint32_t slot, uint32_t tx_first, uint32_t tx_count)
{
	struct tx_range range;

	store(&shared->slot[slot].tx_first, tx_first);
	store(&shared->slot[slot].tx_count, tx_count);
	range = range_of(shared, slot);
	for (uint32_t f = range.first; f < range.end; f++) {
		const uint64_t epoch = (load(&shared->state[f]) & XDP_TX_EPOCH_MASK) + XDP_TX_EPOCH_ONE;

		store(&shared->state[f], epoch | XDP_TX_IDLE);
		store(&shared->route[f], (uint8_t)(slot + 1));
	}
}

void xdp_shared_in_flight(struct xdp_shared *shared, uint32_t frame, uint32_t queue, uint32_t tx_index)
{
	uint64_t epoch;

	if (frame >= XDP_FRAMES_MAX)
		return;
	epoch = atomic_load_explicit(&shared->state[frame], memory_order_relaxed) & XDP_TX_EPOCH_MASK;
	store(&shared->state[frame], epoch | XDP_TX_IN_FLIGHT | (uint64_t)queue << XDP_TX_QUEUE_SHIFT | tx_index);
}

static inline bool take(struct xdp_shared *shared, struct tx_range range, uint32_t f)
{
	uint64_t state;

	if (f < range.first || f >= range.end)
		return false;
	state = load(&shared->state[f]);
	if ((state & XDP_TX_STATE_MASK) != XDP_TX_COMPLETED)
		return false;
	store(&shared->state[f], state ^ XDP_TX_COMPLETED ^ XDP_TX_IDLE);
	return true;
}

static unsigned take_hinted(struct xdp_shared *shared, struct tx_range range, uint32_t slot, uint32_t queue,
                            uint32_t *frames, unsigned n)
{
	struct xdp_shared_hints *hints = &shared->hints[slot][queue];
	uint32_t producer = load(&hints->producer);
	uint32_t consumer = atomic_load_explicit(&hints->consumer, memory_order_relaxed);
	unsigned got = 0;

	if (producer == consumer)
		return 0;
	if (producer - consumer > XDP_HINTS) { /* a tenant before us has written nonsense */
		consumer = producer;
		store(&shared->slot[slot].rescan, 1);
	}
	while (consumer != producer && got < n) {
		const uint32_t f = atomic_load_explicit(&hints->frame[consumer++ % XDP_HINTS], memory_order_relaxed);

		if (take(shared, range, f))
			frames[got++] = f;
	}
	store(&hints->consumer, consumer);
	return got;
}

/* The flag is taken by an exchange: it reads the last of those who set it, so the states they wrote before are seen. */
static __attribute__((cold, noinline)) unsigned take_all(struct xdp_shared *shared, struct tx_range range,
                                                         uint32_t slot, uint32_t *frames, unsigned n)
{
	unsigned got = 0;

	atomic_exchange_explicit(&shared->slot[slot].rescan, 0, memory_order_acq_rel);
	for (uint32_t f = range.first; f < range.end; f++) {
		if (got == n) {
			store(&shared->slot[slot].rescan, 1);
			break;
		}
		if (take(shared, range, f))
			frames[got++] = f;
	}
	return got;
}

unsigned xdp_shared_returned(struct xdp_shared *shared, uint32_t slot, uint32_t *frames, unsigned n)
{
	const struct tx_range range = range_of(shared, slot);
	const uint32_t queues = __atomic_load_n(&shared->queues, __ATOMIC_RELAXED);
	unsigned got = 0;

	if (__builtin_expect(atomic_load_explicit(&shared->slot[slot].rescan, memory_order_relaxed) != 0, 0))
		got = take_all(shared, range, slot, frames, n);
	for (uint32_t q = 0; q < queues && q < XDP_QUEUES_MAX && got < n; q++)
		got += take_hinted(shared, range, slot, q, frames + got, n - got);
	return got;
}

uint32_t xdp_shared_in_flight_count(const struct xdp_shared *shared, uint32_t slot)
{
	const struct tx_range range = range_of(shared, slot);
	uint32_t count = 0;

	for (uint32_t f = range.first; f < range.end; f++)
		count += (load(&shared->state[f]) & XDP_TX_STATE_MASK) == XDP_TX_IN_FLIGHT;
	return count;
}

/* ---- the owner, after a client's death ---- */

/* See publish_fill. Ring entries that name a frame which was not the dead client's to fill are left out. */
static void recover_fill(struct xdp_driver *driver, uint16_t dead)
{
	struct xdp_shared *shared = driver->shared;
	struct xdp_shared_fill_side *side = &shared->queue[driver->queue].fill;
	struct xdp_ring *ring = driver->fill;
	const uint64_t redo = load(&side->redo);
	const uint32_t producer = load(ring->producer);
	uint32_t count = (uint32_t)(redo >> 32), kept = 0;

	if (count > ring->size || (uint32_t)redo != producer)
		count = 0;
	for (uint32_t i = 0; i < count; i++) {
		const uint64_t addr = addr_at(ring, producer + i), f = frame_of(addr);
		const uint16_t holder = f < XDP_FRAMES_MAX ? load(&shared->holder[f]) : XDP_HOLDER_NONE;

		if (holder == dead || holder == XDP_HOLDER_FILL)
			ring->addrs[(producer + kept++) & ring->mask] = addr;
	}
	if (kept > 0)
		publish_fill(driver, producer, kept);
	store(&side->redo, 0);
	store(&side->lock, 0);
}

/* See drain. */
static void recover_complete(struct xdp_driver *driver)
{
	struct xdp_shared *shared = driver->shared;
	struct xdp_shared_comp_side *side = &shared->queue[driver->queue].comp;
	struct xdp_ring *ring = driver->comp;
	const uint64_t position = load(&side->position);
	const uint64_t tag = load(&side->tag[(position & XDP_POSITION_TAG) != 0]);
	const uint32_t consumer = load(ring->consumer), n = (uint32_t)position - consumer;

	if ((position & XDP_POSITION_VALID) != 0 && n < ring->size) {
		const uint64_t f = frame_of(addr_at(ring, (uint32_t)position));
		const uint32_t home = f < XDP_FRAMES_MAX ? load(&shared->route[f]) - 1u : XDP_SLOTS_MAX;

		if (f < XDP_FRAMES_MAX && load(&shared->state[f]) == tag && is_in_flight(tag, driver->queue))
			store(&shared->state[f], tag ^ XDP_TX_IN_FLIGHT ^ XDP_TX_COMPLETED);
		if (home < XDP_SLOTS_MAX)
			store(&shared->slot[home].rescan, 1);
		store(ring->consumer, (uint32_t)position + 1);
	}
	store(&side->position, 0);
	store(&side->lock, 0);
}

void xdp_shared_recover(struct xdp_driver *drivers, uint32_t queues, uint32_t slot)
{
	for (uint32_t i = 0; i < queues; i++) {
		struct xdp_shared_queue *queue = &drivers[i].shared->queue[drivers[i].queue];

		if (load(&queue->fill.lock) == slot + 1)
			recover_fill(&drivers[i], (uint16_t)(slot + 1));
		if (load(&queue->comp.lock) == slot + 1)
			recover_complete(&drivers[i]);
	}
}

unsigned xdp_shared_claim_rx(struct xdp_shared *shared, uint32_t slot, struct xdp_ring *rx)
{
	const uint32_t producer = load(rx->producer), consumer = load(rx->consumer);
	unsigned n = producer - consumer;

	if (n > rx->size) /* the client has written nonsense: what lies there cannot be told */
		n = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct xdp_desc *desc = &rx->descs[(consumer + i) & rx->mask];
		const uint64_t f = frame_of(__atomic_load_n(&desc->addr, __ATOMIC_RELAXED));

		/* Held already: it was killed between hold and its consumer index. */
		if (f < XDP_FRAMES_MAX && load(&shared->holder[f]) == XDP_HOLDER_FILL)
			store(&shared->holder[f], (uint16_t)(slot + 1));
	}
	store(rx->consumer, producer);
	return n;
}

void xdp_shared_settle_tx(struct xdp_shared *shared, uint32_t slot, uint32_t queue, uint32_t taken)
{
	const struct tx_range range = range_of(shared, slot);

	for (uint32_t f = range.first; f < range.end; f++) {
		const uint64_t state = load(&shared->state[f]);

		if (is_in_flight(state, queue) && (int32_t)((uint32_t)(state & XDP_TX_INDEX_MASK) - taken) >= 0)
			store(&shared->state[f], (state & XDP_TX_EPOCH_MASK) | XDP_TX_IDLE);
	}
}

unsigned xdp_shared_seize(struct xdp_shared *shared, uint32_t slot, uint32_t *frames, unsigned n)
{
	const uint32_t nframes = __atomic_load_n(&shared->nframes, __ATOMIC_RELAXED);
	unsigned got = 0;

	for (uint32_t f = 0; f < nframes && f < XDP_FRAMES_MAX && got < n; f++) {
		if (load(&shared->holder[f]) != slot + 1)
			continue;
		store(&shared->holder[f], XDP_HOLDER_OWNER);
		frames[got++] = f;
	}
	return got;
}
