/* Flows that the NIC does not hear of at first: what they get, how they are given a rule, and what may happen
 * meanwhile. */
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "device_rules.h"
#include "frames.h"

struct taker {
	struct vma_flow flow; /* first */
	unsigned calls;
	int steered; /* what steer said in its sink */
	bool steer_in_sink;
};

static struct fake_nic fake;
static struct vma_ring *ring;
static struct taker conn, other;

static bool steer_sink_count_and_steer(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct taker *taker = (struct taker *)flow;

	(void)packet, (void)info;
	taker->calls++;
	if (taker->steer_in_sink)
		taker->steered = vma_ring_request_nic_rule_of_flow(ring, flow);
	return false;
}

static int steer_attach_tcp_flow(struct taker *taker, uint16_t peer_port, uint32_t flags)
{
	*taker = (struct taker){.flow = {.key = flow_key(IPPROTO_TCP, frame_dst_ip, 80, peer_port),
	                                 .flags = flags,
	                                 .sink = steer_sink_count_and_steer}};
	return vma_ring_attach_flow(ring, &taker->flow);
}

static void steer_inject_tcp_ack(uint16_t peer_port)
{
	uint8_t frame[128];

	fake_nic_receive_frame(&fake, frame, tcp_frame(frame, peer_port, 80, TH_ACK, "", 0));
}

static void detach_flow_of_taker(struct taker *taker)
{
	vma_ring_detach_flow(ring, &taker->flow);
}

static int setup(void **state)
{
	(void)state;
	fake_init(&fake, 0);
	fake_device_reset_rules(&fake);
	ring = fake_nic_create_ring(&fake, VMA_THREAD_YIELD);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	vma_ring_destroy(ring);
	assert_int_equal(device.count, 0); /* no case leaves a rule behind */
	fake_fini(&fake);
	return 0;
}

static void test_a_flow_of_the_ring_only_gets_its_packets_and_the_nic_never_hears_of_it(void **state)
{
	(void)state;
	assert_int_equal(steer_attach_tcp_flow(&other, 0, VMA_FLOW_LISTENER), 0);
	assert_int_equal(steer_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY), 0);
	assert_int_equal(device.asked, 1);
	steer_inject_tcp_ack(1000);
	steer_inject_tcp_ack(1001);
	assert_int_equal(vma_ring_progress(ring), 2);
	assert_int_equal(conn.calls, 1);
	assert_int_equal(other.calls, 1);
	detach_flow_of_taker(&conn);
	assert_int_equal(device.count, 1);
	detach_flow_of_taker(&other);
	assert_int_equal(device.asked, 1);
}

static void test_flags_that_contradict_the_key_are_refused_for_them_too(void **state)
{
	(void)state;
	assert_int_equal(steer_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY | 1u << 31), -EINVAL);
	assert_int_equal(steer_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY | VMA_FLOW_LISTENER), -EINVAL);
	assert_null(conn.flow.ring);
}

static void test_steering_gives_it_a_rule_once_which_goes_with_it(void **state)
{
	(void)state;
	assert_int_equal(steer_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY), 0);
	conn.flow.shadow_cookie = 77;
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), 0);
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), 0);
	assert_int_equal(device.asked, 1);
	assert_true(fake_device_has_rule(&conn.flow.key));
	assert_int_equal(device.rule[0].flags, 0);
	assert_int_equal(device.rule[0].shadow_cookie, 77);
	steer_inject_tcp_ack(1000);
	vma_ring_progress(ring);
	assert_int_equal(conn.calls, 1);
	detach_flow_of_taker(&conn);
	assert_int_equal(device.count, 0);
}

static void test_who_had_a_rule_from_the_start_needs_no_steering(void **state)
{
	(void)state;
	assert_int_equal(steer_attach_tcp_flow(&conn, 1000, 0), 0);
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), 0);
	assert_int_equal(device.asked, 1);
	detach_flow_of_taker(&conn);
}

static void test_a_refusal_leaves_the_flow_as_it_was(void **state)
{
	(void)state;
	assert_int_equal(steer_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY), 0);
	device.refusal = -ENOSPC;
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), -ENOSPC);
	steer_inject_tcp_ack(1000);
	vma_ring_progress(ring);
	assert_int_equal(conn.calls, 1);
	device.refusal = 0;
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), 0);
	detach_flow_of_taker(&conn);
}

static void test_who_is_not_attached_cannot_be_steered(void **state)
{
	(void)state;
	assert_int_equal(steer_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY), 0);
	detach_flow_of_taker(&conn);
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), -EINVAL);
	assert_int_equal(device.asked, 0);
}

static void test_a_sink_cannot_steer(void **state)
{
	(void)state;
	assert_int_equal(steer_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY), 0);
	conn.steer_in_sink = true;
	steer_inject_tcp_ack(1000);
	vma_ring_progress(ring);
	assert_int_equal(conn.steered, -EDEADLK);
	detach_flow_of_taker(&conn);
}

/* ---- while the owner of the device is asked ---- */

static int progress_meanwhile;

static void receive_packet_while_flow_rule_is_added(void)
{
	steer_inject_tcp_ack(1000);
	progress_meanwhile = vma_ring_progress(ring);
}

static void test_packets_go_on_while_the_nic_is_asked(void **state)
{
	(void)state;
	assert_int_equal(steer_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY), 0);
	device.in_add = receive_packet_while_flow_rule_is_added;
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), 0);
	assert_int_equal(progress_meanwhile, 1);
	assert_int_equal(conn.calls, 1);
	detach_flow_of_taker(&conn);
}

static void detach_conn_and_poison_its_memory(void)
{
	detach_flow_of_taker(&conn);
	memset(&conn, 0xff, sizeof(conn)); /* its memory is somebody else's now */
}

/* ... for a flow that is attached with its rule, too. */
static void test_packets_go_on_while_a_flow_comes_with_its_rule(void **state)
{
	(void)state;
	assert_int_equal(steer_attach_tcp_flow(&conn, 1000, 0), 0);
	device.in_add = receive_packet_while_flow_rule_is_added;
	assert_int_equal(steer_attach_tcp_flow(&other, 1001, 0), 0);
	assert_int_equal(progress_meanwhile, 1); /* -EBUSY if the flag were held */
	assert_int_equal(conn.calls, 1);
	assert_int_equal(device.count, 2);
	detach_flow_of_taker(&other);
	detach_flow_of_taker(&conn);
}

static void test_a_flow_that_ends_while_it_comes_leaves_no_rule(void **state)
{
	(void)state;
	for (int after = 0; after < 2; after++) {
		*(after ? &device.after_add : &device.in_add) = detach_conn_and_poison_its_memory;
		assert_int_equal(steer_attach_tcp_flow(&conn, 1000, 0), -EINVAL);
		assert_int_equal(device.count, 0);
	}
	assert_int_equal(steer_attach_tcp_flow(&conn, 1000, 0), 0);
	detach_flow_of_taker(&conn);
}

static void test_a_refused_flow_is_not_attached(void **state)
{
	(void)state;
	device.refusal = -ENOSPC;
	assert_int_equal(steer_attach_tcp_flow(&conn, 1000, 0), -ENOSPC);
	assert_null(conn.flow.ring);
	assert_null(vma_ring_find_first_flow_of_key(ring, &conn.flow.key));
	device.refusal = 0;
	assert_int_equal(vma_ring_attach_flow(ring, &conn.flow), 0);
	detach_flow_of_taker(&conn);
}

static int delete_rule_receiving_before_and_after(struct fake_nic *nic, const struct vma_flow_key *key)
{
	receive_packet_while_flow_rule_is_added();
	assert_int_equal(fake_device_delete_rule(nic, key), 0);
	receive_packet_while_flow_rule_is_added();
	return 0;
}

/* A flow that is drained takes what comes until its rule has gone; another one is gone at once. */
static void test_packets_go_on_while_a_rule_goes(void **state)
{
	(void)state;
	for (int drained = 0; drained < 2; drained++) {
		assert_int_equal(steer_attach_tcp_flow(&conn, 1000, 0), 0);
		assert_int_equal(steer_attach_tcp_flow(&other, 1000 + (drained == 0), drained ? VMA_FLOW_RING_ONLY : 0),
		                 0);
		if (drained)
			detach_flow_of_taker(&other);
		fake.in_flow_del = delete_rule_receiving_before_and_after;
		progress_meanwhile = 0;
		if (drained)
			vma_ring_drain_and_detach_flow(ring, &conn.flow);
		else
			detach_flow_of_taker(&other);
		fake.in_flow_del = fake_device_delete_rule;
		assert_int_equal(progress_meanwhile, 1);
		assert_int_equal(conn.calls, 2);
		assert_int_equal(device.count, !drained);
		if (!drained)
			detach_flow_of_taker(&conn);
	}
}

static void test_a_flow_that_ends_meanwhile_leaves_no_rule(void **state)
{
	(void)state;
	assert_int_equal(steer_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY), 0);
	device.in_add = detach_conn_and_poison_its_memory;
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), -EINVAL);
	assert_int_equal(device.count, 0);
	assert_int_equal(steer_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY), 0);
	device.after_add = detach_conn_and_poison_its_memory;
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), -EINVAL);
	assert_int_equal(device.count, 0);
}

static void detach_flow_while_device_refuses_its_rule(void)
{
	detach_conn_and_poison_its_memory();
	device.refusal = -ENOSPC;
}

static void test_a_flow_that_ends_meanwhile_is_told_so_and_not_the_refusal(void **state)
{
	(void)state;
	assert_int_equal(steer_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY), 0);
	device.in_add = detach_flow_while_device_refuses_its_rule;
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), -EINVAL);
}

static void replace_conn_by_ring_only_flow(void)
{
	detach_conn_and_poison_its_memory();
	assert_int_equal(steer_attach_tcp_flow(&other, 1000, VMA_FLOW_RING_ONLY), 0);
}

static void test_a_successor_that_did_not_ask_gets_no_rule(void **state)
{
	(void)state;
	assert_int_equal(steer_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY), 0);
	device.after_add = replace_conn_by_ring_only_flow;
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), -EINVAL);
	assert_int_equal(device.count, 0);
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &other.flow), 0);
	assert_int_equal(device.count, 1);
	detach_flow_of_taker(&other);
}

static void replace_conn_by_flow_with_rule(void)
{
	detach_conn_and_poison_its_memory();
	assert_int_equal(steer_attach_tcp_flow(&other, 1000, 0), 0);
}

static void test_a_successor_with_a_rule_keeps_it(void **state)
{
	(void)state;
	for (int after = 0; after < 2; after++) {
		assert_int_equal(steer_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY), 0);
		*(after ? &device.after_add : &device.in_add) = replace_conn_by_flow_with_rule;
		assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), -EINVAL);
		assert_int_equal(device.count, 1);
		detach_flow_of_taker(&other);
		assert_int_equal(device.count, 0);
	}
}

static void replace_conn_by_steered_flow(void)
{
	replace_conn_by_ring_only_flow();
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &other.flow), 0);
}

static void test_a_successor_that_is_steered_meanwhile_keeps_its_rule(void **state)
{
	(void)state;
	for (int after = 0; after < 2; after++) {
		assert_int_equal(steer_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY), 0);
		*(after ? &device.after_add : &device.in_add) = replace_conn_by_steered_flow;
		assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), -EINVAL);
		assert_int_equal(device.count, 1);
		detach_flow_of_taker(&other);
		assert_int_equal(device.count, 0);
	}
}

static void replace_conn_by_steered_flow_and_detach(void)
{
	replace_conn_by_steered_flow();
	detach_flow_of_taker(&other);
}

static void test_a_successor_that_has_gone_too_leaves_no_rule(void **state)
{
	(void)state;
	for (int after = 0; after < 2; after++) {
		assert_int_equal(steer_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY), 0);
		*(after ? &device.after_add : &device.in_add) = replace_conn_by_steered_flow_and_detach;
		assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), -EINVAL);
		assert_int_equal(device.count, 0);
	}
}

static void revoke_flow_by_nic_event(void)
{
	fake.attr.event(&fake.qp, VMA_NIC_EVENT_FLOW_REVOKED, &conn.flow.key, fake.attr.event_arg);
	fake_device_delete_rule(&fake, &conn.flow.key);
}

static void test_a_revoked_flow_is_not_steered_again(void **state)
{
	(void)state;
	assert_int_equal(steer_attach_tcp_flow(&conn, 1000, VMA_FLOW_RING_ONLY), 0);
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), 0);
	revoke_flow_by_nic_event();
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conn.flow), -EADDRINUSE);
	detach_flow_of_taker(&conn);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
static const struct CMUnitTest tests[] = {
        CASE(test_a_flow_of_the_ring_only_gets_its_packets_and_the_nic_never_hears_of_it),
        CASE(test_flags_that_contradict_the_key_are_refused_for_them_too),
        CASE(test_steering_gives_it_a_rule_once_which_goes_with_it),
        CASE(test_who_had_a_rule_from_the_start_needs_no_steering),
        CASE(test_a_refusal_leaves_the_flow_as_it_was),
        CASE(test_who_is_not_attached_cannot_be_steered),
        CASE(test_a_sink_cannot_steer),
        CASE(test_packets_go_on_while_the_nic_is_asked),
        CASE(test_packets_go_on_while_a_flow_comes_with_its_rule),
        CASE(test_a_flow_that_ends_while_it_comes_leaves_no_rule),
        CASE(test_a_refused_flow_is_not_attached),
        CASE(test_packets_go_on_while_a_rule_goes),
        CASE(test_a_flow_that_ends_meanwhile_leaves_no_rule),
        CASE(test_a_flow_that_ends_meanwhile_is_told_so_and_not_the_refusal),
        CASE(test_a_successor_that_did_not_ask_gets_no_rule),
        CASE(test_a_successor_with_a_rule_keeps_it),
        CASE(test_a_successor_that_is_steered_meanwhile_keeps_its_rule),
        CASE(test_a_successor_that_has_gone_too_leaves_no_rule),
        CASE(test_a_revoked_flow_is_not_steered_again),
};
VMA_TEST_MAIN(tests)
