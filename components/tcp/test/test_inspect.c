/* An owner that inspects what comes: the three verdicts, and what waits for them (FIN, close, the window). */
#include <pthread.h>

#include "fixture.h"
#include "../zcopy.h"

/* What the judge does, and has seen. */
static struct {
	enum vma_tcp_inspect_verdict verdicts[4]; /* in turn */
	unsigned count;
	uint64_t seen, held_bytes;
	struct vma_buf *held[512];
	unsigned held_count;
	void (*inside)(struct vma_tcp_conn *conn);
} judge;
static struct vma_tcp_memory memory_limit_account;

static enum vma_tcp_inspect_verdict decide_on_piece(struct vma_tcp_conn *conn,
                                                    const struct vma_tcp_rx_stream_piece *piece, void *arg)
{
	enum vma_tcp_inspect_verdict verdict = judge.verdicts[judge.count++ % 4];

	(void)arg;
	for (uint32_t k = 0; k < piece->len; k++)
		assert_int_equal(((const uint8_t *)piece->data)[k], fixture_pattern_byte_at(judge.seen + k));
	judge.seen += piece->len;
	if (judge.inside != NULL)
		judge.inside(conn);
	if (verdict == VMA_TCP_HOLD && piece->buf != NULL) {
		vma_buf_ref(piece->buf);
		judge.held[judge.held_count++] = piece->buf;
		judge.held_bytes += piece->len;
	}
	return verdict;
}
static const struct vma_tcp_inspector inspector = {.decide = decide_on_piece};

static int setup_pair_with_memory_account(void **state)
{
	struct vma_tcp_attr requests = {.gro_streams_max = 16, .memory = &memory_limit_account};

	(void)state;
	memory_limit_account = (struct vma_tcp_memory){.pressure = INT64_MAX, .limit = INT64_MAX};
	memset(&judge, 0, sizeof(judge));
	fixture_open_with(&requests, 0);
	return 0;
}

static void return_held_pieces(struct vma_tcp_conn *conn)
{
	const uint64_t number = conn != NULL ? vma_tcp_zcopy_conn_id(conn) : 0;
	const unsigned count = judge.held_count;

	while (judge.held_count > 0)
		vma_buf_put(fixture_arena, judge.held[--judge.held_count]);
	vma_tcp_held_bytes_returned(conn, &memory_limit_account, number, judge.held_bytes, count);
	judge.held_bytes = 0;
}

static int teardown_pair_with_memory_account(void **state)
{
	return_held_pieces(NULL);
	assert_int_equal(fixture_close(state), 0);
	assert_int_equal(atomic_load(&memory_limit_account.frames), 0);
	assert_int_equal(atomic_load(&memory_limit_account.used), 0);
	return 0;
}

static void establish_inspected(struct app **client, struct app **server)
{
	fixture_establish_connection_pair(client, server);
	assert_int_equal(vma_tcp_enable_rx_inspection((*server)->conn, true), 0);
	fixture_run_for_ns(MS);
	fixture_take_app_events(*server);
}

static void set_verdicts(enum vma_tcp_inspect_verdict a, enum vma_tcp_inspect_verdict b, enum vma_tcp_inspect_verdict c,
                         enum vma_tcp_inspect_verdict d)
{
	judge.verdicts[0] = a;
	judge.verdicts[1] = b;
	judge.verdicts[2] = c;
	judge.verdicts[3] = d;
	judge.count = 0;
}

static void set_verdict(enum vma_tcp_inspect_verdict all)
{
	set_verdicts(all, all, all, all);
}

static void fixture_send_bytes_and_run(struct app *app, size_t n)
{
	assert_int_equal(fixture_send_bytes(app, n), n);
	fixture_run_for_ns(MS);
}

static void test_nothing_is_readable_before_it_was_inspected(void **state)
{
	struct app *client, *server;
	struct vma_tcp_inspected result;

	(void)state;
	establish_inspected(&client, &server);
	set_verdict(VMA_TCP_RECV);
	fixture_send_bytes_and_run(client, 3000);
	assert_int_equal(fixture_take_app_events(server), VMA_TCP_ARRIVED);
	assert_int_equal(vma_tcp_readable_bytes(server->conn), 0);
	assert_false(fixture_poll_events_of_app(server) & EPOLLIN);
	result = vma_tcp_inspect_received(server->conn, &inspector, 100);
	assert_int_equal(result.received, 3000);
	assert_true(result.pieces >= 3);
	assert_false(result.more);
	assert_int_equal(vma_tcp_readable_bytes(server->conn), 3000);
	assert_int_equal(read_bytes(server, 3000), 3000);
	app_free(client);
}

static void test_dropped_bytes_are_read_bytes(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_inspected(&client, &server);
	set_verdict(VMA_TCP_DROP);
	for (int i = 0; i < 100; i++) { /* more than the buffer has room for */
		fixture_send_bytes_and_run(client, 10000);
		assert_int_equal(vma_tcp_inspect_received(server->conn, &inspector, 100).received, 0);
	}
	assert_int_equal(judge.seen, 1000000);
	assert_int_equal(zcopy_held_and_waiting_bytes(server->conn), 0);
	assert_int_equal(atomic_load(&memory_limit_account.frames), 0);
	vma_tcp_close(server->conn, false);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_state(client->conn), TCP_CLOSE_WAIT);
	app_free(client);
}

static void test_window_closes_while_nobody_inspects(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_inspected(&client, &server);
	set_verdict(VMA_TCP_DROP);
	for (int i = 0; i < 100; i++) {
		fixture_send_bytes(client, 10000);
		fixture_run_for_ns(MS);
	}
	assert_true(zcopy_waiting_bytes(server->conn) <= atomic_load(&server->conn->rcvbuf));
	assert_true(vma_tcp_tx_unsent(client->conn) > 0);
	while (vma_tcp_inspect_received(server->conn, &inspector, 10).more)
		;
	fixture_run_for_ns(MS); /* at once */
	assert_true(zcopy_waiting_bytes(server->conn) > 0);
	app_free(client);
}

static void test_held_pieces_fill_the_buffer_until_they_are_back(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_inspected(&client, &server);
	set_verdict(VMA_TCP_HOLD);
	for (int i = 0; i < 100; i++) {
		fixture_send_bytes(client, 10000);
		fixture_run_for_ns(MS);
		vma_tcp_inspect_received(server->conn, &inspector, 100);
	}
	assert_true(judge.held_count > 30);
	assert_true(zcopy_held_and_waiting_bytes(server->conn) <= atomic_load(&server->conn->rcvbuf));
	assert_int_equal(zcopy_held_and_waiting_bytes(server->conn), judge.held_bytes);
	assert_int_equal(atomic_load(&memory_limit_account.frames), judge.held_count);
	return_held_pieces(server->conn);
	assert_int_equal(zcopy_held_and_waiting_bytes(server->conn), 0);
	fixture_run_for_ns(MS);
	assert_true(zcopy_waiting_bytes(server->conn) > 0);
	app_free(client);
}

static void test_received_dropped_and_held_in_turn(void **state)
{
	struct app *client, *server;
	uint64_t received = 0;

	(void)state;
	establish_inspected(&client, &server);
	set_verdicts(VMA_TCP_RECV, VMA_TCP_DROP, VMA_TCP_HOLD, VMA_TCP_RECV);
	for (int i = 0; i < 8; i++)
		fixture_send_bytes_and_run(client, 100);
	received = vma_tcp_inspect_received(server->conn, &inspector, 100).received;
	assert_int_equal(received, 400);
	{
		static const unsigned expected[] = {0, 300, 400, 700};
		struct iovec spans[8];
		unsigned n = vma_tcp_peek_rx_spans(server->conn, 0, spans, 8);

		assert_int_equal(n, 4);
		for (unsigned i = 0; i < n; i++)
			assert_int_equal(((uint8_t *)spans[i].iov_base)[0], fixture_pattern_byte_at(expected[i]));
	}
	vma_tcp_rx_consume(server->conn, 400);
	app_free(client);
}

static void test_turn_is_bounded_and_says_that_there_is_more(void **state)
{
	struct app *client, *server;
	struct vma_tcp_inspected result;

	(void)state;
	establish_inspected(&client, &server);
	set_verdict(VMA_TCP_DROP);
	fixture_send_bytes_and_run(client, 5000);
	result = vma_tcp_inspect_received(server->conn, &inspector, 1);
	assert_int_equal(result.pieces, 1);
	assert_true(result.more);
	while (result.more)
		result = vma_tcp_inspect_received(server->conn, &inspector, 1);
	assert_int_equal(judge.seen, 5000);
	app_free(client);
}

/* ---- the end of the stream ---- */

static void test_fin_is_told_after_what_came_before_it(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_inspected(&client, &server);
	set_verdict(VMA_TCP_RECV);
	assert_int_equal(fixture_send_bytes(client, 100), 100);
	vma_tcp_shutdown(client->conn, SHUT_WR);
	fixture_run_for_ns(MS);
	assert_int_equal(fixture_take_app_events(server), VMA_TCP_ARRIVED);
	assert_false(vma_tcp_rx_eof(server->conn));
	vma_tcp_inspect_received(server->conn, &inspector, 100);
	fixture_run_for_ns(0);
	assert_true(fixture_take_app_events(server) & VMA_TCP_PEER_CLOSED);
	assert_false(vma_tcp_rx_eof(server->conn));
	assert_int_equal(read_bytes(server, 100), 100);
	assert_true(vma_tcp_rx_eof(server->conn));
	app_free(client);
}

static void test_fin_alone_is_told_at_once(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_inspected(&client, &server);
	set_verdict(VMA_TCP_DROP);
	fixture_send_bytes_and_run(client, 100);
	vma_tcp_inspect_received(server->conn, &inspector, 100);
	vma_tcp_shutdown(client->conn, SHUT_WR);
	fixture_run_for_ns(MS);
	assert_true(fixture_take_app_events(server) & VMA_TCP_PEER_CLOSED);
	assert_true(vma_tcp_rx_eof(server->conn));
	app_free(client);
}

static void close_conn_within_verdict(struct vma_tcp_conn *conn)
{
	vma_tcp_close(conn, false);
	fixture_run_for_ns(MS);
	assert_false(vma_tcp_state(conn) == TCP_CLOSE); /* it waits for the verdict */
}

static void check_close_within_verdict(enum vma_tcp_inspect_verdict verdict, bool resets)
{
	struct app *client, *server;

	establish_inspected(&client, &server);
	set_verdict(verdict);
	fixture_send_bytes_and_run(client, 100);
	judge.inside = close_conn_within_verdict;
	vma_tcp_inspect_received(server->conn, &inspector, 100);
	fixture_run_for_ns(MS);
	assert_int_equal((client->events & VMA_TCP_FAILED) != 0, resets);
	if (!resets)
		assert_int_equal(vma_tcp_state(client->conn), TCP_CLOSE_WAIT);
	app_free(client);
}

static void test_close_during_a_verdict_of_drop_sends_fin(void **state)
{
	(void)state;
	check_close_within_verdict(VMA_TCP_DROP, false);
}

static void test_close_during_a_verdict_of_hold_sends_fin(void **state)
{
	(void)state;
	check_close_within_verdict(VMA_TCP_HOLD, false);
}

static void test_close_during_a_verdict_of_receive_sends_rst(void **state)
{
	(void)state;
	check_close_within_verdict(VMA_TCP_RECV, true);
}

/* The socket's last word comes with the close, before the verdict. */
static void close_and_disown_within_verdict(struct vma_tcp_conn *conn)
{
	vma_tcp_close(conn, false);
	vma_tcp_conn_drop_owner_and_abort(conn);
}

static void test_owner_that_leaves_during_a_verdict_does_not_reset(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_inspected(&client, &server);
	set_verdict(VMA_TCP_DROP);
	fixture_send_bytes_and_run(client, 100);
	judge.inside = close_and_disown_within_verdict;
	vma_tcp_inspect_received(server->conn, &inspector, 100);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_state(client->conn), TCP_CLOSE_WAIT);
	app_free(client);
}

static void end_inspector_with_drop(void *conn)
{
	vma_tcp_inspector_has_ended(conn, VMA_TCP_DROP);
}

static void *thread_inspect_up_to_100_pieces(void *conn)
{
	pthread_cleanup_push(end_inspector_with_drop, conn);
	vma_tcp_inspect_received(conn, &inspector, 100);
	pthread_cleanup_pop(0);
	return NULL;
}

static void close_and_end_thread_within_verdict(struct vma_tcp_conn *conn)
{
	vma_tcp_close(conn, false);
	pthread_exit(NULL);
}

static void end_thread_within_verdict(struct vma_tcp_conn *conn)
{
	(void)conn;
	pthread_exit(NULL);
}

static void inspect_in_thread(struct vma_tcp_conn *conn, void (*inside)(struct vma_tcp_conn *conn))
{
	pthread_t thread;

	judge.inside = inside;
	assert_int_equal(pthread_create(&thread, NULL, thread_inspect_up_to_100_pieces, conn), 0);
	pthread_join(thread, NULL);
	judge.inside = NULL;
}

static void test_inspector_that_ends_leaves_the_rest_to_the_next(void **state)
{
	struct app *client, *server;
	struct vma_tcp_inspected result;

	(void)state;
	establish_inspected(&client, &server);
	set_verdict(VMA_TCP_RECV);
	fixture_send_bytes_and_run(client, 100);
	fixture_send_bytes_and_run(client, 200);
	inspect_in_thread(server->conn, end_thread_within_verdict);
	assert_int_equal(judge.seen, 100);
	assert_int_equal(vma_tcp_readable_bytes(server->conn), 0); /* it was dropped */
	result = vma_tcp_inspect_received(server->conn, &inspector, 100);
	assert_int_equal(result.received, 200);
	vma_tcp_shutdown(client->conn, SHUT_WR);
	fixture_run_for_ns(MS);
	assert_true(fixture_take_app_events(server) & VMA_TCP_PEER_CLOSED);
	app_free(client);
}

static void test_close_by_an_inspector_that_ends_sends_fin(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_inspected(&client, &server);
	fixture_send_bytes_and_run(client, 100);
	inspect_in_thread(server->conn, close_and_end_thread_within_verdict);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_state(client->conn), TCP_CLOSE_WAIT);
	app_free(client);
}

static void test_close_before_anybody_inspected_sends_rst(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_inspected(&client, &server);
	fixture_send_bytes_and_run(client, 100);
	vma_tcp_close(server->conn, false);
	fixture_run_for_ns(MS);
	assert_true(client->events & VMA_TCP_FAILED);
	app_free(client);
}

/* ---- begun and ended ---- */

static void test_connection_is_inspected_from_its_first_byte(void **state)
{
	struct app *client, *server, *app = calloc(1, sizeof(*app));
	struct vma_tcp_path path;
	struct vma_tcp_conn_attr attr;

	(void)state;
	fixture_establish_connection_pair(&client, &server); /* for the listener */
	path = fixture_path_to_peer_of(0, side[0].nic->info.mtu);
	attr = (struct vma_tcp_conn_attr){.owner = &fixture_app_conn_ops,
	                                  .arg = app,
	                                  .options = &side[0].options,
	                                  .path = path,
	                                  .family = AF_INET,
	                                  .local_port_be = htons(2000),
	                                  .peer_port_be = htons(PORT),
	                                  .inspected = true};
	memcpy(attr.local, side[0].ip, 16);
	memcpy(attr.peer, side[1].ip, 16);
	assert_int_equal(vma_tcp_connect(side[0].tcp, &attr, &app->conn), 0);
	fixture_run_for_ns(MS);
	server = fixture_last_accepted();
	set_verdict(VMA_TCP_RECV);
	fixture_send_bytes_and_run(server, 500);
	assert_true(app->events & VMA_TCP_ARRIVED);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 0);
	assert_int_equal(vma_tcp_inspect_received(app->conn, &inspector, 10).received, 500);
	app_free(app);
	app_free(client);
}

static void test_inspection_ends_when_nothing_waits(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_inspected(&client, &server);
	set_verdicts(VMA_TCP_DROP, VMA_TCP_RECV, VMA_TCP_RECV, VMA_TCP_RECV);
	fixture_send_bytes_and_run(client, 100);
	fixture_send_bytes_and_run(client, 100);
	assert_int_equal(vma_tcp_enable_rx_inspection(server->conn, false), 0);
	fixture_run_for_ns(MS);
	fixture_take_app_events(server);
	fixture_send_bytes_and_run(client, 100);
	assert_int_equal(fixture_take_app_events(server), VMA_TCP_ARRIVED); /* behind what waits */
	assert_int_equal(vma_tcp_inspect_received(server->conn, &inspector, 100).received, 200);
	fixture_run_for_ns(MS);
	fixture_send_bytes_and_run(client, 100);
	assert_int_equal(fixture_take_app_events(server), VMA_TCP_READABLE);
	assert_int_equal(vma_tcp_readable_bytes(server->conn), 300);
	assert_int_equal(send_flags(client, 10, VMA_TCP_TX_URGENT), 10); /* positions are right again */
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(server->conn), 309);
	app_free(client);
}

static void test_urgent_byte_is_one_of_the_stream(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_inspected(&client, &server);
	set_verdict(VMA_TCP_RECV);
	assert_int_equal(send_flags(client, 50, VMA_TCP_TX_URGENT), 50);
	fixture_run_for_ns(MS);
	assert_int_equal(fixture_take_app_events(server), VMA_TCP_ARRIVED);
	vma_tcp_inspect_received(server->conn, &inspector, 10);
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(server->conn), -1);
	assert_int_equal(read_bytes(server, 50), 50);
	app_free(client);
}

static void test_small_pieces_beyond_the_bound_cannot_be_held(void **state)
{
	struct app *client, *server;

	(void)state;
	side[0].options.nodelay = 1;
	establish_inspected(&client, &server);
	set_verdict(VMA_TCP_HOLD);
	for (int i = 0; i < 500; i++) {
		assert_int_equal(fixture_send_bytes(client, 1), 1);
		fixture_run_for_ns(20000);
		vma_tcp_inspect_received(server->conn, &inspector, 10);
	}
	fixture_run_for_ns(SEC);
	vma_tcp_inspect_received(server->conn, &inspector, 1000);
	assert_true(atomic_load(&memory_limit_account.frames) <= ZCOPY_SMALL_FRAMES_MAX);
	assert_int_equal(judge.held_bytes + vma_tcp_readable_bytes(server->conn), 500);
	assert_true(atomic_load(&memory_limit_account.used) < 20000);
	app_free(client);
}

static void test_what_waits_is_bounded_and_comes_all_the_same(void **state)
{
	struct app *client, *server;

	(void)state;
	side[0].options.nodelay = 1;
	establish_inspected(&client, &server);
	set_verdict(VMA_TCP_DROP);
	for (int i = 0; i < 2000; i++) {
		assert_int_equal(fixture_send_bytes(client, 1), 1);
		fixture_run_for_ns(20000);
	}
	assert_true(atomic_load(&zcopy_of(server->conn)->waiting_pieces) <= ZCOPY_ARRIVED_MAX);
	for (int i = 0; i < 100 && judge.seen < 2000; i++) {
		vma_tcp_inspect_received(server->conn, &inspector, 10000);
		fixture_run_for_ns(SEC);
	}
	assert_int_equal(judge.seen, 2000);
	app_free(client);
}

static void test_connection_that_ends_drops_what_waits(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_inspected(&client, &server);
	set_verdict(VMA_TCP_RECV);
	fixture_send_bytes_and_run(client, 5000);
	vma_tcp_close(client->conn, true);
	fixture_run_for_ns(MS);
	assert_true(server->events & VMA_TCP_FAILED);
	app_free(client);
}

/* No more may be told of a piece than that it waits: the connection stays where it is. */
static void test_export_waits_for_the_inspector(void **state)
{
	struct app *client, *server;
	struct vma_tcp_export out;

	(void)state;
	establish_inspected(&client, &server);
	set_verdicts(VMA_TCP_DROP, VMA_TCP_RECV, VMA_TCP_DROP, VMA_TCP_RECV);
	fixture_send_bytes_and_run(client, 100);
	fixture_send_bytes_and_run(client, 100);
	assert_int_equal(vma_tcp_export_begin(server->conn, &out), -EBUSY);
	vma_tcp_inspect_received(server->conn, &inspector, 10);
	assert_int_equal(vma_tcp_export_begin(server->conn, &out), 0);
	assert_int_equal(out.unread, 100);
	assert_int_equal(out.rcv_nxt, server->conn->pcb->rcv_nxt);
	app_free(client);
}

#define INSPECT_CASE(f)                                                                                                \
	cmocka_unit_test_setup_teardown(f, setup_pair_with_memory_account, teardown_pair_with_memory_account)

static const struct CMUnitTest tests[] = {
        INSPECT_CASE(test_nothing_is_readable_before_it_was_inspected),
        INSPECT_CASE(test_dropped_bytes_are_read_bytes),
        INSPECT_CASE(test_window_closes_while_nobody_inspects),
        INSPECT_CASE(test_held_pieces_fill_the_buffer_until_they_are_back),
        INSPECT_CASE(test_received_dropped_and_held_in_turn),
        INSPECT_CASE(test_turn_is_bounded_and_says_that_there_is_more),
        INSPECT_CASE(test_fin_is_told_after_what_came_before_it),
        INSPECT_CASE(test_fin_alone_is_told_at_once),
        INSPECT_CASE(test_close_during_a_verdict_of_drop_sends_fin),
        INSPECT_CASE(test_close_during_a_verdict_of_hold_sends_fin),
        INSPECT_CASE(test_close_during_a_verdict_of_receive_sends_rst),
        INSPECT_CASE(test_owner_that_leaves_during_a_verdict_does_not_reset),
        INSPECT_CASE(test_inspector_that_ends_leaves_the_rest_to_the_next),
        INSPECT_CASE(test_close_by_an_inspector_that_ends_sends_fin),
        INSPECT_CASE(test_close_before_anybody_inspected_sends_rst),
        INSPECT_CASE(test_connection_is_inspected_from_its_first_byte),
        INSPECT_CASE(test_inspection_ends_when_nothing_waits),
        INSPECT_CASE(test_urgent_byte_is_one_of_the_stream),
        INSPECT_CASE(test_small_pieces_beyond_the_bound_cannot_be_held),
        INSPECT_CASE(test_what_waits_is_bounded_and_comes_all_the_same),
        INSPECT_CASE(test_connection_that_ends_drops_what_waits),
        INSPECT_CASE(test_export_waits_for_the_inspector),
};

VMA_TEST_MAIN(tests)
