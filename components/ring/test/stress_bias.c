/*
 * The biased flag (drive.h): its owner and other threads try it at any moment. Never do two hold it, nothing that was
 * queued is left behind, and no sleeper is forgotten. STRESS_SECONDS.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <vma/test.h>

#include "../ring_priv.h"

enum { THREADS = 3, POSTS = 4 };

static struct {
	struct drive drive;
	struct command_queue queue;
	/* With the flag: plain, so that two at a time lose some. */
	volatile uint32_t in_use;
	volatile uint64_t served, overlaps;

	_Alignas(64) _Atomic uint64_t posted, refused, acquired, round;
	_Atomic uint32_t arrived;
	_Atomic bool stop, last_round; /* all threads see `last_round` at the same meeting */
	bool helpers, acquires;
} stress;

static uint32_t random_next(uint32_t *seed)
{
	*seed = *seed * 1664525 + 1013904223;
	return *seed >> 8;
}

static void busy_loop(uint32_t loops)
{
	for (volatile uint32_t i = 0; i < loops; i++)
		;
}

/* ---- what a driver does: as ring_rx.c ---- */

static void serve_queue_checking_overlap(uint32_t loops)
{
	stress.overlaps += stress.in_use != 0;
	stress.in_use = 1;
	for (ck_stack_entry_t *entry = command_queue_take_all(&stress.queue); entry != NULL;
	     entry = ck_pr_load_ptr(&entry->next))
		stress.served++;
	if (loops % 16 == 15)
		sched_yield(); /* with one core, too, others meet a thread that holds */
	else
		busy_loop(loops);
	stress.in_use = 0;
}

static void release_and_serve_queue(uint32_t tid, uint32_t loops)
{
	drive_flag_release(&stress.drive, tid);
	while (command_queue_pending(&stress.queue) && drive_flag_try_acquire(&stress.drive, tid)) {
		serve_queue_checking_overlap(loops);
		drive_flag_release(&stress.drive, tid);
	}
}

static void post_command_and_try_to_drive(ck_stack_entry_t *entry, uint32_t *seed)
{
	const uint32_t tid = drive_get_own_thread_id();

	atomic_fetch_add_explicit(&stress.posted, 1, memory_order_relaxed);
	command_queue_push_mpsc(&stress.queue, entry);
	if (!drive_flag_try_acquire(&stress.drive, tid)) {
		atomic_fetch_add_explicit(&stress.refused, 1, memory_order_relaxed);
		return;
	}
	serve_queue_checking_overlap(random_next(seed) % 128);
	release_and_serve_queue(tid, random_next(seed) % 32);
}

static void try_drive_flag_once(uint32_t *seed)
{
	const uint32_t tid = drive_get_own_thread_id();

	if (drive_flag_try_acquire(&stress.drive, tid)) {
		serve_queue_checking_overlap(random_next(seed) % 64);
		release_and_serve_queue(tid, 0);
	}
}

static void acquire_drive_flag_once(void)
{
	assert_true(drive_flag_acquire(&stress.drive));
	serve_queue_checking_overlap(0);
	release_and_serve_queue(drive_get_own_thread_id(), 0);
	atomic_fetch_add_explicit(&stress.acquired, 1, memory_order_relaxed);
}

/* ---- rounds ---- */

/* All threads have come back from their posts: nobody is left to look at the queue. */
static void expect_all_served(void)
{
	if (atomic_load(&stress.stop))
		atomic_store(&stress.last_round, true);
	assert_int_equal(stress.served, atomic_load(&stress.posted));
	assert_int_equal(stress.overlaps, 0);
}

/* Every thread comes here before any goes on. The last does what is between two rounds, alone. */
static void wait_at_round_barrier(void)
{
	const uint64_t round = atomic_load(&stress.round);

	if (atomic_fetch_add(&stress.arrived, 1) == THREADS - 1) {
		expect_all_served();
		atomic_store(&stress.arrived, 0);
		atomic_fetch_add(&stress.round, 1);
		return;
	}
	for (unsigned tries = 0; atomic_load(&stress.round) == round; tries++)
		if (tries % 256 == 255)
			sched_yield();
}

static void stress_post_and_drive_in_rounds(uint32_t seed)
{
	ck_stack_entry_t entries[POSTS];

	for (;;) {
		wait_at_round_barrier();
		if (atomic_load(&stress.last_round))
			return;
		for (int i = 0; i < POSTS; i++) {
			busy_loop(random_next(&seed) % 512);
			if (stress.acquires && random_next(&seed) % 4 == 0)
				acquire_drive_flag_once();
			else if (random_next(&seed) % 4 == 0)
				try_drive_flag_once(&seed);
			post_command_and_try_to_drive(&entries[i], &seed);
		}
	}
}

static void *stress_post_and_drive_thread(void *arg)
{
	if (stress.helpers)
		vma_ring_mark_thread_as_internal_driver();
	stress_post_and_drive_in_rounds((uint32_t)(uintptr_t)arg);
	return NULL;
}

static uint64_t stress_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void *stop_later(void *arg)
{
	const char *seconds = getenv("STRESS_SECONDS");
	const double wait = (seconds != NULL ? atof(seconds) : 1.5) / 3;
	const uint64_t until = stress_now_ns() + (uint64_t)(wait * 1e9);

	(void)arg;
	while (vma_test_goes_on(stress_now_ns(), until,
	                        atomic_load(&stress.round) > 10 && atomic_load(&stress.refused) > 0 &&
	                                (!stress.acquires || atomic_load(&stress.acquired) > 0)))
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	atomic_store(&stress.stop, true);
	return NULL;
}

/* This thread is the owner. True: the flag was biased. */
static bool stress_init_drive_was_biased(bool helpers, bool acquires)
{
	memset(&stress, 0, sizeof(stress));
	drive_flag_init(&stress.drive, VMA_THREAD_SINGLE);
	command_queue_init(&stress.queue);
	stress.helpers = helpers;
	stress.acquires = acquires;
	return atomic_load(&stress.drive.owner) == drive_get_own_thread_id();
}

static void stress_run(void)
{
	pthread_t threads[THREADS - 1], stopper;

	for (int i = 0; i < THREADS - 1; i++)
		assert_int_equal(
		        pthread_create(&threads[i], NULL, stress_post_and_drive_thread, (void *)(uintptr_t)(i + 1)), 0);
	assert_int_equal(pthread_create(&stopper, NULL, stop_later, NULL), 0);
	stress_post_and_drive_in_rounds(4711);
	pthread_join(stopper, NULL);
	for (int i = 0; i < THREADS - 1; i++)
		pthread_join(threads[i], NULL);
	expect_all_served();
	print_message("%lu rounds, %lu posts, %lu refused, %lu acquired\n", (unsigned long)atomic_load(&stress.round),
	              (unsigned long)atomic_load(&stress.posted), (unsigned long)atomic_load(&stress.refused),
	              (unsigned long)atomic_load(&stress.acquired));
	assert_true(atomic_load(&stress.round) > 10);
	assert_true(atomic_load(&stress.refused) > 0);
	assert_false(drive_flag_is_held(&stress.drive));
}

static void test_owner_and_helpers_exclude_each_other_and_leave_nothing_behind(void **state)
{
	const bool biased = stress_init_drive_was_biased(true, false);

	(void)state;
	stress_run();
	if (biased) /* helpers do not end it */
		assert_int_equal(atomic_load(&stress.drive.holder), DRIVE_BIASED);
}

static void test_no_sleeper_is_forgotten(void **state)
{
	(void)state;
	stress_init_drive_was_biased(true, true);
	stress_run();
	assert_true(atomic_load(&stress.acquired) > 0);
}

static void test_flag_becomes_ordinary_under_several_threads_and_excludes_all_the_while(void **state)
{
	(void)state;
	stress_init_drive_was_biased(false, true);
	stress_run();
	assert_int_equal(atomic_load(&stress.drive.holder), 0);
	assert_true(drive_flag_try_acquire(&stress.drive, drive_get_own_thread_id()));
	drive_flag_release(&stress.drive, drive_get_own_thread_id());
	assert_int_equal(atomic_load(&stress.drive.owner), 0);
	assert_int_equal(atomic_load(&stress.drive.both), 0);
}

/* ---- one thread at a time ---- */

static void *try_drive_flag_and_release_thread(void *arg)
{
	const bool taken = drive_flag_try_acquire(&stress.drive, drive_get_own_thread_id());

	if (taken)
		drive_flag_release(&stress.drive, drive_get_own_thread_id());
	*(bool *)arg = taken;
	return NULL;
}

static bool can_other_thread_take_drive_flag(void)
{
	bool taken = false;
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, try_drive_flag_and_release_thread, &taken), 0);
	pthread_join(thread, NULL);
	return taken;
}

static void test_another_thread_gets_the_flag_only_while_its_owner_is_out(void **state)
{
	(void)state;
	if (!stress_init_drive_was_biased(false, false))
		vma_test_skip("no flag is biased here");
	assert_true(drive_flag_try_acquire(&stress.drive, drive_get_own_thread_id()));
	assert_true(drive_flag_is_held(&stress.drive));
	assert_false(drive_flag_try_acquire(&stress.drive, drive_get_own_thread_id())); /* a handler */
	assert_false(drive_flag_acquire(&stress.drive));                                /* a sink */
	assert_false(can_other_thread_take_drive_flag());
	drive_flag_release(&stress.drive, drive_get_own_thread_id());
	assert_false(drive_flag_is_held(&stress.drive));
	for (int i = 0; i < 7; i++)
		assert_true(can_other_thread_take_drive_flag());
	assert_int_equal(atomic_load(&stress.drive.holder), DRIVE_BIASED);
	assert_true(can_other_thread_take_drive_flag()); /* that is enough */
	assert_int_equal(atomic_load(&stress.drive.holder), 0);
	assert_true(drive_flag_try_acquire(&stress.drive, drive_get_own_thread_id()));
	assert_int_equal(atomic_load(&stress.drive.holder), drive_get_own_thread_id());
	drive_flag_release(&stress.drive, drive_get_own_thread_id());
	assert_false(drive_flag_is_held(&stress.drive));
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_another_thread_gets_the_flag_only_while_its_owner_is_out),
        cmocka_unit_test(test_owner_and_helpers_exclude_each_other_and_leave_nothing_behind),
        cmocka_unit_test(test_no_sleeper_is_forgotten),
        cmocka_unit_test(test_flag_becomes_ordinary_under_several_threads_and_excludes_all_the_while),
};

VMA_TEST_MAIN(tests)
