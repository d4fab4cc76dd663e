/*
 * plan.h - from the kernel's answers to a template: pure functions.
 */
#ifndef VMA_NET_PLAN_H
#define VMA_NET_PLAN_H

#include <vma/net.h>

/* vma_net_query_route's failure that is not the kernel's refusal. */
#define PLAN_NOT_ASKED (-EIO)

struct plan_facts {
	const struct vma_net_key *key;
	int refused; /* negative errno of the lookup, 0: `route` is valid */
	const struct vma_net_route *route;
	const struct vma_net_link *link;  /* of route->oif, NULL: not in this namespace */
	const struct vma_net_link *lower; /* of link->lower, NULL: there is none */
	uint32_t mtu_max;                 /* 0: no bound */
};

enum plan_need {
	PLAN_NOTHING,        /* the template is final */
	PLAN_NEIGH,          /* next_hop's MAC is to be found */
	PLAN_NEIGH_IF_KNOWN, /* as well, but the interface does without resolution: what is there already counts */
};

/* Fills everything but what the neighbour decides. */
enum plan_need plan_fill_path_template_from_facts(const struct plan_facts *facts, struct vma_net_template *out);
/* Completes a plan that needs a neighbour; state 0 and no MAC: the kernel has no entry. */
void plan_apply_neigh_to_template(struct vma_net_template *t, enum plan_need need, const struct vma_net_neigh *neigh);

#endif
