/*
 * segment.h - a received segment's header as numbers, read from the packet before lwIP turns it into its own form.
 *
 * The ring has checked lengths and checksum (packet_check.h): the whole TCP header lies in the first buffer.
 */
#ifndef VMA_TCP_SEGMENT_H
#define VMA_TCP_SEGMENT_H

#include <string.h>

#include "tcp_priv.h"
#include "lwip_port.h"

struct segment {
	struct vma_bufarena *arena;
	struct vma_buf *packet; /* of several that were merged the first */
	struct tcp_hdr *hdr;    /* in the packet */
	uint32_t seq, ack, end; /* end: seq, and what the segment takes of the numbers */
	uint32_t len;           /* bytes of data */
	uint32_t size;          /* the data of one segment, of several that were merged */
	uint16_t window;        /* as it is in the header */
	uint16_t urgent;        /* the pointer; 0 without URG, too */
	uint8_t flags, hdr_len;
	bool has_ts, has_sack;
	bool is_plain; /* no options, or just time stamps where everybody puts them */
	uint32_t ts_val, ts_ecr;
};

static inline uint32_t segment_load32(const uint8_t *p)
{
	uint32_t be;

	memcpy(&be, p, 4);
	return lwip_ntohl(be);
}

static inline uint8_t *segment_options(const struct segment *s)
{
	return (uint8_t *)s->hdr + TCP_HLEN;
}

/* NOP, NOP, time stamps. */
#define SEGMENT_TS_WORD UINT32_C(0x0101080a)

/* Looks for time stamps and SACK among options that are arranged in another way than everybody's. */
void segment_options_parse(struct segment *s);
/* The option of this kind, its length checked; NULL: there is none. */
const uint8_t *segment_option(const struct segment *s, uint8_t kind);
/* The SACK blocks, at most four. */
unsigned segment_sacks(const struct segment *s, struct tcp_ack *ack);
uint8_t segment_byte(const struct segment *s, uint32_t at); /* of the data */

static inline void segment_parse(struct segment *s, struct vma_bufarena *arena, struct vma_buf *packet)
{
	uint8_t *tcp = (uint8_t *)vma_buf_data(arena, packet) + packet->l4_off;
	uint16_t window, urgent;

	s->arena = arena;
	s->packet = packet;
	s->hdr = (struct tcp_hdr *)tcp;
	s->seq = segment_load32(tcp + 4);
	s->ack = segment_load32(tcp + 8);
	s->hdr_len = (uint8_t)((tcp[12] >> 4) * 4);
	s->flags = tcp[13] & 0x3f;
	memcpy(&window, tcp + 14, 2);
	memcpy(&urgent, tcp + 18, 2);
	s->window = lwip_ntohs(window);
	s->urgent = s->flags & TCP_URG ? lwip_ntohs(urgent) : 0;
	s->len = s->size = packet->payload_len;
	s->end = s->seq + s->len + ((s->flags & TCP_SYN) != 0) + ((s->flags & TCP_FIN) != 0);
	s->has_sack = false;
	s->has_ts =
	        s->hdr_len == TCP_HLEN + LWIP_TCP_OPT_LEN_TS_OUT && segment_load32(tcp + TCP_HLEN) == SEGMENT_TS_WORD;
	s->is_plain = s->has_ts || s->hdr_len == TCP_HLEN;
	if (s->has_ts) {
		s->ts_val = segment_load32(tcp + TCP_HLEN + 4);
		s->ts_ecr = segment_load32(tcp + TCP_HLEN + 8);
	} else if (!s->is_plain) {
		segment_options_parse(s);
	}
}

/* The SYN of a segment whose SYN is known already is taken off it, in the packet, too. Its window was not scaled, as
 * that of any SYN (RFC 7323 2.2); now it is. */
void segment_drop_syn(struct segment *s, uint8_t scale);
/* Only its acknowledgement and window are of interest: lwIP gets no data, and the number that it waits for. */
void segment_make_bare(struct segment *s, uint32_t rcv_nxt);
/* What a segment right behind says newer than this one, for lwIP, which sees them as one. */
void segment_absorb(struct segment *s, const struct segment *next);

#endif
