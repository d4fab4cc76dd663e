/* What people read: the banner and the reference page. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vma/test.h>

#include "../conf_priv.h"

#define RULE "VMA INFO: ---------------------------------------------------------------------------\n"
#define PAGE "docs/parameters.md"

static char heard[65536];

#define ENV(...) ((char *const[]){__VA_ARGS__, NULL})

static const char *log_banner_and_return_text(enum vma_log_level level, char *const *env)
{
	int fd = memfd_create("log", 0);
	struct vma_conf conf;
	char path[32];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	vma_log_init(&(struct vma_log_attr){.level = level, .file = path});
	vma_conf_load(&conf, env);
	vma_conf_log_all_params(&conf);
	n = pread(fd, heard, sizeof(heard) - 1, 0);
	heard[n > 0 ? n : 0] = '\0';
	vma_log_fini();
	vma_log_set_level(VMA_LOG_INFO);
	close(fd);
	return heard;
}

static void test_default_banner_shows_level_and_file_only(void **state)
{
	(void)state;
	assert_string_equal(
	        log_banner_and_return_text(VMA_LOG_INFO, ENV(NULL)),
	        RULE "VMA INFO: Log Level                      INFO                       [VMA_TRACELEVEL]\n"
	             "VMA INFO: Log File                                                  [VMA_LOG_FILE]\n" RULE);
}

static void test_banner_shows_what_was_changed_in_the_fields_columns(void **state)
{
	(void)state;
	log_banner_and_return_text(VMA_LOG_INFO,
	                           ENV("VMA_RING_ALLOCATION_LOGIC_TX=10", "VMA_MEM_ALLOC_TYPE=2", "VMA_RX_WRE=16000",
	                               "VMA_LOG_FILE=/tmp/log", "VMA_CQ_AIM_INTERVAL_MSEC=0"));
	assert_string_equal(heard, RULE
	                    "VMA INFO: Log Level                      INFO                       [VMA_TRACELEVEL]\n"
	                    "VMA INFO: Log File                       /tmp/log                   [VMA_LOG_FILE]\n"
	                    "VMA INFO: Ring allocation logic TX       10 (Ring per socket)       "
	                    "[VMA_RING_ALLOCATION_LOGIC_TX]\n"
	                    "VMA INFO: CQ Adaptive Moderation         Disabled                   "
	                    "[VMA_CQ_AIM_INTERVAL_MSEC]\n"
	                    "VMA INFO: Mem Allocate type              2 (Huge Pages)             "
	                    "[VMA_MEM_ALLOC_TYPE]\n" RULE);
}

static void test_profile_shows_itself_and_what_it_changes(void **state)
{
	(void)state;
	log_banner_and_return_text(VMA_LOG_INFO, ENV("VMA_SPEC=latency"));
	assert_non_null(
	        strstr(heard, "VMA INFO: VMA Spec                       Latency                    [VMA_SPEC]\n"));
	assert_non_null(
	        strstr(heard, "VMA INFO: Tx QP WRE                      256                        [VMA_TX_WRE]\n"));
	assert_non_null(strstr(heard, "VMA INFO: Thread mode                    Single                     "));
	assert_null(strstr(heard, "[VMA_RX_BUFS]"));
}

/* What holds of moderation is said: nothing that is unset, what a profile says, what is set. */
static void test_moderation_is_shown_as_it_holds(void **state)
{
	(void)state;
	log_banner_and_return_text(VMA_LOG_DETAILS, ENV(NULL));
	assert_non_null(strstr(heard, "CQ Interrupts Moderation       as far as asked for        "));
	assert_non_null(strstr(heard, "CQ Moderation Count            48, if a period is set     "));
	assert_non_null(strstr(heard, "CQ Moderation Period (usec)    50, if a count is set      "));
	assert_non_null(strstr(heard, "CQ AIM Interval (msec)         250, if asked for          "));
	log_banner_and_return_text(VMA_LOG_INFO, ENV("VMA_SPEC=latency", "VMA_CQ_MODERATION_COUNT=48"));
	assert_non_null(strstr(heard, "CQ Interrupts Moderation       Disabled                   "));
	assert_non_null(strstr(heard, "CQ Moderation Count            48                         "));
	assert_non_null(strstr(heard, "CQ Adaptive Moderation         Disabled                   "));
	assert_null(strstr(heard, "CQ Moderation Period"));
}

static void test_details_shows_every_parameter_once(void **state)
{
	(void)state;
	log_banner_and_return_text(VMA_LOG_DETAILS, ENV(NULL));
	for (size_t i = 0; i < conf_param_count; i++) {
		char name[64];
		const char *first;
		snprintf(name, sizeof(name), " [%s]\n", conf_params[i].name);
		first = strstr(heard, name);
		assert_non_null(first);
		assert_null(strstr(first + 1, name));
	}
	assert_non_null(strstr(heard, "VMA DETAILS: Ring allocation logic TX       0 (Ring per interface)     "
	                              "[VMA_RING_ALLOCATION_LOGIC_TX]\n"));
	assert_non_null(strstr(heard, "VMA DETAILS: Mem Allocate type              1 (Contig Pages)           "
	                              "[VMA_MEM_ALLOC_TYPE]\n"));
	assert_non_null(strstr(heard, "VMA DETAILS: Thread mode                    Multi spin lock            "
	                              "[VMA_THREAD_MODE]\n"));
	assert_null(strstr(heard, "high log level"));
}

static void test_high_level_is_warned_of(void **state)
{
	(void)state;
	log_banner_and_return_text(VMA_LOG_DEBUG, ENV("VMA_TRACELEVEL=debug"));
	assert_non_null(strstr(heard, "VMA INFO: Log Details                    2                          "));
	assert_non_null(strstr(heard, "VMA WARNING: * VMA is currently configured with high log level           *\n"));
}

static void test_reference_that_does_not_fit_is_refused(void **state)
{
	static char page[65536];
	int len = vma_conf_write_reference_page(page, sizeof(page));

	(void)state;
	assert_true(len > 0);
	assert_int_equal(strlen(page), len);
	assert_int_equal(vma_conf_write_reference_page(page, (size_t)len / 2), -ENOSPC);
	assert_int_equal(vma_conf_write_reference_page(NULL, 0), -ENOSPC);
}

/* Run from the root of the tree, as make does. UPDATE_DOCS=1 writes the page. */
static void test_reference_page_is_what_the_table_says(void **state)
{
	static char wanted[65536], found[65536];
	int len = vma_conf_write_reference_page(wanted, sizeof(wanted));
	FILE *file;
	size_t n;

	(void)state;
	assert_true(len > 0);
	if (getenv("UPDATE_DOCS") != NULL) {
		file = fopen(PAGE, "w");
		assert_non_null(file);
		assert_int_equal(fwrite(wanted, 1, (size_t)len, file), len);
		assert_int_equal(fclose(file), 0);
	}
	file = fopen(PAGE, "r");
	if (file == NULL)
		fail_msg("no %s here", PAGE);
	n = fread(found, 1, sizeof(found) - 1, file);
	fclose(file);
	found[n] = '\0';
	if (strcmp(found, wanted) != 0)
		fail_msg("%s is out of date: make test-conf UPDATE_DOCS=1 writes it", PAGE);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default_banner_shows_level_and_file_only),
        cmocka_unit_test(test_banner_shows_what_was_changed_in_the_fields_columns),
        cmocka_unit_test(test_profile_shows_itself_and_what_it_changes),
        cmocka_unit_test(test_moderation_is_shown_as_it_holds),
        cmocka_unit_test(test_details_shows_every_parameter_once),
        cmocka_unit_test(test_high_level_is_warned_of),
        cmocka_unit_test(test_reference_that_does_not_fit_is_refused),
        cmocka_unit_test(test_reference_page_is_what_the_table_says),
};

VMA_TEST_MAIN(tests)
