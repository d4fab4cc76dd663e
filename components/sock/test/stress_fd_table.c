/*
 * Lookups against installs, duplicates and removals of the same few numbers, from several threads. A thread that finds a
 * file inside must find it alive until it leaves, or until it gives back the reference that it took inside, perhaps after
 * the last number had gone. Every file must be closed and destroyed exactly once, and none may be left.
 */
#include <pthread.h>
#include <time.h>

#include <vma/test.h>

#include "fake_file.h"

#define NUMBERS 6
#define CHANGERS 2
#define READERS 2

static const int numbers[NUMBERS] = {3, 4, 5, VMA_FD_LOW, VMA_FD_LOW + 1, 1 << 20};
static _Atomic bool stop;
static _Atomic unsigned made, dead, found;

static double fd_table_now_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static uint32_t fd_table_stress_next_random(uint32_t *state)
{
	*state = *state * 1664525 + 1013904223;
	return *state >> 8;
}

/* Duplicates what stands at one number under another one, or puts a new file there, or removes. */
static void *thread_change_random_fds(void *arg)
{
	uint32_t random = (uint32_t)(uintptr_t)arg;

	while (!atomic_load(&stop)) {
		int number = numbers[fd_table_stress_next_random(&random) % NUMBERS];
		uint32_t what = fd_table_stress_next_random(&random) % 4;

		if (what == 0) {
			struct fake_file *fake = fake_file_create();

			atomic_fetch_add(&made, 1);
			if (vma_fd_install(number, &fake->file) != 0)
				abort(); /* a new file cannot have ended, and there is memory */
		} else if (what == 1) {
			struct vma_thread *self = vma_enter();
			struct vma_file *file = vma_fd_lookup(number);

			if (file != NULL)
				vma_fd_install(numbers[fd_table_stress_next_random(&random) % NUMBERS], file);
			vma_leave(self);
		} else {
			vma_fd_remove(number);
		}
	}
	return NULL;
}

static void count_dead_file(struct vma_file *file)
{
	for (int i = 0; i < 16; i++)
		if (atomic_load_explicit(&fake_of(file)->magic, memory_order_relaxed) != FAKE_ALIVE)
			atomic_fetch_add(&dead, 1);
}

static void *thread_lookup_random_fds(void *arg)
{
	uint32_t random = (uint32_t)(uintptr_t)arg;

	while (!atomic_load(&stop)) {
		struct vma_thread *self = vma_enter();
		struct vma_file *file = vma_fd_lookup(numbers[fd_table_stress_next_random(&random) % NUMBERS]);
		bool is_held = false;

		if (file != NULL) {
			atomic_fetch_add(&found, 1);
			count_dead_file(file);
			is_held = fd_table_stress_next_random(&random) % 2 == 0;
			if (is_held)
				vma_file_get(file);
		}
		vma_leave(self);
		vma_run_due_deferred_frees();
		if (is_held) {
			count_dead_file(file);
			vma_file_put(file);
		}
	}
	return NULL;
}

static void test_nobody_inside_ever_sees_a_dead_file(void **state)
{
	const char *wanted = getenv("STRESS_SECONDS");
	const double until = fd_table_now_seconds() + (wanted != NULL ? atof(wanted) : 1);
	pthread_t threads[CHANGERS + READERS];

	(void)state;
	for (uintptr_t i = 0; i < CHANGERS + READERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL,
		                                i < CHANGERS ? thread_change_random_fds : thread_lookup_random_fds,
		                                (void *)(i + 1)),
		                 0);
	/* Where cores are scarce, until there was something to see. */
	while (fd_table_now_seconds() < until ||
	       ((atomic_load(&made) <= 100 || atomic_load(&found) <= 100) && fd_table_now_seconds() < until + 10))
		nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
	atomic_store(&stop, true);
	for (unsigned i = 0; i < CHANGERS + READERS; i++)
		pthread_join(threads[i], NULL);
	for (unsigned i = 0; i < NUMBERS; i++)
		vma_fd_remove(numbers[i]);
	fake_poll_until_retired_are_freed();
	assert_true(atomic_load(&made) > 100);
	assert_true(atomic_load(&found) > 100);
	assert_int_equal(atomic_load(&dead), 0);
	assert_int_equal(atomic_load(&fakes_closed), atomic_load(&made));
	assert_int_equal(atomic_load(&fakes_destroyed), atomic_load(&made));
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_inside_ever_sees_a_dead_file),
};

VMA_TEST_MAIN(tests)
