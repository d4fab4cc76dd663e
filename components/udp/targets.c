/* targets.c - which flows a socket should have: from its addresses, its memberships and the interfaces there are. */
#include "targets.h"

#include <errno.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <string.h>
#include <linux/rtnetlink.h>

#include "groups.h"

/* ---- interfaces ---- */

struct place { /* where the packets of an interface are to be had */
	uint32_t device, ifindex;
	uint16_t vlan;
};

static bool target_link_is_usable(const struct vma_net_link *link)
{
	return link->hw_type == ARPHRD_ETHER && (link->flags & IFF_UP) != 0;
}

/* Whether it can be offloaded as far as net knows, which has just been asked for addresses or a way; a VLAN interface
 * is, through the one that it lies on. */
static enum vma_sock_reason udp_target_find_offload_device(struct vma_net *net, uint32_t ifindex, struct place *place)
{
	struct vma_net_link link;

	if (vma_net_link_cached(net, ifindex, &link) != 0)
		return VMA_SOCK_NO_DEVICE;
	if ((link.flags & IFF_LOOPBACK) != 0)
		return VMA_SOCK_LOCAL;
	if (!target_link_is_usable(&link))
		return VMA_SOCK_NO_DEVICE;
	*place = (struct place){.device = ifindex, .ifindex = ifindex};
	if (link.vlan == 0)
		return VMA_SOCK_OFFLOADED;
	place->device = link.lower;
	place->vlan = link.vlan;
	if (link.lower == 0 || vma_net_link_cached(net, link.lower, &link) != 0 || !target_link_is_usable(&link) ||
	    link.vlan != 0)
		return VMA_SOCK_NO_DEVICE;
	return VMA_SOCK_OFFLOADED;
}

/* ---- the list ---- */

struct targets_maker {
	const struct udp_sock *sock;
	struct vma_net *net;
	struct udp_targets *out;
	struct vma_net_addr *addrs;
	uint32_t n_addrs;
	int error;
};

static bool targets_are_same(const struct udp_target *a, const struct udp_target *b)
{
	return a->device == b->device && memcmp(&a->key, &b->key, sizeof(a->key)) == 0;
}

static void udp_targets_builder_append(struct targets_maker *targets_maker, const struct udp_target *target)
{
	struct udp_targets *out = targets_maker->out;
	struct udp_target *larger;

	for (uint32_t i = 0; i < out->n; i++) {
		if (targets_are_same(&out->at[i], target))
			return;
	}
	if (out->n == out->capacity) {
		larger = vma_alloc((out->capacity * 2 + 8) * sizeof(*larger));
		if (larger == NULL) {
			targets_maker->error = -ENOMEM;
			return;
		}
		if (out->n != 0)
			memcpy(larger, out->at, out->n * sizeof(*larger));
		vma_free(out->at);
		out->at = larger;
		out->capacity = out->capacity * 2 + 8;
	}
	out->at[out->n++] = *target;
}

static bool is_bound_to_other_interface(const struct targets_maker *targets_maker, uint32_t ifindex)
{
	return targets_maker->sock->bound_ifindex != 0 && targets_maker->sock->bound_ifindex != ifindex;
}

enum kind { UNICAST, SHARED, EXTRA_BROADCAST };

/*
 * The kernel has given the port to nobody else, and will not: such a flow is had without asking. An application's own
 * port might do as well; but a server stays, and what it has asked for is found by the device without a second look.
 */
static bool sock_has_port_alone(const struct udp_sock *sock)
{
	return sock->port_chosen && !sock->port_shared && !sock->reuse_addr && !sock->reuse_port &&
	       sock->bound_ifindex == 0;
}

/* VMA_UDP_3T_RULES: while nobody else can have the port, its flow may be of any peer; the sink knows the peer. */
static bool may_take_flow_of_any_peer(const struct udp_sock *sock)
{
	const struct vma_conf *conf = sock->engine != NULL ? &sock->engine->conf : NULL;

	return conf != NULL && conf->given[VMA_CONF_AT_udp_3t_rules] && conf->udp_3t_rules && sock_has_port_alone(sock);
}

/* A flow for `local` on this interface, of the peer only if there is one. */
static void udp_targets_builder_add(struct targets_maker *targets_maker, uint32_t ifindex, uint32_t local,
                                    enum kind kind)
{
	const struct udp_sock *sock = targets_maker->sock;
	struct udp_target target = {.shared = kind != UNICAST, .extra = kind == EXTRA_BROADCAST};

	target.alone = kind == UNICAST && sock_has_port_alone(sock);
	struct place place;
	enum vma_sock_reason reason;

	if (is_bound_to_other_interface(targets_maker, ifindex))
		return;
	reason = udp_target_find_offload_device(targets_maker->net, ifindex, &place);
	if (reason != VMA_SOCK_OFFLOADED) {
		targets_maker->out->reason = reason;
		return;
	}
	target.device = place.device;
	target.ifindex = place.ifindex;
	target.key = (struct vma_flow_key){
	        .family = AF_INET, .proto = IPPROTO_UDP, .vlan = place.vlan, .local_port_be = sock->local.sin_port};
	memcpy(target.key.local, &local, 4);
	if (sock->peer.sin_family == AF_INET && !may_take_flow_of_any_peer(sock)) {
		target.key.peer_port_be = sock->peer.sin_port;
		memcpy(target.key.peer, &sock->peer.sin_addr, 4);
	}
	udp_targets_builder_append(targets_maker, &target);
}

/* ---- addresses ---- */

static int udp_targets_builder_read_addrs(struct targets_maker *targets_maker)
{
	uint32_t capacity = 8;

	for (;;) {
		int n;

		targets_maker->addrs = vma_alloc(capacity * sizeof(*targets_maker->addrs));
		if (targets_maker->addrs == NULL)
			return -ENOMEM;
		n = vma_net_addrs(targets_maker->net, 0, targets_maker->addrs, capacity);
		if (n < 0)
			return n;
		targets_maker->n_addrs = (uint32_t)n;
		if ((uint32_t)n <= capacity)
			return 0;
		vma_free(targets_maker->addrs);
		capacity = (uint32_t)n + 4;
	}
}

static uint32_t net_addr_ipv4(const struct vma_net_addr *addr)
{
	uint32_t address;

	memcpy(&address, addr->address, 4);
	return address;
}

/* The subnet's, as the kernel adds it for every address with a prefix below 31; 0: none. */
static uint32_t broadcast_of(const struct vma_net_addr *addr)
{
	if (addr->prefix_len >= 31)
		return 0;
	return net_addr_ipv4(addr) | htonl(UINT32_MAX >> addr->prefix_len);
}

static bool is_ipv4(const struct vma_net_addr *addr)
{
	return addr->family == AF_INET;
}

static bool address_is_loopback(uint32_t address)
{
	return ntohl(address) >> 24 == IN_LOOPBACKNET;
}

/* Unicast first: the interface looks at the first flow before all others. */
static void targets_add_all_local_addresses(struct targets_maker *targets_maker)
{
	for (uint32_t i = 0; i < targets_maker->n_addrs; i++) {
		const struct vma_net_addr *addr = &targets_maker->addrs[i];

		if (is_ipv4(addr) && !address_is_loopback(net_addr_ipv4(addr)))
			udp_targets_builder_add(targets_maker, addr->ifindex, net_addr_ipv4(addr), UNICAST);
	}
}

static void targets_add_broadcasts(struct targets_maker *targets_maker, uint32_t only, enum kind kind)
{
	for (uint32_t i = 0; i < targets_maker->n_addrs; i++) {
		const struct vma_net_addr *addr = &targets_maker->addrs[i];
		uint32_t broadcast;

		if (!is_ipv4(addr) || address_is_loopback(net_addr_ipv4(addr)))
			continue;
		broadcast = broadcast_of(addr);
		if (broadcast != 0 && (only == INADDR_ANY || only == broadcast))
			udp_targets_builder_add(targets_maker, addr->ifindex, broadcast, kind);
		if (only == INADDR_ANY || only == INADDR_BROADCAST)
			udp_targets_builder_add(targets_maker, addr->ifindex, INADDR_BROADCAST, kind);
	}
}

static void targets_add_own_address(struct targets_maker *targets_maker, uint32_t local)
{
	targets_maker->out->reason = VMA_SOCK_LOCAL; /* unless an interface has it */
	for (uint32_t i = 0; i < targets_maker->n_addrs; i++) {
		if (is_ipv4(&targets_maker->addrs[i]) && net_addr_ipv4(&targets_maker->addrs[i]) == local)
			udp_targets_builder_add(targets_maker, targets_maker->addrs[i].ifindex, local, UNICAST);
	}
	if (targets_maker->out->n == 0)
		targets_add_broadcasts(targets_maker, local, SHARED);
}

/* group 0: all that are joined. */
static void targets_add_multicast_groups(struct targets_maker *targets_maker, uint32_t group)
{
	const struct udp_groups *groups = atomic_load_explicit(&targets_maker->sock->groups, memory_order_relaxed);

	for (uint32_t i = 0; groups != NULL && i < groups->n; i++) {
		const struct udp_membership *membership = &groups->at[i];

		if (group == 0 || membership->group == group)
			udp_targets_builder_add(targets_maker, membership->ifindex, membership->group, SHARED);
	}
}

/* ---- cases ---- */

static bool address_is_multicast(uint32_t address)
{
	return IN_MULTICAST(ntohl(address));
}

static void targets_build_for_unconnected_sock(struct targets_maker *targets_maker)
{
	uint32_t local = targets_maker->sock->local.sin_addr.s_addr;

	if (address_is_multicast(local)) {
		targets_maker->out->reason = VMA_SOCK_NO_MEMBERSHIP;
		targets_add_multicast_groups(targets_maker, local);
		return;
	}
	if (local != INADDR_ANY) {
		targets_add_own_address(targets_maker, local);
		return;
	}
	targets_add_all_local_addresses(targets_maker);
	targets_add_multicast_groups(targets_maker, 0);
	if (!targets_maker->sock->port_chosen)
		targets_add_broadcasts(targets_maker, INADDR_ANY, EXTRA_BROADCAST);
	if (targets_maker->out->n == 0)
		targets_maker->out->reason = VMA_SOCK_NO_DEVICE;
}

/* A path, and not a route: it is remembered, and what is sent to the peer goes by it as well. */
static bool find_route(struct vma_net *net, const struct vma_net_key *key, struct vma_net_template *out)
{
	struct vma_net_path *path;

	if (vma_net_path_get(net, key, &path) != 0)
		return false;
	vma_net_path_read_template(path, out);
	vma_net_path_put(net, path);
	return out->state != VMA_NET_ERROR && out->reason != VMA_NET_REASON_NOT_ASKED;
}

/* The kernel's route to the peer; only packets that come by that interface are ours, so that those of others, and of
 * other ways, meet the shadow. */
static void targets_build_for_connected_sock(struct targets_maker *targets_maker)
{
	const struct udp_sock *sock = targets_maker->sock;
	uint32_t local = sock->local.sin_addr.s_addr, peer = sock->peer.sin_addr.s_addr;
	struct vma_net_key key = {.family = AF_INET,
	                          .proto = IPPROTO_UDP,
	                          .oif = sock->bound_ifindex,
	                          .mark = sock->mark,
	                          .uid = geteuid(),
	                          .tos = sock->tos,
	                          .sport_be = sock->local.sin_port,
	                          .dport_be = sock->peer.sin_port,
	                          .flags = VMA_NET_KEY_CONNECT};
	struct vma_net_template route;
	struct place place;

	if (address_is_multicast(local)) {
		targets_maker->out->reason = VMA_SOCK_NO_MEMBERSHIP;
		targets_add_multicast_groups(targets_maker, local);
		return;
	}
	if (address_is_multicast(peer) && key.oif == 0)
		key.oif = sock->mc_ifindex;
	memcpy(key.dst, &peer, 4);
	memcpy(key.src, &local, 4);
	if (!find_route(targets_maker->net, &key, &route))
		return;
	targets_maker->out->reason = VMA_SOCK_LOCAL;
	if (route.type == RTN_LOCAL)
		return;
	if (route.type == RTN_UNICAST && sock->peer.sin_port != 0) {
		udp_targets_builder_add(targets_maker, route.ifindex, local, UNICAST);
		return;
	}
	/* Nobody has such an address as his own, so nothing can come from there. */
	targets_maker->out->reason = udp_target_find_offload_device(targets_maker->net, route.ifindex, &place);
	if (targets_maker->out->reason == VMA_SOCK_OFFLOADED)
		targets_maker->out->send_device = place.device;
}

int udp_targets_compute_for_sock(const struct udp_sock *sock, struct vma_net *net, struct udp_targets *out)
{
	struct targets_maker targets_maker = {.sock = sock, .net = net, .out = out};

	*out = (struct udp_targets){.reason = VMA_SOCK_NO_DEVICE};
	if (sock->local.sin_port == 0) {
		out->reason = VMA_SOCK_NEW;
		return 0;
	}
	if (udp_is_ipv6(sock)) {
		out->reason = VMA_SOCK_IPV6;
		return 0;
	}
	if (sock->peer.sin_family == AF_INET) {
		targets_build_for_connected_sock(&targets_maker);
	} else {
		targets_maker.error = udp_targets_builder_read_addrs(&targets_maker);
		if (targets_maker.error == 0)
			targets_build_for_unconnected_sock(&targets_maker);
		vma_free(targets_maker.addrs);
	}
	if (targets_maker.error != 0)
		udp_targets_free(out);
	return targets_maker.error;
}

void udp_targets_free(struct udp_targets *targets)
{
	vma_free(targets->at);
	*targets = (struct udp_targets){0};
}
