/* What this side lets the peer send, when it acknowledges, and how buffers grow. */
#include "raw.h"

static uint32_t window_right_edge(const struct raw_segment *s, unsigned scale)
{
	return s->ack + ((uint32_t)s->window << scale);
}

/* Data until the window is closed; the edge never moves back. Returns the number of the next byte. */
static uint32_t send_until_receive_window_closes(struct app *app, unsigned scale, uint32_t size)
{
	uint32_t at = 1, edge = 0;

	for (;;) {
		const struct raw_segment *s;

		raw_send_bytes(at, 1, size);
		fixture_run_for_ns(50 * MS); /* the ACK has gone by then */
		if (raw_unseen_count() == 0)
			continue;
		s = raw_last_segment();
		assert_true(TCP_SEQ_GEQ(window_right_edge(s, scale), edge));
		edge = window_right_edge(s, scale);
		at = s->ack;
		if (s->window == 0)
			break;
		assert_true(at < 10000000);
	}
	assert_int_equal(vma_tcp_readable_bytes(app->conn), at - 1);
	return at;
}

static void test_announced_window_never_shrinks(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_sack();
	uint32_t at;

	(void)state;
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_RCVBUF, 20000);
	at = send_until_receive_window_closes(app, 7, 999);
	assert_true(at - 1 >= 65535 - 128); /* what the SYN had promised */
	assert_int_equal(read_bytes(app, 1000000), at - 1);
	app_free(app);
}

static void test_closed_window_opens_when_it_is_worth_it(void **state)
{
	struct app *app;
	uint32_t at;

	(void)state;
	side[0].options.rcvbuf = 16000;
	app = stack_connects_to_raw_peer_with_sack();
	at = send_until_receive_window_closes(app, 7, 1000);
	assert_int_equal(read_bytes(app, 100), 100);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 0); /* a silly window */
	assert_int_equal(read_bytes(app, 8000), 8000);
	fixture_run_until_idle();
	assert_true(raw_unseen_count() > 0);
	assert_int_equal(raw_last_segment()->ack, at);
	assert_true(raw.log[raw.count - 1].window << 7 >= 3900);
	app_free(app);
}

/* A peer without window scaling cannot be told of more than 65535 bytes, however large the buffer is. */
static void test_reading_tells_nothing_that_the_field_cannot_say(void **state)
{
	struct app *app;
	uint32_t at = 1;

	(void)state;
	side[0].options.rcvbuf = 1 << 20;
	app = stack_connects_to_raw_peer();
	for (int i = 0; i < 40; i++) { /* past the ACKs that are sent at once */
		raw_send_bytes(at, 1, 1000);
		at += 1000;
		read_bytes(app, 1000);
		fixture_run_for_ns(50 * MS);
	}
	raw_mark_all_segments_seen();
	raw_send_bytes(at, 1, 1000);
	fixture_run_for_ns(50 * MS);
	assert_int_equal(raw_next_segment()->window, 65535);
	for (int i = 0; i < 10; i++)
		assert_int_equal(read_bytes(app, 100), 100);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 0);
	app_free(app);
}

static void test_probe_of_a_closed_window_is_answered(void **state)
{
	struct app *app;
	uint32_t at;

	(void)state;
	side[0].options.rcvbuf = 16000;
	app = stack_connects_to_raw_peer_with_sack();
	at = send_until_receive_window_closes(app, 7, 1000);
	raw_send_bytes(at, 1, 1); /* a byte beyond it */
	assert_int_equal(raw_next_segment()->ack, at);
	raw_send_segment(at - 1, 1, TCP_ACK, "", 0); /* as the kernel probes */
	assert_int_equal(raw_next_segment()->ack, at);
	app_free(app);
}

/* What cannot be said of the window in units of scaling is not given away once more with each ACK. */
static void test_window_closes_for_small_segments_acknowledged_one_by_one(void **state)
{
	struct app *app;
	uint32_t at = 1, window = 1;

	(void)state;
	side[0].options.rcvbuf = 16000;
	app = stack_connects_to_raw_peer_with_sack();
	while (window != 0) {
		raw_send_bytes(at, 1, 100);
		raw_send_bytes(at, 1, 100); /* what comes twice is answered at once */
		at = raw.log[raw.count - 1].ack;
		window = raw.log[raw.count - 1].window;
		raw.count = raw.seen = 1;
		assert_true(at < 100000);
	}
	raw_send_bytes(at, 1, 1000); /* what has been promised is taken */
	raw_send_bytes(at + 1000, 1, 1000);
	assert_true(fifo_queued_bytes(&app->conn->rx) < 65535 + 16384 + 128);
	assert_int_equal(read_bytes(app, 1000000), raw.log[raw.count - 1].ack - 1);
	app_free(app);
}

static void test_first_segments_are_acknowledged_at_once(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	raw_send_bytes(1, 1, 10);
	assert_int_equal(raw_next_segment()->ack, 11);
	raw_send_bytes(11, 1, 10);
	assert_int_equal(raw_next_segment()->ack, 21);
	app_free(app);
}

/* A conversation: the answer takes the ACK along. */
static void test_ack_waits_for_the_answer_in_a_conversation(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	uint32_t mine = 1, theirs = 1;

	(void)state;
	for (int i = 0; i < 5; i++) { /* it learns */
		raw_send_bytes(mine, theirs, 10);
		mine += 10;
		read_bytes(app, 10);
		fixture_send_bytes(app, 10);
		theirs += 10;
		fixture_run_until_idle();
		raw_mark_all_segments_seen();
		fixture_run_for_ns(MS);
	}
	raw_send_bytes(mine, theirs, 10);
	assert_int_equal(raw_unseen_count(), 0);
	fixture_run_for_ns(30 * MS);
	assert_int_equal(raw_unseen_count(), 0);
	read_bytes(app, 10);
	fixture_send_bytes(app, 10);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 1);
	assert_int_equal(raw_next_segment()->ack, mine + 10);
	raw_send_bytes(mine + 10, theirs + 10, 10);
	fixture_run_for_ns(45 * MS);
	assert_int_equal(raw_next_segment()->ack, mine + 20); /* no answer: 40 ms */
	app_free(app);
}

static void test_quickack_option_ends_the_delay(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	uint32_t mine = 1, theirs = 1;

	(void)state;
	for (int i = 0; i < 5; i++) {
		raw_send_bytes(mine, theirs, 10);
		mine += 10;
		fixture_send_bytes(app, 10);
		theirs += 10;
		fixture_run_until_idle();
		fixture_run_for_ns(MS);
	}
	raw_send_bytes(mine, theirs, 10);
	raw_mark_all_segments_seen();
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_QUICKACK, 1);
	fixture_run_until_idle();
	assert_int_equal(raw_next_segment()->ack, mine + 10);
	app_free(app);
}

/* VMA_TCP_QUICKACK: also in a conversation, and until the program says TCP_QUICKACK 0. */
static void test_stack_without_delays_acknowledges_at_once(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	uint32_t mine = 1, theirs = 1;

	(void)state;
	app->conn->tcp->attr.quickack = true;
	for (int i = 0; i < 40; i++) {
		raw_send_bytes(mine, theirs, 10);
		mine += 10;
		assert_int_equal(raw_unseen_count(), 1);
		assert_int_equal(raw_next_segment()->ack, mine);
		read_bytes(app, 10);
		fixture_send_bytes(app, 10);
		theirs += 10;
		fixture_run_until_idle();
		raw_mark_all_segments_seen();
		fixture_run_for_ns(MS);
	}
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_QUICKACK, 0);
	fixture_run_until_idle();
	raw_send_bytes(mine, theirs, 10);
	assert_int_equal(raw_unseen_count(), 0);
	app_free(app);
}

/* VMA_TCP_QUICKACK_THRESHOLD: in a conversation, where the ACK of a longer one waits for the answer. */
static void test_short_segments_are_acknowledged_at_once_if_the_stack_says_so(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	uint32_t mine = 1, theirs = 1;

	(void)state;
	for (int i = 0; i < 5; i++) {
		raw_send_bytes(mine, theirs, 10);
		mine += 10;
		fixture_send_bytes(app, 10);
		theirs += 10;
		fixture_run_until_idle();
		fixture_run_for_ns(MS);
	}
	app->conn->tcp->attr.quickack_threshold = 10;
	raw_mark_all_segments_seen();
	raw_send_bytes(mine, theirs, 11);
	mine += 11;
	assert_int_equal(raw_unseen_count(), 0);
	raw_send_bytes(mine, theirs, 10);
	mine += 10;
	assert_int_equal(raw_unseen_count(), 1);
	assert_int_equal(raw_next_segment()->ack, mine);
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_QUICKACK, 0);
	fixture_run_until_idle();
	raw_mark_all_segments_seen();
	raw_send_bytes(mine, theirs, 10);
	assert_int_equal(raw_unseen_count(), 0);
	app_free(app);
}

/* Segments that come together are acknowledged together. */
static void test_burst_is_acknowledged_once(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	struct vma_wire_faults late = {.delay_ns = MS}, none = {0};

	(void)state;
	fixture_run_for_ns(200 * MS);
	fixture_set_wire_faults(1, late);
	for (uint32_t i = 0; i < 16; i++)
		raw_send_bytes(1 + i * 1000, 1, 1000);
	raw_mark_all_segments_seen();
	fixture_run_for_ns(2 * MS);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 16000);
	assert_int_equal(raw_unseen_count(), 1);
	assert_int_equal(raw_next_segment()->ack, 16001);
	fixture_set_wire_faults(1, none);
	app_free(app);
}

static void test_hole_is_answered_with_sack(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_sack();
	const struct raw_segment *s;

	(void)state;
	raw_send_bytes(1001, 1, 1000);
	s = raw_next_segment();
	assert_int_equal(s->ack, 1);
	assert_int_equal(s->options_len, 12);
	assert_int_equal(s->options[2], 5);
	assert_int_equal(raw_load_be32(s->options + 4) - RAW_ISN, 1001);
	assert_int_equal(raw_load_be32(s->options + 8) - RAW_ISN, 2001);
	raw_send_bytes(1, 1, 1000);
	assert_int_equal(raw_last_segment()->ack, 2001);
	assert_int_equal(read_bytes(app, 10000), 2000);
	app_free(app);
}

/* n full segments behind a hole; how many ACKs came. */
static unsigned send_segments_behind_hole_count_acks(uint32_t *at, unsigned n)
{
	raw_mark_all_segments_seen();
	for (unsigned i = 0; i < n; i++, *at += 1000)
		raw_send_bytes(*at, 1, 1000);
	return raw_unseen_count();
}

/* The first byte of what was never acknowledged is missing, three ACKs have said so. */
static struct app *connect_and_receive_three_behind_hole(uint32_t *at)
{
	struct app *app = stack_connects_to_raw_peer_with_sack();

	raw_send_bytes(1, 1, 1000); /* how large the segments are */
	*at = 2001;
	assert_int_equal(send_segments_behind_hole_count_acks(at, 3), 3);
	return app;
}

static void expect_ack_with_sack_block(const struct raw_segment *s, uint32_t hole, uint32_t left, uint32_t right)
{
	assert_int_equal(s->ack, hole);
	assert_int_equal(raw_load_be32(s->options + 4) - RAW_ISN, left);
	assert_int_equal(raw_load_be32(s->options + 8) - RAW_ISN, right);
}

static void test_behind_a_hole_an_ack_stands_for_44_segments(void **state)
{
	uint32_t at;
	struct app *app = connect_and_receive_three_behind_hole(&at);

	(void)state;
	assert_int_equal(send_segments_behind_hole_count_acks(&at, 43), 0);
	assert_int_equal(send_segments_behind_hole_count_acks(&at, 1), 1);
	expect_ack_with_sack_block(raw_next_segment(), 1001, 2001, at);
	assert_int_equal(send_segments_behind_hole_count_acks(&at, 10), 0); /* and on */
	app_free(app);
}

static void test_behind_a_hole_an_ack_waits_100_us_at_most(void **state)
{
	uint32_t at;
	struct app *app = connect_and_receive_three_behind_hole(&at);

	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(send_segments_behind_hole_count_acks(&at, 2), 0);
		fixture_run_for_ns(90000);
		assert_int_equal(raw_unseen_count(), 0);
		fixture_run_for_ns(10000);
		assert_int_equal(raw_unseen_count(), 1);
		expect_ack_with_sack_block(raw_next_segment(), 1001, 2001, at);
	}
	fixture_run_for_ns(10 * MS);
	assert_int_equal(raw_unseen_count(), 0);
	app_free(app);
}

static void test_a_hole_that_closes_is_told_at_once(void **state)
{
	uint32_t at;
	struct app *app = connect_and_receive_three_behind_hole(&at);

	(void)state;
	at += 1000; /* the next one */
	assert_int_equal(send_segments_behind_hole_count_acks(&at, 2), 0);
	raw_send_bytes(1001, 1, 1000);
	assert_int_equal(raw_unseen_count(), 1);
	expect_ack_with_sack_block(raw_next_segment(), 5001, 6001, 8001);
	assert_int_equal(send_segments_behind_hole_count_acks(&at, 3), 3); /* the count begins anew */
	assert_int_equal(send_segments_behind_hole_count_acks(&at, 3), 0);
	raw_send_bytes(5001, 1, 1000);
	assert_int_equal(raw_last_segment()->ack, at);
	assert_int_equal(read_bytes(app, 100000), at - 1);
	app_free(app);
}

static void test_data_of_ours_does_not_take_the_place_of_a_report(void **state)
{
	uint32_t at;
	struct app *app = connect_and_receive_three_behind_hole(&at);

	(void)state;
	assert_int_equal(send_segments_behind_hole_count_acks(&at, 2), 0);
	fixture_send_bytes(app, 10);
	fixture_run_until_idle();
	assert_int_equal(raw_next_segment()->len, 10);
	fixture_run_for_ns(100000);
	expect_ack_with_sack_block(raw_next_segment(), 1001, 2001, at);
	app_free(app);
}

/* One that is not held, in the same step; also of what comes twice. */
static void test_data_of_ours_leaves_a_report_at_once_its_own_ack(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_sack();

	(void)state;
	raw_send_bytes(1, 1, 1000);
	raw_mark_all_segments_seen();
	for (int i = 0; i < 2; i++) {
		raw.holds = true;
		raw_send_bytes(2001, 1 + 10 * (uint32_t)i, 1000);
		raw.holds = false;
		send_flags(app, 10, VMA_TCP_TX_LATER);
		fixture_run_until_idle();
		assert_int_equal(raw_unseen_count(), 2);
		assert_int_equal(raw_next_segment()->len, 10);
		expect_ack_with_sack_block(raw_next_segment(), 1001, 2001, 3001);
	}
	app_free(app);
}

static void test_a_peer_without_sack_gets_each_duplicate_ack(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	uint32_t at = 2001;

	(void)state;
	raw_send_bytes(1, 1, 1000);
	assert_int_equal(send_segments_behind_hole_count_acks(&at, 10), 10);
	for (int i = 0; i < 3; i++) { /* sent again: one each, too */
		raw_mark_all_segments_seen();
		raw_send_bytes(3001, 1, 1000);
		assert_int_equal(raw_unseen_count(), 1);
	}
	app_free(app);
}

static void test_duplicate_is_reported(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_sack();
	const struct raw_segment *s;

	(void)state;
	raw_send_bytes(1, 1, 1000);
	raw_mark_all_segments_seen();
	raw_send_bytes(1, 1, 1000);
	s = raw_next_segment();
	assert_int_equal(s->ack, 1001);
	assert_int_equal(s->options_len, 12); /* DSACK, RFC 2883 */
	assert_int_equal(raw_load_be32(s->options + 4) - RAW_ISN, 1);
	assert_int_equal(raw_load_be32(s->options + 8) - RAW_ISN, 1001);
	raw_send_bytes(1001, 1, 1000);
	assert_int_equal(raw_next_segment()->options_len, 0);
	assert_int_equal(read_bytes(app, 10000), 2000);
	app_free(app);
}

/* Sent again, although it waits behind a hole: as RFC 2883 4.1.3, example 5, before the block that has it. */
static void test_duplicate_behind_a_hole_is_reported(void **state)
{
	uint32_t at;
	struct app *app = connect_and_receive_three_behind_hole(&at);
	const struct raw_segment *s;

	(void)state;
	raw_mark_all_segments_seen();
	raw_send_bytes(3001, 1, 1000);
	s = raw_next_segment();
	assert_int_equal(s->ack, 1001);
	assert_int_equal(s->options_len, 20);
	assert_int_equal(raw_load_be32(s->options + 4) - RAW_ISN, 3001);
	assert_int_equal(raw_load_be32(s->options + 8) - RAW_ISN, 4001);
	assert_int_equal(raw_load_be32(s->options + 12) - RAW_ISN, 2001);
	assert_int_equal(raw_load_be32(s->options + 16) - RAW_ISN, at);
	raw_send_bytes(1001, 1, 1000);
	assert_int_equal(read_bytes(app, 10000), 5000);
	app_free(app);
}

/* More blocks than an ACK has room for, in one burst, and one of them twice: each is in some ACK. */
static void test_a_burst_with_many_holes_is_reported_whole(void **state)
{
	uint32_t at;
	struct app *app = connect_and_receive_three_behind_hole(&at);
	const uint32_t lefts[] = {6001, 8001, 10001, 12001, 14001, 6001, 16001, 18001, 8001};
	unsigned reported = 0, doubled = 0;

	(void)state;
	raw_mark_all_segments_seen();
	raw.holds = true;
	for (unsigned i = 0; i < sizeof(lefts) / sizeof(lefts[0]); i++)
		raw_send_bytes(lefts[i], 1, 1000);
	raw.holds = false;
	fixture_run_until_idle();
	while (raw_unseen_count() != 0) {
		const struct raw_segment *s = raw_next_segment();

		for (unsigned block = 4; block + 8 <= s->options_len; block += 8) {
			uint32_t left = raw_load_be32(s->options + block) - RAW_ISN;

			if (left % 2000 == 1 && left >= 6001 && left <= 18001)
				reported |= 1u << (left - 6001) / 2000;
			if (block == 4 && s->options_len > 12)
				doubled += raw_load_be32(s->options + 12) - RAW_ISN == left;
		}
	}
	assert_int_equal(reported, 0x7f);
	assert_int_equal(doubled, 2);
	app_free(app);
}

static void test_receive_buffer_grows_with_what_is_read_in_a_round_trip(void **state)
{
	struct vma_wire_faults far = {.delay_ns = 10 * MS}, none = {0};
	struct app *client, *server;
	uint64_t first;

	(void)state;
	fixture_set_wire_faults(0, far);
	fixture_set_wire_faults(1, far);
	fixture_listen_on(1);
	client = fixture_connect_from(0, 1000);
	fixture_run_for_ns(100 * MS);
	server = fixture_last_accepted();
	first = atomic_load(&server->conn->rcvbuf);
	fixture_transfer_and_check_bytes(client, server, 8000000, 100 * SEC);
	assert_true(atomic_load(&server->conn->rcvbuf) > 4 * first);
	assert_true(atomic_load(&client->conn->sndbuf) > 200000);
	fixture_set_wire_faults(0, none);
	fixture_set_wire_faults(1, none);
	app_free(client);
}

/* Segments of the window that a peer is offered after a long transfer; *rcvbuf: those of the buffer. */
static uint32_t measure_offered_window_in_segments(uint64_t one_way_ns, uint64_t *rcvbuf)
{
	struct vma_wire_faults distance = {.delay_ns = one_way_ns}, none = {0};
	struct app *client, *server;
	uint32_t window;

	fixture_set_wire_faults(0, distance);
	fixture_set_wire_faults(1, distance);
	if (fixture_listener == NULL)
		fixture_listen_on(1);
	client = fixture_connect_from(0, (uint16_t)(1000 + fixture_accepted_count));
	fixture_run_for_ns(100 * MS);
	server = fixture_last_accepted();
	atomic_store(&server->conn->rcvbuf, 3000000);
	fixture_transfer_and_check_bytes(client, server, 8000000, 100 * SEC);
	fixture_run_for_ns(SEC);
	window = server->conn->window.rcv_edge - server->conn->pcb->rcv_nxt;
	*rcvbuf = atomic_load(&server->conn->rcvbuf) / server->conn->mss;
	window /= server->conn->mss;
	fixture_set_wire_faults(0, none);
	fixture_set_wire_faults(1, none);
	app_free(client);
	return window;
}

static void test_a_near_peers_window_fits_into_half_the_receive_queue(void **state)
{
	uint64_t rcvbuf;
	uint32_t half, window;

	(void)state;
	half = vma_ring_qp(side[1].ring)->rx_depth / 2;
	window = measure_offered_window_in_segments(MS / 10, &rcvbuf);
	assert_in_range(window, half - 2, half);
	assert_true(rcvbuf > 4 * half);
	assert_true(measure_offered_window_in_segments(10 * MS, &rcvbuf) > 4 * half);
}

static void test_fixed_receive_buffer_does_not_grow(void **state)
{
	struct vma_wire_faults far = {.delay_ns = 10 * MS}, none = {0};
	struct app *client, *server;

	(void)state;
	fixture_set_wire_faults(0, far);
	side[1].options.rcvbuf = 30000;
	fixture_listen_on(1);
	client = fixture_connect_from(0, 1000);
	fixture_run_for_ns(100 * MS);
	server = fixture_last_accepted();
	fixture_transfer_and_check_bytes(client, server, 1000000, 100 * SEC);
	assert_int_equal(atomic_load(&server->conn->rcvbuf), 30000);
	fixture_set_wire_faults(0, none);
	app_free(client);
}

static void test_writer_hears_of_room(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	vma_tcp_set_option(client->conn, VMA_TCP_OPT_SNDBUF, 10000);
	vma_tcp_set_option(server->conn, VMA_TCP_OPT_RCVBUF, 10000);
	fixture_run_for_ns(MS);
	while (fixture_send_bytes(client, 100000) != 0)
		fixture_run_for_ns(MS);
	fixture_take_app_events(client);
	assert_int_equal(vma_tcp_tx_space(client->conn), 0);
	assert_false(fixture_poll_events_of_app(client) & EPOLLOUT);
	fixture_run_for_ns(10 * MS);
	assert_false(client->events & VMA_TCP_WRITABLE);
	read_bytes(server, 1000000);
	fixture_run_for_ns(SEC);
	read_bytes(server, 1000000);
	fixture_run_for_ns(SEC);
	assert_true(client->events & VMA_TCP_WRITABLE);
	assert_true(fixture_poll_events_of_app(client) & EPOLLOUT);
	app_free(client);
}

static void test_notsent_lowat_limits_what_waits(void **state)
{
	struct app *app;

	(void)state;
	raw.window = 0;
	app = stack_connects_to_raw_peer();
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_NOTSENT_LOWAT, 1000);
	fixture_run_until_idle();
	assert_true(vma_tcp_tx_space(app->conn) > 0);
	fixture_send_bytes(app, 1000);
	fixture_run_until_idle();
	assert_int_equal(vma_tcp_tx_space(app->conn), 0);
	assert_false(fixture_poll_events_of_app(app) & EPOLLOUT);
	raw.window = 5000;
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_true(vma_tcp_tx_space(app->conn) > 0);
	assert_true(app->events & VMA_TCP_WRITABLE);
	app_free(app);
}

static void test_notsent_lowat_limits_one_write(void **state)
{
	struct app *app;
	size_t sent = 0, more;

	(void)state;
	raw.window = 0;
	side[0].options.sndbuf = 1 << 20;
	app = stack_connects_to_raw_peer();
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_NOTSENT_LOWAT, 100000);
	assert_int_equal(vma_tcp_tx_space(app->conn), 131072); /* 64 KB at a time */
	while ((more = fixture_send_bytes(app, 1 << 20)) != 0)
		sent += more;
	assert_in_range(sent, 100000, 131072);
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_NOTSENT_LOWAT, -1);
	assert_true(vma_tcp_tx_space(app->conn) > 1 << 20);
	app_free(app);
}

/* n full segments, a microsecond apart, and what has been read of them. */
static void send_and_read_full_segments(struct app *app, uint32_t *at, unsigned n)
{
	uint8_t data[1000];

	for (unsigned i = 0; i < n; i++) {
		fixture_now_ns += 1000;
		for (unsigned k = 0; k < sizeof(data); k++)
			data[k] = fixture_pattern_byte_at(*at - 1 + k);
		raw_send_segment(*at, 1, TCP_ACK, data, sizeof(data));
		*at += sizeof(data);
		assert_int_equal(read_bytes(app, sizeof(data)), sizeof(data));
	}
}

/* A stream that is past its beginning, just acknowledged. */
static struct app *connect_and_receive_until_just_acked(uint32_t *at)
{
	struct app *app = stack_connects_to_raw_peer_with_sack();

	*at = 1;
	send_and_read_full_segments(app, at, 100);
	for (raw_mark_all_segments_seen(); raw_unseen_count() == 0;)
		send_and_read_full_segments(app, at, 1);
	assert_int_equal(raw_next_segment()->ack, *at);
	return app;
}

static void test_ack_of_a_fast_stream_stands_for_thirty_two_segments(void **state)
{
	uint32_t at;
	struct app *app = connect_and_receive_until_just_acked(&at);

	(void)state;
	for (int i = 0; i < 5; i++) {
		send_and_read_full_segments(app, &at, 31);
		assert_int_equal(raw_unseen_count(), 0);
		send_and_read_full_segments(app, &at, 1);
		assert_int_equal(raw_next_segment()->ack, at);
	}
	app_free(app);
}

static void test_sender_that_stops_is_not_held_up_again(void **state)
{
	uint32_t at;
	struct app *app = connect_and_receive_until_just_acked(&at);

	(void)state;
	send_and_read_full_segments(app, &at, 5);
	fixture_run_for_ns(110000);
	assert_int_equal(raw_unseen_count(), 0);
	fixture_run_for_ns(10000);
	assert_int_equal(raw_next_segment()->ack, at);
	for (unsigned pause = 8; pause <= 64; pause *= 2) {
		for (unsigned i = 1; i < pause; i++) {
			send_and_read_full_segments(app, &at, 2);
			assert_int_equal(raw_next_segment()->ack, at);
		}
		send_and_read_full_segments(app, &at, 2);
		assert_int_equal(raw_unseen_count(), 0); /* once more */
		fixture_run_for_ns(120000);
		assert_int_equal(raw_next_segment()->ack, at);
	}
	app_free(app);
}

static const struct CMUnitTest tests[] = {
        RAW_CASE(test_announced_window_never_shrinks),
        RAW_CASE(test_closed_window_opens_when_it_is_worth_it),
        RAW_CASE(test_reading_tells_nothing_that_the_field_cannot_say),
        RAW_CASE(test_probe_of_a_closed_window_is_answered),
        RAW_CASE(test_window_closes_for_small_segments_acknowledged_one_by_one),
        RAW_CASE(test_first_segments_are_acknowledged_at_once),
        RAW_CASE(test_ack_waits_for_the_answer_in_a_conversation),
        RAW_CASE(test_quickack_option_ends_the_delay),
        RAW_CASE(test_short_segments_are_acknowledged_at_once_if_the_stack_says_so),
        RAW_CASE(test_stack_without_delays_acknowledges_at_once),
        RAW_CASE(test_burst_is_acknowledged_once),
        RAW_CASE(test_ack_of_a_fast_stream_stands_for_thirty_two_segments),
        RAW_CASE(test_sender_that_stops_is_not_held_up_again),
        RAW_CASE(test_hole_is_answered_with_sack),
        RAW_CASE(test_behind_a_hole_an_ack_stands_for_44_segments),
        RAW_CASE(test_behind_a_hole_an_ack_waits_100_us_at_most),
        RAW_CASE(test_a_hole_that_closes_is_told_at_once),
        RAW_CASE(test_data_of_ours_does_not_take_the_place_of_a_report),
        RAW_CASE(test_data_of_ours_leaves_a_report_at_once_its_own_ack),
        RAW_CASE(test_a_peer_without_sack_gets_each_duplicate_ack),
        RAW_CASE(test_duplicate_is_reported),
        RAW_CASE(test_duplicate_behind_a_hole_is_reported),
        RAW_CASE(test_a_burst_with_many_holes_is_reported_whole),
        CASE(test_receive_buffer_grows_with_what_is_read_in_a_round_trip),
        CASE(test_a_near_peers_window_fits_into_half_the_receive_queue),
        CASE(test_fixed_receive_buffer_does_not_grow),
        CASE(test_writer_hears_of_room),
        RAW_CASE(test_notsent_lowat_limits_what_waits),
        RAW_CASE(test_notsent_lowat_limits_one_write),
};
VMA_TEST_MAIN(tests)
