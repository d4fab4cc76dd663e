/* Blocks of local ports: asked for once, had by one, and what comes to them for nobody. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "device_rules.h"
#include "frames.h"

static struct fake_nic fake;
static struct vma_nic_ops ops;
static struct vma_ring *ring;
static struct vma_ring_proto_ops proto_ops;
static uint16_t port_with_own_rule; /* the port that a rule of somebody's names */
static unsigned unmatched_seen;

static bool ports_has_own_rule(const struct vma_nic_qp *qp, uint16_t local_port_be)
{
	(void)qp;
	return ntohs(local_port_be) == port_with_own_rule;
}

static bool ports_proto_run_does_nothing(struct vma_ring_proto_ops *of, bool last)
{
	(void)last;
	(void)of;
	return false;
}

static bool ports_proto_is_never_due(struct vma_ring_proto_ops *of)
{
	(void)of;
	return false;
}

static bool ports_count_unmatched_segment(struct vma_ring_proto_ops *of, struct vma_buf *packet,
                                          const struct vma_rx_info *info)
{
	(void)info;
	assert_ptr_equal(of, &proto_ops);
	unmatched_seen++;
	vma_buf_put_chain(fake.arena, packet);
	return true;
}

static int setup_ring(void)
{
	device.refusal = 0;
	device.asked = 0;
	ops = fake_ops;
	ops.port_is_named = ports_has_own_rule;
	fake.nic.ops = &ops;
	ring = fake_nic_create_ring(&fake, VMA_THREAD_YIELD);
	proto_ops = (struct vma_ring_proto_ops){.run = ports_proto_run_does_nothing,
	                                        .is_due = ports_proto_is_never_due,
	                                        .unmatched = ports_count_unmatched_segment};
	vma_ring_attach_proto(ring, &proto_ops);
	port_with_own_rule = 0;
	unmatched_seen = 0;
	return 0;
}

static int setup(void **state)
{
	(void)state;
	fake_init(&fake, 0);
	fake_device_reset_rules(&fake);
	return setup_ring();
}

static int teardown(void **state)
{
	(void)state;
	vma_ring_attach_proto(ring, NULL);
	vma_ring_destroy(ring);
	device.count = 0;
	device.refusal = 0;
	fake_fini(&fake);
	return 0;
}

static int ring_obtain_port_block(struct vma_ring *of, uint16_t local_port)
{
	const struct vma_flow_key key = flow_key(IPPROTO_TCP, frame_dst_ip, local_port, 80);

	return vma_ring_reserve_port_block_of_key(of, &key);
}

static int obtain_port_block(uint16_t local_port)
{
	return ring_obtain_port_block(ring, local_port);
}

static void ports_inject_segment_to_local_port(uint16_t local_port)
{
	uint8_t frame[128];

	fake_nic_receive_frame(&fake, frame, tcp_frame(frame, 80, local_port, TH_ACK, "", 0));
	vma_ring_progress(ring);
}

static void test_a_block_is_asked_for_once(void **state)
{
	(void)state;
	assert_int_equal(obtain_port_block(40000), 1);
	assert_int_equal(device.asked, 1);
	assert_int_equal(device.rule[0].key.proto, VMA_FLOW_TCP_PORTS);
	assert_int_equal(ntohs(device.rule[0].key.local_port_be), 40000 / VMA_FLOW_PORTS * VMA_FLOW_PORTS);
	for (unsigned i = 0; i < 50; i++)
		assert_int_equal(obtain_port_block((uint16_t)(40000 + i)), 1);
	assert_int_equal(device.asked, 1);
	assert_int_equal(obtain_port_block(40000 + VMA_FLOW_PORTS), 1);
	assert_int_equal(device.asked, 2);
}

static void test_a_port_that_a_rule_names_needs_one_too(void **state)
{
	(void)state;
	port_with_own_rule = 40001;
	assert_int_equal(obtain_port_block(40000), 1);
	assert_int_equal(obtain_port_block(40001), 0);
}

static bool others;

static bool is_alone(const struct vma_nic_qp *qp)
{
	(void)qp;
	return !others;
}

static void test_with_others_on_the_interface_all_need_rules(void **state)
{
	(void)state;
	ops.is_alone = is_alone;
	others = false;
	assert_int_equal(obtain_port_block(40000), 1);
	others = true;
	assert_int_equal(obtain_port_block(40000), 0);
	assert_int_equal(obtain_port_block(50000), 0);
	others = false;
	assert_int_equal(obtain_port_block(50000), 1);
}

static void test_anothers_block_is_not_asked_for_with_every_connection(void **state)
{
	(void)state;
	device.refusal = -EADDRINUSE;
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(obtain_port_block(40000), -EADDRINUSE);
	assert_true(device.asked <= 2); /* a second may have passed */
}

static void test_a_nic_without_blocks_wants_rules(void **state)
{
	(void)state;
	device.refusal = -EOPNOTSUPP;
	assert_int_equal(obtain_port_block(40000), 0);
	ops.port_is_named = NULL;
	device.refusal = 0;
	assert_int_equal(obtain_port_block(40000), 0);
}

/* How many blocks the ring can get. */
static unsigned port_blocks_obtained(unsigned first_port, unsigned last_port)
{
	unsigned had = 0;

	for (unsigned port = first_port; port <= last_port; port += VMA_FLOW_PORTS) {
		device.count = 0; /* it has no room for so many */
		had += obtain_port_block((uint16_t)port) == 1;
	}
	return had;
}

static void test_a_ring_alone_may_have_all_ports_that_linux_gives_to_connections(void **state)
{
	(void)state;
	assert_int_equal(port_blocks_obtained(32768, 60999), 111);
}

static void test_a_ring_leaves_blocks_to_others(void **state)
{
	static struct fake_nic other_fake; /* one has room for one queue pair */
	struct vma_ring *other;

	(void)state;
	fake_init(&other_fake, 0);
	other_fake.nic.ops = &ops;
	other = fake_nic_create_ring(&other_fake, VMA_THREAD_YIELD);
	assert_int_equal(ring_obtain_port_block(other, 65000), 1);
	assert_int_equal(port_blocks_obtained(VMA_FLOW_PORTS, 64000), 64);
	vma_ring_destroy(other);
	fake_fini(&other_fake);
	assert_int_equal(port_blocks_obtained(VMA_FLOW_PORTS, 64000), 128);
}

static void test_what_nobody_takes_is_the_protocols_in_a_block_only(void **state)
{
	(void)state;
	ports_inject_segment_to_local_port(40000);
	assert_int_equal(unmatched_seen, 0);
	assert_int_equal(obtain_port_block(40000), 1);
	ports_inject_segment_to_local_port(40000);
	assert_int_equal(unmatched_seen, 1);
	ports_inject_segment_to_local_port(40000 + VMA_FLOW_PORTS);
	assert_int_equal(unmatched_seen, 1);
}

static void test_a_block_that_is_taken_back_is_asked_for_anew(void **state)
{
	(void)state;
	assert_int_equal(obtain_port_block(40000), 1);
	fake.attr.event(&fake.qp, VMA_NIC_EVENT_FLOW_REVOKED, &device.rule[0].key, fake.attr.event_arg);
	vma_ring_progress(ring);
	ports_inject_segment_to_local_port(40000);
	assert_int_equal(unmatched_seen, 0);
	device.count = 0;
	assert_int_equal(obtain_port_block(40000), 1);
	assert_int_equal(device.asked, 2);
}

static bool block_is_unused(void *arg)
{
	return *(const bool *)arg;
}

static void test_blocks_are_given_back_when_nobody_relies_on_them(void **state)
{
	bool yes = true, no = false;

	(void)state;
	assert_false(vma_ring_has_port_blocks(ring));
	assert_int_equal(obtain_port_block(40000), 1);
	assert_int_equal(obtain_port_block(50000), 1);
	vma_ring_release_unused_port_blocks(ring, block_is_unused, &no);
	assert_int_equal(device.count, 2);
	vma_ring_release_unused_port_blocks(ring, block_is_unused, &yes);
	assert_int_equal(device.count, 0);
	assert_false(vma_ring_has_port_blocks(ring));
	ports_inject_segment_to_local_port(40000);
	assert_int_equal(unmatched_seen, 0);
	assert_int_equal(obtain_port_block(40000), 1);
	assert_int_equal(device.count, 1);
}

/* A NIC that matches headers only. */
static int setup_to_kernel(void **state)
{
	(void)state;
	fake_init(&fake, VMA_NIC_CAP_TO_KERNEL);
	fake_device_reset_rules(&fake);
	return setup_ring();
}

static void test_all_ports_of_an_address_are_one_flow_if_rules_match_headers(void **state)
{
	(void)state;
	assert_false(vma_ring_take_new_address_mark(ring));
	assert_int_equal(obtain_port_block(40000), 1);
	assert_int_equal(device.asked, 1);
	assert_int_equal(device.rule[0].key.proto, VMA_FLOW_TCP_ADDRESS);
	assert_int_equal(device.rule[0].key.local_port_be, 0);
	assert_true(vma_ring_take_new_address_mark(ring));
	assert_int_equal(obtain_port_block(50000), 1);
	assert_int_equal(obtain_port_block(22), 1);
	assert_int_equal(device.asked, 1);
	assert_false(vma_ring_take_new_address_mark(ring));
	ports_inject_segment_to_local_port(40000);
	ports_inject_segment_to_local_port(22);
	assert_int_equal(unmatched_seen, 2);
	fake.attr.event(&fake.qp, VMA_NIC_EVENT_FLOW_REVOKED, &device.rule[0].key, fake.attr.event_arg);
	vma_ring_progress(ring);
	ports_inject_segment_to_local_port(40000);
	assert_int_equal(unmatched_seen, 2);
}

static void test_an_address_of_anothers_needs_rules_and_no_other_ports(void **state)
{
	(void)state;
	device.refusal = -EADDRINUSE;
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(obtain_port_block(40000), 0);
	assert_true(device.asked <= 2); /* a second may have passed */
	assert_false(vma_ring_take_new_address_mark(ring));
	ports_inject_segment_to_local_port(40000);
	assert_int_equal(unmatched_seen, 0);
}

#define EACH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_all_ports_of_an_address_are_one_flow_if_rules_match_headers,
                                        setup_to_kernel, teardown),
        cmocka_unit_test_setup_teardown(test_an_address_of_anothers_needs_rules_and_no_other_ports, setup_to_kernel,
                                        teardown),
        EACH(test_a_block_is_asked_for_once),
        EACH(test_a_port_that_a_rule_names_needs_one_too),
        EACH(test_with_others_on_the_interface_all_need_rules),
        EACH(test_anothers_block_is_not_asked_for_with_every_connection),
        EACH(test_a_nic_without_blocks_wants_rules),
        EACH(test_a_ring_alone_may_have_all_ports_that_linux_gives_to_connections),
        EACH(test_a_ring_leaves_blocks_to_others),
        EACH(test_what_nobody_takes_is_the_protocols_in_a_block_only),
        EACH(test_blocks_are_given_back_when_nobody_relies_on_them),
        EACH(test_a_block_that_is_taken_back_is_asked_for_anew),
};

VMA_TEST_MAIN(tests)
