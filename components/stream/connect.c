/*
 * connect.c - connect: through a device of ours if the kernel's route leads there, else the shadow's own.
 *
 *   route, device, ring, stack ── connection, its SYN held back ── shadow bound to its port ── path told: SYN leaves
 *
 * In this order nothing has been sent if a port turns out to be another socket's. The answers are those of
 * inet_stream_connect: sock->attempt is its sock->state.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>

#include "stream_priv.h"
#include "xtreme.h"

#define TRIES_ALONE 16  /* ports that would do without a rule, but others have them, too */
#define BLOCK_TRIES 64  /* blocks of another's that are stepped over before a port in one of them is taken */
#define NEXT_TRIES 64   /* ports in use that are stepped over before one in TIME_WAIT is looked for */
#define LAST_TRIES 4096 /* ports in TIME_WAIT: another thread may be at the same ones, another process have them */

/* ---- through the kernel ---- */

/* Errors of calls that did not begin anything: the next call may lead elsewhere. */
static bool connect_error_is_immediate(int error)
{
	return error == EINVAL || error == EFAULT || error == EAFNOSUPPORT || error == ENETUNREACH ||
	       error == EADDRNOTAVAIL || error == EACCES || error == EPERM;
}

static void connect_by_kernel_on_cancel(void *arg)
{
	struct stream_sock *sock = arg;
	struct vma_thread *self = vma_enter();

	vma_file_put(&sock->file);
	vma_leave(self);
}

/* file.lock, which is given back: the call may wait, outside. If the thread is cancelled there, the kernel goes on. */
static int connect_by_kernel(struct stream_sock *sock, int fd, const struct sockaddr *addr, socklen_t len)
{
	int rc;

	sock->file.os_only = true;
	stream_describe_for_stats(sock);
	pthread_mutex_unlock(&sock->file.lock);
	vma_file_set_poll_without_shadow(&sock->file, false);
	vma_file_get(&sock->file);
	pthread_cleanup_push(connect_by_kernel_on_cancel, sock);
	vma_leave_to_block();
	rc = vma_os.connect(fd, addr, len) < 0 ? -errno : 0;
	pthread_cleanup_pop(0);
	vma_enter();
	if (rc < 0 && connect_error_is_immediate(-rc)) {
		sock->file.os_only = false;
		atomic_store(&sock->reason, VMA_SOCK_NEW);
		vma_file_set_poll_without_shadow(&sock->file, true);
	}
	vma_file_put(&sock->file);
	return rc;
}

/* ---- an attempt ---- */

static void connect_abort_with_reset(struct stream_sock *sock)
{
	stream_conn_end(sock);
	atomic_store(&sock->shut_rd, false);
	atomic_store(&sock->shut_wr, false);
	atomic_store(&sock->fin_seen, false);
	atomic_store(&sock->drained, false);
	atomic_store(&sock->close_state, STREAM_OPEN);
	atomic_store(&sock->phase, STREAM_FRESH);
	sock->peer = (struct sockaddr_in){0};
}

void stream_fail_connect(struct stream_sock *sock, int error)
{
	struct vma_tcp_conn *conn = stream_tcp_conn(sock);
	uint8_t connecting = STREAM_CONNECTING;
	int none = 0;

	atomic_compare_exchange_strong(&sock->so_error, &none, error);
	if (!atomic_compare_exchange_strong(&sock->phase, &connecting, STREAM_FAILED))
		return;
	if (conn != NULL)
		vma_tcp_close(conn, true);
	stream_wake_waiters(sock, EPOLLIN | EPOLLRDNORM | EPOLLOUT | EPOLLWRNORM | EPOLLRDHUP | EPOLLHUP | EPOLLERR);
}

static int connect_try_port(struct stream_sock *sock, struct stream_route *route, struct vma_tcp_conn_attr *attr,
                            uint16_t port_be)
{
	struct vma_tcp_conn *conn;
	int rc;

	attr->local_port_be = port_be;
	rc = vma_tcp_connect(route->tcp, attr, &conn);
	if (rc < 0)
		return rc;
	atomic_store(&sock->conn, conn);
	return 0;
}

/*
 * Which local port a connection tries next:
 *
 *   NEXT    the ports that follow the one tried last
 *   AGED    if those are in use, the port that has been in TIME_WAIT for longest, if it may be used again by the rules
 *           of RFC 6191. A program that connects more often than it has ports in a minute would walk past thousands.
 *   ALL     else each port that there is, also in blocks of others, where it takes a rule of its own
 *   OLDEST  if all are in use: the port that has been in TIME_WAIT for longest, after 250 ms and without time stamps, too.
 *           The kernel answers EADDRNOTAVAIL, after 28,232 connections a minute to one peer. A program that makes
 *           15,000 a second is to go on. For a second after that, ALL is left out: it takes milliseconds. If there is
 *           none such, ALL follows after all, since ports may have become free.
 */
struct connect_port_search {
	enum { PORTS_NEXT, PORTS_AGED, PORTS_ALL, PORTS_OLDEST } phase;
	uint32_t tried, tried_all, oldest_tried;
	uint32_t skipped; /* blocks */
	uint32_t shared;  /* ports that other sockets of this host have */
	bool late_all;    /* ALL follows OLDEST */
};

static uint16_t connect_next_port_candidate(const struct stream_sock *sock, const struct stream_route *route,
                                            struct vma_tcp_conn_attr *attr, const struct sockaddr_in *local,
                                            struct connect_port_search *search)
{
	uint16_t port_be;

	switch (search->phase) {
	case PORTS_NEXT:
		if (search->tried++ < NEXT_TRIES)
			break;
		search->phase = PORTS_AGED;
		port_be = vma_tcp_oldest_timewait_port(route->tcp, attr);
		if (port_be != 0)
			return port_be;
		/* fallthrough */
	case PORTS_AGED:
		search->phase = PORTS_ALL;
		/* fallthrough */
	case PORTS_ALL:
		if (search->tried_all < stream_ephemeral_port_count() &&
		    (search->late_all || !stream_port_is_scarce(local, &sock->peer))) {
			search->tried_all++;
			break;
		}
		if (search->late_all)
			return 0;
		search->phase = PORTS_OLDEST;
		stream_port_set_scarce(local, &sock->peer);
		attr->time_wait_ends = true;
		/* fallthrough */
	case PORTS_OLDEST:
		port_be = search->oldest_tried++ < LAST_TRIES ? vma_tcp_oldest_timewait_port(route->tcp, attr) : 0;
		if (port_be != 0 || search->tried_all >= stream_ephemeral_port_count())
			return port_be;
		search->phase = PORTS_ALL;
		search->late_all = true;
		attr->time_wait_ends = false;
	}
	return stream_port_candidate(local, &sock->peer, route->ring_ctx->id, search->phase == PORTS_ALL);
}

static bool nic_covers_whole_addresses(const struct stream_route *route)
{
	return vma_nic_info(route->ring_ctx->device->nic)->caps & VMA_NIC_CAP_TO_KERNEL;
}

/*
 * As vma_tcp_request_port_block says. If the NIC has no ranges of ports, it is asked for all TCP of an address, which is
 * for addresses that the program has named: the kernel's connections of the address are slower meanwhile.
 */
static int connect_request_port_block(const struct stream_sock *sock, const struct stream_route *route,
                                      const struct vma_tcp_conn_attr *attr)
{
	struct vma_flow_key address = {.family = AF_INET, .proto = IPPROTO_TCP, .vlan = attr->vlan};
	int covers;

	if (!nic_covers_whole_addresses(route))
		return vma_tcp_request_port_block(route->tcp, attr);
	if (!sock->engine->conf.tcp_2t_rules)
		return 0;
	if (sock->local.sin_family != AF_INET || sock->local.sin_addr.s_addr == INADDR_ANY) {
		vma_log_once(VMA_LOG_WARN,
		             "%s: VMA_TCP_2T_RULES has no effect on a socket that is not bound to an address: a card's "
		             "rule for many ports takes all TCP of the address",
		             vma_nic_info(route->ring_ctx->device->nic)->name);
		return 0;
	}
	covers = vma_tcp_request_port_block(route->tcp, attr);
	if (vma_ring_take_new_address_mark(route->ring_ctx->ring)) {
		memcpy(address.local, attr->local, 4);
		vma_ring_ctx_leave_flow_to_kernel(route->ring_ctx, &address);
	}
	return covers;
}

/* The connection made, and the shadow bound. */
static int connect_try_reserved_port(struct stream_sock *sock, int fd, struct stream_route *route,
                                     struct vma_tcp_conn_attr *attr, const struct sockaddr_in *local)
{
	int rc = connect_try_port(sock, route, attr, local->sin_port);

	return rc == 0 ? stream_port_reserve(sock, fd, local, attr->covered) : rc;
}

/*
 * In another's block. A rule for a port at which he has a new connection to the same peer would take its segments, so
 * the port is claimed first.
 */
static int connect_try_port_in_others_block(struct stream_sock *sock, int fd, struct stream_route *route,
                                            struct vma_tcp_conn_attr *attr, const struct sockaddr_in *local)
{
	int claim = stream_port_reserve_in_kernel(local), rc;

	if (claim < 0)
		return claim;
	rc = connect_try_reserved_port(sock, fd, route, attr, local);
	syscall(SYS_close, claim);
	return rc;
}

/*
 * One port, of which connect_request_port_block has said `covers`. It may be had without a rule if nobody else has it:
 * that is known when the shadow is bound to it, and
 * then the port cannot be changed any more.
 */
static int connect_try_port_with_shadow(struct stream_sock *sock, int fd, struct stream_route *route,
                                        struct vma_tcp_conn_attr *attr, const struct sockaddr_in *local, int covers,
                                        bool may_share)
{
	int rc;

	attr->covered = false;
	if (covers == -EADDRINUSE)
		return connect_try_port_in_others_block(sock, fd, route, attr, local);
	attr->covered = covers == 1 && !may_share;
	rc = connect_try_reserved_port(sock, fd, route, attr, local);
	if (rc != 0 || !attr->covered)
		return rc;
	if (connect_request_port_block(sock, route, attr) != 1)
		return vma_tcp_conn_add_own_nic_rule(stream_tcp_conn(sock)) < 0 ? -EADDRNOTAVAIL : 0;
	if (!sock->engine->conf.tcp_2t_rules)
		vma_engine_schedule_steer_of_conn(
		        stream_tcp_conn(sock)); /* later: short ones need no rule of their own */
	return 0;
}

/* An attempt's, that has not said anything yet. False: there was none. */
static bool connect_drop_conn(struct stream_sock *sock)
{
	struct vma_tcp_conn *conn = atomic_exchange(&sock->conn, NULL);

	if (conn == NULL)
		return false;
	vma_tcp_conn_drop_owner_and_abort(conn);
	vma_tcp_conn_put(conn);
	return true;
}

/* The next port that is free for this peer, in the stack and in the kernel. */
static int connect_search_free_port(struct stream_sock *sock, int fd, struct stream_route *route,
                                    struct vma_tcp_conn_attr *attr, struct sockaddr_in *local)
{
	struct connect_port_search search = {.phase = PORTS_NEXT};
	int covers, rc;

	for (;;) {
		local->sin_port = connect_next_port_candidate(sock, route, attr, local, &search);
		if (local->sin_port == 0)
			return -EADDRNOTAVAIL;
		attr->local_port_be = local->sin_port;
		covers = connect_request_port_block(sock, route, attr);
		/* Of another process, or of another ring of this one. */
		if (covers == -EADDRINUSE && search.phase == PORTS_NEXT && search.skipped < BLOCK_TRIES) {
			stream_port_skip_block(local, &sock->peer, route->ring_ctx->id);
			search.skipped++;
			continue;
		}
		rc = connect_try_port_with_shadow(sock, fd, route, attr, local, covers,
		                                  sock->reuse_addr || search.shared >= TRIES_ALONE);
		if (rc == 0)
			return 0;
		search.shared += connect_drop_conn(sock);
		if (rc != -EADDRINUSE)
			return rc;
	}
}

/* bind has reserved it. Without SO_REUSEADDR and SO_REUSEPORT nobody else has it. Blocks of ports are too narrow: the
 * kernel chooses ports all over its range. */
static bool connect_bound_port_needs_no_rule(const struct stream_sock *sock, const struct stream_route *route,
                                             const struct vma_tcp_conn_attr *attr)
{
	return nic_covers_whole_addresses(route) && sock->local.sin_port != 0 && !sock->reuse_addr &&
	       !sock->reuse_port && connect_request_port_block(sock, route, attr) == 1;
}

/* -EADDRNOTAVAIL as the kernel: the address is bound, but connected to this peer already. */
static int connect_try_bound_port(struct stream_sock *sock, struct stream_route *route, struct vma_tcp_conn_attr *attr,
                                  uint16_t port_be)
{
	int rc;

	attr->port_is_bound = true;
	attr->local_port_be = port_be;
	attr->covered = connect_bound_port_needs_no_rule(sock, route, attr);
	rc = connect_try_port(sock, route, attr, port_be);
	/* Once more: what covers it may have been given back before it was there (vma_ring_release_unused_port_blocks). */
	if (rc == 0 && attr->covered && connect_request_port_block(sock, route, attr) != 1) {
		rc = vma_tcp_conn_add_own_nic_rule(stream_tcp_conn(sock));
		if (rc < 0)
			connect_drop_conn(sock);
	}
	return rc == -EADDRINUSE ? -EADDRNOTAVAIL : rc;
}

static void connect_fill_conn_attr(struct stream_sock *sock, const struct stream_route *route,
                                   struct vma_tcp_conn_attr *attr)
{
	*attr = (struct vma_tcp_conn_attr){.owner = &stream_owner,
	                                   .arg = sock,
	                                   .options = &sock->options,
	                                   .path = stream_path_without_header(&route->template),
	                                   .family = AF_INET,
	                                   .vlan = route->template.vlan,
	                                   .peer_port_be = sock->peer.sin_port,
	                                   .shadow_cookie = sock->cookie,
	                                   .shadow_fd = atomic_load(&sock->file.fd),
	                                   .inspected = atomic_load(&sock->inspector) != NULL};
	memcpy(attr->local, route->template.src, 4);
	memcpy(attr->peer, &sock->peer.sin_addr, 4);
}

/* The connection made and its port reserved. */
static int create_connection(struct stream_sock *sock, int fd, struct stream_route *route, struct sockaddr_in *local)
{
	struct vma_tcp_conn_attr attr;

	stream_so_cookie(sock, fd);
	connect_fill_conn_attr(sock, route, &attr);
	if (sock->local.sin_port != 0)
		local->sin_port = sock->local.sin_port;
	else if (sock->reserved.sin_family == AF_INET)
		local->sin_port = sock->reserved.sin_port;
	else
		return connect_search_free_port(sock, fd, route, &attr, local);
	return connect_try_bound_port(sock, route, &attr, local->sin_port);
}

/*
 * file.lock. 0: on its way; -ENOTSUP: for the kernel; else the answer. A shadow that an earlier attempt has bound to
 * another address cannot be bound again.
 */
static int connect_start_offloaded(struct stream_sock *sock, int fd, const struct sockaddr_in *peer)
{
	struct sockaddr_in local = {.sin_family = AF_INET};
	enum vma_sock_reason reason;
	struct stream_route route;
	int rc = stream_route_lookup(sock, sock->engine, peer, &route, &reason);

	atomic_store(&sock->reason, reason);
	if (rc < 0)
		return rc;
	memcpy(&local.sin_addr, route.template.src, 4);
	if (sock->reserved.sin_family == AF_INET && sock->reserved.sin_addr.s_addr != local.sin_addr.s_addr) {
		stream_route_put(sock->engine, &route);
		return -ENOTSUP;
	}
	sock->peer = *peer;
	memset(sock->peer.sin_zero, 0, sizeof(sock->peer.sin_zero));
	vma_file_get(&sock->file); /* the connection's */
	atomic_store(&sock->so_error, 0);
	atomic_store(&sock->rings, vma_ring_ctx_bit(route.ring_ctx));
	atomic_store(&sock->phase, STREAM_CONNECTING);
	rc = create_connection(sock, fd, &route, &local);
	if (rc < 0) {
		atomic_store(&sock->phase, STREAM_FRESH);
		atomic_store(&sock->rings, 0);
		vma_file_put(&sock->file);
		stream_route_put(sock->engine, &route);
		atomic_store(&sock->reason, vma_sock_reason_of_errno(rc));
		return rc == -EADDRNOTAVAIL ? rc : -ENOTSUP;
	}
	sock->ring_ctx = route.ring_ctx;
	sock->name = local;
	stream_route_watch_path(sock, route.path);
	if (route.template.state != VMA_NET_READY)
		vma_net_path_start_neigh_resolution(sock->engine->net, route.path);
	stream_route_update_path(sock);
	return 0;
}

/* ---- answers ---- */

static bool connect_attempt_has_ended(struct stream_sock *sock, const struct stream_wait_condition *what)
{
	(void)what;
	return stream_sock_phase(sock) != STREAM_CONNECTING;
}

/* The attempt has succeeded or failed, and this is the call that tells. */
static int connect_report_result(struct stream_sock *sock)
{
	const struct vma_tcp_conn *conn;
	int rc = 0;

	pthread_mutex_lock(&sock->file.lock);
	conn = stream_tcp_conn(sock);
	if (sock->attempt == STREAM_REPORTED) {
		rc = -EISCONN; /* another thread's call did */
	} else if (stream_sock_phase(sock) == STREAM_CONNECTED && conn != NULL &&
	           stream_kernel_view_of_state(conn) != TCP_CLOSE) {
		sock->attempt = STREAM_REPORTED;
	} else {
		rc = atomic_exchange(&sock->so_error, 0);
		rc = rc != 0 ? -rc : -ECONNABORTED;
		sock->attempt = STREAM_UNCONNECTED;
		if (!stream_has_ended(sock)) /* else the connection is not the socket's any more: conn.c */
			connect_abort_with_reset(sock);
	}
	pthread_mutex_unlock(&sock->file.lock);
	return rc;
}

/*
 * Waits for the attempt, as a blocking socket does; `meanwhile` is the answer of one that does not. The call that
 * begins it never tells its end then, however soon that comes: in the kernel, too, segments wait for the call to end.
 */
static int connect_wait_for_result(struct stream_sock *sock, int meanwhile)
{
	const struct vma_engine *engine = vma_engine_get_or_start();
	struct stream_wait_condition what = {
	        .ready = connect_attempt_has_ended, .spin = &sock->rx_spin, .shadow_fd = -1};
	const bool nonblocking = atomic_load_explicit(&sock->nonblocking, memory_order_relaxed);
	int rc = 1;

	if (nonblocking && meanwhile == -EINPROGRESS)
		return meanwhile;
	if (stream_sock_phase(sock) == STREAM_CONNECTING) {
		if (nonblocking)
			return meanwhile;
		what.deadline_ns = vma_inet_deadline(atomic_load_explicit(&sock->sndtimeo_ns, memory_order_relaxed));
		what.spin_loops = engine != NULL ? engine->conf.rx_poll : 0;
		if (!stream_call_enter(sock))
			return -EBADF;
		rc = stream_wait(sock, &what);
		stream_call_leave(sock);
	}
	if (rc > 0)
		return connect_report_result(sock);
	return rc == 0 ? meanwhile : rc;
}

/* One that does not wait. Not the C library's, which is a cancellation point: this is inside, with the lock held. */
static int connect_nonblocking_syscall(int fd, const struct sockaddr *addr, socklen_t len)
{
	return syscall(SYS_connect, fd, addr, len) < 0 ? -errno : 0;
}

/* Whether the peer is told by a reset (tcp_need_reset of the kernel, and an attempt), of which the socket then tells.
 */
static bool disconnect_sends_reset(struct stream_sock *sock)
{
	const struct vma_tcp_conn *conn = stream_tcp_conn(sock);
	int state = conn != NULL ? stream_kernel_view_of_state(conn) : TCP_CLOSE;

	return state == TCP_ESTABLISHED || state == TCP_CLOSE_WAIT || state == TCP_FIN_WAIT1 ||
	       state == TCP_FIN_WAIT2 || state == TCP_SYN_RECV || state == TCP_SYN_SENT;
}

/* As the kernel's tcp_disconnect: not connected any more, and free for another attempt. file.lock. */
void stream_tcp_disconnect(struct stream_sock *sock)
{
	const bool cut_off = disconnect_sends_reset(sock);

	connect_abort_with_reset(sock);
	if (cut_off)
		atomic_store(&sock->so_error, ECONNRESET);
	sock->attempt = STREAM_UNCONNECTED;
	stream_wake_waiters(sock, EPOLLIN | EPOLLOUT | EPOLLHUP | EPOLLERR);
}

enum { DISCONNECT_TRIES_MAX = 8 };

/*
 * While no thread drives, the peer has not answered, or its answer has not been looked at. The release of the ring ends
 * the attempt before the next look, so the answer is never acknowledged. False: it was.
 */
static bool withdraw_connect_if_syn_sent(struct vma_tcp_conn *conn)
{
	struct vma_ring *ring = vma_tcp_ring(vma_tcp_conn_current_stack(conn));
	const bool held = vma_ring_acquire(ring);
	const bool is_open = vma_tcp_state(conn) == TCP_SYN_SENT;

	if (is_open)
		vma_tcp_close(conn, true);
	if (held)
		vma_ring_release(ring);
	return is_open;
}

/*
 * An attempt that nobody waits for in connect() becomes the kernel's, which begins it anew from the same port; the
 * reset of the first one lets the peer forget it. An attempt that has succeeded meanwhile stays. file.lock.
 */
bool stream_hand_connecting_to_kernel(struct stream_sock *sock)
{
	const struct sockaddr_in peer = sock->peer;
	const int fd = atomic_load(&sock->file.fd);
	int rc, tries = 0;

	if (stream_sock_phase(sock) != STREAM_CONNECTING || !atomic_load(&sock->nonblocking))
		return false;
	do {
		vma_ring_ctxs_progress(stream_ring_bits(&sock->file));
		if (stream_sock_phase(sock) != STREAM_CONNECTING)
			return false;
	} while (!withdraw_connect_if_syn_sent(stream_tcp_conn(sock)) && ++tries < DISCONNECT_TRIES_MAX);
	if (tries == DISCONNECT_TRIES_MAX) /* it has ended, and that is not noted yet */
		vma_tcp_close(stream_tcp_conn(sock), true);
	connect_abort_with_reset(sock);
	sock->attempt = STREAM_UNCONNECTED;
	sock->file.os_only = true;
	atomic_store(&sock->reason, VMA_SOCK_PASSED_ON);
	vma_engine_report_kernel_fallback(VMA_SOCK_PASSED_ON, 0, "a TCP connection that is being made");
	rc = vma_shadow_connect(fd, sock->file.family, &peer);
	if (rc < 0 && rc != -EINPROGRESS)
		vma_log_warn("fd %d: the kernel does not begin a connection again that was given away on its way: %s",
		             fd, strerrordesc_np(-rc));
	stream_describe_for_stats(sock);
	return true;
}

/* connect(AF_UNSPEC) */
static int stream_disconnect(struct stream_sock *sock, int fd, const struct sockaddr *addr, socklen_t len)
{
	int rc = 0;

	if (stream_sock_phase(sock) == STREAM_LISTENING || stream_sock_phase(sock) == STREAM_FRESH) {
		rc = connect_nonblocking_syscall(fd, addr, len);
		if (rc == 0 && stream_sock_phase(sock) == STREAM_LISTENING)
			stream_listen_end(sock);
	}
	if (rc == 0)
		stream_tcp_disconnect(sock);
	return rc;
}

static bool sockaddr_is_ipv4_unicast_with_port(const union vma_name *to)
{
	uint32_t address = ntohl(to->in.sin_addr.s_addr);

	return to->any.sa_family == AF_INET && to->in.sin_port != 0 && address != INADDR_ANY &&
	       address != INADDR_BROADCAST && !IN_MULTICAST(address);
}

/* The socket may be bound to an address, or set to IPV6_V6ONLY, as the kernel alone serves it: file.lock. */
static bool stream_local_addr_is_ipv6(struct stream_sock *sock, int fd)
{
	union vma_name local;

	if (sock->file.family != AF_INET6)
		return false;
	if (sock->local.sin_port != 0)
		return sock->local.sin_family == AF_INET6;
	return vma_shadow_getsockname(fd, &local, NULL) == 0 && local.any.sa_family == AF_INET6;
}

/* -ENOTSUP: it is for the kernel, which also finds what is wrong. */
static int connect_start_to_addr(struct stream_sock *sock, int fd, const struct sockaddr *addr, socklen_t len)
{
	union vma_name to;

	if (stream_has_kernel_only_option(sock)) {
		atomic_store(&sock->reason, VMA_SOCK_OPTION);
		return -ENOTSUP;
	}
	if (sock->engine == NULL || !vma_sockaddr_is_of_family(sock->file.family, addr, len) ||
	    vma_name_copy_from_program_sockaddr(sock->file.family, addr, len, &to) != 0)
		return -ENOTSUP;
	if (to.any.sa_family == AF_INET6 || stream_local_addr_is_ipv6(sock, fd)) {
		atomic_store(&sock->reason, VMA_SOCK_IPV6);
		return -ENOTSUP;
	}
	return sockaddr_is_ipv4_unicast_with_port(&to) ? connect_start_offloaded(sock, fd, &to.in) : -ENOTSUP;
}

/* file.lock; 1: given back, and *rc is the kernel's answer. */
static int connect_dispatch_by_socket_state(struct stream_sock *sock, int fd, const struct sockaddr *addr,
                                            socklen_t len, int *rc)
{
	sa_family_t family;
	int started;

	*rc = -EBADF;
	if (stream_has_ended(sock)) /* by another thread, since the descriptor was looked up */
		return 0;
	if (len < sizeof(family) || len > sizeof(struct sockaddr_storage) ||
	    vma_memcpy_or_efault(&family, addr, sizeof(family)) != 0) {
		*rc = connect_nonblocking_syscall(fd, addr, len); /* which fails before it begins */
		return 0;
	}
	if (family == AF_UNSPEC) {
		*rc = stream_disconnect(sock, fd, addr, len);
		return 0;
	}
	if (sock->attempt == STREAM_REPORTED || stream_sock_phase(sock) == STREAM_LISTENING) {
		*rc = -EISCONN;
		return 0;
	}
	*rc = -EALREADY;
	if (sock->attempt == STREAM_ATTEMPT)
		return 0;
	sock->engine = vma_engine_get_or_start(); /* made before a fork, perhaps */
	started = connect_start_to_addr(sock, fd, addr, len);
	if (started == -ENOTSUP) {
		vma_log_debug("fd %d: connects through the kernel: %s", fd,
		              vma_sock_reason_text(atomic_load(&sock->reason)));
		*rc = vma_engine_report_kernel_fallback(atomic_load(&sock->reason), ENETUNREACH, "a TCP connection");
		if (*rc < 0)
			return 0;
		*rc = connect_by_kernel(sock, fd, addr, len);
		return 1;
	}
	*rc = started == 0 ? -EINPROGRESS : started;
	if (started == 0) {
		sock->attempt = STREAM_ATTEMPT;
		stream_xtreme_on_connect_attempt(sock);
	}
	stream_describe_for_stats(sock);
	return 0;
}

int stream_connect(struct vma_file *file, int fd, const struct sockaddr *addr, socklen_t len)
{
	struct stream_sock *sock = stream_sock(file);
	int rc;

	pthread_mutex_lock(&file->lock);
	if (connect_dispatch_by_socket_state(sock, fd, addr, len, &rc) != 0)
		return rc;
	pthread_mutex_unlock(&file->lock);
	if (stream_tcp_conn(sock) != NULL)
		vma_file_set_poll_without_shadow(file, true); /* it may have listened before */
	stream_xtreme_watch(sock, rc == 0 || rc == -EINPROGRESS ? EPOLLOUT : 0);
	vma_run_due_deferred_frees();
	return rc == -EINPROGRESS || rc == -EALREADY ? connect_wait_for_result(sock, rc) : rc;
}
