/* Checksums that the device would finish; and what is left as it is. */
#include <vma/test.h>

#include "../checksum.h"
#include "frames.h"

/* RFC 1071 over the pseudo header and what follows the IPv4 header: 0, if the checksum in it is right. */
static uint16_t verify_l4_checksum_of_packet(const uint8_t *ip)
{
	const uint32_t len = (uint32_t)(ip[2] << 8 | ip[3]) - 20;
	uint32_t sum = ip[9] + len;

	for (unsigned i = 12; i < 20 + len; i += 2)
		sum += (uint32_t)(ip[i] << 8) + (i + 1 < 20 + len ? ip[i + 1] : 0);
	while (sum >> 16 != 0)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

static uint32_t make_test_frame_of_protocol(uint8_t frame[FRAME_BYTES], uint8_t protocol)
{
	return frame_make_udp_or_tcp(frame, protocol, 0x0a090001, 1000, 0x0a090002, 7001);
}

static void test_an_open_checksum_is_finished(void **state)
{
	static const uint8_t protocols[] = {IPPROTO_UDP, IPPROTO_TCP};
	uint8_t frame[FRAME_BYTES], tagged[FRAME_BYTES + 4];

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		const uint32_t len = make_test_frame_of_protocol(frame, protocols[i]);

		memcpy(tagged, frame, 12);
		memcpy(tagged + 12, "\x81\0\0\5", 4);
		memcpy(tagged + 16, frame + 12, len - 12);
		assert_int_not_equal(verify_l4_checksum_of_packet(frame + 14), 0);
		checksum_complete_l4_if_pseudo_only(frame, len + 6); /* the padding of a short frame */
		assert_int_equal(verify_l4_checksum_of_packet(frame + 14), 0);
		checksum_complete_l4_if_pseudo_only(tagged, len + 4);
		assert_memory_equal(tagged + 16, frame + 12, len - 12);
	}
}

/* RFC 768: a sum of zero is sent as ones, as zero says that there is none. */
static void test_a_datagrams_sum_of_zero_is_ones(void **state)
{
	uint8_t frame[FRAME_BYTES];
	bool seen = false;

	(void)state;
	for (uint32_t port = 0; port < 65536 && !seen; port++) {
		const uint32_t len =
		        frame_make_udp_or_tcp(frame, IPPROTO_UDP, 0x0a090001, 1000, 0x0a090002, (uint16_t)port);

		checksum_complete_l4_if_pseudo_only(frame, len);
		assert_int_not_equal(frame[40] << 8 | frame[41], 0);
		seen = (frame[40] << 8 | frame[41]) == 0xffff;
	}
	assert_true(seen);
}

static void assert_checksum_finish_leaves_frame(const uint8_t frame[FRAME_BYTES], uint32_t len)
{
	uint8_t copy[FRAME_BYTES];

	memcpy(copy, frame, FRAME_BYTES);
	checksum_complete_l4_if_pseudo_only(copy, len);
	assert_memory_equal(copy, frame, FRAME_BYTES);
}

static void test_everything_else_is_left_alone(void **state)
{
	uint8_t frame[FRAME_BYTES];
	uint32_t len = make_test_frame_of_protocol(frame, IPPROTO_UDP);

	(void)state;
	for (uint32_t part = 0; part < len; part++)
		assert_checksum_finish_leaves_frame(frame, part);
	frame[40]++; /* finished by its sender, or wrong */
	assert_checksum_finish_leaves_frame(frame, len);
	make_test_frame_of_protocol(frame, IPPROTO_UDP);
	frame[20] = 0x20; /* a fragment */
	assert_checksum_finish_leaves_frame(frame, len);
	make_test_frame_of_protocol(frame, IPPROTO_UDP);
	frame[12] = 0x86; /* another protocol than IPv4 */
	assert_checksum_finish_leaves_frame(frame, len);
	make_test_frame_of_protocol(frame, IPPROTO_UDP);
	frame[14] = 0x44; /* no header is so short */
	assert_checksum_finish_leaves_frame(frame, len);
	make_test_frame_of_protocol(frame, IPPROTO_UDP);
	frame[17] = 100; /* longer than the frame */
	assert_checksum_finish_leaves_frame(frame, len);
	make_test_frame_of_protocol(frame, IPPROTO_UDP);
	frame[23] = IPPROTO_ICMP;
	assert_checksum_finish_leaves_frame(frame, len);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_open_checksum_is_finished),
        cmocka_unit_test(test_a_datagrams_sum_of_zero_is_ones),
        cmocka_unit_test(test_everything_else_is_left_alone),
};

VMA_TEST_MAIN(tests)
