/* A capture under threads that put, with readers that keep up and readers that do not. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <vma/test.h>

#include "../capture_priv.h"

#define WRITERS 3
#define CLOCK_STEP UINT64_C(200000000) /* longer than a slot is waited for */

static struct vma_capture *capture;
static _Atomic bool stop;

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

static int capture_make(void **state)
{
	(void)state;
	capture = mmap(NULL, sizeof(*capture), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	atomic_store(&capture->magic, CAPTURE_MAGIC);
	atomic_store(&stop, false);
	return capture == MAP_FAILED ? -1 : 0;
}

static int capture_unmake(void **state)
{
	(void)state;
	return munmap(capture, sizeof(*capture));
}

/* Every byte of a record follows from its id and length, so a torn one shows. */
static uint32_t record_len(uint32_t id)
{
	return id % 1500;
}

static void *put_records(void *arg)
{
	uint8_t bytes[2][1500];
	uint32_t id = (uint32_t)(uintptr_t)arg;

	for (; !atomic_load_explicit(&stop, memory_order_relaxed); id += WRITERS) {
		struct vma_capture_info info = {.id = id, .len = record_len(id), .kind = VMA_CAPTURE_OUT};
		const uint32_t half = info.len / 2;
		const struct iovec pieces[] = {{bytes[0], half}, {bytes[1], info.len - half}};

		memset(bytes, (int)(id % 251), sizeof(bytes));
		vma_capture_put(capture, &info, pieces, 2);
	}
	return NULL;
}

static void read_records(long pause_ns, uint64_t *got, uint64_t *lost)
{
	const uint64_t end = stress_end_ns();
	const struct timespec pause = {.tv_nsec = pause_ns};
	struct vma_capture_reader *reader;
	pthread_t threads[WRITERS];
	struct vma_capture_info info;
	uint8_t data[VMA_CAPTURE_DATA_MAX];
	bool running = true;
	uint64_t first;

	assert_int_equal(vma_capture_open_memory(capture, &reader), 0);
	first = atomic_load(&capture->head);
	for (uintptr_t i = 0; i < WRITERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, put_records, (void *)i), 0);
	while (running) {
		if (capture_now_ns() >= end) {
			atomic_store(&stop, true);
			for (unsigned i = 0; i < WRITERS; i++)
				pthread_join(threads[i], NULL);
			running = false;
		}
		while (vma_capture_next(reader, capture_now_ns(), &info, data, lost) == 1) {
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
	for (uint64_t now = 0; *got + *lost < atomic_load(&capture->head) - first && now < 100000 * CLOCK_STEP;
	     now += CLOCK_STEP)
		while (vma_capture_next(reader, now, &info, data, lost) == 1)
			++*got;
	assert_int_equal(*got + *lost, atomic_load(&capture->head) - first);
	vma_capture_close(reader);
}

static void test_a_record_is_whole_or_counted_as_lost(void **state)
{
	uint64_t got = 0, lost = 0;

	(void)state;
	read_records(0, &got, &lost);
	assert_true(got > 100);
}

static void test_a_slow_reader_loses_counted_records(void **state)
{
	uint64_t got = 0, lost = 0;

	(void)state;
	read_records(100000000, &got, &lost);
	assert_true(got > 100);
}

static void test_a_writer_without_a_core_loses_its_record_and_holds_nobody_up(void **state)
{
	const uint64_t number = atomic_load(&capture->head);
	struct vma_capture_info info = {.len = 0}, got;
	struct vma_capture_reader *reader;
	uint8_t data[VMA_CAPTURE_DATA_MAX];
	uint64_t lost = 0, records = 0;

	(void)state;
	assert_int_equal(vma_capture_open_memory(capture, &reader), 0);
	/* It has its number and its slot, and stands still for more than a whole ring. */
	atomic_fetch_add(&capture->head, 1);
	atomic_store(&capture->slots[number % VMA_CAPTURE_SLOTS].state, 2 * number + 1);
	for (uint32_t i = 0; i < 2; i++) {
		info.id = i;
		vma_capture_put(capture, &info, NULL, 0);
	}
	assert_int_equal(vma_capture_next(reader, 1, &got, data, &lost), 0);
	assert_int_equal(vma_capture_next(reader, 1 + 200000000, &got, data, &lost), 1);
	assert_int_equal(got.id, 0);
	assert_int_equal(lost, 1);
	assert_int_equal(vma_capture_next(reader, 1, &got, data, &lost), 1);
	for (uint32_t i = 0; i < VMA_CAPTURE_SLOTS; i++) /* one of them has that slot, and gives up */
		vma_capture_put(capture, &info, NULL, 0);
	while (vma_capture_next(reader, 0, &got, data, &lost) == 1)
		records++;
	while (vma_capture_next(reader, UINT64_MAX, &got, data, &lost) == 1)
		records++;
	assert_int_equal(records, VMA_CAPTURE_SLOTS - 1);
	assert_int_equal(lost, 2);
	vma_capture_close(reader);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_record_is_whole_or_counted_as_lost, capture_make, capture_unmake),
        cmocka_unit_test_setup_teardown(test_a_slow_reader_loses_counted_records, capture_make, capture_unmake),
        cmocka_unit_test_setup_teardown(test_a_writer_without_a_core_loses_its_record_and_holds_nobody_up, capture_make,
                                        capture_unmake),
};
VMA_TEST_MAIN(tests)
