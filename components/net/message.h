/*
 * message.h - rtnetlink messages as plain structures: pure functions of bytes, checked before use.
 *
 * Functions return 0, or -EINVAL for a message that is broken. They return -EPROTONOSUPPORT for a message of no
 * interest here (another address family, a bridge's own neighbour tables, proxy entries).
 */
#ifndef VMA_NET_MESSAGE_H
#define VMA_NET_MESSAGE_H

#include <vma/net.h>

struct nlmsghdr;
struct nl_msg;

int net_msg_parse_link(struct nlmsghdr *message, struct vma_net_link *out);
int net_msg_parse_addr(struct nlmsghdr *message, struct vma_net_addr *out);
int net_msg_parse_neigh(struct nlmsghdr *message, struct vma_net_neigh *out);
/* An answer to net_msg_getroute. The source is the key's unless the kernel names one. */
int net_msg_parse_route(struct nlmsghdr *message, const struct vma_net_key *key, struct vma_net_route *out);

/* A route event: which destinations it concerns. */
struct net_msg_prefix {
	uint8_t address[16];
	uint8_t bits;
};
int net_msg_parse_prefix(struct nlmsghdr *message, struct net_msg_prefix *out);
bool net_msg_prefix_covers(const struct net_msg_prefix *prefix, const uint8_t address[16]);

/* A routing rule: whether it looks at ports. */
int net_msg_parse_rule_selects_ports(struct nlmsghdr *message, bool *ports);

/* Requests; NULL: no memory. */
struct nl_msg *net_msg_getroute(const struct vma_net_key *key);
struct nl_msg *net_msg_getneigh(uint32_t ifindex, uint8_t family, const void *address);
struct nl_msg *net_msg_build_neigh_probe_request(uint32_t ifindex, uint8_t family, const void *address);
struct nl_msg *net_msg_build_link_dump_request(void);
struct nl_msg *net_msg_build_addr_dump_request(void);
struct nl_msg *net_msg_build_rule_dump_request(void);

#endif
