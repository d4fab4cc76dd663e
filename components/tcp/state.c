/* state.c - a connection's state, error and readiness, which are shown without a lock. */
#include <errno.h>
#include <sys/epoll.h>

#include <vma/probe.h>

#include "budget.h"
#include "lwip/port.h"

/*
 * lwIP's state by its number in <netinet/tcp.h>. An application's close or shutdown shows at once, although the FIN is
 * made only when all bytes before it are in segments.
 */
static int conn_tcpi_state(const struct vma_tcp_conn *conn)
{
	static const uint8_t names[] = {
	        [CLOSED] = TCP_CLOSE,         [LISTEN] = TCP_LISTEN,           [SYN_SENT] = TCP_SYN_SENT,
	        [SYN_RCVD] = TCP_SYN_RECV,    [ESTABLISHED] = TCP_ESTABLISHED, [FIN_WAIT_1] = TCP_FIN_WAIT1,
	        [FIN_WAIT_2] = TCP_FIN_WAIT2, [CLOSE_WAIT] = TCP_CLOSE_WAIT,   [CLOSING] = TCP_CLOSING,
	        [LAST_ACK] = TCP_LAST_ACK,    [TIME_WAIT] = TCP_TIME_WAIT};
	bool shut = atomic_load_explicit(&conn->shut_wr, memory_order_relaxed);

	if (conn->pcb == NULL)
		return TCP_CLOSE;
	if (shut && conn->pcb->state == ESTABLISHED)
		return TCP_FIN_WAIT1;
	if (shut && conn->pcb->state == CLOSE_WAIT)
		return TCP_LAST_ACK;
	return names[conn->pcb->state];
}

/* Where there is no more memory for all, only a little for each. */
uint64_t tcp_sndbuf_now(const struct vma_tcp_conn *conn)
{
	uint64_t sndbuf = atomic_load_explicit(&conn->sndbuf, memory_order_relaxed);
	const struct vma_tcp *tcp = tcp_stack_now(conn);
	struct vma_tcp_memory *memory = tcp->attr.memory;

	if (!tcp_memory_is_exhausted(tcp) || sndbuf <= BUDGET_SND_LEAST)
		return sndbuf;
	if (!atomic_load_explicit(&memory->was_exhausted, memory_order_relaxed))
		atomic_store_explicit(&memory->was_exhausted, true, memory_order_relaxed);
	return BUDGET_SND_LEAST;
}

static bool was_exhausted(const struct vma_tcp_conn *conn)
{
	return __builtin_expect(
	        atomic_load_explicit(&tcp_stack_now(conn)->attr.memory->was_exhausted, memory_order_relaxed), 0);
}

/* sk_stream_is_writeable: what is free is at least half of what is used; and not too much waits to be sent. */
static bool is_writeable(const struct vma_tcp_conn *conn)
{
	uint64_t used = fifo_queued_bytes(&conn->tx), sndbuf = tcp_sndbuf_now(conn);
	uint32_t lowat = (uint32_t)tcp_option(conn, VMA_TCP_OPT_NOTSENT_LOWAT);

	if (used >= sndbuf || sndbuf - used < used / 2)
		return false;
	return lowat == UINT32_MAX || vma_tcp_tx_unsent(conn) * 2 < lowat;
}

/*
 * A writer that finds no room says so (A) and looks again (B); the driver makes room (C) and then asks whether anybody
 * said so (D). A and D are exchanges of one word, so one comes first, and the other sees what was done before it: if D
 * does not see A, then A sees D, C comes before B, and B finds room.
 *
 * The exchange costs more than all else of a small message's step, so D is left out (tcp_may_have_waiting_writer) when
 * nobody can be waiting. Who finds no room has seen two thirds of the buffer used (tcp_notsent_lowat apart), by bytes
 * that the driver has to release before there is room: in the step that does, or one before, more than a third is used
 * at first. A driver that has not seen those bytes when it makes room cannot have released them, and comes again for
 * them.
 *
 * That is no longer so once memory for all has been short, when a few KB are no room: D is then part of each step, as
 * soon as the driver knows of it (was_exhausted). A writer to whom that happens is not known to have been seen, so the
 * one that sets the note has a step made. That step knows of was_exhausted, since it was posted after it was set, and
 * so do all later ones; bytes that it still finds in the fifo have yet to be acknowledged, and their step tells. A note
 * that was set before, by one who found the buffer full, has its D while more than a third is used, by the above: it
 * finds room, or finds that memory is short, and has set was_exhausted itself.
 */
bool tcp_request_writable_event_if_full(const struct vma_tcp_conn *conn)
{
	_Atomic bool *wants =
	        (_Atomic bool *)(uintptr_t)&conn->wants_tx_space; /* a note to the driver, whoever looks */

	if (is_writeable(conn))
		return false;
	if (!atomic_exchange_explicit(wants, true, memory_order_acq_rel) && was_exhausted(conn))
		tcp_run_conn_work_now_or_queue((struct vma_tcp_conn *)(uintptr_t)conn, TCP_WORK_SEND);
	return !is_writeable(conn);
}

static void report_tx_space(struct vma_tcp_conn *conn)
{
	conn->tx_space_freed = false;
	if (!atomic_exchange_explicit(&conn->wants_tx_space, false, memory_order_acq_rel))
		return;
	if (is_writeable(conn))
		conn->events |= VMA_TCP_WRITABLE;
	else
		atomic_store_explicit(&conn->wants_tx_space, true,
		                      memory_order_relaxed); /* only this thread makes room */
}

/* Something is on its way, or could be: the stack is to be driven often. */
static bool conn_is_busy(const struct vma_tcp_conn *conn)
{
	const struct tcp_pcb *pcb = conn->pcb;

	if (pcb == NULL)
		return false;
	return pcb->unacked != NULL || pcb->unsent != NULL || fifo_produced(&conn->tx) != conn->lwip_end;
}

bool tcp_is_synchronized(const struct tcp_pcb *pcb)
{
	switch (pcb->state) {
	case ESTABLISHED:
	case CLOSE_WAIT:
	case FIN_WAIT_1:
	case FIN_WAIT_2:
	case CLOSING:
	case LAST_ACK:
		return true;
	default:
		return false;
	}
}

/* On its own, so that the probe does not disturb what is done for each segment. */
static __attribute__((cold, noinline)) void conn_store_published_state(struct vma_tcp_conn *conn, int state)
{
	VMA_PROBE4(tcp_state, atomic_load_explicit(&conn->state, memory_order_relaxed), state, conn->key.local_port_be,
	           conn->key.peer_port_be);
	atomic_store_explicit(&conn->state, state, memory_order_release);
}

static inline void conn_publish_state(struct vma_tcp_conn *conn, int state)
{
	if (atomic_load_explicit(&conn->state, memory_order_relaxed) != state)
		conn_store_published_state(conn, state);
}

static inline void conn_report_tx_space_and_window(struct vma_tcp_conn *conn)
{
	if (conn->tx_space_freed || was_exhausted(conn))
		report_tx_space(conn);
	window_publish_for_reader(conn);
}

void tcp_conn_publish_state_and_events(struct vma_tcp_conn *conn)
{
	int state;

	if (conn->is_over)
		return;
	state = conn_tcpi_state(conn);
	if (conn->closing && (state == TCP_FIN_WAIT2 || state == TCP_TIME_WAIT) &&
	    !(conn->past_events & VMA_TCP_DRAINED))
		conn->events |= VMA_TCP_DRAINED;
	if (conn->data_received)
		conn->events |= VMA_TCP_READABLE;
	conn->data_received = false;
	conn_report_tx_space_and_window(conn);
	conn_set_busy_and_count(conn, conn_is_busy(conn));
	conn_publish_state(conn, state);
}

void tcp_conn_fin_received(struct vma_tcp_conn *conn)
{
	atomic_fetch_or_explicit(&conn->rx_mode, RX_FIN, memory_order_release); /* after the last byte */
	conn->events |= VMA_TCP_PEER_CLOSED | VMA_TCP_READABLE;
}

/* It is established, and not shut down; nothing is out and nothing waits: not busy. */
void tcp_pingpong_publish(struct vma_tcp_conn *conn)
{
	uint32_t events;

	conn_report_tx_space_and_window(conn);
	conn_set_busy_and_count(conn, false);
	conn_publish_state(conn, TCP_ESTABLISHED);
	events = conn->events | (conn->data_received ? VMA_TCP_READABLE : 0); /* not, if the owner has taken it */
	conn->events = 0;
	conn->data_received = false;
	conn_tell_owner_events(conn, events);
}

/* Both directions are over for good, as after the kernel's tcp_done. */
void conn_set_ended(struct vma_tcp_conn *conn, int error)
{
	atomic_store_explicit(&conn->error, error, memory_order_relaxed);
	atomic_store_explicit(&conn->error_pending, error, memory_order_relaxed);
	atomic_fetch_or_explicit(&conn->rx_mode, RX_SHUT, memory_order_relaxed);
	atomic_store_explicit(&conn->sends_ended, true, memory_order_release);
	conn_publish_state(conn, TCP_CLOSE);
	conn->events |= VMA_TCP_CLOSED | (error != 0 ? VMA_TCP_FAILED : 0);
	if (conn->closing && !(conn->past_events & VMA_TCP_DRAINED))
		conn->events |= VMA_TCP_DRAINED;
}

/* ---- any thread ---- */

int vma_tcp_state(const struct vma_tcp_conn *conn)
{
	return atomic_load_explicit(&conn->state, memory_order_acquire);
}

int vma_tcp_error(const struct vma_tcp_conn *conn)
{
	return atomic_load_explicit(&conn->error, memory_order_acquire);
}

int vma_tcp_error_take(struct vma_tcp_conn *conn)
{
	return atomic_exchange_explicit(&conn->error_pending, 0, memory_order_acq_rel);
}

/* tcp_poll of the kernel, line by line of its effects. */
uint32_t vma_tcp_poll_events(const struct vma_tcp_conn *conn)
{
	int state = atomic_load_explicit(&conn->state, memory_order_acquire);
	bool in_ended = (atomic_load_explicit(&conn->rx_mode, memory_order_acquire) & (RX_SHUT | RX_FIN)) != 0 &&
	                !vma_tcp_rx_awaits_inspection(conn);
	bool out_ended = atomic_load_explicit(&conn->sends_ended, memory_order_acquire);
	uint32_t ready = 0;

	if (state == TCP_CLOSE || (in_ended && out_ended))
		ready |= EPOLLHUP;
	if (in_ended)
		ready |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
	if (state != TCP_SYN_SENT && state != TCP_SYN_RECV) {
		if (conn_has_rx_bytes(conn))
			ready |= EPOLLIN | EPOLLRDNORM;
		if (out_ended || !tcp_request_writable_event_if_full(conn))
			ready |= EPOLLOUT | EPOLLWRNORM;
		if (atomic_load_explicit(&conn->urgent_byte, memory_order_relaxed) >= 0)
			ready |= EPOLLPRI;
	}
	if (atomic_load_explicit(&conn->error_pending, memory_order_relaxed) != 0)
		ready |= EPOLLERR;
	return ready;
}
