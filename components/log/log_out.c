/*
 * log_out - where lines go: stderr, or a file that keeps its descriptor number.
 *
 * System calls are made by number throughout: in libvma.so the plain names lead back into the library.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

#include "log_priv.h"

#define FILE_FD_MIN 1000 /* out of the way of programs that count on small numbers */
#define FULL_WAIT_MSEC 10
#define SIGNAL_BIT(signo) (1ull << ((signo)-1))
#define SIGNALS_OF_WRITE (SIGNAL_BIT(SIGPIPE) | SIGNAL_BIT(SIGXFSZ))

/* Read by every thread that logs. */
static _Atomic int log_out_fd = STDERR_FILENO;
static _Atomic unsigned log_out_details;
static _Atomic bool log_out_colors;
static _Atomic unsigned log_lost_lines;

/* Of init and fini: the number that the file has, -1: none yet; and what we put there. */
static int file_fd = -1;
static dev_t file_dev;
static ino_t file_ino;

/* What was stderr when the process started; 0: nothing was. */
static dev_t stderr_dev;
static ino_t stderr_ino;

__attribute__((constructor)) static void record_stderr_file(void)
{
	struct stat st;

	if (fstat(STDERR_FILENO, &st) == 0) {
		stderr_dev = st.st_dev;
		stderr_ino = st.st_ino;
	}
}

/*
 * A program that has closed its stderr may get the number for a connection, and a line must not go to the peer. A
 * network socket that was stderr from the start (inetd) is wanted as such.
 */
static bool stderr_number_was_reused(void)
{
	struct stat st;
	int domain = AF_UNIX;
	socklen_t len = sizeof(domain);

	return syscall(SYS_getsockopt, STDERR_FILENO, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain != AF_UNIX &&
	       fstat(STDERR_FILENO, &st) == 0 && (st.st_dev != stderr_dev || st.st_ino != stderr_ino);
}

static bool is_terminal(int fd)
{
	struct termios termios;

	return syscall(SYS_ioctl, fd, TCGETS, &termios) == 0;
}

static void log_wait_writable(int fd)
{
	struct pollfd pollfd = {.fd = fd, .events = POLLOUT};
	struct timespec timeout = {.tv_nsec = FULL_WAIT_MSEC * 1000000L};

	syscall(SYS_ppoll, &pollfd, 1, &timeout, NULL, 0);
}

static int log_write_all(int fd, const char *bytes, size_t len)
{
	bool waited = false;

	while (len > 0) {
		long n = syscall(SYS_write, fd, bytes, len);
		if (n > 0) {
			bytes += n;
			len -= (size_t)n;
		} else if (n == 0) {
			return -EIO;
		} else if (errno == EAGAIN && !waited) {
			log_wait_writable(fd);
			waited = true;
		} else if (errno != EINTR) {
			return -errno;
		}
	}
	return 0;
}

/*
 * A reader that has gone (SIGPIPE) or a file size limit (SIGXFSZ) must not end the program because of our line. The
 * signal is sent to the writing thread: keep it blocked, and take it back if the write raised it and none was pending
 * before. One can have been pending only where it was blocked before.
 */
static int write_without_signals(int fd, const char *bytes, size_t len)
{
	const uint64_t block = SIGNALS_OF_WRITE;
	uint64_t before = 0, pending = 0;
	int rc;

	if (fd == STDERR_FILENO && stderr_number_was_reused())
		return 0;
	syscall(SYS_rt_sigprocmask, SIG_BLOCK, &block, &before, sizeof(block));
	if ((before & block) != 0)
		syscall(SYS_rt_sigpending, &pending, sizeof(pending));
	rc = log_write_all(fd, bytes, len);
	if (rc == -EPIPE || rc == -EFBIG) {
		const uint64_t raised = SIGNAL_BIT(rc == -EPIPE ? SIGPIPE : SIGXFSZ) & ~pending;
		const struct timespec at_once = {0};
		if (raised != 0)
			syscall(SYS_rt_sigtimedwait, &raised, NULL, &at_once, sizeof(raised));
	}
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof(before));
	return rc;
}

/* The number is taken out first, so of all threads one reports it. */
static void report_lost_lines(int fd)
{
	unsigned lost = atomic_exchange_explicit(&log_lost_lines, 0, memory_order_relaxed);
	char text[96];
	int len;

	if (lost == 0)
		return;
	/* The newline first: the line that was given up may stand there by half. */
	len = snprintf(text, sizeof(text), "\nVMA WARNING: %u lines of the log were lost: its output was full\n", lost);
	if (write_without_signals(fd, text, (size_t)len) != 0)
		atomic_fetch_add_explicit(&log_lost_lines, lost, memory_order_relaxed);
}

/* The file failed in the middle of things. The thread that turns the log back to stderr says so. */
static void fall_back_to_stderr(int fd, int error)
{
	char text[160];
	int len;

	if (!atomic_compare_exchange_strong_explicit(&log_out_fd, &fd, STDERR_FILENO, memory_order_relaxed,
	                                             memory_order_relaxed))
		return;
	len = snprintf(text, sizeof(text), "VMA WARNING: cannot write to VMA_LOG_FILE: %s; the log goes to stderr\n",
	               strerrordesc_np(error));
	write_without_signals(STDERR_FILENO, text, (size_t)len);
}

void log_out_write_line(struct log_line *line, enum vma_log_level level)
{
	int fd = atomic_load_explicit(&log_out_fd, memory_order_relaxed);
	bool colored = atomic_load_explicit(&log_out_colors, memory_order_relaxed) && log_line_color(level) != NULL &&
	               is_terminal(fd);
	size_t len;
	const char *bytes = log_line_add_head_and_newline(
	        line, level, atomic_load_explicit(&log_out_details, memory_order_relaxed), colored, &len);
	int rc;

	if (atomic_load_explicit(&log_lost_lines, memory_order_relaxed) != 0)
		report_lost_lines(fd);
	rc = write_without_signals(fd, bytes, len);
	if (rc == 0)
		return;
	if (fd != STDERR_FILENO && rc != -EAGAIN) {
		fall_back_to_stderr(fd, -rc);
		rc = write_without_signals(STDERR_FILENO, bytes, len);
	}
	if (rc == -EAGAIN)
		atomic_fetch_add_explicit(&log_lost_lines, 1, memory_order_relaxed);
}

/* A single "%d" in the name becomes the pid; several, or any other %, are part of the name. */
static int log_expand_file_name(const char *name, char *path, size_t size)
{
	const char *mark = strstr(name, "%d");
	int n;

	if (mark != NULL && strstr(mark + 2, "%d") == NULL)
		n = snprintf(path, size, "%.*s%ld%s", (int)(mark - name), name, syscall(SYS_getpid), mark + 2);
	else
		n = snprintf(path, size, "%s", name);
	return n >= 0 && (size_t)n < size ? 0 : -ENAMETOOLONG;
}

/* O_NONBLOCK: a FIFO without reader is an error here and not a program that hangs. */
static int open_log_file_with_flags(const char *path, int more)
{
	long fd = syscall(SYS_openat, AT_FDCWD, path,
	                  O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | more, 0644);

	return fd >= 0 ? (int)fd : -errno;
}

/* A link that another user has made is not followed; /dev/stderr is one of root's. */
static int log_open_path(const char *path)
{
	struct stat link;
	int fd = open_log_file_with_flags(path, O_NOFOLLOW);

	if (fd == -ELOOP && lstat(path, &link) == 0 && (link.st_uid == 0 || link.st_uid == geteuid()))
		fd = open_log_file_with_flags(path, 0);
	return fd;
}

/* Is the number still ours? A program may have closed every descriptor above 2 and got this one for something else. */
static bool file_fd_is_ours(void)
{
	struct stat st;

	return file_fd >= 0 && fstat(file_fd, &st) == 0 && st.st_dev == file_dev && st.st_ino == file_ino;
}

/*
 * Puts the open file `fd` at file_fd and closes `fd`. A thread in the middle of a line holds that number already: it
 * is replaced atomically (dup3) and never closed while the log is in use, or the line could end in a file that the
 * program has just opened.
 */
static int install_log_fd(int fd)
{
	struct stat st;
	long kept;

	if (file_fd_is_ours())
		kept = syscall(SYS_dup3, fd, file_fd, O_CLOEXEC);
	else
		kept = syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, FILE_FD_MIN);
	if (kept < 0)
		kept = fd; /* a low RLIMIT_NOFILE */
	if (fstat((int)kept, &st) < 0) {
		int rc = -errno;
		syscall(SYS_close, fd);
		return rc;
	}
	file_fd = (int)kept;
	file_dev = st.st_dev;
	file_ino = st.st_ino;
	if (kept != fd)
		syscall(SYS_close, fd);
	return 0;
}

static int log_use_file(const char *name)
{
	char path[PATH_MAX];
	int rc = log_expand_file_name(name, path, sizeof(path));

	if (rc == 0)
		rc = log_open_path(path);
	if (rc >= 0)
		rc = install_log_fd(rc);
	if (rc == 0)
		atomic_store_explicit(&log_out_fd, file_fd, memory_order_relaxed);
	return rc;
}

static void log_use_stderr(void)
{
	atomic_store_explicit(&log_out_fd, STDERR_FILENO, memory_order_relaxed);
	if (file_fd_is_ours()) {
		int null = log_open_path("/dev/null");
		if (null >= 0)
			install_log_fd(null); /* gives the file back and keeps the number, see there */
	}
}

void vma_log_set_details(unsigned details)
{
	atomic_store_explicit(&log_out_details, details, memory_order_relaxed);
}

int vma_log_init(const struct vma_log_attr *attr)
{
	int saved = errno, rc = 0;

	atomic_store_explicit(&log_out_details, attr->details, memory_order_relaxed);
	atomic_store_explicit(&log_out_colors, attr->colors, memory_order_relaxed);
	vma_log_set_level(attr->level);
	if (attr->file != NULL && attr->file[0] != '\0')
		rc = log_use_file(attr->file);
	if (rc != 0 || attr->file == NULL || attr->file[0] == '\0')
		log_use_stderr();
	if (rc != 0)
		vma_log_once(VMA_LOG_WARN, "cannot open VMA_LOG_FILE '%s': %s; the log goes to stderr", attr->file,
		             strerrordesc_np(-rc));
	if (attr->level > VMA_LOG_COMPILED)
		vma_log_once(VMA_LOG_WARN, "VMA_TRACELEVEL %s is compiled into libvma-debug.so only; here it means %s",
		             vma_log_level_name(attr->level), vma_log_level_name(VMA_LOG_COMPILED));
	errno = saved;
	return rc;
}

int vma_log_fd(void)
{
	return file_fd;
}

void vma_log_fini(void)
{
	int saved = errno;

	atomic_store_explicit(&log_out_fd, STDERR_FILENO, memory_order_relaxed);
	if (file_fd_is_ours())
		syscall(SYS_close, file_fd);
	file_fd = -1;
	errno = saved;
}
