/*
 * recv.c - bytes in: from the connection's fifo to the application. The order is that of the kernel's tcp_recvmsg:
 *          queued bytes, then the end of the stream, then an error, once.
 *
 *   recv ──┬─ bytes are queued: copy, consume
 *          ├─ drive the own ring once, look again
 *          └─ wait for the rest of what is wanted (SO_RCVLOWAT, MSG_WAITALL)
 */
#include <errno.h>
#include <netinet/tcp.h>

#include "extra.h"
#include "stream_priv.h"

enum { SPANS = 8 };

/* ---- taking ---- */

struct reading {
	struct stream_sock *sock;
	struct vma_inet_iov_iter *iov_iter;
	int flags;
	size_t done; /* bytes given so far; when peeking they are still queued */
	size_t skip; /* peeking: queued bytes that have been looked at */
	bool at_mark, fault;
	bool is_moved; /* what is left is the kernel's to bring: the connection was handed over to it */
};

/* A read ends before the urgent byte; one that begins there steps over it, or takes it inline: rx_front's business. */
static bool read_is_at_urgent_mark(const struct reading *r, const struct vma_tcp_conn *conn)
{
	int64_t mark = vma_tcp_bytes_before_urgent_mark(conn);

	return __builtin_expect(mark >= 0, 0) && r->done != 0 && (uint64_t)mark == r->skip;
}

/* One span: how many bytes of it are dealt with. MSG_TRUNC throws them away. */
static size_t recv_call_copy_out(struct reading *r, const struct iovec *span, size_t bytes)
{
	const size_t given = bytes < span->iov_len ? bytes : span->iov_len;

	if (__builtin_expect(r->flags & MSG_TRUNC, 0)) {
		vma_inet_iov_iter_skip(r->iov_iter, given);
		return given;
	}
	/* What meets a fault stays queued as a whole, as a buffer of the kernel's does. */
	r->fault = vma_inet_iov_iter_write(r->iov_iter, span->iov_base, given) < given;
	return r->fault ? 0 : given;
}

/* As much as is queued now. The reader's turn is held. */
static void recv_call_dequeue(struct reading *r, struct vma_tcp_conn *conn)
{
	struct iovec spans[SPANS];
	size_t wanted, given;
	unsigned n;

	do {
		r->at_mark = read_is_at_urgent_mark(r, conn);
		if (r->at_mark)
			return;
		wanted = r->iov_iter->left;
		n = vma_tcp_peek_rx_spans(conn, r->skip, spans, SPANS);
		for (unsigned i = 0; i < n && wanted > 0 && !r->fault; i++) {
			given = recv_call_copy_out(r, &spans[i], wanted);
			wanted -= given;
			r->done += given;
			r->skip += given;
		}
		if (!(r->flags & MSG_PEEK)) {
			vma_tcp_rx_consume(conn, r->skip);
			r->skip = 0;
		}
	} while (n == SPANS && !r->fault && r->iov_iter->left > 0);
}

static void recv_call_dequeue_with_lock(struct reading *r, struct vma_tcp_conn *conn)
{
	stream_io_lock_acquire(&r->sock->reader);
	recv_call_dequeue(r, conn);
	stream_io_lock_release(&r->sock->reader);
}

/* ---- when there is nothing ---- */

/* What a read answers that finds nothing queued; -EAGAIN: it waits. Bytes are published before what comes after them.
 */
static ssize_t recv_answer_when_empty(struct stream_sock *sock, const struct vma_tcp_conn *conn)
{
	bool fin = atomic_load_explicit(&sock->fin_seen, memory_order_acquire);
	int error = atomic_load_explicit(&sock->so_error, memory_order_acquire);
	bool failed = stream_sock_phase(sock) == STREAM_FAILED;

	if (conn != NULL && vma_tcp_readable_bytes(conn) != 0)
		return -EAGAIN;
	if (fin)
		return 0;
	if (error != 0)
		error = atomic_exchange(&sock->so_error, 0);
	if (error != 0)
		return -error;
	if (failed || conn == NULL || atomic_load_explicit(&sock->shut_rd, memory_order_relaxed) ||
	    vma_tcp_rx_eof(conn))
		return 0;
	return -EAGAIN;
}

/* After some bytes: whether a read that wants more ends here nevertheless. */
static bool recv_must_end_early(const struct stream_sock *sock, const struct vma_tcp_conn *conn)
{
	return atomic_load_explicit(&sock->fin_seen, memory_order_acquire) ||
	       atomic_load_explicit(&sock->so_error, memory_order_relaxed) != 0 ||
	       atomic_load_explicit(&sock->shut_rd, memory_order_relaxed) ||
	       (stream_kernel_view_of_state(conn) == TCP_CLOSE && stream_sock_phase(sock) != STREAM_CONNECTING &&
	        !vma_tcp_rx_awaits_inspection(conn));
}

static bool recv_wait_is_over(struct stream_sock *sock, const struct stream_wait_condition *what)
{
	const struct vma_tcp_conn *conn = stream_tcp_conn(sock);

	return conn == NULL || vma_tcp_readable_bytes(conn) > what->seen || recv_must_end_early(sock, conn) ||
	       stream_sock_phase(sock) == STREAM_FAILED;
}

static int recv_wait_for_bytes(const struct reading *r, uint64_t deadline_ns)
{
	struct stream_sock *sock = r->sock;
	const struct stream_wait_condition what = {.ready = recv_wait_is_over,
	                                           .iov_memory = r->iov_iter->many,
	                                           .seen = r->skip,
	                                           .spin = &sock->rx_spin,
	                                           .deadline_ns = deadline_ns,
	                                           .spin_loops = vma_engine_get_or_start()->conf.rx_poll,
	                                           .shadow_fd = -1};

	return stream_is_in_own_callback(sock) ? -EDEADLK : stream_wait(sock, &what);
}

/* ---- the loop ---- */

static size_t recv_min_bytes(const struct stream_sock *sock, const struct vma_inet_iov_iter *iov_iter, int flags)
{
	size_t lowat = atomic_load_explicit(&sock->rcvlowat, memory_order_relaxed);
	size_t target = flags & MSG_WAITALL || iov_iter->left < lowat ? iov_iter->left : lowat;

	return target != 0 ? target : 1;
}

/* A read that is not satisfied: 0 it goes on, 1 it ends with what it has, -errno or (end of stream) -ENODATA. */
static int recv_call_wait_for_more(struct reading *r, const struct vma_tcp_conn *conn, bool nonblocking,
                                   uint64_t *deadline_ns)
{
	struct stream_sock *sock = r->sock;
	ssize_t rc;

	if (r->done != 0) {
		if (nonblocking)
			return 1;
		if (recv_must_end_early(sock,
		                        conn)) /* what came before the end, since it was looked, is still to be taken */
			return vma_tcp_readable_bytes(conn) > r->skip ? 0 : 1;
	} else {
		rc = recv_answer_when_empty(sock, conn);
		if (rc != -EAGAIN)
			return rc == 0 ? 1 : (int)rc;
		if (nonblocking)
			return vma_tcp_readable_bytes(conn) != 0 ? 0 : -EAGAIN;
	}
	if (*deadline_ns == 0)
		*deadline_ns = vma_inet_deadline(atomic_load_explicit(&sock->rcvtimeo_ns, memory_order_relaxed));
	rc = recv_wait_for_bytes(r, *deadline_ns);
	if (rc > 0)
		return 0;
	return r->done != 0 ? 1 : rc < 0 ? (int)rc : -EAGAIN;
}

static inline int stream_poll_rings_of_socket(struct stream_sock *sock, bool nonblocking)
{
	const uint64_t rings = stream_ring_bits(&sock->file);

	return nonblocking ? vma_ring_ctxs_catch_up(rings) : vma_ring_ctxs_progress(rings);
}

/*
 * Held by stream_call_enter. is_blind: it looks for packets only while it waits. -ESTALE: the connection has been
 * handed over to the kernel, and nothing was read.
 */
static inline __attribute__((always_inline)) ssize_t recv_loop_until_enough_bytes(struct reading *r, size_t target,
                                                                                  bool nonblocking, bool is_blind)
{
	struct stream_sock *sock = r->sock;
	uint64_t deadline_ns = 0;
	unsigned steps = 0;
	int rc;

	for (;;) {
		struct vma_tcp_conn *conn = stream_tcp_conn(sock);

		if (conn != NULL) {
			if (r->iov_iter->left == 0 && vma_tcp_readable_bytes(conn) > r->skip)
				return (ssize_t)r->done;
			recv_call_dequeue_with_lock(r, conn);
			if (r->done >= target || r->at_mark || r->fault || (r->done != 0 && r->iov_iter->left == 0)) {
				if (!is_blind)
					stream_drive_rings_if_overdue(vma_thread_self());
				return r->done == 0 ? -EFAULT : (ssize_t)r->done;
			}
			if (!is_blind && steps < (nonblocking ? VMA_RING_CTXS_STEPS : 1)) {
				if (steps++ == 0)
					vma_inet_flush_sends(vma_thread_self());
				if (stream_poll_rings_of_socket(sock, nonblocking) < VMA_RING_CTXS_FULL)
					steps = VMA_RING_CTXS_STEPS;
				continue;
			}
		} else if (r->done != 0) {
			r->is_moved = sock->file.os_only;
			return (ssize_t)r->done;
		}
		r->is_moved = sock->file.os_only;
		if (__builtin_expect(r->is_moved, 0))
			return r->done != 0 ? (ssize_t)r->done : -ESTALE;
		rc = recv_call_wait_for_more(r, conn, nonblocking, &deadline_ns);
		if (rc == 0)
			continue;
		/* It may have been handed over since: an end or error that this made is none (sock.h, os_only). */
		if (__builtin_expect(r->done == 0 && rc != -EINTR && sock->file.os_only, 0))
			return -ESTALE;
		return rc > 0 ? (ssize_t)r->done : rc;
	}
}

/* ---- urgent data ---- */

static ssize_t receive_urgent(struct stream_sock *sock, struct msghdr *msg, struct vma_inet_iov_iter *iov_iter,
                              int flags)
{
	struct vma_tcp_conn *conn = stream_tcp_conn(sock);
	uint8_t byte;
	int rc;

	if (conn == NULL)
		return -EINVAL;
	vma_ring_ctxs_catch_up(stream_ring_bits(&sock->file));
	stream_io_lock_acquire(&sock->reader);
	rc = vma_tcp_read_urgent_byte(conn, &byte, (flags & MSG_PEEK) != 0);
	stream_io_lock_release(&sock->reader);
	if (rc < 0)
		return rc;
	if (rc == 0)
		return recv_must_end_early(sock, conn) ? 0 : -EAGAIN;
	msg->msg_flags |= MSG_OOB;
	if (iov_iter->left == 0) {
		msg->msg_flags |= MSG_TRUNC;
		return 0;
	}
	if (!(flags & MSG_TRUNC) && vma_inet_iov_iter_write(iov_iter, &byte, 1) == 0)
		return -EFAULT;
	return 1;
}

/* ---- recv ---- */

void stream_count_received(const struct stream_sock *sock, ssize_t len, int flags)
{
	struct vma_stats_socket *stats = sock->stats;

	if (stats == NULL)
		return;
	if (len >= 0) {
		vma_stats_add(&stats->rx_packets, 1);
		vma_stats_add(&stats->rx_bytes, (uint64_t)len);
		if (__builtin_expect(flags & MSG_PEEK, 0)) {
			vma_stats_add(&stats->rx_peeks, 1);
			vma_stats_add(&stats->rx_peek_bytes, (uint64_t)len);
		}
	} else if (len == -EAGAIN) {
		vma_stats_add(&stats->rx_eagain, 1);
	} else {
		vma_inet_count_failed_call(stats, &stats->rx_errors, len);
	}
}

/* TCP_INQ: what is left to be read; the end of the stream counts as a byte, so that a program reads until it has it. */
static void put_cmsg_inq(const struct stream_sock *sock, struct msghdr *msg)
{
	const struct vma_tcp_conn *conn = stream_tcp_conn(sock);
	bool fin = atomic_load_explicit(&sock->fin_seen, memory_order_acquire);
	uint64_t bytes = (conn != NULL ? vma_tcp_readable_bytes(conn) : 0) + fin;
	int left = bytes < INT32_MAX ? (int)bytes : INT32_MAX;

	/* As with the kernel, a bad pointer loses the message and no bytes. */
	if (stream_put_cmsg(msg, SOL_TCP, TCP_CM_INQ, &left, sizeof(left)) < 0)
		msg->msg_controllen = 0;
}

/* Of a connection nobody else is asked, and of all others the kernel. */
static bool recv_is_served_by_os(const struct stream_sock *sock)
{
	enum stream_sock_phase phase = stream_sock_phase(sock);

	return sock->file.os_only || phase == STREAM_FRESH || phase == STREAM_LISTENING;
}

/*
 * MSG_WAITALL waits on for what is left. An error of the kernel's is left for the next call, as after any bytes. The
 * socket may be freed when it returns: nothing holds it, and another thread may close it meanwhile.
 */
static ssize_t __attribute__((cold, noinline))
recv_rest_by_os(int fd, struct msghdr *msg, struct vma_inet_iov_iter *iov_iter, int flags)
{
	struct msghdr rest = vma_inet_iov_iter_rest_as_msghdr(iov_iter);
	ssize_t received;

	rest.msg_control = msg->msg_control;
	rest.msg_controllen = msg->msg_controllen;
	received = vma_inet_os_recv(fd, &rest, flags);
	msg->msg_controllen = received >= 0 ? rest.msg_controllen : 0;
	msg->msg_namelen = 0;
	return received > 0 ? received : 0;
}

/* Inlined with each value of is_blind, so that the usual one costs nothing. */
static inline __attribute__((always_inline)) ssize_t stream_receive(struct vma_file *file, int fd, struct msghdr *msg,
                                                                    int flags, bool is_blind)
{
	struct stream_sock *sock = stream_sock(file);
	struct vma_inet_iov_iter iov_iter;
	struct reading r = {.sock = sock, .iov_iter = &iov_iter, .flags = flags};
	ssize_t rc;
	int error;

	/* A tx batch need not leave before bytes that have come already are read. */
	if (recv_is_served_by_os(sock) || flags & (MSG_ERRQUEUE | MSG_OOB) ||
	    !stream_thread_has_batched_sends(vma_thread_self()))
		vma_inet_flush_sends(vma_thread_self());
	if (__builtin_expect(recv_is_served_by_os(sock), 0)) {
		error = sock->file.os_only || flags & MSG_ERRQUEUE ? 0 : atomic_exchange(&sock->so_error, 0);
		return error != 0 ? -error : vma_inet_os_recv(fd, msg, flags);
	}
	if (__builtin_expect(flags & MSG_ERRQUEUE, 0))
		return stream_recv_zerocopy_notification(sock, msg);
	rc = vma_inet_iov_iter_init_from_msghdr(&iov_iter, msg);
	msg->msg_flags = flags & MSG_CMSG_CLOEXEC; /* the kernel leaves it there */
	if (rc == 0 && __builtin_expect(flags & MSG_OOB, 0)) {
		rc = receive_urgent(sock, msg, &iov_iter, flags);
	} else if (rc == 0) {
		bool nonblocking =
		        flags & MSG_DONTWAIT || atomic_load_explicit(&sock->nonblocking, memory_order_relaxed);

		rc = -EBADF;
		if (stream_call_enter(sock)) {
			rc = recv_loop_until_enough_bytes(&r, recv_min_bytes(sock, &iov_iter, flags), nonblocking,
			                                  is_blind);
			stream_call_leave(sock);
		}
		if (__builtin_expect(r.is_moved, 0) && rc > 0 && !nonblocking && iov_iter.left != 0 &&
		    (flags & (MSG_WAITALL | MSG_PEEK)) == MSG_WAITALL) {
			stream_count_received(sock, rc, flags);
			rc += recv_rest_by_os(fd, msg, &iov_iter, flags);
			vma_inet_iov_iter_release(&iov_iter);
			return rc;
		}
	}
	vma_inet_iov_iter_release(&iov_iter);
	if (__builtin_expect(rc == -ESTALE, 0))
		return vma_inet_os_recv(fd, msg, flags);
	if (__builtin_expect(rc <= 0 && rc != -EAGAIN, 0) && atomic_load(&stream_process_is_exiting))
		stream_sleep_until_exit_deadline();
	if (__builtin_expect(atomic_load_explicit(&sock->inq, memory_order_relaxed), 0) && rc >= 0)
		put_cmsg_inq(sock, msg);
	else
		msg->msg_controllen = 0;
	msg->msg_namelen = 0;
	stream_count_received(sock, rc, flags);
	return rc;
}

ssize_t stream_recvmsg(struct vma_file *file, int fd, struct msghdr *msg, int flags)
{
	return stream_receive(file, fd, msg, flags, false);
}

static bool recv_skips_ring_poll(const struct stream_sock *sock)
{
	return sock->skips_looks == VMA_SKIP_POLL_ALWAYS ||
	       (sock->skips_looks == VMA_SKIP_POLL_IN_EPOLL &&
	        atomic_load_explicit(&sock->file.watchers, memory_order_relaxed) != NULL);
}

ssize_t stream_recvmsg_polling_now_and_then(struct vma_file *file, int fd, struct msghdr *msg, int flags)
{
	struct stream_sock *sock = stream_sock(file);
	const struct vma_tcp_conn *conn = stream_tcp_conn(sock);

	if (recv_skips_ring_poll(sock)) {
		vma_inet_flush_sends(vma_thread_self()); /* else a look would make them leave */
		return stream_receive(file, fd, msg, flags, true);
	}
	if (conn != NULL && vma_inet_drain_is_due(&sock->drain, vma_tcp_readable_bytes(conn) != 0))
		vma_ring_ctxs_progress(stream_ring_bits(file));
	return stream_receive(file, fd, msg, flags, false);
}
