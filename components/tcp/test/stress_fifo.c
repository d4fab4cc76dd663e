/*
 * One thread writes, one reads, at speeds that change: every byte comes once and in order, whether the fifo runs empty,
 * stays large or is given back under the writer's hands; and no chunk is left. STRESS_SECONDS.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <vma/test.h>

#include "../fifo.h"

enum { ROUND = 4 << 20, FULL = 300000 };

static struct tcp_fifo fifo;
static _Atomic unsigned allocated;
static _Thread_local bool is_reader;
static unsigned chunks_freed_by_reader; /* chunks, by the reader when it had emptied the fifo */

static void *fifo_counted_alloc(size_t size)
{
	atomic_fetch_add(&allocated, 1);
	return malloc(size);
}

static void fifo_counted_free(void *memory)
{
	if (is_reader && fifo_queued_bytes(&fifo) == 0)
		chunks_freed_by_reader++;
	atomic_fetch_sub(&allocated, 1);
	free(memory);
}

static void fifo_counted_put(const struct fifo_memory *memory, struct fifo_chunk *chunk)
{
	(void)memory;
	fifo_counted_free(chunk);
}

static const struct fifo_memory memory = {fifo_counted_alloc, fifo_counted_free, NULL, fifo_counted_put};
static bool producer_uses_frames; /* of what is produced, some comes in frames */

static uint32_t fifo_next_random(uint32_t *seed)
{
	return (*seed = *seed * 1664525 + 1013904223) >> 8;
}

static void fifo_random_delay(uint32_t *seed)
{
	uint32_t r = fifo_next_random(seed);

	if (r % 64 == 0)
		sched_yield();
	for (volatile uint32_t i = 0; r % 16 == 1 && i < r % 2048; i++)
		;
}

/* Small messages for a while, then large ones. */
static size_t fifo_next_message_size(uint32_t *seed, uint64_t at)
{
	return 1 + fifo_next_random(seed) % (at >> 19 & 1 ? 40000 : 700);
}

/* One word per position divisible by 8 would do; a byte per position finds more. */
static uint8_t fifo_pattern_byte_at(uint64_t position)
{
	return (uint8_t)(position * 7 + position / 251);
}

static void fifo_append_frame(uint64_t at, size_t bytes)
{
	struct fifo_chunk *chunk = fifo_counted_alloc(sizeof(*chunk) + bytes);

	*chunk = (struct fifo_chunk){
	        .size = bytes, .bytes = (uint8_t *)(chunk + 1), .frame = (struct vma_buf *)&fifo, .is_large = true};
	for (size_t k = 0; k < bytes; k++)
		chunk->bytes[k] = fifo_pattern_byte_at(at + k);
	fifo_append_chunks(&fifo, chunk, chunk, bytes);
}

static void *thread_fill_fifo_with_pattern(void *arg)
{
	uint32_t seed = *(uint32_t *)arg;
	uint64_t at = 0;

	while (at < ROUND) {
		struct iovec spans[4];
		size_t wanted = fifo_next_message_size(&seed, at);
		unsigned n;
		size_t sum = 0;

		if (fifo_queued_bytes(&fifo) > FULL) {
			sched_yield();
			continue;
		}
		if (wanted > ROUND - at)
			wanted = ROUND - at;
		if (producer_uses_frames && fifo_next_random(&seed) % 2 == 0) {
			wanted = wanted < 2000 ? wanted : 2000;
			fifo_append_frame(at, wanted);
			at += wanted;
			continue;
		}
		n = fifo_reserve(&fifo, wanted, spans, 4);
		if (n == 0)
			abort();
		fifo_random_delay(&seed);
		for (unsigned i = 0; i < n; i++)
			for (size_t k = 0; k < spans[i].iov_len; k++)
				((uint8_t *)spans[i].iov_base)[k] = fifo_pattern_byte_at(at + sum++);
		if (fifo_next_random(&seed) % 8 == 0) /* commit less than was reserved */
			sum = fifo_next_random(&seed) % (sum + 1);
		fifo_commit(&fifo, sum);
		at += sum;
		fifo_random_delay(&seed);
	}
	return NULL;
}

static size_t fifo_check_pattern(uint64_t at, const struct iovec *spans, unsigned n)
{
	size_t sum = 0;

	for (unsigned i = 0; i < n; i++)
		for (size_t k = 0; k < spans[i].iov_len; k++)
			if (((uint8_t *)spans[i].iov_base)[k] != fifo_pattern_byte_at(at + sum++))
				fail_msg("wrong byte at %llu", (unsigned long long)(at + sum - 1));
	return sum;
}

static void fifo_read_and_check_all(uint32_t seed)
{
	uint64_t at = 0;

	is_reader = true;
	while (at < ROUND) {
		struct iovec spans[3];
		uint32_t r = fifo_next_random(&seed);
		size_t sum;

		if (r % 4 == 0 && !producer_uses_frames) { /* by position, as segments do */
			spans[0] = fifo_span(&fifo, at);
			sum = fifo_check_pattern(at, spans, spans[0].iov_len > 0);
		} else {
			sum = fifo_check_pattern(at, spans, fifo_peek_spans(&fifo, 0, spans, 3));
		}
		if (sum == 0) {
			sched_yield();
			continue;
		}
		if (r % 8 == 1)
			sum = 1 + r % sum;
		fifo_consume(&fifo, sum);
		at += sum;
		fifo_random_delay(&seed);
	}
	assert_int_equal(fifo_queued_bytes(&fifo), 0);
	is_reader = false;
}

static void stress_fifo_producer_against_reader(void)
{
	const char *seconds = getenv("STRESS_SECONDS");
	time_t end = time(NULL) + (seconds != NULL ? atoi(seconds) : 1);
	uint32_t seed = 1, producer_seed;

	do {
		pthread_t producer;

		fifo_init(&fifo, &memory);
		producer_seed = ++seed * 7919;
		assert_int_equal(pthread_create(&producer, NULL, thread_fill_fifo_with_pattern, &producer_seed), 0);
		fifo_read_and_check_all(seed);
		assert_int_equal(pthread_join(producer, NULL), 0);
		assert_true(atomic_load(&allocated) <= 1);
		fifo_fini(&fifo);
		assert_int_equal(atomic_load(&allocated), 0);
	} while (time(NULL) < end);
	assert_true(chunks_freed_by_reader > 0); /* or that hand-over was not tested */
}

static void test_bytes_come_once_and_in_order(void **state)
{
	(void)state;
	producer_uses_frames = false;
	stress_fifo_producer_against_reader();
}

static void test_frames_come_in_their_order_among_bytes(void **state)
{
	(void)state;
	producer_uses_frames = true;
	stress_fifo_producer_against_reader();
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_bytes_come_once_and_in_order),
                                          cmocka_unit_test(test_frames_come_in_their_order_among_bytes)};

VMA_TEST_MAIN(tests)
