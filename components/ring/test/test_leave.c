/* Rules of the NIC that outlive their flows: nothing waits for the NIC while the flag is held, and none is forgotten.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <time.h>
#include <unistd.h>

#include "device_rules.h"
#include "frames.h"

#define SLOW_MS 100

struct taker {
	struct vma_flow flow; /* first */
	_Atomic unsigned calls;
};

static struct fake_nic fake;
static struct vma_ring *ring;
static struct taker conn, other, listener;
static _Atomic bool nic_is_being_asked;  /* the NIC is */
static _Atomic bool nic_does_not_answer; /* it does not answer until this ends */

static bool leave_sink_count_packet(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	(void)packet, (void)info;
	atomic_fetch_add(&((struct taker *)flow)->calls, 1);
	return false;
}

static int leave_attach_tcp_flow(struct taker *taker, uint16_t peer_port, uint32_t flags)
{
	*taker = (struct taker){.flow = {.key = flow_key(IPPROTO_TCP, frame_dst_ip, 80, peer_port),
	                                 .flags = flags,
	                                 .sink = leave_sink_count_packet}};
	return vma_ring_attach_flow(ring, &taker->flow);
}

static void attach_steered(struct taker *taker, uint16_t peer_port)
{
	assert_int_equal(leave_attach_tcp_flow(taker, peer_port, VMA_FLOW_RING_ONLY), 0);
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &taker->flow), 0);
	assert_true(fake_device_has_rule(&taker->flow.key));
}

static void leave_detach_later_and_poison_flow(struct taker *taker)
{
	assert_true(vma_ring_detach_flow_keep_stale_rule(ring, &taker->flow));
	memset(taker, 0xff, sizeof(*taker)); /* its memory is somebody else's now */
}

static void leave_inject_tcp_ack(uint16_t peer_port)
{
	uint8_t frame[128];

	fake_nic_receive_frame(&fake, frame, tcp_frame(frame, peer_port, 80, TH_ACK, "", 0));
}

static int setup_with(uint32_t caps)
{
	atomic_store(&nic_does_not_answer, false);
	fake_init(&fake, caps);
	fake_device_reset_rules(&fake);
	ring = fake_nic_create_ring(&fake, VMA_THREAD_YIELD);
	return 0;
}

static int setup(void **state)
{
	(void)state;
	return setup_with(0);
}

static int setup_to_kernel(void **state)
{
	(void)state;
	return setup_with(VMA_NIC_CAP_TO_KERNEL);
}

static int teardown(void **state)
{
	(void)state;
	vma_ring_destroy(ring);
	assert_int_equal(device.count, 0); /* no case leaves a rule behind */
	fake_fini(&fake);
	return 0;
}

static void test_a_flow_leaves_without_a_word_to_the_nic_and_its_rule_is_deleted_later(void **state)
{
	struct vma_flow_key key;

	(void)state;
	attach_steered(&conn, 1000);
	key = conn.flow.key;
	leave_detach_later_and_poison_flow(&conn);
	assert_true(fake_device_has_rule(&key));
	assert_null(vma_ring_find_first_flow_of_key(ring, &key));
	assert_false(vma_ring_delete_stale_nic_rules(ring, 1, UINT64_MAX, NULL));
	assert_int_equal(device.count, 0);
	assert_false(vma_ring_delete_stale_nic_rules(ring, 1, UINT64_MAX, NULL));
}

static void test_the_oldest_rules_go_first_and_as_many_as_wanted(void **state)
{
	struct taker takers[40];

	(void)state;
	for (uint16_t i = 0; i < 40; i++)
		attach_steered(&takers[i], (uint16_t)(1000 + i));
	for (uint16_t i = 0; i < 40; i++)
		leave_detach_later_and_poison_flow(&takers[i]);
	assert_true(vma_ring_delete_stale_nic_rules(ring, 30, UINT64_MAX, NULL));
	assert_int_equal(device.count, 10);
	for (uint16_t i = 30; i < 40; i++) {
		struct vma_flow_key key = flow_key(IPPROTO_TCP, frame_dst_ip, 80, (uint16_t)(1000 + i));

		assert_true(fake_device_has_rule(&key));
	}
	assert_false(vma_ring_delete_stale_nic_rules(ring, UINT32_MAX, UINT64_MAX, NULL));
}

static uint64_t leave_test_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void test_each_rule_stays_its_own_time_where_what_comes_late_would_be_the_kernels(void **state)
{
	const struct vma_flow_key second = flow_key(IPPROTO_TCP, frame_dst_ip, 80, 1001);
	uint64_t between_ns;

	(void)state;
	attach_steered(&conn, 1000);
	attach_steered(&other, 1001);
	leave_detach_later_and_poison_flow(&conn);
	between_ns = leave_test_now_ns();
	usleep(1);
	leave_detach_later_and_poison_flow(&other);
	assert_true(vma_ring_delete_stale_nic_rules(ring, 8, between_ns, NULL));
	assert_int_equal(device.count, 1);
	assert_true(fake_device_has_rule(&second));
	assert_true(vma_ring_delete_stale_nic_rules(ring, 8, between_ns, NULL));
	assert_false(vma_ring_delete_stale_nic_rules(ring, 8, leave_test_now_ns(), NULL));
	assert_int_equal(device.count, 0);
}

static void test_what_still_comes_goes_to_the_listener_or_to_nobody(void **state)
{
	(void)state;
	attach_steered(&conn, 1000);
	leave_detach_later_and_poison_flow(&conn);
	leave_inject_tcp_ack(1000);
	assert_int_equal(vma_ring_progress(ring), 1);
	assert_int_equal(leave_attach_tcp_flow(&listener, 0, VMA_FLOW_LISTENER), 0);
	leave_inject_tcp_ack(1000);
	assert_int_equal(vma_ring_progress(ring), 1);
	assert_int_equal(listener.calls, 1);
	vma_ring_detach_flow(ring, &listener.flow);
	vma_ring_delete_stale_nic_rules(ring, 1, UINT64_MAX, NULL);
}

static void test_a_successor_inherits_the_rule_and_leaves_it_as_its_own(void **state)
{
	unsigned asked;

	(void)state;
	attach_steered(&conn, 1000);
	leave_detach_later_and_poison_flow(&conn);
	asked = device.asked;
	assert_int_equal(leave_attach_tcp_flow(&other, 1000, VMA_FLOW_RING_ONLY), 0);
	assert_false(vma_ring_delete_stale_nic_rules(ring, 8, UINT64_MAX, NULL));
	assert_true(fake_device_has_rule(&other.flow.key));
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &other.flow), 0);
	assert_int_equal(device.asked, asked); /* it has no shadow that the NIC would have to know */
	leave_inject_tcp_ack(1000);
	vma_ring_progress(ring);
	assert_int_equal(other.calls, 1);
	leave_detach_later_and_poison_flow(&other);
	assert_false(vma_ring_delete_stale_nic_rules(ring, 8, UINT64_MAX, NULL));
	assert_int_equal(device.count, 0);
}

/* A connection's shadow is no connection of the kernel's, which the NIC could take for a stranger's. */
static void test_a_connection_that_inherits_costs_no_question_although_it_has_a_shadow(void **state)
{
	unsigned asked;

	(void)state;
	attach_steered(&conn, 1000);
	leave_detach_later_and_poison_flow(&conn);
	asked = device.asked;
	assert_int_equal(leave_attach_tcp_flow(&other, 1000, VMA_FLOW_RING_ONLY), 0);
	other.flow.shadow_cookie = 77;
	assert_int_equal(device.asked, asked);
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &other.flow), 0);
	assert_int_equal(device.asked, asked);
	leave_inject_tcp_ack(1000);
	assert_int_equal(vma_ring_progress(ring), 1);
	assert_int_equal(other.calls, 1);
	leave_detach_later_and_poison_flow(&other);
	assert_false(vma_ring_delete_stale_nic_rules(ring, 8, UINT64_MAX, NULL));
	assert_int_equal(device.count, 0);
}

static void test_the_last_of_several_members_leaves_the_rule(void **state)
{
	(void)state;
	attach_steered(&conn, 1000);
	assert_int_equal(leave_attach_tcp_flow(&other, 1000, VMA_FLOW_RING_ONLY), 0);
	assert_false(vma_ring_detach_flow_keep_stale_rule(ring, &conn.flow));
	assert_int_equal(device.count, 1);
	leave_detach_later_and_poison_flow(&other);
	assert_int_equal(device.count, 1);
	assert_false(vma_ring_delete_stale_nic_rules(ring, 8, UINT64_MAX, NULL));
}

static void test_who_was_not_steered_leaves_no_rule_and_who_had_one_from_the_start_takes_it_along(void **state)
{
	(void)state;
	assert_int_equal(leave_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY), 0);
	assert_false(vma_ring_detach_flow_keep_stale_rule(ring, &conn.flow));
	assert_int_equal(leave_attach_tcp_flow(&conn, 1000, 0), 0);
	assert_false(vma_ring_detach_flow_keep_stale_rule(ring, &conn.flow));
	assert_false(vma_ring_detach_flow_keep_stale_rule(ring, &conn.flow));
	assert_int_equal(device.count, 0);
}

static void test_a_rule_that_the_nic_takes_back_meanwhile_is_forgotten(void **state)
{
	struct vma_flow_key key;

	(void)state;
	attach_steered(&conn, 1000);
	key = conn.flow.key;
	leave_detach_later_and_poison_flow(&conn);
	fake_device_delete_rule(&fake, &key);
	fake.attr.event(&fake.qp, VMA_NIC_EVENT_FLOW_REVOKED, &key, fake.attr.event_arg);
	attach_steered(&conn, 1000); /* and may be had again */
	leave_detach_later_and_poison_flow(&conn);
	vma_ring_delete_stale_nic_rules(ring, 1, UINT64_MAX, NULL);
}

static void test_a_ring_ends_with_rules_that_wait(void **state)
{
	(void)state;
	attach_steered(&conn, 1000);
	leave_detach_later_and_poison_flow(&conn);
	device.count = 0; /* as with the queue pair */
}

/* ---- who waits for the NIC does not hold the flag meanwhile ---- */

static unsigned asked_to_delete, asked_with_flag;

static bool drive_flag_is_held_by_this_thread(void)
{
	const bool acquired = vma_ring_acquire(ring);

	if (acquired)
		vma_ring_release(ring);
	return !acquired;
}

static int count_and_delete_rule(struct fake_nic *nic, const struct vma_flow_key *key)
{
	asked_to_delete++;
	asked_with_flag += drive_flag_is_held_by_this_thread();
	return fake_device_delete_rule(nic, key);
}

static void hook_rule_delete_to_count(void)
{
	asked_to_delete = asked_with_flag = 0;
	fake.in_flow_del = count_and_delete_rule;
}

static void detach_conn(void)
{
	vma_ring_detach_flow(ring, &conn.flow);
}

static void test_a_rule_that_comes_too_late_for_its_flow_goes_without_the_flag(void **state)
{
	(void)state;
	hook_rule_delete_to_count();
	assert_int_equal(leave_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY), 0);
	device.after_add = detach_conn;
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), -EINVAL);
	assert_int_equal(asked_to_delete, 1);
	device.after_add = detach_conn;
	assert_int_equal(leave_attach_tcp_flow(&conn, 1000, 0), -EINVAL);
	assert_int_equal(asked_to_delete, 2);
	assert_int_equal(asked_with_flag, 0);
	assert_int_equal(device.count, 0);
}

static void detach_conn_and_attach_other_flow(void)
{
	detach_conn();
	assert_int_equal(leave_attach_tcp_flow(&other, 1000, 0), 0);
}

static void test_a_rule_that_comes_too_late_stays_for_a_flow_that_has_it_now(void **state)
{
	(void)state;
	hook_rule_delete_to_count();
	assert_int_equal(leave_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY), 0);
	device.after_add = detach_conn_and_attach_other_flow;
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), -EINVAL);
	assert_int_equal(asked_to_delete, 0);
	assert_true(fake_device_has_rule(&other.flow.key));
	vma_ring_detach_flow(ring, &other.flow);
	assert_int_equal(asked_with_flag, 0);
}

static void check_flow_is_detached_while_rule_stays(void *arg)
{
	assert_true(drive_flag_is_held_by_this_thread());
	assert_null(vma_ring_find_first_flow_of_key(ring, arg));
	assert_true(fake_device_has_rule(arg));
	asked_with_flag += 100;
}

static void test_what_is_done_with_a_detach_is_done_with_the_flag_and_the_nic_is_asked_without(void **state)
{
	struct vma_flow_key key;

	(void)state;
	attach_steered(&conn, 1000);
	key = conn.flow.key;
	hook_rule_delete_to_count();
	vma_ring_detach_flow_and_call_back(ring, &conn.flow, check_flow_is_detached_while_rule_stays, &key);
	assert_int_equal(asked_to_delete, 1);
	assert_int_equal(asked_with_flag, 100);
	assert_int_equal(device.count, 0);
}

/* ---- a NIC that takes its time ---- */

static int device_delete_rule_slowly(struct fake_nic *nic, const struct vma_flow_key *key)
{
	atomic_store(&nic_is_being_asked, true);
	do
		usleep(SLOW_MS * 1000);
	while (atomic_load(&nic_does_not_answer));
	atomic_store(&nic_is_being_asked, false);
	return fake_device_delete_rule(nic, key);
}

static void *leave_prune_stale_rules_thread(void *arg)
{
	(void)arg;
	vma_ring_delete_stale_nic_rules(ring, 1, UINT64_MAX, NULL);
	return NULL;
}

static pthread_t begin_slow_prune(void)
{
	pthread_t thread;

	fake.in_flow_del = device_delete_rule_slowly;
	atomic_store(&nic_is_being_asked, false);
	pthread_create(&thread, NULL, leave_prune_stale_rules_thread, NULL);
	while (!atomic_load(&nic_is_being_asked))
		usleep(100);
	return thread;
}

static void test_packets_are_delivered_while_a_slow_nic_deletes_a_rule(void **state)
{
	pthread_t thread;

	(void)state;
	attach_steered(&conn, 1000);
	attach_steered(&other, 1001);
	leave_detach_later_and_poison_flow(&conn);
	atomic_store(&nic_does_not_answer, true);
	thread = begin_slow_prune();
	leave_inject_tcp_ack(1001);
	assert_int_equal(vma_ring_progress(ring), 1); /* -EBUSY if the flag were held */
	assert_int_equal(other.calls, 1);
	assert_true(vma_ring_delete_stale_nic_rules(ring, 1, UINT64_MAX, NULL)); /* another thread is at it */
	assert_true(atomic_load(&nic_is_being_asked));                           /* the NIC has not answered yet */
	leave_detach_later_and_poison_flow(&other);
	atomic_store(&nic_does_not_answer, false);
	pthread_join(thread, NULL);
	assert_false(vma_ring_delete_stale_nic_rules(ring, 8, UINT64_MAX, NULL));
}

static void test_a_rule_that_is_being_deleted_is_added_again_only_after_that(void **state)
{
	pthread_t thread;

	(void)state;
	for (int at_once = 0; at_once < 2; at_once++) {
		fake.in_flow_del = fake_device_delete_rule;
		attach_steered(&conn, 1000);
		leave_detach_later_and_poison_flow(&conn);
		thread = begin_slow_prune();
		assert_int_equal(leave_attach_tcp_flow(&other, 1000, at_once ? 0 : VMA_FLOW_RING_ONLY), 0);
		assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &other.flow), 0);
		assert_true(fake_device_has_rule(&other.flow.key));
		pthread_join(thread, NULL);
		assert_true(fake_device_has_rule(&other.flow.key));
		fake.in_flow_del = fake_device_delete_rule;
		vma_ring_detach_flow(ring, &other.flow);
	}
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
static const struct CMUnitTest tests[] = {
        CASE(test_a_flow_leaves_without_a_word_to_the_nic_and_its_rule_is_deleted_later),
        CASE(test_a_rule_that_comes_too_late_for_its_flow_goes_without_the_flag),
        CASE(test_a_rule_that_comes_too_late_stays_for_a_flow_that_has_it_now),
        CASE(test_what_is_done_with_a_detach_is_done_with_the_flag_and_the_nic_is_asked_without),
        CASE(test_the_oldest_rules_go_first_and_as_many_as_wanted),
        cmocka_unit_test_setup_teardown(test_each_rule_stays_its_own_time_where_what_comes_late_would_be_the_kernels,
                                        setup_to_kernel, teardown),
        CASE(test_what_still_comes_goes_to_the_listener_or_to_nobody),
        CASE(test_a_successor_inherits_the_rule_and_leaves_it_as_its_own),
        CASE(test_a_connection_that_inherits_costs_no_question_although_it_has_a_shadow),
        CASE(test_the_last_of_several_members_leaves_the_rule),
        CASE(test_who_was_not_steered_leaves_no_rule_and_who_had_one_from_the_start_takes_it_along),
        CASE(test_a_rule_that_the_nic_takes_back_meanwhile_is_forgotten),
        CASE(test_a_ring_ends_with_rules_that_wait),
        CASE(test_packets_are_delivered_while_a_slow_nic_deletes_a_rule),
        CASE(test_a_rule_that_is_being_deleted_is_added_again_only_after_that),
};
VMA_TEST_MAIN(tests)
