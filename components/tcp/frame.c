/*
 * frame.c - a finished segment of lwIP's becomes a frame: the path's headers, the TCP header, the bytes, the checksums.
 *
 * This is where each segment of a connection leaves, and so where its window is chosen and what it acknowledges is
 * noted, whoever had it sent.
 */
#include <netinet/in.h>
#include <string.h>

#include "copy_sum.h"
#include "tcp_priv.h"
#include "lwip_port.h"

#define DONT_FRAGMENT 0x4000

/*
 * Headers are made of whole words in registers, and summed there: what was just written in small pieces must not be
 * read in larger ones, for which the processor would have to wait.
 */
static void store16(uint8_t *p, uint16_t as_in_memory)
{
	memcpy(p, &as_in_memory, 2);
}

static void store32(uint8_t *p, uint32_t as_in_memory)
{
	memcpy(p, &as_in_memory, 4);
}

static uint32_t load32(const uint8_t *p)
{
	uint32_t as_in_memory;

	memcpy(&as_in_memory, p, 4);
	return as_in_memory;
}

static uint64_t address_sum(const struct vma_flow_key *key)
{
	return (uint64_t)load32(key->local) + load32(key->peer);
}

static void write_ip(struct vma_tcp_conn *conn, uint8_t *ip, uint32_t l4_len)
{
	bool fragments = tcp_option(conn, VMA_TCP_OPT_PMTUDISC) == 0; /* IP_PMTUDISC_DONT */
	uint16_t first = (uint16_t)(0x45 | tcp_option(conn, VMA_TCP_OPT_TOS) << 8);
	uint16_t len = lwip_htons((uint16_t)(VMA_PKT_IP4_LEN + l4_len)), id = lwip_htons(conn->tcp->ip_id);
	uint16_t off = fragments ? 0 : lwip_htons(DONT_FRAGMENT);
	uint16_t ttl = (uint16_t)((uint8_t)tcp_option(conn, VMA_TCP_OPT_TTL) | IPPROTO_TCP << 8);
	uint64_t sum = address_sum(&conn->key) + first + len + id + off + ttl;

	conn->tcp->ip_id++;
	store32(ip, first | (uint32_t)len << 16);
	store32(ip + 4, id | (uint32_t)off << 16);
	store32(ip + 8, ttl | (uint32_t)(uint16_t)~vma_csum_fold(sum) << 16);
}

/* The urgent pointer of a segment that begins at seq, as the kernel sets it: it reaches as far as 16 bits do. 0: none.
 */
static uint16_t urgent_of(const struct vma_tcp_conn *conn, uint32_t seq)
{
	uint32_t ahead = conn->snd_up - seq;

	if (!conn->urgent_mode || (int32_t)ahead <= 0)
		return 0;
	return (uint16_t)(ahead < 0xffff ? ahead : 0xffff);
}

/* The window of a segment is chosen when it leaves; that of a SYN, and a RST's, is lwIP's. */
static uint16_t window_of(struct vma_tcp_conn *conn, const uint8_t *from)
{
	uint8_t flags = from[13];

	if (flags & TCP_ACK && !(flags & (TCP_SYN | TCP_RST)) && conn->connected)
		return window_announce(conn);
	return (uint16_t)(from[14] << 8 | from[15]);
}

/* Options, with the MSS of this connection in a SYN's, where it comes first. */
static uint64_t write_options(const struct vma_tcp_conn *conn, uint8_t *to, const uint8_t *from, uint32_t len, bool syn)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < len; i += 4) {
		uint32_t word = syn && i == 0 ? lwip_htonl(0x02040000 | tcp_mss_announced(conn)) : load32(from + i);

		store32(to + i, word);
		sum += word;
	}
	return sum;
}

/* Returns the sum of it, of the checksum field as 0. */
static uint64_t write_tcp(struct vma_tcp_conn *conn, uint8_t *to, const uint8_t *from, uint32_t hdr_len, bool has_data)
{
	uint32_t ports = conn->key.local_port_be | (uint32_t)conn->key.peer_port_be << 16;
	uint32_t seq = load32(from + 4), ack = load32(from + 8);
	uint16_t urgent = has_data ? urgent_of(conn, lwip_ntohl(seq)) : 0;
	uint16_t flags = (uint16_t)(from[12] | (from[13] | (urgent != 0 ? TCP_URG : 0)) << 8);
	uint16_t window = lwip_htons(window_of(conn, from));
	uint64_t sum = (uint64_t)ports + seq + ack + flags + window + lwip_htons(urgent);

	store32(to, ports);
	store32(to + 4, seq);
	store32(to + 8, ack);
	store32(to + 12, flags | (uint32_t)window << 16);
	store32(to + 16, (uint32_t)lwip_htons(urgent) << 16);
	return sum + write_options(conn, to + TCP_HLEN, from + TCP_HLEN, hdr_len - TCP_HLEN, from[13] & TCP_SYN);
}

/* Of the NIC: it finishes the checksum of a segment for which that is more to do than to ask for it. */
static uint16_t checksum_flag(const struct vma_nic_info *nic, uint32_t l4_len)
{
	return nic->caps & VMA_NIC_CAP_TX_CSUM && l4_len >= VMA_PKT_CSUM_BY_NIC_FROM ? VMA_NIC_SEG_CSUM : 0;
}

/* The peer at the other end of a wire in memory takes the pseudo header's sum as it is. */
static bool needs_sum(const struct vma_nic_info *nic, uint16_t flag)
{
	bool wire = nic->caps & VMA_NIC_CAP_MEMORY_LINK && nic->ifindex == 0;

	return flag == 0 && !wire;
}

static void write_payload(struct copy_sum *sum, uint8_t *to, const struct pbuf *p, uint32_t skip, bool summed)
{
	for (; p != NULL; p = p->next, skip = 0) {
		const uint8_t *from = (const uint8_t *)p->payload + skip;
		uint32_t len = p->len - skip;

		if (len == 0)
			continue;
		if (summed)
			copy_sum(sum, to, from, len);
		else
			memcpy(to, from, len);
		to += len;
	}
}

/* What the NIC has to be told of it. */
static uint16_t write_segment(struct vma_tcp_conn *conn, uint8_t *frame, const struct pbuf *p)
{
	const struct vma_tcp_path *path = &conn->path;
	uint8_t *tcp = frame + path->ip_off + VMA_PKT_IP4_LEN;
	uint32_t l4_len = p->tot_len, hdr_len = (uint32_t)(((const uint8_t *)p->payload)[12] >> 4) * 4;
	uint64_t pseudo = address_sum(&conn->key) + lwip_htons((uint16_t)l4_len) + (IPPROTO_TCP << 8);
	const uint16_t flag = checksum_flag(conn->tcp->nic, l4_len);
	const bool summed = needs_sum(conn->tcp->nic, flag);
	struct copy_sum sum;

	memcpy(frame, path->bytes, sizeof(path->bytes)); /* a constant length; what follows it is written yet */
	write_ip(conn, frame + path->ip_off, l4_len);
	sum = (struct copy_sum){.sum = pseudo + write_tcp(conn, tcp, p->payload, hdr_len, l4_len > hdr_len)};
	write_payload(&sum, tcp + hdr_len, p, hdr_len, summed);
	store16(tcp + 16, summed ? (uint16_t)~vma_csum_fold(sum.sum) : vma_csum_fold(pseudo));
	return flag;
}

static void count(struct vma_tcp_conn *conn, uint32_t data, uint8_t flags)
{
	TCP_COUNT(conn->tcp, segments_out, 1);
	conn->counts.segments_out++;
	if (data != 0) {
		TCP_COUNT(conn->tcp, bytes_out, data);
		conn->counts.bytes_out += data;
	}
	if (flags & TCP_RST)
		TCP_COUNT(conn->tcp, resets_out, 1);
}

/* p->payload is at the TCP header, which with its options lies in the first pbuf. */
err_t tcp_frame_send(struct vma_tcp_conn *conn, const struct pbuf *p)
{
	struct vma_tcp *tcp = conn->tcp;
	const uint8_t *header = p->payload;
	struct vma_buf *buf;
	uint32_t len, off;
	uint16_t flags;
	uint8_t *frame;

	if (conn->path.len == 0)
		return ERR_OK; /* lost: what has to be repeated is, at the latest when there is a way */
	len = conn->path.len + p->tot_len;
	buf = tcp_frame_room(tcp) ? vma_ring_tx_buf(tcp->ring) : NULL;
	if (buf == NULL) {
		TCP_COUNT(tcp, no_memory, 1);
		return ERR_MEM;
	}
	off = buf->data_off;
	if (off + len > UINT32_C(1) << tcp->arena->frame_shift) {
		vma_buf_put(tcp->arena, buf);
		return ERR_BUF;
	}
	frame = (uint8_t *)vma_buf_frame(tcp->arena, buf) + off;
	flags = write_segment(conn, frame, p);
	count(conn, p->tot_len - (uint32_t)(header[12] >> 4) * 4, header[13]);
	tcp_frame_out(tcp, buf, off, len, flags);
	return ERR_OK;
}

/* lwIP's way out. */
err_t ip4_output_if(struct pbuf *p, const ip4_addr_t *src, const ip4_addr_t *dest, u8_t ttl, u8_t tos, u8_t proto,
                    struct netif *netif)
{
	(void)src, (void)dest, (void)ttl, (void)tos, (void)proto, (void)netif;
	return lwip_at.conn != NULL ? tcp_frame_send(lwip_at.conn, p) : ERR_RTE;
}
