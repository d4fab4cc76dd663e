/* Runs lwIP's own unit tests of TCP, which are of the check framework, and reports as the other tests do: TAP, T. */
#include <fnmatch.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lwip/init.h>
#include <lwip/memp.h>
#include <lwip/stats.h>
#include <lwip/sys.h>
#include <lwip_check.h>
#include <tcp/test_tcp.h>
#include <tcp/test_tcp_oos.h>

#ifndef VMA_DEBUG
#error "lwIP's assertions are to be on"
#endif

void port_assertion_failed(const char *message, const char *file, int line)
{
	printf("not ok - %s (%s:%d)\n", message, file, line);
	exit(1);
}

u32_t sys_now(void)
{
	return 0; /* the tests call the timers themselves */
}

int unit_as_lwip;

/* Tests of what the component does by itself: loss recovery on duplicate ACKs, and output after input. */
static const char *const tests_with_lwip_behaviour[] = {
        "test_tcp_fast_rexmit_wraparound", /* the third duplicate ACK retransmits */
        "test_tcp_rto_tracking",           /* an ACK sends what it makes room for */
        "test_tcp_persist_split",          /* an ACK that closes the window starts the persist timer */
};
/* Tests that are empty, unless lwIP limits out-of-order data: here the receive window does. */
static const char *const empty[] = {"test_tcp_recv_ooseq_max_bytes", "test_tcp_recv_ooseq_max_pbufs"};

static bool name_is_in_list(const char *name, const char *const *names, size_t count)
{
	while (count--) {
		if (!strcmp(name, names[count]))
			return true;
	}
	return false;
}
#define IS_IN(name, names) name_is_in_list(name, names, sizeof(names) / sizeof((names)[0]))

static void enable_lwip_behaviour(void)
{
	unit_as_lwip = 1;
}
static void disable_lwip_behaviour(void)
{
	unit_as_lwip = 0;
}

/* lwIP's suites call this. Each case is named after its function, which is how the results tell them apart. */
Suite *create_suite(const char *name, testfunc *tests, size_t count, SFun setup, SFun teardown)
{
	const char *pattern = getenv("T");
	Suite *suite = suite_create(name);

	for (size_t i = 0; i < count; i++) {
		TCase *tcase;

		if (pattern && *pattern && fnmatch(pattern, tests[i]->name, 0) != 0)
			continue;
		if (IS_IN(tests[i]->name, empty)) {
			printf("# %s is left out: it is empty under these options\n", tests[i]->name);
			continue;
		}
		tcase = tcase_create(tests[i]->name);
		if (IS_IN(tests[i]->name, tests_with_lwip_behaviour))
			tcase_add_checked_fixture(tcase, enable_lwip_behaviour, disable_lwip_behaviour);
		tcase_add_checked_fixture(tcase, setup, teardown);
		tcase_add_test(tcase, tests[i]);
		suite_add_tcase(suite, tcase);
	}
	return suite;
}

/* The tests count what is allocated at their end. */
void lwip_check_ensure_no_alloc(unsigned int skip)
{
	if (!(skip & SKIP_HEAP))
		ck_assert(lwip_stats.mem.used == 0);
	for (int i = 0; i < MEMP_MAX; i++) {
		if (!(skip & SKIP_POOL(i)))
			ck_assert(lwip_stats.memp[i]->used == 0);
	}
}

int main(void)
{
	SRunner *runner;
	TestResult **results;
	int count, failed;

	lwip_init();
	runner = srunner_create(tcp_suite());
	srunner_add_suite(runner, tcp_oos_suite());
	srunner_set_fork_status(runner, CK_NOFORK);
	srunner_run_all(runner, CK_SILENT);
	count = srunner_ntests_run(runner);
	failed = srunner_ntests_failed(runner);
	results = srunner_results(runner);
	printf("1..%d\n", count);
	for (int i = 0; i < count; i++) {
		TestResult *result = results[i];
		bool passed = tr_rtype(result) == CK_PASS;

		printf("%sok %d - %s\n", passed ? "" : "not ", i + 1, tr_tcname(result));
		if (!passed)
			printf("# %s:%d: %s\n", tr_lfile(result), tr_lno(result), tr_msg(result));
	}
	free(results);
	srunner_free(runner);
	return failed != 0;
}
