/*
 * flows.c - what is attached for a socket becomes what should be. New flows come first, then unwanted ones end, so a
 * datagram always finds one of them or the shadow.
 *
 * There is one lock for all sockets: they share keys, and guests come and go with the sockets whose group they share.
 * It is held while rings attach and detach, which waits for the receive flag. So nothing that runs under a ring's flag
 * takes it.
 */
#include <errno.h>
#include <string.h>

#include "endpoint.h"
#include "flows.h"
#include "fork_shared.h"
#include "fork_queue.h"
#include "os_sends.h"
#include "reinject.h"

#define PAUSE_NS 900000000ULL /* less than the second between two tries */

static pthread_mutex_t flows_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t udp_flows_last_attach_number;

void udp_flows_lock(void)
{
	pthread_mutex_lock(&flows_lock);
}

void udp_flows_unlock(void)
{
	pthread_mutex_unlock(&flows_lock);
}

/* ---- what others must know of a socket ---- */

static void udp_flows_move_to_list_of_port(struct udp_flows *flows, uint16_t port_be)
{
	struct udp_flows **place;

	if (flows->port_be == port_be)
		return;
	if (flows->port_be != 0) {
		for (place = &udp_port(flows->port_be)->flows; *place != flows; place = &(*place)->next)
			;
		*place = flows->next;
	}
	flows->port_be = port_be;
	if (port_be != 0) {
		udp_mark_port_group_used(udp_port(port_be));
		flows->next = udp_port(port_be)->flows;
		udp_port(port_be)->flows = flows;
	}
}

static void flows_copy_binding_of_sock(struct udp_flows *flows, bool by_os)
{
	const struct udp_sock *sock = flows->sock;
	uint32_t local = sock->local.sin_addr.s_addr;

	if (flows->port_be != sock->local.sin_port || flows->local != local)
		flows->order = ++udp_flows_last_attach_number;
	udp_flows_move_to_list_of_port(flows, sock->local.sin_port);
	flows->local = local;
	flows->bound_ifindex = sock->bound_ifindex;
	flows->reuse_port = sock->reuse_port;
	flows->is_ipv6 = sock->file.family == AF_INET6;
	flows->takes_all = sock->mc_all && !by_os && sock->peer.sin_family != AF_INET &&
	                   (local == INADDR_ANY || IN_MULTICAST(ntohl(local)));
}

uint64_t udp_flows_cookie(const struct udp_sock *sock)
{
	return sock->flows != NULL ? sock->flows->cookie : 0;
}

static struct udp_flows *udp_flows_get_or_create(struct udp_sock *sock)
{
	struct udp_flows *flows = sock->flows;

	if (flows != NULL)
		return flows;
	flows = vma_alloc(sizeof(*flows));
	if (flows == NULL)
		return NULL;
	flows->sock = sock;
	udp_flows_task_init(flows);
	flows->cookie = vma_sock_cookie(atomic_load_explicit(&sock->file.fd, memory_order_relaxed));
	sock->flows = flows;
	return flows;
}

/* ---- guests: sockets with IP_MULTICAST_ALL get what others in this process have joined ---- */

static bool flows_match_group_joined_by_others(const struct udp_flows *flows, const struct udp_endpoint *endpoint)
{
	uint32_t group;

	memcpy(&group, endpoint->key.local, 4);
	return flows->takes_all && endpoint->key.local_port_be == flows->port_be && endpoint->shared &&
	       endpoint->hosts != 0 && endpoint->key.peer_port_be == 0 && IN_MULTICAST(ntohl(group)) &&
	       (flows->local == INADDR_ANY || flows->local == group) &&
	       (flows->bound_ifindex == 0 || flows->bound_ifindex == endpoint->ifindex);
}

static void flows_leave_groups_of_other_socks(struct udp_flows *flows)
{
	struct udp_member *next;

	for (struct udp_member *m = flows->members; m != NULL; m = next) {
		next = m->next;
		if (m->guest && !flows_match_group_joined_by_others(flows, m->endpoint))
			udp_member_detach(m);
	}
}

/* A refusal leaves it to the shadow, as for a socket that is not offloaded. */
static void flows_attach_to_groups_joined_by_others(struct udp_flows *flows)
{
	for (struct udp_endpoint *e = udp_port(flows->port_be)->endpoints; e != NULL; e = e->next) {
		struct udp_target target = {.key = e->key, .device = e->device, .ifindex = e->ifindex, .shared = true};

		if (flows_match_group_joined_by_others(flows, e) && udp_member_find(flows, &target) == NULL)
			udp_member_attach(flows, e->ring_ctx->device, &target, true);
	}
}

/* After the hosts of a group have changed: everybody on that port. */
static void udp_flows_update_groups_of_other_socks(struct udp_flows *flows, uint16_t port_be, bool everybody)
{
	struct udp_flows *other = port_be != 0 ? udp_port(port_be)->flows : NULL;

	flows_leave_groups_of_other_socks(flows);
	if (flows->port_be != 0)
		flows_attach_to_groups_joined_by_others(flows);
	for (; everybody && other != NULL; other = other->next) {
		if (other == flows || other->port_be != port_be)
			continue;
		flows_leave_groups_of_other_socks(other);
		flows_attach_to_groups_joined_by_others(other);
		udp_attachments_publish(other, false);
	}
}

/* ---- update ---- */

/* A revoked one goes before it is asked for again: the ring refuses it else. So does one whose port is not the socket's
 * alone any more, so that the NIC is asked. */
static bool must_detach_member_before_attach(const struct udp_member *member, const struct udp_target *target)
{
	return atomic_load_explicit(&member->revoked, memory_order_acquire) ||
	       (member->flow.flags & VMA_FLOW_PORT_EXCLUSIVE && !target->alone);
}

/* Members that are to stay are marked. */
static void udp_flows_attach_target(struct udp_flows *flows, struct udp_target *target, struct vma_device *device,
                                    bool *hosts)
{
	struct udp_member *member = udp_member_find(flows, target);

	if (member != NULL && must_detach_member_before_attach(member, target)) {
		udp_member_detach(member);
		member = NULL;
	}
	if (member != NULL && member->guest) {
		member->guest = false;
		member->endpoint->hosts++;
		*hosts = true;
	}
	if (member == NULL) {
		target->error = udp_member_attach(flows, device, target, false);
		member = target->error == 0 ? udp_member_find(flows, target) : NULL;
		*hosts |= target->shared;
	}
	if (member == NULL)
		return;
	member->is_wanted = true;
	udp_endpoint_choose_receiving_sockets(member->endpoint);
}

static void detach_unwanted_members(struct udp_flows *flows, bool *hosts)
{
	struct udp_member *next;

	for (struct udp_member *m = flows->members; m != NULL; m = next) {
		next = m->next;
		if (!m->is_wanted && !m->guest) {
			*hosts |= m->endpoint->shared;
			udp_member_detach(m);
		} else
			m->is_wanted = false;
	}
}

/* Devices are opened before the lock is taken: that may start a vmad. */
static void flows_open_devices(struct vma_engine *engine, struct udp_targets *targets, struct vma_device **devices)
{
	for (uint32_t i = 0; i < targets->n; i++) {
		if (i > 0 && targets->at[i].device == targets->at[i - 1].device) {
			devices[i] = devices[i - 1];
			targets->at[i].error = targets->at[i - 1].error;
		} else {
			targets->at[i].error = vma_device_find_or_open(engine, targets->at[i].device, &devices[i]);
		}
	}
}

static bool has_group_member_joined_by_others(const struct udp_flows *flows)
{
	for (const struct udp_member *m = flows->members; m != NULL; m = m->next) {
		if (m->guest)
			return true;
	}
	return false;
}

/* False: no memory. */
static bool flows_attach_wanted_and_detach_others(struct udp_flows *flows, struct vma_engine *engine,
                                                  struct udp_targets *targets, bool by_os)
{
	struct vma_device **devices = vma_alloc((targets->n + 1) * sizeof(struct vma_device *));
	uint16_t port_before = flows->port_be;
	bool hosts = false;

	if (devices == NULL)
		return false;
	flows_open_devices(engine, targets, devices);
	pthread_mutex_lock(&flows_lock);
	flows_copy_binding_of_sock(flows, by_os);
	for (uint32_t i = 0; i < targets->n; i++) {
		if (targets->at[i].error == 0)
			udp_flows_attach_target(flows, &targets->at[i], devices[i], &hosts);
	}
	detach_unwanted_members(flows, &hosts);
	udp_flows_update_groups_of_other_socks(flows, port_before, hosts);
	if (port_before != flows->port_be)
		udp_flows_update_groups_of_other_socks(flows, flows->port_be, hosts);
	udp_attachments_publish(flows, false);
	if (targets->n == 0 && has_group_member_joined_by_others(flows))
		targets->reason = VMA_SOCK_OFFLOADED;
	pthread_mutex_unlock(&flows_lock);
	vma_free(devices);
	return true;
}

/* ---- why ---- */

static enum vma_sock_reason flows_choose_offload_reason(const struct udp_targets *targets, struct vma_engine *engine)
{
	enum vma_sock_reason reason = targets->reason;
	struct vma_device *device;
	bool any = false;

	if (targets->n == 0 && targets->send_device != 0)
		return vma_sock_reason_of_errno(vma_device_find_or_open(engine, targets->send_device, &device));
	for (uint32_t i = 0; i < targets->n; i++) {
		if (targets->at[i].extra)
			continue;
		if (targets->at[i].error == 0)
			return VMA_SOCK_OFFLOADED;
		/* What may pass is worth more than what will not. */
		if (!any || targets->at[i].error == -EADDRINUSE)
			reason = vma_sock_reason_of_errno(targets->at[i].error);
		any = true;
	}
	return reason;
}

static bool error_may_be_temporary(int error)
{
	enum vma_sock_reason reason = vma_sock_reason_of_errno(error);

	return reason == VMA_SOCK_PORT_SHARED || reason == VMA_SOCK_NO_MEMORY || error == -EAGAIN;
}

static void flows_schedule_retry(struct udp_sock *sock, const struct udp_targets *targets, bool paused)
{
	bool retry = paused;

	for (uint32_t i = 0; i < targets->n; i++)
		retry |= error_may_be_temporary(targets->at[i].error);
	atomic_store_explicit(&sock->file.retry, retry, memory_order_relaxed);
	if (retry)
		vma_engine_schedule_offload_retry();
}

/* Between a pause and the next try. */
static bool udp_flows_is_paused(struct udp_flows *flows)
{
	if (flows == NULL || flows->paused_ns == 0)
		return false;
	if (vma_now_ns() < flows->paused_ns)
		return true;
	flows->paused_ns = 0;
	return false;
}

void udp_flows_update(struct udp_sock *sock)
{
	struct vma_engine *engine = vma_engine_get_or_start();
	struct udp_targets targets = {.reason = VMA_SOCK_OPTION};
	bool by_os = udp_receives_by_os(sock), paused, done = false;
	const enum vma_sock_reason before = atomic_load(&sock->reason);
	struct udp_flows *flows;

	if (sock->file.os_only || engine == NULL || vma_file_is_closed(&sock->file) || atomic_load(&sock->inherited))
		return;
	udp_fork_queue_free_emptied(sock);
	if (sock->flows == NULL && sock->local.sin_port == 0)
		return;
	flows = udp_flows_get_or_create(sock);
	paused = !by_os && udp_flows_is_paused(flows);
	if (paused)
		targets.reason = VMA_SOCK_PORT_SHARED;
	paused |= sock->port_is_released || sock->left;
	if (flows != NULL && (by_os || paused || udp_targets_compute_for_sock(sock, engine->net, &targets) == 0)) {
		done = flows_attach_wanted_and_detach_others(flows, engine, &targets, by_os || paused);
		flows_schedule_retry(sock, &targets, paused);
	}
	atomic_store(&sock->reason, done ? flows_choose_offload_reason(&targets, engine) : VMA_SOCK_NO_MEMORY);
	if (!sock->is_decided && !sock->left &&
	    (before == VMA_SOCK_OFFLOADED || before == VMA_SOCK_DEFERRED || before == VMA_SOCK_INHERITED))
		vma_engine_report_kernel_fallback(atomic_load(&sock->reason), 0, "a UDP socket");
	udp_targets_free(&targets);
	udp_stats_describe(sock);
	vma_run_due_deferred_frees();
}

void udp_flows_detach_all(struct udp_sock *sock)
{
	struct udp_flows *flows = sock->flows;
	uint16_t port_be;

	if (flows == NULL)
		return;
	pthread_mutex_lock(&flows_lock);
	port_be = flows->port_be;
	flows->takes_all = false;
	udp_flows_move_to_list_of_port(flows, 0);
	while (flows->members != NULL)
		udp_member_detach(flows->members);
	udp_flows_update_groups_of_other_socks(flows, port_be, true);
	udp_attachments_publish(flows, true);
	pthread_mutex_unlock(&flows_lock);
}

/* ---- a flow is taken away ---- */

/*
 * The internal thread. What comes from now on is in the shadow, and sleepers must look there. What is queued stays, but
 * where a process that has the socket by fork may be the one that receives now.
 */
static void flows_update_task(struct vma_internal_task *task)
{
	struct udp_flows *flows = (struct udp_flows *)((char *)task - offsetof(struct udp_flows, task));
	struct udp_sock *sock = flows->sock;

	atomic_store(&flows->task_scheduled, false);
	pthread_mutex_lock(&sock->file.lock);
	udp_flows_update(sock);
	if (udp_fork_shared(sock) != NULL && flows->members == NULL)
		udp_move_queued_datagrams_to_fork_queue(sock);
	pthread_mutex_unlock(&sock->file.lock);
	atomic_store_explicit(&sock->os_attention, true, memory_order_release);
	vma_waitq_wake(&sock->file.waitq, true);
	vma_file_put(&sock->file);
}

void udp_flows_task_init(struct udp_flows *flows)
{
	flows->task.run = flows_update_task;
}

/*
 * The exchange is sequentially consistent with flows_update_task's clearing: who finds the task asked for has marked
 * its flow before the task looks. The flow is attached, so the socket has not ended and its count is not zero.
 */
void udp_flows_schedule_update_task(struct udp_flows *flows)
{
	if (vma_file_mark_scheduled(&flows->sock->file, &flows->task_scheduled))
		vma_engine_post_task_to_internal_thread(&flows->task);
}

/* ---- fork ---- */

static void udp_offload_inherited_task(struct vma_internal_task *task)
{
	struct udp_sock *sock = (struct udp_sock *)((char *)task - offsetof(struct udp_sock, take_up_task));

	atomic_store(&sock->take_up_scheduled, false);
	if (udp_fork_shared_has_changed(sock))
		udp_apply_changes_of_forked_processes(sock);
	udp_offload_inherited_socket(sock);
	vma_file_put(&sock->file);
}

/* Not by the caller: whoever polls may hold locks that are taken after a file's. */
void udp_schedule_offload_of_inherited(struct udp_sock *sock)
{
	if (vma_engine_get_or_start() == NULL || !vma_file_mark_scheduled(&sock->file, &sock->take_up_scheduled))
		return;
	sock->take_up_task.run = udp_offload_inherited_task;
	vma_engine_post_task_to_internal_thread(&sock->take_up_task);
}

void udp_flows_leave_to_kernel_for_a_while(struct udp_sock *sock)
{
	sock->port_shared = true;
	if (sock->flows == NULL)
		return;
	/* Also where the kernel has all by now: forks that follow each other keep it there. */
	sock->flows->paused_ns = vma_now_ns() + PAUSE_NS;
	if (sock->flows->members != NULL)
		udp_flows_update(sock);
	udp_fork_queue_create_from_received(sock, NULL, NULL);
}

/* The parent's keys, rings and queues are left where they are: their buffers are not mapped here. That memory is lost,
 * once per fork and socket. */
void udp_flows_forget_parents_in_fork_child(struct udp_sock *sock)
{
	struct udp_flows *flows = sock->flows;

	if (flows != NULL && atomic_load(&flows->task_scheduled))
		vma_file_put(&sock->file); /* the parent's thread runs that task, there */
	if (atomic_exchange(&sock->take_up_scheduled, false))
		vma_file_put(&sock->file);
	sock->take_up_task = (struct vma_internal_task){0};
	sock->flows = NULL;
	atomic_store(&sock->attachments, NULL);
}

__attribute__((cold)) void udp_flows_reset_ports_in_fork_child(void)
{
	pthread_mutex_init(&flows_lock, NULL);
	/* Each page that is looked at costs the child a fault. */
	for (; udp_ports_used != 0; udp_ports_used &= udp_ports_used - 1)
		memset(&udp_ports[(unsigned)__builtin_ctzll(udp_ports_used) * UDP_PORTS_GROUP], 0,
		       UDP_PORTS_GROUP * sizeof(udp_ports[0]));
}

void udp_flows_destroy(struct udp_sock *sock)
{
	vma_free(sock->flows);
}
