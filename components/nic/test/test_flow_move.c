/* A flow of UDP or a connection goes from one slot of the owner's to another: the owner's table, and a program that
 * only counts. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include <vma/test.h>

#include "fake_prog.h"

static struct xdp_owner owner;
static struct vma_flow_rule rule = {
        .key = {.family = AF_INET, .proto = IPPROTO_UDP, .local = {127, 0, 0, 1}, .local_port_be = 1}};

uint64_t owner_now_ns(void)
{
	return 1;
}

int vma_flow_key_check(const struct vma_flow_key *key)
{
	return key->family == AF_INET ? 0 : -EAFNOSUPPORT;
}

static int setup(void **state)
{
	(void)state;
	memset(&owner, 0, sizeof(owner));
	memset(&prog, 0, sizeof(prog));
	owner.diag_fd = -1;
	for (uint32_t slot = 0; slot < 3; slot++)
		owner.slot[slot].state = SLOT_RENTED;
	assert_int_equal(xdp_owner_flow_add(&owner, 0, &rule), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (uint32_t slot = 0; slot < 3; slot++)
		owner_slot_release_flows_and_claims(&owner, slot, true);
	assert_int_equal(owner.flows, 0);
	assert_int_equal(fake_prog_used_entries(), 0);
	return 0;
}

static void test_a_moved_flow_is_the_other_slots(void **state)
{
	(void)state;
	assert_int_equal(xdp_owner_flow_move(&owner, 0, 1, &rule.key), 0);
	assert_int_equal(prog.entry[fake_prog_find_entry(&rule.key)].slot, 1);
	assert_int_equal(owner.slot[0].flows, 0);
	assert_int_equal(owner.slot[1].flows, 1);
	assert_int_equal(xdp_owner_flow_del(&owner, 0, &rule.key), -ENOENT);
	assert_int_equal(xdp_owner_flow_add(&owner, 1, &rule), -EEXIST);
	assert_int_equal(xdp_owner_flow_del(&owner, 1, &rule.key), 0);
}

static void test_a_slot_that_ends_takes_along_what_has_moved_to_it_and_not_what_has_left(void **state)
{
	(void)state;
	assert_int_equal(xdp_owner_flow_move(&owner, 0, 1, &rule.key), 0);
	owner_slot_release_flows_and_claims(&owner, 0, true);
	assert_int_equal(fake_prog_used_entries(), 1);
	owner_slot_release_flows_and_claims(&owner, 1, true);
	assert_int_equal(fake_prog_used_entries(), 0);
}

static void test_a_connection_moves_as_a_flow_of_udp_does(void **state)
{
	struct vma_flow_rule connection = rule;

	(void)state;
	connection.key.proto = IPPROTO_TCP;
	connection.key.peer_port_be = 2;
	memcpy(connection.key.peer, connection.key.local, 4);
	assert_int_equal(xdp_owner_flow_add(&owner, 0, &connection), 0);
	assert_int_equal(xdp_owner_flow_move(&owner, 1, 0, &connection.key), -ENOENT);
	assert_int_equal(xdp_owner_flow_move(&owner, 0, 1, &connection.key), 0);
	assert_int_equal(prog.entry[fake_prog_find_entry(&connection.key)].slot, 1);
	assert_int_equal(owner.slot[0].flows, 1); /* the other one */
	assert_int_equal(owner.slot[1].flows, 1);
	assert_int_equal(xdp_owner_flow_del(&owner, 0, &connection.key), -ENOENT);
	assert_int_equal(xdp_owner_flow_del(&owner, 1, &connection.key), 0);
}

static void test_a_listener_stays_and_a_flow_moves_only_from_its_slot_to_a_rented_one(void **state)
{
	struct vma_flow_rule listener = rule;

	(void)state;
	listener.key.proto = IPPROTO_TCP;
	listener.flags = VMA_FLOW_LISTENER;
	assert_int_equal(xdp_owner_flow_add(&owner, 0, &listener), 0);
	assert_int_equal(xdp_owner_flow_move(&owner, 0, 1, &listener.key), -EINVAL);
	assert_int_equal(xdp_owner_flow_move(&owner, 1, 2, &rule.key), -ENOENT);
	assert_int_equal(xdp_owner_flow_move(&owner, 0, 3, &rule.key), -EINVAL);
	assert_int_equal(xdp_owner_flow_move(&owner, 0, XDP_SLOTS_MAX, &rule.key), -EINVAL);
	assert_int_equal(xdp_owner_flow_move(&owner, 0, 0, &rule.key), -EINVAL);
	assert_int_equal(prog.entry[fake_prog_find_entry(&rule.key)].slot, 0);
	assert_int_equal(xdp_owner_flow_del(&owner, 0, &listener.key), 0);
}

static void test_a_flow_that_the_map_does_not_move_stays(void **state)
{
	(void)state;
	prog.has_no_memory = true;
	assert_int_equal(xdp_owner_flow_move(&owner, 0, 1, &rule.key), -ENOMEM);
	prog.has_no_memory = false;
	assert_int_equal(owner.slot[0].flows, 1);
	assert_int_equal(xdp_owner_flow_del(&owner, 0, &rule.key), 0);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_moved_flow_is_the_other_slots, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_slot_that_ends_takes_along_what_has_moved_to_it_and_not_what_has_left,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_connection_moves_as_a_flow_of_udp_does, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_listener_stays_and_a_flow_moves_only_from_its_slot_to_a_rented_one,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_flow_that_the_map_does_not_move_stays, setup, teardown),
};

VMA_TEST_MAIN(tests)
