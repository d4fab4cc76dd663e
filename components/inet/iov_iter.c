/* iov_iter.c - the list of a message's pieces, and copying from and to them. */
#include <errno.h>

#include <vma/inet_iov_iter.h>

/* Of a single piece the kernel looks at no more than it takes. */
static bool iovec_is_bad_user_pointer(const struct vma_inet_iov_iter *iov_iter, const struct iovec *iov)
{
	if (__builtin_expect(iov->iov_len > VMA_INET_BYTES_MAX, 0))
		return vma_exceeds_user_space(iov->iov_base, iov_iter->n == 1 ? VMA_INET_BYTES_MAX : iov->iov_len);
	return vma_inet_iov_is_bad_ptr(iov);
}

/* What is beyond the bytes of one call is cut off. */
static int iov_iter_validate_and_cap_lengths(struct vma_inet_iov_iter *iov_iter, struct iovec *copy)
{
	for (size_t i = 0; i < iov_iter->n; i++)
		if ((ssize_t)copy[i].iov_len < 0)
			return -EINVAL;
	for (size_t i = 0; i < iov_iter->n; i++) {
		if (iovec_is_bad_user_pointer(iov_iter, &copy[i]))
			return -EFAULT;
		if (copy[i].iov_len > VMA_INET_BYTES_MAX - iov_iter->left)
			copy[i].iov_len = VMA_INET_BYTES_MAX - iov_iter->left;
		iov_iter->left += copy[i].iov_len;
	}
	return 0;
}

int vma_inet_iov_iter_init_from_msghdr(struct vma_inet_iov_iter *iov_iter, const struct msghdr *msg)
{
	struct iovec *copy = iov_iter->few;

	iov_iter->many = NULL;
	iov_iter->n = msg->msg_iovlen;
	iov_iter->at = iov_iter->off = iov_iter->left = 0;
	iov_iter->iov = copy;
	if (vma_inet_iov_is_library_memory(msg) && __builtin_expect(iov_iter->n == 1, 1)) {
		*copy = *msg->msg_iov;
		return iov_iter_validate_and_cap_lengths(iov_iter, copy);
	}
	if (iov_iter->n > VMA_INET_IOV_MAX)
		return -EMSGSIZE;
	if (iov_iter->n > VMA_INET_IOV_FEW) {
		iov_iter->iov = copy = iov_iter->many = vma_alloc(iov_iter->n * sizeof(*copy));
		if (copy == NULL)
			return -ENOMEM;
	}
	if (iov_iter->n != 0 && vma_memcpy_or_efault(copy, msg->msg_iov, iov_iter->n * sizeof(*copy)) != 0)
		return -EFAULT;
	return iov_iter_validate_and_cap_lengths(iov_iter, copy);
}

/* The next stretch of at most `bytes`, in one piece. */
static size_t iov_iter_next_contiguous_span(struct vma_inet_iov_iter *iov_iter, size_t bytes, uint8_t **address)
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

static void iov_iter_advance(struct vma_inet_iov_iter *iov_iter, size_t bytes)
{
	iov_iter->off += bytes;
	iov_iter->left -= bytes;
}

size_t vma_inet_iov_iter_read(struct vma_inet_iov_iter *iov_iter, uint8_t *to, size_t bytes)
{
	size_t done = 0, here;
	uint8_t *from;

	for (; done < bytes && iov_iter->left > 0; done += here) {
		here = iov_iter_next_contiguous_span(iov_iter, bytes - done, &from);
		if (vma_memcpy_or_efault(to + done, from, here) != 0)
			break;
		iov_iter_advance(iov_iter, here);
	}
	return done;
}

size_t vma_inet_iov_iter_write(struct vma_inet_iov_iter *iov_iter, const uint8_t *from, size_t bytes)
{
	size_t done = 0, here;
	uint8_t *to;

	for (; done < bytes && iov_iter->left > 0; done += here) {
		here = iov_iter_next_contiguous_span(iov_iter, bytes - done, &to);
		if (vma_memcpy_or_efault(to, from + done, here) != 0)
			break;
		iov_iter_advance(iov_iter, here);
	}
	return done;
}

void vma_inet_iov_iter_skip(struct vma_inet_iov_iter *iov_iter, size_t bytes)
{
	size_t here;
	uint8_t *unused;

	for (; bytes > 0 && iov_iter->left > 0; bytes -= here) {
		here = iov_iter_next_contiguous_span(iov_iter, bytes, &unused);
		iov_iter_advance(iov_iter, here);
	}
}

struct msghdr vma_inet_iov_iter_rest_as_msghdr(struct vma_inet_iov_iter *iov_iter)
{
	struct iovec *rest = (iov_iter->many != NULL ? iov_iter->many : iov_iter->few) + iov_iter->at;

	rest->iov_base = (char *)rest->iov_base + iov_iter->off;
	rest->iov_len -= iov_iter->off;
	return (struct msghdr){.msg_iov = rest, .msg_iovlen = iov_iter->n - iov_iter->at};
}
