/* Depths and memory of queue pairs, and which sends ask for a completion. */
#include <vma/test.h>

#include "../verbs/plan.h"

#define ALL (64u << 20 >> 11) /* frames in 64 MB */

static bool plan_verbs_queue_sizes(uint32_t left, uint32_t rx, uint32_t tx, uint32_t rx_bufs,
                                   struct verbs_queue_sizes *out)
{
	const struct verbs_queue_sizes_wanted in = {
	        .frames_left = left, .rx_wre = rx, .tx_wre = tx, .wr_max = 32768, .rx_bufs = rx_bufs};

	return verbs_compute_queue_sizes(&in, out);
}

static void test_small_requests_are_granted(void **state)
{
	struct verbs_queue_sizes out;

	(void)state;
	assert_true(plan_verbs_queue_sizes(ALL, 256, 128, 1, &out));
	assert_int_equal(out.rx_depth, 256);
	assert_int_equal(out.rx_quota, 128);
	assert_int_equal(out.tx_depth, 128);
	assert_true(out.rx_frames > 256 + 64);
	assert_true(out.tx_frames > 128);
	assert_true(plan_verbs_queue_sizes(ALL, 0, 0, 1, &out));
	assert_int_equal(out.rx_depth, VERBS_DEPTH_DEFAULT);
	assert_int_equal(out.tx_depth, VERBS_DEPTH_DEFAULT);
}

static void test_a_queue_pair_leaves_half_of_the_memory_to_later_ones(void **state)
{
	uint32_t left = ALL, queue_pairs = 0;
	struct verbs_queue_sizes out;

	(void)state;
	for (; plan_verbs_queue_sizes(left, 16000, 2048, 1, &out); queue_pairs++) {
		assert_true(out.rx_frames + out.tx_frames <= left / 2 + 1);
		assert_true(out.rx_depth >= VERBS_DEPTH_MIN && out.tx_depth >= VERBS_DEPTH_MIN);
		left -= out.rx_frames + out.tx_frames;
	}
	assert_true(queue_pairs >= 6);
}

static void test_a_queue_is_not_deeper_than_the_device_allows(void **state)
{
	struct verbs_queue_sizes_wanted in = {
	        .frames_left = ALL, .rx_wre = 16000, .tx_wre = 2048, .wr_max = 1000, .rx_bufs = 1};
	struct verbs_queue_sizes out;

	(void)state;
	assert_true(verbs_compute_queue_sizes(&in, &out));
	assert_int_equal(out.rx_depth, 1000);
	assert_int_equal(out.tx_depth, 1000);
	in.rx_bufs = 5;
	assert_true(verbs_compute_queue_sizes(&in, &out));
	assert_int_equal(out.rx_depth, 5000);
}

static void test_long_packets_get_whole_receives(void **state)
{
	struct verbs_queue_sizes out;

	(void)state;
	assert_true(plan_verbs_queue_sizes(ALL, 256, 128, 5, &out));
	assert_int_equal(out.rx_depth, 256 * 5);
	assert_int_equal(out.rx_quota, 256);
	assert_true(plan_verbs_queue_sizes(4096, 256, 128, 5, &out));
	assert_true(out.rx_depth >= 1000 && out.rx_depth < 256 * 5);
	assert_int_equal(out.rx_depth % 5, 0);
}

static void test_without_memory_there_is_no_plan(void **state)
{
	struct verbs_queue_sizes out;

	(void)state;
	assert_false(plan_verbs_queue_sizes(0, 256, 256, 1, &out));
	assert_false(plan_verbs_queue_sizes(128, 256, 256, 1, &out));
	assert_true(plan_verbs_queue_sizes(1024, 256, 256, 1, &out));
}

static void test_every_so_many_packets_ask_for_a_completion(void **state)
{
	struct verbs_signal_interval signals = verbs_signal_interval_init(64, 2048);
	unsigned asked = 0;

	(void)state;
	for (unsigned i = 1; i <= 640; i++) {
		const bool asks = verbs_send_needs_signal(&signals, 1, true);

		assert_int_equal(asks, i % 64 == 0);
		asked += asks;
	}
	assert_int_equal(asked, 10);
}

static void test_without_batching_each_kick_asks_for_one(void **state)
{
	struct verbs_signal_interval signals = verbs_signal_interval_init(0, 2048);

	(void)state;
	for (unsigned i = 0; i < 100; i++) {
		assert_false(verbs_send_needs_signal(&signals, 1, false));
		assert_true(verbs_send_needs_signal(&signals, 1, true));
	}
}

/* The worst that can be on its way without a completion that was asked for: less than the queue. */
static void test_a_full_queue_always_has_a_completion_on_its_way(void **state)
{
	(void)state;
	for (uint32_t depth = VERBS_DEPTH_MIN; depth <= 4096; depth *= 2)
		for (uint32_t every = 0; every <= 64; every++)
			for (uint32_t segs = 1; segs <= 16 && segs <= depth; segs += 5) {
				struct verbs_signal_interval signals = verbs_signal_interval_init(every, depth);
				uint32_t unasked = 0;

				for (uint32_t i = 0; i < 3 * depth; i++) {
					const bool asks = verbs_send_needs_signal(&signals, segs, i % 7 == 0);

					unasked = asks ? 0 : unasked + segs;
					assert_true(unasked < depth);
				}
			}
}

/* ---- pace ---- */

static void test_a_pace_is_the_nearest_that_the_device_can(void **state)
{
	(void)state;
	assert_int_equal(verbs_pace_kbps(125, 1, 1000000), 1);
	assert_int_equal(verbs_pace_kbps(126, 1, 1000000), 2);
	assert_int_equal(verbs_pace_kbps(1, 1, 1000000), 1);
	assert_int_equal(verbs_pace_kbps(1000, 100, 1000000), 100);
	assert_int_equal(verbs_pace_kbps(125000000, 1, 1000000), 1000000);
}

static void test_no_pace_and_one_above_all_that_the_device_can_are_no_limit(void **state)
{
	(void)state;
	assert_int_equal(verbs_pace_kbps(0, 100, 1000000), 0);
	assert_int_equal(verbs_pace_kbps(125000001, 1, 1000000), 0);
	assert_int_equal(verbs_pace_kbps(UINT64_MAX, 1, UINT32_MAX), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_small_requests_are_granted),
	        cmocka_unit_test(test_a_queue_pair_leaves_half_of_the_memory_to_later_ones),
	        cmocka_unit_test(test_a_queue_is_not_deeper_than_the_device_allows),
	        cmocka_unit_test(test_long_packets_get_whole_receives),
	        cmocka_unit_test(test_without_memory_there_is_no_plan),
	        cmocka_unit_test(test_every_so_many_packets_ask_for_a_completion),
	        cmocka_unit_test(test_without_batching_each_kick_asks_for_one),
	        cmocka_unit_test(test_a_full_queue_always_has_a_completion_on_its_way),
	        cmocka_unit_test(test_a_pace_is_the_nearest_that_the_device_can),
	        cmocka_unit_test(test_no_pace_and_one_above_all_that_the_device_can_are_no_limit),
	};

	vma_test_set_filter_from_env();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
