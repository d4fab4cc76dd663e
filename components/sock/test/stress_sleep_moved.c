/*
 * What a thread waits for moves from ring to ring while the thread goes to sleep: it is woken on the ring where the
 * thing is, though no internal thread helps. STRESS_SECONDS.
 *
 *   mover ── the thing leaves all rings ── a moment ── it is on the ring ── sends ── waits until it is received ──┐
 *     ^                                                                                                         │
 *     └─────────────────────────────────────────────────────────────────────────────────────────────────────────┘
 *
 * The sleeper goes to sleep again as soon as it has received. So the moves meet every step on its way there.
 */
#include "wait_fixture.h"

#define LATE_NS (3000 * MSEC) /* a lost one is never seen; a busy machine takes its time */

static struct thing_wait sleeper_wait;
static _Atomic uint64_t where; /* the rings that the thing is on */
static _Atomic uint64_t received;
static _Atomic bool stop;

static uint64_t wait_rings_of_moved_thing(struct vma_wait *wait)
{
	(void)wait;
	return atomic_load_explicit(&where, memory_order_relaxed);
}

static void *thread_wait_and_count_received(void *arg)
{
	struct vma_wait_ops ops = fixture_ops;

	ops.rings = wait_rings_of_moved_thing;
	while (!atomic_load(&stop)) {
		thing_wait_init(&sleeper_wait, arg, 0, UINT64_MAX);
		sleeper_wait.wait.ops = &ops;
		if (thing_wait_run(&sleeper_wait) == 1 && thing_try_take_one(arg))
			atomic_fetch_add(&received, 1);
	}
	return NULL;
}

static void move_thing_to_rings(uint64_t rings)
{
	struct vma_thread *self = vma_enter();

	atomic_store(&where, rings);
	vma_waitq_wake(&fixture.things[0].q, true);
	vma_leave(self);
}

static void spin_for_steps(unsigned steps)
{
	for (volatile unsigned i = 0; i < steps; i++)
		;
}

static bool wait_until_received(uint64_t number)
{
	const uint64_t until = vma_now_ns() + LATE_NS;

	while (atomic_load(&received) < number && vma_now_ns() < until)
		sched_yield();
	return atomic_load(&received) >= number;
}

static void test_a_sleeper_is_woken_on_the_ring_to_which_its_socket_has_moved(void **state)
{
	const char *seconds = getenv("STRESS_SECONDS");
	const uint64_t until = vma_now_ns() + (uint64_t)((seconds != NULL ? atof(seconds) : 1.5) * 1e9);
	unsigned random = 1;
	uint64_t sent = 0;
	bool lost = false;
	pthread_t thread;

	(void)state;
	hold_internal_thread();
	assert_int_equal(pthread_create(&thread, NULL, thread_wait_and_count_received, &fixture.things[0]), 0);
	while (!lost && vma_test_goes_on(vma_now_ns(), until, sent > 1000)) {
		random = random * 1103515245 + 12345;
		move_thing_to_rings(0);
		spin_for_steps(random >> 16 & 2047);
		move_thing_to_rings(fixture.bit);
		fixture_send(0);
		lost = !wait_until_received(++sent);
	}
	print_message("%lu moves\n", (unsigned long)sent);
	atomic_store(&stop, true);
	thing_add_one_and_wake(&fixture.things[0]);
	assert_int_equal(pthread_join(thread, NULL), 0);
	release_internal_thread();
	assert_false(lost);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_sleeper_is_woken_on_the_ring_to_which_its_socket_has_moved),
};

VMA_TEST_MAIN_WITH(tests, wait_fixture_start, NULL)
