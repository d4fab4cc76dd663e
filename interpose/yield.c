/*
 * yield - calls that make descriptors. The kernel's call comes first, always. If the table still knows the number that
 * it gives, that number was closed unseen.
 */
#include <vma/stream.h>

#include "call.h"
#include "more.h"

static __attribute__((noinline)) void register_new_socket(int fd, int domain, int type, int protocol)
{
	const int saved = errno;
	struct vma_thread *self;

	if (process_is_vfork_child())
		return;
	process_start_library_once();
	self = vma_enter();
	vma_inet_flush_sends(self);
	/* Out of memory: the socket is the kernel's, and says so when it is asked. */
	if (vma_stream_handles_socket_type(domain, type, protocol))
		vma_stream_socket(fd, domain, type, protocol);
	else
		vma_udp_socket(fd, domain, type, protocol);
	vma_leave(self);
	errno = saved;
}

EXPORT(int, socket, (int domain, int type, int protocol))
{
	int fd = return_new_fd_forget_old_file(vma_os.socket(domain, type, protocol));

	if (fd >= 0 &&
	    (vma_udp_takes_socket(domain, type, protocol) || vma_stream_handles_socket_type(domain, type, protocol)))
		register_new_socket(fd, domain, type, protocol);
	return fd;
}

static inline int forget_old_files_of_socketpair(int rc, const int fds[2])
{
	if (rc == 0) {
		return_new_fd_forget_old_file(fds[0]);
		return_new_fd_forget_old_file(fds[1]);
	}
	return rc;
}

EXPORT(int, socketpair, (int domain, int type, int protocol, int fds[2]))
{
	return forget_old_files_of_socketpair(vma_os.socketpair(domain, type, protocol, fds), fds);
}

EXPORT(int, pipe, (int fds[2]))
{
	return forget_old_files_of_socketpair(vma_os.pipe(fds), fds);
}
ALIAS(int, __pipe, pipe, (int fds[2]))

EXPORT(int, pipe2, (int fds[2], int flags))
{
	return forget_old_files_of_socketpair(vma_os.pipe2(fds, flags), fds);
}

/* The mode is there only with O_CREAT and O_TMPFILE; passing on what lies in its place is what the C library does. */
EXPORT(int, open, (const char *path, int flags, mode_t mode))
{
	return return_new_fd_forget_old_file(vma_os.open(path, flags, mode));
}
ALIAS(int, __open, open, (const char *path, int flags, mode_t mode))

EXPORT(int, open64, (const char *path, int flags, mode_t mode))
{
	return return_new_fd_forget_old_file(vma_os.open64(path, flags, mode));
}
ALIAS(int, __open64, open64, (const char *path, int flags, mode_t mode))

EXPORT(int, creat, (const char *path, mode_t mode))
{
	return return_new_fd_forget_old_file(vma_os.creat(path, mode));
}

#define X(type, name, parameters, arguments)                                                                           \
	EXPORT(type, name, parameters)                                                                                 \
	{                                                                                                              \
		return return_new_fd_forget_old_file(libc_functions_get()->name arguments);                            \
	}
VMA_CALLS_RETURNING_NEW_FD(X)
#undef X
