/*
 * to_kernel.c - a connection becomes the kernel's, in the middle of a conversation, and neither side notices. Its
 * shadow is given all that the connection knows (TCP_REPAIR), and is connected from then on.
 *
 *   a rule of its own at the NIC
 *   no thread drives ─┬─ shadow: sequence numbers, addresses, options, both queues, windows     undone if one fails
 *                     ├─ it lives: answers come from the kernel's stack; it is told what had come out of order
 *                     └─ the connection is over here, without a word
 *   the rule goes, and what had come for it until then is reinjected into the kernel (reinject.c)
 *
 * The connection gets the rule first, because a socket that is being repaired looks connected. A listener's rule leaves
 * the kernel's connections to the kernel. A segment that came to the socket that way would be taken into half of a
 * connection. The rule goes last, because a kernel without a connection would answer with RST. So nothing is lost. The
 * peer would repeat a lost segment. But the kernel has not measured the round trip yet, and waits a second for its own
 * repetitions.
 *
 * Without CAP_NET_ADMIN the interface's vmad does what needs it (nic_repair.h), and reinjects the segments.
 *
 * Other processes do not touch the shadow before all is done: fork_owner.c.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <vma/log.h>
#include <vma/nic_repair.h>

#include "reinject.h"

#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif

struct move {
	struct stream_sock *sock;
	struct vma_tcp_conn *conn;
	int fd;
	struct vma_nic *by; /* its vmad makes the hand-over; NULL: this process */
	bool rerouted;      /* what was sent is lost */
	int ifindex;        /* that the shadow is bound to */
	struct vma_tcp_export exported;
	struct reinject reinject;
};

/* ---- what the kernel is told ---- */

struct queued {
	struct vma_repair_bytes base;
	const struct move *move;
};

/* The unread bytes, then those that are not acknowledged. */
static int repair_read_queued_bytes(const struct vma_repair_bytes *base, uint64_t offset, size_t most,
                                    struct iovec *span)
{
	const struct move *m = ((const struct queued *)base)->move;
	const uint64_t unread = m->exported.unread;
	unsigned n = offset < unread
	                     ? vma_tcp_export_peek_rx_bytes(m->conn, (size_t)offset, span, 1)
	                     : vma_tcp_export_peek_unacked_tx_bytes(m->conn, (size_t)(offset - unread), span, 1);

	if (n == 0)
		return -EIO;
	if (offset < unread && most > unread - offset)
		most = (size_t)(unread - offset);
	if (span->iov_len > most)
		span->iov_len = most;
	return 0;
}

static void to_kernel_fill_repair(const struct move *m, struct vma_repair *out)
{
	const struct vma_tcp_export *exported = &m->exported;
	struct vma_flow_key key;

	vma_tcp_conn_key(m->conn, &key);
	*out = (struct vma_repair){.local_port_be = key.local_port_be,
	                           .peer_port_be = key.peer_port_be,
	                           .vlan = key.vlan,
	                           .mss = exported->mss,
	                           .snd_una = exported->snd_una,
	                           .rcv_nxt = exported->rcv_nxt,
	                           .unread = (uint32_t)exported->unread,
	                           .sent = (uint32_t)exported->sent,
	                           .unacked = (uint32_t)exported->unacked,
	                           .snd_wl1 = exported->snd_wl1,
	                           .snd_wnd = exported->snd_wnd,
	                           .snd_wnd_max = exported->snd_wnd_max,
	                           .rcv_wup = exported->rcv_wup,
	                           .rcv_wnd = exported->rcv_wnd,
	                           .ts_now = exported->ts_now,
	                           .snd_scale = exported->snd_scale,
	                           .rcv_scale = exported->rcv_scale,
	                           .has_scale = exported->has_scale,
	                           .has_sack = exported->has_sack,
	                           .has_ts = exported->has_ts,
	                           .fin_received = exported->fin_received,
	                           .rerouted = m->rerouted,
	                           /* The peer's FIN is told by a packet, to an address that has to be there. */
	                           .interface_gone = m->rerouted && !exported->fin_received &&
	                                             stream_route_interface_is_gone(m->sock)};
	memcpy(out->local, key.local, sizeof(out->local));
	memcpy(out->peer, key.peer, sizeof(out->peer));
}

static int to_kernel_repair_socket(const struct move *m, int *incomplete)
{
	const struct queued queued = {.base = {.read = repair_read_queued_bytes}, .move = m};
	struct vma_repair exported;

	to_kernel_fill_repair(m, &exported);
	return m->by != NULL ? vma_nic_repair_socket(m->by, m->fd, &exported, &queued.base, incomplete)
	                     : vma_repair_restore_connection(m->fd, &exported, &queued.base, incomplete);
}

/* ---- moved ---- */

static void bind_to_interface(const struct move *m, int ifindex)
{
	if (m->ifindex != 0 && m->by == NULL) /* else vmad does it */
		vma_os.setsockopt(m->fd, SOL_SOCKET, SO_BINDTOIFINDEX, &ifindex, sizeof(ifindex));
}

/* The kernel has it, and what the application was told of it holds. */
static void kernel_start_connection(struct move *m, int incomplete)
{
	socklen_t len = sizeof(m->ifindex);

	m->ifindex = 0;
	vma_os.getsockopt(m->fd, SOL_SOCKET, SO_BINDTOIFINDEX, &m->ifindex, &len);
	bind_to_interface(m, 0); /* for what is reinjected by the loopback interface */
	if (incomplete == 0 && m->exported.fin_received && m->by == NULL)
		incomplete = reinject_fin_to_kernel(&m->reinject, m->exported.rcv_nxt);
	if (incomplete < 0)
		vma_log_warn("fd %d: a connection that was handed over to the kernel is not whole: %s", m->fd,
		             strerrordesc_np(-incomplete));
	reinject_ooo_data_to_kernel(&m->reinject, m->conn);
	if (m->exported.shut_rd)
		vma_os.shutdown(m->fd, SHUT_RD);
	if (m->exported.shut_wr)
		vma_os.shutdown(m->fd, SHUT_WR);
}

/* Nobody drives, reads or writes. */
static int export_conn_to_kernel_socket(struct move *m)
{
	int incomplete = 0, rc;

	if (vma_tcp_rx_awaits_inspection(m->conn))
		stream_receive_uninspected(m->conn); /* nobody inspects what the kernel has */
	rc = vma_tcp_export_begin(m->conn, &m->exported);
	if (rc == 0)
		rc = to_kernel_repair_socket(m, &incomplete);
	if (rc < 0)
		return rc;
	reinject_init_from_tcp_export(&m->reinject, &m->sock->name, &m->sock->peer, vma_engine_get_or_start()->arena,
	                              &m->exported, m->by);
	kernel_start_connection(m, incomplete);
	m->sock->file.os_only = true;
	vma_tcp_export_end(m->conn, &m->reinject.late);
	return 0;
}

static int move_to_kernel_without_vmad(struct move *m)
{
	struct vma_ring *ring = vma_tcp_ring(vma_tcp_conn_current_stack(m->conn));
	int rc = -EDEADLK;

	stream_io_lock_acquire(&m->sock->reader);
	stream_io_lock_acquire(&m->sock->writer);
	if (vma_ring_acquire(ring)) {
		rc = export_conn_to_kernel_socket(m);
		vma_ring_release(ring);
	}
	stream_io_lock_release(&m->sock->writer);
	stream_io_lock_release(&m->sock->reader);
	return rc;
}

/* The NIC's rule goes, and what had come for it meanwhile is the kernel's. */
static void to_kernel_drop_flow_rule(struct move *m)
{
	struct vma_flow_key key;

	vma_tcp_conn_key(m->conn, &key);
	vma_tcp_export_detach(m->conn);
	if (m->sock->ring_ctx != NULL) /* a listener's rule may bring its packets still */
		vma_ring_ctx_leave_flow_to_kernel(m->sock->ring_ctx, &key);
	reinject_end(&m->reinject);
	bind_to_interface(m, m->ifindex);
}

static int move_conn_to_kernel_and_drop_flow_rule(struct move *m)
{
	const int rc = move_to_kernel_without_vmad(m);

	if (rc == 0)
		to_kernel_drop_flow_rule(m);
	return rc;
}

/* By the interface's vmad, if it can. The ring's flag comes after the lock of vma_nic_repair_lock_and_open_channel: a
 * thread that has the lock may need the flag to drop the rule. */
static int move_to_kernel_by_vmad(struct move *m)
{
	int rc;

	m->by = m->sock->ring_ctx != NULL ? m->sock->ring_ctx->device->nic : NULL;
	rc = m->by != NULL ? vma_nic_repair_lock_and_open_channel(m->by) : -EOPNOTSUPP;
	if (rc < 0) {
		m->by = NULL;
		return -EPERM;
	}
	rc = move_conn_to_kernel_and_drop_flow_rule(m);
	vma_nic_repair_send_end_and_unlock(m->by);
	return rc;
}

/* For an option the caller says what that means. */
static void to_kernel_log_failure(struct move *m, int rc, enum vma_sock_reason why)
{
	if (why == VMA_SOCK_REROUTED && rc != -ENOTCONN && rc != -EBADF && rc != -EBUSY && rc != -EDEADLK)
		vma_log_once(VMA_LOG_WARN,
		             "connections whose route has changed to another interface cannot be handed over to the "
		             "kernel: %s",
		             strerrordesc_np(-rc));
	if (why != VMA_SOCK_FORKED)
		return;
	if (rc == -EPERM)
		stream_tally_force_hand_over(m->sock);
	if (rc == -EPERM)
		vma_log_once(VMA_LOG_WARN, "connections that a forked process uses, too, cannot be handed over to the "
		                           "kernel without CAP_NET_ADMIN, or a vmad that does it: they end with the "
		                           "process that made them");
	else if (rc != -ENOTCONN && rc != -EBADF)
		vma_log_warn("fd %d: a connection cannot be handed over to the kernel: %s", m->fd,
		             strerrordesc_np(-rc));
}

int stream_hand_over_conn_to_kernel(struct stream_sock *sock, int fd, enum vma_sock_reason why)
{
	struct move m = {.sock = sock, .conn = stream_tcp_conn(sock), .fd = fd, .rerouted = why == VMA_SOCK_REROUTED};
	int rc;

	if (m.conn == NULL || stream_sock_phase(sock) != STREAM_CONNECTED)
		return -ENOTCONN;
	if (!stream_fd_is_own_shadow(sock, fd))
		return -EBADF;
	stream_options_apply_to_shadow(sock, fd);
	vma_tcp_conn_add_own_nic_rule(m.conn); /* without one (the NIC has no room) it is a matter of luck */
	vma_ring_ctxs_progress(stream_ring_bits(&sock->file)); /* what has come is taken, and need not be reinjected */
	stream_mark_hand_over_begin(sock);
	rc = move_conn_to_kernel_and_drop_flow_rule(&m);
	if (rc == -EPERM)
		rc = move_to_kernel_by_vmad(&m);
	stream_mark_hand_over_end(sock, rc);
	if (rc < 0) {
		to_kernel_log_failure(&m, rc, why);
		return rc;
	}
	if (why == VMA_SOCK_FORKED || why == VMA_SOCK_PASSED_ON || why == VMA_SOCK_EXEC)
		stream_tally_count_hand_over(sock, m.exported.moved_bytes);
	stream_conn_end(sock);
	atomic_store(&sock->reason, why);
	vma_engine_report_kernel_fallback(why, 0, "a TCP connection");
	stream_describe_for_stats(sock);
	return 0;
}

void stream_wake_waiters_after_hand_over(struct stream_sock *sock)
{
	vma_file_set_poll_without_shadow(&sock->file, false);
	stream_wake_waiters(sock, EPOLLIN | EPOLLRDNORM | EPOLLOUT | EPOLLWRNORM);
}
