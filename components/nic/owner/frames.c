/*
 * frames - the owner's packet memory: one memfd, pinned once, divided between fill rings and rented ranges.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vma/log.h>

#include "../os.h"
#include "owner.h"
#include "../xdp/shared.h"

#define WINDOW_DEFAULT (16u << 20)
#define WINDOW_LEAST (512u << 10) /* 256 frames: a few queue pairs with rings of 64 */
#define WINDOW_MOST (1u << 30)
#define HUGE_BYTES (2u << 20)
#define BURST 64
#define LOCK_NS 100000000ull /* a lock is held for some dozen instructions, and while its holder is not on a core */

static uint32_t floor_power_of_two(uint32_t n)
{
	return 1u << (31 - __builtin_clz(n));
}

static uint32_t clamp_u32_frames(uint32_t n, uint32_t least, uint32_t most)
{
	return n < least ? least : n > most ? most : n;
}

/* What there is to promise while nobody rents: all but the base. */
static uint32_t rx_frames_to_promise(const struct xdp_owner *owner)
{
	return owner->rx_frames - owner->rx_frames / 6;
}

/* ---- memory ---- */

/* Of a file in memory. The kernel would end a process that may write none so long (SIGXFSZ). */
static int set_memfd_length(int fd, size_t bytes)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
		errno = EFBIG;
		return -1;
	}
	return ftruncate(fd, (off_t)bytes);
}

static int owner_create_umem_memfd(struct xdp_owner *owner, size_t bytes, bool huge)
{
	int fd = nic_fd_move_high(memfd_create("vma-umem", MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB : 0)));

	if (fd < 0)
		return -errno;
	owner->umem = MAP_FAILED;
	/* Sealed, or a client could shrink it under the others. */
	if (set_memfd_length(fd, bytes) == 0 &&
	    os_fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		owner->umem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (owner->umem == MAP_FAILED) {
		int rc = -errno;

		nic_fd_close(fd);
		owner->umem = NULL;
		return rc;
	}
	madvise(owner->umem, bytes, MADV_DONTFORK);
	owner->umem_fd = fd;
	owner->umem_bytes = bytes;
	return 0;
}

static void owner_unmap_umem(struct xdp_owner *owner)
{
	if (owner->umem != NULL)
		munmap(owner->umem, owner->umem_bytes);
	if (owner->umem_fd >= 0)
		nic_fd_close(owner->umem_fd);
	owner->umem = NULL;
	owner->umem_fd = -1;
}

/* Frames that one chunk cannot hold travel over several: a kernel that cannot do that refuses the flag. */
static int open_base_xdp_socket(struct xdp_owner *owner)
{
	bool *csum = &owner->tx_csum;
	int fd = xdp_sock_open_with_umem(owner->umem, owner->umem_bytes, owner->ifindex, 0, XDP_USE_SG, csum);

	owner->multi_buffer = fd >= 0;
	return fd == -EINVAL ? xdp_sock_open_with_umem(owner->umem, owner->umem_bytes, owner->ifindex, 0, 0, csum) : fd;
}

/* Memory of `bytes` and the first base socket on it, which pins it. */
static int try_create_packet_memory_of_size(struct xdp_owner *owner, size_t bytes, bool huge)
{
	int rc = owner_create_umem_memfd(owner, bytes, huge && bytes % HUGE_BYTES == 0);

	if (rc < 0 && huge) {
		vma_log_once(VMA_LOG_WARN,
		             "%s: no huge pages for the packet memory (%zu MB, error %d), using small ones: see "
		             "/proc/sys/vm/nr_hugepages",
		             owner->name, bytes >> 20, -rc);
		rc = owner_create_umem_memfd(owner, bytes, false);
	}
	if (rc < 0)
		return rc;
	rc = open_base_xdp_socket(owner);
	if (rc < 0)
		owner_unmap_umem(owner);
	else
		owner->queue[0].base_fd = rc;
	return rc;
}

/* The warning that users of the field know and search for. */
static void warn_memlock_limit(const struct rlimit *limit)
{
	static _Atomic bool said;

	if (atomic_exchange_explicit(&said, true, memory_order_relaxed))
		return;
	vma_log_warn("***************************************************************");
	vma_log_warn("Your current max locked memory is: %llu. Please change it to unlimited.",
	             (unsigned long long)limit->rlim_cur);
	vma_log_warn("Set this user's default to `ulimit -l unlimited`.");
	vma_log_warn("***************************************************************");
}

static void log_memlock_leaves_no_room(const struct xdp_owner *owner, const struct rlimit *limit)
{
	vma_log_once(VMA_LOG_ERROR,
	             "%s: RLIMIT_MEMLOCK (%llu KB) leaves no room for packet memory: raise it, or give CAP_IPC_LOCK",
	             owner->name, (unsigned long long)limit->rlim_cur >> 10);
}

/* What others of this user have locked already is not seen here. */
int owner_frames_probe_memlock(const struct xdp_owner *owner)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {0};
	struct rlimit limit = {.rlim_cur = RLIM_INFINITY};

	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (limit.rlim_cur >= (rlim_t)WINDOW_LEAST * owner->queues || syscall(SYS_capget, &head, data) < 0 ||
	    (data[0].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0)
		return 0;
	log_memlock_leaves_no_room(owner, &limit);
	return -ENOBUFS;
}

/* Without CAP_IPC_LOCK the pages count against RLIMIT_MEMLOCK: take what it leaves, and say so. */
static int owner_allocate_packet_memory_window(struct xdp_owner *owner, uint32_t window_bytes, bool huge)
{
	struct rlimit limit = {0};
	uint32_t requested;
	int rc;

	while ((uint64_t)(window_bytes >> XDP_FRAME_SHIFT) * owner->queues > XDP_FRAMES_MAX)
		window_bytes /= 2;
	requested = window_bytes;
	for (;;) {
		rc = try_create_packet_memory_of_size(owner, (size_t)window_bytes * owner->queues, huge);
		if (rc != -ENOBUFS || window_bytes / 2 < WINDOW_LEAST)
			break;
		window_bytes /= 2;
	}
	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (rc == -ENOBUFS || (rc >= 0 && window_bytes != requested))
		warn_memlock_limit(&limit);
	if (rc == -ENOBUFS)
		log_memlock_leaves_no_room(owner, &limit);
	else if (rc >= 0 && window_bytes != requested)
		vma_log_warn("%s: packet memory of %u KB instead of %u KB per device queue, because of RLIMIT_MEMLOCK "
		             "(%llu KB): raise it, or give CAP_IPC_LOCK",
		             owner->name, window_bytes >> 10, requested >> 10,
		             (unsigned long long)limit.rlim_cur >> 10);
	if (rc < 0)
		return rc;
	owner->queue_frames = window_bytes >> XDP_FRAME_SHIFT;
	owner->nframes = owner->queue_frames * owner->queues;
	return 0;
}

static int owner_map_shared_object(struct xdp_owner *owner)
{
	owner->shared_bytes = XDP_OBJECT_BYTES;
	owner->shared = mmap(NULL, owner->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, owner->shared_fd, 0);
	if (owner->shared == MAP_FAILED) {
		owner->shared = NULL;
		return -errno;
	}
	madvise(owner->shared, owner->shared_bytes, MADV_DONTFORK);
	owner->members = (struct vma_nic_accept_page *)((char *)owner->shared + XDP_MEMBERS_AT);
	return 0;
}

static int owner_create_shared_object(struct xdp_owner *owner)
{
	int rc;

	owner->shared_fd = nic_fd_move_high(memfd_create("vma-shared", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (owner->shared_fd < 0)
		return -errno;
	if (set_memfd_length(owner->shared_fd, XDP_OBJECT_BYTES) < 0 ||
	    os_fcntl(owner->shared_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return -errno;
	rc = owner_map_shared_object(owner);
	if (rc < 0)
		return rc;
	xdp_shared_init(owner->shared, owner->nframes, owner->queues);
	if (getrandom(&owner->clock_ms, sizeof(owner->clock_ms), GRND_NONBLOCK) != sizeof(owner->clock_ms))
		owner->clock_ms = (uint32_t)owner_now_ns();
	if (getrandom(owner->isn_key, sizeof(owner->isn_key), GRND_NONBLOCK) != sizeof(owner->isn_key))
		memset(owner->isn_key, 0, sizeof(owner->isn_key)); /* each client makes numbers of its own */
	return 0;
}

/* ---- frames to and from the fill rings ---- */

/*
 * Only as many frames go round as are promised, and a base for bursts; the rest stays here. The fill ring is first in,
 * first out: every frame in it is used before one is used again, and when all of them together no longer fit into a
 * core's cache, each packet is written to memory that is cold (measured: a sixth of the rate with full-sized frames).
 */
static uint32_t queue_spare_surplus(const struct xdp_owner *owner, uint32_t queue)
{
	const uint32_t spares = owner->queue[queue].spares;

	return spares > owner->rx_free ? spares - owner->rx_free : 0;
}

static void queue_push_spare_frame(struct xdp_owner *owner, struct owner_device_queue *q, uint32_t frame)
{
	q->spare[q->spares++] = frame;
	owner->is_spare[frame] = true;
}

/* The shared record is written anew first: a client may have taken the owner's name out of it. */
static uint32_t fill_ring_put_burst(struct xdp_owner *owner, uint32_t queue, const uint32_t *frames, uint32_t n)
{
	uint32_t taken;

	for (uint32_t i = 0; i < n; i++)
		xdp_shared_set_frame_holder(&owner->driver[queue], frames[i]);
	taken = xdp_shared_put_in_fill_ring(&owner->driver[queue], frames, n);
	for (uint32_t i = 0; i < taken; i++)
		owner->is_spare[frames[i]] = false;
	return taken;
}

static void fill_ring_put_spares(struct xdp_owner *owner, uint32_t queue)
{
	struct owner_device_queue *q = &owner->queue[queue];

	while (queue_spare_surplus(owner, queue) > 0) {
		const uint32_t wanted = queue_spare_surplus(owner, queue), n = wanted < BURST ? wanted : BURST;
		const uint32_t taken = fill_ring_put_burst(owner, queue, q->spare + q->spares - n, n);

		/* What was not taken are the last of the burst: close the gap. */
		memmove(q->spare + q->spares - n, q->spare + q->spares - n + taken, (n - taken) * sizeof(*q->spare));
		q->spares -= taken;
		if (taken < n)
			break;
	}
}

/* Of a queue whose base socket is there. */
static int owner_map_queue_rings(struct xdp_owner *owner, uint32_t queue)
{
	struct owner_device_queue *q = &owner->queue[queue];
	int rc;

	rc = xdp_sock_map_umem_rings(q->base_fd, &q->fill, &q->comp);
	if (rc < 0)
		return rc;
	q->spare = calloc(owner->rx_frames, sizeof(*q->spare));
	if (q->spare == NULL)
		return -ENOMEM;
	owner->driver[queue] = (struct xdp_shared_rings_user){
	        .shared = owner->shared,
	        .fill = &q->fill,
	        .comp = &q->comp,
	        .queue = queue,
	        .self = XDP_HOLDER_OWNER,
	};
	return 0;
}

static int owner_open_queue(struct xdp_owner *owner, uint32_t queue)
{
	struct owner_device_queue *q = &owner->queue[queue];
	int rc;

	if (queue > 0) {
		rc = xdp_sock_open_on_shared_umem(owner->queue[0].base_fd, owner->ifindex, queue, 0);
		if (rc < 0)
			return rc;
		q->base_fd = rc;
	}
	rc = owner_map_queue_rings(owner, queue);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < owner->rx_frames; i++) {
		const uint32_t frame = queue * owner->queue_frames + i;

		queue_push_spare_frame(owner, q, frame);
	}
	fill_ring_put_spares(owner, queue);
	return 0;
}

int owner_frames_init(struct xdp_owner *owner, uint32_t window_bytes, bool huge_pages)
{
	int rc;

	window_bytes = clamp_u32_frames(window_bytes != 0 ? window_bytes : WINDOW_DEFAULT, WINDOW_LEAST, WINDOW_MOST);
	rc = owner_allocate_packet_memory_window(owner, floor_power_of_two(window_bytes), huge_pages);
	if (rc == 0)
		rc = owner_create_shared_object(owner);
	if (rc < 0)
		return rc;
	owner->rx_frames = clamp_u32_frames(owner->queue_frames / 8 * 5, 1, XDP_FILL_SIZE);
	owner->rx_free = rx_frames_to_promise(owner);
	owner->tx_used = calloc(owner->nframes / OWNER_TX_BLOCK, 1);
	owner->is_spare =
	        owner->record != NULL ? owner->record->is_spare : calloc(owner->nframes, sizeof(*owner->is_spare));
	if (owner->tx_used == NULL || owner->is_spare == NULL)
		return -ENOMEM;
	for (uint32_t queue = 0; queue < owner->queues; queue++) {
		rc = owner_open_queue(owner, queue);
		if (rc < 0)
			return rc;
	}
	return 0;
}

void owner_frames_fini(struct xdp_owner *owner)
{
	for (uint32_t queue = 0; queue < owner->queues; queue++) {
		struct owner_device_queue *q = &owner->queue[queue];

		xdp_ring_unmap(&q->fill);
		xdp_ring_unmap(&q->comp);
		if (q->base_fd >= 0)
			nic_fd_close(q->base_fd);
		free(q->spare);
	}
	free(owner->tx_used);
	if (owner->record == NULL)
		free(owner->is_spare);
	if (owner->shared != NULL)
		munmap(owner->shared, owner->shared_bytes);
	if (owner->shared_fd >= 0)
		nic_fd_close(owner->shared_fd);
	owner_unmap_umem(owner);
}

/* What a client can have by then: what it may hold (half as much again as its quota), and what lay in its rings. */
static uint32_t slot_max_held_frames(const struct xdp_owner *owner, uint32_t slot)
{
	return 2 * owner->slot[slot].rx_quota + owner->queues * owner->slot[slot].rx_size + BURST;
}

static void recount_promised_rx_frames(struct xdp_owner *owner)
{
	uint32_t promised = 0;

	for (uint32_t i = 0; i < XDP_SLOTS_MAX; i++)
		promised += owner->slot[i].rx_promised;
	owner->rx_free = rx_frames_to_promise(owner);
	owner->rx_free -= clamp_u32_frames(promised, 0, owner->rx_free);
}

/* The shares are counted anew from who is left: what overlapped the base must not be given back twice. */
void owner_slot_drop_frame_quota(struct xdp_owner *owner, uint32_t index)
{
	owner->slot[index].rx_promised = 0;
	recount_promised_rx_frames(owner);
}

/*
 * One pass, or two. What the owner has itself is known from its own record, whatever the shared one says by now; and
 * where the shared one says of a client that it has more than it can have, it is not believed at all. What the client
 * really had is lost then until a new owner comes: frames that others have would be in two places.
 */
void owner_reclaim_frames_of_slot(struct xdp_owner *owner, uint32_t slot)
{
	uint32_t frames[BURST], n, at = 0;

	if (xdp_shared_count_frames_held_by_slot(owner->shared, slot, owner->nframes) >
	    slot_max_held_frames(owner, slot)) {
		vma_log_once(VMA_LOG_WARN,
		             "%s: a client has written over the record of frames: those that slot %u had are lost "
		             "until a vmad is started with --anew",
		             owner->name, slot);
		return;
	}
	while ((n = xdp_shared_take_frames_of_slot(owner->shared, slot, &at, owner->nframes, frames, BURST)) > 0) {
		for (uint32_t i = 0; i < n; i++) {
			struct owner_device_queue *q = &owner->queue[frames[i] / owner->queue_frames];

			/* Only receive frames can be held. */
			if (frames[i] % owner->queue_frames < owner->rx_frames && q->spares < owner->rx_frames &&
			    !owner->is_spare[frames[i]])
				queue_push_spare_frame(owner, q, frames[i]);
		}
	}
	for (uint32_t queue = 0; queue < owner->queues; queue++)
		fill_ring_put_spares(owner, queue);
}

bool owner_has_spare_frames(const struct xdp_owner *owner)
{
	for (uint32_t queue = 0; queue < owner->queues; queue++)
		if (queue_spare_surplus(owner, queue) > 0)
			return true;
	return false;
}

/* What lies in a fill ring is counted by the kernel's index and the shared one, so each queue has a bound of its own.
 */
uint32_t owner_missing_frame_count(const struct xdp_owner *owner)
{
	uint32_t have = 0;

	for (uint32_t queue = 0; queue < owner->queues; queue++) {
		const struct owner_device_queue *q = &owner->queue[queue];
		const uint32_t there = q->spares + xdp_load(q->fill.producer) - xdp_load(q->fill.consumer);

		have += there < owner->rx_frames ? there : owner->rx_frames;
	}
	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX; slot++)
		if (owner->slot[slot].state != SLOT_FREE)
			have += xdp_shared_count_frames_held_by_slot(owner->shared, slot, owner->nframes);
	return owner->rx_frames * owner->queues - clamp_u32_frames(have, 0, owner->rx_frames * owner->queues);
}

/* ---- adoption ---- */

static bool tx_block_has_frame_in_flight(const struct xdp_owner *owner, uint32_t block)
{
	return xdp_shared_count_in_flight(owner->shared, block * OWNER_TX_BLOCK, OWNER_TX_BLOCK) > 0;
}

static bool frame_is_held_by_owner(const struct xdp_owner *owner, uint32_t frame)
{
	return xdp_load(&owner->shared->holder[frame]) == XDP_HOLDER_OWNER;
}

/*
 * The owner before was killed anywhere. In a fill, its lock tells, and recovery has finished or undone that: then the
 * shared object is right, and the record names frames of one burst that are in the ring by now. In a take-back the
 * shared object names frames of one burst that the record does not. So the shared object is believed, unless it names
 * more than one burst that the record does not: that was no owner, but a client that has written over it. Then only
 * frames that both name are the owner's, and the rest is lost until there is an owner with memory of its own.
 */
static void restore_spare_frames_from_record(struct xdp_owner *owner)
{
	uint32_t more = 0;
	bool believed;

	for (uint32_t f = 0; f < owner->nframes; f++)
		more += f % owner->queue_frames < owner->rx_frames && frame_is_held_by_owner(owner, f) &&
		        !owner->is_spare[f];
	believed = more <= BURST;
	if (!believed)
		vma_log_once(VMA_LOG_WARN,
		             "%s: a client has written over the record of frames: some are "
		             "lost until a vmad is started with --anew",
		             owner->name);
	for (uint32_t f = 0; f < owner->nframes; f++) {
		const bool mine = f % owner->queue_frames < owner->rx_frames && frame_is_held_by_owner(owner, f) &&
		                  (believed || owner->is_spare[f]);

		owner->is_spare[f] = false;
		if (mine)
			queue_push_spare_frame(owner, &owner->queue[f / owner->queue_frames], f);
	}
}

/* Blocks of no slot wait if something of them is in flight: see enum owner_tx_block_state. */
static void restore_tx_block_states(struct xdp_owner *owner)
{
	for (uint32_t index = 0; index < XDP_SLOTS_MAX; index++) {
		const struct owner_slot *slot = &owner->slot[index];

		if (slot->state != SLOT_FREE)
			memset(owner->tx_used + slot->tx_first / OWNER_TX_BLOCK, BLOCK_RENTED,
			       slot->tx_count / OWNER_TX_BLOCK);
	}
	for (uint32_t b = 0; b < owner->nframes / OWNER_TX_BLOCK; b++)
		if (owner->tx_used[b] == BLOCK_FREE && tx_block_has_frame_in_flight(owner, b))
			owner->tx_used[b] = BLOCK_WAITS;
}

static int frames_take_fdstore_fd(struct fdstore_fds *hand, uint32_t place)
{
	const int fd = nic_fd_move_high(hand->fd[place]);

	hand->fd[place] = -1;
	return fd;
}

int owner_frames_take_over_from_fdstore(struct xdp_owner *owner, struct fdstore_fds *hand)
{
	int rc;

	owner->umem_fd =
	        frames_take_fdstore_fd(hand, KEEP_UMEM); /* its pages are registered: nobody here looks into them */
	owner->shared_fd = frames_take_fdstore_fd(hand, KEEP_SHARED);
	if (owner->umem_fd < 0 || owner->shared_fd < 0)
		return -EPROTO;
	rc = owner_map_shared_object(owner);
	if (rc < 0)
		return rc;
	owner->is_spare = owner->record->is_spare;
	owner->tx_used = calloc(owner->nframes / OWNER_TX_BLOCK, 1);
	if (owner->tx_used == NULL)
		return -ENOMEM;
	for (uint32_t queue = 0; queue < owner->queues && rc == 0; queue++) {
		struct owner_device_queue *q = &owner->queue[queue];

		q->base_fd = frames_take_fdstore_fd(hand, KEEP_BASE + queue);
		rc = q->base_fd < 0 ? -EPROTO : owner_map_queue_rings(owner, queue);
	}
	if (rc < 0)
		return rc;
	xdp_shared_release_dead_locks(owner->driver, owner->queues, XDP_HOLDER_OWNER - 1u);
	restore_spare_frames_from_record(owner);
	restore_tx_block_states(owner);
	recount_promised_rx_frames(owner);
	return 0;
}

/* ---- locks that nobody holds ---- */

/* Of a client that lives, or whose connection to the owner has ended while its process goes on. */
static bool frame_holder_client_is_alive(const struct xdp_owner *owner, uint32_t holder)
{
	return holder - 1 < XDP_SLOTS_MAX &&
	       (owner->slot[holder - 1].state == SLOT_RENTED || owner->slot[holder - 1].state == SLOT_LEAVING);
}

/* Seen twice, LOCK_NS apart: see xdp_shared_break_lock. The owner's own number is nobody's between two of its calls. */
static void break_lock_of_dead_client(struct xdp_owner *owner, uint32_t queue, enum xdp_lock_kind which, uint64_t now)
{
	const struct xdp_shared_queue *shared = &owner->shared->queue[queue];
	const uint32_t holder = xdp_load(which == XDP_LOCK_FILL ? &shared->fill.lock : &shared->comp.lock);
	struct owner_suspect_lock *seen = &owner->queue[queue].lock[which];

	if (holder == 0 || frame_holder_client_is_alive(owner, holder)) {
		seen->holder = 0;
	} else if (seen->holder != holder) {
		*seen = (struct owner_suspect_lock){.holder = holder, .since_ns = now};
	} else if (now - seen->since_ns >= LOCK_NS && xdp_shared_break_lock(&owner->driver[queue], which, holder)) {
		seen->holder = 0;
		vma_log_once(VMA_LOG_WARN,
		             "%s: a client has left a lock of device queue %u to a number that no client has (%u): it "
		             "is free again",
		             owner->name, queue, holder);
	}
}

bool owner_has_suspect_ring_locks(const struct xdp_owner *owner)
{
	for (uint32_t queue = 0; queue < owner->queues; queue++)
		for (unsigned which = 0; which < XDP_LOCKS; which++)
			if (owner->queue[queue].lock[which].holder != 0)
				return true;
	return false;
}

void owner_refill_and_drain_umem_rings(struct xdp_owner *owner)
{
	const uint64_t now = owner_now_ns();

	for (uint32_t queue = 0; queue < owner->queues; queue++) {
		for (unsigned which = 0; which < XDP_LOCKS; which++)
			break_lock_of_dead_client(owner, queue, which, now);
		xdp_shared_drain_completion_ring(&owner->driver[queue]);
		fill_ring_put_spares(owner, queue);
	}
}

/* ---- division ---- */

static bool tx_block_is_free(const struct xdp_owner *owner, uint32_t block)
{
	return owner->tx_used[block] == BLOCK_FREE ||
	       (owner->tx_used[block] == BLOCK_WAITS && !tx_block_has_frame_in_flight(owner, block));
}

/*
 * The kernel forgets a packet that it had begun to take when its socket closed: such frames never complete. When there
 * is nothing else, they are rented out again; what still completes then completes for the new tenant, too early.
 */
static void free_waiting_tx_blocks(struct xdp_owner *owner)
{
	for (uint32_t b = 0; b < owner->nframes / OWNER_TX_BLOCK; b++)
		if (owner->tx_used[b] == BLOCK_WAITS)
			owner->tx_used[b] = BLOCK_FREE;
}

/* First contiguous run of free blocks in the transmit part of one device queue; its first block, or UINT32_MAX. */
static uint32_t find_free_tx_blocks(const struct xdp_owner *owner, uint32_t queue, uint32_t blocks)
{
	const uint32_t end = (queue + 1) * owner->queue_frames / OWNER_TX_BLOCK;
	uint32_t run = 0;

	for (uint32_t b = (queue * owner->queue_frames + owner->rx_frames) / OWNER_TX_BLOCK; b < end; b++) {
		run = tx_block_is_free(owner, b) ? run + 1 : 0;
		if (run == blocks)
			return b + 1 - blocks;
	}
	return UINT32_MAX;
}

static uint32_t count_free_tx_frames(const struct xdp_owner *owner, uint32_t queue)
{
	const uint32_t end = (queue + 1) * owner->queue_frames / OWNER_TX_BLOCK;
	uint32_t n = 0;

	for (uint32_t b = (queue * owner->queue_frames + owner->rx_frames) / OWNER_TX_BLOCK; b < end; b++)
		n += tx_block_is_free(owner, b);
	return n * OWNER_TX_BLOCK;
}

/* An eighth of what is free, so that the first come well off and the sixteenth still gets a range. */
static int slot_allocate_tx_frames(struct xdp_owner *owner, struct owner_slot *slot, uint32_t queue, uint32_t wanted)
{
	uint32_t count = clamp_u32_frames(count_free_tx_frames(owner, queue) / 8, OWNER_TX_BLOCK, XDP_COMP_SIZE / 2);
	uint32_t block = UINT32_MAX;

	count = clamp_u32_frames(floor_power_of_two(count), OWNER_TX_BLOCK, wanted);
	while (count >= OWNER_TX_BLOCK &&
	       (block = find_free_tx_blocks(owner, queue, count / OWNER_TX_BLOCK)) == UINT32_MAX)
		count /= 2;
	if (block == UINT32_MAX)
		return -ENOSPC;
	memset(owner->tx_used + block, BLOCK_RENTED, count / OWNER_TX_BLOCK);
	slot->tx_first = block * OWNER_TX_BLOCK;
	slot->tx_count = count;
	slot->tx_size = count;
	return 0;
}

static uint32_t up_to_power_of_two(uint32_t n, uint32_t least, uint32_t most)
{
	n = clamp_u32_frames(n, least, most);
	return n & (n - 1) ? floor_power_of_two(n) * 2 : n;
}

int owner_frames_grant(struct xdp_owner *owner, uint32_t index, uint32_t rx_wanted, uint32_t tx_wanted)
{
	struct owner_slot *slot = &owner->slot[index];
	uint32_t share;
	bool alone;
	int rc = -ENOSPC;

	tx_wanted = up_to_power_of_two(tx_wanted, OWNER_TX_BLOCK, XDP_COMP_SIZE / 2);
	rx_wanted = up_to_power_of_two(rx_wanted, OWNER_RX_MIN, OWNER_RX_MAX);
	for (uint32_t i = 0; i < 2 * owner->queues && rc < 0; i++) {
		if (i == owner->queues)
			free_waiting_tx_blocks(owner);
		rc = slot_allocate_tx_frames(owner, slot, (index + i) % owner->queues, tx_wanted);
	}
	if (rc < 0)
		return rc;
	/* A quarter of what is not promised yet, and half of that to hold. Beyond the 16th or so, shares overlap with
	 * the base: then only several clients that all hoard at once can make the others run short. */
	share = floor_power_of_two(clamp_u32_frames(owner->rx_free / 4, OWNER_RX_MIN, rx_wanted));
	slot->rx_quota = share / 2;
	if (owner->rx_free < share + slot->rx_quota)
		slot->rx_quota = OWNER_RX_MIN / 2;
	/* Who finds nobody has a ring of twice that, which the base fills: it lasts twice as long while its program
	 * does not run. Only if that also keeps all it may do later ones miss some of what they were promised, 427
	 * frames of the default window's 5120. */
	alone = owner->rx_free == rx_frames_to_promise(owner) && share > OWNER_RX_MIN;
	slot->rx_size = alone && 2 * share <= rx_wanted ? 2 * share : share;
	slot->rx_promised = share + slot->rx_quota;
	owner->rx_free -= clamp_u32_frames(slot->rx_promised, 0, owner->rx_free);
	for (uint32_t queue = 0; queue < owner->queues; queue++)
		fill_ring_put_spares(owner, queue);
	return 0;
}

void owner_frames_ungrant(struct xdp_owner *owner, uint32_t index)
{
	struct owner_slot *slot = &owner->slot[index];

	for (uint32_t b = slot->tx_first / OWNER_TX_BLOCK, end = b + slot->tx_count / OWNER_TX_BLOCK; b < end; b++)
		owner->tx_used[b] = tx_block_has_frame_in_flight(owner, b) ? BLOCK_WAITS : BLOCK_FREE;
	slot->rx_size = slot->rx_quota = slot->tx_size = slot->tx_count = 0;
	owner_slot_drop_frame_quota(owner, index);
}
