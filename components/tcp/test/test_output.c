/* What leaves, and when: segment sizes, Nagle and cork, windows of the peer, PSH, the path. */
#include "raw.h"

static void raw_peer_acks_bytes(uint32_t theirs)
{
	raw_send_segment(1, 1 + theirs, TCP_ACK, "", 0);
}

static void test_bytes_leave_in_full_segments_the_last_with_push(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	assert_int_equal(fixture_send_bytes(app, 2500), 2500);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 3);
	for (uint32_t i = 0; i < 3; i++) {
		const struct raw_segment *s = raw_next_segment();

		assert_int_equal(s->seq, 1 + i * 1000);
		assert_int_equal(s->len, i < 2 ? 1000 : 500);
		assert_int_equal(s->flags, i < 2 ? TCP_ACK : TCP_ACK | TCP_PSH);
		for (uint32_t k = 0; k < s->len; k++)
			assert_int_equal(s->data[k], fixture_pattern_byte_at(i * 1000 + k));
	}
	assert_int_equal(vma_tcp_tx_unacked_bytes(app->conn), 2500);
	assert_int_equal(vma_tcp_tx_unsent(app->conn), 0);
	raw_peer_acks_bytes(2500);
	assert_int_equal(vma_tcp_tx_unacked_bytes(app->conn), 0);
	app_free(app);
}

static void test_initial_window_is_ten_segments(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	assert_int_equal(fixture_send_bytes(app, 30000), 30000);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 10);
	assert_int_equal(vma_tcp_tx_unsent(app->conn), 20000);
	app_free(app);
}

/* No limit but the stack's own. */
static struct app *stack_connects_without_window_limits(void)
{
	struct app *app = stack_connects_to_raw_peer();

	app->conn->cc.cwnd = UINT32_C(1) << 20;
	app->conn->pcb->snd_scale = 4;
	app->conn->pcb->snd_wnd = UINT32_C(1) << 20;
	atomic_store(&app->conn->sndbuf, UINT32_C(1) << 20);
	return app;
}

/* Of the route, also where it becomes known only when the connection is there. */
static void test_metrics_of_the_route_are_kept(void **state)
{
	struct vma_tcp_path path = fixture_path_to_peer_of(0, 1500);
	struct app *app = calloc(1, sizeof(*app));
	const uint8_t options[4] = {2, 4, 1000 >> 8, 1000 & 255};

	(void)state;
	path.advmss = 700;
	path.initcwnd = 3;
	path.quickack = true;
	assert_int_equal(fixture_connect_rc(0, 1000, RAW_PORT, &path, app), 0);
	fixture_run_until_idle();
	assert_int_equal(raw.log[0].options[2] << 8 | raw.log[0].options[3], 700);
	raw_send_segment_with_options(0, 1, TCP_SYN | TCP_ACK, options, 4, 0, "", 0);
	raw_mark_all_segments_seen();
	fixture_send_bytes(app, 10000);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 3);
	assert_int_equal(raw_next_segment()->len, 1000); /* the peer's word, not ours */
	raw_send_segment(1, 3001, TCP_ACK, "", 0);
	fixture_run_for_ns(SEC);
	raw_mark_all_segments_seen();
	for (uint32_t at = 1; at < 400; at += 10) {
		raw_send_bytes(at, 3001, 10);
		assert_int_equal(raw_last_segment()->ack, at + 10);
	}
	app_free(app);
	fixture_run_until_idle();
	raw_mark_all_segments_seen();
	app = stack_connects_to_raw_peer();
	path.initcwnd = 17;
	vma_tcp_set_path(app->conn, &path);
	fixture_run_until_idle();
	raw_mark_all_segments_seen();
	fixture_send_bytes(app, 60000);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 17);
	app_free(app);
}

static void test_what_was_told_of_the_route_is_in_force_for_whoever_asks_next(void **state)
{
	struct vma_tcp_path path = fixture_path_to_peer_of(0, 1500);
	struct app *app = stack_connects_to_raw_peer();
	struct vma_tcp_info info;

	(void)state;
	path.initcwnd = 17;
	assert_true(vma_ring_acquire(side[0].ring));
	assert_int_equal(vma_tcp_set_path(app->conn, &path), 0);
	vma_tcp_info(app->conn, &info);
	vma_ring_release(side[0].ring);
	assert_int_equal(info.kernel.tcpi_snd_cwnd, 17);
	app_free(app);
}

static void test_what_comes_meanwhile_is_read_before_more_than_a_kick_takes_is_sent(void **state)
{
	struct app *app = stack_connects_without_window_limits();
	uint8_t data[100] = {0};
	unsigned n;

	(void)state;
	assert_true(vma_ring_acquire(side[0].ring));
	assert_int_equal(fixture_send_bytes(app, 100000), 100000);
	raw_send_segment(1, 1, TCP_ACK, data, sizeof(data));
	vma_ring_release(side[0].ring);
	fixture_run_until_idle();
	for (n = 0; raw_unseen_count() > 0; n++)
		assert_int_equal(raw_next_segment()->ack, n <= TCP_FRAMES ? 1 : 1 + sizeof(data));
	assert_int_equal(n, 100);
	app_free(app);
}

/* Another one, whose peer the raw one is from now on. */
static struct app *stack_opens_second_connection_to_raw_peer(void)
{
	struct vma_tcp_path path = fixture_path_to_peer_of(0, side[0].nic->info.mtu);
	struct app *app = calloc(1, sizeof(*app));

	assert_int_equal(fixture_connect_rc(0, 1001, RAW_PORT, &path, app), 0);
	fixture_run_until_idle();
	raw_send_segment(0, 1, TCP_SYN | TCP_ACK, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_ESTABLISHED);
	return app;
}

static void test_a_run_goes_on_after_a_kick_if_nothing_has_come(void **state)
{
	struct app *app = stack_connects_without_window_limits();

	(void)state;
	assert_true(vma_ring_acquire(side[0].ring));
	assert_int_equal(fixture_send_bytes(app, 200000), 200000);
	conn_enqueue_ready(app->conn);
	assert_false(side[0].tcp->proto_ops.run(&side[0].tcp->proto_ops, false));
	assert_int_equal(vma_tcp_tx_unsent(app->conn), 0);
	vma_ring_release(side[0].ring);
	fixture_run_until_idle();
	app_free(app);
}

static void test_a_run_ends_after_a_kick_if_something_has_come(void **state)
{
	struct app *app = stack_connects_without_window_limits();
	uint8_t data[100] = {0};

	(void)state;
	assert_true(vma_ring_acquire(side[0].ring));
	assert_int_equal(fixture_send_bytes(app, 200000), 200000);
	raw_send_segment(1, 1, TCP_ACK, data, sizeof(data));
	conn_enqueue_ready(app->conn);
	assert_true(side[0].tcp->proto_ops.run(&side[0].tcp->proto_ops, false));
	assert_int_equal(vma_tcp_tx_unsent(app->conn), 200000 - (TCP_FRAMES + 1) * 1000); /* one had no room before */
	vma_ring_release(side[0].ring);
	fixture_run_until_idle();
	app_free(app);
}

static bool event_came_before_return;

static void note_event_during_return(struct vma_tcp_conn *conn, void *arg, uint32_t events)
{
	(void)conn, (void)arg;
	if (events & VMA_TCP_READABLE)
		event_came_before_return |= side[0].tcp->output_deferred;
}

static void test_what_comes_while_another_sends_much_is_told_in_between(void **state)
{
	static const struct vma_tcp_conn_ops watcher = {.event = note_event_during_return};
	struct app *sender = stack_connects_without_window_limits(),
	           *reader = stack_opens_second_connection_to_raw_peer();
	uint8_t data[100] = {0};

	(void)state;
	event_came_before_return = false;
	atomic_store(&reader->conn->owner, &watcher);
	assert_true(vma_ring_acquire(side[0].ring));
	assert_int_equal(fixture_send_bytes(sender, 200000), 200000);
	/* More than is read at once, so that something waits still when the second kick returns. */
	for (uint32_t i = 0; i < 300; i++)
		raw_send_segment(1 + i * (uint32_t)sizeof(data), 1, TCP_ACK, data, sizeof(data));
	vma_ring_release(side[0].ring);
	assert_true(event_came_before_return);
	fixture_run_until_idle();
	app_free(sender);
	app_free(reader);
}

/* One run has both: the one with a small MSS does not fill the wire before the other one's only segment. */
static void test_small_segments_of_one_do_not_keep_another_waiting(void **state)
{
	struct app *small = stack_connects_without_window_limits(),
	           *other = stack_opens_second_connection_to_raw_peer();
	unsigned n = 0;

	(void)state;
	raw_mark_all_segments_seen();
	small->conn->mss = 48;
	assert_true(vma_ring_acquire(side[0].ring));
	assert_int_equal(fixture_send_bytes(small, 4800), 4800);
	assert_int_equal(fixture_send_bytes(other, 100), 100);
	vma_ring_release(side[0].ring);
	fixture_run_until_idle();
	while (raw_next_segment()->len != 100)
		n++;
	assert_in_range(n, 1, 8);
	fixture_run_for_ns(5 * MS); /* the share of such connections is used up */
	while (raw_unseen_count() > 0)
		n += raw_next_segment()->len == 48;
	assert_int_equal(n, 100);
	app_free(small);
	app_free(other);
}

/* Written when there was memory; when there is none any more, segments are made of it as others are acknowledged. */
static void test_no_segments_are_made_without_memory_for_them(void **state)
{
	struct app *app = stack_connects_without_window_limits();
	struct vma_tcp_memory *memory = side[0].tcp->attr.memory;
	const int64_t limit = memory->limit;
	uint32_t acked = 0;

	(void)state;
	assert_true(vma_ring_acquire(side[0].ring));
	assert_int_equal(fixture_send_bytes(app, 100000), 100000);
	memory->limit = 0;
	vma_ring_release(side[0].ring);
	fixture_run_until_idle();
	assert_in_range(raw_unseen_count(), 1, 5);
	while (acked < 100000) {
		acked = raw_last_segment()->seq - 1 + raw.log[raw.count - 1].len;
		raw.count = raw.seen = 0;
		raw_peer_acks_bytes(acked);
		assert_in_range(raw_unseen_count(), acked < 100000, 5);
	}
	memory->limit = limit;
	app_free(app);
}

static void test_what_is_acknowledged_counts_as_what_will_come(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	uint8_t data[1000] = {0};

	(void)state;
	assert_true(vma_ring_acquire(side[0].ring));
	for (uint32_t i = 0; i < 10; i++)
		raw_send_segment(1 + i * 1000, 1, TCP_ACK, data, sizeof(data));
	vma_ring_release(side[0].ring);
	vma_ring_progress(side[0].ring);
	assert_int_equal(side[0].tcp->acked_since_kick, 10000);
	app_free(app);
}

static void test_window_of_the_peer_is_kept(void **state)
{
	struct app *app;

	(void)state;
	raw.window = 2500;
	app = stack_connects_to_raw_peer();
	assert_int_equal(fixture_send_bytes(app, 10000), 10000);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 2); /* half a segment more would be silly */
	raw_mark_all_segments_seen();
	raw.window = 500;
	raw_peer_acks_bytes(2000);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 0);
	raw.window = 4000;
	raw_peer_acks_bytes(2000);
	assert_int_equal(raw_unseen_count(), 4);
	app_free(app);
}

static void test_window_too_small_for_a_segment_is_used_in_the_end(void **state)
{
	struct app *app;

	(void)state;
	raw.window = 300;
	app = stack_connects_to_raw_peer();
	assert_int_equal(fixture_send_bytes(app, 1000), 1000);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 1); /* the whole of a window that small */
	assert_int_equal(raw_next_segment()->len, 300);
	raw.window = 100;
	raw_peer_acks_bytes(300);
	assert_int_equal(raw_unseen_count(), 0);
	fixture_run_for_ns(SEC);
	assert_int_equal(raw_next_segment()->len, 100);
	app_free(app);
}

static void test_closed_window_is_probed_until_it_opens(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	raw.window = 0;
	raw_peer_acks_bytes(0);
	assert_int_equal(fixture_send_bytes(app, 1000), 1000);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 0);
	fixture_run_for_ns(10 * SEC);
	assert_true(raw_unseen_count() >= 3);
	assert_int_equal(raw_last_segment()->len, 0);
	raw.window = 2000;
	raw_peer_acks_bytes(0);
	assert_int_equal(raw_last_segment()->len, 1000);
	app_free(app);
}

/* Nagle's rule as Minshall has it: one short segment in flight is enough. */
/* A FIN that the window does not let out is not tried once per millisecond. */
static void test_fin_behind_a_window_taken_back_waits_for_an_acknowledgement(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	unsigned turns = 0;

	(void)state;
	fixture_send_bytes(app, 1000);
	fixture_run_until_idle();
	raw.window = 500;
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	vma_tcp_close(app->conn, false);
	fixture_run_until_idle();
	raw_mark_all_segments_seen();
	for (uint64_t end = fixture_now_ns + 100 * MS; fixture_now_ns < end; turns++) {
		fixture_now_ns =
		        fixture_next_event_ns() > fixture_now_ns ? fixture_next_event_ns() : fixture_now_ns + 1000;
		fixture_run_until_idle();
	}
	assert_true(turns < 20);
	raw.window = 65535;
	raw_send_segment(1, 1001, TCP_ACK, "", 0);
	assert_true(raw_last_segment()->flags & TCP_FIN);
	app_free(app);
}

static size_t take_all_tx_frames(struct vma_buf **held)
{
	size_t n = 0;

	while ((held[n] = vma_ring_tx_buf(side[0].ring)) != NULL)
		n++;
	return n;
}

/* What found no frame, and then no window, is probed for as what was never made a segment of. */
static void test_segment_without_a_frame_behind_a_closed_window_is_probed_for(void **state)
{
	static struct vma_buf *held[1 << 16];
	struct app *app = stack_connects_to_raw_peer();
	size_t n;

	(void)state;
	n = take_all_tx_frames(held);
	fixture_send_bytes(app, 1000);
	fixture_run_until_idle();
	assert_non_null(app->conn->pcb->unsent);
	raw.window = 0;
	vma_buf_put(fixture_arena, held[--n]);
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	while (n > 0)
		vma_buf_put(fixture_arena, held[--n]);
	raw_mark_all_segments_seen();
	fixture_run_for_ns(SEC);
	assert_int_equal(raw_next_segment()->seq, 0); /* a probe */
	raw_mark_all_segments_seen();
	raw.window = 65535;
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(raw_last_segment()->len, 1000);
	app_free(app);
}

/* Its owner has gone: nothing leaves, perhaps for ever. */
static void test_lost_queue_pair_is_not_tried_each_millisecond(void **state)
{
	static struct vma_buf *held[1 << 16];
	struct vma_nic_qp *qp = vma_ring_qp(side[0].ring);
	struct app *app = stack_connects_to_raw_peer();
	unsigned turns = 0;
	size_t n;

	(void)state;
	n = take_all_tx_frames(held);
	atomic_store(&qp->lost, true);
	fixture_send_bytes(app, 1000);
	fixture_run_until_idle();
	for (uint64_t end = fixture_now_ns + SEC; fixture_now_ns < end; turns++) {
		fixture_now_ns =
		        fixture_next_event_ns() > fixture_now_ns ? fixture_next_event_ns() : fixture_now_ns + 1000;
		fixture_run_until_idle();
	}
	assert_true(turns < 40);
	while (n > 0)
		vma_buf_put(fixture_arena, held[--n]);
	atomic_store(&qp->lost, false);
	raw_mark_all_segments_seen();
	fixture_run_for_ns(100 * MS);
	assert_int_equal(raw_next_segment()->len, 1000);
	app_free(app);
}

static void test_second_short_segment_waits_for_the_first(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	fixture_send_bytes(app, 10);
	fixture_run_until_idle();
	assert_int_equal(raw_next_segment()->len, 10);
	fixture_send_bytes(app, 10);
	fixture_send_bytes(app, 10);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 0);
	raw_peer_acks_bytes(10);
	assert_int_equal(raw_next_segment()->len, 20);
	app_free(app);
}

static void test_short_segment_behind_full_ones_does_not_wait(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	fixture_send_bytes(app, 1000);
	fixture_run_until_idle();
	fixture_send_bytes(app, 10);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 2);
	app_free(app);
}

static void test_nodelay_lets_short_segments_go(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	fixture_send_bytes(app, 10);
	fixture_send_bytes(app, 10);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 1);
	assert_int_equal(vma_tcp_set_option(app->conn, VMA_TCP_OPT_NODELAY, 1), 0); /* what waits goes, too */
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 2);
	fixture_send_bytes(app, 10);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 3);
	app_free(app);
}

static void test_cork_holds_short_segments_back_for_200_ms(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_CORK, 1);
	fixture_send_bytes(app, 1010);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 1);
	raw_peer_acks_bytes(1000);
	fixture_run_for_ns(150 * MS);
	assert_int_equal(raw_unseen_count(), 1);
	fixture_run_for_ns(100 * MS);
	assert_int_equal(raw_unseen_count(), 2);
	fixture_send_bytes(app, 10);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 2);
	raw_peer_acks_bytes(1010);
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_CORK, 0);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 3);
	app_free(app);
}

static void test_nodelay_sends_what_is_corked(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_CORK, 1);
	fixture_send_bytes(app, 10);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 0);
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_NODELAY, 1);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 1);
	fixture_send_bytes(app, 10); /* the cork is still there */
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 1);
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_NODELAY, 1); /* each time that it is set */
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 2);
	app_free(app);
}

static void test_more_waits_for_more(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_NODELAY, 1);
	send_flags(app, 10, VMA_TCP_TX_MORE);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 0);
	send_flags(app, 10, 0);
	fixture_run_until_idle();
	assert_int_equal(raw_next_segment()->len, 20);
	raw_peer_acks_bytes(20);
	send_flags(app, 10, VMA_TCP_TX_MORE);
	fixture_run_for_ns(300 * MS);
	assert_int_equal(raw_next_segment()->len, 10); /* not for ever */
	app_free(app);
}

static void test_commit_for_later_waits_for_push(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	send_flags(app, 10, VMA_TCP_TX_LATER);
	send_flags(app, 10, VMA_TCP_TX_LATER);
	assert_int_equal(raw_unseen_count(), 0);
	vma_tcp_send_committed(app->conn);
	fixture_run_until_idle();
	assert_int_equal(raw_next_segment()->len, 20);
	app_free(app);
}

static void test_urgent_pointer_points_behind_the_urgent_byte(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	const struct raw_segment *s;

	(void)state;
	send_flags(app, 10, VMA_TCP_TX_URGENT);
	fixture_run_until_idle();
	s = raw_next_segment();
	assert_true(s->flags & TCP_URG);
	assert_int_equal(s->urgent, 10);
	send_flags(app, 5, 0);
	raw_peer_acks_bytes(10);
	fixture_run_until_idle();
	s = raw_next_segment();
	assert_int_equal(s->len, 5);
	assert_false(s->flags & TCP_URG);
	app_free(app);
}

static void test_tos_and_ttl_and_fragmentation_are_as_set(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	const struct raw_segment *s;

	(void)state;
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_TOS, 0x10);
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_TTL, 7);
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_PMTUDISC, 0);
	fixture_send_bytes(app, 1);
	fixture_run_until_idle();
	s = raw_next_segment();
	assert_int_equal(s->tos, 0x10);
	assert_int_equal(s->ttl, 7);
	assert_false(s->dont_fragment);
	app_free(app);
}

static void test_smaller_path_mtu_cuts_what_is_in_flight(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	uint8_t seen[4000] = {0};

	(void)state;
	fixture_send_bytes(app, 3999);
	fixture_run_until_idle();
	assert_int_equal(raw_unseen_count(), 4);
	raw_mark_all_segments_seen();
	vma_tcp_post_icmp_error(app->conn, 3, 4, 600, raw.their_isn + 1);
	fixture_run_for_ns(SEC);
	assert_true(raw_unseen_count() > 0);
	while (raw_unseen_count() > 0) {
		const struct raw_segment *s = raw_next_segment();

		assert_true(s->len <= 560);
		assert_true(s->seq - 1 + s->len <= 3999);
		for (uint32_t k = 0; k < s->len; k++) {
			assert_int_equal(s->data[k], fixture_pattern_byte_at(s->seq - 1 + k));
			seen[s->seq - 1 + k] = 1;
		}
		raw_peer_acks_bytes(s->seq - 1 + s->len);
	}
	for (unsigned i = 0; i < 3999; i++)
		assert_true(seen[i]);
	assert_int_equal(vma_tcp_tx_unacked_bytes(app->conn), 0);
	app_free(app);
}

static void test_what_could_not_be_cut_is_cut_before_it_is_sent_again(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	uint32_t end = 1;

	(void)state;
	fixture_send_bytes(app, 10000);
	fixture_run_for_ns(1 * MS);
	fixture_alloc_fails = true;
	vma_tcp_post_icmp_error(app->conn, 3, 4, 600, raw.their_isn + 1);
	fixture_run_until_idle();
	assert_true(fixture_stack_counts(0).no_memory > 0);
	raw_mark_all_segments_seen();
	fixture_run_for_ns(5 * MS);
	while (raw_unseen_count() > 0)
		assert_in_range(raw_next_segment()->len, 0, 560);
	fixture_alloc_fails = false;
	while (end < 10001) {
		raw_send_segment(1, end, TCP_ACK, "", 0);
		fixture_run_for_ns(1 * SEC);
		assert_true(raw_unseen_count() > 0);
		while (raw_unseen_count() > 0) {
			const struct raw_segment *s = raw_next_segment();

			assert_in_range(s->len, 0, 560);
			if (s->seq == end)
				end += s->len;
		}
	}
	app_free(app);
}

static void test_mtu_of_an_unrelated_packet_changes_nothing(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	fixture_send_bytes(app, 1000);
	fixture_run_until_idle();
	vma_tcp_post_icmp_error(app->conn, 3, 4, 600, raw.their_isn + 5000);
	fixture_send_bytes(app, 1000);
	fixture_run_until_idle();
	raw_next_segment();
	assert_int_equal(raw_next_segment()->len, 1000);
	app_free(app);
}

static void test_unreachable_ends_an_attempt_not_a_connection(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	fixture_send_bytes(app, 1);
	vma_tcp_post_icmp_error(app->conn, 3, 1, 0, raw.their_isn + 1);
	fixture_run_until_idle();
	assert_int_equal(vma_tcp_state(app->conn), TCP_ESTABLISHED);
	app_free(app);
	raw_mark_all_segments_seen();
	app = stack_sends_syn_to_raw_peer();
	vma_tcp_post_icmp_error(app->conn, 3, 1, 0, raw.their_isn);
	fixture_run_until_idle();
	assert_int_equal(vma_tcp_error(app->conn), EHOSTUNREACH);
	app_free(app);
}

static void test_syn_waits_for_a_way_and_goes_when_there_is_one(void **state)
{
	struct vma_tcp_path nowhere = {0}, path = fixture_path_to_peer_of(0, 1500);
	struct app *app = calloc(1, sizeof(*app));

	(void)state;
	assert_int_equal(fixture_connect_rc(0, 1000, RAW_PORT, &nowhere, app), 0);
	fixture_run_for_ns(100 * MS);
	assert_int_equal(raw_unseen_count(), 0);
	vma_tcp_set_path(app->conn, &path);
	fixture_run_until_idle();
	assert_int_equal(raw_next_segment()->flags, TCP_SYN);
	app_free(app);
}

static void test_connect_without_answer_times_out(void **state)
{
	struct app *app;

	(void)state;
	side[0].options.syncnt = 1;
	app = stack_sends_syn_to_raw_peer();
	fixture_run_for_ns(200 * SEC);
	assert_int_equal(vma_tcp_error(app->conn), ETIMEDOUT);
	assert_true(raw_unseen_count() >= 2);
	app_free(app);
}

static void test_lack_of_memory_delays_and_loses_nothing(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	send_flags(app, 300, VMA_TCP_TX_LATER);
	fixture_alloc_fails = true;
	vma_tcp_send_committed(app->conn);
	fixture_run_for_ns(20 * MS);
	fixture_alloc_fails = false;
	fixture_run_for_ns(5 * MS);
	assert_true(raw_unseen_count() >= 1);
	assert_int_equal(raw_next_segment()->len, 300);
	app_free(app);
}

static const struct CMUnitTest tests[] = {
        RAW_CASE(test_bytes_leave_in_full_segments_the_last_with_push),
        RAW_CASE(test_initial_window_is_ten_segments),
        RAW_CASE(test_metrics_of_the_route_are_kept),
        RAW_CASE(test_what_was_told_of_the_route_is_in_force_for_whoever_asks_next),
        RAW_CASE(test_what_comes_meanwhile_is_read_before_more_than_a_kick_takes_is_sent),
        RAW_CASE(test_a_run_goes_on_after_a_kick_if_nothing_has_come),
        RAW_CASE(test_a_run_ends_after_a_kick_if_something_has_come),
        RAW_CASE(test_what_comes_while_another_sends_much_is_told_in_between),
        RAW_CASE(test_small_segments_of_one_do_not_keep_another_waiting),
        RAW_CASE(test_no_segments_are_made_without_memory_for_them),
        RAW_CASE(test_what_is_acknowledged_counts_as_what_will_come),
        RAW_CASE(test_window_of_the_peer_is_kept),
        RAW_CASE(test_window_too_small_for_a_segment_is_used_in_the_end),
        RAW_CASE(test_closed_window_is_probed_until_it_opens),
        RAW_CASE(test_fin_behind_a_window_taken_back_waits_for_an_acknowledgement),
        RAW_CASE(test_segment_without_a_frame_behind_a_closed_window_is_probed_for),
        RAW_CASE(test_lost_queue_pair_is_not_tried_each_millisecond),
        RAW_CASE(test_second_short_segment_waits_for_the_first),
        RAW_CASE(test_short_segment_behind_full_ones_does_not_wait),
        RAW_CASE(test_nodelay_lets_short_segments_go),
        RAW_CASE(test_cork_holds_short_segments_back_for_200_ms),
        RAW_CASE(test_nodelay_sends_what_is_corked),
        RAW_CASE(test_more_waits_for_more),
        RAW_CASE(test_commit_for_later_waits_for_push),
        RAW_CASE(test_urgent_pointer_points_behind_the_urgent_byte),
        RAW_CASE(test_tos_and_ttl_and_fragmentation_are_as_set),
        RAW_CASE(test_smaller_path_mtu_cuts_what_is_in_flight),
        RAW_CASE(test_what_could_not_be_cut_is_cut_before_it_is_sent_again),
        RAW_CASE(test_mtu_of_an_unrelated_packet_changes_nothing),
        RAW_CASE(test_unreachable_ends_an_attempt_not_a_connection),
        RAW_CASE(test_syn_waits_for_a_way_and_goes_when_there_is_one),
        RAW_CASE(test_connect_without_answer_times_out),
        RAW_CASE(test_lack_of_memory_delays_and_loses_nothing),
};
VMA_TEST_MAIN(tests)
