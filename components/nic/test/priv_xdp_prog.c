/*
 * priv_xdp_prog CASE INTERFACE PEER_NETNS PEER_INTERFACE - one case of what the XDP program redirects and what it
 * passes, run by tests/e2e/xdp_prog.sh in a namespace with a veth. Exit status 0: passed.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/if_ether.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>

#include "../owner/owner.h"
#include "../xdp/claims.h"
#include "../xdp/flow.h"
#include "../xdp/shared.h"
#include "priv_fixture.h"

#define HOST_A 0x0a090001u /* the other end: 10.9.0.1 */
#define HOST_B 0x0a090002u /* this end: 10.9.0.2 */
#define GROUP 0xefff0001u  /* 239.255.0.1 */

static const char *name, *peer_netns, *peer_name;
static struct fixture fixture;

static const struct fixture_packet udp = {.source = HOST_A,
                                          .dest = HOST_B,
                                          .source_port = 4000,
                                          .dest_port = 5000,
                                          .proto = IPPROTO_UDP,
                                          .payload_bytes = 32};
static const struct fixture_packet tcp = {.source = HOST_A,
                                          .dest = HOST_B,
                                          .source_port = 4001,
                                          .dest_port = 5001,
                                          .proto = IPPROTO_TCP,
                                          .tcp_flags = FIXTURE_SYN};

static void xdp_prog_open_one_queue_fixture(void)
{
	fixture_open(&fixture, name, peer_netns, peer_name, 1, 0);
}

static void xdp_prog_set_flow_or_fail(struct vma_flow_key key, uint32_t slot, uint32_t flags)
{
	int rc = xdp_prog_flow_add(fixture.prog, &key, slot, flags);

	fixture_must(rc == 0, "flow_set: %d", rc);
}

static void assert_packet_goes_to(const struct fixture_packet *packet, int where, const char *what)
{
	int got = fixture_send(&fixture, packet);

	fixture_must(got == where, "%s: came out at %d, wanted %d (-1: the kernel)", what, got, where);
}

static void veth_gets_native_xdp_mode(void)
{
	xdp_prog_open_one_queue_fixture();
	fixture_must(!fixture.generic, "veth has native XDP");
}

static void packets_without_flow_pass_to_kernel_case(void)
{
	struct fixture_packet other_port = udp, other_host = udp, other_proto = tcp;

	xdp_prog_open_one_queue_fixture();
	assert_packet_goes_to(&udp, FIXTURE_PASSED, "no flow at all");
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&udp), 0, 0);
	other_port.dest_port = 5009;
	other_host.dest = HOST_B + 1;
	other_proto.dest_port = udp.dest_port;
	assert_packet_goes_to(&other_port, FIXTURE_PASSED, "another port");
	assert_packet_goes_to(&other_host, FIXTURE_PASSED, "another address");
	assert_packet_goes_to(&other_proto, FIXTURE_PASSED, "another protocol");
	assert_packet_goes_to(&udp, 0, "the flow's own packet");
}

static void exact_flow_wins_over_wildcard(void)
{
	struct fixture_packet other_peer = udp;

	xdp_prog_open_one_queue_fixture();
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&udp), 0, 0);
	xdp_prog_set_flow_or_fail(fixture_key_with_peer(&udp), 1, 0);
	assert_packet_goes_to(&udp, 1, "5-tuple and 3-tuple match");
	other_peer.source_port++;
	assert_packet_goes_to(&other_peer, 0, "only the 3-tuple matches");
}

static void flow_set_and_del(void)
{
	struct vma_flow_key exact = fixture_key_with_peer(&udp), wildcard = fixture_key_of_any_peer(&udp);

	xdp_prog_open_one_queue_fixture();
	fixture_must(xdp_prog_flow_del(fixture.prog, &exact) == -ENOENT, "del of what is not there");
	xdp_prog_set_flow_or_fail(exact, 1, 0);
	fixture_must(xdp_prog_flow_add(fixture.prog, &exact, 2, 0) == -EEXIST, "set twice");
	assert_packet_goes_to(&udp, 1, "the first flow stays");
	xdp_prog_set_flow_or_fail(wildcard, 0, 0);
	fixture_must(xdp_prog_flow_del(fixture.prog, &exact) == 0, "del");
	assert_packet_goes_to(&udp, 0, "what is left");
	fixture_must(xdp_prog_flow_del(fixture.prog, &wildcard) == 0, "del");
	assert_packet_goes_to(&udp, FIXTURE_PASSED, "no flow is left");
	fixture_must(xdp_prog_flow_add(fixture.prog, &exact, XDP_SLOTS_MAX, 0) == -EINVAL, "slot out of range");
}

/* What clients claim by themselves, in memory that they share with the program. */
static void claims_are_followed(void)
{
	static struct xdp_shared shared;
	struct vma_flow_key exact = fixture_key_with_peer(&udp), wildcard = fixture_key_of_any_peer(&udp);
	struct fixture_packet other_port = udp, other_peer = udp, tagged = udp, other_proto = tcp;
	struct xdp_claim_bucket *claims;
	struct xdp_claim *claim;
	int fd;

	other_port.dest_port += XDP_CLAIM_BUCKETS; /* in the same bucket */
	other_peer.source_port++;
	tagged.vlan = 5;
	other_proto.dest_port = udp.dest_port;
	xdp_prog_open_one_queue_fixture();
	claims = xdp_prog_claims(fixture.prog, &fd);
	fixture_must(claims != NULL && fd >= 0, "the program has a place for claims");
	xdp_prog_enable_claims_if_mapped(fixture.prog);
	xdp_claims_allow(&shared);
	claim = xdp_claims_add_flow(claims, &shared, 1, &wildcard);
	fixture_must(claim != NULL, "claim");
	assert_packet_goes_to(&udp, 1, "the claim's own packet");
	assert_packet_goes_to(&other_peer, 1, "of any peer");
	assert_packet_goes_to(&other_port, FIXTURE_PASSED, "another port of its bucket");
	assert_packet_goes_to(&tagged, FIXTURE_PASSED, "its port, tagged");
	assert_packet_goes_to(&other_proto, FIXTURE_PASSED, "its port, of TCP");
	xdp_claims_remove_flow(claim);
	assert_packet_goes_to(&udp, FIXTURE_PASSED, "it is given up");
	claim = xdp_claims_add_flow(claims, &shared, 2, &exact);
	assert_packet_goes_to(&udp, 2, "a claim of one peer");
	assert_packet_goes_to(&other_peer, FIXTURE_PASSED, "which another has nothing to do with");
	xdp_prog_set_flow_or_fail(exact, 0, 0);
	assert_packet_goes_to(&udp, 0, "a 5-tuple's rule wins");
	fixture_must(xdp_prog_flow_del(fixture.prog, &exact) == 0, "del");
	xdp_prog_set_flow_or_fail(wildcard, 0, 0);
	assert_packet_goes_to(&other_peer, 0, "a 3-tuple's rule has the others");
	xdp_claims_free_of_slot(claims, 2);
	fixture_must(claim->name == 0, "swept");
}

/* The first UDP 3-tuple is compared before the map is asked; whoever has that place, each flow keeps its packets. */
static void front_flow_comes_and_goes(void)
{
	struct fixture_packet second = udp, tagged = udp;
	struct vma_flow_key first_key = fixture_key_of_any_peer(&udp), exact = fixture_key_with_peer(&udp), second_key;

	second.dest_port++;
	second_key = fixture_key_of_any_peer(&second);
	tagged.vlan = 5;
	xdp_prog_open_one_queue_fixture();
	for (int i = 0; i < 3; i++) {
		xdp_prog_set_flow_or_fail(first_key, 0, 0);
		xdp_prog_set_flow_or_fail(second_key, 1, 0);
		assert_packet_goes_to(&udp, 0, "the front flow");
		assert_packet_goes_to(&second, 1, "the one behind it");
		assert_packet_goes_to(&tagged, FIXTURE_PASSED, "the front flow's address and port, tagged");
		fixture_must(xdp_prog_flow_del(fixture.prog, &first_key) == 0, "del");
		assert_packet_goes_to(&udp, FIXTURE_PASSED, "the front flow has ended");
		assert_packet_goes_to(&second, 1, "the other goes on");
		xdp_prog_set_flow_or_fail(first_key, 2, 0);
		assert_packet_goes_to(&udp, 2, "it comes back for another slot");
		xdp_prog_set_flow_or_fail(exact, 1, 0);
		assert_packet_goes_to(&udp, 1, "a 5-tuple wins over the front flow");
		fixture_must(xdp_prog_flow_del(fixture.prog, &exact) == 0, "del");
		fixture_must(xdp_prog_flow_del(fixture.prog, &first_key) == 0, "del");
		fixture_must(xdp_prog_flow_del(fixture.prog, &second_key) == 0, "del");
		assert_packet_goes_to(&udp, FIXTURE_PASSED, "nothing is left");
		assert_packet_goes_to(&second, FIXTURE_PASSED, "nothing is left");
	}
}

static struct vma_flow_key moved_key;

static void move_flow_to_other_slot(unsigned round)
{
	fixture_must(xdp_prog_flow_move(fixture.prog, &moved_key, (round + 1) % 2) == 0, "round %u", round);
}

/* Also the one at the front. */
static void moved_flow_misses_nothing(void)
{
	unsigned passed, sent;

	xdp_prog_open_one_queue_fixture();
	moved_key = fixture_key_of_any_peer(&udp);
	fixture_must(xdp_prog_flow_move(fixture.prog, &moved_key, 1) == -ENOENT, "of what is not there");
	xdp_prog_set_flow_or_fail(moved_key, 0, 0);
	for (unsigned round = 0; round < 4; round++) {
		move_flow_to_other_slot(round);
		assert_packet_goes_to(&udp, (round + 1) % 2, "where it has moved to");
	}
	passed = fixture_flood_and_count_kernel_packets(&fixture, &udp, move_flow_to_other_slot, 200000, &sent);
	fixture_must(passed == 0, "%u of %u packets were the kernel's", passed, sent);
	fixture_must(sent > 100, "only %u were sent", sent);
	fixture_must(xdp_prog_flow_del(fixture.prog, &moved_key) == 0, "del");
}

static void full_flow_map_case(void)
{
	struct fixture_packet packet = udp;
	uint32_t i;
	int rc = 0;

	xdp_prog_open_one_queue_fixture();
	for (i = 0; i < 100000 && rc == 0; i++) {
		const struct vma_flow_key key = fixture_key_with_peer(&packet);

		rc = xdp_prog_flow_add(fixture.prog, &key, 0, 0);
		if (++packet.source_port == 0)
			packet.source_port = 1, packet.source++;
	}
	fixture_must(rc == -ENOSPC, "after %u flows: %d", i, rc);
	fixture_must(i > 65536, "only %u flows fit", i);
	assert_packet_goes_to(&udp, 0, "the first flow of a full table");
}

static void multicast_group_must_match_flow(void)
{
	struct fixture_packet group = udp, other_group = udp;

	xdp_prog_open_one_queue_fixture();
	group.dest = GROUP;
	other_group.dest = GROUP + 1;
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&group), 2, 0);
	assert_packet_goes_to(&group, 2, "the group");
	assert_packet_goes_to(&other_group, FIXTURE_PASSED, "another group");
	assert_packet_goes_to(&udp, FIXTURE_PASSED, "unicast");
}

static void listener_takes_what_is_left(void)
{
	struct fixture_packet packet = tcp, elsewhere = tcp;

	xdp_prog_open_one_queue_fixture();
	elsewhere.dest_port++;
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&tcp), 0, VMA_FLOW_LISTENER);
	assert_packet_goes_to(&packet, 0, "SYN");
	packet.tcp_flags = FIXTURE_SYN | FIXTURE_ACK;
	assert_packet_goes_to(&packet, 0, "SYN with ACK");
	packet.tcp_flags = FIXTURE_ACK;
	assert_packet_goes_to(&packet, 0, "ACK");
	packet.tcp_flags = FIXTURE_RST;
	assert_packet_goes_to(&packet, 0, "RST");
	assert_packet_goes_to(&elsewhere, FIXTURE_PASSED, "another port");
	xdp_prog_set_flow_or_fail(fixture_key_with_peer(&tcp), 1, 0);
	packet.tcp_flags = FIXTURE_ACK;
	assert_packet_goes_to(&packet, 1, "ACK of an established flow");
}

/* Which slot gets a new connection, and whether each keeps what it has got while the shares change. */
static void group_shares_and_remembers(void)
{
	struct fixture_packet syn = tcp, ack = tcp, other = tcp;
	const struct vma_flow_key listener = fixture_key_of_any_peer(&tcp);
	struct vma_flow_key moved;
	struct xdp_group *group;
	int first[32], got[2] = {0};

	xdp_prog_open_one_queue_fixture();
	group = &xdp_prog_groups(fixture.prog)[1];
	for (uint32_t slot = 0; slot < 3; slot++)
		xdp_prog_count_slot_rental(fixture.prog, slot);
	*group = (struct xdp_group){.eligible = 3, .default_slot = XDP_NO_SLOT};
	for (uint32_t i = 0; i < XDP_GROUP_BUCKETS; i++)
		group->slot[i] = i % 2;
	xdp_prog_set_flow_or_fail(listener, 0, VMA_FLOW_LISTENER);
	fixture_must(xdp_prog_flow_set_listener_group(fixture.prog, &listener, 0, 1) == 0, "share");
	for (int i = 0; i < 32; i++) {
		syn.source_port = (uint16_t)(5000 + i);
		first[i] = fixture_send(&fixture, &syn);
		fixture_must(first[i] == 0 || first[i] == 1, "a member gets it");
		got[first[i]]++;
	}
	fixture_must(got[0] >= 6 && got[1] >= 6, "both get some: %d and %d", got[0], got[1]);

	memset(group->slot, 2, sizeof(group->slot));
	group->eligible = 4 | 1;
	for (int i = 0; i < 32; i++) {
		ack.source_port = syn.source_port = (uint16_t)(5000 + i);
		ack.tcp_flags = FIXTURE_ACK;
		assert_packet_goes_to(&ack, first[i], "what has begun stays where it is");
		assert_packet_goes_to(&syn, first[i] == 0 ? 0 : 2, "a SYN again does if the slot still takes any");
		assert_packet_goes_to(&ack, first[i] == 0 ? 0 : 2, "and takes the rest along");
	}
	other.source_port = 6000;
	other.tcp_flags = FIXTURE_ACK;
	assert_packet_goes_to(&other, 2, "what was not noted goes by its bucket");
	group->default_slot = 1;
	assert_packet_goes_to(&other, 1, "or to who had all before");
	moved = fixture_key_with_peer(&ack);
	xdp_prog_add_recent_connection(fixture.prog, &moved, 1);
	assert_packet_goes_to(&ack, 1, "one that was moved");
	xdp_prog_count_slot_rental(fixture.prog, 1);
	group->default_slot = XDP_NO_SLOT;
	assert_packet_goes_to(&ack, 2, "what a slot's client before had is void");
	xdp_prog_add_recent_connection(fixture.prog, &moved, 1);
	xdp_prog_clear_socket(fixture.prog, 1, 0);
	assert_packet_goes_to(&ack, 2, "a slot without socket");
	memset(group->slot, 1, sizeof(group->slot));
	assert_packet_goes_to(&ack, FIXTURE_NOWHERE,
	                      "the kernel would reset what is on its way to a slot that has just ended");
	syn.source_port = 5999;
	assert_packet_goes_to(&syn, FIXTURE_PASSED, "a SYN is the kernel's listener's then");
	memset(group->slot, 2, sizeof(group->slot));
	fixture_must(xdp_prog_flow_begin_grace(fixture.prog, &listener, 0, 1) == 0, "grace");
	syn.source_port = 5000;
	assert_packet_goes_to(&syn, FIXTURE_PASSED, "a SYN, in grace");
	fixture_must(xdp_prog_flow_set_listener_group(fixture.prog, &listener, 0, 0) == 0, "alone again");
	assert_packet_goes_to(&other, 0, "the flow is one slot's again");
}

static void listener_in_grace(void)
{
	struct fixture_packet packet = tcp;
	const struct vma_flow_key key = fixture_key_of_any_peer(&tcp);

	xdp_prog_open_one_queue_fixture();
	xdp_prog_set_flow_or_fail(key, 0, VMA_FLOW_LISTENER);
	fixture_must(xdp_prog_flow_begin_grace(fixture.prog, &key, 0, 0) == 0, "grace");
	assert_packet_goes_to(&packet, FIXTURE_PASSED, "SYN");
	packet.tcp_flags = FIXTURE_SYN | FIXTURE_ACK;
	assert_packet_goes_to(&packet, 0, "SYN with ACK");
	packet.tcp_flags = FIXTURE_ACK;
	assert_packet_goes_to(&packet, 0, "ACK");
	packet.tcp_flags = FIXTURE_RST;
	assert_packet_goes_to(&packet, 0, "RST");
	fixture_must(xdp_prog_flow_del(fixture.prog, &key) == 0, "del");
	assert_packet_goes_to(&packet, FIXTURE_PASSED, "afterwards");
}

/* What an owner does with its slots' flows, before the program of the fixture. */
static struct xdp_owner owner = {.diag_fd = -1};

static void begin_grace_and_grant_again(unsigned round)
{
	const struct vma_flow_rule rule = {.key = fixture_key_of_any_peer(&tcp), .flags = VMA_FLOW_LISTENER};

	fixture_must(xdp_owner_flow_add(&owner, 1, &rule) == -EADDRINUSE, "round %u: two want it", round);
	fixture_must(xdp_owner_flow_del(&owner, 1, &rule.key) == -ENOENT, "round %u: one goes", round);
	fixture_must(xdp_owner_flow_add(&owner, 0, &rule) == 0, "round %u: the other has it again", round);
}

static void listener_granted_again_misses_nothing(void)
{
	const struct vma_flow_rule rule = {.key = fixture_key_of_any_peer(&tcp), .flags = VMA_FLOW_LISTENER};
	struct fixture_packet packet = tcp;
	unsigned passed, sent;

	vma_log_set_level(VMA_LOG_ERROR); /* a warning each round */
	xdp_prog_open_one_queue_fixture();
	owner.prog = fixture.prog;
	owner.ifindex = fixture.ifindex;
	owner.slot[0].state = owner.slot[1].state = SLOT_RENTED;
	packet.tcp_flags = FIXTURE_ACK;
	fixture_must(xdp_owner_flow_add(&owner, 0, &rule) == 0, "flow");
	passed = fixture_flood_and_count_kernel_packets(&fixture, &packet, begin_grace_and_grant_again, 2000, &sent);
	fixture_must(passed == 0, "%u of %u segments were the kernel's", passed, sent);
	fixture_must(sent > 100, "only %u were sent", sent);
	owner_slot_release_flows_and_claims(&owner, 0, true);
	owner_resets_fini(&owner);
}

static struct sockaddr_in make_sockaddr_in_of_host(uint32_t host, uint16_t port)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(host), .sin_port = htons(port)};
}

static int open_kernel_tcp_listener(const struct sockaddr_in *here)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	const int on = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	fixture_must(bind(fd, (const struct sockaddr *)here, sizeof(*here)) == 0, "bind: %m");
	fixture_must(listen(fd, 8) == 0, "listen: %m");
	return fd;
}

/* A connection between the kernels of the two namespaces, to the listener at 5001 and from the port of `tcp`. */
static void kernel_connection_survives(void)
{
	const struct sockaddr_in here = make_sockaddr_in_of_host(HOST_B, tcp.dest_port),
	                         there = make_sockaddr_in_of_host(HOST_A, tcp.source_port);
	int listener = open_kernel_tcp_listener(&here), accepted;
	int client = fixture_open_socket_in_peer_netns(peer_netns, AF_INET, SOCK_STREAM, 0);
	const int on = 1;
	struct fixture_packet packet = tcp;
	char byte = 0;

	setsockopt(client, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	fixture_must(bind(client, (const struct sockaddr *)&there, sizeof(there)) == 0, "bind: %m");
	fixture_must(connect(client, (const struct sockaddr *)&here, sizeof(here)) == 0, "connect: %m");
	fixture_must((accepted = accept(listener, NULL, NULL)) >= 0, "accept: %m");

	xdp_prog_open_one_queue_fixture();
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&tcp), 0, VMA_FLOW_LISTENER);
	fixture_must(write(client, "x", 1) == 1, "write: %m");
	fixture_must(read(accepted, &byte, 1) == 1 && byte == 'x', "read: %m");
	assert_packet_goes_to(&packet, FIXTURE_PASSED, "SYN with the 5-tuple of a kernel connection");
	packet.tcp_flags = FIXTURE_ACK;
	assert_packet_goes_to(&packet, FIXTURE_PASSED, "ACK with the 5-tuple of a kernel connection");
	packet.source_port++;
	assert_packet_goes_to(&packet, 0, "ACK from another port, though the kernel has a listener");
	packet.tcp_flags = FIXTURE_SYN;
	assert_packet_goes_to(&packet, 0, "SYN from another port, though the kernel has a listener");
	fixture_must(write(accepted, "y", 1) == 1, "write: %m");
	fixture_must(read(client, &byte, 1) == 1 && byte == 'y', "read: %m");
}

static void xdp_prog_write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	fixture_must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), "%s: %m", path);
	close(fd);
}

/* A client's SYN goes to the kernel, as the flow is in grace; what brings the cookie back comes in that time, or as it
 * is a listener's again. Of the client's kernel: an ACK, or, as that is delayed, the first data. */
static void connect_by_syn_cookie_in_grace(int listener, const struct sockaddr_in *here, bool granted_again)
{
	const struct vma_flow_key key = fixture_key_of_any_peer(&tcp);
	int client = fixture_open_socket_in_peer_netns(peer_netns, AF_INET, SOCK_STREAM, 0), accepted;
	struct pollfd arrival = {.fd = listener, .events = POLLIN};
	const int quick = !granted_again;
	char byte = 0;

	setsockopt(client, IPPROTO_TCP, TCP_QUICKACK, &quick, sizeof(quick));
	fixture_must(connect(client, (const struct sockaddr *)here, sizeof(*here)) == 0, "connect: %m");
	if (granted_again) {
		fixture_must(poll(&arrival, 1, 0) == 0, "the ACK is delayed");
		fixture_must(xdp_prog_flow_replace(fixture.prog, &key, 0, VMA_FLOW_LISTENER) == 0, "inherit");
		fixture_must(write(client, "x", 1) == 1, "write: %m");
	}
	fixture_must(poll(&arrival, 1, 1000) == 1, "granted again: %d: the kernel has no connection", granted_again);
	fixture_must((accepted = accept(listener, NULL, NULL)) >= 0, "accept: %m");
	if (!granted_again)
		fixture_must(write(client, "x", 1) == 1, "write: %m");
	fixture_must(read(accepted, &byte, 1) == 1 && byte == 'x', "read: %m");
	close(client);
	close(accepted);
}

/* Of a request that it has answered by a cookie the kernel keeps nothing. */
static void a_syn_cookie_ack_is_given_back_to_the_kernel(void)
{
	const struct sockaddr_in here = make_sockaddr_in_of_host(HOST_B, tcp.dest_port);
	const struct vma_flow_key key = fixture_key_of_any_peer(&tcp);
	struct fixture_packet packet = tcp;
	int listener = open_kernel_tcp_listener(&here);

	xdp_prog_write_file("/proc/sys/net/ipv4/tcp_syncookies", "2");
	xdp_prog_open_one_queue_fixture();
	xdp_prog_set_flow_or_fail(key, 0, VMA_FLOW_LISTENER);
	fixture_must(xdp_prog_flow_begin_grace(fixture.prog, &key, 0, 0) == 0, "grace");
	connect_by_syn_cookie_in_grace(listener, &here, false);
	packet.tcp_flags = FIXTURE_ACK;
	assert_packet_goes_to(&packet, 0, "an ACK without a cookie");
	connect_by_syn_cookie_in_grace(listener, &here, true);
	assert_packet_goes_to(&packet, 0, "an ACK without a cookie");
	xdp_prog_write_file("/proc/sys/net/ipv4/tcp_syncookies", "1");
}

static bool xdp_prog_port_bit_is_set(const _Atomic uint64_t *named, uint16_t port)
{
	return atomic_load(&named[port / 64]) >> port % 64 & 1;
}

/* What no other flow takes, and the kernel has no socket for; and which ports have a rule is known. */
static void block_takes_what_the_kernel_does_not(void)
{
	static _Atomic uint64_t named[65536 / 64];
	const struct sockaddr_in here = make_sockaddr_in_of_host(HOST_B, tcp.dest_port);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct fixture_packet packet = tcp, outside = tcp, other_host = tcp, datagram = tcp;
	struct vma_flow_key block = fixture_key_of_any_peer(&tcp), exact = fixture_key_with_peer(&tcp),
	                    wildcard = block;

	xdp_prog_open_one_queue_fixture();
	xdp_prog_set_port_bitmap(fixture.prog, named);
	block.proto = VMA_FLOW_TCP_PORTS;
	block.local_port_be = htons((uint16_t)(tcp.dest_port / VMA_FLOW_PORTS * VMA_FLOW_PORTS));
	outside.dest_port = (uint16_t)(ntohs(block.local_port_be) + VMA_FLOW_PORTS);
	other_host.dest = HOST_A;
	datagram.proto = IPPROTO_UDP;
	xdp_prog_set_flow_or_fail(block, 0, 0);
	assert_packet_goes_to(&packet, 0, "SYN");
	packet.tcp_flags = FIXTURE_SYN | FIXTURE_ACK;
	assert_packet_goes_to(&packet, 0, "SYN with ACK");
	packet.dest_port = ntohs(block.local_port_be);
	assert_packet_goes_to(&packet, 0, "the first port");
	packet.dest_port = (uint16_t)(outside.dest_port - 1);
	assert_packet_goes_to(&packet, 0, "the last port");
	packet.dest_port = tcp.dest_port;
	assert_packet_goes_to(&outside, FIXTURE_PASSED, "the port behind");
	assert_packet_goes_to(&other_host, FIXTURE_PASSED, "another address");
	assert_packet_goes_to(&datagram, FIXTURE_PASSED, "UDP");
	fixture_must(!xdp_prog_port_bit_is_set(named, tcp.dest_port), "a block names no port");
	xdp_prog_set_flow_or_fail(exact, 1, 0);
	assert_packet_goes_to(&packet, 1, "a 5-tuple wins over the block");
	xdp_prog_set_flow_or_fail(wildcard, 2, 0);
	fixture_must(xdp_prog_port_bit_is_set(named, tcp.dest_port), "two rules name the port");
	fixture_must(xdp_prog_flow_del(fixture.prog, &exact) == 0, "del");
	assert_packet_goes_to(&packet, 2, "a 3-tuple wins over the block");
	fixture_must(xdp_prog_port_bit_is_set(named, tcp.dest_port), "one rule names the port");
	fixture_must(xdp_prog_flow_del(fixture.prog, &wildcard) == 0, "del");
	fixture_must(!xdp_prog_port_bit_is_set(named, tcp.dest_port), "no rule is left");
	assert_packet_goes_to(&packet, 0, "the block again");
	fixture_must(bind(listener, (const struct sockaddr *)&here, sizeof(here)) == 0, "bind: %m");
	assert_packet_goes_to(&packet, 0, "a socket that is no more than bound");
	fixture_must(listen(listener, 8) == 0, "listen: %m");
	assert_packet_goes_to(&packet, FIXTURE_PASSED, "the kernel's listener");
	close(listener);
	fixture_must(xdp_prog_flow_del(fixture.prog, &block) == 0, "del");
	assert_packet_goes_to(&packet, FIXTURE_PASSED, "no block");
}

enum { FIRST = 0x2000, MIDDLE = 0x2010, LAST = 0x0020 };

static void send_fragment_and_assert_receiver(uint16_t id, uint16_t frag, int where, const char *what)
{
	struct fixture_packet packet = udp;

	packet.id = id;
	packet.frag = frag;
	/* Where the ports of a whole datagram are, a later fragment has anything. */
	if (frag != FIRST)
		packet.source_port = packet.dest_port = 9;
	assert_packet_goes_to(&packet, where, what);
}

static void fragments_follow_first_fragments_flow(void)
{
	struct fixture_packet packet = udp;

	xdp_prog_open_one_queue_fixture();
	send_fragment_and_assert_receiver(1, FIRST, FIXTURE_PASSED, "no flow: the first fragment");
	send_fragment_and_assert_receiver(1, LAST, FIXTURE_PASSED, "no flow: the last fragment");
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&udp), 1, 0);
	send_fragment_and_assert_receiver(2, FIRST, 1, "the first fragment");
	send_fragment_and_assert_receiver(2, MIDDLE, 1, "a middle fragment");
	send_fragment_and_assert_receiver(2, LAST, 1, "the last fragment");
	send_fragment_and_assert_receiver(2, MIDDLE, 1, "one that comes after the last");
	send_fragment_and_assert_receiver(3, LAST, FIXTURE_PASSED, "the last fragment before the first");
	send_fragment_and_assert_receiver(3, FIRST, FIXTURE_PASSED, "then the first is the kernel's");
	send_fragment_and_assert_receiver(3, MIDDLE, FIXTURE_PASSED, "and so is what is left");
	xdp_prog_set_flow_or_fail(fixture_key_with_peer(&udp), 0, 0);
	send_fragment_and_assert_receiver(2, FIRST, 0, "the same id again, for a 5-tuple");
	send_fragment_and_assert_receiver(2, LAST, 0, "which gets the rest");
	packet = udp;
	packet.id = 2;
	packet.frag = FIRST;
	packet.dest_port ^= 1;
	assert_packet_goes_to(&packet, FIXTURE_PASSED, "the same id again, for a port of the kernel's");
	send_fragment_and_assert_receiver(2, LAST, FIXTURE_PASSED, "which gets the rest");
	packet = udp;
	packet.proto = IPPROTO_TCP;
	packet.frag = FIRST;
	xdp_prog_set_flow_or_fail(fixture_key_with_peer(&packet), 0, 0);
	assert_packet_goes_to(&packet, FIXTURE_PASSED, "a fragment of a segment");
	packet = udp;
	packet.frag = 0x4000;
	assert_packet_goes_to(&packet, 0, "do not fragment");
	packet.frag = FIRST;
	packet.id = 4;
	packet.mac = (const uint8_t[]){2, 0, 0, 0, 0, 0x77};
	assert_packet_goes_to(&packet, FIXTURE_PASSED, "a fragment to another MAC");
	usleep(1100000);
	send_fragment_and_assert_receiver(3, FIRST, 0, "an id that was the kernel's more than a second ago");
	send_fragment_and_assert_receiver(3, LAST, 0, "and the rest of it");
}

static void ip_options_case(void)
{
	struct fixture_packet packet = udp;

	xdp_prog_open_one_queue_fixture();
	xdp_prog_set_flow_or_fail(fixture_key_with_peer(&udp), 1, 0);
	for (packet.option_words = 0; packet.option_words <= 10; packet.option_words++)
		assert_packet_goes_to(&packet, 1, "options");
}

/* ---- what the kernel would not take for its own ---- */

static const uint8_t stranger[6] = {2, 0, 0, 0, 0, 0x77}, group_mac[6] = {1, 0, 0x5e, 5, 5, 5},
                     everybody[6] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

/* The kernel drops a datagram to a stranger's MAC; a segment that ours would have had it does not even get. */
static void frames_of_others(void)
{
	struct fixture_packet datagram = udp, segment = tcp, group = udp, tagged = udp;

	xdp_prog_open_one_queue_fixture();
	group.dest = GROUP;
	tagged.vlan = 7;
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&udp), 0, 0);
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&group), 0, 0);
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&tagged), 0, 0);
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&tcp), 1, VMA_FLOW_LISTENER);
	datagram.mac = segment.mac = group.mac = tagged.mac = stranger;
	assert_packet_goes_to(&datagram, FIXTURE_PASSED, "a datagram to a stranger's MAC");
	assert_packet_goes_to(&group, FIXTURE_PASSED, "one for a group, to a stranger's MAC");
	assert_packet_goes_to(&tagged, 0, "a tagged one, whose interface may have a MAC of its own");
	assert_packet_goes_to(&segment, FIXTURE_NOWHERE, "a SYN to a stranger's MAC");
	segment.tcp_flags = FIXTURE_ACK;
	xdp_prog_set_flow_or_fail(fixture_key_with_peer(&tcp), 2, 0);
	assert_packet_goes_to(&segment, FIXTURE_NOWHERE, "a connection's, to a stranger's MAC");
	segment.dest_port++;
	assert_packet_goes_to(&segment, FIXTURE_PASSED, "to a stranger's MAC, and no flow");
	segment = tcp;
	for (int i = 0; i < 2; i++) {
		datagram.mac = group.mac = segment.mac = i == 0 ? everybody : group_mac;
		assert_packet_goes_to(&datagram, 0, "a datagram in a frame to several");
		assert_packet_goes_to(&group, 0, "one for a group");
		assert_packet_goes_to(&segment, FIXTURE_PASSED, "a segment in a frame to several");
	}
	group.mac = NULL;
	assert_packet_goes_to(&group, 0, "for a group, to this interface's MAC");
}

static void a_new_mac_is_followed(void)
{
	struct fixture_packet before = udp, after = udp;
	uint8_t first[6];
	char command[128];

	xdp_prog_open_one_queue_fixture();
	memcpy(first, fixture.mac, sizeof(first));
	before.mac = first;
	after.mac = stranger;
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&udp), 0, 0);
	snprintf(command, sizeof(command), "ip link set %s address 02:00:00:00:00:77", name);
	fixture_must(system(command) == 0, "%s", command);
	xdp_prog_refresh_mac(fixture.prog);
	assert_packet_goes_to(&after, 0, "to the new MAC");
	assert_packet_goes_to(&before, FIXTURE_PASSED, "to that of before");
	snprintf(command, sizeof(command), "ip link set %s address %02x:%02x:%02x:%02x:%02x:%02x", name, first[0],
	         first[1], first[2], first[3], first[4], first[5]);
	fixture_must(system(command) == 0, "%s", command);
}

static void martian_sources(void)
{
	static const uint32_t martians[] = {0, 0x7f000001, 0x7fffffff, 0xe0000001, 0xefffffff, 0xffffffff, HOST_B},
	                      others[] = {0x00000001, 0x01000001, 0x7e000001, 0x80000001,
	                                  0xdfffffff, 0xf0000001, 0xfffffffe, 0x0a0900ff};
	struct fixture_packet datagram = udp, segment = tcp;

	xdp_prog_open_one_queue_fixture();
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&udp), 0, 0);
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&tcp), 1, VMA_FLOW_LISTENER);
	for (size_t i = 0; i < sizeof(martians) / sizeof(martians[0]); i++) {
		datagram.source = segment.source = martians[i];
		assert_packet_goes_to(&datagram, FIXTURE_PASSED, "a datagram of nobody's");
		assert_packet_goes_to(&segment, FIXTURE_PASSED, "a segment of nobody's");
	}
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		datagram.source = segment.source = others[i];
		assert_packet_goes_to(&datagram, 0, "a datagram of somebody's");
		assert_packet_goes_to(&segment, 1, "a segment of somebody's");
	}
}

static void source_routes(void)
{
	static const char *const harmless[] = {"\x94\x04\0\0", "\x44\x08\x09\0", "\x07\x07\x04\0", "\0\0\0\0",
	                                       "\0\x83\x04\0"},
	                         *const routes[] = {"\x83\x07\x04\0", "\x89\x07\x04\0", "\1\x83\x03\x04"},
	                         *const broken[] = {"\x94\0\0\0", "\x94\1\0\0", "\x94\x09\0\0", "\1\1\1\x94"};
	struct fixture_packet datagram = udp, segment = tcp;

	xdp_prog_open_one_queue_fixture();
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&udp), 0, 0);
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&tcp), 1, VMA_FLOW_LISTENER);
	datagram.option_words = segment.option_words = 2;
	for (size_t i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++) {
		datagram.options = segment.options = harmless[i];
		assert_packet_goes_to(&datagram, 0, "a harmless option");
		assert_packet_goes_to(&segment, 1, "a harmless option");
	}
	for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
		datagram.options = segment.options = routes[i];
		assert_packet_goes_to(&datagram, FIXTURE_PASSED, "a source route");
		assert_packet_goes_to(&segment, FIXTURE_NOWHERE, "a source route");
	}
	for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
		datagram.options = segment.options = broken[i];
		datagram.option_words = segment.option_words = i == 3 ? 1 : 2;
		assert_packet_goes_to(&datagram, FIXTURE_PASSED, "options that are none");
		assert_packet_goes_to(&segment, FIXTURE_PASSED, "options that are none");
	}
}

/* Headers end with the frame at every byte: no flow is matched by what lies behind it. */
static void truncated_headers_pass_to_kernel(void)
{
	struct fixture_packet packet = udp;

	xdp_prog_open_one_queue_fixture();
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&udp), 0, 0);
	for (packet.only_bytes = 15; packet.only_bytes < 14 + 20 + 4; packet.only_bytes++)
		assert_packet_goes_to(&packet, FIXTURE_PASSED, "cut before the end of the ports");
	assert_packet_goes_to(&packet, 0, "all that the program looks at");
	packet = tcp;
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&tcp), 1, VMA_FLOW_LISTENER);
	for (packet.only_bytes = 15; packet.only_bytes < 14 + 20 + 4; packet.only_bytes++)
		assert_packet_goes_to(&packet, FIXTURE_PASSED, "a listener's, cut before the end of the ports");
	packet.only_bytes = 0;
	assert_packet_goes_to(&packet, 1, "a whole one");
}

static void vlan_tags(void)
{
	struct fixture_packet tagged = udp, other = udp;

	xdp_prog_open_one_queue_fixture();
	tagged.vlan = 7;
	other.vlan = 8;
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&udp), 0, 0);
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&tagged), 1, 0);
	assert_packet_goes_to(&udp, 0, "untagged");
	assert_packet_goes_to(&tagged, 1, "the VLAN of the flow");
	assert_packet_goes_to(&other, FIXTURE_PASSED, "another VLAN");
}

static void non_ipv4_frames_case(void)
{
	struct fixture_packet packet = udp;

	xdp_prog_open_one_queue_fixture();
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&udp), 0, 0);
	packet.ether_type = ETH_P_IPV6;
	assert_packet_goes_to(&packet, FIXTURE_PASSED, "another EtherType");
	packet = udp;
	packet.proto = IPPROTO_SCTP;
	assert_packet_goes_to(&packet, FIXTURE_PASSED, "another L4 protocol");
}

static void dead_socket_passes(void)
{
	xdp_prog_open_one_queue_fixture();
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&udp), 1, 0);
	assert_packet_goes_to(&udp, 1, "living socket");
	xdp_prog_clear_socket(fixture.prog, 1, 0);
	assert_packet_goes_to(&udp, FIXTURE_PASSED, "socket out of the map");
	xdp_prog_set_flow_or_fail(fixture_key_with_peer(&udp), 2, 0);
	assert_packet_goes_to(&udp, 2, "another slot");
	xdp_ring_unmap(&fixture.slot[2].tx[0]);
	close(fixture.slot[2].fd[0]);
	xdp_ring_unmap(&fixture.slot[2].rx[0]);
	fixture.slot[2].rx[0] = fixture.slot[1].rx[0]; /* keep fixture_send busy with what exists */
	assert_packet_goes_to(&udp, FIXTURE_PASSED, "socket closed");
	_exit(0); /* slot 2 is closed already */
}

static void second_attach_is_refused_case(void)
{
	struct xdp_prog *second;
	bool generic = true;

	xdp_prog_open_one_queue_fixture();
	fixture_must(xdp_prog_attached(fixture.prog), "attached");
	fixture_must(xdp_prog_attach(fixture.prog, &generic) == 0 && !generic, "attach is idempotent");
	fixture_must(xdp_prog_load(fixture.ifindex, 1, &second) == 0, "a second program loads");
	fixture_must(xdp_prog_attach(second, &generic) == -EBUSY, "a second program attaches");
	xdp_prog_destroy(second);
	xdp_prog_detach(fixture.prog);
	fixture_must(!xdp_prog_attached(fixture.prog), "detached");
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&udp), 0, 0);
	assert_packet_goes_to(&udp, FIXTURE_PASSED, "without program");
	fixture_must(xdp_prog_attach(fixture.prog, &generic) == 0, "attach again");
	assert_packet_goes_to(&udp, 0, "with program again");
}

/* The owner dies by SIGKILL; the script looks at the interface afterwards. */
static void killed_owner(void)
{
	xdp_prog_open_one_queue_fixture();
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&udp), 0, 0);
	assert_packet_goes_to(&udp, 0, "attached");
	kill(getpid(), SIGKILL);
}

static void large_packets(void)
{
	static const uint32_t sizes[] = {32, 1400, 1700, 2000, 2400, 2900, 3900, 5000, 8900};
	struct fixture_packet packet = udp;
	uint32_t mtu = (uint32_t)atoi(getenv("FIXTURE_MTU"));

	fixture_open(&fixture, name, peer_netns, peer_name, 1, XDP_USE_SG);
	fixture_must(!fixture.generic, "native at MTU %u", mtu);
	xdp_prog_set_flow_or_fail(fixture_key_with_peer(&udp), 1, 0);
	for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		packet.payload_bytes = sizes[i];
		if (sizes[i] + 28 > mtu)
			continue;
		assert_packet_goes_to(&packet, 1, "large packet");
		printf("%u bytes in %u buffers\n", fixture.got_bytes, fixture.got_buffers);
		/* The kernel leaves XDP_PACKET_HEADROOM free in each packet's first frame. */
		fixture_must((fixture.got_buffers > 1) == (fixture.got_bytes > 2048 - 256), "%u buffers",
		             fixture.got_buffers);
	}
}

/* Packet memory beyond RLIMIT_MEMLOCK without CAP_IPC_LOCK: the error by which the owner knows to shrink it. */
static void memlock_limit(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct caps[2];
	const struct rlimit limit = {1 << 20, 1 << 20};
	const size_t bytes = 4 << 20;
	char *umem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int fd;

	fixture_must(setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "setrlimit: %m");
	fixture_must(syscall(SYS_capget, &header, caps) == 0, "capget: %m");
	caps[CAP_IPC_LOCK / 32].effective &= ~(1u << (CAP_IPC_LOCK % 32));
	fixture_must(syscall(SYS_capset, &header, caps) == 0, "capset: %m");
	fd = xdp_sock_open_with_umem(umem, bytes, if_nametoindex(name), 0, 0, NULL);
	fixture_must(fd == -ENOBUFS, "%d", fd);
	fd = xdp_sock_open_with_umem(umem, 512 << 10, if_nametoindex(name), 0, 0, NULL);
	fixture_must(fd >= 0, "half of the limit: %d", fd);
}

/* The next owner comes right after the last one's exit. */
static void rebind_at_once(void)
{
	for (int i = 0; i < 5; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			xdp_prog_open_one_queue_fixture();
			_exit(0);
		}
		int status = 0;

		fixture_must(waitpid(pid, &status, 0) == pid && status == 0, "round %d: status %x", i, status);
	}
}

static void overloaded_queue_case(void)
{
	struct timespec before, after;
	double seconds;
	char *umem;
	int fd;

	xdp_prog_open_one_queue_fixture();
	umem = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	clock_gettime(CLOCK_MONOTONIC, &before);
	fd = xdp_sock_open_with_umem(umem, 1 << 20, fixture.ifindex, 0, 0, NULL);
	clock_gettime(CLOCK_MONOTONIC, &after);
	seconds = (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) / 1e9;
	fixture_must(fd == -EBUSY, "%d", fd);
	fixture_must(seconds >= 2, "tried for %f s", seconds);
}

/* All fds and mappings of one queue pair's socket work for somebody who is not the owner: its rings, and a kick. */
static void send_and_complete(void)
{
	struct xdp_ring *tx, fill, comp;
	uint32_t producer;

	xdp_prog_open_one_queue_fixture();
	/* The shared rings through a queue pair's socket are those of the base socket. */
	fixture_must(xdp_sock_map_umem_rings(fixture.slot[1].fd[0], &fill, &comp) == 0,
	             "map through a queue pair's socket");
	fixture_must(*fill.producer == FIXTURE_FRAMES, "fill producer %u", *fill.producer);
	tx = &fixture.slot[1].tx[0];
	producer = *tx->producer;
	tx->descs[producer & tx->mask] = (struct xdp_desc){.addr = (FIXTURE_FRAMES - 1) << XDP_FRAME_SHIFT, .len = 60};
	atomic_store(tx->producer, producer + 1);
	fixture_must(sendto(fixture.slot[1].fd[0], NULL, 0, MSG_DONTWAIT, NULL, 0) == 0, "kick: %m");
	for (int i = 0; i < 1000 && *comp.producer == 0; i++)
		poll(NULL, 0, 1);
	fixture_must(*comp.producer == 1, "completions: %u", *comp.producer);
	fixture_must(comp.addrs[0] >> XDP_FRAME_SHIFT == FIXTURE_FRAMES - 1, "address %llx",
	             (unsigned long long)comp.addrs[0]);
}

/* A raw sender that bypasses the qdisc uses the device queue of its CPU, and veth keeps that number. */
static void pin_to_cpu(uint32_t cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	fixture_must(sched_setaffinity(0, sizeof(set), &set) == 0, "CPU %u: %m", cpu);
}

static void two_device_queues_case(void)
{
	fixture_open(&fixture, name, peer_netns, peer_name, 2, 0);
	xdp_prog_set_flow_or_fail(fixture_key_with_peer(&udp), 1, 0);
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&udp), 2, 0);
	for (uint32_t i = 0; i < 8; i++) {
		pin_to_cpu(i % 2);
		assert_packet_goes_to(&udp, 1, "either queue");
		fixture_must(fixture.got_queue == i % 2, "queue %u from CPU %u", fixture.got_queue, i % 2);
	}
	xdp_prog_clear_socket(fixture.prog, 1, 1);
	assert_packet_goes_to(&udp, FIXTURE_PASSED, "a queue without socket");
	pin_to_cpu(0);
	assert_packet_goes_to(&udp, 1, "the other queue");
}

/* The program knows of one queue, the device has two: what arrives on the second is the kernel's, not dropped. */
static void unknown_queue_passes(void)
{
	xdp_prog_open_one_queue_fixture();
	xdp_prog_set_flow_or_fail(fixture_key_of_any_peer(&udp), 0, 0);
	pin_to_cpu(1);
	assert_packet_goes_to(&udp, FIXTURE_PASSED, "a queue that the program does not know");
	pin_to_cpu(0);
	assert_packet_goes_to(&udp, 0, "the one it knows");
}

/* The interface is one without native XDP. */
static void generic_xdp_mode_case(void)
{
	bool generic = false;

	xdp_prog_open_one_queue_fixture();
	fixture_must(fixture.generic, "fell back to generic mode");
	xdp_prog_detach(fixture.prog);
	fixture_must(xdp_prog_attach(fixture.prog, &generic) == 0 && generic, "again");
	xdp_prog_set_flow_or_fail(fixture_key_with_peer(&udp), 1, 0);
	assert_packet_goes_to(&udp, 1, "a flow in generic mode");
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
        {"native", veth_gets_native_xdp_mode},
        {"unmatched", packets_without_flow_pass_to_kernel_case},
        {"exact_flow_wins_over_wildcard", exact_flow_wins_over_wildcard},
        {"flow_set_and_del", flow_set_and_del},
        {"front_flow_comes_and_goes", front_flow_comes_and_goes},
        {"claims_are_followed", claims_are_followed},
        {"moved_flow_misses_nothing", moved_flow_misses_nothing},
        {"full_flow_map_case", full_flow_map_case},
        {"multicast", multicast_group_must_match_flow},
        {"listener_takes_what_is_left", listener_takes_what_is_left},
        {"group_shares_and_remembers", group_shares_and_remembers},
        {"listener_in_grace", listener_in_grace},
        {"listener_granted_again_misses_nothing", listener_granted_again_misses_nothing},
        {"kernel_connection_survives", kernel_connection_survives},
        {"a_syn_cookie_ack_is_given_back_to_the_kernel", a_syn_cookie_ack_is_given_back_to_the_kernel},
        {"block_takes_what_the_kernel_does_not", block_takes_what_the_kernel_does_not},
        {"fragments", fragments_follow_first_fragments_flow},
        {"ip_options_case", ip_options_case},
        {"frames_of_others", frames_of_others},
        {"a_new_mac_is_followed", a_new_mac_is_followed},
        {"martian_sources", martian_sources},
        {"source_routes", source_routes},
        {"vlan_tags", vlan_tags},
        {"non_ipv4_frames_case", non_ipv4_frames_case},
        {"dead_socket_passes", dead_socket_passes},
        {"second_attach_is_refused_case", second_attach_is_refused_case},
        {"killed_owner", killed_owner},
        {"large_packets", large_packets},
        {"memlock_limit", memlock_limit},
        {"rebind_at_once", rebind_at_once},
        {"send_and_complete", send_and_complete},
        {"truncated", truncated_headers_pass_to_kernel},
        {"overloaded_queue_case", overloaded_queue_case},
        {"two_device_queues_case", two_device_queues_case},
        {"unknown_queue_passes", unknown_queue_passes},
        {"generic_xdp_mode_case", generic_xdp_mode_case},
};

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	name = argv[2], peer_netns = argv[3], peer_name = argv[4];
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (strcmp(cases[i].name, argv[1]) != 0)
			continue;
		cases[i].run();
		if (fixture.prog != NULL)
			fixture_close(&fixture);
		return 0;
	}
	fprintf(stderr, "no case %s\n", argv[1]);
	return 2;
}
