/* The estimator against RFC 6298's formulas in floating point, and the bounds of the kernel. */
#include <vma/test.h>

#include "../timer/rtt.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

static void assert_near(uint64_t ns, double expected_ns)
{
	assert_true(__builtin_fabs((double)ns - expected_ns) <= 64 + expected_ns / 1e9);
}

static void test_without_a_sample_the_timeout_is_one_second_doubled(void **state)
{
	struct tcp_rtt rtt;

	(void)state;
	rtt_init(&rtt);
	assert_int_equal(rtt_rto_ns(&rtt, 0), 1 * SECOND);
	assert_int_equal(rtt_rto_ns(&rtt, 1), 2 * SECOND);
	assert_int_equal(rtt_rto_ns(&rtt, 6), 64 * SECOND);
	assert_int_equal(rtt_rto_ns(&rtt, 7), 120 * SECOND);
	assert_int_equal(rtt_rto_ns(&rtt, UINT32_MAX), 120 * SECOND);
}

static void test_first_sample_sets_average_and_half_of_it_as_variation(void **state)
{
	struct tcp_rtt rtt;

	(void)state;
	rtt_init(&rtt);
	rtt_sample(&rtt, 300 * MS, SECOND);
	assert_int_equal(rtt.srtt_ns, 300 * MS);
	assert_int_equal(rtt.rttvar_ns, 150 * MS);
	assert_int_equal(rtt_rto_ns(&rtt, 0), 900 * MS); /* SRTT + 4 * RTTVAR */
	assert_int_equal(rtt_rto_ns(&rtt, 2), 3600 * MS);
}

static void test_samples_follow_the_formulas(void **state)
{
	double srtt = 0, rttvar = 0;
	struct tcp_rtt rtt;
	uint32_t seed = 3;

	(void)state;
	rtt_init(&rtt);
	for (unsigned i = 0; i < 1000; i++) {
		uint64_t sample = 1000 + (seed = seed * 1664525 + 1013904223) % (i % 100 ? 80 * MS : 900 * MS);

		if (i == 0) {
			srtt = (double)sample;
			rttvar = srtt / 2;
		} else {
			rttvar = 0.75 * rttvar + 0.25 * __builtin_fabs(srtt - (double)sample);
			srtt = 0.875 * srtt + 0.125 * (double)sample;
		}
		rtt_sample(&rtt, sample, SECOND);
		assert_near(rtt.srtt_ns, srtt);
		assert_near(rtt.rttvar_ns, rttvar);
		assert_near(rtt_rto_ns(&rtt, 0), srtt + (4 * rttvar > 200e6 ? 4 * rttvar : 200e6));
		assert_int_equal(rtt.latest_ns, sample);
	}
}

static void test_steady_short_times_leave_the_minimum_of_200_ms(void **state)
{
	struct tcp_rtt rtt;

	(void)state;
	rtt_init(&rtt);
	for (unsigned i = 0; i < 200; i++)
		rtt_sample(&rtt, 50000, SECOND);
	assert_int_equal(rtt_rto_ns(&rtt, 0), 200 * MS + 50000);
}

static void test_timeout_is_never_above_120_s(void **state)
{
	struct tcp_rtt rtt;

	(void)state;
	rtt_init(&rtt);
	rtt_sample(&rtt, 100 * SECOND, SECOND);
	assert_int_equal(rtt_rto_ns(&rtt, 0), 120 * SECOND);
	rtt_sample(&rtt, UINT64_MAX, SECOND);
	assert_true(rtt.srtt_ns <= 120 * SECOND);
	assert_int_equal(rtt_rto_ns(&rtt, 31), 120 * SECOND);
}

static void test_sample_of_nothing_is_a_sample(void **state)
{
	struct tcp_rtt rtt;

	(void)state;
	rtt_init(&rtt);
	for (unsigned i = 0; i < 100; i++)
		rtt_sample(&rtt, 0, SECOND);
	assert_true(rtt.srtt_ns > 0);
	assert_true(rtt_rto_ns(&rtt, 0) < 201 * MS);
}

static void test_lowest_time_is_forgotten_after_five_minutes(void **state)
{
	struct tcp_rtt rtt;

	(void)state;
	rtt_init(&rtt);
	rtt_sample(&rtt, 5 * MS, 1 * SECOND);
	rtt_sample(&rtt, 9 * MS, 2 * SECOND);
	assert_int_equal(rtt.min_ns, 5 * MS);
	rtt_sample(&rtt, 9 * MS, 301 * SECOND);
	assert_int_equal(rtt.min_ns, 5 * MS);
	rtt_sample(&rtt, 8 * MS, 302 * SECOND);
	assert_int_equal(rtt.min_ns, 8 * MS);
	rtt_sample(&rtt, 2 * MS, 303 * SECOND);
	assert_int_equal(rtt.min_ns, 2 * MS);
	assert_int_equal(rtt.min_at_ns, 303 * SECOND);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_a_sample_the_timeout_is_one_second_doubled),
        cmocka_unit_test(test_first_sample_sets_average_and_half_of_it_as_variation),
        cmocka_unit_test(test_samples_follow_the_formulas),
        cmocka_unit_test(test_steady_short_times_leave_the_minimum_of_200_ms),
        cmocka_unit_test(test_timeout_is_never_above_120_s),
        cmocka_unit_test(test_sample_of_nothing_is_a_sample),
        cmocka_unit_test(test_lowest_time_is_forgotten_after_five_minutes),
};
VMA_TEST_MAIN(tests)
