/* The public header's binary interface: numbers and layouts when this is compiled, and what the mask says. */
#include <vma/extra.h>
#include <vma/test.h>

#include "../../sock/test/small_engine.h"
#include "abi.h"

static void test_mask_names_what_works_and_nothing_else(void **state)
{
	const uint64_t missing = VMA_EXTRA_API_SOCKETXTREME_POLL | VMA_EXTRA_API_REGISTER_MEMORY_ON_RING |
	                         VMA_EXTRA_API_DEREGISTER_MEMORY_ON_RING | VMA_EXTRA_API_IOCTL |
	                         VMA_EXTRA_API_GET_RING_DIRECT_DESCRIPTORS;

	(void)state;
	assert_true(vma_extra_mask() & VMA_EXTRA_API_RECVFROM_ZCOPY);
	assert_true(vma_extra_mask() & VMA_EXTRA_API_REGISTER_RECV_CALLBACK);
	assert_true(vma_extra_mask() & VMA_EXTRA_API_GET_SOCKET_RINGS_FDS);
	assert_int_equal(vma_extra_mask() & missing, 0);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mask_names_what_works_and_nothing_else),
};

/* The mask depends on the configuration. */
static int setup_small_engine_for_abi_test(void **state)
{
	(void)state;
	return start_engine_with_few_buffers("4096", "256") != NULL ? 0 : -1;
}

VMA_TEST_MAIN_WITH(tests, setup_small_engine_for_abi_test, NULL)
