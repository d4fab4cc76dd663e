/*
 * record - the owner's record for the next owner, and the contents of its descriptor store: see record.h, fdstore.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../os.h"
#include "owner.h"
#include "../xdp/shared.h"

/* ---- life ---- */

int owner_record_create_memfd(struct xdp_owner *owner)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	owner->alive_read_fd = nic_fd_move_high(ends[0]);
	owner->alive_fd = nic_fd_move_high(ends[1]);
	owner->record_fd = nic_fd_move_high(memfd_create("vma-record", MFD_CLOEXEC));
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

void owner_record_mark_complete(struct xdp_owner *owner)
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
	if (owner->alive_read_fd >= 0)
		nic_fd_close(owner->alive_read_fd);
	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX; slot++)
		if (owner->process_fd[slot] >= 0)
			nic_fd_close(owner->process_fd[slot]);
}

/* ---- entries ---- */

/* One that is there already changes by single words: what it was in between makes no difference to who adopts it. */
void owner_record_write_slot(struct xdp_owner *owner, uint32_t index)
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

/*
 * From the front: of those that were there and still are, each has moved to the front or not at all, so it is there at
 * any moment.
 */
static void record_store_shadow_cookies(struct owner_record_shadows *to, const struct nic_cookies *from)
{
	for (uint32_t i = 0; i < from->n; i++)
		to->cookie[i] = from->list[i];
	atomic_store(&to->n, from->n);
}

static int record_load_shadow_cookies(const struct owner_record_shadows *from, struct nic_cookies *to)
{
	const uint32_t n = atomic_load(&from->n);

	*to = (struct nic_cookies){0};
	if (n == 0 || n > NIC_COOKIES_MAX)
		return n == 0 ? 0 : -EPROTO;
	to->list = malloc(n * sizeof(*to->list));
	if (to->list == NULL)
		return -ENOMEM;
	memcpy(to->list, from->cookie, n * sizeof(*to->list));
	to->n = to->capacity = n;
	return 0;
}

void owner_record_write_group(struct xdp_owner *owner, const struct owner_flow *flow)
{
	struct owner_record_group *group;

	if (owner->record == NULL || flow->group == 0)
		return;
	group = &owner->record->group[flow->group];
	record_store_shadow_cookies(&group->shadows, &flow->shadows);
	atomic_store(&group->inherited, (flow->rule.flags & VMA_FLOW_INHERITED) != 0);
	atomic_store(&group->members, flow->members);
}

void owner_record_set_group_leaving(struct xdp_owner *owner, uint32_t group, uint32_t slot, bool leaves)
{
	if (owner->record != NULL && leaves)
		atomic_fetch_or(&owner->record->group[group].leaving, 1ull << slot);
	else if (owner->record != NULL)
		atomic_fetch_and(&owner->record->group[group].leaving, ~(1ull << slot));
}

bool owner_record_slot_leaves_group(const struct xdp_owner *owner, uint32_t group, uint32_t slot)
{
	return owner->record != NULL && (atomic_load(&owner->record->group[group].leaving) >> slot & 1) != 0;
}

uint64_t owner_record_load_group(const struct xdp_owner *owner, struct owner_flow *flow, uint32_t number)
{
	const struct owner_record_group *group = &owner->record->group[number];

	if (atomic_load(&group->inherited) != 0)
		flow->rule.flags |= VMA_FLOW_INHERITED;
	record_load_shadow_cookies(&group->shadows, &flow->shadows); /* without them the client's word has to do */
	return atomic_load(&group->members);
}

/*
 * By number: those of two minisocks that live at once share a place only if so many others have come between them. The
 * one that has lived for longer is then adopted as one of which nothing is known.
 */
static struct owner_record_minisock *record_minisock_entry(const struct xdp_owner *owner, uint32_t number)
{
	return owner->record != NULL ? &owner->record->minisock[number % OWNER_RECORD_MINISOCKS] : NULL;
}

/* One that is there already goes on with other numbers: in one step. */
void owner_record_write_minisock(struct xdp_owner *owner, const struct owner_minisock *minisock)
{
	struct owner_record_minisock *entry = record_minisock_entry(owner, minisock->number);
	const uint64_t state = minisock->state | (uint64_t)minisock->rcv_nxt << 32;

	if (entry == NULL)
		return;
	if (atomic_load(&entry->number) != minisock->number)
		atomic_store(&entry->number, 0);
	entry->snd_nxt = minisock->snd_nxt; /* it never changes */
	atomic_store(&entry->state, state);
	atomic_store(&entry->number, minisock->number);
}

void owner_record_free_minisock(struct xdp_owner *owner, uint32_t number)
{
	struct owner_record_minisock *entry = record_minisock_entry(owner, number);

	if (entry != NULL && atomic_load(&entry->number) == number)
		atomic_store(&entry->number, 0);
}

const struct owner_record_minisock *owner_record_find_minisock(const struct xdp_owner *owner, uint32_t number)
{
	const struct owner_record_minisock *entry = record_minisock_entry(owner, number);

	return entry != NULL && atomic_load(&entry->number) == number ? entry : NULL;
}

/* ---- places ---- */

void owner_place_bitmap_set(struct owner_place_bitmap *places, uint32_t place)
{
	places->used[place / 64] |= 1ull << place % 64;
}

uint32_t owner_place_bitmap_take_free_place(struct owner_place_bitmap *places)
{
	for (uint32_t i = 0; i < places->words; i++) {
		const uint32_t word = (places->next + i) % places->words;
		const uint64_t used = places->used[word];

		if (used == UINT64_MAX)
			continue;
		places->next = word;
		places->used[word] = used | (used + 1);
		return word * 64 + (uint32_t)__builtin_ctzll(~used);
	}
	return OWNER_NO_PLACE;
}

void owner_place_bitmap_clear(struct owner_place_bitmap *places, uint32_t place)
{
	if (place != OWNER_NO_PLACE)
		places->used[place / 64] &= ~(1ull << place % 64);
}

/* ---- peers to be told ---- */

uint32_t owner_record_add_pending_reset(struct xdp_owner *owner, const struct vma_flow_key *key, uint32_t slot,
                                        unsigned list)
{
	const uint32_t place =
	        owner->record != NULL ? owner_place_bitmap_take_free_place(&owner->reset_places) : OWNER_NO_PLACE;
	struct owner_record_reset *entry;

	if (place == OWNER_NO_PLACE)
		return place;
	entry = &owner->record->reset[place];
	entry->slot = slot;
	entry->key = *key;
	atomic_store(&entry->list, list + 1);
	return place;
}

void owner_record_set_reset_list(struct xdp_owner *owner, uint32_t place, unsigned list)
{
	if (place != OWNER_NO_PLACE)
		atomic_store(&owner->record->reset[place].list, list + 1);
}

void owner_record_free_reset(struct xdp_owner *owner, uint32_t place)
{
	if (place == OWNER_NO_PLACE)
		return;
	atomic_store(&owner->record->reset[place].list, 0);
	owner_place_bitmap_clear(&owner->reset_places, place);
}

/* ---- connections that wait ---- */

uint32_t owner_record_add_listener(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key,
                                   const struct nic_cookies *shadows)
{
	const uint32_t place =
	        owner->record != NULL ? owner_place_bitmap_take_free_place(&owner->listener_places) : OWNER_NO_PLACE;
	struct owner_record_listener *entry;

	if (place == OWNER_NO_PLACE)
		return place;
	entry = &owner->record->listener[place];
	entry->slot = slot;
	entry->key = *key;
	record_store_shadow_cookies(&entry->shadows, shadows);
	atomic_store(&entry->state, RECORD_LISTENER);
	return place;
}

void owner_record_set_listener_closed(struct xdp_owner *owner, uint32_t place)
{
	if (place != OWNER_NO_PLACE)
		atomic_store(&owner->record->listener[place].state, RECORD_LISTENER_CLOSED);
}

void owner_record_free_listener(struct xdp_owner *owner, uint32_t place)
{
	if (place == OWNER_NO_PLACE)
		return;
	atomic_store(&owner->record->listener[place].state, RECORD_NO_LISTENER);
	owner_place_bitmap_clear(&owner->listener_places, place);
}

int owner_record_load_listener_shadows(const struct xdp_owner *owner, uint32_t place, struct nic_cookies *shadows)
{
	return record_load_shadow_cookies(&owner->record->listener[place].shadows, shadows);
}

struct owner_record_pending *owner_record_alloc_pending(struct xdp_owner *owner, uint32_t *place)
{
	*place = owner->record != NULL ? owner_place_bitmap_take_free_place(&owner->waiting_places) : OWNER_NO_PLACE;
	return owner_record_pending_at(owner, *place);
}

struct owner_record_pending *owner_record_pending_at(const struct xdp_owner *owner, uint32_t place)
{
	return place != OWNER_NO_PLACE ? &owner->record->waiting[place] : NULL;
}

void owner_record_free_pending(struct xdp_owner *owner, uint32_t place)
{
	if (place == OWNER_NO_PLACE)
		return;
	atomic_store(&owner->record->waiting[place].state, RECORD_NO_WAITING);
	owner_place_bitmap_clear(&owner->waiting_places, place);
}

/* ---- tenants ---- */

/* The fdstore has what keeps the slot alive before the record says that it is rented. */
void xdp_owner_record_tenant_of_slot(struct xdp_owner *owner, uint32_t slot, const struct owner_slot_tenant *tenant,
                                     int pidfd)
{
	owner_set_process_of_slot(owner, slot, tenant->pid);
	if (owner->record == NULL)
		return;
	if (owner->process_fd[slot] >= 0)
		nic_fd_close(owner->process_fd[slot]);
	owner->process_fd[slot] = pidfd >= 0 ? nic_fd_dup(pidfd) : -1;
	owner_fdstore_keep_slot_sockets(owner, slot);
	owner->record->slot[slot].tenant = *tenant;
	owner_record_write_slot(owner, slot);
}

bool xdp_owner_tenant(const struct xdp_owner *owner, uint32_t slot, struct owner_slot_tenant *tenant, bool *leaves)
{
	if (owner->record == NULL || slot >= XDP_SLOTS_MAX ||
	    (owner->slot[slot].state != SLOT_RENTED && owner->slot[slot].state != SLOT_LEAVING))
		return false;
	*tenant = owner->record->slot[slot].tenant;
	*leaves = owner->slot[slot].state == SLOT_LEAVING;
	return true;
}

int xdp_owner_get_tenant_pidfd(const struct xdp_owner *owner, uint32_t slot)
{
	return owner->process_fd[slot];
}

/* ---- the fdstore ---- */

void owner_fdstore_keep_xdp_link(struct xdp_owner *owner)
{
	const int fd = owner->fdstore != NULL ? xdp_prog_link_fd(owner->prog) : -1;

	if (owner->record != NULL)
		owner->record->generic = owner->generic;
	if (owner->fdstore == NULL || owner->stored_link_fd == fd)
		return;
	owner->stored_link_fd = fd;
	if (fd >= 0)
		fdstore_keep_fd(owner->fdstore, KEEP_LINK, fd);
	else
		fdstore_forget_fd(owner->fdstore, KEEP_LINK);
}

void owner_fdstore_keep_slot_sockets(struct xdp_owner *owner, uint32_t slot)
{
	if (owner->fdstore == NULL || !owner->slot[slot].sockets_open)
		return;
	fdstore_keep_fd(owner->fdstore, KEEP_PROCESS + slot, owner->process_fd[slot]);
	for (uint32_t queue = 0; queue < owner->queues; queue++)
		fdstore_keep_fd(owner->fdstore, fdstore_index_of_queue_socket(slot, queue),
		                owner->slot[slot].socket_fd[queue]);
}

void owner_fdstore_drop_slot_sockets(struct xdp_owner *owner, uint32_t slot)
{
	if (owner->process_fd[slot] >= 0)
		nic_fd_close(owner->process_fd[slot]);
	owner->process_fd[slot] = -1;
	if (owner->fdstore == NULL)
		return;
	fdstore_forget_fd(owner->fdstore, KEEP_PROCESS + slot);
	for (uint32_t queue = 0; queue < owner->queues; queue++)
		fdstore_forget_fd(owner->fdstore, fdstore_index_of_queue_socket(slot, queue));
}

void xdp_owner_put_all_fds_in_fdstore(struct xdp_owner *owner, struct fdstore *fdstore)
{
	int fds[XDP_PROG_FDS];

	owner->fdstore = fdstore;
	owner->stored_link_fd = -1;
	fdstore_keep_fd(fdstore, KEEP_ALIVE, owner->alive_fd);
	fdstore_keep_fd(fdstore, KEEP_ALIVE_READ, owner->alive_read_fd);
	fdstore_keep_fd(fdstore, KEEP_UMEM, owner->umem_fd);
	fdstore_keep_fd(fdstore, KEEP_SHARED, owner->shared_fd);
	xdp_prog_fds(owner->prog, fds);
	for (unsigned i = 0; i < XDP_PROG_FDS; i++)
		fdstore_keep_fd(fdstore, KEEP_PROG + i, fds[i]);
	for (uint32_t queue = 0; queue < owner->queues; queue++)
		fdstore_keep_fd(fdstore, KEEP_BASE + queue, owner->queue[queue].base_fd);
	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX; slot++)
		owner_fdstore_keep_slot_sockets(owner, slot);
	owner_fdstore_keep_xdp_link(owner);
	/* The last: without it the rest is of no use. */
	fdstore_keep_fd(fdstore, KEEP_RECORD, owner->record_fd);
}
