/*
 * minisock_map - the owner's minisocks: they have their places in the program's map.
 *
 * The program tells what comes for them (xdp/steer.bpf.c). If the map is full, the oldest make way. The record has
 * each, for another owner. Only an owner that outlives its clients has minisocks (attr.minisocks: vmad). Otherwise a
 * flow that ends is deleted.
 */
#include <stddef.h>
#include <stdlib.h>

#include "owner.h"
#include "../xdp/flow.h"

static struct xdp_owner *owner_of_minisocks(struct owner_minisocks *minisocks)
{
	return (struct xdp_owner *)((char *)minisocks - offsetof(struct xdp_owner, minisocks));
}

static int minisock_map_put(struct owner_minisocks *minisocks, const struct owner_minisock *minisock, bool in_place)
{
	return xdp_prog_minisock_set(owner_of_minisocks(minisocks)->prog, &minisock->key, minisock->number, in_place);
}

static void minisock_map_del(struct owner_minisocks *minisocks, const struct vma_flow_key *key)
{
	xdp_prog_flow_del(owner_of_minisocks(minisocks)->prog, key);
}

static void minisock_map_write_to_record(struct owner_minisocks *minisocks, const struct owner_minisock *minisock)
{
	owner_record_write_minisock(owner_of_minisocks(minisocks), minisock);
}

static void minisock_free_record_and_parked(struct owner_minisocks *minisocks, struct owner_minisock *minisock)
{
	struct xdp_owner *owner = owner_of_minisocks(minisocks);

	owner_record_free_minisock(owner, minisock->number);
	owner_free_parked_of_minisock(owner, minisock);
}

static void minisock_reset_parked_connection(struct owner_minisocks *minisocks, struct owner_minisock *minisock,
                                             uint64_t now)
{
	owner_parked_reset_connection(owner_of_minisocks(minisocks), minisock, now);
}

static const struct owner_minisocks_ops minisock_map_ops = {
        .put = minisock_map_put,
        .del = minisock_map_del,
        .record = minisock_map_write_to_record,
        .forget = minisock_free_record_and_parked,
        .unpark = minisock_reset_parked_connection,
};

/* Its life begins again. */
void owner_restore_minisock_from_record(struct xdp_owner *owner, const struct vma_flow_key *key, uint32_t number)
{
	const struct owner_record_minisock *recorded = owner_record_find_minisock(owner, number);
	struct owner_minisock *minisock = calloc(1, sizeof(*minisock));

	if (minisock == NULL)
		return;
	minisock->key = *key;
	minisock->number = number;
	minisock->state = MINISOCK_DELETED;
	if (recorded != NULL) {
		const uint64_t known = atomic_load(&recorded->state);

		if ((uint32_t)known < MINISOCK_STATES)
			minisock->state = (enum owner_minisock_state)(uint32_t)known;
		if (minisock->state == MINISOCK_PARKED)
			minisock->state = MINISOCK_RESET; /* until owner_restore_parked_from_record */
		minisock->snd_nxt = recorded->snd_nxt;
		minisock->rcv_nxt = (uint32_t)(known >> 32);
	}
	owner_minisock_insert(&owner->minisocks, minisock, owner_now_ns());
}

static int minisock_on_segment_from_xdp(void *arg, void *segment, size_t bytes)
{
	struct xdp_owner *owner = arg;

	return bytes < sizeof(struct xdp_minisock_segment)
	               ? 0
	               : owner_minisocks_handle_segment(&owner->minisocks, segment, owner_now_ns());
}

void owner_minisocks_read_segments_and_expire(struct xdp_owner *owner, uint64_t now)
{
	struct owner_minisocks *minisocks = &owner->minisocks;

	if (!minisocks->on)
		return;
	minisocks->reads = OWNER_MINISOCK_READS;
	xdp_prog_consume_minisock_segments(owner->prog);
	owner_minisocks_expire(minisocks, now);
}

int owner_minisocks_open(struct xdp_owner *owner)
{
	const int rc = xdp_prog_open_minisock_segment_ring(owner->prog, minisock_on_segment_from_xdp, owner);

	if (rc == 0)
		owner_minisocks_init(&owner->minisocks, &minisock_map_ops, owner->ifindex, owner->name);
	return rc;
}
