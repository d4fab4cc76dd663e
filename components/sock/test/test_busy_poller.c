/*
 * A thread that spins and delivers to sleepers is a busy poller: meanwhile packets do not wake the sleepers' watcher.
 * They do again as soon as the busy poller has gone, however it goes.
 */
#include <sched.h>
#include <stdlib.h>

#include "wait_fixture.h"

#define TRIES 2000
#define SETTLE_USEC 2000 /* from a thread's state to its system call; from a packet to the descriptor */

/*
 * On one core the scheduler prefers the sleeper whenever the ring wakes it, and the spinner never finds a packet. So
 * the two have cores of their own, if the machine has two. A new thread is where the thread was that made it.
 */
static cpu_set_t cores;

static void pin_this_thread_to_core(int number)
{
	cpu_set_t own;
	int cpu = -1;

	for (int left = number % CPU_COUNT(&cores); left >= 0;)
		left -= CPU_ISSET(++cpu, &cores) != 0;
	CPU_ZERO(&own);
	CPU_SET(cpu, &own);
	if (sched_setaffinity(0, sizeof(own), &own) != 0)
		abort();
}

/* Sleeps for thing 0, again and again. */
static struct {
	pthread_t thread;
	struct vma_thread *_Atomic self;
	_Atomic unsigned taken;
	_Atomic bool stop;
} sleeper;

static void *thread_sleep_and_take_repeatedly(void *arg)
{
	struct thing_wait wait;

	atomic_store(&sleeper.self, vma_thread_self());
	while (!atomic_load(&sleeper.stop)) {
		thing_wait_init(&wait, &fixture.things[0], fixture.bit, UINT64_MAX);
		if (thing_wait_run(&wait) == 1 && thing_try_take_one(&fixture.things[0]))
			atomic_fetch_add(&sleeper.taken, 1);
	}
	return arg;
}

static bool sleeper_sleeps_after_taking(unsigned taken)
{
	struct vma_thread *self = atomic_load(&sleeper.self);

	return atomic_load(&sleeper.taken) == taken && self != NULL && atomic_load(&self->state) == VMA_THREAD_ASLEEP &&
	       atomic_load(&fixture.ring_ctx->watcher) == self;
}

/* Waits for thing 1 by spinning for ever: becomes a busy poller as soon as something for thing 0 comes. */
static struct {
	pthread_t thread;
	struct thing_wait wait;
	_Atomic bool done;
	bool runs; /* to be joined */
} busy_poller_disarm_rings_with_sleepers;

static void *thread_run_busy_poller_wait(void *arg)
{
	pin_this_thread_to_core(0);
	busy_poller_disarm_rings_with_sleepers.wait.wait.self = vma_thread_self();
	thing_wait_run(&busy_poller_disarm_rings_with_sleepers.wait);
	atomic_store(&busy_poller_disarm_rings_with_sleepers.done, true);
	return arg;
}

static sigjmp_buf back;

static void handler_longjmp_out_of_busy_poll(int sig)
{
	(void)sig;
	siglongjmp(back, 1);
}

static void *thread_busy_poll_until_longjmp(void *arg)
{
	if (sigsetjmp(back, 1) == 0)
		thread_run_busy_poller_wait(arg);
	atomic_store(&busy_poller_disarm_rings_with_sleepers.done, true);
	while (!atomic_load(&sleeper.stop)) /* it goes on without a word to the library */
		usleep(1000);
	return arg;
}

static _Atomic bool busy_polls, hold_busy_poller, busy_poller_held, expire, elsewhere;

static void on_look_record_busy_poll_and_block(struct thing_wait *self)
{
	atomic_store(&busy_polls, self->wait.self->busy_polls == fixture.bit);
	if (atomic_load(&expire))
		self->wait.deadline_ns = 1;
	if (atomic_load(&elsewhere))
		self->rings = 0;
	if (!atomic_load(&hold_busy_poller))
		return;
	atomic_store(&busy_poller_held, true);
	while (atomic_load(&hold_busy_poller))
		usleep(200);
	atomic_store(&busy_poller_held, false);
}

/*
 * The internal thread has armed the ring if it looked twice between two tests. While it is held it hears of no packet,
 * so nothing would unarm the ring.
 */
static void wait_for_unarmed_and_hold_thread(void)
{
	hold_internal_thread();
	while (atomic_load(&fixture.ring_ctx->armed)) {
		release_internal_thread();
		fixture_send(2);
		fixture_wait_until(!atomic_load(&fixture.ring_ctx->armed));
		hold_internal_thread();
	}
}

static int setup_busy_poll_and_sleeper_threads(void **state)
{
	(void)state;
	pin_this_thread_to_core(1);
	wait_for_unarmed_and_hold_thread();
	memset(&sleeper, 0, sizeof(sleeper));
	memset(&busy_poller_disarm_rings_with_sleepers, 0, sizeof(busy_poller_disarm_rings_with_sleepers));
	atomic_store(&busy_polls, false);
	atomic_store(&expire, false);
	atomic_store(&elsewhere, false);
	assert_int_equal(pthread_create(&sleeper.thread, NULL, thread_sleep_and_take_repeatedly, NULL), 0);
	fixture_wait_until(sleeper_sleeps_after_taking(0));
	thing_wait_init(&busy_poller_disarm_rings_with_sleepers.wait, &fixture.things[1], fixture.bit, UINT64_MAX);
	busy_poller_disarm_rings_with_sleepers.wait.wait.spin_loops = -1;
	busy_poller_disarm_rings_with_sleepers.wait.on_look = on_look_record_busy_poll_and_block;
	return 0;
}

static int teardown_busy_poll_threads(void **state)
{
	(void)state;
	atomic_store(&sleeper.stop, true);
	atomic_store(&hold_busy_poller, false);
	thing_add_one_and_wake(&fixture.things[0]);
	thing_add_one_and_wake(&fixture.things[1]);
	if (busy_poller_disarm_rings_with_sleepers.runs)
		assert_int_equal(pthread_join(busy_poller_disarm_rings_with_sleepers.thread, NULL), 0);
	assert_int_equal(pthread_join(sleeper.thread, NULL), 0);
	atomic_store(&fixture.things[0].count, 0);
	atomic_store(&fixture.things[1].count, 0);
	assert_null(atomic_load(&fixture.ring_ctx->watcher));
	release_internal_thread();
	return 0;
}

static bool ring_ctx_is_unarmed(void)
{
	return !atomic_load(&fixture.ring_ctx->disarm_scheduled) &&
	       atomic_load(&fixture.ring_ctx->arms) == atomic_load(&fixture.ring_ctx->arms_taken_down);
}

/* As long as the watcher is the quicker one, there is no busy poller. Returns how many the sleeper has got. */
static unsigned start_to_busy_poll(void *(*how)(void *arg))
{
	unsigned sent = 0;
	bool polls;

	assert_int_equal(pthread_create(&busy_poller_disarm_rings_with_sleepers.thread, NULL, how, NULL), 0);
	busy_poller_disarm_rings_with_sleepers.runs = true;
	fixture_wait_until(atomic_load(&busy_poller_disarm_rings_with_sleepers.wait.looks) > 10);
	while (!(polls = atomic_load(&busy_polls) && ring_ctx_is_unarmed()) && sent < TRIES) {
		fixture_send(0);
		sent++;
		fixture_wait_until(sleeper_sleeps_after_taking(sent));
	}
	assert_true(polls);
	return sent;
}

static bool rings(void)
{
	struct pollfd pfd = {.fd = vma_ring_fd(fixture.ring_ctx->ring), .events = POLLIN};

	usleep(SETTLE_USEC);
	return poll(&pfd, 1, 0) != 0;
}

/* The sleeper gets one by its own watch: nobody else drives. */
static void deliver_to_sleeper_by_own_watch(unsigned taken)
{
	usleep(SETTLE_USEC);
	fixture_send(0);
	fixture_wait_until(sleeper_sleeps_after_taking(taken + 1));
}

static void test_watcher_hears_nothing_while_somebody_busy_polls(void **state)
{
	unsigned taken;

	(void)state;
	taken = start_to_busy_poll(thread_run_busy_poller_wait);
	atomic_store(&hold_busy_poller, true);
	fixture_wait_until(atomic_load(&busy_poller_held));
	fixture_send(0);
	assert_false(rings());
	atomic_store(&hold_busy_poller, false);
	fixture_wait_until(sleeper_sleeps_after_taking(taken + 1)); /* the busy poller has delivered it */
	fixture_send(1);
	fixture_wait_until(atomic_load(&busy_poller_disarm_rings_with_sleepers.done));
	deliver_to_sleeper_by_own_watch(taken + 1);
}

/* The busy poller has lost its core: the internal thread looks, soon, whatever its usual interval. */
static void test_stalled_busy_poller_keeps_nobody_waiting(void **state)
{
	unsigned taken;

	(void)state;
	taken = start_to_busy_poll(thread_run_busy_poller_wait);
	atomic_store(&hold_busy_poller, true);
	fixture_wait_until(atomic_load(&busy_poller_held));
	release_internal_thread();
	fixture_send(0);
	fixture_wait_until(sleeper_sleeps_after_taking(taken + 1));
	assert_true(atomic_load(&busy_poller_held));
	hold_internal_thread();
	atomic_store(&hold_busy_poller, false);
	fixture_send(1);
	fixture_wait_until(atomic_load(&busy_poller_disarm_rings_with_sleepers.done));
}

/* Something has come that the busy poller will not take any more. */
static void test_what_comes_as_the_busy_poller_goes_is_not_left_behind(void **state)
{
	unsigned taken;

	(void)state;
	taken = start_to_busy_poll(thread_run_busy_poller_wait);
	atomic_store(&hold_busy_poller, true);
	fixture_wait_until(atomic_load(&busy_poller_held));
	atomic_fetch_add(&fixture.things[1].count, 1);
	fixture_send(0);
	usleep(SETTLE_USEC);
	atomic_store(&hold_busy_poller, false);
	fixture_wait_until(atomic_load(&busy_poller_disarm_rings_with_sleepers.done));
	fixture_wait_until(sleeper_sleeps_after_taking(taken + 1));
}

static void test_cancelled_busy_poller_arms_for_the_watcher(void **state)
{
	unsigned taken;

	(void)state;
	taken = start_to_busy_poll(thread_run_busy_poller_wait);
	assert_int_equal(pthread_cancel(busy_poller_disarm_rings_with_sleepers.thread), 0);
	assert_int_equal(pthread_join(busy_poller_disarm_rings_with_sleepers.thread, NULL), 0);
	busy_poller_disarm_rings_with_sleepers.runs = false;
	deliver_to_sleeper_by_own_watch(taken);
}

static void test_busy_poller_that_jumps_away_arms_for_the_watcher(void **state)
{
	struct sigaction action = {.sa_handler = handler_longjmp_out_of_busy_poll};
	unsigned taken;

	(void)state;
#ifdef VMA_TSAN
	vma_test_skip("ThreadSanitizer keeps handlers back");
#endif
	assert_int_equal(vma_sigaction(SIGUSR1, &action, NULL), 0);
	taken = start_to_busy_poll(thread_busy_poll_until_longjmp);
	assert_int_equal(pthread_kill(busy_poller_disarm_rings_with_sleepers.thread, SIGUSR1), 0);
	fixture_wait_until(atomic_load(&busy_poller_disarm_rings_with_sleepers.done));
	deliver_to_sleeper_by_own_watch(taken);
}

static void test_busy_poller_whose_time_is_over_arms_for_the_watcher(void **state)
{
	unsigned taken;

	(void)state;
	taken = start_to_busy_poll(thread_run_busy_poller_wait);
	atomic_store(&expire, true);
	fixture_wait_until(atomic_load(&busy_poller_disarm_rings_with_sleepers.done));
	deliver_to_sleeper_by_own_watch(taken);
}

/* As a set that has lost its last member there: it spins on, for what others bring it. */
static void test_busy_poller_that_waits_for_the_ring_no_more_arms_for_the_watcher(void **state)
{
	unsigned taken;

	(void)state;
	taken = start_to_busy_poll(thread_run_busy_poller_wait);
	atomic_store(&elsewhere, true);
	fixture_wait_until(!atomic_load(&busy_polls));
	deliver_to_sleeper_by_own_watch(taken);
	assert_false(atomic_load(&busy_poller_disarm_rings_with_sleepers.done));
}

/* The internal thread looks at rings without a busy poller once a minute: never, here. */
static int setup_busy_poller_fixture(void **state)
{
	setenv("VMA_PROGRESS_ENGINE_INTERVAL", "60000", 1);
	assert_int_equal(sched_getaffinity(0, sizeof(cores), &cores), 0);
	return wait_fixture_start(state);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_watcher_hears_nothing_while_somebody_busy_polls,
                                        setup_busy_poll_and_sleeper_threads, teardown_busy_poll_threads),
        cmocka_unit_test_setup_teardown(test_what_comes_as_the_busy_poller_goes_is_not_left_behind,
                                        setup_busy_poll_and_sleeper_threads, teardown_busy_poll_threads),
        cmocka_unit_test_setup_teardown(test_cancelled_busy_poller_arms_for_the_watcher,
                                        setup_busy_poll_and_sleeper_threads, teardown_busy_poll_threads),
        cmocka_unit_test_setup_teardown(test_busy_poller_that_jumps_away_arms_for_the_watcher,
                                        setup_busy_poll_and_sleeper_threads, teardown_busy_poll_threads),
        cmocka_unit_test_setup_teardown(test_busy_poller_that_waits_for_the_ring_no_more_arms_for_the_watcher,
                                        setup_busy_poll_and_sleeper_threads, teardown_busy_poll_threads),
        cmocka_unit_test_setup_teardown(test_busy_poller_whose_time_is_over_arms_for_the_watcher,
                                        setup_busy_poll_and_sleeper_threads, teardown_busy_poll_threads),
        /* the last: it leaves the ring context armed by the internal thread */
        cmocka_unit_test_setup_teardown(test_stalled_busy_poller_keeps_nobody_waiting,
                                        setup_busy_poll_and_sleeper_threads, teardown_busy_poll_threads),
};

VMA_TEST_MAIN_WITH(tests, setup_busy_poller_fixture, NULL)
