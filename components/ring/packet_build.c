/* packet_build.c - header templates: everything that is the same for each datagram is written and summed once. */
#include <netinet/in.h>

#include <vma/packet.h>
#include <vma/ring.h>

#include "checksum.h"

enum { UNTAGGED_LEN = VMA_PKT_UDP_HEADERS_MAX - VMA_PKT_VLAN_HLEN };

static size_t write_ethernet_header(uint8_t *p, const struct vma_pkt_udp_attr *attr)
{
	memcpy(p, attr->dst_mac, 6);
	memcpy(p + 6, attr->src_mac, 6);
	if (attr->vlan == 0) {
		vma_pkt_put16(p + 12, 0x0800);
		return VMA_PKT_ETH_HLEN;
	}
	vma_pkt_put16(p + 12, 0x8100);
	vma_pkt_put16(p + 14, attr->vlan & 0xfff);
	vma_pkt_put16(p + 16, 0x0800);
	return VMA_PKT_ETH_HLEN + VMA_PKT_VLAN_HLEN;
}

void vma_pkt_udp_init(struct vma_pkt_udp *pkt, const struct vma_pkt_udp_attr *attr)
{
	uint8_t *ip, *udp;

	memset(pkt, 0, sizeof(*pkt));
	pkt->ip_off = (uint16_t)write_ethernet_header(pkt->bytes, attr);
	pkt->len = pkt->ip_off + VMA_PKT_IP4_HLEN + VMA_PKT_UDP_HLEN;

	ip = pkt->bytes + pkt->ip_off;
	ip[0] = 0x45;
	ip[1] = attr->tos;
	vma_pkt_put16(ip + 6, 0x4000); /* DF: an atomic datagram, whose id means nothing (RFC 6864) */
	ip[8] = attr->ttl != 0 ? attr->ttl : 64;
	ip[9] = IPPROTO_UDP;
	memcpy(ip + 12, attr->src_ip, 4);
	memcpy(ip + 16, attr->dst_ip, 4);
	pkt->ip_sum = vma_csum_fold(vma_csum_add(0, ip, VMA_PKT_IP4_HLEN));

	udp = ip + VMA_PKT_IP4_HLEN;
	memcpy(udp, &attr->src_port_be, 2);
	memcpy(udp + 2, &attr->dst_port_be, 2);
	pkt->udp_sum = vma_csum_fold(vma_csum_pseudo4(ip + 12, ip + 16, IPPROTO_UDP, 0));
}

void vma_pkt_udp_init_reply_headers(struct vma_pkt_udp *pkt, const void *frame, const struct vma_rx_info *info)
{
	struct vma_pkt_udp_attr attr = {.vlan = info->vlan,
	                                .src_port_be = info->dst_port_be,
	                                .dst_port_be = info->src_port_be,
	                                .tos = info->tos};

	memcpy(attr.dst_mac, (const uint8_t *)frame + 6, 6);
	memcpy(attr.src_mac, frame, 6);
	memcpy(attr.src_ip, info->dst, 4);
	memcpy(attr.dst_ip, info->src, 4);
	vma_pkt_udp_init(pkt, &attr);
}

uint32_t vma_pkt_udp_write(struct vma_pkt_udp *pkt, void *frame, uint32_t payload_len, enum vma_pkt_csum csum)
{
	uint8_t *ip = (uint8_t *)frame + pkt->ip_off, *udp = ip + VMA_PKT_IP4_HLEN;
	uint16_t udp_len = (uint16_t)(VMA_PKT_UDP_HLEN + payload_len);
	uint16_t udp_len_be = __builtin_bswap16(udp_len);
	uint16_t ip_len_be = __builtin_bswap16((uint16_t)(VMA_PKT_IP4_HLEN + udp_len));
	uint16_t id = pkt->ip_id++;
	uint32_t pseudo = pkt->udp_sum + udp_len_be;
	uint16_t field = 0;

	if (__builtin_expect(pkt->len == UNTAGGED_LEN, 1)) /* a constant length: a few moves instead of a call */
		memcpy(frame, pkt->bytes, UNTAGGED_LEN);
	else
		memcpy(frame, pkt->bytes, VMA_PKT_UDP_HEADERS_MAX);
	vma_pkt_store16(ip + 2, ip_len_be);
	vma_pkt_store16(ip + 4, id);
	vma_pkt_store16(ip + 10, (uint16_t)~vma_csum_fold32(pkt->ip_sum + ip_len_be + id));
	vma_pkt_store16(udp + 4, udp_len_be);
	if (csum == VMA_PKT_CSUM_PSEUDO) {
		field = vma_csum_fold32(pseudo);
	} else if (csum == VMA_PKT_CSUM_FULL) {
		/* The ports, the length and the still empty checksum lie in the frame; so does the payload. */
		field = (uint16_t)~vma_csum_fold(checksum_add(pseudo, udp, udp_len));
		if (field == 0)
			field = 0xffff; /* 0 means "not computed" (RFC 768) */
	}
	vma_pkt_store16(udp + 6, field);
	return pkt->len + payload_len;
}
