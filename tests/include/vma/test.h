/* What every unit-test program starts with: cmocka, and a main that honours T='*pattern*'. */
#ifndef VMA_TEST_H
#define VMA_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

/* For a program with a main of its own, before it runs its groups. */
static inline void vma_test_set_filter_from_env(void)
{
	const char *pattern = getenv("T");

	if (pattern != NULL && *pattern != '\0')
		cmocka_set_test_filter(pattern);
}

/* start and stop: before the first case and after the last; NULL: nothing. */
#define VMA_TEST_MAIN_WITH(tests, start, stop)                                                                         \
	int main(void)                                                                                                 \
	{                                                                                                              \
		vma_test_set_filter_from_env();                                                                        \
		return cmocka_run_group_tests_name(__FILE__, tests, start, stop);                                      \
	}
#define VMA_TEST_MAIN(tests) VMA_TEST_MAIN_WITH(tests, NULL, NULL)

/* Leaves the case unless it can be run here, and says why: the runners show both. */
#define vma_test_skip(...)                                                                                             \
	do {                                                                                                           \
		print_message("# skip: " __VA_ARGS__);                                                                 \
		print_message("\n");                                                                                   \
		skip();                                                                                                \
	} while (0)

/*
 * After a measurement that missed for want of a core: whether it is made again, at most `most` times in all. `misses`
 * begins at 0. What was seen and what was wanted is told, and the runners count the program as flaky.
 *
 *	while ((late_ns = lateness_ns()) > LIMIT_NS && vma_test_remeasure(__func__, &misses, 3, "%lu ns late", late_ns))
 *		;
 */
__attribute__((format(printf, 4, 5))) static inline bool vma_test_remeasure(const char *test, unsigned *misses,
                                                                            unsigned most, const char *format, ...)
{
	va_list args;

	printf("# flaky: %s: ", test);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf(" (measurement %u of at most %u)\n", ++*misses, most);
	fflush(stdout); /* a child ends by _exit */
	return *misses < most;
}

/*
 * Whether a stress goes on: it has its time, and where cores are scarce up to thirty seconds more, until there was
 * something to see.
 */
static inline bool vma_test_goes_on(uint64_t now_ns, uint64_t until_ns, bool seen)
{
	return now_ns < until_ns || (!seen && now_ns < until_ns + 30000000000);
}

/* The child of a program with threads makes threads of its own: allowed in tests, and to be told to ThreadSanitizer. */
#define VMA_TEST_FORKS_WITH_THREADS                                                                                    \
	__attribute__((visibility("default"))) const char *__tsan_default_options(void);                               \
	const char *__tsan_default_options(void)                                                                       \
	{                                                                                                              \
		return "die_after_fork=0";                                                                             \
	}

#endif
