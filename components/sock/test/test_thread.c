/* What is known of a thread: made at its first call, used again after its end; and memory that waits for all to leave.
 */
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/sock_os.h>
#include <vma/test.h>

#include "../thread/thread.h"

#define THREADS 16

/* ---- a structure for each thread ---- */

static struct vma_thread *_Atomic found[THREADS];
static _Atomic unsigned arrived;
static _Atomic bool go;

static void *thread_register_and_wait_for_go(void *arg)
{
	uintptr_t i = (uintptr_t)arg;
	struct vma_thread *self = vma_enter();

	vma_leave(self);
	atomic_store(&found[i], self);
	atomic_fetch_add(&arrived, 1);
	while (!atomic_load(&go))
		usleep(500);
	return vma_thread_self() == self ? NULL : arg;
}

static void call_while_threads_run(void (*look)(void))
{
	pthread_t threads[THREADS];
	void *failed;

	atomic_store(&arrived, 0);
	atomic_store(&go, false);
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, thread_register_and_wait_for_go, (void *)i), 0);
	while (atomic_load(&arrived) < THREADS)
		usleep(500);
	look();
	atomic_store(&go, true);
	for (int i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
}

static void expect_threads_are_distinct(void)
{
	for (int i = 0; i < THREADS; i++) {
		struct vma_thread *mine = atomic_load(&found[i]);

		assert_ptr_not_equal(mine, vma_thread_self());
		assert_ptr_equal(vma_thread_at(mine->index), mine);
		for (int j = 0; j < i; j++)
			assert_ptr_not_equal(mine, atomic_load(&found[j]));
	}
}

static void test_every_thread_has_its_own(void **state)
{
	(void)state;
	assert_ptr_equal(vma_thread_self(), vma_thread_self());
	call_while_threads_run(expect_threads_are_distinct);
}

static void *thread_expect_no_overdue_rings(void *arg)
{
	struct vma_thread *self = vma_thread_self();
	const bool fresh = self->overdue_rings == 0;

	self->overdue_rings = 1;
	return fresh ? NULL : arg;
}

static void test_a_new_thread_has_waited_for_nothing(void **state)
{
	pthread_t thread;
	void *failed;

	for (int i = 0; i < 3; i++) {
		assert_int_equal(pthread_create(&thread, NULL, thread_expect_no_overdue_rings, state), 0);
		assert_int_equal(pthread_join(thread, &failed), 0);
		assert_null(failed);
	}
}

static void test_ended_threads_are_used_again(void **state)
{
	unsigned count;

	(void)state;
	call_while_threads_run(expect_threads_are_distinct);
	count = vma_thread_table_size();
	for (int i = 0; i < 20; i++)
		call_while_threads_run(expect_threads_are_distinct);
	assert_int_equal(vma_thread_table_size(), count);
	for (int i = 0; i < THREADS; i++)
		assert_null(vma_thread_at(atomic_load(&found[i])->index));
	assert_ptr_equal(vma_thread_at(vma_thread_self()->index), vma_thread_self());
}

static pthread_key_t late_tls_destructor_key;
static _Atomic unsigned late_calls;

/* Runs after ours, or before it: either way it may call in. */
static void enter_in_late_tls_destructor(void *arg)
{
	vma_leave(vma_enter());
	if (atomic_fetch_add(&late_calls, 1) % 2 == 0)
		pthread_setspecific(late_tls_destructor_key, arg);
}

static void *thread_enter_with_late_tls_destructor(void *arg)
{
	pthread_setspecific(late_tls_destructor_key, &late_tls_destructor_key);
	vma_leave(vma_enter());
	return arg;
}

static void test_destructor_of_the_application_may_call_in(void **state)
{
	unsigned count;
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_key_create(&late_tls_destructor_key, enter_in_late_tls_destructor), 0);
	count = vma_thread_table_size();
	for (int i = 0; i < 20; i++) {
		assert_int_equal(pthread_create(&thread, NULL, thread_enter_with_late_tls_destructor, NULL), 0);
		assert_int_equal(pthread_join(thread, NULL), 0);
	}
	assert_int_equal(atomic_load(&late_calls), 40);
	assert_int_equal(vma_thread_table_size(), count);
	assert_int_equal(pthread_key_delete(late_tls_destructor_key), 0);
}

/* ---- memory ---- */

struct object {
	struct vma_retired retired; /* first */
	_Atomic bool ended;
};

static void retired_object_mark_ended(struct vma_retired *retired)
{
	atomic_store(&((struct object *)retired)->ended, true);
}

static void retire_test_object(struct object *object)
{
	memset(object, 0, sizeof(*object));
	vma_defer_free_until_no_readers(&object->retired, retired_object_mark_ended);
}

static bool poll_retired_and_check_ended(struct object *object)
{
	for (int i = 0; i < 8; i++)
		vma_run_due_deferred_frees();
	return atomic_load(&object->ended);
}

static void test_memory_is_zero_aligned_and_given_back(void **state)
{
	const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 100000, 5000000};

	(void)state;
	for (int round = 0; round < 3; round++)
		for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
			unsigned char *memory = vma_alloc(sizes[i]);

			assert_non_null(memory);
			assert_int_equal((uintptr_t)memory % 64, 0);
			for (size_t at = 0; at < sizes[i]; at++)
				if (memory[at] != 0)
					fail();
			memset(memory, 0xa5, sizes[i]);
			vma_free(memory);
		}
	vma_free(NULL);
}

static void test_retired_ends_when_nobody_is_inside(void **state)
{
	struct object object;

	(void)state;
	retire_test_object(&object);
	assert_false(atomic_load(&object.ended));
	assert_true(poll_retired_and_check_ended(&object));
}

static _Atomic bool is_inside, may_leave;

static void *stay_inside(void *arg)
{
	struct vma_thread *self = vma_enter();

	vma_enter();
	vma_leave(self); /* nested: still inside */
	atomic_store(&is_inside, true);
	while (!atomic_load(&may_leave))
		usleep(500);
	if (arg == NULL)
		vma_leave(self);
	return NULL; /* else inside, as a thread that is cancelled there */
}

static void expect_retired_kept_while_thread_inside(void *how)
{
	struct object object;
	pthread_t thread;

	atomic_store(&is_inside, false);
	atomic_store(&may_leave, false);
	assert_int_equal(pthread_create(&thread, NULL, stay_inside, how), 0);
	while (!atomic_load(&is_inside))
		usleep(500);
	retire_test_object(&object);
	assert_false(poll_retired_and_check_ended(&object));
	assert_false(poll_retired_and_check_ended(&object));
	atomic_store(&may_leave, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(poll_retired_and_check_ended(&object));
}

static void test_retired_waits_for_who_was_inside(void **state)
{
	(void)state;
	expect_retired_kept_while_thread_inside(NULL);
}

static void test_thread_that_ends_inside_holds_nothing_back(void **state)
{
	(void)state;
	expect_retired_kept_while_thread_inside(&go);
}

static void test_retiring_thread_is_itself_inside(void **state)
{
	struct vma_thread *self = vma_enter();
	struct object object;

	(void)state;
	retire_test_object(&object);
	assert_false(poll_retired_and_check_ended(&object));
	vma_leave(self);
	assert_true(poll_retired_and_check_ended(&object));
}

static struct object second;

static void end_and_retire_another(struct vma_retired *retired)
{
	retired_object_mark_ended(retired);
	retire_test_object(&second);
}

static void test_end_may_retire_another(void **state)
{
	struct object first = {0};

	(void)state;
	vma_defer_free_until_no_readers(&first.retired, end_and_retire_another);
	assert_true(poll_retired_and_check_ended(&first));
	assert_true(poll_retired_and_check_ended(&second));
}

/* ---- fork ---- */

/* 0, or the number of what was not so. */
static int forked_child_check_threads_forgotten(struct vma_thread *parents, unsigned count)
{
	struct object object;
	unsigned alive = 0;

	vma_threads_reset_in_forked_child();
	if (vma_thread_self() != parents || vma_thread_table_size() != count)
		return 1;
	for (unsigned i = 0; i < count; i++)
		alive += vma_thread_at(i) != NULL;
	if (alive != 1 || vma_thread_at(parents->index) != parents)
		return 2;
	if (parents->inside != 1)
		return 3;
	retire_test_object(&object);
	if (poll_retired_and_check_ended(&object))
		return 4; /* this thread is inside */
	vma_leave(parents);
	if (!poll_retired_and_check_ended(&object))
		return 5; /* who was inside in the parent is not here */
	return 0;
}

static void fork_inside_library_and_check_child(void)
{
	struct vma_thread *self = vma_enter();
	unsigned count = vma_thread_table_size();
	int status = 0;
	pid_t child = fork();

	if (child == 0)
		_exit(forked_child_check_threads_forgotten(self, count));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	vma_leave(self);
}

static void test_child_has_one_thread_and_no_section_but_its_own(void **state)
{
	pthread_t thread;

	(void)state;
	atomic_store(&is_inside, false);
	atomic_store(&may_leave, false);
	assert_int_equal(pthread_create(&thread, NULL, stay_inside, NULL), 0);
	while (!atomic_load(&is_inside))
		usleep(500);
	call_while_threads_run(fork_inside_library_and_check_child);
	atomic_store(&may_leave, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

/* ---- the C library's functions ---- */

static void *thread_do_pipe_io_by_libc(void *arg)
{
	char byte;
	int fds[2];

	while (!atomic_load(&go))
		;
	if (vma_os.pipe(fds) != 0 || vma_os.write(fds[1], "x", 1) != 1 || vma_os.read(fds[0], &byte, 1) != 1)
		return arg;
	return vma_os.close(fds[0]) == 0 && vma_os.close(fds[1]) == 0 && byte == 'x' ? NULL : arg;
}

/* Before anybody else has called one. */
static void test_library_functions_are_found_by_several_threads_at_once(void **state)
{
	static struct vma_os at_start;
	pthread_t threads[8];
	void *failed;

	(void)state;
	memcpy(&at_start, &vma_os, sizeof(at_start));
	atomic_store(&go, false);
	for (uintptr_t i = 0; i < 8; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, thread_do_pipe_io_by_libc, &go), 0);
	atomic_store(&go, true);
	for (int i = 0; i < 8; i++) {
		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
	/* Whatever was a boot function is the C library's now. */
	for (size_t i = 0; i < sizeof(vma_os) / sizeof(void *); i++)
		assert_non_null(((void *const *)&vma_os)[i]);
	assert_ptr_not_equal(vma_os.pipe, at_start.pipe);
}

/* ---- fork while others allocate ---- */

#define BLOCKS 64

static void alloc_and_free_blocks(void)
{
	void *blocks[BLOCKS];

	for (size_t i = 0; i < BLOCKS; i++)
		blocks[i] = vma_alloc((i % 4 == 3 ? 4096 : 40) * (i + 1));
	for (size_t i = 0; i < BLOCKS; i++)
		vma_free(blocks[i]);
}

static void *thread_alloc_and_free_once(void *arg)
{
	alloc_and_free_blocks();
	return arg;
}

/* Threads that begin and end, too: the allocator keeps something for each. */
static void *thread_alloc_and_free_until_told(void *arg)
{
	pthread_t other;

	for (unsigned round = 0; !atomic_load(&go); round++) {
		alloc_and_free_blocks();
		if (round % 64 == 0 && pthread_create(&other, NULL, thread_alloc_and_free_once, NULL) == 0)
			pthread_join(other, NULL);
	}
	return arg;
}

static void test_child_may_allocate_whatever_others_were_doing(void **state)
{
	pthread_t threads[3], other;
	int status;

	(void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	skip(); /* the allocator is the sanitizer's */
#endif
	atomic_store(&go, false);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, thread_alloc_and_free_until_told, NULL), 0);
	for (int i = 0; i < 500; i++) {
		pid_t child = fork();

		assert_true(child >= 0);
		if (child == 0) {
			alarm(30);
			alloc_and_free_blocks();
			status = pthread_create(&other, NULL, thread_alloc_and_free_once, NULL);
			_exit(status != 0 || pthread_join(other, NULL) != 0);
		}
		alloc_and_free_blocks();
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(status, 0);
	}
	atomic_store(&go, true);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_library_functions_are_found_by_several_threads_at_once), /* first */
        cmocka_unit_test(test_every_thread_has_its_own),
        cmocka_unit_test(test_ended_threads_are_used_again),
        cmocka_unit_test(test_a_new_thread_has_waited_for_nothing),
        cmocka_unit_test(test_destructor_of_the_application_may_call_in),
        cmocka_unit_test(test_memory_is_zero_aligned_and_given_back),
        cmocka_unit_test(test_retired_ends_when_nobody_is_inside),
        cmocka_unit_test(test_retired_waits_for_who_was_inside),
        cmocka_unit_test(test_thread_that_ends_inside_holds_nothing_back),
        cmocka_unit_test(test_retiring_thread_is_itself_inside),
        cmocka_unit_test(test_end_may_retire_another),
        cmocka_unit_test(test_child_has_one_thread_and_no_section_but_its_own),
        cmocka_unit_test(test_child_may_allocate_whatever_others_were_doing),
};
VMA_TEST_MAIN(tests)
