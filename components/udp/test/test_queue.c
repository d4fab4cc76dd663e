/* The queue of datagrams between a ring and a socket: order, limits, growth, counters that wrap. */
#include <vma/test.h>

#include "../datagram_ring.h"

static struct udp_queue queue;

static int setup(void **state)
{
	(void)state;
	return udp_queue_init(&queue);
}

static int teardown(void **state)
{
	(void)state;
	udp_queue_fini(&queue, NULL);
	return 0;
}

static bool push_datagram(uint32_t number, uint16_t len, uint64_t limit_bytes)
{
	const struct udp_datagram datagram = {.src = number, .len = len};

	return udp_queue_push(&queue, &datagram, limit_bytes);
}

static void assert_queue_pops_number(uint32_t number)
{
	const struct udp_datagram *front = udp_queue_front(&queue);

	assert_non_null(front);
	assert_int_equal(front->src, number);
	udp_queue_pop(&queue);
}

static void assert_queue_pops_range_then_empty(uint32_t first, uint32_t end)
{
	for (uint32_t i = first; i < end; i++)
		assert_queue_pops_number(i);
	assert_null(udp_queue_front(&queue));
	assert_true(udp_queue_is_empty(&queue));
}

static void test_new_queue_is_empty(void **state)
{
	(void)state;
	assert_true(udp_queue_is_empty(&queue));
	assert_null(udp_queue_front(&queue));
}

static void test_front_stays_until_pop(void **state)
{
	(void)state;
	assert_true(push_datagram(1, 100, 1000));
	assert_true(push_datagram(2, 100, 1000));
	assert_int_equal(udp_queue_front(&queue)->src, 1);
	assert_int_equal(udp_queue_front(&queue)->src, 1);
	assert_false(udp_queue_is_empty(&queue));
	udp_queue_pop(&queue);
	assert_int_equal(udp_queue_front(&queue)->src, 2);
	udp_queue_pop(&queue);
	assert_true(udp_queue_is_empty(&queue));
}

static void test_all_of_a_datagram_comes_back(void **state)
{
	const struct udp_datagram in = {.packet = (struct vma_buf *)64,
	                                .arrival_ns = 1,
	                                .src = 2,
	                                .dst = 3,
	                                .src_port_be = 4,
	                                .len = 5,
	                                .ttl = 6,
	                                .tos = 7,
	                                .dst_port_be = 8,
	                                .ifindex = 9,
	                                .drops = 10};

	(void)state;
	assert_true(udp_queue_push(&queue, &in, 1000));
	assert_memory_equal(udp_queue_front(&queue), &in, sizeof(in));
	udp_queue_pop(&queue);
}

static void test_order_survives_growth_with_reads_between(void **state)
{
	uint32_t in = 0, out = 0;

	(void)state;
	for (int round = 0; round < 200; round++) {
		for (int i = 0; i < 7; i++)
			assert_true(push_datagram(in++, 0, UINT64_MAX));
		for (int i = 0; i < 4; i++)
			assert_queue_pops_number(out++);
	}
	assert_queue_pops_range_then_empty(out, in);
}

static void test_queue_grows_to_what_the_limit_allows(void **state)
{
	uint32_t n = 0;

	(void)state;
	while (push_datagram(n, 64, 64 * 100000))
		n++;
	assert_int_equal(n, 100000);
	assert_int_equal(atomic_load(&queue.dropped), 1);
	assert_queue_pops_range_then_empty(0, n);
}

static void test_small_datagrams_count_sixty_four_bytes(void **state)
{
	uint32_t n = 0;

	(void)state;
	while (push_datagram(n, 0, 640))
		n++;
	assert_int_equal(n, 10);
	assert_queue_pops_range_then_empty(0, n);
}

static void test_reading_makes_room(void **state)
{
	(void)state;
	assert_true(push_datagram(1, 500, 1000));
	assert_true(push_datagram(2, 500, 1000));
	assert_false(push_datagram(3, 500, 1000));
	assert_queue_pops_number(1);
	assert_true(push_datagram(4, 500, 1000));
	assert_false(push_datagram(5, 64, 1000));
	assert_int_equal(atomic_load(&queue.dropped), 2);
	assert_queue_pops_number(2);
	assert_queue_pops_number(4);
}

static void test_lone_datagram_is_taken_whatever_the_limit(void **state)
{
	(void)state;
	assert_true(push_datagram(1, 65507, 256));
	assert_false(push_datagram(2, 1, 256));
	assert_queue_pops_number(1);
	assert_true(push_datagram(3, 65507, 0));
	assert_queue_pops_number(3);
}

/* ck_ring counts in 32 bits, freely running: a queue that has seen 2^32 datagrams is as good as a new one. */
static void test_ring_counters_may_wrap(void **state)
{
	struct udp_queue_chunk *chunk = queue.tail;
	uint32_t in = 0, out = 0;

	(void)state;
	chunk->ring.c_head = chunk->ring.p_head = chunk->ring.p_tail = UINT32_MAX - 5;
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < 3; i++)
			assert_true(push_datagram(in++, 0, UINT64_MAX));
		for (int i = 0; i < 3; i++)
			assert_queue_pops_number(out++);
	}
	assert_ptr_equal(queue.tail, chunk);
	assert_true(chunk->ring.p_tail < 100);
	/* And filled across the wrap it still knows that it is full. */
	chunk->ring.c_head = chunk->ring.p_head = chunk->ring.p_tail = UINT32_MAX - 5;
	for (int i = 0; i < 40; i++)
		assert_true(push_datagram(in++, 0, UINT64_MAX));
	assert_ptr_not_equal(queue.tail, chunk);
	assert_queue_pops_range_then_empty(out, in);
}

static void test_fini_puts_what_was_not_read(void **state)
{
	struct vma_bufarena_attr attr = {.capacity = 64};
	struct vma_bufpool_attr pool_attr = {.name = "test", .max_bufs = 64, .batching_mode = 0};
	struct vma_bufarena *arena;
	struct vma_bufpool *pool;
	struct vma_buf *buf, *again[64];
	struct udp_datagram datagram = {.len = 1};
	struct udp_queue local;

	(void)state;
	assert_int_equal(vma_bufarena_create(&attr, &arena), 0);
	pool_attr.arena = arena;
	assert_int_equal(vma_bufpool_create(&pool_attr, &pool), 0);
	assert_int_equal(udp_queue_init(&local), 0);
	for (int i = 0; i < 64; i++) {
		assert_int_equal(vma_bufpool_get(pool, &buf, 1), 1);
		datagram.packet = buf;
		assert_true(udp_queue_push(&local, &datagram, UINT64_MAX));
	}
	assert_int_equal(vma_bufpool_get(pool, &buf, 1), 0);
	udp_queue_front(&local); /* one of them taken out of its ring, but not popped */
	udp_queue_fini(&local, arena);
	for (int i = 0; i < 64; i++)
		assert_int_equal(vma_bufpool_get(pool, &again[i], 1), 1);
	vma_buf_put_burst(arena, again, 64);
	vma_bufarena_destroy(arena);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_new_queue_is_empty, setup, teardown),
        cmocka_unit_test_setup_teardown(test_front_stays_until_pop, setup, teardown),
        cmocka_unit_test_setup_teardown(test_all_of_a_datagram_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_order_survives_growth_with_reads_between, setup, teardown),
        cmocka_unit_test_setup_teardown(test_queue_grows_to_what_the_limit_allows, setup, teardown),
        cmocka_unit_test_setup_teardown(test_small_datagrams_count_sixty_four_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reading_makes_room, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lone_datagram_is_taken_whatever_the_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ring_counters_may_wrap, setup, teardown),
        cmocka_unit_test(test_fini_puts_what_was_not_read),
};

VMA_TEST_MAIN(tests)
