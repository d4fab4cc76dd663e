/*
 * conn.c - a socket's connection: its events, and how the two part.
 *
 *   connect, accept ── conn, path, ring context, a reference of the socket ┐
 *   an event ── flags of the socket, waiters                               │
 *   close ──┬─ shadow binds no port: parted at once, tcp goes on alone ────┤
 *           └─ else the shadow stays under a number of the library's until │
 *              the connection is over; then the internal thread ───────────┴──> stream_conn_end
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "extra.h"
#include "stream_priv.h"
#include "xtreme.h"

#define IN (EPOLLIN | EPOLLRDNORM)
#define OUT (EPOLLOUT | EPOLLWRNORM)

/* ---- events: under the ring's flag ---- */

/* The first error stays until it is told. */
static void set_so_error(struct stream_sock *sock, int error)
{
	int none = 0;

	atomic_compare_exchange_strong(&sock->so_error, &none, error);
}

void vma_stream_set_pending_error(struct vma_file *file, int error)
{
	set_so_error(stream_sock(file), error);
	stream_wake_waiters(stream_sock(file), EPOLLERR);
}

/* The error is there before the phase: who sees that the attempt has ended finds why. */
static void stream_on_connect_failed(struct stream_sock *sock, int error)
{
	uint8_t connecting = STREAM_CONNECTING;

	if (stream_sock_phase(sock) == STREAM_FAILED)
		return; /* by us: stream_fail_connect */
	set_so_error(sock, error);
	atomic_compare_exchange_strong(&sock->phase, &connecting, STREAM_FAILED);
}

static void stream_on_connected(struct stream_sock *sock, struct vma_tcp_conn *conn)
{
	uint8_t connecting = STREAM_CONNECTING;

	if (stream_sock_phase(sock) != STREAM_CONNECTING)
		return;
	atomic_store(&sock->conn, conn); /* connect() may not have come to it */
	atomic_compare_exchange_strong(&sock->phase, &connecting, STREAM_CONNECTED);
}

/* ---- signals ---- */

/*
 * What send_sigio of the kernel says to who has chosen the signal: what is ready, and where. Nobody but the kernel may
 * say POLL_IN to another thread, so it is SI_SIGIO, of which the wrapper of handlers makes what it stands for
 * (thread/signals.c); sigwaitinfo and signalfd see it as it is.
 */
static int send_sigio_to_owner(const struct f_owner_ex *owner, int fd, int sig, uint32_t ready)
{
	siginfo_t info = {.si_signo = sig, .si_code = SI_SIGIO};

	info.si_fd = fd;
	info.si_band = ready & EPOLLERR ? EPOLLERR : ready & EPOLLIN ? IN : OUT | EPOLLWRBAND;
	if (owner->type == F_OWNER_TID)
		return (int)syscall(SYS_rt_tgsigqueueinfo, syscall(SYS_getpid), owner->pid, sig, &info);
	if (owner->type == F_OWNER_PID)
		return (int)syscall(SYS_rt_sigqueueinfo, owner->pid, sig, &info);
	return kill(-owner->pid, sig);
}

/* Whom F_SETOWN has named, by the signal of F_SETSIG; the shadow knows. SIGIO, too, where no more can be queued. */
static void sigio_signal_owner(const struct stream_sock *sock, bool urgent, uint32_t ready)
{
	const int fd = atomic_load_explicit(&sock->file.fd, memory_order_relaxed);
	const int chosen = urgent ? 0 : vma_os.fcntl(fd, F_GETSIG, NULL);
	struct f_owner_ex owner = {0};

	if (vma_os.fcntl(fd, F_GETOWN_EX, &owner) < 0 || owner.pid == 0)
		return;
	if (chosen > 0 && (send_sigio_to_owner(&owner, fd, chosen, ready) == 0 || errno != EAGAIN))
		return;
	if (owner.type == F_OWNER_TID)
		syscall(SYS_tgkill, syscall(SYS_getpid), owner.pid, urgent ? SIGURG : SIGIO);
	else
		kill(owner.type == F_OWNER_PGRP ? -owner.pid : owner.pid, urgent ? SIGURG : SIGIO);
}

/* What of the events epoll and poll know. */
static uint32_t tcp_events_to_epoll(uint32_t events)
{
	uint32_t ready = 0;

	if (events & VMA_TCP_READABLE)
		ready |= IN;
	if (events & (VMA_TCP_WRITABLE | VMA_TCP_CONNECTED))
		ready |= OUT;
	if (events & VMA_TCP_PEER_CLOSED)
		ready |= IN | EPOLLRDHUP;
	if (events & VMA_TCP_FAILED)
		ready |= IN | OUT | EPOLLRDHUP | EPOLLHUP | EPOLLERR;
	if (events & VMA_TCP_URGENT)
		ready |= EPOLLPRI;
	if (events & VMA_TCP_CLOSED)
		ready |= IN | OUT | EPOLLRDHUP | EPOLLHUP;
	return ready;
}

static void stream_on_event(struct vma_tcp_conn *conn, void *arg, uint32_t events)
{
	struct stream_sock *sock = arg;
	uint32_t ready = tcp_events_to_epoll(events);

	/* Nearly always: told once for all of a burst, after the ring's flag has been given back. */
	if (__builtin_expect(events == VMA_TCP_READABLE && !atomic_load_explicit(&sock->async, memory_order_relaxed),
	                     1)) {
		vma_file_wake_readers_or_batch(&sock->file);
		return;
	}
	if (events & VMA_TCP_ARRIVED)
		stream_inspector_on_arrival(sock, conn);
	if (events & VMA_TCP_STEERED && atomic_load(&sock->has_port_alone))
		stream_port_schedule_sharing(sock);
	if (events & VMA_TCP_CONNECTED)
		stream_on_connected(sock, conn);
	if (events & VMA_TCP_PEER_CLOSED)
		atomic_store_explicit(&sock->fin_seen, true, memory_order_release);
	if (events & VMA_TCP_FAILED)
		stream_on_connect_failed(sock, vma_tcp_error(conn));
	if (events & VMA_TCP_URGENT)
		sigio_signal_owner(sock, true, 0);
	if (events & (VMA_TCP_DRAINED | VMA_TCP_CLOSED | VMA_TCP_FAILED))
		atomic_store(&sock->drained, true);
	if (events & (VMA_TCP_CLOSED | VMA_TCP_FAILED) &&
	    atomic_exchange(&sock->close_state, STREAM_CLOSED) == STREAM_CLOSING)
		vma_engine_post_task_within_1ms(&sock->end_task);
	if (__builtin_expect(atomic_load_explicit(&sock->async, memory_order_relaxed), 0) && ready != 0)
		sigio_signal_owner(sock, false, ready);
	if (ready != 0)
		stream_wake_waiters(sock, ready);
	else if (events & VMA_TCP_DRAINED)
		vma_waitq_wake(&sock->file.waitq, true);
}

const struct vma_tcp_conn_ops stream_owner = {.event = stream_on_event, .take = stream_xtreme_take_arriving_piece};

/* ---- parting ---- */

/* Disowned first: until then an event may name the connection as the socket's, which it must not any more. */
void stream_conn_end(struct stream_sock *sock)
{
	struct vma_tcp_conn *conn = stream_tcp_conn(sock);
	struct vma_ring_ctx *ring_ctx = sock->ring_ctx;

	if (conn != NULL)
		vma_tcp_conn_drop_owner_and_abort(conn);
	stream_route_unwatch_path(sock);
	if (conn == NULL)
		return;
	atomic_store(&sock->conn, NULL);
	vma_tcp_conn_put(conn);
	atomic_store(&sock->rings, 0);
	sock->ring_ctx = NULL;
	if (ring_ctx != NULL)
		vma_ring_ctx_put(ring_ctx);
	vma_file_put(&sock->file);
}

/* ---- close ---- */

/*
 * The shadow that holds the port lives on under another number. Failing that (no descriptor), the port may be given to
 * somebody else before the connection is over, as with SO_REUSEADDR.
 */
void stream_dup_shadow_at_close(struct stream_sock *sock)
{
	int kept;

	if (atomic_load(&sock->lingering_fd) != 0)
		return;
	kept = vma_inet_dup_shadow_fd(atomic_load(&sock->file.fd), atomic_load(&sock->cookie));
	if (kept >= 0)
		atomic_store(&sock->lingering_fd, kept);
}

void stream_close_lingering_shadow(struct stream_sock *sock)
{
	int fd = atomic_exchange(&sock->lingering_fd, 0);

	if (fd != 0)
		vma_fd_unguard_close(fd);
}

static void stream_end_task(struct vma_internal_task *task)
{
	struct stream_sock *sock = (struct stream_sock *)((char *)task - offsetof(struct stream_sock, end_task));

	pthread_mutex_lock(&sock->file.lock);
	stream_close_lingering_shadow(sock);
	stream_conn_end(sock);
	pthread_mutex_unlock(&sock->file.lock);
}

/*
 * `close_state` goes from OPEN to CLOSING here, or to CLOSED by the event, whichever is first: the second of the two
 * ends it, the event by the task, which finds the socket there because the connection holds it.
 */
static void stream_end_conn_now_or_when_drained(struct stream_sock *sock)
{
	uint8_t none = STREAM_OPEN;

	sock->end_task.run = stream_end_task;
	if (atomic_load(&sock->lingering_fd) != 0 && stream_tcp_conn(sock) != NULL &&
	    atomic_compare_exchange_strong(&sock->close_state, &none, STREAM_CLOSING))
		return;
	stream_close_lingering_shadow(sock);
	stream_conn_end(sock);
}

static bool sock_has_bound_port(const struct stream_sock *sock)
{
	return sock->reserved.sin_family == AF_INET || sock->local.sin_family == AF_INET;
}

void stream_conn_close(struct stream_sock *sock, bool may_linger)
{
	struct vma_tcp_conn *conn = stream_tcp_conn(sock);

	if (conn != NULL) {
		stream_tally_count_short_lived_close(sock);
		vma_tcp_close(conn, sock->linger_on && sock->linger_sec == 0);
		if (sock_has_bound_port(sock))
			stream_dup_shadow_at_close(sock);
		/* In its own callback it would wait for the verdict of this very thread. */
		if (may_linger && sock->linger_on && sock->linger_sec != 0 && !atomic_load(&sock->drained) &&
		    !stream_is_in_own_callback(sock)) {
			vma_file_get(&sock->file);
			sock->next_lingering = vma_stream_lingering_socket;
			vma_stream_lingering_socket = sock;
			return;
		}
	}
	stream_end_conn_now_or_when_drained(sock);
}

/* ---- SO_LINGER ---- */

__thread void *vma_stream_lingering_socket;

static bool linger_is_over(struct stream_sock *sock, const struct stream_wait_condition *what)
{
	(void)what;
	return atomic_load(&sock->drained);
}

static void linger_end(struct stream_sock *sock)
{
	pthread_mutex_lock(&sock->file.lock);
	stream_end_conn_now_or_when_drained(sock);
	pthread_mutex_unlock(&sock->file.lock);
	vma_file_put(&sock->file);
}

static struct stream_sock *linger_take_next(void)
{
	struct stream_sock *sock = vma_stream_lingering_socket;

	if (sock != NULL)
		vma_stream_lingering_socket = sock->next_lingering;
	return sock;
}

/* Nobody waits for the others any more, either: they are sent in the background. */
static void linger_on_cancel(void *arg)
{
	struct vma_thread *self = vma_enter();

	for (struct stream_sock *sock = arg; sock != NULL; sock = linger_take_next())
		linger_end(sock);
	vma_leave(self);
}

/* A signal ends it, as it ends the kernel's; close succeeds all the same. */
static void stream_wait_so_linger(struct stream_sock *sock)
{
	const struct stream_wait_condition what = {.ready = linger_is_over,
	                                           .spin = &sock->tx_spin,
	                                           .deadline_ns = vma_inet_deadline(sock->linger_sec * 1000000000ULL),
	                                           .shadow_fd = -1};

	atomic_fetch_add(&sock->waiting, 1); /* the wait takes it back if the thread is cancelled there */
	pthread_cleanup_push(linger_on_cancel, sock);
	stream_wait(sock, &what);
	pthread_cleanup_pop(0);
	vma_inet_remove_waiting_call(&sock->file, &sock->waiting);
	linger_end(sock);
}

void vma_stream_wait_for_lingering_sockets(void)
{
	const int saved = errno;
	struct vma_thread *self = vma_enter();
	struct stream_sock *sock;

	while ((sock = linger_take_next()) != NULL)
		stream_wait_so_linger(sock);
	vma_leave(self);
	vma_run_due_deferred_frees();
	errno = saved;
}
