/*
 * send - write, send and their relatives: one message each, or a row of them.
 *
 * Sends in a row may share a kick (udp): these calls, unlike all others, do not make held back frames leave.
 */
#include <mellanox/vma_extra.h>

#include "message.h"
#include "more.h"
#include "rights.h"

/* Dummy messages of the Extra API: the kernel does not know them. */
#define IS_DUMMY(flags) __builtin_expect(((flags)&VMA_SND_FLAGS_DUMMY) != 0, 0)
static int __attribute__((cold, noinline)) fail_dummy_send_with_einval(void)
{
	errno = EINVAL;
	return -1;
}

static bool call_send_bytes(int fd, const void *data, size_t size, int flags, const struct sockaddr *addr,
                            socklen_t len, ssize_t *result)
{
	struct message own;
	struct call call;

	/* An address of a length that the kernel refuses, or bytes. */
	if ((addr != NULL && len > sizeof(struct sockaddr_storage)) || message_exceeds_user_space(data, size))
		return false;
	pthread_testcancel();
	if (!CALL_BEGIN_DATA_OP(&call, fd, sendmsg))
		return false;
	message_of_bytes(&own, data, size);
	if (addr != NULL) {
		own.msg.msg_name = (void *)addr;
		own.msg.msg_namelen = len;
	}
	*result = call_end(&call, call.file->ops->sendmsg(call.file, fd, &own.msg, flags));
	return true;
}

static __attribute__((noinline)) ssize_t sendto_offloaded_fd(int fd, const void *data, size_t size, int flags,
                                                             const struct sockaddr *addr, socklen_t len)
{
	ssize_t result;

	if (call_send_bytes(fd, data, size, flags, addr, len, &result))
		return result;
	return IS_DUMMY(flags) ? fail_dummy_send_with_einval() : vma_os.sendto(fd, data, size, flags, addr, len);
}

EXPORT(ssize_t, send, (int fd, const void *data, size_t size, int flags))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return IS_DUMMY(flags) ? fail_dummy_send_with_einval() : vma_os.send(fd, data, size, flags);
	return sendto_offloaded_fd(fd, data, size, flags, NULL, 0);
}
ALIAS(ssize_t, __send, send, (int fd, const void *data, size_t size, int flags))

EXPORT(ssize_t, sendto, (int fd, const void *data, size_t size, int flags, const struct sockaddr *addr, socklen_t len))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return IS_DUMMY(flags) ? fail_dummy_send_with_einval()
		                       : vma_os.sendto(fd, data, size, flags, addr, len);
	return sendto_offloaded_fd(fd, data, size, flags, addr, len);
}

static __attribute__((noinline)) ssize_t write_offloaded_fd(int fd, const void *data, size_t size)
{
	ssize_t result;

	if (!io_buffer_is_beyond_user_space(data, size) && call_send_bytes(fd, data, size, 0, NULL, 0, &result))
		return result;
	return vma_os.write(fd, data, size);
}

EXPORT(ssize_t, write, (int fd, const void *data, size_t size))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return vma_os.write(fd, data, size);
	return write_offloaded_fd(fd, data, size);
}
ALIAS(ssize_t, __write, write, (int fd, const void *data, size_t size))

/* ---- pieces ---- */

/* write of nothing is an empty datagram, writev of nothing is nothing (vfs_writev): the kernel's call says so. */
static bool send_from_iovec_if_offloaded(int fd, const struct iovec *iov, int n, int flags, ssize_t *result)
{
	struct msghdr msg = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)n};
	struct call call;
	ssize_t rc;

	pthread_testcancel();
	if (!CALL_BEGIN_DATA_OP(&call, fd, sendmsg))
		return false;
	rc = message_iovec_total_bytes(iov, n);
	if (rc == MESSAGE_KERNEL || rc == 0) {
		call_leave(&call);
		return false;
	}
	if (rc > 0)
		rc = call.file->ops->sendmsg(call.file, fd, &msg, flags);
	*result = call_end(&call, rc);
	return true;
}

static __attribute__((noinline)) ssize_t writev_offloaded_fd(int fd, const struct iovec *iov, int n)
{
	ssize_t result;

	return send_from_iovec_if_offloaded(fd, iov, n, 0, &result) ? result : vma_os.writev(fd, iov, n);
}

EXPORT(ssize_t, writev, (int fd, const struct iovec *iov, int n))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return vma_os.writev(fd, iov, n);
	return writev_offloaded_fd(fd, iov, n);
}

/* At -1 the positional ones are writev with flags; anywhere else a socket is no place: ESPIPE. */
static __attribute__((noinline)) ssize_t pwritev2_offloaded_fd(int fd, const struct iovec *iov, int n, off64_t offset,
                                                               int flags)
{
	ssize_t result;

	if (offset == -1 && message_rwf_flags_supported(flags) &&
	    send_from_iovec_if_offloaded(fd, iov, n, msg_flags_of_rwf_flags(flags), &result))
		return result;
	return vma_os.pwritev64v2(fd, iov, n, offset, flags);
}

EXPORT(ssize_t, pwritev2, (int fd, const struct iovec *iov, int n, off_t offset, int flags))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return vma_os.pwritev2(fd, iov, n, offset, flags);
	return pwritev2_offloaded_fd(fd, iov, n, offset, flags);
}

EXPORT(ssize_t, pwritev64v2, (int fd, const struct iovec *iov, int n, off64_t offset, int flags))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return vma_os.pwritev64v2(fd, iov, n, offset, flags);
	return pwritev2_offloaded_fd(fd, iov, n, offset, flags);
}

/* ---- messages ---- */

/* Inside, for a file with sendmsg. */
static ssize_t send_message(struct vma_file *file, int fd, const struct msghdr *msg, int flags)
{
	struct msghdr own;
	int rc = message_copy_from_application(&own, msg);

	return rc < 0 ? rc : file->ops->sendmsg(file, fd, &own, flags);
}

/* The descriptor is the kernel's; what the message carries may be ours. */
static __attribute__((noinline)) ssize_t sendmsg_kernel_fd_with_rights(int fd, const struct msghdr *msg, int flags)
{
	ssize_t sent;

	rights_hand_over_fds_passed_in_message(msg);
	sent = vma_os.sendmsg(fd, msg, flags);
	if (sent < 0)
		rights_undo_passing_of_fds(msg);
	return sent;
}

static __attribute__((noinline)) ssize_t sendmsg_offloaded_fd(int fd, const struct msghdr *msg, int flags)
{
	struct call call;
	ssize_t rc;

	pthread_testcancel();
	if (!CALL_BEGIN_DATA_OP(&call, fd, sendmsg))
		return IS_DUMMY(flags) ? fail_dummy_send_with_einval() : sendmsg_kernel_fd_with_rights(fd, msg, flags);
	rc = send_message(call.file, fd, msg, flags);
	if (rc == MESSAGE_KERNEL) {
		call_leave(&call);
		return vma_os.sendmsg(fd, msg, flags);
	}
	return call_end(&call, rc);
}

EXPORT(ssize_t, sendmsg, (int fd, const struct msghdr *msg, int flags))
{
	if (!FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return sendmsg_offloaded_fd(fd, msg, flags);
	if (IS_DUMMY(flags))
		return fail_dummy_send_with_einval();
	if (process_has_had_own_fds())
		return sendmsg_kernel_fd_with_rights(fd, msg, flags);
	return vma_os.sendmsg(fd, msg, flags);
}

/* Inside. An error after the first message is not told: the next call meets it again. */
static int send_messages(struct vma_file *file, int fd, struct mmsghdr *msgs, unsigned n, int flags)
{
	unsigned done = 0;
	ssize_t rc = 0;

	if (n > MESSAGE_PIECES_MAX)
		n = MESSAGE_PIECES_MAX;
	while (done < n) {
		unsigned bytes;

		rc = send_message(file, fd, &msgs[done].msg_hdr, flags);
		if (rc < 0)
			break;
		bytes = (unsigned)rc;
		if (vma_memcpy_or_efault(&msgs[done].msg_len, &bytes, sizeof(bytes)) != 0) {
			rc = -EFAULT;
			break;
		}
		done++;
	}
	return done > 0 || rc >= 0 ? (int)done : (int)rc;
}

static __attribute__((noinline)) int sendmmsg_kernel_fd_with_rights(int fd, struct mmsghdr *msgs, unsigned n, int flags)
{
	int sent;

	rights_hand_over_fds_passed_in_messages(msgs, n);
	sent = vma_os.sendmmsg(fd, msgs, n, flags);
	for (unsigned i = sent > 0 ? (unsigned)sent : 0; i < n && i < MESSAGE_PIECES_MAX; i++)
		rights_undo_passing_of_fds(&msgs[i].msg_hdr);
	return sent;
}

static __attribute__((noinline)) int sendmmsg_offloaded_fd(int fd, struct mmsghdr *msgs, unsigned n, int flags)
{
	struct call call;
	int rc;

	pthread_testcancel();
	if (!CALL_BEGIN_DATA_OP(&call, fd, sendmsg))
		return IS_DUMMY(flags) ? fail_dummy_send_with_einval()
		                       : sendmmsg_kernel_fd_with_rights(fd, msgs, n, flags);
	rc = send_messages(call.file, fd, msgs, n, flags);
	if (rc == MESSAGE_KERNEL) {
		call_leave(&call);
		return vma_os.sendmmsg(fd, msgs, n, flags);
	}
	return (int)call_end(&call, rc);
}

EXPORT(int, sendmmsg, (int fd, struct mmsghdr *msgs, unsigned n, int flags))
{
	if (!FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return sendmmsg_offloaded_fd(fd, msgs, n, flags);
	if (IS_DUMMY(flags))
		return fail_dummy_send_with_einval();
	if (process_has_had_own_fds())
		return sendmmsg_kernel_fd_with_rights(fd, msgs, n, flags);
	return vma_os.sendmmsg(fd, msgs, n, flags);
}
