/* A retired pool gives nothing out, and ends exactly once, with the last buffer that comes back. */
#include "fixture.h"

#include <pthread.h>
#include <semaphore.h>

static void test_a_pool_with_everything_at_home_ends_at_once_in_every_mode(void **state)
{
	(void)state;
	for (int mode = 0; mode <= 2; mode++) {
		struct vma_buf *bufs[100];
		struct fixture f;

		open_fixed_pool(&f, 100, mode);
		assert_int_equal(vma_bufpool_get(f.pool, bufs, 100), 100);
		vma_buf_put_burst(f.arena, bufs, 100);
		close_fixture(&f);
	}
}

static void test_an_empty_pool_ends_at_once(void **state)
{
	struct fixture f;

	(void)state;
	open_arena(&f, 64);
	f.pool = pool_fixture_create_pool(f.arena, "empty", 0, 1);
	close_fixture(&f);
}

static void test_the_last_put_ends_the_pool_in_every_mode(void **state)
{
	(void)state;
	for (int mode = 0; mode <= 2; mode++) {
		struct vma_buf *bufs[100], *late;
		struct fixture f;

		open_fixed_pool(&f, 100, mode);
		assert_int_equal(vma_bufpool_get(f.pool, bufs, 60), 60);
		fixture_retire_pool(&f);
		assert_int_equal(atomic_load(&f.drained), 0);
		assert_int_equal(vma_bufpool_get(f.pool, &late, 1), 0);
		for (int i = 0; i < 59; i++) {
			vma_buf_put(f.arena, bufs[i]);
			assert_int_equal(vma_bufpool_get(f.pool, &late, 1), 0);
		}
		assert_int_equal(atomic_load(&f.drained), 0);
		vma_buf_put_burst(f.arena, bufs + 59, 1);
		assert_int_equal(atomic_load(&f.drained), 1);
		vma_bufarena_destroy(f.arena);
	}
}

static void test_frames_of_an_ended_pool_may_be_given_to_another(void **state)
{
	struct vma_buf *bufs[64];
	struct fixture f;

	(void)state;
	open_fixed_pool(&f, 64, 1);
	assert_int_equal(vma_bufpool_get(f.pool, bufs, 30), 30);
	vma_buf_put_burst(f.arena, bufs, 30);
	fixture_retire_pool(&f);
	assert_int_equal(atomic_load(&f.drained), 1);
	f.pool = pool_fixture_create_pool(f.arena, "successor", 0, 1);
	assert_int_equal(vma_bufpool_add_frames(f.pool, f.first, 64), 0);
	assert_int_equal(vma_bufpool_get(f.pool, bufs, 64), 64);
	for (int i = 0; i < 64; i++)
		memset(vma_buf_frame(f.arena, bufs[i]), i, 2048);
	vma_buf_put_burst(f.arena, bufs, 64);
	fixture_retire_pool(&f);
	assert_int_equal(atomic_load(&f.drained), 2);
	vma_bufarena_destroy(f.arena);
}

static void test_a_buffer_that_is_lent_to_the_nic_keeps_the_pool(void **state)
{
	struct vma_buf *bufs[2];
	struct fixture f;

	(void)state;
	open_fixed_pool(&f, 2, 1);
	assert_int_equal(vma_bufpool_get(f.pool, bufs, 2), 2);
	bufs[1]->flags = 7;
	for (int i = 0; i < 2; i++)
		vma_buf_debug_mark_lent(f.arena, bufs[i]);
	assert_int_equal(atomic_load(&bufs[0]->refs), 0);
	fixture_retire_pool(&f);
	assert_int_equal(atomic_load(&f.drained), 0);
	for (int i = 0; i < 2; i++) {
		vma_buf_debug_mark_returned(f.arena, bufs[i]);
		assert_int_equal(atomic_load(&bufs[i]->refs), 1);
		assert_int_equal(bufs[i]->flags, i * 7); /* what the NIC has made of it */
		assert_int_equal(atomic_load(&f.drained), 0);
		vma_buf_put(f.arena, bufs[i]);
	}
	assert_int_equal(atomic_load(&f.drained), 1);
	vma_bufarena_destroy(f.arena);
}

static void test_giving_the_last_buffer_to_the_nic_ends_the_pool(void **state)
{
	struct vma_buf *bufs[2];
	struct fixture f;

	(void)state;
	open_fixed_pool(&f, 64, 1);
	assert_int_equal(vma_bufpool_get(f.pool, bufs, 2), 2);
	fixture_retire_pool(&f);
	vma_buf_put(f.arena, bufs[0]);
	assert_int_equal(atomic_load(&f.drained), 0);
	vma_bufpool_uncount_bufs_given_to_nic(f.pool, &bufs[1], 1);
	assert_int_equal(atomic_load(&f.drained), 1);
	vma_bufarena_destroy(f.arena);
}

struct sleeper {
	struct fixture *f;
	sem_t ready, go;
};

/* Leaves its cache full and stays alive. */
static void *fill_thread_cache_and_wait(void *arg)
{
	struct sleeper *s = arg;
	struct vma_buf *bufs[50];
	unsigned got = vma_bufpool_get(s->f->pool, bufs, 50);

	vma_buf_put_burst(s->f->arena, bufs, got);
	sem_post(&s->ready);
	sem_wait(&s->go);
	return NULL;
}

static void test_what_lies_in_other_threads_caches_counts_as_returned(void **state)
{
	struct sleeper s[4];
	pthread_t threads[4];
	struct fixture f;

	(void)state;
	open_fixed_pool(&f, 512, 2);
	for (int i = 0; i < 4; i++) {
		s[i].f = &f;
		sem_init(&s[i].ready, 0, 0);
		sem_init(&s[i].go, 0, 0);
		assert_int_equal(pthread_create(&threads[i], NULL, fill_thread_cache_and_wait, &s[i]), 0);
		sem_wait(&s[i].ready);
	}
	fixture_retire_pool(&f);
	assert_int_equal(atomic_load(&f.drained), 1);
	for (int i = 0; i < 4; i++) {
		sem_post(&s[i].go);
		pthread_join(threads[i], NULL);
	}
	vma_bufarena_destroy(f.arena);
}

static void test_an_id_is_free_again_after_the_end_and_not_before(void **state)
{
	struct vma_bufpool *second, *third;
	struct vma_buf *buf, *stale;
	struct fixture f;
	uint16_t id;

	(void)state;
	open_fixed_pool(&f, 64, 1);
	id = vma_bufpool_id(f.pool);
	assert_int_equal(vma_bufpool_get(f.pool, &buf, 1), 1);
	fixture_retire_pool(&f);
	second = pool_fixture_create_pool(f.arena, "second", 0, 1);
	assert_int_not_equal(vma_bufpool_id(second), id);
	vma_buf_put(f.arena, buf);
	assert_int_equal(atomic_load(&f.drained), 1);
	third = pool_fixture_create_pool(f.arena, "third", 0, 1);
	assert_int_equal(vma_bufpool_id(third), id);
	assert_int_equal(vma_bufpool_get(third, &stale, 1), 0); /* nothing of its predecessor's */
	vma_bufpool_retire(second, NULL, NULL);
	vma_bufpool_retire(third, NULL, NULL);
	vma_bufarena_destroy(f.arena);
}

static void test_all_ids_can_be_in_use_and_one_more_is_refused(void **state)
{
	static struct vma_bufpool *pools[VMA_BUFPOOL_MAX];
	struct vma_bufpool_attr attr = {.name = "one too many"};
	struct vma_bufpool *extra;
	struct fixture f;

	(void)state;
	open_arena(&f, 64);
	for (int i = 0; i < VMA_BUFPOOL_MAX; i++)
		pools[i] = pool_fixture_create_pool(f.arena, "many", 0, 1);
	attr.arena = f.arena;
	assert_int_not_equal(vma_bufpool_create(&attr, &extra), 0);
	for (int i = 0; i < VMA_BUFPOOL_MAX; i++)
		vma_bufpool_retire(pools[i], count_pool_drained, &f);
	assert_int_equal(atomic_load(&f.drained), VMA_BUFPOOL_MAX);
	vma_bufarena_destroy(f.arena);
}

static void unmap_then_destroy(void *arg)
{
	struct fixture *f = arg;

	vma_bufarena_unmap(f->arena, f->first, 64);
	vma_bufarena_destroy(f->arena);
	atomic_fetch_add(&f->drained, 1);
}

static void test_the_end_may_take_the_memory_and_the_arena_with_it(void **state)
{
	struct vma_buf *buf;
	struct fixture f;

	(void)state;
	open_fixed_pool(&f, 64, 1);
	assert_int_equal(vma_bufpool_get(f.pool, &buf, 1), 1);
	vma_bufpool_retire(f.pool, unmap_then_destroy, &f);
	vma_buf_put(f.arena, buf);
	assert_int_equal(atomic_load(&f.drained), 1);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_pool_with_everything_at_home_ends_at_once_in_every_mode),
        cmocka_unit_test(test_an_empty_pool_ends_at_once),
        cmocka_unit_test(test_the_last_put_ends_the_pool_in_every_mode),
        cmocka_unit_test(test_frames_of_an_ended_pool_may_be_given_to_another),
        cmocka_unit_test(test_a_buffer_that_is_lent_to_the_nic_keeps_the_pool),
        cmocka_unit_test(test_giving_the_last_buffer_to_the_nic_ends_the_pool),
        cmocka_unit_test(test_what_lies_in_other_threads_caches_counts_as_returned),
        cmocka_unit_test(test_an_id_is_free_again_after_the_end_and_not_before),
        cmocka_unit_test(test_all_ids_can_be_in_use_and_one_more_is_refused),
        cmocka_unit_test(test_the_end_may_take_the_memory_and_the_arena_with_it),
};

VMA_TEST_MAIN(tests)
