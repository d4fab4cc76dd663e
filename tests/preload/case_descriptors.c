/* case_descriptors - copies, ends and reuse of numbers; the library's own stay. */
#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <vma/raw_call.h>

#include "fixture.h"

#define REUSES 1000

static void dup_copies_of_socket_stay_usable(const struct fixture *fixture)
{
	int fd = fixture_socket(fixture), copies[4];

	copies[0] = dup(fd);
	copies[1] = dup2(fd, 50);
	copies[2] = dup3(fd, 51, O_CLOEXEC);
	copies[3] = fcntl(fd, F_DUPFD_CLOEXEC, 60);
	EXPECT(copies[1] == 50 && copies[2] == 51 && copies[3] >= 60);
	EXPECT(close(fd) == 0);
	for (int i = 0; i < 4; i++) {
		EXPECT(fixture_get_socket_offload_state(copies[i]) == 1);
		EXPECT(fixture_echo(copies[i]));
		EXPECT(close(copies[i]) == 0);
		EXPECT(send(copies[i], "x", 1, 0) == -1 && errno == EBADF);
		EXPECT(fixture_get_socket_offload_state(copies[i]) == -1);
	}
}

/* What stood under the number ends, and what comes is not taken for it. */
static void dup2_over_socket_replaces_it(const struct fixture *fixture)
{
	int fd = fixture_socket(fixture), other = fixture_socket(fixture), pair[2];
	char byte;

	EXPECT(pipe(pair) == 0);
	EXPECT(dup2(pair[0], fd) == fd);
	EXPECT(fixture_get_socket_offload_state(fd) == 0);
	EXPECT(write(pair[1], "p", 1) == 1 && read(fd, &byte, 1) == 1 && byte == 'p');
	EXPECT(dup2(other, fd) == fd);
	EXPECT(fixture_get_socket_offload_state(fd) == 1 && fixture_echo(fd));
	EXPECT(dup2(fd, fd) == fd && fixture_echo(fd));
	EXPECT(dup2(-1, fd) == -1 && errno == EBADF);
	EXPECT(fixture_echo(fd) && fixture_echo(other));
}

static void close_range_closes_only_sockets_in_range(const struct fixture *fixture)
{
	int fds[8];

	for (int i = 0; i < 8; i++)
		fds[i] = fixture_socket(fixture);
	EXPECT(close_range(fds[2], fds[4], 0) == 0);
	for (int i = 0; i < 8; i++)
		expect(fixture_get_socket_offload_state(fds[i]) == (i >= 2 && i <= 4 ? -1 : 1),
		       "only the range is closed");
	EXPECT(close_range(5, 4, 0) == -1 && errno == EINVAL);
	EXPECT(fixture_echo(fds[0]) && fixture_echo(fds[7]));
	closefrom(fds[1]);
	for (int i = 1; i < 8; i++)
		EXPECT(fcntl(fds[i], F_GETFD) == -1 && errno == EBADF &&
		       fixture_get_socket_offload_state(fds[i]) == -1);
	EXPECT(fixture_echo(fds[0]));
	EXPECT(close_range(0, ~0U, 0) == 0);
	EXPECT(fcntl(fds[0], F_GETFD) == -1 && errno == EBADF);
	/* What the library needs is still there. */
	EXPECT(fixture_socket(fixture) == 0);
	EXPECT(fixture_echo(0));
}

/* As daemons do that know nothing of close_range. */
static void close_all(const struct fixture *fixture)
{
	int fd = fixture_socket(fixture), refused = 0;

	EXPECT(fixture_echo(fd));
	for (int i = 3; i < 65536; i++) {
		bool open = syscall(SYS_fcntl, i, F_GETFD) >= 0;

		if (close(i) < 0 && open) {
			EXPECT(errno == EBADF);
			EXPECT(syscall(SYS_fcntl, i, F_GETFD) >= 0);
			EXPECT(dup2(1, i) == -1 && errno == EBADF);
			expect(i >= 100, "the library's own numbers are out of the way");
			refused++;
		}
	}
	EXPECT(refused > 0);
	fd = fixture_socket(fixture);
	EXPECT(fd == 3 && fixture_echo(fd));
}

/* ---- numbers that come back ---- */

/* Closed where nobody sees it, and given out anew by one call after the other. */
static int open_new_fd_by_one_of_seven_calls(int way)
{
	int fds[2];

	switch (way % 7) {
	case 0:
		return open("/dev/null", O_RDWR);
	case 1:
		return socket(AF_UNIX, SOCK_DGRAM, 0);
	case 2:
		EXPECT(pipe(fds) == 0);
		EXPECT(close(fds[1]) == 0);
		return fds[0];
	case 3:
		return dup(1);
	case 4:
		return fcntl(1, F_DUPFD, 0);
	case 5:
		EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
		EXPECT(close(fds[1]) == 0);
		return fds[0];
	default:
		return openat(AT_FDCWD, "/dev/null", O_RDWR);
	}
}

static void reused_after_raw_close(const struct fixture *fixture)
{
	int holder = fixture_socket(fixture); /* the interface stays in use: taking it anew takes time */

	for (int i = 0; i < REUSES; i++) {
		int fd = fixture_socket(fixture), other;

		EXPECT(raw_syscall(SYS_close, fd, 0, 0, 0, 0) == 0);
		other = open_new_fd_by_one_of_seven_calls(i);
		EXPECT(other == fd);
		EXPECT(fixture_get_socket_offload_state(other) == 0);
		EXPECT(close(other) == 0);
	}
	EXPECT(fixture_echo(holder));
	EXPECT(fixture_echo(fixture_socket(fixture)));
}

/* What offloads by them is lost, and what the kernel has is still the kernel's. Threads of the library sleep. */
static void idle_after_raw_close_of_all(const struct fixture *fixture)
{
	struct timespec before, after;
	long cpu_ms;

	EXPECT(fixture_echo(fixture_socket(fixture)));
	EXPECT(raw_syscall(SYS_close_range, 3, ~0U, 0, 0, 0) == 0);
	usleep(100000);
	EXPECT(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before) == 0);
	usleep(1000000);
	EXPECT(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after) == 0);
	cpu_ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
	fprintf(stderr, "%ld ms of processor time in a second\n", cpu_ms);
	EXPECT(cpu_ms < 100);
}

const struct fixture_case cases_descriptors[] = {
        {"copies_share", dup_copies_of_socket_stay_usable},
        {"put_over", dup2_over_socket_replaces_it},
        {"ranges", close_range_closes_only_sockets_in_range},
        {"close_all", close_all},
        {"reused_after_raw_close", reused_after_raw_close},
        {"idle_after_raw_close_of_all", idle_after_raw_close_of_all},
        {NULL, NULL},
};
