/*
 * Mutated frames through the whole receive path: each ends up delivered or dropped under exactly one reason, and every
 * buffer comes home. Two bytes of input choose how the frame is cut into buffers and what the NIC says of checksums;
 * the third, whether the checksums are made right (or a mutated header would never get past them).
 */
#define FAKE_NIC_ABORTS
#include <netinet/in.h>

#include "../ring_priv.h"
#include "fake_nic.h"
#include "frames.h"

static struct fake_nic fake;
static struct vma_ring *ring;
static struct vma_flow flows[5];
static uint64_t sink_calls;
static volatile uint8_t headers_sum; /* makes the reads below happen */

/* Reads what it is told it may read. */
static bool frames_sink_check_offsets(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	const uint8_t *data = (const uint8_t *)vma_buf_data(fake.arena, packet);
	uint64_t total = 0;

	(void)flow;
	assert_true(info->family == AF_INET && (info->proto == IPPROTO_UDP || info->proto == IPPROTO_TCP));
	assert_true(packet->l3_off < packet->l4_off && packet->l4_off < packet->payload_off);
	assert_true(packet->payload_off <= packet->len);
	assert_true((uint32_t)packet->payload_off + packet->payload_len <= packet->packet_len);
	for (uint32_t i = 0; i < packet->payload_off; i++)
		headers_sum = headers_sum + data[i];
	for (const struct vma_buf *buf = packet; buf != NULL; buf = buf->next)
		total += buf->len;
	assert_true(total == packet->packet_len);
	sink_calls++;
	return sink_calls % 2 == 0 ? (vma_buf_put_chain(fake.arena, packet), true) : false;
}

static void fuzz_frames_create_ring_and_flows(void)
{
	static const uint8_t group_ip[4] = {224, 0, 0, 1};
	const struct vma_flow_key keys[5] = {
	        flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), flow_key(IPPROTO_UDP, frame_dst_ip, 53, 1000),
	        flow_key(IPPROTO_TCP, frame_dst_ip, 80, 0), flow_key(IPPROTO_UDP, group_ip, 53, 0),
	        flow_key(IPPROTO_UDP, group_ip, 53, 0),
	};

	fake_init(&fake, VMA_NIC_CAP_SG);
	ring = fake_nic_create_ring(&fake, VMA_THREAD_YIELD);
	for (int i = 0; i < 5; i++) {
		flows[i] = (struct vma_flow){.key = keys[i], .sink = frames_sink_check_offsets};
		assert_true(vma_ring_attach_flow(ring, &flows[i]) == 0);
	}
}

static void make_checksums_right(uint8_t *frame, size_t len)
{
	uint32_t l3 = len >= 14 && frame[12] == 0x81 ? 18 : 14, header, l4_len, field;

	if (len < l3 + 20)
		return;
	header = (frame[l3] & 15) * 4u;
	if (header < 20 || l3 + header > len)
		return;
	fix_ip_checksum(frame + l3);
	l4_len = (uint32_t)(frame[l3 + 2] << 8 | frame[l3 + 3]);
	if (l3 != 14 || header != 20 || l4_len < 20 || l4_len - 20 > len - 34)
		return;
	l4_len -= 20;
	field = frame[l3 + 9] == IPPROTO_TCP ? 16 : 6;
	if (l4_len >= field + 2 && l4_len < 2000)
		fix_l4_checksum(frame, l4_len, field);
}

static uint64_t sum_of_drops(void)
{
	const struct vma_stats_ring_rx *rx = &vma_ring_stats(ring)->rx;
	uint64_t sum = 0;

	/* The reasons lie together, from the first to the last of the list. */
	for (const _Atomic uint64_t *c = &rx->rx_drop_runt; c <= &rx->rx_drop_chain; c++)
		sum += vma_stats_read_counter(c);
	return sum;
}

/* A fragment is held: nothing else comes of its datagram here (fuzz_fragments.c has several). */
static uint64_t drop_held_fragments_and_count(void)
{
	uint64_t dropped;

	ring_fragments_end(&ring->fragments, ring->rules.arena);
	dropped = ring->fragments.dropped;
	ring->fragments.dropped = 0;
	return dropped;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t drops, delivered, calls;
	uint8_t frame[1518];
	uint32_t piece;

	if (ring == NULL)
		fuzz_frames_create_ring_and_flows();
	if (size < 4 || size - 3 > sizeof(frame))
		return 0;
	memcpy(frame, data + 3, size - 3);
	piece = data[0] < 16 ? data[0] * 16u + 1 : 0; /* at most 1518 pieces would not fit a packet: cq's business */
	if (data[0] == 0)
		piece = 0;
	if (data[2] & 1)
		make_checksums_right(frame, size - 3);
	ring->rules.memory_link = data[2] & 2;
	ring->rules.sw_csum = !(data[2] & 4);
	drops = sum_of_drops();
	delivered = vma_stats_read_counter(&vma_ring_stats(ring)->rx.rx_delivered);
	calls = sink_calls;
	fake_nic_receive_in_pieces(&fake, frame, (uint32_t)(size - 3), piece);
	if (piece == 0)
		fake.arrived[0]->flags |=
		        data[1] & (VMA_BUF_RX_L3_CSUM_OK | VMA_BUF_RX_L4_CSUM_OK | VMA_BUF_RX_L4_CSUM_BAD);
	while (fake.arrived_count > 0)
		assert_true(vma_ring_progress(ring) >= 0);
	delivered = vma_stats_read_counter(&vma_ring_stats(ring)->rx.rx_delivered) - delivered;
	drops = sum_of_drops() - drops + drop_held_fragments_and_count();
	calls = sink_calls - calls;
	/* One reason, or one outcome per member; cq alone may have dropped a chain that is too long for it. */
	assert_true(delivered + drops == (calls > 0 ? calls : 1) || (piece != 0 && delivered + drops == 0));
	/* The buffers come home: cq posts again when half of the depth is owed. */
	assert_true(fake.posted_count >= 128 - 90);
	return 0;
}
