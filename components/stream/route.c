/*
 * route.c - how a peer is reached: the kernel's route, a device and its ring context, and the path as it changes.
 *
 *   net ── changed ──> task of the internal thread ── vma_tcp_set_path ──> connection
 *
 * Connections to one address share a path: ports are part of the question only if the application has bound one.
 */
#include <errno.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include <vma/log.h>

#include "stream_priv.h"

/* ---- interfaces ---- */

static bool route_link_is_usable(const struct vma_net_link *link)
{
	return link->hw_type == ARPHRD_ETHER && (link->flags & IFF_UP) != 0;
}

enum vma_sock_reason stream_find_device_and_vlan(struct vma_net *net, uint32_t ifindex,
                                                 struct stream_device_and_vlan *place)
{
	struct vma_net_link link;

	if (vma_net_get_link(net, ifindex, &link) != 0)
		return VMA_SOCK_NO_DEVICE;
	if ((link.flags & IFF_LOOPBACK) != 0)
		return VMA_SOCK_LOCAL;
	if (!route_link_is_usable(&link))
		return VMA_SOCK_NO_DEVICE;
	*place = (struct stream_device_and_vlan){.device = ifindex};
	if (link.vlan == 0)
		return VMA_SOCK_OFFLOADED;
	*place = (struct stream_device_and_vlan){.device = link.lower, .vlan = link.vlan};
	if (link.lower == 0 || vma_net_get_link(net, link.lower, &link) != 0 || !route_link_is_usable(&link) ||
	    link.vlan != 0)
		return VMA_SOCK_NO_DEVICE;
	return VMA_SOCK_OFFLOADED;
}

/* ---- a route ---- */

static struct vma_net_key route_key_of(const struct stream_sock *sock, uint32_t local, uint16_t local_port_be,
                                       const struct sockaddr_in *peer, bool ports)
{
	struct vma_net_key key = {.family = AF_INET,
	                          .proto = IPPROTO_TCP,
	                          .oif = sock->bound_ifindex,
	                          .mark = sock->mark,
	                          .uid = geteuid(),
	                          .tos = (uint8_t)sock->options.tos,
	                          .sport_be = local_port_be,
	                          .dport_be = ports ? peer->sin_port : 0,
	                          .flags = VMA_NET_KEY_CONNECT};

	memcpy(key.dst, &peer->sin_addr, 4);
	memcpy(key.src, &local, 4);
	return key;
}

/* Why a path is the OS's. */
static enum vma_sock_reason path_not_offloaded_reason(const struct vma_net_template *t)
{
	if (t->state == VMA_NET_USE_OS && t->reason == VMA_NET_REASON_LOCAL)
		return VMA_SOCK_LOCAL;
	return VMA_SOCK_NO_DEVICE;
}

static bool route_can_be_offloaded(const struct vma_net_template *t)
{
	return t->state != VMA_NET_USE_OS && t->state != VMA_NET_ERROR && t->type == RTN_UNICAST;
}

static int route_get_ring_ctx(struct stream_sock *sock, struct vma_engine *engine, struct stream_route *route)
{
	const struct vma_ring_requester where = vma_file_get_ring_requester(&sock->file, route->template.src);
	struct vma_device *device;
	int rc = vma_device_find_or_open(engine, route->template.nic, &device);

	if (rc < 0)
		return rc;
	rc = vma_ring_ctx_find_or_create(device, VMA_RING_CTX_TCP, &where, &route->ring_ctx);
	if (rc < 0)
		return rc;
	rc = vma_ring_ctx_get_or_create_tcp_stack(route->ring_ctx, &route->tcp);
	if (rc < 0) {
		vma_ring_ctx_put(route->ring_ctx);
		route->ring_ctx = NULL;
	}
	return rc;
}

/* Never routed off the host, so nobody has to be asked: a proxy connects there for each request. */
static bool peer_is_loopback(const struct sockaddr_in *peer)
{
	return ntohl(peer->sin_addr.s_addr) >> IN_CLASSA_NSHIFT == IN_LOOPBACKNET;
}

/* The port is 0 unless the socket is bound: it is chosen afterwards. */
static bool rule_leaves_conn_to_kernel(struct stream_sock *sock, const struct vma_engine *engine,
                                       const struct sockaddr_in *peer, const struct vma_net_template *t)
{
	struct sockaddr_in local = {.sin_family = AF_INET, .sin_port = sock->local.sin_port};
	const struct vma_rule *rule;

	memcpy(&local.sin_addr, t->src, 4);
	rule = vma_inet_find_transport_rule(engine, VMA_RULES_TCP_CLIENT, peer, &local);
	if (rule != NULL)
		atomic_store(&sock->file.rule_line, rule->line);
	return rule != NULL;
}

int stream_route_lookup(struct stream_sock *sock, struct vma_engine *engine, const struct sockaddr_in *peer,
                        struct stream_route *route, enum vma_sock_reason *reason)
{
	struct vma_net_key key;
	int rc;

	*route = (struct stream_route){0};
	if (peer_is_loopback(peer)) {
		*reason = VMA_SOCK_LOCAL;
		return -ENOTSUP;
	}
	key = route_key_of(sock, sock->local.sin_addr.s_addr, sock->local.sin_port, peer, true);
	*reason = VMA_SOCK_NO_DEVICE;
	if (vma_net_path_get(engine->net, &key, &route->path) != 0)
		return -ENOTSUP;
	vma_net_path_read_template(route->path, &route->template);
	if (rule_leaves_conn_to_kernel(sock, engine, peer, &route->template)) {
		*reason = VMA_SOCK_RULE;
		rc = -ENOTSUP;
	} else if (!route_can_be_offloaded(&route->template)) {
		*reason = path_not_offloaded_reason(&route->template);
		rc = -ENOTSUP;
	} else {
		rc = route_get_ring_ctx(sock, engine, route);
		*reason = vma_sock_reason_of_errno(rc);
	}
	if (rc == 0)
		return 0;
	stream_route_put(engine, route);
	return -ENOTSUP;
}

void stream_route_put(struct vma_engine *engine, struct stream_route *route)
{
	if (route->path != NULL)
		vma_net_path_put(engine->net, route->path);
	if (route->ring_ctx != NULL)
		vma_ring_ctx_put(route->ring_ctx);
	*route = (struct stream_route){0};
}

/* ---- a path is followed ---- */

struct vma_tcp_path stream_path_without_header(const struct vma_net_template *t)
{
	return (struct vma_tcp_path){.mtu = t->mtu,
	                             .ip_off = t->ip_off,
	                             .advmss = t->advmss,
	                             .initcwnd = t->initcwnd,
	                             .quickack = t->flags & VMA_NET_QUICKACK};
}

static struct vma_tcp_path net_template_to_tcp_path(const struct stream_sock *sock, const struct vma_net_template *t)
{
	struct vma_tcp_path path = stream_path_without_header(t);

	/* Another device than the connection's: it cannot be moved. */
	if (t->state != VMA_NET_READY || sock->ring_ctx == NULL || t->nic != sock->ring_ctx->device->ifindex)
		return path;
	memcpy(path.bytes, t->bytes, t->len);
	path.len = t->len;
	return path;
}

static bool tcp_paths_are_equal(const struct vma_tcp_path *a, const struct vma_tcp_path *b)
{
	return a->len == b->len && a->mtu == b->mtu && a->advmss == b->advmss && a->initcwnd == b->initcwnd &&
	       a->quickack == b->quickack && memcmp(a->bytes, b->bytes, a->len) == 0;
}

void stream_route_update_path(struct stream_sock *sock)
{
	struct vma_tcp_conn *conn = stream_tcp_conn(sock);
	struct vma_net_template t;
	struct vma_tcp_path path;
	bool told;

	if (conn == NULL || sock->path == NULL)
		return;
	vma_net_path_read_template(sock->path, &t);
	if (stream_sock_phase(sock) == STREAM_CONNECTING && t.error != 0 &&
	    (t.state == VMA_NET_FAILED || t.state == VMA_NET_ERROR)) {
		stream_fail_connect(sock, t.error);
		return;
	}
	path = net_template_to_tcp_path(sock, &t);
	/* Without memory the connection keeps its old path; it is told again. */
	told = tcp_paths_are_equal(&path, &sock->route) || vma_tcp_set_path(conn, &path) == 0;
	if (told)
		sock->route = path;
	/* What passes by the kernel does not confirm its neighbours, and nobody else may ask for one that does not
	 * answer, or that the kernel has forgotten: all of an interface whose own MAC changes. */
	if (t.flags & VMA_NET_CONFIRM || t.state == VMA_NET_FAILED || t.state == VMA_NET_RESOLVING)
		vma_net_path_probe(sock->engine->net, sock->path);
	atomic_store_explicit(&sock->file.retry, t.state != VMA_NET_READY || !told, memory_order_relaxed);
	if (t.state != VMA_NET_READY || !told)
		vma_engine_schedule_offload_retry();
}

/* What is known may not have been read yet; so the kernel is asked before a connection is moved for it. */
bool stream_route_interface_is_gone(const struct stream_sock *sock)
{
	const uint32_t ifindex = sock->ring_ctx != NULL ? sock->ring_ctx->device->ifindex : 0;
	struct vma_net_link link;

	return sock->ring_ctx != NULL && vma_net_link_cached(sock->engine->net, ifindex, &link) == -ENODEV &&
	       vma_net_get_link(sock->engine->net, ifindex, &link) == -ENODEV;
}

/*
 * The peer's FIN can be told to the kernel by a packet to the local address only. Then its interface is waited for:
 * to_kernel.c.
 */
static bool conn_has_received_fin(const struct stream_sock *sock)
{
	const int state = vma_tcp_state(stream_tcp_conn(sock));

	return state != TCP_ESTABLISHED && state != TCP_FIN_WAIT1 && state != TCP_FIN_WAIT2;
}

/*
 * The kernel has a route for the peer, but not through the connection's device. Or the device has been deleted: then
 * the kernel gets the connection before another interface has its address, or it would answer the peer with RST there.
 * While there is no route by a device that exists nothing can be said to the peer by anybody: an interface that is down
 * may come back.
 */
static bool route_left_conn_device(const struct stream_sock *sock, const struct vma_net_template *t)
{
	if (stream_route_interface_is_gone(sock) && !conn_has_received_fin(sock))
		return true;
	switch (t->state) {
	case VMA_NET_READY:
	case VMA_NET_RESOLVING:
	case VMA_NET_FAILED:
		return t->nic != sock->ring_ctx->device->ifindex;
	case VMA_NET_USE_OS:
		return t->reason != VMA_NET_REASON_NO_LINK && t->reason != VMA_NET_REASON_LINK_DOWN &&
		       t->reason != VMA_NET_REASON_NOT_ASKED;
	default:
		return false;
	}
}

/*
 * A connection keeps its device for life, so it goes on as the kernel's if its route is another: at once, since
 * whatever the peer says meets a kernel that knows of no such connection. If that fails, it is tried again every
 * second.
 */
bool stream_route_hand_over_if_moved(struct stream_sock *sock)
{
	const int lingering = atomic_load(&sock->lingering_fd);
	const int fd = lingering != 0 ? lingering : atomic_load(&sock->file.fd);
	const bool is_gone = stream_route_interface_is_gone(sock);
	struct vma_net_template t;
	int rc;

	if (sock->path == NULL || sock->ring_ctx == NULL || stream_sock_phase(sock) != STREAM_CONNECTED ||
	    stream_tcp_conn(sock) == NULL)
		return false;
	vma_net_path_read_template(sock->path, &t);
	if (!route_left_conn_device(sock, &t))
		return false;
	stream_so_cookie(sock, fd);
	rc = stream_hand_over_conn_to_kernel(sock, fd, VMA_SOCK_REROUTED);
	if (rc == 0) {
		sock->was_unrouted = is_gone;
		return true;
	}
	vma_log_debug("fd %d: its route leads elsewhere, and it is not the kernel's yet: error %d", fd, -rc);
	atomic_store_explicit(&sock->file.retry, true, memory_order_relaxed);
	vma_engine_schedule_offload_retry();
	return false;
}

/*
 * The kernel tries to send at its own pace, which after an outage is seconds. The network has changed, so it tries now:
 * that a cork is taken away means so, also if there is none.
 */
void stream_route_kick_kernel_retransmit(struct stream_sock *sock)
{
	const int fd = atomic_load(&sock->file.fd);
	int unsent = 0, cork = 0;
	socklen_t len = sizeof(cork);

	if (stream_fd_is_own_shadow(sock, fd) && vma_os.ioctl(fd, SIOCOUTQNSD, &unsent) == 0 && unsent != 0 &&
	    vma_os.getsockopt(fd, IPPROTO_TCP, TCP_CORK, &cork, &len) == 0 && cork == 0)
		vma_os.setsockopt(fd, IPPROTO_TCP, TCP_CORK, &cork, sizeof(cork));
}

static void route_path_changed_task(struct vma_internal_task *task)
{
	struct stream_sock *sock = (struct stream_sock *)((char *)task - offsetof(struct stream_sock, path_task));
	bool moved;

	atomic_store(&sock->path_scheduled, false); /* before the look: what changes later posts the task again */
	pthread_mutex_lock(&sock->file.lock);
	stream_route_update_path(sock);
	moved = stream_route_hand_over_if_moved(sock);
	pthread_mutex_unlock(&sock->file.lock);
	if (moved)
		stream_wake_waiters_after_hand_over(sock);
	vma_file_put(&sock->file);
}

/* With net's lock. The watch ends before the socket does, so there is a reference to add to. */
static void route_post_path_changed_task(struct vma_net_watch *watch, struct vma_net_path *path)
{
	struct stream_sock *sock = (struct stream_sock *)((char *)watch - offsetof(struct stream_sock, watch));

	(void)path;
	if (vma_file_mark_scheduled(&sock->file, &sock->path_scheduled))
		vma_engine_post_task_to_internal_thread(&sock->path_task);
}

void stream_route_watch_path(struct stream_sock *sock, struct vma_net_path *path)
{
	sock->path = path;
	sock->path_task.run = route_path_changed_task;
	sock->watch = (struct vma_net_watch){.changed = route_post_path_changed_task};
	vma_net_watch(sock->engine->net, path, &sock->watch);
}

void stream_route_unwatch_path(struct stream_sock *sock)
{
	struct vma_net_path *path = sock->path;

	if (path == NULL)
		return;
	sock->path = NULL;
	sock->route = (struct vma_tcp_path){0};
	atomic_store_explicit(&sock->file.retry, false, memory_order_relaxed);
	vma_net_unwatch(sock->engine->net, &sock->watch);
	vma_net_path_put(sock->engine->net, path);
}

/* The path that its SYN came by serves until then. */
void stream_route_find_for_accepted(struct stream_sock *sock, struct vma_engine *engine)
{
	struct vma_net_key key =
	        route_key_of(sock, sock->local.sin_addr.s_addr, sock->local.sin_port, &sock->peer, false);
	struct vma_net_path *path;

	if (vma_net_path_get(engine->net, &key, &path) != 0)
		return;
	stream_route_watch_path(sock, path);
	stream_route_update_path(sock);
}
