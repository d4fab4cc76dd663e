/* From a file's text to rules, and what is said of its errors. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <vma/test.h>

#include "../rules_priv.h"

static char
        heard[4096]; /* the messages of the last parse: "line:column: text\n", a note with "note: " before its text */
static struct vma_rules *rules;

static void append_rules_message_to_heard(void *arg, const struct vma_rules_message *message)
{
	const size_t len = strlen(heard);

	(void)arg;
	snprintf(heard + len, sizeof(heard) - len, "%u:%u: %s%s\n", message->line, message->column,
	         message->is_error ? "" : "note: ", message->text);
}

static int parse_rules_for_program(const char *program, const char *id, const char *text, size_t size)
{
	const struct vma_rules_attr attr = {
	        .file = "test.conf", .program = program, .id = id, .tell = append_rules_message_to_heard};

	heard[0] = '\0';
	vma_rules_destroy(rules);
	return vma_rules_parse(&attr, text, size, &rules);
}

static int parse(const char *text)
{
	return parse_rules_for_program("tcp-lat", "B1", text, strlen(text));
}

/* One statement that is wrong, in one place. */
static void assert_parse_error_is(const char *text, const char *message)
{
	assert_int_equal(parse(text), 1);
	assert_string_equal(heard, message);
	assert_int_equal(rules->count, 0);
}

static int teardown_free_rules(void **state)
{
	(void)state;
	vma_rules_destroy(rules);
	return 0;
}

static void test_example_of_the_manual_is_understood(void **state)
{
	(void)state;
	assert_int_equal(parse("application-id tcp-lat B1\n"
	                       "use vma tcp_client 192.168.1.0/24:*:*:*\n"
	                       "use os tcp_server *:5001\n"
	                       "use os udp_connect *:53\n"),
	                 0);
	assert_string_equal(heard, "");
	assert_int_equal(rules->count, 3);
	assert_int_equal(rules->at[0].role, VMA_RULES_TCP_CLIENT);
	assert_false(rules->at[0].by_os);
	assert_int_equal(rules->at[0].line, 2);
	assert_int_equal(rules->at[0].names[0].address, 0xc0a80100);
	assert_int_equal(rules->at[0].names[0].mask, 0xffffff00);
	assert_int_equal(rules->at[0].names[0].first_port, 0);
	assert_int_equal(rules->at[1].role, VMA_RULES_TCP_SERVER);
	assert_true(rules->at[1].by_os);
	assert_int_equal(rules->at[1].names[0].mask, 0);
	assert_int_equal(rules->at[1].names[0].first_port, 5001);
	assert_int_equal(rules->at[1].names[0].last_port, 5001);
	assert_int_equal(rules->at[2].role, VMA_RULES_UDP_CONNECT);
	assert_int_equal(rules->os_roles, 1 << VMA_RULES_TCP_SERVER | 1 << VMA_RULES_UDP_CONNECT);
	assert_string_equal(rules->file, "test.conf");
}

static void test_every_role_and_transport_has_its_keyword_in_any_case(void **state)
{
	enum vma_rules_role role;

	(void)state;
	assert_int_equal(parse("use vma tcp_server *:1\nUSE XLIO Udp_Receiver *:2\nuse OS udp_sender *:3\n"
	                       "use xlio tcp_client *:4:*:5\nuse os UDP_CONNECT 10.0.0.1:6:10.0.0.2:7-8"),
	                 0);
	assert_int_equal(rules->count, 5);
	assert_false(rules->at[1].by_os);
	assert_int_equal(rules->at[1].role, VMA_RULES_UDP_RECEIVER);
	assert_true(rules->at[2].by_os);
	assert_int_equal(rules->at[3].names[1].first_port, 5);
	assert_int_equal(rules->at[4].names[1].address, 0x0a000002);
	assert_int_equal(rules->at[4].names[1].last_port, 8);
	for (unsigned i = 0; i < VMA_RULES_ROLE_COUNT; i++) {
		assert_int_equal(vma_rules_role_parse(vma_rules_role_keyword((enum vma_rules_role)i), &role), 0);
		assert_int_equal(role, i);
	}
	assert_int_equal(vma_rules_role_parse("tcp", &role), -EINVAL);
}

static void test_comments_blanks_and_line_ends_of_other_systems_do_not_matter(void **state)
{
	static const char text[] = "\xef\xbb\xbf# made elsewhere\r\n\r\n \t use\tos  tcp_server \t *:80#web\r\n"
	                           "#use os tcp_server *:81\r\n\fuse os tcp_server *:82 # no newline follows";

	(void)state;
	assert_int_equal(parse(text), 0);
	assert_int_equal(rules->count, 2);
	assert_int_equal(rules->at[0].line, 3);
	assert_int_equal(rules->at[0].names[0].first_port, 80);
	assert_int_equal(rules->at[1].names[0].first_port, 82);
	assert_int_equal(parse(""), 0);
	assert_int_equal(rules->count, 0);
	assert_int_equal(parse("\xef\xbb\xbf"), 0);
	assert_int_equal(parse("\r\n#"), 0);
	assert_string_equal(heard, "");
}

static void test_statements_hold_for_the_application_before_them(void **state)
{
	static const char text[] = "use os tcp_server *:1\n"
	                           "application-id tcp-* *\nuse os tcp_server *:2\n"
	                           "application-id * B?\nuse os tcp_server *:3\n"
	                           "application-id t?p-lat B1\nuse os tcp_server *:4\n"
	                           "application-id other B1\nuse os tcp_server *:5\n"
	                           "application-id * *\nuse os tcp_server *:6\n";

	(void)state;
	assert_int_equal(parse(text), 0);
	assert_int_equal(rules->count, 4);
	assert_int_equal(rules->at[0].line, 1);
	assert_int_equal(rules->at[1].line, 3);
	assert_int_equal(rules->at[2].line, 7);
	assert_int_equal(rules->at[3].line, 11);
	parse_rules_for_program(NULL, NULL, text, sizeof(text) - 1);
	assert_int_equal(rules->count, 1);
	parse_rules_for_program("tcp-lat", "VMA_DEFAULT_APPLICATION_ID", text, sizeof(text) - 1);
	assert_int_equal(rules->count, 3);
}

static void test_words_in_quotes_may_have_blanks(void **state)
{
	static const char text[] = "application-id \"my # program\" \"an ID\"\nuse os tcp_server *:1\n";

	(void)state;
	assert_int_equal(parse_rules_for_program("my # program", "an ID", text, sizeof(text) - 1), 0);
	assert_int_equal(rules->count, 1);
	assert_int_equal(parse_rules_for_program("my # program", "\"an ID\"", text, sizeof(text) - 1), 0);
	assert_int_equal(rules->count, 0);
	assert_int_equal(parse("application-id \"tcp-lat B1\nuse os tcp_server *:1\n"), 1);
	assert_string_equal(heard, "1:16: the quote is not closed\n"
	                           "1:1: note: what follows, up to the next application-id, holds for no program\n");
	assert_int_equal(parse("application-id \"tcp-lat\"B1\n"), 1);
	assert_non_null(strstr(heard, "1:25: a blank is missing after the quote\n"));
}

static void test_program_names_of_any_length_are_compared_whole(void **state)
{
	static const char text[] = "application-id a-program-with-a-long-name *\nuse os tcp_server *:1\n";

	(void)state;
	parse_rules_for_program("a-program-with-a-long-name", "", text, sizeof(text) - 1);
	assert_int_equal(rules->count, 1);
	parse_rules_for_program("a-program-with-", "", text, sizeof(text) - 1);
	assert_int_equal(rules->count, 0);
}

static void test_an_error_has_its_place_and_drops_its_statement_alone(void **state)
{
	(void)state;
	assert_int_equal(parse("use os tcp_server *:1\nuse sdp tcp_server *:2\nuse os tcp_server *:3\nuse\n"), 2);
	assert_string_equal(heard, "2:5: 'sdp' is no transport: vma, xlio or os\n"
	                           "4:4: the transport (vma, xlio or os) is missing\n");
	assert_int_equal(rules->count, 2);
	assert_int_equal(rules->at[1].line, 3);
}

static void test_errors_of_statements(void **state)
{
	(void)state;
	assert_parse_error_is("  allow *:1", "1:3: 'allow' is no statement: application-id or use\n");
	assert_parse_error_is("use os", "1:7: the role is missing\n");
	assert_parse_error_is(
	        "use os server *:1",
	        "1:8: 'server' is no role: tcp_server, tcp_client, udp_receiver, udp_sender or udp_connect\n");
	assert_parse_error_is("use os tcp_server", "1:18: an address is missing: a.b.c.d, a.b.c.d/length or *\n");
	assert_parse_error_is("use os tcp_server #*:1", "1:19: an address is missing: a.b.c.d, a.b.c.d/length or *\n");
	assert_parse_error_is("use os tcp_server *", "1:20: ':' and a port (or *) are missing after the address\n");
	assert_parse_error_is("use os tcp_server *:1 *:2", "1:23: '*:2' is too much\n");
	assert_parse_error_is("use os tcp_server *:1x", "1:22: 'x' is too much\n");
	assert_parse_error_is("use os tcp_server *:1:*:2", "1:22: tcp_server has one address and port\n");
	assert_parse_error_is("use os udp_sender *:1:*:2", "1:22: udp_sender has one address and port\n");
	assert_parse_error_is("use os tcp_client *:1:", "1:23: an address is missing: a.b.c.d, a.b.c.d/length or *\n");
	assert_parse_error_is("use os tcp_client *:1:*:2:*:3", "1:26: ':*:3' is too much\n");
	assert_parse_error_is("use os tcp_server ::1:80",
	                      "1:19: an address is missing: a.b.c.d, a.b.c.d/length or *\n");
}

static void test_errors_of_addresses_and_ports(void **state)
{
	(void)state;
	assert_parse_error_is("use os tcp_server 10.0.0:1", "1:25: an IPv4 address has four parts: a.b.c.d\n");
	assert_parse_error_is("use os tcp_server 10.0.0.256:1",
	                      "1:26: a part of an address is a number from 0 to 255\n");
	assert_parse_error_is("use os tcp_server 10..0.1:1",
	                      "1:22: a part of an address is missing: a number from 0 to 255\n");
	assert_parse_error_is("use os tcp_server 10.0.0.1/33:1", "1:28: a prefix length is a number from 0 to 32\n");
	assert_parse_error_is("use os tcp_server 10.0.0.1/:1",
	                      "1:28: a prefix length is missing: a number from 0 to 32\n");
	assert_parse_error_is("use os tcp_server *:65537", "1:21: a port is a number from 0 to 65536\n");
	assert_parse_error_is("use os tcp_server *:99999999999999999999999",
	                      "1:21: a port is a number from 0 to 65536\n");
	assert_parse_error_is("use os tcp_server *:-1", "1:21: a port is missing: a number from 0 to 65536\n");
	assert_parse_error_is("use os tcp_server *:1-",
	                      "1:23: the last port of a range is missing: a number from 0 to 65536\n");
	assert_parse_error_is("use os tcp_server *:9-8", "1:21: the range of ports ends before it begins\n");
	assert_parse_error_is("use os tcp_server *:", "1:21: a port is missing: a number from 0 to 65536\n");
}

static void test_a_wrong_application_leaves_its_statements_to_nobody(void **state)
{
	(void)state;
	assert_int_equal(parse("application-id tcp-lat B1\nuse os tcp_server *:1\n"
	                       "application-id other\nuse os tcp_server *:2\n"
	                       "application-id tcp-lat B1\nuse os tcp_server *:3\n"),
	                 1);
	assert_string_equal(heard, "3:21: the ID (or *) is missing\n"
	                           "3:1: note: what follows, up to the next application-id, holds for no program\n");
	assert_int_equal(rules->count, 2);
	assert_int_equal(rules->at[1].line, 6);
}

static void test_statements_of_other_programs_are_checked_as_well(void **state)
{
	(void)state;
	assert_int_equal(parse("application-id other *\nuse os tcp_server *:x\n"), 1);
	assert_string_equal(heard, "2:21: a port is missing: a number from 0 to 65536\n");
}

static void test_log_is_skipped_with_one_line(void **state)
{
	(void)state;
	assert_int_equal(parse("log min-level 9 destination file libvma.log\nlog\nuse os tcp_server *:1\n"), 0);
	assert_string_equal(heard, "1:1: note: log is skipped: VMA_TRACELEVEL and VMA_LOG_FILE say what is logged\n");
	assert_int_equal(rules->count, 1);
}

static void test_any_bytes_and_lines_of_any_length_are_harmless(void **state)
{
	static char text[100000];

	(void)state;
	memset(text, 'x', sizeof(text));
	memcpy(text + sizeof(text) - 23, "\nuse os tcp_server *:1\n", 23);
	assert_int_equal(parse_rules_for_program("p", "", text, sizeof(text)), 1);
	assert_string_equal(
	        heard, "1:1: 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...' is no statement: application-id or use\n");
	assert_int_equal(rules->count, 1);
	memcpy(text, "a\0\033b\n", 5);
	assert_int_equal(parse_rules_for_program("p", "", text, 5), 1);
	assert_string_equal(heard, "1:1: 'a??b' is no statement: application-id or use\n");
}

static void test_as_many_rules_as_a_file_can_hold(void **state)
{
	enum { LINE = sizeof("use os tcp_server *:*\n") - 1, LINES = VMA_RULES_FILE_MAX / LINE };
	char *text = malloc(VMA_RULES_FILE_MAX + 1);

	(void)state;
	assert_non_null(text);
	for (unsigned i = 0; i < LINES; i++)
		memcpy(text + (size_t)i * LINE, "use os tcp_server *:*\n", LINE);
	assert_int_equal(parse_rules_for_program("p", "", text, (size_t)LINES * LINE), 0);
	assert_int_equal(rules->count, LINES);
	assert_int_equal(rules->at[LINES - 1].line, LINES);
	assert_int_equal(parse_rules_for_program("p", "", text, VMA_RULES_FILE_MAX + 1), -EFBIG);
	assert_null(rules);
	free(text);
}

static void test_a_long_file_name_keeps_its_end(void **state)
{
	char name[600];
	const struct vma_rules_attr attr = {.file = name};

	(void)state;
	memset(name, 'd', sizeof(name));
	memcpy(name + sizeof(name) - 6, "/conf", 6);
	vma_rules_destroy(rules);
	assert_int_equal(vma_rules_parse(&attr, "use", 3, &rules), 1);
	assert_int_equal(strlen(rules->file), sizeof(rules->file) - 1);
	assert_memory_equal(rules->file, "...ddd", 6);
	assert_string_equal(rules->file + sizeof(rules->file) - 7, "d/conf");
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_example_of_the_manual_is_understood),
        cmocka_unit_test(test_every_role_and_transport_has_its_keyword_in_any_case),
        cmocka_unit_test(test_comments_blanks_and_line_ends_of_other_systems_do_not_matter),
        cmocka_unit_test(test_statements_hold_for_the_application_before_them),
        cmocka_unit_test(test_words_in_quotes_may_have_blanks),
        cmocka_unit_test(test_program_names_of_any_length_are_compared_whole),
        cmocka_unit_test(test_an_error_has_its_place_and_drops_its_statement_alone),
        cmocka_unit_test(test_errors_of_statements),
        cmocka_unit_test(test_errors_of_addresses_and_ports),
        cmocka_unit_test(test_a_wrong_application_leaves_its_statements_to_nobody),
        cmocka_unit_test(test_statements_of_other_programs_are_checked_as_well),
        cmocka_unit_test(test_log_is_skipped_with_one_line),
        cmocka_unit_test(test_any_bytes_and_lines_of_any_length_are_harmless),
        cmocka_unit_test(test_as_many_rules_as_a_file_can_hold),
        cmocka_unit_test(test_a_long_file_name_keeps_its_end),
};

VMA_TEST_MAIN_WITH(tests, NULL, teardown_free_rules)
