/* Fragments of datagrams: put together in any order, given up within bounds, and never longer than what they hold. */
#include <netinet/in.h>
#include <stdlib.h>

#include <vma/test_capture.h>

#include "fake_nic.h"
#include "../ring_priv.h"
#include "frames.h"

static struct fake_nic fake;
static struct vma_ring *ring;
static struct vma_flow flow;
static uint8_t datagram[67000]; /* UDP header and payload, as sent; and what lies behind the longest */
static uint32_t datagram_len;
static uint8_t got[66000];
static unsigned calls;
static uint32_t got_len;
static uint8_t proto; /* of fragments that arrive */

static bool fragments_sink_copy_payload(struct vma_flow *to, struct vma_buf *packet, const struct vma_rx_info *info)
{
	uint32_t left = packet->payload_len, off = packet->payload_off;

	(void)to, (void)info;
	calls++;
	got_len = 0;
	for (struct vma_buf *buf = packet; buf != NULL && left > 0; buf = buf->next, off = 0) {
		const uint32_t here = buf->len - off < left ? buf->len - off : left;

		memcpy(got + got_len, vma_buf_data(fake.arena, buf) + off, here);
		got_len += here;
		left -= here;
	}
	assert_int_equal(left, 0);
	vma_buf_put_chain(fake.arena, packet);
	return true;
}

static int setup_with(uint32_t caps)
{
	fake_init(&fake, caps);
	ring = fake_nic_create_ring(&fake, VMA_THREAD_YIELD);
	flow = (struct vma_flow){.key = flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0),
	                         .sink = fragments_sink_copy_payload};
	assert_int_equal(vma_ring_attach_flow(ring, &flow), 0);
	calls = 0;
	proto = IPPROTO_UDP;
	return 0;
}

static int setup(void **state)
{
	(void)state;
	return setup_with(0);
}

static int setup_nic_that_can_pass_to_kernel(void **state)
{
	(void)state;
	return setup_with(VMA_NIC_CAP_TO_KERNEL);
}

static int teardown(void **state)
{
	(void)state;
	vma_ring_detach_flow(ring, &flow);
	vma_ring_destroy(ring);
	fake_fini(&fake);
	return 0;
}

static uint64_t fragments_rx_counter(size_t offset)
{
	return vma_stats_read_counter((_Atomic uint64_t *)((char *)&vma_ring_stats(ring)->rx + offset));
}
#define COUNT(name) fragments_rx_counter(offsetof(struct vma_stats_ring_rx, name))

/* A datagram of len bytes for the flow, its checksum over all of it. */
static void make_datagram(uint32_t len, unsigned seed)
{
	static uint8_t pseudo[66100];
	uint16_t sum;

	datagram_len = 8 + len;
	store_be16(datagram, 1000);
	store_be16(datagram + 2, 53);
	store_be16(datagram + 4, (uint16_t)datagram_len);
	store_be16(datagram + 6, 0);
	for (uint32_t i = 0; i < len; i++)
		datagram[8 + i] = (uint8_t)(i * 7 + (i >> 8) + seed);
	memcpy(pseudo, frame_src_ip, 4);
	memcpy(pseudo + 4, frame_dst_ip, 4);
	pseudo[8] = 0;
	pseudo[9] = IPPROTO_UDP;
	store_be16(pseudo + 10, (uint16_t)datagram_len);
	memcpy(pseudo + 12, datagram, datagram_len);
	sum = naive_checksum(pseudo, 12 + datagram_len);
	store_be16(datagram + 6, sum != 0 ? sum : 0xffff);
}

/* Bytes [off, off + len) of the datagram as a fragment, with so many bytes of padding behind it. */
static void ring_inject_ip_fragment(uint16_t id, uint32_t off, uint32_t len, bool more, uint32_t padding)
{
	uint8_t frame[FAKE_FRAME] = {0}, *ip = frame + 14;

	udp_frame(frame, 1, 1, "", 0);
	store_be16(ip + 2, (uint16_t)(20 + len));
	store_be16(ip + 4, id);
	ip[9] = proto;
	store_be16(ip + 6, (uint16_t)(off / 8 | (more ? 0x2000 : 0)));
	fix_ip_checksum(ip);
	memcpy(ip + 20, datagram + off, len);
	fake_nic_receive_frame(&fake, frame, 34 + len + padding);
	while (vma_ring_progress(ring) > 0)
		;
}

static void inject_fragment_of_datagram(uint16_t id, uint32_t off, uint32_t len)
{
	ring_inject_ip_fragment(id, off, len, off + len < datagram_len, 0);
}

static void assert_datagram_received_times(unsigned times)
{
	assert_int_equal(calls, times);
	assert_int_equal(got_len, datagram_len - 8);
	assert_memory_equal(got, datagram + 8, got_len);
}

enum { FRAGMENT_BYTES = 1480 };

static void test_fragments_in_order_become_the_datagram(void **state)
{
	static const uint32_t lens[] = {1473, 2000, 2952, 2953, 9001, 65507};

	(void)state;
	for (unsigned n = 0; n < 6; n++) {
		make_datagram(lens[n], n);
		for (uint32_t off = 0; off < datagram_len; off += FRAGMENT_BYTES) {
			assert_int_equal(calls, n);
			inject_fragment_of_datagram((uint16_t)n, off,
			                            datagram_len - off < FRAGMENT_BYTES ? datagram_len - off
			                                                                : FRAGMENT_BYTES);
		}
		assert_datagram_received_times(n + 1);
	}
	assert_int_equal(COUNT(rx_drop_ip_fragment), 0);
	assert_int_equal(COUNT(rx_delivered), 6);
}

static void test_any_order_and_any_padding_do(void **state)
{
	static const unsigned orders[][4] = {{3, 2, 1, 0}, {1, 0, 3, 2}, {0, 3, 1, 2}, {2, 3, 0, 1}, {3, 0, 2, 1}};

	(void)state;
	for (unsigned n = 0; n < 5; n++) {
		make_datagram(3 * FRAGMENT_BYTES + 1, n);
		for (unsigned i = 0; i < 4; i++) {
			const uint32_t off = orders[n][i] * FRAGMENT_BYTES;

			ring_inject_ip_fragment((uint16_t)n, off,
			                        off == 3 * FRAGMENT_BYTES ? datagram_len - off : FRAGMENT_BYTES,
			                        off != 3 * FRAGMENT_BYTES, 6);
		}
		assert_datagram_received_times(n + 1);
	}
}

static void test_datagrams_that_are_mixed_up_are_told_apart(void **state)
{
	(void)state;
	make_datagram(3000, 1);
	inject_fragment_of_datagram(1, 0, FRAGMENT_BYTES);
	make_datagram(3000, 2);
	inject_fragment_of_datagram(2, 0, FRAGMENT_BYTES);
	inject_fragment_of_datagram(2, FRAGMENT_BYTES, FRAGMENT_BYTES);
	make_datagram(3000, 1);
	inject_fragment_of_datagram(1, 2 * FRAGMENT_BYTES, datagram_len - 2 * FRAGMENT_BYTES);
	inject_fragment_of_datagram(1, FRAGMENT_BYTES, FRAGMENT_BYTES);
	assert_datagram_received_times(1);
	make_datagram(3000, 2);
	inject_fragment_of_datagram(2, 2 * FRAGMENT_BYTES, datagram_len - 2 * FRAGMENT_BYTES);
	assert_datagram_received_times(2);
}

static void test_fragments_of_another_protocol_are_of_another_datagram(void **state)
{
	(void)state;
	make_datagram(2 * FRAGMENT_BYTES - 8, 1);
	inject_fragment_of_datagram(1, 0, FRAGMENT_BYTES);
	proto = IPPROTO_TCP;
	inject_fragment_of_datagram(1, FRAGMENT_BYTES, FRAGMENT_BYTES);
	assert_int_equal(calls, 0);
	proto = IPPROTO_UDP;
	inject_fragment_of_datagram(1, FRAGMENT_BYTES, FRAGMENT_BYTES);
	assert_datagram_received_times(1);
}

static void test_what_comes_after_a_lost_fragment_is_not_held_up(void **state)
{
	uint8_t frame[128];

	(void)state;
	make_datagram(3000, 1);
	inject_fragment_of_datagram(1, 0, FRAGMENT_BYTES);
	fake_nic_receive_frame(&fake, frame, udp_frame(frame, 1000, 53, "data", 4));
	assert_int_equal(vma_ring_progress(ring), 1);
	assert_int_equal(calls, 1);
	assert_memory_equal(got, "data", 4);
}

static void test_fragment_that_comes_twice_counts_once(void **state)
{
	(void)state;
	make_datagram(3000, 1);
	inject_fragment_of_datagram(1, 0, FRAGMENT_BYTES);
	inject_fragment_of_datagram(1, 0, FRAGMENT_BYTES);
	inject_fragment_of_datagram(1, 8, 16);
	inject_fragment_of_datagram(1, 2 * FRAGMENT_BYTES, datagram_len - 2 * FRAGMENT_BYTES);
	inject_fragment_of_datagram(1, 2 * FRAGMENT_BYTES, datagram_len - 2 * FRAGMENT_BYTES);
	inject_fragment_of_datagram(1, FRAGMENT_BYTES, FRAGMENT_BYTES);
	assert_datagram_received_times(1);
	assert_int_equal(COUNT(rx_drop_ip_fragment), 3);
}

static void test_overlap_ends_the_datagram(void **state)
{
	(void)state;
	make_datagram(3000, 1);
	inject_fragment_of_datagram(1, 0, FRAGMENT_BYTES);
	inject_fragment_of_datagram(1, FRAGMENT_BYTES - 8, 16);
	assert_int_equal(COUNT(rx_drop_ip_fragment), 2);
	inject_fragment_of_datagram(1, FRAGMENT_BYTES, FRAGMENT_BYTES);
	inject_fragment_of_datagram(1, 2 * FRAGMENT_BYTES, datagram_len - 2 * FRAGMENT_BYTES);
	assert_int_equal(calls, 0);
	/* The same from behind; and what goes beyond the last. */
	inject_fragment_of_datagram(2, FRAGMENT_BYTES, FRAGMENT_BYTES);
	inject_fragment_of_datagram(2, FRAGMENT_BYTES - 8, 16);
	assert_int_equal(COUNT(rx_drop_ip_fragment), 4);
	ring_inject_ip_fragment(3, FRAGMENT_BYTES, FRAGMENT_BYTES, false, 0);
	ring_inject_ip_fragment(3, 2 * FRAGMENT_BYTES, 8, true, 0);
	assert_int_equal(COUNT(rx_drop_ip_fragment), 6);
	ring_inject_ip_fragment(4, 2 * FRAGMENT_BYTES, 8, true, 0);
	ring_inject_ip_fragment(4, FRAGMENT_BYTES, FRAGMENT_BYTES, false, 0);
	assert_int_equal(COUNT(rx_drop_ip_fragment), 8);
	assert_int_equal(calls, 0);
}

static void test_wrong_sum_of_the_whole_is_found(void **state)
{
	(void)state;
	make_datagram(3000, 1);
	inject_fragment_of_datagram(1, 0, FRAGMENT_BYTES);
	inject_fragment_of_datagram(1, FRAGMENT_BYTES, FRAGMENT_BYTES);
	datagram[2999] ^= 1;
	inject_fragment_of_datagram(1, 2 * FRAGMENT_BYTES, datagram_len - 2 * FRAGMENT_BYTES);
	assert_int_equal(calls, 0);
	assert_int_equal(COUNT(rx_drop_l4_checksum), 1);
}

static void test_lengths_that_cannot_be_are_dropped(void **state)
{
	(void)state;
	make_datagram(3000, 1);
	ring_inject_ip_fragment(1, 0, 1001, true, 0);
	ring_inject_ip_fragment(1, 65528, 1000, false, 0);
	assert_int_equal(COUNT(rx_drop_ip_fragment), 2);
	/* A header that says more than the fragments bring. */
	store_be16(datagram + 4, 5000);
	inject_fragment_of_datagram(2, 0, FRAGMENT_BYTES);
	inject_fragment_of_datagram(2, FRAGMENT_BYTES, FRAGMENT_BYTES);
	inject_fragment_of_datagram(2, 2 * FRAGMENT_BYTES, datagram_len - 2 * FRAGMENT_BYTES);
	assert_int_equal(COUNT(rx_drop_l4_length), 1);
	assert_int_equal(calls, 0);
}

static void test_too_many_at_a_time_make_the_oldest_give_up(void **state)
{
	(void)state;
	make_datagram(3000, 1);
	for (uint16_t id = 0; id <= RING_DATAGRAMS; id++)
		inject_fragment_of_datagram(id, 0, FRAGMENT_BYTES);
	assert_int_equal(COUNT(rx_drop_ip_fragment), 1);
	inject_fragment_of_datagram(RING_DATAGRAMS, FRAGMENT_BYTES, FRAGMENT_BYTES);
	inject_fragment_of_datagram(RING_DATAGRAMS, 2 * FRAGMENT_BYTES, datagram_len - 2 * FRAGMENT_BYTES);
	assert_datagram_received_times(1);
}

/* Of a queue of 256. */
static void test_fragments_without_a_rest_leave_buffers_to_everything_else(void **state)
{
	(void)state;
	make_datagram(60000, 1);
	for (uint16_t id = 0; id < 8; id++) {
		for (uint32_t off = 0; off < 39 * 1000; off += 1000)
			ring_inject_ip_fragment(id, off, 1000, true, 0);
	}
	assert_true(ring->fragments.bufs <= 128);
	assert_true(COUNT(rx_drop_ip_fragment) >= 8 * 39 - 128);
	make_datagram(65507, 2);
	for (uint32_t off = 0; off < datagram_len; off += FRAGMENT_BYTES)
		inject_fragment_of_datagram(100, off,
		                            datagram_len - off < FRAGMENT_BYTES ? datagram_len - off : FRAGMENT_BYTES);
	assert_datagram_received_times(1);
}

static void test_late_rest_is_not_put_together(void **state)
{
	(void)state;
	make_datagram(3000, 1);
	inject_fragment_of_datagram(1, 0, FRAGMENT_BYTES);
	usleep(1100000);
	inject_fragment_of_datagram(1, FRAGMENT_BYTES, FRAGMENT_BYTES);
	assert_int_equal(COUNT(rx_drop_ip_fragment), 1);
	inject_fragment_of_datagram(1, 2 * FRAGMENT_BYTES, datagram_len - 2 * FRAGMENT_BYTES);
	assert_int_equal(calls, 0);
	inject_fragment_of_datagram(1, 0, FRAGMENT_BYTES);
	assert_datagram_received_times(1);
}

/* The next record: what came in, or why it was dropped; its id. */
static uint32_t next_captured_record_id(struct test_capture *capture, uint8_t kind)
{
	static uint8_t data[VMA_CAPTURE_DATA_MAX];
	struct vma_capture_info info;

	assert_int_equal(vma_capture_next(capture->reader, 0, &info, data), 1);
	assert_int_equal(info.kind, kind);
	if (kind == VMA_CAPTURE_DROP)
		assert_string_equal(info.text, "rx_drop_ip_fragment");
	return info.id;
}

static void test_a_capture_is_told_of_each_fragment_that_is_dropped(void **state)
{
	struct test_capture capture;
	uint32_t first, second, overlap;

	(void)state;
	test_capture_start(&capture, 0);
	make_datagram(3000, 1);
	inject_fragment_of_datagram(1, 0, FRAGMENT_BYTES);
	first = next_captured_record_id(&capture, VMA_CAPTURE_IN);
	inject_fragment_of_datagram(1, 0, FRAGMENT_BYTES); /* once more: it alone */
	second = next_captured_record_id(&capture, VMA_CAPTURE_IN);
	assert_int_equal(next_captured_record_id(&capture, VMA_CAPTURE_DROP), second);
	test_capture_nothing_more(&capture);
	inject_fragment_of_datagram(1, 2 * FRAGMENT_BYTES, datagram_len - 2 * FRAGMENT_BYTES);
	second = next_captured_record_id(&capture, VMA_CAPTURE_IN);
	inject_fragment_of_datagram(1, FRAGMENT_BYTES - 8, 16); /* an overlap: all of the datagram */
	overlap = next_captured_record_id(&capture, VMA_CAPTURE_IN);
	assert_int_equal(next_captured_record_id(&capture, VMA_CAPTURE_DROP), overlap);
	assert_int_equal(next_captured_record_id(&capture, VMA_CAPTURE_DROP), first);
	assert_int_equal(next_captured_record_id(&capture, VMA_CAPTURE_DROP), second);
	test_capture_nothing_more(&capture);
	assert_int_equal(COUNT(rx_drop_ip_fragment), 4);
	test_capture_stop(&capture);
}

/* Whatever comes, nothing is delivered that was not sent, and every buffer comes back: there are 512. */
static void test_random_fragments_do_no_harm(void **state)
{
	unsigned seed = 1;

	(void)state;
	for (unsigned round = 0; round < 20000; round++) {
		uint32_t off = (uint32_t)rand_r(&seed) % 12 * 8, len = 8u * (1 + (uint32_t)rand_r(&seed) % 4);

		/* Half of them fit together, so that datagrams become whole even if many are too late (a slow machine). */
		const bool fits = round % 2 == 0;

		if (fits)
			off = off / 24 * 32, len = 32;
		make_datagram(100 - 8, 1);
		ring_inject_ip_fragment((uint16_t)(rand_r(&seed) % (fits ? 8 : 80) + (fits ? 100 : 0)), off,
		                        off + len < 100 ? len : 100 - off, off + len < 100,
		                        (uint32_t)rand_r(&seed) % 20);
	}
	assert_true(calls > 0);
	assert_datagram_received_times(calls);
}

static void test_the_kernel_puts_together_what_a_nic_takes_that_does_not_see_all(void **state)
{
	(void)state;
	make_datagram(3 * FRAGMENT_BYTES, 1);
	for (uint32_t off = 0; off < 3 * FRAGMENT_BYTES; off += FRAGMENT_BYTES)
		inject_fragment_of_datagram(1, off, FRAGMENT_BYTES);
	assert_int_equal(calls, 0);
	assert_int_equal(fake.to_kernel, 3);
	assert_int_equal(COUNT(rx_to_kernel), 3);
	fake.to_kernel_result = -ENOBUFS;
	inject_fragment_of_datagram(1, 3 * FRAGMENT_BYTES, 8);
	assert_int_equal(COUNT(rx_to_kernel), 3);
	assert_int_equal(COUNT(rx_drop_ip_fragment), 1);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static const struct CMUnitTest tests[] = {
        CASE(test_fragments_in_order_become_the_datagram),
        CASE(test_any_order_and_any_padding_do),
        CASE(test_datagrams_that_are_mixed_up_are_told_apart),
        CASE(test_fragments_of_another_protocol_are_of_another_datagram),
        CASE(test_what_comes_after_a_lost_fragment_is_not_held_up),
        CASE(test_fragment_that_comes_twice_counts_once),
        CASE(test_overlap_ends_the_datagram),
        CASE(test_wrong_sum_of_the_whole_is_found),
        CASE(test_lengths_that_cannot_be_are_dropped),
        CASE(test_too_many_at_a_time_make_the_oldest_give_up),
        CASE(test_fragments_without_a_rest_leave_buffers_to_everything_else),
        CASE(test_late_rest_is_not_put_together),
        CASE(test_a_capture_is_told_of_each_fragment_that_is_dropped),
        CASE(test_random_fragments_do_no_harm),
        cmocka_unit_test_setup_teardown(test_the_kernel_puts_together_what_a_nic_takes_that_does_not_see_all,
                                        setup_nic_that_can_pass_to_kernel, teardown),
};
VMA_TEST_MAIN(tests)
