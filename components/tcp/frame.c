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

static void put16(uint8_t *p, uint16_t host)
{
	p[0] = (uint8_t)(host >> 8);
	p[1] = (uint8_t)host;
}

static void store16(uint8_t *p, uint16_t as_in_memory)
{
	memcpy(p, &as_in_memory, 2);
}

static void write_ip(struct vma_tcp_conn *conn, uint8_t *ip, uint32_t l4_len)
{
	bool fragments = tcp_option(conn, VMA_TCP_OPT_PMTUDISC) == 0; /* IP_PMTUDISC_DONT */

	ip[1] = (uint8_t)tcp_option(conn, VMA_TCP_OPT_TOS);
	put16(ip + 2, (uint16_t)(VMA_PKT_IP4_LEN + l4_len));
	put16(ip + 4, conn->tcp->ip_id++);
	put16(ip + 6, fragments ? 0 : DONT_FRAGMENT);
	ip[8] = (uint8_t)tcp_option(conn, VMA_TCP_OPT_TTL);
	ip[9] = IPPROTO_TCP;
	store16(ip + 10, 0);
	store16(ip + 10, (uint16_t)~vma_csum_fold(vma_csum_add(0, ip, VMA_PKT_IP4_LEN)));
}

/* The urgent pointer of a segment that begins at seq, as the kernel sets it: it reaches as far as 16 bits do. */
static void write_urgent(const struct vma_tcp_conn *conn, uint8_t *tcp, uint32_t seq)
{
	uint32_t ahead = conn->snd_up - seq;

	if ((int32_t)ahead <= 0)
		return;
	put16(tcp + 18, (uint16_t)(ahead < 0xffff ? ahead : 0xffff));
	tcp[13] |= TCP_URG;
}

/* What is decided when a segment leaves. */
static void finish_header(struct vma_tcp_conn *conn, uint8_t *tcp, bool has_data)
{
	uint32_t seq;

	if (tcp[13] & TCP_SYN) /* the first option is the MSS */
		put16(tcp + VMA_PKT_TCP_LEN + 2, (uint16_t)tcp_mss_announced(conn));
	else if (tcp[13] & TCP_ACK && !(tcp[13] & TCP_RST) && conn->connected)
		put16(tcp + 14, window_announce(conn));
	if (__builtin_expect(conn->urgent_mode, 0)) {
		memcpy(&seq, tcp + 4, 4);
		if (has_data)
			write_urgent(conn, tcp, lwip_ntohl(seq));
	}
}

/* The NIC finishes it, or the peer at the other end of a memory link takes the pseudo header's sum as it is. */
static bool needs_sum(const struct vma_nic_info *nic)
{
	bool wire = nic->caps & VMA_NIC_CAP_MEMORY_LINK && nic->ifindex == 0;

	return !(nic->caps & VMA_NIC_CAP_TX_CSUM) && !wire;
}

static void write_payload(struct copy_sum *sum, uint8_t *to, const struct pbuf *p, uint32_t skip, bool summed)
{
	for (; p != NULL; p = p->next, skip = 0) {
		const uint8_t *from = (const uint8_t *)p->payload + skip;
		uint32_t len = p->len - skip;

		if (summed)
			copy_sum(sum, to, from, len);
		else
			memcpy(to, from, len);
		to += len;
	}
}

static void write_segment(struct vma_tcp_conn *conn, uint8_t *frame, const struct pbuf *p)
{
	const struct vma_tcp_path *path = &conn->path;
	uint8_t *ip = frame + path->ip_off, *tcp = ip + VMA_PKT_IP4_LEN;
	uint32_t l4_len = p->tot_len, hdr_len = (uint32_t)(((const uint8_t *)p->payload)[12] >> 4) * 4;
	bool summed = needs_sum(conn->tcp->nic);
	struct copy_sum sum = {0};

	memcpy(frame, path->bytes, path->len);
	write_ip(conn, ip, l4_len);
	memcpy(tcp, p->payload, hdr_len);
	finish_header(conn, tcp, l4_len > hdr_len);
	store16(tcp + 16, 0);
	sum.sum = vma_csum_pseudo4(ip + 12, ip + 16, IPPROTO_TCP, l4_len);
	if (!summed) {
		write_payload(NULL, tcp + hdr_len, p, hdr_len, false);
		store16(tcp + 16, vma_csum_fold(sum.sum));
		return;
	}
	sum.sum = vma_csum_fold(vma_csum_add(sum.sum, tcp, hdr_len));
	write_payload(&sum, tcp + hdr_len, p, hdr_len, true);
	store16(tcp + 16, (uint16_t)~vma_csum_fold(sum.sum));
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

/* lwIP's way out. p->payload is at the TCP header, which with its options lies in the first pbuf. */
err_t ip4_output_if(struct pbuf *p, const ip4_addr_t *src, const ip4_addr_t *dest, u8_t ttl, u8_t tos, u8_t proto,
                    struct netif *netif)
{
	struct vma_tcp *tcp = lwip_at.tcp;
	struct vma_tcp_conn *conn = lwip_at.conn;
	const uint8_t *header = p->payload;
	struct vma_buf *buf;
	uint32_t len, off;
	uint8_t *frame;

	(void)src, (void)dest, (void)ttl, (void)tos, (void)proto, (void)netif;
	if (conn == NULL)
		return ERR_RTE;
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
	write_segment(conn, frame, p);
	count(conn, p->tot_len - (uint32_t)(header[12] >> 4) * 4, header[13]);
	tcp_frame_out(tcp, buf, off, len, tcp->nic->caps & VMA_NIC_CAP_TX_CSUM ? VMA_NIC_SEG_CSUM : 0);
	return ERR_OK;
}
