/*
 * timers - what timers.c and its neighbours persist.c and keepalive.c need of each other. timer.h has what the rest of
 * tcp calls.
 *
 * Threads: the driver.
 */
#ifndef VMA_TCP_TIMER_TIMERS_H
#define VMA_TCP_TIMER_TIMERS_H

#include "../loss/scoreboard.h"

static inline uint64_t timers_min_ns(uint64_t a_ns, uint64_t b_ns)
{
	return a_ns < b_ns ? a_ns : b_ns;
}
/* base doubled n times, at most RTT_RTO_MAX_NS. */
static inline uint64_t exponential_backoff_ns(uint64_t base_ns, uint32_t n)
{
	/* Shifts stay in range: 20 doublings of the shortest interval are far above the longest. */
	return timers_min_ns(base_ns << (n < 20 ? n : 20), RTT_RTO_MAX_NS);
}
static inline uint64_t timers_user_timeout_ns(const struct vma_tcp_conn *conn) /* TCP_USER_TIMEOUT; 0: none */
{
	int32_t ms = tcp_option(conn, VMA_TCP_OPT_USER_TIMEOUT);

	return ms > 0 ? (uint64_t)ms * TCP_NS_PER_MS : 0;
}
void timers_set(struct vma_tcp_conn *conn, enum tcp_timer which, uint64_t due_ns); /* UINT64_MAX: stops it */
/* timers_set_delack(conn, 0): the timer itself stays where it is, see timers.c. */
static inline void timers_cancel_delack(struct vma_tcp_conn *conn)
{
	conn->window.delack_due_ns = UINT64_MAX;
}
void timers_abort_conn_with_timeout(struct vma_tcp_conn *conn, bool reset);
/* How often a connection without owner tries, at intervals of that length now. */
uint32_t timers_orphan_tries(const struct vma_tcp_conn *conn, uint64_t interval_ns);

/* persist.c: nothing is unacknowledged, but something waits to be sent: until when, at most. */
static inline bool persist_has_unsent_data(const struct vma_tcp_conn *conn)
{
	return conn->connected && (conn->pcb->unsent || fifo_produced(&conn->tx) != conn->lwip_end);
}
uint64_t persist_due_ns(struct vma_tcp_conn *conn);
/*
 * Only an output begins the wait. The retransmission timer, left where it was, may fire between the moment from which
 * something waits (an ACK has been taken in, or bytes have been written) and the output that follows.
 */
static inline bool persist_runs(const struct vma_tcp_conn *conn)
{
	return conn->recovery.persist_due_ns != 0;
}
static inline void persist_end(struct vma_tcp_conn *conn)
{
	conn->recovery.persist_backoff = 0;
	conn->recovery.persist_since_ns = conn->recovery.persist_due_ns = 0;
}
void persist_fire(struct vma_tcp_conn *conn);

/* keepalive.c; in_fin_wait: FIN_WAIT_2 without owner. */
bool conn_is_orphan_in_fin_wait_2(const struct vma_tcp_conn *conn);
void keepalive_or_fin_wait_timer_fired(struct vma_tcp_conn *conn);

#endif
