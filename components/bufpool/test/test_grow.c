/* A growing pool takes memory when it is dry, up to its bound and to what there is, and says when it found nothing. */
#include "fixture.h"

#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/stats_read.h>

static struct vma_buf *held[20000];

static void test_growth_stops_at_the_bound_to_the_buffer(void **state)
{
	static const uint32_t bounds[] = {1, 63, 64, 100, 512, 513, 1500};

	(void)state;
	for (unsigned i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
		struct fixture f;

		open_arena(&f, 4096);
		f.pool = pool_fixture_create_pool(f.arena, "growing", bounds[i], 1);
		assert_int_equal(vma_bufpool_get(f.pool, held, 2000), bounds[i]);
		vma_buf_put_burst(f.arena, held, bounds[i]);
		assert_int_equal(vma_bufpool_get(f.pool, held, 2000), bounds[i]);
		vma_buf_put_burst(f.arena, held, bounds[i]);
		close_fixture(&f);
	}
}

static void test_nothing_is_taken_before_it_is_needed(void **state)
{
	struct vma_bufpool *second;
	struct fixture f;
	uint32_t first;

	(void)state;
	open_arena(&f, 1024);
	f.pool = pool_fixture_create_pool(f.arena, "one", 1000, 1);
	second = pool_fixture_create_pool(f.arena, "two", 1000, 1); /* bounds may add up to more than there is */
	assert_int_equal(vma_bufarena_map_memory(f.arena, 1024, &first), 0);
	vma_bufarena_unmap(f.arena, first, 1024);
	vma_bufpool_retire(second, NULL, NULL);
	close_fixture(&f);
}

/* The pool's counters, read as another program would. */
static const struct vma_stats_bufpool *pool_counters_by_stats_view(struct vma_stats_view *view)
{
	enum vma_stats_type type;
	const void *block;
	const char *name;
	size_t cursor = 0;

	while (vma_stats_view_next(view, &cursor, &type, &name, &block))
		if (type == VMA_STATS_TYPE_BUFPOOL && strcmp(name, "counted") == 0)
			return block;
	return NULL;
}

static void test_a_full_arena_gives_fewer_and_counts_it(void **state)
{
	struct vma_bufpool_attr attr = {.name = "counted", .max_bufs = 10000, .batching_mode = 1};
	const struct vma_stats_bufpool *count;
	char dir[] = "/tmp/test_grow.XXXXXX", path[64];
	struct vma_stats_view *view;
	struct fixture f;
	unsigned got;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/vmastat.%d", dir, (int)getpid());
	assert_int_equal(vma_stats_create(dir, &attr.stats), 0);
	open_arena(&f, 1024);
	attr.arena = f.arena;
	assert_int_equal(vma_bufpool_create(&attr, &f.pool), 0);
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	got = vma_bufpool_get(f.pool, held, 1024);
	assert_int_equal(got, 1024);
	assert_non_null(pool_counters_by_stats_view(view));
	assert_int_equal(vma_stats_read_counter(&pool_counters_by_stats_view(view)->exhausted), 0);
	assert_int_equal(vma_bufpool_get(f.pool, held + got, 1), 0);
	assert_int_equal(vma_bufpool_get(f.pool, held + got, 5), 0);
	count = pool_counters_by_stats_view(view); /* a copy */
	assert_int_equal(vma_stats_read_counter(&count->exhausted), 2);
	assert_int_equal(vma_stats_read_counter(&count->buffers), 1024);
	assert_int_equal(vma_stats_read_counter(&count->grown), 2);
	assert_true(vma_stats_read_counter(&count->batches_out) >= 1024 / 64);
	vma_buf_put_burst(f.arena, held, got);
	count = pool_counters_by_stats_view(view);
	assert_true(vma_stats_read_counter(&count->batches_in) >= 1024 / 64);
	vma_stats_view_close(view);
	close_fixture(&f);
	vma_stats_destroy(attr.stats);
	assert_int_equal(rmdir(dir), 0);
}

static void test_memory_of_an_ended_pool_goes_to_others(void **state)
{
	struct fixture f;

	(void)state;
	open_arena(&f, 1024);
	for (int round = 0; round < 5; round++) {
		atomic_store(&f.drained, 0);
		f.pool = pool_fixture_create_pool(f.arena, "successor", 1024, 1);
		assert_int_equal(vma_bufpool_get(f.pool, held, 1024), 1024);
		vma_buf_put_burst(f.arena, held, 1024);
		fixture_retire_pool(&f);
		assert_int_equal(atomic_load(&f.drained), 1);
	}
	vma_bufarena_destroy(f.arena);
}

/* Address space runs out under the pool: what there is is handed out, the rest is refused, and nothing breaks. */
static void test_out_of_memory_gives_fewer_and_goes_on(void **state)
{
	int status;
	pid_t child;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	vma_test_skip("the sanitizer itself needs terabytes of address space");
#endif
	(void)state;
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct rlimit data = {16 << 20, 16 << 20}; /* private writable memory; a reservation does not count */
		struct fixture f;
		unsigned got;

		open_arena(&f, 65536);
		f.pool = pool_fixture_create_pool(f.arena, "poor", 60000, 1);
		if (setrlimit(RLIMIT_DATA, &data) != 0)
			_exit(1);
		got = vma_bufpool_get(f.pool, held, 20000);
		if (got == 0 || got == 20000)
			_exit(2);
		if (vma_bufpool_get(f.pool, held + got, 1) != 0)
			_exit(3);
		memset(vma_buf_frame(f.arena, held[got - 1]), 1, 2048);
		vma_buf_put_burst(f.arena, held, got);
		if (vma_bufpool_get(f.pool, held, got) != got)
			_exit(4);
		vma_buf_put_burst(f.arena, held, got);
		fixture_retire_pool(&f);
		_exit(atomic_load(&f.drained) == 1 ? 0 : 5);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_growth_stops_at_the_bound_to_the_buffer),
        cmocka_unit_test(test_nothing_is_taken_before_it_is_needed),
        cmocka_unit_test(test_a_full_arena_gives_fewer_and_counts_it),
        cmocka_unit_test(test_memory_of_an_ended_pool_goes_to_others),
        cmocka_unit_test(test_out_of_memory_gives_fewer_and_goes_on),
};

VMA_TEST_MAIN(tests)
