/* A protocol that lives on the ring: when it runs, in which thread, and when no longer. */
#include <netinet/in.h>

#include "../ring_priv.h"
#include "fake_nic.h"
#include "frames.h"

struct protocol {
	struct vma_ring_proto_ops proto_ops; /* first */
	unsigned runs, asked;
	bool due, flag_held, progress_refused;
	unsigned packets_before, commands_before; /* when the last run came */
	void (*in_run)(void);
	unsigned breaks_off; /* so many times */
	bool last;           /* the last run was told so */
};

static struct fake_nic fake;
static struct vma_ring *ring;
static struct protocol p;
static struct vma_flow flow;
static unsigned packets, commands;

static bool proto_run(struct vma_ring_proto_ops *proto_ops, bool last)
{
	struct protocol *protocol = (struct protocol *)proto_ops;
	void (*in_run)(void) = protocol->in_run;

	protocol->runs++;
	protocol->last = last;
	protocol->due = false;
	protocol->flag_held = vma_ring_drive_holder_tid(ring, VMA_RING_RX) == drive_get_own_thread_id();
	protocol->progress_refused = vma_ring_progress(ring) == -EBUSY;
	protocol->packets_before = packets;
	protocol->commands_before = commands;
	protocol->in_run = NULL;
	if (in_run != NULL)
		in_run();
	return protocol->breaks_off != 0 && protocol->breaks_off-- != 0;
}

static bool proto_is_due(struct vma_ring_proto_ops *proto_ops)
{
	struct protocol *protocol = (struct protocol *)proto_ops;

	protocol->asked++;
	return protocol->due;
}

static bool proto_sink_count_packet(struct vma_flow *of, struct vma_buf *packet, const struct vma_rx_info *info)
{
	(void)of, (void)packet, (void)info;
	packets++;
	return false;
}

static void proto_count_command(struct vma_ring_command *command)
{
	(void)command;
	commands++;
}

static int setup(void **state)
{
	(void)state;
	fake_init(&fake, 0);
	fake.tells_quiet = true;
	ring = fake_nic_create_ring(&fake, VMA_THREAD_YIELD);
	while (vma_cq_needs_refill(ring->cq)) /* the first fill is work, too */
		vma_ring_progress(ring);
	packets = commands = 0;
	flow = (struct vma_flow){.key = flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), .sink = proto_sink_count_packet};
	assert_int_equal(vma_ring_attach_flow(ring, &flow), 0);
	p = (struct protocol){.proto_ops = {.run = proto_run, .is_due = proto_is_due}};
	vma_ring_attach_proto(ring, &p.proto_ops);
	p.runs = p.asked = 0;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	vma_ring_attach_proto(ring, NULL);
	vma_ring_detach_flow(ring, &flow);
	vma_ring_destroy(ring);
	fake_fini(&fake);
	return 0;
}

static void inject_datagrams(unsigned n)
{
	uint8_t frame[128];

	while (n-- > 0)
		fake_nic_receive_frame(&fake, frame, udp_frame(frame, 1000, 53, "data", 4));
}

static void test_a_burst_is_followed_by_one_run_with_the_flag(void **state)
{
	(void)state;
	inject_datagrams(5);
	assert_int_equal(vma_ring_progress(ring), 5);
	assert_int_equal(p.runs, 1);
	assert_int_equal(p.packets_before, 5);
	assert_true(p.flag_held);
	assert_true(p.progress_refused);
	assert_int_equal(vma_ring_drive_holder_tid(ring, VMA_RING_RX), 0);
}

static void test_all_that_waits_is_read_before_the_run(void **state)
{
	(void)state;
	inject_datagrams(100);
	assert_int_equal(vma_ring_progress(ring), 100);
	assert_int_equal(p.runs, 1);
	assert_int_equal(p.packets_before, 100);
}

static void inject_one_datagram(void)
{
	inject_datagrams(1);
}

static bool count_packet_and_inject_another(struct vma_flow *of, struct vma_buf *packet, const struct vma_rx_info *info)
{
	(void)of, (void)packet, (void)info;
	packets++;
	inject_datagrams(1);
	return false;
}

static void test_packets_without_end_leave_the_run_its_time(void **state)
{
	(void)state;
	flow.sink = count_packet_and_inject_another;
	inject_datagrams(16);
	assert_in_range(vma_ring_progress(ring), RX_BEFORE_RUN, RX_BEFORE_RUN + RX_BURST);
	assert_int_equal(p.runs, 1);
}

static void test_a_run_that_breaks_off_is_called_again_behind_what_has_come(void **state)
{
	(void)state;
	p.breaks_off = 1;
	p.in_run = inject_one_datagram;
	inject_datagrams(5);
	vma_ring_progress(ring);
	assert_int_equal(p.runs, 2);
	assert_int_equal(p.packets_before, 6);
	assert_false(p.last);
}

static void test_a_run_that_always_breaks_off_is_told_when_it_is_the_last(void **state)
{
	(void)state;
	p.breaks_off = 1000;
	inject_datagrams(1);
	vma_ring_progress(ring);
	assert_int_equal(p.runs, RUNS_MAX);
	assert_true(p.last);
	assert_int_equal(vma_ring_drive_holder_tid(ring, VMA_RING_RX), 0);
}

static void test_a_posted_command_is_followed_by_a_run(void **state)
{
	struct vma_ring_command command = {.run = proto_count_command};

	(void)state;
	vma_ring_queue_command_and_try_run(ring, &command);
	assert_int_equal(commands, 1);
	assert_int_equal(p.runs, 1);
	assert_int_equal(p.commands_before, 1);
	assert_true(p.flag_held);
}

static void test_a_look_at_a_quiet_ring_asks_and_does_not_run_the_protocol(void **state)
{
	(void)state;
	for (int i = 0; i < 10; i++)
		assert_int_equal(vma_ring_progress(ring), 0);
	assert_int_equal(p.asked, 10);
	assert_int_equal(p.runs, 0);
}

static void test_what_is_due_runs_at_the_next_look(void **state)
{
	(void)state;
	p.due = true;
	assert_int_equal(vma_ring_progress(ring), 0);
	assert_int_equal(p.runs, 1);
	assert_int_equal(vma_ring_progress(ring), 0);
	assert_int_equal(p.runs, 1);
}

static struct vma_ring_command command_posted_again = {.run = proto_count_command};

static void post_ring_command_again(void)
{
	vma_ring_queue_command_and_try_run(ring, &command_posted_again);
	assert_int_equal(commands, 0); /* not within the run */
}

static void test_a_command_posted_in_a_run_runs_after_it_and_is_followed_by_another(void **state)
{
	(void)state;
	p.in_run = post_ring_command_again;
	inject_datagrams(1);
	vma_ring_progress(ring);
	assert_int_equal(commands, 1);
	assert_int_equal(p.runs, 2);
	assert_int_equal(p.commands_before, 1);
}

static void proto_send_one(void)
{
	struct vma_buf *buf = vma_ring_tx_buf(ring);
	struct vma_nic_seg seg = {.buf = buf, .off = buf->data_off};

	seg.len = udp_frame((uint8_t *)vma_buf_data(fake.arena, buf), 53, 1000, "answer", 6);
	assert_int_equal(vma_ring_send(ring, &seg, 1, 0), 1);
}

static void test_a_run_may_send(void **state)
{
	(void)state;
	p.in_run = proto_send_one;
	p.due = true;
	vma_ring_progress(ring);
	assert_int_equal(fake.sent_count, 1);
	assert_int_equal(fake.queued_count, 0); /* and kicked */
}

static void test_giving_back_the_flag_is_followed_by_a_run(void **state)
{
	(void)state;
	assert_true(vma_ring_acquire(ring));
	assert_false(vma_ring_acquire(ring)); /* it is had already */
	assert_int_equal(p.runs, 0);
	assert_int_equal(vma_ring_progress(ring), -EBUSY);
	vma_ring_release(ring);
	assert_int_equal(p.runs, 1);
	assert_int_equal(vma_ring_drive_holder_tid(ring, VMA_RING_RX), 0);
}

static void test_a_protocol_that_was_ended_does_not_run(void **state)
{
	struct vma_ring_command command = {.run = proto_count_command};

	(void)state;
	assert_ptr_equal(vma_ring_proto_ops(ring), &p.proto_ops);
	vma_ring_attach_proto(ring, NULL);
	assert_null(vma_ring_proto_ops(ring));
	p.runs = 0;
	p.due = true;
	inject_datagrams(1);
	vma_ring_queue_command_and_try_run(ring, &command);
	assert_int_equal(vma_ring_progress(ring), 1);
	assert_int_equal(p.runs, 0);
}

static struct protocol successor = {.proto_ops = {.run = proto_run, .is_due = proto_is_due}};

static void test_another_takes_its_place(void **state)
{
	(void)state;
	vma_ring_attach_proto(ring, &successor.proto_ops);
	p.runs = successor.runs = 0;
	inject_datagrams(1);
	vma_ring_progress(ring);
	assert_int_equal(p.runs, 0);
	assert_int_equal(successor.runs, 1);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
static const struct CMUnitTest tests[] = {
        CASE(test_a_burst_is_followed_by_one_run_with_the_flag),
        CASE(test_all_that_waits_is_read_before_the_run),
        CASE(test_packets_without_end_leave_the_run_its_time),
        CASE(test_a_run_that_breaks_off_is_called_again_behind_what_has_come),
        CASE(test_a_run_that_always_breaks_off_is_told_when_it_is_the_last),
        CASE(test_a_posted_command_is_followed_by_a_run),
        CASE(test_a_look_at_a_quiet_ring_asks_and_does_not_run_the_protocol),
        CASE(test_what_is_due_runs_at_the_next_look),
        CASE(test_a_command_posted_in_a_run_runs_after_it_and_is_followed_by_another),
        CASE(test_a_run_may_send),
        CASE(test_giving_back_the_flag_is_followed_by_a_run),
        CASE(test_a_protocol_that_was_ended_does_not_run),
        CASE(test_another_takes_its_place),
};
VMA_TEST_MAIN(tests)
