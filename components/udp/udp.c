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

static enum vma_sock_reason udp_reason(struct vma_file *file)
{
	return atomic_load_explicit(&udp_sock(file)->reason, memory_order_relaxed);
}

/* file.lock. */
static struct vma_inet_sock_description udp_describe_for_stats(struct udp_sock *sock)
{
	const struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_acquire);

	return (struct vma_inet_sock_description){
	        .file = &sock->file,
	        .reason = udp_reason(&sock->file),
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
	struct vma_engine *engine = vma_engine();
	enum vma_sock_reason before;
	uint64_t generation;

	pthread_mutex_lock(&file->lock);
	if (udp_fork_shared_has_changed(sock))
		udp_fork_shared_follow_locked(sock);
	if (engine != NULL && !vma_file_has_ended(file) && !file->os_only && !atomic_load(&sock->inherited)) {
		generation = vma_net_generation(engine->net);
		before = udp_reason(file);
		udp_flows_update(sock);
		if (sock->net_generation != generation || udp_reason(file) != before)
			udp_dst_reset(sock);
		sock->net_generation = generation;
	}
	pthread_mutex_unlock(&file->lock);
}

static void udp_on_error(struct vma_file *file)
{
	if (file->kind != VMA_FILE_UDP)
		return;
	udp_os_error(udp_sock(file));
	vma_file_ready(file, EPOLLERR);
}

/* ---- the end ---- */

/*
 * With the kernel a socket that is closed while a thread waits in recv lives until that call returns, port and all. So
 * does this one: its shadow gets a number of the library's own, and its flows stay. A call that begins to wait after
 * this look finds it closed: see vma_inet_call_enter.
 */
static void udp_keep_shadow_for_waiters(struct udp_sock *sock)
{
	int kept = vma_inet_keep_shadow(atomic_load(&sock->file.fd), udp_flows_cookie(sock));

	if (kept >= 0)
		atomic_store(&sock->lingering_fd, kept);
}

static void udp_end(struct udp_sock *sock)
{
	udp_flows_end(sock);
	udp_dst_fini(sock);
	if (sock->xtreme != NULL)
		vma_xtreme_close(sock->xtreme);
}

static void udp_close(struct vma_file *file)
{
	struct udp_sock *sock = udp_sock(file);

	vma_inet_stats_closed(sock->engine, &sock->stats_count);
	pthread_mutex_lock(&file->lock);
	udp_deferred_count_socket_at_close(sock);
	if (atomic_load(&sock->waiting) != 0) {
		sock->held_for_waiting = true;
		vma_file_get(file);
		if (!file->os_only)
			udp_keep_shadow_for_waiters(sock);
	}
	if (atomic_load(&sock->lingering_fd) == 0)
		udp_end(sock);
	pthread_mutex_unlock(&file->lock);
	udp_finish_close(sock);
	vma_ring_files_left();
	vma_retire_poll();
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
			udp_end(sock);
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

	udp_groups_end(sock);
	udp_flows_destroy(sock);
	udp_fork_queue_destroy(sock);
	udp_data_destroy(sock);
	udp_fork_shared_destroy(sock);
	udp_extra_destroy(sock);
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
	udp_flows_pause(udp_sock(file));
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
	udp_flows_end(udp_sock(file));
	pthread_mutex_unlock(&file->lock);
}

void vma_udp_exit(void)
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

	udp_fork_shared_create();
	vma_file_each(udp_flows_pause_file, NULL);
	vma_leave(self);
}

/* The parent's threads held what they held. */
__attribute__((cold)) void vma_udp_fork_child(void)
{
	udp_flows_forked_all();
	udp_local_members_forked();
}

static __attribute__((cold)) void udp_forked(struct vma_file *file)
{
	struct udp_sock *sock = udp_sock(file);

	pthread_mutex_init(&sock->reader, NULL);
	udp_flows_forked(sock);
	udp_pace_forked(sock);
	udp_extra_forked(sock);
	vma_xtreme_forked(sock->xtreme);
	sock->stats = NULL;
	atomic_store(&sock->stats_count, false);
	sock->errors_watched = sock->left = false;
	atomic_store(&sock->in_kernel, 0);
	atomic_store(&file->retry, false);
	if (file->os_only)
		return;
	udp_data_forked(sock);
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
	udp_reinject_give(sock);
	udp_flows_end(sock);
	file->os_only = true;
	atomic_store(&file->retry, false);
	atomic_store(&sock->reason, reason);
	vma_engine_fallback(reason, 0, "a UDP socket");
	udp_dst_reset(sock);
	udp_stats_describe(sock);
	vma_waitq_wake(&file->waitq, true);
}

/* The C library is about to read by itself. */
static void udp_to_os(struct vma_file *file, int fd)
{
	(void)fd;
	pthread_mutex_lock(&file->lock);
	if (!file->os_only) {
		vma_engine_exception(0, "a UDP socket that the C library reads by itself");
		udp_give_to_kernel(udp_sock(file), VMA_SOCK_OPTION);
	}
	pthread_mutex_unlock(&file->lock);
}

/* Processes that have the socket by fork are told: their flows would take what the kernel is to get. */
static void hand_over_for_another(struct vma_file *file, enum vma_sock_reason why)
{
	struct udp_sock *sock = udp_sock(file);

	pthread_mutex_lock(&file->lock);
	if (!file->os_only) {
		udp_give_to_kernel(sock, why);
		if (udp_fork_shared(sock) != NULL)
			atomic_store(&udp_fork_shared(sock)->handed_over, true);
		udp_fork_shared_publish(sock);
	}
	pthread_mutex_unlock(&file->lock);
}

static void udp_file_hand_over(struct vma_file *file)
{
	hand_over_for_another(file, VMA_SOCK_PASSED_ON);
}

static int udp_exec_export(struct vma_file *file)
{
	hand_over_for_another(file, VMA_SOCK_EXEC);
	return -1;
}

/* ---- the beginning ---- */

/* The tables differ in how they receive and send. */
#define UDP_OPS(receive, transmit)                                                                                     \
	{                                                                                                              \
		.name = "udp", .bind = udp_bind, .connect = udp_connect, .shutdown = udp_shutdown,                     \
		.setsockopt = udp_setsockopt, .getsockopt = udp_getsockopt, .ioctl = udp_ioctl, .fcntl = udp_fcntl,    \
		.recvmsg = (receive), .sendmsg = (transmit), .poll = udp_poll, .rings = udp_rings, .close = udp_close, \
		.destroy = udp_destroy, .forked = udp_forked, .to_os = udp_to_os, .hand_over = udp_file_hand_over,     \
		.exec_export = udp_exec_export, .net_changed = udp_net_changed, .dump = udp_dump,                      \
		.reason = udp_reason, .reason_detail = udp_os_option, .recv_lent = udp_recv_lent,                      \
		.set_callback = udp_set_callback, .network_header = udp_network_header,                                \
		.getsockname = udp_getsockname, .complete = udp_xtreme_complete, .ring_ctxs = udp_ring_ctxs,           \
		.tx_ring_ctx = udp_tx_ring_ctx,                                                                        \
	}
static const struct vma_file_ops udp_ops = UDP_OPS(udp_recvmsg, udp_sendmsg);
static const struct vma_file_ops udp_draining_ops = UDP_OPS(udp_recvmsg_draining, udp_sendmsg);
/* Where sockets may move between rings: these count, and the others are not slower for it. */
static const struct vma_file_ops udp_migrating_ops = UDP_OPS(udp_recvmsg_migrating, udp_sendmsg_migrating);
static const struct vma_file_ops udp_migrating_draining_ops =
        UDP_OPS(udp_recvmsg_migrating_draining, udp_sendmsg_migrating);
#undef UDP_OPS

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void udp_start(void)
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

static void udp_set_migration(struct udp_sock *sock, const struct vma_conf *conf)
{
	vma_migration_init(&sock->rx_migration, conf, VMA_RING_CTX_RX, false);
	vma_migration_init(&sock->tx_migration, conf, VMA_RING_CTX_TX, false);
	if (sock->rx_migration.ratio != 0 || sock->tx_migration.ratio != 0)
		sock->file.ops = sock->file.ops == &udp_ops ? &udp_migrating_ops : &udp_migrating_draining_ops;
}

int vma_udp_socket(int fd, int domain, int type, int protocol)
{
	struct vma_engine *engine = vma_engine();
	const enum vma_sock_reason reason = vma_inet_initial_reason(engine);
	struct udp_sock *sock;
	int rc;

	(void)protocol;
	pthread_once(&once, udp_start);
	sock = sock_create(engine, domain, type);
	if (sock == NULL)
		return -ENOMEM;
	sock->engine = engine;
	if (engine != NULL)
		udp_set_migration(sock, &engine->conf);
	if (engine != NULL && engine->conf.socketxtreme && reason == VMA_SOCK_NEW && udp_xtreme_begin(sock) != 0) {
		vma_file_put(&sock->file);
		return -ENOMEM;
	}
	atomic_store(&sock->reason, reason);
	sock->file.os_only = reason != VMA_SOCK_NEW;
	if (reason == VMA_SOCK_NEW) {
		vma_file_record_maker(&sock->file);
		udp_options_init(sock, fd);
	}
	if (engine != NULL) {
		sock->stats = vma_engine_stats_get(engine, fd, &sock->stats_count);
		udp_stats_describe(sock);
	}
	rc = vma_fd_install(fd, &sock->file);
	if (rc < 0)
		vma_file_put(&sock->file);
	return rc;
}
