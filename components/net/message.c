/* message - the kernel's messages, attribute by attribute. */
#include <errno.h>
#include <linux/if_addr.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/neighbour.h>
#include <linux/fib_rules.h>
#include <linux/rtnetlink.h>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <string.h>
#include <sys/socket.h>

#include "message.h"
#include "netlink.h"

/* Attributes by type; those beyond max, and shorter than the policy says, are not there or make the message broken. */
static int parse_attrs(struct nlmsghdr *message, size_t header_bytes, struct nlattr **attrs, int max,
                       const struct nla_policy *policy)
{
	if (message->nlmsg_len < NLMSG_HDRLEN + NLMSG_ALIGN(header_bytes))
		return -EINVAL;
	return nlmsg_parse(message, (int)header_bytes, attrs, max, policy) < 0 ? -EINVAL : 0;
}

static void copy_address(uint8_t out[16], const struct nlattr *attr)
{
	memset(out, 0, 16);
	if (attr != NULL)
		memcpy(out, nla_data(attr), nla_len(attr) < 16 ? (size_t)nla_len(attr) : 16);
}

static uint32_t nla_get_u32_or_default(const struct nlattr *attr, uint32_t otherwise)
{
	return attr != NULL ? nla_get_u32(attr) : otherwise;
}

static void copy_link_name(char out[16], const struct nlattr *attr)
{
	memset(out, 0, 16);
	if (attr != NULL)
		nla_strlcpy(out, attr, 16);
}

static void copy_mac(uint8_t out[6], const struct nlattr *attr)
{
	if (attr != NULL && nla_len(attr) == 6)
		memcpy(out, nla_data(attr), 6);
}

/* ---- links ---- */

static uint16_t vlan_id(struct nlattr *data)
{
	static const struct nla_policy policy[IFLA_VLAN_MAX + 1] = {
	        [IFLA_VLAN_ID] = {.type = NLA_U16},
	        [IFLA_VLAN_PROTOCOL] = {.type = NLA_U16},
	};
	struct nlattr *attrs[IFLA_VLAN_MAX + 1];

	if (data == NULL || nla_parse_nested(attrs, IFLA_VLAN_MAX, data, policy) < 0 || attrs[IFLA_VLAN_ID] == NULL)
		return 0;
	if (attrs[IFLA_VLAN_PROTOCOL] != NULL &&
	    nla_get_u16(attrs[IFLA_VLAN_PROTOCOL]) != __builtin_bswap16(ETH_P_8021Q))
		return 0;
	return nla_get_u16(attrs[IFLA_VLAN_ID]) & 0xfff;
}

static int parse_link_kind_and_vlan(struct nlattr *info, struct vma_net_link *out)
{
	static const struct nla_policy policy[IFLA_INFO_MAX + 1] = {
	        [IFLA_INFO_KIND] = {.type = NLA_STRING, .minlen = 1},
	        [IFLA_INFO_DATA] = {.type = NLA_NESTED},
	};
	struct nlattr *attrs[IFLA_INFO_MAX + 1];

	if (info == NULL)
		return 0;
	if (nla_parse_nested(attrs, IFLA_INFO_MAX, info, policy) < 0)
		return -EINVAL;
	copy_link_name(out->kind, attrs[IFLA_INFO_KIND]);
	if (strcmp(out->kind, "vlan") == 0)
		out->vlan = vlan_id(attrs[IFLA_INFO_DATA]);
	return 0;
}

int net_msg_parse_link(struct nlmsghdr *message, struct vma_net_link *out)
{
	static const struct nla_policy policy[IFLA_MAX + 1] = {
	        [IFLA_IFNAME] = {.type = NLA_STRING, .minlen = 1},
	        [IFLA_MTU] = {.type = NLA_U32},
	        [IFLA_LINK] = {.type = NLA_U32},
	        [IFLA_MASTER] = {.type = NLA_U32},
	        [IFLA_LINKINFO] = {.type = NLA_NESTED},
	};
	const struct ifinfomsg *header = nlmsg_data(message);
	struct nlattr *attrs[IFLA_MAX + 1];

	if (parse_attrs(message, sizeof(*header), attrs, IFLA_MAX, policy) < 0)
		return -EINVAL;
	if (header->ifi_family != AF_UNSPEC) /* a bridge telling of its ports: RTM_DELLINK is not the link's end then */
		return -EPROTONOSUPPORT;
	if (header->ifi_index <= 0)
		return -EINVAL;
	memset(out, 0, sizeof(*out));
	out->ifindex = (uint32_t)header->ifi_index;
	out->flags = header->ifi_flags;
	out->hw_type = header->ifi_type;
	out->mtu = nla_get_u32_or_default(attrs[IFLA_MTU], 0);
	out->master = nla_get_u32_or_default(attrs[IFLA_MASTER], 0);
	copy_link_name(out->name, attrs[IFLA_IFNAME]);
	copy_mac(out->mac, attrs[IFLA_ADDRESS]);
	copy_mac(out->broadcast, attrs[IFLA_BROADCAST]);
	if (parse_link_kind_and_vlan(attrs[IFLA_LINKINFO], out) < 0)
		return -EINVAL;
	/* A veth's IFLA_LINK is its peer, which is beside it, not below; elsewhere numbers mean other interfaces. */
	if (attrs[IFLA_LINK_NETNSID] == NULL && strcmp(out->kind, "veth") != 0)
		out->lower = nla_get_u32_or_default(attrs[IFLA_LINK], 0);
	if (out->lower == out->ifindex)
		out->lower = 0;
	return 0;
}

/* ---- addresses ---- */

int net_msg_parse_addr(struct nlmsghdr *message, struct vma_net_addr *out)
{
	static const struct nla_policy policy[IFA_MAX + 1] = {
	        [IFA_ADDRESS] = {.minlen = 4},
	        [IFA_LOCAL] = {.minlen = 4},
	        [IFA_FLAGS] = {.type = NLA_U32},
	};
	const struct ifaddrmsg *header = nlmsg_data(message);
	struct nlattr *attrs[IFA_MAX + 1];

	if (parse_attrs(message, sizeof(*header), attrs, IFA_MAX, policy) < 0)
		return -EINVAL;
	if (header->ifa_family != AF_INET)
		return -EPROTONOSUPPORT;
	if (header->ifa_prefixlen > 32 || (attrs[IFA_LOCAL] == NULL && attrs[IFA_ADDRESS] == NULL))
		return -EINVAL;
	memset(out, 0, sizeof(*out));
	out->ifindex = header->ifa_index;
	out->family = header->ifa_family;
	out->prefix_len = header->ifa_prefixlen;
	out->scope = header->ifa_scope;
	out->secondary = (nla_get_u32_or_default(attrs[IFA_FLAGS], header->ifa_flags) & IFA_F_SECONDARY) != 0;
	copy_address(out->address, attrs[IFA_LOCAL] != NULL ? attrs[IFA_LOCAL] : attrs[IFA_ADDRESS]);
	copy_address(out->peer, attrs[IFA_ADDRESS] != NULL ? attrs[IFA_ADDRESS] : attrs[IFA_LOCAL]);
	memset(out->address + 4, 0, 12);
	memset(out->peer + 4, 0, 12);
	return 0;
}

/* ---- neighbours ---- */

int net_msg_parse_neigh(struct nlmsghdr *message, struct vma_net_neigh *out)
{
	static const struct nla_policy policy[NDA_MAX + 1] = {[NDA_DST] = {.minlen = 4, .maxlen = 16}};
	const struct ndmsg *header = nlmsg_data(message);
	struct nlattr *attrs[NDA_MAX + 1];

	if (parse_attrs(message, sizeof(*header), attrs, NDA_MAX, policy) < 0)
		return -EINVAL;
	if (header->ndm_family != AF_INET || (header->ndm_flags & NTF_PROXY) != 0)
		return -EPROTONOSUPPORT;
	if (attrs[NDA_DST] == NULL || nla_len(attrs[NDA_DST]) != 4 || header->ndm_ifindex <= 0)
		return -EINVAL;
	memset(out, 0, sizeof(*out));
	out->ifindex = (uint32_t)header->ndm_ifindex;
	out->state = header->ndm_state;
	out->family = header->ndm_family;
	copy_address(out->address, attrs[NDA_DST]);
	if (attrs[NDA_LLADDR] != NULL && nla_len(attrs[NDA_LLADDR]) == 6) {
		copy_mac(out->mac, attrs[NDA_LLADDR]);
		out->mac_len = 6;
	}
	return 0;
}

static struct nl_msg *net_msg_build_neigh_request(int type, int flags, const struct ndmsg *header, const void *address)
{
	struct nl_msg *request = net_nl_alloc_request_message(type, flags, header, sizeof(*header));

	if (request != NULL && nla_put(request, NDA_DST, header->ndm_family == AF_INET ? 4 : 16, address) < 0) {
		nlmsg_free(request);
		return NULL;
	}
	return request;
}

struct nl_msg *net_msg_getneigh(uint32_t ifindex, uint8_t family, const void *address)
{
	const struct ndmsg header = {.ndm_family = family, .ndm_ifindex = (int)ifindex};

	return net_msg_build_neigh_request(RTM_GETNEIGH, 0, &header, address);
}

struct nl_msg *net_msg_build_neigh_probe_request(uint32_t ifindex, uint8_t family, const void *address)
{
	const struct ndmsg header = {.ndm_family = family, .ndm_ifindex = (int)ifindex, .ndm_flags = NTF_USE};

	return net_msg_build_neigh_request(RTM_NEWNEIGH, NLM_F_CREATE, &header, address);
}

/* ---- routes ---- */

static const struct nla_policy route_policy[RTA_MAX + 1] = {
        [RTA_OIF] = {.type = NLA_U32},        [RTA_TABLE] = {.type = NLA_U32},
        [RTA_PREFSRC] = {.minlen = 4},        [RTA_DST] = {.minlen = 4},
        [RTA_GATEWAY] = {.minlen = 4},        [RTA_VIA] = {.minlen = sizeof(struct rtvia) + 4},
        [RTA_METRICS] = {.type = NLA_NESTED},
};

static uint16_t nla_get_u16_clamped(const struct nlattr *attr)
{
	const uint32_t value = nla_get_u32_or_default(attr, 0);

	return (uint16_t)(value < UINT16_MAX ? value : UINT16_MAX);
}

static void parse_route_metrics(struct nlattr *metrics, struct vma_net_route *out)
{
	static const struct nla_policy policy[RTAX_MAX + 1] = {[RTAX_MTU] = {.type = NLA_U32},
	                                                       [RTAX_ADVMSS] = {.type = NLA_U32},
	                                                       [RTAX_INITCWND] = {.type = NLA_U32},
	                                                       [RTAX_QUICKACK] = {.type = NLA_U32}};
	struct nlattr *attrs[RTAX_MAX + 1];

	if (metrics == NULL || nla_parse_nested(attrs, RTAX_MAX, metrics, policy) < 0)
		return;
	out->mtu = nla_get_u32_or_default(attrs[RTAX_MTU], 0);
	out->advmss = nla_get_u16_clamped(attrs[RTAX_ADVMSS]);
	out->initcwnd = nla_get_u16_clamped(attrs[RTAX_INITCWND]);
	out->quickack = nla_get_u32_or_default(attrs[RTAX_QUICKACK], 0) != 0;
}

int net_msg_parse_route(struct nlmsghdr *message, const struct vma_net_key *key, struct vma_net_route *out)
{
	const struct rtmsg *header = nlmsg_data(message);
	struct nlattr *attrs[RTA_MAX + 1];

	if (parse_attrs(message, sizeof(*header), attrs, RTA_MAX, route_policy) < 0)
		return -EINVAL;
	if (header->rtm_family != AF_INET)
		return -EPROTONOSUPPORT;
	memset(out, 0, sizeof(*out));
	out->type = header->rtm_type;
	out->family = header->rtm_family;
	out->oif = nla_get_u32_or_default(attrs[RTA_OIF], 0);
	out->table = nla_get_u32_or_default(attrs[RTA_TABLE], header->rtm_table);
	parse_route_metrics(attrs[RTA_METRICS], out);
	out->encap = attrs[RTA_ENCAP] != NULL;
	if (attrs[RTA_PREFSRC] != NULL)
		memcpy(out->src, nla_data(attrs[RTA_PREFSRC]), 4);
	else
		memcpy(out->src, key->src, 16);
	if (attrs[RTA_GATEWAY] != NULL) {
		out->gateway_family = AF_INET;
		memcpy(out->gateway, nla_data(attrs[RTA_GATEWAY]), 4);
	} else if (attrs[RTA_VIA] != NULL) { /* struct rtvia: family (2 bytes), address */
		const struct rtvia *via = nla_data(attrs[RTA_VIA]);
		const size_t bytes = (size_t)nla_len(attrs[RTA_VIA]) - sizeof(*via);

		out->gateway_family = (uint8_t)via->rtvia_family;
		memcpy(out->gateway, via->rtvia_addr, bytes < 16 ? bytes : 16);
	}
	return 0;
}

int net_msg_parse_prefix(struct nlmsghdr *message, struct net_msg_prefix *out)
{
	const struct rtmsg *header = nlmsg_data(message);
	struct nlattr *attrs[RTA_MAX + 1];

	if (parse_attrs(message, sizeof(*header), attrs, RTA_MAX, route_policy) < 0 || header->rtm_dst_len > 32)
		return -EINVAL;
	if (header->rtm_family != AF_INET)
		return -EPROTONOSUPPORT;
	copy_address(out->address, attrs[RTA_DST]);
	out->bits = attrs[RTA_DST] != NULL ? header->rtm_dst_len : 0;
	return 0;
}

bool net_msg_prefix_covers(const struct net_msg_prefix *prefix, const uint8_t address[16])
{
	const unsigned whole = prefix->bits / 8, rest = prefix->bits % 8;

	if (memcmp(prefix->address, address, whole) != 0)
		return false;
	return rest == 0 || ((prefix->address[whole] ^ address[whole]) >> (8 - rest)) == 0;
}

struct nl_msg *net_msg_getroute(const struct vma_net_key *key)
{
	static const uint8_t zero[16];
	/* The two ECN bits are no part of a lookup. */
	const struct rtmsg header = {.rtm_family = key->family, .rtm_dst_len = 32, .rtm_tos = key->tos & 0xfc};
	const bool ports = key->proto == IPPROTO_UDP || key->proto == IPPROTO_TCP;
	struct nl_msg *r = net_nl_alloc_request_message(RTM_GETROUTE, 0, &header, sizeof(header));

	if (r == NULL)
		return NULL;
	if (nla_put(r, RTA_DST, 4, key->dst) == 0 && nla_put_u32(r, RTA_UID, key->uid) == 0 &&
	    (memcmp(key->src, zero, 16) == 0 || nla_put(r, RTA_SRC, 4, key->src) == 0) &&
	    (key->oif == 0 || nla_put_u32(r, RTA_OIF, key->oif) == 0) &&
	    (key->mark == 0 || nla_put_u32(r, RTA_MARK, key->mark) == 0) &&
	    (!ports || nla_put_u8(r, RTA_IP_PROTO, key->proto) == 0) &&
	    (!ports || key->sport_be == 0 || nla_put_u16(r, RTA_SPORT, key->sport_be) == 0) &&
	    (!ports || key->dport_be == 0 || nla_put_u16(r, RTA_DPORT, key->dport_be) == 0))
		return r;
	nlmsg_free(r);
	return NULL;
}

/* ---- rules ---- */

int net_msg_parse_rule_selects_ports(struct nlmsghdr *message, bool *ports)
{
	static const struct nla_policy rule_policy[FRA_MAX + 1];
	const struct fib_rule_hdr *header = nlmsg_data(message);
	struct nlattr *attrs[FRA_MAX + 1];

	if (parse_attrs(message, sizeof(*header), attrs, FRA_MAX, rule_policy) < 0)
		return -EINVAL;
	if (header->family != AF_INET)
		return -EPROTONOSUPPORT;
	*ports = attrs[FRA_SPORT_RANGE] != NULL || attrs[FRA_DPORT_RANGE] != NULL;
	return 0;
}

struct nl_msg *net_msg_build_rule_dump_request(void)
{
	const struct fib_rule_hdr header = {.family = AF_INET};

	return net_nl_alloc_request_message(RTM_GETRULE, NLM_F_DUMP, &header, sizeof(header));
}

/* ---- tables ---- */

struct nl_msg *net_msg_build_link_dump_request(void)
{
	const struct ifinfomsg header = {.ifi_family = AF_UNSPEC};

	return net_nl_alloc_request_message(RTM_GETLINK, NLM_F_DUMP, &header, sizeof(header));
}

struct nl_msg *net_msg_build_addr_dump_request(void)
{
	const struct ifaddrmsg header = {.ifa_family = AF_INET};

	return net_nl_alloc_request_message(RTM_GETADDR, NLM_F_DUMP, &header, sizeof(header));
}
