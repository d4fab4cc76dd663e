/*
 * iov_iter.h - the pieces of memory of one message, their list copied and checked as the kernel does before all else.
 */
#ifndef VMA_UDP_IOV_ITER_H
#define VMA_UDP_IOV_ITER_H

#include <sys/uio.h>

#include "udp_priv.h"

enum { UDP_IOV_ITER_FEW = 8, UDP_IOV_ITER_MAX = 1024 /* UIO_MAXIOV */ };

#define UDP_BYTES_MAX ((size_t)INT32_MAX & ~(size_t)4095) /* of one call: MAX_RW_COUNT */

struct udp_iov_iter {
	const struct iovec *iov; /* addresses are the application's: vma_copy */
	size_t n, len;           /* bytes of all of them */
	struct iovec few[UDP_IOV_ITER_FEW];
	struct iovec *many; /* allocated, or NULL */
};

/* 0; -EMSGSIZE: too many, -EINVAL: a length below 0, -EFAULT, -ENOMEM. put in any case. */
int udp_iov_iter_get(struct udp_iov_iter *iov_iter, const struct msghdr *msg);
void udp_iov_iter_put(struct udp_iov_iter *iov_iter);

/*
 * msg is the library's own copy, and what it points to the application's, but for one case: an iov right behind it is
 * the library's as well (recv, send and the like have no iov to point to) and is read as it is.
 */
static inline bool udp_iov_is_own(const struct msghdr *msg)
{
	return __builtin_expect(msg->msg_iov == (const struct iovec *)(msg + 1), 1);
}

/* An address that no application has: the kernel refuses it before it does anything. Length 0 is no address. */
static inline bool udp_iov_is_bad_ptr(const struct iovec *iov)
{
	return (intptr_t)iov->iov_base < 0 && iov->iov_len != 0;
}

#endif
