/*
 * xdp_fixture - a device of two queues in plain shared memory: a fake kernel, the owner's recovery, and clients that
 * poll, fill, send and reap at random. Used by threads, by processes that get killed, and step by step.
 *
 * Every promise is checked where it would be broken: model[f] says which client has frame f, by compare-and-swap, so a
 * frame that is delivered twice is seen at once; the fake kernel knows what it has and complains about a frame that is
 * sent or filled twice. Complaints count in `errors`, with a text for the first.
 *
 * All indices start just below the wrap of 32 bits.
 */
#ifndef VMA_XDP_FIXTURE_H
#define VMA_XDP_FIXTURE_H

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "../xdp/shared.h"

#ifndef XDP_SHARED_STEP
#define XDP_SHARED_STEP() ((void)0)
#endif

#define W_QUEUES 2
#define W_SLOTS 4
#define W_RX_FRAMES 192 /* all of them fit in the fill rings */
#define W_TX_FRAMES 24  /* of a slot */
#define W_FRAMES (W_RX_FRAMES + W_SLOTS * W_TX_FRAMES)
#define W_FILL 128
#define W_COMP 32 /* fewer than may be in flight */
#define W_RX 32
#define W_TX 16
#define W_START (UINT32_MAX - 9)

struct fixture_ring {
	_Atomic uint32_t producer, consumer, flags;
	_Alignas(64) struct xdp_desc entries[W_FILL]; /* or addresses */
};

struct fixture_kernel {
	uint64_t seed;
	uint8_t has[W_FRAMES];             /* RX or TX frame is inside the kernel */
	uint64_t sent[W_QUEUES][W_FRAMES]; /* waiting for their completion */
	uint32_t sent_count[W_QUEUES];
};

struct fixture {
	struct xdp_shared shared;
	struct fixture_ring fill[W_QUEUES], comp[W_QUEUES], rx[W_SLOTS][W_QUEUES], tx[W_SLOTS][W_QUEUES];
	_Atomic uint32_t model[W_FRAMES];
	_Atomic bool live[W_SLOTS], stop, kernel_stop;
	_Atomic uint32_t kernel_rounds, errors;
	_Atomic uint64_t received, sent, recoveries, locks_freed;
	char complaint[128];
	struct fixture_kernel kernel;
	uint32_t owner_frames[W_RX_FRAMES], owner_count;
};

static inline void complain(struct fixture *fixture, const char *text, uint32_t frame, uint32_t who)
{
	if (atomic_fetch_add(&fixture->errors, 1) == 0)
		snprintf(fixture->complaint, sizeof(fixture->complaint), "%s: frame %u, slot %u", text, frame, who);
}

static inline uint32_t xdp_fixture_random_below(uint64_t *seed, uint32_t below)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return (uint32_t)(*seed >> 33) % below;
}

static inline struct xdp_ring xdp_ring_in_memory(struct fixture_ring *memory, uint32_t size)
{
	return (struct xdp_ring){
	        .producer = &memory->producer,
	        .consumer = &memory->consumer,
	        .flags = &memory->flags,
	        .descs = memory->entries,
	        .size = size,
	        .mask = size - 1,
	};
}

static inline uint32_t ring_used_entries(const struct xdp_ring *ring)
{
	return atomic_load_explicit(ring->producer, memory_order_acquire) -
	       atomic_load_explicit(ring->consumer, memory_order_acquire);
}

static inline void ring_reset(struct fixture_ring *memory)
{
	memory->producer = memory->consumer = W_START;
}

/* ---- the fake kernel ---- */

static inline void fake_kernel_receive(struct fixture *fixture, uint32_t queue)
{
	struct xdp_ring fill = xdp_ring_in_memory(&fixture->fill[queue], W_FILL), rx;
	uint32_t slot = xdp_fixture_random_below(&fixture->kernel.seed, W_SLOTS), consumer = *fill.consumer, producer;
	uint64_t addr, frame;

	rx = xdp_ring_in_memory(&fixture->rx[slot][queue], W_RX);
	if (!fixture->live[slot] || ring_used_entries(&fill) == 0 || ring_used_entries(&rx) == W_RX)
		return;
	addr = fill.addrs[consumer & fill.mask];
	frame = addr >> XDP_FRAME_SHIFT;
	if (frame >= W_RX_FRAMES) {
		complain(fixture, "filled what is no RX frame", (uint32_t)frame, slot);
		return;
	}
	if (fixture->shared.holder[frame] != XDP_HOLDER_FILL || fixture->model[frame] != 0)
		complain(fixture, "filled while somebody has it", (uint32_t)frame, fixture->model[frame]);
	atomic_store_explicit(fill.consumer, consumer + 1, memory_order_release);
	producer = *rx.producer;
	rx.descs[producer & rx.mask] = (struct xdp_desc){.addr = addr + 256, .len = 64};
	atomic_store_explicit(rx.producer, producer + 1, memory_order_release);
}

static inline void fake_kernel_take_tx(struct fixture *fixture, uint32_t slot, uint32_t queue)
{
	struct xdp_ring tx = xdp_ring_in_memory(&fixture->tx[slot][queue], W_TX);
	struct fixture_kernel *kernel = &fixture->kernel;
	uint32_t consumer, frame;

	if (!fixture->live[slot] || ring_used_entries(&tx) == 0)
		return;
	consumer = *tx.consumer; /* of this tenant: before, the slot may have been another's */
	frame = (uint32_t)(tx.descs[consumer & tx.mask].addr >> XDP_FRAME_SHIFT);
	if (frame >= W_FRAMES || frame < W_RX_FRAMES || kernel->has[frame]) {
		complain(fixture, "sent twice, or no TX frame", frame, slot);
		return;
	}
	kernel->has[frame] = 1;
	kernel->sent[queue][kernel->sent_count[queue]++] = tx.descs[consumer & tx.mask].addr;
	atomic_store_explicit(tx.consumer, consumer + 1, memory_order_release);
}

static inline void fake_kernel_complete(struct fixture *fixture, uint32_t queue)
{
	struct xdp_ring comp = xdp_ring_in_memory(&fixture->comp[queue], W_COMP);
	struct fixture_kernel *kernel = &fixture->kernel;
	uint32_t producer = *comp.producer, i;

	if (kernel->sent_count[queue] == 0 || ring_used_entries(&comp) == W_COMP)
		return;
	i = xdp_fixture_random_below(&kernel->seed, kernel->sent_count[queue]); /* in any order */
	comp.addrs[producer & comp.mask] = kernel->sent[queue][i];
	kernel->has[kernel->sent[queue][i] >> XDP_FRAME_SHIFT] = 0;
	kernel->sent[queue][i] = kernel->sent[queue][--kernel->sent_count[queue]];
	atomic_store_explicit(comp.producer, producer + 1, memory_order_release);
}

static inline void fake_kernel_step(struct fixture *fixture)
{
	const uint32_t queue = xdp_fixture_random_below(&fixture->kernel.seed, W_QUEUES);

	switch (xdp_fixture_random_below(&fixture->kernel.seed, 3)) {
	case 0:
		fake_kernel_receive(fixture, queue);
		break;
	case 1:
		fake_kernel_take_tx(fixture, xdp_fixture_random_below(&fixture->kernel.seed, W_SLOTS), queue);
		break;
	default:
		fake_kernel_complete(fixture, queue);
	}
	atomic_fetch_add(&fixture->kernel_rounds, 1);
}

/* ---- a client ---- */

struct client {
	struct fixture *fixture;
	uint32_t slot;
	uint64_t seed;
	struct xdp_ring fill[W_QUEUES], comp[W_QUEUES], rx[W_QUEUES], tx[W_QUEUES];
	struct xdp_shared_rings_user driver[W_QUEUES];
	uint32_t held[W_RX_FRAMES], held_count;
	uint32_t free[W_TX_FRAMES], free_count;
	bool sent[W_FRAMES];
};

static inline void fixture_init_queue_drivers(struct fixture *fixture, struct xdp_shared_rings_user *drivers,
                                              struct xdp_ring *fill, struct xdp_ring *comp, uint16_t self)
{
	for (uint32_t q = 0; q < W_QUEUES; q++) {
		fill[q] = xdp_ring_in_memory(&fixture->fill[q], W_FILL);
		comp[q] = xdp_ring_in_memory(&fixture->comp[q], W_COMP);
		drivers[q] = (struct xdp_shared_rings_user){
		        .shared = &fixture->shared, .fill = &fill[q], .comp = &comp[q], .queue = q, .self = self};
	}
}

static inline void client_init(struct client *client, struct fixture *fixture, uint32_t slot, uint64_t seed)
{
	memset(client, 0, sizeof(*client));
	client->fixture = fixture;
	client->slot = slot;
	client->seed = seed * 2 + 1;
	fixture_init_queue_drivers(fixture, client->driver, client->fill, client->comp, (uint16_t)(slot + 1));
	for (uint32_t q = 0; q < W_QUEUES; q++) {
		client->rx[q] = xdp_ring_in_memory(&fixture->rx[slot][q], W_RX);
		client->tx[q] = xdp_ring_in_memory(&fixture->tx[slot][q], W_TX);
	}
	for (uint32_t i = 0; i < W_TX_FRAMES; i++)
		client->free[client->free_count++] = W_RX_FRAMES + slot * W_TX_FRAMES + i;
}

static inline void client_take_received_frames(struct client *client, uint32_t queue)
{
	struct xdp_ring *rx = &client->rx[queue];
	uint32_t n = ring_used_entries(rx), consumer = *rx->consumer, frames[W_RX];

	n = n < 8 ? n : 8;
	for (uint32_t i = 0; i < n; i++) {
		frames[i] = (uint32_t)(rx->descs[(consumer + i) & rx->mask].addr >> XDP_FRAME_SHIFT);
		XDP_SHARED_STEP();
		xdp_shared_set_frame_holder(&client->driver[queue], frames[i]);
	}
	XDP_SHARED_STEP();
	atomic_store_explicit(rx->consumer, consumer + n, memory_order_release);
	XDP_SHARED_STEP();
	for (uint32_t i = 0; i < n; i++) {
		uint32_t nobody = 0;

		if (!atomic_compare_exchange_strong(&client->fixture->model[frames[i]], &nobody, client->slot + 1))
			complain(client->fixture, "received while somebody has it", frames[i], nobody);
		client->held[client->held_count++] = frames[i];
	}
	if (n > 0)
		atomic_fetch_add_explicit(&client->fixture->received, n, memory_order_relaxed);
}

static inline void client_return_frames_to_fill_ring(struct client *client, uint32_t queue)
{
	uint32_t n = client->held_count < 8 ? client->held_count : 8, taken;
	const uint32_t *frames = &client->held[client->held_count - n];

	for (uint32_t i = 0; i < n; i++)
		client->fixture->model[frames[i]] = 0;
	taken = xdp_shared_put_in_fill_ring(&client->driver[queue], frames, n);
	for (uint32_t i = taken; i < n; i++)
		client->fixture->model[frames[i]] = client->slot + 1;
	/* What was not taken moves down to where the taken ones were. */
	memmove(&client->held[client->held_count - n], frames + taken, (n - taken) * sizeof(*frames));
	client->held_count -= taken;
}

static inline void client_send_random_frames(struct client *client, uint32_t queue)
{
	struct xdp_ring *tx = &client->tx[queue];
	uint32_t producer = *tx->producer, room = W_TX - ring_used_entries(tx),
	         n = xdp_fixture_random_below(&client->seed, 6);

	n = n < room ? n : room;
	n = n < client->free_count ? n : client->free_count;
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t frame = client->free[client->free_count - 1 - i];

		tx->descs[(producer + i) & tx->mask] =
		        (struct xdp_desc){.addr = ((uint64_t)frame << XDP_FRAME_SHIFT) + frame, .len = 60};
		XDP_SHARED_STEP();
		xdp_shared_set_tx_frame_in_flight(&client->fixture->shared, frame, queue, producer + i);
		client->sent[frame] = true;
	}
	XDP_SHARED_STEP();
	client->free_count -= n;
	atomic_store_explicit(tx->producer, producer + n, memory_order_release);
	XDP_SHARED_STEP();
	if (n > 0)
		atomic_fetch_add_explicit(&client->fixture->sent, n, memory_order_relaxed);
}

static inline void client_take_completed_tx_frames(struct client *client)
{
	uint32_t frames[W_TX_FRAMES];
	unsigned n = xdp_shared_take_completed_tx(&client->fixture->shared, client->slot, frames,
	                                          1 + xdp_fixture_random_below(&client->seed, 8));

	for (unsigned i = 0; i < n; i++) {
		if (frames[i] >= W_FRAMES || !client->sent[frames[i]]) {
			complain(client->fixture, "returned but not sent", frames[i], client->slot);
			continue;
		}
		client->sent[frames[i]] = false;
		client->free[client->free_count++] = frames[i];
	}
}

static inline void fake_client_random_step(struct client *client)
{
	const uint32_t queue = xdp_fixture_random_below(&client->seed, W_QUEUES);

	switch (xdp_fixture_random_below(&client->seed, 5)) {
	case 0:
		client_take_received_frames(client, queue);
		break;
	case 1:
		client_return_frames_to_fill_ring(client, queue);
		break;
	case 2:
		client_send_random_frames(client, queue);
		break;
	case 3:
		xdp_shared_drain_completion_ring(&client->driver[queue]);
		break;
	default:
		client_take_completed_tx_frames(client);
	}
}

/* Gives everything back: true when nothing is left with the client. */
static inline bool fake_client_return_all(struct client *client)
{
	for (uint32_t q = 0; q < W_QUEUES; q++) {
		client_take_received_frames(client, q);
		client_return_frames_to_fill_ring(client, q);
		xdp_shared_drain_completion_ring(&client->driver[q]);
	}
	client_take_completed_tx_frames(client);
	return client->held_count == 0 && client->free_count == W_TX_FRAMES;
}

/* ---- the owner ---- */

static inline void fixture_reset_rings_of_rented_slot(struct fixture *fixture, uint32_t slot)
{
	for (uint32_t q = 0; q < W_QUEUES; q++) {
		ring_reset(&fixture->rx[slot][q]);
		ring_reset(&fixture->tx[slot][q]);
	}
	xdp_shared_set_tx_range_of_slot(&fixture->shared, slot, W_RX_FRAMES + slot * W_TX_FRAMES, W_TX_FRAMES);
	fixture->live[slot] = true;
}

static inline struct fixture *fixture_create(uint64_t seed)
{
	struct fixture *fixture =
	        mmap(NULL, sizeof(*fixture), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (fixture == MAP_FAILED)
		return NULL;
	fixture->kernel.seed = seed * 2 + 1;
	xdp_shared_init(&fixture->shared, W_FRAMES, W_QUEUES);
	for (uint32_t q = 0; q < W_QUEUES; q++) {
		ring_reset(&fixture->fill[q]);
		ring_reset(&fixture->comp[q]);
	}
	for (uint32_t i = 0; i < W_RX_FRAMES; i++)
		fixture->owner_frames[fixture->owner_count++] = i;
	for (uint32_t slot = 0; slot < W_SLOTS; slot++)
		fixture_reset_rings_of_rented_slot(fixture, slot);
	return fixture;
}

static inline void fixture_destroy(struct fixture *fixture)
{
	munmap(fixture, sizeof(*fixture));
}

/* TX frames of a slot, by the shared object, whose completion has not come yet. */
static inline uint32_t fixture_count_tx_frames_in_flight(const struct xdp_shared *shared, uint32_t slot)
{
	const struct xdp_tx_range range = xdp_tx_range_of(shared, slot);

	return xdp_shared_count_in_flight(shared, range.first, range.end - range.first);
}

static inline void fixture_end_tx_frames_kernel_did_not_take(struct xdp_shared *shared, uint32_t slot, uint32_t queue,
                                                             uint32_t taken)
{
	const struct xdp_tx_range range = xdp_tx_range_of(shared, slot);

	xdp_shared_reset_unsent_tx_frames(shared, range.first, range.end - range.first, queue, taken);
}

/* What the owner has goes into the fill rings, as far as they take it now. */
static inline void fixture_owner_fill_rings(struct fixture *fixture)
{
	struct xdp_ring fill[W_QUEUES], comp[W_QUEUES];
	struct xdp_shared_rings_user drivers[W_QUEUES];

	fixture_init_queue_drivers(fixture, drivers, fill, comp, XDP_HOLDER_OWNER);
	for (uint32_t q = 0; q < W_QUEUES; q++) {
		const uint32_t n = (fixture->owner_count + W_QUEUES - 1 - q) / (W_QUEUES - q);
		const uint32_t taken = xdp_shared_put_in_fill_ring(&drivers[q], fixture->owner_frames, n);

		fixture->owner_count -= taken;
		memmove(fixture->owner_frames, fixture->owner_frames + taken, fixture->owner_count * sizeof(uint32_t));
		xdp_shared_drain_completion_ring(&drivers[q]);
	}
}

/* The client of the slot is dead and the fake kernel has done with it: takes everything back but frames in flight. */
static inline void fixture_owner_reclaim_dead(struct fixture *fixture, uint32_t slot)
{
	struct xdp_ring fill[W_QUEUES], comp[W_QUEUES];
	struct xdp_shared_rings_user drivers[W_QUEUES];
	uint32_t frames[7], at = 0;
	unsigned n;

	fixture_init_queue_drivers(fixture, drivers, fill, comp, XDP_HOLDER_OWNER);
	for (uint32_t q = 0; q < W_QUEUES; q++) {
		fixture->locks_freed += fixture->shared.queue[q].fill.lock == slot + 1;
		fixture->locks_freed += fixture->shared.queue[q].comp.lock == slot + 1;
	}
	xdp_shared_release_dead_locks(drivers, W_QUEUES, slot);
	for (uint32_t q = 0; q < W_QUEUES; q++) {
		struct xdp_ring rx = xdp_ring_in_memory(&fixture->rx[slot][q], W_RX),
		                tx = xdp_ring_in_memory(&fixture->tx[slot][q], W_TX);

		xdp_shared_hold_frames_in_rx_ring(&fixture->shared, slot, &rx);
		fixture_end_tx_frames_kernel_did_not_take(&fixture->shared, slot, q, *tx.consumer);
		*tx.producer = *tx.consumer;
	}
	while ((n = xdp_shared_take_frames_of_slot(&fixture->shared, slot, &at, W_FRAMES, frames, 7)) > 0) {
		for (unsigned i = 0; i < n; i++) {
			if (fixture->model[frames[i]] != 0 && fixture->model[frames[i]] != slot + 1)
				complain(fixture, "seized from another", frames[i], fixture->model[frames[i]]);
			fixture->model[frames[i]] = 0;
			fixture->owner_frames[fixture->owner_count++] = frames[i];
		}
	}
	for (uint32_t f = 0; f < W_RX_FRAMES; f++)
		if (fixture->model[f] == slot + 1)
			complain(fixture, "not given back by recovery", f, slot);
	fixture->recoveries++;
}

/* ---- accounting, while nothing moves ---- */

/* Every RX frame is in exactly one place: fill ring, RX ring, a client's hands, the owner's. */
static inline void assert_rx_frames_accounted(struct fixture *fixture, struct client *const *clients)
{
	uint8_t places[W_FRAMES] = {0};

	for (uint32_t q = 0; q < W_QUEUES; q++) {
		struct xdp_ring fill = xdp_ring_in_memory(&fixture->fill[q], W_FILL);

		for (uint32_t i = *fill.consumer; i != *fill.producer; i++)
			places[fill.addrs[i & fill.mask] >> XDP_FRAME_SHIFT]++;
		for (uint32_t s = 0; s < W_SLOTS; s++) {
			struct xdp_ring rx = xdp_ring_in_memory(&fixture->rx[s][q], W_RX);

			for (uint32_t i = *rx.consumer; i != *rx.producer; i++)
				places[rx.descs[i & rx.mask].addr >> XDP_FRAME_SHIFT]++;
		}
	}
	for (uint32_t s = 0; s < W_SLOTS; s++)
		for (uint32_t i = 0; clients[s] != NULL && i < clients[s]->held_count; i++)
			places[clients[s]->held[i]]++;
	for (uint32_t i = 0; i < fixture->owner_count; i++)
		places[fixture->owner_frames[i]]++;
	for (uint32_t f = 0; f < W_RX_FRAMES; f++)
		if (places[f] != 1)
			complain(fixture, places[f] == 0 ? "RX frame lost" : "RX frame in two places", f, places[f]);
}

/* Every TX frame is in exactly one place: with its client, completed, or (in flight) TX ring, kernel, completion ring.
 */
static inline void assert_tx_frames_accounted(struct fixture *fixture, struct client *const *clients)
{
	uint8_t places[W_FRAMES] = {0}, flying[W_FRAMES] = {0};

	for (uint32_t q = 0; q < W_QUEUES; q++) {
		struct xdp_ring comp = xdp_ring_in_memory(&fixture->comp[q], W_COMP);

		for (uint32_t i = *comp.consumer; i != *comp.producer; i++)
			flying[comp.addrs[i & comp.mask] >> XDP_FRAME_SHIFT]++;
		for (uint32_t i = 0; i < fixture->kernel.sent_count[q]; i++)
			flying[fixture->kernel.sent[q][i] >> XDP_FRAME_SHIFT]++;
		for (uint32_t s = 0; s < W_SLOTS; s++) {
			struct xdp_ring tx = xdp_ring_in_memory(&fixture->tx[s][q], W_TX);

			for (uint32_t i = *tx.consumer; i != *tx.producer; i++)
				flying[tx.descs[i & tx.mask].addr >> XDP_FRAME_SHIFT]++;
		}
	}
	for (uint32_t s = 0; s < W_SLOTS; s++)
		for (uint32_t i = 0; clients[s] != NULL && i < clients[s]->free_count; i++)
			places[clients[s]->free[i]]++;
	for (uint32_t f = W_RX_FRAMES; f < W_FRAMES; f++) {
		const uint64_t state = fixture->shared.state[f] & XDP_TX_STATE_MASK;
		const bool dead = clients[(f - W_RX_FRAMES) / W_TX_FRAMES] == NULL;

		if ((state == XDP_TX_IN_FLIGHT) != (flying[f] == 1) || flying[f] > 1)
			complain(fixture, "TX frame's mark is wrong", f, flying[f]);
		else if (!dead && places[f] + flying[f] + (state == XDP_TX_COMPLETED) != 1)
			complain(fixture, "TX frame lost, or in two places", f, places[f]);
	}
}

#endif
