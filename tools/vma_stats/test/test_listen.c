/* Addresses to listen on: what is one, and what is none. */
#include <arpa/inet.h>
#include <netinet/in.h>

#include <vma/test.h>

#include "../listen.h"

static void assert_listen_parses_as_ipv4(const char *text, uint32_t address, uint16_t port)
{
	struct listen_address got;
	const struct sockaddr_in *in = (const struct sockaddr_in *)&got.address;

	assert_true(listen_address_parse(text, &got));
	assert_int_equal(in->sin_family, AF_INET);
	assert_int_equal(ntohl(in->sin_addr.s_addr), address);
	assert_int_equal(ntohs(in->sin_port), port);
}

static void test_port_alone_is_loopbacks(void **state)
{
	(void)state;
	assert_listen_parses_as_ipv4("9464", INADDR_LOOPBACK, 9464);
	assert_listen_parses_as_ipv4("0", INADDR_LOOPBACK, 0);
	assert_listen_parses_as_ipv4("65535", INADDR_LOOPBACK, 65535);
}

static void test_address_may_be_of_both_families(void **state)
{
	struct listen_address got;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&got.address;

	(void)state;
	assert_listen_parses_as_ipv4("10.0.0.1:80", 0x0a000001, 80);
	assert_listen_parses_as_ipv4("0.0.0.0:80", 0, 80);
	assert_true(listen_address_parse("[::1]:9464", &got));
	assert_int_equal(in6->sin6_family, AF_INET6);
	assert_int_equal(ntohs(in6->sin6_port), 9464);
}

static void test_what_is_no_address_is_refused(void **state)
{
	static const char *const wrong[] = {
	        "",        ":",         ":80",         "10.0.0.1:",      "10.0.0.1",     "65536",
	        "1.2.3:x", "-1",        "80 ",         "10.0.0.1:65536", "::1:80",       "[::1]",
	        "[]:80",   "host:8000", "[1.2.3.4:80", "[10.0.0.1]:80",  "10.0.0.256:80"};

	(void)state;
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		if (listen_address_parse(wrong[i], NULL))
			fail_msg("'%s' was taken for an address", wrong[i]);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_port_alone_is_loopbacks),
        cmocka_unit_test(test_address_may_be_of_both_families),
        cmocka_unit_test(test_what_is_no_address_is_refused),
};

VMA_TEST_MAIN(tests)
