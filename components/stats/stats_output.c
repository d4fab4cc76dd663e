/* stats_output - files that other users are not to see: packets, reports. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vma/stats_read.h>

static int output_check_owner_and_truncate(int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return 0;
	if (st.st_uid != geteuid() || st.st_nlink != 1)
		return -EPERM;
	if (fchmod(fd, 0600) < 0 || ftruncate(fd, 0) < 0)
		return -errno;
	return 0;
}

int vma_stats_open_output(const char *path)
{
	const int fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC, 0600);
	int rc;

	if (fd < 0)
		return -errno;
	rc = output_check_owner_and_truncate(fd);
	if (rc < 0)
		close(fd);
	return rc < 0 ? rc : fd;
}
