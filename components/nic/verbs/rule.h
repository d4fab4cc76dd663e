/*
 * rule - a flow key as the card's flow specification.
 *
 *   one peer (5-tuple)                         priority 0; after a move 1, and 0 again after the next
 *   any peer: a listener, a UDP port, a group  priority 2; after a move 3, and 2 again after the next
 *   all TCP of an address                      priority 4
 *
 * Every rule has the destination's MAC: the port's own, or the group's. So what other hosts' packets a card sees, on a
 * hub or in promiscuous mode, are never taken.
 *
 * Threads: none of its own. Memory: the caller's.
 * Example: test/test_verbs_rule.c.
 */
#ifndef VMA_NIC_VERBS_RULE_H
#define VMA_NIC_VERBS_RULE_H

#include <stddef.h>

#include <vma/nic.h>

#include "lib.h"

#define VERBS_PRIORITY_PEER 0
#define VERBS_PRIORITY_ANY 2
#define VERBS_PRIORITY_ADDRESS 4
#define VERBS_PRIORITY_MOVED 1 /* beside its own, from one move to the next */

struct verbs_rule_spec {
	struct ibv_flow_attr attr;
	struct ibv_flow_spec_eth eth;
	struct ibv_flow_spec_ipv4 ipv4;
	struct ibv_flow_spec_tcp_udp l4;
};
/* libibverbs walks from one specification to the next by its size. */
_Static_assert(offsetof(struct verbs_rule_spec, eth) == sizeof(struct ibv_flow_attr), "no padding");
_Static_assert(offsetof(struct verbs_rule_spec, ipv4) ==
                       offsetof(struct verbs_rule_spec, eth) + sizeof(struct ibv_flow_spec_eth),
               "no padding");
_Static_assert(offsetof(struct verbs_rule_spec, l4) ==
                       offsetof(struct verbs_rule_spec, ipv4) + sizeof(struct ibv_flow_spec_ipv4),
               "no padding");

struct verbs_rule_port {
	const uint8_t *mac; /* the port's */
	uint8_t port;
	uint16_t priority;
	bool is_broadcast; /* the key's address, on this interface */
};

/* key: as vma_nic_flow_add allows, and no block of ports. */
void verbs_rule_build(const struct vma_flow_key *key, const struct verbs_rule_port *at, struct verbs_rule_spec *out);
static inline uint16_t verbs_rule_priority(const struct vma_flow_key *key)
{
	if (key->proto == VMA_FLOW_TCP_ADDRESS)
		return VERBS_PRIORITY_ADDRESS;
	return key->peer_port_be != 0 ? VERBS_PRIORITY_PEER : VERBS_PRIORITY_ANY;
}

#endif
