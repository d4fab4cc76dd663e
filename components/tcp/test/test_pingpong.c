/*
 * The fast path of a conversation's message: it is taken where it is meant to be, and nowhere else, and it does what
 * the slow path through lwIP does (predicts_nothing). Each case is played on both paths, and all that is known of the
 * connection is compared.
 */
#include "paths.h"

/* One message that acknowledges all; whether it took the fast path. */
static bool peer_message_takes_fast_path(void)
{
	arm_fast_path_detection();
	peer_sends_expected_message(64);
	return fast_path_was_taken();
}

static void advance_time_and_peer_timestamps(void)
{
	fixture_run_for_ns(20000);
	if (raw.ts != 0) {
		raw.ts += 1;
		raw.ts_ecr = port_clock_ms(side[0].tcp);
	}
}

/* ---- it is taken ---- */

enum { ROUNDS = 100 };

static void test_ping_pong_takes_the_fast_path(void **state)
{
	static struct known known[TCP_PATHS][ROUNDS];

	(void)state;
	for (int which = 0; which < TCP_PATHS; which++) {
		setup_connection_with_fast_or_slow_path(which, true, true);
		for (int i = 0; i < ROUNDS; i++) {
			fixture_send_bytes(app, 64);
			advance_time_and_peer_timestamps();
			assert_true(peer_message_takes_fast_path() == (which == FAST));
			record_compared_state(&known[which][i]);
			assert_int_equal(read_bytes(app, 64), 64);
			advance_time_and_peer_timestamps();
			raw.count = raw.seen = 0;
		}
		teardown_connection_and_raw_peer();
	}
	expect_same_state(known[FAST], known[SLOW], ROUNDS);
}

/* Payload stays in its frame: as much of the receive buffer is in use as if it were copied. */
static void test_ping_pong_by_zero_copy_takes_the_fast_path(void **state)
{
	static struct known known[TCP_PATHS][ROUNDS];
	struct vma_tcp_rx_stream_piece piece;

	(void)state;
	for (int which = 0; which < TCP_PATHS; which++) {
		setup_connection_with_fast_or_slow_path(which, true, true);
		assert_int_equal(vma_tcp_enable_rx_zcopy(app->conn), 0);
		fixture_run_until_idle();
		for (int i = 0; i < ROUNDS; i++) {
			fixture_send_bytes(app, 64);
			advance_time_and_peer_timestamps();
			assert_true(peer_message_takes_fast_path() == (which == FAST));
			assert_true(vma_tcp_peek_first_rx_piece(app->conn, &piece));
			assert_non_null(piece.buf);
			assert_int_equal(piece.len, 64);
			for (uint32_t k = 0; k < piece.len; k++)
				assert_int_equal(((const uint8_t *)piece.data)[k],
				                 fixture_pattern_byte_at(mine - 1 - 64 + k));
			record_compared_state(&known[which][i]);
			assert_int_equal(read_bytes(app, 64), 64);
			advance_time_and_peer_timestamps();
			raw.count = raw.seen = 0;
		}
		assert_int_equal(app->conn->counts.zcopy_bytes, ROUNDS * 64);
		teardown_connection_and_raw_peer();
	}
	expect_same_state(known[FAST], known[SLOW], ROUNDS);
}

/* Nothing is out, so nothing is acknowledged. */
static void test_messages_one_way_take_the_fast_path(void **state)
{
	static struct known known[TCP_PATHS][ROUNDS];

	(void)state;
	for (int which = 0; which < TCP_PATHS; which++) {
		setup_connection_with_fast_or_slow_path(which, true, true);
		for (int i = 0; i < ROUNDS; i++) {
			advance_time_and_peer_timestamps();
			assert_true(peer_message_takes_fast_path() == (which == FAST));
			record_compared_state(&known[which][i]);
			if (i % 5 == 4)
				assert_int_equal(read_bytes(app, 320), 320);
			raw.count = raw.seen = 0;
		}
		teardown_connection_and_raw_peer();
	}
	expect_same_state(known[FAST], known[SLOW], ROUNDS);
}

/* The answer is there already when the question comes: the step sends it. */
static void test_what_waits_to_be_sent_is_sent_after_it(void **state)
{
	static struct known known[TCP_PATHS];

	(void)state;
	for (int which = 0; which < TCP_PATHS; which++) {
		setup_connection_with_fast_or_slow_path(which, true, true);
		raw.window = 64 >> 7; /* closed */
		raw_send_segment(1, 1, TCP_ACK, "", 0);
		raw.window = 0;
		raw_send_segment(1, 1, TCP_ACK, "", 0);
		fixture_send_bytes(app, 100);
		raw_mark_all_segments_seen();
		raw.window = 100;
		assert_true(peer_message_takes_fast_path() == (which == FAST));
		assert_int_equal(raw_last_segment()->len, 100);
		record_compared_state(&known[which]);
		teardown_connection_and_raw_peer();
	}
	expect_same_state(&known[FAST], &known[SLOW], 1);
}

/* Long ones, and some that nobody has read yet: more than the fifo's small chunk has room for. */
static void test_long_messages_and_many_unread_take_the_fast_path(void **state)
{
	static struct known known[TCP_PATHS][ROUNDS];
	uint32_t unread = 0;

	(void)state;
	for (int which = 0; which < TCP_PATHS; which++) {
		setup_connection_with_fast_or_slow_path(which, true, true);
		for (int i = 0; i < ROUNDS; i++) {
			fixture_send_bytes(app, 64);
			advance_time_and_peer_timestamps();
			arm_fast_path_detection();
			peer_sends_expected_message(1 + 37 * (uint32_t)i % 1448);
			unread += 1 + 37 * (uint32_t)i % 1448;
			assert_true(fast_path_was_taken() == (which == FAST));
			record_compared_state(&known[which][i]);
			if (i % 7 == 0 || i % 11 == 0 || i == ROUNDS - 1) {
				assert_int_equal(read_bytes(app, unread), unread);
				unread = 0;
			}
			raw.count = raw.seen = 0;
		}
		teardown_connection_and_raw_peer();
	}
	expect_same_state(known[FAST], known[SLOW], ROUNDS);
}

/* What was going on before is over by it, whatever it was. */
static void test_nothing_of_before_is_left(void **state)
{
	static struct known known[TCP_PATHS];

	(void)state;
	for (int which = 0; which < TCP_PATHS; which++) {
		struct tcp_recovery *r;

		setup_connection_with_fast_or_slow_path(which, true, true);
		fixture_send_bytes(app, 64);
		advance_time_and_peer_timestamps();
		r = &app->conn->recovery;
		r->backoff = r->timeouts = r->probes = r->persist_backoff = r->blocks = 2;
		r->pipe_bytes = 1000;
		r->reorder_due_ns = r->persist_due_ns = fixture_now_ns + SEC;
		r->stuck_since_ns = r->persist_since_ns = fixture_now_ns - SEC;
		r->rto_from_ns = r->probe_from_ns = r->rack_sent_ns = 1;
		r->probe_wanted = app->conn->push_once = true;
		app->conn->window.rcv_mss = 64; /* what is that long says something of the round trip */
		assert_true(peer_message_takes_fast_path() == (which == FAST));
		record_compared_state(&known[which]);
		assert_int_equal(known[which].recovery.backoff, 0);
		assert_int_equal(known[which].recovery.persist_due_ns, 0);
		teardown_connection_and_raw_peer();
	}
	expect_same_state(&known[FAST], &known[SLOW], 1);
}

/* What somebody has asked for beside it is done in the same step. */
static void test_an_acknowledgement_that_is_due_leaves_after_it(void **state)
{
	static struct known known[TCP_PATHS];

	(void)state;
	for (int which = 0; which < TCP_PATHS; which++) {
		setup_connection_with_fast_or_slow_path(which, true, true);
		advance_time_and_peer_timestamps();
		raw_mark_all_segments_seen();
		vma_tcp_set_option(app->conn, VMA_TCP_OPT_QUICKACK, 1);
		tcp_set_flags(app->conn->pcb, TF_ACK_NOW);
		assert_true(peer_message_takes_fast_path() == (which == FAST));
		assert_int_equal(raw_last_segment()->ack, mine);
		record_compared_state(&known[which]);
		teardown_connection_and_raw_peer();
	}
	expect_same_state(&known[FAST], &known[SLOW], 1);
}

static void test_our_end_that_is_not_posted_yet_leaves_after_it(void **state)
{
	static struct known known[TCP_PATHS];

	(void)state;
	for (int which = 0; which < TCP_PATHS; which++) {
		setup_connection_with_fast_or_slow_path(which, true, true);
		fixture_send_bytes(app, 64);
		advance_time_and_peer_timestamps();
		atomic_store(&app->conn->shut_wr, true); /* by another thread, a moment ago */
		assert_true(peer_message_takes_fast_path() == (which == FAST));
		assert_true(raw_last_segment()->flags & TCP_FIN);
		record_compared_state(&known[which]);
		teardown_connection_and_raw_peer();
	}
	expect_same_state(&known[FAST], &known[SLOW], 1);
}

/* What the acknowledgement lets go is what was said before it. */
static void test_more_that_is_said_after_it_holds_back(void **state)
{
	static struct known known[TCP_PATHS];

	(void)state;
	for (int which = 0; which < TCP_PATHS; which++) {
		setup_connection_with_fast_or_slow_path(which, true, true);
		fixture_send_bytes(app, 64);
		advance_time_and_peer_timestamps();
		assert_true(peer_message_takes_fast_path() == (which == FAST));
		assert_int_equal(read_bytes(app, 64), 64);
		raw_mark_all_segments_seen();
		send_flags(app, 64, VMA_TCP_TX_MORE);
		fixture_run_until_idle();
		assert_int_equal(raw_unseen_count(), 0);
		record_compared_state(&known[which]);
		teardown_connection_and_raw_peer();
	}
	expect_same_state(&known[FAST], &known[SLOW], 1);
}

/* One segment has filled the send buffer: who waits for room is told of it together with the answer. */
static void test_room_that_it_makes_is_told_with_it(void **state)
{
	const struct vma_tcp_attr requests = {.gro_streams_max = 16};
	struct app *client, *server;

	(void)state;
	for (int which = 0; which < TCP_PATHS; which++) {
		fixture_open_with(&requests, 9000);
		side[0].tcp->predicts_nothing = which == SLOW;
		side[0].options.sndbuf = 2304;
		fixture_establish_connection_pair(&client, &server);
		for (int i = 0; i < 20; i++) { /* until each answer takes the acknowledgement along */
			fixture_transfer_and_check_bytes(client, server, 64, 0);
			fixture_transfer_and_check_bytes(server, client, 64, 0);
		}
		assert_int_equal(fixture_send_bytes(client, 4000), 4000);
		fixture_run_until_idle();
		assert_int_equal(fixture_poll_events_of_app(client) & EPOLLOUT, 0);
		fixture_take_app_events(client);
		assert_int_equal(read_bytes(server, 4000), 4000);
		arm_fast_path_detection();
		fixture_send_bytes(server, 64);
		fixture_run_until_idle();
		assert_true(fast_path_was_taken() == (which == FAST));
		assert_int_equal(fixture_take_app_events(client), VMA_TCP_READABLE | VMA_TCP_WRITABLE);
		app_free(client);
		fixture_close(NULL);
	}
}

/* ---- it is not taken ---- */

static void expect_slow_path_with_two_segments_out(void)
{
	fixture_send_bytes(app, 64);
	fixture_send_bytes(app, 64);
	assert_false(peer_message_takes_fast_path());
}

static void expect_slow_path_if_one_of_two_is_acked(void)
{
	fixture_send_bytes(app, 64);
	fixture_send_bytes(app, 64);
	arm_fast_path_detection();
	raw_send_bytes(mine, raw_peer_expected_ack() - 64, 64);
	mine += 64;
	assert_false(fast_path_was_taken());
}

static void expect_slow_path_for_message_acking_nothing(void)
{
	fixture_send_bytes(app, 64);
	arm_fast_path_detection();
	raw_send_bytes(mine, raw_peer_expected_ack() - 64, 64);
	mine += 64;
	assert_false(fast_path_was_taken());
}

static void expect_slow_path_for_partial_ack(void)
{
	fixture_send_bytes(app, 64);
	arm_fast_path_detection();
	raw_send_bytes(mine, raw_peer_expected_ack() - 10, 64);
	mine += 64;
	assert_false(fast_path_was_taken());
}

static void expect_slow_path_for_ack_beyond_sent(void)
{
	fixture_send_bytes(app, 64);
	arm_fast_path_detection();
	raw_send_bytes(mine, raw_peer_expected_ack() + 10, 64);
	assert_false(fast_path_was_taken());
}

static void expect_slow_path_after_retransmission(void)
{
	fixture_send_bytes(app, 64);
	fixture_run_for_ns(2 * SEC);
	assert_true(app->conn->recovery.total_retransmits > 0);
	assert_false(peer_message_takes_fast_path());
}

static void expect_slow_path_after_tail_loss_probe(void)
{
	fixture_send_bytes(app, 64);
	advance_time_and_peer_timestamps();
	peer_sends_expected_message(64);
	fixture_send_bytes(app, 64);
	fixture_run_for_ns(210 * MS);
	assert_true(app->conn->recovery.tail_probe_out);
	assert_false(peer_message_takes_fast_path());
	assert_false(peer_message_takes_fast_path()); /* whether it was needed is not known yet */
}

static void expect_slow_path_for_first_ack_after_recovery(void)
{
	app->conn->recovery.undo_first_ack = true;
	assert_false(peer_message_takes_fast_path());
}

static void expect_slow_path_in_recovery_disorder(void)
{
	app->conn->recovery.state = TCP_RECOVERY_DISORDER;
	assert_false(peer_message_takes_fast_path());
}

static void expect_slow_path_if_unacked_was_resent(void)
{
	fixture_send_bytes(app, 64);
	fixture_send_bytes(app, 64);
	app->conn->pcb->unacked->marks = 0;
	raw_send_bytes(mine, raw_peer_expected_ack() - 64, 0);
	app->conn->pcb->unacked->sends = 2;
	assert_false(peer_message_takes_fast_path());
}

/* Nothing is out, and what is behind it is in a segment that is not. */
static void expect_slow_path_if_no_tx_frame_is_free(void)
{
	const bool predicts_nothing = side[0].tcp->predicts_nothing;
	static struct vma_buf *held[1 << 16];
	size_t n = 0;

	side[0].tcp->predicts_nothing = false; /* not to compare how often a frame is asked for */
	while ((held[n] = vma_ring_tx_buf(side[0].ring)) != NULL)
		n++;
	fixture_send_bytes(app, 64);
	fixture_run_until_idle();
	assert_non_null(app->conn->pcb->unsent);
	side[0].tcp->predicts_nothing = predicts_nothing;
	vma_buf_put(fixture_arena, held[--n]); /* for the peer's */
	assert_false(peer_message_takes_fast_path());
	while (n > 0)
		vma_buf_put(fixture_arena, held[--n]);
	fixture_run_for_ns(10 * MS);
	assert_null(app->conn->pcb->unsent);
}

static void expect_slow_path_for_pure_ack(void)
{
	fixture_send_bytes(app, 64);
	arm_fast_path_detection();
	raw_send_segment(mine, raw_peer_expected_ack(), TCP_ACK, "", 0);
	assert_false(fast_path_was_taken());
}

static void expect_slow_path_for_two_messages_at_once(void)
{
	arm_fast_path_detection();
	raw.holds = true;
	peer_sends_expected_message(64);
	peer_sends_expected_message(64);
	raw.holds = false;
	fixture_run_until_idle();
	assert_false(fast_path_was_taken());
}

static void expect_slow_path_for_out_of_order_message(void)
{
	arm_fast_path_detection();
	raw_send_bytes(mine + 100, raw_peer_expected_ack(), 64);
	assert_false(fast_path_was_taken());
	assert_false(peer_message_takes_fast_path()); /* which leaves a hole */
	raw_send_bytes(mine, raw_peer_expected_ack(), 36);
	mine += 36 + 64;
}

static void expect_slow_path_for_duplicate_message(void)
{
	peer_sends_expected_message(64);
	arm_fast_path_detection();
	raw_send_bytes(mine - 64, raw_peer_expected_ack(), 64);
	assert_false(fast_path_was_taken());
}

static void expect_slow_path_for_old_timestamp(void)
{
	raw.ts -= 100;
	arm_fast_path_detection();
	raw_send_bytes(mine, raw_peer_expected_ack(), 64);
	assert_false(fast_path_was_taken());
	raw.ts += 100;
}

static void expect_slow_path_without_timestamp(void)
{
	const uint32_t ts = raw.ts;

	raw.ts = 0;
	arm_fast_path_detection();
	raw_send_bytes(mine, raw_peer_expected_ack(), 64);
	assert_false(fast_path_was_taken());
	raw.ts = ts;
}

static void flags(uint8_t more, uint16_t urgent)
{
	uint8_t options[12] = {1, 1, 8, 10}, data[64] = {0};

	for (uint32_t i = 0; i < sizeof(data); i++)
		data[i] = fixture_pattern_byte_at(mine - 1 + i);
	raw_store_be(options + 4, raw.ts, 4);
	arm_fast_path_detection();
	raw_send_segment_with_options(mine, raw_peer_expected_ack(), TCP_ACK | more, options, 12, urgent, data,
	                              sizeof(data));
	assert_false(fast_path_was_taken());
}

static void expect_slow_path_for_fin(void)
{
	flags(TCP_FIN, 0);
	mine += 65;
}

static void expect_slow_path_for_syn(void)
{
	flags(TCP_SYN, 0);
}

static void expect_slow_path_for_rst(void)
{
	flags(TCP_RST, 0);
}

static void expect_slow_path_for_urgent_pointer(void)
{
	flags(TCP_URG, 100);
	mine += 64;
	assert_int_equal(atomic_load(&app->conn->urgent_byte), URGENT_EXPECTED);
	assert_false(peer_message_takes_fast_path());
}

static void expect_slow_path_for_unexpected_options(void)
{
	uint8_t options[24] = {1, 1, 8, 10}, data[64] = {0};

	for (uint32_t i = 0; i < sizeof(data); i++)
		data[i] = fixture_pattern_byte_at(mine - 1 + i);
	raw_store_be(options + 4, raw.ts, 4);
	memcpy(options + 12, "\1\1\5\12", 4); /* a duplicate of ours, reported */
	raw_store_be(options + 16, raw.their_isn, 4);
	raw_store_be(options + 20, raw.their_isn + 1, 4);
	arm_fast_path_detection();
	raw_send_segment_with_options(mine, raw_peer_expected_ack(), TCP_ACK, options, 24, 0, data, sizeof(data));
	assert_false(fast_path_was_taken());
	mine += 64;
}

static void expect_slow_path_for_moved_timestamp_option(void)
{
	uint8_t options[12] = {8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1}, data[64] = {0};

	for (uint32_t i = 0; i < sizeof(data); i++)
		data[i] = fixture_pattern_byte_at(mine - 1 + i);
	raw_store_be(options + 2, raw.ts, 4);
	arm_fast_path_detection();
	raw_send_segment_with_options(mine, raw_peer_expected_ack(), TCP_ACK, options, 12, 0, data, sizeof(data));
	assert_false(fast_path_was_taken());
	mine += 64;
}

static void expect_slow_path_for_data_beyond_window(void)
{
	app->conn->pcb->rcv_wnd = 10;
	arm_fast_path_detection();
	raw_send_bytes(mine, raw_peer_expected_ack(), 64);
	assert_false(fast_path_was_taken());
	mine += 10;
}

static void expect_slow_path_after_shutdown_read(void)
{
	vma_tcp_shutdown(app->conn, SHUT_RD);
	arm_fast_path_detection();
	raw_send_bytes(mine, raw_peer_expected_ack(), 64);
	assert_false(fast_path_was_taken());
}

static void expect_slow_path_if_memory_is_exhausted(void)
{
	static struct vma_tcp_memory spent = {.pressure = 0, .limit = 0};
	struct vma_tcp_memory *before = side[0].tcp->attr.memory;

	for (int i = 0; i < 50; i++)
		peer_sends_expected_message(100);
	assert_int_equal(read_bytes(app, 900), 900);
	side[0].tcp->attr.memory = &spent;
	arm_fast_path_detection();
	raw_send_bytes(mine, raw_peer_expected_ack(), 64);
	assert_false(fast_path_was_taken());
	side[0].tcp->attr.memory = before;
}

static void expect_slow_path_if_receive_fifo_is_full(void)
{
	const uint64_t room = UINT64_C(400);

	for (uint64_t i = 0; i < room / 64; i++)
		peer_sends_expected_message(64);
	fixture_alloc_bytes_fails = true;
	arm_fast_path_detection();
	raw_send_bytes(mine, raw_peer_expected_ack(), 200);
	assert_false(fast_path_was_taken());
	mine += 200;
	arm_fast_path_detection();
	raw_send_bytes(mine, raw_peer_expected_ack(), 8); /* for which there would be room, but it comes after them */
	assert_false(fast_path_was_taken());
	fixture_alloc_bytes_fails = false;
	fixture_run_for_ns(10 * MS); /* tried again */
	assert_int_equal(read_bytes(app, 1000), 584);
}

static void expect_slow_path_after_own_write_shutdown(void)
{
	vma_tcp_shutdown(app->conn, SHUT_WR);
	assert_false(peer_message_takes_fast_path());
}

static void expect_slow_path_after_shutdown_and_ack(void)
{
	vma_tcp_shutdown(app->conn, SHUT_WR);
	raw_send_segment(mine, raw_peer_expected_ack(), TCP_ACK, "", 0);
	assert_false(peer_message_takes_fast_path());
}

#define PINGPONG_PATHS_CASE(f)                                                                                         \
	{                                                                                                              \
#f, f                                                                                                  \
	}
static const struct {
	const char *name;
	void (*play)(void);
} cases[] = {
        PINGPONG_PATHS_CASE(expect_slow_path_with_two_segments_out),
        PINGPONG_PATHS_CASE(expect_slow_path_if_one_of_two_is_acked),
        PINGPONG_PATHS_CASE(expect_slow_path_for_message_acking_nothing),
        PINGPONG_PATHS_CASE(expect_slow_path_for_partial_ack),
        PINGPONG_PATHS_CASE(expect_slow_path_for_ack_beyond_sent),
        PINGPONG_PATHS_CASE(expect_slow_path_after_retransmission),
        PINGPONG_PATHS_CASE(expect_slow_path_after_tail_loss_probe),
        PINGPONG_PATHS_CASE(expect_slow_path_for_first_ack_after_recovery),
        PINGPONG_PATHS_CASE(expect_slow_path_in_recovery_disorder),
        PINGPONG_PATHS_CASE(expect_slow_path_if_unacked_was_resent),
        PINGPONG_PATHS_CASE(expect_slow_path_if_no_tx_frame_is_free),
        PINGPONG_PATHS_CASE(expect_slow_path_for_pure_ack),
        PINGPONG_PATHS_CASE(expect_slow_path_for_two_messages_at_once),
        PINGPONG_PATHS_CASE(expect_slow_path_for_out_of_order_message),
        PINGPONG_PATHS_CASE(expect_slow_path_for_duplicate_message),
        PINGPONG_PATHS_CASE(expect_slow_path_for_old_timestamp),
        PINGPONG_PATHS_CASE(expect_slow_path_without_timestamp),
        PINGPONG_PATHS_CASE(expect_slow_path_for_fin),
        PINGPONG_PATHS_CASE(expect_slow_path_for_syn),
        PINGPONG_PATHS_CASE(expect_slow_path_for_rst),
        PINGPONG_PATHS_CASE(expect_slow_path_for_urgent_pointer),
        PINGPONG_PATHS_CASE(expect_slow_path_for_unexpected_options),
        PINGPONG_PATHS_CASE(expect_slow_path_for_moved_timestamp_option),
        PINGPONG_PATHS_CASE(expect_slow_path_for_data_beyond_window),
        PINGPONG_PATHS_CASE(expect_slow_path_after_shutdown_read),
        PINGPONG_PATHS_CASE(expect_slow_path_if_memory_is_exhausted),
        PINGPONG_PATHS_CASE(expect_slow_path_if_receive_fifo_is_full),
        PINGPONG_PATHS_CASE(expect_slow_path_after_own_write_shutdown),
        PINGPONG_PATHS_CASE(expect_slow_path_after_shutdown_and_ack),
};

/* A conversation, the case, and the conversation as it goes on. */
static void pingpong_run_case_in_conversation(int which, void (*what)(void), struct known known[3])
{
	setup_connection_with_fast_or_slow_path(which, true, true);
	for (int i = 0; i < 20; i++) {
		fixture_send_bytes(app, 64);
		advance_time_and_peer_timestamps();
		peer_sends_expected_message(64);
		assert_int_equal(read_bytes(app, 64), 64);
	}
	advance_time_and_peer_timestamps();
	record_compared_state(&known[0]);
	what();
	record_compared_state(&known[1]);
	advance_time_and_peer_timestamps();
	if (app->conn->pcb != NULL) {
		fixture_send_bytes(app, 64);
		peer_sends_expected_message(64);
		peer_sends_expected_message(64);
	}
	record_compared_state(&known[2]);
	teardown_connection_and_raw_peer();
}

static void test_other_segments_take_the_slow_path_with_the_same_result(void **state)
{
	static struct known known[TCP_PATHS][3];
	char text[200];

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		for (int which = 0; which < TCP_PATHS; which++)
			pingpong_run_case_in_conversation(which, cases[i].play, known[which]);
		for (int k = 0; k < 3; k++)
			if (compared_state_difference(&known[FAST][k], &known[SLOW][k], text, sizeof(text)) != NULL)
				fail_msg("%s, %d: %s", cases[i].name, k, text);
	}
}

/* Its rate, its pace, and that the application is what limits it. */
static void test_a_model_of_the_path_learns_the_same_on_both_paths(void **state)
{
	static struct known known[TCP_PATHS][200];

	(void)state;
	for (int which = 0; which < TCP_PATHS; which++) {
		setup_stack_with_fast_or_slow_path(which);
		side[0].options.congestion = VMA_TCP_CC_BBR;
		handshake_with_raw_peer_and_options(true, true);
		for (unsigned i = 0; i < 200; i++) {
			if (i % 5 != 4) /* else a message follows one, and acknowledges nothing */
				fixture_send_bytes(app, 64 + i);
			advance_time_and_peer_timestamps();
			assert_true(peer_message_takes_fast_path() == (which == FAST));
			record_compared_state(&known[which][i]);
			assert_int_equal(read_bytes(app, 64), 64);
		}
		assert_true(app->conn->cc.bbr.max_rate != 0 && app->conn->rate.app_limited != 0);
		teardown_connection_and_raw_peer();
	}
	expect_same_state(known[FAST], known[SLOW], 200);
}

/* Ten seconds after the lowest round-trip time the model would look for another one. */
static void test_what_comes_while_nothing_is_out_says_nothing_to_a_model(void **state)
{
	struct tcp_cc cc;

	(void)state;
	for (int which = 0; which < TCP_PATHS; which++) {
		setup_stack_with_fast_or_slow_path(which);
		side[0].options.congestion = VMA_TCP_CC_BBR;
		handshake_with_raw_peer_and_options(true, true);
		for (unsigned i = 0; i < 5; i++) {
			fixture_send_bytes(app, 64);
			advance_time_and_peer_timestamps();
			peer_sends_expected_message(64);
		}
		assert_null(app->conn->pcb->unacked);
		cc = app->conn->cc;
		fixture_run_for_ns(11000 * MS);
		peer_sends_expected_message(64);
		assert_memory_equal(&cc, &app->conn->cc, sizeof(cc));
		fixture_send_bytes(app, 64);
		advance_time_and_peer_timestamps();
		peer_sends_expected_message(64);
		assert_memory_not_equal(&cc, &app->conn->cc, sizeof(cc));
		teardown_connection_and_raw_peer();
	}
}

static void test_without_sack_it_is_not_taken_and_without_time_stamps_it_is(void **state)
{
	(void)state;
	for (int options = 0; options < 4; options++) {
		setup_connection_with_fast_or_slow_path(FAST, options & 1, options & 2);
		for (int i = 0; i < 5; i++) {
			fixture_send_bytes(app, 64);
			advance_time_and_peer_timestamps();
			assert_true(peer_message_takes_fast_path() == ((options & 2) != 0));
			assert_int_equal(read_bytes(app, 64), 64);
		}
		teardown_connection_and_raw_peer();
	}
}

/* ---- by chance ---- */

enum { STEPS = 300 };

static void pingpong_peer_sends_random(uint32_t *seed)
{
	uint32_t una = app->conn->pcb->lastack - raw.their_isn, out = raw_peer_expected_ack() - una;
	uint32_t ack = out != 0 && draw_random_below(seed, 4) == 0 ? una + draw_random_below(seed, out + 1) : una + out;
	uint32_t len = 1 + draw_random_below(seed, draw_random_below(seed, 8) ? 100 : 900);

	raw.window = (uint16_t)(draw_random_below(seed, 20) == 0 ? draw_random_below(seed, 30)
	                                                         : 200 + draw_random_below(seed, 1000));
	raw.ts += raw.ts != 0 ? draw_random_below(seed, 3) : 0;
	raw.ts_ecr = port_clock_ms(side[0].tcp) - draw_random_below(seed, 3);
	switch (draw_random_below(seed, 24)) {
	case 0: /* again */
		raw_send_bytes(mine - 60, ack, 60);
		break;
	case 1: /* a hole, closed at once */
		raw_send_bytes(mine + 50, ack, 50);
		raw_send_bytes(mine, ack, 50);
		mine += 100;
		break;
	case 2:
		raw_send_segment(mine, ack, TCP_ACK, "", 0);
		break;
	default:
		raw_send_bytes(mine, ack, len);
		mine += len;
	}
}

static unsigned pingpong_random_conversation(uint32_t seed, int which, struct known *known)
{
	unsigned taken = 0;

	setup_stack_with_fast_or_slow_path(which);
	side[0].options.congestion = seed % 3 == 0 ? VMA_TCP_CC_BBR : VMA_TCP_CC_CUBIC;
	handshake_with_raw_peer_and_options(seed % 4 != 0, true);
	for (int i = 0; i < STEPS; i++) {
		arm_fast_path_detection();
		pingpong_peer_sends_random(&seed);
		taken += fast_path_was_taken();
		record_compared_state(&known[i]);
		if (draw_random_below(&seed, 3) != 0)
			fixture_send_bytes(app, 1 + draw_random_below(&seed, draw_random_below(&seed, 8) ? 200 : 3000));
		if (draw_random_below(&seed, 2) == 0)
			read_bytes(app, draw_random_below(&seed, 5000));
		if (draw_random_below(&seed, 10) == 0)
			fixture_run_for_ns(draw_random_below(&seed, 400) * MS);
		raw.count = raw.seen = 0;
	}
	teardown_connection_and_raw_peer();
	return taken;
}

static void test_a_conversation_drawn_by_chance_is_the_same_on_both_paths(void **state)
{
	static struct known known[TCP_PATHS][STEPS];
	unsigned taken = 0;

	(void)state;
	for (uint32_t seed = 1; seed <= 30; seed++) {
		taken += pingpong_random_conversation(seed, FAST, known[FAST]);
		assert_int_equal(pingpong_random_conversation(seed, SLOW, known[SLOW]), 0);
		expect_same_state(known[FAST], known[SLOW], STEPS);
	}
	assert_true(taken > 30 * STEPS / 8);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ping_pong_takes_the_fast_path),
        cmocka_unit_test(test_ping_pong_by_zero_copy_takes_the_fast_path),
        cmocka_unit_test(test_messages_one_way_take_the_fast_path),
        cmocka_unit_test(test_what_waits_to_be_sent_is_sent_after_it),
        cmocka_unit_test(test_long_messages_and_many_unread_take_the_fast_path),
        cmocka_unit_test(test_nothing_of_before_is_left),
        cmocka_unit_test(test_an_acknowledgement_that_is_due_leaves_after_it),
        cmocka_unit_test(test_our_end_that_is_not_posted_yet_leaves_after_it),
        cmocka_unit_test(test_more_that_is_said_after_it_holds_back),
        cmocka_unit_test(test_room_that_it_makes_is_told_with_it),
        cmocka_unit_test(test_other_segments_take_the_slow_path_with_the_same_result),
        cmocka_unit_test(test_a_model_of_the_path_learns_the_same_on_both_paths),
        cmocka_unit_test(test_what_comes_while_nothing_is_out_says_nothing_to_a_model),
        cmocka_unit_test(test_without_sack_it_is_not_taken_and_without_time_stamps_it_is),
        cmocka_unit_test(test_a_conversation_drawn_by_chance_is_the_same_on_both_paths),
};
VMA_TEST_MAIN(tests)
