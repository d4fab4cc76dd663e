/*
 * siphash - SipHash-2-4: a keyed hash of short inputs that does not give its key away (Aumasson and Bernstein, 2012).
 *
 * It is for numbers that peers see and must not be able to foretell: initial sequence numbers, time stamp offsets.
 *
 * Threads: any; the function is pure. Example: test/test_siphash.c, the authors' test vectors.
 */
#ifndef VMA_TCP_SIPHASH_H
#define VMA_TCP_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t siphash_rotl(uint64_t x, unsigned bits)
{
	return x << bits | x >> (64 - bits);
}

static inline void siphash_rounds(uint64_t v[4], unsigned rounds)
{
	while (rounds--) {
		v[0] += v[1];
		v[2] += v[3];
		v[1] = siphash_rotl(v[1], 13) ^ v[0];
		v[3] = siphash_rotl(v[3], 16) ^ v[2];
		v[0] = siphash_rotl(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = siphash_rotl(v[1], 17) ^ v[2];
		v[3] = siphash_rotl(v[3], 21) ^ v[0];
		v[2] = siphash_rotl(v[2], 32);
	}
}

static inline uint64_t siphash(const uint8_t key[16], const void *data, size_t len)
{
	const uint8_t *bytes = data;
	uint64_t k[2], word;

	memcpy(k, key, sizeof(k)); /* little endian, as this machine is */
	uint64_t v[4] = {
	        k[0] ^ 0x736f6d6570736575ULL,
	        k[1] ^ 0x646f72616e646f6dULL,
	        k[0] ^ 0x6c7967656e657261ULL,
	        k[1] ^ 0x7465646279746573ULL,
	};
	for (size_t left = len;; left -= 8, bytes += 8) {
		word = left < 8 ? (uint64_t)len << 56 : 0;
		memcpy(&word, bytes, left < 8 ? left : 8);
		v[3] ^= word;
		siphash_rounds(v, 2);
		v[0] ^= word;
		if (left < 8)
			break;
	}
	v[2] ^= 0xff;
	siphash_rounds(v, 4);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
