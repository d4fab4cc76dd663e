/*
 * state - what root, and the user that vmad runs as, may know of it: one answer for each place. The interface has place
 * 0, peers and slots have the places behind it. The asking peer itself is not among them, unless it rents.
 */
#include <errno.h>

#include "card.h"
#include "server.h"

#define PEER_AT 1
#define SLOT_AT (PEER_AT + VMAD_PEERS_MAX)
#define PLACES (SLOT_AT + XDP_SLOTS_MAX)

#define X(name, text) +1
_Static_assert(VMA_VMAD_CLIENTS_MAX == VMAD_PEERS_MAX && VMA_VMAD_QUEUE_PAIRS_MAX == XDP_SLOTS_MAX, "room for all");
_Static_assert(VMAD_STATE_PLACES == PLACES, "clients ask for no more");
_Static_assert(0 VMA_VMAD_CLIENT_STATES(X) == PEER_CLOSING + 1, "the states of a peer");
#undef X

static bool describe_peer(const struct vmad_server *server, const struct vmad_peer *asks, unsigned number,
                          struct vma_vmad_client *out)
{
	const struct vmad_peer *peer = &server->peer[number];

	if (peer->state == PEER_NONE || (peer == asks && peer->slots == 0))
		return false;
	*out = (struct vma_vmad_client){
	        .pid = peer->pid, .uid = peer->uid, .state = peer->state, .raw = peer->raw, .queue_pairs = peer->slots};
	return true;
}

/* False: nothing is there. */
static bool vmad_fill_state_entry_at_place(const struct vmad_server *server, const struct vmad_peer *asks,
                                           uint32_t place, struct vmad_msg_state *out)
{
	out->place = place;
	if (place >= SLOT_AT)
		return xdp_owner_fill_slot_report(server->owner, place - SLOT_AT, &out->queue_pair);
	if (place >= PEER_AT)
		return describe_peer(server, asks, place - PEER_AT, &out->client);
	xdp_owner_fill_interface_report(server->owner, &out->interface);
	vmad_card_add_minisock_counts(server->card, &out->interface);
	return true;
}

int vmad_fill_next_state_entry(const struct vmad_server *server, const struct vmad_peer *asks, uint32_t from,
                               struct vmad_msg_state *out)
{
	for (uint32_t place = from; place < PLACES; place++)
		if (vmad_fill_state_entry_at_place(server, asks, place, out))
			return 0;
	return -ENOENT;
}
