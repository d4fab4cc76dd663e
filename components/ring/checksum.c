/*
 * checksum.c - the internet checksum over contiguous bytes.
 *
 * 32-bit words are added into 64-bit accumulators: no carry is lost before 2^32 words, so nothing is folded inside the
 * loop, and four independent accumulators keep the adders busy. memcpy makes unaligned loads legal.
 */
#include <vma/packet.h>

static inline uint64_t load32(const uint8_t *p)
{
	uint32_t w;

	memcpy(&w, p, 4);
	return w;
}

/* One 8-byte load gives two words; their sum fits in 33 bits. */
static inline uint64_t load64(const uint8_t *p)
{
	uint64_t w;

	memcpy(&w, p, 8);
	return (w & 0xffffffff) + (w >> 32);
}

uint64_t vma_csum_add(uint64_t sum, const void *data, size_t len)
{
	const uint8_t *p = data;
	uint64_t a = 0, b = 0;

	/* A caller may chain many pieces: keep the running sum far from overflow. */
	sum = (sum & 0xffffffff) + (sum >> 32);
	for (; len >= 32; len -= 32, p += 32) {
		a += load64(p) + load64(p + 8);
		b += load64(p + 16) + load64(p + 24);
	}
	for (; len >= 8; len -= 8, p += 8)
		a += load64(p);
	if (len & 4) {
		b += load32(p);
		p += 4;
	}
	if (len & 2) {
		uint16_t w;

		memcpy(&w, p, 2);
		b += w;
		p += 2;
	}
	if (len & 1) {
		uint16_t w = 0;

		memcpy(&w, p, 1); /* the missing byte counts as zero, on either byte order */
		b += w;
	}
	return sum + a + b;
}
