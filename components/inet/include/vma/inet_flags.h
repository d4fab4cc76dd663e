/*
 * inet_flags - O_NONBLOCK and O_ASYNC of a socket, set by ioctl (FIONBIO, FIOASYNC) or by fcntl (F_SETFL).
 *
 * Threads: any, inside. The file's lock is held while the kernel is asked and the socket follows.
 * Progress: no call waits, but for the lock.
 * Memory: the caller's.
 * Example: test/test_flags.c.
 */
#ifndef VMA_INET_FLAGS_H
#define VMA_INET_FLAGS_H

#include <vma/inet.h>

/* What the two protocols do each in its way. */
struct vma_inet_flags_ops {
	int (*check_async)(struct vma_file *file); /* before O_ASYNC is set: 0, or the negative errno of the call */
	void (*lock)(struct vma_file *file);       /* takes file->lock */
	void (*set_nonblocking)(struct vma_file *file, bool on); /* with the lock, as the next two */
	void (*set_async)(struct vma_file *file, bool on);
	void (*changed)(struct vma_file *file); /* after all that one call changes */
};

/* request: FIONBIO or FIOASYNC. The kernel's answer, or -errno; after an error nothing has changed. */
int vma_inet_ioctl_flag(const struct vma_inet_flags_ops *ops, struct vma_file *file, int fd, unsigned long request,
                        void *arg);
/* Any cmd: the kernel's answer, or -errno. F_SETFL that succeeds changes both flags. */
int vma_inet_fcntl(const struct vma_inet_flags_ops *ops, struct vma_file *file, int fd, int cmd, void *arg);

#endif
