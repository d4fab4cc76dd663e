/* names.c - bind, and the names of both ends: the kernel's, but for connections that it does not know. */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stream_priv.h"

#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51 /* since Linux 6.3 */
#endif

void stream_read_local_name(struct stream_sock *sock, int fd)
{
	union vma_name local;

	if (vma_shadow_getsockname(fd, &local, NULL) != 0 ||
	    (local.any.sa_family == AF_INET && local.in.sin_port == 0 && local.in.sin_addr.s_addr == 0))
		local = (union vma_name){0};
	sock->local = vma_name_to_sockaddr_in(&local);
}

/* By connections that were accepted, and those in TIME_WAIT: the kernel does not know of them. */
static bool port_has_our_connections(const struct sockaddr_in *name)
{
	const bool any = name->sin_addr.s_addr == INADDR_ANY;
	bool held = false;

	for (unsigned bit = 0; bit < 64 && !held; bit++) {
		struct vma_ring_ctx *ring_ctx = atomic_load_explicit(&vma_ring_ctxs[bit], memory_order_acquire);

		for (; ring_ctx != NULL && !held;
		     ring_ctx = atomic_load_explicit(&ring_ctx->next, memory_order_acquire)) {
			struct vma_tcp *tcp = atomic_load_explicit(&ring_ctx->tcp, memory_order_acquire);

			held = tcp != NULL &&
			       vma_tcp_has_port(tcp, any ? NULL : (const uint8_t *)&name->sin_addr, name->sin_port);
		}
	}
	return held;
}

/* Against who binds the port without SO_REUSEADDR. */
static bool bind_port_conflicts_with_our_conns(const struct stream_sock *sock, int fd, const struct sockaddr *addr,
                                               socklen_t len)
{
	union vma_name name;

	return !sock->reuse_addr && !sock->reuse_port &&
	       vma_name_copy_from_program_for_bind(fd, sock->file.family, addr, len, &name) == 0 &&
	       name.any.sa_family == AF_INET && name.in.sin_port != 0 && port_has_our_connections(&name.in);
}

/* ---- a port of the kernel's choice ---- */

#define CHOICES_MAX 8

static bool ip_option_is_set(int fd, int option)
{
	return vma_os_getsockopt_int_or(fd, IPPROTO_IP, option, 0) != 0;
}

static uint16_t shadow_bind_and_get_port(int fd, int family, const struct sockaddr_in *local)
{
	union vma_name name;

	if (fd < 0 || vma_shadow_bind(fd, family, local) != 0 || vma_shadow_getsockname(fd, &name, NULL) != 0)
		return 0;
	return name.in.sin_port;
}

/*
 * The kernel chooses a port that none of its connections has, and its own in TIME_WAIT count; ours it would take, and
 * connect to the same peer would fail with EADDRNOTAVAIL. So sockets of no other use ask it first, and each keeps what
 * it got until one is free here as well. 0: the kernel's choice is to be taken as it comes.
 */
static uint16_t kernel_choose_free_port(int fd, int family, struct sockaddr_in name)
{
	int asked[CHOICES_MAX];
	unsigned n = 0;
	uint16_t port_be;

	if (ip_option_is_set(fd, IP_BIND_ADDRESS_NO_PORT) || ip_option_is_set(fd, IP_LOCAL_PORT_RANGE))
		return 0;
	do {
		asked[n] = vma_os.socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		name.sin_port = 0;
		name.sin_port = port_be = shadow_bind_and_get_port(asked[n], family, &name);
		n += asked[n] >= 0;
	} while (port_be != 0 && port_has_our_connections(&name) && n < CHOICES_MAX);
	while (n > 0)
		syscall(SYS_close, asked[--n]); /* bind is no cancellation point, as the C library's close is */
	return port_be;
}

/* What is free now may be another's in the next moment: then the kernel chooses anew. */
static int stream_bind_shadow(int fd, int family, const struct sockaddr *addr, socklen_t len)
{
	union vma_name name, given = {0};
	socklen_t room = len < sizeof(given) ? len : sizeof(given);

	if (vma_sockaddr_is_of_family(family, addr, len) &&
	    vma_name_copy_from_program_for_bind(fd, family, addr, len, &name) == 0 && name.any.sa_family == AF_INET &&
	    name.in.sin_port == 0) {
		if (vma_memcpy_or_efault(&given, addr, room) != 0)
			return -EFAULT;
		given.in.sin_port = kernel_choose_free_port(fd, family, name.in);
		if (given.in.sin_port != 0 && vma_os.bind(fd, &given.any, room) == 0)
			return 0;
	}
	return vma_os.bind(fd, addr, len) != 0 ? -errno : 0;
}

/* ---- bind ---- */

/* The shadow of a connection is not bound as the connection is: it does not know that this is refused. */
int stream_bind(struct vma_file *file, int fd, const struct sockaddr *addr, socklen_t len)
{
	struct stream_sock *sock = stream_sock(file);
	int rc = 0;

	pthread_mutex_lock(&file->lock);
	if (stream_tcp_conn(sock) != NULL) {
		rc = -EINVAL;
	} else if (bind_port_conflicts_with_our_conns(sock, fd, addr, len)) {
		rc = -EADDRINUSE;
	} else {
		rc = stream_bind_shadow(fd, file->family, addr, len);
	}
	if (rc == 0) {
		stream_read_local_name(sock, fd);
		stream_describe_for_stats(sock);
	}
	pthread_mutex_unlock(&file->lock);
	return rc;
}

/*
 * A socket that is not connected (any more) has the name that its application gave it; where that is none, the kernel
 * leaves the port of the last connection in the name, and so does this.
 */
int stream_getsockname(struct vma_file *file, int fd, struct sockaddr *addr, socklen_t *len)
{
	struct stream_sock *sock = stream_sock(file);
	struct sockaddr_in name = {.sin_family = AF_INET};
	bool ours;

	pthread_mutex_lock(&file->lock);
	ours = stream_tcp_conn(sock) != NULL || sock->reserved.sin_family == AF_INET;
	if (stream_tcp_conn(sock) != NULL)
		name = sock->name;
	else
		name.sin_port = sock->reserved.sin_port;
	pthread_mutex_unlock(&file->lock);
	if (sock->engine != NULL && sock->engine->conf.trigger_dummy_send_getsockname)
		stream_send_dummy_byte_to_warm_tx_path(sock);
	if (ours)
		return vma_sockaddr_in_copy_to_program(file->family, &name, addr, len);
	return vma_os.getsockname(fd, addr, len) < 0 ? -errno : 0;
}

int stream_getpeername(struct vma_file *file, int fd, struct sockaddr *addr, socklen_t *len)
{
	struct stream_sock *sock = stream_sock(file);
	const struct vma_tcp_conn *conn;
	struct sockaddr_in name;
	int rc = 0;

	pthread_mutex_lock(&file->lock);
	conn = stream_tcp_conn(sock);
	name = sock->peer;
	if (conn != NULL &&
	    (stream_sock_phase(sock) != STREAM_CONNECTED || stream_kernel_view_of_state(conn) == TCP_CLOSE))
		rc = -ENOTCONN;
	pthread_mutex_unlock(&file->lock);
	if (conn == NULL)
		return vma_os.getpeername(fd, addr, len) < 0 ? -errno : 0;
	return rc < 0 ? rc : vma_sockaddr_in_copy_to_program(file->family, &name, addr, len);
}
