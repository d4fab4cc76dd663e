/*
 * sim_watch - looks at every frame that a stack sends: what TCP must never do on the wire, whatever happens; and writes
 * it down for SIM_TRACE=1.
 *
 * Connections are told apart by number: one side's port is SIM_PORT + number, the other side listens at SIM_LISTEN
 * (or, when both connect, has the same port).
 */
#ifndef SIM_WATCH_H
#define SIM_WATCH_H

#include "sim_fixture.h"

enum { SIM_PORT = 20000, SIM_LISTEN = 80, SIM_PAIRS = 16 };

enum { SIM_FIN = 1, SIM_SYN = 2, SIM_RST = 4, SIM_PSH = 8, SIM_ACK = 16, SIM_URG = 32 };

struct sim_segment {
	unsigned pair;
	uint32_t seq, ack, window, payload;
	uint8_t flags, scale; /* scale: of a SYN's option, 255: none */
	uint16_t mss;         /* of a SYN's option, 0: none */
	uint32_t total;       /* IP's length */
};

/* What was seen of one direction. */
struct sim_seen_direction {
	bool syn, over; /* over: a FIN or RST was seen, in whichever direction */
	uint32_t isn, edge, highest;
	uint8_t scale;
	uint16_t mss;
	bool edge_known;
	uint32_t largest; /* IP length of a segment */
	uint64_t segments, resets, data_segments;
};
static struct sim_seen_direction sim_seen_direction[SIM_PAIRS][2];
static uint32_t sim_largest_segment_allowed[SIM_PAIRS][2]; /* no segment may be longer; set by who sets the path */

static inline uint32_t sim_load_be32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void sim_parse_mss_and_window_scale(struct sim_segment *out, const uint8_t *at, const uint8_t *end)
{
	out->scale = 255;
	out->mss = 0;
	while (at < end && *at != 0) {
		if (*at == 1) {
			at++;
			continue;
		}
		if (end - at < 2 || at[1] < 2 || at + at[1] > end)
			return;
		if (*at == 2)
			out->mss = (uint16_t)(at[2] << 8 | at[3]);
		if (*at == 3)
			out->scale = at[2];
		at += at[1];
	}
}

static bool sim_segment_parse(const uint8_t *ip, uint32_t len, struct sim_segment *out)
{
	const uint8_t *tcp = ip + 20;
	uint32_t sport, dport, header;

	if (len < 40 || ip[0] != 0x45 || ip[9] != IPPROTO_TCP)
		return false;
	out->total = (uint32_t)ip[2] << 8 | ip[3];
	sport = (uint32_t)tcp[0] << 8 | tcp[1];
	dport = (uint32_t)tcp[2] << 8 | tcp[3];
	out->pair = (sport >= SIM_PORT ? sport : dport) - SIM_PORT;
	header = (tcp[12] >> 4) * 4U;
	if (out->pair >= SIM_PAIRS || header < 20 || out->total < 20 + header || 20 + header > len)
		return false;
	out->seq = sim_load_be32(tcp + 4);
	out->ack = sim_load_be32(tcp + 8);
	out->flags = tcp[13];
	out->window = (uint32_t)tcp[14] << 8 | tcp[15];
	out->payload = out->total - 20 - header;
	sim_parse_mss_and_window_scale(out, tcp + 20, tcp + header);
	return true;
}

static void sim_trace_frame(const struct sim_side *side, const uint8_t *ip, const struct sim_segment *segment,
                            const struct sim_seen_direction *own, const struct sim_seen_direction *other)
{
	const uint8_t *tcp = ip + 20, *end = tcp + (tcp[12] >> 4) * 4, *at = tcp + 20;

	fprintf(stderr, "%12.6f  %s%u %c%c%c%c%c%c seq %u len %u", (double)side->sim->now_ns / 1e9,
	        side->number == 0 ? "0> " : " <1", segment->pair, segment->flags & SIM_SYN ? 'S' : '.',
	        segment->flags & SIM_FIN ? 'F' : '.', segment->flags & SIM_RST ? 'R' : '.',
	        segment->flags & SIM_PSH ? 'P' : '.', segment->flags & SIM_ACK ? 'A' : '.',
	        segment->flags & SIM_URG ? 'U' : '.', segment->seq - own->isn, segment->payload);
	if (segment->flags & SIM_ACK)
		fprintf(stderr, " ack %u", segment->ack - other->isn);
	fprintf(stderr, " win %u", segment->flags & SIM_SYN ? segment->window : segment->window << own->scale);
	while (at < end && *at != 0) {
		if (*at == 5)
			for (unsigned i = 2; i + 8 <= at[1]; i += 8)
				fprintf(stderr, " sack %u-%u", sim_load_be32(at + i) - other->isn,
				        sim_load_be32(at + i + 4) - other->isn);
		at += *at == 1 || at[1] < 2 ? 1 : at[1];
	}
	fprintf(stderr, "\n");
}

static void sim_note_syn(struct sim_seen_direction *own, struct sim_seen_direction *other,
                         const struct sim_segment *segment)
{
	if (!own->syn || own->isn != segment->seq) { /* a new incarnation */
		*own = (struct sim_seen_direction){.syn = true,
		                                   .isn = segment->seq,
		                                   .segments = own->segments,
		                                   .resets = own->resets,
		                                   .data_segments = own->data_segments};
		other->over = other->edge_known = false;
		own->highest = segment->seq + 1;
	}
	own->scale = segment->scale == 255 ? 0 : segment->scale;
	if (segment->mss > own->mss) /* sent again after the path has changed, it says less: which one has arrived? */
		own->mss = segment->mss;
}

/* RFC 9293 3.8.6: the right edge of the window does not move to the left (by more than scaling's rounding). */
static void sim_check_window_right_edge(struct sim_side *side, struct sim_seen_direction *own,
                                        const struct sim_seen_direction *other, const struct sim_segment *segment)
{
	uint32_t window = segment->flags & SIM_SYN ? segment->window : segment->window << own->scale;
	uint32_t edge = segment->ack + window;

	if (segment->ack - other->isn > other->highest - other->isn + 1) /* to the connection before this one */
		return;
	if (own->edge_known && (int32_t)(edge - own->edge) < 0) {
		if (!own->over && (int32_t)(own->edge - edge) > 1 << own->scale)
			sim_fail(side->sim, "side %d connection %u: its window shrinks by %u", side->number,
			         segment->pair, own->edge - edge);
		return;
	}
	own->edge = edge;
	own->edge_known = true;
}

static void sim_check_data_fits_mss_and_window(struct sim_side *side, struct sim_seen_direction *own,
                                               const struct sim_seen_direction *other,
                                               const struct sim_segment *segment)
{
	uint32_t end = segment->seq + segment->payload;

	if (segment->total > sim_largest_segment_allowed[segment->pair][side->number])
		sim_fail(side->sim, "side %d connection %u: a packet of %u bytes on a path of %u", side->number,
		         segment->pair, segment->total, sim_largest_segment_allowed[segment->pair][side->number]);
	if (other->mss != 0 && segment->payload > other->mss)
		sim_fail(side->sim, "side %d connection %u: %u bytes, though the peer's MSS is %u", side->number,
		         segment->pair, segment->payload, other->mss);
	if (other->edge_known && (int32_t)(end - other->edge) > 1) /* a zero-window probe may be one byte */
		sim_fail(side->sim, "side %d connection %u: sends %u bytes beyond the peer's window", side->number,
		         segment->pair, end - other->edge);
	if ((int32_t)(end - own->highest) > 0) {
		if ((int32_t)(segment->seq - own->highest) > 0)
			sim_fail(side->sim, "side %d connection %u: leaves out %u bytes", side->number, segment->pair,
			         segment->seq - own->highest);
		own->highest = end;
	}
	own->data_segments++;
}

/* A frame with Ethernet header, as it is handed to the NIC. */
static void sim_check_sent_segment(struct sim_side *side, const uint8_t *frame, uint32_t len)
{
	struct sim_segment segment;
	struct sim_seen_direction *own, *other;

	if (len < 54 || !sim_segment_parse(frame + 14, len - 14, &segment)) {
		sim_fail(side->sim, "side %d: sends a frame that is no TCP segment of ours", side->number);
		return;
	}
	own = &sim_seen_direction[segment.pair][side->number];
	other = &sim_seen_direction[segment.pair][1 - side->number];
	own->segments++;
	if ((segment.flags & SIM_SYN) && !(segment.flags & SIM_RST))
		sim_note_syn(own, other, &segment);
	if (side->sim->trace)
		sim_trace_frame(side, frame + 14, &segment, own, other);
	if (segment.flags & SIM_RST) {
		own->resets++;
		own->over = other->over = true;
		return;
	}
	if (segment.flags & SIM_FIN)
		own->over = other->over = true;
	if (segment.flags & SIM_ACK)
		sim_check_window_right_edge(side, own, other, &segment);
	if (segment.payload > 0 && own->syn)
		sim_check_data_fits_mss_and_window(side, own, other, &segment);
	if ((segment.flags & SIM_FIN) && own->highest == segment.seq + segment.payload)
		own->highest++;
}

/* ---- the hook: the queue pair's operations are replaced by a copy that looks at what is sent ---- */

static struct sim_side *sim_watched[2];

static void sim_watch_sent_frame(struct sim_side *side, const uint8_t *frame, uint32_t len)
{
	if (side->sim->frame != NULL)
		side->sim->frame(side, frame + 14, len - 14);
	else
		sim_check_sent_segment(side, frame, len);
}

/* The segments of a packet that the NIC cuts, without sums. */
static void sim_watch_tso_packet(struct sim_side *side, const uint8_t *packet, uint32_t len,
                                 const struct vma_nic_seg *seg)
{
	static uint8_t frame[65536];
	uint8_t *ip = frame + 14, *tcp = ip + 20;

	side->cut++;
	if ((uint32_t)packet[16] << 8 != ((len - 14) & 0xff00) || packet[17] != (uint8_t)(len - 14))
		sim_fail(side->sim, "side %d: a packet of %u bytes to be cut says another length", side->number, len);
	for (uint32_t at = seg->hdr_len; at < len; at += seg->mss) {
		const uint32_t n = len - at < seg->mss ? len - at : seg->mss, total = seg->hdr_len - 14 + n;
		const uint32_t number = sim_load_be32(packet + 38) + at - seg->hdr_len;

		memcpy(frame, packet, seg->hdr_len);
		memcpy(frame + seg->hdr_len, packet + at, n);
		memcpy(ip + 2, (uint8_t[]){(uint8_t)(total >> 8), (uint8_t)total}, 2);
		memcpy(tcp + 4,
		       (uint8_t[]){(uint8_t)(number >> 24), (uint8_t)(number >> 16), (uint8_t)(number >> 8),
		                   (uint8_t)number},
		       4);
		sim_watch_sent_frame(side, frame, seg->hdr_len + n);
	}
}

static unsigned sim_hook_tx_and_watch_frames(struct vma_nic_qp *qp, const struct vma_nic_seg *segs, unsigned n)
{
	struct sim_side *side = vma_ring_qp(sim_watched[0]->ring) == qp ? sim_watched[0] : sim_watched[1];
	unsigned taken = qp->nic->ops->tx(qp, segs, n);
	static uint8_t frame[65536 + 256];
	uint32_t len = 0, first = 0;

	for (unsigned i = 0; i < taken; i++) { /* copied by the wire, and not reaped yet */
		first = len == 0 ? i : first;
		memcpy(frame + len, vma_buf_frame(side->arena, segs[i].buf) + segs[i].off, segs[i].len);
		len += segs[i].len;
		if (segs[i].flags & VMA_NIC_SEG_MORE)
			continue;
		if (segs[first].flags & VMA_NIC_SEG_TSO)
			sim_watch_tso_packet(side, frame, len, &segs[first]);
		else
			sim_watch_sent_frame(side, frame, len);
		len = 0;
	}
	return taken;
}

static unsigned sim_hook_poll_rx_and_count_packets(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n)
{
	struct sim_side *side = vma_ring_qp(sim_watched[0]->ring) == qp ? sim_watched[0] : sim_watched[1];
	unsigned got = qp->nic->ops->poll_rx(qp, bufs, n);

	for (unsigned i = 0; i < got; i++)
		side->polled += (bufs[i]->flags & VMA_BUF_RX_MORE) == 0;
	return got;
}

static void sim_watch_hook_nic_queue_pair(struct sim_side *side)
{
	struct vma_nic_qp *qp = vma_ring_qp(side->ring);

	side->hooked = *qp->ops;
	side->hooked.tx = sim_hook_tx_and_watch_frames;
	side->hooked.poll_rx = sim_hook_poll_rx_and_count_packets;
	qp->ops = &side->hooked;
	sim_watched[side->number] = side;
	if (side->number == 0) {
		memset(sim_seen_direction, 0, sizeof(sim_seen_direction));
		memset(sim_largest_segment_allowed, 0, sizeof(sim_largest_segment_allowed));
	}
}

#endif
