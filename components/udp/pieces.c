/* pieces.c - the list of a message's pieces. */
#include <errno.h>

#include "pieces.h"

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
	for (size_t i = 0; i < pieces->n; i++) {
		if (copy[i].iov_len > SSIZE_MAX - pieces->len)
			return -EINVAL;
		if (udp_iov_is_wild(&copy[i]))
			return -EFAULT;
		pieces->len += copy[i].iov_len;
	}
	return 0;
}

void udp_pieces_put(struct udp_pieces *pieces)
{
	if (pieces->many != NULL)
		vma_free(pieces->many);
}
