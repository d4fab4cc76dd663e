/* One process that is captured, here this one itself: requests, records, gaps, and its end. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <vma/test.h>

#include "../source.h"

#define SEC UINT64_C(1000000000)
#define NOW (1000 * SEC)

static char dir[64];
static struct vma_stats *stats;
static struct vma_capture *capture; /* NULL: nothing has been asked for yet */
static struct merge merge;
static struct source *source;

static int setup_source(void **state)
{
	struct vma_stats_view *view;
	char path[128];

	(void)state;
	capture = NULL;
	merge = (struct merge){.queues = NULL};
	snprintf(dir, sizeof(dir), "/tmp/vma_dump_test.XXXXXX");
	if (mkdtemp(dir) == NULL || vma_stats_create(dir, &stats) < 0)
		return -1;
	snprintf(path, sizeof(path), "%s/vmastat.%d", dir, getpid());
	if (vma_stats_view_open(path, &view) < 0)
		return -1;
	source = source_create(view, getpid(), &merge);
	return source != NULL ? 0 : -1;
}

static int teardown_source(void **state)
{
	struct merge_packet *packet;

	(void)state;
	while ((packet = merge_pop_oldest_packet(&merge, 0, true)) != NULL)
		free(packet);
	source_destroy(source, &merge);
	vma_stats_destroy(stats);
	stats = NULL;
	return rmdir(dir);
}

/* As the library's internal thread does. How many requests there were. */
static unsigned serve_requests(void)
{
	struct vma_stats_request request;
	unsigned n = 0;
	int rc;

	for (; vma_stats_next_request(stats, &request); n++) {
		assert_int_equal(request.type, VMA_STATS_REQUEST_CAPTURE);
		assert_int_equal(request.value, SOURCE_LEASE_SECONDS);
		do
			rc = vma_stats_enable_packet_capture(stats, request.value, request.fd, &capture);
		while (rc == -EAGAIN);
		assert_int_equal(rc, 0);
		vma_stats_count_capture_grant(stats);
	}
	return n;
}

static int poll_source_at_time(uint64_t now_ns)
{
	return source_keep_capture_requested(source, 2000, &merge, now_ns);
}

static void start_capture(void)
{
	for (unsigned i = 0; i < 4 && !source->captures; i++) {
		assert_int_equal(poll_source_at_time(NOW), 0);
		serve_requests();
	}
	assert_true(source->captures);
}

static void put_record(uint32_t id)
{
	struct vma_capture_info info = {.id = id, .len = 100, .time_ns = id + 1, .kind = VMA_CAPTURE_OUT};
	static uint8_t frame[100];
	const struct iovec piece = {frame, sizeof(frame)};

	vma_capture_write_packet(capture, &info, &piece, 1);
}

static void assert_oldest_merged_packet_is(uint32_t id, uint64_t lost, bool interrupted)
{
	struct merge_packet *packet = merge_pop_oldest_packet(&merge, 0, true);

	assert_non_null(packet);
	assert_int_equal(packet->info.id, id);
	assert_int_equal(packet->lost, lost);
	assert_int_equal(packet->interrupted, interrupted);
	assert_ptr_equal(packet->queue->of, source);
	free(packet);
}

static void test_packets_come_for_certain_after_the_second_request(void **state)
{
	(void)state;
	assert_int_equal(poll_source_at_time(NOW), 0);
	assert_false(source->captures);
	assert_int_equal(poll_source_at_time(NOW + 1), 0); /* its ring is not there yet */
	assert_int_equal(serve_requests(), 1);
	assert_int_equal(poll_source_at_time(NOW + 2), 0);
	put_record(1); /* between the two */
	assert_false(source->captures);
	assert_int_equal(serve_requests(), 1);
	assert_int_equal(poll_source_at_time(NOW + 3), 0);
	assert_true(source->captures);
	put_record(2);
	assert_true(source_move_packets_to_merge(source, &merge, NOW));
	assert_oldest_merged_packet_is(1, 0, false);
	assert_oldest_merged_packet_is(2, 0, false);
	assert_false(source_move_packets_to_merge(source, &merge, NOW));
}

static void test_a_process_is_asked_twice_a_second(void **state)
{
	(void)state;
	start_capture();
	serve_requests();
	for (unsigned i = 1; i <= 20; i++) {
		assert_int_equal(poll_source_at_time(NOW + i * SEC / 10), 0);
		assert_int_equal(serve_requests(), i % 5 == 0);
	}
	assert_int_equal(source->interruptions, 0);
}

static void test_a_process_that_does_not_answer_is_given_up(void **state)
{
	(void)state;
	assert_int_equal(poll_source_at_time(NOW), 0);
	assert_int_equal(poll_source_at_time(NOW + SOURCE_START_NS / 2), 0);
	assert_int_equal(poll_source_at_time(NOW + SOURCE_START_NS + 1), -ETIMEDOUT);
}

static void test_a_process_that_has_gone_ends_its_capture(void **state)
{
	(void)state;
	start_capture();
	put_record(1);
	vma_stats_destroy(stats);
	stats = NULL;
	assert_true(poll_source_at_time(NOW + SEC) < 0);
	source_read_remaining_records(source, &merge, NOW + SEC); /* what it had copied is there still */
	assert_oldest_merged_packet_is(1, 0, false);
}

/* The output was stuck: nobody asked, and the process ended the capture. */
static void test_a_gap_is_told_behind_what_came_before_it(void **state)
{
	(void)state;
	start_capture();
	put_record(1);
	put_record(2);
	assert_int_equal(poll_source_at_time(NOW + SOURCE_LEASE_SECONDS * SEC + SEC), 0);
	assert_int_equal(source->interruptions, 1);
	serve_requests();
	put_record(3);
	put_record(4);
	assert_true(source_move_packets_to_merge(source, &merge, NOW + 4 * SEC));
	assert_oldest_merged_packet_is(1, 0, false);
	assert_oldest_merged_packet_is(2, 0, false);
	assert_oldest_merged_packet_is(3, 0, true);
	assert_oldest_merged_packet_is(4, 0, false);
	assert_int_equal(poll_source_at_time(NOW + 4 * SEC), 0);
	assert_int_equal(source->interruptions, 1);
}

static void test_lost_records_are_told_to_the_next_packet(void **state)
{
	(void)state;
	start_capture();
	put_record(0);
	assert_true(source_move_packets_to_merge(source, &merge, NOW));
	for (uint32_t i = 0; i < VMA_CAPTURE_SLOTS + 10; i++)
		put_record(1 + i);
	assert_true(source_move_packets_to_merge(source, &merge, NOW));
	assert_oldest_merged_packet_is(0, 0, false);
	assert_oldest_merged_packet_is(11, 10, false);
	assert_oldest_merged_packet_is(12, 0, false);
	assert_int_equal(source_lost_packet_count(source), 10);
}

#define FLOOD_PAUSE_US 300
#define FLOODS 400

static unsigned record_floods_left, flood_records;

static void put_records(unsigned n)
{
	for (uint32_t id = 0; id < n; id++)
		put_record(id);
}

/* In the middle of the reader's work, and again a moment after that. */
static void write_records_during_read(int number)
{
	const struct itimerval soon = {.it_value = {.tv_usec = FLOOD_PAUSE_US}};

	(void)number;
	put_records(flood_records);
	if (record_floods_left > 0 && --record_floods_left > 0)
		setitimer(ITIMER_REAL, &soon, NULL);
}

static unsigned pop_and_free_merged_packets(void)
{
	struct merge_packet *packet;
	unsigned n = 0;

	for (; (packet = merge_pop_oldest_packet(&merge, 0, true)) != NULL; n++)
		free(packet);
	return n;
}

/* Twice as many as the reader takes between two floods: it never sees the end. Far more, and it would lose them all. */
static unsigned flood_size_reader_cannot_drain(void)
{
	struct timespec begin, end;
	uint64_t ns;

	put_records(VMA_CAPTURE_SLOTS / 2);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	source_move_packets_to_merge(source, &merge, NOW);
	clock_gettime(CLOCK_MONOTONIC, &end);
	ns = (uint64_t)(end.tv_sec - begin.tv_sec) * SEC + (uint64_t)end.tv_nsec - (uint64_t)begin.tv_nsec;
	assert_int_equal(pop_and_free_merged_packets(), VMA_CAPTURE_SLOTS / 2);
	return (unsigned)(FLOOD_PAUSE_US * UINT64_C(1000) * VMA_CAPTURE_SLOTS / (ns + 1));
}

/* Else nobody would look whether the user has ended the capture, or ask the process again. */
static void test_a_process_that_never_stops_putting_does_not_hold_the_reader(void **state)
{
	const struct sigaction flood = {.sa_handler = write_records_during_read};

	(void)state;
	start_capture();
	for (unsigned round = 0; round < 8; round++) { /* on a busy machine the reader may see the end all the same */
		flood_records = flood_size_reader_cannot_drain();
		record_floods_left = FLOODS; /* a reader that goes on to the end comes to one */
		sigaction(SIGALRM, &flood, NULL);
		raise(SIGALRM);
		source_move_packets_to_merge(source, &merge, NOW);
		record_floods_left = 0;
		signal(SIGALRM, SIG_IGN);
		assert_in_range(pop_and_free_merged_packets(), 1, VMA_CAPTURE_SLOTS);
		source_read_remaining_records(source, &merge, NOW);
		pop_and_free_merged_packets();
	}
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup_source, teardown_source)

static const struct CMUnitTest tests[] = {
        CASE(test_packets_come_for_certain_after_the_second_request),
        CASE(test_a_process_is_asked_twice_a_second),
        CASE(test_a_process_that_does_not_answer_is_given_up),
        CASE(test_a_process_that_has_gone_ends_its_capture),
        CASE(test_a_gap_is_told_behind_what_came_before_it),
        CASE(test_lost_records_are_told_to_the_next_packet),
        CASE(test_a_process_that_never_stops_putting_does_not_hold_the_reader),
};

VMA_TEST_MAIN(tests)
