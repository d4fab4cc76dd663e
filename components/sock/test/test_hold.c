/*
 * A sleeper on a device that does not moderate holds back by itself: until the period is over or enough has come, and
 * not a moment longer for what else ends a sleep.
 * alone: it compares times with the period
 * seconds: 4
 */
#include <sys/eventfd.h>

#include "wait_fixture.h"

#define PERIOD_NS (60 * MSEC) /* several intervals of the internal thread */
#define COUNT 4

struct sleeper {
	pthread_t thread;
	struct thing_wait wait;
	struct pollfd os;
	struct vma_thread *_Atomic self;
	_Atomic uint64_t done_ns;
	int rc;
};

static void *hold_sleeper_main(void *arg)
{
	struct sleeper *sleeper = arg;

	sleeper->wait.wait.self = vma_thread_self();
	atomic_store(&sleeper->self, sleeper->wait.wait.self);
	sleeper->rc = thing_wait_run(&sleeper->wait);
	atomic_store(&sleeper->done_ns, vma_now_ns());
	return NULL;
}

static bool hold_is_asleep(struct sleeper *sleeper)
{
	struct vma_thread *self = atomic_load(&sleeper->self);

	return self != NULL && atomic_load(&self->state) == VMA_THREAD_ASLEEP;
}

/* Asleep for things[0]; os_fd ends its sleep, too, if it is not -1. */
static void hold_sleeper_start(struct sleeper *sleeper, uint64_t timeout_ns, int os_fd)
{
	memset(sleeper, 0, sizeof(*sleeper));
	atomic_store(&fixture.things[0].count, 0);
	thing_wait_init(&sleeper->wait, &fixture.things[0], fixture.bit, timeout_ns);
	sleeper->os = (struct pollfd){.fd = os_fd, .events = POLLIN};
	sleeper->wait.wait.fds = &sleeper->os;
	sleeper->wait.wait.nfds = 1;
	sleeper->wait.os = os_fd >= 0;
	assert_int_equal(pthread_create(&sleeper->thread, NULL, hold_sleeper_main, sleeper), 0);
	fixture_wait_until(hold_is_asleep(sleeper));
	usleep(2000); /* from the state to the system call */
}

static uint64_t ring_held_until_ns(void)
{
	return atomic_load(&fixture.ring_ctx->hold.until_ns);
}

/* A packet has come, and is held back. Returns until when. */
static uint64_t send_packet_and_wait_until_held(void)
{
	uint64_t until;

	fixture_send(0);
	fixture_wait_until((until = ring_held_until_ns()) != 0);
	return until;
}

/* When the wait was over. */
static uint64_t hold_sleeper_end(struct sleeper *sleeper)
{
	assert_int_equal(pthread_join(sleeper->thread, NULL), 0);
	assert_int_equal(sleeper->rc, 1);
	return atomic_load(&sleeper->done_ns);
}

static void test_a_lone_packet_is_delivered_when_the_period_is_over(void **state)
{
	struct sleeper sleeper;

	(void)state;
	for (int i = 0; i < 5; i++) {
		uint64_t sent, done;

		hold_sleeper_start(&sleeper, UINT64_MAX, -1);
		sent = vma_now_ns();
		send_packet_and_wait_until_held();
		done = hold_sleeper_end(&sleeper);
		assert_true(done >= sent + PERIOD_NS);
		assert_true(done < sent + PERIOD_NS + 500 * MSEC);
		assert_int_equal(ring_held_until_ns(), 0);
	}
}

static void test_so_many_packets_end_the_hold(void **state)
{
	struct sleeper sleeper;
	uint64_t until;

	(void)state;
	hold_sleeper_start(&sleeper, UINT64_MAX, -1);
	until = send_packet_and_wait_until_held();
	for (int i = 1; i < COUNT - 1; i++)
		fixture_send(0);
	usleep(5000);
	assert_int_equal(atomic_load(&fixture.things[0].count), 0);
	fixture_send(0);
	assert_true(hold_sleeper_end(&sleeper) < until);
	assert_true(atomic_load(&fixture.things[0].count) >= COUNT);
}

static void test_a_ring_that_another_thread_drives_is_not_held_back(void **state)
{
	struct sleeper sleeper;
	uint64_t sent;

	(void)state;
	hold_internal_thread();
	hold_sleeper_start(&sleeper, UINT64_MAX, -1);
	assert_true(vma_ring_acquire(fixture.ring_ctx->ring));
	sent = vma_now_ns();
	for (int i = 0; i < COUNT; i++)
		fixture_send(0);
	vma_ring_release(fixture.ring_ctx->ring);
	assert_true(hold_sleeper_end(&sleeper) < sent + PERIOD_NS);
	release_internal_thread();
}

static void test_a_deadline_ends_the_hold_with_what_has_come(void **state)
{
	struct sleeper sleeper;
	uint64_t until;

	(void)state;
	hold_sleeper_start(&sleeper, 20 * MSEC, -1);
	until = send_packet_and_wait_until_held();
	assert_true(hold_sleeper_end(&sleeper) < until);
}

static void test_who_drives_delivers_what_is_held_back(void **state)
{
	struct sleeper sleeper;
	struct vma_thread *self;
	uint64_t until;

	(void)state;
	hold_sleeper_start(&sleeper, UINT64_MAX, -1);
	until = send_packet_and_wait_until_held();
	self = vma_enter();
	while (vma_ring_ctxs_progress(fixture.bit) == -EBUSY)
		;
	vma_leave(self);
	assert_true(hold_sleeper_end(&sleeper) < until);
}

static void test_a_descriptor_of_the_os_ends_the_hold(void **state)
{
	const int fd = eventfd(0, 0);
	const uint64_t one = 1;
	struct sleeper sleeper;
	uint64_t until;

	(void)state;
	hold_sleeper_start(&sleeper, UINT64_MAX, fd);
	until = send_packet_and_wait_until_held();
	assert_int_equal(write(fd, &one, sizeof(one)), sizeof(one));
	assert_true(hold_sleeper_end(&sleeper) < until);
	close(fd);
}

static int setup_nic_without_moderation(void **state)
{
	setenv("VMA_CQ_MODERATION_COUNT", "4", 1);
	setenv("VMA_CQ_MODERATION_PERIOD_USEC", "60000", 1);
	fixture.lacks = VMA_NIC_CAP_MODERATION;
	return wait_fixture_start(state);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_lone_packet_is_delivered_when_the_period_is_over),
        cmocka_unit_test(test_so_many_packets_end_the_hold),
        cmocka_unit_test(test_a_ring_that_another_thread_drives_is_not_held_back),
        cmocka_unit_test(test_a_deadline_ends_the_hold_with_what_has_come),
        cmocka_unit_test(test_who_drives_delivers_what_is_held_back),
        cmocka_unit_test(test_a_descriptor_of_the_os_ends_the_hold),
};

VMA_TEST_MAIN_WITH(tests, setup_nic_without_moderation, NULL)
