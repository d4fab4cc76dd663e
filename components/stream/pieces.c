/* pieces.c - the list of a message's pieces, and copying from and to them. */
#include <errno.h>

#include "pieces.h"

/* A list that lies right behind msg is the library's own, and has one piece: see sock.h. */
static bool is_own(const struct msghdr *msg)
{
	return msg->msg_iovlen == 1 && msg->msg_iov == (const struct iovec *)(msg + 1);
}

/* Memory that no application has. Of a single piece the kernel looks at no more than it takes. */
static bool iov_is_wild(const struct pieces *pieces, const struct iovec *iov)
{
	if (__builtin_expect(iov->iov_len > PIECES_BYTES_MAX, 0))
		return vma_is_beyond(iov->iov_base, pieces->n == 1 ? PIECES_BYTES_MAX : iov->iov_len);
	return (intptr_t)iov->iov_base < 0 && iov->iov_len != 0;
}

static int check_pieces(struct pieces *pieces)
{
	for (size_t i = 0; i < pieces->n; i++)
		if ((ssize_t)pieces->iov[i].iov_len < 0)
			return -EINVAL;
	for (size_t i = 0; i < pieces->n; i++) {
		if (iov_is_wild(pieces, &pieces->iov[i]))
			return -EFAULT;
		if (pieces->iov[i].iov_len > PIECES_BYTES_MAX - pieces->left)
			pieces->left = PIECES_BYTES_MAX;
		else
			pieces->left += pieces->iov[i].iov_len;
	}
	return 0;
}

int pieces_get(struct pieces *pieces, const struct msghdr *msg)
{
	struct iovec *copy = pieces->few;

	pieces->many = NULL;
	pieces->n = msg->msg_iovlen;
	pieces->at = pieces->off = pieces->left = 0;
	pieces->iov = copy;
	if (__builtin_expect(is_own(msg), 1)) {
		*copy = *msg->msg_iov;
		return check_pieces(pieces);
	}
	if (pieces->n > PIECES_MAX)
		return -EMSGSIZE;
	if (pieces->n > PIECES_FEW) {
		pieces->iov = copy = pieces->many = vma_alloc(pieces->n * sizeof(*copy));
		if (copy == NULL)
			return -ENOMEM;
	}
	if (pieces->n != 0 && vma_copy(copy, msg->msg_iov, pieces->n * sizeof(*copy)) != 0)
		return -EFAULT;
	return check_pieces(pieces);
}

/* The next stretch of at most `bytes`, in one piece. */
static size_t pieces_stretch(struct pieces *pieces, size_t bytes, uint8_t **address)
{
	size_t here;

	while (pieces->off == pieces->iov[pieces->at].iov_len) {
		pieces->at++;
		pieces->off = 0;
	}
	here = pieces->iov[pieces->at].iov_len - pieces->off;
	*address = (uint8_t *)pieces->iov[pieces->at].iov_base + pieces->off;
	return here < bytes ? here : bytes;
}

static void pieces_advance(struct pieces *pieces, size_t bytes)
{
	pieces->off += bytes;
	pieces->left -= bytes;
}

size_t pieces_read(struct pieces *pieces, uint8_t *to, size_t bytes)
{
	size_t done = 0, here;
	uint8_t *from;

	for (; done < bytes && pieces->left > 0; done += here) {
		here = pieces_stretch(pieces, bytes - done, &from);
		if (vma_copy(to + done, from, here) != 0)
			break;
		pieces_advance(pieces, here);
	}
	return done;
}

size_t pieces_write(struct pieces *pieces, const uint8_t *from, size_t bytes)
{
	size_t done = 0, here;
	uint8_t *to;

	for (; done < bytes && pieces->left > 0; done += here) {
		here = pieces_stretch(pieces, bytes - done, &to);
		if (vma_copy(to, from + done, here) != 0)
			break;
		pieces_advance(pieces, here);
	}
	return done;
}

void pieces_skip(struct pieces *pieces, size_t bytes)
{
	size_t here;
	uint8_t *unused;

	for (; bytes > 0 && pieces->left > 0; bytes -= here) {
		here = pieces_stretch(pieces, bytes, &unused);
		pieces_advance(pieces, here);
	}
}
