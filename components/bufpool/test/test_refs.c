/* A buffer with several holders goes home with the last of them. */
#include "fixture.h"

static void test_the_last_of_several_holders_returns_the_buffer(void **state)
{
	struct fixture f;
	struct vma_buf *buf, *other;

	(void)state;
	open_fixed_pool(&f, 1, 1);
	assert_int_equal(vma_bufpool_get(f.pool, &buf, 1), 1);
	vma_buf_ref(buf);
	vma_buf_ref(buf);
	vma_buf_put(f.arena, buf);
	assert_int_equal(vma_bufpool_get(f.pool, &other, 1), 0);
	vma_buf_put_burst(f.arena, &buf, 1);
	assert_int_equal(vma_bufpool_get(f.pool, &other, 1), 0);
	vma_buf_put(f.arena, buf);
	assert_int_equal(vma_bufpool_get(f.pool, &other, 1), 1);
	assert_ptr_equal(other, buf);
	assert_int_equal(atomic_load(&other->refs), 1);
	vma_buf_put(f.arena, other);
	close_fixture(&f);
}

static void test_a_burst_may_drop_several_references_of_one_buffer(void **state)
{
	struct vma_buf *bufs[3];
	struct fixture f;

	(void)state;
	open_fixed_pool(&f, 1, 1);
	assert_int_equal(vma_bufpool_get(f.pool, bufs, 1), 1);
	vma_buf_ref(bufs[0]);
	vma_buf_ref(bufs[0]);
	bufs[1] = bufs[2] = bufs[0];
	vma_buf_put_burst(f.arena, bufs, 3);
	assert_int_equal(vma_bufpool_get(f.pool, bufs, 2), 1);
	vma_buf_put(f.arena, bufs[0]);
	close_fixture(&f);
}

/* A thousand references come from a counter just below what a 16-bit one could hold, and pass it. */
static void test_references_count_beyond_sixteen_bits(void **state)
{
	struct vma_buf *buf, *other;
	struct fixture f;

	(void)state;
	open_fixed_pool(&f, 1, 1);
	assert_int_equal(vma_bufpool_get(f.pool, &buf, 1), 1);
	for (int i = 0; i < 66000; i++)
		vma_buf_ref(buf);
	for (int i = 0; i < 66000; i++)
		vma_buf_put(f.arena, buf);
	assert_int_equal(vma_bufpool_get(f.pool, &other, 1), 0);
	vma_buf_put(f.arena, buf);
	close_fixture(&f);
}

static void test_a_chain_goes_home_buffer_by_buffer(void **state)
{
	struct vma_buf *bufs[5];
	struct fixture f;

	(void)state;
	open_fixed_pool(&f, 5, 1);
	assert_int_equal(vma_bufpool_get(f.pool, bufs, 5), 5);
	for (int i = 0; i < 4; i++)
		bufs[i]->next = bufs[i + 1];
	vma_buf_ref(bufs[2]); /* one of them has another holder */
	vma_buf_put_chain(f.arena, bufs[0]);
	assert_int_equal(vma_bufpool_get(f.pool, bufs, 5), 4);
	vma_buf_put_burst(f.arena, bufs, 4);
	vma_buf_put_chain(f.arena, NULL);
	for (uint32_t i = f.first; i < f.first + 5; i++)
		if (atomic_load(&vma_buf_at(f.arena, i)->refs) == 1)
			vma_buf_put(f.arena, vma_buf_at(f.arena, i));
	close_fixture(&f);
}

static void test_a_window_fills_from_the_nic_and_empties_to_it(void **state)
{
	struct vma_buf *bufs[64], *got[64];
	struct fixture f;
	uint32_t first;

	(void)state;
	open_arena(&f, 256);
	f.pool = pool_fixture_create_pool(f.arena, "window", 0, 1);
	assert_int_equal(vma_bufarena_map_memory(f.arena, 64, &first), 0);
	assert_int_equal(vma_bufpool_get(f.pool, got, 1), 0);
	for (uint32_t i = 0; i < 64; i++) {
		bufs[i] = vma_buf_at(f.arena, first + i);
		bufs[i]->next = bufs[0];
		bufs[i]->flags = VMA_BUF_RX_MORE;
	}
	vma_bufpool_init_bufs_taken_from_nic(f.pool, bufs, 64);
	for (int i = 0; i < 64; i++) {
		assert_int_equal(atomic_load(&bufs[i]->refs), 1);
		assert_null(bufs[i]->next);
		assert_int_equal(bufs[i]->flags, 0);
		assert_int_equal(bufs[i]->pool, vma_bufpool_id(f.pool));
	}
	vma_buf_put_burst(f.arena, bufs, 64);
	assert_int_equal(vma_bufpool_get(f.pool, got, 64), 64);
	vma_bufpool_uncount_bufs_given_to_nic(f.pool, got, 60);
	for (int i = 0; i < 60; i++)
		assert_int_equal(atomic_load(&got[i]->refs), 0);
	fixture_retire_pool(&f);
	assert_int_equal(atomic_load(&f.drained), 0); /* four are held; sixty are no longer of the population */
	vma_buf_put_burst(f.arena, got + 60, 4);
	assert_int_equal(atomic_load(&f.drained), 1);
	vma_bufarena_destroy(f.arena);
}

static void test_adopt_moves_a_buffer_to_another_home(void **state)
{
	struct vma_bufpool *other;
	struct vma_buf *buf;
	struct fixture f;
	int none = 0;

	(void)state;
	open_fixed_pool(&f, 1, 1);
	other = pool_fixture_create_pool(f.arena, "other", 0, 1);
	assert_int_equal(vma_bufpool_get(f.pool, &buf, 1), 1);
	vma_bufpool_uncount_bufs_given_to_nic(f.pool, &buf, 1);
	vma_bufpool_init_bufs_taken_from_nic(other, &buf, 1);
	vma_buf_put(f.arena, buf);
	assert_int_equal(vma_bufpool_get(f.pool, &buf, 1), 0);
	assert_int_equal(vma_bufpool_get(other, &buf, 1), 1);
	vma_buf_put(f.arena, buf);
	vma_bufpool_retire(other, NULL, &none);
	close_fixture(&f);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_of_several_holders_returns_the_buffer),
        cmocka_unit_test(test_a_burst_may_drop_several_references_of_one_buffer),
        cmocka_unit_test(test_references_count_beyond_sixteen_bits),
        cmocka_unit_test(test_a_chain_goes_home_buffer_by_buffer),
        cmocka_unit_test(test_a_window_fills_from_the_nic_and_empties_to_it),
        cmocka_unit_test(test_adopt_moves_a_buffer_to_another_home),
};

VMA_TEST_MAIN(tests)
