/* What the tests of pools share: an arena with one pool, fixed or growing. */
#ifndef VMA_BUFPOOL_TEST_FIXTURE_H
#define VMA_BUFPOOL_TEST_FIXTURE_H

#include <string.h>

#include <vma/bufpool.h>
#include <vma/log.h>
#include <vma/test.h>

struct fixture {
	struct vma_bufarena *arena;
	struct vma_bufpool *pool;
	uint32_t first;
	_Atomic int drained;
};

static inline void count_pool_drained(void *arg)
{
	atomic_fetch_add(&((struct fixture *)arg)->drained, 1);
}

static inline struct vma_bufpool *pool_fixture_create_pool(struct vma_bufarena *arena, const char *name,
                                                           uint32_t max_bufs, int mode)
{
	struct vma_bufpool_attr attr = {.arena = arena, .name = name, .max_bufs = max_bufs, .batching_mode = mode};
	struct vma_bufpool *pool = NULL;

	assert_int_equal(vma_bufpool_create(&attr, &pool), 0);
	return pool;
}

static inline void open_arena(struct fixture *f, uint32_t capacity)
{
	struct vma_bufarena_attr attr = {.capacity = capacity};

	memset(f, 0, sizeof(*f));
	assert_int_equal(vma_bufarena_create(&attr, &f->arena), 0);
}

/* A fixed pool of `count` buffers. */
static inline void open_fixed_pool(struct fixture *f, uint32_t count, int mode)
{
	open_arena(f, count * 2 + 256);
	f->pool = pool_fixture_create_pool(f->arena, "fixed", 0, mode);
	assert_int_equal(vma_bufarena_map_memory(f->arena, count, &f->first), 0);
	assert_int_equal(vma_bufpool_add_frames(f->pool, f->first, count), 0);
}

static inline void fixture_retire_pool(struct fixture *f)
{
	vma_bufpool_retire(f->pool, count_pool_drained, f);
}

/* Nothing may be out. */
static inline void close_fixture(struct fixture *f)
{
	fixture_retire_pool(f);
	assert_int_equal(atomic_load(&f->drained), 1);
	vma_bufarena_destroy(f->arena);
}

#endif
