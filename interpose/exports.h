/*
 * exports - every symbol of libvma.so, once. From these lists come the version script, the ways around them for our own
 *           code (wrap.c), and the C library's originals.
 *
 * A call is on the list for one of three reasons. A program may hand it an offloaded descriptor, or it makes, copies or
 * ends descriptors, or it must know of ours (handlers, processes). X(type, name, (parameters), (arguments)). README.md
 * says what is not here, and why.
 *
 * Threads: the lists are constant.
 */
#ifndef VMA_INTERPOSE_EXPORTS_H
#define VMA_INTERPOSE_EXPORTS_H

#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include <vma/sock_os.h>

/* clang-format off */
/* Calls that only yield descriptors: a number that the table still knows has been closed unseen. */
#define VMA_CALLS_RETURNING_NEW_FD(X)                                                                                          \
	X(int, creat64, (const char *path, mode_t mode), (path, mode))                                                 \
	X(int, openat, (int dir, const char *path, int flags, mode_t mode), (dir, path, flags, mode))                  \
	X(int, openat64, (int dir, const char *path, int flags, mode_t mode), (dir, path, flags, mode))                \
	X(int, __open_2, (const char *path, int flags), (path, flags))                                                 \
	X(int, __open64_2, (const char *path, int flags), (path, flags))                                               \
	X(int, __openat_2, (int dir, const char *path, int flags), (dir, path, flags))                                 \
	X(int, __openat64_2, (int dir, const char *path, int flags), (dir, path, flags))                               \
	X(int, eventfd, (unsigned count, int flags), (count, flags))                                                   \
	X(int, timerfd_create, (clockid_t clock, int flags), (clock, flags))                                           \
	X(int, signalfd, (int fd, const sigset_t *mask, int flags), (fd, mask, flags))                                 \
	X(int, inotify_init, (void), ())                                                                               \
	X(int, inotify_init1, (int flags), (flags))                                                                    \
	X(int, memfd_create, (const char *name, unsigned flags), (name, flags))                                        \
	X(int, pidfd_open, (pid_t pid, unsigned flags), (pid, flags))

/* stdio reads, writes and closes behind our back. */
#define VMA_STDIO_CALLS(X)                                                                                             \
	X(FILE *, fdopen, (int fd, const char *mode), (fd, mode))                                                      \
	X(int, fclose, (FILE *file), (file))                                                                           \
	X(FILE *, freopen, (const char *path, const char *mode, FILE *file), (path, mode, file))                       \
	X(FILE *, freopen64, (const char *path, const char *mode, FILE *file), (path, mode, file))                     \
	X(int, vdprintf, (int fd, const char *format, va_list list), (fd, format, list))                               \
	X(int, __vdprintf_chk, (int fd, int flag, const char *format, va_list list), (fd, flag, format, list))

/* The process becomes another program. */
#define VMA_EXEC_CALLS(X)                                                                                              \
	X(int, execve, (const char *path, char *const *argv, char *const *environment), (path, argv, environment))     \
	X(int, execvpe, (const char *file, char *const *argv, char *const *environment), (file, argv, environment))    \
	X(int, fexecve, (int fd, char *const *argv, char *const *environment), (fd, argv, environment))                \
	X(int, execveat, (int dir, const char *path, char *const *argv, char *const *environment, int flags),          \
	  (dir, path, argv, environment, flags))

/* A new process is another program. */
#define VMA_SPAWN_CALLS(X)                                                                                             \
	X(int, posix_spawn, (pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,                  \
	  const posix_spawnattr_t *attributes, char *const *argv, char *const *environment),                           \
	  (pid, path, actions, attributes, argv, environment))                                                         \
	X(int, posix_spawnp, (pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,                 \
	  const posix_spawnattr_t *attributes, char *const *argv, char *const *environment),                           \
	  (pid, file, actions, attributes, argv, environment))

/* After these a process can start less than before. */
#define VMA_PRIVILEGE_CALLS(X)                                                                                         \
	X(int, chroot, (const char *path), (path))                                                                     \
	X(int, initgroups, (const char *user, gid_t group), (user, group))                                             \
	X(int, setgroups, (size_t n, const gid_t *groups), (n, groups))                                                \
	X(int, setgid, (gid_t gid), (gid))                                                                             \
	X(int, setregid, (gid_t real, gid_t effective), (real, effective))                                             \
	X(int, setresgid, (gid_t real, gid_t effective, gid_t saved), (real, effective, saved))                        \
	X(int, setuid, (uid_t uid), (uid))                                                                             \
	X(int, setreuid, (uid_t real, uid_t effective), (real, effective))                                             \
	X(int, setresuid, (uid_t real, uid_t effective, uid_t saved), (real, effective, saved))                        \
	X(int, setrlimit, (int resource, const void *limit), (resource, limit))                                        \
	X(int, setrlimit64, (int resource, const void *limit), (resource, limit))

/* The rest that needs its original; some of them return nothing, which is an int here. */
#define VMA_OTHER_LIBC_CALLS(X)                                                                                             \
	X(int, _exit, (int status), (status))                                                                          \
	X(int, _Exit, (int status), (status))                                                                          \
	X(int, quick_exit, (int status), (status))                                                                     \
	X(int, posix_spawn_file_actions_adddup2, (posix_spawn_file_actions_t *actions, int fd, int to),                \
	  (actions, fd, to))                                                                                           \
	X(int, closefrom, (int low), (low))                                                                            \
	X(int, pidfd_getfd, (int pidfd, int fd, unsigned flags), (pidfd, fd, flags))                                   \
	X(int, __res_iclose, (void *state, int free_addresses), (state, free_addresses))                               \
	X(int, daemon, (int nochdir, int noclose), (nochdir, noclose))                                                 \
	X(int, clone, (int (*run)(void *), void *stack, int flags, void *arg, void *parent_tid, void *tls,             \
	  void *child_tid), (run, stack, flags, arg, parent_tid, tls, child_tid))

#define VMA_MORE_CALLS(X)                                                                                              \
	VMA_CALLS_RETURNING_NEW_FD(X) VMA_STDIO_CALLS(X) VMA_EXEC_CALLS(X) VMA_SPAWN_CALLS(X) VMA_PRIVILEGE_CALLS(X)           \
	VMA_OTHER_LIBC_CALLS(X)

/* Written here on top of others, so that what they do to handlers and descriptors is seen. X(name) */
#define VMA_DERIVED_EXPORTS(X)                                                                                         \
	X(dprintf) X(__dprintf_chk) X(bsd_signal) X(ssignal) X(sysv_signal) X(__sysv_signal) X(sigset) X(sigignore)    \
	X(siginterrupt) X(vfork) X(execv) X(execvp) X(execl) X(execlp) X(execle) X(vma_get_socket_state)               \
	X(vma_get_version) X(sockatmark) X(syscall)                                                                    \
	X(io_uring_queue_init) X(io_uring_queue_init_params) X(io_uring_queue_init_mem) X(io_uring_setup)

/* The C library's second names of the same functions, which old and fortified programs bind to. X(alias, name) */
#define VMA_ALIAS_EXPORTS(X)                                                                                           \
	X(__close, close) X(__connect, connect) X(__fcntl, fcntl) X(__read, read) X(__write, write) X(__send, send)    \
	X(__select, select) X(__poll, poll) X(__dup2, dup2) X(__pipe, pipe) X(__open, open) X(__open64, open64)        \
	X(__fork, fork) X(__vfork, vfork) X(__clone, clone) X(__sigaction, sigaction) X(_IO_fclose, fclose)            \
	X(_IO_fdopen, fdopen)
/* clang-format on */

#endif
