/*
 * resets - the peers of a process that died are told. Each connection that had a flow here is probed, so that the
 * peer's answer can be reset.
 *
 *   client died ──> at once ──> SYN ──> 0.6 s later: two ACKs outside the window ──> forgotten
 *   client left, its process lives: the same when it dies, or 2 s later if it has not come back with its flows by then
 *
 * The second round is for lost segments, and for a peer that limits such answers to one in half a second. Its two ACKs
 * are half the sequence space apart, so one of them is outside any window. By then the peer's port may be free or
 * listen again. An ACK out of nowhere is answered by RST there, while a SYN would begin a connection. A connection that
 * has a flow again is not probed. Nor is one whose minisock is over: the peer has reset it, or begun another one. The
 * peers' answers meet the connections' minisocks (minisocks.c), which reset them.
 *
 * A listener has no peer to be probed. It is noted only while its process may be back: if that has died instead, the
 * listener's minisock refuses at once, as the kernel would.
 *
 * The record (record.h) has each of them with its list. A new vmad goes on with the lists. A probe that was due, or
 * about to be, is due at once, and the other delays begin again. So a peer may be told twice, which makes no
 * difference.
 *
 * A process that ends in good order leaves its connections as minisocks first. Those that it had to cut are probed,
 * too.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <vma/log.h>

#include "../os.h"
#include "owner.h"

#define LATER_NS 2000000000ull
#define AGAIN_NS 600000000ull
#define PACE_NS 1000000ull
#define PER_PACE 64 /* 64,000 a second */

enum { NOW, LATER, AGAIN }; /* lists: in each the delay is the same, so they are in order */

struct owner_pending_reset {
	struct owner_pending_reset *next;
	struct vma_flow_key key;
	uint32_t slot;
	uint32_t place; /* in the record */
	uint64_t due_ns;
};

static void resets_append(struct owner_reset_queue *resets, unsigned list, struct owner_pending_reset *reset,
                          uint64_t due_ns)
{
	reset->next = NULL;
	reset->due_ns = due_ns;
	if (resets->first[list] == NULL)
		resets->first[list] = reset;
	else
		resets->last[list]->next = reset;
	resets->last[list] = reset;
}

static void reset_free_entry(struct xdp_owner *owner, struct owner_pending_reset *reset)
{
	owner->resets.count--;
	owner_record_free_reset(owner, reset->place);
	free(reset);
}

/* To another list. */
static void resets_move_to_list(struct xdp_owner *owner, unsigned list, struct owner_pending_reset *reset,
                                uint64_t due_ns)
{
	owner_record_set_reset_list(owner, reset->place, list);
	resets_append(&owner->resets, list, reset, due_ns);
}

void owner_resets_add(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key, bool dead)
{
	struct owner_reset_queue *resets = &owner->resets;
	struct owner_pending_reset *reset = resets->count < OWNER_FLOWS_MAX ? malloc(sizeof(*reset)) : NULL;
	const uint64_t now = owner_now_ns();

	if (reset == NULL) {
		vma_log_once(VMA_LOG_WARN, "%s: too many connections of ended processes: peers are not told of all",
		             owner->name);
		return;
	}
	reset->key = *key;
	reset->slot = slot;
	reset->place = owner_record_add_pending_reset(owner, key, slot, dead ? NOW : LATER);
	resets->count++;
	resets_append(resets, dead ? NOW : LATER, reset, dead ? now : now + LATER_NS);
}

void owner_resets_load_record(struct xdp_owner *owner)
{
	const uint64_t now = owner_now_ns();
	const uint64_t due_ns[OWNER_RESET_LISTS] = {[NOW] = now, [LATER] = now + LATER_NS, [AGAIN] = now + AGAIN_NS};

	for (uint32_t place = 0; place < OWNER_RECORD_RESETS; place++) {
		struct owner_record_reset *entry = &owner->record->reset[place];
		const uint32_t list = atomic_load(&entry->list) - 1;
		struct owner_pending_reset *reset = list < OWNER_RESET_LISTS ? malloc(sizeof(*reset)) : NULL;

		if (reset == NULL) {
			if (list != UINT32_MAX)
				atomic_store(&entry->list, 0);
			continue;
		}
		*reset = (struct owner_pending_reset){.key = entry->key, .slot = entry->slot, .place = place};
		owner_place_bitmap_set(&owner->reset_places, place);
		owner->resets.count++;
		resets_append(&owner->resets, list, reset, due_ns[list]);
	}
}

static bool resets_has_peer(const struct vma_flow_key *key)
{
	return key->peer_port_be != 0;
}

/* A process that is killed closes its connection to us before it has ended: first it has only left. */
void owner_resets_send_now_for_dead_slot(struct xdp_owner *owner, uint32_t slot)
{
	struct owner_reset_queue *resets = &owner->resets;
	struct owner_pending_reset *reset = resets->first[LATER];
	const uint64_t now = owner_now_ns();

	resets->first[LATER] = NULL;
	while (reset != NULL) {
		struct owner_pending_reset *next = reset->next;

		if (reset->slot != slot) {
			resets_append(resets, LATER, reset, reset->due_ns);
		} else {
			owner_minisock_reset_waiting(&owner->minisocks, &reset->key, now);
			if (resets_has_peer(&reset->key))
				resets_move_to_list(owner, NOW, reset, now);
			else
				reset_free_entry(owner, reset);
		}
		reset = next;
	}
}

static bool resets_open_socket(struct xdp_owner *owner)
{
	struct owner_reset_queue *resets = &owner->resets;
	int fd;

	if (resets->is_open)
		return true;
	fd = owner_open_raw_ip_socket();
	if (fd < 0) {
		vma_log_once(VMA_LOG_WARN, "%s: peers of ended processes are not told: no raw socket: %s", owner->name,
		             strerrordesc_np(-fd));
		return false;
	}
	resets->fd = fd;
	resets->is_open = true;
	if (getrandom(&resets->seq, sizeof(resets->seq), GRND_NONBLOCK) != sizeof(resets->seq))
		resets->seq = (uint32_t)owner_now_ns();
	return true;
}

static void resets_close_socket(struct owner_reset_queue *resets)
{
	if (resets->is_open)
		os_close(resets->fd);
	resets->is_open = false;
}

/* False: no room in the kernel now. Any other failure (no route, a firewall) is what the peer's silence would be. */
static bool resets_send_probe_to_peer(struct xdp_owner *owner, unsigned list, const struct vma_flow_key *key)
{
	struct owner_reset_queue *resets = &owner->resets;
	const uint32_t seq = resets->seq;
	int rc;

	rc = owner_probe_send(resets->fd, owner->ifindex, key, list != AGAIN, seq);
	if (rc == 0 && list == AGAIN)
		rc = owner_probe_send(resets->fd, owner->ifindex, key, false, seq + (1u << 31));
	if (rc == -EAGAIN || rc == -ENOBUFS)
		return false;
	resets->seq += 0x9e3779b9;
	return true;
}

static unsigned resets_send_due_probes(struct xdp_owner *owner, unsigned list, uint64_t now, unsigned left)
{
	struct owner_reset_queue *resets = &owner->resets;

	while (left > 0 && resets->first[list] != NULL && resets->first[list]->due_ns <= now) {
		struct owner_pending_reset *reset = resets->first[list];
		const bool over = !resets_has_peer(&reset->key) || owner_flow_exists(owner, &reset->key) ||
		                  !owner_minisock_is_waiting_or_reset(&owner->minisocks, &reset->key);

		if (!over && !resets_send_probe_to_peer(owner, list, &reset->key))
			return 0;
		if (!over && list == LATER)
			owner_minisock_reset_waiting(&owner->minisocks, &reset->key, now);
		resets->first[list] = reset->next;
		if (over || list == AGAIN)
			reset_free_entry(owner, reset);
		else
			resets_move_to_list(owner, AGAIN, reset, now + AGAIN_NS);
		left--;
	}
	return left;
}

static void resets_free_all(struct xdp_owner *owner)
{
	struct owner_reset_queue *resets = &owner->resets;

	for (unsigned list = 0; list < OWNER_RESET_LISTS; list++) {
		while (resets->first[list] != NULL) {
			struct owner_pending_reset *reset = resets->first[list];

			resets->first[list] = reset->next;
			reset_free_entry(owner, reset);
		}
	}
}

void owner_resets_send_due(struct xdp_owner *owner, uint64_t now)
{
	struct owner_reset_queue *resets = &owner->resets;
	unsigned left = PER_PACE;

	if (resets->count == 0 || now < resets->pace_ns)
		return;
	if (!resets_open_socket(owner)) {
		resets_free_all(owner);
		return;
	}
	for (unsigned list = 0; list < OWNER_RESET_LISTS && left > 0; list++)
		left = resets_send_due_probes(owner, list, now, left);
	resets->pace_ns = left == 0 ? now + PACE_NS : 0;
	if (resets->count == 0)
		resets_close_socket(resets);
}

uint64_t owner_resets_due_ns(const struct xdp_owner *owner)
{
	const struct owner_reset_queue *resets = &owner->resets;
	uint64_t due = UINT64_MAX;

	for (unsigned list = 0; list < OWNER_RESET_LISTS; list++)
		if (resets->first[list] != NULL && resets->first[list]->due_ns < due)
			due = resets->first[list]->due_ns;
	return due < resets->pace_ns ? resets->pace_ns : due;
}

void owner_resets_fini(struct xdp_owner *owner)
{
	resets_free_all(owner);
	resets_close_socket(&owner->resets);
}
