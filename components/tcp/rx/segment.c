/* segment.c - the rarer half of reading a received segment. */
#include "segment.h"

enum { OPT_EOL = 0, OPT_NOP = 1, OPT_SACK = 5, OPT_TS = 8 };

const uint8_t *segment_find_tcp_option(const struct segment *s, uint8_t kind)
{
	const uint8_t *p = segment_options_start(s), *end = s->header + s->hdr_len;

	while (p < end && *p != OPT_EOL) {
		if (*p == OPT_NOP) {
			p++;
			continue;
		}
		if (end - p < 2 || p[1] < 2 || p[1] > end - p)
			return NULL;
		if (*p == kind)
			return p;
		p += p[1];
	}
	return NULL;
}

void segment_options_parse(struct segment *s)
{
	const uint8_t *ts = segment_find_tcp_option(s, OPT_TS);

	s->has_ts = ts != NULL && ts[1] == 10;
	if (s->has_ts) {
		s->ts_val = segment_load32(ts + 2);
		s->ts_ecr = segment_load32(ts + 6);
	}
	s->has_sack = segment_find_tcp_option(s, OPT_SACK) != NULL;
}

unsigned segment_parse_sack_blocks(const struct segment *s, struct tcp_ack *ack)
{
	const uint8_t *sack = s->has_sack ? segment_find_tcp_option(s, OPT_SACK) : NULL;
	unsigned n = sack != NULL ? (sack[1] - 2u) / 8 : 0;

	n = n < 4 ? n : 4;
	for (unsigned i = 0; i < n; i++) {
		ack->block[i].left = segment_load32(sack + 2 + 8 * i);
		ack->block[i].right = segment_load32(sack + 6 + 8 * i);
	}
	return n;
}

uint8_t segment_byte(const struct segment *s, uint32_t at)
{
	const struct vma_buf *buf = s->packet;
	uint32_t off = buf->payload_off + at;

	for (; buf->next != NULL && off >= buf->len; buf = buf->next)
		off -= buf->len;
	return *(const uint8_t *)(vma_buf_data(s->arena, buf) + off);
}

void segment_clear_syn(struct segment *s, uint8_t scale)
{
	s->window = (uint16_t)(s->window >> scale);
	s->hdr.wnd = lwip_htons(s->window);
	s->seq++;
	s->flags &= (uint8_t)~TCP_SYN;
	s->hdr.seqno = lwip_htonl(s->seq);
	TCPH_UNSET_FLAG(&s->hdr, TCP_SYN);
}

void segment_strip_payload(struct segment *s, uint32_t rcv_nxt)
{
	s->seq = s->end = rcv_nxt;
	s->len = s->size = 0;
	s->flags &= (uint8_t) ~(TCP_FIN | TCP_PSH | TCP_URG);
	s->packet->payload_len = 0;
	s->hdr.seqno = lwip_htonl(rcv_nxt);
	TCPH_UNSET_FLAG(&s->hdr, TCP_FIN | TCP_PSH | TCP_URG);
}

/* The older time stamp stays, since it is that of what is acknowledged next (RFC 7323 4.3); its echo is the newest. */
void segment_merge_next(struct segment *s, const struct segment *next)
{
	s->len += next->len;
	s->end = next->end;
	s->flags |= next->flags;
	if (TCP_SEQ_GEQ(next->ack, s->ack)) {
		s->ack = next->ack;
		s->window = next->window;
		s->ts_ecr = next->ts_ecr;
	}
	s->hdr.ackno = lwip_htonl(s->ack);
	s->hdr.wnd = lwip_htons(s->window);
	if (s->has_ts) {
		uint32_t be = lwip_htonl(s->ts_ecr);

		memcpy(segment_options_start(s) + 8, &be, 4);
	}
	TCPH_SET_FLAG(&s->hdr, next->flags);
}
