/* ioctl.c - ioctl and fcntl: the kernel's, but where what is queued here has a better answer. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <time.h>

#include "control.h"

static int by_os(int fd, unsigned long request, void *arg)
{
	int rc = vma_os.ioctl(fd, request, arg);

	return rc < 0 ? -errno : rc;
}

/*
 * The bytes of the next datagram that recv gives, which is the shadow's where that is to be asked first. 0 is also the
 * answer when nothing is there.
 */
static int next_len(struct udp_sock *sock, int fd, void *arg)
{
	int len, os_len = 0, rc;

	vma_rails_progress(udp_rings(&sock->file));
	len = udp_front_len(sock);
	if (len < 0)
		return by_os(fd, FIONREAD, arg);
	if (atomic_load_explicit(&sock->os_attention, memory_order_relaxed)) {
		rc = by_os(fd, FIONREAD, &os_len);
		if (rc < 0)
			return rc;
		len = os_len > 0 ? os_len : len;
	}
	return vma_copy(arg, &len, sizeof(len));
}

static int set_nonblocking(struct udp_sock *sock, int fd, unsigned long request, void *arg)
{
	int on, rc;

	pthread_mutex_lock(&sock->file.lock);
	rc = by_os(fd, request, arg);
	if (rc == 0 && vma_copy(&on, arg, sizeof(on)) == 0) {
		if (request == FIONBIO)
			atomic_store(&sock->nonblocking, on != 0);
		else
			udp_set_async(sock, on != 0);
	}
	pthread_mutex_unlock(&sock->file.lock);
	return rc;
}

/* When the last datagram came that recv gave: ours, unless none has been stamped. */
static int last_stamp(const struct udp_sock *sock, int fd, unsigned long request, void *arg)
{
	uint64_t ns = atomic_load_explicit(&sock->last_stamp_ns, memory_order_relaxed);
	const struct timespec fine = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
	const struct timeval coarse = {.tv_sec = fine.tv_sec, .tv_usec = fine.tv_nsec / 1000};

	_Static_assert(sizeof(struct timespec) == 16 && sizeof(struct timeval) == 16, "old and new names are one");
	if (ns == 0)
		return by_os(fd, request, arg);
	if (request == SIOCGSTAMPNS_OLD || request == SIOCGSTAMPNS_NEW)
		return vma_copy(arg, &fine, sizeof(fine));
	return vma_copy(arg, &coarse, sizeof(coarse));
}

int udp_ioctl(struct vma_file *file, int fd, unsigned long request, void *arg)
{
	struct udp_sock *sock = udp_sock(file);

	switch (request) {
	case FIONREAD:
		return next_len(sock, fd, arg);
	case FIONBIO:
	case FIOASYNC:
		return set_nonblocking(sock, fd, request, arg);
	case SIOCGSTAMP_OLD:
	case SIOCGSTAMP_NEW:
	case SIOCGSTAMPNS_OLD:
	case SIOCGSTAMPNS_NEW:
		return last_stamp(sock, fd, request, arg);
	default:
		return by_os(fd, request, arg);
	}
}

int udp_fcntl(struct vma_file *file, int fd, int cmd, void *arg)
{
	struct udp_sock *sock = udp_sock(file);
	long flags = (long)arg;
	int rc;

	pthread_mutex_lock(&file->lock);
	rc = vma_os.fcntl(fd, cmd, arg);
	if (rc < 0)
		rc = -errno;
	if (rc >= 0 && cmd == F_SETFL) {
		atomic_store(&sock->nonblocking, (flags & O_NONBLOCK) != 0);
		udp_set_async(sock, (flags & O_ASYNC) != 0);
	}
	pthread_mutex_unlock(&file->lock);
	return rc;
}
