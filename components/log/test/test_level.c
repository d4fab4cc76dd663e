/* Levels: their names, and what one that is off costs. */
#include <errno.h>

#include <vma/test.h>

#include "sink.h"

static void test_names_and_numbers_are_the_fields_own(void **state)
{
	static const struct {
		const char *text;
		enum vma_log_level level;
	} cases[] = {
	        {"none", VMA_LOG_NONE},    {"panic", VMA_LOG_PANIC},      {"0", VMA_LOG_PANIC},
	        {"error", VMA_LOG_ERROR},  {"1", VMA_LOG_ERROR},          {"warn", VMA_LOG_WARN},
	        {"Warning", VMA_LOG_WARN}, {"2", VMA_LOG_WARN},           {"INFO", VMA_LOG_INFO},
	        {"3", VMA_LOG_INFO},       {"information", VMA_LOG_INFO}, {"details", VMA_LOG_DETAILS},
	        {"debug", VMA_LOG_DEBUG},  {"DeBuG", VMA_LOG_DEBUG},      {"4", VMA_LOG_DEBUG},
	        {"fine", VMA_LOG_FINE},    {"func", VMA_LOG_FINE},        {"5", VMA_LOG_FINE},
	        {"finer", VMA_LOG_FINER},  {"func_all", VMA_LOG_FINER},   {"6", VMA_LOG_FINER},
	        {"all", VMA_LOG_ALL},
	};
	enum vma_log_level level;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		level = (enum vma_log_level)99;
		assert_int_equal(vma_log_level_parse(cases[i].text, &level), 0);
		assert_int_equal(level, cases[i].level);
	}
}

static void test_anything_else_is_refused_and_leaves_the_level_alone(void **state)
{
	static const char *const cases[] = {"", "7", "-1", "00", "debugg", "debu", " debug", "debug ", "4x", "info\n"};
	enum vma_log_level level = VMA_LOG_WARN;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(vma_log_level_parse(cases[i], &level), -EINVAL);
	assert_int_equal(vma_log_level_parse(NULL, &level), -EINVAL);
	assert_int_equal(level, VMA_LOG_WARN);
}

static void test_every_level_has_a_name_that_parses_back(void **state)
{
	(void)state;
	for (int i = VMA_LOG_NONE; i <= VMA_LOG_ALL; i++) {
		enum vma_log_level level = (enum vma_log_level)99;
		assert_int_equal(vma_log_level_parse(vma_log_level_name((enum vma_log_level)i), &level), 0);
		assert_int_equal(level, i);
	}
	assert_string_equal(vma_log_level_name((enum vma_log_level)99), "?");
}

static int calls;

static int count_format_argument_call(void)
{
	return ++calls;
}

static void test_level_that_is_off_does_not_evaluate_its_arguments(void **state)
{
	struct sink sink;

	(void)state;
	sink_redirect_log(&sink, VMA_LOG_WARN, 0);
	calls = 0;
	vma_log_info("%d", count_format_argument_call());
	assert_int_equal(calls, 0);
	vma_log_warn("%d", count_format_argument_call());
	assert_int_equal(calls, 1);
	vma_log_set_level(VMA_LOG_NONE);
	vma_log_panic("%d", count_format_argument_call());
	assert_int_equal(calls, 1);
	assert_string_equal(sink_read(&sink), "VMA WARNING: 1\n");
	sink_close(&sink);
}

/* What a data path looks like with a line in it: the next test reads its machine code. */
int probed_path(int *p);
__attribute__((noinline, used)) int probed_path(int *p)
{
	*p += 1;
	vma_log_debug("value %d", *p);
	return *p;
}

#if defined(__x86_64__) && defined(__OPTIMIZE__) && !defined(VMA_DEBUG) /* which the sanitizers set too */
/* Conditional jumps and reads of the level on the way through probed_path, from its disassembly. */
static bool count_branches_in_disassembly(unsigned *branches, unsigned *level_reads)
{
	FILE *asm_text = popen("objdump -d --no-show-raw-insn --disassemble=probed_path /proc/$PPID/exe 2>&1", "r");
	char line[512];
	bool found = false;

	*branches = *level_reads = 0;
	while (fgets(line, sizeof(line), asm_text) != NULL) {
		const char *insn = strchr(line, '\t');
		found |= strstr(line, "<probed_path>:") != NULL;
		if (insn == NULL)
			continue;
		insn++;
		*branches += insn[0] == 'j' && strncmp(insn, "jmp", 3) != 0;
		*level_reads += strstr(insn, "vma_log_level_now") != NULL;
	}
	pclose(asm_text);
	return found;
}

static void test_level_that_is_off_costs_one_compare_and_one_branch(void **state)
{
	unsigned branches, level_reads;

	(void)state;
	if (!count_branches_in_disassembly(&branches, &level_reads))
		vma_test_skip("there is no objdump here");
	assert_int_equal(level_reads, 1);
	assert_int_equal(branches, 1);
}
#else
static void test_level_that_is_off_costs_one_compare_and_one_branch(void **state)
{
	(void)state;
	vma_test_skip("the promise is the release build's");
}
#endif

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_and_numbers_are_the_fields_own),
        cmocka_unit_test(test_anything_else_is_refused_and_leaves_the_level_alone),
        cmocka_unit_test(test_every_level_has_a_name_that_parses_back),
        cmocka_unit_test(test_level_that_is_off_does_not_evaluate_its_arguments),
        cmocka_unit_test(test_level_that_is_off_costs_one_compare_and_one_branch),
};

VMA_TEST_MAIN(tests)
