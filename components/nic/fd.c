/*
 * fd - the numbers of the descriptors that a nic keeps open in the program's process.
 */
#include <sys/resource.h>

#include <vma/nic.h>

#include "os.h"

void (*vma_nic_fd_hook)(int fd, bool on);

/* Where programs do not look: they take the lowest number that is free, and some count on getting it. */
#define FIRST 1000

static int dup_fd_above_program_range(int fd)
{
	struct rlimit limit;
	int high = os_fcntl(fd, F_DUPFD_CLOEXEC, FIRST);

	/* Most processes may have 1024, so up there is little room. */
	if (high >= 0 || (errno != EINVAL && errno != EMFILE) || getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return high;
	return os_fcntl(fd, F_DUPFD_CLOEXEC, (long)(limit.rlim_cur / 2));
}

static void report_internal_fd(int fd, bool on)
{
	if (vma_nic_fd_hook != NULL)
		vma_nic_fd_hook(fd, on);
}

int nic_fd_dup(int fd)
{
	const int high = dup_fd_above_program_range(fd);

	if (high >= 0)
		report_internal_fd(high, true);
	return high;
}

int nic_fd_move_high(int fd)
{
	int high;

	if (fd < 0)
		return fd;
	high = fd >= FIRST ? fd : dup_fd_above_program_range(fd);
	if (high < 0)
		high = fd;
	else if (high != fd)
		os_close(fd);
	report_internal_fd(high, true);
	return high;
}

void nic_fd_report_not_internal(int fd)
{
	report_internal_fd(fd, false);
}

void nic_fd_close(int fd)
{
	nic_fd_report_not_internal(fd);
	os_close(fd);
}

void nic_fd_close_and_forget(int *fd)
{
	if (*fd >= 0)
		nic_fd_close(*fd);
	*fd = -1;
}
