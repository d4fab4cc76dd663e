/*
 * recover - the owner's repair of the shared object after a client's death. It finishes or undoes what the client was
 * in the middle of, and finds the frames that the client had. Here is the reading side of the arguments in shared.c.
 *
 * No other process writes the words that are written here. The locks are the dead client's until they are freed at the
 * end, and so are its held and rented frames. The owner goes by its own record of what it has set up. A number that it
 * reads in the object bounds no loop, and is no index without a bound of the program's own.
 */
#include "shared.h"

/*
 * See xdp_shared_publish_fill_producer. Ring entries that name a frame which was not the dead client's to fill are left
 * out. Where it is not known who had the lock (XDP_HOLDER_NONE), frames that are still held stay with who holds them.
 */
static void recover_fill_ring(struct xdp_shared_rings_user *driver, uint16_t dead)
{
	struct xdp_shared *shared = driver->shared;
	struct xdp_shared_fill_side *side = &shared->queue[driver->queue].fill;
	struct xdp_ring *ring = driver->fill;
	const uint64_t redo = xdp_load(&side->redo);
	const uint32_t producer = xdp_load(ring->producer);
	uint32_t count = (uint32_t)(redo >> 32), kept = 0;

	if (count > ring->size || (uint32_t)redo != producer)
		count = 0;
	for (uint32_t i = 0; i < count; i++) {
		const uint64_t addr = xdp_addr_at(ring, producer + i), f = xdp_frame_index_of_addr(addr);
		const uint16_t holder = f < XDP_FRAMES_MAX ? xdp_load(&shared->holder[f]) : XDP_HOLDER_NONE;

		if ((holder == dead && dead != XDP_HOLDER_NONE) || holder == XDP_HOLDER_FILL)
			ring->addrs[(producer + kept++) & ring->mask] = addr;
	}
	if (kept > 0)
		xdp_shared_publish_fill_producer(driver, producer, kept);
	xdp_store(&side->redo, 0);
	xdp_store(&side->lock, 0);
}

/* See drain. */
static void recover_completion_ring(struct xdp_shared_rings_user *driver)
{
	struct xdp_shared *shared = driver->shared;
	struct xdp_shared_comp_side *side = &shared->queue[driver->queue].comp;
	struct xdp_ring *ring = driver->comp;
	const uint64_t position = xdp_load(&side->position);
	const uint64_t tag = xdp_load(&side->tag[(position & XDP_POSITION_TAG) != 0]);
	const uint32_t consumer = xdp_load(ring->consumer), n = (uint32_t)position - consumer;

	if ((position & XDP_POSITION_VALID) != 0 && n < ring->size) {
		const uint64_t f = xdp_frame_index_of_addr(xdp_addr_at(ring, (uint32_t)position));
		const uint32_t home = f < XDP_FRAMES_MAX ? xdp_load(&shared->route[f]) - 1u : XDP_SLOTS_MAX;

		if (f < XDP_FRAMES_MAX && xdp_load(&shared->state[f]) == tag &&
		    xdp_tx_frame_is_in_flight(tag, driver->queue))
			xdp_store(&shared->state[f], tag ^ XDP_TX_IN_FLIGHT ^ XDP_TX_COMPLETED);
		if (home < XDP_SLOTS_MAX)
			xdp_store(&shared->slot[home].rescan, 1);
		xdp_store(ring->consumer, (uint32_t)position + 1);
	}
	xdp_store(&side->position, 0);
	xdp_store(&side->lock, 0);
}

void xdp_shared_release_dead_locks(struct xdp_shared_rings_user *drivers, uint32_t queues, uint32_t slot)
{
	for (uint32_t i = 0; i < queues; i++) {
		struct xdp_shared_queue *queue = &drivers[i].shared->queue[drivers[i].queue];

		if (xdp_load(&queue->fill.lock) == slot + 1)
			recover_fill_ring(&drivers[i], (uint16_t)(slot + 1));
		if (xdp_load(&queue->comp.lock) == slot + 1)
			recover_completion_ring(&drivers[i]);
	}
}

unsigned xdp_shared_hold_frames_in_rx_ring(struct xdp_shared *shared, uint32_t slot, struct xdp_ring *rx)
{
	const uint32_t producer = xdp_load(rx->producer), consumer = xdp_load(rx->consumer);
	unsigned n = producer - consumer;

	if (n > rx->size) /* the client has written nonsense: what lies there cannot be told */
		n = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct xdp_desc *desc = &rx->descs[(consumer + i) & rx->mask];
		const uint64_t f = xdp_frame_index_of_addr(__atomic_load_n(&desc->addr, __ATOMIC_RELAXED));

		/* Held already: it was killed between hold and its consumer index. */
		if (f < XDP_FRAMES_MAX && xdp_load(&shared->holder[f]) == XDP_HOLDER_FILL)
			xdp_store(&shared->holder[f], (uint16_t)(slot + 1));
	}
	xdp_store(rx->consumer, producer);
	return n;
}

bool xdp_shared_break_lock(struct xdp_shared_rings_user *driver, enum xdp_lock_kind which, uint32_t nobody)
{
	struct xdp_shared_queue *queue = &driver->shared->queue[driver->queue];
	_Atomic uint32_t *lock = which == XDP_LOCK_FILL ? &queue->fill.lock : &queue->comp.lock;

	if (!atomic_compare_exchange_strong(lock, &nobody, XDP_HOLDER_OWNER))
		return false;
	if (which == XDP_LOCK_FILL)
		recover_fill_ring(driver, XDP_HOLDER_NONE);
	else
		recover_completion_ring(driver);
	return true;
}

void xdp_shared_reset_unsent_tx_frames(struct xdp_shared *shared, uint32_t first, uint32_t count, uint32_t queue,
                                       uint32_t taken)
{
	for (uint32_t f = first; f < first + count && f < XDP_FRAMES_MAX; f++) {
		const uint64_t state = xdp_load(&shared->state[f]);

		if (xdp_tx_frame_is_in_flight(state, queue) &&
		    (int32_t)((uint32_t)(state & XDP_TX_INDEX_MASK) - taken) >= 0)
			xdp_store(&shared->state[f], (state & XDP_TX_EPOCH_MASK) | XDP_TX_IDLE);
	}
}

uint32_t xdp_shared_count_frames_held_by_slot(const struct xdp_shared *shared, uint32_t slot, uint32_t end)
{
	uint32_t n = 0;

	for (uint32_t f = 0; f < end && f < XDP_FRAMES_MAX; f++)
		n += xdp_load(&shared->holder[f]) == slot + 1;
	return n;
}

unsigned xdp_shared_take_frames_of_slot(struct xdp_shared *shared, uint32_t slot, uint32_t *at, uint32_t end,
                                        uint32_t *frames, unsigned n)
{
	unsigned got = 0;

	for (; *at < end && *at < XDP_FRAMES_MAX && got < n; ++*at) {
		if (xdp_load(&shared->holder[*at]) != slot + 1)
			continue;
		xdp_store(&shared->holder[*at], XDP_HOLDER_OWNER);
		frames[got++] = *at;
	}
	return got;
}
