/*
 * frame.c - a finished segment of lwIP's becomes a frame: the path's headers, the TCP header, the bytes, the checksums.
 *
 * Each segment of a connection leaves here, unless compose.c has made it. So its window is chosen and its
 * acknowledgement is noted here, no matter which function sends it. The common part of both is in frame.h.
 */
#include "copy_sum.h"
#include "frame.h"

/* The window of a segment is chosen when it leaves, also of a RST, as the kernel's; before the handshake is complete,
 * it is lwIP's. */
static uint16_t segment_window_field(struct vma_tcp_conn *conn, const uint8_t *from)
{
	uint8_t flags = from[13];

	if (flags & TCP_ACK && !(flags & TCP_SYN) && conn->connected)
		return window_advertise(conn);
	return (uint16_t)(from[14] << 8 | from[15]);
}

/* Options, with the MSS of this connection in a SYN's, where it comes first. */
static uint64_t frame_write_options(const struct vma_tcp_conn *conn, uint8_t *to, const uint8_t *from, uint32_t len,
                                    bool syn)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < len; i += 4) {
		uint32_t word =
		        syn && i == 0 ? lwip_htonl(0x02040000 | tcp_mss_advertised(conn)) : frame_load32(from + i);

		frame_store32(to + i, word);
		sum += word;
	}
	return sum;
}

/* Returns the sum of it, of the checksum field as 0. */
static uint64_t frame_write_tcp(struct vma_tcp_conn *conn, uint8_t *to, const uint8_t *from, uint32_t hdr_len,
                                bool has_data)
{
	uint32_t ports = frame_ports_as_in_header(&conn->key);
	uint32_t seq = frame_load32(from + 4), ack = frame_load32(from + 8);
	uint16_t urgent = has_data ? frame_urgent_pointer(conn, lwip_ntohl(seq)) : 0;
	uint16_t flags = (uint16_t)(from[12] | (from[13] | (urgent != 0 ? TCP_URG : 0)) << 8);
	uint16_t window = lwip_htons(segment_window_field(conn, from));
	uint64_t sum = (uint64_t)ports + seq + ack + flags + window + lwip_htons(urgent);

	frame_store32(to, ports);
	frame_store32(to + 4, seq);
	frame_store32(to + 8, ack);
	frame_store32(to + 12, flags | (uint32_t)window << 16);
	frame_store32(to + 16, (uint32_t)lwip_htons(urgent) << 16);
	return sum + frame_write_options(conn, to + TCP_HLEN, from + TCP_HLEN, hdr_len - TCP_HLEN, from[13] & TCP_SYN);
}

static void frame_write_payload(struct copy_sum *sum, uint8_t *to, const struct pbuf *p, uint32_t skip, bool summed)
{
	for (; p != NULL; p = p->next, skip = 0) {
		const uint8_t *from = (const uint8_t *)p->payload + skip;
		uint32_t len = p->len - skip;

		if (len == 0)
			continue;
		if (summed)
			copy_and_add_to_checksum(sum, to, from, len);
		else
			memcpy(to, from, len);
		to += len;
	}
}

/* What the NIC has to be told of it. */
static uint16_t frame_write_segment(struct vma_tcp_conn *conn, uint8_t *frame, const struct pbuf *p)
{
	uint8_t *tcp = frame + conn->path.ip_off + VMA_PKT_IP4_HLEN;
	uint32_t l4_len = p->tot_len, hdr_len = (uint32_t)(((const uint8_t *)p->payload)[12] >> 4) * 4;
	uint64_t addresses = frame_address_sum(&conn->key), pseudo = frame_tcp_pseudo_header_sum(addresses, l4_len);
	const uint16_t flag = frame_checksum_flag(conn->tcp->nic, l4_len);
	const bool summed = frame_needs_software_checksum(conn->tcp->nic, flag);
	struct copy_sum sum;

	frame_write_lower_headers(conn, frame, addresses, l4_len);
	sum = (struct copy_sum){.sum = pseudo + frame_write_tcp(conn, tcp, p->payload, hdr_len, l4_len > hdr_len)};
	frame_write_payload(&sum, tcp + hdr_len, p, hdr_len, summed);
	vma_pkt_store16(tcp + 16, summed ? (uint16_t)~vma_csum_fold(sum.sum) : vma_csum_fold(pseudo));
	return flag;
}

/* p->payload is at the TCP header, which with its options lies in the first pbuf. */
err_t tcp_frame_build_and_queue(struct vma_tcp_conn *conn, const struct pbuf *p)
{
	struct vma_tcp *tcp = conn->tcp;
	const uint8_t *header = p->payload;
	struct vma_buf *buf;
	uint32_t len, off;
	uint16_t flags;
	err_t err;

	if (conn->path.len == 0)
		return ERR_OK; /* lost: what has to be repeated is, at the latest when there is a way */
	len = conn->path.len + p->tot_len;
	err = frame_alloc_buf(tcp, len, &buf, &off);
	if (err != ERR_OK)
		return err;
	flags = frame_write_segment(conn, (uint8_t *)vma_buf_frame(tcp->arena, buf) + off, p);
	frame_count_sent_segment(conn, p->tot_len - (uint32_t)(header[12] >> 4) * 4);
	if (header[13] & TCP_RST)
		TCP_COUNT(tcp, resets_out, 1);
	tcp_frame_queue_for_send(tcp, buf, off, len, flags);
	return ERR_OK;
}

/* lwIP's way out. */
err_t ip4_output_if(struct pbuf *p, const ip4_addr_t *src, const ip4_addr_t *dest, u8_t ttl, u8_t tos, u8_t proto,
                    struct netif *netif)
{
	(void)src, (void)dest, (void)ttl, (void)tos, (void)proto, (void)netif;
	return lwip_at.conn != NULL ? tcp_frame_build_and_queue(lwip_at.conn, p) : ERR_RTE;
}
