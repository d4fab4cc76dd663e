/* extra.c - the object behind the Extra API's calls on a socket, and the headers of its next message. */
#include <errno.h>

#include "deferred.h"
#include "dst.h"
#include "endpoint.h"
#include "extra.h"
#include "frame.h"

struct udp_extra_api_state *udp_extra_api_state_get_or_create(struct udp_sock *sock)
{
	struct udp_extra_api_state *extra = atomic_load_explicit(&sock->extra, memory_order_acquire), *none = NULL;

	if (extra != NULL)
		return extra;
	extra = vma_alloc(sizeof(*extra));
	if (extra == NULL)
		return NULL;
	extra->sock = sock;
	extra->holder.file = &sock->file;
	extra->source.file = &sock->file;
	extra->source.run = udp_run_recv_callbacks;
	if (atomic_compare_exchange_strong(&sock->extra, &none, extra))
		return extra;
	vma_free(extra);
	return none;
}

/* What is held is the parent's, and counts there. A callback that is running goes on, here as well. */
void udp_extra_api_state_reset_in_child(struct udp_sock *sock)
{
	struct udp_extra_api_state *extra = atomic_load(&sock->extra);

	if (extra == NULL)
		return;
	atomic_store(&extra->holder.bytes, 0);
	atomic_store(&extra->holder.packets, 0);
	atomic_store(&extra->source.again, false);
	if (!vma_callback_source_is_running_here(&extra->source))
		atomic_store(&extra->source.running, false);
	if (atomic_exchange(&extra->source.queued, false))
		vma_file_put(&sock->file);
}

void udp_extra_api_state_free(struct udp_sock *sock)
{
	struct udp_extra_api_state *extra = atomic_exchange(&sock->extra, NULL);

	if (extra == NULL)
		return;
	vma_free(atomic_load(&extra->callback));
	vma_free(extra);
}

unsigned udp_fragments_of(const struct udp_datagram *datagram, struct vma_fragment *fragments)
{
	uint32_t off = datagram->packet->payload_off;
	size_t left = datagram->len;
	unsigned n = 0;

	for (struct vma_buf *buf = datagram->packet; buf != NULL && n < UDP_FRAGMENTS_MAX; buf = buf->next, off = 0) {
		const size_t here = buf->len - off < left ? buf->len - off : left;

		fragments[n++] = (struct vma_fragment){.buf = buf, .off = off, .len = (uint32_t)here};
		left -= here;
	}
	return left == 0 ? n : 0;
}

ssize_t udp_copy_tx_headers_to_peer(struct vma_file *file, void *to, size_t size)
{
	struct udp_sock *sock = udp_sock(file);
	uint8_t frame[VMA_PKT_UDP_HEADERS_MAX + 2];
	const struct udp_dst *dst;
	struct udp_dst own;
	uint16_t flags = 0;

	if (file->os_only || udp_offload_is_deferred(sock) ||
	    !atomic_load_explicit(&sock->connected, memory_order_relaxed))
		return -ENOTCONN;
	dst = udp_dst_find(sock, 0, &own);
	if (dst == NULL || dst->ring_ctx == NULL)
		return -ENOTCONN;
	udp_frame_write_headers(dst, frame, 0, 0, &flags);
	memcpy(to, frame, size < dst->headers_len ? size : dst->headers_len);
	return dst->headers_len;
}

/* VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME: for programs that ask before they send. */
int udp_getsockname(struct vma_file *file, int fd, struct sockaddr *addr, socklen_t *len)
{
	struct udp_sock *sock = udp_sock(file);

	if (vma_os.getsockname(fd, addr, len) < 0)
		return -errno;
	if (sock->engine != NULL && sock->engine->conf.trigger_dummy_send_getsockname)
		udp_warm_up_send_path_if_connected(sock, fd);
	return 0;
}

/* ---- rings ---- */

static bool has_ring_ctx_before(const struct udp_attachments *all, uint32_t i)
{
	for (uint32_t j = 0; j < i; j++) {
		if (all->at[j]->ring_ctx == all->at[i]->ring_ctx)
			return true;
	}
	return false;
}

int udp_ring_ctxs(struct vma_file *file, struct vma_ring_ctx **out, unsigned max)
{
	const struct udp_attachments *all = atomic_load_explicit(&udp_sock(file)->attachments, memory_order_acquire);
	unsigned n = 0;

	for (uint32_t i = 0; all != NULL && i < all->n; i++) {
		if (has_ring_ctx_before(all, i))
			continue;
		if (n < max)
			out[n] = all->at[i]->ring_ctx;
		n++;
	}
	return (int)n;
}

int udp_tx_ring_ctx(struct vma_file *file, const struct sockaddr_in *to, struct vma_ring_ctx **out)
{
	struct udp_sock *sock = udp_sock(file);
	const struct udp_dst *dst;
	struct udp_dst own;
	uint64_t key = 0;

	if (to != NULL)
		key = udp_peer_key(to->sin_addr.s_addr, to->sin_port);
	else if (!atomic_load_explicit(&sock->connected, memory_order_relaxed))
		return -ENOTCONN;
	*out = NULL;
	if (udp_offload_is_deferred(sock))
		return 0;
	dst = udp_dst_find(sock, key, &own);
	if (dst != NULL)
		*out = dst->ring_ctx;
	return 0;
}
