/*
 * UDP flows that several slots of one process have: the owner's table, and a program that only remembers. The kernel's
 * sockets are real.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vma/test.h>

#include "fake_prog.h"
#include "../xdp/shared.h"

enum { MINE, SHADOW_OWNER_SECOND_SLOT, SHADOW_OWNER_THIRD_SLOT, OTHER_PROCESS_SLOT, SLOTS };

static struct xdp_owner owner;
static struct vma_flow_rule rule;
static int shadow;
static struct xdp_shared shared_memory, *const shared = &shared_memory;
static uint32_t revoked_slots;

uint64_t owner_now_ns(void)
{
	return 1000000000;
}

int vma_flow_key_check(const struct vma_flow_key *key)
{
	return key->family == AF_INET ? 0 : -EAFNOSUPPORT;
}

static int setup(void **state)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address), cookie_len = sizeof(rule.shadow_cookie);

	(void)state;
	memset(&owner, 0, sizeof(owner));
	memset(&prog, 0, sizeof(prog));
	owner.diag_fd = -1;
	owner.shared = shared;
	for (uint32_t slot = 0; slot < SLOTS; slot++) {
		owner.slot[slot].state = SLOT_RENTED;
		owner_set_process_of_slot(&owner, slot, slot == OTHER_PROCESS_SLOT ? 200 : 100);
	}
	shadow = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(shadow, (struct sockaddr *)&address, len), 0);
	assert_int_equal(getsockname(shadow, (struct sockaddr *)&address, &len), 0);
	rule = (struct vma_flow_rule){.flags = VMA_FLOW_REUSEPORT};
	assert_int_equal(getsockopt(shadow, SOL_SOCKET, SO_COOKIE, &rule.shadow_cookie, &cookie_len), 0);
	rule.key = (struct vma_flow_key){
	        .family = AF_INET, .proto = IPPROTO_UDP, .local_port_be = address.sin_port, .local = {127, 0, 0, 1}};
	revoked_slots = 0;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (uint32_t slot = 0; slot < SLOTS; slot++)
		owner_slot_release_flows_and_claims(&owner, slot, true);
	assert_int_equal(owner.flows, 0);
	assert_int_equal(fake_prog_used_entries(), 0);
	for (unsigned i = 0; i < XDP_GROUPS; i++)
		assert_int_equal(owner.group_used[i], 0);
	owner_groups_fini(&owner);
	owner_resets_fini(&owner);
	owner_minisocks_fini(&owner.minisocks);
	close(shadow);
	return 0;
}

static void add(uint32_t slot)
{
	assert_int_equal(xdp_owner_flow_add(&owner, slot, &rule), 0);
}

/* Of 128 buckets. */
static unsigned count_spread_buckets_of_slot(uint32_t slot)
{
	const int at = fake_prog_find_entry(&rule.key);
	unsigned n = 0;

	assert_true(at >= 0);
	if (prog.entry[at].spread == 0)
		return prog.entry[at].slot == slot ? XDP_GROUP_BUCKETS : 0;
	for (unsigned i = 0; i < XDP_GROUP_BUCKETS; i++)
		n += prog.groups[prog.entry[at].spread].slot[i] == slot;
	return n;
}

static void record_revoked_slot(uint32_t slot, const struct vma_flow_key *key, void *arg)
{
	(void)key, (void)arg;
	revoked_slots |= 1u << slot;
}

static void test_two_slots_of_a_process_have_half_each(void **state)
{
	(void)state;
	add(MINE);
	assert_int_equal(count_spread_buckets_of_slot(MINE), XDP_GROUP_BUCKETS);
	add(SHADOW_OWNER_SECOND_SLOT);
	assert_int_equal(count_spread_buckets_of_slot(MINE), XDP_GROUP_BUCKETS / 2);
	assert_int_equal(count_spread_buckets_of_slot(SHADOW_OWNER_SECOND_SLOT), XDP_GROUP_BUCKETS / 2);
	add(SHADOW_OWNER_THIRD_SLOT);
	assert_true(count_spread_buckets_of_slot(SHADOW_OWNER_THIRD_SLOT) >= XDP_GROUP_BUCKETS / 3);
	assert_int_equal(owner.flows, 1);
}

static void test_a_slot_that_leaves_gives_its_share_to_the_others(void **state)
{
	(void)state;
	add(MINE);
	add(SHADOW_OWNER_SECOND_SLOT);
	assert_int_equal(xdp_owner_flow_del(&owner, MINE, &rule.key), 0);
	assert_int_equal(count_spread_buckets_of_slot(SHADOW_OWNER_SECOND_SLOT), XDP_GROUP_BUCKETS);
	assert_int_equal(owner.slot[MINE].flows, 0);
	assert_int_equal(owner.slot[SHADOW_OWNER_SECOND_SLOT].flows, 1);
	assert_int_equal(xdp_owner_flow_del(&owner, MINE, &rule.key), -ENOENT);
	add(MINE);
	owner_slot_release_flows_and_claims(&owner, SHADOW_OWNER_SECOND_SLOT, true); /* it dies */
	assert_int_equal(count_spread_buckets_of_slot(MINE), XDP_GROUP_BUCKETS);
	assert_int_equal(xdp_owner_flow_del(&owner, MINE, &rule.key), 0);
	assert_int_equal(fake_prog_find_entry(&rule.key), -1);
}

static void test_another_process_has_it_taken_from_all(void **state)
{
	(void)state;
	add(MINE);
	add(SHADOW_OWNER_SECOND_SLOT);
	assert_int_equal(xdp_owner_flow_add(&owner, OTHER_PROCESS_SLOT, &rule), -EADDRINUSE);
	assert_int_equal(fake_prog_find_entry(&rule.key), -1);
	owner_report_revoked_flows(&owner, record_revoked_slot, NULL);
	assert_int_equal(revoked_slots, 1u << MINE | 1u << SHADOW_OWNER_SECOND_SLOT);
	assert_int_equal(xdp_owner_flow_add(&owner, MINE, &rule), -EADDRINUSE); /* the other waits for it, too */
	owner_flow_waiters_remove_of_slot(&owner, OTHER_PROCESS_SLOT);
	add(MINE); /* what its own other slot waits for is no reason */
	add(SHADOW_OWNER_SECOND_SLOT);
	assert_int_equal(count_spread_buckets_of_slot(SHADOW_OWNER_SECOND_SLOT), XDP_GROUP_BUCKETS / 2);
}

static void test_without_the_flag_queue_pairs_contend(void **state)
{
	(void)state;
	add(MINE);
	rule.flags = 0;
	assert_int_equal(xdp_owner_flow_add(&owner, SHADOW_OWNER_SECOND_SLOT, &rule), -EADDRINUSE);
	assert_int_equal(fake_prog_find_entry(&rule.key), -1);
	owner_report_revoked_flows(&owner, record_revoked_slot, NULL);
}

/* Its slots are its members: a client that asks for it all the same must not leave it to a slot that is none. */
static void test_what_several_slots_have_does_not_move(void **state)
{
	(void)state;
	add(MINE);
	add(SHADOW_OWNER_SECOND_SLOT);
	assert_int_equal(xdp_owner_flow_move(&owner, MINE, SHADOW_OWNER_THIRD_SLOT, &rule.key), -EBUSY);
	assert_int_equal(count_spread_buckets_of_slot(SHADOW_OWNER_THIRD_SLOT), 0);
	assert_int_equal(count_spread_buckets_of_slot(MINE), XDP_GROUP_BUCKETS / 2);
	assert_int_equal(owner.slot[SHADOW_OWNER_THIRD_SLOT].flows, 0);
	owner_slot_release_flows_and_claims(&owner, MINE, true);
	owner_slot_release_flows_and_claims(&owner, SHADOW_OWNER_SECOND_SLOT, true);
	assert_int_equal(fake_prog_find_entry(&rule.key), -1);
}

static void test_processes_are_counted_and_not_their_slots(void **state)
{
	(void)state;
	assert_int_equal(atomic_load(&shared->tenants), 2);
	owner.slot[OTHER_PROCESS_SLOT].state = SLOT_FREE;
	owner_count_client_processes(&owner);
	assert_int_equal(atomic_load(&shared->tenants), 1);
	owner_set_process_of_slot(&owner, MINE, 0); /* without a number each slot is one of its own */
	owner_set_process_of_slot(&owner, SHADOW_OWNER_SECOND_SLOT, 0);
	assert_int_equal(atomic_load(&shared->tenants), 3);
	assert_false(owner_same_process(&owner, MINE, SHADOW_OWNER_SECOND_SLOT));
}

static void test_a_new_owner_finds_the_slots_in_the_buckets(void **state)
{
	const int number = 7;

	(void)state;
	for (unsigned i = 0; i < XDP_GROUP_BUCKETS; i++)
		prog.groups[number].slot[i] = i % 2 ? SHADOW_OWNER_SECOND_SLOT : SHADOW_OWNER_THIRD_SLOT;
	add(SHADOW_OWNER_SECOND_SLOT);
	owner_restore_spread_udp_flow(&owner, owner_find_listener_flow(&owner, &rule.key), number,
	                              1u << MINE | 1u << SHADOW_OWNER_SECOND_SLOT);
	assert_true(owner_flow_has_slot(owner_find_listener_flow(&owner, &rule.key), SHADOW_OWNER_SECOND_SLOT));
	assert_false(owner_flow_has_slot(owner_find_listener_flow(&owner, &rule.key),
	                                 SHADOW_OWNER_THIRD_SLOT)); /* it has gone */
	assert_int_equal(owner.group_used[number], 1);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_two_slots_of_a_process_have_half_each, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_slot_that_leaves_gives_its_share_to_the_others, setup, teardown),
        cmocka_unit_test_setup_teardown(test_another_process_has_it_taken_from_all, setup, teardown),
        cmocka_unit_test_setup_teardown(test_without_the_flag_queue_pairs_contend, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_several_slots_have_does_not_move, setup, teardown),
        cmocka_unit_test_setup_teardown(test_processes_are_counted_and_not_their_slots, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_new_owner_finds_the_slots_in_the_buckets, setup, teardown),
};

VMA_TEST_MAIN(tests)
