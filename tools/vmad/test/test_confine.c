/* What a confined process can do, and what it cannot. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../confine.h"

/* In a child, as it is for good: the number of the first check that fails, 0: none. */
static int run_checks_in_confined_child(int (*checks)(void))
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0)
		_exit(vmad_confine() == 0 ? checks() : 255);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static int check_allowed_calls_work(void)
{
	int status, fd = memfd_create("test", MFD_CLOEXEC), pair[2];
	pid_t pid;

	if (fd < 0 || ftruncate(fd, 4096) != 0)
		return 1;
	if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED)
		return 2;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0 || send(pair[0], "a", 1, 0) != 1)
		return 3;
	if (socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0) < 0 || epoll_create1(0) < 0)
		return 4;
	if (open("/proc/self/status", O_RDONLY) < 0 || open("/nowhere", O_RDONLY) >= 0 || errno != ENOENT)
		return 5;
	pid = fork();
	if (pid == 0)
		_exit(7);
	if (pid < 0 || waitpid(pid, &status, 0) != pid || WEXITSTATUS(status) != 7)
		return 6;
	if (syscall(SYS_pidfd_open, getpid(), 0) < 0)
		return 8;
	return 0;
}

static int check_forbidden_calls_fail(void)
{
	char *argv[] = {"true", NULL};

	if (execv("/bin/true", argv) != -1 || errno != EPERM)
		return 1;
	if (mount("none", "/", NULL, MS_REMOUNT | MS_BIND, NULL) != -1 || errno != EPERM)
		return 3;
	if (unshare(CLONE_NEWUSER) != -1 || errno != EPERM)
		return 4;
	if (syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL) != -1 || errno != EPERM)
		return 2;
	if (syscall(SYS_io_uring_setup, 1, NULL) != -1 || errno != EPERM)
		return 5;
	if (syscall(SYS_init_module, NULL, 0, "") != -1 || errno != EPERM)
		return 6;
	if (setuid(getuid()) != -1 || errno != EPERM)
		return 7;
	if (syscall(SYS_process_vm_writev, getppid(), NULL, 0, NULL, 0, 0) != -1 || errno != EPERM)
		return 8;
	return 0;
}

/* As the kernel says it. */
static int check_seccomp_and_no_new_privs_set(void)
{
	char line[256];
	int found = 0;
	FILE *file = fopen("/proc/self/status", "r");

	while (file != NULL && fgets(line, sizeof(line), file) != NULL)
		found += strcmp(line, "Seccomp:\t2\n") == 0 || strcmp(line, "NoNewPrivs:\t1\n") == 0;
	return found == 2 ? 0 : 1;
}

static void test_a_confined_process_does_its_work(void **state)
{
	(void)state;
	assert_int_equal(run_checks_in_confined_child(check_allowed_calls_work), 0);
}

static void test_a_confined_process_does_nothing_else(void **state)
{
	(void)state;
	assert_int_equal(run_checks_in_confined_child(check_forbidden_calls_fail), 0);
}

static void test_the_kernel_says_that_it_is_confined(void **state)
{
	(void)state;
	assert_int_equal(run_checks_in_confined_child(check_seccomp_and_no_new_privs_set), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_confined_process_does_its_work),
	        cmocka_unit_test(test_a_confined_process_does_nothing_else),
	        cmocka_unit_test(test_the_kernel_says_that_it_is_confined),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
