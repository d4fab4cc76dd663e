/*
 * checksum.h - the internet checksum over contiguous bytes, for this folder's hot paths; others use vma_csum_add.
 *
 * It adds eight bytes at a time and adds the carry back in. That is a sum modulo 2^64 - 1, of which 0xffff is a factor,
 * so folding it gives the same 16 bits. memcpy makes unaligned loads legal.
 *
 * Threads: any; the functions are pure.
 */
#ifndef VMA_RING_CHECKSUM_H
#define VMA_RING_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t add_carry(uint64_t sum, uint64_t word)
{
	uint64_t out;
	bool carry = __builtin_add_overflow(sum, word, &out);

	return out + carry;
}

static inline uint64_t checksum_load64(const uint8_t *p)
{
	uint64_t w;

	memcpy(&w, p, 8);
	return w;
}

/*
 * The one to seven bytes at p as the low bytes of a word: a missing odd one counts as zero (RFC 1071). Where eight
 * bytes end there, they are one load, and the wrong ones of them are shifted out.
 */
static inline uint64_t checksum_load_tail(const uint8_t *p, size_t rest, bool eight_before)
{
	uint64_t w = 0;

	if (__builtin_expect(eight_before, 1))
		return checksum_load64(p + rest - 8) >> (64 - 8 * rest);
	memcpy(&w, p, rest);
	return w;
}

static inline __attribute__((always_inline)) uint64_t checksum_sum(uint64_t sum, const void *data, size_t len,
                                                                   bool eight_before)
{
	const uint8_t *p = data, *end = p + (len & ~(size_t)31);

	for (; p != end; p += 32) {
		sum = add_carry(sum, checksum_load64(p));
		sum = add_carry(sum, checksum_load64(p + 8));
		sum = add_carry(sum, checksum_load64(p + 16));
		sum = add_carry(sum, checksum_load64(p + 24));
	}
	if (len & 16) {
		sum = add_carry(sum, checksum_load64(p));
		sum = add_carry(sum, checksum_load64(p + 8));
		p += 16;
	}
	if (len & 8) {
		sum = add_carry(sum, checksum_load64(p));
		p += 8;
	}
	if (len & 7)
		sum = add_carry(sum, checksum_load_tail(p, len & 7, eight_before || len >= 8));
	/* A caller may go on adding plainly: stay far from the overflow. */
	return (sum & 0xffffffff) + (sum >> 32);
}

static inline uint64_t checksum_add(uint64_t sum, const void *data, size_t len)
{
	return checksum_sum(sum, data, len, false);
}

/* The same of bytes that lie behind at least eight others that can be read. */
static inline uint64_t checksum_add_after_8_readable_bytes(uint64_t sum, const void *data, size_t len)
{
	return checksum_sum(sum, data, len, true);
}

#endif
