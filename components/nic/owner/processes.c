/*
 * processes.c - which slots are one process's: it may have several queue pairs of an interface.
 *
 * vmad names the process of each slot (xdp_owner_record_tenant_of_slot). An owner that lives in the process that uses
 * it names none, and all slots are that process's. A process that has no number here is one of its own for each slot.
 */
#include "owner.h"
#include "../xdp/shared.h"

bool owner_same_process(const struct xdp_owner *owner, uint32_t a, uint32_t b)
{
	return owner->process[a] == owner->process[b];
}

/* The first slot of a process that is not free counts. */
void owner_count_client_processes(struct xdp_owner *owner)
{
	uint32_t n = 0;

	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX; slot++) {
		uint32_t first = 0;

		while (owner->slot[first].state == SLOT_FREE || !owner_same_process(owner, first, slot))
			if (first++ == slot)
				break;
		n += first == slot;
	}
	atomic_store(&owner->shared->tenants, n);
}

void owner_set_process_of_slot(struct xdp_owner *owner, uint32_t slot, int32_t pid)
{
	owner->process[slot] = pid > 0 ? pid : -(int32_t)slot - 1;
	owner_count_client_processes(owner);
}
