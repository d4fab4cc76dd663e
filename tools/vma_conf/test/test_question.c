/* From the words of a command line to a question. */
#include <vma/test.h>

#include "../question.h"

static struct question question;

#define WORDS(...) ((char *[]){__VA_ARGS__}), (int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *))

static void test_names_are_in_the_order_of_a_statement(void **state)
{
	(void)state;
	assert_null(parse_rule_query_words(&question, WORDS("tcp_client", "192.168.1.7:80", "10.0.0.1:65535")));
	assert_int_equal(question.role, VMA_RULES_TCP_CLIENT);
	assert_int_equal(question.names[0].address, 0xc0a80107);
	assert_int_equal(question.names[0].port, 80);
	assert_int_equal(question.names[1].address, 0x0a000001);
	assert_int_equal(question.names[1].port, 65535);
}

static void test_what_is_not_given_is_zero(void **state)
{
	(void)state;
	assert_null(parse_rule_query_words(&question, WORDS("udp_connect", "10.0.0.1")));
	assert_int_equal(question.names[0].port, 0);
	assert_int_equal(question.names[1].address, 0);
	assert_int_equal(question.names[1].port, 0);
	assert_null(parse_rule_query_words(&question, WORDS("udp_sender")));
	assert_int_equal(question.names[0].address, 0);
}

static void test_the_wrong_word_is_named(void **state)
{
	(void)state;
	assert_string_equal(parse_rule_query_words(&question, WORDS("server", "10.0.0.1:1")), "server");
	assert_string_equal(parse_rule_query_words(&question, WORDS("tcp_server", "10.0.0.1:1", "10.0.0.2:1")),
	                    "10.0.0.2:1");
	assert_string_equal(parse_rule_query_words(&question, WORDS("tcp_server", "10.0.0:1")), "10.0.0:1");
	assert_string_equal(parse_rule_query_words(&question, WORDS("tcp_server", "*:1")), "*:1");
	assert_string_equal(parse_rule_query_words(&question, WORDS("tcp_server", "")), "");
	assert_string_equal(parse_rule_query_words(&question, WORDS("tcp_server", "10.0.0.1:65536")), "10.0.0.1:65536");
	assert_string_equal(parse_rule_query_words(&question, WORDS("tcp_server", "10.0.0.1:-1")), "10.0.0.1:-1");
	assert_string_equal(parse_rule_query_words(&question, WORDS("tcp_server", "10.0.0.1:")), "10.0.0.1:");
	assert_string_equal(parse_rule_query_words(&question, WORDS("tcp_server", "10.0.0.1:1x")), "10.0.0.1:1x");
	assert_string_equal(parse_rule_query_words(&question, WORDS("tcp_server", "10.0.0.1000000000000000:1")),
	                    "10.0.0.1000000000000000:1");
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_are_in_the_order_of_a_statement),
        cmocka_unit_test(test_what_is_not_given_is_zero),
        cmocka_unit_test(test_the_wrong_word_is_named),
};

VMA_TEST_MAIN(tests)
