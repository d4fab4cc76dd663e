/*
 * tso - a packet of several segments of one connection, which the NIC cuts (VMA_NIC_SEG_TSO).
 *
 *   frames of the stack   ... | headers, bytes | bytes | bytes | ...     pieces of one packet, each a buffer of its own
 *   segments              ... |---- mss ----|---- mss ----|--- rest ---|
 *
 * Only frames are put together. Each segment is decided on, noted and counted by itself, as without it, and is sent
 * again by itself. A packet is open while one connection's output runs, and closed at the end of it at the latest. So
 * all its segments have the same acknowledgement, window and time stamps. The NIC makes their headers of the first
 * one's: it counts sequence numbers and IP ids up, and leaves PSH to the last.
 *
 * The first segment is a complete frame before there is a second one. So a packet of one segment is sent as ever.
 *
 * Threads: the driver.
 * Memory: the caller's; pieces lie in tcp->frames. While a packet is open, no other code adds to these or sends them.
 * Example: test/test_tso.c.
 */
#ifndef VMA_TCP_TX_TSO_H
#define VMA_TCP_TX_TSO_H

#include <stdbool.h>
#include <stdint.h>

#include "../tcp_priv.h"

struct tso_packet {
	uint32_t segments; /* 0: none is open */
	uint32_t first;    /* of tcp->frames */
	uint32_t mss, bytes;
	uint32_t hdr_len; /* from the Ethernet header to the end of the TCP header */
	bool is_full;     /* its last segment is one: shorter than mss, or with PSH */
};

/* What of the NIC's ability the stack may use, if `wanted`: tcp->tso_bytes, tcp->tso_segs, tcp->plain_mss_min. */
void tcp_stack_set_tso_limits_from_nic(struct vma_tcp *tcp, bool wanted);
/* The last frame of the stack, with n bytes, may become the first of a packet. */
void tso_begin_packet_with_last_frame(const struct vma_tcp_conn *conn, struct tso_packet *packet, uint32_t n);
/* Whether n bytes more may be in it. A kick that is due is not put off by it. */
static inline bool tso_has_room(const struct vma_tcp *tcp, const struct tso_packet *packet, uint32_t n)
{
	return !packet->is_full && n <= packet->mss && packet->bytes + n <= tcp->tso_bytes &&
	       tcp->acked_since_kick < ACKED_KICK_MAX;
}
/* The next n bytes of the stream, for which there is room. False: there is no buffer, or no piece more. */
bool tso_append(struct vma_tcp_conn *conn, struct tso_packet *packet, const void *bytes, uint32_t n, bool push);
void tso_finish_packet_headers(const struct vma_tcp_conn *conn,
                               struct tso_packet *packet); /* nothing, if none is open */

#endif
