/* stats_copy - a block as readers see it: values that belong together, less those at the last request to zero it. */
#include <string.h>

#include "stats_priv.h"

#define TRIES 8 /* per block, while it changes hands; then it is passed over */

static void stats_copy_printable_entry_name(struct vma_stats_item *out, const struct stats_entry *entry)
{
	uint64_t words[STATS_NAME_WORDS];

	for (unsigned i = 0; i < STATS_NAME_WORDS; i++)
		words[i] = atomic_load_explicit(&entry->name[i], memory_order_acquire);
	memcpy(out->name, words, sizeof(out->name));
	out->name[sizeof(out->name) - 1] = '\0';
	for (char *c = out->name; *c != '\0'; c++)
		if (*c < ' ' || *c > '~') /* it may end on a terminal */
			*c = '?';
}

static void stats_copy_block_words_atomically(void *to, const void *from)
{
	const _Atomic uint64_t *words = from;
	uint64_t copy[STATS_BLOCK_WORDS];

	for (size_t w = 0; w < STATS_BLOCK_WORDS; w++)
		copy[w] = atomic_load_explicit(&words[w], memory_order_acquire);
	memcpy(to, copy, sizeof(copy));
}

static _Atomic uint64_t *stats_counter_of_field(const void *block, const struct vma_stats_field *field)
{
	return (_Atomic uint64_t *)((uintptr_t)block + field->offset);
}

/* A counter that is less than its base was read while the base was being made. */
static void stats_subtract_base_counters(enum vma_stats_type type, void *block, const void *base)
{
	size_t count;
	const struct vma_stats_field *fields = vma_stats_fields_of_type(type, &count);

	for (size_t i = 0; i < count; i++) {
		_Atomic uint64_t *counter = stats_counter_of_field(block, &fields[i]);
		const uint64_t value = vma_stats_read_counter(counter),
		               then = vma_stats_read_counter(stats_counter_of_field(base, &fields[i]));

		if (fields[i].kind == VMA_STATS_COUNT && then <= value)
			vma_stats_set(counter, value - then);
	}
}

/*
 * The reader's half of the sequence (stats_block.c has the writer's): even before and the same after means that type,
 * name and block belong together. The first load acquires, so what follows is not older; every load in between
 * acquires, so the second look at the sequence is not older than any of them: whoever read a value of the next owner
 * reads the next owner's sequence too.
 */
bool stats_copy_entry_consistently(const struct stats_segment *segment, size_t place, struct vma_stats_item *out)
{
	const struct stats_entry *entry = &segment->entries[place];

	for (int tries = 0; tries < TRIES; tries++) {
		const uint32_t sequence = atomic_load_explicit(&entry->sequence, memory_order_acquire);
		const uint32_t type = atomic_load_explicit(&entry->type, memory_order_acquire);
		union stats_any_block base;
		bool has_base;

		if (sequence % 2 != 0)
			continue;
		if (type == VMA_STATS_TYPE_FREE || type >= VMA_STATS_TYPE_COUNT)
			return false;
		stats_copy_printable_entry_name(out, entry);
		has_base = atomic_load_explicit(&entry->based, memory_order_acquire) == sequence;
		if (has_base)
			stats_copy_block_words_atomically(&base, &segment->bases[place]);
		stats_copy_block_words_atomically(out->words, &segment->blocks[place]);
		if (atomic_load_explicit(&entry->sequence, memory_order_relaxed) != sequence)
			continue;
		out->type = (enum vma_stats_type)type;
		out->place = (uint32_t)place;
		out->sequence = sequence;
		if (has_base)
			stats_subtract_base_counters(out->type, out->words, &base);
		return true;
	}
	return false;
}

void vma_stats_copy_block(const struct vma_stats *stats, enum vma_stats_type type, const void *block, void *out)
{
	const union stats_any_block *mine = block;
	struct vma_stats_item item;

	if (stats != NULL && mine >= stats->segment->blocks && mine < stats->segment->blocks + STATS_BLOCKS &&
	    stats_copy_entry_consistently(stats->segment, (size_t)(mine - stats->segment->blocks), &item)) {
		memcpy(out, item.words, stats_type_block_size(type));
		return;
	}
	memcpy(item.words, block, stats_type_block_size(type));
	memcpy(out, item.words, stats_type_block_size(type));
}

void vma_stats_for_each_block(const struct vma_stats *stats, enum vma_stats_type type,
                              void (*fn)(void *arg, const void *block), void *arg)
{
	struct vma_stats_item item;

	for (size_t place = 0; place < STATS_BLOCKS; place++)
		if (stats_copy_entry_consistently(stats->segment, place, &item) && item.type == type)
			fn(arg, item.words);
}
