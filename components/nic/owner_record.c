/*
 * owner_record - the owner's record for the next owner, and what its descriptor store holds: see owner_record.h,
 * keeper.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nic_os.h"
#include "owner_priv.h"
#include "xdp_shared.h"

/* ---- life ---- */

int owner_record_init(struct xdp_owner *owner)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	owner->look_fd = nic_fd_keep(ends[0]);
	owner->alive_fd = nic_fd_keep(ends[1]);
	owner->record_fd = nic_fd_keep(memfd_create("vma-record", MFD_CLOEXEC));
	if (owner->record_fd < 0 || ftruncate(owner->record_fd, sizeof(struct owner_record)) < 0)
		return -errno;
	owner->record =
	        mmap(NULL, sizeof(struct owner_record), PROT_READ | PROT_WRITE, MAP_SHARED, owner->record_fd, 0);
	if (owner->record == MAP_FAILED) {
		owner->record = NULL;
		return -errno;
	}
	madvise(owner->record, sizeof(struct owner_record), MADV_DONTFORK);
	return 0;
}

void owner_record_whole(struct xdp_owner *owner)
{
	struct owner_record *record = owner->record;

	if (record == NULL)
		return;
	record->magic = OWNER_RECORD_MAGIC;
	record->version = OWNER_RECORD_VERSION;
	record->bytes = sizeof(*record);
	record->shared_bytes = XDP_OBJECT_BYTES;
	record->shared_version = XDP_SHARED_VERSION;
	record->variables_bytes = (uint32_t)xdp_prog_variables_bytes();
	record->ifindex = owner->ifindex;
	record->queues = owner->queues;
	record->nframes = owner->nframes;
	record->queue_frames = owner->queue_frames;
	record->rx_frames = owner->rx_frames;
	record->clock_ms = owner->clock_ms;
	memcpy(record->isn_key, owner->isn_key, sizeof(record->isn_key));
	record->multi_buffer = owner->multi_buffer;
	record->tx_csum = owner->tx_csum;
	atomic_store(&record->whole, 1);
}

void owner_record_fini(struct xdp_owner *owner)
{
	if (owner->record != NULL)
		munmap(owner->record, sizeof(*owner->record));
	if (owner->record_fd >= 0)
		nic_fd_close(owner->record_fd);
	if (owner->alive_fd >= 0)
		nic_fd_close(owner->alive_fd);
	if (owner->look_fd >= 0)
		nic_fd_close(owner->look_fd);
	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX; slot++)
		if (owner->process_fd[slot] >= 0)
			nic_fd_close(owner->process_fd[slot]);
}

/* ---- entries ---- */

/* One that is there already changes by single words: what it was in between makes no difference to who adopts it. */
void owner_record_slot(struct xdp_owner *owner, uint32_t index)
{
	const struct owner_slot *slot = &owner->slot[index];
	struct owner_record_slot *entry;

	if (owner->record == NULL)
		return;
	entry = &owner->record->slot[index];
	entry->rx_size = slot->rx_size;
	entry->rx_quota = slot->rx_quota;
	entry->rx_promised = slot->rx_promised;
	entry->tx_size = slot->tx_size;
	entry->tx_first = slot->tx_first;
	entry->tx_count = slot->tx_count;
	atomic_store(&entry->state, slot->state);
}

void owner_record_members(struct xdp_owner *owner, const struct owner_flow *flow)
{
	if (owner->record != NULL && flow->group != 0)
		atomic_store(&owner->record->members[flow->group], flow->members);
}

/*
 * By number: those of two heirs that live at once share a place only if so many others have come between them. The one
 * that has lived for longer is then adopted as one of which nothing is known.
 */
static struct owner_record_heir *heir_entry(const struct xdp_owner *owner, uint32_t number)
{
	return owner->record != NULL ? &owner->record->heir[number % OWNER_RECORD_HEIRS] : NULL;
}

void owner_record_heir(struct xdp_owner *owner, const struct owner_heir *heir)
{
	struct owner_record_heir *entry = heir_entry(owner, heir->number);

	if (entry == NULL)
		return;
	atomic_store(&entry->number, 0);
	entry->state = heir->state;
	entry->snd_nxt = heir->snd_nxt;
	entry->rcv_nxt = heir->rcv_nxt;
	atomic_store(&entry->number, heir->number);
}

void owner_forget_heir(struct xdp_owner *owner, uint32_t number)
{
	struct owner_record_heir *entry = heir_entry(owner, number);

	if (entry != NULL && atomic_load(&entry->number) == number)
		atomic_store(&entry->number, 0);
}

const struct owner_record_heir *owner_recorded_heir(const struct xdp_owner *owner, uint32_t number)
{
	const struct owner_record_heir *entry = heir_entry(owner, number);

	return entry != NULL && atomic_load(&entry->number) == number ? entry : NULL;
}

/* ---- tenants ---- */

/* The keeper has what keeps the slot alive before the record says that it is rented. */
void xdp_owner_name_tenant(struct xdp_owner *owner, uint32_t slot, const struct owner_tenant *tenant, int pidfd)
{
	if (owner->record == NULL)
		return;
	if (owner->process_fd[slot] >= 0)
		nic_fd_close(owner->process_fd[slot]);
	owner->process_fd[slot] = pidfd >= 0 ? nic_fd_dup(pidfd) : -1;
	owner_keep_sockets(owner, slot);
	owner->record->slot[slot].tenant = *tenant;
	owner_record_slot(owner, slot);
}

bool xdp_owner_tenant(const struct xdp_owner *owner, uint32_t slot, struct owner_tenant *tenant, bool *leaves)
{
	if (owner->record == NULL || slot >= XDP_SLOTS_MAX ||
	    (owner->slot[slot].state != SLOT_RENTED && owner->slot[slot].state != SLOT_LEAVING))
		return false;
	*tenant = owner->record->slot[slot].tenant;
	*leaves = owner->slot[slot].state == SLOT_LEAVING;
	return true;
}

int xdp_owner_tenant_process(const struct xdp_owner *owner, uint32_t slot)
{
	return owner->process_fd[slot];
}

/* ---- the keeper ---- */

void owner_keep_link(struct xdp_owner *owner)
{
	const int fd = owner->keeper != NULL ? xdp_prog_link_fd(owner->prog) : -1;

	if (owner->record != NULL)
		owner->record->generic = owner->generic;
	if (owner->keeper == NULL || owner->kept_link_fd == fd)
		return;
	owner->kept_link_fd = fd;
	if (fd >= 0)
		keeper_put(owner->keeper, KEEP_LINK, fd);
	else
		keeper_drop(owner->keeper, KEEP_LINK);
}

void owner_keep_sockets(struct xdp_owner *owner, uint32_t slot)
{
	if (owner->keeper == NULL || !owner->slot[slot].sockets_open)
		return;
	keeper_put(owner->keeper, KEEP_PROCESS + slot, owner->process_fd[slot]);
	for (uint32_t queue = 0; queue < owner->queues; queue++)
		keeper_put(owner->keeper, keep_socket(slot, queue), owner->slot[slot].socket_fd[queue]);
}

void owner_drop_sockets(struct xdp_owner *owner, uint32_t slot)
{
	if (owner->process_fd[slot] >= 0)
		nic_fd_close(owner->process_fd[slot]);
	owner->process_fd[slot] = -1;
	if (owner->keeper == NULL)
		return;
	keeper_drop(owner->keeper, KEEP_PROCESS + slot);
	for (uint32_t queue = 0; queue < owner->queues; queue++)
		keeper_drop(owner->keeper, keep_socket(slot, queue));
}

void xdp_owner_keep(struct xdp_owner *owner, struct keeper *keeper)
{
	int fds[XDP_PROG_FDS];

	owner->keeper = keeper;
	owner->kept_link_fd = -1;
	keeper_put(keeper, KEEP_ALIVE, owner->alive_fd);
	keeper_put(keeper, KEEP_LOOK, owner->look_fd);
	keeper_put(keeper, KEEP_UMEM, owner->umem_fd);
	keeper_put(keeper, KEEP_SHARED, owner->shared_fd);
	xdp_prog_fds(owner->prog, fds);
	for (unsigned i = 0; i < XDP_PROG_FDS; i++)
		keeper_put(keeper, KEEP_PROG + i, fds[i]);
	for (uint32_t queue = 0; queue < owner->queues; queue++)
		keeper_put(keeper, KEEP_BASE + queue, owner->queue[queue].base_fd);
	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX; slot++)
		owner_keep_sockets(owner, slot);
	owner_keep_link(owner);
	/* The last: without it the rest is of no use. */
	keeper_put(keeper, KEEP_RECORD, owner->record_fd);
}
