/*
 * message - the application's messages as ops take them: a struct msghdr of our own, which points to the application's
 *           memory.
 *
 * If the kernel refuses a message before it looks at the socket, these functions refuse it too. Then the caller makes
 * the kernel's call, which fails as it must.
 *
 * Threads: the calling one, inside. A message lives in its caller's stack frame.
 */
#ifndef VMA_INTERPOSE_MESSAGE_H
#define VMA_INTERPOSE_MESSAGE_H

#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <sys/uio.h>

#include "call.h"

/* The kernel cuts longer ones, MAX_RW_COUNT. */
#define MESSAGE_BYTES_MAX ((size_t)INT_MAX & ~(size_t)4095)
/* UIO_MAXIOV. */
#define MESSAGE_PIECES_MAX 1024
/* What is left to the kernel's call. No errno has this value. */
#define MESSAGE_KERNEL (-4096)

/*
 * RWF_ flags of 6.18 that sockets take, and that say nothing to them, but for the one of a call that does not wait and
 * the one of a write without SIGPIPE. Others, and both of a pair that exclude each other, are refused by the kernel's
 * call, on whatever socket.
 */
#define MESSAGE_RWF_NOAPPEND 0x20
#define MESSAGE_RWF_NOSIGNAL 0x100
#define MESSAGE_RWF_TAKEN                                                                                              \
	(RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND | MESSAGE_RWF_NOAPPEND | MESSAGE_RWF_NOSIGNAL)
static inline bool message_rwf_flags_supported(int rwf)
{
	return (rwf & ~MESSAGE_RWF_TAKEN) == 0 &&
	       (rwf & (RWF_APPEND | MESSAGE_RWF_NOAPPEND)) != (RWF_APPEND | MESSAGE_RWF_NOAPPEND);
}
static inline int msg_flags_of_rwf_flags(int rwf)
{
	return ((rwf & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0) | ((rwf & MESSAGE_RWF_NOSIGNAL) != 0 ? MSG_NOSIGNAL : 0);
}

/* A message of one piece. That this lies right behind msg tells ops that it is the library's own: see sock.h. */
struct message {
	struct msghdr msg;
	struct iovec piece;
};

/* Of one piece, of which the kernel looks at no more than it takes. */
static inline bool message_exceeds_user_space(const void *data, size_t size)
{
	return __builtin_expect(size > MESSAGE_BYTES_MAX, 0) && vma_exceeds_user_space(data, MESSAGE_BYTES_MAX);
}
/* Of read and write it looks at all. */
static inline bool io_buffer_is_beyond_user_space(const void *data, size_t size)
{
	return __builtin_expect(size > MESSAGE_BYTES_MAX, 0) && vma_exceeds_user_space(data, size);
}

static inline void message_of_bytes(struct message *message, const void *data, size_t size)
{
	message->piece = (struct iovec){
	        .iov_base = (void *)data,
	        .iov_len = size < MESSAGE_BYTES_MAX ? size : MESSAGE_BYTES_MAX,
	};
	message->msg = (struct msghdr){.msg_iov = &message->piece, .msg_iovlen = 1};
}

/* Inside. Bytes of all pieces, -EFAULT, or MESSAGE_KERNEL for what the kernel would refuse. */
ssize_t message_iovec_total_bytes(const struct iovec *iov, int n);
/* Inside. 0, -EFAULT, MESSAGE_KERNEL. */
int message_copy_from_application(struct msghdr *own, const struct msghdr *msg);

#endif
