/*
 * bbr.c - BBR: a model of the path instead of an answer to loss, draft-cardwell-iccrg-bbr-congestion-control-00
 * (version 1), which the kernel calls "bbr".
 *
 *   max_rate     the bottleneck: the highest delivery rate of ten rounds
 *   min_rtt_ns   the way without queues: the lowest round-trip time of ten seconds
 *
 * Segments leave at pacing gain times max_rate, and at most cwnd gain times their product is in flight (4.2):
 *
 *               full: three rounds without a quarter more         in flight <= product
 *   STARTUP 2/ln 2 ─────────────────────────> DRAIN ln 2/2 ─────────────────────────> PROBE_BW 5/4, 3/4, six times 1
 *        ^                                                                                 ^   (cwnd gain 2)
 *        └──────────── not full yet ──────────── PROBE_RTT <─────── min_rtt is old ────────┤
 *                                       four segments, 200 ms and a round  ────────────────┘
 *
 * Two things are as in the kernel, beyond version 00 of the draft. The pacing rate is one per cent lower, so that
 * queues empty. If a receiver acknowledges in bursts, the window is larger by the size of the bursts (version 02,
 * 4.5.5). The kernel's guess at policers is not here.
 */
#include <linux/inet_diag.h>

#include "cc.h"

enum { STARTUP, DRAIN, PROBE_BW, PROBE_RTT };

#define UNIT 256 /* gains are in parts of it */
#define HIGH_GAIN 739
#define DRAIN_GAIN 88
#define CWND_GAIN 512
#define FULL_GROWTH 320 /* 4.3.2.2: less than that in FULL_ROUNDS is no growth any more */
#define FULL_ROUNDS 3
#define MIN_RTT_WINDOW_NS 10000000000ULL
#define PROBE_RTT_NS 200000000ULL
#define MIN_SEGMENTS 4
#define EXTRA_ROUNDS 5            /* of each half */
#define EXTRA_MAX_NS 100000000ULL /* bursts of more than so much time are not made up for */
#define EPOCH_BYTES_MAX (UINT64_C(1) << 30)
#define SLOW_RATE 150000 /* bytes per second, below which a segment at a time is enough */
#define NS_PER_S 1000000000ULL

static const uint16_t bbr_cycle_pacing_gains[] = {UNIT * 5 / 4, UNIT * 3 / 4, UNIT, UNIT, UNIT, UNIT, UNIT, UNIT};
#define CYCLE (sizeof(bbr_cycle_pacing_gains) / sizeof(bbr_cycle_pacing_gains[0]))

/* ---- the model ---- */

static uint32_t pacing_gain(const struct tcp_bbr_state *bbr)
{
	switch (bbr->mode) {
	case STARTUP:
		return HIGH_GAIN;
	case DRAIN:
		return DRAIN_GAIN;
	case PROBE_BW:
		return bbr_cycle_pacing_gains[bbr->cycle];
	default:
		return UNIT;
	}
}

static uint32_t cwnd_gain(const struct tcp_bbr_state *bbr)
{
	switch (bbr->mode) {
	case STARTUP:
	case DRAIN:
		return HIGH_GAIN;
	case PROBE_BW:
		return CWND_GAIN;
	default:
		return UNIT;
	}
}

static uint32_t clamp_to_cwnd_max(uint64_t bytes)
{
	return bytes < CC_CWND_MAX ? (uint32_t)bytes : CC_CWND_MAX;
}

/* 4.2.3.2: gain times the product, with room for what is gathered on the way at either end; an even number of
 * segments. */
static uint32_t bbr_target_inflight(const struct tcp_cc *cc, uint32_t gain)
{
	const struct tcp_bbr_state *bbr = &cc->bbr;
	uint64_t bytes, segments;

	if (bbr->min_rtt_ns == UINT64_MAX)
		return cc_initial_window(cc);
	if (__builtin_mul_overflow(bbr->max_rate, bbr->min_rtt_ns, &bytes))
		return CC_CWND_MAX;
	bytes = (bytes / NS_PER_S * gain + UNIT - 1) / UNIT + 3 * (uint64_t)cc->quantum;
	segments = (bytes + cc->mss - 1) / cc->mss;
	segments += segments & 1;
	if (bbr->mode == PROBE_BW && bbr->cycle == 0)
		segments += 2; /* so that a small window shows the gain, too */
	return clamp_to_cwnd_max(segments * cc->mss);
}

/* What is sent at once: a millisecond's worth, as the kernel's super-segments. */
static void bbr_set_send_quantum(struct tcp_cc *cc)
{
	uint32_t least = cc->pacing_rate < SLOW_RATE ? 1 : 2, most = 65536 / cc->mss;
	uint64_t segments = (cc->pacing_rate >> 10) / cc->mss;

	segments = segments < most ? segments : most;
	segments = segments > least ? segments : least;
	cc->quantum = (uint32_t)segments * cc->mss;
}

static void bbr_set_pacing_rate(struct tcp_cc *cc, uint64_t bytes_per_sec)
{
	cc->pacing_rate = bytes_per_sec ? bytes_per_sec : 1;
	bbr_set_send_quantum(cc);
}

static void bbr_set_pacing_by_gain(struct tcp_cc *cc, uint32_t gain)
{
	uint64_t rate = cc->bbr.max_rate * gain / UNIT / 100 * 99;

	if (rate != cc->pacing_rate && (cc->bbr.full || rate > cc->pacing_rate))
		bbr_set_pacing_rate(cc, rate);
}

/* ---- the rate ---- */

static uint64_t bbr_max_rate_in_window(const struct tcp_bbr_state *bbr)
{
	uint64_t max = 0;

	for (unsigned i = 0; i < BBR_RATE_ROUNDS; i++)
		max = bbr->rate[i] > max ? bbr->rate[i] : max;
	return max;
}

/*
 * The filter ages only when there is a sample: what was known before a time in which the application sent little is
 * still known after it. Only when the highest of all has become too old the others are looked at.
 */
static void bbr_update_max_bw(struct tcp_bbr_state *bbr, uint64_t bytes_per_sec)
{
	uint64_t *rate = &bbr->rate[bbr->round % BBR_RATE_ROUNDS];
	uint64_t passed = bbr->round - bbr->rate_round, old = 0;

	for (uint64_t i = 0; i < passed && i < BBR_RATE_ROUNDS; i++) {
		uint64_t *last = &bbr->rate[(bbr->round - i) % BBR_RATE_ROUNDS];

		old = *last > old ? *last : old;
		*last = 0;
	}
	bbr->rate_round = bbr->round;
	if (bytes_per_sec > *rate)
		*rate = bytes_per_sec;
	if (bytes_per_sec >= bbr->max_rate)
		bbr->max_rate = bytes_per_sec;
	else if (old == bbr->max_rate)
		bbr->max_rate = bbr_max_rate_in_window(bbr);
}

static void bbr_update_bw(struct tcp_bbr_state *bbr, const struct tcp_cc_sample *s)
{
	bbr->round_start = s->is_valid && s->prior_delivered >= bbr->round_end;
	if (bbr->round_start) {
		bbr->round++;
		bbr->round_end = bbr->delivered;
		bbr->conserving = false;
	}
	/* An application that sends little does not make the path slow: 4.1.2.3. */
	if (s->bytes_per_sec && (!s->app_limited || s->bytes_per_sec >= bbr->max_rate))
		bbr_update_max_bw(bbr, s->bytes_per_sec);
}

/* ---- acknowledgements in bursts ---- */

static void bbr_update_ack_aggregation(struct tcp_cc *cc, const struct tcp_cc_sample *s, uint64_t now_ns)
{
	struct tcp_bbr_state *bbr = &cc->bbr;
	uint64_t expected, extra_acked;

	if (s->newly == 0 || bbr->max_rate == 0)
		return;
	if (bbr->round_start && ++bbr->extra_acked_rounds >= EXTRA_ROUNDS) {
		bbr->extra_acked_rounds = 0;
		bbr->extra_acked_half ^= 1;
		bbr->extra_acked[bbr->extra_acked_half] = 0;
	}
	if (__builtin_mul_overflow(bbr->max_rate, now_ns - bbr->epoch_ns, &expected))
		expected = UINT64_MAX;
	expected /= NS_PER_S;
	if (bbr->epoch_bytes <= expected || bbr->epoch_bytes >= EPOCH_BYTES_MAX) {
		bbr->epoch_bytes = expected = 0;
		bbr->epoch_ns = now_ns;
	}
	bbr->epoch_bytes += s->newly;
	extra_acked = bbr->epoch_bytes - expected;
	if (extra_acked > cc->cwnd)
		extra_acked = cc->cwnd;
	if (extra_acked > bbr->extra_acked[bbr->extra_acked_half])
		bbr->extra_acked[bbr->extra_acked_half] = (uint32_t)extra_acked;
}

static uint32_t ack_aggregation_cwnd(const struct tcp_bbr_state *bbr)
{
	uint64_t most = bbr->max_rate / (NS_PER_S / EXTRA_MAX_NS);
	uint32_t extra_acked = bbr->extra_acked[0] > bbr->extra_acked[1] ? bbr->extra_acked[0] : bbr->extra_acked[1];

	if (!bbr->full)
		return 0;
	return extra_acked < most ? extra_acked : (uint32_t)most;
}

/* ---- the cycle of PROBE_BW, 4.3.4 ---- */

static void bbr_begin_probe_bw_phase(struct tcp_bbr_state *bbr, uint8_t cycle, uint64_t now_ns)
{
	bbr->cycle = cycle;
	bbr->cycle_ns = now_ns;
}

/* Begins anywhere but with the low gain, so that flows do not probe together. */
static void bbr_enter_probe_bw(struct tcp_bbr_state *bbr, uint64_t now_ns)
{
	uint64_t mixed = (now_ns ^ bbr->delivered) * UINT64_C(0x9e3779b97f4a7c15);
	uint8_t any = (uint8_t)((mixed >> 32) % (CYCLE - 1));

	bbr->mode = PROBE_BW;
	bbr_begin_probe_bw_phase(bbr, any == 0 ? 0 : any + 1, now_ns);
}

/* 4.3.4.4. More is sent until there is more in flight, or something is lost; less, until the queue is gone. */
static bool bbr_phase_is_over(const struct tcp_cc *cc, const struct tcp_cc_sample *s, uint64_t now_ns)
{
	const struct tcp_bbr_state *bbr = &cc->bbr;
	uint32_t gain = bbr_cycle_pacing_gains[bbr->cycle];
	bool is_long = now_ns - bbr->cycle_ns > bbr->min_rtt_ns;

	if (gain > UNIT)
		return is_long && (s->lost || s->prior_in_flight >= bbr_target_inflight(cc, gain));
	if (gain < UNIT)
		return is_long || s->prior_in_flight <= bbr_target_inflight(cc, UNIT);
	return is_long;
}

/* ---- STARTUP and DRAIN, 4.3.2, 4.3.3 ---- */

static void bbr_check_full_bw_reached(struct tcp_bbr_state *bbr, const struct tcp_cc_sample *s)
{
	if (bbr->full || !bbr->round_start || s->app_limited)
		return;
	if (bbr->max_rate >= bbr->full_rate * FULL_GROWTH / UNIT) {
		bbr->full_rate = bbr->max_rate;
		bbr->full_rounds = 0;
		return;
	}
	bbr->full = ++bbr->full_rounds >= FULL_ROUNDS;
}

static void bbr_check_drain(struct tcp_cc *cc, const struct tcp_cc_sample *s, uint64_t now_ns)
{
	struct tcp_bbr_state *bbr = &cc->bbr;

	if (bbr->mode == STARTUP && bbr->full) {
		bbr->mode = DRAIN;
		cc->ssthresh = bbr_target_inflight(cc, UNIT);
	}
	if (bbr->mode == DRAIN && s->in_flight <= bbr_target_inflight(cc, UNIT))
		bbr_enter_probe_bw(bbr, now_ns);
}

/* ---- PROBE_RTT, 4.3.5 ---- */

static void bbr_save_cwnd(struct tcp_cc *cc)
{
	struct tcp_bbr_state *bbr = &cc->bbr;

	if (bbr->phase == CC_OPEN && bbr->mode != PROBE_RTT)
		bbr->prior_cwnd = cc->cwnd;
	else if (cc->cwnd > bbr->prior_cwnd)
		bbr->prior_cwnd = cc->cwnd;
}

static void bbr_restore_cwnd(struct tcp_cc *cc)
{
	if (cc->cwnd < cc->bbr.prior_cwnd)
		cc->cwnd = cc->bbr.prior_cwnd;
}

static void bbr_end_probe_rtt(struct tcp_cc *cc, uint64_t now_ns)
{
	struct tcp_bbr_state *bbr = &cc->bbr;

	if (bbr->probe_rtt_done_ns == 0 || now_ns < bbr->probe_rtt_done_ns)
		return;
	bbr->min_rtt_at_ns = now_ns;
	bbr_restore_cwnd(cc);
	if (bbr->full)
		bbr_enter_probe_bw(bbr, now_ns);
	else
		bbr->mode = STARTUP;
}

static void bbr_update_probe_rtt(struct tcp_cc *cc, const struct tcp_cc_sample *s, uint64_t now_ns)
{
	struct tcp_bbr_state *bbr = &cc->bbr;

	if (bbr->probe_rtt_done_ns == 0) {
		if (s->in_flight > MIN_SEGMENTS * cc->mss)
			return;
		bbr->probe_rtt_done_ns = now_ns + PROBE_RTT_NS;
		bbr->probe_rtt_round_done = false;
		bbr->round_end = bbr->delivered;
		return;
	}
	if (bbr->round_start)
		bbr->probe_rtt_round_done = true;
	if (bbr->probe_rtt_round_done)
		bbr_end_probe_rtt(cc, now_ns);
}

static void bbr_update_min_rtt(struct tcp_cc *cc, const struct tcp_cc_sample *s, uint64_t now_ns)
{
	struct tcp_bbr_state *bbr = &cc->bbr;
	bool is_old = bbr->min_rtt_ns != UINT64_MAX && now_ns > bbr->min_rtt_at_ns + MIN_RTT_WINDOW_NS;

	if (s->rtt_ns && (s->rtt_ns <= bbr->min_rtt_ns || is_old)) {
		bbr->min_rtt_ns = s->rtt_ns;
		bbr->min_rtt_at_ns = now_ns;
	}
	if (is_old && !bbr->idle_restart && bbr->mode != PROBE_RTT) {
		bbr_save_cwnd(cc);
		bbr->mode = PROBE_RTT;
		bbr->probe_rtt_done_ns = 0;
	}
	if (bbr->mode == PROBE_RTT)
		bbr_update_probe_rtt(cc, s, now_ns);
	if (s->newly)
		bbr->idle_restart = false;
}

/* ---- the window, 4.2.3 ---- */

/*
 * 4.2.3.4. What is lost is not replaced; and the first round of a recovery sends as much as is delivered. Whether that
 * decides the window.
 */
static bool bbr_limit_cwnd_in_recovery(struct tcp_cc *cc, const struct tcp_cc_sample *s)
{
	struct tcp_bbr_state *bbr = &cc->bbr;
	uint8_t before = bbr->phase;
	uint32_t conserved = clamp_to_cwnd_max((uint64_t)s->in_flight + s->newly);

	bbr->phase = (uint8_t)s->phase;
	if (s->lost)
		cc->cwnd = cc->cwnd > s->lost + cc->mss ? cc->cwnd - s->lost : cc->mss;
	if (s->phase == CC_RECOVERY && before != CC_RECOVERY) {
		bbr->conserving = true;
		bbr->round_end = bbr->delivered;
		cc->cwnd = conserved;
	} else if (s->phase == CC_OPEN && before != CC_OPEN) {
		bbr->conserving = false;
		bbr_restore_cwnd(cc);
	}
	if (!bbr->conserving)
		return false;
	if (cc->cwnd < conserved)
		cc->cwnd = conserved;
	return true;
}

static void bbr_set_cwnd(struct tcp_cc *cc, const struct tcp_cc_sample *s)
{
	struct tcp_bbr_state *bbr = &cc->bbr;
	uint32_t least = MIN_SEGMENTS * cc->mss;

	if (s->newly && !bbr_limit_cwnd_in_recovery(cc, s)) {
		uint32_t most = clamp_to_cwnd_max((uint64_t)bbr_target_inflight(cc, cwnd_gain(bbr)) +
		                                  ack_aggregation_cwnd(bbr));
		uint32_t grown = clamp_to_cwnd_max((uint64_t)cc->cwnd + s->newly);

		if (bbr->full)
			cc->cwnd = grown < most ? grown : most;
		else if (cc->cwnd < most || bbr->delivered < cc_initial_window(cc))
			cc->cwnd = grown;
		if (cc->cwnd < least)
			cc->cwnd = least;
	}
	if (bbr->mode == PROBE_RTT && cc->cwnd > least)
		cc->cwnd = least;
}

/* ---- the table's row ---- */

static void bbr_init(struct tcp_cc *cc)
{
	cc->bbr = (struct tcp_bbr_state){.min_rtt_ns = UINT64_MAX, .mode = STARTUP};
}

/* 4.2.1: until there is a sample, the initial window in a round-trip time. */
static void bbr_set_initial_pacing(struct tcp_cc *cc, uint64_t rtt_ns)
{
	bbr_set_pacing_rate(cc, (uint64_t)cc->cwnd * HIGH_GAIN / UNIT * NS_PER_S / rtt_ns);
}

static bool bbr_on_rate_sample(struct tcp_cc *cc, const struct tcp_cc_sample *s, uint64_t now_ns)
{
	struct tcp_bbr_state *bbr = &cc->bbr;

	bbr->delivered = s->delivered;
	bbr_update_bw(bbr, s);
	bbr_update_ack_aggregation(cc, s, now_ns);
	if (bbr->mode == PROBE_BW && bbr_phase_is_over(cc, s, now_ns))
		bbr_begin_probe_bw_phase(bbr, (uint8_t)((bbr->cycle + 1) % CYCLE), now_ns);
	bbr_check_full_bw_reached(bbr, s);
	bbr_check_drain(cc, s, now_ns);
	bbr_update_min_rtt(cc, s, now_ns);
	if (cc->pacing_rate == 0 && s->rtt_ns)
		bbr_set_initial_pacing(cc, s->rtt_ns);
	if (bbr->max_rate)
		bbr_set_pacing_by_gain(cc, pacing_gain(bbr));
	bbr_set_cwnd(cc, s);
	return bbr->mode == PROBE_RTT;
}

static uint32_t bbr_save_cwnd_keep_ssthresh_on_loss(struct tcp_cc *cc, uint32_t in_flight, uint64_t now_ns)
{
	(void)in_flight;
	(void)now_ns;
	bbr_save_cwnd(cc);
	return cc->ssthresh;
}

/* What was known of the path's fullness may be no longer so. */
static void bbr_on_rto(struct tcp_cc *cc, uint64_t now_ns)
{
	(void)now_ns;
	cc->bbr.phase = CC_LOSS;
	cc->bbr.full_rate = 0;
	cc->bbr.round_start = true;
}

static void bbr_reset_full_bw_estimate_on_undo(struct tcp_cc *cc)
{
	cc->bbr.full_rate = 0;
	cc->bbr.full_rounds = 0;
}

/* 4.3.4.4: what is known of the path is used at once, at the rate of it. */
static void bbr_restart_from_idle(struct tcp_cc *cc, bool app_limited, uint64_t now_ns)
{
	struct tcp_bbr_state *bbr = &cc->bbr;

	if (!app_limited)
		return;
	bbr->idle_restart = true;
	bbr->epoch_ns = now_ns;
	bbr->epoch_bytes = 0;
	if (bbr->mode == PROBE_BW)
		bbr_set_pacing_by_gain(cc, UNIT);
	else if (bbr->mode == PROBE_RTT)
		bbr_end_probe_rtt(cc, now_ns);
}

static size_t bbr_info(const struct tcp_cc *cc, union tcp_cc_info *info)
{
	const struct tcp_bbr_state *bbr = &cc->bbr;
	uint64_t usec = bbr->min_rtt_ns / 1000;

	info->bbr = (struct tcp_bbr_info){.bbr_bw_lo = (uint32_t)bbr->max_rate,
	                                  .bbr_bw_hi = (uint32_t)(bbr->max_rate >> 32),
	                                  .bbr_min_rtt = usec < UINT32_MAX ? (uint32_t)usec : UINT32_MAX,
	                                  .bbr_pacing_gain = pacing_gain(bbr),
	                                  .bbr_cwnd_gain = cwnd_gain(bbr)};
	return sizeof(info->bbr);
}

const struct tcp_cc_ops cc_bbr = {
        .name = "bbr",
        .init = bbr_init,
        .reduce = bbr_save_cwnd_keep_ssthresh_on_loss,
        .timeout = bbr_on_rto,
        .undo = bbr_reset_full_bw_estimate_on_undo,
        .sampled = bbr_on_rate_sample,
        .restarted = bbr_restart_from_idle,
        .info = bbr_info,
};
