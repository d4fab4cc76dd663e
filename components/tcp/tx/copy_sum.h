/*
 * copy_sum.h - copies bytes and sums them up for the internet checksum (RFC 1071) in one pass over them.
 *
 * It works on sixteen bytes at a time, as four numbers of 32 bits that are added to sums of 64, which cannot overflow.
 * It uses a vector of two, which every x86-64 has; elsewhere the compiler makes of it what it can. A piece that begins
 * at an odd place has its bytes in the other halves of the words: its sum is turned round.
 *
 * Threads: any; a struct copy_sum is the caller's.
 */
#ifndef VMA_TCP_TX_COPY_SUM_H
#define VMA_TCP_TX_COPY_SUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <vma/packet.h>

struct copy_sum {
	uint64_t sum; /* not folded: begin with what vma_csum_fold makes of other sums */
	bool odd;     /* so many bytes have been summed */
};

typedef uint64_t checksum_vector_pair __attribute__((vector_size(16)));

static inline checksum_vector_pair copy_and_checksum_16_bytes(checksum_vector_pair sum, uint8_t *to,
                                                              const uint8_t *from)
{
	checksum_vector_pair words;

	memcpy(&words, from, 16);
	memcpy(to, &words, 16);
	return sum + (words >> 32) + (words & 0xffffffff);
}

static inline uint64_t copy_and_checksum_tail(uint8_t *to, const uint8_t *from, size_t len)
{
	uint64_t sum = 0, word = 0;

	if (len >= 8) {
		memcpy(&word, from, 8);
		memcpy(to, &word, 8);
		sum = (word >> 32) + (uint32_t)word;
		word = 0;
		to += 8;
		from += 8;
		len -= 8;
	}
	memcpy(&word, from, len);
	memcpy(to, from, len);
	return sum + (word >> 32) + (uint32_t)word;
}

/* Less than 2^48 for anything shorter than a gigabyte. */
static inline uint64_t copy_and_checksum_even_offset(uint8_t *to, const uint8_t *from, size_t len)
{
	checksum_vector_pair a = {0}, b = {0};

	for (; len >= 32; len -= 32, to += 32, from += 32) {
		a = copy_and_checksum_16_bytes(a, to, from);
		b = copy_and_checksum_16_bytes(b, to + 16, from + 16);
	}
	if (len >= 16) {
		a = copy_and_checksum_16_bytes(a, to, from);
		to += 16;
		from += 16;
		len -= 16;
	}
	a += b;
	return a[0] + a[1] + (len != 0 ? copy_and_checksum_tail(to, from, len) : 0);
}

static inline void copy_and_add_to_checksum(struct copy_sum *state, void *to, const void *from, size_t len)
{
	uint64_t sum = copy_and_checksum_even_offset(to, from, len);

	if (state->odd)
		sum = __builtin_bswap16(vma_csum_fold(sum));
	state->sum += sum;
	state->odd ^= len & 1;
}

#endif
