/*
 * datagram.h - a numbered datagram whose bytes follow from its number, so that each can be told to be whole.
 *
 * Threads: any; nothing is kept.
 */
#ifndef TESTS_EXTRA_DATAGRAM_H
#define TESTS_EXTRA_DATAGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { BYTES = 64 };

struct datagram {
	uint32_t number;
	uint8_t fill[BYTES - 4];
};

static inline void fill_datagram(struct datagram *datagram, uint32_t number)
{
	datagram->number = number;
	for (unsigned i = 0; i < sizeof(datagram->fill); i++)
		datagram->fill[i] = (uint8_t)(number * 7 + i);
}

static inline bool is_datagram_intact(const void *bytes, size_t len)
{
	struct datagram got, wanted;

	if (len != sizeof(got))
		return false;
	memcpy(&got, bytes, sizeof(got));
	fill_datagram(&wanted, got.number);
	return memcmp(&got, &wanted, sizeof(got)) == 0;
}

#endif
