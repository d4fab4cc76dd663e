/* A capture under threads that put, with readers that keep up and readers that do not. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <vma/test.h>

#include "../capture_priv.h"
#include "../capture_read.h"

#define WRITERS 3
#define CLOCK_STEP UINT64_C(200000000) /* longer than a slot is waited for */

static struct vma_capture *capture;
static _Atomic bool stop;
static _Atomic uint64_t records_put;

static uint64_t capture_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static uint64_t stress_end_ns(void)
{
	const char *text = getenv("STRESS_SECONDS");

	return capture_now_ns() + (uint64_t)((text != NULL && *text != '\0' ? atof(text) : 1) * 1e9);
}

static int setup_capture_memory(void **state)
{
	(void)state;
	capture = mmap(NULL, sizeof(*capture), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	atomic_store(&capture->magic, CAPTURE_MAGIC);
	atomic_store(&capture->snap, VMA_CAPTURE_DATA_MAX);
	atomic_store(&stop, false);
	atomic_store(&records_put, 0);
	return capture == MAP_FAILED ? -1 : 0;
}

static int teardown_capture_memory(void **state)
{
	(void)state;
	return munmap(capture, sizeof(*capture));
}

/* Every byte of a record follows from its id and length, so a torn one shows. One in four has several slots. */
#define RECORD_MAX 9014
static uint32_t record_len(uint32_t id)
{
	return id % 4 == 3 ? id % (RECORD_MAX + 1) : id % 1500;
}

static void *thread_write_capture_records(void *arg)
{
	uint8_t bytes[2][RECORD_MAX];
	uint32_t id = (uint32_t)(uintptr_t)arg;
	uint64_t n = 0;

	for (; !atomic_load_explicit(&stop, memory_order_relaxed); id += WRITERS) {
		struct vma_capture_info info = {.id = id, .len = record_len(id), .kind = VMA_CAPTURE_OUT};
		const uint32_t half = info.len / 2;
		const struct iovec pieces[] = {{bytes[0], half}, {bytes[1], info.len - half}};

		memset(bytes[0], (int)(id % 251), half);
		memset(bytes[1], (int)(id % 251), info.len - half);
		vma_capture_write_packet(capture, &info, pieces, 2);
		n++;
	}
	atomic_fetch_add(&records_put, n);
	return NULL;
}

static void stress_read_and_check_capture_records(long pause_ns, uint64_t *got, uint64_t *lost)
{
	const uint64_t end = stress_end_ns();
	const struct timespec pause = {.tv_nsec = pause_ns};
	struct vma_capture_reader *reader;
	pthread_t threads[WRITERS];
	struct vma_capture_info info;
	uint8_t data[VMA_CAPTURE_DATA_MAX];
	bool running = true;

	assert_int_equal(vma_capture_open_memory(capture, &reader), 0);
	for (uintptr_t i = 0; i < WRITERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, thread_write_capture_records, (void *)i), 0);
	while (running) {
		if (capture_now_ns() >= end) {
			atomic_store(&stop, true);
			for (unsigned i = 0; i < WRITERS; i++)
				pthread_join(threads[i], NULL);
			running = false;
		}
		while (vma_capture_next(reader, capture_now_ns(), &info, data) == 1) {
			assert_int_equal(info.len, record_len(info.id));
			assert_int_equal(info.captured, info.len);
			for (uint32_t i = 0; i < info.captured; i++)
				assert_int_equal(data[i], info.id % 251);
			++*got;
			if (running && capture_now_ns() >= end)
				break;
		}
		if (pause_ns != 0 && running)
			nanosleep(&pause, NULL);
	}
	/* Each slot that was given up is waited for. */
	for (uint64_t now = 0; reader->next != atomic_load(&capture->head) && now < 100000 * CLOCK_STEP;
	     now += CLOCK_STEP)
		while (vma_capture_next(reader, now, &info, data) == 1)
			++*got;
	*lost = vma_capture_lost(reader);
	assert_int_equal(*got + *lost, atomic_load(&records_put));
	vma_capture_close(reader);
}

static void test_a_record_is_whole_or_counted_as_lost(void **state)
{
	uint64_t got = 0, lost = 0;

	(void)state;
	stress_read_and_check_capture_records(0, &got, &lost);
	assert_true(got > 100);
}

static void test_a_slow_reader_loses_counted_records(void **state)
{
	uint64_t got = 0, lost = 0;

	(void)state;
	stress_read_and_check_capture_records(100000000, &got, &lost);
	assert_true(got > 100);
}

static uint64_t count_remaining_capture_records(struct vma_capture_reader *reader, struct vma_capture_info *got,
                                                uint8_t *data)
{
	uint64_t records = 0;

	while (vma_capture_next(reader, 0, got, data) == 1)
		records++;
	while (vma_capture_next(reader, UINT64_MAX, got, data) == 1)
		records++;
	return records;
}

static void test_a_writer_without_a_core_loses_its_record_and_holds_nobody_up(void **state)
{
	const uint64_t number = atomic_load(&capture->head);
	struct vma_capture_info info = {.len = 0}, got;
	struct vma_capture_reader *reader;
	uint8_t data[VMA_CAPTURE_DATA_MAX];

	(void)state;
	assert_int_equal(vma_capture_open_memory(capture, &reader), 0);
	/* It has its number and its slot, and stands still for more than a whole ring. */
	atomic_fetch_add(&capture->head, 1);
	atomic_store(&capture->slots[number % VMA_CAPTURE_SLOTS].state, CAPTURE_STATES * number + CAPTURE_WRITING);
	for (uint32_t i = 0; i < 2; i++) {
		info.id = i;
		vma_capture_write_packet(capture, &info, NULL, 0);
	}
	assert_int_equal(vma_capture_next(reader, 1, &got, data), 0);
	assert_int_equal(vma_capture_next(reader, 1 + CLOCK_STEP, &got, data), 1);
	assert_int_equal(got.id, 0);
	assert_int_equal(vma_capture_lost(reader), 1);
	assert_int_equal(vma_capture_next(reader, 1, &got, data), 1);
	for (uint32_t i = 0; i < VMA_CAPTURE_SLOTS; i++) /* one of them has that slot, and gives up */
		vma_capture_write_packet(capture, &info, NULL, 0);
	assert_int_equal(count_remaining_capture_records(reader, &got, data), VMA_CAPTURE_SLOTS - 1);
	assert_int_equal(vma_capture_lost(reader), 2);
	vma_capture_close(reader);
}

static void fill_with_pattern_of_seed(uint8_t *bytes, uint32_t len, uint32_t seed)
{
	for (uint32_t i = 0; i < len; i++)
		bytes[i] = (uint8_t)(seed + i * 7 + (i >> 8));
}

static void test_a_long_frame_is_whole_in_several_slots(void **state)
{
	static const uint32_t lens[] = {0,    1,    CAPTURE_FIRST_BYTES - 1,
	                                1500, 9014, CAPTURE_FIRST_BYTES + CAPTURE_MORE_BYTES,
	                                9018, 1984, CAPTURE_FIRST_BYTES + CAPTURE_MORE_BYTES + 1,
	                                1985, 2048, VMA_CAPTURE_DATA_MAX,
	                                70000};
	static uint8_t bytes[70000], data[VMA_CAPTURE_DATA_MAX];
	struct vma_capture_reader *reader;
	struct vma_capture_info got;

	(void)state;
	assert_int_equal(vma_capture_open_memory(capture, &reader), 0);
	for (uint32_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		struct vma_capture_info info = {.id = i, .len = lens[i], .kind = VMA_CAPTURE_OUT};
		const struct iovec pieces[] = {{bytes, lens[i] / 3}, {bytes + lens[i] / 3, lens[i] - lens[i] / 3}};

		fill_with_pattern_of_seed(bytes, lens[i], i);
		vma_capture_write_packet(capture, &info, pieces, 2);
	}
	for (uint32_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		assert_int_equal(vma_capture_next(reader, 0, &got, data), 1);
		assert_int_equal(got.id, i);
		assert_int_equal(got.len, lens[i]);
		assert_int_equal(got.captured, lens[i] < VMA_CAPTURE_DATA_MAX ? lens[i] : VMA_CAPTURE_DATA_MAX);
		fill_with_pattern_of_seed(bytes, got.captured, i);
		assert_memory_equal(data, bytes, got.captured);
	}
	assert_int_equal(vma_capture_next(reader, 0, &got, data), 0);
	assert_int_equal(vma_capture_lost(reader), 0);
	vma_capture_close(reader);
}

/* Once around, and a half: the oldest that is left begins in the middle of a record. */
static void test_lost_records_of_several_slots_are_counted_as_records(void **state)
{
	static uint8_t bytes[9014], data[VMA_CAPTURE_DATA_MAX];
	const uint32_t records = VMA_CAPTURE_SLOTS * 3 / 2 / 5;
	const struct iovec piece = {bytes, sizeof(bytes)};
	struct vma_capture_reader *reader;
	struct vma_capture_info got;
	uint64_t n = 0;

	(void)state;
	assert_int_equal(vma_capture_open_memory(capture, &reader), 0);
	for (uint32_t i = 0; i < records; i++) {
		struct vma_capture_info info = {.id = i, .len = sizeof(bytes), .kind = VMA_CAPTURE_OUT};

		vma_capture_write_packet(capture, &info, &piece, 1);
	}
	assert_int_equal(atomic_load(&capture->head), records * 5);
	assert_int_equal(vma_capture_next(reader, 0, &got, data), 1);
	assert_int_equal(got.id, records - VMA_CAPTURE_SLOTS / 5);
	n = 1 + count_remaining_capture_records(reader, &got, data);
	assert_int_equal(got.id, records - 1);
	assert_int_equal(n, VMA_CAPTURE_SLOTS / 5);
	assert_int_equal(vma_capture_lost(reader), records - n);
	vma_capture_close(reader);
}

static void test_a_frame_is_cut_where_it_is_copied(void **state)
{
	static uint8_t bytes[9014], data[VMA_CAPTURE_DATA_MAX];
	struct vma_capture_info info = {.len = sizeof(bytes), .kind = VMA_CAPTURE_IN}, got;
	const struct iovec piece = {bytes, sizeof(bytes)};
	struct vma_capture_reader *reader;

	(void)state;
	assert_int_equal(vma_capture_open_memory(capture, &reader), 0);
	atomic_store(&capture->snap, 61);
	fill_with_pattern_of_seed(bytes, sizeof(bytes), 5);
	vma_capture_write_packet(capture, &info, &piece, 1);
	assert_int_equal(atomic_load(&capture->head), 1);
	assert_int_equal(atomic_load(&capture->slots[0].words[CAPTURE_INFO_WORDS + 8]), 0);
	assert_int_equal(vma_capture_next(reader, 0, &got, data), 1);
	assert_int_equal(got.captured, 61);
	assert_int_equal(got.len, sizeof(bytes));
	assert_memory_equal(data, bytes, 61);
	vma_capture_close(reader);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup_capture_memory, teardown_capture_memory)

static const struct CMUnitTest tests[] = {
        CASE(test_a_record_is_whole_or_counted_as_lost),
        CASE(test_a_slow_reader_loses_counted_records),
        CASE(test_a_writer_without_a_core_loses_its_record_and_holds_nobody_up),
        CASE(test_a_long_frame_is_whole_in_several_slots),
        CASE(test_lost_records_of_several_slots_are_counted_as_records),
        CASE(test_a_frame_is_cut_where_it_is_copied),
};
VMA_TEST_MAIN(tests)
