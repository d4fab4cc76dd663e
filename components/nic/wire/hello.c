/* hello - the handshake of the two-process form. All that comes in is checked before it is used. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "file.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

union control {
	struct cmsghdr header;
	char space[CMSG_SPACE(WIRE_HELLO_FDS * sizeof(int))];
};

int wire_hello_send(int fd, const struct wire_hello *hello, const int *fds, unsigned nfds)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)hello, .iov_len = sizeof(*hello)};
	union control control = {0};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (nfds != 0) {
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(nfds * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, nfds * sizeof(int));
	}
	return sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof(*hello) ? 0 : -errno;
}

int wire_hello_recv(int fd, struct wire_hello *hello, int fds[WIRE_HELLO_FDS])
{
	struct iovec iov = {.iov_base = hello, .iov_len = sizeof(*hello)};
	union control control = {0};
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	ssize_t got = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);

	fds[0] = fds[1] = -1;
	if (got < 0)
		return -errno;
	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg); cmsg != NULL; cmsg = CMSG_NXTHDR(&msg, cmsg))
		if (cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS)
			/* The kernel has cut what does not fit into `control` and closed the rest. */
			memcpy(fds, CMSG_DATA(cmsg), cmsg->cmsg_len - CMSG_LEN(0));
	return got == (ssize_t)sizeof(*hello) ? 0 : -EPROTO;
}

/* Sealed, of our size, and ordinary shared memory: a page of a hugetlbfs file may be impossible to have (SIGBUS). */
static int wire_check_received_memory(int fd, size_t bytes)
{
	struct stat st;
	struct statfs fs;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &st) != 0 || fstatfs(fd, &fs) != 0)
		return -EPROTO;
	return fs.f_type == TMPFS_MAGIC && (uint64_t)st.st_size == bytes ? 0 : -EPROTO;
}

int wire_hello_check(const struct wire_hello *hello, const int fds[WIRE_HELLO_FDS], uint32_t slots, uint32_t mtu,
                     size_t bytes)
{
	if (hello->magic != WIRE_HELLO_MAGIC || hello->version != WIRE_HELLO_VERSION)
		return -EPROTO;
	if (hello->busy != 0)
		return -EBUSY;
	if (hello->slots != slots || hello->mtu != mtu || hello->nonce == 0 || fds[0] < 0 || fds[1] < 0)
		return -EPROTO;
	int type = 0;
	socklen_t len = sizeof(type);
	if (getsockopt(fds[1], SOL_SOCKET, SO_TYPE, &type, &len) != 0 || type != SOCK_STREAM)
		return -EPROTO;
	return wire_check_received_memory(fds[0], bytes);
}

int wire_create_sealed_memfd(size_t bytes)
{
	int fd = memfd_create("vma-wire", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL), rc;

	if (fd < 0 && errno == EINVAL) /* a kernel before 6.3 */
		fd = memfd_create("vma-wire", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, SEALS) == 0)
		return fd;
	rc = -errno;
	close(fd);
	return rc;
}

int wire_pidfd_open_of_unix_peer(int fd)
{
	struct ucred peer;
	socklen_t len = sizeof(int);
	int pidfd = -1;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) == 0)
		return pidfd;
	len = sizeof(peer);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0 || peer.pid <= 0)
		return -1;
	return (int)syscall(SYS_pidfd_open, peer.pid, 0);
}
