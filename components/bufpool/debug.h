/* debug - the debug build's knowledge of every buffer; nothing at all in the other builds. */
#ifndef VMA_BUFPOOL_DEBUG_H
#define VMA_BUFPOOL_DEBUG_H

#include "bufpool_priv.h"

#ifdef VMA_DEBUG
int bufpool_debug_arena_init(struct vma_bufarena *arena);
void bufpool_debug_arena_fini(struct vma_bufarena *arena);
void bufpool_debug_log_arena_leaks(struct vma_bufarena *arena);
void bufpool_debug_log_pool_leaks(struct vma_bufpool *pool);
void bufpool_debug_unmark_free_bufs_of_pool(struct vma_bufpool *pool);
void bufpool_debug_mark_mapped(struct vma_bufarena *arena, uint32_t first, uint32_t count);
void bufpool_debug_mark_unmapped(struct vma_bufarena *arena, uint32_t first, uint32_t count);
void bufpool_debug_mark_range_free(struct vma_bufpool *pool, uint32_t first, uint32_t count);
void bufpool_debug_mark_held_and_check_fill(struct vma_bufpool *pool, struct vma_buf *buf);
void bufpool_debug_check_before_put(struct vma_bufarena *arena, struct vma_buf *buf);
void bufpool_debug_mark_free_and_poison(struct vma_bufpool *pool, struct vma_buf *buf);
void bufpool_debug_mark_given_to_nic(struct vma_bufpool *pool, struct vma_buf *buf);
void bufpool_debug_mark_taken_from_nic(struct vma_bufpool *pool, struct vma_buf *buf);
#else
#define bufpool_debug_arena_init(arena) ((void)(arena), 0)
#define bufpool_debug_arena_fini(arena) ((void)(arena))
#define bufpool_debug_log_arena_leaks(arena) ((void)(arena))
#define bufpool_debug_log_pool_leaks(pool) ((void)(pool))
#define bufpool_debug_unmark_free_bufs_of_pool(pool) ((void)(pool))
#define bufpool_debug_mark_mapped(arena, first, count) ((void)(arena))
#define bufpool_debug_mark_unmapped(arena, first, count) ((void)(arena))
#define bufpool_debug_mark_range_free(pool, first, count) ((void)(pool))
#define bufpool_debug_mark_held_and_check_fill(pool, buf) ((void)(pool))
#define bufpool_debug_check_before_put(arena, buf) ((void)(arena))
#define bufpool_debug_mark_free_and_poison(pool, buf) ((void)(pool))
#define bufpool_debug_mark_given_to_nic(pool, buf) ((void)(pool))
#define bufpool_debug_mark_taken_from_nic(pool, buf) ((void)(pool))
#endif

#endif
