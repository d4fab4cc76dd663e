/* What came here and is given to the kernel: in order, in one piece, and nothing that the kernel would not have taken.
 * */
#include <net/if.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <vma/nic_reinject.h>

#include "fixture.h"

enum { PORT = 21000, PEER_PORT = 22000, PAYLOAD = 58 };

static bool is_in_own_netns; /* in a network namespace of its own */

struct end {
	struct vma_bufarena *arena;
	struct vma_bufpool *pool;
	struct vma_reinject_addrs addrs;
	int raw, sock;
};

static void loopback_up(void)
{
	struct ifreq req = {.ifr_name = "lo"};
	const int fd = socket(AF_INET, SOCK_DGRAM, 0);

	assert_int_equal(ioctl(fd, SIOCGIFFLAGS, &req), 0);
	req.ifr_flags |= IFF_UP;
	if (ioctl(fd, SIOCSIFFLAGS, &req) < 0)
		vma_test_skip("the loopback interface cannot be set up");
	close(fd);
}

static int setup(void **state)
{
	const struct sockaddr_in name = {
	        .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	const struct timeval soon = {.tv_sec = 3};
	struct end *end = calloc(1, sizeof(*end));

	*state = end;
	end->sock = -1;
	end->arena = fixture_arena();
	assert_int_equal(
	        vma_bufpool_create(&(struct vma_bufpool_attr){.arena = end->arena, .name = "test", .max_bufs = 64},
	                           &end->pool),
	        0);
	assert_int_equal(vma_reinject_open_netlink_socket(&end->addrs), 0);
	end->raw = vma_reinject_open_raw_socket(false);
	if (end->raw < 0)
		return 0;
	loopback_up();
	end->sock = socket(AF_INET, SOCK_DGRAM, 0);
	assert_int_equal(setsockopt(end->sock, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon)), 0);
	assert_int_equal(bind(end->sock, (const struct sockaddr *)&name, sizeof(name)), 0);
	return 0;
}

static int teardown(void **state)
{
	struct end *end = *state;

	close(end->addrs.fd);
	if (end->raw >= 0)
		close(end->raw);
	if (end->sock >= 0)
		close(end->sock);
	vma_bufpool_retire(end->pool, NULL, NULL);
	vma_bufpool_flush_thread(end->arena);
	vma_bufarena_destroy(end->arena);
	free(end);
	return 0;
}

static struct end *reinject_end_or_skip_without_net_raw(void **state)
{
	struct end *end = *state;

	if (end->raw < 0)
		vma_test_skip("no CAP_NET_RAW");
	return end;
}

/* ---- packets ---- */

static void set_frame_dest_loopback_no_checksum(uint8_t *frame)
{
	const uint32_t dst = htonl(INADDR_LOOPBACK);

	memcpy(frame + 30, &dst, 4);
	frame_put_be16(frame + 40, 0); /* the sender has computed no checksum */
}

static struct vma_buf *make_frame_buf(struct end *end, const uint8_t *bytes, size_t len)
{
	struct vma_buf *buf;

	assert_int_equal(vma_bufpool_get(end->pool, &buf, 1), 1);
	buf->data_off = 64;
	buf->len = (uint16_t)len;
	buf->next = NULL;
	memcpy(vma_buf_data(end->arena, buf), bytes, len);
	return buf;
}

static int make_buf_and_reinject_datagram(struct end *end, const uint8_t *bytes, size_t len)
{
	struct vma_buf *buf = make_frame_buf(end, bytes, len);
	const int rc = vma_reinject_frame_to_kernel(end->raw, &end->addrs, end->arena, buf);

	vma_buf_put(end->arena, buf);
	return rc;
}

static void build_udp_frame_to_loopback(uint8_t *frame, uint32_t number)
{
	static const uint8_t mac[6] = {2};
	const struct frame_spec spec = {.from = 0,
	                                .proto = IPPROTO_UDP,
	                                .src_port = PEER_PORT,
	                                .dst_port = PORT,
	                                .len = FRAME_UDP_HEADERS + PAYLOAD,
	                                .number = number,
	                                .src_mac = mac,
	                                .dst_mac = mac};

	frame_build(frame, &spec);
	set_frame_dest_loopback_no_checksum(frame);
}

static void assert_kernel_socket_receives_datagram(const struct end *end, uint32_t number)
{
	uint8_t expected[FRAME_UDP_HEADERS + PAYLOAD], got[2048];
	struct sockaddr_in from;
	socklen_t len = sizeof(from);

	build_udp_frame_to_loopback(expected, number);
	assert_int_equal(recvfrom(end->sock, got, sizeof(got), 0, (struct sockaddr *)&from, &len), PAYLOAD);
	assert_memory_equal(got, expected + FRAME_UDP_HEADERS, PAYLOAD);
	assert_int_equal(from.sin_addr.s_addr, test_ip(0));
	assert_int_equal(from.sin_port, htons(PEER_PORT));
}

static void assert_kernel_has_nothing(const struct end *end)
{
	uint8_t byte;

	assert_true(recv(end->sock, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
}

/* ---- cases ---- */

static void test_the_kernel_gets_packets_in_order_and_from_their_sender(void **state)
{
	struct end *end = reinject_end_or_skip_without_net_raw(state);
	uint8_t frame[FRAME_UDP_HEADERS + PAYLOAD];

	for (uint32_t i = 0; i < 64; i++) {
		build_udp_frame_to_loopback(frame, i);
		assert_int_equal(make_buf_and_reinject_datagram(end, frame, sizeof(frame)), 0);
	}
	for (uint32_t i = 0; i < 64; i++)
		assert_kernel_socket_receives_datagram(end, i);
}

static void test_padding_and_tag_stay_behind(void **state)
{
	struct end *end = reinject_end_or_skip_without_net_raw(state);
	uint8_t frame[4 + FRAME_UDP_HEADERS + PAYLOAD + 10] = {0};

	build_udp_frame_to_loopback(frame, 7);
	assert_int_equal(make_buf_and_reinject_datagram(end, frame, FRAME_UDP_HEADERS + PAYLOAD + 10), 0);
	assert_kernel_socket_receives_datagram(end, 7);
	memmove(frame + 16, frame + 12, FRAME_UDP_HEADERS + PAYLOAD - 12);
	frame_put_be16(frame + 12, 0x8100);
	frame_put_be16(frame + 14, 5);
	assert_int_equal(make_buf_and_reinject_datagram(end, frame, 4 + FRAME_UDP_HEADERS + PAYLOAD), 0);
	assert_kernel_socket_receives_datagram(end, 7);
}

static void test_a_packet_in_several_buffers_is_one(void **state)
{
	struct end *end = reinject_end_or_skip_without_net_raw(state);
	uint8_t frame[FRAME_UDP_HEADERS + PAYLOAD];
	struct vma_buf *first, *second, *third;

	build_udp_frame_to_loopback(frame, 3);
	first = make_frame_buf(end, frame, 50);
	second = make_frame_buf(end, frame + 50, 21);
	third = make_frame_buf(end, frame + 71, sizeof(frame) - 71);
	first->next = second;
	second->next = third;
	assert_int_equal(vma_reinject_frame_to_kernel(end->raw, &end->addrs, end->arena, first), 0);
	assert_kernel_socket_receives_datagram(end, 3);
	second->next = NULL; /* less than the header says */
	assert_int_equal(vma_reinject_frame_to_kernel(end->raw, &end->addrs, end->arena, first), -EINVAL);
	assert_kernel_has_nothing(end);
	vma_buf_put(end->arena, first);
	vma_buf_put(end->arena, second);
	vma_buf_put(end->arena, third);
}

/* The first 24 bytes behind the IP header, and the rest. */
static void test_fragments_become_a_datagram(void **state)
{
	struct end *end = reinject_end_or_skip_without_net_raw(state);
	uint8_t frame[FRAME_UDP_HEADERS + PAYLOAD], piece[sizeof(frame)];

	build_udp_frame_to_loopback(frame, 9);
	frame_put_be16(frame + 18, 77);
	memcpy(piece, frame, 34 + 24);
	frame_put_be16(piece + 16, 20 + 24);
	frame_put_be16(piece + 20, 0x2000);
	assert_int_equal(make_buf_and_reinject_datagram(end, piece, 34 + 24), 0);
	assert_kernel_has_nothing(end);
	memcpy(piece, frame, 34);
	memcpy(piece + 34, frame + 34 + 24, sizeof(frame) - 34 - 24);
	frame_put_be16(piece + 16, (uint32_t)(sizeof(frame) - 14 - 24));
	frame_put_be16(piece + 20, 3);
	assert_int_equal(make_buf_and_reinject_datagram(end, piece, sizeof(frame) - 24), 0);
	assert_kernel_socket_receives_datagram(end, 9);
}

static void test_what_the_kernel_would_take_for_its_own_is_refused(void **state)
{
	struct end *end = reinject_end_or_skip_without_net_raw(state);
	static const uint8_t sources[][4] = {
	        {0, 0, 0, 0}, {127, 0, 0, 2}, {224, 0, 0, 1}, {255, 255, 255, 255}, {127, 0, 0, 1}};
	uint8_t frame[FRAME_UDP_HEADERS + PAYLOAD];

	for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
		build_udp_frame_to_loopback(frame, 1);
		memcpy(frame + 26, sources[i], 4);
		assert_int_equal(make_buf_and_reinject_datagram(end, frame, sizeof(frame)), -EADDRNOTAVAIL);
	}
	build_udp_frame_to_loopback(frame, 1);
	memcpy(frame + 30, sources[2], 4);
	assert_int_equal(make_buf_and_reinject_datagram(end, frame, sizeof(frame)), -EADDRNOTAVAIL);
	assert_kernel_has_nothing(end);
}

/* An address of this host beside 127.0.0.1, its broadcast address, and networks of others. */
static void add_local_broadcast_and_remote_routes(void)
{
	if (!is_in_own_netns ||
	    system("ip link show others >/dev/null 2>&1 || ip link add others type veth peer name others_end") != 0 ||
	    system("ip addr replace 10.99.0.1/24 brd 10.99.0.255 dev others && ip link set others up && "
	           "ip route replace 198.51.100.0/24 dev others") != 0)
		vma_test_skip("no interface can be made");
}

static int reinject_from_to(struct end *end, const uint8_t *from, const uint8_t *to)
{
	uint8_t frame[FRAME_UDP_HEADERS + PAYLOAD];

	build_udp_frame_to_loopback(frame, 1);
	memcpy(frame + 26, from, 4);
	memcpy(frame + 30, to, 4);
	return make_buf_and_reinject_datagram(end, frame, sizeof(frame));
}

static void test_martians_are_refused_as_the_kernel_does(void **state)
{
	static const uint8_t here[4] = {127, 0, 0, 1}, other[4] = {10, 99, 0, 7}, own[4] = {10, 99, 0, 1},
	                     broadcast[4] = {10, 99, 0, 255}, elsewhere[4] = {198, 51, 100, 1},
	                     nowhere[4] = {203, 0, 113, 1};
	struct end *end = reinject_end_or_skip_without_net_raw(state);
	uint8_t byte[PAYLOAD];

	add_local_broadcast_and_remote_routes();
	assert_int_equal(reinject_from_to(end, own, here), -EADDRNOTAVAIL);
	assert_int_equal(reinject_from_to(end, broadcast, here), -EADDRNOTAVAIL);
	assert_int_equal(reinject_from_to(end, other, elsewhere), -EADDRNOTAVAIL);
	assert_int_equal(reinject_from_to(end, other, nowhere), -EADDRNOTAVAIL);
	assert_int_equal(reinject_from_to(end, other, broadcast), -EADDRNOTAVAIL);
	assert_kernel_has_nothing(end);
	assert_int_equal(reinject_from_to(end, other, here), 0);
	assert_int_equal(reinject_from_to(end, nowhere, here), 0); /* without a route back */
	assert_int_equal(recv(end->sock, byte, sizeof(byte), 0), PAYLOAD);
	assert_int_equal(recv(end->sock, byte, sizeof(byte), 0), PAYLOAD);
}

/* More sources than are remembered, twice each. */
static void test_many_sources_are_each_judged_for_themselves(void **state)
{
	static const uint8_t here[4] = {127, 0, 0, 1};
	struct end *end = reinject_end_or_skip_without_net_raw(state);
	uint8_t byte[PAYLOAD];

	add_local_broadcast_and_remote_routes();
	for (unsigned i = 0; i < 2 * 250; i++) {
		const uint8_t from[4] = {10, 99, 0, (uint8_t)(1 + i / 2)};

		assert_int_equal(reinject_from_to(end, from, here), from[3] == 1 ? -EADDRNOTAVAIL : 0);
		if (from[3] != 1)
			assert_int_equal(recv(end->sock, byte, sizeof(byte), 0), PAYLOAD);
	}
}

static void test_what_is_no_packet_is_refused(void **state)
{
	struct end *end = reinject_end_or_skip_without_net_raw(state);
	uint8_t frame[FRAME_UDP_HEADERS + PAYLOAD];

	build_udp_frame_to_loopback(frame, 1);
	for (size_t len = 0; len < sizeof(frame); len++)
		assert_int_equal(make_buf_and_reinject_datagram(end, frame, len), -EINVAL);
	frame[14] = 0x65;
	assert_int_equal(make_buf_and_reinject_datagram(end, frame, sizeof(frame)), -EINVAL);
	build_udp_frame_to_loopback(frame, 1);
	frame_put_be16(frame + 12, 0x86dd);
	assert_int_equal(make_buf_and_reinject_datagram(end, frame, sizeof(frame)), -EINVAL);
	build_udp_frame_to_loopback(frame, 1);
	frame_put_be16(frame + 16, 19);
	assert_int_equal(make_buf_and_reinject_datagram(end, frame, sizeof(frame)), -EINVAL);
	assert_int_equal(vma_reinject_ip_packet_to_kernel(end->raw, frame + 14, 19), -EINVAL);
	assert_kernel_has_nothing(end);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
static const struct CMUnitTest tests[] = {
        CASE(test_the_kernel_gets_packets_in_order_and_from_their_sender),
        CASE(test_padding_and_tag_stay_behind),
        CASE(test_a_packet_in_several_buffers_is_one),
        CASE(test_fragments_become_a_datagram),
        CASE(test_what_the_kernel_would_take_for_its_own_is_refused),
        CASE(test_martians_are_refused_as_the_kernel_does),
        CASE(test_many_sources_are_each_judged_for_themselves),
        CASE(test_what_is_no_packet_is_refused),
};

/* Alone, too: the addresses are nobody else's. */
static int setup_enter_own_netns(void **state)
{
	(void)state;
	is_in_own_netns = unshare(CLONE_NEWNET) == 0;
	return 0;
}

VMA_TEST_MAIN_WITH(tests, setup_enter_own_netns, NULL)
