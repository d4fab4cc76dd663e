/*
 * groups - TCP listeners that several slots serve: the workers of one service, which have its socket by fork, or
 * sockets of their own with SO_REUSEPORT.
 *
 *   A has the flow, B asks, both may have it (conflicts.c)         a group of A and B
 *   C asks                                                         of A, B and C
 *   a member deletes the flow, leaves, or dies                     the others go on; a group of one is none
 *   a client asks that may not share it                            the flow is the kernel's (flow_waiters.c)
 *
 * Every 40 ms the owner looks what the members say of themselves (nic_group.h). New connections go to the members that
 * *ask*. A member asks while one of its threads sleeps for a listener. It also asks if a thread has called accept or a
 * wait for a listener in the last 100 ms. If no member asks, they go to the same members as before. A connection that
 * has waited for accept for 100 ms is moved:
 *
 *   its process          moved to                                                  and gets new ones again
 *   does not ask         any that asks                                             when it has asked
 *   asks, accepts none   one that asks, and in which nothing waits for so long     when it has accepted, or after 1 s
 *   accepts              one that sleeps, and in which nothing waits for so long   at once
 *
 * So a connection is moved once in 100 ms at most, and stays where it is if all members are overloaded. A process may
 * not even take its packets from the ring (SIGSTOP), or may have died, or closed its listener. Connections that wait
 * there, or are half open, go at once to any member that asks. A connection on its way to a member is known here until
 * the member says that it has made it. If the member dies or closes before, the connection goes to another.
 *
 * A member that has inherited the listener is a group of one, too. Connections that wait there when it dies are kept
 * for the next member (parked.c).
 *
 * Connections on their way are in the record, too (record.h). Their client is told in order. If the client is away, or
 * does not read, it is told later. If it has come to another vmad, it is told again of those that it has not made. (It
 * knows the numbers: client/thread.c.)
 *
 * Moving: the entry's state is changed by compare-and-swap. Then the program is told where the connection's segments go
 * now, and the new slot's client is told which connection to make. The connection has acknowledged none of the peer's
 * data, so the peer sends again what was under way.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include <vma/log.h>

#include "owner.h"
#include "../xdp/flow.h"
#include "../xdp/shared.h"

#define TIMEOUT_NS 100000000ull
#define BACKOFF_NS 1000000000ull
#define MOVING_MAX (4 * VMA_PENDING_MAX) /* connections on their way to one member, to be moved again */
#define ALONE_MAX (XDP_GROUPS / 2)       /* groups, when one of a single member begins: there must be room for others */
#define RECENT_NS 2000000000ull          /* a group in which there may be connections from before it was one */

bool owner_flow_has_slot(const struct owner_flow *flow, uint32_t slot)
{
	return flow->group != 0 || flow->spread != 0 ? (flow->members >> slot & 1) != 0 : flow->slot == slot;
}

static uint32_t first_slot_of_mask(uint64_t slots)
{
	return (uint32_t)__builtin_ctzll(slots);
}

static struct vma_nic_accept_page *accept_page_of_slot(const struct xdp_owner *owner, uint32_t slot)
{
	return &owner->members[slot];
}

/* ---- which member gets new connections ---- */

static bool member_is_accepting(const struct xdp_owner *owner, uint32_t slot, uint64_t now)
{
	return atomic_load(&accept_page_of_slot(owner, slot)->sleeps) != 0 ||
	       now - owner->worker[slot].accept_call_ns < TIMEOUT_NS;
}

static uint64_t mask_of_members_able_to_accept(const struct xdp_owner *owner, uint64_t members, uint64_t now)
{
	uint64_t eligible = 0;

	for (uint64_t left = members; left != 0; left &= left - 1) {
		const uint32_t slot = first_slot_of_mask(left);
		const struct owner_slot_accept_progress *worker = &owner->worker[slot];

		if (!worker->stuck && now >= worker->backoff_until_ns && now - worker->rx_progress_ns < TIMEOUT_NS &&
		    member_is_accepting(owner, slot, now))
			eligible |= 1ull << slot;
	}
	return eligible;
}

/* Those that are not about to leave, if there are any. */
static uint64_t group_members_not_leaving(const struct owner_flow *flow)
{
	const uint64_t serving = flow->members & ~flow->retired;

	return serving != 0 ? serving : flow->members;
}

/* Buckets one after the other, so that the shares differ by one at most. */
static void group_assign_hash_buckets(struct xdp_owner *owner, const struct owner_flow *flow, uint64_t eligible)
{
	struct xdp_group *group = &xdp_prog_groups(owner->prog)[flow->group];
	uint64_t left = eligible;

	for (uint32_t bucket = 0; bucket < XDP_GROUP_BUCKETS; bucket++) {
		left = left != 0 ? left : eligible;
		__atomic_store_n(&group->slot[bucket], (uint8_t)first_slot_of_mask(left), __ATOMIC_RELAXED);
		left &= left - 1;
	}
	__atomic_store_n(&group->eligible, eligible, __ATOMIC_RELEASE);
}

/* Where nobody may have any, who had them before has them still. */
static void group_reassign_hash_buckets(struct xdp_owner *owner, const struct owner_flow *flow, uint64_t now)
{
	struct xdp_group *group = &xdp_prog_groups(owner->prog)[flow->group];
	const uint64_t members = group_members_not_leaving(flow);
	uint64_t eligible = mask_of_members_able_to_accept(owner, members, now);

	if (eligible == 0)
		eligible = group->eligible & members;
	if (eligible == 0)
		eligible = members;
	if (eligible != group->eligible)
		group_assign_hash_buckets(owner, flow, eligible);
	if (group->default_slot != XDP_NO_SLOT && now - flow->grouped_ns >= RECENT_NS)
		__atomic_store_n(&group->default_slot, XDP_NO_SLOT, __ATOMIC_RELAXED);
}

/* ---- members come and go ---- */

static void stamp_membership_change(struct xdp_owner *owner, uint64_t members, uint64_t now)
{
	for (; members != 0; members &= members - 1)
		atomic_store(&accept_page_of_slot(owner, first_slot_of_mask(members))->changed_ns, now);
}

static uint32_t first_free_group_number(const struct xdp_owner *owner)
{
	uint32_t group = 1;

	while (group < XDP_GROUPS && owner->group_used[group])
		group++;
	return group;
}

uint32_t owner_find_free_group_number(const struct xdp_owner *owner)
{
	const uint32_t group = xdp_prog_groups(owner->prog) != NULL ? first_free_group_number(owner) : XDP_GROUPS;

	return group < XDP_GROUPS ? group : 0;
}

/* One slot has had the flow; what it has got so far was not noted. */
static int begin_listener_group(struct xdp_owner *owner, struct owner_flow *flow, uint64_t now)
{
	struct xdp_group *groups = owner->members != NULL ? xdp_prog_groups(owner->prog) : NULL;
	const uint32_t group = groups != NULL ? first_free_group_number(owner) : XDP_GROUPS;
	int rc;

	if (group >= XDP_GROUPS)
		return -ENOSPC;
	groups[group] = (struct xdp_group){.default_slot = (uint8_t)flow->slot};
	memset(groups[group].slot, (int)flow->slot, sizeof(groups[group].slot));
	groups[group].eligible = 1ull << flow->slot;
	rc = xdp_prog_flow_set_listener_group(owner->prog, &flow->rule.key, flow->slot, group);
	if (rc < 0)
		return rc;
	owner->group_used[group] = 1;
	owner->groups++;
	if (owner->record != NULL)
		atomic_store(&owner->record->group[group].leaving, 0);
	flow->group = group;
	flow->members = 1ull << flow->slot;
	flow->grouped_ns = now;
	atomic_fetch_add(&accept_page_of_slot(owner, flow->slot)->groups, 1);
	owner_record_write_group(owner, flow);
	return 0;
}

static void worker_reset_accept_progress(struct xdp_owner *owner, uint32_t slot, uint64_t now)
{
	const struct vma_nic_accept_page *member = accept_page_of_slot(owner, slot);
	struct owner_slot_accept_progress *worker = &owner->worker[slot];

	worker->accept_calls = atomic_load(&member->accept_calls);
	worker->accepted = atomic_load(&member->accepted);
	worker->accept_call_ns = worker->rx_progress_ns = worker->accepted_ns = worker->joined_ns = now;
	worker->stuck = worker->late = false;
	worker->backoff_until_ns = 0;
}

void owner_restore_group_of_flow(struct xdp_owner *owner, struct owner_flow *flow, uint32_t group, uint64_t members)
{
	const uint64_t now = owner_now_ns();

	if (xdp_prog_groups(owner->prog) == NULL || group == 0 || group >= XDP_GROUPS || owner->group_used[group])
		return;
	owner->group_used[group] = 1;
	owner->groups++;
	flow->group = group;
	flow->members = members;
	flow->grouped_ns = now;
	for (uint64_t left = members; left != 0; left &= left - 1)
		worker_reset_accept_progress(owner, first_slot_of_mask(left), now);
	owner_record_write_group(owner, flow);
}

void owner_group_begin_with_one_slot(struct xdp_owner *owner, struct owner_flow *flow)
{
	const uint64_t now = owner_now_ns();

	if (owner->minisocks.on && owner->groups < ALONE_MAX && begin_listener_group(owner, flow, now) == 0)
		worker_reset_accept_progress(owner, flow->slot, now);
}

int owner_group_join(struct xdp_owner *owner, struct owner_flow *flow, uint32_t slot)
{
	const uint64_t now = owner_now_ns();
	int rc = 0;

	if (flow->group == 0) {
		rc = begin_listener_group(owner, flow, now);
		if (rc < 0)
			return rc;
		worker_reset_accept_progress(owner, flow->slot, now);
	}
	flow->members |= 1ull << slot;
	flow->retired &= ~(1ull << slot);
	owner_record_write_group(owner, flow);
	atomic_fetch_add(&accept_page_of_slot(owner, slot)->groups, 1);
	worker_reset_accept_progress(owner, slot, now); /* it asks at this very moment */
	stamp_membership_change(owner, flow->members, now);
	group_reassign_hash_buckets(owner, flow, now);
	return 0;
}

static void free_group_number(struct xdp_owner *owner, struct owner_flow *flow)
{
	owner->group_used[flow->group] = 0;
	owner->groups--;
	flow->group = 0;
	flow->members = flow->retired = 0;
}

void owner_group_end(struct xdp_owner *owner, struct owner_flow *flow)
{
	if (flow->group == 0)
		return;
	for (uint64_t left = flow->members; left != 0; left &= left - 1)
		atomic_fetch_sub(&accept_page_of_slot(owner, first_slot_of_mask(left))->groups, 1);
	free_group_number(owner, flow);
}

/*
 * A group of one ends a while later (owner_groups_check_and_rebalance): until then the program knows whose the
 * connections are that have no flows of their own, and the member that nobody else shares with any more keeps still
 * about what it does not know.
 */
void owner_group_leave(struct xdp_owner *owner, struct owner_flow *flow, uint32_t slot)
{
	const uint64_t now = owner_now_ns();
	struct xdp_group *group = &xdp_prog_groups(owner->prog)[flow->group];

	flow->members &= ~(1ull << slot);
	flow->retired &= ~(1ull << slot);
	owner_adopted_flow_mark_reclaimed_by_slot(owner, flow, slot);
	owner_record_write_group(owner, flow);
	atomic_fetch_sub(&accept_page_of_slot(owner, slot)->groups, 1);
	if (flow->slot == slot) {
		owner->slot[slot].flows--;
		flow->slot = first_slot_of_mask(flow->members);
		owner->slot[flow->slot].flows++;
		xdp_prog_flow_set_listener_group(owner->prog, &flow->rule.key, flow->slot, flow->group);
	}
	if (group->default_slot == slot)
		__atomic_store_n(&group->default_slot, XDP_NO_SLOT, __ATOMIC_RELAXED);
	flow->grouped_ns = now;
	stamp_membership_change(owner, flow->members, now);
	group_reassign_hash_buckets(owner, flow, now);
}

int owner_group_stop_new_conns_to_slot(struct xdp_owner *owner, struct owner_flow *flow, uint32_t slot)
{
	const uint64_t retired = flow->retired | 1ull << slot;

	if ((flow->members & ~retired) == 0)
		return -ENOENT;
	flow->retired = retired;
	group_reassign_hash_buckets(owner, flow, owner_now_ns());
	return 0;
}

static void free_pending_moves_of_slot(struct xdp_owner *owner, struct owner_slot_accept_progress *worker)
{
	while (worker->moving != NULL) {
		struct owner_pending_move *move = worker->moving;

		worker->moving = move->next;
		owner_record_free_pending(owner, move->place);
		free(move);
	}
}

void owner_groups_fini(struct xdp_owner *owner)
{
	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX; slot++)
		free_pending_moves_of_slot(owner, &owner->worker[slot]);
}

void owner_reset_accept_page(struct xdp_owner *owner, uint32_t slot)
{
	const off_t at = (off_t)(XDP_MEMBERS_AT + slot * sizeof(struct vma_nic_accept_page));

	free_pending_moves_of_slot(owner, &owner->worker[slot]);
	owner->worker[slot] = (struct owner_slot_accept_progress){0};
	if (owner->members == NULL)
		return;
	if (fallocate(owner->shared_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at,
	              (off_t)sizeof(struct vma_nic_accept_page)) < 0)
		memset(accept_page_of_slot(owner, slot), 0, sizeof(struct vma_nic_accept_page));
	accept_page_of_slot(owner, slot)->clock_ms = owner->clock_ms;
	memcpy(accept_page_of_slot(owner, slot)->isn_key, owner->isn_key, sizeof(owner->isn_key));
	xdp_prog_count_slot_rental(owner->prog, slot);
}

/* ---- what waits for accept, and is moved ---- */

struct vma_flow_key pending_connection_key(const struct vma_pending *pending)
{
	struct vma_flow_key key = {.family = AF_INET,
	                           .proto = IPPROTO_TCP,
	                           .vlan = pending->vlan,
	                           .local_port_be = pending->local_port_be,
	                           .peer_port_be = pending->peer_port_be};

	memcpy(key.local, pending->local, sizeof(pending->local));
	memcpy(key.peer, pending->peer, sizeof(pending->peer));
	return key;
}

/* Of several, those that have joined after `from`: when a service reloads, the others are about to leave as well. */
static uint64_t prefer_later_joined_members(const struct xdp_owner *owner, uint64_t slots, uint32_t from)
{
	uint64_t later = 0;

	for (uint64_t left = slots; left != 0; left &= left - 1)
		if (owner->worker[first_slot_of_mask(left)].joined_ns > owner->worker[from].joined_ns)
			later |= left & -left;
	return later != 0 ? later : slots;
}

enum takers { ANY, PROMPT, IDLE }; /* that ask; in which nothing waits for long; and that sleep, besides */

static uint64_t filter_move_targets(const struct xdp_owner *owner, uint64_t eligible, enum takers takers)
{
	for (uint64_t left = takers != ANY ? eligible : 0; left != 0; left &= left - 1) {
		const uint32_t slot = first_slot_of_mask(left);

		if (owner->worker[slot].late ||
		    (takers == IDLE && atomic_load(&accept_page_of_slot(owner, slot)->sleeps) == 0))
			eligible &= ~(1ull << slot);
	}
	return eligible;
}

static uint32_t pick_slot_of_mask_by_key_hash(uint64_t slots, const struct vma_flow_key *key)
{
	unsigned n = owner_flow_key_bucket(key) % (unsigned)__builtin_popcountll(slots);

	while (n-- > 0)
		slots &= slots - 1;
	return first_slot_of_mask(slots);
}

/* By a hash again, among those that may have new ones; XDP_NO_SLOT: there is nobody but `from`. */
static uint32_t choose_other_member_for_pending_conn(const struct xdp_owner *owner, const struct owner_flow *flow,
                                                     uint32_t from, enum takers takers, const struct vma_flow_key *key,
                                                     uint64_t now)
{
	uint64_t others = flow->group != 0 ? group_members_not_leaving(flow) : 1ull << flow->slot;
	uint64_t eligible;

	others &= ~(1ull << from);
	eligible = flow->group != 0
	                   ? filter_move_targets(owner, mask_of_members_able_to_accept(owner, others, now), takers)
	                   : others;
	if (eligible == 0 && !owner_flow_has_slot(flow, from))
		eligible = others; /* `from` has gone */
	if (eligible == 0)
		return XDP_NO_SLOT;
	if (!owner_flow_has_slot(flow, from))
		eligible = prefer_later_joined_members(owner, eligible, from);
	return pick_slot_of_mask_by_key_hash(eligible, key);
}

/* With the number that it will have: the member says how far it has come. A place in the record. */
static uint32_t owner_record_write_pending_move(struct xdp_owner *owner, uint32_t from, uint32_t to,
                                                const struct vma_pending *pending)
{
	uint32_t place;
	struct owner_record_pending *entry = owner_record_alloc_pending(owner, &place);

	if (entry == NULL)
		return place;
	entry->from = from;
	entry->to = to;
	memcpy(&entry->pending, pending, sizeof(*pending));
	entry->pending.number = owner->worker[to].moves + 1;
	atomic_store(&entry->state, RECORD_MOVING);
	return place;
}

/* False: if the member dies now, it is lost. */
static bool queue_pending_conn_move_to_slot(struct xdp_owner *owner, uint32_t to, struct vma_pending *pending,
                                            uint32_t place)
{
	struct owner_slot_accept_progress *worker = &owner->worker[to];
	struct owner_pending_move *move = NULL;

	pending->number = ++worker->moves;
	if (pending->number - atomic_load(&accept_page_of_slot(owner, to)->adopted) <= MOVING_MAX)
		move = malloc(sizeof(*move));
	if (move == NULL) {
		owner_record_free_pending(owner, place);
		return false;
	}
	move->next = NULL;
	move->place = place;
	memcpy(&move->pending, pending, sizeof(*pending));
	if (worker->moving == NULL)
		worker->moving = move;
	else
		worker->last_move->next = move;
	worker->last_move = move;
	return true;
}

void owner_send_moved_conns_to_client(struct xdp_owner *owner, uint32_t slot)
{
	struct owner_slot_accept_progress *worker = &owner->worker[slot];

	if (owner->on_adopt == NULL || worker->moving == NULL || worker->last_move->pending.number == worker->sent)
		return;
	for (const struct owner_pending_move *move = worker->moving; move != NULL; move = move->next) {
		if ((int32_t)(move->pending.number - worker->sent) <= 0)
			continue;
		if (!owner->on_adopt(slot, &move->pending, owner->adopt_arg))
			return;
		worker->sent = move->pending.number;
	}
}

void xdp_owner_resend_moved_conns_to_slot(struct xdp_owner *owner, uint32_t slot)
{
	if (owner->members == NULL)
		return;
	owner->worker[slot].sent = atomic_load(&accept_page_of_slot(owner, slot)->adopted);
	owner_send_moved_conns_to_client(owner, slot);
}

/* A minisock has kept its segments from the kernel meanwhile, if the member before it had left. */
static void group_hand_pending_to_member(struct xdp_owner *owner, const struct owner_flow *flow, uint32_t to,
                                         struct vma_pending *pending, uint32_t place, uint64_t now)
{
	const struct vma_flow_key key = pending_connection_key(pending);
	struct vma_nic_accept_page *member = accept_page_of_slot(owner, to);
	struct owner_minisock *minisock = owner_minisock_find(&owner->minisocks, &key);
	const bool is_noted = queue_pending_conn_move_to_slot(owner, to, pending, place);

	atomic_store(&member->changed_ns, now); /* its segments may be there before it is */
	if (flow->group != 0)
		xdp_prog_add_recent_connection(owner->prog, &key, to);
	if (minisock != NULL)
		owner_minisock_end(&owner->minisocks, minisock);
	if (is_noted)
		owner_send_moved_conns_to_client(owner, to);
	else
		owner->on_adopt(to, pending, owner->adopt_arg);
}

/* The listener that a connection waits at, if it is this one; NULL: it cannot be moved. */
static struct owner_flow *find_listener_flow_of_connection(struct xdp_owner *owner, const struct vma_flow_key *key,
                                                           const struct vma_flow_key *only)
{
	struct owner_flow *flow = owner_find_listener_flow(owner, key);

	if (owner->on_adopt == NULL || flow == NULL || !(flow->rule.flags & VMA_FLOW_LISTENER) ||
	    (only != NULL && memcmp(&flow->rule.key, only, sizeof(*only)) != 0))
		return NULL;
	return flow;
}

/* `state`: that it is taken in. */
static void copy_pending_entry(const struct vma_pending *entry, uint32_t state, struct vma_pending *copy)
{
	memcpy(copy, entry, sizeof(*copy));
	copy->handshaken = state == VMA_PENDING_QUEUED;
}

/* True: it was moved. */
static bool move_pending_connection(struct xdp_owner *owner, uint32_t from, struct vma_pending *entry, uint32_t state,
                                    const struct vma_flow_key *only, enum takers takers, uint64_t now)
{
	struct vma_flow_key key = pending_connection_key(entry);
	struct owner_flow *flow = find_listener_flow_of_connection(owner, &key, only);
	struct owner_record_pending *recorded;
	struct vma_pending copy;
	uint32_t to, place;

	if (flow == NULL)
		return false;
	to = choose_other_member_for_pending_conn(owner, flow, from, takers, &key, now);
	if (to == XDP_NO_SLOT)
		return false;
	copy_pending_entry(entry, state, &copy);
	place = owner_record_write_pending_move(owner, from, to, &copy);
	if (!atomic_compare_exchange_strong(&entry->state, &state, VMA_PENDING_MOVED)) {
		owner_record_free_pending(owner, place);
		return false;
	}
	copy_pending_entry(entry, state, &copy); /* it may have been another one until then */
	recorded = owner_record_pending_at(owner, place);
	if (recorded != NULL) {
		copy.number = recorded->pending.number;
		memcpy(&recorded->pending, &copy, sizeof(copy));
	}
	key = pending_connection_key(&copy);
	owner_remove_connection_flow(owner, from, &key); /* of a connection before this one, with the same names */
	group_hand_pending_to_member(owner, flow, to, &copy, place, now);
	return true;
}

/* Entries that have been in their state since before `before_ns`. */
static unsigned move_slot_pending_conns_to_other_members(struct xdp_owner *owner, uint32_t slot,
                                                         const struct vma_flow_key *only, bool half_open,
                                                         enum takers takers, uint64_t before_ns, uint64_t now)
{
	struct vma_nic_accept_page *member = accept_page_of_slot(owner, slot);
	unsigned moved = 0;

	for (uint32_t i = 0; i < VMA_PENDING_MAX; i++) {
		struct vma_pending *entry = &member->pending[i];
		const uint32_t state = atomic_load(&entry->state);

		if (state != VMA_PENDING_QUEUED && !(half_open && state == VMA_PENDING_HALF_OPEN))
			continue;
		if (entry->since_ns <= before_ns)
			moved += move_pending_connection(owner, slot, entry, state, only, takers, now);
	}
	return moved;
}

/* ---- what was on its way to a member that has gone ---- */

static void free_completed_pending_moves(struct xdp_owner *owner, uint32_t slot)
{
	const uint32_t made = atomic_load(&accept_page_of_slot(owner, slot)->adopted);
	struct owner_slot_accept_progress *worker = &owner->worker[slot];

	while (worker->moving != NULL && (int32_t)(made - worker->moving->pending.number) >= 0) {
		struct owner_pending_move *move = worker->moving;

		worker->moving = move->next;
		owner_record_free_pending(owner, move->place);
		free(move);
	}
}

/* It has made it, and did not come to say so. (One that was moved away from there may have come back since.) */
bool owner_slot_has_waiting_connection(const struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	const struct vma_nic_accept_page *member = accept_page_of_slot(owner, slot);

	for (uint32_t i = 0; owner->members != NULL && i < VMA_PENDING_MAX; i++) {
		const struct vma_flow_key other = pending_connection_key(&member->pending[i]);
		const uint32_t state = atomic_load(&member->pending[i].state);

		if ((state == VMA_PENDING_QUEUED || state == VMA_PENDING_HALF_OPEN) &&
		    memcmp(&other, key, sizeof(other)) == 0)
			return true;
	}
	return false;
}

static void resend_pending_moves_to_other_members(struct xdp_owner *owner, uint32_t slot,
                                                  const struct vma_flow_key *only, uint64_t now)
{
	struct owner_pending_move **place = &owner->worker[slot].moving;

	free_completed_pending_moves(owner, slot);
	owner->worker[slot].last_move = NULL;
	while (*place != NULL) {
		struct owner_pending_move *move = *place;
		const struct vma_flow_key key = pending_connection_key(&move->pending);
		struct owner_flow *flow = find_listener_flow_of_connection(owner, &key, only);
		const uint32_t to = flow != NULL
		                            ? choose_other_member_for_pending_conn(owner, flow, slot, ANY, &key, now)
		                            : (uint32_t)XDP_NO_SLOT;

		if (to == XDP_NO_SLOT) {
			owner->worker[slot].last_move = move;
			place = &move->next;
			continue;
		}
		if (!owner_slot_has_waiting_connection(owner, slot, &key))
			group_hand_pending_to_member(owner, flow, to, &move->pending,
			                             owner_record_write_pending_move(owner, slot, to, &move->pending),
			                             now);
		*place = move->next;
		owner_record_free_pending(owner, move->place);
		free(move);
	}
}

void owner_group_move_unaccepted_conns_off_slot(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	const uint64_t now = owner_now_ns();

	if (owner->members == NULL)
		return;
	resend_pending_moves_to_other_members(owner, slot, key, now); /* first: what it has made waits in its page */
	move_slot_pending_conns_to_other_members(owner, slot, key, true, ANY, UINT64_MAX, now);
	if (key == NULL)
		owner_park_pending_of_dead_slot(owner, slot);
}

/* ---- what is left when the last member dies ---- */

static bool pending_state_is_waiting(uint32_t state)
{
	return state == VMA_PENDING_QUEUED || state == VMA_PENDING_HALF_OPEN;
}

void owner_each_pending_of_slot(struct xdp_owner *owner, uint32_t slot, owner_pending_visit_fn *each, void *arg)
{
	for (const struct owner_pending_move *move = owner->worker[slot].moving; move != NULL; move = move->next)
		each(&move->pending, arg);
	for (uint32_t i = 0; i < VMA_PENDING_MAX; i++) {
		struct vma_pending copy;

		if (!pending_state_is_waiting(atomic_load(&accept_page_of_slot(owner, slot)->pending[i].state)))
			continue;
		memcpy(&copy, &accept_page_of_slot(owner, slot)->pending[i], sizeof(copy));
		each(&copy, arg);
	}
}

bool owner_connection_is_of_listener(const struct vma_flow_key *connection, const struct vma_flow_key *listener)
{
	return connection->peer_port_be != 0 && connection->local_port_be == listener->local_port_be &&
	       connection->vlan == listener->vlan &&
	       memcmp(connection->local, listener->local, sizeof(listener->local)) == 0;
}

static void take_pending_moves_of_dead_worker(struct xdp_owner *owner, uint32_t slot,
                                              const struct vma_flow_key *listener, owner_pending_take_fn *take,
                                              void *arg)
{
	struct owner_pending_move **place = &owner->worker[slot].moving;

	free_completed_pending_moves(owner, slot);
	owner->worker[slot].last_move = NULL;
	while (*place != NULL) {
		struct owner_pending_move *move = *place;
		const struct vma_flow_key key = pending_connection_key(&move->pending);

		if (!owner_connection_is_of_listener(&key, listener)) {
			owner->worker[slot].last_move = move;
			place = &move->next;
			continue;
		}
		if (!owner_slot_has_waiting_connection(owner, slot, &key))
			take(&move->pending, PENDING_TAKE_DONE, arg);
		*place = move->next;
		owner_record_free_pending(owner, move->place);
		free(move);
	}
}

void owner_take_pending_of_dead_worker(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *listener,
                                       owner_pending_take_fn *take, void *arg)
{
	take_pending_moves_of_dead_worker(owner, slot, listener, take, arg);
	for (uint32_t i = 0; i < VMA_PENDING_MAX; i++) {
		struct vma_pending *entry = &accept_page_of_slot(owner, slot)->pending[i], copy;
		uint32_t state = atomic_load(&entry->state);
		const struct vma_flow_key key = pending_connection_key(entry);

		if (!pending_state_is_waiting(state) || !owner_connection_is_of_listener(&key, listener))
			continue;
		copy_pending_entry(entry, state, &copy);
		take(&copy, PENDING_TAKE_BEGINS, arg);
		if (!atomic_compare_exchange_strong(&entry->state, &state, VMA_PENDING_MOVED)) {
			take(&copy, PENDING_TAKE_LOST, arg);
			continue;
		}
		copy_pending_entry(entry, state, &copy);
		take(&copy, PENDING_TAKE_DONE, arg);
	}
}

bool owner_group_hand_to_any_member(struct xdp_owner *owner, const struct owner_flow *flow, struct vma_pending *pending,
                                    uint32_t most, uint64_t now)
{
	const struct vma_flow_key key = pending_connection_key(pending);
	const uint64_t members = flow->group != 0 ? group_members_not_leaving(flow) : 1ull << flow->slot;
	const uint64_t eligible = mask_of_members_able_to_accept(owner, members, now);
	const uint32_t to = pick_slot_of_mask_by_key_hash(eligible != 0 ? eligible : members, &key);

	if (owner->worker[to].moves - atomic_load(&accept_page_of_slot(owner, to)->adopted) >= most)
		return false;
	group_hand_pending_to_member(owner, flow, to, pending,
	                             owner_record_write_pending_move(owner, XDP_NO_SLOT, to, pending), now);
	return true;
}

/* ---- what the owner before has left ---- */

/* By number: places are taken one after the other, so it is mostly the last. */
static void insert_pending_move_by_number(struct owner_slot_accept_progress *worker, struct owner_pending_move *move)
{
	const uint32_t number = move->pending.number;
	struct owner_pending_move **at = &worker->moving;

	if (worker->moving != NULL && (int32_t)(number - worker->last_move->pending.number) > 0)
		at = &worker->last_move->next;
	while (*at != NULL && (int32_t)((*at)->pending.number - number) < 0)
		at = &(*at)->next;
	move->next = *at;
	*at = move;
	if (move->next == NULL)
		worker->last_move = move;
	if ((int32_t)(number - worker->moves) > 0)
		worker->moves = number;
}

/* It was made, or has not begun, or its slot has gone. */
static bool recorded_move_is_void(struct xdp_owner *owner, const struct owner_record_pending *entry)
{
	const struct vma_flow_key key = pending_connection_key(&entry->pending);
	const enum owner_slot_state state = entry->to < XDP_SLOTS_MAX ? owner->slot[entry->to].state : SLOT_FREE;

	return (state != SLOT_RENTED && state != SLOT_LEAVING) ||
	       (int32_t)(entry->pending.number - atomic_load(&accept_page_of_slot(owner, entry->to)->adopted)) <= 0 ||
	       (entry->from < XDP_SLOTS_MAX && owner_slot_has_waiting_connection(owner, entry->from, &key)) ||
	       owner_connection_is_parked_at_slot(owner, &key, entry->to);
}

/* Moved on from a member that has died, and the move there was not forgotten any more. */
static void drop_superseded_move(struct xdp_owner *owner, const struct owner_record_pending *entry)
{
	struct owner_slot_accept_progress *worker = entry->from < XDP_SLOTS_MAX ? &owner->worker[entry->from] : NULL;
	const struct vma_flow_key key = pending_connection_key(&entry->pending);
	struct owner_pending_move **place = worker != NULL ? &worker->moving : NULL;

	if (worker == NULL)
		return;
	worker->last_move = NULL;
	while (*place != NULL) {
		struct owner_pending_move *move = *place;
		const struct vma_flow_key other = pending_connection_key(&move->pending);

		if (memcmp(&key, &other, sizeof(key)) != 0) {
			worker->last_move = move;
			place = &move->next;
			continue;
		}
		*place = move->next;
		owner_record_free_pending(owner, move->place);
		free(move);
	}
}

void owner_restore_pending_moves_from_record(struct xdp_owner *owner)
{
	for (uint32_t slot = 0; owner->members != NULL && slot < XDP_SLOTS_MAX; slot++)
		owner->worker[slot].moves = owner->worker[slot].sent =
		        atomic_load(&accept_page_of_slot(owner, slot)->adopted);
	for (uint32_t place = 0; owner->members != NULL && place < OWNER_RECORD_WAITING; place++) {
		struct owner_record_pending *entry = &owner->record->waiting[place];
		struct owner_pending_move *move = NULL;

		if (atomic_load(&entry->state) != RECORD_MOVING)
			continue;
		if (!recorded_move_is_void(owner, entry))
			move = malloc(sizeof(*move));
		if (move == NULL) {
			atomic_store(&entry->state, RECORD_NO_WAITING);
			continue;
		}
		owner_place_bitmap_set(&owner->waiting_places, place);
		move->place = place;
		memcpy(&move->pending, &entry->pending, sizeof(move->pending));
		insert_pending_move_by_number(&owner->worker[entry->to], move);
	}
	for (uint32_t place = 0; owner->members != NULL && place < OWNER_RECORD_WAITING; place++)
		if (atomic_load(&owner->record->waiting[place].state) == RECORD_MOVING)
			drop_superseded_move(owner, &owner->record->waiting[place]);
}

/* ---- what members say of themselves ---- */

/* Whether packets lie in the slot's receive rings, and how many were ever taken out. */
static bool slot_has_rx_packets(const struct owner_slot *slot, uint32_t queues, uint32_t *taken)
{
	bool any = false;

	*taken = 0;
	for (uint32_t queue = 0; slot->sockets_open && queue < queues; queue++) {
		const uint32_t consumer = atomic_load_explicit(slot->rx[queue].consumer, memory_order_relaxed);

		*taken += consumer;
		any |= consumer != atomic_load_explicit(slot->rx[queue].producer, memory_order_relaxed);
	}
	return any;
}

/* Whether a connection has waited for accept since before `before_ns`. */
static bool member_has_late_connection(const struct vma_nic_accept_page *member, uint64_t before_ns)
{
	bool late = false;

	for (uint32_t i = 0; i < VMA_PENDING_MAX && !late && atomic_load(&member->waiting) != 0; i++)
		late = atomic_load(&member->pending[i].state) == VMA_PENDING_QUEUED &&
		       member->pending[i].since_ns <= before_ns;
	return late;
}

static void check_member_progress(struct xdp_owner *owner, uint32_t slot, uint64_t now)
{
	const struct vma_nic_accept_page *member = accept_page_of_slot(owner, slot);
	struct owner_slot_accept_progress *worker = &owner->worker[slot];
	const uint32_t accept_calls = atomic_load(&member->accept_calls), accepted = atomic_load(&member->accepted);
	uint32_t taken;
	bool waits = slot_has_rx_packets(&owner->slot[slot], owner->queues, &taken);

	if (accept_calls != worker->accept_calls) {
		worker->accept_calls = accept_calls;
		worker->accept_call_ns = now;
		worker->stuck = false;
	}
	if (accepted != worker->accepted) {
		worker->accepted = accepted;
		worker->accepted_ns = now;
		worker->backoff_until_ns = 0;
	}
	if (!waits || taken != worker->rx_consumed) {
		worker->rx_consumed = taken;
		worker->rx_progress_ns = now;
	}
	worker->late = member_has_late_connection(member, now - TIMEOUT_NS);
	free_completed_pending_moves(owner, slot);
}

/* Of one that works for each connection for a while, what waits is late, too: that alone is no reason to move it. */
static void move_late_pending_conns_off_member(struct xdp_owner *owner, uint32_t slot, uint64_t now)
{
	struct owner_slot_accept_progress *worker = &owner->worker[slot];
	const bool accepted = now - worker->accepted_ns < TIMEOUT_NS;

	if (worker->late &&
	    move_slot_pending_conns_to_other_members(owner, slot, NULL, false, accepted ? IDLE : PROMPT,
	                                             now - TIMEOUT_NS, now) > 0 &&
	    !accepted)
		worker->backoff_until_ns = now + BACKOFF_NS;
}

static void move_pending_conns_off_stuck_member(struct xdp_owner *owner, uint32_t slot, uint64_t now)
{
	struct owner_slot_accept_progress *worker = &owner->worker[slot];
	const bool stopped = now - worker->rx_progress_ns >= TIMEOUT_NS;
	const uint64_t before = stopped ? UINT64_MAX : now - TIMEOUT_NS;

	if (!stopped && now - worker->accept_call_ns < TIMEOUT_NS)
		move_late_pending_conns_off_member(owner, slot, now);
	else if (move_slot_pending_conns_to_other_members(owner, slot, NULL, stopped, ANY, before, now) > 0)
		worker->stuck = true;
}

static void end_single_member_group(struct xdp_owner *owner, struct owner_flow *flow, uint64_t now)
{
	if ((flow->members & (flow->members - 1)) != 0 || flow->rule.flags & VMA_FLOW_INHERITED ||
	    now - flow->grouped_ns < RECENT_NS ||
	    xdp_prog_flow_set_listener_group(owner->prog, &flow->rule.key, flow->slot, 0) < 0)
		return;
	owner_group_end(owner, flow);
}

/* In two rounds: what is moved goes to those that have asked by now. */
void owner_groups_check_and_rebalance(struct xdp_owner *owner, uint64_t now)
{
	uint64_t members = 0;

	if (owner->groups == 0 || now - owner->groups_checked_ns < OWNER_GROUPS_NS)
		return;
	owner->groups_checked_ns = now;
	for (uint32_t b = 0; b < OWNER_FLOW_BUCKETS; b++)
		for (const struct owner_flow *flow = owner->flow[b]; flow != NULL; flow = flow->next)
			members |= flow->members;
	for (uint64_t left = members; left != 0; left &= left - 1)
		check_member_progress(owner, first_slot_of_mask(left), now);
	for (uint64_t left = members; left != 0; left &= left - 1)
		move_pending_conns_off_stuck_member(owner, first_slot_of_mask(left), now);
	for (uint32_t b = 0; b < OWNER_FLOW_BUCKETS; b++) {
		for (struct owner_flow *flow = owner->flow[b]; flow != NULL; flow = flow->next) {
			if (flow->group == 0)
				continue;
			group_reassign_hash_buckets(owner, flow, now);
			end_single_member_group(owner, flow, now);
		}
	}
}
