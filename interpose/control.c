/* control - calls that each have an op of the same name, or are the kernel's. */
#include <sys/ioctl.h>

#include <vma/conf_version.h>
#include <vma/log.h>

#include "call.h"
#include "extra.h"

/*
 * The cancellation points among them (connect, accept) are so in the C library when the op ends up there; an op that
 * waits says itself where it can be cancelled.
 */
#define DEFINE_OFFLOADED_CALL(type, name, parameters, fd, os_arguments, op_arguments)                                  \
	static __attribute__((noinline)) type name##_offloaded_fd parameters                                           \
	{                                                                                                              \
		struct call call;                                                                                      \
                                                                                                                       \
		if (!CALL_BEGIN_OP(&call, fd, name))                                                                   \
			return vma_os.name os_arguments;                                                               \
		return (type)call_end(&call, call.file->ops->name op_arguments);                                       \
	}
#define CONTROL_CALL(type, name, parameters, fd, os_arguments, op_arguments)                                           \
	DEFINE_OFFLOADED_CALL(type, name, parameters, fd, os_arguments, op_arguments)                                  \
	EXPORT(type, name, parameters)                                                                                 \
	{                                                                                                              \
		if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))                                                                    \
			return vma_os.name os_arguments;                                                               \
		return name##_offloaded_fd os_arguments;                                                               \
	}

CONTROL_CALL(int, shutdown, (int fd, int how), fd, (fd, how), (call.file, fd, how))
DEFINE_OFFLOADED_CALL(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *len), fd,
                      (fd, level, name, value, len), (call.file, fd, level, name, value, len))
EXPORT(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *len))
{
	int rc;

	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return vma_os.getsockopt(fd, level, name, value, len);
	if (fd == -1 && (rc = extra_get_api(level, name, value, len)) != -ENOENT) {
		if (rc != 0)
			errno = -rc;
		return rc == 0 ? 0 : -1;
	}
	return getsockopt_offloaded_fd(fd, level, name, value, len);
}
CONTROL_CALL(int, getsockname, (int fd, struct sockaddr *addr, socklen_t *len), fd, (fd, addr, len),
             (call.file, fd, addr, len))
CONTROL_CALL(int, getpeername, (int fd, struct sockaddr *addr, socklen_t *len), fd, (fd, addr, len),
             (call.file, fd, addr, len))
CONTROL_CALL(int, ioctl, (int fd, unsigned long request, void *arg), fd, (fd, request, arg),
             (call.file, fd, request, arg))

/* By which it is decided who has the socket: if it is the kernel's, the log says why. */
static int log_offload_decision(int fd, int rc, bool serves)
{
	if (vma_log_level_is_enabled(VMA_LOG_INFO) && (rc == 0 || errno == EINPROGRESS))
		vma_sock_log_why_not_offloaded(fd, serves);
	return rc;
}
#define CONTROL_CALL_DECIDING_OFFLOAD(name, parameters, serves, os_arguments, op_arguments)                            \
	DEFINE_OFFLOADED_CALL(int, name, parameters, fd, os_arguments, op_arguments)                                   \
	EXPORT(int, name, parameters)                                                                                  \
	{                                                                                                              \
		if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))                                                                    \
			return vma_os.name os_arguments;                                                               \
		return log_offload_decision(fd, name##_offloaded_fd os_arguments, serves);                             \
	}

CONTROL_CALL_DECIDING_OFFLOAD(bind, (int fd, const struct sockaddr *addr, socklen_t len), true, (fd, addr, len),
                              (call.file, fd, addr, len))
CONTROL_CALL_DECIDING_OFFLOAD(setsockopt, (int fd, int level, int name, const void *value, socklen_t len), false,
                              (fd, level, name, value, len), (call.file, fd, level, name, value, len))

DEFINE_OFFLOADED_CALL(int, listen, (int fd, int backlog), fd, (fd, backlog), (call.file, fd, backlog))
EXPORT(int, listen, (int fd, int backlog))
{
	int rc;

	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return vma_os.listen(fd, backlog);
	rc = log_offload_decision(fd, listen_offloaded_fd(fd, backlog), true);
	if (rc == 0)
		vma_stream_note_kernel_listens(fd);
	return rc;
}

/* The C library's asks inside itself, where nobody sees it. */
EXPORT(int, sockatmark, (int fd))
{
	int at_mark;

	return call_ioctl(fd, SIOCATMARK, &at_mark) < 0 ? -1 : at_mark;
}

static __attribute__((noinline)) int connect_offloaded_fd(int fd, const struct sockaddr *addr, socklen_t len)
{
	struct call call;

	pthread_testcancel();
	if (!CALL_BEGIN_OP(&call, fd, connect))
		return vma_os.connect(fd, addr, len);
	return (int)call_end(&call, call.file->ops->connect(call.file, fd, addr, len));
}

EXPORT(int, connect, (int fd, const struct sockaddr *addr, socklen_t len))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return vma_os.connect(fd, addr, len);
	return log_offload_decision(fd, connect_offloaded_fd(fd, addr, len), false);
}
ALIAS(int, __connect, connect, (int fd, const struct sockaddr *addr, socklen_t len))

static __attribute__((noinline)) int accept4_offloaded_fd(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
	struct call call;

	pthread_testcancel();
	if (!CALL_BEGIN_OP(&call, fd, accept4))
		return return_new_fd_forget_old_file(vma_os.accept4(fd, addr, len, flags));
	return (int)call_end(&call, call.file->ops->accept4(call.file, fd, addr, len, flags));
}

EXPORT(int, accept4, (int fd, struct sockaddr *addr, socklen_t *len, int flags))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return return_new_fd_forget_old_file(vma_os.accept4(fd, addr, len, flags));
	return accept4_offloaded_fd(fd, addr, len, flags);
}

EXPORT(int, accept, (int fd, struct sockaddr *addr, socklen_t *len))
{
	if (FD_IS_NOT_OURS_BY_ONE_LOAD(fd))
		return return_new_fd_forget_old_file(vma_os.accept(fd, addr, len));
	return accept4_offloaded_fd(fd, addr, len, 0);
}

/* ---- for users ---- */

EXPORT(const char *, vma_get_version, (void))
{
	return VMA_VERSION;
}

EXPORT(int, vma_get_socket_state, (int fd, const char **text))
{
	struct vma_thread *self = vma_enter();
	int rc;

	vma_inet_flush_sends(self);
	rc = vma_sock_get_offload_reason(fd, text);
	vma_leave(self);
	if (rc < 0) {
		errno = -rc;
		return -1;
	}
	return rc;
}
