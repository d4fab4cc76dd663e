/*
 * errqueue.c - notices of zero-copy sends. The sends are copied, so they are done as soon as they are made. The
 * application reads of them as with the kernel, whose notices also say if a copy was made after all
 * (SO_EE_CODE_ZEROCOPY_COPIED).
 */
#include <errno.h>
#include <time.h>
#include <linux/errqueue.h>
#include <sys/epoll.h>

#include "stream_priv.h"

/* The high half of sock->zerocopies: told up to here; the low one: sent up to here. Both wrap, as the kernel's. */
static uint32_t zerocopies_told_up_to(uint64_t both)
{
	return (uint32_t)(both >> 32);
}

void stream_queue_zerocopy_notification(struct stream_sock *sock)
{
	uint64_t both = atomic_load(&sock->zerocopies), next;

	do
		next = (both & ~(uint64_t)UINT32_MAX) | (uint32_t)((uint32_t)both + 1);
	while (!atomic_compare_exchange_weak(&sock->zerocopies, &both, next));
	stream_wake_waiters(sock, EPOLLERR);
}

bool stream_has_zerocopy_notifications(const struct stream_sock *sock)
{
	uint64_t both = atomic_load_explicit(&sock->zerocopies, memory_order_relaxed);

	return zerocopies_told_up_to(both) != (uint32_t)both;
}

/* The error, and behind it an address: of nobody. */
struct zerocopy_notification {
	struct sock_extended_err error;
	union vma_name offender;
};

ssize_t stream_recv_zerocopy_notification(struct stream_sock *sock, struct msghdr *msg)
{
	uint64_t both = atomic_load(&sock->zerocopies), next;
	struct zerocopy_notification zerocopy_notification = {
	        .error = {.ee_origin = SO_EE_ORIGIN_ZEROCOPY, .ee_code = SO_EE_CODE_ZEROCOPY_COPIED}};

	do {
		if (zerocopies_told_up_to(both) == (uint32_t)both)
			return -EAGAIN;
		next = (both & UINT32_MAX) << 32 | (uint32_t)both;
	} while (!atomic_compare_exchange_weak(&sock->zerocopies, &both, next));
	msg->msg_flags = MSG_ERRQUEUE;
	msg->msg_namelen = 0;
	zerocopy_notification.error.ee_info = zerocopies_told_up_to(both);
	zerocopy_notification.error.ee_data = (uint32_t)both - 1;
	if (sock->file.family == AF_INET6)
		return stream_put_cmsg(msg, IPPROTO_IPV6, IPV6_RECVERR, &zerocopy_notification,
		                       sizeof(zerocopy_notification.error) +
		                               sizeof(zerocopy_notification.offender.in6));
	return stream_put_cmsg(msg, IPPROTO_IP, IP_RECVERR, &zerocopy_notification,
	                       sizeof(zerocopy_notification.error) + sizeof(zerocopy_notification.offender.in));
}
