/* A connection between two stacks: how it begins, and data on both paths. */
#include "fixture.h"

static void test_handshake_makes_a_connection_on_both_sides(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	assert_true(fixture_take_app_events(client) & VMA_TCP_CONNECTED);
	assert_true(fixture_take_app_events(server) & VMA_TCP_CONNECTED);
	assert_int_equal(fixture_wire_frames_sent(0), 2); /* SYN, ACK */
	assert_int_equal(fixture_wire_frames_sent(1), 1); /* SYN-ACK */
	assert_int_equal(fixture_poll_events_of_app(client), EPOLLOUT | EPOLLWRNORM);
	app_free(client);
}

static void test_bytes_go_both_ways(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	fixture_transfer_and_check_bytes(client, server, 100000, SEC);
	fixture_transfer_and_check_bytes(server, client, 100000, SEC);
	fixture_transfer_and_check_bytes(client, server, 1, SEC);
	app_free(client);
}

/* The simulation does more of this, by seed; here it is short enough to be looked at. */
static void test_bytes_arrive_in_order_over_a_bad_wire(void **state)
{
	struct vma_wire_faults bad = {.seed = 7,
	                              .loss_ppm = 30000,
	                              .duplicate_ppm = 20000,
	                              .reorder_ppm = 50000,
	                              .corrupt_ppm = 10000,
	                              .delay_ns = 2 * MS,
	                              .jitter_ns = MS};
	struct vma_wire_faults none = {0};
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	fixture_set_wire_faults(0, bad);
	bad.seed = 8;
	fixture_set_wire_faults(1, bad);
	fixture_transfer_and_check_bytes(client, server, 500000, 100 * SEC);
	fixture_transfer_and_check_bytes(server, client, 500000, 100 * SEC);
	assert_true(fixture_stack_counts(0).retransmits > 0);
	fixture_set_wire_faults(0, none);
	fixture_set_wire_faults(1, none);
	fixture_run_for_ns(SEC);
	app_free(client);
}

/*
 * Both sides look at the wire now and then, and then find much: what has come in one burst behind several holes is
 * reported whole, or the sender repeats what has arrived.
 */
static void test_only_what_is_lost_is_sent_again(void **state)
{
	const struct vma_wire_faults lossy = {.seed = 7, .loss_ppm = 10000, .delay_ns = MS / 10}, none = {0};
	const struct vma_wire_faults lossless = {.delay_ns = MS / 10};
	struct app *client, *server;
	struct vma_wire_counts wire;
	size_t sent = 0, got = 0;
	const size_t all = 20 << 20;

	(void)state;
	side[0].options.congestion = VMA_TCP_CC_NONE;
	side[0].options.sndbuf = side[1].options.rcvbuf = 1400000;
	fixture_set_wire_faults(0, lossless);
	fixture_set_wire_faults(1, lossless);
	fixture_listen_on(1);
	client = fixture_connect_from(0, 1000);
	fixture_run_for_ns(MS);
	server = fixture_last_accepted();
	server->conn->rtt.min_ns = 10 * MS; /* or the ring's depth would bound the window */
	fixture_set_wire_faults(0, lossy);
	fixture_set_wire_faults(1, lossy);
	for (unsigned turn = 0; got < all && turn < 100000; turn++, fixture_now_ns += 20000) {
		vma_wire_drive_both_ends(side[0].nic);
		while (vma_ring_progress(side[1].ring) > 0)
			got += read_bytes(server, all);
		vma_wire_drive_both_ends(side[0].nic);
		sent += fixture_send_bytes(client, all - sent < 60000 ? all - sent : 60000);
		vma_ring_progress(side[0].ring);
	}
	assert_int_equal(got, all);
	vma_wire_read_counters(side[0].nic, &wire);
	assert_true(wire.lost > 100);
	assert_true(fixture_stack_counts(0).retransmits <= wire.lost + 3); /* the end's probes */
	fixture_set_wire_faults(0, none);
	fixture_set_wire_faults(1, none);
	app_free(client);
}

static void test_connection_lives_through_lack_of_memory(void **state)
{
	struct app *client, *server;
	size_t sent;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	sent = fixture_send_bytes(client, 20000);
	assert_true(sent > 0);
	fixture_run_for_ns(MS);
	assert_int_equal(read_bytes(server, sent), sent);
	sent = send_flags(client, 20000, VMA_TCP_TX_LATER);
	fixture_alloc_fails = true;
	vma_tcp_send_committed(client->conn);
	fixture_run_for_ns(300 * MS);
	fixture_alloc_fails = false;
	fixture_run_for_ns(10 * SEC);
	assert_int_equal(read_bytes(server, 100000), sent);
	fixture_transfer_and_check_bytes(server, client, 50000, 10 * SEC);
	app_free(client);
}

static void test_no_memory_for_a_connection_is_enomem(void **state)
{
	struct vma_tcp_path path = fixture_path_to_peer_of(0, 1500);
	struct app app = {0};

	(void)state;
	fixture_alloc_fails = true;
	assert_int_equal(fixture_connect_rc(0, 1000, PORT, &path, &app), -ENOMEM);
	fixture_alloc_fails = false;
	assert_null(app.conn);
}

static void test_names_in_use_are_eaddrinuse(void **state)
{
	struct vma_tcp_path path = fixture_path_to_peer_of(0, 1500);
	struct app *client, *server, app = {0};
	struct vma_flow_key names;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	assert_int_equal(fixture_connect_rc(0, 1000, PORT, &path, &app), -EADDRINUSE);
	vma_tcp_conn_key(client->conn, &names);
	assert_int_equal(ntohs(names.local_port_be), 1000);
	assert_int_equal(ntohs(names.peer_port_be), PORT);
	assert_ptr_equal(vma_tcp_conn_current_stack(client->conn), side[0].tcp);
	app_free(client);
}

static void test_idle_stack_has_nothing_to_do(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	fixture_transfer_and_check_bytes(client, server, 10000, SEC);
	fixture_run_for_ns(10 * SEC);
	assert_true(vma_tcp_next_due_ns(side[0].tcp) == UINT64_MAX);
	assert_true(vma_tcp_next_due_ns(side[1].tcp) == UINT64_MAX);
	assert_false(vma_tcp_is_busy(side[0].tcp));
	fixture_send_bytes(client, 1);
	assert_true(vma_tcp_is_busy(side[0].tcp));
	fixture_run_for_ns(SEC);
	assert_false(vma_tcp_is_busy(side[0].tcp));
	app_free(client);
}

static void test_events_from_before_are_told_to_who_adopts(void **state)
{
	struct app *client, *server, late = {0};

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	fixture_send_bytes(client, 10);
	vma_tcp_shutdown(client->conn, SHUT_WR);
	fixture_run_for_ns(MS);
	vma_tcp_conn_set_owner_and_replay_events(server->conn, &fixture_app_conn_ops, &late);
	assert_int_equal(late.events & (VMA_TCP_CONNECTED | VMA_TCP_READABLE | VMA_TCP_PEER_CLOSED),
	                 VMA_TCP_CONNECTED | VMA_TCP_READABLE | VMA_TCP_PEER_CLOSED);
	vma_tcp_conn_set_owner_and_replay_events(server->conn, &fixture_app_conn_ops, server);
	app_free(client);
}

static void test_reference_keeps_a_connection_that_has_ended(void **state)
{
	struct app *client, *server;
	struct vma_tcp_conn *conn;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	conn = client->conn;
	vma_tcp_conn_get(conn);
	app_free(client);
	fixture_run_for_ns(SEC);
	assert_int_equal(vma_tcp_state(conn), TCP_CLOSE);
	vma_tcp_conn_put(conn);
}

static struct vma_tcp_conn *retired_conn_kept;
static unsigned retired_conns_kept_n;

static void connection_retire_keep(struct vma_tcp_conn *conn, void *arg)
{
	(void)arg;
	retired_conn_kept = conn;
	retired_conns_kept_n++;
}

/* As a thread does that was about to send when another one closed the socket. */
static void test_call_after_the_last_reference_ends_nothing_twice(void **state)
{
	struct app *client, *server;

	(void)state;
	side[0].tcp->host.retire = connection_retire_keep;
	retired_conns_kept_n = 0;
	fixture_establish_connection_pair(&client, &server);
	vma_tcp_close(client->conn, true);
	app_free(client);
	fixture_run_until_idle();
	assert_int_equal(retired_conns_kept_n, 1);
	vma_tcp_send_committed(retired_conn_kept);
	fixture_run_until_idle();
	assert_int_equal(retired_conns_kept_n, 1);
	assert_true(vma_tcp_is_empty(side[0].tcp));
	vma_tcp_conn_free(retired_conn_kept);
}

static const struct CMUnitTest tests[] = {
        CASE(test_handshake_makes_a_connection_on_both_sides),
        CASE(test_bytes_go_both_ways),
        CASE(test_bytes_arrive_in_order_over_a_bad_wire),
        CASE(test_only_what_is_lost_is_sent_again),
        CASE(test_connection_lives_through_lack_of_memory),
        CASE(test_no_memory_for_a_connection_is_enomem),
        CASE(test_names_in_use_are_eaddrinuse),
        CASE(test_idle_stack_has_nothing_to_do),
        CASE(test_events_from_before_are_told_to_who_adopts),
        CASE(test_reference_keeps_a_connection_that_has_ended),
        CASE(test_call_after_the_last_reference_ends_nothing_twice),
};
VMA_TEST_MAIN(tests)
