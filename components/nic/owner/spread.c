/*
 * spread.c - a UDP flow from any peer that several queue pairs of one process have. Their sockets have SO_REUSEPORT and
 * are on rings of their own. The kernel would choose among them by a hash.
 *
 *   A has the flow, B asks, both with VMA_FLOW_REUSEPORT, of one process        spread over A and B
 *   C asks                                                                      over A, B and C
 *   a slot deletes the flow, leaves, or dies                                    over the others
 *   a client of another process asks                                            the flow is the kernel's (flow_waiters.c)
 *
 * The flow has a place in the program's map of groups, of which the program reads the buckets only. Each slot gets the
 * same share. A datagram goes by a hash of its addresses and ports, so a peer stays with a slot while none comes or
 * goes. The buckets also tell a new vmad which slots there are.
 */
#include <errno.h>

#include "owner.h"
#include "../xdp/flow.h"

bool owner_spread_allows_slot(const struct xdp_owner *owner, const struct owner_flow *flow, uint32_t slot,
                              const struct vma_flow_rule *rule)
{
	return flow->rule.flags & rule->flags & VMA_FLOW_REUSEPORT && owner_same_process(owner, flow->slot, slot);
}

static void spread_assign_hash_buckets(struct xdp_owner *owner, const struct owner_flow *flow)
{
	struct xdp_group *group = &xdp_prog_groups(owner->prog)[flow->spread];
	uint64_t left = 0;

	for (uint32_t bucket = 0; bucket < XDP_GROUP_BUCKETS; bucket++) {
		left = left != 0 ? left : flow->members;
		__atomic_store_n(&group->slot[bucket], (uint8_t)__builtin_ctzll(left), __ATOMIC_RELAXED);
		left &= left - 1;
	}
}

static int spread_create_hash_table(struct xdp_owner *owner, struct owner_flow *flow, uint64_t members)
{
	const uint32_t number = owner_find_free_group_number(owner);
	int rc;

	if (number == 0)
		return -ENOSPC;
	flow->spread = number;
	flow->members = members;
	spread_assign_hash_buckets(owner, flow);
	rc = xdp_prog_flow_spread(owner->prog, &flow->rule.key, flow->slot, number);
	if (rc < 0) {
		flow->spread = 0;
		flow->members = 0;
		return rc;
	}
	owner->group_used[number] = 1;
	return 0;
}

int owner_add_slot_to_spread_udp_flow(struct xdp_owner *owner, struct owner_flow *flow, uint32_t slot)
{
	if (flow->spread == 0)
		return spread_create_hash_table(owner, flow, 1ull << flow->slot | 1ull << slot);
	flow->members |= 1ull << slot;
	spread_assign_hash_buckets(owner, flow);
	return 0;
}

void owner_remove_slot_from_spread_udp_flow(struct xdp_owner *owner, struct owner_flow *flow, uint32_t slot)
{
	flow->members &= ~(1ull << slot);
	owner_adopted_flow_mark_reclaimed_by_slot(owner, flow, slot);
	spread_assign_hash_buckets(owner, flow);
	if (flow->slot != slot)
		return;
	owner->slot[slot].flows--;
	flow->slot = (uint32_t)__builtin_ctzll(flow->members);
	owner->slot[flow->slot].flows++;
	xdp_prog_flow_spread(owner->prog, &flow->rule.key, flow->slot, flow->spread);
}

void owner_spread_end(struct xdp_owner *owner, struct owner_flow *flow)
{
	if (flow->spread != 0)
		owner->group_used[flow->spread] = 0;
	flow->spread = 0;
}

void owner_restore_spread_udp_flow(struct xdp_owner *owner, struct owner_flow *flow, uint32_t number, uint64_t rented)
{
	const struct xdp_group *groups = xdp_prog_groups(owner->prog);

	if (groups == NULL || number == 0 || number >= XDP_GROUPS || owner->group_used[number])
		return;
	owner->group_used[number] = 1;
	flow->spread = number;
	flow->rule.flags |= VMA_FLOW_REUSEPORT;
	flow->members = 1ull << flow->slot;
	for (uint32_t bucket = 0; bucket < XDP_GROUP_BUCKETS; bucket++)
		flow->members |= rented & 1ull << (groups[number].slot[bucket] & (XDP_SLOTS_MAX - 1));
	spread_assign_hash_buckets(owner, flow);
}
