/* stream.c - the life of a TCP object: made for a kernel socket, told of changes around it, forked, closed. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "extra.h"
#include "stream_priv.h"
#include "xtreme.h"

/* ---- what others ask ---- */

static enum vma_sock_reason stream_reason_of(struct vma_file *file)
{
	return atomic_load_explicit(&stream_sock(file)->reason, memory_order_relaxed);
}

struct vma_inet_sock_description stream_stats_description(struct stream_sock *sock)
{
	const struct vma_tcp_options *options = &sock->options;

	return (struct vma_inet_sock_description){
	        .file = &sock->file,
	        .reason = stream_reason_of(&sock->file),
	        .protocol = IPPROTO_TCP,
	        .nonblocking = atomic_load_explicit(&sock->nonblocking, memory_order_relaxed),
	        .local = stream_tcp_conn(sock) != NULL ? &sock->name : &sock->local,
	        .peer = &sock->peer,
	        .rx_limit_bytes = (uint64_t)(options->rcvbuf != 0 ? options->rcvbuf : options->rcvbuf_max),
	        .ring_ctx = sock->ring_ctx,
	};
}

void stream_describe_for_stats(struct stream_sock *sock)
{
	const struct vma_inet_sock_description described = stream_stats_description(sock);
	struct vma_tcp_conn *conn = stream_tcp_conn(sock);

	vma_inet_stats_describe(sock->stats, &described);
	if (sock->stats == NULL)
		return;
	if (conn != NULL)
		vma_tcp_set_stats(conn, sock->stats);
	else
		vma_stats_set(&sock->stats->tcp_state,
		              stream_sock_phase(sock) == STREAM_LISTENING ? TCP_LISTEN : TCP_CLOSE);
}

/* ---- the shadow ---- */

uint64_t stream_so_cookie(struct stream_sock *sock, int fd)
{
	if (atomic_load(&sock->cookie) == 0)
		atomic_store(&sock->cookie, vma_sock_cookie(fd));
	return atomic_load(&sock->cookie);
}

bool stream_fd_is_own_shadow(const struct stream_sock *sock, int fd)
{
	const uint64_t cookie = atomic_load(&sock->cookie);

	return cookie != 0 && vma_sock_cookie(fd) == cookie;
}

/* ---- what changes around it: the internal thread ---- */

static void net_changed(struct vma_file *file)
{
	struct stream_sock *sock = stream_sock(file);
	bool moved = false;

	pthread_mutex_lock(&file->lock);
	if (!stream_has_ended(sock) && file->os_only && sock->was_unrouted)
		stream_route_kick_kernel_retransmit(sock);
	if (!stream_has_ended(sock) && !file->os_only && vma_engine_get_or_start() != NULL) {
		stream_listener_update_flows(sock);
		stream_route_update_path(sock);
		moved = stream_route_hand_over_if_moved(sock);
	}
	pthread_mutex_unlock(&file->lock);
	if (moved)
		stream_wake_waiters_after_hand_over(sock);
}

/* ---- the end ---- */

/* A send that has begun comes before the end, and none after it: see send_copy_in_and_push_under_lock in send.c. */
static void stream_await_sends_in_progress(struct stream_sock *sock)
{
	stream_io_lock_acquire(&sock->writer);
	stream_io_lock_release(&sock->writer);
}

static void stream_end_socket(struct stream_sock *sock, bool may_linger)
{
	stream_await_sends_in_progress(sock);
	stream_passed_unwatch(sock);
	if (stream_sock_phase(sock) == STREAM_LISTENING)
		stream_listen_end(sock);
	if (stream_hand_over_to_kernel(sock)) {
		stream_close_lingering_shadow(sock); /* the kernel's close follows, or has been */
		return;
	}
	stream_conn_close(sock, may_linger);
}

/* A socket that is closed while a thread waits in it lives until that call returns, and a listener's shadow with it. */
static void stream_close_file(struct vma_file *file)
{
	struct stream_sock *sock = stream_sock(file);

	vma_inet_stats_count_closed_socket(sock->engine, &sock->stats_count);
	if (atomic_load(&sock->exec_exported))
		stream_fork_queue_hand_over_queued_conns(sock);
	stream_xtreme_close(sock);
	pthread_mutex_lock(&file->lock);
	stream_put_ring_ctxs_held_before_connect(sock);
	if (file->os_only) {
		stream_passed_unwatch(sock);
	} else if (atomic_load(&sock->waiting) != 0) {
		stream_dup_shadow_at_close(sock);
		atomic_store(&sock->close_due, true);
	} else {
		stream_end_socket(sock, true);
	}
	pthread_mutex_unlock(&file->lock);
	if (atomic_load(&sock->close_due) && atomic_load(&sock->waiting) == 0)
		stream_finish_close(sock);
	vma_ring_files_wake_reclaim_of_rings();
	vma_run_deferred_frees_if_many();
}

bool stream_call_enter(struct stream_sock *sock)
{
	if (vma_inet_add_waiting_call(&sock->file, &sock->waiting))
		return true;
	stream_call_leave(sock);
	return false;
}

/* Both the last to leave and the one who closes come here, so that neither has to know who was first. */
void stream_finish_close(struct stream_sock *sock)
{
	pthread_mutex_lock(&sock->file.lock);
	if (atomic_load(&sock->waiting) == 0 && atomic_exchange(&sock->close_due, false))
		stream_end_socket(sock, false);
	pthread_mutex_unlock(&sock->file.lock);
}

void stream_call_leave(struct stream_sock *sock)
{
	if (vma_inet_remove_waiting_call(&sock->file, &sock->waiting))
		stream_finish_close(sock);
}

static void fini_io_locks(struct stream_sock *sock)
{
	pthread_mutex_destroy(&sock->reader.queue);
	pthread_mutex_destroy(&sock->writer.queue);
	pthread_mutex_destroy(&sock->accepter.queue);
}

/* Its connection has gone: that held a reference. */
static void stream_destroy(struct vma_file *file)
{
	struct stream_sock *sock = stream_sock(file);

	stream_close_lingering_shadow(sock);
	stream_tally_put(sock);
	stream_passed_free(sock);
	stream_fork_queue_free(sock);
	stream_options_free(sock);
	stream_extra_destroy(sock);
	stream_xtreme_destroy(sock);
	vma_inet_stats_put(sock->engine, sock->stats, &sock->stats_count);
	fini_io_locks(sock);
}

/* ---- fork ---- */

static void init_io_locks(struct stream_sock *sock)
{
	stream_io_lock_init(&sock->reader);
	stream_io_lock_init(&sock->writer);
	stream_io_lock_init(&sock->accepter);
}

/* The tasks are the parent's internal thread's, there. */
static void forked_child_drop_tasks(struct stream_sock *sock)
{
	if (atomic_exchange(&sock->path_scheduled, false))
		vma_file_put(&sock->file);
	if (atomic_exchange(&sock->update_scheduled, false))
		vma_file_put(&sock->file);
	if (atomic_exchange(&sock->share_scheduled, false) && atomic_load(&sock->has_port_alone))
		vma_file_put(&sock->file);
	sock->path_task = sock->end_task = sock->update_task = sock->share_task = (struct vma_internal_task){0};
}

/*
 * A connection is its parent's: here it is left behind, with its memory, and what is called on it is the shadow's,
 * which is connected when the parent has handed it over (fork_owner.c). A listener's shadow listens; its flows are
 * asked for when it is used.
 */
static __attribute__((cold)) void stream_drop_parents_conn_in_child(struct vma_file *file)
{
	struct stream_sock *sock = stream_sock(file);
	struct vma_tcp_conn *conn = atomic_exchange(&sock->conn, NULL);

	init_io_locks(sock);
	forked_child_drop_tasks(sock);
	sock->stats = NULL;
	atomic_store(&sock->stats_count, false);
	sock->ring_ctx = NULL;
	stream_forget_ring_ctxs_held_before_connect(sock);
	sock->path = NULL;
	sock->watch = (struct vma_net_watch){0};
	atomic_store(&sock->move, 0);
	atomic_store(&file->retry, false);
	atomic_store(&sock->waiting, 0);
	atomic_store(&sock->os_accept, false);
	stream_listen_reset_in_forked_child(sock);
	stream_passed_stop_answering_in_child(sock);
	stream_extra_reset_in_fork_child(sock);
	stream_xtreme_reset_in_fork_child(sock);
	if (file->os_only)
		return;
	if (stream_sock_phase(sock) == STREAM_LISTENING) {
		atomic_store(&sock->inherited, true);
		if (!sock->hands_over)
			atomic_store(&sock->reason, VMA_SOCK_INHERITED);
	}
	if (conn == NULL)
		return;
	file->os_only = true;
	atomic_store(&file->own_poll, false);
	atomic_store(&sock->reason, VMA_SOCK_INHERITED);
	stream_conn_set_fork_owner(sock);
	vma_file_put(file); /* the connection's */
}

/* A socket that is not connected yet can still be the kernel's. */
bool stream_leave_unconnected_to_kernel(struct stream_sock *sock, enum vma_sock_reason reason)
{
	if (stream_tcp_conn(sock) != NULL || stream_sock_phase(sock) != STREAM_FRESH)
		return false;
	sock->file.os_only = true;
	atomic_store(&sock->reason, reason);
	vma_engine_report_kernel_fallback(reason, 0, "a TCP socket");
	stream_describe_for_stats(sock);
	return true;
}

/* The C library is about to read by itself. */
static void to_os(struct vma_file *file, int fd)
{
	bool given;

	(void)fd;
	pthread_mutex_lock(&file->lock);
	given = stream_leave_unconnected_to_kernel(stream_sock(file), VMA_SOCK_OPTION);
	pthread_mutex_unlock(&file->lock);
	if (!given)
		return;
	vma_engine_apply_offload_failure_policy(0, "a TCP socket that the C library reads by itself");
	vma_file_set_poll_without_shadow(file, false);
}

/* ---- the beginning ---- */

static void stream_take_conn_from_fork_owner(struct vma_file *file, int fd)
{
	(void)fd;
	vma_stream_take_from_fork_owner(file);
}

/* The tables differ in how they receive, and in whether they count. */
#define STREAM_OPS(recvmsg_call, sendmsg_call)                                                                         \
	{                                                                                                              \
		.name = "tcp", .bind = stream_bind, .connect = stream_connect, .listen = stream_listen,                \
		.accept4 = stream_accept4, .shutdown = stream_shutdown, .setsockopt = stream_setsockopt,               \
		.getsockopt = stream_getsockopt, .getsockname = stream_getsockname, .getpeername = stream_getpeername, \
		.ioctl = stream_ioctl, .fcntl = stream_fcntl, .recvmsg = (recvmsg_call), .sendmsg = (sendmsg_call),    \
		.poll = stream_poll, .rings = stream_ring_bits, .accept_rings = stream_listener_ring_bits,             \
		.close = stream_close_file, .destroy = stream_destroy, .forked = stream_drop_parents_conn_in_child,    \
		.to_os = to_os, .hand_over = stream_file_hand_over_to_kernel,                                          \
		.exec_export = stream_file_give_to_kernel_before_exec, .touch = stream_take_conn_from_fork_owner,      \
		.net_changed = net_changed, .dump = stream_dump, .reason = stream_reason_of,                           \
		.reason_detail = stream_kernel_only_option_name, .recv_lent = stream_recv_lent,                        \
		.set_callback = stream_set_recv_callback, .ring_ctxs = stream_ring_ctxs,                               \
		.tx_ring_ctx = stream_tx_ring_ctx, .network_header = stream_copy_next_headers,                         \
		.complete = stream_xtreme_complete,                                                                    \
	}
static const struct vma_file_ops ops = STREAM_OPS(stream_recvmsg, stream_sendmsg),
                                 stream_polling_file_ops =
                                         STREAM_OPS(stream_recvmsg_polling_now_and_then, stream_sendmsg),
                                 stream_migrating_file_ops = STREAM_OPS(stream_recvmsg_counting_for_migration,
                                                                        stream_sendmsg_counting_for_migration),
                                 stream_migrating_polling_file_ops = STREAM_OPS(stream_recvmsg_counting_with_polls,
                                                                                stream_sendmsg_counting_for_migration);
#undef STREAM_OPS

/* Its receives look for packets at other times than others' do. */
static bool conf_limits_rx_ring_polls(const struct vma_conf *conf)
{
	return conf->rx_cq_drain_rate_nsec != 0 || conf->skip_poll_in_rx != VMA_SKIP_POLL_NEVER;
}

static void stream_set_migration(struct stream_sock *sock, const struct vma_conf *conf)
{
	vma_migration_init(&sock->rx_migration, conf, VMA_RING_CTX_RX, true);
	vma_migration_init(&sock->tx_migration, conf, VMA_RING_CTX_TX, true);
	if (conf->socketxtreme)
		return; /* completions would be told by another ring than the one that the program polls */
	if (sock->rx_migration.ratio != 0 || sock->tx_migration.ratio != 0)
		sock->file.ops =
		        sock->file.ops == &ops ? &stream_migrating_file_ops : &stream_migrating_polling_file_ops;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void stream_init_fork_handlers(void)
{
	pthread_atfork(NULL, NULL, stream_endpoints_reset_in_fork_child);
	pthread_atfork(NULL, NULL, stream_timewait_sockets_lock_init_in_child);
}

bool vma_stream_handles_socket_type(int domain, int type, int protocol)
{
	return vma_inet_socket_type_is(domain, type, protocol, SOCK_STREAM, IPPROTO_TCP);
}

struct stream_sock *stream_create(struct vma_engine *engine, int family, bool nonblocking)
{
	struct stream_sock *sock = vma_alloc(sizeof(*sock));

	if (sock == NULL)
		return NULL;
	if (engine != NULL && conf_limits_rx_ring_polls(&engine->conf)) {
		vma_file_init(&sock->file, VMA_FILE_TCP, &stream_polling_file_ops);
		vma_inet_drain_init(&sock->drain, &engine->conf);
		sock->skips_looks = (uint8_t)engine->conf.skip_poll_in_rx;
	} else {
		vma_file_init(&sock->file, VMA_FILE_TCP, &ops);
	}
	if (engine != NULL)
		stream_set_migration(sock, &engine->conf);
	sock->file.family = (uint8_t)family;
	init_io_locks(sock);
	ck_stack_init(&sock->arrived);
	atomic_store(&sock->file.own_poll, true);
	atomic_store(&sock->nonblocking, nonblocking);
	atomic_store(&sock->rcvtimeo_ns, UINT64_MAX);
	atomic_store(&sock->sndtimeo_ns, UINT64_MAX);
	atomic_store(&sock->rcvlowat, 1);
	atomic_store(&sock->reason, VMA_SOCK_NEW);
	sock->engine = engine;
	sock->polls_on_send = engine != NULL && engine->conf.rx_poll_on_tx_tcp;
	return sock;
}

static void stream_set_kernel_only(struct stream_sock *sock, enum vma_sock_reason reason)
{
	sock->file.os_only = true;
	atomic_store(&sock->file.own_poll, false);
	atomic_store(&sock->reason, reason);
}

int vma_stream_socket(int fd, int domain, int type, int protocol)
{
	struct vma_engine *engine = vma_engine_get_or_start();
	const enum vma_sock_reason reason = vma_inet_initial_offload_reason(engine);
	struct stream_sock *sock = stream_create(engine, domain, (type & SOCK_NONBLOCK) != 0);
	int rc;

	(void)protocol;
	pthread_once(&once, stream_init_fork_handlers);
	if (sock == NULL)
		return -ENOMEM;
	if (reason != VMA_SOCK_NEW) {
		stream_set_kernel_only(sock, reason);
	} else {
		vma_file_record_creating_thread_and_core(&sock->file);
		stream_options_of_new_socket(sock, fd);
	}
	if (engine != NULL) {
		sock->stats = vma_engine_alloc_socket_stats(engine, fd, &sock->stats_count);
		stream_describe_for_stats(sock);
	}
	rc = vma_fd_install(fd, &sock->file);
	if (rc < 0)
		vma_file_put(&sock->file);
	return rc;
}
