/* stats_block - blocks taken and put back. */
#include <stdlib.h>
#include <string.h>

#include "stats_priv.h"

#define NO_BLOCK STATS_BLOCKS

/* What grab hands out when there is not even memory for a private block: its counts mean nothing to anybody. */
static union stats_any_block nowhere;

/*
 * One bit per block: who turns it from 0 to 1 owns entry and block until he turns it back. The swap that takes it
 * acquires, the one that gives it back releases: all that the last owner wrote lies before what the next one writes.
 * The search may miss a block that comes free behind it; then the caller gets a private one, which is allowed.
 */
static unsigned stats_block_alloc_index(struct vma_stats *stats)
{
	for (unsigned w = 0; w < STATS_BLOCKS / 64; w++) {
		uint64_t used = atomic_load_explicit(&stats->used[w], memory_order_relaxed);

		while (used != UINT64_MAX) {
			unsigned bit = (unsigned)__builtin_ctzll(~used);
			if (atomic_compare_exchange_weak_explicit(&stats->used[w], &used, used | 1ull << bit,
			                                          memory_order_acquire, memory_order_relaxed))
				return w * 64 + bit;
		}
	}
	return NO_BLOCK;
}

static void stats_block_free_index(struct vma_stats *stats, unsigned i)
{
	atomic_fetch_and_explicit(&stats->used[i / 64], ~(1ull << i % 64), memory_order_release);
}

/*
 * An entry changes between two steps of its sequence, which is odd meanwhile; the owner of the bit is the only writer.
 * Every store in between releases: it cannot become visible before the odd value. The last step releases as well: it
 * cannot become visible before any of them. The owner's own counts come later and are relaxed, but each goes to a word
 * that was zeroed in between: who sees the count is past the zeroing, and so past the odd value. stats_copy.c has the
 * other half. (ck_sequence is not used because its
 * reader spins while the value is odd: for a writer that died there, or wrote nonsense, that is for ever.)
 */
static void stats_entry_write_begin(struct stats_entry *entry)
{
	/* Release: for vma_stats_block_free, which has counted the drop before. */
	atomic_fetch_add_explicit(&entry->sequence, 1, memory_order_release);
}

static void stats_entry_write_end(struct stats_entry *entry)
{
	atomic_fetch_add_explicit(&entry->sequence, 1, memory_order_release);
}

static void stats_entry_set_name(struct stats_entry *entry, const char *name)
{
	char text[VMA_STATS_NAME_MAX] = "";
	uint64_t words[STATS_NAME_WORDS];

	if (name != NULL)
		memcpy(text, name, strnlen(name, sizeof(text) - 1));
	memcpy(words, text, sizeof(words));
	for (unsigned i = 0; i < STATS_NAME_WORDS; i++)
		atomic_store_explicit(&entry->name[i], words[i], memory_order_release);
}

static void *stats_alloc_private_block(void)
{
	void *block = aligned_alloc(VMA_STATS_ALIGN, sizeof(union stats_any_block));

	return block != NULL ? memset(block, 0, sizeof(union stats_any_block)) : &nowhere;
}

void *vma_stats_block_alloc(struct vma_stats *stats, enum vma_stats_type type, const char *name)
{
	unsigned i = stats != NULL ? stats_block_alloc_index(stats) : NO_BLOCK;
	_Atomic uint64_t *words;
	struct stats_entry *entry;

	if (i == NO_BLOCK)
		return stats_alloc_private_block();
	entry = &stats->segment->entries[i];
	words = (_Atomic uint64_t *)&stats->segment->blocks[i];
	stats_entry_write_begin(entry);
	stats_entry_set_name(entry, name);
	for (size_t w = 0; w < STATS_BLOCK_WORDS; w++)
		atomic_store_explicit(&words[w], 0, memory_order_release);
	atomic_store_explicit(&entry->type, type, memory_order_release);
	stats_entry_write_end(entry);
	return words;
}

void stats_retired_init(struct stats_segment *segment)
{
	for (unsigned type = VMA_STATS_TYPE_FREE + 1; type < VMA_STATS_TYPE_COUNT; type++) {
		struct stats_entry *entry = &segment->entries[STATS_RETIRED(type)];

		stats_entry_set_name(entry, "retired");
		atomic_store_explicit(&entry->type, type, memory_order_release);
		atomic_store_explicit(&entry->sequence, 2, memory_order_release); /* not 0: it has no base yet */
	}
}

/* Adds what a block has counted since it was zeroed. Several threads may drop blocks of a type at once. */
static void stats_add_block_to_retired_counts(struct stats_segment *segment, size_t place)
{
	const struct stats_entry *entry = &segment->entries[place];
	const enum vma_stats_type type = (enum vma_stats_type)atomic_load_explicit(&entry->type, memory_order_relaxed);
	const bool has_base = atomic_load_explicit(&entry->based, memory_order_acquire) ==
	                      atomic_load_explicit(&entry->sequence, memory_order_relaxed);
	const _Atomic uint64_t *const words = (const _Atomic uint64_t *)&segment->blocks[place];
	const _Atomic uint64_t *const base = (const _Atomic uint64_t *)&segment->bases[place];
	_Atomic uint64_t *const retired = (_Atomic uint64_t *)&segment->blocks[STATS_RETIRED(type)];
	size_t count;
	const struct vma_stats_field *fields = vma_stats_fields_of_type(type, &count);

	for (size_t i = 0; i < count; i++) {
		const size_t word = fields[i].offset / sizeof(uint64_t);
		uint64_t value = vma_stats_read_counter(&words[word]);

		if (fields[i].kind != VMA_STATS_COUNT || value == 0)
			continue;
		value -= has_base ? vma_stats_read_counter(&base[word]) : 0;
		atomic_fetch_add_explicit(&retired[word], value, memory_order_release);
	}
}

/*
 * The counts are in the block, then in both, then in the retired one only. A reader that sees any of that sees
 * drops.begun moved, because each of these stores releases; it sees drops.done moved only when all is over.
 */
void vma_stats_block_free(struct vma_stats *stats, void *block)
{
	union stats_any_block *mine = block;
	struct stats_entry *entry;
	size_t i;

	if (block == NULL || block == &nowhere)
		return;
	if (stats == NULL || mine < stats->segment->blocks || mine >= stats->segment->blocks + STATS_BLOCKS) {
		free(block);
		return;
	}
	i = (size_t)(mine - stats->segment->blocks);
	entry = &stats->segment->entries[i];
	atomic_fetch_add_explicit(&stats->segment->drops.begun, 1, memory_order_relaxed);
	stats_add_block_to_retired_counts(stats->segment, i);
	stats_entry_write_begin(entry);
	atomic_store_explicit(&entry->type, VMA_STATS_TYPE_FREE, memory_order_release);
	stats_entry_write_end(entry);
	atomic_fetch_add_explicit(&stats->segment->drops.done, 1, memory_order_release);
	stats_block_free_index(stats, (unsigned)i);
}
