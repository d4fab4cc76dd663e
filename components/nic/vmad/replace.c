/*
 * replace - ends the vmad that an interface has, so that a new vmad can take its place.
 *
 * The socket that has the interface's name tells its process (SO_PEERCRED). If that is a process of root's, or of this
 * user's, SIGTERM asks it to end, as an administrator would do. A process of another user only holds the name, and is
 * not touched. Its clients look for a new vmad as if it had died: see docs/vmad.md.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <vma/log.h>

#include "../xdp/proto.h"
#include "server.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

#define EXIT_TIMEOUT_MS 5000 /* to end in good order */
#define END_MS 5000          /* after SIGKILL */

/* The process behind the socket, which cannot be taken for a later one of the same number. -errno. */
static int pidfd_of_socket_peer(int fd, pid_t pid)
{
	int pidfd;
	socklen_t len = sizeof(pidfd);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) == 0)
		return pidfd;
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	return pidfd < 0 ? -errno : pidfd;
}

/*
 * Asked, and if it is stopped or hangs, ended: its fdstore has what its clients need. The process is known by its
 * pidfd, and by the connection: as long as that is not hung up, the process still has the address.
 */
static int end_old_vmad(const char *interface, int fd, const struct ucred *peer)
{
	struct pollfd end = {.fd = pidfd_of_socket_peer(fd, peer->pid), .events = POLLIN};
	struct pollfd has_address = {.fd = fd, .events = POLLIN};
	int rc = 0;

	if (end.fd < 0) {
		vma_log_error("vmad: %s: process %d, which has the interface, cannot be asked to end: %s", interface,
		              (int)peer->pid, strerror(-end.fd));
		return end.fd;
	}
	if (syscall(SYS_pidfd_send_signal, end.fd, SIGTERM, NULL, 0) < 0 && errno != ESRCH) {
		rc = -errno;
		vma_log_error("vmad: %s: process %d of user %u, which has the interface, cannot be ended: %s",
		              interface, (int)peer->pid, peer->uid, strerror(-rc));
	} else if (poll(&end, 1, EXIT_TIMEOUT_MS) <= 0) {
		if (poll(&has_address, 1, 0) == 0) {
			vma_log_warn("vmad: %s: process %d of user %u, which has the interface, does not end, and is "
			             "killed",
			             interface, (int)peer->pid, peer->uid);
			syscall(SYS_pidfd_send_signal, end.fd, SIGKILL, NULL, 0);
		}
		/* A file system of a client's can keep a process that has let go of everything. */
		rc = poll(&end, 1, END_MS) > 0 || poll(&has_address, 1, 0) > 0 ? 0 : -ETIMEDOUT;
	}
	if (rc == -ETIMEDOUT)
		vma_log_error("vmad: %s: process %d of user %u, which has the interface, does not end", interface,
		              (int)peer->pid, peer->uid);
	close(end.fd);
	return rc;
}

static bool old_vmad_may_be_ended(const char *interface, const struct ucred *peer)
{
	if (peer->uid != 0 && peer->uid != geteuid())
		vma_log_error(
		        "vmad: %s: what answers in vmad's place is process %d of user %u, neither root nor this user: "
		        "it is left alone",
		        interface, (int)peer->pid, peer->uid);
	else if (peer->pid == 0)
		vma_log_error("vmad: %s: the vmad of this interface runs in another container: end it there",
		              interface);
	else
		return true;
	return false;
}

bool vmad_name_holder_is_trusted_user(unsigned ifindex, const char *interface)
{
	struct ucred peer = {0};
	socklen_t len = sizeof(peer);
	struct sockaddr_un address;
	const socklen_t address_len = vmad_address(ifindex, &address);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool known = fd >= 0 && connect(fd, (const struct sockaddr *)&address, address_len) == 0 &&
	             getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0;

	if (fd >= 0)
		close(fd);
	if (known && (peer.uid == 0 || peer.uid == geteuid()))
		return true;
	if (known)
		vma_log_error("vmad: %s: vmad's abstract name is held by process %d of user %u, neither root nor this "
		              "user",
		              interface, (int)peer.pid, peer.uid);
	else
		vma_log_error("vmad: %s: vmad's abstract name is held by a process that takes no connections: "
		              "ss -lxpa shows which",
		              interface);
	return false;
}

/* 0, or -errno: -ECONNREFUSED, there is no vmad. */
static int connect_to_running_vmad(int fd, unsigned ifindex)
{
	struct sockaddr_un address;
	int len = vmad_socket_path_address(fd, ifindex, "vmad", &address);

	if (len > 0 && connect(fd, (const struct sockaddr *)&address, (socklen_t)len) == 0)
		return 0;
	if (len > 0 && errno == EAGAIN)
		return -EAGAIN;
	len = (int)vmad_address(ifindex, &address);
	return connect(fd, (const struct sockaddr *)&address, (socklen_t)len) < 0 ? -errno : 0;
}

int vmad_end_running_instance(unsigned ifindex, const char *interface)
{
	const struct timeval timeout = {.tv_sec = 1};
	struct ucred peer = {0};
	socklen_t len = sizeof(peer);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), rc;

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)); /* a full backlog */
	rc = connect_to_running_vmad(fd, ifindex);
	if (rc == 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
		rc = -errno;
	if (rc == 0)
		rc = old_vmad_may_be_ended(interface, &peer) ? end_old_vmad(interface, fd, &peer) : -EPERM;
	close(fd);
	return rc == -ECONNREFUSED ? 0 : rc;
}
