/* Adaptive moderation as a function: traffic in, converging count and period out. */
#include <vma/cq.h>
#include <vma/test.h>

#define MSEC 1000000ull

/* The defaults of VMA_CQ_MODERATION_* and VMA_CQ_AIM_*. */
static const struct vma_cq_aim_params defaults = {
        .base = {48, 50}, .max_count = 560, .max_period_usec = 250, .interval_msec = 250, .interrupts_per_sec = 5000};

/* Reports per second of steady traffic under moderation m: whichever of count and period comes first. */
static double reports_per_sec(struct vma_cq_moderation m, double packets_per_sec)
{
	double by_count = packets_per_sec / (m.count != 0 ? m.count : 1);
	double by_period = m.period_usec != 0 ? 1e6 / m.period_usec : packets_per_sec;
	double reports = by_count > by_period ? by_count : by_period;

	return reports < packets_per_sec ? reports : packets_per_sec;
}

struct row {
	const char *what;
	struct vma_cq_aim_params params;
	struct vma_cq_moderation start;
	uint64_t packets_per_sec, wakeups_per_sec;
	struct vma_cq_moderation settled;
};

static const struct row rows[] = {
        {"silence stays at the base", {{48, 50}, 560, 250, 250, 5000}, {48, 50}, 0, 0, {48, 50}},
        {"silence comes back to the base", {{48, 50}, 560, 250, 250, 5000}, {560, 250}, 0, 0, {48, 50}},
        {"traffic below the target needs none", {{48, 50}, 560, 250, 250, 5000}, {560, 250}, 4999, 4999, {48, 50}},
        {"traffic at the target needs none", {{48, 50}, 560, 250, 250, 5000}, {48, 50}, 5000, 5000, {48, 50}},
        {"medium traffic is slowed by period", {{48, 50}, 560, 250, 250, 5000}, {48, 50}, 100000, 20000, {48, 200}},
        {"fast traffic raises the count too", {{48, 50}, 560, 250, 250, 5000}, {48, 50}, 1000000, 20000, {200, 200}},
        {"the count stops at its maximum", {{48, 50}, 560, 250, 250, 5000}, {48, 50}, 10000000, 20000, {560, 200}},
        {"the period stops at its maximum", {{48, 50}, 560, 250, 250, 1000}, {48, 50}, 100000, 20000, {100, 250}},
        {"the latency profile's maximum", {{48, 50}, 128, 250, 250, 5000}, {48, 50}, 10000000, 9000, {128, 200}},
        {"nobody sleeps: nothing to save", {{48, 50}, 560, 250, 250, 5000}, {300, 200}, 1000000, 0, {48, 50}},
        {"a base above the maximum wins", {{600, 300}, 560, 250, 250, 5000}, {600, 300}, 1000000, 900, {600, 300}},
        {"a base of nothing grows from there", {{0, 0}, 560, 250, 250, 5000}, {0, 0}, 50000, 50000, {10, 200}},
};

static void test_constant_traffic_settles_within_ten_steps(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct row *row = &rows[i];
		struct vma_cq_moderation m = row->start, again;

		for (int step = 0; step < 10; step++)
			m = vma_cq_next_adaptive_moderation(&row->params, m, row->packets_per_sec / 4,
			                                    row->wakeups_per_sec / 4, 250 * MSEC);
		if (m.count != row->settled.count || m.period_usec != row->settled.period_usec)
			fail_msg("%s: settled at {%u, %u}, expected {%u, %u}", row->what, m.count, m.period_usec,
			         row->settled.count, row->settled.period_usec);
		again = vma_cq_next_adaptive_moderation(&row->params, m, row->packets_per_sec / 4,
		                                        row->wakeups_per_sec / 4, 250 * MSEC);
		assert_int_equal(again.count, m.count);
		assert_int_equal(again.period_usec, m.period_usec);
	}
}

static void test_settled_rate_meets_the_target_where_the_maxima_allow(void **state)
{
	static const uint64_t rates[] = {5001, 7000, 20000, 123456, 999999, 2799999};

	(void)state;
	for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
		struct vma_cq_moderation m = defaults.base;

		for (int step = 0; step < 10; step++)
			m = vma_cq_next_adaptive_moderation(&defaults, m, rates[i],
			                                    (uint64_t)reports_per_sec(m, rates[i]), 1000 * MSEC);
		assert_true(reports_per_sec(m, rates[i]) <= defaults.interrupts_per_sec);
	}
}

static void test_each_step_goes_towards_the_goal_and_never_past_it(void **state)
{
	struct vma_cq_moderation m = defaults.base;

	(void)state;
	for (int step = 0; step < 12; step++) {
		struct vma_cq_moderation next =
		        vma_cq_next_adaptive_moderation(&defaults, m, 1000000, 9000, 1000 * MSEC);

		assert_true(next.count >= m.count && next.count <= 200);
		assert_true(next.period_usec >= m.period_usec && next.period_usec <= 200);
		m = next;
	}
}

static void test_no_time_or_no_target_changes_nothing(void **state)
{
	struct vma_cq_aim_params params = defaults;
	struct vma_cq_moderation m = {77, 99}, next;

	(void)state;
	next = vma_cq_next_adaptive_moderation(&params, m, 1000, 10, 0);
	assert_int_equal(next.count, 77);
	assert_int_equal(next.period_usec, 99);
	params.interrupts_per_sec = 0;
	next = vma_cq_next_adaptive_moderation(&params, m, 1000, 10, MSEC);
	assert_int_equal(next.count, 77);
}

static void test_huge_counts_do_not_overflow(void **state)
{
	struct vma_cq_moderation m =
	        vma_cq_next_adaptive_moderation(&defaults, defaults.base, UINT64_MAX, UINT64_MAX, UINT64_MAX);

	(void)state;
	assert_true(m.count <= defaults.max_count);
	m = vma_cq_next_adaptive_moderation(&defaults, defaults.base, UINT64_MAX / 2, 1, 1);
	assert_true(m.count <= defaults.max_count && m.period_usec <= defaults.max_period_usec);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constant_traffic_settles_within_ten_steps),
        cmocka_unit_test(test_settled_rate_meets_the_target_where_the_maxima_allow),
        cmocka_unit_test(test_each_step_goes_towards_the_goal_and_never_past_it),
        cmocka_unit_test(test_no_time_or_no_target_changes_nothing),
        cmocka_unit_test(test_huge_counts_do_not_overflow),
};

VMA_TEST_MAIN(tests)
