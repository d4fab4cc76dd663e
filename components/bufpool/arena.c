/* arena - the two reservations of address space, frames and descriptors, and the ranges mapped into them. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <vma/log.h>

#include "bufpool_priv.h"
#include "debug.h"

/* VMA_RX_BUFS + VMA_TX_BUFS at their defaults, and the rest for windows: 2^20 frames, 2 GB of addresses. */
#define CAPACITY_DEFAULT (1u << 20)
#define CAPACITY_MAX (1u << 30)
#define FRAME_SHIFT_MIN 11
#define FRAME_SHIFT_MAX 16

/* Of all arenas, also of those that a forked process has from its parent and does not use. */
static _Atomic size_t reserved_bytes;

size_t vma_bufarena_reserved_bytes(void)
{
	return atomic_load_explicit(&reserved_bytes, memory_order_relaxed);
}

static int arena_reserve_range(struct vma_bufarena *arena, uint32_t capacity)
{
	struct vma_bufarena_priv *priv = arena->priv;
	size_t frames_bytes = (size_t)capacity << arena->frame_shift;

	priv->frames_map_bytes = frames_bytes + HUGE_PAGE;
	priv->frames_map =
	        mmap(NULL, priv->frames_map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (priv->frames_map == MAP_FAILED)
		return -ENOMEM;
	priv->bufs_bytes = (size_t)capacity * sizeof(struct vma_buf);
	arena->bufs = mmap(NULL, priv->bufs_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
	                   -1, 0);
	if (arena->bufs == MAP_FAILED) {
		munmap(priv->frames_map, priv->frames_map_bytes);
		return -ENOMEM;
	}
	arena->frames = (char *)(((uintptr_t)priv->frames_map + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
	arena->capacity = capacity;
	atomic_fetch_add_explicit(&reserved_bytes, priv->frames_map_bytes + priv->bufs_bytes, memory_order_relaxed);
	return 0;
}

static void arena_unmap_reserved_range(struct vma_bufarena *arena)
{
	struct vma_bufarena_priv *priv = arena->priv;

	munmap(arena->bufs, priv->bufs_bytes);
	munmap(priv->frames_map, priv->frames_map_bytes);
	atomic_fetch_sub_explicit(&reserved_bytes, priv->frames_map_bytes + priv->bufs_bytes, memory_order_relaxed);
}

/* Address space may be limited (RLIMIT_AS): half as much is better than nothing. */
static int arena_reserve_as_much_as_possible(struct vma_bufarena *arena, uint32_t wanted)
{
	uint32_t capacity = wanted;
	int rc;

	while ((rc = arena_reserve_range(arena, capacity)) != 0 && capacity / 2 >= UNIT_FRAMES)
		capacity = capacity / 2 / UNIT_FRAMES * UNIT_FRAMES;
	if (rc == 0 && capacity < wanted)
		vma_log_once(VMA_LOG_WARN,
		             "bufpool: no address space for %u buffers (RLIMIT_AS?), going on with room for %u", wanted,
		             capacity);
	return rc;
}

static uint32_t frame_shift_of(uint32_t frame_size)
{
	if (frame_size == 0)
		return FRAME_SHIFT_MIN;
	if ((frame_size & (frame_size - 1)) != 0 || frame_size < 1u << FRAME_SHIFT_MIN ||
	    frame_size > 1u << FRAME_SHIFT_MAX)
		return 0;
	return (uint32_t)__builtin_ctz(frame_size);
}

int vma_bufarena_create(const struct vma_bufarena_attr *attr, struct vma_bufarena **out)
{
	uint32_t capacity = attr->capacity == 0 ? CAPACITY_DEFAULT : attr->capacity;
	uint32_t shift = frame_shift_of(attr->frame_size);
	struct vma_bufarena *arena;
	int rc;

	if (shift == 0 || capacity > CAPACITY_MAX || (unsigned)attr->alloc_type > VMA_MEM_HUGE)
		return -EINVAL;
	rc = bufpool_thread_caches_init_once();
	if (rc != 0)
		return rc;
	arena = calloc(1, sizeof(*arena));
	if (arena == NULL)
		return -ENOMEM;
	rc = -ENOMEM;
	arena->priv = calloc(1, sizeof(*arena->priv));
	if (arena->priv == NULL)
		goto free_arena;
	arena->frame_shift = shift;
	arena->priv->alloc_type = attr->alloc_type;
	arena->priv->stats = attr->stats;
	rc = arena_reserve_as_much_as_possible(arena, (capacity + UNIT_FRAMES - 1) / UNIT_FRAMES * UNIT_FRAMES);
	if (rc != 0)
		goto free_priv;
	rc = bufpool_range_init(&arena->priv->ranges, arena->capacity / UNIT_FRAMES);
	if (rc != 0)
		goto unmap;
	rc = bufpool_debug_arena_init(arena);
	if (rc != 0)
		goto free_ranges;
	rc = bufpool_register_arena(arena);
	if (rc != 0)
		goto free_debug;
	*out = arena;
	return 0;

free_debug:
	bufpool_debug_arena_fini(arena);
free_ranges:
	bufpool_range_fini(&arena->priv->ranges);
unmap:
	arena_unmap_reserved_range(arena);
free_priv:
	free(arena->priv);
free_arena:
	free(arena);
	return rc;
}

/* From here on no thread may use the arena; its pools end with it, drained or not, and no `drained` is called. */
void vma_bufarena_destroy(struct vma_bufarena *arena)
{
	struct vma_bufarena_priv *priv;

	if (arena == NULL)
		return;
	priv = arena->priv;
	bufpool_unregister_arena(arena);
	bufpool_debug_log_arena_leaks(arena);
	for (unsigned id = 0; id < VMA_BUFPOOL_MAX; id++) {
		struct vma_bufpool *slot = atomic_load_explicit(&priv->slots[id], memory_order_acquire);
		if (slot != NULL)
			bufpool_free_pool_slot(slot);
	}
	bufpool_debug_arena_fini(arena);
	bufpool_range_fini(&priv->ranges);
	arena_unmap_reserved_range(arena);
	free(priv);
	free(arena);
}

static char *frame_at(const struct vma_bufarena *arena, uint32_t index)
{
	return arena->frames + ((size_t)index << arena->frame_shift);
}

/* Huge pages are of use only whole: ranges of at least that size start at one, and explicit ones also end at one. */
static int arena_claim_bufs(struct vma_bufarena *arena, uint32_t count, bool anonymous, uint32_t *first, size_t *bytes)
{
	/* A file may be of huge pages, which map at their own alignment only. */
	enum vma_mem_alloc_type type = anonymous ? arena->priv->alloc_type : VMA_MEM_CONTIG;
	size_t unit_bytes = (size_t)UNIT_FRAMES << arena->frame_shift;
	uint32_t huge = unit_bytes >= HUGE_PAGE ? 1 : (uint32_t)(HUGE_PAGE / unit_bytes);
	uint32_t units, align, unit;
	int rc;

	if (count == 0 || count > arena->capacity)
		return count == 0 ? -EINVAL : -ENOMEM;
	units = (count + UNIT_FRAMES - 1) / UNIT_FRAMES;
	align = type != VMA_MEM_ANON && units >= huge ? huge : 1;
	if (type == VMA_MEM_HUGE)
		units = (units + align - 1) / align * align;
	rc = bufpool_range_claim(&arena->priv->ranges, units, align, &unit);
	if (rc != 0 && align > 1) {
		units = (count + UNIT_FRAMES - 1) / UNIT_FRAMES;
		rc = bufpool_range_claim(&arena->priv->ranges, units, 1, &unit);
	}
	if (rc != 0)
		return rc;
	*first = unit * UNIT_FRAMES;
	*bytes = units * unit_bytes;
	return 0;
}

int vma_bufarena_map_memory(struct vma_bufarena *arena, uint32_t count, uint32_t *first)
{
	size_t bytes;
	uint32_t start;
	int rc = arena_claim_bufs(arena, count, true, &start, &bytes);

	if (rc != 0)
		return rc;
	rc = bufpool_memory_map(frame_at(arena, start), bytes, arena->priv->alloc_type);
	if (rc != 0) {
		bufpool_range_release(&arena->priv->ranges, start / UNIT_FRAMES);
		return rc;
	}
	bufpool_debug_mark_mapped(arena, start, count);
	*first = start;
	return 0;
}

int vma_bufarena_map_fd(struct vma_bufarena *arena, int fd, uint64_t offset_bytes, uint32_t count, uint32_t *first)
{
	size_t bytes = (size_t)count << arena->frame_shift;
	size_t claimed_bytes;
	struct stat file;
	uint32_t start;
	int rc;

	if ((offset_bytes & 4095) != 0 || fstat(fd, &file) != 0)
		return -EINVAL;
	/* A page beyond the end of a file is a SIGBUS in the data path. */
	if (S_ISREG(file.st_mode) && (uint64_t)file.st_size < offset_bytes + bytes)
		return -EINVAL;
	rc = arena_claim_bufs(arena, count, false, &start, &claimed_bytes);
	if (rc != 0)
		return rc;
	if (mmap(frame_at(arena, start), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
	         (off_t)offset_bytes) == MAP_FAILED) {
		rc = errno == ENOMEM || errno == EAGAIN ? -ENOMEM : -EINVAL;
		goto fail;
	}
	if (madvise(frame_at(arena, start), bytes, MADV_DONTFORK) != 0) {
		rc = -ENOMEM; /* without it a child would write into its parent's packets */
		goto fail;
	}
	bufpool_debug_mark_mapped(arena, start, count);
	*first = start;
	return 0;

fail:
	bufpool_memory_reserve(frame_at(arena, start), bytes);
	bufpool_range_release(&arena->priv->ranges, start / UNIT_FRAMES);
	return rc;
}

/*
 * First the memory goes, then the claim: a range that can be claimed is PROT_NONE and has no pages. The descriptors of
 * a unit are whole pages, so that giving theirs back touches no neighbour.
 */
void vma_bufarena_unmap(struct vma_bufarena *arena, uint32_t first, uint32_t count)
{
	uint32_t units = bufpool_range_length(&arena->priv->ranges, first / UNIT_FRAMES);

	if (first % UNIT_FRAMES != 0 || units == 0 || (count + UNIT_FRAMES - 1) / UNIT_FRAMES > units) {
		vma_log_error("bufpool: unmap of %u frames from %u, which is no mapped range", count, first);
		return;
	}
	bufpool_debug_mark_unmapped(arena, first, units * UNIT_FRAMES);
	bufpool_memory_reserve(frame_at(arena, first), (size_t)units * UNIT_FRAMES << arena->frame_shift);
	madvise(vma_buf_at(arena, first), units * UNIT_FRAMES * sizeof(struct vma_buf), MADV_DONTNEED);
	bufpool_range_release(&arena->priv->ranges, first / UNIT_FRAMES);
}
