/* frames - UDP and TCP over IPv4 as bytes, as one end of a conversation sees them. */
#ifndef VMA_DUMP_TEST_FRAMES_H
#define VMA_DUMP_TEST_FRAMES_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#define FRAME_BYTES 80 /* more than any of them, with padding */

/* Addresses in host order. The checksum is the pseudo header's sum, for the device to finish. */
static inline uint32_t frame_make_udp_or_tcp(uint8_t frame[FRAME_BYTES], uint8_t protocol, uint32_t src,
                                             uint16_t src_port, uint32_t dst, uint16_t dst_port)
{
	const uint32_t len = protocol == IPPROTO_UDP ? 8 : 20, src_be = htonl(src), dst_be = htonl(dst);
	uint8_t *const ip = frame + 14, *const l4 = frame + 34;
	uint32_t sum = protocol + len;

	memset(frame, 0, FRAME_BYTES);
	frame[12] = 0x08;
	ip[0] = 0x45;
	ip[3] = (uint8_t)(20 + len);
	ip[8] = 64;
	ip[9] = protocol;
	memcpy(ip + 12, &src_be, 4);
	memcpy(ip + 16, &dst_be, 4);
	l4[0] = (uint8_t)(src_port >> 8);
	l4[1] = (uint8_t)src_port;
	l4[2] = (uint8_t)(dst_port >> 8);
	l4[3] = (uint8_t)dst_port;
	if (protocol == IPPROTO_UDP)
		l4[5] = (uint8_t)len;
	else
		l4[12] = 5 << 4;
	for (unsigned i = 0; i < 8; i += 2)
		sum += (uint32_t)(ip[12 + i] << 8 | ip[13 + i]);
	while (sum >> 16 != 0)
		sum = (sum & 0xffff) + (sum >> 16);
	l4[protocol == IPPROTO_UDP ? 6 : 16] = (uint8_t)(sum >> 8);
	l4[protocol == IPPROTO_UDP ? 7 : 17] = (uint8_t)sum;
	return 34 + len;
}

#endif
