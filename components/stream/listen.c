/*
 * listen.c - listen: the kernel's answer, then endpoints on the ring contexts of every local address that it stands
 * for.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>

#include "endpoint.h"
#include "xtreme.h"

/* Of one socket. */
struct stream_listen {
	uint32_t n, capacity;
	struct target {
		struct endpoint *endpoint; /* NULL: not attached */
		uint32_t local, device;
		uint16_t vlan;
		bool wanted;
		int error;
	} * at;
};

/* ---- what should be attached ---- */

static int listen_mark_address_wanted(struct stream_listen *listen, uint32_t local,
                                      const struct stream_device_and_vlan *place)
{
	struct target *larger;

	for (uint32_t i = 0; i < listen->n; i++) {
		struct target *t = &listen->at[i];

		if (t->local == local && t->device == place->device && t->vlan == place->vlan) {
			t->wanted = true;
			return 0;
		}
	}
	if (listen->n == listen->capacity) {
		larger = vma_alloc((listen->capacity * 2 + 4) * sizeof(*larger));
		if (larger == NULL)
			return -ENOMEM;
		if (listen->n != 0)
			memcpy(larger, listen->at, listen->n * sizeof(*larger));
		vma_free(listen->at);
		listen->at = larger;
		listen->capacity = listen->capacity * 2 + 4;
	}
	listen->at[listen->n++] =
	        (struct target){.local = local, .device = place->device, .vlan = place->vlan, .wanted = true};
	return 0;
}

static struct vma_net_addr *listen_get_host_addresses(struct vma_net *net, uint32_t *count)
{
	struct vma_net_addr *addrs = NULL;
	int n = vma_net_addrs(net, 0, NULL, 0);
	uint32_t capacity = 0;

	while (n > 0 && (uint32_t)n > capacity) {
		vma_free(addrs);
		capacity = (uint32_t)n + 4;
		addrs = vma_alloc(capacity * sizeof(*addrs));
		n = addrs != NULL ? vma_net_addrs(net, 0, addrs, capacity) : -ENOMEM;
	}
	*count = n > 0 ? (uint32_t)n : 0;
	return addrs;
}

/* Every local address that the socket stands for, where an interface has it. *reason: of the last one that is not. */
static void listen_mark_all_wanted_local_addresses(const struct stream_sock *sock, struct stream_listen *listen,
                                                   struct vma_net *net, enum vma_sock_reason *reason)
{
	uint32_t n, local = sock->local.sin_addr.s_addr, address;
	struct vma_net_addr *addrs = listen_get_host_addresses(net, &n);
	struct stream_device_and_vlan place;

	for (uint32_t i = 0; i < n; i++) {
		memcpy(&address, addrs[i].address, 4);
		if (addrs[i].family != AF_INET || ntohl(address) >> 24 == IN_LOOPBACKNET ||
		    (local != INADDR_ANY && local != address) ||
		    (sock->bound_ifindex != 0 && sock->bound_ifindex != addrs[i].ifindex))
			continue;
		*reason = stream_find_device_and_vlan(net, addrs[i].ifindex, &place);
		if (*reason == VMA_SOCK_OFFLOADED && listen_mark_address_wanted(listen, address, &place) < 0)
			*reason = VMA_SOCK_NO_MEMORY;
	}
	vma_free(addrs);
}

/* ---- update ---- */

/* Devices are opened before the lock is taken: that may start a vmad. */
static void listen_open_devices(struct stream_listen *listen, struct vma_engine *engine)
{
	struct vma_device *unused;

	for (uint32_t i = 0; i < listen->n; i++) {
		if (listen->at[i].wanted && listen->at[i].endpoint == NULL)
			listen->at[i].error = vma_device_find_or_open(engine, listen->at[i].device, &unused);
	}
}

static void listen_leave_endpoints_not_wanted(struct stream_sock *sock, struct stream_listen *listen)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < listen->n; i++) {
		if (listen->at[i].wanted) {
			listen->at[kept++] = listen->at[i];
			listen->at[kept - 1].wanted = false;
		} else if (listen->at[i].endpoint != NULL) {
			stream_endpoint_remove_member(listen->at[i].endpoint, sock);
		}
	}
	listen->n = kept;
}

/*
 * A revoked endpoint goes before it is asked for again: the ring refuses it else. Connections that have come by its
 * rule have rules of their own by then.
 */
static void listen_attach_endpoint_of_address(struct stream_sock *sock, struct vma_engine *engine, struct target *t)
{
	struct vma_device *device;

	if (t->endpoint != NULL && stream_endpoint_is_revoked(t->endpoint)) {
		if (stream_endpoint_awaits_conn_rules(t->endpoint)) {
			vma_engine_steer_pending_now();
			stream_schedule_listen_update(sock); /* in the internal thread's next turn */
			return;
		}
		stream_endpoint_drain_half_open(t->endpoint);
		stream_endpoint_remove_member(t->endpoint, sock);
		t->endpoint = NULL;
		t->error = 0;
	}
	if (t->endpoint != NULL || t->error != 0)
		return;
	t->error = vma_device_find_or_open(engine, t->device, &device);
	if (t->error == 0)
		t->error = stream_endpoint_join(sock, device, t->local, t->vlan, &t->endpoint);
	if (t->error != 0)
		t->endpoint = NULL;
}

static void listen_attach_all_wanted_addresses(struct stream_sock *sock, struct vma_engine *engine)
{
	struct stream_listen *listen = sock->listen;
	uint64_t rings = 0;

	listen_open_devices(listen, engine);
	endpoints_lock();
	for (uint32_t i = 0; i < listen->n; i++) {
		struct target *t = &listen->at[i];

		if (t->wanted)
			listen_attach_endpoint_of_address(sock, engine, t);
		if (t->wanted && t->endpoint != NULL)
			rings |= stream_endpoint_ring_bit(t->endpoint);
	}
	listen_leave_endpoints_not_wanted(sock, listen);
	endpoints_unlock();
	atomic_store(&sock->rings, rings);
}

static enum vma_sock_reason listener_reason_not_offloaded(const struct stream_listen *listen,
                                                          enum vma_sock_reason otherwise)
{
	bool any = false;

	for (uint32_t i = 0; i < listen->n; i++) {
		if (listen->at[i].endpoint != NULL)
			return VMA_SOCK_OFFLOADED;
		if (!any || listen->at[i].error == -EADDRINUSE)
			otherwise = vma_sock_reason_of_errno(listen->at[i].error);
		any = true;
	}
	return otherwise;
}

static void listen_schedule_retry(struct stream_sock *sock)
{
	bool retry = sock->passed != NULL; /* it may be passed on again, by whoever has it */

	for (uint32_t i = 0; i < sock->listen->n; i++) {
		enum vma_sock_reason reason = vma_sock_reason_of_errno(sock->listen->at[i].error);

		retry |= sock->listen->at[i].endpoint == NULL &&
		         (reason == VMA_SOCK_PORT_SHARED || reason == VMA_SOCK_NO_MEMORY ||
		          sock->listen->at[i].error == -EAGAIN);
	}
	atomic_store_explicit(&sock->file.retry, retry, memory_order_relaxed);
	if (retry)
		vma_engine_schedule_offload_retry();
}

/* ---- the kernel's for good ---- */

#define DRAIN_NS 10000000000 /* the SYN-ACK has been sent four times by then */

/* Endpoints that were withdrawn are left when nobody is half open any more; looked at once a second. */
static void listen_leave_endpoints_without_half_open(struct stream_sock *sock)
{
	const bool late = vma_now_ns() >= sock->drain_until_ns;
	struct stream_listen *listen = sock->listen;
	uint64_t before = atomic_load(&sock->rings), rings = 0;

	if (listen == NULL || before == 0)
		return;
	endpoints_lock();
	for (uint32_t i = 0; i < listen->n; i++) {
		struct target *t = &listen->at[i];

		t->wanted = t->endpoint != NULL && !late && !stream_endpoint_has_no_half_open(t->endpoint);
		if (t->wanted)
			rings |= stream_endpoint_ring_bit(t->endpoint);
	}
	listen_leave_endpoints_not_wanted(sock, listen);
	endpoints_unlock();
	atomic_store(&sock->rings, rings);
	atomic_store(&sock->file.retry, rings != 0);
	if (rings != 0)
		vma_engine_schedule_offload_retry();
	stream_notify_rings_changed(sock, before);
	vma_run_due_deferred_frees();
}

/* Looked at once a second. */
static void listen_check_passed_receivers(struct stream_sock *sock)
{
	if (!sock->paused)
		return;
	stream_passed_watch_page(sock);
	atomic_store(&sock->file.retry, true);
	vma_engine_schedule_offload_retry();
}

/*
 * Who comes from now on is the kernel's, for whoever has the listener. What has come already stays in the queue, and
 * accept and poll look there first: only this process can take it.
 */
void stream_listen_leave_to_kernel(struct stream_sock *sock, enum vma_sock_reason reason)
{
	struct stream_listen *listen = sock->listen;

	sock->hands_over = true;
	sock->paused = reason == VMA_SOCK_PASSED_ON && sock->passed != NULL;
	sock->drain_until_ns = vma_now_ns() + DRAIN_NS;
	atomic_store(&sock->inherited, false);
	vma_engine_report_kernel_fallback(reason, 0, "a TCP listener");
	atomic_store(&sock->reason, reason);
	atomic_store(&sock->file.retry, false);
	endpoints_lock();
	for (uint32_t i = 0; listen != NULL && i < listen->n; i++) {
		struct target *t = &listen->at[i];

		if (t->endpoint != NULL && !stream_endpoint_withdraw(t->endpoint)) {
			stream_endpoint_remove_member(t->endpoint, sock);
			t->endpoint = NULL;
		}
	}
	endpoints_unlock();
	listen_leave_endpoints_without_half_open(sock);
	listen_check_passed_receivers(sock);
	stream_describe_for_stats(sock);
}

/* What was half open when it paused is over. True: it asks for flows again. */
static bool listen_resume_if_pause_is_over(struct stream_sock *sock)
{
	if (!sock->paused || atomic_load(&sock->rings) != 0 || !stream_passed_may_offload_again(sock)) {
		listen_check_passed_receivers(sock);
		return false;
	}
	sock->hands_over = sock->paused = false;
	return true;
}

/* ---- update ---- */

static bool rule_leaves_listener_to_kernel(struct stream_sock *sock, const struct vma_engine *engine)
{
	const struct vma_rule *rule = vma_inet_find_transport_rule(engine, VMA_RULES_TCP_SERVER, &sock->local, NULL);

	if (rule != NULL)
		atomic_store(&sock->file.rule_line, rule->line);
	return rule != NULL;
}

void stream_listener_update_flows(struct stream_sock *sock)
{
	struct vma_engine *engine = vma_engine_get_or_start();
	enum vma_sock_reason reason = VMA_SOCK_LOCAL;
	const enum vma_sock_reason reason_before = atomic_load(&sock->reason);
	uint64_t before = atomic_load(&sock->rings);

	if (engine == NULL || sock->file.os_only || stream_has_ended(sock) || atomic_load(&sock->inherited) ||
	    stream_sock_phase(sock) != STREAM_LISTENING)
		return;
	if (sock->passed != NULL)
		stream_passed_watch_page(sock);
	if (sock->hands_over) {
		stream_fork_queue_watch(sock);
		listen_leave_endpoints_without_half_open(sock);
		if (!listen_resume_if_pause_is_over(sock))
			return;
	}
	if (sock->passed != NULL && !stream_all_passed_fds_were_received(sock)) {
		stream_listen_leave_to_kernel(sock, VMA_SOCK_PASSED_ON);
		return;
	}
	if (sock->listen == NULL)
		sock->listen = vma_alloc(sizeof(*sock->listen));
	if (sock->listen == NULL) {
		reason = VMA_SOCK_NO_MEMORY;
	} else {
		if (stream_has_kernel_only_option(sock))
			reason = VMA_SOCK_OPTION;
		else if (sock->local.sin_family == AF_INET6)
			reason = VMA_SOCK_IPV6;
		else if (rule_leaves_listener_to_kernel(sock, engine))
			reason = VMA_SOCK_RULE;
		else
			listen_mark_all_wanted_local_addresses(sock, sock->listen, engine->net, &reason);
		listen_attach_all_wanted_addresses(sock, engine);
		listen_schedule_retry(sock);
		reason = listener_reason_not_offloaded(sock->listen, reason);
		if (sock->passed != NULL && reason == VMA_SOCK_OFFLOADED)
			stream_passed_tell_sender_we_serve(sock);
	}
	atomic_store(&sock->reason, reason);
	if (reason_before == VMA_SOCK_OFFLOADED || reason_before == VMA_SOCK_INHERITED)
		vma_engine_report_kernel_fallback(reason, 0, "a TCP listener");
	stream_notify_rings_changed(sock, before);
	stream_describe_for_stats(sock);
	vma_run_due_deferred_frees();
}

/* By a fork or a message: then that one goes on listening, and requests under way are not to be refused. */
static bool sock_is_shared_with_other_process(const struct stream_sock *sock)
{
	return sock->passed != NULL || sock->file.from_parent ||
	       sock->file.forks != atomic_load_explicit(&vma_fork_count, memory_order_relaxed);
}

static void listen_finish_endpoints(struct stream_listen *listen)
{
	for (uint32_t i = 0; i < listen->n; i++)
		if (listen->at[i].endpoint != NULL)
			stream_endpoint_drain_half_open(listen->at[i].endpoint);
}

void stream_listen_end(struct stream_sock *sock)
{
	struct stream_listen *listen = sock->listen;
	uint64_t before = atomic_load(&sock->rings);

	stream_fork_queue_unwatch(sock);
	stream_create_timewait_sockets_of_listener(sock); /* while the flows are there, which vmad asks for */
	if (listen != NULL) {
		endpoints_lock();
		if (sock_is_shared_with_other_process(sock) || sock->hands_over)
			listen_finish_endpoints(listen);
		listen_leave_endpoints_not_wanted(sock, listen); /* nothing is wanted between two updates */
		endpoints_unlock();
		sock->listen = NULL;
		vma_free(listen->at);
		vma_free(listen);
	}
	atomic_store(&sock->rings, 0);
	stream_notify_rings_changed(sock, before);
	stream_drop_unaccepted(sock);
}

void stream_listen_release_flows(struct stream_sock *sock)
{
	struct stream_listen *listen = sock->listen;
	uint64_t before = atomic_load(&sock->rings);

	atomic_store(&sock->inherited, true);
	atomic_store(&sock->reason, VMA_SOCK_INHERITED);
	atomic_store(&sock->file.retry, false);
	if (listen != NULL) {
		endpoints_lock();
		listen_finish_endpoints(listen);
		listen_leave_endpoints_not_wanted(sock, listen); /* as at the end */
		endpoints_unlock();
	}
	atomic_store(&sock->rings, 0);
	stream_notify_rings_changed(sock, before);
	stream_describe_for_stats(sock);
}

/* ---- listen ---- */

/* What the kernel has made of the backlog: the second listen() of a socket changes no more than that. */
static uint32_t read_listen_backlog(int fd)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	return vma_os.getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 ? info.tcpi_sacked : 128;
}

void stream_listen_apply_options(struct stream_sock *sock)
{
	for (uint32_t i = 0; sock->listen != NULL && i < sock->listen->n; i++) {
		if (sock->listen->at[i].endpoint != NULL)
			stream_endpoint_set_listener_options(sock->listen->at[i].endpoint, sock);
	}
}

static void set_backlog(struct stream_sock *sock, int fd)
{
	atomic_store(&sock->backlog, read_listen_backlog(fd));
	stream_listen_apply_options(sock);
}

static void listen_begin(struct stream_sock *sock, int fd)
{
	stream_so_cookie(sock, fd);
	stream_read_local_name(sock, fd);
	stream_forking_tally_init(sock);
	atomic_store(&sock->shut_rd, false);
	atomic_store(&sock->shut_wr, false);
	atomic_store(&sock->phase, STREAM_LISTENING);
	stream_listener_update_flows(sock);
}

/* A listener that others serve, too, by SO_REUSEPORT, is not known to be one before the kernel's socket listens. */
static bool listener_flows_await_kernel_listen(const struct stream_sock *sock)
{
	for (uint32_t i = 0; sock->listen != NULL && i < sock->listen->n; i++)
		if (sock->listen->at[i].endpoint == NULL && sock->listen->at[i].error == -EAGAIN)
			return true;
	return false;
}

static void listen_undo(struct stream_sock *sock)
{
	stream_listen_end(sock);
	atomic_store(&sock->phase, STREAM_FRESH);
	atomic_store(&sock->reason, VMA_SOCK_NEW);
}

/* The call may have to fail because the listener is the kernel's: then it listens no more, but stays bound. */
static int listen_fail_if_fallback_is_forbidden(struct stream_sock *sock, int fd)
{
	const int rc = vma_engine_report_kernel_fallback(atomic_load(&sock->reason), EOPNOTSUPP, "a TCP listener");

	if (rc < 0) {
		vma_os.shutdown(fd, SHUT_RDWR);
		listen_undo(sock);
	}
	return rc;
}

/*
 * The NIC's rules come before the kernel's listen: a peer that finds the shadow listening would else have a connection
 * of the kernel's for its whole life, and a device that has to be opened first takes a while. Not before the port is
 * known; and a listener of somebody else on that port keeps what it has, for its owner refuses the rule.
 */
static int listen_install_flows_then_listen_in_kernel(struct stream_sock *sock, int fd, int backlog)
{
	bool first = stream_sock_phase(sock) != STREAM_LISTENING;
	int rc;

	if (stream_tcp_conn(sock) != NULL || sock->attempt != STREAM_UNCONNECTED)
		return -EINVAL;
	if (first && sock->local.sin_port != 0) {
		atomic_store(&sock->backlog, (uint32_t)backlog < SOMAXCONN ? (uint32_t)backlog : SOMAXCONN);
		listen_begin(sock, fd);
	}
	rc = vma_os.listen(fd, backlog) != 0 ? -errno : 0;
	if (rc == 0) {
		set_backlog(sock, fd);
		if (first && listener_flows_await_kernel_listen(sock))
			stream_listener_update_flows(sock);
		if (first && stream_sock_phase(sock) != STREAM_LISTENING)
			listen_begin(sock, fd);
		if (first)
			rc = listen_fail_if_fallback_is_forbidden(sock, fd);
	} else if (first && stream_sock_phase(sock) == STREAM_LISTENING) {
		listen_undo(sock);
	}
	return rc;
}

int stream_listen(struct vma_file *file, int fd, int backlog)
{
	struct stream_sock *sock = stream_sock(file);
	int rc;

	pthread_mutex_lock(&file->lock);
	rc = listen_install_flows_then_listen_in_kernel(sock, fd, backlog);
	pthread_mutex_unlock(&file->lock);
	if (rc == 0) /* the shadow's queue counts as well */
		vma_file_set_poll_without_shadow(file, false);
	if (rc == 0)
		stream_xtreme_watch(sock, 0);
	return rc;
}

/* ---- made by another process ---- */

bool stream_listener_can_be_offloaded(struct stream_sock *sock)
{
	enum vma_sock_reason reason = VMA_SOCK_LOCAL;
	bool possible = false;

	if (sock->local.sin_family != AF_INET || sock->local.sin_port == 0 || stream_has_kernel_only_option(sock) ||
	    rule_leaves_listener_to_kernel(sock, sock->engine))
		return false;
	if (sock->listen == NULL)
		sock->listen = vma_alloc(sizeof(*sock->listen));
	if (sock->listen == NULL)
		return false;
	listen_mark_all_wanted_local_addresses(sock, sock->listen, sock->engine->net, &reason);
	listen_open_devices(sock->listen, sock->engine);
	for (uint32_t i = 0; i < sock->listen->n; i++)
		possible |= sock->listen->at[i].error == 0;
	sock->listen->n = 0;
	return possible;
}

void stream_init_listener_received_by_message(struct stream_sock *sock, int fd)
{
	stream_forking_tally_init(sock);
	atomic_store(&sock->backlog, read_listen_backlog(fd));
	atomic_store(&sock->inherited, true);
	atomic_store(&sock->reason, VMA_SOCK_INHERITED);
	atomic_store(&sock->file.own_poll, false); /* the shadow's queue counts as well */
	atomic_store(&sock->phase, STREAM_LISTENING);
}

/* ---- which ring contexts ---- */

static unsigned add_ring_ctx_once(struct vma_ring_ctx *ring_ctx, struct vma_ring_ctx **out, unsigned n, unsigned max)
{
	for (unsigned i = 0; i < n && i < max; i++) {
		if (out[i] == ring_ctx)
			return n;
	}
	if (n < max)
		out[n] = ring_ctx;
	return n + 1;
}

unsigned stream_listen_ring_ctxs(const struct stream_sock *sock, struct vma_ring_ctx **out, unsigned max)
{
	unsigned n = 0;

	for (uint32_t i = 0; sock->listen != NULL && i < sock->listen->n; i++) {
		if (sock->listen->at[i].endpoint != NULL)
			n = add_ring_ctx_once(stream_endpoint_ring_ctx(sock->listen->at[i].endpoint), out, n, max);
	}
	return n;
}

/* Held: each once, of which `n` are there already. */
static unsigned listen_hold_ring_ctx_of_address(const struct stream_sock *sock, const struct target *t,
                                                struct vma_ring_ctx **out, unsigned n, unsigned max)
{
	const struct vma_ring_requester where = vma_file_get_ring_requester(&sock->file, &t->local);
	struct vma_ring_ctx *ring_ctx;
	struct vma_device *device;
	unsigned more;

	if (vma_device_find_or_open(sock->engine, t->device, &device) < 0 ||
	    vma_ring_ctx_find_or_create(device, VMA_RING_CTX_RX, &where, &ring_ctx) < 0)
		return n;
	more = n < max ? add_ring_ctx_once(ring_ctx, out, n, max) : n;
	if (more == n)
		vma_ring_ctx_put(ring_ctx);
	return more;
}

unsigned stream_listen_hold_ring_ctxs(const struct stream_sock *sock, struct vma_ring_ctx **out, unsigned max)
{
	struct stream_listen wanted = {0};
	enum vma_sock_reason reason;
	unsigned n = 0;

	listen_mark_all_wanted_local_addresses(sock, &wanted, sock->engine->net, &reason);
	for (uint32_t i = 0; i < wanted.n; i++)
		n = listen_hold_ring_ctx_of_address(sock, &wanted.at[i], out, n, max);
	vma_free(wanted.at);
	return n;
}

/* ---- later: fork, and what the NIC takes back. The parent's endpoints and rings are not the child's. ---- */

void stream_listen_reset_in_forked_child(struct stream_sock *sock)
{
	atomic_store(&sock->was_polled, false);
	stream_note_if_never_accepted_before_fork(sock);
	sock->fork_queue_watched = false;
	sock->fork_queue_task = (struct vma_internal_task){0};
	sock->listen = NULL;
	sock->queue = NULL;
	ck_stack_init(&sock->arrived);
	atomic_store(&sock->n_queued, 0);
	atomic_store(&sock->rings, 0);
}

void stream_use_inherited_socket(struct stream_sock *sock)
{
	pthread_mutex_lock(&sock->file.lock);
	if (vma_engine_get_or_start() != NULL && atomic_exchange(&sock->inherited, false)) {
		sock->engine = vma_engine_get_or_start();
		vma_file_record_creating_thread_and_core(&sock->file);
	}
	stream_listener_update_flows(sock);
	pthread_mutex_unlock(&sock->file.lock);
}

static void listener_update_flows_task(struct vma_internal_task *task)
{
	struct stream_sock *sock = (struct stream_sock *)((char *)task - offsetof(struct stream_sock, update_task));

	atomic_store(&sock->update_scheduled, false);
	if (atomic_load(&sock->was_polled)) {
		stream_use_inherited_socket(sock);
	} else { /* a fork has given it back since, and it is for who accepts */
		pthread_mutex_lock(&sock->file.lock);
		stream_listener_update_flows(sock);
		pthread_mutex_unlock(&sock->file.lock);
	}
	if (atomic_load(&sock->exec_exported))
		stream_fork_queue_hand_over_queued_conns(sock);
	vma_file_put(&sock->file);
}

/* Not by the caller: whoever polls may hold locks that are taken after a file's, whoever revokes holds a ring's flag.
 */
void stream_schedule_listen_update(struct stream_sock *sock)
{
	if (vma_engine_get_or_start() == NULL || !vma_file_mark_scheduled(&sock->file, &sock->update_scheduled))
		return;
	sock->update_task.run = listener_update_flows_task;
	vma_engine_post_task_to_internal_thread(&sock->update_task);
}
