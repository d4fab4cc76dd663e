/*
 * zcopy.c - zero-copy receive, and owners that inspect what comes: tcp's pieces, for the holder of a descriptor.
 *
 * A connection keeps its frames from the first zero-copy receive on, or from the moment an inspector is there. Before
 * that, and beyond tcp's bounds, payload is copied, and read by recvmsg.
 */
#include <errno.h>
#include <sys/epoll.h>

#include "stream_priv.h"

/* ---- receive ---- */

/* What is queued in frames, as far as the taker takes it. The reader's turn is held. Bytes; 0: none lies in a frame, or
 * the taker has no room; its error. */
static ssize_t zcopy_take_pieces(struct vma_tcp_conn *conn, const struct vma_stream_zcopy_taker *taker)
{
	const uint64_t number = vma_tcp_zcopy_conn_id(conn);
	struct vma_bufarena *arena = vma_engine_get_or_start()->arena;
	struct vma_tcp_rx_stream_piece piece;
	ssize_t done = 0;
	int rc;

	while ((done == 0 || vma_tcp_bytes_before_urgent_mark(conn) != 0) &&
	       vma_tcp_peek_first_rx_piece(conn, &piece) && piece.buf != NULL) {
		const char *packet = vma_buf_data(arena, piece.buf);

		rc = taker->take(taker->arg, number, piece.buf, (uint32_t)((const char *)piece.data - packet),
		                 piece.len);
		if (rc != 0)
			return done != 0 || rc > 0 ? done : rc;
		vma_tcp_rx_hold_piece(conn, &piece);
		done += piece.len;
	}
	return done;
}

static ssize_t stream_take_queued_pieces(struct stream_sock *sock, const struct vma_stream_zcopy_taker *taker)
{
	struct vma_tcp_conn *conn;
	ssize_t rc = 0;

	if (!stream_call_enter(sock))
		return -EBADF;
	conn = stream_tcp_conn(sock);
	if (conn != NULL && !sock->file.os_only)
		rc = vma_tcp_enable_rx_zcopy(conn);
	if (rc == 0 && conn != NULL && !sock->file.os_only && vma_tcp_readable_bytes(conn) != 0) {
		stream_io_lock_acquire(&sock->reader);
		rc = zcopy_take_pieces(conn, taker);
		stream_io_lock_release(&sock->reader);
	}
	stream_call_leave(sock);
	return rc;
}

/* Waits as recv does: what it would answer if there is nothing; 1: there are bytes. */
static ssize_t wait_for_rx_bytes(struct vma_file *file, int fd, int flags)
{
	char byte;
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	return file->ops->recvmsg(file, fd, &msg, (flags & ~MSG_WAITALL) | MSG_PEEK);
}

static ssize_t recv_copied_pieces(struct vma_file *file, int fd, struct msghdr *msg, int flags,
                                  const struct vma_stream_zcopy_taker *taker)
{
	flags &= ~MSG_WAITALL;
	return taker->copy != NULL ? taker->copy(taker->arg, file, fd, msg, flags)
	                           : file->ops->recvmsg(file, fd, msg, flags);
}

ssize_t vma_stream_recv_zcopy_pieces(struct vma_file *file, int fd, struct msghdr *msg, int flags,
                                     const struct vma_stream_zcopy_taker *taker, bool *taken)
{
	struct stream_sock *sock = stream_sock(file);
	ssize_t rc;

	*taken = false;
	if (flags & (MSG_PEEK | MSG_OOB | MSG_ERRQUEUE | MSG_TRUNC))
		return recv_copied_pieces(file, fd, msg, flags, taker);
	rc = stream_take_queued_pieces(sock, taker);
	if (rc > 0)
		stream_drive_rings_if_overdue(vma_thread_self());
	/* Another reader may take what this one has seen. */
	while (rc == 0) {
		rc = wait_for_rx_bytes(file, fd, flags);
		if (rc <= 0)
			return rc;
		rc = stream_take_queued_pieces(sock, taker);
		if (rc != 0)
			break;
		rc = recv_copied_pieces(file, fd, msg, flags, taker);
		if (rc != -EAGAIN || taker->copy == NULL)
			return rc;
		rc = 0;
	}
	*taken = rc > 0;
	msg->msg_namelen = 0;
	msg->msg_controllen = 0;
	msg->msg_flags = 0;
	stream_count_received(sock, rc, flags);
	return rc;
}

uint64_t vma_stream_zcopy_number(struct vma_file *file)
{
	const struct vma_tcp_conn *conn = stream_tcp_conn(stream_sock(file));

	return conn != NULL ? vma_tcp_zcopy_conn_id(conn) : 0;
}

void vma_stream_return_held_zcopy_bytes(struct vma_file *file, uint64_t number, uint64_t bytes, unsigned pieces)
{
	vma_tcp_held_bytes_returned(stream_tcp_conn(stream_sock(file)), vma_tcp_memory_of_process(), number, bytes,
	                            pieces);
}

/* ---- inspection ---- */

static const struct vma_stream_inspector *stream_inspector(const struct stream_sock *sock)
{
	return atomic_load_explicit(&sock->inspector, memory_order_acquire);
}

/* The inspector may have changed, or gone, with the piece before; the socket may have been closed: nobody reads it. */
static enum vma_tcp_inspect_verdict stream_inspector_verdict(struct vma_tcp_conn *conn,
                                                             const struct vma_tcp_rx_stream_piece *piece, void *arg)
{
	struct stream_sock *sock = arg;
	const struct vma_stream_inspector *inspector = stream_inspector(sock);

	if (inspector == NULL || stream_has_ended(sock) || stream_tcp_conn(sock) != conn)
		return VMA_TCP_RECV;
	return inspector->decide(&sock->file, conn, piece);
}

static enum vma_tcp_inspect_verdict inspector_verdict_receive(struct vma_tcp_conn *conn,
                                                              const struct vma_tcp_rx_stream_piece *piece, void *arg)
{
	(void)conn;
	(void)piece;
	(void)arg;
	return VMA_TCP_RECV;
}

/* The inspection has ended, or is about to. */
bool stream_receive_uninspected(struct vma_tcp_conn *conn)
{
	static const struct vma_tcp_inspector all = {.decide = inspector_verdict_receive};

	return vma_tcp_inspect_received(conn, &all, UINT32_MAX).received != 0;
}

void stream_inspector_on_arrival(struct stream_sock *sock, struct vma_tcp_conn *conn)
{
	const struct vma_stream_inspector *inspector = stream_inspector(sock);

	if (inspector != NULL)
		inspector->arrived(&sock->file);
	else if (stream_receive_uninspected(conn))
		stream_wake_waiters(sock, EPOLLIN | EPOLLRDNORM);
}

/*
 * The connection is held, so `decide` may go outside, and close the socket. Who finds a reader's bytes queued before
 * this tells of them finds nothing new: a wake-up too many at most.
 */
bool vma_stream_inspect_received(struct vma_file *file, unsigned most)
{
	struct stream_sock *sock = stream_sock(file);
	const struct vma_tcp_inspector inspector = {.decide = stream_inspector_verdict, .arg = sock};
	struct vma_tcp_conn *conn = stream_tcp_conn(sock);
	struct vma_tcp_inspected result;

	if (conn == NULL)
		return false;
	vma_tcp_conn_get(conn);
	do {
		result = vma_tcp_inspect_received(conn, &inspector, 1);
		if (result.gone)
			return false;
		/* Of a connection that is over nobody else says that the stream ends here. */
		if (result.received != 0 || (result.pieces != 0 && vma_tcp_rx_eof(conn)))
			stream_wake_waiters(sock, EPOLLIN | EPOLLRDNORM);
	} while (result.pieces != 0 && --most != 0);
	vma_tcp_conn_put(conn);
	return result.more;
}

void vma_stream_inspector_has_ended(struct vma_file *file, struct vma_tcp_conn *conn,
                                    enum vma_tcp_inspect_verdict verdict)
{
	vma_tcp_inspector_has_ended(conn, verdict);
	if (vma_tcp_rx_eof(conn)) /* as vma_stream_inspect_received, whose reference this is */
		stream_wake_waiters(stream_sock(file), EPOLLIN | EPOLLRDNORM);
	vma_tcp_conn_put(conn);
}

/* A connection that is made at this moment sees the inspector, or is seen here: file.lock. */
int vma_stream_set_inspector(struct vma_file *file, const struct vma_stream_inspector *inspector)
{
	struct stream_sock *sock = stream_sock(file);
	struct vma_tcp_conn *conn;
	int rc = 0;

	if (file->os_only)
		return -EOPNOTSUPP;
	pthread_mutex_lock(&file->lock);
	conn = stream_tcp_conn(sock);
	if (conn != NULL)
		rc = vma_tcp_enable_rx_inspection(conn, inspector != NULL);
	if (rc == 0)
		atomic_store(&sock->inspector, inspector);
	if (conn != NULL)
		vma_tcp_conn_get(conn);
	pthread_mutex_unlock(&file->lock);
	if (conn == NULL)
		return rc;
	if (rc == 0 && inspector == NULL && stream_receive_uninspected(conn))
		stream_wake_waiters(sock, EPOLLIN | EPOLLRDNORM);
	vma_tcp_conn_put(conn);
	return rc;
}
