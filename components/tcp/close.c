/*
 * close.c - how connections end: a FIN behind what is queued, RST, and going on without an application.
 *
 * An application's close is a state of its own before lwIP knows of it: the FIN is made when all bytes are in segments.
 * Until then the connection counts as FIN_WAIT_1 (LAST_ACK) for all that is asked about its state.
 */
#include <errno.h>
#include <sys/socket.h>

#include "tcp_priv.h"
#include "lwip/port.h"
#include "zcopy.h"

/* The peer has something that a RST would end. */
static bool conn_state_needs_rst(const struct vma_tcp_conn *conn)
{
	switch (conn->pcb->state) {
	case SYN_RCVD:
	case ESTABLISHED:
	case FIN_WAIT_1:
	case FIN_WAIT_2:
	case CLOSE_WAIT:
		return true;
	default:
		return false;
	}
}

/* lwIP frees it with any pcb but one in TIME_WAIT, where only a fifo without memory leaves some. */
static void close_drop_refused_pbufs(struct tcp_pcb *pcb)
{
	if (pcb->refused_data != NULL)
		pbuf_free(pcb->refused_data);
	pcb->refused_data = NULL;
}

void conn_fail_with_error(struct vma_tcp_conn *conn, int error, bool reset)
{
	bool inside = lwip_at.conn == conn;

	if (conn->pcb != NULL) {
		if (!inside)
			lwip_enter(conn->tcp, conn);
		conn->pcb->errf = NULL; /* nobody else has to be told */
		tcp_clear_flags(conn->pcb, TF_ACK_DELAY | TF_ACK_NOW);
		recovery_reset_segment_state(conn);
		close_drop_refused_pbufs(conn->pcb);
		tcp_abandon(conn->pcb, reset);
		if (!inside)
			lwip_leave();
	}
	conn_clean_up_after_pcb_freed(conn, error);
}

/*
 * Sends of a tx batch were made before the end, so they leave before the RST, as the kernel's have by then, if the
 * windows allow them. No FIN follows them.
 */
static void conn_reset(struct vma_tcp_conn *conn)
{
	conn->aborting = true;
	if (conn_state_needs_rst(conn))
		tcp_output_fifo_data_if_none_unsent(conn);
	if (conn->pcb != NULL)
		conn_fail_with_error(conn, 0, conn_state_needs_rst(conn));
}

/* RFC 1122 4.2.2.13 and the kernel: data that nobody will read is worth a RST; so is one orphan too many. */
static void conn_close_with_fin_or_rst(struct vma_tcp_conn *conn)
{
	struct vma_tcp *tcp = conn->tcp;
	bool unread;

	if (conn->closing || zcopy_defer_close_while_inspecting(conn))
		return;
	/* An urgent byte counts, too. */
	unread = fifo_queued_bytes(&conn->rx) != 0 || zcopy_waiting_bytes(conn) != 0 || conn->pcb->refused_data != NULL;
	conn->closing = true;
	if (conn->pcb->state == SYN_SENT) {
		conn_fail_with_error(conn, 0, false);
		return;
	}
	if (unread || tcp->orphans >= tcp->attr.orphans_max) {
		conn->push_once = true; /* what Nagle's rule or a cork holds back; the kernel would lose it */
		conn_reset(conn);
		return;
	}
	atomic_store_explicit(&conn->shut_wr, true, memory_order_release);
	conn->is_orphan = true;
	conn->orphan_since_ns = tcp->now_ns;
	tcp->orphans++;
	timers_keepalive_update(conn);
}

void conn_do_close_work(struct vma_tcp_conn *conn, uint32_t todo)
{
	if (conn->pcb == NULL)
		return;
	if (todo & TCP_WORK_ABORT ||
	    (todo & TCP_WORK_UNUSED && !(todo & TCP_WORK_CLOSE) && !conn->closing && !zcopy_close_is_deferred(conn))) {
		conn_reset(conn);
		return;
	}
	if (todo & TCP_WORK_CLOSE)
		conn_close_with_fin_or_rst(conn);
	conn->push_once = true; /* nothing more comes: Nagle's rule has nothing to wait for */
}

/* Within lwip_enter. The FIN joins the last segment if that has not left yet. */
void tcp_close_fin(struct vma_tcp_conn *conn)
{
	struct tcp_pcb *pcb = conn->pcb;

	tcp_shutdown(pcb, 0, 1);
	tcp_clear_flags(pcb, TF_CLOSEPEND);
	conn->fin_queued = pcb->state != ESTABLISHED && pcb->state != CLOSE_WAIT;
	if (!conn->fin_queued)
		conn_enqueue_retry(conn);
	else
		timers_keepalive_update(conn);
}

/* ---- the application ---- */

int vma_tcp_shutdown(struct vma_tcp_conn *conn, int how)
{
	int state = atomic_load_explicit(&conn->state, memory_order_acquire);

	if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR)
		return -EINVAL;
	if (state == TCP_CLOSE)
		return -ENOTCONN;
	if (state == TCP_SYN_SENT) { /* as the kernel: the attempt is given up */
		tcp_run_conn_work_now_or_queue(conn, TCP_WORK_ABORT);
		return 0;
	}
	if (how != SHUT_WR)
		atomic_fetch_or_explicit(&conn->rx_mode, RX_SHUT, memory_order_release);
	if (how != SHUT_RD) {
		atomic_store_explicit(&conn->sends_ended, true, memory_order_release);
		atomic_store_explicit(&conn->shut_wr, true, memory_order_release);
	}
	tcp_run_conn_work_now_or_queue(conn, TCP_WORK_SHUT_WR);
	return 0;
}

void vma_tcp_close(struct vma_tcp_conn *conn, bool abort)
{
	atomic_fetch_or_explicit(&conn->rx_mode, RX_SHUT, memory_order_release);
	atomic_store_explicit(&conn->sends_ended, true, memory_order_release);
	/* Who drives meanwhile would send a FIN before the RST. */
	if (!abort && vma_tcp_readable_bytes(conn) == 0 && zcopy_waiting_bytes(conn) == 0)
		atomic_store_explicit(&conn->shut_wr, true, memory_order_release);
	tcp_run_conn_work_now_or_queue(conn, abort ? TCP_WORK_ABORT : TCP_WORK_CLOSE);
}
