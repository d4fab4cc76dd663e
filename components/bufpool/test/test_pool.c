/* A pool hands out every buffer once, and takes each back from whoever puts it. */
#include <vma/bufpool.h>
#include <vma/log.h>
#include <vma/test.h>

#include <pthread.h>
#include <string.h>

#define COUNT 512

struct fixture {
	struct vma_bufarena *arena;
	struct vma_bufpool *pool;
	struct vma_buf *bufs[COUNT + 1];
};

static struct fixture f;

static void open_pool(int mode, uint32_t batch)
{
	struct vma_bufarena_attr arena_attr = {.capacity = 2 * COUNT};
	struct vma_bufpool_attr attr = {.name = "test", .batching_mode = mode, .batch = batch};
	uint32_t first;

	memset(&f, 0, sizeof(f));
	assert_int_equal(vma_bufarena_create(&arena_attr, &f.arena), 0);
	attr.arena = f.arena;
	assert_int_equal(vma_bufpool_create(&attr, &f.pool), 0);
	assert_int_equal(vma_bufarena_map_memory(f.arena, COUNT, &first), 0);
	assert_int_equal(vma_bufpool_add_frames(f.pool, first, COUNT), 0);
}

static void count_drained(void *arg)
{
	++*(int *)arg;
}

static void close_pool(void)
{
	int drained = 0;

	vma_bufpool_retire(f.pool, count_drained, &drained);
	assert_int_equal(drained, 1);
	vma_bufarena_destroy(f.arena);
}

static void assert_each_buf_taken_once(void)
{
	bool seen[2 * COUNT] = {false};

	assert_int_equal(vma_bufpool_get(f.pool, f.bufs, COUNT + 1), COUNT);
	for (int i = 0; i < COUNT; i++) {
		uint32_t index = vma_buf_index(f.arena, f.bufs[i]);
		assert_in_range(index, 0, 2 * COUNT - 1);
		assert_false(seen[index]);
		seen[index] = true;
	}
	assert_int_equal(vma_bufpool_get(f.pool, f.bufs, 1), 0);
}

static void test_every_buffer_is_handed_out_once_in_every_mode(void **state)
{
	(void)state;
	for (int mode = 0; mode <= 2; mode++) {
		open_pool(mode, 0);
		for (int round = 0; round < 3; round++) {
			assert_each_buf_taken_once();
			vma_buf_put_burst(f.arena, f.bufs, COUNT);
		}
		close_pool();
	}
}

static struct vma_bufpool *create_pool_named_by(const void *named_by)
{
	const struct vma_bufpool_attr attr = {.arena = f.arena, .name = "named", .named_by = named_by};
	struct vma_bufpool *pool;

	assert_int_equal(vma_bufpool_create(&attr, &pool), 0);
	return pool;
}

static void test_the_place_of_a_pool_with_a_name_is_kept_for_that_name(void **state)
{
	struct vma_bufpool *others[2], *first;
	int name, other_name;

	(void)state;
	open_pool(0, 0);
	first = create_pool_named_by(&name);
	vma_bufpool_retire(first, NULL, NULL);
	others[0] = create_pool_named_by(NULL);
	others[1] = create_pool_named_by(&other_name);
	assert_ptr_not_equal(others[0], first);
	assert_ptr_not_equal(others[1], first);
	vma_bufpool_retire(others[0], NULL, NULL);
	assert_ptr_equal(create_pool_named_by(&name), first);
	vma_bufpool_release_places(f.arena, &name);
	assert_ptr_equal(create_pool_named_by(NULL), others[0]); /* the pool has ended its name, not its life */
	vma_bufpool_retire(first, NULL, NULL);
	assert_ptr_equal(create_pool_named_by(&other_name), first);
	vma_bufpool_retire(first, NULL, NULL);
	vma_bufpool_retire(others[0], NULL, NULL);
	vma_bufpool_retire(others[1], NULL, NULL);
	close_pool();
}

static void test_batches_of_any_size_lose_nothing(void **state)
{
	static const uint32_t sizes[] = {1, 2, 7, 32, 64};

	(void)state;
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		open_pool(1, sizes[i]);
		for (int round = 0; round < 3; round++) {
			assert_each_buf_taken_once();
			for (int b = 0; b < COUNT; b++)
				vma_buf_put(f.arena, f.bufs[b]);
		}
		close_pool();
	}
}

static void test_a_new_buffer_is_clean(void **state)
{
	struct vma_buf *buf;

	(void)state;
	open_pool(1, 0);
	for (int round = 0; round < 2; round++) {
		assert_int_equal(vma_bufpool_get(f.pool, &buf, 1), 1);
		assert_int_equal(atomic_load(&buf->refs), 1);
		assert_null(buf->next);
		assert_int_equal(buf->flags, 0);
		assert_int_equal(buf->data_off, 0);
		assert_int_equal(buf->len, 0);
		assert_int_equal(buf->pool, vma_bufpool_id(f.pool));
		memset(vma_buf_frame(f.arena, buf), 0xff, 2048);
		buf->flags = VMA_BUF_RX_MORE;
		buf->data_off = buf->len = 77;
		buf->user = &f;
		vma_buf_put(f.arena, buf);
	}
	close_pool();
}

static void test_frame_and_descriptor_belong_together_by_index(void **state)
{
	struct vma_buf *buf;

	(void)state;
	open_pool(1, 0);
	assert_int_equal(vma_bufpool_get(f.pool, &buf, 1), 1);
	assert_ptr_equal(vma_buf_at(f.arena, vma_buf_index(f.arena, buf)), buf);
	assert_ptr_equal(vma_buf_frame(f.arena, buf), f.arena->frames + 2048 * (size_t)vma_buf_index(f.arena, buf));
	buf->data_off = 64;
	assert_ptr_equal(vma_buf_data(f.arena, buf), vma_buf_frame(f.arena, buf) + 64);
	vma_buf_put(f.arena, buf);
	close_pool();
}

static void *take_bufs_and_exit_thread(void *arg)
{
	unsigned *got = arg;
	struct vma_buf *bufs[40];

	*got = vma_bufpool_get(f.pool, bufs, 40);
	vma_buf_put_burst(f.arena, bufs, *got);
	return NULL;
}

static void test_the_end_of_a_thread_gives_its_cache_back(void **state)
{
	(void)state;
	open_pool(2, 0); /* mode 2 never reclaims: what comes back, the thread has given back */
	for (int i = 0; i < 20; i++) {
		unsigned got = 0;
		pthread_t thread;

		assert_int_equal(pthread_create(&thread, NULL, take_bufs_and_exit_thread, &got), 0);
		pthread_join(thread, NULL);
		assert_int_equal(got, 40);
	}
	assert_each_buf_taken_once();
	vma_buf_put_burst(f.arena, f.bufs, COUNT);
	close_pool();
}

static void test_bursts_of_several_pools_go_home_each(void **state)
{
	struct vma_bufpool_attr attr = {.name = "second", .batching_mode = 1};
	struct vma_bufpool *second;
	struct vma_buf *bufs[8];
	uint32_t first;
	int drained = 0;

	(void)state;
	open_pool(1, 0);
	attr.arena = f.arena;
	assert_int_equal(vma_bufpool_create(&attr, &second), 0);
	assert_int_equal(vma_bufarena_map_memory(f.arena, 64, &first), 0);
	assert_int_equal(vma_bufpool_add_frames(second, first, 4), 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(vma_bufpool_get(f.pool, &bufs[2 * i], 1), 1);
		assert_int_equal(vma_bufpool_get(second, &bufs[2 * i + 1], 1), 1);
	}
	vma_buf_put_burst(f.arena, bufs, 8);
	assert_int_equal(vma_bufpool_get(second, bufs, 8), 4);
	for (int i = 0; i < 4; i++)
		assert_int_equal(bufs[i]->pool, vma_bufpool_id(second));
	vma_buf_put_burst(f.arena, bufs, 4);
	vma_bufpool_retire(second, count_drained, &drained);
	assert_int_equal(drained, 1);
	close_pool();
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_buffer_is_handed_out_once_in_every_mode),
        cmocka_unit_test(test_the_place_of_a_pool_with_a_name_is_kept_for_that_name),
        cmocka_unit_test(test_batches_of_any_size_lose_nothing),
        cmocka_unit_test(test_a_new_buffer_is_clean),
        cmocka_unit_test(test_frame_and_descriptor_belong_together_by_index),
        cmocka_unit_test(test_the_end_of_a_thread_gives_its_cache_back),
        cmocka_unit_test(test_bursts_of_several_pools_go_home_each),
};

VMA_TEST_MAIN(tests)
