/* The decisions: from route, link and neighbour to a template. */
#include <errno.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <string.h>
#include <sys/socket.h>

#include <vma/test.h>

#include "../plan.h"

#define UP (IFF_UP | IFF_RUNNING | IFF_BROADCAST | IFF_MULTICAST)

static const struct vma_net_key key = {.family = AF_INET, .dst = {10, 9, 0, 2}};
static const struct vma_net_route on_link_route = {
        .type = RTN_UNICAST, .family = AF_INET, .oif = 3, .src = {10, 9, 0, 1}};
static const struct vma_net_link veth = {
        .ifindex = 3,
        .flags = UP,
        .mtu = 1500,
        .hw_type = ARPHRD_ETHER,
        .mac = {2, 0, 0, 0, 0, 1},
        .broadcast = {255, 255, 255, 255, 255, 255},
};
static const struct vma_net_neigh known_neighbour = {
        .ifindex = 3, .state = NUD_REACHABLE, .family = AF_INET, .mac_len = 6, .mac = {2, 0, 0, 0, 0, 2}};

static enum plan_need plan_path_of_route_and_link(const struct vma_net_route *route, const struct vma_net_link *link,
                                                  struct vma_net_template *t)
{
	const struct plan_facts facts = {.key = &key, .route = route, .link = link};

	return plan_fill_path_template_from_facts(&facts, t);
}

static void test_resolved_neighbour_gives_a_complete_header(void **state)
{
	const uint8_t wanted[34] = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0,  0, 1, 8, 0,  0x45, 0, 0,
	                            0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 9, 0, 1, 10, 9,    0, 2};
	struct vma_net_template t;

	(void)state;
	assert_int_equal(plan_path_of_route_and_link(&on_link_route, &veth, &t), PLAN_NEIGH);
	assert_int_equal(t.state, VMA_NET_RESOLVING);
	assert_int_equal(t.len, 0);
	plan_apply_neigh_to_template(&t, PLAN_NEIGH, &known_neighbour);
	assert_int_equal(t.state, VMA_NET_READY);
	assert_int_equal(t.len, sizeof(wanted));
	assert_int_equal(t.ip_off, 14);
	assert_memory_equal(t.bytes, wanted, sizeof(wanted));
	assert_int_equal(t.ifindex, 3);
	assert_int_equal(t.nic, 3);
	assert_int_equal(t.mtu, 1500);
}

static void test_next_hop_is_the_gateway(void **state)
{
	struct vma_net_route route = on_link_route;
	const uint8_t gateway[16] = {10, 9, 0, 254};
	struct vma_net_template t;

	(void)state;
	route.gateway_family = AF_INET;
	memcpy(route.gateway, gateway, 16);
	assert_int_equal(plan_path_of_route_and_link(&route, &veth, &t), PLAN_NEIGH);
	assert_memory_equal(t.next_hop, gateway, 16);
	plan_apply_neigh_to_template(&t, PLAN_NEIGH, &known_neighbour);
	assert_memory_equal(t.bytes + 30, key.dst, 4); /* the packet is for the destination all the same */
}

static void test_neighbour_states(void **state)
{
	static const struct {
		uint16_t nud;
		uint8_t mac_len;
		enum vma_net_path_state state;
		int error, flags;
	} cases[] = {
	        {0, 0, VMA_NET_RESOLVING, 0, 0},
	        {NUD_INCOMPLETE, 0, VMA_NET_RESOLVING, 0, 0},
	        {NUD_FAILED, 0, VMA_NET_FAILED, EHOSTUNREACH, 0},
	        {NUD_FAILED, 6, VMA_NET_FAILED, EHOSTUNREACH, 0},
	        {NUD_REACHABLE, 6, VMA_NET_READY, 0, 0},
	        {NUD_PERMANENT, 6, VMA_NET_READY, 0, 0},
	        {NUD_STALE, 6, VMA_NET_READY, 0, VMA_NET_CONFIRM},
	        {NUD_DELAY, 6, VMA_NET_READY, 0, 0},
	        {NUD_PROBE, 6, VMA_NET_READY, 0, 0},
	        {NUD_REACHABLE, 0, VMA_NET_RESOLVING, 0, 0},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct vma_net_neigh neigh = known_neighbour;
		struct vma_net_template t;

		neigh.state = cases[i].nud;
		neigh.mac_len = cases[i].mac_len;
		plan_path_of_route_and_link(&on_link_route, &veth, &t);
		plan_apply_neigh_to_template(&t, PLAN_NEIGH, &neigh);
		assert_int_equal(t.state, cases[i].state);
		assert_int_equal(t.error, cases[i].error);
		assert_int_equal(t.flags, cases[i].flags);
		assert_int_equal(t.len != 0, cases[i].state == VMA_NET_READY);
	}
}

static void test_what_belongs_to_the_os_says_why(void **state)
{
	static const struct {
		struct vma_net_route route;
		uint32_t link_flags;
		uint16_t hw_type;
		bool no_link;
		enum vma_net_reason reason;
	} cases[] = {
	        {{.type = RTN_LOCAL}, UP, ARPHRD_ETHER, false, VMA_NET_REASON_LOCAL},
	        {{.type = RTN_UNICAST}, UP | IFF_LOOPBACK, ARPHRD_LOOPBACK, false, VMA_NET_REASON_LOCAL},
	        {{.type = RTN_NAT}, UP, ARPHRD_ETHER, false, VMA_NET_REASON_ROUTE_TYPE},
	        {{.type = RTN_UNICAST}, UP, ARPHRD_ETHER, true, VMA_NET_REASON_NO_LINK},
	        {{.type = RTN_UNICAST}, IFF_BROADCAST, ARPHRD_ETHER, false, VMA_NET_REASON_LINK_DOWN},
	        {{.type = RTN_UNICAST}, IFF_UP, ARPHRD_ETHER, false, VMA_NET_REASON_LINK_DOWN},
	        {{.type = RTN_UNICAST}, UP, ARPHRD_PPP, false, VMA_NET_REASON_NOT_ETHERNET},
	        {{.type = RTN_UNICAST, .encap = true}, UP, ARPHRD_ETHER, false, VMA_NET_REASON_ENCAP},
	        {{.type = RTN_UNICAST, .gateway_family = AF_INET6},
	         UP,
	         ARPHRD_ETHER,
	         false,
	         VMA_NET_REASON_GATEWAY_FAMILY},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct vma_net_route route = cases[i].route;
		struct vma_net_link link = veth;
		struct vma_net_template t;

		route.family = AF_INET;
		route.oif = 3;
		link.flags = cases[i].link_flags;
		link.hw_type = cases[i].hw_type;
		assert_int_equal(plan_path_of_route_and_link(&route, cases[i].no_link ? NULL : &link, &t),
		                 PLAN_NOTHING);
		assert_int_equal(t.state, VMA_NET_USE_OS);
		assert_int_equal(t.reason, cases[i].reason);
		assert_int_equal(t.len, 0);
		assert_true(strlen(vma_net_reason_text(t.reason)) > 0);
	}
}

static void test_refusal_is_the_kernels_errno(void **state)
{
	struct plan_facts facts = {.key = &key, .refused = -ENETUNREACH};
	struct vma_net_route none = {0};
	struct vma_net_template t;

	(void)state;
	facts.route = &none;
	assert_int_equal(plan_fill_path_template_from_facts(&facts, &t), PLAN_NOTHING);
	assert_int_equal(t.state, VMA_NET_ERROR);
	assert_int_equal(t.error, ENETUNREACH);
	facts.refused = PLAN_NOT_ASKED; /* our own trouble is not the application's */
	plan_fill_path_template_from_facts(&facts, &t);
	assert_int_equal(t.state, VMA_NET_USE_OS);
	assert_int_equal(t.reason, VMA_NET_REASON_NOT_ASKED);
}

static void test_multicast_and_broadcast_need_no_neighbour(void **state)
{
	const uint8_t group_mac[6] = {1, 0, 0x5e, 0x7f, 1, 2};
	struct vma_net_key to_group = {.family = AF_INET, .dst = {239, 255, 1, 2}};
	struct vma_net_route route = on_link_route;
	struct plan_facts facts = {.key = &to_group, .route = &route, .link = &veth};
	struct vma_net_template t;

	(void)state;
	route.type = RTN_MULTICAST;
	assert_int_equal(plan_fill_path_template_from_facts(&facts, &t), PLAN_NOTHING);
	assert_int_equal(t.state, VMA_NET_READY);
	assert_memory_equal(t.bytes, group_mac, 6);
	route.type = RTN_BROADCAST;
	assert_int_equal(plan_fill_path_template_from_facts(&facts, &t), PLAN_NOTHING);
	assert_int_equal(t.state, VMA_NET_READY);
	assert_memory_equal(t.bytes, veth.broadcast, 6);
	assert_int_equal(t.type, RTN_BROADCAST);
}

static void test_link_without_arp_takes_its_own_mac_unless_told(void **state)
{
	struct vma_net_link link = veth;
	const struct vma_net_neigh nothing = {0};
	struct vma_net_template t, copy;

	(void)state;
	link.flags |= IFF_NOARP;
	assert_int_equal(plan_path_of_route_and_link(&on_link_route, &link, &t), PLAN_NEIGH_IF_KNOWN);
	copy = t;
	plan_apply_neigh_to_template(&copy, PLAN_NEIGH_IF_KNOWN, &nothing);
	assert_int_equal(copy.state, VMA_NET_READY);
	assert_memory_equal(copy.bytes, veth.mac, 6);
	plan_apply_neigh_to_template(&t, PLAN_NEIGH_IF_KNOWN, &known_neighbour);
	assert_memory_equal(t.bytes, known_neighbour.mac, 6);
}

static void test_vlan_is_tagged_on_the_interface_below(void **state)
{
	struct vma_net_link vlan = veth, below = veth;
	const struct plan_facts facts = {.key = &key, .route = &on_link_route, .link = &vlan, .lower = &below};
	const uint8_t tag[6] = {0x81, 0, 0x01, 0x02, 8, 0};
	struct vma_net_template t;

	(void)state;
	vlan.vlan = 0x102;
	vlan.lower = below.ifindex = 2;
	assert_int_equal(plan_fill_path_template_from_facts(&facts, &t), PLAN_NEIGH);
	plan_apply_neigh_to_template(&t, PLAN_NEIGH, &known_neighbour);
	assert_int_equal(t.nic, 2);
	assert_int_equal(t.ifindex, 3);
	assert_int_equal(t.vlan, 0x102);
	assert_int_equal(t.ip_off, 18);
	assert_int_equal(t.len, 38);
	assert_memory_equal(t.bytes + 12, tag, 6);
	below.vlan = 7; /* a second tag is not ours to write: send through the upper interface */
	plan_fill_path_template_from_facts(&facts, &t);
	assert_int_equal(t.nic, 3);
	assert_int_equal(t.vlan, 0);
	assert_int_equal(t.ip_off, 14);
}

static void test_mtu_is_the_smaller_of_route_and_link(void **state)
{
	struct vma_net_route route = on_link_route;
	struct vma_net_template t;

	(void)state;
	route.mtu = 1400;
	plan_path_of_route_and_link(&route, &veth, &t);
	assert_int_equal(t.mtu, 1400);
	route.mtu = 9000;
	plan_path_of_route_and_link(&route, &veth, &t);
	assert_int_equal(t.mtu, 1500);
}

static void test_mtu_is_bounded_by_the_environment(void **state)
{
	struct plan_facts facts = {.key = &key, .route = &on_link_route, .link = &veth, .mtu_max = 600};
	struct vma_net_template t;

	(void)state;
	plan_fill_path_template_from_facts(&facts, &t);
	assert_int_equal(t.mtu, 600);
	facts.mtu_max = 9000;
	plan_fill_path_template_from_facts(&facts, &t);
	assert_int_equal(t.mtu, 1500);
}

static void test_metrics_are_the_routes(void **state)
{
	struct vma_net_neigh neigh = {.state = NUD_STALE, .mac_len = 6};
	struct vma_net_route route = on_link_route;
	struct vma_net_template t;
	enum plan_need need;

	(void)state;
	route.advmss = 900;
	route.initcwnd = 20;
	route.quickack = true;
	need = plan_path_of_route_and_link(&route, &veth, &t);
	plan_apply_neigh_to_template(&t, need, &neigh);
	assert_int_equal(t.advmss, 900);
	assert_int_equal(t.initcwnd, 20);
	assert_int_equal(t.flags, VMA_NET_QUICKACK | VMA_NET_CONFIRM);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics_are_the_routes),
        cmocka_unit_test(test_resolved_neighbour_gives_a_complete_header),
        cmocka_unit_test(test_next_hop_is_the_gateway),
        cmocka_unit_test(test_neighbour_states),
        cmocka_unit_test(test_what_belongs_to_the_os_says_why),
        cmocka_unit_test(test_refusal_is_the_kernels_errno),
        cmocka_unit_test(test_multicast_and_broadcast_need_no_neighbour),
        cmocka_unit_test(test_link_without_arp_takes_its_own_mac_unless_told),
        cmocka_unit_test(test_vlan_is_tagged_on_the_interface_below),
        cmocka_unit_test(test_mtu_is_the_smaller_of_route_and_link),
        cmocka_unit_test(test_mtu_is_bounded_by_the_environment),
};

VMA_TEST_MAIN(tests)
