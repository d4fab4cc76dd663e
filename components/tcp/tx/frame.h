/*
 * frame - the parts of a frame that two files have in common: frame.c, for segments of lwIP's, and compose.c, for
 *         segments of its own. They are the buffer, the headers below TCP, the choice of checksum, and the count.
 *
 * Headers are made of whole words in registers, and summed there. If they were written in small pieces and read in
 * larger ones, the processor would have to wait.
 *
 * Threads: the driver.
 * Example: test/test_output.c.
 */
#ifndef VMA_TCP_TX_FRAME_H
#define VMA_TCP_TX_FRAME_H

#include <netinet/in.h>
#include <string.h>

#include <vma/packet.h>

#include "../lwip/port.h"
#include "../tcp_priv.h"

#define FRAME_DONT_FRAGMENT 0x4000

static inline void frame_store32(uint8_t *p, uint32_t as_in_memory)
{
	memcpy(p, &as_in_memory, 4);
}

static inline uint32_t frame_load32(const uint8_t *p)
{
	uint32_t as_in_memory;

	memcpy(&as_in_memory, p, 4);
	return as_in_memory;
}

static inline uint64_t frame_address_sum(const struct vma_flow_key *key)
{
	return (uint64_t)frame_load32(key->local) + frame_load32(key->peer);
}

static inline uint64_t frame_tcp_pseudo_header_sum(uint64_t addresses, uint32_t l4_len)
{
	return addresses + lwip_htons((uint16_t)l4_len) + (IPPROTO_TCP << 8);
}

static inline uint32_t frame_ports_as_in_header(const struct vma_flow_key *key)
{
	return key->local_port_be | (uint32_t)key->peer_port_be << 16;
}

/* The path's headers, with what is different in each packet. `addresses` is their sum. */
static inline void frame_write_lower_headers(struct vma_tcp_conn *conn, uint8_t *frame, uint64_t addresses,
                                             uint32_t l4_len)
{
	const struct vma_tcp_path *path = &conn->path;
	bool fragments = tcp_option(conn, VMA_TCP_OPT_PMTUDISC) == 0; /* IP_PMTUDISC_DONT */
	/* 16 bits each: numbers of 32, which need not be cut off again. */
	uint32_t first = 0x45 | (uint32_t)(uint8_t)tcp_option(conn, VMA_TCP_OPT_TOS) << 8;
	uint32_t len = lwip_htons((uint16_t)(VMA_PKT_IP4_HLEN + l4_len)), id = lwip_htons(conn->ip_id);
	uint32_t off = fragments ? 0 : lwip_htons(FRAME_DONT_FRAGMENT);
	uint32_t ttl = (uint8_t)tcp_option(conn, VMA_TCP_OPT_TTL) | IPPROTO_TCP << 8;
	uint64_t sum = addresses + (first + len + id + off + ttl);
	uint8_t *ip = frame + path->ip_off;

	conn->ip_id++;
	memcpy(frame, path->bytes, sizeof(path->bytes)); /* a constant length; what follows it is written yet */
	frame_store32(ip, first | len << 16);
	frame_store32(ip + 4, id | off << 16);
	frame_store32(ip + 8, ttl | (uint32_t)(uint16_t)~vma_csum_fold(sum) << 16);
}

/* The urgent pointer of a segment that begins at seq, as the kernel sets it: it reaches as far as 16 bits do. 0: none.
 */
static inline uint16_t frame_urgent_pointer(const struct vma_tcp_conn *conn, uint32_t seq)
{
	uint32_t ahead = conn->snd_up - seq;

	if (__builtin_expect(!conn->urgent_mode, 1) || (int32_t)ahead <= 0)
		return 0;
	return (uint16_t)(ahead < 0xffff ? ahead : 0xffff);
}

/* Of the NIC: it finishes the checksum of a segment for which that is more to do than to ask for it. */
static inline uint16_t frame_checksum_flag(const struct vma_nic_info *nic, uint32_t l4_len)
{
	return l4_len >= VMA_PKT_CSUM_BY_NIC_FROM && nic->caps & VMA_NIC_CAP_TX_CSUM ? VMA_NIC_SEG_CSUM : 0;
}

/* The peer at the other end of a wire in memory takes the pseudo header's sum as it is. */
static inline bool frame_needs_software_checksum(const struct vma_nic_info *nic, uint16_t flag)
{
	bool wire = nic->caps & VMA_NIC_CAP_MEMORY_LINK && nic->ifindex == 0;

	return flag == 0 && !wire;
}

/* A buffer for a frame of len bytes, which begins at *off of it. Not counted: for who goes on by another way. */
static inline err_t frame_try_alloc_buf(struct vma_tcp *tcp, uint32_t len, struct vma_buf **out, uint32_t *off)
{
	struct vma_buf *buf = tcp_frame_queue_make_space(tcp) ? vma_ring_tx_buf(tcp->ring) : NULL;

	if (__builtin_expect(buf == NULL, 0))
		return ERR_MEM;
	*off = buf->data_off;
	if (__builtin_expect(*off + len > UINT32_C(1) << tcp->arena->frame_shift, 0)) {
		vma_buf_put(tcp->arena, buf);
		return ERR_BUF;
	}
	*out = buf;
	return ERR_OK;
}

static inline err_t frame_alloc_buf(struct vma_tcp *tcp, uint32_t len, struct vma_buf **out, uint32_t *off)
{
	err_t err = frame_try_alloc_buf(tcp, len, out, off);

	if (__builtin_expect(err == ERR_MEM, 0))
		TCP_COUNT(tcp, no_memory, 1);
	return err;
}

static inline void frame_count_sent_segment(struct vma_tcp_conn *conn, uint32_t data)
{
	TCP_COUNT(conn->tcp, segments_out, 1);
	conn->counts.segments_out++;
	if (data != 0) {
		TCP_COUNT(conn->tcp, bytes_out, data);
		conn->counts.bytes_out += data;
		conn->data_segments_out++;
	}
}

#endif
