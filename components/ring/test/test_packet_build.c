/* Checksums against the slow reference, and the header templates against the checks of the receive side. */
#include <netinet/in.h>

#include <vma/test.h>

#include "frames.h"

static void test_checksum_equals_the_reference_at_every_length_and_alignment(void **state)
{
	static uint8_t bytes[512 + 8];
	uint32_t seed = 1;

	(void)state;
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)((seed = seed * 1664525 + 1013904223) >> 24);
	for (size_t align = 0; align < 8; align++) {
		for (size_t len = 0; len <= 512; len++) {
			uint16_t sum = (uint16_t)~vma_csum_fold(vma_csum_add(0, bytes + align, len));

			assert_int_equal(ntohs(sum), naive_checksum(bytes + align, len));
		}
	}
}

static void test_checksum_carries_survive_a_frame_of_ones(void **state)
{
	static uint8_t ones[65536];

	(void)state;
	memset(ones, 0xff, sizeof(ones));
	assert_int_equal(vma_csum_fold(vma_csum_add(UINT64_C(0xffffffff00000000), ones, sizeof(ones))), 0xffff);
	assert_int_equal(vma_csum_fold(vma_csum_add(0, ones, sizeof(ones))), 0xffff);
}

static void test_pieces_of_even_length_may_be_added_one_by_one(void **state)
{
	uint8_t bytes[100];
	uint64_t sum = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 37);
	for (size_t i = 0; i < sizeof(bytes); i += 10)
		sum = vma_csum_add(sum, bytes + i, 10);
	assert_int_equal(vma_csum_fold(sum), vma_csum_fold(vma_csum_add(0, bytes, sizeof(bytes))));
}

static void assert_udp_frame_lengths_and_checksums(const uint8_t *frame, uint32_t len)
{
	const uint8_t *ip = frame + 14;
	uint8_t scratch[2048] = {0};

	assert_int_equal(naive_checksum(ip, 20), 0);
	assert_int_equal(ip[2] << 8 | ip[3], len - 14);
	assert_int_equal(frame[38] << 8 | frame[39], len - 34);
	memcpy(scratch, ip + 12, 8);
	scratch[9] = IPPROTO_UDP;
	store_be16(scratch + 10, (uint16_t)(len - 34));
	memcpy(scratch + 12, frame + 34, len - 34);
	assert_int_equal(naive_checksum(scratch, 12 + len - 34), 0);
}

static void test_template_writes_complete_frames_at_any_payload_length(void **state)
{
	uint8_t frame[2048], payload[1472];

	(void)state;
	memset(payload, 0xa5, sizeof(payload));
	for (uint32_t n = 0; n <= sizeof(payload); n += n < 64 ? 1 : 117) {
		uint32_t len = udp_frame(frame, 5000, 6000, payload, n);

		assert_int_equal(len, 42 + n);
		assert_udp_frame_lengths_and_checksums(frame, len);
	}
}

static void test_zero_checksum_is_sent_as_ones(void **state)
{
	uint8_t frame[64];
	uint16_t payload = 0;
	uint32_t len = udp_frame(frame, 5000, 6000, &payload, 2);
	uint16_t field = (uint16_t)(frame[40] << 8 | frame[41]);

	(void)state;
	/* A payload equal to the complement of the others' sum brings the sum to ones, and its complement to 0. */
	payload = htons(field);
	len = udp_frame(frame, 5000, 6000, &payload, 2);
	assert_int_equal(frame[40] << 8 | frame[41], 0xffff);
	assert_udp_frame_lengths_and_checksums(frame, len);
}

static void test_checksum_may_be_left_out_or_left_to_the_nic(void **state)
{
	struct vma_pkt_udp_attr attr = {.src_ip = {10, 0, 0, 1}, .dst_ip = {10, 0, 0, 2}, .ttl = 3, .tos = 0xb8};
	struct vma_pkt_udp headers;
	uint8_t frame[64];
	uint16_t field;

	(void)state;
	vma_pkt_udp_init(&headers, &attr);
	vma_pkt_udp_write(&headers, frame, 4, VMA_PKT_CSUM_NONE);
	assert_int_equal(frame[40] << 8 | frame[41], 0);
	assert_int_equal(frame[14 + 8], 3);
	assert_int_equal(frame[14 + 1], 0xb8);
	vma_pkt_udp_write(&headers, frame, 4, VMA_PKT_CSUM_PSEUDO);
	memcpy(&field, frame + 40, 2);
	assert_int_equal(field, vma_csum_fold(vma_csum_pseudo4(attr.src_ip, attr.dst_ip, IPPROTO_UDP, 12)));
}

static void test_reply_exchanges_both_ends_and_keeps_the_vlan(void **state)
{
	uint8_t frame[128], answer[128];
	struct vma_rx_info info = {.family = AF_INET,
	                           .proto = IPPROTO_UDP,
	                           .vlan = 7,
	                           .src = {10, 0, 0, 1},
	                           .dst = {10, 0, 0, 2},
	                           .src_port_be = htons(1),
	                           .dst_port_be = htons(2)};
	struct vma_pkt_udp headers;

	(void)state;
	udp_frame_to(frame, frame_dst_ip, 7, 1, 2, "q", 1);
	vma_pkt_udp_init_reply_headers(&headers, frame, &info);
	assert_int_equal(headers.len, 46);
	vma_pkt_udp_write(&headers, answer, 1, VMA_PKT_CSUM_FULL);
	assert_memory_equal(answer, frame + 6, 6);
	assert_memory_equal(answer + 6, frame, 6);
	assert_memory_equal(answer + 12, frame + 12, 6);
	assert_memory_equal(answer + 18 + 12, frame_dst_ip, 4);
	assert_memory_equal(answer + 18 + 16, frame_src_ip, 4);
	assert_int_equal(answer[38] << 8 | answer[39], 2);
	assert_int_equal(answer[40] << 8 | answer[41], 1);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checksum_equals_the_reference_at_every_length_and_alignment),
        cmocka_unit_test(test_checksum_carries_survive_a_frame_of_ones),
        cmocka_unit_test(test_pieces_of_even_length_may_be_added_one_by_one),
        cmocka_unit_test(test_template_writes_complete_frames_at_any_payload_length),
        cmocka_unit_test(test_zero_checksum_is_sent_as_ones),
        cmocka_unit_test(test_checksum_may_be_left_out_or_left_to_the_nic),
        cmocka_unit_test(test_reply_exchanges_both_ends_and_keeps_the_vlan),
};
VMA_TEST_MAIN(tests)
