/*
 * syncookie - a connection request that is remembered by the peer instead of by us (RFC 4987 3.6).
 *
 *   SYN ──> syncookie_send: SYN-ACK whose number says all:   time (5 bits) | MSS (3 bits) | keyed hash (24 bits)
 *   ACK ──> syncookie_check_and_rebuild_syn: the SYN as it was, and the number of that SYN-ACK
 *
 * The hash is over addresses, ports, the peer's number, time and MSS, with the stack's secret. With time stamps, window
 * scaling and SACK are in the low six bits of the SYN-ACK's time stamp. The peer echoes it, and the kernel does it so,
 * too. Without time stamps the connection goes without the two. An answer is good for one to two minutes.
 *
 * Threads: driver. Memory: none is kept. Example: test/test_syncookie.c.
 */
#ifndef VMA_TCP_SYNCOOKIE_H
#define VMA_TCP_SYNCOOKIE_H

#include "tcp_priv.h"

#define SYNCOOKIE_LIFETIME_NS (128 * TCP_NS_PER_S)

/* window: what the SYN-ACK announces, not scaled. */
void syncookie_send(struct vma_tcp *tcp, struct vma_buf *packet, uint16_t window);
/* A new packet with the SYN that this ACK completes the handshake of, and the number that its answer had; NULL: there
 * was none, it is too long ago, or there is no frame now. */
struct vma_buf *syncookie_check_and_rebuild_syn(struct vma_tcp *tcp, struct vma_buf *packet, uint32_t *isn);

/* Pure. */
struct syncookie_tuple {
	uint8_t addresses[8]; /* as in the peer's header */
	uint8_t ports[4];
	uint32_t isn; /* the peer's */
};
uint32_t syncookie_make(const uint8_t secret[16], const struct syncookie_tuple *names, uint32_t mss, uint64_t now_ns);
/* The MSS, at most that of the SYN; 0: not one of ours. */
uint32_t syncookie_check(const uint8_t secret[16], const struct syncookie_tuple *names, uint32_t cookie,
                         uint64_t now_ns);

#endif
