/*
 * debug - the debug build's watch over every buffer: double free, foreign pointer, write after free, leak.
 *
 * One word per frame says where the frame is and whose it is. It changes by atomic exchange, so if two threads free the
 * same buffer, one of them is named. A fault ends the program, after the log has named pool, buffer and fault. Free
 * frames are filled with a pattern that must still be there when they are taken. Under AddressSanitizer they are
 * poisoned instead, so the access itself is reported.
 */
#ifdef VMA_DEBUG
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <vma/log.h>

#include "debug.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

enum where { WHERE_UNMAPPED, WHERE_MAPPED, WHERE_FREE, WHERE_HELD, WHERE_NIC };
#define WHERE_MASK 7u
#define FILLED 8u /* the frame holds the pattern */
#define HOME_SHIFT 16
#define PATTERN 0xb5
#define PATTERN_WORD 0xb5b5b5b5b5b5b5b5u
#define LEAKS_NAMED 8

static const char *const debug_buf_state_names[] = {"in no mapped range", "in no pool", "free", "held", "with the NIC"};

static const char *debug_buf_state_name(uint32_t state)
{
	return debug_buf_state_names[state & WHERE_MASK];
}

static const char *debug_pool_name_of_id(struct vma_bufarena *arena, uint32_t id)
{
	struct vma_bufpool *slot = NULL;

	if (id < VMA_BUFPOOL_MAX)
		slot = atomic_load_explicit(&arena->priv->slots[id], memory_order_acquire);
	return slot == NULL ? "(no such pool)" : slot->name;
}

#define fault(...)                                                                                                     \
	do {                                                                                                           \
		vma_log_write(VMA_LOG_PANIC, __VA_ARGS__);                                                             \
		abort();                                                                                               \
	} while (0)

int bufpool_debug_arena_init(struct vma_bufarena *arena)
{
	void *map = mmap(NULL, arena->capacity * sizeof(uint32_t), PROT_READ | PROT_WRITE,
	                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (map == MAP_FAILED)
		return -ENOMEM;
	arena->priv->states = map;
	return 0;
}

void bufpool_debug_arena_fini(struct vma_bufarena *arena)
{
#ifdef __SANITIZE_ADDRESS__
	/* The addresses will be somebody else's. Only what was mapped can be poisoned. */
	for (uint32_t i = 0; i < arena->capacity; i++) {
		if (bufpool_range_length(&arena->priv->ranges, i / UNIT_FRAMES) == 0 || i % UNIT_FRAMES != 0)
			continue;
		ASAN_UNPOISON_MEMORY_REGION(
		        vma_buf_frame(arena, vma_buf_at(arena, i)),
		        (size_t)bufpool_range_length(&arena->priv->ranges, i / UNIT_FRAMES) * UNIT_FRAMES
		                << arena->frame_shift);
	}
#endif
	munmap(arena->priv->states, arena->capacity * sizeof(uint32_t));
}

/* Names what is still out of one pool, or of all that live (pool == NULL). */
static void log_leaked_bufs(struct vma_bufarena *arena, struct vma_bufpool *pool, enum vma_log_level level,
                            enum where where)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < arena->capacity; i++) {
		uint32_t state;

		if (i % UNIT_FRAMES == 0 &&
		    (atomic_load_explicit(&arena->priv->ranges.words[i / UNIT_FRAMES / 64], memory_order_relaxed) >>
		             (i / UNIT_FRAMES % 64) &
		     1) == 0) {
			i += UNIT_FRAMES - 1;
			continue;
		}
		state = atomic_load_explicit(&arena->priv->states[i], memory_order_relaxed);
		if ((state & WHERE_MASK) != where || (pool != NULL && state >> HOME_SHIFT != pool->id))
			continue;
		if (found++ < LEAKS_NAMED)
			vma_log_at(level, "bufpool %s: buffer %u is still %s",
			           debug_pool_name_of_id(arena, state >> HOME_SHIFT), i, debug_buf_state_name(state));
	}
	if (found > LEAKS_NAMED)
		vma_log_at(level, "bufpool %s: and %u more are still %s", pool == NULL ? "(all)" : pool->name,
		           found - LEAKS_NAMED, debug_buf_state_names[where]);
}

/* At retirement a buffer may rightly still be in use, also by the NIC. */
void bufpool_debug_log_pool_leaks(struct vma_bufpool *pool)
{
	log_leaked_bufs(pool->arena, pool, VMA_LOG_WARN, WHERE_HELD);
	log_leaked_bufs(pool->arena, pool, VMA_LOG_FINE, WHERE_NIC);
}

void bufpool_debug_log_arena_leaks(struct vma_bufarena *arena)
{
	log_leaked_bufs(arena, NULL, VMA_LOG_ERROR, WHERE_HELD);
	log_leaked_bufs(arena, NULL, VMA_LOG_DEBUG, WHERE_NIC);
}

/* What lies free in a pool at its end is in no pool any more: another may be given it. */
void bufpool_debug_unmark_free_bufs_of_pool(struct vma_bufpool *pool)
{
	struct vma_bufarena *arena = pool->arena;

	for (uint32_t i = 0; i < arena->capacity; i++) {
		uint32_t state = atomic_load_explicit(&arena->priv->states[i], memory_order_relaxed);

		if ((state & WHERE_MASK) != WHERE_FREE || state >> HOME_SHIFT != pool->id)
			continue;
#ifdef __SANITIZE_ADDRESS__
		ASAN_UNPOISON_MEMORY_REGION(vma_buf_frame(arena, vma_buf_at(arena, i)),
		                            (size_t)1 << arena->frame_shift);
#endif
		atomic_store_explicit(&arena->priv->states[i], WHERE_MAPPED, memory_order_relaxed);
	}
}

static void set_debug_state_range(struct vma_bufarena *arena, uint32_t first, uint32_t count, uint32_t state)
{
	for (uint32_t i = first; i < first + count; i++)
		atomic_store_explicit(&arena->priv->states[i], state, memory_order_relaxed);
}

void bufpool_debug_mark_mapped(struct vma_bufarena *arena, uint32_t first, uint32_t count)
{
	set_debug_state_range(arena, first, count, WHERE_MAPPED);
}

void bufpool_debug_mark_unmapped(struct vma_bufarena *arena, uint32_t first, uint32_t count)
{
	for (uint32_t i = first; i < first + count; i++) {
		uint32_t state = atomic_load_explicit(&arena->priv->states[i], memory_order_relaxed);

		if ((state & WHERE_MASK) == WHERE_HELD)
			fault("bufpool %s: buffer %u is held while its memory is unmapped",
			      debug_pool_name_of_id(arena, state >> HOME_SHIFT), i);
	}
#ifdef __SANITIZE_ADDRESS__
	ASAN_UNPOISON_MEMORY_REGION(vma_buf_frame(arena, vma_buf_at(arena, first)),
	                            (size_t)count << arena->frame_shift);
#endif
	set_debug_state_range(arena, first, count, WHERE_UNMAPPED);
}

/* The buffer's index, after making sure that it is one of a mapped range. */
static uint32_t debug_checked_buf_index(struct vma_bufarena *arena, const struct vma_buf *buf, const char *call)
{
	uintptr_t offset = (uintptr_t)buf - (uintptr_t)arena->bufs;
	uint32_t index = (uint32_t)(offset / sizeof(*buf));
	uint32_t state;

	if ((uintptr_t)buf < (uintptr_t)arena->bufs || offset / sizeof(*buf) >= arena->capacity)
		fault("bufpool: %s of foreign pointer %p: not in the arena", call, (const void *)buf);
	if (offset % sizeof(*buf) != 0)
		fault("bufpool: %s of foreign pointer %p: inside buffer %u", call, (const void *)buf, index);
	state = atomic_load_explicit(&arena->priv->states[index], memory_order_relaxed);
	if ((state & WHERE_MASK) == WHERE_UNMAPPED)
		fault("bufpool: %s of foreign pointer %p: buffer %u is in no mapped range", call, (const void *)buf,
		      index);
	return index;
}

/* Moves a buffer from one place to another; anywhere else it must not be. */
static uint32_t debug_move_buf_state(struct vma_bufpool *pool, uint32_t index, unsigned from_mask, enum where to,
                                     const char *call)
{
	struct vma_bufarena *arena = pool->arena;
	uint32_t new = to | (uint32_t)pool->id << HOME_SHIFT;
	uint32_t old = atomic_exchange_explicit(&arena->priv->states[index], new, memory_order_relaxed);

	if ((from_mask >> (old & WHERE_MASK) & 1) == 0)
		fault("bufpool %s: %s of buffer %u, which is %s (home: %s)%s", pool->name, call, index,
		      debug_buf_state_name(old), debug_pool_name_of_id(arena, old >> HOME_SHIFT),
		      to == WHERE_FREE && (old & WHERE_MASK) == WHERE_FREE ? ": double free" : "");
	if (from_mask != 1u << WHERE_MAPPED && (old & WHERE_MASK) >= WHERE_FREE && to != WHERE_HELD &&
	    old >> HOME_SHIFT != pool->id)
		fault("bufpool %s: %s of buffer %u to the wrong pool, its home is %s", pool->name, call, index,
		      debug_pool_name_of_id(arena, old >> HOME_SHIFT));
	return old;
}

void bufpool_debug_mark_range_free(struct vma_bufpool *pool, uint32_t first, uint32_t count)
{
	for (uint32_t i = first; i < first + count; i++)
		debug_move_buf_state(pool, i, 1u << WHERE_MAPPED, WHERE_FREE, "add");
}

static void check_free_fill_pattern(struct vma_bufpool *pool, struct vma_buf *buf, uint32_t index, uint32_t old)
{
	const char *frame = vma_buf_frame(pool->arena, buf);
	size_t size = (size_t)1 << pool->arena->frame_shift;

#ifdef __SANITIZE_ADDRESS__
	(void)index, (void)old;
	ASAN_UNPOISON_MEMORY_REGION(frame, size);
#else
	if ((old & FILLED) == 0)
		return;
	for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
		if (*(const uint64_t *)(frame + i) == PATTERN_WORD)
			continue;
		while ((unsigned char)frame[i] == PATTERN)
			i++;
		fault("bufpool %s: buffer %u was written at offset %zu after it was freed", pool->name, index, i);
	}
#endif
}

void bufpool_debug_mark_held_and_check_fill(struct vma_bufpool *pool, struct vma_buf *buf)
{
	uint32_t index = debug_checked_buf_index(pool->arena, buf, "get");
	uint32_t old = debug_move_buf_state(pool, index, 1u << WHERE_FREE, WHERE_HELD, "get");

	if (atomic_load_explicit(&buf->refs, memory_order_relaxed) != 0)
		fault("bufpool %s: free buffer %u has references", pool->name, index);
	check_free_fill_pattern(pool, buf, index, old);
}

/* Before a reference is dropped: is it one of ours, and is there a reference to drop? */
void bufpool_debug_check_before_put(struct vma_bufarena *arena, struct vma_buf *buf)
{
	uint32_t index = debug_checked_buf_index(arena, buf, "put");
	uint32_t state = atomic_load_explicit(&arena->priv->states[index], memory_order_relaxed);

	if ((state & WHERE_MASK) != WHERE_HELD)
		fault("bufpool %s: put of buffer %u, which is %s%s", debug_pool_name_of_id(arena, state >> HOME_SHIFT),
		      index, debug_buf_state_name(state), (state & WHERE_MASK) == WHERE_FREE ? ": double free" : "");
	if (atomic_load_explicit(&buf->refs, memory_order_relaxed) == 0)
		fault("bufpool %s: put of buffer %u without references",
		      debug_pool_name_of_id(arena, state >> HOME_SHIFT), index);
	if (buf->pool != state >> HOME_SHIFT)
		fault("bufpool %s: put of buffer %u to the wrong pool (id %u)",
		      debug_pool_name_of_id(arena, state >> HOME_SHIFT), index, buf->pool);
}

void bufpool_debug_mark_free_and_poison(struct vma_bufpool *pool, struct vma_buf *buf)
{
	uint32_t index = vma_buf_index(pool->arena, buf);
	char *frame = vma_buf_frame(pool->arena, buf);
	size_t size = (size_t)1 << pool->arena->frame_shift;

	debug_move_buf_state(pool, index, 1u << WHERE_HELD, WHERE_FREE, "put");
#ifdef __SANITIZE_ADDRESS__
	ASAN_POISON_MEMORY_REGION(frame, size);
#else
	memset(frame, PATTERN, size);
	atomic_fetch_or_explicit(&pool->arena->priv->states[index], FILLED, memory_order_relaxed);
#endif
}

void bufpool_debug_mark_given_to_nic(struct vma_bufpool *pool, struct vma_buf *buf)
{
	uint32_t index = debug_checked_buf_index(pool->arena, buf, "to_nic");

	debug_move_buf_state(pool, index, 1u << WHERE_HELD, WHERE_NIC, "to_nic");
	if (atomic_load_explicit(&buf->refs, memory_order_relaxed) != 1)
		fault("bufpool %s: to_nic of buffer %u, which has other holders", pool->name, index);
}

void bufpool_debug_mark_taken_from_nic(struct vma_bufpool *pool, struct vma_buf *buf)
{
	uint32_t index = debug_checked_buf_index(pool->arena, buf, "from_nic");

	debug_move_buf_state(pool, index, 1u << WHERE_NIC | 1u << WHERE_MAPPED, WHERE_HELD, "from_nic");
}

void vma_bufpool_debug_note_lent(struct vma_bufarena *arena, struct vma_buf *buf, bool is_lent)
{
	struct vma_bufpool *pool = NULL;

	if (buf->pool < VMA_BUFPOOL_MAX)
		pool = atomic_load_explicit(&arena->pools[buf->pool], memory_order_acquire);
	if (pool == NULL)
		fault("bufpool: buffer %u of pool %u, which does not exist, lent to a NIC",
		      debug_checked_buf_index(arena, buf, "lend"), buf->pool);
	if (is_lent)
		bufpool_debug_mark_given_to_nic(pool, buf);
	else
		bufpool_debug_mark_taken_from_nic(pool, buf);
}

void vma_buf_fault_ref_of_free(struct vma_buf *buf)
{
	fault("bufpool: reference taken to %p, which nobody holds", (void *)buf);
}
#else
typedef int bufpool_debug_is_not_in_this_build;
#endif
