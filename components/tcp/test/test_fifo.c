/* What one thread sees of a fifo: bytes, spans, memory. Two threads: stress_fifo.c. */
#include <stdlib.h>
#include <string.h>

#include <vma/test.h>

#include "../fifo.h"

static struct tcp_fifo fifo;
static unsigned allocated, allocations;
static size_t last_allocation_size;
static unsigned alloc_failures_left; /* of the next allocations */

static void *tcp_fifo_counted_alloc(size_t size)
{
	void *memory;

	if (alloc_failures_left > 0) {
		alloc_failures_left--;
		return NULL;
	}
	allocated++;
	allocations++;
	last_allocation_size = size;
	memory = malloc(size);
	memset(memory, 0xa5, size); /* alloc need not clear */
	return memory;
}

static void tcp_fifo_counted_free(void *memory)
{
	allocated--;
	free(memory);
}

static unsigned frames_put_n;

static void tcp_fifo_counted_put(const struct fifo_memory *memory, struct fifo_chunk *chunk)
{
	(void)memory;
	frames_put_n++;
	tcp_fifo_counted_free(chunk);
}

static const struct fifo_memory memory = {tcp_fifo_counted_alloc, tcp_fifo_counted_free, NULL, tcp_fifo_counted_put};

static int setup(void **state)
{
	(void)state;
	allocated = allocations = alloc_failures_left = frames_put_n = 0;
	fifo_init(&fifo, &memory);
	return 0;
}

static int teardown_fifo_check_no_leak(void **state)
{
	(void)state;
	fifo_fini(&fifo);
	assert_int_equal(allocated, 0);
	return 0;
}

static uint8_t tcp_fifo_pattern_byte_at(uint64_t position)
{
	return (uint8_t)(position * 7 + position / 251);
}

/* Writes as the positions say; in as many spans as it takes. */
static void fifo_put_pattern(size_t bytes)
{
	while (bytes > 0) {
		uint64_t at = fifo_produced(&fifo);
		struct iovec spans[3];
		unsigned n = fifo_reserve(&fifo, bytes, spans, 3);
		size_t sum = 0;

		assert_in_range(n, 1, 3);
		for (unsigned i = 0; i < n; i++)
			for (size_t k = 0; k < spans[i].iov_len; k++)
				((uint8_t *)spans[i].iov_base)[k] = tcp_fifo_pattern_byte_at(at + sum++);
		assert_true(sum <= bytes);
		fifo_commit(&fifo, sum);
		bytes -= sum;
	}
}

static void check_spans_have_pattern(uint64_t at, const struct iovec *spans, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		for (size_t k = 0; k < spans[i].iov_len; k++)
			assert_int_equal(((uint8_t *)spans[i].iov_base)[k], tcp_fifo_pattern_byte_at(at++));
}

static void fifo_take_and_check_bytes(size_t bytes)
{
	while (bytes > 0) {
		struct iovec span;
		size_t len;

		assert_int_equal(fifo_peek_spans(&fifo, 0, &span, 1), 1);
		check_spans_have_pattern(fifo_consumed(&fifo), &span, 1);
		len = span.iov_len < bytes ? span.iov_len : bytes;
		fifo_consume(&fifo, len);
		bytes -= len;
	}
}

static void test_new_fifo_is_empty_and_has_no_memory(void **state)
{
	struct iovec span;

	(void)state;
	assert_int_equal(fifo_queued_bytes(&fifo), 0);
	assert_int_equal(fifo_peek_spans(&fifo, 0, &span, 1), 0);
	assert_int_equal(fifo_span(&fifo, 0).iov_len, 0);
	fifo_consume(&fifo, 0);
	fifo_commit(&fifo, 0);
	assert_int_equal(fifo_reserve(&fifo, 0, &span, 1), 0);
	assert_int_equal(allocations, 0);
}

static void test_bytes_come_out_as_they_went_in(void **state)
{
	uint32_t seed = 1;

	(void)state;
	for (int i = 0; i < 2000; i++) {
		uint64_t held;

		seed = seed * 1664525 + 1013904223;
		fifo_put_pattern(seed >> 8 & (i % 50 == 0 ? 0x3ffff : 0x3ff));
		held = fifo_queued_bytes(&fifo);
		if (held > 0)
			fifo_take_and_check_bytes(i % 37 == 0 ? held : (seed >> 16) % held);
	}
	fifo_take_and_check_bytes(fifo_queued_bytes(&fifo));
}

static void test_conversation_in_small_messages_stays_in_the_same_memory(void **state)
{
	struct iovec first, span;

	(void)state;
	assert_int_equal(fifo_reserve(&fifo, 64, &first, 1), 1);
	fifo_commit(&fifo, 64);
	fifo_consume(&fifo, 64);
	for (int i = 0; i < 100; i++) {
		assert_int_equal(fifo_reserve(&fifo, 64, &span, 1), 1);
		assert_ptr_equal(span.iov_base, first.iov_base);
		fifo_commit(&fifo, 64);
		assert_int_equal(fifo_peek_spans(&fifo, 0, &span, 1), 1);
		assert_ptr_equal(span.iov_base, first.iov_base);
		fifo_consume(&fifo, 64);
	}
	assert_int_equal(allocations, 1);
	assert_true(last_allocation_size <= 512);
}

static void test_bytes_do_not_move_until_they_are_consumed(void **state)
{
	uint8_t *at[64];

	(void)state;
	for (unsigned i = 0; i < 64; i++) {
		fifo_put_pattern(1000);
		at[i] = fifo_span(&fifo, i * 1000ULL).iov_base;
	}
	for (unsigned i = 0; i < 64; i++) {
		for (unsigned k = i; k < 64; k++)
			assert_ptr_equal(fifo_span(&fifo, k * 1000ULL).iov_base, at[k]);
		fifo_take_and_check_bytes(1000);
		fifo_put_pattern(10);
	}
}

static void test_filling_fifo_takes_larger_chunks_and_few(void **state)
{
	(void)state;
	fifo_put_pattern(10);
	assert_true(last_allocation_size <= 512);
	for (int i = 0; i < 10240; i++)
		fifo_put_pattern(100);
	assert_int_equal(last_allocation_size, 65536);
	assert_true(allocations < 30);
}

static void test_chunks_are_as_large_as_they_are_to_be(void **state)
{
	struct iovec spans[4];

	(void)state;
	fifo.chunk_bytes = 1000;
	assert_int_equal(fifo_reserve(&fifo, 2500, spans, 4), 3);
	assert_int_equal(spans[0].iov_len, 1000);
	assert_int_equal(spans[1].iov_len, 1000);
	assert_int_equal(spans[2].iov_len, 500);
	fifo_commit(&fifo, 0);
	for (int i = 0; i < 100; i++)
		fifo_put_pattern(100);
	assert_int_equal(last_allocation_size, 1000 + sizeof(struct fifo_chunk));
	fifo_take_and_check_bytes(10000);
}

static void test_consumer_gives_chunks_back_one_by_one(void **state)
{
	unsigned before;

	(void)state;
	fifo_put_pattern(1 << 20);
	before = allocated;
	fifo_take_and_check_bytes(1 << 19);
	assert_true(allocated < before * 2 / 3);
	assert_true(allocated >= (1 << 19) / 65536);
}

static void test_large_fifo_that_runs_empty_keeps_no_chunk(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++) {
		fifo_put_pattern(200000);
		fifo_take_and_check_bytes(200000);
		assert_int_equal(allocated, 0);
		fifo_put_pattern(1);
		assert_true(last_allocation_size <= 512);
		fifo_take_and_check_bytes(1);
		assert_int_equal(allocated, 1);
	}
}

static void test_chunk_that_is_being_written_is_not_given_back(void **state)
{
	struct iovec span;

	(void)state;
	fifo_put_pattern(10000);
	assert_int_equal(fifo_reserve(&fifo, 100, &span, 1), 1);
	fifo_take_and_check_bytes(10000);
	assert_int_equal(allocated, 1);
	for (int i = 0; i < 100; i++)
		((uint8_t *)span.iov_base)[i] = tcp_fifo_pattern_byte_at(10000 + (uint64_t)i);
	fifo_commit(&fifo, 100);
	fifo_take_and_check_bytes(100);
	assert_int_equal(allocated, 0);
}

static void test_commit_may_take_less_and_keeps_no_unused_chunk(void **state)
{
	struct iovec spans[8];

	(void)state;
	fifo_put_pattern(100);
	assert_true(fifo_reserve(&fifo, 200000, spans, 8) > 1);
	fifo_commit(&fifo, 0);
	assert_int_equal(allocated, 1);
	assert_int_equal(fifo_queued_bytes(&fifo), 100);
	assert_true(fifo_reserve(&fifo, 200000, spans, 8) > 1);
	((uint8_t *)spans[0].iov_base)[0] = tcp_fifo_pattern_byte_at(100);
	fifo_commit(&fifo, 1);
	assert_int_equal(allocated, 1);
	fifo_take_and_check_bytes(101);
}

static void test_reservation_is_as_long_as_asked_in_enough_spans(void **state)
{
	struct iovec spans[8];
	size_t sum = 0;
	unsigned n;

	(void)state;
	fifo_put_pattern(400);
	n = fifo_reserve(&fifo, 100000, spans, 8);
	for (unsigned i = 0; i < n; i++)
		sum += spans[i].iov_len;
	assert_int_equal(sum, 100000);
	assert_int_equal(fifo_reserve(&fifo, 100000, spans, 1), 1);
	assert_true(spans[0].iov_len < 512);
}

static void test_front_skips_and_stops_where_the_bytes_end(void **state)
{
	struct iovec spans[16];
	uint64_t sum = 0;
	unsigned n;

	(void)state;
	fifo_put_pattern(150000);
	fifo_take_and_check_bytes(333);
	n = fifo_peek_spans(&fifo, 70000, spans, 16);
	check_spans_have_pattern(70333, spans, n);
	for (unsigned i = 0; i < n; i++)
		sum += spans[i].iov_len;
	assert_int_equal(sum, 150000 - 70333);
	assert_int_equal(fifo_peek_spans(&fifo, 150000 - 333, spans, 16), 0);
	assert_int_equal(fifo_peek_spans(&fifo, SIZE_MAX / 2, spans, 16), 0);
	assert_int_equal(fifo_peek_spans(&fifo, 150000 - 334, spans, 16), 1);
	assert_int_equal(spans[0].iov_len, 1);
}

static void test_span_goes_forward_and_back(void **state)
{
	static const uint64_t positions[] = {0, 1, 70000, 149999, 100, 65535, 65536, 120000, 5};

	(void)state;
	fifo_put_pattern(150000);
	for (unsigned i = 0; i < sizeof(positions) / sizeof(*positions); i++) {
		struct iovec span = fifo_span(&fifo, positions[i]);

		assert_true(span.iov_len > 0);
		check_spans_have_pattern(positions[i], &span, 1);
	}
	fifo_take_and_check_bytes(100000);
	for (uint64_t at = 100000; at < 150000;) {
		struct iovec span = fifo_span(&fifo, at);

		check_spans_have_pattern(at, &span, 1);
		at += span.iov_len;
	}
	assert_int_equal(fifo_span(&fifo, 150000).iov_len, 0);
}

static void test_out_of_memory_takes_nothing_and_passes(void **state)
{
	struct iovec spans[4];

	(void)state;
	alloc_failures_left = 1;
	assert_int_equal(fifo_reserve(&fifo, 10, spans, 4), 0);
	fifo_put_pattern(480);
	alloc_failures_left = 1;
	assert_int_equal(fifo_reserve(&fifo, 2000, spans, 4), 1); /* what the first chunk still holds */
	fifo_put_pattern(2000);
	for (alloc_failures_left = 1; fifo_reserve(&fifo, 1, spans, 1) == 1;
	     alloc_failures_left = 1) { /* to the tail's end */
		alloc_failures_left = 0;
		fifo_put_pattern(1);
	}
	fifo_take_and_check_bytes(fifo_queued_bytes(&fifo));
	assert_int_equal(allocated, 0); /* the reserve that failed does not hold the large tail */
}

static void test_positions_beyond_32_bits_change_nothing(void **state)
{
	(void)state;
	atomic_store(&fifo.produced, UINT32_MAX - 50000ULL);
	atomic_store(&fifo.consumed, UINT32_MAX - 50000ULL);
	fifo_put_pattern(100000);
	fifo_take_and_check_bytes(100000);
	assert_int_equal(allocated, 0);
}

/* ---- chunks with frames ---- */

/* A chunk of so many bytes as the positions say; of a frame, or of memory of its own. */
static struct fifo_chunk *new_filled_chunk(uint64_t at, size_t bytes, bool in_frame)
{
	struct fifo_chunk *chunk = tcp_fifo_counted_alloc(sizeof(*chunk) + bytes);

	*chunk = (struct fifo_chunk){.size = bytes,
	                             .bytes = (uint8_t *)(chunk + 1),
	                             .frame = in_frame ? (struct vma_buf *)&frames_put_n : NULL,
	                             .is_large = true};
	for (size_t k = 0; k < bytes; k++)
		chunk->bytes[k] = tcp_fifo_pattern_byte_at(at + k);
	return chunk;
}

static void fifo_append_chunk_of_bytes(size_t bytes, bool in_frame)
{
	struct fifo_chunk *chunk = new_filled_chunk(fifo_produced(&fifo), bytes, in_frame);

	fifo_append_chunks(&fifo, chunk, chunk, bytes);
}

static void fifo_consume_all(void)
{
	while (fifo_queued_bytes(&fifo) > 0) {
		uint64_t at = fifo_consumed(&fifo);
		struct iovec spans[2];
		unsigned n = fifo_peek_spans(&fifo, 0, spans, 2);
		size_t sum = 0;

		assert_in_range(n, 1, 2);
		check_spans_have_pattern(at, spans, n);
		for (unsigned i = 0; i < n; i++)
			sum += spans[i].iov_len;
		fifo_consume(&fifo, sum);
	}
}

static void test_frame_is_given_back_when_the_fifo_runs_empty(void **state)
{
	(void)state;
	for (unsigned i = 1; i <= 10; i++) {
		fifo_append_chunk_of_bytes(100, true);
		assert_ptr_equal(fifo_peek_frame(&fifo, 0), &frames_put_n);
		assert_int_equal(frames_put_n, i - 1);
		fifo_consume_all();
		assert_int_equal(frames_put_n, i);
		assert_null(fifo_peek_frame(&fifo, 0));
	}
	assert_int_equal(allocated, 0);
}

static void test_frames_come_between_bytes_at_any_place(void **state)
{
	static const size_t bytes[] = {1, 100, 463, 464, 465, 5000, 70000};

	(void)state;
	for (size_t i = 0; i < sizeof(bytes) / sizeof(*bytes); i++) {
		fifo_put_pattern(bytes[i]);
		fifo_append_chunk_of_bytes(300, true);
		fifo_append_chunk_of_bytes(1, false);
		fifo_append_chunk_of_bytes(200, true);
		fifo_put_pattern(bytes[i]);
		fifo_append_chunk_of_bytes(1460, true);
		fifo_put_pattern(10);
		if (i % 2 != 0)
			fifo_consume_all();
	}
	fifo_consume_all();
	assert_int_equal(frames_put_n, 3 * sizeof(bytes) / sizeof(*bytes));
	fifo_put_pattern(100);
	fifo_consume_all();
}

static void test_frame_follows_bytes_that_were_read(void **state)
{
	(void)state;
	fifo_put_pattern(100);
	fifo_consume_all(); /* the small chunk stays, empty */
	fifo_append_chunk_of_bytes(300, true);
	fifo_put_pattern(50);
	assert_ptr_equal(fifo_peek_frame(&fifo, 299), &frames_put_n);
	assert_null(fifo_peek_frame(&fifo, 300));
	fifo_consume_all();
	assert_int_equal(frames_put_n, 1);
}

static void test_reserved_bytes_are_given_up_for_a_frame(void **state)
{
	struct iovec spans[4];

	(void)state;
	fifo_put_pattern(400);
	assert_true(fifo_reserve(&fifo, 5000, spans, 4) > 1);
	fifo_append_chunk_of_bytes(300, true);
	fifo_consume_all();
	assert_true(allocated <= 1);
}

static void fifo_skip_bytes_in_the_middle_of_use(unsigned kind)
{
	if (kind == 0)
		fifo_put_pattern(100); /* a small chunk stays, empty */
	else if (kind == 1)
		fifo_put_pattern(70000); /* none does */
	else if (kind == 2)
		fifo_append_chunk_of_bytes(300, true);
	else if (kind == 3)
		fifo_append_chunk_of_bytes(300, false);
	fifo_consume_all();
	fifo_skip(&fifo, 1 + kind * 1000);
	assert_int_equal(fifo_queued_bytes(&fifo), 0);
	assert_null(fifo_peek_frame(&fifo, 0));
}

static void test_bytes_go_past_an_empty_fifo(void **state)
{
	uint64_t position;

	(void)state;
	fifo_skip(&fifo, 77); /* before its first chunk */
	for (unsigned i = 0; i < 5 * 5 * 5; i++) {
		fifo_skip_bytes_in_the_middle_of_use(i % 5);
		fifo_skip_bytes_in_the_middle_of_use(i / 5 % 5);
		position = fifo_produced(&fifo);
		assert_int_equal(fifo_consumed(&fifo), position);
		fifo_skip(&fifo, 10);
		assert_int_equal(fifo_produced(&fifo), position + 10);
		fifo_skip_bytes_in_the_middle_of_use(i / 25);
	}
	assert_true(allocated <= 1);
	fifo_put_pattern(3000);
	fifo_append_chunk_of_bytes(300, true);
	fifo_consume_all();
}

/* The producer has a large tail in hand while the consumer empties the fifo: the chunk stays, at an old position. */
static void test_bytes_go_past_a_chunk_that_was_not_given_back(void **state)
{
	struct iovec spans[2];

	(void)state;
	fifo_put_pattern(60000);
	assert_int_equal(fifo_reserve(&fifo, 1, spans, 2), 1);
	fifo_consume_all();
	assert_int_equal(allocated, 1);
	fifo_commit(&fifo, 0);
	fifo_skip(&fifo, 500);
	fifo_put_pattern(60500);
	fifo_consume_all();
	fifo_append_chunk_of_bytes(300, true);
	(void)fifo_reserve(&fifo, 1, spans, 2);
	fifo_consume_all();
	fifo_commit(&fifo, 0);
	fifo_skip(&fifo, 500);
	fifo_append_chunk_of_bytes(300, true);
	fifo_consume_all();
}

static void test_end_of_a_fifo_gives_frames_back(void **state)
{
	(void)state;
	fifo_put_pattern(100);
	fifo_append_chunk_of_bytes(300, true);
	fifo_append_chunk_of_bytes(300, true);
	fifo_fini(&fifo);
	assert_int_equal(frames_put_n, 2);
	assert_int_equal(allocated, 0);
	fifo_init(&fifo, &memory);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_new_fifo_is_empty_and_has_no_memory, setup, teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_bytes_come_out_as_they_went_in, setup, teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_conversation_in_small_messages_stays_in_the_same_memory, setup,
                                        teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_bytes_do_not_move_until_they_are_consumed, setup,
                                        teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_filling_fifo_takes_larger_chunks_and_few, setup,
                                        teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_chunks_are_as_large_as_they_are_to_be, setup, teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_consumer_gives_chunks_back_one_by_one, setup, teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_large_fifo_that_runs_empty_keeps_no_chunk, setup,
                                        teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_chunk_that_is_being_written_is_not_given_back, setup,
                                        teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_commit_may_take_less_and_keeps_no_unused_chunk, setup,
                                        teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_reservation_is_as_long_as_asked_in_enough_spans, setup,
                                        teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_front_skips_and_stops_where_the_bytes_end, setup,
                                        teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_span_goes_forward_and_back, setup, teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_out_of_memory_takes_nothing_and_passes, setup,
                                        teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_positions_beyond_32_bits_change_nothing, setup,
                                        teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_frame_is_given_back_when_the_fifo_runs_empty, setup,
                                        teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_frames_come_between_bytes_at_any_place, setup,
                                        teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_frame_follows_bytes_that_were_read, setup, teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_reserved_bytes_are_given_up_for_a_frame, setup,
                                        teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_bytes_go_past_an_empty_fifo, setup, teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_bytes_go_past_a_chunk_that_was_not_given_back, setup,
                                        teardown_fifo_check_no_leak),
        cmocka_unit_test_setup_teardown(test_end_of_a_fifo_gives_frames_back, setup, teardown_fifo_check_no_leak),
};

VMA_TEST_MAIN(tests)
