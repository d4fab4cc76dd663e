/*
 * faults - what a bad link does to frames, decided by seed, lane and frame number alone.
 *
 * A frame from a lane is lost, or enters the delay line once or twice, with the time it is due. The line is a binary
 * heap by (due, serial). If a frame was chosen for reordering, it goes on to a short list when it is due. It leaves
 * that list when as many frames of its lane as drawn have overtaken it, or after a millisecond. All of it belongs to
 * the engine.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "wire.h"

#define WAITING_MAX 64
#define REORDER_NS 1000000
#define MILLION 1000000U

enum draw { DRAW_LOSS, DRAW_DUPLICATE, DRAW_REORDER, DRAW_DEPTH, DRAW_CORRUPT, DRAW_BIT, DRAW_JITTER, DRAWS };

/* A counter-based generator (splitmix64's finaliser): no state that threads or the order of questions could disturb. */
static uint64_t fault_draw_random(const struct vma_wire_faults *plan, uint32_t lane, uint32_t number, enum draw what)
{
	uint64_t x = plan->seed * 0x9e3779b97f4a7c15U + ((uint64_t)lane << 40) + (uint64_t)number * DRAWS + what;

	x += 0x9e3779b97f4a7c15U;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
	x = (x ^ x >> 27) * 0x94d049bb133111ebU;
	return x ^ x >> 31;
}

static bool fault_happens(const struct vma_wire_faults *plan, uint32_t lane, uint32_t number, enum draw what,
                          uint32_t ppm)
{
	return ppm != 0 && fault_draw_random(plan, lane, number, what) % MILLION < ppm;
}

int wire_fault_delay_init(struct wire_fault_delay *delay, uint32_t bound, uint32_t frame_bytes)
{
	uint32_t frames = bound + WAITING_MAX;

	if (delay->memory != NULL)
		return 0;
	delay->bound = bound;
	delay->frame_bytes = frame_bytes;
	delay->heap = calloc(bound, sizeof(*delay->heap));
	delay->waiting = calloc(WAITING_MAX, sizeof(*delay->waiting));
	delay->spare = calloc(frames, sizeof(*delay->spare));
	char *memory = wire_memory_map((size_t)frames * frame_bytes);
	if (delay->heap == NULL || delay->waiting == NULL || delay->spare == NULL || memory == NULL) {
		if (memory != NULL)
			munmap(memory, (size_t)frames * frame_bytes);
		wire_fault_delay_fini(delay);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < frames; i++)
		delay->spare[i] = memory + (size_t)i * frame_bytes;
	delay->spares = frames;
	delay->memory = memory;
	return 0;
}

void wire_fault_delay_fini(struct wire_fault_delay *delay)
{
	if (delay->memory != NULL)
		munmap(delay->memory, (size_t)(delay->bound + WAITING_MAX) * delay->frame_bytes);
	free(delay->heap);
	free(delay->waiting);
	free(delay->spare);
	memset(delay, 0, sizeof(*delay));
}

void wire_fault_delay_set_plan(struct wire_fault_delay *delay, const struct vma_wire_faults *plan)
{
	delay->plan = *plan;
	if (delay->plan.reorder_depth == 0)
		delay->plan.reorder_depth = 4;
	delay->active = wire_faults_are_set(plan);
}

/* ---- the heap ---- */

static bool held_frame_is_before(const struct wire_held_frame *a, const struct wire_held_frame *b)
{
	return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->serial < b->serial;
}

static void heap_push(struct wire_fault_delay *delay, struct wire_held_frame item)
{
	uint32_t i = delay->heap_count++;

	while (i > 0 && held_frame_is_before(&item, &delay->heap[(i - 1) / 2])) {
		delay->heap[i] = delay->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	delay->heap[i] = item;
}

static void heap_pop(struct wire_fault_delay *delay)
{
	struct wire_held_frame item = delay->heap[--delay->heap_count];
	uint32_t i = 0, child;

	while ((child = 2 * i + 1) < delay->heap_count) {
		if (child + 1 < delay->heap_count && held_frame_is_before(&delay->heap[child + 1], &delay->heap[child]))
			child++;
		if (!held_frame_is_before(&delay->heap[child], &item))
			break;
		delay->heap[i] = delay->heap[child];
		i = child;
	}
	delay->heap[i] = item;
}

/* ---- in and out ---- */

static void delay_insert_frame(struct wire_end *end, struct wire_held_frame item, const char *bytes, uint64_t bit)
{
	struct wire_fault_delay *delay = &end->engine.delay;

	if (delay->heap_count == delay->bound || delay->spares == 0) {
		wire_count_add(end, WIRE_COUNT_queue_full, 1);
		return;
	}
	item.serial = delay->serial++;
	item.bytes = delay->spare[--delay->spares];
	memcpy(item.bytes, bytes, item.len);
	if (bit != UINT64_MAX)
		item.bytes[bit / 8 % item.len] ^= (char)(1 << bit % 8);
	heap_push(delay, item);
}

void wire_fault_delay_add_frame(struct wire_end *end, uint32_t lane, uint32_t number, const char *bytes, uint32_t len,
                                uint64_t sent_ns)
{
	const struct vma_wire_faults *plan = &end->engine.delay.plan;
	struct wire_held_frame item = {.len = len, .lane = lane, .due_ns = sent_ns + plan->delay_ns};
	uint64_t bit = UINT64_MAX;

	if (fault_happens(plan, lane, number, DRAW_LOSS, plan->loss_ppm)) {
		wire_count_add(end, WIRE_COUNT_lost, 1);
		return;
	}
	if (plan->jitter_ns != 0)
		item.due_ns += fault_draw_random(plan, lane, number, DRAW_JITTER) % (plan->jitter_ns + 1);
	if (fault_happens(plan, lane, number, DRAW_CORRUPT, plan->corrupt_ppm)) {
		wire_count_add(end, WIRE_COUNT_corrupted, 1);
		bit = fault_draw_random(plan, lane, number, DRAW_BIT) >> 1;
	}
	if (fault_happens(plan, lane, number, DRAW_REORDER, plan->reorder_ppm)) {
		wire_count_add(end, WIRE_COUNT_reordered, 1);
		item.overtake = 1 + (uint32_t)(fault_draw_random(plan, lane, number, DRAW_DEPTH) % plan->reorder_depth);
	}
	delay_insert_frame(end, item, bytes, bit);
	if (fault_happens(plan, lane, number, DRAW_DUPLICATE, plan->duplicate_ppm)) {
		wire_count_add(end, WIRE_COUNT_duplicated, 1);
		item.overtake = 0;
		delay_insert_frame(end, item, bytes, bit);
	}
}

/* Frames due that others shall overtake leave the heap for the list. */
static void delay_set_overtaken_aside(struct wire_fault_delay *delay, uint64_t now_ns)
{
	while (delay->heap_count > 0 && delay->heap[0].due_ns <= now_ns && delay->heap[0].overtake > 0 &&
	       delay->waiting_count < WAITING_MAX) {
		struct wire_held_frame *item = &delay->waiting[delay->waiting_count++];
		*item = delay->heap[0];
		item->due_ns += REORDER_NS;
		heap_pop(delay);
	}
}

struct wire_held_frame *wire_fault_delay_next_due_frame(struct wire_fault_delay *delay, uint64_t now_ns)
{
	delay_set_overtaken_aside(delay, now_ns);
	for (uint32_t i = 0; i < delay->waiting_count; i++)
		if (delay->waiting[i].overtake == 0 || delay->waiting[i].due_ns <= now_ns)
			return &delay->waiting[i];
	return delay->heap_count > 0 && delay->heap[0].due_ns <= now_ns ? &delay->heap[0] : NULL;
}

void wire_fault_delay_remove(struct wire_fault_delay *delay, struct wire_held_frame *held)
{
	struct wire_held_frame item = *held;

	if (held == &delay->heap[0]) {
		heap_pop(delay);
	} else {
		delay->waiting_count--;
		memmove(held, held + 1, (size_t)(&delay->waiting[delay->waiting_count] - held) * sizeof(*held));
	}
	for (uint32_t i = 0; i < delay->waiting_count; i++)
		if (delay->waiting[i].lane == item.lane && delay->waiting[i].overtake > 0 &&
		    delay->waiting[i].serial < item.serial)
			delay->waiting[i].overtake--;
	delay->spare[delay->spares++] = item.bytes;
}

uint64_t wire_fault_delay_next_due_ns(const struct wire_fault_delay *delay)
{
	uint64_t due = delay->heap_count > 0 ? delay->heap[0].due_ns : UINT64_MAX;

	for (uint32_t i = 0; i < delay->waiting_count; i++)
		if (delay->waiting[i].due_ns < due)
			due = delay->waiting[i].due_ns;
	return due;
}
