/*
 * cubic.c - Cubic, RFC 9438, in whole numbers: windows in bytes, time in milliseconds.
 *
 *   W_cubic(t) = C (t - K)^3 + W_max      K = cbrt((W_max - cwnd_epoch) / C)      beta = 0.7, C = 0.4 segments/s^3
 *
 * and slow start by HyStart++, RFC 9406. Its limit L to the growth by one ACK is not here. Rings hand over the ACKs of
 * a burst, and receivers acknowledge bursts. So a limit per ACK would slow down receivers that save ACKs. The kernel
 * has none either.
 */
#include "cc.h"

/* RFC 9406 4.3 */
#define MIN_RTT_THRESH_NS 4000000ULL
#define MAX_RTT_THRESH_NS 16000000ULL
#define MIN_RTT_DIVISOR 8
#define N_RTT_SAMPLE 8
#define CSS_GROWTH_DIVISOR 4
#define CSS_ROUNDS 5

#define NS_PER_MS 1000000ULL
#define T_MAX_MS 1000000 /* of t - K: its cube times C, in segments, is far beyond any window */

uint32_t cc_cube_root(uint64_t value)
{
	uint64_t root = 0;

	/* One bit at a time, from the highest of a root of 64 bits. (root + bit)^3 stays below 2^66: so by division. */
	for (uint64_t bit = UINT64_C(1) << 21; bit; bit >>= 1) {
		uint64_t next = root + bit;

		if (next * next <= value / next)
			root = next;
	}
	return (uint32_t)root;
}

/* ---- slow start ---- */

static void hystart_round_begin(struct tcp_cc *cc)
{
	cc->last_round_min_ns = cc->round_min_ns;
	cc->round_min_ns = UINT64_MAX;
	cc->round_samples = 0;
	cc->round_left = cc->cwnd;
}

static void cubic_init(struct tcp_cc *cc)
{
	cc->round_min_ns = UINT64_MAX;
	cc->css_baseline_ns = UINT64_MAX;
	hystart_round_begin(cc);
}

/* Delay has grown by an eighth of what it was in the last round: slow start is near its end. */
static bool hystart_delay_has_grown(const struct tcp_cc *cc)
{
	uint64_t threshold_ns = cc->last_round_min_ns / MIN_RTT_DIVISOR;

	if (cc->round_samples < N_RTT_SAMPLE || cc->round_min_ns == UINT64_MAX || cc->last_round_min_ns == UINT64_MAX)
		return false;
	if (threshold_ns < MIN_RTT_THRESH_NS)
		threshold_ns = MIN_RTT_THRESH_NS;
	if (threshold_ns > MAX_RTT_THRESH_NS)
		threshold_ns = MAX_RTT_THRESH_NS;
	return cc->round_min_ns >= cc->last_round_min_ns + threshold_ns;
}

static void hystart_rtt_sample(struct tcp_cc *cc, uint64_t rtt_ns)
{
	if (rtt_ns == 0)
		return;
	if (rtt_ns < cc->round_min_ns)
		cc->round_min_ns = rtt_ns;
	cc->round_samples++;
	if (!cc->in_css && hystart_delay_has_grown(cc)) {
		cc->css_baseline_ns = cc->round_min_ns;
		cc->in_css = true;
		cc->css_rounds = 0;
	} else if (cc->in_css && cc->round_samples >= N_RTT_SAMPLE && cc->round_min_ns < cc->css_baseline_ns) {
		cc->css_baseline_ns = UINT64_MAX; /* it was a passing jitter */
		cc->in_css = false;
	}
}

static void hystart_advance_round(struct tcp_cc *cc, uint32_t acked)
{
	if (cc->round_left > acked) {
		cc->round_left -= acked;
		return;
	}
	if (cc->in_css && ++cc->css_rounds >= CSS_ROUNDS)
		cc->ssthresh = cc->cwnd;
	hystart_round_begin(cc);
}

static void cubic_slow_start(struct tcp_cc *cc, uint32_t acked, uint64_t rtt_ns)
{
	bool first = cc->ssthresh == UINT32_MAX; /* HyStart++ is for the first slow start, RFC 9406 4.3 */

	if (first)
		hystart_rtt_sample(cc, rtt_ns);
	cc->cwnd += first && cc->in_css ? acked / CSS_GROWTH_DIVISOR : acked;
	if (!first && cc->cwnd > cc->ssthresh)
		cc->cwnd = cc->ssthresh;
	if (first)
		hystart_advance_round(cc, acked);
}

/* ---- congestion avoidance ---- */

static void cubic_epoch_begin(struct tcp_cc *cc, uint64_t now_ns)
{
	struct tcp_cubic *cubic = &cc->cubic;

	cubic->epoch_ns = now_ns;
	cubic->epoch_start_cwnd = cubic->w_est = cc->cwnd;
	cubic->w_est_acked = 0;
	if (cubic->w_max > cc->cwnd) {
		/* in milliseconds: cbrt(segments / 0.4) * 1000 = cbrt(segments * 2.5e9) */
		cubic->k_ms = cc_cube_root((cubic->w_max - cc->cwnd) * UINT64_C(2500000000) / cc->mss);
	} else {
		cubic->k_ms = 0;
		cubic->w_max = cc->cwnd;
	}
}

/* W_cubic at t, in bytes; never below 0. */
static uint64_t cubic_window(const struct tcp_cc *cc, uint64_t t_ms)
{
	uint64_t k_ms = cc->cubic.k_ms, away_ms = t_ms > k_ms ? t_ms - k_ms : k_ms - t_ms, off;

	if (away_ms > T_MAX_MS)
		away_ms = T_MAX_MS;
	/* 0.4 away^3 / 10^9 segments. In this order nothing passes 2^62, with segments of 64 KB either. */
	off = away_ms * away_ms * away_ms / 10 * 4 / 10000 * cc->mss / 100000;
	if (t_ms > k_ms)
		return cc->cubic.w_max + off;
	return off < cc->cubic.w_max ? cc->cubic.w_max - off : 0;
}

/* What NewReno would have, RFC 9438 4.3: alpha is 3 (1 - 0.7) / (1 + 0.7) = 9/17 until it is back where it was. */
static void cubic_update_reno_window_estimate(struct tcp_cc *cc, uint32_t acked)
{
	struct tcp_cubic *cubic = &cc->cubic;
	uint64_t per_step = cubic->w_est < cubic->cwnd_prior ? (uint64_t)cc->cwnd * 17 / 9 : cc->cwnd;
	uint64_t gained;

	cubic->w_est_acked += acked;
	gained = (uint64_t)cubic->w_est_acked * cc->mss / per_step;
	if (gained == 0)
		return;
	cubic->w_est += (uint32_t)gained;
	cubic->w_est_acked -= (uint32_t)(gained * per_step / cc->mss);
	if (cubic->w_est > CC_CWND_MAX)
		cubic->w_est = CC_CWND_MAX;
}

/* cwnd moves by (target - cwnd) / cwnd for each byte acknowledged; what is less than a byte is kept. */
static void cubic_move_cwnd_towards(struct tcp_cc *cc, uint32_t target, uint32_t acked)
{
	uint64_t distance = target - cc->cwnd, gained;

	cc->acked += acked;
	if (cc->acked > cc->cwnd)
		cc->acked = cc->cwnd;
	gained = cc->acked * distance / cc->cwnd;
	if (gained == 0)
		return;
	cc->acked -= (uint32_t)((gained * cc->cwnd + distance - 1) / distance);
	cc->cwnd += (uint32_t)gained;
}

static void avoid_congestion(struct tcp_cc *cc, uint32_t acked, uint64_t rtt_ns, uint64_t now_ns)
{
	uint64_t t_ns, target;

	if (cc->cubic.epoch_ns == 0)
		cubic_epoch_begin(cc, now_ns);
	cubic_update_reno_window_estimate(cc, acked);
	t_ns = now_ns > cc->cubic.epoch_ns ? now_ns - cc->cubic.epoch_ns : 0;
	if (cubic_window(cc, t_ns / NS_PER_MS) < cc->cubic.w_est) {
		if (cc->cwnd < cc->cubic.w_est)
			cc->cwnd = cc->cubic.w_est;
		return;
	}
	target = cubic_window(cc, (t_ns + rtt_ns) / NS_PER_MS);
	if (target > (uint64_t)cc->cwnd * 3 / 2)
		target = (uint64_t)cc->cwnd * 3 / 2;
	if (target > cc->cwnd)
		cubic_move_cwnd_towards(cc, (uint32_t)target, acked);
}

static void cubic_on_ack(struct tcp_cc *cc, uint32_t acked, uint64_t rtt_ns, uint64_t now_ns)
{
	if (cc->cwnd < cc->ssthresh)
		cubic_slow_start(cc, acked, rtt_ns);
	else
		avoid_congestion(cc, acked, rtt_ns, now_ns);
}

/*
 * RFC 9438 4.6 and 4.7. By cwnd rather than by what was in flight, as the kernel and as 4.6 allows: the end of a
 * transfer, when little is in flight, says nothing about the path. cwnd grows only while it is used.
 */
static uint32_t cubic_ssthresh_on_loss(struct tcp_cc *cc, uint32_t in_flight, uint64_t now_ns)
{
	(void)in_flight;
	(void)now_ns;
	cc->cubic_undo = cc->cubic;
	cc->cubic.w_max = cc->cwnd < cc->cubic.w_max ? (uint32_t)((uint64_t)cc->cwnd * 17 / 20) : cc->cwnd;
	cc->cubic.cwnd_prior = cc->cwnd;
	cc->cubic.epoch_ns = 0;
	return (uint32_t)((uint64_t)cc->cwnd * 7 / 10);
}

/* RFC 9438 4.8: from here on as if nothing were known but ssthresh. */
static void cubic_on_rto(struct tcp_cc *cc, uint64_t now_ns)
{
	(void)now_ns;
	cc->cubic.w_max = 0;
	cc->cubic.epoch_ns = 0;
}

static void cubic_undo(struct tcp_cc *cc)
{
	cc->cubic = cc->cubic_undo;
}

/* Time in which the window was not used does not count, or the curve would have risen meanwhile (RFC 9438 5.8). */
static void cubic_skip_idle_time(struct tcp_cc *cc, uint64_t span_ns)
{
	if (cc->cubic.epoch_ns)
		cc->cubic.epoch_ns += span_ns;
}

const struct tcp_cc_ops cc_cubic = {
        .name = "cubic",
        .init = cubic_init,
        .acked = cubic_on_ack,
        .reduce = cubic_ssthresh_on_loss,
        .timeout = cubic_on_rto,
        .unused = cubic_skip_idle_time,
        .undo = cubic_undo,
};
