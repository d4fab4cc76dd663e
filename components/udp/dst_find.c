/*
 * dst_find.c - finds a sender's destination: the cached one, or one that can be made without waiting, or the first of
 * its slot. It asks the internal thread for the rest.
 */
#include "dst.h"

/* ---- asking ---- */

/*
 * A sender would like the cache to have `key` (0: the peer again). Never waits. All four accesses of want and asked are
 * sequentially consistent: a sender that finds `asked` set has written its request before the task clears it, so that
 * the task sees the request.
 */
static void dst_request_cache_update_in_background(struct udp_sock *sock, uint64_t key)
{
	if (key != 0)
		atomic_store(&sock->dst_want[udp_dst_cache_slot_of_key(key)], key);
	if (atomic_load(&sock->dst_scheduled) || !vma_file_mark_scheduled(&sock->file, &sock->dst_scheduled))
		return;
	vma_engine_post_task_to_internal_thread(&sock->dst_task);
}

/* As dst_request_cache_update_in_background, for what may be wanted again and again without ever coming true: once in a
 * while. */
static void dst_request_cache_update_rate_limited(struct udp_sock *sock, uint64_t key, uint64_t nsec)
{
	uint64_t now = vma_tsc(), last = atomic_load_explicit(&sock->dst_requested_tsc, memory_order_relaxed);

	if (last != 0 && now - last < vma_tsc_of_nsec(nsec))
		return;
	atomic_store_explicit(&sock->dst_requested_tsc, now, memory_order_relaxed);
	dst_request_cache_update_in_background(sock, key);
}

/* ---- senders ---- */

enum { DST_SLOT_CONTENDED_RETRY_NS = 1000 * 1000, DST_REFUSED_RETRY_NS = 1000 * 1000 * 1000 };

/* From the path as it is now, without waiting. */
static const struct udp_dst *dst_build_from_current_path(struct udp_sock *sock, struct vma_engine *engine,
                                                         const struct udp_tx_options *tx, const struct sockaddr_in *to,
                                                         const struct vma_net_template *path, struct udp_dst *own)
{
	udp_dst_build(own, engine, tx, to, path, udp_tx_ring_ctx_of_ifindex(sock, path->nic));
	return own->ring_ctx != NULL ? own : NULL;
}

/* What is cached, but old: its path is held, so it can be read again. */
static const struct udp_dst *dst_rebuild_from_cached(struct udp_sock *sock, const struct udp_tx_options *tx,
                                                     const struct udp_dst *old, uint64_t key, struct udp_dst *own)
{
	struct vma_net_template path;

	if (old->options_seq != tx->seq)
		return NULL; /* the key may be another; a reset is on its way */
	dst_request_cache_update_in_background(sock, key);
	if (old->by_rule)
		return NULL;
	vma_net_path_read_template(old->path, &path);
	if (dst_build_from_current_path(sock, old->engine, tx, &old->to, &path, own) == NULL)
		return NULL;
	own->path = old->path;
	return own;
}

/*
 * Here and now: a question to the kernel, and for the first of all perhaps a ring context. With the lock, which is
 * given back.
 */
static const struct udp_dst *dst_create_in_slot_and_unlock(struct udp_sock *sock, uint64_t key)
{
	struct udp_dst *_Atomic *slot = &sock->dst_more[udp_dst_cache_slot_of_key(key)];
	struct vma_engine *engine = vma_engine_get_or_start();
	const struct udp_tx_options *tx = atomic_load_explicit(&sock->tx, memory_order_relaxed);
	const struct udp_dst *dst = atomic_load_explicit(slot, memory_order_relaxed);

	if (!sock->dst_ended && engine != NULL && tx != NULL && (dst == NULL || !udp_dst_is_for_address_key(dst, key)))
		udp_dst_create_and_cache(sock, engine, tx, key);
	dst = atomic_load_explicit(slot, memory_order_relaxed);
	pthread_mutex_unlock(&sock->dst_lock);
	if (dst == NULL || !udp_dst_is_for_address_key(dst, key) || !udp_dst_is_current(sock, dst) ||
	    dst->ring_ctx == NULL)
		return NULL;
	return dst;
}

/* The first destination of a slot, so that the first datagram, too, is ours: once per slot, and again after a reset. */
static const struct udp_dst *__attribute__((cold, noinline))
dst_create_in_empty_cache_slot(struct udp_sock *sock, uint64_t key)
{
	pthread_mutex_lock(&sock->dst_lock);
	return dst_create_in_slot_and_unlock(sock, key);
}

/*
 * Another destination has the slot, and net has not heard of this one. It is not left to the internal thread alone,
 * which has to be given a processor first: on a busy host that is hundreds of datagrams through the kernel. But a
 * sender to ever new destinations asks the kernel only once in a while, and never waits for who does.
 */
static const struct udp_dst *__attribute__((cold, noinline))
dst_create_on_slot_collision(struct udp_sock *sock, uint64_t key)
{
	uint64_t now = vma_tsc(), last = atomic_load_explicit(&sock->dst_made_tsc, memory_order_relaxed);

	if (last != 0 && now - last < vma_tsc_of_nsec(DST_SLOT_CONTENDED_RETRY_NS))
		return NULL;
	if (pthread_mutex_trylock(&sock->dst_lock) != 0)
		return NULL;
	atomic_store_explicit(&sock->dst_made_tsc, now, memory_order_relaxed);
	return dst_create_in_slot_and_unlock(sock, key);
}

/* Another destination has the slot: this one is made of what net has at hand. The slot changes hands now and then. */
static const struct udp_dst *dst_build_without_caching(struct udp_sock *sock, const struct udp_tx_options *tx,
                                                       uint64_t key, struct udp_dst *own)
{
	const struct sockaddr_in to = udp_sockaddr_of_peer_key(key);
	struct vma_net_key net_key = udp_dst_route_lookup_key(tx, &to, false);
	struct vma_engine *engine = vma_engine_get_or_start();
	struct vma_net_template path;
	const struct udp_dst *dst;

	if (engine == NULL || udp_dst_is_left_to_os_by_rule(sock, engine, &to))
		return NULL;
	if (vma_net_find_template(engine->net, &net_key, &path)) {
		dst_request_cache_update_rate_limited(sock, key, DST_SLOT_CONTENDED_RETRY_NS);
		return dst_build_from_current_path(sock, engine, tx, &to, &path, own);
	}
	dst = dst_create_on_slot_collision(sock, key);
	if (dst == NULL)
		vma_net_request_path(engine->net, &net_key);
	return dst;
}

const struct udp_dst *udp_dst_find(struct udp_sock *sock, uint64_t key, struct udp_dst *own)
{
	const struct udp_tx_options *tx;
	struct udp_dst *dst;

	dst = atomic_load_explicit(key == 0 ? &sock->dst : &sock->dst_more[udp_dst_cache_slot_of_key(key)],
	                           memory_order_acquire);
	tx = atomic_load_explicit(&sock->tx, memory_order_acquire);
	if (tx == NULL || tx->by_os || tx->local.sin_port == 0)
		return NULL;
	if (dst == NULL && key == 0) {
		dst_request_cache_update_rate_limited(sock, 0, DST_REFUSED_RETRY_NS);
		return NULL;
	}
	if (dst == NULL)
		return dst_create_in_empty_cache_slot(sock, key);
	if (key != 0 && !udp_dst_is_for_address_key(dst, key))
		return dst_build_without_caching(sock, tx, key, own);
	if (!udp_dst_is_current(sock, dst))
		return dst_rebuild_from_cached(sock, tx, dst, key, own);
	if (dst->ring_ctx != NULL)
		return dst;
	if (dst->state == VMA_NET_READY && !dst->by_rule)
		dst_request_cache_update_rate_limited(
		        sock, key,
		        DST_REFUSED_RETRY_NS); /* no ring context was to be had: the device may have come back */
	return NULL;
}

/* ---- datagrams with control messages ---- */

static struct udp_tx_options tx_options_with_cmsgs(const struct udp_tx_options *tx, const struct udp_tx_cmsgs *cmsgs)
{
	struct udp_tx_options with = *tx;

	if (cmsgs->has_source)
		with.local.sin_addr.s_addr = cmsgs->source;
	if (cmsgs->oif != 0)
		with.oif = cmsgs->oif;
	if (cmsgs->ttl != 0)
		with.ttl = with.mc_ttl = cmsgs->ttl;
	if (cmsgs->has_tos)
		with.tos = cmsgs->tos;
	return with;
}

/* Net knows nothing of it yet, or the socket has no ring context there: as dst_create_on_slot_collision. */
static bool __attribute__((cold, noinline))
dst_create_in_callers_memory(struct udp_sock *sock, struct vma_engine *engine, const struct udp_tx_options *with,
                             const struct sockaddr_in *to, struct udp_dst *own)
{
	uint64_t now = vma_tsc(), last = atomic_load_explicit(&sock->dst_made_tsc, memory_order_relaxed);
	bool made;

	if ((last != 0 && now - last < vma_tsc_of_nsec(DST_SLOT_CONTENDED_RETRY_NS)) ||
	    pthread_mutex_trylock(&sock->dst_lock) != 0)
		return false;
	atomic_store_explicit(&sock->dst_made_tsc, now, memory_order_relaxed);
	made = !sock->dst_ended && udp_dst_build_uncached(sock, engine, with, to, own);
	pthread_mutex_unlock(&sock->dst_lock);
	return made;
}

/*
 * Nothing of it is cached here: servers that answer from the address that they were asked at have a route for each
 * client, and net remembers those. What is sent unconnected is looked up so, too, whatever the socket is connected to.
 */
const struct udp_dst *udp_dst_find_with_cmsgs(struct udp_sock *sock, uint64_t key, const struct udp_tx_cmsgs *cmsgs,
                                              struct udp_dst *own)
{
	const struct udp_tx_options *tx = atomic_load_explicit(&sock->tx, memory_order_acquire);
	struct vma_engine *engine = vma_engine_get_or_start();
	struct udp_tx_options with;
	struct vma_net_template path;
	struct vma_net_key net_key;
	struct sockaddr_in to;
	bool known;

	if (tx == NULL || engine == NULL || tx->by_os || tx->local.sin_port == 0)
		return NULL;
	with = tx_options_with_cmsgs(tx, cmsgs);
	to = key != 0 ? udp_sockaddr_of_peer_key(key) : tx->peer;
	if (key != 0 && udp_dst_is_left_to_os_by_rule(sock, engine, &to))
		return NULL;
	net_key = udp_dst_route_lookup_key(&with, &to, false);
	known = vma_net_find_template(engine->net, &net_key, &path);
	if ((!known || dst_build_from_current_path(sock, engine, &with, &to, &path, own) == NULL) &&
	    !dst_create_in_callers_memory(sock, engine, &with, &to, own)) {
		if (!known)
			vma_net_request_path(engine->net, &net_key);
		return NULL;
	}
	if (own->confirm)
		vma_net_request_path_check(engine->net, &net_key, VMA_NET_REQUEST_PROBE);
	own->confirm = false;
	return own;
}

void udp_dst_request_path_probe(struct udp_sock *sock, const struct udp_dst *dst)
{
	const struct udp_tx_options *tx = atomic_load_explicit(&sock->tx, memory_order_acquire);
	struct vma_net_key key;

	if (dst->path != NULL) {
		vma_net_path_probe(dst->engine->net, dst->path);
	} else if (tx != NULL) {
		key = udp_dst_route_lookup_key(tx, &dst->to, false);
		vma_net_request_path_check(dst->engine->net, &key, VMA_NET_REQUEST_PROBE);
	}
}
