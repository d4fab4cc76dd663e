/*
 * Every frame that was left for later leaves soon, also the last one, after which its thread stays away: it comes at
 * about the time at which the internal thread takes the bit that an earlier frame has set.
 */
#include "wait_fixture.h"

#define LATE_NS (5000 * MSEC) /* its thread has to get a core; that it leaves is asserted */

static double later_stress_seconds(void)
{
	const char *seconds = getenv("STRESS_SECONDS");

	return seconds != NULL ? atof(seconds) : 1.5;
}

static void send_one_packet_later(void)
{
	static const struct vma_pkt_udp_attr attr = {
	        .src_ip = {10, 0, 0, 1}, .dst_ip = {10, 0, 0, 2}, .src_port_be = 0x1234, .dst_port_be = 0x4321};
	struct vma_buf *buf = vma_ring_tx_buf(fixture.ring_ctx->ring);
	struct vma_pkt_udp headers;
	struct vma_nic_seg seg;

	assert_non_null(buf);
	vma_pkt_udp_init(&headers, &attr);
	seg = (struct vma_nic_seg){.buf = buf, .off = buf->data_off};
	memset(vma_buf_data(fixture.device.engine->arena, buf) + headers.len, 'x', 8);
	seg.len = vma_pkt_udp_write(&headers, vma_buf_data(fixture.device.engine->arena, buf), 8, VMA_PKT_CSUM_FULL);
	assert_int_equal(vma_ring_send(fixture.ring_ctx->ring, &seg, 1, VMA_RING_SEND_LATER), 1);
	vma_engine_flush_rings_within_1ms(vma_ring_ctx_bit(fixture.ring_ctx));
}

static uint64_t count_packets_arrived_at_peer(void)
{
	while (vma_ring_progress(fixture.peer) > 0)
		;
	return atomic_load(&vma_ring_stats(fixture.peer)->rx.rx_packets);
}

static void test_the_last_frame_of_a_row_leaves_soon(void **state)
{
	uint64_t until = vma_now_ns() + (uint64_t)(later_stress_seconds() * 1e9),
	         left = count_packets_arrived_at_peer(), rows = 0;
	struct vma_flow flow = {
	        .key = {.family = AF_INET, .proto = IPPROTO_UDP, .local = {10, 0, 0, 2}, .local_port_be = 0x4321},
	        .sink = sink_count_and_wake_waiters,
	        .owner = &fixture.things[0],
	};
	unsigned seed = 3;

	(void)state;
	assert_int_equal(vma_ring_attach_flow(fixture.peer, &flow), 0);
	for (; vma_test_goes_on(vma_now_ns(), until, rows > 10); rows++) {
		uint64_t row_ns = vma_now_ns() + MSEC + ((seed = seed * 1103515245 + 12345) >> 12) % (MSEC / 4),
		         give_up;

		for (int i = 0; i < 2; i++) {
			send_one_packet_later();
			left++;
			while (i == 0 && vma_now_ns() < row_ns)
				count_packets_arrived_at_peer();
		}
		give_up = vma_now_ns() + LATE_NS;
		while (count_packets_arrived_at_peer() < left && vma_now_ns() < give_up)
			sched_yield();
		assert_int_equal(count_packets_arrived_at_peer(), left);
	}
	print_message("%lu rows, %lu frames\n", (unsigned long)rows, (unsigned long)left);
	assert_true(rows > 10);
	vma_ring_detach_flow(fixture.peer, &flow);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_frame_of_a_row_leaves_soon),
};

VMA_TEST_MAIN_WITH(tests, wait_fixture_start, NULL)
