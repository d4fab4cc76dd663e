/*
 * vmad_start - starts a daemon out of somebody else's process, which must not notice.
 *
 * Two clones without an exit signal that borrow this process's memory (as vfork): the first exits at once, so the
 * second belongs to init, and the program gets neither SIGCHLD nor a child that its wait() could return. fork() itself
 * would run the program's atfork handlers. The daemon keeps nothing: no fds, no signal dispositions, no LD_PRELOAD.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vmad_client.h"

#define STACK_BYTES 65536

struct start {
	const char *path;
	char *const *argv;
	char *second_stack;
	int error;
};

/* Runs in the grandchild, in this process's memory: system calls only. */
static int become_daemon(void *arg)
{
	static char *const environment[] = {"PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin", NULL};
	struct start *start = arg;
	struct sigaction plain = {.sa_handler = SIG_DFL};
	sigset_t none;
	int null;

	setsid();
	for (int sig = 1; sig < NSIG; sig++)
		sigaction(sig, &plain, NULL); /* this table is the clone's own */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	null = open("/dev/null", O_RDWR);
	if (null >= 0) {
		dup2(null, 0);
		dup2(null, 1);
	}
	/* stderr stays: it is where the daemon's lines about a failed start are seen. */
	syscall(SYS_close_range, 3u, ~0u, 0u);
	if (chdir("/") == 0)
		execve(start->path, start->argv, environment);
	start->error = errno;
	_exit(127);
}

static int become_nobodys_child(void *arg)
{
	struct start *start = arg;

	if (clone(become_daemon, start->second_stack + STACK_BYTES, CLONE_VM | CLONE_VFORK, start) < 0)
		start->error = errno;
	_exit(0);
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
	pid = clone(become_nobodys_child, stacks + 2 * STACK_BYTES, CLONE_VM | CLONE_VFORK, &start);
	if (pid < 0)
		start.error = errno;
	else
		while (waitpid(pid, NULL, __WCLONE) < 0 && errno == EINTR)
			;
	sigprocmask(SIG_SETMASK, &before, NULL);
	free(stacks);
	return -start.error;
}
