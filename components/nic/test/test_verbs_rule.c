/* Flow keys as rules of a card: addresses, ports, MACs, priorities. */
#include <arpa/inet.h>

#include <vma/test.h>

#include "../verbs/rule.h"
#include "frames.h"

static const uint8_t mac[6] = {0x02, 0x11, 0x22, 0x33, 0x44, 0x55};
static const uint8_t all_ones[6] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

static struct verbs_rule_spec build_verbs_rule_spec(const struct vma_flow_key *key, bool is_broadcast)
{
	const struct verbs_rule_port at = {
	        .mac = mac, .port = 2, .priority = verbs_rule_priority(key), .is_broadcast = is_broadcast};
	struct verbs_rule_spec rule;

	memset(&rule, 0xee, sizeof(rule));
	verbs_rule_build(key, &at, &rule);
	return rule;
}

static void assert_rule_spec_headers(const struct verbs_rule_spec *rule, enum ibv_flow_spec_type l4)
{
	assert_int_equal(rule->attr.type, IBV_FLOW_ATTR_NORMAL);
	assert_int_equal(rule->attr.size, sizeof(*rule));
	assert_int_equal(rule->attr.num_of_specs, 3);
	assert_int_equal(rule->attr.port, 2);
	assert_int_equal(rule->attr.flags, 0);
	assert_int_equal(rule->attr.comp_mask, 0);
	assert_int_equal(rule->eth.type, IBV_FLOW_SPEC_ETH);
	assert_int_equal(rule->ipv4.type, IBV_FLOW_SPEC_IPV4);
	assert_int_equal(rule->l4.type, l4);
	assert_int_equal(rule->eth.size + rule->ipv4.size + rule->l4.size + sizeof(rule->attr), sizeof(*rule));
	assert_memory_equal(rule->eth.mask.dst_mac, all_ones, 6);
	assert_int_equal(rule->ipv4.mask.dst_ip, UINT32_MAX);
	assert_int_equal(rule->l4.mask.dst_port, 0xffff);
}

static void test_a_connection_is_five_fields_and_our_mac_first_of_all(void **state)
{
	const struct vma_flow_rule flow = make_flow_rule(0, IPPROTO_TCP, 80, 4000, 0);
	const struct verbs_rule_spec rule = build_verbs_rule_spec(&flow.key, false);

	(void)state;
	assert_rule_spec_headers(&rule, IBV_FLOW_SPEC_TCP);
	assert_int_equal(rule.attr.priority, VERBS_PRIORITY_PEER);
	assert_memory_equal(rule.eth.val.dst_mac, mac, 6);
	assert_int_equal(rule.ipv4.val.dst_ip, test_ip(0));
	assert_int_equal(rule.ipv4.val.src_ip, test_ip(1));
	assert_int_equal(rule.ipv4.mask.src_ip, UINT32_MAX);
	assert_int_equal(rule.l4.val.dst_port, htons(80));
	assert_int_equal(rule.l4.val.src_port, htons(4000));
	assert_int_equal(rule.l4.mask.src_port, 0xffff);
}

static void test_any_peer_is_three_fields_behind_all_connections(void **state)
{
	const struct vma_flow_rule listener = make_flow_rule(0, IPPROTO_TCP, 80, 0, VMA_FLOW_LISTENER),
	                           port = make_flow_rule(1, IPPROTO_UDP, 53, 0, 0);
	const struct verbs_rule_spec rules[] = {build_verbs_rule_spec(&listener.key, false),
	                                        build_verbs_rule_spec(&port.key, false)};

	(void)state;
	assert_rule_spec_headers(&rules[0], IBV_FLOW_SPEC_TCP);
	assert_rule_spec_headers(&rules[1], IBV_FLOW_SPEC_UDP);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(rules[i].attr.priority, VERBS_PRIORITY_ANY);
		assert_memory_equal(rules[i].eth.val.dst_mac, mac, 6);
		assert_int_equal(rules[i].ipv4.val.dst_ip, test_ip(i));
		assert_int_equal(rules[i].ipv4.mask.src_ip, 0);
		assert_int_equal(rules[i].ipv4.val.src_ip, 0);
		assert_int_equal(rules[i].l4.val.dst_port, htons(i == 0 ? 80 : 53));
		assert_int_equal(rules[i].l4.mask.src_port, 0);
		assert_int_equal(rules[i].eth.mask.vlan_tag, 0);
	}
}

static void test_all_tcp_of_an_address_is_behind_all_other_rules(void **state)
{
	const struct vma_flow_rule address = make_flow_rule(1, VMA_FLOW_TCP_ADDRESS, 0, 0, 0);
	const struct verbs_rule_spec rule = build_verbs_rule_spec(&address.key, false);

	(void)state;
	assert_int_equal(rule.attr.num_of_specs, 3);
	assert_true(rule.attr.priority > VERBS_PRIORITY_ANY + VERBS_PRIORITY_MOVED);
	assert_memory_equal(rule.eth.val.dst_mac, mac, 6);
	assert_memory_equal(rule.eth.mask.dst_mac, all_ones, 6);
	assert_int_equal(rule.ipv4.val.dst_ip, test_ip(1));
	assert_int_equal(rule.ipv4.mask.dst_ip, UINT32_MAX);
	assert_int_equal(rule.ipv4.mask.src_ip, 0);
	assert_int_equal(rule.l4.type, IBV_FLOW_SPEC_TCP);
	assert_int_equal(rule.l4.mask.dst_port, 0);
	assert_int_equal(rule.l4.mask.src_port, 0);
}

static void test_a_group_has_its_own_mac_of_23_bits(void **state)
{
	static const uint8_t group_mac[6] = {0x01, 0x00, 0x5e, 0x7f, 0x02, 0x03};
	struct vma_flow_rule flow = make_flow_rule(0, IPPROTO_UDP, 5000, 0, 0);
	struct verbs_rule_spec rule;

	(void)state;
	memcpy(flow.key.local, (uint8_t[]){239, 255, 2, 3}, 4);
	rule = build_verbs_rule_spec(&flow.key, false);
	assert_memory_equal(rule.eth.val.dst_mac, group_mac, 6);
	memcpy(flow.key.local, (uint8_t[]){224, 127, 2, 3}, 4);
	rule = build_verbs_rule_spec(&flow.key, false);
	assert_memory_equal(rule.eth.val.dst_mac, group_mac, 6);
	memcpy(flow.key.local, (uint8_t[]){223, 255, 2, 3}, 4);
	rule = build_verbs_rule_spec(&flow.key, false);
	assert_memory_equal(rule.eth.val.dst_mac, mac, 6);
}

static void test_a_broadcast_address_goes_to_all_ones(void **state)
{
	struct vma_flow_rule flow = make_flow_rule(0, IPPROTO_UDP, 67, 0, 0);
	struct verbs_rule_spec rule;

	(void)state;
	memset(flow.key.local, 0xff, 4);
	rule = build_verbs_rule_spec(&flow.key, true);
	assert_memory_equal(rule.eth.val.dst_mac, all_ones, 6);
	assert_int_equal(rule.attr.priority, VERBS_PRIORITY_ANY);
}

static void test_a_vlan_is_its_twelve_bits(void **state)
{
	struct vma_flow_rule flow = make_flow_rule(0, IPPROTO_UDP, 67, 0, 0);
	struct verbs_rule_spec rule;

	(void)state;
	flow.key.vlan = 4094;
	rule = build_verbs_rule_spec(&flow.key, false);
	assert_int_equal(rule.eth.val.vlan_tag, htons(4094));
	assert_int_equal(rule.eth.mask.vlan_tag, htons(0x0fff));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_connection_is_five_fields_and_our_mac_first_of_all),
	        cmocka_unit_test(test_any_peer_is_three_fields_behind_all_connections),
	        cmocka_unit_test(test_all_tcp_of_an_address_is_behind_all_other_rules),
	        cmocka_unit_test(test_a_group_has_its_own_mac_of_23_bits),
	        cmocka_unit_test(test_a_broadcast_address_goes_to_all_ones),
	        cmocka_unit_test(test_a_vlan_is_its_twelve_bits),
	};

	vma_test_set_filter_from_env();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
