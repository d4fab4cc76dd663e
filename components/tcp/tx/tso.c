/* tso.c - packets of several segments, which the NIC cuts. */
#include "frame.h"
#include "tso.h"
#include "../small_mss_quota.h"

#define IP_BYTES_MAX 65535
#define TCP_HEADER_MAX 60

void tcp_stack_set_tso_limits_from_nic(struct vma_tcp *tcp, bool wanted)
{
	const uint32_t most = IP_BYTES_MAX - VMA_PKT_IP4_HLEN - TCP_HEADER_MAX,
	               needs = VMA_NIC_CAP_TSO | VMA_NIC_CAP_TX_CSUM;
	uint32_t segs = vma_ring_segs_max(tcp->ring);

	if (tcp->nic->tx_segs_max < segs) /* the device of after a rebind may take fewer */
		segs = tcp->nic->tx_segs_max;
	tcp->tso_bytes = 0;
	tcp->plain_mss_min = SMALL_MSS_LIMIT;
	if (!wanted || (tcp->nic->caps & needs) != needs || segs < 2)
		return;
	tcp->tso_bytes = tcp->nic->tso_max_bytes < most ? tcp->nic->tso_max_bytes : most;
	tcp->tso_segs = segs < TCP_FRAMES ? segs : TCP_FRAMES;
	if (tcp->tso_bytes != 0)
		tcp->plain_mss_min = UINT32_MAX;
}

/* The NIC does not count an urgent pointer down: such segments leave one by one. So does a frame that is summed. */
void tso_begin_packet_with_last_frame(const struct vma_tcp_conn *conn, struct tso_packet *packet, uint32_t n)
{
	const struct vma_tcp *tcp = conn->tcp;
	const struct vma_nic_seg *first = &tcp->frames[tcp->frames_count - 1];

	if (conn->urgent_mode || !(first->flags & VMA_NIC_SEG_CSUM))
		return;
	*packet = (struct tso_packet){
	        .segments = 1, .first = tcp->frames_count - 1, .mss = n, .bytes = n, .hdr_len = first->len - n};
}

bool tso_append(struct vma_tcp_conn *conn, struct tso_packet *packet, const void *bytes, uint32_t n, bool push)
{
	struct vma_tcp *tcp = conn->tcp;
	struct vma_nic_seg *last = &tcp->frames[tcp->frames_count - 1];
	const uint32_t left = (UINT32_C(1) << tcp->arena->frame_shift) - last->off - last->len;
	const uint32_t here = n < left ? n : left;
	uint8_t *to = (uint8_t *)vma_buf_frame(tcp->arena, last->buf) + last->off + last->len;
	struct vma_buf *buf;

	if (conn->urgent_mode)
		return false;
	if (here < n) {
		if (tcp->frames_count == TCP_FRAMES || tcp->frames_count - packet->first == tcp->tso_segs)
			return false;
		buf = vma_ring_tx_buf(tcp->ring);
		if (buf == NULL)
			return false;
		memcpy(vma_buf_frame(tcp->arena, buf) + buf->data_off, (const char *)bytes + here, n - here);
		last->flags |= VMA_NIC_SEG_MORE;
		tcp_frame_queue_for_send(tcp, buf, buf->data_off, n - here, 0);
	}
	memcpy(to, bytes, here);
	last->len += here;
	conn->ip_id++;
	frame_count_sent_segment(conn, n);
	packet->segments++;
	packet->bytes += n;
	packet->is_full = push || n < packet->mss;
	if (push)
		((uint8_t *)vma_buf_frame(tcp->arena,
		                          tcp->frames[packet->first].buf))[tcp->frames[packet->first].off +
		                                                           conn->path.ip_off + VMA_PKT_IP4_HLEN + 13] |=
		        TCP_PSH;
	return true;
}

/* The length of an IP header, and what its sum owes to it. */
static void ip_set_length_and_update_checksum(uint8_t *ip, uint32_t bytes)
{
	const uint16_t len = lwip_htons((uint16_t)bytes);
	uint16_t len_before, sum;

	memcpy(&len_before, ip + 2, 2);
	memcpy(&sum, ip + 10, 2);
	vma_pkt_store16(ip + 2, len);
	vma_pkt_store16(ip + 10, (uint16_t)~vma_csum_fold((uint64_t)(uint16_t)~sum + (uint16_t)~len_before + len));
}

/* Lengths and sums become those of the whole: captures are read by them, and drivers of the kernel's give them, too. */
void tso_finish_packet_headers(const struct vma_tcp_conn *conn, struct tso_packet *packet)
{
	struct vma_nic_seg *first = &conn->tcp->frames[packet->first];
	const uint32_t l4_len = packet->hdr_len - conn->path.len + packet->bytes, segments = packet->segments;
	uint8_t *ip;

	packet->segments = 0;
	if (segments < 2)
		return;
	ip = (uint8_t *)vma_buf_frame(conn->tcp->arena, first->buf) + first->off + conn->path.ip_off;
	ip_set_length_and_update_checksum(ip, VMA_PKT_IP4_HLEN + l4_len);
	vma_pkt_store16(ip + VMA_PKT_IP4_HLEN + 16,
	                vma_csum_fold(frame_tcp_pseudo_header_sum(frame_address_sum(&conn->key), l4_len)));
	first->flags |= VMA_NIC_SEG_TSO;
	first->mss = (uint16_t)packet->mss;
	first->hdr_len = (uint16_t)packet->hdr_len;
}
