/* What the NIC does behind a ring's back: the owner goes and comes, a flow is revoked. Events come from a thread. */
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>

#include "../ring_priv.h"
#include "fake_nic.h"
#include "frames.h"

static struct fake_nic fake;
static struct vma_ring *ring;
static enum vma_thread_mode mode;

static int rebind_create_fake_nic_and_ring(enum vma_thread_mode wanted)
{
	mode = wanted;
	fake_init(&fake, VMA_NIC_CAP_SG);
	ring = fake_nic_create_ring(&fake, mode);
	return 0;
}

static int setup_single(void **state)
{
	(void)state;
	return rebind_create_fake_nic_and_ring(VMA_THREAD_SINGLE);
}

static int setup_spin(void **state)
{
	(void)state;
	return rebind_create_fake_nic_and_ring(VMA_THREAD_SPIN);
}

static int setup_mutex(void **state)
{
	(void)state;
	return rebind_create_fake_nic_and_ring(VMA_THREAD_MUTEX);
}

static int setup_yield(void **state)
{
	(void)state;
	return rebind_create_fake_nic_and_ring(VMA_THREAD_YIELD);
}

static int teardown(void **state)
{
	(void)state;
	vma_ring_destroy(ring);
	fake_fini(&fake);
	return 0;
}

struct event {
	enum vma_nic_event what;
	struct vma_flow_key key;
};

static void *report_nic_event_thread(void *arg)
{
	struct event *event = arg;

	fake.attr.event(&fake.qp, event->what, &event->key, fake.attr.event_arg);
	return NULL;
}

static void report_qp_lost_event(void)
{
	struct event event = {.what = VMA_NIC_EVENT_LOST};
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, report_nic_event_thread, &event), 0);
	pthread_join(thread, NULL);
}

static void lose_queue_pair(void)
{
	atomic_store(&fake.qp.lost, true);
	report_qp_lost_event();
}

static bool rebind_sink_keep_packet(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	(void)info;
	*(struct vma_buf **)flow->owner = packet;
	return true;
}

static void rebind_send_numbered(uint8_t number)
{
	struct vma_buf *buf = vma_ring_tx_buf(ring);
	struct vma_nic_seg seg;

	assert_non_null(buf);
	seg = (struct vma_nic_seg){.buf = buf, .off = buf->data_off, .len = 60};
	memset(vma_buf_frame(fake.arena, buf) + seg.off, number, 60);
	assert_int_equal(vma_ring_send(ring, &seg, 1, 0), 1);
}

static void test_lost_queue_pair_is_bound_again_and_works(void **state)
{
	struct vma_buf *kept = NULL, *old;
	struct vma_flow flow = {
	        .key = flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), .sink = rebind_sink_keep_packet, .owner = &kept};
	uint8_t frame[128];
	uint32_t len = udp_frame(frame, 1, 53, "x", 1);

	(void)state;
	assert_int_equal(vma_ring_attach_flow(ring, &flow), 0);
	fake_nic_receive_frame(&fake, frame, len);
	assert_int_equal(vma_ring_progress(ring), 1);
	old = kept;
	assert_non_null(old);
	rebind_send_numbered(1);
	lose_queue_pair();
	assert_int_equal(fake.rebinds, 1);
	assert_false(vma_nic_qp_lost(&fake.qp));
	assert_memory_equal(vma_buf_data(fake.arena, old) + old->payload_off, "x", 1); /* still readable */
	vma_buf_put(fake.arena, old);
	fake_nic_receive_frame(&fake, frame, len);
	assert_int_equal(vma_ring_progress(ring), 1);
	rebind_send_numbered(2);
	assert_int_equal(fake.sent_count, 2);
	vma_buf_put(fake.arena, kept);
	vma_ring_detach_flow(ring, &flow);
}

static unsigned rx_bufs_at_home;

static void count_rx_bufs(struct fake_nic *nic)
{
	struct vma_buf *bufs[512];
	unsigned n = vma_bufpool_get(atomic_load(&nic->qp.rx_pool), bufs, 512);

	vma_buf_put_burst(nic->arena, bufs, n);
	rx_bufs_at_home = n + nic->posted_count;
}

static void test_old_pools_have_their_buffers_when_they_end(void **state)
{
	uint8_t frame[128];

	(void)state;
	fake_nic_receive_frame(&fake, frame, udp_frame(frame, 1, 53, "x", 1));
	assert_int_equal(vma_ring_progress(ring), 1);
	assert_int_equal(vma_ring_arm(ring), 0); /* pays its debt, and takes spare buffers for it */
	fake.in_destroy = count_rx_bufs;         /* of the old binding: see fake_qp_rebind */
	lose_queue_pair();
	assert_int_equal(fake.rebinds, 1);
	assert_int_equal(rx_bufs_at_home, 512);
	fake.in_destroy = NULL;
}

static void test_event_that_comes_after_the_rebind_changes_nothing(void **state)
{
	(void)state;
	lose_queue_pair();
	vma_ring_progress(ring);
	assert_int_equal(fake.rebinds, 1);
	report_qp_lost_event();
	vma_ring_progress(ring);
	assert_int_equal(fake.rebinds, 1);
}

static void test_rebind_waits_for_the_next_event_while_there_is_no_owner(void **state)
{
	(void)state;
	fake.rebind_result = -EAGAIN;
	lose_queue_pair();
	for (int i = 0; i < 3; i++)
		vma_ring_progress(ring);
	assert_int_equal(fake.rebinds, 1);
	assert_true(vma_nic_qp_lost(&fake.qp));
	fake.rebind_result = 0;
	lose_queue_pair();
	vma_ring_progress(ring);
	assert_int_equal(fake.rebinds, 2);
	assert_false(vma_nic_qp_lost(&fake.qp));
}

static _Atomic unsigned rebounds;

static bool proto_run_does_nothing(struct vma_ring_proto_ops *proto_ops, bool last)
{
	(void)last;
	(void)proto_ops;
	return false;
}

static bool proto_is_never_due(struct vma_ring_proto_ops *proto_ops)
{
	(void)proto_ops;
	return false;
}

static void count_rebound(struct vma_ring_proto_ops *proto_ops)
{
	(void)proto_ops;
	assert_false(vma_nic_qp_lost(&fake.qp));
	atomic_fetch_add(&rebounds, 1);
}

static void test_the_protocol_is_told_when_the_queue_pair_is_there_again(void **state)
{
	struct vma_ring_proto_ops proto_ops = {
	        .run = proto_run_does_nothing, .is_due = proto_is_never_due, .rebound = count_rebound};

	(void)state;
	atomic_store(&rebounds, 0);
	vma_ring_attach_proto(ring, &proto_ops);
	fake.rebind_result = -EAGAIN;
	lose_queue_pair();
	vma_ring_progress(ring);
	assert_int_equal(atomic_load(&rebounds), 0);
	fake.rebind_result = 0;
	lose_queue_pair();
	vma_ring_progress(ring);
	assert_int_equal(atomic_load(&rebounds), 1);
	vma_ring_attach_proto(ring, NULL);
}

/* The event finds both flags taken by a thread that polls without a break, and gets them all the same. */
static _Atomic bool stop;

static void *poll_ring_without_break_thread(void *arg)
{
	(void)arg;
	while (!atomic_load(&stop))
		vma_ring_progress(ring);
	return NULL;
}

static void test_event_gets_the_flags_from_a_polling_thread(void **state)
{
	pthread_t poller;

	(void)state;
	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&poller, NULL, poll_ring_without_break_thread, NULL), 0);
	for (unsigned i = 1; i <= 20; i++) {
		lose_queue_pair();
		assert_int_equal(fake.rebinds, i);
	}
	atomic_store(&stop, true);
	pthread_join(poller, NULL);
}

static unsigned revocations;

static void count_revocation(struct vma_flow *flow)
{
	(void)flow;
	revocations++;
	assert_int_equal(vma_ring_progress(ring), -EBUSY); /* called as a sink is */
}
static const struct vma_flow_ops flow_ops_counting_revocations = {.revoked = count_revocation};

static void report_flow_revoked_from_thread(const struct vma_flow_key *key)
{
	struct event event = {.what = VMA_NIC_EVENT_FLOW_REVOKED, .key = *key};
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, report_nic_event_thread, &event), 0);
	pthread_join(thread, NULL);
}

static void test_revoked_flow_tells_all_its_members_once(void **state)
{
	struct vma_buf *kept = NULL;
	struct vma_flow flow[3];
	struct vma_flow_key stranger = flow_key(IPPROTO_UDP, frame_dst_ip, 54, 0);

	(void)state;
	revocations = 0;
	for (int i = 0; i < 3; i++) {
		flow[i] = (struct vma_flow){.key = flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0),
		                            .sink = rebind_sink_keep_packet,
		                            .owner = &kept,
		                            .ops = i < 2 ? &flow_ops_counting_revocations : NULL};
		if (i < 2)
			assert_int_equal(vma_ring_attach_flow(ring, &flow[i]), 0);
	}
	report_flow_revoked_from_thread(&flow[0].key);
	report_flow_revoked_from_thread(&flow[0].key);
	report_flow_revoked_from_thread(&stranger);
	vma_ring_progress(ring);
	assert_int_equal(revocations, 2);
	assert_int_equal(vma_ring_attach_flow(ring, &flow[2]), -EADDRINUSE);
	vma_ring_detach_flow(ring, &flow[0]);
	vma_ring_detach_flow(ring, &flow[1]);
	assert_int_equal(vma_ring_attach_flow(ring, &flow[2]), 0); /* a new try, with the NIC asked again */
	assert_int_equal(fake.flows_added, 2);
	vma_ring_detach_flow(ring, &flow[2]);
}

/* The command waits for the flag, and the queue pair is there again when it runs. */
static void test_a_flow_that_was_lost_with_the_device_is_not_said_to_be_wanted_by_others(void **state)
{
	struct vma_buf *kept = NULL;
	struct vma_flow flow = {.key = flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0),
	                        .sink = rebind_sink_keep_packet,
	                        .owner = &kept,
	                        .ops = &flow_ops_counting_revocations};
	const int fd = memfd_create("log", MFD_CLOEXEC);
	char path[32], heard[256] = "";

	(void)state;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	assert_int_equal(vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_WARN, .file = path}), 0);
	revocations = 0;
	assert_int_equal(vma_ring_attach_flow(ring, &flow), 0);
	drive_flag_acquire(&ring->rx);
	atomic_store(&fake.qp.lost, true);
	report_flow_revoked_from_thread(&flow.key);
	atomic_store(&fake.qp.lost, false);
	assert_int_equal(revocations, 0);
	ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
	vma_ring_progress(ring);
	assert_int_equal(revocations, 1);
	vma_ring_detach_flow(ring, &flow);
	assert_true(pread(fd, heard, sizeof(heard) - 1, 0) >= 0);
	vma_log_fini();
	close(fd);
	assert_string_equal(heard, "");
}

/* A NIC stops its events when it has destroyed the queue pair, so some come while the ring is destroyed. */
static unsigned told_in_destroy;

static void report_events_while_qp_is_destroyed(struct fake_nic *nic)
{
	(void)nic;
	told_in_destroy++;
	lose_queue_pair();
	report_flow_revoked_from_thread(&(struct vma_flow_key){.family = AF_INET, .local_port_be = 1});
}

static void test_events_before_and_during_destroy_end_without_a_rebind(void **state)
{
	(void)state;
	told_in_destroy = 0;
	report_flow_revoked_from_thread(
	        &(struct vma_flow_key){.family = AF_INET, .local_port_be = 1}); /* left for the destroyer */
	fake.in_destroy = report_events_while_qp_is_destroyed;
	vma_ring_destroy(ring);
	fake.in_destroy = NULL;
	assert_int_equal(told_in_destroy, 1);
	assert_int_equal(fake.rebinds, 0);
	atomic_store(&fake.qp.lost, false);
	ring = fake_nic_create_ring(&fake, mode);
}

struct holder {
	pthread_t thread;
	_Atomic bool held, longer;
};

/* For 50 ms, and as long as the test wants. */
static void *rebind_hold_rx_drive_flag_thread(void *arg)
{
	struct timespec pause = {.tv_nsec = 50000000};
	struct holder *holder = arg;
	bool acquired = drive_flag_acquire(&ring->rx);

	atomic_store(&holder->held, true);
	do
		nanosleep(&pause, NULL);
	while (atomic_load(&holder->longer));
	if (acquired)
		ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
	return NULL;
}

static void start_holding_drive_flag(struct holder *holder, bool longer)
{
	*holder = (struct holder){.longer = longer};
	assert_int_equal(pthread_create(&holder->thread, NULL, rebind_hold_rx_drive_flag_thread, holder), 0);
	while (!atomic_load(&holder->held))
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void stop_holding_drive_flag(struct holder *holder)
{
	atomic_store(&holder->longer, false);
	pthread_join(holder->thread, NULL);
}

static uint64_t clock_ns(clockid_t id)
{
	struct timespec now;

	clock_gettime(id, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- a ring that cannot be created while an event is at work ---- */

static pthread_t event_thread;
static _Atomic bool telling;
static bool aligned_alloc_fails_next;

/* What the rings' parts are made of; the executable's own is taken before libc's. */
void *aligned_alloc(size_t alignment, size_t size)
{
	void *memory = NULL;
	bool fails = aligned_alloc_fails_next;

	aligned_alloc_fails_next = false;
	return fails || posix_memalign(&memory, alignment, size) != 0 ? NULL : memory;
}

static void *report_qp_lost_thread(void *arg)
{
	struct fake_nic *nic = arg;

	telling = true;
	nic->attr.event(&nic->qp, VMA_NIC_EVENT_LOST, NULL, nic->attr.event_arg);
	return NULL;
}

static void report_lost_and_fail_rebind(struct fake_nic *nic)
{
	assert_int_equal(pthread_create(&event_thread, NULL, report_qp_lost_thread, nic), 0);
	while (!telling)
		sched_yield();
	nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); /* it is in the event by now, and waits */
	aligned_alloc_fails_next = true;
}

/* As a NIC does: no event runs after this. */
static void join_event_thread(struct fake_nic *nic)
{
	struct timespec end;

	(void)nic;
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += 3;
	assert_int_equal(pthread_timedjoin_np(event_thread, NULL, &end), 0);
}

static void test_event_during_a_create_that_fails_is_no_deadlock(void **state)
{
	struct vma_ring_attr attr = {.nic = &fake.nic, .thread_mode = mode};
	struct vma_ring *none;

	(void)state;
	vma_ring_destroy(ring);
	fake.in_create = report_lost_and_fail_rebind;
	fake.in_destroy = join_event_thread;
	assert_int_equal(vma_ring_create(&attr, &none), -ENOMEM);
	assert_int_equal(fake.rebinds, 0);
	fake.in_create = fake.in_destroy = NULL;
	ring = fake_nic_create_ring(&fake, mode);
}

/* A waiter that does not poll sleeps through the hold of a thread that does not release, and wakes when it does. */
static void test_idle_sleeps_through_a_long_hold_and_wakes_at_its_end(void **state)
{
	struct vma_ring_backoff backoff = {0};
	struct holder holder;
	uint64_t cpu, wall;

	(void)state;
	start_holding_drive_flag(&holder, false);
	cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	wall = clock_ns(CLOCK_MONOTONIC);
	while (vma_ring_progress(ring) == -EBUSY)
		assert_true(vma_ring_wait_for_holder(ring, VMA_RING_RX, &backoff, 5000000000));
	assert_true(clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu < 10000000);
	assert_true(clock_ns(CLOCK_MONOTONIC) - wall < 4000000000);
	stop_holding_drive_flag(&holder);
}

static void test_idle_and_wait_give_up_when_their_time_is_over(void **state)
{
	struct vma_ring_backoff backoff = {0};
	struct holder holder;
	bool again = true;

	(void)state;
	start_holding_drive_flag(&holder, true);
	for (int i = 0; i < 100 && again; i++)
		again = vma_ring_wait_for_holder(ring, VMA_RING_RX, &backoff, 1000000);
	assert_false(again);
	assert_int_equal(vma_ring_wait(ring, 1000000), 0);
	stop_holding_drive_flag(&holder);
}

#define THREAD_MODE_CASE(test, how)                                                                                    \
	{                                                                                                              \
#test " " #how, test, setup_##how, teardown, NULL                                                      \
	}
static const struct CMUnitTest tests[] = {
        THREAD_MODE_CASE(test_lost_queue_pair_is_bound_again_and_works, single),
        THREAD_MODE_CASE(test_lost_queue_pair_is_bound_again_and_works, spin),
        THREAD_MODE_CASE(test_lost_queue_pair_is_bound_again_and_works, mutex),
        THREAD_MODE_CASE(test_lost_queue_pair_is_bound_again_and_works, yield),
        THREAD_MODE_CASE(test_old_pools_have_their_buffers_when_they_end, yield),
        THREAD_MODE_CASE(test_event_that_comes_after_the_rebind_changes_nothing, single),
        THREAD_MODE_CASE(test_event_that_comes_after_the_rebind_changes_nothing, yield),
        THREAD_MODE_CASE(test_rebind_waits_for_the_next_event_while_there_is_no_owner, single),
        THREAD_MODE_CASE(test_rebind_waits_for_the_next_event_while_there_is_no_owner, mutex),
        THREAD_MODE_CASE(test_the_protocol_is_told_when_the_queue_pair_is_there_again, single),
        THREAD_MODE_CASE(test_the_protocol_is_told_when_the_queue_pair_is_there_again, yield),
        THREAD_MODE_CASE(test_event_gets_the_flags_from_a_polling_thread, spin),
        THREAD_MODE_CASE(test_event_gets_the_flags_from_a_polling_thread, mutex),
        THREAD_MODE_CASE(test_event_gets_the_flags_from_a_polling_thread, yield),
        THREAD_MODE_CASE(test_revoked_flow_tells_all_its_members_once, single),
        THREAD_MODE_CASE(test_revoked_flow_tells_all_its_members_once, yield),
        THREAD_MODE_CASE(test_a_flow_that_was_lost_with_the_device_is_not_said_to_be_wanted_by_others, spin),
        THREAD_MODE_CASE(test_events_before_and_during_destroy_end_without_a_rebind, single),
        THREAD_MODE_CASE(test_event_during_a_create_that_fails_is_no_deadlock, yield),
        THREAD_MODE_CASE(test_idle_sleeps_through_a_long_hold_and_wakes_at_its_end, mutex),
        THREAD_MODE_CASE(test_idle_and_wait_give_up_when_their_time_is_over, mutex),
};
VMA_TEST_MAIN(tests)
