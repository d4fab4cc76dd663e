/* ioctl.c - ioctl and fcntl: the kernel's, but for the bytes in the connection's fifos. */
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include <vma/inet_flags.h>

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

/* ---- O_NONBLOCK and O_ASYNC ---- */

/* Of a connection the signals are ours to send. */
static int stream_check_o_async_supported(struct vma_file *file)
{
	return stream_tcp_conn(stream_sock(file)) == NULL
	               ? vma_engine_apply_offload_failure_policy(EINVAL, "a TCP socket with O_ASYNC")
	               : 0;
}

static void stream_file_lock(struct vma_file *file)
{
	pthread_mutex_lock(&file->lock);
}

static void stream_set_o_nonblock(struct vma_file *file, bool on)
{
	struct stream_sock *sock = stream_sock(file);

	atomic_store(&sock->nonblocking, on);
	vma_inet_stats_set_nonblocking(sock->stats, on);
}

static void stream_file_set_async(struct vma_file *file, bool on)
{
	stream_set_async(stream_sock(file), on);
}

static void stream_flags_changed(struct vma_file *file)
{
	(void)file;
}

static const struct vma_inet_flags_ops stream_flags_ops = {
        .check_async = stream_check_o_async_supported,
        .lock = stream_file_lock,
        .set_nonblocking = stream_set_o_nonblock,
        .set_async = stream_file_set_async,
        .changed = stream_flags_changed,
};

int stream_ioctl(struct vma_file *file, int fd, unsigned long request, void *arg)
{
	struct stream_sock *sock = stream_sock(file);
	const struct vma_tcp_conn *conn = stream_tcp_conn(sock);

	if (request == FIONBIO || request == FIOASYNC)
		return vma_inet_ioctl_flag(&stream_flags_ops, file, fd, request, arg);
	return conn != NULL ? ioctl_of_connection(sock, conn, fd, request, arg) : vma_inet_os_ioctl(fd, request, arg);
}

int stream_fcntl(struct vma_file *file, int fd, int cmd, void *arg)
{
	return vma_inet_fcntl(&stream_flags_ops, file, fd, cmd, arg);
}
