/*
 * An RDMA device is opened, tried and closed, on a provider that fails where it is told to: whatever fails, nothing is
 * left open, and what the device can do without is done without.
 */
#include <errno.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/test.h>

#include "../verbs/verbs.h"

/* ---- the provider ---- */

static struct {
	unsigned step, fail_repair_call_at; /* calls that may fail; the one that does, from 1 on, 0: none */
	int error;                          /* errno of it */
	int alive;                          /* objects */
	bool makes_no_tso, makes_no_posts, is_old, is_missing, has_no_raw;
	uint32_t inline_most;
	unsigned flows, device_lists;
	struct ibv_qp_init_attr_ex made; /* the last queue pair */
	struct verbs_context context;
	struct ibv_qp_ex qp_ex;
} provider;

static bool provider_fails_this_call(void)
{
	if (++provider.step != provider.fail_repair_call_at)
		return false;
	errno = provider.error;
	return true;
}

static void *provider_alloc_object(size_t size)
{
	if (provider_fails_this_call())
		return NULL;
	provider.alive++;
	return calloc(1, size);
}

static int provider_free_object_and_count(void *memory)
{
	provider.alive--;
	free(memory);
	return 0;
}

static struct ibv_device device_of_list = {.name = "soft0"};
static struct ibv_device *device_list[] = {&device_of_list, NULL};

static struct ibv_device **fake_get_device_list(int *n)
{
	(void)n;
	if (provider_fails_this_call())
		return NULL;
	provider.device_lists++;
	return provider.is_missing ? device_list + 1 : device_list;
}

static void fake_free_device_list(struct ibv_device **list)
{
	(void)list;
	provider.device_lists--;
}

static int fake_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                                struct ibv_device_attr_ex *attr, size_t size)
{
	(void)context, (void)input;
	if (provider_fails_this_call())
		return EIO;
	memset(attr, 0, size);
	attr->orig_attr.max_qp_wr = 4096;
	attr->orig_attr.max_cqe = 2048;
	attr->orig_attr.max_sge = 30;
	attr->raw_packet_caps = IBV_RAW_PACKET_CAP_IP_CSUM;
	attr->tso_caps = (struct ibv_tso_caps){.max_tso = 65536, .supported_qpts = 1u << IBV_QPT_RAW_PACKET};
	attr->packet_pacing_caps = (struct ibv_packet_pacing_caps){
	        .qp_rate_limit_min = 10, .qp_rate_limit_max = 20, .supported_qpts = 1u << IBV_QPT_RAW_PACKET};
	attr->completion_timestamp_mask = UINT64_MAX;
	attr->hca_core_clock = 1000000;
	return 0;
}

static int fake_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void)context;
	if (provider_fails_this_call())
		return EIO;
	memset(attr, 0, sizeof(*attr));
	attr->max_qp_wr = 100;
	attr->max_cqe = 200;
	attr->max_sge = 2;
	return 0;
}

static int fake_query_raw_clock_1ns(struct ibv_context *context, struct ibv_values_ex *values)
{
	(void)context;
	values->raw_clock.tv_nsec = 1;
	return 0;
}

static struct ibv_context *fake_open_device(struct ibv_device *device)
{
	struct ibv_context *context = &provider.context.context;

	if (provider_fails_this_call())
		return NULL;
	provider.alive++;
	context->device = device;
	context->cmd_fd = eventfd(0, EFD_CLOEXEC);
	context->async_fd = eventfd(0, EFD_CLOEXEC);
	return context;
}

static int fake_close_device(struct ibv_context *context)
{
	close(context->cmd_fd);
	close(context->async_fd);
	provider.alive--;
	return 0;
}

static struct ibv_pd *fake_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = provider_alloc_object(sizeof(*pd));

	if (pd != NULL)
		pd->context = context;
	return pd;
}

static int fake_dealloc_pd(struct ibv_pd *pd)
{
	return provider_free_object_and_count(pd);
}

static struct ibv_td *fake_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
	struct ibv_td *td = provider_alloc_object(sizeof(*td));

	(void)attr;
	if (td != NULL)
		td->context = context;
	return td;
}

static int fake_dealloc_td(struct ibv_td *td)
{
	return provider_free_object_and_count(td);
}

static struct ibv_pd *fake_alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr)
{
	assert_non_null(attr->td);
	return fake_alloc_pd(context);
}

static struct ibv_comp_channel *fake_create_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = provider_alloc_object(sizeof(*channel));

	if (channel != NULL) {
		channel->context = context;
		channel->fd = eventfd(0, EFD_CLOEXEC);
	}
	return channel;
}

static int fake_destroy_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	return provider_free_object_and_count(channel);
}

static struct ibv_cq *fake_create_cq(struct ibv_context *context, int entries, void *cq_context,
                                     struct ibv_comp_channel *channel, int vector)
{
	(void)context, (void)entries, (void)cq_context, (void)channel, (void)vector;
	return provider_alloc_object(sizeof(struct ibv_cq));
}

static struct ibv_cq_ex *fake_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	(void)context, (void)attr;
	return provider_alloc_object(sizeof(struct ibv_cq_ex));
}

static int fake_destroy_cq(struct ibv_cq *cq)
{
	return provider_free_object_and_count(cq);
}

static struct ibv_qp *provider_make_qp(struct ibv_context *context, const struct ibv_qp_init_attr_ex *attr)
{
	struct ibv_qp *qp = NULL;

	errno = provider.has_no_raw ? EPERM : EINVAL;
	if (!provider.has_no_raw && attr->cap.max_inline_data <= provider.inline_most)
		qp = provider_alloc_object(sizeof(*qp));
	if (qp == NULL)
		return NULL;
	qp->context = context;
	provider.made = *attr;
	return qp;
}

static struct ibv_qp *fake_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	const bool tso = attr->comp_mask & IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
	const bool posts = attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;

	assert_int_equal(tso && posts, posts && (attr->send_ops_flags & IBV_QP_EX_WITH_TSO) != 0);
	errno = EOPNOTSUPP;
	if ((tso && provider.makes_no_tso) || (posts && provider.makes_no_posts))
		return NULL;
	return provider_make_qp(context, attr);
}

static struct ibv_qp *fake_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	const struct ibv_qp_init_attr_ex all = {.cap = attr->cap};

	return provider_make_qp(pd->context, &all);
}

static struct ibv_qp_ex *fake_qp_to_ex(struct ibv_qp *qp)
{
	(void)qp;
	return &provider.qp_ex;
}

static int fake_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	(void)qp, (void)attr, (void)mask;
	return provider_fails_this_call() ? EINVAL : 0;
}

static int fake_destroy_qp(struct ibv_qp *qp)
{
	return provider_free_object_and_count(qp);
}

static struct ibv_flow *fake_create_flow(struct ibv_qp *qp, struct ibv_flow_attr *attr)
{
	struct ibv_flow *flow = provider_alloc_object(sizeof(*flow));

	(void)attr;
	if (flow != NULL) {
		flow->context = qp->context;
		provider.flows++;
	}
	return flow;
}

static int fake_destroy_flow(struct ibv_flow *flow)
{
	return provider_free_object_and_count(flow);
}

static struct verbs_lib lib = {
        .ibv_get_device_list = fake_get_device_list,
        .ibv_free_device_list = fake_free_device_list,
        .ibv_open_device = fake_open_device,
        .ibv_close_device = fake_close_device,
        .ibv_query_device = fake_query_device,
        .ibv_alloc_pd = fake_alloc_pd,
        .ibv_dealloc_pd = fake_dealloc_pd,
        .ibv_create_comp_channel = fake_create_channel,
        .ibv_destroy_comp_channel = fake_destroy_channel,
        .ibv_create_cq = fake_create_cq,
        .ibv_destroy_cq = fake_destroy_cq,
        .ibv_create_qp = fake_create_qp,
        .ibv_qp_to_qp_ex = fake_qp_to_ex,
        .ibv_modify_qp = fake_modify_qp,
        .ibv_destroy_qp = fake_destroy_qp,
};
static bool libibverbs_is_absent;

const struct verbs_lib *verbs_lib(void)
{
	return libibverbs_is_absent ? NULL : &lib;
}

/* ---- the fixture ---- */

static const struct verbs_device_port place = {.device = "soft0", .port = 1};

static int setup(void **state)
{
	(void)state;
	memset(&provider, 0, sizeof(provider));
	provider.error = EIO;
	provider.inline_most = 1024;
	provider.context.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	provider.context.sz = sizeof(provider.context);
	provider.context.query_device_ex = fake_query_device_ex;
	provider.context.query_rt_values = fake_query_raw_clock_1ns;
	provider.context.alloc_td = fake_alloc_td;
	provider.context.dealloc_td = fake_dealloc_td;
	provider.context.alloc_parent_domain = fake_alloc_parent_domain;
	provider.context.create_cq_ex = fake_create_cq_ex;
	provider.context.create_qp_ex = fake_create_qp_ex;
	provider.context.ibv_create_flow = fake_create_flow;
	provider.context.ibv_destroy_flow = fake_destroy_flow;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	assert_int_equal(provider.alive, 0);
	assert_int_equal(provider.device_lists, 0);
	return 0;
}

/* Without it the device is not even looked at. */
static void skip_without_net_raw(void)
{
	if (!verbs_has_capability(CAP_NET_RAW))
		vma_test_skip("CAP_NET_RAW is missing");
}

static struct verbs_device *open_eth0_verbs_device(void)
{
	struct verbs_device *device = NULL;

	skip_without_net_raw();
	assert_int_equal(verbs_device_open("eth0", &place, 3, &device), 0);
	assert_int_equal(device->generation, 3);
	return device;
}

static int open_verbs_queue_of_device(struct verbs_device *device, uint32_t inline_bytes, bool tso,
                                      struct verbs_queue *queue)
{
	const struct verbs_queue_attr attr = {.rx_packets = 16,
	                                      .rx_sges = 1,
	                                      .tx_packets = 32,
	                                      .tx_sges = 4,
	                                      .inline_bytes = inline_bytes,
	                                      .tso = tso,
	                                      .rx_stamps = VERBS_STAMPS_RAW};
	const char *what = NULL;
	const int rc = verbs_queue_open(device, &attr, queue, &what);

	assert_non_null(what);
	return rc;
}

/* ---- tests ---- */

static void test_limits_are_what_the_device_says_and_this_side_can(void **state)
{
	struct verbs_device *device = open_eth0_verbs_device();

	(void)state;
	assert_int_equal(device->limits.wr_max, 2048); /* a completion for each */
	assert_int_equal(device->limits.sge_max, VERBS_SEGS_MAX);
	assert_int_equal(device->limits.tso_max, 65536);
	assert_true(device->limits.has_checksum && device->limits.has_clock && device->limits.has_wall);
	assert_int_equal(device->limits.pace_max, 20);
	assert_int_equal(provider.flows, 1);
	verbs_device_put(device);
}

/* Each call in turn. */
static void test_whatever_fails_nothing_is_left_open(void **state)
{
	unsigned failed = 0, worked = 0;

	(void)state;
	skip_without_net_raw();
	for (unsigned at = 1;; at++) {
		struct verbs_device *device = NULL;
		int rc;

		provider.step = 0;
		provider.fail_repair_call_at = at;
		rc = verbs_device_open("eth0", &place, 1, &device);
		assert_true((rc == 0) == (device != NULL));
		verbs_device_put(device);
		assert_int_equal(provider.alive, 0);
		failed += rc != 0;
		worked += rc == 0;
		if (provider.step < at) {
			assert_int_equal(rc, 0);
			break;
		}
	}
	/* List, open, domain, channel, state changes, rule; a thread's domain, the better queues. */
	assert_true(failed >= 7);
	assert_true(worked >= 4);
}

/* A driver that gives no reason for what it does not make is not taken for one that has made it. */
static void test_a_failure_without_an_error_number_is_a_failure(void **state)
{
	unsigned failed = 0;

	(void)state;
	skip_without_net_raw();
	provider.error = 0;
	for (unsigned at = 1; at == 1 || provider.step >= at - 1; at++) {
		struct verbs_device *device = NULL;

		provider.step = 0;
		provider.fail_repair_call_at = at;
		if (verbs_device_open("eth0", &place, 1, &device) == 0)
			assert_non_null(device->pd);
		else
			failed++;
		verbs_device_put(device);
		assert_int_equal(provider.alive, 0);
	}
	assert_true(failed >= 7);
}

static void test_the_same_of_a_queue(void **state)
{
	struct verbs_device *device = open_eth0_verbs_device();
	unsigned failed = 0;

	(void)state;
	for (unsigned at = 1;; at++) {
		const int alive = provider.alive;
		struct verbs_queue queue = {0};
		int rc;

		provider.step = 0;
		provider.fail_repair_call_at = at;
		rc = open_verbs_queue_of_device(device, 64, true, &queue);
		verbs_queue_close(&queue);
		assert_int_equal(provider.alive, alive);
		failed += rc != 0;
		if (provider.step < at) {
			assert_int_equal(rc, 0);
			break;
		}
	}
	assert_true(failed >= 4);
	verbs_device_put(device);
}

static void test_a_device_without_right_library_or_name_is_not_opened(void **state)
{
	struct verbs_device *device = NULL;

	(void)state;
	skip_without_net_raw();
	provider.is_missing = true;
	assert_int_equal(verbs_device_open("eth0", &place, 1, &device), -ENODEV);
	provider.is_missing = false;
	libibverbs_is_absent = true;
	assert_int_equal(verbs_device_open("eth0", &place, 1, &device), -ENODEV);
	libibverbs_is_absent = false;
	provider.has_no_raw = true;
	assert_int_equal(verbs_device_open("eth0", &place, 1, &device), -EPERM);
	assert_null(device);
}

/* It says that it can, and makes no queue pair for it. */
static void test_a_driver_without_queue_pairs_for_segmentation_sends_without_it(void **state)
{
	struct verbs_queue queue = {0};
	struct verbs_device *device;

	(void)state;
	provider.makes_no_tso = true;
	device = open_eth0_verbs_device();
	assert_int_equal(device->limits.tso_max, 0);
	assert_int_equal(open_verbs_queue_of_device(device, 0, false, &queue), 0);
	assert_non_null(queue.qp_ex);
	verbs_queue_close(&queue);
	verbs_device_put(device);
}

static void test_a_driver_without_the_new_calls_has_segmentation_by_the_old_ones(void **state)
{
	struct verbs_queue queue = {0};
	struct verbs_device *device;

	(void)state;
	provider.makes_no_posts = true;
	device = open_eth0_verbs_device();
	assert_int_equal(device->limits.tso_max, 65536);
	assert_int_equal(open_verbs_queue_of_device(device, 0, true, &queue), 0);
	assert_null(queue.qp_ex);
	assert_true(provider.made.max_tso_header >= 70);
	verbs_queue_close(&queue);
	assert_int_equal(open_verbs_queue_of_device(device, 0, false, &queue), 0);
	assert_null(queue.qp_ex);
	assert_int_equal(provider.made.max_tso_header, 0);
	verbs_queue_close(&queue);
	verbs_device_put(device);
}

static void test_a_driver_of_the_old_kind_has_plain_queues(void **state)
{
	struct verbs_queue queue = {0};
	struct verbs_device *device;

	(void)state;
	provider.context.query_device_ex = NULL;
	provider.context.create_cq_ex = NULL;
	provider.context.create_qp_ex = NULL;
	provider.context.alloc_td = NULL;
	provider.context.query_rt_values = NULL;
	device = open_eth0_verbs_device();
	assert_int_equal(device->limits.wr_max, 100);
	assert_int_equal(device->limits.sge_max, 2);
	assert_int_equal(device->limits.tso_max, 0);
	assert_false(device->limits.has_clock || device->limits.has_checksum);
	assert_int_equal(open_verbs_queue_of_device(device, 0, false, &queue), 0);
	assert_null(queue.qp_ex);
	assert_null(queue.rx_cq_ex);
	assert_null(queue.domain);
	assert_int_equal(queue.rx_stamps, VERBS_STAMPS_NONE);
	verbs_queue_close(&queue);
	verbs_device_put(device);
}

static void test_inline_data_is_what_the_device_takes(void **state)
{
	struct verbs_device *device = open_eth0_verbs_device();
	struct verbs_queue queue = {0};

	(void)state;
	provider.inline_most = 100;
	assert_int_equal(open_verbs_queue_of_device(device, 300, true, &queue), 0);
	assert_int_equal(queue.inline_max, 75);
	verbs_queue_close(&queue);
	verbs_device_put(device);
}

#define DEVICE_CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
static const struct CMUnitTest tests[] = {
        DEVICE_CASE(test_limits_are_what_the_device_says_and_this_side_can),
        DEVICE_CASE(test_whatever_fails_nothing_is_left_open),
        DEVICE_CASE(test_a_failure_without_an_error_number_is_a_failure),
        DEVICE_CASE(test_the_same_of_a_queue),
        DEVICE_CASE(test_a_device_without_right_library_or_name_is_not_opened),
        DEVICE_CASE(test_a_driver_without_queue_pairs_for_segmentation_sends_without_it),
        DEVICE_CASE(test_a_driver_without_the_new_calls_has_segmentation_by_the_old_ones),
        DEVICE_CASE(test_a_driver_of_the_old_kind_has_plain_queues),
        DEVICE_CASE(test_inline_data_is_what_the_device_takes),
};
VMA_TEST_MAIN(tests)
