/* shadow.c - the kernel's socket: calls on it, and its number when the application's is another's or gone. */
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/inet.h>
#include <vma/inet_iov_iter.h>
#include <vma/sock_os.h>

/* ---- calls ---- */

int vma_inet_os_ioctl(int fd, unsigned long request, void *arg)
{
	int rc = vma_os.ioctl(fd, request, arg);

	return rc < 0 ? -errno : rc;
}

ssize_t vma_inet_os_recv(int fd, struct msghdr *msg, int flags)
{
	ssize_t len;

	vma_leave_to_block();
	len = vma_os.recvmsg(fd, msg, flags);
	if (len < 0)
		len = -errno;
	vma_enter();
	return len;
}

/* An address of length 0 is none for sendmsg, and a wrong one for sendto. */
ssize_t vma_inet_os_send(int fd, const struct msghdr *msg, int flags)
{
	ssize_t sent;

	if (vma_inet_iov_is_library_memory(msg) && msg->msg_name != NULL && msg->msg_control == NULL)
		sent = vma_os.sendto(fd, msg->msg_iov->iov_base, msg->msg_iov->iov_len, flags, msg->msg_name,
		                     msg->msg_namelen);
	else
		sent = vma_os.sendmsg(fd, msg, flags);
	return sent < 0 ? -errno : sent;
}

/* ---- its number ---- */

int vma_inet_shadow_fd(struct vma_file *file, int fd, const _Atomic int *lingering_fd)
{
	int lingering;

	if (vma_fd_lookup(fd) == file)
		return fd;
	if (!vma_file_is_closed(file))
		return atomic_load_explicit(&file->fd, memory_order_relaxed);
	lingering = atomic_load_explicit(lingering_fd, memory_order_relaxed);
	return lingering != 0 ? lingering : -1;
}

int vma_inet_dup_shadow_fd(int fd, uint64_t cookie)
{
	int copy, guarded;

	if (cookie == 0)
		return -ESTALE;
	/* Where guards are: vma_fd_move_high_and_guard has nothing to move. */
	copy = vma_os.fcntl(fd, F_DUPFD_CLOEXEC, (void *)1000L);
	if (copy < 0)
		copy = vma_os.dup(fd);
	if (copy < 0)
		return -errno;
	/* The number may have been closed unseen by us, and given out anew. */
	guarded = vma_sock_cookie(copy) == cookie ? vma_fd_move_high_and_guard(copy) : -ESTALE;
	if (guarded < 0)
		syscall(SYS_close, copy); /* the C library's is a cancellation point, and this is inside */
	else
		vma_fd_guard_only_until_fork(guarded); /* the end that it waits for is the parent's */
	return guarded;
}
