/* pieces.c - the list of a message's pieces. */
#include <errno.h>

#include "pieces.h"

/* Of a single piece the kernel looks at no more than it takes. */
static bool piece_is_wild(const struct udp_pieces *pieces, const struct iovec *iov)
{
	if (__builtin_expect(iov->iov_len > UDP_BYTES_MAX, 0))
		return vma_is_beyond(iov->iov_base, pieces->n == 1 ? UDP_BYTES_MAX : iov->iov_len);
	return udp_iov_is_wild(iov);
}

int udp_pieces_get(struct udp_pieces *pieces, const struct msghdr *msg)
{
	struct iovec *copy = pieces->few;

	pieces->many = NULL;
	pieces->n = msg->msg_iovlen;
	pieces->len = 0;
	pieces->iov = copy;
	if (pieces->n > UDP_PIECES_MAX)
		return -EMSGSIZE;
	if (pieces->n > UDP_PIECES_FEW) {
		pieces->iov = copy = pieces->many = vma_alloc(pieces->n * sizeof(*copy));
		if (copy == NULL)
			return -ENOMEM;
	}
	if (pieces->n != 0 && vma_copy(copy, msg->msg_iov, pieces->n * sizeof(*copy)) != 0)
		return -EFAULT;
	for (size_t i = 0; i < pieces->n; i++)
		if ((ssize_t)copy[i].iov_len < 0)
			return -EINVAL;
	for (size_t i = 0; i < pieces->n; i++) {
		if (piece_is_wild(pieces, &copy[i]))
			return -EFAULT;
		if (copy[i].iov_len > UDP_BYTES_MAX - pieces->len)
			copy[i].iov_len = UDP_BYTES_MAX - pieces->len;
		pieces->len += copy[i].iov_len;
	}
	return 0;
}

void udp_pieces_put(struct udp_pieces *pieces)
{
	if (pieces->many != NULL)
		vma_free(pieces->many);
}
