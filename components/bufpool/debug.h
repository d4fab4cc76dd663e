/* debug - the debug build's knowledge of every buffer; nothing at all in the other builds. */
#ifndef VMA_BUFPOOL_DEBUG_H
#define VMA_BUFPOOL_DEBUG_H

#include "bufpool_priv.h"

#ifdef VMA_DEBUG
int bufpool_debug_arena_init(struct vma_bufarena *arena);
void bufpool_debug_arena_fini(struct vma_bufarena *arena);
void bufpool_debug_arena_leaks(struct vma_bufarena *arena);
void bufpool_debug_pool_leaks(struct vma_bufpool *pool);
void bufpool_debug_pool_end(struct vma_bufpool *pool);
void bufpool_debug_mapped(struct vma_bufarena *arena, uint32_t first, uint32_t count);
void bufpool_debug_unmapped(struct vma_bufarena *arena, uint32_t first, uint32_t count);
void bufpool_debug_added(struct vma_bufpool *pool, uint32_t first, uint32_t count);
void bufpool_debug_get(struct vma_bufpool *pool, struct vma_buf *buf);
void bufpool_debug_check_before_put(struct vma_bufarena *arena, struct vma_buf *buf);
void bufpool_debug_put(struct vma_bufpool *pool, struct vma_buf *buf);
void bufpool_debug_to_nic(struct vma_bufpool *pool, struct vma_buf *buf);
void bufpool_debug_from_nic(struct vma_bufpool *pool, struct vma_buf *buf);
#else
#define bufpool_debug_arena_init(arena) ((void)(arena), 0)
#define bufpool_debug_arena_fini(arena) ((void)(arena))
#define bufpool_debug_arena_leaks(arena) ((void)(arena))
#define bufpool_debug_pool_leaks(pool) ((void)(pool))
#define bufpool_debug_pool_end(pool) ((void)(pool))
#define bufpool_debug_mapped(arena, first, count) ((void)(arena))
#define bufpool_debug_unmapped(arena, first, count) ((void)(arena))
#define bufpool_debug_added(pool, first, count) ((void)(pool))
#define bufpool_debug_get(pool, buf) ((void)(pool))
#define bufpool_debug_check_before_put(arena, buf) ((void)(arena))
#define bufpool_debug_put(pool, buf) ((void)(pool))
#define bufpool_debug_to_nic(pool, buf) ((void)(pool))
#define bufpool_debug_from_nic(pool, buf) ((void)(pool))
#endif

#endif
