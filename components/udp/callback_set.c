/* callback_set.c - register_recv_callback: from now on the sinks of a socket make a detour. The argument is in extra.h.
 * */
#include <errno.h>
#include <pthread.h>

#include "deferred.h"
#include "endpoint.h"
#include "extra.h"

static int attachments_redirect_to_callback(struct udp_flows *flows)
{
	for (struct udp_attachment *at = flows->attachments; at != NULL; at = at->next) {
		const int rc = udp_attachment_make_undecided_queue(at);

		if (rc != 0)
			return rc;
	}
	return 0;
}

/* file.lock. The argument stands in extra.h. */
static int recv_callback_redirect_flows(struct udp_sock *sock, struct udp_extra_api_state *extra)
{
	struct udp_flows *flows = sock->flows;
	int rc = 0;

	udp_flows_lock();
	atomic_store_explicit(&extra->detour, true, memory_order_relaxed);
	if (flows != NULL)
		rc = attachments_redirect_to_callback(flows);
	if (rc == 0)
		atomic_fetch_or(&sock->rx_opts, UDP_RX_OPT_CALLBACK);
	else
		atomic_store_explicit(&extra->detour, false, memory_order_relaxed);
	for (struct udp_attachment *at = rc == 0 && flows != NULL ? flows->attachments : NULL; at != NULL;
	     at = at->next) {
		if (vma_ring_acquire(at->ring_ctx->ring))
			vma_ring_release(at->ring_ctx->ring);
	}
	udp_flows_unlock();
	return rc;
}

static void recv_callback_free_retired(struct vma_retired *retired)
{
	vma_free(retired);
}
_Static_assert(offsetof(struct udp_callback, retired) == 0, "callback_end");

int udp_set_recv_callback(struct vma_file *file, const struct vma_recv_callback *callback)
{
	struct udp_sock *sock = udp_sock(file);
	struct udp_extra_api_state *extra = udp_extra_api_state_get_or_create(sock);
	struct udp_callback *fresh = NULL, *old;
	int rc = 0;

	if (extra == NULL)
		return -ENOMEM;
	if (callback->function != NULL) {
		fresh = vma_alloc(sizeof(*fresh));
		if (fresh == NULL)
			return -ENOMEM;
		fresh->now = *callback;
	}
	pthread_mutex_lock(&file->lock);
	if (file->os_only || vma_file_is_closed(file))
		rc = -EINVAL;
	else if (fresh != NULL && udp_offload_is_deferred(sock) &&
	         !udp_deferred_end_unless_in_kernel_call(sock, atomic_load(&file->fd)))
		rc = -EINVAL;
	else if (fresh != NULL && !atomic_load_explicit(&extra->detour, memory_order_relaxed))
		rc = recv_callback_redirect_flows(sock, extra);
	if (rc == 0) {
		old = atomic_exchange(&extra->callback, fresh);
		if (old != NULL)
			vma_defer_free_until_no_readers(&old->retired, recv_callback_free_retired);
	}
	pthread_mutex_unlock(&file->lock);
	if (rc != 0)
		vma_free(fresh);
	return rc;
}
