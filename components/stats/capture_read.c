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
	*out = reader;
	return 0;
}

uint64_t vma_capture_grants(const struct vma_capture_reader *reader)
{
	return atomic_load_explicit(&reader->ring->grants, memory_order_acquire);
}

/* False: it has been overwritten meanwhile, or is no record. */
static bool slot_copy(const struct capture_slot *slot, uint64_t number, struct vma_capture_info *info, uint8_t *data)
{
	uint64_t words[CAPTURE_WORDS];
	const uint8_t *const bytes = (const uint8_t *)words;
	size_t n = CAPTURE_INFO_WORDS;

	for (size_t i = 0; i < n; i++)
		words[i] = atomic_load_explicit(&slot->words[i], memory_order_acquire);
	memcpy(info, words, sizeof(*info));
	if (info->kind >= VMA_CAPTURE_KINDS || info->captured > VMA_CAPTURE_DATA_MAX || info->captured > info->len)
		return false;
	n += (info->captured + sizeof(uint64_t) - 1) / sizeof(uint64_t);
	for (size_t i = CAPTURE_INFO_WORDS; i < n; i++)
		words[i] = atomic_load_explicit(&slot->words[i], memory_order_acquire);
	if (atomic_load_explicit(&slot->state, memory_order_acquire) != 2 * number + 2)
		return false;
	memcpy(data, bytes + sizeof(*info), info->captured);
	info->text[sizeof(info->text) - 1] = '\0';
	for (char *c = info->text; *c != '\0'; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	return true;
}

/* Whether record `next` may still come. A writer that gave it up leaves the slot as it was. */
static bool may_still_come(struct vma_capture_reader *reader, uint64_t now_ns)
{
	if (reader->stuck_at != reader->next + 1) {
		reader->stuck_at = reader->next + 1;
		reader->stuck_ns = now_ns;
	}
	return now_ns - reader->stuck_ns < STUCK_NS;
}

int vma_capture_next(struct vma_capture_reader *reader, uint64_t now_ns, struct vma_capture_info *info, uint8_t *data,
                     uint64_t *lost)
{
	const struct vma_capture *ring = reader->ring;
	const uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);

	/* Only records between next and head are looked at, so a hostile head costs one ring's length at most. */
	if (head < reader->next)
		reader->next = head;
	if (head - reader->next > VMA_CAPTURE_SLOTS) {
		*lost += head - reader->next - VMA_CAPTURE_SLOTS;
		reader->next = head - VMA_CAPTURE_SLOTS;
	}
	while (reader->next != head) {
		const struct capture_slot *slot = &ring->slots[reader->next % VMA_CAPTURE_SLOTS];
		const uint64_t state = atomic_load_explicit(&slot->state, memory_order_acquire);

		if (state < 2 * reader->next + 2 && may_still_come(reader, now_ns))
			return 0;
		if (state == 2 * reader->next + 2 && slot_copy(slot, reader->next, info, data)) {
			reader->next++;
			return 1;
		}
		*lost += 1;
		reader->next++;
	}
	return 0;
}
