/* iov_iter.c - the list of a message's pieces, and copying from and to them. */
#include <errno.h>

#include "iov_iter.h"

/* A list that lies right behind msg is the library's own, and has one piece: see sock.h. */
static bool is_own(const struct msghdr *msg)
{
	return msg->msg_iovlen == 1 && msg->msg_iov == (const struct iovec *)(msg + 1);
}

/* Memory that no application has. Of a single piece the kernel looks at no more than it takes. */
static bool iov_is_bad_ptr(const struct iov_iter *iov_iter, const struct iovec *iov)
{
	if (__builtin_expect(iov->iov_len > IOV_ITER_BYTES_MAX, 0))
		return vma_is_beyond(iov->iov_base, iov_iter->n == 1 ? IOV_ITER_BYTES_MAX : iov->iov_len);
	return (intptr_t)iov->iov_base < 0 && iov->iov_len != 0;
}

static int check_iov_iter(struct iov_iter *iov_iter)
{
	for (size_t i = 0; i < iov_iter->n; i++)
		if ((ssize_t)iov_iter->iov[i].iov_len < 0)
			return -EINVAL;
	for (size_t i = 0; i < iov_iter->n; i++) {
		if (iov_is_bad_ptr(iov_iter, &iov_iter->iov[i]))
			return -EFAULT;
		if (iov_iter->iov[i].iov_len > IOV_ITER_BYTES_MAX - iov_iter->left)
			iov_iter->left = IOV_ITER_BYTES_MAX;
		else
			iov_iter->left += iov_iter->iov[i].iov_len;
	}
	return 0;
}

int iov_iter_get(struct iov_iter *iov_iter, const struct msghdr *msg)
{
	struct iovec *copy = iov_iter->few;

	iov_iter->many = NULL;
	iov_iter->n = msg->msg_iovlen;
	iov_iter->at = iov_iter->off = iov_iter->left = 0;
	iov_iter->iov = copy;
	if (__builtin_expect(is_own(msg), 1)) {
		*copy = *msg->msg_iov;
		return check_iov_iter(iov_iter);
	}
	if (iov_iter->n > IOV_ITER_MAX)
		return -EMSGSIZE;
	if (iov_iter->n > IOV_ITER_FEW) {
		iov_iter->iov = copy = iov_iter->many = vma_alloc(iov_iter->n * sizeof(*copy));
		if (copy == NULL)
			return -ENOMEM;
	}
	if (iov_iter->n != 0 && vma_copy(copy, msg->msg_iov, iov_iter->n * sizeof(*copy)) != 0)
		return -EFAULT;
	return check_iov_iter(iov_iter);
}

/* The next stretch of at most `bytes`, in one piece. */
static size_t iov_iter_span(struct iov_iter *iov_iter, size_t bytes, uint8_t **address)
{
	size_t here;

	while (iov_iter->off == iov_iter->iov[iov_iter->at].iov_len) {
		iov_iter->at++;
		iov_iter->off = 0;
	}
	here = iov_iter->iov[iov_iter->at].iov_len - iov_iter->off;
	*address = (uint8_t *)iov_iter->iov[iov_iter->at].iov_base + iov_iter->off;
	return here < bytes ? here : bytes;
}

static void iov_iter_advance(struct iov_iter *iov_iter, size_t bytes)
{
	iov_iter->off += bytes;
	iov_iter->left -= bytes;
}

size_t iov_iter_read(struct iov_iter *iov_iter, uint8_t *to, size_t bytes)
{
	size_t done = 0, here;
	uint8_t *from;

	for (; done < bytes && iov_iter->left > 0; done += here) {
		here = iov_iter_span(iov_iter, bytes - done, &from);
		if (vma_copy(to + done, from, here) != 0)
			break;
		iov_iter_advance(iov_iter, here);
	}
	return done;
}

size_t iov_iter_write(struct iov_iter *iov_iter, const uint8_t *from, size_t bytes)
{
	size_t done = 0, here;
	uint8_t *to;

	for (; done < bytes && iov_iter->left > 0; done += here) {
		here = iov_iter_span(iov_iter, bytes - done, &to);
		if (vma_copy(to, from + done, here) != 0)
			break;
		iov_iter_advance(iov_iter, here);
	}
	return done;
}

void iov_iter_skip(struct iov_iter *iov_iter, size_t bytes)
{
	size_t here;
	uint8_t *unused;

	for (; bytes > 0 && iov_iter->left > 0; bytes -= here) {
		here = iov_iter_span(iov_iter, bytes, &unused);
		iov_iter_advance(iov_iter, here);
	}
}
