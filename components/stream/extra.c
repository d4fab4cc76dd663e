/*
 * extra.c - the Extra API on TCP: recvfrom_zcopy, and receive callbacks.
 *
 * A held packet is one piece of the stream. It is added to the table before tcp hears of it, so another thread may free
 * it before tcp counts it as held. The two counts meet in the connection's sum, which is right when both have been
 * made. A verdict other than HOLD takes the packet back. If it was freed meanwhile, tcp is told HOLD, for the bytes
 * have left the sum already.
 */
#include "extra.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

static void on_held_piece_returned(struct vma_held_packets_owner *holder, uint64_t connection, uint32_t bytes)
{
	if (connection != 0)
		vma_stream_return_held_zcopy_bytes(holder->file, connection, bytes, 1);
}

static bool extra_run_callback(struct vma_callback_source *source);

/* NULL: no memory. Any thread. */
static struct stream_extra_api *stream_extra_get_or_create(struct stream_sock *sock)
{
	struct stream_extra_api *extra = atomic_load_explicit(&sock->extra, memory_order_acquire), *none = NULL;

	if (extra != NULL)
		return extra;
	extra = vma_alloc(sizeof(*extra));
	if (extra == NULL)
		return NULL;
	extra->sock = sock;
	extra->holder.file = extra->source.file = &sock->file;
	extra->holder.returned = on_held_piece_returned;
	extra->source.run = extra_run_callback;
	pthread_mutex_init(&extra->lock, NULL);
	if (atomic_compare_exchange_strong(&sock->extra, &none, extra))
		return extra;
	pthread_mutex_destroy(&extra->lock);
	vma_free(extra);
	return none;
}

/* What is held is the parent's, and counts there. A callback that is running goes on, here as well. */
void stream_extra_reset_in_fork_child(struct stream_sock *sock)
{
	struct stream_extra_api *extra = atomic_load(&sock->extra);

	if (extra == NULL)
		return;
	pthread_mutex_init(&extra->lock, NULL);
	atomic_store(&extra->holder.bytes, 0);
	atomic_store(&extra->holder.packets, 0);
	atomic_store(&extra->source.again, false);
	if (!vma_callback_source_is_running_here(&extra->source))
		atomic_store(&extra->source.running, false);
	if (atomic_exchange(&extra->source.queued, false))
		vma_file_put(&sock->file);
}

void stream_extra_destroy(struct stream_sock *sock)
{
	struct stream_extra_api *extra = atomic_exchange(&sock->extra, NULL);

	if (extra == NULL)
		return;
	pthread_mutex_destroy(&extra->lock);
	vma_free(atomic_load(&extra->callback));
	vma_free(extra);
}

bool stream_is_in_own_callback(const struct stream_sock *sock)
{
	const struct stream_extra_api *extra = atomic_load_explicit(&sock->extra, memory_order_acquire);

	return extra != NULL && vma_callback_source_is_running_here(&extra->source);
}

/* ---- receive without a copy ---- */

struct zcopy_lending {
	struct stream_extra_api *extra;
	struct vma_recv_zcopy_call *lend;
};

/* As vma_stream_zcopy_taker.take. */
static int extra_lend_frame_piece(void *arg, uint64_t number, struct vma_buf *buf, uint32_t off, uint32_t len)
{
	const struct zcopy_lending *zcopy_lending = arg;
	const struct vma_fragment fragment = {.buf = buf, .off = off, .len = len};
	struct vma_bufarena *arena = vma_engine_get_or_start()->arena;
	struct vma_held_packets_owner *holder = &zcopy_lending->extra->holder;
	uint64_t id;

	if (!vma_recv_zcopy_buffer_has_room(zcopy_lending->lend, 1))
		return 1;
	vma_buf_ref(buf);
	if (vma_held_packet_add(holder, zcopy_lending->lend->fd, &fragment, 1, len, UINT64_MAX, number, &id) != 0) {
		vma_buf_put(arena, buf);
		return 1;
	}
	if (vma_recv_zcopy_add_packet(zcopy_lending->lend, arena, id, &fragment, 1) == 0 ||
	    !vma_held_packet_undo_add(holder, id))
		return 0;
	vma_buf_put(arena, buf);
	return -EFAULT;
}

/* A copy in ordinary memory of the library's, which is then held as a frame is. */
static ssize_t extra_lend_copied_buf(const struct zcopy_lending *zcopy_lending, struct vma_file *file, int fd,
                                     struct vma_buf *buf, int flags)
{
	const struct vma_engine *engine = vma_engine_get_or_start();
	struct vma_held_packets_owner *holder = &zcopy_lending->extra->holder;
	char *data = vma_buf_data(engine->arena, buf);
	struct vma_fragment fragment = {.buf = buf};
	struct iovec iov = {.iov_base = data,
	                    .iov_len = vma_bufpool_frame_size(engine->spill) -
	                               (size_t)(data - vma_buf_frame(engine->arena, buf))};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	const struct vma_tcp_conn *conn = stream_tcp_conn(zcopy_lending->extra->sock);
	const uint64_t limit = conn != NULL ? vma_tcp_rcvbuf_bytes(conn) : 0;
	uint64_t id;
	ssize_t rc;

	if (!vma_recv_zcopy_buffer_is_writable(zcopy_lending->lend))
		return -EFAULT;
	rc = vma_held_packet_add(holder, zcopy_lending->lend->fd, &fragment, 1, (uint32_t)iov.iov_len, limit, 0, &id);
	if (rc != 0)
		return rc == -ENOBUFS ? -EIO : rc;
	rc = file->ops->recvmsg(file, fd, &msg, flags | MSG_DONTWAIT);
	if (rc > 0) {
		fragment.len = (uint32_t)rc;
		if (vma_recv_zcopy_add_packet(zcopy_lending->lend, engine->arena, id, &fragment, 1) != 0)
			rc = -EFAULT;
	}
	if (rc <= 0 && vma_held_packet_undo_add(holder, id))
		vma_buf_put(engine->arena, buf);
	return rc;
}

/* As vma_stream_zcopy_taker.copy, if the application takes no copy in its own memory. */
static ssize_t extra_receive_copy_into_lent_buf(void *arg, struct vma_file *file, int fd, struct msghdr *msg, int flags)
{
	const struct zcopy_lending *zcopy_lending = arg;
	struct vma_buf *buf;
	ssize_t rc;

	if (flags & (MSG_OOB | MSG_ERRQUEUE))
		return file->ops->recvmsg(file, fd, msg, flags);
	if (flags & (MSG_PEEK | MSG_TRUNC)) {
		struct msghdr look = {0};

		rc = file->ops->recvmsg(file, fd, &look, (flags & ~MSG_TRUNC) | MSG_PEEK);
		return rc < 0 ? rc : -EIO;
	}
	if (!vma_recv_zcopy_buffer_has_room(zcopy_lending->lend, 1))
		return -ENOBUFS;
	if (vma_engine_get_or_start()->spill == NULL || vma_bufpool_get(vma_engine_get_or_start()->spill, &buf, 1) == 0)
		return -EIO;
	rc = extra_lend_copied_buf(zcopy_lending, file, fd, buf, flags);
	msg->msg_namelen = 0;
	msg->msg_controllen = 0;
	msg->msg_flags = 0;
	return rc;
}

ssize_t stream_recv_lent(struct vma_file *file, int fd, struct vma_recv_zcopy_call *lend, int flags)
{
	struct stream_sock *sock = stream_sock(file);
	const struct zcopy_lending zcopy_lending = {.extra = stream_extra_get_or_create(sock), .lend = lend};
	const struct vma_stream_zcopy_taker taker = {.take = extra_lend_frame_piece,
	                                             .copy = lend->forced ? extra_receive_copy_into_lent_buf : NULL,
	                                             .arg = (void *)&zcopy_lending};
	bool taken;
	ssize_t rc;

	if (zcopy_lending.extra == NULL)
		return -ENOMEM;
	vma_inet_flush_sends(vma_thread_self());
	rc = vma_stream_recv_zcopy_pieces(file, fd, &lend->msg, flags & ~(MSG_VMA_ZCOPY | MSG_VMA_ZCOPY_FORCE), &taker,
	                                  &taken);
	if (taken && sock->stats != NULL)
		vma_stats_add(&sock->stats->rx_zcopy, 1);
	return rc;
}

/* ---- callbacks ---- */

static struct stream_extra_api *extra_of(struct vma_callback_source *source)
{
	return (struct stream_extra_api *)((char *)source - offsetof(struct stream_extra_api, source));
}

/* Receive flag held. */
static void stream_post_recv_callback(struct vma_file *file)
{
	vma_callback_post(&atomic_load_explicit(&stream_sock(file)->extra, memory_order_acquire)->source);
}

/* Inside. The packet's number; 0: it cannot be held. */
static uint64_t extra_hold_packet(struct stream_extra_api *extra, uint64_t connection,
                                  const struct vma_tcp_rx_stream_piece *piece, int fd)
{
	struct vma_bufarena *arena = vma_engine_get_or_start()->arena;
	struct vma_fragment fragment = {.buf = piece->buf, .len = piece->len};
	uint64_t id;

	if (piece->buf == NULL)
		return 0;
	fragment.off = (uint32_t)((const char *)piece->data - vma_buf_data(arena, piece->buf));
	vma_buf_ref(piece->buf);
	if (vma_held_packet_add(&extra->holder, fd, &fragment, 1, piece->len, UINT64_MAX, connection, &id) == 0)
		return id;
	vma_buf_put(arena, piece->buf);
	return 0;
}

static struct timespec read_realtime_clock(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return now;
}

/* What a callback is told of a piece, and what becomes of the piece. */
struct question {
	struct vma_recv_callback callback;
	struct iovec iov;
	struct vma_info_t info;
	struct sockaddr_in peer, local;
	int fd;
	struct stream_extra_api *extra;
	struct vma_tcp_conn *conn;
	const struct vma_engine *engine;
	struct vma_buf *buf;
	uint64_t id; /* of the packet; 0: it cannot be held */
};

static void recv_callback_fill_args(struct question *question, struct stream_sock *sock,
                                    const struct vma_tcp_rx_stream_piece *piece)
{
	const struct vma_tcp_conn *conn = stream_tcp_conn(sock); /* another thread may close */
	const size_t queued = conn != NULL ? vma_tcp_readable_bytes(conn) : 0;

	question->iov = (struct iovec){.iov_base = piece->data, .iov_len = piece->len};
	pthread_mutex_lock(&sock->file.lock);
	question->peer = sock->peer;
	question->local = sock->name;
	pthread_mutex_unlock(&sock->file.lock);
	question->info = (struct vma_info_t){
	        .struct_sz = sizeof(question->info),
	        .packet_id = (void *)(uintptr_t)question->id,
	        .src = &question->peer,
	        .dst = &question->local,
	        .payload_sz = piece->len,
	        .socket_ready_queue_pkt_count = queued != 0,
	        .socket_ready_queue_byte_count = (uint32_t)queued,
	        .sw_timestamp = read_realtime_clock(),
	};
}

/* Inside. The callback's verdict as tcp's, which the packet has been told of. */
static enum vma_tcp_inspect_verdict recv_callback_settle(const struct question *question,
                                                         enum vma_tcp_inspect_verdict verdict)
{
	if (vma_engine_get_or_start() != question->engine)
		return VMA_TCP_GONE; /* the callback has forked, and this is the child */
	if (question->id == 0)
		return verdict == VMA_TCP_HOLD ? VMA_TCP_RECV : verdict;
	if (verdict == VMA_TCP_HOLD)
		return verdict;
	if (!vma_held_packet_undo_add(&question->extra->holder, question->id))
		return VMA_TCP_HOLD;
	vma_buf_put(question->engine->arena, question->buf);
	return verdict;
}

/* The application's thread ends in its callback, by pthread_exit or cancelled. The source is posted anew by its owner.
 */
static void recv_callback_on_thread_end(void *arg)
{
	const struct question *question = arg;
	struct vma_thread *self = vma_enter();
	const enum vma_tcp_inspect_verdict verdict = recv_callback_settle(question, VMA_TCP_DROP);

	if (verdict != VMA_TCP_GONE)
		vma_stream_inspector_has_ended(&question->extra->sock->file, question->conn, verdict);
	vma_leave(self);
}

/* Outside meanwhile. */
static vma_recv_callback_retval_t recv_callback_invoke(const struct question *question)
{
	struct question own = *question;
	vma_recv_callback_retval_t verdict;

	own.info.src = &own.peer;
	own.info.dst = &own.local;
	vma_leave(vma_thread_self());
	pthread_cleanup_push(recv_callback_on_thread_end, (void *)question);
	verdict = own.callback.function(own.fd, 1, &own.iov, &own.info, own.callback.context);
	pthread_cleanup_pop(0);
	vma_enter();
	return verdict;
}

static enum vma_tcp_inspect_verdict tcp_verdict_of_recv_callback(vma_recv_callback_retval_t verdict)
{
	return verdict == VMA_PACKET_HOLD ? VMA_TCP_HOLD : verdict == VMA_PACKET_RECV ? VMA_TCP_RECV : VMA_TCP_DROP;
}

/* A piece that was copied has no packet: HOLD receives it. */
static enum vma_tcp_inspect_verdict recv_callback_verdict_on_piece(struct vma_file *file, struct vma_tcp_conn *conn,
                                                                   const struct vma_tcp_rx_stream_piece *piece)
{
	struct stream_sock *sock = stream_sock(file);
	struct stream_extra_api *extra = atomic_load_explicit(&sock->extra, memory_order_acquire);
	const struct stream_callback *callback = atomic_load_explicit(&extra->callback, memory_order_acquire);
	struct question question;

	if (callback == NULL)
		return VMA_TCP_RECV;
	question.callback = callback->now;
	question.fd = atomic_load_explicit(&file->fd, memory_order_relaxed);
	question.extra = extra;
	question.conn = conn;
	question.engine = vma_engine_get_or_start();
	question.buf = piece->buf;
	question.id = extra_hold_packet(extra, vma_tcp_zcopy_conn_id(conn), piece, question.fd);
	recv_callback_fill_args(&question, sock, piece);
	if (sock->stats != NULL)
		vma_stats_add(&sock->stats->rx_callbacks, 1);
	return recv_callback_settle(&question, tcp_verdict_of_recv_callback(recv_callback_invoke(&question)));
}

static bool extra_run_callback(struct vma_callback_source *source)
{
	struct stream_extra_api *extra = extra_of(source);
	struct vma_thread *self = vma_enter();
	const bool more = vma_stream_inspect_received(&extra->sock->file, VMA_CALLBACK_TURN);

	vma_leave(self);
	return more;
}

static void free_retired_callback(struct vma_retired *retired)
{
	vma_free(retired);
}
_Static_assert(offsetof(struct stream_callback, retired) == 0, "callback_end");

/* The callback is there before the inspector, and goes after it. */
static int replace_recv_callback(struct vma_file *file, struct stream_extra_api *extra, struct stream_callback *fresh)
{
	static const struct vma_stream_inspector inspector = {.arrived = stream_post_recv_callback,
	                                                      .decide = recv_callback_verdict_on_piece};
	struct stream_callback *old = atomic_load(&extra->callback);
	int rc;

	if (fresh != NULL)
		atomic_store(&extra->callback, fresh);
	rc = vma_stream_set_inspector(file, fresh != NULL ? &inspector : NULL);
	if (rc != 0) {
		atomic_store(&extra->callback, old);
		return rc;
	}
	atomic_store(&extra->callback, fresh);
	if (old != NULL)
		vma_defer_free_until_no_readers(&old->retired, free_retired_callback);
	return 0;
}

int stream_set_recv_callback(struct vma_file *file, const struct vma_recv_callback *callback)
{
	struct stream_extra_api *extra = stream_extra_get_or_create(stream_sock(file));
	struct stream_callback *fresh = NULL;
	int rc;

	if (extra == NULL)
		return -ENOMEM;
	if (callback->function != NULL) {
		fresh = vma_alloc(sizeof(*fresh));
		if (fresh == NULL)
			return -ENOMEM;
		fresh->now = *callback;
	}
	pthread_mutex_lock(&extra->lock);
	rc = replace_recv_callback(file, extra, fresh);
	pthread_mutex_unlock(&extra->lock);
	if (rc != 0 && fresh != NULL)
		vma_defer_free_until_no_readers(&fresh->retired, free_retired_callback);
	return rc == -EOPNOTSUPP ? -EINVAL : rc;
}
