/* Time stamps of what is received, and the pace of what is sent, on a provider that is a table of functions. */
#include <time.h>

#include <vma/test.h>

#include "fake_provider.h"

#define KHZ 156250
#define MASK ((UINT64_C(1) << 48) - 1)

static uint64_t clock_gettime_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t ns_to_device_ticks(uint64_t ns)
{
	return ns * 5 / 32 & MASK;
}

static int fake_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values)
{
	(void)context;
	values->raw_clock = (struct timespec){.tv_nsec = (long)ns_to_device_ticks(clock_gettime_ns(CLOCK_MONOTONIC))};
	return 0;
}

static struct verbs_qp *begin(unsigned conversion)
{
	struct verbs_qp *qp = fake_provider_setup_qp(64, 0);

	fake.context.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	fake.context.sz = sizeof(fake.context);
	fake.context.query_rt_values = fake_query_rt_values;
	fake.device.context = &fake.context.context;
	fake.device.limits.clock_khz = KHZ;
	fake.device.limits.clock_mask = MASK;
	fake.device.limits.has_clock = fake.device.limits.has_wall = true;
	fake.nic.wake_fd = -1;
	fake.nic.conversion = conversion;
	fake.nic.qps = qp;
	verbs_nic_init_timestamps_from_device(&fake.nic);
	qp->queue.rx_stamps = fake.nic.stamps;
	qp->rx_clock = fake.nic.clock;
	qp->rx_clock.sampled = false;
	verbs_timestamps_start_on_qp(qp);
	return qp;
}

static void post_n_rx_bufs(struct verbs_qp *qp, unsigned n)
{
	struct vma_buf *bufs[32];

	assert_int_equal(vma_bufpool_get(fake.rx_pool, bufs, n), n);
	assert_int_equal(vma_nic_post_rx(&qp->base, bufs, n), n);
}

/* A packet that the card has stamped. */
static struct vma_buf *receive_packet_with_hw_timestamp(struct verbs_qp *qp, uint64_t stamp)
{
	struct vma_buf *buf = NULL;

	post_n_rx_bufs(qp, qp->rx_bufs);
	fake.due = 1;
	fake.stamp = stamp;
	assert_int_equal(vma_nic_poll_rx(&qp->base, &buf, 1), 1);
	return buf;
}

static void test_nobody_who_does_not_ask_gets_a_stamp(void **state)
{
	struct verbs_qp *qp = begin(3);
	const struct vma_buf *buf =
	        receive_packet_with_hw_timestamp(qp, ns_to_device_ticks(clock_gettime_ns(CLOCK_MONOTONIC)));

	(void)state;
	assert_int_equal(buf->timestamp_ns, 0);
	assert_int_equal(buf->flags & (VMA_BUF_RX_HW_TIMESTAMP | VMA_BUF_RX_NIC_CLOCK), 0);
	assert_int_equal(fake.nic.samples, 0);
}

static void test_stamps_are_in_the_systems_time(void **state)
{
	struct verbs_qp *qp = begin(3);
	const uint64_t before = clock_gettime_ns(CLOCK_REALTIME), own = clock_gettime_ns(CLOCK_MONOTONIC);
	const struct vma_buf *buf;

	(void)state;
	assert_int_equal(verbs_enable_timestamps(&fake.nic.base), 0);
	buf = receive_packet_with_hw_timestamp(qp, ns_to_device_ticks(own));
	assert_int_equal(buf->flags & (VMA_BUF_RX_HW_TIMESTAMP | VMA_BUF_RX_NIC_CLOCK), VMA_BUF_RX_HW_TIMESTAMP);
	/* What lies between the two readings, and what the samples err by, counts on a busy machine. */
	assert_in_range(buf->timestamp_ns, before - 1000000000, before + 1000000000);
	buf = receive_packet_with_hw_timestamp(qp, ns_to_device_ticks(own + 5000000));
	assert_in_range(buf->timestamp_ns, before + 5000000 - 1000000000, before + 5000000 + 1000000000);
}

static void test_two_stamps_differ_by_what_has_passed_on_the_card(void **state)
{
	struct verbs_qp *qp = begin(2);
	const uint64_t own = clock_gettime_ns(CLOCK_MONOTONIC);
	uint64_t first;

	(void)state;
	assert_int_equal(verbs_enable_timestamps(&fake.nic.base), 0);
	first = receive_packet_with_hw_timestamp(qp, ns_to_device_ticks(own))->timestamp_ns;
	assert_in_range(receive_packet_with_hw_timestamp(qp, ns_to_device_ticks(own + 3000000000))->timestamp_ns -
	                        first,
	                2999999900, 3000000100);
}

static void test_stamps_of_one_queue_go_forward_over_a_new_line(void **state)
{
	struct verbs_qp *qp = begin(3);
	const uint64_t own = clock_gettime_ns(CLOCK_MONOTONIC);
	uint64_t first;

	(void)state;
	assert_int_equal(verbs_enable_timestamps(&fake.nic.base), 0);
	first = receive_packet_with_hw_timestamp(qp, ns_to_device_ticks(own + 1000))->timestamp_ns;
	assert_true(receive_packet_with_hw_timestamp(qp, ns_to_device_ticks(own))->timestamp_ns >= first);
	/* A clock that was set back by more is followed. */
	assert_true(receive_packet_with_hw_timestamp(qp, ns_to_device_ticks(own - 10000000000))->timestamp_ns <
	            first - 9000000000);
}

static void test_raw_stamps_are_nanoseconds_of_the_cards_own(void **state)
{
	struct verbs_qp *qp = begin(1);
	const struct vma_buf *buf;

	(void)state;
	assert_int_equal(verbs_enable_timestamps(&fake.nic.base), 0);
	buf = receive_packet_with_hw_timestamp(qp, KHZ * UINT64_C(1000) * 7);
	assert_in_range(buf->timestamp_ns, 6999999990, 7000000000);
	assert_int_equal(buf->flags & (VMA_BUF_RX_HW_TIMESTAMP | VMA_BUF_RX_NIC_CLOCK),
	                 VMA_BUF_RX_HW_TIMESTAMP | VMA_BUF_RX_NIC_CLOCK);
	assert_int_equal(fake.nic.samples, 0); /* nobody asks for its clock */
}

static void test_ptp_stamps_are_the_providers(void **state)
{
	struct verbs_qp *qp = begin(4);
	const struct vma_buf *buf;

	(void)state;
	assert_int_equal(verbs_enable_timestamps(&fake.nic.base), 0);
	buf = receive_packet_with_hw_timestamp(qp, 1234567890123456789);
	assert_int_equal(buf->timestamp_ns, 1234567890123456789);
	assert_true(buf->flags & VMA_BUF_RX_NIC_CLOCK);
}

static void test_a_card_that_cannot_says_so(void **state)
{
	(void)state;
	begin(0);
	assert_int_equal(verbs_enable_timestamps(&fake.nic.base), -EOPNOTSUPP);
	begin(3);
	fake.device.limits.has_clock = false;
	verbs_nic_init_timestamps_from_device(&fake.nic);
	assert_int_equal(verbs_enable_timestamps(&fake.nic.base), -EOPNOTSUPP);
}

static void test_the_first_buffer_of_a_long_packet_has_the_stamp(void **state)
{
	struct verbs_qp *qp = begin(1);
	struct vma_buf *bufs[4];

	(void)state;
	qp->rx_bufs = 5;
	qp->base.rx_depth = FAKE_DEPTH / 2 / 5 * 5;
	verbs_qp_data_path_init(qp);
	assert_int_equal(verbs_enable_timestamps(&fake.nic.base), 0);
	post_n_rx_bufs(qp, 5);
	fake.byte_len = 9000;
	fake.due = 1;
	fake.stamp = KHZ;
	assert_int_equal(vma_nic_poll_rx(&qp->base, bufs, 4), 4);
	assert_in_range(bufs[0]->timestamp_ns, 999990, 1000000);
	assert_true(bufs[0]->flags & VMA_BUF_RX_HW_TIMESTAMP && bufs[0]->flags & VMA_BUF_RX_MORE);
	for (int i = 1; i < 4; i++)
		assert_int_equal(bufs[i]->timestamp_ns, 0);
}

/* ---- pace ---- */

static uint32_t fake_modify_qp_mask, fake_modify_qp_rate;
static int modify_error;

static int fake_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)qp;
	fake_modify_qp_mask = (uint32_t)mask;
	fake_modify_qp_rate = attr->rate_limit;
	assert_int_equal(attr->qp_state, IBV_QPS_RTS);
	return modify_error;
}

static void test_bytes_per_second_become_the_devices_kilobits(void **state)
{
	struct verbs_qp *qp = begin(3);

	(void)state;
	fake.lib.ibv_modify_qp = fake_modify_qp;
	fake.device.limits.pace_min = 100;
	fake.device.limits.pace_max = 10000000;
	assert_int_equal(vma_nic_set_tx_pacing_rate(&qp->base, 1000000, 0), -EOPNOTSUPP);
	fake.nic.base.info.caps |= VMA_NIC_CAP_PACING;
	assert_int_equal(vma_nic_set_tx_pacing_rate(&qp->base, 1000000, 0), 0);
	assert_int_equal(fake_modify_qp_mask, IBV_QP_STATE | IBV_QP_RATE_LIMIT);
	assert_int_equal(fake_modify_qp_rate, 8000);
	assert_int_equal(vma_nic_set_tx_pacing_rate(&qp->base, 1, 0), 0);
	assert_int_equal(fake_modify_qp_rate, 100);
	assert_int_equal(vma_nic_set_tx_pacing_rate(&qp->base, 0, 0), 0);
	assert_int_equal(fake_modify_qp_rate, 0);
}

static void test_a_pace_that_the_device_refuses_is_none(void **state)
{
	struct verbs_qp *qp = begin(3);

	(void)state;
	fake.lib.ibv_modify_qp = fake_modify_qp;
	fake.nic.base.info.caps |= VMA_NIC_CAP_PACING;
	fake.device.limits.pace_max = 10000000;
	modify_error = EINVAL;
	assert_int_equal(vma_nic_set_tx_pacing_rate(&qp->base, 1000000, 0), -EINVAL);
	assert_int_equal(qp->pace_kbps, 0);
	modify_error = 0;
	atomic_store(&qp->base.lost, true); /* the rebind sets it */
	fake_modify_qp_rate = 0;
	assert_int_equal(vma_nic_set_tx_pacing_rate(&qp->base, 1000000, 0), 0);
	assert_int_equal(fake_modify_qp_rate, 0);
	assert_int_equal(qp->pace_kbps, 8000);
}

static int end(void **state)
{
	(void)state;
	fake_provider_free_qp();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(test_nobody_who_does_not_ask_gets_a_stamp, end),
	        cmocka_unit_test_teardown(test_stamps_are_in_the_systems_time, end),
	        cmocka_unit_test_teardown(test_two_stamps_differ_by_what_has_passed_on_the_card, end),
	        cmocka_unit_test_teardown(test_stamps_of_one_queue_go_forward_over_a_new_line, end),
	        cmocka_unit_test_teardown(test_raw_stamps_are_nanoseconds_of_the_cards_own, end),
	        cmocka_unit_test_teardown(test_ptp_stamps_are_the_providers, end),
	        cmocka_unit_test_teardown(test_a_card_that_cannot_says_so, end),
	        cmocka_unit_test_teardown(test_the_first_buffer_of_a_long_packet_has_the_stamp, end),
	        cmocka_unit_test_teardown(test_bytes_per_second_become_the_devices_kilobits, end),
	        cmocka_unit_test_teardown(test_a_pace_that_the_device_refuses_is_none, end),
	};

	vma_test_set_filter_from_env();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
