/* What a capture has of the packets of a queue pair: each whole and once, however its pieces come. */
#include <stdlib.h>

#include <vma/test_capture.h>

#include "fixture.h"

#define PORT 21000
#define PEER_PORT 22000
#define DEPTH 64

struct tap_fixture {
	struct fixture w;
	struct test_capture capture;
};

/* *state: the bytes of each frame that are asked for; 0: all. */
static int setup_wire_pair_with_capture(void **state)
{
	const int snap = (int)(intptr_t)*state;
	struct vma_wire_pair_attr pair = {.mtu = 9000};
	struct tap_fixture *t = calloc(1, sizeof(*t));

	t->w.netns[0] = t->w.netns[1] = -1;
	t->w.arena = pair.arena[0] = pair.arena[1] = fixture_arena();
	assert_int_equal(vma_wire_create_pair(&pair, t->w.nic), 0);
	fixture_create_qp_with_posted_rx(&t->w, 0, 0, DEPTH);
	fixture_create_qp_with_posted_rx(&t->w, 1, 0, DEPTH);
	fixture_add_flow(&t->w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	test_capture_start(&t->capture, snap);
	*state = t;
	return 0;
}

static int teardown_wire_pair_with_capture(void **state)
{
	struct tap_fixture *t = *state;

	test_capture_stop(&t->capture);
	for (int end = 0; end < 2; end++)
		fixture_nic_close(&t->w, end);
	vma_bufpool_flush_thread(t->w.arena);
	vma_bufarena_destroy(t->w.arena);
	free(t);
	return 0;
}

static void build_numbered_udp_frame(const struct fixture *w, uint32_t number, uint32_t len, uint8_t *frame)
{
	struct frame_spec spec = udp(PEER_PORT, PORT, len, number);

	spec.src_mac = w->mac[0];
	spec.dst_mac = w->mac[1];
	frame_build(frame, &spec);
}

static void send_numbered_udp_in_1500_byte_bufs(struct fixture *w, uint32_t number, uint32_t len)
{
	static uint8_t frame[FRAME_MAX];
	struct vma_nic_seg segs[8];
	uint16_t n = 0;

	build_numbered_udp_frame(w, number, len, frame);
	for (uint32_t at = 0, part; at < len; at += part, n++) {
		part = len - at < 1500 ? len - at : 1500;
		segs[n] = (struct vma_nic_seg){.buf = fixture_get_tx_buf_waiting(w->qp[0][0]),
		                               .off = w->qp[0][0]->tx_headroom};
		segs[n].len = part;
		segs[n].flags = at + part < len ? VMA_NIC_SEG_MORE : 0;
		memcpy(vma_buf_frame(w->arena, segs[n].buf) + segs[n].off, frame + at, part);
	}
	assert_int_equal(vma_nic_tx(w->qp[0][0], segs, n), n);
	vma_nic_kick(w->qp[0][0]);
	fixture_reap_and_free_tx_bufs(w->qp[0][0]);
}

static unsigned poll_and_repost_rx_bufs(struct fixture *w, unsigned most)
{
	struct vma_buf *bufs[FIXTURE_BURST];
	const unsigned n = vma_nic_poll_rx(w->qp[1][0], bufs, most);

	assert_true(repost_rx_bufs_until_taken(w->qp[1][0], bufs, n));
	return n;
}

static void poll_until_no_bufs(struct fixture *w, unsigned most)
{
	while (poll_and_repost_rx_bufs(w, most) != 0)
		;
}

static void assert_next_captured_packet(struct tap_fixture *t, uint8_t kind, uint32_t number, uint32_t len,
                                        uint32_t captured)
{
	static uint8_t data[VMA_CAPTURE_DATA_MAX], frame[FRAME_MAX];
	struct vma_capture_info info;

	assert_int_equal(vma_capture_next(t->capture.reader, 0, &info, data), 1);
	assert_int_equal(info.kind, kind);
	assert_int_equal(info.len, len);
	assert_int_equal(info.captured, captured);
	assert_string_equal(info.text, t->w.nic[kind == VMA_CAPTURE_IN]->info.name);
	build_numbered_udp_frame(&t->w, number, len, frame);
	assert_memory_equal(data, frame, captured);
}

static void test_a_frame_above_one_buffer_is_captured_whole_both_ways(void **state)
{
	struct tap_fixture *t = *state;

	send_numbered_udp_in_1500_byte_bufs(&t->w, 1, 9014);
	send_numbered_udp_in_1500_byte_bufs(&t->w, 2, 100);
	poll_until_no_bufs(&t->w, FIXTURE_BURST);
	assert_next_captured_packet(t, VMA_CAPTURE_OUT, 1, 9014, 9014);
	assert_next_captured_packet(t, VMA_CAPTURE_OUT, 2, 100, 100);
	assert_next_captured_packet(t, VMA_CAPTURE_IN, 1, 9014, 9014);
	assert_next_captured_packet(t, VMA_CAPTURE_IN, 2, 100, 100);
	test_capture_nothing_more(&t->capture);
}

static void test_pieces_of_several_bursts_are_one_packet(void **state)
{
	for (unsigned most = 1; most < 8; most++) {
		struct tap_fixture *t = *state;

		for (uint32_t i = 0; i < 3; i++) {
			send_numbered_udp_in_1500_byte_bufs(&t->w, i, i == 1 ? 700 : 9014 - i);
			assert_next_captured_packet(t, VMA_CAPTURE_OUT, i, i == 1 ? 700 : 9014 - i,
			                            i == 1 ? 700 : 9014 - i);
		}
		poll_until_no_bufs(&t->w, most);
		for (uint32_t i = 0; i < 3; i++)
			assert_next_captured_packet(t, VMA_CAPTURE_IN, i, i == 1 ? 700 : 9014 - i,
			                            i == 1 ? 700 : 9014 - i);
		test_capture_nothing_more(&t->capture);
	}
}

static void test_a_cut_frame_has_its_whole_length(void **state)
{
	struct tap_fixture *t = *state;

	send_numbered_udp_in_1500_byte_bufs(&t->w, 7, 9014);
	poll_until_no_bufs(&t->w, 2);
	assert_next_captured_packet(t, VMA_CAPTURE_OUT, 7, 9014, 60);
	assert_next_captured_packet(t, VMA_CAPTURE_IN, 7, 9014, 60);
	test_capture_nothing_more(&t->capture);
}

static void test_of_two_readers_the_one_with_the_longer_frames_counts(void **state)
{
	struct tap_fixture *t = *state;

	test_capture_ask(&t->capture, VMA_CAPTURE_LEASE_MAX, 3000);
	test_capture_ask(&t->capture, VMA_CAPTURE_LEASE_MAX, 60);
	send_numbered_udp_in_1500_byte_bufs(&t->w, 8, 9014);
	poll_until_no_bufs(&t->w, 2);
	assert_next_captured_packet(t, VMA_CAPTURE_OUT, 8, 9014, 3000);
	assert_next_captured_packet(t, VMA_CAPTURE_IN, 8, 9014, 3000);
	test_capture_nothing_more(&t->capture);
}

static void test_pieces_from_before_a_pause_are_no_part_of_what_comes_after(void **state)
{
	const struct timespec pause = {.tv_nsec = 10000000};
	struct tap_fixture *t = *state;

	test_capture_ask(&t->capture, 1, 0);
	send_numbered_udp_in_1500_byte_bufs(&t->w, 1, 9014);
	assert_next_captured_packet(t, VMA_CAPTURE_OUT, 1, 9014, 9014);
	assert_int_equal(poll_and_repost_rx_bufs(&t->w, 1), 1);
	while (vma_capture_wanted(t->capture.capture))
		nanosleep(&pause, NULL);
	poll_until_no_bufs(&t->w, 1); /* unseen: the capture is over */
	test_capture_ask(&t->capture, VMA_CAPTURE_LEASE_MAX, 0);
	send_numbered_udp_in_1500_byte_bufs(&t->w, 2, 200);
	poll_until_no_bufs(&t->w, 1);
	assert_next_captured_packet(t, VMA_CAPTURE_OUT, 2, 200, 200);
	assert_next_captured_packet(t, VMA_CAPTURE_IN, 2, 200, 200);
	test_capture_nothing_more(&t->capture);
}

#define CASE(name, snap)                                                                                               \
	cmocka_unit_test_prestate_setup_teardown(name, setup_wire_pair_with_capture, teardown_wire_pair_with_capture,  \
	                                         (void *)(intptr_t)(snap))

static const struct CMUnitTest tests[] = {
        CASE(test_a_frame_above_one_buffer_is_captured_whole_both_ways, 0),
        CASE(test_pieces_of_several_bursts_are_one_packet, 0),
        CASE(test_a_cut_frame_has_its_whole_length, 60),
        CASE(test_of_two_readers_the_one_with_the_longer_frames_counts, 60),
        CASE(test_pieces_from_before_a_pause_are_no_part_of_what_comes_after, 0),
};
VMA_TEST_MAIN(tests)
