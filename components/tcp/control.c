/*
 * control.c - VMA_TCP_CTL_THREAD: connections of listeners are made in a thread of the host's choice.
 *
 *   a listener's segment ──────────────────────> held, at most CONTROL_MAX
 *   a half-open connection that is to be run ──> the list `control`        ──> host.control, once
 *                                                                               │
 *   vma_tcp_run_control_queue: the receive flag, then both in their order, in a run <─┘
 *
 * Any other run leaves both alone. So the thread that drives makes no connection, and the packets that it drives for
 * wait less. A connection is half open until its handshake is complete, and so is all that comes for it meanwhile, data
 * too.
 *
 * If as many segments are held as can be, the thread that drives does the work: none is lost, and none is overtaken.
 */
#include <errno.h>

#include "tcp_priv.h"

#define CONTROL_MAX 256

struct tcp_control_queue {
	/* Connections, linked as ready ones; in_ready is set. */
	struct vma_tcp_conn *first, **last;
	unsigned count; /* of segments */
	struct {
		struct vma_flow *listener;
		struct vma_buf *packet;
		struct vma_rx_info info;
	} held[CONTROL_MAX];
};

int tcp_control_queue_init(struct vma_tcp *tcp)
{
	if (tcp->host.control == NULL)
		return 0;
	tcp->control = tcp_alloc_zeroed(tcp, sizeof(*tcp->control));
	if (tcp->control == NULL)
		return -ENOMEM;
	tcp->control->last = &tcp->control->first;
	tcp->defers_control = true;
	return 0;
}

void tcp_control_fini(struct vma_tcp *tcp)
{
	tcp_free_memory(tcp, tcp->control);
}

/* ---- left for later ---- */

bool tcp_control_queue_syn(struct vma_tcp *tcp, struct vma_flow *listener, struct vma_buf *packet,
                           const struct vma_rx_info *info)
{
	struct tcp_control_queue *control = tcp->control;

	if (control->count == CONTROL_MAX) {
		tcp_control_deliver_queued_syns(tcp);
		return false;
	}
	control->held[control->count].listener = listener;
	control->held[control->count].packet = packet;
	control->held[control->count].info = *info;
	control->count++;
	return true;
}

bool tcp_control_queue_conn(struct vma_tcp_conn *conn)
{
	struct tcp_control_queue *control = conn->tcp->control;

	if (conn->listener == NULL)
		return false;
	conn->in_ready = true;
	conn->next_ready = NULL;
	*control->last = conn;
	control->last = &conn->next_ready;
	return true;
}

void tcp_control_request_run_if_queued(struct vma_tcp *tcp)
{
	const struct tcp_control_queue *control = tcp->control;

	tcp->defers_control = true;
	if ((control->count == 0 && control->first == NULL) ||
	    atomic_load_explicit(&tcp->control_waits, memory_order_relaxed))
		return;
	atomic_store_explicit(&tcp->control_waits, true, memory_order_release);
	tcp->host.control(tcp->host.arg);
}

/* ---- done ---- */

void tcp_control_deliver_queued_syns(struct vma_tcp *tcp)
{
	struct tcp_control_queue *control = tcp->control;
	const bool deferred = tcp->defers_control;

	if (control == NULL)
		return;
	tcp->defers_control = false;
	for (unsigned i = 0; i < control->count; i++)
		if (!tcp_listener_sink(control->held[i].listener, control->held[i].packet, &control->held[i].info))
			vma_buf_put_chain(tcp->arena, control->held[i].packet);
	control->count = 0;
	tcp->defers_control = deferred;
}

void tcp_control_drop_syns_of_listener(struct vma_tcp *tcp, const struct vma_flow *listener)
{
	struct tcp_control_queue *control = tcp->control;
	unsigned left = 0;

	if (control == NULL)
		return;
	for (unsigned i = 0; i < control->count; i++) {
		if (control->held[i].listener == listener)
			vma_buf_put_chain(tcp->arena, control->held[i].packet);
		else
			control->held[left++] = control->held[i];
	}
	control->count = left;
}

bool vma_tcp_has_control_work(const struct vma_tcp *tcp)
{
	return atomic_load_explicit(&tcp->control_waits, memory_order_acquire);
}

/* The run that follows in release does it, and ends it: tcp_control_request_run_if_queued. */
int vma_tcp_run_control_queue(struct vma_tcp *tcp)
{
	struct tcp_control_queue *control = tcp->control;

	if (!vma_tcp_has_control_work(tcp))
		return 0;
	if (!vma_ring_try_acquire(tcp->ring))
		return -EBUSY;
	tcp_update_now(tcp);
	atomic_store_explicit(&tcp->control_waits, false, memory_order_relaxed);
	tcp_control_deliver_queued_syns(tcp);
	tcp->defers_control = false;
	if (control->first != NULL) {
		*tcp->ready_tail = control->first;
		tcp->ready_tail = control->last;
		control->first = NULL;
		control->last = &control->first;
	}
	vma_ring_release(tcp->ring);
	return 0;
}
