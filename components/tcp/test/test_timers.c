/* What each timer does, and when: the kernel's counts and intervals, each end with its error. */
#include "recovery_fixture.h"

static void option(enum vma_tcp_option which, int32_t value)
{
	atomic_store(&w.conn.option[which], value);
}

static uint64_t elapsed_virtual_ns(void)
{
	return w.tcp.now_ns - 100 * SECOND;
}

/* Times of all transmissions of data after the first, in milliseconds since the beginning. */
static uint32_t retransmission_times_ms[64];
static unsigned retransmission_count;

static bool drop_data_and_note_retransmission(uint32_t offset, bool ack)
{
	(void)offset;
	if (!ack && w.again && retransmission_count < 64)
		retransmission_times_ms[retransmission_count++] = (uint32_t)(elapsed_virtual_ns() / MS);
	return !ack;
}

/* Nothing arrives; what is sent again is noted. */
static void setup_connection_without_answers(enum tcp_state state)
{
	setup_established_connection_and_link(VMA_TCP_CC_CUBIC);
	retransmission_count = 0;
	w.drop = drop_data_and_note_retransmission;
	if (state != ESTABLISHED) {
		w.pcb.state = state;
		w.conn.connected = false;
	}
}

static void queue_segment_with_flag(uint8_t flag)
{
	append(new_segment(w.pcb.snd_nxt, 0, flag));
	w.ready = true;
}

static void assert_retransmissions_at(const uint32_t *ms, unsigned count)
{
	assert_int_equal(retransmission_count, count);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(retransmission_times_ms[i], ms[i]);
}

/* ---- handshakes ---- */

/* As the kernel since 6.5: a second each for the first ones, then doubled; 131 s in all. */
static void test_syn_is_repeated_as_the_kernel_does(void **state)
{
	static const uint32_t times[] = {1000, 2000, 3000, 4000, 5000, 7000, 11000, 19000, 35000, 67000};

	(void)state;
	setup_connection_without_answers(SYN_SENT);
	queue_segment_with_flag(TCP_SYN);
	fixture_run_until(FOREVER);
	assert_retransmissions_at(times, 10);
	assert_int_equal(w.error, ETIMEDOUT);
	assert_false(w.reset);
	assert_int_equal(elapsed_virtual_ns() / MS, 131000);
}

static void test_syncnt_limits_it(void **state)
{
	static const uint32_t times[] = {1000, 2000};

	(void)state;
	setup_connection_without_answers(SYN_SENT);
	option(VMA_TCP_OPT_SYNCNT, 1);
	queue_segment_with_flag(TCP_SYN);
	fixture_run_until(FOREVER);
	assert_retransmissions_at(times, 2);
	assert_int_equal(w.error, ETIMEDOUT);
	assert_int_equal(elapsed_virtual_ns() / MS,
	                 3000); /* 1 s + 2 s: the time that one doubled repetition would take */
}

static void test_user_timeout_ends_a_handshake_to_the_point(void **state)
{
	(void)state;
	setup_connection_without_answers(SYN_SENT);
	option(VMA_TCP_OPT_USER_TIMEOUT, 2500);
	queue_segment_with_flag(TCP_SYN);
	fixture_run_until(FOREVER);
	assert_int_equal(w.error, ETIMEDOUT);
	assert_int_equal(elapsed_virtual_ns() / MS, 2500);
}

static void test_soft_error_is_the_reason_that_is_told(void **state)
{
	(void)state;
	setup_connection_without_answers(SYN_SENT);
	w.conn.soft_error = EHOSTUNREACH;
	queue_segment_with_flag(TCP_SYN);
	fixture_run_until(FOREVER);
	assert_int_equal(w.error, EHOSTUNREACH);
}

static void test_syn_ack_is_repeated_five_times_doubled(void **state)
{
	static const uint32_t times[] = {1000, 3000, 7000, 15000, 31000};

	(void)state;
	setup_connection_without_answers(SYN_RCVD);
	w.conn.passive = true;
	queue_segment_with_flag(TCP_SYN | TCP_ACK);
	fixture_run_until(FOREVER);
	assert_retransmissions_at(times, 5);
	assert_int_equal(elapsed_virtual_ns() / MS, 63000);
	assert_false(w.reset);
}

static void test_user_timeout_is_not_a_requests(void **state)
{
	(void)state;
	setup_connection_without_answers(SYN_RCVD);
	w.conn.passive = true;
	option(VMA_TCP_OPT_USER_TIMEOUT, 100);
	queue_segment_with_flag(TCP_SYN | TCP_ACK);
	fixture_run_until(FOREVER);
	assert_int_equal(elapsed_virtual_ns() / MS, 63000);
}

/* The peer's ACK has come, its data has not: the SYN-ACK is repeated only when the time for that is over. */
static void test_deferred_accept_repeats_nothing_until_its_time_is_over(void **state)
{
	static const uint32_t times[] = {15000, 31000};

	(void)state;
	setup_connection_without_answers(SYN_RCVD);
	w.conn.passive = true;
	w.conn.created_ns = w.tcp.now_ns;
	w.conn.defer_data = true;
	option(VMA_TCP_OPT_DEFER_ACCEPT, 10);
	queue_segment_with_flag(TCP_SYN | TCP_ACK);
	fixture_run_until(FOREVER);
	assert_retransmissions_at(times, 2);
}

static void test_handshake_gets_through_at_last(void **state)
{
	(void)state;
	setup_connection_without_answers(SYN_SENT);
	queue_segment_with_flag(TCP_SYN);
	fixture_run_until(103500 * MS);
	w.drop = NULL;
	w.rcv_nxt = ISS;
	fixture_run_until(105 * SECOND);
	assert_int_equal(w.pcb.state, ESTABLISHED);
	assert_null(w.pcb.unacked);
	assert_int_equal(w.conn.recovery.state, TCP_RECOVERY_OPEN);
	assert_int_equal(w.conn.recovery.timeouts, 0);
	assert_false(wheel_is_set(&w.conn.timer[TCP_TIMER_RETRANSMIT]));
}

/* ---- unacknowledged data ---- */

static void test_data_is_given_up_after_the_kernels_time(void **state)
{
	uint64_t first_ns;

	(void)state;
	setup_connection_without_answers(ESTABLISHED);
	rtt_sample(&w.conn.rtt, 20 * MS, w.tcp.now_ns);
	fixture_write_app_bytes(MSS);
	fixture_run_until(100 * SECOND + 900 * MS);
	assert_true(w.conn.recovery.timeouts > 0);
	first_ns = w.conn.recovery.stuck_since_ns;
	fixture_run_until(FOREVER);
	assert_int_equal(w.error, ETIMEDOUT);
	assert_false(w.reset);
	/* 200 ms doubled 15 times, no interval above 120 s: 924.6 s, and then the next timeout */
	assert_in_range((w.tcp.now_ns - first_ns) / MS, 924600, 924600 + 120000);
}

static void test_retries2_shortens_that(void **state)
{
	uint64_t first_ns;

	(void)state;
	setup_connection_without_answers(ESTABLISHED);
	rtt_sample(&w.conn.rtt, 20 * MS, w.tcp.now_ns);
	option(VMA_TCP_OPT_RETRIES2, 3);
	fixture_write_app_bytes(MSS);
	fixture_run_until(100 * SECOND + 900 * MS);
	first_ns = w.conn.recovery.stuck_since_ns;
	fixture_run_until(FOREVER);
	assert_int_equal(w.error, ETIMEDOUT);
	assert_in_range((w.tcp.now_ns - first_ns) / MS, 3000, 6800);
}

static void test_user_timeout_ends_it_to_the_point(void **state)
{
	uint64_t first_ns;

	(void)state;
	setup_connection_without_answers(ESTABLISHED);
	rtt_sample(&w.conn.rtt, 20 * MS, w.tcp.now_ns);
	option(VMA_TCP_OPT_USER_TIMEOUT, 5000);
	fixture_write_app_bytes(MSS);
	fixture_run_until(100 * SECOND + 900 * MS);
	first_ns = w.conn.recovery.stuck_since_ns;
	fixture_run_until(FOREVER);
	assert_int_equal(w.error, ETIMEDOUT);
	assert_int_equal((w.tcp.now_ns - first_ns) / MS, 5000);
}

static void test_progress_begins_the_count_anew(void **state)
{
	(void)state;
	setup_connection_without_answers(ESTABLISHED);
	rtt_sample(&w.conn.rtt, 20 * MS, w.tcp.now_ns);
	option(VMA_TCP_OPT_USER_TIMEOUT, 5000);
	for (unsigned i = 0; i < 5; i++) {
		w.drop = drop_data_and_note_retransmission;
		fixture_write_app_bytes(MSS);
		fixture_run_until(w.tcp.now_ns + 1 * SECOND);
		assert_true(w.conn.recovery.timeouts > 0);
		w.drop = NULL;
		fixture_run_until(w.tcp.now_ns + 4 * SECOND);
		assert_int_equal(w.error, 0);
		assert_true(fixture_all_bytes_delivered());
	}
}

static void test_connection_without_owner_is_given_up_sooner(void **state)
{
	(void)state;
	setup_connection_without_answers(ESTABLISHED);
	rtt_sample(&w.conn.rtt, 20 * MS, w.tcp.now_ns);
	w.conn.is_orphan = true;
	fixture_write_app_bytes(MSS);
	fixture_run_until(FOREVER);
	assert_int_equal(w.error, ETIMEDOUT);
	assert_in_range(elapsed_virtual_ns() / SECOND, 102, 225); /* eight retries: 102.2 s */
}

static void test_window_that_was_taken_back_is_waited_for_while_the_peer_answers(void **state)
{
	(void)state;
	setup_connection_without_answers(ESTABLISHED);
	rtt_sample(&w.conn.rtt, 20 * MS, w.tcp.now_ns);
	fixture_write_app_bytes(MSS);
	fixture_run_until(100 * SECOND + 1);
	w.pcb.snd_wnd = w.window = 0;
	for (unsigned i = 0; i < 60; i++) {
		fixture_run_until(w.tcp.now_ns + 60 * SECOND);
		w.conn.last_in_ns = w.tcp.now_ns;
	}
	assert_int_equal(w.error, 0);
	fixture_run_until(FOREVER);
	assert_int_equal(w.error, ETIMEDOUT);
}

/* ---- the window is closed ---- */

static void setup_connection_with_closed_window(void)
{
	setup_established_connection_and_link(VMA_TCP_CC_CUBIC);
	rtt_sample(&w.conn.rtt, 20 * MS, w.tcp.now_ns);
	w.pcb.snd_wnd = w.window = 0;
	fixture_write_app_bytes(10 * MSS);
}

static void test_closed_window_is_probed_at_growing_intervals_without_end(void **state)
{
	(void)state;
	setup_connection_with_closed_window();
	fixture_run_until(100 * SECOND + 219 * MS);
	assert_int_equal(w.keepalives, 0);
	fixture_run_until(100 * SECOND + 221 * MS);
	assert_int_equal(w.keepalives, 1);
	fixture_run_until(100 * SECOND + (220 + 440) * MS + MS);
	assert_int_equal(w.keepalives, 2);
	fixture_run_until(100 * SECOND + (220 + 440 + 880) * MS + MS);
	assert_int_equal(w.keepalives, 3);
	fixture_run_until(10000 * SECOND);
	assert_int_equal(w.error, 0);
	assert_in_range(w.keepalives, 80, 100); /* 120 s apart at last */
	w.window = 1 << 20;
	fixture_run_until(10000 * SECOND + 125 * SECOND);
	assert_true(fixture_all_bytes_delivered());
	assert_int_equal(w.conn.recovery.persist_backoff, 0);
}

/* A timer that was left where it was fires before the output that would begin the wait. */
static void test_window_is_not_probed_before_the_wait_has_begun(void **state)
{
	(void)state;
	setup_connection_with_closed_window();
	assert_int_equal(w.conn.recovery.persist_due_ns, 0);
	timers_fire(&w.conn, TCP_TIMER_RETRANSMIT);
	assert_int_equal(w.keepalives + w.forced, 0);
	assert_int_equal(w.conn.recovery.persist_backoff, 0);
	fixture_run_until(100 * SECOND + 219 * MS);
	assert_int_equal(w.keepalives, 0);
	fixture_run_until(100 * SECOND + 221 * MS);
	assert_int_equal(w.keepalives, 1);
}

static void test_probes_without_any_answer_end(void **state)
{
	(void)state;
	setup_connection_with_closed_window();
	w.mute = true;
	fixture_run_until(FOREVER);
	assert_int_equal(w.error, ETIMEDOUT);
	assert_int_equal(w.keepalives, 15);
	assert_false(w.reset);
}

static void test_user_timeout_ends_the_wait_for_a_window_even_if_the_peer_answers(void **state)
{
	(void)state;
	setup_connection_with_closed_window();
	option(VMA_TCP_OPT_USER_TIMEOUT, 3000);
	fixture_run_until(FOREVER);
	assert_int_equal(w.error, ETIMEDOUT);
	assert_in_range(elapsed_virtual_ns() / MS, 3000, 6000);
}

static void test_window_of_a_few_bytes_is_used_in_the_end(void **state)
{
	(void)state;
	setup_established_connection_and_link(VMA_TCP_CC_CUBIC);
	rtt_sample(&w.conn.rtt, 20 * MS, w.tcp.now_ns);
	w.pcb.snd_wnd = w.window = 100; /* less than a segment: not worth sending at once */
	fixture_write_app_bytes(MSS);
	fixture_run_until(100 * SECOND + 200 * MS);
	assert_int_equal(w.outs, 0);
	fixture_run_until(100 * SECOND + 230 * MS);
	assert_int_equal(w.forced, 1);
	fixture_run_until(FOREVER);
	assert_true(fixture_all_bytes_delivered());
}

static void test_probe_without_a_frame_is_tried_a_millisecond_later_and_not_counted(void **state)
{
	(void)state;
	setup_connection_with_closed_window();
	w.frames = 0;
	fixture_run_until(100 * SECOND + 230 * MS);
	assert_int_equal(w.keepalives, 0);
	assert_int_equal(w.conn.recovery.persist_backoff, 0);
	w.frames = -1;
	fixture_run_until(100 * SECOND + 232 * MS);
	assert_int_equal(w.keepalives, 1);
}

/* ---- keepalive ---- */

static void setup_connection_with_keepalive(void)
{
	setup_established_connection_and_link(VMA_TCP_CC_CUBIC);
	option(VMA_TCP_OPT_KEEPALIVE, 1);
	option(VMA_TCP_OPT_KEEPIDLE, 10);
	option(VMA_TCP_OPT_KEEPINTVL, 2);
	option(VMA_TCP_OPT_KEEPCNT, 3);
	timers_keepalive_update(&w.conn);
}

static void test_idle_connection_is_asked_after_keepidle(void **state)
{
	(void)state;
	setup_connection_with_keepalive();
	fixture_run_until(100 * SECOND + 9999 * MS);
	assert_int_equal(w.keepalives, 0);
	fixture_run_until(100 * SECOND + 10001 * MS);
	assert_int_equal(w.keepalives, 1);
	fixture_run_until(1000 * SECOND); /* it answers: every 10 s and a round trip */
	assert_int_equal(w.error, 0);
	assert_in_range(w.keepalives, 80, 90);
}

static void test_silent_peer_is_given_up_with_a_reset(void **state)
{
	(void)state;
	setup_connection_with_keepalive();
	w.mute = true;
	fixture_run_until(FOREVER);
	assert_int_equal(w.keepalives, 3);
	assert_int_equal(elapsed_virtual_ns() / MS, 16000); /* 10 s, then 3 times 2 s */
	assert_int_equal(w.error, ETIMEDOUT);
	assert_true(w.reset);
}

static void test_user_timeout_overrides_keepcnt(void **state)
{
	(void)state;
	setup_connection_with_keepalive();
	option(VMA_TCP_OPT_USER_TIMEOUT, 11000);
	w.mute = true;
	fixture_run_until(FOREVER);
	assert_int_equal(w.keepalives, 1);
	assert_int_equal(elapsed_virtual_ns() / MS, 12000);
}

static void test_traffic_puts_the_question_off(void **state)
{
	(void)state;
	setup_connection_with_keepalive();
	for (unsigned i = 0; i < 50; i++) {
		fixture_write_app_bytes(100);
		fixture_run_until(w.tcp.now_ns + 9 * SECOND);
	}
	assert_int_equal(w.keepalives, 0);
}

static void test_without_the_option_nothing_is_asked(void **state)
{
	(void)state;
	setup_connection_with_keepalive();
	option(VMA_TCP_OPT_KEEPALIVE, 0);
	timers_keepalive_update(&w.conn);
	assert_true(wheel_next_due_ns(&w.tcp.wheel) == UINT64_MAX);
}

static void test_keepalive_without_a_frame_is_tried_a_millisecond_later(void **state)
{
	(void)state;
	setup_connection_with_keepalive();
	w.frames = 0;
	fixture_run_until(111 * SECOND);
	assert_int_equal(w.conn.recovery.probes, 0);
	w.frames = -1;
	fixture_run_until(111 * SECOND + 2 * MS);
	assert_int_equal(w.keepalives, 1);
}

/* After the queue pair was lost. Without keepalive, too. */
static void test_a_peer_is_asked_at_once_unless_something_unacknowledged_asks_anyway(void **state)
{
	(void)state;
	setup_established_connection_and_link(VMA_TCP_CC_CUBIC);
	keepalive_probe(&w.conn);
	assert_int_equal(w.keepalives, 1);
	assert_int_equal(w.conn.todo, 0);
	w.conn.connected = false;
	keepalive_probe(&w.conn);
	w.conn.connected = true;
	append(new_segment(w.pcb.snd_nxt, 100, 0));
	keepalive_probe(&w.conn);
	assert_int_equal(w.keepalives, 1);
}

static void test_a_peer_that_cannot_be_asked_for_want_of_a_frame_is_asked_later(void **state)
{
	(void)state;
	setup_established_connection_and_link(VMA_TCP_CC_CUBIC);
	w.frames = 0;
	keepalive_probe(&w.conn);
	assert_int_equal(w.keepalives, 0);
	assert_int_equal(w.conn.todo, TCP_WORK_KEEPALIVE);
	assert_true(w.conn.in_retry);
}

/* ---- FIN_WAIT_2 ---- */

static void test_half_closed_connection_without_owner_ends_after_a_minute(void **state)
{
	(void)state;
	setup_established_connection_and_link(VMA_TCP_CC_CUBIC);
	rtt_sample(&w.conn.rtt, 20 * MS, w.tcp.now_ns);
	w.conn.is_orphan = true;
	w.pcb.state = FIN_WAIT_2;
	w.ready = true;
	fixture_run_until(FOREVER);
	assert_int_equal(elapsed_virtual_ns() / MS, 60000);
	assert_int_equal(w.failed, 1);
	assert_false(w.reset);
}

static void test_linger2_says_how_long(void **state)
{
	(void)state;
	setup_established_connection_and_link(VMA_TCP_CC_CUBIC);
	rtt_sample(&w.conn.rtt, 20 * MS, w.tcp.now_ns);
	option(VMA_TCP_OPT_LINGER2, 5);
	w.conn.is_orphan = true;
	w.pcb.state = FIN_WAIT_2;
	w.ready = true;
	fixture_run_until(FOREVER);
	assert_int_equal(elapsed_virtual_ns() / MS, 5000);
}

static void test_negative_linger2_resets_at_once(void **state)
{
	(void)state;
	setup_established_connection_and_link(VMA_TCP_CC_CUBIC);
	option(VMA_TCP_OPT_LINGER2, -1);
	w.conn.is_orphan = true;
	w.pcb.state = FIN_WAIT_2;
	w.ready = true;
	fixture_run_until(FOREVER);
	assert_int_equal(elapsed_virtual_ns(), 0);
	assert_true(w.reset);
}

static void test_half_closed_connection_with_owner_stays(void **state)
{
	(void)state;
	setup_established_connection_and_link(VMA_TCP_CC_CUBIC);
	w.pcb.state = FIN_WAIT_2;
	w.ready = true;
	fixture_run_until(FOREVER);
	assert_int_equal(w.failed, 0);
}

/* ---- */

static void test_delayed_acknowledgement_comes_in_time(void **state)
{
	(void)state;
	setup_established_connection_and_link(VMA_TCP_CC_CUBIC);
	timers_set_delack(&w.conn, 40 * MS);
	fixture_run_until(100 * SECOND + 39 * MS);
	assert_int_equal(w.forced, 0);
	fixture_run_until(100 * SECOND + 41 * MS);
	assert_int_equal(w.forced, 1);
	timers_set_delack(&w.conn, 40 * MS);
	timers_set_delack(&w.conn, 0);
	fixture_run_until(FOREVER);
	assert_int_equal(w.forced, 1);
}

static void test_stopped_timers_do_not_fire(void **state)
{
	(void)state;
	setup_connection_with_keepalive();
	timers_set_delack(&w.conn, 40 * MS);
	fixture_write_app_bytes(MSS);
	w.drop = drop_data_and_note_retransmission;
	fixture_run_until(100 * SECOND + 1);
	timers_stop_all(&w.conn);
	assert_true(wheel_next_due_ns(&w.tcp.wheel) == UINT64_MAX);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_syn_is_repeated_as_the_kernel_does),
        cmocka_unit_test(test_syncnt_limits_it),
        cmocka_unit_test(test_user_timeout_ends_a_handshake_to_the_point),
        cmocka_unit_test(test_soft_error_is_the_reason_that_is_told),
        cmocka_unit_test(test_syn_ack_is_repeated_five_times_doubled),
        cmocka_unit_test(test_user_timeout_is_not_a_requests),
        cmocka_unit_test(test_deferred_accept_repeats_nothing_until_its_time_is_over),
        cmocka_unit_test(test_handshake_gets_through_at_last),
        cmocka_unit_test(test_data_is_given_up_after_the_kernels_time),
        cmocka_unit_test(test_retries2_shortens_that),
        cmocka_unit_test(test_user_timeout_ends_it_to_the_point),
        cmocka_unit_test(test_progress_begins_the_count_anew),
        cmocka_unit_test(test_connection_without_owner_is_given_up_sooner),
        cmocka_unit_test(test_window_that_was_taken_back_is_waited_for_while_the_peer_answers),
        cmocka_unit_test(test_closed_window_is_probed_at_growing_intervals_without_end),
        cmocka_unit_test(test_probes_without_any_answer_end),
        cmocka_unit_test(test_window_is_not_probed_before_the_wait_has_begun),
        cmocka_unit_test(test_user_timeout_ends_the_wait_for_a_window_even_if_the_peer_answers),
        cmocka_unit_test(test_window_of_a_few_bytes_is_used_in_the_end),
        cmocka_unit_test(test_probe_without_a_frame_is_tried_a_millisecond_later_and_not_counted),
        cmocka_unit_test(test_idle_connection_is_asked_after_keepidle),
        cmocka_unit_test(test_silent_peer_is_given_up_with_a_reset),
        cmocka_unit_test(test_user_timeout_overrides_keepcnt),
        cmocka_unit_test(test_traffic_puts_the_question_off),
        cmocka_unit_test(test_without_the_option_nothing_is_asked),
        cmocka_unit_test(test_keepalive_without_a_frame_is_tried_a_millisecond_later),
        cmocka_unit_test(test_a_peer_is_asked_at_once_unless_something_unacknowledged_asks_anyway),
        cmocka_unit_test(test_a_peer_that_cannot_be_asked_for_want_of_a_frame_is_asked_later),
        cmocka_unit_test(test_half_closed_connection_without_owner_ends_after_a_minute),
        cmocka_unit_test(test_linger2_says_how_long),
        cmocka_unit_test(test_negative_linger2_resets_at_once),
        cmocka_unit_test(test_half_closed_connection_with_owner_stays),
        cmocka_unit_test(test_delayed_acknowledgement_comes_in_time),
        cmocka_unit_test(test_stopped_timers_do_not_fire),
};
VMA_TEST_MAIN(tests)
