/* iov_iter.h - the pieces of memory of one message, their list copied as the kernel does, and how far they are used. */
#ifndef VMA_STREAM_IOV_ITER_H
#define VMA_STREAM_IOV_ITER_H

#include "stream_priv.h"

enum { IOV_ITER_FEW = 8, IOV_ITER_MAX = 1024 /* UIO_MAXIOV */ };
#define IOV_ITER_BYTES_MAX ((size_t)INT32_MAX & ~(size_t)4095) /* of one call: MAX_RW_COUNT */

struct iov_iter {
	const struct iovec *iov; /* addresses are the application's: vma_copy */
	size_t n, at, off;       /* off bytes of iov[at] are used */
	size_t left;             /* bytes that are not */
	struct iovec few[IOV_ITER_FEW];
	struct iovec *many; /* allocated, or NULL */
};

/* 0; -EMSGSIZE: too many, -EINVAL: a length below 0, -EFAULT, -ENOMEM. put in any case. */
int iov_iter_get(struct iov_iter *iov_iter, const struct msghdr *msg);
static inline void iov_iter_put(struct iov_iter *iov_iter)
{
	if (__builtin_expect(iov_iter->many != NULL, 0))
		vma_free(iov_iter->many);
}
/* Copies up to `bytes` from the pieces (to them) and moves on; how many. Less than asked for: the rest is a fault. */
size_t iov_iter_read(struct iov_iter *iov_iter, uint8_t *to, size_t bytes);
size_t iov_iter_write(struct iov_iter *iov_iter, const uint8_t *from, size_t bytes);
void iov_iter_skip(struct iov_iter *iov_iter, size_t bytes);

#endif
