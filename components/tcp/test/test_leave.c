/* The end of a process in good order: what is left of closed connections, and what the peers hear. */
#include "raw.h"

static unsigned ring_has_flow_of_connection(int i, const struct app *app)
{
	struct vma_flow_key key;

	vma_tcp_conn_key(app->conn, &key);
	return vma_ring_find_first_flow_of_key(side[i].ring, &key) != NULL;
}

static void test_parting_lasts_until_the_peer_has_closed_too(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	assert_false(vma_tcp_has_orphans(side[0].tcp));
	vma_tcp_close(client->conn, false);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_state(client->conn), TCP_FIN_WAIT2);
	assert_false(vma_tcp_is_busy(side[0].tcp));
	assert_true(vma_tcp_has_orphans(side[0].tcp));
	vma_tcp_close(server->conn, false);
	fixture_run_for_ns(MS);
	assert_false(vma_tcp_has_orphans(side[0].tcp));
	assert_false(vma_tcp_has_orphans(side[1].tcp));
	app_free(client);
}

static void test_what_the_peer_has_not_closed_is_left_without_a_word(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	vma_tcp_close(client->conn, false);
	fixture_run_for_ns(MS);
	vma_tcp_end_all_connections_at_exit(side[0].tcp);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_state(client->conn), TCP_CLOSE);
	assert_int_equal(ring_has_flow_of_connection(0, client), 0);
	assert_int_equal(vma_tcp_state(server->conn), TCP_CLOSE_WAIT);
	assert_int_equal(vma_tcp_error(server->conn), 0);
	app_free(client);
}

static void test_time_wait_is_left(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	vma_tcp_close(client->conn, false);
	vma_tcp_close(server->conn, false);
	fixture_run_for_ns(MS);
	assert_int_equal(ring_has_flow_of_connection(0, client), 1);
	vma_tcp_end_all_connections_at_exit(side[0].tcp);
	assert_int_equal(ring_has_flow_of_connection(0, client), 0);
	app_free(client);
}

/* ---- who goes on ---- */

static struct vma_flow_minisock left[8];
static unsigned minisocks_left_n;

static int fake_minisock_export_record(struct vma_nic_qp *qp, const struct vma_flow_minisock *minisocks, unsigned n)
{
	(void)qp;
	assert_true(minisocks_left_n + n <= 8);
	memcpy(left + minisocks_left_n, minisocks, n * sizeof(*minisocks));
	minisocks_left_n += n;
	return 0;
}

static int fake_minisock_export_fails(struct vma_nic_qp *qp, const struct vma_flow_minisock *minisocks, unsigned n)
{
	(void)qp, (void)minisocks, (void)n;
	return -EPIPE;
}

static void leave_at_exit_with_fake_minisock_export(int i, int (*export)(struct vma_nic_qp *,
                                                                         const struct vma_flow_minisock *, unsigned))
{
	struct vma_nic_qp *qp = vma_ring_qp(side[i].ring);
	const struct vma_nic_ops *ops = qp->ops;
	struct vma_nic_ops with_minisocks = *ops;

	with_minisocks.minisock_export = export;
	minisocks_left_n = 0;
	qp->ops = &with_minisocks;
	vma_tcp_end_all_connections_at_exit(side[i].tcp);
	qp->ops = ops;
}

/* The device's owner outlives this side. */
static void leave_at_exit_recording_minisocks(int i)
{
	leave_at_exit_with_fake_minisock_export(i, fake_minisock_export_record);
}

/* The connecting side has a rule of the NIC's, whose owner sees to it; the accepting side has none yet. */
static void test_peers_of_unfinished_connections_without_rule_are_reset(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	leave_at_exit_recording_minisocks(0);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_state(client->conn), TCP_ESTABLISHED);
	assert_int_equal(vma_tcp_state(server->conn), TCP_ESTABLISHED);
	leave_at_exit_recording_minisocks(1);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_error(client->conn), ECONNRESET);
	app_free(client);
}

static void test_without_an_owner_peers_of_all_unfinished_connections_are_reset(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	vma_tcp_end_all_connections_at_exit(side[0].tcp);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_error(server->conn), ECONNRESET);
	assert_int_equal(ring_has_flow_of_connection(0, client), 0);
	app_free(client);
}

static void test_if_the_owner_has_gone_peers_of_unfinished_connections_are_reset(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	leave_at_exit_with_fake_minisock_export(0, fake_minisock_export_fails);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_error(server->conn), ECONNRESET);
	assert_int_equal(ring_has_flow_of_connection(0, client), 0);
	app_free(client);
}

static void test_if_there_is_no_memory_to_tell_the_owner_peers_of_unfinished_connections_are_reset(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	fixture_alloc_bytes_fails = true;
	leave_at_exit_recording_minisocks(0);
	fixture_alloc_bytes_fails = false;
	assert_int_equal(minisocks_left_n, 0);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_error(server->conn), ECONNRESET);
	app_free(client);
}

static void check_one_minisock_was_exported(const struct app *app, enum vma_minisock_state state)
{
	struct vma_flow_key key;

	vma_tcp_conn_key(app->conn, &key);
	assert_int_equal(minisocks_left_n, 1);
	assert_memory_equal(&left[0].key, &key, sizeof(key));
	assert_int_equal(left[0].state, state);
}

static void test_the_owner_waits_for_the_end_of_a_peer_that_has_not_closed(void **state)
{
	struct app *client, *server;
	uint32_t snd_nxt, rcv_nxt;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	vma_tcp_close(client->conn, false);
	fixture_run_for_ns(MS);
	leave_at_exit_recording_minisocks(0);
	check_one_minisock_was_exported(client, VMA_MINISOCK_FIN_WAIT);
	snd_nxt = left[0].snd_nxt;
	rcv_nxt = left[0].rcv_nxt;
	leave_at_exit_recording_minisocks(1); /* the other side has the same numbers, the other way round */
	check_one_minisock_was_exported(server, VMA_MINISOCK_RESET);
	assert_int_equal(left[0].rcv_nxt, snd_nxt);
	assert_int_equal(left[0].snd_nxt, rcv_nxt);
	app_free(client);
}

static void test_the_owner_goes_on_with_time_wait(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	vma_tcp_close(client->conn, false);
	vma_tcp_close(server->conn, false);
	fixture_run_for_ns(MS);
	leave_at_exit_recording_minisocks(0);
	check_one_minisock_was_exported(client, VMA_MINISOCK_TIME_WAIT);
	app_free(client);
}

static void test_the_owner_resets_what_is_not_finished(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	leave_at_exit_recording_minisocks(0);
	check_one_minisock_was_exported(client, VMA_MINISOCK_RESET);
	app_free(client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup_teardown(test_parting_lasts_until_the_peer_has_closed_too, fixture_open,
	                                        fixture_close),
	        cmocka_unit_test_setup_teardown(test_what_the_peer_has_not_closed_is_left_without_a_word, fixture_open,
	                                        fixture_close),
	        cmocka_unit_test_setup_teardown(test_time_wait_is_left, fixture_open, fixture_close),
	        cmocka_unit_test_setup_teardown(test_peers_of_unfinished_connections_without_rule_are_reset,
	                                        fixture_open, fixture_close),
	        cmocka_unit_test_setup_teardown(test_without_an_owner_peers_of_all_unfinished_connections_are_reset,
	                                        fixture_open, fixture_close),
	        cmocka_unit_test_setup_teardown(test_if_the_owner_has_gone_peers_of_unfinished_connections_are_reset,
	                                        fixture_open, fixture_close),
	        cmocka_unit_test_setup_teardown(
	                test_if_there_is_no_memory_to_tell_the_owner_peers_of_unfinished_connections_are_reset,
	                fixture_open, fixture_close),
	        cmocka_unit_test_setup_teardown(test_the_owner_waits_for_the_end_of_a_peer_that_has_not_closed,
	                                        fixture_open, fixture_close),
	        cmocka_unit_test_setup_teardown(test_the_owner_goes_on_with_time_wait, fixture_open, fixture_close),
	        cmocka_unit_test_setup_teardown(test_the_owner_resets_what_is_not_finished, fixture_open,
	                                        fixture_close),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
