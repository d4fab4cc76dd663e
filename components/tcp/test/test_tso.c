/*
 * Packets of several segments, which the NIC cuts: what arrives is what would arrive without them, segment for segment.
 *
 * A scenario is played twice, with and without them, and everything that the peer sees is compared: numbers, flags,
 * windows, options, IP ids, bytes and times.
 */
#include "raw.h"
#include "../tx/tso.h"

enum { TSO_MSS = 1000 };

/* ---- what goes to the NIC of side 0 ---- */

static struct vma_nic_ops tso_ops;
static unsigned tso_packets, tso_most_pieces_seen, tso_packets_not_cut;
static uint32_t tso_most_bytes_seen;

static unsigned tso_count_packets_sent(struct vma_nic_qp *qp, const struct vma_nic_seg *segs, unsigned n)
{
	const unsigned taken = qp->nic->ops->tx(qp, segs, n);

	for (unsigned i = 0; i < taken; i++) {
		const struct vma_nic_seg *first = &segs[i];
		uint32_t bytes = 0;

		for (;; i++) {
			bytes += segs[i].len;
			if (!(segs[i].flags & VMA_NIC_SEG_MORE))
				break;
			assert_true(i + 1 < taken);
		}
		if (!(first->flags & VMA_NIC_SEG_TSO)) {
			assert_ptr_equal(first, &segs[i]);
			tso_packets_not_cut++;
			continue;
		}
		bytes -= first->hdr_len;
		assert_true(bytes > first->mss && bytes <= side[0].tcp->tso_bytes);
		tso_packets++;
		if (&segs[i] - first + 1 > (ptrdiff_t)tso_most_pieces_seen)
			tso_most_pieces_seen = (unsigned)(&segs[i] - first + 1);
		if (bytes > tso_most_bytes_seen)
			tso_most_bytes_seen = bytes;
	}
	return taken;
}

static void hook_tx_to_count_tso_packets(void)
{
	struct vma_nic_qp *qp = vma_ring_qp(side[0].ring);

	tso_packets = tso_most_pieces_seen = tso_packets_not_cut = tso_most_bytes_seen = 0;
	tso_ops = *qp->ops;
	tso_ops.tx = tso_count_packets_sent;
	qp->ops = &tso_ops;
}

static int setup_raw_peer_with_tso_settings(void **state, bool offloads, bool no_tso)
{
	fixture_wire_offloads = offloads;
	fixture_stack_uses_no_tso = no_tso;
	setup_raw_tcp_peer(state);
	hook_tx_to_count_tso_packets();
	return 0;
}

static int setup_tso_with_raw_peer(void **state)
{
	return setup_raw_peer_with_tso_settings(state, true, false);
}

static int teardown_tso_with_raw_peer(void **state)
{
	const int rc = teardown_raw_tcp_peer(state);

	fixture_wire_offloads = fixture_stack_uses_no_tso = false;
	return rc;
}

/* ---- scenarios, by side 0 and the raw peer ---- */

/* A connection that nothing limits but the peer's window, of 1 MB. */
static struct app *tso_connect_with_large_windows(void)
{
	struct app *app = stack_connects_to_raw_peer();

	app->conn->cc.cwnd = UINT32_C(1) << 20;
	app->conn->pcb->snd_scale = 4;
	app->conn->pcb->snd_wnd = UINT32_C(1) << 20;
	atomic_store(&app->conn->sndbuf, UINT32_C(1) << 20);
	return app;
}

static void tso_send_bytes_and_run(struct app *app, size_t n)
{
	atomic_store(&app->conn->sndbuf, UINT32_C(1) << 20);
	while (n != 0) {
		const size_t sent = fixture_send_bytes(app, n);

		assert_true(sent > 0);
		n -= sent;
	}
	fixture_run_until_idle();
}

static void tso_peer_sends_ack(uint32_t theirs)
{
	raw_send_segment(1, 1 + theirs, TCP_ACK, "", 0);
}

/* An acknowledgement with one SACK block, relative as the others. */
static void tso_peer_sends_sack(uint32_t theirs, uint32_t left, uint32_t right)
{
	uint8_t options[12] = {1, 1, 5, 10};

	raw_store_be(options + 4, raw.their_isn + left, 4);
	raw_store_be(options + 8, raw.their_isn + right, 4);
	raw_send_segment_with_options(1, 1 + theirs, TCP_ACK, options, 12, 0, "", 0);
}

static void play_tso_bulk(void)
{
	struct app *app = tso_connect_with_large_windows();

	tso_send_bytes_and_run(app, 100000);
	for (uint32_t acked = 7000; acked < 100000; acked += 7000)
		tso_peer_sends_ack(acked);
	tso_peer_sends_ack(100000);
	tso_send_bytes_and_run(app, 2500);
	tso_send_bytes_and_run(app, 1001);
	tso_send_bytes_and_run(app, 1000);
	app_free(app);
}

static void play_tso_timestamps(void)
{
	struct app *app;

	raw.ts = 77;
	app = tso_connect_with_large_windows();
	tso_send_bytes_and_run(app, 20000);
	fixture_run_for_ns(10 * MS);
	raw.ts = 99;
	tso_peer_sends_ack(5000);
	tso_send_bytes_and_run(app, 20500);
	app_free(app);
}

/* As much as the congestion window lets go at a time; then a peer's window that ends within a segment. */
static void play_tso_limited_windows(void)
{
	struct app *app = stack_connects_to_raw_peer();

	tso_send_bytes_and_run(app, 60000);
	for (uint32_t acked = 2000; acked <= 20000; acked += 2000)
		tso_peer_sends_ack(acked);
	raw.window = 2500;
	tso_peer_sends_ack(22000);
	for (uint32_t acked = 23000; acked < 60000; acked += 1700)
		tso_peer_sends_ack(acked);
	fixture_run_for_ns(2 * SEC);
	app_free(app);
}

/* A hole in a packet, another one in the next: single segments are sent again, and new ones beside them. */
static void play_tso_loss(void)
{
	struct app *app = stack_connects_to_raw_peer_with_sack();

	app->conn->cc.cwnd = 40000;
	tso_send_bytes_and_run(app, 80000);
	for (uint32_t at = 3000; at <= 9000; at += 1000)
		tso_peer_sends_sack(2000, 1 + 3000, 1 + at);
	tso_peer_sends_sack(2000, 1 + 11000, 1 + 20000);
	tso_peer_sends_ack(10000);
	tso_peer_sends_ack(25000);
	fixture_run_for_ns(3 * SEC); /* a probe for the tail, then timeouts */
	tso_peer_sends_ack(30000);
	fixture_run_for_ns(1 * SEC);
	app_free(app);
}

static void play_tso_shutdown(void)
{
	struct app *app = tso_connect_with_large_windows();

	assert_true(vma_ring_acquire(side[0].ring));
	assert_int_equal(fixture_send_bytes(app, 30500), 30500);
	vma_tcp_shutdown(app->conn, SHUT_WR);
	vma_ring_release(side[0].ring);
	fixture_run_until_idle();
	tso_peer_sends_ack(30501);
	app_free(app);
}

static void play_tso_urgent(void)
{
	struct app *app = tso_connect_with_large_windows();

	assert_true(vma_ring_acquire(side[0].ring));
	assert_int_equal(fixture_send_bytes(app, 10000), 10000);
	assert_int_equal(send_flags(app, 500, VMA_TCP_TX_URGENT), 500);
	assert_int_equal(fixture_send_bytes(app, 10000), 10000);
	vma_ring_release(side[0].ring);
	fixture_run_until_idle();
	tso_peer_sends_ack(20500);
	tso_send_bytes_and_run(app, 5000);
	app_free(app);
}

static void play_tso_cork(void)
{
	struct app *app = tso_connect_with_large_windows();

	vma_tcp_set_option(app->conn, VMA_TCP_OPT_CORK, 1);
	tso_send_bytes_and_run(app, 4700);
	tso_send_bytes_and_run(app, 4700);
	tso_peer_sends_ack(9000);
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_CORK, 0);
	fixture_run_until_idle();
	tso_peer_sends_ack(9400);
	app_free(app);
}

static void play_tso_paced(void)
{
	struct app *app = stack_connects_to_raw_peer();
	uint32_t acked = 0;

	vma_tcp_set_option(app->conn, VMA_TCP_OPT_CONGESTION, VMA_TCP_CC_BBR);
	tso_send_bytes_and_run(app, 60000);
	for (int i = 0; i < 30; i++) {
		fixture_run_for_ns(2 * MS);
		acked += acked < 60000 ? 2000 : 0;
		tso_peer_sends_ack(acked);
	}
	app_free(app);
}

/* The path becomes narrower while segments are out: they are cut, and leave by themselves. */
static void play_tso_path_gets_narrow(void)
{
	struct vma_tcp_path path = fixture_path_to_peer_of(0, 800);
	struct app *app = tso_connect_with_large_windows();

	tso_send_bytes_and_run(app, 20000);
	vma_tcp_set_path(app->conn, &path);
	fixture_run_until_idle();
	fixture_run_for_ns(2 * SEC);
	tso_peer_sends_ack(10000);
	tso_send_bytes_and_run(app, 10000);
	app_free(app);
}

static const struct scenario {
	const char *name;
	void (*play)(void);
	bool cuts; /* several segments leave together in it */
} scenarios[] = {
        {"bulk", play_tso_bulk, true},
        {"stamps", play_tso_timestamps, true},
        {"windows", play_tso_limited_windows, true},
        {"loss", play_tso_loss, true},
        {"shut", play_tso_shutdown, true},
        {"urgent", play_tso_urgent, false},
        {"cork", play_tso_cork, true},
        {"paced", play_tso_paced, false},
        {"narrow", play_tso_path_gets_narrow, true},
};

/* ---- tests ---- */

/* What was seen, without what differs from run to run. */
static struct raw_segment *tso_run_scenario_and_copy_segments(const struct scenario *s, bool no_tso, unsigned *count)
{
	struct raw_segment *seen = calloc(RAW_SEGMENTS_LOGGED_MAX, sizeof(*seen));
	uint64_t start_ns;
	void *state = NULL;

	setup_raw_peer_with_tso_settings(&state, true, no_tso);
	start_ns = fixture_now_ns;
	s->play();
	*count = raw.count;
	memcpy(seen, raw.log, raw.count * sizeof(*seen));
	for (unsigned i = *count; i-- > 0;) {
		seen[i].ip_id = (uint16_t)(seen[i].ip_id - seen[0].ip_id);
		seen[i].seq_absolute = 0;
		seen[i].at_ns -= start_ns;
	}
	teardown_tso_with_raw_peer(&state);
	return seen;
}

static void test_the_peer_sees_the_same_segments_as_without(void **state)
{
	(void)state;
	for (unsigned i = 0; i < sizeof(scenarios) / sizeof(*scenarios); i++) {
		unsigned count, count_cut;
		struct raw_segment *single = tso_run_scenario_and_copy_segments(&scenarios[i], true, &count), *cut;

		assert_int_equal(tso_packets, 0);
		cut = tso_run_scenario_and_copy_segments(&scenarios[i], false, &count_cut);
		assert_true(tso_packets > 0 || !scenarios[i].cuts);
		for (unsigned k = 0; k < count && k < count_cut; k++)
			if (memcmp(&single[k], &cut[k], sizeof(*cut)) != 0)
				fail_msg("%s: segment %u differs: seq %u, %u; len %u, %u; flags %x, %x; id %u, %u; "
				         "at %lu, %lu",
				         scenarios[i].name, k, single[k].seq, cut[k].seq, single[k].len, cut[k].len,
				         single[k].flags, cut[k].flags, single[k].ip_id, cut[k].ip_id,
				         (unsigned long)single[k].at_ns, (unsigned long)cut[k].at_ns);
		assert_int_equal(count, count_cut);
		free(single);
		free(cut);
	}
}

static void test_bulk_leaves_in_packets_of_many_segments(void **state)
{
	struct app *app = tso_connect_with_large_windows();

	(void)state;
	raw_mark_all_segments_seen();
	tso_send_bytes_and_run(app, 50000);
	assert_int_equal(raw_unseen_count(), 50);
	assert_in_range(tso_packets, 1, 2);
	assert_in_range(tso_most_pieces_seen, 20, 32);
	assert_true(tso_most_bytes_seen > 40000);
	assert_in_range(fixture_stack_counts(0).segments_out, 50, 53);
	app_free(app);
}

static void test_a_packet_has_no_more_bytes_and_pieces_than_the_nic_takes(void **state)
{
	struct app *app = tso_connect_with_large_windows();

	(void)state;
	side[0].tcp->tso_bytes = 7500;
	tso_send_bytes_and_run(app, 50000);
	assert_int_equal(tso_most_bytes_seen, 7000);
	assert_in_range(tso_packets, 7, 8);
	tso_peer_sends_ack(50000);
	side[0].tcp->tso_bytes = 60000;
	side[0].tcp->tso_segs = 3;
	tso_send_bytes_and_run(app, 50000);
	assert_int_equal(tso_most_pieces_seen, 4 /* of before */);
	tso_peer_sends_ack(100000);
	tso_most_pieces_seen = 0;
	tso_send_bytes_and_run(app, 50000);
	assert_int_equal(tso_most_pieces_seen, 3);
	app_free(app);
}

static void test_what_is_sent_again_goes_by_single_segments(void **state)
{
	struct app *app = tso_connect_with_large_windows();
	unsigned packets;

	(void)state;
	tso_send_bytes_and_run(app, 20000);
	packets = tso_packets;
	assert_true(packets > 0);
	raw_mark_all_segments_seen();
	fixture_run_for_ns(5 * SEC);
	assert_true(raw_unseen_count() > 0);
	assert_int_equal(raw_next_segment()->len, TSO_MSS);
	assert_int_equal(tso_packets, packets);
	app_free(app);
}

/* A connection with small segments has its quota of frames, with such a NIC, too. */
static void test_small_segments_leave_one_by_one(void **state)
{
	struct app *app = tso_connect_with_large_windows();

	(void)state;
	app->conn->mss = 48;
	tso_send_bytes_and_run(app, 480);
	assert_int_equal(tso_packets, 0);
	app_free(app);
}

static void test_buffers_that_run_out_end_a_packet(void **state)
{
	struct vma_bufpool *pool = atomic_load(&vma_ring_qp(side[0].ring)->tx_pool);
	struct app *app = tso_connect_with_large_windows();
	struct vma_buf *held[4096];
	unsigned n;

	(void)state;
	n = vma_bufpool_get(pool, held, 4096);
	vma_buf_put_burst(fixture_arena, held + n - 10, 10);
	tso_send_bytes_and_run(app, 60000);
	vma_buf_put_burst(fixture_arena, held, n - 10);
	fixture_run_for_ns(100 * MS); /* tried again */
	for (uint32_t i = 0, at = 1; at <= 60000; i++) {
		const struct raw_segment *s = raw_next_segment();

		assert_true(s->seq <= at);
		for (uint32_t k = 0; k < s->len; k++)
			assert_int_equal(s->data[k], fixture_pattern_byte_at(s->seq - 1 + k));
		at = s->seq + s->len > at ? s->seq + s->len : at;
	}
	assert_true(tso_packets > 0);
	app_free(app);
}

static int setup_raw_peer_without_nic_offload(void **state)
{
	return setup_raw_peer_with_tso_settings(state, false, false);
}

static void test_a_nic_that_does_not_cut_gets_single_segments(void **state)
{
	struct app *app = tso_connect_with_large_windows();

	(void)state;
	assert_int_equal(side[0].tcp->tso_bytes, 0);
	tso_send_bytes_and_run(app, 50000);
	assert_int_equal(tso_packets, 0);
	assert_true(tso_packets_not_cut >= 50);
	app_free(app);
}

static int setup_tso_pair(void **state)
{
	fixture_wire_offloads = true;
	fixture_open(state);
	hook_tx_to_count_tso_packets();
	return 0;
}

static int teardown_tso_pair(void **state)
{
	const int rc = fixture_close(state);

	fixture_wire_offloads = false;
	return rc;
}

static void test_bytes_arrive_over_a_wire_that_loses_and_turns_round(void **state)
{
	struct app *client, *server;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	for (uint32_t i = 0; i < 4; i++) {
		fixture_set_wire_faults(0, (struct vma_wire_faults){.seed = i + 1,
		                                                    .loss_ppm = 5000 * i,
		                                                    .reorder_ppm = 2000 * i,
		                                                    .delay_ns = 20000,
		                                                    .jitter_ns = 3000 * i});
		fixture_set_wire_faults(
		        1, (struct vma_wire_faults){.seed = i + 9, .loss_ppm = 5000 * i, .delay_ns = 20000});
		fixture_transfer_and_check_bytes(client, server, 2000000, 600 * SEC);
		assert_true(tso_packets > 50);
		tso_packets = 0;
	}
	assert_true(fixture_stack_counts(0).retransmits > 0);
	app_free(client);
}

#define TSO_CASE(f) cmocka_unit_test_setup_teardown(f, setup_tso_with_raw_peer, teardown_tso_with_raw_peer)

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_peer_sees_the_same_segments_as_without),
        TSO_CASE(test_bulk_leaves_in_packets_of_many_segments),
        TSO_CASE(test_a_packet_has_no_more_bytes_and_pieces_than_the_nic_takes),
        TSO_CASE(test_what_is_sent_again_goes_by_single_segments),
        TSO_CASE(test_small_segments_leave_one_by_one),
        TSO_CASE(test_buffers_that_run_out_end_a_packet),
        cmocka_unit_test_setup_teardown(test_a_nic_that_does_not_cut_gets_single_segments,
                                        setup_raw_peer_without_nic_offload, teardown_tso_with_raw_peer),
        cmocka_unit_test_setup_teardown(test_bytes_arrive_over_a_wire_that_loses_and_turns_round, setup_tso_pair,
                                        teardown_tso_pair),
};
VMA_TEST_MAIN(tests)
