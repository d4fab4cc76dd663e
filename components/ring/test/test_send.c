/* The transmit side: what leaves, when it is kicked, what is refused, and where every buffer ends. */
#include <netinet/in.h>

#include "../ring_priv.h"
#include "fake_nic.h"
#include "frames.h"

static struct fake_nic fake;
static struct vma_ring *ring;

static int send_create_fake_nic_and_ring(uint32_t caps)
{
	fake_init(&fake, caps);
	ring = fake_nic_create_ring(&fake, VMA_THREAD_YIELD);
	return 0;
}

static int setup(void **state)
{
	(void)state;
	return send_create_fake_nic_and_ring(VMA_NIC_CAP_SG);
}

static int setup_nic_without_scatter_gather(void **state)
{
	(void)state;
	return send_create_fake_nic_and_ring(VMA_NIC_CAP_TX_CSUM);
}

static unsigned count_free_tx_bufs(void)
{
	struct vma_buf *bufs[1024];
	unsigned n = vma_bufpool_get(atomic_load(&fake.qp.tx_pool), bufs, 1024);

	vma_buf_put_burst(fake.arena, bufs, n);
	return n;
}

/* Every test ends with all transmit buffers at home. */
static int teardown(void **state)
{
	(void)state;
	vma_ring_flush_tx(ring);
	vma_cq_reap_sent_bufs(ring->cq);
	assert_int_equal(count_free_tx_bufs(), 512);
	vma_ring_destroy(ring);
	fake_fini(&fake);
	return 0;
}

static struct vma_nic_seg alloc_filled_frame_seg(uint32_t len, uint8_t fill)
{
	struct vma_buf *buf = vma_ring_tx_buf(ring);
	struct vma_nic_seg seg;

	assert_non_null(buf);
	seg = (struct vma_nic_seg){.buf = buf, .off = buf->data_off, .len = len};
	memset(vma_buf_frame(fake.arena, buf) + seg.off, fill, len);
	return seg;
}

static uint64_t tx(size_t offset)
{
	return vma_stats_read_counter((_Atomic uint64_t *)((char *)&vma_ring_stats(ring)->tx + offset));
}
#define COUNT(name) tx(offsetof(struct vma_stats_ring_tx, name))

static unsigned send_one_frame(uint32_t len, uint8_t fill, unsigned flags)
{
	struct vma_nic_seg seg = alloc_filled_frame_seg(len, fill);
	unsigned n = vma_ring_send(ring, &seg, 1, flags);

	if (n == 0)
		vma_buf_put(fake.arena, seg.buf);
	return n;
}

static void test_lone_frame_is_kicked_at_once(void **state)
{
	(void)state;
	assert_int_equal(send_one_frame(60, 1, 0), 1);
	assert_int_equal(fake.sent_count, 1);
	assert_int_equal(fake.kicks, 1);
	assert_int_equal(fake.sent[0].len, 60);
	assert_int_equal(fake.sent[0].bytes[59], 1);
	assert_int_equal(COUNT(tx_packets), 1);
	assert_int_equal(COUNT(tx_bytes), 60);
	assert_int_equal(COUNT(tx_kicks), 1);
}

static void test_burst_is_kicked_once(void **state)
{
	struct vma_nic_seg segs[32];

	(void)state;
	for (int i = 0; i < 32; i++)
		segs[i] = alloc_filled_frame_seg(60, (uint8_t)i);
	assert_int_equal(vma_ring_send(ring, segs, 32, 0), 32);
	assert_int_equal(fake.kicks, 1);
	assert_int_equal(fake.sent[31].bytes[0], 31);
}

static void test_later_waits_for_flush_progress_or_eight(void **state)
{
	(void)state;
	for (int i = 0; i < 7; i++)
		assert_int_equal(send_one_frame(60, 0, VMA_RING_SEND_LATER), 1);
	assert_int_equal(fake.kicks, 0);
	assert_int_equal(send_one_frame(60, 0, VMA_RING_SEND_LATER), 1);
	assert_int_equal(fake.kicks, 1);
	assert_int_equal(send_one_frame(60, 0, VMA_RING_SEND_LATER), 1);
	vma_ring_flush_tx(ring);
	assert_int_equal(fake.kicks, 2);
	vma_ring_flush_tx(ring);
	assert_int_equal(fake.kicks, 2); /* nothing waits */
	assert_int_equal(send_one_frame(60, 0, VMA_RING_SEND_LATER), 1);
	vma_ring_progress(ring);
	assert_int_equal(fake.kicks, 3);
	vma_ring_progress(ring);
	assert_int_equal(fake.kicks, 3);
}

static void test_kick_that_says_again_is_repeated_until_it_goes_through(void **state)
{
	(void)state;
	fake.kick_result = -EAGAIN;
	fake.kick_failures = 2;
	assert_int_equal(send_one_frame(60, 0, 0), 1);
	assert_int_equal(fake.kicks, 1);
	vma_ring_progress(ring);
	assert_int_equal(fake.kicks, 2);
	vma_ring_flush_tx(ring);
	assert_int_equal(fake.kicks, 3);
	vma_ring_flush_tx(ring);
	vma_ring_progress(ring);
	assert_int_equal(fake.kicks, 3);
}

static void test_kick_that_fails_is_not_repeated_for_ever(void **state)
{
	(void)state;
	fake.kick_result = -ENETDOWN;
	fake.kick_failures = 1;
	assert_int_equal(send_one_frame(60, 0, 0), 1);
	vma_ring_progress(ring);
	assert_int_equal(fake.kicks, 1);
	assert_int_equal(send_one_frame(60, 0, 0), 1);
}

static void test_full_nic_leaves_the_rest_with_the_caller(void **state)
{
	struct vma_nic_seg segs[8];

	(void)state;
	for (int i = 0; i < 8; i++)
		segs[i] = alloc_filled_frame_seg(60, (uint8_t)i);
	fake.tx_room = 3;
	assert_int_equal(vma_ring_send(ring, segs, 8, 0), 3);
	assert_int_equal(COUNT(tx_full), 1);
	assert_int_equal(COUNT(tx_packets), 3);
	fake.tx_room = 100;
	assert_int_equal(vma_ring_send(ring, segs + 3, 5, 0), 5);
	for (int i = 0; i < 8; i++)
		assert_int_equal(fake.sent[i].bytes[0], i);
}

static void test_packet_is_never_cut_at_a_segment(void **state)
{
	struct vma_nic_seg segs[4];

	(void)state;
	for (int i = 0; i < 4; i++)
		segs[i] = alloc_filled_frame_seg(100, (uint8_t)i);
	segs[0].flags = segs[2].flags = VMA_NIC_SEG_MORE;
	fake.tx_room = 3;
	assert_int_equal(vma_ring_send(ring, segs, 4, 0), 2);
	assert_int_equal(fake.sent_count, 1);
	assert_int_equal(fake.sent[0].segs, 2);
	assert_int_equal(fake.sent[0].len, 200);
	fake.tx_room = 100;
	assert_int_equal(vma_ring_send(ring, segs + 2, 2, 0), 2);
}

static void test_mtu_is_the_limit_and_a_vlan_tag_comes_on_top(void **state)
{
	struct vma_nic_seg seg;

	(void)state;
	assert_int_equal(send_one_frame(1514, 0, 0), 1);
	assert_int_equal(send_one_frame(1515, 0, 0), 1); /* taken and dropped */
	seg = alloc_filled_frame_seg(1518, 0);
	memcpy(vma_buf_frame(fake.arena, seg.buf) + seg.off + 12, "\x81\x00", 2);
	assert_int_equal(vma_ring_send(ring, &seg, 1, 0), 1);
	seg = alloc_filled_frame_seg(1519, 0);
	memcpy(vma_buf_frame(fake.arena, seg.buf) + seg.off + 12, "\x81\x00", 2);
	assert_int_equal(vma_ring_send(ring, &seg, 1, 0), 1);
	assert_int_equal(fake.sent_count, 2);
	assert_int_equal(COUNT(tx_drop_too_long), 2);
}

static void test_segments_together_must_fit_the_mtu(void **state)
{
	struct vma_nic_seg segs[2];

	(void)state;
	for (int i = 0; i < 2; i++)
		segs[i] = alloc_filled_frame_seg(800, 0);
	segs[0].flags = VMA_NIC_SEG_MORE;
	assert_int_equal(vma_ring_send(ring, segs, 2, 0), 2);
	assert_int_equal(fake.sent_count, 0);
	assert_int_equal(COUNT(tx_drop_too_long), 1);
}

static void test_packet_without_end_is_dropped_not_sent(void **state)
{
	struct vma_nic_seg seg = alloc_filled_frame_seg(60, 0);

	(void)state;
	seg.flags = VMA_NIC_SEG_MORE;
	assert_int_equal(vma_ring_send(ring, &seg, 1, 0), 1);
	assert_int_equal(fake.sent_count, 0);
	assert_int_equal(COUNT(tx_drop_bad), 1);
}

static void test_what_the_nic_can_never_send_stops_nobody(void **state)
{
	static const struct {
		uint32_t off, len;
		uint16_t flags;
	} bad[] = {{0, 13, 0},
	           {0, 0, 0},
	           {2040, 60, 0},
	           {UINT32_MAX, 60, 0},
	           {0, 60, VMA_NIC_SEG_TSO},
	           {0, 60, VMA_NIC_SEG_CSUM},
	           {0, 60, VMA_NIC_SEG_DUMMY}};
	struct vma_nic_seg segs[3];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		for (int j = 0; j < 3; j++)
			segs[j] = alloc_filled_frame_seg(60, (uint8_t)j);
		segs[1].off = bad[i].off;
		segs[1].len = bad[i].len;
		segs[1].flags = bad[i].flags;
		assert_int_equal(vma_ring_send(ring, segs, 3, 0), 3);
		assert_int_equal(fake.sent_count, 2 * (i + 1));
		assert_int_equal(COUNT(tx_drop_bad), i + 1);
	}
}

static int setup_tso(void **state)
{
	(void)state;
	fake_init(&fake, VMA_NIC_CAP_SG | VMA_NIC_CAP_TX_CSUM | VMA_NIC_CAP_TSO);
	fake.nic.info.tso_max_bytes = 5000;
	ring = fake_nic_create_ring(&fake, VMA_THREAD_YIELD);
	return 0;
}

static void make_tso_packet_of_three_segs(struct vma_nic_seg segs[3])
{
	for (int i = 0; i < 3; i++)
		segs[i] = alloc_filled_frame_seg(1600, (uint8_t)i);
	segs[0].flags = VMA_NIC_SEG_TSO | VMA_NIC_SEG_CSUM | VMA_NIC_SEG_MORE;
	segs[0].mss = 1448;
	segs[0].hdr_len = 66;
	segs[1].flags = VMA_NIC_SEG_MORE;
}

static void test_a_packet_that_the_nic_cuts_goes_to_it_whole(void **state)
{
	struct vma_nic_seg segs[4];

	(void)state;
	assert_int_equal(vma_ring_segs_max(ring), 32);
	make_tso_packet_of_three_segs(segs);
	segs[3] = alloc_filled_frame_seg(60, 9);
	assert_int_equal(vma_ring_send(ring, segs, 4, 0), 4);
	assert_int_equal(fake.sent_count, 2);
	assert_int_equal(fake.sent[0].len, 4800);
	assert_int_equal(fake.sent[0].segs, 3);
	assert_true(fake.sent[0].flags & VMA_NIC_SEG_TSO);
	assert_int_equal(fake.sent[1].len, 60);
	assert_int_equal(fake.kicks, 1);
	assert_int_equal(COUNT(tx_packets), 2);
}

static void test_a_packet_that_cannot_be_cut_stops_nobody(void **state)
{
	static const struct {
		uint16_t mss, hdr_len;
		uint32_t last;
	} bad[] = {{0, 66, 1600}, {1448, 13, 1600}, {1448, 1600, 1600}, {1448, 66, 1867}};
	struct vma_nic_seg segs[4];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		make_tso_packet_of_three_segs(segs);
		segs[0].mss = bad[i].mss;
		segs[0].hdr_len = bad[i].hdr_len;
		segs[2].len = bad[i].last;
		segs[3] = alloc_filled_frame_seg(60, 9);
		assert_int_equal(vma_ring_send(ring, segs, 4, 0), 4);
		assert_int_equal(fake.sent_count, i + 1);
		assert_int_equal(fake.sent[i].len, 60);
		assert_int_equal(COUNT(tx_drop_bad), i + 1);
	}
}

static void test_segments_are_gathered_for_a_nic_that_takes_one(void **state)
{
	struct vma_nic_seg segs[5];

	(void)state;
	for (int i = 0; i < 5; i++)
		segs[i] = alloc_filled_frame_seg(100 + (uint32_t)i, (uint8_t)i);
	segs[0].flags = VMA_NIC_SEG_MORE | VMA_NIC_SEG_CSUM;
	segs[1].flags = VMA_NIC_SEG_MORE;
	assert_int_equal(vma_ring_send(ring, segs, 5, 0), 5);
	assert_int_equal(fake.sent_count, 3);
	assert_int_equal(fake.sent[0].segs, 1);
	assert_int_equal(fake.sent[0].flags, VMA_NIC_SEG_CSUM);
	assert_int_equal(fake.sent[0].len, 303);
	assert_int_equal(fake.sent[0].bytes[99], 0);
	assert_int_equal(fake.sent[0].bytes[100], 1);
	assert_int_equal(fake.sent[0].bytes[302], 2);
	assert_int_equal(fake.sent[2].bytes[0], 4);
}

static void send_packet_of_n_segments(unsigned n)
{
	struct vma_nic_seg segs[32];

	for (unsigned i = 0; i < n; i++) {
		segs[i] = alloc_filled_frame_seg(40, (uint8_t)i);
		segs[i].flags = i + 1 < n ? VMA_NIC_SEG_MORE : 0;
	}
	assert_int_equal(vma_ring_send(ring, segs, n, 0), n);
}

static void test_more_segments_than_the_nic_takes_are_gathered(void **state)
{
	static const unsigned given[] = {16, 17, 20, 21}, taken[] = {16, 1, 20, 1};
	struct vma_ring_attr attr = {.nic = &fake.nic, .tx_wre = 16};

	(void)state;
	vma_ring_destroy(ring);
	fake.nic.info.tx_segs_max = 20;
	assert_int_equal(vma_ring_create(&attr, &ring), 0); /* a queue of 16 takes no packet of 17 */
	send_packet_of_n_segments(given[0]);
	send_packet_of_n_segments(given[1]);
	vma_ring_destroy(ring);
	ring = fake_nic_create_ring(&fake, VMA_THREAD_YIELD);
	send_packet_of_n_segments(given[2]);
	send_packet_of_n_segments(given[3]);
	assert_int_equal(fake.sent_count, 4);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(fake.sent[i].segs, taken[i]);
		assert_int_equal(fake.sent[i].len, given[i] * 40);
		assert_int_equal(fake.sent[i].bytes[given[i] * 40 - 1], given[i] - 1);
	}
}

static void test_gathered_packet_that_the_nic_does_not_take_stays_with_the_caller(void **state)
{
	struct vma_nic_seg segs[2];

	(void)state;
	for (int i = 0; i < 2; i++)
		segs[i] = alloc_filled_frame_seg(100, (uint8_t)i);
	segs[0].flags = VMA_NIC_SEG_MORE;
	fake.tx_room = 0;
	assert_int_equal(vma_ring_send(ring, segs, 2, 0), 0);
	fake.tx_room = 1;
	assert_int_equal(vma_ring_send(ring, segs, 2, 0), 2);
	assert_int_equal(fake.sent[0].len, 200);
}

static void test_buffers_come_back_while_sending_goes_on(void **state)
{
	(void)state;
	for (int i = 0; i < 3000; i++) /* six times the pool; the log of the fake holds them */
		assert_int_equal(send_one_frame(60, (uint8_t)i, 0), 1);
	assert_int_equal(fake.sent_count, 3000);
}

static void test_tx_buf_reaps_when_the_pool_is_empty(void **state)
{
	struct vma_buf *held[512];
	unsigned n = vma_bufpool_get(atomic_load(&fake.qp.tx_pool), held, 508);

	(void)state;
	assert_int_equal(n, 508);
	for (int i = 0; i < 40; i++) /* with four buffers, below the reaping batch, not even kicked */
		assert_int_equal(send_one_frame(60, 0, VMA_RING_SEND_LATER), 1);
	for (unsigned i = 0; i < 4; i++)
		held[508 + i] = vma_ring_tx_buf(ring);
	assert_non_null(held[511]);
	assert_null(vma_ring_tx_buf(ring));
	vma_buf_put_burst(fake.arena, held, 512);
}

/* ---- behind another driver: tx is entered again in the middle, as by another thread or a signal handler ---- */

struct send_within_send {
	unsigned sends, accepted;
	uint32_t len;
	unsigned segs;
};

static void send_from_within_nic_tx(void *arg)
{
	struct send_within_send *send_within_send = arg;

	fake.in_tx = NULL; /* once */
	for (unsigned i = 0; i < send_within_send->sends; i++) {
		struct vma_nic_seg segs[40];

		for (unsigned j = 0; j < send_within_send->segs; j++) {
			segs[j] = alloc_filled_frame_seg(send_within_send->len, (uint8_t)i);
			segs[j].flags = j + 1 < send_within_send->segs ? VMA_NIC_SEG_MORE : 0;
		}
		if (vma_ring_send(ring, segs, send_within_send->segs, 0) == send_within_send->segs)
			send_within_send->accepted++;
		else
			for (unsigned j = 0; j < send_within_send->segs; j++)
				vma_buf_put(fake.arena, segs[j].buf);
	}
	assert_int_equal(fake.sent_count, 0);
}

static void send_frame_with_sends_from_within_tx(struct send_within_send *send_within_send)
{
	fake.in_tx = send_from_within_nic_tx;
	fake.in_arg = send_within_send;
	assert_int_equal(send_one_frame(60, 0xff, 0), 1);
}

static void test_frames_queued_behind_a_driver_leave_at_its_release_in_order(void **state)
{
	struct send_within_send send_within_send = {.sends = 100, .len = 60, .segs = 1};

	(void)state;
	send_frame_with_sends_from_within_tx(&send_within_send);
	assert_int_equal(send_within_send.accepted, 100);
	assert_int_equal(fake.sent_count, 101);
	for (int i = 0; i < 100; i++)
		assert_int_equal(fake.sent[1 + i].bytes[0], i);
	assert_int_equal(COUNT(tx_commands), 100);
	assert_int_equal(fake.queued_count, 0); /* all kicked */
}

static void test_command_queue_is_bounded_and_says_so(void **state)
{
	struct send_within_send send_within_send = {.sends = 300, .len = 60, .segs = 1};

	(void)state;
	send_frame_with_sends_from_within_tx(&send_within_send);
	assert_int_equal(send_within_send.accepted, 256);
	assert_int_equal(fake.sent_count, 257);
	assert_int_equal(COUNT(tx_drop_queue), 44);
}

static void test_queued_packets_keep_their_segments(void **state)
{
	struct send_within_send send_within_send = {.sends = 10, .len = 40, .segs = 17};

	(void)state;
	send_frame_with_sends_from_within_tx(&send_within_send);
	assert_int_equal(send_within_send.accepted, 10);
	assert_int_equal(fake.sent_count, 11);
	for (int i = 1; i <= 10; i++) {
		assert_int_equal(fake.sent[i].segs, 17);
		assert_int_equal(fake.sent[i].len, 17 * 40);
	}
}

static void test_queued_segments_are_gathered_too(void **state)
{
	struct send_within_send send_within_send = {.sends = 10, .len = 40, .segs = 17};

	(void)state;
	/* Outside the flag they are gathered before they are queued; 17 and one buffers each are within the pool. */
	send_frame_with_sends_from_within_tx(&send_within_send);
	assert_int_equal(send_within_send.accepted, 10);
	assert_int_equal(fake.sent_count, 11);
	for (int i = 1; i <= 10; i++) {
		assert_int_equal(fake.sent[i].segs, 1);
		assert_int_equal(fake.sent[i].len, 17 * 40);
	}
}

static void test_queued_segments_beyond_what_the_nic_takes_are_gathered_too(void **state)
{
	struct vma_ring_attr attr = {.nic = &fake.nic, .thread_mode = VMA_THREAD_YIELD};
	struct send_within_send send_within_send = {.sends = 10, .len = 40, .segs = 17};

	(void)state;
	vma_ring_destroy(ring);
	fake.nic.info.tx_segs_max = 16;
	assert_int_equal(vma_ring_create(&attr, &ring), 0);
	send_frame_with_sends_from_within_tx(&send_within_send);
	assert_int_equal(send_within_send.accepted, 10);
	assert_int_equal(fake.sent_count, 11);
	for (int i = 1; i <= 10; i++)
		assert_int_equal(fake.sent[i].len, 17 * 40);
	assert_int_equal(send_one_frame(60, 0, 0), 1); /* nothing stands in the way */
}

static void send_inside_until_nic_is_full(void *arg)
{
	fake.tx_room = 1;
	send_from_within_nic_tx(arg);
}

static void test_backlog_leaves_before_what_is_sent_later(void **state)
{
	struct send_within_send send_within_send = {.sends = 50, .len = 60, .segs = 1};

	(void)state;
	fake.in_tx = send_inside_until_nic_is_full;
	fake.in_arg = &send_within_send;
	assert_int_equal(send_one_frame(60, 0xff, 0), 1); /* has the only room; the fifty wait */
	assert_int_equal(fake.sent_count, 1);
	assert_int_equal(send_one_frame(60, 0xee, 0), 0); /* not before them */
	fake.tx_room = 20;
	assert_int_equal(send_one_frame(60, 0xee, 0), 0);
	assert_int_equal(fake.sent_count, 21);
	fake.tx_room = 1000;
	vma_ring_progress(ring);
	assert_int_equal(fake.sent_count, 51);
	assert_int_equal(send_one_frame(60, 0xee, 0), 1);
	for (int i = 0; i < 50; i++)
		assert_int_equal(fake.sent[1 + i].bytes[0], i);
	assert_int_equal(COUNT(tx_commands), 50);
}

static void test_destroy_gives_back_what_was_queued(void **state)
{
	struct send_within_send send_within_send = {.sends = 50, .len = 60, .segs = 1};

	(void)state;
	fake.in_tx = send_inside_until_nic_is_full;
	fake.in_arg = &send_within_send;
	assert_int_equal(send_one_frame(60, 0xff, 0), 1);
	assert_int_equal(fake.sent_count, 1);
	vma_ring_destroy(ring); /* the debug build names buffers that would be missing */
	ring = fake_nic_create_ring(&fake, VMA_THREAD_YIELD);
}

/* ---- what was queued meets a device that can do less ---- */

enum { CUT_MSS = 1400, CUT_BYTES = 4000, CUT_HEADERS = 54 };

static uint8_t cut_pattern_byte_at(uint32_t at)
{
	return (uint8_t)(at * 7 + (at >> 8));
}

/* A packet of TCP in three pieces; its numbers are about to wrap. */
static void make_tso_packet_in_three_buffers(struct vma_nic_seg segs[3])
{
	static const uint32_t bytes[] = {1001, 1999, 1000};
	uint8_t header[CUT_HEADERS];

	tcp_frame(header, 1000, 80, 0x80 | 0x10 | 0x08 | 0x01, "", 0);
	store_be16(header + 18, 0xfffe);
	vma_pkt_put32(header + 38, 0xfffffff0);
	for (uint32_t i = 0, at = 0; i < 3; i++) {
		segs[i] = alloc_filled_frame_seg(0, 0);
		if (i == 0)
			memcpy(vma_buf_frame(fake.arena, segs[0].buf) + segs[0].off, header, CUT_HEADERS);
		segs[i].len = i == 0 ? CUT_HEADERS : 0;
		for (uint32_t k = 0; k < bytes[i]; k++)
			((uint8_t *)vma_buf_frame(fake.arena, segs[i].buf))[segs[i].off + segs[i].len++] =
			        cut_pattern_byte_at(at++);
		segs[i].flags = i < 2 ? VMA_NIC_SEG_MORE : 0;
	}
	segs[0].flags |= VMA_NIC_SEG_TSO | VMA_NIC_SEG_CSUM;
	segs[0].mss = CUT_MSS;
	segs[0].hdr_len = CUT_HEADERS;
}

static void check_frame_cut_from_tso_packet(const struct fake_frame *frame, uint32_t i, bool summed_by_nic)
{
	const uint32_t len = i < 2 ? CUT_MSS : CUT_BYTES - 2 * CUT_MSS;
	uint8_t scratch[FAKE_FRAME];

	assert_int_equal(frame->len, CUT_HEADERS + len);
	assert_int_equal(frame->segs, 1);
	assert_int_equal(frame->flags, summed_by_nic ? VMA_NIC_SEG_CSUM : 0);
	assert_int_equal(frame->bytes[16] << 8 | frame->bytes[17], 40 + len);
	assert_int_equal(frame->bytes[18] << 8 | frame->bytes[19], (0xfffe + i) & 0xffff);
	assert_int_equal(naive_checksum(frame->bytes + 14, 20), 0);
	assert_int_equal((uint32_t)frame->bytes[38] << 24 | frame->bytes[39] << 16 | frame->bytes[40] << 8 |
	                         frame->bytes[41],
	                 (uint32_t)(0xfffffff0 + i * CUT_MSS));
	assert_int_equal(frame->bytes[47], 0x10 | (i == 0 ? 0x80 : 0) | (i == 2 ? 0x09 : 0));
	for (uint32_t k = 0; k < len; k++)
		assert_int_equal(frame->bytes[CUT_HEADERS + k], cut_pattern_byte_at(i * CUT_MSS + k));
	memcpy(scratch, frame->bytes + 26, 8);
	memcpy(scratch + 8, (uint8_t[]){0, IPPROTO_TCP, (uint8_t)((20 + len) >> 8), (uint8_t)(20 + len)}, 4);
	memcpy(scratch + 12, frame->bytes + 34, 20 + len);
	if (summed_by_nic)
		assert_int_equal((uint16_t)~naive_checksum(scratch, 12), frame->bytes[50] << 8 | frame->bytes[51]);
	else
		assert_int_equal(naive_checksum(scratch, 12 + 20 + len), 0);
}

static void send_oversized_packet_from_within_tx(void *arg)
{
	struct vma_nic_seg segs[4];

	(void)arg;
	fake.in_tx = NULL;
	fake.tx_room = 1;
	make_tso_packet_in_three_buffers(segs);
	segs[3] = alloc_filled_frame_seg(60, 9);
	assert_int_equal(vma_ring_send(ring, segs, 4, 0), 4);
}

static void check_queued_tso_packet_is_cut_by_ring(uint32_t caps)
{
	const unsigned before = fake.sent_count;
	const uint64_t commands = COUNT(tx_commands);

	fake.nic.info.caps = VMA_NIC_CAP_SG | VMA_NIC_CAP_TX_CSUM | VMA_NIC_CAP_TSO;
	fake.nic.info.tso_max_bytes = 5000;
	fake.in_tx = send_oversized_packet_from_within_tx;
	assert_int_equal(send_one_frame(60, 0xff, 0), 1); /* has the only room */
	fake.nic.info.caps = caps;                        /* as after a rebind */
	fake.nic.info.tso_max_bytes = 0;
	fake.tx_room = 1; /* and what has been cut goes on where it stopped */
	vma_ring_progress(ring);
	assert_int_equal(fake.sent_count, before + 2);
	fake.tx_room = 1000;
	vma_ring_progress(ring);
	assert_int_equal(fake.sent_count, before + 5);
	for (uint32_t i = 0; i < 3; i++)
		check_frame_cut_from_tso_packet(&fake.sent[before + 1 + i], i, caps & VMA_NIC_CAP_TX_CSUM);
	assert_int_equal(fake.sent[before + 4].len, 60);
	assert_int_equal(COUNT(tx_commands), commands + 2);
	assert_int_equal(COUNT(tx_drop_bad), 0);
}

static void test_a_queued_packet_is_cut_here_if_the_nic_cannot_any_more(void **state)
{
	(void)state;
	check_queued_tso_packet_is_cut_by_ring(VMA_NIC_CAP_SG | VMA_NIC_CAP_TX_CSUM);
	check_queued_tso_packet_is_cut_by_ring(VMA_NIC_CAP_SG);
	check_queued_tso_packet_is_cut_by_ring(VMA_NIC_CAP_TX_CSUM);
}

/* As ring is told of a rebind. */
static void rebind_qp_with_caps(uint32_t caps)
{
	fake.nic.info.caps = caps;
	fake.nic.info.tso_max_bytes = caps & VMA_NIC_CAP_TSO ? 5000 : 0;
	atomic_store(&fake.qp.lost, true);
	fake.attr.event(&fake.qp, VMA_NIC_EVENT_LOST, NULL, fake.attr.event_arg);
	assert_false(vma_nic_qp_lost(&fake.qp));
}

static void test_a_packet_is_cut_here_if_the_nic_cannot_since_a_rebind(void **state)
{
	static const uint32_t caps[] = {VMA_NIC_CAP_SG | VMA_NIC_CAP_TX_CSUM, VMA_NIC_CAP_SG, 0};
	struct vma_nic_seg segs[4];

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		rebind_qp_with_caps(caps[i]);
		make_tso_packet_in_three_buffers(segs);
		segs[3] = alloc_filled_frame_seg(60, 9);
		assert_int_equal(vma_ring_send(ring, segs, 4, 0), 4);
		assert_int_equal(fake.sent_count, 4 * (i + 1));
		for (uint32_t k = 0; k < 3; k++)
			check_frame_cut_from_tso_packet(&fake.sent[4 * i + k], k, caps[i] & VMA_NIC_CAP_TX_CSUM);
		assert_int_equal(fake.sent[4 * i + 3].len, 60);
	}
	rebind_qp_with_caps(VMA_NIC_CAP_SG | VMA_NIC_CAP_TX_CSUM | VMA_NIC_CAP_TSO);
	make_tso_packet_in_three_buffers(segs);
	assert_int_equal(vma_ring_send(ring, segs, 3, 0), 3);
	assert_int_equal(fake.sent_count, 13);
	assert_true(fake.sent[12].flags & VMA_NIC_SEG_TSO);
	assert_int_equal(COUNT(tx_drop_bad), 0);
}

static void test_what_the_nic_can_since_a_rebind_is_its_own(void **state)
{
	struct vma_nic_seg seg = alloc_filled_frame_seg(60, 0);

	(void)state;
	seg.flags = VMA_NIC_SEG_CSUM;
	assert_int_equal(vma_ring_send(ring, &seg, 1, 0), 1);
	assert_int_equal(fake.sent_count, 0);
	assert_int_equal(COUNT(tx_drop_bad), 1);
	rebind_qp_with_caps(VMA_NIC_CAP_SG | VMA_NIC_CAP_TX_CSUM);
	seg = alloc_filled_frame_seg(60, 1);
	seg.flags = VMA_NIC_SEG_CSUM;
	assert_int_equal(vma_ring_send(ring, &seg, 1, 0), 1);
	assert_int_equal(fake.sent_count, 1);
	assert_int_equal(fake.sent[0].flags, VMA_NIC_SEG_CSUM);
	assert_int_equal(COUNT(tx_drop_bad), 1);
}

static void send_with_csum_offload_from_within_tx(void *arg)
{
	struct vma_nic_seg segs[2] = {alloc_filled_frame_seg(0, 0), alloc_filled_frame_seg(0, 0)};
	uint8_t bytes[200];

	(void)arg;
	fake.in_tx = NULL;
	fake.tx_room = 1;
	segs[0].len = udp_frame(bytes, 53, 54, "a datagram", 10);
	memcpy(vma_buf_frame(fake.arena, segs[0].buf) + segs[0].off, bytes, segs[0].len);
	segs[0].flags = segs[1].flags = VMA_NIC_SEG_CSUM;
	segs[1].len = 60; /* and one whose sum cannot be found */
	memset(vma_buf_frame(fake.arena, segs[1].buf) + segs[1].off, 0, 60);
	assert_int_equal(vma_ring_send(ring, segs, 2, 0), 2);
}

static void test_a_queued_packet_is_summed_here_if_the_nic_cannot_any_more(void **state)
{
	uint8_t expected[200];
	const uint32_t len = udp_frame(expected, 53, 54, "a datagram", 10);

	(void)state;
	fake.in_tx = send_with_csum_offload_from_within_tx;
	assert_int_equal(send_one_frame(60, 0xff, 0), 1);
	fake.nic.info.caps = VMA_NIC_CAP_SG;
	fake.tx_room = 1000;
	vma_ring_progress(ring);
	assert_int_equal(fake.sent_count, 2);
	assert_int_equal(fake.sent[1].len, len);
	assert_int_equal(fake.sent[1].flags, 0);
	assert_memory_equal(fake.sent[1].bytes, expected, len);
	assert_int_equal(COUNT(tx_drop_bad), 1);
	assert_int_equal(send_one_frame(60, 0xee, 0), 1); /* nothing stands in the way */
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define CASE_WITHOUT_SG(name) cmocka_unit_test_setup_teardown(name, setup_nic_without_scatter_gather, teardown)
static const struct CMUnitTest tests[] = {
        CASE(test_lone_frame_is_kicked_at_once),
        CASE(test_burst_is_kicked_once),
        CASE(test_later_waits_for_flush_progress_or_eight),
        CASE(test_kick_that_says_again_is_repeated_until_it_goes_through),
        CASE(test_kick_that_fails_is_not_repeated_for_ever),
        CASE(test_full_nic_leaves_the_rest_with_the_caller),
        CASE(test_packet_is_never_cut_at_a_segment),
        CASE(test_mtu_is_the_limit_and_a_vlan_tag_comes_on_top),
        CASE(test_segments_together_must_fit_the_mtu),
        CASE(test_packet_without_end_is_dropped_not_sent),
        CASE(test_what_the_nic_can_never_send_stops_nobody),
        cmocka_unit_test_setup_teardown(test_a_packet_that_the_nic_cuts_goes_to_it_whole, setup_tso, teardown),
        cmocka_unit_test_setup_teardown(test_a_packet_that_cannot_be_cut_stops_nobody, setup_tso, teardown),
        cmocka_unit_test_setup_teardown(test_a_queued_packet_is_cut_here_if_the_nic_cannot_any_more, setup_tso,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_queued_packet_is_summed_here_if_the_nic_cannot_any_more, setup_tso,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_packet_is_cut_here_if_the_nic_cannot_since_a_rebind, setup_tso,
                                        teardown),
        CASE(test_what_the_nic_can_since_a_rebind_is_its_own),
        CASE_WITHOUT_SG(test_segments_are_gathered_for_a_nic_that_takes_one),
        CASE(test_more_segments_than_the_nic_takes_are_gathered),
        CASE(test_queued_segments_beyond_what_the_nic_takes_are_gathered_too),
        CASE_WITHOUT_SG(test_gathered_packet_that_the_nic_does_not_take_stays_with_the_caller),
        CASE(test_buffers_come_back_while_sending_goes_on),
        CASE(test_tx_buf_reaps_when_the_pool_is_empty),
        CASE(test_frames_queued_behind_a_driver_leave_at_its_release_in_order),
        CASE(test_command_queue_is_bounded_and_says_so),
        CASE(test_queued_packets_keep_their_segments),
        CASE_WITHOUT_SG(test_queued_segments_are_gathered_too),
        CASE(test_backlog_leaves_before_what_is_sent_later),
        CASE(test_destroy_gives_back_what_was_queued),
};
VMA_TEST_MAIN(tests)
