/*
 * fdstore.c - the descriptor store, see fdstore.h. The store's own part makes system calls only: it is the child of a
 * fork for which no handlers have run.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>

#include "fdstore.h"
#include "../os.h"
#include "../xdp/proto.h"

enum { FDSTORE_PUT = 64, FDSTORE_DROP, FDSTORE_LIST, FDSTORE_END };

#define CHECK_INTERVAL_MS 250 /* at the clients, while no vmad lives */
#define UNUSED_MS 1000        /* no client lives, and no vmad */
#define MESSAGES_PER_POLL 256 /* messages of one turn */

static socklen_t fdstore_address_of(unsigned ifindex, struct sockaddr_un *out)
{
	*out = (struct sockaddr_un){.sun_family = AF_UNIX};
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
	                   (size_t)snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "vma/fdstore/%u", ifindex));
}

/* Waits for room, but not for ever. */
static int fdstore_send_message(int fd, uint16_t type, uint32_t place, const int *with)
{
	const struct vmad_msg msg = {
	        .magic = VMAD_MAGIC, .version = VMAD_VERSION, .type = type, .keep = {.place = place}};
	const uint64_t until = os_now_ms() + FDSTORE_MS;
	int rc;

	while ((rc = vmad_send_message_with_fds(fd, &msg, with, with != NULL)) == -EAGAIN && os_now_ms() < until)
		os_poll_one_fd(fd, POLLOUT, FDSTORE_MS);
	return rc;
}

/* ---- the fdstore's part ---- */

static struct {
	int vmad_fd;      /* -1: no vmad lives */
	int listen_fd[2]; /* in root's folder, and at the abstract name; -1: not there */
	uint64_t left_ms; /* since then */
	uint32_t seconds;
	int fd[KEEP_PLACES];
} keep;

static void store_fd(uint32_t place, int fd)
{
	if (place >= KEEP_PLACES) {
		os_close(fd);
		return;
	}
	if (keep.fd[place] >= 0)
		os_close(keep.fd[place]);
	keep.fd[place] = fd;
}

static void fdstore_note_vmad_gone(void)
{
	os_close(keep.vmad_fd);
	keep.vmad_fd = -1;
	keep.left_ms = os_now_ms();
}

/* What vmad says. */
static void fdstore_handle_vmad_messages(void)
{
	for (unsigned i = 0; i < MESSAGES_PER_POLL; i++) {
		struct vmad_msg msg;
		int fds[VMAD_FDS_MAX];
		unsigned nfds;
		size_t bytes;
		const int rc = vmad_receive_message(keep.vmad_fd, &msg, &bytes, fds, &nfds);

		if (rc == -EAGAIN)
			return;
		if (rc <= 0 || !vmad_msg_ok(&msg, bytes)) {
			fdstore_note_vmad_gone();
			return;
		}
		if (msg.type == FDSTORE_PUT && nfds == 1)
			store_fd(msg.keep.place, fds[0]);
		else if (msg.type == FDSTORE_DROP)
			store_fd(msg.keep.place, -1);
		else if (msg.type == FDSTORE_END)
			_exit(0);
	}
}

static bool peer_of_fd_is_root(int fd)
{
	struct ucred peer = {.uid = (uid_t)-1};
	socklen_t len = sizeof(peer);

	return os_getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.uid == 0;
}

/* One that does not take what it is given is no vmad: what the fdstore holds stays here all the same. */
static void fdstore_accept_vmad_and_send_fds(int listen_fd)
{
	int fd = (int)syscall(SYS_accept4, listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	int rc = 0;

	if (fd < 0)
		return;
	if (!peer_of_fd_is_root(fd)) {
		os_close(fd);
		return;
	}
	for (uint32_t place = 0; place < KEEP_PLACES && rc == 0; place++)
		if (keep.fd[place] >= 0)
			rc = fdstore_send_message(fd, FDSTORE_PUT, place, &keep.fd[place]);
	if (rc == 0)
		rc = fdstore_send_message(fd, FDSTORE_LIST, 0, NULL);
	if (rc == 0)
		keep.vmad_fd = fd;
	else
		os_close(fd);
}

static bool has_living_clients(void)
{
	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX; slot++)
		if (keep.fd[KEEP_PROCESS + slot] >= 0 && os_poll_one_fd(keep.fd[KEEP_PROCESS + slot], POLLIN, 0) == 0)
			return true;
	return false;
}

/* Nobody has come for too long. */
static bool fdstore_should_exit(void)
{
	const uint64_t alone_ms = os_now_ms() - keep.left_ms;

	return keep.vmad_fd < 0 &&
	       (alone_ms >= (uint64_t)keep.seconds * 1000 || (alone_ms >= UNUSED_MS && !has_living_clients()));
}

static void drop_all_capabilities(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	const struct __user_cap_data_struct none[2] = {0};

	syscall(SYS_capset, &head, none);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	prctl(PR_SET_DUMPABLE, 0);
	prctl(PR_SET_NAME, "vmad-fdstore");
}

/* As at the start of a daemon: no descriptor of vmad's but these, no terminal, signals as at boot. */
static void fdstore_daemonize(int vmad_fd, const int listen_fd[2])
{
	const int null_fd = os_open("/dev/null", O_RDWR | O_CLOEXEC);
	int fds[4] = {os_fcntl(null_fd, F_DUPFD_CLOEXEC, 16), os_fcntl(vmad_fd, F_DUPFD_CLOEXEC, 16)};
	sigset_t none;

	for (int i = 0; i < 2; i++)
		fds[i + 2] = listen_fd[i] < 0 ? -1 : os_fcntl(listen_fd[i], F_DUPFD_CLOEXEC, 16);
	for (int to = 0; to < 6; to++) {
		const int from = fds[to < 3 ? 0 : to - 2];

		if ((to < 4 || listen_fd[to - 4] >= 0) && os_dup3(from, to, to < 3 ? 0 : O_CLOEXEC) < 0)
			_exit(1);
	}
	syscall(SYS_close_range, 6, ~0U, 0);
	keep.vmad_fd = 3;
	for (int i = 0; i < 2; i++) {
		keep.listen_fd[i] = listen_fd[i] < 0 ? -1 : 4 + i;
		if (listen_fd[i] < 0)
			os_close(4 + i);
		else
			os_fcntl(4 + i, F_SETFL, O_NONBLOCK);
	}
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setsid();
	if (chdir("/") < 0)
		_exit(1);
}

static void fdstore_wait_for_vmad(void)
{
	struct pollfd what[2] = {{.fd = keep.listen_fd[0], .events = POLLIN},
	                         {.fd = keep.listen_fd[1], .events = POLLIN}};

	if (os_poll(what, 2, CHECK_INTERVAL_MS) <= 0)
		return;
	for (int i = 0; i < 2 && keep.vmad_fd < 0; i++)
		if (what[i].revents != 0)
			fdstore_accept_vmad_and_send_fds(what[i].fd);
}

static __attribute__((noreturn)) void fdstore_serve(int vmad_fd, const int listen_fd[2], uint32_t seconds)
{
	fdstore_daemonize(vmad_fd, listen_fd);
	drop_all_capabilities();
	keep.seconds = seconds;
	for (uint32_t place = 0; place < KEEP_PLACES; place++)
		keep.fd[place] = -1;
	while (!fdstore_should_exit()) {
		struct pollfd what = {.fd = keep.vmad_fd, .events = POLLIN};

		if (keep.vmad_fd < 0)
			fdstore_wait_for_vmad();
		else if (os_poll(&what, 1, -1) > 0)
			fdstore_handle_vmad_messages();
	}
	_exit(0);
}

/* ---- vmad's part ---- */

static int fdstore_listen_at(unsigned ifindex, bool path)
{
	struct sockaddr_un address;
	const socklen_t len = fdstore_address_of(ifindex, &address);
	int fd = os_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), rc;

	if (fd < 0)
		return -errno;
	if (path)
		rc = vmad_bind_in_own_folder(fd, ifindex, "fdstore", 0600);
	else
		rc = os_bind(fd, (const struct sockaddr *)&address, len) < 0 ? -errno : 0;
	if (rc == 0 && listen(fd, 4) == 0)
		return fd;
	if (rc == 0)
		rc = -errno;
	os_close(fd);
	return rc;
}

static void close_fd_pair(const int fds[2])
{
	for (int i = 0; i < 2; i++)
		if (fds[i] >= 0)
			os_close(fds[i]);
}

/* It is nobody's child, so nobody has to wait for it. */
int fdstore_start(struct fdstore *fdstore, unsigned ifindex, uint32_t seconds)
{
	int pair[2], listen_fd[2] = {fdstore_listen_at(ifindex, true), fdstore_listen_at(ifindex, false)}, rc = 0;
	pid_t child;

	*fdstore = (struct fdstore){.fd = -1, .ifindex = ifindex};
	/* The abstract name may be another's, if root has the file. */
	if (listen_fd[0] < 0 && (listen_fd[1] < 0 || listen_fd[0] == -EADDRINUSE))
		rc = listen_fd[0] == -EADDRINUSE ? -EADDRINUSE : listen_fd[1];
	if (rc == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
		rc = -errno;
	if (rc < 0) {
		close_fd_pair(listen_fd);
		return rc;
	}
	child = fork();
	if (child == 0) {
		child = fork();
		if (child == 0)
			fdstore_serve(pair[1], listen_fd, seconds);
		_exit(child < 0);
	}
	if (child < 0)
		rc = -errno;
	else
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
			;
	os_close(pair[1]);
	close_fd_pair(listen_fd);
	if (rc < 0)
		os_close(pair[0]);
	else
		fdstore->fd = pair[0];
	return rc;
}

static int fdstore_recv_fds(int fd, struct fdstore_fds *hand)
{
	const uint64_t until = os_now_ms() + FDSTORE_MS;

	for (;;) {
		struct vmad_msg msg;
		int fds[VMAD_FDS_MAX];
		unsigned nfds;
		size_t bytes;
		const int rc = vmad_receive_message(fd, &msg, &bytes, fds, &nfds);
		const bool is_put = rc == 1 && msg.type == FDSTORE_PUT && nfds == 1 && msg.keep.place < KEEP_PLACES;

		if (rc == -EAGAIN && os_now_ms() < until) {
			os_poll_one_fd(fd, POLLIN, FDSTORE_MS);
			continue;
		}
		for (unsigned i = 0; i < nfds && !is_put; i++)
			os_close(fds[i]);
		if (rc != 1 || !vmad_msg_ok(&msg, bytes))
			return rc < 0 ? rc : -EPROTO;
		if (msg.type == FDSTORE_LIST)
			return 0;
		if (!is_put)
			return -EPROTO;
		if (hand->fd[msg.keep.place] >= 0)
			os_close(hand->fd[msg.keep.place]);
		hand->fd[msg.keep.place] = fds[0];
	}
}

/* Connected to a process of root's: anybody may take the abstract name first. -errno. */
static int fdstore_connect(unsigned ifindex, bool path)
{
	struct sockaddr_un address;
	int fd = os_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	const int len = fd < 0 ? -errno
	                : path ? vmad_socket_path_address(fd, ifindex, "fdstore", &address)
	                       : (int)fdstore_address_of(ifindex, &address);

	if (len >= 0 && os_connect(fd, (const struct sockaddr *)&address, (socklen_t)len) == 0 &&
	    peer_of_fd_is_root(fd))
		return fd;
	if (fd >= 0)
		os_close(fd);
	return -ENOENT;
}

int fdstore_connect_and_take_fds(struct fdstore *fdstore, unsigned ifindex, struct fdstore_fds *hand)
{
	int fd = fdstore_connect(ifindex, true), rc;

	*fdstore = (struct fdstore){.fd = -1, .ifindex = ifindex};
	for (uint32_t place = 0; place < KEEP_PLACES; place++)
		hand->fd[place] = -1;
	if (fd < 0)
		fd = fdstore_connect(ifindex, false);
	if (fd < 0)
		return fd;
	fdstore->fd = fd;
	rc = fdstore_recv_fds(fd, hand);
	if (rc < 0)
		fdstore_fds_close(hand);
	return rc;
}

void fdstore_fds_close(struct fdstore_fds *hand)
{
	for (uint32_t place = 0; place < KEEP_PLACES; place++) {
		if (hand->fd[place] >= 0)
			os_close(hand->fd[place]);
		hand->fd[place] = -1;
	}
}

void fdstore_ask_to_exit(struct fdstore *fdstore)
{
	if (fdstore->fd < 0)
		return;
	if (fdstore_send_message(fdstore->fd, FDSTORE_END, 0, NULL) == 0)
		os_poll_one_fd(fdstore->fd, POLLHUP, FDSTORE_MS);
	os_close(fdstore->fd);
	fdstore->fd = -1;
	vmad_remove_own_socket_file(fdstore->ifindex, "fdstore");
}

static void fdstore_send_or_shutdown(struct fdstore *fdstore, uint16_t type, uint32_t place, const int *with)
{
	if (fdstore == NULL || fdstore->fd < 0)
		return;
	if (fdstore_send_message(fdstore->fd, type, place, with) < 0)
		os_shutdown(fdstore->fd, SHUT_RDWR);
}

void fdstore_keep_fd(struct fdstore *fdstore, uint32_t place, int fd)
{
	if (fd >= 0)
		fdstore_send_or_shutdown(fdstore, FDSTORE_PUT, place, &fd);
}

void fdstore_forget_fd(struct fdstore *fdstore, uint32_t place)
{
	fdstore_send_or_shutdown(fdstore, FDSTORE_DROP, place, NULL);
}

bool fdstore_close_if_connection_lost(struct fdstore *fdstore)
{
	if (fdstore->fd < 0 || os_poll_one_fd(fdstore->fd, POLLHUP, 0) == 0)
		return false;
	os_close(fdstore->fd);
	fdstore->fd = -1;
	return true;
}
