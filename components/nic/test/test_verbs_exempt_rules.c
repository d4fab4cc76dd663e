/*
 * The rules by which an mlx5 card leaves connections to the kernel: what it is asked for, how long a rule lives, and what
 * becomes of a card that refuses. The library of mlx5 is a table of functions; test_verbs_exempts.c has the bytes.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/test.h>

#include "fake_provider.h"

enum { EXEMPTS_MAX = 4096 };

static struct verbs_qp *qp;
/* What the card has: rules for packets that are the kernel's, rules of flows, matchers. */
static unsigned exempt_rules, flow_rules, matchers, matchers_made, asked;
static int refusal, matcher_refusal; /* an errno for the next rule or matcher; 0: none */
static bool is_mlx5, lacks_flows;
static struct mlx5_outer_headers last_value, last_mask;

/* ---- the library of mlx5 ---- */

static bool fake_is_supported(struct ibv_device *device)
{
	(void)device;
	return is_mlx5;
}

static struct mlx5dv_flow_matcher *fake_matcher_create(struct ibv_context *context,
                                                       struct mlx5dv_flow_matcher_attr *attr)
{
	assert_ptr_equal(context, &fake.context.context);
	assert_int_equal(attr->type, IBV_FLOW_ATTR_NORMAL);
	assert_int_equal(attr->priority, 0); /* before a listener's */
	assert_int_equal(attr->match_criteria_enable, MLX5_CRITERIA_OUTER);
	assert_int_equal(attr->match_mask->match_sz, sizeof(last_mask));
	errno = matcher_refusal;
	if (matcher_refusal != 0)
		return NULL;
	memcpy(&last_mask, attr->match_mask->match_buf, sizeof(last_mask));
	matchers++;
	matchers_made++;
	return malloc(1);
}

static int fake_matcher_destroy(struct mlx5dv_flow_matcher *matcher)
{
	assert_int_equal(exempt_rules, 0); /* none of them uses it any more */
	matchers--;
	free(matcher);
	return 0;
}

static struct ibv_flow *fake_exempt_create(struct mlx5dv_flow_matcher *matcher,
                                           struct mlx5dv_flow_match_parameters *value, size_t n,
                                           struct mlx5dv_flow_action_attr *actions)
{
	struct ibv_flow *rule;

	assert_non_null(matcher);
	assert_int_equal(n, 1);
	assert_int_equal(actions[0].type, MLX5DV_FLOW_ACTION_DEFAULT_MISS);
	asked++;
	errno = refusal;
	if (refusal != 0)
		return NULL;
	memcpy(&last_value, value->match_buf, sizeof(last_value));
	exempt_rules++;
	rule = calloc(1, sizeof(*rule));
	rule->context = &fake.context.context;
	rule->handle = 1;
	return rule;
}

/* In place of symbol.c's. */
void *verbs_lib_symbol(void *library, const char *name)
{
	(void)library;
	if (strcmp(name, "mlx5dv_is_supported") == 0)
		return (void *)fake_is_supported;
	if (strcmp(name, "mlx5dv_create_flow_matcher") == 0)
		return (void *)fake_matcher_create;
	if (strcmp(name, "mlx5dv_destroy_flow_matcher") == 0)
		return (void *)fake_matcher_destroy;
	if (strcmp(name, "mlx5dv_create_flow") == 0)
		return lacks_flows ? NULL : (void *)fake_exempt_create;
	return NULL;
}

/* ---- libibverbs ---- */

static struct ibv_flow *fake_flow_create(struct ibv_qp *of, struct ibv_flow_attr *attr)
{
	struct ibv_flow *rule = calloc(1, sizeof(*rule));

	(void)attr;
	flow_rules++;
	rule->context = of->context;
	return rule;
}

static int fake_rule_destroy(struct ibv_flow *rule)
{
	if (rule->handle == 1)
		exempt_rules--;
	else
		flow_rules--;
	free(rule);
	return 0;
}

static int begin(void **state)
{
	(void)state;
	qp = fake_provider_setup_qp(16, 0);
	fake.nic.wake_fd = fake.nic.diag_fd = -1;
	fake.context.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	fake.context.sz = sizeof(fake.context);
	fake.context.ibv_create_flow = fake_flow_create;
	fake.context.ibv_destroy_flow = fake_rule_destroy;
	fake.device.context = &fake.context.context;
	fake.nic.qps = qp;
	exempt_rules = flow_rules = matchers = matchers_made = asked = 0;
	refusal = matcher_refusal = 0;
	is_mlx5 = true;
	lacks_flows = false;
	verbs_exempts_init(&fake.device.exempts, NULL);
	return 0;
}

static int end(void **state)
{
	(void)state;
	verbs_exempts_fini(&fake.device.exempts);
	assert_int_equal(exempt_rules, 0);
	assert_int_equal(matchers, 0);
	verbs_flows_end_of_qp(qp);
	verbs_flows_fini(&fake.nic);
	assert_int_equal(flow_rules, 0);
	fake_provider_free_qp();
	return 0;
}

static struct vma_flow_key key_of_peer_port(uint16_t port, uint16_t vlan)
{
	return (struct vma_flow_key){.family = AF_INET,
	                             .proto = IPPROTO_TCP,
	                             .vlan = vlan,
	                             .local_port_be = htons(80),
	                             .peer_port_be = htons(port),
	                             .local = {10, 0, 0, 1},
	                             .peer = {10, 0, 0, 2}};
}

static int leave_to_kernel(uint16_t port, uint16_t vlan)
{
	const struct vma_flow_key key = key_of_peer_port(port, vlan);

	return verbs_flow_begin_kernel_exemption(&fake.nic.base, &key);
}

static void end_leave_to_kernel(uint16_t port, uint16_t vlan)
{
	const struct vma_flow_key key = key_of_peer_port(port, vlan);

	verbs_flow_end_kernel_exemption(&fake.nic.base, &key);
}

/* ---- cases ---- */

static void test_the_card_is_asked_for_the_connection(void **state)
{
	const struct vma_flow_key key = key_of_peer_port(5000, 0);
	struct mlx5_outer_headers value, mask;

	(void)state;
	verbs_exempt_fill_match_value_and_mask(&key, fake.nic.base.info.mac, &value, &mask);
	assert_int_equal(leave_to_kernel(5000, 0), 0);
	assert_int_equal(exempt_rules, 1);
	assert_memory_equal(&last_value, &value, sizeof(value));
	assert_memory_equal(&last_mask, &mask, sizeof(mask));
	end_leave_to_kernel(5000, 0);
	assert_int_equal(exempt_rules, 0);
}

static void test_a_rule_lives_as_long_as_its_last_user(void **state)
{
	(void)state;
	assert_int_equal(leave_to_kernel(5000, 0), 0);
	assert_int_equal(leave_to_kernel(5001, 0), 0);
	assert_int_equal(leave_to_kernel(5000, 0), 0);
	assert_int_equal(asked, 2);
	end_leave_to_kernel(5000, 0);
	assert_int_equal(exempt_rules, 2);
	end_leave_to_kernel(5000, 0);
	assert_int_equal(exempt_rules, 1);
	end_leave_to_kernel(5000, 0); /* of a device of before */
	assert_int_equal(exempt_rules, 1);
}

static void test_tagged_and_untagged_packets_have_a_matcher_each(void **state)
{
	(void)state;
	assert_int_equal(leave_to_kernel(5000, 0), 0);
	assert_int_equal(leave_to_kernel(5001, 0), 0);
	assert_int_equal(matchers_made, 1);
	assert_int_equal(leave_to_kernel(5000, 7), 0);
	assert_int_equal(leave_to_kernel(5001, 7), 0);
	assert_int_equal(matchers_made, 2);
	assert_int_equal(exempt_rules, 4);
	assert_int_equal(last_value.vlan_be, htons(7));
	verbs_exempts_fini(&fake.device.exempts); /* the rules first */
	assert_int_equal(exempt_rules, 0);
	assert_int_equal(matchers, 0);
	memset(&fake.device.exempts, 0, sizeof(fake.device.exempts));
}

static void test_a_connection_of_ours_is_not_left_to_the_kernel(void **state)
{
	const struct vma_flow_rule rule = {.key = key_of_peer_port(5000, 0)};

	(void)state;
	assert_int_equal(verbs_flow_add(&qp->base, &rule), 0);
	assert_int_equal(leave_to_kernel(5000, 0), -EEXIST);
	assert_int_equal(asked, 0);
}

static void test_a_flow_that_is_added_takes_its_packets_from_the_kernel(void **state)
{
	const struct vma_flow_rule rule = {.key = key_of_peer_port(5000, 0)};

	(void)state;
	assert_int_equal(leave_to_kernel(5000, 0), 0);
	assert_int_equal(leave_to_kernel(5000, 0), 0);
	assert_int_equal(leave_to_kernel(5001, 0), 0);
	assert_int_equal(verbs_flow_add(&qp->base, &rule), 0);
	assert_int_equal(flow_rules, 1);
	assert_int_equal(exempt_rules, 1); /* the other one */
	end_leave_to_kernel(5000, 0);
	assert_int_equal(exempt_rules, 1);
}

static void test_a_full_card_is_asked_again(void **state)
{
	(void)state;
	refusal = ENOMEM;
	assert_int_equal(leave_to_kernel(5000, 0), -ENOSPC);
	refusal = ENOSPC;
	assert_int_equal(leave_to_kernel(5000, 0), -ENOSPC);
	refusal = 0;
	assert_int_equal(leave_to_kernel(5000, 0), 0);
	assert_int_equal(asked, 3);
}

static void test_a_card_that_has_no_such_rules_is_asked_once(void **state)
{
	(void)state;
	refusal = EOPNOTSUPP;
	assert_int_equal(leave_to_kernel(5000, 0), -EOPNOTSUPP);
	refusal = 0;
	assert_int_equal(leave_to_kernel(5000, 0), -EOPNOTSUPP);
	assert_int_equal(asked, 1);
	assert_int_equal(exempt_rules, 0);
}

static void test_a_card_that_has_no_matcher_is_not_asked_for_rules(void **state)
{
	(void)state;
	matcher_refusal = EINVAL;
	assert_int_equal(leave_to_kernel(5000, 0), -EOPNOTSUPP);
	assert_int_equal(leave_to_kernel(5000, 0), -EOPNOTSUPP);
	assert_int_equal(asked, 0);
}

static void test_there_is_a_limit(void **state)
{
	(void)state;
	for (unsigned i = 0; i < EXEMPTS_MAX; i++)
		assert_int_equal(leave_to_kernel((uint16_t)(1000 + i), 0), 0);
	assert_int_equal(leave_to_kernel(999, 0), -ENOSPC);
	assert_int_equal(leave_to_kernel(1000, 0), 0); /* it has a rule */
	assert_int_equal(exempt_rules, EXEMPTS_MAX);
	end_leave_to_kernel(1001, 0);
	assert_int_equal(leave_to_kernel(999, 0), 0);
}

static void test_a_broken_device_is_not_asked(void **state)
{
	(void)state;
	fake.device.broken = true;
	assert_int_equal(leave_to_kernel(5000, 0), -EAGAIN);
	assert_int_equal(asked, 0);
}

static void test_a_device_of_another_kind_is_not_asked(void **state)
{
	(void)state;
	is_mlx5 = false;
	verbs_exempts_init(&fake.device.exempts, NULL);
	assert_int_equal(leave_to_kernel(5000, 0), -EOPNOTSUPP);
	assert_int_equal(asked + matchers_made, 0);
}

/* The library is looked at once in a process. */
static bool old_library_is_not_used(void)
{
	struct verbs_exempts exempts = {0};

	lacks_flows = is_mlx5 = true;
	verbs_exempts_init(&exempts, NULL);
	return exempts.refused;
}

static int old_library_child_status;

static void test_a_library_without_such_rules_is_not_used(void **state)
{
	(void)state;
	assert_int_equal(old_library_child_status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_library_without_such_rules_is_not_used),
	        cmocka_unit_test_setup_teardown(test_the_card_is_asked_for_the_connection, begin, end),
	        cmocka_unit_test_setup_teardown(test_a_rule_lives_as_long_as_its_last_user, begin, end),
	        cmocka_unit_test_setup_teardown(test_tagged_and_untagged_packets_have_a_matcher_each, begin, end),
	        cmocka_unit_test_setup_teardown(test_a_connection_of_ours_is_not_left_to_the_kernel, begin, end),
	        cmocka_unit_test_setup_teardown(test_a_flow_that_is_added_takes_its_packets_from_the_kernel, begin,
	                                        end),
	        cmocka_unit_test_setup_teardown(test_a_full_card_is_asked_again, begin, end),
	        cmocka_unit_test_setup_teardown(test_a_card_that_has_no_such_rules_is_asked_once, begin, end),
	        cmocka_unit_test_setup_teardown(test_a_card_that_has_no_matcher_is_not_asked_for_rules, begin, end),
	        cmocka_unit_test_setup_teardown(test_there_is_a_limit, begin, end),
	        cmocka_unit_test_setup_teardown(test_a_broken_device_is_not_asked, begin, end),
	        cmocka_unit_test_setup_teardown(test_a_device_of_another_kind_is_not_asked, begin, end),
	};
	const pid_t child = fork();

	if (child == 0)
		_exit(!old_library_is_not_used());
	if (child < 0 || waitpid(child, &old_library_child_status, 0) != child)
		return 1;
	vma_test_set_filter_from_env();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
