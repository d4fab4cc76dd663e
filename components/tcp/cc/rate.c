/* rate.c - samples of the delivery rate, and the pace at which segments leave. */
#include "../lwip/port.h"
#include "../tcp_priv.h"

/* ---- samples ---- */

static uint32_t rate_units_ago(uint64_t now_ns, uint64_t then_ns)
{
	uint64_t units = (now_ns - then_ns) / RATE_UNIT_NS;

	return units < UINT32_MAX ? (uint32_t)units : UINT32_MAX;
}

/* 3.2 */
void rate_stamp_segment_on_send(struct tcp_rate *rate, struct tcp_seg *seg, bool nothing_out, uint64_t now_ns)
{
	if (nothing_out)
		rate->first_sent_ns = rate->delivered_ns = now_ns;
	seg->rate_delivered = (uint32_t)rate->delivered;
	seg->rate_delivered_ago = rate_units_ago(now_ns, rate->delivered_ns);
	seg->rate_first_ago = rate_units_ago(now_ns, rate->first_sent_ns);
	seg->rate_marks = rate->app_limited ? RATE_SAMPLED | RATE_APP_LIMITED : RATE_SAMPLED;
}

void rate_reset_sample_at_ack_begin(struct tcp_rate *rate)
{
	rate->sampled = false;
}

/* 3.3, UpdateRateSample. Less than 2^32 bytes are delivered while a segment is on its way: windows are smaller. */
void rate_delivered(struct tcp_rate *rate, struct tcp_seg *seg, uint64_t now_ns)
{
	uint64_t prior = rate->delivered - (uint32_t)((uint32_t)rate->delivered - seg->rate_delivered);

	rate->delivered += seg->len;
	rate->delivered_ns = now_ns;
	if (!(seg->rate_marks & RATE_SAMPLED))
		return;
	if (!rate->sampled || prior > rate->prior_delivered ||
	    (prior == rate->prior_delivered && seg->sent_ns >= rate->sent_ns)) {
		rate->sampled = true;
		rate->sample_app_limited = seg->rate_marks & RATE_APP_LIMITED;
		rate->prior_delivered = prior;
		rate->prior_ns = seg->sent_ns - (uint64_t)seg->rate_delivered_ago * RATE_UNIT_NS;
		rate->send_elapsed_ns = (uint64_t)seg->rate_first_ago * RATE_UNIT_NS;
		rate->sent_ns = rate->first_sent_ns = seg->sent_ns;
	}
	seg->rate_marks = 0;
}

/* 3.4. What is in flight now is not all that could be. */
void rate_mark_app_limited(struct tcp_rate *rate, uint32_t in_flight)
{
	uint64_t until = rate->delivered + in_flight;

	rate->app_limited = until ? until : 1;
}

/* 3.3, GenerateRateSample */
void rate_generate_sample_of_ack(struct tcp_rate *rate, uint64_t min_rtt_ns, uint64_t now_ns,
                                 struct tcp_cc_sample *sample)
{
	uint64_t elapsed_ns, bytes;

	sample->delivered = rate->delivered;
	if (rate->app_limited && rate->delivered > rate->app_limited)
		rate->app_limited = 0;
	if (!rate->sampled)
		return;
	sample->is_valid = true;
	sample->app_limited = rate->sample_app_limited;
	sample->prior_delivered = rate->prior_delivered;
	elapsed_ns = now_ns - rate->prior_ns;
	if (elapsed_ns < rate->send_elapsed_ns)
		elapsed_ns = rate->send_elapsed_ns;
	bytes = rate->delivered - rate->prior_delivered;
	if (elapsed_ns != 0 && elapsed_ns >= min_rtt_ns)
		sample->bytes_per_sec = bytes * TCP_NS_PER_S / elapsed_ns;
}

/* ---- pace ---- */

/*
 * Half a quantum may be made up for, as in the kernel, but at least this time: the thread that drives the ring has its
 * own work, and handing a quantum to the NIC takes it about as long as the quantum lasts on a link of 10 Gb/s. Without
 * it the rate that is measured falls with every delay, and the pace with it.
 */
#define LATE_NS 150000

void pacing_account_sent(struct tcp_pacing *pace, const struct tcp_cc *cc, uint32_t bytes, uint64_t now_ns)
{
	if (cc->pacing_rate == 0)
		return;
	if (pace->next_ns <= now_ns) {
		uint64_t late_max_ns = cc->quantum * TCP_NS_PER_S / cc->pacing_rate / 2;

		late_max_ns = late_max_ns > LATE_NS ? late_max_ns : LATE_NS;
		if (now_ns - pace->next_ns > late_max_ns)
			pace->next_ns = now_ns - late_max_ns;
		pace->quantum_left = cc->quantum;
	}
	pace->quantum_left -= bytes < pace->quantum_left ? bytes : pace->quantum_left;
	pace->next_ns += bytes * TCP_NS_PER_S / cc->pacing_rate;
}
