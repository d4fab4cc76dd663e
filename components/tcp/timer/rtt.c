/* rtt.c - round-trip time and retransmission timeout: RFC 6298, section 2, with the kernel's bounds. */
#include "rtt.h"

#define MIN_WINDOW_NS 300000000000ULL /* how long a lowest sample counts */

void rtt_init(struct tcp_rtt *rtt)
{
	*rtt = (struct tcp_rtt){0};
}

static void rtt_update_min(struct tcp_rtt *rtt, uint64_t sample_ns, uint64_t now_ns)
{
	if (rtt->min_ns && sample_ns > rtt->min_ns && now_ns - rtt->min_at_ns <= MIN_WINDOW_NS)
		return;
	rtt->min_ns = sample_ns;
	rtt->min_at_ns = now_ns;
}

void rtt_sample(struct tcp_rtt *rtt, uint64_t sample_ns, uint64_t now_ns)
{
	uint64_t error;

	if (sample_ns == 0) /* a link without delay, in the time of a test */
		sample_ns = 1;
	if (sample_ns > RTT_RTO_MAX_NS)
		sample_ns = RTT_RTO_MAX_NS;
	rtt_update_min(rtt, sample_ns, now_ns);
	rtt->latest_ns = sample_ns;
	if (rtt->srtt_ns == 0) {
		rtt->srtt_ns = sample_ns;
		rtt->rttvar_ns = sample_ns / 2;
		return;
	}
	/* The variation first, by the average that was (2.3). */
	error = sample_ns > rtt->srtt_ns ? sample_ns - rtt->srtt_ns : rtt->srtt_ns - sample_ns;
	rtt->rttvar_ns = (3 * rtt->rttvar_ns + error) / 4;
	rtt->srtt_ns = (7 * rtt->srtt_ns + sample_ns) / 8;
	if (rtt->srtt_ns == 0)
		rtt->srtt_ns = 1;
}

uint64_t rtt_rto_ns(const struct tcp_rtt *rtt, uint32_t backoff)
{
	return vma_tcp_rto_ns(rtt->srtt_ns, rtt->rttvar_ns, backoff);
}
