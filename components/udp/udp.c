/* udp.c - the life of a UDP object: made for a kernel socket, told of the world's changes, forked, closed. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/epoll.h>

#include "control.h"
#include "extra.h"
#include "flows.h"
#include "groups.h"
#include "fork_shared.h"
#include "pace.h"
#include "fork_queue.h"
#include "members.h"
#include "reinject.h"
#include "deferred.h"
#include "xtreme.h"

#define LEAVE_S 1 /* at most, for locks of others at the end */

/* ---- what others ask ---- */

static enum vma_sock_reason udp_get_reason_not_offloaded(struct vma_file *file)
{
	return atomic_load_explicit(&udp_sock(file)->reason, memory_order_relaxed);
}

/* file.lock. */
static struct vma_inet_sock_description udp_describe_for_stats(struct udp_sock *sock)
{
	const struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_acquire);

	return (struct vma_inet_sock_description){
	        .file = &sock->file,
	        .reason = udp_get_reason_not_offloaded(&sock->file),
	        .protocol = IPPROTO_UDP,
	        .nonblocking = atomic_load_explicit(&sock->nonblocking, memory_order_relaxed),
	        .local = &sock->local,
	        .peer = &sock->peer,
	        .rx_limit_bytes = atomic_load_explicit(&sock->rcvbuf, memory_order_relaxed),
	        .ring_ctx = all != NULL && all->n != 0 ? all->at[0]->ring_ctx : NULL,
	};
}

void udp_stats_describe(struct udp_sock *sock)
{
	const struct vma_inet_sock_description described = udp_describe_for_stats(sock);

	vma_inet_stats_describe(sock->stats, &described);
	if (sock->stats != NULL)
		vma_stats_set(&sock->stats->mc_loop, sock->mc_loop);
}

static void udp_dump(struct vma_file *file, int fd, enum vma_log_level level)
{
	struct udp_sock *sock = udp_sock(file);
	struct vma_inet_sock_description described;

	pthread_mutex_lock(&file->lock);
	described = udp_describe_for_stats(sock);
	vma_inet_dump_begin(sock->engine, sock->stats, fd, &described, level);
	pthread_mutex_unlock(&file->lock);
	vma_inet_dump_end(level);
}

/* ---- what changes around it: the internal thread ---- */

/* An inherited socket waits for its first use: a child that never uses it is not to take the parent's flows away. */
static void udp_net_changed(struct vma_file *file)
{
	struct udp_sock *sock = udp_sock(file);
	struct vma_engine *engine = vma_engine_get_or_start();
	enum vma_sock_reason before;
	uint64_t generation;

	pthread_mutex_lock(&file->lock);
	if (udp_fork_shared_has_changed(sock))
		udp_apply_changes_of_forked_processes_locked(sock);
	if (engine != NULL && !vma_file_is_closed(file) && !file->os_only && !atomic_load(&sock->inherited)) {
		generation = vma_net_generation(engine->net);
		before = udp_get_reason_not_offloaded(file);
		udp_flows_update(sock);
		if (sock->net_generation != generation || udp_get_reason_not_offloaded(file) != before)
			udp_dst_rebuild_after_change(sock);
		sock->net_generation = generation;
	}
	pthread_mutex_unlock(&file->lock);
}

static void udp_on_error(struct vma_file *file)
{
	if (file->kind != VMA_FILE_UDP)
		return;
	udp_note_pending_os_error(udp_sock(file));
	vma_file_wake_sleepers_and_watchers(file, EPOLLERR);
}

/* ---- the end ---- */

/*
 * With the kernel a socket that is closed while a thread waits in recv lives until that call returns, port and all. So
 * does this one: its shadow gets a number of the library's own, and its flows stay. A call that begins to wait after
 * this look finds it closed: see vma_inet_add_waiting_call.
 */
static void udp_keep_kernel_socket_for_waiters(struct udp_sock *sock)
{
	int kept = vma_inet_dup_shadow_fd(atomic_load(&sock->file.fd), udp_flows_cookie(sock));

	if (kept >= 0)
		atomic_store(&sock->lingering_fd, kept);
}

static void udp_leave_flows_and_free_destinations(struct udp_sock *sock)
{
	udp_flows_detach_all(sock);
	udp_dst_fini(sock);
	if (sock->xtreme != NULL)
		vma_xtreme_close(sock->xtreme);
}

static void udp_close(struct vma_file *file)
{
	struct udp_sock *sock = udp_sock(file);

	vma_inet_stats_count_closed_socket(sock->engine, &sock->stats_count);
	pthread_mutex_lock(&file->lock);
	udp_deferred_count_socket_at_close(sock);
	if (atomic_load(&sock->waiting) != 0) {
		sock->held_for_waiting = true;
		vma_file_get(file);
		if (!file->os_only)
			udp_keep_kernel_socket_for_waiters(sock);
	}
	if (atomic_load(&sock->lingering_fd) == 0)
		udp_leave_flows_and_free_destinations(sock);
	pthread_mutex_unlock(&file->lock);
	udp_finish_close(sock);
	vma_ring_files_wake_reclaim_of_rings();
	vma_run_due_deferred_frees();
}

/* Both the last to leave and the one who closes come here, so that neither has to know who was first. */
void udp_finish_close(struct udp_sock *sock)
{
	bool held = false;
	int fd;

	pthread_mutex_lock(&sock->file.lock);
	if (atomic_load(&sock->waiting) == 0) {
		held = sock->held_for_waiting;
		sock->held_for_waiting = false;
		fd = atomic_exchange(&sock->lingering_fd, 0);
		if (fd != 0) {
			udp_leave_flows_and_free_destinations(sock);
			vma_fd_unguard_close(fd);
		}
	}
	pthread_mutex_unlock(&sock->file.lock);
	if (held)
		vma_file_put(&sock->file);
}

static void udp_destroy(struct vma_file *file)
{
	struct udp_sock *sock = udp_sock(file);

	udp_drop_all_multicast_groups(sock);
	udp_flows_destroy(sock);
	udp_fork_queue_destroy(sock);
	udp_tx_state_destroy(sock);
	udp_fork_shared_destroy(sock);
	udp_extra_api_state_free(sock);
	vma_xtreme_destroy(sock->xtreme);
	vma_inet_stats_put(sock->engine, sock->stats, &sock->stats_count);
	pthread_mutex_destroy(&sock->reader);
}

static void udp_flows_pause_file(struct vma_file *file, void *arg)
{
	(void)arg;
	if (file->kind != VMA_FILE_UDP || file->os_only)
		return;
	pthread_mutex_lock(&file->lock);
	udp_flows_leave_to_kernel_for_a_while(udp_sock(file));
	pthread_mutex_unlock(&file->lock);
}

struct udp_exit_scan {
	uint32_t forks;        /* sockets made before the last one are others', too */
	struct timespec until; /* CLOCK_REALTIME, as pthread_mutex_timedlock has it */
};

/*
 * Who has the lock may be about to attach flows, as the internal thread is when it takes up what was inherited; and a
 * task that has not run yet would attach them afterwards. They would go with this process only when vmad sees its end,
 * and what came in between would be lost. A thread that never gives the lock back is not waited for without end.
 */
static void udp_leave_flows_at_process_exit(struct vma_file *file, void *arg)
{
	const struct udp_exit_scan *udp_exit_scan = arg;

	if (file->kind != VMA_FILE_UDP || file->os_only || file->forks == udp_exit_scan->forks ||
	    pthread_mutex_timedlock(&file->lock, &udp_exit_scan->until) != 0)
		return;
	udp_sock(file)->left = true;
	udp_flows_detach_all(udp_sock(file));
	pthread_mutex_unlock(&file->lock);
}

void vma_udp_leave_forked_sockets_flows_at_exit(void)
{
	struct udp_exit_scan udp_exit_scan = {.forks = atomic_load_explicit(&vma_fork_count, memory_order_relaxed)};
	struct vma_thread *self;

	if (udp_exit_scan.forks == 0)
		return;
	clock_gettime(CLOCK_REALTIME, &udp_exit_scan.until);
	udp_exit_scan.until.tv_sec += LEAVE_S;
	self = vma_enter();
	vma_file_each(udp_leave_flows_at_process_exit, &udp_exit_scan);
	vma_leave(self);
}

void vma_udp_fork_prepare(void)
{
	struct vma_thread *self = vma_enter();

	udp_share_all_sockets_state_before_fork();
	vma_file_each(udp_flows_pause_file, NULL);
	vma_leave(self);
}

/* The parent's threads held what they held. */
__attribute__((cold)) void vma_udp_fork_child(void)
{
	udp_flows_reset_ports_in_fork_child();
	udp_mcast_members_reset_in_child();
}

static __attribute__((cold)) void udp_reset_in_forked_child(struct vma_file *file)
{
	struct udp_sock *sock = udp_sock(file);

	pthread_mutex_init(&sock->reader, NULL);
	udp_flows_forget_parents_in_fork_child(sock);
	udp_pace_drop_scheduled_task_after_fork(sock);
	udp_extra_api_state_reset_in_child(sock);
	vma_xtreme_reset_account_in_fork_child(sock->xtreme);
	sock->stats = NULL;
	atomic_store(&sock->stats_count, false);
	sock->errors_watched = sock->left = false;
	atomic_store(&sock->in_kernel, 0);
	atomic_store(&sock->waiting, 0);
	atomic_store(&file->retry, false);
	if (file->os_only)
		return;
	udp_tx_state_reset_in_forked_child(sock);
	if (sock->local.sin_port != 0)
		atomic_store(&sock->reason, VMA_SOCK_INHERITED);
	/* Its first use in the child brings what it has no flow for yet. */
	atomic_store(&sock->os_attention, true);
}

/* The flows go first, and the queues last: what comes in between is the kernel's already. */
void udp_give_to_kernel(struct udp_sock *sock, enum vma_sock_reason reason)
{
	struct vma_file *file = &sock->file;

	sock->left = true;
	if (sock->flows != NULL)
		udp_flows_update(sock);
	udp_reinject_queued_datagrams_to_kernel(sock);
	udp_flows_detach_all(sock);
	file->os_only = true;
	atomic_store(&file->retry, false);
	atomic_store(&sock->reason, reason);
	vma_engine_report_kernel_fallback(reason, 0, "a UDP socket");
	udp_dst_rebuild_after_change(sock);
	udp_stats_describe(sock);
	vma_waitq_wake(&file->waitq, true);
}

/* The C library is about to read by itself. */
static void udp_hand_over_to_kernel_for_stdio(struct vma_file *file, int fd)
{
	(void)fd;
	pthread_mutex_lock(&file->lock);
	if (!file->os_only) {
		vma_engine_apply_offload_failure_policy(0, "a UDP socket that the C library reads by itself");
		udp_give_to_kernel(udp_sock(file), VMA_SOCK_OPTION);
	}
	pthread_mutex_unlock(&file->lock);
}

/* Processes that have the socket by fork are told: their flows would take what the kernel is to get. */
static void udp_hand_over_to_kernel_and_tell_forked(struct vma_file *file, enum vma_sock_reason why)
{
	struct udp_sock *sock = udp_sock(file);

	pthread_mutex_lock(&file->lock);
	if (!file->os_only) {
		udp_give_to_kernel(sock, why);
		if (udp_fork_shared(sock) != NULL)
			atomic_store(&udp_fork_shared(sock)->handed_over, true);
		udp_tell_forked_processes_of_change(sock);
	}
	pthread_mutex_unlock(&file->lock);
}

static void udp_hand_over_passed_socket_to_kernel(struct vma_file *file)
{
	udp_hand_over_to_kernel_and_tell_forked(file, VMA_SOCK_PASSED_ON);
}

static int udp_hand_over_to_kernel_before_exec(struct vma_file *file)
{
	udp_hand_over_to_kernel_and_tell_forked(file, VMA_SOCK_EXEC);
	return -1;
}

/* ---- the beginning ---- */

/* The tables differ in how they receive and send. */
#define UDP_OPS(receive, fixture_transmit_segment_with_loss)                                                           \
	{                                                                                                              \
		.name = "udp", .bind = udp_bind, .connect = udp_connect, .shutdown = udp_shutdown,                     \
		.setsockopt = udp_setsockopt, .getsockopt = udp_getsockopt, .ioctl = udp_ioctl, .fcntl = udp_fcntl,    \
		.recvmsg = (receive), .sendmsg = (fixture_transmit_segment_with_loss), .poll = udp_poll,               \
		.rings = udp_socket_rings_mask, .close = udp_close, .destroy = udp_destroy,                            \
		.forked = udp_reset_in_forked_child, .to_os = udp_hand_over_to_kernel_for_stdio,                       \
		.hand_over = udp_hand_over_passed_socket_to_kernel,                                                    \
		.exec_export = udp_hand_over_to_kernel_before_exec, .net_changed = udp_net_changed, .dump = udp_dump,  \
		.reason = udp_get_reason_not_offloaded, .reason_detail = udp_get_name_of_kernel_only_option,           \
		.recv_lent = udp_recv_zero_copy, .set_callback = udp_set_recv_callback,                                \
		.network_header = udp_copy_tx_headers_to_peer, .getsockname = udp_getsockname,                         \
		.complete = udp_xtreme_complete_queued_datagrams, .ring_ctxs = udp_ring_ctxs,                          \
		.tx_ring_ctx = udp_tx_ring_ctx,                                                                        \
	}
static const struct vma_file_ops udp_ops = UDP_OPS(udp_recvmsg, udp_sendmsg);
static const struct vma_file_ops udp_draining_ops = UDP_OPS(udp_recvmsg_after_periodic_ring_drain, udp_sendmsg);
/* Where sockets may move between rings: these count, and the others are not slower for it. */
static const struct vma_file_ops udp_migrating_ops =
        UDP_OPS(udp_recvmsg_and_count_migration, udp_sendmsg_and_count_migration);
static const struct vma_file_ops udp_migrating_draining_ops =
        UDP_OPS(udp_recvmsg_draining_and_count_migration, udp_sendmsg_and_count_migration);
#undef UDP_OPS

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void udp_register_error_callback(void)
{
	vma_engine_on_error = udp_on_error;
}

bool vma_udp_takes_socket(int domain, int type, int protocol)
{
	return vma_inet_socket_type_is(domain, type, protocol, SOCK_DGRAM, IPPROTO_UDP);
}

static struct udp_sock *sock_create(const struct vma_engine *engine, int domain, int type)
{
	const bool drains = engine != NULL && engine->conf.rx_cq_drain_rate_nsec != 0;
	struct udp_sock *sock = vma_alloc(sizeof(*sock));

	if (sock == NULL)
		return NULL;
	vma_file_init(&sock->file, VMA_FILE_UDP, drains ? &udp_draining_ops : &udp_ops);
	if (drains)
		vma_inet_drain_init(&sock->drain, &engine->conf);
	sock->file.family = (uint8_t)domain;
	pthread_mutex_init(&sock->reader, NULL);
	atomic_store(&sock->nonblocking, (type & SOCK_NONBLOCK) != 0);
	atomic_store(&sock->rcvtimeo_ns, UINT64_MAX);
	atomic_store(&sock->sndtimeo_ns, UINT64_MAX);
	atomic_store(&sock->sends_remaining, UDP_FEW_SENDS);
	sock->mc_ttl = 1;
	sock->mc_loop = sock->mc_all = true;
	udp_dst_init(sock);
	return sock;
}

static void udp_sock_init_migration_and_ops(struct udp_sock *sock, const struct vma_conf *conf)
{
	vma_migration_init(&sock->rx_migration, conf, VMA_RING_CTX_RX, false);
	vma_migration_init(&sock->tx_migration, conf, VMA_RING_CTX_TX, false);
	if (sock->rx_migration.ratio != 0 || sock->tx_migration.ratio != 0)
		sock->file.ops = sock->file.ops == &udp_ops ? &udp_migrating_ops : &udp_migrating_draining_ops;
}

int vma_udp_socket(int fd, int domain, int type, int protocol)
{
	struct vma_engine *engine = vma_engine_get_or_start();
	const enum vma_sock_reason reason = vma_inet_initial_offload_reason(engine);
	struct udp_sock *sock;
	int rc;

	(void)protocol;
	pthread_once(&once, udp_register_error_callback);
	sock = sock_create(engine, domain, type);
	if (sock == NULL)
		return -ENOMEM;
	sock->engine = engine;
	if (engine != NULL)
		udp_sock_init_migration_and_ops(sock, &engine->conf);
	if (engine != NULL && engine->conf.socketxtreme && reason == VMA_SOCK_NEW &&
	    udp_xtreme_enable_on_sock(sock) != 0) {
		vma_file_put(&sock->file);
		return -ENOMEM;
	}
	atomic_store(&sock->reason, reason);
	sock->file.os_only = reason != VMA_SOCK_NEW;
	if (reason == VMA_SOCK_NEW) {
		vma_file_record_creating_thread_and_core(&sock->file);
		udp_options_init(sock, fd);
	}
	if (engine != NULL) {
		sock->stats = vma_engine_alloc_socket_stats(engine, fd, &sock->stats_count);
		udp_stats_describe(sock);
	}
	rc = vma_fd_install(fd, &sock->file);
	if (rc < 0)
		vma_file_put(&sock->file);
	return rc;
}
