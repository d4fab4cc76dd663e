/* Which segments are acceptable, and how those are answered that are not: RFC 9293 3.10.7, 5961, 7323. */
#include "raw.h"

static void test_syn_has_the_options_of_a_modern_stack(void **state)
{
	struct app *app = stack_sends_syn_to_raw_peer();
	const struct raw_segment *syn = raw_next_segment();

	(void)state;
	assert_int_equal(syn->flags, TCP_SYN);
	assert_int_equal(syn->window, 65535 < 131072 / 2 ? 65535 : 131072 / 2);
	assert_true(syn->dont_fragment);
	assert_int_equal(syn->ttl, 64);
	assert_int_equal(syn->options_len, 4 + 12 + 4 + 4);
	assert_int_equal(syn->options[0], 2); /* MSS */
	assert_int_equal(syn->options[2] << 8 | syn->options[3], 1460);
	assert_int_equal(syn->options[6], 8);  /* time stamps */
	assert_int_equal(syn->options[17], 3); /* window scale */
	assert_int_equal(syn->options[19], 7);
	assert_int_equal(syn->options[22], 4); /* SACK permitted */
	app_free(app);
}

static void test_refused_connection_fails_with_econnrefused(void **state)
{
	struct app *app = stack_sends_syn_to_raw_peer();

	(void)state;
	raw_send_segment(0, 1, TCP_RST | TCP_ACK, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSE);
	assert_int_equal(vma_tcp_error(app->conn), ECONNREFUSED);
	assert_true(fixture_take_app_events(app) & VMA_TCP_FAILED);
	assert_int_equal(fixture_poll_events_of_app(app),
	                 EPOLLIN | EPOLLRDNORM | EPOLLRDHUP | EPOLLOUT | EPOLLWRNORM | EPOLLHUP | EPOLLERR);
	assert_int_equal(vma_tcp_error_take(app->conn), ECONNREFUSED);
	assert_int_equal(vma_tcp_error_take(app->conn), 0);
	assert_false(fixture_poll_events_of_app(app) & EPOLLERR);
	app_free(app);
}

/* As to the kernel: the data is not taken, and comes again. Its numbers are on both sides of 2^31. */
static void test_syn_with_data_in_answer_makes_a_connection(void **state)
{
	struct app *app = stack_sends_syn_to_raw_peer();
	const uint8_t options[4] = {2, 4, 1000 >> 8, 1000 & 255};
	char data[600] = {0};

	(void)state;
	assert_int_equal(raw_next_segment()->flags, TCP_SYN);
	raw_send_segment_with_options(0, 1, TCP_SYN | TCP_ACK, options, 4, 0, data, sizeof(data));
	assert_int_equal(vma_tcp_state(app->conn), TCP_ESTABLISHED);
	assert_int_equal(raw_last_segment()->ack, 1);
	raw_send_bytes(1, 1, 600);
	assert_int_equal(raw_last_segment()->ack, 601);
	assert_int_equal(read_bytes(app, 1000), 600);
	app_free(app);
}

static void test_reset_of_another_connection_does_not_refuse(void **state)
{
	struct app *app = stack_sends_syn_to_raw_peer();

	(void)state;
	raw_next_segment();
	raw_send_segment(0, 0, TCP_RST | TCP_ACK, "", 0); /* acknowledges nothing */
	raw_send_segment(0, 0, TCP_RST, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_SYN_SENT);
	assert_int_equal(raw_unseen_count(), 0);
	raw_send_segment(0, 7, TCP_ACK, "", 0); /* of what was never sent: RFC 9293 3.10.7.3 */
	assert_true(raw_next_segment()->flags & TCP_RST);
	assert_int_equal(vma_tcp_state(app->conn), TCP_SYN_SENT);
	app_free(app);
}

/* What a peer in TIME_WAIT answers to a SYN that it does not take for a new one: RFC 9293 3.10.7.3, and the SYN again.
 */
static void test_who_remembers_another_connection_is_reset_and_asked_again_soon(void **state)
{
	struct app *app = stack_sends_syn_to_raw_peer();
	const struct raw_segment *s;

	(void)state;
	raw_next_segment();
	raw_send_segment(50, 7, TCP_ACK, "", 0);
	s = raw_next_segment();
	assert_true(s->flags & TCP_RST);
	assert_int_equal(s->seq, 7);
	fixture_run_for_ns(SEC / 50);
	s = raw_next_segment();
	assert_int_equal(s->flags, TCP_SYN);
	assert_int_equal(s->seq, 0);
	raw_send_segment(50, 7, TCP_ACK, "", 0); /* no ping-pong */
	assert_true(raw_next_segment()->flags & TCP_RST);
	fixture_run_for_ns(SEC / 50);
	assert_int_equal(raw_unseen_count(), 0);
	app_free(app);
}

static void test_reset_must_hit_the_next_number_exactly(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	raw_send_segment(2, 1, TCP_RST, "", 0); /* in the window: RFC 5961 3.2 */
	assert_int_equal(vma_tcp_state(app->conn), TCP_ESTABLISHED);
	assert_int_equal(raw_next_segment()->flags, TCP_ACK);
	raw_send_segment(100000000, 1, TCP_RST, "", 0); /* out of it */
	assert_int_equal(raw_unseen_count(), 0);
	assert_int_equal(fixture_stack_counts(0).challenge_acks, 1);
	raw_send_segment(1, 1, TCP_RST, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSE);
	assert_int_equal(vma_tcp_error(app->conn), ECONNRESET);
	app_free(app);
}

static void test_challenge_acks_are_rare(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	for (int i = 0; i < 100; i++)
		raw_send_segment(2, 1, TCP_RST, "", 0);
	assert_int_equal(raw_unseen_count(), 1);
	fixture_run_for_ns(500 * MS);
	raw_send_segment(2, 1, TCP_RST, "", 0);
	assert_int_equal(raw_unseen_count(), 2);
	app_free(app);
}

static void test_syn_in_a_connection_is_challenged(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	raw_send_segment(1, 1, TCP_SYN, "", 0);
	assert_int_equal(raw_next_segment()->flags, TCP_ACK);
	fixture_run_for_ns(SEC);
	raw_mark_all_segments_seen();
	raw_send_segment(50000000, 0, TCP_SYN, "", 0); /* a peer that has started anew */
	assert_int_equal(raw_next_segment()->ack, 1);
	assert_int_equal(vma_tcp_state(app->conn), TCP_ESTABLISHED);
	app_free(app);
}

static void test_ack_of_what_was_never_sent_is_challenged(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	const struct raw_segment *s;

	(void)state;
	raw_send_segment(1, 1000, TCP_ACK, "", 0); /* RFC 5961 5.2 */
	s = raw_next_segment();
	assert_int_equal(s->flags, TCP_ACK);
	assert_int_equal(s->seq, 1);
	assert_int_equal(s->ack, 1);
	assert_int_equal(fixture_stack_counts(0).challenge_acks, 1);
	raw_send_segment(1, 1000, TCP_ACK, "data", 4); /* not each time */
	assert_int_equal(raw_unseen_count(), 0);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 0);
	fixture_run_for_ns(SEC);
	raw_send_segment(1, 1000, TCP_ACK, "data", 4);
	assert_int_equal(raw_next_segment()->flags, TCP_ACK);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 0);
	fixture_run_for_ns(SEC);
	raw_send_segment(1, 0x90000000u, TCP_ACK, "data", 4); /* long ago */
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 0);
	assert_int_equal(raw_next_segment()->flags, TCP_ACK);
	app_free(app);
}

static void test_segment_out_of_the_window_is_answered_not_taken(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	raw_send_segment(100000, 1, TCP_ACK, "data", 4);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 0);
	assert_int_equal(raw_next_segment()->ack, 1);
	raw_send_segment(0, 1, TCP_ACK, "", 0); /* a keepalive probe */
	assert_int_equal(raw_next_segment()->ack, 1);
	raw_send_segment(0, 1, TCP_ACK, "", 0);
	assert_int_equal(raw_unseen_count(), 0);
	app_free(app);
}

static void test_old_time_stamps_are_dropped(void **state)
{
	struct app *app;

	(void)state;
	raw.ts = 1000;
	app = stack_connects_to_raw_peer();
	raw_send_segment(1, 1, TCP_ACK, "new", 3);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 3);
	raw_mark_all_segments_seen();
	raw.ts = 999;
	raw_send_segment(4, 1, TCP_ACK, "old", 3);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 3);
	assert_int_equal(raw_next_segment()->ack, 4);
	assert_int_equal(fixture_stack_counts(0).paws_drops, 1);
	raw.ts = 1001;
	raw_send_segment(4, 1, TCP_ACK, "now", 3);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 6);
	raw.ts = 5;
	raw_send_segment(7, 1, TCP_RST, "", 0); /* a RST needs none: RFC 7323 5.3 R1 */
	assert_int_equal(vma_tcp_error(app->conn), ECONNRESET);
	app_free(app);
}

static void test_segments_without_ack_are_nothing(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	raw_send_segment(1, 0, 0, "data", 4);
	raw_send_segment(1, 0, TCP_PSH, "data", 4);
	raw_send_segment(1, 0, TCP_FIN, "", 0);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_ESTABLISHED);
	app_free(app);
}

static void test_both_sides_may_connect_to_each_other(void **state)
{
	struct app *app = stack_sends_syn_to_raw_peer();
	uint8_t options[4] = {2, 4, 1000 >> 8, 1000 & 255};
	const struct raw_segment *s;

	(void)state;
	raw_next_segment();
	raw_send_segment_with_options(0, 0, TCP_SYN, options, 4, 0, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_SYN_RECV);
	s = raw_next_segment();
	assert_int_equal(s->flags, TCP_SYN | TCP_ACK);
	assert_int_equal(s->seq, 0);
	assert_int_equal(s->ack, 1);
	raw_send_segment_with_options(0, 1, TCP_SYN | TCP_ACK, options, 4, 0, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_ESTABLISHED);
	assert_true(fixture_take_app_events(app) & VMA_TCP_CONNECTED);
	raw_mark_all_segments_seen();
	raw_send_bytes(1, 1, 100);
	assert_int_equal(read_bytes(app, 1000), 100);
	fixture_send_bytes(app, 10);
	fixture_run_until_idle();
	s = raw_last_segment();
	assert_int_equal(s->seq, 1);
	assert_int_equal(s->len, 10);
	app_free(app);
}

static void test_two_stacks_may_connect_to_each_other(void **state)
{
	struct vma_tcp_path path[2] = {fixture_path_to_peer_of(0, 1500), fixture_path_to_peer_of(1, 1500)};
	struct app app[2] = {0};

	(void)state;
	assert_int_equal(fixture_connect_rc(0, 5000, 6000, &path[0], &app[0]), 0);
	assert_int_equal(fixture_connect_rc(1, 6000, 5000, &path[1], &app[1]), 0);
	fixture_run_for_ns(2 * SEC);
	for (int i = 0; i < 2; i++)
		assert_int_equal(vma_tcp_state(app[i].conn), TCP_ESTABLISHED);
	fixture_transfer_and_check_bytes(&app[0], &app[1], 50000, SEC);
	fixture_transfer_and_check_bytes(&app[1], &app[0], 50000, SEC);
	for (int i = 0; i < 2; i++) {
		vma_tcp_conn_drop_owner_and_abort(app[i].conn);
		vma_tcp_conn_put(app[i].conn);
	}
}

static const struct CMUnitTest tests[] = {
        RAW_CASE(test_syn_has_the_options_of_a_modern_stack),
        RAW_CASE(test_refused_connection_fails_with_econnrefused),
        RAW_CASE(test_syn_with_data_in_answer_makes_a_connection),
        RAW_CASE(test_reset_of_another_connection_does_not_refuse),
        RAW_CASE(test_who_remembers_another_connection_is_reset_and_asked_again_soon),
        RAW_CASE(test_reset_must_hit_the_next_number_exactly),
        RAW_CASE(test_challenge_acks_are_rare),
        RAW_CASE(test_syn_in_a_connection_is_challenged),
        RAW_CASE(test_ack_of_what_was_never_sent_is_challenged),
        RAW_CASE(test_segment_out_of_the_window_is_answered_not_taken),
        RAW_CASE(test_old_time_stamps_are_dropped),
        RAW_CASE(test_segments_without_ack_are_nothing),
        RAW_CASE(test_both_sides_may_connect_to_each_other),
        RAW_CASE(test_two_stacks_may_connect_to_each_other),
};
VMA_TEST_MAIN(tests)
