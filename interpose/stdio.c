/*
 * stdio - streams on descriptors of ours.
 *
 * A stream reads and writes by system calls inside the C library, where nobody sees them. Writing so is right: the
 * shadow has the same address and the same peer. Reading is not, so a socket that gets a stream to read from is the
 * kernel's from then on. Closing a stream closes the descriptor: its slot empties first.
 */
#include <stdarg.h>
#include <string.h>

#include "call.h"
#include "more.h"

static void flush_before(int fd)
{
	struct call call;

	if (!NOT_OURS(fd) && call_begin(&call, fd))
		call_leave(&call);
}

static void give_to_os(int fd)
{
	struct call call;

	if (!call_begin(&call, fd))
		return;
	if (call.file->ops->to_os != NULL)
		call.file->ops->to_os(call.file, fd);
	call_leave(&call);
}

EXPORT(FILE *, fdopen, (int fd, const char *mode))
{
	FILE *stream = more()->fdopen(fd, mode);

	if (stream != NULL && !NOT_OURS(fd) && strpbrk(mode, "r+") != NULL)
		give_to_os(fd);
	return stream;
}
ALIAS(FILE *, _IO_fdopen, fdopen, (int fd, const char *mode))

/* The descriptor of a stream that is about to be closed, and which is ours. What it holds back is written first. */
static void forget_stream(FILE *stream)
{
	int fd = stream != NULL ? fileno_unlocked(stream) : -1;

	if (fd < 0 || NOT_OURS(fd) || is_guarded(fd))
		return;
	fflush(stream);
	fresh(fd);
}

EXPORT(int, fclose, (FILE * stream))
{
	const int saved = errno;

	forget_stream(stream);
	errno = saved;
	return more()->fclose(stream);
}
ALIAS(int, _IO_fclose, fclose, (FILE * stream))

EXPORT(FILE *, freopen, (const char *path, const char *mode, FILE *stream))
{
	forget_stream(stream);
	return more()->freopen(path, mode, stream);
}

EXPORT(FILE *, freopen64, (const char *path, const char *mode, FILE *stream))
{
	forget_stream(stream);
	return more()->freopen64(path, mode, stream);
}

/* ---- dprintf: written inside the C library, after what this thread holds back ---- */

EXPORT(int, vdprintf, (int fd, const char *format, va_list list))
{
	flush_before(fd);
	return more()->vdprintf(fd, format, list);
}

EXPORT(int, __vdprintf_chk, (int fd, int flag, const char *format, va_list list))
{
	flush_before(fd);
	return more()->__vdprintf_chk(fd, flag, format, list);
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
