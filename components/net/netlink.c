/* netlink - asking the kernel and hearing from it. */
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <netlink/socket.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "netlink.h"

#define MESSAGE_BYTES 65536 /* the kernel fills at most 32 KB of a dump at a time */
#define EVENTS_AT_ONCE 10000
#define RECV_TIMEOUT_SEC 2 /* the kernel answers within send(); this bounds what must not happen */

/* The events that a lookup's answer may depend on, and neighbours. */
static const int event_groups[] = {
        RTNLGRP_LINK,  RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE,   RTNLGRP_IPV4_RULE,
        RTNLGRP_NEIGH, RTNLGRP_NEXTHOP,     RTNLGRP_IPV4_NETCONF, 0,
};

int net_move_fd_to_high_number(int fd)
{
	long up;

	if (fd < 0)
		return fd;
	up = syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, NET_FD_MIN);
	if (up < 0)
		return fd;
	syscall(SYS_close, fd);
	return (int)up;
}

/* By system calls: the library interposes socket(), and this may run while it starts. */
static int create_netlink_socket(int flags)
{
	const struct sockaddr_nl any = {.nl_family = AF_NETLINK};
	const struct timeval limit = {.tv_sec = RECV_TIMEOUT_SEC};
	const int fd = net_move_fd_to_high_number(
	        (int)syscall(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | flags, NETLINK_ROUTE));

	if (fd < 0)
		return -errno;
	if (syscall(SYS_bind, fd, &any, sizeof(any)) < 0 ||
	    syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0) {
		const int rc = -errno;

		syscall(SYS_close, fd);
		return rc;
	}
	return fd;
}

static int nl_sock_open_on_fd(int fd, struct nl_sock **out)
{
	struct nl_sock *sock;

	if (fd < 0)
		return fd;
	sock = nl_socket_alloc();
	if (sock != NULL && nl_socket_set_fd(sock, NETLINK_ROUTE, fd) == 0 &&
	    nl_socket_set_msg_buf_size(sock, MESSAGE_BYTES) == 0) {
		*out = sock;
		return 0;
	}
	nl_socket_free(sock);
	syscall(SYS_close, fd);
	return -ENOMEM;
}

int net_nl_open(struct nl_sock **out)
{
	return nl_sock_open_on_fd(create_netlink_socket(0), out);
}

int net_nl_open_events(uint32_t event_bytes, struct nl_sock **out)
{
	int rc = nl_sock_open_on_fd(create_netlink_socket(SOCK_NONBLOCK), out);

	if (rc < 0)
		return rc;
	/* What rmem_max refuses is not missed: an overrun is noticed. */
	rc = (int)event_bytes;
	syscall(SYS_setsockopt, nl_socket_get_fd(*out), SOL_SOCKET, SO_RCVBUF, &rc, sizeof(rc));
	for (const int *group = event_groups; *group != 0; group++) {
		/* Kernels before 5.3 have no next hop objects and no such group. */
		if (nl_socket_add_membership(*out, *group) < 0 && *group != RTNLGRP_NEXTHOP) {
			net_nl_close(*out);
			return -EPROTONOSUPPORT;
		}
	}
	return 0;
}

void net_nl_close(struct nl_sock *sock)
{
	nl_socket_free(sock); /* closes, and takes NULL */
}

int net_nl_fd(struct nl_sock *sock)
{
	return nl_socket_get_fd(sock);
}

struct nl_msg *net_nl_alloc_request_message(int type, int flags, const void *header, int header_bytes)
{
	struct nl_msg *request = nlmsg_alloc_simple(type, flags);

	if (request == NULL ||
	    nlmsg_append(request, (void *)(uintptr_t)header, (size_t)header_bytes, NLMSG_ALIGNTO) == 0)
		return request;
	nlmsg_free(request);
	return NULL;
}

/* One received buffer of answers to `seq`. 1: there is more to come; 0 or the kernel's -errno: that was all. */
static int process_replies(void *buffer, int len, uint32_t seq, net_nl_sink sink, void *arg, bool *interrupted)
{
	for (struct nlmsghdr *m = buffer; nlmsg_ok(m, len); m = nlmsg_next(m, &len)) {
		if (m->nlmsg_seq != seq) /* of an earlier request that was given up */
			continue;
		if (m->nlmsg_flags & NLM_F_DUMP_INTR)
			*interrupted = true;
		if (m->nlmsg_type == NLMSG_DONE || m->nlmsg_type == NLMSG_ERROR) {
			/* Both begin with the errno; an ERROR of 0 is the acknowledgement that ends a plain request. */
			return m->nlmsg_len >= NLMSG_HDRLEN + sizeof(int) ? *(const int *)nlmsg_data(m) : 0;
		}
		if (m->nlmsg_type >= RTM_BASE && sink != NULL)
			sink(m, arg);
	}
	return 1;
}

int net_nl_send_request_and_read_replies(struct nl_sock *sock, struct nl_msg *request, net_nl_sink sink, void *arg)
{
	bool interrupted = false;
	uint32_t seq;
	int rc = 1;

	if (request == NULL)
		return -EIO;
	rc = nl_send_auto(sock, request);
	seq = nlmsg_hdr(request)->nlmsg_seq;
	nlmsg_free(request);
	if (rc < 0)
		return -EIO;
	do {
		struct sockaddr_nl from = {0};
		unsigned char *buffer = NULL;
		const int len = nl_recv(sock, &from, &buffer, NULL);

		if (len <= 0) {
			free(buffer);
			return -EIO;
		}
		rc = from.nl_pid == 0 ? process_replies(buffer, len, seq, sink, arg, &interrupted) : 1;
		free(buffer);
	} while (rc > 0);
	return rc == 0 && interrupted ? -EAGAIN : rc;
}

int net_nl_read_pending_events(struct nl_sock *sock, net_nl_sink sink, void *arg)
{
	int count = 0;

	while (count < EVENTS_AT_ONCE) { /* the rest next time: the socket stays readable */
		struct sockaddr_nl from = {0};
		unsigned char *buffer = NULL;
		int len = nl_recv(sock, &from, &buffer, NULL);

		if (len <= 0) {
			free(buffer);
			if (len == -NLE_AGAIN || len == -NLE_INTR || len == 0)
				return count;
			return -ENOBUFS; /* libnl has no code of its own for it; whatever it was, read anew */
		}
		if (from.nl_pid == 0) /* other programs may send to the groups too */
			for (struct nlmsghdr *m = (struct nlmsghdr *)buffer; nlmsg_ok(m, len); m = nlmsg_next(m, &len))
				if (m->nlmsg_type >= RTM_BASE)
					sink(m, arg);
		free(buffer);
		count++;
	}
	return count;
}
