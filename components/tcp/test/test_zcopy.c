/* Zero-copy receive: payload stays in its frames, within bounds, and the window counts what is held. */
#include "fixture.h"
#include "../zcopy.h"

enum { HELD_MAX = 2048 };

/* What the test holds, as an application would. */
static struct held_piece {
	struct vma_tcp_rx_stream_piece piece;
	uint64_t number, at;
} held[HELD_MAX];
static unsigned held_count;
static struct vma_tcp_memory memory_limit_account;

static int setup_zcopy_pair_with_mtu(uint32_t mtu)
{
	struct vma_tcp_attr requests = {.gro_streams_max = 16, .memory = &memory_limit_account};

	memory_limit_account = (struct vma_tcp_memory){.pressure = INT64_MAX, .limit = INT64_MAX};
	held_count = 0;
	fixture_open_with(&requests, mtu);
	return 0;
}

static int setup_zcopy_pair(void **state)
{
	(void)state;
	return setup_zcopy_pair_with_mtu(0);
}

static int setup_zcopy_pair_jumbo(void **state)
{
	(void)state;
	return setup_zcopy_pair_with_mtu(9000);
}

static void return_held_piece(struct vma_tcp_conn *conn, unsigned i)
{
	vma_buf_put(fixture_arena, held[i].piece.buf);
	vma_tcp_held_bytes_returned(conn, &memory_limit_account, held[i].number, held[i].piece.len, 1);
	held[i] = held[--held_count];
}

static void return_all_held_pieces(struct vma_tcp_conn *conn)
{
	while (held_count > 0)
		return_held_piece(conn, held_count - 1);
}

static int teardown_zcopy_pair(void **state)
{
	return_all_held_pieces(NULL);
	assert_int_equal(fixture_close(state), 0);
	assert_int_equal(atomic_load(&memory_limit_account.frames), 0);
	assert_int_equal(atomic_load(&memory_limit_account.used), 0);
	return 0;
}

static bool piece_lies_in_frame(const struct vma_tcp_rx_stream_piece *piece)
{
	const char *frame = vma_buf_frame(fixture_arena, piece->buf), *data = piece->data;

	return data >= frame && data + piece->len <= frame + (1U << fixture_arena->frame_shift);
}

static void check_piece_has_pattern(const struct vma_tcp_rx_stream_piece *piece, uint64_t at)
{
	for (uint32_t k = 0; k < piece->len; k++)
		assert_int_equal(((const uint8_t *)piece->data)[k], fixture_pattern_byte_at(at + k));
}

/* Takes the first piece if it lies in a frame: its bytes, or 0. */
static size_t hold_first_piece_in_frame(struct app *app)
{
	const uint64_t at = fifo_consumed(&app->conn->rx);
	struct vma_tcp_rx_stream_piece piece;

	if (!vma_tcp_peek_first_rx_piece(app->conn, &piece) || piece.buf == NULL)
		return 0;
	assert_true(held_count < HELD_MAX);
	assert_true(piece_lies_in_frame(&piece));
	check_piece_has_pattern(&piece, at);
	vma_buf_ref(piece.buf);
	held[held_count++] = (struct held_piece){piece, vma_tcp_zcopy_conn_id(app->conn), at};
	vma_tcp_rx_hold_piece(app->conn, &piece);
	return piece.len;
}

static size_t hold_all_pieces_in_frames(struct app *app)
{
	size_t done = 0, one;

	while ((one = hold_first_piece_in_frame(app)) != 0)
		done += one;
	return done;
}

static void establish_zcopy(struct app **client, struct app **server)
{
	fixture_establish_connection_pair(client, server);
	assert_int_equal(vma_tcp_enable_rx_zcopy((*server)->conn), 0);
	fixture_run_for_ns(MS);
}

static void zcopy_send_bytes_and_run(struct app *app, size_t n)
{
	assert_int_equal(fixture_send_bytes(app, n), n);
	fixture_run_for_ns(2 * MS);
}

/* ---- pieces ---- */

static void test_payload_lies_where_the_device_put_it(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_zcopy(&client, &server);
	zcopy_send_bytes_and_run(client, 5000);
	assert_int_equal(vma_tcp_readable_bytes(server->conn), 5000);
	assert_true(server->events & VMA_TCP_READABLE);
	assert_int_equal(hold_all_pieces_in_frames(server), 5000);
	assert_int_equal(vma_tcp_readable_bytes(server->conn), 0);
	assert_true(held_count >= 4);
	assert_int_equal(atomic_load(&memory_limit_account.frames), held_count);
	assert_int_equal(fixture_stack_counts(1).zcopy_bytes, 5000);
	zcopy_send_bytes_and_run(client, 5000); /* what is held is left alone */
	for (unsigned i = 0; i < held_count; i++)
		check_piece_has_pattern(&held[i].piece, held[i].at);
	return_all_held_pieces(server->conn);
	app_free(client);
}

static void test_packets_of_several_buffers_are_a_piece_each(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_zcopy(&client, &server);
	for (int i = 0; i < 4; i++)
		zcopy_send_bytes_and_run(client, 16000);
	assert_int_equal(hold_all_pieces_in_frames(server) + read_bytes(server, 64000), 64000);
	assert_true(held_count > 0);
	app_free(client);
}

static void test_what_came_before_is_copied_and_read_first(void **state)
{
	struct app *client, *server;
	struct vma_tcp_rx_stream_piece piece;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	zcopy_send_bytes_and_run(client, 1000);
	assert_int_equal(vma_tcp_zcopy_conn_id(server->conn), 0);
	assert_int_equal(vma_tcp_enable_rx_zcopy(server->conn), 0);
	assert_int_not_equal(vma_tcp_zcopy_conn_id(server->conn), 0);
	zcopy_send_bytes_and_run(client, 1000);
	assert_true(vma_tcp_peek_first_rx_piece(server->conn, &piece));
	assert_null(piece.buf);
	assert_int_equal(hold_first_piece_in_frame(server), 0);
	assert_int_equal(read_bytes(server, 1000), 1000);
	assert_int_equal(hold_first_piece_in_frame(server), 1000);
	app_free(client);
}

/* Its bytes; and of what is held only a few pieces stay so. */
static size_t hold_or_read_at_random(struct app *server, uint32_t r)
{
	size_t got;

	if (r >> 30 == 0)
		got = hold_all_pieces_in_frames(server);
	else if (r >> 30 == 1)
		got = hold_first_piece_in_frame(server);
	else
		got = read_bytes(server, (r >> 12) % 5000);
	while (held_count > r % 20)
		return_held_piece(server->conn, r % held_count);
	return got;
}

static void test_reading_and_holding_may_be_mixed_anywhere(void **state)
{
	struct app *client, *server;
	size_t sent = 0, got = 0;
	uint32_t seed = 7;

	(void)state;
	establish_zcopy(&client, &server);
	for (int round = 0; round < 400; round++) {
		uint32_t r = seed = seed * 1664525 + 1013904223;

		sent += fixture_send_bytes(client, 1 + (r >> 8) % 4000);
		fixture_run_for_ns(MS / 10);
		got += hold_or_read_at_random(server, r);
	}
	fixture_run_for_ns(SEC);
	while (got < sent) {
		got += hold_all_pieces_in_frames(server) + read_bytes(server, 1);
		return_all_held_pieces(server->conn);
		fixture_run_for_ns(SEC);
	}
	assert_int_equal(got, sent);
	app_free(client);
}

static void test_peeking_leaves_frames_where_they_are(void **state)
{
	struct app *client, *server;
	struct iovec spans[8];
	size_t sum = 0;
	unsigned n;

	(void)state;
	establish_zcopy(&client, &server);
	zcopy_send_bytes_and_run(client, 4000);
	n = vma_tcp_peek_rx_spans(server->conn, 100, spans, 8);
	for (unsigned i = 0; i < n; i++)
		sum += spans[i].iov_len;
	assert_int_equal(sum, 3900);
	assert_int_equal(((uint8_t *)spans[0].iov_base)[0], fixture_pattern_byte_at(100));
	assert_int_equal(hold_all_pieces_in_frames(server), 4000);
	app_free(client);
}

/* A fifo that is empty keeps no frame: an idle connection pins none. */
static void test_read_frames_go_back_at_once(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_zcopy(&client, &server);
	for (int i = 0; i < 100; i++) {
		zcopy_send_bytes_and_run(client, 700);
		assert_true(atomic_load(&memory_limit_account.frames) > 0);
		assert_int_equal(read_bytes(server, 700), 700);
		assert_int_equal(atomic_load(&memory_limit_account.frames), 0);
	}
	app_free(client);
}

static void test_data_out_of_order_is_copied(void **state)
{
	struct app *client, *server;
	size_t got = 0;

	(void)state;
	establish_zcopy(&client, &server);
	fixture_set_wire_faults(0, (struct vma_wire_faults){.seed = 3, .loss_ppm = 100000, .reorder_ppm = 100000});
	assert_int_equal(fixture_send_bytes(client, 16000), 16000);
	for (int i = 0; i < 20 && got < 16000; i++) {
		fixture_run_for_ns(SEC);
		got += hold_all_pieces_in_frames(server) + read_bytes(server, 16000);
	}
	assert_int_equal(got, 16000);
	assert_true(fixture_stack_counts(1).zcopy_copied > 0);
	app_free(client);
}

/* ---- pieces that an owner takes while they come ---- */

static bool owner_takes;
static unsigned pieces_offered;

static bool take_arriving_piece(struct vma_tcp_conn *conn, void *arg, const struct vma_tcp_rx_stream_piece *piece)
{
	const uint64_t at = fifo_consumed(&conn->rx);

	assert_ptr_equal(((struct app *)arg)->conn, conn);
	assert_int_equal(vma_tcp_readable_bytes(conn), 0);
	pieces_offered++;
	if (!owner_takes)
		return false;
	assert_true(held_count < HELD_MAX);
	assert_true(piece_lies_in_frame(piece));
	check_piece_has_pattern(piece, at);
	held[held_count++] = (struct held_piece){*piece, vma_tcp_zcopy_conn_id(conn), at};
	vma_tcp_rx_hold_arriving_piece(conn, piece);
	return true;
}

static void establish_taking(struct app **client, struct app **server)
{
	static const struct vma_tcp_conn_ops taking = {.event = fixture_app_on_event, .take = take_arriving_piece};

	fixture_establish_connection_pair(client, server);
	vma_tcp_conn_set_owner_and_replay_events((*server)->conn, &taking, *server);
	assert_int_equal(vma_tcp_offer_arriving_pieces((*server)->conn), 0);
	fixture_run_for_ns(MS);
	(*server)->events = 0;
	owner_takes = true;
	pieces_offered = 0;
}

static void test_piece_is_taken_while_it_comes_and_never_queued(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_taking(&client, &server);
	vma_tcp_set_option(client->conn, VMA_TCP_OPT_NODELAY, 1);
	for (unsigned i = 1; i <= 20; i++) {
		zcopy_send_bytes_and_run(client, 700);
		assert_int_equal(held_count, i);
		assert_int_equal(atomic_load(&memory_limit_account.frames), i);
		assert_int_equal(vma_tcp_readable_bytes(server->conn), 0);
	}
	assert_int_equal(server->events & VMA_TCP_READABLE, 0);
	assert_int_equal(fixture_stack_counts(1).zcopy_bytes, 14000);
	for (unsigned i = 0; i < held_count; i++)
		check_piece_has_pattern(&held[i].piece, held[i].at);
	vma_tcp_shutdown(client->conn, SHUT_WR);
	fixture_run_for_ns(MS);
	assert_true(server->events & VMA_TCP_PEER_CLOSED);
	assert_true(vma_tcp_rx_eof(server->conn));
	app_free(client);
}

static void test_piece_that_is_refused_is_queued_and_nothing_overtakes_it(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_taking(&client, &server);
	owner_takes = false;
	zcopy_send_bytes_and_run(client, 700);
	assert_int_equal(pieces_offered, 1);
	assert_true(server->events & VMA_TCP_READABLE);
	owner_takes = true;
	zcopy_send_bytes_and_run(client, 700);
	assert_int_equal(pieces_offered, 1);
	assert_int_equal(vma_tcp_readable_bytes(server->conn), 1400);
	assert_int_equal(read_bytes(server, 1399), 1399);
	zcopy_send_bytes_and_run(client, 700);
	assert_int_equal(hold_all_pieces_in_frames(server), 701);
	zcopy_send_bytes_and_run(client, 700);
	assert_int_equal(pieces_offered, 2);
	assert_int_equal(held_count, 3);
	app_free(client);
}

static void test_taking_reading_and_holding_may_be_mixed_anywhere(void **state)
{
	struct app *client, *server;
	size_t sent = 0, got = 0;
	uint32_t seed = 11;

	(void)state;
	establish_taking(&client, &server);
	for (int round = 0; round < 1000; round++) {
		uint32_t r = seed = seed * 1664525 + 1013904223;

		owner_takes = r >> 9 & 1;
		sent += fixture_send_bytes(client, 1 + (r >> 8) % (r >> 20 & 1 ? 4000 : 1400));
		fixture_run_for_ns(MS / 10);
		got += hold_or_read_at_random(server, r);
	}
	assert_true(pieces_offered > 50);
	fixture_run_for_ns(SEC);
	while (vma_tcp_readable_bytes(server->conn) != 0 || fifo_consumed(&server->conn->rx) != sent) {
		got += hold_all_pieces_in_frames(server) + read_bytes(server, 1);
		return_all_held_pieces(server->conn);
		fixture_run_for_ns(SEC);
	}
	assert_true(got < sent);
	app_free(client);
}

/* An urgent byte has a place in what is queued: nothing is offered while there is a mark, or it may come. */
static void test_nothing_is_offered_at_an_urgent_mark(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_taking(&client, &server);
	zcopy_send_bytes_and_run(client, 100);
	assert_int_equal(pieces_offered, 1);
	assert_int_equal(send_flags(client, 50, VMA_TCP_TX_URGENT), 50);
	fixture_run_for_ns(MS);
	zcopy_send_bytes_and_run(client, 100);
	assert_int_equal(pieces_offered, 1);
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(server->conn), 49);
	assert_int_equal(read_bytes(server, 49), 49);
	{
		struct vma_tcp_rx_stream_piece piece;

		assert_true(vma_tcp_peek_first_rx_piece(server->conn, &piece));
		assert_int_equal(piece.len, 100);
		check_piece_has_pattern(&piece, 150);
		vma_tcp_rx_consume(server->conn, 100);
	}
	zcopy_send_bytes_and_run(client, 100);
	assert_int_equal(pieces_offered, 2);
	app_free(client);
}

static void test_window_closes_for_what_was_taken_and_opens_when_it_is_freed(void **state)
{
	struct app *client, *server;
	uint64_t sent = 0, rcvbuf, came;

	(void)state;
	establish_taking(&client, &server);
	for (int i = 0; i < 400; i++) {
		sent += fixture_send_bytes(client, 1400);
		fixture_run_for_ns(MS);
	}
	rcvbuf = atomic_load(&server->conn->rcvbuf);
	came = fifo_produced(&server->conn->rx);
	assert_true(held_count > 20);
	assert_true(came < sent);
	assert_true(came <= rcvbuf + 16384); /* windows are rounded up */
	assert_true(came >= rcvbuf - rcvbuf / 8);
	return_all_held_pieces(server->conn);
	(void)read_bytes(server, sent);
	fixture_run_for_ns(MS); /* at once: no probe is waited for */
	assert_true(fifo_produced(&server->conn->rx) > came);
	app_free(client);
}

/* ---- urgent data, FIN, RST ---- */

static void test_pieces_end_before_the_urgent_byte(void **state)
{
	struct app *client, *server;
	uint8_t byte;

	(void)state;
	establish_zcopy(&client, &server);
	zcopy_send_bytes_and_run(client, 100);
	assert_int_equal(send_flags(client, 50, VMA_TCP_TX_URGENT), 50);
	fixture_run_for_ns(MS);
	zcopy_send_bytes_and_run(client, 100);
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(server->conn), 149);
	assert_int_equal(hold_first_piece_in_frame(server), 100);
	assert_int_equal(hold_first_piece_in_frame(server), 49);
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(server->conn), 0);
	assert_int_equal(vma_tcp_read_urgent_byte(server->conn, &byte, false), 1);
	assert_int_equal(byte, fixture_pattern_byte_at(149));
	{
		struct vma_tcp_rx_stream_piece piece;

		assert_true(vma_tcp_peek_first_rx_piece(server->conn, &piece));
		assert_int_equal(piece.len, 100); /* steps over it */
		check_piece_has_pattern(&piece, 150);
	}
	app_free(client);
}

static void test_end_of_stream_comes_behind_the_pieces(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_zcopy(&client, &server);
	zcopy_send_bytes_and_run(client, 2000);
	vma_tcp_shutdown(client->conn, SHUT_WR);
	fixture_run_for_ns(MS);
	assert_true(server->events & VMA_TCP_PEER_CLOSED);
	assert_false(vma_tcp_rx_eof(server->conn));
	assert_int_equal(hold_all_pieces_in_frames(server), 2000);
	assert_true(vma_tcp_rx_eof(server->conn));
	app_free(client);
}

static void test_held_bytes_are_read_bytes_for_close(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_zcopy(&client, &server);
	zcopy_send_bytes_and_run(client, 2000);
	assert_int_equal(hold_all_pieces_in_frames(server), 2000);
	vma_tcp_close(server->conn, false);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_state(client->conn), TCP_CLOSE_WAIT); /* FIN, no RST */
	app_free(client);
}

static void test_unread_frames_are_worth_a_reset(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_zcopy(&client, &server);
	zcopy_send_bytes_and_run(client, 2000);
	assert_true(hold_first_piece_in_frame(server) > 0);
	vma_tcp_close(server->conn, false);
	fixture_run_for_ns(MS);
	assert_true(client->events & VMA_TCP_FAILED);
	assert_int_equal(vma_tcp_error(client->conn), ECONNRESET);
	app_free(client);
}

static void test_frames_come_back_after_the_connection_has_gone(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_zcopy(&client, &server);
	zcopy_send_bytes_and_run(client, 5000);
	assert_int_equal(hold_all_pieces_in_frames(server), 5000);
	app_free(client);
	app_free(server);
	fixture_accepted_count = 0;
	fixture_run_for_ns(100 * SEC);
	assert_int_equal(vma_tcp_is_empty(side[1].tcp), false); /* the listener */
	for (unsigned i = 0; i < held_count; i++)
		check_piece_has_pattern(&held[i].piece, held[i].at);
	assert_int_equal(atomic_load(&memory_limit_account.frames), held_count);
	return_all_held_pieces(NULL);
	assert_int_equal(atomic_load(&memory_limit_account.frames), 0);
}

static void test_frames_of_a_former_connection_count_in_no_other(void **state)
{
	struct app *client, *server, *client2, *server2;
	const unsigned before = 4;

	(void)state;
	establish_zcopy(&client, &server);
	zcopy_send_bytes_and_run(client, 5000);
	assert_int_equal(hold_all_pieces_in_frames(server), 5000);
	assert_int_equal(held_count, before);
	establish_zcopy(&client2, &server2);
	assert_int_not_equal(vma_tcp_zcopy_conn_id(server->conn), vma_tcp_zcopy_conn_id(server2->conn));
	zcopy_send_bytes_and_run(client2, 3000);
	assert_int_equal(hold_all_pieces_in_frames(server2), 3000);
	for (unsigned i = before; i-- > 0;)
		return_held_piece(server2->conn, i); /* the first one's frames, given back on the second one */
	assert_int_equal(zcopy_held_and_waiting_bytes(server2->conn), 3000);
	return_all_held_pieces(server2->conn);
	assert_int_equal(zcopy_held_and_waiting_bytes(server2->conn), 0);
	app_free(client);
	app_free(client2);
}

/* ---- the window, and the bounds ---- */

static void test_window_closes_for_what_is_held_and_opens_when_it_is_freed(void **state)
{
	struct app *client, *server;
	uint64_t sent = 0, rcvbuf, got = 0;

	(void)state;
	establish_zcopy(&client, &server);
	for (int i = 0; i < 2000; i++) {
		sent += fixture_send_bytes(client, 10000);
		fixture_run_for_ns(MS);
		got += hold_all_pieces_in_frames(server);
	}
	rcvbuf = atomic_load(&server->conn->rcvbuf);
	got += read_bytes(server, 1 << 20);
	assert_true(got >= rcvbuf / 2);
	assert_true(got < sent);
	assert_true(zcopy_held_and_waiting_bytes(server->conn) <= rcvbuf + 16384); /* windows are rounded up */
	assert_true(zcopy_held_and_waiting_bytes(server->conn) >= rcvbuf - rcvbuf / 8);
	assert_true(vma_tcp_tx_unsent(client->conn) > 0);
	return_all_held_pieces(server->conn);
	fixture_run_for_ns(MS); /* at once: no probe is waited for */
	assert_true(vma_tcp_readable_bytes(server->conn) > 0);
	app_free(client);
}

static void test_buffer_does_not_grow_for_an_owner_that_frees_nothing(void **state)
{
	struct app *client, *server;
	const uint64_t first = 65536;

	(void)state;
	establish_zcopy(&client, &server);
	assert_int_equal(atomic_load(&server->conn->rcvbuf), first);
	for (int i = 0; i < 200; i++) {
		fixture_send_bytes(client, 10000);
		fixture_run_for_ns(MS);
		hold_all_pieces_in_frames(server);
	}
	assert_int_equal(atomic_load(&server->conn->rcvbuf), first);
	app_free(client);
}

static void test_small_segments_do_not_pin_the_pool(void **state)
{
	struct app *client, *server;
	size_t got = 0;

	(void)state;
	side[0].options.nodelay = 1;
	establish_zcopy(&client, &server);
	for (int i = 0; i < 1000; i++) {
		assert_int_equal(fixture_send_bytes(client, 1), 1);
		fixture_run_for_ns(20000);
	}
	fixture_run_for_ns(SEC);
	assert_int_equal(vma_tcp_readable_bytes(server->conn), 1000);
	assert_true(atomic_load(&memory_limit_account.frames) <= ZCOPY_SMALL_FRAMES_MAX);
	assert_true(fixture_stack_counts(1).zcopy_copied >= 900);
	assert_true(atomic_load(&memory_limit_account.used) < 100000);
	got = hold_all_pieces_in_frames(server);
	got += read_bytes(server, 1000 - got);
	assert_int_equal(got, 1000);
	app_free(client);
}

static void test_connection_has_a_bound_of_frames_and_goes_on_by_copying(void **state)
{
	struct app *client, *server;
	size_t sent = 0, got = 0;

	(void)state;
	side[1].options.rcvbuf = 2 << 20;
	side[0].options.sndbuf = 1 << 20;
	establish_zcopy(&client, &server);
	while (sent < 1 << 20) {
		sent += fixture_send_bytes(client, 20000);
		fixture_run_for_ns(MS);
		got += hold_all_pieces_in_frames(server);
	}
	fixture_run_for_ns(SEC);
	assert_true(atomic_load(&memory_limit_account.frames) <= ZCOPY_FRAMES_MAX);
	assert_true(held_count > ZCOPY_FRAMES_MAX - 70);
	assert_true(fixture_stack_counts(1).zcopy_copied > 0);
	while (got < sent) {
		size_t more = hold_all_pieces_in_frames(server) + read_bytes(server, 100000);

		fixture_run_for_ns(MS);
		got += more;
		assert_true(fixture_now_ns < 3000 * SEC);
	}
	assert_int_equal(got, sent);
	app_free(client);
}

static void test_process_has_a_bound_and_others_do_not_starve(void **state)
{
	struct app *client, *server, *client2, *server2;

	(void)state;
	memory_limit_account.frames_max = 20;
	establish_zcopy(&client, &server);
	establish_zcopy(&client2, &server2);
	for (int i = 0; i < 10; i++) {
		zcopy_send_bytes_and_run(client, 4000);
		hold_all_pieces_in_frames(server);
	}
	assert_true(atomic_load(&memory_limit_account.frames) <= 20);
	zcopy_send_bytes_and_run(client2, 4000);
	assert_int_equal(vma_tcp_readable_bytes(server2->conn), 4000); /* copied */
	assert_int_equal(hold_all_pieces_in_frames(server2) + read_bytes(server2, 4000), 4000);
	app_free(client);
	app_free(client2);
}

static void test_without_memory_nothing_is_lost(void **state)
{
	struct app *client, *server;
	size_t sent;

	(void)state;
	establish_zcopy(&client, &server);
	sent = fixture_send_bytes(client, 30000);
	fixture_alloc_bytes_fails = true; /* no chunk for a frame, and none to copy to */
	fixture_run_for_ns(MS);
	fixture_alloc_bytes_fails = false;
	fixture_run_for_ns(SEC);
	assert_int_equal(hold_all_pieces_in_frames(server) + read_bytes(server, sent), sent);
	app_free(client);
}

#define ZCOPY_CASE(f) cmocka_unit_test_setup_teardown(f, setup_zcopy_pair, teardown_zcopy_pair)

static const struct CMUnitTest tests[] = {
        ZCOPY_CASE(test_payload_lies_where_the_device_put_it),
        cmocka_unit_test_setup_teardown(test_packets_of_several_buffers_are_a_piece_each, setup_zcopy_pair_jumbo,
                                        teardown_zcopy_pair),
        ZCOPY_CASE(test_what_came_before_is_copied_and_read_first),
        ZCOPY_CASE(test_reading_and_holding_may_be_mixed_anywhere),
        ZCOPY_CASE(test_peeking_leaves_frames_where_they_are),
        ZCOPY_CASE(test_read_frames_go_back_at_once),
        ZCOPY_CASE(test_data_out_of_order_is_copied),
        ZCOPY_CASE(test_piece_is_taken_while_it_comes_and_never_queued),
        ZCOPY_CASE(test_piece_that_is_refused_is_queued_and_nothing_overtakes_it),
        ZCOPY_CASE(test_taking_reading_and_holding_may_be_mixed_anywhere),
        ZCOPY_CASE(test_nothing_is_offered_at_an_urgent_mark),
        ZCOPY_CASE(test_window_closes_for_what_was_taken_and_opens_when_it_is_freed),
        ZCOPY_CASE(test_pieces_end_before_the_urgent_byte),
        ZCOPY_CASE(test_end_of_stream_comes_behind_the_pieces),
        ZCOPY_CASE(test_held_bytes_are_read_bytes_for_close),
        ZCOPY_CASE(test_unread_frames_are_worth_a_reset),
        ZCOPY_CASE(test_frames_come_back_after_the_connection_has_gone),
        ZCOPY_CASE(test_frames_of_a_former_connection_count_in_no_other),
        ZCOPY_CASE(test_window_closes_for_what_is_held_and_opens_when_it_is_freed),
        ZCOPY_CASE(test_buffer_does_not_grow_for_an_owner_that_frees_nothing),
        ZCOPY_CASE(test_small_segments_do_not_pin_the_pool),
        ZCOPY_CASE(test_connection_has_a_bound_of_frames_and_goes_on_by_copying),
        ZCOPY_CASE(test_process_has_a_bound_and_others_do_not_starve),
        ZCOPY_CASE(test_without_memory_nothing_is_lost),
};

VMA_TEST_MAIN(tests)
