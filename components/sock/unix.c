/* named - datagram sockets with abstract names, and messages that name their sender. */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <vma/sock.h>
#include <vma/sock_unix.h>
#include <vma/sock_os.h>
#include <vma/sock_thread.h>

/* ---- sockets ---- */

static socklen_t unix_abstract_sockaddr(const char *text, struct sockaddr_un *name)
{
	*name = (struct sockaddr_un){.sun_family = AF_UNIX};
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
	                   (size_t)snprintf(name->sun_path + 1, sizeof(name->sun_path) - 1, "%s", text));
}

/* It tells of each sender from its first message on, because nobody can send to it before it has a name. */
static int create_passcred_unix_dgram_socket(void)
{
	const int fd = (int)syscall(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;

	if (fd < 0)
		return -errno;
	if (vma_os.setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) {
		syscall(SYS_close, fd);
		return -ENOTSUP;
	}
	return fd;
}

int vma_unix_bind_abstract(const char *text)
{
	struct sockaddr_un name;
	const socklen_t len = unix_abstract_sockaddr(text, &name);
	const int fd = create_passcred_unix_dgram_socket();
	int guarded, rc;

	if (fd < 0)
		return fd;
	guarded = vma_fd_move_high_and_guard(fd);
	if (guarded < 0) {
		syscall(SYS_close, fd);
		return guarded;
	}
	if (syscall(SYS_bind, guarded, &name, len) == 0)
		return guarded;
	rc = -errno;
	vma_fd_unguard_close(guarded);
	return rc;
}

int vma_unix_open_autobound_dgram(void)
{
	const sa_family_t any = AF_UNIX;
	const int fd = create_passcred_unix_dgram_socket();
	int rc;

	if (fd < 0 || syscall(SYS_bind, fd, &any, sizeof(any)) == 0)
		return fd;
	rc = -errno;
	syscall(SYS_close, fd);
	return rc;
}

void vma_unix_set_abstract_dest(const char *text, struct vma_unix_message *message)
{
	message->name_len = unix_abstract_sockaddr(text, &message->name);
}

int vma_unix_connect_abstract(const char *text)
{
	const sa_family_t any = AF_UNIX;
	struct sockaddr_un name;
	const socklen_t len = unix_abstract_sockaddr(text, &name);
	const int fd = create_passcred_unix_dgram_socket();
	int rc;

	if (fd < 0)
		return fd;
	if (syscall(SYS_connect, fd, &name, len) == 0 && syscall(SYS_bind, fd, &any, sizeof(any)) == 0)
		return fd;
	rc = -errno;
	syscall(SYS_close, fd);
	return rc;
}

bool vma_unix_poll_until_deadline(int fd, short events, uint64_t deadline_ns)
{
	struct pollfd poll = {.fd = fd, .events = events};

	for (;;) {
		const uint64_t now = vma_now_ns(), left = deadline_ns > now ? deadline_ns - now : 0;
		struct timespec wait = {.tv_sec = (time_t)(left / 1000000000), .tv_nsec = (long)(left % 1000000000)};
		const long n = syscall(SYS_ppoll, &poll, 1, &wait, NULL, (size_t)8);

		if (n > 0)
			return true;
		if (n == 0 || errno != EINTR)
			return false;
	}
}

/* ---- messages ---- */

/* The kernel writes the sender first, and descriptors as far as there is room: here for one at most, or for none. */
#define SENDER_BYTES CMSG_SPACE(sizeof(struct ucred))
#define CONTROL_BYTES (SENDER_BYTES + CMSG_LEN(sizeof(int)))

union control {
	struct cmsghdr head;
	char bytes[SENDER_BYTES + CMSG_SPACE(sizeof(int))];
};

static void unix_read_sender_and_fd(struct msghdr *msg, struct vma_unix_cred *sender, int *fd)
{
	struct ucred ucred;

	*sender = (struct vma_unix_cred){.pid = 0, .uid = (uid_t)-1};
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET)
			continue;
		if (c->cmsg_type == SCM_CREDENTIALS && c->cmsg_len == CMSG_LEN(sizeof(ucred))) {
			memcpy(&ucred, CMSG_DATA(c), sizeof(ucred));
			*sender = (struct vma_unix_cred){.pid = ucred.pid, .uid = ucred.uid};
		} else if (c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(*fd))) {
			memcpy(fd, CMSG_DATA(c), sizeof(*fd));
		}
	}
}

int vma_unix_peek_sender_cred(int fd, struct vma_unix_cred *sender)
{
	union control control;
	struct msghdr msg = {.msg_control = &control, .msg_controllen = SENDER_BYTES};
	int none = -1;

	if (syscall(SYS_recvmsg, fd, &msg, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0)
		return -errno;
	unix_read_sender_and_fd(&msg, sender, &none);
	return 0;
}

bool vma_unix_sender_is_root_or_self(const struct vma_unix_cred *sender)
{
	return sender->uid == 0 || sender->uid == (uid_t)syscall(SYS_geteuid) ||
	       sender->uid == (uid_t)syscall(SYS_getuid);
}

int vma_unix_recv_with_sender_and_fd(int fd, struct vma_unix_message *message, bool wants_fd)
{
	struct iovec iov = {.iov_base = message->data, .iov_len = message->size};
	union control control;
	struct msghdr msg = {.msg_name = &message->name,
	                     .msg_namelen = sizeof(message->name),
	                     .msg_iov = &iov,
	                     .msg_iovlen = 1,
	                     .msg_control = &control,
	                     .msg_controllen = wants_fd ? CONTROL_BYTES : SENDER_BYTES};
	const long n = syscall(SYS_recvmsg, fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	message->fd = -1;
	if (n < 0)
		return -errno;
	message->name_len = msg.msg_namelen;
	unix_read_sender_and_fd(&msg, &message->sender, &message->fd);
	return (int)n;
}

int vma_unix_send(int fd, const struct vma_unix_message *message)
{
	struct iovec iov = {.iov_base = message->data, .iov_len = message->size};
	union control control = {
	        .head = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))}};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (message->name_len != 0) {
		msg.msg_name = (void *)&message->name;
		msg.msg_namelen = message->name_len;
	}
	if (message->fd >= 0) {
		memcpy(CMSG_DATA(&control.head), &message->fd, sizeof(message->fd));
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(sizeof(int));
	}
	return syscall(SYS_sendmsg, fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}
