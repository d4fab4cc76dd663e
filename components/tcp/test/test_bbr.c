/*
 * BBR, the samples it lives on and the pace that it sets, on a bottleneck in virtual time: one queue, served at a rate,
 * with a delay behind it and an acknowledgement for each segment; lost ones are noticed by the next that is not.
 */
#include <string.h>

#include <vma/test.h>

#include "../lwip/port.h"
#include "../tcp_priv.h"

#define MSS 1448u
#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)
#define FLOWS 2
#define PACKETS 65536 /* under way, at most */
#define BBR(i) (path.flow[i].cc.bbr)
enum { STARTUP, DRAIN, PROBE_BW, PROBE_RTT };

struct flow {
	struct tcp_cc cc;
	struct tcp_rate rate;
	struct tcp_pacing pace;
	uint64_t starts_ns, min_rtt_ns, srtt_ns;
	uint64_t app; /* bytes that the application has left to send */
	uint32_t in_flight;
	uint64_t sent, recover; /* segments */
	bool recovering;
	uint64_t probe_rtts;
	uint64_t lost_at[PACKETS], lost_head, lost_tail; /* not noticed yet */
};
struct packet {
	struct tcp_seg seg;
	uint64_t arrives_ns, index;
	uint8_t flow;
};
static struct {
	struct flow flow[FLOWS];
	struct packet packet[PACKETS];
	uint64_t head, tail;
	uint64_t now_ns, bytes_per_sec, delay_ns, free_ns;
	uint64_t room; /* of the queue, bytes */
	uint64_t queue_sum_ns, queue_samples, queue_max_ns;
	double loss;
	uint32_t seed;
} path;

static bool bbr_sim_random_happens(double p)
{
	path.seed = path.seed * 1664525 + 1013904223;
	return (path.seed >> 8) % 100000 < p * 100000;
}

static void path_init_with_rate_and_rtt(uint64_t bytes_per_sec, uint64_t rtt_ns)
{
	memset(&path, 0, sizeof(path));
	path.now_ns = 100 * SECOND;
	path.bytes_per_sec = bytes_per_sec;
	path.delay_ns = rtt_ns;
	path.room = UINT64_MAX / 2;
	path.seed = 1;
	for (unsigned i = 0; i < FLOWS; i++) {
		cc_init(&path.flow[i].cc, VMA_TCP_CC_BBR, MSS);
		path.flow[i].starts_ns = UINT64_MAX;
	}
}

static void flow_begin(unsigned i)
{
	path.flow[i].starts_ns = path.now_ns;
	path.flow[i].app = UINT64_MAX;
}

static void note_queue_delay(uint64_t waits_ns)
{
	path.queue_sum_ns += waits_ns;
	path.queue_samples++;
	if (waits_ns > path.queue_max_ns)
		path.queue_max_ns = waits_ns;
}

static void bbr_sim_send_one_packet(unsigned i)
{
	struct flow *f = &path.flow[i];
	struct packet p = {.flow = (uint8_t)i, .index = f->sent++, .seg = {.len = MSS, .sent_ns = path.now_ns}};
	uint64_t begins_ns = path.free_ns > path.now_ns ? path.free_ns : path.now_ns;

	if (f->in_flight == 0)
		cc_on_restart_from_idle(&f->cc, f->rate.app_limited != 0, path.now_ns);
	rate_stamp_segment_on_send(&f->rate, &p.seg, f->in_flight == 0, path.now_ns);
	pacing_account_sent(&f->pace, &f->cc, MSS, path.now_ns);
	f->in_flight += MSS;
	f->app -= MSS;
	if ((begins_ns - path.now_ns) * path.bytes_per_sec / SECOND > path.room || bbr_sim_random_happens(path.loss)) {
		f->lost_at[f->lost_tail++ % PACKETS] = p.index;
		return;
	}
	note_queue_delay(begins_ns - path.now_ns);
	path.free_ns = begins_ns + MSS * SECOND / path.bytes_per_sec;
	p.arrives_ns = path.free_ns + path.delay_ns;
	assert_true(path.tail - path.head < PACKETS);
	path.packet[path.tail++ % PACKETS] = p;
}

static bool flow_has_open_window(const struct flow *f)
{
	return f->starts_ns <= path.now_ns && f->app >= MSS && f->in_flight + MSS <= f->cc.cwnd;
}

static void flow_send_all_allowed(unsigned i)
{
	struct flow *f = &path.flow[i];

	while (flow_has_open_window(f) && pacing_allows_send(&f->pace, &f->cc, path.now_ns))
		bbr_sim_send_one_packet(i);
	if (f->starts_ns <= path.now_ns && f->app < MSS && f->in_flight < f->cc.cwnd)
		rate_mark_app_limited(&f->rate, f->in_flight);
}

/* What was sent before p and has not come. */
static uint32_t bbr_sim_find_lost(struct flow *f, const struct packet *p)
{
	uint32_t lost = 0;

	for (; f->lost_head < f->lost_tail && f->lost_at[f->lost_head % PACKETS] < p->index; f->lost_head++)
		lost += MSS;
	f->in_flight -= lost;
	return lost;
}

static void flow_receive_ack(struct packet *p)
{
	struct flow *f = &path.flow[p->flow];
	struct tcp_cc_sample s = {.prior_in_flight = f->in_flight, .newly = p->seg.len};
	bool was_probing = f->cc.bbr.mode == PROBE_RTT;

	rate_reset_sample_at_ack_begin(&f->rate);
	s.rtt_ns = path.now_ns - p->seg.sent_ns;
	if (f->min_rtt_ns == 0 || s.rtt_ns < f->min_rtt_ns)
		f->min_rtt_ns = s.rtt_ns;
	f->srtt_ns = f->srtt_ns ? (7 * f->srtt_ns + s.rtt_ns) / 8 : s.rtt_ns;
	f->in_flight -= p->seg.len;
	s.lost = bbr_sim_find_lost(f, p);
	rate_delivered(&f->rate, &p->seg, path.now_ns);
	/* A round trip later it is repaired. */
	if (s.lost) {
		if (!f->recovering)
			cc_on_loss(&f->cc, f->in_flight, path.now_ns);
		f->recovering = true;
		f->recover = f->sent;
	} else if (f->recovering && p->index >= f->recover) {
		f->recovering = false;
	}
	s.phase = f->recovering ? CC_RECOVERY : CC_OPEN;
	s.in_flight = f->in_flight;
	rate_generate_sample_of_ack(&f->rate, f->min_rtt_ns, path.now_ns, &s);
	if (cc_on_rate_sample(&f->cc, &s, path.now_ns))
		rate_mark_app_limited(&f->rate, f->in_flight);
	f->probe_rtts += !was_probing && f->cc.bbr.mode == PROBE_RTT;
}

static uint64_t next_event_ns(void)
{
	uint64_t next_ns = path.head < path.tail ? path.packet[path.head % PACKETS].arrives_ns : UINT64_MAX;

	for (unsigned i = 0; i < FLOWS; i++) {
		const struct flow *f = &path.flow[i];

		if (flow_has_open_window(f) && f->pace.next_ns > path.now_ns && f->pace.next_ns < next_ns)
			next_ns = f->pace.next_ns;
	}
	return next_ns;
}

static void path_simulate_for_ns(uint64_t for_ns)
{
	uint64_t until_ns = path.now_ns + for_ns;

	for (;;) {
		uint64_t next_ns;

		for (unsigned i = 0; i < FLOWS; i++)
			flow_send_all_allowed(i);
		next_ns = next_event_ns();
		if (next_ns > until_ns)
			break;
		path.now_ns = next_ns > path.now_ns ? next_ns : path.now_ns;
		if (path.head < path.tail && path.packet[path.head % PACKETS].arrives_ns <= path.now_ns)
			flow_receive_ack(&path.packet[path.head++ % PACKETS]);
	}
	path.now_ns = until_ns;
}

static double fraction_of_link_rate(uint64_t bytes_per_sec)
{
	return (double)bytes_per_sec / (double)path.bytes_per_sec;
}

static uint64_t bandwidth_delay_product(void)
{
	return path.bytes_per_sec * path.delay_ns / SECOND;
}

/* ---- samples of the delivery rate ---- */

static struct tcp_rate rate;
static struct tcp_cc_sample sample;

static struct tcp_seg rate_segment_sent_at(uint64_t now_ns, bool nothing_out)
{
	struct tcp_seg seg = {.len = 1000, .sent_ns = now_ns};

	rate_stamp_segment_on_send(&rate, &seg, nothing_out, now_ns);
	return seg;
}

static void rate_sample_from_acked_segment(struct tcp_seg *seg, uint64_t min_rtt_ns, uint64_t now_ns)
{
	sample = (struct tcp_cc_sample){0};
	rate_reset_sample_at_ack_begin(&rate);
	rate_delivered(&rate, seg, now_ns);
	rate_generate_sample_of_ack(&rate, min_rtt_ns, now_ns, &sample);
}

static void test_rate_is_what_was_delivered_since_the_segment_was_sent(void **state)
{
	struct tcp_seg seg[8];

	(void)state;
	rate = (struct tcp_rate){0};
	/* Two segments each millisecond, 4 ms under way. */
	for (unsigned i = 0; i < 4; i++)
		seg[i] = rate_segment_sent_at(SECOND + i * MS / 2, i == 0);
	for (unsigned i = 0; i < 4; i++) {
		rate_sample_from_acked_segment(&seg[i], 4 * MS, SECOND + 4 * MS + i * MS / 2);
		seg[4 + i] = rate_segment_sent_at(SECOND + 4 * MS + i * MS / 2, false);
	}
	assert_int_equal(sample.delivered, 4000);
	/* The fifth was sent when one had been delivered, and is the fifth delivered: four in 4 ms. */
	rate_sample_from_acked_segment(&seg[4], 4 * MS, SECOND + 8 * MS);
	assert_true(sample.is_valid);
	assert_int_equal(sample.prior_delivered, 1000);
	assert_int_equal(sample.bytes_per_sec, 1000000);
	rate_sample_from_acked_segment(&seg[5], 4 * MS, SECOND + 8 * MS + MS / 2);
	assert_int_equal(sample.bytes_per_sec, 1000000);
}

static void test_acknowledgements_that_come_together_do_not_make_the_path_faster(void **state)
{
	struct tcp_seg seg[10];

	(void)state;
	rate = (struct tcp_rate){0};
	for (unsigned i = 0; i < 10; i++)
		seg[i] = rate_segment_sent_at(SECOND + i * 10 * MS, i == 0);
	/* Sent in 90 ms, all acknowledged at once: no more than ten in 90 ms. */
	for (unsigned i = 0; i < 10; i++) {
		rate_sample_from_acked_segment(&seg[i], 5 * MS, SECOND + 95 * MS);
		assert_true(sample.bytes_per_sec <= 10000 * SECOND / (90 * MS));
	}
}

static void test_sample_of_less_than_a_round_trip_counts_for_nothing(void **state)
{
	struct tcp_seg seg;

	(void)state;
	rate = (struct tcp_rate){0};
	seg = rate_segment_sent_at(SECOND, true);
	rate_sample_from_acked_segment(&seg, 5 * MS, SECOND + 3 * MS);
	assert_true(sample.is_valid);
	assert_int_equal(sample.bytes_per_sec, 0);
}

static void test_segment_sent_while_the_application_had_nothing_is_marked(void **state)
{
	struct tcp_seg first, second, third;

	(void)state;
	rate = (struct tcp_rate){0};
	first = rate_segment_sent_at(SECOND, true);
	rate_mark_app_limited(&rate, 1000);
	second = rate_segment_sent_at(SECOND + MS, false);
	rate_sample_from_acked_segment(&first, MS, SECOND + 4 * MS);
	assert_false(sample.app_limited);
	rate_sample_from_acked_segment(&second, MS, SECOND + 5 * MS);
	assert_true(sample.app_limited);
	/* Everything that was under way has come. */
	third = rate_segment_sent_at(SECOND + 6 * MS, true);
	rate_sample_from_acked_segment(&third, MS, SECOND + 10 * MS);
	assert_false(sample.app_limited);
}

/* ---- pace ---- */

static void test_pace_lets_a_quantum_go_and_then_waits_for_its_time(void **state)
{
	struct tcp_cc cc = {.pacing_rate = 1000000, .quantum = 4000};
	struct tcp_pacing pace = {.next_ns = SECOND};
	unsigned n = 0;

	(void)state;
	for (; pacing_allows_send(&pace, &cc, SECOND); n++)
		pacing_account_sent(&pace, &cc, 1000, SECOND);
	assert_int_equal(n, 4);
	assert_int_equal(pace.next_ns, SECOND + 4 * MS);
	assert_false(pacing_allows_send(&pace, &cc, SECOND + 4 * MS - 1));
	assert_true(pacing_allows_send(&pace, &cc, SECOND + 4 * MS));
	cc.pacing_rate = 0;
	assert_true(pacing_allows_send(&pace, &cc, SECOND));
}

static void test_pace_makes_up_for_half_a_quantum_of_lateness_only(void **state)
{
	struct tcp_cc cc = {.pacing_rate = 1000000, .quantum = 4000};
	struct tcp_pacing pace = {.next_ns = SECOND};
	unsigned n = 0;

	(void)state;
	for (; pacing_allows_send(&pace, &cc, 2 * SECOND); n++)
		pacing_account_sent(&pace, &cc, 1000, 2 * SECOND);
	assert_in_range(n, 4, 6);
	assert_in_range(pace.next_ns, 2 * SECOND + 2 * MS, 2 * SECOND + 4 * MS);
}

/* 1 GB/s in quanta of 50,000 bytes: a look comes 0.5 ms late, and three quanta's time is left. */
static void test_pace_makes_up_for_150_us_at_a_high_rate(void **state)
{
	struct tcp_cc cc = {.pacing_rate = 1000000000, .quantum = 50000};
	struct tcp_pacing pace = {.next_ns = SECOND};
	uint64_t now = SECOND + MS / 2;
	unsigned n = 0;

	(void)state;
	for (; pacing_allows_send(&pace, &cc, now); n++)
		pacing_account_sent(&pace, &cc, 1000, now);
	assert_in_range(n, 200, 201);
}

/* ---- the model's numbers, one sample at a time ---- */

static struct tcp_cc cc;
static uint64_t delivered, now_ns;
static bool app_limited;

static void bbr_cc_begin(void)
{
	cc_init(&cc, VMA_TCP_CC_BBR, 1000);
	delivered = 0;
	app_limited = false;
	now_ns = 100 * SECOND;
}

/* A round in one acknowledgement of `bytes`. */
static void bbr_one_round(uint64_t bytes_per_sec, uint64_t rtt_ns, uint32_t bytes, uint32_t in_flight)
{
	struct tcp_cc_sample s = {.prior_delivered = delivered,
	                          .delivered = delivered + bytes,
	                          .bytes_per_sec = bytes_per_sec,
	                          .rtt_ns = rtt_ns,
	                          .newly = bytes,
	                          .in_flight = in_flight,
	                          .prior_in_flight = in_flight + bytes,
	                          .is_valid = true,
	                          .app_limited = app_limited};

	now_ns += rtt_ns;
	delivered += bytes;
	cc_on_rate_sample(&cc, &s, now_ns);
}

static void test_first_pacing_rate_is_the_initial_window_in_a_round_trip(void **state)
{
	struct tcp_cc_sample s = {.rtt_ns = 10 * MS};

	(void)state;
	bbr_cc_begin();
	assert_int_equal(cc.pacing_rate, 0);
	cc_on_rate_sample(&cc, &s, now_ns);
	assert_in_range(cc.pacing_rate, 10000 * 100 * 2.88, 10000 * 100 * 2.89);
}

static void test_startup_ends_after_three_rounds_without_a_quarter_more(void **state)
{
	(void)state;
	bbr_cc_begin();
	for (uint64_t r = 4; r <= 8; r++) {
		bbr_one_round(100000 << r, 10 * MS, 1000 << r, 1000 << r);
		assert_int_equal(cc.bbr.mode, STARTUP);
		assert_in_range(cc.pacing_rate, (100000 << r) * 2.885 * 0.985, (100000 << r) * 2.89);
	}
	bbr_one_round(100000 << 8, 10 * MS, 256000, 700000);
	bbr_one_round(110000 << 8, 10 * MS, 256000, 700000);
	assert_int_equal(cc.bbr.mode, STARTUP);
	bbr_one_round(120000 << 8, 10 * MS, 256000, 700000);
	assert_int_equal(cc.bbr.mode, DRAIN);
	assert_in_range(cc.pacing_rate, (120000 << 8) / 2.885 * 0.98, (120000 << 8) / 2.885);
	bbr_one_round(120000 << 8, 10 * MS, 256000, 400000);
	assert_int_equal(cc.bbr.mode, DRAIN);
	bbr_one_round(120000 << 8, 10 * MS, 256000, 300000);
	assert_int_equal(cc.bbr.mode, PROBE_BW);
}

static void bbr_drive_until_pipe_full(void)
{
	bbr_cc_begin();
	for (unsigned r = 0; r < 6; r++)
		bbr_one_round(10000000, 10 * MS, 100000, 100000);
	assert_int_equal(cc.bbr.mode, PROBE_BW);
}

static void test_cycle_has_a_phase_of_more_one_of_less_and_six_of_one(void **state)
{
	unsigned more = 0, less = 0, one = 0;

	(void)state;
	bbr_drive_until_pipe_full();
	for (unsigned r = 0; r < 80; r++) {
		uint8_t before = cc.bbr.cycle;

		now_ns += 1;
		bbr_one_round(10000000, 10 * MS, 100000, cc.bbr.cycle == 0 ? 300000 : 100000);
		assert_int_equal(cc.bbr.cycle, (before + 1) % 8);
		more += cc.pacing_rate == 10000000 / 4 * 5 / 100 * 99;
		less += cc.pacing_rate == 10000000 / 4 * 3 / 100 * 99;
		one += cc.pacing_rate == 10000000 / 100 * 99;
	}
	assert_int_equal(more, 10);
	assert_int_equal(less, 10);
	assert_int_equal(one, 60);
}

static void test_phase_of_more_lasts_until_there_is_more_in_flight(void **state)
{
	(void)state;
	bbr_drive_until_pipe_full();
	while (cc.bbr.cycle != 0)
		bbr_one_round(10000000, 10 * MS + 1, 100000, 100000);
	for (unsigned r = 0; r < 5; r++) {
		bbr_one_round(10000000, 10 * MS + 1, 20000, 80000);
		assert_int_equal(cc.bbr.cycle, 0);
	}
	bbr_one_round(10000000, 10 * MS + 1, 100000, 100000);
	assert_int_equal(cc.bbr.cycle, 1);
}

static void test_window_is_two_products_and_three_quanta(void **state)
{
	(void)state;
	bbr_drive_until_pipe_full();
	for (unsigned r = 0; r < 20; r++)
		bbr_one_round(10000000, 10 * MS, 100000, 100000);
	while (cc.bbr.cycle != 3)
		bbr_one_round(10000000, 10 * MS + 1, 100000, 100000);
	assert_int_equal(cc.quantum, 9000);
	assert_in_range(cc.cwnd, 2 * 100000 + 3 * 9000,
	                2 * 100000 + 3 * 9000 + 2000 + cc.bbr.extra_acked[0] + cc.bbr.extra_acked[1]);
}

static void test_quantum_is_a_millisecond_between_two_segments_and_64_kilobytes(void **state)
{
	static const struct {
		uint64_t bytes_per_sec;
		uint32_t quantum;
	} cases[] = {{100000, 1000}, {1000000, 2000}, {20480000, 20000}, {2000000000, 65000}};

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		bbr_cc_begin();
		for (unsigned r = 0; r < 20; r++)
			bbr_one_round(cases[i].bytes_per_sec / 99 * 100, 10 * MS, 10000, 0);
		while (cc.bbr.cycle < 2)
			bbr_one_round(cases[i].bytes_per_sec / 99 * 100, 10 * MS + 1, 100000000, 0);
		assert_in_range(cc.pacing_rate, cases[i].bytes_per_sec * 0.98, cases[i].bytes_per_sec * 1.01);
		assert_in_range(cc.quantum, cases[i].quantum - 1000 * (cc.quantum > 2000), cases[i].quantum);
	}
}

static void test_rate_is_the_highest_of_ten_rounds(void **state)
{
	(void)state;
	bbr_drive_until_pipe_full();
	bbr_one_round(20000000, 10 * MS, 100000, 100000);
	for (unsigned r = 0; r < 9; r++) {
		bbr_one_round(5000000, 10 * MS, 100000, 100000);
		assert_int_equal(cc.bbr.max_rate, 20000000);
	}
	bbr_one_round(5000000, 10 * MS, 100000, 100000);
	assert_int_equal(cc.bbr.max_rate, 5000000);
}

static void test_application_that_sends_little_does_not_make_the_path_slow(void **state)
{
	struct tcp_cc_sample s = {.bytes_per_sec = 1000, .newly = 1000, .is_valid = true, .app_limited = true};

	(void)state;
	bbr_drive_until_pipe_full();
	for (unsigned r = 0; r < 100; r++) {
		s.prior_delivered = delivered;
		s.delivered = delivered += 1000;
		cc_on_rate_sample(&cc, &s, now_ns += MS);
		assert_int_equal(cc.bbr.max_rate, 10000000);
	}
	/* What it shows to be possible counts. */
	s.prior_delivered = delivered;
	s.delivered = delivered += 1000;
	s.bytes_per_sec = 12000000;
	cc_on_rate_sample(&cc, &s, now_ns += MS);
	assert_int_equal(cc.bbr.max_rate, 12000000);
}

static void test_round_trip_time_is_the_lowest_of_ten_seconds(void **state)
{
	uint64_t since_ns;

	(void)state;
	bbr_drive_until_pipe_full();
	bbr_one_round(10000000, 8 * MS, 100000, 100000);
	since_ns = now_ns;
	while (now_ns + 20 * MS < since_ns + 10 * SECOND) {
		bbr_one_round(10000000, 12 * MS, 100000, 100000);
		assert_int_equal(cc.bbr.min_rtt_ns, 8 * MS);
		assert_int_equal(cc.bbr.mode, PROBE_BW);
	}
	while (cc.bbr.mode == PROBE_BW)
		bbr_one_round(10000000, 12 * MS, 100000, 100000);
	assert_int_equal(cc.bbr.mode, PROBE_RTT);
	assert_int_equal(cc.bbr.min_rtt_ns, 12 * MS);
	assert_in_range(now_ns - since_ns, 10 * SECOND, 10 * SECOND + 20 * MS);
}

static void test_probe_of_the_round_trip_time_takes_200_ms_with_four_segments(void **state)
{
	uint32_t before;
	uint64_t since_ns;

	(void)state;
	bbr_drive_until_pipe_full();
	for (unsigned r = 0; r < 20; r++)
		bbr_one_round(10000000, 10 * MS, 100000, 100000);
	before = cc.cwnd;
	now_ns += 11 * SECOND;
	bbr_one_round(10000000, 11 * MS, 100000, 100000);
	assert_int_equal(cc.bbr.mode, PROBE_RTT);
	assert_int_equal(cc.cwnd, 4000);
	app_limited = true; /* as it asks for itself */
	bbr_one_round(10000000, 11 * MS, 4000, 4000);
	since_ns = now_ns;
	while (cc.bbr.mode == PROBE_RTT) {
		assert_int_equal(cc.cwnd, 4000);
		assert_in_range(cc.pacing_rate, 9000000, 10000000);
		bbr_one_round(400000, 10 * MS, 4000, 4000);
	}
	assert_in_range(now_ns - since_ns, 200 * MS, 220 * MS);
	assert_int_equal(cc.bbr.mode, PROBE_BW);
	assert_in_range(cc.cwnd, 2 * 100000 + 3 * 9000, before);
}

static void test_recovery_sends_what_is_delivered_and_then_has_its_window_back(void **state)
{
	struct tcp_cc_sample s;
	uint32_t before;

	(void)state;
	bbr_drive_until_pipe_full();
	for (unsigned r = 0; r < 20; r++)
		bbr_one_round(10000000, 10 * MS, 100000, 100000);
	before = cc.cwnd;
	cc_on_loss(&cc, 200000, now_ns);
	delivered += 1000;
	s = (struct tcp_cc_sample){.delivered = delivered,
	                           .prior_delivered = delivered - 100000,
	                           .newly = 1000,
	                           .lost = 5000,
	                           .in_flight = 90000,
	                           .prior_in_flight = 96000,
	                           .is_valid = true,
	                           .phase = CC_RECOVERY};
	cc_on_rate_sample(&cc, &s, now_ns += MS);
	assert_int_equal(cc.cwnd, 91000);
	s.delivered = delivered += 2000;
	s.prior_delivered += 2000;
	s.newly = 2000;
	s.lost = 0;
	cc_on_rate_sample(&cc, &s, now_ns += MS);
	assert_int_equal(cc.cwnd, 92000);
	/* A round later it grows by what is delivered. */
	s.prior_delivered = delivered;
	s.delivered = delivered += 3000;
	s.newly = 3000;
	cc_on_rate_sample(&cc, &s, now_ns += 10 * MS);
	assert_int_equal(cc.cwnd, 95000);
	s.phase = CC_OPEN;
	cc_on_recovery_end(&cc, now_ns);
	cc_on_rate_sample(&cc, &s, now_ns += MS);
	assert_true(cc.cwnd >= before - 4000);
}

static void test_timeout_leaves_one_segment_until_it_was_repaired(void **state)
{
	uint32_t before;
	struct tcp_cc_sample s;

	(void)state;
	bbr_drive_until_pipe_full();
	for (unsigned r = 0; r < 20; r++)
		bbr_one_round(10000000, 10 * MS, 100000, 100000);
	before = cc.cwnd;
	cc_on_rto(&cc, 100000, now_ns);
	assert_int_equal(cc.cwnd, 1000);
	delivered += 1000;
	s = (struct tcp_cc_sample){.delivered = delivered, .newly = 1000, .phase = CC_LOSS};
	cc_on_rate_sample(&cc, &s, now_ns += 10 * MS);
	assert_int_equal(cc.cwnd, 4000);
	s.phase = CC_OPEN;
	s.delivered = delivered += 1000;
	cc_on_rate_sample(&cc, &s, now_ns += 10 * MS);
	assert_true(cc.cwnd >= before - 4000);
	assert_int_equal(cc.bbr.max_rate, 10000000);
}

static void test_silence_keeps_the_window_and_begins_at_the_rate_of_the_path(void **state)
{
	uint32_t before;

	(void)state;
	bbr_drive_until_pipe_full();
	while (cc.bbr.cycle != 0)
		bbr_one_round(10000000, 10 * MS + 1, 100000, 100000);
	before = cc.cwnd;
	assert_true(cc.pacing_rate > 12000000);
	cc_decay_after_idle(&cc, 5 * SECOND, 200 * MS);
	assert_int_equal(cc.cwnd, before);
	cc_on_restart_from_idle(&cc, true, now_ns + 5 * SECOND);
	assert_int_equal(cc.pacing_rate, 9900000);
}

/* ---- on a path ---- */

static void test_bandwidth_and_round_trip_time_are_found(void **state)
{
	static const struct {
		uint64_t bytes_per_sec, rtt_ns;
	} paths[] = {{12500000, 20 * MS}, {125000000, 10 * MS}, {1250000, 100 * MS}, {125000000, MS / 5}};

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		path_init_with_rate_and_rtt(paths[i].bytes_per_sec, paths[i].rtt_ns);
		flow_begin(0);
		path_simulate_for_ns(3 * SECOND);
		assert_int_equal(BBR(0).mode, PROBE_BW);
		assert_in_range(fraction_of_link_rate(BBR(0).max_rate) * 1000, 950, 1050);
		assert_in_range(BBR(0).min_rtt_ns, path.delay_ns, path.delay_ns + 2 * MS);
		assert_in_range(fraction_of_link_rate(path.flow[0].rate.delivered / 3) * 1000, 850, 1010);
	}
}

static void test_queue_of_the_beginning_drains(void **state)
{
	(void)state;
	path_init_with_rate_and_rtt(12500000, 20 * MS);
	flow_begin(0);
	path_simulate_for_ns(2 * SECOND);
	assert_true(path.queue_max_ns > 10 * MS); /* there was one */
	path.queue_sum_ns = path.queue_samples = 0;
	path_simulate_for_ns(5 * SECOND);
	/* A quarter of the product when it probes; three quanta always. */
	assert_in_range(path.queue_sum_ns / path.queue_samples, 0, 5 * MS);
	assert_true(path.flow[0].in_flight < bandwidth_delay_product() * 3 / 2);
}

static void test_one_per_cent_of_loss_costs_little(void **state)
{
	static const uint64_t rtts[] = {MS / 5, 20 * MS};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		path_init_with_rate_and_rtt(12500000, rtts[i]);
		path.loss = 0.01;
		flow_begin(0);
		path_simulate_for_ns(5 * SECOND);
		assert_in_range(fraction_of_link_rate(path.flow[0].rate.delivered / 5) * 1000, 900, 1000);
	}
}

/* Losses of the beginning end STARTUP too early; what is left is found by probing. */
static void test_long_path_with_loss_is_filled_in_time(void **state)
{
	uint64_t before;

	(void)state;
	path_init_with_rate_and_rtt(12500000, 100 * MS);
	path.loss = 0.01;
	flow_begin(0);
	path_simulate_for_ns(15 * SECOND);
	before = path.flow[0].rate.delivered;
	path_simulate_for_ns(5 * SECOND);
	assert_in_range(fraction_of_link_rate((path.flow[0].rate.delivered - before) / 5) * 1000, 800, 1000);
}

static void test_small_queue_that_overflows_is_lived_with(void **state)
{
	(void)state;
	path_init_with_rate_and_rtt(12500000, 20 * MS);
	path.room = bandwidth_delay_product() / 4;
	flow_begin(0);
	path_simulate_for_ns(5 * SECOND);
	assert_in_range(fraction_of_link_rate(path.flow[0].rate.delivered / 5) * 1000, 750, 1000);
}

static void test_round_trip_time_is_probed_each_ten_seconds(void **state)
{
	(void)state;
	path_init_with_rate_and_rtt(1250000, 20 * MS);
	flow_begin(0);
	path_simulate_for_ns(35 * SECOND);
	assert_in_range(path.flow[0].probe_rtts, 2, 4);
	assert_in_range(fraction_of_link_rate(path.flow[0].rate.delivered / 35) * 1000, 900, 1000);
	assert_in_range(BBR(0).min_rtt_ns, 20 * MS, 22 * MS);
}

static void test_slower_path_is_noticed(void **state)
{
	(void)state;
	path_init_with_rate_and_rtt(12500000, 20 * MS);
	flow_begin(0);
	path_simulate_for_ns(3 * SECOND);
	path.bytes_per_sec /= 2;
	path_simulate_for_ns(2 * SECOND);
	assert_in_range(fraction_of_link_rate(BBR(0).max_rate) * 1000, 950, 1060);
}

static void test_faster_path_is_noticed(void **state)
{
	(void)state;
	path_init_with_rate_and_rtt(6250000, 20 * MS);
	flow_begin(0);
	path_simulate_for_ns(3 * SECOND);
	path.bytes_per_sec *= 2;
	path_simulate_for_ns(2 * SECOND);
	assert_in_range(fraction_of_link_rate(BBR(0).max_rate) * 1000, 950, 1050);
}

static void test_two_flows_share_a_path(void **state)
{
	uint64_t a, b;

	(void)state;
	path_init_with_rate_and_rtt(12500000, 20 * MS);
	flow_begin(0);
	path_simulate_for_ns(3 * SECOND);
	flow_begin(1);
	path_simulate_for_ns(27 * SECOND);
	a = path.flow[0].rate.delivered;
	b = path.flow[1].rate.delivered;
	path_simulate_for_ns(20 * SECOND);
	a = path.flow[0].rate.delivered - a;
	b = path.flow[1].rate.delivered - b;
	assert_in_range(fraction_of_link_rate((a + b) / 20) * 1000, 900, 1000);
	/* Neither has less than half of the other. */
	assert_true(a < 2 * b && b < 2 * a);
}

static void test_segments_leave_at_their_pace(void **state)
{
	(void)state;
	path_init_with_rate_and_rtt(12500000, 20 * MS);
	flow_begin(0);
	path_simulate_for_ns(3 * SECOND);
	for (unsigned i = 0; i < 200; i++) {
		uint64_t before = path.flow[0].sent, fastest = BBR(0).max_rate * 5 / 4;

		path_simulate_for_ns(5 * MS);
		assert_true((path.flow[0].sent - before) * MSS <= fastest / 200 + 2 * path.flow[0].cc.quantum);
	}
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate_is_what_was_delivered_since_the_segment_was_sent),
        cmocka_unit_test(test_acknowledgements_that_come_together_do_not_make_the_path_faster),
        cmocka_unit_test(test_sample_of_less_than_a_round_trip_counts_for_nothing),
        cmocka_unit_test(test_segment_sent_while_the_application_had_nothing_is_marked),
        cmocka_unit_test(test_pace_lets_a_quantum_go_and_then_waits_for_its_time),
        cmocka_unit_test(test_pace_makes_up_for_half_a_quantum_of_lateness_only),
        cmocka_unit_test(test_pace_makes_up_for_150_us_at_a_high_rate),
        cmocka_unit_test(test_first_pacing_rate_is_the_initial_window_in_a_round_trip),
        cmocka_unit_test(test_startup_ends_after_three_rounds_without_a_quarter_more),
        cmocka_unit_test(test_cycle_has_a_phase_of_more_one_of_less_and_six_of_one),
        cmocka_unit_test(test_phase_of_more_lasts_until_there_is_more_in_flight),
        cmocka_unit_test(test_window_is_two_products_and_three_quanta),
        cmocka_unit_test(test_quantum_is_a_millisecond_between_two_segments_and_64_kilobytes),
        cmocka_unit_test(test_rate_is_the_highest_of_ten_rounds),
        cmocka_unit_test(test_application_that_sends_little_does_not_make_the_path_slow),
        cmocka_unit_test(test_round_trip_time_is_the_lowest_of_ten_seconds),
        cmocka_unit_test(test_probe_of_the_round_trip_time_takes_200_ms_with_four_segments),
        cmocka_unit_test(test_recovery_sends_what_is_delivered_and_then_has_its_window_back),
        cmocka_unit_test(test_timeout_leaves_one_segment_until_it_was_repaired),
        cmocka_unit_test(test_silence_keeps_the_window_and_begins_at_the_rate_of_the_path),
        cmocka_unit_test(test_bandwidth_and_round_trip_time_are_found),
        cmocka_unit_test(test_queue_of_the_beginning_drains),
        cmocka_unit_test(test_one_per_cent_of_loss_costs_little),
        cmocka_unit_test(test_long_path_with_loss_is_filled_in_time),
        cmocka_unit_test(test_small_queue_that_overflows_is_lived_with),
        cmocka_unit_test(test_round_trip_time_is_probed_each_ten_seconds),
        cmocka_unit_test(test_slower_path_is_noticed),
        cmocka_unit_test(test_faster_path_is_noticed),
        cmocka_unit_test(test_two_flows_share_a_path),
        cmocka_unit_test(test_segments_leave_at_their_pace),
};
VMA_TEST_MAIN(tests)
