/*
 * The wheel against what it has to be equal to: a list of times that is searched from end to end. Steps are drawn at
 * random: set, move, stop, advance by anything from nothing to years.
 */
#include <string.h>

#include <vma/test.h>

#include "../timer/wheel.h"

#define NODES 300
#define SECOND UINT64_C(1000000000)

static struct tcp_wheel wheel;
static struct tcp_timer_node node[NODES];
static uint64_t expected[NODES]; /* when it is due; 0: not set */
static uint64_t now;
static unsigned timer_fired_n[NODES], timers_fired_in_all;
static uint64_t seed;

static uint64_t wheel_draw_random(void)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return seed >> 16;
}

/* Any order of magnitude is as likely as any other. */
static uint64_t draw_random_time_span(unsigned bits)
{
	return wheel_draw_random() & ((UINT64_C(1) << wheel_draw_random() % bits) - 1);
}

static void setup_timer_wheel(uint64_t at, uint64_t with_seed)
{
	seed = with_seed;
	now = at;
	wheel_init(&wheel, now);
	memset(node, 0, sizeof(node));
	memset(expected, 0, sizeof(expected));
	memset(timer_fired_n, 0, sizeof(timer_fired_n));
	timers_fired_in_all = 0;
}

static void tcp_wheel_set(unsigned i, uint64_t due_ns)
{
	wheel_set(&wheel, &node[i], due_ns);
	expected[i] = due_ns;
	assert_true(wheel_is_set(&node[i]));
}

static void tcp_wheel_stop(unsigned i)
{
	wheel_stop(&wheel, &node[i]);
	expected[i] = 0;
	assert_false(wheel_is_set(&node[i]));
}

static uint64_t earliest_expected_timer(void)
{
	uint64_t first = UINT64_MAX;

	for (unsigned i = 0; i < NODES; i++) {
		if (expected[i] && expected[i] < first)
			first = expected[i];
	}
	return first;
}

static void fire_expected(struct tcp_timer_node *timer, void *arg)
{
	unsigned i = (unsigned)(timer - node);

	assert_ptr_equal(arg, &wheel);
	assert_false(wheel_is_set(timer));
	assert_true(expected[i] && expected[i] <= now);
	expected[i] = 0;
	timer_fired_n[i]++;
	timers_fired_in_all++;
}

/* Everything due fires, nothing else, and what wheel_next_due_ns promises holds. */
static void wheel_advance_and_check_fired(uint64_t to)
{
	now = to;
	wheel_advance(&wheel, now, fire_expected, &wheel);
	for (unsigned i = 0; i < NODES; i++) {
		assert_true(!expected[i] || expected[i] > now);
		assert_int_equal(wheel_is_set(&node[i]), expected[i] != 0);
	}
	if (earliest_expected_timer() == UINT64_MAX) {
		assert_true(wheel_next_due_ns(&wheel) == UINT64_MAX);
	} else {
		assert_true(wheel_next_due_ns(&wheel) <= earliest_expected_timer());
		assert_true(wheel_next_due_ns(&wheel) > now);
	}
}

static void test_random_steps_fire_what_a_sorted_list_would(void **state)
{
	(void)state;
	for (unsigned round = 0; round < 200; round++) {
		setup_timer_wheel(draw_random_time_span(60), round);
		for (unsigned step = 0; step < 400; step++) {
			unsigned i = (unsigned)(wheel_draw_random() % NODES);

			if (wheel_draw_random() % 4 < 2)
				tcp_wheel_set(i, now + 1 + draw_random_time_span(50));
			else if (wheel_draw_random() % 4 == 0)
				tcp_wheel_stop(i);
			else
				wheel_advance_and_check_fired(now +
				                              draw_random_time_span(wheel_draw_random() % 8 ? 24 : 55));
		}
		while (earliest_expected_timer() != UINT64_MAX)
			wheel_advance_and_check_fired(wheel_next_due_ns(&wheel));
	}
}

/* Who sleeps until wheel_next_due_ns gets there in few steps, and exactly in time. */
static void test_following_next_fires_each_at_its_nanosecond(void **state)
{
	(void)state;
	for (unsigned round = 0; round < 2000; round++) {
		uint64_t due;
		unsigned steps = 0;

		setup_timer_wheel(draw_random_time_span(50), round + 1);
		due = now + 1 + draw_random_time_span(55);
		tcp_wheel_set(0, due);
		while (timer_fired_n[0] == 0) {
			wheel_advance_and_check_fired(wheel_next_due_ns(&wheel));
			steps++;
		}
		assert_true(now == due);
		assert_true(steps <= WHEEL_LEVELS + 1);
	}
}

static void test_never_early_by_a_nanosecond(void **state)
{
	(void)state;
	setup_timer_wheel(1000, 1);
	tcp_wheel_set(0, 5000);
	wheel_advance_and_check_fired(4999);
	assert_int_equal(timer_fired_n[0], 0);
	wheel_advance_and_check_fired(5000);
	assert_int_equal(timer_fired_n[0], 1);
}

static void test_what_is_due_already_fires_at_the_next_advance(void **state)
{
	(void)state;
	setup_timer_wheel(10 * SECOND, 1);
	tcp_wheel_set(0, 1);
	tcp_wheel_set(1, 10 * SECOND);
	assert_true(wheel_next_due_ns(&wheel) <= 10 * SECOND);
	wheel_advance_and_check_fired(10 * SECOND);
	assert_int_equal(timer_fired_n[0], 1);
	assert_int_equal(timer_fired_n[1], 1);
}

static void test_a_clock_that_goes_back_does_no_harm(void **state)
{
	(void)state;
	setup_timer_wheel(10 * SECOND, 1);
	tcp_wheel_set(0, 11 * SECOND);
	now = 9 * SECOND;
	wheel_advance(&wheel, now, fire_expected, &wheel);
	assert_int_equal(timer_fired_n[0], 0);
	wheel_advance_and_check_fired(11 * SECOND);
	assert_int_equal(timer_fired_n[0], 1);
}

static void test_one_huge_jump_fires_all(void **state)
{
	(void)state;
	setup_timer_wheel(12345, 7);
	for (unsigned i = 0; i < NODES; i++)
		tcp_wheel_set(i, now + 1 + draw_random_time_span(57));
	wheel_advance_and_check_fired(UINT64_C(1) << 58);
	assert_int_equal(timers_fired_in_all, NODES);
}

static void test_times_further_than_the_levels_reach_come_in_time(void **state)
{
	uint64_t edge = (UINT64_C(1) << WHEEL_BITS * WHEEL_LEVELS) * WHEEL_TICK_NS;

	(void)state;
	setup_timer_wheel(edge - 5 * SECOND, 1); /* the levels end five seconds from now */
	tcp_wheel_set(0, edge + SECOND);
	tcp_wheel_set(1, UINT64_MAX - 1);
	tcp_wheel_set(2, edge - SECOND);
	wheel_advance_and_check_fired(edge - 2 * SECOND);
	assert_int_equal(timers_fired_in_all, 0);
	wheel_advance_and_check_fired(edge - 1);
	assert_int_equal(timer_fired_n[2], 1);
	wheel_advance_and_check_fired(edge + SECOND - 1);
	assert_int_equal(timer_fired_n[0], 0);
	wheel_advance_and_check_fired(edge + SECOND);
	assert_int_equal(timer_fired_n[0], 1);
	assert_int_equal(timer_fired_n[1], 0);
	tcp_wheel_stop(1);
	wheel_advance_and_check_fired(edge + 2 * SECOND);
}

/* ---- what fire may do ---- */

static void fire_and_stop_all(struct tcp_timer_node *timer, void *arg)
{
	(void)arg;
	timers_fired_in_all++;
	for (unsigned i = 0; i < NODES; i++)
		wheel_stop(&wheel, &node[i]);
	assert_false(wheel_is_set(timer));
}

static void test_fire_may_stop_all_others_even_those_due_now(void **state)
{
	(void)state;
	setup_timer_wheel(0, 1);
	for (unsigned i = 0; i < NODES; i++)
		wheel_set(&wheel, &node[i], 1000 + draw_random_time_span(30));
	wheel_advance(&wheel, 2 * SECOND, fire_and_stop_all, NULL);
	assert_int_equal(timers_fired_in_all, 1);
	assert_true(wheel_next_due_ns(&wheel) == UINT64_MAX);
	for (unsigned level = 0; level < WHEEL_LEVELS; level++)
		assert_int_equal(wheel.occupied[level], 0);
}

static void fire_and_set_again(struct tcp_timer_node *timer, void *arg)
{
	timers_fired_in_all++;
	wheel_set(&wheel, timer, timer->due_ns + *(uint64_t *)arg);
}

static void test_fire_may_set_its_own_timer_again(void **state)
{
	uint64_t period = 1000 * 1000;

	(void)state;
	setup_timer_wheel(0, 1);
	wheel_set(&wheel, &node[0], period);
	for (unsigned i = 0; i < 1000; i++)
		wheel_advance(&wheel, wheel_next_due_ns(&wheel), fire_and_set_again, &period);
	assert_true(node[0].due_ns >= 1000 / (WHEEL_LEVELS + 1) * period);
	assert_int_equal(timers_fired_in_all, node[0].due_ns / period - 1);
}

static void test_set_for_the_past_in_fire_comes_with_the_next_advance(void **state)
{
	uint64_t period = 1;

	(void)state;
	setup_timer_wheel(0, 1);
	wheel_set(&wheel, &node[0], 10);
	wheel_advance(&wheel, SECOND, fire_and_set_again, &period);
	assert_int_equal(timers_fired_in_all, 1);
	assert_true(wheel_next_due_ns(&wheel) <= SECOND);
	wheel_advance(&wheel, SECOND, fire_and_set_again, &period);
	assert_int_equal(timers_fired_in_all, 2);
}

static void fire_and_move_others(struct tcp_timer_node *timer, void *arg)
{
	(void)timer;
	(void)arg;
	timers_fired_in_all++;
	for (unsigned i = 0; i < NODES; i++) {
		if (wheel_is_set(&node[i]))
			wheel_set(&wheel, &node[i], 3 * SECOND + i);
	}
}

static void test_fire_may_move_others_that_are_due_now(void **state)
{
	(void)state;
	setup_timer_wheel(0, 1);
	for (unsigned i = 0; i < NODES; i++)
		wheel_set(&wheel, &node[i], 1 + i * 7);
	wheel_advance(&wheel, SECOND, fire_and_move_others, NULL);
	assert_int_equal(timers_fired_in_all, 1);
	assert_true(wheel_next_due_ns(&wheel) > SECOND && wheel_next_due_ns(&wheel) <= 3 * SECOND + 1);
	wheel_advance(&wheel, 4 * SECOND, fire_and_set_again, &(uint64_t){5 * SECOND});
	assert_int_equal(timers_fired_in_all, NODES);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_steps_fire_what_a_sorted_list_would),
        cmocka_unit_test(test_following_next_fires_each_at_its_nanosecond),
        cmocka_unit_test(test_never_early_by_a_nanosecond),
        cmocka_unit_test(test_what_is_due_already_fires_at_the_next_advance),
        cmocka_unit_test(test_a_clock_that_goes_back_does_no_harm),
        cmocka_unit_test(test_one_huge_jump_fires_all),
        cmocka_unit_test(test_times_further_than_the_levels_reach_come_in_time),
        cmocka_unit_test(test_fire_may_stop_all_others_even_those_due_now),
        cmocka_unit_test(test_fire_may_set_its_own_timer_again),
        cmocka_unit_test(test_set_for_the_past_in_fire_comes_with_the_next_advance),
        cmocka_unit_test(test_fire_may_move_others_that_are_due_now),
};
VMA_TEST_MAIN(tests)
