/*
 * newreno.c - NewReno: RFC 5681, with bytes counted as in RFC 3465 (L = 2), so that an ACK for many segments is worth
 * no burst. The recovery that gave it the name (RFC 6582) is in loss/recovery.c.
 */
#include "cc.h"

static void newreno_acked(struct tcp_cc *cc, uint32_t acked, uint64_t rtt_ns, uint64_t now_ns)
{
	(void)rtt_ns;
	(void)now_ns;
	if (cc->cwnd < cc->ssthresh) {
		cc->cwnd += acked < 2 * cc->mss ? acked : 2 * cc->mss;
		return;
	}
	/* RFC 3465 2.1: a segment more for each window acknowledged. */
	cc->acked += acked;
	if (cc->acked >= cc->cwnd) {
		cc->acked -= cc->cwnd;
		cc->cwnd += cc->mss;
	}
	if (cc->acked > cc->cwnd)
		cc->acked = cc->cwnd;
}

static uint32_t newreno_ssthresh_on_loss(struct tcp_cc *cc, uint32_t in_flight, uint64_t now_ns)
{
	(void)cc;
	(void)now_ns;
	return in_flight / 2;
}

const struct tcp_cc_ops cc_newreno = {.name = "reno", .acked = newreno_acked, .reduce = newreno_ssthresh_on_loss};
