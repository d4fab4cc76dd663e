/*
 * os - the system calls of this component, by number, and the descriptors that it keeps.
 *
 * Threads: any. Progress: as the call. Memory: none.
 * Example: client/client.c.
 *
 * In libvma.so the C library's names are the interposed functions, which would be wrong here for three reasons.
 * socket() may make an offloaded socket, which would want the very device that is being opened. close() of a guarded
 * descriptor is refused. In the clones of client/start.c both would work on the program's own tables. A call by number
 * has none of that, and is no cancellation point either.
 */
#ifndef VMA_NIC_OS_H
#define VMA_NIC_OS_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline int os_socket(int domain, int type, int protocol)
{
	return (int)syscall(SYS_socket, domain, type, protocol);
}
static inline int os_connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	return (int)syscall(SYS_connect, fd, addr, len);
}
static inline int os_bind(int fd, const struct sockaddr *addr, socklen_t len)
{
	return (int)syscall(SYS_bind, fd, addr, len);
}
static inline int os_setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	return (int)syscall(SYS_setsockopt, fd, level, name, value, len);
}
static inline int os_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	return (int)syscall(SYS_getsockopt, fd, level, name, value, len);
}
static inline int os_getsockname(int fd, struct sockaddr *addr, socklen_t *len)
{
	return (int)syscall(SYS_getsockname, fd, addr, len);
}
static inline int os_shutdown(int fd, int how)
{
	return (int)syscall(SYS_shutdown, fd, how);
}
static inline int os_ioctl(int fd, unsigned long request, void *arg)
{
	return (int)syscall(SYS_ioctl, fd, request, arg);
}
static inline int os_fcntl(int fd, int command, long arg)
{
	return (int)syscall(SYS_fcntl, fd, command, arg);
}
static inline ssize_t os_read(int fd, void *data, size_t bytes)
{
	return syscall(SYS_read, fd, data, bytes);
}
static inline ssize_t os_write(int fd, const void *data, size_t bytes)
{
	return syscall(SYS_write, fd, data, bytes);
}
static inline ssize_t os_send(int fd, const void *data, size_t bytes, int flags)
{
	return syscall(SYS_sendto, fd, data, bytes, flags, NULL, 0);
}
static inline ssize_t os_recv(int fd, void *data, size_t bytes, int flags)
{
	return syscall(SYS_recvfrom, fd, data, bytes, flags, NULL, NULL);
}
static inline ssize_t os_sendmsg(int fd, const struct msghdr *msg, int flags)
{
	return syscall(SYS_sendmsg, fd, msg, flags);
}
static inline ssize_t os_recvmsg(int fd, struct msghdr *msg, int flags)
{
	return syscall(SYS_recvmsg, fd, msg, flags);
}
static inline int os_poll(struct pollfd *fds, unsigned n, int timeout_ms)
{
	struct timespec timeout = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000L};

	return (int)syscall(SYS_ppoll, fds, n, timeout_ms < 0 ? NULL : &timeout, NULL, 0);
}
/* CLOCK_MONOTONIC. */
static inline uint64_t os_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
static inline uint64_t os_now_ms(void)
{
	return os_now_ns() / 1000000;
}
/* One descriptor, for so long altogether, whatever signals come: >0 ready, 0 not. */
static inline int os_poll_one_fd(int fd, short events, int timeout_ms)
{
	struct pollfd what = {.fd = fd, .events = events};
	const uint64_t until_ms = os_now_ms() + (uint64_t)timeout_ms;
	uint64_t now_ms;
	int n, left_ms = timeout_ms;

	while ((n = os_poll(&what, 1, left_ms)) < 0 && errno == EINTR) {
		now_ms = os_now_ms();
		left_ms = now_ms < until_ms ? (int)(until_ms - now_ms) : 0;
	}
	return n > 0 ? n : 0;
}
/* Close-on-exec, and never waited for. */
static inline int os_eventfd(void)
{
	return (int)syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK);
}
static inline int os_epoll_create(void)
{
	return (int)syscall(SYS_epoll_create1, EPOLL_CLOEXEC);
}
static inline int os_epoll_ctl(int epoll_fd, int op, int fd, struct epoll_event *event)
{
	return (int)syscall(SYS_epoll_ctl, epoll_fd, op, fd, event);
}
static inline int os_epoll_wait(int epfd, struct epoll_event *events, int max, int timeout_ms)
{
	return (int)syscall(SYS_epoll_pwait, epfd, events, max, timeout_ms, NULL, (size_t)8);
}
static inline int os_open(const char *path, int flags)
{
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0);
}
static inline int os_dup3(int from, int to, int flags)
{
	return (int)syscall(SYS_dup3, from, to, flags);
}
static inline int os_membarrier(int command)
{
	return (int)syscall(SYS_membarrier, command, 0, 0);
}
/* Of what is open for a moment only, or in a child after fork: no more than system calls there. */
static inline int os_close(int fd)
{
	return (int)syscall(SYS_close, fd);
}

/* ---- fd.c: what stays open (nic.h, vma_nic_fd_hook) ---- */

/* The descriptor that a call has just returned: its new number, 1000 or above, close-on-exec; the old one is closed.
 * Where the limit of open files forbids that: itself. A negative one is passed through, errno as it is. */
int nic_fd_move_high(int fd);
int nic_fd_dup(int fd); /* a copy to keep, or -1 and errno */
void nic_fd_close(int fd);
void nic_fd_close_and_forget(int *fd);   /* -1 from then on; also if it was */
void nic_fd_report_not_internal(int fd); /* another library closes it next */

#endif
