/* reply.c - answers to packets that no connection has: their own headers, addresses exchanged. */
#include <netinet/in.h>
#include <string.h>

#include <vma/packet.h>

#include "rx/segment.h"

/* Ethernet, VLAN if there is one, IPv4 without options. */
static void reply_write_lower_headers(uint8_t *frame, const uint8_t *from, uint32_t l3_off, uint32_t l4_len)
{
	uint8_t *ip = frame + l3_off;
	const uint8_t *their = from + l3_off;
	uint16_t sum;

	memcpy(frame, from, l3_off);
	memcpy(frame, from + 6, 6);
	memcpy(frame + 6, from, 6);
	memset(ip, 0, VMA_PKT_IP4_HLEN);
	ip[0] = 0x45;
	vma_pkt_put16(ip + 2, (uint16_t)(VMA_PKT_IP4_HLEN + l4_len));
	vma_pkt_put16(ip + 6,
	              0x4000); /* DF, so the identification may be 0 (RFC 6864, 4.1): a counter would tell each peer how
	                        * many of the others are answered */
	ip[8] = 64;
	ip[9] = IPPROTO_TCP;
	memcpy(ip + 12, their + 16, 4);
	memcpy(ip + 16, their + 12, 4);
	sum = (uint16_t)~vma_csum_fold(vma_csum_add(0, ip, VMA_PKT_IP4_HLEN));
	memcpy(ip + 10, &sum, 2);
}

static uint32_t l4_len_of(const struct tcp_reply *reply)
{
	return VMA_PKT_TCP_HLEN + (reply->has_ts ? LWIP_TCP_OPT_LEN_TS_OUT : 0) + reply->options_len;
}

static void reply_write_tcp(struct vma_tcp *tcp, uint8_t *l4, const uint8_t *their, const struct tcp_reply *reply)
{
	uint32_t len = l4_len_of(reply);
	uint64_t sum;
	uint16_t field;

	memcpy(l4, their + 2, 2);
	memcpy(l4 + 2, their, 2);
	vma_pkt_put32(l4 + 4, reply->seq);
	vma_pkt_put32(l4 + 8, reply->ack);
	l4[12] = (uint8_t)(len / 4 << 4);
	l4[13] = reply->flags;
	vma_pkt_put16(l4 + 14, reply->window);
	vma_pkt_put32(l4 + 16, 0);
	if (reply->has_ts) {
		vma_pkt_put32(l4 + 20, SEGMENT_TS_WORD);
		vma_pkt_put32(l4 + 24, reply->ts_val);
		vma_pkt_put32(l4 + 28, reply->ts_ecr);
	}
	memcpy(l4 + len - reply->options_len, reply->options, reply->options_len);
	sum = vma_csum_pseudo4(l4 - 8, l4 - 4, IPPROTO_TCP, len);
	if (tcp->nic->caps & VMA_NIC_CAP_TX_CSUM)
		field = vma_csum_fold(sum);
	else
		field = (uint16_t)~vma_csum_fold(vma_csum_add(sum, l4, len));
	memcpy(l4 + 16, &field, 2);
}

/*
 * Answers for nobody, resets and those of TIME_WAIT, and resets for what is half open: a flood of segments is not
 * answered by a flood. A peer that gets no answer asks again.
 */
#define REPLIES_PER_MS 50
#define REPLIES_AT_ONCE 1000

bool tcp_take_reply_token(struct vma_tcp *tcp)
{
	uint64_t now_ms = tcp->now_ns / TCP_NS_PER_MS, passed = now_ms - tcp->reply_tokens_ms;

	if (passed >= REPLIES_AT_ONCE / REPLIES_PER_MS)
		tcp->reply_tokens = REPLIES_AT_ONCE;
	else
		tcp->reply_tokens += (uint32_t)passed * REPLIES_PER_MS;
	if (tcp->reply_tokens > REPLIES_AT_ONCE)
		tcp->reply_tokens = REPLIES_AT_ONCE;
	tcp->reply_tokens_ms = now_ms;
	if (tcp->reply_tokens == 0)
		return false;
	tcp->reply_tokens--;
	return true;
}

void tcp_reply_to_headers(struct vma_tcp *tcp, const uint8_t *lower, uint32_t l3_off, const uint8_t *ports,
                          const struct tcp_reply *reply)
{
	uint32_t l4_len = l4_len_of(reply);
	uint32_t l4_off = l3_off + VMA_PKT_IP4_HLEN;
	struct vma_buf *buf;
	uint8_t *frame;

	if ((!reply->is_always && !tcp_take_reply_token(tcp)) || !tcp_frame_queue_make_space(tcp))
		return;
	buf = vma_ring_tx_buf(tcp->ring);
	if (buf == NULL)
		return;
	frame = (uint8_t *)vma_buf_data(tcp->arena, buf);
	reply_write_lower_headers(frame, lower, l3_off, l4_len);
	reply_write_tcp(tcp, frame + l4_off, ports, reply);
	TCP_COUNT(tcp, segments_out, 1);
	tcp_frame_queue_for_send(tcp, buf, buf->data_off, l4_off + l4_len,
	                         tcp->nic->caps & VMA_NIC_CAP_TX_CSUM ? VMA_NIC_SEG_CSUM : 0);
}

void tcp_reply(struct vma_tcp *tcp, struct vma_buf *packet, const struct tcp_reply *reply)
{
	const uint8_t *frame = (const uint8_t *)vma_buf_data(tcp->arena, packet);

	tcp_reply_to_headers(tcp, frame, packet->l3_off, frame + packet->l4_off, reply);
}

/*
 * What a peer had on its way when its connection was reset would have one RST after the other, all the same: the first
 * is enough, and again after a millisecond, if that was lost.
 */
static bool rst_was_sent_recently_or_record(struct vma_tcp *tcp, const struct segment *s, const struct vma_buf *packet)
{
	const uint8_t *ip = (const uint8_t *)vma_buf_data(tcp->arena, packet) + packet->l3_off;
	struct tcp_rst_cache rst_cache = {.ack = s->ack, .until_ns = tcp->now_ns + TCP_NS_PER_MS}, *place;

	if (s->len == 0 || !(s->flags & TCP_ACK))
		return false;
	memcpy(rst_cache.addresses, ip + 12, sizeof(rst_cache.addresses));
	memcpy(&rst_cache.ports, s->header, sizeof(rst_cache.ports));
	place = &tcp->rst_cache[(rst_cache.ports ^ rst_cache.ports >> 16) % TCP_RST_CACHE];
	if (place->until_ns > tcp->now_ns && place->ack == rst_cache.ack && place->ports == rst_cache.ports &&
	    memcmp(place->addresses, rst_cache.addresses, sizeof(rst_cache.addresses)) == 0)
		return true;
	*place = rst_cache;
	return false;
}

/* RFC 9293 3.10.7.1. */
void tcp_reply_rst(struct vma_tcp *tcp, struct vma_buf *packet)
{
	struct tcp_reply reply = {0};
	struct segment s;

	segment_parse(&s, tcp->arena, packet);
	if (s.flags & TCP_RST || rst_was_sent_recently_or_record(tcp, &s, packet))
		return;
	if (s.flags & TCP_ACK) {
		reply.seq = s.ack;
		reply.flags = TCP_RST;
	} else {
		reply.ack = s.end;
		reply.flags = TCP_RST | TCP_ACK;
	}
	TCP_COUNT(tcp, resets_out, 1);
	tcp_reply(tcp, packet, &reply);
}
