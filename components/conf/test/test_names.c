/* Every name of the field, one after the other: label, defaults, banner, bad values, and other names. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vma/test.h>

#include "../conf_priv.h"
#include "parameter_names.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))
#define ENV(...) ((char *const[]){__VA_ARGS__, NULL})

static char heard[65536];

/* Loads the environment at this level, shows the banner if asked, and leaves in `heard` what was logged. */
static void conf_load_env_and_show_banner(struct vma_conf *conf, char *const *env, bool shows, enum vma_log_level level)
{
	int fd = memfd_create("log", 0);
	char path[32];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	vma_log_init(&(struct vma_log_attr){.level = level, .file = path});
	memset(conf, 0, sizeof(*conf));
	conf_load_all_params_from_env(conf, env, false, false);
	if (shows)
		vma_conf_log_all_params(conf);
	n = pread(fd, heard, sizeof(heard) - 1, 0);
	heard[n > 0 ? n : 0] = '\0';
	vma_log_fini();
	vma_log_set_level(VMA_LOG_INFO);
	close(fd);
}

static unsigned logged_text_count(const char *text)
{
	unsigned times = 0;

	for (const char *at = heard; (at = strstr(at, text)) != NULL; at++)
		times++;
	return times;
}

static const struct conf_param *conf_param_of_name(const char *name)
{
	for (size_t i = 0; i < conf_param_count; i++)
		if (strcmp(conf_params[i].name, name) == 0)
			return &conf_params[i];
	assert_true(conf_has_param_or_alias_name(name, strlen(name)));
	return NULL;
}

/* As the banner prints the value, with what is said beside it. */
static void banner_value_with_note(const struct conf_param *param, const char *shown, char *out, size_t size)
{
	const char *note = conf_class_note(param->class);

	if (note != NULL)
		snprintf(out, size, "%s (%s)", shown, note);
	else
		snprintf(out, size, "%s", shown);
}

static void expect_in_banner(const char *label, const char *shown, const char *name)
{
	char line[256];

	snprintf(line, sizeof(line), "VMA INFO: %-30s %-26s [%s]\n", label, shown, name);
	if (logged_text_count(line) != 1)
		fail_msg("not once '%s' in:\n%s", line, heard);
}

static void test_all_names_of_the_field_are_known(void **state)
{
	unsigned rows = 0;

	(void)state;
	assert_int_equal(COUNT(known_parameters), 104);
	for (size_t i = 0; i < COUNT(known_parameters); i++) {
		const struct conf_param *param = conf_param_of_name(known_parameters[i].name);

		if (param != NULL)
			assert_string_equal(param->label, known_parameters[i].label);
		rows += param != NULL;
	}
	assert_int_equal(rows, 104);
}

static void test_defaults_are_those_of_the_field(void **state)
{
	char out[CONF_SHOWN_MAX];
	const char *label;

	(void)state;
	for (size_t i = 0; i < COUNT(known_parameters); i++) {
		const struct known_parameter *known = &known_parameters[i];
		const struct conf_param *param = conf_param_of_name(known->name);

		if (param == NULL)
			continue;
		assert_string_equal(
		        param->type == CONF_TEXT
		                ? conf_default_text(param, VMA_SPEC_NONE)
		                : conf_param_format_value(param, conf_default(param, VMA_SPEC_NONE), out, &label),
		        known->def);
	}
}

static void expect_default_of_profile(const struct conf_param *param, int spec, const char *wanted)
{
	int64_t value = conf_default(param, VMA_SPEC_NONE);

	if (param->type == CONF_TEXT) {
		assert_string_equal(conf_default_text(param, spec),
		                    wanted != NULL ? wanted : conf_default_text(param, VMA_SPEC_NONE));
		return;
	}
	if (wanted != NULL)
		assert_int_equal(conf_param_parse_value(param, wanted, &value), 0);
	if (conf_default(param, spec) != value)
		fail_msg("%s: %lld under profile %d", param->name, (long long)conf_default(param, spec), spec);
}

static void test_both_profiles_have_the_defaults_of_the_field(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(known_parameters); i++) {
		const struct known_parameter *known = &known_parameters[i];
		const struct conf_param *param = conf_param_of_name(known->name);

		if (param == NULL)
			continue;
		expect_default_of_profile(param, VMA_SPEC_LATENCY, known->latency);
		expect_default_of_profile(param, VMA_SPEC_MULTI_RING_LATENCY, known->multi_ring_latency);
	}
}

static void test_each_value_is_shown_under_both_names(void **state)
{
	static struct vma_conf conf;
	char entry[128], twin_entry[128], twin[CONF_NAME_MAX], shown[256];

	(void)state;
	for (size_t i = 0; i < COUNT(known_parameters); i++) {
		const struct known_parameter *known = &known_parameters[i];
		const struct conf_param *param = conf_param_of_name(known->name);

		if (param == NULL)
			continue;
		banner_value_with_note(param, known->shown, shown, sizeof(shown));
		snprintf(entry, sizeof(entry), "%s=%s", known->name, known->given);
		conf_load_env_and_show_banner(&conf, ENV(entry), true, VMA_LOG_INFO);
		expect_in_banner(strcmp(known->name, "VMA_CQ_AIM_INTERVAL_MSEC") == 0 ? "CQ Adaptive Moderation"
		                                                                      : known->label,
		                 shown, known->name);
		assert_true(conf.given[param - conf_params]);

		assert_true(conf_make_twin_env_name(known->name, twin));
		snprintf(twin_entry, sizeof(twin_entry), "%s=%s", twin, known->given);
		conf_load_env_and_show_banner(&conf, ENV(twin_entry), true, VMA_LOG_INFO);
		expect_in_banner(strcmp(known->name, "VMA_CQ_AIM_INTERVAL_MSEC") == 0 ? "CQ Adaptive Moderation"
		                                                                      : known->label,
		                 shown, known->name);
		assert_true(conf.given[param - conf_params]);
		assert_int_equal(logged_text_count("is no parameter"), 0);
	}
}

/* Of a text that takes anything, only the length can be wrong. */
static void make_invalid_entry(const struct conf_param *param, const char *name, char *entry, size_t size)
{
	snprintf(entry, size, "%s=gar bage", name);
	if (param->type == CONF_TEXT && param->form->understands == NULL) {
		size_t len = strlen(entry);

		memset(entry + len, 'x', size - len);
		entry[size - 1] = '\0';
	}
}

static void test_each_bad_value_gives_one_warning_and_the_default(void **state)
{
	static struct vma_conf conf, unset;
	static char entry[VMA_CONF_TEXT_MAX + 256];
	char twin[CONF_NAME_MAX], start[128];

	(void)state;
	conf_load_env_and_show_banner(&unset, ENV(NULL), false, VMA_LOG_INFO);
	for (size_t i = 0; i < COUNT(known_parameters); i++) {
		const struct conf_param *param = conf_param_of_name(known_parameters[i].name);

		if (param == NULL)
			continue;
		assert_true(conf_make_twin_env_name(param->name, twin));
		for (int twins = 0; twins < 2; twins++) {
			const char *name = twins ? twin : param->name;

			make_invalid_entry(param, name, entry, sizeof(entry));
			conf_load_env_and_show_banner(&conf, ENV(entry), false, VMA_LOG_INFO);
			snprintf(start, sizeof(start), "VMA WARNING: %s='gar bage", name);
			if (strncmp(heard, start, strlen(start)) != 0 || logged_text_count("\n") != 1)
				fail_msg("%s: heard '%s'", name, heard);
			assert_memory_equal(&conf, &unset, sizeof(conf));
		}
	}
}

static void test_the_own_name_wins_over_the_twin(void **state)
{
	static struct vma_conf conf;

	(void)state;
	conf_load_env_and_show_banner(&conf, ENV("XLIO_RX_WRE=100", "VMA_RX_WRE=200"), false, VMA_LOG_INFO);
	assert_int_equal(conf.rx_wre, 200);
	conf_load_env_and_show_banner(&conf, ENV("XLIO_PROGRESS_ENGINE_WCE_MAX=100", "VMA_CQ_DRAIN_WCE_MAX=200"), false,
	                              VMA_LOG_INFO);
	assert_int_equal(conf.progress_engine_wce_max, 200);
	conf_load_env_and_show_banner(&conf, ENV("XLIO_CQ_DRAIN_WCE_MAX=100", "XLIO_SPEC=latency"), false,
	                              VMA_LOG_INFO);
	assert_int_equal(conf.progress_engine_wce_max, 100);
	assert_int_equal(conf.spec, VMA_SPEC_LATENCY);
	assert_string_equal(heard, "");
	conf_load_env_and_show_banner(&conf, ENV("XLIO_HUGETBL=1"), false, VMA_LOG_INFO);
	assert_int_equal(conf.mem_alloc_type, 2);
}

static void test_every_alias_means_its_parameter(void **state)
{
	static struct vma_conf conf;

	(void)state;
	for (size_t i = 0; i < COUNT(known_aliases); i++) {
		const struct conf_param *param = conf_param_of_name(known_aliases[i].means);
		int64_t value = 0;
		char entry[128];

		for (size_t k = 0; k < COUNT(known_parameters); k++) {
			const struct known_parameter *known = &known_parameters[k];

			if (strcmp(known->name, param->name) != 0)
				continue;
			/* VMA_HUGETBL alone has values of its own: 1 means 2. */
			snprintf(entry, sizeof(entry), "%s=%s", known_aliases[i].name,
			         strcmp(known_aliases[i].name, "VMA_HUGETBL") == 0 ? "1" : known->given);
			conf_load_env_and_show_banner(&conf, ENV(entry), false, VMA_LOG_INFO);
			if (param->type == CONF_TEXT) {
				assert_string_equal(conf_get_text(&conf, param), known->given);
				continue;
			}
			assert_int_equal(conf_param_parse_value(param, known->given, &value), 0);
			assert_int_equal(conf_get_number(&conf, param), value);
		}
	}
}

static void expect_nearest_param_name(const char *name, const char *wanted)
{
	const char *nearest = conf_find_similar_name(name, strlen(name));

	if (wanted == NULL ? nearest != NULL : nearest == NULL || strcmp(nearest, wanted) != 0)
		fail_msg("%s: nearest is %s", name, nearest != NULL ? nearest : "none");
}

static void test_a_misspelt_name_is_told_the_nearest(void **state)
{
	static struct vma_conf conf;
	char endless[4096];

	(void)state;
	for (size_t i = 0; i < conf_param_count; i++)
		assert_true(strlen(conf_params[i].name) < CONF_NAME_MAX - 1);
	expect_nearest_param_name("VMA_RXBUFS", "VMA_RX_BUFS");
	expect_nearest_param_name("VMA_TRACE_LEVEL", "VMA_TRACELEVEL");
	expect_nearest_param_name("VMA_SPCE", "VMA_SPEC");
	expect_nearest_param_name("XLIO_TCP_NODLEAY", "VMA_TCP_NODELAY");
	expect_nearest_param_name("VMA_NEIGH_UC_ARP_QUOTA", "VMA_NEIGH_UC_ARP_QUATA");
	expect_nearest_param_name("VMA_SOMETHING_ELSE", NULL);
	expect_nearest_param_name("VMA_", NULL);
	expect_nearest_param_name("VMA_X", NULL);
	memset(endless, 'E', sizeof(endless));
	endless[sizeof(endless) - 1] = '\0';
	memcpy(endless, "VMA_", 4);
	expect_nearest_param_name(endless, NULL);
	conf_load_env_and_show_banner(&conf, ENV("XLIO_RX_BUFFS=5"), false, VMA_LOG_INFO);
	assert_string_equal(heard, "VMA WARNING: XLIO_RX_BUFFS is set, and is no parameter: it has no effect (the "
	                           "nearest is VMA_RX_BUFS)\n");
}

static void test_a_legal_value_that_is_cut_is_told(void **state)
{
	static struct vma_conf conf;

	(void)state;
	conf_load_env_and_show_banner(&conf,
	                              ENV("VMA_CQ_POLL_BATCH_MAX=100", "XLIO_RX_PREFETCH_BYTES=4096", "VMA_MSS=87"),
	                              true, VMA_LOG_INFO);
	assert_int_equal(logged_text_count("VMA WARNING: VMA_CQ_POLL_BATCH_MAX=100 is cut: using 64\n"), 1);
	assert_int_equal(logged_text_count("VMA WARNING: XLIO_RX_PREFETCH_BYTES=4096 is cut: using 2048\n"), 1);
	assert_int_equal(logged_text_count("VMA WARNING: VMA_MSS=87 is cut: using 88\n"), 1);
	expect_in_banner("CQ Poll Batch (max)", "64", "VMA_CQ_POLL_BATCH_MAX");
	assert_int_equal(conf.rx_prefetch_bytes, 2048);
	assert_int_equal(conf.mss, 88);
	conf_load_env_and_show_banner(&conf, ENV("VMA_CQ_POLL_BATCH_MAX=64", "VMA_RX_PREFETCH_BYTES=2048", "VMA_MSS=0"),
	                              false, VMA_LOG_INFO);
	assert_string_equal(heard, "");
	assert_int_equal(conf.mss, 0);
	conf_load_env_and_show_banner(&conf, ENV("VMA_TIMER_RESOLUTION_MSEC=50", "VMA_TCP_TIMER_RESOLUTION_MSEC=20"),
	                              true, VMA_LOG_INFO);
	assert_int_equal(logged_text_count("VMA WARNING: VMA_TCP_TIMER_RESOLUTION_MSEC=20 is cut: using 50\n"), 1);
	expect_in_banner("TCP Timer Resolution (msec)", "50", "VMA_TCP_TIMER_RESOLUTION_MSEC");
	conf_load_env_and_show_banner(&conf,
	                              ENV("VMA_TIMER_RESOLUTION_MSEC=60000", "VMA_TCP_TIMER_RESOLUTION_MSEC=10000"),
	                              false, VMA_LOG_INFO);
	assert_int_equal(logged_text_count("VMA WARNING: VMA_TIMER_RESOLUTION_MSEC=60000 is cut: using 1000\n"), 1);
	assert_int_equal(logged_text_count("VMA WARNING: VMA_TCP_TIMER_RESOLUTION_MSEC=10000 is cut: using 1000\n"), 1);
	assert_int_equal(conf.timer_resolution_msec, 1000);
	conf_load_env_and_show_banner(&conf, ENV("VMA_TIMER_RESOLUTION_MSEC=200"), true, VMA_LOG_INFO);
	assert_int_equal(logged_text_count("VMA_TCP_TIMER_RESOLUTION_MSEC"),
	                 0); /* nobody has set it: it holds for nothing */
	conf_load_env_and_show_banner(&conf, ENV("VMA_TCP_TIMER_RESOLUTION_MSEC=5"), false, VMA_LOG_INFO);
	assert_int_equal(conf.tcp_timer_resolution_msec, 5);
}

static void test_each_class_says_why_a_value_has_no_effect(void **state)
{
	static struct vma_conf conf;

	(void)state;
	conf_load_env_and_show_banner(&conf, ENV("VMA_BF=0", "XLIO_FORK=0"), false, VMA_LOG_INFO);
	assert_int_equal(logged_text_count("VMA_BF is set, and has no effect here: Whether small packets"), 1);
	assert_int_equal(logged_text_count("XLIO_FORK is set, and has no effect here: Sockets always work in parent"),
	                 1);
	conf_load_env_and_show_banner(&conf, ENV(NULL), true, VMA_LOG_DETAILS);
	assert_int_equal(logged_text_count("BF (Blue Flame)                no meaning here            [VMA_BF]\n"), 1);
	assert_int_equal(logged_text_count("fork() support                 superseded                 [VMA_FORK]\n"),
	                 1);
}

/* Such a parameter has no default among its values: unset, the kernel's way holds, and each value changes it. */
static void test_what_holds_while_nothing_is_set_is_shown(void **state)
{
	static struct vma_conf conf;

	(void)state;
	conf_load_env_and_show_banner(&conf, ENV(NULL), true, VMA_LOG_DETAILS);
	assert_int_equal(
	        logged_text_count("TCP CC Algorithm               as the kernel              [VMA_TCP_CC_ALGO]\n"), 1);
	assert_int_equal(
	        logged_text_count(
	                "Timer Resolution (msec)        none (exact)               [VMA_TIMER_RESOLUTION_MSEC]\n"),
	        1);
	assert_int_equal(logged_text_count("Ring migration ratio RX        -1 (off)                   "
	                                   "[VMA_RING_MIGRATION_RATIO_RX]\n"),
	                 1);
	conf_load_env_and_show_banner(&conf, ENV("VMA_RING_MIGRATION_RATIO_RX=100"), true, VMA_LOG_INFO);
	expect_in_banner("Ring migration ratio RX", "100", "VMA_RING_MIGRATION_RATIO_RX");
	conf_load_env_and_show_banner(&conf, ENV("VMA_TCP_CC_ALGO=0", "VMA_TX_NONBLOCKED_EAGAINS=0"), true,
	                              VMA_LOG_INFO);
	expect_in_banner("TCP CC Algorithm", "0 (LWIP)", "VMA_TCP_CC_ALGO");
	expect_in_banner("Tx non-blocked eagains", "Disabled", "VMA_TX_NONBLOCKED_EAGAINS");
}

static const struct CMUnitTest tests[] = {
        /* Each line is said once in a process: this case hears it. */
        cmocka_unit_test(test_each_class_says_why_a_value_has_no_effect),
        cmocka_unit_test(test_all_names_of_the_field_are_known),
        cmocka_unit_test(test_defaults_are_those_of_the_field),
        cmocka_unit_test(test_both_profiles_have_the_defaults_of_the_field),
        cmocka_unit_test(test_each_value_is_shown_under_both_names),
        cmocka_unit_test(test_each_bad_value_gives_one_warning_and_the_default),
        cmocka_unit_test(test_the_own_name_wins_over_the_twin),
        cmocka_unit_test(test_every_alias_means_its_parameter),
        cmocka_unit_test(test_a_misspelt_name_is_told_the_nearest),
        cmocka_unit_test(test_a_legal_value_that_is_cut_is_told),
        cmocka_unit_test(test_what_holds_while_nothing_is_set_is_shown),
};

VMA_TEST_MAIN(tests)
