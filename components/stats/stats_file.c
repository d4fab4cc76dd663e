/*
 * stats_file - DIR/vmastat.PID: made, told from a leftover, removed.
 *
 * The directory is usually /tmp, so nothing there is trusted. No link is followed, and nothing is opened that is not a
 * plain file. Nothing is unlinked unless it was checked to be ours or dead. A live file is one whose lock is held. A
 * pid says less, because containers that share the directory have the same pids.
 *
 * open and close are made by number: in libvma.so the plain names lead back into the library.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "stats_priv.h"

#define TRIES 4
#define HELD_TRIES 10
#define HELD_WAIT_MS 2

static int open_file(const char *path, int flags)
{
	long fd = syscall(SYS_openat, AT_FDCWD, path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);

	return fd >= 0 ? (int)fd : -errno;
}

static void stats_close_file(int fd)
{
	syscall(SYS_close, fd);
}

static bool path_names_same_file(const char *path, const struct stat *file)
{
	struct stat st;

	return lstat(path, &st) == 0 && st.st_dev == file->st_dev && st.st_ino == file->st_ino;
}

int stats_file_remove_leftover(const char *path)
{
	int fd = open_file(path, O_RDONLY), rc = -EEXIST;
	struct stat st;

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	/* While we hold the lock of this file nobody else may unlink it, so the path cannot change hands in between. */
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0)
		rc = !path_names_same_file(path, &st) || unlink(path) == 0 ? 0 : -errno;
	stats_close_file(fd);
	return rc;
}

/*
 * A process that has executed another program keeps its pid, and what that program had forked a moment before may still
 * hold the lock: until its first instructions (vma_stats_detach_from_parent_after_fork).
 */
static int remove_stale_stats_file_with_retries(const char *path)
{
	const struct timespec pause = {.tv_nsec = HELD_WAIT_MS * 1000000L};
	int rc = stats_file_remove_leftover(path);

	for (int i = 0; rc == -EEXIST && i < HELD_TRIES; i++) {
		syscall(SYS_nanosleep, &pause, NULL);
		rc = stats_file_remove_leftover(path);
	}
	return rc;
}

/* An open, locked file that is what the path names, or -errno. */
static int create_locked_stats_file(const char *path, struct stat *st)
{
	for (int i = 0; i < TRIES; i++) {
		int fd = open_file(path, O_RDWR | O_CREAT | O_EXCL), rc;

		/* Before it is locked another process may take it for a leftover and unlink it: then once more. */
		if (fd >= 0) {
			if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, st) == 0 && path_names_same_file(path, st))
				return fd;
			stats_close_file(fd);
			continue;
		}
		if (fd != -EEXIST)
			return fd;
		rc = remove_stale_stats_file_with_retries(path);
		if (rc < 0)
			return rc;
	}
	return -EEXIST;
}

/* Absolute, so that a chdir of the program does not lose it. */
static int stats_file_make_path(struct stats_file *file, const char *dir)
{
	char real[PATH_MAX];
	int n;

	file->owner = getpid();
	snprintf(file->path, sizeof(file->path), "%s", dir); /* for the message, if it does not even exist */
	if (realpath(dir, real) == NULL)
		return -errno;
	n = snprintf(file->path, sizeof(file->path), "%s/vmastat.%d", real, (int)file->owner);
	return (size_t)n < sizeof(file->path) ? 0 : -ENAMETOOLONG;
}

int stats_file_create(struct stats_file *file, const char *dir)
{
	int rc = stats_file_make_path(file, dir), fd;
	struct stat st;

	file->held.fd = -1;
	if (rc < 0)
		return rc;
	fd = create_locked_stats_file(file->path, &st);
	if (fd < 0)
		return fd;
	rc = stats_fd_take_over_and_move_high(&file->held, fd);
	if (rc < 0)
		unlink(file->path);
	return rc;
}

/* The kernel would end a process that may write no such file (SIGXFSZ). */
int stats_file_write_locator(struct stats_file *file, const struct stats_locator *locator)
{
	struct rlimit limit;
	long n;

	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < sizeof(*locator))
		return -EFBIG;
	n = syscall(SYS_pwrite64, file->held.fd, locator, sizeof(*locator), 0L);
	if (n < 0)
		return -errno;
	return (size_t)n == sizeof(*locator) ? 0 : -ENOSPC;
}

void stats_file_remove(struct stats_file *file)
{
	const struct stat ours = {.st_dev = file->held.dev, .st_ino = file->held.ino};

	if (file->held.fd < 0)
		return;
	/* The path may be somebody else's by now (chroot). */
	if (file->owner == getpid() && path_names_same_file(file->path, &ours))
		unlink(file->path);
	stats_fd_close_if_still_ours(&file->held);
}
