/*
 * errqueue.c - notices of zero-copy sends. They are copied, so they are done as soon as they are made; the application
 * reads of it as with the kernel, whose notices also say where a copy was made after all (SO_EE_CODE_ZEROCOPY_COPIED).
 */
#include <errno.h>
#include <time.h>
#include <linux/errqueue.h>
#include <string.h>
#include <sys/epoll.h>

#include "stream_priv.h"

/* The high half of sock->zerocopies: told up to here; the low one: sent up to here. Both wrap, as the kernel's. */
static uint32_t told_of(uint64_t both)
{
	return (uint32_t)(both >> 32);
}

void stream_zerocopy_sent(struct stream_sock *sock)
{
	uint64_t both = atomic_load(&sock->zerocopies), next;

	do
		next = (both & ~(uint64_t)UINT32_MAX) | (uint32_t)((uint32_t)both + 1);
	while (!atomic_compare_exchange_weak(&sock->zerocopies, &both, next));
	stream_ready(sock, EPOLLERR);
}

bool stream_has_notices(const struct stream_sock *sock)
{
	uint64_t both = atomic_load_explicit(&sock->zerocopies, memory_order_relaxed);

	return told_of(both) != (uint32_t)both;
}

enum { ERROR_LEN = sizeof(struct sock_extended_err), OFFENDER_LEN = sizeof(struct sockaddr_in) };
#define NOTICE_LEN CMSG_LEN(ERROR_LEN + OFFENDER_LEN)

static void build(uint8_t *notice, uint32_t first, uint32_t last, size_t len)
{
	const struct cmsghdr head = {.cmsg_len = len, .cmsg_level = IPPROTO_IP, .cmsg_type = IP_RECVERR};
	const struct sock_extended_err error = {.ee_origin = SO_EE_ORIGIN_ZEROCOPY,
	                                        .ee_code = SO_EE_CODE_ZEROCOPY_COPIED,
	                                        .ee_info = first,
	                                        .ee_data = last};

	memset(notice, 0, NOTICE_LEN);
	memcpy(notice, &head, sizeof(head));
	memcpy(notice + CMSG_LEN(0), &error, sizeof(error));
}

/* What does not fit is cut, and MSG_CTRUNC says so. */
static int give(struct msghdr *msg, uint32_t first, uint32_t last)
{
	size_t room = msg->msg_control != NULL ? msg->msg_controllen : 0, len = NOTICE_LEN;
	uint8_t notice[NOTICE_LEN];

	msg->msg_controllen = 0;
	if (room < len)
		msg->msg_flags |= MSG_CTRUNC;
	if (room < sizeof(struct cmsghdr))
		return 0;
	len = room < len ? room : len;
	msg->msg_controllen = CMSG_ALIGN(len) < room ? CMSG_ALIGN(len) : room;
	build(notice, first, last, len);
	return vma_copy(msg->msg_control, notice, len);
}

ssize_t stream_recv_notice(struct stream_sock *sock, struct msghdr *msg)
{
	uint64_t both = atomic_load(&sock->zerocopies), next;

	do {
		if (told_of(both) == (uint32_t)both)
			return -EAGAIN;
		next = (both & UINT32_MAX) << 32 | (uint32_t)both;
	} while (!atomic_compare_exchange_weak(&sock->zerocopies, &both, next));
	msg->msg_flags = MSG_ERRQUEUE;
	msg->msg_namelen = 0;
	return give(msg, told_of(both), (uint32_t)both - 1) != 0 ? -EFAULT : 0;
}
