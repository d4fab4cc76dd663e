/* syncookie.c - see syncookie.h. */
#include <netinet/in.h>
#include <string.h>

#include <vma/packet.h>

#include "rx/segment.h"
#include "siphash.h"
#include "syncookie.h"

#define PERIOD_NS (64 * TCP_NS_PER_S)
#define TIME_BITS 5
#define MSS_BITS 3
#define HASH_BITS 24
#define HASH_MASK ((UINT32_C(1) << HASH_BITS) - 1)
#define MSS_DEFAULT 536 /* RFC 9293 3.7.1 */

enum { KIND_MSS = 2, KIND_SCALE = 3, KIND_SACK_PERMITTED = 4, KIND_TS = 8 };

/* In the low bits of a time stamp. */
#define TS_SCALE 15u /* 15: none */
#define TS_SACK (1u << 4)
#define TS_BITS 63u

static const uint16_t sizes[1 << MSS_BITS] = {64, 536, 1220, 1300, 1400, 1440, 1460, 8960};

/* ---- the number ---- */

static uint32_t syncookie_hash(const uint8_t secret[16], const struct syncookie_tuple *names, uint32_t period,
                               uint32_t size)
{
	struct {
		struct syncookie_tuple names;
		uint32_t period, size;
	} input = {.period = period, .size = size};
	_Static_assert(sizeof(input) == 24, "no padding, and not as long as what sequence numbers are made of");

	input.names = *names;
	return (uint32_t)siphash(secret, &input, sizeof(input)) & HASH_MASK;
}

uint32_t syncookie_make(const uint8_t secret[16], const struct syncookie_tuple *names, uint32_t mss, uint64_t now_ns)
{
	uint32_t period = (uint32_t)(now_ns / PERIOD_NS), size = (1 << MSS_BITS) - 1;

	while (size > 0 && sizes[size] > mss)
		size--;
	return period << (MSS_BITS + HASH_BITS) | size << HASH_BITS | syncookie_hash(secret, names, period, size);
}

uint32_t syncookie_check(const uint8_t secret[16], const struct syncookie_tuple *names, uint32_t cookie,
                         uint64_t now_ns)
{
	uint32_t now = (uint32_t)(now_ns / PERIOD_NS), size = cookie >> HASH_BITS & ((1 << MSS_BITS) - 1);
	uint32_t age = (now - (cookie >> (MSS_BITS + HASH_BITS))) & ((1 << TIME_BITS) - 1);

	if (age > 1 || (cookie & HASH_MASK) != syncookie_hash(secret, names, now - age, size))
		return 0;
	return sizes[size];
}

static struct syncookie_tuple syncookie_tuple_of_packet(struct vma_tcp *tcp, const struct vma_buf *packet, uint32_t isn)
{
	const uint8_t *frame = (const uint8_t *)vma_buf_data(tcp->arena, packet);
	struct syncookie_tuple names = {.isn = isn};

	memcpy(names.addresses, frame + packet->l3_off + 12, sizeof(names.addresses));
	memcpy(names.ports, frame + packet->l4_off, sizeof(names.ports));
	return names;
}

/* ---- options ---- */

struct options {
	uint32_t mss;
	uint8_t scale; /* 15: none */
	bool sack, ts;
	uint32_t ts_val, ts_ecr;
};

static struct options syncookie_parse_syn_options(const struct segment *s)
{
	const uint8_t *mss = segment_find_tcp_option(s, KIND_MSS), *scale = segment_find_tcp_option(s, KIND_SCALE);
	struct options o = {.mss = MSS_DEFAULT, .scale = TS_SCALE, .ts = s->has_ts, .ts_val = s->ts_val};

	if (mss != NULL && mss[1] == 4 && (mss[2] | mss[3]) != 0)
		o.mss = (uint32_t)mss[2] << 8 | mss[3];
	if (scale != NULL && scale[1] == 3)
		o.scale = scale[2] < 14 ? scale[2] : 14; /* RFC 7323 2.3 */
	o.sack = segment_find_tcp_option(s, KIND_SACK_PERMITTED) != NULL;
	return o;
}

/* At most 20 bytes, in words. Window scale and SACK are kept in the time stamp, so without time stamps neither is
 * offered. */
static uint8_t syncookie_write_options(const struct options *o, uint8_t *to)
{
	uint8_t *p = to;

	p = vma_pkt_put16(p, KIND_MSS << 8 | 4);
	p = vma_pkt_put16(p, o->mss);
	if (!o->ts)
		return (uint8_t)(p - to);
	p = vma_pkt_put16(p, o->sack ? KIND_SACK_PERMITTED << 8 | 2 : 0x0101);
	p = vma_pkt_put16(p, KIND_TS << 8 | 10);
	p = vma_pkt_put32(p, o->ts_val);
	p = vma_pkt_put32(p, o->ts_ecr);
	if (o->scale != TS_SCALE)
		p = vma_pkt_put32(p, UINT32_C(0x01000000) | KIND_SCALE << 16 | 3 << 8 | o->scale);
	return (uint8_t)(p - to);
}

/* The latest that is not after now, as a later one of the connection's must not be smaller (RFC 7323 5.3). */
static uint32_t syncookie_tsval(uint32_t now_ms, const struct options *o)
{
	uint32_t value = (now_ms & ~TS_BITS) | o->scale | (o->sack ? TS_SACK : 0);

	return (int32_t)(value - now_ms) > 0 ? value - (TS_BITS + 1) : value;
}

/* ---- the answer ---- */

void syncookie_send(struct vma_tcp *tcp, struct vma_buf *packet, uint16_t window)
{
	struct tcp_reply reply = {.flags = TCP_SYN | TCP_ACK, .window = window, .is_always = true};
	struct syncookie_tuple names;
	struct options theirs, ours;
	struct segment s;

	segment_parse(&s, tcp->arena, packet);
	theirs = syncookie_parse_syn_options(&s);
	theirs.sack = theirs.sack && !tcp->attr.no_sack;
	if (tcp->attr.no_window_scaling)
		theirs.scale = TS_SCALE;
	names = syncookie_tuple_of_packet(tcp, packet, s.seq);
	reply.seq = syncookie_make(tcp->attr.secret, &names, theirs.mss, tcp->now_ns);
	reply.ack = s.seq + 1;
	ours = (struct options){.mss = tcp_mtu_for_syn_reply(tcp) - 40,
	                        .scale = theirs.scale == TS_SCALE ? TS_SCALE : TCP_RCV_SCALE,
	                        .sack = theirs.sack,
	                        .ts = theirs.ts && !tcp->attr.no_timestamps,
	                        .ts_val = syncookie_tsval(port_clock_ms(tcp), &theirs),
	                        .ts_ecr = theirs.ts_val};
	reply.options_len = syncookie_write_options(&ours, reply.options);
	tcp_reply(tcp, packet, &reply);
}

/* ---- the SYN, again ---- */

/* The headers below are those of the ACK. */
static struct vma_buf *syncookie_rebuild_syn(struct vma_tcp *tcp, const struct vma_buf *packet, const struct segment *s,
                                             const struct options *o)
{
	struct vma_buf *syn = vma_ring_tx_buf(tcp->ring);
	const uint8_t *from = (const uint8_t *)vma_buf_data(tcp->arena, packet);
	uint8_t *frame, *l4;
	uint8_t options_len;

	if (syn == NULL)
		return NULL;
	syn->l3_off = packet->l3_off;
	syn->l4_off = (uint16_t)(packet->l3_off + VMA_PKT_IP4_HLEN);
	frame = (uint8_t *)vma_buf_data(tcp->arena, syn);
	l4 = frame + syn->l4_off;
	memcpy(frame, from, syn->l4_off);
	memset(l4, 0, VMA_PKT_TCP_HLEN);
	memcpy(l4, s->header, 4);
	vma_pkt_put32(l4 + 4, s->seq - 1);
	l4[13] = TCP_SYN;
	vma_pkt_put16(l4 + 14, s->window); /* every later one says it anew */
	options_len = syncookie_write_options(o, l4 + VMA_PKT_TCP_HLEN);
	l4[12] = (uint8_t)((VMA_PKT_TCP_HLEN + options_len) / 4 << 4);
	syn->payload_off = (uint16_t)(syn->l4_off + VMA_PKT_TCP_HLEN + options_len);
	syn->payload_len = 0;
	syn->len = syn->packet_len = syn->payload_off;
	syn->next = NULL;
	return syn;
}

struct vma_buf *syncookie_check_and_rebuild_syn(struct vma_tcp *tcp, struct vma_buf *packet, uint32_t *isn)
{
	struct options o = {0};
	struct syncookie_tuple names;
	struct segment s;

	segment_parse(&s, tcp->arena, packet);
	names = syncookie_tuple_of_packet(tcp, packet, s.seq - 1);
	*isn = s.ack - 1;
	o.mss = syncookie_check(tcp->attr.secret, &names, *isn, tcp->now_ns);
	if (o.mss == 0 || *isn == 0)
		return NULL;
	o.ts = s.has_ts && !tcp->attr.no_timestamps;
	o.ts_val = s.ts_val;
	o.scale = s.ts_ecr & TS_SCALE;
	o.sack = s.ts_ecr & TS_SACK;
	return syncookie_rebuild_syn(tcp, packet, &s, &o);
}
