/* Threads are bound to a core each, on the core that the fewest have. */
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/sock_thread.h>
#include <vma/test.h>

static unsigned allowed_cpu_count(void)
{
	cpu_set_t set;

	assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
	return (unsigned)CPU_COUNT(&set);
}

static pthread_barrier_t both;

static void *thread_bind_core_and_check(void *arg)
{
	uint32_t *core = arg;

	*core = vma_thread_bind_core(vma_thread_self());
	pthread_barrier_wait(&both); /* a thread that has ended counts no longer */
	assert_int_equal(allowed_cpu_count(), 1);
	assert_int_equal(vma_thread_bind_core(vma_thread_self()), *core);
	assert_int_equal(sched_getcpu(), *core);
	return NULL;
}

static void bind_two_threads_to_cores(uint32_t core[2])
{
	pthread_t thread[2];

	pthread_barrier_init(&both, NULL, 2);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, thread_bind_core_and_check, &core[i]), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	pthread_barrier_destroy(&both);
}

static void test_two_threads_have_a_core_each(void **state)
{
	uint32_t core[2];

	(void)state;
	if (allowed_cpu_count() < 2)
		vma_test_skip("one core only");
	for (int round = 0; round < 3; round++) { /* the cores of threads that have ended are free again */
		bind_two_threads_to_cores(core);
		assert_int_not_equal(core[0], core[1]);
	}
}

static void *thread_bind_core_then_two_more(void *arg)
{
	uint32_t *core = arg;

	core[2] = vma_thread_bind_core(vma_thread_self());
	bind_two_threads_to_cores(core);
	return NULL;
}

static void test_a_thread_of_a_bound_one_may_have_another_core(void **state)
{
	uint32_t core[3];
	pthread_t thread;

	(void)state;
	if (allowed_cpu_count() < 2)
		vma_test_skip("one core only");
	assert_int_equal(pthread_create(&thread, NULL, thread_bind_core_then_two_more, core), 0);
	pthread_join(thread, NULL);
	assert_int_not_equal(core[0], core[1]);
}

static void *thread_fork_child_expect_unbound(void *arg)
{
	const unsigned before = allowed_cpu_count();
	int status;
	pid_t child;

	(void)arg;
	vma_thread_bind_core(vma_thread_self());
	child = fork();
	if (child == 0) {
		vma_threads_reset_in_forked_child();
		_exit(allowed_cpu_count() != before);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	return NULL;
}

static void test_a_forked_child_is_not_bound(void **state)
{
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, thread_fork_child_expect_unbound, NULL), 0);
	pthread_join(thread, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_two_threads_have_a_core_each),
	        cmocka_unit_test(test_a_thread_of_a_bound_one_may_have_another_core),
	        cmocka_unit_test(test_a_forked_child_is_not_bound),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
