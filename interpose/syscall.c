/*
 * syscall - the C library's syscall(): if a number has a function here, that function answers it.
 *
 *   application ── syscall(SYS_close, fd) ──┬─ no entry in the table ────────────> the kernel
 *                                           └─ closes() ──┬─ not ours ───────────> the kernel
 *                                                         └─ call_close(fd)
 *
 * The function itself is written in assembler. A call without an entry reaches the kernel with the stack as it was, so
 * clone with any flags behaves as with the C library's. The function needs nothing of the library, which may not have
 * started, and whose look-up of names allocates: an allocator calls syscall while it starts.
 *
 * An entry follows the kernel's contract, if that differs from the C library's. Signal sets have eight bytes and a
 * size, and ppoll and pselect6 write back what is left of the time. No call is a cancellation point.
 *
 * The library's own syscall() goes straight to the kernel (--wrap, see wrap.c). System calls of a program's own
 * instructions are not seen: docs/preload.md says what escapes.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <vma/conf.h>
#include <vma/iomux.h>

#include "call.h"
#include "more.h"
#include "process.h"

extern char **environ;

typedef long (*entry)(long a, long b, long c, long d, long e, long f);

#define ENTRIES 512
extern const entry syscall_table[ENTRIES] __attribute__((visibility("hidden")));

/* -errno is the kernel's answer. */
long syscall_set_errno_and_fail(long answer) __attribute__((visibility("hidden"), cold));
long syscall_set_errno_and_fail(long answer)
{
	errno = (int)-answer;
	return -1;
}

/* ---- to the kernel: syscall() without an entry, and all of the library's own ---- */

long __wrap_syscall(long number, ...);

#if defined(__x86_64__)
__asm__(".pushsection .text\n"
        ".globl syscall, __wrap_syscall\n"
        ".hidden __wrap_syscall\n"
        ".type syscall, @function\n"
        ".type __wrap_syscall, @function\n"
        "syscall:\n"
        "	.cfi_startproc\n"
        "	endbr64\n"
        "	cmpq $512, %rdi\n"
        "	jae 1f\n"
        "	leaq syscall_table(%rip), %rax\n"
        "	movq (%rax,%rdi,8), %rax\n"
        "	testq %rax, %rax\n"
        "	je 1f\n"
        "	movq %rsi, %rdi\n"
        "	movq %rdx, %rsi\n"
        "	movq %rcx, %rdx\n"
        "	movq %r8, %rcx\n"
        "	movq %r9, %r8\n"
        "	movq 8(%rsp), %r9\n"
        "	jmp *%rax\n"
        "__wrap_syscall:\n"
        "	endbr64\n"
        "1:	movq %rdi, %rax\n"
        "	movq %rsi, %rdi\n"
        "	movq %rdx, %rsi\n"
        "	movq %rcx, %rdx\n"
        "	movq %r8, %r10\n"
        "	movq %r9, %r8\n"
        "	movq 8(%rsp), %r9\n"
        "	syscall\n"
        "	cmpq $-4095, %rax\n"
        "	jae 2f\n"
        "	ret\n"
        "2:	movq %rax, %rdi\n"
        "	jmp syscall_set_errno_and_fail\n"
        "	.cfi_endproc\n"
        ".size syscall, . - syscall\n"
        ".popsection\n");
#elif defined(__aarch64__)
__asm__(".pushsection .text\n"
        ".globl syscall, __wrap_syscall\n"
        ".hidden __wrap_syscall\n"
        ".type syscall, %function\n"
        ".type __wrap_syscall, %function\n"
        "syscall:\n"
        "	.cfi_startproc\n"
        "	cmp x0, 512\n"
        "	b.hs __wrap_syscall\n"
        "	adrp x16, syscall_table\n"
        "	add x16, x16, :lo12:syscall_table\n"
        "	ldr x16, [x16, x0, lsl 3]\n"
        "	cbz x16, __wrap_syscall\n"
        "	mov x0, x1\n"
        "	mov x1, x2\n"
        "	mov x2, x3\n"
        "	mov x3, x4\n"
        "	mov x4, x5\n"
        "	mov x5, x6\n"
        "	br x16\n"
        "__wrap_syscall:\n"
        "	mov x8, x0\n"
        "	mov x0, x1\n"
        "	mov x1, x2\n"
        "	mov x2, x3\n"
        "	mov x3, x4\n"
        "	mov x4, x5\n"
        "	mov x5, x6\n"
        "	svc 0\n"
        "	cmn x0, 4095\n"
        "	b.hs syscall_set_errno_and_fail\n"
        "	ret\n"
        "	.cfi_endproc\n"
        ".size syscall, . - syscall\n"
        ".popsection\n");
#else
#error "syscall() needs a few lines of assembler for this processor"
#endif

#define KERNEL(number) __wrap_syscall((number), a, b, c, d, e, f)

/* ---- to the function of the same name ---- */

/* syscall() is no cancellation point, and the functions that answer here are. */
#define RETURN_RESULT(type, expression)                                                                                \
	({                                                                                                             \
		int cancel_state, any_state;                                                                           \
		type answer;                                                                                           \
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);                                         \
		answer = (expression);                                                                                 \
		pthread_setcancelstate(cancel_state, &any_state);                                                      \
		answer;                                                                                                \
	})

#define ENTRY(name)                                                                                                    \
	static long name(__attribute__((unused)) long a, __attribute__((unused)) long b,                               \
	                 __attribute__((unused)) long c, __attribute__((unused)) long d,                               \
	                 __attribute__((unused)) long e, __attribute__((unused)) long f)
#define P(argument) ((void *)(argument))

/* X(type, name, condition under which the kernel is called, arguments of the function). */
#define CALLS(X)                                                                                                       \
	X(ssize_t, read, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, P(b), (size_t)c))                                \
	X(ssize_t, write, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, P(b), (size_t)c))                               \
	X(ssize_t, readv, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, P(b), (int)c))                                  \
	X(ssize_t, writev, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, P(b), (int)c))                                 \
	X(ssize_t, preadv, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, P(b), (int)c, d))                              \
	X(ssize_t, preadv2, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, P(b), (int)c, d, (int)f))                     \
	X(ssize_t, pwritev2, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, P(b), (int)c, d, (int)f))                    \
	X(ssize_t, recvfrom, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, P(b), (size_t)c, (int)d, P(e), P(f)))        \
	X(ssize_t, sendto, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, P(b), (size_t)c, (int)d, P(e), (socklen_t)f))  \
	X(ssize_t, recvmsg, false, ((int)a, P(b), (int)c))                                                             \
	X(ssize_t, sendmsg, false, ((int)a, P(b), (int)c))                                                             \
	X(int, recvmmsg, false, ((int)a, P(b), (unsigned)c, (int)d, P(e)))                                             \
	X(int, sendmmsg, false, ((int)a, P(b), (unsigned)c, (int)d))                                                   \
	X(int, socket, false, ((int)a, (int)b, (int)c))                                                                \
	X(int, bind, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, P(b), (socklen_t)c))                                 \
	X(int, connect, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, P(b), (socklen_t)c))                              \
	X(int, listen, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, (int)b))                                           \
	X(int, accept, false, ((int)a, P(b), P(c)))                                                                    \
	X(int, accept4, false, ((int)a, P(b), P(c), (int)d))                                                           \
	X(int, shutdown, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, (int)b))                                         \
	X(int, setsockopt, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, (int)b, (int)c, P(d), (socklen_t)e))           \
	X(int, getsockopt, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, (int)b, (int)c, P(d), P(e)))                   \
	X(int, getsockname, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, P(b), P(c)))                                  \
	X(int, getpeername, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, P(b), P(c)))                                  \
	X(int, ioctl, FD_IS_NOT_OURS_BY_ONE_LOAD((int)a), ((int)a, (unsigned long)b, P(c)))                            \
	X(int, fcntl, (b != F_DUPFD && b != F_DUPFD_CLOEXEC && FD_IS_NOT_OURS_BY_ONE_LOAD((int)a)),                    \
	  ((int)a, (int)b, P(c)))                                                                                      \
	X(int, close, FD_IS_NOT_OURS((int)a), ((int)a))                                                                \
	X(int, close_range, vma_fd_highest() < 0, ((unsigned)a, (unsigned)b, (int)c))                                  \
	X(int, dup, false, ((int)a))                                                                                   \
	X(int, dup3, false, ((int)a, (int)b, (int)c))                                                                  \
	X(int, epoll_ctl, false, ((int)a, (int)b, (int)c, P(d)))                                                       \
	X(int, pidfd_getfd, false, ((int)a, (int)b, (unsigned)c))                                                      \
	X(ssize_t, splice, FD_IS_NOT_OURS((int)a) && FD_IS_NOT_OURS((int)c),                                           \
	  ((int)a, P(b), (int)c, P(d), (size_t)e, (unsigned)f))

/* Of processors that have the older calls, too. */
#ifdef SYS_open
#define SYSCALLS_OF_OLDER_KERNEL_ABI(X)                                                                                \
	X(int, dup2, false, ((int)a, (int)b))                                                                          \
	X(int, poll, vma_fd_highest() < 0, (P(a), (nfds_t)b, (int)c))                                                  \
	X(int, select, vma_fd_highest() < 0, ((int)a, P(b), P(c), P(d), P(e)))                                         \
	X(int, epoll_wait, false, ((int)a, P(b), (int)c, (int)d))
#else
#define SYSCALLS_OF_OLDER_KERNEL_ABI(X)
#endif

#define X(type, name, parameters, arguments)                                                                           \
	type own_##name parameters __asm__("vma_call_" #name) __attribute__((visibility("hidden")));
VMA_OS_CALLS(X)
VMA_MORE_CALLS(X)
#undef X

#define X(type, name, kernels, arguments)                                                                              \
	ENTRY(enter_##name)                                                                                            \
	{                                                                                                              \
		if (kernels)                                                                                           \
			return KERNEL(SYS_##name);                                                                     \
		return RETURN_RESULT(type, own_##name arguments);                                                      \
	}
CALLS(X)
SYSCALLS_OF_OLDER_KERNEL_ABI(X)
#undef X

/* The kernel has one sendfile, with an offset of 64 bits. */
ENTRY(enter_sendfile)
{
	if (FD_IS_NOT_OURS((int)a) && FD_IS_NOT_OURS((int)b))
		return KERNEL(SYS_sendfile);
	return RETURN_RESULT(ssize_t, own_sendfile64((int)a, (int)b, P(c), (size_t)d));
}

/* ---- waits ---- */

#define KERNEL_MASK_BYTES 8 /* what the kernel has of a sigset_t, and wants to be told */

/* To and from the program's memory; false: EFAULT. */
static bool copy_user_memory(void *to, const void *from, size_t size)
{
	struct vma_thread *self = vma_enter();
	const int rc = vma_memcpy_or_efault(to, from, size);

	vma_leave(self);
	return rc == 0;
}

/* The kernel's mask as the C library's; NULL stays NULL. False: the kernel is to say what is wrong with it. */
static bool copy_sigmask_from_user(sigset_t *own, const sigset_t **mask, long user, long size)
{
	*mask = NULL;
	if (user == 0)
		return true;
	sigemptyset(own);
	*mask = own;
	return size == KERNEL_MASK_BYTES && copy_user_memory(own, P(user), KERNEL_MASK_BYTES);
}

static int64_t syscall_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000L + now.tv_nsec;
}

/* As the kernel's poll_select_finish: after any end of the wait, and without a word if it cannot be written. */
static void copy_remaining_timeout_to_user(long user, const struct timespec *given, int64_t since_ns, int rc)
{
	const int64_t passed_ns = syscall_now_ns() - since_ns;
	struct timespec left = *given;
	const int saved = errno;

	if (user == 0 || (rc < 0 && errno != EINTR))
		return;
	left.tv_sec -= passed_ns / 1000000000;
	left.tv_nsec -= passed_ns % 1000000000;
	if (left.tv_nsec < 0) {
		left.tv_nsec += 1000000000;
		left.tv_sec--;
	}
	if (left.tv_sec < 0)
		left = (struct timespec){0};
	copy_user_memory(P(user), &left, sizeof(left));
	errno = saved;
}

/* False: the kernel is to say what is wrong with it. */
static bool copy_timespec_from_user(struct timespec *given, long user)
{
	*given = (struct timespec){0};
	return user == 0 || copy_user_memory(given, P(user), sizeof(*given));
}

ENTRY(enter_ppoll)
{
	struct timespec given;
	const sigset_t *mask;
	int64_t since_ns;
	sigset_t space;
	int rc;

	if (vma_fd_highest() < 0 || !copy_sigmask_from_user(&space, &mask, d, e) || !copy_timespec_from_user(&given, c))
		return KERNEL(SYS_ppoll);
	since_ns = syscall_now_ns();
	rc = RETURN_RESULT(int, own_ppoll(P(a), (nfds_t)b, c != 0 ? &given : NULL, mask));
	copy_remaining_timeout_to_user(c, &given, since_ns, rc);
	return rc;
}

ENTRY(enter_pselect6)
{
	struct {
		const sigset_t *mask;
		size_t size;
	} sized = {NULL, KERNEL_MASK_BYTES};
	struct timespec given;
	const sigset_t *mask;
	int64_t since_ns;
	sigset_t space;
	int rc;

	if (vma_fd_highest() < 0 || (f != 0 && !copy_user_memory(&sized, P(f), sizeof(sized))) ||
	    !copy_sigmask_from_user(&space, &mask, (long)sized.mask, (long)sized.size) ||
	    !copy_timespec_from_user(&given, e))
		return KERNEL(SYS_pselect6);
	since_ns = syscall_now_ns();
	rc = RETURN_RESULT(int, own_pselect((int)a, P(b), P(c), P(d), e != 0 ? &given : NULL, mask));
	copy_remaining_timeout_to_user(e, &given, since_ns, rc);
	return rc;
}

ENTRY(enter_epoll_pwait)
{
	const sigset_t *mask;
	sigset_t space;

	if (!copy_sigmask_from_user(&space, &mask, e, f))
		return KERNEL(SYS_epoll_pwait);
	return RETURN_RESULT(int, own_epoll_pwait((int)a, P(b), (int)c, (int)d, mask));
}

#ifdef SYS_epoll_pwait2
ENTRY(enter_epoll_pwait2)
{
	const sigset_t *mask;
	sigset_t space;

	if (!copy_sigmask_from_user(&space, &mask, e, f))
		return KERNEL(SYS_epoll_pwait2);
	return RETURN_RESULT(int, own_epoll_pwait2((int)a, P(b), (int)c, P(d), mask));
}
#endif

/* ---- calls that make descriptors ---- */

/* clang-format off */
#define SYSCALLS_RETURNING_NEW_FDS(X)                                                                                                    \
	X(openat) X(eventfd2) X(timerfd_create) X(signalfd4) X(inotify_init1) X(memfd_create) X(perf_event_open)       \
	X(mq_open) X(open_by_handle_at) X(fanotify_init) X(userfaultfd)
/* clang-format on */
#ifdef SYS_open
#define OLD_SYSCALLS_RETURNING_NEW_FDS(X) X(open) X(creat) X(eventfd) X(signalfd) X(inotify_init)
#else
#define OLD_SYSCALLS_RETURNING_NEW_FDS(X)
#endif
#if defined(SYS_pidfd_open) && defined(SYS_openat2) && defined(SYS_open_tree) && defined(SYS_fsopen)
#define NEW_SYSCALLS_RETURNING_NEW_FDS(X) X(pidfd_open) X(openat2) X(open_tree) X(fsopen) X(fsmount) X(fspick)
#else
#define NEW_SYSCALLS_RETURNING_NEW_FDS(X)
#endif

#define X(name)                                                                                                        \
	ENTRY(enter_##name)                                                                                            \
	{                                                                                                              \
		return return_new_fd_forget_old_file((int)KERNEL(SYS_##name));                                         \
	}
SYSCALLS_RETURNING_NEW_FDS(X)
OLD_SYSCALLS_RETURNING_NEW_FDS(X)
NEW_SYSCALLS_RETURNING_NEW_FDS(X)
#undef X

static long syscall_fresh_pair(long rc, const int *fds)
{
	if (rc == 0) {
		return_new_fd_forget_old_file(fds[0]);
		return_new_fd_forget_old_file(fds[1]);
	}
	return rc;
}

ENTRY(enter_pipe2)
{
	return syscall_fresh_pair(KERNEL(SYS_pipe2), P(a));
}

ENTRY(enter_socketpair)
{
	return syscall_fresh_pair(KERNEL(SYS_socketpair), P(d));
}

static int syscall_record_new_epoll_set(int epfd)
{
	if (epfd >= 0)
		vma_iomux_record_epoll_fd(epfd);
	return return_new_fd_forget_old_file(epfd);
}

ENTRY(enter_epoll_create1)
{
	return syscall_record_new_epoll_set((int)KERNEL(SYS_epoll_create1));
}

#ifdef SYS_open
ENTRY(enter_pipe)
{
	return syscall_fresh_pair(KERNEL(SYS_pipe), P(a));
}

ENTRY(enter_epoll_create)
{
	return syscall_record_new_epoll_set((int)KERNEL(SYS_epoll_create));
}
#endif

/* ---- the process and its handlers ---- */

/* Nothing has to leave before the library has started; the C library's functions may not have been looked up yet. */
ENTRY(enter_execve)
{
	if (!library_is_started_in_process())
		return KERNEL(SYS_execve);
	return own_execve(P(a), P(b), P(c));
}

ENTRY(enter_execveat)
{
	if (!library_is_started_in_process())
		return KERNEL(SYS_execveat);
	return own_execveat((int)a, P(b), P(c), P(d), (int)e);
}

ENTRY(enter_exit_group)
{
	if (!library_is_started_in_process())
		return KERNEL(SYS_exit_group);
	return own__exit((int)a);
}

/*
 * A copy of the process, as fork makes it, and around it the same handlers: else this process would end a connection
 * that it closes, while the copy has it. So vsftpd makes its sessions, in namespaces of their own. What shares the
 * memory, or goes on elsewhere than here (a stack of its own), is the kernel's business, and so is all before the
 * start.
 */
static bool clone_is_like_fork(uint64_t flags, uint64_t stack)
{
	return library_is_started_in_process() && (flags & CLONE_VM) == 0 && stack == 0;
}

static long run_fork_handlers_after_clone(long rc)
{
	const int saved = errno;

	if (rc == 0)
		process_after_fork_in_child();
	else
		process_after_fork_in_parent();
	errno = saved;
	return rc;
}

ENTRY(enter_clone)
{
	if (!clone_is_like_fork((uint64_t)a, (uint64_t)b))
		return KERNEL(SYS_clone);
	process_before_fork();
	return run_fork_handlers_after_clone(KERNEL(SYS_clone));
}

#ifdef SYS_clone3
ENTRY(enter_clone3)
{
	struct clone_args args = {0};

	if (!library_is_started_in_process() || (size_t)b < CLONE_ARGS_SIZE_VER0 ||
	    !copy_user_memory(&args, P(a), CLONE_ARGS_SIZE_VER0) || !clone_is_like_fork(args.flags, args.stack))
		return KERNEL(SYS_clone3);
	process_before_fork();
	return run_fork_handlers_after_clone(KERNEL(SYS_clone3));
}
#endif

#ifdef SYS_open
ENTRY(enter_fork)
{
	if (!library_is_started_in_process())
		return KERNEL(SYS_fork);
	process_before_fork();
	return run_fork_handlers_after_clone(KERNEL(SYS_fork));
}
#endif

struct kernel_sigaction {
	void (*handler)(int sig);
	unsigned long flags;
	void (*restorer)(void);
	uint64_t mask;
};
#define FLAG_RESTORER 0x04000000 /* SA_RESTORER: the kernel is told where a handler returns to */

/*
 * A handler must not run while its thread is inside the library, so it becomes one of sigaction's: the C library's
 * restorer takes the place of the program's own, which does the same. Two signals are the C library's.
 */
ENTRY(enter_rt_sigaction)
{
	struct sigaction action = {.sa_flags = 0}, before = {.sa_flags = 0};
	struct kernel_sigaction given = {0}, had = {0};
	const int sig = (int)a;

	if (atomic_load_explicit(&vma_engine_now, memory_order_acquire) == NULL || d != KERNEL_MASK_BYTES ||
	    sig == 32 || sig == 33 || (b != 0 && !copy_user_memory(&given, P(b), sizeof(given))))
		return KERNEL(SYS_rt_sigaction);
	__wrap_syscall(SYS_rt_sigaction, (long)sig, 0L, &had, (long)KERNEL_MASK_BYTES);
	action.sa_handler = given.handler;
	action.sa_flags = (int)(given.flags & ~(unsigned long)FLAG_RESTORER);
	memcpy(&action.sa_mask, &given.mask, KERNEL_MASK_BYTES);
	if (own_sigaction(sig, b != 0 ? &action : NULL, &before) < 0)
		return -1;
	had.handler = before.sa_handler;
	had.flags = (had.flags & FLAG_RESTORER) | (unsigned)before.sa_flags;
	memcpy(&had.mask, &before.sa_mask, KERNEL_MASK_BYTES);
	if (c != 0 && !copy_user_memory(P(c), &had, sizeof(had))) {
		errno = EFAULT; /* the kernel, too, has installed it by now */
		return -1;
	}
	return 0;
}

/* ---- io_uring: what goes through a ring is seen by nobody here ---- */

/* Before the first socket nothing has been read yet: programs ask for rings when they start. */
static bool conf_allows_io_uring(bool *offloads)
{
	struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);
	struct vma_conf own;
	const struct vma_conf *conf = engine != NULL ? &engine->conf : &own;

	if (engine == NULL)
		vma_conf_load_without_warnings(&own, environ);
	*offloads = conf->offloaded_sockets && conf->nic != VMA_CONF_NIC_NONE;
	return conf->io_uring || !*offloads;
}

/*
 * With a ring the program may read, write, poll and close its sockets where no call shows it. So either there is no
 * ring, and programs do without, as on kernels that forbid it; or all sockets are the kernel's from now on.
 */
static bool io_uring_check_and_hand_over_sockets(void)
{
	bool offloads;

	if (!conf_allows_io_uring(&offloads))
		return false;
	if (offloads && !process_is_vfork_child()) {
		atomic_store(&vma_sockets_stay, true);
		for (int fd = vma_fd_highest(); fd >= 0; fd--)
			if (!FD_IS_NOT_OURS(fd))
				hand_over_fd_to_kernel(fd);
	}
	return true;
}

ENTRY(enter_io_uring_setup)
{
	if (io_uring_check_and_hand_over_sockets())
		return return_new_fd_forget_old_file((int)KERNEL(SYS_io_uring_setup));
	errno = ENOSYS;
	return -1;
}

/*
 * liburing makes its rings by its own instructions, behind these functions of its shared library. They answer with
 * -errno, and what they are given is theirs.
 */
#define LIBURING_CALL(name, parameters, arguments)                                                                     \
	EXPORT(int, name, parameters)                                                                                  \
	{                                                                                                              \
		int(*real) parameters = (int(*) parameters)dlsym(RTLD_NEXT, #name);                                    \
                                                                                                                       \
		return real != NULL && io_uring_check_and_hand_over_sockets() ? real arguments : -ENOSYS;              \
	}
LIBURING_CALL(io_uring_queue_init, (unsigned entries, void *ring, unsigned flags), (entries, ring, flags))
LIBURING_CALL(io_uring_queue_init_params, (unsigned entries, void *ring, void *params), (entries, ring, params))
LIBURING_CALL(io_uring_queue_init_mem, (unsigned entries, void *ring, void *params, void *memory, size_t size),
              (entries, ring, params, memory, size))
LIBURING_CALL(io_uring_setup, (unsigned entries, void *params), (entries, params))

/* ---- the table ---- */

#define X_CALL(type, name, kernels, arguments) X(name)
#define X(name) [SYS_##name] = enter_##name,
const entry syscall_table[ENTRIES] = {
        CALLS(X_CALL) SYSCALLS_OF_OLDER_KERNEL_ABI(X_CALL) SYSCALLS_RETURNING_NEW_FDS(X)
                OLD_SYSCALLS_RETURNING_NEW_FDS(X) NEW_SYSCALLS_RETURNING_NEW_FDS(X) X(sendfile) X(ppoll) X(pselect6)
                        X(epoll_pwait)
#ifdef SYS_epoll_pwait2
                                X(epoll_pwait2)
#endif
                                        X(pipe2) X(socketpair) X(epoll_create1)
#ifdef SYS_open
                                                X(pipe) X(epoll_create) X(fork)
#endif
#ifdef SYS_clone3
                                                        X(clone3)
#endif
                                                                X(clone) X(execve) X(execveat) X(exit_group)
                                                                        X(rt_sigaction) X(io_uring_setup)};
#undef X
#undef X_CALL
