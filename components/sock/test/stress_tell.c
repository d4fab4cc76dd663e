/*
 * Whoever sleeps for a file is told of a datagram by the thread that drives the ring, after the burst that brought it:
 * no datagram is left lying while its receiver sleeps.
 *
 * One thread drives and takes nothing. Four sleep, two for each of two files, drive nothing and watch no ring, so only
 * being told can wake them; each waits for its next datagram as soon as it has got one, so that delivering meets going
 * to sleep all the time. Datagrams come one by one and in bursts in which the files take turns.
 */
#include "wait_fixture.h"

#define FILES 2
#define RECEIVERS 4
#define LATE_NS (3000 * MSEC) /* a lost one is never seen; a busy machine takes its time */

static struct target {
	struct vma_file file;
	/* Plain loads and stores with no more order than a queue has: what is between them is to be tested. */
	_Atomic uint64_t queued;
	_Atomic uint64_t taken;
} targets[FILES];
static _Atomic bool stop;

static bool sink_count_and_mark_file_readable(struct vma_flow *flow, struct vma_buf *packet,
                                              const struct vma_rx_info *info)
{
	struct target *target = flow->owner;

	(void)packet, (void)info;
	atomic_store_explicit(&target->queued, atomic_load_explicit(&target->queued, memory_order_relaxed) + 1,
	                      memory_order_release);
	vma_file_wake_readers_or_batch(&target->file);
	return false;
}

static struct target *target_of(struct vma_wait *wait)
{
	return wait->arg;
}

static int target_has_queued_or_must_stop(struct vma_wait *wait)
{
	const struct target *target = target_of(wait);

	return atomic_load(&stop) || atomic_load_explicit(&target->queued, memory_order_acquire) !=
	                                     atomic_load_explicit(&target->taken, memory_order_relaxed);
}

static uint64_t wait_ring_bits_none(struct vma_wait *wait)
{
	(void)wait;
	return 0;
}

static void set_queued(struct vma_wait *wait, bool on)
{
	if (on)
		vma_waitq_add(&target_of(wait)->file.waitq, wait->self);
	else
		vma_waitq_remove(&target_of(wait)->file.waitq, wait->self);
}

static const struct vma_wait_ops ops = {
        .ready = target_has_queued_or_must_stop, .rings = wait_ring_bits_none, .set_queued = set_queued};

static void take_one_queued_of_target(struct target *target)
{
	uint64_t taken = atomic_load(&target->taken);

	while (taken != atomic_load(&target->queued))
		if (atomic_compare_exchange_weak(&target->taken, &taken, taken + 1))
			return;
}

static void *receive_from_target_thread(void *arg)
{
	struct vma_spin spin = {0};
	struct vma_wait wait = {.ops = &ops,
	                        .arg = arg,
	                        .self = vma_thread_self(),
	                        .spin = &spin,
	                        .deadline_ns = UINT64_MAX,
	                        .spin_nsec = -1};

	while (!atomic_load(&stop)) {
		vma_enter();
		if (vma_wait(&wait) == 1)
			take_one_queued_of_target(arg);
		vma_leave(wait.self);
	}
	return NULL;
}

static void *drive_ring_thread(void *arg)
{
	while (!atomic_load(&stop)) {
		vma_enter();
		vma_ring_ctxs_progress(fixture.bit);
		vma_leave(vma_thread_self());
		sched_yield();
	}
	return arg;
}

static double tell_stress_seconds(void)
{
	const char *seconds = getenv("STRESS_SECONDS");

	return seconds != NULL ? atof(seconds) : 1.5;
}

static bool wait_until_all_sent_are_taken(const uint64_t sent[FILES])
{
	uint64_t until = vma_now_ns() + LATE_NS;
	bool all;

	do {
		all = true;
		for (int i = 0; i < FILES; i++)
			all &= atomic_load(&targets[i].taken) == sent[i];
		sched_yield();
	} while (!all && vma_now_ns() < until);
	return all;
}

static void test_no_datagram_lies_while_its_receiver_sleeps(void **state)
{
	pthread_t receivers[RECEIVERS], driver;
	uint64_t sent[FILES] = {0}, until, total = 0;
	unsigned seed = 5;
	bool lost = false;

	(void)state;
	hold_internal_thread();
	for (int i = 0; i < FILES; i++) {
		fixture.things[i].flow.sink = sink_count_and_mark_file_readable;
		fixture.things[i].flow.owner = &targets[i];
	}
	for (int i = 0; i < RECEIVERS; i++)
		assert_int_equal(pthread_create(&receivers[i], NULL, receive_from_target_thread, &targets[i % FILES]),
		                 0);
	assert_int_equal(pthread_create(&driver, NULL, drive_ring_thread, NULL), 0);
	until = vma_now_ns() + (uint64_t)(tell_stress_seconds() * 1e9);
	while (vma_test_goes_on(vma_now_ns(), until, total > 100) && !lost) {
		unsigned burst;

		seed = seed * 1103515245 + 12345;
		burst = seed >> 16 & 3 ? 1 : seed >> 20 & 15;
		for (unsigned i = 0; i < burst; i++) {
			unsigned to = (seed >> 24) + i;

			fixture_send((uint16_t)(to % FILES));
			sent[to % FILES]++;
			total++;
		}
		lost = !wait_until_all_sent_are_taken(sent);
	}
	print_message("%lu datagrams\n", (unsigned long)total);
	assert_false(lost);
	assert_true(total > 100);
	atomic_store(&stop, true);
	for (int i = 0; i < FILES; i++)
		vma_waitq_wake(&targets[i].file.waitq, true);
	for (int i = 0; i < RECEIVERS; i++)
		assert_int_equal(pthread_join(receivers[i], NULL), 0);
	assert_int_equal(pthread_join(driver, NULL), 0);
	release_internal_thread();
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_datagram_lies_while_its_receiver_sleeps),
};

VMA_TEST_MAIN_WITH(tests, wait_fixture_start, NULL)
