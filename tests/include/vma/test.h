/* What every unit-test program starts with: cmocka, and a main that honours T='*pattern*'. */
#ifndef VMA_TEST_H
#define VMA_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#define VMA_TEST_MAIN(tests)                                                                                           \
	int main(void)                                                                                                 \
	{                                                                                                              \
		const char *pattern = getenv("T");                                                                     \
		if (pattern != NULL && *pattern != '\0')                                                               \
			cmocka_set_test_filter(pattern);                                                               \
		return cmocka_run_group_tests_name(__FILE__, tests, NULL, NULL);                                       \
	}

#endif
