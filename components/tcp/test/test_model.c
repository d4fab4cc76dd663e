/*
 * A congestion control with a model in the real recovery, behind a bottleneck in virtual time: rates, pace and window
 * together with what is lost, found and sent again.
 */
#include "recovery_fixture.h"

#define LINK 2500000 /* bytes per second */

static uint64_t measure_start_ns;
static uint32_t measure_start_seq;

static void setup_bbr_link_with_rtt_and_loss(uint64_t rtt_ns, double loss)
{
	setup_established_connection_and_link(VMA_TCP_CC_BBR);
	w.delay_ns = rtt_ns / 2;
	w.loss = loss;
	w.link_rate = LINK;
	w.link_room_ns = SECOND;
	fixture_write_app_bytes(UINT64_C(1) << 31);
}

static void measure_goodput_begin(void)
{
	measure_start_ns = w.tcp.now_ns;
	measure_start_seq = w.rcv_nxt;
}

/* In thousandths of the link. */
static unsigned goodput_per_mille_of_link(void)
{
	return (unsigned)((uint64_t)(w.rcv_nxt - measure_start_seq) * SECOND / (w.tcp.now_ns - measure_start_ns) *
	                  1000 / LINK);
}

static void test_link_is_filled_and_its_queue_stays_short(void **state)
{
	uint64_t sum_ns = 0;

	(void)state;
	setup_bbr_link_with_rtt_and_loss(20 * MS, 0);
	fixture_run_until(w.tcp.now_ns + SECOND);
	measure_goodput_begin();
	for (unsigned i = 0; i < 2000; i++) {
		fixture_run_until(w.tcp.now_ns + MS);
		sum_ns += w.link_waits_ns;
	}
	assert_in_range(goodput_per_mille_of_link(), 930, 1000);
	assert_in_range(sum_ns / 2000, 0, 6 * MS);
	assert_int_equal(w.agains, 0);
	assert_int_equal(w.conn.counts.timeouts, 0);
}

static void test_random_loss_does_not_slow_down(void **state)
{
	static const struct {
		uint64_t rtt_ns;
		double loss;
		unsigned least;
	} cases[] = {{20 * MS, 0.001, 930}, {20 * MS, 0.01, 880}, {20 * MS, 0.05, 700}, {MS / 5, 0.01, 880}};

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		setup_bbr_link_with_rtt_and_loss(cases[i].rtt_ns, cases[i].loss);
		measure_goodput_begin();
		fixture_run_until(w.tcp.now_ns + 5 * SECOND);
		assert_in_range(goodput_per_mille_of_link(), cases[i].least, 1000);
	}
}

/* The same with one that answers to loss, to see that the path is one where it matters. */
static void test_what_answers_to_loss_is_slow_there(void **state)
{
	(void)state;
	setup_established_connection_and_link(VMA_TCP_CC_CUBIC);
	w.loss = 0.01;
	w.link_rate = LINK;
	w.link_room_ns = SECOND;
	fixture_write_app_bytes(UINT64_C(1) << 31);
	measure_goodput_begin();
	fixture_run_until(w.tcp.now_ns + 5 * SECOND);
	assert_true(goodput_per_mille_of_link() < 400);
}

static void test_everything_arrives(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= 20; seed++) {
		setup_bbr_link_with_rtt_and_loss(10 * MS, 0.03);
		w.seed = seed;
		w.ack_loss = 0.03;
		w.jitter_ns = seed % 3 * MS;
		w.link_room_ns = 5 * MS;
		atomic_store(&w.conn.tx.produced, 3000 * MSS + 17);
		fixture_run_until(FOREVER);
		assert_true(fixture_all_bytes_delivered());
		assert_int_equal(w.failed, 0);
	}
}

static void test_everything_arrives_without_sack_and_without_time_stamps(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= 10; seed++) {
		setup_bbr_link_with_rtt_and_loss(10 * MS, 0.02);
		w.seed = seed;
		w.no_sack = true;
		w.no_timestamps = seed & 1;
		w.pcb.flags &= (tcpflags_t)~TF_SACK;
		atomic_store(&w.conn.tx.produced, 500 * MSS);
		fixture_run_until(FOREVER);
		assert_true(fixture_all_bytes_delivered());
		assert_int_equal(w.failed, 0);
	}
}

static void test_waiting_for_its_time_has_a_timer_and_is_no_closed_window(void **state)
{
	(void)state;
	setup_bbr_link_with_rtt_and_loss(200 * MS, 0);
	w.link_rate = 5000; /* a segment takes as long as the round trip */
	fixture_run_until(w.tcp.now_ns + 60 * SECOND);
	assert_in_range(w.conn.cc.pacing_rate, 1000, 20000);
	assert_int_equal(w.forced, 0);
	assert_int_equal(w.keepalives, 0);
	assert_true(w.rcv_nxt - ISS > 60 * 5000 * 7 / 10);
	assert_int_equal(w.conn.counts.timeouts, 0);
}

static void test_silence_of_the_peer_is_survived(void **state)
{
	uint32_t before;

	(void)state;
	setup_bbr_link_with_rtt_and_loss(20 * MS, 0);
	fixture_run_until(w.tcp.now_ns + SECOND);
	before = w.conn.cc.cwnd;
	w.mute = true;
	fixture_run_until(w.tcp.now_ns + 3 * SECOND);
	assert_true(w.conn.counts.timeouts > 0);
	assert_int_equal(w.conn.cc.cwnd, MSS);
	w.mute = false;
	fixture_run_until(w.tcp.now_ns + 10 * SECOND);
	assert_true(w.conn.cc.cwnd > before / 2);
	measure_goodput_begin();
	fixture_run_until(w.tcp.now_ns + 2 * SECOND);
	assert_in_range(goodput_per_mille_of_link(), 850, 1000);
}

static void test_pause_of_the_application_costs_neither_rate_nor_window(void **state)
{
	uint64_t rate;

	(void)state;
	setup_bbr_link_with_rtt_and_loss(20 * MS, 0);
	atomic_store(&w.conn.tx.produced, LINK);
	fixture_run_until(w.tcp.now_ns + 3 * SECOND);
	assert_true(fixture_all_bytes_delivered());
	rate = w.conn.cc.bbr.max_rate;
	fixture_run_until(w.tcp.now_ns + 5 * SECOND);
	fixture_write_app_bytes(LINK / 5);
	measure_goodput_begin();
	fixture_run_until(w.tcp.now_ns + 240 * MS);
	assert_true(fixture_all_bytes_delivered());
	assert_in_range(w.conn.cc.bbr.max_rate, rate * 9 / 10, rate * 11 / 10);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link_is_filled_and_its_queue_stays_short),
        cmocka_unit_test(test_random_loss_does_not_slow_down),
        cmocka_unit_test(test_what_answers_to_loss_is_slow_there),
        cmocka_unit_test(test_everything_arrives),
        cmocka_unit_test(test_everything_arrives_without_sack_and_without_time_stamps),
        cmocka_unit_test(test_waiting_for_its_time_has_a_timer_and_is_no_closed_window),
        cmocka_unit_test(test_silence_of_the_peer_is_survived),
        cmocka_unit_test(test_pause_of_the_application_costs_neither_rate_nor_window),
};
VMA_TEST_MAIN(tests)
