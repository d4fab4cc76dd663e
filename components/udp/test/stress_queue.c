/*
 * One thread pushes, one takes, at speeds that change: the queue grows again and again, and every datagram comes once,
 * in order and whole. STRESS_SECONDS.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include <vma/test.h>

#include "../datagram_ring.h"

enum { ROUND = 20000 };

static struct udp_queue queue;
static _Atomic bool producing;

/* What hangs on a datagram: plain memory that only the queue hands over. */
struct datagram_payload_memory {
	uint32_t number, inverse;
};
static struct datagram_payload_memory datagram_payload_memory[ROUND];

static uint32_t queue_next_random(uint32_t *seed)
{
	return (*seed = *seed * 1664525 + 1013904223) >> 16;
}

/* Now and then one of the two falls behind. */
static void queue_delay_randomly(uint32_t *seed)
{
	uint32_t r = queue_next_random(seed);

	if (r % 256 == 0)
		sched_yield();
	for (volatile uint32_t i = 0; r % 64 == 1 && i < r % 4096; i++)
		;
}

static void *queue_produce(void *arg)
{
	uint32_t seed = *(uint32_t *)arg;

	for (uint32_t i = 0; i < ROUND; i++) {
		struct udp_datagram datagram = {
		        .packet = (struct vma_buf *)&datagram_payload_memory[i], .src = i, .dst = ~i};

		datagram_payload_memory[i] = (struct datagram_payload_memory){.number = i, .inverse = ~i};
		datagram.len = (uint16_t)queue_next_random(&seed);
		if (!udp_queue_push(&queue, &datagram, UINT64_MAX))
			abort();
		queue_delay_randomly(&seed);
	}
	atomic_store(&producing, false);
	return NULL;
}

static void consume_round_and_check_datagrams(uint32_t seed)
{
	uint32_t expected = 0;

	while (expected < ROUND) {
		const struct udp_datagram *front = udp_queue_front(&queue);
		const struct datagram_payload_memory *load;

		if (front == NULL) {
			assert_true(atomic_load(&producing) || !udp_queue_is_empty(&queue) || expected == ROUND);
			sched_yield();
			continue;
		}
		load = (const struct datagram_payload_memory *)front->packet;
		assert_int_equal(front->src, expected);
		assert_int_equal(front->dst, ~expected);
		assert_int_equal(load->number, expected);
		assert_int_equal(load->inverse, ~expected);
		udp_queue_pop(&queue);
		expected++;
		queue_delay_randomly(&seed);
	}
	assert_null(udp_queue_front(&queue));
}

static void test_datagrams_come_once_in_order_and_whole(void **state)
{
	const char *seconds = getenv("STRESS_SECONDS");
	time_t end = time(NULL) + (seconds != NULL ? atoi(seconds) : 1);
	uint32_t seed = 1, producer_seed;
	unsigned grown = 0;

	(void)state;
	do {
		pthread_t producer;
		struct udp_queue_chunk *first;

		assert_int_equal(udp_queue_init(&queue), 0);
		first = queue.head;
		producer_seed = ++seed * 7919;
		atomic_store(&producing, true);
		assert_int_equal(pthread_create(&producer, NULL, queue_produce, &producer_seed), 0);
		consume_round_and_check_datagrams(seed);
		assert_int_equal(pthread_join(producer, NULL), 0);
		assert_int_equal(atomic_load(&queue.pushed_bytes), atomic_load(&queue.popped_bytes));
		grown += queue.head != first;
		udp_queue_fini(&queue, NULL);
	} while (time(NULL) < end);
	assert_true(grown > 0); /* or the hand-over was not tested */
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_datagrams_come_once_in_order_and_whole)};

VMA_TEST_MAIN(tests)
