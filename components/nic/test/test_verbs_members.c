/* Groups that several processes receive by the card: shadows are known by their names, and what has none is the
 * kernel's. */
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/test.h>

#include "fake_provider.h"

enum { STRANGER = 65534 };

static struct verbs_qp *qp;
static unsigned rules;
static struct nic_verbs neighbour; /* of another process */
static struct verbs_qp neighbour_qp = {.nic = &neighbour};
static uint16_t port_be;

static struct ibv_flow *make_rule(struct ibv_qp *of, struct ibv_flow_attr *attr)
{
	struct ibv_flow *flow = calloc(1, sizeof(*flow));

	(void)attr;
	rules++;
	flow->context = of->context;
	return flow;
}

static int end_rule(struct ibv_flow *flow)
{
	rules--;
	free(flow);
	return 0;
}

static int setup(void **state)
{
	(void)state;
	qp = fake_provider_setup_qp(16, 0);
	fake.nic.wake_fd = fake.nic.diag_fd = -1;
	fake.nic.base.info.ifindex = neighbour.base.info.ifindex = (uint32_t)getpid(); /* no other test's name */
	neighbour.diag_fd = -1;
	fake.context.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	fake.context.sz = sizeof(fake.context);
	fake.context.ibv_create_flow = make_rule;
	fake.context.ibv_destroy_flow = end_rule;
	fake.device.context = &fake.context.context;
	fake.qp.context = &fake.context.context;
	fake.device.generation = 1;
	fake.nic.qps = qp;
	rules = 0;
	port_be = 0;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	verbs_flows_end_of_qp(qp);
	verbs_flows_fini(&fake.nic);
	if (fake.nic.diag_fd >= 0)
		close(fake.nic.diag_fd);
	if (neighbour.diag_fd >= 0)
		close(neighbour.diag_fd);
	assert_int_equal(rules, 0);
	fake_provider_free_qp();
	return 0;
}

/* A socket that receives the group, and what it takes to have it offloaded. The first one chooses the port. */
static int bind_to_group(struct vma_flow_rule *rule)
{
	struct sockaddr_in group = {.sin_family = AF_INET, .sin_port = port_be};
	socklen_t len = sizeof(group), cookie_len = sizeof(rule->shadow_cookie);
	const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1;

	inet_pton(AF_INET, "239.1.2.3", &group.sin_addr);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
	assert_int_equal(bind(fd, (const struct sockaddr *)&group, len), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&group, &len), 0);
	port_be = group.sin_port;
	*rule = (struct vma_flow_rule){
	        .key = {.family = AF_INET, .proto = IPPROTO_UDP, .local = {239, 1, 2, 3}, .local_port_be = port_be}};
	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_COOKIE, &rule->shadow_cookie, &cookie_len), 0);
	return fd;
}

/* As a neighbour does before it makes its rule. */
static struct verbs_flow neighbour_flow(const struct vma_flow_rule *rule)
{
	struct verbs_flow flow = {.rule = *rule, .qp = &neighbour_qp, .claim_fd = -1};

	assert_int_equal(nic_cookies_add(&flow.shadows, &rule->key, rule->shadow_cookie), 0);
	return flow;
}

static void neighbour_flow_end(struct verbs_flow *flow)
{
	verbs_members_end(flow);
	nic_cookies_fini(&flow->shadows);
}

static void look_twice(void)
{
	for (int i = 0; i < 2; i++) {
		fake.nic.look_ms = 0;
		verbs_conflicts_search_and_revoke(&fake.nic);
	}
}

static void test_two_processes_receive_one_group_by_the_card(void **state)
{
	struct vma_flow_rule rule, other;
	const int fd = bind_to_group(&rule), other_fd = bind_to_group(&other);
	struct verbs_flow flow = neighbour_flow(&other);

	(void)state;
	assert_int_equal(verbs_flow_add(&qp->base, &rule),
	                 -EADDRINUSE); /* the kernel's socket, for all that is known */
	verbs_members_name_all(&flow);
	assert_int_equal(flow.members->n, 1);
	assert_int_equal(verbs_flow_add(&qp->base, &rule), 0);
	look_twice();
	assert_int_equal(rules, 1);
	assert_int_equal(verbs_flow_find(&fake.nic, &rule.key)->members->n,
	                 1); /* by which the neighbour knows this one */
	assert_int_equal(verbs_flow_find(&fake.nic, &rule.key)->claim_fd, -1);
	neighbour_flow_end(&flow); /* its rule has ended, and its socket is there */
	look_twice();
	assert_int_equal(rules, 0);
	close(fd);
	close(other_fd);
}

static void test_a_kernel_socket_has_the_group_with_all_that_are_named(void **state)
{
	struct vma_flow_rule rule, other, third;
	const int fd = bind_to_group(&rule), other_fd = bind_to_group(&other);
	struct verbs_flow flow = neighbour_flow(&other);
	int third_fd;

	(void)state;
	verbs_members_name_all(&flow);
	assert_int_equal(verbs_flow_add(&qp->base, &rule), 0);
	look_twice();
	assert_int_equal(rules, 1);
	third_fd = bind_to_group(&third);
	look_twice();
	assert_int_equal(rules, 0);
	close(third_fd);
	neighbour_flow_end(&flow);
	close(fd);
	close(other_fd);
}

/* The name of another group, or of the same one on another device, says nothing of this one. */
static void test_a_name_is_of_one_flow_alone(void **state)
{
	struct vma_flow_rule rule, other;
	const int fd = bind_to_group(&rule), other_fd = bind_to_group(&other);
	struct verbs_flow flow = neighbour_flow(&other);

	(void)state;
	flow.rule.key.local[3]++;
	verbs_members_name_all(&flow);
	assert_int_equal(verbs_flow_add(&qp->base, &rule), -EADDRINUSE);
	verbs_members_end(&flow);
	flow.rule.key.local[3]--;
	neighbour.base.info.ifindex++;
	verbs_members_name_all(&flow);
	assert_int_equal(verbs_flow_add(&qp->base, &rule), -EADDRINUSE);
	neighbour_flow_end(&flow);
	close(fd);
	close(other_fd);
}

/* Holds the name until the parent closes its end. */
static void name_as_other_user(struct verbs_flow *flow, int told)
{
	char byte;

	if (setresgid(STRANGER, STRANGER, STRANGER) < 0 || setresuid(STRANGER, STRANGER, STRANGER) < 0)
		_exit(1);
	verbs_members_name_all(flow);
	if (write(told, "", 1) != 1 || read(told, &byte, 1) < 0)
		_exit(2);
	_exit(flow->members->n == 1 ? 0 : 3);
}

static void test_a_stranger_cannot_name_what_is_not_its_own(void **state)
{
	struct vma_flow_rule rule, other;
	const int fd = bind_to_group(&rule), other_fd = bind_to_group(&other);
	struct verbs_flow flow = neighbour_flow(&other);
	int pair[2], status;
	char byte;
	pid_t child;

	(void)state;
	if (getuid() != 0)
		vma_test_skip("only root can be another user");
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	child = fork();
	if (child == 0) {
		close(pair[0]);
		name_as_other_user(&flow, pair[1]);
	}
	close(pair[1]);
	assert_int_equal(read(pair[0], &byte, 1), 1);
	assert_int_equal(verbs_flow_add(&qp->base, &rule), -EADDRINUSE);
	close(pair[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	neighbour_flow_end(&flow);
	close(fd);
	close(other_fd);
}

static void test_members_that_come_and_go_have_names_within_a_bound(void **state)
{
	struct vma_flow_rule rule, other;
	const int fd = bind_to_group(&rule);
	const struct verbs_flow *flow;
	int last_fd = -1;

	(void)state;
	assert_int_equal(verbs_flow_add(&qp->base, &rule), 0);
	flow = verbs_flow_find(&fake.nic, &rule.key);
	for (unsigned i = 0; i < 3 * VERBS_MEMBERS_MAX; i++) {
		if (last_fd >= 0)
			close(last_fd);
		last_fd = bind_to_group(&other);
		assert_int_equal(verbs_flow_add(&qp->base, &other), -EEXIST);
		assert_in_range(flow->members->n, 2, VERBS_MEMBERS_MAX);
		assert_int_equal(flow->members->at[flow->members->n - 1].cookie, other.shadow_cookie);
	}
	look_twice();
	assert_int_equal(rules, 1);
	close(last_fd);
	close(fd);
}

static void test_a_group_of_a_port_that_nobody_shares_needs_no_name(void **state)
{
	struct vma_flow_rule rule;
	const int fd = bind_to_group(&rule);
	const struct verbs_flow *flow;

	(void)state;
	rule.flags = VMA_FLOW_PORT_EXCLUSIVE;
	assert_int_equal(verbs_flow_add(&qp->base, &rule), 0);
	flow = verbs_flow_find(&fake.nic, &rule.key);
	assert_null(flow->members);
	rule.flags = 0;
	assert_int_equal(verbs_flow_add(&qp->base, &rule), -EEXIST);
	assert_non_null(flow->members);
	assert_int_equal(flow->members->n, 1);
	close(fd);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
static const struct CMUnitTest tests[] = {
        CASE(test_two_processes_receive_one_group_by_the_card),
        CASE(test_a_kernel_socket_has_the_group_with_all_that_are_named),
        CASE(test_a_name_is_of_one_flow_alone),
        CASE(test_a_stranger_cannot_name_what_is_not_its_own),
        CASE(test_members_that_come_and_go_have_names_within_a_bound),
        CASE(test_a_group_of_a_port_that_nobody_shares_needs_no_name),
};
VMA_TEST_MAIN(tests)
