/* The option by which a socket asks for a ring: what is refused, what is kept, and what it answers. */
#include <errno.h>

#include <mellanox/vma_extra.h>

#include <vma/inet_ring_option.h>
#include <vma/sock_engine.h>
#include <vma/test.h>

#define BOTH (VMA_RING_ALLOC_MASK_RING_INGRESS | VMA_RING_ALLOC_MASK_RING_ENGRESS)

static struct vma_file file;

static int clear_ring_requests(void **state)
{
	(void)state;
	atomic_store(&file.ring_requests[0], 0);
	atomic_store(&file.ring_requests[1], 0);
	return 0;
}

static int set_ring_alloc_logic_option(const struct vma_ring_alloc_logic_attr *attr)
{
	return vma_inet_set_ring_option(&file, SO_VMA_RING_ALLOC_LOGIC, attr, sizeof(*attr), false);
}

static struct vma_ring_alloc_logic_attr make_ring_attr_with_logic(ring_logic_t logic)
{
	return (struct vma_ring_alloc_logic_attr){
	        .comp_mask = BOTH, .ring_alloc_logic = logic, .ingress = 1, .engress = 1};
}

static void test_each_logic_of_the_field_is_taken_and_no_other(void **state)
{
	struct vma_ring_alloc_logic_attr attr;

	(void)state;
	for (int logic = -1; logic <= RING_LOGIC_LAST; logic++) {
		const bool is_one = logic == 0 || logic == 1 || logic == 10 || logic == 11 || logic == 20 ||
		                    logic == 30 || logic == 31;

		attr = make_ring_attr_with_logic((ring_logic_t)logic);
		attr.comp_mask |= VMA_RING_ALLOC_MASK_RING_USER_ID;
		assert_int_equal(set_ring_alloc_logic_option(&attr), is_one ? 0 : -EINVAL);
	}
}

static void test_a_request_is_kept_for_the_directions_that_are_named(void **state)
{
	struct vma_ring_alloc_logic_attr attr = make_ring_attr_with_logic(RING_LOGIC_PER_USER_ID);

	(void)state;
	attr.comp_mask |= VMA_RING_ALLOC_MASK_RING_USER_ID;
	attr.user_id = UINT32_MAX;
	attr.engress = 0;
	assert_int_equal(set_ring_alloc_logic_option(&attr), 0);
	assert_true(vma_file_get_ring_alloc_request(&file, VMA_RING_CTX_RX).is_set);
	assert_int_equal(vma_file_get_ring_alloc_request(&file, VMA_RING_CTX_RX).logic, VMA_RING_LOGIC_PER_USER_ID);
	assert_int_equal(vma_file_get_ring_alloc_request(&file, VMA_RING_CTX_RX).user_id, UINT32_MAX);
	assert_false(vma_file_get_ring_alloc_request(&file, VMA_RING_CTX_TX).is_set);
	attr = make_ring_attr_with_logic(RING_LOGIC_PER_SOCKET);
	attr.comp_mask = VMA_RING_ALLOC_MASK_RING_ENGRESS; /* `ingress` is not named */
	assert_int_equal(set_ring_alloc_logic_option(&attr), 0);
	assert_int_equal(vma_file_get_ring_alloc_request(&file, VMA_RING_CTX_RX).logic, VMA_RING_LOGIC_PER_USER_ID);
	assert_int_equal(vma_file_get_ring_alloc_request(&file, VMA_RING_CTX_TX).logic, VMA_RING_LOGIC_PER_SOCKET);
}

static void test_what_makes_no_sense_is_refused_and_changes_nothing(void **state)
{
	struct vma_ring_alloc_logic_attr attr = make_ring_attr_with_logic(RING_LOGIC_PER_USER_ID),
	                                 good = make_ring_attr_with_logic(RING_LOGIC_PER_SOCKET);

	(void)state;
	assert_int_equal(set_ring_alloc_logic_option(&attr), -EINVAL); /* without a user id */
	attr = good;
	attr.comp_mask |= 1 << 4;
	assert_int_equal(set_ring_alloc_logic_option(&attr), -EINVAL);
	attr = good;
	attr.ingress = attr.engress = 0;
	assert_int_equal(set_ring_alloc_logic_option(&attr), -EINVAL);
	attr = good;
	attr.comp_mask = 0;
	assert_int_equal(set_ring_alloc_logic_option(&attr), -EINVAL);
	assert_int_equal(vma_inet_set_ring_option(&file, SO_VMA_RING_ALLOC_LOGIC, &good, sizeof(good) - 1, false),
	                 -EINVAL);
	assert_int_equal(vma_inet_set_ring_option(&file, SO_VMA_RING_ALLOC_LOGIC, &good, sizeof(good) + 1, false),
	                 -EINVAL);
	assert_int_equal(vma_inet_set_ring_option(&file, SO_VMA_RING_ALLOC_LOGIC, &good, sizeof(good), true), -EPERM);
	assert_int_equal(vma_inet_set_ring_option(&file, SO_VMA_RING_USER_MEMORY, &good, sizeof(good), false),
	                 -EOPNOTSUPP);
	assert_false(vma_file_has_ring_request(&file));
}

static void test_a_profile_has_a_key_that_must_be_known(void **state)
{
	struct vma_ring_alloc_logic_attr attr = make_ring_attr_with_logic(RING_LOGIC_PER_INTERFACE);
	int key;

	(void)state;
	attr.comp_mask |= VMA_RING_ALLOC_MASK_RING_PROFILE_KEY;
	attr.ring_profile_key = 1;
	assert_int_equal(set_ring_alloc_logic_option(&attr), -EINVAL);
	key = vma_inet_ring_profile_add();
	assert_true(key > 0);
	assert_int_not_equal(vma_inet_ring_profile_add(), key);
	attr.ring_profile_key = (uint32_t)key;
	assert_int_equal(set_ring_alloc_logic_option(&attr), 0);
	assert_int_equal(vma_file_get_ring_alloc_request(&file, VMA_RING_CTX_TX).profile, key);
	attr.ring_profile_key = 0;
	assert_int_equal(set_ring_alloc_logic_option(&attr), -EINVAL);
}

static void test_the_answer_is_what_holds_for_receiving(void **state)
{
	struct vma_ring_alloc_logic_attr attr = make_ring_attr_with_logic(RING_LOGIC_PER_USER_ID), got = {0};
	socklen_t len = sizeof(got);

	(void)state;
	assert_int_equal(vma_inet_get_ring_option(&file, SO_VMA_RING_ALLOC_LOGIC, &got, &len), 0);
	assert_int_equal(got.ring_alloc_logic, RING_LOGIC_PER_INTERFACE);
	assert_true(got.ingress && got.engress);
	attr.comp_mask |= VMA_RING_ALLOC_MASK_RING_USER_ID;
	attr.user_id = 7;
	attr.engress = 0;
	assert_int_equal(set_ring_alloc_logic_option(&attr), 0);
	len = 100;
	assert_int_equal(vma_inet_get_ring_option(&file, SO_VMA_RING_ALLOC_LOGIC, &got, &len), 0);
	assert_int_equal(len, sizeof(got));
	assert_int_equal(got.ring_alloc_logic, RING_LOGIC_PER_USER_ID);
	assert_int_equal(got.user_id, 7);
	assert_true(got.comp_mask & VMA_RING_ALLOC_MASK_RING_USER_ID);
	assert_true(got.ingress && !got.engress);
	len = sizeof(got) - 1;
	assert_int_equal(vma_inet_get_ring_option(&file, SO_VMA_RING_ALLOC_LOGIC, &got, &len), -EINVAL);
	assert_int_equal(vma_inet_get_ring_option(&file, SO_VMA_RING_USER_MEMORY, &got, &len), -EOPNOTSUPP);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_each_logic_of_the_field_is_taken_and_no_other, clear_ring_requests),
        cmocka_unit_test_setup(test_a_request_is_kept_for_the_directions_that_are_named, clear_ring_requests),
        cmocka_unit_test_setup(test_what_makes_no_sense_is_refused_and_changes_nothing, clear_ring_requests),
        cmocka_unit_test_setup(test_a_profile_has_a_key_that_must_be_known, clear_ring_requests),
        cmocka_unit_test_setup(test_the_answer_is_what_holds_for_receiving, clear_ring_requests),
};

VMA_TEST_MAIN(tests)
