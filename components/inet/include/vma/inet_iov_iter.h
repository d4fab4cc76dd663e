/*
 * inet_iov_iter - the pieces of memory of one message, and how far they are used. Their list is copied and checked
 * before all else, as the kernel does.
 *
 * Threads: any, inside.
 * Progress: no call waits.
 * Memory: the caller's; from vma_alloc for a list of more than eight.
 * Example: test/test_iov_iter.c.
 */
#ifndef VMA_INET_IOV_ITER_H
#define VMA_INET_IOV_ITER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <vma/sock_thread.h>

enum { VMA_INET_IOV_FEW = 8, VMA_INET_IOV_MAX = 1024 /* UIO_MAXIOV */ };
#define VMA_INET_BYTES_MAX ((size_t)INT32_MAX & ~(size_t)4095) /* of one call: MAX_RW_COUNT */

struct vma_inet_iov_iter {
	const struct iovec *iov; /* addresses are the application's: vma_memcpy_or_efault */
	size_t n, at, off;       /* off bytes of iov[at] are used */
	size_t left;             /* bytes that are not; of all of them VMA_INET_BYTES_MAX at most */
	struct iovec few[VMA_INET_IOV_FEW];
	struct iovec *many; /* allocated, or NULL */
};

/* 0; -EMSGSIZE: too many, -EINVAL: a length below 0, -EFAULT, -ENOMEM. put in any case. */
int vma_inet_iov_iter_init_from_msghdr(struct vma_inet_iov_iter *iov_iter, const struct msghdr *msg);
static inline void vma_inet_iov_iter_release(struct vma_inet_iov_iter *iov_iter)
{
	if (__builtin_expect(iov_iter->many != NULL, 0))
		vma_free(iov_iter->many);
}
/* Copies up to `bytes` from the pieces (to them) and moves on; how many. Less than asked for: the rest is a fault. */
size_t vma_inet_iov_iter_read(struct vma_inet_iov_iter *iov_iter, uint8_t *to, size_t bytes);
size_t vma_inet_iov_iter_write(struct vma_inet_iov_iter *iov_iter, const uint8_t *from, size_t bytes);
void vma_inet_iov_iter_skip(struct vma_inet_iov_iter *iov_iter, size_t bytes);
/* What is left, for one call of the kernel's; the iterator is good for nothing but its release then. */
struct msghdr vma_inet_iov_iter_rest_as_msghdr(struct vma_inet_iov_iter *iov_iter);

/*
 * msg is the library's own copy, and what it points to the application's, but for one case: an iov right behind it is
 * the library's as well (recv, send and the like have no iov to point to) and is read as it is.
 */
static inline bool vma_inet_iov_is_library_memory(const struct msghdr *msg)
{
	return __builtin_expect(msg->msg_iov == (const struct iovec *)(msg + 1), 1);
}

/* An address that no application has: the kernel refuses it before it does anything. Length 0 is no address. */
static inline bool vma_inet_iov_is_bad_ptr(const struct iovec *iov)
{
	return (intptr_t)iov->iov_base < 0 && iov->iov_len != 0;
}

#endif
