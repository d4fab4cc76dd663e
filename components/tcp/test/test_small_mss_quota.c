/* Connections with a small MSS: how many frames they send together, how small these may be, what their segments hold.
 */
#include "raw.h"
#include "../small_mss_quota.h"

enum { TIMESTAMP_OPTION_BYTES = 12, MAXSEG = 100, MSS = MAXSEG - TIMESTAMP_OPTION_BYTES, CLIENTS = 4 };

static struct app *client[CLIENTS];

/* The peer's SYN asks for segments of that size; 0: of the path's. */
static struct app *connect_with_maxseg(uint32_t maxseg, uint16_t port)
{
	struct app *app;

	side[1].options.maxseg = (int32_t)maxseg;
	if (fixture_listener == NULL)
		fixture_listen_on(1);
	vma_tcp_listener_set_options(fixture_listener, &side[1].options, 16);
	app = fixture_connect_from(0, port);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_state(app->conn), TCP_ESTABLISHED);
	return app;
}

static void read_all_of_accepted_connections(void)
{
	for (unsigned i = 0; i < fixture_accepted_count; i++)
		read_bytes(fixture_accepted[i], 1 << 20);
}

/* All write as much as they may, and all is read, for so long. Bytes that the first `n` have had acknowledged. */
static uint64_t send_and_read_for_ms_count_acked(unsigned n, unsigned ms)
{
	uint64_t acked = 0;

	for (unsigned i = 0; i < ms; i++) {
		for (unsigned k = 0; k < n; k++)
			fixture_send_bytes(client[k], 1 << 16);
		fixture_run_for_ns(MS);
		read_all_of_accepted_connections();
	}
	for (unsigned k = 0; k < n; k++)
		acked += atomic_load(&client[k]->conn->acked);
	return acked;
}

static void free_client_apps(unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		app_free(client[i]);
}

static void test_small_segments_leave_at_a_bounded_rate(void **state)
{
	uint64_t before, frames;

	(void)state;
	client[0] = connect_with_maxseg(MAXSEG, 2000);
	assert_int_equal(client[0]->conn->mss, MSS);
	send_and_read_for_ms_count_acked(1, 20);
	before = fixture_wire_frames_sent(0);
	send_and_read_for_ms_count_acked(1, 100);
	frames = fixture_wire_frames_sent(0) - before;
	assert_true(frames <= 100 * SMALL_MSS_PER_MS + SMALL_MSS_BURST);
	assert_true(frames >= 80 * SMALL_MSS_PER_MS);
	free_client_apps(1);
}

static void test_all_of_them_have_one_quota_and_each_its_part(void **state)
{
	uint64_t before, frames;

	(void)state;
	for (unsigned i = 0; i < CLIENTS; i++)
		client[i] = connect_with_maxseg(MAXSEG, (uint16_t)(2000 + i));
	send_and_read_for_ms_count_acked(CLIENTS, 20);
	before = fixture_wire_frames_sent(0);
	send_and_read_for_ms_count_acked(CLIENTS, 200);
	frames = fixture_wire_frames_sent(0) - before;
	assert_true(frames <= 200 * SMALL_MSS_PER_MS + SMALL_MSS_BURST);
	for (unsigned i = 0; i < CLIENTS; i++)
		assert_true(atomic_load(&client[i]->conn->acked) >= 100 * SMALL_MSS_PER_MS / CLIENTS * MSS);
	free_client_apps(CLIENTS);
}

static void test_others_are_not_held_back(void **state)
{
	uint64_t small;

	(void)state;
	client[0] = connect_with_maxseg(0, 2000);
	client[1] = connect_with_maxseg(MAXSEG, 2001);
	send_and_read_for_ms_count_acked(2, 100);
	small = atomic_load(&client[1]->conn->acked);
	assert_true(small <= (100 * SMALL_MSS_PER_MS + SMALL_MSS_BURST) * MSS);
	assert_true(atomic_load(&client[0]->conn->acked) > 10 * small);
	free_client_apps(2);
}

/* The smallest way of the kernel's, and one with time stamps on it, are none of these. */
static void test_an_mss_of_a_small_mtu_is_not_small(void **state)
{
	uint64_t acked;

	(void)state;
	client[0] = connect_with_maxseg(SMALL_MSS_LIMIT + TIMESTAMP_OPTION_BYTES, 2000);
	assert_int_equal(client[0]->conn->mss, SMALL_MSS_LIMIT);
	acked = send_and_read_for_ms_count_acked(1, 50);
	assert_true(acked > (50 * SMALL_MSS_PER_MS + SMALL_MSS_BURST) * SMALL_MSS_LIMIT);
	free_client_apps(1);
}

static void test_all_arrives_on_a_way_that_loses(void **state)
{
	(void)state;
	client[0] = connect_with_maxseg(MAXSEG, 2000);
	fixture_set_wire_faults(0, (struct vma_wire_faults){.loss_ppm = 50000, .seed = 7});
	fixture_transfer_and_check_bytes(client[0], fixture_accepted[0], 300000, 60 * SEC);
	fixture_set_wire_faults(0, (struct vma_wire_faults){0});
	free_client_apps(1);
}

/* It is freed then, and the others go on. */
static void test_one_that_waits_may_end(void **state)
{
	uint64_t acked;

	(void)state;
	for (unsigned i = 0; i < 3; i++)
		client[i] = connect_with_maxseg(MAXSEG, (uint16_t)(2000 + i));
	send_and_read_for_ms_count_acked(3, 10);
	assert_true(client[0]->conn->in_small_mss_queue || client[1]->conn->in_small_mss_queue ||
	            client[2]->conn->in_small_mss_queue);
	for (unsigned i = 0; i < 2; i++)
		vma_tcp_close(client[i]->conn, true);
	free_client_apps(2);
	client[0] = client[2];
	acked = atomic_load(&client[0]->conn->acked);
	assert_true(send_and_read_for_ms_count_acked(1, 50) > acked + 40 * SMALL_MSS_PER_MS * MSS);
	free_client_apps(1);
}

/* It waits for its turn, not for a window: no probe is sent. */
static void test_waiting_for_the_quota_is_no_closed_window(void **state)
{
	(void)state;
	client[0] = connect_with_maxseg(MAXSEG, 2000);
	side[0].tcp->small_mss_quota.left = 0;
	side[0].tcp->small_mss_quota.filled_ms = fixture_now_ns / MS;
	fixture_send_bytes(client[0], 1000);
	fixture_run_until_idle();
	assert_true(client[0]->conn->in_small_mss_queue);
	assert_int_equal(client[0]->conn->recovery.persist_due_ns, 0);
	fixture_run_for_ns(5 * MS);
	assert_int_equal(atomic_load(&client[0]->conn->acked), 1000);
	free_client_apps(1);
}

/* ---- how small ---- */

/* The size of the segments that a peer gets which announces this MSS. */
static uint32_t segment_size_for_mss(uint16_t mss, uint32_t ts)
{
	struct app *app;
	uint8_t options[16] = {2, 4, (uint8_t)(mss >> 8), (uint8_t)mss, 1, 1, 8, 10};
	uint32_t len;

	raw.ts = ts;
	app = stack_sends_syn_to_raw_peer();
	raw_store_be(options + 8, raw.ts, 4);
	assert_int_equal(raw_next_segment()->flags, TCP_SYN);
	raw_send_segment_with_options(0, 1, TCP_SYN | TCP_ACK, options, raw.ts != 0 ? 16 : 4, 0, "", 0);
	raw_mark_all_segments_seen();
	fixture_send_bytes(app, 1000);
	fixture_run_until_idle();
	len = raw_next_segment()->len;
	app_free(app);
	fixture_run_until_idle();
	return len;
}

/* As the kernel: net.ipv4.tcp_min_snd_mss, of which time stamps take their part. */
static void test_a_tiny_mss_is_48(void **state)
{
	(void)state;
	assert_int_equal(segment_size_for_mss(1, 0), 48);
}

static void test_a_tiny_mss_with_time_stamps_leaves_36(void **state)
{
	(void)state;
	assert_int_equal(segment_size_for_mss(20, 77), 36);
}

static void test_the_least_mss_can_be_set(void **state)
{
	(void)state;
	side[0].tcp->attr.min_snd_mss = 200;
	assert_int_equal(segment_size_for_mss(48, 0), 200);
}

/* ---- what they hold ---- */

static uint64_t largest_sndbuf(struct vma_tcp_conn *conn)
{
	conn->cc.cwnd = 1 << 26;
	window_sndbuf_grow(conn);
	return atomic_load(&conn->sndbuf);
}

/* Segments that wait for their acknowledgement hold several times their bytes, if they are small. */
static void test_small_segments_and_their_bytes_stay_within_the_buffer(void **state)
{
	const uint64_t most = (uint64_t)side[0].options.sndbuf_max;

	(void)state;
	client[0] = connect_with_maxseg(0, 2000);
	client[1] = connect_with_maxseg(MAXSEG, 2001);
	assert_int_equal(largest_sndbuf(client[0]->conn), most);
	assert_true(largest_sndbuf(client[1]->conn) / MSS * (MSS + 272) <= most);
	assert_true(largest_sndbuf(client[1]->conn) >= most / 8);
	free_client_apps(2);
}

static const struct CMUnitTest tests[] = {
        CASE(test_small_segments_leave_at_a_bounded_rate),
        CASE(test_all_of_them_have_one_quota_and_each_its_part),
        CASE(test_others_are_not_held_back),
        CASE(test_an_mss_of_a_small_mtu_is_not_small),
        CASE(test_all_arrives_on_a_way_that_loses),
        CASE(test_one_that_waits_may_end),
        CASE(test_waiting_for_the_quota_is_no_closed_window),
        RAW_CASE(test_a_tiny_mss_is_48),
        RAW_CASE(test_a_tiny_mss_with_time_stamps_leaves_36),
        RAW_CASE(test_the_least_mss_can_be_set),
        CASE(test_small_segments_and_their_bytes_stay_within_the_buffer),
};
VMA_TEST_MAIN(tests)
