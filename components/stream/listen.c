/*
 * listen.c - listen: the kernel's answer, then listeners on the rails of every local address that it stands for.
 *
 *   socket ──> endpoints: (rail, address, port), one listener of tcp each, shared by SO_REUSEPORT sockets
 *
 * What comes to an endpoint goes to one of its sockets, by a hash of the peer. One lock for all of them, held while
 * rings attach and detach; nothing that runs under a ring's flag takes it.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>

#include "stream_priv.h"

static pthread_mutex_t endpoints_lock = PTHREAD_MUTEX_INITIALIZER;

/* Immutable, replaced as a whole and retired. */
struct members {
	struct vma_retired retired;
	uint32_t n;
	struct stream_sock *at[];
};

struct endpoint {
	struct vma_retired retired;
	struct endpoint *next;
	struct vma_rail *rail; /* held */
	struct vma_tcp_listener *listener;
	struct members *_Atomic members;
	uint32_t local;
	uint16_t port_be, vlan;
};
static struct endpoint *endpoints;

/* Of one socket. */
struct stream_listen {
	uint32_t n, room;
	struct target {
		struct endpoint *endpoint; /* NULL: not attached */
		uint32_t local, device;
		uint16_t vlan;
		bool wanted;
		int error;
	} * at;
};

/* ---- who gets what: whoever drives ---- */

static uint32_t hash_of(const struct vma_tcp_conn *conn)
{
	struct vma_flow_key key;
	uint32_t h;

	vma_tcp_names(conn, &key);
	memcpy(&h, key.peer, 4);
	h = (h ^ key.peer_port_be) * 0x9e3779b1U;
	return h ^ h >> 16;
}

/* Somebody has room. */
static bool admit(struct vma_tcp_listener *listener, void *arg)
{
	const struct endpoint *endpoint = arg;
	const struct members *members = atomic_load_explicit(&endpoint->members, memory_order_acquire);

	(void)listener;
	for (uint32_t i = 0; members != NULL && i < members->n; i++) {
		if (!stream_accept_full(members->at[i]))
			return true;
	}
	return false;
}

/* What was half open when the queue became full still comes in: no more than the backlog. */
static bool accepted(struct vma_tcp_listener *listener, void *arg, struct vma_tcp_conn *conn)
{
	const struct endpoint *endpoint = arg;
	const struct members *members = atomic_load_explicit(&endpoint->members, memory_order_acquire);

	(void)listener;
	if (members == NULL || members->n == 0)
		return false;
	if (!stream_arrive(members->at[hash_of(conn) % members->n], conn, endpoint->rail))
		return false;
	vma_engine_steer(conn); /* later: short ones need no rule of their own */
	return true;
}

/* What was accepted goes on with rules of its own. */
static void revoked(struct vma_tcp_listener *listener, void *arg)
{
	(void)listener, (void)arg;
	vma_engine_steer_now();
}

static const struct vma_tcp_listener_owner owner = {.admit = admit, .accepted = accepted, .revoked = revoked};

/* ---- endpoints ---- */

static void end_members(struct vma_retired *retired)
{
	vma_free(retired);
}

/* The new array is what accepted() uses from now on: who still uses the old one holds the ring's flag. */
static void publish(struct endpoint *endpoint, struct members *fresh)
{
	struct members *old = atomic_exchange(&endpoint->members, fresh);

	if (endpoint->listener != NULL && vma_ring_acquire(endpoint->rail->ring))
		vma_ring_release(endpoint->rail->ring);
	if (old != NULL)
		vma_retire(&old->retired, end_members);
}

static int join_endpoint(struct endpoint *endpoint, struct stream_sock *sock)
{
	const struct members *old = atomic_load(&endpoint->members);
	uint32_t n = old != NULL ? old->n : 0;
	struct members *fresh = vma_alloc(sizeof(*fresh) + (n + 1) * sizeof(fresh->at[0]));

	if (fresh == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		fresh->at[fresh->n++] = old->at[i];
	fresh->at[fresh->n++] = sock;
	publish(endpoint, fresh);
	return 0;
}

static void free_endpoint(struct vma_retired *retired)
{
	vma_free(retired);
}

static void remove_endpoint(struct endpoint *endpoint)
{
	struct endpoint **place = &endpoints;

	while (*place != endpoint)
		place = &(*place)->next;
	*place = endpoint->next;
	if (endpoint->listener != NULL)
		vma_tcp_listener_close(endpoint->listener);
	endpoint->listener = NULL;
	publish(endpoint, NULL);
	vma_rail_put(endpoint->rail);
	vma_retire(&endpoint->retired, free_endpoint);
}

/* Leaving must not fail: without memory for a smaller array the place is closed up in a copy of the same size. */
static void leave_endpoint(struct endpoint *endpoint, const struct stream_sock *sock)
{
	const struct members *old = atomic_load(&endpoint->members);
	struct members *fresh;

	if (old->n == 1) {
		remove_endpoint(endpoint);
		return;
	}
	fresh = vma_alloc(sizeof(*fresh) + old->n * sizeof(fresh->at[0]));
	if (fresh == NULL) {
		remove_endpoint(endpoint); /* the others' shadows still listen */
		return;
	}
	for (uint32_t i = 0; i < old->n; i++) {
		if (old->at[i] != sock)
			fresh->at[fresh->n++] = old->at[i];
	}
	publish(endpoint, fresh);
}

static struct endpoint *find_endpoint(const struct target *target, const struct vma_rail *rail, uint16_t port_be)
{
	struct endpoint *e = endpoints;

	while (e != NULL &&
	       (e->rail != rail || e->local != target->local || e->port_be != port_be || e->vlan != target->vlan))
		e = e->next;
	return e;
}

static int open_endpoint(struct stream_sock *sock, const struct target *target, struct vma_rail *rail,
                         struct endpoint *endpoint)
{
	struct vma_tcp_listen_attr attr = {.owner = &owner,
	                                   .arg = endpoint,
	                                   .options = &sock->options,
	                                   .family = AF_INET,
	                                   .vlan = target->vlan,
	                                   .local_port_be = sock->local.sin_port,
	                                   .shadow_cookie = sock->cookie,
	                                   .backlog = atomic_load(&sock->backlog)};
	struct vma_tcp *tcp;
	int rc = vma_rail_tcp(rail, &tcp);

	memcpy(attr.local, &target->local, 4);
	return rc < 0 ? rc : vma_tcp_listen(tcp, &attr, &endpoint->listener);
}

/* The rail's reference passes if it succeeds. */
static int add_endpoint(struct stream_sock *sock, struct target *target, struct vma_rail *rail)
{
	struct endpoint *endpoint = vma_alloc(sizeof(*endpoint));
	int rc = -ENOMEM;

	if (endpoint == NULL)
		return rc;
	endpoint->rail = rail;
	endpoint->local = target->local;
	endpoint->vlan = target->vlan;
	endpoint->port_be = sock->local.sin_port;
	rc = join_endpoint(endpoint, sock); /* before connections come */
	if (rc == 0)
		rc = open_endpoint(sock, target, rail, endpoint);
	if (rc < 0) {
		vma_free(atomic_load(&endpoint->members));
		vma_free(endpoint);
		return rc;
	}
	endpoint->next = endpoints;
	endpoints = endpoint;
	target->endpoint = endpoint;
	return 0;
}

static int attach(struct stream_sock *sock, struct target *target, struct vma_device *device)
{
	struct vma_ring_where where = {.socket_id = sock->file.id};
	struct endpoint *endpoint;
	struct vma_rail *rail;
	int rc;

	memcpy(where.local, &target->local, 4);
	rc = vma_rail_get(device, VMA_RAIL_RX, &where, &rail);
	if (rc < 0)
		return rc;
	endpoint = find_endpoint(target, rail, sock->local.sin_port);
	if (endpoint == NULL) {
		rc = add_endpoint(sock, target, rail);
		if (rc < 0)
			vma_rail_put(rail);
		return rc;
	}
	vma_rail_put(rail); /* the endpoint has it */
	rc = join_endpoint(endpoint, sock);
	if (rc == 0)
		target->endpoint = endpoint;
	return rc;
}

/* ---- what should be attached ---- */

static int want(struct stream_listen *listen, uint32_t local, const struct stream_place *place)
{
	struct target *larger;

	for (uint32_t i = 0; i < listen->n; i++) {
		struct target *t = &listen->at[i];

		if (t->local == local && t->device == place->device && t->vlan == place->vlan) {
			t->wanted = true;
			return 0;
		}
	}
	if (listen->n == listen->room) {
		larger = vma_alloc((listen->room * 2 + 4) * sizeof(*larger));
		if (larger == NULL)
			return -ENOMEM;
		if (listen->n != 0)
			memcpy(larger, listen->at, listen->n * sizeof(*larger));
		vma_free(listen->at);
		listen->at = larger;
		listen->room = listen->room * 2 + 4;
	}
	listen->at[listen->n++] =
	        (struct target){.local = local, .device = place->device, .vlan = place->vlan, .wanted = true};
	return 0;
}

static struct vma_net_addr *read_addrs(struct vma_net *net, uint32_t *count)
{
	struct vma_net_addr *addrs = NULL;
	int n = vma_net_addrs(net, 0, NULL, 0);
	uint32_t room = 0;

	while (n > 0 && (uint32_t)n > room) {
		vma_free(addrs);
		room = (uint32_t)n + 4;
		addrs = vma_alloc(room * sizeof(*addrs));
		n = addrs != NULL ? vma_net_addrs(net, 0, addrs, room) : -ENOMEM;
	}
	*count = n > 0 ? (uint32_t)n : 0;
	return addrs;
}

/* Every local address that the socket stands for, where an interface has it. *reason: of the last one that is not. */
static void want_all(struct stream_sock *sock, struct vma_net *net, enum vma_sock_reason *reason)
{
	uint32_t n, local = sock->local.sin_addr.s_addr, address;
	struct vma_net_addr *addrs = read_addrs(net, &n);
	struct stream_place place;

	for (uint32_t i = 0; i < n; i++) {
		memcpy(&address, addrs[i].address, 4);
		if (addrs[i].family != AF_INET || ntohl(address) >> 24 == IN_LOOPBACKNET ||
		    (local != INADDR_ANY && local != address) ||
		    (sock->bound_ifindex != 0 && sock->bound_ifindex != addrs[i].ifindex))
			continue;
		*reason = stream_place_of(net, addrs[i].ifindex, &place);
		if (*reason == VMA_SOCK_OFFLOADED && want(sock->listen, address, &place) < 0)
			*reason = VMA_SOCK_NO_MEMORY;
	}
	vma_free(addrs);
}

/* ---- update ---- */

/* Devices are opened before the lock is taken: that may start a vmad. */
static void open_devices(struct stream_listen *listen, struct vma_engine *engine)
{
	struct vma_device *unused;

	for (uint32_t i = 0; i < listen->n; i++) {
		if (listen->at[i].wanted && listen->at[i].endpoint == NULL)
			listen->at[i].error = vma_device_get(engine, listen->at[i].device, &unused);
	}
}

static void forget_unwanted(struct stream_sock *sock, struct stream_listen *listen)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < listen->n; i++) {
		if (listen->at[i].wanted) {
			listen->at[kept++] = listen->at[i];
			listen->at[kept - 1].wanted = false;
		} else if (listen->at[i].endpoint != NULL) {
			leave_endpoint(listen->at[i].endpoint, sock);
		}
	}
	listen->n = kept;
}

static void apply(struct stream_sock *sock, struct vma_engine *engine)
{
	struct stream_listen *listen = sock->listen;
	struct vma_device *device;
	uint64_t rings = 0;

	open_devices(listen, engine);
	pthread_mutex_lock(&endpoints_lock);
	for (uint32_t i = 0; i < listen->n; i++) {
		struct target *t = &listen->at[i];

		if (t->wanted && t->endpoint == NULL && t->error == 0)
			t->error = vma_device_get(engine, t->device, &device);
		if (t->wanted && t->endpoint == NULL && t->error == 0)
			t->error = attach(sock, t, device);
		if (t->wanted && t->endpoint != NULL)
			rings |= vma_rail_bit(t->endpoint->rail);
	}
	forget_unwanted(sock, listen);
	pthread_mutex_unlock(&endpoints_lock);
	atomic_store(&sock->rings, rings);
}

static enum vma_sock_reason reason_of_listener(const struct stream_listen *listen, enum vma_sock_reason otherwise)
{
	bool any = false;

	for (uint32_t i = 0; i < listen->n; i++) {
		if (listen->at[i].endpoint != NULL)
			return VMA_SOCK_OFFLOADED;
		if (!any || listen->at[i].error == -EADDRINUSE)
			otherwise = stream_reason_of(listen->at[i].error);
		any = true;
	}
	return otherwise;
}

static void ask_for_retry(struct stream_sock *sock)
{
	bool retry = false;

	for (uint32_t i = 0; i < sock->listen->n; i++) {
		enum vma_sock_reason reason = stream_reason_of(sock->listen->at[i].error);

		retry |= sock->listen->at[i].endpoint == NULL &&
		         (reason == VMA_SOCK_PORT_SHARED || reason == VMA_SOCK_NO_MEMORY ||
		          sock->listen->at[i].error == -EAGAIN);
	}
	atomic_store_explicit(&sock->file.retry, retry, memory_order_relaxed);
	if (retry)
		vma_engine_retry();
}

static void tell_rings(struct stream_sock *sock, uint64_t before)
{
	struct vma_watchers *watchers = atomic_load_explicit(&sock->file.watchers, memory_order_acquire);
	uint64_t rings = atomic_load(&sock->rings);

	if (rings == before)
		return;
	for (uint32_t i = 0; watchers != NULL && i < watchers->n; i++)
		watchers->watcher[i]->rings(watchers->watcher[i], rings);
	vma_waitq_wake(&sock->file.waitq, true);
}

void stream_listen_update(struct stream_sock *sock)
{
	struct vma_engine *engine = vma_engine();
	enum vma_sock_reason reason = VMA_SOCK_LOCAL;
	uint64_t before = atomic_load(&sock->rings);

	if (engine == NULL || sock->file.os_only || stream_has_ended(sock) || atomic_load(&sock->inherited) ||
	    stream_phase(sock) != STREAM_LISTENING)
		return;
	if (sock->listen == NULL)
		sock->listen = vma_alloc(sizeof(*sock->listen));
	if (sock->listen == NULL) {
		reason = VMA_SOCK_NO_MEMORY;
	} else {
		if (stream_is_for_os(sock))
			reason = VMA_SOCK_OPTION;
		else
			want_all(sock, engine->net, &reason);
		apply(sock, engine);
		ask_for_retry(sock);
		reason = reason_of_listener(sock->listen, reason);
	}
	atomic_store(&sock->reason, reason);
	tell_rings(sock, before);
	stream_describe(sock);
	vma_retire_poll();
}

void stream_listen_end(struct stream_sock *sock)
{
	struct stream_listen *listen = sock->listen;
	uint64_t before = atomic_load(&sock->rings);

	if (listen != NULL) {
		pthread_mutex_lock(&endpoints_lock);
		forget_unwanted(sock, listen); /* nothing is wanted between two updates */
		pthread_mutex_unlock(&endpoints_lock);
		sock->listen = NULL;
		vma_free(listen->at);
		vma_free(listen);
	}
	atomic_store(&sock->rings, 0);
	tell_rings(sock, before);
	stream_accept_drop(sock);
}

/* ---- listen ---- */

/* What the kernel has made of the backlog: the second listen() of a socket changes no more than that. */
static uint32_t backlog_of(int fd)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	return vma_os.getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 ? info.tcpi_sacked : 128;
}

void stream_listen_options(struct stream_sock *sock)
{
	for (uint32_t i = 0; sock->listen != NULL && i < sock->listen->n; i++) {
		if (sock->listen->at[i].endpoint != NULL)
			vma_tcp_listener_set(sock->listen->at[i].endpoint->listener, &sock->options,
			                     atomic_load(&sock->backlog));
	}
}

static void set_backlog(struct stream_sock *sock, int fd)
{
	atomic_store(&sock->backlog, backlog_of(fd));
	stream_listen_options(sock);
}

static int listen_locked(struct stream_sock *sock, int fd, int backlog)
{
	if (stream_conn(sock) != NULL || sock->attempt != STREAM_UNCONNECTED)
		return -EINVAL;
	if (vma_os.listen(fd, backlog) != 0)
		return -errno;
	stream_cookie(sock, fd);
	stream_take_local(sock, fd);
	set_backlog(sock, fd);
	atomic_store(&sock->shut_rd, false);
	atomic_store(&sock->shut_wr, false);
	atomic_store(&sock->phase, STREAM_LISTENING);
	stream_listen_update(sock);
	return 0;
}

int stream_listen(struct vma_file *file, int fd, int backlog)
{
	struct stream_sock *sock = stream_sock(file);
	int rc;

	pthread_mutex_lock(&file->lock);
	rc = listen_locked(sock, fd, backlog);
	pthread_mutex_unlock(&file->lock);
	if (rc == 0) /* the shadow's queue counts as well */
		vma_file_set_own_poll(file, false);
	return rc;
}

/* ---- fork: the parent's endpoints and rings are not this process's ---- */

void stream_listen_forked(struct stream_sock *sock)
{
	sock->listen = NULL;
	sock->queue = NULL;
	ck_stack_init(&sock->arrived);
	atomic_store(&sock->n_queued, 0);
	atomic_store(&sock->rings, 0);
}

void stream_endpoints_forked(void)
{
	pthread_mutex_init(&endpoints_lock, NULL);
	endpoints = NULL;
}

void stream_take_up(struct stream_sock *sock)
{
	pthread_mutex_lock(&sock->file.lock);
	if (vma_engine() != NULL && atomic_exchange(&sock->inherited, false)) {
		sock->engine = vma_engine();
		stream_listen_update(sock);
	}
	pthread_mutex_unlock(&sock->file.lock);
}

static void run_update(struct vma_task *task)
{
	struct stream_sock *sock = (struct stream_sock *)((char *)task - offsetof(struct stream_sock, update_task));

	atomic_store(&sock->update_asked, false);
	stream_take_up(sock);
	vma_file_put(&sock->file);
}

/* Not by the caller: whoever polls may hold locks that are taken after a file's. */
void stream_ask_update(struct stream_sock *sock)
{
	if (vma_engine() == NULL || atomic_exchange(&sock->update_asked, true))
		return;
	sock->update_task.run = run_update;
	vma_file_get(&sock->file);
	vma_engine_post(&sock->update_task);
}
