/*
 * owner_wishes - flow waiters: clients that want a flow that they cannot have, because another client wants it, too.
 *
 * Two clients may have one key (members of a group in two processes, a socket that parent and child share after fork).
 * The kernel serves both and gives each what it must have. So no client may have the flow as long as two want it. TCP
 * listeners that may share a flow are another case: owner_groups.c.
 *
 *   A has the flow                B asks: A's flow is given up, A and B have a wish each, B is refused
 *   A or B asks again             its own wish is fresh again; refused, because of the other's wish
 *   B's wish ends                 A asks again and gets the flow
 *
 * A wish is a client's place among the flow waiters. It ends when its client has not asked for three seconds (clients
 * that want a flow ask every second), when all shadows that it named are closed, when its slot is returned, and when it
 * is granted.
 *
 * Both wishes are made at the moment of the conflict. Otherwise the flow would go to the client that asks first
 * afterwards, which would take it from the other, and so on for ever.
 */
#include <stdlib.h>
#include <string.h>

#include "owner_priv.h"

static bool wish_is_of(const struct owner_wish *wish, uint32_t slot, const struct vma_flow_key *key)
{
	return wish->slot == slot && memcmp(&wish->key, key, sizeof(*key)) == 0;
}

static void wish_drop(struct xdp_owner *owner, struct owner_wish **place)
{
	struct owner_wish *wish = *place;

	*place = wish->next;
	xdp_cookies_fini(&wish->shadows);
	owner->slot[wish->slot].wishes--;
	free(wish);
	owner->wishes--;
}

struct owner_wish *owner_wish_find(const struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	struct owner_wish *wish = owner->wish[owner_flow_bucket(key)];

	while (wish != NULL && !wish_is_of(wish, slot, key))
		wish = wish->next;
	return wish;
}

struct owner_wish *owner_wish_say(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	struct owner_wish *wish = owner_wish_find(owner, slot, key), **bucket = &owner->wish[owner_flow_bucket(key)];

	if (wish == NULL) {
		wish = owner->wishes < OWNER_WISHES_MAX && owner->slot[slot].wishes < OWNER_WISHES_EACH
		               ? calloc(1, sizeof(*wish))
		               : NULL;
		if (wish == NULL)
			return NULL;
		*wish = (struct owner_wish){.next = *bucket, .key = *key, .slot = slot};
		*bucket = wish;
		owner->wishes++;
		owner->slot[slot].wishes++;
	}
	wish->said_ns = owner_now_ns();
	return wish;
}

/* Nobody is left who would read: with shadows named, and all of them closed. */
static bool wish_is_over(struct xdp_owner *owner, struct owner_wish *wish, uint64_t now)
{
	if (now - wish->said_ns > OWNER_WISH_NS)
		return true;
	if (wish->shadows.n == 0)
		return false;
	xdp_cookies_prune(&wish->shadows, &wish->key, &owner->diag_fd);
	return wish->shadows.n == 0;
}

static bool may_share(struct xdp_owner *owner, const struct vma_flow_rule *rule, const struct owner_wish *wish)
{
	return rule->flags & VMA_FLOW_LISTENER && owner_rivals_related(owner, rule, &wish->shadows) == 0;
}

bool owner_wish_of_another(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule)
{
	const struct vma_flow_key *key = &rule->key;
	struct owner_wish **place = &owner->wish[owner_flow_bucket(key)];
	const uint64_t now = owner_now_ns();

	while (*place != NULL) {
		struct owner_wish *wish = *place;

		if (wish->slot == slot || memcmp(&wish->key, key, sizeof(*key)) != 0) {
			place = &wish->next;
			continue;
		}
		if (wish_is_over(owner, wish, now))
			wish_drop(owner, place);
		else if (may_share(owner, rule, wish))
			place = &wish->next;
		else
			return true;
	}
	return false;
}

bool owner_wish_end(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	struct owner_wish **place = &owner->wish[owner_flow_bucket(key)];

	while (*place != NULL && !wish_is_of(*place, slot, key))
		place = &(*place)->next;
	if (*place == NULL)
		return false;
	wish_drop(owner, place);
	return true;
}

static void drop_if(struct xdp_owner *owner, bool (*unwanted)(const struct owner_wish *, uint64_t), uint64_t what)
{
	for (uint32_t b = 0; b < OWNER_FLOW_BUCKETS && owner->wishes > 0; b++) {
		struct owner_wish **place = &owner->wish[b];

		while (*place != NULL) {
			if (unwanted(*place, what))
				wish_drop(owner, place);
			else
				place = &(*place)->next;
		}
	}
}

static bool is_of_slot(const struct owner_wish *wish, uint64_t slot)
{
	return wish->slot == slot;
}

static bool is_old(const struct owner_wish *wish, uint64_t now)
{
	return now - wish->said_ns > OWNER_WISH_NS;
}

void owner_wishes_end(struct xdp_owner *owner, uint32_t slot)
{
	drop_if(owner, is_of_slot, slot);
}

void owner_wishes_expire(struct xdp_owner *owner)
{
	drop_if(owner, is_old, owner_now_ns());
}

bool owner_wish_names(const struct xdp_owner *owner, const struct vma_flow_key *key, uint64_t cookie)
{
	const struct owner_wish *wish = owner->wish[owner_flow_bucket(key)];

	while (wish != NULL && (memcmp(&wish->key, key, sizeof(*key)) != 0 || !xdp_cookies_has(&wish->shadows, cookie)))
		wish = wish->next;
	return wish != NULL;
}
