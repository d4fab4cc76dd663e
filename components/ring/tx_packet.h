/*
 * tx_packet.h - a packet to send: its segments, whether the NIC may get it, and its copy if the NIC cannot take it in
 * pieces.
 *
 * Threads: any for packet_segment_count_and_bytes, put_buffers_of_segs and tx_packet_validate. tx_packet_gather runs in
 * the thread that holds the transmit flag.
 */
#ifndef VMA_RING_TX_PACKET_H
#define VMA_RING_TX_PACKET_H

#include <errno.h>
#include <string.h>

#include <vma/packet.h>

#include "ring_priv.h"

/* Segments of the packet that starts at segs; *len its bytes. A last packet without end is cut at n: see
 * send_packets_one_by_one. */
static unsigned packet_segment_count_and_bytes(const struct vma_nic_seg *segs, unsigned n, uint64_t *len)
{
	unsigned k = 0;

	*len = 0;
	do
		*len += segs[k].len;
	while (segs[k++].flags & VMA_NIC_SEG_MORE && k < n);
	return k;
}

static void put_buffers_of_segs(struct vma_ring *ring, const struct vma_nic_seg *segs, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		vma_buf_put(ring->rules.arena, segs[i].buf);
}

/* One that the NIC is to cut; len bytes with its headers. */
static bool tso_is_possible(const struct vma_ring *ring, const struct vma_nic_seg *packet, unsigned k, uint64_t len)
{
	return k <= ring->segs_max && packet->mss != 0 && packet->hdr_len >= VMA_PKT_ETH_HLEN &&
	       packet->hdr_len < packet->len &&
	       len - packet->hdr_len <= atomic_load_explicit(&ring->tso_bytes_max, memory_order_relaxed);
}

enum tx_check { TX_CHECK_SEND, TX_CHECK_TOO_LONG, TX_CHECK_BAD };

/*
 * What a NIC would refuse for ever must not get as far as the command queue, where it would stop what is behind it.
 * `len` is the sum of the k segments.
 */
static enum tx_check tx_packet_validate(const struct vma_ring *ring, const struct vma_nic_seg *packet, unsigned k,
                                        uint64_t len)
{
	const uint8_t *frame = (const uint8_t *)vma_buf_frame(ring->rules.arena, packet->buf) + packet->off;
	bool tagged;

	for (unsigned i = 0; i < k; i++) {
		if (packet[i].off > ring->buf_size || packet[i].len > ring->buf_size - packet[i].off)
			return TX_CHECK_BAD;
	}
	if (packet->flags & atomic_load_explicit(&ring->flags_unable, memory_order_relaxed) ||
	    packet->len < VMA_PKT_ETH_HLEN || packet[k - 1].flags & VMA_NIC_SEG_MORE)
		return TX_CHECK_BAD;
	tagged = frame[12] == 0x81 && frame[13] == 0x00;
	if (k > TX_BURST)
		return TX_CHECK_TOO_LONG;
	if (packet->flags & VMA_NIC_SEG_TSO)
		return tso_is_possible(ring, packet, k, len) ? TX_CHECK_SEND : TX_CHECK_BAD;
	if (len > atomic_load_explicit(&ring->frame_max, memory_order_relaxed) + (tagged ? VMA_PKT_VLAN_HLEN : 0u))
		return TX_CHECK_TOO_LONG;
	return TX_CHECK_SEND;
}

/*
 * For a NIC that takes fewer segments per packet: copies a packet into a transmit buffer. 1 done (*out has the
 * reference), 0 no buffer now, -EMSGSIZE it does not fit. The originals stay with the caller.
 */
static int tx_packet_gather(struct vma_ring *ring, const struct vma_nic_seg *segs, unsigned n, uint64_t len,
                            struct vma_nic_seg *out)
{
	uint32_t off = ring->qp->tx_headroom;
	char *to;

	if (len + off > ring->buf_size)
		return -EMSGSIZE;
	*out = segs[0];
	out->buf = vma_ring_tx_buf(ring);
	if (out->buf == NULL)
		return 0;
	out->off = off;
	out->len = (uint32_t)len;
	out->flags &= (uint16_t)~VMA_NIC_SEG_MORE;
	to = vma_buf_frame(ring->rules.arena, out->buf) + off;
	for (unsigned i = 0; i < n; i++) {
		memcpy(to, vma_buf_frame(ring->rules.arena, segs[i].buf) + segs[i].off, segs[i].len);
		to += segs[i].len;
	}
	return 1;
}

#endif
