/* capture - the writer's side: records put by any thread; capture_priv.h has the argument. */
#include <string.h>
#include <time.h>

#include "capture_priv.h"

/* A word at a time into the record's slots; what does not fill a word waits for more. */
struct capture_sink {
	struct vma_capture *capture;
	struct capture_slot *slot;
	uint64_t first, number; /* of the record; of the slot that is being written */
	unsigned words, bytes;
	uint64_t word;
	bool given_up; /* `slot` is another writer's */
};

static struct capture_slot *capture_slot_of(struct vma_capture *capture, uint64_t number)
{
	return &capture->slots[number % VMA_CAPTURE_SLOTS];
}

/* False: a thread that lost its core has it still. */
static bool capture_slot_claim(struct capture_slot *slot, uint64_t number)
{
	uint64_t state = atomic_load_explicit(&slot->state, memory_order_relaxed);

	return state % CAPTURE_STATES != CAPTURE_WRITING && state < CAPTURE_STATES * number + CAPTURE_WRITING &&
	       atomic_compare_exchange_strong_explicit(&slot->state, &state, CAPTURE_STATES * number + CAPTURE_WRITING,
	                                               memory_order_acq_rel, memory_order_relaxed);
}

static void capture_slot_finish(struct capture_slot *slot, uint64_t number, enum capture_state state)
{
	atomic_store_explicit(&slot->state, CAPTURE_STATES * number + state, memory_order_release);
}

/* The first slot is finished last (capture_priv.h). */
static void capture_sink_next_slot(struct capture_sink *sink)
{
	if (sink->number != sink->first)
		capture_slot_finish(sink->slot, sink->number, CAPTURE_MORE);
	sink->slot = capture_slot_of(sink->capture, ++sink->number);
	sink->words = 0;
	sink->given_up = !capture_slot_claim(sink->slot, sink->number);
}

static void capture_sink_store_word_in_slot(struct capture_sink *sink)
{
	if (sink->words == CAPTURE_WORDS && !sink->given_up)
		capture_sink_next_slot(sink);
	if (!sink->given_up)
		atomic_store_explicit(&sink->slot->words[sink->words++], sink->word, memory_order_release);
	sink->bytes = 0;
	sink->word = 0;
}

static void capture_sink_write(struct capture_sink *sink, const void *data, size_t n)
{
	const uint8_t *from = data;

	while (n > 0) {
		const size_t room = sizeof(sink->word) - sink->bytes, part = n < room ? n : room;

		memcpy((uint8_t *)&sink->word + sink->bytes, from, part);
		sink->bytes += (unsigned)part;
		from += part;
		n -= part;
		if (sink->bytes == sizeof(sink->word))
			capture_sink_store_word_in_slot(sink);
	}
}

static void capture_sink_finish_record(struct capture_sink *sink)
{
	if (sink->bytes != 0)
		capture_sink_store_word_in_slot(sink);
	if (sink->number != sink->first && !sink->given_up)
		capture_slot_finish(sink->slot, sink->number, CAPTURE_MORE);
	capture_slot_finish(capture_slot_of(sink->capture, sink->first), sink->first,
	                    sink->given_up ? CAPTURE_MORE : CAPTURE_FIRST);
}

static uint16_t bytes_to_capture(const struct vma_capture *capture, const struct iovec *pieces, unsigned n)
{
	const size_t snap = atomic_load_explicit(&capture->snap, memory_order_relaxed);
	const size_t most = snap < VMA_CAPTURE_DATA_MAX ? snap : VMA_CAPTURE_DATA_MAX;
	size_t bytes = 0;

	for (unsigned i = 0; i < n && bytes < most; i++)
		bytes += pieces[i].iov_len;
	return (uint16_t)(bytes < most ? bytes : most);
}

void vma_capture_write_packet(struct vma_capture *capture, struct vma_capture_info *info, const struct iovec *pieces,
                              unsigned n)
{
	struct capture_sink sink = {.capture = capture};
	uint64_t slots;
	size_t left;

	info->captured = bytes_to_capture(capture, pieces, n);
	slots = capture_slots_needed_for_bytes(info->captured);
	sink.first = sink.number = atomic_fetch_add_explicit(&capture->head, slots, memory_order_relaxed);
	if (slots > 1)
		atomic_fetch_add_explicit(&capture->more, slots - 1, memory_order_relaxed);
	sink.slot = capture_slot_of(capture, sink.first);
	if (!capture_slot_claim(sink.slot, sink.first))
		return;
	capture_sink_write(&sink, info, sizeof(*info));
	left = info->captured;
	for (unsigned i = 0; i < n && left > 0; i++) {
		const size_t part = pieces[i].iov_len < left ? pieces[i].iov_len : left;

		capture_sink_write(&sink, pieces[i].iov_base, part);
		left -= part;
	}
	capture_sink_finish_record(&sink);
}

bool vma_capture_wanted(const struct vma_capture *capture)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec <=
	       atomic_load_explicit(&capture->until_ns, memory_order_relaxed);
}
