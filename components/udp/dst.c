/*
 * dst.c - destinations: the kernel's path, the socket's options and a ring context to send on. Together they make
 * headers that are complete but for lengths, id and checksums.
 *
 * A destination is valid while its options_seq is the socket's and its version the path's. Only the control path and
 * the internal thread replace what is cached (dst_lock). A sender that finds something missing or old makes what it
 * needs on its stack, from the data that net has at hand. Or it leaves the datagram to the OS. In both cases it asks
 * (dst_want, dst_task). The sender itself makes the first destination of each slot, and now and then one of which net
 * knows nothing yet.
 */
#include <errno.h>
#include <net/if.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>

#include "defaults.h"
#include "dst.h"
#include "pace.h"

/* ---- retiring ---- */

/* In a forked child that has an engine of its own, paths of before are nobody's. */
static bool engine_is_of_this_process(const struct vma_engine *engine)
{
	return engine != NULL && engine == atomic_load_explicit(&vma_engine_now, memory_order_acquire);
}

static void udp_dst_free_retired(struct vma_retired *retired)
{
	struct udp_dst *dst = (struct udp_dst *)retired;

	if (engine_is_of_this_process(dst->engine))
		vma_net_path_put(dst->engine->net, dst->path);
	vma_free(dst);
}
_Static_assert(offsetof(struct udp_dst, retired) == 0, "dst_end");

static void tx_options_free_retired(struct vma_retired *retired)
{
	vma_free(retired);
}
_Static_assert(offsetof(struct udp_tx_options, retired) == 0 && offsetof(struct udp_tx_ring_ctxs, retired) == 0,
               "options_end");

/* dst_lock, or nobody else knows the socket. */
static void dst_replace(struct udp_dst *_Atomic *slot, struct udp_dst *dst)
{
	struct udp_dst *old;

	if (dst == NULL && atomic_load_explicit(slot, memory_order_relaxed) == NULL)
		return;
	old = atomic_exchange_explicit(slot, dst, memory_order_acq_rel);
	if (old != NULL)
		vma_defer_free_until_no_readers(&old->retired, udp_dst_free_retired);
}

/* ---- options ---- */

/* None is set. */
static uint8_t kernel_default_ttl_or_64(const struct udp_sock *sock)
{
	int ttl = udp_default_ttl(atomic_load_explicit(&sock->file.fd, memory_order_relaxed));

	return ttl > 0 && ttl <= 255 ? (uint8_t)ttl : 64;
}

static uint32_t kernel_uid_of_socket(struct udp_sock *sock)
{
	struct stat st;

	/* Past whoever has put a call of his own in fstat's place: he would see the program's descriptor used. */
	return syscall(SYS_fstat, atomic_load_explicit(&sock->file.fd, memory_order_relaxed), &st) == 0 ? st.st_uid
	                                                                                                : geteuid();
}

static bool addr_is_multicast(uint32_t addr)
{
	return IN_MULTICAST(ntohl(addr));
}

static struct udp_tx_options *udp_tx_options_alloc_from_socket(struct udp_sock *sock)
{
	struct udp_tx_options *tx = vma_alloc(sizeof(*tx));

	if (tx == NULL)
		return NULL;
	tx->local = sock->local;
	tx->peer = sock->peer;
	tx->oif = sock->bound_ifindex;
	tx->mc_oif = sock->mc_ifindex;
	tx->mc_source = sock->mc_source.s_addr;
	tx->mark = sock->mark;
	tx->uid = kernel_uid_of_socket(sock);
	tx->ttl = sock->ttl != 0 ? sock->ttl : kernel_default_ttl_or_64(sock);
	tx->mc_ttl = sock->mc_ttl;
	tx->tos = sock->tos;
	tx->mc_loop = sock->mc_loop;
	tx->df = sock->pmtu_discover != IP_PMTUDISC_DONT && sock->pmtu_discover != IP_PMTUDISC_INTERFACE &&
	         sock->pmtu_discover != IP_PMTUDISC_OMIT;
	tx->by_os =
	        atomic_load(&sock->os_send) || atomic_load(&sock->shut_wr) || sock->file.os_only || udp_is_ipv6(sock);
	return tx;
}

/* What the kernel would look the route up with. */
struct vma_net_key udp_dst_route_lookup_key(const struct udp_tx_options *tx, const struct sockaddr_in *to,
                                            bool connected)
{
	struct vma_net_key key = {.family = AF_INET,
	                          .proto = IPPROTO_UDP,
	                          .oif = tx->oif,
	                          .mark = tx->mark,
	                          .uid = tx->uid,
	                          .tos = tx->tos,
	                          .sport_be = tx->local.sin_port,
	                          .dport_be = to->sin_port,
	                          .flags = connected ? VMA_NET_KEY_CONNECT : 0};
	uint32_t source = tx->local.sin_addr.s_addr;

	if (addr_is_multicast(source) || source == INADDR_BROADCAST)
		source = INADDR_ANY; /* bound to a group: received from there, not sent from */
	if (addr_is_multicast(to->sin_addr.s_addr)) {
		if (key.oif == 0)
			key.oif = tx->mc_oif;
		if (source == INADDR_ANY)
			source = tx->mc_source;
	}
	memcpy(key.dst, &to->sin_addr, 4);
	memcpy(key.src, &source, 4);
	return key;
}

/* ---- ring contexts: the socket holds them until it is destroyed; by then no thread can see a destination ---- */

struct vma_ring_ctx *udp_tx_ring_ctx_of_ifindex(struct udp_sock *sock, uint32_t ifindex)
{
	const struct udp_tx_ring_ctxs *ring_ctxs = atomic_load_explicit(&sock->ring_ctxs, memory_order_acquire);

	for (uint32_t i = 0; ring_ctxs != NULL && i < ring_ctxs->n; i++) {
		if (ring_ctxs->at[i].ifindex == ifindex)
			return ring_ctxs->at[i].ring_ctx;
	}
	return NULL;
}

/*
 * dst_lock. Where no card paces, software does. A card paces queue pairs, so only what a socket has for itself can be
 * paced. If it cannot be, the log says so at level error, and the socket sends without a pace, as the predecessor's
 * did.
 */
static __attribute__((cold)) void dst_set_pace_of_ring_ctx(struct udp_sock *sock, struct vma_ring_ctx *ring_ctx,
                                                           const struct vma_ring_requester *where)
{
	const struct vma_ring_key own = vma_ring_key(VMA_RING_LOGIC_PER_SOCKET, where);
	const struct vma_nic_info *info = vma_nic_info(vma_ring_nic(ring_ctx->ring));
	const char *name = info->name;
	int rc;

	if (!(info->caps & VMA_NIC_CAP_PACING)) {
		udp_pace_set_rate(sock, sock->pacing_rate);
		return;
	}
	if (memcmp(&ring_ctx->key, &own, sizeof(own)) != 0) {
		if (sock->pacing_rate != 0)
			vma_log_once(VMA_LOG_ERROR,
			             "%s: SO_MAX_PACING_RATE: not paced: the socket shares its ring "
			             "(VMA_RING_ALLOCATION_LOGIC_TX=10 gives it one of its own)",
			             name);
		return;
	}
	rc = vma_nic_set_tx_pacing_rate(vma_ring_qp(ring_ctx->ring), sock->pacing_rate, 0);
	if (rc < 0 && sock->pacing_rate != 0)
		vma_log_once(VMA_LOG_ERROR, "%s: SO_MAX_PACING_RATE: not paced: %s", name, strerror(-rc));
}

void udp_set_pacing_rate(struct udp_sock *sock, uint64_t bytes_per_sec)
{
	const struct udp_tx_ring_ctxs *ring_ctxs;
	struct vma_ring_requester where;
	const uint32_t any = 0;

	pthread_mutex_lock(&sock->dst_lock);
	where = vma_file_get_ring_requester(&sock->file,
	                                    &any); /* the address does not matter to a ring for each socket */
	ring_ctxs = atomic_load_explicit(&sock->ring_ctxs, memory_order_relaxed);
	if (sock->pacing_rate != bytes_per_sec) {
		sock->pacing_rate = bytes_per_sec;
		if (bytes_per_sec == 0)
			udp_pace_set_rate(sock, 0); /* also of a forked child, which has no rings yet */
		for (uint32_t i = 0; ring_ctxs != NULL && i < ring_ctxs->n; i++)
			dst_set_pace_of_ring_ctx(sock, ring_ctxs->at[i].ring_ctx, &where);
	}
	pthread_mutex_unlock(&sock->dst_lock);
}

/* dst_lock. The one that the socket sends on through this interface, made if need be; NULL: none is to be had. */
static struct vma_ring_ctx *udp_tx_ring_ctx_find_or_create(struct udp_sock *sock, struct vma_engine *engine,
                                                           const struct vma_net_template *path)
{
	struct udp_tx_ring_ctxs *old = atomic_load_explicit(&sock->ring_ctxs, memory_order_relaxed), *ring_ctxs;
	const struct vma_ring_requester where = vma_file_get_ring_requester(&sock->file, path->src);
	struct vma_ring_ctx *ring_ctx = udp_tx_ring_ctx_of_ifindex(sock, path->nic);
	uint32_t n = old != NULL ? old->n : 0;
	struct vma_device *device;

	if (ring_ctx != NULL)
		return ring_ctx;
	if (vma_device_find_or_open(engine, path->nic, &device) != 0 ||
	    vma_ring_ctx_find_or_create(device, VMA_RING_CTX_TX, &where, &ring_ctx) != 0)
		return NULL;
	ring_ctxs = vma_alloc(sizeof(*ring_ctxs) + (n + 1) * sizeof(ring_ctxs->at[0]));
	if (ring_ctxs == NULL) {
		vma_ring_ctx_put(ring_ctx);
		return NULL;
	}
	if (n != 0)
		memcpy(ring_ctxs->at, old->at, n * sizeof(ring_ctxs->at[0]));
	/* Whoever chose the place may be another thread than the one that sends. */
	vma_migration_set_home(&sock->tx_migration, 0);
	ring_ctxs->at[n].ifindex = path->nic;
	ring_ctxs->at[n].ring_ctx = ring_ctx;
	ring_ctxs->n = n + 1;
	atomic_store_explicit(&sock->ring_ctxs, ring_ctxs, memory_order_release);
	if (old != NULL)
		vma_defer_free_until_no_readers(&old->retired, tx_options_free_retired);
	if (sock->pacing_rate != 0)
		dst_set_pace_of_ring_ctx(sock, ring_ctx, &where);
	return ring_ctx;
}

/* ---- building ---- */

/* ---- identification ---- */

/*
 * Of datagrams that may be fragmented on their way. One counter for all would tell each peer how much others are sent
 * (RFC 7739, 3): a destination has one of IP_IDS, chosen by a secret, and shares it with few.
 */
enum { IP_IDS = 1024 };
static _Atomic uint32_t ip_ids[IP_IDS] __attribute__((section(".bss.far")));
static _Atomic uint64_t ip_id_secret;

static uint64_t ip_id_hash_secret(void)
{
	uint64_t fresh = atomic_load_explicit(&ip_id_secret, memory_order_relaxed), none = 0;

	if (fresh != 0)
		return fresh;
	/* By number: the C library's is a cancellation point, and this is inside. */
	if (syscall(SYS_getrandom, &fresh, sizeof(fresh), GRND_NONBLOCK) != sizeof(fresh))
		fresh = vma_now_ns();
	fresh |= 1;
	return atomic_compare_exchange_strong(&ip_id_secret, &none, fresh) ? fresh : none;
}

/* The highest bits of a product with a secret odd number. */
static _Atomic uint32_t *ip_id_counter_of_destination(const struct in_addr *to)
{
	return &ip_ids[(to->s_addr + 1ULL) * ip_id_hash_secret() >> 54];
}

static void dst_write_header_template(struct udp_dst *dst, const struct udp_tx_options *tx,
                                      const struct vma_net_template *path)
{
	bool group = path->type == RTN_MULTICAST;
	uint8_t *ip = dst->bytes + path->ip_off, *udp = ip + VMA_PKT_IP4_HLEN;

	memcpy(dst->bytes, path->bytes, path->ip_off + VMA_PKT_IP4_HLEN);
	dst->ip_id = ip_id_counter_of_destination(&dst->to.sin_addr);
	dst->ip_off = path->ip_off;
	dst->headers_len = path->ip_off + VMA_PKT_IP4_HLEN + VMA_PKT_UDP_HLEN;
	ip[0] = 0x45;
	ip[1] = tx->tos;
	ip[6] = dst->df ? 0x40 : 0;
	ip[8] = group ? tx->mc_ttl : tx->ttl;
	ip[9] = IPPROTO_UDP;
	memcpy(udp, &tx->local.sin_port, 2);
	memcpy(udp + 2, &dst->to.sin_port, 2);
	dst->ip_sum = vma_csum_fold(vma_csum_add(0, ip, VMA_PKT_IP4_HLEN));
	dst->pseudo_sum = vma_csum_fold(vma_csum_pseudo4(ip + 12, ip + 16, IPPROTO_UDP, 0));
	dst->udp_sum = vma_csum_fold((uint64_t)dst->pseudo_sum + tx->local.sin_port + dst->to.sin_port);
}

/* The payload from which the NIC is asked for the checksum. */
static uint32_t nic_sums_from(const struct udp_dst *dst)
{
	const bool can = vma_nic_info(vma_ring_nic(dst->ring_ctx->ring))->caps & VMA_NIC_CAP_TX_CSUM;

	return can ? VMA_PKT_CSUM_BY_NIC_FROM - VMA_PKT_UDP_HLEN : UINT32_MAX;
}

/* The longest payload of one frame: what the MTU and a buffer of the ring leave. */
static uint32_t dst_payload_max(const struct udp_dst *dst)
{
	uint32_t frame = UINT32_C(1) << dst->engine->arena->frame_shift;
	uint32_t before = vma_ring_qp(dst->ring_ctx->ring)->tx_headroom + dst->headers_len;
	uint32_t headers = VMA_PKT_IP4_HLEN + VMA_PKT_UDP_HLEN;
	uint32_t room = frame > before ? frame - before : 0;

	if (dst->mtu < headers)
		return 0;
	return dst->mtu - headers < room ? dst->mtu - headers : room;
}

/* Whether datagrams along this path may be ours at all. */
static bool dst_may_be_offloaded(const struct udp_tx_options *tx, const struct vma_net_template *path)
{
	if (tx->by_os || tx->local.sin_port == 0 || path->state != VMA_NET_READY)
		return false;
	if (path->type == RTN_MULTICAST)
		return tx->mc_ttl != 0; /* 0: not beyond this host */
	return path->type == RTN_UNICAST;
}

/*
 * A destination of this path; ring context NULL: none is at hand, or the OS sends there. Broadcasts are also for this
 * host.
 */
void udp_dst_build(struct udp_dst *dst, struct vma_engine *engine, const struct udp_tx_options *tx,
                   const struct sockaddr_in *to, const struct vma_net_template *path, struct vma_ring_ctx *ring_ctx)
{
	*dst = (struct udp_dst){.to = *to,
	                        .version = path->version,
	                        .mtu = path->mtu,
	                        .state = path->state,
	                        .options_seq = tx->seq,
	                        .ifindex = path->ifindex,
	                        .confirm = path->flags & VMA_NET_CONFIRM,
	                        .members_matter = path->type == RTN_MULTICAST && tx->mc_loop,
	                        .df = tx->df,
	                        .engine = engine};
	if (ring_ctx == NULL || !dst_may_be_offloaded(tx, path))
		return;
	dst->ring_ctx = ring_ctx;
	dst_write_header_template(dst, tx, path);
	dst->max_payload = dst_payload_max(dst);
	dst->nic_sums_from = nic_sums_from(dst);
}

bool udp_dst_is_left_to_os_by_rule_slow(struct udp_sock *sock, const struct vma_engine *engine,
                                        const struct sockaddr_in *to)
{
	const struct vma_rule *rule = vma_inet_find_transport_rule(engine, VMA_RULES_UDP_SENDER, to, NULL);

	if (rule != NULL)
		vma_sock_record_and_log_kernel_send_rule(&sock->file, rule);
	return rule != NULL;
}

/* dst_lock. One for the cache, with its path held and its ring context made. NULL: out of memory, or not IPv4. */
static struct udp_dst *dst_create(struct udp_sock *sock, struct vma_engine *engine, const struct udp_tx_options *tx,
                                  const struct sockaddr_in *to, bool connected)
{
	struct vma_net_key key = udp_dst_route_lookup_key(tx, to, connected);
	struct udp_dst *dst = vma_alloc(sizeof(*dst));
	struct vma_ring_ctx *ring_ctx = NULL;
	struct vma_net_template path;
	struct vma_net_path *held;
	bool by_rule;

	if (dst == NULL)
		return NULL;
	if (vma_net_path_get(engine->net, &key, &held) != 0) {
		vma_free(dst);
		return NULL;
	}
	vma_net_path_read_template(held, &path);
	by_rule = !connected && udp_dst_is_left_to_os_by_rule(sock, engine, to);
	if (!by_rule && dst_may_be_offloaded(tx, &path))
		ring_ctx = udp_tx_ring_ctx_find_or_create(sock, engine, &path);
	udp_dst_build(dst, engine, tx, to, &path, ring_ctx);
	dst->by_rule = by_rule;
	dst->path = held;
	return dst;
}

bool udp_dst_build_uncached(struct udp_sock *sock, struct vma_engine *engine, const struct udp_tx_options *tx,
                            const struct sockaddr_in *to, struct udp_dst *own)
{
	struct vma_net_key key = udp_dst_route_lookup_key(tx, to, false);
	struct vma_ring_ctx *ring_ctx = NULL;
	struct vma_net_template path;
	struct vma_net_path *held;

	if (vma_net_path_get(engine->net, &key, &held) != 0)
		return false;
	vma_net_path_read_template(held, &path);
	vma_net_path_put(engine->net, held);
	if (dst_may_be_offloaded(tx, &path))
		ring_ctx = udp_tx_ring_ctx_find_or_create(sock, engine, &path);
	udp_dst_build(own, engine, tx, to, &path, ring_ctx);
	return own->ring_ctx != NULL;
}

/* dst_lock. */
void udp_dst_create_and_cache(struct udp_sock *sock, struct vma_engine *engine, const struct udp_tx_options *tx,
                              uint64_t key)
{
	const struct sockaddr_in to = udp_sockaddr_of_peer_key(key);
	struct udp_dst *dst = dst_create(sock, engine, tx, &to, false);

	if (dst != NULL)
		dst_replace(&sock->dst_more[udp_dst_cache_slot_of_key(key)], dst);
}

/* ---- control path ---- */

static bool sockaddr_is_inet_with_port(const struct sockaddr_in *addr)
{
	return addr->sin_family == AF_INET && addr->sin_port != 0;
}

/* dst_lock. The peer's destination, unless it is there and right. */
static void dst_refresh_connected(struct udp_sock *sock, struct vma_engine *engine, const struct udp_tx_options *tx)
{
	struct udp_dst *dst = atomic_load_explicit(&sock->dst, memory_order_relaxed);

	if (!sockaddr_is_inet_with_port(&tx->peer) || tx->by_os)
		return;
	if (dst != NULL && udp_dst_is_current(sock, dst) && (dst->ring_ctx != NULL || dst->state != VMA_NET_READY))
		return;
	dst = dst_create(sock, engine, tx, &tx->peer, true);
	if (dst != NULL)
		dst_replace(&sock->dst, dst);
}

static void dst_drop_all_cached(struct udp_sock *sock)
{
	dst_replace(&sock->dst, NULL);
	for (unsigned i = 0; i < UDP_DST_SLOTS; i++)
		dst_replace(&sock->dst_more[i], NULL);
}

/* dst_lock. The copy is published before its number: who has read the number finds this copy or a newer one. */
static const struct udp_tx_options *tx_options_publish(struct udp_sock *sock)
{
	struct udp_tx_options *tx = udp_tx_options_alloc_from_socket(sock), *old;

	if (tx != NULL)
		tx->seq = atomic_load_explicit(&sock->options_seq, memory_order_relaxed) + 1;
	old = atomic_exchange_explicit(&sock->tx, tx, memory_order_acq_rel);
	atomic_fetch_add_explicit(&sock->options_seq, 1, memory_order_release);
	if (old != NULL)
		vma_defer_free_until_no_readers(&old->retired, tx_options_free_retired);
	return tx;
}

void udp_dst_rebuild_all(struct udp_sock *sock, struct vma_engine *engine)
{
	const struct udp_tx_options *tx = tx_options_publish(sock);

	dst_drop_all_cached(sock);
	if (tx != NULL && engine != NULL)
		dst_refresh_connected(sock, engine, tx);
}

void udp_dst_rebuild_after_change(struct udp_sock *sock)
{
	struct vma_engine *engine = sock->file.os_only ? NULL : vma_engine_get_or_start();
	uint64_t peer = sockaddr_is_inet_with_port(&sock->peer)
	                        ? udp_peer_key(sock->peer.sin_addr.s_addr, sock->peer.sin_port)
	                        : 0;

	atomic_store_explicit(&sock->peer_key, peer, memory_order_relaxed);
	pthread_mutex_lock(&sock->dst_lock);
	if (!sock->dst_ended)
		udp_dst_rebuild_all(sock, engine);
	pthread_mutex_unlock(&sock->dst_lock);
}

/* ---- the internal thread ---- */

static void dst_create_all_requested(struct udp_sock *sock, struct vma_engine *engine, const struct udp_tx_options *tx)
{
	for (unsigned i = 0; i < UDP_DST_SLOTS; i++) {
		uint64_t key = atomic_exchange(&sock->dst_want[i], 0);

		if (key != 0)
			udp_dst_create_and_cache(sock, engine, tx, key);
	}
}

static void dst_refresh_and_create_requested_task(struct vma_internal_task *task)
{
	struct udp_sock *sock = (struct udp_sock *)((char *)task - offsetof(struct udp_sock, dst_task));
	struct vma_engine *engine = vma_engine_get_or_start();
	const struct udp_tx_options *tx;

	/* Before anything is looked at: a request that comes later posts the task again. */
	atomic_store(&sock->dst_scheduled, false);
	pthread_mutex_lock(&sock->dst_lock);
	tx = atomic_load_explicit(&sock->tx, memory_order_relaxed);
	if (!sock->dst_ended && engine != NULL && tx != NULL) {
		dst_refresh_connected(sock, engine, tx);
		dst_create_all_requested(sock, engine, tx);
	}
	pthread_mutex_unlock(&sock->dst_lock);
	vma_file_put(&sock->file);
}

/* ---- life ---- */

void udp_dst_init(struct udp_sock *sock)
{
	pthread_mutex_init(&sock->dst_lock, NULL);
	sock->dst_task.run = dst_refresh_and_create_requested_task;
}

void udp_dst_fini(struct udp_sock *sock)
{
	pthread_mutex_lock(&sock->dst_lock);
	sock->dst_ended = true;
	dst_drop_all_cached(sock);
	pthread_mutex_unlock(&sock->dst_lock);
}

/* Nobody can see the socket any more. */
void udp_tx_state_destroy(struct udp_sock *sock)
{
	struct udp_tx_ring_ctxs *ring_ctxs = atomic_exchange(&sock->ring_ctxs, NULL);

	dst_drop_all_cached(sock);
	for (uint32_t i = 0; ring_ctxs != NULL && i < ring_ctxs->n; i++)
		vma_ring_ctx_put(ring_ctxs->at[i].ring_ctx);
	vma_free(ring_ctxs);
	vma_free(atomic_exchange(&sock->tx, NULL));
	pthread_mutex_destroy(&sock->dst_lock);
}

/* The child is the only thread, and has no epoch's reader but itself: plain frees. */
void udp_tx_state_reset_in_forked_child(struct udp_sock *sock)
{
	vma_free(atomic_exchange(&sock->dst, NULL));
	for (unsigned i = 0; i < UDP_DST_SLOTS; i++) {
		vma_free(atomic_exchange(&sock->dst_more[i], NULL));
		atomic_store(&sock->dst_want[i], 0);
	}
	vma_free(atomic_exchange(&sock->ring_ctxs, NULL));
	vma_free(atomic_exchange(&sock->tx, NULL));
	pthread_mutex_init(&sock->dst_lock, NULL);
	sock->dst_task = (struct vma_internal_task){.run = dst_refresh_and_create_requested_task};
	if (atomic_exchange(&sock->dst_scheduled, false))
		vma_file_put(&sock->file); /* the task's: it is the parent's thread that will run it, there */
	atomic_store(&sock->taking, false);
	atomic_store(&sock->inherited, true);
}
