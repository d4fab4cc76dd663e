/*
 * What the verbs backend tells vmad (verbs/peers.c), on a provider that is a table of functions and a vmad that is
 * another one: connections that are left to it keep their rules until it has its own.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>

#include <vma/test.h>

#include "../client/watch.h"
#include "fake_provider.h"

static struct verbs_qp *qp, other;
static unsigned rules;

static struct ibv_flow *fake_create_flow_counting_rules(struct ibv_qp *of, struct ibv_flow_attr *attr)
{
	struct ibv_flow *flow = calloc(1, sizeof(*flow));

	(void)attr;
	flow->context = of->context;
	rules++;
	return flow;
}

static int end_rule(struct ibv_flow *flow)
{
	rules--;
	free(flow);
	return 0;
}

/* ---- in place of client/watch.c ---- */

struct vmad_client {
	int unused;
};
static struct vmad_client known_vmad, new_vmad;
static int begin_result, export_result;
static unsigned begun, ended, added, deleted, exported, rules_at_export;
static const struct vmad_client *exported_to;

int vmad_watch_create_right_fd(unsigned ifindex, const char *ifname)
{
	(void)ifindex, (void)ifname;
	return -1;
}

int vmad_watch_connect(unsigned ifindex, const char *ifname, int right_fd, struct vmad_connecting *connecting,
                       struct vmad_client **out)
{
	(void)ifindex, (void)ifname, (void)right_fd, (void)connecting;
	if (begin_result == 0) {
		begun++;
		*out = &new_vmad;
	}
	return begin_result;
}

void vmad_connecting_remove(struct vmad_connecting *connecting, struct vmad_client *client)
{
	(void)connecting, (void)client;
}

void vmad_connecting_close_in_child(const struct vmad_connecting *connecting)
{
	(void)connecting;
}

void vmad_watch_disconnect(struct vmad_client *client)
{
	(void)client;
	ended++;
}

int vmad_watch_fd(const struct vmad_client *client)
{
	(void)client;
	return -1;
}

bool vmad_watch_add(struct vmad_client *client, const struct vma_flow_key *key)
{
	(void)client, (void)key;
	added++;
	return true;
}

bool vmad_watch_del(struct vmad_client *client, const struct vma_flow_key *key)
{
	(void)client, (void)key;
	deleted++;
	return true;
}

bool vmad_watch_forget_all(struct vmad_client *client)
{
	(void)client;
	return true;
}

int vmad_export_minisocks_of_verbs_card(struct vmad_client *client, const struct vma_flow_minisock *minisocks,
                                        unsigned n)
{
	(void)minisocks;
	exported += n;
	exported_to = client;
	rules_at_export = rules;
	return export_result;
}

/* ---- the fixture ---- */

static int setup_verbs_peers_fakes(void **state)
{
	(void)state;
	qp = fake_provider_setup_qp(16, 0);
	fake.nic.wake_fd = fake.nic.diag_fd = fake.nic.peers.right_fd = -1;
	fake.context.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	fake.context.sz = sizeof(fake.context);
	fake.context.ibv_create_flow = fake_create_flow_counting_rules;
	fake.context.ibv_destroy_flow = end_rule;
	fake.device.context = &fake.context.context;
	fake.qp.context = &fake.context.context;
	fake.nic.qps = qp;
	fake.nic.peers.vmad = &known_vmad;
	other = (struct verbs_qp){.nic = &fake.nic, .fork_guard = qp->fork_guard, .queue = qp->queue};
	other.base.nic = &fake.nic.base;
	other.stats = vma_stats_block_alloc(NULL, VMA_STATS_TYPE_NIC, "other");
	begin_result = export_result = 0;
	rules = begun = ended = added = deleted = exported = rules_at_export = 0;
	exported_to = NULL;
	return 0;
}

static int end(void **state)
{
	(void)state;
	fake.nic.peers.vmad = NULL;
	verbs_flows_end_of_qp(qp);
	verbs_flows_end_of_qp(&other);
	verbs_flows_fini(&fake.nic);
	assert_int_equal(rules, 0);
	vma_stats_block_free(NULL, other.stats);
	fake_provider_free_qp();
	return 0;
}

static struct vma_flow_minisock make_fin_wait_minisock(uint16_t peer_port)
{
	return (struct vma_flow_minisock){.key = {.family = AF_INET,
	                                          .proto = IPPROTO_TCP,
	                                          .local_port_be = htons(80),
	                                          .peer_port_be = htons(peer_port),
	                                          .local = {10, 0, 0, 1},
	                                          .peer = {10, 0, 0, 2}},
	                                  .state = VMA_MINISOCK_FIN_WAIT};
}

static void peers_add_flow(struct verbs_qp *to, uint16_t peer_port)
{
	const struct vma_flow_rule rule = {.key = make_fin_wait_minisock(peer_port).key};

	assert_int_equal(verbs_flow_add(&to->base, &rule), 0);
}

static int peers_del_flow(struct verbs_qp *of, uint16_t peer_port)
{
	const struct vma_flow_minisock minisock = make_fin_wait_minisock(peer_port);

	return verbs_flow_del(&of->base, &minisock.key);
}

/* Ports 1, 2 and 3, of which the second is another queue pair's, and the third has no rule. */
static int export_minisocks_of_three_ports(void)
{
	const struct vma_flow_minisock minisocks[] = {make_fin_wait_minisock(1), make_fin_wait_minisock(2),
	                                              make_fin_wait_minisock(3)};

	peers_add_flow(qp, 1);
	peers_add_flow(&other, 2);
	return verbs_export_minisocks_to_vmad(&qp->base, minisocks, 3);
}

/* ---- cases ---- */

static void test_rules_end_when_vmad_has_its_own(void **state)
{
	(void)state;
	assert_int_equal(export_minisocks_of_three_ports(), 0);
	assert_int_equal(exported, 3);
	assert_ptr_equal(exported_to, &known_vmad);
	assert_int_equal(rules_at_export, 2);
	assert_int_equal(rules, 1);
	assert_int_equal(deleted, 0); /* vmad knows */
	assert_int_equal(peers_del_flow(qp, 1), -ENOENT);
	assert_int_equal(peers_del_flow(&other, 2), 0);
	assert_int_equal(deleted, 1);
	assert_int_equal(fake.nic.peers.connections, 0);
}

static void test_if_vmad_does_not_take_them_nothing_changes(void **state)
{
	(void)state;
	export_result = -EOPNOTSUPP;
	assert_int_equal(export_minisocks_of_three_ports(), -EOPNOTSUPP);
	assert_int_equal(rules, 2);
	assert_int_equal(peers_del_flow(qp, 1), 0);
}

static void test_a_vmad_that_was_not_known_is_looked_for(void **state)
{
	(void)state;
	fake.nic.peers.vmad = NULL;
	begin_result = -ECONNREFUSED;
	assert_int_equal(export_minisocks_of_three_ports(), -EOPNOTSUPP);
	assert_int_equal(exported, 0);
	begin_result = 0;
	assert_int_equal(peers_del_flow(qp, 1), 0);
	assert_int_equal(peers_del_flow(&other, 2), 0);
	assert_int_equal(export_minisocks_of_three_ports(), 0);
	assert_ptr_equal(exported_to, &new_vmad);
	assert_int_equal(rules, 1);
	assert_int_equal(begun, 1);
	assert_int_equal(ended, 1);
}

static void test_vmad_is_not_told_of_its_own(void **state)
{
	(void)state;
	fake.nic.peers.vmad = NULL;
	verbs_peers_get_vmad_permission(&fake.nic, true);
	assert_int_equal(export_minisocks_of_three_ports(), -EOPNOTSUPP);
	assert_int_equal(verbs_peers_sync_with_vmad(&fake.nic), -1);
	assert_int_equal(begun + added + exported, 0);
}

static void test_a_queue_pair_that_is_lost_leaves_nothing(void **state)
{
	(void)state;
	peers_add_flow(qp, 5);
	atomic_store(&qp->base.lost, true);
	assert_int_equal(verbs_export_minisocks_to_vmad(&qp->base, NULL, 0), -EOPNOTSUPP);
	assert_int_equal(exported, 0);
	assert_int_equal(rules, 1);
	atomic_store(&qp->base.lost, false);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup_verbs_peers_fakes, end)
static const struct CMUnitTest tests[] = {
        CASE(test_rules_end_when_vmad_has_its_own),          CASE(test_if_vmad_does_not_take_them_nothing_changes),
        CASE(test_a_vmad_that_was_not_known_is_looked_for),  CASE(test_vmad_is_not_told_of_its_own),
        CASE(test_a_queue_pair_that_is_lost_leaves_nothing),
};
VMA_TEST_MAIN(tests)
