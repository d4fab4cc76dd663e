/* plan - the decisions: which interface sends, and with which headers. */
#include <errno.h>
#include <net/if_arp.h>
#include <linux/if_ether.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <string.h>
#include <sys/socket.h>

#include "plan.h"

#define NUD_USABLE (NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE | NUD_PROBE | NUD_STALE | NUD_DELAY)
#define TAG_BYTES 4
#define IP4_BYTES 20

static enum plan_need net_template_use_os(struct vma_net_template *out, enum vma_net_reason reason)
{
	out->state = VMA_NET_USE_OS;
	out->reason = (uint8_t)reason;
	return PLAN_NOTHING;
}

static enum vma_net_reason path_os_reason_of_facts(const struct plan_facts *facts)
{
	const struct vma_net_route *route = facts->route;
	const struct vma_net_link *link = facts->link;

	if (route->type == RTN_LOCAL)
		return VMA_NET_REASON_LOCAL;
	if (route->type != RTN_UNICAST && route->type != RTN_BROADCAST && route->type != RTN_MULTICAST)
		return VMA_NET_REASON_ROUTE_TYPE;
	if (link == NULL)
		return VMA_NET_REASON_NO_LINK;
	if ((link->flags & IFF_LOOPBACK) != 0)
		return VMA_NET_REASON_LOCAL;
	if ((link->flags & (IFF_UP | IFF_RUNNING)) != (IFF_UP | IFF_RUNNING))
		return VMA_NET_REASON_LINK_DOWN;
	if (link->hw_type != ARPHRD_ETHER)
		return VMA_NET_REASON_NOT_ETHERNET;
	if (route->encap)
		return VMA_NET_REASON_ENCAP;
	if (route->gateway_family != 0 && route->gateway_family != route->family)
		return VMA_NET_REASON_GATEWAY_FAMILY;
	return VMA_NET_REASON_NONE;
}

static void write_template_headers(const struct plan_facts *facts, struct vma_net_template *out)
{
	uint8_t *at = out->bytes + ETH_HLEN - 2;

	memcpy(out->bytes + ETH_ALEN, facts->link->mac, ETH_ALEN);
	if (out->vlan != 0) {
		at[0] = ETH_P_8021Q >> 8;
		at[1] = ETH_P_8021Q & 0xff;
		at[2] = (uint8_t)(out->vlan >> 8);
		at[3] = (uint8_t)out->vlan;
		at += TAG_BYTES;
	}
	at[0] = ETH_P_IP >> 8;
	at[1] = ETH_P_IP & 0xff;
	at += 2;
	out->ip_off = (uint8_t)(at - out->bytes);
	at[0] = 0x45; /* version 4, five words */
	memcpy(at + 12, out->src, 4);
	memcpy(at + 16, facts->key->dst, 4);
}

static void complete_template_with_mac(struct vma_net_template *t, const uint8_t mac[6])
{
	memcpy(t->bytes, mac, ETH_ALEN);
	t->len = t->ip_off + IP4_BYTES;
	t->state = VMA_NET_READY;
	t->error = 0;
}

/* RFC 1112, 6.4: the group's low 23 bits. */
static void multicast_mac_of_group(uint8_t mac[6], const uint8_t group[16])
{
	const uint8_t bytes[6] = {0x01, 0x00, 0x5e, group[1] & 0x7f, group[2], group[3]};

	memcpy(mac, bytes, 6);
}

/* As the kernel's arp_constructor chooses, in its order. */
static enum plan_need set_next_hop_mac_or_need_neigh(const struct plan_facts *facts, struct vma_net_template *out)
{
	const struct vma_net_link *link = facts->link;
	uint8_t mac[6];

	if (facts->route->type == RTN_MULTICAST) {
		multicast_mac_of_group(mac, facts->key->dst);
		complete_template_with_mac(out, mac);
		return PLAN_NOTHING;
	}
	if ((link->flags & IFF_NOARP) != 0) {
		memcpy(out->bytes, link->mac, ETH_ALEN);
		return PLAN_NEIGH_IF_KNOWN;
	}
	if (facts->route->type == RTN_BROADCAST) {
		complete_template_with_mac(out, link->broadcast);
		return PLAN_NOTHING;
	}
	if ((link->flags & IFF_POINTOPOINT) != 0) {
		memcpy(out->bytes, link->broadcast, ETH_ALEN);
		return PLAN_NEIGH_IF_KNOWN;
	}
	out->state = VMA_NET_RESOLVING;
	return PLAN_NEIGH;
}

enum plan_need plan_fill_path_template_from_facts(const struct plan_facts *facts, struct vma_net_template *out)
{
	const struct vma_net_route *route = facts->route;
	const struct vma_net_link *link = facts->link, *lower = facts->lower;
	enum vma_net_reason reason;

	memset(out, 0, sizeof(*out));
	if (facts->refused == PLAN_NOT_ASKED)
		return net_template_use_os(out, VMA_NET_REASON_NOT_ASKED);
	if (facts->refused < 0) {
		out->state = VMA_NET_ERROR;
		out->error = -facts->refused;
		return PLAN_NOTHING;
	}
	out->type = route->type;
	out->ifindex = out->nic = route->oif;
	memcpy(out->src, route->src, 16);
	memcpy(out->next_hop, route->gateway_family == route->family ? route->gateway : facts->key->dst, 16);
	out->mtu = link != NULL ? link->mtu : 0;
	if (route->mtu != 0 && (out->mtu == 0 || route->mtu < out->mtu))
		out->mtu = route->mtu;
	if (facts->mtu_max != 0 && out->mtu > facts->mtu_max)
		out->mtu = facts->mtu_max;
	out->advmss = route->advmss;
	out->initcwnd = route->initcwnd;
	if (route->quickack)
		out->flags |= VMA_NET_QUICKACK;
	reason = path_os_reason_of_facts(facts);
	if (reason != VMA_NET_REASON_NONE)
		return net_template_use_os(out, reason);
	/* One tag is ours to write; below a second one the VLAN interface itself has to do it. */
	if (link->vlan != 0 && lower != NULL && lower->vlan == 0 && lower->hw_type == ARPHRD_ETHER) {
		out->vlan = link->vlan;
		out->nic = lower->ifindex;
	}
	write_template_headers(facts, out);
	return set_next_hop_mac_or_need_neigh(facts, out);
}

void plan_apply_neigh_to_template(struct vma_net_template *t, enum plan_need need, const struct vma_net_neigh *neigh)
{
	uint8_t mac[6];

	memcpy(mac, t->bytes, sizeof(mac));
	if ((neigh->state & NUD_USABLE) != 0 && neigh->mac_len == 6) {
		complete_template_with_mac(t, neigh->mac);
		t->flags = (uint8_t)((t->flags & ~VMA_NET_CONFIRM) | (neigh->state == NUD_STALE ? VMA_NET_CONFIRM : 0));
	} else if (need == PLAN_NEIGH_IF_KNOWN) {
		complete_template_with_mac(t, mac);
	} else {
		const bool failed = neigh->state == NUD_FAILED;

		t->state = failed ? VMA_NET_FAILED : VMA_NET_RESOLVING;
		t->error = failed ? EHOSTUNREACH : 0;
	}
}
