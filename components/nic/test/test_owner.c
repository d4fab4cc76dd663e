/*
 * The owner's decisions, without a device: how the packet memory is divided, and which kernel sockets a flow would rob.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vma/test.h>

#include "../owner/owner.h"
#include "../xdp/shared.h"

#define IFINDEX 7

/* ---- division ---- */

static struct xdp_owner owner;
static struct xdp_shared shared; /* nothing in flight, but by test_a_frame_in_flight_keeps_its_block_from_others */

static void grant_frames_to_many_slots(uint32_t queue_frames, uint32_t queues)
{
	static uint8_t used[1 << 16];

	memset(&owner, 0, sizeof(owner));
	memset(used, 0, sizeof(used));
	owner.queues = queues;
	owner.queue_frames = queue_frames;
	owner.nframes = queue_frames * queues;
	owner.rx_frames = queue_frames / 8 * 5;
	owner.rx_free = owner.rx_frames - owner.rx_frames / 6;
	owner.tx_used = used;
	owner.shared = &shared;
}

static bool is_power_of_two(uint32_t n)
{
	return n > 0 && !(n & (n - 1));
}

static void assert_slot_range_is_valid(const struct owner_slot *slot)
{
	const uint32_t at = slot->tx_first % owner.queue_frames;

	assert_true(is_power_of_two(slot->rx_size) && is_power_of_two(slot->tx_size));
	assert_true(slot->rx_size >= OWNER_RX_MIN && slot->rx_quota >= OWNER_RX_MIN / 2);
	assert_true(at >= owner.rx_frames && at + slot->tx_count <= owner.queue_frames);
	assert_int_equal(slot->tx_size, slot->tx_count);
}

static void assert_slots_do_not_overlap(uint32_t slots)
{
	for (uint32_t a = 0; a < slots; a++)
		for (uint32_t b = 0; b < a; b++) {
			const struct owner_slot *x = &owner.slot[a], *y = &owner.slot[b];

			assert_true(x->tx_first + x->tx_count <= y->tx_first ||
			            y->tx_first + y->tx_count <= x->tx_first);
		}
}

static void test_sixteen_greedy_slots_fit_in_the_default_window(void **state)
{
	uint32_t promised = 0;

	(void)state;
	grant_frames_to_many_slots(8192, 1);
	for (uint32_t slot = 0; slot < 16; slot++) {
		assert_int_equal(owner_frames_grant(&owner, slot, 16000, 16000), 0);
		assert_slot_range_is_valid(&owner.slot[slot]);
		assert_true(owner.slot[slot].tx_count >= 64);
		promised += owner.slot[slot].rx_promised;
	}
	assert_slots_do_not_overlap(16);
	assert_true(promised <= owner.rx_frames);
	assert_true(owner.slot[0].rx_size >= 2048 && owner.slot[0].tx_count >= 256);
	assert_true(owner.slot[1].rx_size >= 512);
}

static void test_every_slot_gets_something(void **state)
{
	(void)state;
	grant_frames_to_many_slots(8192, 2);
	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX; slot++) {
		assert_int_equal(owner_frames_grant(&owner, slot, 4096, 4096), 0);
		assert_slot_range_is_valid(&owner.slot[slot]);
	}
	assert_slots_do_not_overlap(XDP_SLOTS_MAX);
}

static void test_a_small_request_is_granted_as_it_is(void **state)
{
	(void)state;
	grant_frames_to_many_slots(8192, 1);
	assert_int_equal(owner_frames_grant(&owner, 0, 100, 50), 0);
	assert_int_equal(owner.slot[0].rx_size, 128);
	assert_int_equal(owner.slot[0].tx_count, 64);
	assert_int_equal(owner_frames_grant(&owner, 1, 0, 0), 0);
	assert_int_equal(owner.slot[1].rx_size, OWNER_RX_MIN);
	assert_int_equal(owner.slot[1].tx_count, OWNER_TX_BLOCK);
}

static void test_a_window_as_small_as_half_a_megabyte_serves_three(void **state)
{
	(void)state;
	grant_frames_to_many_slots(256, 1);
	assert_int_equal(owner_frames_grant(&owner, 0, 4096, 4096), 0);
	assert_int_equal(owner_frames_grant(&owner, 1, 4096, 4096), 0);
	assert_int_equal(owner_frames_grant(&owner, 2, 4096, 4096), 0);
	assert_int_equal(owner_frames_grant(&owner, 3, 4096, 4096), -ENOSPC);
	owner_frames_ungrant(&owner, 0);
	assert_int_equal(owner_frames_grant(&owner, 3, 4096, 4096), 0);
}

static void test_a_frame_in_flight_keeps_its_block_from_others(void **state)
{
	uint32_t late;

	(void)state;
	grant_frames_to_many_slots(8192, 1);
	assert_int_equal(owner_frames_grant(&owner, 0, 64, 64), 0);
	late = owner.slot[0].tx_first + 5;
	xdp_tx_frame_set_in_flight(&shared, late, 0, 1);
	owner_frames_ungrant(&owner, 0);
	assert_int_equal(owner_frames_grant(&owner, 1, 64, 64), 0);
	assert_true(late < owner.slot[1].tx_first || late >= owner.slot[1].tx_first + owner.slot[1].tx_count);
	owner_frames_ungrant(&owner, 1);
	shared.state[late] = XDP_TX_COMPLETED;
	assert_int_equal(owner_frames_grant(&owner, 2, 64, 64), 0);
	assert_int_equal(owner.slot[2].tx_first, late - 5);
	shared.state[late] = XDP_TX_IDLE;
}

static void test_what_never_completes_is_granted_when_nothing_else_is_left(void **state)
{
	(void)state;
	grant_frames_to_many_slots(256, 1);
	for (uint32_t slot = 0; slot < 3; slot++)
		assert_int_equal(owner_frames_grant(&owner, slot, 64, 64), 0);
	assert_int_equal(owner_frames_grant(&owner, 3, 64, 64), -ENOSPC);
	xdp_tx_frame_set_in_flight(&shared, owner.slot[1].tx_first, 0, 1);
	owner_frames_ungrant(&owner, 1);
	assert_int_equal(owner_frames_grant(&owner, 3, 64, 64), 0);
	shared.state[owner.slot[3].tx_first] = XDP_TX_IDLE;
}

/* A service that is started again at once: the frames of the dead one are not back yet. */
static void test_who_follows_a_dead_slot_has_its_share_to_receive(void **state)
{
	uint32_t first;

	(void)state;
	grant_frames_to_many_slots(8192, 1);
	assert_int_equal(owner_frames_grant(&owner, 0, 4096, 64), 0);
	first = owner.slot[0].rx_size;
	for (uint32_t slot = 1; slot < 8; slot++)
		assert_int_equal(owner_frames_grant(&owner, slot, 4096, 64), 0);
	for (uint32_t slot = 0; slot < 8; slot++)
		owner_slot_drop_frame_quota(&owner, slot);
	assert_int_equal(owner_frames_grant(&owner, 8, 4096, 64), 0);
	assert_int_equal(owner.slot[8].rx_size, first);
}

static void test_what_comes_back_is_granted_again(void **state)
{
	uint32_t first_rx, first_tx, free_before;

	(void)state;
	grant_frames_to_many_slots(8192, 1);
	free_before = owner.rx_free;
	assert_int_equal(owner_frames_grant(&owner, 0, 4096, 4096), 0);
	first_rx = owner.slot[0].rx_size;
	first_tx = owner.slot[0].tx_count;
	owner_frames_ungrant(&owner, 0);
	for (uint32_t round = 0; round < 100; round++) {
		for (uint32_t slot = 0; slot < 24; slot++)
			assert_int_equal(owner_frames_grant(&owner, slot, 4096, 4096), 0);
		for (uint32_t slot = 0; slot < 24; slot++)
			owner_frames_ungrant(&owner, (slot * 7 + round) % 24);
		assert_int_equal(owner.rx_free, free_before);
	}
	assert_int_equal(owner_frames_grant(&owner, 0, 4096, 4096), 0);
	assert_int_equal(owner.slot[0].rx_size, first_rx);
	assert_int_equal(owner.slot[0].tx_count, first_tx);
}

/* ---- kernel socks ---- */

static uint32_t parse_ipv4_or_fail(const char *text)
{
	uint32_t address = 0;

	assert_int_equal(inet_pton(AF_INET, text, &address), 1);
	return address;
}

struct conflict {
	const char *what;
	uint8_t proto;
	const char *local, *peer; /* of the flow; peer NULL: any */
	uint32_t flags;
	const char *socket_local, *socket_peer;
	uint16_t socket_port;
	uint8_t state;
	unsigned device;
	bool conflicts;
};

static const struct conflict conflicts[] = {
        {"same address", IPPROTO_UDP, "10.0.0.1", NULL, 0, "10.0.0.1", NULL, 53, TCP_CLOSE, 0, true},
        {"any address", IPPROTO_UDP, "10.0.0.1", NULL, 0, NULL, NULL, 53, TCP_CLOSE, 0, true},
        {"another address", IPPROTO_UDP, "10.0.0.1", NULL, 0, "10.0.0.2", NULL, 53, TCP_CLOSE, 0, false},
        {"another port", IPPROTO_UDP, "10.0.0.1", NULL, 0, NULL, NULL, 54, TCP_CLOSE, 0, false},
        {"our device", IPPROTO_UDP, "10.0.0.1", NULL, 0, NULL, NULL, 53, TCP_CLOSE, IFINDEX, true},
        {"another device", IPPROTO_UDP, "10.0.0.1", NULL, 0, NULL, NULL, 53, TCP_CLOSE, 8, false},
        {"a connected one", IPPROTO_UDP, "10.0.0.1", NULL, 0, NULL, "10.0.0.9", 53, TCP_ESTABLISHED, 0, true},
        {"group on any", IPPROTO_UDP, "239.1.1.1", NULL, 0, NULL, NULL, 53, TCP_CLOSE, 0, true},
        {"group on group", IPPROTO_UDP, "239.1.1.1", NULL, 0, "239.1.1.1", NULL, 53, TCP_CLOSE, 0, true},
        {"another group", IPPROTO_UDP, "239.1.1.1", NULL, 0, "239.1.1.2", NULL, 53, TCP_CLOSE, 0, false},
        {"less specific", IPPROTO_UDP, "10.0.0.1", "10.0.0.9", 0, NULL, NULL, 53, TCP_CLOSE, 0, false},
        {"same peer", IPPROTO_UDP, "10.0.0.1", "10.0.0.9", 0, NULL, "10.0.0.9", 53, TCP_ESTABLISHED, 0, true},
        {"another peer", IPPROTO_UDP, "10.0.0.1", "10.0.0.9", 0, NULL, "10.0.0.8", 53, TCP_ESTABLISHED, 0, false},
        {"group, not connected", IPPROTO_UDP, "239.1.1.1", "10.0.0.9", 0, NULL, NULL, 53, TCP_CLOSE, 0, true},
        {"group, another peer", IPPROTO_UDP, "239.1.1.1", "10.0.0.9", 0, NULL, "10.0.0.8", 53, TCP_ESTABLISHED, 0,
         false},
        {"two listeners", IPPROTO_TCP, "10.0.0.1", NULL, VMA_FLOW_LISTENER, NULL, NULL, 53, TCP_LISTEN, 0, true},
        {"a connection", IPPROTO_TCP, "10.0.0.1", NULL, VMA_FLOW_LISTENER, "10.0.0.1", "10.0.0.9", 53, TCP_ESTABLISHED,
         0, false},
        {"same connection", IPPROTO_TCP, "10.0.0.1", "10.0.0.9", 0, "10.0.0.1", "10.0.0.9", 53, TCP_ESTABLISHED, 0,
         true},
        {"a listener", IPPROTO_TCP, "10.0.0.1", "10.0.0.9", 0, NULL, NULL, 53, TCP_LISTEN, 0, false},
};

static void test_a_flow_conflicts_with_whom_the_kernel_would_deliver_to(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(conflicts) / sizeof(conflicts[0]); i++) {
		const struct conflict *c = &conflicts[i];
		struct vma_flow_rule rule = {.flags = c->flags, .key = {.family = AF_INET, .proto = c->proto}};
		struct kernel_sock socket = {
		        .family = AF_INET, .proto = c->proto, .state = c->state, .ifindex = c->device};
		uint32_t address = parse_ipv4_or_fail(c->local);

		rule.key.local_port_be = htons(53);
		memcpy(rule.key.local, &address, 4);
		if (c->peer != NULL) {
			address = parse_ipv4_or_fail(c->peer);
			memcpy(rule.key.peer, &address, 4);
			rule.key.peer_port_be = htons(1000);
		}
		socket.port_be = htons(c->socket_port);
		address = c->socket_local != NULL ? parse_ipv4_or_fail(c->socket_local) : 0;
		memcpy(socket.local, &address, 4);
		if (c->socket_peer != NULL) {
			address = parse_ipv4_or_fail(c->socket_peer);
			memcpy(socket.peer, &address, 4);
			socket.peer_port_be = htons(1000);
		}
		if (kernel_sock_conflicts(&rule, &socket, IFINDEX) != c->conflicts)
			fail_msg("%s", c->what);
	}
}

struct reported_socket {
	uint64_t cookie;
	unsigned times;
	struct kernel_sock socket;
};

static void record_socket_if_cookie_matches(const struct kernel_sock *socket, void *arg)
{
	struct reported_socket *reported_socket = arg;

	if (socket->cookie != reported_socket->cookie)
		return;
	reported_socket->times++;
	reported_socket->socket = *socket;
}

/* Binds a UDP socket of that family, to any address, and looks for it in the kernel's list. */
static void find_own_socket_in_dump(int family, bool v6only, unsigned wanted)
{
	struct sockaddr_storage address = {.ss_family = (sa_family_t)family};
	socklen_t len = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	struct reported_socket reported_socket = {0};
	socklen_t cookie_len = sizeof(reported_socket.cookie);
	int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0), only = v6only;
	uint16_t port_be;

	if (fd < 0)
		vma_test_skip("no socket of this family is to be had here");
	if (family == AF_INET6)
		assert_int_equal(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only)), 0);
	if (bind(fd, (struct sockaddr *)&address, len) < 0)
		vma_test_skip("there is no address of this family here");
	assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
	port_be = family == AF_INET ? ((struct sockaddr_in *)&address)->sin_port
	                            : ((struct sockaddr_in6 *)&address)->sin6_port;
	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_COOKIE, &reported_socket.cookie, &cookie_len), 0);
	assert_int_equal(kernel_sock_visit_sockets_of_port(NULL, IPPROTO_UDP, ntohs(port_be), false,
	                                                   record_socket_if_cookie_matches, &reported_socket),
	                 0);
	assert_int_equal(reported_socket.times, wanted);
	if (wanted > 0)
		assert_int_equal(reported_socket.socket.port_be, port_be);
	reported_socket.times = 0;
	assert_int_equal(kernel_sock_visit_sockets_of_port(NULL, IPPROTO_UDP, 0, false, record_socket_if_cookie_matches,
	                                                   &reported_socket),
	                 0);
	assert_int_equal(reported_socket.times, wanted);
	close(fd);
}

#define SOCKETS 60u

struct count {
	uint16_t port[SOCKETS];
	unsigned seen[SOCKETS];
};

static void count_seen_socket_by_port(const struct kernel_sock *socket, void *arg)
{
	struct count *count = arg;

	for (unsigned i = 0; i < SOCKETS; i++)
		count->seen[i] += ntohs(socket->port_be) == count->port[i];
}

/* Every stride-th of the sockets is looked for. */
static void assert_sockets_found_in_port_ranges(struct count *count, unsigned stride)
{
	struct port_ranges ranges;
	uint8_t ports[65536 / 8] = {0};

	memset(count->seen, 0, sizeof(count->seen));
	for (unsigned i = 0; i < SOCKETS; i += stride)
		ports[count->port[i] / 8] |= (uint8_t)(1u << count->port[i] % 8);
	port_ranges_covering_bitmap(ports, &ranges);
	assert_true(ranges.n > 0 && ranges.n <= PORT_RANGES_MAX);
	assert_int_equal(kernel_sock_visit_sockets_in_port_ranges(NULL, IPPROTO_UDP, &ranges, false,
	                                                          count_seen_socket_by_port, count),
	                 0);
	for (unsigned i = 0; i < SOCKETS; i += stride)
		assert_int_equal(count->seen[i], 1);
}

static void test_the_kernel_lists_the_sockets_of_a_set_of_ports(void **state)
{
	struct count count;
	int fd[SOCKETS];

	(void)state;
	for (unsigned i = 0; i < SOCKETS; i++) {
		struct sockaddr_in name = {.sin_family = AF_INET};
		socklen_t len = sizeof(name);

		fd[i] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		assert_int_equal(bind(fd[i], (struct sockaddr *)&name, len), 0);
		assert_int_equal(getsockname(fd[i], (struct sockaddr *)&name, &len), 0);
		count.port[i] = ntohs(name.sin_port);
	}
	assert_sockets_found_in_port_ranges(
	        &count, 1); /* more than there are ranges: some ports between them are listed, too */
	assert_sockets_found_in_port_ranges(&count, 2);
	assert_sockets_found_in_port_ranges(&count, 10); /* six, and none but these */
	for (unsigned i = 0; i < SOCKETS; i++)
		assert_int_equal(count.seen[i], i % 10 == 0);
	for (unsigned i = 0; i < SOCKETS; i++)
		close(fd[i]);
}

static void test_the_kernel_lists_a_socket_under_its_cookie(void **state)
{
	(void)state;
	find_own_socket_in_dump(AF_INET, false, 1);
}

static void test_an_ipv6_socket_on_any_address_receives_ipv4(void **state)
{
	(void)state;
	find_own_socket_in_dump(AF_INET6, false, 1);
}

static void test_unless_it_is_ipv6_only(void **state)
{
	(void)state;
	find_own_socket_in_dump(AF_INET6, true, 0);
}

/* A listener, a connection to it, and the end that it accepted, on the loopback. */
static void test_a_connection_is_found_by_its_addresses(void **state)
{
	struct sockaddr_in server = {.sin_family = AF_INET}, peer;
	struct vma_flow_key key = {.family = AF_INET, .proto = IPPROTO_TCP};
	struct reported_socket reported_socket = {0};
	socklen_t len = sizeof(server), cookie_len = sizeof(reported_socket.cookie);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), client, accepted;

	(void)state;
	client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(listener, (struct sockaddr *)&server, len) < 0 || listen(listener, 1) < 0)
		vma_test_skip("there is no loopback here");
	assert_int_equal(getsockname(listener, (struct sockaddr *)&server, &len), 0);
	assert_int_equal(connect(client, (struct sockaddr *)&server, len), 0);
	accepted = accept4(listener, (struct sockaddr *)&peer, &len, SOCK_CLOEXEC);
	assert_true(accepted >= 0);
	memcpy(key.local, &server.sin_addr, 4);
	memcpy(key.peer, &peer.sin_addr, 4);
	key.local_port_be = server.sin_port;
	key.peer_port_be = peer.sin_port;
	assert_int_equal(getsockopt(accepted, SOL_SOCKET, SO_COOKIE, &reported_socket.cookie, &cookie_len), 0);
	assert_int_equal(kernel_sock_visit_sockets_of_connection(NULL, &key, if_nametoindex("lo"),
	                                                         record_socket_if_cookie_matches, &reported_socket),
	                 0);
	assert_int_equal(reported_socket.times, 1);
	assert_int_equal(reported_socket.socket.peer_port_be, peer.sin_port);
	close(accepted);
	close(client);
	close(listener);
	reported_socket.times = 0;
	assert_int_equal(kernel_sock_visit_sockets_of_connection(NULL, &key, if_nametoindex("lo"),
	                                                         record_socket_if_cookie_matches, &reported_socket),
	                 0);
	assert_int_equal(reported_socket.times, 0);
}

static unsigned count_open_fds_below_256(void)
{
	unsigned n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void test_a_kept_netlink_socket_answers_every_question_as_a_new_one_does(void **state)
{
	struct vma_flow_key key = {
	        .family = AF_INET, .proto = IPPROTO_TCP, .local = {127, 0, 0, 1}, .peer = {127, 0, 0, 1}};
	struct sockaddr_in server = {.sin_family = AF_INET}, peer;
	socklen_t len = sizeof(server), cookie_len = sizeof(uint64_t);
	int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0), accepted;
	const unsigned before = count_open_fds_below_256();
	int persistent = -1;
	struct reported_socket reported_socket = {0};

	(void)state;
	server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(listener, (struct sockaddr *)&server, sizeof(server)), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&server, &len), 0);
	assert_int_equal(connect(client, (struct sockaddr *)&server, sizeof(server)), 0);
	accepted = accept(listener, (struct sockaddr *)&peer, &len);
	assert_true(accepted >= 0);
	assert_int_equal(getsockopt(accepted, SOL_SOCKET, SO_COOKIE, &reported_socket.cookie, &cookie_len), 0);
	key.local_port_be = server.sin_port;
	for (unsigned i = 1; i <= 3; i++) {
		key.peer_port_be = htons((uint16_t)(ntohs(peer.sin_port) ^ 1)); /* nobody's */
		assert_int_equal(kernel_sock_visit_sockets_of_connection(
		                         &persistent, &key, 0, record_socket_if_cookie_matches, &reported_socket),
		                 0);
		assert_int_equal(reported_socket.times, (i - 1) * 2);
		key.peer_port_be = peer.sin_port;
		assert_int_equal(kernel_sock_visit_sockets_of_connection(
		                         &persistent, &key, 0, record_socket_if_cookie_matches, &reported_socket),
		                 0);
		assert_int_equal(reported_socket.times, i * 2 - 1);
		assert_int_equal(kernel_sock_visit_sockets_of_port(&persistent, IPPROTO_TCP, ntohs(server.sin_port),
		                                                   false, record_socket_if_cookie_matches,
		                                                   &reported_socket),
		                 0);
		assert_int_equal(reported_socket.times, i * 2);
		assert_int_equal(count_open_fds_below_256(),
		                 before + 1); /* what was accepted; the one that is kept has a number far above */
	}
	assert_true(persistent >= 256);
	close(persistent);
	close(accepted);
	assert_int_equal(count_open_fds_below_256(), before);
	close(client);
	close(listener);
}

static void test_of_tcp_the_listeners_can_be_had_alone(void **state)
{
	struct sockaddr_in server = {.sin_family = AF_INET};
	struct reported_socket reported_socket = {0};
	socklen_t len = sizeof(server), cookie_len = sizeof(reported_socket.cookie);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)state;
	if (bind(listener, (struct sockaddr *)&server, len) < 0 || listen(listener, 1) < 0)
		vma_test_skip("nobody can listen here");
	assert_int_equal(getsockname(listener, (struct sockaddr *)&server, &len), 0);
	assert_int_equal(getsockopt(listener, SOL_SOCKET, SO_COOKIE, &reported_socket.cookie, &cookie_len), 0);
	assert_int_equal(kernel_sock_visit_sockets_of_port(NULL, IPPROTO_TCP, ntohs(server.sin_port), true,
	                                                   record_socket_if_cookie_matches, &reported_socket),
	                 0);
	assert_int_equal(reported_socket.times, 1);
	assert_int_equal(reported_socket.socket.state, TCP_LISTEN);
	close(listener);
}

/* Of two that are bound alike the one with the peer, also if it is an IPv6 socket. */
static void test_the_sockets_of_one_peer_can_be_had_alone(void **state)
{
	struct vma_flow_key key = {.family = AF_INET, .proto = IPPROTO_UDP, .peer = {127, 0, 0, 1}};
	struct reported_socket connected = {0}, other = {0}, mapped = {0};
	struct sockaddr_in peer = {
	        .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 peer6 = {
	        .sin6_family = AF_INET6, .sin6_port = htons(9), .sin6_addr.s6_addr = {[10] = 0xff, 0xff, 127, 0, 0, 1}};
	int fds[3] = {socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0),
	              socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
	struct reported_socket *reported[3] = {&connected, &other, &mapped};
	socklen_t cookie_len = sizeof(connected.cookie);

	(void)state;
	key.peer_port_be = peer.sin_port;
	assert_int_equal(connect(fds[0], (struct sockaddr *)&peer, sizeof(peer)), 0);
	peer.sin_port = htons(10);
	assert_int_equal(connect(fds[1], (struct sockaddr *)&peer, sizeof(peer)), 0);
	if (fds[2] < 0 || connect(fds[2], (struct sockaddr *)&peer6, sizeof(peer6)) < 0)
		vma_test_skip("there is no IPv6 here");
	for (int i = 0; i < 3; i++) {
		assert_int_equal(getsockopt(fds[i], SOL_SOCKET, SO_COOKIE, &reported[i]->cookie, &cookie_len), 0);
		assert_int_equal(kernel_sock_walk_connected(NULL, &key, record_socket_if_cookie_matches, reported[i]),
		                 0);
	}
	assert_int_equal(connected.times, 1);
	assert_int_equal(other.times, 0);
	assert_int_equal(mapped.times, 1);
	assert_memory_equal(mapped.socket.peer, key.peer, 4);
	for (int i = 0; i < 3; i++)
		close(fds[i]);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sixteen_greedy_slots_fit_in_the_default_window),
        cmocka_unit_test(test_every_slot_gets_something),
        cmocka_unit_test(test_a_small_request_is_granted_as_it_is),
        cmocka_unit_test(test_a_window_as_small_as_half_a_megabyte_serves_three),
        cmocka_unit_test(test_a_frame_in_flight_keeps_its_block_from_others),
        cmocka_unit_test(test_what_never_completes_is_granted_when_nothing_else_is_left),
        cmocka_unit_test(test_who_follows_a_dead_slot_has_its_share_to_receive),
        cmocka_unit_test(test_what_comes_back_is_granted_again),
        cmocka_unit_test(test_a_flow_conflicts_with_whom_the_kernel_would_deliver_to),
        cmocka_unit_test(test_the_kernel_lists_a_socket_under_its_cookie),
        cmocka_unit_test(test_an_ipv6_socket_on_any_address_receives_ipv4),
        cmocka_unit_test(test_unless_it_is_ipv6_only),
        cmocka_unit_test(test_a_connection_is_found_by_its_addresses),
        cmocka_unit_test(test_a_kept_netlink_socket_answers_every_question_as_a_new_one_does),
        cmocka_unit_test(test_of_tcp_the_listeners_can_be_had_alone),
        cmocka_unit_test(test_the_sockets_of_one_peer_can_be_had_alone),
        cmocka_unit_test(test_the_kernel_lists_the_sockets_of_a_set_of_ports),
};

VMA_TEST_MAIN(tests)
