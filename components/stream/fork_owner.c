/*
 * fork_owner.c - connections and fork: which process has them, and when they become the kernel's.
 *
 *   parent ── has the connection ──┬─ close, exit, exec: handed over ────────────────┐
 *                                  └─ internal thread <── eventfd, shared page ──┐   ├──> the shadow, which both have
 *   child ──┬─ closes it, ends: nothing                                          │   │
 *           └─ uses it: is the shadow connected? ── no: asks, waits ─────────────┘ <─┘
 *
 * The page (fork_rpc.h) and the eventfd are made before the first fork that finds a connection. So is a descriptor by
 * which children see that the parent has died. Numbers of files are the same on both sides.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>

#include "fork_rpc.h"
#include "stream_priv.h"

#define TIMEOUT_NS 5000000000ULL
#define SLEEP_NS 100000

/* The descriptors have the same numbers in all of these processes. */
struct stream_fork_owner {
	struct fork_rpc_page *page;
	int event_fd, pid_fd;
};

static struct stream_fork_owner *_Atomic own; /* of this process as a parent; changed in fork's handlers only */

/* ---- the parent ---- */

struct search {
	uint64_t id;
	struct stream_sock *found;
};

static void fork_owner_match_file_by_id(struct vma_file *file, void *arg)
{
	struct search *search = arg;

	if (file->kind == VMA_FILE_TCP && file->id == search->id)
		search->found = stream_sock(file);
}

/*
 * One that is not there any more has been handed over, is being closed just now, or has ended. Nor is it there when its
 * last descriptor has gone (-EBADF: the kernel's, too), and the lock was had before the close came to hand it over.
 */
static enum fork_rpc_result hand_over_conn_by_id_to_kernel(uint64_t id)
{
	struct search search = {.id = id};
	struct stream_sock *sock;
	int rc = -ENOTCONN;
	bool closing;

	vma_file_each(fork_owner_match_file_by_id, &search);
	sock = search.found;
	if (sock == NULL)
		return FORK_RPC_UNKNOWN;
	pthread_mutex_lock(&sock->file.lock);
	closing = !sock->file.os_only && stream_has_ended(sock);
	if (!sock->file.os_only && !closing)
		rc = stream_hand_over_conn_to_kernel(sock, atomic_load(&sock->file.fd), VMA_SOCK_FORKED);
	closing |= rc == -EBADF;
	pthread_mutex_unlock(&sock->file.lock);
	if (rc == 0)
		stream_wake_waiters_after_hand_over(sock);
	return closing ? FORK_RPC_UNKNOWN : FORK_RPC_DONE;
}

/* The internal thread's. */
static void fork_owner_answer_children_task(struct vma_internal_task *task)
{
	uint64_t times;

	(void)task;
	if (syscall(SYS_read, own->event_fd, &times, sizeof(times)) >= 0)
		fork_rpc_answer_all(own->page, hand_over_conn_by_id_to_kernel);
}

static struct vma_internal_task fork_owner_answer_task = {.run = fork_owner_answer_children_task};

bool stream_hand_over_to_kernel(struct stream_sock *sock)
{
	int lingering = atomic_load(&sock->lingering_fd);

	return atomic_load(&sock->forked) &&
	       stream_hand_over_conn_to_kernel(sock, lingering != 0 ? lingering : atomic_load(&sock->file.fd),
	                                       VMA_SOCK_FORKED) == 0;
}

/*
 * A hand-over may be under way when the first fork makes the page; or without one, when the connection is passed on. So
 * its thread says HANDOVER_UNRECORDED first, and looks for the page then; the fork makes the page known first, and
 * looks for hand-overs then. All of that is sequentially consistent: one of them at least sees the other, and the note
 * is there before the child is. Who swaps UNNOTED for the note's place has made it. Only a note that was made is taken
 * away: place 0 may be that of another connection.
 */
enum { HANDOVER_NONE, HANDOVER_UNRECORDED, HANDOVER_RECORDED };

static void fork_owner_record_hand_over(struct stream_sock *sock, struct fork_rpc_page *page)
{
	uint32_t unnoted = HANDOVER_UNRECORDED, place = fork_rpc_mark_hand_over_begin(page, sock->file.id);

	if (!atomic_compare_exchange_strong(&sock->move, &unnoted, HANDOVER_RECORDED + place))
		fork_rpc_mark_hand_over_end(page, place);
}

void stream_mark_hand_over_begin(struct stream_sock *sock)
{
	struct stream_fork_owner *fork_owner;

	atomic_store(&sock->move, HANDOVER_UNRECORDED);
	fork_owner = atomic_load(&own);
	if (fork_owner != NULL)
		fork_owner_record_hand_over(sock, fork_owner->page);
}

void stream_mark_hand_over_end(struct stream_sock *sock, int rc)
{
	const uint32_t move = atomic_exchange(&sock->move, HANDOVER_NONE);
	struct stream_fork_owner *fork_owner = atomic_load(&own);

	if (fork_owner == NULL)
		return;
	if (rc == -EPERM)
		atomic_store(&fork_owner->page->forbidden, true);
	if (move >= HANDOVER_RECORDED)
		fork_rpc_mark_hand_over_end(fork_owner->page, move - HANDOVER_RECORDED);
}

void stream_fork_owner_close_rpc_page(void)
{
	if (own != NULL)
		fork_rpc_close_page(own->page);
}

void vma_stream_give_conn_to_kernel_before_dup2(int fd)
{
	struct vma_thread *self = vma_enter();
	struct vma_file *file = vma_fd_lookup(fd);
	bool moved = false;

	if (file != NULL && file->kind == VMA_FILE_TCP && !file->os_only && atomic_load(&stream_sock(file)->forked) &&
	    atomic_load(&file->slots) == 1) {
		pthread_mutex_lock(&file->lock);
		moved = stream_hand_over_to_kernel(stream_sock(file));
		pthread_mutex_unlock(&file->lock);
		if (moved)
			stream_wake_waiters_after_hand_over(stream_sock(file));
	}
	vma_leave(self);
}

/* ---- passed on: to the C library's streams, to another program ---- */

static bool hand_over_connection_to_kernel(struct stream_sock *sock, enum vma_sock_reason why)
{
	int fd = atomic_load(&sock->file.fd);

	stream_so_cookie(sock, fd);
	return stream_hand_over_conn_to_kernel(sock, fd, why) == 0;
}

/* The kernel's until whoever gets it has said that it has the library: passed.c. */
static void hand_over_listener_to_kernel(struct stream_sock *sock)
{
	const bool known = !stream_has_kernel_only_option(sock) && stream_prepare_send_by_scm_rights(sock);

	stream_listen_leave_to_kernel(sock, VMA_SOCK_PASSED_ON);
	vma_log_info("the listener on port %u is the kernel's %s", ntohs(sock->local.sin_port),
	             known ? "until all who have it are known to have this library"
	                   : "from now on: other processes have it, too");
}

/* It may become a listener there. Here it is the kernel's. */
static bool hand_over_unconnected_sock_to_kernel(struct stream_sock *sock)
{
	if (!stream_leave_unconnected_to_kernel(sock, VMA_SOCK_PASSED_ON))
		return false;
	if (sock->local.sin_port != 0 && !stream_has_kernel_only_option(sock)) {
		stream_so_cookie(sock, atomic_load(&sock->file.fd));
		stream_prepare_send_by_scm_rights(sock);
	}
	return true;
}

void stream_file_hand_over_to_kernel(struct vma_file *file)
{
	struct stream_sock *sock = stream_sock(file);
	bool moved = false, given = false;

	if (file->os_only) {
		vma_stream_take_from_fork_owner(file);
		pthread_mutex_lock(&file->lock);
		if (sock->passed != NULL)
			stream_prepare_send_by_scm_rights(sock);
		pthread_mutex_unlock(&file->lock);
		return;
	}
	pthread_mutex_lock(&file->lock);
	if (!file->os_only && !stream_has_ended(sock)) {
		given = hand_over_unconnected_sock_to_kernel(sock) || stream_hand_connecting_to_kernel(sock);
		if (!given && stream_sock_phase(sock) == STREAM_CONNECTED)
			moved = hand_over_connection_to_kernel(sock, VMA_SOCK_PASSED_ON);
		else if (!given && stream_sock_phase(sock) == STREAM_LISTENING && (!sock->hands_over || sock->paused))
			hand_over_listener_to_kernel(sock);
	}
	pthread_mutex_unlock(&file->lock);
	if (given)
		vma_file_set_poll_without_shadow(file, false);
	if (moved)
		stream_wake_waiters_after_hand_over(sock);
}

/* ---- exec ---- */

/* The program that uses it need not have the library: from now on it is the kernel's for everybody. */
int stream_file_give_to_kernel_before_exec(struct vma_file *file)
{
	struct stream_sock *sock = stream_sock(file);
	bool moved = false, given = false, listens = false;

	if (file->os_only) {
		vma_stream_take_from_fork_owner(file);
		return -1;
	}
	pthread_mutex_lock(&file->lock);
	if (!file->os_only && !stream_has_ended(sock)) {
		given = stream_leave_unconnected_to_kernel(sock, VMA_SOCK_EXEC) ||
		        stream_hand_connecting_to_kernel(sock);
		listens = stream_sock_phase(sock) == STREAM_LISTENING;
		if (!given && stream_sock_phase(sock) == STREAM_CONNECTED)
			moved = hand_over_connection_to_kernel(sock, VMA_SOCK_EXEC);
		else if (listens && (!sock->hands_over || sock->paused))
			stream_listen_leave_to_kernel(sock, VMA_SOCK_EXEC);
	}
	pthread_mutex_unlock(&file->lock);
	if (given)
		vma_file_set_poll_without_shadow(file, false);
	if (moved)
		stream_wake_waiters_after_hand_over(sock);
	return listens ? stream_export_conn_queue_fd_for_exec(sock) : -1;
}

static void fork_owner_give_conn_to_kernel_before_exec(struct vma_file *file, void *arg)
{
	struct stream_sock *sock = stream_sock(file);
	const struct timespec *until = arg;
	int fd = atomic_load(&file->fd);
	bool moved;

	if (file->kind == VMA_FILE_TCP && !file->os_only && stream_sock_phase(sock) == STREAM_LISTENING)
		stream_listener_offer_conns_before_exec(sock, until);
	if (file->kind != VMA_FILE_TCP || file->os_only || stream_tcp_conn(sock) == NULL ||
	    vma_os.fcntl(fd, F_GETFD, NULL) < 0 || pthread_mutex_timedlock(&file->lock, until) != 0)
		return;
	stream_so_cookie(sock, fd);
	moved = stream_hand_over_conn_to_kernel(sock, fd, VMA_SOCK_FORKED) == 0;
	pthread_mutex_unlock(&file->lock);
	if (moved)
		stream_wake_waiters_after_hand_over(sock);
}

/*
 * The program's own connections go along where their descriptors do; those that are close-on-exec end as by close, by
 * the kernel's hand. Of a parent's connections only those that stand where the new program looks for them: children
 * that have forgotten to close the others would cost the parent its offload.
 */
void vma_stream_give_conns_to_kernel_before_exec(void)
{
	struct timespec until = exit_lock_deadline_of_realtime();
	struct vma_thread *self = vma_enter();

	vma_file_each(fork_owner_give_conn_to_kernel_before_exec, &until);
	stream_create_kernel_timewait_sockets_at_exit();
	for (int fd = 0; fd <= STDERR_FILENO && atomic_load(&vma_any_file_needs_touch); fd++) {
		struct vma_file *file = vma_fd_lookup(fd);

		if (file != NULL)
			vma_stream_take_from_fork_owner(file);
	}
	vma_leave(self);
}

static void fork_owner_notify_queue_exec_failed(struct vma_file *file, void *arg)
{
	(void)arg;
	if (file->kind == VMA_FILE_TCP)
		stream_fork_queue_set_cloexec_again(stream_sock(file));
}

void vma_stream_exec_failed(void)
{
	struct vma_thread *self = vma_enter();

	vma_file_each(fork_owner_notify_queue_exec_failed, NULL);
	vma_leave(self);
}

/* ---- fork ---- */

/* Where the program's descriptors are not. */
static int fork_owner_move_fd_high(int fd)
{
	int rc = fd < 0 ? -errno : vma_fd_move_high_and_guard(fd);

	if (rc < 0 && fd >= 0)
		syscall(SYS_close, fd);
	return rc;
}

static void free_fork_owner(struct stream_fork_owner *fork_owner)
{
	if (fork_owner->event_fd >= 0)
		vma_fd_unguard_close(fork_owner->event_fd);
	if (fork_owner->pid_fd >= 0)
		vma_fd_unguard_close(fork_owner->pid_fd);
	if (fork_owner->page != NULL)
		fork_rpc_page_free(fork_owner->page);
	vma_free(fork_owner);
}

/* Without the descriptor of the process, children wait longer for a parent that has died; that is all. */
static int become_fork_owner(void)
{
	struct stream_fork_owner *fork_owner = vma_alloc(sizeof(*fork_owner));
	int rc;

	if (fork_owner == NULL)
		return -ENOMEM;
	fork_owner->page = fork_rpc_page_create();
	fork_owner->event_fd = rc = fork_owner_move_fd_high((int)syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK));
	fork_owner->pid_fd = fork_owner_move_fd_high((int)syscall(SYS_pidfd_open, syscall(SYS_getpid), 0));
	if (fork_owner->page == NULL)
		rc = -ENOMEM;
	if (rc >= 0)
		rc = vma_engine_watch_fd_with_task(fork_owner->event_fd, EPOLLIN, &fork_owner_answer_task);
	if (rc < 0)
		free_fork_owner(fork_owner);
	else
		atomic_store(&own, fork_owner);
	return rc;
}

/* Of hand-overs that began before there was a page. */
static void record_earlier_hand_over(struct vma_file *file, void *arg)
{
	struct stream_fork_owner *fork_owner = arg;

	if (file->kind == VMA_FILE_TCP && atomic_load(&stream_sock(file)->move) == HANDOVER_UNRECORDED)
		fork_owner_record_hand_over(stream_sock(file), fork_owner->page);
}

/*
 * Without the lock, which a thread may hold that has lost its processor, or that this handler of a signal interrupts. A
 * number leaves the table before the kernel closes it, so one that is still there was the socket's all the time.
 */
static void fork_owner_store_sock_cookie(struct stream_sock *sock)
{
	const int fd = atomic_load(&sock->file.fd);
	const uint64_t cookie = atomic_load(&sock->cookie) == 0 ? vma_sock_cookie(fd) : 0;

	if (cookie != 0 && vma_fd_lookup(fd) == &sock->file)
		atomic_store(&sock->cookie, cookie);
}

static void fork_owner_mark_conn_as_forked(struct vma_file *file, void *arg)
{
	struct stream_sock *sock = stream_sock(file);
	bool *any = arg;

	if (file->kind == VMA_FILE_TCP && !file->os_only && stream_sock_phase(sock) == STREAM_LISTENING)
		stream_listener_release_flows_and_conns(sock);
	/* What waits for accept has no descriptor that a child could use. */
	if (file->kind != VMA_FILE_TCP || file->os_only || stream_tcp_conn(sock) == NULL || atomic_load(&file->fd) < 0)
		return;
	*any = true;
	fork_owner_store_sock_cookie(sock);
	atomic_store(&sock->forked, true);
}

void vma_stream_fork_prepare(void)
{
	struct vma_thread *self;
	bool any = false;
	int rc = 0;

	if (atomic_load_explicit(&vma_engine_now, memory_order_acquire) == NULL)
		return;
	self = vma_enter();
	vma_file_each(fork_owner_mark_conn_as_forked, &any);
	if (any && own == NULL)
		rc = become_fork_owner();
	if (any && rc >= 0)
		vma_file_each(record_earlier_hand_over, atomic_load(&own));
	vma_leave(self);
	if (rc < 0)
		vma_log_warn("a forked process cannot ask for connections: %s", strerrordesc_np(-rc));
}

/* The engine's has told the files by now. */
__attribute__((cold)) void vma_stream_reset_in_fork_child(void)
{
	own = NULL;
	atomic_store(&stream_process_is_exiting, false);
}

/* ---- the child ---- */

__attribute__((cold)) void stream_conn_set_fork_owner(struct stream_sock *sock)
{
	sock->fork_owner = own;
	if (own == NULL)
		return;
	atomic_store(&sock->is_parents, true);
	atomic_store(&vma_any_file_needs_touch, true);
}

static bool fd_is_connected(int fd)
{
	struct sockaddr_in peer;
	socklen_t len = sizeof(peer);

	return vma_os.getpeername(fd, (struct sockaddr *)&peer, &len) == 0;
}

/* Connected, and nobody is about to tell the kernel more about it: in this order, see fork_rpc.c. */
static bool hand_over_is_complete(const struct stream_sock *sock, int fd)
{
	return fd_is_connected(fd) && !fork_rpc_hand_over_in_progress(sock->fork_owner->page, sock->file.id);
}

static void fork_owner_wake_parent(void *arg)
{
	const struct stream_fork_owner *fork_owner = arg;
	const uint64_t one = 1;

	if (syscall(SYS_write, fork_owner->event_fd, &one, sizeof(one)) < 0)
		vma_log_debug("a connection cannot be asked for: %s", strerrordesc_np(errno));
}

static bool fork_owner_parent_is_alive(void *arg)
{
	const struct stream_fork_owner *fork_owner = arg;
	struct pollfd fd = {.fd = fork_owner->pid_fd, .events = POLLIN};

	return fork_owner->pid_fd < 0 || syscall(SYS_poll, &fd, 1, 0) <= 0;
}

/*
 * What the parent is in the middle of: a hand-over, or a close, which takes the file from the list of all before it
 * hands the connection over.
 */
static void fork_owner_await_hand_over_by_parent(struct stream_sock *sock, int fd, bool closing)
{
	const uint64_t deadline_ns = vma_now_ns() + TIMEOUT_NS;
	const struct timespec nap = {.tv_nsec = SLEEP_NS};
	struct fork_rpc_page *page = sock->fork_owner->page;

	while (!hand_over_is_complete(sock, fd) &&
	       ((closing && !atomic_load(&page->forbidden)) || fork_rpc_hand_over_in_progress(page, sock->file.id)) &&
	       fork_owner_parent_is_alive(sock->fork_owner) && vma_now_ns() < deadline_ns)
		syscall(SYS_nanosleep, &nap, NULL);
}

static void fork_owner_ask_parent_to_hand_over(struct stream_sock *sock, int fd)
{
	const struct fork_rpc_parent parent = {.wake = fork_owner_wake_parent,
	                                       .is_alive = fork_owner_parent_is_alive,
	                                       .arg = sock->fork_owner,
	                                       .timeout_ns = TIMEOUT_NS};
	enum fork_rpc_result answer =
	        fd_is_connected(fd) ? FORK_RPC_DONE : fork_rpc_call(sock->fork_owner->page, sock->file.id, &parent);

	fork_owner_await_hand_over_by_parent(
	        sock, fd, answer == FORK_RPC_UNKNOWN && !atomic_load(&sock->fork_owner->page->closed));
}

/* Two threads may ask for the same one: the second request finds it done. */
void vma_stream_take_from_fork_owner(struct vma_file *file)
{
	struct stream_sock *sock = stream_sock(file);
	int fd = atomic_load(&file->fd);

	if (file->kind != VMA_FILE_TCP || !atomic_load(&sock->is_parents))
		return;
	if (!hand_over_is_complete(sock, fd))
		fork_owner_ask_parent_to_hand_over(sock, fd);
	if (hand_over_is_complete(sock, fd))
		atomic_store(&sock->reason, VMA_SOCK_FORKED);
	atomic_store(&sock->is_parents, false);
}
