/* Header checks on plain bytes: every good shape passes with the right addresses, every bad one has its reason. */
#include <netinet/in.h>

#include <stdlib.h>

#include <vma/test.h>

#include "../packet_check.h"
#include "../train.h"
#include "frames.h"

/* An arena of static memory: four frames and their descriptors. */
static char memory[4][2048];
static struct vma_buf bufs[4];
static struct vma_bufarena arena = {.frames = memory[0], .bufs = bufs, .frame_shift = 11, .capacity = 4};
static struct packet_rules rules;
static struct vma_rx_info info;
static bool group;

static int setup(void **state)
{
	(void)state;
	rules = (struct packet_rules){.arena = &arena, .sw_csum = true};
	memset(&info, 0, sizeof(info));
	memset(bufs, 0, sizeof(bufs));
	memset(memory, 0xee, sizeof(memory));
	group = false;
	return 0;
}

static unsigned packet_check_first_buffer(void)
{
	const uint8_t *frame = (const uint8_t *)vma_buf_data(&arena, &bufs[0]);

	unsigned verdict = packet_validate_and_parse_headers(&rules, &bufs[0], frame, &info);

	group = verdict == PACKET_PASS && packet_is_multicast_or_broadcast(frame, &info);
	return verdict;
}

static unsigned packet_check_unaligned_frame(const uint8_t *frame, uint32_t len)
{
	bufs[0].data_off = 3; /* nothing may depend on alignment */
	bufs[0].len = bufs[0].packet_len = len;
	memcpy(memory[0] + 3, frame, len);
	return packet_check_first_buffer();
}

/* The same bytes in up to four buffers, cut at the given places. */
static unsigned check_frame_in_pieces(const uint8_t *frame, uint32_t len, const uint32_t *cuts, unsigned n)
{
	uint32_t at = 0;

	for (unsigned i = 0; i <= n; i++) {
		uint32_t end = i < n ? cuts[i] : len;

		bufs[i].next = i < n ? &bufs[i + 1] : NULL;
		bufs[i].data_off = i * 5;
		bufs[i].len = end - at;
		memcpy(memory[i] + i * 5, frame + at, end - at);
		at = end;
	}
	bufs[0].packet_len = len;
	return packet_check_first_buffer();
}

static void test_udp_passes_with_its_addresses(void **state)
{
	uint8_t frame[256];
	uint32_t len = udp_frame(frame, 1111, 2222, "hello", 5);

	(void)state;
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
	assert_int_equal(info.family, AF_INET);
	assert_int_equal(info.proto, IPPROTO_UDP);
	assert_int_equal(info.src_port_be, htons(1111));
	assert_int_equal(info.dst_port_be, htons(2222));
	assert_memory_equal(info.src, frame_src_ip, 4);
	assert_memory_equal(info.dst, frame_dst_ip, 4);
	assert_int_equal(info.ttl, 64);
	assert_int_equal(info.vlan, 0);
	assert_int_equal(bufs[0].l3_off, 14);
	assert_int_equal(bufs[0].l4_off, 34);
	assert_int_equal(bufs[0].payload_off, 42);
	assert_int_equal(bufs[0].payload_len, 5);
	assert_false(group);
}

static void test_tcp_passes_with_options_and_flags(void **state)
{
	uint8_t frame[256];
	uint32_t len = tcp_frame(frame, 1, 2, 0x12, "\1\1\1\0data", 8);

	(void)state;
	frame[34 + 12] = 6 << 4; /* the first four bytes are options now */
	fix_l4_checksum(frame, 28, 16);
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
	assert_int_equal(info.tcp_flags, 0x12);
	assert_int_equal(bufs[0].payload_off, 34 + 24);
	assert_int_equal(bufs[0].payload_len, 4);
}

static void test_vlan_tag_and_priority_tag_pass(void **state)
{
	uint8_t frame[256];
	uint32_t len = udp_frame_to(frame, frame_dst_ip, 100, 1, 2, "x", 1);

	(void)state;
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
	assert_int_equal(info.vlan, 100);
	assert_int_equal(bufs[0].l3_off, 18);
	frame[14] = 0xe0, frame[15] = 0; /* priority 7, no VLAN */
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
	assert_int_equal(info.vlan, 0);
}

static void test_ethernet_padding_is_not_payload(void **state)
{
	uint8_t frame[64] = {0};

	(void)state;
	udp_frame(frame, 1, 2, "ab", 2);
	assert_int_equal(packet_check_unaligned_frame(frame, 60), PACKET_PASS);
	assert_int_equal(bufs[0].payload_len, 2);
}

static void test_udp_shorter_than_its_ip_packet_is_trimmed(void **state)
{
	uint8_t frame[256];
	uint32_t len = udp_frame(frame, 1, 2, "abcdef", 6);

	(void)state;
	store_be16(frame + 34 + 4, 8 + 3);
	fix_l4_checksum(frame, 8 + 3, 6);
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
	assert_int_equal(bufs[0].payload_len, 3);
}

static void test_ip_options_are_skipped(void **state)
{
	uint8_t frame[256];
	uint32_t len = udp_frame(frame, 1, 2, "abc", 3);

	(void)state;
	memmove(frame + 38, frame + 34, len - 34);
	memset(frame + 34, 1, 4);
	frame[14] = 0x46;
	store_be16(frame + 16, (uint16_t)(len - 14 + 4));
	fix_ip_checksum(frame + 14);
	assert_int_equal(packet_check_unaligned_frame(frame, len + 4), PACKET_PASS);
	assert_int_equal(bufs[0].l4_off, 38);
	assert_int_equal(bufs[0].payload_len, 3);
}

static unsigned check_frame_with_ip_option(uint8_t *frame, uint32_t len, uint8_t kind, uint8_t option_len)
{
	memset(frame + 34, 0, 4);
	frame[34] = kind;
	frame[35] = option_len;
	fix_ip_checksum(frame + 14);
	return packet_check_unaligned_frame(frame, len + 4);
}

static void test_source_routes_and_fragments_are_the_kernels_where_the_nic_takes_them(void **state)
{
	uint8_t frame[256];
	const uint32_t len = udp_frame(frame, 1, 2, "abc", 3);

	(void)state;
	memmove(frame + 38, frame + 34, len - 34);
	frame[14] = 0x46;
	store_be16(frame + 16, (uint16_t)(len - 14 + 4));
	for (int i = 0; i < 2; i++) {
		const unsigned kernels = i == 0 ? PACKET_PASS : PACKET_TO_KERNEL;

		rules.to_kernel = i;
		assert_int_equal(check_frame_with_ip_option(frame, len, 131, 3), kernels);
		assert_int_equal(check_frame_with_ip_option(frame, len, 137, 3), kernels);
		assert_int_equal(check_frame_with_ip_option(frame, len, 1, 131),
		                 PACKET_TO_KERNEL * (unsigned)i); /* cut short */
		assert_int_equal(check_frame_with_ip_option(frame, len, 148, 9), kernels);
		assert_int_equal(check_frame_with_ip_option(frame, len, 148, 1), kernels);
		assert_int_equal(check_frame_with_ip_option(frame, len, 148, 4), PACKET_PASS);
		assert_int_equal(check_frame_with_ip_option(frame, len, 1, 0), PACKET_PASS);
		assert_int_equal(check_frame_with_ip_option(frame, len, 0, 131), PACKET_PASS);
	}
	check_frame_with_ip_option(frame, len, 148, 4);
	store_be16(frame + 20, 0x2000);
	fix_ip_checksum(frame + 14);
	assert_int_equal(packet_check_unaligned_frame(frame, len + 4), PACKET_TO_KERNEL);
	rules.to_kernel = false;
	assert_int_equal(packet_check_unaligned_frame(frame, len + 4), PACKET_DROP(ip_fragment));
}

static void test_multicast_and_broadcast_are_for_all_members(void **state)
{
	uint8_t frame[256];
	const uint8_t multicast[4] = {239, 1, 2, 3}, limited[4] = {255, 255, 255, 255}, directed[4] = {10, 0, 0, 255};
	uint32_t len = udp_frame_to(frame, multicast, 0, 1, 2, "x", 1);

	(void)state;
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
	assert_true(group);
	udp_frame_to(frame, limited, 0, 1, 2, "x", 1);
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
	assert_true(group);
	udp_frame_to(frame, directed, 0, 1, 2, "x", 1);
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
	assert_false(group);
	memset(frame, 0xff, 6); /* a subnet's broadcast shows in the Ethernet destination */
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
	assert_true(group);
}

static void test_udp_without_checksum_passes(void **state)
{
	uint8_t frame[256];
	uint32_t len = udp_frame(frame, 1, 2, "abc", 3);

	(void)state;
	store_be16(frame + 40, 0);
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
}

static void test_pseudo_header_sum_is_valid_on_a_memory_link_only(void **state)
{
	uint8_t frame[256];
	uint32_t len = udp_frame(frame, 1, 2, "abc", 3);
	uint16_t pseudo = vma_csum_fold(vma_csum_pseudo4(frame + 26, frame + 30, IPPROTO_UDP, 11));

	(void)state;
	assert_int_equal(bufs[0].flags, 0);
	memcpy(frame + 40, &pseudo, 2);
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_DROP(l4_checksum));
	rules.memory_link = true;
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
	frame[41] ^= 1; /* exactly that value, no other */
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_DROP(l4_checksum));
	fix_l4_checksum(frame, 11, 6);
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);

	len = tcp_frame(frame, 1, 2, 2, "abc", 3);
	pseudo = vma_csum_fold(vma_csum_pseudo4(frame + 26, frame + 30, IPPROTO_TCP, 23));
	memcpy(frame + 50, &pseudo, 2);
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
	rules.memory_link = false;
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_DROP(l4_checksum));
}

static void test_nic_verdicts_replace_the_software_check(void **state)
{
	uint8_t frame[256];
	uint32_t len = udp_frame(frame, 1, 2, "abc", 3);

	(void)state;
	bufs[0].flags = VMA_BUF_RX_L4_CSUM_BAD;
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_DROP(l4_checksum));
	frame[41] ^= 1;
	bufs[0].flags = VMA_BUF_RX_L4_CSUM_OK;
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
	frame[24] ^= 1;
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_DROP(ip_checksum));
	bufs[0].flags |= VMA_BUF_RX_L3_CSUM_OK;
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
	bufs[0].flags = 0;
	rules.sw_csum = false; /* VMA_RX_SW_CSUM=0: what nobody checked passes */
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
}

/* One frame, one change, one reason. off < 0: no byte; cut: the length that remains, 0: all; ip: fix the IP checksum.
 */
static const struct bad {
	const char *what;
	bool tcp, vlan;
	int off;
	uint8_t value;
	uint32_t cut;
	bool ip;
	unsigned reason;
} bad_frames[] = {
        {"empty", false, false, -1, 0, 1, false, PACKET_DROP(runt)},
        {"13 bytes", false, false, -1, 0, 13, false, PACKET_DROP(runt)},
        {"ethernet only", false, false, -1, 0, 14, false, PACKET_DROP(runt)},
        {"half an IP header", false, false, -1, 0, 33, false, PACKET_DROP(runt)},
        {"VLAN tag cut off", false, true, -1, 0, 17, false, PACKET_DROP(runt)},
        {"IP options cut off", false, false, 14, 0x4f, 46, false, PACKET_DROP(runt)},
        {"ARP", false, false, 13, 6, 0, false, PACKET_DROP(ethertype)},
        {"IPv6 ethertype", false, false, 12, 0x86, 0, false, PACKET_DROP(ethertype)},
        {"two VLAN tags", false, true, 16, 0x81, 0, false, PACKET_DROP(ethertype)},
        {"a service tag", false, true, 12, 0x88, 0, false, PACKET_DROP(ethertype)},
        {"IP version 6", false, false, 14, 0x65, 0, true, PACKET_DROP(ip_version)},
        {"IP header of 16", false, false, 14, 0x44, 0, true, PACKET_DROP(ip_version)},
        {"IP total length beyond the frame", false, false, 17, 200, 0, true, PACKET_DROP(ip_length)},
        {"IP total length below its header", false, false, 17, 19, 0, true, PACKET_DROP(ip_length)},
        {"UDP cut inside the payload", false, false, -1, 0, 46, false, PACKET_DROP(ip_length)},
        {"IP checksum", false, false, 24, 0x5a, 0, false, PACKET_DROP(ip_checksum)},
        {"more fragments", false, false, 20, 0x20, 0, true, PACKET_DROP(ip_fragment)},
        {"fragment offset", false, false, 21, 0x01, 0, true, PACKET_DROP(ip_fragment)},
        {"ICMP", false, false, 23, 1, 0, true, PACKET_DROP(protocol)},
        {"no room for UDP", false, false, 17, 27, 0, true, PACKET_DROP(l4_length)},
        {"UDP length below its header", false, false, 39, 7, 0, false, PACKET_DROP(l4_length)},
        {"UDP length beyond IP", false, false, 39, 200, 0, false, PACKET_DROP(l4_length)},
        {"UDP payload", false, false, 43, 0xff, 0, false, PACKET_DROP(l4_checksum)},
        {"no room for TCP", true, false, 17, 39, 0, true, PACKET_DROP(l4_length)},
        {"TCP header of 16", true, false, 46, 4 << 4, 0, false, PACKET_DROP(l4_length)},
        {"TCP header beyond IP", true, false, 46, 15 << 4, 0, false, PACKET_DROP(l4_length)},
        {"TCP payload", true, false, 55, 0xff, 0, false, PACKET_DROP(l4_checksum)},
        {"TCP checksum 0", true, false, 50, 0, 0, false, PACKET_DROP(l4_checksum)},
};

static void test_every_bad_frame_has_its_reason(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(bad_frames) / sizeof(bad_frames[0]); i++) {
		const struct bad *bad = &bad_frames[i];
		uint8_t frame[256];
		uint32_t len = bad->tcp ? tcp_frame(frame, 1, 2, 2, "payload", 7)
		                        : udp_frame_to(frame, frame_dst_ip, bad->vlan ? 5 : 0, 1, 2, "payload", 7);

		setup(NULL);
		if (bad->off >= 0)
			frame[bad->off] = bad->value;
		if (bad->ip)
			fix_ip_checksum(frame + 14);
		if (packet_check_unaligned_frame(frame, bad->cut != 0 ? bad->cut : len) != bad->reason)
			fail_msg("%s: reason at offset %u, not %u", bad->what,
			         packet_check_unaligned_frame(frame, bad->cut ? bad->cut : len), bad->reason);
	}
}

static void test_chain_is_summed_across_odd_cuts(void **state)
{
	uint8_t frame[512], payload[400];
	uint32_t len;

	(void)state;
	for (size_t i = 0; i < sizeof(payload); i++)
		payload[i] = (uint8_t)(i * 7 + 1);
	len = udp_frame(frame, 1, 2, payload, sizeof(payload));
	for (uint32_t a = 42; a < 60; a++) {
		const uint32_t cuts[3] = {a, a + 33, a + 100};

		assert_int_equal(check_frame_in_pieces(frame, len, cuts, 3), PACKET_PASS);
		assert_int_equal(bufs[0].payload_len, sizeof(payload));
		frame[a + 50] ^= 4;
		assert_int_equal(check_frame_in_pieces(frame, len, cuts, 3), PACKET_DROP(l4_checksum));
		frame[a + 50] ^= 4;
	}
}

static void test_broken_chains_are_dropped(void **state)
{
	uint8_t frame[256];
	uint32_t len = udp_frame(frame, 1, 2, "0123456789", 10);
	const uint32_t in_ip[1] = {30}, in_udp[1] = {40}, in_ethernet[1] = {10}, in_payload[1] = {45};

	(void)state;
	assert_int_equal(check_frame_in_pieces(frame, len, in_ethernet, 1), PACKET_DROP(chain));
	assert_int_equal(check_frame_in_pieces(frame, len, in_ip, 1), PACKET_DROP(chain));
	assert_int_equal(check_frame_in_pieces(frame, len, in_udp, 1), PACKET_DROP(chain));
	assert_int_equal(check_frame_in_pieces(frame, len, in_payload, 1), PACKET_PASS);
	bufs[0].packet_len++; /* the parts do not add up */
	assert_int_equal(packet_check_first_buffer(), PACKET_DROP(chain));
}

/* ---- trains ---- */

/* Where the train's check says yes, packet_validate_and_parse_headers says yes as well, and the same of the packet;
 * true: it said so. */
static bool train_check_agrees_with_packet_check(struct train *train, const uint8_t *frame, uint32_t len,
                                                 const struct vma_rx_info *of_train)
{
	struct vma_buf followed;

	bufs[0] = (struct vma_buf){.data_off = 3, .len = len, .packet_len = len, .flags = bufs[0].flags};
	memcpy(memory[0] + 3, frame, len);
	followed = bufs[0];
	if (!train_accepts_packet(train, &followed, (const uint8_t *)vma_buf_data(&arena, &bufs[0])))
		return false;
	memset(&info, 0, sizeof(info));
	assert_int_equal(packet_check_first_buffer(), PACKET_PASS);
	assert_false(group);
	assert_memory_equal(&info, of_train, sizeof(info));
	assert_int_equal(followed.l3_off, bufs[0].l3_off);
	assert_int_equal(followed.l4_off, bufs[0].l4_off);
	assert_int_equal(followed.payload_off, bufs[0].payload_off);
	assert_int_equal(followed.payload_len, bufs[0].payload_len);
	return true;
}

static struct vma_rx_info begin_train_from_frame(struct train *train, const uint8_t *frame, uint32_t len)
{
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
	assert_true(train_may_begin(&bufs[0], &info));
	train_begin(train, &rules, &bufs[0], &info);
	return info;
}

static void test_train_takes_every_length_with_its_checksum(void **state)
{
	uint8_t frame[512], payload[300];
	struct vma_rx_info first;
	struct train train;

	(void)state;
	for (unsigned i = 0; i < sizeof(payload); i++)
		payload[i] = (uint8_t)(i * 31 + 7);
	first = begin_train_from_frame(&train, frame, udp_frame(frame, 1111, 2222, "first", 5));
	for (uint32_t len = 0; len <= sizeof(payload); len++) {
		const uint32_t frame_len = udp_frame(frame, 1111, 2222, payload, len);

		assert_true(train_check_agrees_with_packet_check(&train, frame, frame_len, &first));
		assert_int_equal(bufs[0].payload_len, len);
		if (len == 0)
			continue;
		frame[frame_len - 1] ^= 0x10;
		assert_false(train_check_agrees_with_packet_check(&train, frame, frame_len, &first));
		store_be16(frame + 40, 0); /* its sender has computed none */
		assert_true(train_check_agrees_with_packet_check(&train, frame, frame_len, &first));
	}
}

/* What differs in a single header field is another's, or for the general way. */
static void test_train_ends_with_any_header_that_differs(void **state)
{
	static const uint16_t at[] = {0, 12, 13, 14, 15, 20, 21, 22, 23, 26, 29, 30, 33, 34, 35, 36, 37};
	uint8_t frame[128], other[128];
	const uint32_t len = udp_frame(frame, 1111, 2222, "payload", 7);
	struct vma_rx_info first;
	struct train train;

	(void)state;
	first = begin_train_from_frame(&train, frame, len);
	for (unsigned i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		memcpy(other, frame, len);
		other[at[i]] ^= 1;
		if (at[i] >= 14)
			fix_ip_checksum(other + 14);
		if (other[14] == 0x45)
			fix_l4_checksum(other, 15, 6);
		assert_false(train_check_agrees_with_packet_check(&train, other, len, &first));
	}
	memcpy(other, frame, len);
	store_be16(other + 18, 4711); /* the id is nobody's */
	other[20] ^= 0x40;            /* as is whether it may be fragmented */
	fix_ip_checksum(other + 14);
	assert_true(train_check_agrees_with_packet_check(&train, other, len, &first));
	other[24] ^= 1;
	assert_false(train_check_agrees_with_packet_check(&train, other, len, &first));
	assert_false(train_check_agrees_with_packet_check(&train, frame, 41, &first));
}

static void test_what_is_not_plain_begins_no_train(void **state)
{
	const uint32_t cut = 44;
	uint8_t frame[128];
	uint32_t len;

	(void)state;
	len = udp_frame_to(frame, frame_dst_ip, 5, 1, 2, "tagged", 6);
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
	assert_false(train_may_begin(&bufs[0], &info));
	len = tcp_frame(frame, 1, 2, 0x10, "", 0);
	assert_int_equal(packet_check_unaligned_frame(frame, len), PACKET_PASS);
	assert_false(train_may_begin(&bufs[0], &info));
	len = udp_frame(frame, 1, 2, "in two buffers", 14);
	assert_int_equal(check_frame_in_pieces(frame, len, &cut, 1), PACKET_PASS);
	assert_false(train_may_begin(&bufs[0], &info));
}

/* Any bytes, any of the NIC's verdicts, any rules: the train's check knows nothing that
 * packet_validate_and_parse_headers does not. */
static void test_train_never_says_more_than_the_checks(void **state)
{
	uint8_t frame[128], other[128];
	struct vma_rx_info first;
	unsigned agreed = 0;
	struct train train;

	(void)state;
	srandom(4711);
	for (unsigned round = 0; round < 200000; round++) {
		const uint32_t len = udp_frame(frame, 1111, 2222, "some payload", (uint32_t)random() % 13);
		uint32_t cut = len;

		rules.sw_csum = true;
		rules.memory_link = random() % 2;
		bufs[0].flags = 0;
		first = begin_train_from_frame(&train, frame, len);
		memcpy(other, frame, len);
		for (unsigned n = (unsigned)random() % 3; n > 0; n--)
			other[random() % len] ^= (uint8_t)(1 << random() % 8);
		if (random() % 4 == 0)
			cut -= (uint32_t)random() % 8;
		if (random() % 2 == 0 && other[14] == 0x45) {
			fix_ip_checksum(other + 14);
			fix_l4_checksum(other, len - 34, 6);
		}
		rules.sw_csum = random() % 4 != 0;
		bufs[0].flags =
		        (uint16_t)random() & (VMA_BUF_RX_L3_CSUM_OK | VMA_BUF_RX_L4_CSUM_OK | VMA_BUF_RX_L4_CSUM_BAD);
		if (bufs[0].flags & VMA_BUF_RX_L4_CSUM_BAD)
			bufs[0].flags &= (uint16_t)~VMA_BUF_RX_L4_CSUM_OK;
		agreed += train_check_agrees_with_packet_check(&train, other, cut, &first);
	}
	assert_true(agreed > 20000 && agreed < 190000);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_udp_passes_with_its_addresses, setup),
        cmocka_unit_test_setup(test_tcp_passes_with_options_and_flags, setup),
        cmocka_unit_test_setup(test_vlan_tag_and_priority_tag_pass, setup),
        cmocka_unit_test_setup(test_ethernet_padding_is_not_payload, setup),
        cmocka_unit_test_setup(test_udp_shorter_than_its_ip_packet_is_trimmed, setup),
        cmocka_unit_test_setup(test_ip_options_are_skipped, setup),
        cmocka_unit_test_setup(test_source_routes_and_fragments_are_the_kernels_where_the_nic_takes_them, setup),
        cmocka_unit_test_setup(test_multicast_and_broadcast_are_for_all_members, setup),
        cmocka_unit_test_setup(test_udp_without_checksum_passes, setup),
        cmocka_unit_test_setup(test_pseudo_header_sum_is_valid_on_a_memory_link_only, setup),
        cmocka_unit_test_setup(test_nic_verdicts_replace_the_software_check, setup),
        cmocka_unit_test_setup(test_every_bad_frame_has_its_reason, setup),
        cmocka_unit_test_setup(test_chain_is_summed_across_odd_cuts, setup),
        cmocka_unit_test_setup(test_broken_chains_are_dropped, setup),
        cmocka_unit_test_setup(test_train_takes_every_length_with_its_checksum, setup),
        cmocka_unit_test_setup(test_train_ends_with_any_header_that_differs, setup),
        cmocka_unit_test_setup(test_what_is_not_plain_begins_no_train, setup),
        cmocka_unit_test_setup(test_train_never_says_more_than_the_checks, setup),
};
VMA_TEST_MAIN(tests)
