/*
 * fuzz_stats_view - a hostile process, and a hostile file. The input is a list of patches: place (3 bytes), length (1
 * byte), bytes. A place is in the memory, and beyond that in the file that names it. The reader must stay within its
 * copies, end every name, and know every type that it reports.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../stats_priv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct vma_stats *stats;
static struct stats_segment segment_before_patches;
static struct stats_locator locator_before_patches, locator;

static void destroy_stats_at_exit(void)
{
	vma_stats_destroy(stats);
}

static void stats_view_abort_unless(bool holds)
{
	if (!holds)
		abort();
}

/* The same file serves all inputs: a valid one with a block of each type. */
static void stats_view_set_up(void)
{
	stats_view_abort_unless(vma_stats_create("/tmp", &stats) == 0 && stats->file.held.fd >= 0);
	atexit(destroy_stats_at_exit);
	for (int type = VMA_STATS_TYPE_FREE + 1; type < VMA_STATS_TYPE_COUNT; type++)
		vma_stats_block_alloc(stats, (enum vma_stats_type)type, vma_stats_type_name((enum vma_stats_type)type));
	memcpy(&segment_before_patches, stats->segment, sizeof(segment_before_patches));
	stats_view_abort_unless(pread(stats->file.held.fd, &locator_before_patches, sizeof(locator_before_patches),
	                              0) == sizeof(locator_before_patches));
	locator = locator_before_patches;
}

/* The same places get the input's bytes, or what was there before. */
static void patch_segment_bytes(const uint8_t *data, size_t size, bool restores)
{
	while (size >= 4) {
		size_t place =
		        (data[0] | data[1] << 8 | data[2] << 16) % (sizeof(segment_before_patches) + sizeof(locator));
		const bool in_file = place >= sizeof(segment_before_patches);
		size_t len = data[3], room;

		data += 4;
		size -= 4;
		place -= in_file ? sizeof(segment_before_patches) : 0;
		room = (in_file ? sizeof(locator) : sizeof(segment_before_patches)) - place;
		len = len < size ? len : size;
		len = len < room ? len : room;
		if (in_file)
			memcpy((char *)&locator + place,
			       restores ? (const uint8_t *)&locator_before_patches + place : data, len);
		else
			memcpy((char *)stats->segment + place,
			       restores ? (const uint8_t *)&segment_before_patches + place : data, len);
		data += len;
		size -= len;
	}
	stats_view_abort_unless(stats_file_write_locator(&stats->file, &locator) == 0);
}

static void stats_view_read_all(struct vma_stats_view *view)
{
	size_t cursor = 0, count;
	enum vma_stats_type type;
	const char *name;
	const void *block;
	uint64_t sum = 0;

	while (vma_stats_view_next(view, &cursor, &type, &name, &block)) {
		const struct vma_stats_field *fields = vma_stats_fields_of_type(type, &count);
		stats_view_abort_unless(fields != NULL && strlen(name) < VMA_STATS_NAME_MAX);
		for (size_t i = 0; i < count; i++)
			sum += vma_stats_read_counter(
			        (const _Atomic uint64_t *)((const char *)block + fields[i].offset));
	}
	__asm__ volatile("" : : "r"(sum)); /* the reads are the test */
}

/* By snapshots, as vma_stats does. */
static void stats_view_subtract_two_snapshots(const struct vma_stats_view *view)
{
	static struct vma_stats_snapshot before, now;

	vma_stats_view_read(view, &before);
	vma_stats_view_read(view, &now);
	vma_stats_snapshot_subtract(&now, &before);
	for (size_t i = 0; i < now.count; i++)
		stats_view_abort_unless(vma_stats_type_name(now.items[i].type) != NULL &&
		                        strlen(now.items[i].name) < VMA_STATS_NAME_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vma_stats_view *view;

	if (stats == NULL)
		stats_view_set_up();
	patch_segment_bytes(data, size, false);
	if (vma_stats_view_open(stats->file.path, &view) == 0) {
		stats_view_read_all(view);
		stats_view_subtract_two_snapshots(view);
		vma_stats_view_close(view);
	}
	patch_segment_bytes(data, size, true);
	return 0;
}
