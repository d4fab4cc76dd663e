/* A ring's listener is told of packets, by whichever way they are handled. */
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <vma/test.h>

#include "fake_nic.h"
#include "frames.h"

static struct fake_nic fake;
static struct vma_ring *ring;
static unsigned heard;

static void count_ring_listener_call(struct vma_ring_listener *listener)
{
	(void)listener;
	heard++;
}
static struct vma_ring_listener listener = {.heard = count_ring_listener_call};

static void inject_unmatched_frame(void)
{
	uint8_t frame[128];

	fake_nic_receive_frame(&fake, frame, udp_frame(frame, 1, 2, "x", 1)); /* nobody's */
}

static int setup(void **state)
{
	(void)state;
	heard = 0;
	fake_init(&fake, 0);
	ring = fake_nic_create_ring(&fake, VMA_THREAD_SPIN);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	vma_ring_destroy(ring);
	fake_fini(&fake);
	return 0;
}

static void test_who_drives_by_progress_tells_by_himself(void **state)
{
	(void)state;
	vma_ring_set_listener(ring, &listener);
	inject_unmatched_frame();
	assert_int_equal(vma_ring_progress(ring), 1);
	assert_int_equal(heard, 0);
	vma_ring_notify_listener(ring);
	assert_int_equal(heard, 1);
	assert_int_equal(vma_ring_progress_and_notify(ring), 0);
	assert_int_equal(heard, 1);
	inject_unmatched_frame();
	assert_int_equal(vma_ring_progress_and_notify(ring), 1);
	assert_int_equal(heard, 2);
}

static void test_what_is_drained_is_told_with_the_flag_held(void **state)
{
	(void)state;
	vma_ring_set_listener(ring, &listener);
	inject_unmatched_frame();
	assert_true(vma_ring_acquire(ring));
	vma_ring_drain(ring);
	assert_int_equal(heard, 1);
	vma_ring_drain(ring);
	assert_int_equal(heard, 1);
	vma_ring_release(ring);
}

static void test_nobody_is_told_when_the_listener_has_ended(void **state)
{
	(void)state;
	vma_ring_notify_listener(ring);
	vma_ring_set_listener(ring, &listener);
	vma_ring_set_listener(ring, NULL);
	inject_unmatched_frame();
	assert_int_equal(vma_ring_progress_and_notify(ring), 1);
	assert_int_equal(heard, 0);
}

/* A protocol that wants to have more read in between. */
static unsigned runs;
static bool fake_proto_run_wants_second_run(struct vma_ring_proto_ops *proto_ops, bool last)
{
	(void)proto_ops;
	runs++;
	if (runs == 1 && !last) {
		inject_unmatched_frame();
		return true;
	}
	return false;
}
static bool is_never_due(struct vma_ring_proto_ops *proto_ops)
{
	(void)proto_ops;
	return false;
}

static void test_what_is_read_between_two_runs_of_the_protocol_is_told(void **state)
{
	struct vma_ring_proto_ops proto_ops = {.run = fake_proto_run_wants_second_run, .is_due = is_never_due};

	(void)state;
	vma_ring_set_listener(ring, &listener);
	runs = 2;
	vma_ring_attach_proto(ring, &proto_ops);
	runs = 0;
	assert_true(vma_ring_acquire(ring));
	vma_ring_release(ring);
	assert_int_equal(runs, 2);
	assert_int_equal(heard, 1);
	runs = 2;
	vma_ring_attach_proto(ring, NULL);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_who_drives_by_progress_tells_by_himself, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_drained_is_told_with_the_flag_held, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nobody_is_told_when_the_listener_has_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_read_between_two_runs_of_the_protocol_is_told, setup, teardown),
};

VMA_TEST_MAIN(tests)
