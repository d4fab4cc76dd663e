/* Control messages: the kernel's order, and the kernel's way of cutting them short, told by a kernel socket itself. */
#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <vma/test.h>

#include "../cmsg.h"

static const struct udp_datagram datagram = {
        .src = 1, .src_port_be = 2, .dst = 3, .dst_port_be = 4, .ttl = 64, .tos = 0x10, .ifindex = 5, .drops = 6};
static const uint32_t all_rx_opts = UDP_RX_OPT_TIMESTAMP | UDP_RX_OPT_TIMESTAMPING | UDP_RX_OPT_PKTINFO |
                                    UDP_RX_OPT_RECVTTL | UDP_RX_OPT_RECVTOS | UDP_RX_OPT_ORIGDST | UDP_RX_OPT_RXQ_OVFL;

static struct udp_cmsgs fill_cmsgs_for_rx_opts(uint32_t rx_opts, size_t capacity)
{
	struct udp_cmsgs cmsgs = {.capacity = capacity};

	udp_cmsg_fill(&cmsgs, rx_opts, &datagram, 1500000000123456789, 7);
	return cmsgs;
}

/* Level and type of each message, in order. */
static unsigned list_cmsgs(void *control, size_t len, int (*out)[2], unsigned max)
{
	struct msghdr msg = {.msg_control = control, .msg_controllen = len};
	unsigned n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c != NULL && n < max; c = CMSG_NXTHDR(&msg, c), n++) {
		out[n][0] = c->cmsg_level;
		out[n][1] = c->cmsg_type;
	}
	return n;
}

static void test_no_request_gives_no_message(void **state)
{
	struct udp_cmsgs cmsgs = fill_cmsgs_for_rx_opts(0, UDP_CMSG_BYTES_MAX);

	(void)state;
	assert_int_equal(cmsgs.used, 0);
	assert_false(cmsgs.truncated);
}

static void test_everything_at_once_fits(void **state)
{
	struct udp_cmsgs cmsgs = fill_cmsgs_for_rx_opts(all_rx_opts, UDP_CMSG_BYTES_MAX);
	int seen[16][2];

	(void)state;
	assert_false(cmsgs.truncated);
	assert_int_equal(list_cmsgs(cmsgs.bytes, cmsgs.used, seen, 16), 7);
}

static void test_stamp_in_nanoseconds_overrules_that_in_microseconds(void **state)
{
	struct udp_cmsgs cmsgs =
	        fill_cmsgs_for_rx_opts(UDP_RX_OPT_TIMESTAMP | UDP_RX_OPT_TIMESTAMPNS, UDP_CMSG_BYTES_MAX);
	struct timespec at;
	int seen[4][2];

	(void)state;
	assert_int_equal(list_cmsgs(cmsgs.bytes, cmsgs.used, seen, 4), 1);
	assert_int_equal(seen[0][1], SCM_TIMESTAMPNS);
	memcpy(&at, cmsgs.bytes + CMSG_LEN(0), sizeof(at));
	assert_int_equal(at.tv_sec, 1500000000);
	assert_int_equal(at.tv_nsec, 123456789);
}

static void test_new_names_give_new_types(void **state)
{
	struct udp_cmsgs cmsgs = fill_cmsgs_for_rx_opts(
	        UDP_RX_OPT_TIMESTAMP | UDP_RX_OPT_TIMESTAMPING | UDP_RX_OPT_STAMP_NEW, UDP_CMSG_BYTES_MAX);
	int seen[4][2];

	(void)state;
	assert_int_equal(list_cmsgs(cmsgs.bytes, cmsgs.used, seen, 4), 2);
	assert_int_equal(seen[0][1], 63);
	assert_int_equal(seen[1][1], 65);
}

static void test_drops_are_told_only_when_there_were_any(void **state)
{
	struct udp_cmsgs cmsgs = {.capacity = UDP_CMSG_BYTES_MAX};
	struct udp_datagram calm = datagram;

	(void)state;
	calm.drops = 0;
	udp_cmsg_fill(&cmsgs, UDP_RX_OPT_RXQ_OVFL, &calm, 0, 0);
	assert_int_equal(cmsgs.used, 0);
}

/* ---- stamps of the hardware ---- */

static struct udp_cmsgs cmsgs_filled_for_packet(uint32_t rx_opts, const struct vma_buf *packet)
{
	struct udp_cmsgs cmsgs = {.capacity = UDP_CMSG_BYTES_MAX};
	struct udp_datagram stamped = datagram;

	stamped.packet = (struct vma_buf *)packet;
	udp_cmsg_fill(&cmsgs, rx_opts, &stamped, 1500000000123456789, 7);
	return cmsgs;
}

static const struct vma_buf packet_with_hw_timestamp = {
        .flags = VMA_BUF_RX_HW_TIMESTAMP, .timestamp_ns = 1600000000987654321, .packet_len = 92};
static const struct vma_buf packet_without_hw_timestamp = {.packet_len = 92};

static void test_the_cards_stamp_is_the_third_and_stands_alone_if_nothing_else_is_wanted(void **state)
{
	struct udp_cmsgs cmsgs = cmsgs_filled_for_packet(UDP_RX_OPT_HW_STAMP, &packet_with_hw_timestamp);
	struct timespec all[3];
	int seen[4][2];

	(void)state;
	assert_int_equal(list_cmsgs(cmsgs.bytes, cmsgs.used, seen, 4), 1);
	assert_int_equal(seen[0][1], SO_TIMESTAMPING);
	memcpy(all, cmsgs.bytes + CMSG_LEN(0), sizeof(all));
	assert_int_equal(all[0].tv_sec + all[0].tv_nsec + all[1].tv_sec + all[1].tv_nsec, 0);
	assert_int_equal(all[2].tv_sec, 1600000000);
	assert_int_equal(all[2].tv_nsec, 987654321);
	cmsgs = cmsgs_filled_for_packet(UDP_RX_OPT_HW_STAMP | UDP_RX_OPT_TIMESTAMPING, &packet_with_hw_timestamp);
	memcpy(all, cmsgs.bytes + CMSG_LEN(0), sizeof(all));
	assert_int_equal(all[0].tv_sec, 1500000000);
	assert_int_equal(all[2].tv_sec, 1600000000);
	cmsgs = cmsgs_filled_for_packet(UDP_RX_OPT_TIMESTAMPING, &packet_with_hw_timestamp); /* not asked for */
	memcpy(all, cmsgs.bytes + CMSG_LEN(0), sizeof(all));
	assert_int_equal(all[2].tv_sec + all[2].tv_nsec, 0);
}

static void test_without_a_stamp_of_the_card_there_is_no_empty_message(void **state)
{
	(void)state;
	assert_int_equal(
	        cmsgs_filled_for_packet(UDP_RX_OPT_HW_STAMP | UDP_RX_OPT_STAMP_PKTINFO, &packet_without_hw_timestamp)
	                .used,
	        0);
	assert_int_equal(cmsgs_filled_for_packet(UDP_RX_OPT_HW_STAMP, NULL).used, 0);
	assert_int_equal(
	        cmsgs_filled_for_packet(UDP_RX_OPT_HW_STAMP | UDP_RX_OPT_TIMESTAMPING, &packet_without_hw_timestamp)
	                .used,
	        CMSG_SPACE(3 * sizeof(struct timespec)));
}

static void test_beside_the_cards_stamp_interface_and_length_are_told_if_wanted(void **state)
{
	struct udp_cmsgs cmsgs =
	        cmsgs_filled_for_packet(UDP_RX_OPT_HW_STAMP | UDP_RX_OPT_STAMP_PKTINFO, &packet_with_hw_timestamp);
	uint32_t about[4];
	int seen[4][2];

	(void)state;
	assert_int_equal(list_cmsgs(cmsgs.bytes, cmsgs.used, seen, 4), 2);
	assert_int_equal(seen[0][1], 58); /* SCM_TIMESTAMPING_PKTINFO */
	assert_int_equal(seen[1][1], SO_TIMESTAMPING);
	memcpy(about, cmsgs.bytes + CMSG_LEN(0), sizeof(about));
	assert_int_equal(about[0], datagram.ifindex);
	assert_int_equal(about[1], 92);
	cmsgs = cmsgs_filled_for_packet(all_rx_opts | UDP_RX_OPT_HW_STAMP | UDP_RX_OPT_STAMP_PKTINFO |
	                                        UDP_RX_OPT_PKTINFO6,
	                                &packet_with_hw_timestamp);
	assert_false(cmsgs.truncated);
}

/* ---- the kernel as judge ---- */

struct heard {
	uint8_t control[UDP_CMSG_BYTES_MAX];
	size_t len;
	int flags;
};

static int open_kernel_udp_socket_with_rx_cmsgs(struct sockaddr_in *addr)
{
	const int on = 1, stamping = 0x18; /* SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE */
	socklen_t len = sizeof(*addr);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (fd < 0)
		return -1;
	*addr = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	assert_int_equal(bind(fd, (struct sockaddr *)addr, sizeof(*addr)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)addr, &len), 0);
	setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &stamping, sizeof(stamping));
	setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof(on));
	setsockopt(fd, IPPROTO_IP, IP_RECVTTL, &on, sizeof(on));
	setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &on, sizeof(on));
	setsockopt(fd, IPPROTO_IP, IP_RECVORIGDSTADDR, &on, sizeof(on));
	return fd;
}

static bool send_to_self_and_receive_cmsgs(int fd, const struct sockaddr_in *addr, size_t capacity, struct heard *heard)
{
	struct msghdr msg = {.msg_control = heard->control, .msg_controllen = capacity};

	if (sendto(fd, "x", 1, 0, (const struct sockaddr *)addr, sizeof(*addr)) != 1)
		return false;
	if (recvmsg(fd, &msg, MSG_DONTWAIT) < 0)
		return false;
	heard->len = msg.msg_controllen;
	heard->flags = msg.msg_flags;
	return true;
}

/* Length, level and type of every message must agree, the last and cut one included. */
static void assert_cmsg_headers_match_kernel(const struct heard *kernel, const struct udp_cmsgs *ours)
{
	assert_int_equal(ours->used, kernel->len);
	assert_int_equal(ours->truncated, (kernel->flags & MSG_CTRUNC) != 0);
	for (size_t at = 0; at + sizeof(struct cmsghdr) <= ours->used;) {
		struct cmsghdr a, b;

		memcpy(&a, kernel->control + at, sizeof(a));
		memcpy(&b, ours->bytes + at, sizeof(b));
		assert_int_equal(b.cmsg_len, a.cmsg_len);
		assert_int_equal(b.cmsg_level, a.cmsg_level);
		assert_int_equal(b.cmsg_type, a.cmsg_type);
		at += CMSG_ALIGN(a.cmsg_len);
	}
}

static void test_order_and_cuts_are_the_kernels_at_every_room(void **state)
{
	const uint32_t rx_opts = all_rx_opts & ~(uint32_t)UDP_RX_OPT_RXQ_OVFL;
	struct sockaddr_in addr;
	struct heard heard;
	int fd = open_kernel_udp_socket_with_rx_cmsgs(&addr);

	(void)state;
	if (fd < 0 || !send_to_self_and_receive_cmsgs(fd, &addr, UDP_CMSG_BYTES_MAX, &heard)) {
		if (fd >= 0)
			close(fd);
		vma_test_skip("there is no loopback here");
	}
	for (size_t capacity = 0; capacity <= UDP_CMSG_BYTES_MAX; capacity++) {
		struct udp_cmsgs ours = fill_cmsgs_for_rx_opts(rx_opts, capacity);

		assert_true(send_to_self_and_receive_cmsgs(fd, &addr, capacity, &heard));
		assert_cmsg_headers_match_kernel(&heard, &ours);
	}
	close(fd);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_request_gives_no_message),
        cmocka_unit_test(test_everything_at_once_fits),
        cmocka_unit_test(test_stamp_in_nanoseconds_overrules_that_in_microseconds),
        cmocka_unit_test(test_new_names_give_new_types),
        cmocka_unit_test(test_the_cards_stamp_is_the_third_and_stands_alone_if_nothing_else_is_wanted),
        cmocka_unit_test(test_without_a_stamp_of_the_card_there_is_no_empty_message),
        cmocka_unit_test(test_beside_the_cards_stamp_interface_and_length_are_told_if_wanted),
        cmocka_unit_test(test_drops_are_told_only_when_there_were_any),
        cmocka_unit_test(test_order_and_cuts_are_the_kernels_at_every_room),
};

VMA_TEST_MAIN(tests)
