/* ioctl.c - ioctl and fcntl: the kernel's, but for the bytes in the connection's fifos. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include "stream_priv.h"

static int clamp_to_int(uint64_t number)
{
	return number < INT32_MAX ? (int)number : INT32_MAX;
}

/* As the kernel's tcp_inq: none, right before an urgent byte that reading is to step over. */
static int stream_readable_bytes(const struct stream_sock *sock, const struct vma_tcp_conn *conn)
{
	bool at_mark = vma_tcp_bytes_before_urgent_mark(conn) == 0 &&
	               !atomic_load_explicit(&sock->oob_inline, memory_order_relaxed);

	return at_mark ? 0 : clamp_to_int(vma_tcp_readable_bytes(conn));
}

static int ioctl_of_connection(struct stream_sock *sock, const struct vma_tcp_conn *conn, int fd, unsigned long request,
                               void *arg)
{
	int value;

	switch (request) {
	case FIONREAD:
		vma_ring_ctxs_catch_up(stream_ring_bits(&sock->file));
		value = stream_readable_bytes(sock, conn);
		break;
	case SIOCATMARK:
		vma_ring_ctxs_catch_up(stream_ring_bits(&sock->file));
		value = vma_tcp_bytes_before_urgent_mark(conn) == 0;
		break;
	case SIOCOUTQ:
		value = clamp_to_int(vma_tcp_tx_unacked_bytes(conn));
		break;
	case SIOCOUTQNSD:
		value = clamp_to_int(vma_tcp_tx_unsent(conn));
		break;
	default:
		return vma_inet_os_ioctl(fd, request, arg);
	}
	return vma_memcpy_or_efault(arg, &value, sizeof(value));
}

/* Before the kernel is asked; of a connection the signals are ours to send. */
static int stream_check_o_async_supported(const struct stream_sock *sock, bool on)
{
	return on && stream_tcp_conn(sock) == NULL
	               ? vma_engine_apply_offload_failure_policy(EINVAL, "a TCP socket with O_ASYNC")
	               : 0;
}

static int ioctl_set_file_flag(struct stream_sock *sock, int fd, unsigned long request, void *arg)
{
	int on, rc = 0;

	if (request == FIOASYNC && vma_memcpy_or_efault(&on, arg, sizeof(on)) == 0)
		rc = stream_check_o_async_supported(sock, on != 0);
	if (rc < 0)
		return rc;
	pthread_mutex_lock(&sock->file.lock);
	rc = vma_inet_os_ioctl(fd, request, arg);
	if (rc == 0 && vma_memcpy_or_efault(&on, arg, sizeof(on)) == 0) {
		if (request == FIONBIO) {
			atomic_store(&sock->nonblocking, on != 0);
			vma_inet_stats_set_nonblocking(sock->stats, on != 0);
		} else {
			stream_set_async(sock, on != 0);
		}
	}
	pthread_mutex_unlock(&sock->file.lock);
	return rc;
}

int stream_ioctl(struct vma_file *file, int fd, unsigned long request, void *arg)
{
	struct stream_sock *sock = stream_sock(file);
	const struct vma_tcp_conn *conn = stream_tcp_conn(sock);

	if (request == FIONBIO || request == FIOASYNC)
		return ioctl_set_file_flag(sock, fd, request, arg);
	return conn != NULL ? ioctl_of_connection(sock, conn, fd, request, arg) : vma_inet_os_ioctl(fd, request, arg);
}

int stream_fcntl(struct vma_file *file, int fd, int cmd, void *arg)
{
	struct stream_sock *sock = stream_sock(file);
	long flags = (long)arg;
	int rc = cmd == F_SETFL ? stream_check_o_async_supported(sock, (flags & O_ASYNC) != 0) : 0;

	if (rc < 0)
		return rc;
	pthread_mutex_lock(&file->lock);
	rc = vma_os.fcntl(fd, cmd, arg);
	if (rc < 0)
		rc = -errno;
	if (rc >= 0 && cmd == F_SETFL) {
		atomic_store(&sock->nonblocking, (flags & O_NONBLOCK) != 0);
		vma_inet_stats_set_nonblocking(sock->stats, (flags & O_NONBLOCK) != 0);
		stream_set_async(sock, (flags & O_ASYNC) != 0);
	}
	pthread_mutex_unlock(&file->lock);
	return rc;
}
