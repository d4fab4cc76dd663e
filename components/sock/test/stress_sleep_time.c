/*
 * Nothing that is due is slept through, and a sleeper that comes early enough is not woken. A waker publishes a time,
 * waits until the sleeper has dealt with it, and publishes the next, so that it often meets the sleeper on its way to
 * sleep. That one sleeps for ever unless it knows of something: one wake-up too few, and both wait. STRESS_SECONDS.
 */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include <vma/test.h>

#include "../engine/sleep_time.h"

enum { WAKERS = 1, SPINS = 3000 };

static struct sleep_time sleeper;
static _Atomic uint64_t due[WAKERS]; /* 0: dealt with */
static _Atomic bool stop, stop_sleeper, sleeper_is_stuck;
static _Atomic uint64_t dealt;
static uint64_t wakes[WAKERS], rounds[WAKERS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool woken;

static void sleep_time_wake(void)
{
	pthread_mutex_lock(&lock);
	woken = true;
	pthread_cond_signal(&changed);
	pthread_mutex_unlock(&lock);
}

/* So that the two meet at any point of their ways. */
static void spin_random_short_time(uint32_t *random)
{
	*random = *random * 1103515245 + 12345;
	for (uint32_t n = *random >> 16 & 1023; n > 0; n--)
		atomic_signal_fence(memory_order_seq_cst);
}

/* Apart, or the scheduler lets them take turns on one processor. */
static void pin_thread_to_core(int which)
{
	cpu_set_t allowed, one;
	int cpu = -1;

	if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || CPU_COUNT(&allowed) <= which)
		return;
	for (int n = 0; n <= which; n++) {
		do
			cpu++;
		while (!CPU_ISSET(cpu, &allowed));
	}
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	sched_setaffinity(0, sizeof(one), &one);
}

/* Time is what is published: all of it has come. */
static void clear_published_due_times(void)
{
	for (int i = 0; i < WAKERS; i++)
		atomic_exchange_explicit(&due[i], 0, memory_order_acquire);
}

static bool any_due_time_is_set(void)
{
	bool any = false;

	for (int i = 0; i < WAKERS; i++)
		any |= atomic_load_explicit(&due[i], memory_order_acquire) != 0;
	return any;
}

static void *thread_sleep_and_clear_due_times(void *arg)
{
	uint32_t random = WAKERS;

	(void)arg;
	pin_thread_to_core(0);
	while (!atomic_load(&stop_sleeper)) {
		clear_published_due_times();
		spin_random_short_time(&random);
		sleep_time_publish(&sleeper, UINT64_MAX);
		if (!any_due_time_is_set()) {
			pthread_mutex_lock(&lock);
			while (!woken)
				pthread_cond_wait(&changed, &lock);
			woken = false;
			pthread_mutex_unlock(&lock);
		}
		sleep_time_publish(&sleeper, 0);
	}
	return NULL;
}

static bool wait_until_due_time_is_cleared(int i)
{
	for (unsigned spins = 0; atomic_load_explicit(&due[i], memory_order_relaxed) != 0; spins++) {
		struct timespec pause = {.tv_nsec = 1000000};

		if (spins < SPINS)
			continue; /* there and then, the sleeper is on its way to sleep */
		if (spins < SPINS + 2000)
			sched_yield();
		else if (spins < SPINS + 2000 + 5000)
			nanosleep(&pause, NULL);
		else
			return false;
	}
	return true;
}

static void *publish_due_times_thread(void *arg)
{
	const int i = (int)(intptr_t)arg;
	uint32_t random = (uint32_t)i;

	pin_thread_to_core(1 + i);
	while (!atomic_load(&stop)) {
		spin_random_short_time(&random);
		atomic_store_explicit(&due[i], ++rounds[i], memory_order_relaxed);
		if (sleep_time_load(&sleeper) > rounds[i]) {
			wakes[i]++;
			sleep_time_wake();
		}
		if (!wait_until_due_time_is_cleared(i)) {
			atomic_store(&sleeper_is_stuck, true);
			break;
		}
		atomic_fetch_add(&dealt, 1); /* here, where it orders nothing that is tested */
	}
	return NULL;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void test_nothing_that_is_due_is_slept_through(void **state)
{
	const char *text = getenv("STRESS_SECONDS");
	pthread_t wakers[WAKERS], thread;
	uint64_t all = 0, woke = 0, until;

	(void)state;
	pthread_create(&thread, NULL, thread_sleep_and_clear_due_times, NULL);
	for (int i = 0; i < WAKERS; i++)
		pthread_create(&wakers[i], NULL, publish_due_times_thread, (void *)(intptr_t)i);
	until = now_ns() + (uint64_t)((1 + (text != NULL ? atof(text) : 0)) * 1e9);
	while (vma_test_goes_on(now_ns(), until, atomic_load(&dealt) > 100) && !atomic_load(&sleeper_is_stuck))
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	atomic_store(&stop, true);
	for (int i = 0; i < WAKERS; i++) {
		pthread_join(wakers[i], NULL);
		all += rounds[i];
		woke += wakes[i];
	}
	atomic_store(&stop_sleeper, true);
	sleep_time_wake();
	pthread_join(thread, NULL);
	print_message("%lu times, %lu wake-ups\n", (unsigned long)all, (unsigned long)woke);
	assert_false(atomic_load(&sleeper_is_stuck));
	assert_true(all > 100);
	assert_true(woke <= all);
}

static void test_who_comes_early_enough_is_not_woken(void **state)
{
	struct sleep_time time = {0};

	(void)state;
	assert_int_equal(sleep_time_load(&time), 0); /* awake: it looks by itself */
	sleep_time_publish(&time, 100);
	assert_int_equal(sleep_time_load(&time), 100);
	sleep_time_publish(&time, 0);
	assert_int_equal(sleep_time_load(&time), 0);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_comes_early_enough_is_not_woken),
        cmocka_unit_test(test_nothing_that_is_due_is_slept_through),
};
VMA_TEST_MAIN(tests)
