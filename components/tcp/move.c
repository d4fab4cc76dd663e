/*
 * move.c - an accepted connection changes to another stack of this process, of another ring of the same device.
 *
 *   flow leaves `from` ── late flow takes its place ── flow joins `to`, and the NIC steers there ── `from` is drained
 *
 * What was on its way to the ring of `from` meets the late flow, and is given to the connection behind that. This thread
 * has the receive flags of both rings from begin to end, so nobody else sees the connection in between. Flags are
 * acquired in the order of their rings' addresses, so two connections that change places wait for no one in a circle.
 *
 * Only a connection of which nothing is under way is moved: its segments and out-of-order data are counted by the stack
 * that has them. A connection that was just accepted has sent nothing yet.
 */
#include <errno.h>
#include <string.h>

#include "tcp_priv.h"
#include "lwip/objects.h"
#include "lwip/port.h"
#include "timer/timers.h"

struct late_packets {
	struct vma_flow flow;
	struct vma_buf *first, **end; /* by vma_buf.user */
};

static bool late_packets_sink(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct late_packets *late = flow->owner;

	(void)info;
	packet->user = NULL;
	*late->end = packet;
	late->end = (struct vma_buf **)&packet->user;
	return true;
}

static bool conn_has_work(const struct vma_tcp_conn *conn)
{
	return conn->todo != 0 || atomic_load(&conn->work) != 0 || conn->burst != NULL || conn->in_ready ||
	       conn->in_retry || conn->in_small_mss_queue || conn->held != 0 || conn->events != 0;
}

static bool conn_is_movable(const struct vma_tcp_conn *conn)
{
	const struct tcp_pcb *pcb = conn->pcb;

	if (pcb == NULL || conn->is_over || conn->closing || conn->aborting || !conn->attached ||
	    conn->listener != NULL || vma_tcp_is_pending(conn) || conn_has_work(conn))
		return false;
	return (pcb->state == ESTABLISHED || pcb->state == CLOSE_WAIT) && pcb->unsent == NULL && pcb->unacked == NULL &&
	       pcb->ooseq == NULL && pcb->refused_data == NULL && !conn->is_busy;
}

/* Time stamps go on as they began. */
static bool same_clock(const struct vma_tcp *a, const struct vma_tcp *b)
{
	return a->clock_offset_ms == b->clock_offset_ms;
}

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

/* Its place in the ring that it comes from is taken by `late`; the NIC is asked for a rule to the other one. */
static int move_flow(struct vma_tcp_conn *conn, struct vma_tcp *to, struct late_packets *late)
{
	struct vma_ring *from = conn->tcp->ring;
	int rc;

	vma_ring_detach(from, &conn->flow);
	rc = vma_ring_attach(from, &late->flow);
	conn->flow.flags = 0;
	if (rc == 0)
		rc = vma_ring_attach(to->ring, &conn->flow);
	conn->steered = rc == 0;
	if (rc == 0) {
		vma_ring_drain(from);
		vma_ring_detach(from, &late->flow);
		return 0;
	}
	vma_ring_detach(from, &late->flow);
	conn->flow.flags = VMA_FLOW_RING_ONLY; /* its listener's rule covers it */
	conn->attached = vma_ring_attach(from, &conn->flow) == 0;
	if (!conn->attached)
		tcp_conn_fail(conn, ENOMEM, true);
	return rc;
}

/* Both receive flags held. */
static int conn_move(struct vma_tcp_conn *conn, struct vma_tcp *to)
{
	struct vma_tcp *from = conn->tcp;
	struct late_packets late = {
	        .flow = {.key = conn->key, .sink = late_packets_sink, .flags = VMA_FLOW_RING_ONLY, .owner = &late},
	        .end = &late.first};
	int rc;

	if (!conn_is_movable(conn) || !same_clock(from, to))
		return -EBUSY;
	rc = move_flow(conn, to, &late);
	if (rc != 0)
		return rc;
	tcp_exported_add(from, &conn->key);
	move_timers(conn, to);
	memory_hand_over(from, to, 1); /* the pcb */
	tcp_conn_relink(conn, to);
	tcp_check_idle(from);
	while (late.first != NULL) {
		struct vma_buf *packet = late.first;

		late.first = packet->user;
		tcp_sink(&conn->flow, packet, NULL);
	}
	tcp_ready(conn); /* a window or an ACK may be due */
	return 0;
}

int vma_tcp_move(struct vma_tcp_conn *conn, struct vma_tcp *to)
{
	struct vma_tcp *from = conn->tcp;
	struct vma_ring *first = from->ring < to->ring ? from->ring : to->ring;
	struct vma_ring *second = from->ring < to->ring ? to->ring : from->ring;
	int rc = -EDEADLK;

	if (from == to)
		return 0;
	if (!vma_ring_acquire(first))
		return rc;
	if (vma_ring_acquire(second)) {
		tcp_update_now(from);
		tcp_update_now(to);
		rc = conn_move(conn, to);
		vma_ring_release(second);
	}
	vma_ring_release(first);
	return rc;
}
