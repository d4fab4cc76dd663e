/* Congestion control against the formulas of its RFCs, in floating point where they are not in whole numbers. */
#include <errno.h>

#include <vma/test.h>
#include <vma/tcp.h>

#include "../cc/cc.h"

#define MSS 1448u
#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

static struct tcp_cc cc;

static double absolute(double x)
{
	return x < 0 ? -x : x;
}

/* Without libm: Newton's method. */
static double cube_root(double x)
{
	double y = x > 1 ? x : 1;

	for (int i = 0; i < 200; i++)
		y -= (y * y * y - x) / (3 * y * y);
	return y;
}

static void cc_start(int algorithm, uint32_t mss)
{
	cc_init(&cc, algorithm, mss);
}

/* A cwnd's worth of ACKs, each of two segments. */
static void cc_one_round(uint64_t rtt_ns, uint64_t now_ns)
{
	uint32_t left = cc.cwnd;

	while (left) {
		uint32_t acked = left < 2 * cc.mss ? left : 2 * cc.mss;

		cc_on_ack(&cc, acked, true, rtt_ns, now_ns);
		left -= acked;
	}
}

/* ---- what is common ---- */

static void test_initial_window_is_rfc_6928(void **state)
{
	(void)state;
	cc_start(VMA_TCP_CC_CUBIC, 1460);
	assert_int_equal(cc.cwnd, 14600);
	cc_start(VMA_TCP_CC_LWIP, 536);
	assert_int_equal(cc.cwnd, 5360);
	cc_start(VMA_TCP_CC_LWIP, 8948);
	assert_int_equal(cc.cwnd, 2 * 8948);
	cc_start(VMA_TCP_CC_LWIP, 2000);
	assert_int_equal(cc.cwnd, 14600);
	assert_true(cc.ssthresh == UINT32_MAX);
}

static void test_names_are_those_of_tcp_congestion(void **state)
{
	(void)state;
	assert_int_equal(vma_tcp_cc_by_name("cubic"), VMA_TCP_CC_CUBIC);
	assert_int_equal(vma_tcp_cc_by_name("reno"), VMA_TCP_CC_LWIP);
	assert_int_equal(vma_tcp_cc_by_name("newreno"), VMA_TCP_CC_LWIP);
	assert_int_equal(vma_tcp_cc_by_name("lwip"), VMA_TCP_CC_LWIP);
	assert_int_equal(vma_tcp_cc_by_name("none"), VMA_TCP_CC_NONE);
	assert_int_equal(vma_tcp_cc_by_name("bbr"), VMA_TCP_CC_BBR);
	assert_int_equal(vma_tcp_cc_by_name("dctcp"), -ENOENT);
	assert_int_equal(vma_tcp_cc_by_name(""), -ENOENT);
	for (int i = 0; i <= VMA_TCP_CC_BBR; i++)
		assert_int_equal(vma_tcp_cc_by_name(vma_tcp_cc_name(i)), i);
#define X(name, number, text) assert_string_equal(vma_tcp_cc_name(VMA_TCP_CC_##name), text);
	VMA_TCP_CCS(X)
#undef X
	assert_null(vma_tcp_cc_name(VMA_TCP_CC_BBR + 1));
	assert_null(vma_tcp_cc_name(-1));
	cc_start(99, MSS);
	assert_string_equal(cc.ops->name, "cubic");
}

static void test_window_that_is_not_used_does_not_grow(void **state)
{
	(void)state;
	for (int algorithm = VMA_TCP_CC_LWIP; algorithm <= VMA_TCP_CC_CUBIC; algorithm++) {
		cc_start(algorithm, MSS);
		for (unsigned i = 0; i < 100; i++)
			cc_on_ack(&cc, 2 * MSS, false, 10 * MS, SECOND + i * MS);
		assert_int_equal(cc.cwnd, 10 * MSS);
	}
}

static void test_window_never_passes_what_scaling_allows(void **state)
{
	(void)state;
	for (int algorithm = VMA_TCP_CC_LWIP; algorithm <= VMA_TCP_CC_NONE; algorithm++) {
		cc_start(algorithm, 65483);
		for (unsigned i = 0; i < 40000; i++)
			cc_on_ack(&cc, cc.cwnd, true, MS, SECOND + i * 100 * MS);
		assert_true(cc.cwnd <= CC_CWND_MAX && cc.cwnd >= 65483);
		cc_on_rto(&cc, cc.cwnd, UINT64_C(5000) * SECOND);
		for (unsigned i = 0; i < 40000; i++)
			cc_on_ack(&cc, cc.cwnd, true, MS, (UINT64_C(5000) + i) * SECOND);
		assert_true(cc.cwnd <= CC_CWND_MAX && cc.cwnd >= 65483);
	}
}

static void test_timeout_leaves_one_segment_and_half_as_threshold(void **state)
{
	(void)state;
	cc_start(VMA_TCP_CC_LWIP, MSS);
	cc_on_rto(&cc, 40 * MSS, SECOND);
	assert_int_equal(cc.cwnd, MSS);
	assert_int_equal(cc.ssthresh, 20 * MSS);
	cc_on_rto(&cc, MSS, SECOND);
	assert_int_equal(cc.ssthresh, 2 * MSS); /* never less */
}

static void test_idle_time_halves_the_window_per_timeout_down_to_the_initial_one(void **state)
{
	(void)state;
	for (int algorithm = VMA_TCP_CC_LWIP; algorithm <= VMA_TCP_CC_CUBIC; algorithm++) {
		cc_start(algorithm, MSS);
		cc.cwnd = 160 * MSS;
		cc_decay_after_idle(&cc, 200 * MS, 200 * MS);
		assert_int_equal(cc.cwnd, 160 * MSS);
		cc_decay_after_idle(&cc, 500 * MS, 200 * MS);
		assert_int_equal(cc.cwnd, 40 * MSS);
		cc.ssthresh = 10 * MSS;
		cc_decay_after_idle(&cc, 1000 * SECOND, 200 * MS);
		assert_int_equal(cc.cwnd, 10 * MSS);
		assert_int_equal(cc.ssthresh, 30 * MSS); /* three quarters of 40 */
	}
}

static void test_other_segment_size_before_any_change_means_another_initial_window(void **state)
{
	(void)state;
	cc_start(VMA_TCP_CC_CUBIC, 536);
	cc_set_mss(&cc, 1448);
	assert_int_equal(cc.cwnd, 14480);
	cc_on_ack(&cc, 1448, true, MS, SECOND);
	cc_set_mss(&cc, 1000);
	assert_int_equal(cc.cwnd, 14480 + 1448);
	cc.cwnd = 500;
	cc_set_mss(&cc, 1448);
	assert_int_equal(cc.cwnd, 1448);
}

static void test_none_holds_nothing_back_even_after_loss(void **state)
{
	(void)state;
	cc_start(VMA_TCP_CC_NONE, MSS);
	assert_int_equal(cc.cwnd, CC_CWND_MAX);
	cc_on_loss(&cc, 100 * MSS, SECOND);
	assert_int_equal(cc.ssthresh, CC_CWND_MAX);
	cc_on_recovery_end(&cc, SECOND);
	assert_int_equal(cc.cwnd, CC_CWND_MAX);
	cc_on_rto(&cc, 100 * MSS, SECOND);
	assert_int_equal(cc.cwnd, MSS); /* once: what comes back shows that the path lives */
	cc_on_ack(&cc, MSS, true, MS, SECOND);
	assert_int_equal(cc.cwnd, CC_CWND_MAX);
	cc_decay_after_idle(&cc, 100 * SECOND, SECOND);
	assert_int_equal(cc.cwnd, CC_CWND_MAX);
}

/* ---- NewReno ---- */

static void test_newreno_slow_start_counts_bytes_up_to_two_segments(void **state)
{
	(void)state;
	cc_start(VMA_TCP_CC_LWIP, MSS);
	cc_on_ack(&cc, 100, true, MS, SECOND);
	assert_int_equal(cc.cwnd, 10 * MSS + 100);
	cc_on_ack(&cc, 2 * MSS, true, MS, SECOND);
	assert_int_equal(cc.cwnd, 12 * MSS + 100);
	cc_on_ack(&cc, 44 * MSS, true, MS, SECOND);
	assert_int_equal(cc.cwnd, 14 * MSS + 100);
}

static void test_newreno_slow_start_doubles_per_round(void **state)
{
	(void)state;
	cc_start(VMA_TCP_CC_LWIP, MSS);
	for (unsigned round = 1; round <= 5; round++) {
		cc_one_round(10 * MS, round * 10 * MS);
		assert_int_equal(cc.cwnd, (10u << round) * MSS);
	}
}

static void test_newreno_avoidance_adds_one_segment_per_window(void **state)
{
	(void)state;
	cc_start(VMA_TCP_CC_LWIP, MSS);
	cc.cwnd = 20 * MSS;
	cc.ssthresh = 20 * MSS;
	for (unsigned round = 1; round <= 30; round++) {
		cc_one_round(10 * MS, round * 10 * MS);
		assert_int_equal(cc.cwnd, (20 + round) * MSS);
	}
}

static void test_newreno_loss_halves_what_is_in_flight(void **state)
{
	(void)state;
	cc_start(VMA_TCP_CC_LWIP, MSS);
	cc.cwnd = 100 * MSS;
	cc_on_loss(&cc, 60 * MSS, SECOND);
	assert_int_equal(cc.ssthresh, 30 * MSS);
	assert_int_equal(cc.cwnd, 100 * MSS); /* recovery's until it ends */
	cc_on_recovery_end(&cc, SECOND);
	assert_int_equal(cc.cwnd, 30 * MSS);
}

/* ---- Cubic ---- */

static void test_cube_root_is_exact(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 3000; i++) {
		assert_int_equal(cc_cube_root(i * i * i), i);
		if (i > 1)
			assert_int_equal(cc_cube_root(i * i * i - 1), i - 1);
		assert_int_equal(cc_cube_root(i * i * i + 1), i ? i : 1);
	}
	assert_int_equal(cc_cube_root(UINT64_MAX), 2642245);
	assert_int_equal(cc_cube_root(UINT64_C(2642245) * 2642245 * 2642245), 2642245);
	assert_int_equal(cc_cube_root(UINT64_C(2642245) * 2642245 * 2642245 - 1), 2642244);
}

static void test_cubic_loss_leaves_seven_tenths_of_the_window(void **state)
{
	(void)state;
	cc_start(VMA_TCP_CC_CUBIC, MSS);
	cc.cwnd = 100 * MSS;
	cc_on_loss(&cc, 5 * MSS, SECOND);
	assert_int_equal(cc.ssthresh, 70 * MSS);
	assert_int_equal(cc.cubic.w_max, 100 * MSS);
	cc_on_recovery_end(&cc, SECOND);
	assert_int_equal(cc.cwnd, 70 * MSS);
}

static void test_cubic_second_loss_below_the_last_maximum_makes_room(void **state)
{
	(void)state;
	cc_start(VMA_TCP_CC_CUBIC, MSS);
	cc.cwnd = 100 * MSS;
	cc_on_loss(&cc, 100 * MSS, SECOND);
	cc_on_recovery_end(&cc, SECOND);
	cc.cwnd = 80 * MSS;
	cc_on_loss(&cc, 80 * MSS, SECOND);
	assert_int_equal(cc.cubic.w_max, 80 * MSS * 17 / 20); /* (1 + 0.7) / 2 */
	assert_int_equal(cc.ssthresh, 56 * MSS);
}

/*
 * A window of 2,000 segments, 100 ms: far from where NewReno would be, so that the cubic curve alone decides. Compared
 * at each round with W_max + C (t - K)^3.
 */
static void test_cubic_follows_its_curve(void **state)
{
	double w_max = 2000, k = cube_root(w_max * 0.3 / 0.4);
	uint64_t now_ns = 10 * SECOND, rtt_ns = 100 * MS, begun_ns;

	(void)state;
	cc_start(VMA_TCP_CC_CUBIC, MSS);
	cc.cwnd = 2000 * MSS;
	cc_on_loss(&cc, cc.cwnd, now_ns);
	cc_on_recovery_end(&cc, now_ns);
	begun_ns = now_ns;
	for (unsigned round = 0; round < 220; round++) {
		double t, expected;

		/* ACKs spread over the round */
		for (unsigned i = 0; i < 100; i++) {
			cc_on_ack(&cc, cc.cwnd / 100, true, rtt_ns, now_ns);
			now_ns += rtt_ns / 100;
		}
		t = (double)(now_ns - begun_ns) / 1e9;
		expected = w_max + 0.4 * (t - k) * (t - k) * (t - k);
		assert_true(absolute((double)cc.cwnd / MSS - expected) < 0.02 * expected);
	}
	assert_int_equal(cc.cubic.k_ms, (uint32_t)(k * 1000));
	assert_true(cc.cwnd > 2000 * MSS); /* concave, plateau, convex: all seen */
}

/* A short round-trip time: there the NewReno-like estimate is above the curve, and counts. */
static void test_cubic_is_never_slower_than_reno(void **state)
{
	uint64_t now_ns = SECOND, rtt_ns = 2 * MS;
	double w_est;

	(void)state;
	cc_start(VMA_TCP_CC_CUBIC, MSS);
	cc.cwnd = 40 * MSS;
	cc_on_loss(&cc, cc.cwnd, now_ns);
	cc_on_recovery_end(&cc, now_ns);
	w_est = 28;
	for (unsigned round = 0; round < 60; round++) {
		cc_one_round(rtt_ns, now_ns += rtt_ns);
		w_est += w_est < 40 ? 9.0 / 17 : 1;
		assert_true(absolute((double)cc.cwnd / MSS - w_est) < 1.1);
	}
}

static void test_cubic_never_grows_by_more_than_half_per_window(void **state)
{
	(void)state;
	cc_start(VMA_TCP_CC_CUBIC, MSS);
	cc.cwnd = 100 * MSS;
	cc_on_loss(&cc, cc.cwnd, SECOND);
	cc_on_recovery_end(&cc, SECOND);
	cc_on_ack(&cc, MSS, true, 10 * MS, SECOND);
	for (unsigned i = 0; i < 35; i++) /* the curve is far above by now */
		cc_on_ack(&cc, 2 * MSS, true, 10 * MS, 1000 * SECOND);
	/* by half for each window acknowledged, compounded: 70 e^(1/2) */
	assert_true(cc.cwnd < 116 * MSS);
	assert_true(cc.cwnd > 105 * MSS);
}

static void test_cubic_time_without_use_does_not_count(void **state)
{
	uint64_t now_ns = SECOND;
	uint32_t before;

	(void)state;
	cc_start(VMA_TCP_CC_CUBIC, MSS);
	cc.cwnd = 1000 * MSS;
	cc_on_loss(&cc, cc.cwnd, now_ns);
	cc_on_recovery_end(&cc, now_ns);
	cc_on_ack(&cc, MSS, true, 10 * MS, now_ns);
	before = cc.cwnd;
	for (unsigned i = 0; i < 60; i++)
		cc_on_ack(&cc, MSS, false, 10 * MS, now_ns += SECOND);
	cc_on_ack(&cc, MSS, true, 10 * MS, now_ns += MS);
	assert_true(cc.cwnd - before <= MSS / 20); /* had the minute counted: half a segment for this one ACK */
	cc_decay_after_idle(&cc, 60 * SECOND, 1000 * SECOND);
	cc_on_ack(&cc, MSS, true, 10 * MS, now_ns += 60 * SECOND);
	assert_true(cc.cwnd - before <= MSS / 10);
}

static void test_cubic_after_a_timeout_begins_at_its_threshold(void **state)
{
	uint64_t now_ns = SECOND;

	(void)state;
	cc_start(VMA_TCP_CC_CUBIC, MSS);
	cc.cwnd = 100 * MSS;
	cc_on_rto(&cc, cc.cwnd, now_ns);
	assert_int_equal(cc.ssthresh, 70 * MSS);
	while (cc.cwnd < cc.ssthresh)
		cc_on_ack(&cc, 7 * MSS, true, 50 * MS, now_ns += 50 * MS);
	assert_int_equal(cc.cwnd, 70 * MSS); /* slow start does not pass it */
	cc_on_ack(&cc, MSS, true, 50 * MS, now_ns += 50 * MS);
	assert_int_equal(cc.cubic.k_ms, 0); /* RFC 9438 4.8 */
	assert_int_equal(cc.cubic.w_max, 70 * MSS);
}

static void test_cubic_spurious_loss_is_taken_back(void **state)
{
	struct tcp_cubic before;
	uint64_t now_ns = SECOND;

	(void)state;
	cc_start(VMA_TCP_CC_CUBIC, MSS);
	cc.cwnd = 100 * MSS;
	cc_on_loss(&cc, cc.cwnd, now_ns);
	cc_on_recovery_end(&cc, now_ns);
	for (unsigned i = 0; i < 10; i++)
		cc_one_round(50 * MS, now_ns += 50 * MS);
	before = cc.cubic;
	uint32_t cwnd = cc.cwnd, ssthresh = cc.ssthresh;

	cc_on_loss(&cc, cc.cwnd, now_ns);
	cc.cwnd = 5 * MSS;
	cc_undo_reduction(&cc, cwnd, ssthresh);
	assert_int_equal(cc.cwnd, cwnd);
	assert_int_equal(cc.ssthresh, ssthresh);
	assert_memory_equal(&cc.cubic, &before, sizeof(before));
	cc_on_rto(&cc, cc.cwnd, now_ns);
	cc_undo_reduction(&cc, cwnd, ssthresh);
	assert_memory_equal(&cc.cubic, &before, sizeof(before));
	assert_int_equal(cc.cwnd, cwnd);
}

/* ---- HyStart++ ---- */

static void test_hystart_doubles_while_the_delay_stays(void **state)
{
	uint64_t now_ns = SECOND;

	(void)state;
	cc_start(VMA_TCP_CC_CUBIC, MSS);
	for (unsigned round = 1; round <= 8; round++)
		cc_one_round(20 * MS, now_ns += 20 * MS);
	assert_int_equal(cc.cwnd, (10u << 8) * MSS);
	assert_false(cc.in_css);
}

static void test_hystart_slows_down_when_the_delay_grows_and_ends_after_five_rounds(void **state)
{
	uint64_t now_ns = SECOND;
	uint32_t before;

	(void)state;
	cc_start(VMA_TCP_CC_CUBIC, MSS);
	for (unsigned round = 0; round < 3; round++)
		cc_one_round(40 * MS, now_ns += 40 * MS);
	for (unsigned i = 0; i < 8; i++) {
		assert_false(cc.in_css); /* eight samples are needed */
		cc_on_ack(&cc, MSS, true, 45 * MS, now_ns);
	}
	assert_true(cc.in_css); /* 5 ms are an eighth of 40 ms */
	before = cc.cwnd;
	cc_on_ack(&cc, 4 * MSS, true, 45 * MS, now_ns);
	assert_int_equal(cc.cwnd, before + MSS);
	for (unsigned round = 0; round < 8 && cc.ssthresh == UINT32_MAX; round++)
		cc_one_round(46 * MS, now_ns += 46 * MS);
	assert_true(cc.ssthresh != UINT32_MAX);
	assert_true(cc.cwnd >= cc.ssthresh);
	assert_true(cc.cwnd > before * 2 && cc.cwnd < before * 5); /* 1.25^5 is 3.05 */
}

static void test_hystart_goes_on_when_the_delay_was_a_passing_jitter(void **state)
{
	uint64_t now_ns = SECOND;

	(void)state;
	cc_start(VMA_TCP_CC_CUBIC, MSS);
	for (unsigned round = 0; round < 3; round++)
		cc_one_round(40 * MS, now_ns += 40 * MS);
	for (unsigned i = 0; i < 8; i++)
		cc_on_ack(&cc, MSS, true, 50 * MS, now_ns);
	assert_true(cc.in_css);
	cc_one_round(50 * MS, now_ns += 50 * MS);
	cc_one_round(40 * MS, now_ns += 40 * MS);
	cc_one_round(40 * MS, now_ns += 40 * MS);
	assert_false(cc.in_css);
	assert_true(cc.ssthresh == UINT32_MAX);
}

static void test_hystart_ignores_what_is_below_four_milliseconds(void **state)
{
	uint64_t now_ns = SECOND;

	(void)state;
	cc_start(VMA_TCP_CC_CUBIC, MSS);
	for (unsigned round = 0; round < 6; round++)
		cc_one_round(MS / 5 + round * MS / 2, now_ns += MS);
	assert_false(cc.in_css);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_initial_window_is_rfc_6928),
        cmocka_unit_test(test_names_are_those_of_tcp_congestion),
        cmocka_unit_test(test_window_that_is_not_used_does_not_grow),
        cmocka_unit_test(test_window_never_passes_what_scaling_allows),
        cmocka_unit_test(test_timeout_leaves_one_segment_and_half_as_threshold),
        cmocka_unit_test(test_idle_time_halves_the_window_per_timeout_down_to_the_initial_one),
        cmocka_unit_test(test_other_segment_size_before_any_change_means_another_initial_window),
        cmocka_unit_test(test_none_holds_nothing_back_even_after_loss),
        cmocka_unit_test(test_newreno_slow_start_counts_bytes_up_to_two_segments),
        cmocka_unit_test(test_newreno_slow_start_doubles_per_round),
        cmocka_unit_test(test_newreno_avoidance_adds_one_segment_per_window),
        cmocka_unit_test(test_newreno_loss_halves_what_is_in_flight),
        cmocka_unit_test(test_cube_root_is_exact),
        cmocka_unit_test(test_cubic_loss_leaves_seven_tenths_of_the_window),
        cmocka_unit_test(test_cubic_second_loss_below_the_last_maximum_makes_room),
        cmocka_unit_test(test_cubic_follows_its_curve),
        cmocka_unit_test(test_cubic_is_never_slower_than_reno),
        cmocka_unit_test(test_cubic_never_grows_by_more_than_half_per_window),
        cmocka_unit_test(test_cubic_time_without_use_does_not_count),
        cmocka_unit_test(test_cubic_after_a_timeout_begins_at_its_threshold),
        cmocka_unit_test(test_cubic_spurious_loss_is_taken_back),
        cmocka_unit_test(test_hystart_doubles_while_the_delay_stays),
        cmocka_unit_test(test_hystart_slows_down_when_the_delay_grows_and_ends_after_five_rounds),
        cmocka_unit_test(test_hystart_goes_on_when_the_delay_was_a_passing_jitter),
        cmocka_unit_test(test_hystart_ignores_what_is_below_four_milliseconds),
};
VMA_TEST_MAIN(tests)
