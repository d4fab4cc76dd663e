/* shutdown.c - shutdown, as inet_shutdown in each state. */
#include <errno.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include "stream_priv.h"

static void mark_shutdown(struct stream_sock *sock, int how)
{
	if (how == SHUT_RD || how == SHUT_RDWR)
		atomic_store(&sock->shut_rd, true);
	if (how == SHUT_WR || how == SHUT_RDWR)
		atomic_store(&sock->shut_wr, true);
}

/* By the shadow, which knows that it is not connected, and whether it listens. */
static int shutdown_unconnected_or_listening_socket(struct stream_sock *sock, int fd, int how)
{
	int rc = vma_os.shutdown(fd, how) != 0 ? -errno : 0;

	if (rc == 0 && stream_sock_phase(sock) == STREAM_LISTENING && how != SHUT_WR) {
		stream_listen_end(sock);
		atomic_store(&sock->phase, STREAM_FRESH);
	} else if (rc == -ENOTCONN) {
		mark_shutdown(sock, how);
	}
	return rc;
}

static int shutdown_connection(struct stream_sock *sock, struct vma_tcp_conn *conn, int how)
{
	int rc;

	if (how < SHUT_RD || how > SHUT_RDWR)
		return -EINVAL;
	if (stream_sock_phase(sock) == STREAM_CONNECTING) {
		stream_tcp_disconnect(sock);
		return 0;
	}
	if (stream_kernel_view_of_state(conn) == TCP_CLOSE) {
		mark_shutdown(sock, how);
		return -ENOTCONN;
	}
	if (sock->attempt == STREAM_ATTEMPT)
		sock->attempt = STREAM_REPORTED;
	stream_io_lock_acquire(&sock->writer); /* a write that has begun comes before the end, and none after it */
	mark_shutdown(sock, how);
	rc = vma_tcp_shutdown(conn, how);
	stream_io_lock_release(&sock->writer);
	return rc;
}

int stream_shutdown(struct vma_file *file, int fd, int how)
{
	struct stream_sock *sock = stream_sock(file);
	struct vma_tcp_conn *conn;
	int rc;

	pthread_mutex_lock(&file->lock);
	if (stream_has_ended(sock)) {
		pthread_mutex_unlock(&file->lock);
		return -EBADF;
	}
	conn = stream_tcp_conn(sock);
	rc = conn != NULL ? shutdown_connection(sock, conn, how)
	                  : shutdown_unconnected_or_listening_socket(sock, fd, how);
	pthread_mutex_unlock(&file->lock);
	if (rc == 0 || rc == -ENOTCONN)
		stream_wake_waiters(sock, EPOLLIN | EPOLLRDNORM | EPOLLRDHUP | EPOLLHUP | EPOLLOUT | EPOLLWRNORM);
	return rc;
}
