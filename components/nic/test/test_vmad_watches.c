/*
 * Watched connections (vmad/watches.h), with a fake owner and probes that are only counted: whose peers are probed,
 * when, and how many are kept.
 */
#include <linux/rtnetlink.h>

#include <vma/log.h>
#include <vma/test.h>

#include "../kernel_sock.h"
#include "../os.h"
#include "../route_type.h"
#include "../vmad/server.h"
#include "../vmad/watches.h"
#include "fake_owner.h"

#define USER 1000

/* ---- in place of the kernel; of ../owner/owner.h, which knows another struct xdp_owner ---- */

int owner_open_raw_ip_socket(void);
int owner_probe_send(int fd, unsigned ifindex, const struct vma_flow_key *key, bool syn, uint32_t seq);

static unsigned syns, acks;
static bool kernel_owns_connection, repair_has_no_room;
static int local_type, peer_type;
static uint16_t last_port_be;

int owner_open_raw_ip_socket(void)
{
	return os_socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

int owner_probe_send(int fd, unsigned ifindex, const struct vma_flow_key *key, bool syn, uint32_t seq)
{
	(void)fd;
	(void)ifindex;
	(void)seq;
	if (repair_has_no_room)
		return -ENOBUFS;
	last_port_be = key->peer_port_be;
	*(syn ? &syns : &acks) += 1;
	return 0;
}

int kernel_sock_visit_sockets_of_connection(int *kept, const struct vma_flow_key *key, unsigned ifindex,
                                            void (*see)(const struct kernel_sock *socket, void *arg), void *arg)
{
	struct kernel_sock found = {.state = 1, .peer_port_be = key->peer_port_be};

	(void)kept;
	(void)ifindex;
	memcpy(found.peer, key->peer, 4);
	if (!kernel_owns_connection)
		return -ENOENT;
	see(&found, arg);
	return 0;
}

int nic_route_type(int fd, const uint8_t address[4])
{
	(void)fd;
	return address[3] == 1 ? local_type : peer_type;
}

/* ---- the fixture ---- */

static struct vmad_watches *watches;

static int setup(void **state)
{
	(void)state;
	fake_owner_reset();
	syns = acks = 0;
	kernel_owns_connection = repair_has_no_room = false;
	local_type = RTN_LOCAL;
	peer_type = RTN_UNICAST;
	watches = vmad_watches_create(1, "test");
	return watches == NULL;
}

static int teardown(void **state)
{
	(void)state;
	vmad_watches_destroy(watches);
	return 0;
}

static struct vmad_watched make_watched_connection(unsigned number)
{
	return (struct vmad_watched){.local = {10, 0, 0, 1},
	                             .peer = {10, 0, (uint8_t)(number >> 16), 2},
	                             .local_port_be = 80,
	                             .peer_port_be = (uint16_t)(number | 1u << 15)};
}

static void watch_connection(unsigned client, unsigned number)
{
	const struct vmad_watched watched = make_watched_connection(number);

	vmad_watches_add(watches, client, USER, &watched);
}

/* Until nothing is to come. */
static void run_watches_until_idle(void)
{
	int ms;

	while ((ms = vmad_watches_tick(watches, &fake)) >= 0)
		os_poll_one_fd(-1, 0, ms);
}

/* ---- cases ---- */

static void test_peers_of_a_client_that_has_gone_are_probed_twice(void **state)
{
	(void)state;
	watch_connection(3, 1);
	watch_connection(3, 2);
	watch_connection(4, 3);
	vmad_watches_probe_all_of_client(watches, 3);
	assert_true(vmad_watches_tick(watches, &fake) > 0); /* its rules may still be there */
	run_watches_until_idle();
	assert_int_equal(syns, 2);
	assert_int_equal(acks, 4);
	assert_int_equal(vmad_watches_count(watches), 1);
}

static void test_what_a_client_has_taken_back_is_not_probed(void **state)
{
	const struct vmad_watched first = make_watched_connection(1);

	(void)state;
	watch_connection(3, 1);
	watch_connection(3, 2);
	watch_connection(5, 1);
	vmad_watches_del(watches, 5, &first);
	vmad_watches_del(watches, 3, &first);
	vmad_watches_del(watches, 3, &first);
	vmad_watches_probe_all_of_client(watches, 3);
	vmad_watches_probe_all_of_client(watches, 5);
	run_watches_until_idle();
	assert_int_equal(syns, 1);
	assert_int_equal(last_port_be, make_watched_connection(2).peer_port_be);
	watch_connection(3, 1);
	vmad_watches_del_all_of_client(watches, 3);
	vmad_watches_probe_all_of_client(watches, 3);
	run_watches_until_idle();
	assert_int_equal(syns, 1);
}

static void test_a_connection_that_is_anybodys_is_not_probed(void **state)
{
	const struct vmad_watched third = make_watched_connection(3);

	(void)state;
	watch_connection(3, 1);
	kernel_owns_connection = true;
	vmad_watches_probe_all_of_client(watches, 3);
	run_watches_until_idle();
	kernel_owns_connection = false;
	watch_connection(3, 2);
	watch_connection(4, 2);
	vmad_watches_probe_all_of_client(watches, 3);
	run_watches_until_idle();
	watch_connection(3, 3);
	fake.flow[0].key = (struct vma_flow_key){.family = AF_INET,
	                                         .proto = IPPROTO_TCP,
	                                         .local_port_be = third.local_port_be,
	                                         .peer_port_be = third.peer_port_be};
	memcpy(fake.flow[0].key.local, third.local, 4);
	memcpy(fake.flow[0].key.peer, third.peer, 4);
	fake.flow[0].used = true;
	vmad_watches_probe_all_of_client(watches, 3);
	run_watches_until_idle();
	assert_int_equal(syns + acks, 0);
	assert_int_equal(vmad_watches_count(watches), 1);
}

static void test_only_an_address_of_this_host_is_probed_for(void **state)
{
	(void)state;
	local_type = RTN_UNICAST;
	watch_connection(3, 1);
	vmad_watches_probe_all_of_client(watches, 3);
	run_watches_until_idle();
	local_type = RTN_LOCAL;
	peer_type = RTN_BROADCAST;
	watch_connection(3, 1);
	vmad_watches_probe_all_of_client(watches, 3);
	run_watches_until_idle();
	assert_int_equal(syns + acks, 0);
	assert_int_equal(vmad_watches_count(watches), 0);
}

/* Else one connection would have as many entries as a client likes, all of one chain. */
static void test_a_connection_has_one_name(void **state)
{
	struct vmad_watched watched = make_watched_connection(1);

	(void)state;
	watch_connection(3, 1);
	watched.reserved = 1;
	vmad_watches_add(watches, 3, USER, &watched);
	watched.reserved = 0;
	watched.vlan = 4095;
	vmad_watches_add(watches, 3, USER, &watched);
	assert_int_equal(vmad_watches_count(watches), 1);
}

static void test_a_user_has_a_bound_and_root_another(void **state)
{
	const struct vmad_watched last = make_watched_connection(1u << 20);

	(void)state;
	for (unsigned i = 0; i < VMAD_WATCHES_MAX; i++) {
		const struct vmad_watched watched = {.local = {10, 0, 0, 1},
		                                     .peer = {10, 0, 0, 2},
		                                     .local_port_be = (uint16_t)(1 + i / 32768),
		                                     .peer_port_be = (uint16_t)(1 + i % 32768)};

		vmad_watches_add(watches, i % 2, USER, &watched);
	}
	assert_int_equal(vmad_watches_count(watches), VMAD_USER_FLOWS);
	for (unsigned i = 0; i < VMAD_WATCHES_MAX; i++) {
		const struct vmad_watched watched = {.local = {10, 0, 0, 1},
		                                     .peer = {10, 0, 0, 3},
		                                     .local_port_be = (uint16_t)(1 + i / 32768),
		                                     .peer_port_be = (uint16_t)(1 + i % 32768)};

		vmad_watches_add(watches, 2, 0, &watched);
	}
	assert_int_equal(vmad_watches_count(watches), VMAD_WATCHES_MAX);
	vmad_watches_del_all_of_client(watches, 0);
	vmad_watches_add(watches, 0, USER, &last);
	assert_int_equal(vmad_watches_count(watches), VMAD_WATCHES_MAX - VMAD_USER_FLOWS / 2 + 1);
}

static void test_a_peer_that_was_probed_once_makes_room_for_a_connection(void **state)
{
	const struct vmad_watched last = make_watched_connection(1u << 20);

	(void)state;
	watch_connection(3, 1);
	vmad_watches_probe_all_of_client(watches, 3);
	while (syns == 0)
		os_poll_one_fd(-1, 0, vmad_watches_tick(watches, &fake));
	for (unsigned i = 0; i < VMAD_WATCHES_MAX - 1; i++) {
		const struct vmad_watched watched = {.local = {10, 0, 0, 1},
		                                     .peer = {10, 0, 0, 3},
		                                     .local_port_be = (uint16_t)(1 + i / 32768),
		                                     .peer_port_be = (uint16_t)(1 + i % 32768)};

		vmad_watches_add(watches, 2, 0, &watched);
	}
	vmad_watches_add(watches, 2, 0, &last);
	assert_int_equal(vmad_watches_count(watches), VMAD_WATCHES_MAX);
	vmad_watches_del(watches, 2, &last); /* it was noted */
	assert_int_equal(vmad_watches_count(watches), VMAD_WATCHES_MAX - 1);
	vmad_watches_add(watches, 2, 0, &last);
	vmad_watches_add(watches, 2, USER, &(struct vmad_watched){.local_port_be = 1, .peer_port_be = 1});
	assert_int_equal(vmad_watches_count(watches), VMAD_WATCHES_MAX); /* nobody makes room for another living one */
	run_watches_until_idle();
	assert_int_equal(acks, 0);
}

static void test_probes_are_paced_and_wait_for_room(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 100; i++)
		watch_connection(3, i);
	vmad_watches_probe_all_of_client(watches, 3);
	os_poll_one_fd(-1, 0, 60);
	repair_has_no_room = true;
	assert_true(vmad_watches_tick(watches, &fake) >= 0);
	assert_int_equal(syns, 0);
	repair_has_no_room = false;
	os_poll_one_fd(-1, 0, 2);
	assert_true(vmad_watches_tick(watches, &fake) >= 0);
	assert_int_equal(syns, 32);
	run_watches_until_idle();
	assert_int_equal(syns, 100);
	assert_int_equal(acks, 200);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static const struct CMUnitTest tests[] = {
        CASE(test_peers_of_a_client_that_has_gone_are_probed_twice),
        CASE(test_what_a_client_has_taken_back_is_not_probed),
        CASE(test_a_connection_that_is_anybodys_is_not_probed),
        CASE(test_only_an_address_of_this_host_is_probed_for),
        CASE(test_a_connection_has_one_name),
        CASE(test_a_user_has_a_bound_and_root_another),
        CASE(test_a_peer_that_was_probed_once_makes_room_for_a_connection),
        CASE(test_probes_are_paced_and_wait_for_room),
};

VMA_TEST_MAIN(tests)
