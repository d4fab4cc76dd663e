/* The command line: each option, short and long, and what is none. */
#include <string.h>

#include <vma/capture.h>
#include <vma/test.h>

#include "../options.h"

#define PARSE(options, ...) parse_options_of_words(options, (char *[]){"vma_dump", __VA_ARGS__, NULL})

static enum options_result parse_options_of_words(struct options *options, char **words)
{
	int count = 0;

	while (words[count] != NULL)
		count++;
	return options_parse(options, count, words);
}

static void test_what_is_not_said_is_everything(void **state)
{
	static struct options options;

	(void)state;
	unsetenv("VMA_STATS_SHMEM_DIR");
	assert_int_equal(PARSE(&options, "-w", "file"), OPTIONS_RUN);
	assert_string_equal(options.file, "file");
	assert_string_equal(options.directory, "/tmp");
	assert_string_equal(options.filter, "");
	assert_int_equal(options.pid, 0);
	assert_int_equal(options.fd, -1);
	assert_null(options.interface);
	assert_int_equal(options.snap, VMA_CAPTURE_DATA_MAX);
	assert_int_equal(options.count, 0);
	assert_false(options.list);
	setenv("VMA_STATS_SHMEM_DIR", "/run/here", 1);
	assert_int_equal(PARSE(&options, "-w", "file"), OPTIONS_RUN);
	assert_string_equal(options.directory, "/run/here");
	unsetenv("VMA_STATS_SHMEM_DIR");
}

static void assert_all_options_as_given(const struct options *options)
{
	assert_int_equal(options->pid, 7);
	assert_int_equal(options->fd, 0);
	assert_string_equal(options->file, "-");
	assert_int_equal(options->snap, 65535);
	assert_int_equal(options->count, UINT64_C(5000000000));
	assert_string_equal(options->directory, "/dir");
	assert_string_equal(options->filter, "udp port 7000");
}

static void test_each_option_has_a_short_and_a_long_name(void **state)
{
	static struct options options;

	(void)state;
	assert_int_equal(PARSE(&options, "-p", "7", "-d", "0", "-w", "-", "-s", "65535", "-c", "5000000000", "-k",
	                       "/dir", "udp", "port", "7000"),
	                 OPTIONS_RUN);
	assert_all_options_as_given(&options);
	assert_int_equal(PARSE(&options, "--pid=7", "--fd=0", "--write=-", "--snapshot-length=65535",
	                       "--count=5000000000", "--directory=/dir", "udp port", "7000"),
	                 OPTIONS_RUN);
	assert_all_options_as_given(&options);
	assert_int_equal(PARSE(&options, "-i", "eth0", "-w", "file"), OPTIONS_RUN);
	assert_string_equal(options.interface, "eth0");
	assert_int_equal(PARSE(&options, "--interface=eth0", "-w", "file", "tcp"), OPTIONS_RUN);
	assert_string_equal(options.interface, "eth0");
	assert_string_equal(options.filter, "tcp");
	assert_int_equal(PARSE(&options, "-D"), OPTIONS_RUN);
	assert_true(options.list);
	assert_int_equal(PARSE(&options, "--list-processes"), OPTIONS_RUN);
	assert_true(options.list);
	assert_int_equal(PARSE(&options, "-V"), OPTIONS_VERSION);
	assert_int_equal(PARSE(&options, "--version"), OPTIONS_VERSION);
	assert_int_equal(PARSE(&options, "-h"), OPTIONS_HELP);
	assert_int_equal(PARSE(&options, "--help"), OPTIONS_HELP);
}

static void test_wrong_values_are_refused(void **state)
{
	char *const cases[][2] = {{"-p", "0"},          {"-p", "x"},     {"-p", "-1"},  {"-p", ""},
	                          {"-p", "2147483648"}, {"-d", "-1"},    {"-d", "1x"},  {"-d", "+"},
	                          {"-s", "0"},          {"-s", "65536"}, {"-s", ""},    {"-s", "+1"},
	                          {"-c", "0"},          {"-c", " 1"},    {"-c", "1e3"}, {"-i", ""}};
	static struct options options;

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (PARSE(&options, "-w", "file", cases[i][0], cases[i][1]) != OPTIONS_WRONG)
			fail_msg("'%s' was taken for a value of %s", cases[i][1], cases[i][0]);
	assert_int_equal(PARSE(&options, "-w", "file", "-i", "an-interface-whose-name-is-too-long-for-a-record"),
	                 OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "-w"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "--bogus", "-w", "file"), OPTIONS_WRONG);
}

static void test_an_output_is_named_unless_processes_are_listed(void **state)
{
	static struct options options;

	(void)state;
	assert_int_equal(PARSE(&options, "-p", "7"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "-i", "eth0"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "udp"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "-D", "-k", "/dir"), OPTIONS_RUN);
}

static void test_an_interface_is_of_all_processes(void **state)
{
	static struct options options;

	(void)state;
	assert_int_equal(PARSE(&options, "-w", "file", "-i", "eth0", "-p", "7"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "-w", "file", "-d", "4", "-i", "eth0"), OPTIONS_WRONG);
}

static void test_a_filter_is_all_words_and_bounded(void **state)
{
	static struct options options;
	static char word[sizeof(options.filter)];

	(void)state;
	memset(word, 'a', sizeof(word) - 1);
	assert_int_equal(PARSE(&options, "-w", "file", word), OPTIONS_RUN);
	assert_string_equal(options.filter, word);
	assert_int_equal(PARSE(&options, "-w", "file", word, "b"), OPTIONS_WRONG);
	assert_int_equal(PARSE(&options, "-w", "file", "udp", "and", "--", "port", "7"), OPTIONS_RUN);
	assert_string_equal(options.filter, "udp and port 7");
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_not_said_is_everything),
        cmocka_unit_test(test_each_option_has_a_short_and_a_long_name),
        cmocka_unit_test(test_wrong_values_are_refused),
        cmocka_unit_test(test_an_output_is_named_unless_processes_are_listed),
        cmocka_unit_test(test_an_interface_is_of_all_processes),
        cmocka_unit_test(test_a_filter_is_all_words_and_bounded),
};

VMA_TEST_MAIN(tests)
