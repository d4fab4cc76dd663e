/*
 * frame - reads the headers of an Ethernet frame, and sums it as a card's checksum units do.
 *
 * Threads: no state. Memory: the caller's. A frame that ends too early has the fields that were there.
 */
#ifndef TESTS_VERBS_FRAME_H
#define TESTS_VERBS_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto.h"

enum {
	FRAME_ETH = 14,
	FRAME_MIN = 60, /* without the check sequence */
	FRAME_MAX = 9216 + FRAME_ETH + 4,
};

/* The fields that rules compare. A fragment has no ports. */
void frame_read(const uint8_t *frame, size_t len, struct card_match *fields);

/* IPv4, not a fragment, UDP or TCP, and both sums are right (a UDP sum of 0 is). */
bool frame_sums_right(const uint8_t *frame, size_t len);

/* Writes the sum of an IPv4 header, and that of its TCP or UDP if it is no fragment. */
void frame_write_sums(uint8_t *frame, size_t len);
#endif
