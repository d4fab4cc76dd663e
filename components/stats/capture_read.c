/* capture_read - the reader's side: records in order, of which nothing is believed; capture_priv.h has the argument. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "capture_priv.h"
#include "capture_read.h"

#define STUCK_NS 100000000 /* a writer that has not finished by then never does */

int vma_capture_open_memory(const void *memory, struct vma_capture_reader **out)
{
	const struct vma_capture *ring = memory;
	struct vma_capture_reader *reader;

	if (atomic_load_explicit(&ring->magic, memory_order_acquire) != CAPTURE_MAGIC)
		return -EAGAIN;
	reader = calloc(1, sizeof(*reader));
	if (reader == NULL)
		return -ENOMEM;
	reader->ring = ring;
	reader->next = atomic_load_explicit(&ring->head, memory_order_acquire);
	reader->more = atomic_load_explicit(&ring->more, memory_order_relaxed);
	*out = reader;
	return 0;
}

uint64_t vma_capture_grant_count(const struct vma_capture_reader *reader)
{
	return atomic_load_explicit(&reader->ring->grants, memory_order_acquire);
}

/* Words of the slot from `at` on. False: it is not, or not any more, in that state. */
static bool capture_slot_copy(const struct capture_slot *slot, uint64_t state, size_t at, size_t words, uint64_t *out)
{
	for (size_t i = 0; i < words; i++)
		out[i] = atomic_load_explicit(&slot->words[at + i], memory_order_acquire);
	return atomic_load_explicit(&slot->state, memory_order_acquire) == state;
}

/* The frame of the record that begins with slot `number`; the first words of a slot's copy are its own. */
static bool capture_frame_copy(const struct vma_capture *ring, uint64_t number, uint32_t captured, uint8_t *data)
{
	uint64_t words[CAPTURE_WORDS], state = CAPTURE_STATES * number + CAPTURE_FIRST;
	size_t at = CAPTURE_INFO_WORDS;

	while (captured > 0) {
		const size_t room = (CAPTURE_WORDS - at) * sizeof(uint64_t), part = captured < room ? captured : room;
		const size_t n = (part + sizeof(uint64_t) - 1) / sizeof(uint64_t);

		if (!capture_slot_copy(&ring->slots[number % VMA_CAPTURE_SLOTS], state, at, n, words))
			return false;
		memcpy(data, words, part);
		data += part;
		captured -= (uint32_t)part;
		state = CAPTURE_STATES * ++number + CAPTURE_MORE;
		at = 0;
	}
	return true;
}

/* The record that begins with slot `number`, of those before `head`: how many slots it has; 0: it has been overwritten
 * meanwhile, or is no record. */
static uint64_t capture_record_copy(const struct vma_capture *ring, uint64_t number, uint64_t head,
                                    struct vma_capture_info *info, uint8_t *data)
{
	uint64_t words[CAPTURE_INFO_WORDS];

	if (!capture_slot_copy(&ring->slots[number % VMA_CAPTURE_SLOTS], CAPTURE_STATES * number + CAPTURE_FIRST, 0,
	                       CAPTURE_INFO_WORDS, words))
		return 0;
	memcpy(info, words, sizeof(*info));
	if (info->kind >= VMA_CAPTURE_KINDS || info->captured > info->len ||
	    capture_slots_needed_for_bytes(info->captured) > head - number ||
	    !capture_frame_copy(ring, number, info->captured, data))
		return 0;
	info->text[sizeof(info->text) - 1] = '\0';
	for (char *c = info->text; *c != '\0'; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	return capture_slots_needed_for_bytes(info->captured);
}

/* Whether slot `next` may still come. A writer that gave it up leaves the slot as it was. */
static bool capture_slot_may_complete(struct vma_capture_reader *reader, uint64_t now_ns)
{
	if (reader->stuck_at != reader->next + 1) {
		reader->stuck_at = reader->next + 1;
		reader->stuck_ns = now_ns;
	}
	return now_ns - reader->stuck_ns < STUCK_NS;
}

int vma_capture_next(struct vma_capture_reader *reader, uint64_t now_ns, struct vma_capture_info *info, uint8_t *data)
{
	const struct vma_capture *ring = reader->ring;
	const uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);

	/* Only slots between next and head are looked at, so a hostile head costs one ring's length at most. */
	if (head < reader->next)
		reader->next = head;
	if (head - reader->next > VMA_CAPTURE_SLOTS) {
		reader->lost_slots += head - reader->next - VMA_CAPTURE_SLOTS;
		reader->next = head - VMA_CAPTURE_SLOTS;
	}
	while (reader->next != head) {
		const struct capture_slot *slot = &ring->slots[reader->next % VMA_CAPTURE_SLOTS];
		const uint64_t state = atomic_load_explicit(&slot->state, memory_order_acquire);
		uint64_t slots = 0;

		if (state < CAPTURE_STATES * reader->next + CAPTURE_FIRST && capture_slot_may_complete(reader, now_ns))
			return 0;
		if (state == CAPTURE_STATES * reader->next + CAPTURE_FIRST)
			slots = capture_record_copy(ring, reader->next, head, info, data);
		if (slots != 0) {
			reader->next += slots;
			reader->more += slots - 1;
			return 1;
		}
		reader->lost_slots++;
		reader->next++;
	}
	return 0;
}

uint64_t vma_capture_lost(const struct vma_capture_reader *reader)
{
	const uint64_t more = atomic_load_explicit(&reader->ring->more, memory_order_relaxed) - reader->more;

	return reader->lost_slots > more ? reader->lost_slots - more : 0;
}
