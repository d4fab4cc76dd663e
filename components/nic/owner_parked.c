/*
 * owner_parked - connections that waited for accept in the last process that served their listener. If that process has
 * died or closed the listener, and the kernel's listener is still open in another, they are kept for the next process
 * that serves it, as the kernel would keep them.
 *
 *   the client leaves        each connection has a minisock (heir) that WAITS      a lot, of the listener's flow
 *   its process is dead      what waits there is PARKED: a copy of the entry       the lot's, up to 10 s
 *   (or it has closed the listener: both at once)
 *   a process serves it      given to a member, and the minisock ends              a burst at a time
 *   none does by then, or the listener is closed: its peer is reset (owner_resets.c)
 *
 * The minisocks come before the listener's flow ends: without a flow, the kernel, which has a listener there, answers
 * with RST if it has no connection for a segment. A minisock that WAITS or is PARKED takes all that comes and answers
 * nothing. None of the peer's data has been acknowledged, so the peer sends it again until it is answered. If a SYN
 * with the same names comes, for which the kernel listens, the minisock ends, and the connection with it: the peer has
 * begun anew.
 *
 * This is only for listeners whose clients have inherited them (VMA_FLOW_INHERITED): their flow is a group, even of one
 * member, so their connections are described (nic_group.h).
 *
 * All clients can write the dead process's page. An entry is copied once. The copy counts only if it names a connection
 * of the listener's for which there is a minisock of the same lot. No minisock is put in the place of another's flow.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

#include <vma/log.h>

#include "owner_priv.h"

#define LOOK_NS 200000000ull /* whether the listeners are still open */
#define PARKED_MAX 4096      /* of all listeners */
#define BURST 128            /* connections on their way to one member: less than its socket holds */

/* Of one listener. */
struct owner_lot {
	struct owner_lot *next;
	struct vma_flow_key key;    /* of the listener */
	struct xdp_cookies shadows; /* of its flow */
	uint32_t slot, count;       /* of the client; of connections that wait, or are parked */
	bool left;                  /* the client is dead, or has closed it; else what waits is still its own */
	bool open;                  /* the listener was, at the last look */
};

struct owner_parked {
	struct owner_lot *lot;
	struct vma_pending pending; /* once it is PARKED */
};

/* ---- before the flow ends ---- */

struct shield {
	struct xdp_owner *owner;
	struct owner_lot *lot;
};

/* Whatever else has these names is of a connection before, or this one's: it is noted twice. */
static bool make_way(struct xdp_owner *owner, const struct owner_lot *lot, const struct vma_flow_key *key)
{
	struct owner_heir *heir = owner_heir_find(owner, key);

	if (heir != NULL && heir->parked != NULL && heir->parked->lot == lot)
		return false;
	if (heir != NULL)
		owner_heir_end(owner, heir);
	owner_flow_forget_connection(owner, lot->slot, key);
	return !owner_flow_exists(owner, key);
}

static void shield(const struct vma_pending *pending, void *arg)
{
	const struct shield *shield = arg;
	struct xdp_owner *owner = shield->owner;
	struct owner_lot *lot = shield->lot;
	const struct vma_flow_heir what = {.key = owner_pending_key(pending)};
	struct owner_parked *parked;
	struct owner_heir *heir;

	if (!owner_connection_is_at(&what.key, &lot->key) || vma_flow_key_check(&what.key) < 0 ||
	    owner->parked >= PARKED_MAX || !make_way(owner, lot, &what.key))
		return;
	parked = calloc(1, sizeof(*parked));
	if (parked == NULL)
		return;
	owner_heirs_put(owner, &what, HEIR_WAITS, false);
	heir = owner_heir_find(owner, &what.key);
	if (heir == NULL) {
		free(parked);
		return;
	}
	heir->parked = parked;
	parked->lot = lot;
	lot->count++;
	owner->parked++;
}

void owner_parked_prepare(struct xdp_owner *owner, struct owner_flow *flow, uint32_t slot)
{
	struct shield of = {.owner = owner};

	if (!owner->heirs.on || !(flow->rule.flags & VMA_FLOW_INHERITED) || flow->group == 0)
		return;
	of.lot = calloc(1, sizeof(*of.lot));
	if (of.lot == NULL)
		return;
	of.lot->key = flow->rule.key;
	of.lot->slot = slot;
	owner_group_each_waiting(owner, slot, shield, &of);
	if (of.lot->count == 0) {
		free(of.lot);
		return;
	}
	of.lot->shadows = flow->shadows; /* the flow ends */
	flow->shadows = (struct xdp_cookies){0};
	of.lot->next = owner->lots;
	owner->lots = of.lot;
}

/* ---- whether the kernel's listeners are open ---- */

static void see(const struct owner_foreign *socket, void *arg)
{
	struct xdp_owner *owner = arg;

	for (struct owner_lot *lot = owner->lots; lot != NULL; lot = lot->next)
		lot->open |= socket->state == TCP_LISTEN && socket->port_be == lot->key.local_port_be &&
		             xdp_cookies_has(&lot->shadows, socket->cookie);
}

/* If the kernel does not say, none is. */
static void look(struct xdp_owner *owner, uint64_t now)
{
	owner->lots_look_ns = now;
	for (struct owner_lot *lot = owner->lots; lot != NULL; lot = lot->next)
		lot->open = false;
	owner_foreign_walk(&owner->diag_fd, IPPROTO_TCP, 0, true, see, owner);
}

/* ---- the process is dead, or has closed the listener ---- */

struct take {
	struct xdp_owner *owner;
	struct owner_lot *lot;
	uint64_t now;
};

static void park(const struct vma_pending *pending, void *arg)
{
	const struct take *take = arg;
	const struct vma_flow_key key = owner_pending_key(pending);
	struct owner_heir *heir = owner_heir_find(take->owner, &key);

	if (heir == NULL || heir->state != HEIR_WAITS || heir->parked == NULL || heir->parked->lot != take->lot)
		return;
	memcpy(&heir->parked->pending, pending, sizeof(*pending));
	owner_heir_live_on(take->owner, heir, HEIR_PARKED, take->now);
}

/* The listener is closed, or it was accepted in the last moment: by a client that has died since, or by one that lives.
 */
static void end_others(struct xdp_owner *owner, const struct owner_lot *lot, bool dead, uint64_t now)
{
	struct owner_heir *heir = TAILQ_FIRST(&owner->heirs.list[HEIR_WAITS]), *next;

	for (; heir != NULL; heir = next) {
		next = TAILQ_NEXT(heir, link);
		if (heir->parked == NULL || heir->parked->lot != lot)
			continue;
		if (dead)
			owner_parked_reset(owner, heir, now);
		else
			owner_heir_end(owner, heir);
	}
}

static void take_lot(struct xdp_owner *owner, struct owner_lot *lot, bool dead, uint64_t now)
{
	struct take take = {.owner = owner, .lot = lot, .now = now};

	lot->left = true;
	if (lot->open)
		owner_group_take_waiting(owner, lot->slot, &lot->key, park, &take);
	end_others(owner, lot, dead, now);
	if (lot->count > 0)
		vma_log_debug("%s: %u connections wait for the next process that serves port %u", owner->name,
		              lot->count, ntohs(lot->key.local_port_be));
}

/* Of one listener, or of all (NULL). */
static void take_lots(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	const uint64_t now = owner_now_ns();
	bool looked = false;

	for (struct owner_lot *lot = owner->lots; lot != NULL; lot = lot->next) {
		if (lot->slot != slot || lot->left || (key != NULL && memcmp(&lot->key, key, sizeof(*key)) != 0))
			continue;
		if (!looked)
			look(owner, now);
		looked = true;
		take_lot(owner, lot, key == NULL, now);
	}
}

void owner_parked_take(struct xdp_owner *owner, uint32_t slot)
{
	take_lots(owner, slot, NULL);
}

void owner_parked_close(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	take_lots(owner, slot, key);
}

/* ---- the next process, or none ---- */

void owner_parked_free(struct xdp_owner *owner, struct owner_heir *heir)
{
	if (heir->parked == NULL)
		return;
	heir->parked->lot->count--;
	owner->parked--;
	free(heir->parked);
	heir->parked = NULL;
}

void owner_parked_reset(struct xdp_owner *owner, struct owner_heir *heir, uint64_t now)
{
	const uint32_t slot = heir->parked->lot->slot;

	owner_parked_free(owner, heir);
	owner_heir_live_on(owner, heir, HEIR_RESET, now);
	owner_resets_note(owner, slot, &heir->key, true);
}

static bool is_same_service(const struct owner_lot *lot, const struct owner_flow *flow)
{
	for (uint32_t i = 0; i < flow->shadows.n; i++)
		if (xdp_cookies_has(&lot->shadows, flow->shadows.list[i]))
			return true;
	return false;
}

/* `flow` NULL: to nobody. */
static void end_parked(struct xdp_owner *owner, const struct owner_lot *lot, struct owner_flow *flow, uint64_t now)
{
	struct owner_heir *heir = TAILQ_FIRST(&owner->heirs.list[HEIR_PARKED]), *next;
	uint32_t left = lot->count;

	for (; heir != NULL && left > 0; heir = next) {
		struct vma_pending pending;

		next = TAILQ_NEXT(heir, link);
		if (heir->parked->lot != lot)
			continue;
		left--;
		if (flow == NULL) {
			owner_parked_reset(owner, heir, now);
			continue;
		}
		memcpy(&pending, &heir->parked->pending, sizeof(pending));
		if (!owner_group_give(owner, flow, &pending, BURST, now))
			return;
	}
}

static bool pass_on(struct xdp_owner *owner, struct owner_lot *lot, uint64_t now)
{
	struct owner_flow *flow = owner_flow_listener(owner, &lot->key);

	if (!lot->left)
		return lot->count > 0; /* until its heirs have waited for long enough */
	if (!lot->open || (flow != NULL && !is_same_service(lot, flow)))
		end_parked(owner, lot, NULL, now);
	else if (flow != NULL)
		end_parked(owner, lot, flow, now);
	return lot->count > 0;
}

static void free_lot(struct owner_lot *lot)
{
	xdp_cookies_fini(&lot->shadows);
	free(lot);
}

void owner_parked_tick(struct xdp_owner *owner, uint64_t now)
{
	struct owner_lot **place = &owner->lots;

	if (owner->lots != NULL && now - owner->lots_look_ns >= LOOK_NS)
		look(owner, now);
	while (*place != NULL) {
		struct owner_lot *lot = *place;

		if (pass_on(owner, lot, now)) {
			place = &lot->next;
			continue;
		}
		*place = lot->next;
		free_lot(lot);
	}
}

uint64_t owner_parked_due_ns(const struct xdp_owner *owner)
{
	return owner->lots != NULL ? owner->lots_look_ns + LOOK_NS : UINT64_MAX;
}

void owner_parked_fini(struct xdp_owner *owner)
{
	while (owner->lots != NULL) {
		struct owner_lot *lot = owner->lots;

		owner->lots = lot->next;
		free_lot(lot);
	}
}
