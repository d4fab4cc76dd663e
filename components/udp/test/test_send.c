/* Sending: which frames leave over the link, with which bytes, and what goes through the shadow instead. */
#include <sys/mman.h>
#include <time.h>

#include "../../rules/test/rules_fixture.h"
#include "../../sock/test/internal_thread.h"
#include "fake_net.h"
#include "../pace.h"

enum { PORT = 9000, MAX = 1472 };

static struct udp_sock *sock;
static int sink = -1; /* of the kernel: where the shadow's datagrams go */
static struct sockaddr_in sink_addr;

static struct sockaddr_in remote_addr_with_port(uint16_t port)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};

	memcpy(&addr.sin_addr, fixture_remote, 4);
	return addr;
}

/* As the control path does it after a change. */
static void reset_cached_destinations(void)
{
	struct vma_thread *self = vma_enter();

	pthread_mutex_lock(&sock->file.lock);
	udp_dst_rebuild_after_change(sock);
	pthread_mutex_unlock(&sock->file.lock);
	vma_leave(self);
}

/* The socket to the remote address; its shadow to the kernel's sink, so that what went that way is found there. */
static void connect_socket_and_its_shadow(void)
{
	sock->peer = remote_addr_with_port(PORT);
	atomic_store(&sock->connected, true);
	reset_cached_destinations();
	assert_int_equal(vma_os.connect(fixture_fd(sock), (struct sockaddr *)&sink_addr, sizeof(sink_addr)), 0);
}

static int setup(void **state)
{
	socklen_t len = sizeof(sink_addr);
	struct timeval timeout = {.tv_sec = 2};

	(void)state;
	fake_net_reset();
	fixture.local_members = false;
	sink = vma_os.socket(AF_INET, SOCK_DGRAM, 0);
	sink_addr = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	assert_int_equal(vma_os.bind(sink, (struct sockaddr *)&sink_addr, len), 0);
	assert_int_equal(vma_os.getsockname(sink, (struct sockaddr *)&sink_addr, &len), 0);
	assert_int_equal(vma_os.setsockopt(sink, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)), 0);
	sock = udp_fixture_socket(true);
	udp_fixture_peer_listen(PORT);
	fixture_peer_receive();
	vma_thread_self()->tx_last_tsc = 0;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	release_internal_thread();
	fixture_close(sock);
	vma_os.close(sink);
	fixture_peer_receive();
	vma_ring_detach_flow(fixture.peer, &fixture.peer_flow);
	return 0;
}

static ssize_t send_msg(const struct msghdr *msg, int flags)
{
	struct vma_thread *self = vma_enter();
	ssize_t len = udp_sendmsg(&sock->file, fixture_fd(sock), msg, flags);

	vma_leave(self);
	return len;
}

static ssize_t sendmsg_data_to(const struct sockaddr_in *to, const void *data, size_t size, int flags)
{
	struct {
		struct msghdr msg;
		struct iovec iov;
	} own = {.iov = {.iov_base = (void *)data, .iov_len = size}};

	own.msg.msg_iov = &own.iov;
	own.msg.msg_iovlen = 1;
	own.msg.msg_name = (void *)to;
	own.msg.msg_namelen = to != NULL ? sizeof(*to) : 0;
	return send_msg(&own.msg, flags);
}

static ssize_t send_text(const char *text)
{
	return sendmsg_data_to(NULL, text, strlen(text), 0);
}

static void assert_peer_gets(const char *text)
{
	assert_int_equal(fixture_peer_receive(), 1);
	assert_int_equal(fixture_payload_len(), strlen(text));
	assert_memory_equal(fixture.frame + 42, text, strlen(text));
}

static void assert_kernel_received_text(const char *text)
{
	char data[2048];

	assert_int_equal(vma_os.recv(sink, data, sizeof(data), MSG_DONTWAIT), strlen(text));
	assert_memory_equal(data, text, strlen(text));
}

static void assert_kernel_gets(const char *text)
{
	assert_kernel_received_text(text);
	assert_int_equal(fixture_peer_receive(), 0);
}

static uint64_t count_tx_packets(void)
{
	return vma_stats_read_counter(&sock->stats->tx_packets);
}

static uint64_t count_packets_sent_by_os(void)
{
	return vma_stats_read_counter(&sock->stats->tx_os_packets);
}

/* ---- connected ---- */

static void test_connected_datagram_leaves_as_a_frame(void **state)
{
	(void)state;
	connect_socket_and_its_shadow();
	assert_int_equal(send_text("hello"), 5);
	assert_peer_gets("hello");
	assert_int_equal(count_tx_packets(), 1);
	assert_int_equal(count_packets_sent_by_os(), 0);
	assert_memory_equal(fixture.frame + 26, fixture_local, 4);
	assert_memory_equal(fixture.frame + 30, fixture_remote, 4);
	assert_memory_equal(fixture.frame + 34, &sock->local.sin_port, 2);
	assert_int_equal(fixture.frame[36] << 8 | fixture.frame[37], PORT);
	assert_int_equal(fixture.frame[20], 0x40); /* don't fragment, */
	assert_int_equal(fixture.frame[18] | fixture.frame[19], 0);
	assert_int_equal(fixture.frame[22], 64);
}

static void test_every_length_up_to_the_mtu_leaves_whole(void **state)
{
	static uint8_t data[MAX];

	(void)state;
	connect_socket_and_its_shadow();
	for (size_t i = 0; i < MAX; i++)
		data[i] = (uint8_t)(i * 7);
	for (size_t len = 0; len <= MAX; len += len < 70 || len > MAX - 5 ? 1 : 97) {
		assert_int_equal(sendmsg_data_to(NULL, data, len, 0), len);
		vma_inet_flush_sends(vma_thread_self());
		assert_int_equal(fixture_peer_receive(), 1); /* the peer's ring has checked both sums */
		assert_int_equal(fixture_payload_len(), len);
		assert_memory_equal(fixture.frame + 42, data, len);
	}
}

static void test_pieces_are_gathered(void **state)
{
	struct iovec iov[] = {{"ab", 2}, {NULL, 0}, {"cde", 3}, {"f", 1}};
	const struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 4};

	(void)state;
	connect_socket_and_its_shadow();
	assert_int_equal(send_msg(&msg, 0), 6);
	assert_peer_gets("abcdef");
}

static void test_too_many_pieces_are_refused(void **state)
{
	static struct iovec iov[1025];
	const struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 1025};

	(void)state;
	connect_socket_and_its_shadow();
	assert_int_equal(send_msg(&msg, 0), -EMSGSIZE);
	assert_int_equal(fixture_peer_receive(), 0);
}

static void test_bad_pointer_is_efault_and_nothing_leaves(void **state)
{
	void *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)state;
	udp_fixture_restore_fault_handlers();
	connect_socket_and_its_shadow();
	assert_int_equal(sendmsg_data_to(NULL, page, 10, 0), -EFAULT);
	assert_int_equal(sendmsg_data_to(page, "x", 1, 0), -EFAULT);
	assert_int_equal(fixture_peer_receive(), 0);
	munmap(page, 4096);
}

static void test_longer_than_the_mtu_goes_through_the_shadow(void **state)
{
	static char data[MAX + 2];

	(void)state;
	connect_socket_and_its_shadow();
	memset(data, 'x', MAX + 1);
	assert_int_equal(send_text(data), MAX + 1);
	assert_kernel_gets(data);
	assert_int_equal(sendmsg_data_to(NULL, data, 70000, 0), -EMSGSIZE);
}

static void test_ttl_and_tos_are_in_the_header_after_a_reset(void **state)
{
	(void)state;
	connect_socket_and_its_shadow();
	sock->ttl = 9;
	sock->tos = 0x28;
	reset_cached_destinations();
	assert_int_equal(send_text("x"), 1);
	assert_peer_gets("x");
	assert_int_equal(fixture.frame[22], 9);
	assert_int_equal(fixture.frame[15], 0x28);
	assert_int_equal(fake_net.asked_for.tos, 0x28);
}

static void test_fragmentable_datagrams_have_ids_of_their_own(void **state)
{
	uint16_t first, second; /* of this host's byte order: any will do */

	(void)state;
	sock->pmtu_discover = IP_PMTUDISC_DONT;
	connect_socket_and_its_shadow();
	assert_int_equal(send_text("x"), 1);
	assert_peer_gets("x");
	assert_int_equal(fixture.frame[20], 0);
	memcpy(&first, fixture.frame + 18, 2);
	assert_int_equal(send_text("y"), 1);
	assert_peer_gets("y");
	memcpy(&second, fixture.frame + 18, 2);
	assert_int_equal((uint16_t)(first + 1), second);
}

static void test_route_is_asked_for_as_the_kernel_would(void **state)
{
	(void)state;
	sock->mark = 5;
	sock->bound_ifindex = 17;
	connect_socket_and_its_shadow();
	assert_int_equal(fake_net.asked_for.flags, VMA_NET_KEY_CONNECT);
	assert_int_equal(fake_net.asked_for.mark, 5);
	assert_int_equal(fake_net.asked_for.oif, 17);
	assert_int_equal(fake_net.asked_for.uid, geteuid());
	assert_int_equal(fake_net.asked_for.proto, IPPROTO_UDP);
	assert_int_equal(fake_net.asked_for.dport_be, htons(PORT));
	assert_int_equal(fake_net.asked_for.sport_be, sock->local.sin_port);
	assert_memory_equal(fake_net.asked_for.src, fixture_local, 4);
	assert_memory_equal(fake_net.asked_for.dst, fixture_remote, 4);
}

/* ---- paths that change ---- */

static void test_new_mac_is_used_from_the_next_datagram_on(void **state)
{
	(void)state;
	connect_socket_and_its_shadow();
	assert_int_equal(send_text("x"), 1);
	assert_peer_gets("x");
	fake_net_change(bytes[5], 77);
	assert_int_equal(send_text("y"), 1);
	assert_peer_gets("y");
	assert_int_equal(fixture.frame[5], 77);
	fixture_wait_until(atomic_load(&fake_net.gets) == 2); /* and the cache is made anew */
	assert_int_equal(send_text("z"), 1);
	assert_peer_gets("z");
	assert_int_equal(fixture.frame[5], 77);
	fixture_wait_until((vma_run_due_deferred_frees(), atomic_load(&fake_net.held) == 1));
}

static void test_neighbour_that_is_not_resolved_is_the_kernels(void **state)
{
	(void)state;
	fake_net.template.state = VMA_NET_RESOLVING;
	connect_socket_and_its_shadow();
	assert_int_equal(send_text("first"), 5);
	assert_kernel_gets("first");
	fake_net_change(state, VMA_NET_READY);
	fixture_wait_until(send_text("x") == 1 && count_tx_packets() > 0);
	assert_true(fixture_peer_receive() > 0);
	fake_net_change(state, VMA_NET_FAILED);
	while (vma_os.recv(sink, (char[8]){0}, 8, MSG_DONTWAIT) >= 0)
		;
	assert_int_equal(send_text("last"), 4);
	assert_kernel_gets("last");
}

static void test_smaller_mtu_sends_the_longer_ones_through_the_shadow(void **state)
{
	(void)state;
	connect_socket_and_its_shadow();
	fake_net_change(mtu, 30);
	assert_int_equal(send_text("ab"), 2);
	assert_peer_gets("ab");
	assert_int_equal(send_text("abc"), 3);
	assert_kernel_gets("abc");
}

static void test_stale_neighbour_is_probed_and_used(void **state)
{
	(void)state;
	fake_net.template.flags = VMA_NET_CONFIRM;
	connect_socket_and_its_shadow();
	assert_int_equal(send_text("x"), 1);
	assert_peer_gets("x");
	assert_true(atomic_load(&fake_net.probes) > 0);
}

static void test_without_device_all_goes_through_the_shadow(void **state)
{
	(void)state;
	fake_net.no_device = true;
	connect_socket_and_its_shadow();
	assert_int_equal(send_text("x"), 1);
	assert_kernel_gets("x");
}

/* ---- unconnected ---- */

static void test_first_unconnected_datagram_is_offloaded_already(void **state)
{
	const struct sockaddr_in to = remote_addr_with_port(PORT);

	(void)state;
	reset_cached_destinations();
	assert_int_equal(sendmsg_data_to(&to, "x", 1, 0), 1);
	assert_peer_gets("x");
	assert_int_equal(fake_net.asked_for.flags, 0);
	assert_int_equal(sendmsg_data_to(&to, "yz", 2, 0), 2);
	assert_peer_gets("yz");
	assert_int_equal(atomic_load(&fake_net.gets), 1);
}

/* Other ports of the remote address whose destinations have the same place in the cache as PORT's. */
static struct sockaddr_in address_sharing_dst_cache_slot(unsigned nth)
{
	uint32_t addr;

	memcpy(&addr, fixture_remote, 4);
	for (uint16_t port = 1;; port++) {
		if (udp_dst_cache_slot_of_key(udp_peer_key(addr, htons(port))) ==
		            udp_dst_cache_slot_of_key(udp_peer_key(addr, htons(PORT))) &&
		    nth-- == 0)
			return remote_addr_with_port(port);
	}
}

static void test_second_destination_of_a_slot_is_offloaded_at_once(void **state)
{
	const struct sockaddr_in other = address_sharing_dst_cache_slot(0), to = remote_addr_with_port(PORT);

	(void)state;
	reset_cached_destinations();
	assert_int_equal(sendmsg_data_to(&other, "x", 1, 0), 1);
	assert_int_equal(sendmsg_data_to(&to, "first", 5, 0), 5);
	assert_peer_gets("first");
	assert_int_equal(atomic_load(&fake_net.gets), 2);
	assert_int_equal(atomic_load(&fake_net.wants), 0);
}

static void test_one_more_destination_of_a_slot_is_offloaded_once_its_path_is_known(void **state)
{
	const uint64_t rate = atomic_load(&vma_tsc_per_1024_usec);
	const struct sockaddr_in other = address_sharing_dst_cache_slot(0), to = remote_addr_with_port(PORT);

	(void)state;
	reset_cached_destinations();
	assert_int_equal(sendmsg_data_to(&other, "x", 1, 0), 1);
	atomic_store(&sock->dst_requested_tsc, vma_tsc()); /* no place in the cache for a while, */
	atomic_store(&sock->dst_made_tsc, vma_tsc());
	atomic_store(&vma_tsc_per_1024_usec, rate * 100000); /* however long this thread is without a core now */
	sendmsg_data_to(&to, "first", 5, 0); /* the kernel's, whatever it thinks of 10.0.0.2 from 127.0.0.1 */
	atomic_store(&vma_tsc_per_1024_usec, rate);
	assert_int_equal(count_tx_packets(), 1);
	assert_int_equal(atomic_load(&fake_net.wants), 1);
	fake_net.known = true;
	assert_int_equal(sendmsg_data_to(&to, "second", 6, 0), 6);
	assert_peer_gets("second");
}

static void test_wanted_destination_gets_the_slot_in_time(void **state)
{
	const struct sockaddr_in other = address_sharing_dst_cache_slot(0), to = remote_addr_with_port(PORT);

	(void)state;
	reset_cached_destinations();
	assert_int_equal(sendmsg_data_to(&other, "x", 1, 0), 1);
	fake_net.known = true;
	assert_int_equal(sendmsg_data_to(&to, "y", 1, 0), 1);
	assert_peer_gets("y");
	fixture_wait_until(atomic_load(&fake_net.gets) == 2); /* by the internal thread */
}

static void test_connected_socket_sends_elsewhere_when_told(void **state)
{
	const struct sockaddr_in to = remote_addr_with_port(PORT);

	(void)state;
	fake_net.known = true;
	connect_socket_and_its_shadow();
	sock->peer = remote_addr_with_port(PORT + 1);
	reset_cached_destinations();
	assert_int_equal(sendmsg_data_to(&to, "x", 1, 0), 1);
	assert_peer_gets("x");
}

static void test_destinations_that_share_a_slot_are_all_offloaded(void **state)
{
	struct sockaddr_in to[3];

	(void)state;
	connect_socket_and_its_shadow();
	fake_net.known = true;
	for (unsigned i = 0; i < 3; i++)
		to[i] = address_sharing_dst_cache_slot(i);
	for (int i = 0; i < 300; i++)
		assert_int_equal(sendmsg_data_to(&to[i % 3], "x", 1, 0), 1);
	assert_int_equal(count_tx_packets(), 300);
	/* The cache is not made anew for each of them. */
	assert_true(atomic_load(&fake_net.gets) < 150);
}

static void test_bad_addresses_get_the_kernels_answer(void **state)
{
	struct sockaddr_in to = remote_addr_with_port(0);

	(void)state;
	reset_cached_destinations();
	assert_int_equal(sendmsg_data_to(NULL, "x", 1, 0), -EDESTADDRREQ);
	assert_int_equal(sendmsg_data_to(&to, "x", 1, 0), -EINVAL);
	to = remote_addr_with_port(PORT);
	to.sin_family = AF_INET6;
	assert_int_equal(sendmsg_data_to(&to, "x", 1, 0), -EAFNOSUPPORT);
	to = remote_addr_with_port(PORT);
	to.sin_addr.s_addr = INADDR_BROADCAST;
	fake_net.known = true;
	fake_net.template.type = RTN_BROADCAST;
	assert_true(sendmsg_data_to(&to, "x", 1, 0) < 0);
	assert_int_equal(count_tx_packets(), 0);
}

static void test_first_send_of_an_unbound_socket_binds_it(void **state)
{
	unsigned before = fixture.binds;

	(void)state;
	fixture_close(sock);
	sock = udp_fixture_socket(false);
	fake_net.template.state = VMA_NET_USE_OS; /* it is on this host */
	assert_int_equal(sendmsg_data_to(&sink_addr, "x", 1, 0), 1);
	assert_kernel_gets("x");
	assert_int_equal(fixture.binds, before + 1);
	assert_true(sock->local.sin_port != 0);
	assert_int_equal(sendmsg_data_to(&sink_addr, "y", 1, 0), 1);
	assert_int_equal(fixture.binds, before + 1);
}

static void test_inherited_socket_is_taken_up_by_its_first_send(void **state)
{
	unsigned before = fixture.takes_up;

	(void)state;
	connect_socket_and_its_shadow();
	udp_tx_state_reset_in_forked_child(sock); /* what the child does */
	assert_int_equal(send_text("x"), 1);
	assert_int_equal(fixture.takes_up, before + 1);
	assert_peer_gets("x");
}

/* ---- groups ---- */

static void test_group_goes_out_with_its_own_ttl(void **state)
{
	(void)state;
	fake_net.template.type = RTN_MULTICAST;
	sock->mc_ttl = 3;
	sock->mc_ifindex = 17;
	sock->mc_source.s_addr = htonl(0x0a000009);
	memset(&sock->local.sin_addr, 0, 4);
	connect_socket_and_its_shadow();
	assert_int_equal(send_text("x"), 1);
	assert_peer_gets("x");
	assert_int_equal(fixture.frame[22], 3);
}

static void test_group_is_looked_up_on_its_interface(void **state)
{
	(void)state;
	sock->mc_ifindex = 17;
	sock->mc_source.s_addr = htonl(0x0a000009);
	memset(&sock->local.sin_addr, 0, 4);
	sock->peer = remote_addr_with_port(PORT);
	sock->peer.sin_addr.s_addr = htonl(0xef010101);
	atomic_store(&sock->connected, true);
	reset_cached_destinations();
	assert_int_equal(fake_net.asked_for.oif, 17);
	assert_memory_equal(fake_net.asked_for.src, &sock->mc_source, 4);
}

static void test_group_with_members_here_goes_through_the_shadow(void **state)
{
	(void)state;
	fake_net.template.type = RTN_MULTICAST;
	connect_socket_and_its_shadow();
	fixture.local_members = true;
	assert_int_equal(send_text("both"), 4);
	assert_kernel_gets("both");
	sock->mc_loop = false; /* then they are not meant */
	reset_cached_destinations();
	assert_int_equal(send_text("away"), 4);
	assert_peer_gets("away");
	sock->mc_loop = true;
	reset_cached_destinations();
	fixture.local_members = false;
	assert_int_equal(send_text("none"), 4);
	assert_peer_gets("none");
}

/* ---- what only the kernel does ---- */

static void test_unserved_flags_and_control_messages_go_through_the_shadow(void **state)
{
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec iov = {.iov_base = "999", .iov_len = 3};
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	(void)state;
	connect_socket_and_its_shadow();
	*c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = 999, .cmsg_type = IP_TTL};
	memcpy(CMSG_DATA(c), &(int){5}, sizeof(int));
	assert_int_equal(send_msg(&msg, 0), 3);
	assert_kernel_gets("999");
	c->cmsg_level = IPPROTO_IP;
	memcpy(CMSG_DATA(c), &(int){256}, sizeof(int));
	assert_int_equal(send_msg(&msg, 0), -EINVAL);
	c->cmsg_len = 3;
	assert_int_equal(send_msg(&msg, 0), -EINVAL);
	msg.msg_controllen = 1000000;
	assert_int_equal(send_msg(&msg, 0), -ENOBUFS);
	assert_int_equal(sendmsg_data_to(NULL, "route", 5, MSG_DONTROUTE), 5);
	assert_kernel_gets("route");
	assert_int_equal(sendmsg_data_to(NULL, "oob", 3, MSG_OOB), -EOPNOTSUPP);
	assert_int_equal(sendmsg_data_to(NULL, "plain", 5, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CONFIRM), 5);
	assert_peer_gets("plain");
}

static void test_control_messages_are_in_the_header_and_in_the_lookup(void **state)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(struct in_pktinfo)) + 2 * CMSG_SPACE(sizeof(int))] = {
	        0};
	struct iovec iov = {.iov_base = "with", .iov_len = 4};
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct in_pktinfo info = {.ipi_ifindex = 23, .ipi_spec_dst.s_addr = htonl(0x0a090807)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	(void)state;
	connect_socket_and_its_shadow();
	*c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(info)), .cmsg_level = IPPROTO_IP, .cmsg_type = IP_PKTINFO};
	memcpy(CMSG_DATA(c), &info, sizeof(info));
	c = CMSG_NXTHDR(&msg, c);
	*c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = IPPROTO_IP, .cmsg_type = IP_TTL};
	memcpy(CMSG_DATA(c), &(int){5}, sizeof(int));
	c = (struct cmsghdr *)((char *)c + CMSG_SPACE(sizeof(int)));
	*c = (struct cmsghdr){.cmsg_len = CMSG_LEN(1), .cmsg_level = IPPROTO_IP, .cmsg_type = IP_TOS};
	*CMSG_DATA(c) = 0x28;
	assert_int_equal(send_msg(&msg, 0), 4);
	assert_peer_gets("with");
	assert_int_equal(fixture.frame[22], 5);
	assert_int_equal(fixture.frame[15], 0x28);
	assert_int_equal(fake_net.asked_for.oif, 23);
	assert_int_equal(fake_net.asked_for.tos, 0x28);
	assert_int_equal(fake_net.asked_for.flags, 0);
	assert_memory_equal(fake_net.asked_for.src, &info.ipi_spec_dst, 4);
	assert_memory_equal(fake_net.asked_for.dst, fixture_remote, 4);
	/* What net knows is not asked for again, and a stale neighbour is probed by its own route. */
	fake_net.known = true;
	fake_net.template.flags = VMA_NET_CONFIRM;
	const unsigned gets = atomic_load(&fake_net.gets), probes = atomic_load(&fake_net.probes);

	assert_int_equal(send_msg(&msg, 0), 4);
	assert_peer_gets("with");
	assert_int_equal(atomic_load(&fake_net.gets), gets);
	assert_int_equal(atomic_load(&fake_net.probes), probes + 1);
	/* The next one without them is as before. */
	assert_int_equal(send_text("x"), 1);
	assert_peer_gets("x");
	assert_int_equal(fixture.frame[15], 0);
}

static void test_datagram_in_parts_is_one_of_the_shadows(void **state)
{
	(void)state;
	connect_socket_and_its_shadow();
	assert_int_equal(sendmsg_data_to(NULL, "begin-", 6, MSG_MORE), 6);
	assert_int_equal(send_text("end"), 3);
	assert_kernel_gets("begin-end");
	assert_int_equal(send_text("next"), 4);
	assert_peer_gets("next");
}

static void test_option_of_the_kernel_alone_sends_all_through_the_shadow(void **state)
{
	(void)state;
	atomic_store(&sock->os_send, true);
	connect_socket_and_its_shadow();
	assert_int_equal(send_text("x"), 1);
	assert_kernel_gets("x");
}

static void test_error_of_the_shadow_is_told_once(void **state)
{
	(void)state;
	connect_socket_and_its_shadow();
	vma_os.close(sink);
	sink = -1;
	assert_int_equal(vma_os.send(fixture_fd(sock), "x", 1, 0),
	                 1); /* is refused: ICMP, or its like on the loopback */
	udp_note_pending_os_error(sock);
	assert_int_equal(send_text("told"), -ECONNREFUSED);
	assert_int_equal(send_text("sent"), 4);
	assert_peer_gets("sent");
}

static void test_shut_down_socket_is_epipe_without_a_signal(void **state)
{
	(void)state;
	connect_socket_and_its_shadow();
	assert_int_equal(vma_os.shutdown(fixture_fd(sock), SHUT_WR), 0);
	atomic_store(&sock->shut_wr, true);
	reset_cached_destinations();
	assert_int_equal(send_text("x"), -EPIPE);
}

/* ---- kicks ---- */

static uint64_t count_tx_kicks(void)
{
	return vma_stats_read_counter(&vma_ring_stats(fixture.ring_ctx->ring)->tx.tx_kicks);
}

/* The rule is about time, which a busy machine stretches: each of a row follows the one before as if there were none.
 * Returns how much later than that a send was, at most. */
static uint64_t send_datagrams_in_a_row(unsigned n)
{
	struct vma_thread *self = vma_thread_self();
	uint64_t latest = 0, begin;

	vma_inet_flush_sends(self);
	fixture_peer_receive();
	self->tx_last_tsc = 0;
	for (unsigned i = 0; i < n; i++) {
		begin = vma_tsc();
		if (i > 0)
			self->tx_last_tsc = begin;
		assert_int_equal(send_text("x"), 1);
		if (i > 0 && self->tx_last_tsc - begin > latest)
			latest = self->tx_last_tsc - begin;
	}
	return latest;
}

/*
 * One kick for the first, four before the row is believed in, and one for the five that wait. The internal thread, which
 * may be quicker than the call that releases them, is held. Rows in which this thread has lost its core do not count.
 */
static void test_sends_in_a_row_share_kicks_and_the_next_call_releases_them(void **state)
{
	enum { ROWS = 100000, ENOUGH = 30, CLOSE_NS = 4000 /* less than the gap that ends a row */ };
	unsigned rows = 0;

	(void)state;
	connect_socket_and_its_shadow();
	if (vma_engine_get_or_start()->latency)
		vma_test_skip("each send kicks");
	hold_internal_thread();
	for (unsigned i = 0; i < ROWS && rows < ENOUGH; i++) {
		const bool close = send_datagrams_in_a_row(10) < vma_tsc_of_nsec(CLOSE_NS);
		const uint64_t kicks = count_tx_kicks();
		const unsigned at_once = fixture_peer_receive();

		vma_inet_flush_sends(vma_thread_self());
		if (close) {
			assert_int_equal(at_once, 5);
			assert_int_equal(count_tx_kicks(), kicks + 1);
			rows++;
		}
		assert_int_equal(at_once + fixture_peer_receive(), 10);
	}
	release_internal_thread();
	assert_int_equal(rows, ENOUGH);
}

static void test_what_waits_leaves_by_itself_within_milliseconds(void **state)
{
	unsigned n = 0;

	(void)state;
	connect_socket_and_its_shadow();
	if (vma_engine_get_or_start()->latency)
		vma_test_skip("each send kicks");
	send_datagrams_in_a_row(10);
	fixture_wait_until((n += fixture_peer_receive()) == 10);
}

static void test_lone_datagram_leaves_at_once(void **state)
{
	(void)state;
	connect_socket_and_its_shadow();
	for (int i = 0; i < 20; i++) {
		usleep(100);
		assert_int_equal(send_text("alone"), 5);
		assert_peer_gets("alone");
	}
}

static void test_latency_profile_kicks_each(void **state)
{
	struct vma_engine *engine = vma_engine_get_or_start();
	bool before = engine->latency;

	(void)state;
	connect_socket_and_its_shadow();
	engine->latency = true;
	for (int i = 0; i < 20; i++) {
		assert_int_equal(send_text("now"), 3);
		assert_peer_gets("now");
	}
	engine->latency = before;
}

/* ---- no room ---- */

static unsigned send_until_would_block_and_count(void)
{
	unsigned n = 0;

	while (sendmsg_data_to(NULL, "x", 1, MSG_DONTWAIT) == 1)
		n++;
	return n;
}

static void test_full_queue_is_eagain_and_nothing_is_lost(void **state)
{
	unsigned n;

	(void)state;
	connect_socket_and_its_shadow();
	n = send_until_would_block_and_count();
	assert_true(n > 100);
	assert_int_equal(sendmsg_data_to(NULL, "x", 1, MSG_DONTWAIT), -EAGAIN);
	assert_true(vma_stats_read_counter(&sock->stats->tx_eagain) >= 1);
	vma_inet_flush_sends(vma_thread_self());
	assert_int_equal(fixture_peer_receive(), n);
	assert_int_equal(send_text("again"), 5);
	assert_peer_gets("again");
}

static void test_full_queue_drops_what_does_not_wait_where_that_is_requested(void **state)
{
	unsigned n;

	(void)state;
	connect_socket_and_its_shadow();
	n = send_until_would_block_and_count();
	vma_engine_get_or_start()->conf.given[VMA_CONF_AT_tx_nonblocked_eagains] = true;
	assert_int_equal(sendmsg_data_to(NULL, "xyz", 3, MSG_DONTWAIT), 3);
	assert_int_equal(sendmsg_data_to(NULL, "xyz", 3, MSG_DONTWAIT), 3);
	assert_int_equal(vma_stats_read_counter(&sock->stats->tx_drops), 2);
	assert_int_equal(fixture_peer_receive(), n);
	assert_int_equal(sendmsg_data_to(NULL, "again", 5, MSG_DONTWAIT), 5);
	assert_peer_gets("again");
	assert_int_equal(vma_stats_read_counter(&sock->stats->tx_drops), 2);
	vma_engine_get_or_start()->conf.given[VMA_CONF_AT_tx_nonblocked_eagains] = false;
}

static void test_lost_queue_pair_leaves_its_sends_to_the_kernel(void **state)
{
	struct vma_nic_qp *qp = vma_ring_qp(fixture.ring_ctx->ring);

	(void)state;
	connect_socket_and_its_shadow();
	send_until_would_block_and_count();
	atomic_store(&sock->sndtimeo_ns, 30000000);
	atomic_store(&qp->lost, true);
	assert_int_equal(send_text("waits"), 5);
	assert_kernel_received_text("waits");
	assert_int_equal(sendmsg_data_to(NULL, "does not", 8, MSG_DONTWAIT), 8);
	assert_kernel_received_text("does not");
	atomic_store(&qp->lost, false);
	fixture_peer_receive();
	assert_int_equal(send_text("back"), 4);
	assert_peer_gets("back");
}

static void *peer_receive_when_sender_waits_thread(void *unused)
{
	(void)unused;
	for (int ms = 0; ms < 10000 && vma_stats_read_counter(&sock->stats->tx_waits) == 0; ms++)
		usleep(1000);
	fixture_peer_receive();
	return NULL;
}

static void test_blocking_send_waits_for_room(void **state)
{
	pthread_t thread;

	(void)state;
	connect_socket_and_its_shadow();
	send_until_would_block_and_count();
	assert_int_equal(pthread_create(&thread, NULL, peer_receive_when_sender_waits_thread, NULL), 0);
	assert_int_equal(send_text("later"), 5);
	pthread_join(thread, NULL);
	fixture_peer_receive();
	assert_memory_equal(fixture.frame + 42, "later", 5);
	assert_int_equal(vma_stats_read_counter(&sock->stats->tx_waits), 1);
}

static void test_send_timeout_ends_with_eagain(void **state)
{
	uint64_t start = vma_now_ns();

	(void)state;
	connect_socket_and_its_shadow();
	send_until_would_block_and_count();
	atomic_store(&sock->sndtimeo_ns, 30000000);
	assert_int_equal(send_text("x"), -EAGAIN);
	assert_true(vma_now_ns() - start >= 30000000);
}

/* ---- rules ---- */

static void set_transport_rules_from_text(const char *text)
{
	vma_rules_destroy((struct vma_rules *)vma_engine_get_or_start()->rules);
	vma_engine_get_or_start()->rules = text != NULL ? rules_fixture_parse(text) : NULL;
}

static int teardown_rules(void **state)
{
	set_transport_rules_from_text(NULL);
	return teardown(state);
}

static void test_destination_of_a_rule_is_the_kernels_and_no_other(void **state)
{
	const struct sockaddr_in other = remote_addr_with_port(PORT - 1), to = remote_addr_with_port(PORT);

	(void)state;
	set_transport_rules_from_text("use vma udp_sender *:9000\nuse os udp_sender *:1-9000\n");
	reset_cached_destinations();
	sendmsg_data_to(&other, "x", 1, 0); /* the kernel's, whatever it thinks of 10.0.0.2 from 127.0.0.1 */
	assert_int_equal(count_tx_packets(), 0);
	assert_int_equal(fixture_peer_receive(), 0);
	assert_int_equal(atomic_load(&sock->file.rule_line), 2);
	assert_int_equal(sendmsg_data_to(&to, "y", 1, 0), 1);
	assert_peer_gets("y");
	/* A change of the path or of an option makes no other answer. */
	fake_net_change(bytes[5], 77);
	sendmsg_data_to(&other, "x", 1, 0);
	fixture_wait_until(atomic_load(&fake_net.gets) == 3);
	sendmsg_data_to(&other, "x", 1, 0);
	reset_cached_destinations();
	sendmsg_data_to(&other, "x", 1, 0);
	assert_int_equal(count_tx_packets(), 1);
	assert_int_equal(fixture_peer_receive(), 0);
}

static void test_destination_of_a_rule_is_not_asked_for_again_and_again(void **state)
{
	const struct sockaddr_in to = remote_addr_with_port(PORT);

	(void)state;
	set_transport_rules_from_text("use os udp_sender *:*\n");
	reset_cached_destinations();
	for (unsigned i = 0; i < 10; i++)
		sendmsg_data_to(&to, "x", 1, 0);
	assert_int_equal(count_tx_packets(), 0);
	assert_int_equal(atomic_load(&fake_net.gets), 1);
	assert_int_equal(atomic_load(&sock->dst_requested_tsc), 0);
}

static void test_destination_of_a_rule_is_the_kernels_also_if_another_has_its_slot(void **state)
{
	const struct sockaddr_in other = address_sharing_dst_cache_slot(0), to = remote_addr_with_port(PORT);

	(void)state;
	set_transport_rules_from_text("use os udp_sender 10.0.0.0/24:9000\n");
	reset_cached_destinations();
	fake_net.known = true;
	assert_int_equal(sendmsg_data_to(&other, "x", 1, 0), 1);
	assert_int_equal(count_tx_packets(), 1);
	sendmsg_data_to(&to, "y", 1, 0);
	assert_int_equal(count_tx_packets(), 1);
	assert_int_equal(fixture_peer_receive(), 0);
}

static void test_rule_of_destinations_is_heeded_with_control_messages_too(void **state)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
	struct sockaddr_in to = remote_addr_with_port(PORT);
	struct iovec iov = {.iov_base = "with", .iov_len = 4};
	struct msghdr msg = {.msg_name = &to,
	                     .msg_namelen = sizeof(to),
	                     .msg_iov = &iov,
	                     .msg_iovlen = 1,
	                     .msg_control = control,
	                     .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	(void)state;
	reset_cached_destinations();
	fake_net.known = true;
	*c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = IPPROTO_IP, .cmsg_type = IP_TTL};
	memcpy(CMSG_DATA(c), &(int){5}, sizeof(int));
	assert_int_equal(send_msg(&msg, 0), 4);
	assert_peer_gets("with");
	set_transport_rules_from_text("use os udp_sender *:9000\n");
	send_msg(&msg, 0);
	assert_int_equal(count_tx_packets(), 1);
	assert_int_equal(fixture_peer_receive(), 0);
}

static void test_peer_of_a_connected_socket_is_no_destination_of_such_a_rule(void **state)
{
	(void)state;
	set_transport_rules_from_text("use os udp_sender *:*\n");
	connect_socket_and_its_shadow();
	assert_int_equal(send_text("x"), 1);
	assert_peer_gets("x");
	assert_int_equal(atomic_load(&sock->file.rule_line), 0);
}

#define CASE_RULES(name) cmocka_unit_test_setup_teardown(name, setup, teardown_rules)
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

/* ---- a pace ---- */

enum { PACE = 1000000, PACE_FRAME = 1042 };

static uint8_t pace_bytes[PACE_FRAME - 42];

static ssize_t send_paced(int flags)
{
	return sendmsg_data_to(NULL, pace_bytes, sizeof(pace_bytes), flags);
}

/* The socket has sent before, and is paced from now on. */
static void connect_send_once_then_set_pacing_rate(void)
{
	connect_socket_and_its_shadow();
	assert_int_equal(send_text("first"), 5);
	assert_peer_gets("first");
	udp_set_pacing_rate(sock, PACE);
}

/* In so much time no more may have left, whenever it was that this thread ran: a millisecond's worth, and one frame. */
static void assert_within_pace(unsigned frames, uint64_t begun_ns)
{
	const uint64_t ns = vma_now_ns() - begun_ns + 1000000;

	assert_true((frames - 1) * (uint64_t)PACE_FRAME <= ns * PACE / 1000000000);
}

static void test_a_paced_socket_sends_no_faster_and_loses_nothing(void **state)
{
	uint64_t begun_ns;
	unsigned n;

	(void)state;
	connect_send_once_then_set_pacing_rate();
	begun_ns = vma_now_ns();
	for (n = 0; n < 40; n++)
		assert_int_equal(send_paced(0), sizeof(pace_bytes));
	assert_within_pace(n, begun_ns);
	assert_true(vma_now_ns() - begun_ns >= 38 * 1042000 - 1000000);
	assert_int_equal(fixture_peer_receive(), 40);
	assert_int_equal(count_tx_packets(), 41);
	assert_int_equal(count_packets_sent_by_os(), 0);
}

static void test_a_paced_send_that_does_not_wait_finds_no_room(void **state)
{
	uint64_t begun_ns = vma_now_ns();
	unsigned n = 0;
	ssize_t last;

	(void)state;
	connect_send_once_then_set_pacing_rate();
	while ((last = send_paced(MSG_DONTWAIT)) > 0)
		n++;
	assert_true(n >= 1);
	assert_within_pace(n, begun_ns);
	assert_int_equal(last, -EAGAIN);
	assert_true(vma_stats_read_counter(&sock->stats->tx_eagain) >= 1);
	usleep(3000);
	assert_int_equal(send_paced(MSG_DONTWAIT), sizeof(pace_bytes));
	assert_int_equal(fixture_peer_receive(), n + 1);
}

static void test_a_paced_send_waits_no_longer_than_its_time(void **state)
{
	ssize_t last = 0;

	(void)state;
	connect_send_once_then_set_pacing_rate();
	udp_set_pacing_rate(sock, 1000); /* a frame counts a second at most */
	atomic_store(&sock->sndtimeo_ns, 20000000);
	for (unsigned n = 0; n < 4 && last >= 0; n++)
		last = send_paced(0);
	assert_int_equal(last, -EAGAIN);
	atomic_store(&sock->sndtimeo_ns, UINT64_MAX);
}

static void *send_paced_thread(void *unused)
{
	(void)unused;
	for (unsigned n = 0; n < 4; n++)
		send_paced(0);
	return NULL;
}

static void test_a_paced_send_that_is_cancelled_gives_back_what_it_holds(void **state)
{
	uint32_t refs, ring_ctx_refs;
	pthread_t thread;
	void *how = NULL;

	(void)state;
	connect_send_once_then_set_pacing_rate();
	udp_set_pacing_rate(sock, 1000); /* a frame counts a second at most */
	refs = atomic_load(&sock->file.refs);
	ring_ctx_refs = atomic_load(&fixture.ring_ctx->refs);
	assert_int_equal(pthread_create(&thread, NULL, send_paced_thread, NULL), 0);
	fixture_wait_until(vma_stats_read_counter(&sock->stats->tx_waits) != 0);
	assert_int_equal(pthread_cancel(thread), 0);
	assert_int_equal(pthread_join(thread, &how), 0);
	assert_ptr_equal(how, PTHREAD_CANCELED);
	assert_int_equal(atomic_load(&sock->file.refs), refs);
	assert_int_equal(atomic_load(&fixture.ring_ctx->refs), ring_ctx_refs);
}

static void test_a_paced_socket_is_writable_when_it_may_send(void **state)
{
	struct vma_thread *self = vma_enter();
	struct fixture_attached attached;

	(void)state;
	fixture_attach_udp_flow(&attached, sock, fixture_local);
	assert_true(udp_poll(&sock->file) & EPOLLOUT);
	assert_false(udp_poll(&sock->file) & VMA_POLL_OWN_OUT);
	vma_leave(self);
	connect_send_once_then_set_pacing_rate();
	udp_set_pacing_rate(sock, 10000); /* a frame in a tenth of a second */
	while (send_paced(MSG_DONTWAIT) > 0)
		;
	self = vma_enter();
	assert_int_equal(udp_poll(&sock->file) & (EPOLLOUT | VMA_POLL_OWN_OUT), VMA_POLL_OWN_OUT);
	usleep(200000);
	assert_int_equal(udp_poll(&sock->file) & (EPOLLOUT | VMA_POLL_OWN_OUT), EPOLLOUT | VMA_POLL_OWN_OUT);
	vma_leave(self);
	fixture_detach_udp_flow(&attached);
}

static void test_without_its_pace_a_socket_sends_as_before(void **state)
{
	(void)state;
	connect_send_once_then_set_pacing_rate();
	udp_set_pacing_rate(sock, 1000);
	while (send_paced(MSG_DONTWAIT) > 0)
		;
	udp_set_pacing_rate(sock, 0);
	assert_false(udp_is_paced(sock));
	for (unsigned n = 0; n < 100; n++)
		assert_int_equal(send_paced(MSG_DONTWAIT), sizeof(pace_bytes));
}

/* What waits for a kick that it shares with the next sends would wait as long as the sender. */
static void test_a_paced_send_that_waits_has_what_is_queued_leave_first(void **state)
{
	struct vma_thread *self = vma_thread_self();

	(void)state;
	if (vma_engine_get_or_start()->latency)
		vma_test_skip("each send kicks");
	connect_socket_and_its_shadow();
	for (unsigned i = 0; i < 1000 && self->tx_ring == NULL; i++)
		send_datagrams_in_a_row(10);
	assert_non_null(self->tx_ring);
	udp_set_pacing_rate(sock, 1000);
	atomic_store(&sock->pace_next_ns, vma_now_ns() + 3600 * UINT64_C(1000000000));
	atomic_store(&sock->sndtimeo_ns, 20000000);
	assert_int_equal(send_paced(0), -EAGAIN);
	assert_null(self->tx_ring);
	atomic_store(&sock->sndtimeo_ns, UINT64_MAX);
}

/* It has the pace from its parent, and no rings yet. */
static void test_a_forked_child_takes_its_pace_off(void **state)
{
	(void)state;
	sock->pacing_rate = PACE;
	udp_pace_set_rate(sock, PACE);
	udp_pace_drop_scheduled_task_after_fork(sock);
	assert_null(atomic_load(&sock->ring_ctxs));
	assert_true(udp_is_paced(sock));
	udp_set_pacing_rate(sock, 0);
	assert_false(udp_is_paced(sock));
}

/* Who paces is the device, or nobody: never both. */
static void test_a_device_that_paces_is_left_to_it(void **state)
{
	struct vma_nic_info *info =
	        (struct vma_nic_info *)(uintptr_t)vma_nic_info(vma_ring_nic(fixture.ring_ctx->ring));

	(void)state;
	info->caps |= VMA_NIC_CAP_PACING;
	connect_socket_and_its_shadow();
	assert_int_equal(send_text("first"), 5);
	udp_set_pacing_rate(sock, 1000);
	assert_false(udp_is_paced(sock));
	for (unsigned n = 0; n < 10; n++)
		assert_int_equal(send_paced(MSG_DONTWAIT), sizeof(pace_bytes));
	udp_set_pacing_rate(sock, 0);
	info->caps &= ~(uint32_t)VMA_NIC_CAP_PACING;
}

static const struct CMUnitTest tests[] = {
        CASE(test_connected_datagram_leaves_as_a_frame),
        CASE(test_a_paced_socket_sends_no_faster_and_loses_nothing),
        CASE(test_a_paced_send_that_does_not_wait_finds_no_room),
        CASE(test_a_paced_send_waits_no_longer_than_its_time),
        CASE(test_a_paced_send_that_is_cancelled_gives_back_what_it_holds),
        CASE(test_a_paced_socket_is_writable_when_it_may_send),
        CASE(test_without_its_pace_a_socket_sends_as_before),
        CASE(test_a_device_that_paces_is_left_to_it),
        CASE(test_a_paced_send_that_waits_has_what_is_queued_leave_first),
        CASE(test_a_forked_child_takes_its_pace_off),
        CASE(test_every_length_up_to_the_mtu_leaves_whole),
        CASE(test_pieces_are_gathered),
        CASE(test_too_many_pieces_are_refused),
        CASE(test_bad_pointer_is_efault_and_nothing_leaves),
        CASE(test_longer_than_the_mtu_goes_through_the_shadow),
        CASE(test_ttl_and_tos_are_in_the_header_after_a_reset),
        CASE(test_fragmentable_datagrams_have_ids_of_their_own),
        CASE(test_route_is_asked_for_as_the_kernel_would),
        CASE(test_new_mac_is_used_from_the_next_datagram_on),
        CASE(test_neighbour_that_is_not_resolved_is_the_kernels),
        CASE(test_smaller_mtu_sends_the_longer_ones_through_the_shadow),
        CASE(test_stale_neighbour_is_probed_and_used),
        CASE(test_without_device_all_goes_through_the_shadow),
        CASE(test_first_unconnected_datagram_is_offloaded_already),
        CASE(test_second_destination_of_a_slot_is_offloaded_at_once),
        CASE(test_one_more_destination_of_a_slot_is_offloaded_once_its_path_is_known),
        CASE(test_wanted_destination_gets_the_slot_in_time),
        CASE_RULES(test_destination_of_a_rule_is_the_kernels_and_no_other),
        CASE_RULES(test_destination_of_a_rule_is_not_asked_for_again_and_again),
        CASE_RULES(test_destination_of_a_rule_is_the_kernels_also_if_another_has_its_slot),
        CASE_RULES(test_rule_of_destinations_is_heeded_with_control_messages_too),
        CASE_RULES(test_peer_of_a_connected_socket_is_no_destination_of_such_a_rule),
        CASE(test_connected_socket_sends_elsewhere_when_told),
        CASE(test_destinations_that_share_a_slot_are_all_offloaded),
        CASE(test_bad_addresses_get_the_kernels_answer),
        CASE(test_first_send_of_an_unbound_socket_binds_it),
        CASE(test_inherited_socket_is_taken_up_by_its_first_send),
        CASE(test_group_goes_out_with_its_own_ttl),
        CASE(test_group_is_looked_up_on_its_interface),
        CASE(test_group_with_members_here_goes_through_the_shadow),
        CASE(test_unserved_flags_and_control_messages_go_through_the_shadow),
        CASE(test_control_messages_are_in_the_header_and_in_the_lookup),
        CASE(test_datagram_in_parts_is_one_of_the_shadows),
        CASE(test_option_of_the_kernel_alone_sends_all_through_the_shadow),
        CASE(test_error_of_the_shadow_is_told_once),
        CASE(test_shut_down_socket_is_epipe_without_a_signal),
        CASE(test_sends_in_a_row_share_kicks_and_the_next_call_releases_them),
        CASE(test_what_waits_leaves_by_itself_within_milliseconds),
        CASE(test_lone_datagram_leaves_at_once),
        CASE(test_latency_profile_kicks_each),
        CASE(test_full_queue_is_eagain_and_nothing_is_lost),
        CASE(test_lost_queue_pair_leaves_its_sends_to_the_kernel),
        CASE(test_full_queue_drops_what_does_not_wait_where_that_is_requested),
        CASE(test_blocking_send_waits_for_room),
        CASE(test_send_timeout_ends_with_eagain),
};

FIXTURE_MAIN(tests)
