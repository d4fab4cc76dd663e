/*
 * stats_fd - the descriptors that a segment holds open.
 *
 * open and close are made by number: in libvma.so the plain names lead back into the library.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stats_priv.h"

#define FD_MIN 1000 /* out of the way of programs that count on small numbers */

/* Takes fd over, also if it fails. A lock belongs to the open file, which lives on under the new number. */
int stats_fd_take_over_and_move_high(struct stats_fd *held, int fd)
{
	const long high = syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, FD_MIN);
	struct stat st;

	if (high >= 0) {
		syscall(SYS_close, fd);
		fd = (int)high;
	}
	if (fstat(fd, &st) < 0) {
		const int rc = -errno;

		syscall(SYS_close, fd);
		return rc;
	}
	*held = (struct stats_fd){.fd = fd, .dev = st.st_dev, .ino = st.st_ino};
	return 0;
}

/* The number may be the program's by now: it closed all that it did not know. */
void stats_fd_close_if_still_ours(struct stats_fd *held)
{
	struct stat st;

	if (held->fd >= 0 && fstat(held->fd, &st) == 0 && st.st_dev == held->dev && st.st_ino == held->ino)
		syscall(SYS_close, held->fd);
	held->fd = -1;
}
