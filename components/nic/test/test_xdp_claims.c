/* Flows that clients claim by themselves: who has one, when none is to be had, and what is left of the dead. */
#include <arpa/inet.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include <vma/test.h>

#include "../xdp/claims.h"
#include "../xdp/shared.h"

static struct xdp_claim_bucket table[XDP_CLAIM_BUCKETS];
static struct xdp_shared shared;

static int setup_empty_claims_table(void **state)
{
	(void)state;
	memset(table, 0, sizeof(table));
	xdp_claims_allow(&shared);
	return 0;
}

static struct vma_flow_key xdp_claims_udp_key_of_ports(uint16_t port, uint16_t peer_port)
{
	struct vma_flow_key key = {.family = AF_INET,
	                           .proto = IPPROTO_UDP,
	                           .local = {10, 9, 0, 2},
	                           .local_port_be = htons(port),
	                           .peer_port_be = htons(peer_port)};

	if (peer_port != 0)
		memcpy(key.peer, (uint8_t[]){10, 9, 0, 1}, 4);
	return key;
}

static struct xdp_claim *add_test_claim(uint32_t slot, uint16_t port, uint16_t peer_port)
{
	const struct vma_flow_key key = xdp_claims_udp_key_of_ports(port, peer_port);

	return xdp_claims_add_flow(table, &shared, slot, &key);
}

static void test_a_claim_says_whose_packets_are_meant_and_who_gets_them(void **state)
{
	const struct xdp_claim *any = add_test_claim(3, 40000, 0), *one = add_test_claim(3, 40001, 53);
	uint32_t local, peer;

	(void)state;
	memcpy(&local, (uint8_t[]){10, 9, 0, 2}, 4);
	memcpy(&peer, (uint8_t[]){10, 9, 0, 1}, 4);
	assert_int_equal(any->name, xdp_claim_pack_local_name(local, htons(40000), 0));
	assert_int_equal(any->peer_and_slot, 3);
	assert_int_equal(one->peer_and_slot, xdp_claim_pack_peer_and_slot(peer, htons(53), 3));
	assert_ptr_equal(any, &table[xdp_claim_bucket_of(local, htons(40000))].way[0]);
}

static void test_of_one_name_a_client_has_two_while_it_changes_its_peer(void **state)
{
	struct xdp_claim *any = add_test_claim(3, 40000, 0), *one = add_test_claim(3, 40000, 53);

	(void)state;
	assert_non_null(one);
	assert_ptr_not_equal(any, one);
	xdp_claims_remove_flow(any);
	assert_int_not_equal(one->name, 0);
}

static void test_a_claim_moves_to_another_slot_with_its_name_and_peer(void **state)
{
	struct xdp_claim *one = add_test_claim(3, 40001, 53);
	const uint64_t name = one->name;
	uint32_t peer;

	(void)state;
	memcpy(&peer, (uint8_t[]){10, 9, 0, 1}, 4);
	xdp_claims_move_to_slot(one, 61);
	assert_int_equal(one->name, name);
	assert_int_equal(one->peer_and_slot, xdp_claim_pack_peer_and_slot(peer, htons(53), 61));
	xdp_claims_free_of_slot(table, 3);
	assert_int_equal(one->name, name);
	xdp_claims_free_of_slot(table, 61);
	assert_int_equal(one->name, 0);
}

static void test_a_full_bucket_refuses_until_one_is_given_up(void **state)
{
	struct xdp_claim *first = add_test_claim(1, 20000, 0);

	(void)state;
	assert_non_null(add_test_claim(2, 20000 + XDP_CLAIM_BUCKETS, 0));
	assert_null(add_test_claim(3, 20000 + 2 * XDP_CLAIM_BUCKETS, 0));
	xdp_claims_remove_flow(first);
	assert_non_null(add_test_claim(3, 20000 + 2 * XDP_CLAIM_BUCKETS, 0));
}

static void test_all_ports_of_the_usual_range_but_few_are_to_be_had_at_once(void **state)
{
	unsigned had = 0;

	(void)state;
	for (unsigned port = 32768; port < 32768 + 2 * XDP_CLAIM_BUCKETS; port++)
		had += add_test_claim(1, (uint16_t)port, 0) != NULL;
	assert_int_equal(had, 2 * XDP_CLAIM_BUCKETS);
}

static void test_while_it_is_closed_nothing_is_claimed_and_nothing_is_left(void **state)
{
	(void)state;
	assert_true(xdp_claims_forbid_if_none_exist(table, &shared));
	assert_null(add_test_claim(1, 40000, 0));
	for (unsigned b = 0; b < XDP_CLAIM_BUCKETS; b++)
		assert_int_equal(table[b].way[0].name | table[b].way[1].name, 0);
}

static void test_with_a_claim_it_does_not_close(void **state)
{
	struct xdp_claim *claim = add_test_claim(1, 40000, 0);

	(void)state;
	assert_false(xdp_claims_forbid_if_none_exist(table, &shared));
	assert_non_null(add_test_claim(1, 40001, 0)); /* it is open again */
	xdp_claims_free_of_slot(table, 1);
	assert_int_equal(claim->name, 0);
	assert_true(xdp_claims_forbid_if_none_exist(table, &shared));
}

static void test_the_dead_leave_nothing_also_in_the_middle_of_a_claim(void **state)
{
	struct xdp_claim *dead = add_test_claim(1, 40000, 0), *alive = add_test_claim(2, 40001, 0),
	                 *half = &table[7].way[1], *others_half = &table[8].way[0];

	(void)state;
	half->name = 1 + 1;
	others_half->name = 2 + 1;
	others_half->peer_and_slot = 1; /* of an earlier claim there */
	xdp_claims_free_of_slot(table, 1);
	assert_int_equal(dead->name, 0);
	assert_int_equal(half->name, 0);
	assert_int_not_equal(alive->name, 0);
	assert_int_equal(others_half->name, 2 + 1);
}

static void test_what_a_dead_client_still_has_is_nobodys_before_it_is_swept(void **state)
{
	(void)state;
	assert_non_null(add_test_claim(1, 40000, 0));
	assert_null(add_test_claim(2, 40000, 0));
	xdp_claims_free_of_slot(table, 1);
	assert_non_null(add_test_claim(2, 40000, 0));
}

/* ---- closing against claiming ---- */

static _Atomic bool stop;
static _Atomic uint32_t claim_holders_n; /* who has a claim, from after it was had to before it is given up */

static void *claim_contending_thread(void *arg)
{
	const uint32_t slot = (uint32_t)(uintptr_t)arg;

	while (!atomic_load(&stop)) {
		struct xdp_claim *claim = add_test_claim(slot, (uint16_t)(40000 + slot), 0);

		if (claim == NULL)
			continue;
		atomic_fetch_add(&claim_holders_n, 1);
		atomic_fetch_sub(&claim_holders_n, 1);
		xdp_claims_remove_flow(claim);
	}
	return NULL;
}

static time_t now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec;
}

/* On a busy machine one of them may have been taken its core with a claim: then nothing is closed until it goes on. */
static void test_no_claim_is_had_from_what_has_just_been_closed(void **state)
{
	const time_t give_up = now_s() + 10;
	pthread_t thread[2];
	unsigned closes = 0;

	(void)state;
	for (uintptr_t slot = 0; slot < 2; slot++)
		pthread_create(&thread[slot], NULL, claim_contending_thread, (void *)slot);
	for (unsigned i = 0; i < 2000 || (closes < 10 && now_s() < give_up); i++) {
		if (!xdp_claims_forbid_if_none_exist(table, &shared))
			continue;
		for (unsigned look = 0; look < 20; look++)
			assert_int_equal(atomic_load(&claim_holders_n), 0);
		closes++;
		xdp_claims_allow(&shared);
	}
	atomic_store(&stop, true);
	for (unsigned slot = 0; slot < 2; slot++)
		pthread_join(thread[slot], NULL);
	assert_int_not_equal(closes, 0);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_claim_says_whose_packets_are_meant_and_who_gets_them, setup_empty_claims_table),
        cmocka_unit_test_setup(test_of_one_name_a_client_has_two_while_it_changes_its_peer, setup_empty_claims_table),
        cmocka_unit_test_setup(test_a_claim_moves_to_another_slot_with_its_name_and_peer, setup_empty_claims_table),
        cmocka_unit_test_setup(test_a_full_bucket_refuses_until_one_is_given_up, setup_empty_claims_table),
        cmocka_unit_test_setup(test_all_ports_of_the_usual_range_but_few_are_to_be_had_at_once,
                               setup_empty_claims_table),
        cmocka_unit_test_setup(test_while_it_is_closed_nothing_is_claimed_and_nothing_is_left,
                               setup_empty_claims_table),
        cmocka_unit_test_setup(test_with_a_claim_it_does_not_close, setup_empty_claims_table),
        cmocka_unit_test_setup(test_the_dead_leave_nothing_also_in_the_middle_of_a_claim, setup_empty_claims_table),
        cmocka_unit_test_setup(test_what_a_dead_client_still_has_is_nobodys_before_it_is_swept,
                               setup_empty_claims_table),
        cmocka_unit_test_setup(test_no_claim_is_had_from_what_has_just_been_closed, setup_empty_claims_table),
};

VMA_TEST_MAIN(tests)
