/*
 * A message that is alone in the send fifo takes a path of its own (tx/output.c, conn_single_message_bytes_to_send): it
 * does in a conversation, and does not where something else is to be done, which then is done.
 */
#include "raw.h"

enum { MESSAGE = 64 };

/* How many messages have been found alone, since the last time. */
static uint32_t count_sole_messages(void)
{
	uint32_t n = side[0].tcp->alone;

	side[0].tcp->alone = 0;
	return n;
}

static void raw_peer_acks_sole_message(uint32_t theirs)
{
	raw_send_segment(1, 1 + theirs, TCP_ACK, "", 0);
}

static struct app *stack_connects_to_raw_peer_with_nodelay(void)
{
	struct app *app = stack_connects_to_raw_peer();

	assert_int_equal(vma_tcp_set_option(app->conn, VMA_TCP_OPT_NODELAY, 1), 0);
	raw_mark_all_segments_seen();
	count_sole_messages();
	return app;
}

/* Sends; so many segments have left, none of them as one that is alone. */
static void send_and_expect_no_sole_message(struct app *app, size_t n, unsigned segments)
{
	unsigned before = raw.count;

	fixture_send_bytes(app, n);
	fixture_run_until_idle();
	assert_int_equal(count_sole_messages(), 0);
	assert_int_equal(raw.count - before, segments);
	raw_mark_all_segments_seen();
}

static void send_and_expect_sole_message(struct app *app, size_t n)
{
	unsigned before = raw.count;

	fixture_send_bytes(app, n);
	fixture_run_until_idle();
	assert_int_equal(count_sole_messages(), 1);
	assert_int_equal(raw.count - before, 1);
}

static void test_each_message_of_a_conversation_is_alone(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_nodelay();
	uint32_t mine = 1;

	(void)state;
	for (uint32_t i = 0; i < 50; i++) {
		const struct raw_segment *s;

		send_and_expect_sole_message(app, MESSAGE);
		s = raw_next_segment();
		assert_int_equal(s->seq, 1 + i * MESSAGE);
		assert_int_equal(s->ack, mine);
		assert_int_equal(s->len, MESSAGE);
		assert_int_equal(s->flags, TCP_ACK | TCP_PSH);
		for (uint32_t k = 0; k < MESSAGE; k++)
			assert_int_equal(s->data[k], fixture_pattern_byte_at(i * MESSAGE + k));
		raw_send_bytes(mine, 1 + (i + 1) * MESSAGE, MESSAGE);
		mine += MESSAGE;
		assert_int_equal(read_bytes(app, MESSAGE), MESSAGE);
		raw_mark_all_segments_seen(); /* perhaps an ACK, at first */
	}
	app_free(app);
}

static void test_a_message_is_alone_behind_others_that_are_on_their_way(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_nodelay();

	(void)state;
	for (int i = 0; i < 5; i++)
		send_and_expect_sole_message(app, MESSAGE);
	raw_peer_acks_sole_message(5 * MESSAGE);
	assert_int_equal(vma_tcp_tx_unacked_bytes(app->conn), 0);
	app_free(app);
}

static void test_what_fills_a_segment_is_alone_and_what_is_longer_is_not(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_nodelay();

	(void)state;
	send_and_expect_sole_message(app, 1000);
	raw_peer_acks_sole_message(1000);
	send_and_expect_no_sole_message(app, 1001, 2);
	app_free(app);
}

static void test_nagle_cork_and_more_hold_it_back(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_nodelay();

	(void)state;
	assert_int_equal(vma_tcp_set_option(app->conn, VMA_TCP_OPT_NODELAY, 0), 0);
	send_and_expect_sole_message(app, MESSAGE);
	send_and_expect_no_sole_message(app, MESSAGE, 0); /* Nagle */
	raw_peer_acks_sole_message(MESSAGE);
	assert_int_equal(count_sole_messages(), 1);
	raw_peer_acks_sole_message(2 * MESSAGE);
	assert_int_equal(vma_tcp_set_option(app->conn, VMA_TCP_OPT_CORK, 1), 0);
	send_and_expect_no_sole_message(app, MESSAGE, 0);
	assert_int_equal(vma_tcp_set_option(app->conn, VMA_TCP_OPT_CORK, 0), 0);
	fixture_run_until_idle();
	raw_peer_acks_sole_message(3 * MESSAGE);
	raw_mark_all_segments_seen();
	count_sole_messages();
	assert_int_equal(send_flags(app, MESSAGE, VMA_TCP_TX_MORE), MESSAGE);
	fixture_run_until_idle();
	assert_int_equal(count_sole_messages(), 0);
	assert_int_equal(raw_unseen_count(), 0);
	app_free(app);
}

static void test_a_window_that_is_closed_or_too_small_holds_it_back(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_nodelay();

	(void)state;
	raw.window = MESSAGE - 1;
	raw_send_bytes(1, 1, 10);
	raw_mark_all_segments_seen();
	count_sole_messages();
	send_and_expect_no_sole_message(app, MESSAGE, 0);
	raw.window = 20000;
	raw_send_bytes(11, 1, 10);
	assert_int_equal(count_sole_messages(), 1);
	raw_mark_all_segments_seen();
	app->conn->cc.cwnd = 2 * MESSAGE - 1;
	send_and_expect_no_sole_message(app, MESSAGE, 0);
	app->conn->cc.cwnd = 2 * MESSAGE;
	vma_tcp_send_committed(app->conn);
	assert_int_equal(count_sole_messages(), 1);
	app_free(app);
}

static void test_recovery_and_its_marks_are_asked_first(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_nodelay();
	struct tcp_recovery *r = &app->conn->recovery;
	uint32_t *mark[] = {&r->sacked_bytes, &r->dup_bytes, &r->frto};

	(void)state;
	for (unsigned i = 0; i < sizeof(mark) / sizeof(mark[0]); i++) {
		send_and_expect_sole_message(app, MESSAGE); /* something is in flight */
		raw_mark_all_segments_seen();
		*mark[i] = MESSAGE;
		send_and_expect_no_sole_message(app, MESSAGE, 1);
		*mark[i] = 0;
		raw_peer_acks_sole_message((i + 1) * 2 * MESSAGE);
	}
	r->state = TCP_RECOVERY_DISORDER;
	send_and_expect_no_sole_message(app, MESSAGE, 1);
	r->state = TCP_RECOVERY_OPEN;
	r->probe_wanted = true; /* with something in flight: it is repeated, and the message follows */
	send_and_expect_no_sole_message(app, MESSAGE, 2);
	assert_false(r->probe_wanted);
	r->probe_new = true;
	send_and_expect_no_sole_message(app, MESSAGE, 1);
	assert_true(r->tail_probe_out);
	app_free(app);
}

static void test_after_a_silence_the_window_is_looked_at_first(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_nodelay();

	(void)state;
	send_and_expect_sole_message(app, MESSAGE);
	raw_peer_acks_sole_message(MESSAGE);
	raw_mark_all_segments_seen();
	fixture_run_for_ns(3000 * MS);
	send_and_expect_no_sole_message(app, MESSAGE, 1);
	assert_true(app->conn->cc.cwnd <= 10 * 1000); /* RFC 2861 */
	raw_peer_acks_sole_message(2 * MESSAGE);
	send_and_expect_sole_message(app, MESSAGE);
	app_free(app);
}

static void test_what_has_to_wait_for_its_time_and_urgent_data_take_the_slow_path(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_nodelay();
	const struct raw_segment *s;

	(void)state;
	assert_int_equal(send_flags(app, MESSAGE, VMA_TCP_TX_URGENT), MESSAGE);
	fixture_run_until_idle();
	assert_int_equal(count_sole_messages(), 0);
	s = raw_next_segment();
	assert_true(s->flags & TCP_URG);
	assert_int_equal(s->urgent, MESSAGE);
	raw_peer_acks_sole_message(MESSAGE);
	raw_mark_all_segments_seen();
	send_and_expect_sole_message(app, MESSAGE);
	raw_peer_acks_sole_message(2 * MESSAGE);
	raw_mark_all_segments_seen();
	assert_int_equal(vma_tcp_set_option(app->conn, VMA_TCP_OPT_CONGESTION, VMA_TCP_CC_BBR), 0);
	send_and_expect_sole_message(app, MESSAGE);
	app->conn->cc.pacing_rate = 1000000;
	app->conn->pace = (struct tcp_pacing){.next_ns = side[0].tcp->now_ns + MS};
	raw_peer_acks_sole_message(3 * MESSAGE);
	raw_mark_all_segments_seen();
	send_and_expect_no_sole_message(app, MESSAGE, 0);
	fixture_run_for_ns(MS + 1);
	assert_int_equal(raw_unseen_count(), 1);
	app_free(app);
}

static void test_what_is_written_before_the_handshake_is_over_waits_for_it(void **state)
{
	struct app *app = stack_sends_syn_to_raw_peer();
	const uint8_t options[4] = {2, 4, 1000 >> 8, 1000 & 255};

	(void)state;
	assert_int_equal(raw_next_segment()->flags, TCP_SYN);
	send_and_expect_no_sole_message(app, MESSAGE, 0);
	assert_int_equal(app->conn->lwip_end, 0);
	raw_send_segment_with_options(0, 1, TCP_SYN | TCP_ACK, options, sizeof(options), 0, "", 0);
	assert_int_equal(count_sole_messages(), 1);
	assert_int_equal(raw_last_segment()->len, MESSAGE);
	app_free(app);
}

static void test_a_fin_goes_along_or_behind(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_nodelay();

	(void)state;
	assert_int_equal(send_flags(app, MESSAGE, VMA_TCP_TX_LATER), MESSAGE);
	vma_tcp_shutdown(app->conn, SHUT_WR);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 1);
	assert_int_equal(raw_next_segment()->flags & TCP_FIN, TCP_FIN);
	app_free(app);
}

static const struct CMUnitTest tests[] = {
        RAW_CASE(test_each_message_of_a_conversation_is_alone),
        RAW_CASE(test_a_message_is_alone_behind_others_that_are_on_their_way),
        RAW_CASE(test_what_fills_a_segment_is_alone_and_what_is_longer_is_not),
        RAW_CASE(test_nagle_cork_and_more_hold_it_back),
        RAW_CASE(test_a_window_that_is_closed_or_too_small_holds_it_back),
        RAW_CASE(test_recovery_and_its_marks_are_asked_first),
        RAW_CASE(test_after_a_silence_the_window_is_looked_at_first),
        RAW_CASE(test_what_has_to_wait_for_its_time_and_urgent_data_take_the_slow_path),
        RAW_CASE(test_what_is_written_before_the_handshake_is_over_waits_for_it),
        RAW_CASE(test_a_fin_goes_along_or_behind),
};
VMA_TEST_MAIN(tests)
