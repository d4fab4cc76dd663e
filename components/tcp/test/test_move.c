/* An accepted connection changes to the stack of another ring, and the peer does not notice. */
#include "fixture.h"

static struct side other; /* on the interface of side 1 */

static int move_open(void **state)
{
	struct vma_tcp_attr requests = {.gro_streams_max = 16};

	fixture_open(state);
	other = (struct side){.nic = side[1].nic};
	side_open(&other, 1, &requests);
	return 0;
}

static int move_close(void **state)
{
	for (unsigned i = 0; i < fixture_accepted_count; i++) {
		vma_tcp_conn_disown(fixture_accepted[i]->conn);
		vma_tcp_conn_put(fixture_accepted[i]->conn);
		free(fixture_accepted[i]);
	}
	fixture_accepted_count = 0;
	for (int i = 0; i < 10; i++) {
		fixture_settle();
		vma_ring_progress(other.ring);
	}
	vma_tcp_destroy(other.tcp);
	vma_ring_destroy(other.ring);
	return fixture_close(state);
}

static void settle_all(void)
{
	for (int i = 0; i < 20; i++) {
		fixture_settle();
		vma_ring_progress(other.ring);
	}
}

/* Both ways, in one moment of the clock. */
static void talk(struct app *a, struct app *b, size_t n)
{
	assert_int_equal(fixture_send_bytes(a, n), n);
	settle_all();
	assert_int_equal(read_bytes(b, n), n);
	assert_int_equal(fixture_send_bytes(b, n), n);
	settle_all();
	assert_int_equal(read_bytes(a, n), n);
}

static uint64_t sum_of_resets(void)
{
	struct vma_tcp_counts mine, others;

	vma_tcp_counts(side[1].tcp, &mine);
	vma_tcp_counts(other.tcp, &others);
	return mine.resets_out + others.resets_out + mine.retransmits + others.retransmits;
}

static void test_a_moved_connection_goes_on_in_the_other_stack(void **state)
{
	struct app *client, *server;

	(void)state;
	establish(&client, &server);
	assert_int_equal(vma_tcp_move(server->conn, other.tcp), 0);
	assert_ptr_equal(vma_tcp_stack(server->conn), other.tcp);
	talk(client, server, 3000);
	talk(client, server, 700);
	assert_null(side[1].tcp->all);
	assert_int_equal(sum_of_resets(), 0);
	app_free(client);
}

static void test_what_was_under_way_meanwhile_is_not_lost(void **state)
{
	struct app *client, *server;

	(void)state;
	establish(&client, &server);
	assert_int_equal(fixture_send_bytes(client, 4000), 4000);
	vma_ring_progress(side[0].ring);
	vma_wire_tick(side[0].nic); /* it lies at side 1, and its ring was not driven */
	assert_int_equal(vma_tcp_move(server->conn, other.tcp), 0);
	settle_all();
	assert_int_equal(read_bytes(server, 4000), 4000);
	talk(client, server, 100);
	assert_int_equal(sum_of_resets(), 0);
	app_free(client);
}

static void test_unread_bytes_move_along(void **state)
{
	struct app *client, *server;

	(void)state;
	establish(&client, &server);
	assert_int_equal(fixture_send_bytes(client, 2000), 2000);
	fixture_settle();
	assert_int_equal(vma_tcp_move(server->conn, other.tcp), 0);
	assert_int_equal(read_bytes(server, 2000), 2000);
	talk(client, server, 500);
	app_free(client);
}

static void test_one_with_its_own_rule_moves_with_it(void **state)
{
	struct app *client, *server;

	(void)state;
	establish(&client, &server);
	assert_int_equal(vma_tcp_steer(server->conn), 0);
	assert_int_equal(vma_tcp_move(server->conn, other.tcp), 0);
	assert_int_equal(vma_tcp_steer(server->conn), 0);
	talk(client, server, 500);
	assert_int_equal(vma_tcp_move(server->conn, side[1].tcp), 0); /* and back */
	talk(client, server, 500);
	app_free(client);
}

static void test_its_timers_run_in_the_other_stack(void **state)
{
	struct app *client, *server;

	(void)state;
	establish(&client, &server);
	assert_int_equal(fixture_send_bytes(client, 100), 100);
	fixture_settle(); /* its ACK is delayed */
	assert_int_equal(vma_tcp_move(server->conn, other.tcp), 0);
	assert_true(vma_tcp_due(other.tcp) != UINT64_MAX);
	fixture_now_ns += SEC;
	settle_all();
	assert_int_equal(client->conn->pcb->unacked == NULL, 1);
	app_free(client);
}

static void test_one_that_waits_for_an_acknowledgement_stays(void **state)
{
	struct app *client, *server;

	(void)state;
	establish(&client, &server);
	assert_int_equal(fixture_send_bytes(server, 100), 100);
	vma_ring_progress(side[1].ring);
	assert_int_equal(vma_tcp_move(server->conn, other.tcp), -EBUSY);
	assert_ptr_equal(vma_tcp_stack(server->conn), side[1].tcp);
	settle_all();
	assert_int_equal(read_bytes(client, 100), 100);
	app_free(client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup_teardown(test_a_moved_connection_goes_on_in_the_other_stack, move_open,
	                                        move_close),
	        cmocka_unit_test_setup_teardown(test_what_was_under_way_meanwhile_is_not_lost, move_open, move_close),
	        cmocka_unit_test_setup_teardown(test_unread_bytes_move_along, move_open, move_close),
	        cmocka_unit_test_setup_teardown(test_one_with_its_own_rule_moves_with_it, move_open, move_close),
	        cmocka_unit_test_setup_teardown(test_its_timers_run_in_the_other_stack, move_open, move_close),
	        cmocka_unit_test_setup_teardown(test_one_that_waits_for_an_acknowledgement_stays, move_open,
	                                        move_close),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
