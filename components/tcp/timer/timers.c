/*
 * timers.c - the timers of a connection: the cause and the action of each.
 *
 *   RETRANSMIT  something is unacknowledged: the timeout (RFC 6298), or a tail-loss probe (RFC 8985 7), or the end of
 *               the time in which reordered segments may still come (RFC 8985 6), or the time for a rescue (RFC
 *               6675): whichever is first.
 *               Nothing is, but something waits: for a window (RFC 9293 3.8.6.1), or for more data under TCP_CORK and
 *               MSG_MORE; the latter leaves at the latest now (the kernel's 200 ms).
 *   DELACK      an acknowledgement
 *   PACE        something may leave again (cc/rate.h)
 *   KEEPALIVE   RFC 1122 4.2.3.6; and the end of FIN_WAIT_2 without an owner
 *
 * So nothing ever waits without a timer. If the kernel and the RFCs differ in how often and how long something is
 * tried, it is done as in the kernel. A timer sends only probes itself; the output that follows sends everything else.
 * If there is no frame for a probe, it is tried again a millisecond later and is not counted.
 */
#include <errno.h>

#include "timers.h"

#define PROBE_MARGIN_NS TCP_NS_PER_MS        /* the kernel's two jiffies: what the receiver needs to answer */
#define SYN_AFTER_RST_NS (2 * TCP_NS_PER_MS) /* to a peer that has just been reset */
#define RENEGED_LEAST_NS (10 * TCP_NS_PER_MS)
#define SYN_LINEAR 4 /* tcp_syn_linear_timeouts */
#define SHRUNK_WINDOW_NS (2 * RTT_RTO_MAX_NS)

void timers_init(struct vma_tcp_conn *conn)
{
	for (unsigned i = 0; i < TCP_TIMERS; i++)
		conn->timer[i] = (struct tcp_timer_node){.kind = (uint8_t)i};
	conn->window.delack_due_ns = UINT64_MAX;
}

void timers_stop_all(struct vma_tcp_conn *conn)
{
	for (unsigned i = 0; i < TCP_TIMERS; i++)
		wheel_stop(&conn->tcp->wheel, &conn->timer[i]);
}

/*
 * What waits for a time ends at the resolution's next multiple. Not so what only comes later in this moment: paced
 * segments, and what a full send queue keeps back.
 */
static uint64_t timer_round_to_resolution_ns(const struct vma_tcp_conn *conn, uint64_t due_ns)
{
	const uint64_t step_ns = conn->tcp->attr.timer_resolution_ns;

	if (__builtin_expect(step_ns == 0, 1) || due_ns == UINT64_MAX)
		return due_ns;
	return (due_ns + step_ns - 1) / step_ns * step_ns;
}

void timers_set(struct vma_tcp_conn *conn, enum tcp_timer which, uint64_t due_ns)
{
	struct tcp_timer_node *timer = &conn->timer[which];

	due_ns = timer_round_to_resolution_ns(conn, due_ns);
	if (due_ns == UINT64_MAX)
		wheel_stop(&conn->tcp->wheel, timer);
	else if (!wheel_is_set(timer) || timer->due_ns != due_ns)
		wheel_set(&conn->tcp->wheel, timer, due_ns);
}

/*
 * The same for a timer that a conversation would move with every message. It stays where it is if that is earlier, also
 * when nothing is due any more: once it fires too early, and what is due then is looked at anew.
 */
static void tcp_timer_set_if_earlier(struct vma_tcp_conn *conn, enum tcp_timer which, uint64_t due_ns)
{
	struct tcp_timer_node *timer = &conn->timer[which];

	if (due_ns != UINT64_MAX && !(wheel_is_set(timer) && timer->due_ns <= due_ns))
		wheel_set(&conn->tcp->wheel, timer, due_ns);
}

/* How long `tries` repetitions take, the first after base: what the kernel holds against the time that has passed. */
static uint64_t retransmission_time_of_tries(uint32_t tries, uint64_t base_ns)
{
	uint64_t sum_ns = 0;

	for (uint32_t i = 0; i <= tries; i++)
		sum_ns += exponential_backoff_ns(base_ns, i);
	return sum_ns;
}

void timers_abort_conn_with_timeout(struct vma_tcp_conn *conn, bool reset)
{
	conn_fail_with_error(conn, conn->soft_error ? (int)conn->soft_error : ETIMEDOUT, reset);
}

/* ---- something is unacknowledged ---- */

/* A handshake's intervals: a second, doubled; a SYN of ours comes each second at first. */
static uint64_t handshake_rto_ns(const struct vma_tcp_conn *conn)
{
	uint32_t timeouts = conn->recovery.timeouts;

	if (conn->pcb->state == SYN_SENT)
		timeouts = timeouts > SYN_LINEAR ? timeouts - SYN_LINEAR : 0;
	return exponential_backoff_ns(RTT_RTO_INIT_NS, timeouts);
}

static bool conn_in_handshake(const struct vma_tcp_conn *conn)
{
	return conn->pcb->state == SYN_SENT || conn->pcb->state == SYN_RCVD;
}

/* A handshake that the peer has begun: its limits are the listener's. */
static bool handshake_is_passive(const struct vma_tcp_conn *conn)
{
	return conn->pcb->state == SYN_RCVD && conn->passive;
}

/* From when on the kernel counts how long nothing has come back: a SYN's first time, data's first repetition. */
static uint64_t stuck_since_ns(const struct vma_tcp_conn *conn)
{
	return conn_in_handshake(conn) ? conn->pcb->unacked->first_sent_ns : conn->recovery.stuck_since_ns;
}

/*
 * A receiver that acknowledges up to what it has SACKed, but not that, has thrown it away (RFC 2018 8). As the kernel:
 * an ACK that was overtaken by this one may say otherwise, but not for long.
 */
static uint64_t sack_reneging_timeout_ns(const struct vma_tcp_conn *conn)
{
	return conn->rtt.srtt_ns / 2 > RENEGED_LEAST_NS ? conn->rtt.srtt_ns / 2 : RENEGED_LEAST_NS;
}

static uint64_t rto_due_ns(const struct vma_tcp_conn *conn)
{
	const struct tcp_recovery *r = &conn->recovery;
	uint64_t due_ns, user_ns = timers_user_timeout_ns(conn);

	if (conn_in_handshake(conn))
		due_ns = r->rto_from_ns + handshake_rto_ns(conn);
	else
		due_ns = r->rto_from_ns + rtt_rto_ns(&conn->rtt, r->backoff);
	if (conn->pcb->unacked->marks & SEG_SACKED)
		due_ns = timers_min_ns(due_ns, r->rto_from_ns + sack_reneging_timeout_ns(conn));
	/* The user's end is kept to the point, once something has been repeated. */
	if (user_ns && r->timeouts && !handshake_is_passive(conn))
		due_ns = timers_min_ns(due_ns, stuck_since_ns(conn) + user_ns);
	return due_ns;
}

/*
 * RFC 8985 7.2, as the kernel: twice the round-trip time after the last new segment or acknowledgement; if only one is
 * out, its acknowledgement may be delayed. UINT64_MAX: there is nothing to probe for.
 */
static uint64_t tail_probe_due_ns(const struct vma_tcp_conn *conn, uint64_t timeout_ns)
{
	const struct tcp_recovery *r = &conn->recovery;
	uint64_t wait_ns = 2 * conn->rtt.srtt_ns, from_ns = r->probe_from_ns;

	if (!conn->connected || !scoreboard_conn_has_sack_enabled(conn) || r->state != TCP_RECOVERY_OPEN ||
	    r->tail_probe_out || r->probe_new || r->probe_wanted || r->sacked_segments || conn->rtt.srtt_ns == 0 ||
	    r->timeouts)
		return UINT64_MAX;
	wait_ns += conn->pcb->unacked->next ? PROBE_MARGIN_NS : RTT_RTO_MIN_NS;
	if (from_ns < conn->pace.next_ns)
		from_ns = conn->pace.next_ns; /* what waits for its time is no silence */
	return timers_min_ns(from_ns + wait_ns, timeout_ns);
}

static uint64_t retransmit_due_ns(const struct vma_tcp_conn *conn)
{
	uint64_t timeout_ns = rto_due_ns(conn);

	timeout_ns = timers_min_ns(timeout_ns, tail_probe_due_ns(conn, timeout_ns));
	timeout_ns = timers_min_ns(timeout_ns, recovery_rescue_due_ns(conn));
	return timers_min_ns(timeout_ns, conn->recovery.reorder_due_ns);
}

/* The kernel's retransmits_timed_out. */
static bool tried_enough(const struct vma_tcp_conn *conn, uint32_t tries, uint64_t base_ns)
{
	uint64_t limit_ns = timers_user_timeout_ns(conn);

	if (conn->recovery.timeouts == 0)
		return false;
	if (limit_ns == 0)
		limit_ns = retransmission_time_of_tries(tries, base_ns);
	return conn->tcp->now_ns - stuck_since_ns(conn) >= limit_ns;
}

static bool handshake_retries_exhausted(const struct vma_tcp_conn *conn)
{
	const struct tcp_recovery *r = &conn->recovery;
	uint32_t tries = (uint32_t)tcp_option(conn, VMA_TCP_OPT_SYNCNT);

	if (handshake_is_passive(conn)) {
		uint64_t defer_ns = (uint64_t)tcp_option(conn, VMA_TCP_OPT_DEFER_ACCEPT) * TCP_NS_PER_S;

		return r->timeouts >= (uint32_t)tcp_option(conn, VMA_TCP_OPT_SYNACK_RETRIES) &&
		       (!conn->defer_data || conn->tcp->now_ns - conn->created_ns >= defer_ns);
	}
	return r->timeouts >= tries + SYN_LINEAR || tried_enough(conn, tries, RTT_RTO_INIT_NS);
}

/* Of a connection without owner. Alive: the intervals have not become hopelessly long. */
uint32_t timers_orphan_tries(const struct vma_tcp_conn *conn, uint64_t interval_ns)
{
	return conn->soft_error && interval_ns >= RTT_RTO_MAX_NS
	               ? 0
	               : (uint32_t)tcp_option(conn, VMA_TCP_OPT_ORPHAN_RETRIES);
}

static bool retransmission_gives_up(const struct vma_tcp_conn *conn)
{
	uint32_t tries = (uint32_t)tcp_option(conn, VMA_TCP_OPT_RETRIES2);

	if (conn_in_handshake(conn))
		return handshake_retries_exhausted(conn);
	if (conn->is_orphan)
		tries = timers_orphan_tries(conn, rtt_rto_ns(&conn->rtt, conn->recovery.backoff));
	else if (conn->pcb->snd_wnd == 0 && timers_user_timeout_ns(conn) == 0 &&
	         conn->tcp->now_ns - conn->last_in_ns <= SHRUNK_WINDOW_NS)
		return false; /* a window that was taken back: the peer is there, and answers */
	return tried_enough(conn, tries, RTT_RTO_MIN_NS);
}

/* A peer that has answered a SYN-ACK while data is waited for (TCP_DEFER_ACCEPT) needs no further one until that ends.
 */
static bool waits_for_defer_accept(const struct vma_tcp_conn *conn)
{
	uint64_t defer_ns = (uint64_t)tcp_option(conn, VMA_TCP_OPT_DEFER_ACCEPT) * TCP_NS_PER_S;

	return conn->pcb->state == SYN_RCVD && conn->defer_data && conn->tcp->now_ns - conn->created_ns < defer_ns;
}

static void retransmission_timer_fired(struct vma_tcp_conn *conn)
{
	if (retransmission_gives_up(conn)) {
		timers_abort_conn_with_timeout(conn, false);
	} else if (waits_for_defer_accept(conn)) {
		conn->recovery.timeouts++;
		conn->recovery.rto_from_ns = conn->tcp->now_ns;
	} else {
		recovery_on_rto(conn);
	}
}

/* A rescue is the following output's. */
static void fire_reorder_probe_or_rto_timer(struct vma_tcp_conn *conn)
{
	uint64_t now_ns = conn->tcp->now_ns, timeout_ns = rto_due_ns(conn);

	if (conn->recovery.reorder_due_ns <= now_ns)
		recovery_on_reorder_timeout(conn);
	else if (tail_probe_due_ns(conn, timeout_ns) <= now_ns)
		recovery_request_tail_probe(conn);
	else if (timeout_ns <= now_ns)
		retransmission_timer_fired(conn);
}

/* ---- */

/*
 * Whether the timer is set for a time that is surely not later than all that retransmit_due_ns would find, so that
 * tcp_timer_set_if_earlier would leave it where it is: so it is nearly always in a conversation, where the timer stands
 * for something long acknowledged. With something unacknowledged, no recovery, nothing repeated and nothing to be
 * awaited for reordering there are
 *   the timeout     at least the round-trip time and RTT_RTO_MIN_NS after rto_from_ns, if that is not above its maximum
 *   a tail probe    twice the round-trip time and RTT_RTO_MIN_NS (one segment) or PROBE_MARGIN_NS after probe_from_ns
 * and without a sample of the round-trip time, which is 0 then, no probe, and a timeout that is later still.
 */
static bool retransmit_timer_is_early_enough(const struct vma_tcp_conn *conn)
{
	const struct tcp_recovery *r = &conn->recovery;
	const struct tcp_timer_node *timer = &conn->timer[TCP_TIMER_RETRANSMIT];
	uint64_t srtt_ns = conn->rtt.srtt_ns, timeout_ns, probe_ns;

	if (!wheel_is_set(timer) || r->state != TCP_RECOVERY_OPEN || r->timeouts != 0 ||
	    r->reorder_due_ns != UINT64_MAX || srtt_ns > RTT_RTO_MAX_NS - RTT_RTO_MIN_NS)
		return false;
	timeout_ns = r->rto_from_ns + srtt_ns + RTT_RTO_MIN_NS;
	probe_ns = r->probe_from_ns + 2 * srtt_ns + (conn->pcb->unacked->next ? PROBE_MARGIN_NS : RTT_RTO_MIN_NS);
	return timer->due_ns <= timers_min_ns(timeout_ns, probe_ns);
}

static void __attribute__((noinline)) retransmit_or_persist_timer_set(struct vma_tcp_conn *conn)
{
	uint64_t due_ns = UINT64_MAX;

	if (!conn->pcb || conn->pcb->state == TIME_WAIT || conn->pcb->state == CLOSED) {
		timers_set(conn, TCP_TIMER_RETRANSMIT, due_ns);
		return;
	}
	if (conn_is_orphan_in_fin_wait_2(conn) && conn->fin_wait_ns == 0)
		timers_keepalive_update(conn);
	if (conn->pcb->unacked) {
		persist_end(conn);
		due_ns = retransmit_due_ns(conn);
	} else if (persist_has_unsent_data(conn) && !recovery_waits_for_send_time(conn)) {
		due_ns = persist_due_ns(conn);
	} else {
		persist_end(conn);
	}
	tcp_timer_set_if_earlier(conn, TCP_TIMER_RETRANSMIT, timer_round_to_resolution_ns(conn, due_ns));
}

void timers_retransmit_update(struct vma_tcp_conn *conn)
{
	const struct tcp_pcb *pcb = conn->pcb;

	if (pcb && pcb->state == ESTABLISHED && !conn->tcp->predicts_nothing &&
	    (pcb->unacked ? retransmit_timer_is_early_enough(conn) : !persist_has_unsent_data(conn)))
		persist_end(conn);
	else
		retransmit_or_persist_timer_set(conn);
}

/* Once, as the kernel: two ends that do not understand each other do not go on like this. */
void timers_expedite_syn(struct vma_tcp_conn *conn)
{
	const uint64_t from_ns = conn->tcp->now_ns + SYN_AFTER_RST_NS - handshake_rto_ns(conn);

	if (conn->recovery.timeouts != 0 || from_ns >= conn->recovery.rto_from_ns)
		return;
	conn->recovery.rto_from_ns = from_ns;
	timers_retransmit_update(conn);
}

void timers_set_delack(struct vma_tcp_conn *conn, uint64_t in_ns)
{
	conn->window.delack_due_ns = in_ns ? conn->tcp->now_ns + in_ns : UINT64_MAX; /* timers_cancel_delack */
	tcp_timer_set_if_earlier(conn, TCP_TIMER_DELACK,
	                         timer_round_to_resolution_ns(conn, conn->window.delack_due_ns));
}

void timers_set_pacing(struct vma_tcp_conn *conn, uint64_t due_ns)
{
	tcp_timer_set_if_earlier(conn, TCP_TIMER_PACE, due_ns);
}

static void fire_delack(struct vma_tcp_conn *conn)
{
	if (conn->window.delack_due_ns > conn->tcp->now_ns) {
		tcp_timer_set_if_earlier(conn, TCP_TIMER_DELACK,
		                         timer_round_to_resolution_ns(conn, conn->window.delack_due_ns));
		return;
	}
	conn->window.delack_due_ns = UINT64_MAX;
	window_delack_fired(conn);
}

void timers_fire(struct vma_tcp_conn *conn, unsigned which)
{
	if (!conn->pcb)
		return;
	switch (which) {
	case TCP_TIMER_RETRANSMIT:
		if (conn->pcb->unacked)
			fire_reorder_probe_or_rto_timer(conn);
		else if (persist_runs(conn) && persist_has_unsent_data(conn) && !recovery_waits_for_send_time(conn))
			persist_fire(conn);
		break;
	case TCP_TIMER_DELACK:
		fire_delack(conn);
		break;
	case TCP_TIMER_KEEPALIVE:
		keepalive_or_fin_wait_timer_fired(conn);
		break;
	}
}
