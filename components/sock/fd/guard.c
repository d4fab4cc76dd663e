/*
 * guard - the library's own descriptors: out of the way of the application's small numbers, and marked in the table. So
 * a program that closes all descriptors it does not know leaves them alone.
 *
 * One static object stands in the slots of all of them. If a guard's descriptor was closed unseen (by a raw system
 * call), the guard stands until the kernel gives the number out anew. The call that gets the number removes or replaces
 * it.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "file.h"

static const struct vma_file_ops guarded_fd_ops = {.name = "internal"};
static struct vma_file guard = {.ops = &guarded_fd_ops, .kind = VMA_FILE_INTERNAL};
/* The same, of a descriptor that a forked child closes. */
static struct vma_file parents_guard = {.ops = &guarded_fd_ops, .kind = VMA_FILE_INTERNAL};
static _Atomic bool has_parents_guards; /* there has been one: a child looks for them only then */

struct vma_file *fd_guard_file(void)
{
	return &guard;
}

int vma_fd_guard_same_number(int fd)
{
	struct vma_file *_Atomic *slot = fd_slot(fd);

	if (slot == NULL)
		return fd < 0 ? -EBADF : -ENOMEM;
	vma_fd_remove(fd); /* closed unseen: the kernel gave the number to us */
	fd_raise_highest(fd);
	atomic_store(slot, &guard);
	return fd;
}

/* As high as RLIMIT_NOFILE allows; where even that is full, it stays where it is. */
static int fd_move_to_high_number(int fd)
{
	static const int candidates[] = {1000, 500, 200, 100};

	for (size_t i = 0; i < sizeof(candidates) / sizeof(candidates[0]); i++) {
		long up = fd < candidates[i] ? syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, candidates[i]) : fd;

		if (up == fd)
			return fd;
		if (up >= 0) {
			syscall(SYS_close, fd);
			return (int)up;
		}
		if (errno != EMFILE && errno != EINVAL)
			return -errno;
	}
	return fd;
}

int vma_fd_move_high_and_guard(int fd)
{
	const int saved = errno;
	int up = fd_move_to_high_number(fd), rc;

	errno = saved;
	if (up < 0)
		return up;
	rc = vma_fd_guard_same_number(up);
	return rc < 0 && up != fd ? up : rc; /* moved, but without memory for the mark: usable all the same */
}

void vma_fd_guard_only_until_fork(int fd)
{
	struct vma_file *_Atomic *slot = fd_slot(fd);
	struct vma_file *mine = &guard;

	/* First: a fork between the two finds no mark that it does not look for. */
	atomic_store(&has_parents_guards, true);
	if (slot != NULL)
		atomic_compare_exchange_strong(slot, &mine, &parents_guard);
}

__attribute__((cold)) void fd_guards_close_parents_in_fork_child(void)
{
	if (!atomic_exchange(&has_parents_guards, false))
		return;
	for (int fd = 0; fd <= vma_fd_highest(); fd++)
		if (fd_table_peek(fd) == &parents_guard)
			vma_fd_unguard_close(fd);
}

/* The slot first: from then on the number may be the application's. */
void vma_fd_unguard_close(int fd)
{
	struct vma_file *_Atomic *slot = fd_slot(fd);
	struct vma_file *mine = &guard;
	const int saved = errno;

	if (fd < 0)
		return;
	if (slot != NULL && !atomic_compare_exchange_strong(slot, &mine, NULL)) {
		mine = &parents_guard;
		atomic_compare_exchange_strong(slot, &mine, NULL);
	}
	syscall(SYS_close, fd);
	errno = saved;
}
