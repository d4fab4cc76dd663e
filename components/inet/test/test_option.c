/* Options that only the kernel serves: which values set one, and whether the kernel has it. */
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>

#include <vma/inet_option.h>
#include <vma/sock_os.h>
#include <vma/sock_thread.h>
#include <vma/test.h>

#include "fixture.h"

static bool option_enables(int level, enum vma_inet_enabled_by how, int number, socklen_t len)
{
	return vma_inet_option_enables(level, how, &number, len);
}

static void test_value_of_zero_takes_away(void **state)
{
	(void)state;
	assert_true(option_enables(SOL_SOCKET, VMA_INET_BY_VALUE, 1, 4));
	assert_true(option_enables(SOL_SOCKET, VMA_INET_BY_VALUE, -1, 4));
	assert_false(option_enables(SOL_SOCKET, VMA_INET_BY_VALUE, 0, 4));
	assert_true(option_enables(IPPROTO_TCP, VMA_INET_BY_ONE, 1, 4));
	assert_false(option_enables(IPPROTO_TCP, VMA_INET_BY_ONE, -1, 4));
	assert_true(option_enables(SOL_SOCKET, VMA_INET_BY_SIGN, 0, 4));
	assert_false(option_enables(SOL_SOCKET, VMA_INET_BY_SIGN, -1, 4));
}

static void test_byte_is_a_value_of_ip_only(void **state)
{
	(void)state;
	assert_true(option_enables(IPPROTO_IP, VMA_INET_BY_VALUE, 1, 1));
	assert_false(option_enables(IPPROTO_IP, VMA_INET_BY_VALUE, 256, 1)); /* its lowest byte */
	assert_false(option_enables(IPPROTO_IP, VMA_INET_BY_VALUE, 1, 0));
	assert_false(option_enables(SOL_SOCKET, VMA_INET_BY_VALUE, 1, 1)); /* the kernel refuses it */
}

static void test_length_or_rate_or_the_call_alone(void **state)
{
	const uint64_t rates[] = {1000, UINT64_MAX};
	const uint32_t rate32 = UINT32_MAX;

	(void)state;
	assert_true(vma_inet_option_enables(IPPROTO_IP, VMA_INET_BY_LENGTH, rates, 4));
	assert_false(vma_inet_option_enables(IPPROTO_IP, VMA_INET_BY_LENGTH, rates, 0));
	assert_true(vma_inet_option_enables(SOL_SOCKET, VMA_INET_BY_RATE, &rates[0], 8));
	assert_false(vma_inet_option_enables(SOL_SOCKET, VMA_INET_BY_RATE, &rates[1], 8));
	assert_false(vma_inet_option_enables(SOL_SOCKET, VMA_INET_BY_RATE, &rate32, 4));
	assert_true(vma_inet_option_enables(SOL_SOCKET, VMA_INET_ALWAYS, NULL, 0));
	assert_false(vma_inet_option_enables(SOL_SOCKET, VMA_INET_NEVER, rates, 4));
}

static bool option_is_set_by_value(int level, int name, enum vma_inet_enabled_by how, int number)
{
	int fd = vma_os.socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool is_set;

	assert_int_equal(vma_os.setsockopt(fd, level, name, &number, sizeof(number)), 0);
	is_set = vma_inet_option_is_set(fd, level, name, how);
	vma_os.close(fd);
	return is_set;
}

static void test_kernel_is_asked_what_is_set(void **state)
{
	int fd = vma_os.socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	(void)state;
	assert_true(option_is_set_by_value(SOL_SOCKET, SO_DONTROUTE, VMA_INET_BY_VALUE, 1));
	assert_false(option_is_set_by_value(SOL_SOCKET, SO_DONTROUTE, VMA_INET_BY_VALUE, 0));
	assert_true(option_is_set_by_value(SOL_SOCKET, SO_PEEK_OFF, VMA_INET_BY_SIGN, 0));
	assert_false(option_is_set_by_value(SOL_SOCKET, SO_PEEK_OFF, VMA_INET_BY_SIGN, -1));
	assert_true(option_is_set_by_value(SOL_SOCKET, SO_MAX_PACING_RATE, VMA_INET_BY_RATE, 1000));
	assert_false(option_is_set_by_value(SOL_SOCKET, SO_MAX_PACING_RATE, VMA_INET_BY_RATE, -1));
	assert_true(option_is_set_by_value(IPPROTO_IP, IP_OPTIONS, VMA_INET_BY_LENGTH,
	                                   0x01010101)); /* four that say nothing */
	assert_false(vma_inet_option_is_set(fd, IPPROTO_IP, IP_OPTIONS, VMA_INET_BY_LENGTH));
	assert_true(vma_inet_option_is_set(fd, SOL_SOCKET, SO_ATTACH_FILTER, VMA_INET_ALWAYS));
	assert_false(vma_inet_option_is_set(fd, SOL_SOCKET, SO_DETACH_FILTER, VMA_INET_NEVER));
	vma_os.close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup_teardown(test_value_of_zero_takes_away, setup_vma_enter, teardown_vma_leave),
	        cmocka_unit_test_setup_teardown(test_byte_is_a_value_of_ip_only, setup_vma_enter, teardown_vma_leave),
	        cmocka_unit_test_setup_teardown(test_length_or_rate_or_the_call_alone, setup_vma_enter,
	                                        teardown_vma_leave),
	        cmocka_unit_test_setup_teardown(test_kernel_is_asked_what_is_set, setup_vma_enter, teardown_vma_leave),
	};

	vma_test_set_filter_from_env();
	return cmocka_run_group_tests_name("inet", tests, NULL, NULL);
}
