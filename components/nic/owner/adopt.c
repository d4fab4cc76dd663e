/*
 * adopt - an owner in place of a dead one. It is made from the descriptors that the descriptor store has handed over,
 * the record in one of them, and the kernel's state.
 *
 *   program, maps, link      as they are; the map's entries say which flows and minisocks there are
 *   packet memory, sockets   as they are; the fill and completion rings are shared with the clients all the time
 *   slots                    from the record; rings left in the middle of a take-back are looked through again
 *   frames                   owner_frames_take_over_from_fdstore
 *   groups                   the program's; members and shadows from the record
 *   shadows of other flows   each client names them again when it comes back (VMAD_RESUME); until then kernel socks
 *                            are not looked for. A flow that is not named within ten seconds ends
 *   flow waiters             clients ask again
 *   resets                   from the record
 *   connections that wait    from the record, their minisocks and their listeners' pages (parked.c, groups.c)
 *   for accept
 *
 * No packet that comes meanwhile undoes anything here: the program is at work all the time.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vma/log.h>

#include "../os.h"
#include "owner.h"
#include "../xdp/shared.h"

static int adopt_take_fdstore_fd(struct fdstore_fds *hand, uint32_t place)
{
	const int fd = nic_fd_move_high(hand->fd[place]);

	hand->fd[place] = -1;
	return fd;
}

/* ---- the record ---- */

static bool record_has_this_version_layout(const struct owner_record *record)
{
	return record->magic == OWNER_RECORD_MAGIC && record->version == OWNER_RECORD_VERSION &&
	       record->bytes == sizeof(*record) && record->shared_bytes == XDP_OBJECT_BYTES &&
	       record->shared_version == XDP_SHARED_VERSION && record->variables_bytes == xdp_prog_variables_bytes() &&
	       atomic_load(&record->whole) == 1;
}

static bool record_matches_owner(const struct xdp_owner *owner, const struct owner_record *record)
{
	return record->ifindex == owner->ifindex && record->queues == owner->queues && record->queue_frames > 0 &&
	       (record->queue_frames & (record->queue_frames - 1)) == 0 &&
	       record->nframes == record->queue_frames * record->queues && record->nframes <= XDP_FRAMES_MAX &&
	       record->rx_frames > 0 && record->rx_frames < record->queue_frames;
}

static int map_record_from_fdstore(struct xdp_owner *owner, struct fdstore_fds *hand)
{
	struct owner_record *record;
	struct stat st;

	owner->record_fd = adopt_take_fdstore_fd(hand, KEEP_RECORD);
	owner->alive_fd = adopt_take_fdstore_fd(hand, KEEP_ALIVE);
	owner->alive_read_fd = adopt_take_fdstore_fd(hand, KEEP_ALIVE_READ);
	if (owner->record_fd < 0 || owner->alive_fd < 0 || owner->alive_read_fd < 0 ||
	    fstat(owner->record_fd, &st) < 0 || (size_t)st.st_size != sizeof(*record))
		return -EPROTO;
	record = mmap(NULL, sizeof(*record), PROT_READ | PROT_WRITE, MAP_SHARED, owner->record_fd, 0);
	if (record == MAP_FAILED)
		return -errno;
	madvise(record, sizeof(*record), MADV_DONTFORK);
	owner->record = record;
	if (!record_has_this_version_layout(record) || !record_matches_owner(owner, record))
		return -EPROTO;
	owner->nframes = record->nframes;
	owner->queue_frames = record->queue_frames;
	owner->rx_frames = record->rx_frames;
	owner->clock_ms = record->clock_ms;
	memcpy(owner->isn_key, record->isn_key, sizeof(owner->isn_key));
	owner->multi_buffer = record->multi_buffer != 0;
	owner->tx_csum = record->tx_csum != 0;
	owner->generic = record->generic != 0;
	return 0;
}

static int take_over_xdp_prog_from_fdstore(struct xdp_owner *owner, struct fdstore_fds *hand)
{
	int fds[XDP_PROG_FDS];

	memcpy(fds, hand->fd + KEEP_PROG, sizeof(fds));
	for (unsigned i = 0; i < XDP_PROG_FDS; i++)
		hand->fd[KEEP_PROG + i] = -1;
	return xdp_prog_adopt(owner->ifindex, owner->queues, fds, &hand->fd[KEEP_LINK], owner->generic, &owner->prog);
}

/* ---- slots ---- */

static int restore_slots_from_record(struct xdp_owner *owner)
{
	for (uint32_t index = 0; index < XDP_SLOTS_MAX; index++) {
		const struct owner_record_slot *entry = &owner->record->slot[index];
		struct owner_slot *slot = &owner->slot[index];
		const uint32_t state = atomic_load(&entry->state);

		if (state == SLOT_FREE)
			continue;
		if (state > SLOT_DRAINING || entry->tx_first >= owner->nframes ||
		    entry->tx_count > owner->nframes - entry->tx_first || entry->rx_size > OWNER_RX_MAX)
			return -EPROTO;
		slot->state = (enum owner_slot_state)state;
		slot->rx_size = entry->rx_size;
		slot->rx_quota = entry->rx_quota;
		slot->rx_promised = entry->rx_promised;
		slot->tx_size = entry->tx_size;
		slot->tx_first = entry->tx_first;
		slot->tx_count = entry->tx_count;
		slot->drain_since_ns = owner_now_ns();
		owner->process[index] = entry->tenant.pid > 0 ? entry->tenant.pid : -(int32_t)index - 1;
		owner->slots_used++;
	}
	return 0;
}

static int take_over_slot_sockets_from_fdstore(struct xdp_owner *owner, struct fdstore_fds *hand, uint32_t index)
{
	struct owner_slot *slot = &owner->slot[index];
	int rc = 0;

	owner->process_fd[index] = adopt_take_fdstore_fd(hand, KEEP_PROCESS + index);
	for (uint32_t queue = 0; queue < owner->queues; queue++) {
		slot->socket_fd[queue] = adopt_take_fdstore_fd(hand, fdstore_index_of_queue_socket(index, queue));
		if (slot->socket_fd[queue] < 0)
			rc = -ENOENT;
	}
	slot->sockets_open = true;
	for (uint32_t queue = 0; queue < owner->queues && rc == 0; queue++)
		rc = xdp_sock_map_queue_rings(slot->socket_fd[queue], slot->rx_size, slot->tx_size, &slot->rx[queue],
		                              &slot->tx[queue]);
	return rc;
}

/*
 * A slot that was being taken back has lost its sockets to the fdstore last of all: without them its rings were looked
 * through, and what it held is taken now. One that is rented has them, or is of no use to its client.
 */
static void restore_slot_sockets_or_reclaim(struct xdp_owner *owner, struct fdstore_fds *hand)
{
	for (uint32_t index = 0; index < XDP_SLOTS_MAX; index++) {
		struct owner_slot *slot = &owner->slot[index];

		if (slot->state == SLOT_FREE || take_over_slot_sockets_from_fdstore(owner, hand, index) == 0)
			continue;
		owner_close_slot_xdp_sockets(owner, index);
		if (slot->state != SLOT_DRAINING)
			vma_log_warn("%s: the sockets of slot %u are lost", owner->name, index);
		xdp_owner_take_back_slot(owner, index, true);
		owner_reclaim_frames_of_slot(owner, index);
	}
	owner_count_client_processes(owner);
}

/* ---- flows ---- */

struct walk {
	struct xdp_owner *owner;
	struct owner_flow *orphans; /* of slots that are free */
};

static bool slot_is_in_use(const struct xdp_owner *owner, uint32_t slot)
{
	return slot < XDP_SLOTS_MAX && owner->slot[slot].state != SLOT_FREE;
}

static uint64_t owner_rented_slots_mask(const struct xdp_owner *owner)
{
	uint64_t slots = 0;

	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX; slot++)
		if (owner->slot[slot].state == SLOT_RENTED || owner->slot[slot].state == SLOT_LEAVING)
			slots |= 1ull << slot;
	return slots;
}

static int restore_flow_or_minisock_from_map(void *arg, const struct xdp_flow_map_entry *entry)
{
	struct walk *walk = arg;
	struct xdp_owner *owner = walk->owner;
	struct owner_flow *flow;

	if (entry->is_minisock) {
		owner_restore_minisock_from_record(owner, &entry->key, entry->slot);
		return 0;
	}
	flow = calloc(1, sizeof(*flow));
	if (flow == NULL)
		return -ENOMEM;
	flow->rule = (struct vma_flow_rule){.key = entry->key, .flags = entry->is_listener ? VMA_FLOW_LISTENER : 0};
	flow->slot = entry->slot;
	if (!slot_is_in_use(owner, entry->slot)) {
		flow->next = walk->orphans;
		walk->orphans = flow;
		return 0;
	}
	if (entry->group != 0 && entry->group < XDP_GROUPS) {
		const uint64_t members =
		        owner_record_load_group(owner, flow, entry->group) & owner_rented_slots_mask(owner);

		owner_restore_group_of_flow(owner, flow, entry->group, members | 1ull << flow->slot);
	}
	if (entry->spread != 0)
		owner_restore_spread_udp_flow(owner, flow, entry->spread, owner_rented_slots_mask(owner));
	if (entry->in_grace)
		owner_insert_restored_flow_in_grace(owner, flow);
	else
		owner_insert_restored_flow(owner, flow);
	return 0;
}

/* Flows of slots that are on their way out end as they would have. */
static int restore_flows_from_xdp_map(struct xdp_owner *owner)
{
	struct walk walk = {.owner = owner};
	const int rc = xdp_prog_for_each_flow(owner->prog, restore_flow_or_minisock_from_map, &walk);

	while (walk.orphans != NULL) {
		struct owner_flow *flow = walk.orphans;

		walk.orphans = flow->next;
		xdp_prog_flow_del(owner->prog, &flow->rule.key);
		free(flow);
	}
	owner_restore_parked_from_record(owner);
	owner_restore_pending_moves_from_record(owner);
	owner_park_listeners_of_dead_clients(owner);
	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX && rc == 0; slot++)
		if (owner->slot[slot].state == SLOT_LEAVING || owner->slot[slot].state == SLOT_DRAINING)
			owner_slot_release_flows_and_claims(owner, slot, owner->slot[slot].state == SLOT_DRAINING);
	return rc;
}

/* The link may have been made, or cut, when the owner before was killed. */
static int sync_xdp_attachment_with_flows(struct xdp_owner *owner)
{
	bool generic;
	int rc = 0;

	if (owner->flows > 0 && !xdp_prog_attached(owner->prog)) {
		rc = xdp_prog_attach(owner->prog, &generic);
		owner->generic = rc == 0 && generic;
		owner_claims_publish_and_enable(owner);
	}
	if (owner->flows == 0 && xdp_prog_attached(owner->prog))
		owner->unused_since_ns = owner_now_ns();
	return rc;
}

int xdp_owner_take_over_from_fdstore(const struct xdp_owner_attr *attr, struct fdstore *fdstore,
                                     struct fdstore_fds *hand, struct xdp_owner **out)
{
	struct xdp_owner *owner = owner_new(attr->ifindex);
	int rc;

	if (owner == NULL)
		return -ENOMEM;
	rc = owner_read_mtu_and_queue_count(owner);
	if (rc == 0)
		rc = map_record_from_fdstore(owner, hand);
	if (rc == 0)
		rc = take_over_xdp_prog_from_fdstore(owner, hand);
	if (rc == 0 && attr->minisocks)
		rc = owner_minisocks_open(owner);
	if (rc == 0)
		rc = restore_slots_from_record(owner);
	if (rc == 0)
		rc = owner_frames_take_over_from_fdstore(owner, hand);
	if (rc < 0) {
		xdp_owner_destroy(owner);
		return rc;
	}
	owner->adopted_ns = owner_now_ns();
	xdp_prog_set_port_bitmap(owner->prog, owner->shared->named);
	owner_claims_init(owner);
	owner->link_fd = owner_open_link_events();
	owner->fdstore = fdstore;
	owner->stored_link_fd = xdp_prog_link_fd(owner->prog);
	restore_slot_sockets_or_reclaim(owner, hand);
	owner_resets_load_record(owner); /* before more are noted */
	rc = restore_flows_from_xdp_map(owner);
	if (rc == 0)
		rc = sync_xdp_attachment_with_flows(owner);
	if (rc < 0) {
		owner->fdstore = NULL;
		xdp_owner_destroy(owner);
		return rc;
	}
	owner_fdstore_keep_xdp_link(owner);
	*out = owner;
	return 0;
}
