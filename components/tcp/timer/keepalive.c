/*
 * keepalive.c - asks a silent peer whether it is there (RFC 1122 4.2.3.6), and the end of FIN_WAIT_2 without an owner.
 */
#include "timers.h"

#define FIN_WAIT_NS (60 * TCP_NS_PER_S)

static uint64_t fin_wait_due_ns(struct vma_tcp_conn *conn)
{
	int32_t linger_sec = tcp_option(conn, VMA_TCP_OPT_LINGER2);
	uint64_t wait_ns = linger_sec > 0 ? (uint64_t)linger_sec * TCP_NS_PER_S : FIN_WAIT_NS;
	uint64_t rto_ns = rtt_rto_ns(&conn->rtt, 0);

	if (conn->fin_wait_ns == 0)
		conn->fin_wait_ns = conn->tcp->now_ns;
	if (linger_sec < 0)
		return conn->fin_wait_ns;
	if (wait_ns < 4 * rto_ns - rto_ns / 2)
		wait_ns = 4 * rto_ns - rto_ns / 2;
	return conn->fin_wait_ns + wait_ns;
}

bool conn_is_orphan_in_fin_wait_2(const struct vma_tcp_conn *conn)
{
	return conn->is_orphan && conn->pcb->state == FIN_WAIT_2;
}

static uint64_t keepalive_option_ns(const struct vma_tcp_conn *conn, enum vma_tcp_option option)
{
	return (uint64_t)tcp_option(conn, option) * TCP_NS_PER_S;
}

void timers_keepalive_update(struct vma_tcp_conn *conn)
{
	uint64_t due_ns = UINT64_MAX;

	if (!conn->pcb || conn->pcb->state == TIME_WAIT)
		due_ns = UINT64_MAX;
	else if (conn_is_orphan_in_fin_wait_2(conn))
		due_ns = fin_wait_due_ns(conn);
	else if (conn->connected && tcp_option(conn, VMA_TCP_OPT_KEEPALIVE))
		due_ns = conn->last_in_ns + keepalive_option_ns(conn, VMA_TCP_OPT_KEEPIDLE);
	timers_set(conn, TCP_TIMER_KEEPALIVE, due_ns);
}

static bool keepalive_is_hopeless(const struct vma_tcp_conn *conn, uint64_t silent_ns)
{
	uint64_t user_ns = timers_user_timeout_ns(conn);

	if (user_ns)
		return silent_ns >= user_ns && conn->recovery.probes > 0;
	return conn->recovery.probes >= (uint32_t)tcp_option(conn, VMA_TCP_OPT_KEEPCNT);
}

static void fire_keepalive(struct vma_tcp_conn *conn)
{
	uint64_t now_ns = conn->tcp->now_ns, idle_ns = keepalive_option_ns(conn, VMA_TCP_OPT_KEEPIDLE);
	uint64_t silent_ns = now_ns - conn->last_in_ns;

	if (conn->pcb->unacked || persist_has_unsent_data(conn)) {
		timers_set(conn, TCP_TIMER_KEEPALIVE, now_ns + idle_ns); /* others find out whether the peer is there */
	} else if (silent_ns < idle_ns) {
		timers_set(conn, TCP_TIMER_KEEPALIVE, conn->last_in_ns + idle_ns);
	} else if (keepalive_is_hopeless(conn, silent_ns)) {
		timers_abort_conn_with_timeout(conn, true);
	} else if (tcp_output_probe(conn) < 0) {
		timers_set(conn, TCP_TIMER_KEEPALIVE, stack_retry_time_ns(conn->tcp));
	} else {
		conn->recovery.probes++;
		timers_set(conn, TCP_TIMER_KEEPALIVE, now_ns + keepalive_option_ns(conn, VMA_TCP_OPT_KEEPINTVL));
	}
}

void keepalive_probe(struct vma_tcp_conn *conn)
{
	if (!conn->connected || conn->pcb->state == TIME_WAIT || conn->pcb->unacked || persist_has_unsent_data(conn))
		return;
	if (tcp_output_probe(conn) < 0) {
		conn->todo |= TCP_WORK_KEEPALIVE;
		conn_enqueue_retry(conn);
	}
}

/* The kernel says nothing to the peer either when the wait is over, but with a negative TCP_LINGER2. */
static void fire_fin_wait(struct vma_tcp_conn *conn)
{
	uint64_t due_ns = fin_wait_due_ns(conn);

	if (conn->tcp->now_ns >= due_ns)
		conn_fail_with_error(conn, 0, tcp_option(conn, VMA_TCP_OPT_LINGER2) < 0);
	else
		timers_set(conn, TCP_TIMER_KEEPALIVE, due_ns);
}

void keepalive_or_fin_wait_timer_fired(struct vma_tcp_conn *conn)
{
	if (conn_is_orphan_in_fin_wait_2(conn))
		fire_fin_wait(conn);
	else if (conn->connected && tcp_option(conn, VMA_TCP_OPT_KEEPALIVE))
		fire_keepalive(conn);
}
