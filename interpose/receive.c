/*
 * receive - read, recv and their relatives: one message each, or a row of them.
 *
 * The sender's address goes through a buffer of our own. The kernel looks at the application's buffer only after the
 * datagram has been taken, and cuts an address that does not fit.
 */
#include <time.h>

#include <vma/sock_engine.h>
#include <vma/sock_thread.h>

#include "message.h"
#include "more.h"
#include "rights.h"

/* recv, recvfrom and read; false: it is the kernel's. */
static bool call_receive_bytes(int fd, void *data, size_t size, int flags, struct sockaddr *addr, socklen_t *len,
                               ssize_t *result)
{
	struct sockaddr_storage from;
	struct message own;
	struct call call;
	ssize_t rc;

	if (message_exceeds_user_space(data, size))
		return false;
	pthread_testcancel();
	if (!CALL_BEGIN_DATA_OP(&call, fd, recvmsg))
		return false;
	message_of_bytes(&own, data, size);
	if (addr != NULL) {
		own.msg.msg_name = &from;
		own.msg.msg_namelen = sizeof(from);
	}
	rc = call.file->ops->recvmsg(call.file, fd, &own.msg, flags);
	if (rc >= 0 && addr != NULL) {
		int given = vma_copy_sockaddr_to_program(&from, own.msg.msg_namelen, addr, len);

		rc = given < 0 ? given : rc;
	}
	*result = call_end(&call, rc);
	return true;
}

static __attribute__((noinline)) ssize_t recvfrom_offloaded_fd(int fd, void *data, size_t size, int flags,
                                                               struct sockaddr *addr, socklen_t *len)
{
	ssize_t result;

	return call_receive_bytes(fd, data, size, flags, addr, len, &result)
	               ? result
	               : vma_os.recvfrom(fd, data, size, flags, addr, len);
}

EXPORT(ssize_t, recv, (int fd, void *data, size_t size, int flags))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return vma_os.recv(fd, data, size, flags);
	return recvfrom_offloaded_fd(fd, data, size, flags, NULL, NULL);
}

EXPORT(ssize_t, recvfrom, (int fd, void *data, size_t size, int flags, struct sockaddr *addr, socklen_t *len))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return vma_os.recvfrom(fd, data, size, flags, addr, len);
	return recvfrom_offloaded_fd(fd, data, size, flags, addr, len);
}

/* Nothing asked for is nothing taken, but for recv (the kernel's sock_read_iter). */
static __attribute__((noinline)) ssize_t read_offloaded_fd(int fd, void *data, size_t size)
{
	ssize_t result;

	if (size > 0 && !io_buffer_is_beyond_user_space(data, size) &&
	    call_receive_bytes(fd, data, size, 0, NULL, NULL, &result))
		return result;
	return vma_os.read(fd, data, size);
}

EXPORT(ssize_t, read, (int fd, void *data, size_t size))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return vma_os.read(fd, data, size);
	return read_offloaded_fd(fd, data, size);
}
ALIAS(ssize_t, __read, read, (int fd, void *data, size_t size))

/* The fortified ones know the room behind the pointer; the C library's own end the program when it is too small. */
EXPORT(ssize_t, __read_chk, (int fd, void *data, size_t size, size_t room))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd) || size > room)
		return vma_os.__read_chk(fd, data, size, room);
	return read_offloaded_fd(fd, data, size);
}

EXPORT(ssize_t, __recv_chk, (int fd, void *data, size_t size, size_t room, int flags))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd) || size > room)
		return vma_os.__recv_chk(fd, data, size, room, flags);
	return recvfrom_offloaded_fd(fd, data, size, flags, NULL, NULL);
}

EXPORT(ssize_t, __recvfrom_chk,
       (int fd, void *data, size_t size, size_t room, int flags, struct sockaddr *addr, socklen_t *len))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd) || size > room)
		return vma_os.__recvfrom_chk(fd, data, size, room, flags, addr, len);
	return recvfrom_offloaded_fd(fd, data, size, flags, addr, len);
}

/* ---- pieces ---- */

/* False: the kernel's call says what there is to say, at once. */
static bool receive_into_iovec_if_offloaded(int fd, const struct iovec *iov, int n, int flags, ssize_t *result)
{
	struct msghdr msg = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)n};
	struct call call;
	ssize_t rc;

	pthread_testcancel();
	if (!CALL_BEGIN_DATA_OP(&call, fd, recvmsg))
		return false;
	rc = message_iovec_total_bytes(iov, n);
	if (rc == MESSAGE_KERNEL || rc == 0) {
		call_leave(&call);
		return false;
	}
	if (rc > 0)
		rc = call.file->ops->recvmsg(call.file, fd, &msg, flags);
	*result = call_end(&call, rc);
	return true;
}

static __attribute__((noinline)) ssize_t readv_offloaded_fd(int fd, const struct iovec *iov, int n)
{
	ssize_t result;

	return receive_into_iovec_if_offloaded(fd, iov, n, 0, &result) ? result : vma_os.readv(fd, iov, n);
}

EXPORT(ssize_t, readv, (int fd, const struct iovec *iov, int n))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return vma_os.readv(fd, iov, n);
	return readv_offloaded_fd(fd, iov, n);
}

/* Sockets have no place to read from: ESPIPE. */
EXPORT(ssize_t, preadv, (int fd, const struct iovec *iov, int n, off_t offset))
{
	return vma_os.preadv(fd, iov, n, offset);
}

EXPORT(ssize_t, preadv64, (int fd, const struct iovec *iov, int n, off64_t offset))
{
	return vma_os.preadv64(fd, iov, n, offset);
}

/* But at -1, which means "where it is", they are readv with flags. */
static __attribute__((noinline)) ssize_t preadv2_offloaded_fd(int fd, const struct iovec *iov, int n, off64_t offset,
                                                              int flags)
{
	ssize_t result;

	if (offset == -1 && message_rwf_flags_supported(flags) &&
	    receive_into_iovec_if_offloaded(fd, iov, n, msg_flags_of_rwf_flags(flags), &result))
		return result;
	return vma_os.preadv64v2(fd, iov, n, offset, flags);
}

EXPORT(ssize_t, preadv2, (int fd, const struct iovec *iov, int n, off_t offset, int flags))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return vma_os.preadv2(fd, iov, n, offset, flags);
	return preadv2_offloaded_fd(fd, iov, n, offset, flags);
}

EXPORT(ssize_t, preadv64v2, (int fd, const struct iovec *iov, int n, off64_t offset, int flags))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return vma_os.preadv64v2(fd, iov, n, offset, flags);
	return preadv2_offloaded_fd(fd, iov, n, offset, flags);
}

/* ---- messages ---- */

/* Inside, for a file with recvmsg. Bytes, -errno, MESSAGE_KERNEL. *got_flags: the message's. */
static ssize_t receive_message(struct vma_file *file, int fd, struct msghdr *msg, int flags, int *got_flags)
{
	struct sockaddr_storage from;
	struct msghdr own;
	struct sockaddr *addr;
	ssize_t rc = message_copy_from_application(&own, msg);

	if (rc < 0)
		return rc;
	addr = own.msg_name;
	if (addr != NULL) {
		own.msg_name = &from;
		own.msg_namelen = sizeof(from);
	}
	rc = file->ops->recvmsg(file, fd, &own, flags);
	if (rc < 0)
		return rc;
	*got_flags = own.msg_flags;
	if (addr != NULL) {
		int given = vma_copy_sockaddr_to_program(&from, own.msg_namelen, addr, &msg->msg_namelen);

		if (given < 0)
			return given;
	}
	if (vma_memcpy_or_efault(&msg->msg_flags, &own.msg_flags, sizeof(own.msg_flags)) != 0 ||
	    vma_memcpy_or_efault(&msg->msg_controllen, &own.msg_controllen, sizeof(own.msg_controllen)) != 0)
		return -EFAULT;
	return rc;
}

/* The message may have brought descriptors. */
static __attribute__((noinline)) ssize_t recvmsg_kernel_fd_with_rights(int fd, struct msghdr *msg, int flags)
{
	ssize_t got = vma_os.recvmsg(fd, msg, flags);

	if (got >= 0)
		rights_register_received_fds(msg);
	return got;
}

static __attribute__((noinline)) ssize_t recvmsg_offloaded_fd(int fd, struct msghdr *msg, int flags)
{
	struct call call;
	int got_flags;
	ssize_t rc;

	pthread_testcancel();
	if (!CALL_BEGIN_DATA_OP(&call, fd, recvmsg))
		return recvmsg_kernel_fd_with_rights(fd, msg, flags);
	rc = receive_message(call.file, fd, msg, flags, &got_flags);
	if (rc == MESSAGE_KERNEL) {
		call_leave(&call);
		return vma_os.recvmsg(fd, msg, flags);
	}
	return call_end(&call, rc);
}

EXPORT(ssize_t, recvmsg, (int fd, struct msghdr *msg, int flags))
{
	if (!FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return recvmsg_offloaded_fd(fd, msg, flags);
	return recvmsg_kernel_fd_with_rights(fd, msg, flags);
}

/*
 * The time after which recvmmsg stops taking more. As the kernel's: looked at after each datagram only, so a call that
 * waits for its first one, or for the next, waits for ever.
 */
static int recvmmsg_deadline_of_timeout(const struct timespec *timeout, uint64_t *end_ns)
{
	struct timespec own;

	if (vma_memcpy_or_efault(&own, timeout, sizeof(own)) != 0)
		return -EFAULT;
	if (own.tv_sec < 0 || own.tv_nsec < 0 || own.tv_nsec > 999999999)
		return -EINVAL;
	if ((uint64_t)own.tv_sec > (UINT64_MAX >> 1) / 1000000000 - 1)
		*end_ns = UINT64_MAX >> 1;
	else
		*end_ns = vma_now_ns() + (uint64_t)own.tv_sec * 1000000000 + (uint64_t)own.tv_nsec;
	return 0;
}

static uint64_t nanoseconds_until(uint64_t end_ns)
{
	uint64_t now_ns = vma_now_ns();

	return end_ns > now_ns ? end_ns - now_ns : 0;
}

/* Inside. What the kernel looks at first, also when there is something to read; other sockets do so in any call. */
static int socket_take_pending_error(struct vma_file *file, int fd, int flags)
{
	socklen_t len = sizeof(int);
	int error = 0;

	if (file->kind == VMA_FILE_TCP && (flags & MSG_ERRQUEUE) == 0)
		file->ops->getsockopt(file, fd, SOL_SOCKET, SO_ERROR, &error, &len);
	return -error;
}

/* The kernel leaves it in the socket. A shadow's cannot be set from here: of datagrams getsockopt does not tell it. */
static void socket_store_pending_error(struct vma_file *file, int error)
{
	if (file->kind == VMA_FILE_TCP) {
		vma_stream_set_pending_error(file, error);
		return;
	}
	atomic_store(&file->deferred_error, error);
	vma_engine_on_error(file);
}

/* Inside. An error after the first datagram ends the row, and is the next call's. */
static int receive_messages(struct vma_file *file, int fd, struct mmsghdr *msgs, unsigned n, int flags, uint64_t end_ns,
                            uint64_t *left_ns)
{
	unsigned done = 0;
	ssize_t rc = 0;

	while (done < n) {
		unsigned bytes;
		int got_flags = 0;

		rc = receive_message(file, fd, &msgs[done].msg_hdr, flags & ~MSG_WAITFORONE, &got_flags);
		if (rc < 0)
			break;
		bytes = (unsigned)rc;
		if (vma_memcpy_or_efault(&msgs[done].msg_len, &bytes, sizeof(bytes)) != 0) {
			rc = -EFAULT;
			break;
		}
		done++;
		if ((flags & MSG_WAITFORONE) != 0)
			flags |= MSG_DONTWAIT;
		if (end_ns != UINT64_MAX) {
			*left_ns = nanoseconds_until(end_ns);
			if (*left_ns == 0)
				break;
		}
		if ((got_flags & MSG_OOB) != 0)
			break;
	}
	if (done > 0 && rc < 0 && rc != -EAGAIN && rc != -EINTR && rc != MESSAGE_KERNEL)
		socket_store_pending_error(file, (int)-rc);
	return done > 0 || rc >= 0 ? (int)done : (int)rc;
}

static __attribute__((noinline)) int recvmmsg_kernel_fd_with_rights(int fd, struct mmsghdr *msgs, unsigned n, int flags,
                                                                    struct timespec *timeout)
{
	int got = vma_os.recvmmsg(fd, msgs, n, flags, timeout);

	for (int i = 0; i < got; i++)
		rights_register_received_fds(&msgs[i].msg_hdr);
	return got;
}

static __attribute__((noinline)) int recvmmsg_offloaded_fd(int fd, struct mmsghdr *msgs, unsigned n, int flags,
                                                           struct timespec *timeout)
{
	uint64_t end_ns = UINT64_MAX, left_ns = 0;
	struct timespec left;
	struct call call;
	int rc;

	pthread_testcancel();
	if (!CALL_BEGIN_DATA_OP(&call, fd, recvmsg))
		return recvmmsg_kernel_fd_with_rights(fd, msgs, n, flags, timeout);
	rc = timeout != NULL ? recvmmsg_deadline_of_timeout(timeout, &end_ns) : 0;
	if (rc == 0)
		rc = socket_take_pending_error(call.file, fd, flags);
	if (rc == 0)
		rc = receive_messages(call.file, fd, msgs, n, flags, end_ns, &left_ns);
	if (rc == MESSAGE_KERNEL) {
		call_leave(&call);
		return vma_os.recvmmsg(fd, msgs, n, flags, timeout);
	}
	if (rc > 0 && timeout != NULL) {
		left.tv_sec = (time_t)(left_ns / 1000000000);
		left.tv_nsec = (long)(left_ns % 1000000000);
		if (vma_memcpy_or_efault(timeout, &left, sizeof(left)) != 0)
			rc = -EFAULT;
	}
	return (int)call_end(&call, rc);
}

EXPORT(int, recvmmsg, (int fd, struct mmsghdr *msgs, unsigned n, int flags, struct timespec *timeout))
{
	if (!FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return recvmmsg_offloaded_fd(fd, msgs, n, flags, timeout);
	return recvmmsg_kernel_fd_with_rights(fd, msgs, n, flags, timeout);
}
