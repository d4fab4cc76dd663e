/* checksum - the wire's checksum offload: IPv4, UDP and TCP (RFC 1071, 768, 793) over one contiguous frame. */
#include <netinet/in.h>
#include <string.h>

#include "wire.h"

static uint32_t sum_add(uint32_t sum, const char *bytes, uint32_t len)
{
	for (; len > 1; bytes += 2, len -= 2)
		sum += (uint32_t)((uint8_t)bytes[0] << 8 | (uint8_t)bytes[1]);
	return len != 0 ? sum + ((uint32_t)(uint8_t)bytes[0] << 8) : sum;
}

static uint16_t wire_sum_fold(uint32_t sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)(sum + (sum >> 16));
}

static uint32_t pseudo_sum(const char *ip, const struct wire_headers *headers)
{
	return sum_add(0, ip + 12, 8) + headers->key.proto + headers->l4_len;
}

static char *l4_checksum_field(char *l4, const struct wire_headers *headers)
{
	return l4 + (headers->key.proto == IPPROTO_UDP ? 6 : 16);
}

static void checksum_put16(char *p, uint16_t value)
{
	p[0] = (char)(value >> 8);
	p[1] = (char)value;
}

void wire_checksum_fill(char *frame, uint32_t len)
{
	struct wire_headers headers;

	if (!wire_parse_packet_headers(frame, len, len, &headers))
		return;
	char *ip = frame + headers.l3_off, *l4 = frame + headers.l4_off, *field = l4_checksum_field(l4, &headers);
	checksum_put16(ip + 10, 0);
	checksum_put16(ip + 10, (uint16_t)~wire_sum_fold(sum_add(0, ip, headers.l4_off - headers.l3_off)));
	checksum_put16(field, 0);
	uint16_t sum = (uint16_t)~wire_sum_fold(sum_add(pseudo_sum(ip, &headers), l4, headers.l4_len));
	checksum_put16(field, sum == 0 && headers.key.proto == IPPROTO_UDP ? 0xffff : sum);
}

uint16_t wire_rx_checksum_flags_of_frame(const char *frame, uint32_t len, bool memory_link)
{
	struct wire_headers headers;

	if (!wire_parse_packet_headers(frame, len, len, &headers))
		return 0;
	const char *ip = frame + headers.l3_off, *l4 = frame + headers.l4_off;
	const char *field = l4_checksum_field((char *)(uintptr_t)l4, &headers);
	uint32_t pseudo = pseudo_sum(ip, &headers);
	uint16_t flags = 0;
	if (wire_sum_fold(sum_add(0, ip, headers.l4_off - headers.l3_off)) == 0xffff)
		flags |= VMA_BUF_RX_L3_CSUM_OK;
	if (wire_sum_fold(sum_add(pseudo, l4, headers.l4_len)) == 0xffff)
		return flags | VMA_BUF_RX_L4_CSUM_OK;
	if (headers.key.proto == IPPROTO_UDP && field[0] == 0 && field[1] == 0) /* the sender made none */
		return flags | VMA_BUF_RX_L4_CSUM_OK;
	if (memory_link &&
	    wire_sum_fold(sum_add(0, field, 2)) == wire_sum_fold(pseudo)) /* sent by a kernel to its own memory */
		return flags | VMA_BUF_RX_L4_CSUM_OK;
	return flags | VMA_BUF_RX_L4_CSUM_BAD;
}
