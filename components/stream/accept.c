/*
 * accept.c - connections that have come: queued by the thread that drives, taken by accept; and those of the shadow's
 * queue.
 *
 * A connection that waits is a socket already, without a descriptor. Its shadow is made when it is accepted. So if the
 * process runs out of descriptors, the connection stays in the queue, as with the kernel.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stream_priv.h"
#include "xtreme.h"

#define OS_FIRST 8 /* every so many accepts the shadow's queue comes first */

/* ---- the queue ---- */

/* The kernel's: one more than the backlog. */
bool stream_accept_queue_is_full(const struct stream_sock *listener)
{
	return atomic_load_explicit(&listener->n_queued, memory_order_relaxed) >
	       atomic_load_explicit(&listener->backlog, memory_order_relaxed);
}

static void accepted_conn_set_names(struct stream_sock *child, const struct vma_tcp_conn *conn)
{
	struct vma_flow_key key;

	vma_tcp_conn_key(conn, &key);
	child->name = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = key.local_port_be};
	child->peer = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = key.peer_port_be};
	memcpy(&child->name.sin_addr, key.local, 4);
	memcpy(&child->peer.sin_addr, key.peer, 4);
}

bool stream_enqueue_accepted(struct stream_sock *listener, struct vma_tcp_conn *conn, struct vma_ring_ctx *ring_ctx)
{
	struct stream_sock *child = stream_create(listener->engine, listener->file.family, false);

	if (child == NULL)
		return false;
	accepted_conn_set_names(child, conn);
	atomic_fetch_add_explicit(&ring_ctx->refs, 1, memory_order_relaxed); /* the listener holds it */
	child->ring_ctx = ring_ctx;
	child->attempt = STREAM_REPORTED;
	atomic_store(&child->rings, vma_ring_ctx_bit(ring_ctx));
	atomic_store(&child->conn, conn);
	atomic_store(&child->phase, STREAM_CONNECTED);
	atomic_store(&child->reason, VMA_SOCK_OFFLOADED);
	vma_file_get(&child->file); /* the connection's */
	vma_tcp_conn_set_owner_and_replay_events(conn, &stream_owner, child);
	atomic_fetch_add(&listener->n_queued, 1);
	vma_mpsc_push(&listener->arrived, &child->link);
	if (__builtin_expect(atomic_load(&listener->exec_exported), 0))
		stream_schedule_listen_update(listener);
	vma_file_wake_sleepers_and_watchers(&listener->file, EPOLLIN | EPOLLRDNORM);
	return true;
}

static struct stream_sock *listener_pop_accepted_sock(struct stream_sock *listener)
{
	ck_stack_entry_t *entry;

	stream_io_lock_acquire(&listener->accepter);
	if (listener->queue == NULL)
		listener->queue = vma_mpsc_take_all(&listener->arrived);
	entry = listener->queue;
	if (entry != NULL) {
		listener->queue = ck_pr_load_ptr(&entry->next);
		atomic_fetch_sub(&listener->n_queued, 1);
	}
	stream_io_lock_release(&listener->accepter);
	if (entry == NULL)
		return NULL;
	return (struct stream_sock *)((char *)entry - offsetof(struct stream_sock, link));
}

/* Never seen by the application: reset, and gone; or gone to another process that serves the listener. */
static void accepted_conn_drop(struct stream_sock *child, bool is_ours)
{
	struct vma_tcp_conn *conn = stream_tcp_conn(child);

	pthread_mutex_lock(&child->file.lock);
	if (conn != NULL && is_ours)
		vma_tcp_close(conn, true);
	else if (conn != NULL)
		vma_tcp_drop_adopted_elsewhere(conn);
	stream_conn_end(child);
	pthread_mutex_unlock(&child->file.lock);
	vma_file_put(&child->file);
}

/* It is this process's from now on, and has a rule of its own soon. False: another process has it. */
static bool accepted_conn_claim(struct stream_sock *child)
{
	struct vma_tcp_conn *conn = stream_tcp_conn(child);

	if (conn == NULL || !vma_tcp_is_pending(conn))
		return true;
	if (!vma_tcp_claim_accepted_conn(conn))
		return false;
	vma_engine_schedule_steer_of_conn(conn);
	return true;
}

static struct stream_sock *accept_take_queued_child(struct stream_sock *listener)
{
	struct stream_sock *child;

	while ((child = listener_pop_accepted_sock(listener)) != NULL && !accepted_conn_claim(child))
		accepted_conn_drop(child, false);
	return child;
}

void stream_drop_unaccepted(struct stream_sock *listener)
{
	struct stream_sock *child;

	while ((child = listener_pop_accepted_sock(listener)) != NULL)
		accepted_conn_drop(child, accepted_conn_claim(child));
}

/* ---- one of ours ---- */

/*
 * The allocation logic goes by who accepts. A connection whose ring is not its listener's moves there before anybody
 * else knows of it. If it cannot move, it stays on its listener's ring.
 */
static void accepted_conn_move_to_own_ring(struct stream_sock *child, const struct stream_sock *listener)
{
	const struct vma_ring_requester where = vma_file_get_ring_requester(&child->file, &child->name.sin_addr);
	struct vma_ring_ctx *ring_ctx, *before = child->ring_ctx;
	struct vma_tcp_conn *conn = stream_tcp_conn(child);
	struct vma_tcp *tcp;

	if (conn == NULL || before == NULL ||
	    !vma_conn_ring_may_differ_from_listener(child->engine, &child->file, &listener->file) ||
	    vma_ring_ctx_find_or_create(before->device, VMA_RING_CTX_TCP, &where, &ring_ctx) < 0)
		return;
	if (ring_ctx == before || vma_ring_ctx_get_or_create_tcp_stack(ring_ctx, &tcp) < 0 ||
	    vma_tcp_move_to_stack(conn, tcp) < 0) {
		vma_ring_ctx_put(ring_ctx);
		return;
	}
	child->ring_ctx = ring_ctx;
	atomic_store(&child->rings, vma_ring_ctx_bit(ring_ctx));
	vma_ring_ctx_put(before);
}

static void accepted_conn_inherit_options(struct stream_sock *child, struct stream_sock *listener)
{
	pthread_mutex_lock(&listener->file.lock);
	pthread_mutex_lock(&child->file.lock);
	stream_options_inherit(child, listener);
	stream_forking_tally_add_accepted_conn(child, listener);
	pthread_mutex_unlock(&listener->file.lock);
	child->local = child->name;
	stream_route_find_for_accepted(child, child->engine);
	child->local = (struct sockaddr_in){0};
	pthread_mutex_unlock(&child->file.lock);
}

/*
 * Accepted, but nobody is told of it: closed as by close, which the peer sees as an orderly end. SO_LINGER, which the
 * listener may have, would have this call wait.
 */
static void close_undelivered_accepted_conn(struct stream_sock *child, int fd)
{
	if (child->linger_sec != 0)
		child->linger_on = false;
	if (vma_fd_install(fd, &child->file) == 0)
		vma_fd_remove(fd);
	else
		accepted_conn_drop(child, true);
	syscall(SYS_close, fd);
}

/* A call that accepts is one more that finds something ready: the answer may follow without a wait. */
static void enable_tx_batch_on_short_lived_accept(const struct stream_sock *child)
{
	struct vma_thread *self = vma_thread_self();
	const bool was_brief = self->tx_short_lived;

	self->tx_short_lived = stream_listener_conns_are_short_lived(child);
	if (was_brief || self->tx_short_lived)
		vma_thread_set_tx_batch(self, 1);
}

/* The descriptor; -EAGAIN: another thread was quicker. An address that cannot be written costs the connection. */
static int accept_offloaded_conn(struct stream_sock *listener, struct sockaddr *addr, socklen_t *len, int flags)
{
	int fd = vma_os.socket(listener->file.family, SOCK_STREAM | flags, IPPROTO_TCP), rc = 0;
	struct stream_sock *child;

	if (fd < 0)
		return -errno;
	child = accept_take_queued_child(listener);
	if (child == NULL) {
		syscall(SYS_close, fd);
		return -EAGAIN;
	}
	atomic_store(&child->nonblocking, (flags & SOCK_NONBLOCK) != 0);
	vma_file_record_creating_thread_and_core(&child->file);
	vma_file_inherit_ring_requests(&child->file, &listener->file);
	accepted_conn_move_to_own_ring(child, listener);
	accepted_conn_inherit_options(child, listener);
	if (addr != NULL)
		rc = vma_sockaddr_in_copy_to_program(child->file.family, &child->peer, addr, len);
	if (rc < 0) {
		close_undelivered_accepted_conn(child, fd);
		return rc;
	}
	rc = vma_fd_install(fd, &child->file);
	if (rc < 0) {
		accepted_conn_drop(child, true);
		syscall(SYS_close, fd);
		return rc;
	}
	child->stats = vma_engine_alloc_socket_stats(child->engine, fd, &child->stats_count);
	stream_describe_for_stats(child);
	enable_tx_batch_on_short_lived_accept(child);
	stream_xtreme_watch(child, 0);
	return fd;
}

int stream_accept_queued_conn(struct stream_sock *listener)
{
	if (!atomic_load_explicit(&listener->was_polled, memory_order_relaxed))
		atomic_store(&listener->was_polled, true);
	vma_ring_ctxs_count_accept(stream_ring_bits(&listener->file));
	return accept_offloaded_conn(listener, NULL, NULL, 0);
}

int stream_accept_one_offloaded(struct stream_sock *listener)
{
	return accept_offloaded_conn(listener, NULL, NULL, SOCK_CLOEXEC);
}

/* ---- one of the shadow's ---- */

static void accept_in_kernel_on_cancel(void *arg)
{
	struct stream_sock *listener = arg;
	struct vma_thread *self = vma_enter();

	atomic_store(&listener->os_accept, false);
	stream_call_leave(listener);
	vma_file_put(&listener->file);
	vma_leave(self);
}

/*
 * What poll has seen another process may have taken, and then the call waits in the kernel: outside, where handlers run
 * and the thread can be cancelled. No other thread of this process follows it there.
 */
static int accept_in_kernel_allow_signals(struct stream_sock *listener, int fd, struct sockaddr *addr, socklen_t *len,
                                          int flags)
{
	int rc;

	if (atomic_exchange(&listener->os_accept, true))
		return -EAGAIN;
	vma_file_get(&listener->file);
	pthread_cleanup_push(accept_in_kernel_on_cancel, listener);
	vma_leave_to_block();
	rc = vma_os.accept4(fd, addr, len, flags);
	if (rc < 0)
		rc = -errno;
	pthread_cleanup_pop(0);
	vma_enter();
	atomic_store(&listener->os_accept, false);
	vma_file_put(&listener->file);
	return rc;
}

static int accept_from_shadow(struct stream_sock *listener, int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
	int rc;

	fd = stream_shadow_fd(listener, fd);
	if (fd < 0)
		return -EBADF;
	if (atomic_load_explicit(&listener->nonblocking, memory_order_relaxed) ||
	    stream_sock_phase(listener) != STREAM_LISTENING) {
		rc = (int)syscall(SYS_accept4, fd, addr, len, flags);
		if (rc < 0)
			rc = -errno;
	} else {
		rc = fd_is_readable_now(fd) ? accept_in_kernel_allow_signals(listener, fd, addr, len, flags) : -EAGAIN;
	}
	if (rc >= 0 && vma_fd_lookup(rc) != NULL)
		vma_fd_remove(rc); /* its number was closed unseen */
	return rc;
}

/* ---- accept ---- */

static bool listener_wait_is_over(struct stream_sock *listener, const struct stream_wait_condition *what)
{
	(void)what;
	return atomic_load_explicit(&listener->n_queued, memory_order_acquire) != 0 ||
	       stream_fork_queue_has_conns(listener) || stream_sock_phase(listener) != STREAM_LISTENING;
}

static int accept_from_os_or_ours(struct stream_sock *listener, int fd, struct sockaddr *addr, socklen_t *len,
                                  int flags)
{
	bool os_first = atomic_fetch_add_explicit(&listener->accept_calls, 1, memory_order_relaxed) % OS_FIRST == 0;
	int rc = os_first ? accept_from_shadow(listener, fd, addr, len, flags) : -EAGAIN;

	if (rc == -EAGAIN && stream_fork_queue_has_conns(listener))
		rc = stream_fork_queue_accept(listener, addr, len, flags);
	for (unsigned steps = 0; rc == -EAGAIN && steps < VMA_RING_CTXS_STEPS &&
	                         atomic_load_explicit(&listener->n_queued, memory_order_acquire) == 0;
	     steps++)
		if (vma_ring_ctxs_catch_up(stream_ring_bits(&listener->file)) < VMA_RING_CTXS_FULL)
			break;
	if (rc == -EAGAIN && atomic_load_explicit(&listener->n_queued, memory_order_acquire) != 0)
		rc = accept_offloaded_conn(listener, addr, len, flags);
	if (rc == -EAGAIN && !os_first)
		rc = accept_from_shadow(listener, fd, addr, len, flags);
	return rc;
}

static int listener_wait_for_conn(struct stream_sock *listener, int fd, uint64_t *deadline_ns)
{
	const struct vma_engine *engine = vma_engine_get_or_start();
	struct stream_wait_condition what = {
	        .ready = listener_wait_is_over, .spin = &listener->rx_spin, .shadow_fd = fd};
	int rc;

	if (*deadline_ns == 0)
		*deadline_ns = vma_inet_deadline(atomic_load_explicit(&listener->rcvtimeo_ns, memory_order_relaxed));
	what.deadline_ns = *deadline_ns;
	what.spin_loops = engine != NULL ? engine->conf.rx_poll : 0;
	rc = stream_wait(listener, &what);
	return rc > 0 ? 0 : rc < 0 ? rc : -EAGAIN;
}

/* Held by stream_call_enter. */
static int accept_or_wait_for_conn(struct stream_sock *listener, int fd, struct sockaddr *addr, socklen_t *len,
                                   int flags)
{
	uint64_t deadline_ns = 0;
	int rc;

	for (;;) {
		if (stream_sock_phase(listener) != STREAM_LISTENING)
			return accept_from_shadow(listener, fd, addr, len, flags); /* says why not */
		rc = accept_from_os_or_ours(listener, fd, addr, len, flags);
		if (rc != -EAGAIN || atomic_load_explicit(&listener->nonblocking, memory_order_relaxed))
			return rc;
		rc = listener_wait_for_conn(listener, fd, &deadline_ns);
		if (rc != 0)
			return rc;
	}
}

int stream_accept4(struct vma_file *file, int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
	struct stream_sock *listener = stream_sock(file);
	int rc;

	if ((flags & ~(SOCK_CLOEXEC | SOCK_NONBLOCK)) != 0)
		return -EINVAL;
	if (!atomic_load_explicit(&listener->was_polled, memory_order_relaxed))
		atomic_store(&listener->was_polled, true);
	if (atomic_load_explicit(&listener->inherited, memory_order_relaxed))
		stream_use_inherited_socket(listener);
	if (__builtin_expect(stream_listener_is_due_for_hand_over(listener), 0))
		stream_leave_forking_listener_to_kernel(listener);
	if (!stream_call_enter(listener))
		return -EBADF;
	vma_ring_ctxs_count_accept(stream_ring_bits(file));
	rc = accept_or_wait_for_conn(listener, fd, addr, len, flags);
	/* A wake-up may have been spent on a call that took something else, or nothing. */
	if (atomic_load_explicit(&listener->n_queued, memory_order_acquire) != 0)
		vma_waitq_wake(&listener->file.waitq, false);
	stream_call_leave(listener);
	return rc;
}
