/*
 * flow_waiters - clients that want a flow that they cannot have, because another client wants it, too.
 *
 * Two clients may have one key (members of a group in two processes, a socket that parent and child share after fork).
 * The kernel serves both and gives each what it must have. So no client may have the flow as long as two want it. TCP
 * listeners that may share a flow are another case: groups.c.
 *
 *   A has the flow                B asks: A's flow is given up, A and B have a waiter each, B is refused
 *   A or B asks again             its own waiter begins anew; the client is refused, because of the other's waiter
 *   B's waiter ends               A asks again and gets the flow
 *
 * A waiter stands for a client that waits for one flow. It ends when its client has not asked for three seconds.
 * (Clients that want a flow ask every second.) It also ends when all shadows that the client named are closed, when its
 * slot is returned, and when the client gets the flow.
 *
 * Both waiters are made at the moment when the second client asks. Otherwise the flow would go to the client that asks
 * first afterwards, which would take it from the other, and so on for ever.
 */
#include <stdlib.h>
#include <string.h>

#include "owner.h"

static bool waiter_is_of_slot_and_key(const struct owner_flow_waiter *waiter, uint32_t slot,
                                      const struct vma_flow_key *key)
{
	return waiter->slot == slot && memcmp(&waiter->key, key, sizeof(*key)) == 0;
}

static void flow_waiter_remove_and_free(struct xdp_owner *owner, struct owner_flow_waiter **place)
{
	struct owner_flow_waiter *waiter = *place;

	*place = waiter->next;
	nic_cookies_fini(&waiter->shadows);
	owner->slot[waiter->slot].waiters--;
	free(waiter);
	owner->waiters--;
}

struct owner_flow_waiter *owner_flow_waiter_find(const struct xdp_owner *owner, uint32_t slot,
                                                 const struct vma_flow_key *key)
{
	struct owner_flow_waiter *waiter = owner->waiter[owner_flow_key_bucket(key)];

	while (waiter != NULL && !waiter_is_of_slot_and_key(waiter, slot, key))
		waiter = waiter->next;
	return waiter;
}

struct owner_flow_waiter *owner_flow_waiter_get_or_create(struct xdp_owner *owner, uint32_t slot,
                                                          const struct vma_flow_key *key)
{
	struct owner_flow_waiter *waiter = owner_flow_waiter_find(owner, slot, key),
	                         **bucket = &owner->waiter[owner_flow_key_bucket(key)];

	if (waiter == NULL) {
		waiter = owner->waiters < OWNER_FLOW_WAITERS_MAX && owner->slot[slot].waiters < OWNER_FLOW_WAITERS_EACH
		                 ? calloc(1, sizeof(*waiter))
		                 : NULL;
		if (waiter == NULL)
			return NULL;
		*waiter = (struct owner_flow_waiter){.next = *bucket, .key = *key, .slot = slot};
		*bucket = waiter;
		owner->waiters++;
		owner->slot[slot].waiters++;
	}
	waiter->refreshed_ns = owner_now_ns();
	return waiter;
}

/* Nobody is left who would read: with shadows named, and all of them closed. */
static bool flow_waiter_is_expired_or_closed(struct xdp_owner *owner, struct owner_flow_waiter *waiter, uint64_t now)
{
	if (now - waiter->refreshed_ns > OWNER_FLOW_WAITER_NS)
		return true;
	if (waiter->shadows.n == 0)
		return false;
	nic_cookies_prune(&waiter->shadows, &waiter->key, &owner->diag_fd);
	return waiter->shadows.n == 0;
}

static bool slot_may_share_with_waiter(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule,
                                       const struct owner_flow_waiter *waiter)
{
	if (rule->flags & VMA_FLOW_REUSEPORT && owner_same_process(owner, slot, waiter->slot))
		return true;
	return rule->flags & VMA_FLOW_LISTENER && owner_check_same_service(owner, rule, &waiter->shadows) == 0;
}

bool owner_flow_has_conflicting_waiter(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule)
{
	const struct vma_flow_key *key = &rule->key;
	struct owner_flow_waiter **place = &owner->waiter[owner_flow_key_bucket(key)];
	const uint64_t now = owner_now_ns();

	while (*place != NULL) {
		struct owner_flow_waiter *waiter = *place;

		if (waiter->slot == slot || memcmp(&waiter->key, key, sizeof(*key)) != 0) {
			place = &waiter->next;
			continue;
		}
		if (flow_waiter_is_expired_or_closed(owner, waiter, now))
			flow_waiter_remove_and_free(owner, place);
		else if (slot_may_share_with_waiter(owner, slot, rule, waiter))
			place = &waiter->next;
		else
			return true;
	}
	return false;
}

bool owner_flow_waiter_remove(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	struct owner_flow_waiter **place = &owner->waiter[owner_flow_key_bucket(key)];

	while (*place != NULL && !waiter_is_of_slot_and_key(*place, slot, key))
		place = &(*place)->next;
	if (*place == NULL)
		return false;
	flow_waiter_remove_and_free(owner, place);
	return true;
}

static void drop_waiters_if(struct xdp_owner *owner, bool (*unwanted)(const struct owner_flow_waiter *, uint64_t),
                            uint64_t what)
{
	for (uint32_t b = 0; b < OWNER_FLOW_BUCKETS && owner->waiters > 0; b++) {
		struct owner_flow_waiter **place = &owner->waiter[b];

		while (*place != NULL) {
			if (unwanted(*place, what))
				flow_waiter_remove_and_free(owner, place);
			else
				place = &(*place)->next;
		}
	}
}

static bool waiter_is_of_slot(const struct owner_flow_waiter *waiter, uint64_t slot)
{
	return waiter->slot == slot;
}

static bool waiter_is_expired(const struct owner_flow_waiter *waiter, uint64_t now)
{
	return now - waiter->refreshed_ns > OWNER_FLOW_WAITER_NS;
}

void owner_flow_waiters_remove_of_slot(struct xdp_owner *owner, uint32_t slot)
{
	drop_waiters_if(owner, waiter_is_of_slot, slot);
}

void owner_flow_waiters_expire(struct xdp_owner *owner)
{
	drop_waiters_if(owner, waiter_is_expired, owner_now_ns());
}

bool owner_cookie_is_shadow_of_flow_waiter(const struct xdp_owner *owner, const struct vma_flow_key *key,
                                           uint64_t cookie)
{
	const struct owner_flow_waiter *waiter = owner->waiter[owner_flow_key_bucket(key)];

	while (waiter != NULL &&
	       (memcmp(&waiter->key, key, sizeof(*key)) != 0 || !nic_cookies_has(&waiter->shadows, cookie)))
		waiter = waiter->next;
	return waiter != NULL;
}
