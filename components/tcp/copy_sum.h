/*
 * copy_sum.h - copies bytes and sums them up for the internet checksum (RFC 1071) in one pass over them.
 *
 * Eight bytes at a time with the carry added back, in four sums that do not wait for each other. A piece that begins at
 * an odd place has its bytes in the other halves of the words: its sum is turned round.
 */
#ifndef VMA_TCP_COPY_SUM_H
#define VMA_TCP_COPY_SUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <vma/packet.h>

struct copy_sum {
	uint64_t sum;
	bool odd; /* so many bytes have been summed */
};

static inline uint64_t copy_sum_word(uint64_t sum, uint8_t *to, const uint8_t *from)
{
	uint64_t word, out;

	memcpy(&word, from, 8);
	memcpy(to, &word, 8);
	return __builtin_add_overflow(sum, word, &out) ? out + 1 : out;
}

static inline uint64_t copy_sum_join(uint64_t a, uint64_t b)
{
	uint64_t out;

	return __builtin_add_overflow(a, b, &out) ? out + 1 : out;
}

static inline uint64_t copy_sum_even(uint8_t *to, const uint8_t *from, size_t len)
{
	uint64_t a = 0, b = 0, c = 0, d = 0, rest = 0;

	for (; len >= 32; len -= 32, to += 32, from += 32) {
		a = copy_sum_word(a, to, from);
		b = copy_sum_word(b, to + 8, from + 8);
		c = copy_sum_word(c, to + 16, from + 16);
		d = copy_sum_word(d, to + 24, from + 24);
	}
	for (; len >= 8; len -= 8, to += 8, from += 8)
		a = copy_sum_word(a, to, from);
	if (len != 0) {
		memcpy(&rest, from, len);
		memcpy(to, from, len);
	}
	return copy_sum_join(copy_sum_join(a, b), copy_sum_join(c, copy_sum_join(d, rest)));
}

static inline void copy_sum(struct copy_sum *state, void *to, const void *from, size_t len)
{
	uint64_t sum = copy_sum_even(to, from, len);

	if (state->odd)
		sum = __builtin_bswap16(vma_csum_fold(sum));
	state->sum = copy_sum_join(state->sum, sum);
	state->odd ^= len & 1;
}

#endif
