/*
 * endpoint.c - which socket gets what comes to a listener: one of the sockets that share it, by a hash of the peer
 * (SO_REUSEPORT).
 *
 * Among several sockets the kernel's lookup prefers those bound to the address to those bound to 0.0.0.0 or `::`. Among
 * these it prefers an AF_INET socket, and one that is bound to the device. Only equals share.
 */
#include <errno.h>
#include <string.h>

#include "endpoint.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A socket that leaves empties its place, which the next one takes; a larger array replaces one that is full. */
struct members {
	struct vma_retired retired;
	uint32_t n;
	struct stream_sock *_Atomic at[]; /* NULL: free */
};

struct endpoint {
	struct vma_retired retired;
	struct endpoint *next;
	struct vma_ring_ctx *ring_ctx; /* held */
	struct vma_tcp_listener *listener;
	struct members *_Atomic members;
	_Atomic bool revoked;
	_Atomic uint64_t rules_until_ns; /* revoked: it waits so long for rules of its connections */
	bool withdrawn;                  /* nobody joins it any more */
	uint32_t local, used;            /* places that are */
	uint16_t port_be, vlan;
};
static struct endpoint *endpoints;

void endpoints_lock(void)
{
	pthread_mutex_lock(&lock);
}

void endpoints_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

/* ---- who gets what: whoever drives ---- */

static struct stream_sock *listen_member_at(const struct members *members, uint32_t i)
{
	return atomic_load_explicit(&members->at[i], memory_order_acquire);
}

static uint32_t conn_hash_of(const struct vma_tcp_conn *conn)
{
	struct vma_flow_key key;
	uint32_t h;

	vma_tcp_conn_key(conn, &key);
	memcpy(&h, key.peer, 4);
	h = (h ^ key.peer_port_be) * 0x9e3779b1U;
	return h ^ h >> 16;
}

static uint8_t listen_member_rank(const struct stream_sock *sock)
{
	return (uint8_t)((sock->local.sin_addr.s_addr != INADDR_ANY ? 4 : 0) + (sock->bound_ifindex != 0 ? 1 : 0) +
	                 (sock->file.family != AF_INET6 ? 1 : 0));
}

/* The highest rank of any, and how many have it. */
static uint32_t count_members_of_best_rank(const struct members *members, uint8_t *best)
{
	uint32_t count = 0;

	*best = 0;
	for (uint32_t i = 0; i < members->n; i++) {
		const struct stream_sock *sock = listen_member_at(members, i);
		const uint8_t rank = sock != NULL ? atomic_load_explicit(&sock->rank, memory_order_relaxed) : 0;

		if (sock == NULL || rank < *best)
			continue;
		count = rank > *best ? 1 : count + 1;
		*best = rank;
	}
	return count;
}

static bool member_has_rank(const struct stream_sock *sock, uint8_t rank)
{
	return sock != NULL && atomic_load_explicit(&sock->rank, memory_order_relaxed) == rank;
}

/* Somebody has room. */
static bool stream_endpoint_admits_syn(struct vma_tcp_listener *listener, void *arg)
{
	const struct endpoint *endpoint = arg;
	const struct members *members = atomic_load_explicit(&endpoint->members, memory_order_acquire);
	uint8_t best;

	(void)listener;
	count_members_of_best_rank(members, &best);
	for (uint32_t i = 0; i < members->n; i++) {
		const struct stream_sock *sock = listen_member_at(members, i);

		if (member_has_rank(sock, best) && !stream_accept_queue_is_full(sock))
			return true;
	}
	return false;
}

/*
 * The one that the hash says; if its queue is full, the next one that has room. What was half open when all became full
 * still comes in: no more than the backlog.
 */
static struct stream_sock *stream_endpoint_choose_member(const struct members *members, uint32_t hash)
{
	uint8_t best;
	const uint32_t equals = count_members_of_best_rank(members, &best), before = equals > 1 ? hash % equals : 0;
	struct stream_sock *full = NULL;

	for (uint32_t i = 0, seen = 0; i < 2 * members->n && seen < before + equals; i++) {
		struct stream_sock *sock = listen_member_at(members, i % members->n);

		if (!member_has_rank(sock, best) || seen++ < before)
			continue;
		if (!stream_accept_queue_is_full(sock))
			return sock;
		full = full != NULL ? full : sock;
	}
	return full;
}

/*
 * VMA_TCP_3T_RULES: its connections stay with the listener's rule, as long as no other process may serve the listener;
 * when that changes, they get rules of their own (vma_engine_steer_pending_now).
 */
static bool listener_rule_covers_conns(const struct stream_sock *listener)
{
	const struct vma_file *file = &listener->file;

	return listener->engine != NULL && listener->engine->conf.tcp_3t_rules && !listener->reuse_port &&
	       !file->from_parent && !atomic_load_explicit(&listener->has_takers, memory_order_relaxed) &&
	       file->forks == atomic_load_explicit(&vma_fork_count, memory_order_relaxed);
}

static bool stream_endpoint_on_accepted(struct vma_tcp_listener *listener, void *arg, struct vma_tcp_conn *conn)
{
	const struct endpoint *endpoint = arg;
	const struct members *members = atomic_load_explicit(&endpoint->members, memory_order_acquire);
	struct stream_sock *sock = stream_endpoint_choose_member(members, members->n > 1 ? conn_hash_of(conn) : 0);

	(void)listener;
	if (sock == NULL || !stream_enqueue_accepted(sock, conn, endpoint->ring_ctx))
		return false;
	if (!vma_tcp_is_pending(conn) && !listener_rule_covers_conns(sock))
		vma_engine_schedule_steer_of_conn(conn); /* later: short ones need no rule of their own */
	return true;
}

#define RULES_NS 1000000000

/* What was accepted goes on with rules of its own; the sockets ask for their flows anew, later and again. */
static void stream_endpoint_on_revoked(struct vma_tcp_listener *listener, void *arg)
{
	struct endpoint *endpoint = arg;
	const struct members *members = atomic_load_explicit(&endpoint->members, memory_order_acquire);

	(void)listener;
	atomic_store(&endpoint->rules_until_ns, vma_now_ns() + RULES_NS);
	atomic_store(&endpoint->revoked, true);
	vma_engine_steer_pending_now();
	for (uint32_t i = 0; i < members->n; i++) {
		struct stream_sock *sock = listen_member_at(members, i);

		if (sock != NULL)
			stream_schedule_listen_update(sock);
	}
}

static const struct vma_tcp_listener_ops owner = {.admit = stream_endpoint_admits_syn,
                                                  .accepted = stream_endpoint_on_accepted,
                                                  .revoked = stream_endpoint_on_revoked};

/* ---- sockets come and go ---- */

static void free_retired_member_array(struct vma_retired *retired)
{
	vma_free(retired);
}
_Static_assert(offsetof(struct members, retired) == 0 && offsetof(struct endpoint, retired) == 0, "end_members");

/* Who drives, and has read what was there before, has come out when this returns. */
static void endpoint_wait_for_ring_driver(struct endpoint *endpoint)
{
	if (endpoint->listener != NULL && vma_ring_acquire(endpoint->ring_ctx->ring))
		vma_ring_release(endpoint->ring_ctx->ring);
}

static int stream_endpoint_grow_members(struct endpoint *endpoint)
{
	struct members *old = atomic_load(&endpoint->members);
	uint32_t n = old != NULL ? old->n : 0;
	struct members *fresh = vma_alloc(sizeof(*fresh) + (n + 1) * sizeof(fresh->at[0]));

	if (fresh == NULL)
		return -ENOMEM;
	fresh->n = n + 1;
	for (uint32_t i = 0; i < n; i++)
		atomic_store_explicit(&fresh->at[i], listen_member_at(old, i), memory_order_relaxed);
	atomic_store_explicit(&endpoint->members, fresh, memory_order_release);
	if (old != NULL)
		vma_defer_free_until_no_readers(&old->retired, free_retired_member_array);
	return 0;
}

static int stream_endpoint_add_member(struct endpoint *endpoint, struct stream_sock *sock)
{
	struct members *members = atomic_load(&endpoint->members);
	uint32_t at = 0;

	if (members == NULL || endpoint->used == members->n) {
		if (stream_endpoint_grow_members(endpoint) < 0)
			return -ENOMEM;
		members = atomic_load(&endpoint->members);
	}
	while (listen_member_at(members, at) != NULL)
		at++;
	atomic_store_explicit(&members->at[at], sock, memory_order_release);
	endpoint->used++;
	return 0;
}

static void listen_endpoint_end(struct endpoint *endpoint)
{
	struct endpoint **place = &endpoints;

	while (*place != endpoint)
		place = &(*place)->next;
	*place = endpoint->next;
	vma_tcp_listener_close(endpoint->listener);
	vma_ring_ctx_put(endpoint->ring_ctx);
	vma_defer_free_until_no_readers(&atomic_load(&endpoint->members)->retired, free_retired_member_array);
	vma_defer_free_until_no_readers(&endpoint->retired, free_retired_member_array);
}

/* A round trip, or two; not for ever, as there may be a thread that waits for fork. */
#define FINISH_NS 20000000

void stream_endpoint_drain_half_open(struct endpoint *endpoint)
{
	if (endpoint->used == 1)
		vma_tcp_listener_drain(endpoint->listener, FINISH_NS);
}

bool stream_endpoint_withdraw(struct endpoint *endpoint)
{
	if (endpoint->used != 1)
		return false;
	endpoint->withdrawn = true;
	vma_tcp_listener_withdraw(endpoint->listener);
	return true;
}

bool stream_endpoint_has_no_half_open(const struct endpoint *endpoint)
{
	return vma_tcp_listener_has_no_half_open(endpoint->listener);
}

void stream_endpoint_remove_member(struct endpoint *endpoint, const struct stream_sock *sock)
{
	struct members *members = atomic_load(&endpoint->members);

	/* The last one is there until the listener has gone: what comes until then waits in its queue, as before. */
	if (endpoint->used == 1) {
		listen_endpoint_end(endpoint);
		return;
	}
	for (uint32_t i = 0; i < members->n; i++) {
		if (listen_member_at(members, i) == sock)
			atomic_store(&members->at[i], NULL);
	}
	endpoint->used--;
	endpoint_wait_for_ring_driver(endpoint);
}

/* ---- made ---- */

static int stream_endpoint_open_listener(struct endpoint *endpoint, struct stream_sock *sock)
{
	struct vma_tcp_listen_attr attr = {.owner = &owner,
	                                   .arg = endpoint,
	                                   .options = &sock->options,
	                                   .family = AF_INET,
	                                   .vlan = endpoint->vlan,
	                                   .local_port_be = endpoint->port_be,
	                                   .shadow_cookie = sock->cookie,
	                                   .shadow_fd = atomic_load(&sock->file.fd),
	                                   .backlog = atomic_load(&sock->backlog),
	                                   .inherited = sock->file.from_parent};
	struct vma_flow_key key = {
	        .family = AF_INET, .proto = IPPROTO_TCP, .vlan = endpoint->vlan, .local_port_be = endpoint->port_be};
	struct vma_tcp *tcp;
	int rc = vma_ring_ctx_get_or_create_tcp_stack(endpoint->ring_ctx, &tcp);

	memcpy(attr.local, &endpoint->local, 4);
	memcpy(key.local, &endpoint->local, 4);
	if (rc == 0)
		rc = vma_tcp_listen(tcp, &attr, &endpoint->listener);
	if (rc == 0)
		vma_ring_ctx_leave_flow_to_kernel(endpoint->ring_ctx, &key);
	return rc;
}

/* The ring context's reference passes if it succeeds. */
static int listen_endpoint_create(struct stream_sock *sock, struct vma_ring_ctx *ring_ctx, uint32_t local,
                                  uint16_t vlan, struct endpoint **out)
{
	struct endpoint *endpoint = vma_alloc(sizeof(*endpoint));
	int rc;

	if (endpoint == NULL)
		return -ENOMEM;
	endpoint->ring_ctx = ring_ctx;
	endpoint->local = local;
	endpoint->vlan = vlan;
	endpoint->port_be = sock->local.sin_port;
	rc = stream_endpoint_add_member(endpoint, sock); /* before connections come */
	if (rc == 0)
		rc = stream_endpoint_open_listener(endpoint, sock);
	if (rc < 0) {
		vma_free(atomic_load(&endpoint->members));
		vma_free(endpoint);
		return rc;
	}
	endpoint->next = endpoints;
	endpoints = endpoint;
	*out = endpoint;
	return 0;
}

static struct endpoint *listen_endpoint_find(const struct vma_ring_ctx *ring_ctx, uint32_t local, uint16_t port_be,
                                             uint16_t vlan)
{
	struct endpoint *e = endpoints;

	while (e != NULL && (e->ring_ctx != ring_ctx || e->local != local || e->port_be != port_be || e->vlan != vlan ||
	                     e->withdrawn || stream_endpoint_is_revoked(e)))
		e = e->next;
	return e;
}

int stream_endpoint_join(struct stream_sock *sock, struct vma_device *device, uint32_t local, uint16_t vlan,
                         struct endpoint **out)
{
	const struct vma_ring_requester where = vma_file_get_ring_requester(&sock->file, &local);
	struct endpoint *endpoint;
	struct vma_ring_ctx *ring_ctx;
	int rc;

	atomic_store(&sock->rank, listen_member_rank(sock));
	rc = vma_ring_ctx_find_or_create(device, VMA_RING_CTX_RX, &where, &ring_ctx);
	if (rc < 0)
		return rc;
	endpoint = listen_endpoint_find(ring_ctx, local, sock->local.sin_port, vlan);
	if (endpoint == NULL) {
		rc = listen_endpoint_create(sock, ring_ctx, local, vlan, out);
		if (rc < 0)
			vma_ring_ctx_put(ring_ctx);
		return rc;
	}
	vma_ring_ctx_put(ring_ctx); /* the endpoint has it */
	rc = vma_tcp_listener_share_rule(endpoint->listener, sock->cookie, atomic_load(&sock->file.fd));
	if (rc < 0)
		return rc;
	*out = endpoint;
	return stream_endpoint_add_member(endpoint, sock);
}

/* ---- what else there is to say of one ---- */

bool stream_endpoint_is_revoked(const struct endpoint *endpoint)
{
	return atomic_load(&endpoint->revoked);
}

/* A NIC that takes what is the kernel's keeps the revoked rule until the listener goes. */
bool stream_endpoint_awaits_conn_rules(const struct endpoint *endpoint)
{
	return vma_nic_info(endpoint->ring_ctx->device->nic)->caps & VMA_NIC_CAP_TO_KERNEL &&
	       vma_now_ns() < atomic_load(&endpoint->rules_until_ns) && vma_engine_has_conns_to_steer();
}

uint64_t stream_endpoint_ring_bit(const struct endpoint *endpoint)
{
	return vma_ring_ctx_bit(endpoint->ring_ctx);
}

struct vma_ring_ctx *stream_endpoint_ring_ctx(const struct endpoint *endpoint)
{
	return endpoint->ring_ctx;
}

void stream_endpoint_set_listener_options(struct endpoint *endpoint, const struct stream_sock *sock)
{
	vma_tcp_listener_set_options(endpoint->listener, &sock->options, atomic_load(&sock->backlog));
}

__attribute__((cold)) void stream_endpoints_reset_in_fork_child(void)
{
	pthread_mutex_init(&lock, NULL);
	endpoints = NULL;
}
