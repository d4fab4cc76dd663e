/* Connections' rules of the NIC: asked for and given back without anybody waiting for it with the receive flag. */
#include "fixture.h"

static struct vma_nic_ops ops; /* of side 0's queue pair, with an eye on flows */
static const struct vma_nic_ops *wire_ops;
static unsigned flows_added_n, deleted, stack_prunes_n;
static int refusal;
static void (*while_nic_is_asked_hook)(void);

static int flow_add(struct vma_nic_qp *qp, const struct vma_flow_rule *rule)
{
	void (*run_it)(void) = while_nic_is_asked_hook;

	flows_added_n++;
	while_nic_is_asked_hook = NULL;
	if (run_it != NULL)
		run_it();
	return refusal != 0 ? refusal : wire_ops->flow_add(qp, rule);
}

static int flow_del(struct vma_nic_qp *qp, const struct vma_flow_key *key)
{
	deleted++;
	return wire_ops->flow_del(qp, key);
}

static void count_prune_requests(void *arg)
{
	(void)arg;
	stack_prunes_n++;
}

static int fixture_open_nic_flows_watched(void **state)
{
	struct vma_nic_qp *qp;

	fixture_open(state);
	qp = vma_ring_qp(side[0].ring);
	wire_ops = qp->ops;
	ops = *wire_ops;
	ops.flow_add = flow_add;
	ops.flow_del = flow_del;
	qp->ops = &ops;
	side[0].tcp->host.prune = count_prune_requests;
	flows_added_n = deleted = stack_prunes_n = 0;
	refusal = 0;
	while_nic_is_asked_hook = NULL;
	return 0;
}

static void test_the_end_of_a_connection_asks_the_nic_for_nothing(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	assert_int_equal(flows_added_n, 1);
	vma_tcp_close(client->conn, true);
	app_free(client);
	fixture_run_for_ns(MS);
	assert_int_equal(deleted, 0);
	assert_int_equal(stack_prunes_n, 1);
	assert_false(vma_ring_delete_stale_nic_rules(side[0].ring, 16, UINT64_MAX, NULL));
	assert_int_equal(deleted, 1);
}

static void test_the_end_of_time_wait_neither(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	vma_tcp_close(client->conn, false);
	app_free(client);
	fixture_run_for_ns(MS);
	vma_tcp_close(server->conn, false);
	fixture_run_for_ns(SEC);
	assert_int_equal(stack_prunes_n, 0); /* the rule is TIME_WAIT's */
	fixture_run_for_ns(61 * SEC);
	assert_int_equal(stack_prunes_n, 1);
	assert_int_equal(deleted, 0);
	assert_false(vma_ring_delete_stale_nic_rules(side[0].ring, 16, UINT64_MAX, NULL));
	assert_int_equal(deleted, 1);
}

static void test_a_host_without_the_time_has_it_done_at_once(void **state)
{
	struct app *client, *server;

	(void)state;
	side[0].tcp->host.prune = NULL;
	fixture_establish_connection_pair(&client, &server);
	vma_tcp_close(client->conn, true);
	app_free(client);
	fixture_run_for_ns(MS);
	assert_int_equal(deleted, 1);
}

static void test_a_stack_that_ends_leaves_no_rule(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	vma_tcp_close(client->conn, true);
	app_free(client);
	fixture_run_for_ns(MS);
	vma_tcp_end_all_connections_at_exit(side[0].tcp);
	assert_int_equal(deleted, 1);
}

static struct app *other[2];

static void transfer_meanwhile(void)
{
	fixture_transfer_and_check_bytes(other[0], other[1], 100000, SEC);
}

static void test_other_connections_go_on_while_the_nic_is_asked_for_a_rule(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&other[0], &other[1]);
	while_nic_is_asked_hook = transfer_meanwhile;
	fixture_establish_connection_pair(&client, &server);
	assert_null(while_nic_is_asked_hook);
	app_free(client);
	app_free(other[0]);
}

static struct app app_of_crossing_connection;

static void peer_connects_meanwhile(void)
{
	struct vma_tcp_path path = fixture_path_to_peer_of(1, side[1].nic->info.mtu);

	app_of_crossing_connection = (struct app){0};
	assert_int_equal(fixture_connect_rc(1, 7000, PORT, &path, &app_of_crossing_connection), 0);
	fixture_run_until_idle();
}

static void test_what_comes_before_the_syn_is_sent_does_no_harm(void **state)
{
	struct vma_tcp_path path = fixture_path_to_peer_of(0, side[0].nic->info.mtu);
	struct app app = {0};

	(void)state;
	fixture_listen_on(0); /* whose rule brings it in */
	while_nic_is_asked_hook = peer_connects_meanwhile;
	assert_int_equal(fixture_connect_rc(0, PORT, 7000, &path, &app), 0);
	fixture_run_for_ns(5 * SEC);
	assert_int_equal(vma_tcp_state(app.conn), TCP_ESTABLISHED);
	assert_int_equal(vma_tcp_state(app_of_crossing_connection.conn), TCP_ESTABLISHED);
	vma_tcp_conn_drop_owner_and_abort(app_of_crossing_connection.conn);
	vma_tcp_conn_put(app_of_crossing_connection.conn);
	vma_tcp_conn_drop_owner_and_abort(app.conn);
	vma_tcp_conn_put(app.conn);
}

static void test_a_refused_rule_ends_the_attempt_and_a_second_one_meanwhile_finds_the_key_taken(void **state)
{
	struct vma_tcp_path path = fixture_path_to_peer_of(0, side[0].nic->info.mtu);
	struct app app = {0};

	(void)state;
	refusal = -ENOSPC;
	assert_int_equal(fixture_connect_rc(0, 6000, 7000, &path, &app), -ENOSPC);
	assert_int_equal(fixture_wire_frames_sent(0), 0);
	assert_int_equal(app.told, 0);
	refusal = 0;
	assert_int_equal(fixture_connect_rc(0, 6000, 7000, &path, &app), 0);
	assert_int_equal(fixture_connect_rc(0, 6000, 7000, &path, &(struct app){0}), -EADDRINUSE);
	vma_tcp_conn_drop_owner_and_abort(app.conn);
	vma_tcp_conn_put(app.conn);
}

static struct app *late;

static void connect_one_more_meanwhile(void)
{
	late = fixture_connect_from(1, 2000);
	fixture_run_for_ns(MS);
}

static void test_a_listener_that_closes_leaves_each_of_its_connections_a_rule(void **state)
{
	struct app *apps[8];

	(void)state;
	fixture_listen_on(0);
	for (uint16_t i = 0; i < 8; i++)
		apps[i] = fixture_connect_from(1, (uint16_t)(1000 + i));
	fixture_run_for_ns(MS);
	assert_int_equal(fixture_accepted_count, 8);
	assert_int_equal(flows_added_n, 1);
	while_nic_is_asked_hook = connect_one_more_meanwhile;
	vma_tcp_listener_close(fixture_listener);
	fixture_listener = NULL;
	assert_int_equal(vma_tcp_error(late->conn), ECONNREFUSED);
	assert_int_equal(fixture_accepted_count, 8);
	assert_int_equal(flows_added_n, 1 + 8);
	assert_int_equal(deleted, 1); /* the listener's, at once: its port may be somebody else's now */
	for (unsigned i = 0; i < 8; i++)
		app_free(apps[i]);
	app_free(late);
}

#define NIC_FLOWS_WATCHED_CASE(name)                                                                                   \
	cmocka_unit_test_setup_teardown(name, fixture_open_nic_flows_watched, fixture_close)
static const struct CMUnitTest tests[] = {
        NIC_FLOWS_WATCHED_CASE(test_the_end_of_a_connection_asks_the_nic_for_nothing),
        NIC_FLOWS_WATCHED_CASE(test_the_end_of_time_wait_neither),
        NIC_FLOWS_WATCHED_CASE(test_a_listener_that_closes_leaves_each_of_its_connections_a_rule),
        NIC_FLOWS_WATCHED_CASE(test_a_host_without_the_time_has_it_done_at_once),
        NIC_FLOWS_WATCHED_CASE(test_a_stack_that_ends_leaves_no_rule),
        NIC_FLOWS_WATCHED_CASE(test_other_connections_go_on_while_the_nic_is_asked_for_a_rule),
        NIC_FLOWS_WATCHED_CASE(test_what_comes_before_the_syn_is_sent_does_no_harm),
        NIC_FLOWS_WATCHED_CASE(test_a_refused_rule_ends_the_attempt_and_a_second_one_meanwhile_finds_the_key_taken),
};
VMA_TEST_MAIN(tests)
