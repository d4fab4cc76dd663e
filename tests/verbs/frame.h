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
void frame_read_match_fields(const uint8_t *frame, size_t len, struct card_match *fields);

/* IPv4, not a fragment, UDP or TCP, and both sums are right (a UDP sum of 0 is). */
bool frame_checksums_are_right(const uint8_t *frame, size_t len);

/* Writes the sum of an IPv4 header, and that of its TCP or UDP if it is no fragment. */
void frame_write_checksums(uint8_t *frame, size_t len);

/*
 * Segmentation offload. `bytes` of payload follow the header, and are cut into segments of mss. What is wrong with the
 * header, NULL: nothing. It has to be complete, TCP over IPv4, its length that of the whole; and nothing in it may be
 * that cannot be repeated.
 */
const char *tso_header_fault(const uint8_t *header, size_t header_bytes, size_t bytes, size_t mss, size_t mtu);
/* The frame with the payload from `at` on; returns its length. With its sums. */
size_t tso_write_segment(const uint8_t *header, size_t header_bytes, const uint8_t *payload, size_t bytes, size_t mss,
                         size_t at, uint8_t frame[FRAME_MAX]);
#endif
