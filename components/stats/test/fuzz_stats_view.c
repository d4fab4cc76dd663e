/*
 * fuzz_stats_view - a hostile statistics file. The input is a list of patches on a valid one: place (3 bytes), length
 * (1 byte), bytes. The reader must stay within its copies, end every name, and know every type that it reports.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../stats_priv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct vma_stats *stats;
static struct stats_segment pristine;

static void remove_file(void)
{
	vma_stats_destroy(stats);
}

static void stats_view_check(bool holds)
{
	if (!holds)
		abort();
}

/* The same file serves all inputs: a valid one with a block of each type. */
static void stats_view_set_up(void)
{
	stats_view_check(vma_stats_create("/tmp", &stats) == 0 && stats->file.fd >= 0);
	atexit(remove_file);
	for (int type = VMA_STATS_TYPE_FREE + 1; type < VMA_STATS_TYPE_COUNT; type++)
		vma_stats_grab(stats, (enum vma_stats_type)type, vma_stats_type_name((enum vma_stats_type)type));
	memcpy(&pristine, stats->segment, sizeof(pristine));
}

static void patch(const uint8_t *data, size_t size)
{
	while (size >= 4) {
		size_t place = (data[0] | data[1] << 8 | data[2] << 16) % sizeof(pristine);
		size_t len = data[3];

		data += 4;
		size -= 4;
		len = len < size ? len : size;
		len = len < sizeof(pristine) - place ? len : sizeof(pristine) - place;
		memcpy((char *)stats->segment + place, data, len);
		data += len;
		size -= len;
	}
}

static void stats_view_read_all(const struct vma_stats_view *view)
{
	size_t cursor = 0, count;
	enum vma_stats_type type;
	const char *name;
	const void *block;
	uint64_t sum = 0;

	while (vma_stats_view_next(view, &cursor, &type, &name, &block)) {
		const struct vma_stats_field *fields = vma_stats_fields(type, &count);
		stats_view_check(fields != NULL && strlen(name) < VMA_STATS_NAME_MAX);
		for (size_t i = 0; i < count; i++)
			sum += vma_stats_read((const _Atomic uint64_t *)((const char *)block + fields[i].offset));
	}
	__asm__ volatile("" : : "r"(sum)); /* the reads are the test */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vma_stats_view *view;

	if (stats == NULL)
		stats_view_set_up();
	patch(data, size);
	if (vma_stats_view_open(stats->file.path, &view) == 0) {
		stats_view_read_all(view);
		vma_stats_view_close(view);
	}
	memcpy(stats->segment, &pristine, sizeof(pristine));
	return 0;
}
