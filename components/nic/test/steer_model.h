/*
 * steer_model - what the XDP program is to do with a packet, in plain C and without its shortcuts: it knows no counts,
 * no front and no "plain" packets, looks for everything in lists, and reads a packet byte by byte.
 *
 * Its tables are filled by who uses it, side by side with the program's maps. Times are not modelled: fragments and
 * noted slots are taken as new.
 */
#ifndef VMA_NIC_STEER_MODEL_H
#define VMA_NIC_STEER_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <linux/bpf.h>
#include <netinet/in.h>

#include "../xdp/flow.h"

enum { MODEL_FLOWS = 16, MODEL_CLAIMS = 4, MODEL_NOTES = 64, MODEL_REPORTS_MAX = 64 };
enum steer_model_kernel_socket { MODEL_NO_SOCKET, MODEL_LISTENER, MODEL_CONNECTION };
enum steer_model_verdict { MODEL_PACKET_IS_OURS, MODEL_PACKET_IS_KERNELS, MODEL_PACKET_IS_NOBODYS };

struct steer_model_flow {
	struct xdp_flow_key key;
	struct xdp_flow_value value;
};
struct steer_model {
	struct steer_model_flow flow[MODEL_FLOWS];
	unsigned flows;
	struct {
		uint64_t name, peer_and_slot;
	} claim[MODEL_CLAIMS];
	unsigned claims;
	const struct steer_model_flow *front; /* of a UDP 3-tuple, which wins over claims; NULL: none does */
	uint64_t populated;                   /* slots with a socket, a bit each */
	uint64_t mac;                         /* 0: everybody's is the interface's */
	struct xdp_group group;
	uint32_t rentals[XDP_FLOW_SLOTS];
	enum steer_model_kernel_socket (*kernels)(const struct xdp_flow_key *key);
	/* what the program has learned */
	struct {
		struct xdp_flow_key key;
		uint32_t slot, rental;
	} noted[MODEL_NOTES];
	unsigned notes;
	struct {
		struct xdp_fragment_key key;
		uint32_t slot;
	} fragment[MODEL_NOTES];
	unsigned fragments;
	/* what it has told the owner of the packet */
	struct xdp_minisock_segment told[MODEL_REPORTS_MAX];
	unsigned tells;
};

/* A packet, as far as it is there. */
struct steer_model_packet {
	const uint8_t *bytes;
	size_t n, l3, l4;
	struct xdp_flow_key key;
	bool is_tcp;
};

static inline uint32_t steer_model_load_big_endian(const uint8_t *at, unsigned n)
{
	uint32_t value = 0;

	while (n-- > 0)
		value = value << 8 | *at++;
	return value;
}

/* ---- tables ---- */

static inline struct steer_model_flow *steer_model_find_flow(struct steer_model *m, const struct xdp_flow_key *key)
{
	for (unsigned i = 0; i < m->flows; i++)
		if (memcmp(&m->flow[i].key, key, sizeof(*key)) == 0)
			return &m->flow[i];
	return NULL;
}

static inline struct steer_model_flow *steer_model_find_wildcard_flow(struct steer_model *m, struct xdp_flow_key key)
{
	key.peer = 0;
	key.peer_port = 0;
	return steer_model_find_flow(m, &key);
}

static inline struct steer_model_flow *steer_model_find_port_block_flow(struct steer_model *m,
                                                                        const struct xdp_flow_key *key)
{
	uint16_t port = ntohs(key->local_port);
	const struct xdp_flow_key block = {.local = key->local,
	                                   .local_port = htons((uint16_t)(port - port % XDP_FLOW_PORTS)),
	                                   .vlan = key->vlan,
	                                   .proto = XDP_FLOW_TCP_PORTS};

	return steer_model_find_flow(m, &block);
}

static inline bool steer_model_find_claim(const struct steer_model *m, const struct xdp_flow_key *key, uint32_t *slot)
{
	for (unsigned i = 0; i < m->claims; i++) {
		uint64_t peer = m->claim[i].peer_and_slot >> 16;

		if (m->claim[i].name != xdp_claim_pack_local_name(key->local, key->local_port, key->vlan) ||
		    (peer != 0 && peer != ((uint64_t)key->peer << 16 | key->peer_port)))
			continue;
		*slot = (uint16_t)m->claim[i].peer_and_slot;
		return true;
	}
	return false;
}

static inline int steer_model_redirect_to_slot(const struct steer_model *m, uint32_t slot, int otherwise)
{
	return slot < 64 && (m->populated >> slot & 1) ? XDP_REDIRECT : otherwise;
}

/* The slot of a datagram. */
static inline bool steer_model_slot_of_datagram(struct steer_model *m, const struct xdp_flow_key *key, uint32_t *slot)
{
	const struct steer_model_flow *flow = steer_model_find_flow(m, key),
	                              *wildcard = steer_model_find_wildcard_flow(m, *key);

	if (flow == NULL && wildcard != NULL && wildcard == m->front)
		flow = wildcard;
	if (flow == NULL && steer_model_find_claim(m, key, slot))
		return true;
	if (flow == NULL)
		flow = wildcard;
	if (flow != NULL)
		*slot = flow->value.slot;
	return flow != NULL;
}

/* ---- whose a packet is by its MAC, its source, its options ---- */

static inline enum steer_model_verdict steer_model_check_ip_options(const struct steer_model_packet *p)
{
	size_t end = p->l3 + (size_t)(p->bytes[p->l3] & 15) * 4, at = p->l3 + 20, next = at;

	for (; at < end; at++) {
		uint8_t kind, length;

		if (at + 2 > p->n)
			return MODEL_PACKET_IS_KERNELS;
		if (at < next)
			continue;
		kind = p->bytes[at];
		length = p->bytes[at + 1];
		next = at + 1;
		if (kind == 0)
			return MODEL_PACKET_IS_OURS;
		if (kind == 1)
			continue;
		if (length < 2 || at + length > end)
			return MODEL_PACKET_IS_KERNELS;
		if (kind == 131 || kind == 137)
			return MODEL_PACKET_IS_NOBODYS;
		next = at + length;
	}
	return MODEL_PACKET_IS_OURS;
}

static inline enum steer_model_verdict steer_model_check_addresses_and_options(const struct steer_model *m,
                                                                               const struct steer_model_packet *p)
{
	const uint8_t *ip = p->bytes + p->l3;
	uint32_t source = steer_model_load_big_endian(ip + 12, 4), dest = steer_model_load_big_endian(ip + 16, 4);
	uint64_t to =
	        (uint64_t)steer_model_load_big_endian(p->bytes, 2) << 32 | steer_model_load_big_endian(p->bytes + 2, 4);

	if (source == 0 || source == 0xffffffff || source >> 24 == 127 ||
	    (source >= 0xe0000000 && source < 0xf0000000) || source == dest)
		return MODEL_PACKET_IS_KERNELS;
	if (p->bytes[0] & 1) {
		if (ip[9] == IPPROTO_TCP)
			return MODEL_PACKET_IS_KERNELS;
	} else if (p->l3 == 14 && m->mac != 0 && to != m->mac) {
		return MODEL_PACKET_IS_NOBODYS;
	}
	return steer_model_check_ip_options(p);
}

/* ---- segments ---- */

static inline bool steer_model_tcp_header_is_cut(const struct steer_model_packet *p)
{
	return p->l4 + 20 > p->n;
}

static inline bool steer_model_is_initial_syn(const struct steer_model_packet *p)
{
	return (p->bytes[p->l4 + 13] & 0x12) == 0x02;
}

static inline void mlx5_model_report_to_owner(struct steer_model *m, const struct steer_model_packet *p,
                                              uint32_t number, bool is_over)
{
	struct xdp_minisock_segment *out = &m->told[m->tells++ % MODEL_REPORTS_MAX];
	const uint8_t *tcp = p->bytes + p->l4;
	uint32_t head, total = steer_model_load_big_endian(p->bytes + p->l3 + 2, 2),
	               ip_bytes = (uint32_t)(p->l4 - p->l3);

	memset(out, 0, sizeof(*out));
	out->key = p->key;
	out->number = number;
	out->is_over = is_over;
	if (is_over)
		return;
	out->seq = steer_model_load_big_endian(tcp + 4, 4);
	out->ack = steer_model_load_big_endian(tcp + 8, 4);
	out->tcp_flags = tcp[13];
	head = (uint32_t)(tcp[12] >> 4) * 4;
	if (total > ip_bytes + head)
		out->payload_bytes = (uint16_t)(total - ip_bytes - head);
	if (head >= 32 && p->l4 + 32 <= p->n && memcmp(tcp + 20, "\1\1\10\12", 4) == 0) {
		out->has_ts = 1;
		out->ts_val = steer_model_load_big_endian(tcp + 24, 4);
		out->ts_ecr = steer_model_load_big_endian(tcp + 28, 4);
	}
}

/* A connection's minisock: true if the segment is its own. */
static inline bool steer_model_segment_is_minisocks_own(struct steer_model *m, struct steer_model_flow *minisock,
                                                        const struct steer_model_packet *p)
{
	enum steer_model_kernel_socket socket = m->kernels(&p->key);
	const struct steer_model_flow *wildcard = steer_model_find_wildcard_flow(m, p->key);
	bool others;

	if (minisock->value.over == minisock->value.slot)
		return false;
	if (steer_model_tcp_header_is_cut(p))
		return true;
	if (steer_model_is_initial_syn(p))
		others =
		        socket != MODEL_NO_SOCKET || (wildcard != NULL && !(wildcard->value.flags & XDP_FLOW_MINISOCK));
	else
		others = socket == MODEL_CONNECTION;
	if (others)
		minisock->value.over = minisock->value.slot;
	mlx5_model_report_to_owner(m, p, minisock->value.slot, others);
	return !others;
}

static inline int steer_model_steer_to_group(struct steer_model *m, const struct steer_model_packet *p)
{
	bool begins = steer_model_tcp_header_is_cut(p) || steer_model_is_initial_syn(p);
	uint32_t noted = XDP_NO_SLOT, slot;
	unsigned i;

	for (i = 0; i < m->notes && memcmp(&m->noted[i].key, &p->key, sizeof(p->key)) != 0; i++)
		;
	if (i < m->notes && m->noted[i].rental == m->rentals[m->noted[i].slot])
		noted = m->noted[i].slot;
	if (noted == XDP_NO_SLOT && !begins)
		noted = m->group.default_slot;
	if (noted < XDP_FLOW_SLOTS && (!begins || (m->group.eligible >> noted & 1)) && (m->populated >> noted & 1))
		return XDP_REDIRECT;
	slot = m->group.slot[xdp_group_bucket(xdp_flow_key_hash(&p->key))] % XDP_FLOW_SLOTS;
	if (begins && i < MODEL_NOTES) {
		m->noted[i].key = p->key;
		m->noted[i].slot = slot;
		m->noted[i].rental = m->rentals[slot];
		m->notes += i == m->notes;
	}
	return steer_model_redirect_to_slot(m, slot, begins ? XDP_PASS : XDP_DROP);
}

static inline int steer_model_steer_segment(struct steer_model *m, const struct steer_model_packet *p)
{
	struct steer_model_flow *flow = steer_model_find_flow(m, &p->key),
	                        *wildcard = steer_model_find_wildcard_flow(m, p->key);
	bool is_cut = steer_model_tcp_header_is_cut(p), begins = !is_cut && steer_model_is_initial_syn(p);

	if (flow != NULL && flow->value.flags & XDP_FLOW_YIELDS && m->kernels(&p->key) == MODEL_CONNECTION)
		return XDP_PASS;
	if (flow != NULL && !(flow->value.flags & XDP_FLOW_MINISOCK))
		return steer_model_redirect_to_slot(m, flow->value.slot, XDP_DROP);
	if (flow != NULL && steer_model_segment_is_minisocks_own(m, flow, p))
		return XDP_DROP;
	if (wildcard == NULL) {
		flow = steer_model_find_port_block_flow(m, &p->key);
		return flow != NULL && m->kernels(&p->key) == MODEL_NO_SOCKET
		               ? steer_model_redirect_to_slot(m, flow->value.slot, XDP_PASS)
		               : XDP_PASS;
	}
	if (wildcard->value.flags & XDP_FLOW_MINISOCK) {
		if (is_cut)
			return XDP_DROP;
		if (begins || m->kernels(&p->key) != MODEL_NO_SOCKET)
			return XDP_PASS;
		mlx5_model_report_to_owner(m, p, wildcard->value.slot, false);
		return XDP_DROP;
	}
	if (wildcard->value.flags & XDP_FLOW_IN_GRACE && (is_cut || begins))
		return XDP_PASS;
	if (wildcard->value.flags & XDP_FLOW_LISTENER && m->kernels(&p->key) == MODEL_CONNECTION)
		return XDP_PASS;
	if (wildcard->value.flags & XDP_FLOW_GROUP)
		return steer_model_steer_to_group(m, p);
	return steer_model_redirect_to_slot(m, wildcard->value.slot, XDP_PASS);
}

/* Of a flow of ours, but not to be taken, and nothing that the kernel is to answer. */
static inline int steer_model_verdict_of_untakeable_segment(struct steer_model *m, const struct steer_model_packet *p)
{
	const struct steer_model_flow *flow = steer_model_find_flow(m, &p->key);

	if (flow != NULL && !(flow->value.flags & XDP_FLOW_YIELDS))
		return XDP_DROP;
	if (flow == NULL && steer_model_find_wildcard_flow(m, p->key) == NULL &&
	    steer_model_find_port_block_flow(m, &p->key) == NULL)
		return XDP_PASS;
	return m->kernels(&p->key) == MODEL_CONNECTION ? XDP_PASS : XDP_DROP;
}

/* ---- fragments ---- */

static inline bool steer_model_slot_of_first_fragment(struct steer_model *m, const struct steer_model_packet *p,
                                                      uint32_t *slot)
{
	struct xdp_flow_key key = p->key;

	if (p->l4 < p->l3 + 20 || p->l4 + 4 > p->n)
		return false;
	memcpy(&key.peer_port, p->bytes + p->l4, 2);
	memcpy(&key.local_port, p->bytes + p->l4 + 2, 2);
	return steer_model_slot_of_datagram(m, &key, slot);
}

static inline int steer_model_steer_fragment(struct steer_model *m, const struct steer_model_packet *p)
{
	const uint8_t *ip = p->bytes + p->l3;
	struct xdp_fragment_key key = {.peer = p->key.peer, .local = p->key.local, .vlan = p->key.vlan};
	uint32_t slot = XDP_FRAGMENT_KERNELS;
	bool has_udp = m->claims != 0, is_known;
	unsigned i;

	for (i = 0; i < m->flows; i++)
		has_udp |= m->flow[i].key.proto == IPPROTO_UDP;
	if (ip[9] != IPPROTO_UDP || !has_udp || steer_model_check_addresses_and_options(m, p) != MODEL_PACKET_IS_OURS)
		return XDP_PASS;
	memcpy(&key.id, ip + 4, 2);
	for (i = 0; i < m->fragments && memcmp(&m->fragment[i].key, &key, sizeof(key)) != 0; i++)
		;
	is_known = i < m->fragments;
	if (is_known && m->fragment[i].slot == XDP_FRAGMENT_KERNELS)
		return XDP_PASS;
	if (steer_model_load_big_endian(ip + 6, 2) & 0x1fff) {
		if (is_known)
			return steer_model_redirect_to_slot(m, m->fragment[i].slot, XDP_PASS);
	} else if (!steer_model_slot_of_first_fragment(m, p, &slot) && !is_known) {
		return XDP_PASS;
	}
	if (i < MODEL_NOTES) {
		m->fragment[i].key = key;
		m->fragment[i].slot = slot;
		m->fragments += !is_known;
	}
	return slot == XDP_FRAGMENT_KERNELS ? XDP_PASS : steer_model_redirect_to_slot(m, slot, XDP_PASS);
}

/* ---- a packet ---- */

static inline int steer_model_verdict_of_packet(struct steer_model *m, const uint8_t *bytes, size_t n)
{
	struct steer_model_packet p = {.bytes = bytes, .n = n, .l3 = 14};
	enum steer_model_verdict whose;
	uint32_t type, slot;

	if (n < 34)
		return XDP_PASS;
	type = steer_model_load_big_endian(bytes + 12, 2);
	if (type == 0x8100) {
		p.l3 = 18;
		if (n < 38)
			return XDP_PASS;
		p.key.vlan = steer_model_load_big_endian(bytes + 14, 2) & 0xfff;
		type = steer_model_load_big_endian(bytes + 16, 2);
	}
	if (type != 0x0800 || bytes[p.l3] >> 4 != 4)
		return XDP_PASS;
	p.l4 = p.l3 + (size_t)(bytes[p.l3] & 15) * 4;
	memcpy(&p.key.peer, bytes + p.l3 + 12, 4);
	memcpy(&p.key.local, bytes + p.l3 + 16, 4);
	p.key.proto = bytes[p.l3 + 9];
	if (steer_model_load_big_endian(bytes + p.l3 + 6, 2) & 0x3fff)
		return steer_model_steer_fragment(m, &p);
	if ((p.key.proto != IPPROTO_UDP && p.key.proto != IPPROTO_TCP) || p.l4 < p.l3 + 20 || p.l4 + 4 > n)
		return XDP_PASS;
	p.is_tcp = p.key.proto == IPPROTO_TCP;
	memcpy(&p.key.peer_port, bytes + p.l4, 2);
	memcpy(&p.key.local_port, bytes + p.l4 + 2, 2);
	whose = steer_model_check_addresses_and_options(m, &p);
	if (whose == MODEL_PACKET_IS_NOBODYS && p.is_tcp)
		return steer_model_verdict_of_untakeable_segment(m, &p);
	if (whose != MODEL_PACKET_IS_OURS)
		return XDP_PASS;
	if (p.is_tcp)
		return steer_model_steer_segment(m, &p);
	return steer_model_slot_of_datagram(m, &p.key, &slot) ? steer_model_redirect_to_slot(m, slot, XDP_PASS)
	                                                      : XDP_PASS;
}

#endif
