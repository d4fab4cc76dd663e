/*
 * The fill/completion object under real concurrency: four drivers in four threads, and four client processes that are
 * killed at random while a fake kernel serves them. STRESS_SECONDS: how long (default 1 each). The files under test are
 * compiled in here, with a step hook that dawdles now and then, so that many a death finds a lock held.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <vma/test.h>

static void stress_yield_sometimes(void);
#define XDP_SHARED_STEP() stress_yield_sometimes()

#include "../xdp/shared.c"
#include "../xdp/recover.c"

#include "xdp_fixture.h"

static void stress_yield_sometimes(void)
{
	static _Thread_local uint32_t count;

	if (++count % 61 == 0)
		sched_yield();
}

static uint64_t xdp_shared_now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static uint64_t stress_duration_ms_from_env(void)
{
	const char *seconds = getenv("STRESS_SECONDS");

	return seconds != NULL && atoi(seconds) > 0 ? (uint64_t)atoi(seconds) * 1000 : 1000;
}

static void run_fake_kernel_until_stop(struct fixture *fixture)
{
	while (!fixture->kernel_stop) {
		for (int i = 0; i < 200; i++)
			fake_kernel_step(fixture);
		sched_yield();
	}
}

/* Until told to stop; then gives everything back. The exit status says whether that worked. */
static bool run_client_until_stop_and_return_frames(struct fixture *fixture, uint32_t slot, uint64_t seed)
{
	struct client client;
	bool done = false;

	client_init(&client, fixture, slot, seed);
	while (!fixture->stop) {
		for (int i = 0; i < 100; i++)
			fake_client_random_step(&client);
		if (xdp_fixture_random_below(&client.seed, 8) == 0)
			sched_yield();
	}
	for (int i = 0; i < 100000 && !done; i++) {
		done = fake_client_return_all(&client);
		sched_yield();
	}
	return done;
}

/* When nobody moves any more: all is with the kernel or the owner, and everything is there once. */
static void assert_each_frame_in_one_place(struct fixture *fixture)
{
	struct client *nobody[W_SLOTS] = {0};

	assert_rx_frames_accounted(fixture, nobody);
	assert_tx_frames_accounted(fixture, nobody);
	if (fixture->errors != 0)
		fail_msg("%u complaints, first: %s", fixture->errors, fixture->complaint);
	for (uint32_t s = 0; s < W_SLOTS; s++)
		assert_int_equal(fixture_count_tx_frames_in_flight(&fixture->shared, s), 0);
}

/* ---- four threads ---- */

struct thread_args {
	struct fixture *fixture;
	uint32_t slot;
	bool done;
};

static void *client_thread(void *arg)
{
	struct thread_args *args = arg;

	args->done = run_client_until_stop_and_return_frames(args->fixture, args->slot, args->slot + 1);
	return NULL;
}

static void *fake_kernel_thread(void *arg)
{
	run_fake_kernel_until_stop(arg);
	return NULL;
}

static void test_four_drivers_lose_and_double_nothing(void **state)
{
	struct fixture *fixture = fixture_create(1);
	struct thread_args args[W_SLOTS];
	pthread_t threads[W_SLOTS], kernel;
	const uint64_t end = xdp_shared_now_ms() + stress_duration_ms_from_env();

	(void)state;
	assert_non_null(fixture);
	fixture_owner_fill_rings(fixture);
	assert_int_equal(fixture->owner_count, 0);
	assert_int_equal(pthread_create(&kernel, NULL, fake_kernel_thread, fixture), 0);
	for (uint32_t s = 0; s < W_SLOTS; s++) {
		args[s] = (struct thread_args){.fixture = fixture, .slot = s};
		assert_int_equal(pthread_create(&threads[s], NULL, client_thread, &args[s]), 0);
	}
	while (vma_test_goes_on(xdp_shared_now_ms() * 1000000, end * 1000000,
	                        fixture->received > 1000 && fixture->sent > 1000))
		usleep(1000);
	fixture->stop = true;
	for (uint32_t s = 0; s < W_SLOTS; s++)
		pthread_join(threads[s], NULL);
	fixture->kernel_stop = true;
	pthread_join(kernel, NULL);
	for (uint32_t s = 0; s < W_SLOTS; s++)
		assert_true(args[s].done);
	assert_each_frame_in_one_place(fixture);
	print_message("%lu received, %lu sent\n", (unsigned long)fixture->received, (unsigned long)fixture->sent);
	assert_true(fixture->received > 1000 && fixture->sent > 1000);
	fixture_destroy(fixture);
}

/* ---- four processes, killed at random ---- */

static pid_t fork_client_or_fake_kernel_process(struct fixture *fixture, uint32_t slot, uint64_t seed)
{
	const pid_t parent = getpid();
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(3);
		if (slot == W_SLOTS) {
			run_fake_kernel_until_stop(fixture);
			_exit(0);
		}
		_exit(run_client_until_stop_and_return_frames(fixture, slot, seed) ? 0 : 2);
	}
	return pid;
}

static bool fill_rings_until_condition_or_5s(struct fixture *fixture, bool (*condition)(struct fixture *, uint32_t),
                                             uint32_t arg)
{
	const uint64_t end = xdp_shared_now_ms() + 5000;

	while (!condition(fixture, arg)) {
		if (xdp_shared_now_ms() > end)
			return false;
		fixture_owner_fill_rings(fixture);
		sched_yield();
	}
	return true;
}

static bool slot_has_no_frame_in_flight(struct fixture *fixture, uint32_t slot)
{
	return fixture_count_tx_frames_in_flight(&fixture->shared, slot) == 0;
}

static bool fake_kernel_has_passed_round(struct fixture *fixture, uint32_t round)
{
	return (int32_t)(fixture->kernel_rounds - round) > 0;
}

/* kill -9 and everything that the owner does then; a new client takes the slot. */
static pid_t stress_kill_and_replace_client(struct fixture *fixture, uint32_t slot, pid_t pid, uint64_t seed)
{
	int status;

	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	fixture->live[slot] = false; /* out of the socket map ... */
	assert_true(fill_rings_until_condition_or_5s(fixture, fake_kernel_has_passed_round,
	                                             fixture->kernel_rounds +
	                                                     1)); /* ... and no packet is under way to it */
	fixture_owner_reclaim_dead(fixture, slot);
	if (!fill_rings_until_condition_or_5s(fixture, slot_has_no_frame_in_flight, slot))
		fail_msg("slot %u: %u frames in flight for ever", slot,
		         fixture_count_tx_frames_in_flight(&fixture->shared, slot));
	fixture_reset_rings_of_rented_slot(fixture, slot);
	return fork_client_or_fake_kernel_process(fixture, slot, seed);
}

static void test_killed_processes_lose_and_double_nothing(void **state)
{
	const uint64_t end = xdp_shared_now_ms() + stress_duration_ms_from_env();
	struct fixture *fixture = fixture_create(2);
	pid_t pids[W_SLOTS + 1];
	uint64_t seed = 12345;
	int status;

	(void)state;
	assert_non_null(fixture);
	fixture_owner_fill_rings(fixture);
	for (uint32_t s = 0; s <= W_SLOTS; s++)
		pids[s] = fork_client_or_fake_kernel_process(fixture, s, s + 1);
	while (vma_test_goes_on(xdp_shared_now_ms() * 1000000, end * 1000000,
	                        fixture->recoveries > 20 && fixture->locks_freed > 0)) {
		const uint32_t victim = xdp_fixture_random_below(&seed, W_SLOTS);

		usleep(100 + xdp_fixture_random_below(&seed, 3000));
		pids[victim] = stress_kill_and_replace_client(fixture, victim, pids[victim], seed);
		if (fixture->errors != 0)
			fail_msg("%u complaints, first: %s", fixture->errors, fixture->complaint);
	}
	fixture->stop = true;
	for (uint32_t s = 0; s < W_SLOTS; s++) {
		assert_int_equal(waitpid(pids[s], &status, 0), pids[s]);
		assert_int_equal(status, 0);
	}
	fixture->kernel_stop = true;
	assert_int_equal(waitpid(pids[W_SLOTS], &status, 0), pids[W_SLOTS]);
	assert_each_frame_in_one_place(fixture);
	print_message("%lu deaths, %lu with a lock held; %lu received, %lu sent\n", (unsigned long)fixture->recoveries,
	              (unsigned long)fixture->locks_freed, (unsigned long)fixture->received,
	              (unsigned long)fixture->sent);
	assert_true(fixture->recoveries > 20);
	assert_true(fixture->locks_freed > 0);
	fixture_destroy(fixture);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_four_drivers_lose_and_double_nothing),
        cmocka_unit_test(test_killed_processes_lose_and_double_nothing),
};

VMA_TEST_MAIN(tests)
