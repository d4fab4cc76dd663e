/* iov_iter.c - the list of a message's pieces. */
#include <errno.h>

#include "iov_iter.h"

/* Of a single piece the kernel looks at no more than it takes. */
static bool piece_is_bad_ptr(const struct udp_iov_iter *iov_iter, const struct iovec *iov)
{
	if (__builtin_expect(iov->iov_len > UDP_BYTES_MAX, 0))
		return vma_is_beyond(iov->iov_base, iov_iter->n == 1 ? UDP_BYTES_MAX : iov->iov_len);
	return udp_iov_is_bad_ptr(iov);
}

int udp_iov_iter_get(struct udp_iov_iter *iov_iter, const struct msghdr *msg)
{
	struct iovec *copy = iov_iter->few;

	iov_iter->many = NULL;
	iov_iter->n = msg->msg_iovlen;
	iov_iter->len = 0;
	iov_iter->iov = copy;
	if (iov_iter->n > UDP_IOV_ITER_MAX)
		return -EMSGSIZE;
	if (iov_iter->n > UDP_IOV_ITER_FEW) {
		iov_iter->iov = copy = iov_iter->many = vma_alloc(iov_iter->n * sizeof(*copy));
		if (copy == NULL)
			return -ENOMEM;
	}
	if (iov_iter->n != 0 && vma_copy(copy, msg->msg_iov, iov_iter->n * sizeof(*copy)) != 0)
		return -EFAULT;
	for (size_t i = 0; i < iov_iter->n; i++)
		if ((ssize_t)copy[i].iov_len < 0)
			return -EINVAL;
	for (size_t i = 0; i < iov_iter->n; i++) {
		if (piece_is_bad_ptr(iov_iter, &copy[i]))
			return -EFAULT;
		if (copy[i].iov_len > UDP_BYTES_MAX - iov_iter->len)
			copy[i].iov_len = UDP_BYTES_MAX - iov_iter->len;
		iov_iter->len += copy[i].iov_len;
	}
	return 0;
}

void udp_iov_iter_put(struct udp_iov_iter *iov_iter)
{
	if (iov_iter->many != NULL)
		vma_free(iov_iter->many);
}
