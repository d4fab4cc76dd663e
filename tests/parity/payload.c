/* payload - bytes that tell who they are. */
#include "payload.h"

static unsigned char payload_byte_at(size_t i, int seed)
{
	return (unsigned char)((unsigned)seed + i * 7 + (i >> 8) * 13);
}

void fill(void *buf, size_t len, int seed)
{
	unsigned char *bytes = buf;

	for (size_t i = 0; i < len; i++)
		bytes[i] = payload_byte_at(i, seed);
}

int seed_of_payload(const void *buf, size_t len)
{
	const unsigned char *bytes = buf;

	if (len == 0 || bytes[0] > 63)
		return -1;
	for (size_t i = 0; i < len; i++)
		if (bytes[i] != payload_byte_at(i, bytes[0]))
			return -1;
	return bytes[0];
}
