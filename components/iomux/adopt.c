/*
 * adopt - the kernel's set becomes ours, the moment it gets the first member that is.
 *
 * Until then the library has not looked at it. So it asks the kernel (/proc/self/fdinfo) how many members the set has,
 * and which other sets hold it. Waiters of those sets are to see its offloaded members, too, so they become ours in
 * their turn. Other numbers of the same set are recognised by kcmp. To find either, the numbers by which sets were
 * made, copied and used are noted; a wrong note costs a look.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/sock_os.h>

#include "iomux_priv.h"

#define RECORDED_WORDS (VMA_FD_LOW / 64)
#define LINE_MAX_BYTES 256

static pthread_mutex_t adopt_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t recorded_epfds[RECORDED_WORDS] __attribute__((section(".bss.far")));

void vma_iomux_record_epoll_fd(int epfd)
{
	uint64_t bit = 1ULL << ((unsigned)epfd % 64);

	if ((unsigned)epfd < VMA_FD_LOW &&
	    !(atomic_load_explicit(&recorded_epfds[epfd / 64], memory_order_relaxed) & bit))
		atomic_fetch_or_explicit(&recorded_epfds[epfd / 64], bit, memory_order_relaxed);
}

void vma_iomux_record_epoll_fd_dup(int from, int to)
{
	if ((unsigned)from < VMA_FD_LOW &&
	    atomic_load_explicit(&recorded_epfds[from / 64], memory_order_relaxed) & 1ULL << ((unsigned)from % 64))
		vma_iomux_record_epoll_fd(to);
}

/* ---- what the kernel says of a set ---- */

struct fdinfo {
	long fd;
	char text[4096];
	size_t from, n;
};

static bool epoll_fdinfo_open(struct fdinfo *info, int epfd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", epfd);
	info->fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
	info->from = info->n = 0;
	return info->fd >= 0;
}

/* Bytes that are left over move to the front, and more are read behind them. */
static bool epoll_fdinfo_read_more(struct fdinfo *info)
{
	long got;

	memmove(info->text, info->text + info->from, info->n - info->from);
	info->n -= info->from;
	info->from = 0;
	if (info->n == sizeof(info->text) - 1)
		return false;
	got = syscall(SYS_read, info->fd, info->text + info->n, sizeof(info->text) - 1 - info->n);
	if (got <= 0)
		return false;
	info->n += (size_t)got;
	return true;
}

static char *epoll_fdinfo_next_line(struct fdinfo *info)
{
	char *line, *end;

	while ((end = memchr(info->text + info->from, '\n', info->n - info->from)) == NULL)
		if (!epoll_fdinfo_read_more(info))
			return NULL;
	*end = '\0';
	line = info->text + info->from;
	info->from = (size_t)(end - info->text) + 1;
	return line;
}

/* The next member of the set; false: that was all. "tfd: 5 events: 19 data: 5 pos:0 ino:1 sdev:2" */
static bool epoll_fdinfo_next_member(struct fdinfo *info, int *fd, struct epoll_event *event)
{
	const char *line;
	unsigned events;
	unsigned long long data;

	while ((line = epoll_fdinfo_next_line(info)) != NULL)
		if (sscanf(line, "tfd: %d events: %x data: %llx", fd, &events, &data) == 3) {
			*event = (struct epoll_event){.events = events, .data.u64 = data};
			return true;
		}
	return false;
}

static uint32_t epoll_count_members_by_fdinfo(int epfd)
{
	struct epoll_event event;
	struct fdinfo info;
	uint32_t n = 0;
	int fd;

	if (!epoll_fdinfo_open(&info, epfd))
		return 1; /* perhaps */
	while (epoll_fdinfo_next_member(&info, &fd, &event))
		n++;
	syscall(SYS_close, info.fd);
	return n;
}

/* Whether the set behind `outer` holds `inner`, and how. */
static bool epoll_holds_fd(int outer, int inner, struct epoll_event *event)
{
	struct fdinfo info;
	bool found = false;
	int fd;

	if (!epoll_fdinfo_open(&info, outer))
		return false;
	while (!found && epoll_fdinfo_next_member(&info, &fd, event))
		found = fd == inner;
	syscall(SYS_close, info.fd);
	return found;
}

/* ---- becoming ours ---- */

static int epoll_adopt_kernel_epfd_locked(int epfd, struct epoll_set **out);

static void epoll_adopt_outer_set(int outer, int epfd, struct epoll_set *set)
{
	struct epoll_event event;
	struct epoll_set *around = epoll_set_find(outer);

	if (!epoll_holds_fd(outer, epfd, &event))
		return;
	if (around != NULL || epoll_adopt_kernel_epfd_locked(outer, &around) == 0)
		epoll_ctl_move_fd_from_kernel_to_set(around, outer, &set->file, epfd, &event);
}

static bool is_same_epoll(int a, int b)
{
	long self = syscall(SYS_getpid);

	return syscall(SYS_kcmp, self, self, KCMP_FILE, (unsigned long)a, (unsigned long)b) == 0;
}

static void epoll_adopt_dup_or_outer_of_set(int fd, int epfd, struct epoll_set *set)
{
	if (fd == epfd)
		return;
	if (epoll_set_find(fd) == NULL && is_same_epoll(fd, epfd))
		vma_fd_install(fd, &set->file);
	else
		epoll_adopt_outer_set(fd, epfd, set);
}

static void epoll_adopt_all_recorded_outers(int epfd, struct epoll_set *set)
{
	for (unsigned i = 0; i < RECORDED_WORDS; i++)
		for (uint64_t left = atomic_load_explicit(&recorded_epfds[i], memory_order_relaxed); left != 0;
		     left &= left - 1)
			epoll_adopt_dup_or_outer_of_set((int)(i * 64 + (unsigned)__builtin_ctzll(left)), epfd, set);
}

/* Loops between sets the kernel has refused, so this ends. */
static int epoll_adopt_kernel_epfd_locked(int epfd, struct epoll_set **out)
{
	struct epoll_set *set = epoll_set_create_around_epfd(epfd);
	int rc;

	if (set == NULL)
		return -ENOMEM;
	atomic_store(&set->n_os, epoll_count_members_by_fdinfo(epfd));
	rc = vma_fd_install(epfd, &set->file);
	if (rc < 0) {
		vma_file_put(&set->file);
		return rc;
	}
	vma_iomux_record_epoll_fd(epfd);
	epoll_adopt_all_recorded_outers(epfd, set);
	epoll_wake_kernel_waiters(set, epfd);
	*out = set;
	return 0;
}

/* A thread of the parent's may have been here, and is not in the child. */
static __attribute__((cold)) void adopt_lock_reset(void)
{
	pthread_mutex_init(&adopt_lock, NULL);
}

static void epoll_adopt_register_atfork(void)
{
	pthread_atfork(NULL, NULL, adopt_lock_reset);
}

int epoll_set_find_or_adopt(int epfd, struct epoll_set **out)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int rc = 0;

	pthread_once(&once, epoll_adopt_register_atfork);
	pthread_mutex_lock(&adopt_lock);
	*out = epoll_set_find(epfd);
	if (*out == NULL)
		rc = epoll_adopt_kernel_epfd_locked(epfd, out);
	pthread_mutex_unlock(&adopt_lock);
	return rc;
}
