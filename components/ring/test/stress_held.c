/*
 * The thread that drives is stopped, by ptrace and for up to a second, in the middle of whatever it does. The others
 * cannot drive that side; they must not burn their time slices, and must go on when it runs again. STRESS_SECONDS.
 *
 *   test ── tid of the holder ──> tracer (forked): PTRACE_SEIZE, PTRACE_INTERRUPT ... PTRACE_DETACH
 */
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "hammer.h"

enum tracer_state { TRACER_IDLE, TRACER_STOP, TRACER_STOPPED, TRACER_FAILED, TRACER_RELEASE, TRACER_QUIT };

struct tracer {
	_Atomic int state;
	_Atomic int tid, error;
};

static struct tracer *tracer;
static pid_t tracer_pid;

static void nap_us(long us)
{
	nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
}

static void tracer_stop_thread(void)
{
	pid_t tid = atomic_load(&tracer->tid);
	int status;

	if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) != 0) {
		atomic_store(&tracer->error, errno);
		atomic_store(&tracer->state, TRACER_FAILED);
		return;
	}
	if (ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) != 0 || waitpid(tid, &status, __WALL) != tid ||
	    !WIFSTOPPED(status))
		_exit(2); /* the test sees us gone */
	atomic_store(&tracer->state, TRACER_STOPPED);
}

/* The child. Dies with its parent, and then the kernel detaches what it traces. */
static void tracer_main(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		switch (atomic_load(&tracer->state)) {
		case TRACER_STOP:
			tracer_stop_thread();
			break;
		case TRACER_RELEASE:
			ptrace(PTRACE_DETACH, atomic_load(&tracer->tid), NULL, NULL);
			atomic_store(&tracer->state, TRACER_IDLE);
			break;
		case TRACER_QUIT:
			_exit(0);
		default:
			nap_us(20);
		}
	}
}

static int start_tracer(void **state)
{
	(void)state;
	tracer = mmap(NULL, sizeof(*tracer), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (tracer == MAP_FAILED)
		return -1;
	tracer_pid = fork();
	if (tracer_pid == 0)
		tracer_main();
	prctl(PR_SET_PTRACER, tracer_pid);
	return tracer_pid < 0 ? -1 : 0;
}

static int end_tracer(void **state)
{
	(void)state;
	atomic_store(&tracer->state, TRACER_QUIT);
	waitpid(tracer_pid, NULL, 0);
	munmap(tracer, sizeof(*tracer));
	return 0;
}

static void release_stopped_thread(void)
{
	atomic_store(&tracer->state, TRACER_RELEASE);
	while (atomic_load(&tracer->state) != TRACER_IDLE)
		nap_us(50);
}

/* Stops `tid`; false: it could not be stopped. */
static bool stop_thread(uint32_t tid)
{
	int state;

	atomic_store(&tracer->tid, (int)tid);
	atomic_store(&tracer->state, TRACER_STOP);
	while ((state = atomic_load(&tracer->state)) == TRACER_STOP) {
		nap_us(20);
		if (waitpid(tracer_pid, NULL, WNOHANG) != 0)
			fail_msg("the tracer has gone");
	}
	return state == TRACER_STOPPED;
}

static bool is_tid_of_worker(uint32_t tid)
{
	for (int i = 0; i < WORKERS; i++) {
		if (atomic_load(&hammer.workers[i].tid) == tid)
			return true;
	}
	return false;
}

/*
 * A thread that holds the flag now may not when the stop reaches it, so this takes some tries. Stopped with the flag
 * in hand it stays the holder. 0: this machine does not let us trace, which it has to say several times.
 */
static uint32_t stop_thread_holding_drive_flag(enum vma_ring_side side)
{
	uint64_t deadline = hammer_now_ns() + 20000000000;
	unsigned refusals = 0;

	while (hammer_now_ns() < deadline) {
		uint32_t tid = vma_ring_drive_holder_tid(hammer.ring[0], side);

		if (!is_tid_of_worker(tid))
			continue;
		if (!stop_thread(tid)) {
			print_message("PTRACE_SEIZE: %s\n", strerror(atomic_load(&tracer->error)));
			if (++refusals == 20)
				return 0;
			nap_us(1000);
			continue;
		}
		if (vma_ring_drive_holder_tid(hammer.ring[0], side) == tid)
			return tid;
		release_stopped_thread();
	}
	fail_msg("no holder was caught in 20 s");
	return 0;
}

static uint64_t worker_cpu_time_ns(const struct worker *w)
{
	struct timespec used;
	clockid_t clock;

	assert_int_equal(pthread_getcpuclockid(w->thread, &clock), 0);
	assert_int_equal(clock_gettime(clock, &used), 0);
	return (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
}

static void measure_cpu_of_waiters_for_held_flag(enum vma_ring_side side)
{
	uint64_t hold_ns = hammer_seconds_from_env_or(2) >= 10 ? 1000000000 : 500000000, before[WORKERS], start,
	         elapsed;
	uint32_t held;

	hammer_create_rings_and_start_workers();
	nap_us(100000);
	held = stop_thread_holding_drive_flag(side);
	if (held == 0) {
		hammer_stop_and_check_buffers_returned();
		vma_test_skip("no holder could be stopped");
	}
	nap_us(20000); /* those who were about to sleep do */
	start = hammer_now_ns();
	for (int i = 0; i < WORKERS; i++)
		before[i] = worker_cpu_time_ns(&hammer.workers[i]);
	nap_us((long)(hold_ns / 1000));
	elapsed = hammer_now_ns() - start;
	assert_int_equal(vma_ring_drive_holder_tid(hammer.ring[0], side), held);
	for (int i = 0; i < WORKERS; i++) {
		uint64_t used = worker_cpu_time_ns(&hammer.workers[i]) - before[i];

		if (used * 20 > elapsed)
			fail_msg("worker %d used %lu us of %lu us while the holder stood still", i,
			         (unsigned long)(used / 1000), (unsigned long)(elapsed / 1000));
	}
	release_stopped_thread();

	/* Every one of them, the stopped one included, goes on. */
	for (int i = 0; i < WORKERS; i++) {
		uint64_t received = atomic_load(&hammer.workers[i].received);

		start = hammer_now_ns();
		while (atomic_load(&hammer.workers[i].received) < received + 2 * WINDOW) {
			if (hammer_now_ns() - start > 10000000000)
				fail_msg("worker %d does not recover", i);
			nap_us(1000);
		}
	}
	hammer_stop_and_check_buffers_returned();
}

static void test_others_rest_while_the_receive_driver_is_held_and_then_go_on(void **state)
{
	(void)state;
	measure_cpu_of_waiters_for_held_flag(VMA_RING_RX);
}

static void test_others_rest_while_the_transmit_driver_is_held_and_then_go_on(void **state)
{
	(void)state;
	measure_cpu_of_waiters_for_held_flag(VMA_RING_TX);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start_tracer, end_tracer)
static const struct CMUnitTest tests[] = {
        CASE(test_others_rest_while_the_receive_driver_is_held_and_then_go_on),
        CASE(test_others_rest_while_the_transmit_driver_is_held_and_then_go_on),
};
VMA_TEST_MAIN(tests)
