/* How connections end: halves, both at once, unread data, resets, orphans; and what is told of it. */
#include "raw.h"
#include "../tcp_priv.h"

#define IN_BITS (EPOLLIN | EPOLLRDNORM)
#define OUT_BITS (EPOLLOUT | EPOLLWRNORM)

static void close_disown_and_free(struct app *app)
{
	vma_tcp_conn_drop_owner_and_abort(app->conn);
	vma_tcp_conn_put(app->conn);
	app->conn = NULL;
}

static void test_half_closed_connection_still_receives(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	fixture_send_bytes(client, 5);
	assert_int_equal(vma_tcp_shutdown(client->conn, SHUT_WR), 0);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_state(client->conn), TCP_FIN_WAIT2);
	assert_int_equal(vma_tcp_state(server->conn), TCP_CLOSE_WAIT);
	assert_true(fixture_take_app_events(server) & VMA_TCP_PEER_CLOSED);
	assert_false(vma_tcp_rx_eof(server->conn)); /* five bytes before it */
	assert_int_equal(fixture_poll_events_of_app(server), IN_BITS | OUT_BITS | EPOLLRDHUP);
	assert_int_equal(read_bytes(server, 100), 5);
	assert_true(vma_tcp_rx_eof(server->conn));
	fixture_transfer_and_check_bytes(server, client, 50000, SEC);
	assert_int_equal(vma_tcp_tx_reserve(client->conn, 1, &(struct iovec){0}, 1), -EPIPE);
	vma_tcp_shutdown(server->conn, SHUT_WR);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_state(server->conn), TCP_CLOSE);
	assert_int_equal(vma_tcp_error(server->conn), 0);
	assert_true(fixture_take_app_events(server) & VMA_TCP_CLOSED);
	assert_int_equal(vma_tcp_state(client->conn), TCP_CLOSE); /* and TIME_WAIT, which is no longer it */
	assert_int_equal(fixture_stack_counts(0).time_waits, 1);
	assert_int_equal(fixture_stack_counts(1).time_waits, 0);
	assert_int_equal(fixture_poll_events_of_app(client), IN_BITS | OUT_BITS | EPOLLRDHUP | EPOLLHUP);
	app_free(client);
}

static void test_fin_rides_on_the_last_bytes(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	const struct raw_segment *s;

	(void)state;
	send_flags(app, 1500, VMA_TCP_TX_LATER);
	vma_tcp_close(app->conn, false);
	fixture_run_until_idle();
	raw_next_segment();
	s = raw_next_segment();
	assert_int_equal(s->len, 500);
	assert_true(s->flags & TCP_FIN);
	assert_int_equal(raw_unseen_count(), 0);
	app_free(app);
}

static void test_close_delivers_what_is_queued(void **state)
{
	struct app *client, *server;
	size_t sent;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	sent = fixture_send_bytes(client, 40000);
	vma_tcp_close(client->conn, false);
	close_disown_and_free(client);
	fixture_run_for_ns(10 * MS);
	assert_int_equal(read_bytes(server, 100000), sent);
	fixture_run_for_ns(10 * MS);
	assert_true(vma_tcp_rx_eof(server->conn));
	assert_int_equal(vma_tcp_error(server->conn), 0);
	free(client);
}

static void test_close_with_unread_data_resets(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	fixture_send_bytes(client, 10);
	fixture_run_for_ns(MS);
	vma_tcp_close(server->conn, false);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_error(client->conn), ECONNRESET);
	assert_int_equal(vma_tcp_state(client->conn), TCP_CLOSE);
	assert_true(fixture_take_app_events(client) & VMA_TCP_FAILED);
	app_free(client);
}

static void test_bytes_received_before_a_reset_can_be_read(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	fixture_send_bytes(server, 10);
	fixture_run_for_ns(MS);
	vma_tcp_close(server->conn, true);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_error(client->conn), ECONNRESET);
	assert_int_equal(read_bytes(client, 100), 10);
	assert_true(vma_tcp_rx_eof(client->conn));
	app_free(client);
}

static void test_abort_resets_at_once(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	fixture_send_bytes(app, 10);
	fixture_run_until_idle();
	raw_mark_all_segments_seen();
	vma_tcp_close(app->conn, true);
	fixture_run_until_idle();
	assert_true(raw_next_segment()->flags & TCP_RST);
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSE);
	assert_int_equal(vma_tcp_error(app->conn), 0); /* its own doing */
	app_free(app);
}

/* Who closes is not who drives: the driver takes a step of the connection before it is told. */
static void test_close_with_unread_data_sends_no_fin_before_its_reset(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	raw_send_bytes(1, 1, 10);
	fixture_run_for_ns(MS);
	raw_mark_all_segments_seen();
	assert_true(vma_ring_acquire(side[0].ring));
	vma_tcp_close(app->conn, false);
	assert_int_not_equal(atomic_load(&app->conn->work), 0); /* posted, and not taken */
	tcp_conn_run_step(app->conn);
	vma_ring_release(side[0].ring);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 1);
	assert_int_equal(raw_next_segment()->flags, TCP_RST | TCP_ACK);
	app_free(app);
}

/* Nagle's rule holds the second piece back, and nothing will come that could release it. */
static void test_close_with_unread_data_sends_a_short_segment_before_its_reset(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	const struct raw_segment *s;

	(void)state;
	raw_send_bytes(1, 1, 10);
	fixture_run_for_ns(MS);
	fixture_send_bytes(app, 6);
	fixture_run_until_idle();
	raw_mark_all_segments_seen();
	fixture_send_bytes(app, 4);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 0);
	vma_tcp_close(app->conn, false);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 2);
	s = raw_next_segment();
	assert_int_equal(s->len, 4);
	assert_false(s->flags & (TCP_RST | TCP_FIN));
	assert_true(raw_next_segment()->flags & TCP_RST);
	app_free(app);
}

/* The answer has come, and nobody has looked at it: what was posted is done first. */
static void test_answer_to_an_attempt_that_is_given_up_is_not_acknowledged(void **state)
{
	struct app *app = stack_sends_syn_to_raw_peer();

	(void)state;
	raw_mark_all_segments_seen();
	assert_true(vma_ring_acquire(side[0].ring));
	raw_send_segment(0, 1, TCP_SYN | TCP_ACK, "", 0);
	fixture_run_for_ns(MS);
	vma_tcp_close(app->conn, true);
	assert_int_not_equal(atomic_load(&app->conn->work), 0); /* posted, and not taken */
	vma_ring_release(side[0].ring);
	fixture_run_until_idle();
	for (unsigned n = raw_unseen_count(); n > 0; n--)
		assert_true(raw_next_segment()->flags & TCP_RST);
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSE);
	app_free(app);
}

/* As the kernel's: what the connection would have said otherwise. */
static void test_window_of_a_reset_is_the_connections(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	uint16_t window;

	(void)state;
	raw_send_bytes(1, 1, 10);
	fixture_run_for_ns(SEC);
	window = raw_last_segment()->window;
	assert_true(window != 0);
	vma_tcp_close(app->conn, true);
	fixture_run_until_idle();
	assert_int_equal(raw.log[raw.seen].flags, TCP_RST | TCP_ACK);
	assert_int_equal(raw_next_segment()->window, window);
	app_free(app);
}

/* The answer to a segment that is none of a handshake's: the kernel's has no window, either. */
static void test_window_of_a_reset_in_the_handshake_is_none(void **state)
{
	struct app *app = stack_sends_syn_to_raw_peer();

	(void)state;
	assert_int_equal(raw_next_segment()->flags, TCP_SYN);
	raw_send_segment(0, 77, TCP_ACK, "", 0);
	assert_true(raw.log[raw.seen].flags & TCP_RST);
	assert_int_equal(raw_next_segment()->window, 0);
	app_free(app);
}

static void test_disowned_without_close_is_reset(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	close_disown_and_free(app);
	fixture_run_until_idle();
	assert_true(raw_next_segment()->flags & TCP_RST);
	free(app);
}

static void test_data_for_a_closed_connection_is_reset(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	vma_tcp_close(app->conn, false);
	fixture_run_until_idle();
	assert_true(raw_next_segment()->flags & TCP_FIN);
	raw_send_segment(1, 2, TCP_ACK, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_FIN_WAIT2);
	raw_send_bytes(1, 2, 10);
	assert_true(raw_next_segment()->flags & TCP_RST);
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSE);
	app_free(app);
}

/* The peer has not got the FIN: any number but the one that it awaits would be challenged, not believed. */
static void test_reset_for_late_data_has_the_number_that_is_awaited(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	const struct raw_segment *s;

	(void)state;
	fixture_send_bytes(app, 100);
	vma_tcp_close(app->conn, false);
	fixture_run_until_idle();
	assert_true(raw_last_segment()->flags & TCP_FIN);
	raw_send_bytes(1, 1, 10);
	s = raw_next_segment();
	assert_true(s->flags & TCP_RST);
	assert_int_equal(s->seq, 1);
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSE);
	assert_int_equal(fixture_stack_counts(0).resets_out, 1);
	app_free(app);
}

static void test_shutdown_of_reading_alone_resets_nobody(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	assert_int_equal(vma_tcp_shutdown(app->conn, SHUT_RD), 0);
	fixture_run_until_idle();
	assert_int_equal(fixture_poll_events_of_app(app), IN_BITS | OUT_BITS | EPOLLRDHUP);
	assert_true(vma_tcp_rx_eof(app->conn));
	raw_send_bytes(1, 1, 10);
	assert_int_equal(vma_tcp_state(app->conn), TCP_ESTABLISHED);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 10); /* the kernel takes it, too */
	app_free(app);
}

static void test_both_may_close_at_once(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	const struct raw_segment *s;

	(void)state;
	vma_tcp_shutdown(app->conn, SHUT_WR);
	fixture_run_until_idle();
	assert_int_equal(raw_next_segment()->seq, 1);
	raw_send_segment(1, 1, TCP_FIN | TCP_ACK, "", 0); /* has not seen it */
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSING);
	s = raw_next_segment();
	assert_int_equal(s->ack, 2);
	raw_send_segment(2, 2, TCP_ACK, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSE);
	assert_int_equal(fixture_stack_counts(0).time_waits, 1);
	app_free(app);
}

static void test_passive_close_ends_with_last_ack(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	const struct raw_segment *fin;

	(void)state;
	raw_send_segment(1, 1, TCP_FIN | TCP_ACK, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSE_WAIT);
	vma_tcp_close(app->conn, false);
	fixture_run_until_idle();
	assert_int_equal(vma_tcp_state(app->conn), TCP_LAST_ACK);
	fin = raw_next_segment();
	assert_int_equal(fin->ack, 2); /* its first */
	assert_true(fin->flags & TCP_FIN);
	assert_false(app->events & VMA_TCP_DRAINED);
	raw_send_segment(2, 2, TCP_ACK, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSE);
	assert_true(fixture_take_app_events(app) & VMA_TCP_DRAINED);
	app_free(app);
}

/* As with the kernel: who closes in answer has it told by his own FIN. */
static void test_fin_is_acknowledged_a_moment_later(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	raw_send_segment(1, 1, TCP_FIN | TCP_ACK, "", 0);
	assert_int_equal(raw_unseen_count(), 0);
	fixture_run_for_ns(2 * MS);
	assert_int_equal(raw_unseen_count(), 1);
	assert_int_equal(raw_next_segment()->ack, 2);
	app_free(app);
}

static void test_reset_in_close_wait_is_a_broken_pipe(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	raw_send_segment(1, 1, TCP_FIN | TCP_ACK, "", 0);
	raw_send_segment(2, 1, TCP_RST, "", 0);
	assert_int_equal(vma_tcp_error(app->conn), EPIPE);
	app_free(app);
}

static void test_drained_is_told_when_the_fin_is_acknowledged(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	fixture_send_bytes(app, 100);
	vma_tcp_close(app->conn, false);
	fixture_run_until_idle();
	raw_send_segment(1, 101, TCP_ACK, "", 0);
	assert_false(app->events & VMA_TCP_DRAINED);
	raw_send_segment(1, 102, TCP_ACK, "", 0);
	assert_true(app->events & VMA_TCP_DRAINED);
	app_free(app);
}

static void test_fin_behind_a_hole_waits_for_what_is_missing(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_sack();

	(void)state;
	raw_send_segment(11, 1, TCP_FIN | TCP_ACK, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_ESTABLISHED);
	raw_send_bytes(1, 1, 10);
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSE_WAIT);
	assert_int_equal(raw_last_segment()->ack, 12);
	assert_int_equal(read_bytes(app, 100), 10);
	app_free(app);
}

static void test_orphan_in_fin_wait_2_ends_after_a_minute(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	unsigned before;

	(void)state;
	vma_tcp_close(app->conn, false);
	close_disown_and_free(app);
	fixture_run_until_idle();
	raw_send_segment(1, 2, TCP_ACK, "", 0);
	fixture_run_for_ns(50 * SEC);
	before = fixture_allocated;
	fixture_run_for_ns(20 * SEC);
	assert_true(fixture_allocated < before);
	raw_mark_all_segments_seen();
	raw_send_segment(1, 2, TCP_ACK, "", 0); /* nobody is there: without a listener, not even an answer */
	free(app);
}

static void test_orphans_beyond_the_limit_are_reset(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	side[0].tcp->attr.orphans_max = 1;
	side[0].tcp->orphans = 1;
	vma_tcp_close(app->conn, false);
	fixture_run_until_idle();
	assert_true(raw_next_segment()->flags & TCP_RST);
	side[0].tcp->orphans = 0;
	app_free(app);
}

static void test_closing_an_attempt_tells_nobody(void **state)
{
	struct app *app = stack_sends_syn_to_raw_peer();

	(void)state;
	raw_mark_all_segments_seen();
	vma_tcp_close(app->conn, false);
	fixture_run_for_ns(10 * SEC);
	assert_int_equal(raw_unseen_count(), 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSE);
	app_free(app);
}

static void test_shutdown_of_what_has_ended_is_enotconn(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	raw_send_segment(1, 1, TCP_RST, "", 0);
	assert_int_equal(vma_tcp_shutdown(app->conn, SHUT_RDWR), -ENOTCONN);
	assert_int_equal(vma_tcp_shutdown(app->conn, 17), -EINVAL);
	app_free(app);
}

static void test_bare_fin_is_taken_with_a_closed_window(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	uint32_t at = 1;

	(void)state;
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_RCVBUF, 2000);
	while (raw_unseen_count() == 0 || raw.log[raw.count - 1].window != 0) {
		raw_send_bytes(at, 1, 1000);
		at += 1000;
		fixture_run_for_ns(50 * MS);
		assert_true(at < 100000);
	}
	at = raw.log[raw.count - 1].ack; /* the last segment did not fit as a whole */
	raw_send_segment(at, 1, TCP_FIN | TCP_ACK, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSE_WAIT);
	assert_int_equal(read_bytes(app, 1000000), at - 1);
	app_free(app);
}

static const struct CMUnitTest tests[] = {
        CASE(test_half_closed_connection_still_receives),
        RAW_CASE(test_fin_rides_on_the_last_bytes),
        CASE(test_close_delivers_what_is_queued),
        CASE(test_close_with_unread_data_resets),
        CASE(test_bytes_received_before_a_reset_can_be_read),
        RAW_CASE(test_abort_resets_at_once),
        RAW_CASE(test_close_with_unread_data_sends_no_fin_before_its_reset),
        RAW_CASE(test_close_with_unread_data_sends_a_short_segment_before_its_reset),
        RAW_CASE(test_answer_to_an_attempt_that_is_given_up_is_not_acknowledged),
        RAW_CASE(test_window_of_a_reset_is_the_connections),
        RAW_CASE(test_window_of_a_reset_in_the_handshake_is_none),
        RAW_CASE(test_disowned_without_close_is_reset),
        RAW_CASE(test_data_for_a_closed_connection_is_reset),
        RAW_CASE(test_reset_for_late_data_has_the_number_that_is_awaited),
        RAW_CASE(test_shutdown_of_reading_alone_resets_nobody),
        RAW_CASE(test_both_may_close_at_once),
        RAW_CASE(test_passive_close_ends_with_last_ack),
        RAW_CASE(test_fin_is_acknowledged_a_moment_later),
        RAW_CASE(test_reset_in_close_wait_is_a_broken_pipe),
        RAW_CASE(test_drained_is_told_when_the_fin_is_acknowledged),
        RAW_CASE(test_fin_behind_a_hole_waits_for_what_is_missing),
        RAW_CASE(test_orphan_in_fin_wait_2_ends_after_a_minute),
        RAW_CASE(test_orphans_beyond_the_limit_are_reset),
        RAW_CASE(test_closing_an_attempt_tells_nobody),
        RAW_CASE(test_shutdown_of_what_has_ended_is_enotconn),
        RAW_CASE(test_bare_fin_is_taken_with_a_closed_window),
};
VMA_TEST_MAIN(tests)
