/* Loss recovery: what is sent again and when, how much, and that nothing ever waits for ever. */
#include "recovery_fixture.h"

static uint32_t lost_segment[32], lost_segment_times_left[32];
static unsigned lost_count;

/* Loses the segments lose(n) named, counted from 0, as often as said. */
static bool drop_listed_segments(uint32_t offset, bool ack)
{
	for (unsigned i = 0; i < lost_count && !ack; i++) {
		if (offset / MSS == lost_segment[i] && lost_segment_times_left[i]) {
			lost_segment_times_left[i]--;
			return true;
		}
	}
	return false;
}

static void list_segment_to_lose(uint32_t segment, uint32_t times)
{
	lost_segment[lost_count] = segment;
	lost_segment_times_left[lost_count++] = times;
	w.drop = drop_listed_segments;
}

static void setup_recovery_connection(void)
{
	setup_established_connection_and_link(VMA_TCP_CC_LWIP);
	lost_count = 0;
}

/* A round-trip time is known, as after any first exchange. */
static void setup_connection_with_rtt_sample(void)
{
	setup_recovery_connection();
	rtt_sample(&w.conn.rtt, 2 * w.delay_ns, w.tcp.now_ns);
}

static void disable_sack_of_connection(void)
{
	w.no_sack = true;
	w.pcb.flags &= (tcpflags_t)~TF_SACK;
}

static uint64_t delivery_time_ns(void)
{
	return w.delivered_ns - 100 * SECOND;
}

/* ---- without loss ---- */

static void test_nothing_is_sent_again_when_nothing_is_lost(void **state)
{
	(void)state;
	setup_recovery_connection();
	fixture_write_app_bytes(1000 * MSS);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.agains, 0);
	assert_int_equal(w.outs, 1000);
	assert_int_equal(w.conn.rtt.srtt_ns, 20 * MS);
	assert_true(wheel_next_due_ns(&w.tcp.wheel) == UINT64_MAX);
}

static void test_slow_start_doubles_each_round_trip(void **state)
{
	(void)state;
	setup_recovery_connection();
	fixture_write_app_bytes(10000 * MSS);
	fixture_run_until(100 * SECOND + 1);
	assert_int_equal(w.outs, 10);
	fixture_run_until(100 * SECOND + 20 * MS + 1);
	assert_int_equal(w.outs, 10 + 20);
	fixture_run_until(100 * SECOND + 40 * MS + 1);
	assert_int_equal(w.outs, 10 + 20 + 40);
}

static void test_window_that_was_not_used_does_not_grow(void **state)
{
	(void)state;
	setup_recovery_connection();
	for (unsigned i = 0; i < 50; i++) {
		fixture_write_app_bytes(2 * MSS);
		fixture_run_until(w.tcp.now_ns + 50 * MS);
	}
	assert_int_equal(w.conn.cc.cwnd, 10 * MSS);
}

static void test_window_shrinks_after_silence(void **state)
{
	(void)state;
	setup_recovery_connection();
	fixture_write_app_bytes(300 * MSS);
	fixture_run_until(FOREVER);
	assert_true(w.conn.cc.cwnd > 100 * MSS);
	fixture_run_until(w.tcp.now_ns + 3600 * SECOND);
	fixture_write_app_bytes(100 * MSS);
	fixture_run_until(w.tcp.now_ns + 1);
	assert_int_equal(w.conn.cc.cwnd, 10 * MSS);
	assert_int_equal(scoreboard_bytes_unacked(&w.conn), 10 * MSS);
}

/* ---- fast recovery ---- */

static void test_window_stays_after_silence_where_the_host_says_so(void **state)
{
	uint32_t cwnd;

	(void)state;
	setup_recovery_connection();
	fixture_write_app_bytes(100 * MSS);
	fixture_run_until(100 * SECOND + 500 * MS);
	cwnd = w.conn.cc.cwnd;
	assert_true(cwnd > 40 * MSS);
	w.tcp.attr.no_idle_restart = true;
	fixture_run_until(110 * SECOND);
	fixture_write_app_bytes(MSS);
	fixture_run_until(110 * SECOND + MS);
	assert_int_equal(w.conn.cc.cwnd, cwnd);
}

static void test_one_loss_is_repaired_in_one_more_round_trip(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	list_segment_to_lose(3, 1);
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.agains, 1);
	assert_int_equal(w.last_again_ns, 100 * SECOND + 20 * MS);
	assert_int_equal(delivery_time_ns(), 30 * MS);
	assert_int_equal(w.conn.counts.timeouts, 0);
	assert_int_equal(w.conn.counts.fast_recoveries, 1);
}

static void test_several_losses_in_a_window_need_no_more_time_than_one(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	list_segment_to_lose(0, 1);
	list_segment_to_lose(2, 1);
	list_segment_to_lose(4, 1);
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.agains, 3);
	assert_true(delivery_time_ns() <= 50 * MS);
	assert_int_equal(w.conn.counts.timeouts, 0);
	assert_int_equal(w.conn.counts.fast_recoveries, 1);
}

static void test_window_is_halved_once_for_losses_of_one_flight(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	list_segment_to_lose(20, 1);
	list_segment_to_lose(25, 1);
	list_segment_to_lose(29, 1);
	fixture_write_app_bytes(200 * MSS);
	fixture_run_until(100 * SECOND + 55 * MS);
	assert_int_equal(w.conn.recovery.state, TCP_RECOVERY_FAST);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.conn.counts.fast_recoveries, 1);
	assert_int_equal(w.agains, 3);
}

/* RFC 6937: what leaves while the pipe is above ssthresh is the part of what is delivered that halves it. */
static void test_rate_is_reduced_in_proportion(void **state)
{
	uint32_t before, sent;

	(void)state;
	setup_connection_with_rtt_sample();
	list_segment_to_lose(70, 1); /* the first of a flight of 80 */
	fixture_write_app_bytes(2000 * MSS);
	fixture_run_until(100 * SECOND + 60 * MS + 1);
	before = w.sent;
	assert_int_equal(before, 150);
	fixture_run_until(100 * SECOND + 70 * MS + 1);
	sent = w.sent;
	fixture_run_until(100 * SECOND + 80 * MS + 1);
	/* 79 segments SACKed at once in this network: half of them, one of which repairs the loss */
	assert_in_range(w.sent - sent, 38, 41);
	assert_true(recovery_bytes_in_flight(&w.conn) <= w.conn.cc.ssthresh + MSS);
	fixture_run_until(100 * SECOND + 120 * MS);
	assert_int_equal(w.conn.recovery.state, TCP_RECOVERY_OPEN);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.agains, 1);
}

static void test_two_duplicates_are_reordering_and_let_new_data_out(void **state)
{
	struct tcp_ack ack;

	(void)state;
	setup_connection_with_rtt_sample();
	w.mute = true;
	fixture_write_app_bytes(100 * MSS);
	fixture_run_until(100 * SECOND + 20 * MS);
	assert_int_equal(w.outs, 10);
	ack = (struct tcp_ack){.ackno = ISS, .window = w.window, .blocks = 1};
	ack.block[0].left = ISS + MSS;
	ack.block[0].right = ISS + 2 * MSS;
	fixture_receive_ack(&ack);
	fixture_send_allowed_segments();
	assert_int_equal(w.outs, 11); /* RFC 3042 */
	ack.block[0].right = ISS + 3 * MSS;
	fixture_receive_ack(&ack);
	fixture_send_allowed_segments();
	assert_int_equal(w.outs, 12);
	assert_int_equal(w.agains, 0);
	assert_int_equal(w.conn.recovery.state, TCP_RECOVERY_DISORDER);
	ack.block[0].right = ISS + 4 * MSS;
	fixture_receive_ack(&ack);
	fixture_send_allowed_segments();
	assert_int_equal(w.agains, 1);
	assert_int_equal(w.conn.recovery.state, TCP_RECOVERY_FAST);
}

/* Three SACKed segments of a few bytes are three arrivals as well. */
static void test_lost_retransmission_is_found_by_what_comes_after_it(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	list_segment_to_lose(15, 2);
	fixture_write_app_bytes(400 * MSS);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.conn.counts.timeouts, 0);
	assert_int_equal(w.agains, 2);
}

/* Both left at one time, and nothing after them. */
static void test_lost_retransmission_is_found_by_one_that_left_behind_it(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	list_segment_to_lose(3, 2);
	list_segment_to_lose(4, 1);
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.conn.counts.timeouts, 0);
	assert_int_equal(w.agains, 3);
}

static void test_retransmission_lost_thrice_is_still_no_timeout(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	list_segment_to_lose(15, 4);
	fixture_write_app_bytes(1000 * MSS);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.conn.counts.timeouts, 0);
	assert_int_equal(w.agains, 4);
}

/* Its SACK is due a round-trip time after it; a quarter later it goes again, which is before the first repair is known.
 */
static void test_segment_at_the_end_of_recovery_is_rescued_once(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	list_segment_to_lose(3, 1);
	list_segment_to_lose(9, 1); /* the last of all */
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(100 * SECOND + 24 * MS);
	assert_int_equal(w.agains, 1);
	fixture_run_until(100 * SECOND + 26 * MS);
	assert_int_equal(w.agains, 2);
	assert_int_equal(w.last_again_seq, ISS + 9 * MSS);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.agains, 2);
	assert_int_equal(w.conn.counts.timeouts, 0);

	setup_connection_with_rtt_sample();
	w.no_dsack = true;
	list_segment_to_lose(3, 3);
	list_segment_to_lose(9, 3);
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(100 * SECOND + 100 * MS);
	assert_int_equal(w.agains, 2);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
}

/* Karn: an ACK that a retransmission has released says nothing about the segments behind it. */
static void test_what_waited_behind_a_hole_is_no_sample(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	disable_sack_of_connection();
	w.no_timestamps = true;
	list_segment_to_lose(3, 1);
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.agains, 1);
	assert_int_equal(w.conn.rtt.latest_ns, 20 * MS);
}

/* Segment 9 has been repeated, but it is its original that is acknowledged: what was sent between is not lost. */
static void test_answer_to_an_original_makes_nothing_lost(void **state)
{
	struct tcp_ack ack;

	(void)state;
	setup_connection_with_rtt_sample();
	w.mute = true;
	w.conn.cc.cwnd = 11 * MSS;
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(100 * SECOND + 3 * MS);
	fixture_write_app_bytes(MSS);
	fixture_run_until(100 * SECOND + 5 * MS);
	for (struct tcp_seg *seg = w.pcb.unacked; seg; seg = seg->next) {
		if (seg_seq(seg) == ISS + 9 * MSS)
			scoreboard_mark_lost(&w.conn, seg);
	}
	fixture_send_allowed_segments();
	assert_int_equal(w.last_again_seq, ISS + 9 * MSS);
	w.tcp.now_ns = 100 * SECOND + 20 * MS;
	ack = (struct tcp_ack){.ackno = ISS + 10 * MSS, .window = w.window};
	fixture_receive_ack(&ack);
	assert_int_equal(w.conn.recovery.lost_bytes, 0);
	assert_true(w.conn.recovery.reorder_due_ns == UINT64_MAX);
}

/* RFC 6937, below ssthresh: as much as is delivered, and one segment more when an ACK advances without new losses. */
static void test_what_leaves_below_the_threshold_grows_by_one_segment_per_ack(void **state)
{
	struct tcp_ack ack;

	(void)state;
	setup_connection_with_rtt_sample();
	w.mute = true;
	w.conn.cc.cwnd = 40 * MSS;
	fixture_write_app_bytes(1000 * MSS);
	fixture_run_until(100 * SECOND + 20 * MS);
	assert_int_equal(w.outs, 40);
	ack = (struct tcp_ack){.ackno = ISS, .window = w.window, .blocks = 1};
	ack.block[0].left = ISS + 30 * MSS;
	ack.block[0].right = ISS + 40 * MSS;
	fixture_receive_ack(&ack); /* 30 lost, nothing in flight, ssthresh 20: ten delivered, ten may leave */
	fixture_send_allowed_segments();
	assert_int_equal(w.conn.cc.ssthresh, 20 * MSS);
	assert_int_equal(w.agains, 10);
	w.tcp.now_ns += 20 * MS;
	ack.ackno = ISS + MSS;
	fixture_receive_ack(&ack); /* the first repair: one left, one more than that may come */
	fixture_send_allowed_segments();
	assert_int_equal(w.agains, 12);
	ack.ackno = ISS + 2 * MSS;
	fixture_receive_ack(&ack);
	fixture_send_allowed_segments();
	assert_int_equal(w.agains, 14);
	assert_int_equal(w.outs, 40);
}

static void test_duplicates_never_stand_for_more_than_is_out(void **state)
{
	struct tcp_ack ack;

	(void)state;
	setup_connection_with_rtt_sample();
	disable_sack_of_connection();
	w.mute = true;
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(100 * SECOND + 20 * MS);
	ack = (struct tcp_ack){.ackno = ISS, .window = w.window};
	for (unsigned i = 0; i < 100; i++) {
		fixture_receive_ack(&ack);
		fixture_send_allowed_segments();
	}
	assert_int_equal(w.conn.recovery.dup_bytes, 9 * MSS);
	assert_int_equal(w.agains, 1);
}

static void test_new_data_does_not_overtake_what_is_lost(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	w.mute = true;
	fixture_write_app_bytes(100 * MSS);
	fixture_run_until(100 * SECOND + 50 * MS);
	recovery_on_rto(&w.conn);
	w.conn.cc.cwnd = 5 * MSS;
	assert_int_equal(recovery_new_bytes_allowed(&w.conn), 0);
	w.pcb.snd_wnd = 0; /* nor when the window keeps it from leaving */
	fixture_send_allowed_segments();
	assert_int_equal(recovery_new_bytes_allowed(&w.conn), 0);
}

static void test_use_of_the_window_is_forgotten_after_a_round(void **state)
{
	uint32_t cwnd;

	(void)state;
	setup_connection_with_rtt_sample();
	w.conn.cc.ssthresh = 20 * MSS; /* so that only a full window counts */
	fixture_write_app_bytes(100 * MSS);
	fixture_run_until(FOREVER);
	fixture_write_app_bytes(MSS);
	fixture_run_until(FOREVER);
	cwnd = w.conn.cc.cwnd;
	for (unsigned i = 0; i < 200; i++) {
		fixture_write_app_bytes(2 * MSS);
		fixture_run_until(w.tcp.now_ns + 100 * MS);
	}
	assert_int_equal(w.conn.cc.cwnd, cwnd);
}

/* ---- without SACK ---- */

static void test_newreno_repairs_one_loss_per_round_trip(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	disable_sack_of_connection();
	list_segment_to_lose(10, 1);
	list_segment_to_lose(14, 1);
	list_segment_to_lose(18, 1);
	fixture_write_app_bytes(60 * MSS);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.agains, 3);
	assert_int_equal(w.conn.counts.timeouts, 0);
	assert_int_equal(w.conn.counts.fast_recoveries, 1);
}

static void test_newreno_begins_at_the_third_duplicate(void **state)
{
	struct tcp_ack ack;

	(void)state;
	setup_connection_with_rtt_sample();
	disable_sack_of_connection();
	fixture_write_app_bytes(100 * MSS);
	fixture_run_until(100 * SECOND + 1);
	ack = (struct tcp_ack){.ackno = ISS, .window = w.window};
	for (unsigned i = 0; i < 2; i++) {
		fixture_receive_ack(&ack);
		fixture_send_allowed_segments();
	}
	assert_int_equal(w.outs, 12);
	assert_int_equal(w.agains, 0);
	fixture_receive_ack(&ack);
	fixture_send_allowed_segments();
	assert_int_equal(w.agains, 1);
	assert_int_equal(w.last_again_seq, ISS);
	assert_int_equal(w.conn.cc.ssthresh, 6 * MSS);
}

static void test_window_update_is_no_duplicate(void **state)
{
	struct tcp_ack ack;

	(void)state;
	setup_connection_with_rtt_sample();
	disable_sack_of_connection();
	fixture_write_app_bytes(100 * MSS);
	fixture_run_until(100 * SECOND + 1);
	ack = (struct tcp_ack){.ackno = ISS, .window = w.window};
	for (unsigned i = 0; i < 5; i++) {
		ack.window -= 1000;
		fixture_receive_ack(&ack);
		fixture_send_allowed_segments();
	}
	ack.payload = 100;
	for (unsigned i = 0; i < 5; i++) {
		fixture_receive_ack(&ack);
		fixture_send_allowed_segments();
	}
	assert_int_equal(w.agains, 0);
	assert_int_equal(w.conn.recovery.dup_acks, 0);
}

/* ---- timeouts ---- */

static void test_timeout_repeats_the_head_and_doubles(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	w.mute = true;
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(100 * SECOND + 41 * MS + 1);
	assert_int_equal(w.conn.counts.tail_probes, 1);
	fixture_run_until(100 * SECOND + 41 * MS + 219 * MS);
	assert_int_equal(w.agains, 1);
	fixture_run_until(100 * SECOND + 41 * MS + 221 * MS); /* timeout: 20 + 200 ms after the probe */
	assert_int_equal(w.agains, 2);
	assert_int_equal(w.last_again_seq, ISS);
	assert_int_equal(w.conn.cc.cwnd, MSS);
	assert_int_equal(w.conn.recovery.state, TCP_RECOVERY_LOSS);
	fixture_run_until(w.last_again_ns + 439 * MS);
	assert_int_equal(w.agains, 2);
	fixture_run_until(w.last_again_ns + 441 * MS);
	assert_int_equal(w.agains, 3);
	fixture_run_until(w.last_again_ns + 881 * MS);
	assert_int_equal(w.agains, 4);
}

static void test_after_a_timeout_all_is_repaired_in_slow_start(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	for (uint32_t i = 0; i < 10; i++)
		list_segment_to_lose(i, 1);
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.conn.counts.spurious, 0);
	assert_int_equal(w.conn.recovery.state, TCP_RECOVERY_OPEN);
	assert_int_equal(w.conn.recovery.timeouts, 0);
	assert_int_equal(w.conn.recovery.backoff, 0);
}

static void test_second_timeout_for_the_same_loss_leaves_the_threshold(void **state)
{
	uint32_t ssthresh;

	(void)state;
	setup_established_connection_and_link(VMA_TCP_CC_CUBIC); /* which reduces by cwnd, one segment by now */
	rtt_sample(&w.conn.rtt, 20 * MS, w.tcp.now_ns);
	w.mute = true;
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(101 * SECOND);
	ssthresh = w.conn.cc.ssthresh;
	assert_int_equal(ssthresh, 7 * MSS);
	fixture_run_until(120 * SECOND);
	assert_int_equal(w.conn.cc.ssthresh, ssthresh);
}

static void test_receiver_that_drops_what_it_has_sacked_gets_it_again(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	list_segment_to_lose(0, 3);
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(100 * SECOND + 50 * MS);
	assert_true(w.conn.recovery.sacked_segments > 0);
	w.ooo_count = 0; /* reneging */
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
}

/* The head is repaired, and with it comes the word that what follows is not there any more: no timeout is waited for.
 */
static void test_receiver_that_drops_what_it_has_sacked_is_soon_known(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	list_segment_to_lose(0, 1);
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(100 * SECOND + 25 * MS);
	assert_int_equal(w.conn.recovery.sacked_segments, 9);
	w.ooo_count = 0; /* reneging */
	fixture_run_until(100 * SECOND + 150 * MS);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.conn.counts.timeouts, 1);
	fixture_run_until(FOREVER);
}

static void test_all_lost_for_a_while_and_all_arrives(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	fixture_write_app_bytes(500 * MSS);
	fixture_run_until(100 * SECOND + 50 * MS);
	w.mute = true;
	fixture_run_until(200 * SECOND);
	w.mute = false;
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.error, 0);
}

/* ---- tail-loss probes ---- */

static void test_lost_tail_is_found_by_a_probe_not_by_a_timeout(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	list_segment_to_lose(9, 1);
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.conn.counts.tail_probes, 1);
	assert_int_equal(w.conn.counts.timeouts, 0);
}

static void test_several_lost_at_the_tail_are_found_by_one_probe(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	for (uint32_t i = 5; i < 10; i++)
		list_segment_to_lose(i, 1);
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.conn.counts.tail_probes, 1);
	assert_int_equal(w.conn.counts.timeouts, 0);
	assert_true(delivery_time_ns() < 200 * MS);
}

static void test_probe_is_new_data_if_there_is_some(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	w.mute = true;
	fixture_write_app_bytes(11 * MSS);
	fixture_run_until(100 * SECOND + 1);
	assert_int_equal(w.outs, 10);
	fixture_run_until(100 * SECOND + 50 * MS);
	assert_int_equal(w.outs, 11);
	assert_int_equal(w.agains, 0);
	assert_int_equal(w.conn.counts.tail_probes, 1);
}

static void test_probe_that_repaired_a_loss_counts_as_one(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	list_segment_to_lose(9, 1);
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(100 * SECOND + 500 * MS);
	assert_true(fixture_all_bytes_delivered());
	assert_true(w.conn.cc.ssthresh == UINT32_MAX);
	fixture_write_app_bytes(5 * MSS);
	fixture_run_until(FOREVER);
	assert_true(w.conn.cc.ssthresh != UINT32_MAX);
}

static void test_probe_for_nothing_counts_as_nothing(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	w.delay_ns = 40 * MS; /* later than the probe expects */
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(100 * SECOND + 500 * MS);
	assert_int_equal(w.conn.counts.tail_probes, 1);
	fixture_write_app_bytes(5 * MSS);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_true(w.conn.cc.ssthresh == UINT32_MAX);
}

/* A peer that says it again, as it does for a probe that it did not need, or reports what came twice. */
static void check_tail_probe_after_duplicate_ack(unsigned dsacks)
{
	struct tcp_ack twice = {.window = 1 << 24, .has_ts = true, .blocks = dsacks};

	setup_connection_with_rtt_sample();
	list_segment_to_lose(9, 1);
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(100 * SECOND + 25 * MS);
	assert_int_equal(w.pcb.lastack, ISS + 9 * MSS);
	twice.ackno = w.pcb.lastack;
	twice.ts_ecr = w.ts_recent;
	twice.block[0].left = ISS + 8 * MSS;
	twice.block[0].right = ISS + 9 * MSS;
	fixture_receive_ack(&twice);
	assert_int_equal(w.conn.counts.dup_acks_in, 1);
	assert_int_equal(w.conn.recovery.state, TCP_RECOVERY_OPEN);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.conn.counts.tail_probes, 1);
	assert_int_equal(w.conn.counts.timeouts, 0);
}

static void test_probe_is_sent_after_a_duplicate_acknowledgement(void **state)
{
	(void)state;
	check_tail_probe_after_duplicate_ack(0);
	check_tail_probe_after_duplicate_ack(1);
}

/* ---- what was not lost ---- */

/* What flies, and all that will, takes a second longer. */
static void delay_all_by_a_second(void)
{
	for (struct flying *f = w.flying; f; f = f->next)
		f->at_ns += SECOND;
	w.delay_ns += SECOND;
}

static void test_spurious_timeout_is_taken_back_by_time_stamps(void **state)
{
	uint32_t cwnd;

	(void)state;
	setup_connection_with_rtt_sample();
	fixture_write_app_bytes(300 * MSS);
	fixture_run_until(100 * SECOND + 55 * MS);
	cwnd = w.conn.cc.cwnd;
	delay_all_by_a_second();
	fixture_run_until(100 * SECOND + 2500 * MS);
	assert_true(w.conn.counts.timeouts > 0);
	assert_true(w.conn.counts.spurious > 0);
	assert_true(w.conn.cc.cwnd >= cwnd);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_in_range(w.agains, 1, 9);
}

static void test_spurious_timeout_is_taken_back_without_time_stamps(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	w.no_timestamps = true;
	fixture_write_app_bytes(300 * MSS);
	fixture_run_until(100 * SECOND + 55 * MS);
	delay_all_by_a_second();
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_true(w.conn.counts.timeouts > 0);
	assert_true(w.conn.counts.spurious > 0);
	assert_in_range(w.agains, 1, 9);
}

static void test_true_timeout_is_not_taken_back(void **state)
{
	(void)state;
	for (unsigned without = 0; without < 4; without++) {
		setup_connection_with_rtt_sample();
		w.no_timestamps = without & 1;
		if (without & 2)
			disable_sack_of_connection();
		for (uint32_t i = 10; i < 30; i++)
			list_segment_to_lose(i, 2);
		fixture_write_app_bytes(300 * MSS);
		fixture_run_until(FOREVER);
		assert_true(fixture_all_bytes_delivered());
		assert_true(w.conn.counts.timeouts > 0);
		assert_int_equal(w.conn.counts.spurious, 0);
	}
}

/* Moves the flying data segment with this number back behind `places` others. */
static void delay_segment(uint32_t number, uint64_t by_ns)
{
	struct flying **link = &w.flying, *f;

	while (*link && ((*link)->is_ack || (*link)->seq != ISS + number * MSS))
		link = &(*link)->next;
	f = *link;
	assert_non_null(f);
	*link = f->next;
	f->at_ns += by_ns;
	for (link = &w.flying; *link && (*link)->at_ns <= f->at_ns;)
		link = &(*link)->next;
	f->next = *link;
	*link = f;
}

static void test_reordering_is_taken_back_and_learned_from(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	fixture_write_app_bytes(1000 * MSS);
	fixture_run_until(100 * SECOND + 45 * MS); /* a flight of 40: 30 to 69 */
	delay_segment(32, 8 * MS);
	fixture_run_until(100 * SECOND + 100 * MS);
	assert_int_equal(w.agains, 1);
	assert_int_equal(w.conn.counts.spurious, 1);
	assert_true(w.conn.recovery.reordering_seen);
	assert_true(w.conn.recovery.dup_threshold > 30);
	/* The same again does not even begin a recovery. */
	fixture_run_until(w.tcp.now_ns + 5 * MS);
	for (struct flying *f = w.flying; f; f = f->next) {
		if (!f->is_ack) {
			delay_segment((f->seq - ISS) / MSS + 2, 4 * MS);
			break;
		}
	}
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.agains, 1);
	assert_int_equal(w.conn.counts.fast_recoveries, 1);
}

static void test_dsack_takes_back_what_time_stamps_could_not(void **state)
{
	uint32_t ssthresh_before;

	(void)state;
	setup_connection_with_rtt_sample();
	w.no_timestamps = true;
	ssthresh_before = w.conn.cc.ssthresh;
	fixture_write_app_bytes(100 * MSS);
	fixture_run_until(100 * SECOND + 45 * MS);
	delay_segment(32, 8 * MS);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.agains, 1);
	assert_int_equal(w.conn.counts.spurious, 1);
	assert_int_equal(w.conn.cc.ssthresh, ssthresh_before);
}

static void test_dsack_for_what_was_never_repeated_is_the_networks(void **state)
{
	struct tcp_ack ack;

	(void)state;
	setup_connection_with_rtt_sample();
	fixture_write_app_bytes(100 * MSS);
	fixture_run_until(100 * SECOND + 25 * MS);
	ack = (struct tcp_ack){.ackno = w.pcb.lastack, .window = w.window, .blocks = 1};
	ack.block[0].left = ISS;
	ack.block[0].right = ISS + MSS;
	fixture_receive_ack(&ack);
	assert_int_equal(w.conn.recovery.reorder_steps, 0);
	assert_false(w.conn.recovery.delta.dsack);
	assert_int_equal(w.conn.recovery.sacked_segments, 0);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
}

/* ---- blocks that make no sense ---- */

static void test_impossible_sack_blocks_change_nothing(void **state)
{
	static const struct range bad[] = {
	        {ISS + 5 * MSS, ISS + 5 * MSS},
	        {ISS + 5 * MSS, ISS + 4 * MSS},
	        {ISS, ISS + 5 * MSS},
	        {ISS - 5 * MSS, ISS + 5 * MSS},
	        {ISS + 2 * MSS, ISS + 1000 * MSS},
	        {ISS + 11 * MSS, ISS + 12 * MSS},
	        {ISS + 0x80000000u, ISS + 0x80001000u},
	        {ISS + 2 * MSS + 1, ISS + 3 * MSS - 1},
	};

	(void)state;
	setup_connection_with_rtt_sample();
	fixture_write_app_bytes(100 * MSS);
	fixture_run_until(100 * SECOND + 1);
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct tcp_ack ack = {.ackno = ISS, .window = w.window, .blocks = 2};

		ack.block[0].left = ack.block[1].left = bad[i].left;
		ack.block[0].right = ack.block[1].right = bad[i].right;
		fixture_receive_ack(&ack);
		assert_int_equal(w.conn.recovery.sacked_segments, 0);
		assert_int_equal(w.conn.recovery.lost_bytes, 0);
	}
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
}

static void test_ack_beyond_what_was_sent_changes_nothing(void **state)
{
	struct tcp_ack ack;

	(void)state;
	setup_connection_with_rtt_sample();
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(100 * SECOND + 1);
	ack = (struct tcp_ack){.ackno = ISS + 11 * MSS, .window = w.window};
	fixture_receive_ack(&ack);
	fixture_check_scoreboard_invariants();
	assert_int_equal(w.conn.recovery.delta.acked, 0);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
}

/* ---- surroundings ---- */

static void test_no_frame_means_later_not_never(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	list_segment_to_lose(3, 1);
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(100 * SECOND + 15 * MS);
	w.frames = 0;
	fixture_run_until(100 * SECOND + 25 * MS);
	assert_int_equal(w.agains, 0);
	assert_int_equal(scoreboard_bytes_to_resend(&w.conn), MSS);
	w.frames = -1;
	w.ready = true; /* as conn_enqueue_retry does a millisecond later */
	fixture_run_until(100 * SECOND + 26 * MS);
	assert_int_equal(w.agains, 1);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
}

static void test_rebuilt_list_is_counted_anew(void **state)
{
	(void)state;
	setup_connection_with_rtt_sample();
	w.mute = true;
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(100 * SECOND + 1);
	w.pcb.unacked->marks |= SEG_LOST;
	w.pcb.unacked->next->marks |= SEG_LOST;
	recovery_begin_resend_of_oversized(&w.conn);
	fixture_check_scoreboard_invariants();
	assert_int_equal(scoreboard_bytes_to_resend(&w.conn), 2 * MSS);
	w.mute = false;
	fixture_send_allowed_segments();
	assert_int_equal(w.agains, 2);
	assert_int_equal(w.conn.cc.cwnd, 10 * MSS);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.conn.counts.timeouts, 0);
}

static void test_what_is_beyond_a_shrunk_window_waits(void **state)
{
	struct tcp_ack ack;

	(void)state;
	setup_connection_with_rtt_sample();
	w.mute = true;
	fixture_write_app_bytes(10 * MSS);
	fixture_run_until(100 * SECOND + 1);
	w.pcb.snd_wnd = w.window = 2 * MSS;
	fixture_run_until(102 * SECOND);
	assert_true(w.conn.counts.timeouts >= 2);
	ack = (struct tcp_ack){.ackno = ISS + MSS, .window = MSS};
	w.agains = 0;
	fixture_receive_ack(&ack);
	fixture_send_allowed_segments();
	assert_int_equal(w.agains, 1); /* the head, and nothing behind it */
}

/* An ACK for the segments before `una`, with two blocks (the second may be empty); what follows from it is sent. */
static void receive_ack_with_two_sack_blocks(uint32_t una, uint32_t left, uint32_t right, uint32_t left2,
                                             uint32_t right2)
{
	struct tcp_ack ack = {.ackno = ISS + una * MSS, .window = 1 << 24, .blocks = left2 != right2 ? 2 : 1};

	ack.block[0].left = ISS + left * MSS;
	ack.block[0].right = ISS + right * MSS;
	ack.block[1].left = ISS + left2 * MSS;
	ack.block[1].right = ISS + right2 * MSS;
	fixture_receive_ack(&ack);
	fixture_send_allowed_segments();
}

/* By one ACK new segments leave, by another at the same time an old one again. The new ones arrive first. */
static void test_what_leaves_again_behind_new_segments_is_not_lost_when_those_arrive(void **state)
{
	uint32_t end;

	(void)state;
	setup_established_connection_and_link(VMA_TCP_CC_NONE);
	rtt_sample(&w.conn.rtt, 2 * w.delay_ns, w.tcp.now_ns);
	w.mute = true;
	fixture_write_app_bytes(20 * MSS);
	fixture_run_until(100 * SECOND + 1);
	w.tcp.now_ns += 20 * MS;
	receive_ack_with_two_sack_blocks(0, 1, 4, 0, 0);
	assert_int_equal(w.agains, 1); /* the head */
	w.tcp.now_ns += MS;
	fixture_write_app_bytes(10 * MSS);
	receive_ack_with_two_sack_blocks(0, 1, 6, 0, 0);
	assert_true(TCP_SEQ_GT(w.pcb.snd_nxt, ISS + 20 * MSS));
	end = (w.pcb.snd_nxt - ISS) / MSS;
	receive_ack_with_two_sack_blocks(0, 7, 20, 1, 6);
	assert_int_equal(w.agains, 2); /* one more */
	w.tcp.now_ns += 19 * MS;
	receive_ack_with_two_sack_blocks(6, 7, 20, 0, 0);
	w.tcp.now_ns += MS;
	receive_ack_with_two_sack_blocks(6, 7, end, 0, 0);
	assert_int_equal(w.agains, 2);
}

/* ---- any loss at all ---- */

static void run_random_lossy_transfer(uint32_t seed)
{
	static const double losses[] = {0, 0.001, 0.01, 0.05, 0.1, 0.25};

	setup_established_connection_and_link(seed % 3);
	w.seed = seed * 7919 + 1;
	w.loss = losses[fixture_draw_random() % 6];
	w.ack_loss = losses[fixture_draw_random() % 6];
	w.delay_ns = (1 + fixture_draw_random() % 100) * (fixture_draw_random() % 2 ? MS : MS / 100);
	w.jitter_ns = fixture_draw_random() % 2 ? 0 : fixture_draw_random() % (2 * w.delay_ns);
	w.ack_every = 1 + fixture_draw_random() % 3;
	w.no_timestamps = fixture_draw_random() % 4 == 0;
	w.no_dsack = fixture_draw_random() % 4 == 0;
	w.window = w.pcb.snd_wnd = fixture_draw_random() % 4 ? 1 << 24 : (2 + fixture_draw_random() % 30) * MSS;
	if (fixture_draw_random() % 4 == 0)
		disable_sack_of_connection();
	for (unsigned i = 0; i < 5; i++) {
		fixture_write_app_bytes(fixture_draw_random() % (200 * MSS));
		fixture_run_until(w.tcp.now_ns + fixture_draw_random() % 100 * MS);
	}
	fixture_run_until(FOREVER);
	if (!fixture_all_bytes_delivered())
		fail_msg("seed %u: error %d, %u of %u bytes, state %d", seed, w.error, w.rcv_nxt - ISS,
		         (uint32_t)fifo_produced(&w.conn.tx), (int)w.conn.recovery.state);
	assert_true(wheel_next_due_ns(&w.tcp.wheel) == UINT64_MAX);
	assert_int_equal(w.conn.recovery.state, TCP_RECOVERY_OPEN);
}

static void test_everything_arrives_whatever_is_lost(void **state)
{
	const char *only = getenv("SEED");

	(void)state;
	if (only) {
		run_random_lossy_transfer((uint32_t)strtoul(only, NULL, 10));
		return;
	}
	for (uint32_t seed = 0; seed < 1500; seed++)
		run_random_lossy_transfer(seed);
}

/* What an ACK costs must not depend on how much is unacknowledged: counted, not timed. */
static void test_segments_are_looked_at_once(void **state)
{
	struct tcp_ack ack;

	(void)state;
	setup_connection_with_rtt_sample();
	w.mute = true;
	w.conn.cc.cwnd = 4000 * MSS;
	fixture_write_app_bytes(4000 * MSS);
	fixture_run_until(100 * SECOND + 1);
	assert_int_equal(w.outs, 4000);
	/* A head that is missing, and SACKs that grow by a segment each: the search goes on where it was. */
	ack = (struct tcp_ack){.ackno = ISS, .window = w.window, .blocks = 1};
	ack.block[0].left = ISS + MSS;
	for (uint32_t i = 2; i < 4000; i++) {
		uint32_t steps = w.conn.recovery.sack_steps;

		ack.block[0].right = ISS + i * MSS;
		recovery_ack_before_lwip(&w.conn, &ack);
		assert_true(w.conn.recovery.sack_steps - steps <= 2 * SACK_RUN_LENGTH);
		assert_int_equal(w.conn.recovery.delta.delivered, MSS);
		recovery_ack_after_lwip(&w.conn, &ack);
		recovery_retransmit(&w.conn);
	}
	fixture_check_scoreboard_invariants();
	assert_int_equal(w.conn.recovery.sacked_segments, 3998);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_sent_again_when_nothing_is_lost),
        cmocka_unit_test(test_slow_start_doubles_each_round_trip),
        cmocka_unit_test(test_window_that_was_not_used_does_not_grow),
        cmocka_unit_test(test_window_shrinks_after_silence),
        cmocka_unit_test(test_window_stays_after_silence_where_the_host_says_so),
        cmocka_unit_test(test_one_loss_is_repaired_in_one_more_round_trip),
        cmocka_unit_test(test_several_losses_in_a_window_need_no_more_time_than_one),
        cmocka_unit_test(test_window_is_halved_once_for_losses_of_one_flight),
        cmocka_unit_test(test_rate_is_reduced_in_proportion),
        cmocka_unit_test(test_two_duplicates_are_reordering_and_let_new_data_out),
        cmocka_unit_test(test_lost_retransmission_is_found_by_what_comes_after_it),
        cmocka_unit_test(test_lost_retransmission_is_found_by_one_that_left_behind_it),
        cmocka_unit_test(test_retransmission_lost_thrice_is_still_no_timeout),
        cmocka_unit_test(test_what_leaves_again_behind_new_segments_is_not_lost_when_those_arrive),
        cmocka_unit_test(test_segment_at_the_end_of_recovery_is_rescued_once),
        cmocka_unit_test(test_what_waited_behind_a_hole_is_no_sample),
        cmocka_unit_test(test_answer_to_an_original_makes_nothing_lost),
        cmocka_unit_test(test_what_leaves_below_the_threshold_grows_by_one_segment_per_ack),
        cmocka_unit_test(test_duplicates_never_stand_for_more_than_is_out),
        cmocka_unit_test(test_new_data_does_not_overtake_what_is_lost),
        cmocka_unit_test(test_use_of_the_window_is_forgotten_after_a_round),
        cmocka_unit_test(test_newreno_repairs_one_loss_per_round_trip),
        cmocka_unit_test(test_newreno_begins_at_the_third_duplicate),
        cmocka_unit_test(test_window_update_is_no_duplicate),
        cmocka_unit_test(test_timeout_repeats_the_head_and_doubles),
        cmocka_unit_test(test_after_a_timeout_all_is_repaired_in_slow_start),
        cmocka_unit_test(test_second_timeout_for_the_same_loss_leaves_the_threshold),
        cmocka_unit_test(test_receiver_that_drops_what_it_has_sacked_gets_it_again),
        cmocka_unit_test(test_receiver_that_drops_what_it_has_sacked_is_soon_known),
        cmocka_unit_test(test_all_lost_for_a_while_and_all_arrives),
        cmocka_unit_test(test_lost_tail_is_found_by_a_probe_not_by_a_timeout),
        cmocka_unit_test(test_several_lost_at_the_tail_are_found_by_one_probe),
        cmocka_unit_test(test_probe_is_new_data_if_there_is_some),
        cmocka_unit_test(test_probe_that_repaired_a_loss_counts_as_one),
        cmocka_unit_test(test_probe_for_nothing_counts_as_nothing),
        cmocka_unit_test(test_probe_is_sent_after_a_duplicate_acknowledgement),
        cmocka_unit_test(test_spurious_timeout_is_taken_back_by_time_stamps),
        cmocka_unit_test(test_spurious_timeout_is_taken_back_without_time_stamps),
        cmocka_unit_test(test_true_timeout_is_not_taken_back),
        cmocka_unit_test(test_reordering_is_taken_back_and_learned_from),
        cmocka_unit_test(test_dsack_takes_back_what_time_stamps_could_not),
        cmocka_unit_test(test_dsack_for_what_was_never_repeated_is_the_networks),
        cmocka_unit_test(test_impossible_sack_blocks_change_nothing),
        cmocka_unit_test(test_ack_beyond_what_was_sent_changes_nothing),
        cmocka_unit_test(test_no_frame_means_later_not_never),
        cmocka_unit_test(test_rebuilt_list_is_counted_anew),
        cmocka_unit_test(test_what_is_beyond_a_shrunk_window_waits),
        cmocka_unit_test(test_everything_arrives_whatever_is_lost),
        cmocka_unit_test(test_segments_are_looked_at_once),
};
VMA_TEST_MAIN(tests)
