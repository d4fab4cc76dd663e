/* The command line: each option, short and long, and what is none. */
#include <string.h>

#include <vma/log.h>
#include <vma/test.h>

#include "../options.h"

static char wrong[256];

#define PARSE(options, ...) parse_option_words(options, (char *[]){"vma_stats", __VA_ARGS__, NULL})

static enum options_result parse_option_words(struct options *options, char **words)
{
	int count = 0;

	while (words[count] != NULL)
		count++;
	return options_parse(options, count, words, wrong, sizeof(wrong));
}

static void test_nothing_means_the_fields_defaults(void **state)
{
	struct options options;

	(void)state;
	unsetenv("VMA_STATS_SHMEM_DIR");
	assert_int_equal(parse_option_words(&options, (char *[]){"vma_stats", NULL}), OPTIONS_RUN);
	assert_int_equal(options.pid, 0);
	assert_null(options.name);
	assert_string_equal(options.directory, "/tmp/");
	assert_int_equal(options.interval, 1);
	assert_int_equal(options.cycles, 0);
	assert_int_equal(options.view, VIEW_BASIC);
	assert_false(options.deltas);
	assert_false(options.forbid_clean);
	assert_false(options_ask_for_action(&options));
	assert_true(fd_list_has(&options.fds, 12345));
	setenv("VMA_STATS_SHMEM_DIR", "/run/here", 1);
	assert_int_equal(parse_option_words(&options, (char *[]){"vma_stats", NULL}), OPTIONS_RUN);
	assert_string_equal(options.directory, "/run/here");
	unsetenv("VMA_STATS_SHMEM_DIR");
}

static void assert_all_options_are_parsed(const struct options *options)
{
	assert_int_equal(options->pid, 7);
	assert_string_equal(options->directory, "/dir");
	assert_string_equal(options->name, "prog");
	assert_true(options->forbid_clean);
	assert_int_equal(options->interval, 3);
	assert_int_equal(options->cycles, 4);
	assert_int_equal(options->view, VIEW_NETSTAT);
	assert_true(options->deltas);
	assert_true(options->zero);
	assert_int_equal(options->log_level, 5);
	assert_int_equal(options->details_level, 2);
	assert_int_equal(options->dump_fd, 17);
	assert_int_equal(options->dump_level, VMA_LOG_INFO);
	assert_true(fd_list_has(&options->fds, 4) && fd_list_has(&options->fds, 16) && fd_list_has(&options->fds, 20));
	assert_false(fd_list_has(&options->fds, 3) || fd_list_has(&options->fds, 17) || fd_list_has(&options->fds, 21));
}

static void test_each_option_has_a_short_and_a_long_name(void **state)
{
	struct options options;

	(void)state;
	assert_int_equal(PARSE(&options, "-p", "7", "-k", "/dir", "-n", "prog", "-f", "-F", "-i", "3", "-c", "4", "-v",
	                       "5", "-d", "2", "-z", "-l", "5", "-D", "2", "-S", "17", "-s", "4-16,20"),
	                 OPTIONS_RUN);
	assert_all_options_are_parsed(&options);
	assert_int_equal(PARSE(&options, "--pid=7", "--directory=/dir", "--name=prog", "--find_pid", "--forbid_clean",
	                       "--interval=3", "--cycles=4", "--view=5", "--details=2", "--zero", "--log_level=5",
	                       "--details_level=2", "--fd_dump=17", "--sockets=4-16,20"),
	                 OPTIONS_RUN);
	assert_all_options_are_parsed(&options);
	assert_int_equal(PARSE(&options, "-V"), OPTIONS_VERSION);
	assert_int_equal(PARSE(&options, "--version"), OPTIONS_VERSION);
	assert_int_equal(PARSE(&options, "-h"), OPTIONS_HELP);
	assert_int_equal(PARSE(&options, "--help"), OPTIONS_HELP);
}

static void test_json_has_all_views_unless_one_is_named(void **state)
{
	struct options options;

	(void)state;
	assert_int_equal(PARSE(&options, "--json"), OPTIONS_RUN);
	assert_true(options.json && options.has_view);
	assert_int_equal(options.view, VIEW_ALL);
	assert_int_equal(PARSE(&options, "-v", "2", "--json"), OPTIONS_RUN);
	assert_int_equal(options.view, VIEW_EXTRA);
	assert_int_equal(PARSE(&options, "--json", "--assert-offloaded"), OPTIONS_RUN);
	assert_int_equal(options.view, VIEW_WHY);
	assert_int_equal(PARSE(&options, "--json=1"), OPTIONS_WRONG);
}

static void test_tcp_is_a_view_of_its_own(void **state)
{
	struct options options;

	(void)state;
	assert_int_equal(PARSE(&options, "-t"), OPTIONS_RUN);
	assert_int_equal(options.view, VIEW_TCP);
	assert_true(options.has_view);
	assert_int_equal(PARSE(&options, "--tcp", "-i", "2", "-s", "4"), OPTIONS_RUN);
	assert_int_equal(PARSE(&options, "-t", "-v", "1"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "--json", "-t"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "-t", "-d", "2"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "-t", "--assert-offloaded"), OPTIONS_WRONG);
}

static void test_top_goes_with_what_chooses_sockets_and_times(void **state)
{
	char *const others[][2] = {{"-v", "1"}, {"-d", "2"}, {"-l", "3"}, {"-S", "0"}, {"--listen", "1"}};
	char *const alone[] = {"--json", "-t", "-z", "--assert-offloaded", "--openmetrics", "--per-socket", "--report"};
	struct options options;

	(void)state;
	assert_int_equal(PARSE(&options, "--top"), OPTIONS_RUN);
	assert_true(options.top);
	assert_int_equal(
	        PARSE(&options, "--top", "-p", "7", "-n", "prog", "-k", "/dir", "-F", "-s", "3", "-i", "2", "-c", "4"),
	        OPTIONS_RUN);
	assert_int_equal(options.interval, 2);
	assert_int_equal(options.cycles, 4);
	for (unsigned i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		assert_int_equal(PARSE(&options, "--top", others[i][0], others[i][1]), OPTIONS_WRONG);
	for (unsigned i = 0; i < sizeof(alone) / sizeof(alone[0]); i++)
		assert_int_equal(PARSE(&options, alone[i], "--top"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "--top", "-v", "1"), OPTIONS_WRONG);
	assert_string_equal(wrong, "--top goes with -p, -n, -k, -F, -s, -i and -c only");
}

static void test_vmad_stands_alone(void **state)
{
	struct options options;

	(void)state;
	assert_int_equal(PARSE(&options, "--vmad", "eth0"), OPTIONS_RUN);
	assert_string_equal(options.vmad, "eth0");
	assert_int_equal(PARSE(&options, "--vmad=eth0"), OPTIONS_RUN);
	assert_string_equal(options.vmad, "eth0");
	assert_int_equal(PARSE(&options, "--vmad"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "--vmad="), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "--vmad", "eth0", "-v", "1"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "-z", "--vmad=eth0"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "--json", "--vmad", "eth0"), OPTIONS_WRONG);
}

static void test_report_stands_alone_but_for_its_file(void **state)
{
	struct options options;

	(void)state;
	assert_int_equal(PARSE(&options, "--report", "-p", "7", "-o", "file"), OPTIONS_RUN);
	assert_true(options.report);
	assert_string_equal(options.output, "file");
	assert_int_equal(PARSE(&options, "-o", "file"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "--report", "-o", ""), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "--report", "-v", "3"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "--report", "--json"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "--report", "-z"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "-s", "4", "--report"), OPTIONS_WRONG);
}

static void test_level_of_a_dump_may_follow_as_a_word(void **state)
{
	struct options options;

	(void)state;
	assert_int_equal(PARSE(&options, "--fd_dump", "17", "debug", "-v", "3"), OPTIONS_RUN);
	assert_int_equal(options.dump_fd, 17);
	assert_int_equal(options.dump_level, VMA_LOG_DEBUG);
	assert_int_equal(options.view, VIEW_FULL);
	assert_int_equal(PARSE(&options, "-S", "0", "2"), OPTIONS_RUN);
	assert_int_equal(options.dump_fd, 0);
	assert_int_equal(options.dump_level, VMA_LOG_WARN);
	assert_int_equal(PARSE(&options, "-S", "17", "loud"), OPTIONS_WRONG);
}

static void test_wrong_values_are_told(void **state)
{
	char *const cases[][2] = {{"-p", "0"},    {"-p", "x"},    {"-p", "-1"}, {"-i", "0"},   {"-c", "1x"},
	                          {"-v", "7"},    {"-v", "0"},    {"-d", "3"},  {"-l", "0"},   {"-l", "8"},
	                          {"-D", "4"},    {"-S", "info"}, {"-s", "4-"}, {"-s", "9-4"}, {"-s", ",1"},
	                          {"-s", "1,,2"}, {"-s", ""},     {"-k", ""},   {"-p", ""},    {"-s", "1 2"}};
	struct options options;

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(PARSE(&options, cases[i][0], cases[i][1]), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "-p", "x"), OPTIONS_WRONG);
	assert_string_equal(wrong, "'x' is no value of --pid");
	assert_int_equal(PARSE(&options, "--bogus"), OPTIONS_WRONG);
	assert_string_equal(wrong, "'--bogus' is not understood");
	assert_int_equal(PARSE(&options, "-p"), OPTIONS_WRONG);
	assert_string_equal(wrong, "'-p' has no value");
	assert_int_equal(PARSE(&options, "word"), OPTIONS_WRONG);
}

static void test_metrics_go_with_what_chooses_processes_only(void **state)
{
	struct options options;

	(void)state;
	assert_int_equal(PARSE(&options, "--openmetrics", "--per-socket", "-p", "7", "-s", "3", "-F", "-k", "/dir"),
	                 OPTIONS_RUN);
	assert_true(options.openmetrics);
	assert_true(options.per_socket);
	assert_null(options.listen);
	assert_int_equal(PARSE(&options, "--listen", "10.0.0.1:9464", "-n", "prog"), OPTIONS_RUN);
	assert_string_equal(options.listen, "10.0.0.1:9464");
	assert_false(options.openmetrics);
	assert_int_equal(PARSE(&options, "--openmetrics", "--listen=9464"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "--openmetrics", "-v", "3"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "--openmetrics", "-z"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "--listen=9464", "-d", "2"), OPTIONS_WRONG);
	assert_string_equal(wrong, "metrics go with -p, -n, -k, -F and -s only");
	assert_int_equal(PARSE(&options, "--per-socket"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "--listen=nowhere"), OPTIONS_WRONG);
	assert_string_equal(wrong, "'nowhere' is no value of --listen");
}

static void test_list_of_too_many_ranges_is_refused(void **state)
{
	struct fd_list list;
	char text[8 * (FD_LIST_RANGES + 1)] = "1";

	(void)state;
	for (int i = 1; i < FD_LIST_RANGES; i++)
		strcat(text, ",1");
	assert_true(fd_list_parse(&list, text));
	strcat(text, ",1");
	assert_false(fd_list_parse(&list, text));
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_means_the_fields_defaults),
        cmocka_unit_test(test_each_option_has_a_short_and_a_long_name),
        cmocka_unit_test(test_json_has_all_views_unless_one_is_named),
        cmocka_unit_test(test_tcp_is_a_view_of_its_own),
        cmocka_unit_test(test_top_goes_with_what_chooses_sockets_and_times),
        cmocka_unit_test(test_vmad_stands_alone),
        cmocka_unit_test(test_report_stands_alone_but_for_its_file),
        cmocka_unit_test(test_level_of_a_dump_may_follow_as_a_word),
        cmocka_unit_test(test_wrong_values_are_told),
        cmocka_unit_test(test_metrics_go_with_what_chooses_processes_only),
        cmocka_unit_test(test_list_of_too_many_ranges_is_refused),
};

VMA_TEST_MAIN(tests)
