/*
 * attachment.c - a socket's queues, one for each ring context and interface, and the array of them that receivers read.
 *
 * A queue outlives its flows while it has datagrams: these can still be read. All of this is under the lock of flows.c.
 */
#include "endpoint.h"
#include "extra.h"
#include "recv.h"
#include "xtreme.h"

/* Nobody sees it any more, and no flow leads to it. */
static void attachment_free_retired(struct vma_retired *retired)
{
	struct udp_attachment *at =
	        (struct udp_attachment *)((char *)retired - offsetof(struct udp_attachment, retired));
	struct vma_engine *engine = at->ring_ctx->device->engine;

	/* In a forked child the parent's packets are not there; that memory is lost, once. */
	if (engine != atomic_load_explicit(&vma_engine_now, memory_order_acquire))
		return;
	udp_queue_fini(&at->queue, engine->arena);
	if (at->undecided != NULL)
		udp_queue_fini(at->undecided, engine->arena);
	vma_free(at->undecided);
	vma_xtreme_source_put(at->xtreme);
	vma_ring_ctx_put(at->ring_ctx);
	vma_free(at);
}

struct udp_attachment *udp_attachment_find_or_create(struct udp_flows *flows, struct vma_ring_ctx *ring_ctx,
                                                     uint32_t ifindex)
{
	struct udp_attachment **place = &flows->attachments, *at;

	for (; *place != NULL; place = &(*place)->next) {
		if ((*place)->ring_ctx == ring_ctx && (*place)->ifindex == ifindex && !(*place)->left)
			return *place;
	}
	at = vma_alloc(sizeof(*at));
	if (at == NULL || udp_queue_init(&at->queue) != 0) {
		vma_free(at);
		return NULL;
	}
	at->sock = flows->sock;
	at->ring_ctx = ring_ctx;
	if (udp_xtreme_create_event_source(flows->sock, at) != 0 ||
	    udp_redirect_new_attachment_to_callback(flows->sock, at) != 0) {
		if (at->xtreme != NULL)
			vma_xtreme_source_end(at->xtreme);
		vma_xtreme_source_put(at->xtreme);
		udp_queue_fini(&at->queue, ring_ctx->device->engine->arena);
		vma_free(at);
		return NULL;
	}
	atomic_fetch_add_explicit(&ring_ctx->refs, 1, memory_order_relaxed); /* the endpoint holds one */
	at->ifindex = ifindex;
	*place = at;
	flows->moved = true;
	/* Whoever attaches may be another thread than the one that receives. */
	vma_migration_set_home(&flows->sock->rx_migration, 0);
	return at;
}

/* To the end of the list, so that those that are left stand in the order of their leaving. */
void udp_attachment_mark_left(struct udp_flows *flows, struct udp_attachment *at)
{
	struct udp_attachment **place = &flows->attachments;

	while (*place != at)
		place = &(*place)->next;
	*place = at->next;
	while (*place != NULL)
		place = &(*place)->next;
	at->next = NULL;
	*place = at;
	at->left = true;
	flows->moved = true;
}

static void attachments_free_retired(struct vma_retired *retired)
{
	vma_free(retired);
}
_Static_assert(offsetof(struct udp_attachments, retired) == 0, "attachments_end");

static struct udp_attachments *attachments_array_of_flows(const struct udp_flows *flows)
{
	struct udp_attachments *all;
	uint32_t n = 0;

	for (const struct udp_attachment *at = flows->attachments; at != NULL; at = at->next)
		n++;
	all = vma_alloc(sizeof(*all) + n * sizeof(all->at[0]));
	if (all == NULL)
		return NULL;
	for (struct udp_attachment *at = flows->attachments; at != NULL; at = at->next) {
		if (at->left)
			all->at[all->n++] = at;
	}
	all->left = all->n;
	for (struct udp_attachment *at = flows->attachments; at != NULL; at = at->next) {
		if (at->left)
			continue;
		all->at[all->n++] = at;
		all->rings |= vma_ring_ctx_bit(at->ring_ctx);
	}
	return all;
}

/* What no flow leads to and nothing is left in; `ended`: whatever is left. */
static struct udp_attachment *attachments_unlink_unused(struct udp_flows *flows, bool ended)
{
	struct udp_attachment **place = &flows->attachments, *out = NULL;

	while (*place != NULL) {
		struct udp_attachment *at = *place;

		if (at->flows == 0 && (ended || udp_attachment_is_empty(at))) {
			*place = at->next;
			at->next = out;
			out = at;
		} else {
			place = &at->next;
		}
	}
	return out;
}

static void attachment_update_watchers(struct udp_sock *sock, uint64_t rings)
{
	struct vma_watchers *watchers = atomic_load_explicit(&sock->file.watchers, memory_order_acquire);

	for (uint32_t i = 0; watchers != NULL && i < watchers->n; i++) {
		struct vma_watcher *watcher = atomic_load_explicit(&watchers->watcher[i], memory_order_relaxed);

		watcher->rings(watcher, rings);
	}
}

static void attachments_relink_to_flows(struct udp_flows *flows, struct udp_attachment *unused)
{
	while (unused != NULL) {
		struct udp_attachment *next = unused->next;

		unused->next = flows->attachments;
		flows->attachments = unused;
		unused = next;
	}
}

/*
 * The new array is published, then the old one and what it alone held are retired. os_attention first: what came before
 * the flows is in the shadow, and is read before what is queued. Sleepers look at the old rings, and are woken.
 */
void udp_attachments_publish(struct udp_flows *flows, bool ended)
{
	struct udp_sock *sock = flows->sock;
	struct udp_attachment *unused = attachments_unlink_unused(flows, ended);
	struct udp_attachments *all = NULL, *old;

	if (!flows->moved && unused == NULL)
		return;
	if (flows->attachments != NULL) {
		all = attachments_array_of_flows(flows);
		if (all == NULL) { /* the old array stays, and so does what it holds */
			attachments_relink_to_flows(flows, unused);
			return;
		}
	}
	flows->moved = false;
	if (!sock->port_fresh)
		atomic_store_explicit(&sock->os_attention, true, memory_order_relaxed);
	old = atomic_exchange(&sock->attachments, all);
	if (old != NULL)
		vma_defer_free_until_no_readers(&old->retired, attachments_free_retired);
	while (unused != NULL) {
		struct udp_attachment *next = unused->next;

		atomic_fetch_add_explicit(&sock->drops_ended,
		                          atomic_load_explicit(&unused->queue.dropped, memory_order_relaxed),
		                          memory_order_relaxed);
		if (unused->xtreme != NULL)
			vma_xtreme_source_end(unused->xtreme);
		vma_defer_free_until_no_readers(&unused->retired, attachment_free_retired);
		unused = next;
	}
	attachment_update_watchers(sock, all != NULL ? all->rings : 0);
	/*
	 * A flow brings datagrams from the moment it is attached, and an epoll set that was told of one before the
	 * array stood here has found nothing. The exchange comes before this look at the queues, and a push before the
	 * set's look at the array: one of the two sees the other.
	 */
	if (all == NULL)
		vma_file_wake_sleepers_and_watchers(&sock->file,
		                                    EPOLLOUT); /* who asks for room asks the shadow from now on */
	else if (udp_has_datagram(all)) {
		vma_file_wake_sleepers_and_watchers(&sock->file, VMA_FILE_READABLE);
		udp_xtreme_post_event(all->at[all->n - 1]); /* the same, for a poller; it looks into all queues */
	}
	vma_waitq_wake(&sock->file.waitq, true);
}
