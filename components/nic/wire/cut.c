/*
 * cut.c - the wire's segmentation offload: a packet of TCP over IPv4 becomes several frames, as a card cuts it. The
 * contract is that of VMA_NIC_SEG_TSO in nic.h. A packet that does not keep it is refused.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#include "wire.h"

static uint32_t cut_get32(const char *p)
{
	const uint8_t *b = (const uint8_t *)p;

	return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static void cut_put16(char *p, uint32_t value)
{
	p[0] = (char)(value >> 8);
	p[1] = (char)value;
}

static void cut_put32(char *p, uint32_t value)
{
	cut_put16(p, value >> 16);
	cut_put16(p + 2, value);
}

bool wire_plan_tso_split(struct vma_bufarena *arena, const struct vma_nic_seg *segs, unsigned n, uint32_t frame_max,
                         struct wire_cut *out)
{
	const char *header = vma_buf_frame(arena, segs[0].buf) + segs[0].off;
	const uint32_t hdr_len = segs[0].hdr_len, mss = segs[0].mss;
	struct wire_headers headers;
	uint32_t len = 0;

	for (unsigned i = 0; i < n; i++)
		len += segs[i].len;
	if (!(segs[0].flags & VMA_NIC_SEG_CSUM) || mss == 0 || hdr_len >= segs[0].len ||
	    hdr_len + mss > frame_max - 4 || !wire_parse_packet_headers(header, hdr_len, len, &headers) ||
	    headers.key.proto != IPPROTO_TCP || headers.l4_off + headers.l4_len != len ||
	    headers.l4_off + ((uint8_t)header[headers.l4_off + 12] >> 4) * 4U != hdr_len ||
	    header[headers.l4_off + 13] & (TH_SYN | TH_RST | TH_URG))
		return false;
	*out = (struct wire_cut){.frames = (len - hdr_len + mss - 1) / mss, .hdr_len = hdr_len, .mss = mss};
	out->bytes = len - hdr_len;
	return true;
}

/* len bytes of the packet from `off` on. */
static void copy_packet_range(struct vma_bufarena *arena, const struct vma_nic_seg *segs, uint32_t off, uint32_t len,
                              char *to)
{
	for (; len != 0; segs++) {
		const uint32_t here = off < segs->len ? (segs->len - off < len ? segs->len - off : len) : 0;

		memcpy(to, vma_buf_frame(arena, segs->buf) + segs->off + (here != 0 ? off : 0), here);
		off = off < segs->len ? 0 : off - segs->len;
		to += here;
		len -= here;
	}
}

uint32_t wire_build_tso_segment_frame(struct vma_bufarena *arena, const struct vma_nic_seg *segs,
                                      const struct wire_cut *cut, uint32_t i, char *to)
{
	const uint32_t at = i * cut->mss, left = cut->bytes - at, len = left < cut->mss ? left : cut->mss;
	char *ip, *tcp;

	copy_packet_range(arena, segs, 0, cut->hdr_len, to);
	copy_packet_range(arena, segs, cut->hdr_len + at, len, to + cut->hdr_len);
	ip = to + 14 + ((uint8_t)to[12] == 0x81 && to[13] == 0 ? 4 : 0);
	tcp = ip + ((uint8_t)ip[0] & 15) * 4;
	cut_put16(ip + 2, (uint32_t)(to + cut->hdr_len + len - ip));
	cut_put16(ip + 4, (cut_get32(ip + 4) >> 16) + i);
	cut_put32(tcp + 4, cut_get32(tcp + 4) + at);
	if (i + 1 < cut->frames)
		tcp[13] &= (char)~(TH_FIN | TH_PUSH);
	if (i > 0)
		tcp[13] &= (char)~0x80; /* CWR */
	return cut->hdr_len + len;
}
