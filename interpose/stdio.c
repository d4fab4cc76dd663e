/*
 * stdio - streams on descriptors of ours.
 *
 * A stream reads and writes by system calls inside the C library, where no code of ours sees them. Writing to a
 * datagram socket so is right: the shadow has the same address and the same peer. Reading is not, so a socket that gets
 * a stream to read from is the kernel's from then on. A connection cannot be given to the kernel: its stream gets
 * functions of ours to read and write with (fopencookie), and its number, for fileno. Closing a stream closes the
 * descriptor: its slot empties first.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <vma/stream.h>

#include "message.h"
#include "more.h"

static void flush_sends_before_stdio(int fd)
{
	struct call call;

	if (!FD_IS_NOT_OURS(fd) && call_begin_and_flush_held_sends(&call, fd))
		call_leave(&call);
}

/* What is written to a socket of TCP that is to be connected later would go to the shadow, too. */
static void stdio_hand_socket_over_to_kernel(int fd, bool reads)
{
	struct call call;

	if (!call_begin_and_flush_held_sends(&call, fd))
		return;
	if (call.file->ops->to_os != NULL && (reads || call.file->kind == VMA_FILE_TCP))
		call.file->ops->to_os(call.file, fd);
	call_leave(&call);
}

/* ---- streams of connections ---- */

static bool fd_is_offloaded_tcp_connection(int fd)
{
	struct call call;
	bool is;

	if (FD_IS_NOT_OURS(fd) || !call_begin_and_flush_held_sends(&call, fd))
		return false;
	is = vma_stream_is_connection(call.file);
	call_leave(&call);
	return is;
}

static int fd_of_stdio_cookie(void *cookie)
{
	return (int)(intptr_t)cookie;
}

static ssize_t read_connection(void *cookie, char *data, size_t size)
{
	const int fd = fd_of_stdio_cookie(cookie);
	struct message own;
	struct call call;

	if (FD_IS_NOT_OURS(fd) || !CALL_BEGIN_DATA_OP(&call, fd, recvmsg))
		return vma_os.read(fd, data, size);
	message_of_bytes(&own, data, size);
	return call_end(&call, call.file->ops->recvmsg(call.file, fd, &own.msg, 0));
}

static ssize_t connection_write_part(int fd, const char *data, size_t size)
{
	struct message own;
	struct call call;

	if (FD_IS_NOT_OURS(fd) || !CALL_BEGIN_DATA_OP(&call, fd, sendmsg))
		return vma_os.write(fd, data, size);
	message_of_bytes(&own, data, size);
	return call_end(&call, call.file->ops->sendmsg(call.file, fd, &own.msg, 0));
}

/* All of it, or as much as there was before an error. */
static ssize_t write_connection(void *cookie, const char *data, size_t size)
{
	size_t done = 0;
	ssize_t rc = 0;

	while (done < size && (rc = connection_write_part(fd_of_stdio_cookie(cookie), data + done, size - done)) > 0)
		done += (size_t)rc;
	return (ssize_t)done;
}

/* The slot is empty already when fclose has come by here. */
static int stdio_close_connection(void *cookie)
{
	const int fd = fd_of_stdio_cookie(cookie);

	return_new_fd_forget_old_file(fd);
	return vma_os.close(fd);
}

static FILE *open_connection(int fd, const char *mode)
{
	const cookie_io_functions_t functions = {
	        .read = read_connection, .write = write_connection, .close = stdio_close_connection};
	FILE *stream = fopencookie((void *)(intptr_t)fd, mode, functions);

	if (stream != NULL)
		stream->_fileno = fd;
	return stream;
}

/* ---- fdopen, fclose ---- */

EXPORT(FILE *, fdopen, (int fd, const char *mode))
{
	FILE *stream;

	if (__builtin_expect(!FD_IS_NOT_OURS(fd), 0) && fd_is_offloaded_tcp_connection(fd))
		return open_connection(fd, mode);
	stream = libc_functions_get()->fdopen(fd, mode);
	if (stream != NULL && !FD_IS_NOT_OURS(fd))
		stdio_hand_socket_over_to_kernel(fd, strpbrk(mode, "r+") != NULL);
	return stream;
}
ALIAS(FILE *, _IO_fdopen, fdopen, (int fd, const char *mode))

/* The descriptor of a stream that is about to be closed, and which is ours. What it holds back is written first. */
static void flush_and_forget_fd_before_fclose(FILE *stream)
{
	int fd = stream != NULL ? fileno_unlocked(stream) : -1;

	if (fd < 0 || FD_IS_NOT_OURS(fd) || fd_is_librarys_own(fd))
		return;
	fflush(stream);
	return_new_fd_forget_old_file(fd);
}

EXPORT(int, fclose, (FILE * stream))
{
	const int saved = errno;

	flush_and_forget_fd_before_fclose(stream);
	errno = saved;
	return libc_functions_get()->fclose(stream);
}
ALIAS(int, _IO_fclose, fclose, (FILE * stream))

EXPORT(FILE *, freopen, (const char *path, const char *mode, FILE *stream))
{
	flush_and_forget_fd_before_fclose(stream);
	return libc_functions_get()->freopen(path, mode, stream);
}

EXPORT(FILE *, freopen64, (const char *path, const char *mode, FILE *stream))
{
	flush_and_forget_fd_before_fclose(stream);
	return libc_functions_get()->freopen64(path, mode, stream);
}

/* ---- dprintf: written inside the C library, after what this thread holds back; to a connection by us ---- */

static int print_to_connection(int fd, const char *format, va_list list)
{
	char *text = NULL;
	int len = vasprintf(&text, format, list);
	ssize_t written;

	if (len < 0)
		return len;
	written = write_connection((void *)(intptr_t)fd, text, (size_t)len);
	free(text);
	return written == len ? len : -1;
}

EXPORT(int, vdprintf, (int fd, const char *format, va_list list))
{
	if (fd_is_offloaded_tcp_connection(fd))
		return print_to_connection(fd, format, list);
	flush_sends_before_stdio(fd);
	return libc_functions_get()->vdprintf(fd, format, list);
}

EXPORT(int, __vdprintf_chk, (int fd, int flag, const char *format, va_list list))
{
	if (fd_is_offloaded_tcp_connection(fd))
		return print_to_connection(fd, format, list);
	flush_sends_before_stdio(fd);
	return libc_functions_get()->__vdprintf_chk(fd, flag, format, list);
}

EXPORT(int, dprintf, (int fd, const char *format, ...))
{
	va_list list;
	int rc;

	va_start(list, format);
	rc = call_vdprintf(fd, format, list);
	va_end(list);
	return rc;
}

EXPORT(int, __dprintf_chk, (int fd, int flag, const char *format, ...))
{
	va_list list;
	int rc;

	va_start(list, format);
	rc = call___vdprintf_chk(fd, flag, format, list);
	va_end(list);
	return rc;
}
