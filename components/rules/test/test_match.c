/* Which rule holds for names, and which programs a pattern stands for. */
#include <string.h>

#include <vma/test.h>

#include "../rules_priv.h"
#include "rules_fixture.h"

static struct vma_rules *rules;

static void parse_rules_text(const char *text)
{
	const struct vma_rules_attr attr = {.file = "test.conf"};

	vma_rules_destroy(rules);
	assert_int_equal(vma_rules_parse(&attr, text, strlen(text), &rules), 0);
}

static int end_of_cases(void **state)
{
	(void)state;
	vma_rules_destroy(rules);
	return 0;
}

static struct vma_rules_name name_of(unsigned last_byte, uint16_t port)
{
	return (struct vma_rules_name){.address = 0x0a090000 + last_byte, .port = port}; /* 10.9.0.X */
}

/* The line of the rule; 0: none. */
static uint32_t line_of_matching_rule(enum vma_rules_role role, unsigned last_byte, uint16_t port)
{
	const struct vma_rules_name name = name_of(last_byte, port), other = name_of(200, 9);
	const struct vma_rule *rule = vma_rules_match(rules, role, &name, &other);

	return rule != NULL ? rule->line : 0;
}

static void test_first_match_of_overlapping_ranges_wins(void **state)
{
	(void)state;
	parse_rules_text("use vma tcp_server 10.9.0.1:80\nuse os tcp_server *:80-90\nuse vma tcp_server *:85\n");
	assert_int_equal(line_of_matching_rule(VMA_RULES_TCP_SERVER, 1, 80), 1);
	assert_int_equal(line_of_matching_rule(VMA_RULES_TCP_SERVER, 2, 80), 2);
	assert_int_equal(line_of_matching_rule(VMA_RULES_TCP_SERVER, 1, 85), 2);
	assert_int_equal(line_of_matching_rule(VMA_RULES_TCP_SERVER, 1, 90), 2);
	assert_int_equal(line_of_matching_rule(VMA_RULES_TCP_SERVER, 1, 91), 0);
	assert_int_equal(line_of_matching_rule(VMA_RULES_TCP_SERVER, 1, 79), 0);
}

static void test_a_role_does_not_match_another(void **state)
{
	(void)state;
	parse_rules_text("use os udp_receiver *:*\n");
	assert_int_equal(line_of_matching_rule(VMA_RULES_UDP_RECEIVER, 1, 1), 1);
	assert_int_equal(line_of_matching_rule(VMA_RULES_UDP_SENDER, 1, 1), 0);
	assert_int_equal(line_of_matching_rule(VMA_RULES_TCP_SERVER, 1, 1), 0);
	assert_true(vma_rules_may_leave_to_os(rules, VMA_RULES_UDP_RECEIVER));
	assert_false(vma_rules_may_leave_to_os(rules, VMA_RULES_UDP_SENDER));
	assert_false(vma_rules_may_leave_to_os(NULL, VMA_RULES_UDP_RECEIVER));
}

static void test_prefixes_leave_out_the_bits_of_the_host(void **state)
{
	(void)state;
	parse_rules_text(
	        "use os tcp_client 10.9.0.77/25:*\nuse os udp_sender 10.9.0.77/32:*\nuse os udp_connect 1.2.3.4/0:*\n");
	assert_int_equal(line_of_matching_rule(VMA_RULES_TCP_CLIENT, 127, 1), 1);
	assert_int_equal(line_of_matching_rule(VMA_RULES_TCP_CLIENT, 128, 1), 0);
	assert_int_equal(line_of_matching_rule(VMA_RULES_UDP_SENDER, 77, 1), 2);
	assert_int_equal(line_of_matching_rule(VMA_RULES_UDP_SENDER, 76, 1), 0);
	assert_int_equal(line_of_matching_rule(VMA_RULES_UDP_CONNECT, 1, 1), 3);
}

static void test_second_name_counts_where_the_role_has_one(void **state)
{
	(void)state;
	parse_rules_text("use os tcp_client *:80:10.9.0.1:*\nuse vma tcp_client *:80:10.9.0.200:9\nuse os udp_connect "
	                 "*:80:*:10\n");
	assert_int_equal(line_of_matching_rule(VMA_RULES_TCP_CLIENT, 1, 80), 2);
	assert_int_equal(line_of_matching_rule(VMA_RULES_UDP_CONNECT, 1, 80), 0);
}

static void test_ports_have_no_hole_at_their_ends(void **state)
{
	(void)state;
	parse_rules_text("use os tcp_server *:0\nuse os tcp_server *:65535-65536\nuse os udp_sender *:65536\n");
	assert_int_equal(line_of_matching_rule(VMA_RULES_TCP_SERVER, 1, 0), 1);
	assert_int_equal(line_of_matching_rule(VMA_RULES_TCP_SERVER, 1, 1), 0);
	assert_int_equal(line_of_matching_rule(VMA_RULES_TCP_SERVER, 1, 65534), 0);
	assert_int_equal(line_of_matching_rule(VMA_RULES_TCP_SERVER, 1, 65535), 2);
	assert_int_equal(line_of_matching_rule(VMA_RULES_UDP_SENDER, 1, 65535), 0);
}

static bool wildcard_matches_name(const char *pattern, const char *name)
{
	return rules_wildcard_match(pattern, strlen(pattern), name);
}

static void test_wildcards_of_programs(void **state)
{
	(void)state;
	assert_true(wildcard_matches_name("db2*", "db2"));
	assert_true(wildcard_matches_name("db2*", "db2sysc"));
	assert_false(wildcard_matches_name("db2*", "adb2"));
	assert_true(wildcard_matches_name("t?cp", "ttcp"));
	assert_false(wildcard_matches_name("t?cp", "tcp"));
	assert_true(wildcard_matches_name("*", ""));
	assert_false(wildcard_matches_name("?", ""));
	assert_false(wildcard_matches_name("", "x"));
	assert_true(wildcard_matches_name("*-*-c", "a-b-c-c"));
	assert_false(wildcard_matches_name("*-*-c", "a-b-c-d"));
	assert_true(wildcard_matches_name("**?", "x"));
	assert_false(wildcard_matches_name("[a]", "a"));
	assert_false(wildcard_matches_name("DB2", "db2"));
}

static void test_many_stars_cost_no_more_than_the_product_of_both_lengths(void **state)
{
	char pattern[2001], name[2001];

	(void)state;
	for (unsigned i = 0; i < 2000; i += 2)
		memcpy(pattern + i, "*a", 2);
	memcpy(pattern + 1998, "*b", 3);
	memset(name, 'a', 2000);
	name[2000] = '\0';
	assert_false(wildcard_matches_name(pattern, name)); /* a search of all ways would not end */
	name[1999] = 'b';
	assert_true(wildcard_matches_name(pattern, name));
}

static void test_added_rules_go_first_and_have_numbers(void **state)
{
	const struct vma_rules_attr attr = {.file = "test.conf"};
	struct vma_rules *of_file = rules_fixture_parse("\nuse os udp_receiver *:1"), *first, *second, *alone;

	(void)state;
	assert_int_equal(vma_rules_prepend(&attr, of_file, "use os udp_receiver *:2", &first), 0);
	assert_int_equal(vma_rules_prepend(&attr, first, "use os udp_receiver *:3", &second), 0);
	assert_int_equal(second->count, 3);
	assert_int_equal(second->at[0].line, VMA_RULES_ADDED + 2);
	assert_int_equal(second->at[0].names[0].first_port, 3);
	assert_int_equal(second->at[1].line, VMA_RULES_ADDED + 1);
	assert_int_equal(second->at[2].line, 2);
	assert_int_equal(vma_rules_prepend(&attr, NULL, "use os udp_receiver *:4", &alone), 0);
	assert_int_equal(alone->at[0].line, VMA_RULES_ADDED + 1);
	vma_rules_destroy(of_file);
	vma_rules_destroy(first);
	vma_rules_destroy(second);
	vma_rules_destroy(alone);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_match_of_overlapping_ranges_wins),
        cmocka_unit_test(test_a_role_does_not_match_another),
        cmocka_unit_test(test_prefixes_leave_out_the_bits_of_the_host),
        cmocka_unit_test(test_second_name_counts_where_the_role_has_one),
        cmocka_unit_test(test_ports_have_no_hole_at_their_ends),
        cmocka_unit_test(test_wildcards_of_programs),
        cmocka_unit_test(test_added_rules_go_first_and_have_numbers),
        cmocka_unit_test(test_many_stars_cost_no_more_than_the_product_of_both_lengths),
};

VMA_TEST_MAIN_WITH(tests, NULL, end_of_cases)
