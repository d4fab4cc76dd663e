/* What a rule of mlx5 compares for a connection that is the kernel's: each byte, by its place in the device's manual.
 * */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include <vma/test.h>

#include "../verbs/exempts.h"

static const uint8_t mac[6] = {0x02, 1, 2, 3, 4, 5};
static const struct vma_flow_key untagged = {
        .family = AF_INET, .proto = IPPROTO_TCP, .local = {10, 9, 0, 2}, .peer = {10, 9, 0, 1}};

static struct vma_flow_key key_of(uint16_t vlan)
{
	struct vma_flow_key key = untagged;

	key.vlan = vlan;
	key.local_port_be = htons(0x1b58);
	key.peer_port_be = htons(0xc001);
	return key;
}

static void assert_headers_equal_hex(const struct mlx5_outer_headers *headers, const char *hex)
{
	char text[2 * sizeof(*headers) + 1];

	for (size_t i = 0; i < sizeof(*headers); i++)
		snprintf(text + 2 * i, 3, "%02x", ((const uint8_t *)headers)[i]);
	assert_string_equal(text, hex);
}

static void test_a_connection_without_a_tag(void **state)
{
	const struct vma_flow_key key = key_of(0);
	struct mlx5_outer_headers value, mask;

	(void)state;
	verbs_exempt_fill_match_value_and_mask(&key, mac, &value, &mask);
	assert_headers_equal_hex(&value, "0000000000000800"
	                                 "0201020304050000"
	                                 "06000000c0011b58"
	                                 "0000000000000000"
	                                 "0000000000000000000000000a090001"
	                                 "0000000000000000000000000a090002");
	assert_headers_equal_hex(&mask, "000000000000ffff"
	                                "ffffffffffff0000"
	                                "ff000000ffffffff"
	                                "0000000000000000"
	                                "000000000000000000000000ffffffff"
	                                "000000000000000000000000ffffffff");
}

static void test_a_connection_behind_a_tag(void **state)
{
	const struct vma_flow_key key = key_of(0x123);
	struct mlx5_outer_headers value, mask;

	(void)state;
	verbs_exempt_fill_match_value_and_mask(&key, mac, &value, &mask);
	assert_headers_equal_hex(&value, "0000000000000800"
	                                 "0201020304050123"
	                                 "06008000c0011b58"
	                                 "0000000000000000"
	                                 "0000000000000000000000000a090001"
	                                 "0000000000000000000000000a090002");
	assert_headers_equal_hex(&mask, "000000000000ffff"
	                                "ffffffffffff0fff"
	                                "ff008000ffffffff"
	                                "0000000000000000"
	                                "000000000000000000000000ffffffff"
	                                "000000000000000000000000ffffffff");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_connection_without_a_tag),
	        cmocka_unit_test(test_a_connection_behind_a_tag),
	};

	vma_test_set_filter_from_env();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
