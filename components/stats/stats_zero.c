/*
 * stats_zero - counters begin at 0 for readers, while writers go on.
 *
 * A writer loads, adds and stores: a 0 that another thread stored in between would be lost. So the present values
 * become the block's base, and readers subtract it. The base names the sequence of the entry: a block that has changed
 * hands since has none. Maxima are set to 0 in the block: a writer raises them only if it finds less.
 */
#include <errno.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stats_priv.h"

static void stats_zero_block(struct stats_segment *segment, size_t place)
{
	struct stats_entry *entry = &segment->entries[place];
	const uint32_t sequence = atomic_load_explicit(&entry->sequence, memory_order_acquire);
	const uint32_t type = atomic_load_explicit(&entry->type, memory_order_acquire);
	const struct vma_stats_field *fields;
	size_t count;

	if (sequence % 2 != 0)
		return; /* it begins at 0 now */
	fields = vma_stats_fields_of_type((enum vma_stats_type)type, &count);
	for (size_t i = 0; i < count; i++) {
		const size_t word = fields[i].offset / sizeof(uint64_t);
		_Atomic uint64_t *counter = (_Atomic uint64_t *)&segment->blocks[place] + word;

		if (fields[i].kind == VMA_STATS_COUNT)
			vma_stats_set((_Atomic uint64_t *)&segment->bases[place] + word,
			              vma_stats_read_counter(counter));
		else if (fields[i].kind == VMA_STATS_MAX)
			vma_stats_set(counter, 0);
	}
	/* Release: a reader that finds this sequence finds these values. */
	atomic_store_explicit(&entry->based, sequence, memory_order_release);
}

/* Space for the bases, before one of their pages is touched. */
static int stats_reserve_space_for_zero_bases(const struct vma_stats *stats)
{
	struct rlimit limit;

	if (stats->memory.fd < 0)
		return 0;
	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < sizeof(struct stats_segment))
		return -EFBIG;
	return syscall(SYS_fallocate, stats->memory.fd, 0, (long)STATS_RESERVED,
	               (long)(sizeof(struct stats_segment) - STATS_RESERVED)) == 0
	               ? 0
	               : -errno;
}

int vma_stats_zero(struct vma_stats *stats)
{
	const int rc = stats_reserve_space_for_zero_bases(stats);

	for (size_t place = 0; rc == 0 && place < STATS_PLACES; place++)
		stats_zero_block(stats->segment, place);
	return rc;
}
