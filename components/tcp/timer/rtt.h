/*
 * rtt - round-trip time of a connection and its retransmission timeout, RFC 6298 in nanoseconds. The bounds are the
 *       kernel's: 1 s at first, at least srtt + 200 ms (tcp_rto_min), at most 120 s.
 *
 * Pure: no clock, no memory. Example: test/test_rtt.c.
 */
#ifndef VMA_TCP_TIMER_RTT_H
#define VMA_TCP_TIMER_RTT_H

#include <stdint.h>

#include <vma/tcp.h>

#define RTT_RTO_INIT_NS VMA_TCP_RTO_INIT_NS
#define RTT_RTO_MIN_NS VMA_TCP_RTO_MIN_NS
#define RTT_RTO_MAX_NS VMA_TCP_RTO_MAX_NS

struct tcp_rtt {
	uint64_t srtt_ns; /* 0: no sample yet */
	uint64_t rttvar_ns, latest_ns;
	uint64_t min_ns, min_at_ns; /* lowest of the last minutes (as the kernel's 5 minute window) */
};
void rtt_init(struct tcp_rtt *rtt);
void rtt_sample(struct tcp_rtt *rtt, uint64_t sample_ns, uint64_t now_ns);
uint64_t rtt_rto_ns(const struct tcp_rtt *rtt, uint32_t backoff); /* doubled `backoff` times */

#endif
