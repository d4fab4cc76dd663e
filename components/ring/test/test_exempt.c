/* Exemptions: what comes for a connection that the kernel has is given to it, until it has the connection no more. */
#include <netinet/in.h>
#include <stdlib.h>

#include "fake_nic.h"
#include "../ring_priv.h"
#include "frames.h"

static struct fake_nic fake;
static struct vma_ring *ring;
static struct vma_flow listener;
static unsigned heard;

/* ---- in place of nic/kernel_conns.c ---- */

static struct {
	struct vma_flow_key keys[2 * RING_EXEMPTS_MAX];
	unsigned n;
	int rc;
} kernel;

int vma_nic_for_each_kernel_connection(const struct vma_nic *nic, const struct vma_flow_key *key,
                                       void (*see)(const struct vma_flow_key *connection, void *arg), void *arg)
{
	(void)nic;
	assert_int_equal(key->peer_port_be, 0);
	for (unsigned i = 0; kernel.rc == 0 && i < kernel.n; i++)
		see(&kernel.keys[i], arg);
	return kernel.rc;
}

int vma_nic_kernel_has_connections(const struct vma_nic *nic, const struct vma_flow_key *keys, unsigned n, bool *has)
{
	(void)nic;
	for (unsigned i = 0; i < n; i++) {
		has[i] = false;
		for (unsigned k = 0; k < kernel.n; k++)
			has[i] |= memcmp(&kernel.keys[k], &keys[i], sizeof(keys[i])) == 0;
	}
	return kernel.rc;
}

/* ---- the fixture ---- */

static bool count_and_free_listener_packet(struct vma_flow *flow, struct vma_buf *packet,
                                           const struct vma_rx_info *info)
{
	(void)flow, (void)info;
	heard++;
	vma_buf_put_chain(fake.arena, packet);
	return true;
}

static int setup_ring_with_nic_caps(uint32_t caps)
{
	fake_init(&fake, caps);
	ring = fake_nic_create_ring(&fake, VMA_THREAD_YIELD);
	listener = (struct vma_flow){.key = flow_key(IPPROTO_TCP, frame_dst_ip, 80, 0),
	                             .flags = VMA_FLOW_LISTENER,
	                             .sink = count_and_free_listener_packet};
	assert_int_equal(vma_ring_attach_flow(ring, &listener), 0);
	memset(&kernel, 0, sizeof(kernel));
	heard = 0;
	return 0;
}

static int setup(void **state)
{
	(void)state;
	return setup_ring_with_nic_caps(VMA_NIC_CAP_TO_KERNEL);
}

static int setup_ring_with_no_nic_caps(void **state)
{
	(void)state;
	return setup_ring_with_nic_caps(0);
}

static int teardown(void **state)
{
	(void)state;
	vma_ring_detach_flow(ring, &listener);
	vma_ring_destroy(ring);
	fake_fini(&fake);
	return 0;
}

static struct vma_flow_key tcp_flow_key_from_peer_port(uint16_t peer_port)
{
	struct vma_flow_key key = flow_key(IPPROTO_TCP, frame_dst_ip, 80, peer_port);

	return key;
}

static void fake_kernel_add_connection(uint16_t peer_port)
{
	kernel.keys[kernel.n++] = tcp_flow_key_from_peer_port(peer_port);
}

static void receive_segment_from_peer(uint16_t peer_port)
{
	uint8_t frame[256];
	const uint32_t len = tcp_frame(frame, peer_port, 80, 0x10, "abc", 3);

	fake_nic_receive_frame(&fake, frame, len);
	while (vma_ring_progress(ring) > 0)
		;
}

/* ---- cases ---- */

static void test_connections_that_the_kernel_has_when_the_rule_is_in_are_its_own(void **state)
{
	(void)state;
	fake_kernel_add_connection(1000);
	fake_kernel_add_connection(1001);
	assert_true(vma_ring_exempt_kernel_connections(ring, &listener.key));
	receive_segment_from_peer(1000);
	receive_segment_from_peer(1001);
	assert_int_equal(fake.to_kernel, 2);
	assert_int_equal(heard, 0);
	receive_segment_from_peer(1002);
	assert_int_equal(heard, 1);
	assert_int_equal(fake.flows_added, 1); /* no rule */
}

static void test_a_connection_that_the_kernel_has_no_more_is_the_listeners_again(void **state)
{
	(void)state;
	fake_kernel_add_connection(1000);
	fake_kernel_add_connection(1001);
	vma_ring_exempt_kernel_connections(ring, &listener.key);
	kernel.keys[0] = tcp_flow_key_from_peer_port(1001);
	kernel.n = 1;
	assert_true(vma_ring_remove_exempts_of_ended_conns(ring));
	receive_segment_from_peer(1000);
	assert_int_equal(heard, 1);
	receive_segment_from_peer(1001);
	assert_int_equal(fake.to_kernel, 1);
	kernel.n = 0;
	assert_false(vma_ring_remove_exempts_of_ended_conns(ring));
	receive_segment_from_peer(1001);
	assert_int_equal(heard, 2);
}

static void test_a_kernel_that_does_not_say_changes_nothing(void **state)
{
	(void)state;
	kernel.rc = -ETIMEDOUT;
	assert_false(vma_ring_exempt_kernel_connections(ring, &listener.key));
	kernel.rc = 0;
	fake_kernel_add_connection(1000);
	vma_ring_exempt_kernel_connections(ring, &listener.key);
	kernel.rc = -ETIMEDOUT;
	kernel.n = 0;
	assert_true(vma_ring_remove_exempts_of_ended_conns(ring));
	receive_segment_from_peer(1000);
	assert_int_equal(fake.to_kernel, 1);
}

static void test_one_connection_is_exempt_by_name_while_a_listener_covers_it(void **state)
{
	const struct vma_flow_key key = tcp_flow_key_from_peer_port(1000);

	(void)state;
	fake_kernel_add_connection(1000);
	assert_true(vma_ring_exempt_kernel_connections(ring, &key));
	assert_true(vma_ring_exempt_kernel_connections(ring, &key)); /* once is enough */
	receive_segment_from_peer(1000);
	assert_int_equal(fake.to_kernel, 1);
	vma_ring_detach_flow(ring, &listener);
	assert_false(vma_ring_remove_exempts_of_ended_conns(ring));
	vma_ring_exempt_kernel_connections(ring, &key); /* the NIC leaves it to the kernel */
	assert_false(vma_ring_remove_exempts_of_ended_conns(ring));
	assert_int_equal(vma_ring_attach_flow(ring, &listener), 0);
	receive_segment_from_peer(1000);
	assert_int_equal(heard, 1);
}

static void test_a_connection_of_ours_is_not_exempt(void **state)
{
	struct vma_flow ours = {.key = tcp_flow_key_from_peer_port(1000),
	                        .flags = VMA_FLOW_RING_ONLY,
	                        .sink = count_and_free_listener_packet};

	(void)state;
	assert_int_equal(vma_ring_attach_flow(ring, &ours), 0);
	fake_kernel_add_connection(1000);
	vma_ring_exempt_kernel_connections(ring, &listener.key);
	receive_segment_from_peer(1000);
	assert_int_equal(heard, 1);
	assert_int_equal(fake.to_kernel, 0);
	vma_ring_detach_flow(ring, &ours);
}

static void test_there_are_so_many_at_most(void **state)
{
	(void)state;
	for (unsigned i = 0; i < RING_EXEMPTS_MAX + 10; i++)
		fake_kernel_add_connection((uint16_t)(1000 + i));
	vma_ring_exempt_kernel_connections(ring, &listener.key);
	receive_segment_from_peer(999 + RING_EXEMPTS_MAX);
	assert_int_equal(fake.to_kernel, 1);
	receive_segment_from_peer(1000 + RING_EXEMPTS_MAX);
	assert_int_equal(heard, 1);
	vma_ring_exempt_kernel_connections(ring, &kernel.keys[RING_EXEMPTS_MAX]);
	receive_segment_from_peer(1000 + RING_EXEMPTS_MAX);
	assert_int_equal(heard, 2);
}

static void test_what_the_kernel_refuses_for_its_addresses_is_counted_as_that(void **state)
{
	(void)state;
	fake_kernel_add_connection(1000);
	vma_ring_exempt_kernel_connections(ring, &listener.key);
	fake.to_kernel_result = -EADDRNOTAVAIL;
	receive_segment_from_peer(1000);
	assert_int_equal(vma_stats_read_counter(&ring->stats->rx.rx_drop_martian), 1);
	fake.to_kernel_result = -ENOBUFS;
	receive_segment_from_peer(1000);
	assert_int_equal(vma_stats_read_counter(&ring->stats->rx.rx_drop_martian), 1);
	assert_int_equal(vma_stats_read_counter(&ring->stats->rx.rx_drop_sink), 1);
	assert_int_equal(vma_stats_read_counter(&ring->stats->rx.rx_to_kernel), 0);
	fake.to_kernel_result = 0;
}

/* ---- what waits while the sweep ends them ---- */

static struct vma_ring_command waiting;
static unsigned exempts_left_at_command_run;
static _Atomic bool is_posted;

static void note_exempts_left_at_command_run(struct vma_ring_command *command)
{
	(void)command;
	exempts_left_at_command_run = ring->exempts_count;
}

static int fake_hook_post_ring_command_once(struct fake_nic *nic, const struct vma_flow_key *key)
{
	(void)nic, (void)key;
	if (!atomic_exchange(&is_posted, true)) {
		waiting.run = note_exempts_left_at_command_run;
		vma_ring_queue_command_and_try_run(ring, &waiting);
	}
	return 0;
}

/* The first exemption has a rule of the NIC, by whose end the test knows when the sweep has begun to end them. */
static void test_a_sweep_of_many_lets_the_ring_go_on_in_between(void **state)
{
	struct vma_flow ours = {.key = tcp_flow_key_from_peer_port(1000),
	                        .flags = VMA_FLOW_RING_ONLY,
	                        .sink = count_and_free_listener_packet};

	(void)state;
	assert_int_equal(vma_ring_attach_flow(ring, &ours), 0);
	assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &ours), 0);
	assert_true(vma_ring_detach_flow_keep_stale_rule(ring, &ours));
	for (unsigned i = 0; i < RING_EXEMPTS_MAX; i++)
		fake_kernel_add_connection((uint16_t)(1000 + i));
	assert_true(vma_ring_exempt_kernel_connections(ring, &listener.key));
	kernel.n = 0;
	atomic_store(&is_posted, false);
	fake.in_flow_del = fake_hook_post_ring_command_once;
	assert_false(vma_ring_remove_exempts_of_ended_conns(ring));
	fake.in_flow_del = NULL;
	assert_true(atomic_load(&is_posted));
	assert_in_range(exempts_left_at_command_run, RING_EXEMPTS_MAX - 64, RING_EXEMPTS_MAX - 1);
}

/* A connection of this process that has the key of one that the kernel had. */
static void test_the_end_of_an_exemption_leaves_a_connection_of_the_same_key(void **state)
{
	struct vma_flow ours = {.key = tcp_flow_key_from_peer_port(1000),
	                        .flags = VMA_FLOW_RING_ONLY,
	                        .sink = count_and_free_listener_packet};

	(void)state;
	fake_kernel_add_connection(1000);
	assert_true(vma_ring_exempt_kernel_connections(ring, &ours.key));
	assert_int_equal(vma_ring_attach_flow(ring, &ours), 0);
	kernel.n = 0;
	assert_false(vma_ring_remove_exempts_of_ended_conns(ring));
	assert_ptr_equal(vma_ring_find_first_flow_of_key(ring, &ours.key), &ours);
	vma_ring_detach_flow(ring, &ours);
}

/* ---- a NIC that leaves connections to the kernel by itself ---- */

static int exempt_asserting_rx_flag_is_not_held(struct fake_nic *nic, const struct vma_flow_key *key)
{
	(void)nic, (void)key;
	assert_false(drive_flag_is_held(&ring->rx));
	return 0;
}

static int exempt_first_flow_then_enospc(struct fake_nic *nic, const struct vma_flow_key *key)
{
	(void)key;
	return nic->exempts == 0 ? 0 : -ENOSPC;
}

static void test_the_nic_is_asked_once_for_each_and_told_of_their_end(void **state)
{
	(void)state;
	fake.in_exempt = exempt_asserting_rx_flag_is_not_held;
	fake_kernel_add_connection(1000);
	fake_kernel_add_connection(1001);
	vma_ring_exempt_kernel_connections(ring, &listener.key);
	vma_ring_exempt_kernel_connections(ring, &listener.key);
	vma_ring_exempt_kernel_connections(ring, &kernel.keys[0]);
	assert_int_equal(fake.exempts, 2);
	receive_segment_from_peer(1000); /* that came before */
	assert_int_equal(fake.to_kernel, 1);
	kernel.n = 1;
	assert_true(vma_ring_remove_exempts_of_ended_conns(ring));
	assert_int_equal(fake.exempts, 1);
	kernel.n = 0;
	assert_false(vma_ring_remove_exempts_of_ended_conns(ring));
	assert_int_equal(fake.exempts, 0);
}

static void test_a_nic_without_room_leaves_the_rest_to_the_table(void **state)
{
	(void)state;
	fake.in_exempt = exempt_first_flow_then_enospc;
	fake_kernel_add_connection(1000);
	fake_kernel_add_connection(1001);
	vma_ring_exempt_kernel_connections(ring, &listener.key);
	assert_int_equal(fake.exempts, 1);
	receive_segment_from_peer(1001);
	assert_int_equal(fake.to_kernel, 1);
	kernel.n = 0;
	assert_false(vma_ring_remove_exempts_of_ended_conns(ring));
	assert_int_equal(fake.exempts, 0);
}

static void test_the_rings_end_tells_the_nic(void **state)
{
	(void)state;
	fake.in_exempt = exempt_asserting_rx_flag_is_not_held;
	fake_kernel_add_connection(1000);
	vma_ring_exempt_kernel_connections(ring, &listener.key);
	assert_int_equal(fake.exempts, 1);
	vma_ring_detach_flow(ring, &listener);
	vma_ring_destroy(ring);
	assert_int_equal(fake.exempts, 0);
	ring = fake_nic_create_ring(&fake, VMA_THREAD_YIELD);
	assert_int_equal(vma_ring_attach_flow(ring, &listener), 0);
}

static void test_a_ring_without_the_listener_refuses(void **state)
{
	struct vma_flow_key key = tcp_flow_key_from_peer_port(1000);

	(void)state;
	key.local_port_be = htons(81);
	assert_false(vma_ring_exempt_kernel_connections(ring, &key));
}

static void test_a_nic_that_asks_the_kernel_itself_has_none(void **state)
{
	(void)state;
	fake_kernel_add_connection(1000);
	assert_false(vma_ring_exempt_kernel_connections(ring, &listener.key));
	receive_segment_from_peer(1000);
	assert_int_equal(heard, 1);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
static const struct CMUnitTest tests[] = {
        CASE(test_connections_that_the_kernel_has_when_the_rule_is_in_are_its_own),
        CASE(test_a_connection_that_the_kernel_has_no_more_is_the_listeners_again),
        CASE(test_a_kernel_that_does_not_say_changes_nothing),
        CASE(test_one_connection_is_exempt_by_name_while_a_listener_covers_it),
        CASE(test_a_connection_of_ours_is_not_exempt),
        CASE(test_there_are_so_many_at_most),
        CASE(test_what_the_kernel_refuses_for_its_addresses_is_counted_as_that),
        CASE(test_a_sweep_of_many_lets_the_ring_go_on_in_between),
        CASE(test_the_end_of_an_exemption_leaves_a_connection_of_the_same_key),
        CASE(test_the_nic_is_asked_once_for_each_and_told_of_their_end),
        CASE(test_a_nic_without_room_leaves_the_rest_to_the_table),
        CASE(test_the_rings_end_tells_the_nic),
        CASE(test_a_ring_without_the_listener_refuses),
        cmocka_unit_test_setup_teardown(test_a_nic_that_asks_the_kernel_itself_has_none, setup_ring_with_no_nic_caps,
                                        teardown),
};
VMA_TEST_MAIN(tests)
