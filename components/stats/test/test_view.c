/* The reader's side: what it sees of an honest file, and that a dishonest one is harmless. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vma/test.h>

#include "../stats_priv.h"

static char dir[64], path[128];
static struct vma_stats *stats;

static int view_make_stats(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/vma_stats_test.XXXXXX");
	if (mkdtemp(dir) == NULL)
		return -1;
	snprintf(path, sizeof(path), "%s/vmastat.%d", dir, getpid());
	return vma_stats_create(dir, &stats);
}

static int view_remove_stats(void **state)
{
	(void)state;
	vma_stats_destroy(stats);
	stats = NULL;
	return rmdir(dir);
}

static void test_blocks_are_seen_with_type_name_and_values(void **state)
{
	struct vma_stats_ring *ring = vma_stats_grab(stats, VMA_STATS_TYPE_RING, "ring 0");
	struct vma_stats_nic *nic = vma_stats_grab(stats, VMA_STATS_TYPE_NIC, "eth0");
	struct vma_stats_view *view;
	enum vma_stats_type type;
	const char *name;
	const void *block, *first;
	size_t cursor = 0;

	(void)state;
	vma_stats_add(&ring->rx.rx_packets, 11);
	vma_stats_add(&ring->tx.tx_drop_queue, 12);
	vma_stats_add(&nic->flows, 13);
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	assert_int_equal(vma_stats_view_pid(view), getpid());
	assert_true(vma_stats_view_next(view, &cursor, &type, &name, &block));
	assert_int_equal(type, VMA_STATS_TYPE_RING);
	assert_string_equal(name, "ring 0");
	assert_int_equal(vma_stats_read(&((const struct vma_stats_ring *)block)->rx.rx_packets), 11);
	assert_int_equal(vma_stats_read(&((const struct vma_stats_ring *)block)->tx.tx_drop_queue), 12);
	first = block;
	assert_true(vma_stats_view_next(view, &cursor, &type, &name, &block));
	assert_int_equal(type, VMA_STATS_TYPE_NIC);
	assert_string_equal(name, "eth0");
	assert_int_equal(vma_stats_read(&((const struct vma_stats_nic *)block)->flows), 13);
	assert_false(vma_stats_view_next(view, &cursor, &type, &name, &block));
	assert_int_equal(vma_stats_read(&((const struct vma_stats_ring *)first)->rx.rx_packets), 11);

	vma_stats_add(&ring->rx.rx_packets, 1); /* and again, later */
	vma_stats_drop(stats, nic);
	cursor = 0;
	assert_true(vma_stats_view_next(view, &cursor, &type, &name, &block));
	assert_int_equal(vma_stats_read(&((const struct vma_stats_ring *)block)->rx.rx_packets), 12);
	assert_false(vma_stats_view_next(view, &cursor, &type, &name, &block));
	vma_stats_view_close(view);
	vma_stats_drop(stats, ring);
}

static void test_long_name_is_cut(void **state)
{
	void *cq = vma_stats_grab(stats, VMA_STATS_TYPE_CQ, "a name of more than thirty-one bytes, surely");
	struct vma_stats_view *view;
	enum vma_stats_type type;
	const char *name;
	const void *block;
	size_t cursor = 0;

	(void)state;
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	assert_true(vma_stats_view_next(view, &cursor, &type, &name, &block));
	assert_string_equal(name, "a name of more than thirty-one ");
	vma_stats_view_close(view);
	vma_stats_drop(stats, cq);
}

static void test_cursor_beyond_the_end_finds_nothing(void **state)
{
	struct vma_stats_view *view;
	enum vma_stats_type type;
	const char *name;
	const void *block;
	size_t cursor = SIZE_MAX;

	(void)state;
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	assert_false(vma_stats_view_next(view, &cursor, &type, &name, &block));
	vma_stats_view_close(view);
}

static void test_what_is_not_a_segment_is_refused(void **state)
{
	struct vma_stats_view *view;
	char other[128], zeros[4096] = "";
	int fd;

	(void)state;
	snprintf(other, sizeof(other), "%s/other", dir);
	assert_int_equal(vma_stats_view_open(other, &view), -ENOENT);
	assert_int_equal(vma_stats_view_open(dir, &view), -EPROTO);
	assert_int_equal(mkfifo(other, 0600), 0);
	assert_int_equal(vma_stats_view_open(other, &view), -EPROTO); /* and does not wait for a writer */
	unlink(other);
	assert_int_equal(symlink(path, other), 0);
	assert_int_equal(vma_stats_view_open(other, &view), -ELOOP);
	unlink(other);
	fd = open(other, O_RDWR | O_CREAT | O_EXCL, 0600);
	assert_int_equal(vma_stats_view_open(other, &view), -EPROTO);
	assert_int_equal(write(fd, zeros, sizeof(zeros)), sizeof(zeros));
	assert_int_equal(vma_stats_view_open(other, &view), -EPROTO);
	assert_int_equal(ftruncate(fd, sizeof(struct stats_segment)), 0);
	assert_int_equal(vma_stats_view_open(other, &view), -EPROTO);
	close(fd);
	unlink(other);
}

static void test_any_other_layout_is_refused(void **state)
{
	struct stats_header *header = &stats->segment->header;
	unsigned char *bytes = (unsigned char *)header;
	size_t checked = 0;
	struct vma_stats_view *view;

	(void)state;
	for (size_t i = 0; i < offsetof(struct stats_header, pid); i++) {
		bytes[i] ^= 0x10;
		assert_int_equal(vma_stats_view_open(path, &view), -EPROTO);
		bytes[i] ^= 0x10;
		checked++;
	}
	assert_true(checked > 40);
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	vma_stats_view_close(view);
}

static void test_file_of_the_wrong_length_is_refused(void **state)
{
	struct vma_stats_view *view;

	(void)state;
	assert_int_equal(truncate(path, sizeof(struct stats_segment) - 1), 0);
	assert_int_equal(vma_stats_view_open(path, &view), -EPROTO);
	assert_int_equal(truncate(path, sizeof(struct stats_segment)), 0);
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	vma_stats_view_close(view);
}

static void test_file_truncated_later_ends_the_view(void **state)
{
	void *cq = vma_stats_grab(stats, VMA_STATS_TYPE_CQ, "x");
	struct vma_stats_view *view;
	enum vma_stats_type type;
	const char *name;
	const void *block;
	size_t cursor = 0;

	(void)state;
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	assert_int_equal(truncate(path, 4096), 0);
	assert_false(vma_stats_view_next(view, &cursor, &type, &name, &block));
	assert_int_equal(truncate(path, sizeof(struct stats_segment)), 0);
	vma_stats_view_close(view);
	vma_stats_drop(stats, cq);
}

static void test_wild_entries_are_passed_over_or_made_harmless(void **state)
{
	void *cq = vma_stats_grab(stats, VMA_STATS_TYPE_CQ, "x");
	struct stats_entry *entries = stats->segment->entries;
	struct vma_stats_view *view;
	enum vma_stats_type type;
	const char *name;
	const void *block;
	size_t cursor = 0;

	(void)state;
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	entries[1].type = 0xffffffff;
	entries[2].type = VMA_STATS_TYPE_COUNT;
	entries[3].type = VMA_STATS_TYPE_RING;
	entries[3].sequence = 1; /* a writer that died while it changed it */
	entries[4].type = VMA_STATS_TYPE_RING;
	for (unsigned i = 0; i < STATS_NAME_WORDS; i++)
		entries[4].name[i] = 0x4141414141414141u; /* no end */
	assert_true(vma_stats_view_next(view, &cursor, &type, &name, &block));
	assert_int_equal(cursor, 1);
	assert_true(vma_stats_view_next(view, &cursor, &type, &name, &block));
	assert_int_equal(cursor, 5);
	assert_int_equal(strlen(name), VMA_STATS_NAME_MAX - 1);
	assert_false(vma_stats_view_next(view, &cursor, &type, &name, &block));
	vma_stats_view_close(view);
	vma_stats_drop(stats, cq);
}

static void test_every_counter_has_a_place_of_its_own_in_its_block(void **state)
{
	(void)state;
	for (int t = VMA_STATS_TYPE_FREE + 1; t < VMA_STATS_TYPE_COUNT; t++) {
		enum vma_stats_type type = (enum vma_stats_type)t;
		size_t count;
		const struct vma_stats_field *fields = vma_stats_fields(type, &count);

		assert_non_null(vma_stats_type_name(type));
		assert_true(count > 0);
		for (size_t i = 0; i < count; i++) {
			assert_true(fields[i].offset + 8 <= stats_type_bytes(type));
			assert_int_equal(fields[i].offset % 8, 0);
			assert_true(i == 0 || fields[i].offset > fields[i - 1].offset);
			assert_true(fields[i].name[0] != '\0' && fields[i].text[0] != '\0');
		}
	}
}

static void test_unknown_type_has_no_counters(void **state)
{
	size_t count = 7;

	(void)state;
	assert_null(vma_stats_fields(VMA_STATS_TYPE_FREE, &count));
	assert_int_equal(count, 0);
	assert_null(vma_stats_fields((enum vma_stats_type) - 1, &count));
	assert_null(vma_stats_type_name(VMA_STATS_TYPE_COUNT));
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_blocks_are_seen_with_type_name_and_values, view_make_stats,
                                        view_remove_stats),
        cmocka_unit_test_setup_teardown(test_long_name_is_cut, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_cursor_beyond_the_end_finds_nothing, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_what_is_not_a_segment_is_refused, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_any_other_layout_is_refused, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_file_of_the_wrong_length_is_refused, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_file_truncated_later_ends_the_view, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_wild_entries_are_passed_over_or_made_harmless, view_make_stats,
                                        view_remove_stats),
        cmocka_unit_test(test_every_counter_has_a_place_of_its_own_in_its_block),
        cmocka_unit_test(test_unknown_type_has_no_counters),
};

VMA_TEST_MAIN(tests)
