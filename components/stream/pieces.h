/* pieces.h - the pieces of memory of one message, their list copied as the kernel does, and how far they are used. */
#ifndef VMA_STREAM_PIECES_H
#define VMA_STREAM_PIECES_H

#include "stream_priv.h"

enum { PIECES_FEW = 8, PIECES_MAX = 1024 /* UIO_MAXIOV */ };
#define PIECES_BYTES_MAX ((size_t)INT32_MAX & ~(size_t)4095) /* of one call: MAX_RW_COUNT */

struct pieces {
	const struct iovec *iov; /* addresses are the application's: vma_copy */
	size_t n, at, off;       /* off bytes of iov[at] are used */
	size_t left;             /* bytes that are not */
	struct iovec few[PIECES_FEW];
	struct iovec *many; /* allocated, or NULL */
};

/* 0; -EMSGSIZE: too many, -EINVAL: a length below 0, -EFAULT, -ENOMEM. put in any case. */
int pieces_get(struct pieces *pieces, const struct msghdr *msg);
static inline void pieces_put(struct pieces *pieces)
{
	if (__builtin_expect(pieces->many != NULL, 0))
		vma_free(pieces->many);
}
/* Copies up to `bytes` from them (to them), and goes on behind: how many; less than asked for: the rest is a fault. */
size_t pieces_read(struct pieces *pieces, uint8_t *to, size_t bytes);
size_t pieces_write(struct pieces *pieces, const uint8_t *from, size_t bytes);
void pieces_skip(struct pieces *pieces, size_t bytes);

#endif
