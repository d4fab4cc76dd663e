/* Caches of threads: what idle ones keep is taken back when it is needed, and they survive handlers and forks. */
#include "fixture.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT 512
#define IDLERS 16

struct idle_thread {
	struct fixture *f;
	sem_t ready, go;
	pthread_t thread;
};

/* Fills its cache, then sleeps with it. */
static void *idle_thread_with_full_cache(void *arg)
{
	struct idle_thread *idle_thread = arg;
	struct vma_buf *bufs[40];
	unsigned got = vma_bufpool_get(idle_thread->f->pool, bufs, 32);

	vma_buf_put_burst(idle_thread->f->arena, bufs, got);
	sem_post(&idle_thread->ready);
	sem_wait(&idle_thread->go);
	got = vma_bufpool_get(idle_thread->f->pool, bufs, 1); /* its cache is usable afterwards */
	vma_buf_put_burst(idle_thread->f->arena, bufs, got);
	return NULL;
}

static void start_idle_threads(struct fixture *f, struct idle_thread *idlers)
{
	for (int i = 0; i < IDLERS; i++) {
		idlers[i].f = f;
		sem_init(&idlers[i].ready, 0, 0);
		sem_init(&idlers[i].go, 0, 0);
		assert_int_equal(pthread_create(&idlers[i].thread, NULL, idle_thread_with_full_cache, &idlers[i]), 0);
		sem_wait(&idlers[i].ready);
	}
}

static void end_idle_threads(struct idle_thread *idlers)
{
	for (int i = 0; i < IDLERS; i++) {
		sem_post(&idlers[i].go);
		pthread_join(idlers[i].thread, NULL);
	}
}

static void test_mode_1_takes_back_what_idle_threads_keep(void **state)
{
	struct vma_buf *bufs[COUNT];
	struct idle_thread idlers[IDLERS];
	struct fixture f;

	(void)state;
	open_fixed_pool(&f, COUNT, 1);
	start_idle_threads(&f, idlers);
	assert_int_equal(vma_bufpool_get(f.pool, bufs, COUNT), COUNT);
	vma_buf_put_burst(f.arena, bufs, COUNT);
	end_idle_threads(idlers);
	close_fixture(&f);
}

static void test_get_ready_takes_what_is_at_hand_and_leaves_idle_caches_alone(void **state)
{
	struct vma_buf *bufs[COUNT];
	struct idle_thread idlers[IDLERS];
	struct fixture f;
	unsigned got;

	(void)state;
	open_fixed_pool(&f, COUNT, 1);
	start_idle_threads(&f, idlers);
	got = vma_bufpool_get_without_growth(f.pool, bufs, COUNT);
	assert_int_equal(got, COUNT - IDLERS * 32);
	assert_int_equal(vma_bufpool_get_without_growth(f.pool, bufs + got, COUNT - got), 0);
	assert_int_equal(vma_bufpool_get(f.pool, bufs + got, COUNT - got), COUNT - got);
	vma_buf_put_burst(f.arena, bufs, COUNT);
	end_idle_threads(idlers);
	close_fixture(&f);
}

static void test_mode_2_leaves_idle_caches_alone(void **state)
{
	struct vma_buf *bufs[COUNT];
	struct idle_thread idlers[IDLERS];
	struct fixture f;

	(void)state;
	open_fixed_pool(&f, COUNT, 2);
	start_idle_threads(&f, idlers);
	assert_int_equal(vma_bufpool_get(f.pool, bufs, COUNT), COUNT - IDLERS * 32);
	vma_buf_put_burst(f.arena, bufs, COUNT - IDLERS * 32);
	end_idle_threads(idlers);
	assert_int_equal(vma_bufpool_get(f.pool, bufs, COUNT), COUNT); /* given back by their ends */
	vma_buf_put_burst(f.arena, bufs, COUNT);
	close_fixture(&f);
}

static void test_a_window_smaller_than_a_batch_serves_many_threads(void **state)
{
	struct idle_thread idlers[IDLERS];
	struct vma_buf *bufs[20];
	struct fixture f;

	(void)state;
	open_fixed_pool(&f, 20, 1);
	start_idle_threads(&f, idlers);
	assert_int_equal(vma_bufpool_get(f.pool, bufs, 20), 20);
	vma_buf_put_burst(f.arena, bufs, 20);
	end_idle_threads(idlers);
	close_fixture(&f);
}

static void test_flush_thread_gives_this_threads_caches_to_others(void **state)
{
	struct vma_buf *bufs[COUNT], *other;
	struct idle_thread idlers[IDLERS];
	struct fixture f;

	(void)state;
	open_fixed_pool(&f, 32, 2);
	assert_int_equal(vma_bufpool_get(f.pool, bufs, 32), 32);
	vma_buf_put_burst(f.arena, bufs, 32);
	vma_bufpool_flush_thread(f.arena);
	start_idle_threads(&f, idlers); /* the first of them takes all */
	assert_int_equal(vma_bufpool_get(f.pool, &other, 1), 0);
	end_idle_threads(idlers);
	close_fixture(&f);
}

static struct fixture *handler_fixture;
static _Atomic uint32_t handled, handler_found_pool_empty;

/* Takes and gives back, wherever in get or put the signal came. */
static void alarm_handler_take_and_put(int signal)
{
	struct vma_buf *bufs[3];
	unsigned got = vma_bufpool_get(handler_fixture->pool, bufs, 3);

	(void)signal;
	atomic_fetch_add(&handled, 1);
	if (got < 3)
		atomic_fetch_add(&handler_found_pool_empty, 1);
	vma_buf_put_burst(handler_fixture->arena, bufs, got);
}

static void test_a_signal_handler_may_use_the_pool_that_its_thread_uses(void **state)
{
	struct sigaction action = {.sa_handler = alarm_handler_take_and_put}, before;
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
	struct itimerspec every = {{0, 50000}, {0, 50000}}, never = {{0, 0}, {0, 0}};
	struct vma_buf *bufs[COUNT];
	struct timespec begin, now;
	struct fixture f;
	timer_t timer;

	(void)state;
	open_fixed_pool(&f, COUNT, 1);
	handler_fixture = &f;
	assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
	assert_int_equal(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
	assert_int_equal(timer_settime(timer, 0, &every, NULL), 0);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		for (int i = 0; i < 100; i++) {
			unsigned got = vma_bufpool_get(f.pool, bufs, 1 + (unsigned)i % 70);
			vma_buf_put_burst(f.arena, bufs, got);
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec * 1000 + now.tv_nsec / 1000000 - begin.tv_sec * 1000 - begin.tv_nsec / 1000000 < 300);
	timer_settime(timer, 0, &never, NULL);
	timer_delete(timer);
	sigaction(SIGUSR1, &before, NULL);
	assert_true(atomic_load(&handled) > 10);
	assert_int_equal(vma_bufpool_get(f.pool, bufs, COUNT), COUNT);
	vma_buf_put_burst(f.arena, bufs, COUNT);
	close_fixture(&f);
}

static void test_a_forked_child_goes_on_with_its_copy(void **state)
{
	struct vma_buf *bufs[COUNT], *mine;
	struct idle_thread idlers[IDLERS];
	struct fixture f;
	pid_t child;
	int status;

	(void)state;
	open_arena(&f, 4096);
	f.pool = pool_fixture_create_pool(f.arena, "forked", 4096, 1);
	start_idle_threads(&f, idlers);
	assert_int_equal(vma_bufpool_get(f.pool, &mine, 1), 1);
	memset(vma_buf_frame(f.arena, mine), 'p', 2048);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		unsigned got = vma_bufpool_get(f.pool, bufs, COUNT);

		if (got != COUNT)
			_exit(1);
		for (unsigned i = 0; i < got; i++) {
			if (bufs[i] == mine)
				_exit(2);
			memset(vma_buf_frame(f.arena, bufs[i]), 'c', 2048);
		}
		vma_buf_put_burst(f.arena, bufs, got);
		if (vma_buf_frame(f.arena, mine)[5] != 'p')
			_exit(3);
		memset(vma_buf_frame(f.arena, mine), 'c', 2048);
		vma_buf_put(f.arena, mine);
		fixture_retire_pool(&f);
		_exit(atomic_load(&f.drained) == 1 ? 0 : 4);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(vma_buf_frame(f.arena, mine)[5], 'p');
	vma_buf_put(f.arena, mine);
	end_idle_threads(idlers);
	close_fixture(&f);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mode_1_takes_back_what_idle_threads_keep),
        cmocka_unit_test(test_get_ready_takes_what_is_at_hand_and_leaves_idle_caches_alone),
        cmocka_unit_test(test_mode_2_leaves_idle_caches_alone),
        cmocka_unit_test(test_a_window_smaller_than_a_batch_serves_many_threads),
        cmocka_unit_test(test_flush_thread_gives_this_threads_caches_to_others),
        cmocka_unit_test(test_a_signal_handler_may_use_the_pool_that_its_thread_uses),
        cmocka_unit_test(test_a_forked_child_goes_on_with_its_copy),
};

VMA_TEST_MAIN(tests)
