/* flags.c - O_NONBLOCK and O_ASYNC: by FIONBIO, FIOASYNC and F_SETFL, of which the kernel's socket hears first. */
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>

#include <vma/inet_flags.h>
#include <vma/sock_os.h>

static int flags_check_async(const struct vma_inet_flags_ops *ops, struct vma_file *file, bool on)
{
	return on ? ops->check_async(file) : 0;
}

int vma_inet_ioctl_flag(const struct vma_inet_flags_ops *ops, struct vma_file *file, int fd, unsigned long request,
                        void *arg)
{
	int on, rc = 0;

	if (request == FIOASYNC && vma_memcpy_or_efault(&on, arg, sizeof(on)) == 0)
		rc = flags_check_async(ops, file, on != 0);
	if (rc < 0)
		return rc;
	ops->lock(file);
	rc = vma_inet_os_ioctl(fd, request, arg);
	if (rc == 0 && vma_memcpy_or_efault(&on, arg, sizeof(on)) == 0) {
		if (request == FIONBIO)
			ops->set_nonblocking(file, on != 0);
		else
			ops->set_async(file, on != 0);
	}
	if (rc == 0)
		ops->changed(file);
	pthread_mutex_unlock(&file->lock);
	return rc;
}

int vma_inet_fcntl(const struct vma_inet_flags_ops *ops, struct vma_file *file, int fd, int cmd, void *arg)
{
	const long flags = (long)arg;
	int rc = cmd == F_SETFL ? flags_check_async(ops, file, (flags & O_ASYNC) != 0) : 0;

	if (rc < 0)
		return rc;
	ops->lock(file);
	rc = vma_os.fcntl(fd, cmd, arg);
	if (rc < 0)
		rc = -errno;
	if (rc >= 0 && cmd == F_SETFL) {
		ops->set_nonblocking(file, (flags & O_NONBLOCK) != 0);
		ops->set_async(file, (flags & O_ASYNC) != 0);
		ops->changed(file);
	}
	pthread_mutex_unlock(&file->lock);
	return rc;
}
