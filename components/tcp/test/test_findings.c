/* What seeds have found (test_seeds.c), each in the smallest case that shows it. */
#include "raw.h"

static int setup_pair_with_jumbo_mtu(void **state)
{
	struct vma_tcp_attr requests = {.gro_streams_max = 16};

	(void)state;
	fixture_open_with(&requests, 9000);
	return 0;
}

static void test_path_wider_than_a_buffer_carries_data(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	fixture_transfer_and_check_bytes(client, server, 100000, SEC);
	assert_int_equal(fixture_stack_counts(0).no_memory, 0);
	app_free(client);
}

/* As the kernel, which looks at how far reading has come: not even who has taken the byte by itself has read it. */
static void test_urgent_byte_that_is_not_read_is_a_reason_for_a_reset(void **state)
{
	struct app *client, *server;
	uint8_t byte;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	send_flags(client, 3, VMA_TCP_TX_URGENT);
	fixture_run_for_ns(1 * MS);
	assert_int_equal(read_bytes(server, 2), 2);
	assert_int_equal(vma_tcp_read_urgent_byte(server->conn, &byte, false), 1);
	vma_tcp_close(server->conn, false);
	fixture_run_for_ns(1 * MS);
	assert_int_equal(fixture_stack_counts(1).resets_out, 1);
	assert_int_equal(vma_tcp_state(client->conn), TCP_CLOSE);
	app_free(client);
}

/* A read that finds nothing else passes it. */
static void test_urgent_byte_that_reading_has_passed_is_no_reason_for_a_reset(void **state)
{
	struct app *client, *server;
	struct iovec span;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	send_flags(client, 3, VMA_TCP_TX_URGENT);
	fixture_run_for_ns(1 * MS);
	assert_int_equal(read_bytes(server, 2), 2);
	assert_int_equal(vma_tcp_peek_rx_spans(server->conn, 0, &span, 1), 0);
	vma_tcp_rx_consume(server->conn, 0);
	vma_tcp_close(server->conn, false);
	fixture_run_for_ns(1 * MS);
	assert_int_equal(fixture_stack_counts(1).resets_out, 0);
	assert_int_equal(vma_tcp_state(client->conn), TCP_CLOSE_WAIT);
	app_free(client);
}

/* RFC 7323 2.2: of a segment with SYN it is not, also when the SYN is known already. */
static void test_window_of_a_crossing_syn_ack_is_not_scaled(void **state)
{
	static const uint8_t options[8] = {2, 4, 1000 >> 8, 1000 & 255, 1, 3, 3, 7};
	struct app *app = stack_sends_syn_to_raw_peer();

	(void)state;
	raw.window = 1280;
	raw_send_segment_with_options(0, 0, TCP_SYN, options, sizeof(options), 0, "", 0);
	raw_send_segment_with_options(0, 1, TCP_SYN | TCP_ACK, options, sizeof(options), 0, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_ESTABLISHED);
	raw_mark_all_segments_seen();
	fixture_send_bytes(app, 10000);
	fixture_run_for_ns(1 * MS);
	for (uint32_t end = 1; raw_unseen_count() > 0;) {
		const struct raw_segment *s = raw_next_segment();

		end = s->seq + s->len > end ? s->seq + s->len : end;
		assert_in_range(end, 1, 1 + 1280);
	}
	app_free(app);
}

static void test_mss_of_a_crossing_syn_outlives_a_new_path(void **state)
{
	static const uint8_t options[4] = {2, 4, 0, 200};
	struct vma_tcp_path path = fixture_path_to_peer_of(0, 1500);
	struct app *app = stack_sends_syn_to_raw_peer();

	(void)state;
	raw_send_segment_with_options(0, 0, TCP_SYN, options, sizeof(options), 0, "", 0);
	assert_int_equal(vma_tcp_set_path(app->conn, &path), 0);
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_ESTABLISHED);
	raw_mark_all_segments_seen();
	fixture_send_bytes(app, 1000);
	fixture_run_for_ns(1 * MS);
	assert_true(raw_unseen_count() > 0);
	while (raw_unseen_count() > 0)
		assert_in_range(raw_next_segment()->len, 0, 200);
	app_free(app);
}

/* A segment that is sent again has an old number, but says the window of now; it must not be taken for none. */
static void test_window_of_a_repeated_segment_counts(void **state)
{
	struct app *app;

	(void)state;
	raw.window = 2000;
	app = stack_connects_to_raw_peer();
	fixture_send_bytes(app, 10000);
	raw_send_segment(11, 1, TCP_ACK, "later", 5); /* what lies before it has been lost */
	raw_mark_all_segments_seen();
	raw.window = 0;
	raw_send_segment(1, 2001, TCP_ACK, "0123456789", 10); /* here it is; the window is closed */
	fixture_run_for_ns(1 * MS);
	while (raw_unseen_count() > 0)
		assert_int_equal(raw_next_segment()->len, 0);
	app_free(app);
}

/* The same, where nothing is in disorder but for an ACK that was sent after the segment that was lost. */
static void test_window_of_a_repeated_segment_in_order_counts(void **state)
{
	const struct raw_segment *last;
	struct app *app;

	(void)state;
	raw.window = 2000;
	app = stack_connects_to_raw_peer();
	fixture_send_bytes(app, 10000);
	fixture_run_for_ns(50 * MS);
	last = raw_last_segment();
	raw_send_segment(11, 1, TCP_ACK, "", 0);
	raw.window = 0;
	raw_send_segment(1, last->seq + last->len, TCP_ACK, "0123456789", 10);
	assert_int_equal(vma_tcp_tx_unacked_bytes(app->conn), 10000 + 1 - last->seq - last->len);
	fixture_run_for_ns(50 * MS);
	while (raw_unseen_count() > 0)
		assert_int_equal(raw_next_segment()->len, 0);
	app_free(app);
}

/* There was no memory for the peer's last bytes when its FIN came, which ended the connection for lwIP. */
static void test_last_bytes_wait_for_memory_in_time_wait(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	vma_tcp_shutdown(app->conn, SHUT_WR);
	raw_send_segment(1, 2, TCP_ACK, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_FIN_WAIT2);
	fixture_alloc_bytes_fails = true;
	raw_send_segment(1, 2, TCP_ACK | TCP_FIN, (uint8_t[]){fixture_pattern_byte_at(0), fixture_pattern_byte_at(1)},
	                 2);
	fixture_run_for_ns(5 * MS);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 0);
	assert_false(vma_tcp_rx_eof(app->conn));
	fixture_alloc_bytes_fails = false;
	fixture_run_for_ns(5 * MS);
	assert_int_equal(read_bytes(app, 10), 2);
	assert_true(vma_tcp_rx_eof(app->conn));
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSE);
	app_free(app);
}

static void test_last_bytes_without_memory_go_with_a_close_in_time_wait(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	vma_tcp_shutdown(app->conn, SHUT_WR);
	raw_send_segment(1, 2, TCP_ACK, "", 0);
	fixture_alloc_bytes_fails = true;
	raw_send_segment(1, 2, TCP_ACK | TCP_FIN, (uint8_t[]){fixture_pattern_byte_at(0), fixture_pattern_byte_at(1)},
	                 2);
	fixture_run_for_ns(5 * MS);
	assert_non_null(app->conn->pcb->refused_data);
	vma_tcp_close(app->conn, false);
	fixture_run_for_ns(5 * MS);
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSE);
	app_free(app);
}

static void test_last_bytes_wait_for_memory_in_last_ack(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	fixture_alloc_bytes_fails = true;
	raw_send_segment(1, 1, TCP_ACK | TCP_FIN, (uint8_t[]){fixture_pattern_byte_at(0), fixture_pattern_byte_at(1)},
	                 2);
	vma_tcp_shutdown(app->conn, SHUT_WR);
	fixture_run_until_idle();
	assert_int_equal(raw_last_segment()->flags & TCP_FIN, TCP_FIN);
	raw_send_segment(4, 2, TCP_ACK, "", 0);
	fixture_run_for_ns(5 * MS);
	fixture_alloc_bytes_fails = false;
	fixture_run_for_ns(5 * MS);
	assert_int_equal(read_bytes(app, 10), 2);
	assert_true(vma_tcp_rx_eof(app->conn));
	app_free(app);
}

/* As the kernel: or the queue that was too small for a hundred short ones would be so again. */
static void test_short_segments_are_sent_again_as_long_ones_after_a_timeout(void **state)
{
	struct app *client, *server;
	uint64_t before;

	(void)state;
	side[0].options.nodelay = 1;
	fixture_establish_connection_pair(&client, &server);
	fixture_set_wire_faults(0, (struct vma_wire_faults){.loss_ppm = 1000000});
	for (unsigned i = 0; i < 60; i++)
		assert_int_equal(fixture_send_bytes(client, 40), 40);
	vma_tcp_shutdown(client->conn, SHUT_WR);
	fixture_run_for_ns(1 * MS);
	fixture_set_wire_faults(0, (struct vma_wire_faults){0});
	before = fixture_wire_frames_sent(0);
	fixture_run_for_ns(5 * SEC);
	assert_true(fixture_stack_counts(0).timeouts > 0);
	assert_int_equal(read_bytes(server, 10000), 2400);
	assert_true(vma_tcp_rx_eof(server->conn));
	assert_true(fixture_wire_frames_sent(0) - before < 8);
	assert_int_equal(vma_tcp_tx_unacked_bytes(client->conn), 0);
	app_free(client);
}

static void test_path_that_finds_no_memory_says_so(void **state)
{
	struct vma_tcp_path path = fixture_path_to_peer_of(0, 1400);
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	fixture_alloc_fails = true;
	assert_int_equal(vma_tcp_set_path(client->conn, &path), -ENOMEM);
	fixture_alloc_fails = false;
	assert_int_equal(vma_tcp_set_path(client->conn, &path), 0);
	app_free(client);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_path_wider_than_a_buffer_carries_data, setup_pair_with_jumbo_mtu,
                                        fixture_close),
        CASE(test_urgent_byte_that_is_not_read_is_a_reason_for_a_reset),
        CASE(test_urgent_byte_that_reading_has_passed_is_no_reason_for_a_reset),
        RAW_CASE(test_window_of_a_crossing_syn_ack_is_not_scaled),
        RAW_CASE(test_mss_of_a_crossing_syn_outlives_a_new_path),
        RAW_CASE(test_window_of_a_repeated_segment_counts),
        RAW_CASE(test_window_of_a_repeated_segment_in_order_counts),
        RAW_CASE(test_last_bytes_wait_for_memory_in_time_wait),
        RAW_CASE(test_last_bytes_without_memory_go_with_a_close_in_time_wait),
        RAW_CASE(test_last_bytes_wait_for_memory_in_last_ack),
        CASE(test_short_segments_are_sent_again_as_long_ones_after_a_timeout),
        CASE(test_path_that_finds_no_memory_says_so),
};

VMA_TEST_MAIN(tests)
