/* Answers for nobody: how many of them there are. */
#include "raw.h"

static unsigned count_resets_to_segments(unsigned segments)
{
	unsigned answers = 0;

	raw.peer_port = htons(PORT);
	for (unsigned i = 0; i < segments; i++) {
		raw.count = raw.seen = 0;
		raw_send_segment(i, 1, TCP_ACK, "", 0);
		answers += raw.count;
	}
	return answers;
}

static void test_a_flood_of_unmatched_segments_is_not_answered_by_a_flood_of_resets(void **state)
{
	(void)state;
	fixture_listen_on(0);
	assert_int_equal(count_resets_to_segments(100), 100);
	assert_int_equal(count_resets_to_segments(1500), 900);
	fixture_run_for_ns(MS);
	assert_int_equal(count_resets_to_segments(100), 50);
	fixture_run_for_ns(SEC);
	assert_int_equal(count_resets_to_segments(1500), 1000);
}

/* A request that is not complete answers wrong numbers by RST, too. */
static void test_a_flood_at_a_request_is_not_answered_by_a_flood_of_resets(void **state)
{
	unsigned answers = 0;

	(void)state;
	fixture_listen_on(0);
	raw_send_syn_to_listener(0);
	assert_int_equal(raw_next_segment()->flags, TCP_SYN | TCP_ACK);
	for (unsigned i = 0; i < 1500; i++) {
		raw.count = raw.seen = 0;
		raw_send_segment(1, 1000 + i, TCP_ACK, "", 0);
		answers += raw.count;
		if (raw.count != 0)
			assert_int_equal(raw.log[0].flags & TCP_RST, TCP_RST);
	}
	assert_int_equal(answers, 1000);
}

/* Identifications of IP: a connection has its own, and an answer for nobody has none. */
static void test_no_number_tells_a_peer_how_much_others_are_sent(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	uint16_t id, port;

	(void)state;
	fixture_listen_on(0);
	fixture_send_bytes(app, 10);
	fixture_run_until_idle();
	id = raw_last_segment()->ip_id;
	port = raw.peer_port;
	for (unsigned i = 0; i < 3; i++) {
		raw.peer_port = htons(PORT);
		raw_send_segment(i, 1, TCP_ACK, "", 0);
		assert_true(raw_next_segment()->flags & TCP_RST);
		assert_int_equal(raw.log[raw.seen - 1].ip_id, 0);
		assert_true(raw.log[raw.seen - 1].dont_fragment);
	}
	raw.peer_port = port;
	raw_send_segment(1, 11, TCP_ACK, "", 0);
	fixture_send_bytes(app, 10);
	fixture_run_until_idle();
	assert_int_equal(raw_last_segment()->ip_id, (uint16_t)(id + 1));
	app_free(app);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_no_number_tells_a_peer_how_much_others_are_sent, setup_raw_tcp_peer,
                                        teardown_raw_tcp_peer),
        cmocka_unit_test_setup_teardown(test_a_flood_of_unmatched_segments_is_not_answered_by_a_flood_of_resets,
                                        setup_raw_tcp_peer, teardown_raw_tcp_peer),
        cmocka_unit_test_setup_teardown(test_a_flood_at_a_request_is_not_answered_by_a_flood_of_resets,
                                        setup_raw_tcp_peer, teardown_raw_tcp_peer),
};
VMA_TEST_MAIN(tests)
