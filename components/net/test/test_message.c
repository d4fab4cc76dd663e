/* Messages of the kernel, built attribute by attribute: what is taken from them, and what is refused. */
#include <errno.h>
#include <linux/if_link.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <string.h>
#include <sys/socket.h>

#include <vma/test.h>

#include "../message.h"
#include "../netlink.h"

static struct nl_msg *message;

static int teardown_free_message(void **state)
{
	(void)state;
	nlmsg_free(message);
	message = NULL;
	return 0;
}

static void netlink_test_message_begin(int type, const void *header, int bytes)
{
	message = net_nl_alloc_request_message(type, 0, header, bytes);
	assert_non_null(message);
}

static void begin_rtm_newlink_message(int family, const char *kind)
{
	const struct ifinfomsg header = {
	        .ifi_family = (unsigned char)family, .ifi_index = 7, .ifi_type = 1, .ifi_flags = IFF_UP};
	struct nlattr *info;

	netlink_test_message_begin(RTM_NEWLINK, &header, sizeof(header));
	nla_put_string(message, IFLA_IFNAME, "net7");
	nla_put_u32(message, IFLA_MTU, 1500);
	nla_put_u32(message, IFLA_MASTER, 4);
	nla_put_u32(message, IFLA_LINK, 3);
	nla_put(message, IFLA_ADDRESS, 6, "\2\0\0\0\0\1");
	info = nla_nest_start(message, IFLA_LINKINFO);
	nla_put_string(message, IFLA_INFO_KIND, kind);
	if (strcmp(kind, "vlan") == 0) {
		struct nlattr *data = nla_nest_start(message, IFLA_INFO_DATA);

		nla_put_u16(message, IFLA_VLAN_ID, 100);
		nla_put_u16(message, IFLA_VLAN_PROTOCOL, __builtin_bswap16(0x8100));
		nla_nest_end(message, data);
	}
	nla_nest_end(message, info);
}

static void test_link_is_taken_whole(void **state)
{
	struct vma_net_link link;

	(void)state;
	begin_rtm_newlink_message(AF_UNSPEC, "vlan");
	assert_int_equal(net_msg_parse_link(nlmsg_hdr(message), &link), 0);
	assert_int_equal(link.ifindex, 7);
	assert_int_equal(link.flags, IFF_UP);
	assert_int_equal(link.mtu, 1500);
	assert_int_equal(link.master, 4);
	assert_int_equal(link.lower, 3);
	assert_int_equal(link.vlan, 100);
	assert_string_equal(link.name, "net7");
	assert_string_equal(link.kind, "vlan");
	assert_memory_equal(link.mac, "\2\0\0\0\0\1", 6);
}

static void test_a_veths_peer_is_not_below_it(void **state)
{
	struct vma_net_link link;

	(void)state;
	begin_rtm_newlink_message(AF_UNSPEC, "veth");
	assert_int_equal(net_msg_parse_link(nlmsg_hdr(message), &link), 0);
	assert_int_equal(link.lower, 0);
}

static void test_what_lies_in_another_namespace_is_not_below(void **state)
{
	struct vma_net_link link;

	(void)state;
	begin_rtm_newlink_message(AF_UNSPEC, "macvlan");
	nla_put_u32(message, IFLA_LINK_NETNSID, 0);
	assert_int_equal(net_msg_parse_link(nlmsg_hdr(message), &link), 0);
	assert_int_equal(link.lower, 0);
}

static void test_a_bridge_telling_of_its_port_is_no_event_of_the_link(void **state)
{
	struct vma_net_link link;

	(void)state;
	begin_rtm_newlink_message(AF_BRIDGE, "veth");
	assert_int_equal(net_msg_parse_link(nlmsg_hdr(message), &link), -EPROTONOSUPPORT);
}

static void begin_rtm_newneigh_message(int family, uint8_t flags)
{
	const struct ndmsg header = {
	        .ndm_family = (unsigned char)family, .ndm_ifindex = 3, .ndm_state = NUD_STALE, .ndm_flags = flags};

	netlink_test_message_begin(RTM_NEWNEIGH, &header, sizeof(header));
	nla_put(message, NDA_DST, 4, "\12\11\0\2");
	nla_put(message, NDA_LLADDR, 6, "\2\0\0\0\0\2");
}

static void test_neighbour_is_taken(void **state)
{
	const uint8_t address[16] = {10, 9, 0, 2};
	struct vma_net_neigh neigh;

	(void)state;
	begin_rtm_newneigh_message(AF_INET, 0);
	assert_int_equal(net_msg_parse_neigh(nlmsg_hdr(message), &neigh), 0);
	assert_int_equal(neigh.ifindex, 3);
	assert_int_equal(neigh.state, NUD_STALE);
	assert_memory_equal(neigh.address, address, 16);
	assert_int_equal(neigh.mac_len, 6);
	assert_memory_equal(neigh.mac, "\2\0\0\0\0\2", 6);
}

static void test_forwarding_and_proxy_entries_are_no_neighbours(void **state)
{
	struct vma_net_neigh neigh;

	(void)state;
	begin_rtm_newneigh_message(AF_BRIDGE, 0);
	assert_int_equal(net_msg_parse_neigh(nlmsg_hdr(message), &neigh), -EPROTONOSUPPORT);
	teardown_free_message(state);
	begin_rtm_newneigh_message(AF_INET, NTF_PROXY);
	assert_int_equal(net_msg_parse_neigh(nlmsg_hdr(message), &neigh), -EPROTONOSUPPORT);
}

static const struct vma_net_key key = {.family = AF_INET, .dst = {10, 8, 0, 1}, .src = {10, 9, 0, 1}};

static void begin_rtm_newroute_message(void)
{
	const struct rtmsg header = {
	        .rtm_family = AF_INET, .rtm_dst_len = 32, .rtm_type = RTN_UNICAST, .rtm_table = 254};
	struct nlattr *metrics;

	netlink_test_message_begin(RTM_NEWROUTE, &header, sizeof(header));
	nla_put(message, RTA_DST, 4, "\12\10\0\1");
	nla_put_u32(message, RTA_OIF, 3);
	nla_put_u32(message, RTA_TABLE, 1000);
	metrics = nla_nest_start(message, RTA_METRICS);
	nla_put_u32(message, RTAX_MTU, 1400);
	nla_put_u32(message, RTAX_ADVMSS, 900);
	nla_put_u32(message, RTAX_INITCWND, 100000);
	nla_put_u32(message, RTAX_QUICKACK, 1);
	nla_nest_end(message, metrics);
}

static void test_route_answer_is_taken(void **state)
{
	const uint8_t gateway[16] = {10, 9, 0, 254};
	struct vma_net_route route;

	(void)state;
	begin_rtm_newroute_message();
	nla_put(message, RTA_GATEWAY, 4, "\12\11\0\376");
	assert_int_equal(net_msg_parse_route(nlmsg_hdr(message), &key, &route), 0);
	assert_int_equal(route.type, RTN_UNICAST);
	assert_int_equal(route.oif, 3);
	assert_int_equal(route.table, 1000);
	assert_int_equal(route.mtu, 1400);
	assert_int_equal(route.advmss, 900);
	assert_int_equal(route.initcwnd, 65535);
	assert_true(route.quickack);
	assert_int_equal(route.gateway_family, AF_INET);
	assert_memory_equal(route.gateway, gateway, 16);
	assert_memory_equal(route.src, key.src, 16); /* the kernel names a source only if it chose one */
	assert_false(route.encap);
}

static void test_route_answer_with_chosen_source_foreign_gateway_and_tunnel(void **state)
{
	const uint8_t src[16] = {10, 9, 0, 7};
	struct {
		uint16_t family;
		uint8_t address[16];
	} via = {AF_INET6, {0xfe, 0x80}};
	struct vma_net_route route;

	(void)state;
	begin_rtm_newroute_message();
	nla_put(message, RTA_PREFSRC, 4, src);
	nla_put(message, RTA_VIA, sizeof(via), &via);
	nla_put(message, RTA_ENCAP, 0, NULL);
	assert_int_equal(net_msg_parse_route(nlmsg_hdr(message), &key, &route), 0);
	assert_memory_equal(route.src, src, 16);
	assert_int_equal(route.gateway_family, AF_INET6);
	assert_memory_equal(route.gateway, via.address, 16);
	assert_true(route.encap);
}

static void test_address_is_taken_with_its_peer(void **state)
{
	const struct ifaddrmsg header = {.ifa_family = AF_INET, .ifa_prefixlen = 32, .ifa_index = 3};
	const uint8_t own[16] = {10, 0, 0, 1}, peer[16] = {10, 0, 0, 2};
	struct vma_net_addr addr;

	(void)state;
	netlink_test_message_begin(RTM_NEWADDR, &header, sizeof(header));
	nla_put(message, IFA_LOCAL, 4, own);
	nla_put(message, IFA_ADDRESS, 4, peer);
	nla_put_u32(message, IFA_FLAGS, IFA_F_SECONDARY);
	assert_int_equal(net_msg_parse_addr(nlmsg_hdr(message), &addr), 0);
	assert_memory_equal(addr.address, own, 16);
	assert_memory_equal(addr.peer, peer, 16);
	assert_true(addr.secondary);
}

static void test_prefix_covers_what_it_covers(void **state)
{
	static const struct {
		struct net_msg_prefix prefix;
		uint8_t address[16];
		bool covers;
	} cases[] = {
	        {{{0}, 0}, {10, 9, 0, 2}, true},
	        {{{10, 9}, 16}, {10, 9, 0, 2}, true},
	        {{{10, 9}, 16}, {10, 8, 0, 2}, false},
	        {{{10, 9, 0, 0}, 31}, {10, 9, 0, 1}, true},
	        {{{10, 9, 0, 0}, 31}, {10, 9, 0, 2}, false},
	        {{{10, 9, 128, 0}, 17}, {10, 9, 200, 1}, true},
	        {{{10, 9, 128, 0}, 17}, {10, 9, 127, 1}, false},
	        {{{10, 9, 0, 2}, 32}, {10, 9, 0, 2}, true},
	        {{{10, 9, 0, 2}, 32}, {10, 9, 0, 3}, false},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(net_msg_prefix_covers(&cases[i].prefix, cases[i].address), cases[i].covers);
}

/* Every length that a message can be cut to, in memory of just that size: refused or taken, nothing read beyond. */
static void test_cut_messages_are_survived(void **state)
{
	union {
		struct vma_net_link link;
		struct vma_net_neigh neigh;
		struct vma_net_addr addr;
		struct vma_net_route route;
	} out;
	unsigned refused = 0;

	(void)state;
	for (int which = 0; which < 3; which++) {
		if (which == 0)
			begin_rtm_newroute_message();
		else if (which == 1)
			begin_rtm_newlink_message(AF_UNSPEC, "vlan");
		else
			begin_rtm_newneigh_message(AF_INET, 0);
		for (uint32_t len = NLMSG_HDRLEN; len < nlmsg_hdr(message)->nlmsg_len; len++) {
			struct nlmsghdr *cut = test_malloc(len);

			memcpy(cut, nlmsg_hdr(message), len);
			cut->nlmsg_len = len;
			refused += net_msg_parse_link(cut, &out.link) < 0;
			refused += net_msg_parse_neigh(cut, &out.neigh) < 0;
			refused += net_msg_parse_addr(cut, &out.addr) < 0;
			refused += net_msg_parse_route(cut, &key, &out.route) < 0;
			test_free(cut);
		}
		teardown_free_message(state);
	}
	assert_true(refused > 0);
}

#define EACH(test) cmocka_unit_test_teardown(test, teardown_free_message)
static const struct CMUnitTest tests[] = {
        EACH(test_link_is_taken_whole),
        EACH(test_a_veths_peer_is_not_below_it),
        EACH(test_what_lies_in_another_namespace_is_not_below),
        EACH(test_a_bridge_telling_of_its_port_is_no_event_of_the_link),
        EACH(test_neighbour_is_taken),
        EACH(test_forwarding_and_proxy_entries_are_no_neighbours),
        EACH(test_route_answer_is_taken),
        EACH(test_route_answer_with_chosen_source_foreign_gateway_and_tunnel),
        EACH(test_address_is_taken_with_its_peer),
        EACH(test_prefix_covers_what_it_covers),
        EACH(test_cut_messages_are_survived),
};

VMA_TEST_MAIN(tests)
