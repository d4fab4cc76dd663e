/* When a socket moves to the ring of who uses it: the count of accesses. */
#include <pthread.h>

#include <vma/sock_migrate.h>
#include <vma/test.h>

enum { RATIO = 10 };

static struct vma_migration migration;

static void init_migration_with(int logic, int64_t ratio, bool is_given)
{
	struct vma_conf conf = {.ring_allocation_logic_rx = logic, .ring_migration_ratio_rx = ratio};

	conf.given[VMA_CONF_AT_ring_migration_ratio_rx] = is_given;
	vma_migration_init(&migration, &conf, VMA_RING_CTX_RX, false);
}

/* Up to the one with which it is to move; 0: it is not, in so many. */
static unsigned migration_accesses_until_move(unsigned most)
{
	for (unsigned i = 1; i <= most; i++) {
		if (vma_migration_count_access_and_decide(&migration))
			return i;
	}
	return 0;
}

static void set_migration_home_to_current_place(void)
{
	vma_migration_set_home(&migration, vma_migration_current_thread_or_core(&migration));
}

static void *thread_count_accesses_until_move(void *accesses)
{
	return (void *)(uintptr_t)migration_accesses_until_move((unsigned)(uintptr_t)accesses);
}

static unsigned count_accesses_by_other_thread(unsigned most)
{
	pthread_t thread;
	void *result;

	assert_int_equal(pthread_create(&thread, NULL, thread_count_accesses_until_move, (void *)(uintptr_t)most), 0);
	assert_int_equal(pthread_join(thread, &result), 0);
	return (unsigned)(uintptr_t)result;
}

static void test_a_socket_used_by_its_own_thread_stays(void **state)
{
	(void)state;
	init_migration_with(VMA_RING_LOGIC_PER_THREAD, RATIO, true);
	set_migration_home_to_current_place();
	assert_int_equal(migration_accesses_until_move(1000), 0);
}

static void test_another_thread_has_it_after_two_rounds(void **state)
{
	(void)state;
	init_migration_with(VMA_RING_LOGIC_PER_THREAD, RATIO, true);
	set_migration_home_to_current_place();
	assert_int_equal(count_accesses_by_other_thread(1000), 2 * RATIO);
}

static void test_wherever_in_a_round_the_thread_changes_it_moves_within_three(void **state)
{
	(void)state;
	for (unsigned before = 0; before < 3 * RATIO; before++) {
		unsigned moved;

		init_migration_with(VMA_RING_LOGIC_PER_THREAD, RATIO, true);
		set_migration_home_to_current_place();
		assert_int_equal(migration_accesses_until_move(before), 0);
		moved = count_accesses_by_other_thread(1000);
		assert_in_range(moved, RATIO, 3 * RATIO);
	}
}

static void test_two_threads_in_turn_leave_it_where_it_is(void **state)
{
	(void)state;
	init_migration_with(VMA_RING_LOGIC_PER_THREAD, RATIO, true);
	set_migration_home_to_current_place();
	for (int turn = 0; turn < 20; turn++) {
		assert_int_equal(count_accesses_by_other_thread(RATIO - 3), 0);
		assert_int_equal(migration_accesses_until_move(1), 0);
	}
}

static void test_unset_minus_one_and_other_logics_are_off(void **state)
{
	(void)state;
	init_migration_with(VMA_RING_LOGIC_PER_THREAD, 100, false);
	assert_int_equal(migration.ratio, 0);
	init_migration_with(VMA_RING_LOGIC_PER_THREAD, -1, true);
	assert_int_equal(migration.ratio, 0);
	init_migration_with(VMA_RING_LOGIC_PER_SOCKET, RATIO, true);
	assert_int_equal(migration.ratio, 0);
	init_migration_with(VMA_RING_LOGIC_PER_INTERFACE, RATIO, true);
	assert_int_equal(migration.ratio, 0);
	assert_int_equal(migration_accesses_until_move(1000), 0);
}

static void test_per_core_the_place_is_a_core(void **state)
{
	struct vma_ring_requester where;

	(void)state;
	init_migration_with(VMA_RING_LOGIC_PER_CORE, RATIO, true);
	assert_in_range(vma_migration_current_thread_or_core(&migration), 1, CPU_SETSIZE);
	where = vma_migration_requester_of_place(&migration, 4, 9);
	assert_int_equal(where.core, 3);
	assert_int_equal(where.socket_id, 9);
	init_migration_with(VMA_RING_LOGIC_PER_THREAD, RATIO, true);
	assert_int_equal(vma_migration_requester_of_place(&migration, 4711, 9).thread_id, 4711);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_socket_used_by_its_own_thread_stays),
        cmocka_unit_test(test_another_thread_has_it_after_two_rounds),
        cmocka_unit_test(test_wherever_in_a_round_the_thread_changes_it_moves_within_three),
        cmocka_unit_test(test_two_threads_in_turn_leave_it_where_it_is),
        cmocka_unit_test(test_unset_minus_one_and_other_logics_are_off),
        cmocka_unit_test(test_per_core_the_place_is_a_core),
};

VMA_TEST_MAIN(tests)
