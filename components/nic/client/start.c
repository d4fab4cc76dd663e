/*
 * start - starts a daemon out of the program's process, which must not notice.
 *
 * It makes two clones without an exit signal that borrow this process's memory (as vfork). The first exits at once, so
 * the second belongs to init, and the program gets neither SIGCHLD nor a child that its wait() could return. fork()
 * itself would run the program's atfork handlers. The daemon keeps nothing: no fds, no signal dispositions, no
 * LD_PRELOAD, no terminal, no core to which the program is pinned.
 */
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "../os.h"
#include "vmad.h"

#define STACK_BYTES 65536

struct start {
	const char *path;
	char *const *argv;
	char *second_stack;
	int error;
};

/*
 * clone(2), whose child runs `run` on the stack that ends (aligned to 16) at `top`: its pid or -errno. The C library's
 * is not to be had here: libvma.so exports both of its names, and a sanitizer's runtime may have one, too, which takes
 * the child for a fork. ThreadSanitizer's does, and leaves the thread, whose memory the child shares, in a state in
 * which it does not see that thread synchronise any more.
 */
#if defined(__x86_64__)
static pid_t clone_vfork_on_stack(void *top, int (*run)(void *), void *arg)
{
	void **stack = top;
	long pid = SYS_clone;

	*--stack = arg;
	*--stack = (void *)run;
	__asm__ volatile("syscall\n\t"
	                 "testq %%rax, %%rax\n\t"
	                 "jnz 1f\n\t"
	                 "xorl %%ebp, %%ebp\n\t"
	                 "popq %%rax\n\t"
	                 "popq %%rdi\n\t"
	                 "callq *%%rax\n\t"
	                 "ud2\n"
	                 "1:"
	                 : "+a"(pid)
	                 : "D"((long)(CLONE_VM | CLONE_VFORK)), "S"(stack)
	                 : "rcx", "r11", "memory", "cc");
	return (pid_t)pid;
}
#elif defined(__aarch64__)
static pid_t clone_vfork_on_stack(void *top, int (*run)(void *), void *arg)
{
	void **stack = top;

	*--stack = arg;
	*--stack = (void *)run;
	{
		register long number __asm__("x8") = SYS_clone;
		register long pid __asm__("x0") = CLONE_VM | CLONE_VFORK;
		register void **child_stack __asm__("x1") = stack;

		__asm__ volatile("svc 0\n\t"
		                 "cbnz x0, 1f\n\t"
		                 "mov x29, xzr\n\t"
		                 "ldp x9, x0, [sp], 16\n\t"
		                 "blr x9\n\t"
		                 "brk 1\n"
		                 "1:"
		                 : "+r"(pid)
		                 : "r"(number), "r"(child_stack)
		                 : "memory", "cc");
		return (pid_t)pid;
	}
}
#else
/* Through libvma.so's own, which leaves a child that shares its memory alone. */
static pid_t clone_vfork_on_stack(void *top, int (*run)(void *), void *arg)
{
	const int pid = clone(run, top, CLONE_VM | CLONE_VFORK, arg);

	return pid < 0 ? -errno : pid;
}
#endif

/* A program that is pinned to a core, or runs as a real-time one, must not have a daemon that is, too. */
static void reset_scheduling(void)
{
	static const struct sched_param priority;
	unsigned long cores[16];

	memset(cores, 0xff, sizeof(cores));
	syscall(SYS_sched_setaffinity, 0, sizeof(cores), cores); /* those that its cpuset has */
	syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &priority);
	syscall(SYS_setpriority, PRIO_PROCESS, 0, 0);
}

/* The dispositions are the clone's own: it was made without CLONE_SIGHAND. */
static void reset_signals(void)
{
	static const struct {
		void (*handler)(int);
		unsigned long flags;
		void (*restorer)(void);
		uint64_t mask;
	} plain; /* all zero: SIG_DFL. As the kernel has it, which is not as libc has it. */
	static const uint64_t none;

	for (int sig = 1; sig < NSIG; sig++)
		syscall(SYS_rt_sigaction, sig, &plain, NULL, sizeof(plain.mask));
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof(none));
}

/* Not if it was closed; nor if the number is a connection's by now, whose peer is to see no lines. */
static bool has_stderr(void)
{
	int domain = AF_UNIX;
	socklen_t len = sizeof(domain);

	if (os_fcntl(STDERR_FILENO, F_GETFD, 0) < 0)
		return false;
	os_getsockopt(STDERR_FILENO, SOL_SOCKET, SO_DOMAIN, &domain, &len);
	return domain == AF_UNIX;
}

/* Runs in the grandchild, in this process's memory: system calls by number only. */
static int vmad_child_main(void *arg)
{
	static char *const environment[] = {"PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin", NULL};
	struct start *start = arg;
	int null;

	syscall(SYS_setsid); /* no terminal, and no ^C from one */
	reset_scheduling();
	null = os_open("/dev/null", O_RDWR);
	if (null >= 0) {
		os_dup3(null, 0, 0); /* EINVAL: the program had no stdin, and this is 0 already */
		os_dup3(null, 1, 0);
		if (!has_stderr())
			os_dup3(null, STDERR_FILENO, 0);
	}
	/* stderr stays, also one that exec is to close: it is where the lines about a failed start are seen. vmad lets
	 * go of it when it has started. */
	os_fcntl(STDERR_FILENO, F_SETFD, 0);
	syscall(SYS_close_range, 3u, ~0u, 0u);
	syscall(SYS_umask, 022);
	reset_signals();
	if (syscall(SYS_chdir, "/") == 0)
		syscall(SYS_execve, start->path, start->argv, environment);
	start->error = errno;
	syscall(SYS_exit, 127);
	return 0;
}

static int double_fork(void *arg)
{
	struct start *start = arg;
	const pid_t pid = clone_vfork_on_stack(start->second_stack + STACK_BYTES, vmad_child_main, start);

	if (pid < 0)
		start->error = -pid;
	syscall(SYS_exit, 0);
	return 0;
}

int vmad_start(const char *path, char *const argv[])
{
	char *stacks = malloc(2 * STACK_BYTES);
	struct start start = {.path = path, .argv = argv, .second_stack = stacks};
	sigset_t all, before;
	pid_t pid;

	if (stacks == NULL)
		return -ENOMEM;
	/* A handler of the program must not run in the clones: they share its memory. */
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &before);
	pid = clone_vfork_on_stack(stacks + 2 * STACK_BYTES, double_fork, &start);
	if (pid < 0)
		start.error = -pid;
	else
		while (waitpid(pid, NULL, __WCLONE) < 0 && errno == EINTR)
			;
	sigprocmask(SIG_SETMASK, &before, NULL);
	free(stacks);
	return -start.error;
}
