/*
 * legacy.c - connections that waited for accept when the process forked: with the kernel any of those who have the
 *            listener gets them, so here as well.
 *
 *   fork ── a listener that nobody has looked at yet ─┬─ gives back its flows: who comes now is the kernel's
 *                                                     └─ what is queued becomes the kernel's, and waits in a pair of
 *   accept, here or in a child <── SCM_RIGHTS ──────────  sockets that all of them have
 *
 * A process that only listens, and leaves accepting to its children, would else keep for itself what came before the
 * first of them asked for the flows. One that accepts or polls the listener itself asks for them again then; and one
 * that has done so before it forks goes on as it was. What is half open is waited for, a few round trips; requests that
 * come meanwhile are dropped, and asked again by their peers a second later, of the kernel.
 *
 * In the pair nobody holds the connections, so they end when the one that took them closes them. `left` says how many
 * there are, in memory that all share: it is raised after the sending, and lowered by who has received one. Between
 * the two it is wrong by one, which costs a look in vain, or is put right before the next look. A process that has no
 * descriptor left loses the one that it takes, where the kernel would leave it in the queue.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>

#include "stream_priv.h"

struct stream_legacy {
	_Atomic uint32_t left;
	int fd[2]; /* put into, taken from */
};

/* ---- descriptors under way ---- */

union control {
	struct cmsghdr head;
	char bytes[CMSG_SPACE(sizeof(int))];
};

static int put(struct stream_legacy *legacy, int fd)
{
	char byte = 0;
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};
	union control control = {.head = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	const struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

	control.head.cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
	if (syscall(SYS_sendmsg, legacy->fd[0], &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return -errno;
	atomic_fetch_add(&legacy->left, 1);
	return 0;
}

static int take(struct stream_legacy *legacy, int flags)
{
	char byte;
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};
	union control control;
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	int fd;

	if (syscall(SYS_recvmsg, legacy->fd[1], &msg, MSG_DONTWAIT | (flags & SOCK_CLOEXEC ? MSG_CMSG_CLOEXEC : 0)) < 0)
		return -errno;
	atomic_fetch_sub(&legacy->left, 1);
	if (msg.msg_controllen < CMSG_LEN(sizeof(fd)))
		return -EMFILE; /* it came without: there is no room for one */
	memcpy(&fd, CMSG_DATA(&control.head), sizeof(fd));
	return fd;
}

/* ---- accept ---- */

bool stream_legacy_waits(const struct stream_sock *listener)
{
	return listener->legacy != NULL && atomic_load(&listener->legacy->left) != 0;
}

int stream_legacy_accept(struct stream_sock *listener, struct sockaddr *addr, socklen_t *len, int flags)
{
	int fd = take(listener->legacy, flags), rc = 0;

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

static int guard(int fd)
{
	int guarded = vma_fd_guard(fd);

	return guarded >= 0 ? guarded : fd;
}

static struct stream_legacy *make(void)
{
	struct stream_legacy *legacy =
	        mmap(NULL, sizeof(*legacy), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (legacy == MAP_FAILED)
		return NULL;
	if (syscall(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, legacy->fd) != 0) {
		munmap(legacy, sizeof(*legacy));
		return NULL;
	}
	legacy->fd[0] = guard(legacy->fd[0]);
	legacy->fd[1] = guard(legacy->fd[1]);
	return legacy;
}

/* An accepted connection, with a descriptor of its own. */
static int leave(struct stream_sock *listener, int fd)
{
	struct vma_file *file = vma_fd_lookup(fd);
	int rc;

	pthread_mutex_lock(&file->lock);
	stream_cookie(stream_sock(file), fd);
	rc = stream_to_kernel(stream_sock(file), fd, VMA_SOCK_FORKED);
	pthread_mutex_unlock(&file->lock);
	return rc < 0 ? rc : put(listener->legacy, fd);
}

static void leave_all(struct stream_sock *listener)
{
	int fd, rc;

	if (listener->legacy == NULL)
		listener->legacy = make();
	while (listener->legacy != NULL && (fd = stream_accept_queued(listener)) >= 0) {
		rc = leave(listener, fd);
		vma_fd_remove(fd);
		syscall(SYS_close, fd);
		if (rc < 0)
			vma_log_once(VMA_LOG_WARN,
			             "a connection that waited for accept when its process forked is closed: %s",
			             strerrordesc_np(-rc));
	}
}

void stream_legacy_leave(struct stream_sock *listener)
{
	bool given_up;

	if (atomic_load(&listener->looked) || atomic_load(&listener->inherited))
		return;
	if (pthread_mutex_trylock(&listener->file.lock) != 0)
		return;
	given_up = listener->hands_over;
	if (!given_up)
		stream_listen_release(listener);
	pthread_mutex_unlock(&listener->file.lock);
	if (given_up)
		return;
	if (atomic_load(&listener->n_queued) != 0)
		leave_all(listener);
}
