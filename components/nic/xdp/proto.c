/*
 * proto - sending and receiving one message with its fds; both sides use it.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../os.h"
#include "proto.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

socklen_t vmad_address(unsigned ifindex, struct sockaddr_un *out)
{
	*out = (struct sockaddr_un){.sun_family = AF_UNIX};
	/* A leading zero byte: abstract. */
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
	                   (size_t)snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "vma/vmad/%u", ifindex));
}

/* Root's, no symlink, and nobody else writes there; with `sticky` others may add names, but not change root's. */
static int check_folder_is_root_owned_and_safe(const char *path, mode_t sticky)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		return -errno;
	if (!S_ISDIR(st.st_mode) || st.st_uid != 0)
		return -EPERM;
	return (st.st_mode & (S_IWGRP | S_IWOTH)) == 0 || (st.st_mode & sticky) != 0 ? 0 : -EPERM;
}

int vmad_socket_path_address(int fd, unsigned ifindex, const char *kind, struct sockaddr_un *out)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);
	int rc = check_folder_is_root_owned_and_safe(VMAD_PARENT, S_ISVTX);

	if (rc == 0)
		rc = check_folder_is_root_owned_and_safe(VMAD_FOLDER, 0);
	if (rc == 0 && os_getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &len) < 0)
		rc = -errno;
	if (rc < 0)
		return rc;
	*out = (struct sockaddr_un){.sun_family = AF_UNIX};
	return (int)(offsetof(struct sockaddr_un, sun_path) + 1 +
	             (size_t)snprintf(out->sun_path, sizeof(out->sun_path), "%s/%llu.%u.%s", VMAD_FOLDER,
	                              (unsigned long long)cookie, ifindex, kind));
}

int vmad_send_message_with_fds(int fd, const struct vmad_msg *msg, const int *fds, unsigned nfds)
{
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(VMAD_FDS_MAX * sizeof(int))];
	} control;
	struct iovec iov = {.iov_base = (void *)msg, .iov_len = sizeof(*msg)};
	struct msghdr head = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	if (nfds > VMAD_FDS_MAX)
		return -EINVAL;
	if (nfds > 0) {
		memset(&control, 0, sizeof(control));
		head.msg_control = &control;
		head.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(nfds * sizeof(int));
		memcpy(CMSG_DATA(&control.head), fds, nfds * sizeof(int));
	}
	do
		n = os_sendmsg(fd, &head, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0; /* a packet is sent whole or not at all */
}

static void close_received_fds(const int *fds, unsigned nfds)
{
	for (unsigned i = 0; i < nfds; i++)
		os_close(fds[i]);
}

int vmad_receive_message_with_fds(int fd, struct vmad_msg *msg, size_t *bytes, int *fds, unsigned *nfds)
{
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(VMAD_FDS_CAPACITY * sizeof(int))];
	} control;
	struct iovec iov = {.iov_base = msg, .iov_len = sizeof(*msg)};
	struct msghdr head = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	ssize_t n;

	*nfds = 0;
	memset(msg, 0, sizeof(*msg));
	do
		n = os_recvmsg(fd, &head, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == ECONNRESET ? 0 : -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&head); c != NULL; c = CMSG_NXTHDR(&head, c)) {
		unsigned count = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		if (count > VMAD_FDS_CAPACITY - *nfds) /* cannot be: the buffer has no room for more */
			count = VMAD_FDS_CAPACITY - *nfds;
		memcpy(fds + *nfds, CMSG_DATA(c), count * sizeof(int));
		*nfds += count;
	}
	*bytes = (size_t)n; /* the packet's own length, also when it did not fit */
	if (head.msg_flags & MSG_CTRUNC)
		return -EMSGSIZE;
	return n == 0 ? 0 : 1;
}

int vmad_receive_message(int fd, struct vmad_msg *msg, size_t *bytes, int *fds, unsigned *nfds)
{
	int all[VMAD_FDS_CAPACITY];
	int rc = vmad_receive_message_with_fds(fd, msg, bytes, all, nfds);

	if (rc > 0 && *nfds > VMAD_FDS_MAX)
		rc = -EMSGSIZE;
	if (rc > 0) {
		memcpy(fds, all, *nfds * sizeof(int));
		return rc;
	}
	close_received_fds(all, *nfds);
	*nfds = 0;
	return rc;
}

bool vmad_msg_ok(const struct vmad_msg *msg, size_t bytes)
{
	return bytes == sizeof(*msg) && msg->magic == VMAD_MAGIC && msg->version == VMAD_VERSION;
}
