/* Sources of callbacks: run by threads of the program when they leave, one thread at a time, and none forgotten. */
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include <vma/sock_callback.h>
#include <vma/test.h>

#include "fake_file.h"

enum { THREADS = 3, POSTS = 20000 };

static struct fake_file *fake;
static struct source {
	struct vma_callback_source source;
	_Atomic unsigned queued, told; /* packets, as it were */
	_Atomic int inside;
	_Atomic unsigned overlaps;
	bool leaves, ends_thread;
} callback_source_of_test;

static bool run(struct vma_callback_source *of)
{
	struct source *source = (struct source *)of;

	if (atomic_fetch_add(&source->inside, 1) != 0)
		atomic_fetch_add(&source->overlaps, 1);
	assert_true(vma_callback_source_is_running_here(of));
	assert_int_equal(vma_thread_self()->inside, 0);
	for (unsigned n = 0; n < VMA_CALLBACK_TURN && atomic_load(&source->told) < atomic_load(&source->queued); n++) {
		atomic_fetch_add(&source->told, 1);
		if (source->leaves)
			vma_leave(vma_enter()); /* runs nothing: this thread is in a callback */
		if (source->ends_thread) {
			source->ends_thread = false;
			atomic_fetch_sub(&source->inside, 1);
			pthread_exit(NULL);
		}
	}
	atomic_fetch_sub(&source->inside, 1);
	return atomic_load(&source->told) < atomic_load(&source->queued);
}

static int setup(void **state)
{
	(void)state;
	fake = fake_file_create();
	callback_source_of_test = (struct source){.source = {.file = &fake->file, .run = run}};
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	assert_int_equal(atomic_load(&fake->file.refs), 1);
	vma_file_put(&fake->file);
	fake_poll_until_retired_are_freed();
	return 0;
}

static void post_test_callback(unsigned n)
{
	atomic_fetch_add(&callback_source_of_test.queued, n);
	vma_callback_post(&callback_source_of_test.source);
}

static void test_source_runs_when_the_thread_leaves(void **state)
{
	struct vma_thread *self = vma_enter();

	(void)state;
	post_test_callback(1);
	vma_enter();
	vma_leave(self);
	assert_int_equal(callback_source_of_test.told, 0); /* still inside */
	vma_leave(self);
	assert_int_equal(callback_source_of_test.told, 1);
	vma_leave(vma_enter());
	assert_int_equal(callback_source_of_test.told, 1);
}

static void test_errno_of_the_call_is_kept(void **state)
{
	struct vma_thread *self = vma_enter();

	(void)state;
	post_test_callback(1);
	errno = ERANGE;
	vma_leave(self);
	assert_int_equal(errno, ERANGE);
}

static void test_a_leave_in_a_callback_runs_no_other_one(void **state)
{
	struct vma_thread *self = vma_enter();

	(void)state;
	callback_source_of_test.leaves = true;
	post_test_callback(10);
	vma_leave(self);
	assert_int_equal(callback_source_of_test.told, 10);
	assert_int_equal(callback_source_of_test.overlaps, 0);
}

static void test_more_than_a_turn_is_run_in_turns(void **state)
{
	struct vma_thread *self = vma_enter();

	(void)state;
	post_test_callback(40 * VMA_CALLBACK_TURN);
	vma_leave(self);
	assert_in_range(callback_source_of_test.told, VMA_CALLBACK_TURN, 39 * VMA_CALLBACK_TURN);
	while (callback_source_of_test.told < callback_source_of_test.queued) {
		const unsigned before = callback_source_of_test.told;

		vma_leave(vma_enter());
		assert_true(callback_source_of_test.told > before);
	}
}

static void test_librarys_thread_leaves_it_to_the_programs(void **state)
{
	struct vma_thread *self = vma_enter();

	(void)state;
	self->is_internal = true;
	post_test_callback(1);
	vma_leave(self);
	assert_int_equal(callback_source_of_test.told, 0);
	self->is_internal = false;
	atomic_fetch_or(&self->held, VMA_HELD_CALLBACKS); /* as it has done to all threads but itself */
	vma_leave(vma_enter());
	assert_int_equal(callback_source_of_test.told, 1);
}

static void *thread_post_three_callbacks(void *arg)
{
	struct vma_thread *self = vma_enter();

	(void)arg;
	post_test_callback(3);
	vma_leave(self);
	return NULL;
}

static void test_thread_that_ends_in_its_callback_leaves_the_rest_to_others(void **state)
{
	pthread_t thread;

	(void)state;
	vma_leave(vma_enter()); /* this thread is one of the library's table */
	callback_source_of_test.ends_thread = true;
	assert_int_equal(pthread_create(&thread, NULL, thread_post_three_callbacks, NULL), 0);
	pthread_join(thread, NULL);
	assert_int_equal(callback_source_of_test.told, 1);
	vma_leave(vma_enter());
	assert_int_equal(callback_source_of_test.told, 3);
	assert_int_equal(callback_source_of_test.overlaps, 0);
}

static void *thread_enter_and_leave(void *arg)
{
	vma_leave(vma_enter());
	return arg;
}

static void test_new_thread_looks_for_what_was_posted_before_it_came(void **state)
{
	struct vma_thread *self = vma_enter();
	pthread_t thread;

	(void)state;
	self->is_internal = true;
	post_test_callback(1);
	vma_leave(self);
	assert_int_equal(callback_source_of_test.told, 0);
	assert_int_equal(pthread_create(&thread, NULL, thread_enter_and_leave, NULL), 0);
	pthread_join(thread, NULL);
	self->is_internal = false;
	assert_int_equal(callback_source_of_test.told, 1);
}

static void *thread_post_callback_many_times(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < POSTS; i++) {
		struct vma_thread *self = vma_enter();

		post_test_callback(1);
		vma_leave(self);
	}
	return NULL;
}

static void test_threads_that_post_and_run_lose_nothing(void **state)
{
	pthread_t thread[THREADS];

	(void)state;
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, thread_post_callback_many_times, NULL), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	/* Whoever came while it ran has said so, and it was run again by whoever ran it, or is posted. */
	for (int i = 0; i < 1000 && callback_source_of_test.told < callback_source_of_test.queued; i++) {
		atomic_fetch_or(&vma_thread_self()->held, VMA_HELD_CALLBACKS);
		vma_leave(vma_enter());
	}
	assert_int_equal(callback_source_of_test.told, THREADS * POSTS);
	assert_int_equal(callback_source_of_test.overlaps, 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
static const struct CMUnitTest tests[] = {
        CASE(test_source_runs_when_the_thread_leaves),
        CASE(test_errno_of_the_call_is_kept),
        CASE(test_a_leave_in_a_callback_runs_no_other_one),
        CASE(test_more_than_a_turn_is_run_in_turns),
        CASE(test_librarys_thread_leaves_it_to_the_programs),
        CASE(test_threads_that_post_and_run_lose_nothing),
        CASE(test_thread_that_ends_in_its_callback_leaves_the_rest_to_others),
        CASE(test_new_thread_looks_for_what_was_posted_before_it_came),
};

VMA_TEST_MAIN(tests)
