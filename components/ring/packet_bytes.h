/*
 * packet_bytes.h - reading the bytes of a frame, for the header checks.
 *
 * A frame lies in memory that other clients of the interface can write to at any time. So what a length or a verdict
 * comes from is read once: the compiler keeps what it has read, and does not look again.
 *
 * Threads: any; the functions are pure. Numbers are as they lie in memory.
 */
#ifndef VMA_RING_PACKET_BYTES_H
#define VMA_RING_PACKET_BYTES_H

#include <stdbool.h>
#include <stdint.h>

#include <vma/packet.h>

enum {
	ETHERTYPE_IP4_BE = 0x0008,
	FRAGMENT_BE = 0xff3f, /* more-fragments, or an offset */
	/* of a frame without a tag and IP options */
	PLAIN_IP = VMA_PKT_ETH_HLEN,
	PLAIN_L4 = PLAIN_IP + VMA_PKT_IP4_HLEN,
};

typedef uint16_t __attribute__((aligned(1), may_alias)) unaligned16;
typedef uint32_t __attribute__((aligned(1), may_alias)) unaligned32;
typedef uint64_t __attribute__((aligned(1), may_alias)) unaligned64;

static inline uint8_t packet_load8(const uint8_t *p)
{
	return *(const volatile uint8_t *)p;
}

static inline uint16_t packet_load16(const uint8_t *p)
{
	return *(const volatile unaligned16 *)p;
}

static inline uint32_t packet_load32(const uint8_t *p)
{
	return *(const volatile unaligned32 *)p;
}

static inline uint64_t packet_load64(const uint8_t *p)
{
	return *(const volatile unaligned64 *)p;
}

/*
 * Whether a sum that holds its own checksum folds to 0xffff. Folding keeps the remainder modulo 0xffff, and a sum that
 * is not zero (both headers have a byte that is not) folds to 0xffff when that remainder is zero: one multiplication.
 */
static inline bool checksum_is_valid(uint64_t sum)
{
	return sum % 0xffff == 0;
}

/* Whether `field` is what `pseudo` folds to: neither is 0, so it is enough that they agree modulo 0xffff. */
static inline bool field_is_pseudo_header_checksum(uint16_t field, uint64_t pseudo)
{
	return checksum_is_valid(pseudo + 0xffff - field);
}

#endif
