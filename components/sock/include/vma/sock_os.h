/*
 * sock_os - the C library's own functions, by which all code inside the library reaches the kernel.
 *
 * X(type, name, (parameters), (arguments)): one list says what interpose exports, boots and lists. Variadic functions
 * appear with the one argument that they may have. If this C library lacks a function, it answers -1 and ENOSYS.
 *
 * Threads: any. Each pointer is valid from the first instruction of the process on. It starts at a function that looks
 *          up all of them (dlsym, RTLD_NEXT) and calls the right one.
 * Progress: as the function called.
 * Memory: one static table.
 * Example: vma_os.recvmsg(fd, &msg, MSG_DONTWAIT): never recvmsg(), which in libvma.so is the interposed one.
 */
#ifndef VMA_SOCK_OS_H
#define VMA_SOCK_OS_H

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

struct mmsghdr; /* of _GNU_SOURCE, as is much of the list: not all who include this say so */

/* clang-format off */
#define VMA_OS_SOCKET_CALLS(X)                                                                                         \
	X(int, socket, (int domain, int type, int protocol), (domain, type, protocol))                                 \
	X(int, close, (int fd), (fd))                                                                                  \
	X(int, shutdown, (int fd, int how), (fd, how))                                                                 \
	X(int, bind, (int fd, const struct sockaddr *addr, socklen_t len), (fd, addr, len))                            \
	X(int, connect, (int fd, const struct sockaddr *addr, socklen_t len), (fd, addr, len))                         \
	X(int, listen, (int fd, int backlog), (fd, backlog))                                                           \
	X(int, accept, (int fd, struct sockaddr *addr, socklen_t *len), (fd, addr, len))                               \
	X(int, accept4, (int fd, struct sockaddr *addr, socklen_t *len, int flags), (fd, addr, len, flags))            \
	X(int, setsockopt, (int fd, int level, int name, const void *value, socklen_t len),                            \
	  (fd, level, name, value, len))                                                                               \
	X(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *len), (fd, level, name, value, len))  \
	X(int, getsockname, (int fd, struct sockaddr *addr, socklen_t *len), (fd, addr, len))                          \
	X(int, getpeername, (int fd, struct sockaddr *addr, socklen_t *len), (fd, addr, len))                          \
	X(int, ioctl, (int fd, unsigned long request, void *arg), (fd, request, arg))                                  \
	X(int, fcntl, (int fd, int cmd, void *arg), (fd, cmd, arg))                                                    \
	X(int, fcntl64, (int fd, int cmd, void *arg), (fd, cmd, arg))                                                  \
	X(ssize_t, read, (int fd, void *data, size_t size), (fd, data, size))                                          \
	X(ssize_t, readv, (int fd, const struct iovec *iov, int n), (fd, iov, n))                                      \
	X(ssize_t, recv, (int fd, void *data, size_t size, int flags), (fd, data, size, flags))                        \
	X(ssize_t, recvfrom, (int fd, void *data, size_t size, int flags, struct sockaddr *addr, socklen_t *len),      \
	  (fd, data, size, flags, addr, len))                                                                          \
	X(ssize_t, recvmsg, (int fd, struct msghdr *msg, int flags), (fd, msg, flags))                                 \
	X(int, recvmmsg, (int fd, struct mmsghdr *msgs, unsigned n, int flags, struct timespec *timeout),              \
	  (fd, msgs, n, flags, timeout))                                                                               \
	X(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))                                   \
	X(ssize_t, writev, (int fd, const struct iovec *iov, int n), (fd, iov, n))                                     \
	X(ssize_t, send, (int fd, const void *data, size_t size, int flags), (fd, data, size, flags))                  \
	X(ssize_t, sendto, (int fd, const void *data, size_t size, int flags, const struct sockaddr *addr,             \
	  socklen_t len), (fd, data, size, flags, addr, len))                                                          \
	X(ssize_t, sendmsg, (int fd, const struct msghdr *msg, int flags), (fd, msg, flags))                           \
	X(int, sendmmsg, (int fd, struct mmsghdr *msgs, unsigned n, int flags), (fd, msgs, n, flags))                  \
	X(ssize_t, sendfile, (int out, int in, off_t *offset, size_t size), (out, in, offset, size))                   \
	X(ssize_t, sendfile64, (int out, int in, __off64_t *offset, size_t size), (out, in, offset, size))               \
	X(ssize_t, splice, (int in, __off64_t *off_in, int out, __off64_t *off_out, size_t size, unsigned flags),          \
	  (in, off_in, out, off_out, size, flags))                                                                     \
	X(ssize_t, preadv, (int fd, const struct iovec *iov, int n, off_t offset), (fd, iov, n, offset))               \
	X(ssize_t, preadv64, (int fd, const struct iovec *iov, int n, __off64_t offset), (fd, iov, n, offset))           \
	X(ssize_t, preadv2, (int fd, const struct iovec *iov, int n, off_t offset, int flags),                         \
	  (fd, iov, n, offset, flags))                                                                                 \
	X(ssize_t, preadv64v2, (int fd, const struct iovec *iov, int n, __off64_t offset, int flags),                    \
	  (fd, iov, n, offset, flags))                                                                                 \
	X(ssize_t, pwritev2, (int fd, const struct iovec *iov, int n, off_t offset, int flags),                        \
	  (fd, iov, n, offset, flags))                                                                                 \
	X(ssize_t, pwritev64v2, (int fd, const struct iovec *iov, int n, __off64_t offset, int flags),                   \
	  (fd, iov, n, offset, flags))                                                                                 \
	X(ssize_t, __read_chk, (int fd, void *data, size_t size, size_t room), (fd, data, size, room))                 \
	X(ssize_t, __recv_chk, (int fd, void *data, size_t size, size_t room, int flags),                              \
	  (fd, data, size, room, flags))                                                                               \
	X(ssize_t, __recvfrom_chk, (int fd, void *data, size_t size, size_t room, int flags, struct sockaddr *addr,    \
	  socklen_t *len), (fd, data, size, room, flags, addr, len))

#define VMA_OS_WAIT_CALLS(X)                                                                                           \
	X(int, select, (int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout), (n, r, w, e, timeout))       \
	X(int, pselect, (int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout,                       \
	  const sigset_t *mask), (n, r, w, e, timeout, mask))                                                          \
	X(int, poll, (struct pollfd *fds, nfds_t n, int timeout), (fds, n, timeout))                                   \
	X(int, ppoll, (struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask),            \
	  (fds, n, timeout, mask))                                                                                     \
	X(int, __poll_chk, (struct pollfd *fds, nfds_t n, int timeout, size_t room), (fds, n, timeout, room))          \
	X(int, __ppoll_chk, (struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask,       \
	  size_t room), (fds, n, timeout, mask, room))                                                                 \
	X(int, epoll_create, (int size), (size))                                                                       \
	X(int, epoll_create1, (int flags), (flags))                                                                    \
	X(int, epoll_ctl, (int epfd, int op, int fd, struct epoll_event *event), (epfd, op, fd, event))                \
	X(int, epoll_wait, (int epfd, struct epoll_event *events, int max, int timeout), (epfd, events, max, timeout)) \
	X(int, epoll_pwait, (int epfd, struct epoll_event *events, int max, int timeout, const sigset_t *mask),        \
	  (epfd, events, max, timeout, mask))                                                                          \
	X(int, epoll_pwait2, (int epfd, struct epoll_event *events, int max, const struct timespec *timeout,           \
	  const sigset_t *mask), (epfd, events, max, timeout, mask))

/* Calls that make, copy or end descriptors, and others that must know of ours. */
#define VMA_OS_FD_CALLS(X)                                                                                             \
	X(int, dup, (int fd), (fd))                                                                                    \
	X(int, dup2, (int from, int to), (from, to))                                                                   \
	X(int, dup3, (int from, int to, int flags), (from, to, flags))                                                 \
	X(int, pipe, (int fds[2]), (fds))                                                                              \
	X(int, pipe2, (int fds[2], int flags), (fds, flags))                                                           \
	X(int, socketpair, (int domain, int type, int protocol, int fds[2]), (domain, type, protocol, fds))            \
	X(int, open, (const char *path, int flags, mode_t mode), (path, flags, mode))                                  \
	X(int, open64, (const char *path, int flags, mode_t mode), (path, flags, mode))                                \
	X(int, creat, (const char *path, mode_t mode), (path, mode))                                                   \
	X(int, close_range, (unsigned first, unsigned last, int flags), (first, last, flags))                          \
	X(pid_t, fork, (void), ())                                                                                     \
	X(int, sigaction, (int sig, const struct sigaction *action, struct sigaction *old), (sig, action, old))        \
	X(__sighandler_t, signal, (int sig, __sighandler_t handler), (sig, handler))
/* clang-format on */

#define VMA_OS_CALLS(X) VMA_OS_SOCKET_CALLS(X) VMA_OS_WAIT_CALLS(X) VMA_OS_FD_CALLS(X)

struct vma_os {
#define X(type, name, parameters, arguments) type(*name) parameters;
	VMA_OS_CALLS(X)
#undef X
};
extern struct vma_os vma_os __attribute__((visibility("hidden")));

/* option.c: what the kernel says of a socket. `otherwise`, if it does not; the cookie (SO_COOKIE) is 0 then. */
int vma_os_getsockopt_int_or(int fd, int level, int name, int otherwise);
uint64_t vma_sock_cookie(int fd);

#endif
