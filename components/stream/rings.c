/*
 * rings.c - the ring contexts of a socket, for the Extra API.
 *
 * Programs ask for the ring of a socket that is bound only, and listen or connect afterwards. So such a socket is given
 * the ring contexts that a listener of its address would have, and holds them until it is closed.
 */
#include <errno.h>

#include <vma/inet_ring_option.h>

#include "stream_priv.h"

enum { EARLY_MAX = 16 };

struct stream_early {
	unsigned n;
	struct vma_ring_ctx *at[EARLY_MAX]; /* held */
};

/* file.lock. */
static const struct stream_early *stream_hold_ring_ctxs_before_connect(struct stream_sock *sock)
{
	if (sock->early != NULL)
		return sock->early;
	if (sock->engine == NULL || sock->local.sin_family != AF_INET || stream_has_ended(sock))
		return NULL;
	sock->early = vma_alloc(sizeof(*sock->early));
	if (sock->early == NULL)
		return NULL;
	sock->early->n = stream_listen_hold_ring_ctxs(sock, sock->early->at, EARLY_MAX);
	if (sock->early->n == 0)
		stream_put_ring_ctxs_held_before_connect(sock); /* a device may come later */
	return sock->early;
}

void stream_put_ring_ctxs_held_before_connect(struct stream_sock *sock)
{
	for (unsigned i = 0; sock->early != NULL && i < sock->early->n; i++)
		vma_ring_ctx_put(sock->early->at[i]);
	stream_forget_ring_ctxs_held_before_connect(sock);
}

/* They are the parent's. */
void stream_forget_ring_ctxs_held_before_connect(struct stream_sock *sock)
{
	vma_free(sock->early);
	sock->early = NULL;
}

static int copy_ring_ctxs(struct vma_ring_ctx *const *from, unsigned n, struct vma_ring_ctx **out, unsigned max)
{
	for (unsigned i = 0; i < n && i < max; i++)
		out[i] = from[i];
	return (int)n;
}

/* file.lock. */
static int stream_list_ring_ctxs_lock_held(struct stream_sock *sock, struct vma_ring_ctx **out, unsigned max)
{
	const struct stream_early *early;

	if (sock->file.os_only)
		return -EINVAL;
	switch (stream_sock_phase(sock)) {
	case STREAM_LISTENING:
		return (int)stream_listen_ring_ctxs(sock, out, max);
	case STREAM_FRESH:
		early = stream_hold_ring_ctxs_before_connect(sock);
		return early != NULL ? copy_ring_ctxs(early->at, early->n, out, max) : 0;
	default:
		return copy_ring_ctxs(&sock->ring_ctx, sock->ring_ctx != NULL, out, max);
	}
}

int stream_ring_ctxs(struct vma_file *file, struct vma_ring_ctx **out, unsigned max)
{
	int n;

	pthread_mutex_lock(&file->lock);
	n = stream_list_ring_ctxs_lock_held(stream_sock(file), out, max);
	pthread_mutex_unlock(&file->lock);
	return n;
}

/* A connection has one ring, for both directions. */
int stream_tx_ring_ctx(struct vma_file *file, const struct sockaddr_in *to, struct vma_ring_ctx **out)
{
	(void)to;
	*out = NULL;
	pthread_mutex_lock(&file->lock);
	if (stream_tcp_conn(stream_sock(file)) != NULL)
		*out = stream_sock(file)->ring_ctx;
	pthread_mutex_unlock(&file->lock);
	return *out != NULL ? 0 : -ENOTCONN;
}

ssize_t stream_copy_next_headers(struct vma_file *file, void *to, size_t size)
{
	struct vma_tcp_conn *conn;
	ssize_t rc;

	pthread_mutex_lock(&file->lock);
	conn = stream_tcp_conn(stream_sock(file));
	if (conn != NULL)
		vma_tcp_conn_get(conn);
	pthread_mutex_unlock(&file->lock);
	if (conn == NULL)
		return -ENOTCONN;
	rc = vma_tcp_copy_next_headers(conn, to, size);
	vma_tcp_conn_put(conn);
	return rc;
}

int stream_set_ring_option(struct stream_sock *sock, int name, const void *value, socklen_t len)
{
	int rc;

	pthread_mutex_lock(&sock->file.lock);
	rc = vma_inet_set_ring_option(&sock->file, name, value, len,
	                              stream_sock_phase(sock) != STREAM_FRESH || sock->early != NULL);
	pthread_mutex_unlock(&sock->file.lock);
	return rc;
}
