/*
 * rate - how fast what a connection sends is delivered (draft-cheng-iccrg-delivery-rate-estimation), and the pace at
 *        which it leaves.
 *
 * A sample is what was delivered between the sending of a segment and its acknowledgement, divided by a time. The time
 * is the one between both, or the time that sending the same bytes took, if that was longer. Each segment knows what
 * had been delivered when it was sent (tcp_seg.rate_*, times in RATE_UNIT_NS before it was).
 *
 * Pacing: each departure sets a time before which the next may not leave (earliest departure time). It is the time that
 * the bytes before take at the pacing rate. Up to a quantum may leave at once, so one timer is enough. A late departure
 * may make up for half a quantum, and for 150 us at any rate.
 *
 * Cost: nothing, if the congestion control has no model.
 * Threads: the driver.
 * Example: test/test_bbr.c.
 */
#ifndef VMA_TCP_CC_RATE_H
#define VMA_TCP_CC_RATE_H

#include <stdbool.h>
#include <stdint.h>

#include "cc.h"

struct vma_tcp_conn;
struct tcp_seg;

#define RATE_UNIT_NS 64
enum rate_segment_mark { RATE_SAMPLED = 1, RATE_APP_LIMITED = 2 }; /* tcp_seg.rate_marks */

struct tcp_rate {
	uint64_t delivered, delivered_ns; /* bytes in all; when the last of them were */
	uint64_t first_sent_ns;           /* when the segment was sent whose delivery is the last known */
	uint64_t
	        app_limited; /* until so much is delivered, it is the application that decides the rate; 0: it is not */
	/* of the acknowledgement that is being processed: of what it delivers, what was sent last */
	bool sampled, sample_app_limited;
	uint64_t prior_delivered, prior_ns, sent_ns, send_elapsed_ns;
};
void rate_stamp_segment_on_send(struct tcp_rate *rate, struct tcp_seg *seg, bool nothing_out, uint64_t now_ns);
void rate_reset_sample_at_ack_begin(struct tcp_rate *rate);
void rate_delivered(struct tcp_rate *rate, struct tcp_seg *seg, uint64_t now_ns); /* as seen for the first time */
void rate_mark_app_limited(struct tcp_rate *rate, uint32_t in_flight);
/* delivered, prior_delivered, is_known, app_limited, and bytes_per_sec unless it would be of less than a round trip. */
void rate_generate_sample_of_ack(struct tcp_rate *rate, uint64_t min_rtt_ns, uint64_t now_ns,
                                 struct tcp_cc_sample *sample);

struct tcp_pacing {
	uint64_t next_ns;      /* when the next may leave */
	uint32_t quantum_left; /* of the quantum that leaves now */
};
static inline bool pacing_allows_send(const struct tcp_pacing *pace, const struct tcp_cc *cc, uint64_t now_ns)
{
	return cc->pacing_rate == 0 || pace->next_ns <= now_ns || pace->quantum_left != 0;
}
void pacing_account_sent(struct tcp_pacing *pace, const struct tcp_cc *cc, uint32_t bytes, uint64_t now_ns);

#endif
