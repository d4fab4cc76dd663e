/* The memory of a capture: made in pieces by who is asked for it, so that no thread that puts has to wait for a page.
 * */
#include <errno.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vma/test.h>

#include "../capture_priv.h"
#include "../stats_priv.h"

static char dir[64];
static struct vma_stats *stats;
static struct vma_stats_view *view;

static int setup_stats_and_open_view(void **state)
{
	char path[128];

	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/vma_capture_test.XXXXXX");
	if (mkdtemp(dir) == NULL || vma_stats_create(dir, &stats) < 0)
		return -1;
	snprintf(path, sizeof(path), "%s/vmastat.%d", dir, getpid());
	return vma_stats_view_open(path, &view);
}

static int teardown_stats_and_view(void **state)
{
	(void)state;
	vma_stats_view_close(view);
	vma_stats_destroy(stats);
	return rmdir(dir);
}

static struct vma_capture *create_capture_until_ready(int snap, unsigned *calls)
{
	struct vma_capture *capture;
	int rc;

	for (*calls = 1; (rc = vma_stats_enable_packet_capture(stats, 1, snap, &capture)) == -EAGAIN; ++*calls)
		;
	assert_int_equal(rc, 0);
	return capture;
}

static void test_a_capture_is_seen_when_all_of_its_memory_is_there(void **state)
{
	struct vma_capture_reader *reader;
	struct vma_capture *capture;
	unsigned calls = 0;

	(void)state;
	assert_int_equal(vma_capture_open(view, &reader), -EAGAIN);
	while (vma_stats_enable_packet_capture(stats, 1, 0, &capture) == -EAGAIN) {
		assert_int_equal(vma_capture_open(view, &reader), -EAGAIN);
		calls++;
	}
	assert_in_range(calls, 64, 256); /* a small part of it each */
	assert_int_equal(vma_capture_open(view, &reader), 0);
	vma_capture_close(reader);
	assert_int_equal(vma_stats_enable_packet_capture(stats, 1, 0, &capture), 0);
}

static long page_faults_of_this_thread(void)
{
	struct rusage usage;

	assert_int_equal(getrusage(RUSAGE_THREAD, &usage), 0);
	return usage.ru_minflt;
}

static void test_no_put_waits_for_a_page(void **state)
{
	static uint8_t frame[1500];
	const struct iovec piece = {frame, sizeof(frame)};
	const long pages = VMA_CAPTURE_BYTES / 4096;
	struct vma_capture *capture;
	unsigned calls;
	long faults;

	(void)state;
#ifdef __SANITIZE_THREAD__
	vma_test_skip("the sanitizer's own memory is touched with each word");
#endif
	capture = create_capture_until_ready(0, &calls);
	faults = page_faults_of_this_thread();
	for (uint32_t i = 0; i < VMA_CAPTURE_SLOTS; i++) {
		struct vma_capture_info info = {.id = i, .len = sizeof(frame), .kind = VMA_CAPTURE_IN};

		vma_capture_write_packet(capture, &info, &piece, 1);
	}
	faults = page_faults_of_this_thread() - faults;
	if (faults > pages / 4) /* a sanitizer may touch some of its own */
		fail_msg("%ld page faults, for memory of %ld pages", faults, pages);
}

static void test_values_that_are_none_are_refused(void **state)
{
	struct vma_capture *capture;

	(void)state;
	assert_int_equal(vma_stats_enable_packet_capture(stats, 0, 0, &capture), -EINVAL);
	assert_int_equal(vma_stats_enable_packet_capture(stats, -1, 0, &capture), -EINVAL);
	assert_int_equal(vma_stats_enable_packet_capture(stats, VMA_CAPTURE_LEASE_MAX + 1, 0, &capture), -EINVAL);
	assert_int_equal(vma_stats_capture_fd(stats), -1);
}

static void test_lengths_that_are_none_are_all(void **state)
{
	static const int snaps[] = {-1, 0, INT32_MIN, VMA_CAPTURE_DATA_MAX, VMA_CAPTURE_DATA_MAX + 1, INT32_MAX};
	struct vma_capture *capture;
	unsigned calls;

	(void)state;
	capture = create_capture_until_ready(60, &calls);
	assert_int_equal(atomic_load(&capture->snap), 60);
	for (unsigned i = 0; i < sizeof(snaps) / sizeof(snaps[0]); i++) {
		stats->snap.asked = 60;
		assert_int_equal(vma_stats_enable_packet_capture(stats, 1, snaps[i], &capture), 0);
		assert_int_equal(atomic_load(&capture->snap), VMA_CAPTURE_DATA_MAX);
	}
}

/* A reader that asked in the last period may still be there; one that asked before that has gone. */
static void test_a_readers_length_holds_until_the_end_of_the_next_period(void **state)
{
	struct vma_capture *capture;
	unsigned calls;

	(void)state;
	capture = create_capture_until_ready(3000, &calls);
	for (unsigned period = 0; period < 2; period++) {
		assert_int_equal(vma_stats_enable_packet_capture(stats, 1, 60, &capture), 0);
		assert_int_equal(atomic_load(&capture->snap), 3000);
		stats->snap.since_ns -= VMA_CAPTURE_LEASE_MAX * UINT64_C(1000000000);
	}
	assert_int_equal(vma_stats_enable_packet_capture(stats, 1, 60, &capture), 0);
	assert_int_equal(atomic_load(&capture->snap), 60);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup_stats_and_open_view, teardown_stats_and_view)

static const struct CMUnitTest tests[] = {
        CASE(test_a_capture_is_seen_when_all_of_its_memory_is_there),
        CASE(test_no_put_waits_for_a_page),
        CASE(test_values_that_are_none_are_refused),
        CASE(test_lengths_that_are_none_are_all),
        CASE(test_a_readers_length_holds_until_the_end_of_the_next_period),
};

VMA_TEST_MAIN(tests)
