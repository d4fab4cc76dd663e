/* A connection leaves for another stack: what is told of it, and that it goes without a word. */
#include "fixture.h"

static int export_begin(struct app *app, struct vma_tcp_export *out)
{
	int rc;

	assert_true(vma_ring_acquire(vma_tcp_ring(vma_tcp_conn_current_stack(app->conn))));
	rc = vma_tcp_export_begin(app->conn, out);
	vma_ring_release(vma_tcp_ring(vma_tcp_conn_current_stack(app->conn)));
	return rc;
}

static void export_end_and_run(struct app *app)
{
	assert_true(vma_ring_acquire(vma_tcp_ring(vma_tcp_conn_current_stack(app->conn))));
	vma_tcp_export_end(app->conn, NULL);
	vma_ring_release(vma_tcp_ring(vma_tcp_conn_current_stack(app->conn)));
	fixture_run_for_ns(MS);
}

static void test_both_sides_tell_the_same_numbers(void **state)
{
	struct vma_tcp_export mine, theirs;
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	fixture_transfer_and_check_bytes(client, server, 100000, SEC);
	fixture_transfer_and_check_bytes(server, client, 1234, SEC);
	fixture_run_for_ns(SEC);
	assert_int_equal(export_begin(client, &mine), 0);
	assert_int_equal(export_begin(server, &theirs), 0);
	assert_int_equal(mine.snd_una, theirs.rcv_nxt);
	assert_int_equal(theirs.snd_una, mine.rcv_nxt);
	assert_int_equal(mine.unacked + mine.sent + mine.unread, 0);
	assert_int_equal(mine.snd_scale, theirs.rcv_scale);
	assert_int_equal(mine.snd_wnd, theirs.rcv_wup + theirs.rcv_wnd - mine.snd_una);
	app_free(client);
}

static void test_queues_are_told_byte_by_byte(void **state)
{
	struct vma_tcp_export mine, theirs;
	struct app *client, *server;
	struct iovec span;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	assert_int_equal(fixture_send_bytes(client, 5000), 5000);
	fixture_run_for_ns(SEC);
	assert_int_equal(read_bytes(server, 1000), 1000);
	fixture_set_wire_faults(0, (struct vma_wire_faults){.loss_ppm = 1000000});
	assert_int_equal(fixture_send_bytes(client, 700), 700);
	assert_int_equal(export_begin(client, &mine), 0);
	assert_int_equal(export_begin(server, &theirs), 0);
	assert_int_equal(mine.unacked, 700);
	assert_true(mine.sent <= 700);
	assert_int_equal(theirs.unread, 4000);
	assert_int_equal(vma_tcp_export_peek_unacked_tx_bytes(client->conn, 100, &span, 1), 1);
	assert_int_equal(*(uint8_t *)span.iov_base, fixture_pattern_byte_at(5100));
	assert_int_equal(vma_tcp_export_peek_rx_bytes(server->conn, 100, &span, 1), 1);
	assert_int_equal(*(uint8_t *)span.iov_base, fixture_pattern_byte_at(1100));
	app_free(client);
}

static void test_the_peers_fin_is_told_beside_the_numbers(void **state)
{
	struct vma_tcp_export mine;
	struct app *client, *server;
	uint32_t before;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	assert_int_equal(export_begin(client, &mine), 0);
	before = mine.rcv_nxt;
	assert_int_equal(vma_tcp_shutdown(server->conn, SHUT_WR), 0);
	fixture_run_for_ns(MS);
	assert_int_equal(export_begin(client, &mine), 0);
	assert_true(mine.fin_received);
	assert_int_equal(mine.rcv_nxt, before);
	assert_int_equal(export_begin(server, &mine), 0);
	assert_true(mine.shut_wr);
	app_free(client);
}

/* The first 1000 bytes are lost, so the next 700 come out of order. */
static void lose_first_segment(struct app *client)
{
	assert_int_equal(vma_tcp_set_option(client->conn, VMA_TCP_OPT_NODELAY, 1), 0);
	fixture_set_wire_faults(0, (struct vma_wire_faults){.loss_ppm = 1000000});
	assert_int_equal(fixture_send_bytes(client, 1000), 1000);
	fixture_run_for_ns(MS);
	fixture_set_wire_faults(0, (struct vma_wire_faults){0});
	fixture_set_wire_faults(1, (struct vma_wire_faults){.loss_ppm = 1000000}); /* the client does not hear of it */
	assert_int_equal(fixture_send_bytes(client, 700), 700);
	fixture_run_for_ns(MS);
}

static void test_what_came_out_of_order_is_told_piece_by_piece(void **state)
{
	struct vma_tcp_export theirs;
	struct app *client, *server;
	uint8_t bytes[2048];
	uint32_t seq = 0;
	bool fin = true;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	lose_first_segment(client);
	assert_int_equal(export_begin(server, &theirs), 0);
	assert_true(vma_ring_acquire(side[1].ring));
	assert_int_equal(vma_tcp_export_copy_ooo_segment(server->conn, 0, &seq, &fin, bytes, 699), -EMSGSIZE);
	assert_int_equal(vma_tcp_export_copy_ooo_segment(server->conn, 0, &seq, &fin, bytes, sizeof(bytes)), 700);
	assert_int_equal(vma_tcp_export_copy_ooo_segment(server->conn, 1, &seq, &fin, bytes, sizeof(bytes)), -ENOENT);
	vma_ring_release(side[1].ring);
	assert_int_equal(seq, theirs.rcv_nxt + 1000);
	assert_false(fin);
	assert_int_equal(bytes[0], fixture_pattern_byte_at(1000));
	assert_int_equal(bytes[699], fixture_pattern_byte_at(1699));
	app_free(client);
}

struct kept_late_sink {
	struct vma_tcp_late_sink late;
	unsigned packets;
	uint32_t bytes, seq;
};

static void late_sink_count_packet(struct vma_tcp_late_sink *late, struct vma_buf *packet)
{
	struct kept_late_sink *kept = (struct kept_late_sink *)late;
	const uint8_t *tcp = (const uint8_t *)vma_buf_data(fixture_arena, packet) + packet->l4_off;

	if (packet->payload_len != 0 && kept->packets++ == 0)
		kept->seq = (uint32_t)tcp[4] << 24 | (uint32_t)tcp[5] << 16 | (uint32_t)tcp[6] << 8 | tcp[7];
	kept->bytes += packet->payload_len;
}

static void test_what_comes_until_the_rule_has_gone_is_passed_on(void **state)
{
	struct kept_late_sink kept = {.late = {.packet = late_sink_count_packet}};
	struct vma_tcp_export theirs;
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	assert_int_equal(vma_tcp_conn_add_own_nic_rule(server->conn), 0);
	assert_true(vma_ring_acquire(side[1].ring));
	assert_int_equal(vma_tcp_export_begin(server->conn, &theirs), 0);
	vma_tcp_export_end(server->conn, &kept.late);
	vma_ring_release(side[1].ring);
	assert_int_equal(fixture_send_bytes(client, 700), 700);
	fixture_run_for_ns(MS);
	assert_int_equal(kept.packets, 1);
	assert_int_equal(kept.seq, theirs.rcv_nxt);
	assert_int_equal(kept.bytes, 700);
	vma_tcp_export_detach(server->conn);
	fixture_run_for_ns(500 * MS);
	assert_int_equal(kept.packets, 1);
	assert_int_equal(vma_tcp_error(client->conn), 0);
	assert_int_equal(vma_tcp_state(server->conn), TCP_CLOSE);
	app_free(client);
}

static void test_what_the_nic_has_when_the_rule_goes_is_passed_on(void **state)
{
	struct kept_late_sink kept = {.late = {.packet = late_sink_count_packet}};
	struct vma_tcp_export theirs;
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	assert_int_equal(vma_tcp_conn_add_own_nic_rule(server->conn), 0);
	assert_true(vma_ring_acquire(side[1].ring));
	assert_int_equal(vma_tcp_export_begin(server->conn, &theirs), 0);
	assert_int_equal(fixture_send_bytes(client, 700), 700); /* nobody drives side 1 */
	vma_tcp_export_end(server->conn, &kept.late);
	vma_ring_release(side[1].ring);
	vma_tcp_export_detach(server->conn);
	assert_int_equal(kept.bytes, 700);
	app_free(client);
}

static void test_it_goes_without_a_word(void **state)
{
	struct app *client, *server;
	unsigned told;
	uint64_t frames;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	fixture_run_for_ns(SEC);
	told = server->told;
	frames = fixture_wire_frames_sent(1);
	export_end_and_run(server);
	assert_int_equal(vma_tcp_state(server->conn), TCP_CLOSE);
	assert_int_equal(server->told, told);
	assert_int_equal(fixture_send_bytes(client, 100), 100);
	fixture_run_for_ns(100 * MS);
	assert_int_equal(fixture_wire_frames_sent(1), frames);
	assert_int_equal(vma_tcp_error(client->conn), 0);
	assert_int_equal(vma_tcp_tx_unacked_bytes(client->conn), 100);
	fixture_run_for_ns(2 * SEC);
	/* Long after it has gone, its address is answered for as anybody's. */
	assert_int_equal(vma_tcp_error(client->conn), ECONNRESET);
	app_free(client);
}

static void test_what_is_not_established_stays(void **state)
{
	struct vma_tcp_export mine;
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	vma_tcp_close(client->conn, false);
	assert_int_equal(export_begin(client, &mine), -ENOTCONN);
	fixture_run_for_ns(MS);
	assert_int_equal(export_begin(client, &mine), -ENOTCONN);
	app_free(client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        CASE(test_both_sides_tell_the_same_numbers),
	        CASE(test_queues_are_told_byte_by_byte),
	        CASE(test_the_peers_fin_is_told_beside_the_numbers),
	        CASE(test_what_came_out_of_order_is_told_piece_by_piece),
	        CASE(test_what_comes_until_the_rule_has_gone_is_passed_on),
	        CASE(test_what_the_nic_has_when_the_rule_goes_is_passed_on),
	        CASE(test_it_goes_without_a_word),
	        CASE(test_what_is_not_established_stays),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
