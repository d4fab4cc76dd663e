/*
 * parked - connections that waited for accept in the last process that served their listener. They are kept if that
 * process has died or closed the listener, and the kernel's listener is still open in another. The next process that
 * serves the listener gets them, as it would from the kernel.
 *
 *   the client leaves        each connection has a minisock that WAITS             a parked listener, of the flow
 *   its process is dead      what waits there is PARKED: a copy of the entry       the listener's, up to 10 s
 *   (or it has closed the listener: both at once)
 *   a process serves it      given to a member, and the minisock ends              a burst at a time
 *   none does by then, or the listener is closed: its peer is reset (resets.c)
 *
 * The minisocks come before the listener's flow ends. Without a flow a segment meets the kernel, which has a listener
 * there and answers with RST if it has no connection. A minisock that WAITS or is PARKED takes all that comes and
 * answers nothing. None of the peer's data has been acknowledged, so the peer sends it again until it is answered. If a
 * SYN with the same names comes, for which the kernel listens, the peer has begun anew. Then the minisock ends, and the
 * connection with it.
 *
 * This is only for listeners whose clients have inherited them (VMA_FLOW_INHERITED). Their flow is a group, even of one
 * member, so their connections are described (nic_group.h).
 *
 * The record (record.h) has the parked listeners, and each connection with what it waits for. A new vmad goes on from
 * there (owner_restore_parked_from_record). An entry of a page that was only half taken is taken or left, as the page
 * says.
 *
 * All clients can write the dead process's page. An entry is copied once. The copy counts only if it names a connection
 * of the listener's for which there is a minisock of the same parked listener. No minisock is put in the place of
 * another's flow.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

#include <vma/log.h>

#include "owner.h"

#define CHECK_INTERVAL_NS 200000000ull /* whether the listeners are still open */
#define PARKED_MAX 4096                /* of all listeners */
#define BURST 128                      /* connections on their way to one member: less than its socket holds */

/* A listener whose last process has left, and at which connections wait. */
struct owner_parked_listener {
	struct owner_parked_listener *next;
	struct vma_flow_key key;    /* of the listener */
	struct nic_cookies shadows; /* of its flow */
	uint32_t slot, count;       /* of the client; of connections that wait, or are parked */
	uint32_t place;             /* in the record */
	bool client_left;           /* the client is dead, or has closed it; else what waits is still its own */
	bool open;                  /* the listener was, at the last look */
};

struct owner_parked {
	struct owner_parked_listener *listener;
	uint32_t place;             /* in the record */
	struct vma_pending pending; /* once it is PARKED */
};

/* ---- before the flow ends ---- */

struct parked_pending_walk {
	struct xdp_owner *owner;
	struct owner_parked_listener *listener;
};

/* Whatever else has these names is of a connection before, or this one's: it is noted twice. */
static bool parked_evict_other_minisock(struct xdp_owner *owner, const struct owner_parked_listener *listener,
                                        const struct vma_flow_key *key)
{
	struct owner_minisock *minisock = owner_minisock_find(&owner->minisocks, key);

	if (minisock != NULL && minisock->parked != NULL && minisock->parked->listener == listener)
		return false;
	if (minisock != NULL)
		owner_minisock_end(&owner->minisocks, minisock);
	owner_remove_connection_flow(owner, listener->slot, key);
	return !owner_flow_exists(owner, key);
}

/* As a connection that may still be accepted. */
static void parked_write_record(struct xdp_owner *owner, const struct owner_minisock *minisock,
                                const struct vma_pending *pending)
{
	struct owner_parked *parked = minisock->parked;
	struct owner_record_pending *entry =
	        parked->listener->place != OWNER_NO_PLACE ? owner_record_alloc_pending(owner, &parked->place) : NULL;

	if (entry == NULL)
		return;
	entry->minisock = minisock->number;
	entry->listener = parked->listener->place;
	memcpy(&entry->pending, pending, sizeof(*pending));
	atomic_store(&entry->state, RECORD_WAITS);
}

static void parked_create_minisock_for_pending(const struct vma_pending *pending, void *arg)
{
	const struct parked_pending_walk *walk = arg;
	struct xdp_owner *owner = walk->owner;
	struct owner_parked_listener *listener = walk->listener;
	const struct vma_flow_minisock what = {.key = pending_connection_key(pending)};
	struct owner_parked *parked;
	struct owner_minisock *minisock;

	if (!owner_connection_is_of_listener(&what.key, &listener->key) || vma_flow_key_check(&what.key) < 0 ||
	    owner->parked >= PARKED_MAX || !parked_evict_other_minisock(owner, listener, &what.key))
		return;
	parked = calloc(1, sizeof(*parked));
	if (parked == NULL)
		return;
	owner_minisock_create(&owner->minisocks, &what, MINISOCK_WAITS, false, owner_now_ns());
	minisock = owner_minisock_find(&owner->minisocks, &what.key);
	if (minisock == NULL) {
		free(parked);
		return;
	}
	minisock->parked = parked;
	parked->listener = listener;
	parked->place = OWNER_NO_PLACE;
	listener->count++;
	owner->parked++;
	parked_write_record(owner, minisock, pending);
}

void owner_listener_end_prepare_parking(struct xdp_owner *owner, struct owner_flow *flow, uint32_t slot)
{
	struct parked_pending_walk of = {.owner = owner};

	if (!owner->minisocks.on || !(flow->rule.flags & VMA_FLOW_INHERITED) || flow->group == 0)
		return;
	of.listener = calloc(1, sizeof(*of.listener));
	if (of.listener == NULL)
		return;
	of.listener->key = flow->rule.key;
	of.listener->slot = slot;
	of.listener->place = owner_record_add_listener(owner, slot, &of.listener->key, &flow->shadows);
	owner_each_pending_of_slot(owner, slot, parked_create_minisock_for_pending, &of);
	if (of.listener->count == 0) {
		owner_record_free_listener(owner, of.listener->place);
		free(of.listener);
		return;
	}
	of.listener->shadows = flow->shadows; /* the flow ends */
	flow->shadows = (struct nic_cookies){0};
	of.listener->next = owner->parked_listeners;
	owner->parked_listeners = of.listener;
}

/* ---- whether the kernel's listeners are open ---- */

static void mark_parked_listener_if_socket_listens(const struct kernel_sock *socket, void *arg)
{
	struct xdp_owner *owner = arg;

	for (struct owner_parked_listener *listener = owner->parked_listeners; listener != NULL;
	     listener = listener->next)
		listener->open |= socket->state == TCP_LISTEN && socket->port_be == listener->key.local_port_be &&
		                  nic_cookies_has(&listener->shadows, socket->cookie);
}

/* If the kernel does not say, none is. */
static void parked_check_listeners_open(struct xdp_owner *owner, uint64_t now)
{
	owner->parked_checked_ns = now;
	for (struct owner_parked_listener *listener = owner->parked_listeners; listener != NULL;
	     listener = listener->next)
		listener->open = false;
	kernel_sock_visit_sockets_of_port(&owner->diag_fd, IPPROTO_TCP, 0, true, mark_parked_listener_if_socket_listens,
	                                  owner);
}

/* ---- the process is dead, or has closed the listener ---- */

struct parked_take_walk {
	struct xdp_owner *owner;
	struct owner_parked_listener *listener;
	uint64_t now;
};

/* The copy, with how long it is kept; and then whether it counts. */
static void record_store_parked_pending(struct xdp_owner *owner, uint32_t place, const struct vma_pending *pending,
                                        uint64_t now)
{
	struct owner_record_pending *entry = owner_record_pending_at(owner, place);

	if (entry == NULL)
		return;
	memcpy(&entry->pending, pending, sizeof(*pending));
	entry->due_ns = now + OWNER_PARKED_NS;
	atomic_store(&entry->state, RECORD_PARKED);
}

static void record_unpark_pending(struct xdp_owner *owner, uint32_t place)
{
	struct owner_record_pending *entry = owner_record_pending_at(owner, place);

	if (entry != NULL)
		atomic_store(&entry->state, RECORD_WAITS);
}

static void park_pending_connection(const struct vma_pending *pending, enum pending_take_stage taking, void *arg)
{
	const struct parked_take_walk *parked_take_walk = arg;
	const struct vma_flow_key key = pending_connection_key(pending);
	struct owner_minisock *minisock = owner_minisock_find(&parked_take_walk->owner->minisocks, &key);

	if (minisock == NULL || minisock->state != MINISOCK_WAITS || minisock->parked == NULL ||
	    minisock->parked->listener != parked_take_walk->listener)
		return;
	if (taking == PENDING_TAKE_LOST)
		record_unpark_pending(parked_take_walk->owner, minisock->parked->place);
	else
		record_store_parked_pending(parked_take_walk->owner, minisock->parked->place, pending,
		                            parked_take_walk->now);
	if (taking != PENDING_TAKE_DONE)
		return;
	memcpy(&minisock->parked->pending, pending, sizeof(*pending));
	owner_minisock_set_state(&parked_take_walk->owner->minisocks, minisock, MINISOCK_PARKED, parked_take_walk->now);
}

/* The listener is closed, or it was accepted in the last moment: by a client that has died since, or by one that lives.
 */
static void parked_end_waiting_minisocks(struct xdp_owner *owner, const struct owner_parked_listener *listener,
                                         bool dead, uint64_t now)
{
	struct owner_minisock *minisock = TAILQ_FIRST(&owner->minisocks.list[MINISOCK_WAITS]), *next;

	for (; minisock != NULL; minisock = next) {
		next = TAILQ_NEXT(minisock, link);
		if (minisock->parked == NULL || minisock->parked->listener != listener)
			continue;
		if (dead)
			owner_parked_reset_connection(owner, minisock, now);
		else
			owner_minisock_end(&owner->minisocks, minisock);
	}
}

static void park_pending_conns_of_listener(struct xdp_owner *owner, struct owner_parked_listener *listener, bool dead,
                                           uint64_t now)
{
	struct parked_take_walk parked_take_walk = {.owner = owner, .listener = listener, .now = now};

	listener->client_left = true;
	if (listener->open)
		owner_take_pending_of_dead_worker(owner, listener->slot, &listener->key, park_pending_connection,
		                                  &parked_take_walk);
	parked_end_waiting_minisocks(owner, listener, dead, now);
	owner_record_set_listener_closed(owner, listener->place);
	if (listener->count > 0)
		vma_log_debug("%s: %u connections wait for the next process that serves port %u", owner->name,
		              listener->count, ntohs(listener->key.local_port_be));
}

/* Of one listener, or of all (NULL). */
static void park_pending_conns_of_slot_listeners(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	const uint64_t now = owner_now_ns();
	bool looked = false;

	for (struct owner_parked_listener *listener = owner->parked_listeners; listener != NULL;
	     listener = listener->next) {
		if (listener->slot != slot || listener->client_left ||
		    (key != NULL && memcmp(&listener->key, key, sizeof(*key)) != 0))
			continue;
		if (!looked)
			parked_check_listeners_open(owner, now);
		looked = true;
		park_pending_conns_of_listener(owner, listener, key == NULL, now);
	}
}

void owner_park_pending_of_dead_slot(struct xdp_owner *owner, uint32_t slot)
{
	park_pending_conns_of_slot_listeners(owner, slot, NULL);
}

void owner_park_closed_listener(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	park_pending_conns_of_slot_listeners(owner, slot, key);
}

/* ---- the next process, or none ---- */

void owner_free_parked_of_minisock(struct xdp_owner *owner, struct owner_minisock *minisock)
{
	if (minisock->parked == NULL)
		return;
	minisock->parked->listener->count--;
	owner->parked--;
	owner_record_free_pending(owner, minisock->parked->place);
	free(minisock->parked);
	minisock->parked = NULL;
}

/* In this order each step is known before the one before it is forgotten. */
void owner_parked_reset_connection(struct xdp_owner *owner, struct owner_minisock *minisock, uint64_t now)
{
	owner_resets_add(owner, minisock->parked->listener->slot, &minisock->key, true);
	owner_minisock_set_state(&owner->minisocks, minisock, MINISOCK_RESET, now);
	owner_free_parked_of_minisock(owner, minisock);
}

static bool parked_listener_is_of_service(const struct owner_parked_listener *listener, const struct owner_flow *flow)
{
	for (uint32_t i = 0; i < flow->shadows.n; i++)
		if (nic_cookies_has(&listener->shadows, flow->shadows.list[i]))
			return true;
	return false;
}

/* `flow` NULL: to nobody. */
static void hand_over_or_reset_parked_connections(struct xdp_owner *owner, const struct owner_parked_listener *listener,
                                                  struct owner_flow *flow, uint64_t now)
{
	struct owner_minisock *minisock = TAILQ_FIRST(&owner->minisocks.list[MINISOCK_PARKED]), *next;
	uint32_t client_left = listener->count;

	for (; minisock != NULL && client_left > 0; minisock = next) {
		struct vma_pending pending;

		next = TAILQ_NEXT(minisock, link);
		if (minisock->parked->listener != listener)
			continue;
		client_left--;
		if (flow == NULL) {
			owner_parked_reset_connection(owner, minisock, now);
			continue;
		}
		memcpy(&pending, &minisock->parked->pending, sizeof(pending));
		if (!owner_group_hand_to_any_member(owner, flow, &pending, BURST, now))
			return;
	}
}

static bool parked_give_to_new_listener(struct xdp_owner *owner, struct owner_parked_listener *listener, uint64_t now)
{
	struct owner_flow *flow = owner_find_listener_flow(owner, &listener->key);

	if (!listener->client_left)
		return listener->count > 0; /* until its minisocks have waited for long enough */
	/* Of an adopted flow not all shadows are known before its clients have named it. */
	if (listener->open && flow != NULL && flow->unannounced != 0 && !parked_listener_is_of_service(listener, flow))
		return listener->count > 0;
	if (!listener->open || (flow != NULL && !parked_listener_is_of_service(listener, flow)))
		hand_over_or_reset_parked_connections(owner, listener, NULL, now);
	else if (flow != NULL)
		hand_over_or_reset_parked_connections(owner, listener, flow, now);
	return listener->count > 0;
}

static void free_parked_listener(struct xdp_owner *owner, struct owner_parked_listener *listener)
{
	owner_record_free_listener(owner, listener->place);
	nic_cookies_fini(&listener->shadows);
	free(listener);
}

void owner_parked_hand_over_or_expire(struct xdp_owner *owner, uint64_t now)
{
	struct owner_parked_listener **place = &owner->parked_listeners;

	if (owner->parked_listeners != NULL && now - owner->parked_checked_ns >= CHECK_INTERVAL_NS)
		parked_check_listeners_open(owner, now);
	while (*place != NULL) {
		struct owner_parked_listener *listener = *place;

		if (parked_give_to_new_listener(owner, listener, now)) {
			place = &listener->next;
			continue;
		}
		*place = listener->next;
		free_parked_listener(owner, listener);
	}
}

uint64_t owner_parked_due_ns(const struct xdp_owner *owner)
{
	return owner->parked_listeners != NULL ? owner->parked_checked_ns + CHECK_INTERVAL_NS : UINT64_MAX;
}

void owner_parked_fini(struct xdp_owner *owner)
{
	while (owner->parked_listeners != NULL) {
		struct owner_parked_listener *listener = owner->parked_listeners;

		owner->parked_listeners = listener->next;
		free_parked_listener(owner, listener);
	}
}

/* ---- from the owner before ---- */

static void restore_parked_listener_from_record(struct xdp_owner *owner, uint32_t place)
{
	struct owner_record_listener *entry = &owner->record->listener[place];
	const uint32_t state = atomic_load(&entry->state);
	struct owner_parked_listener *listener = state == RECORD_NO_LISTENER ? NULL : calloc(1, sizeof(*listener));

	if (listener == NULL)
		return;
	*listener = (struct owner_parked_listener){.key = entry->key,
	                                           .slot = entry->slot % XDP_SLOTS_MAX,
	                                           .place = place,
	                                           .client_left = state == RECORD_LISTENER_CLOSED,
	                                           .next = owner->parked_listeners};
	if (owner_record_load_listener_shadows(owner, place, &listener->shadows) < 0) {
		free(listener);
		return;
	}
	owner_place_bitmap_set(&owner->listener_places, place);
	owner->parked_listeners = listener;
}

static struct owner_parked_listener *parked_listener_by_place(const struct xdp_owner *owner, uint32_t place)
{
	struct owner_parked_listener *listener = owner->parked_listeners;

	while (listener != NULL && listener->place != place)
		listener = listener->next;
	return listener;
}

/*
 * False: the entry is of nothing. A connection was on its way from here if the record says so; and if that was to be
 * undone, as its process accepted it first, the page has it.
 */
static bool restore_recorded_parked_connection(struct xdp_owner *owner, uint32_t place,
                                               struct owner_parked_listener *listener)
{
	const struct owner_record_pending *entry = &owner->record->waiting[place];
	const struct vma_flow_key key = pending_connection_key(&entry->pending);
	struct owner_minisock *minisock = owner_minisock_find(&owner->minisocks, &key);
	struct owner_parked *parked;
	const bool is_parked = atomic_load(&entry->state) == RECORD_PARKED &&
	                       (listener == NULL || listener->client_left ||
	                        !owner_slot_has_waiting_connection(owner, listener->slot, &key));

	if (listener == NULL || minisock == NULL || minisock->number != entry->minisock || minisock->parked != NULL ||
	    (minisock->state != MINISOCK_WAITS && minisock->state != MINISOCK_RESET))
		return false;
	parked = calloc(1, sizeof(*parked));
	if (parked == NULL)
		return false;
	parked->listener = listener;
	parked->place = place;
	memcpy(&parked->pending, &entry->pending, sizeof(parked->pending));
	minisock->parked = parked;
	listener->count++;
	owner->parked++;
	owner_place_bitmap_set(&owner->waiting_places, place);
	if (is_parked) {
		owner_minisock_set_parked_until(&owner->minisocks, minisock, entry->due_ns, owner_now_ns());
	} else {
		owner_minisock_set_state(&owner->minisocks, minisock, MINISOCK_WAITS, owner_now_ns());
		record_unpark_pending(owner, place);
	}
	return true;
}

bool owner_connection_is_parked_at_slot(struct xdp_owner *owner, const struct vma_flow_key *key, uint32_t to)
{
	struct owner_minisock *minisock = owner_minisock_find(&owner->minisocks, key);

	if (minisock == NULL || minisock->parked == NULL)
		return false;
	if (minisock->parked->listener->slot == to)
		return minisock->state == MINISOCK_PARKED;
	owner_minisock_end(&owner->minisocks, minisock);
	return false;
}

/* The client of such a slot is dead, and nobody will say so again. */
static bool parked_listener_client_is_dead(const struct xdp_owner *owner, const struct owner_parked_listener *listener)
{
	const enum owner_slot_state state = owner->slot[listener->slot].state;

	return !listener->client_left && state != SLOT_RENTED && state != SLOT_LEAVING;
}

void owner_restore_parked_from_record(struct xdp_owner *owner)
{
	if (!owner->minisocks.on)
		return;
	for (uint32_t place = 0; place < OWNER_RECORD_LISTENERS; place++)
		restore_parked_listener_from_record(owner, place);
	for (uint32_t place = 0; place < OWNER_RECORD_WAITING; place++) {
		struct owner_record_pending *entry = &owner->record->waiting[place];
		const uint32_t state = atomic_load(&entry->state);

		if ((state == RECORD_WAITS || state == RECORD_PARKED) &&
		    !restore_recorded_parked_connection(owner, place, parked_listener_by_place(owner, entry->listener)))
			atomic_store(&entry->state, RECORD_NO_WAITING);
	}
}

void owner_park_listeners_of_dead_clients(struct xdp_owner *owner)
{
	for (struct owner_parked_listener *listener = owner->parked_listeners; listener != NULL;
	     listener = listener->next)
		if (parked_listener_client_is_dead(owner, listener))
			park_pending_conns_of_slot_listeners(owner, listener->slot, NULL);
}

/* Of a client that lives, a parked listener is one whose close the last owner had not finished, or that was closed
 * again. */
void owner_park_listeners_closed_by_live_client(struct xdp_owner *owner, uint32_t slot)
{
	for (struct owner_parked_listener *listener = owner->parked_listeners; listener != NULL;
	     listener = listener->next)
		if (listener->slot == slot && !listener->client_left)
			park_pending_conns_of_slot_listeners(owner, slot, &listener->key);
}
