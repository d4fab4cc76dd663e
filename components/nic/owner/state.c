/* state - what an owner has at this moment, for readers. The shared object's part of it is what clients have written.
 * */
#include "owner.h"
#include "../xdp/claims.h"
#include "../xdp/shared.h"

#define X(name, text) +1
_Static_assert(0 VMA_VMAD_MINISOCKS(X) == MINISOCK_STATES, "as enum owner_minisock_state");
_Static_assert(0 VMA_VMAD_QUEUE_PAIR_STATES(X) == SLOT_DRAINING + 1, "as enum owner_slot_state");
#undef X

static uint32_t count_claims(const struct xdp_owner *owner, uint32_t slot)
{
	return owner->claims != NULL ? xdp_claims_count_of_slot(owner->claims, slot) : 0;
}

static void state_fill_frame_counts(const struct xdp_owner *owner, struct vma_vmad_interface *out)
{
	out->rx_frames = owner->rx_frames * owner->queues;
	out->tx_frames = (owner->queue_frames - owner->rx_frames) * owner->queues;
	out->rx_missing = owner_missing_frame_count(owner);
	for (uint32_t queue = 0; queue < owner->queues; queue++) {
		const struct owner_device_queue *q = &owner->queue[queue];
		const uint32_t ready = xdp_load(q->fill.producer) - xdp_load(q->fill.consumer);

		out->rx_ready += ready < owner->rx_frames ? ready : owner->rx_frames;
		out->rx_spare += q->spares;
	}
}

void xdp_owner_fill_interface_report(const struct xdp_owner *owner, struct vma_vmad_interface *out)
{
	*out = (struct vma_vmad_interface){
	        .queues = owner->queues,
	        .mtu = owner->mtu,
	        .generic = owner->generic,
	        .queue_pairs = owner->slots_used,
	        .flows = owner->flows,
	        .waiters = owner->waiters,
	        .resets = owner->resets.count,
	        .parked = owner->parked,
	        .minisocks_deleted = owner_minisocks_count_in_state(&owner->minisocks, MINISOCK_DELETED),
	        .minisocks_waits = owner_minisocks_count_in_state(&owner->minisocks, MINISOCK_WAITS),
	        .minisocks_parked = owner_minisocks_count_in_state(&owner->minisocks, MINISOCK_PARKED),
	        .minisocks_reset = owner_minisocks_count_in_state(&owner->minisocks, MINISOCK_RESET),
	        .minisocks_fin_wait = owner_minisocks_count_in_state(&owner->minisocks, MINISOCK_FIN_WAIT),
	        .minisocks_time_wait = owner_minisocks_count_in_state(&owner->minisocks, MINISOCK_TIME_WAIT),
	};
	if (owner->claims != NULL)
		out->claims = xdp_claims_count_all(owner->claims);
	state_fill_frame_counts(owner, out);
}

bool xdp_owner_fill_slot_report(const struct xdp_owner *owner, uint32_t number, struct vma_vmad_queue_pair *out)
{
	const struct owner_slot *slot = &owner->slot[number];

	if (number >= XDP_SLOTS_MAX || slot->state == SLOT_FREE)
		return false;
	*out = (struct vma_vmad_queue_pair){
	        .number = number,
	        .state = slot->state,
	        .flows = slot->flows,
	        .claims = count_claims(owner, number),
	        .waiters = slot->waiters,
	        .rx_entries = slot->rx_size,
	        .rx_held = xdp_shared_count_frames_held_by_slot(owner->shared, number, owner->nframes),
	        .rx_quota = slot->rx_quota,
	        .tx_entries = slot->tx_size,
	        .tx_frames = slot->tx_count,
	        .tx_in_flight = xdp_shared_count_in_flight(owner->shared, slot->tx_first, slot->tx_count),
	};
	return true;
}
