/* Queues of sleepers: who is woken, who is not, and what a wake-up spent on nobody leaves behind. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/test.h>

#include "../thread/thread.h"

#define SLEEPERS 8

/* Sleepers by their state alone, with a descriptor to be woken by. */
static struct vma_thread sleeper[SLEEPERS];
static struct vma_waitq q;

static int setup_fake_sleeping_threads(void **state)
{
	(void)state;
	memset(&q, 0, sizeof(q));
	for (int i = 0; i < SLEEPERS; i++) {
		atomic_store(&sleeper[i].state, VMA_THREAD_ASLEEP);
		atomic_store(&sleeper[i].wake_fd, eventfd(0, EFD_NONBLOCK));
		sleeper[i].wakeup_unused = false;
	}
	return 0;
}

static int teardown_close_wake_fds(void **state)
{
	(void)state;
	for (int i = 0; i < SLEEPERS; i++)
		close(atomic_load(&sleeper[i].wake_fd));
	return 0;
}

/* Its descriptor has been written. */
static bool wake_fd_was_written(int i)
{
	uint64_t count;

	return read(atomic_load(&sleeper[i].wake_fd), &count, sizeof(count)) == sizeof(count);
}

static bool is_woken(int i)
{
	return atomic_load(&sleeper[i].state) == VMA_THREAD_WOKEN && wake_fd_was_written(i);
}

static unsigned count_woken(void)
{
	unsigned n = 0;

	for (int i = 0; i < SLEEPERS; i++)
		n += is_woken(i);
	return n;
}

static void waitq_add_first_sleepers(int n)
{
	for (int i = 0; i < n; i++)
		vma_waitq_add(&q, &sleeper[i]);
}

static bool waitq_is_empty(void)
{
	for (unsigned i = 0; i < VMA_WAITQ_SLOTS; i++)
		if (atomic_load(&q.slot[i]) != NULL)
			return false;
	return atomic_load(&q.used) == 0 && atomic_load(&q.overflow) == 0;
}

static void test_wake_without_sleepers_is_nothing(void **state)
{
	(void)state;
	vma_waitq_wake(&q, false);
	vma_waitq_wake(&q, true);
	assert_int_equal(count_woken(), 0);
	assert_true(waitq_is_empty());
}

static void test_one_wake_wakes_one(void **state)
{
	(void)state;
	waitq_add_first_sleepers(3);
	vma_waitq_wake(&q, false);
	assert_int_equal(count_woken(), 1);
	vma_waitq_wake(&q, false);
	assert_int_equal(count_woken(), 1);
	vma_waitq_wake(&q, false);
	assert_int_equal(count_woken(), 1);
	assert_true(waitq_is_empty());
}

static void test_wake_of_all_wakes_all(void **state)
{
	(void)state;
	waitq_add_first_sleepers(3);
	vma_waitq_wake(&q, true);
	assert_int_equal(count_woken(), 3);
	assert_true(waitq_is_empty());
}

static void test_sleeper_is_in_the_queue_once(void **state)
{
	(void)state;
	waitq_add_first_sleepers(1);
	waitq_add_first_sleepers(1);
	vma_waitq_remove(&q, &sleeper[0]);
	assert_true(waitq_is_empty());
}

static void test_removed_sleeper_is_not_woken(void **state)
{
	(void)state;
	waitq_add_first_sleepers(2);
	vma_waitq_remove(&q, &sleeper[0]);
	vma_waitq_wake(&q, false);
	assert_false(is_woken(0));
	assert_true(is_woken(1));
	assert_true(waitq_is_empty());
}

static void test_wake_goes_past_one_who_is_awake(void **state)
{
	(void)state;
	waitq_add_first_sleepers(2);
	atomic_store(&sleeper[0].state, VMA_THREAD_AWAKE);
	vma_waitq_wake(&q, false);
	assert_false(wake_fd_was_written(0));
	assert_true(is_woken(1));
}

/* It looks once more before it sleeps: that costs no system call. */
static void test_one_who_is_about_to_sleep_is_stopped(void **state)
{
	(void)state;
	waitq_add_first_sleepers(1);
	atomic_store(&sleeper[0].state, VMA_THREAD_GOING);
	vma_waitq_wake(&q, false);
	assert_int_equal(atomic_load(&sleeper[0].state), VMA_THREAD_WOKEN);
	assert_false(wake_fd_was_written(0));
}

static void test_wake_spent_on_one_who_takes_nothing_is_passed_on(void **state)
{
	(void)state;
	waitq_add_first_sleepers(2);
	vma_waitq_wake(&q, false);
	assert_true(is_woken(0));
	sleeper[0].wakeup_unused = true;
	vma_waitq_remove(&q, &sleeper[0]);
	assert_true(is_woken(1));
	assert_true(waitq_is_empty());
}

static void test_wake_spent_on_one_who_takes_is_not_passed_on(void **state)
{
	(void)state;
	waitq_add_first_sleepers(2);
	vma_waitq_wake(&q, false);
	vma_waitq_remove(&q, &sleeper[0]);
	assert_false(is_woken(1));
	vma_waitq_remove(&q, &sleeper[1]);
	assert_true(waitq_is_empty());
}

static void test_thread_is_woken_once_by_several(void **state)
{
	static struct vma_waitq other;
	uint64_t count;

	(void)state;
	waitq_add_first_sleepers(1);
	vma_waitq_add(&other, &sleeper[0]);
	vma_waitq_wake(&q, false);
	vma_waitq_wake(&other, false);
	assert_int_equal(read(atomic_load(&sleeper[0].wake_fd), &count, sizeof(count)), sizeof(count));
	assert_int_equal(count, 1);
}

/* ---- more than there are places for ---- */

static _Atomic unsigned asleep, up;

/* A real thread: those without a place are found in the table of all. */
static void *thread_sleep_in_full_waitq(void *arg)
{
	struct vma_thread *self = vma_thread_self();
	int fd = eventfd(0, 0), none = -1;
	struct pollfd pfd = {.fd = fd, .events = POLLIN};

	(void)arg;
	if (!atomic_compare_exchange_strong(&self->wake_fd, &none, fd))
		abort();
	atomic_store(&self->state, VMA_THREAD_GOING);
	vma_waitq_add(&q, self);
	atomic_store(&self->state, VMA_THREAD_ASLEEP);
	atomic_fetch_add(&asleep, 1);
	if (poll(&pfd, 1, 5000) == 1)
		atomic_fetch_add(&up, 1);
	atomic_store(&self->wake_fd, -1);
	close(fd);
	return NULL;
}

static void test_sleepers_without_place_are_woken_when_no_other_is(void **state)
{
	pthread_t threads[2];

	(void)state;
	waitq_add_first_sleepers(VMA_WAITQ_SLOTS);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, thread_sleep_in_full_waitq, NULL), 0);
	while (atomic_load(&asleep) < 2)
		usleep(100);
	for (unsigned i = 0; i < VMA_WAITQ_SLOTS; i++) {
		vma_waitq_wake(&q, false);
		assert_int_equal(count_woken(), 1);
	}
	assert_int_equal(atomic_load(&up), 0);
	vma_waitq_wake(&q, false);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(atomic_load(&up), 2);
	assert_true(waitq_is_empty());
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup_fake_sleeping_threads, teardown_close_wake_fds)
static const struct CMUnitTest tests[] = {
        T(test_wake_without_sleepers_is_nothing),
        T(test_one_wake_wakes_one),
        T(test_wake_of_all_wakes_all),
        T(test_sleeper_is_in_the_queue_once),
        T(test_removed_sleeper_is_not_woken),
        T(test_wake_goes_past_one_who_is_awake),
        T(test_one_who_is_about_to_sleep_is_stopped),
        T(test_wake_spent_on_one_who_takes_nothing_is_passed_on),
        T(test_wake_spent_on_one_who_takes_is_not_passed_on),
        T(test_thread_is_woken_once_by_several),
        T(test_sleepers_without_place_are_woken_when_no_other_is),
};
VMA_TEST_MAIN(tests)
