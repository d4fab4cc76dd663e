/* What a fork does with a nic whose lock it cannot have. */
#include <signal.h>
#include <sys/wait.h>

#include <vma/test.h>

#define LOCKS_MS 300
#include "../fork.c"

static bool is_given_up;

static void note_give_up(struct nic_fork_entry *forked)
{
	(void)forked;
	is_given_up = true;
}

static pthread_mutex_t lock;
static struct nic_fork_entry entry;

static int setup(void **state)
{
	(void)state;
	nic_fork_lock_init(&lock);
	entry = (struct nic_fork_entry){.lock = &lock, .give_up = note_give_up};
	nic_fork_register(&entry);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	nic_fork_unregister(&entry);
	pthread_mutex_destroy(&lock);
	return 0;
}

/* Whether the child gave the nic up. */
static bool child_gives_up(void)
{
	int status;
	const pid_t pid = fork();

	if (pid == 0)
		_exit(is_given_up);
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status) == 1;
}

static void test_a_child_gives_up_a_nic_whose_lock_is_free(void **state)
{
	(void)state;
	assert_true(child_gives_up());
	assert_int_equal(pthread_mutex_trylock(&lock), 0); /* the parent has let go */
	pthread_mutex_unlock(&lock);
}

static int hold[2]; /* a pipe; the holder lets go at its end */

static void *hold_lock_until_pipe_ends(void *arg)
{
	char byte;

	pthread_mutex_lock(&lock);
	assert_int_equal(write(*(int *)arg, "", 1), 1);
	while (read(hold[0], &byte, 1) > 0)
		;
	pthread_mutex_unlock(&lock);
	return NULL;
}

static void test_a_fork_does_not_wait_for_ever_and_later_ones_not_at_all(void **state)
{
	pthread_t holder;
	int ready[2];
	char byte;

	(void)state;
	assert_int_equal(pipe(hold), 0);
	assert_int_equal(pipe(ready), 0);
	assert_int_equal(pthread_create(&holder, NULL, hold_lock_until_pipe_ends, &ready[1]), 0);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	assert_false(child_gives_up());
	assert_true(entry.is_stuck);
	assert_false(child_gives_up());
	assert_true(entry.is_stuck);
	close(hold[1]);
	pthread_join(holder, NULL);
	assert_true(child_gives_up());
	assert_false(entry.is_stuck);
	close(hold[0]);
	close(ready[0]);
	close(ready[1]);
}

static pid_t child_of_handler;

static void fork_in_handler(int signal)
{
	(void)signal;
	child_of_handler = fork();
	if (child_of_handler == 0)
		_exit(is_given_up);
}

static void test_a_fork_in_a_signal_handler_does_not_wait_for_its_own_thread(void **state)
{
	const struct sigaction action = {.sa_handler = fork_in_handler};
	struct sigaction before;
	int status;

	(void)state;
	assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
	pthread_mutex_lock(&lock);
	raise(SIGUSR1);
	assert_int_equal(pthread_mutex_unlock(&lock), 0);
	sigaction(SIGUSR1, &before, NULL);
	assert_int_equal(waitpid(child_of_handler, &status, 0), child_of_handler);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_false(entry.is_stuck); /* it did not wait: it knew */
	assert_true(child_gives_up());
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_child_gives_up_a_nic_whose_lock_is_free, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_fork_does_not_wait_for_ever_and_later_ones_not_at_all, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_fork_in_a_signal_handler_does_not_wait_for_its_own_thread, setup,
                                        teardown),
};

VMA_TEST_MAIN(tests)
