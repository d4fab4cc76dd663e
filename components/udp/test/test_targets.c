/* Which flows a socket should have. */
#include "control_fixture.h"

static struct udp_sock sock;
static struct udp_targets targets;

static int setup_socket_bound_to_port_5000(void **state)
{
	(void)state;
	fixture_reset();
	memset(&sock, 0, sizeof(sock));
	sock.mc_all = true;
	sock.local = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(5000)};
	return 0;
}

static int teardown_targets_and_memberships(void **state)
{
	struct udp_groups *groups = atomic_exchange(&sock.groups, NULL);

	(void)state;
	udp_targets_free(&targets);
	vma_free(groups);
	return 0;
}

static void targets_get(void)
{
	assert_int_equal(udp_targets_compute_for_sock(&sock, NULL, &targets), 0);
}

static const struct udp_target *find_target_with_local_ip(const char *local)
{
	uint32_t address = control_fixture_parse_ip(local);

	for (uint32_t i = 0; i < targets.n; i++) {
		if (memcmp(targets.at[i].key.local, &address, 4) == 0)
			return &targets.at[i];
	}
	return NULL;
}

static void set_membership_of_sock(const char *group, uint32_t ifindex)
{
	struct udp_groups *groups = vma_alloc(sizeof(*groups) + sizeof(groups->at[0]));

	groups->all = true;
	groups->n = 1;
	groups->at[0] =
	        (struct udp_membership){.group = control_fixture_parse_ip(group), .ifindex = ifindex, .exclude = true};
	vma_free(atomic_exchange(&sock.groups, groups));
}

static void test_a_socket_without_a_port_has_none_and_is_new(void **state)
{
	(void)state;
	sock.local.sin_port = 0;
	targets_get();
	assert_int_equal(targets.n, 0);
	assert_int_equal(targets.reason, VMA_SOCK_NEW);
}

static uint16_t peer_port_of_sole_target_flow(void)
{
	udp_targets_free(&targets);
	targets_get();
	assert_int_equal(targets.n, 1);
	return ntohs(targets.at[0].key.peer_port_be);
}

static void test_a_flow_may_be_of_any_peer_if_the_environment_says_so_and_the_port_is_the_socket_s_alone(void **state)
{
	struct vma_engine *engine = vma_engine_get_or_start();

	(void)state;
	sock.local.sin_addr.s_addr = control_fixture_parse_ip("10.77.0.1");
	sock.peer = (struct sockaddr_in){.sin_family = AF_INET,
	                                 .sin_port = htons(7000),
	                                 .sin_addr.s_addr = control_fixture_parse_ip("10.77.0.2")};
	sock.engine = engine;
	sock.port_chosen = true;
	assert_int_equal(peer_port_of_sole_target_flow(), 7000); /* whatever the field's default is */
	engine->conf.given[VMA_CONF_AT_udp_3t_rules] = true;
	assert_int_equal(peer_port_of_sole_target_flow(), 0);
	sock.reuse_addr = true;
	assert_int_equal(peer_port_of_sole_target_flow(), 7000);
	sock.reuse_addr = false;
	engine->conf.udp_3t_rules = false;
	assert_int_equal(peer_port_of_sole_target_flow(), 7000);
	engine->conf.udp_3t_rules = true;
	engine->conf.given[VMA_CONF_AT_udp_3t_rules] = false;
}

static void test_the_wildcard_is_every_address_of_every_ethernet_interface_unicast_first(void **state)
{
	(void)state;
	fixture_add_addr(LAN, "10.77.0.9", 24);
	fixture_add_link(7, IFF_UP | IFF_BROADCAST, ARPHRD_ETHER);
	fixture_add_addr(7, "10.78.0.1", 16);
	targets_get();
	assert_int_equal(targets.n,
	                 7); /* three addresses, two subnets' broadcasts, the limited one on two interfaces */
	for (unsigned i = 0; i < 3; i++)
		assert_false(targets.at[i].shared);
	assert_int_equal(find_target_with_local_ip("10.78.0.1")->device, 7);
	assert_true(find_target_with_local_ip("10.78.255.255")->shared);
	assert_true(find_target_with_local_ip("10.78.255.255")->extra);
	assert_non_null(find_target_with_local_ip("255.255.255.255"));
}

static void test_nobody_broadcasts_to_a_port_that_the_kernel_chose(void **state)
{
	(void)state;
	sock.port_chosen = true;
	targets_get();
	assert_int_equal(targets.n, 1);
	assert_non_null(find_target_with_local_ip("10.77.0.1"));
}

static void test_loopback_and_interfaces_that_are_down_or_no_ethernet_have_none(void **state)
{
	(void)state;
	fixture.links = fixture.addrs = 0;
	fixture_add_link(7, IFF_UP | IFF_LOOPBACK, ARPHRD_LOOPBACK);
	fixture_add_addr(7, "127.0.0.1", 8);
	fixture_add_link(8, IFF_BROADCAST, ARPHRD_ETHER);
	fixture_add_addr(8, "10.80.0.1", 24);
	fixture_add_link(9, IFF_UP, ARPHRD_NONE);
	fixture_add_addr(9, "10.81.0.1", 24);
	targets_get();
	assert_int_equal(targets.n, 0);
	assert_int_equal(targets.reason, VMA_SOCK_NO_DEVICE);
}

static void test_a_loopback_address_is_local(void **state)
{
	(void)state;
	sock.local.sin_addr.s_addr = control_fixture_parse_ip("127.0.0.1");
	targets_get();
	assert_int_equal(targets.n, 0);
	assert_int_equal(targets.reason, VMA_SOCK_LOCAL);
}

static void test_one_address_is_taken_where_its_interface_is(void **state)
{
	(void)state;
	fixture_add_link(7, IFF_UP | IFF_BROADCAST, ARPHRD_ETHER);
	fixture_add_addr(7, "10.78.0.1", 16);
	sock.local.sin_addr.s_addr = control_fixture_parse_ip("10.78.0.1");
	targets_get();
	assert_int_equal(targets.n, 1);
	assert_int_equal(targets.at[0].device, 7);
	assert_int_equal(targets.at[0].key.local_port_be, htons(5000));
	assert_false(targets.at[0].extra);
}

static void test_a_socket_bound_to_a_broadcast_address_gets_that_only(void **state)
{
	(void)state;
	sock.local.sin_addr.s_addr = control_fixture_parse_ip("10.77.0.255");
	targets_get();
	assert_int_equal(targets.n, 1);
	assert_true(targets.at[0].shared);
	assert_false(targets.at[0].extra);
}

static void test_bound_to_a_device_the_others_interfaces_are_left_out(void **state)
{
	(void)state;
	fixture_add_link(7, IFF_UP | IFF_BROADCAST, ARPHRD_ETHER);
	fixture_add_addr(7, "10.78.0.1", 16);
	sock.bound_ifindex = 7;
	targets_get();
	assert_int_equal(targets.n, 3);
	assert_null(find_target_with_local_ip("10.77.0.1"));
}

static void test_a_vlan_interface_is_had_through_the_one_below(void **state)
{
	(void)state;
	fixture_add_link(9, IFF_UP | IFF_BROADCAST, ARPHRD_ETHER);
	fixture.link[1].vlan = 42;
	fixture.link[1].lower = LAN;
	fixture_add_addr(9, "10.79.0.1", 24);
	sock.local.sin_addr.s_addr = control_fixture_parse_ip("10.79.0.1");
	targets_get();
	assert_int_equal(targets.n, 1);
	assert_int_equal(targets.at[0].device, LAN);
	assert_int_equal(targets.at[0].ifindex, 9);
	assert_int_equal(targets.at[0].key.vlan, 42);
}

static void test_a_group_that_was_not_joined_has_none(void **state)
{
	(void)state;
	sock.local.sin_addr.s_addr = control_fixture_parse_ip("239.1.1.1");
	targets_get();
	assert_int_equal(targets.n, 0);
	assert_int_equal(targets.reason, VMA_SOCK_NO_MEMBERSHIP);
}

static void test_groups_joined_belong_to_the_wildcard_and_to_a_socket_bound_to_them(void **state)
{
	(void)state;
	set_membership_of_sock("239.1.1.1", LAN);
	targets_get();
	assert_true(find_target_with_local_ip("239.1.1.1")->shared);
	assert_false(find_target_with_local_ip("239.1.1.1")->extra);
	udp_targets_free(&targets);
	sock.local.sin_addr.s_addr = control_fixture_parse_ip("239.1.1.1");
	targets_get();
	assert_int_equal(targets.n, 1);
	udp_targets_free(&targets);
	sock.local.sin_addr.s_addr = control_fixture_parse_ip("10.77.0.1");
	targets_get();
	assert_int_equal(targets.n, 1); /* the kernel does not give it what goes to groups */
	assert_null(find_target_with_local_ip("239.1.1.1"));
}

static void test_a_connected_socket_has_its_peer_only_on_the_route_s_interface(void **state)
{
	const uint32_t peer = control_fixture_parse_ip("10.77.0.2");

	(void)state;
	fixture_add_link(7, IFF_UP | IFF_BROADCAST, ARPHRD_ETHER);
	sock.local.sin_addr.s_addr = control_fixture_parse_ip("10.77.0.1");
	sock.peer = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(7000), .sin_addr.s_addr = peer};
	fixture.route.oif = 7;
	targets_get();
	assert_int_equal(targets.n, 1);
	assert_int_equal(targets.at[0].device, 7);
	assert_int_equal(targets.at[0].key.peer_port_be, htons(7000));
	assert_memory_equal(targets.at[0].key.peer, &peer, 4);
}

static void test_connected_to_this_host_is_local(void **state)
{
	(void)state;
	sock.local.sin_addr.s_addr = control_fixture_parse_ip("10.77.0.1");
	sock.peer = (struct sockaddr_in){.sin_family = AF_INET,
	                                 .sin_port = htons(7000),
	                                 .sin_addr.s_addr = control_fixture_parse_ip("10.77.0.1")};
	fixture.route.type = RTN_LOCAL;
	targets_get();
	assert_int_equal(targets.n, 0);
	assert_int_equal(targets.reason, VMA_SOCK_LOCAL);
}

static void test_connected_to_a_group_nothing_comes_back_but_sending_is_offloaded(void **state)
{
	(void)state;
	sock.local.sin_addr.s_addr = control_fixture_parse_ip("10.77.0.1");
	sock.peer = (struct sockaddr_in){.sin_family = AF_INET,
	                                 .sin_port = htons(7000),
	                                 .sin_addr.s_addr = control_fixture_parse_ip("239.1.1.1")};
	fixture.route.type = RTN_MULTICAST;
	targets_get();
	assert_int_equal(targets.n, 0);
	assert_int_equal(targets.send_device, LAN);
}

static void test_connected_without_a_route_has_none(void **state)
{
	(void)state;
	sock.local.sin_addr.s_addr = control_fixture_parse_ip("10.77.0.1");
	sock.peer = (struct sockaddr_in){.sin_family = AF_INET,
	                                 .sin_port = htons(7000),
	                                 .sin_addr.s_addr = control_fixture_parse_ip("10.99.0.1")};
	fixture.route_error = -ENETUNREACH;
	targets_get();
	assert_int_equal(targets.n, 0);
	assert_int_equal(targets.reason, VMA_SOCK_NO_DEVICE);
}

#define T(name)                                                                                                        \
	cmocka_unit_test_setup_teardown(test_##name, setup_socket_bound_to_port_5000, teardown_targets_and_memberships)
static const struct CMUnitTest tests[] = {
        T(a_socket_without_a_port_has_none_and_is_new),
        T(a_flow_may_be_of_any_peer_if_the_environment_says_so_and_the_port_is_the_socket_s_alone),
        T(the_wildcard_is_every_address_of_every_ethernet_interface_unicast_first),
        T(nobody_broadcasts_to_a_port_that_the_kernel_chose),
        T(loopback_and_interfaces_that_are_down_or_no_ethernet_have_none),
        T(a_loopback_address_is_local),
        T(one_address_is_taken_where_its_interface_is),
        T(a_socket_bound_to_a_broadcast_address_gets_that_only),
        T(bound_to_a_device_the_others_interfaces_are_left_out),
        T(a_vlan_interface_is_had_through_the_one_below),
        T(a_group_that_was_not_joined_has_none),
        T(groups_joined_belong_to_the_wildcard_and_to_a_socket_bound_to_them),
        T(a_connected_socket_has_its_peer_only_on_the_route_s_interface),
        T(connected_to_this_host_is_local),
        T(connected_to_a_group_nothing_comes_back_but_sending_is_offloaded),
        T(connected_without_a_route_has_none),
};

FIXTURE_MAIN("targets", tests)
