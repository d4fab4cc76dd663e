/* The card's clock as the system's: lines through samples, a counter that wraps, a clock that is set. */
#include <vma/test.h>

#include "../verbs/clock.h"

#define MASK ((UINT64_C(1) << 48) - 1)
#define KHZ 156250 /* 6.4 ns a tick */
#define SECOND UINT64_C(1000000000)
#define TICKS_PER_SECOND (UINT64_C(1000) * KHZ)
#define EPOCH (UINT64_C(1700000000) * SECOND)

static void test_without_a_sample_it_is_the_cards_own_time(void **state)
{
	struct verbs_clock clock = verbs_clock_init(MASK, KHZ);

	(void)state;
	assert_int_equal(verbs_clock_ticks_to_ns(&clock, 0), 0);
	assert_in_range(verbs_clock_ticks_to_ns(&clock, TICKS_PER_SECOND), SECOND - 1, SECOND);
	/* The counter's whole range is days; they pass without a rounding that shows. */
	assert_in_range(verbs_clock_ticks_to_ns(&clock, MASK), MASK / TICKS_PER_SECOND * SECOND,
	                (MASK / TICKS_PER_SECOND + 1) * SECOND);
}

static void test_a_sample_fixes_the_time_before_and_after_it(void **state)
{
	struct verbs_clock clock = verbs_clock_init(MASK, KHZ);

	(void)state;
	verbs_clock_add_sample(&clock, 5 * TICKS_PER_SECOND, EPOCH);
	assert_int_equal(verbs_clock_ticks_to_ns(&clock, 5 * TICKS_PER_SECOND), EPOCH);
	assert_in_range(verbs_clock_ticks_to_ns(&clock, 6 * TICKS_PER_SECOND), EPOCH + SECOND - 1, EPOCH + SECOND);
	assert_in_range(verbs_clock_ticks_to_ns(&clock, 4 * TICKS_PER_SECOND), EPOCH - SECOND - 1, EPOCH - SECOND + 1);
}

static void test_the_counter_may_wrap_between_sample_and_stamp(void **state)
{
	struct verbs_clock clock = verbs_clock_init(MASK, KHZ);
	const uint64_t before = MASK - TICKS_PER_SECOND / 2;

	(void)state;
	verbs_clock_add_sample(&clock, before, EPOCH);
	assert_in_range(verbs_clock_ticks_to_ns(&clock, (before + TICKS_PER_SECOND) & MASK), EPOCH + SECOND - 1,
	                EPOCH + SECOND);
	verbs_clock_add_sample(&clock, (before + TICKS_PER_SECOND) & MASK, EPOCH + SECOND);
	assert_in_range(verbs_clock_ticks_to_ns(&clock, before), EPOCH - 2, EPOCH + 2);
	assert_int_equal(clock.slope, clock.nominal); /* within rounding it is the nominal one */
}

static void test_the_rate_is_measured(void **state)
{
	struct verbs_clock clock = verbs_clock_init(MASK, KHZ);

	(void)state;
	verbs_clock_add_sample(&clock, 0, EPOCH);
	verbs_clock_add_sample(&clock, TICKS_PER_SECOND, EPOCH + SECOND + 50000); /* its crystal is slow by 50 ppm */
	assert_in_range(verbs_clock_ticks_to_ns(&clock, 2 * TICKS_PER_SECOND), EPOCH + 2 * SECOND + 99990,
	                EPOCH + 2 * SECOND + 100010);
}

static void test_a_clock_that_was_set_is_followed_at_once_and_gives_no_rate(void **state)
{
	struct verbs_clock clock = verbs_clock_init(MASK, KHZ);

	(void)state;
	verbs_clock_add_sample(&clock, 0, EPOCH);
	verbs_clock_add_sample(&clock, TICKS_PER_SECOND, EPOCH + 3600 * SECOND);
	assert_int_equal(clock.slope, clock.nominal);
	assert_int_equal(verbs_clock_ticks_to_ns(&clock, TICKS_PER_SECOND), EPOCH + 3600 * SECOND);
	verbs_clock_add_sample(&clock, 2 * TICKS_PER_SECOND, EPOCH - SECOND);
	assert_int_equal(clock.slope, clock.nominal);
	assert_int_equal(verbs_clock_ticks_to_ns(&clock, 2 * TICKS_PER_SECOND), EPOCH - SECOND);
	verbs_clock_add_sample(&clock, 2 * TICKS_PER_SECOND, EPOCH); /* the counter stands still */
	assert_int_equal(clock.slope, clock.nominal);
}

/* VMA_HW_TS_CONVERSION, and of a device: a counter, which can be read at any time, and wall clock stamps. */
static void test_each_conversion_takes_the_best_that_it_allows(void **state)
{
	static const struct {
		unsigned conversion;
		bool counter, sample, wall;
		enum verbs_timestamp_kind stamps;
	} rows[] = {
	        {0, true, true, true, VERBS_STAMPS_NONE},   {1, true, true, true, VERBS_STAMPS_RAW},
	        {1, true, false, false, VERBS_STAMPS_RAW},  {1, false, true, true, VERBS_STAMPS_NONE},
	        {2, true, true, true, VERBS_STAMPS_SYSTEM}, {2, true, false, true, VERBS_STAMPS_RAW},
	        {2, false, false, true, VERBS_STAMPS_NONE}, {3, true, true, true, VERBS_STAMPS_SYSTEM},
	        {3, true, false, true, VERBS_STAMPS_NONE},  {3, false, true, true, VERBS_STAMPS_NONE},
	        {4, true, true, true, VERBS_STAMPS_WALL},   {4, true, true, false, VERBS_STAMPS_SYSTEM},
	        {4, true, false, false, VERBS_STAMPS_NONE}, {4, false, false, true, VERBS_STAMPS_WALL},
	        {5, true, true, true, VERBS_STAMPS_NONE},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_int_equal(
		        verbs_timestamp_kind_for(rows[i].conversion, rows[i].counter, rows[i].sample, rows[i].wall),
		        rows[i].stamps);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_without_a_sample_it_is_the_cards_own_time),
	        cmocka_unit_test(test_a_sample_fixes_the_time_before_and_after_it),
	        cmocka_unit_test(test_the_counter_may_wrap_between_sample_and_stamp),
	        cmocka_unit_test(test_the_rate_is_measured),
	        cmocka_unit_test(test_a_clock_that_was_set_is_followed_at_once_and_gives_no_rate),
	        cmocka_unit_test(test_each_conversion_takes_the_best_that_it_allows),
	};

	vma_test_set_filter_from_env();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
