/*
 * cc.c - the common part of all algorithms: the initial window, the limits, the restart after idling. Also the
 * algorithm "none", which holds back only by the receiver's window.
 */
#include <errno.h>
#include <string.h>

#include <vma/tcp.h>

#include "cc.h"

/* RFC 6928 2 */
uint32_t cc_initial_window(const struct tcp_cc *cc)
{
	uint32_t mss = cc->mss, least = 2 * mss > 14600 ? 2 * mss : 14600;

	if (cc->initial != 0)
		return cc->initial < CC_CWND_MAX / mss ? cc->initial * mss : CC_CWND_MAX;
	return CC_INITIAL_SEGMENTS * mss < least ? CC_INITIAL_SEGMENTS * mss : least;
}

static void cc_none_init_unlimited_cwnd(struct tcp_cc *cc)
{
	cc->cwnd = CC_CWND_MAX;
}

static void cc_none_set_max_cwnd_on_ack(struct tcp_cc *cc, uint32_t acked, uint64_t rtt_ns, uint64_t now_ns)
{
	(void)acked;
	(void)rtt_ns;
	(void)now_ns;
	cc->cwnd = CC_CWND_MAX;
}

static uint32_t cc_none_ssthresh_unlimited(struct tcp_cc *cc, uint32_t in_flight, uint64_t now_ns)
{
	(void)cc;
	(void)in_flight;
	(void)now_ns;
	return CC_CWND_MAX;
}

static const struct tcp_cc_ops none = {.name = "none",
                                       .init = cc_none_init_unlimited_cwnd,
                                       .acked = cc_none_set_max_cwnd_on_ack,
                                       .reduce = cc_none_ssthresh_unlimited};

static const struct tcp_cc_ops *const algorithms[] = {
        [VMA_TCP_CC_LWIP] = &cc_newreno,
        [VMA_TCP_CC_CUBIC] = &cc_cubic,
        [VMA_TCP_CC_NONE] = &none,
        [VMA_TCP_CC_BBR] = &cc_bbr,
};
#define ALGORITHMS (int)(sizeof(algorithms) / sizeof(algorithms[0]))

int vma_tcp_cc_by_name(const char *name)
{
	if (strcmp(name, "lwip") == 0 || strcmp(name, "newreno") == 0)
		return VMA_TCP_CC_LWIP;
	for (int i = 0; i < ALGORITHMS; i++) {
		if (strcmp(name, algorithms[i]->name) == 0)
			return i;
	}
	return -ENOENT;
}

const char *vma_tcp_cc_name(int algorithm)
{
	return algorithm >= 0 && algorithm < ALGORITHMS ? algorithms[algorithm]->name : NULL;
}

static void cc_clamp_cwnd(struct tcp_cc *cc)
{
	if (cc->cwnd < cc->mss)
		cc->cwnd = cc->mss;
	if (cc->cwnd > CC_CWND_MAX)
		cc->cwnd = CC_CWND_MAX;
}

void cc_init(struct tcp_cc *cc, int algorithm, uint32_t mss)
{
	if (algorithm < 0 || algorithm >= ALGORITHMS)
		algorithm = VMA_TCP_CC_CUBIC;
	*cc = (struct tcp_cc){.ops = algorithms[algorithm], .mss = mss ? mss : 1, .ssthresh = UINT32_MAX};
	cc->cwnd = cc_initial_window(cc);
	if (cc->ops->init)
		cc->ops->init(cc);
	cc_clamp_cwnd(cc);
}

static bool cc_window_is_initial(const struct tcp_cc *cc)
{
	return cc->ssthresh == UINT32_MAX && cc->cwnd == cc_initial_window(cc);
}

/* Before the window has moved at all, it is the initial one of the new size. */
void cc_set_mss(struct tcp_cc *cc, uint32_t mss)
{
	bool initial = cc_window_is_initial(cc);

	if (mss == 0)
		return;
	cc->mss = mss;
	if (initial)
		cc->cwnd = cc_initial_window(cc);
	cc_clamp_cwnd(cc);
}

void cc_set_initial_window_segments(struct tcp_cc *cc, uint32_t segments)
{
	bool initial = cc_window_is_initial(cc);

	if (segments == cc->initial)
		return;
	cc->initial = segments;
	if (initial)
		cc->cwnd = cc_initial_window(cc);
	cc_clamp_cwnd(cc);
}

void cc_on_ack(struct tcp_cc *cc, uint32_t acked, bool was_limited, uint64_t rtt_ns, uint64_t now_ns)
{
	/* A window that was not used has not been tried: it does not grow (RFC 5681 4.1, RFC 7661). */
	if (was_limited)
		cc->ops->acked(cc, acked, rtt_ns, now_ns);
	else if (cc->ops->unused && cc->acked_ns && now_ns > cc->acked_ns)
		cc->ops->unused(cc, now_ns - cc->acked_ns);
	cc->acked_ns = now_ns;
	cc_clamp_cwnd(cc);
}

bool cc_on_rate_sample(struct tcp_cc *cc, const struct tcp_cc_sample *sample, uint64_t now_ns)
{
	bool holds_back = cc->ops->sampled(cc, sample, now_ns);

	cc_clamp_cwnd(cc);
	return holds_back;
}

void cc_on_restart_from_idle(struct tcp_cc *cc, bool app_limited, uint64_t now_ns)
{
	if (cc->ops->restarted)
		cc->ops->restarted(cc, app_limited, now_ns);
}

static uint32_t cc_compute_ssthresh(struct tcp_cc *cc, uint32_t in_flight, uint64_t now_ns)
{
	uint32_t ssthresh = cc->ops->reduce(cc, in_flight, now_ns);

	return ssthresh > 2 * cc->mss ? ssthresh : 2 * cc->mss; /* RFC 5681, equation 4 */
}

void cc_on_loss(struct tcp_cc *cc, uint32_t in_flight, uint64_t now_ns)
{
	cc->ssthresh = cc_compute_ssthresh(cc, in_flight, now_ns);
	cc->acked = 0;
}

void cc_on_recovery_end(struct tcp_cc *cc, uint64_t now_ns)
{
	if (cc_is_model_based(cc))
		return; /* it has seen it itself */
	cc->cwnd = cc->ssthresh;
	cc->acked = 0;
	cc->acked_ns = now_ns;
	cc_clamp_cwnd(cc);
}

void cc_on_rto(struct tcp_cc *cc, uint32_t in_flight, uint64_t now_ns)
{
	cc->ssthresh = cc_compute_ssthresh(cc, in_flight, now_ns);
	cc->acked = 0;
	cc->cwnd = cc->mss;
	if (cc->ops->timeout)
		cc->ops->timeout(cc, now_ns);
}

void cc_undo_reduction(struct tcp_cc *cc, uint32_t cwnd, uint32_t ssthresh)
{
	cc->ssthresh = ssthresh;
	if (cc->cwnd < cwnd)
		cc->cwnd = cwnd;
	if (cc->ops->undo)
		cc->ops->undo(cc);
	cc->acked = 0;
	cc_clamp_cwnd(cc);
}

/*
 * What is known about the path grows old: for each timeout of silence the window is halved, down to the initial one;
 * the threshold remembers three quarters of it, so that slow start leads back quickly (RFC 2861, as the kernel).
 */
void cc_decay_after_idle(struct tcp_cc *cc, uint64_t idle_ns, uint64_t rto_ns)
{
	uint32_t restart = cc_initial_window(cc), remember = cc->cwnd / 4 * 3;

	if (cc_is_model_based(cc))
		return; /* pacing does what the smaller window is for */
	if (cc->ops->unused)
		cc->ops->unused(cc, idle_ns);
	if (cc->acked_ns)
		cc->acked_ns += idle_ns;
	if (cc->ops == &none || rto_ns == 0 || idle_ns <= rto_ns || cc->cwnd <= restart)
		return;
	if (cc->ssthresh < remember)
		cc->ssthresh = remember;
	for (; idle_ns > rto_ns && cc->cwnd > restart; idle_ns -= rto_ns)
		cc->cwnd /= 2;
	if (cc->cwnd < restart)
		cc->cwnd = restart;
	cc->acked = 0;
}
