/* Numbers and what stands behind them. The numbers are given out by the test: the table does not ask the kernel. */
#include <errno.h>
#include <limits.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vma/test.h>

#include "fake_file.h"

static void test_number_that_nobody_installed_is_not_ours(void **state)
{
	static const int numbers[] = {0, 77, VMA_FD_LOW - 1, VMA_FD_LOW, 1 << 30, INT_MAX, -1, INT_MIN};

	(void)state;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		assert_null(vma_fd_lookup(numbers[i]));
		vma_fd_remove(numbers[i]); /* no error, no crash */
	}
}

static void test_low_and_high_numbers_are_found(void **state)
{
	static const int numbers[] = {5, VMA_FD_LOW - 2, VMA_FD_LOW, VMA_FD_LOW + 4096, 1 << 30, INT_MAX};

	(void)state;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		struct fake_file *fake = fake_file_create();

		assert_int_equal(vma_fd_install(numbers[i], &fake->file), 0);
		assert_ptr_equal(vma_fd_lookup(numbers[i]), &fake->file);
		assert_null(vma_fd_lookup(numbers[i] - 1));
		assert_int_equal(atomic_load(&fake->file.fd), numbers[i]);
		assert_true(vma_fd_highest() >= numbers[i]);
	}
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		vma_fd_remove(numbers[i]);
		assert_null(vma_fd_lookup(numbers[i]));
	}
	fake_poll_until_retired_are_freed();
}

static void test_negative_number_is_refused(void **state)
{
	struct fake_file *fake = fake_file_create();

	(void)state;
	assert_int_equal(vma_fd_install(-1, &fake->file), -EBADF);
	assert_int_equal(atomic_load(&fake->file.slots), 0);
	vma_file_put(&fake->file);
	fake_poll_until_retired_are_freed();
}

static void test_last_number_closes_and_last_holder_destroys(void **state)
{
	struct fake_file *fake = fake_file_create();
	unsigned destroyed = atomic_load(&fakes_destroyed);

	(void)state;
	assert_int_equal(vma_fd_install(7, &fake->file), 0);
	vma_file_get(&fake->file);
	vma_fd_remove(7);
	fake_poll_until_retired_are_freed();
	assert_int_equal(fake->closed, 1);
	assert_int_equal(atomic_load(&fake->magic), FAKE_ALIVE);
	assert_int_equal(atomic_load(&fakes_destroyed), destroyed);
	vma_file_put(&fake->file);
	fake_poll_until_retired_are_freed();
	assert_int_equal(atomic_load(&fakes_destroyed), destroyed + 1);
}

static void test_file_outlives_its_number_for_who_is_inside(void **state)
{
	struct fake_file *fake = fake_file_create();
	struct vma_thread *self;
	struct vma_file *found;

	(void)state;
	assert_int_equal(vma_fd_install(8, &fake->file), 0);
	self = vma_enter();
	found = vma_fd_lookup(8);
	vma_fd_remove(8);
	fake_poll_until_retired_are_freed();
	assert_int_equal(atomic_load(&fake_of(found)->magic), FAKE_ALIVE);
	vma_leave(self);
	fake_poll_until_retired_are_freed();
}

static void test_reference_taken_while_the_file_waits_for_its_end_keeps_it(void **state)
{
	struct fake_file *fake = fake_file_create();
	unsigned destroyed = atomic_load(&fakes_destroyed);
	struct vma_thread *self;

	(void)state;
	assert_int_equal(vma_fd_install(9, &fake->file), 0);
	self = vma_enter();
	vma_fd_remove(9); /* the last reference of all goes */
	vma_file_get(&fake->file);
	vma_leave(self);
	fake_poll_until_retired_are_freed();
	assert_int_equal(atomic_load(&fakes_destroyed), destroyed);
	assert_int_equal(atomic_load(&fake->magic), FAKE_ALIVE);
	vma_file_get(&fake->file);
	vma_file_put(&fake->file);
	fake_poll_until_retired_are_freed();
	assert_int_equal(atomic_load(&fakes_destroyed), destroyed);
	vma_file_put(&fake->file);
	fake_poll_until_retired_are_freed();
	assert_int_equal(atomic_load(&fakes_destroyed), destroyed + 1);
}

static void test_reference_taken_and_given_back_while_the_file_waits_ends_it_once(void **state)
{
	struct fake_file *fake = fake_file_create();
	unsigned destroyed = atomic_load(&fakes_destroyed);
	struct vma_thread *self;

	(void)state;
	assert_int_equal(vma_fd_install(9, &fake->file), 0);
	self = vma_enter();
	vma_fd_remove(9);
	for (int i = 0; i < 3; i++) {
		vma_file_get(&fake->file);
		vma_file_put(&fake->file);
	}
	fake_poll_until_retired_are_freed();
	assert_int_equal(atomic_load(&fakes_destroyed), destroyed);
	vma_leave(self);
	fake_poll_until_retired_are_freed();
	fake_poll_until_retired_are_freed();
	assert_int_equal(atomic_load(&fakes_destroyed), destroyed + 1);
}

static void test_duplicates_share_the_file_and_it_keeps_a_number(void **state)
{
	struct fake_file *fake = fake_file_create();

	(void)state;
	assert_int_equal(vma_fd_install(10, &fake->file), 0);
	assert_int_equal(vma_fd_install(90000, &fake->file), 0);
	assert_int_equal(vma_fd_install(12, &fake->file), 0);
	assert_int_equal(atomic_load(&fake->file.fd), 10);
	vma_fd_remove(10);
	assert_int_equal(fake->closed, 0);
	assert_int_equal(atomic_load(&fake->file.fd), 12);
	vma_fd_remove(12);
	assert_int_equal(atomic_load(&fake->file.fd), 90000);
	assert_int_equal(fake->closed, 0);
	vma_file_get(&fake->file);
	vma_fd_remove(90000);
	assert_int_equal(fake->closed, 1);
	vma_file_put(&fake->file);
	fake_poll_until_retired_are_freed();
}

static void test_number_given_out_anew_drops_what_was_closed_unseen(void **state)
{
	struct fake_file *first = fake_file_create(), *second = fake_file_create();

	(void)state;
	vma_file_get(&first->file);
	assert_int_equal(vma_fd_install(20, &first->file), 0);
	assert_int_equal(vma_fd_install(20, &second->file), 0);
	assert_int_equal(first->closed, 1);
	assert_ptr_equal(vma_fd_lookup(20), &second->file);
	vma_fd_remove(20);
	vma_file_put(&first->file);
	fake_poll_until_retired_are_freed();
}

static void test_file_that_has_ended_takes_no_number(void **state)
{
	struct fake_file *fake = fake_file_create(), *stale = fake_file_create();

	(void)state;
	vma_file_get(&fake->file);
	assert_int_equal(vma_fd_install(30, &fake->file), 0);
	vma_fd_remove(30);
	assert_int_equal(vma_fd_install(31, &stale->file), 0);
	assert_int_equal(vma_fd_install(31, &fake->file), -EBADF);
	assert_null(vma_fd_lookup(31)); /* and what stood there is gone all the same */
	assert_int_equal(fake->closed, 1);
	vma_file_put(&fake->file);
	fake_poll_until_retired_are_freed();
}

static void test_number_reused_a_thousand_times(void **state)
{
	unsigned closed = atomic_load(&fakes_closed), destroyed = atomic_load(&fakes_destroyed);

	(void)state;
	for (int i = 0; i < 1000; i++) {
		struct fake_file *fake = fake_file_create();

		assert_int_equal(vma_fd_install(40, &fake->file), 0);
		assert_ptr_equal(vma_fd_lookup(40), &fake->file);
		if (i % 2 == 0)
			vma_fd_remove(40);
	}
	vma_fd_remove(40);
	fake_poll_until_retired_are_freed();
	assert_int_equal(atomic_load(&fakes_closed) - closed, 1000);
	assert_int_equal(atomic_load(&fakes_destroyed) - destroyed, 1000);
}

/* A table of 2^30 entries would be 8 GB. */
static void test_highest_number_of_all_costs_a_few_pages(void **state)
{
	struct fake_file *fake = fake_file_create();
	struct rusage before, after;

	(void)state;
	getrusage(RUSAGE_SELF, &before);
	assert_int_equal(vma_fd_install((1 << 30) - 1, &fake->file), 0);
	getrusage(RUSAGE_SELF, &after);
	assert_true(after.ru_maxrss - before.ru_maxrss < 2048); /* KB */
	vma_fd_remove((1 << 30) - 1);
	fake_poll_until_retired_are_freed();
}

static void count_each_file(struct vma_file *file, void *arg)
{
	(void)file;
	++*(int *)arg;
}

static void test_guard_is_high_marked_and_not_a_file_of_the_application(void **state)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC), up, files = 0;
	struct rlimit limit;

	(void)state;
	getrlimit(RLIMIT_NOFILE, &limit);
	up = vma_fd_move_high_and_guard(fd);
	assert_true(up >= (limit.rlim_cur > 1000 ? 1000 : 100));
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	assert_int_equal(fcntl(up, F_GETFD), FD_CLOEXEC);
	assert_true(vma_fd_is_library_internal(up));
	assert_false(vma_fd_is_library_internal(fd));
	vma_file_each(count_each_file, &files);
	assert_int_equal(files, 0);
	vma_fd_unguard_close(up);
	assert_false(vma_fd_is_library_internal(up));
	assert_int_equal(fcntl(up, F_GETFD), -1);
	vma_fd_unguard_close(-1);
}

static void test_guard_finds_a_place_when_high_numbers_are_forbidden(void **state)
{
	struct rlimit limit, low;
	int fd = open("/dev/null", O_RDONLY), up;

	(void)state;
	getrlimit(RLIMIT_NOFILE, &limit);
	low = (struct rlimit){.rlim_cur = 64, .rlim_max = limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	up = vma_fd_move_high_and_guard(fd);
	setrlimit(RLIMIT_NOFILE, &limit);
	assert_int_equal(up, fd);
	assert_true(vma_fd_is_library_internal(fd));
	vma_fd_unguard_close(fd);
}

static void test_guard_of_a_number_closed_unseen_gives_way(void **state)
{
	struct fake_file *fake = fake_file_create();
	int fd = open("/dev/null", O_RDONLY);

	(void)state;
	assert_int_equal(vma_fd_guard_same_number(fd), fd);
	assert_int_equal(vma_fd_install(fd, &fake->file), 0);
	assert_false(vma_fd_is_library_internal(fd));
	assert_ptr_equal(vma_fd_lookup(fd), &fake->file);
	vma_fd_remove(fd);
	close(fd);
	fake_poll_until_retired_are_freed();
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_number_that_nobody_installed_is_not_ours),
        cmocka_unit_test(test_low_and_high_numbers_are_found),
        cmocka_unit_test(test_negative_number_is_refused),
        cmocka_unit_test(test_last_number_closes_and_last_holder_destroys),
        cmocka_unit_test(test_file_outlives_its_number_for_who_is_inside),
        cmocka_unit_test(test_reference_taken_while_the_file_waits_for_its_end_keeps_it),
        cmocka_unit_test(test_reference_taken_and_given_back_while_the_file_waits_ends_it_once),
        cmocka_unit_test(test_duplicates_share_the_file_and_it_keeps_a_number),
        cmocka_unit_test(test_number_given_out_anew_drops_what_was_closed_unseen),
        cmocka_unit_test(test_file_that_has_ended_takes_no_number),
        cmocka_unit_test(test_number_reused_a_thousand_times),
        cmocka_unit_test(test_highest_number_of_all_costs_a_few_pages),
        cmocka_unit_test(test_guard_is_high_marked_and_not_a_file_of_the_application),
        cmocka_unit_test(test_guard_finds_a_place_when_high_numbers_are_forbidden),
        cmocka_unit_test(test_guard_of_a_number_closed_unseen_gives_way),
};

VMA_TEST_MAIN(tests)
