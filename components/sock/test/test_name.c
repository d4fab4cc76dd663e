/* Names: IPv4 has one form inside, whatever family the application's socket has. */
#include <errno.h>
#include <arpa/inet.h>
#include <string.h>
#include <unistd.h>

#include <vma/sock_name.h>
#include <vma/sock_os.h>
#include <vma/sock_thread.h>
#include <vma/test.h>

static struct sockaddr_in6 in6(const char *text, uint16_t port)
{
	struct sockaddr_in6 name = {.sin6_family = AF_INET6, .sin6_port = htons(port)};

	assert_int_equal(inet_pton(AF_INET6, text, &name.sin6_addr), 1);
	return name;
}

static int read_sockaddr_inside_library(int family, const void *addr, socklen_t len, union vma_name *name)
{
	struct vma_thread *self = vma_enter();
	int rc = vma_name_copy_from_program_sockaddr(family, addr, len, name);

	vma_leave(self);
	return rc;
}

static void test_a_mapped_address_is_ipv4_inside(void **state)
{
	const struct sockaddr_in6 mapped = in6("::ffff:10.9.0.2", 7000);
	union vma_name name;

	(void)state;
	assert_int_equal(read_sockaddr_inside_library(AF_INET6, &mapped, sizeof(mapped), &name), 0);
	assert_int_equal(name.any.sa_family, AF_INET);
	assert_int_equal(name.in.sin_port, htons(7000));
	assert_int_equal(name.in.sin_addr.s_addr, inet_addr("10.9.0.2"));
	/* The scope may be left out, as in RFC 2133, and says nothing here. */
	assert_int_equal(read_sockaddr_inside_library(AF_INET6, &mapped, 24, &name), 0);
	assert_int_equal(name.in.sin_addr.s_addr, inet_addr("10.9.0.2"));
}

static void test_other_addresses_stay_what_they_are(void **state)
{
	const struct sockaddr_in6 six = in6("fd00::1", 7000), any = in6("::", 7000);
	const struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(1), .sin_zero = {1, 2}};
	union vma_name name;

	(void)state;
	assert_int_equal(read_sockaddr_inside_library(AF_INET6, &six, sizeof(six), &name), 0);
	assert_memory_equal(&name.in6, &six, sizeof(six));
	assert_int_equal(vma_name_to_sockaddr_in(&name).sin_family, AF_INET6);
	assert_int_equal(vma_name_to_sockaddr_in(&name).sin_port, htons(7000));
	assert_int_equal(vma_name_to_sockaddr_in(&name).sin_addr.s_addr, 0);
	assert_int_equal(read_sockaddr_inside_library(AF_INET6, &any, sizeof(any), &name), 0);
	assert_int_equal(name.any.sa_family, AF_INET6);
	assert_int_equal(read_sockaddr_inside_library(AF_INET, &four, sizeof(four), &name), 0);
	assert_int_equal(name.any.sa_family, AF_INET);
	assert_int_equal(name.in.sin_zero[0], 0);
}

static void test_what_a_socket_does_not_take_is_refused(void **state)
{
	const struct sockaddr_in6 mapped = in6("::ffff:10.9.0.2", 7000);
	const struct sockaddr_in four = {.sin_family = AF_INET};
	const struct sockaddr local = {.sa_family = AF_UNIX};
	union vma_name name;

	(void)state;
	assert_int_equal(read_sockaddr_inside_library(AF_INET, &mapped, sizeof(mapped), &name), -EAFNOSUPPORT);
	assert_int_equal(read_sockaddr_inside_library(AF_INET6, &local, sizeof(local), &name), -EAFNOSUPPORT);
	assert_int_equal(read_sockaddr_inside_library(AF_INET6, &mapped, 23, &name), -EINVAL);
	assert_int_equal(read_sockaddr_inside_library(AF_INET, &four, 15, &name), -EINVAL);
	assert_int_equal(read_sockaddr_inside_library(AF_INET, &four, 1, &name), -EINVAL);
	assert_true(vma_sockaddr_is_of_family(AF_INET, (const struct sockaddr *)&four, sizeof(four)));
	assert_false(vma_sockaddr_is_of_family(AF_INET6, (const struct sockaddr *)&four, sizeof(four)));
	assert_false(vma_sockaddr_is_of_family(AF_INET, (const struct sockaddr *)&four, 1));
}

static void test_a_socket_says_names_of_its_family(void **state)
{
	const struct sockaddr_in four = {
	        .sin_family = AF_INET, .sin_port = htons(7000), .sin_addr.s_addr = inet_addr("10.9.0.2")};
	const struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(7000)};
	const struct sockaddr_in6 mapped = in6("::ffff:10.9.0.2", 7000), none = in6("::", 7000);
	union vma_name name;

	(void)state;
	assert_int_equal(vma_name_fill_from_sockaddr_in(AF_INET, &four, &name), sizeof(four));
	assert_memory_equal(&name, &four, sizeof(four));
	assert_int_equal(vma_name_fill_from_sockaddr_in(AF_INET6, &four, &name), sizeof(mapped));
	assert_memory_equal(&name, &mapped, sizeof(mapped));
	assert_int_equal(vma_name_fill_from_sockaddr_in(AF_INET6, &any, &name), sizeof(none));
	assert_memory_equal(&name, &none, sizeof(none));
}

static void test_a_shadow_on_all_addresses_serves_ipv4_unless_it_is_v6only(void **state)
{
	int fd = vma_os.socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1, family = 0;
	const struct sockaddr_in loopback = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	union vma_name name;

	(void)state;
	if (fd < 0)
		skip(); /* a kernel without IPv6 */
	assert_int_equal(vma_shadow_getsockname(fd, &name, &family), 0);
	assert_int_equal(family, AF_INET6);
	assert_int_equal(name.any.sa_family, AF_INET);
	assert_int_equal(name.in.sin_addr.s_addr, INADDR_ANY);
	assert_int_equal(vma_shadow_bind(fd, AF_INET6, &loopback), 0);
	assert_int_equal(vma_shadow_getsockname(fd, &name, NULL), 0);
	assert_int_equal(name.in.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	assert_int_not_equal(name.in.sin_port, 0);
	assert_int_equal(vma_shadow_getpeername(fd, &name), -ENOTCONN);
	assert_int_equal(vma_shadow_connect(fd, AF_INET6,
	                                    &(struct sockaddr_in){.sin_family = AF_INET,
	                                                          .sin_port = htons(9),
	                                                          .sin_addr = loopback.sin_addr}),
	                 0);
	assert_int_equal(vma_shadow_getpeername(fd, &name), 0);
	assert_int_equal(name.any.sa_family, AF_INET);
	assert_int_equal(name.in.sin_port, htons(9));
	vma_os.close(fd);
	fd = vma_os.socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_int_equal(vma_os.setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)), 0);
	assert_int_equal(vma_shadow_getsockname(fd, &name, NULL), 0);
	assert_int_equal(name.any.sa_family, AF_INET6);
	vma_os.close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_mapped_address_is_ipv4_inside),
	        cmocka_unit_test(test_other_addresses_stay_what_they_are),
	        cmocka_unit_test(test_what_a_socket_does_not_take_is_refused),
	        cmocka_unit_test(test_a_socket_says_names_of_its_family),
	        cmocka_unit_test(test_a_shadow_on_all_addresses_serves_ipv4_unless_it_is_v6only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
