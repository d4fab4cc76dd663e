/* packet.c - Ethernet, at most one VLAN tag, IPv4, UDP and TCP: is it whole, is it right, and where does it go. */
#include <netinet/in.h>

#include <vma/packet.h>

#include "checksum.h"
#include "packet_bytes.h"
#include "packet_check.h"

enum {
	ETHERTYPE_VLAN_BE = 0x0081,
	LONGEST = 65535 + VMA_PKT_ETH_HLEN + VMA_PKT_VLAN_HLEN + 64, /* an IPv4 packet with some padding */
};

/* Headers that the packet has, but not in its first buffer, are the NIC's or the sender's mischief. */
static unsigned __attribute__((cold)) packet_drop_reason_of_short_headers(const struct vma_buf *packet, uint32_t needed)
{
	return packet->next != NULL && packet->packet_len >= needed ? PACKET_DROP(chain) : PACKET_DROP(runt);
}

static unsigned __attribute__((cold)) packet_validate_chain_length(const struct vma_buf *packet)
{
	uint64_t sum = 0;

	for (const struct vma_buf *buf = packet; buf != NULL; buf = buf->next)
		sum += buf->len;
	return sum == packet->packet_len && sum <= LONGEST ? PACKET_PASS : PACKET_DROP(chain);
}

/* Sums `len` bytes of the chain from `off` in its first buffer; a piece may end at an odd byte. */
static uint64_t __attribute__((noinline))
checksum_packet_chain(const struct vma_bufarena *arena, const struct vma_buf *buf, uint32_t off, uint32_t len)
{
	uint64_t sum = 0;
	bool odd = false;

	for (; buf != NULL && len > 0; buf = buf->next, off = 0) {
		uint32_t here = buf->len - off < len ? buf->len - off : len;
		uint16_t piece = vma_csum_fold(vma_csum_add(0, vma_buf_data(arena, buf) + off, here));

		/* Bytes that start at an odd place count in the other half of their word: swap the piece (RFC 1071). */
		sum += odd ? __builtin_bswap16(piece) : piece;
		odd ^= here & 1;
		len -= here;
	}
	return sum;
}

static inline bool l4_checksum_right(const struct packet_rules *rules, const struct vma_buf *packet,
                                     const struct vma_rx_info *info, const uint8_t *l4, uint32_t l4_len, uint16_t field)
{
	uint64_t sum = vma_csum_pseudo4(info->src, info->dst, info->proto, l4_len);

	if (rules->memory_link && field != 0 && field_is_pseudo_header_checksum(field, sum))
		return true;
	if (packet->next == NULL)
		sum = vma_csum_add(sum, l4, l4_len);
	else
		sum += checksum_packet_chain(rules->arena, packet, packet->l4_off, l4_len);
	return checksum_is_valid(sum);
}

/* Whether the L4 checksum, of which the field's value is at hand, is acceptable. */
static inline bool l4_checksum_ok(const struct packet_rules *rules, const struct vma_buf *packet,
                                  const struct vma_rx_info *info, const uint8_t *l4, uint32_t l4_len, uint16_t field)
{
	if (packet->flags & (VMA_BUF_RX_L4_CSUM_OK | VMA_BUF_RX_L4_CSUM_BAD))
		return !(packet->flags & VMA_BUF_RX_L4_CSUM_BAD);
	return !rules->sw_csum || l4_checksum_right(rules, packet, info, l4, l4_len, field);
}

static inline unsigned validate_udp_header_and_set_payload(const struct packet_rules *rules, struct vma_buf *packet,
                                                           struct vma_rx_info *info, const uint8_t *l4, uint32_t l4_len)
{
	uint32_t udp_len;
	uint16_t field;

	if (l4_len < VMA_PKT_UDP_HLEN)
		return PACKET_DROP(l4_length);
	if (packet->len < packet->l4_off + (uint32_t)VMA_PKT_UDP_HLEN)
		return packet_drop_reason_of_short_headers(packet, packet->l4_off + VMA_PKT_UDP_HLEN);
	udp_len = __builtin_bswap16(packet_load16(l4 + 4));
	if (udp_len < VMA_PKT_UDP_HLEN || udp_len > l4_len)
		return PACKET_DROP(l4_length);
	field = packet_load16(l4 + 6);
	if (field != 0 && !l4_checksum_ok(rules, packet, info, l4, udp_len, field)) /* 0: the sender computed none */
		return PACKET_DROP(l4_checksum);
	packet->payload_off = packet->l4_off + VMA_PKT_UDP_HLEN;
	packet->payload_len = (uint16_t)(udp_len - VMA_PKT_UDP_HLEN);
	info->tcp_flags = 0;
	return PACKET_PASS;
}

static inline unsigned validate_tcp_header_and_set_payload(const struct packet_rules *rules, struct vma_buf *packet,
                                                           struct vma_rx_info *info, const uint8_t *l4, uint32_t l4_len)
{
	uint32_t header_len;

	if (l4_len < VMA_PKT_TCP_HLEN)
		return PACKET_DROP(l4_length);
	if (packet->len < packet->l4_off + (uint32_t)VMA_PKT_TCP_HLEN)
		return packet_drop_reason_of_short_headers(packet, packet->l4_off + VMA_PKT_TCP_HLEN);
	header_len = (packet_load8(l4 + 12) >> 4) * 4u;
	if (header_len < VMA_PKT_TCP_HLEN || header_len > l4_len)
		return PACKET_DROP(l4_length);
	if (packet->len < packet->l4_off + header_len)
		return packet_drop_reason_of_short_headers(packet, packet->l4_off + header_len);
	if (!l4_checksum_ok(rules, packet, info, l4, l4_len, packet_load16(l4 + 16)))
		return PACKET_DROP(l4_checksum);
	packet->payload_off = (uint16_t)(packet->l4_off + header_len);
	packet->payload_len = (uint16_t)(l4_len - header_len);
	info->tcp_flags = l4[13];
	return PACKET_PASS;
}

static inline bool ip4_checksum_right(const uint8_t *ip, uint32_t header_len)
{
	uint64_t sum = (uint64_t)packet_load32(ip) + packet_load32(ip + 4) + packet_load32(ip + 8) +
	               packet_load32(ip + 12) + packet_load32(ip + 16);

	for (uint32_t i = VMA_PKT_IP4_HLEN; i < header_len; i += 4)
		sum += packet_load32(ip + i);
	return checksum_is_valid(sum);
}

/* A source route, or what cannot be read: the kernel drops it, unless it is told to obey such packets. */
static bool __attribute__((cold)) ip_options_have_source_route_or_error(const uint8_t *ip, uint32_t header_len)
{
	enum { END = 0, NOOP = 1, LSRR = 131, SSRR = 137 };
	uint32_t at = VMA_PKT_IP4_HLEN;

	while (at < header_len) {
		const uint8_t kind = packet_load8(ip + at), len = at + 1 < header_len ? packet_load8(ip + at + 1) : 0;

		if (kind == END)
			return false;
		if (kind != NOOP && (len < 2 || at + len > header_len))
			return true;
		if (kind == LSRR || kind == SSRR)
			return true;
		at += kind == NOOP ? 1 : len;
	}
	return false;
}

static inline unsigned validate_ip4_header_and_get_l4_len(const struct packet_rules *rules, struct vma_buf *packet,
                                                          struct vma_rx_info *info, const uint8_t *frame,
                                                          uint32_t l3_off, uint32_t *l4_len)
{
	const uint8_t *ip = frame + l3_off;
	uint32_t header_len, total_len, packet_len = packet->next == NULL ? packet->len : packet->packet_len;
	uint8_t version;

	if (packet->len < l3_off + VMA_PKT_IP4_HLEN)
		return packet_drop_reason_of_short_headers(packet, l3_off + VMA_PKT_IP4_HLEN);
	version = packet_load8(ip);
	header_len = (version & 15) * 4u;
	if (version >> 4 != 4 || header_len < VMA_PKT_IP4_HLEN)
		return PACKET_DROP(ip_version);
	if (packet->len < l3_off + header_len)
		return packet_drop_reason_of_short_headers(packet, l3_off + header_len);
	total_len = __builtin_bswap16(packet_load16(ip + 2));
	if (total_len < header_len || l3_off + total_len > packet_len)
		return PACKET_DROP(ip_length);
	if (rules->sw_csum && !(packet->flags & VMA_BUF_RX_L3_CSUM_OK) && !ip4_checksum_right(ip, header_len))
		return PACKET_DROP(ip_checksum);
	if (packet_load16(ip + 6) & FRAGMENT_BE)
		return rules->to_kernel ? PACKET_TO_KERNEL : PACKET_DROP(ip_fragment);
	if (rules->to_kernel && header_len > VMA_PKT_IP4_HLEN && ip_options_have_source_route_or_error(ip, header_len))
		return PACKET_TO_KERNEL;
	info->family = AF_INET;
	info->tos = ip[1];
	info->ttl = ip[8];
	info->proto = ip[9];
	memcpy(info->src, ip + 12, 4);
	memcpy(info->dst, ip + 16, 4);
	packet->l3_off = (uint16_t)l3_off;
	packet->l4_off = (uint16_t)(l3_off + header_len);
	*l4_len = total_len - header_len;
	return PACKET_PASS;
}

/*
 * The shape that nearly all packets have, with every offset a constant: no tag, no IP options, no fragment, UDP or TCP,
 * in one buffer, right in all respects. False for everything else, bad packets included: the general way finds the
 * reason.
 */
/* Ethertype and version with header length. */
static inline bool frame_is_untagged_ip4_without_options(const uint8_t *frame)
{
	return (packet_load32(frame + 12) & 0x00ffffff) == (ETHERTYPE_IP4_BE | 0x45 << 16);
}

/* Of an IPv4 header the fragment bits and the protocol; a plain one's are the protocol's alone. */
static inline uint32_t plain_proto_and_fragment_bits(const uint8_t *frame)
{
	return packet_load32(frame + PLAIN_IP + 6) & (0xff000000 | FRAGMENT_BE);
}
#define PLAIN_PROTO(proto) ((uint32_t)(proto) << 24)

static inline uint64_t plain_ip4_address_checksum_sum(const uint8_t *frame)
{
	return (uint64_t)packet_load32(frame + PLAIN_IP + 12) + packet_load32(frame + PLAIN_IP + 16);
}

static inline bool plain_ip4_checksum_is_valid_or_unchecked(const struct packet_rules *rules,
                                                            const struct vma_buf *packet, const uint8_t *frame,
                                                            uint64_t addresses)
{
	return !rules->sw_csum || packet->flags & VMA_BUF_RX_L3_CSUM_OK ||
	       checksum_is_valid(addresses + packet_load32(frame + PLAIN_IP) + packet_load32(frame + PLAIN_IP + 4) +
	                         packet_load32(frame + PLAIN_IP + 8));
}

static inline bool plain_l4_checksum_is_acceptable(const struct packet_rules *rules, const struct vma_buf *packet,
                                                   const uint8_t *frame, uint64_t pseudo, uint16_t field,
                                                   uint32_t l4_len)
{
	if (!rules->sw_csum || packet->flags & VMA_BUF_RX_L4_CSUM_OK)
		return true;
	return (rules->memory_link && field != 0 && field_is_pseudo_header_checksum(field, pseudo)) ||
	       checksum_is_valid(checksum_add_after_8_readable_bytes(pseudo, frame + PLAIN_L4, l4_len));
}

static inline void packet_set_info_from_plain_headers(struct vma_buf *packet, struct vma_rx_info *info,
                                                      const uint8_t *frame, uint8_t proto, uint8_t tcp_flags)
{
	memcpy(info->src, frame + PLAIN_IP + 12, 4);
	memcpy(info->dst, frame + PLAIN_IP + 16, 4);
	memcpy(&info->src_port_be, frame + PLAIN_L4, 2);
	memcpy(&info->dst_port_be, frame + PLAIN_L4 + 2, 2);
	info->family = AF_INET;
	info->proto = proto;
	info->vlan = 0;
	info->tos = frame[PLAIN_IP + 1];
	info->ttl = frame[PLAIN_IP + 8];
	info->tcp_flags = tcp_flags;
	packet->l3_off = PLAIN_IP;
	packet->l4_off = PLAIN_L4;
}

static inline bool plain_udp_validate_and_set_payload(const struct packet_rules *rules, struct vma_buf *packet,
                                                      struct vma_rx_info *info, const uint8_t *frame)
{
	const uint16_t udp_len_be = packet_load16(frame + PLAIN_L4 + 4), field = packet_load16(frame + PLAIN_L4 + 6);
	const uint32_t total_len = __builtin_bswap16(packet_load16(frame + PLAIN_IP + 2));
	const uint32_t udp_len = __builtin_bswap16(udp_len_be);
	const uint64_t addresses = plain_ip4_address_checksum_sum(frame);

	if (PLAIN_IP + total_len > packet->len || udp_len < VMA_PKT_UDP_HLEN || VMA_PKT_IP4_HLEN + udp_len > total_len)
		return false;
	if (!plain_ip4_checksum_is_valid_or_unchecked(rules, packet, frame, addresses))
		return false;
	if (packet->flags & VMA_BUF_RX_L4_CSUM_BAD && field != 0)
		return false;
	if (field != 0 && !plain_l4_checksum_is_acceptable(rules, packet, frame,
	                                                   addresses + udp_len_be + (IPPROTO_UDP << 8), field, udp_len))
		return false;
	packet_set_info_from_plain_headers(packet, info, frame, IPPROTO_UDP, 0);
	packet->payload_off = PLAIN_L4 + VMA_PKT_UDP_HLEN;
	packet->payload_len = (uint16_t)(udp_len - VMA_PKT_UDP_HLEN);
	return true;
}

/* As validate_tcp_header_and_set_payload: all of the header lies before the end of what the IPv4 header announces,
 * which lies in the buffer. */
static inline bool plain_tcp_validate_and_set_payload(const struct packet_rules *rules, struct vma_buf *packet,
                                                      struct vma_rx_info *info, const uint8_t *frame)
{
	const uint32_t total_len = __builtin_bswap16(packet_load16(frame + PLAIN_IP + 2));
	const uint32_t l4_len = total_len - VMA_PKT_IP4_HLEN;
	const uint64_t addresses = plain_ip4_address_checksum_sum(frame);
	uint32_t header_len;

	if (PLAIN_IP + total_len > packet->len || total_len < VMA_PKT_IP4_HLEN + VMA_PKT_TCP_HLEN)
		return false;
	header_len = (packet_load8(frame + PLAIN_L4 + 12) >> 4) * 4u;
	if (header_len < VMA_PKT_TCP_HLEN || header_len > l4_len || packet->flags & VMA_BUF_RX_L4_CSUM_BAD)
		return false;
	if (!plain_ip4_checksum_is_valid_or_unchecked(rules, packet, frame, addresses) ||
	    !plain_l4_checksum_is_acceptable(rules, packet, frame,
	                                     addresses + __builtin_bswap16((uint16_t)l4_len) + (IPPROTO_TCP << 8),
	                                     packet_load16(frame + PLAIN_L4 + 16), l4_len))
		return false;
	packet_set_info_from_plain_headers(packet, info, frame, IPPROTO_TCP, frame[PLAIN_L4 + 13]);
	packet->payload_off = (uint16_t)(PLAIN_L4 + header_len);
	packet->payload_len = (uint16_t)(l4_len - header_len);
	return true;
}

static unsigned __attribute__((noinline))
packet_validate_headers_slow_path(const struct packet_rules *rules, struct vma_buf *packet, struct vma_rx_info *info,
                                  const uint8_t *frame)
{
	const uint8_t *l4;
	uint32_t l3_off = VMA_PKT_ETH_HLEN, l4_len = 0;
	unsigned verdict;

	if (__builtin_expect(packet->next != NULL, 0) && packet_validate_chain_length(packet) != PACKET_PASS)
		return PACKET_DROP(chain);
	if (packet->len < VMA_PKT_ETH_HLEN)
		return packet_drop_reason_of_short_headers(packet, VMA_PKT_ETH_HLEN);
	info->vlan = 0;
	if (__builtin_expect(packet_load16(frame + 12) != ETHERTYPE_IP4_BE, 0)) {
		if (packet_load16(frame + 12) != ETHERTYPE_VLAN_BE)
			return PACKET_DROP(ethertype);
		l3_off += VMA_PKT_VLAN_HLEN;
		if (packet->len < l3_off)
			return packet_drop_reason_of_short_headers(packet, l3_off);
		if (packet_load16(frame + 16) != ETHERTYPE_IP4_BE)
			return PACKET_DROP(ethertype);
		info->vlan = __builtin_bswap16(packet_load16(frame + 14)) & 0xfff;
	}
	verdict = validate_ip4_header_and_get_l4_len(rules, packet, info, frame, l3_off, &l4_len);
	if (verdict != PACKET_PASS)
		return verdict;
	l4 = frame + packet->l4_off;
	if (__builtin_expect(info->proto == IPPROTO_UDP, 1))
		verdict = validate_udp_header_and_set_payload(rules, packet, info, l4, l4_len);
	else if (info->proto == IPPROTO_TCP)
		verdict = validate_tcp_header_and_set_payload(rules, packet, info, l4, l4_len);
	else
		return PACKET_DROP(protocol);
	if (verdict != PACKET_PASS)
		return verdict;
	info->src_port_be = packet_load16(l4);
	info->dst_port_be = packet_load16(l4 + 2);
	return PACKET_PASS;
}

/* The two functions below have no way back into them, so that neither has to keep registers for it. */
static unsigned __attribute__((noinline))
packet_validate_tcp_fast_then_slow(const struct packet_rules *rules, struct vma_buf *packet, struct vma_rx_info *info,
                                   const uint8_t *frame)
{
	if (__builtin_expect(plain_tcp_validate_and_set_payload(rules, packet, info, frame), 1))
		return PACKET_PASS;
	return packet_validate_headers_slow_path(rules, packet, info, frame);
}

unsigned packet_validate_and_parse_headers(const struct packet_rules *rules, struct vma_buf *packet,
                                           const uint8_t *frame, struct vma_rx_info *info)
{
	enum { HEADERS = VMA_PKT_ETH_HLEN + VMA_PKT_IP4_HLEN + VMA_PKT_UDP_HLEN };

	if (__builtin_expect(packet->next == NULL && packet->len >= HEADERS &&
	                             frame_is_untagged_ip4_without_options(frame),
	                     1)) {
		const uint32_t proto = plain_proto_and_fragment_bits(frame);

		if (__builtin_expect(proto == PLAIN_PROTO(IPPROTO_UDP) &&
		                             plain_udp_validate_and_set_payload(rules, packet, info, frame),
		                     1))
			return PACKET_PASS;
		if (proto == PLAIN_PROTO(IPPROTO_TCP))
			return packet_validate_tcp_fast_then_slow(rules, packet, info, frame);
	}
	return packet_validate_headers_slow_path(rules, packet, info, frame);
}
