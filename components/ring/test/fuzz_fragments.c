/*
 * Fragments of datagrams, by whole frames through the receive path: whatever is said of offsets and lengths, what is
 * delivered is what was sent, nothing is held beyond the bounds, and every buffer comes home.
 *
 * The input is a run of fragments of five bytes: how (below), whose datagram, where it begins, how long it is, and how
 * the frame is cut into buffers. A byte depends on its place and the protocol alone, so any mix of fragments of one
 * protocol is right.
 */
#define FAKE_NIC_ABORTS
#include <netinet/in.h>

#include "../ring_priv.h"
#include "fake_nic.h"
#include "frames.h"

#define LAST 1u
#define OPTIONS 2u   /* in the IP header */
#define TAGGED 4u    /* 802.1Q */
#define PADDED 8u    /* behind the packet */
#define WRONG 16u    /* its length is one that it has not */
#define CUT 32u      /* into several buffers */
#define EXACT 64u    /* joins what the other one of this datagram ended with */
#define SEGMENT 128u /* of TCP */

enum { DATAGRAM = 2048, PORT = 53, HEADER = 8 };

static struct fake_nic fake;
static struct vma_ring *ring;
static struct vma_flow flows[2];
static uint32_t ended[8]; /* where the last fragment of each datagram did */

static uint8_t fragments_byte_at(uint32_t place, uint8_t proto)
{
	static const uint8_t header[HEADER] = {0x03, 0xe8, 0, PORT}; /* no checksum; the length is the datagram's own */

	return place < HEADER ? header[place] : (uint8_t)(place * 7 + (place >> 8) + proto);
}

/* As a reader takes it: every byte of the payload, across buffers. */
static bool fragments_sink_check_payload(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	uint32_t off = packet->payload_off, place = HEADER, left = packet->payload_len;
	uint64_t total = 0;

	(void)flow, (void)info;
	assert_true((uint32_t)packet->payload_off + packet->payload_len <= packet->packet_len);
	for (const struct vma_buf *buf = packet; buf != NULL; buf = buf->next)
		total += buf->len;
	assert_true(total == packet->packet_len);
	for (const struct vma_buf *buf = packet; buf != NULL && left > 0; buf = buf->next, off = 0) {
		const uint8_t *data = (const uint8_t *)vma_buf_data(fake.arena, buf);

		assert_true(off <= buf->len);
		for (uint32_t i = off; i < buf->len && left > 0; i++, left--, place++)
			assert_true(info->proto != IPPROTO_UDP || data[i] == fragments_byte_at(place, IPPROTO_UDP));
	}
	assert_true(left == 0);
	vma_buf_put_chain(fake.arena, packet);
	return true;
}

static void fuzz_fragments_create_ring_and_flows(void)
{
	fake_init(&fake, VMA_NIC_CAP_SG);
	ring = fake_nic_create_ring(&fake, VMA_THREAD_YIELD);
	flows[0] = (struct vma_flow){.key = flow_key(IPPROTO_UDP, frame_dst_ip, PORT, 0),
	                             .sink = fragments_sink_check_payload};
	flows[1] = (struct vma_flow){.key = flow_key(IPPROTO_TCP, frame_dst_ip, PORT, 0),
	                             .sink = fragments_sink_check_payload};
	assert_true(vma_ring_attach_flow(ring, &flows[0]) == 0 && vma_ring_attach_flow(ring, &flows[1]) == 0);
}

static uint32_t write_fragment_headers(uint8_t *frame, uint8_t how, uint8_t id, uint32_t offset, uint32_t len)
{
	const uint32_t tag = how & TAGGED ? 4 : 0, header = how & OPTIONS ? 24 : 20;
	uint8_t *ip = frame + 14 + tag;

	memset(frame, 0, 14 + tag + header);
	frame[0] = frame[6] = 2;
	store_be16(frame + 12, tag != 0 ? 0x8100 : 0x0800);
	if (tag != 0)
		store_be16(frame + 16, 0x0800);
	ip[0] = (uint8_t)(0x40 | header / 4);
	store_be16(ip + 2, (uint16_t)(header + len + (how & WRONG ? 8 : 0)));
	store_be16(ip + 4, id & 7);
	store_be16(ip + 6, (uint16_t)(offset / 8 | (how & LAST ? 0 : 0x2000)));
	ip[8] = 64;
	ip[9] = how & SEGMENT ? IPPROTO_TCP : IPPROTO_UDP;
	memcpy(ip + 12, frame_src_ip, 4);
	memcpy(ip + 16, frame_dst_ip, 4);
	if (header > 20)
		memset(ip + 20, 1, 4); /* no operation */
	fix_ip_checksum(ip);
	return 14 + tag + header;
}

/* The datagram that ends where this one's last fragment ends is as long as its header says. */
static void fuzz_inject_one_fragment(const uint8_t *about)
{
	uint8_t frame[FAKE_FRAME];
	const uint8_t how = about[0], id = about[1] & 7;
	const uint32_t offset = how & EXACT ? ended[id] & 0xfff8 : about[2] * 8u % DATAGRAM;
	uint32_t len = how & LAST ? about[3] + 1u : (about[3] % 32 + 1) * 8u, headers, all;

	headers = write_fragment_headers(frame, how, id, offset, len);
	all = headers + len + (how & PADDED ? 13 : 0);
	for (uint32_t i = headers; i < all; i++)
		frame[i] = fragments_byte_at(offset + i - headers, how & SEGMENT ? IPPROTO_TCP : IPPROTO_UDP);
	if (offset == 0 && len >= HEADER)
		store_be16(frame + headers + 4, (uint16_t)(about[1] >> 3 == 0 ? len : about[1] * 8u));
	ended[id] = offset + len;
	fake_nic_receive_in_pieces(&fake, frame, all, how & CUT ? 42u + about[4] : 0);
	while (fake.arrived_count > 0)
		assert_true(vma_ring_progress(ring) >= 0);
	assert_true(ring->fragments.bufs <= ring->fragments.bufs_max);
}

/* What the places hold is what is counted. */
static void fragments_check_counts(void)
{
	uint32_t bufs = 0;

	for (unsigned i = 0; i < RING_DATAGRAMS; i++) {
		const struct ring_datagram *datagram = &ring->fragments.at[i];
		uint32_t held = 0, fragments = 0, end = 0;

		for (const struct vma_buf *fragment = datagram->first; fragment != NULL; fragment = fragment->user) {
			assert_true(fragment->l4_off >= end);
			end = (uint32_t)fragment->l4_off + fragment->payload_len;
			held += fragment->payload_len;
			fragments++;
		}
		assert_true(held == datagram->have && fragments == datagram->fragments);
		assert_true(datagram->total == 0 || end <= datagram->total);
		bufs += datagram->bufs;
	}
	assert_true(bufs == ring->fragments.bufs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (ring == NULL)
		fuzz_fragments_create_ring_and_flows();
	ring->rules.sw_csum = false;
	memset(ended, 0, sizeof(ended));
	for (; size >= 5; data += 5, size -= 5) {
		fuzz_inject_one_fragment(data);
		fragments_check_counts();
	}
	ring_fragments_end(&ring->fragments, ring->rules.arena);
	assert_true(ring->fragments.bufs == 0);
	vma_ring_progress(ring);
	assert_true(fake.posted_count >= 256 - 128);
	return 0;
}
