/* names.c - bind, and the names of both ends: the kernel's, but for connections that it does not know. */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>

#include "stream_priv.h"

void stream_take_local(struct stream_sock *sock, int fd)
{
	struct sockaddr_in local = {0};
	socklen_t len = sizeof(local);

	if (vma_os.getsockname(fd, (struct sockaddr *)&local, &len) != 0 ||
	    (local.sin_port == 0 && local.sin_addr.s_addr == 0))
		local = (struct sockaddr_in){0};
	memset(local.sin_zero, 0, sizeof(local.sin_zero));
	sock->local = local;
}

/*
 * Connections that were accepted, and those in TIME_WAIT, hold their port against who binds it without SO_REUSEADDR;
 * the kernel does not know of them.
 */
static bool is_held(const struct stream_sock *sock, const struct sockaddr *addr, socklen_t len)
{
	struct sockaddr_in name;
	bool any, held = false;

	if (sock->reuse_addr || sock->reuse_port || len < sizeof(name) || vma_copy(&name, addr, sizeof(name)) != 0 ||
	    name.sin_family != AF_INET || name.sin_port == 0)
		return false;
	any = name.sin_addr.s_addr == INADDR_ANY;
	for (unsigned bit = 0; bit < 64 && !held; bit++) {
		struct vma_rail *rail = atomic_load_explicit(&vma_rails[bit], memory_order_acquire);

		for (; rail != NULL && !held; rail = atomic_load_explicit(&rail->next, memory_order_acquire)) {
			struct vma_tcp *tcp = atomic_load_explicit(&rail->tcp, memory_order_acquire);

			held = tcp != NULL &&
			       vma_tcp_has_port(tcp, any ? NULL : (const uint8_t *)&name.sin_addr, name.sin_port);
		}
	}
	return held;
}

/* The shadow of a connection is not bound as the connection is: it does not know that this is refused. */
int stream_bind(struct vma_file *file, int fd, const struct sockaddr *addr, socklen_t len)
{
	struct stream_sock *sock = stream_sock(file);
	int rc = 0;

	pthread_mutex_lock(&file->lock);
	if (stream_conn(sock) != NULL) {
		rc = -EINVAL;
	} else if (is_held(sock, addr, len)) {
		rc = -EADDRINUSE;
	} else if (vma_os.bind(fd, addr, len) != 0) {
		rc = -errno;
	} else {
		stream_take_local(sock, fd);
		stream_describe(sock);
	}
	pthread_mutex_unlock(&file->lock);
	return rc;
}

/*
 * A socket that is not connected (any more) has the name that its application gave it; a port that was only reserved
 * for a connection is none.
 */
int stream_getsockname(struct vma_file *file, int fd, struct sockaddr *addr, socklen_t *len)
{
	struct stream_sock *sock = stream_sock(file);
	struct sockaddr_in name = {.sin_family = AF_INET};
	bool ours;

	pthread_mutex_lock(&file->lock);
	ours = stream_conn(sock) != NULL || sock->reserved.sin_family == AF_INET;
	if (stream_conn(sock) != NULL)
		name = sock->name;
	pthread_mutex_unlock(&file->lock);
	if (ours)
		return vma_copy_name(&name, sizeof(name), addr, len);
	return vma_os.getsockname(fd, addr, len) < 0 ? -errno : 0;
}

int stream_getpeername(struct vma_file *file, int fd, struct sockaddr *addr, socklen_t *len)
{
	struct stream_sock *sock = stream_sock(file);
	const struct vma_tcp_conn *conn;
	struct sockaddr_in name;
	int rc = 0;

	pthread_mutex_lock(&file->lock);
	conn = stream_conn(sock);
	name = sock->peer;
	if (conn != NULL && (stream_phase(sock) != STREAM_CONNECTED || stream_state(conn) == TCP_CLOSE))
		rc = -ENOTCONN;
	pthread_mutex_unlock(&file->lock);
	if (conn == NULL)
		return vma_os.getpeername(fd, addr, len) < 0 ? -errno : 0;
	return rc < 0 ? rc : vma_copy_name(&name, sizeof(name), addr, len);
}
