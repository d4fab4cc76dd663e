/* What is left of a connection that this side has closed first: answers, its end, and its names used again. */
#include "raw.h"

/* The raw peer's connection is in TIME_WAIT: both FINs have gone and are acknowledged. Theirs next: 2, mine: 2. */
static void bring_raw_connection_into_timewait(void)
{
	struct app *app = stack_connects_to_raw_peer();

	vma_tcp_close(app->conn, false);
	fixture_run_until_idle();
	raw_next_segment();
	raw_send_segment(1, 2, TCP_FIN | TCP_ACK, "", 0);
	assert_int_equal(raw_next_segment()->ack, 2);
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSE);
	app_free(app);
	fixture_run_for_ns(0);
}

static int reconnect_with_same_ports(struct app *app)
{
	struct vma_tcp_path path = fixture_path_to_peer_of(0, 1500);

	return fixture_connect_rc(0, 1000, RAW_PORT, &path, app);
}

static void test_repeated_fin_is_acknowledged(void **state)
{
	(void)state;
	bring_raw_connection_into_timewait();
	raw_send_segment(1, 2, TCP_FIN | TCP_ACK, "", 0);
	assert_int_equal(raw_unseen_count(), 1);
	assert_int_equal(raw.log[raw.seen].ack, 2);
	assert_int_equal(raw_next_segment()->seq, 2);
}

static void test_it_is_told_of_by_address_and_port(void **state)
{
	struct vma_tcp_closed closed[2];
	uint8_t elsewhere[4] = {192, 0, 2, 1};
	struct vma_tcp *tcp = side[0].tcp;
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	assert_int_equal(vma_tcp_list_one_closed_conn_per_address(tcp, NULL, htons(1000), closed, 2), 0); /* open */
	vma_tcp_close(app->conn, false);
	fixture_run_until_idle();
	raw_next_segment();
	assert_int_equal(vma_tcp_list_one_closed_conn_per_address(tcp, side[0].ip, htons(1000), closed, 2),
	                 1); /* on the way */
	raw_send_segment(1, 2, TCP_FIN | TCP_ACK, "", 0);
	raw_next_segment();
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSE);
	app_free(app);
	fixture_run_for_ns(0);
	assert_int_equal(vma_tcp_list_one_closed_conn_per_address(tcp, NULL, htons(1000), closed, 2), 1);
	assert_int_equal(closed[0].key.peer_port_be, htons(RAW_PORT));
	assert_int_equal(closed[0].rcv_nxt, RAW_ISN + 2);
	assert_int_equal(vma_tcp_list_one_closed_conn_per_address(tcp, elsewhere, htons(1000), closed, 2), 0);
	assert_int_equal(vma_tcp_list_one_closed_conn_per_address(tcp, NULL, htons(1001), closed, 2), 0);
	fixture_run_for_ns(61 * SEC);
	assert_int_equal(vma_tcp_list_one_closed_conn_per_address(tcp, NULL, htons(1000), closed, 2), 0);
}

static void test_names_are_free_after_a_minute(void **state)
{
	struct app app = {0};

	(void)state;
	bring_raw_connection_into_timewait();
	assert_int_equal(reconnect_with_same_ports(&app), -EADDRINUSE);
	fixture_run_for_ns(59 * SEC);
	assert_int_equal(reconnect_with_same_ports(&app), -EADDRINUSE);
	fixture_run_for_ns(2 * SEC);
	assert_int_equal(reconnect_with_same_ports(&app), 0);
	vma_tcp_conn_drop_owner_and_abort(app.conn);
	vma_tcp_conn_put(app.conn);
}

static unsigned count_conns_in_timewait(unsigned n)
{
	struct vma_flow_key key = {
	        .family = AF_INET, .proto = IPPROTO_TCP, .peer_port_be = htons(PORT), .local_port_be = 0};
	unsigned count = 0;

	memcpy(key.local, side[0].ip, 16);
	memcpy(key.peer, side[1].ip, 16);
	for (unsigned i = 0; i < n; i++) {
		key.local_port_be = htons((uint16_t)(1000 + i));
		count += vma_ring_find_first_flow_of_key(side[0].ring, &key) != NULL;
	}
	return count;
}

/* Taking back the NIC's rules of thousands at once would keep packets waiting. */
static void test_those_that_began_together_end_one_turn_after_the_other(void **state)
{
	struct app *client[48], *server;

	(void)state;
	for (unsigned i = 0; i < 48; i++)
		fixture_establish_connection_pair(&client[i], &server);
	for (unsigned i = 0; i < 48; i++)
		vma_tcp_close(client[i]->conn, false);
	fixture_run_until_idle();
	for (unsigned i = 0; i < 48; i++)
		vma_tcp_close(fixture_accepted[i]->conn, false);
	fixture_run_until_idle();
	for (unsigned i = 0; i < 48; i++)
		app_free(client[i]);
	fixture_run_for_ns(59 * SEC);
	assert_int_equal(count_conns_in_timewait(48), 48);
	fixture_now_ns += 2 * SEC;
	vma_ring_progress(side[0].ring);
	assert_true(count_conns_in_timewait(48) >= 48 - 16);
	fixture_run_for_ns(MS);
	assert_int_equal(count_conns_in_timewait(48), 0);
}

static void test_late_segment_prolongs_it(void **state)
{
	struct app app = {0};

	(void)state;
	bring_raw_connection_into_timewait();
	fixture_run_for_ns(50 * SEC);
	raw_send_segment(1, 2, TCP_FIN | TCP_ACK, "", 0);
	fixture_run_for_ns(50 * SEC);
	assert_int_equal(reconnect_with_same_ports(&app), -EADDRINUSE);
	fixture_run_for_ns(11 * SEC);
	assert_int_equal(reconnect_with_same_ports(&app), 0);
	vma_tcp_conn_drop_owner_and_abort(app.conn);
	vma_tcp_conn_put(app.conn);
}

static void test_reset_ends_it(void **state)
{
	struct app app = {0};

	(void)state;
	bring_raw_connection_into_timewait();
	raw_send_segment(1, 2, TCP_RST, "", 0); /* not the next number */
	assert_int_equal(reconnect_with_same_ports(&app), -EADDRINUSE);
	raw_send_segment(2, 2, TCP_RST, "", 0);
	assert_int_equal(reconnect_with_same_ports(&app), 0);
	vma_tcp_conn_drop_owner_and_abort(app.conn);
	vma_tcp_conn_put(app.conn);
}

/* As the kernel's, of a bound socket: time stamps and a number above the old ones are enough. */
static void test_a_port_that_was_asked_for_is_used_again_at_once_with_time_stamps(void **state)
{
	struct vma_tcp_path path = fixture_path_to_peer_of(0, 1500);
	struct vma_tcp_conn_attr attr = {.owner = &fixture_app_conn_ops,
	                                 .options = &side[0].options,
	                                 .path = path,
	                                 .family = AF_INET,
	                                 .local_port_be = htons(1000),
	                                 .peer_port_be = htons(RAW_PORT),
	                                 .port_is_bound = true};
	struct app app = {0};
	uint32_t old_isn;

	(void)state;
	attr.arg = &app;
	memcpy(attr.local, side[0].ip, 16);
	memcpy(attr.peer, side[1].ip, 16);
	bring_raw_connection_into_timewait();
	assert_int_equal(vma_tcp_connect(side[0].tcp, &attr, &app.conn), -EADDRINUSE);
	fixture_run_for_ns(61 * SEC);
	raw.ts = 1000;
	bring_raw_connection_into_timewait();
	old_isn = raw.their_isn;
	assert_int_equal(vma_tcp_connect(side[0].tcp, &attr, &app.conn), 0);
	fixture_run_until_idle();
	assert_int_equal(raw_next_segment()->flags, TCP_SYN);
	assert_int_equal(raw.their_isn - (old_isn + 2), 65535 + 2);
	vma_tcp_conn_drop_owner_and_abort(app.conn);
	vma_tcp_conn_put(app.conn);
}

/* The kernel's closed sockets wait for the peer's FIN as they do in TIME_WAIT. */
static void test_a_port_that_was_asked_for_is_used_again_while_the_peer_has_not_closed(void **state)
{
	struct vma_tcp_conn_attr attr = {.owner = &fixture_app_conn_ops,
	                                 .options = &side[0].options,
	                                 .path = fixture_path_to_peer_of(0, 1500),
	                                 .family = AF_INET,
	                                 .port_is_bound = true};
	struct app app = {0}, *before;
	struct vma_flow_key key;
	uint32_t old_isn;

	(void)state;
	raw.ts = 1000;
	before = stack_connects_to_raw_peer();
	vma_tcp_conn_key(before->conn, &key);
	attr.arg = &app;
	memcpy(attr.local, key.local, 16);
	memcpy(attr.peer, key.peer, 16);
	attr.local_port_be = key.local_port_be;
	attr.peer_port_be = key.peer_port_be;
	assert_int_equal(vma_tcp_connect(side[0].tcp, &attr, &app.conn), -EADDRINUSE);
	vma_tcp_close(before->conn, false);
	fixture_run_until_idle();
	raw_next_segment();
	assert_int_equal(vma_tcp_connect(side[0].tcp, &attr, &app.conn), -EADDRINUSE);
	raw_send_segment(1, 2, TCP_ACK, "", 0);
	assert_int_equal(vma_tcp_state(before->conn), TCP_FIN_WAIT2);
	old_isn = raw.their_isn;
	assert_int_equal(vma_tcp_connect(side[0].tcp, &attr, &app.conn), 0);
	fixture_run_until_idle();
	assert_int_equal(raw_next_segment()->flags, TCP_SYN);
	assert_int_equal(raw.their_isn - (old_isn + 2), 65535 + 2);
	assert_int_equal(vma_tcp_state(before->conn), TCP_CLOSE);
	vma_tcp_conn_drop_owner_and_abort(app.conn);
	vma_tcp_conn_put(app.conn);
	app_free(before);
}

/* RFC 6191, as the kernel's tcp_tw_reuse: time stamps tell the connections apart after a second. */
static void test_names_are_used_again_after_a_second_with_time_stamps(void **state)
{
	struct app app = {0};
	uint32_t old_isn;

	(void)state;
	raw.ts = 1000;
	bring_raw_connection_into_timewait();
	old_isn = raw.their_isn;
	assert_int_equal(reconnect_with_same_ports(&app), -EADDRINUSE);
	fixture_run_for_ns(1100 * MS);
	assert_int_equal(reconnect_with_same_ports(&app), 0);
	fixture_run_until_idle();
	assert_int_equal(raw_next_segment()->flags, TCP_SYN);
	assert_int_equal(raw.their_isn - (old_isn + 2), 65535 + 2);
	vma_tcp_conn_drop_owner_and_abort(app.conn);
	vma_tcp_conn_put(app.conn);
}

/* For who has no other port left: the numbers alone tell the connections apart. */
static void test_the_oldest_is_used_again_soon_without_time_stamps_where_that_is_asked_for(void **state)
{
	struct vma_tcp_conn_attr attr = {.owner = &fixture_app_conn_ops,
	                                 .options = &side[0].options,
	                                 .path = fixture_path_to_peer_of(0, 1500),
	                                 .family = AF_INET,
	                                 .peer_port_be = htons(RAW_PORT),
	                                 .time_wait_ends = true};
	struct app app = {0};
	uint32_t old_isn;

	(void)state;
	attr.arg = &app;
	memcpy(attr.local, side[0].ip, 16);
	memcpy(attr.peer, side[1].ip, 16);
	assert_int_equal(vma_tcp_oldest_timewait_port(side[0].tcp, &attr), 0);
	bring_raw_connection_into_timewait();
	old_isn = raw.their_isn;
	assert_int_equal(vma_tcp_oldest_timewait_port(side[0].tcp, &attr), 0); /* too new */
	attr.local_port_be = htons(1000);
	assert_int_equal(vma_tcp_connect(side[0].tcp, &attr, &app.conn), -EADDRINUSE);
	fixture_run_for_ns(260 * MS);
	assert_int_equal(vma_tcp_oldest_timewait_port(side[0].tcp, &attr), htons(1000));
	attr.peer_port_be ^= 1;
	assert_int_equal(vma_tcp_oldest_timewait_port(side[0].tcp, &attr), 0); /* another peer's */
	attr.peer_port_be ^= 1;
	attr.time_wait_ends = false;
	assert_int_equal(vma_tcp_connect(side[0].tcp, &attr, &app.conn), -EADDRINUSE);
	attr.time_wait_ends = true;
	assert_int_equal(vma_tcp_connect(side[0].tcp, &attr, &app.conn), 0);
	fixture_run_until_idle();
	assert_int_equal(raw_next_segment()->flags, TCP_SYN);
	assert_int_equal(raw.their_isn - (old_isn + 2), 65535 + 2);
	vma_tcp_conn_drop_owner_and_abort(app.conn);
	vma_tcp_conn_put(app.conn);
}

/* A program that went from one service to the next has thousands of these, for a minute. */
static void test_the_oldest_is_found_behind_many_of_another_service(void **state)
{
	struct vma_tcp_conn_attr attr = {.family = AF_INET, .peer_port_be = htons(RAW_PORT)};

	(void)state;
	memcpy(attr.local, side[0].ip, 16);
	memcpy(attr.peer, side[1].ip, 16);
	fixture_listen_on(1);
	for (uint16_t port = 2000; port < 2100; port++) {
		struct app *client = fixture_connect_from(0, port), *server;

		fixture_run_for_ns(MS);
		server = fixture_last_accepted();
		vma_tcp_close(client->conn, false);
		fixture_run_for_ns(MS);
		vma_tcp_close(server->conn, false);
		fixture_run_for_ns(MS);
		app_free(client);
		app_free(server);
		fixture_accepted_count--;
	}
	fixture_run_for_ns(260 * MS);
	assert_int_equal(vma_tcp_oldest_timewait_port(side[0].tcp, &attr), 0);
	bring_raw_connection_into_timewait();
	assert_int_equal(fixture_stack_counts(0).time_waits, 101);
	assert_int_equal(vma_tcp_oldest_timewait_port(side[0].tcp, &attr), 0);
	fixture_run_for_ns(260 * MS);
	assert_int_equal(vma_tcp_oldest_timewait_port(side[0].tcp, &attr), htons(1000));
	attr.peer_port_be = htons(PORT);
	assert_int_equal(vma_tcp_oldest_timewait_port(side[0].tcp, &attr),
	                 htons(2000)); /* it is looked for from the first again */
	fixture_run_for_ns(62 * SEC);
	assert_int_equal(vma_tcp_oldest_timewait_port(side[0].tcp, &attr), 0);
}

static void test_new_request_opens_it_again_with_a_listener(void **state)
{
	struct app *server;
	uint32_t old_isn;

	(void)state;
	fixture_listen_on(0);
	raw_send_syn_to_listener(0);
	raw_next_segment();
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	server = fixture_last_accepted();
	vma_tcp_close(server->conn, false);
	fixture_run_until_idle();
	raw_next_segment();
	raw_send_segment(1, 2, TCP_FIN | TCP_ACK, "", 0);
	assert_int_equal(fixture_stack_counts(0).time_waits, 1);
	raw_mark_all_segments_seen();
	old_isn = raw.their_isn;
	raw_send_syn_to_listener(1); /* an old duplicate: not beyond what was received */
	assert_int_equal(raw_next_segment()->flags, TCP_ACK);
	raw_send_syn_to_listener(1000);
	assert_int_equal(raw_next_segment()->flags, TCP_SYN | TCP_ACK);
	assert_true(TCP_SEQ_GT(raw.their_isn, old_isn + 2));
	raw_send_segment(1001, 1, TCP_ACK, "", 0);
	assert_int_equal(fixture_accepted_count, 2);
}

static void test_many_connect_and_close_from_few_ports(void **state)
{
	(void)state;
	fixture_listen_on(1);
	for (int round = 0; round < 50; round++) {
		for (uint16_t port = 2000; port < 2010; port++) {
			struct app *client = fixture_connect_from(0, port), *server;

			fixture_run_for_ns(MS);
			server = fixture_last_accepted();
			vma_tcp_close(client->conn, false);
			fixture_run_for_ns(MS);
			vma_tcp_close(server->conn, false);
			fixture_run_for_ns(MS);
			assert_int_equal(vma_tcp_state(client->conn), TCP_CLOSE);
			assert_int_equal(vma_tcp_state(server->conn), TCP_CLOSE);
			app_free(client);
			app_free(server);
			fixture_accepted_count--;
		}
		fixture_run_for_ns(1100 * MS);
	}
	assert_int_equal(fixture_stack_counts(0).time_waits, 500);
}

static const struct CMUnitTest tests[] = {
        RAW_CASE(test_repeated_fin_is_acknowledged),
        RAW_CASE(test_it_is_told_of_by_address_and_port),
        RAW_CASE(test_names_are_free_after_a_minute),
        CASE(test_those_that_began_together_end_one_turn_after_the_other),
        RAW_CASE(test_late_segment_prolongs_it),
        RAW_CASE(test_reset_ends_it),
        RAW_CASE(test_a_port_that_was_asked_for_is_used_again_at_once_with_time_stamps),
        RAW_CASE(test_a_port_that_was_asked_for_is_used_again_while_the_peer_has_not_closed),
        RAW_CASE(test_names_are_used_again_after_a_second_with_time_stamps),
        RAW_CASE(test_the_oldest_is_used_again_soon_without_time_stamps_where_that_is_asked_for),
        RAW_CASE(test_the_oldest_is_found_behind_many_of_another_service),
        RAW_CASE(test_new_request_opens_it_again_with_a_listener),
        CASE(test_many_connect_and_close_from_few_ports),
};
VMA_TEST_MAIN(tests)
