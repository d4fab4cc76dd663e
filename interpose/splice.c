/*
 * splice - from an offloaded socket into a pipe: what the kernel would take out of its socket is in our queue.
 *
 * The other way, pipe into socket, is the shadow's business, as with sendfile.
 */
#include <sys/ioctl.h>

#include "message.h"
#include "more.h"

#define DATAGRAM_MAX 65536

/* Bytes that the pipe takes without waiting: 0 full, -EINVAL no pipe (or none that can be written to). */
static int pipe_room(int pipe)
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
static int wait_for_room(int pipe, bool wait)
{
	struct pollfd writable = {.fd = pipe, .events = POLLOUT};
	int room = pipe_room(pipe);

	while (room == 0) {
		if (!wait)
			return -EAGAIN;
		if (vma_os.poll(&writable, 1, -1) < 0)
			return -errno;
		if ((writable.revents & (POLLERR | POLLNVAL)) != 0)
			return 1; /* no reader: the write will say so */
		room = pipe_room(pipe);
	}
	return room;
}

/* Inside; one datagram, cut to `size` as the kernel cuts it. */
static ssize_t take(struct vma_file *file, int fd, void *datagram, size_t size)
{
	struct message own;

	message_of_bytes(&own, datagram, size);
	return file->ops->recvmsg(file, fd, &own.msg, 0);
}

/*
 * There is room before a datagram is taken, so the write neither waits nor falls short, unless another thread writes
 * to the same pipe between; then the write waits as for any writer, or, where it may not, the datagram is lost, and
 * EAGAIN says it.
 */
static __attribute__((noinline)) ssize_t splice_ours(int in, off64_t *off_in, int out, off64_t *off_out, size_t size,
                                                     unsigned flags)
{
	int room = 0, pipe_flags = vma_os.fcntl(out, F_GETFL, NULL);
	struct call call;
	void *datagram;
	ssize_t rc;

	if (size > 0 && off_in == NULL && off_out == NULL && pipe_room(out) >= 0 && pipe_flags >= 0)
		room = wait_for_room(out, (flags & SPLICE_F_NONBLOCK) == 0 && (pipe_flags & O_NONBLOCK) == 0);
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
	vma_file_get(call.file);
	rc = call_end(&call, take(call.file, in, datagram, size));
	if (rc > 0)
		rc = vma_os.write(out, datagram, (size_t)rc);
	vma_free(datagram);
	vma_file_put(call.file);
	return rc;
}

EXPORT(ssize_t, splice, (int in, off64_t *off_in, int out, off64_t *off_out, size_t size, unsigned flags))
{
	if (NOT_OURS(in))
		return vma_os.splice(in, off_in, out, off_out, size, flags);
	return splice_ours(in, off_in, out, off_out, size, flags);
}
