/* The pair: faults, virtual time, moderation, several queue pairs, counters, the index wrap. */
#include "../wire/wire.h"
#include "fixture.h"

#define PORT 21000
#define PEER_PORT 22000

static uint64_t clock_ns;

/* A pair on a virtual clock with one queue pair per end and a flow each way. */
static void wire_make_fixture(struct fixture *w, const struct vma_wire_pair_attr *wanted, uint32_t index_start)
{
	struct vma_wire_pair_attr attr = *wanted;

	memset(w, 0, sizeof(*w));
	clock_ns = 0;
	w->arena = fixture_arena();
	w->netns[0] = w->netns[1] = -1;
	attr.arena[0] = attr.arena[1] = w->arena;
	attr.virtual_now_ns = &clock_ns;
	assert_int_equal(wire_pair_create(&attr, index_start, w->nic), 0);
	for (int end = 0; end < 2; end++) {
		fixture_create_qp_with_posted_rx(w, end, 0, 512);
		fixture_add_flow(w, end, 0, IPPROTO_UDP, PORT, 0, 0);
	}
}

static void wire_destroy_fixture(struct fixture *w)
{
	for (int end = 0; end < 2; end++)
		if (w->nic[end] != NULL)
			fixture_nic_close(w, end);
	vma_bufpool_flush_thread(w->arena);
	vma_bufarena_destroy(w->arena);
}

/* Polls once and notes the numbers of what came; returns how many. */
static uint32_t poll_frame_numbers(struct fixture *w, uint32_t *out, uint32_t max)
{
	static struct packet packet;
	uint32_t n = 0;

	while (n < max && fixture_poll_one_packet(w->qp[1][0], &packet))
		out[n++] = frame_number(packet.bytes, IPPROTO_UDP);
	return n;
}

static void wire_send_numbered(struct fixture *w, uint32_t first, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, first + i));
}

static void test_loss_duplication_and_order_are_as_planned_and_counted(void **state)
{
	struct fixture w;
	struct vma_wire_pair_attr attr = {0};
	struct vma_wire_counts counts;
	static uint32_t got[4000];
	uint32_t n = 0, overtaken = 0, highest = 0;

	(void)state;
	attr.faults[0] = (struct vma_wire_faults){
	        .seed = 7, .loss_ppm = 100000, .duplicate_ppm = 50000, .reorder_ppm = 50000, .reorder_depth = 3};
	wire_make_fixture(&w, &attr, 0);
	for (uint32_t i = 0; i < 2000; i += 100) {
		wire_send_numbered(&w, i, 100);
		n += poll_frame_numbers(&w, got + n, 4000 - n);
	}
	clock_ns += 2000000; /* those that nobody overtook any more */
	n += poll_frame_numbers(&w, got + n, 4000 - n);
	vma_wire_read_counters(w.nic[0], &counts);
	assert_int_equal(counts.sent, 2000);
	assert_int_equal(counts.delivered, n);
	assert_int_equal(counts.lost + n, 2000 + counts.duplicated);
	assert_in_range(counts.lost, 140, 260);
	assert_in_range(counts.duplicated, 60, 140);
	assert_in_range(counts.reordered, 60, 140);
	for (uint32_t i = 0; i < n; i++) {
		overtaken += got[i] < highest;
		assert_true(got[i] + 3 + 8 > highest); /* depth 3, and losses and duplicates in between */
		highest = got[i] > highest ? got[i] : highest;
	}
	assert_in_range(overtaken, 50, counts.reordered + counts.duplicated);
	wire_destroy_fixture(&w);
}

/* Sends in bursts of `burst`, so that polls fall differently, and hashes what arrives when. */
static uint64_t hash_of_arrivals(uint64_t seed, uint32_t burst)
{
	struct fixture w;
	struct vma_wire_pair_attr attr = {.queue_frames = 2048};
	static struct packet packet;
	uint64_t hash = 0;

	attr.faults[0] = (struct vma_wire_faults){.seed = seed,
	                                          .loss_ppm = 50000,
	                                          .duplicate_ppm = 50000,
	                                          .reorder_ppm = 50000,
	                                          .corrupt_ppm = 20000,
	                                          .delay_ns = 3000,
	                                          .jitter_ns = 5000};
	wire_make_fixture(&w, &attr, 0);
	for (uint32_t i = 0; i < 1200; i++) {
		fixture_send(&w, 0, 0, udp(PEER_PORT, PORT, 100, i));
		clock_ns += 100;
		if ((i + 1) % burst != 0)
			continue;
		for (uint32_t j = 0; j < 3; j++)
			vma_wire_drive_both_ends(w.nic[0]);
	}
	clock_ns += 10000000;
	while (fixture_poll_one_packet(w.qp[1][0], &packet))
		for (uint32_t i = 0; i < packet.len; i++)
			hash = hash * 31 + packet.bytes[i];
	wire_destroy_fixture(&w);
	return hash;
}

static void test_the_same_seed_gives_the_same_faults(void **state)
{
	(void)state;
	assert_int_equal(hash_of_arrivals(1, 1200), hash_of_arrivals(1, 1200));
	assert_int_equal(hash_of_arrivals(1, 100), hash_of_arrivals(1, 100));
	assert_int_not_equal(hash_of_arrivals(1, 1200), hash_of_arrivals(2, 1200));
}

static void test_delay_follows_the_virtual_clock(void **state)
{
	struct fixture w;
	struct vma_wire_pair_attr attr = {.faults[0] = {.delay_ns = 1000000}};
	uint32_t got[8];

	(void)state;
	wire_make_fixture(&w, &attr, 0);
	wire_send_numbered(&w, 1, 1);
	clock_ns = 400000;
	wire_send_numbered(&w, 2, 1);
	assert_int_equal(poll_frame_numbers(&w, got, 8), 0);
	clock_ns = 999999;
	assert_int_equal(poll_frame_numbers(&w, got, 8), 0);
	clock_ns = 1000000;
	assert_int_equal(poll_frame_numbers(&w, got, 8), 1);
	assert_int_equal(got[0], 1);
	assert_int_equal(vma_nic_arm(w.qp[1][0]), 0);
	clock_ns = 1400000;
	assert_false(wait_fd_readable(vma_nic_fd(w.qp[1][0]), 0));
	vma_wire_drive_both_ends(w.nic[0]); /* the clock is looked at: the sleeper hears of it */
	assert_true(wait_fd_readable(vma_nic_fd(w.qp[1][0]), 0));
	assert_int_equal(poll_frame_numbers(&w, got, 8), 1);
	assert_int_equal(got[0], 2);
	assert_int_equal(vma_nic_now_ns(w.nic[0]), 1400000);
	wire_destroy_fixture(&w);
}

static void test_jitter_changes_order_within_its_bound(void **state)
{
	struct fixture w;
	struct vma_wire_pair_attr attr = {.faults[0] = {.seed = 3, .delay_ns = 1000, .jitter_ns = 1000}};
	uint32_t got[100], turned = 0;

	(void)state;
	wire_make_fixture(&w, &attr, 0);
	wire_send_numbered(&w, 0, 100);
	clock_ns = 999;
	assert_int_equal(poll_frame_numbers(&w, got, 100), 0);
	clock_ns = 2000;
	assert_int_equal(poll_frame_numbers(&w, got, 100), 100);
	for (uint32_t i = 1; i < 100; i++)
		turned += got[i] < got[i - 1];
	assert_true(turned > 20);
	wire_destroy_fixture(&w);
}

static void test_corruption_turns_one_bit(void **state)
{
	struct fixture w;
	struct vma_wire_pair_attr attr = {.checksum_offload = true, .faults[0] = {.seed = 5, .corrupt_ppm = 1000000}};
	static struct packet packet;
	static uint8_t good[100];
	struct vma_wire_counts counts;
	uint32_t arrived = 0;

	(void)state;
	wire_make_fixture(&w, &attr, 0);
	for (uint32_t i = 0; i < 200; i++) {
		struct frame_spec spec = udp(PEER_PORT, PORT, 100, i);
		fixture_send(&w, 0, 0, spec);
		if (!fixture_poll_one_packet(w.qp[1][0], &packet))
			continue; /* the bit was in an address or port: nobody's flow */
		arrived++;
		spec.src_mac = w.mac[0];
		spec.dst_mac = w.mac[1];
		frame_build(good, &spec);
		unsigned bits = 0;
		for (uint32_t j = 0; j < 100; j++)
			bits += (unsigned)__builtin_popcount((uint8_t)(packet.bytes[j] ^ good[j]));
		assert_int_equal(bits, 1);
		if (packet.bytes[13] == good[13] && memcmp(packet.bytes, good, 34) == 0) /* beyond the IP header */
			assert_true(packet.flags & VMA_BUF_RX_L4_CSUM_BAD);
	}
	vma_wire_read_counters(w.nic[0], &counts);
	assert_int_equal(counts.corrupted, 200);
	assert_int_equal(counts.delivered + counts.no_flow, 200);
	assert_int_equal(arrived, counts.delivered);
	assert_true(arrived > 100);
	wire_destroy_fixture(&w);
}

static void test_a_bounded_lane_holds_that_many_and_loses_none(void **state)
{
	struct fixture w;
	struct vma_wire_pair_attr attr = {.queue_frames = 20};
	uint32_t taken = 0, got[32];
	struct frame_spec spec = udp(PEER_PORT, PORT, 100, 0);

	(void)state;
	wire_make_fixture(&w, &attr, 0);
	for (;; taken++) {
		spec.number = taken;
		struct vma_nic_seg seg = fixture_build_frame_in_tx_buf(&w, 0, 0, &spec);
		unsigned n = vma_nic_tx(w.qp[0][0], &seg, 1);
		vma_nic_kick(w.qp[0][0]);
		fixture_reap_and_free_tx_bufs(w.qp[0][0]);
		if (n == 0) {
			vma_buf_put(w.arena, seg.buf);
			break;
		}
	}
	assert_int_equal(taken, 20);
	assert_int_equal(poll_frame_numbers(&w, got, 32), 20);
	for (uint32_t i = 0; i < 20; i++)
		assert_int_equal(got[i], i);
	wire_destroy_fixture(&w);
}

static void test_a_full_delay_line_drops_the_newest(void **state)
{
	struct fixture w;
	struct vma_wire_pair_attr attr = {.queue_frames = 8, .faults[0] = {.delay_ns = 1000}};
	struct vma_wire_counts counts;
	uint32_t got[32];

	(void)state;
	wire_make_fixture(&w, &attr, 0);
	for (uint32_t i = 0; i < 12; i++) {
		wire_send_numbered(&w, i, 1);
		vma_wire_drive_both_ends(w.nic[0]);
	}
	clock_ns = 1000;
	assert_int_equal(poll_frame_numbers(&w, got, 32), 8);
	assert_int_equal(got[7], 7);
	vma_wire_read_counters(w.nic[0], &counts);
	assert_int_equal(counts.queue_full, 4);
	wire_destroy_fixture(&w);
}

/* Or a user that waits for one more packet before it lets go of any would wait for ever. */
static void test_a_user_may_hold_fewer_frames_than_the_queue_has(void **state)
{
	struct fixture w;
	struct vma_wire_pair_attr attr = {0};

	(void)state;
	wire_make_fixture(&w, &attr, 0);
	assert_in_range(w.qp[0][0]->rx_quota, 1, w.qp[0][0]->rx_depth - 1);
	wire_destroy_fixture(&w);
}

static void test_due_says_when_the_next_delayed_frame_arrives(void **state)
{
	struct fixture w;
	struct vma_wire_pair_attr attr = {.faults[0] = {.delay_ns = 1000}};
	uint32_t got[8];

	(void)state;
	wire_make_fixture(&w, &attr, 0);
	assert_int_equal(vma_wire_next_arrival_ns(w.nic[0]), UINT64_MAX);
	for (uint32_t i = 0; i < 2; i++) {
		clock_ns = 100 * (uint64_t)i;
		wire_send_numbered(&w, i, 1);
		vma_wire_drive_both_ends(w.nic[0]);
	}
	assert_int_equal(vma_wire_next_arrival_ns(w.nic[0]), 1000);
	assert_int_equal(vma_wire_next_arrival_ns(w.nic[1]), UINT64_MAX);
	clock_ns = vma_wire_next_arrival_ns(w.nic[0]) - 1;
	assert_int_equal(poll_frame_numbers(&w, got, 8), 0);
	clock_ns++;
	assert_int_equal(poll_frame_numbers(&w, got, 8), 1);
	clock_ns = vma_wire_next_arrival_ns(w.nic[0]);
	assert_int_equal(clock_ns, 1100);
	assert_int_equal(poll_frame_numbers(&w, got, 8), 1);
	assert_int_equal(vma_wire_next_arrival_ns(w.nic[0]), UINT64_MAX);
	wire_destroy_fixture(&w);
}

static void test_moderation_reports_after_count_or_period(void **state)
{
	struct fixture w;
	struct vma_wire_pair_attr attr = {0};
	uint32_t got[16];

	(void)state;
	wire_make_fixture(&w, &attr, 0);
	int fd = vma_nic_fd(w.qp[1][0]);
	clock_ns = 5;
	assert_int_equal(vma_nic_set_interrupt_moderation(w.qp[1][0], 4, 100), 0);
	assert_int_equal(vma_nic_arm(w.qp[1][0]), 0);
	wire_send_numbered(&w, 0, 3);
	assert_false(wait_fd_readable(fd, 0));
	wire_send_numbered(&w, 3, 1);
	assert_true(wait_fd_readable(fd, 0)); /* count */
	assert_int_equal(poll_frame_numbers(&w, got, 16), 4);

	assert_int_equal(vma_nic_arm(w.qp[1][0]), 0);
	assert_false(wait_fd_readable(fd, 0));
	wire_send_numbered(&w, 4, 1);
	clock_ns += 99999;
	vma_wire_drive_both_ends(w.nic[1]);
	assert_false(wait_fd_readable(fd, 0));
	clock_ns += 1;
	vma_wire_drive_both_ends(w.nic[1]);
	assert_true(wait_fd_readable(fd, 0)); /* period, from the first frame */
	assert_int_equal(poll_frame_numbers(&w, got, 16), 1);

	assert_int_equal(vma_nic_set_interrupt_moderation(w.qp[1][0], 0, 0), 0);
	assert_int_equal(vma_nic_arm(w.qp[1][0]), 0);
	wire_send_numbered(&w, 5, 1);
	assert_true(wait_fd_readable(fd, 0));
	wire_destroy_fixture(&w);
}

static void test_real_time_delay_and_moderation_wake_by_timer(void **state)
{
	struct fixture w = {.netns = {-1, -1}};
	struct vma_wire_pair_attr attr = {.faults[0] = {.delay_ns = 3000000}};
	uint32_t got[4];

	(void)state;
	w.arena = attr.arena[0] = attr.arena[1] = fixture_arena();
	assert_int_equal(vma_wire_create_pair(&attr, w.nic), 0);
	fixture_create_qp_with_posted_rx(&w, 0, 0, 64);
	fixture_create_qp_with_posted_rx(&w, 1, 0, 64);
	fixture_add_flow(&w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	assert_int_equal(vma_nic_arm(w.qp[1][0]), 0);
	uint64_t start = fixture_now_ns();
	wire_send_numbered(&w, 1, 1);
	assert_true(wait_fd_readable(vma_nic_fd(w.qp[1][0]), 3000));
	assert_true(fixture_now_ns() - start >= 3000000);
	assert_int_equal(poll_frame_numbers(&w, got, 4), 1);

	assert_int_equal(vma_wire_set_faults(w.nic[0], &(struct vma_wire_faults){0}), 0);
	assert_int_equal(vma_nic_set_interrupt_moderation(w.qp[1][0], 10, 2000), 0);
	assert_int_equal(vma_nic_arm(w.qp[1][0]), 0);
	start = fixture_now_ns();
	wire_send_numbered(&w, 2, 1);
	assert_true(wait_fd_readable(vma_nic_fd(w.qp[1][0]), 3000));
	assert_true(fixture_now_ns() - start >= 2000000);
	assert_int_equal(poll_frame_numbers(&w, got, 4), 1);
	wire_destroy_fixture(&w);
}

static void test_a_queue_pair_without_buffers_holds_up_no_other(void **state)
{
	struct fixture w;
	struct vma_wire_pair_attr attr = {0};
	struct vma_wire_counts counts;

	(void)state;
	wire_make_fixture(&w, &attr, 0);
	struct vma_nic_qp_attr qp_attr = {.rx_wre = 64, .tx_wre = 64};
	assert_int_equal(vma_nic_qp_create(w.nic[1], &qp_attr, &w.qp[1][1]), 0); /* posts nothing */
	fixture_add_flow(&w, 1, 1, IPPROTO_UDP, PORT + 1, 0, 0);
	fixture_send(&w, 0, 0, udp(PEER_PORT, PORT + 1, 100, 1));
	fixture_send(&w, 0, 0, udp(PEER_PORT, PORT, 100, 2));
	fixture_assert_receives(&w, 1, 0, udp(PEER_PORT, PORT, 100, 2));
	vma_wire_read_counters(w.nic[0], &counts);
	assert_int_equal(counts.no_buffer, 1);
	fixture_post_rx_bufs(w.qp[1][1]);
	fixture_send(&w, 0, 0, udp(PEER_PORT, PORT + 1, 100, 3));
	fixture_assert_receives(&w, 1, 1, udp(PEER_PORT, PORT + 1, 100, 3));
	wire_destroy_fixture(&w);
}

static void test_a_lone_queue_pair_without_buffers_loses_nothing(void **state)
{
	struct fixture w;
	struct vma_wire_pair_attr attr = {0};
	struct vma_buf *held[512];
	uint32_t got[128];
	unsigned n;

	(void)state;
	wire_make_fixture(&w, &attr, 0);
	for (uint32_t i = 0; i < 600; i++)
		wire_send_numbered(&w, i, 1);
	n = vma_nic_poll_rx(w.qp[1][0], held, 512);
	assert_int_equal(n, 512); /* every posted buffer */
	assert_int_equal(vma_nic_poll_rx(w.qp[1][0], held, 1), 0);
	assert_int_equal(vma_nic_arm(w.qp[1][0]), 1); /* a frame waits for a buffer */
	assert_int_equal(vma_nic_post_rx(w.qp[1][0], held, 512), 512);
	assert_int_equal(poll_frame_numbers(&w, got, 128), 88);
	assert_int_equal(got[87], 599);
	wire_destroy_fixture(&w);
}

/* 40 segments of one frame. */
static unsigned fixture_send_frame_of_40_segments(struct fixture *w, uint32_t len)
{
	struct frame_spec frame = udp(PEER_PORT, PORT, 2000, 1);
	struct vma_nic_seg segs[40];

	for (uint32_t i = 0; i < 40; i++) {
		segs[i] = fixture_build_frame_in_tx_buf(w, 0, 0, &frame);
		segs[i].len = len / 40;
		segs[i].flags = i < 39 ? VMA_NIC_SEG_MORE : 0;
	}
	frame_put_be16((uint8_t *)vma_buf_frame(w->arena, segs[0].buf) + segs[0].off + 16, len - 14);
	unsigned taken = vma_nic_tx(w->qp[0][0], segs, 40);
	vma_nic_kick(w->qp[0][0]);
	return taken;
}

static void test_the_shallowest_queue_takes_the_longest_frame(void **state)
{
	struct fixture w = {.arena = fixture_arena(), .netns = {-1, -1}};
	struct vma_wire_pair_attr attr = {.arena = {w.arena, w.arena}, .mtu = 65535};
	struct vma_buf *buf;
	uint32_t bytes = 0;

	(void)state;
	assert_int_equal(vma_wire_create_pair(&attr, w.nic), 0);
	for (int end = 0; end < 2; end++)
		fixture_create_qp_with_posted_rx(&w, end, 0, 16);
	fixture_add_flow(&w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	assert_int_equal(fixture_send_frame_of_40_segments(&w, 65520), 40);
	wire_send_numbered(&w, 7, 1);
	while (vma_nic_poll_rx(w.qp[1][0], &buf, 1) == 1) {
		bytes += buf->len;
		vma_buf_put(w.arena, buf);
	}
	assert_int_equal(bytes, 65520 + 100);
	wire_destroy_fixture(&w);
}

static void test_frames_of_one_end_stay_when_its_queue_pair_ends(void **state)
{
	struct fixture w;
	struct vma_wire_pair_attr attr = {0};
	struct vma_wire_counts counts;

	(void)state;
	wire_make_fixture(&w, &attr, 0);
	wire_send_numbered(&w, 1, 1);
	fixture_qp_destroy(&w, 0, 0);
	fixture_assert_receives(&w, 1, 0, udp(PEER_PORT, PORT, 100, 1));
	fixture_create_qp_with_posted_rx(&w, 0, 0, 64); /* goes on where the lane stopped */
	wire_send_numbered(&w, 2, 1);
	fixture_assert_receives(&w, 1, 0, udp(PEER_PORT, PORT, 100, 2));
	vma_wire_read_counters(w.nic[0], &counts);
	assert_int_equal(counts.sent, 2);
	fixture_nic_close(&w, 1);
	wire_send_numbered(&w, 3, 1); /* to nobody */
	vma_wire_read_counters(w.nic[0], &counts);
	assert_int_equal(counts.lost, 1);
	wire_destroy_fixture(&w);
}

static void test_sixteen_queue_pairs_and_no_more(void **state)
{
	struct fixture w;
	struct vma_wire_pair_attr attr = {0};
	struct vma_nic_qp_attr qp_attr = {.rx_wre = 16, .tx_wre = 16};
	struct vma_nic_qp *qp[16];

	(void)state;
	wire_make_fixture(&w, &attr, 0);
	for (int i = 0; i < 15; i++)
		assert_int_equal(vma_nic_qp_create(w.nic[0], &qp_attr, &qp[i]), 0);
	assert_int_equal(vma_nic_qp_create(w.nic[0], &qp_attr, &qp[15]), -ENOSPC);
	for (int i = 0; i < 15; i++)
		vma_nic_qp_destroy(qp[i]);
	wire_destroy_fixture(&w);
}

static void test_indices_wrap(void **state)
{
	struct fixture w;
	struct vma_wire_pair_attr attr = {.queue_frames = 64};
	uint32_t got[64];

	(void)state;
	wire_make_fixture(&w, &attr, UINT32_MAX - 100);
	for (uint32_t i = 0; i < 1000; i += 50) {
		wire_send_numbered(&w, i, 50);
		assert_int_equal(poll_frame_numbers(&w, got, 64), 50);
		assert_int_equal(got[0], i);
		assert_int_equal(got[49], i + 49);
	}
	wire_destroy_fixture(&w);
}

static void test_thousands_of_flows_are_told_apart(void **state)
{
	struct fixture w;
	struct vma_wire_pair_attr attr = {0};
	struct vma_flow_rule rule;

	(void)state;
	wire_make_fixture(&w, &attr, 0);
	for (uint32_t i = 1; i < 5000; i++)
		fixture_add_flow(&w, 1, 0, IPPROTO_TCP, PORT, (uint16_t)i, 0);
	for (uint32_t i = 1; i < 5000; i += 2) {
		rule = make_flow_rule(1, IPPROTO_TCP, PORT, (uint16_t)i, 0);
		assert_int_equal(vma_nic_flow_del(w.qp[1][0], &rule.key), 0);
	}
	for (uint32_t i = 1; i < 5000; i++) {
		fixture_send(&w, 0, 0, tcp((uint16_t)i, PORT, 0x10, i));
		if (i % 2 == 0)
			fixture_assert_receives(&w, 1, 0, tcp((uint16_t)i, PORT, 0x10, i));
	}
	assert_no_packet_arrives(&w, 1, 0);
	wire_destroy_fixture(&w);
}

static void test_vlan_and_fragments_are_steered_as_a_device_does(void **state)
{
	struct wire_headers headers;
	uint8_t frame[104], tagged[104];
	struct frame_spec spec = udp(PEER_PORT, PORT, 100, 1);

	(void)state;
	spec.src_mac = spec.dst_mac = (const uint8_t *)"\2\0\0\0\0\1";
	frame_build(frame, &spec);
	assert_true(wire_parse_packet_headers((char *)frame, 100, 100, &headers));
	assert_int_equal(headers.key.vlan, 0);
	memcpy(tagged, frame, 12);
	memcpy(tagged + 12, "\x81\x00\x60\x2a", 4); /* priority 3, VLAN 42 */
	memcpy(tagged + 16, frame + 12, 88);
	assert_true(wire_parse_packet_headers((char *)tagged, 104, 104, &headers));
	assert_int_equal(headers.key.vlan, 42);
	assert_int_equal(headers.key.local_port_be, htons(PORT));
	frame[20] = 0x20; /* more fragments */
	assert_false(wire_parse_packet_headers((char *)frame, 100, 100, &headers));
	frame[20] = 0x40; /* do not fragment */
	assert_true(wire_parse_packet_headers((char *)frame, 100, 100, &headers));
	for (uint32_t len = 0; len < 42; len++)
		assert_false(wire_parse_packet_headers((char *)frame, len, len, &headers));
	frame[14] = 0x4f; /* a header of 60 bytes, its ports beyond what UDP's total says or within */
	wire_parse_packet_headers((char *)frame, 100, 100, &headers);
	assert_true(headers.l4_off <= 100);
}

static void test_bad_pairs_are_refused(void **state)
{
	struct vma_nic *nic[2];
	struct vma_bufarena *arena = fixture_arena();
	struct vma_wire_pair_attr attr = {.arena = {arena, NULL}};
	struct vma_nic_attr nic_attr = {.arena = arena};

	(void)state;
	assert_int_equal(vma_wire_create_pair(&attr, nic), -EINVAL);
	attr.arena[1] = arena;
	attr.mtu = 10;
	assert_int_equal(vma_wire_create_pair(&attr, nic), -EINVAL);
	attr.mtu = 0;
	attr.queue_frames = 100000;
	assert_int_equal(vma_wire_create_pair(&attr, nic), -EINVAL);
	assert_int_equal(vma_nic_open("wire", &nic_attr, &nic[0]), -EINVAL);
	assert_int_equal(vma_nic_open("wire:", &nic_attr, &nic[0]), -EINVAL);
	assert_int_equal(vma_nic_open("wires:x", &nic_attr, &nic[0]), -ENODEV);
	assert_int_equal(vma_nic_probe("wire", &nic_attr), -EINVAL);
	assert_int_equal(vma_nic_probe("wires:x", &nic_attr), -ENODEV);
	assert_int_equal(vma_nic_probe("wire:x", &nic_attr), -EOPNOTSUPP); /* a wire cannot tell */
	assert_int_equal(vma_nic_open("wir:x", &nic_attr, &nic[0]), -ENODEV);
	vma_bufarena_destroy(arena);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_duplication_and_order_are_as_planned_and_counted),
        cmocka_unit_test(test_the_same_seed_gives_the_same_faults),
        cmocka_unit_test(test_delay_follows_the_virtual_clock),
        cmocka_unit_test(test_jitter_changes_order_within_its_bound),
        cmocka_unit_test(test_corruption_turns_one_bit),
        cmocka_unit_test(test_a_bounded_lane_holds_that_many_and_loses_none),
        cmocka_unit_test(test_a_full_delay_line_drops_the_newest),
        cmocka_unit_test(test_a_user_may_hold_fewer_frames_than_the_queue_has),
        cmocka_unit_test(test_due_says_when_the_next_delayed_frame_arrives),
        cmocka_unit_test(test_moderation_reports_after_count_or_period),
        cmocka_unit_test(test_real_time_delay_and_moderation_wake_by_timer),
        cmocka_unit_test(test_a_queue_pair_without_buffers_holds_up_no_other),
        cmocka_unit_test(test_a_lone_queue_pair_without_buffers_loses_nothing),
        cmocka_unit_test(test_the_shallowest_queue_takes_the_longest_frame),
        cmocka_unit_test(test_frames_of_one_end_stay_when_its_queue_pair_ends),
        cmocka_unit_test(test_sixteen_queue_pairs_and_no_more),
        cmocka_unit_test(test_indices_wrap),
        cmocka_unit_test(test_thousands_of_flows_are_told_apart),
        cmocka_unit_test(test_vlan_and_fragments_are_steered_as_a_device_does),
        cmocka_unit_test(test_bad_pairs_are_refused),
};

VMA_TEST_MAIN(tests)
