/* The clock for each packet says what CLOCK_MONOTONIC does, to a few microseconds, whatever comes between two looks. */
#include <pthread.h>
#include <unistd.h>

#include <vma/sock_thread.h>
#include <vma/test.h>

#include "../clock.h"

enum { SLACK_NS = 5000 };
#define MSEC 1000000ULL

/* Between two readings of the real one. */
static void assert_clock_agrees_with_real_clock(uint64_t *last_ns)
{
	const uint64_t before = vma_now_ns(), now = clock_ns(), after = vma_now_ns();

	assert_true(now + SLACK_NS >= before);
	assert_true(now <= after + SLACK_NS);
	assert_true(now + SLACK_NS >= *last_ns);
	*last_ns = now;
}

static void test_it_is_right_while_it_is_asked_all_the_time(void **state)
{
	const uint64_t until = vma_now_ns() + 1200 * MSEC; /* the rate is looked at anew meanwhile */
	uint64_t last = 0, looks = 0;

	(void)state;
	for (; vma_now_ns() < until; looks++)
		assert_clock_agrees_with_real_clock(&last);
	assert_true(looks > 1000);
}

static void test_it_is_right_after_pauses(void **state)
{
	uint64_t last = 0;

	(void)state;
	for (unsigned i = 0; i < 200; i++) {
		usleep(i * 37 % 3000);
		for (unsigned k = 0; k < 5; k++)
			assert_clock_agrees_with_real_clock(&last);
	}
	sleep(1);
	for (unsigned k = 0; k < 1000; k++)
		assert_clock_agrees_with_real_clock(&last);
}

/* Each thread has its own. */
static void *thread_check_clock_repeatedly(void *arg)
{
	uint64_t last = 0;

	(void)arg;
	for (unsigned i = 0; i < 50000; i++)
		assert_clock_agrees_with_real_clock(&last);
	return NULL;
}

static void test_it_is_right_in_a_new_thread(void **state)
{
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, thread_check_clock_repeatedly, NULL), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_is_right_while_it_is_asked_all_the_time),
        cmocka_unit_test(test_it_is_right_after_pauses),
        cmocka_unit_test(test_it_is_right_in_a_new_thread),
};
VMA_TEST_MAIN(tests)
