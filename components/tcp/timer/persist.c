/*
 * persist.c - nothing is unacknowledged, but something waits: for a window (RFC 9293 3.8.6.1), or for more data under
 * TCP_CORK and MSG_MORE. The latter leaves at the latest now (the kernel's 200 ms).
 */
#include <assert.h>

#include "timers.h"

static uint64_t persist_interval_ns(const struct vma_tcp_conn *conn)
{
	return exponential_backoff_ns(rtt_rto_ns(&conn->rtt, 0), conn->recovery.persist_backoff);
}

uint64_t persist_due_ns(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;

	if (r->persist_due_ns == 0) {
		r->persist_since_ns = conn->tcp->now_ns;
		r->persist_due_ns = conn->tcp->now_ns + persist_interval_ns(conn);
	}
	return r->persist_due_ns;
}

/* As long as probes are answered, the wait for a window has no end (RFC 9293 3.8.6.1), but the user's. */
static bool persist_is_hopeless(const struct vma_tcp_conn *conn)
{
	const struct tcp_recovery *r = &conn->recovery;
	uint64_t user_ns = timers_user_timeout_ns(conn);
	uint32_t tries = (uint32_t)tcp_option(conn, VMA_TCP_OPT_RETRIES2);

	if (user_ns && r->persist_backoff && conn->tcp->now_ns - r->persist_since_ns >= user_ns)
		return true;
	if (conn->is_orphan) {
		uint64_t interval_ns = persist_interval_ns(conn);

		tries = timers_orphan_tries(conn, interval_ns);
		if (interval_ns >= RTT_RTO_MAX_NS && r->persist_backoff >= tries)
			return true;
	}
	return r->probes >= tries;
}

void persist_fire(struct vma_tcp_conn *conn)
{
	struct tcp_recovery *r = &conn->recovery;
	int sent;

	assert(persist_runs(conn));
	if (conn->tcp->now_ns < r->persist_due_ns)
		return;
	if (persist_is_hopeless(conn)) {
		timers_abort_conn_with_timeout(conn, false);
		return;
	}
	sent = tcp_output_one_segment_despite_limits(conn);
	if (sent == 0)
		sent = tcp_output_probe(conn);
	if (sent < 0) {
		r->persist_due_ns = stack_retry_time_ns(conn->tcp);
		return;
	}
	r->probes++;
	if (r->persist_backoff < (uint32_t)tcp_option(conn, VMA_TCP_OPT_RETRIES2))
		r->persist_backoff++;
	r->persist_due_ns = conn->tcp->now_ns + persist_interval_ns(conn);
}
