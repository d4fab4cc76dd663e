/* Peers of a dead process are told: which, when, how fast, and what spares them. The probes are counted, not sent. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/test.h>

#include "../owner/owner.h"

#define MS 1000000ull

static struct xdp_owner owner;
static uint64_t now_ns;

static struct {
	unsigned opened, syns, acks;
	uint16_t last_port;
	uint32_t seq[4]; /* of the last ones */
	int result, open_result;
} probes;
static uint16_t surviving_connection_port; /* of a connection that has a flow again */

/* ---- in place of owner/owner.c, owner/flows.c, owner/minisocks.c and owner/probe.c ---- */

static unsigned minisocks_cut_n; /* minisocks that waited, and do no longer */

void owner_minisock_reset_waiting(struct owner_minisocks *of, const struct vma_flow_key *key, uint64_t now)
{
	(void)of;
	(void)key;
	(void)now;
	minisocks_cut_n++;
}

static bool fake_minisock_has_ended;

bool owner_minisock_is_waiting_or_reset(struct owner_minisocks *of, const struct vma_flow_key *key)
{
	(void)of;
	(void)key;
	return !fake_minisock_has_ended;
}

uint64_t owner_now_ns(void)
{
	return now_ns;
}

bool owner_flow_exists(struct xdp_owner *of, const struct vma_flow_key *key)
{
	(void)of;
	return surviving_connection_port != 0 && ntohs(key->peer_port_be) == surviving_connection_port;
}

int owner_open_raw_ip_socket(void)
{
	probes.opened++;
	return probes.open_result != 0 ? probes.open_result : dup(1);
}

int owner_probe_send(int fd, unsigned ifindex, const struct vma_flow_key *key, bool syn, uint32_t seq)
{
	(void)ifindex;
	assert_true(fd >= 0);
	if (probes.result != 0)
		return probes.result;
	memmove(probes.seq + 1, probes.seq, sizeof(probes.seq) - sizeof(probes.seq[0]));
	probes.seq[0] = seq;
	probes.last_port = ntohs(key->peer_port_be);
	*(syn ? &probes.syns : &probes.acks) += 1;
	return 0;
}

static struct vma_flow_key resets_connection_key(uint16_t port)
{
	return (struct vma_flow_key){.family = AF_INET,
	                             .proto = IPPROTO_TCP,
	                             .local = {10, 0, 0, 1},
	                             .peer = {10, 0, 0, 2},
	                             .local_port_be = htons(80),
	                             .peer_port_be = htons(port)};
}

static void add_test_reset(uint16_t port, bool dead)
{
	const struct vma_flow_key key = resets_connection_key(port);

	owner_resets_add(&owner, port % 2, &key, dead);
}

static void resets_advance_clock_and_tick(uint64_t ns)
{
	now_ns += ns;
	owner_resets_send_due(&owner, now_ns);
}

static int setup(void **state)
{
	(void)state;
	memset(&owner, 0, sizeof(owner));
	memset(&probes, 0, sizeof(probes));
	surviving_connection_port = 0;
	fake_minisock_has_ended = false;
	minisocks_cut_n = 0;
	now_ns = 1000 * MS;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	owner_resets_fini(&owner);
	return 0;
}

static void test_nobody_has_died_so_nothing_is_due(void **state)
{
	(void)state;
	assert_true(owner_resets_due_ns(&owner) == UINT64_MAX);
	resets_advance_clock_and_tick(0);
	assert_int_equal(probes.opened, 0);
}

static void test_a_peer_of_the_dead_is_probed_at_once_and_once_more(void **state)
{
	(void)state;
	add_test_reset(1000, true);
	assert_true(owner_resets_due_ns(&owner) <= now_ns);
	resets_advance_clock_and_tick(0);
	assert_int_equal(probes.syns, 1);
	assert_int_equal(probes.last_port, 1000);
	resets_advance_clock_and_tick(500 * MS);
	assert_int_equal(probes.acks, 0);
	assert_true(owner_resets_due_ns(&owner) == now_ns + 100 * MS);
	resets_advance_clock_and_tick(100 * MS);
	assert_int_equal(probes.syns, 1); /* its port may listen by now */
	assert_int_equal(probes.acks, 2);
	assert_int_equal(probes.seq[0] - probes.seq[1], 1u << 31); /* one of them is outside any window */
	assert_true(owner_resets_due_ns(&owner) == UINT64_MAX);
	resets_advance_clock_and_tick(10000 * MS);
	assert_int_equal(probes.syns + probes.acks, 3);
	assert_int_equal(probes.opened, 1);
	assert_false(owner.resets.is_open);
}

static void test_who_left_alive_has_two_seconds_to_come_back(void **state)
{
	(void)state;
	add_test_reset(1000, false);
	add_test_reset(1001, false);
	resets_advance_clock_and_tick(1999 * MS);
	assert_int_equal(probes.syns, 0);
	surviving_connection_port = 1000;
	resets_advance_clock_and_tick(1 * MS);
	assert_int_equal(probes.syns, 1);
	assert_int_equal(probes.last_port, 1001);
	assert_int_equal(minisocks_cut_n, 1); /* from now on its minisock speaks */
	resets_advance_clock_and_tick(600 * MS);
	assert_int_equal(probes.acks, 2);
	assert_int_equal(owner.resets.count, 0);
}

static void test_who_left_and_then_dies_is_not_waited_for(void **state)
{
	(void)state;
	add_test_reset(1000, false);
	add_test_reset(1001, false);
	resets_advance_clock_and_tick(1 * MS);
	assert_int_equal(probes.syns, 0);
	owner_resets_send_now_for_dead_slot(&owner, 1);
	assert_true(owner_resets_due_ns(&owner) <= now_ns);
	resets_advance_clock_and_tick(0);
	assert_int_equal(probes.syns, 1);
	assert_int_equal(probes.last_port, 1001);
	resets_advance_clock_and_tick(1999 * MS); /* the other one is still waited for */
	assert_int_equal(probes.syns, 2);
}

static void test_a_listener_that_left_is_cut_when_it_dies_and_nobody_is_probed(void **state)
{
	(void)state;
	add_test_reset(0, false);
	owner_resets_send_now_for_dead_slot(&owner, 0);
	assert_int_equal(minisocks_cut_n, 1);
	assert_int_equal(owner.resets.count, 0);
	add_test_reset(0, false);
	resets_advance_clock_and_tick(2000 * MS); /* its process lives: the kernel's socket is what listens */
	assert_int_equal(minisocks_cut_n, 1);
	assert_int_equal(owner.resets.count, 0);
	assert_int_equal(probes.syns + probes.acks, 0);
}

static void test_a_connection_that_came_back_is_left_alone_in_the_second_round(void **state)
{
	(void)state;
	add_test_reset(1000, true);
	resets_advance_clock_and_tick(0);
	surviving_connection_port = 1000;
	resets_advance_clock_and_tick(600 * MS);
	assert_int_equal(probes.acks, 0);
	assert_int_equal(owner.resets.count, 0);
}

static void test_a_peer_that_has_ended_it_is_not_probed_again(void **state)
{
	(void)state;
	add_test_reset(1000, true);
	resets_advance_clock_and_tick(0);
	fake_minisock_has_ended = true;
	resets_advance_clock_and_tick(600 * MS);
	assert_int_equal(probes.acks, 0);
	add_test_reset(1001, true);
	resets_advance_clock_and_tick(0);
	assert_int_equal(probes.syns, 1);
	assert_int_equal(owner.resets.count, 0);
}

static void test_ten_thousand_are_probed_within_a_fraction_of_a_second_and_not_at_once(void **state)
{
	unsigned most = 0;

	(void)state;
	for (uint16_t port = 1; port <= 10000; port++)
		add_test_reset(port, true);
	for (unsigned ms = 0; ms < 200; ms++) {
		const unsigned before = probes.syns;

		resets_advance_clock_and_tick(1 * MS);
		resets_advance_clock_and_tick(0); /* another wake-up in the same millisecond changes nothing */
		most = probes.syns - before > most ? probes.syns - before : most;
	}
	assert_int_equal(probes.syns, 10000);
	assert_int_equal(most, 64);
	for (unsigned ms = 0; ms < 1000; ms++)
		resets_advance_clock_and_tick(1 * MS);
	assert_int_equal(probes.acks, 20000);
}

static void test_memory_is_bounded(void **state)
{
	(void)state;
	vma_log_set_level(VMA_LOG_ERROR);
	for (uint32_t i = 0; i < OWNER_FLOWS_MAX + 100; i++)
		add_test_reset((uint16_t)(i + 1), true);
	vma_log_set_level(VMA_LOG_INFO);
	assert_int_equal(owner.resets.count, OWNER_FLOWS_MAX);
}

static void test_no_room_in_the_kernel_is_tried_again_and_no_way_is_given_up(void **state)
{
	(void)state;
	add_test_reset(1000, true);
	probes.result = -ENOBUFS;
	resets_advance_clock_and_tick(0);
	probes.result = 0;
	resets_advance_clock_and_tick(1 * MS);
	assert_int_equal(probes.syns, 1);
	probes.result = -ENETUNREACH;
	resets_advance_clock_and_tick(600 * MS);
	assert_int_equal(owner.resets.count, 0);
}

static void test_without_a_raw_socket_all_is_forgotten(void **state)
{
	(void)state;
	probes.open_result = -EPERM;
	vma_log_set_level(VMA_LOG_ERROR);
	add_test_reset(1000, true);
	resets_advance_clock_and_tick(0);
	vma_log_set_level(VMA_LOG_INFO);
	assert_int_equal(owner.resets.count, 0);
	assert_true(owner_resets_due_ns(&owner) == UINT64_MAX);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
static const struct CMUnitTest tests[] = {
        CASE(test_nobody_has_died_so_nothing_is_due),
        CASE(test_a_peer_of_the_dead_is_probed_at_once_and_once_more),
        CASE(test_who_left_alive_has_two_seconds_to_come_back),
        CASE(test_who_left_and_then_dies_is_not_waited_for),
        CASE(test_a_listener_that_left_is_cut_when_it_dies_and_nobody_is_probed),
        CASE(test_a_connection_that_came_back_is_left_alone_in_the_second_round),
        CASE(test_a_peer_that_has_ended_it_is_not_probed_again),
        CASE(test_ten_thousand_are_probed_within_a_fraction_of_a_second_and_not_at_once),
        CASE(test_memory_is_bounded),
        CASE(test_no_room_in_the_kernel_is_tried_again_and_no_way_is_given_up),
        CASE(test_without_a_raw_socket_all_is_forgotten),
};
VMA_TEST_MAIN(tests)
