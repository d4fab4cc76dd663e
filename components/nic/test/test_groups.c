/*
 * Listeners that several slots serve: the owner's table, members in ordinary memory, a program that only counts, and a
 * clock that the test turns. The kernel's sockets are real.
 * seconds: 20
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/test.h>

#include "fake_prog.h"

#define MS 1000000ull

static struct xdp_owner owner;
static uint64_t now_ns;
static struct vma_flow_rule rule;
static int listener;
static struct {
	unsigned n;
	uint32_t slot;
	struct vma_pending pending;
} adopted;

uint64_t owner_now_ns(void)
{
	fake_prog_call_step_hook();
	return now_ns;
}

int vma_flow_key_check(const struct vma_flow_key *key)
{
	return key->family == AF_INET ? 0 : -EAFNOSUPPORT;
}

static bool record_adopted_pending_connection(uint32_t slot, const struct vma_pending *pending, void *arg)
{
	(void)arg;
	adopted.n++;
	adopted.slot = slot;
	memcpy(&adopted.pending, pending, sizeof(*pending));
	return true;
}

static int open_listener_and_get_cookie(struct sockaddr_in *address, bool reuseport, uint64_t *cookie)
{
	socklen_t len = sizeof(*address), cookie_len = sizeof(*cookie);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;

	if (reuseport)
		setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof(yes));
	assert_int_equal(bind(fd, (struct sockaddr *)address, len), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)address, &len), 0);
	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_COOKIE, cookie, &cookie_len), 0);
	return fd;
}

#define MEMBERS_BYTES (XDP_SLOTS_MAX * sizeof(struct vma_nic_accept_page))

/* Outlives the process of an owner. */
static void *mmap_shared_memory(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(memory, MAP_FAILED);
	return memory;
}

static int setup(void **state)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	(void)state;
	memset(&owner, 0, sizeof(owner));
	memset(&prog, 0, sizeof(prog));
	memset(&adopted, 0, sizeof(adopted));
	owner.diag_fd = -1;
	owner.on_adopt = record_adopted_pending_connection;
	owner.members = mmap_shared_memory(MEMBERS_BYTES);
	for (uint32_t slot = 0; slot < 4; slot++)
		owner.slot[slot].state = SLOT_RENTED;
	now_ns = 1000 * MS;
	rule = (struct vma_flow_rule){.flags = VMA_FLOW_LISTENER};
	listener = open_listener_and_get_cookie(&address, true, &rule.shadow_cookie);
	rule.key = (struct vma_flow_key){
	        .family = AF_INET, .proto = IPPROTO_TCP, .local_port_be = address.sin_port, .local = {127, 0, 0, 1}};
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (uint32_t slot = 0; slot < 4; slot++)
		owner_slot_release_flows_and_claims(&owner, slot, false);
	while (owner.in_grace != NULL) {
		now_ns += 3000 * MS;
		owner_flows_end_grace(&owner, now_ns);
	}
	owner_groups_fini(&owner);
	owner_resets_fini(&owner); /* of what the flows above had */
	munmap(owner.members, MEMBERS_BYTES);
	owner_minisocks_fini(&owner.minisocks);
	owner_parked_fini(&owner);
	assert_int_equal(owner.parked, 0);
	assert_int_equal(owner.minisocks.count, 0);
	if (listener >= 0)
		close(listener);
	return 0;
}

/* An owner that outlives its clients, and a listener that they have from another process. */
static int setup_groups_of_inherited_listener(void **state)
{
	setup(state);
	rule.flags |= VMA_FLOW_INHERITED;
	return owner_minisocks_open(&owner);
}

static void groups_add_listener_flow_of_slot(uint32_t slot)
{
	assert_int_equal(xdp_owner_flow_add(&owner, slot, &rule), 0);
}

static struct xdp_group *group(void)
{
	return &prog.groups[owner_find_listener_flow(&owner, &rule.key)->group];
}

static unsigned count_group_buckets_of_slot(uint32_t slot)
{
	unsigned n = 0;

	for (unsigned i = 0; i < XDP_GROUP_BUCKETS; i++)
		n += group()->slot[i] == slot;
	return n;
}

static void advance_clock_ms_ticking_owner(unsigned ms)
{
	for (unsigned passed = 0; passed < ms; passed += 40) {
		now_ns += 40 * MS;
		owner_groups_check_and_rebalance(&owner, now_ns);
		owner_parked_hand_over_or_expire(&owner, now_ns);
		owner_minisocks_read_segments_and_expire(&owner, now_ns);
	}
}

static void sleeps(uint32_t slot, bool on)
{
	atomic_store(&owner.members[slot].sleeps, on);
}

static struct vma_pending *groups_put_pending_connection(uint32_t slot, unsigned place, uint32_t state)
{
	struct vma_pending *entry = &owner.members[slot].pending[place];

	memcpy(entry->local, rule.key.local, 4);
	memcpy(entry->peer, (uint8_t[]){10, 0, 0, 1}, 4);
	entry->local_port_be = rule.key.local_port_be;
	entry->peer_port_be = htons((uint16_t)(5000 + place));
	entry->since_ns = now_ns;
	entry->iss = 77 + place;
	atomic_store(&entry->state, state);
	return entry;
}

/* ---- who may share ---- */

static void test_one_socket_in_two_processes_is_shared(void **state)
{
	(void)state;
	groups_add_listener_flow_of_slot(0);
	assert_int_equal(owner.groups, 0);
	groups_add_listener_flow_of_slot(1);
	assert_int_equal(owner.groups, 1);
	groups_add_listener_flow_of_slot(2);
	assert_int_equal(owner.groups, 1);
	assert_int_equal(xdp_owner_flow_add(&owner, 1, &rule), -EEXIST);
	assert_int_equal(atomic_load(&owner.members[1].groups), 1);
	assert_int_equal(count_group_buckets_of_slot(0), 43);
	assert_int_equal(count_group_buckets_of_slot(1), 43);
	assert_int_equal(count_group_buckets_of_slot(2), 42);
}

static void test_listeners_of_a_reuseport_group_are_shared(void **state)
{
	struct sockaddr_in address = {
	        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = rule.key.local_port_be};
	struct vma_flow_rule other = rule;
	int fd = open_listener_and_get_cookie(&address, true, &other.shadow_cookie);

	(void)state;
	/* The first to ask does not know whose the other is; the second finds the first one's waiter. */
	assert_int_equal(xdp_owner_flow_add(&owner, 0, &rule), -EADDRINUSE);
	assert_int_equal(xdp_owner_flow_add(&owner, 1, &other), 0);
	assert_int_equal(xdp_owner_flow_add(&owner, 0, &rule), 0);
	assert_int_equal(owner.groups, 1);
	close(fd);
}

static void test_another_address_is_another_service(void **state)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = rule.key.local_port_be};
	struct vma_flow_rule other = rule;
	int fd = open_listener_and_get_cookie(&address, true, &other.shadow_cookie);

	(void)state;
	assert_int_equal(xdp_owner_flow_add(&owner, 0, &rule), -EADDRINUSE);
	assert_int_equal(xdp_owner_flow_add(&owner, 1, &other), -EADDRINUSE);
	assert_int_equal(owner.groups, 0);
	close(fd);
}

/* ---- who gets what ---- */

static void test_a_member_that_does_not_ask_gets_none(void **state)
{
	(void)state;
	groups_add_listener_flow_of_slot(0);
	groups_add_listener_flow_of_slot(1);
	sleeps(0, true);
	advance_clock_ms_ticking_owner(200);
	assert_int_equal(count_group_buckets_of_slot(0), XDP_GROUP_BUCKETS);
	atomic_fetch_add(&owner.members[1].accept_calls, 1);
	advance_clock_ms_ticking_owner(40);
	assert_int_equal(count_group_buckets_of_slot(1), XDP_GROUP_BUCKETS / 2);
	sleeps(0, false);
	advance_clock_ms_ticking_owner(200);
	assert_true(count_group_buckets_of_slot(0) + count_group_buckets_of_slot(1) == XDP_GROUP_BUCKETS);
}

static void test_what_is_not_accepted_is_moved_once(void **state)
{
	struct vma_pending *entry, *half;

	(void)state;
	groups_add_listener_flow_of_slot(0);
	groups_add_listener_flow_of_slot(1);
	sleeps(0, true);
	sleeps(1, true);
	advance_clock_ms_ticking_owner(200);
	half = groups_put_pending_connection(0, 3, VMA_PENDING_HALF_OPEN);
	entry = groups_put_pending_connection(0, 7, VMA_PENDING_QUEUED);
	advance_clock_ms_ticking_owner(80);
	assert_int_equal(adopted.n, 0);
	advance_clock_ms_ticking_owner(80);
	assert_int_equal(adopted.n, 1);
	assert_int_equal(adopted.slot, 1);
	assert_int_equal(adopted.pending.iss, 84);
	assert_true(adopted.pending.handshaken);
	assert_int_equal(atomic_load(&entry->state), VMA_PENDING_MOVED);
	assert_int_equal(atomic_load(&half->state), VMA_PENDING_HALF_OPEN);
	assert_int_equal(count_group_buckets_of_slot(0), 0);
	advance_clock_ms_ticking_owner(400);
	assert_int_equal(adopted.n, 1);
	/* Until it asks again. */
	atomic_fetch_add(&owner.members[0].accept_calls, 1);
	advance_clock_ms_ticking_owner(40);
	assert_int_equal(count_group_buckets_of_slot(0), XDP_GROUP_BUCKETS / 2);
}

static void test_a_member_that_ends_leaves_all_that_waits(void **state)
{
	(void)state;
	groups_add_listener_flow_of_slot(0);
	groups_add_listener_flow_of_slot(1);
	groups_put_pending_connection(0, 3, VMA_PENDING_HALF_OPEN);
	groups_put_pending_connection(0, 7, VMA_PENDING_QUEUED);
	owner_slot_release_flows_and_claims(&owner, 0, true);
	assert_int_equal(adopted.n, 2);
	assert_int_equal(adopted.slot, 1);
	assert_int_equal(count_group_buckets_of_slot(1), XDP_GROUP_BUCKETS);
	advance_clock_ms_ticking_owner(2400);
	assert_int_equal(owner.groups, 0);
	assert_int_equal(atomic_load(&owner.members[1].groups), 0);
}

static void test_what_waits_goes_to_successors(void **state)
{
	(void)state;
	groups_add_listener_flow_of_slot(0);
	groups_add_listener_flow_of_slot(1);
	now_ns += 50 * MS;
	groups_add_listener_flow_of_slot(2);
	assert_int_equal(xdp_owner_flow_stop_new_conns(&owner, 0, &rule.key), 0);
	assert_int_equal(count_group_buckets_of_slot(0), 0);
	for (unsigned i = 0; i < 16; i++)
		groups_put_pending_connection(0, i, VMA_PENDING_QUEUED);
	assert_int_equal(xdp_owner_flow_del(&owner, 0, &rule.key), 0);
	assert_int_equal(adopted.n, 16);
	assert_int_equal(adopted.slot, 2);
	assert_int_equal(xdp_owner_flow_stop_new_conns(&owner, 1, &rule.key), 0);
	assert_int_equal(xdp_owner_flow_stop_new_conns(&owner, 2, &rule.key), -ENOENT);
}

static void test_another_listeners_connections_stay(void **state)
{
	struct vma_pending *entry;

	(void)state;
	groups_add_listener_flow_of_slot(0);
	groups_add_listener_flow_of_slot(1);
	entry = groups_put_pending_connection(0, 7, VMA_PENDING_QUEUED);
	entry->local_port_be ^= 1;
	assert_int_equal(xdp_owner_flow_del(&owner, 0, &rule.key), 0);
	assert_int_equal(adopted.n, 0);
	assert_int_equal(atomic_load(&entry->state), VMA_PENDING_QUEUED);
}

/* Members come and go in any order: numbers of groups and flows are given back, and buckets name members only. */
static void test_any_order_of_coming_and_going(void **state)
{
	uint32_t seed = 1;
	bool in[4] = {0};

	(void)state;
	for (unsigned step = 0; step < 4000; step++) {
		struct owner_flow *flow;
		uint32_t slot;

		seed = seed * 1664525 + 1013904223;
		slot = seed >> 16 & 3;
		if (!in[slot])
			groups_add_listener_flow_of_slot(slot);
		else if (seed >> 20 & 1)
			owner_slot_release_flows_and_claims(&owner, slot, seed >> 21 & 1);
		else
			assert_int_equal(xdp_owner_flow_del(&owner, slot, &rule.key), 0);
		in[slot] = !in[slot];
		if (seed >> 24 & 1)
			advance_clock_ms_ticking_owner(40 * (seed >> 25));
		flow = owner_find_listener_flow(&owner, &rule.key);
		assert_int_equal(flow != NULL, in[0] || in[1] || in[2] || in[3]);
		for (uint32_t s = 0; s < 4 && flow != NULL; s++)
			assert_int_equal(owner_flow_has_slot(flow, s), in[s]);
		for (uint32_t i = 0; flow != NULL && flow->group != 0 && i < XDP_GROUP_BUCKETS; i++)
			assert_true(in[group()->slot[i]]);
		assert_int_equal(owner.groups, flow != NULL && flow->group != 0);
	}
}

static void test_what_waits_in_one_that_asks_goes_to_one_that_accepts(void **state)
{
	struct vma_pending *entry;

	(void)state;
	groups_add_listener_flow_of_slot(0);
	groups_add_listener_flow_of_slot(1);
	entry = groups_put_pending_connection(0, 7, VMA_PENDING_QUEUED);
	atomic_store(&owner.members[0].waiting, 1);
	for (unsigned i = 0; i < 6; i++) {
		atomic_fetch_add(&owner.members[0].accept_calls, 1);
		atomic_fetch_add(&owner.members[1].accept_calls, 1);
		atomic_fetch_add(&owner.members[1].accepted, 1);
		advance_clock_ms_ticking_owner(40);
	}
	assert_int_equal(adopted.n, 1);
	assert_int_equal(adopted.slot, 1);
	assert_int_equal(atomic_load(&entry->state), VMA_PENDING_MOVED);
	/* It accepts none, so it gets none; but for a second only. */
	assert_int_equal(count_group_buckets_of_slot(0), 0);
	for (unsigned i = 0; i < 30; i++) {
		atomic_fetch_add(&owner.members[0].accept_calls, 1);
		atomic_fetch_add(&owner.members[1].accept_calls, 1);
		advance_clock_ms_ticking_owner(40);
	}
	assert_int_equal(count_group_buckets_of_slot(0), XDP_GROUP_BUCKETS / 2);
}

static void test_overloaded_members_keep_what_waits(void **state)
{
	(void)state;
	groups_add_listener_flow_of_slot(0);
	groups_add_listener_flow_of_slot(1);
	for (uint32_t slot = 0; slot < 2; slot++) {
		groups_put_pending_connection(slot, 7, VMA_PENDING_QUEUED);
		atomic_store(&owner.members[slot].waiting, 1);
	}
	for (unsigned i = 0; i < 20; i++) {
		for (uint32_t slot = 0; slot < 2; slot++) {
			atomic_fetch_add(&owner.members[slot].accept_calls, 1);
			atomic_fetch_add(&owner.members[slot].accepted, 1);
		}
		advance_clock_ms_ticking_owner(40);
	}
	assert_int_equal(adopted.n, 0);
	/* One has nothing to do any more, and sleeps. */
	atomic_store(&owner.members[1].pending[7].state, VMA_PENDING_FREE);
	atomic_store(&owner.members[1].waiting, 0);
	sleeps(1, true);
	atomic_fetch_add(&owner.members[0].accept_calls, 1);
	atomic_fetch_add(&owner.members[0].accepted, 1);
	advance_clock_ms_ticking_owner(40);
	assert_int_equal(adopted.n, 1);
	assert_int_equal(adopted.slot, 1);
	assert_true(count_group_buckets_of_slot(0) > 0);
}

/* Two that ask, and of which neither accepts: what waits does not go to and fro. */
static void test_nothing_goes_to_and_fro(void **state)
{
	(void)state;
	groups_add_listener_flow_of_slot(0);
	groups_add_listener_flow_of_slot(1);
	groups_put_pending_connection(0, 7, VMA_PENDING_QUEUED);
	atomic_store(&owner.members[0].waiting, 1);
	for (unsigned i = 0; i < 50; i++) {
		const unsigned before = adopted.n;

		atomic_fetch_add(&owner.members[0].accept_calls, 1);
		atomic_fetch_add(&owner.members[1].accept_calls, 1);
		advance_clock_ms_ticking_owner(40);
		if (adopted.n != before) {
			const uint32_t to = adopted.slot;

			atomic_store(&owner.members[1 - to].pending[7].state, VMA_PENDING_FREE);
			atomic_store(&owner.members[1 - to].waiting, 0);
			atomic_store(&owner.members[to].adopted, adopted.pending.number);
			groups_put_pending_connection(to, 7, VMA_PENDING_QUEUED);
			atomic_store(&owner.members[to].waiting, 1);
		}
	}
	assert_in_range(adopted.n, 1, 3);
}

static void test_what_was_on_its_way_to_one_that_dies_goes_to_another(void **state)
{
	(void)state;
	groups_add_listener_flow_of_slot(0);
	groups_add_listener_flow_of_slot(1);
	groups_add_listener_flow_of_slot(2);
	sleeps(1, true);
	groups_put_pending_connection(0, 3, VMA_PENDING_QUEUED);
	groups_put_pending_connection(0, 4, VMA_PENDING_QUEUED);
	groups_put_pending_connection(0, 5, VMA_PENDING_QUEUED);
	advance_clock_ms_ticking_owner(200);
	assert_int_equal(adopted.n, 3);
	assert_int_equal(adopted.slot, 1);
	/* The first is made and accepted; the second made, which it did not come to say; the third lies in its socket.
	 */
	atomic_store(&owner.members[1].adopted, adopted.pending.number - 2);
	groups_put_pending_connection(1, 4, VMA_PENDING_QUEUED);
	sleeps(2, true);
	owner_slot_release_flows_and_claims(&owner, 1, true);
	assert_int_equal(adopted.n, 5);
	assert_int_equal(adopted.slot, 2);
	assert_int_equal(adopted.pending.iss, 77 + 4);
	assert_true(adopted.pending.handshaken);
	owner_slot_release_flows_and_claims(&owner, 2, true);
	assert_int_equal(adopted.n, 7);
	assert_int_equal(adopted.slot, 0);
}

/* ---- the last one dies, and the kernel's listener lives on ---- */

static struct vma_flow_key groups_key_of_pending_peer(unsigned place)
{
	struct vma_flow_key key = rule.key;

	memcpy(key.peer, (uint8_t[]){10, 0, 0, 1}, 4);
	key.peer_port_be = htons((uint16_t)(5000 + place));
	return key;
}

/* Whether the program keeps from the kernel what comes for it. */
static bool minisock_keeps_from_kernel(unsigned place)
{
	const struct vma_flow_key key = groups_key_of_pending_peer(place);
	const int at = fake_prog_find_entry(&key);

	return at >= 0 && prog.entry[at].is_minisock;
}

static void test_what_waits_in_the_last_one_is_kept_for_the_next(void **state)
{
	struct vma_pending *entry = NULL;

	(void)state;
	groups_add_listener_flow_of_slot(0);
	assert_int_equal(owner.groups, 1);
	advance_clock_ms_ticking_owner(3000);
	assert_int_equal(atomic_load(&owner.members[0].groups), 1);
	for (unsigned i = 0; i < 16; i++)
		entry = groups_put_pending_connection(0, i, i == 3 ? VMA_PENDING_HALF_OPEN : VMA_PENDING_QUEUED);
	owner_slot_release_flows_and_claims(&owner, 0, true);
	assert_int_equal(owner.groups, 0);
	assert_int_equal(adopted.n, 0);
	assert_int_equal(owner.parked, 16);
	assert_int_equal(owner.resets.count, 0);
	assert_int_equal(atomic_load(&entry->state), VMA_PENDING_MOVED);
	advance_clock_ms_ticking_owner(5000);
	for (unsigned i = 0; i < 16; i++)
		assert_true(minisock_keeps_from_kernel(i));
	groups_add_listener_flow_of_slot(1);
	advance_clock_ms_ticking_owner(40);
	assert_int_equal(adopted.n, 16);
	assert_int_equal(adopted.slot, 1);
	assert_int_equal(adopted.pending.iss, 77 + 15);
	assert_true(adopted.pending.handshaken);
	assert_false(minisock_keeps_from_kernel(3));
	assert_int_equal(owner.parked, 0);
	assert_null(owner.parked_listeners);
	assert_int_equal(owner.resets.count, 0);
	/* And dies as well, before it has made them. */
	owner_slot_release_flows_and_claims(&owner, 1, true);
	assert_int_equal(owner.parked, 16);
	groups_add_listener_flow_of_slot(2);
	advance_clock_ms_ticking_owner(40);
	assert_int_equal(adopted.n, 32);
	assert_int_equal(adopted.slot, 2);
}

/* A process that is killed closes its connection to us first. */
static void test_what_waits_is_kept_from_the_kernel_before_its_process_is_known_to_be_dead(void **state)
{
	struct vma_pending *entry;

	(void)state;
	groups_add_listener_flow_of_slot(0);
	entry = groups_put_pending_connection(0, 7, VMA_PENDING_QUEUED);
	owner_slot_release_flows_and_claims(&owner, 0, false);
	assert_true(minisock_keeps_from_kernel(7));
	assert_int_equal(atomic_load(&entry->state), VMA_PENDING_QUEUED); /* it may accept it */
	groups_add_listener_flow_of_slot(1);
	advance_clock_ms_ticking_owner(40);
	assert_int_equal(adopted.n, 0);
	owner_group_move_unaccepted_conns_off_slot(&owner, 0, NULL); /* there is a next one by now */
	assert_int_equal(adopted.n, 1);
	assert_int_equal(adopted.slot, 1);
	assert_false(minisock_keeps_from_kernel(7));
	advance_clock_ms_ticking_owner(4000);
	assert_null(owner.parked_listeners);
}

/* The one that closes the listener lives on. */
static void test_what_waits_in_the_last_one_that_closes_the_listener_is_kept(void **state)
{
	struct vma_pending *entry, *accepted;

	(void)state;
	groups_add_listener_flow_of_slot(0);
	entry = groups_put_pending_connection(0, 7, VMA_PENDING_QUEUED);
	accepted = groups_put_pending_connection(0, 8, VMA_PENDING_QUEUED);
	atomic_store(&accepted->state, VMA_PENDING_FREE);
	assert_int_equal(xdp_owner_flow_del(&owner, 0, &rule.key), 0);
	assert_int_equal(atomic_load(&entry->state), VMA_PENDING_MOVED);
	assert_int_equal(owner.parked, 1);
	assert_true(minisock_keeps_from_kernel(7));
	assert_false(minisock_keeps_from_kernel(8));
	advance_clock_ms_ticking_owner(5000);
	groups_add_listener_flow_of_slot(1);
	advance_clock_ms_ticking_owner(40);
	assert_int_equal(adopted.n, 1);
	assert_int_equal(adopted.slot, 1);
	assert_int_equal(owner.parked, 0);
	assert_int_equal(owner.resets.count, 0);
}

static void test_what_waits_in_the_last_one_that_closes_the_last_listener_is_reset(void **state)
{
	(void)state;
	groups_add_listener_flow_of_slot(0);
	groups_put_pending_connection(0, 7, VMA_PENDING_QUEUED);
	assert_int_equal(xdp_owner_flow_del(&owner, 0, &rule.key), 0);
	close(listener);
	listener = -1;
	advance_clock_ms_ticking_owner(240);
	assert_int_equal(owner.parked, 0);
	assert_int_equal(owner.resets.count, 1);
}

static void test_nobody_comes(void **state)
{
	(void)state;
	groups_add_listener_flow_of_slot(0);
	for (unsigned i = 0; i < 16; i++)
		groups_put_pending_connection(0, i, VMA_PENDING_QUEUED);
	owner_slot_release_flows_and_claims(&owner, 0, true);
	advance_clock_ms_ticking_owner(9900);
	assert_int_equal(owner.parked, 16);
	assert_int_equal(owner.resets.count, 0);
	advance_clock_ms_ticking_owner(200);
	assert_int_equal(owner.parked, 0);
	assert_int_equal(owner.resets.count, 16);
	assert_null(owner.parked_listeners);
	assert_true(minisock_keeps_from_kernel(7)); /* its answer to the probe is reset */
	assert_int_equal(owner_parked_due_ns(&owner), UINT64_MAX);
	advance_clock_ms_ticking_owner(4000);
	assert_int_equal(owner.minisocks.count, 0);
	assert_int_equal(fake_prog_used_entries(), 0);
}

static void test_a_listener_that_is_closed_keeps_nothing(void **state)
{
	(void)state;
	groups_add_listener_flow_of_slot(0);
	groups_put_pending_connection(0, 7, VMA_PENDING_QUEUED);
	owner_slot_release_flows_and_claims(&owner, 0, true);
	advance_clock_ms_ticking_owner(400);
	assert_int_equal(owner.parked, 1);
	close(listener);
	advance_clock_ms_ticking_owner(240);
	assert_int_equal(owner.parked, 0);
	assert_int_equal(owner.resets.count, 1);
	listener = -1;
}

static void test_a_listener_that_dies_with_its_process_keeps_nothing(void **state)
{
	(void)state;
	groups_add_listener_flow_of_slot(0);
	groups_put_pending_connection(0, 7, VMA_PENDING_QUEUED);
	close(listener);
	owner_slot_release_flows_and_claims(&owner, 0, true);
	assert_int_equal(owner.parked, 0);
	assert_int_equal(owner.resets.count, 1);
	listener = -1;
}

/* A page can be written by anybody: what it says of others' is not kept. */
static void test_only_a_listeners_own_is_kept(void **state)
{
	struct vma_flow_rule others = {.key = groups_key_of_pending_peer(3)};

	(void)state;
	groups_add_listener_flow_of_slot(0);
	assert_int_equal(xdp_owner_flow_add(&owner, 1, &others), 0);
	groups_put_pending_connection(0, 1, VMA_PENDING_QUEUED)->local_port_be ^= 1;
	groups_put_pending_connection(0, 2, VMA_PENDING_QUEUED)->peer_port_be = 0;
	groups_put_pending_connection(0, 3, VMA_PENDING_QUEUED); /* it is another client's */
	groups_put_pending_connection(0, 4, VMA_PENDING_QUEUED);
	groups_put_pending_connection(0, 5, VMA_PENDING_QUEUED)->peer_port_be = htons(5004); /* again */
	groups_put_pending_connection(0, 6, 77);
	owner_slot_release_flows_and_claims(&owner, 0, true);
	assert_int_equal(owner.parked, 1);
	assert_true(minisock_keeps_from_kernel(4));
	assert_false(minisock_keeps_from_kernel(3));
	assert_true(owner_flow_exists(&owner, &others.key));
}

static void test_no_more_than_a_member_can_take_is_given_at_once(void **state)
{
	(void)state;
	groups_add_listener_flow_of_slot(0);
	for (unsigned i = 0; i < 200; i++)
		groups_put_pending_connection(0, i, VMA_PENDING_QUEUED);
	owner_slot_release_flows_and_claims(&owner, 0, true);
	assert_int_equal(owner.parked, 200);
	groups_add_listener_flow_of_slot(1);
	advance_clock_ms_ticking_owner(400);
	assert_int_equal(adopted.n, 128);
	atomic_store(&owner.members[1].adopted, 100);
	advance_clock_ms_ticking_owner(40);
	assert_int_equal(adopted.n, 200);
	assert_null(owner.parked_listeners);
}

/* ---- an owner that is killed at any step, and the one after it ---- */

#define WAITING 16u

static struct {
	unsigned left; /* steps until it is killed */
	uint32_t seen[XDP_SLOTS_MAX];
	unsigned made[WAITING], in[WAITING]; /* how often, and in which slot, by a client */
	bool deaf;                           /* the clients are between two owners */
} life;

/* What does not end with the owner's process. The pages and the record are shared memory themselves. */
static struct state_surviving_owner_process {
	__typeof__(prog) prog;
	__typeof__(life) life;
	uint64_t now_ns;
	bool lived;
} * state_surviving_owner_process;

static void groups_save_state_and_exit_process(bool lived)
{
	memcpy(&state_surviving_owner_process->prog, &prog, sizeof(prog));
	memcpy(&state_surviving_owner_process->life, &life, sizeof(life));
	state_surviving_owner_process->now_ns = now_ns;
	state_surviving_owner_process->lived = lived;
	_exit(0);
}

static void kill_owner_at_step(void)
{
	if (life.left-- == 0)
		groups_save_state_and_exit_process(false);
}

/* As a client does: what it has had it passes over. It may have had what the owner does not know that it has said. */
static bool groups_client_take_pending(uint32_t slot, const struct vma_pending *pending, void *arg)
{
	const unsigned place = ntohs(pending->peer_port_be) - 5000u;

	(void)arg;
	fake_prog_call_step_hook();
	if (life.deaf)
		return false;
	assert_in_range(place, 0, WAITING - 1);
	if ((int32_t)(pending->number - life.seen[slot]) > 0) {
		life.seen[slot] = pending->number;
		life.made[place]++;
		life.in[place] = slot;
	}
	fake_prog_call_step_hook();
	return true;
}

static void init_test_owner(struct owner_record *record)
{
	owner.record = record;
	owner.on_adopt = groups_client_take_pending;
	owner.reset_places = (struct owner_place_bitmap){.words = OWNER_RECORD_RESETS / 64, .used = owner.reset_used};
	owner.listener_places =
	        (struct owner_place_bitmap){.words = OWNER_RECORD_LISTENERS / 64, .used = owner.listener_used};
	owner.waiting_places =
	        (struct owner_place_bitmap){.words = OWNER_RECORD_WAITING / 64, .used = owner.waiting_used};
}

/* Its memory goes with its process: here it is freed, and what that would change is put back. */
static struct owner_record *free_dead_owner_keep_record(void)
{
	static __typeof__(prog) persistent;
	struct owner_record *record = owner.record;
	struct vma_nic_accept_page *members = owner.members;

	memcpy(&persistent, &prog, sizeof(prog));
	owner.record = mmap_shared_memory(sizeof(*record));
	owner.members = malloc(MEMBERS_BYTES);
	memcpy(owner.members, members, MEMBERS_BYTES);
	owner.on_adopt = NULL;
	for (uint32_t slot = 0; slot < 4; slot++)
		owner_slot_release_flows_and_claims(&owner, slot, false);
	owner_groups_fini(&owner);
	owner_resets_fini(&owner);
	owner_minisocks_fini(&owner.minisocks);
	owner_parked_fini(&owner);
	free(owner.members);
	munmap(owner.record, sizeof(*record));
	if (owner.diag_fd >= 0)
		close(owner.diag_fd);
	memset(&owner, 0, sizeof(owner));
	memcpy(&prog, &persistent, sizeof(prog));
	owner.members = members;
	owner.diag_fd = -1;
	return record;
}

/* As owner/adopt.c. */
static void new_owner_adopt_prog_entry(const struct vma_flow_key *key, bool is_minisock, uint32_t slot, uint32_t group)
{
	struct owner_flow *flow;
	uint64_t members;

	if (is_minisock) {
		owner_restore_minisock_from_record(&owner, key, slot);
		return;
	}
	assert_int_equal(key->peer_port_be, 0);
	flow = calloc(1, sizeof(*flow));
	flow->rule = (struct vma_flow_rule){.key = *key, .flags = VMA_FLOW_LISTENER};
	flow->slot = slot;
	if (group != 0) {
		members = owner_record_load_group(&owner, flow, group);
		owner_restore_group_of_flow(&owner, flow, group, members | 1ull << slot);
	}
	owner_insert_restored_flow(&owner, flow);
}

/* Slots up to `dead` were found dead by the owner before. */
static void new_owner_takes_over(uint32_t dead)
{
	init_test_owner(free_dead_owner_keep_record());
	for (uint32_t slot = 0; slot < 4; slot++)
		owner.slot[slot].state = slot < dead ? SLOT_DRAINING : SLOT_RENTED;
	assert_int_equal(owner_minisocks_open(&owner), 0);
	owner_resets_load_record(&owner);
	for (unsigned i = 0; i < FAKE_ENTRIES; i++)
		if (prog.entry[i].used)
			new_owner_adopt_prog_entry(&prog.entry[i].key, prog.entry[i].is_minisock, prog.entry[i].slot,
			                           prog.entry[i].group);
	owner_restore_parked_from_record(&owner);
	owner_restore_pending_moves_from_record(&owner);
	owner_park_listeners_of_dead_clients(&owner);
}

static void groups_setup_owner_with_pending_conns(void)
{
	memset(&life, 0, sizeof(life));
	init_test_owner(mmap_shared_memory(sizeof(struct owner_record)));
	groups_add_listener_flow_of_slot(0);
	advance_clock_ms_ticking_owner(3000);
	for (unsigned i = 0; i < WAITING; i++)
		groups_put_pending_connection(0, i, i == 3 ? VMA_PENDING_HALF_OPEN : VMA_PENDING_QUEUED);
}

/* False: the owner was killed at its `step`-th step. */
static bool run_action_until_owner_dies(void (*what)(void), unsigned step)
{
	pid_t process;
	int status;

	life.left = step;
	process = fork();
	if (process == 0) {
		fake_prog_step_hook = kill_owner_at_step;
		what();
		groups_save_state_and_exit_process(true);
	}
	assert_int_equal(waitpid(process, &status, 0), process);
	assert_int_equal(status, 0);
	memcpy(&prog, &state_surviving_owner_process->prog, sizeof(prog));
	memcpy(&life, &state_surviving_owner_process->life, sizeof(life));
	now_ns = state_surviving_owner_process->now_ns;
	return state_surviving_owner_process->lived;
}

/* The client of the slot finds the new owner. */
static void client_resumes_slot_and_readds_flow(uint32_t slot)
{
	life.deaf = false;
	xdp_owner_resend_moved_conns_to_slot(&owner, slot);
	xdp_owner_flow_add(&owner, slot, &rule);
	xdp_owner_end_unannounced_flows_of_slot(&owner, slot);
}

static void assert_pending_delivered_once_and_exit(void)
{
	struct owner_record *record = owner.record;

	advance_clock_ms_ticking_owner(400);
	for (unsigned i = 0; i < WAITING; i++) {
		assert_int_equal(life.made[i], 1);
		assert_int_equal(life.in[i], 1);
		assert_false(minisock_keeps_from_kernel(i));
	}
	assert_int_equal(owner.parked, 0);
	assert_null(owner.parked_listeners);
	atomic_store(&owner.members[1].adopted, life.seen[1]);
	advance_clock_ms_ticking_owner(80);
	owner_slot_release_flows_and_claims(&owner, 1, false);
	owner_groups_fini(&owner);
	for (uint32_t i = 0; i < OWNER_RECORD_WAITING; i++)
		assert_int_equal(atomic_load(&record->waiting[i].state), RECORD_NO_WAITING);
	for (uint32_t i = 0; i < OWNER_RECORD_LISTENERS; i++)
		assert_int_equal(atomic_load(&record->listener[i].state), RECORD_NO_LISTENER);
	free_dead_owner_keep_record();
	munmap(record, sizeof(*record));
}

static void owner_finds_slot_0_dead(void)
{
	owner_slot_release_flows_and_claims(&owner, 0, true);
}

static void groups_delete_listener_flow_of_slot_0(void)
{
	xdp_owner_flow_del(&owner, 0, &rule.key);
}

static void add_listener_flow_and_tick_parked(void)
{
	xdp_owner_flow_add(&owner, 1, &rule);
	for (unsigned i = 0; i < 4; i++) {
		owner_groups_check_and_rebalance(&owner, now_ns);
		owner_parked_hand_over_or_expire(&owner, now_ns);
		now_ns += 40 * MS;
	}
}

static void restart_test_owner(void **state)
{
	munmap(owner.members, MEMBERS_BYTES);
	close(listener);
	setup_groups_of_inherited_listener(state);
}

/* `first` is done by an owner that lives. What its successor has to do: */
enum then { SUCCESSOR_SEES_CLIENT_DEAD, SUCCESSOR_SEES_LISTENER_CLOSED, SUCCESSOR_SEES_NOTHING };

static void kill_owner_at_each_step_of(void **state, void (*first)(void), void (*what)(void), uint32_t dead,
                                       enum then then)
{
	bool lived = false;

	state_surviving_owner_process = mmap_shared_memory(sizeof(*state_surviving_owner_process));
	for (unsigned step = 0; !lived; step++) {
		assert_in_range(step, 0, 5000);
		groups_setup_owner_with_pending_conns();
		if (first != NULL)
			first();
		lived = run_action_until_owner_dies(what, step);
		life.deaf = true;
		new_owner_takes_over(dead);
		advance_clock_ms_ticking_owner(80);
		if (then == SUCCESSOR_SEES_CLIENT_DEAD)
			owner_finds_slot_0_dead();
		if (then == SUCCESSOR_SEES_LISTENER_CLOSED) { /* its client has had no answer */
			groups_delete_listener_flow_of_slot_0();
			xdp_owner_end_unannounced_flows_of_slot(&owner, 0);
		}
		/* And another one, before anybody comes. */
		new_owner_takes_over(then == SUCCESSOR_SEES_CLIENT_DEAD ? 1 : dead);
		advance_clock_ms_ticking_owner(80);
		client_resumes_slot_and_readds_flow(1);
		assert_pending_delivered_once_and_exit();
		restart_test_owner(state);
	}
	munmap(state_surviving_owner_process, sizeof(*state_surviving_owner_process));
}

static void test_an_owner_is_killed_while_it_keeps_what_waits(void **state)
{
	kill_owner_at_each_step_of(state, NULL, owner_finds_slot_0_dead, 0, SUCCESSOR_SEES_CLIENT_DEAD);
}

static void test_an_owner_is_killed_while_a_listener_is_closed(void **state)
{
	kill_owner_at_each_step_of(state, NULL, groups_delete_listener_flow_of_slot_0, 0,
	                           SUCCESSOR_SEES_LISTENER_CLOSED);
}

static void test_an_owner_is_killed_while_it_gives_what_waits(void **state)
{
	kill_owner_at_each_step_of(state, owner_finds_slot_0_dead, add_listener_flow_and_tick_parked, 1,
	                           SUCCESSOR_SEES_NOTHING);
}

static void slot_1_joins_group(void)
{
	groups_add_listener_flow_of_slot(1);
}

static void test_an_owner_is_killed_while_it_moves_what_waits(void **state)
{
	kill_owner_at_each_step_of(state, slot_1_joins_group, owner_finds_slot_0_dead, 0, SUCCESSOR_SEES_CLIENT_DEAD);
	kill_owner_at_each_step_of(state, slot_1_joins_group, groups_delete_listener_flow_of_slot_0, 0,
	                           SUCCESSOR_SEES_LISTENER_CLOSED);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
#define INHERITED(test) cmocka_unit_test_setup_teardown(test, setup_groups_of_inherited_listener, teardown)

static const struct CMUnitTest tests[] = {
        CASE(test_one_socket_in_two_processes_is_shared),
        CASE(test_listeners_of_a_reuseport_group_are_shared),
        CASE(test_another_address_is_another_service),
        CASE(test_a_member_that_does_not_ask_gets_none),
        CASE(test_what_is_not_accepted_is_moved_once),
        CASE(test_a_member_that_ends_leaves_all_that_waits),
        CASE(test_what_waits_goes_to_successors),
        CASE(test_another_listeners_connections_stay),
        CASE(test_what_waits_in_one_that_asks_goes_to_one_that_accepts),
        CASE(test_overloaded_members_keep_what_waits),
        CASE(test_nothing_goes_to_and_fro),
        CASE(test_what_was_on_its_way_to_one_that_dies_goes_to_another),
        CASE(test_any_order_of_coming_and_going),
        INHERITED(test_what_waits_in_the_last_one_is_kept_for_the_next),
        INHERITED(test_what_waits_is_kept_from_the_kernel_before_its_process_is_known_to_be_dead),
        INHERITED(test_what_waits_in_the_last_one_that_closes_the_listener_is_kept),
        INHERITED(test_what_waits_in_the_last_one_that_closes_the_last_listener_is_reset),
        INHERITED(test_nobody_comes),
        INHERITED(test_a_listener_that_is_closed_keeps_nothing),
        INHERITED(test_a_listener_that_dies_with_its_process_keeps_nothing),
        INHERITED(test_only_a_listeners_own_is_kept),
        INHERITED(test_no_more_than_a_member_can_take_is_given_at_once),
        INHERITED(test_any_order_of_coming_and_going),
        INHERITED(test_an_owner_is_killed_while_it_keeps_what_waits),
        INHERITED(test_an_owner_is_killed_while_a_listener_is_closed),
        INHERITED(test_an_owner_is_killed_while_it_gives_what_waits),
        INHERITED(test_an_owner_is_killed_while_it_moves_what_waits),
};

VMA_TEST_MAIN(tests)
