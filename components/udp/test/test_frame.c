/* Frames made from a destination, against datagrams computed by hand and the slow checksum. */
#include <arpa/inet.h>

#include <vma/test.h>

#include "../frame.h"

enum { HEADERS = 42, PAYLOAD_MAX = 1472 };

static uint16_t flags; /* for the NIC; none, where a test does not say otherwise */

/* RFC 1071, byte by byte; 0 for data that holds its right checksum. */
static uint16_t slow_checksum(const uint8_t *p, size_t len, uint32_t sum)
{
	for (size_t i = 0; i < len; i++)
		sum += i % 2 ? p[i] : (uint32_t)p[i] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

/* 10.0.0.1:1000 to 10.0.0.2:2000, as dst.c prepares it. */
static struct udp_dst make_udp_dst_with_vlan(unsigned vlan)
{
	const struct vma_pkt_udp_attr attr = {.src_mac = {2, 0, 0, 0, 0, 1},
	                                      .dst_mac = {2, 0, 0, 0, 0, 2},
	                                      .vlan = (uint16_t)vlan,
	                                      .src_ip = {10, 0, 0, 1},
	                                      .dst_ip = {10, 0, 0, 2},
	                                      .src_port_be = htons(1000),
	                                      .dst_port_be = htons(2000),
	                                      .ttl = 64};
	struct udp_dst dst = {.df = true, .nic_sums_from = UINT32_MAX};
	struct vma_pkt_udp pkt;

	vma_pkt_udp_init(&pkt, &attr);
	memcpy(dst.bytes, pkt.bytes, sizeof(dst.bytes));
	dst.headers_len = (uint8_t)pkt.len;
	dst.ip_off = (uint8_t)pkt.ip_off;
	dst.ip_sum = pkt.ip_sum;
	dst.pseudo_sum = pkt.udp_sum;
	dst.udp_sum = vma_csum_fold((uint64_t)pkt.udp_sum + attr.src_port_be + attr.dst_port_be);
	return dst;
}

static uint16_t recompute_udp_checksum_of_frame(const uint8_t *frame, uint32_t ip_off, uint32_t udp_len)
{
	const uint8_t *ip = frame + ip_off;
	uint32_t sum = IPPROTO_UDP + udp_len;

	for (int i = 12; i < 20; i += 2)
		sum += (uint32_t)ip[i] << 8 | ip[i + 1];
	return slow_checksum(ip + 20, udp_len, sum);
}

/* "abc": worked out on paper. */
static void test_frame_equals_the_one_computed_by_hand(void **state)
{
	static const uint8_t expected[] = {
	        2,    0,    0,    0,    0, 2,  2,    0,    0,   0,   0,    1,    0x08, 0x00, /* Ethernet */
	        0x45, 0,    0,    31,   0, 0,  0x40, 0,    64,  17,  0x26, 0xcc, 10,   0,
	        0,    1,    10,   0,    0, 2,                             /* IPv4 */
	        0x03, 0xe8, 0x07, 0xd0, 0, 11, 0x1b, 0xbb, 'a', 'b', 'c', /* UDP */
	};
	struct udp_dst dst = make_udp_dst_with_vlan(0);
	uint8_t frame[64];

	(void)state;
	memcpy(frame + HEADERS, "abc", 3);
	assert_int_equal(udp_frame_write_headers(&dst, frame, 3, 0, &flags), sizeof(expected));
	assert_memory_equal(frame, expected, sizeof(expected));
}

static void test_checksums_are_right_at_every_length(void **state)
{
	static uint8_t frame[HEADERS + PAYLOAD_MAX + 1];
	struct udp_dst dst = make_udp_dst_with_vlan(0);
	uint32_t seed = 1;

	(void)state;
	for (uint32_t len = 0; len <= PAYLOAD_MAX; len++) {
		for (uint32_t i = 0; i < len; i++)
			frame[HEADERS + i] = (uint8_t)((seed = seed * 1664525 + 1013904223) >> 24);
		frame[HEADERS + len] = 0x5a; /* beyond: neither summed nor changed */
		assert_int_equal(udp_frame_write_headers(&dst, frame, len, 0, &flags), HEADERS + len);
		assert_int_equal(slow_checksum(frame + 14, 20, 0), 0);
		assert_int_equal(recompute_udp_checksum_of_frame(frame, 14, 8 + len), 0);
		assert_int_equal(frame[16] << 8 | frame[17], 28 + len);
		assert_int_equal(frame[38] << 8 | frame[39], 8 + len);
		assert_int_equal(frame[HEADERS + len], 0x5a);
	}
	assert_int_equal(flags, 0);
}

/* RFC 768's pseudo header, and nothing of the datagram, which the NIC adds. */
static void test_checksum_is_left_to_a_nic_that_finishes_it(void **state)
{
	static uint8_t frame[HEADERS + PAYLOAD_MAX];
	struct udp_dst dst = make_udp_dst_with_vlan(0);

	(void)state;
	dst.nic_sums_from = 100;
	memset(frame + HEADERS, 0xa5, 100);
	udp_frame_write_headers(&dst, frame, 99, 0, &flags);
	assert_int_equal(flags, 0);
	assert_int_equal(recompute_udp_checksum_of_frame(frame, 14, 107), 0);
	udp_frame_write_headers(&dst, frame, 100, 0, &flags);
	assert_int_equal(flags, VMA_NIC_SEG_CSUM);
	assert_int_equal((uint16_t) ~(frame[40] << 8 | frame[41]), slow_checksum(frame + 26, 8, IPPROTO_UDP + 108));
	flags = 0;
}

/* The payload that makes the sum 0xffff, whose complement is 0, which would mean "no checksum". */
static void test_zero_checksum_is_sent_as_all_ones(void **state)
{
	struct udp_dst dst = make_udp_dst_with_vlan(0);
	uint8_t frame[HEADERS + 22];
	uint16_t field;

	(void)state;
	memset(frame + HEADERS, 0, 2);
	udp_frame_write_headers(&dst, frame, 2, 0, &flags);
	memcpy(&field, frame + 40, 2);
	assert_true(field != 0 && field != 0xffff);
	memcpy(frame + HEADERS, &field, 2); /* the complement of the rest */
	udp_frame_write_headers(&dst, frame, 2, 0, &flags);
	assert_int_equal(frame[40] << 8 | frame[41], 0xffff);
	assert_int_equal(recompute_udp_checksum_of_frame(frame, 14, 10), 0);
}

static void test_tagged_frame_keeps_its_tag(void **state)
{
	struct udp_dst dst = make_udp_dst_with_vlan(7);
	uint8_t frame[128];

	(void)state;
	memset(frame + HEADERS + 4, 0xa5, 64);
	assert_int_equal(udp_frame_write_headers(&dst, frame, 64, 0, &flags), HEADERS + 4 + 64);
	assert_int_equal(frame[12] << 8 | frame[13], 0x8100);
	assert_int_equal(frame[15], 7);
	assert_int_equal(slow_checksum(frame + 18, 20, 0), 0);
	assert_int_equal(recompute_udp_checksum_of_frame(frame, 18, 72), 0);
}

static void test_id_is_in_the_header_and_its_sum(void **state)
{
	struct udp_dst dst = make_udp_dst_with_vlan(0);
	uint8_t frame[128] = {0};

	(void)state;
	for (uint32_t id = 0; id < 65536; id += 257) {
		udp_frame_write_headers(&dst, frame, 10, (uint16_t)id, &flags);
		assert_int_equal(slow_checksum(frame + 14, 20, 0), 0);
	}
	assert_int_equal(frame[18] | frame[19] << 8, 65535);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frame_equals_the_one_computed_by_hand),
        cmocka_unit_test(test_checksums_are_right_at_every_length),
        cmocka_unit_test(test_checksum_is_left_to_a_nic_that_finishes_it),
        cmocka_unit_test(test_zero_checksum_is_sent_as_all_ones),
        cmocka_unit_test(test_tagged_frame_keeps_its_tag),
        cmocka_unit_test(test_id_is_in_the_header_and_its_sum),
};

VMA_TEST_MAIN(tests)
