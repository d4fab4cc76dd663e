/*
 * fork_queue.c - connections that waited for accept when the process forked. In the kernel any process that has the
 * listener gets them, and so it is here.
 *
 *   fork ── a listener that was not looked at yet ────┬─ gives back its flows: new connections are the kernel's
 *                                                     └─ what is queued becomes the kernel's, and waits in a pair of
 *   accept, here or in a child <── SCM_RIGHTS ──────────  sockets that all of them have
 *
 * A process may only listen, and leave accepting to its children. Otherwise it would keep for itself what came before
 * the first of them asked for the flows. If it accepts or polls the listener itself, it asks for the flows again. If it
 * has done so before it forks, it goes on as it was. Half-open connections are waited for, a few round trips. Requests
 * that come meanwhile are dropped, and their peers ask the kernel a second later.
 *
 * A program that has the listener by exec gets the end from which connections are taken (sock/engine/inherited.c). It
 * lowers no counter of the others, so `left` says only that there may be something, and the kernel is asked. Its own
 * `left` says so, too. It is set when its thread hears that something has come, or something was taken. It is cleared
 * before a look, so what comes after the look sets it again.
 *
 * In the pair no process holds the connections, so they end when the one that took them closes them. `left` says how
 * many there are, in memory that all share. It is raised after the sending, and lowered by the process that has
 * received one. Between the two it is wrong by one, which costs a look in vain, or is put right before the next look. A
 * process that has no descriptor left loses the connection that it takes; the kernel would leave it in the queue.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/sock_unix.h>

#include "stream_priv.h"

struct stream_fork_queue {
	_Atomic uint32_t left;
	int fd[2]; /* put into, taken from; -1: by another process */
};

/* ---- descriptors under way ---- */

union control {
	struct cmsghdr head;
	char bytes[CMSG_SPACE(sizeof(int))];
};

static int fork_queue_send_conn_fd(struct stream_fork_queue *fork_queue, int fd)
{
	char byte = 0;
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};
	union control control = {.head = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	const struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

	control.head.cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
	if (syscall(SYS_sendmsg, fork_queue->fd[0], &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return -errno;
	atomic_fetch_add(&fork_queue->left, 1);
	return 0;
}

static int fork_queue_receive_conn_fd(struct stream_fork_queue *fork_queue, int flags)
{
	char byte;
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};
	union control control;
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	const bool is_counted = fork_queue->fd[0] >= 0;
	long n;
	int fd;

	if (!is_counted)
		atomic_store(&fork_queue->left, 0);
	n = syscall(SYS_recvmsg, fork_queue->fd[1], &msg, MSG_DONTWAIT | (flags & SOCK_CLOEXEC ? MSG_CMSG_CLOEXEC : 0));
	if (n <= 0)
		return n < 0 ? -errno : -EAGAIN; /* 0: nobody is left who puts something in */
	if (is_counted)
		atomic_fetch_sub(&fork_queue->left, 1);
	else
		atomic_store(&fork_queue->left, 1);
	if (msg.msg_controllen < CMSG_LEN(sizeof(fd)))
		return -EMFILE; /* it came without: there is no room for one */
	memcpy(&fd, CMSG_DATA(&control.head), sizeof(fd));
	return fd;
}

/* ---- accept ---- */

/* The end of all that put something in is no connection. */
static bool fork_queue_fd_is_not_empty(int fd)
{
	char byte;

	return syscall(SYS_recvfrom, fd, &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT, NULL, NULL) > 0;
}

bool stream_fork_queue_has_conns(const struct stream_sock *listener)
{
	const struct stream_fork_queue *fork_queue = atomic_load(&listener->fork_queue);

	if (fork_queue == NULL || atomic_load(&fork_queue->left) == 0)
		return false;
	return (fork_queue->fd[0] >= 0 && !atomic_load(&listener->exec_exported)) ||
	       fork_queue_fd_is_not_empty(fork_queue->fd[1]);
}

int stream_fork_queue_accept(struct stream_sock *listener, struct sockaddr *addr, socklen_t *len, int flags)
{
	int fd = fork_queue_receive_conn_fd(atomic_load(&listener->fork_queue), flags), rc = 0;

	if (fd < 0)
		return fd;
	if (vma_fd_lookup(fd) != NULL)
		vma_fd_remove(fd); /* its number was closed unseen */
	if (flags & SOCK_NONBLOCK)
		vma_os.fcntl(fd, F_SETFL, (void *)(long)(O_RDWR | O_NONBLOCK));
	if (addr != NULL && vma_os.getpeername(fd, addr, len) != 0)
		rc = -errno == -ENOTCONN ? -ECONNABORTED : -errno;
	if (rc < 0)
		syscall(SYS_close, fd);
	return rc < 0 ? rc : fd;
}

/* ---- fork ---- */

static int fork_queue_move_fd_high(int fd)
{
	int guarded = vma_fd_move_high_and_guard(fd);

	return guarded >= 0 ? guarded : fd;
}

static struct stream_fork_queue *fork_queue_map(void)
{
	struct stream_fork_queue *fork_queue =
	        mmap(NULL, sizeof(*fork_queue), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return fork_queue != MAP_FAILED ? fork_queue : NULL;
}

static void fork_queue_free(struct stream_fork_queue *fork_queue)
{
	for (int i = 0; i < 2; i++)
		if (fork_queue->fd[i] >= 0)
			vma_fd_unguard_close(fork_queue->fd[i]);
	munmap(fork_queue, sizeof(*fork_queue));
}

/* A fork and the internal thread may make it at the same time. */
static void fork_queue_ensure_socketpair(struct stream_sock *listener)
{
	struct stream_fork_queue *fork_queue = atomic_load(&listener->fork_queue) == NULL ? fork_queue_map() : NULL,
	                         *none = NULL;

	if (fork_queue == NULL)
		return;
	if (syscall(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fork_queue->fd) != 0) {
		munmap(fork_queue, sizeof(*fork_queue));
		return;
	}
	fork_queue->fd[0] = fork_queue_move_fd_high(fork_queue->fd[0]);
	fork_queue->fd[1] = fork_queue_move_fd_high(fork_queue->fd[1]);
	if (!atomic_compare_exchange_strong(&listener->fork_queue, &none, fork_queue))
		fork_queue_free(fork_queue);
}

/* An accepted connection, with a descriptor of its own. */
static int fork_queue_put_conn_as_kernel_socket(struct stream_sock *listener, struct vma_file *file, int fd,
                                                enum vma_sock_reason why)
{
	int rc;

	pthread_mutex_lock(&file->lock);
	stream_so_cookie(stream_sock(file), fd);
	rc = stream_hand_over_conn_to_kernel(stream_sock(file), fd, why);
	pthread_mutex_unlock(&file->lock);
	return rc < 0 ? rc : fork_queue_send_conn_fd(atomic_load(&listener->fork_queue), fd);
}

static void fork_queue_move_queued_conns_to_kernel(struct stream_sock *listener, enum vma_sock_reason why)
{
	struct vma_file *file;
	int fd, rc;

	fork_queue_ensure_socketpair(listener);
	while (atomic_load(&listener->fork_queue) != NULL && (fd = stream_accept_one_offloaded(listener)) >= 0) {
		file = vma_fd_lookup(fd);
		if (file == NULL || file->kind != VMA_FILE_TCP)
			continue; /* another thread has closed the number */
		rc = fork_queue_put_conn_as_kernel_socket(listener, file, fd, why);
		vma_fd_remove(fd);
		syscall(SYS_close, fd);
		if (rc < 0)
			vma_log_once(VMA_LOG_WARN,
			             "a connection that waited for accept when its process %s is closed: %s",
			             why == VMA_SOCK_FORKED ? "forked" : "gave its listener to a program",
			             strerrordesc_np(-rc));
	}
}

void stream_listener_release_flows_and_conns(struct stream_sock *listener)
{
	bool given_up;

	if (atomic_load(&listener->was_polled) || atomic_load(&listener->inherited))
		return;
	if (pthread_mutex_trylock(&listener->file.lock) != 0)
		return;
	given_up = listener->hands_over;
	if (!given_up)
		stream_listen_release_flows(listener);
	pthread_mutex_unlock(&listener->file.lock);
	if (given_up)
		return;
	if (atomic_load(&listener->n_queued) != 0)
		fork_queue_move_queued_conns_to_kernel(listener, VMA_SOCK_FORKED);
}

/* ---- exec: the process that has the connections ---- */

int stream_export_conn_queue_fd_for_exec(struct stream_sock *listener)
{
	fork_queue_ensure_socketpair(listener);
	if (atomic_load(&listener->fork_queue) == NULL)
		return -1;
	atomic_store(&listener->exec_exported, true); /* before the look: what comes later has it looked at again */
	stream_fork_queue_hand_over_queued_conns(listener);
	return atomic_load(&listener->fork_queue)->fd[1];
}

void stream_fork_queue_hand_over_queued_conns(struct stream_sock *listener)
{
	const struct stream_fork_queue *fork_queue = atomic_load(&listener->fork_queue);

	if (fork_queue != NULL && fork_queue->fd[0] >= 0 && atomic_load(&listener->n_queued) != 0)
		fork_queue_move_queued_conns_to_kernel(listener, VMA_SOCK_EXEC);
}

/* ---- exec: the process itself becomes another program ---- */

/*
 * The next program finds its end of the pair by its name (sock/engine/inherited.c). After an exec that fails, the
 * listener is taken up again, and what waits is accepted from the pair.
 */
static void fork_queue_offer_to_next_program(struct stream_sock *listener, int fd)
{
	const struct stream_fork_queue *fork_queue = atomic_load(&listener->fork_queue);
	char text[VMA_WAITS_BYTES];
	struct vma_unix_message name;

	if (!stream_fork_queue_has_conns(listener))
		return;
	snprintf(text, sizeof(text), VMA_WAITS_FORMAT, (unsigned long long)vma_sock_cookie(fd));
	vma_unix_set_abstract_dest(text, &name);
	if (syscall(SYS_bind, fork_queue->fd[1], &name.name, name.name_len) != 0 && errno != EINVAL) /* EINVAL: it is */
		vma_log_debug("what waits for accept ends with this program: %s", strerrordesc_np(errno));
	vma_os.fcntl(fork_queue->fd[1], F_SETFD, NULL);
}

void stream_listener_offer_conns_before_exec(struct stream_sock *listener, const struct timespec *until)
{
	const int fd = atomic_load(&listener->file.fd), flags = vma_os.fcntl(fd, F_GETFD, NULL);
	bool asked_for;

	if (flags < 0 || (flags & FD_CLOEXEC) != 0 || pthread_mutex_timedlock(&listener->file.lock, until) != 0)
		return;
	asked_for = !atomic_load(&listener->inherited);
	if (!listener->hands_over && asked_for)
		stream_listen_release_flows(listener);
	pthread_mutex_unlock(&listener->file.lock);
	if (atomic_load(&listener->n_queued) != 0)
		fork_queue_move_queued_conns_to_kernel(listener, VMA_SOCK_EXEC);
	/* An exec of before may have failed. A child that has never looked at its parent's listener offers nothing. */
	if (asked_for || !listener->file.from_parent)
		fork_queue_offer_to_next_program(listener, fd);
}

void stream_fork_queue_set_cloexec_again(struct stream_sock *listener)
{
	const struct stream_fork_queue *fork_queue = atomic_load(&listener->fork_queue);

	if (fork_queue != NULL && fork_queue->fd[1] >= 0)
		vma_os.fcntl(fork_queue->fd[1], F_SETFD, (void *)(long)FD_CLOEXEC);
}

static bool listener_has_conns_but_never_accepted(const struct stream_sock *listener)
{
	return atomic_load(&listener->n_queued) != 0 && atomic_load(&listener->accept_calls) == 0;
}

/* In the child, before it forgets the queue, which is the parent's. */
void stream_note_if_never_accepted_before_fork(struct stream_sock *listener)
{
	listener->waits_at_fork = listener_has_conns_but_never_accepted(listener);
}

bool vma_stream_has_listener_with_conns_at_exec(bool beside)
{
	struct vma_thread *self = vma_enter();
	bool waits = false;

	for (int fd = 0; fd <= vma_fd_highest() && !waits; fd++) {
		struct vma_file *file = vma_fd_lookup(fd);
		const struct stream_sock *listener =
		        file != NULL && file->kind == VMA_FILE_TCP ? stream_sock(file) : NULL;

		waits = listener != NULL && stream_sock_phase(listener) == STREAM_LISTENING &&
		        (listener->waits_at_fork || (beside && listener_has_conns_but_never_accepted(listener)) ||
		         stream_fork_queue_has_conns(listener)) &&
		        (vma_os.fcntl(fd, F_GETFD, NULL) & FD_CLOEXEC) == 0;
	}
	vma_leave(self);
	return waits;
}

/* ---- exec: the program ---- */

bool stream_listener_use_conn_queue_fd(struct stream_sock *listener, int waiting_fd)
{
	struct stream_fork_queue *fork_queue = fork_queue_map();

	if (fork_queue == NULL)
		return false;
	fork_queue->fd[0] = -1;
	fork_queue->fd[1] = fork_queue_move_fd_high(waiting_fd);
	atomic_store(&fork_queue->left, 1);
	atomic_store(&listener->fork_queue, fork_queue);
	stream_fork_queue_watch(listener);
	return true;
}

/* The internal thread's. */
static void fork_queue_mark_listener_readable(struct vma_internal_task *task)
{
	struct stream_sock *listener =
	        (struct stream_sock *)((char *)task - offsetof(struct stream_sock, fork_queue_task));

	atomic_store(&atomic_load(&listener->fork_queue)->left, 1);
	vma_file_wake_sleepers_and_watchers(&listener->file, EPOLLIN | EPOLLRDNORM);
}

void stream_fork_queue_watch(struct stream_sock *listener)
{
	const struct stream_fork_queue *fork_queue = atomic_load(&listener->fork_queue);

	if (fork_queue == NULL || fork_queue->fd[0] >= 0 || listener->fork_queue_watched)
		return;
	listener->fork_queue_task.run = fork_queue_mark_listener_readable;
	listener->fork_queue_watched =
	        vma_engine_watch_fd_with_task(fork_queue->fd[1], EPOLLIN | EPOLLET, &listener->fork_queue_task) == 0;
}

/* At close, before the memory is retired. */
void stream_fork_queue_unwatch(struct stream_sock *listener)
{
	if (listener->fork_queue_watched)
		vma_engine_unwatch_fd(atomic_load(&listener->fork_queue)->fd[1], &listener->fork_queue_task);
	listener->fork_queue_watched = false;
}

/* What was made at a fork stays: others have its numbers. */
void stream_fork_queue_free(struct stream_sock *listener)
{
	struct stream_fork_queue *fork_queue = atomic_load(&listener->fork_queue);

	if (fork_queue == NULL || fork_queue->fd[0] >= 0)
		return;
	stream_fork_queue_unwatch(listener);
	fork_queue_free(fork_queue);
}
