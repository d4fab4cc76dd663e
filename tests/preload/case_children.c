/* case_children - processes that the program makes: copies use the sockets, borrowers leave them alone. */
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/raw_call.h>

#include "fixture.h"

extern char **environ;

static bool child_exits_with_0(pid_t pid)
{
	int status;

	return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void system_popen_and_spawn_keep_socket_usable(const struct fixture *fixture)
{
	char *const argv[] = {"true", NULL};
	int fd = fixture_socket(fixture), status;
	posix_spawn_file_actions_t actions;
	char word[16] = "";
	FILE *pipe;
	pid_t pid;

	status = system("exit 7");
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	EXPECT(fixture_echo(fd));
	pipe = popen("echo word", "r");
	EXPECT(pipe != NULL && fgets(word, sizeof(word), pipe) != NULL && strcmp(word, "word\n") == 0);
	EXPECT(pclose(pipe) == 0);
	EXPECT(fixture_echo(fd));
	/* What a child closes and puts elsewhere is its own. */
	EXPECT(posix_spawn_file_actions_init(&actions) == 0);
	EXPECT(posix_spawn_file_actions_addclose(&actions, fd) == 0);
	EXPECT(posix_spawn_file_actions_adddup2(&actions, 1, fd) == 0);
	EXPECT(posix_spawnp(&pid, "true", &actions, NULL, argv, environ) == 0);
	EXPECT(child_exits_with_0(pid));
	EXPECT(fixture_get_socket_offload_state(fd) == 1 && fixture_echo(fd));
}

static _Atomic int handled;

static void children_record_signal(int sig)
{
	handled = sig;
}

/* The child borrows the memory, and tidies up before exec as shells and interpreters do. */
static void vfork_child_tidies_up(const struct fixture *fixture)
{
	int fd = fixture_socket(fixture), copy = dup(fd);
	volatile int seen = 0;
	pid_t pid;

	EXPECT(signal(SIGUSR1, children_record_signal) != SIG_ERR);
	pid = vfork();
	if (pid == 0) {
		struct sigaction plain = {.sa_handler = SIG_DFL};

		sigaction(SIGUSR1, &plain, NULL);
		dup2(1, copy);
		close(fd);
		closefrom(3);
		seen = socket(AF_INET, SOCK_DGRAM, 0);
		execlp("true", "true", NULL);
		_exit(1);
	}
	EXPECT(pid > 0 && child_exits_with_0(pid));
	expect(seen == 3, "the child wrote what the parent reads");
	EXPECT(fixture_get_socket_offload_state(fd) == 1 && fixture_get_socket_offload_state(copy) == 1);
	EXPECT(fixture_echo(fd) && fixture_echo(copy));
	EXPECT(raise(SIGUSR1) == 0 && handled == SIGUSR1);
}

static void child_sends_on_socket_and_exits(const struct fixture *fixture, int fd)
{
	int own;

	EXPECT(send(fd, "from the child", 14, 0) == 14);
	own = fixture_socket(fixture);
	EXPECT(fixture_echo(own));
	EXPECT(close(own) == 0);
	EXPECT(close(fd) == 0);
	_exit(0);
}

static void expect_parent_socket_works(const struct fixture *fixture, int fd)
{
	int other;

	expect(fixture_echo(fd), "the parent's socket works on");
	other = fixture_socket(fixture);
	EXPECT(fixture_echo(other));
}

static void fork_leaves_parent_socket_usable(const struct fixture *fixture)
{
	int fd = fixture_socket(fixture);
	pid_t pid;

	EXPECT(fixture_echo(fd));
	pid = fork();
	if (pid == 0)
		child_sends_on_socket_and_exits(fixture, fd);
	EXPECT(pid > 0 && child_exits_with_0(pid));
	expect_parent_socket_works(fixture, fd);
}

/* The child takes the conversation over, as workers do with what their master has made. */
static void fork_and_leave(const struct fixture *fixture)
{
	int fd = fixture_socket(fixture), report[2];
	char word = 0;
	pid_t pid;

	EXPECT(pipe(report) == 0);
	pid = fork();
	if (pid == 0) {
		expect(fixture_echo(fd), "the child talks on the inherited socket");
		EXPECT(write(report[1], "k", 1) == 1);
		_exit(0);
	}
	EXPECT(close(fd) == 0);
	EXPECT(close(report[1]) == 0);
	EXPECT(read(report[0], &word, 1) == 1 && word == 'k');
	EXPECT(child_exits_with_0(pid));
}

/* By the system call: nobody is told. */
static void raw_clone(const struct fixture *fixture)
{
	for (int unseen = 0; unseen < 2; unseen++) {
		int fd = fixture_socket(fixture);
		pid_t pid;

		EXPECT(fixture_echo(fd));
		pid = (pid_t)(unseen ? raw_syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)
		                     : syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL));
		if (pid == 0)
			child_sends_on_socket_and_exits(fixture, fd);
		EXPECT(pid > 0 && child_exits_with_0(pid));
		expect_parent_socket_works(fixture, fd);
	}
}

struct argument {
	const struct fixture *fixture;
	int fd;
};

static int clone_child_checks_socket(void *arg)
{
	struct argument *argument = arg;

	child_sends_on_socket_and_exits(argument->fixture, argument->fd);
	return 0;
}

static void clone_child_leaves_parent_socket_usable(const struct fixture *fixture)
{
	struct argument argument = {.fixture = fixture, .fd = fixture_socket(fixture)};
	const size_t size = 1 << 20;
	char *stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pid_t pid;

	EXPECT(stack != MAP_FAILED);
	EXPECT(fixture_echo(argument.fd));
	pid = clone(clone_child_checks_socket, stack + size, SIGCHLD, &argument);
	EXPECT(pid > 0 && child_exits_with_0(pid));
	expect_parent_socket_works(fixture, argument.fd);
}

/* The program goes on as a daemon, on the sockets that it had before. */
static void daemon_keeps_using_earlier_socket(const struct fixture *fixture)
{
	int fd = fixture_socket(fixture), report[2];
	pid_t pid;
	char word = 0;

	EXPECT(pipe(report) == 0);
	pid = fork();
	if (pid == 0) {
		if (daemon(0, 0) != 0)
			_exit(1);
		word = fixture_echo(fd) ? 'k' : 'n';
		_exit(write(report[1], &word, 1) != 1);
	}
	EXPECT(close(fd) == 0 && close(report[1]) == 0);
	EXPECT(child_exits_with_0(pid));
	EXPECT(read(report[0], &word, 1) == 1 && word == 'k');
}

/* PROBE_ROUNDS times: a child lives on, and its parent becomes another program with the same process id. */
static void forked_then_executed(const struct fixture *fixture)
{
	const char *rounds = getenv("PROBE_ROUNDS");
	int fd = fixture_socket(fixture), left = rounds != NULL ? atoi(rounds) : 1;
	char address[INET_ADDRSTRLEN], port[8], number[16];
	pid_t pid;

	EXPECT(fixture_echo(fd));
	if (left == 0)
		return;
	signal(SIGCHLD, SIG_IGN);
	pid = fork();
	if (pid == 0) {
		sleep(1);
		_exit(0);
	}
	EXPECT(pid > 0);
	snprintf(number, sizeof(number), "%d", left - 1);
	EXPECT(setenv("PROBE_ROUNDS", number, 1) == 0);
	inet_ntop(AF_INET, &fixture->peer.sin_addr, address, sizeof(address));
	snprintf(port, sizeof(port), "%d", ntohs(fixture->peer.sin_port));
	execl("/proc/self/exe", "preload_probe", "forked_then_executed", address, port, NULL);
	expect(false, "exec");
}

const struct fixture_case cases_children[] = {
        {"commands", system_popen_and_spawn_keep_socket_usable},
        {"vfork_child_tidies_up", vfork_child_tidies_up},
        {"forked", fork_leaves_parent_socket_usable},
        {"fork_and_leave", fork_and_leave},
        {"raw_clone", raw_clone},
        {"cloned", clone_child_leaves_parent_socket_usable},
        {"daemonized", daemon_keeps_using_earlier_socket},
        {"forked_then_executed", forked_then_executed},
        {NULL, NULL},
};
