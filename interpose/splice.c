/*
 * splice - between an offloaded socket and a file or a pipe. The bytes that the kernel would take out of its socket are
 * in our queue. The bytes that it would put there are our connection's.
 *
 * Out of a file or a pipe bytes go straight into the connection's fifo (vma_stream_sendfile). To a UDP socket the
 * kernel sends pages as datagrams, or refuses. The shadow has the same address and peer, so it does both as well. Out
 * of a socket into a pipe sendfile is splice, into anything else EINVAL, by the kernel.
 *
 * Some calls are refused for any socket (unknown flags, the wrong end of a pipe, lengths below zero). They are left to
 * the kernel's call.
 */
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <vma/stream.h>

#include "message.h"
#include "more.h"

#define DATAGRAM_MAX 65536

/* ---- out of a socket ---- */

/* Bytes that the pipe takes without waiting: 0 full, -EINVAL no pipe (or none that can be written to). */
static int pipe_space(int pipe)
{
	struct pollfd writable = {.fd = pipe, .events = POLLOUT};
	int size = vma_os.fcntl(pipe, F_GETPIPE_SZ, NULL), queued = 0;

	if (size < 0 || vma_os.ioctl(pipe, FIONREAD, &queued) < 0)
		return -EINVAL;
	if (vma_os.poll(&writable, 1, 0) < 1 || (writable.revents & POLLOUT) == 0)
		return 0;
	return size > queued ? size - queued : 4096;
}

/* Outside. Room, 0 after a wait that ended with none, -errno. */
static int pipe_wait_for_space(int pipe, bool wait)
{
	struct pollfd writable = {.fd = pipe, .events = POLLOUT};
	int room = pipe_space(pipe);

	while (room == 0) {
		if (!wait)
			return -EAGAIN;
		if (vma_os.poll(&writable, 1, -1) < 0)
			return -errno;
		if ((writable.revents & (POLLERR | POLLNVAL)) != 0)
			return 1; /* no reader: the write will say so */
		room = pipe_space(pipe);
	}
	return room;
}

#define SPLICE_FLAGS (SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT)

static bool fd_flags_allow_access_mode(int fd_flags, int mode)
{
	return fd_flags >= 0 && (fd_flags & O_PATH) == 0 &&
	       ((fd_flags & O_ACCMODE) == O_RDWR || (fd_flags & O_ACCMODE) == mode);
}

/* Inside; one datagram, cut to `size` as the kernel cuts it, or what a connection has. */
static ssize_t splice_take_datagram(struct vma_file *file, int fd, void *datagram, size_t size)
{
	struct message own;

	message_of_bytes(&own, datagram, size);
	return file->ops->recvmsg(file, fd, &own.msg, 0);
}

/*
 * Inside before, outside after. The memory is freed also if the thread is cancelled in one of the two waits, or ends in
 * a receive callback. The file needs no reference of this call: the wait for a datagram has its own, and the write
 * needs no file.
 */
static ssize_t splice_through_memory(struct call *call, int in, int out, void *datagram, size_t size)
{
	ssize_t rc;

	pthread_cleanup_push(vma_free, datagram);
	rc = call_end(call, splice_take_datagram(call->file, in, datagram, size));
	if (rc > 0)
		rc = vma_os.write(out, datagram, (size_t)rc);
	pthread_cleanup_pop(1);
	return rc;
}

/*
 * There is room before a datagram is taken, so the write neither waits nor falls short, unless another thread writes
 * to the same pipe between; then the write waits as for any writer, or, where it may not, the datagram is lost, and
 * EAGAIN says it.
 */
static __attribute__((noinline)) ssize_t splice_from_offloaded_fd(int in, off64_t *off_in, int out, off64_t *off_out,
                                                                  size_t size, unsigned flags)
{
	int room = 0, pipe_flags = vma_os.fcntl(out, F_GETFL, NULL);
	struct call call;
	void *datagram;

	if (size > 0 && off_in == NULL && off_out == NULL && (flags & ~SPLICE_FLAGS) == 0 &&
	    fd_flags_allow_access_mode(pipe_flags, O_WRONLY) && pipe_space(out) >= 0)
		room = pipe_wait_for_space(out, (flags & SPLICE_F_NONBLOCK) == 0 && (pipe_flags & O_NONBLOCK) == 0);
	if (room < 0) {
		errno = -room;
		return -1;
	}
	if (room == 0 || !CALL_BEGIN_OP(&call, in, recvmsg)) /* nothing that ends well, or nothing of ours */
		return vma_os.splice(in, off_in, out, off_out, size, flags);
	if (size > (size_t)room)
		size = (size_t)room;
	if (size > DATAGRAM_MAX)
		size = DATAGRAM_MAX;
	datagram = vma_alloc(size);
	if (datagram == NULL)
		return call_end(&call, -ENOMEM);
	return splice_through_memory(&call, in, out, datagram, size);
}

/* ---- into a connection ---- */

/* Inside, or false and outside: then frames held back come first whatever follows. */
static bool call_begin_on_connection(struct call *call, int fd)
{
	if (FD_IS_NOT_OURS(fd) || !call_begin_without_flushing_sends(call, fd))
		return false;
	if (vma_stream_is_connection(call->file))
		return true;
	vma_inet_flush_sends(call->self);
	call_leave(call);
	return false;
}

/* What do_sendfile and splice_direct_to_actor refuse, in their order. */
static int check_sendfile_source(int in, size_t size)
{
	struct stat st;

	if (!fd_flags_allow_access_mode(vma_os.fcntl(in, F_GETFL, NULL), O_RDONLY))
		return -EBADF;
	if ((ssize_t)size < 0)
		return -EINVAL;
	if (fstat(in, &st) != 0)
		return -errno;
	return S_ISREG(st.st_mode) || S_ISBLK(st.st_mode) ? 0 : -EINVAL;
}

/* Where the file is, or where *offset says: that one of the two moves on by what was sent. */
static ssize_t send_file(struct call *call, int in, off64_t *offset, size_t size)
{
	off64_t at = 0;
	ssize_t sent = offset != NULL ? vma_memcpy_or_efault(&at, offset, sizeof(at)) : 0;

	if (sent == 0)
		sent = check_sendfile_source(in, size);
	if (sent == 0 && offset == NULL)
		at = lseek64(in, 0, SEEK_CUR);
	if (sent < 0)
		return sent;
	if (at < 0)
		return -EINVAL;
	sent = vma_stream_sendfile(call->file, in, at, size, 0);
	if (sent <= 0)
		return sent;
	at += sent;
	if (offset != NULL)
		return vma_memcpy_or_efault(offset, &at, sizeof(at)) != 0 ? -EFAULT : sent;
	lseek64(in, at, SEEK_SET);
	return sent;
}

static bool is_pipe(int fd)
{
	return vma_os.fcntl(fd, F_GETPIPE_SZ, NULL) >= 0;
}

EXPORT(ssize_t, sendfile64, (int out, int in, off64_t *offset, size_t size))
{
	struct call call;

	pthread_testcancel();
	if (__builtin_expect(!FD_IS_NOT_OURS(in), 0) && offset == NULL && (ssize_t)size > 0 && is_pipe(out))
		return splice_from_offloaded_fd(in, NULL, out, NULL, size, 0);
	if (!call_begin_on_connection(&call, out))
		return vma_os.sendfile64(out, in, offset, size);
	return call_end(&call, send_file(&call, in, offset, size));
}
_Static_assert(sizeof(off_t) == sizeof(off64_t), "one function under two names");
ALIAS(ssize_t, sendfile, sendfile64, (int out, int in, off_t *offset, size_t size))

/* The pipe has nothing now: 0 look again, -EAGAIN, -EINTR. Outside. */
static int wait_until_pipe_readable(int pipe, bool wait)
{
	struct pollfd readable = {.fd = pipe, .events = POLLIN};

	if (!wait)
		return -EAGAIN;
	return vma_os.poll(&readable, 1, -1) < 0 ? -errno : 0;
}

/* What the pipe has is sent; it is waited for until it has something, or no writer. */
static __attribute__((noinline)) ssize_t splice_pipe_into_offloaded_fd(int in, int out, size_t size, unsigned flags)
{
	const int send_flags = (flags & SPLICE_F_MORE) != 0 ? MSG_MORE : 0, saved = errno;
	int in_flags = vma_os.fcntl(in, F_GETFL, NULL), rc = 0;
	bool wait = (flags & SPLICE_F_NONBLOCK) == 0 && (in_flags & O_NONBLOCK) == 0;
	struct pollfd readable = {.fd = in, .events = POLLIN};
	struct call call;
	ssize_t sent;

	do {
		if (!call_begin_on_connection(&call, out)) {
			errno = EBADF; /* closed meanwhile */
			return -1;
		}
		sent = vma_stream_sendfile(call.file, in, -1, size, send_flags);
		call_leave(&call);
		/* Is it the pipe that has nothing, or the socket that has no room? */
		if (sent == -EAGAIN && vma_os.poll(&readable, 1, 0) == 0)
			rc = wait_until_pipe_readable(in, wait);
		else
			break;
	} while (rc == 0);
	if (sent < 0) {
		errno = rc != 0 ? -rc : (int)-sent;
		return -1;
	}
	errno = saved;
	return sent;
}

static bool is_splice_from_pipe_to_offloaded(int in, int out)
{
	struct call call;

	if (!is_pipe(in) || !fd_flags_allow_access_mode(vma_os.fcntl(in, F_GETFL, NULL), O_RDONLY) ||
	    !call_begin_on_connection(&call, out))
		return false;
	vma_inet_flush_sends(call.self); /* the pipe may be waited for */
	call_leave(&call);
	return true;
}

EXPORT(ssize_t, splice, (int in, off64_t *off_in, int out, off64_t *off_out, size_t size, unsigned flags))
{
	if (__builtin_expect(!FD_IS_NOT_OURS(in), 0))
		return splice_from_offloaded_fd(in, off_in, out, off_out, size, flags);
	if (__builtin_expect(!FD_IS_NOT_OURS(out), 0) && size > 0 && off_in == NULL && off_out == NULL &&
	    (flags & ~SPLICE_FLAGS) == 0 && is_splice_from_pipe_to_offloaded(in, out))
		return splice_pipe_into_offloaded_fd(in, out, size, flags);
	return vma_os.splice(in, off_in, out, off_out, size, flags);
}
