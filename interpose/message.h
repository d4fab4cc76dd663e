/*
 * message - the application's messages as ops take them: a struct msghdr of our own, everything that it points to still
 *           the application's.
 *
 * What the kernel refuses before it looks at the socket is refused by the kernel itself: these functions say no, and
 * the caller makes the kernel's call, which fails as it must.
 */
#ifndef VMA_INTERPOSE_MESSAGE_H
#define VMA_INTERPOSE_MESSAGE_H

#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include "call.h"

/* The kernel cuts longer ones, MAX_RW_COUNT. */
#define MESSAGE_BYTES_MAX ((size_t)INT_MAX & ~(size_t)4095)
/* UIO_MAXIOV. */
#define MESSAGE_PIECES_MAX 1024
/* What is left to the kernel's call. No errno has this value. */
#define MESSAGE_KERNEL (-4096)

/* A message of one piece. That this lies right behind msg tells ops that it is the library's own: see sock.h. */
struct message {
	struct msghdr msg;
	struct iovec piece;
};

static inline void message_of_bytes(struct message *message, const void *data, size_t size)
{
	message->piece = (struct iovec){
	        .iov_base = (void *)data,
	        .iov_len = size < MESSAGE_BYTES_MAX ? size : MESSAGE_BYTES_MAX,
	};
	message->msg = (struct msghdr){.msg_iov = &message->piece, .msg_iovlen = 1};
}

/* Inside. Bytes of all pieces, -EFAULT, or MESSAGE_KERNEL for what the kernel would refuse. */
ssize_t message_bytes(const struct iovec *iov, int n);
/* Inside. 0, -EFAULT, MESSAGE_KERNEL. */
int message_get(struct msghdr *own, const struct msghdr *msg);

#endif
