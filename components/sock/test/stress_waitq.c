/*
 * Wake-ups are not lost: sleepers wait for things that wakers give, without a deadline that would repair a loss.
 *
 * More sleepers than places in the queue; one of them leaves all the time because of short deadlines, one because of
 * handlers, and what was spent on those is for the others. The things go up and down, so that sleepers do sleep.
 */
#include "wait_fixture.h"

#define SLEEPERS 10
#define WAKERS 2
#define BURST 3
#define STUCK_NS (3000 * MSEC)

static struct thing thing;
static _Atomic uint64_t given, taken;
static _Atomic bool stop, no_more;
static pthread_t sleepers[SLEEPERS];

static void waitq_noop_signal_handler(int sig)
{
	(void)sig;
}

static void *take_things(void *arg)
{
	const bool impatient = arg != NULL;
	struct thing_wait wait;

	while (!atomic_load(&stop)) {
		thing_wait_init(&wait, &thing, 0, impatient ? MSEC / 20 : UINT64_MAX);
		if (thing_wait_run(&wait) == 1 && thing_try_take_one(&thing))
			atomic_fetch_add(&taken, 1);
	}
	return NULL;
}

static void *give_things(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;

	while (!atomic_load(&no_more)) {
		unsigned n = (seed = seed * 1103515245 + 12345) >> 16 & BURST;

		for (unsigned i = 0; i < n; i++) {
			atomic_fetch_add(&given, 1);
			thing_add_one_and_wake(&thing);
		}
		usleep(seed >> 20 & 63);
	}
	return NULL;
}

static double waitq_stress_seconds(void)
{
	const char *seconds = getenv("STRESS_SECONDS");

	return seconds != NULL ? atof(seconds) : 1.5;
}

/* Everything that was given by now is taken soon, whatever comes after it. */
static void assert_all_given_are_taken_soon(void)
{
	uint64_t until = vma_now_ns() + STUCK_NS, goal = atomic_load(&given);

	while (atomic_load(&taken) < goal && vma_now_ns() < until)
		usleep(200);
	assert_true(atomic_load(&taken) >= goal);
}

static void test_everything_given_is_taken(void **state)
{
	struct sigaction action = {.sa_handler = waitq_noop_signal_handler};
	pthread_t wakers[WAKERS];
	uint64_t until;

	(void)state;
	vma_signals_wrap_existing_handlers();
	assert_int_equal(vma_sigaction(SIGUSR1, &action, NULL), 0);
	for (int i = 0; i < SLEEPERS; i++)
		assert_int_equal(pthread_create(&sleepers[i], NULL, take_things, i == 0 ? &stop : NULL), 0);
	for (uintptr_t i = 0; i < WAKERS; i++)
		assert_int_equal(pthread_create(&wakers[i], NULL, give_things, (void *)(i + 1)), 0);
	until = vma_now_ns() + (uint64_t)(waitq_stress_seconds() * 1e9);
	while (vma_test_goes_on(vma_now_ns(), until, atomic_load(&given) > 100)) {
		usleep(300);
		assert_int_equal(pthread_kill(sleepers[1], SIGUSR1), 0);
	}
	assert_all_given_are_taken_soon();
	/* The last ones, too, after which nothing comes. */
	atomic_store(&no_more, true);
	for (int i = 0; i < WAKERS; i++)
		assert_int_equal(pthread_join(wakers[i], NULL), 0);
	assert_all_given_are_taken_soon();
	assert_true(atomic_load(&given) > 100);
	atomic_store(&stop, true);
	atomic_fetch_add(&thing.count, SLEEPERS);
	for (int i = 0; i < SLEEPERS; i++) {
		struct vma_thread *self = vma_enter();

		vma_waitq_wake(&thing.q, true);
		vma_leave(self);
		assert_int_equal(pthread_join(sleepers[i], NULL), 0);
	}
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_given_is_taken),
};
VMA_TEST_MAIN(tests)
