/* ring_fragments.c - the fragments of a datagram, held until all have come. */
#include <string.h>

#include <vma/nic_tap.h>
#include <vma/packet.h>

#include "ring_fragments.h"

enum {
	AGE_MS = 1000,
	MORE_FRAGMENTS = 0x2000,
	OFFSET = 0x1fff, /* in units of eight bytes */
	ETHERTYPE_VLAN = 0x8100,
	LONGEST_IP = 65535,
	PER_PACKET_FLAGS = VMA_BUF_RX_L3_CSUM_OK | VMA_BUF_RX_L4_CSUM_OK | VMA_BUF_RX_L4_CSUM_BAD | VMA_BUF_RX_MORE,
};

/* What one fragment's header says, read once: the frame lies in memory that others may write to. */
struct piece {
	uint32_t src, dst;
	uint16_t id;
	uint8_t proto;
	uint32_t ip_off, payload_off; /* from the frame's start */
	uint32_t offset, len;         /* of its bytes in the datagram */
	bool is_last;
};

static uint8_t fragment_load8(const uint8_t *p)
{
	return *(const volatile uint8_t *)p;
}

static uint16_t fragment_load16(const uint8_t *p)
{
	return (uint16_t)(fragment_load8(p) << 8 | fragment_load8(p + 1));
}

/* ---- a held fragment: where it lies in its datagram is noted in fields that nobody needs before the header checks
 * ---- */

static uint32_t fragment_offset(const struct vma_buf *fragment)
{
	return fragment->l4_off;
}

static uint32_t fragment_end_offset(const struct vma_buf *fragment)
{
	return (uint32_t)fragment->l4_off + fragment->payload_len;
}

static void fragment_set_offsets(struct vma_buf *fragment, const struct piece *piece)
{
	fragment->l3_off = (uint16_t)piece->ip_off;
	fragment->payload_off = (uint16_t)piece->payload_off;
	fragment->l4_off = (uint16_t)piece->offset;
	fragment->payload_len = (uint16_t)piece->len;
	fragment->user = NULL;
}

/* packet_validate_and_parse_headers has found an Ethernet header, perhaps a tag, and an IPv4 header. */
static bool fragment_parse_header(struct piece *piece, const struct vma_buf *packet, const uint8_t *frame)
{
	const uint32_t ip_off =
	        VMA_PKT_ETH_HLEN + (fragment_load16(frame + 12) == ETHERTYPE_VLAN ? VMA_PKT_VLAN_HLEN : 0);
	const uint8_t *ip = frame + ip_off;
	uint32_t total_len, header_len;
	uint16_t bits;

	if (packet->len < ip_off + VMA_PKT_IP4_HLEN)
		return false;
	header_len = (fragment_load8(ip) & 15) * 4u;
	total_len = fragment_load16(ip + 2);
	bits = fragment_load16(ip + 6);
	if (header_len < VMA_PKT_IP4_HLEN || packet->len < ip_off + header_len || total_len <= header_len ||
	    packet->packet_len < ip_off + total_len)
		return false;
	*piece = (struct piece){.id = fragment_load16(ip + 4),
	                        .proto = fragment_load8(ip + 9),
	                        .ip_off = ip_off,
	                        .payload_off = ip_off + header_len,
	                        .offset = (bits & OFFSET) * 8u,
	                        .len = total_len - header_len,
	                        .is_last = (bits & MORE_FRAGMENTS) == 0};
	memcpy(&piece->src, ip + 12, 4);
	memcpy(&piece->dst, ip + 16, 4);
	/* All but the last are whole units; and the datagram fits behind the longest header. */
	return (piece->is_last || piece->len % 8 == 0) && piece->offset + piece->len <= LONGEST_IP - VMA_PKT_IP4_HLEN;
}

static uint32_t packet_count_buffers(const struct vma_buf *packet)
{
	uint32_t n = 0;

	for (; packet != NULL; packet = packet->next)
		n++;
	return n;
}

/* ---- datagrams under way ---- */

static void fragment_drop(struct ring_fragments *fragments, struct vma_bufarena *arena, struct vma_buf *fragment)
{
	vma_nic_tap_on_drop(fragments->qp, fragment, "rx_drop_ip_fragment");
	fragments->dropped++;
	vma_buf_put_chain(arena, fragment);
}

static void datagram_drop(struct ring_fragments *fragments, struct vma_bufarena *arena, struct ring_datagram *datagram)
{
	struct vma_buf *fragment = datagram->first, *next;

	for (; fragment != NULL; fragment = next) {
		next = fragment->user;
		fragment_drop(fragments, arena, fragment);
	}
	fragments->bufs -= datagram->bufs;
	*datagram = (struct ring_datagram){0};
}

static bool fragment_belongs_to_datagram(const struct ring_datagram *datagram, const struct piece *piece, uint16_t vlan)
{
	return datagram->first != NULL && datagram->id == piece->id && datagram->proto == piece->proto &&
	       datagram->src == piece->src && datagram->dst == piece->dst && datagram->vlan == vlan;
}

static struct ring_datagram *datagram_find(struct ring_fragments *fragments, const struct piece *piece, uint16_t vlan)
{
	if (fragment_belongs_to_datagram(&fragments->at[fragments->recent], piece, vlan))
		return &fragments->at[fragments->recent];
	for (unsigned i = 0; i < RING_DATAGRAMS; i++) {
		if (fragment_belongs_to_datagram(&fragments->at[i], piece, vlan)) {
			fragments->recent = i;
			return &fragments->at[i];
		}
	}
	return NULL;
}

/* The oldest but the one at `keep` (NOBODY: of all); NULL: there is no other. */
enum { NOBODY = RING_DATAGRAMS };
static struct ring_datagram *datagram_oldest(struct ring_fragments *fragments, unsigned keep)
{
	struct ring_datagram *oldest = NULL;

	for (unsigned i = 0; i < RING_DATAGRAMS; i++) {
		struct ring_datagram *datagram = &fragments->at[i];

		if (i != keep && datagram->first != NULL && (oldest == NULL || datagram->begun_ms < oldest->begun_ms))
			oldest = datagram;
	}
	return oldest;
}

/* A free place: what is too old is given up first, and if nothing is, the oldest. */
static struct ring_datagram *datagram_begin_reassembly(struct ring_fragments *fragments, struct vma_bufarena *arena,
                                                       const struct piece *piece, uint16_t vlan, uint64_t now_ms)
{
	struct ring_datagram *datagram = NULL;

	for (unsigned i = 0; i < RING_DATAGRAMS; i++) {
		struct ring_datagram *other = &fragments->at[i];

		if (other->first != NULL && now_ms - other->begun_ms > AGE_MS)
			datagram_drop(fragments, arena, other);
		if (other->first == NULL && datagram == NULL)
			datagram = other;
	}
	if (datagram == NULL) {
		datagram = datagram_oldest(fragments, NOBODY); /* there is one: no place is free */
		datagram_drop(fragments, arena, datagram);
	}
	fragments->recent = (uint32_t)(datagram - fragments->at);
	*datagram = (struct ring_datagram){.src = piece->src,
	                                   .dst = piece->dst,
	                                   .id = piece->id,
	                                   .vlan = vlan,
	                                   .proto = piece->proto,
	                                   .begun_ms = now_ms};
	return datagram;
}

enum added { ADDED, NOTHING_NEW, BROKEN };

/* The fragment behind which this one belongs; NULL: it is the first. Nearly always that is the last. */
static struct vma_buf *fragment_before(const struct ring_datagram *datagram, const struct vma_buf *fragment)
{
	struct vma_buf *before = NULL;

	if (datagram->last != NULL && fragment_offset(datagram->last) <= fragment_offset(fragment))
		return datagram->last;
	for (struct vma_buf *at = datagram->first; at != NULL && fragment_offset(at) <= fragment_offset(fragment);
	     at = at->user)
		before = at;
	return before;
}

static enum added datagram_insert_fragment(struct ring_datagram *datagram, struct vma_buf *fragment, bool is_last)
{
	struct vma_buf *before = fragment_before(datagram, fragment);
	struct vma_buf *after = before != NULL ? before->user : datagram->first;

	if (before != NULL && fragment_end_offset(before) > fragment_offset(fragment))
		return fragment_end_offset(before) >= fragment_end_offset(fragment) ? NOTHING_NEW : BROKEN;
	if (after != NULL && fragment_offset(after) < fragment_end_offset(fragment))
		return BROKEN;
	if ((is_last && (datagram->total != 0 || after != NULL)) ||
	    (datagram->total != 0 && fragment_end_offset(fragment) > datagram->total))
		return BROKEN;
	if (is_last)
		datagram->total = fragment_end_offset(fragment);
	fragment->user = after;
	if (before != NULL)
		before->user = fragment;
	else
		datagram->first = fragment;
	if (after == NULL)
		datagram->last = fragment;
	datagram->have += fragment->payload_len;
	return ADDED;
}

/* ---- the whole ---- */

/* The header of the first fragment becomes the datagram's. False: it would be longer than a datagram can be. */
static bool rewrite_ip_header_of_reassembled_datagram(const struct ring_datagram *datagram, uint8_t *ip,
                                                      uint32_t header_len)
{
	if (header_len + datagram->total > LONGEST_IP)
		return false;
	vma_pkt_put16(ip + 2, header_len + datagram->total);
	vma_pkt_put16(ip + 6, 0);
	memset(ip + 10, 0, 2);
	const uint16_t sum = (uint16_t)~vma_csum_fold(vma_csum_add(0, ip, header_len));

	memcpy(ip + 10, &sum, 2);
	return true;
}

/* Cuts what lies behind the fragment's bytes. The buffer that has the last of them. */
static struct vma_buf *fragment_trim_padding(struct vma_bufarena *arena, struct vma_buf *fragment, uint32_t len)
{
	struct vma_buf *at = fragment;

	while (at->next != NULL && len > at->len) {
		len -= at->len;
		at = at->next;
	}
	if (at->len > len)
		at->len = len;
	if (at->next != NULL)
		vma_buf_put_chain(arena, at->next);
	at->next = NULL;
	return at;
}

/* All fragments of the datagram as one packet, whose buffers hold its bytes and nothing else. */
static struct vma_buf *datagram_reassemble_fragments(struct ring_datagram *datagram, struct vma_bufarena *arena)
{
	struct vma_buf *first = datagram->first, *fragment = first->user, *next;
	const uint32_t ip_off = first->l3_off, payload_off = first->payload_off;
	struct vma_buf *tail = fragment_trim_padding(arena, first, payload_off + first->payload_len);

	if (!rewrite_ip_header_of_reassembled_datagram(datagram, (uint8_t *)vma_buf_data(arena, first) + ip_off,
	                                               payload_off - ip_off))
		return NULL;
	for (; fragment != NULL; fragment = next) {
		next = fragment->user;
		fragment->user = NULL;
		fragment->data_off += fragment->payload_off;
		fragment->len -= fragment->payload_off;
		tail->next = fragment;
		tail = fragment_trim_padding(arena, fragment, fragment->payload_len);
	}
	first->user = NULL;
	first->flags &= (uint16_t)~PER_PACKET_FLAGS;
	first->packet_len = payload_off + datagram->total;
	return first;
}

static struct vma_buf *datagram_finish_reassembly(struct ring_fragments *fragments, struct vma_bufarena *arena,
                                                  struct ring_datagram *datagram)
{
	struct vma_buf *whole = datagram_reassemble_fragments(datagram, arena);

	if (whole == NULL) {
		datagram_drop(fragments, arena, datagram);
		return NULL;
	}
	fragments->bufs -= datagram->bufs;
	*datagram = (struct ring_datagram){0};
	return whole;
}

static void fragments_evict(struct ring_fragments *fragments, struct vma_bufarena *arena,
                            const struct ring_datagram *keep)
{
	const unsigned at = (unsigned)(keep - fragments->at);
	struct ring_datagram *oldest;

	while (fragments->bufs > fragments->bufs_max && (oldest = datagram_oldest(fragments, at)) != NULL)
		datagram_drop(fragments, arena, oldest);
}

static struct vma_buf *fragment_drop_and_return_null(struct ring_fragments *fragments, struct vma_bufarena *arena,
                                                     struct vma_buf *packet)
{
	fragment_drop(fragments, arena, packet);
	return NULL;
}

struct vma_buf *ring_fragments_add(struct ring_fragments *fragments, struct vma_bufarena *arena, struct vma_buf *packet,
                                   uint16_t vlan, uint64_t now_ms)
{
	struct ring_datagram *datagram;
	enum added added;
	struct piece piece;
	uint32_t bufs;

	if (!fragment_parse_header(&piece, packet, (const uint8_t *)vma_buf_data(arena, packet)))
		return fragment_drop_and_return_null(fragments, arena, packet);
	datagram = datagram_find(fragments, &piece, vlan);
	if (datagram != NULL && now_ms - datagram->begun_ms > AGE_MS) {
		datagram_drop(fragments, arena, datagram);
		datagram = NULL;
	}
	if (datagram == NULL)
		datagram = datagram_begin_reassembly(fragments, arena, &piece, vlan, now_ms);
	fragment_set_offsets(packet, &piece);
	bufs = packet_count_buffers(packet);
	added = datagram_insert_fragment(datagram, packet, piece.is_last);
	if (added != ADDED) {
		fragment_drop_and_return_null(fragments, arena, packet);
		if (added == BROKEN)
			datagram_drop(fragments, arena, datagram);
		return NULL;
	}
	datagram->fragments++;
	datagram->bufs += bufs;
	fragments->bufs += bufs;
	if (datagram->total != 0 && datagram->have == datagram->total)
		return datagram_finish_reassembly(fragments, arena, datagram);
	fragments_evict(fragments, arena, datagram);
	if (fragments->bufs > fragments->bufs_max)
		datagram_drop(fragments, arena, datagram);
	return NULL;
}

void ring_fragments_init(struct ring_fragments *fragments, const struct vma_nic_qp *qp, uint32_t quota)
{
	fragments->qp = qp;
	fragments->bufs_max = quota / 2;
	if (fragments->bufs_max < RING_FRAGMENT_BUFS_MIN)
		fragments->bufs_max = RING_FRAGMENT_BUFS_MIN;
	if (fragments->bufs_max > RING_FRAGMENT_BUFS_MAX)
		fragments->bufs_max = RING_FRAGMENT_BUFS_MAX;
}

void ring_fragments_end(struct ring_fragments *fragments, struct vma_bufarena *arena)
{
	for (unsigned i = 0; i < RING_DATAGRAMS; i++)
		datagram_drop(fragments, arena, &fragments->at[i]);
}
