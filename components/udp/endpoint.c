/*
 * endpoint.c - members of flow keys: attached, chosen among, detached.
 *
 * A unicast datagram goes to the socket that the kernel would choose (its lookup for UDP). A socket bound to the
 * address comes before one bound to 0.0.0.0, one bound to the device before one that is not, AF_INET before AF_INET6.
 * Of equal ones the last that was bound gets it. If that one has SO_REUSEPORT, any of its equals that have it may, by a
 * hash of addresses and ports. Connected sockets have keys of their own, which the ring looks up first.
 *
 * Equal sockets with SO_REUSEPORT may have rings of their own (VMA_RING_ALLOCATION_LOGIC_RX). Then the key has an
 * endpoint on each of these rings, and the NIC spreads it over them (VMA_FLOW_REUSEPORT). As soon as one is not the
 * others' equal, all of them gather at the first endpoint, which chooses.
 *
 * The choice is made when members come and go, and published as an immutable object; a sink follows two pointers.
 */
#include "endpoint.h"

#include <errno.h>
#include <string.h>

#include "xtreme.h"

struct udp_port udp_ports[UDP_PORTS] __attribute__((section(".bss.far")));
uint64_t udp_ports_used;

/* ---- sinks ---- */

static inline uint32_t rx_info_hash_sender_below(const struct vma_rx_info *info, uint32_t n)
{
	uint32_t src, hash;

	memcpy(&src, info->src, 4);
	hash = (uint32_t)((src ^ (uint64_t)info->src_port_be << 32) * 0x9e3779b97f4a7c15ULL >> 32);
	return (uint32_t)((uint64_t)hash * n >> 32);
}

static inline struct udp_attachment *endpoint_attachment_for_sender(const struct vma_flow *flow,
                                                                    const struct vma_rx_info *info)
{
	const struct udp_member *member = flow->owner;
	const struct udp_choice *choice = atomic_load_explicit(&member->endpoint->choice, memory_order_acquire);

	if (__builtin_expect(choice->n == 1, 1))
		return choice->at[0];
	return choice->at[rx_info_hash_sender_below(info, choice->n)];
}

static bool udp_unicast_sink_deliver(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	return udp_deliver(endpoint_attachment_for_sender(flow, info), packet, info);
}

static unsigned udp_unicast_sink_take_datagram_burst(struct vma_flow *flow, struct vma_buf *const *packets, unsigned n,
                                                     const struct vma_rx_info *info)
{
	return udp_xtreme_take_train(endpoint_attachment_for_sender(flow, info), packets, n, info);
}

static bool udp_member_sink_deliver(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	const struct udp_member *member = flow->owner;

	return udp_deliver(member->at, packet, info);
}

/* With the ring's flag held: somebody else does the rest. */
static void endpoint_on_revoked(struct vma_flow *flow)
{
	struct udp_member *member = flow->owner;

	atomic_store_explicit(&member->revoked, true, memory_order_release);
	udp_flows_schedule_update_task(member->flows);
}
static const struct vma_flow_ops flow_ops_without_trains = {.revoked = endpoint_on_revoked};
static const struct vma_flow_ops train_ops = {.revoked = endpoint_on_revoked,
                                              .take_train = udp_unicast_sink_take_datagram_burst};

/* ---- the choice ---- */

static int udp_binding_specificity_rank(const struct udp_flows *flows)
{
	return (flows->local != INADDR_ANY ? 4 : 0) + (flows->bound_ifindex != 0 ? 2 : 0) + (flows->is_ipv6 ? 0 : 1);
}

static int member_binding_specificity_rank(const struct udp_member *member)
{
	return udp_binding_specificity_rank(member->flows);
}

static bool member_outranks(const struct udp_member *a, const struct udp_member *b)
{
	int difference = member_binding_specificity_rank(a) - member_binding_specificity_rank(b);

	return difference != 0 ? difference > 0 : a->flows->order > b->flows->order;
}

static bool udp_member_shares_port_with(const struct udp_member *member, const struct udp_member *winner)
{
	if (member == winner)
		return true;
	return winner->flows->reuse_port && member->flows->reuse_port &&
	       member_binding_specificity_rank(member) == member_binding_specificity_rank(winner);
}

static void endpoint_choice_free_retired(struct vma_retired *retired)
{
	vma_free(retired);
}
_Static_assert(offsetof(struct udp_choice, retired) == 0, "choice_end");

static bool udp_attachment_choices_are_equal(const struct udp_choice *a, const struct udp_choice *b)
{
	return a != NULL && a->n == b->n && memcmp(a->at, b->at, a->n * sizeof(a->at[0])) == 0;
}

bool udp_endpoint_choose_receiving_sockets(struct udp_endpoint *endpoint)
{
	struct udp_choice *old = atomic_load_explicit(&endpoint->choice, memory_order_relaxed), *choice;
	const struct udp_member *winner = endpoint->members;
	uint32_t n = 0;

	if (endpoint->shared || winner == NULL)
		return true;
	for (const struct udp_member *m = endpoint->members; m != NULL; m = m->next_of_endpoint, n++) {
		if (member_outranks(m, winner))
			winner = m;
	}
	choice = vma_alloc(sizeof(*choice) + n * sizeof(choice->at[0]));
	if (choice == NULL)
		return false;
	for (const struct udp_member *m = endpoint->members; m != NULL; m = m->next_of_endpoint) {
		if (udp_member_shares_port_with(m, winner))
			choice->at[choice->n++] = m->at;
	}
	if (udp_attachment_choices_are_equal(old, choice)) {
		vma_free(choice);
		return true;
	}
	atomic_store_explicit(&endpoint->choice, choice, memory_order_release);
	if (old != NULL)
		vma_defer_free_until_no_readers(&old->retired, endpoint_choice_free_retired);
	return true;
}

/* ---- endpoints ---- */

/* The first behind `after`, NULL: of all. */
static struct udp_endpoint *endpoint_find_next_with_key(const struct udp_endpoint *after, uint32_t device,
                                                        const struct vma_flow_key *key)
{
	struct udp_endpoint *endpoint = after != NULL ? after->next : udp_port(key->local_port_be)->endpoints;

	while (endpoint != NULL && !(endpoint->device == device && memcmp(&endpoint->key, key, sizeof(*key)) == 0))
		endpoint = endpoint->next;
	return endpoint;
}

/* The ring context that the socket's maker has for this address; held. */
static int endpoint_ring_ctx(const struct udp_flows *flows, struct vma_device *device, const struct udp_target *target,
                             struct vma_ring_ctx **out)
{
	const struct vma_ring_requester where = vma_file_get_ring_requester(&flows->sock->file, target->key.local);

	return vma_ring_ctx_find_or_create(device, VMA_RING_CTX_RX, &where, out);
}

/* The ring context's reference passes if it succeeds. */
static int endpoint_create(struct vma_ring_ctx *ring_ctx, const struct udp_target *target, struct udp_endpoint **out)
{
	struct udp_port *port = udp_port(target->key.local_port_be);
	struct udp_endpoint *endpoint = vma_alloc(sizeof(*endpoint));

	if (endpoint == NULL)
		return -ENOMEM;
	endpoint->ring_ctx = ring_ctx;
	endpoint->key = target->key;
	endpoint->device = target->device;
	endpoint->ifindex = target->ifindex;
	endpoint->shared = target->shared;
	udp_mark_port_group_used(port);
	endpoint->next = port->endpoints;
	port->endpoints = endpoint;
	*out = endpoint;
	return 0;
}

static int endpoint_create_first(struct udp_flows *flows, struct vma_device *device, const struct udp_target *target,
                                 struct udp_endpoint **out)
{
	struct vma_ring_ctx *ring_ctx;
	int rc = endpoint_ring_ctx(flows, device, target, &ring_ctx);

	if (rc < 0)
		return rc;
	rc = endpoint_create(ring_ctx, target, out);
	if (rc < 0)
		vma_ring_ctx_put(ring_ctx);
	return rc;
}

/* A sink that has just looked is inside. */
static void endpoint_free_retired(struct vma_retired *retired)
{
	struct udp_endpoint *endpoint =
	        (struct udp_endpoint *)((char *)retired - offsetof(struct udp_endpoint, retired));

	vma_free(atomic_load_explicit(&endpoint->choice, memory_order_relaxed));
	vma_free(endpoint);
}

/* Its last member has gone. */
static void endpoint_remove_and_retire(struct udp_endpoint *endpoint)
{
	struct udp_endpoint **place = &udp_port(endpoint->key.local_port_be)->endpoints;

	while (*place != endpoint)
		place = &(*place)->next;
	*place = endpoint->next;
	vma_ring_ctx_put(endpoint->ring_ctx);
	vma_defer_free_until_no_readers(&endpoint->retired, endpoint_free_retired);
}

/* ---- members ---- */

struct udp_member *udp_member_find(const struct udp_flows *flows, const struct udp_target *target)
{
	struct udp_member *member = flows->members;

	while (member != NULL && !(member->endpoint->device == target->device &&
	                           memcmp(&member->flow.key, &target->key, sizeof(target->key)) == 0))
		member = member->next;
	return member;
}

static void endpoint_link_member(struct udp_member *member)
{
	struct udp_member **place = &member->endpoint->members;

	while (*place != NULL)
		place = &(*place)->next_of_endpoint;
	*place = member;
	member->next = member->flows->members;
	member->flows->members = member;
	member->endpoint->hosts += !member->guest;
}

static void endpoint_unlink_member(struct udp_member *member)
{
	struct udp_member **place = &member->endpoint->members;

	while (*place != member)
		place = &(*place)->next_of_endpoint;
	*place = member->next_of_endpoint;
	for (place = &member->flows->members; *place != member; place = &(*place)->next)
		;
	*place = member->next;
	member->endpoint->hosts -= !member->guest;
}

static void member_free_retired(struct vma_retired *retired)
{
	vma_free((char *)retired - offsetof(struct udp_member, retired));
}

/* Its flow is attached nowhere. Without memory for another choice the old one would lead to a queue that ends. */
static void member_remove_and_retire(struct udp_member *member)
{
	struct udp_endpoint *endpoint = member->endpoint;

	endpoint_unlink_member(member);
	member->at->flows--;
	member->flows->moved |= member->at->flows == 0;
	vma_defer_free_until_no_readers(&member->retired, member_free_retired);
	if (endpoint->members == NULL)
		endpoint_remove_and_retire(endpoint);
}

/* Its key may have an endpoint on each of several rings. */
static bool udp_target_may_spread_rings(const struct udp_flows *flows, const struct udp_target *target)
{
	return !target->shared && !target->alone && target->key.peer_port_be == 0 && flows->reuse_port &&
	       vma_ring_depends_on_creating_thread(flows->sock->engine, &flows->sock->file);
}

static struct udp_member *udp_endpoint_member_create(struct udp_flows *flows, struct udp_endpoint *endpoint,
                                                     const struct udp_target *target, bool guest)
{
	struct udp_member *member = vma_alloc(sizeof(*member));

	if (member == NULL)
		return NULL;
	member->at = udp_attachment_find_or_create(flows, endpoint->ring_ctx, target->ifindex);
	if (member->at == NULL) {
		vma_free(member);
		return NULL;
	}
	member->at->flows++;
	member->endpoint = endpoint;
	member->flows = flows;
	member->ifindex = target->ifindex;
	member->guest = guest;
	member->flow = (struct vma_flow){
	        .key = target->key,
	        .sink = endpoint->shared ? udp_member_sink_deliver : udp_unicast_sink_deliver,
	        .flags = target->alone                                ? VMA_FLOW_PORT_EXCLUSIVE
	                 : udp_target_may_spread_rings(flows, target) ? VMA_FLOW_REUSEPORT
	                                                              : 0,
	        .owner = member,
	        .ops = !endpoint->shared && flows->sock->xtreme != NULL ? &train_ops : &flow_ops_without_trains};
	return member;
}

static bool flows_have_member_on_device(const struct udp_flows *flows, uint32_t device)
{
	for (const struct udp_member *m = flows->members; m != NULL; m = m->next) {
		if (!m->guest && m->endpoint->device == device)
			return true;
	}
	return false;
}

/*
 * The first member is chosen before its flow is attached, so that a sink never finds no choice; a later one afterwards,
 * so that a flow which is refused has never been chosen.
 */
static int member_attach_flow_to_ring(struct udp_member *member)
{
	struct udp_endpoint *endpoint = member->endpoint;
	bool first = endpoint->members == member;
	int rc = 0;

	if (first && !udp_endpoint_choose_receiving_sockets(endpoint))
		rc = -ENOMEM;
	if (rc == 0)
		rc = vma_ring_attach_flow(endpoint->ring_ctx->ring, &member->flow);
	if (rc == 0 && !first && !udp_endpoint_choose_receiving_sockets(endpoint)) {
		vma_ring_detach_flow(endpoint->ring_ctx->ring, &member->flow);
		rc = -ENOMEM;
	}
	return rc;
}

static int attach_to_endpoint(struct udp_flows *flows, struct udp_endpoint *endpoint, const struct udp_target *target,
                              bool guest)
{
	struct udp_member *member = udp_endpoint_member_create(flows, endpoint, target, guest);
	int rc;

	if (member == NULL) {
		if (endpoint->members == NULL)
			endpoint_remove_and_retire(endpoint);
		return -ENOMEM;
	}
	if (!guest || !flows_have_member_on_device(flows, target->device)) {
		member->flow.shadow_cookie = flows->cookie;
		member->flow.shadow_fd = atomic_load_explicit(&flows->sock->file.fd, memory_order_relaxed);
	}
	endpoint_link_member(member);
	rc = member_attach_flow_to_ring(member);
	if (rc < 0)
		member_remove_and_retire(member);
	return rc;
}

/*
 * Out of the choice before the flow goes: what comes meanwhile is for those who stay. Where the choice cannot be made
 * anew it is shortened in place: to one who stays, if there is one.
 */
static void endpoint_stop_delivering_to_member(struct udp_member *member)
{
	struct udp_endpoint *endpoint = member->endpoint;
	struct udp_choice *choice = atomic_load_explicit(&endpoint->choice, memory_order_relaxed);
	struct udp_member **place = &endpoint->members, *rest = member->next_of_endpoint;

	if (endpoint->shared || (*place == member && rest == NULL))
		return;
	while (*place != member)
		place = &(*place)->next_of_endpoint;
	*place = rest;
	if (!udp_endpoint_choose_receiving_sockets(endpoint)) {
		for (uint32_t i = 0; i < choice->n; i++) {
			if (choice->at[i] == member->at)
				choice->at[i] = endpoint->members->at;
		}
	}
	while (*place != NULL)
		place = &(*place)->next_of_endpoint;
	member->next_of_endpoint = NULL;
	*place = member;
}

void udp_member_detach(struct udp_member *member)
{
	endpoint_stop_delivering_to_member(member);
	vma_ring_drain_and_detach_flow(member->endpoint->ring_ctx->ring, &member->flow);
	member_remove_and_retire(member);
}

/* ---- a key with several endpoints ---- */

/* The socket and all members of the key are equals with SO_REUSEPORT. */
static bool udp_endpoint_may_spread_over_rings(const struct udp_flows *flows, const struct udp_target *target)
{
	const struct udp_endpoint *e = NULL;

	if (!udp_target_may_spread_rings(flows, target))
		return false;
	while ((e = endpoint_find_next_with_key(e, target->device, &target->key)) != NULL) {
		for (const struct udp_member *m = e->members; m != NULL; m = m->next_of_endpoint) {
			if (!m->flows->reuse_port ||
			    udp_binding_specificity_rank(m->flows) != udp_binding_specificity_rank(flows) ||
			    (m->flow.flags & VMA_FLOW_REUSEPORT) == 0)
				return false;
		}
	}
	return true;
}

/* Attached there before it is detached here: what comes meanwhile finds one or the other. */
static void member_move_to_endpoint(struct udp_member *member, struct udp_endpoint *to)
{
	const struct udp_target target = {
	        .key = member->flow.key, .device = to->device, .ifindex = member->ifindex, .alone = false};
	struct udp_flows *flows = member->flows;

	if (attach_to_endpoint(flows, to, &target, member->guest) < 0)
		udp_flows_schedule_update_task(flows); /* it asks again */
	udp_member_detach(member);
	udp_attachments_publish(flows, false);
}

static void endpoint_move_all_members_to_first(struct udp_endpoint *first)
{
	struct udp_endpoint *e;

	while ((e = endpoint_find_next_with_key(first, first->device, &first->key)) != NULL) {
		while (e->members->next_of_endpoint != NULL)
			member_move_to_endpoint(e->members, first);
		member_move_to_endpoint(e->members, first); /* and the endpoint ends */
	}
}

/* Of the endpoints of a key the one on the socket's own ring, made if need be; or the first. */
static struct udp_endpoint *endpoint_on_own_ring(struct udp_flows *flows, struct vma_device *device,
                                                 const struct udp_target *target, struct udp_endpoint *first)
{
	struct udp_endpoint *e = first;
	struct vma_ring_ctx *ring_ctx;

	if (endpoint_ring_ctx(flows, device, target, &ring_ctx) < 0)
		return first;
	while (e != NULL && e->ring_ctx != ring_ctx)
		e = endpoint_find_next_with_key(e, target->device, &target->key);
	if (e == NULL && endpoint_create(ring_ctx, target, &e) == 0)
		return e;
	vma_ring_ctx_put(ring_ctx);
	return e != NULL ? e : first;
}

int udp_member_attach(struct udp_flows *flows, struct vma_device *device, const struct udp_target *target, bool guest)
{
	struct udp_endpoint *endpoint = endpoint_find_next_with_key(NULL, target->device, &target->key);
	int rc;

	if (endpoint == NULL) {
		rc = endpoint_create_first(flows, device, target, &endpoint);
		if (rc < 0)
			return rc;
	} else if (udp_endpoint_may_spread_over_rings(flows, target)) {
		endpoint = endpoint_on_own_ring(flows, device, target, endpoint);
	} else {
		endpoint_move_all_members_to_first(endpoint);
	}
	return attach_to_endpoint(flows, endpoint, target, guest);
}

/* ---- to another ring ---- */

/* Its twin: the same key, shadow and port on another ring context, with one member that is chosen. */
struct twin {
	struct udp_endpoint *endpoint;
	struct udp_choice *choice;
	struct udp_member *member;
};

static bool endpoint_on_other_ring_create(struct twin *twin, const struct udp_member *member,
                                          struct vma_ring_ctx *ring_ctx, struct udp_attachment *at)
{
	const struct udp_endpoint *endpoint = member->endpoint;

	twin->endpoint = vma_alloc(sizeof(*twin->endpoint));
	twin->choice = vma_alloc(sizeof(*twin->choice) + sizeof(twin->choice->at[0]));
	twin->member = vma_alloc(sizeof(*twin->member));
	if (twin->endpoint == NULL || twin->choice == NULL || twin->member == NULL)
		return false;
	twin->choice->n = 1;
	twin->choice->at[0] = at;
	twin->endpoint->key = endpoint->key;
	twin->endpoint->device = endpoint->device;
	twin->endpoint->ifindex = endpoint->ifindex;
	twin->endpoint->shared = endpoint->shared;
	twin->endpoint->hosts = endpoint->hosts;
	twin->endpoint->members = twin->member;
	twin->endpoint->ring_ctx = ring_ctx;
	atomic_store_explicit(&twin->endpoint->choice, twin->choice, memory_order_relaxed);
	twin->member->endpoint = twin->endpoint;
	twin->member->at = at;
	twin->member->flows = member->flows;
	twin->member->ifindex = member->ifindex;
	twin->member->is_wanted = member->is_wanted;
	twin->member->flow = member->flow;
	twin->member->flow.owner = twin->member;
	twin->member->flow.ring = NULL;
	twin->member->flow.next = NULL;
	return true;
}

static void endpoint_on_other_ring_free(struct twin *twin)
{
	vma_free(twin->member);
	vma_free(twin->choice);
	vma_free(twin->endpoint);
}

/* In the lists of the port and of the socket; what was there ends. */
static void endpoint_on_other_ring_replace(struct twin *twin, struct udp_member *member)
{
	struct udp_endpoint *old = member->endpoint, **endpoint = &udp_port(old->key.local_port_be)->endpoints;
	struct udp_member **place = &member->flows->members;

	while (*endpoint != old)
		endpoint = &(*endpoint)->next;
	twin->endpoint->next = old->next;
	*endpoint = twin->endpoint;
	while (*place != member)
		place = &(*place)->next;
	twin->member->next = member->next;
	*place = twin->member;
	twin->member->at->flows++;
	member->at->flows--;
	atomic_fetch_add_explicit(&twin->endpoint->ring_ctx->refs, 1, memory_order_relaxed); /* the caller holds one */
	vma_ring_ctx_put(old->ring_ctx);
	vma_defer_free_until_no_readers(&member->retired, member_free_retired);
	vma_defer_free_until_no_readers(&old->retired, endpoint_free_retired);
}

int udp_member_move_flow_to_other_ring(struct udp_member *member, struct vma_ring_ctx *ring_ctx,
                                       struct udp_attachment *at)
{
	struct twin twin;
	int rc = -ENOMEM;

	if (endpoint_on_other_ring_create(&twin, member, ring_ctx, at))
		rc = vma_ring_move_flow(member->endpoint->ring_ctx->ring, &member->flow, ring_ctx->ring,
		                        &twin.member->flow);
	if (rc == 0)
		endpoint_on_other_ring_replace(&twin, member);
	else
		endpoint_on_other_ring_free(&twin);
	return rc;
}
