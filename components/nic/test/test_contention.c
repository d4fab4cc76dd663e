/*
 * A flow that two clients want: the owner's table with a program that only counts, a clock that the test turns, and the
 * kernel's real sockets.
 */
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
#include "fake_kept.h"

#define A 0u
#define B 1u
#define SECOND 1000000000ull

static struct xdp_owner owner;
static uint64_t now_ns;
static unsigned flows_in_program_n, flow_grants_n, in_grace; /* flows in the program now; ever; that are in grace */
static unsigned room = UINT32_MAX;                           /* for flows in the program */
static unsigned flows_deleted_n;

/* ---- in place of owner/owner.c, xdp/prog.c and nic.c ---- */

uint64_t owner_now_ns(void)
{
	return now_ns;
}

int xdp_prog_flow_add(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot, uint32_t flags)
{
	(void)prog, (void)key, (void)slot, (void)flags;
	if (flows_in_program_n >= room)
		return -ENOSPC;
	flows_in_program_n++;
	flow_grants_n++;
	return 0;
}

int xdp_prog_flow_begin_grace(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot, uint32_t group)
{
	(void)prog, (void)key, (void)slot, (void)group;
	in_grace++;
	return 0;
}

int xdp_prog_flow_del(struct xdp_prog *prog, const struct vma_flow_key *key)
{
	(void)prog, (void)key;
	flows_in_program_n--;
	flows_deleted_n++;
	return 0;
}

struct xdp_group *xdp_prog_groups(const struct xdp_prog *of)
{
	(void)of;
	return NULL;
}

int xdp_prog_flow_spread(struct xdp_prog *of, const struct vma_flow_key *key, uint32_t slot, uint32_t group)
{
	(void)of, (void)key, (void)slot, (void)group;
	return 0;
}

int xdp_prog_flow_set_listener_group(struct xdp_prog *of, const struct vma_flow_key *key, uint32_t slot, uint32_t group)
{
	(void)of, (void)key, (void)slot, (void)group;
	return -EINVAL;
}

void xdp_prog_count_slot_rental(struct xdp_prog *of, uint32_t slot)
{
	(void)of, (void)slot;
}

void xdp_prog_add_recent_connection(struct xdp_prog *of, const struct vma_flow_key *key, uint32_t slot)
{
	(void)of, (void)key, (void)slot;
}

struct xdp_claim_bucket *xdp_prog_claims(const struct xdp_prog *prog, int *fd)
{
	(void)prog;
	*fd = -1;
	return NULL;
}

void xdp_prog_enable_claims_if_mapped(struct xdp_prog *prog)
{
	(void)prog;
}

int xdp_prog_attach(struct xdp_prog *prog, bool *generic)
{
	(void)prog;
	*generic = false;
	return 0;
}

void xdp_prog_detach(struct xdp_prog *prog)
{
	(void)prog;
}

/* Only of what is in grace. */
int xdp_prog_flow_replace(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot, uint32_t flags)
{
	(void)prog, (void)key, (void)slot, (void)flags;
	assert_true(in_grace > 0);
	in_grace--;
	flow_grants_n++;
	return 0;
}

int xdp_prog_flow_move(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot)
{
	(void)prog, (void)key, (void)slot;
	fail();
	return 0;
}

/* Without attr.minisocks there is none. */
int xdp_prog_minisock_set(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t number, bool in_place)
{
	(void)prog, (void)key, (void)number, (void)in_place;
	fail();
	return 0;
}

int xdp_prog_open_minisock_segment_ring(struct xdp_prog *prog, int (*see)(void *arg, void *segment, size_t bytes),
                                        void *arg)
{
	(void)prog, (void)see, (void)arg;
	return -EOPNOTSUPP;
}

int xdp_prog_consume_minisock_segments(struct xdp_prog *prog)
{
	(void)prog;
	return 0;
}

int vma_flow_key_check(const struct vma_flow_key *key)
{
	return key->family == AF_INET ? 0 : -EAFNOSUPPORT;
}

/* ---- a fixture ---- */

struct fixture {
	struct vma_flow_rule rule; /* of a socket bound to the loopback */
	int fd[2];                 /* two sockets on its port */
	uint64_t cookie[2];
	unsigned told[2]; /* revocations of A and B */
};

static int open_bound_udp_socket_with_cookie(struct sockaddr_in *address, uint64_t *cookie)
{
	socklen_t len = sizeof(*address), cookie_len = sizeof(*cookie);
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), yes = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	assert_int_equal(bind(fd, (struct sockaddr *)address, len), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)address, &len), 0);
	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_COOKIE, cookie, &cookie_len), 0);
	return fd;
}

static int setup_owner_with_two_rented_slots(void **state)
{
	struct fixture *fixture = calloc(1, sizeof(*fixture));
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	memset(&owner, 0, sizeof(owner));
	owner.diag_fd = -1;
	owner.slot[A].state = owner.slot[B].state = SLOT_RENTED;
	flows_in_program_n = flow_grants_n = in_grace = flows_deleted_n = 0;
	room = UINT32_MAX;
	now_ns = SECOND;
	for (int i = 0; i < 2; i++)
		fixture->fd[i] = open_bound_udp_socket_with_cookie(&address, &fixture->cookie[i]);
	fixture->rule.key =
	        (struct vma_flow_key){.family = AF_INET, .proto = IPPROTO_UDP, .local_port_be = address.sin_port};
	memcpy(fixture->rule.key.local, &address.sin_addr, 4);
	*state = fixture;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *fixture = *state;

	owner_slot_release_flows_and_claims(&owner, A, true);
	owner_slot_release_flows_and_claims(&owner, B, true);
	if (owner.diag_fd >= 0)
		close(owner.diag_fd);
	owner_resets_fini(&owner);
	assert_int_equal(owner.flows, 0);
	assert_int_equal(owner.waiters, 0);
	assert_null(owner.revoke_pending);
	assert_null(owner.in_grace);
	for (int i = 0; i < 2; i++)
		if (fixture->fd[i] >= 0)
			close(fixture->fd[i]);
	free(fixture);
	return 0;
}

static int slot_requests_flow(struct fixture *fixture, uint32_t slot, uint64_t cookie)
{
	fixture->rule.shadow_cookie = cookie;
	return xdp_owner_flow_add(&owner, slot, &fixture->rule);
}

static void on_flow_revoked_count(uint32_t slot, const struct vma_flow_key *key, void *arg)
{
	struct fixture *fixture = arg;

	assert_memory_equal(key, &fixture->rule.key, sizeof(*key));
	fixture->told[slot]++;
}

static void close_socket(struct fixture *fixture, int i)
{
	close(fixture->fd[i]);
	fixture->fd[i] = -1;
}

/* As a parent and its forked child: one kernel socket, two clients. The other socket of the fixture is not there. */
static void share_one_socket_between_two_slots(struct fixture *fixture)
{
	close_socket(fixture, 1);
	fixture->cookie[1] = fixture->cookie[0];
}

/* As members of a group in two processes: A had the flow before B's socket was there. */
static void second_group_member_flow_is_refused(struct fixture *fixture)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = fixture->rule.key.local_port_be};

	memcpy(&address.sin_addr, fixture->rule.key.local, 4);
	close_socket(fixture, 1);
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), 0);
	fixture->fd[1] = open_bound_udp_socket_with_cookie(&address, &fixture->cookie[1]);
	assert_int_equal(slot_requests_flow(fixture, B, fixture->cookie[1]), -EADDRINUSE);
}

/* ---- cases ---- */

static void test_a_flow_that_two_want_goes_to_the_kernel_and_its_client_is_told(void **state)
{
	struct fixture *fixture = *state;

	share_one_socket_between_two_slots(fixture);
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), 0);
	assert_int_equal(flows_in_program_n, 1);
	assert_int_equal(slot_requests_flow(fixture, B, fixture->cookie[1]), -EADDRINUSE);
	assert_int_equal(flows_in_program_n, 0);
	owner_report_revoked_flows(&owner, on_flow_revoked_count, fixture);
	assert_int_equal(fixture->told[A], 1);
	assert_int_equal(fixture->told[B], 0);
	owner_report_revoked_flows(&owner, on_flow_revoked_count, fixture);
	assert_int_equal(fixture->told[A], 1);
}

static void test_neither_gets_it_while_both_go_on_asking(void **state)
{
	struct fixture *fixture = *state;

	share_one_socket_between_two_slots(fixture);
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), 0);
	assert_int_equal(slot_requests_flow(fixture, B, fixture->cookie[1]), -EADDRINUSE);
	for (int second = 0; second < 20; second++) {
		now_ns += SECOND;
		assert_int_equal(slot_requests_flow(fixture, B, fixture->cookie[1]), -EADDRINUSE);
		assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), -EADDRINUSE);
		owner_flow_waiters_expire(&owner);
	}
	assert_int_equal(flow_grants_n, 1);
}

static void test_the_first_one_to_ask_again_does_not_get_it_either(void **state)
{
	struct fixture *fixture = *state;

	share_one_socket_between_two_slots(fixture);
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), 0);
	assert_int_equal(slot_requests_flow(fixture, B, fixture->cookie[1]), -EADDRINUSE);
	assert_int_equal(slot_requests_flow(fixture, B, fixture->cookie[1]), -EADDRINUSE); /* A has not asked since */
}

static void test_who_is_silent_for_three_seconds_does_not_want_it_any_more(void **state)
{
	struct fixture *fixture = *state;

	share_one_socket_between_two_slots(fixture);
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), 0);
	assert_int_equal(slot_requests_flow(fixture, B, fixture->cookie[1]), -EADDRINUSE);
	for (int second = 0; second < 3; second++) {
		now_ns += SECOND;
		assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), -EADDRINUSE);
	}
	now_ns += SECOND;
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), 0);
	assert_int_equal(flows_in_program_n, 1);
}

static void test_whose_queue_pair_ends_does_not_want_it_any_more(void **state)
{
	struct fixture *fixture = *state;

	share_one_socket_between_two_slots(fixture);
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), 0);
	assert_int_equal(slot_requests_flow(fixture, B, fixture->cookie[1]), -EADDRINUSE);
	owner_slot_release_flows_and_claims(&owner, A, true);
	assert_int_equal(slot_requests_flow(fixture, B, fixture->cookie[1]), 0);
	owner_report_revoked_flows(&owner, on_flow_revoked_count, fixture);
	assert_int_equal(fixture->told[A], 0); /* the slot may be another client's by now */
}

static void test_whose_socket_is_closed_does_not_want_it_any_more(void **state)
{
	struct fixture *fixture = *state;

	second_group_member_flow_is_refused(fixture);
	now_ns += SECOND;
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), -EADDRINUSE);
	close_socket(fixture, 1);
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), 0);
}

static void test_a_flow_granted_again_is_not_reported_as_given_up(void **state)
{
	struct fixture *fixture = *state;

	share_one_socket_between_two_slots(fixture);
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), 0);
	assert_int_equal(slot_requests_flow(fixture, B, fixture->cookie[1]), -EADDRINUSE);
	owner_slot_release_flows_and_claims(&owner, B, true);
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), 0);
	owner_report_revoked_flows(&owner, on_flow_revoked_count, fixture);
	assert_int_equal(fixture->told[A], 0);
}

static void test_who_deletes_it_before_he_knows_does_not_want_it_any_more(void **state)
{
	struct fixture *fixture = *state;

	share_one_socket_between_two_slots(fixture);
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), 0);
	assert_int_equal(slot_requests_flow(fixture, B, fixture->cookie[1]), -EADDRINUSE);
	assert_int_equal(xdp_owner_flow_del(&owner, A, &fixture->rule.key), -ENOENT);
	assert_int_equal(slot_requests_flow(fixture, B, fixture->cookie[1]), 0);
}

static void test_a_second_socket_on_the_port_is_a_stranger(void **state)
{
	struct fixture *fixture = *state;

	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), -EADDRINUSE);
}

static void test_unless_it_was_named_as_a_shadow_before(void **state)
{
	struct fixture *fixture = *state;

	assert_int_equal(xdp_owner_flow_shadows(&owner, A, &fixture->rule.key, fixture->cookie, 2), 0);
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), 0);
	assert_int_equal(owner.waiters, 0);
	assert_true(owner_has_shadow_cookie(&owner, fixture->cookie[1]));
}

static void test_a_member_of_the_same_queue_pair_adds_its_shadow(void **state)
{
	struct fixture *fixture = *state;

	share_one_socket_between_two_slots(fixture);
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), 0);
	assert_int_equal(slot_requests_flow(fixture, A, 77), -EEXIST);
	assert_true(owner_has_shadow_cookie(&owner, 77));
	assert_int_equal(flow_grants_n, 1);
}

/* Of a listener's rule only listeners are asked, of which UDP has none: every port of the kernel's could be taken. */
static void test_udp_has_no_listener_that_could_hide_a_stranger(void **state)
{
	struct fixture *fixture = *state;

	fixture->rule.flags = VMA_FLOW_LISTENER;
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), -EINVAL);
	fixture->rule.flags = VMA_FLOW_RING_ONLY;
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), -EINVAL);
	assert_int_equal(flow_grants_n, 0);
}

static void two_slots_request_listener_flow(struct fixture *fixture)
{
	fixture->rule.key.proto = IPPROTO_TCP;
	fixture->rule.flags = VMA_FLOW_LISTENER;
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), 0);
	assert_int_equal(slot_requests_flow(fixture, B, fixture->cookie[1]), -EADDRINUSE);
}

/* Its client has to ask for flows of what it has accepted; until then they lack only what begins anew. */
static void test_a_listener_that_two_want_is_in_grace(void **state)
{
	struct fixture *fixture = *state;

	two_slots_request_listener_flow(fixture);
	assert_int_equal(in_grace, 1);
	assert_int_equal(flows_in_program_n, 1);
	owner_report_revoked_flows(&owner, on_flow_revoked_count, fixture);
	assert_int_equal(fixture->told[A], 1);
	owner_flows_end_grace(&owner, now_ns);
	assert_int_equal(flows_in_program_n, 1);
	owner_flows_end_grace(&owner, now_ns + 10 * SECOND);
	assert_int_equal(flows_in_program_n, 0);
}

/* In place: a segment that finds neither is answered with RST by the kernel. */
static void test_a_flow_in_grace_is_replaced(void **state)
{
	struct fixture *fixture = *state;

	two_slots_request_listener_flow(fixture);
	owner_slot_release_flows_and_claims(&owner, B, true);
	assert_int_equal(flows_in_program_n, 1); /* A's */
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), 0);
	assert_int_equal(flows_in_program_n, 1);
	assert_int_equal(flow_grants_n, 2);
	assert_int_equal(flows_deleted_n, 0);
	owner_flows_end_grace(&owner, now_ns + 10 * SECOND);
	assert_int_equal(flows_in_program_n, 1);
	assert_int_equal(xdp_owner_flow_del(&owner, A, &fixture->rule.key), 0);
}

static void test_in_a_full_map_the_oldest_in_grace_makes_way(void **state)
{
	struct fixture *fixture = *state;
	struct vma_flow_rule other = fixture->rule;

	two_slots_request_listener_flow(fixture);
	other.key.local_port_be = htons(1);
	assert_int_equal(xdp_owner_flow_add(&owner, A, &other), 0);
	room = 2;
	other.key.local_port_be = htons(2);
	assert_int_equal(xdp_owner_flow_add(&owner, A, &other), 0);
	assert_int_equal(flows_in_program_n, 2);
	assert_int_equal(flows_deleted_n, 1);
	assert_null(owner.in_grace);
	other.key.local_port_be = htons(3);
	assert_int_equal(xdp_owner_flow_add(&owner, A, &other), -ENOSPC);
}

static void test_flows_in_grace_end_in_order(void **state)
{
	struct fixture *fixture = *state;

	two_slots_request_listener_flow(fixture);
	fixture->rule.key.local_port_be = htons(1);
	now_ns += SECOND;
	two_slots_request_listener_flow(fixture);
	assert_int_equal(flows_in_program_n, 2);
	owner_flows_end_grace(&owner, now_ns + SECOND);
	assert_int_equal(flows_in_program_n, 1);
	assert_int_equal(owner.in_grace->rule.key.local_port_be, htons(1));
}

static void test_a_flow_in_grace_ends_with_its_client(void **state)
{
	struct fixture *fixture = *state;

	two_slots_request_listener_flow(fixture);
	owner_slot_release_flows_and_claims(&owner, A, false);
	assert_int_equal(flows_in_program_n, 0);
}

/* Two processes may choose the same port to the same peer; of a connection there is no second half for the kernel. */
static void test_a_connection_stays_with_who_has_it(void **state)
{
	struct fixture *fixture = *state;

	fixture->rule.key.proto = IPPROTO_TCP;
	fixture->rule.key.peer_port_be = htons(7);
	memcpy(fixture->rule.key.peer, "\x0a\0\0\2", 4);
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), 0);
	assert_int_equal(slot_requests_flow(fixture, B, fixture->cookie[1]), -EADDRINUSE);
	assert_int_equal(flows_in_program_n, 1);
	assert_int_equal(owner.waiters, 0);
	assert_int_equal(xdp_owner_flow_del(&owner, B, &fixture->rule.key), -ENOENT);
	assert_int_equal(xdp_owner_flow_del(&owner, A, &fixture->rule.key), 0);
	assert_int_equal(slot_requests_flow(fixture, B, fixture->cookie[1]), 0);
}

static void test_waiters_are_forgotten_when_nobody_repeats_them(void **state)
{
	struct fixture *fixture = *state;

	share_one_socket_between_two_slots(fixture);
	assert_int_equal(slot_requests_flow(fixture, A, fixture->cookie[0]), 0);
	assert_int_equal(slot_requests_flow(fixture, B, fixture->cookie[1]), -EADDRINUSE);
	assert_int_equal(owner.waiters, 2);
	now_ns += 4 * SECOND;
	owner_flow_waiters_expire(&owner);
	assert_int_equal(owner.waiters, 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup_owner_with_two_rented_slots, teardown)

/* Nor is the kernel asked for sockets in its way, one of which there is. */
static void test_a_block_is_its_first_ones_and_nobody_is_told(void **state)
{
	struct fixture *fixture = *state;
	struct vma_flow_rule block = fixture->rule;

	block.key.proto = VMA_FLOW_TCP_PORTS;
	block.key.local_port_be &= htons((uint16_t) ~(VMA_FLOW_PORTS - 1));
	assert_int_equal(xdp_owner_flow_add(&owner, A, &block), 0);
	assert_int_equal(xdp_owner_flow_add(&owner, A, &block), -EEXIST);
	assert_int_equal(xdp_owner_flow_add(&owner, B, &block), -EADDRINUSE);
	assert_int_equal(owner.waiters, 0);
	assert_null(owner.revoke_pending);
	assert_null(owner.in_grace);
	owner_slot_release_flows_and_claims(&owner, A, true);
	assert_int_equal(xdp_owner_flow_add(&owner, B, &block), 0);
}

static const struct CMUnitTest tests[] = {
        CASE(test_a_flow_that_two_want_goes_to_the_kernel_and_its_client_is_told),
        CASE(test_neither_gets_it_while_both_go_on_asking),
        CASE(test_the_first_one_to_ask_again_does_not_get_it_either),
        CASE(test_who_is_silent_for_three_seconds_does_not_want_it_any_more),
        CASE(test_whose_queue_pair_ends_does_not_want_it_any_more),
        CASE(test_whose_socket_is_closed_does_not_want_it_any_more),
        CASE(test_a_flow_granted_again_is_not_reported_as_given_up),
        CASE(test_who_deletes_it_before_he_knows_does_not_want_it_any_more),
        CASE(test_a_second_socket_on_the_port_is_a_stranger),
        CASE(test_unless_it_was_named_as_a_shadow_before),
        CASE(test_a_member_of_the_same_queue_pair_adds_its_shadow),
        CASE(test_udp_has_no_listener_that_could_hide_a_stranger),
        CASE(test_a_listener_that_two_want_is_in_grace),
        CASE(test_a_flow_in_grace_is_replaced),
        CASE(test_in_a_full_map_the_oldest_in_grace_makes_way),
        CASE(test_flows_in_grace_end_in_order),
        CASE(test_a_flow_in_grace_ends_with_its_client),
        CASE(test_a_connection_stays_with_who_has_it),
        CASE(test_a_block_is_its_first_ones_and_nobody_is_told),
        CASE(test_waiters_are_forgotten_when_nobody_repeats_them),
};

VMA_TEST_MAIN(tests)
