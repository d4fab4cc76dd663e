/*
 * segment.h - a received segment's header: a private copy, and its fields as numbers.
 *
 * The ring has checked lengths and checksum (packet_check.h): the whole TCP header lies in the first buffer. A frame
 * lies in memory that other clients of the interface can write to at any time. So its header is read once, into the
 * segment. The header's length is the one that the ring has found, even if the frame says otherwise by now.
 *
 * Threads: the driver.
 */
#ifndef VMA_TCP_RX_SEGMENT_H
#define VMA_TCP_RX_SEGMENT_H

#include <string.h>

#include "../tcp_priv.h"
#include "../lwip/port.h"

#define SEGMENT_HEADER_MAX 60

struct segment {
	struct vma_bufarena *arena;
	struct vma_buf *packet; /* of several that were merged the first */
	union {
		struct tcp_hdr hdr;
		uint8_t header[SEGMENT_HEADER_MAX]; /* with its options */
	};
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

static inline uint8_t *segment_options_start(const struct segment *s)
{
	return (uint8_t *)s->header + TCP_HLEN;
}

/* NOP, NOP, time stamps. */
#define SEGMENT_TS_WORD UINT32_C(0x0101080a)

/* Looks for time stamps and SACK among options that are arranged in another way than everybody's. */
void segment_options_parse(struct segment *s);
/* The option of this kind, its length checked; NULL: there is none. */
const uint8_t *segment_find_tcp_option(const struct segment *s, uint8_t kind);
/* The SACK blocks, at most four. */
unsigned segment_parse_sack_blocks(const struct segment *s, struct tcp_ack *ack);
uint8_t segment_byte(const struct segment *s, uint32_t at); /* of the data */

static inline void segment_copy_header(struct segment *s, const uint8_t *from)
{
	memcpy(s->header, from, TCP_HLEN);
	if (s->hdr_len == TCP_HLEN + LWIP_TCP_OPT_LEN_TS_OUT)
		memcpy(s->header + TCP_HLEN, from + TCP_HLEN, LWIP_TCP_OPT_LEN_TS_OUT);
	else if (s->hdr_len > TCP_HLEN)
		memcpy(s->header + TCP_HLEN, from + TCP_HLEN, s->hdr_len - TCP_HLEN);
	/* The compiler is not to read the frame again in place of the copy. */
	__asm__ volatile("" : "+m"(s->header));
	s->header[12] = (uint8_t)(s->hdr_len / 4 << 4);
}

static inline void segment_parse(struct segment *s, struct vma_bufarena *arena, struct vma_buf *packet)
{
	const uint8_t *tcp = s->header;
	uint16_t window, urgent;

	s->arena = arena;
	s->packet = packet;
	s->hdr_len = (uint8_t)(packet->payload_off - packet->l4_off);
	segment_copy_header(s, (const uint8_t *)vma_buf_data(arena, packet) + packet->l4_off);
	s->seq = segment_load32(tcp + 4);
	s->ack = segment_load32(tcp + 8);
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

/* The SYN of a segment whose SYN is known already is taken off it, in its header, too. Its window was not scaled, as
 * that of any SYN (RFC 7323 2.2); now it is. */
void segment_clear_syn(struct segment *s, uint8_t scale);
/* Only its acknowledgement and window are of interest: lwIP gets no data, and the number that it waits for. */
void segment_strip_payload(struct segment *s, uint32_t rcv_nxt);
/* What a segment right behind says newer than this one, for lwIP, which sees them as one. */
void segment_merge_next(struct segment *s, const struct segment *next);

#endif
