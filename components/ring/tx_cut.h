/*
 * tx_cut.h - a packet for a device that could cut or sum it, on a device that cannot. That happens if a rebind has
 * found another device. The packet goes to the queue, or is there already. It is cut and summed here, frame by frame,
 * each in a buffer of the device of now.
 *
 *   headers | payload ........................     pieces of the packet
 *   headers | mss  headers | mss  headers | rest   frames, as VMA_NIC_SEG_TSO says
 *
 * Threads: the thread that holds the transmit flag.
 * Memory: the packet stays with the caller.
 * Example: test/test_send.c, test_a_queued_packet_is_cut_here_if_the_nic_cannot_any_more.
 */
#ifndef VMA_RING_TX_CUT_H
#define VMA_RING_TX_CUT_H

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#include <vma/packet.h>

#include "ring_priv.h"

struct tx_cut {
	const struct vma_nic_seg *segs; /* the whole packet */
	uint32_t hdr_len;               /* that each frame has; 0: the packet is one frame */
	uint32_t mss, bytes;            /* of payload */
	uint32_t frames;
};

static bool tx_packet_needs_cut(const struct vma_ring *ring, const struct vma_nic_seg *packet, unsigned n, uint64_t len)
{
	const struct vma_nic_info *info = vma_nic_info(ring->nic);

	if (packet->flags & VMA_NIC_SEG_CSUM && !(info->caps & VMA_NIC_CAP_TX_CSUM))
		return true;
	return packet->flags & VMA_NIC_SEG_TSO && (!(info->caps & VMA_NIC_CAP_TSO) || n > ring_segs_max_now(ring) ||
	                                           len - packet->hdr_len > info->tso_max_bytes);
}

/* tx_packet_validate has seen the packet. */
static void tx_cut_begin(struct tx_cut *cut, const struct vma_nic_seg *packet, uint64_t len)
{
	const bool is_tso = packet->flags & VMA_NIC_SEG_TSO;

	*cut = (struct tx_cut){.segs = packet, .hdr_len = is_tso ? packet->hdr_len : 0};
	cut->bytes = (uint32_t)len - cut->hdr_len;
	cut->mss = is_tso ? packet->mss : cut->bytes;
	cut->frames = (cut->bytes + cut->mss - 1) / cut->mss;
}

/* len bytes of the packet from `off` on. */
static void tx_cut_copy(const struct vma_ring *ring, const struct tx_cut *cut, uint32_t off, uint32_t len, uint8_t *to)
{
	const struct vma_nic_seg *seg = cut->segs;

	for (; off >= seg->len; seg++)
		off -= seg->len;
	for (; len > 0; seg++, off = 0) {
		const uint32_t here = seg->len - off < len ? seg->len - off : len;

		memcpy(to, vma_buf_frame(ring->rules.arena, seg->buf) + seg->off + off, here);
		to += here;
		len -= here;
	}
}

static uint32_t tx_cut_load16(const uint8_t *p)
{
	return (uint32_t)p[0] << 8 | p[1];
}

/* What frame i has for itself. */
static void tx_cut_set_frame_ip_id_and_tcp_seq(const struct tx_cut *cut, uint8_t *ip, uint8_t *tcp, uint32_t ip_len,
                                               uint32_t i)
{
	vma_pkt_put16(ip + 2, ip_len);
	vma_pkt_put16(ip + 4, tx_cut_load16(ip + 4) + i);
	vma_pkt_store16(ip + 10, 0);
	vma_pkt_store16(ip + 10, (uint16_t)~vma_csum_fold(vma_csum_add(0, ip, (size_t)(tcp - ip))));
	vma_pkt_put32(tcp + 4, (tx_cut_load16(tcp + 4) << 16 | tx_cut_load16(tcp + 6)) + i * cut->mss);
	if (i + 1 < cut->frames)
		tcp[13] &= (uint8_t) ~(TH_FIN | TH_PUSH);
	if (i > 0)
		tcp[13] &= 0x7f; /* CWR */
}

/* The sum of UDP or TCP, or what the NIC needs to finish it. */
static void tx_cut_write_l4_checksum(const uint8_t *ip, uint8_t *l4, uint32_t l4_len, bool by_nic)
{
	const bool is_tcp = ip[9] == IPPROTO_TCP;
	const uint64_t pseudo = vma_csum_pseudo4(ip + 12, ip + 16, ip[9], l4_len);
	uint8_t *field = l4 + (is_tcp ? 16 : 6);
	uint16_t sum = vma_csum_fold(pseudo);

	if (!by_nic) {
		vma_pkt_store16(field, 0);
		sum = (uint16_t)~vma_csum_fold(vma_csum_add(pseudo, l4, l4_len));
	}
	vma_pkt_store16(field, sum == 0 && !is_tcp ? 0xffff : sum);
}

/* False: it is none of TCP or UDP over IPv4. */
static bool tx_cut_write_frame_ids_and_checksums(const struct tx_cut *cut, uint8_t *frame, uint32_t len, uint32_t i,
                                                 bool by_nic)
{
	const uint32_t l3 = VMA_PKT_ETH_HLEN + (frame[12] == 0x81 && frame[13] == 0 ? VMA_PKT_VLAN_HLEN : 0);
	uint8_t *ip = frame + l3;
	uint32_t ip_hlen, l4_hlen, ip_len;

	if (len < l3 + VMA_PKT_IP4_HLEN || ip[0] >> 4 != 4)
		return false;
	ip_hlen = (ip[0] & 15) * 4u;
	l4_hlen = ip[9] == IPPROTO_TCP ? VMA_PKT_TCP_HLEN : VMA_PKT_UDP_HLEN;
	ip_len = cut->hdr_len != 0 ? len - l3 : tx_cut_load16(ip + 2);
	if ((ip[9] != IPPROTO_TCP && (ip[9] != IPPROTO_UDP || cut->hdr_len != 0)) || ip_hlen < VMA_PKT_IP4_HLEN ||
	    ip_len < ip_hlen + l4_hlen || l3 + ip_len > len)
		return false;
	if (cut->hdr_len != 0)
		tx_cut_set_frame_ip_id_and_tcp_seq(cut, ip, ip + ip_hlen, ip_len, i);
	tx_cut_write_l4_checksum(ip, ip + ip_hlen, ip_len - ip_hlen, by_nic);
	return true;
}

/* Frame i: 1, *out has the reference; 0: no buffer now; -EMSGSIZE: it does not fit into one; -EBADMSG. */
static int tx_cut_build_frame(struct vma_ring *ring, const struct tx_cut *cut, uint32_t i, struct vma_nic_seg *out)
{
	const uint32_t at = i * cut->mss, left = cut->bytes - at, bytes = left < cut->mss ? left : cut->mss;
	const uint32_t off = ring->qp->tx_headroom;
	const bool by_nic = vma_nic_info(ring->nic)->caps & VMA_NIC_CAP_TX_CSUM;
	uint8_t *to;

	*out = (struct vma_nic_seg){.off = off, .len = cut->hdr_len + bytes, .flags = by_nic ? VMA_NIC_SEG_CSUM : 0};
	if (out->len > ring->buf_size - off)
		return -EMSGSIZE;
	out->buf = vma_ring_tx_buf(ring);
	if (out->buf == NULL)
		return 0;
	to = (uint8_t *)vma_buf_frame(ring->rules.arena, out->buf) + off;
	tx_cut_copy(ring, cut, 0, cut->hdr_len, to);
	tx_cut_copy(ring, cut, cut->hdr_len + at, bytes, to + cut->hdr_len);
	if (tx_cut_write_frame_ids_and_checksums(cut, to, out->len, i, by_nic))
		return 1;
	vma_buf_put(ring->rules.arena, out->buf);
	return -EBADMSG;
}

#endif
