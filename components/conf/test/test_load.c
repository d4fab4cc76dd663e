/* From the environment to the fields. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vma/test.h>

#include "../conf_priv.h"

static struct vma_conf conf;
static char heard[16384]; /* the warnings of the last load */

#define ENV(...) ((char *const[]){__VA_ARGS__, NULL})

/* Every text is a problem of its own to vma_log_once, which never forgets: each case uses values of its own. */
static void conf_load_env_as(char *const *env, bool secure)
{
	int fd = memfd_create("log", 0);
	char path[32];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_INFO, .file = path});
	memset(&conf, 0x5a, sizeof(conf));
	conf_load_all_params_from_env(&conf, env, secure, false);
	n = pread(fd, heard, sizeof(heard) - 1, 0);
	heard[n > 0 ? n : 0] = '\0';
	vma_log_fini();
	vma_log_set_level(VMA_LOG_INFO);
	close(fd);
}

static unsigned logged_lines_count(void)
{
	unsigned lines = 0;

	for (const char *c = heard; *c != '\0'; c++)
		lines += *c == '\n';
	return lines;
}

static void load_env(char *const *env)
{
	conf_load_env_as(env, false);
}

static void test_empty_environment_gives_the_defaults_in_silence(void **state)
{
	(void)state;
	load_env(ENV(NULL));
	assert_string_equal(heard, "");
	assert_int_equal(conf.spec, VMA_SPEC_NONE);
	assert_int_equal(conf.tracelevel, VMA_LOG_INFO);
	assert_int_equal(conf.log_details, 0);
	assert_true(conf.log_colors);
	assert_string_equal(conf.log_file, "");
	assert_string_equal(conf.stats_shmem_dir, "/tmp/");
	assert_int_equal(conf.ring_allocation_logic_tx, 0);
	assert_int_equal(conf.ring_limit_per_interface, 0);
	assert_int_equal(conf.rx_bufs, 200000);
	assert_int_equal(conf.tx_bufs, 200000);
	assert_int_equal(conf.rx_wre, 16000);
	assert_int_equal(conf.tx_wre, 2048);
	assert_int_equal(conf.rx_wre_batching, 64);
	assert_int_equal(conf.rx_prefetch_bytes, 256);
	assert_true(conf.rx_sw_csum);
	assert_true(conf.cq_moderation_enable);
	assert_int_equal(conf.cq_moderation_count, 48);
	assert_int_equal(conf.cq_moderation_period_usec, 50);
	assert_int_equal(conf.cq_aim_max_count, 560);
	assert_int_equal(conf.cq_aim_max_period_usec, 250);
	assert_int_equal(conf.cq_aim_interval_msec, 250);
	assert_int_equal(conf.cq_aim_interrupts_rate_per_sec, 5000);
	assert_int_equal(conf.cq_poll_batch_max, 16);
	assert_true(conf.cq_keep_qp_full);
	assert_int_equal(conf.qp_compensation_level, 256);
	assert_int_equal(conf.thread_mode, 1);
	assert_int_equal(conf.buffer_batching_mode, 1);
	assert_int_equal(conf.mem_alloc_type, 1);
	assert_int_equal(conf.nic, VMA_CONF_NIC_AUTO);
	assert_int_equal(conf.stats_fd_num, 100);
	assert_int_equal(conf.rx_bytes_min, 65536);
	assert_int_equal(conf.rx_poll, 100000);
	assert_int_equal(conf.rx_poll_init, 0);
	assert_int_equal(conf.rx_udp_poll_os_ratio, 100);
	assert_false(conf.rx_poll_yield);
	assert_int_equal(conf.select_poll, 100000);
	assert_false(conf.select_poll_os_force);
	assert_int_equal(conf.select_poll_os_ratio, 10);
	assert_int_equal(conf.select_skip_os, 4);
	assert_int_equal(conf.progress_engine_interval, 10);
	assert_int_equal(conf.progress_engine_wce_max, 10000);
	assert_true(conf.offloaded_sockets);
	assert_true(conf.tx_mc_loopback);
	assert_string_equal(conf.internal_thread_affinity, "-1");
	assert_int_equal(conf.wait_after_join_msec, 0);
	assert_int_equal(conf.exception_handling, -1);
	load_env(NULL);
	assert_int_equal(conf.rx_wre, 16000);
}

static void test_values_are_read_decimal_hexadecimal_or_as_words(void **state)
{
	(void)state;
	load_env(ENV("VMA_RX_WRE=1024", "VMA_TX_WRE=0x200", "VMA_RX_BUFS=0X1Ff", "VMA_RX_SW_CSUM=0",
	             "VMA_RING_ALLOCATION_LOGIC_RX=31", "VMA_RING_MIGRATION_RATIO_TX=-1", "VMA_NIC=XDP",
	             "VMA_TRACELEVEL=2", "VMA_MEM_ALLOC_TYPE=anon", "VMA_THREAD_MODE=3", "VMA_CQ_POLL_BATCH_MAX=0032",
	             "VMA_LOG_FILE=/tmp/x.%d", "VMA_STATS_SHMEM_DIR=", "OTHER=1", "VMA_RX_WRE_BATCHINGX=7", "VMA_QP",
	             ""));
	assert_string_equal(heard,
	                    "VMA WARNING: VMA_RX_WRE_BATCHINGX is set, and is no parameter: it has no effect (the "
	                    "nearest is VMA_RX_WRE_BATCHING)\n");
	assert_int_equal(conf.rx_wre, 1024);
	assert_int_equal(conf.tx_wre, 512);
	assert_int_equal(conf.rx_bufs, 511);
	assert_false(conf.rx_sw_csum);
	assert_int_equal(conf.ring_allocation_logic_rx, 31);
	assert_int_equal(conf.ring_allocation_logic_tx, 0);
	assert_int_equal(conf.nic, VMA_CONF_NIC_XDP);
	assert_int_equal(conf.tracelevel, VMA_LOG_WARN);
	assert_int_equal(conf.mem_alloc_type, 0);
	assert_int_equal(conf.thread_mode, 3);
	assert_int_equal(conf.cq_poll_batch_max, 32);
	assert_string_equal(conf.log_file, "/tmp/x.%d");
	assert_string_equal(conf.stats_shmem_dir, "");
	assert_int_equal(conf.rx_wre_batching, 64);
}

static void test_profile_has_defaults_of_polling_and_of_a_text(void **state)
{
	(void)state;
	load_env(ENV("VMA_SPEC=latency"));
	assert_int_equal(conf.rx_poll, -1);
	assert_int_equal(conf.select_poll, -1);
	assert_int_equal(conf.progress_engine_interval, 100);
	assert_string_equal(conf.internal_thread_affinity, "0");
	load_env(ENV("VMA_SPEC=multi_ring_latency", "VMA_RX_POLL=7"));
	assert_int_equal(conf.rx_poll, 7);
	assert_int_equal(conf.select_poll_os_ratio, 0);
	assert_int_equal(conf.select_skip_os, 0);
	assert_string_equal(conf.internal_thread_affinity, "-1");
	assert_string_equal(heard, "");
}

static void test_forced_look_at_the_os_changes_two_defaults(void **state)
{
	(void)state;
	load_env(ENV("VMA_SELECT_POLL_OS_FORCE=1"));
	assert_int_equal(conf.select_poll_os_ratio, 1);
	assert_int_equal(conf.select_skip_os, 1);
	load_env(ENV("VMA_SELECT_POLL_OS_FORCE=1", "VMA_SELECT_SKIP_OS=9", "VMA_SELECT_POLL_OS_RATIO=0"));
	assert_int_equal(conf.select_poll_os_ratio, 0);
	assert_int_equal(conf.select_skip_os, 9);
}

static void test_old_name_counts_where_the_new_one_is_not_set(void **state)
{
	(void)state;
	load_env(ENV("VMA_CQ_DRAIN_WCE_MAX=5"));
	assert_int_equal(conf.progress_engine_wce_max, 5);
	load_env(ENV("VMA_CQ_DRAIN_WCE_MAX=5", "VMA_PROGRESS_ENGINE_WCE_MAX=6"));
	assert_int_equal(conf.progress_engine_wce_max, 6);
	load_env(ENV("VMA_CQ_DRAIN_WCE_MAX=-5"));
	assert_int_equal(conf.progress_engine_wce_max, 10000);
	assert_non_null(strstr(heard, "VMA_CQ_DRAIN_WCE_MAX='-5' is out of range"));
}

static void test_processors_are_a_mask_or_a_list(void **state)
{
	static const char *const bad[] = {"",    "-2", "0x",   "0x0", "0xg", "1,",   ",1",
	                                  "3-1", "1-", "1024", "1 ",  "a",   "1-2-3"};
	cpu_set_t cpus;

	(void)state;
	assert_int_equal(vma_conf_parse_cpus("-1", &cpus), 0);
	assert_int_equal(vma_conf_parse_cpus("0x103", &cpus), 3);
	assert_true(CPU_ISSET(0, &cpus) && CPU_ISSET(1, &cpus) && CPU_ISSET(8, &cpus));
	assert_int_equal(vma_conf_parse_cpus("0,4-6,1023", &cpus), 5);
	assert_true(CPU_ISSET(0, &cpus) && CPU_ISSET(4, &cpus) && CPU_ISSET(6, &cpus) && CPU_ISSET(1023, &cpus));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(vma_conf_parse_cpus(bad[i], &cpus), -EINVAL);
	load_env(ENV("VMA_INTERNAL_THREAD_AFFINITY=1,"));
	assert_string_equal(conf.internal_thread_affinity, "-1");
	assert_non_null(strstr(heard, "VMA_INTERNAL_THREAD_AFFINITY='1,' is not understood; using '-1'"));
	load_env(ENV("VMA_INTERNAL_THREAD_AFFINITY=0,1"));
	assert_string_equal(conf.internal_thread_affinity, "0,1");
}

static void test_texts_do_not_depend_on_the_environment_living_on(void **state)
{
	char entry[] = "VMA_LOG_FILE=/tmp/log";

	(void)state;
	load_env(ENV(entry));
	memset(entry, 'x', sizeof(entry) - 1);
	assert_string_equal(conf.log_file, "/tmp/log");
	assert_true(conf.log_file >= conf.texts && conf.log_file < conf.texts + sizeof(conf.texts));
}

static void test_first_of_two_settings_counts_as_with_getenv(void **state)
{
	(void)state;
	load_env(ENV("VMA_RX_WRE=100", "VMA_RX_WRE=200"));
	assert_int_equal(conf.rx_wre, 100);
}

static void test_what_is_set_can_be_told_from_a_default(void **state)
{
	(void)state;
	load_env(ENV("VMA_TCP_CC_ALGO=0", "VMA_RX_WRE=none", "VMA_CQ_DRAIN_WCE_MAX=17", "VMA_LOG_FILE=/tmp/log",
	             "VMA_HUGETBL=1"));
	assert_true(conf.given[VMA_CONF_AT_tcp_cc_algo]);
	assert_true(conf.given[VMA_CONF_AT_progress_engine_wce_max]);
	assert_true(conf.given[VMA_CONF_AT_log_file]);
	assert_true(conf.given[VMA_CONF_AT_mem_alloc_type]);
	assert_false(conf.given[VMA_CONF_AT_rx_wre]);
	assert_false(conf.given[VMA_CONF_AT_tx_wre]);
	load_env(ENV(NULL));
	for (unsigned i = 0; i < VMA_CONF_COUNT; i++)
		assert_false(conf.given[i]);
	load_env(ENV("VMA_TCP_CC_ALGO=3"));
	assert_int_equal(conf.tcp_cc_algo, 3);
}

static void test_bad_value_is_warned_of_once_with_name_value_and_replacement(void **state)
{
	static const struct {
		const char *entry, *warning;
	} cases[] = {
	        {"VMA_RX_WRE=many", "VMA_RX_WRE='many' is not understood (it takes 16..1048576); using 16000"},
	        {"VMA_RX_WRE=", "VMA_RX_WRE='' is not understood (it takes 16..1048576); using 16000"},
	        {"VMA_RX_WRE=12k", "VMA_RX_WRE='12k' is not understood (it takes 16..1048576); using 16000"},
	        {"VMA_RX_WRE= 64", "VMA_RX_WRE=' 64' is not understood"},
	        {"VMA_RX_WRE=64 ", "VMA_RX_WRE='64 ' is not understood"},
	        {"VMA_RX_WRE=+64", "VMA_RX_WRE='+64' is not understood"},
	        {"VMA_RX_WRE=0x", "VMA_RX_WRE='0x' is not understood"},
	        {"VMA_RX_WRE=-", "VMA_RX_WRE='-' is not understood"},
	        {"VMA_RX_WRE=--64", "VMA_RX_WRE='--64' is not understood"},
	        {"VMA_RX_WRE=0xfg", "VMA_RX_WRE='0xfg' is not understood"},
	        {"VMA_RX_WRE=64.0", "VMA_RX_WRE='64.0' is not understood"},
	        {"VMA_RX_WRE=1e3", "VMA_RX_WRE='1e3' is not understood"},
	        {"VMA_RX_WRE=ff", "VMA_RX_WRE='ff' is not understood"},
	        {"VMA_RX_WRE=15", "VMA_RX_WRE='15' is out of range (it takes 16..1048576); using 16000"},
	        {"VMA_RX_WRE=1048577", "VMA_RX_WRE='1048577' is out of range"},
	        {"VMA_RX_WRE=-64", "VMA_RX_WRE='-64' is out of range"},
	        {"VMA_RX_WRE=9223372036854775808", "VMA_RX_WRE='9223372036854775808' is out of range"},
	        {"VMA_RX_WRE=18446744073709551680", "VMA_RX_WRE='18446744073709551680' is out of range"},
	        {"VMA_RX_WRE=0x10000000000000040", "VMA_RX_WRE='0x10000000000000040' is out of range"},
	        {"VMA_RX_WRE=64\nVMA ERROR: forged", "VMA_RX_WRE='64?VMA ERROR: forged' is not understood"},
	        {"VMA_RX_WRE=\xff\xfe", "VMA_RX_WRE='\xff\xfe' is not understood"},
	        {"VMA_RING_ALLOCATION_LOGIC_TX=2",
	         "VMA_RING_ALLOCATION_LOGIC_TX='2' is not understood (it takes 0, 1, 10, "
	         "20, 30, 31); using 0 (Ring per interface)"},
	        {"VMA_RX_SW_CSUM=2", "VMA_RX_SW_CSUM='2' is not understood (it takes 0, 1); using Enabled"},
	        {"VMA_RX_SW_CSUM=yes", "VMA_RX_SW_CSUM='yes' is not understood (it takes 0, 1); using Enabled"},
	        {"VMA_TRACELEVEL=7", "VMA_TRACELEVEL='7' is not understood (it takes none, panic 0"},
	        {"VMA_TRACELEVEL=", "VMA_TRACELEVEL='' is not understood"},
	        {"VMA_SPEC=fast",
	         "VMA_SPEC='fast' is not understood (it takes none, latency, multi_ring_latency); using none"},
	        {"VMA_SPEC=1", "VMA_SPEC='1' is not understood"},
	        {"VMA_NIC=ena", "VMA_NIC='ena' is not understood (it takes auto, verbs, xdp, none); using auto"},
	        {"VMA_HUGETBL=2", "VMA_HUGETBL='2' is not understood (it takes 0, 1); using 1 (Contig Pages)"},
	        {"VMA_LOG_DETAILS=4", "VMA_LOG_DETAILS='4' is out of range (it takes 0..3); using 0"},
	};
	struct vma_conf defaults;

	(void)state;
	load_env(ENV(NULL));
	memcpy(&defaults, &conf, sizeof(conf));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char wanted[256];

		load_env(ENV((char *)cases[i].entry));
		snprintf(wanted, sizeof(wanted), "VMA WARNING: %s", cases[i].warning);
		if (strncmp(heard, wanted, strlen(wanted)) != 0)
			fail_msg("%s: heard '%s'", cases[i].entry, heard);
		assert_ptr_equal(strchr(heard, '\n'), heard + strlen(heard) - 1); /* one line */
		assert_memory_equal(&conf, &defaults, sizeof(conf));
	}
}

static void test_profile_changes_defaults_and_what_is_set_wins(void **state)
{
	(void)state;
	load_env(ENV("VMA_RX_WRE=512", "VMA_CQ_KEEP_QP_FULL=1", "VMA_SPEC=latency"));
	assert_string_equal(heard, "");
	assert_int_equal(conf.spec, VMA_SPEC_LATENCY);
	assert_int_equal(conf.rx_wre, 512);
	assert_true(conf.cq_keep_qp_full);
	assert_int_equal(conf.tx_wre, 256);
	assert_int_equal(conf.tx_wre_batching, 4);
	assert_int_equal(conf.rx_wre_batching, 4);
	assert_false(conf.cq_moderation_enable);
	assert_int_equal(conf.cq_aim_max_count, 128);
	assert_int_equal(conf.cq_aim_interval_msec, 0);
	assert_int_equal(conf.thread_mode, 0);
	assert_int_equal(conf.mem_alloc_type, 2);
	assert_int_equal(conf.ring_allocation_logic_tx, 0);

	load_env(ENV("VMA_SPEC=Multi_Ring_Latency", "VMA_RING_ALLOCATION_LOGIC_RX=10"));
	assert_int_equal(conf.ring_allocation_logic_tx, 20);
	assert_int_equal(conf.ring_allocation_logic_rx, 10);
	assert_int_equal(conf.mem_alloc_type, 2);
	assert_int_equal(conf.rx_wre, 16000);
	assert_true(conf.cq_moderation_enable);
}

static void test_bad_value_under_a_profile_falls_back_to_the_profiles_default(void **state)
{
	(void)state;
	load_env(ENV("VMA_SPEC=latency", "VMA_RX_WRE=quite-many"));
	assert_string_equal(
	        heard, "VMA WARNING: VMA_RX_WRE='quite-many' is not understood (it takes 16..1048576); using 256\n");
	assert_int_equal(conf.rx_wre, 256);
}

static void test_old_name_of_huge_pages_is_understood(void **state)
{
	(void)state;
	load_env(ENV("VMA_HUGETBL=1"));
	assert_int_equal(conf.mem_alloc_type, 2);
	load_env(ENV("VMA_HUGETBL=0"));
	assert_int_equal(conf.mem_alloc_type, 1);
	load_env(ENV("VMA_HUGETBL=1", "VMA_MEM_ALLOC_TYPE=0"));
	assert_int_equal(conf.mem_alloc_type, 0);
	assert_string_equal(heard, "");
}

static void test_details_follow_the_level_unless_set(void **state)
{
	struct vma_log_attr attr;

	(void)state;
	load_env(ENV("VMA_TRACELEVEL=details"));
	assert_int_equal(conf.log_details, 0);
	load_env(ENV("VMA_TRACELEVEL=4"));
	assert_int_equal(conf.tracelevel, VMA_LOG_DEBUG);
	assert_int_equal(conf.log_details, 2);
	load_env(ENV("VMA_TRACELEVEL=func_all", "VMA_LOG_DETAILS=0", "VMA_LOG_COLORS=0", "VMA_LOG_FILE=f"));
	vma_conf_log_attr(&conf, &attr);
	assert_int_equal(attr.level, VMA_LOG_FINER);
	assert_int_equal(attr.details, 0);
	assert_false(attr.colors);
	assert_string_equal(attr.file, "f");
}

static void test_raised_privileges_ignore_variables_that_name_files(void **state)
{
	(void)state;
	conf_load_env_as(ENV("VMA_LOG_FILE=/etc/shadow", "VMA_STATS_SHMEM_DIR=/root", "VMA_RX_WRE=99"), true);
	assert_string_equal(conf.log_file, "");
	assert_string_equal(conf.stats_shmem_dir, "/tmp/");
	assert_int_equal(conf.rx_wre, 99);
	assert_string_equal(heard,
	                    "VMA WARNING: VMA_LOG_FILE='/etc/shadow' is ignored in a process with raised privileges; "
	                    "using ''\n"
	                    "VMA WARNING: VMA_STATS_SHMEM_DIR='/root' is ignored in a process with raised privileges; "
	                    "using '/tmp/'\n");
}

static void test_text_that_does_not_fit_is_warned_of(void **state)
{
	static char fits[VMA_CONF_TEXT_MAX + 32] = "VMA_LOG_FILE=",
	                                     not [VMA_CONF_TEXT_MAX + 32] = "VMA_STATS_SHMEM_DIR=";

	(void)state;
	memset(fits + strlen(fits), 'a', VMA_CONF_TEXT_MAX - 2);
	load_env(ENV(fits, "VMA_STATS_SHMEM_DIR="));
	assert_string_equal(heard, "");
	assert_int_equal(strlen(conf.log_file), VMA_CONF_TEXT_MAX - 2);
	assert_string_equal(conf.stats_shmem_dir, "");
	memset(not +strlen(not ), 'b', VMA_CONF_TEXT_MAX);
	load_env(ENV(not ));
	assert_string_equal(conf.stats_shmem_dir, "/tmp/");
	assert_non_null(strstr(heard, "VMA WARNING: VMA_STATS_SHMEM_DIR='bbbb"));
	assert_non_null(strstr(heard, "b'... is too long; using '/tmp/'\n"));
}

static void test_start_sends_the_warnings_where_the_log_file_says(void **state)
{
	int fd = memfd_create("log", 0);
	char entry[64];
	ssize_t n;

	(void)state;
	snprintf(entry, sizeof(entry), "VMA_LOG_FILE=/proc/self/fd/%d", fd);
	assert_int_equal(vma_conf_load_and_init_log(&conf, ENV("VMA_TX_WRE=abc", entry)), 0);
	n = pread(fd, heard, sizeof(heard) - 1, 0);
	heard[n > 0 ? n : 0] = '\0';
	assert_string_equal(heard,
	                    "VMA WARNING: VMA_TX_WRE='abc' is not understood (it takes 16..1048576); using 2048\n");
	vma_log_fini();
	close(fd);
}

static void test_every_default_is_a_value_that_could_be_set(void **state)
{
	(void)state;
	for (size_t i = 0; i < conf_param_count; i++) {
		const struct conf_param *param = &conf_params[i];

		for (int spec = VMA_SPEC_NONE; spec <= VMA_SPEC_MULTI_RING_LATENCY && param->type != CONF_TEXT;
		     spec++) {
			int64_t wanted = conf_default(param, spec), value;
			char text[32];

			snprintf(text, sizeof(text), "%lld", (long long)wanted);
			if (param->form->log_level)
				snprintf(text, sizeof(text), "%s", vma_log_level_name((enum vma_log_level)wanted));
			else if (param->form->words_only)
				snprintf(text, sizeof(text), "%s", param->form->choices[wanted].word);
			assert_int_equal(conf_param_parse_value(param, text, &value), 0);
			assert_int_equal(value, wanted);
		}
	}
}

static void test_no_name_or_field_is_listed_twice(void **state)
{
	(void)state;
	for (size_t i = 0; i < conf_param_count; i++)
		for (size_t k = 0; k < i; k++) {
			assert_string_not_equal(conf_params[i].name, conf_params[k].name);
			assert_true(conf_params[i].offset != conf_params[k].offset);
		}
}

static void test_what_nothing_obeys_is_said_once_when_it_is_set(void **state)
{
	(void)state;
	load_env(ENV("VMA_BF=0", "VMA_FORK=1"));
	assert_non_null(strstr(heard, "VMA_BF is set, and has no effect here: Whether small packets"));
	assert_non_null(strstr(heard, "VMA_FORK is set, and has no effect here"));
	load_env(ENV("VMA_BF=0"));
	assert_null(strstr(heard, "VMA_BF"));
}

static void test_a_name_that_is_no_parameter_is_warned_of_once(void **state)
{
	char longest[200] = "VMA_LONG";

	(void)state;
	memset(longest + 8, 'L', sizeof(longest) - 8);
	memcpy(longest + sizeof(longest) - 3, "=1", 3);
	load_env(ENV("VMA_RXBUFS=5", "VMA_=1", "VMA=1", "VMAD_X=1", "XVMA_Y=1", "VMA_SPEC", "vma_rx_wre=1", longest));
	assert_non_null(strstr(
	        heard, "VMA_RXBUFS is set, and is no parameter: it has no effect (the nearest is VMA_RX_BUFS)\n"));
	assert_non_null(strstr(heard, "VMA_ is set, and is no parameter: it has no effect\n"));
	assert_non_null(strstr(heard, "LLL... is set, and is no parameter: it has no effect\n"));
	assert_int_equal(logged_lines_count(), 3);
	load_env(ENV("VMA_RXBUFS=7"));
	assert_string_equal(heard, "");
}

static void test_every_name_that_means_something_is_known(void **state)
{
	(void)state;
	load_env(ENV("VMA_HUGETBL=0", "VMA_CQ_DRAIN_WCE_MAX=10000"));
	assert_string_equal(heard, "");
	for (size_t i = 0; i < conf_param_count; i++)
		assert_true(conf_has_param_or_alias_name(conf_params[i].name, strlen(conf_params[i].name)));
	assert_false(conf_has_param_or_alias_name("VMA_SPECX", 9));
	assert_false(conf_has_param_or_alias_name("VMA_SPE", 7));
	assert_true(conf_has_param_or_alias_name("VMA_SPEC=latency", 8));
}

static void test_file_of_rules_has_two_names_and_the_first_wins(void **state)
{
	(void)state;
	load_env(ENV(NULL));
	assert_string_equal(conf.config_file, "/etc/libvma.conf");
	assert_string_equal(conf.application_id, "VMA_DEFAULT_APPLICATION_ID");
	assert_false(conf.given[VMA_CONF_AT_config_file]);
	load_env(ENV("XLIO_CONFIG_FILE=/x.conf", "XLIO_APPLICATION_ID=X1"));
	assert_string_equal(conf.config_file, "/x.conf");
	assert_string_equal(conf.application_id, "X1");
	assert_true(conf.given[VMA_CONF_AT_config_file]);
	load_env(ENV("XLIO_CONFIG_FILE=/x.conf", "VMA_CONFIG_FILE=/v.conf", "VMA_APPLICATION_ID=B1",
	             "XLIO_APPLICATION_ID=X1"));
	assert_string_equal(conf.config_file, "/v.conf");
	assert_string_equal(conf.application_id, "B1");
	assert_string_equal(heard, "");
}

static void test_file_of_rules_is_ignored_with_raised_privileges_under_either_name(void **state)
{
	(void)state;
	conf_load_env_as(ENV("VMA_CONFIG_FILE=/secure.conf"), true);
	assert_string_equal(conf.config_file, "/etc/libvma.conf");
	assert_false(conf.given[VMA_CONF_AT_config_file]);
	assert_string_equal(heard, "VMA WARNING: VMA_CONFIG_FILE='/secure.conf' is ignored in a process with raised "
	                           "privileges; using '/etc/libvma.conf'\n");
	conf_load_env_as(ENV("XLIO_CONFIG_FILE=/secure.conf"), true);
	assert_string_equal(conf.config_file, "/etc/libvma.conf");
	assert_string_equal(heard, "VMA WARNING: XLIO_CONFIG_FILE='/secure.conf' is ignored in a process with raised "
	                           "privileges; using '/etc/libvma.conf'\n");
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty_environment_gives_the_defaults_in_silence),
        cmocka_unit_test(test_values_are_read_decimal_hexadecimal_or_as_words),
        cmocka_unit_test(test_profile_has_defaults_of_polling_and_of_a_text),
        cmocka_unit_test(test_forced_look_at_the_os_changes_two_defaults),
        cmocka_unit_test(test_old_name_counts_where_the_new_one_is_not_set),
        cmocka_unit_test(test_processors_are_a_mask_or_a_list),
        cmocka_unit_test(test_texts_do_not_depend_on_the_environment_living_on),
        cmocka_unit_test(test_first_of_two_settings_counts_as_with_getenv),
        cmocka_unit_test(test_what_is_set_can_be_told_from_a_default),
        cmocka_unit_test(test_bad_value_is_warned_of_once_with_name_value_and_replacement),
        cmocka_unit_test(test_profile_changes_defaults_and_what_is_set_wins),
        cmocka_unit_test(test_bad_value_under_a_profile_falls_back_to_the_profiles_default),
        cmocka_unit_test(test_old_name_of_huge_pages_is_understood),
        cmocka_unit_test(test_details_follow_the_level_unless_set),
        cmocka_unit_test(test_raised_privileges_ignore_variables_that_name_files),
        cmocka_unit_test(test_text_that_does_not_fit_is_warned_of),
        cmocka_unit_test(test_start_sends_the_warnings_where_the_log_file_says),
        cmocka_unit_test(test_every_default_is_a_value_that_could_be_set),
        cmocka_unit_test(test_no_name_or_field_is_listed_twice),
        cmocka_unit_test(test_what_nothing_obeys_is_said_once_when_it_is_set),
        cmocka_unit_test(test_a_name_that_is_no_parameter_is_warned_of_once),
        cmocka_unit_test(test_every_name_that_means_something_is_known),
        cmocka_unit_test(test_file_of_rules_has_two_names_and_the_first_wins),
        cmocka_unit_test(test_file_of_rules_is_ignored_with_raised_privileges_under_either_name),
};

VMA_TEST_MAIN(tests)
