/*
 * fuzz_hints - the hints by which a slot finds its transmitted frames again (xdp/shared.c), written over by others,
 * beside a model that looks at the frames' states alone.
 *
 * A hint only says where to look. So whatever is in the ring of hints, a frame is returned if and only if its state
 * says COMPLETED and it is the slot's, once; and with "rescan" none is missed.
 *
 * The input is a run of steps: a frame is sent, completed (with its hint, or by the drain of a completion ring), the
 * ring's words are written over, or frames are asked for.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../xdp/shared.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition)                                                                                                \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "broken: %s\n", #condition);                                                   \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

enum { QUEUES = 2, FIRST = 200, COUNT = 700, SLOT = 5, OTHER = 6, RING = 1024, BURST = 64, NFRAMES = 1024 };
enum step { SEND, COMPLETE, TEAR_INDICES, TEAR_ENTRY, TEAR_STATE, TEAR_ROUTE, ASK, RESCAN, STEPS };

struct input {
	const uint8_t *at, *end;
};

static struct xdp_shared *shared;
static struct {
	_Atomic uint32_t producer, consumer, flags;
	uint64_t entries[RING];
} ring;
static struct xdp_ring comp = {.producer = &ring.producer,
                               .consumer = &ring.consumer,
                               .flags = &ring.flags,
                               .addrs = ring.entries,
                               .size = RING,
                               .mask = RING - 1};
static uint32_t sent;

static uint32_t fuzz_input_take(struct input *in, unsigned bytes)
{
	uint32_t value = 0;

	while (bytes-- > 0)
		value = value << 8 | (in->at < in->end ? *in->at++ : 0);
	return value;
}

static uint64_t tx_state_of_frame(uint32_t frame)
{
	return xdp_load(&shared->state[frame]) & XDP_TX_STATE_MASK;
}

static bool frame_is_of_tested_slot(uint32_t frame)
{
	return frame >= FIRST && frame < FIRST + COUNT;
}

static void fuzz_send_frames(struct input *in)
{
	uint32_t first = fuzz_input_take(in, 2) % COUNT, n = fuzz_input_take(in, 2) % 600,
	         queue = fuzz_input_take(in, 1) % QUEUES;

	for (uint32_t f = FIRST + first; n-- > 0 && f < FIRST + COUNT; f++)
		if (tx_state_of_frame(f) == XDP_TX_IDLE)
			xdp_shared_set_tx_frame_in_flight(shared, f, queue, sent++);
}

/* By the completion ring of a queue, as the kernel fills it. */
static void fuzz_complete_frames(struct input *in)
{
	uint32_t first = fuzz_input_take(in, 2) % COUNT, n = fuzz_input_take(in, 2) % 600,
	         queue = fuzz_input_take(in, 1) % QUEUES;
	uint32_t producer = atomic_load(&ring.producer);
	struct xdp_shared_rings_user driver = {
	        .shared = shared, .comp = &comp, .queue = queue, .self = XDP_HOLDER_OWNER};

	for (uint32_t f = FIRST + first; n-- > 0 && f < FIRST + COUNT; f++)
		ring.entries[producer++ & comp.mask] = (uint64_t)f << XDP_FRAME_SHIFT;
	atomic_store(&ring.producer, producer);
	xdp_shared_drain_completion_ring(&driver);
	MUST(atomic_load(&ring.consumer) == producer);
}

static void fuzz_take_completed_frames(struct input *in, bool all)
{
	static uint8_t was[NFRAMES];
	uint32_t frames[BURST], n = all ? BURST : fuzz_input_take(in, 1) % BURST, completed = 0, got;

	for (uint32_t f = FIRST; f < FIRST + COUNT; f++) {
		was[f] = tx_state_of_frame(f) == XDP_TX_COMPLETED;
		completed += was[f];
	}
	got = xdp_shared_take_completed_tx(shared, SLOT, frames, n);
	MUST(got <= n);
	if (all)
		MUST(got == (completed < n ? completed : n));
	for (uint32_t i = 0; i < got; i++) {
		MUST(frame_is_of_tested_slot(frames[i]) && was[frames[i]]);
		was[frames[i]] = 0; /* once */
		MUST(tx_state_of_frame(frames[i]) == XDP_TX_IDLE);
	}
	for (uint32_t f = FIRST; f < FIRST + COUNT; f++)
		MUST(!was[f] || tx_state_of_frame(f) == XDP_TX_COMPLETED);
}

static void fuzz_set_hint_ring_indices(struct input *in)
{
	struct xdp_completed_frame_hints *hints = &shared->hints[SLOT][fuzz_input_take(in, 1) % QUEUES];
	uint8_t how = (uint8_t)fuzz_input_take(in, 1);

	if (how & 1)
		hints->producer = how & 2 ? fuzz_input_take(in, 4) : hints->producer + fuzz_input_take(in, 2) - 600;
	if (how & 4)
		hints->consumer = how & 8 ? fuzz_input_take(in, 4) : hints->consumer + fuzz_input_take(in, 2) - 600;
}

static void fuzz_hints_step(struct input *in)
{
	uint32_t frame;

	switch (fuzz_input_take(in, 1) % STEPS) {
	case SEND:
		fuzz_send_frames(in);
		break;
	case COMPLETE:
		fuzz_complete_frames(in);
		break;
	case TEAR_INDICES:
		fuzz_set_hint_ring_indices(in);
		break;
	case TEAR_ENTRY:
		frame = fuzz_input_take(in, 2);
		shared->hints[SLOT][frame >> 15].frame[frame % XDP_HINTS] = fuzz_input_take(in, 4);
		break;
	case TEAR_STATE:
		frame = fuzz_input_take(in, 2) % NFRAMES;
		shared->state[frame] = (uint64_t)fuzz_input_take(in, 4) << 32 | fuzz_input_take(in, 4);
		break;
	case TEAR_ROUTE:
		frame = fuzz_input_take(in, 2) % NFRAMES;
		shared->route[frame] = (uint8_t)fuzz_input_take(in, 1);
		break;
	case RESCAN:
		shared->slot[SLOT].rescan = fuzz_input_take(in, 1) & 1;
		break;
	default:
		fuzz_take_completed_frames(in, false);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, data + size};

	if (shared == NULL) {
		shared = calloc(1, sizeof(*shared));
		MUST(shared != NULL);
	}
	xdp_shared_init(shared, NFRAMES, QUEUES);
	memset(shared->hints[SLOT], 0, sizeof(shared->hints[SLOT]));
	memset((void *)shared->state, 0, NFRAMES * sizeof(shared->state[0]));
	memset((void *)shared->route, 0, NFRAMES);
	memset(&ring, 0, sizeof(ring));
	shared->slot[SLOT].rescan = 0;
	xdp_shared_set_tx_range_of_slot(shared, SLOT, FIRST, COUNT);
	xdp_shared_set_tx_range_of_slot(shared, OTHER, FIRST + COUNT, 100);
	while (in.at < in.end)
		fuzz_hints_step(&in);
	/* Whatever has been torn: a look everywhere finds all that is left, a burst at a time. */
	for (int i = 0; i < COUNT / BURST + 2; i++) {
		shared->slot[SLOT].rescan = 1;
		fuzz_take_completed_frames(&in, true);
	}
	return 0;
}
