/* Every parameter of the packet path reaches the attr that obeys it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vma/conf.h>
#include <vma/ring.h>
#include <vma/test.h>

static struct vma_conf conf;

static void conf_load(char *const *env)
{
	vma_conf_load(&conf, env);
}

static void test_defaults_are_those_of_the_field(void **state)
{
	char *env[] = {NULL};
	struct vma_ring_attr ring = {0};

	(void)state;
	conf_load(env);
	vma_ring_conf_to_ring_attr(&conf, &ring);
	assert_int_equal(ring.rx_wre, 16000);
	assert_int_equal(ring.tx_wre, 2048);
	assert_int_equal(ring.tx_wre_batching, 64);
	assert_int_equal(ring.thread_mode, VMA_THREAD_SPIN);
	assert_true(ring.rx_sw_csum);
	assert_int_equal(ring.cq.poll_batch_max, 16);
	assert_true(ring.cq.keep_qp_full);
	assert_false(ring.cq.moderation_enable);
	assert_int_equal(ring.cq.aim.interrupts_per_sec, 5000);
}

static enum vma_thread_mode thread_mode_of_conf(char *thread_mode, char *multilock)
{
	char *env[] = {thread_mode, multilock, NULL};
	struct vma_ring_attr ring = {0};

	conf_load(env);
	vma_ring_conf_to_ring_attr(&conf, &ring);
	return ring.thread_mode;
}

/* test_reentry.c and hammer.h run rings in each of these modes. */
static void test_kind_of_the_locks_decides_how_a_control_call_waits_that_would_spin(void **state)
{
	(void)state;
	assert_int_equal(thread_mode_of_conf("VMA_MULTILOCK=0", NULL), VMA_THREAD_SPIN);
	assert_int_equal(thread_mode_of_conf("VMA_MULTILOCK=1", NULL), VMA_THREAD_MUTEX);
	assert_int_equal(thread_mode_of_conf("VMA_THREAD_MODE=1", "VMA_MULTILOCK=1"), VMA_THREAD_MUTEX);
	assert_int_equal(thread_mode_of_conf("VMA_THREAD_MODE=2", "VMA_MULTILOCK=0"), VMA_THREAD_MUTEX);
	assert_int_equal(thread_mode_of_conf("VMA_THREAD_MODE=3", "VMA_MULTILOCK=1"), VMA_THREAD_YIELD);
	assert_int_equal(thread_mode_of_conf("VMA_THREAD_MODE=0", "VMA_MULTILOCK=1"), VMA_THREAD_SINGLE);
}

/* Whether it moderates, count and period of a packet after silence, and the interval of adaptation. */
static void expect_cq_moderation_from_env(const char *first, const char *second, bool enable, uint32_t count,
                                          uint32_t period, uint32_t interval)
{
	char *env[] = {(char *)first, (char *)second, NULL};
	struct vma_ring_attr ring = {0};

	conf_load(env);
	vma_ring_conf_to_ring_attr(&conf, &ring);
	if (ring.cq.moderation_enable != enable)
		fail_msg("%s %s: moderates %d", first, second != NULL ? second : "", !enable);
	assert_int_equal(ring.cq.aim.base.count, count);
	assert_int_equal(ring.cq.aim.base.period_usec, period);
	assert_int_equal(ring.cq.aim.interval_msec, interval);
}

static void test_moderation_begins_with_what_is_set(void **state)
{
	(void)state;
	expect_cq_moderation_from_env("VMA_RX_POLL=0", NULL, false, 0, 0, 0);
	expect_cq_moderation_from_env("VMA_CQ_MODERATION_ENABLE=1", NULL, true, 0, 0, 250);
	expect_cq_moderation_from_env("VMA_CQ_AIM_INTERRUPTS_RATE_PER_SEC=5000", NULL, true, 0, 0, 250);
	expect_cq_moderation_from_env("VMA_CQ_AIM_INTERVAL_MSEC=100", NULL, true, 0, 0, 100);
	expect_cq_moderation_from_env("VMA_CQ_AIM_MAX_COUNT=7", "VMA_CQ_AIM_INTERVAL_MSEC=0", false, 0, 0, 0);
	expect_cq_moderation_from_env("VMA_CQ_MODERATION_COUNT=10", NULL, true, 10, 50, 0);
	expect_cq_moderation_from_env("VMA_CQ_MODERATION_PERIOD_USEC=5000", NULL, true, 48, 5000, 0);
	expect_cq_moderation_from_env("VMA_CQ_MODERATION_PERIOD_USEC=5000", "VMA_CQ_MODERATION_ENABLE=0", false, 48,
	                              5000, 250);
	expect_cq_moderation_from_env("VMA_CQ_MODERATION_COUNT=10", "VMA_SPEC=latency", false, 10, 50, 0);
}

static void test_what_is_set_arrives(void **state)
{
	char *env[] = {"VMA_RX_WRE=512",
	               "VMA_TX_WRE=64",
	               "VMA_TX_WRE_BATCHING=7",
	               "VMA_THREAD_MODE=3",
	               "VMA_RX_SW_CSUM=0",
	               "VMA_CQ_POLL_BATCH_MAX=5",
	               "VMA_CQ_KEEP_QP_FULL=0",
	               "VMA_QP_COMPENSATION_LEVEL=33",
	               "VMA_RX_WRE_BATCHING=9",
	               "VMA_RX_PREFETCH_BYTES=128",
	               "VMA_CQ_MODERATION_ENABLE=0",
	               "VMA_CQ_MODERATION_COUNT=11",
	               "VMA_CQ_MODERATION_PERIOD_USEC=12",
	               "VMA_CQ_AIM_MAX_COUNT=13",
	               "VMA_CQ_AIM_MAX_PERIOD_USEC=14",
	               "VMA_CQ_AIM_INTERVAL_MSEC=15",
	               "VMA_CQ_AIM_INTERRUPTS_RATE_PER_SEC=16",
	               NULL};
	struct vma_ring_attr ring = {.name = "kept"};

	(void)state;
	conf_load(env);
	vma_ring_conf_to_ring_attr(&conf, &ring);
	assert_int_equal(ring.rx_wre, 512);
	assert_int_equal(ring.tx_wre, 64);
	assert_int_equal(ring.tx_wre_batching, 7);
	assert_int_equal(ring.thread_mode, VMA_THREAD_YIELD);
	assert_false(ring.rx_sw_csum);
	assert_int_equal(ring.cq.poll_batch_max, 5);
	assert_false(ring.cq.keep_qp_full);
	assert_int_equal(ring.cq.compensation_level, 33);
	assert_int_equal(ring.cq.rx_wre_batching, 9);
	assert_int_equal(ring.cq.prefetch_bytes, 128);
	assert_false(ring.cq.moderation_enable);
	assert_int_equal(ring.cq.aim.base.count, 11);
	assert_int_equal(ring.cq.aim.base.period_usec, 12);
	assert_int_equal(ring.cq.aim.max_count, 13);
	assert_int_equal(ring.cq.aim.max_period_usec, 14);
	assert_int_equal(ring.cq.aim.interval_msec, 15);
	assert_int_equal(ring.cq.aim.interrupts_per_sec, 16);
	assert_string_equal(ring.name, "kept");
}

static void test_a_queue_is_no_deeper_than_there_may_be_buffers(void **state)
{
	char *env[] = {"VMA_RX_BUFS=128", "VMA_TX_BUFS=96", NULL};
	struct vma_bufarena_attr arena = {0};
	struct vma_bufpool_attr spill = {0};
	struct vma_ring_attr ring = {0};

	(void)state;
	conf_load(env);
	vma_ring_conf_to_ring_attr(&conf, &ring);
	vma_ring_conf_to_memory_attrs(&conf, &arena, &spill);
	assert_int_equal(ring.rx_wre, 128);
	assert_int_equal(ring.tx_wre, 96);
	assert_int_equal(spill.max_bufs, 128);
	assert_true(arena.capacity >= 128 + 96);
}

static void test_memory_type_reaches_ordinary_memory_and_windows(void **state)
{
	char *env[] = {"VMA_MEM_ALLOC_TYPE=2", "VMA_BUFFER_BATCHING_MODE=0", NULL};
	struct vma_bufarena_attr arena = {0};
	struct vma_bufpool_attr spill = {.batching_mode = 1};
	struct vma_nic_attr nic = {0};

	(void)state;
	conf_load(env);
	vma_ring_conf_to_memory_attrs(&conf, &arena, &spill);
	vma_ring_conf_to_nic_attr(&conf, &nic);
	assert_int_equal(arena.alloc_type, VMA_MEM_HUGE);
	assert_true(nic.huge_pages);
	assert_int_equal(nic.caches, VMA_NIC_CACHES_NONE);
	assert_int_equal(spill.batching_mode, 0);
}

static void test_conversion_of_time_stamps_reaches_the_nic(void **state)
{
	char *env[] = {"VMA_HW_TS_CONVERSION=1", NULL}, *none[] = {NULL};
	struct vma_nic_attr nic = {0};

	(void)state;
	conf_load(env);
	vma_ring_conf_to_nic_attr(&conf, &nic);
	assert_int_equal(nic.hw_ts_conversion, 1);
	conf_load(none);
	vma_ring_conf_to_nic_attr(&conf, &nic);
	assert_int_equal(nic.hw_ts_conversion, 3);
}

static void test_request_to_drive_the_rings_of_an_mlx5_card_reaches_the_nic(void **state)
{
	char *env[] = {"VMA_MLX5_DIRECT=1", NULL}, *none[] = {NULL};
	struct vma_nic_attr nic = {0};

	(void)state;
	conf_load(env);
	vma_ring_conf_to_nic_attr(&conf, &nic);
	assert_true(nic.mlx5_direct);
	conf_load(none);
	vma_ring_conf_to_nic_attr(&conf, &nic);
	assert_false(nic.mlx5_direct);
}

static void test_request_for_rules_of_two_tuples_reaches_the_nic(void **state)
{
	char *env[] = {"VMA_TCP_2T_RULES=1", NULL}, *none[] = {NULL};
	struct vma_nic_attr nic = {0};

	(void)state;
	conf_load(env);
	vma_ring_conf_to_nic_attr(&conf, &nic);
	assert_true(nic.tcp_address_flows);
	conf_load(none);
	vma_ring_conf_to_nic_attr(&conf, &nic);
	assert_false(nic.tcp_address_flows);
}

static void test_nic_parameter_chooses_the_backend(void **state)
{
	static const struct {
		char *env;
		int rc;
		const char *spec;
	} rows[] = {
	        {"VMA_NIC=auto", 0, "auto:eth7"},
	        {"VMA_NIC=xdp", 0, "xdp:eth7"},
	        {"VMA_NIC=verbs", 0, "verbs:eth7"},
	        {"VMA_NIC=none", -EOPNOTSUPP, NULL},
	};
	char spec[16];

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char *env[] = {rows[i].env, NULL};

		conf_load(env);
		assert_int_equal(vma_ring_conf_to_device_spec(&conf, "eth7", spec, sizeof(spec)), rows[i].rc);
		if (rows[i].rc == 0)
			assert_string_equal(spec, rows[i].spec);
	}
	conf_load((char *[]){"VMA_NIC=xdp", NULL});
	assert_int_equal(vma_ring_conf_to_device_spec(&conf, "a-name-too-long-for-it", spec, sizeof(spec)),
	                 -ENAMETOOLONG);
}

static void test_fewer_frames_than_were_asked_for_are_told_once(void **state)
{
	char *env[] = {"VMA_RX_WRE=9000", NULL}, *none[] = {NULL};
	const struct vma_nic_qp qp = {.rx_depth = 4096, .tx_depth = 64}, deep = {.rx_depth = 16384, .tx_depth = 64};
	int fd = memfd_create("log", 0);
	char path[32], heard[512];
	ssize_t n;

	(void)state;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_INFO, .file = path});
	conf_load(none); /* 16000 and 2048, which nobody has asked for */
	vma_ring_conf_log_granted_depths(&conf, "eth7", &qp);
	conf_load(env);
	vma_ring_conf_log_granted_depths(&conf, "eth8", &deep);
	vma_ring_conf_log_granted_depths(&conf, "eth9", &qp);
	vma_ring_conf_log_granted_depths(&conf, "eth9", &qp);
	vma_log_fini();
	n = pread(fd, heard, sizeof(heard) - 1, 0);
	heard[n > 0 ? n : 0] = '\0';
	close(fd);
	assert_string_equal(heard, "VMA INFO: VMA_RX_WRE=9000: eth9 grants 4096\n");
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_those_of_the_field),
        cmocka_unit_test(test_kind_of_the_locks_decides_how_a_control_call_waits_that_would_spin),
        cmocka_unit_test(test_moderation_begins_with_what_is_set),
        cmocka_unit_test(test_what_is_set_arrives),
        cmocka_unit_test(test_a_queue_is_no_deeper_than_there_may_be_buffers),
        cmocka_unit_test(test_memory_type_reaches_ordinary_memory_and_windows),
        cmocka_unit_test(test_fewer_frames_than_were_asked_for_are_told_once),
        cmocka_unit_test(test_conversion_of_time_stamps_reaches_the_nic),
        cmocka_unit_test(test_request_to_drive_the_rings_of_an_mlx5_card_reaches_the_nic),
        cmocka_unit_test(test_request_for_rules_of_two_tuples_reaches_the_nic),
        cmocka_unit_test(test_nic_parameter_chooses_the_backend),
};

VMA_TEST_MAIN(tests)
