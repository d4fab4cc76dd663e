/* What a line looks like. */
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>

#include <vma/test.h>

#include "sink.h"

static struct sink sink;

static void test_line_is_level_and_text(void **state)
{
	(void)state;
	sink_redirect_log(&sink, VMA_LOG_ALL, 0);
	vma_log_panic("p");
	vma_log_error("e %d", 1);
	vma_log_warn("w");
	vma_log_info("i");
	vma_log_details("t");
	vma_log_debug("d");
	/* A release build says first that it has no levels above debug. */
	assert_non_null(strstr(sink_read(&sink), "VMA PANIC: p\nVMA ERROR: e 1\nVMA WARNING: w\nVMA INFO: i\n"
	                                         "VMA DETAILS: t\nVMA DEBUG: d\n"));
	sink_close(&sink);
}

static void test_levels_above_debug_exist_in_debug_builds_only(void **state)
{
	(void)state;
	sink_redirect_log(&sink, VMA_LOG_FINER, 0);
	vma_log_fine("low");
	vma_log_finer("lower");
	assert_int_equal(count_word_in_text(sink_read(&sink), "VMA FINE: low\nVMA FINER: lower\n"),
	                 VMA_LOG_COMPILED >= VMA_LOG_FINER);
	sink_close(&sink);
}

static void test_details_add_tid_then_pid_then_time(void **state)
{
	char wanted[128];
	long tid = syscall(SYS_gettid);
	double time_ms;

	(void)state;
	sink_redirect_log(&sink, VMA_LOG_INFO, 1);
	vma_log_info("x");
	snprintf(wanted, sizeof(wanted), "Tid: %ld VMA INFO: x\n", tid);
	assert_string_equal(sink_read(&sink), wanted);
	sink_close(&sink);

	sink_redirect_log(&sink, VMA_LOG_INFO, 2);
	vma_log_info("x");
	snprintf(wanted, sizeof(wanted), "Pid: %d Tid: %ld VMA INFO: x\n", getpid(), tid);
	assert_string_equal(sink_read(&sink), wanted);
	sink_close(&sink);

	sink_redirect_log(&sink, VMA_LOG_INFO, 3);
	vma_log_info("x");
	assert_int_equal(sscanf(sink_read(&sink), "Time: %lf Pid: ", &time_ms), 1);
	assert_string_equal(strstr(sink.text, "Pid: "), wanted);
	sink_close(&sink);
}

static void test_time_is_milliseconds_since_the_process_started(void **state)
{
	const struct timespec pause = {.tv_nsec = 20000000};
	double first, second;

	(void)state;
	sink_redirect_log(&sink, VMA_LOG_INFO, 3);
	vma_log_info("a");
	nanosleep(&pause, NULL);
	vma_log_info("b");
	sink_read(&sink);
	assert_int_equal(sscanf(sink.text, "Time: %lf", &first), 1);
	assert_int_equal(sscanf(strchr(sink.text, '\n') + 1, "Time: %lf", &second), 1);
	assert_true(first >= 0 && first < 60000);
	assert_true(second - first >= 20 && second - first < 20000);
	sink_close(&sink);
}

static void test_long_line_is_cut_with_a_mark(void **state)
{
	static char longer[3 * VMA_LOG_LINE_MAX];
	size_t len;

	(void)state;
	memset(longer, 'x', sizeof(longer) - 1);
	sink_redirect_log(&sink, VMA_LOG_INFO, 3);
	vma_log_info("%s", longer);
	vma_log_info("next");
	sink_read(&sink);
	len = (size_t)(strchr(sink.text, '\n') - sink.text) + 1;
	assert_in_range(len, VMA_LOG_LINE_MAX / 2, VMA_LOG_LINE_MAX);
	assert_memory_equal(sink.text + len - 8, "x [...]\n", 8);
	assert_int_equal(count_word_in_text(sink.text, "VMA INFO: next\n"), 1);
	sink_close(&sink);
}

static void test_cut_does_not_split_a_character(void **state)
{
	static char longer[2 * VMA_LOG_LINE_MAX];

	(void)state;
	for (int shift = 0; shift < 3; shift++) {
		const char *cut;
		size_t at = (size_t)shift;
		memset(longer, 0, sizeof(longer));
		memset(longer, 'x', at);
		for (; at + 3 < sizeof(longer); at += 3)
			memcpy(longer + at, "\xe2\x82\xac", 3);
		sink_redirect_log(&sink, VMA_LOG_INFO, 0);
		vma_log_info("%s", longer);
		cut = strstr(sink_read(&sink), " [...]\n");
		assert_non_null(cut);
		assert_memory_equal(cut - 3, "\xe2\x82\xac", 3);
		sink_close(&sink);
	}
}

static void test_text_of_every_length_around_the_limit_is_one_whole_line(void **state)
{
	static char text[VMA_LOG_LINE_MAX + 8];
	size_t longest_whole = 0, cut_to = 0;

	(void)state;
	for (size_t len = VMA_LOG_LINE_MAX - 200; len < sizeof(text) - 1; len++) {
		const char *shown;

		memset(text, 'y', len);
		text[len] = '\0';
		sink_redirect_log(&sink, VMA_LOG_INFO, 3);
		vma_log_info("%s", text);
		shown = strchr(sink_read(&sink), 'y');
		assert_non_null(shown);
		assert_true(strlen(sink.text) <= VMA_LOG_LINE_MAX);
		assert_ptr_equal(strchr(sink.text, '\n'), sink.text + strlen(sink.text) - 1);
		if (cut_to == 0 && strspn(shown, "y") == len) {
			assert_string_equal(shown + len, "\n");
			longest_whole = len;
		} else { /* and so are all that are longer, at the same place */
			if (cut_to == 0)
				cut_to = strspn(shown, "y");
			assert_int_equal(strspn(shown, "y"), cut_to);
			assert_string_equal(shown + cut_to, " [...]\n");
		}
		sink_close(&sink);
	}
	assert_int_equal(cut_to + strlen(" [...]"), longest_whole);
}

static void test_quoted_control_characters_cannot_forge_a_line(void **state)
{
	(void)state;
	sink_redirect_log(&sink, VMA_LOG_INFO, 0);
	vma_log_info("name '%s'", "a\nVMA ERROR: forged\033[31m\r\x7f\tz");
	assert_string_equal(sink_read(&sink), "VMA INFO: name 'a?VMA ERROR: forged?[31m??\tz'\n");
	sink_close(&sink);
}

static void test_newline_at_the_end_of_a_format_does_no_harm(void **state)
{
	(void)state;
	sink_redirect_log(&sink, VMA_LOG_INFO, 0);
	vma_log_info("x\n");
	vma_log_info("%s", "");
	assert_string_equal(sink_read(&sink), "VMA INFO: x\nVMA INFO: \n");
	sink_close(&sink);
}

static void test_errno_is_seen_by_the_format_and_survives_every_call(void **state)
{
	enum vma_log_level level;
	struct vma_log_attr bad = {.level = VMA_LOG_NONE, .file = "/nonexistent/file"};

	(void)state;
	sink_redirect_log(&sink, VMA_LOG_INFO, 3);
	errno = ENOTUNIQ;
	vma_log_info("%m");
	assert_int_equal(errno, ENOTUNIQ);
	assert_non_null(strstr(sink_read(&sink), "Name not unique on network\n"));
	vma_log_once(VMA_LOG_INFO, "once %m");
	assert_int_equal(errno, ENOTUNIQ);
	vma_log_once(VMA_LOG_INFO, "once %m");
	assert_int_equal(errno, ENOTUNIQ);
	assert_int_equal(count_word_in_text(sink_read(&sink), "once Name not unique"), 1);
	vma_log_level_parse("nonsense", &level);
	assert_int_equal(errno, ENOTUNIQ);
	vma_log_fini();
	assert_int_equal(errno, ENOTUNIQ);
	assert_int_equal(vma_log_init(&bad), -ENOENT);
	assert_int_equal(errno, ENOTUNIQ);
	sink_close(&sink);
}

/* One line per level through a terminal of our own, with colours wanted or not. */
static const char *log_through_pseudo_terminal(bool colors, char *text, size_t size)
{
	int master = posix_openpt(O_RDWR | O_NOCTTY);
	struct vma_log_attr attr = {.level = VMA_LOG_ALL, .colors = colors};
	ssize_t n;

	grantpt(master);
	unlockpt(master);
	attr.file = ptsname(master);
	if (vma_log_init(&attr) != 0) {
		close(master);
		return NULL;
	}
	vma_log_write(VMA_LOG_ERROR, "e");
	vma_log_write(VMA_LOG_WARN, "w");
	vma_log_write(VMA_LOG_INFO, "i");
	vma_log_write(VMA_LOG_FINE, "f");
	vma_log_write(VMA_LOG_DEBUG, "last");
	text[0] = '\0';
	for (size_t used = 0; strstr(text, "last") == NULL && used < size - 1; used += (size_t)n) {
		n = read(master, text + used, size - 1 - used);
		if (n <= 0)
			break;
		text[used + (size_t)n] = '\0';
	}
	vma_log_fini();
	close(master);
	return text;
}

static void test_terminal_gets_red_and_dim_and_only_if_wanted(void **state)
{
	char text[4096];

	(void)state;
	if (log_through_pseudo_terminal(true, text, sizeof(text)) == NULL)
		vma_test_skip("there are no pseudo-terminals here");
	assert_non_null(strstr(text, "\033[31mVMA ERROR: e\033[0m\r\n\033[31mVMA WARNING: w\033[0m\r\n"
	                             "VMA INFO: i\r\n\033[2mVMA FINE: f\033[0m\r\nVMA DEBUG: last"));
	assert_non_null(log_through_pseudo_terminal(false, text, sizeof(text)));
	assert_null(strchr(text, '\033'));
	vma_log_set_level(VMA_LOG_INFO);
}

static void test_file_gets_no_colors(void **state)
{
	struct vma_log_attr attr = {.level = VMA_LOG_INFO, .colors = true};

	(void)state;
	sink_open_log_memfd(&sink);
	attr.file = sink.path;
	assert_int_equal(vma_log_init(&attr), 0);
	vma_log_error("plain");
	assert_string_equal(sink_read(&sink), "VMA ERROR: plain\n");
	sink_close(&sink);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line_is_level_and_text),
        cmocka_unit_test(test_levels_above_debug_exist_in_debug_builds_only),
        cmocka_unit_test(test_details_add_tid_then_pid_then_time),
        cmocka_unit_test(test_time_is_milliseconds_since_the_process_started),
        cmocka_unit_test(test_long_line_is_cut_with_a_mark),
        cmocka_unit_test(test_cut_does_not_split_a_character),
        cmocka_unit_test(test_text_of_every_length_around_the_limit_is_one_whole_line),
        cmocka_unit_test(test_quoted_control_characters_cannot_forge_a_line),
        cmocka_unit_test(test_newline_at_the_end_of_a_format_does_no_harm),
        cmocka_unit_test(test_errno_is_seen_by_the_format_and_survives_every_call),
        cmocka_unit_test(test_terminal_gets_red_and_dim_and_only_if_wanted),
        cmocka_unit_test(test_file_gets_no_colors),
};

VMA_TEST_MAIN(tests)
