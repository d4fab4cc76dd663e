/*
 * fuzz_shared - the object that all clients of an interface write to, written over between any two calls of the owner's
 * and of another client's.
 *
 * The input is a run of steps: a write of eight bytes anywhere in the object, the rings' indices or their entries, or a
 * call. Held after each: what is counted is within what was asked for, frames exist, and one pass of the owner's ends.
 * The sanitizers see what leaves an array.
 */
#include <stdbool.h>
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

enum { QUEUES = 2, RING = 64, FRAMES = 512, BURST = 16, CLIENT = 3 };
enum step {
	WRITE,
	RECOVER,
	CLAIM_RX,
	FREE_LOCK,
	SETTLE_TX,
	HELD_BY,
	SEIZE,
	FILL,
	COMPLETE,
	RETURNED,
	AMONG,
	CHECK,
	STEPS
};

/* What the kernel shares of a ring with who may map it. */
struct memory {
	_Atomic uint32_t producer, consumer, flags;
	struct xdp_desc entries[RING];
};

static struct xdp_shared *shared;
static struct memory *memory; /* fill and completion rings of both queues, and a receive ring */
static struct xdp_ring rings[2 * QUEUES + 1];
static struct xdp_shared_rings_user owner[QUEUES], client[QUEUES];

struct input {
	const uint8_t *at;
	size_t left;
};

static uint64_t fuzz_input_take_bytes(struct input *input, size_t bytes)
{
	uint64_t value = 0;

	if (bytes > input->left)
		bytes = input->left;
	memcpy(&value, input->at, bytes);
	input->at += bytes;
	input->left -= bytes;
	return value;
}

static struct xdp_ring xdp_ring_over_memory(struct memory *at)
{
	return (struct xdp_ring){.producer = &at->producer,
	                         .consumer = &at->consumer,
	                         .flags = &at->flags,
	                         .descs = at->entries,
	                         .size = RING,
	                         .mask = RING - 1};
}

static void init_shared_xdp_object_and_rings(void)
{
	if (shared == NULL) {
		shared = malloc(sizeof(*shared));
		memory = malloc(sizeof(*memory) * (2 * QUEUES + 1));
		MUST(shared != NULL && memory != NULL);
	}
	memset(shared, 0, sizeof(*shared));
	memset(memory, 0, sizeof(*memory) * (2 * QUEUES + 1));
	for (unsigned i = 0; i < 2 * QUEUES + 1; i++)
		rings[i] = xdp_ring_over_memory(&memory[i]);
	xdp_shared_init(shared, FRAMES, QUEUES);
	xdp_shared_set_tx_range_of_slot(shared, CLIENT, FRAMES / 2, 32);
	for (uint32_t queue = 0; queue < QUEUES; queue++) {
		owner[queue] = (struct xdp_shared_rings_user){.shared = shared,
		                                              .fill = &rings[2 * queue],
		                                              .comp = &rings[2 * queue + 1],
		                                              .queue = queue,
		                                              .self = XDP_HOLDER_OWNER};
		client[queue] = owner[queue];
		client[queue].self = CLIENT + 1;
	}
}

static void fuzz_write_word_in_shared_or_rings(struct input *input)
{
	const uint64_t where = fuzz_input_take_bytes(input, 4), value = fuzz_input_take_bytes(input, 8);
	const bool in_rings = where & 1;
	char *base = in_rings ? (char *)memory : (char *)shared;
	const size_t bytes = in_rings ? sizeof(*memory) * (2 * QUEUES + 1) : sizeof(*shared);

	memcpy(base + where / 2 % (bytes / 8) * 8, &value, sizeof(value));
}

static void fuzz_take_frames_of_slot(uint32_t slot)
{
	uint32_t frames[BURST], at = 0, passes = 0, n;

	while ((n = xdp_shared_take_frames_of_slot(shared, slot, &at, FRAMES, frames, BURST)) > 0) {
		MUST(n <= BURST && ++passes <= FRAMES);
		for (uint32_t i = 0; i < n; i++)
			MUST(frames[i] < FRAMES);
	}
}

static void fuzz_put_frames_in_fill_ring(struct xdp_shared_rings_user *driver, struct input *input)
{
	uint32_t frames[BURST];
	const unsigned n = fuzz_input_take_bytes(input, 1) % (BURST + 1);

	for (unsigned i = 0; i < n; i++) {
		frames[i] = (uint32_t)fuzz_input_take_bytes(input, 2);
		xdp_shared_set_frame_holder(driver, frames[i]);
	}
	MUST(xdp_shared_put_in_fill_ring(driver, frames, n) <= n);
}

static void shared_do_step(struct input *input)
{
	const enum step step = fuzz_input_take_bytes(input, 1) % STEPS;
	const uint32_t slot = (uint32_t)fuzz_input_take_bytes(input, 1) % XDP_SLOTS_MAX, queue = slot % QUEUES;
	struct xdp_shared_rings_user *driver = slot & 2 ? &client[queue] : &owner[queue];
	uint32_t frames[BURST];

	switch (step) {
	case WRITE:
		fuzz_write_word_in_shared_or_rings(input);
		break;
	case RECOVER:
		xdp_shared_release_dead_locks(owner, QUEUES, slot);
		break;
	case CLAIM_RX:
		MUST(xdp_shared_hold_frames_in_rx_ring(shared, slot, &rings[2 * QUEUES]) <= RING);
		break;
	case FREE_LOCK:
		xdp_shared_break_lock(&owner[queue], slot & 4 ? XDP_LOCK_FILL : XDP_LOCK_COMP,
		                      (uint32_t)fuzz_input_take_bytes(input, 4));
		break;
	case SETTLE_TX:
		xdp_shared_reset_unsent_tx_frames(shared, (uint32_t)fuzz_input_take_bytes(input, 2),
		                                  (uint32_t)fuzz_input_take_bytes(input, 2), queue,
		                                  (uint32_t)fuzz_input_take_bytes(input, 4));
		break;
	case HELD_BY:
		MUST(xdp_shared_count_frames_held_by_slot(shared, slot, FRAMES) <= FRAMES);
		break;
	case SEIZE:
		fuzz_take_frames_of_slot(slot);
		break;
	case FILL:
		fuzz_put_frames_in_fill_ring(driver, input);
		break;
	case COMPLETE:
		MUST(xdp_shared_drain_completion_ring(driver) <= RING);
		break;
	case RETURNED:
		MUST(xdp_shared_take_completed_tx(shared, slot, frames, BURST) <= BURST);
		break;
	case AMONG:
		MUST(xdp_shared_count_in_flight(shared, FRAMES / 2, 32) <= 32);
		break;
	default:
		xdp_shared_check(shared, sizeof(*shared));
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input input = {.at = data, .left = size};

	init_shared_xdp_object_and_rings();
	while (input.left > 0)
		shared_do_step(&input);
	return 0;
}
