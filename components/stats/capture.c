/* capture - the writer's side: records put by any thread; capture_priv.h has the argument. */
#include <string.h>
#include <time.h>

#include "capture_priv.h"

/* A word at a time into the slot; what does not fill a word waits for more. */
struct capture_sink {
	struct capture_slot *slot;
	unsigned words, bytes;
	uint64_t word;
};

static void sink_flush(struct capture_sink *sink)
{
	atomic_store_explicit(&sink->slot->words[sink->words++], sink->word, memory_order_release);
	sink->bytes = 0;
	sink->word = 0;
}

static void sink_write(struct capture_sink *sink, const void *data, size_t n)
{
	const uint8_t *from = data;

	while (n > 0) {
		const size_t room = sizeof(sink->word) - sink->bytes, part = n < room ? n : room;

		memcpy((uint8_t *)&sink->word + sink->bytes, from, part);
		sink->bytes += (unsigned)part;
		from += part;
		n -= part;
		if (sink->bytes == sizeof(sink->word))
			sink_flush(sink);
	}
}

static bool capture_claim(struct capture_slot *slot, uint64_t number)
{
	uint64_t state = atomic_load_explicit(&slot->state, memory_order_relaxed);

	return state % 2 == 0 && state < 2 * number + 1 &&
	       atomic_compare_exchange_strong_explicit(&slot->state, &state, 2 * number + 1, memory_order_acq_rel,
	                                               memory_order_relaxed);
}

void vma_capture_put(struct vma_capture *capture, struct vma_capture_info *info, const struct iovec *pieces, unsigned n)
{
	const uint64_t number = atomic_fetch_add_explicit(&capture->head, 1, memory_order_relaxed);
	struct capture_sink sink = {.slot = &capture->slots[number % VMA_CAPTURE_SLOTS]};
	size_t left;

	info->captured = (uint16_t)(info->len < VMA_CAPTURE_DATA_MAX ? info->len : VMA_CAPTURE_DATA_MAX);
	if (!capture_claim(sink.slot, number))
		return;
	sink_write(&sink, info, sizeof(*info));
	left = info->captured;
	for (unsigned i = 0; i < n && left > 0; i++) {
		const size_t part = pieces[i].iov_len < left ? pieces[i].iov_len : left;

		sink_write(&sink, pieces[i].iov_base, part);
		left -= part;
	}
	if (sink.bytes != 0)
		sink_flush(&sink);
	atomic_store_explicit(&sink.slot->state, 2 * number + 2, memory_order_release);
}

bool vma_capture_wanted(const struct vma_capture *capture)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec <=
	       atomic_load_explicit(&capture->until_ns, memory_order_relaxed);
}
