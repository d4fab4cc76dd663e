/*
 * Minisocks: which connections have one, what it answers, how long it lives and to whom it gives way. The program's map
 * and the answers are the test's own.
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

#include "fake_prog.h"

#define MS 1000000ull
#define SLOT 1u
#define OTHER 2u
#define OUR_NXT 5000u
#define THEIR_NXT 9000u

#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10

static struct xdp_owner owner;
static uint64_t now_ns;

static struct {
	unsigned count;
	struct vma_flow_key key;
	struct owner_tcp_segment segment;
} answers;

/* ---- in place of owner/owner.c, kernel_sock.c, owner/probe.c and nic.c ---- */

uint64_t owner_now_ns(void)
{
	return now_ns;
}

int kernel_sock_visit_sockets_of_port(int *persistent, uint8_t proto, uint16_t port, bool listeners,
                                      void (*see)(const struct kernel_sock *, void *), void *arg)
{
	(void)persistent, (void)proto, (void)port, (void)listeners, (void)see, (void)arg;
	return 0;
}

int kernel_sock_visit_sockets_in_port_ranges(int *persistent, uint8_t proto, const struct port_ranges *ranges,
                                             bool listeners, void (*see)(const struct kernel_sock *, void *), void *arg)
{
	(void)persistent, (void)proto, (void)ranges, (void)listeners, (void)see, (void)arg;
	return 0;
}

void port_ranges_covering_bitmap(const uint8_t ports[65536 / 8], struct port_ranges *out)
{
	(void)ports, (void)out;
}

int kernel_sock_visit_sockets_bound_to_port(int *persistent, uint8_t family, uint8_t proto, uint16_t port,
                                            void (*see)(const struct kernel_sock *, void *), void *arg)
{
	(void)persistent, (void)family, (void)proto, (void)port, (void)see, (void)arg;
	return 0;
}

int kernel_sock_visit_sockets_of_connection(int *persistent, const struct vma_flow_key *key, unsigned ifindex,
                                            void (*see)(const struct kernel_sock *, void *), void *arg)
{
	(void)persistent, (void)key, (void)ifindex, (void)see, (void)arg;
	return 0;
}

bool kernel_sock_conflicts(const struct vma_flow_rule *rule, const struct kernel_sock *socket, unsigned ifindex)
{
	(void)rule, (void)socket, (void)ifindex;
	return false;
}

int owner_open_raw_ip_socket(void)
{
	return dup(1);
}

int owner_probe_send(int fd, unsigned ifindex, const struct vma_flow_key *key, bool syn, uint32_t seq)
{
	(void)fd, (void)ifindex, (void)key, (void)syn, (void)seq;
	return 0;
}

int owner_send_raw_segment(int fd, unsigned ifindex, const struct vma_flow_key *key,
                           const struct owner_tcp_segment *segment)
{
	(void)ifindex;
	assert_true(fd >= 0);
	answers.count++;
	answers.key = *key;
	answers.segment = *segment;
	return 0;
}

int vma_flow_key_check(const struct vma_flow_key *key)
{
	return key->family == AF_INET ? 0 : -EINVAL;
}

/* ---- a fixture ---- */

static struct vma_flow_key minisocks_flow_key_of_peer_port(uint16_t peer_port)
{
	struct vma_flow_key key = {.family = AF_INET,
	                           .proto = IPPROTO_TCP,
	                           .local = {10, 0, 0, 1},
	                           .local_port_be = htons(80),
	                           .peer_port_be = htons(peer_port)};

	if (peer_port != 0)
		memcpy(key.peer, "\x0a\0\0\2", 4);
	return key;
}

static void minisocks_add_flow(uint32_t slot, uint16_t peer_port)
{
	const struct vma_flow_rule rule = {.key = minisocks_flow_key_of_peer_port(peer_port),
	                                   .flags = peer_port == 0 ? VMA_FLOW_LISTENER : 0};

	assert_int_equal(xdp_owner_flow_add(&owner, slot, &rule), 0);
}

static int export_minisock_of_slot(uint32_t slot, uint16_t peer_port, uint32_t state)
{
	const struct vma_flow_minisock minisock = {.key = minisocks_flow_key_of_peer_port(peer_port),
	                                           .state = state,
	                                           .snd_nxt = OUR_NXT,
	                                           .rcv_nxt = THEIR_NXT};

	return xdp_owner_take_over_conn_as_minisock(&owner, slot, &minisock);
}

static bool minisock_exists_for_peer(uint16_t peer_port)
{
	const struct vma_flow_key key = minisocks_flow_key_of_peer_port(peer_port);
	const int at = fake_prog_find_entry(&key);

	return at >= 0 && prog.entry[at].is_minisock;
}

static uint32_t minisocks_index_in_prog_entry(uint16_t peer_port)
{
	const struct vma_flow_key key = minisocks_flow_key_of_peer_port(peer_port);

	assert_true(minisock_exists_for_peer(peer_port));
	return prog.entry[fake_prog_find_entry(&key)].slot;
}

static struct xdp_minisock_segment segment(uint16_t peer_port, uint32_t number, uint8_t flags, uint32_t seq,
                                           uint16_t bytes)
{
	const struct vma_flow_key key = minisocks_flow_key_of_peer_port(peer_port);
	struct xdp_minisock_segment out = {
	        .number = number,
	        .seq = seq,
	        .ack = OUR_NXT,
	        .payload_bytes = bytes,
	        .tcp_flags = flags,
	        .key = {.peer_port = key.peer_port_be, .local_port = key.local_port_be, .proto = IPPROTO_TCP}};

	memcpy(&out.key.local, key.local, 4);
	memcpy(&out.key.peer, key.peer, 4);
	return out;
}

static void minisocks_advance_clock_and_tick_owner(uint64_t ns)
{
	now_ns += ns;
	owner_resets_send_due(&owner, now_ns);
	owner_minisocks_read_segments_and_expire(&owner, now_ns);
	owner_detach_xdp_program_if_unused(&owner, now_ns);
}

/* What of it is answered: RST, ACK, or 0. */
static uint8_t minisocks_answer_kind_of_segment(const struct xdp_minisock_segment *what)
{
	const unsigned before = answers.count;

	prog.first = 0;
	prog.last = 1;
	prog.waiting[0] = *what;
	minisocks_advance_clock_and_tick_owner(0);
	if (answers.count == before)
		return 0;
	assert_int_equal(answers.count, before + 1);
	return answers.segment.rst ? RST : ACK;
}

static uint8_t minisocks_answer_kind_to_segment_of_peer(uint16_t peer_port, uint8_t flags, uint32_t seq, uint16_t bytes)
{
	const struct xdp_minisock_segment what =
	        segment(peer_port, minisocks_index_in_prog_entry(peer_port), flags, seq, bytes);

	return minisocks_answer_kind_of_segment(&what);
}

static int setup(void **state)
{
	(void)state;
	memset(&owner, 0, sizeof(owner));
	memset(&prog, 0, sizeof(prog));
	memset(&answers, 0, sizeof(answers));
	now_ns = 1000 * MS;
	owner.slot[SLOT].state = owner.slot[OTHER].state = SLOT_RENTED;
	owner.process[OTHER] = 1; /* another process */
	assert_int_equal(owner_minisocks_open(&owner), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	owner_slot_release_flows_and_claims(&owner, SLOT, true);
	owner_slot_release_flows_and_claims(&owner, OTHER, true);
	owner_resets_fini(&owner);
	owner_minisocks_fini(&owner.minisocks);
	assert_int_equal(owner.minisocks.count, 0);
	return 0;
}

/* ---- who has one ---- */

static void test_a_deleted_connection_has_a_minisock_until_an_unanswered_syn_ack_has_come_again(void **state)
{
	const struct vma_flow_key key = minisocks_flow_key_of_peer_port(1000);

	(void)state;
	minisocks_add_flow(SLOT, 1000);
	assert_int_equal(xdp_owner_flow_del(&owner, SLOT, &key), 0);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK, THEIR_NXT, 100), RST);
	assert_int_equal(answers.segment.seq, OUR_NXT);
	minisocks_advance_clock_and_tick_owner(1100 *
	                                       MS); /* a retransmission timer of a second, and what it may be late */
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, SYN | ACK, THEIR_NXT - 1, 0), RST);
	minisocks_advance_clock_and_tick_owner(399 * MS);
	assert_true(minisock_exists_for_peer(1000));
	assert_true(owner_minisocks_due_ns(&owner.minisocks) == now_ns + 1 * MS);
	minisocks_advance_clock_and_tick_owner(1 * MS);
	assert_int_equal(fake_prog_used_entries(), 0);
	assert_true(owner_minisocks_due_ns(&owner.minisocks) == UINT64_MAX);
}

static void test_an_owner_that_ends_with_its_clients_has_no_minisocks(void **state)
{
	const struct vma_flow_key key = minisocks_flow_key_of_peer_port(1000);

	(void)state;
	owner.minisocks.on = false;
	minisocks_add_flow(SLOT, 1000);
	minisocks_add_flow(SLOT, 1001);
	assert_int_equal(xdp_owner_flow_del(&owner, SLOT, &key), 0);
	assert_int_equal(export_minisock_of_slot(SLOT, 1001, VMA_MINISOCK_FIN_WAIT), -EOPNOTSUPP);
	owner_slot_release_flows_and_claims(&owner, SLOT, true);
	assert_int_equal(fake_prog_used_entries(), 0);
	owner.minisocks.on = true;
}

static void test_a_datagram_flow_has_no_minisock(void **state)
{
	struct vma_flow_rule rule = {.key = minisocks_flow_key_of_peer_port(1000)};

	(void)state;
	rule.key.proto = IPPROTO_UDP;
	assert_int_equal(xdp_owner_flow_add(&owner, SLOT, &rule), 0);
	owner_slot_release_flows_and_claims(&owner, SLOT, true);
	assert_int_equal(fake_prog_used_entries(), 0);
}

static void test_the_dead_have_minisocks_for_three_seconds(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 1000);
	owner_slot_release_flows_and_claims(&owner, SLOT, true);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK, THEIR_NXT, 0), RST);
	minisocks_advance_clock_and_tick_owner(2999 * MS);
	assert_true(minisock_exists_for_peer(1000));
	minisocks_advance_clock_and_tick_owner(1 * MS);
	assert_false(minisock_exists_for_peer(1000));
}

static void test_who_only_left_is_not_answered_for_until_it_is_dead(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 1000);
	minisocks_add_flow(OTHER, 1001);
	owner_slot_release_flows_and_claims(&owner, SLOT, false);
	owner_slot_release_flows_and_claims(&owner, OTHER, false);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK, THEIR_NXT, 100), 0);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, RST, THEIR_NXT, 0), 0);
	assert_true(minisock_exists_for_peer(1000)); /* and the kernel hears nothing */
	owner_resets_send_now_for_dead_slot(&owner, SLOT);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK, THEIR_NXT, 100), RST);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1001, ACK, THEIR_NXT, 100), 0);
	minisocks_advance_clock_and_tick_owner(2000 * MS);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1001, ACK, THEIR_NXT, 100),
	                 RST); /* it has not come back */
}

static void test_a_listener_that_left_refuses_from_the_moment_it_is_dead(void **state)
{
	struct xdp_minisock_segment syn;

	(void)state;
	minisocks_add_flow(SLOT, 0);
	owner_slot_release_flows_and_claims(&owner, SLOT, false);
	syn = segment(1234, minisocks_index_in_prog_entry(0), SYN, THEIR_NXT, 0);
	assert_int_equal(minisocks_answer_kind_of_segment(&syn), 0);
	owner_resets_send_now_for_dead_slot(&owner, SLOT);
	assert_int_equal(minisocks_answer_kind_of_segment(&syn), RST);
	assert_int_equal(owner.resets.count, 0);
}

static void test_who_left_and_comes_back_has_its_flow_again(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 1000);
	owner_slot_release_flows_and_claims(&owner, SLOT, false);
	assert_true(minisock_exists_for_peer(1000));
	minisocks_add_flow(OTHER, 1000);
	assert_false(minisock_exists_for_peer(1000));
	assert_int_equal(owner.minisocks.count, 0);
	minisocks_advance_clock_and_tick_owner(10000 * MS);
	assert_int_equal(fake_prog_used_entries(), 1);
}

static void test_a_connection_without_rule_can_be_left_by_who_has_its_listener_only(void **state)
{
	(void)state;
	assert_int_equal(export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_FIN_WAIT), -ENOENT);
	minisocks_add_flow(SLOT, 0);
	assert_int_equal(export_minisock_of_slot(OTHER, 1000, VMA_MINISOCK_FIN_WAIT), -ENOENT);
	assert_int_equal(fake_prog_used_entries(), 1);
	assert_int_equal(export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_FIN_WAIT), 0);
	assert_true(minisock_exists_for_peer(1000));
	assert_int_equal(export_minisock_of_slot(SLOT, 0, VMA_MINISOCK_FIN_WAIT), -EINVAL);
	assert_int_equal(export_minisock_of_slot(SLOT, 1001, 0), -EINVAL);
	assert_int_equal(export_minisock_of_slot(SLOT, 1001, 4), -EINVAL);
}

/* Its flow may have been asked for, and not been granted yet. */
static void test_so_can_one_whose_listener_is_in_grace(void **state)
{
	const struct vma_flow_rule rule = {.key = minisocks_flow_key_of_peer_port(0), .flags = VMA_FLOW_LISTENER};

	(void)state;
	minisocks_add_flow(SLOT, 0);
	assert_int_equal(xdp_owner_flow_add(&owner, OTHER, &rule), -EADDRINUSE);
	assert_int_equal(export_minisock_of_slot(OTHER, 1000, VMA_MINISOCK_FIN_WAIT), -ENOENT);
	assert_int_equal(export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_FIN_WAIT), 0);
	assert_true(minisock_exists_for_peer(1000));
	owner_slot_release_flows_and_claims(&owner, SLOT, true);
	assert_true(minisock_exists_for_peer(1000));
	assert_false(minisock_exists_for_peer(0));
}

static void test_so_can_one_whose_port_lies_in_a_block(void **state)
{
	struct vma_flow_rule block = {.key = minisocks_flow_key_of_peer_port(0)};

	(void)state;
	block.key.proto = VMA_FLOW_TCP_PORTS;
	block.key.local_port_be = 0; /* the first of those that 80 belongs to */
	assert_int_equal(xdp_owner_flow_add(&owner, SLOT, &block), 0);
	assert_int_equal(export_minisock_of_slot(OTHER, 1000, VMA_MINISOCK_FIN_WAIT), -ENOENT);
	assert_int_equal(export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_FIN_WAIT), 0);
	assert_true(minisock_exists_for_peer(1000));
	owner_slot_release_flows_and_claims(&owner, SLOT, true);
	assert_int_equal(fake_prog_used_entries(), 1); /* the block has none */
}

static void test_what_was_left_twice_has_one_minisock(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 0);
	assert_int_equal(export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_FIN_WAIT), 0);
	assert_int_equal(export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_RESET), 0);
	assert_int_equal(owner.minisocks.count, 1);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK | FIN, THEIR_NXT, 0), RST);
}

static void test_the_flow_of_another_cannot_be_left(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 0);
	minisocks_add_flow(OTHER, 1000);
	assert_int_equal(export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_RESET), -ENOENT);
	assert_false(minisock_exists_for_peer(1000));
}

static void test_what_was_cut_is_probed_and_what_has_ended_is_not(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 1000);
	minisocks_add_flow(SLOT, 1001);
	minisocks_add_flow(SLOT, 1002);
	export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_FIN_WAIT);
	export_minisock_of_slot(SLOT, 1001, VMA_MINISOCK_TIME_WAIT);
	assert_int_equal(owner.resets.count, 0);
	export_minisock_of_slot(SLOT, 1002, VMA_MINISOCK_RESET);
	assert_int_equal(owner.resets.count, 1);
	owner_slot_release_flows_and_claims(&owner, SLOT, true);
	assert_int_equal(owner.resets.count, 1); /* none of them is the dead one's any more */
}

/* ---- answers ---- */

static void test_a_late_end_is_acknowledged_and_so_is_its_repetition(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 1000);
	export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_FIN_WAIT);
	minisocks_advance_clock_and_tick_owner(59000 * MS);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK | FIN, THEIR_NXT, 0), ACK);
	assert_int_equal(answers.segment.seq, OUR_NXT);
	assert_int_equal(answers.segment.ack, THEIR_NXT + 1);
	assert_int_equal(answers.key.peer_port_be, htons(1000));
	minisocks_advance_clock_and_tick_owner(1900 * MS);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK | FIN, THEIR_NXT, 0), ACK);
	assert_int_equal(answers.segment.ack, THEIR_NXT + 1);
	minisocks_advance_clock_and_tick_owner(1999 * MS);
	assert_true(minisock_exists_for_peer(1000));
	minisocks_advance_clock_and_tick_owner(1 * MS);
	assert_false(minisock_exists_for_peer(1000));
}

static void test_without_an_end_the_wait_is_over_after_a_minute(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 1000);
	export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_FIN_WAIT);
	minisocks_advance_clock_and_tick_owner(59999 * MS);
	assert_true(minisock_exists_for_peer(1000));
	minisocks_advance_clock_and_tick_owner(1 * MS);
	assert_false(minisock_exists_for_peer(1000));
}

/* A stranger who knows the ports must not end the wait: the late FIN would be answered with RST. */
static void test_a_reset_with_another_number_ends_nothing(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 1000);
	export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_FIN_WAIT);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, RST, THEIR_NXT + 1, 0), 0);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, RST, THEIR_NXT - 1, 0), 0);
	minisocks_advance_clock_and_tick_owner(3000 * MS);
	assert_true(minisock_exists_for_peer(1000));
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, RST, THEIR_NXT, 0), 0);
	minisocks_advance_clock_and_tick_owner(1500 * MS);
	assert_false(minisock_exists_for_peer(1000));
}

static void test_data_that_nobody_will_read_is_reset(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 1000);
	export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_FIN_WAIT);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK, THEIR_NXT, 100), RST);
	assert_int_equal(answers.segment.seq, OUR_NXT);
	assert_false(answers.segment.has_ack);
	minisocks_advance_clock_and_tick_owner(2 * MS);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK | FIN, THEIR_NXT + 100, 0),
	                 RST); /* no peace after that */
	minisocks_advance_clock_and_tick_owner(3000 * MS);
	assert_false(minisock_exists_for_peer(1000));
}

static void test_data_that_had_been_read_is_acknowledged_again(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 1000);
	export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_FIN_WAIT);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK, THEIR_NXT - 100, 100), ACK);
	assert_int_equal(answers.segment.ack, THEIR_NXT);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK | FIN, THEIR_NXT - 100, 100),
	                 ACK); /* and its end came with it */
	assert_int_equal(answers.segment.ack, THEIR_NXT + 1);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK | FIN, THEIR_NXT - 100, 100), ACK);
	assert_int_equal(answers.segment.ack, THEIR_NXT + 1);
}

static void test_an_end_behind_a_gap_does_not_count(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 1000);
	export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_FIN_WAIT);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK | FIN, THEIR_NXT + 100, 0), ACK);
	assert_int_equal(answers.segment.ack, THEIR_NXT);
	minisocks_advance_clock_and_tick_owner(2500 * MS);
	assert_true(minisock_exists_for_peer(1000));
}

static void test_acknowledgements_are_not_acknowledged(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 1000);
	minisocks_add_flow(SLOT, 1001);
	export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_FIN_WAIT);
	export_minisock_of_slot(SLOT, 1001, VMA_MINISOCK_TIME_WAIT);
	for (uint16_t port = 1000; port <= 1001; port++) {
		assert_int_equal(minisocks_answer_kind_to_segment_of_peer(port, ACK, THEIR_NXT, 0), 0);
		assert_int_equal(minisocks_answer_kind_to_segment_of_peer(port, ACK, THEIR_NXT + 1000, 0), 0);
		assert_int_equal(minisocks_answer_kind_to_segment_of_peer(port, 0, THEIR_NXT, 10), 0);
		assert_int_equal(minisocks_answer_kind_to_segment_of_peer(port, ACK, THEIR_NXT - 1, 0),
		                 ACK); /* keep alive */
	}
}

static void test_the_time_stamp_is_what_the_peer_has_seen(void **state)
{
	struct xdp_minisock_segment fin;

	(void)state;
	minisocks_add_flow(SLOT, 1000);
	export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_FIN_WAIT);
	fin = segment(1000, minisocks_index_in_prog_entry(1000), ACK | FIN, THEIR_NXT, 0);
	fin.has_ts = 1;
	fin.ts_val = 77;
	fin.ts_ecr = 33;
	assert_int_equal(minisocks_answer_kind_of_segment(&fin), ACK);
	assert_true(answers.segment.has_ts);
	assert_int_equal(answers.segment.ts_val, 33);
	assert_int_equal(answers.segment.ts_ecr, 77);
}

static void test_what_carries_no_acknowledgement_is_reset_behind_its_end(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 1000);
	owner_slot_release_flows_and_claims(&owner, SLOT, true);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, FIN, 700, 10), RST);
	assert_true(answers.segment.has_ack);
	assert_int_equal(answers.segment.seq, 0);
	assert_int_equal(answers.segment.ack, 711);
}

static void test_a_reset_is_not_answered_and_ends_it_soon_after(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 1000);
	owner_slot_release_flows_and_claims(&owner, SLOT, true);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, RST, THEIR_NXT, 0), 0);
	minisocks_advance_clock_and_tick_owner(700 * MS);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, RST, THEIR_NXT, 0),
	                 0); /* for another segment of ours */
	assert_true(minisock_exists_for_peer(1000));
	minisocks_advance_clock_and_tick_owner(800 * MS);
	assert_int_equal(fake_prog_used_entries(), 0);
}

static void test_a_window_full_of_data_is_reset_once_per_millisecond(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 1000);
	owner_slot_release_flows_and_claims(&owner, SLOT, true);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK, THEIR_NXT, 1460), RST);
	for (uint32_t i = 1; i < 100; i++)
		assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK, THEIR_NXT + i * 1460, 1460), 0);
	minisocks_advance_clock_and_tick_owner(1 * MS);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK, THEIR_NXT + 146000, 1460), RST);
}

static void test_a_flood_is_not_answered_by_a_flood(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 1000);
	owner_slot_release_flows_and_claims(&owner, SLOT, true);
	for (prog.last = 0; prog.last < 2000; prog.last++)
		prog.waiting[prog.last] = segment(1000, minisocks_index_in_prog_entry(1000), ACK, THEIR_NXT, 0);
	for (int i = 0; i < 10; i++) /* of the same moment: no tick takes all */
		minisocks_advance_clock_and_tick_owner(0);
	assert_int_equal(prog.first, 2000);
	assert_int_equal(answers.count, 1000);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK, THEIR_NXT, 0), 0);
	minisocks_advance_clock_and_tick_owner(1 * MS);
	assert_int_equal(minisocks_answer_kind_to_segment_of_peer(1000, ACK, THEIR_NXT, 0), RST);
}

static void test_of_a_dead_listeners_connections_each_is_reset_by_its_own_name(void **state)
{
	struct xdp_minisock_segment late;

	(void)state;
	minisocks_add_flow(SLOT, 0);
	owner_slot_release_flows_and_claims(&owner, SLOT, true);
	late = segment(1234, minisocks_index_in_prog_entry(0), ACK, THEIR_NXT, 10);
	assert_int_equal(minisocks_answer_kind_of_segment(&late), RST);
	assert_int_equal(answers.key.peer_port_be, htons(1234));
	late = segment(1234, minisocks_index_in_prog_entry(0), RST, THEIR_NXT, 0);
	assert_int_equal(minisocks_answer_kind_of_segment(&late), 0);
	assert_true(minisock_exists_for_peer(0)); /* which has others */
	minisocks_add_flow(OTHER, 0);
	assert_false(minisock_exists_for_peer(0));
}

/* ---- making way ---- */

static void test_a_new_connection_ends_the_minisock_that_it_met_and_no_other(void **state)
{
	struct xdp_minisock_segment over;

	(void)state;
	minisocks_add_flow(SLOT, 1000);
	owner_slot_release_flows_and_claims(&owner, SLOT, true);
	over = segment(1000, minisocks_index_in_prog_entry(1000), 0, 0, 0);
	over.is_over = 1;
	minisocks_add_flow(OTHER, 1000); /* has come first, and ended: this is another minisock */
	owner_slot_release_flows_and_claims(&owner, OTHER, true);
	assert_int_equal(minisocks_answer_kind_of_segment(&over), 0);
	assert_true(minisock_exists_for_peer(1000));
	over.number = minisocks_index_in_prog_entry(1000);
	assert_int_equal(minisocks_answer_kind_of_segment(&over), 0);
	assert_int_equal(fake_prog_used_entries(), 0);
}

static void test_a_late_word_of_a_minisock_does_not_hurt_the_flow_in_its_place(void **state)
{
	struct xdp_minisock_segment late;

	(void)state;
	minisocks_add_flow(SLOT, 1000);
	owner_slot_release_flows_and_claims(&owner, SLOT, true);
	late = segment(1000, minisocks_index_in_prog_entry(1000), ACK, THEIR_NXT, 0);
	minisocks_add_flow(OTHER, 1000);
	assert_int_equal(minisocks_answer_kind_of_segment(&late), 0);
	late.is_over = 1;
	assert_int_equal(minisocks_answer_kind_of_segment(&late), 0);
	assert_int_equal(fake_prog_used_entries(), 1);
}

static void test_a_full_map_has_room_for_flows_as_long_as_there_are_minisocks(void **state)
{
	const struct vma_flow_rule rule = {.key = minisocks_flow_key_of_peer_port(1004)};

	(void)state;
	prog.most = 4;
	for (uint16_t port = 1000; port < 1003; port++)
		minisocks_add_flow(SLOT, port);
	export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_FIN_WAIT);
	export_minisock_of_slot(SLOT, 1001, VMA_MINISOCK_TIME_WAIT);
	minisocks_add_flow(SLOT, 1003);
	assert_int_equal(fake_prog_used_entries(), 4);
	minisocks_add_flow(SLOT, 1005);
	assert_false(minisock_exists_for_peer(1001)); /* which had less to expect */
	assert_true(minisock_exists_for_peer(1000));
	minisocks_add_flow(SLOT, 1006);
	assert_int_equal(owner.minisocks.count, 0);
	assert_int_equal(xdp_owner_flow_add(&owner, SLOT, &rule), -ENOSPC);
}

static void test_who_cannot_have_sent_it_is_not_answered(void **state)
{
	static const char *const nobody[] = {"0.0.0.1", "127.0.0.1", "224.0.0.1", "255.255.255.255", "10.0.0.1"};
	struct xdp_minisock_segment what;

	(void)state;
	minisocks_add_flow(SLOT, 0);
	owner_slot_release_flows_and_claims(&owner, SLOT, true);
	what = segment(1000, minisocks_index_in_prog_entry(0), ACK, THEIR_NXT, 0);
	for (size_t i = 0; i < sizeof(nobody) / sizeof(*nobody); i++) {
		assert_int_equal(inet_pton(AF_INET, nobody[i], &what.key.peer), 1);
		assert_int_equal(minisocks_answer_kind_of_segment(&what), 0);
	}
	inet_pton(AF_INET, "192.0.2.1", &what.key.peer);
	assert_int_equal(minisocks_answer_kind_of_segment(&what), RST);
}

/* What nobody knows of any more would lie there for ever, and take what comes. */
static void test_a_flow_that_cannot_take_a_minisocks_place_leaves_nothing_behind(void **state)
{
	const struct vma_flow_rule rule = {.key = minisocks_flow_key_of_peer_port(1000)};

	(void)state;
	minisocks_add_flow(SLOT, 1000);
	owner_slot_release_flows_and_claims(&owner, SLOT, true);
	prog.has_no_memory = true;
	assert_int_equal(xdp_owner_flow_add(&owner, SLOT, &rule), -ENOMEM);
	assert_int_equal(owner.minisocks.count, 0);
	assert_int_equal(fake_prog_used_entries(), 0);
	prog.has_no_memory = false;
	minisocks_add_flow(SLOT, 1000);
}

static void test_the_program_stays_attached_as_long_as_there_is_a_minisock(void **state)
{
	(void)state;
	minisocks_add_flow(SLOT, 1000);
	assert_true(prog.attached);
	export_minisock_of_slot(SLOT, 1000, VMA_MINISOCK_FIN_WAIT);
	minisocks_advance_clock_and_tick_owner(50000 * MS);
	assert_true(prog.attached);
	minisocks_advance_clock_and_tick_owner(10000 * MS);
	assert_false(prog.attached);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
static const struct CMUnitTest tests[] = {
        CASE(test_a_deleted_connection_has_a_minisock_until_an_unanswered_syn_ack_has_come_again),
        CASE(test_an_owner_that_ends_with_its_clients_has_no_minisocks),
        CASE(test_a_datagram_flow_has_no_minisock),
        CASE(test_the_dead_have_minisocks_for_three_seconds),
        CASE(test_who_only_left_is_not_answered_for_until_it_is_dead),
        CASE(test_a_listener_that_left_refuses_from_the_moment_it_is_dead),
        CASE(test_who_left_and_comes_back_has_its_flow_again),
        CASE(test_a_connection_without_rule_can_be_left_by_who_has_its_listener_only),
        CASE(test_so_can_one_whose_listener_is_in_grace),
        CASE(test_so_can_one_whose_port_lies_in_a_block),
        CASE(test_what_was_left_twice_has_one_minisock),
        CASE(test_the_flow_of_another_cannot_be_left),
        CASE(test_what_was_cut_is_probed_and_what_has_ended_is_not),
        CASE(test_a_late_end_is_acknowledged_and_so_is_its_repetition),
        CASE(test_without_an_end_the_wait_is_over_after_a_minute),
        CASE(test_a_reset_with_another_number_ends_nothing),
        CASE(test_data_that_nobody_will_read_is_reset),
        CASE(test_data_that_had_been_read_is_acknowledged_again),
        CASE(test_an_end_behind_a_gap_does_not_count),
        CASE(test_acknowledgements_are_not_acknowledged),
        CASE(test_the_time_stamp_is_what_the_peer_has_seen),
        CASE(test_what_carries_no_acknowledgement_is_reset_behind_its_end),
        CASE(test_a_reset_is_not_answered_and_ends_it_soon_after),
        CASE(test_a_window_full_of_data_is_reset_once_per_millisecond),
        CASE(test_a_flood_is_not_answered_by_a_flood),
        CASE(test_of_a_dead_listeners_connections_each_is_reset_by_its_own_name),
        CASE(test_a_new_connection_ends_the_minisock_that_it_met_and_no_other),
        CASE(test_a_late_word_of_a_minisock_does_not_hurt_the_flow_in_its_place),
        CASE(test_a_full_map_has_room_for_flows_as_long_as_there_are_minisocks),
        CASE(test_who_cannot_have_sent_it_is_not_answered),
        CASE(test_a_flow_that_cannot_take_a_minisocks_place_leaves_nothing_behind),
        CASE(test_the_program_stays_attached_as_long_as_there_is_a_minisock),
};
VMA_TEST_MAIN(tests)
