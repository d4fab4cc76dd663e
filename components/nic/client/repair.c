/*
 * repair.c - a client has its connections handed over to the kernel by vmad: xdp/repair.h.
 *
 * The channel is asked for once. If it has ended (vmad has gone, or its process), begin asks again, and waits for the
 * next vmad.
 *
 * It may also end between a socket and its result. vmad's process finishes what it has begun, even if vmad ends. So a
 * channel that ends without a result says that nothing was begun, and the socket goes to the next vmad. The process may
 * have been killed itself, in the middle. Then the socket says how far it has come:
 *
 *   under repair             it is parted from its half connection, without a word; another process repairs it anew
 *   repaired, and connected  the kernel has the connection
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "../backends.h"
#include "../os.h"
#include "client.h"
#include "../xdp/repair.h"

#define TRIES 5 /* vmads that end one after the other */
#define ENDED 1 /* the channel, before the result */

static void repair_close_channel(struct nic_xdp *nic)
{
	const int fd = atomic_exchange(&nic->repair_fd, -1);

	if (fd >= 0)
		nic_fd_close(fd);
}

/* Its other end has gone, or something is left that nobody has asked for. */
static bool repair_channel_ended(int channel)
{
	struct pollfd polled = {.fd = channel, .events = POLLIN};

	return os_poll(&polled, 1, 0) > 0;
}

static int repair_request_channel(struct nic_xdp *nic)
{
	int fd = -1, tries = 0, rc;

	pthread_mutex_lock(&nic->lock);
	do
		rc = nic->vmad != NULL    ? vmad_client_open_repair(nic->vmad, &fd)
		     : nic->owner != NULL ? -EOPNOTSUPP
		                          : -EPIPE;
	while (rc == -EPIPE && tries++ < TRIES && nic_xdp_await_vmad(nic));
	pthread_mutex_unlock(&nic->lock);
	if (rc == 0)
		atomic_store(&nic->repair_fd, nic_fd_move_high(fd));
	return rc;
}

int vma_nic_repair_lock_and_open_channel(struct vma_nic *base)
{
	struct nic_xdp *nic = (struct nic_xdp *)base;
	int rc = 0;

	if (base->ops != &vma_nic_xdp_ops)
		return -EOPNOTSUPP;
	if (!nic_xdp_opened_by_this_process(nic))
		return -ENODEV;
	pthread_mutex_lock(&nic->repair_lock);
	if (atomic_load(&nic->repair_fd) >= 0 && repair_channel_ended(atomic_load(&nic->repair_fd)))
		repair_close_channel(nic);
	if (atomic_load(&nic->repair_fd) < 0)
		rc = repair_request_channel(nic);
	if (rc < 0)
		pthread_mutex_unlock(&nic->repair_lock);
	return rc;
}

/* ---- the bytes ---- */

static int repair_write_bytes_to_memfd_and_seal(int fd, const struct vma_repair_bytes *bytes, uint64_t total)
{
	for (uint64_t done = 0; done < total;) {
		struct iovec span;
		ssize_t n;
		int rc = bytes->read(bytes, done, (size_t)(total - done), &span);

		if (rc < 0)
			return rc;
		n = os_write(fd, span.iov_base, span.iov_len);
		if (n <= 0)
			return n == 0 ? -EIO : -errno;
		done += (uint64_t)n;
	}
	return os_fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0 ? -errno : 0;
}

/* A descriptor; -1: there are none; -errno else. */
static int repair_write_bytes_to_memfd(const struct vma_repair_bytes *bytes, uint64_t total, int *out)
{
	struct rlimit limit;
	int fd, rc;

	*out = -1;
	if (total == 0)
		return 0;
	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < total)
		return -EFBIG; /* and not SIGXFSZ, which would end the program */
	fd = (int)syscall(SYS_memfd_create, "vma-repair", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	rc = repair_write_bytes_to_memfd_and_seal(fd, bytes, total);
	if (rc < 0)
		os_close(fd);
	else
		*out = fd;
	return rc;
}

/* ---- the socket ---- */

static int repair_send_socket(int channel, const struct vmad_repair_socket *message, const int *fds, unsigned nfds)
{
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(2 * sizeof(int))];
	} control = {0};
	struct iovec iov = {.iov_base = (void *)(uintptr_t)message, .iov_len = sizeof(*message)};
	const struct msghdr msg = {.msg_iov = &iov,
	                           .msg_iovlen = 1,
	                           .msg_control = &control,
	                           .msg_controllen = CMSG_SPACE(nfds * sizeof(int))};

	control.head = (struct cmsghdr){
	        .cmsg_len = CMSG_LEN(nfds * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(&control.head), fds, nfds * sizeof(int));
	if (os_poll_one_fd(channel, POLLOUT, VMA_NIC_REPAIR_MS) == 0)
		return -EPIPE;
	if (os_sendmsg(channel, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		return 0;
	return errno == EPIPE || errno == ECONNRESET ? ENDED : -EPIPE;
}

/* The result; ENDED; -EPIPE: there is none in time. */
static int repair_receive_reply(int channel, struct vmad_repair_reply *answer)
{
	ssize_t n;

	for (;;) {
		n = os_recv(channel, answer, sizeof(*answer), MSG_DONTWAIT);
		if (n == sizeof(*answer) && answer->head.magic == VMAD_REPAIR_MAGIC && answer->result <= 0)
			return answer->result == -EPIPE ? ENDED : answer->result;
		if (n == 0 || (n < 0 && errno == ECONNRESET))
			return ENDED;
		if (n > 0 || (errno != EAGAIN && errno != EINTR) ||
		    os_poll_one_fd(channel, POLLIN, VMA_NIC_REPAIR_MS) == 0)
			return -EPIPE;
	}
}

static int repair_try_socket(int channel, const struct vma_repair *what, const int fds[2],
                             struct vmad_repair_reply *answer)
{
	const struct vmad_repair_socket message = {.head = {VMAD_REPAIR_MAGIC, VMAD_REPAIR_SOCKET}, .what = *what};
	int rc = repair_send_socket(channel, &message, fds, fds[1] >= 0 ? 2 : 1);

	return rc == 0 ? repair_receive_reply(channel, answer) : rc;
}

/* Nobody repairs the socket any more. True: the kernel has the connection; else the socket is as before. */
static bool repair_socket_has_connected(int fd)
{
	const struct sockaddr apart = {.sa_family = AF_UNSPEC};
	struct sockaddr_storage peer;
	socklen_t len = sizeof(int), peer_len = sizeof(peer);
	int repair = 0;

	if (os_getsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &repair, &len) != 0 || repair == 0)
		return syscall(SYS_getpeername, fd, &peer, &peer_len) == 0;
	os_connect(fd, &apart, sizeof(apart));
	return false;
}

static int repair_reopen_channel(struct nic_xdp *nic)
{
	repair_close_channel(nic);
	return repair_request_channel(nic);
}

/* How many of the bytes that had not been sent it has is not known. */
static int repair_check_all_was_sent(const struct vma_repair *what)
{
	return what->unacked == what->sent ? 0 : -EPIPE;
}

int vma_nic_repair_socket(struct vma_nic *base, int fd, const struct vma_repair *what,
                          const struct vma_repair_bytes *bytes, int *incomplete)
{
	struct nic_xdp *nic = (struct nic_xdp *)base;
	struct vmad_repair_reply answer = {.result = 0};
	int fds[2] = {fd, -1}, tries = 0, rc;

	*incomplete = 0;
	rc = repair_write_bytes_to_memfd(bytes, (uint64_t)what->unread + what->unacked, &fds[1]);
	if (rc < 0)
		return rc;
	rc = repair_try_socket(atomic_load(&nic->repair_fd), what, fds, &answer);
	while (rc == ENDED) {
		answer.incomplete = repair_check_all_was_sent(what);
		if (repair_socket_has_connected(fd))
			rc = 0;
		else if (tries++ == TRIES || repair_reopen_channel(nic) < 0)
			rc = -EPIPE;
		else
			rc = repair_try_socket(atomic_load(&nic->repair_fd), what, fds, &answer);
	}
	if (fds[1] >= 0)
		os_close(fds[1]);
	*incomplete = answer.incomplete;
	if (rc == -EPIPE && atomic_load(&nic->repair_fd) >= 0)
		os_shutdown(atomic_load(&nic->repair_fd), SHUT_RDWR); /* a late answer would be the next one's */
	return rc;
}

int vma_nic_repair_send_segment_to_vmad(struct vma_nic *base, const void *packet, size_t len)
{
	struct nic_xdp *nic = (struct nic_xdp *)base;
	struct vmad_repair_head head = {VMAD_REPAIR_MAGIC, VMAD_REPAIR_SEGMENT};
	struct iovec iov[2] = {{.iov_base = &head, .iov_len = sizeof(head)},
	                       {.iov_base = (void *)(uintptr_t)packet, .iov_len = len}};
	const struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};

	return os_sendmsg(atomic_load(&nic->repair_fd), &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* What was shut down, or whose other end has gone, cannot be sent on. */
void vma_nic_repair_send_end_and_unlock(struct vma_nic *base)
{
	struct nic_xdp *nic = (struct nic_xdp *)base;
	const struct vmad_repair_head head = {VMAD_REPAIR_MAGIC, VMAD_REPAIR_END};

	if (os_send(atomic_load(&nic->repair_fd), &head, sizeof(head), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		repair_close_channel(nic);
	pthread_mutex_unlock(&nic->repair_lock);
}
