/* SipHash-2-4 against the values that its authors published. */
#include <vma/test.h>

#include "../siphash.h"

static void test_published_values(void **state)
{
	/* Of the inputs 00 01 02 ... of these lengths, under the key 00 01 ... 0f (paper, appendix A; reference
	 * vectors). */
	static const struct {
		size_t len;
		uint64_t value;
	} published[] = {
	        {0, 0x726fdb47dd0e0e31ULL}, {1, 0x74f839c593dc67fdULL},  {7, 0xab0200f58b01d137ULL},
	        {8, 0x93f5f5799a932462ULL}, {15, 0xa129ca6149be45e5ULL},
	};
	uint8_t key[16], input[16];

	(void)state;
	for (unsigned i = 0; i < 16; i++)
		key[i] = input[i] = (uint8_t)i;
	for (unsigned i = 0; i < sizeof(published) / sizeof(published[0]); i++)
		assert_int_equal(siphash(key, input, published[i].len), published[i].value);
}

static void test_another_key_is_another_function(void **state)
{
	uint8_t one[16] = {0}, other[16] = {1};

	(void)state;
	assert_int_not_equal(siphash(one, "x", 1), siphash(other, "x", 1));
	assert_int_not_equal(siphash(one, "x", 1), siphash(one, "y", 1));
	assert_int_not_equal(siphash(one, "\0", 1), siphash(one, "\0\0", 2));
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_values),
        cmocka_unit_test(test_another_key_is_another_function),
};
VMA_TEST_MAIN(tests)
