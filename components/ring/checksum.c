/*
 * checksum.c - the internet checksum over contiguous bytes.
 *
 * Eight bytes at a time with the carry added back in (a sum modulo 2^64 - 1, of which 0xffff is a factor, so folding it
 * gives the same 16 bits). memcpy makes unaligned loads legal.
 */
#include <stdbool.h>

#include <vma/packet.h>

static inline uint64_t add_carry(uint64_t sum, uint64_t word)
{
	uint64_t out;
	bool carry = __builtin_add_overflow(sum, word, &out);

	return out + carry;
}

static inline uint64_t load64(const uint8_t *p)
{
	uint64_t w;

	memcpy(&w, p, 8);
	return w;
}

/* The last one to seven bytes as the low bytes of a word: a missing odd one counts as zero (RFC 1071). */
static inline uint64_t load_rest(const uint8_t *p, size_t len)
{
	uint64_t w = 0;
	uint32_t four;
	uint16_t two;

	if (len & 4) {
		memcpy(&four, p, 4);
		w = four;
		p += 4;
	}
	if (len & 2) {
		memcpy(&two, p, 2);
		w += two;
		p += 2;
	}
	return len & 1 ? w + *p : w;
}

uint64_t vma_csum_add(uint64_t sum, const void *data, size_t len)
{
	const uint8_t *p = data;

	for (; len >= 32; len -= 32, p += 32) {
		sum = add_carry(sum, load64(p));
		sum = add_carry(sum, load64(p + 8));
		sum = add_carry(sum, load64(p + 16));
		sum = add_carry(sum, load64(p + 24));
	}
	for (; len >= 8; len -= 8, p += 8)
		sum = add_carry(sum, load64(p));
	sum = add_carry(sum, load_rest(p, len));
	/* A caller may go on adding plainly: stay far from the overflow. */
	return (sum & 0xffffffff) + (sum >> 32);
}
