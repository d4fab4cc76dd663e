/*
 * send.c - bytes out: from the application into the connection's fifo, as the kernel's tcp_sendmsg orders its answers.
 *
 *   send ── room: reserve, copy, commit ──┬─ all is in: done
 *                                         └─ wait for room (a blocking call sends everything)
 *
 * A server that was told of several descriptors at once answers one after the other. Its sends are queued meanwhile as
 * a tx batch, as datagrams in a row are. The batch leaves with the eighth send, or after 20 us. It also leaves with any
 * call other than a send or a receive of bytes that have come already. Without a call the internal thread sends it
 * after a millisecond. So a header and the body after it become one segment, and answers share a run of the protocol
 * and a kick. If the thread's connections are closed once they are answered (forking.c), one descriptor is enough: the
 * close sends both. Otherwise a thread that was told of one descriptor, or that waits in a blocking call, sends at
 * once. So does every thread under the latency profile.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>

#include "stream_priv.h"

enum { SPANS = 8, QUEUED_MAX = 8, QUEUED_NS = 20000, AT_ONCE = 32768 };

/* ---- the kernel's part ---- */

ssize_t stream_send_by_kernel(int fd, const struct msghdr *msg, int flags)
{
	struct vma_thread *self = vma_thread_self();
	ssize_t len;

	vma_leave(self);
	len = vma_inet_os_send(fd, msg, flags);
	vma_enter();
	return len;
}

/* ---- errors ---- */

/*
 * The kernel's sk_stream_error: an error that waits comes instead of EPIPE, and EPIPE with a signal, which this thread
 * gets when it leaves.
 */
static ssize_t send_take_error_or_raise_sigpipe(struct stream_sock *sock, int flags)
{
	int error = atomic_exchange(&sock->so_error, 0);

	if (error == 0)
		error = EPIPE;
	if (error == EPIPE && !(flags & MSG_NOSIGNAL) && !atomic_load(&stream_process_is_exiting))
		syscall(SYS_tgkill, syscall(SYS_getpid), syscall(SYS_gettid), SIGPIPE);
	return -error;
}

static bool send_has_failed(const struct stream_sock *sock)
{
	return atomic_load_explicit(&sock->so_error, memory_order_relaxed) != 0 ||
	       atomic_load_explicit(&sock->shut_wr, memory_order_relaxed);
}

/* ---- batched sends ---- */

static bool send_may_join_tx_batch(const struct vma_thread *self, const struct stream_sock *sock, int flags)
{
	return self->tx_batch != 0 && sock->engine != NULL && !sock->engine->latency && !(flags & MSG_OOB);
}

bool stream_thread_has_batched_sends(const struct vma_thread *self)
{
	return self->tx_batched != 0 &&
	       (int64_t)(vma_tsc() - self->tx_batched_tsc) < (int64_t)vma_tsc_of_nsec(QUEUED_NS);
}

/* After the send: see vma_engine_flush_rings_within_1ms. The fence stands for the release of a flag there. */
static void tx_batch_count_send_queued_on_ring(struct vma_thread *self, struct vma_ring *ring, uint64_t ring_ctxs)
{
	if (self->tx_ring != ring) {
		vma_inet_flush_sends(self);
		self->tx_ring = ring;
	}
	if (self->tx_batched++ == 0)
		self->tx_batched_tsc = vma_tsc();
#ifndef VMA_SOCK_TSAN /* which knows no fences; x86 needs none after what was exchanged */
	atomic_thread_fence(memory_order_seq_cst);
#endif
	vma_engine_flush_rings_within_1ms(ring_ctxs);
}

/* ---- a call ---- */

struct writing {
	struct stream_sock *sock;
	struct vma_inet_iov_iter *iov_iter; /* NULL: from a descriptor, */
	int in;
	int64_t position; /* and there; -1: a pipe's next */
	size_t in_remaining;
	int flags;
	size_t done;
	int refused; /* by a control message that is not understood: nothing is sent */
	uint64_t deadline_ns;
	bool is_moved; /* what is left is the kernel's to send: the connection was handed over to it */
	bool nonblocking;
	bool stays;            /* stream_call_enter: it may wait */
	bool unpushed;         /* committed, and not sent yet */
	bool queues;           /* what is committed last goes into a tx batch, */
	struct vma_ring *ring; /* here */
};

/* ---- waiting ---- */

static bool send_connecting_is_over(struct stream_sock *sock, const struct stream_wait_condition *what)
{
	(void)what;
	return stream_sock_phase(sock) != STREAM_CONNECTING;
}

/* As the kernel's: again when a third of the buffer is free. */
static bool stream_is_writeable(struct stream_sock *sock, const struct stream_wait_condition *what)
{
	const struct vma_tcp_conn *conn = stream_tcp_conn(sock);

	(void)what;
	return conn == NULL || send_has_failed(sock) || (vma_tcp_poll_events(conn) & (EPOLLOUT | EPOLLHUP)) != 0;
}

static int send_wait_until(struct writing *w,
                           bool (*ready)(struct stream_sock *sock, const struct stream_wait_condition *what))
{
	struct stream_sock *sock = w->sock;
	struct stream_wait_condition what = {.ready = ready,
	                                     .iov_memory = w->iov_iter != NULL ? w->iov_iter->many : NULL,
	                                     .spin = &sock->tx_spin,
	                                     .spin_loops = vma_engine_get_or_start()->conf.rx_poll,
	                                     .shadow_fd = -1};
	int rc;

	vma_inet_flush_sends(vma_thread_self());
	if (w->deadline_ns == 0)
		w->deadline_ns = vma_inet_deadline(atomic_load_explicit(&sock->sndtimeo_ns, memory_order_relaxed));
	what.deadline_ns = w->deadline_ns;
	if (sock->stats != NULL)
		vma_stats_add(&sock->stats->tx_waits, 1);
	rc = stream_wait(sock, &what);
	return rc > 0 ? 0 : rc < 0 ? rc : -EAGAIN;
}

/* ---- giving ---- */

/* What is not the last of a call may still be sent by itself: room for the rest may depend on that. */
static unsigned send_commit_flags(const struct writing *w, bool last)
{
	if (!last)
		return VMA_TCP_TX_LATER;
	return (w->flags & MSG_MORE ? VMA_TCP_TX_MORE : 0) | (w->flags & MSG_OOB ? VMA_TCP_TX_URGENT : 0) |
	       (w->queues ? VMA_TCP_TX_QUEUE : 0);
}

/* Nothing is sent, which fails like anything else where nothing can be. */
static int send_check_zero_length_send(const struct writing *w, const struct vma_tcp_conn *conn)
{
	if (stream_kernel_view_of_state(conn) == TCP_CLOSE)
		return -EPIPE;
	return w->refused != 0 ? w->refused : 1;
}

static size_t send_call_remaining_bytes(const struct writing *w)
{
	return w->iov_iter != NULL ? w->iov_iter->left : w->in_remaining;
}

/*
 * The kernel copies 32 KB at a time, of which all is sent or, where it meets a fault, nothing: what is a little gets
 * EFAULT, of much the whole ones before it are sent, and the call ends.
 */
static ssize_t __attribute__((cold, noinline)) send_stop_before_fault(struct writing *w, size_t copied)
{
	copied -= copied % AT_ONCE;
	if (copied == 0)
		return -EFAULT;
	w->iov_iter->left = 0;
	return (ssize_t)copied;
}

static ssize_t send_copy_iov_into_fifo(struct writing *w, const struct iovec *spans, int n)
{
	size_t copied = 0;

	for (int i = 0; i < n && w->iov_iter->left > 0; i++) {
		size_t left = w->iov_iter->left, wanted = spans[i].iov_len < left ? spans[i].iov_len : left;
		size_t here = vma_inet_iov_iter_read(w->iov_iter, spans[i].iov_base, wanted);

		copied += here;
		if (__builtin_expect(here < wanted, 0))
			return send_stop_before_fault(w, copied);
	}
	return (ssize_t)copied;
}

/* Straight into the fifo. A pipe that has nothing is not waited for: the writer's turn is held. */
static ssize_t send_read_fd_into_fifo(struct writing *w, struct iovec *spans, int n)
{
	const int64_t at = w->position;
	size_t room = 0;
	ssize_t got;

	for (int i = 0; i < n; i++) {
		if (spans[i].iov_len > w->in_remaining - room)
			spans[i].iov_len = w->in_remaining - room;
		room += spans[i].iov_len;
	}
	got = syscall(SYS_preadv2, w->in, spans, n, (long)at, (long)(at < 0 ? -1 : 0), at < 0 ? RWF_NOWAIT : 0);
	if (got < 0)
		return -errno;
	if (got == 0)
		w->in_remaining = 0; /* its end */
	w->in_remaining -= (size_t)got;
	if (at >= 0)
		w->position += got;
	return got;
}

/* As much as there is room for now: 0 (none), 1, -errno. The writer's turn is held. */
static int send_call_copy_in(struct writing *w, struct vma_tcp_conn *conn)
{
	struct iovec spans[SPANS];
	ssize_t copied;
	int n = vma_tcp_tx_reserve(conn, send_call_remaining_bytes(w), spans, SPANS);

	if (n <= 0)
		return n;
	copied = w->iov_iter != NULL ? send_copy_iov_into_fifo(w, spans, n) : send_read_fd_into_fifo(w, spans, n);
	if (copied > 0) {
		w->unpushed = send_call_remaining_bytes(w) != 0;
		vma_tcp_tx_commit(conn, (size_t)copied, send_commit_flags(w, !w->unpushed));
		w->done += (size_t)copied;
		w->ring = vma_tcp_ring(vma_tcp_conn_current_stack(conn));
	}
	return copied < 0 ? (int)copied : 1;
}

/*
 * A call that has not waited yet has not said that it stays (stream_call_enter, two locked operations): the turn does
 * instead. Who closes the socket has taken its last descriptor out, and then waits for the turn once before he ends it:
 * what has the turn before him is sent, and what has it after him finds that there is no such descriptor.
 */
static int send_copy_in_and_push_under_lock(struct writing *w, struct vma_tcp_conn *conn)
{
	int rc = -EBADF;

	stream_io_lock_acquire(&w->sock->writer);
	if (__builtin_expect(!w->stays && stream_has_ended(w->sock), 0)) {
		stream_io_lock_release(&w->sock->writer);
		return rc;
	}
	do
		rc = send_call_copy_in(w, conn);
	while (rc > 0 && send_call_remaining_bytes(w) > 0);
	if (w->unpushed)
		vma_tcp_send_committed(conn);
	w->unpushed = false;
	stream_io_lock_release(&w->sock->writer);
	return rc;
}

/* Whoever closes the socket from now on leaves the end of it to this call. False: that was before. */
static bool send_call_hold_socket(struct writing *w)
{
	if (!w->stays)
		w->stays = stream_call_enter(w->sock);
	return w->stays;
}

/* No room: 0 there is some now; -EAGAIN, -EINTR; others as they are. */
static int send_call_wait_for_space(struct writing *w, bool *driven)
{
	const struct vma_tcp_conn *conn = stream_tcp_conn(w->sock);

	if (conn != NULL && vma_tcp_tx_space(conn) != 0)
		return 0; /* what has just been pushed has left: TCP_NOTSENT_LOWAT asks for no more */
	if (!*driven) {
		*driven = true;
		vma_ring_ctxs_catch_up(stream_ring_bits(&w->sock->file));
		return 0;
	}
	if (w->nonblocking) {
		if (w->sock->stats != NULL)
			vma_stats_add(&w->sock->stats->tx_eagain, 1);
		return -EAGAIN;
	}
	if (!send_call_hold_socket(w))
		return -EBADF;
	return send_wait_until(w, stream_is_writeable);
}

/* Part of a call's bytes may be in when a fault, a signal or an end stops the rest. */
static ssize_t send_loop_until_all_bytes_queued(struct writing *w)
{
	struct stream_sock *sock = w->sock;
	bool driven = false;
	int rc = 0;

	for (;;) {
		struct vma_tcp_conn *conn = stream_tcp_conn(sock);

		if (conn == NULL || send_has_failed(sock) || stream_sock_phase(sock) != STREAM_CONNECTED)
			rc = -EPIPE;
		else
			rc = send_call_remaining_bytes(w) != 0 && w->refused == 0
			             ? send_copy_in_and_push_under_lock(w, conn)
			             : send_check_zero_length_send(w, conn);
		if (rc > 0)
			return (ssize_t)w->done;
		if (rc == 0)
			rc = send_call_wait_for_space(w, &driven);
		if (rc == 0)
			continue;
		w->is_moved = rc == -EPIPE && sock->file.os_only;
		if (w->done != 0)
			return (ssize_t)w->done;
		if (!w->stays && stream_has_ended(sock))
			return -EBADF;
		if (__builtin_expect(sock->file.os_only, 0))
			return -ESTALE; /* handed over to the kernel */
		return rc == -EPIPE ? send_take_error_or_raise_sigpipe(sock, w->flags) : rc;
	}
}

/* sk_stream_wait_connect */
static ssize_t __attribute__((cold, noinline)) send_wait_for_connection_then_send(struct writing *w)
{
	struct stream_sock *sock = w->sock;
	int rc = 0;

	if (!send_call_hold_socket(w))
		return -EBADF;
	vma_ring_ctxs_catch_up(
	        stream_ring_bits(&sock->file)); /* a refusal that has come is known before connect is back */
	if (stream_sock_phase(sock) == STREAM_CONNECTING)
		rc = w->nonblocking ? -EAGAIN : send_wait_until(w, send_connecting_is_over);
	return rc == 0 ? send_loop_until_all_bytes_queued(w) : rc;
}

static ssize_t send_run_and_note_zerocopy(struct writing *w)
{
	struct stream_sock *sock = w->sock;
	ssize_t rc;

	/* A descriptor may keep the turn waiting, and a notice is queued after the bytes. */
	if (__builtin_expect(w->iov_iter == NULL || w->flags & MSG_ZEROCOPY, 0) && !send_call_hold_socket(w))
		return -EBADF;
	rc = stream_sock_phase(sock) == STREAM_CONNECTING ? send_wait_for_connection_then_send(w)
	                                                  : send_loop_until_all_bytes_queued(w);
	if (rc > 0 && w->flags & MSG_ZEROCOPY && atomic_load_explicit(&sock->zerocopy, memory_order_relaxed))
		stream_queue_zerocopy_notification(sock);
	if (__builtin_expect(w->stays, 0))
		stream_call_leave(sock);
	return rc;
}

/* ---- send ---- */

static void stream_count_sent(const struct stream_sock *sock, ssize_t len)
{
	struct vma_stats_socket *stats = sock->stats;

	if (stats == NULL)
		return;
	if (len >= 0) {
		vma_stats_add(&stats->tx_packets, 1);
		vma_stats_add(&stats->tx_bytes, (uint64_t)len);
	} else if (len != -EAGAIN) {
		vma_inet_count_failed_call(stats, &stats->tx_errors, len);
	}
}

static bool send_is_served_by_os(const struct stream_sock *sock)
{
	enum stream_sock_phase phase = stream_sock_phase(sock);

	return sock->file.os_only || phase == STREAM_FRESH || phase == STREAM_LISTENING;
}

/* With MSG_FASTOPEN it connects, and the connection is the kernel's. */
static ssize_t send_by_os(struct stream_sock *sock, int fd, const struct msghdr *msg, int flags)
{
	if (flags & VMA_SND_FLAGS_DUMMY)
		return -EINVAL;
	if (flags & MSG_FASTOPEN && !sock->file.os_only && stream_sock_phase(sock) == STREAM_FRESH) {
		pthread_mutex_lock(&sock->file.lock);
		sock->file.os_only = true;
		atomic_store(&sock->reason, VMA_SOCK_OPTION);
		stream_describe_for_stats(sock);
		pthread_mutex_unlock(&sock->file.lock);
		vma_file_set_poll_without_shadow(&sock->file, false);
	}
	if (!sock->file.os_only && atomic_load_explicit(&sock->so_error, memory_order_relaxed) != 0)
		return send_take_error_or_raise_sigpipe(sock, flags);
	return stream_send_by_kernel(fd, msg, flags);
}

static ssize_t stream_write_by_stack(struct writing *w)
{
	struct vma_thread *self = vma_thread_self();
	struct stream_sock *sock = w->sock;
	const bool batched = send_may_join_tx_batch(self, sock, w->flags);
	ssize_t rc;

	if (batched)
		self->tx_batch--;
	else
		vma_inet_flush_sends(self);
	w->queues = batched && (self->tx_batched == 0 ||
	                        (self->tx_batched < QUEUED_MAX - 1 && stream_thread_has_batched_sends(self)));
	w->nonblocking = w->flags & MSG_DONTWAIT || atomic_load_explicit(&sock->nonblocking, memory_order_relaxed);
	rc = send_run_and_note_zerocopy(w);
	if (w->queues && rc > 0)
		tx_batch_count_send_queued_on_ring(self, w->ring, stream_ring_bits(&sock->file));
	else if (batched)
		vma_inet_flush_sends(self);
	stream_drive_rings_if_overdue(self);
	if (__builtin_expect(sock->polls_on_send, 0))
		vma_ring_ctxs_catch_up(stream_ring_bits(&sock->file));
	return rc;
}

/*
 * A call that blocks ends when all is said. An error of the kernel's is left for the next one, as after any bytes. The
 * socket may be freed when it returns: nothing holds it, and another thread may close it meanwhile.
 */
static ssize_t __attribute__((cold, noinline)) send_rest_by_os(int fd, struct vma_inet_iov_iter *iov_iter, int flags)
{
	const struct msghdr rest = vma_inet_iov_iter_rest_as_msghdr(iov_iter);
	const ssize_t sent = stream_send_by_kernel(fd, &rest, (flags & ~MSG_ZEROCOPY) | MSG_NOSIGNAL);

	return sent > 0 ? sent : 0;
}

/* ---- dummies ---- */

/* Into the fifo's room, which is not committed; from there as a segment. The writer's turn is held. */
static ssize_t send_dummy_copy_via_tx_fifo_uncommitted(struct writing *w, struct vma_tcp_conn *conn)
{
	const size_t wanted = w->iov_iter->left < AT_ONCE ? w->iov_iter->left : AT_ONCE;
	struct iovec spans[SPANS];
	ssize_t copied;
	int n;

	if (wanted == 0)
		return 0;
	n = vma_tcp_tx_reserve(conn, wanted, spans, SPANS);
	if (n <= 0)
		return n < 0 ? n : -EAGAIN;
	copied = send_copy_iov_into_fifo(w, spans, n);
	if (copied > 0)
		vma_tcp_tx_dummy(conn, spans[0].iov_base,
		                 spans[0].iov_len < (size_t)copied ? spans[0].iov_len : (size_t)copied);
	return copied;
}

/* Its length, also of what would not fit now; nothing is waited for, and no error that waits is taken. */
static ssize_t __attribute__((cold, noinline)) send_dummy_bytes_to_warm_tx_path(struct writing *w)
{
	struct stream_sock *sock = w->sock;
	struct vma_tcp_conn *conn = stream_tcp_conn(sock);
	const size_t left = w->iov_iter->left;
	ssize_t rc = -EBADF;

	if (stream_sock_phase(sock) == STREAM_CONNECTING)
		return -EAGAIN;
	if (conn == NULL || send_has_failed(sock) || stream_sock_phase(sock) != STREAM_CONNECTED)
		return -EPIPE;
	stream_io_lock_acquire(&sock->writer);
	if (!stream_has_ended(sock))
		rc = sock->file.os_only ? -EINVAL : send_dummy_copy_via_tx_fifo_uncommitted(w, conn);
	stream_io_lock_release(&sock->writer);
	if (rc < 0)
		return rc;
	if (sock->stats != NULL)
		vma_stats_add(&sock->stats->tx_dummies, 1);
	return (ssize_t)left;
}

void stream_send_dummy_byte_to_warm_tx_path(struct stream_sock *sock)
{
	static const char byte[1];
	struct iovec piece = {.iov_base = (char *)(uintptr_t)byte, .iov_len = sizeof(byte)};
	const struct msghdr msg = {.msg_iov = &piece, .msg_iovlen = 1};
	struct vma_inet_iov_iter iov_iter;
	struct writing w = {.sock = sock, .iov_iter = &iov_iter};

	if (!send_is_served_by_os(sock) && vma_inet_iov_iter_init_from_msghdr(&iov_iter, &msg) == 0) {
		send_dummy_bytes_to_warm_tx_path(&w);
		vma_inet_iov_iter_release(&iov_iter);
	}
}

ssize_t stream_sendmsg(struct vma_file *file, int fd, const struct msghdr *msg, int flags)
{
	struct stream_sock *sock = stream_sock(file);
	struct vma_inet_iov_iter iov_iter;
	struct writing w = {.sock = sock, .iov_iter = &iov_iter, .flags = flags};
	ssize_t rc;

	if (__builtin_expect(send_is_served_by_os(sock), 0)) {
		vma_inet_flush_sends(vma_thread_self());
		return send_by_os(sock, fd, msg, flags);
	}
	rc = vma_inet_iov_iter_init_from_msghdr(&iov_iter, msg);
	if (__builtin_expect(rc == 0 && flags & (MSG_FASTOPEN | VMA_SND_FLAGS_DUMMY), 0)) {
		rc = flags & VMA_SND_FLAGS_DUMMY ? 0 : -EISCONN;
		if (rc == 0 && msg->msg_controllen != 0)
			rc = stream_check_send_cmsgs(msg);
		if (rc == 0)
			rc = send_dummy_bytes_to_warm_tx_path(&w);
		vma_inet_iov_iter_release(&iov_iter);
		if (rc < 0)
			stream_count_sent(sock, rc);
		return rc;
	}
	if (rc == 0) {
		w.refused = msg->msg_controllen != 0 ? stream_check_send_cmsgs(msg) : 0;
		rc = stream_write_by_stack(&w);
	}
	if (__builtin_expect(w.is_moved, 0) && rc > 0 && !w.nonblocking && iov_iter.left != 0) {
		stream_count_sent(sock, rc);
		rc += send_rest_by_os(fd, &iov_iter, flags);
		vma_inet_iov_iter_release(&iov_iter);
		return rc;
	}
	vma_inet_iov_iter_release(&iov_iter);
	if (__builtin_expect(rc == -ESTALE, 0))
		return stream_send_by_kernel(fd, msg, flags);
	if (__builtin_expect(rc == -EPIPE, 0) && atomic_load(&stream_process_is_exiting))
		stream_sleep_until_exit_deadline();
	stream_count_sent(sock, rc);
	return rc;
}

/* ---- from a descriptor ---- */

bool vma_stream_is_connection(struct vma_file *file)
{
	return file->kind == VMA_FILE_TCP && !send_is_served_by_os(stream_sock(file));
}

/* It has been handed over to the kernel meanwhile. */
static ssize_t sendfile_by_kernel(struct stream_sock *sock, const struct writing *w)
{
	struct vma_thread *self = vma_thread_self();
	int fd = atomic_load(&sock->file.fd);
	off_t at = w->position;
	ssize_t rc;

	vma_leave(self); /* it may block */
	if (w->position >= 0)
		rc = syscall(SYS_sendfile, fd, w->in, &at, w->in_remaining);
	else
		rc = syscall(SYS_splice, w->in, NULL, fd, NULL, w->in_remaining, 0);
	if (rc < 0)
		rc = -errno;
	vma_enter();
	return rc;
}

ssize_t vma_stream_sendfile(struct vma_file *file, int in, int64_t position, size_t size, int flags)
{
	struct stream_sock *sock = stream_sock(file);
	struct writing w = {.sock = sock,
	                    .in = in,
	                    .position = position,
	                    .flags = flags,
	                    .in_remaining = size < VMA_INET_BYTES_MAX ? size : VMA_INET_BYTES_MAX};
	ssize_t rc;

	stream_count_send_for_migration(sock);
	rc = stream_write_by_stack(&w);
	if (__builtin_expect(rc == -ESTALE, 0))
		return sendfile_by_kernel(sock, &w);
	stream_count_sent(sock, rc);
	return rc;
}
