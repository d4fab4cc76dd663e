/*
 * frame.h - one datagram's frame from a destination: the payload is there, the headers are put before it.
 *
 * The functions are pure, so a test can compare the bytes with a datagram that was computed by hand.
 *
 * Threads: any; the frame is the caller's, the destination is not changed.
 */
#ifndef VMA_UDP_FRAME_H
#define VMA_UDP_FRAME_H

#include <string.h>

#include "udp_priv.h"

/* RFC 768: a sum of zero is sent as 0xffff, since 0 means that there is none. */
static inline uint16_t frame_udp_checksum(uint64_t sum)
{
	uint16_t field = (uint16_t)~vma_csum_fold(sum);

	return field != 0 ? field : 0xffff;
}

/*
 * Completes the frame at `frame`, whose payload lies at dst->headers_len. id is 0 where fragmenting is not allowed. The
 * UDP checksum is full, for the kernel at the other end of a veth verifies it; or what the NIC needs to finish it
 * (*seg_flags has VMA_NIC_SEG_CSUM then). Returns the frame's length.
 */
static inline uint32_t udp_frame_write_headers(const struct udp_dst *dst, uint8_t *frame, uint32_t payload_len,
                                               uint16_t id, uint16_t *seg_flags)
{
	const uint32_t plain = VMA_PKT_ETH_HLEN + VMA_PKT_IP4_HLEN + VMA_PKT_UDP_HLEN;
	uint8_t *ip = frame + dst->ip_off, *udp = ip + VMA_PKT_IP4_HLEN;
	uint16_t udp_len = (uint16_t)(VMA_PKT_UDP_HLEN + payload_len);
	uint16_t udp_len_be = __builtin_bswap16(udp_len);
	uint16_t ip_len_be = __builtin_bswap16((uint16_t)(VMA_PKT_IP4_HLEN + udp_len));
	uint64_t sum = (uint64_t)dst->udp_sum + 2u * udp_len_be; /* the length counts in both headers */

	if (__builtin_expect(dst->headers_len == plain, 1)) /* a constant length: a few moves instead of a call */
		memcpy(frame, dst->bytes, VMA_PKT_ETH_HLEN + VMA_PKT_IP4_HLEN + VMA_PKT_UDP_HLEN);
	else
		memcpy(frame, dst->bytes, VMA_PKT_UDP_HEADERS_MAX);
	vma_pkt_store16(ip + 2, ip_len_be);
	vma_pkt_store16(ip + 4, id);
	vma_pkt_store16(ip + 10, (uint16_t)~vma_csum_fold32(dst->ip_sum + ip_len_be + id));
	vma_pkt_store16(udp + 4, udp_len_be);
	if (payload_len >= dst->nic_sums_from) {
		vma_pkt_store16(udp + 6, vma_csum_fold((uint64_t)dst->pseudo_sum + udp_len_be));
		*seg_flags |= VMA_NIC_SEG_CSUM;
	} else {
		vma_pkt_store16(udp + 6, frame_udp_checksum(vma_csum_add(sum, frame + dst->headers_len, payload_len)));
	}
	return dst->headers_len + payload_len;
}

#endif
