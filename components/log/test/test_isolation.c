/*
 * The log reaches the kernel by syscall() only: a name that the library interposes would lead back into the library,
 * from anywhere, with anything held. Said of the release archive: sanitizers and debug builds bring symbols of theirs.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <vma/test.h>

#ifndef VMA_DEBUG
/* What the archive may leave undefined. Nothing here opens, closes, reads, writes, waits or takes signals. */
static const char *const allowed[] = {
        "syscall",
        "vsnprintf",
        "snprintf",
        "clock_gettime",
        "fstat",
        "lstat",
        "geteuid",
        "strerrordesc_np",
        "__errno_location",
        "memcpy",
        "memset",
        "strlen",
        "strnlen",
        "strstr",
        "__stack_chk_fail",
        "_GLOBAL_OFFSET_TABLE_",
};

static bool is_symbol_allowed(const char *symbol)
{
	for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++)
		if (strcmp(symbol, allowed[i]) == 0)
			return true;
	return strncmp(symbol, "vma_log_", 8) == 0 ||
	       strncmp(symbol, "log_", 4) == 0; /* its own, between its objects */
}

/* BUILD/test/log/test/test_isolation -> BUILD/lib/libvma-log.a */
static bool list_undefined_symbols_of_log_archive(FILE **list)
{
	char program[512] = "", command[640], *build;

	if (readlink("/proc/self/exe", program, sizeof(program) - 1) < 0)
		return false;
	build = strstr(program, "/test/log/");
	if (build == NULL)
		return false;
	*build = '\0';
	snprintf(command, sizeof(command), "nm -u '%s/lib/libvma-log.a' 2>&1", program);
	*list = popen(command, "r");
	return *list != NULL;
}

static void test_archive_needs_nothing_that_the_library_interposes(void **state)
{
	char line[256], symbol[128];
	unsigned seen = 0, syscalls = 0;
	FILE *list = NULL;

	(void)state;
	assert_true(list_undefined_symbols_of_log_archive(&list));
	while (fgets(line, sizeof(line), list) != NULL)
		if (sscanf(line, " U %127s", symbol) == 1) {
			if (!is_symbol_allowed(symbol))
				fail_msg("the log uses %s", symbol);
			seen++;
			syscalls += strcmp(symbol, "syscall") == 0;
		}
	pclose(list);
	if (seen == 0)
		vma_test_skip("there is no nm here");
	assert_true(syscalls > 0);
}
#else
static void test_archive_needs_nothing_that_the_library_interposes(void **state)
{
	(void)state;
	vma_test_skip("the promise is the release build's");
}
#endif

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_archive_needs_nothing_that_the_library_interposes),
};

VMA_TEST_MAIN(tests)
