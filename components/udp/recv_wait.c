/*
 * recv_wait.c - nothing is queued: the shadow is asked, and a blocking call waits.
 *
 * The shadow is asked by the very call that the application made, without waiting. So its data, its errors and its
 * refusals come out as the kernel tells them. It is asked
 *   - first of all, if an error has been seen there, or if data there may be older than what is queued (os_attention);
 *   - if nothing is queued and the call does not wait. Then it is asked every VMA_RX_UDP_POLL_OS_RATIO looks. It is
 *     also asked 20 us after the last time, or if a socket of this process has sent through the OS meanwhile;
 *   - while waiting: every so many looks, and if its descriptor is readable.
 *
 * Its descriptor may be ready and have nothing for this call, for as long as the program likes. Errors may wait for
 * MSG_ERRQUEUE (IP_RECVERR), or another process has shut the socket down. Then the call sleeps on an epoll set that has
 * the descriptor edge-triggered, and hears of what is new.
 */
#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fork_shared.h"
#include "fork_queue.h"
#include "os_sends.h"
#include "recv.h"
#include "deferred.h"
#include "extra.h"

enum {
	OS_RECHECK_NS = 20000,
	USELESS_WAKEUPS_MAX = 4, /* fewer may be another thread's luck */
};

/* ---- asking ---- */

static void stats_count_recv_from_kernel(const struct udp_sock *sock, ssize_t len)
{
	if (sock->stats == NULL)
		return;
	if (len < 0) {
		vma_inet_count_failed_call(sock->stats, &sock->stats->rx_os_errors, len);
	} else {
		vma_stats_add(&sock->stats->rx_os_packets, 1);
		vma_stats_add(&sock->stats->rx_os_bytes, (uint64_t)len);
	}
}

/* Not the C library's function, which is a cancellation point: the thread is inside. */
static ssize_t recvmsg_from_shadow_kernel_socket(int fd, struct msghdr *msg, int flags)
{
	ssize_t len;

	if (flags & VMA_LEND_FLAG)
		return vma_zcopy_call_recv_from_os_nonblocking(fd, msg, flags);
	len = syscall(SYS_recvmsg, fd, msg, flags | MSG_DONTWAIT);
	return len < 0 ? -errno : len;
}

static ssize_t recv_from_kernel_blocking(int fd, struct msghdr *msg, int flags)
{
	return flags & VMA_LEND_FLAG ? vma_zcopy_call_recv_from_os_blocking(fd, msg, flags)
	                             : vma_inet_os_recv(fd, msg, flags);
}

/*
 * The answer of the shadow, -EAGAIN: nothing there. os_attention is taken down before the question, so that what comes
 * after it raises it anew; it stays up while the shadow had something, since there may be more.
 */
static ssize_t recv_from_os(struct udp_sock *sock, int fd, struct msghdr *msg, int flags)
{
	bool attention = atomic_exchange_explicit(&sock->os_attention, false, memory_order_acquire);
	uint64_t sends = atomic_load_explicit(&udp_sends_by_os_count, memory_order_acquire);
	int left = atomic_exchange_explicit(&sock->file.deferred_error, 0, memory_order_relaxed);
	ssize_t len;

	if (left != 0)
		return -left;
	fd = vma_inet_shadow_fd(&sock->file, fd, &sock->lingering_fd);
	if (fd < 0)
		return -EAGAIN;
	atomic_store_explicit(&sock->os_error, false, memory_order_relaxed);
	len = recvmsg_from_shadow_kernel_socket(fd, msg, flags);
	if (len == -EAGAIN) {
		atomic_store_explicit(&sock->os_sends_seen, sends, memory_order_relaxed);
		atomic_store_explicit(&sock->os_polled_tsc, vma_tsc(), memory_order_relaxed);
		return len;
	}
	if (attention)
		atomic_store_explicit(&sock->os_attention, true, memory_order_relaxed);
	stats_count_recv_from_kernel(sock, len);
	return len;
}

/* Whether a call that does not wait has to ask before it says that nothing is there. */
static bool recv_is_due_to_check_kernel_socket(struct udp_sock *sock, const struct vma_engine *engine)
{
	uint32_t left = atomic_load_explicit(&sock->os_countdown, memory_order_relaxed);
	uint64_t asked = atomic_load_explicit(&sock->os_polled_tsc, memory_order_relaxed);

	if (left != 0)
		atomic_store_explicit(&sock->os_countdown, left - 1, memory_order_relaxed);
	if (left != 0 && vma_tsc() - asked < vma_tsc_of_nsec(OS_RECHECK_NS) &&
	    atomic_load_explicit(&udp_sends_by_os_count, memory_order_acquire) ==
	            atomic_load_explicit(&sock->os_sends_seen, memory_order_relaxed))
		return false;
	/* 0, never by count, becomes a count that nobody lives to see the end of. */
	atomic_store_explicit(&sock->os_countdown, (uint32_t)engine->conf.rx_udp_poll_os_ratio - 1,
	                      memory_order_relaxed);
	return true;
}

static ssize_t udp_recv_count_eagain(const struct udp_sock *sock)
{
	if (sock->stats != NULL)
		vma_stats_add(&sock->stats->rx_eagain, 1);
	return -EAGAIN;
}

/* ---- waiting ---- */

struct rx_wait {
	struct vma_wait wait;
	struct udp_sock *sock;
	struct msghdr *msg;
	int fd, flags;
	bool os_done; /* the shadow has said `os_result` */
	ssize_t os_result;
	struct pollfd shadow;
	unsigned useless_wakeups; /* wake-ups by the shadow */
	int edges, edges_of; /* the epoll set that is slept on instead of the shadow, and the shadow in it; -1: none */
};

static struct rx_wait *rx_wait_of_vma_wait(struct vma_wait *wait)
{
	return (struct rx_wait *)wait->arg;
}

static int recv_wait_ready(struct vma_wait *wait)
{
	struct udp_sock *sock = rx_wait_of_vma_wait(wait)->sock;

	return udp_has_datagram(atomic_load_explicit(&sock->attachments, memory_order_acquire)) ||
	       udp_has_nonempty_fork_queue(sock) || atomic_load_explicit(&sock->os_attention, memory_order_relaxed) ||
	       atomic_load_explicit(&sock->shut_rd, memory_order_relaxed);
}

static void rx_wait_close_edge_epfd(struct rx_wait *rx)
{
	if (rx->edges >= 0)
		vma_fd_unguard_close(rx->edges);
	rx->edges = rx->edges_of = -1;
}

static void recv_wait_watch_shadow_edges(struct rx_wait *rx, int fd)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLET};
	int edges;

	rx_wait_close_edge_epfd(rx);
	edges = (int)syscall(SYS_epoll_create1, EPOLL_CLOEXEC);
	if (edges < 0)
		return; /* out of descriptors: it is woken for nothing until there is one */
	rx->edges = vma_fd_move_high_and_guard(edges);
	if (rx->edges < 0)
		syscall(SYS_close, edges);
	else if (syscall(SYS_epoll_ctl, rx->edges, EPOLL_CTL_ADD, fd, &event) == 0)
		rx->edges_of = fd;
	else
		rx_wait_close_edge_epfd(rx);
}

/* Before the shadow is asked: what comes after that is an edge again. */
static void drain_shadow_edge_event(struct rx_wait *rx)
{
	struct epoll_event event;

	if (rx->edges >= 0)
		syscall(SYS_epoll_pwait, rx->edges, &event, 1, 0, NULL, (size_t)8);
}

static ssize_t recv_from_os_again(struct rx_wait *rx)
{
	drain_shadow_edge_event(rx);
	return recv_from_os(rx->sock, rx->fd, rx->msg, rx->flags);
}

/* The descriptor to sleep on is looked up again as well: a closed one would wake for ever. */
static int recv_wait_poll_os(struct vma_wait *wait)
{
	struct rx_wait *rx = rx_wait_of_vma_wait(wait);
	ssize_t len = recv_from_os_again(rx);
	const int fd = vma_inet_shadow_fd(&rx->sock->file, rx->fd, &rx->sock->lingering_fd);

	rx->useless_wakeups += rx->shadow.revents != 0;
	rx->shadow.revents = 0;
	if (len == -EAGAIN && fd >= 0 && rx->useless_wakeups >= USELESS_WAKEUPS_MAX && rx->edges_of != fd) {
		recv_wait_watch_shadow_edges(rx, fd);
		len = recv_from_os_again(rx);
	}
	rx->shadow.fd = rx->edges >= 0 && fd >= 0 ? rx->edges : fd;
	if (len == -EAGAIN)
		return udp_fork_shared_has_changed(rx->sock);
	rx->os_done = true;
	rx->os_result = len;
	return 1;
}

static uint64_t recv_wait_rings(struct vma_wait *wait)
{
	return udp_socket_rings_mask(&rx_wait_of_vma_wait(wait)->sock->file);
}

static void recv_wait_join_or_leave_wait_queue(struct vma_wait *wait, bool on)
{
	struct vma_waitq *q = &rx_wait_of_vma_wait(wait)->sock->file.waitq;

	if (on)
		vma_waitq_add(q, wait->self);
	else
		vma_waitq_remove(q, wait->self);
}

static void recv_waiter_leave_and_finish_close(struct udp_sock *sock)
{
	if (vma_inet_remove_waiting_call(&sock->file, &sock->waiting))
		udp_finish_close(sock);
}

static bool recv_waiter_enter(struct udp_sock *sock)
{
	if (vma_inet_add_waiting_call(&sock->file, &sock->waiting))
		return true;
	recv_waiter_leave_and_finish_close(sock);
	return false;
}

static void recv_wait_cleanup_on_thread_cancel(struct vma_wait *wait)
{
	rx_wait_close_edge_epfd(rx_wait_of_vma_wait(wait));
	recv_waiter_leave_and_finish_close(rx_wait_of_vma_wait(wait)->sock);
}

static const struct vma_wait_ops wait_ops = {.ready = recv_wait_ready,
                                             .poll_os = recv_wait_poll_os,
                                             .rings = recv_wait_rings,
                                             .set_queued = recv_wait_join_or_leave_wait_queue,
                                             .abandon = recv_wait_cleanup_on_thread_cancel};

static void recv_wait_init(struct rx_wait *rx, struct udp_sock *sock, int fd, struct msghdr *msg, int flags)
{
	const struct vma_engine *engine = vma_engine_get_or_start();
	uint64_t timeout_ns = atomic_load_explicit(&sock->rcvtimeo_ns, memory_order_relaxed);
	bool offloaded = atomic_load_explicit(&sock->attachments, memory_order_relaxed) != NULL;

	*rx = (struct rx_wait){.sock = sock, .msg = msg, .fd = fd, .flags = flags, .edges = -1, .edges_of = -1};
	rx->shadow = (struct pollfd){.fd = fd, .events = POLLIN};
	rx->wait = (struct vma_wait){.ops = &wait_ops,
	                             .arg = rx,
	                             .self = vma_thread_self(),
	                             .spin = &sock->spin,
	                             .deadline_ns = vma_inet_deadline(timeout_ns),
	                             .spin_nsec = -1,
	                             .fds = &rx->shadow,
	                             .nfds = 1};
	if (engine != NULL) {
		rx->wait.spin_loops = offloaded ? engine->conf.rx_poll : engine->conf.rx_poll_init;
		rx->wait.os_ratio = (uint32_t)engine->conf.rx_udp_poll_os_ratio;
		rx->wait.yield = engine->conf.rx_poll_yield;
		rx->wait.without_rings = !offloaded && rx->wait.os_ratio != 0;
	}
}

/* SIGNAL(7): with SO_RCVTIMEO a handler always ends the call; else only one without SA_RESTART. */
static bool recv_is_restartable(const struct rx_wait *rx)
{
	return rx->wait.deadline_ns == UINT64_MAX && rx->wait.restart;
}

/* With the socket held. -ENODATA: go on waiting. */
static ssize_t wait_and_receive_once(struct rx_wait *rx)
{
	struct udp_sock *sock = rx->sock;
	const int rc = vma_wait(&rx->wait);
	ssize_t len;

	if (rx->os_done) {
		vma_inet_count_wait_poll_hit_or_miss(sock->stats, &rx->wait);
		return rx->os_result;
	}
	if (rc < 0 && !(rc == -EINTR && recv_is_restartable(rx)))
		return rc;
	if (udp_fork_shared_has_changed(sock))
		udp_apply_changes_of_forked_processes(sock);
	if (atomic_load_explicit(&sock->os_attention, memory_order_relaxed)) {
		len = recv_from_os(sock, rx->fd, rx->msg, rx->flags);
		if (len != -EAGAIN)
			return len;
	}
	len = udp_receive_queued(sock, rx->msg, rx->flags);
	if (len != -ENODATA) {
		vma_inet_count_wait_poll_hit_or_miss(sock->stats, &rx->wait);
		return len;
	}
	if (atomic_load_explicit(&sock->shut_rd, memory_order_relaxed))
		return 0;
	if (rc == 0)
		return udp_recv_count_eagain(sock);
	/* Of what has ended the wait nothing was for this call: a fork in a handler, say, has the shadow asked. */
	return rx->wait.handled && !recv_is_restartable(rx) ? -EINTR : -ENODATA;
}

static ssize_t wait_and_receive(struct udp_sock *sock, int fd, struct msghdr *msg, int flags)
{
	struct rx_wait rx;
	ssize_t len;

	recv_wait_init(&rx, sock, fd, msg, flags);
	do
		len = wait_and_receive_once(&rx);
	while (len == -ENODATA);
	rx_wait_close_edge_epfd(&rx);
	return len;
}

/* ---- the general way ---- */

void udp_offload_inherited_socket(struct udp_sock *sock)
{
	pthread_mutex_lock(&sock->file.lock);
	if (atomic_exchange_explicit(&sock->inherited, false, memory_order_relaxed) && !sock->file.os_only) {
		vma_file_record_creating_thread_and_core(&sock->file);
		udp_flows_update(sock);
		udp_dst_rebuild_after_change(sock);
	}
	pthread_mutex_unlock(&sock->file.lock);
}

/* What the kernel finds wrong before it looks for data. */
static int check_recv_msghdr(const struct msghdr *msg)
{
	struct vma_inet_iov_iter iov_iter;
	int rc;

	if (msg->msg_name != NULL && msg->msg_namelen > INT32_MAX)
		return -EINVAL;
	rc = vma_inet_iov_iter_init_from_msghdr(&iov_iter, msg);
	vma_inet_iov_iter_release(&iov_iter);
	return rc;
}

/* A wake-up may have been spent on a call that took something else, or nothing: what is queued is for the next. */
static void recv_pass_wakeup_on(struct udp_sock *sock)
{
	if (udp_has_datagram(atomic_load_explicit(&sock->attachments, memory_order_acquire)))
		vma_waitq_wake(&sock->file.waitq, false);
}

/* What the call waits for could only come when it has returned. */
static bool is_in_own_callback(const struct udp_sock *sock)
{
	const struct udp_extra_api_state *extra = atomic_load_explicit(&sock->extra, memory_order_acquire);

	return extra != NULL && vma_callback_source_is_running_here(&extra->source);
}

ssize_t udp_recv_when_queue_is_empty(struct udp_sock *sock, int fd, struct msghdr *msg, int flags)
{
	ssize_t len = -EAGAIN;

	if (udp_fork_shared_has_changed(sock))
		udp_apply_changes_of_forked_processes(sock);
	if (flags & MSG_DONTWAIT || atomic_load_explicit(&sock->nonblocking, memory_order_relaxed)) {
		if (recv_is_due_to_check_kernel_socket(sock, vma_engine_get_or_start()))
			len = recv_from_os(sock, fd, msg, flags);
		/* Another thread may be forking: what was queued a moment ago is there now. */
		if (len == -EAGAIN && udp_has_nonempty_fork_queue(sock))
			len = udp_receive_queued(sock, msg, flags);
		return len == -EAGAIN || len == -ENODATA ? udp_recv_count_eagain(sock) : len;
	}
	if (is_in_own_callback(sock))
		return -EDEADLK;
	if (!recv_waiter_enter(sock))
		return -EBADF;
	len = wait_and_receive(sock, fd, msg, flags);
	recv_pass_wakeup_on(sock);
	recv_waiter_leave_and_finish_close(sock);
	return len;
}

static void deferred_recv_on_cancel(void *arg)
{
	struct vma_thread *self = vma_enter();

	udp_deferred_end_kernel_recv(arg);
	vma_leave(self);
}

static ssize_t __attribute__((noinline))
recv_in_kernel_of_deferred(struct udp_sock *sock, int fd, struct msghdr *msg, int flags)
{
	ssize_t len;

	pthread_cleanup_push(deferred_recv_on_cancel, sock);
	len = recv_from_kernel_blocking(fd, msg, flags);
	pthread_cleanup_pop(0);
	stats_count_recv_from_kernel(sock, len);
	udp_deferred_end_kernel_recv(sock);
	return len;
}

ssize_t udp_recv_slow_path(struct udp_sock *sock, int fd, struct msghdr *msg, int flags)
{
	ssize_t len;

	if (sock->file.os_only || flags & MSG_ERRQUEUE)
		return recv_from_kernel_blocking(fd, msg, flags);
	if (udp_offload_is_deferred(sock) && udp_deferred_begin_recv_or_offload(sock, fd))
		return recv_in_kernel_of_deferred(sock, fd, msg, flags);
	if (udp_fork_shared_has_changed(sock))
		udp_apply_changes_of_forked_processes(sock);
	if (atomic_load_explicit(&sock->inherited, memory_order_relaxed))
		udp_offload_inherited_socket(sock);
	if (vma_engine_get_or_start() == NULL)
		return recv_from_kernel_blocking(fd, msg, flags);
	len = check_recv_msghdr(msg);
	if (len != 0)
		return len;
	/* What a fork has left is older than all that the shadow has got since. */
	if (udp_has_nonempty_fork_queue(sock)) {
		len = udp_receive_queued(sock, msg, flags);
		if (len != -ENODATA)
			return len;
	}
	if (atomic_load_explicit(&sock->os_attention, memory_order_relaxed)) {
		len = recv_from_os(sock, fd, msg, flags);
		if (len != -EAGAIN)
			return len;
	}
	vma_ring_ctxs_catch_up(udp_socket_rings_mask(&sock->file));
	len = udp_receive_queued(sock, msg, flags);
	return len == -ENODATA ? udp_recv_when_queue_is_empty(sock, fd, msg, flags) : len;
}
