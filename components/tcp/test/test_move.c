/* A connection changes to the stack of another ring, in whatever it is doing, and the peer does not notice. */
#include <sys/socket.h>

#include "fixture.h"

/* What happens when the ring has a rule for a connection, and vma_tcp_conn_add_own_nic_rule does not know yet. */
static void (*after_ring_steer_hook)(void);
static int steer_then_call_hook(struct vma_ring *ring, struct vma_flow *flow)
{
	const int rc = vma_ring_request_nic_rule_of_flow(ring, flow);

	if (after_ring_steer_hook != NULL)
		after_ring_steer_hook();
	return rc;
}
#define vma_ring_request_nic_rule_of_flow steer_then_call_hook
#include "../conn.c"
#undef vma_ring_request_nic_rule_of_flow

static struct side other; /* on the interface of side 1 */

static int setup_three_rings(void **state)
{
	struct vma_tcp_attr requests = {.gro_streams_max = 16};

	fixture_open(state);
	other = (struct side){.nic = side[1].nic};
	side_open(&other, 1, &requests);
	return 0;
}

static int teardown_three_rings(void **state)
{
	for (unsigned i = 0; i < fixture_accepted_count; i++) {
		vma_tcp_conn_drop_owner_and_abort(fixture_accepted[i]->conn);
		vma_tcp_conn_put(fixture_accepted[i]->conn);
		free(fixture_accepted[i]);
	}
	fixture_accepted_count = 0;
	for (int i = 0; i < 10; i++) {
		fixture_run_until_idle();
		vma_ring_progress(other.ring);
	}
	vma_tcp_destroy(other.tcp);
	vma_ring_destroy(other.ring);
	return fixture_close(state);
}

static void run_three_rings_until_idle(void)
{
	for (int i = 0; i < 20; i++) {
		fixture_run_until_idle();
		vma_ring_progress(other.ring);
	}
}

/* Both ways, in one moment of the clock. */
static void exchange_both_ways(struct app *a, struct app *b, size_t n)
{
	assert_int_equal(fixture_send_bytes(a, n), n);
	run_three_rings_until_idle();
	assert_int_equal(read_bytes(b, n), n);
	assert_int_equal(fixture_send_bytes(b, n), n);
	run_three_rings_until_idle();
	assert_int_equal(read_bytes(a, n), n);
}

static uint64_t resets_and_retransmits_of_stacks(void)
{
	struct vma_tcp_counts mine, others;

	vma_tcp_read_counters(side[1].tcp, &mine);
	vma_tcp_read_counters(other.tcp, &others);
	return mine.resets_out + others.resets_out + mine.retransmits + others.retransmits;
}

static void test_a_moved_connection_goes_on_in_the_other_stack(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	assert_int_equal(vma_tcp_move_to_stack(server->conn, other.tcp), 0);
	assert_ptr_equal(vma_tcp_conn_current_stack(server->conn), other.tcp);
	exchange_both_ways(client, server, 3000);
	exchange_both_ways(client, server, 700);
	assert_null(side[1].tcp->all);
	assert_int_equal(resets_and_retransmits_of_stacks(), 0);
	app_free(client);
}

static void test_what_was_under_way_meanwhile_is_not_lost(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	assert_int_equal(fixture_send_bytes(client, 4000), 4000);
	vma_ring_progress(side[0].ring);
	vma_wire_drive_both_ends(side[0].nic); /* it lies at side 1, and its ring was not driven */
	assert_int_equal(vma_tcp_move_to_stack(server->conn, other.tcp), 0);
	run_three_rings_until_idle();
	assert_int_equal(read_bytes(server, 4000), 4000);
	exchange_both_ways(client, server, 100);
	assert_int_equal(resets_and_retransmits_of_stacks(), 0);
	app_free(client);
}

static void test_unread_bytes_move_along(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	assert_int_equal(fixture_send_bytes(client, 2000), 2000);
	fixture_run_until_idle();
	assert_int_equal(vma_tcp_move_to_stack(server->conn, other.tcp), 0);
	assert_int_equal(read_bytes(server, 2000), 2000);
	exchange_both_ways(client, server, 500);
	app_free(client);
}

static void test_one_with_its_own_rule_moves_with_it(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	assert_int_equal(vma_tcp_conn_add_own_nic_rule(server->conn), 0);
	assert_int_equal(vma_tcp_move_to_stack(server->conn, other.tcp), 0);
	assert_int_equal(vma_tcp_conn_add_own_nic_rule(server->conn), 0);
	exchange_both_ways(client, server, 500);
	assert_int_equal(vma_tcp_move_to_stack(server->conn, side[1].tcp), 0); /* and back */
	exchange_both_ways(client, server, 500);
	app_free(client);
}

static void test_its_timers_run_in_the_other_stack(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	assert_int_equal(fixture_send_bytes(client, 100), 100);
	fixture_run_until_idle(); /* its ACK is delayed */
	assert_int_equal(vma_tcp_move_to_stack(server->conn, other.tcp), 0);
	assert_true(vma_tcp_next_due_ns(other.tcp) != UINT64_MAX);
	fixture_now_ns += SEC;
	run_three_rings_until_idle();
	assert_int_equal(client->conn->pcb->unacked == NULL, 1);
	app_free(client);
}

static void test_a_near_peers_window_goes_by_the_ring_that_it_comes_to(void **state)
{
	struct app *client, *server;
	uint32_t before;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	server->conn->rtt.min_ns = MS / 10;
	exchange_both_ways(client, server, 3000);
	window_max_update(server->conn);
	before = atomic_load(&server->conn->window_max);
	vma_ring_qp(other.ring)->rx_depth /= 2;
	assert_int_equal(vma_tcp_move_to_stack(server->conn, other.tcp), 0);
	assert_int_equal(atomic_load(&server->conn->window_max), before / 2);
	vma_ring_qp(other.ring)->rx_depth *= 2;
	exchange_both_ways(client, server, 500);
	app_free(client);
}

/* ---- with a rule of its own ---- */

static struct vma_nic_ops hooked_ops;
static const struct vma_nic_ops *real_nic_ops;
static void (*move_nic_hook_action)(struct app *client, struct app *server);
static struct app *moving_client, *moving_server;
static int move_nic_hook_rc;

/* What happens while the NIC is asked: both rings go on. */
static int move_nic_flow_hook(struct vma_nic_qp *from, struct vma_nic_qp *to, const struct vma_flow_key *key)
{
	if (move_nic_hook_rc == 0)
		move_nic_hook_rc = real_nic_ops->flow_move(from, to, key);
	if (move_nic_hook_action != NULL)
		move_nic_hook_action(moving_client, moving_server);
	return move_nic_hook_rc;
}

static int move_server_while_hook_runs(struct app *client, struct app *server, int answer,
                                       void (*meanwhile)(struct app *client, struct app *server))
{
	struct vma_nic_qp *qp = vma_ring_qp(vma_tcp_ring(vma_tcp_conn_current_stack(server->conn)));
	struct vma_tcp *to = vma_tcp_conn_current_stack(server->conn) == other.tcp ? side[1].tcp : other.tcp;
	int rc;

	real_nic_ops = qp->ops;
	hooked_ops = *qp->ops;
	hooked_ops.flow_move = move_nic_flow_hook;
	qp->ops = &hooked_ops;
	move_nic_hook_action = meanwhile;
	moving_client = client;
	moving_server = server;
	move_nic_hook_rc = answer;
	rc = vma_tcp_move_to_stack(server->conn, to);
	qp->ops = real_nic_ops;
	return rc;
}

static void move_server_to_other_stack(struct app *server)
{
	struct vma_tcp *to = vma_tcp_conn_current_stack(server->conn) == other.tcp ? side[1].tcp : other.tcp;

	assert_int_equal(vma_tcp_move_to_stack(server->conn, to), 0);
	assert_ptr_equal(vma_tcp_conn_current_stack(server->conn), to);
}

/* As fixture_run_for_ns, with the third ring. */
static void fixture_run_three_rings(uint64_t ns)
{
	const uint64_t end = fixture_now_ns + ns;

	while (fixture_now_ns < end) {
		run_three_rings_until_idle();
		fixture_now_ns += MS < end - fixture_now_ns ? MS : end - fixture_now_ns;
	}
	run_three_rings_until_idle();
}

static void establish_pair_with_own_nic_rule(struct app **client, struct app **server)
{
	fixture_establish_connection_pair(client, server);
	assert_int_equal(vma_tcp_conn_add_own_nic_rule((*server)->conn), 0);
}

static void test_what_waits_for_an_acknowledgement_moves_along(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	assert_int_equal(fixture_send_bytes(server, 100), 100);
	vma_ring_progress(side[1].ring);
	assert_true(vma_tcp_is_busy(side[1].tcp));
	assert_int_equal(vma_tcp_move_to_stack(server->conn, other.tcp), 0);
	assert_false(vma_tcp_is_busy(side[1].tcp));
	assert_true(vma_tcp_is_busy(other.tcp));
	run_three_rings_until_idle();
	assert_int_equal(read_bytes(client, 100), 100);
	fixture_run_three_rings(SEC);
	assert_false(vma_tcp_is_busy(other.tcp));
	assert_int_equal(resets_and_retransmits_of_stacks(), 0);
	app_free(client);
}

/* As much each way as there is room for, and a move in each round, at a moment when neither side has read. */
static void test_a_hundred_moves_in_the_middle_of_a_stream_each_way(void **state)
{
	size_t sent[2] = {0}, got[2] = {0};
	struct app *client, *server;

	(void)state;
	establish_pair_with_own_nic_rule(&client, &server);
	for (int round = 0; round < 100; round++) {
		sent[0] += fixture_send_bytes(client, 40000);
		sent[1] += fixture_send_bytes(server, 40000);
		for (int i = 0; i < round % 4; i++) {
			vma_wire_drive_both_ends(side[0].nic);
			vma_ring_progress(side[round & 1].ring);
		}
		move_server_to_other_stack(server);
		got[0] += read_bytes(server, SIZE_MAX);
		got[1] += read_bytes(client, SIZE_MAX);
		fixture_run_three_rings(MS);
	}
	fixture_run_three_rings(100 * MS);
	got[0] += read_bytes(server, SIZE_MAX);
	got[1] += read_bytes(client, SIZE_MAX);
	assert_true(sent[0] > 1000000 && sent[1] > 1000000);
	assert_int_equal(got[0], sent[0]);
	assert_int_equal(got[1], sent[1]);
	assert_int_equal(resets_and_retransmits_of_stacks(), 0);
	assert_int_equal(fixture_stack_counts(0).retransmits, 0);
	app_free(client);
}

static void test_data_out_of_order_moves_along(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_pair_with_own_nic_rule(&client, &server);
	fixture_set_wire_faults(0, (struct vma_wire_faults){.loss_ppm = 1000000});
	assert_int_equal(fixture_send_bytes(client, 1000), 1000);
	run_three_rings_until_idle();
	fixture_set_wire_faults(0, (struct vma_wire_faults){0});
	assert_int_equal(fixture_send_bytes(client, 5000), 5000);
	vma_ring_progress(side[0].ring);
	vma_wire_drive_both_ends(side[0].nic);
	vma_ring_progress(side[1].ring);
	assert_non_null(server->conn->pcb->ooseq);
	assert_true(side[1].tcp->ooo_bytes != 0);
	move_server_to_other_stack(server);
	assert_int_equal(side[1].tcp->ooo_bytes, 0);
	assert_true(other.tcp->ooo_bytes != 0);
	fixture_run_three_rings(5 * SEC);
	assert_int_equal(read_bytes(server, 7000), 6000);
	assert_int_equal(other.tcp->ooo_bytes, 0);
	exchange_both_ways(client, server, 3000);
	app_free(client);
}

static void test_a_retransmission_that_is_due_is_made_by_the_other_stack(void **state)
{
	struct vma_tcp_counts counts;
	struct app *client, *server;

	(void)state;
	establish_pair_with_own_nic_rule(&client, &server);
	fixture_set_wire_faults(1, (struct vma_wire_faults){.loss_ppm = 1000000});
	assert_int_equal(fixture_send_bytes(server, 4000), 4000);
	run_three_rings_until_idle();
	move_server_to_other_stack(server);
	fixture_set_wire_faults(1, (struct vma_wire_faults){0});
	fixture_run_three_rings(5 * SEC);
	assert_int_equal(read_bytes(client, 5000), 4000);
	vma_tcp_read_counters(other.tcp, &counts);
	assert_true(counts.retransmits + counts.tail_probes != 0);
	assert_int_equal(fixture_stack_counts(1).retransmits, 0);
	exchange_both_ways(client, server, 3000);
	app_free(client);
}

static void test_one_that_has_sent_its_fin_moves_and_ends_in_the_other_stack(void **state)
{
	struct vma_tcp_counts counts;
	struct app *client, *server;

	(void)state;
	establish_pair_with_own_nic_rule(&client, &server);
	assert_int_equal(vma_tcp_shutdown(server->conn, SHUT_WR), 0);
	fixture_run_three_rings(100 * MS);
	assert_int_equal(vma_tcp_state(server->conn), TCP_FIN_WAIT2);
	move_server_to_other_stack(server);
	assert_int_equal(fixture_send_bytes(client, 3000), 3000);
	run_three_rings_until_idle();
	assert_int_equal(read_bytes(server, 4000), 3000);
	assert_int_equal(vma_tcp_shutdown(client->conn, SHUT_WR), 0);
	fixture_run_three_rings(100 * MS);
	assert_int_equal(vma_tcp_state(client->conn), TCP_CLOSE);
	vma_tcp_read_counters(other.tcp, &counts);
	assert_int_equal(counts.time_waits, 1);
	assert_int_equal(fixture_stack_counts(1).time_waits, 0);
	assert_int_equal(resets_and_retransmits_of_stacks(), 0);
	app_free(client);
}

static void client_shuts_down_writing(struct app *client, struct app *server)
{
	(void)server;
	assert_int_equal(vma_tcp_shutdown(client->conn, SHUT_WR), 0);
	run_three_rings_until_idle();
}

/* Its record would take the rule over, in the middle of its way. */
static void test_time_wait_that_begins_in_the_middle_of_a_move_is_the_other_stacks(void **state)
{
	struct vma_tcp_counts counts;
	struct app *client, *server;

	(void)state;
	establish_pair_with_own_nic_rule(&client, &server);
	assert_int_equal(vma_tcp_shutdown(server->conn, SHUT_WR), 0);
	fixture_run_three_rings(100 * MS);
	assert_int_equal(move_server_while_hook_runs(client, server, 0, client_shuts_down_writing), 0);
	fixture_run_three_rings(100 * MS);
	vma_tcp_read_counters(other.tcp, &counts);
	assert_int_equal(counts.time_waits, 1);
	assert_int_equal(fixture_stack_counts(1).time_waits, 0);
	assert_int_equal(vma_tcp_state(client->conn), TCP_CLOSE);
	assert_int_equal(resets_and_retransmits_of_stacks(), 0);
	app_free(client);
}

static void client_resets_connection(struct app *client, struct app *server)
{
	vma_tcp_close(client->conn, true);
	run_three_rings_until_idle();
	fixture_run_three_rings(MS);
	(void)server;
}

static void server_resets_itself(struct app *client, struct app *server)
{
	(void)client;
	vma_tcp_close(server->conn, true);
	run_three_rings_until_idle();
}

/* The rule is gone: another connection of the same addresses gets one. */
static void expect_move_found_connection_ended(struct app *client, struct app *server, int rc)
{
	struct vma_flow_key key = server->conn->key;

	assert_int_equal(rc, -ENOTCONN);
	run_three_rings_until_idle();
	assert_int_equal(vma_tcp_state(server->conn), TCP_CLOSE);
	assert_null(server->conn->flow.ring);
	assert_true(vma_ring_acquire(other.ring));
	assert_null(vma_ring_find_first_flow_of_key(other.ring, &key));
	vma_ring_release(other.ring);
	assert_int_equal(vma_nic_flow_del(vma_ring_qp(other.ring), &key), -ENOENT);
	assert_int_equal(vma_nic_flow_del(vma_ring_qp(side[1].ring), &key), -ENOENT);
	app_free(client);
}

/* Before the rule has gone, the reset finds the connection. After it, it waits for it in the early flow. */
static void test_a_reset_in_the_middle_of_a_move_ends_it(void **state)
{
	struct app *client, *server;
	int rc;

	(void)state;
	establish_pair_with_own_nic_rule(&client, &server);
	rc = move_server_while_hook_runs(client, server, 0, server_resets_itself);
	expect_move_found_connection_ended(client, server, rc);
	establish_pair_with_own_nic_rule(&client, &server);
	assert_int_equal(move_server_while_hook_runs(client, server, 0, client_resets_connection), 0);
	run_three_rings_until_idle();
	assert_int_equal(vma_tcp_state(server->conn), TCP_CLOSE);
	assert_int_equal(vma_tcp_error(server->conn), ECONNRESET);
	app_free(client);
}

static void send_both_ways(struct app *client, struct app *server)
{
	assert_int_equal(fixture_send_bytes(client, 3000), 3000);
	assert_int_equal(send_flags(server, 2000, VMA_TCP_TX_QUEUE), 2000);
	run_three_rings_until_idle();
}

static void test_what_is_sent_and_received_in_the_middle_of_a_move_is_not_lost(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_pair_with_own_nic_rule(&client, &server);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(move_server_while_hook_runs(client, server, 0, send_both_ways), 0);
		run_three_rings_until_idle();
		assert_int_equal(read_bytes(server, 4000), 3000);
		assert_int_equal(read_bytes(client, 4000), 2000);
	}
	assert_int_equal(resets_and_retransmits_of_stacks(), 0);
	assert_int_equal(fixture_stack_counts(0).retransmits, 0);
	app_free(client);
}

static void server_closes_itself(struct app *client, struct app *server)
{
	(void)client;
	vma_tcp_close(server->conn, false);
	run_three_rings_until_idle();
}

/* A stack that has too many orphans resets what is closed; each counts where it is. */
static void test_one_that_is_closed_in_the_middle_of_a_move_is_the_other_stacks_orphan(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_pair_with_own_nic_rule(&client, &server);
	move_server_while_hook_runs(client, server, 0, server_closes_itself);
	fixture_run_three_rings(100 * MS);
	vma_tcp_close(client->conn, false);
	fixture_run_three_rings(5 * SEC);
	assert_int_equal(side[1].tcp->orphans, 0);
	assert_int_equal(other.tcp->orphans, 0);
	assert_int_equal(resets_and_retransmits_of_stacks(), 0);
	app_free(client);
}

/* What moves is held once, by the move: who steers all that has no rule leaves it alone. */
static void steer_all_while_conn_moves(struct app *client, struct app *server)
{
	(void)client;
	server->conn->steered = false; /* as if it had none yet */
	vma_tcp_steer_all_conns_to_own_rules(side[1].tcp);
	assert_false(server->conn->steered);
	assert_int_equal(server->conn->held, 1);
	server->conn->steered = true;
}

static void test_one_that_moves_is_not_steered(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_pair_with_own_nic_rule(&client, &server);
	assert_int_equal(move_server_while_hook_runs(client, server, 0, steer_all_while_conn_moves), 0);
	exchange_both_ways(client, server, 500);
	app_free(client);
}

static void test_one_whose_rule_the_nic_does_not_move_stays(void **state)
{
	struct app *client, *server, *first;

	(void)state;
	establish_pair_with_own_nic_rule(&client, &server);
	assert_int_equal(move_server_while_hook_runs(client, server, -EOPNOTSUPP, send_both_ways), -EOPNOTSUPP);
	assert_ptr_equal(vma_tcp_conn_current_stack(server->conn), side[1].tcp);
	run_three_rings_until_idle();
	assert_int_equal(read_bytes(server, 4000), 3000);
	assert_int_equal(read_bytes(client, 4000), 2000);
	move_server_to_other_stack(server);
	exchange_both_ways(client, server, 500);
	first = client;
	establish_pair_with_own_nic_rule(&client, &server);
	assert_int_equal(move_server_while_hook_runs(client, server, -EPIPE, server_resets_itself), -EPIPE);
	assert_null(server->conn->flow.ring);
	run_three_rings_until_idle();
	app_free(client);
	app_free(first);
}

/* ---- what `steered` says ---- */

static struct vma_nic_ops refusing_ops;

static int fake_flow_add_no_space(struct vma_nic_qp *qp, const struct vma_flow_rule *rule)
{
	(void)qp, (void)rule;
	return -ENOSPC;
}

/* The ring's own operations, to be given back. */
static const struct vma_nic_ops *refuse_flow_rules_of_ring(struct vma_ring *ring)
{
	const struct vma_nic_ops *ops = vma_ring_qp(ring)->ops;

	refusing_ops = *ops;
	refusing_ops.flow_add = fake_flow_add_no_space;
	vma_ring_qp(ring)->ops = &refusing_ops;
	return ops;
}

static void move_refused_by_nic(void)
{
	const struct vma_nic_ops *ops = refuse_flow_rules_of_ring(other.ring);

	after_ring_steer_hook = NULL;
	assert_int_equal(vma_tcp_move_to_stack(moving_server->conn, other.tcp), -ENOSPC);
	vma_ring_qp(other.ring)->ops = ops;
}

/* A move of one that has no rule yet, which takes the rule back that has just been made. */
static void test_one_that_is_steered_while_its_move_fails_has_no_rule_and_may_get_one(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	fixture_take_app_events(server);
	moving_server = server;
	after_ring_steer_hook = move_refused_by_nic;
	assert_int_equal(vma_tcp_conn_add_own_nic_rule(server->conn), -EINVAL);
	assert_false(vma_tcp_conn_has_own_nic_rule(server->conn));
	assert_int_equal(fixture_take_app_events(server) & VMA_TCP_STEERED, 0);
	exchange_both_ways(client, server, 500);
	assert_int_equal(vma_tcp_conn_add_own_nic_rule(server->conn), 0);
	assert_true(vma_tcp_conn_has_own_nic_rule(server->conn));
	assert_true(fixture_take_app_events(server) & VMA_TCP_STEERED);
	move_server_to_other_stack(server);
	assert_true(vma_tcp_conn_has_own_nic_rule(server->conn));
	exchange_both_ways(client, server, 500);
	app_free(client);
}

static void move_after_steer(void)
{
	after_ring_steer_hook = NULL;
	assert_int_equal(vma_tcp_move_to_stack(moving_server->conn, other.tcp), 0);
}

static void test_one_that_is_steered_while_it_moves_has_a_rule(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	moving_server = server;
	after_ring_steer_hook = move_after_steer;
	assert_int_equal(vma_tcp_conn_add_own_nic_rule(server->conn), 0);
	assert_true(vma_tcp_conn_has_own_nic_rule(server->conn));
	assert_true(fixture_take_app_events(server) & VMA_TCP_STEERED);
	exchange_both_ways(client, server, 500);
	move_server_to_other_stack(server); /* and back */
	assert_true(vma_tcp_conn_has_own_nic_rule(server->conn));
	exchange_both_ways(client, server, 500);
	app_free(client);
}

static void test_one_that_gets_no_rule_when_its_listener_ends_is_known_to_have_none(void **state)
{
	const struct vma_nic_ops *ops;
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	ops = refuse_flow_rules_of_ring(side[1].ring);
	vma_tcp_listener_close(fixture_listener);
	fixture_listener = NULL;
	vma_ring_qp(side[1].ring)->ops = ops;
	assert_false(vma_tcp_conn_has_own_nic_rule(server->conn));
	vma_tcp_steer_all_conns_to_own_rules(side[1].tcp);
	assert_true(vma_tcp_conn_has_own_nic_rule(server->conn));
	exchange_both_ways(client, server, 500);
	app_free(client);
}

static void test_one_that_its_owner_has_closed_stays(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_pair_with_own_nic_rule(&client, &server);
	vma_tcp_close(server->conn, false);
	run_three_rings_until_idle();
	assert_int_equal(vma_tcp_move_to_stack(server->conn, other.tcp), -EBUSY);
	assert_ptr_equal(vma_tcp_conn_current_stack(server->conn), side[1].tcp);
	app_free(client);
}

static void test_time_stamps_go_on_as_they_began(void **state)
{
	struct app *client, *server;

	(void)state;
	establish_pair_with_own_nic_rule(&client, &server);
	assert_true(server->conn->pcb->flags & TF_TIMESTAMP);
	other.tcp->clock_offset_ms -= 1000000;
	for (int i = 0; i < 3; i++) {
		move_server_to_other_stack(server);
		fixture_run_three_rings(10 * MS);
		exchange_both_ways(client, server, 3000);
		assert_int_equal(tcp_conn_clock_ms(server->conn),
		                 tcp_clock_ms(side[1].tcp) + (uint32_t)(tcp_stack_now(server->conn)->now_ns / MS -
		                                                        side[1].tcp->now_ns / MS));
	}
	assert_int_equal(fixture_stack_counts(0).paws_drops, 0);
	assert_int_equal(resets_and_retransmits_of_stacks(), 0);
	app_free(client);
}

#define MOVE_CASE(name) cmocka_unit_test_setup_teardown(name, setup_three_rings, teardown_three_rings)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        MOVE_CASE(test_a_moved_connection_goes_on_in_the_other_stack),
	        MOVE_CASE(test_what_was_under_way_meanwhile_is_not_lost),
	        MOVE_CASE(test_unread_bytes_move_along),
	        MOVE_CASE(test_one_with_its_own_rule_moves_with_it),
	        MOVE_CASE(test_its_timers_run_in_the_other_stack),
	        MOVE_CASE(test_a_near_peers_window_goes_by_the_ring_that_it_comes_to),
	        MOVE_CASE(test_what_waits_for_an_acknowledgement_moves_along),
	        MOVE_CASE(test_a_hundred_moves_in_the_middle_of_a_stream_each_way),
	        MOVE_CASE(test_data_out_of_order_moves_along),
	        MOVE_CASE(test_a_retransmission_that_is_due_is_made_by_the_other_stack),
	        MOVE_CASE(test_one_that_has_sent_its_fin_moves_and_ends_in_the_other_stack),
	        MOVE_CASE(test_time_wait_that_begins_in_the_middle_of_a_move_is_the_other_stacks),
	        MOVE_CASE(test_a_reset_in_the_middle_of_a_move_ends_it),
	        MOVE_CASE(test_what_is_sent_and_received_in_the_middle_of_a_move_is_not_lost),
	        MOVE_CASE(test_one_that_is_closed_in_the_middle_of_a_move_is_the_other_stacks_orphan),
	        MOVE_CASE(test_one_that_moves_is_not_steered),
	        MOVE_CASE(test_one_whose_rule_the_nic_does_not_move_stays),
	        MOVE_CASE(test_one_that_is_steered_while_its_move_fails_has_no_rule_and_may_get_one),
	        MOVE_CASE(test_one_that_is_steered_while_it_moves_has_a_rule),
	        MOVE_CASE(test_one_that_gets_no_rule_when_its_listener_ends_is_known_to_have_none),
	        MOVE_CASE(test_one_that_its_owner_has_closed_stays),
	        MOVE_CASE(test_time_stamps_go_on_as_they_began),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
