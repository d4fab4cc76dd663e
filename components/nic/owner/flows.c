/*
 * flows - which slot has which flow. The program is attached while there is at least one flow, and a second longer.
 *
 * An attached program costs plain traffic (a veth's peer loses segmentation offload), so it is not attached for ever.
 * But attaching and detaching cost 10 ms each; a program that opens one socket after the other should not pay this for
 * each.
 */
#include <errno.h>
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vma/log.h>

#include "owner.h"

bool owner_flow_is_connection(const struct vma_flow_key *key)
{
	return key->proto == IPPROTO_TCP && key->peer_port_be != 0;
}

/* Of local ports: nobody's socket is in its way, as the program asks the kernel for each packet. */
static bool flow_key_is_of_port_block(const struct vma_flow_key *key)
{
	return key->proto == VMA_FLOW_TCP_PORTS;
}

/* Where the pointer to the flow with `key` is, or the end of its bucket. */
static struct owner_flow **owner_find_flow_link(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	struct owner_flow **buckets = owner_flow_is_connection(key) ? owner->connection : owner->flow;
	struct owner_flow **place = &buckets[owner_flow_key_bucket(key)];

	while (*place != NULL && memcmp(&(*place)->rule.key, key, sizeof(*key)) != 0)
		place = &(*place)->next;
	return place;
}

void owner_flow_describe(const struct vma_flow_key *key, char *text, size_t bytes)
{
	char local[INET_ADDRSTRLEN], peer[INET_ADDRSTRLEN];
	const char *proto = key->proto == IPPROTO_TCP ? "TCP" : "UDP";

	inet_ntop(AF_INET, key->local, local, sizeof(local));
	inet_ntop(AF_INET, key->peer, peer, sizeof(peer));
	if (key->peer_port_be == 0)
		snprintf(text, bytes, "%s %s:%u", proto, local, ntohs(key->local_port_be));
	else
		snprintf(text, bytes, "%s %s:%u from %s:%u", proto, local, ntohs(key->local_port_be), peer,
		         ntohs(key->peer_port_be));
}

static bool any_flow_has_shadow_cookie(struct owner_flow *const *buckets, uint64_t cookie)
{
	for (uint32_t b = 0; b < OWNER_FLOW_BUCKETS; b++)
		for (const struct owner_flow *flow = buckets[b]; flow != NULL; flow = flow->next)
			if (nic_cookies_has(&flow->shadows, cookie))
				return true;
	return false;
}

bool owner_has_shadow_cookie(const struct xdp_owner *owner, uint64_t cookie)
{
	return any_flow_has_shadow_cookie(owner->flow, cookie) || any_flow_has_shadow_cookie(owner->connection, cookie);
}

#define LINGER_NS 1000000000ULL /* how long the program stays after the last flow */

/* ---- two clients that want the same, see flow_waiters.c ---- */

/* Out of the table; it is still in the program's map. */
static void unlink_flow(struct xdp_owner *owner, struct owner_flow **place)
{
	struct owner_flow *flow = *place;

	owner->slot[flow->slot].flows--;
	owner->unannounced -= flow->unannounced != 0;
	flow->unannounced = 0;
	*place = flow->next;
	if (--owner->flows == 0)
		owner->unused_since_ns = owner_now_ns();
}

static void owner_flow_free(struct owner_flow *flow)
{
	nic_cookies_fini(&flow->shadows);
	free(flow);
}

/* ---- a listener's flow that is taken back ---- */

#define GRACE_NS 2000000000ULL

/* Its group's number is free only when the map does not name it any more. */
static void free_flow_in_grace(struct xdp_owner *owner, struct owner_flow *flow)
{
	owner_group_end(owner, flow);
	owner_flow_free(flow);
}

static void end_flow_in_grace(struct xdp_owner *owner, struct owner_flow **place)
{
	struct owner_flow *flow = *place;

	xdp_prog_flow_del(owner->prog, &flow->rule.key);
	*place = flow->next;
	free_flow_in_grace(owner, flow);
}

/* What a group's slots share ends with the last of them. */
static void end_grace_of_slot(struct xdp_owner *owner, uint32_t slot)
{
	struct owner_flow **place = &owner->in_grace;

	while (*place != NULL) {
		struct owner_flow *flow = *place;
		const bool is_last = flow->group == 0 || flow->members == 1ull << slot;

		if (owner_flow_has_slot(flow, slot) && is_last) {
			end_flow_in_grace(owner, place);
			continue;
		}
		if (owner_flow_has_slot(flow, slot))
			owner_group_leave(owner, flow, slot);
		place = &flow->next;
	}
}

/* Where the pointer to the one with `key` is, or the end. */
static struct owner_flow **find_flow_in_grace(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	struct owner_flow **place = &owner->in_grace;

	while (*place != NULL && memcmp(&(*place)->rule.key, key, sizeof(*key)) != 0)
		place = &(*place)->next;
	return place;
}

/* A flow is about to take its place in the map: what is in grace there, to be freed after that. Of a connection there
 * is none. */
static struct owner_flow *unlink_grace_for_new_flow(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	struct owner_flow **place = owner_flow_is_connection(key) ? NULL : find_flow_in_grace(owner, key);
	struct owner_flow *flow = place != NULL ? *place : NULL;

	if (flow != NULL)
		*place = flow->next;
	return flow;
}

/* Has room made in the map. False: none is left. */
static bool end_oldest_grace_for_room(struct xdp_owner *owner)
{
	if (owner->in_grace == NULL)
		return false;
	end_flow_in_grace(owner, &owner->in_grace); /* the oldest */
	return true;
}

/* All have the same grace, so they are in order. */
void owner_flows_end_grace(struct xdp_owner *owner, uint64_t now_ns)
{
	while (owner->in_grace != NULL && owner->in_grace->grace_end_ns <= now_ns)
		end_flow_in_grace(owner, &owner->in_grace);
}

/* It is out of the table. Where there is no memory for that, it ends at once. Its group is in grace with it. */
static void flow_begin_grace(struct xdp_owner *owner, struct owner_flow *flow)
{
	struct owner_flow *in_grace = flow->rule.flags & VMA_FLOW_LISTENER ? calloc(1, sizeof(*in_grace)) : NULL;
	struct owner_flow **end = &owner->in_grace;

	if (in_grace == NULL || xdp_prog_flow_begin_grace(owner->prog, &flow->rule.key, flow->slot, flow->group) < 0) {
		free(in_grace);
		xdp_prog_flow_del(owner->prog, &flow->rule.key);
		owner_group_end(owner, flow);
		owner_spread_end(owner, flow);
		return;
	}
	while (*end != NULL)
		end = &(*end)->next;
	*in_grace = (struct owner_flow){.rule = flow->rule,
	                                .slot = flow->slot,
	                                .group = flow->group,
	                                .members = flow->members,
	                                .grouped_ns = flow->grouped_ns,
	                                .grace_end_ns = owner_now_ns() + GRACE_NS};
	flow->group = 0;
	*end = in_grace;
}

static int refuse_flow_note_waiter(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule)
{
	struct owner_flow_waiter *waiter = owner_flow_waiter_get_or_create(owner, slot, &rule->key);

	if (waiter != NULL)
		nic_cookies_add(&waiter->shadows, &rule->key, rule->shadow_cookie);
	return -EADDRINUSE;
}

static uint64_t flow_slots_mask(const struct owner_flow *flow)
{
	return flow->members != 0 ? flow->members : 1ull << flow->slot;
}

/* Each slot that has the flow still wants it: it gets a waiter. */
static bool flow_add_waiters_for_slots(struct xdp_owner *owner, const struct owner_flow *flow)
{
	for (uint64_t left = flow_slots_mask(flow); left != 0; left &= left - 1) {
		struct owner_flow_waiter *loser =
		        owner_flow_waiter_get_or_create(owner, (uint32_t)__builtin_ctzll(left), &flow->rule.key);

		if (loser == NULL)
			return false;
		for (uint32_t i = 0; i < flow->shadows.n; i++)
			nic_cookies_add(&loser->shadows, &flow->rule.key, flow->shadows.list[i]);
	}
	return true;
}

/* The flow at `place` is another slot's: the kernel gets its packets, and both slots get a waiter. */
static int flow_give_to_kernel_as_contended(struct xdp_owner *owner, struct owner_flow **place, uint32_t slot,
                                            const struct vma_flow_rule *rule)
{
	struct owner_flow *flow = *place;
	char text[96];

	if (!flow_add_waiters_for_slots(owner, flow))
		return -EADDRINUSE; /* it stays with who has it: better than a flow that goes to and fro */
	unlink_flow(owner, place);
	flow_begin_grace(owner, flow); /* its members are still known, to be told */
	flow->next = owner->revoke_pending;
	owner->revoke_pending = flow;
	owner_flow_describe(&rule->key, text, sizeof(text));
	vma_log_warn("%s: %s goes back to the kernel: two processes (or queue pairs) want it", owner->name, text);
	return refuse_flow_note_waiter(owner, slot, rule);
}

static void flow_forget_pending_revocation(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	struct owner_flow **place = &owner->revoke_pending;

	while (*place != NULL) {
		struct owner_flow *flow = *place;

		if ((flow_slots_mask(flow) >> slot & 1) == 0 ||
		    (key != NULL && memcmp(&flow->rule.key, key, sizeof(*key)) != 0)) {
			place = &flow->next;
		} else if (flow_slots_mask(flow) != 1ull << slot) {
			flow->members &= ~(1ull << slot);
			place = &flow->next;
		} else {
			*place = flow->next;
			owner_flow_free(flow);
		}
	}
}

void owner_report_revoked_flows(struct xdp_owner *owner, void (*revoked)(uint32_t, const struct vma_flow_key *, void *),
                                void *arg)
{
	while (owner->revoke_pending != NULL) {
		struct owner_flow *flow = owner->revoke_pending;

		owner->revoke_pending = flow->next;
		for (uint64_t left = flow_slots_mask(flow); left != 0 && revoked != NULL; left &= left - 1)
			revoked((uint32_t)__builtin_ctzll(left), &flow->rule.key, arg);
		owner_flow_free(flow);
	}
}

int xdp_owner_flow_shadows(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key,
                           const uint64_t *cookies, unsigned n)
{
	struct owner_flow *flow;
	struct owner_flow_waiter *waiter;
	struct nic_cookies *shadows;
	int rc;

	if (slot >= XDP_SLOTS_MAX || owner->slot[slot].state != SLOT_RENTED)
		return -EINVAL;
	rc = vma_flow_key_check(key);
	if (rc < 0)
		return rc;
	flow = *owner_find_flow_link(owner, key);
	if (flow != NULL && !owner_flow_has_slot(flow, slot))
		flow = NULL;
	if (flow == NULL &&
	    !owner_any_socket_is_bound_to_key(owner, key, cookies, n)) /* a waiter would keep others from the flow */
		return -EPERM;
	waiter = flow != NULL ? NULL : owner_flow_waiter_get_or_create(owner, slot, key);
	if (waiter == NULL && flow == NULL)
		return -ENOMEM;
	shadows = waiter != NULL ? &waiter->shadows : &flow->shadows;
	for (unsigned i = 0; i < n && rc == 0; i++)
		rc = nic_cookies_add(shadows, key, cookies[i]);
	if (flow != NULL)
		owner_record_write_group(owner, flow);
	return rc;
}

/* ---- add and delete ---- */

/*
 * What the map has under this key, a minisock or a listener's flow that is in grace, is replaced, and not deleted
 * before: a segment that came between the two would find neither, and the kernel would answer it with RST. Replaced
 * means (BPF_EXIST) that the new entry is put in front of the old one in the same bucket, and only then the old one
 * taken out; who looks meanwhile, on any CPU, finds one or the other. At most one of them is there, as both begin where
 * a flow has ended.
 *
 * Where the map is full, the least minisock makes way, or else what is in grace.
 */
static int flow_put_in_map(struct xdp_owner *owner, const struct owner_flow *flow)
{
	const struct vma_flow_rule *rule = &flow->rule;
	struct owner_flow *in_grace = unlink_grace_for_new_flow(owner, &rule->key);
	int rc;

	if (in_grace != NULL || owner_minisock_end_for_key(&owner->minisocks, &rule->key)) {
		rc = xdp_prog_flow_replace(owner->prog, &rule->key, flow->slot, rule->flags);
		if (in_grace != NULL)
			free_flow_in_grace(owner, in_grace);
		if (rc < 0)
			xdp_prog_flow_del(owner->prog, &rule->key); /* of which nobody knows any more */
		return rc;
	}
	rc = xdp_prog_flow_add(owner->prog, &rule->key, flow->slot, rule->flags);
	if (rc == -ENOSPC && (owner_minisock_evict_one(&owner->minisocks) || end_oldest_grace_for_room(owner)))
		rc = xdp_prog_flow_add(owner->prog, &rule->key, flow->slot, rule->flags);
	return rc;
}

/* Into the program's map, and the program onto the interface. */
static int flow_put_in_map_and_attach(struct xdp_owner *owner, const struct owner_flow *flow)
{
	const struct vma_flow_rule *rule = &flow->rule;
	bool generic;
	int rc = flow_put_in_map(owner, flow);

	if (rc < 0)
		return rc;
	rc = xdp_prog_attach(owner->prog, &generic);
	if (rc < 0) {
		xdp_prog_flow_del(owner->prog, &rule->key);
		vma_log_once(VMA_LOG_ERROR, "%s: the XDP program cannot be attached: %s (MTU %u)", owner->name,
		             strerror(-rc), owner->mtu);
		return rc;
	}
	owner->generic = generic;
	owner_fdstore_keep_xdp_link(owner);
	owner->unused_since_ns = 0;
	owner_claims_publish_and_enable(owner);
	return 0;
}

bool owner_has_unused_program_attached(const struct xdp_owner *owner)
{
	return owner->unused_since_ns != 0;
}

void owner_detach_xdp_program_if_unused(struct xdp_owner *owner, uint64_t now_ns)
{
	if (owner->unused_since_ns == 0 || now_ns - owner->unused_since_ns < LINGER_NS || owner->minisocks.count > 0 ||
	    owner->in_grace != NULL)
		return;
	if (!owner_claims_close_if_unused(owner)) {
		owner->unused_since_ns = now_ns;
		return;
	}
	owner->unused_since_ns = 0;
	xdp_prog_detach(owner->prog);
	owner_fdstore_keep_xdp_link(owner);
}

/* A flow that its slot has waited for gets the waiter's shadows. */
static void flow_take_waiters_shadows(struct xdp_owner *owner, struct owner_flow *flow)
{
	struct owner_flow_waiter *waiter = owner_flow_waiter_find(owner, flow->slot, &flow->rule.key);

	if (waiter == NULL)
		return;
	flow->shadows = waiter->shadows;
	waiter->shadows = (struct nic_cookies){0};
	owner_flow_waiter_remove(owner, flow->slot, &flow->rule.key);
}

/* A listener's, which the slot shares from now on if it may. */
static int flow_add_group_member(struct xdp_owner *owner, struct owner_flow **place, uint32_t slot,
                                 const struct vma_flow_rule *rule)
{
	struct owner_flow *flow = *place;
	int rc = owner_check_same_service(owner, rule, &flow->shadows);

	if (rc == -EADDRINUSE)
		return flow_give_to_kernel_as_contended(owner, place, slot, rule);
	if (rc == 0)
		rc = owner_group_join(owner, flow, slot);
	if (rc < 0)
		return rc == -ENOSPC ? flow_give_to_kernel_as_contended(owner, place, slot, rule) : rc;
	flow->rule.flags |= rule->flags & VMA_FLOW_INHERITED;
	owner_flow_waiter_remove(owner, slot, &rule->key);
	flow_forget_pending_revocation(owner, slot, &rule->key);
	rc = nic_cookies_add(&flow->shadows, &rule->key, rule->shadow_cookie);
	owner_record_write_group(owner, flow);
	return rc;
}

/* A UDP flow of another queue pair of the same process. */
static int flow_add_spread_slot(struct xdp_owner *owner, struct owner_flow **place, uint32_t slot,
                                const struct vma_flow_rule *rule)
{
	struct owner_flow *flow = *place;
	const int rc = owner_add_slot_to_spread_udp_flow(owner, flow, slot);

	if (rc < 0)
		return rc == -ENOSPC ? flow_give_to_kernel_as_contended(owner, place, slot, rule) : rc;
	owner_flow_waiter_remove(owner, slot, &rule->key);
	flow_forget_pending_revocation(owner, slot, &rule->key);
	return nic_cookies_add(&flow->shadows, &rule->key, rule->shadow_cookie);
}

/* ---- adopted flows ---- */

void owner_insert_restored_flow(struct xdp_owner *owner, struct owner_flow *flow)
{
	struct owner_flow **place = owner_find_flow_link(owner, &flow->rule.key);

	flow->next = *place;
	*place = flow;
	owner->flows++;
	owner->slot[flow->slot].flows++;
	flow->unannounced = flow_slots_mask(flow);
	owner->unannounced++;
}

/* The last, as all have the same grace. */
void owner_insert_restored_flow_in_grace(struct xdp_owner *owner, struct owner_flow *flow)
{
	struct owner_flow **end = &owner->in_grace;

	while (*end != NULL)
		end = &(*end)->next;
	flow->grace_end_ns = owner_now_ns() + GRACE_NS;
	*end = flow;
}

void owner_adopted_flow_mark_reclaimed_by_slot(struct xdp_owner *owner, struct owner_flow *flow, uint32_t slot)
{
	if ((flow->unannounced >> slot & 1) == 0)
		return;
	flow->unannounced &= ~(1ull << slot);
	owner->unannounced -= flow->unannounced == 0;
}

static void flow_note_reannounced(struct xdp_owner *owner, struct owner_flow *flow, uint32_t slot,
                                  const struct vma_flow_rule *rule)
{
	owner_adopted_flow_mark_reclaimed_by_slot(owner, flow, slot);
	flow->rule.flags |= rule->flags & (VMA_FLOW_INHERITED | VMA_FLOW_REUSEPORT);
	if (flow->rule.shadow_cookie == 0)
		flow->rule.shadow_cookie = rule->shadow_cookie;
	if (rule->flags & VMA_FLOW_INHERITED && flow->group == 0)
		owner_group_begin_with_one_slot(owner, flow);
}

/* The rule is its client's to have. */
static int slot_flow_add(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule)
{
	struct owner_flow **place, *flow;
	int rc;

	place = owner_find_flow_link(owner, &rule->key);
	if (*place != NULL && !owner_flow_has_slot(*place, slot)) {
		/* A connection is one process's: who has chosen the same port, or been given it, takes another. So
		 * it is with a block. */
		if (owner_flow_is_connection(&rule->key) || flow_key_is_of_port_block(&rule->key))
			return -EADDRINUSE;
		if (owner_spread_allows_slot(owner, *place, slot, rule))
			return flow_add_spread_slot(owner, place, slot, rule);
		return rule->flags & VMA_FLOW_LISTENER ? flow_add_group_member(owner, place, slot, rule)
		                                       : flow_give_to_kernel_as_contended(owner, place, slot, rule);
	}
	/* Several sockets of one queue pair (multicast members): none of their shadows conflicts. */
	if (*place != NULL) {
		if ((*place)->unannounced >> slot & 1)
			flow_note_reannounced(owner, *place, slot, rule);
		rc = nic_cookies_add(&(*place)->shadows, &rule->key, rule->shadow_cookie);
		owner_record_write_group(owner, *place);
		return rc < 0 ? rc : -EEXIST;
	}
	if (owner_flow_has_conflicting_waiter(owner, slot, rule))
		return refuse_flow_note_waiter(owner, slot, rule);
	if (owner->flows >= OWNER_FLOWS_MAX)
		return -ENOSPC;
	rc = flow_key_is_of_port_block(&rule->key) ? 0 : owner_refuse_flow_if_conflict(owner, slot, rule);
	if (rc == -EADDRINUSE && rule->flags & VMA_FLOW_LISTENER)
		return refuse_flow_note_waiter(owner, slot, rule); /* the other may be a worker's that asks next */
	if (rc < 0)
		return rc;
	flow = calloc(1, sizeof(*flow));
	if (flow == NULL)
		return -ENOMEM;
	*flow = (struct owner_flow){.rule = *rule, .slot = slot};
	rc = flow_put_in_map_and_attach(owner, flow);
	if (rc < 0) {
		owner_flow_free(flow);
		return rc;
	}
	flow_take_waiters_shadows(owner, flow);
	flow_forget_pending_revocation(owner, slot, &rule->key);
	*place = flow;
	owner->flows++;
	owner->slot[slot].flows++;
	rc = nic_cookies_add(&flow->shadows, &rule->key, rule->shadow_cookie);
	if (rc < 0)
		xdp_owner_flow_del(owner, slot, &rule->key); /* its own shadow would conflict */
	else if (rule->flags & VMA_FLOW_INHERITED)
		owner_group_begin_with_one_slot(owner, flow);
	return rc;
}

static int check_slot_rule(const struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule)
{
	int rc;

	if (slot >= XDP_SLOTS_MAX || owner->slot[slot].state != SLOT_RENTED)
		return -EINVAL;
	rc = vma_flow_key_check(&rule->key);
	if (rc == 0 && !vma_flow_flags_ok(rule)) /* vmad's clients say what they like */
		rc = -EINVAL;
	return rc;
}

int xdp_owner_flow_add(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule)
{
	const int rc = check_slot_rule(owner, slot, rule);

	return rc < 0 ? rc : slot_flow_add(owner, slot, rule);
}

/*
 * A flow that the slot has already may get a shadow more, and that is all: the socket has been shown. A connection's is
 * not needed: it is bound, and the kernel has no connection of it that could be taken for a stranger's.
 */
int xdp_owner_flow_request(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule,
                           const struct xdp_proof_socket *proof)
{
	struct vma_flow_rule asked = *rule;
	struct owner_flow *flow;
	int rc = check_slot_rule(owner, slot, rule);

	if (rc < 0)
		return rc;
	flow = *owner_find_flow_link(owner, &rule->key);
	if (owner_flow_is_connection(&rule->key))
		asked.shadow_cookie = 0;
	if (flow == NULL || !owner_flow_has_slot(flow, slot) ||
	    (asked.shadow_cookie != 0 && asked.shadow_cookie != proof->cookie))
		rc = owner_slot_is_entitled_to_flow(owner, slot, rule, proof);
	if (rc > 0)
		asked.flags |= XDP_PROG_YIELDS;
	return rc < 0 ? rc : slot_flow_add(owner, slot, &asked);
}

bool xdp_owner_uses_generic_xdp(const struct xdp_owner *owner)
{
	return owner->generic;
}

void owner_flow_end_with_grace(struct xdp_owner *owner, struct owner_flow **place)
{
	struct owner_flow *flow = *place;

	unlink_flow(owner, place);
	flow_begin_grace(owner, flow);
	owner_flow_free(flow);
}

/* The same, but what still comes of TCP is a minisock's; and a group's other members go on. */
static void owner_flow_release_to_minisock(struct xdp_owner *owner, struct owner_flow **place, uint32_t slot,
                                           enum owner_minisock_state state)
{
	struct owner_flow *flow = *place;
	const struct vma_flow_minisock minisock = {.key = flow->rule.key};

	if (flow->group != 0 && flow->members != 1ull << slot) {
		owner_group_leave(owner, flow, slot);
		return;
	}
	if (flow->spread != 0 && flow->members != 1ull << slot) {
		owner_remove_slot_from_spread_udp_flow(owner, flow, slot);
		return;
	}
	if (!owner_flow_is_connection(&minisock.key) && !(flow->rule.flags & VMA_FLOW_LISTENER)) {
		owner_flow_end_with_grace(owner, place);
		return;
	}
	owner_listener_end_prepare_parking(owner, flow, slot);
	unlink_flow(owner, place);
	if (owner->minisocks.on)
		owner_minisock_create(&owner->minisocks, &minisock, state, true, owner_now_ns());
	else
		xdp_prog_flow_del(owner->prog, &minisock.key);
	owner_group_end(owner, flow);
	owner_flow_free(flow);
}

/* What waits in the slot goes to others, or is kept for others. */
static void delete_flow_and_move_its_pending_conns(struct xdp_owner *owner, struct owner_flow **place, uint32_t slot)
{
	const struct vma_flow_key key = (*place)->rule.key;
	const uint32_t group = (*place)->group;

	owner_record_set_group_leaving(owner, group, slot, true);
	owner_flow_release_to_minisock(owner, place, slot, MINISOCK_DELETED);
	if (key.peer_port_be == 0) {
		owner_group_move_unaccepted_conns_off_slot(owner, slot, &key);
		owner_park_closed_listener(owner, slot, &key);
	}
	owner_record_set_group_leaving(owner, group, slot, false);
}

/* The owner before had a member leave, and did not come to moving what waits there. */
static void resume_unfinished_group_leaves_of_slot(struct xdp_owner *owner, uint32_t slot)
{
	for (uint32_t b = 0; b < OWNER_FLOW_BUCKETS; b++) {
		for (const struct owner_flow *flow = owner->flow[b]; flow != NULL; flow = flow->next) {
			if (flow->group == 0 || !owner_record_slot_leaves_group(owner, flow->group, slot))
				continue;
			if (!owner_flow_has_slot(flow, slot))
				owner_group_move_unaccepted_conns_off_slot(owner, slot, &flow->rule.key);
			owner_record_set_group_leaving(owner, flow->group, slot, false);
		}
	}
}

int xdp_owner_flow_del(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	struct owner_flow **place = owner_find_flow_link(owner, key);

	if (*place != NULL && owner_flow_has_slot(*place, slot)) {
		delete_flow_and_move_its_pending_conns(owner, place, slot);
		return 0;
	}
	/* The owner before has ended it, and has not answered any more. */
	if (key->peer_port_be == 0)
		owner_park_closed_listener(owner, slot, key);
	/* It was taken back, and the client does not know yet: it does not want it any more. */
	owner_flow_waiter_remove(owner, slot, key);
	return -ENOENT;
}

static bool slot_is_rented(const struct xdp_owner *owner, uint32_t slot)
{
	return slot < XDP_SLOTS_MAX && owner->slot[slot].state == SLOT_RENTED;
}

int xdp_owner_flow_move(struct xdp_owner *owner, uint32_t from, uint32_t to, const struct vma_flow_key *key)
{
	struct owner_flow *flow;
	int rc = vma_flow_key_check(key);

	if (rc < 0)
		return rc;
	if (!slot_is_rented(owner, from) || !slot_is_rented(owner, to) || from == to ||
	    !vma_flow_may_move_to_other_qp(key))
		return -EINVAL;
	flow = *owner_find_flow_link(owner, key);
	if (flow == NULL || flow->slot != from)
		return -ENOENT;
	if (flow->spread != 0) /* it has several slots, and members that name them */
		return -EBUSY;
	rc = xdp_prog_flow_move(owner->prog, key, to);
	if (rc < 0)
		return rc;
	owner_adopted_flow_mark_reclaimed_by_slot(owner, flow, from);
	owner_flow_waiter_remove(owner, to, key);
	flow->slot = to;
	owner->slot[from].flows--;
	owner->slot[to].flows++;
	return 0;
}

int xdp_owner_flow_stop_new_conns(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	struct owner_flow *flow = *owner_find_flow_link(owner, key);

	if (flow == NULL || flow->group == 0 || !owner_flow_has_slot(flow, slot))
		return -ENOENT;
	return owner_group_stop_new_conns_to_slot(owner, flow, slot);
}

void owner_remove_connection_flow(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	struct owner_flow **place = owner_find_flow_link(owner, key), *flow = *place;

	if (flow == NULL || flow->slot != slot)
		return;
	unlink_flow(owner, place);
	xdp_prog_flow_del(owner->prog, key);
	owner_flow_free(flow);
}

struct owner_flow *owner_find_listener_flow(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	struct vma_flow_key wildcard = *key;

	wildcard.peer_port_be = 0;
	memset(wildcard.peer, 0, sizeof(wildcard.peer));
	return *owner_find_flow_link(owner, &wildcard);
}

bool owner_flow_exists(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	return *owner_find_flow_link(owner, key) != NULL;
}

bool xdp_owner_has_flow(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	return owner_flow_exists(owner, key);
}

static void end_all_flows_of_slot(struct xdp_owner *owner, struct owner_flow **buckets, uint32_t slot, bool dead)
{
	for (uint32_t b = 0; b < OWNER_FLOW_BUCKETS; b++) {
		struct owner_flow **place = &buckets[b];

		while (*place != NULL) {
			const struct vma_flow_key key = (*place)->rule.key;
			const bool shared =
			        ((*place)->group != 0 || (*place)->spread != 0) && (*place)->members != 1ull << slot;
			const bool listens = (*place)->rule.flags & VMA_FLOW_LISTENER && !shared;
			struct owner_flow *flow = *place;

			if (!owner_flow_has_slot(flow, slot)) {
				place = &flow->next;
				continue;
			}
			/* First: if this owner is killed in between, the next one finds the flow, and begins here. */
			if (owner_flow_is_connection(&key) || (listens && !dead))
				owner_resets_add(owner, slot, &key, dead);
			owner_flow_release_to_minisock(owner, place, slot, dead ? MINISOCK_RESET : MINISOCK_WAITS);
			if (shared)
				place = &flow->next;
		}
	}
}

void owner_slot_release_flows_and_claims(struct xdp_owner *owner, uint32_t slot, bool dead)
{
	end_all_flows_of_slot(owner, owner->flow, slot, dead);
	end_all_flows_of_slot(owner, owner->connection, slot, dead);
	if (dead)
		owner_group_move_unaccepted_conns_off_slot(owner, slot, NULL);
	owner_claims_free_of_slot(owner, slot);
	end_grace_of_slot(owner, slot);
	flow_forget_pending_revocation(owner, slot, NULL);
	owner_flow_waiters_remove_of_slot(owner, slot);
}

static void end_unannounced_flows(struct xdp_owner *owner, struct owner_flow **buckets, uint32_t slot)
{
	for (uint32_t b = 0; b < OWNER_FLOW_BUCKETS; b++) {
		struct owner_flow **place = &buckets[b];

		while (*place != NULL) {
			struct owner_flow *flow = *place;

			if ((flow->unannounced >> slot & 1) == 0) {
				place = &flow->next;
				continue;
			}
			owner_adopted_flow_mark_reclaimed_by_slot(owner, flow, slot);
			delete_flow_and_move_its_pending_conns(owner, place, slot);
		}
	}
}

void xdp_owner_end_unannounced_flows_of_slot(struct xdp_owner *owner, uint32_t slot)
{
	if (slot >= XDP_SLOTS_MAX || owner->slot[slot].state != SLOT_RENTED)
		return;
	resume_unfinished_group_leaves_of_slot(owner, slot);
	owner_park_listeners_closed_by_live_client(owner, slot);
	if (owner->unannounced == 0)
		return;
	end_unannounced_flows(owner, owner->flow, slot);
	end_unannounced_flows(owner, owner->connection, slot);
}

/* ---- what a process leaves ---- */

/* The slot has the flow, or another one of its process. */
static bool process_has_flow(const struct xdp_owner *owner, const struct owner_flow *flow, uint32_t slot)
{
	for (uint64_t left = flow_slots_mask(flow); left != 0; left &= left - 1)
		if (owner_same_process(owner, (uint32_t)__builtin_ctzll(left), slot))
			return true;
	return false;
}

enum owner_connection_cover owner_connection_covered_by(struct xdp_owner *owner, uint32_t slot,
                                                        const struct vma_flow_key *key)
{
	struct vma_flow_key wildcard = *key;
	const struct owner_flow *listener, *block;

	wildcard.peer_port_be = 0;
	memset(wildcard.peer, 0, sizeof(wildcard.peer));
	listener = *owner_find_flow_link(owner, &wildcard);
	if (listener == NULL)
		listener = *find_flow_in_grace(owner, &wildcard);
	if (listener != NULL)
		return process_has_flow(owner, listener, slot) && listener->rule.flags & VMA_FLOW_LISTENER
		               ? OWNER_COVERED_BY_LISTENER
		               : OWNER_COVERED_BY_ANOTHER;
	wildcard.proto = VMA_FLOW_TCP_PORTS;
	wildcard.local_port_be &= htons((uint16_t) ~(VMA_FLOW_PORTS - 1));
	block = *owner_find_flow_link(owner, &wildcard);
	return block != NULL && process_has_flow(owner, block, slot) ? OWNER_COVERED_BY_BLOCK : OWNER_NOT_COVERED;
}

uint32_t owner_slot_port_block_count(const struct xdp_owner *owner, uint32_t slot)
{
	uint32_t n = 0;

	for (uint32_t b = 0; b < OWNER_FLOW_BUCKETS; b++)
		for (const struct owner_flow *flow = owner->flow[b]; flow != NULL; flow = flow->next)
			n += flow_key_is_of_port_block(&flow->rule.key) && flow->slot == slot;
	return n;
}

static bool slot_is_entitled_to_connection(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	const enum owner_connection_cover cover = owner_connection_covered_by(owner, slot, key);

	return cover == OWNER_COVERED_BY_LISTENER || cover == OWNER_COVERED_BY_BLOCK;
}

bool xdp_owner_slot_is_entitled_to_connection(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	const struct owner_flow *flow;

	if (slot >= XDP_SLOTS_MAX || owner->slot[slot].state != SLOT_RENTED || vma_flow_key_check(key) < 0 ||
	    !owner_flow_is_connection(key))
		return false;
	flow = *owner_find_flow_link(owner, key);
	return flow != NULL ? flow->slot == slot : slot_is_entitled_to_connection(owner, slot, key);
}

int xdp_owner_take_over_conn_as_minisock(struct xdp_owner *owner, uint32_t slot,
                                         const struct vma_flow_minisock *minisock)
{
	const int state = owner_minisock_state_from_message(minisock->state);
	struct owner_flow **place, *flow;
	int rc = vma_flow_key_check(&minisock->key);

	if (slot >= XDP_SLOTS_MAX || owner->slot[slot].state != SLOT_RENTED || state < 0)
		return -EINVAL;
	if (rc < 0 || !owner_flow_is_connection(&minisock->key))
		return rc < 0 ? rc : -EINVAL;
	if (!owner->minisocks.on)
		return -EOPNOTSUPP;
	place = owner_find_flow_link(owner, &minisock->key);
	flow = *place;
	if (flow != NULL ? flow->slot != slot : !slot_is_entitled_to_connection(owner, slot, &minisock->key))
		return -ENOENT;
	if (flow == NULL) {
		owner_minisock_create(&owner->minisocks, minisock, (enum owner_minisock_state)state,
		                      owner_minisock_end_for_key(&owner->minisocks, &minisock->key), owner_now_ns());
		return 0;
	}
	if (state == MINISOCK_RESET) /* the process has not told the peer: see vma_tcp_end_all_connections_at_exit */
		owner_resets_add(owner, slot, &minisock->key, true);
	unlink_flow(owner, place);
	owner_minisock_create(&owner->minisocks, minisock, (enum owner_minisock_state)state, true, owner_now_ns());
	owner_flow_free(flow);
	return 0;
}
