/* checksum - the internet checksum (RFC 1071) of UDP and TCP over IPv4. */
#include <netinet/in.h>

#include "checksum.h"

static uint16_t read_be16(const uint8_t *bytes)
{
	return (uint16_t)(bytes[0] << 8 | bytes[1]);
}

static uint32_t sum_of(const uint8_t *bytes, uint32_t len, uint32_t sum)
{
	for (; len > 1; bytes += 2, len -= 2)
		sum += read_be16(bytes);
	return len != 0 ? sum + (uint32_t)(bytes[0] << 8) : sum;
}

static uint16_t dump_sum_fold(uint32_t sum)
{
	while (sum >> 16 != 0)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)sum;
}

void checksum_complete_l4_if_pseudo_only(uint8_t *frame, uint32_t len)
{
	const uint32_t ip = len >= 18 && read_be16(frame + 12) == 0x8100 ? 18 : 14;
	uint32_t head, total, l4_len, at, pseudo;
	uint16_t sum;
	uint8_t *l4;

	if (len < ip + 20 || read_be16(frame + ip - 2) != 0x0800 || frame[ip] >> 4 != 4)
		return;
	head = (frame[ip] & 15u) * 4;
	total = read_be16(frame + ip + 2);
	if (head < 20 || total < head || len - ip < total || (read_be16(frame + ip + 6) & 0x3fff) != 0)
		return;
	l4 = frame + ip + head;
	l4_len = total - head;
	at = frame[ip + 9] == IPPROTO_TCP ? 16 : 6;
	if ((frame[ip + 9] != IPPROTO_TCP && frame[ip + 9] != IPPROTO_UDP) || l4_len < at + 2)
		return;
	pseudo = sum_of(frame + ip + 12, 8, frame[ip + 9] + l4_len);
	if (read_be16(l4 + at) != dump_sum_fold(pseudo))
		return;
	l4[at] = l4[at + 1] = 0;
	sum = (uint16_t)~dump_sum_fold(sum_of(l4, l4_len, pseudo));
	if (sum == 0 && frame[ip + 9] == IPPROTO_UDP) /* RFC 768: 0 says that there is none */
		sum = 0xffff;
	l4[at] = (uint8_t)(sum >> 8);
	l4[at + 1] = (uint8_t)sum;
}
