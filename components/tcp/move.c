/*
 * move.c - a connection changes to another stack of this process, of another ring of the same device.
 *
 *   with a rule of its own (accepted or connected 50 ms ago, or longer)
 *     1. `moving`: the connection's flow stays what it is, in any event
 *     2. the rule goes to the other queue pair in one step (vma_ring_move_rule); both rings are driven on. Packets that
 *        `to` receives wait in the *early flow*, until `from` has received all that is before them
 *     3. with both receive flags: `from` is drained, the connection changes stacks, and what is early follows
 *
 *   The device may have a batch in hand for `from` when the rule moves, of some microseconds. Numbers tell: as long as
 *   a byte before the first early segment is missing, it is waited for, STRAGGLERS_NS at most. A segment that comes
 *   later still is dropped, and is sent again by the peer.
 *
 *   without one (it was just accepted): with both receive flags,
 *     flow leaves `from` ── late flow takes its place ── flow joins `to`, and the NIC steers there ── `from` is drained
 *     and what the late flow has got is given to the connection
 *
 * Flags are acquired in the order of their rings' addresses, so two connections that change places wait for no one in a
 * circle.
 *
 * Any thread may use the connection meanwhile. It finds the stack in conn->tcp, which changes with both flags held. So
 * after it has the flag of a ring, it looks once more (tcp_run_conn_work_now_or_queue, tcp_conn_acquire_ring_of_stack).
 * A command that was queued at `from` goes on to `to` (tcp_queue_conn_command_for_ring_driver). The memory of `from`
 * has to outlive the calls that have found it.
 *
 * Everything moves: segments that wait for an acknowledgement, data out of order, timers, marks of loss recovery, and
 * places in the stack's lists. Numbers that a stack's totals count are taken out of one stack's and put into the
 * other's. Frames that `from` has sent leave the host first, for a moment at most; if it takes longer, the peer may see
 * the order changed.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <time.h>

#include "tcp_priv.h"
#include "lwip/objects.h"
#include "lwip/port.h"
#include "zcopy.h"
#include "timer/timers.h"

#define DRAIN_SENDS_NS (50 * 1000ULL)
#define QUIET_NS TCP_NS_PER_MS /* so long after its last packet no straggler is on the way */
#define EARLY_MAX 512
#define STRAGGLERS_NS (200 * 1000ULL)

/* Packets that come where the connection is not: before it, or after it. */
struct set_aside_packets {
	struct vma_flow flow;
	struct vma_buf *first, **end; /* by vma_buf.user */
	unsigned count;
};

static bool set_aside_packets_sink(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct set_aside_packets *aside = flow->owner;

	(void)info;
	if (aside->count == EARLY_MAX)
		return false; /* as if the receive queue had no room */
	aside->count++;
	packet->user = NULL;
	*aside->end = packet;
	aside->end = (struct vma_buf **)&packet->user;
	return true;
}

static void set_aside_packets_init(struct set_aside_packets *aside, const struct vma_tcp_conn *conn)
{
	*aside = (struct set_aside_packets){
	        .flow = {.key = conn->key, .sink = set_aside_packets_sink, .flags = VMA_FLOW_RING_ONLY, .owner = aside},
	        .end = &aside->first};
}

static struct vma_buf *set_aside_packets_pop(struct set_aside_packets *aside)
{
	struct vma_buf *packet = aside->first;

	if (packet != NULL)
		aside->first = packet->user;
	return packet;
}

static void set_aside_packets_deliver(struct set_aside_packets *aside, struct vma_tcp_conn *conn)
{
	struct vma_buf *packet;

	while ((packet = set_aside_packets_pop(aside)) != NULL)
		tcp_conn_flow_sink(&conn->flow, packet, NULL);
}

static void set_aside_packets_drop(struct set_aside_packets *aside, struct vma_bufarena *arena)
{
	struct vma_buf *packet;

	while ((packet = set_aside_packets_pop(aside)) != NULL)
		vma_buf_put_chain(arena, packet);
}

/* ---- may it ---- */

/* One that its owner has closed stays: the stack looks after it, and nobody uses it. */
static bool conn_is_movable(const struct vma_tcp_conn *conn)
{
	const uint32_t ends = TCP_WORK_CLOSE | TCP_WORK_ABORT | TCP_WORK_UNUSED;

	if (conn->pcb == NULL || conn->is_over || conn->closing || conn->aborting || conn->is_orphan ||
	    !conn->attached || conn->moving || conn->held != 0)
		return false;
	if (conn->listener != NULL || vma_tcp_is_pending(conn) || zcopy_close_is_deferred(conn) ||
	    (conn->todo & ends) != 0 || (atomic_load(&conn->work) & ends) != 0)
		return false;
	return tcp_is_synchronized(conn->pcb);
}

bool vma_tcp_is_movable(struct vma_tcp_conn *conn)
{
	bool acquired;
	struct vma_tcp *tcp = tcp_conn_acquire_ring_of_stack(conn, &acquired);
	const bool is = conn_is_movable(conn);

	if (acquired)
		vma_ring_release(tcp->ring);
	return is;
}

/* ---- the books ---- */

static void move_timers(struct vma_tcp_conn *conn, struct vma_tcp *to)
{
	for (unsigned i = 0; i < TCP_TIMERS; i++) {
		struct tcp_timer_node *node = &conn->timer[i];
		const uint64_t due_ns = node->due_ns;

		if (!wheel_is_set(node))
			continue;
		wheel_stop(&conn->tcp->wheel, node);
		wheel_set(&to->wheel, node, due_ns);
	}
}

struct move_held_objects {
	unsigned objects, segments;
	uint64_t ooo_bytes;
};

static void move_count_segment_memory(struct move_held_objects *held, const struct tcp_seg *seg)
{
	for (; seg != NULL; seg = seg->next) {
		held->segments++;
		held->objects += 1 + port_pbufs_count(seg->p, &held->ooo_bytes);
	}
}

static void move_conn_memory_account(const struct vma_tcp_conn *conn, struct vma_tcp *from, struct vma_tcp *to)
{
	const struct tcp_pcb *pcb = conn->pcb;
	struct move_held_objects held = {.objects = 1}; /* the pcb */

	move_count_segment_memory(&held, pcb->unsent);
	move_count_segment_memory(&held, pcb->unacked);
	move_count_segment_memory(&held, pcb->ooseq);
	held.objects += port_pbufs_count(pcb->refused_data, &held.ooo_bytes);
	memory_move_count_to_stack(from, to, held.objects);
	memory_move_segment_counts_to_stack(from, to, held.segments);
	from->ooo_bytes -= held.ooo_bytes;
	to->ooo_bytes += held.ooo_bytes;
}

static void move_conn_state_to_stack(struct vma_tcp_conn *conn, struct vma_tcp *from, struct vma_tcp *to)
{
	tcp_conn_remove_from_all_queues(conn);
	move_timers(conn, to);
	move_conn_memory_account(conn, from, to);
	if (conn->is_busy) {
		from->busy_count--;
		to->busy_count++;
	}
	if (conn->is_orphan) { /* closed while it moved */
		from->orphans--;
		to->orphans++;
	}
	conn->clock_shift_ms += from->clock_offset_ms - to->clock_offset_ms;
	tcp_conn_move_to_stack(conn, to);
	window_max_update(conn);
	stack_tell_host_if_idle(from);
}

/* Both flags held, and the flow is in `to`. */
static void conn_change_stack(struct vma_tcp_conn *conn, struct vma_tcp *to)
{
	struct vma_tcp *from = conn->tcp;

	tcp_remember_exported_conn(from, &conn->key, TCP_LEFT_FOR_STACK); /* a listener there knows nothing of it */
	move_conn_state_to_stack(conn, from, to);
}

/* ---- both flags ---- */

static void acquire_both_rx_drive_flags(struct vma_tcp *from, struct vma_tcp *to)
{
	const bool from_first = from->ring < to->ring;

	vma_ring_acquire(from_first ? from->ring : to->ring);
	vma_ring_acquire(from_first ? to->ring : from->ring);
	tcp_update_now(from);
	tcp_update_now(to);
}

/* Each release is a run of its stack. That of `to` comes last, with nothing else held. */
static void release_both_rx_drive_flags(struct vma_tcp *from, struct vma_tcp *to)
{
	vma_ring_release(from->ring);
	vma_ring_release(to->ring);
}

static void conn_end_moving(struct vma_tcp_conn *conn)
{
	conn->moving = false;
	conn->held--;
	conn_enqueue_ready(conn); /* what was put off, a window or an ACK that is due */
}

/* ---- with a rule of its own ---- */

/* The place of the early flow in the ring. False: the NIC has given the flow back to the kernel. */
static bool move_replace_early_flow(struct vma_tcp_conn *conn, struct vma_tcp *to, struct set_aside_packets *early)
{
	conn->flow.flags = VMA_FLOW_RING_ONLY;
	conn->attached = vma_ring_attach_flow(to->ring, &conn->flow) == 0;
	conn->flow.flags = early->flow.flags;
	vma_ring_detach_flow(to->ring, &early->flow); /* the key's rule stays, as it has a member */
	return conn->attached;
}

/* The rule has moved. */
static int conn_change_stack_after_rule(struct vma_tcp_conn *conn, struct vma_tcp *to, struct set_aside_packets *early)
{
	if (conn->is_over) { /* its flow has gone with the rule, which ends with the early flow */
		conn->attached = false;
		tcp_conn_drop_received_packets(conn);
		return -ENOTCONN;
	}
	if (!move_replace_early_flow(conn, to, early)) {
		conn_fail_with_error(conn, ECONNABORTED, false);
		return -ENOTCONN;
	}
	conn_change_stack(conn, to);
	set_aside_packets_deliver(early, conn);
	return 0;
}

/* A clock that goes on although the host's may stand still. */
static uint64_t move_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * TCP_NS_PER_S + (uint64_t)now.tv_nsec;
}

/* Whether all bytes before the first early segment are there; false as long as there is none. */
static bool early_packets_are_next(const struct vma_tcp_conn *conn, struct vma_tcp *to,
                                   const struct set_aside_packets *early)
{
	const uint64_t received = zcopy_received_offset(conn);
	bool is = false;
	uint32_t seq;

	if (!vma_ring_try_acquire(to->ring))
		return false;
	if (early->first != NULL) {
		memcpy(&seq, (const char *)vma_buf_data(to->arena, early->first) + early->first->l4_off + 4,
		       sizeof(seq));
		is = (int32_t)(ntohl(seq) - (conn->rx_seq + (uint32_t)received)) <= 0;
	}
	vma_ring_release(to->ring);
	return is;
}

static void move_await_straggler_packets(const struct vma_tcp_conn *conn, struct vma_tcp *from, struct vma_tcp *to,
                                         const struct set_aside_packets *early, bool is_quiet)
{
	const uint64_t until_ns = move_clock_ns() + STRAGGLERS_NS;

	if (is_quiet)
		return;
	do {
		vma_ring_progress_and_notify(from->ring);
		vma_ring_progress_and_notify(to->ring);
	} while (!early_packets_are_next(conn, to, early) && move_clock_ns() < until_ns);
}

/* With no other flag held: whoever sends beside it may keep this up to the end. */
static void move_flush_ring_tx(struct vma_tcp *from)
{
	if (!vma_ring_acquire(from->ring))
		return;
	vma_ring_drain_sends(from->ring, DRAIN_SENDS_NS);
	vma_ring_release(from->ring);
}

/* Both flags held: what `from` has received by now is the connection's. */
static void leave_old_ring(struct vma_tcp_conn *conn, struct vma_tcp *from)
{
	vma_ring_drain(from->ring);
	vma_ring_detach_flow(from->ring, &conn->flow);
}

static int move_conn_to_stack_with_its_rule(struct vma_tcp_conn *conn, struct vma_tcp *from, struct vma_tcp *to,
                                            bool is_quiet)
{
	struct set_aside_packets *early = tcp_alloc_zeroed(to, sizeof(*early));
	int rc = -ENOMEM;

	if (early != NULL) {
		set_aside_packets_init(early, conn);
		rc = vma_ring_move_rule(from->ring, &conn->flow, to->ring, &early->flow);
	}
	if (rc == 0) {
		move_await_straggler_packets(conn, from, to, early, is_quiet);
		move_flush_ring_tx(from);
	}
	acquire_both_rx_drive_flags(from, to);
	if (rc == 0)
		leave_old_ring(conn, from);
	if (rc == 0)
		rc = conn_change_stack_after_rule(conn, to, early);
	else if (conn->is_over)
		tcp_conn_remove_flow_and_drop_burst(conn);
	conn_end_moving(conn);
	release_both_rx_drive_flags(from, to);
	if (early != NULL) {
		vma_ring_detach_flow(to->ring, &early->flow);
		set_aside_packets_drop(early, to->arena);
		tcp_free_memory(to, early);
	}
	return rc;
}

/* ---- without one ---- */

/* Its place in `from` is taken by `late`; the NIC is asked for a rule to the other ring. */
static int move_conn_flow_to_other_ring(struct vma_tcp_conn *conn, struct vma_tcp *from, struct vma_tcp *to,
                                        struct set_aside_packets *late)
{
	int rc;

	vma_ring_detach_flow(from->ring, &conn->flow);
	rc = vma_ring_attach_flow(from->ring, &late->flow);
	conn->flow.flags = 0;
	if (rc == 0)
		rc = vma_ring_attach_flow(to->ring, &conn->flow);
	conn->steered = rc == 0;
	if (rc == 0) {
		vma_ring_drain(from->ring);
		vma_ring_detach_flow(from->ring, &late->flow);
		return 0;
	}
	vma_ring_detach_flow(from->ring, &late->flow);
	conn->flow.flags = VMA_FLOW_RING_ONLY; /* its listener's rule covers it */
	conn->attached = vma_ring_attach_flow(from->ring, &conn->flow) == 0;
	if (!conn->attached)
		conn_fail_with_error(conn, ENOMEM, true);
	return rc;
}

static int move_conn_to_stack_by_new_rule(struct vma_tcp_conn *conn, struct vma_tcp *from, struct vma_tcp *to)
{
	struct set_aside_packets late;
	int rc = -ENOTCONN;

	set_aside_packets_init(&late, conn);
	acquire_both_rx_drive_flags(from, to);
	if (conn->is_over)
		tcp_conn_remove_flow_and_drop_burst(conn);
	else
		rc = move_conn_flow_to_other_ring(conn, from, to, &late);
	if (rc == 0) {
		conn_change_stack(conn, to);
		set_aside_packets_deliver(&late, conn);
	}
	conn_end_moving(conn);
	release_both_rx_drive_flags(from, to);
	return rc;
}

/* ---- the move ---- */

/* What the connection was when the move began. */
struct move_initial_state {
	bool steered, is_quiet;
};

static int move_conn_begin(struct vma_tcp_conn *conn, const struct vma_tcp *from, const struct vma_tcp *to,
                           struct move_initial_state *found)
{
	if (!conn_is_movable(conn))
		return -EBUSY;
	if (from->arena != to->arena || vma_ring_nic(from->ring) != vma_ring_nic(to->ring))
		return -EINVAL;
	tcp_update_now(conn->tcp);
	*found = (struct move_initial_state){.steered = conn->steered,
	                                     .is_quiet = from->now_ns - conn->last_in_ns > QUIET_NS};
	conn->moving = true;
	conn->held++;
	return 0;
}

int vma_tcp_move_to_stack(struct vma_tcp_conn *conn, struct vma_tcp *to)
{
	struct move_initial_state found = {0};
	bool acquired;
	struct vma_tcp *from = tcp_conn_acquire_ring_of_stack(conn, &acquired);
	int rc = 0;

	if (!acquired)
		return from == to ? 0 : -EDEADLK;
	if (from != to)
		rc = move_conn_begin(conn, from, to, &found);
	vma_ring_release(from->ring);
	if (from == to || rc != 0)
		return rc;
	return found.steered ? move_conn_to_stack_with_its_rule(conn, from, to, found.is_quiet)
	                     : move_conn_to_stack_by_new_rule(conn, from, to);
}
