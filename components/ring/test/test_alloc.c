/* Ring allocation: which sockets share, as a table over all logics. */
#include <string.h>

#include <vma/ring.h>
#include <vma/test.h>

static const enum vma_ring_logic logics[] = {0, 1, 10, 11, 20, 30, 31};
enum { LOGICS = sizeof(logics) / sizeof(logics[0]) };

static bool ring_keys_are_same(struct vma_ring_key a, struct vma_ring_key b)
{
	return memcmp(&a, &b, sizeof(a)) == 0;
}

/* Two who ask and differ in just one thing; under which of the logics they share. Order of `logics`. */
static const struct {
	const char *differ_in;
	struct vma_ring_requester a, b;
	bool share[LOGICS];
} table[] = {
        {"nothing", {.socket_id = 1}, {.socket_id = 1}, {1, 1, 1, 1, 1, 1, 1}},
        {"socket", {.socket_id = 1}, {.socket_id = 2}, {1, 1, 0, 1, 1, 1, 1}},
        {"address", {.local = {10, 0, 0, 1}}, {.local = {10, 0, 0, 2}}, {1, 0, 1, 1, 1, 1, 1}},
        {"user id", {.user_id = 1}, {.user_id = 2}, {1, 1, 1, 0, 1, 1, 1}},
        {"thread", {.thread_id = UINT64_C(1) << 40}, {.thread_id = 0}, {1, 1, 1, 1, 0, 1, 1}},
        {"core", {.core = 0}, {.core = 1}, {1, 1, 1, 1, 1, 0, 0}},
        {"profile", {.profile = 0}, {.profile = 1}, {0, 0, 0, 0, 0, 0, 0}},
        {"request", {.rx = {.is_set = true}}, {.tx = {.is_set = true, .user_id = 1}}, {1, 1, 1, 1, 1, 1, 1}},
};

static void test_each_logic_looks_at_its_own_property_only(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		for (size_t l = 0; l < LOGICS; l++) {
			bool share = ring_keys_are_same(vma_ring_key(logics[l], &table[i].a),
			                                vma_ring_key(logics[l], &table[i].b));

			if (share != table[i].share[l])
				fail_msg("logic %d, another %s: shared %d", logics[l], table[i].differ_in, share);
		}
	}
}

static void test_logics_never_share_with_each_other(void **state)
{
	struct vma_ring_requester where = {.socket_id = 1, .user_id = 1, .thread_id = 1, .core = 1, .local = {1}};

	(void)state;
	for (size_t a = 0; a < LOGICS; a++) {
		for (size_t b = 0; b < a; b++)
			assert_false(
			        ring_keys_are_same(vma_ring_key(logics[a], &where), vma_ring_key(logics[b], &where)));
	}
}

static void test_below_the_limit_each_key_gets_a_ring_of_its_own(void **state)
{
	struct vma_ring_requester where = {.thread_id = 7};
	struct vma_ring_key key = vma_ring_key(VMA_RING_LOGIC_PER_THREAD, &where);

	(void)state;
	assert_int_equal(vma_ring_choose_existing_or_new(key, 0, 0), -1);
	assert_int_equal(vma_ring_choose_existing_or_new(key, 1000, 0), -1);
	assert_int_equal(vma_ring_choose_existing_or_new(key, 3, 4), -1);
	assert_true(vma_ring_choose_existing_or_new(key, 4, 4) >= 0);
	assert_int_equal(vma_ring_choose_existing_or_new(key, 1, 1), 0);
}

static void test_at_the_limit_keys_spread_over_the_rings_and_stay_there(void **state)
{
	unsigned users[4] = {0};

	(void)state;
	for (uint64_t thread = 1; thread <= 400; thread++) {
		struct vma_ring_requester where = {.thread_id = thread};
		struct vma_ring_key key = vma_ring_key(VMA_RING_LOGIC_PER_THREAD, &where);
		int n = vma_ring_choose_existing_or_new(key, 4, 4);

		assert_in_range(n, 0, 3);
		assert_int_equal(vma_ring_choose_existing_or_new(key, 4, 4), n);
		users[n]++;
	}
	for (int i = 0; i < 4; i++)
		assert_in_range(users[i], 60, 140);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_logic_looks_at_its_own_property_only),
        cmocka_unit_test(test_logics_never_share_with_each_other),
        cmocka_unit_test(test_below_the_limit_each_key_gets_a_ring_of_its_own),
        cmocka_unit_test(test_at_the_limit_keys_spread_over_the_rings_and_stay_there),
};
VMA_TEST_MAIN(tests)
